/* html.c - a blame as one page. Every picture comes with a table of the same numbers, and no
 * information is in the colour alone. */
#include "cli/ops/blame/report/words.h"
#include "cli/ops/base/say.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/chart.h"
#include "store/base/text/page.h"

enum { CELL = 15, TILE = 18, LABEL = 150, LANE = 22, ROW = 30 };

static const char *const colour[] = {"good", "bad", "orange"}; /* by fm_verdict */

/* ---- the case ---- */

static void draw_case(fm_buf *o, const fmo_blame_more *m)
{
    fmo_blame_lines texts = {0};
    char verdict[700];
    fmo_blame_verdict_text(m->b, verdict, sizeof verdict);
    fm_markup(o, "<p class=\"verdict\">%s</p>\n<h2>The case</h2>\n", verdict);
    fmo_blame_case_lines(m, &texts);
    fm_markup(o, "<ul>\n");
    for (size_t i = 0; i < texts.count; i++)
        fm_markup(o, "<li>%s</li>\n", texts.line[i]);
    fm_markup(o, "</ul>\n");
    fmo_blame_lines_release(&texts);
    if (m->answers.wrong)
        fm_markup(o,
                  "<table><tr><th>wrong answer</th><td>%s</td></tr>"
                  "<tr><th>right answer</th><td>%s</td></tr></table>\n",
                  m->answers.wrong,
                  m->answers.right ? m->answers.right : "not known: no version passes");
}

/* ---- the lineage: newest below, as in the terminal ---- */

/* Gives each line of descent a lane: a version takes the lane of the first child that has it as
 * first parent, else a new one. */
static size_t give_lanes(const fmo_blame *b, unsigned *lane)
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

static double row_y(const fmo_blame *b, size_t node)
{
    return (double)(b->count - 1 - node) * ROW + ROW / 2.0;
}

static void draw_graph(fm_buf *o, const fmo_blame *b)
{
    unsigned *lane = fm_calloc(b->count, sizeof *lane);
    if (!lane) {
        o->failed = FM_ENOMEM;
        return;
    }
    const size_t lanes = give_lanes(b, lane);
    const bool blamed = b->history.verdict != FM_BLAME_PASSES;
    fm_svg_open(o, false, (double)(lanes * LANE + 560), (double)(b->count * ROW), "lineage");
    for (size_t i = 0; i < b->count; i++)
        for (size_t p = 0; p < b->version[i].node.parent_count; p++) {
            const size_t at = b->version[i].node.parent[p];
            const bool guilty = blamed && i == b->history.culprit && b->history.at[at] == FM_PASS;
            fm_svg_line(o, guilty ? "guilty bad" : "soft", lane[i] * (double)LANE + 12, row_y(b, i),
                        lane[at] * (double)LANE + 12, row_y(b, at));
        }
    for (size_t i = 0; i < b->count; i++) {
        fm_markup(o, "<circle class=\"%s\" cx=\"%u\" cy=\"%.1f\" r=\"7\"/>\n",
                  colour[b->history.at[i]], lane[i] * LANE + 12, row_y(b, i));
        fm_svg_text(o, "side", "start", (double)(lanes * LANE + 8), row_y(b, i) + 4, "%s %s%s%s",
                    blame_verdict_word[b->history.at[i]], fmo_blame_who(b, i),
                    b->history.asks[i] ? "" : " (inferred)",
                    blamed && i == b->history.culprit ? "  \xE2\x97\x80 guilty" : "");
    }
    fm_svg_close(o, "children below their parents; the thick edge is the guilty step");
    fm_free(lane);
}

static void draw_history(fm_buf *o, const fmo_blame_more *m)
{
    const fmo_blame *b = m->b;
    const bool odds = m->answers.wrong != NULL;
    fm_markup(o, "<h2>Down the lineage</h2>\n");
    draw_graph(o, b);
    fm_table_open(o,
                  "outcome|#posterior of guilt|#asked|version|commit|answer|#p(wrong)|#p(right)");
    for (size_t i = b->count; i-- > 0;) {
        const fmo_blamed_version *v = &b->version[i];
        fm_table_row(o, "<span class=\"%s\">%s</span>|#%.3f|#%u|%s|%s|%s|#%.3g|#%.3g",
                     colour[b->history.at[i]], blame_verdict_word[b->history.at[i]],
                     b->history.share[i], b->history.asks[i], v->names[0] ? v->names : "-",
                     fm_ops_short_oid(&v->commit.oid), v->output,
                     odds ? exp(m->answers.wrong_lp[i]) : (double)NAN,
                     odds ? exp(m->answers.right_lp[i]) : (double)NAN);
    }
    fm_table_close(o);
}

/* Draws Shapley values of steps, or of the units of a set. */
static void draw_values(fm_buf *o, const char *what, const char *columns, const fm_json *values,
                        const fm_json *of)
{
    if (!fm_json_count(of))
        return;
    fm_markup(o, "<h3>What each %s is worth</h3>\n<p>Shapley values of %s, %s.</p>\n", what,
              fm_json_cstr(fm_json_get(values, "of"), ""),
              fm_json_bool(fm_json_get(values, "exact"), false) ? "exact" : "estimated");
    fm_table_of(o, columns, of, SIZE_MAX);
}

/* ---- the layer map ---- */

typedef struct map {
    const char *module[64];
    size_t modules;
    long layers; /* the highest layer + 1 */
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

static void draw_unit(fm_buf *o, const fmo_blame *b, size_t u, double x, double y)
{
    const bool breaks = b->minimal.take && b->minimal.take[u];
    const bool repairs = b->repair.take && b->repair.take[u];
    const char *css = breaks && repairs ? "violet" : breaks ? "bad" : repairs ? "blue" : "grid";
    fm_markup(o,
              "<rect class=\"%s\" x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"%d\">"
              "<title>%s</title></rect>\n",
              css, x, y, CELL, CELL, b->unit[u].name);
    fm_svg_text(o, "on", "middle", x + CELL / 2.0, y + 12, "%s",
                breaks && repairs ? "X"
                : breaks          ? "S"
                : repairs         ? "R"
                                  : "");
}

static void draw_map(fm_buf *o, const fmo_blame *b)
{
    map g = {0};
    for (size_t u = 0; u < b->unit_count; u++) {
        const char *module;
        long layer = fmo_blame_unit_layer(b->unit[u].name, &module);
        if (layer >= 0)
            (void)module_at(&g, module);
        g.layers = FM_MAX(g.layers, layer + 1);
    }
    if (!g.modules)
        return;
    const double foot = (double)g.modules * TILE;
    fm_svg_open(o, false, (double)(LABEL + 20 + g.layers * TILE), foot + 26, "layers by modules");
    for (size_t i = 0; i < g.modules; i++)
        fm_svg_text(o, "side", "start", 0, (double)i * TILE + 12, "%s", g.module[i]);
    for (size_t u = 0; u < b->unit_count; u++) {
        const char *module;
        const long layer = fmo_blame_unit_layer(b->unit[u].name, &module);
        const size_t row = layer >= 0 ? module_at(&g, module) : g.modules;
        if (row < g.modules)
            draw_unit(o, b, u, (double)(LABEL + layer * TILE), (double)row * TILE);
    }
    for (long l = 0; l<g.layers; l += g.layers> 20 ? 5 : 1)
        fm_svg_text(o, "soft", "start", (double)(LABEL + l * TILE + 3), foot + 12, "%d", (int)l);
    fm_svg_close(o, "S: in the set that breaks the parent; R: in the set that repairs the child "
                    "when set back; X: in both; the rest changed too. Columns are layers.");
}

static void draw_set(fm_buf *o, const fm_json *set, const char *does, const char *does_not)
{
    fm_markup(o, "<p>%zu units: %s.</p>\n", fm_json_count(fm_json_get(set, "units")),
              fm_json_bool(fm_json_get(set, "sufficient"), false) ? does : does_not);
    fm_table_of(o, "units|#mixtures run=runs|minimal|necessary|#posterior", set, 1);
}

static void draw_tensors(fm_buf *o, const fmo_blame *b, const fm_json *tensors)
{
    const fm_json *ranks = fm_json_get(tensors, "ranks");
    const fm_json *values = fm_json_get(tensors, "shapley");
    fm_markup(o, "<h2>Tensors</h2>\n");
    if (!b->unit_count) {
        fm_markup(o, "<p>none changed in this step</p>\n");
        return;
    }
    fm_markup(o, "<p>%zu units changed; mixtures of parent and child were run.</p>\n",
              b->unit_count);
    draw_map(o, b);
    draw_set(o, fm_json_get(tensors, "breaks_parent"), "the parent fails with these of the child",
             "the parent still passes with these of the child");
    draw_set(o, fm_json_get(tensors, "repairs_child"), "the child passes with these set back",
             "the child still fails with these set back");
    if (ranks) {
        fm_markup(o, "<p>Of their %zu ranks these %zu are enough:</p>\n", b->rank_count,
                  b->rank_set.size);
        fm_table_of(o, "unit|#rank", fm_json_get(ranks, "ranks"), SIZE_MAX);
    }
    if (b->shapley_why_not)
        fm_markup(o, "<p>What each unit is worth was not run: %s</p>\n", b->shapley_why_not);
    draw_values(o, "unit of the set", "unit|#value|#low|#high", values,
                fm_json_get(values, "units"));
}

/* ---- the patching grids ---- */

/* Draws tokens by layers: the margin of each run, on a background as dark as its share is large. */
static void draw_site(fm_buf *o, const fmo_blame_grids *g, const fm_trace *t, unsigned s)
{
    fm_markup(o, "<div class=\"wide\"><table class=\"heat\">\n<tr><th>%s</th>", blame_site_word[s]);
    for (uint32_t i = 0; i < t->rows[s]; i++)
        fm_markup(o, "<th class=\"n\">%u</th>", t->layer[s][i]);
    fm_markup(o, "</tr>\n");
    for (uint32_t c = 0; c < t->columns; c++) {
        char *text = fmo_blame_column_text(g, t, c);
        fm_markup(o, "<tr><td>%s</td>", fmo_ui_shown(text ? text : "", 60));
        fm_free(text);
        for (uint32_t i = 0; i < t->rows[s]; i++) {
            const size_t at = (size_t)i * t->columns + c;
            const double share = fmo_blame_share(t, s, at);
            fm_markup(o,
                      "<td class=\"n%s\" style=\"background:rgb(%s / %.2f)\" "
                      "title=\"layer %u: %.0f %%\">%+.2f</td>",
                      fmo_blame_turned(t, s, at) ? " turn" : "",
                      share < 0 ? "122 61 184" : "42 120 214", FM_MIN(fabs(share), 1.0) * 0.7,
                      t->layer[s][i], 100 * share, t->effect[s][at]);
        }
        fm_markup(o, "</tr>\n");
    }
    fm_table_close(o);
}

static void draw_trace(fm_buf *o, const fmo_blame_grids *g)
{
    if (!g->done && !g->why_not)
        return;
    fm_markup(o, "<h2>Where the answer turns</h2>\n");
    if (!g->done) {
        fm_markup(o, "<p>not possible: %s</p>\n", g->why_not);
        return;
    }
    fm_markup(o,
              "<p>margin = log p(wrong) \xE2\x88\x92 log p(right): child %+.2f, parent %+.2f. A "
              "cell is a run in which the state at that token and layer came from the other model; "
              "the darker, the larger a share of the way to the other's margin (violet: away from "
              "it). A frame: the answer turns.</p>\n",
              g->grid[0].margin, g->grid[0].from_margin);
    for (int i = 0; i < 2; i++) {
        fm_markup(o, "<h3>%s</h3>\n<div class=\"row\">\n",
                  i ? "the parent with the child's states" : "the child with the parent's states");
        for (unsigned s = 0; s < FM_SITES; s++)
            if (g->grid[i].rows[s])
                draw_site(o, g, &g->grid[i], s);
        fm_markup(o, "</div>\n");
    }
}

/* ---- examples ---- */

static void draw_data(fm_buf *o, const fmo_blame *b, uint64_t top, const fm_json *data)
{
    fm_markup(o, "<h2>Examples</h2>\n");
    if (!b->example_count) {
        fm_markup(o, "<p>this version carries no training examples</p>\n");
        return;
    }
    size_t shown = FM_MIN((size_t)top, b->example_count);
    shown = FM_MAX(shown, FM_MIN(b->outstanding, (size_t)64));
    fm_markup(o, "<p>%zu examples of %s; %zu stand out.</p>\n", b->example_count, b->data_name,
              b->outstanding);
    fm_table_of(o, "stands out=stands_out|#record|#score|text=preview",
                fm_json_get(data, "examples"), shown);
}

/* ---- steps ---- */

static void draw_curve(fm_buf *o, const fmo_blame_steps *s, const fm_json *points)
{
    fm_series margin;
    fm_series_of(&margin, points, "step", 0, "margin");
    const fm_plot plot = {
        60, 690, 10, 190, 0, s->steps, fmin(margin.y_low, 0), fmax(margin.y_high, 0)};
    if (plot.y_high - plot.y_low < 1e-9 || !s->steps)
        return;
    fm_svg_open(o, false, 720, 220, "margin over steps");
    fm_plot_grid_x(o, &plot, fmax(fm_svg_tick(s->steps, 8), 1));
    fm_plot_grid_y(o, &plot, fm_svg_tick(plot.y_high - plot.y_low, 6));
    fm_plot_line(o, &plot, "blue thick", &margin, 0);
    for (size_t i = 0; i < s->points; i++) {
        const fmo_blame_point *p = &s->point[i];
        if (!isnan(p->margin))
            fm_markup(o,
                      "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\">"
                      "<title>step %u: %s, %+.2f</title></circle>\n",
                      colour[p->verdict], fm_plot_x(&plot, p->step), fm_plot_y(&plot, p->margin),
                      p->step, blame_verdict_word[p->verdict], p->margin);
    }
    fm_svg_close(o, "margin after each step that was asked; above 0 the wrong answer is likelier");
}

static void draw_steps(fm_buf *o, const fmo_blame_steps *s, const fm_json *steps)
{
    if (!s->done && !s->why_not)
        return;
    fm_markup(o, "<h2>Steps of the run</h2>\n");
    if (!s->done) {
        fm_markup(o, "<p>not possible: %s</p>\n", s->why_not);
        return;
    }
    fm_markup(o,
              "<p>%u steps, %zu checkpoints kept. It passes after step %u and fails after step "
              "%u.</p>\n",
              s->steps, s->states_kept, s->passes_at, s->fails_at);
    draw_curve(o, s, fm_json_get(steps, "points"));
    fm_table_of(o, "#step|outcome|#margin", fm_json_get(steps, "points"), SIZE_MAX);
    if (s->records) {
        fm_markup(o, "<p>Examples of step %u:</p>\n<ul>\n", s->fails_at);
        for (size_t i = 0; i < s->records; i++)
            fm_markup(o, "<li>%u: %s</li>\n", s->index[i], s->preview[i]);
        fm_markup(o, "</ul>\n");
    }
    if (s->ablations)
        fm_table_of(
            o,
            "the same training, but=what|run|outcome|#margin|#seconds|#estimated=estimate_s|"
            "why",
            fm_json_get(steps, "ablations"), SIZE_MAX);
}

static void draw_repairs(fm_buf *o, const fmo_blame_repairs *r, const fm_json *repairs)
{
    if (!r->done || !r->count)
        return;
    fm_markup(o, "<h2>Repairs</h2>\n");
    fm_table_of(o,
                "offered|run|candidate=what|#margin|#cases that pass=passed|#of=cases|"
                "#before=passed_before|#share of the step undone=moved|repairs|breaks|why",
                fm_json_get(repairs, "candidates"), SIZE_MAX);
    if (r->committed)
        fm_markup(o, "<p>The first was committed as %.10s.</p>\n", r->committed);
}

fm_status fmo_blame_html(fm_buf *o, const fmo_blame_more *m, bool tensors, bool data, uint64_t top)
{
    const fmo_blame *b = m->b;
    fm_json *doc = fmo_blame_json(m, tensors, data);
    const fm_json *worth = fm_json_get(doc, "worth");
    if (!doc)
        return FM_ENOMEM;
    fm_page_open(o, "%s/%s on %s", fm_suite_name(b->suite),
                 fm_suite_case_name(b->suite, b->case_index), m->rev);
    draw_case(o, m);
    draw_history(o, m);
    draw_values(o, "step", "step=name|#value|#low|#high", worth, fm_json_get(worth, "steps"));
    if (tensors)
        draw_tensors(o, b, fm_json_get(doc, "tensors"));
    draw_trace(o, &m->grids);
    if (data)
        draw_data(o, b, top, fm_json_get(doc, "data"));
    draw_steps(o, &m->steps, fm_json_get(doc, "steps"));
    draw_repairs(o, &m->repairs, fm_json_get(doc, "repairs"));
    fm_markup(o, "<h2>What was run</h2>\n<p>%zu evaluations, %.1f s. Again by:</p>\n",
              (size_t)fmo_blame_evaluations(m), m->seconds);
    fm_list_of(o, fm_json_path(doc, "ran.commands"));
    fm_markup(o, "<h2>What remains uncertain</h2>\n");
    fm_list_of(o, fm_json_get(doc, "unsure"));
    fm_page_close(o);
    fm_json_free(doc);
    return fm_buf_ok(o);
}
