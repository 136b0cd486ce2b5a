/* html.c - a blame as one page: no script, no font, no link. Every picture has a table
 * with the same numbers beside it; colours follow the reader's scheme, and nothing is said by colour
 * alone. Texts of models and data are strangers': they go through fm_markup_text. */
#include "cli/ops/blame/report/words.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/text/markup.h"
#include "store/base/mem.h"

enum { CELL = 15, LABEL = 150, LANE = 22, ROW = 30 };

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--ink:#1c1c1e;--soft:#66666b;--line:#d8d8dc;--page:#fff;"
    "--blue:#2a78d6;--orange:#c65b12;--red:#c4262e;--green:#23794b;--violet:#7a3db8}\n"
    "@media (prefers-color-scheme:dark){:root{--ink:#e8e8ea;--soft:#a0a0a8;--line:#3a3a40;"
    "--page:#161618;--blue:#6cb0ff;--orange:#ffa366;--red:#ff7b80;--green:#6fd39c;"
    "--violet:#c79bff}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);"
    "max-width:62rem;margin:2rem auto;padding:0 1rem}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}\n"
    "table{border-collapse:collapse;margin:.6rem 0}td,th{border-bottom:1px solid var(--line);"
    "padding:.2rem .6rem;text-align:left;vertical-align:top}td.n,th.n{text-align:right}\n"
    "pre,code{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap;"
    "overflow-wrap:anywhere}\n"
    ".soft{color:var(--soft)}.pass{color:var(--green)}.fail{color:var(--red)}\n"
    ".verdict{border-left:4px solid var(--red);padding:.3rem .9rem;font-weight:600}\n"
    "figure{margin:.8rem 0;overflow-x:auto}figcaption{color:var(--soft)}"
    "details>summary{cursor:pointer;color:var(--soft)}\n"
    "svg text{font:11px ui-monospace,monospace;fill:var(--ink)}svg .soft{fill:var(--soft)}\n"
    ".edge{stroke:var(--soft);stroke-width:1.5;fill:none}"
    ".guilty{stroke:var(--red);stroke-width:4;fill:none}\n"
    ".node{stroke:var(--page);stroke-width:2}.npass{fill:var(--green)}.nfail{fill:var(--red)}"
    ".nerror{fill:var(--soft)}\n"
    ".row{display:flex;flex-wrap:wrap;gap:0 1.5rem}.heat,.less{stroke:var(--line)}"
    ".heat{fill:var(--blue)}.less{fill:var(--violet)}.frame{fill:none;stroke:var(--line)}"
    ".turn{fill:none;stroke:var(--orange);stroke-width:2}\n"
    ".both{fill:var(--violet)}.breaks{fill:var(--red)}.repairs{fill:var(--blue)}"
    ".changed{fill:var(--line)}svg .in{fill:var(--page);text-anchor:middle}\n"
    ".curve{fill:none;stroke:var(--blue);stroke-width:2}.zero{stroke:var(--line)}\n"
    "</style>\n";

static void heading(fm_buf *o, const char *text)
{
    fm_buf_str(o, "<h2>");
    fm_markup_text(o, text);
    fm_buf_str(o, "</h2>\n");
}

static void cell(fm_buf *o, const char *text)
{
    fm_buf_str(o, "<td>");
    fm_markup_text(o, text ? text : "");
    fm_buf_str(o, "</td>");
}

typedef enum form { MARGIN, SCORE, CHANCE, SHARE, SECONDS, WHOLE } form;

static void number(fm_buf *o, form f, double v)
{
    char text[40] = "-";
    switch (isnan(v) ? -1 : (int)f) {
    case MARGIN:
        snprintf(text, sizeof text, "%+.2f", v);
        break;
    case SCORE:
        snprintf(text, sizeof text, "%+.3f", v);
        break;
    case CHANCE:
        snprintf(text, sizeof text, "%.3g", v);
        break;
    case SHARE:
        snprintf(text, sizeof text, "%.3f", v);
        break;
    case SECONDS:
        snprintf(text, sizeof text, "%.1f", v);
        break;
    case WHOLE:
        snprintf(text, sizeof text, "%.0f", v);
        break;
    default:
        break;
    }
    fm_buf_printf(o, "<td class=\"n\">%s</td>", text);
}

static void verdict_cell(fm_buf *o, fm_verdict v)
{
    fm_buf_printf(o, "<td class=\"%s\">%s</td>", v == FM_PASS ? "pass" : "fail",
                  blame_verdict_word[v]);
}

static void lines(fm_buf *o, const char *tag, blame_lines *l)
{
    fm_buf_printf(o, "<%s>\n", tag);
    for (size_t i = 0; i < l->count; i++) {
        fm_buf_str(o, "<li>");
        fm_markup_text(o, l->line[i]);
        fm_buf_str(o, "</li>\n");
    }
    fm_buf_printf(o, "</%s>\n", tag);
    blame_lines_release(l);
}

/* ---- the case ---- */

static void draw_case(fm_buf *o, const blame_more *m)
{
    blame_lines texts = {0};
    char verdict[700];
    const blame *b = m->b;
    blame_verdict_text(b, verdict, sizeof verdict);
    fm_buf_str(o, "<p class=\"verdict\">");
    fm_markup_text(o, verdict);
    fm_buf_str(o, "</p>\n");
    heading(o, "The case");
    blame_case_lines(m, &texts);
    lines(o, "ul", &texts);
    if (m->answers.wrong) {
        fm_buf_str(o, "<table><tr><th>wrong answer</th>");
        cell(o, m->answers.wrong);
        fm_buf_str(o, "</tr><tr><th>right answer</th>");
        cell(o, m->answers.right ? m->answers.right : "not known: no version passes");
        fm_buf_str(o, "</tr></table>\n");
    }
}

/* ---- the lineage: newest below, as in the terminal ---- */

/* A lane for each line of descent: a version stands in the lane of the first child that has it as
 * first parent, else in a new one. */
static size_t give_lanes(const blame *b, unsigned *lane)
{
    size_t used = 1;
    for (size_t i = 0; i < b->count; i++)
        lane[i] = UINT32_MAX;
    lane[0] = 0;
    for (size_t i = 0; i < b->count; i++)
        for (size_t p = 0; p < b->version[i].node.parent_count; p++) {
            size_t at = b->version[i].node.parent[p];
            if (lane[at] != UINT32_MAX)
                continue;
            lane[at] = p == 0 ? lane[i] : (unsigned)used++;
        }
    for (size_t i = 0; i < b->count; i++)
        lane[i] = lane[i] == UINT32_MAX ? 0 : lane[i];
    return used;
}

static double row_y(const blame *b, size_t node)
{
    return (double)(b->count - 1 - node) * ROW + ROW / 2.0;
}

static void draw_graph(fm_buf *o, const blame *b)
{
    unsigned *lane = fm_calloc(b->count, sizeof *lane);
    if (!lane) {
        o->failed = FM_ENOMEM;
        return;
    }
    size_t lanes = give_lanes(b, lane);
    bool blamed = b->history.verdict != FM_BLAME_PASSES;
    fm_buf_printf(
        o, "<figure><svg role=\"img\" width=\"%zu\" height=\"%zu\">\n<title>lineage</title>\n",
        lanes * LANE + 560, b->count * ROW);
    for (size_t i = 0; i < b->count; i++)
        for (size_t p = 0; p < b->version[i].node.parent_count; p++) {
            size_t at = b->version[i].node.parent[p];
            bool guilty = blamed && i == b->history.culprit && b->history.at[at] == FM_PASS;
            fm_buf_printf(o, "<path class=\"%s\" d=\"M%g %g L%g %g\"/>\n",
                          guilty ? "guilty" : "edge", lane[i] * (double)LANE + 12, row_y(b, i),
                          lane[at] * (double)LANE + 12, row_y(b, at));
        }
    for (size_t i = 0; i < b->count; i++) {
        static const char *const dots[] = {"npass", "nfail", "nerror"};
        double y = row_y(b, i);
        fm_buf_printf(
            o, "<circle class=\"node %s\" cx=\"%g\" cy=\"%g\" r=\"7\"/>\n<text x=\"%zu\" y=\"%g\">",
            dots[b->history.at[i]], lane[i] * (double)LANE + 12, y, lanes * LANE + 8, y + 4);
        fm_buf_printf(o, "%s ", blame_verdict_word[b->history.at[i]]);
        fm_markup_text(o, blame_who(b, i));
        if (!b->history.asks[i])
            fm_buf_str(o, " (inferred)");
        if (blamed && i == b->history.culprit)
            fm_buf_str(o, "  &#9664; guilty");
        fm_buf_str(o, "</text>\n");
    }
    fm_buf_str(o, "</svg><figcaption>children below their parents; the thick edge is the guilty "
                  "step</figcaption></figure>\n");
    fm_free(lane);
}

static void draw_history(fm_buf *o, const blame_more *m)
{
    const blame *b = m->b;
    bool odds = m->answers.wrong != NULL;
    heading(o, "Down the lineage");
    draw_graph(o, b);
    fm_buf_str(o, "<table><tr><th>outcome</th><th class=\"n\">posterior of guilt</th>"
                  "<th class=\"n\">asked</th><th>version</th><th>commit</th><th>answer</th>");
    if (odds)
        fm_buf_str(o, "<th class=\"n\">p(wrong)</th><th class=\"n\">p(right)</th>");
    fm_buf_str(o, "</tr>\n");
    for (size_t i = b->count; i-- > 0;) {
        fm_buf_str(o, "<tr>");
        verdict_cell(o, b->history.at[i]);
        number(o, SHARE, b->history.share[i]);
        fm_buf_printf(o, "<td class=\"n\">%u</td>", b->history.asks[i]);
        cell(o, b->version[i].names[0] ? b->version[i].names : "-");
        cell(o, fm_ops_short_oid(&b->version[i].commit.oid));
        cell(o, b->version[i].output);
        if (odds) {
            number(o, CHANCE, exp(m->answers.wrong_lp[i]));
            number(o, CHANCE, exp(m->answers.right_lp[i]));
        }
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table>\n");
}

/* ---- the layer map ---- */

typedef struct map {
    const char *module[64];
    size_t modules;
    long layers; /* the highest + 1 */
} map;

static size_t module_at(map *g, const char *module)
{
    size_t i = 0;
    while (i < g->modules && strcmp(g->module[i], module) != 0)
        i++;
    if (i == g->modules && g->modules < FM_ARRAY_LEN(g->module))
        g->module[g->modules++] = module;
    return i;
}

static const char *unit_class(const blame *b, size_t u, const char **letter)
{
    bool breaks = b->minimal.take && b->minimal.take[u],
         repairs = b->repair.take && b->repair.take[u];
    *letter = breaks && repairs ? "X" : breaks ? "S" : repairs ? "R" : "";
    return breaks && repairs ? "both" : breaks ? "breaks" : repairs ? "repairs" : "changed";
}

static void draw_map(fm_buf *o, const blame *b)
{
    map g = {0};
    for (size_t u = 0; u < b->unit_count; u++) {
        const char *module;
        long layer = blame_unit_layer(b->unit[u].name, &module);
        if (layer >= 0)
            (void)module_at(&g, module);
        g.layers = FM_MAX(g.layers, layer + 1);
    }
    if (!g.modules)
        return;
    fm_buf_printf(o,
                  "<figure><svg role=\"img\" width=\"%ld\" height=\"%zu\">\n<title>layers by "
                  "modules</title>\n",
                  LABEL + 20 + g.layers * (CELL + 3), (g.modules + 1) * (CELL + 3) + 8);
    for (size_t i = 0; i < g.modules; i++) {
        fm_buf_printf(o, "<text x=\"0\" y=\"%zu\">", i * (CELL + 3) + 12);
        fm_markup_text(o, g.module[i]);
        fm_buf_str(o, "</text>\n");
    }
    for (size_t u = 0; u < b->unit_count; u++) {
        const char *module, *letter;
        long layer = blame_unit_layer(b->unit[u].name, &module);
        size_t row = layer >= 0 ? module_at(&g, module) : g.modules;
        if (row >= g.modules)
            continue;
        const char *class = unit_class(b, u, &letter);
        long x = LABEL + layer * (CELL + 3), y = (long)row * (CELL + 3);
        fm_buf_printf(o,
                      "<rect class=\"%s\" x=\"%ld\" y=\"%ld\" width=\"%d\" height=\"%d\"><title>",
                      class, x, y, CELL, CELL);
        fm_markup_text(o, b->unit[u].name);
        fm_buf_printf(o, "</title></rect><text class=\"in\" x=\"%ld\" y=\"%ld\">%s</text>\n",
                      x + CELL / 2, y + 12, letter);
    }
    for (long l = 0; l<g.layers; l += g.layers> 20 ? 5 : 1)
        fm_buf_printf(o, "<text class=\"soft\" x=\"%ld\" y=\"%zu\">%ld</text>\n",
                      LABEL + l * (CELL + 3) + 3, g.modules * (CELL + 3) + 12, l);
    fm_buf_str(o,
               "</svg><figcaption>S: in the set that breaks the parent; R: in the set that repairs "
               "the child when set back; X: in both; the rest changed too. Columns are "
               "layers.</figcaption></figure>\n");
}

static void draw_set(fm_buf *o, const blame *b, const fm_minimal_set *set, const char *what)
{
    fm_buf_str(o, "<tr>");
    cell(o, what);
    fm_buf_str(o, "<td>");
    for (size_t u = 0, n = 0; u < b->unit_count; u++)
        if (set->take && set->take[u]) {
            fm_buf_str(o, n++ ? ", " : "");
            fm_markup_text(o, b->unit[u].name);
        }
    fm_buf_printf(o, "</td><td class=\"n\">%zu</td><td class=\"n\">%u</td></tr>\n", set->size,
                  set->runs);
}

static void draw_ranks(fm_buf *o, const blame *b)
{
    if (!b->rank_count)
        return;
    fm_buf_printf(o, "<p>Of their %zu ranks these %zu are enough:</p>\n<ul>\n", b->rank_count,
                  b->rank_set.size);
    for (size_t k = 0; k < b->rank_count; k++) {
        if (!b->rank_set.take[k])
            continue;
        fm_buf_str(o, "<li>");
        fm_markup_text(o, b->unit[b->rank[k].unit].name);
        fm_buf_printf(o, ", rank %u</li>\n", b->rank[k].rank);
    }
    fm_buf_str(o, "</ul>\n");
}

static void draw_worth(fm_buf *o, const blame_more *m)
{
    const blame_step_worth *w = &m->worth;
    const fm_shapley *s = &w->value;
    if (!s->units)
        return;
    heading(o, "What each step is worth");
    fm_buf_printf(o,
                  "<p>The base with every choice of the steps since; Shapley values of %s, "
                  "%s.</p>\n<table><tr><th>step</th><th class=\"n\">value</th><th "
                  "class=\"n\">low</th><th class=\"n\">high</th></tr>\n",
                  w->margin ? "the margin" : "failing", s->exact ? "exact" : "estimated");
    for (size_t i = s->units; i-- > 0;) {
        fm_buf_str(o, "<tr>");
        cell(o, blame_who(m->b, w->node[i]));
        number(o, SCORE, s->value[i]);
        number(o, SCORE, s->low[i]);
        number(o, SCORE, s->high[i]);
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table>\n");
}

static void draw_shapley(fm_buf *o, const blame *b)
{
    const fm_shapley *s = &b->shapley;
    if (b->shapley_why_not) {
        fm_buf_str(o, "<p>What each unit is worth was not run: ");
        fm_markup_text(o, b->shapley_why_not);
        fm_buf_str(o, "</p>\n");
    }
    if (!s->units)
        return;
    fm_buf_printf(o,
                  "<p>What each unit of the set is worth (Shapley values of %s, "
                  "%s):</p>\n<table><tr><th>unit</th><th "
                  "class=\"n\">value</th><th class=\"n\">low</th><th class=\"n\">high</th></tr>\n",
                  b->shapley_margin ? "the wrong answer's lead in log-probability" : "failing",
                  s->exact ? "exact" : "estimated");
    for (size_t u = 0, i = 0; u < b->unit_count && i < s->units; u++) {
        if (!b->minimal.take[u])
            continue;
        fm_buf_str(o, "<tr>");
        cell(o, b->unit[u].name);
        number(o, SCORE, s->value[i]);
        number(o, SCORE, s->low[i]);
        number(o, SCORE, s->high[i]);
        fm_buf_str(o, "</tr>\n");
        i++;
    }
    fm_buf_str(o, "</table>\n");
}

static void draw_tensors(fm_buf *o, const blame *b)
{
    heading(o, "Tensors");
    if (!b->unit_count) {
        fm_buf_str(o, "<p>none changed in this step</p>\n");
        return;
    }
    fm_buf_printf(o, "<p>%zu units changed; mixtures of parent and child were run.</p>\n",
                  b->unit_count);
    draw_map(o, b);
    fm_buf_str(o, "<table><tr><th></th><th>units</th><th class=\"n\">count</th><th "
                  "class=\"n\">mixtures run</th></tr>\n");
    draw_set(o, b, &b->minimal,
             b->minimal.sufficient ? "the parent fails with these of the child"
                                   : "the parent still passes with these of the child");
    draw_set(o, b, &b->repair,
             b->repair.sufficient ? "the child passes with these set back"
                                  : "the child still fails with these set back");
    fm_buf_str(o, "</table>\n");
    draw_ranks(o, b);
    draw_shapley(o, b);
}

/* ---- the patching grids ---- */

static void draw_site(fm_buf *o, const blame_grids *g, const fm_trace *t, unsigned s)
{
    uint32_t rows = t->rows[s], columns = t->columns;
    fm_buf_printf(o, "<figure><svg role=\"img\" width=\"%u\" height=\"%u\">\n<title>%s</title>\n",
                  LABEL + 10 + rows * CELL, (columns + 1) * CELL + 6, blame_site_word[s]);
    for (uint32_t c = 0; c < columns; c++) {
        char *text = blame_column_text(g, t, c);
        fm_buf_printf(o, "<text x=\"0\" y=\"%u\">", c * CELL + 12);
        fm_markup_text(o, ui_shown(text ? text : "", 20));
        fm_buf_str(o, "</text>\n");
        fm_free(text);
        for (uint32_t i = 0; i < rows; i++) {
            size_t at = (size_t)i * columns + c;
            double share = blame_share(t, s, at), ink = FM_MIN(fabs(share), 1.0);
            fm_buf_printf(o,
                          "<rect class=\"%s\" fill-opacity=\"%.2f\" x=\"%u\" y=\"%u\" width=\"%d\" "
                          "height=\"%d\"><title>layer %u: %.0f %%</title></rect>\n",
                          share < 0 ? "less" : "heat", ink, LABEL + i * CELL, c * CELL, CELL - 1,
                          CELL - 1, t->layer[s][i], 100 * share);
            if (blame_turned(t, s, at))
                fm_buf_printf(
                    o, "<rect class=\"turn\" x=\"%u\" y=\"%u\" width=\"%d\" height=\"%d\"/>\n",
                    LABEL + i * CELL + 1, c * CELL + 1, CELL - 3, CELL - 3);
        }
    }
    for (uint32_t i = 0; i<rows; i += rows> 20 ? 5 : 1)
        fm_buf_printf(o, "<text class=\"soft\" x=\"%u\" y=\"%u\">%u</text>\n", LABEL + i * CELL + 2,
                      columns * CELL + 13, t->layer[s][i]);
    fm_buf_printf(o, "</svg><figcaption>%s, columns are layers</figcaption></figure>\n",
                  blame_site_word[s]);
}

static void site_table(fm_buf *o, const blame_grids *g, const fm_trace *t, unsigned s)
{
    fm_buf_printf(o, "<details><summary>%s: margins as a table</summary><table><tr><th>token</th>",
                  blame_site_word[s]);
    for (uint32_t i = 0; i < t->rows[s]; i++)
        fm_buf_printf(o, "<th class=\"n\">%u</th>", t->layer[s][i]);
    fm_buf_str(o, "</tr>\n");
    for (uint32_t c = 0; c < t->columns; c++) {
        char *text = blame_column_text(g, t, c);
        fm_buf_str(o, "<tr>");
        cell(o, text);
        fm_free(text);
        for (uint32_t i = 0; i < t->rows[s]; i++)
            number(o, MARGIN, t->effect[s][(size_t)i * t->columns + c]);
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table></details>\n");
}

static void not_possible(fm_buf *o, const char *why)
{
    fm_buf_str(o, "<p>not possible: ");
    fm_markup_text(o, why);
    fm_buf_str(o, "</p>\n");
}

static void draw_trace(fm_buf *o, const blame_grids *g)
{
    if (!g->done && !g->why_not)
        return;
    heading(o, "Where the answer turns");
    if (!g->done) {
        not_possible(o, g->why_not);
        return;
    }
    fm_buf_printf(
        o,
        "<p>margin = log p(wrong) &#8722; log p(right): child %+.2f, parent %+.2f. A cell is "
        "a run in which the state at that token and layer came from the other model; the "
        "darker, the larger a share of the way to the other's margin (violet: away from "
        "it). A frame: the answer turns.</p>\n",
        g->grid[0].margin, g->grid[0].from_margin);
    for (int i = 0; i < 2; i++) {
        fm_buf_printf(o, "<h3>%s</h3>\n<div class=\"row\">\n",
                      i ? "the parent with the child's states"
                        : "the child with the parent's states");
        for (unsigned s = 0; s < FM_SITES; s++)
            if (g->grid[i].rows[s]) {
                fm_buf_str(o, "<div>");
                draw_site(o, g, &g->grid[i], s);
                site_table(o, g, &g->grid[i], s);
                fm_buf_str(o, "</div>\n");
            }
        fm_buf_str(o, "</div>\n");
    }
}

/* ---- examples ---- */

static void draw_data(fm_buf *o, const blame *b, uint64_t top)
{
    heading(o, "Examples");
    if (!b->example_count) {
        fm_buf_str(o, "<p>this version carries no training examples</p>\n");
        return;
    }
    size_t shown = FM_MIN((size_t)top, b->example_count);
    shown = FM_MAX(shown, FM_MIN(b->outstanding, (size_t)64));
    fm_buf_printf(o, "<p>%zu examples of ", b->example_count);
    fm_markup_text(o, b->data_name);
    fm_buf_printf(o,
                  "; %zu stand out.</p>\n<table><tr><th></th><th class=\"n\">record</th><th "
                  "class=\"n\">score</th><th>text</th></tr>\n",
                  b->outstanding);
    for (size_t i = 0; i < shown; i++) {
        fm_buf_printf(o, "<tr><td>%s</td><td class=\"n\">%u</td>", i < b->outstanding ? "*" : "",
                      b->example[i].index);
        number(o, SCORE, b->example[i].score);
        cell(o, b->example[i].preview);
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table>\n");
}

/* ---- steps ---- */

static void draw_curve(fm_buf *o, const blame_steps *s)
{
    double low = 0, high = 0, width = 640, height = 180;
    for (size_t i = 0; i < s->points; i++)
        if (!isnan(s->point[i].margin)) {
            low = FM_MIN(low, s->point[i].margin);
            high = FM_MAX(high, s->point[i].margin);
        }
    if (high - low < 1e-9 || !s->steps)
        return;
    fm_buf_printf(o, "<figure><svg role=\"img\" width=\"720\" height=\"220\">\n<title>margin over "
                     "steps</title>\n");
    double zero = 10 + high / (high - low) * height;
    fm_buf_printf(o,
                  "<line class=\"zero\" x1=\"50\" y1=\"%.1f\" x2=\"690\" y2=\"%.1f\"/>\n<text "
                  "x=\"36\" y=\"%.1f\">0</text>\n<polyline class=\"curve\" points=\"",
                  zero, zero, zero + 4);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < s->points; i++) {
            const blame_point *p = &s->point[i];
            double x = 50 + width * p->step / s->steps;
            double y = 10 + (high - p->margin) / (high - low) * height;
            if (isnan(p->margin))
                continue;
            if (pass)
                fm_buf_printf(
                    o,
                    "<circle class=\"node %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"><title>step "
                    "%u: %s, %+.2f</title></circle>\n",
                    p->verdict == FM_PASS ? "npass" : "nfail", x, y, p->step,
                    blame_verdict_word[p->verdict], p->margin);
            else
                fm_buf_printf(o, "%.1f,%.1f ", x, y);
        }
        if (!pass)
            fm_buf_str(o, "\"/>\n");
    }
    fm_buf_printf(o,
                  "<text x=\"50\" y=\"212\">0</text><text x=\"660\" y=\"212\">%u</text></svg>"
                  "<figcaption>margin after each step that was asked; above 0 the wrong answer is "
                  "likelier</figcaption></figure>\n",
                  s->steps);
}

static void draw_ablations(fm_buf *o, const blame_steps *s)
{
    if (!s->ablations)
        return;
    fm_buf_str(o, "<table><tr><th>the same training, but</th><th>outcome</th><th "
                  "class=\"n\">margin</th><th class=\"n\">seconds</th><th></th></tr>\n");
    for (size_t i = 0; i < s->ablations; i++) {
        const blame_ablation *a = &s->ablation[i];
        fm_buf_str(o, "<tr>");
        cell(o, a->what);
        if (a->run)
            verdict_cell(o, a->verdict);
        else
            cell(o, "not run");
        number(o, MARGIN, a->margin);
        number(o, SECONDS, a->run ? a->seconds : a->estimate_s);
        cell(o, a->run ? "" : a->why ? a->why : "estimated; --rederive runs it");
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table>\n");
}

static void draw_steps(fm_buf *o, const blame_steps *s)
{
    if (!s->done && !s->why_not)
        return;
    heading(o, "Steps of the run");
    if (!s->done) {
        not_possible(o, s->why_not);
        return;
    }
    fm_buf_printf(o,
                  "<p>%u steps, %zu checkpoints kept. It passes after step %u and fails after step "
                  "%u.</p>\n",
                  s->steps, s->states_kept, s->passes_at, s->fails_at);
    draw_curve(o, s);
    fm_buf_str(o, "<table><tr><th class=\"n\">step</th><th>outcome</th><th "
                  "class=\"n\">margin</th></tr>\n");
    for (size_t i = 0; i < s->points; i++) {
        fm_buf_printf(o, "<tr><td class=\"n\">%u</td>", s->point[i].step);
        verdict_cell(o, s->point[i].verdict);
        number(o, MARGIN, s->point[i].margin);
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table>\n");
    if (s->records) {
        fm_buf_printf(o, "<p>Examples of step %u:</p>\n<ul>\n", s->fails_at);
        for (size_t i = 0; i < s->records; i++) {
            fm_buf_printf(o, "<li>%u: ", s->index[i]);
            fm_markup_text(o, s->preview[i]);
            fm_buf_str(o, "</li>\n");
        }
        fm_buf_str(o, "</ul>\n");
    }
    draw_ablations(o, s);
}

/* ---- repairs ---- */

static void names_cell(fm_buf *o, char **name, size_t n)
{
    fm_buf_str(o, "<td>");
    for (size_t i = 0; i < n; i++) {
        fm_buf_str(o, i ? ", " : "");
        fm_markup_text(o, name[i]);
    }
    fm_buf_str(o, "</td>");
}

static void draw_repairs(fm_buf *o, const blame_repairs *r)
{
    if (!r->done || !r->count)
        return;
    heading(o, "Repairs");
    fm_buf_str(o, "<table><tr><th>offered</th><th>candidate</th><th class=\"n\">margin</th><th "
                  "class=\"n\">cases that pass</th><th class=\"n\">of the step undone, "
                  "%</th><th>repairs</th><th>breaks</th></tr>\n");
    for (size_t i = 0; i < r->count; i++) {
        const blame_candidate *k = &r->item[i];
        fm_buf_printf(o, "<tr><td class=\"%s\">%s</td>", k->offered ? "pass" : "fail",
                      k->offered ? "yes"
                      : k->run   ? "no"
                                 : "not run");
        cell(o, k->what);
        number(o, MARGIN, k->margin);
        fm_buf_printf(o, "<td class=\"n\">%zu of %zu (%zu before)</td>", k->passed, k->total,
                      k->passed_before);
        number(o, WHOLE, k->run ? 100 * k->moved : (double)NAN);
        if (k->run) {
            names_cell(o, k->fixes, k->fix_count);
            names_cell(o, k->breaks, k->break_count);
        } else {
            cell(o, k->why);
            cell(o, "");
        }
        fm_buf_str(o, "</tr>\n");
    }
    fm_buf_str(o, "</table>\n");
    if (r->committed)
        fm_buf_printf(o, "<p>The first was committed as %.10s.</p>\n", r->committed);
}

fm_status blame_html(fm_buf *o, const blame_more *m, bool tensors, bool data, uint64_t top)
{
    const blame *b = m->b;
    blame_lines ran = {0}, doubts = {0};
    fm_buf_str(o, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta "
                  "name=\"viewport\" content=\"width=device-width\">\n<title>blame ");
    fm_markup_text(o, m->rev);
    fm_buf_printf(o, "</title>\n%s</head><body>\n<h1>", style);
    fm_markup_text(o, fm_suite_name(b->suite));
    fm_buf_str(o, "/");
    fm_markup_text(o, fm_suite_case_name(b->suite, b->case_index));
    fm_buf_str(o, " on ");
    fm_markup_text(o, m->rev);
    fm_buf_str(o, "</h1>\n");
    draw_case(o, m);
    draw_history(o, m);
    draw_worth(o, m);
    if (tensors)
        draw_tensors(o, b);
    draw_trace(o, &m->grids);
    if (data)
        draw_data(o, b, top);
    draw_steps(o, &m->steps);
    draw_repairs(o, &m->repairs);
    heading(o, "What was run");
    fm_buf_printf(o, "<p>%llu evaluations, %.1f s. Again by:</p>\n",
                  (unsigned long long)blame_evaluations(m), m->seconds);
    blame_ran_lines(m, tensors, data, &ran);
    lines(o, "ul", &ran);
    heading(o, "What remains uncertain");
    blame_doubt_lines(m, tensors, data, &doubts);
    lines(o, "ul", &doubts);
    fm_buf_str(o, "</body></html>\n");
    return fm_buf_ok(o);
}
