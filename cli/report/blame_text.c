/* blame_text.c - prints a blame on a terminal. */
#include "cli/ops/blame/report/words.h"
#include "cli/report/report.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"

/* "12.3 %", "0.0004 %", "-". */
static const char *percent(double lp)
{
    static char ring[8][24];
    static unsigned at;
    char *out = ring[at++ % 8];
    if (isnan(lp))
        return "-";
    double p = 100 * exp(lp);
    snprintf(out, sizeof *ring, p >= 1 ? "%.1f %%" : "%.2g %%", p);
    return out;
}

static const char *signed_number(double v)
{
    static char ring[8][24];
    static unsigned at;
    char *out = ring[at++ % 8];
    if (isnan(v))
        return "-";
    snprintf(out, sizeof *ring, "%+.2f", v);
    return out;
}

void blame_print_history(const fmo_blame_more *m)
{
    const fmo_blame *b = m->b;
    bool odds = m->answers.wrong != NULL;
    out_table *t = out_table_new();
    printf("\nhistory%s\n", odds ? "  (p: of the wrong answer, of the right one)" : "");
    for (size_t i = b->count; i-- > 0;) {
        fm_verdict v = b->history.at[i];
        out_cell(t, "%s%s%s%s", out_c(v == FM_PASS ? OUT_GREEN : OUT_RED), blame_verdict_word[v],
                 out_c(OUT_PLAIN), b->history.asks[i] ? "" : "?");
        out_cell(t, "%s", b->version[i].names[0] ? b->version[i].names : "-");
        out_cell(t, "%s", fm_ops_short_oid(&b->version[i].commit.oid));
        out_cell(t, "%s", b->version[i].commit.kind);
        out_cell(t, "%s", out_text(b->version[i].output, 70));
        if (odds) {
            out_cell_right(t, "%s", percent(m->answers.wrong_lp[i]));
            out_cell_right(t, "%s", percent(m->answers.right_lp[i]));
        }
        out_end_row(t);
    }
    out_table_print(t, stdout, "  ");
    char text[700];
    fmo_blame_verdict_text(b, text, sizeof text);
    printf("\nverdict  %s%s%s\n", out_c(OUT_BOLD), text, out_c(OUT_PLAIN));
    if (b->history.verdict == FM_BLAME_PASSES)
        return;
    printf("         %s\n", out_text(b->version[b->history.culprit].commit.subject, 500));
    if (b->history.uncertain)
        printf("         a version in between cannot be run here; it may have begun there\n");
    if (b->history.note[0])
        printf("         %s\n", b->history.note);
}

/* ---- tensors ---- */

/* Prints one line for each layer: names of units without "model.layers.N.". */
static void print_units(const fmo_blame *b, const fm_minimal_set *set)
{
    for (size_t g = 0; g < b->group_count; g++) {
        const char *sep = "    ";
        for (size_t u = 0; u < b->unit_count; u++) {
            if (b->unit[u].group != g || !set->take[u])
                continue;
            const char *name = out_text(b->unit[u].name, 300), *layers = strstr(name, "layers.");
            const char *rest = layers ? strchr(layers + strlen("layers."), '.') : NULL;
            if (rest && sep[0] == ' ')
                printf("    %.*s: %s", (int)(rest - name), name, rest + 1);
            else
                printf("%s%s", sep, rest ? rest + 1 : name);
            sep = ", ";
        }
        if (sep[0] == ',')
            putchar('\n');
    }
}

static void print_ranks(const fmo_blame *b)
{
    if (!b->rank_count)
        return;
    printf("  of their %zu ranks %zu are enough (%u mixtures):\n", b->rank_count, b->rank_set.size,
           b->rank_set.runs);
    for (size_t k = 0; k < b->rank_count; k++)
        if (b->rank_set.take[k])
            printf("    %s rank %u\n", out_text(b->unit[b->rank[k].unit].name, 300),
                   b->rank[k].rank);
}

static void print_shapley(const fmo_blame *b)
{
    out_table *t = out_table_new();
    if (b->shapley_why_not)
        printf("  what each adds: not run: %s\n", b->shapley_why_not);
    if (b->shapley.units)
        printf("  what each adds to %s, from %+.2f to %+.2f (Shapley values%s, %u mixtures):\n",
               b->shapley_margin ? "the wrong answer's lead in log-probability" : "failing",
               b->shapley.nothing, b->shapley.whole, b->shapley.exact ? "" : ", 95 % intervals",
               b->shapley.runs);
    for (size_t u = 0, k = 0; k < b->shapley.units && u < b->unit_count; u++) {
        if (!b->minimal.take[u])
            continue;
        out_cell(t, "%s", out_text(b->unit[u].name, 300));
        out_cell_right(t, "%+.3f", b->shapley.value[k]);
        if (!b->shapley.exact)
            out_cell(t, "[%+.3f, %+.3f]", b->shapley.low[k], b->shapley.high[k]);
        out_end_row(t);
        k++;
    }
    out_table_print(t, stdout, "    ");
}

static void print_tensors(const fmo_blame *b)
{
    if (!b->unit_count) {
        printf("\ntensors  none changed in this step\n");
        return;
    }
    printf("\ntensors  of %zu changed units, by running %u mixtures of parent and child\n",
           b->unit_count, b->minimal.runs + b->repair.runs);
    printf("  the parent %s with these %zu of the child:\n",
           b->minimal.sufficient ? "fails" : "still passes", b->minimal.size);
    print_units(b, &b->minimal);
    printf("  the child %s with these %zu set back to the parent:\n",
           b->repair.sufficient ? "passes" : "still fails", b->repair.size);
    print_units(b, &b->repair);
    if (!b->minimal.minimal || !b->repair.minimal)
        printf("  the runs were used up (--max-runs): smaller sets may do\n");
    print_ranks(b);
    print_shapley(b);
}

/* ---- Shapley values of the steps ---- */

static void print_worth(const fmo_blame_more *m)
{
    const fmo_blame_step_shapley *w = &m->worth;
    const fm_shapley *v = &w->value;
    out_table *t = out_table_new();
    if (w->why_not)
        printf("\nworth    of the steps: not possible: %s\n", w->why_not);
    if (v->units)
        printf("\nworth    what each step since the base adds to %s, from %+.2f to %+.2f (Shapley "
               "values%s, %u mixtures of steps)\n",
               w->margin ? "the margin" : "failing", v->nothing, v->whole,
               v->exact ? "" : ", 95 % intervals", v->runs);
    for (size_t i = v->units; i-- > 0;) {
        out_cell(t, "%s", fmo_blame_who(m->b, w->node[i]));
        out_cell_right(t, "%+.3f", v->value[i]);
        if (!v->exact)
            out_cell(t, "[%+.3f, %+.3f]", v->low[i], v->high[i]);
        out_end_row(t);
    }
    out_table_print(t, stdout, "  ");
}

/* ---- trace ---- */

static char cell_sign(const fm_trace *t, unsigned site, size_t cell)
{
    double share = fmo_blame_share(t, site, cell);
    if (fmo_blame_turned(t, site, cell))
        return '#';
    int tenth = (int)(share * 10);
    return tenth < 1 ? (share < -0.1 ? '-' : '.') : (char)('0' + FM_MIN(tenth, 9));
}

static void print_grid(const fmo_blame_grids *g, const fm_trace *t)
{
    out_table *table = out_table_new();
    out_cell(table, "token");
    for (unsigned s = 0; s < FM_SITES; s++)
        if (t->rows[s])
            out_cell(table, "%s %u-%u", blame_site_word[s], t->layer[s][0],
                     t->layer[s][t->rows[s] - 1]);
    out_end_row(table);
    for (uint32_t c = 0; c < t->columns; c++) {
        char *text = fmo_blame_column_text(g, t, c);
        out_cell(table, "%s", out_text(text ? text : "", 24));
        fm_free(text);
        for (unsigned s = 0; s < FM_SITES; s++) {
            char line[FM_MAX_LAYERS + 2];
            uint32_t n = FM_MIN(t->rows[s], (uint32_t)FM_MAX_LAYERS + 1);
            for (uint32_t i = 0; i < n; i++)
                line[i] = cell_sign(t, s, (size_t)i * t->columns + c);
            line[n] = 0;
            if (n)
                out_cell(table, "%s", line);
        }
        out_end_row(table);
    }
    out_table_print(table, stdout, "    ");
}

/* Prints the cells with the largest effect, a summary of the grid. */
static void print_peaks(const fmo_blame_grids *g, const fm_trace *t)
{
    for (unsigned s = 0; s < FM_SITES; s++) {
        size_t best = 0, n = (size_t)t->rows[s] * t->columns;
        for (size_t i = 1; i < n; i++)
            if (fmo_blame_share(t, s, i) > fmo_blame_share(t, s, best))
                best = i;
        if (!n)
            continue;
        char *text = fmo_blame_column_text(g, t, (uint32_t)(best % t->columns));
        printf("    most by %s of layer %u at '%s': %.0f %% of the way%s\n", blame_site_word[s],
               t->layer[s][best / t->columns], out_text(text ? text : "", 24),
               100 * fmo_blame_share(t, s, best),
               fmo_blame_turned(t, s, best) ? ", the answer turns" : "");
        fm_free(text);
    }
}

static void print_trace(const fmo_blame_grids *g)
{
    if (!g->done) {
        if (g->why_not)
            printf("\ntrace    not possible: %s\n", g->why_not);
        return;
    }
    printf(
        "\ntrace    states put from one run into the other; margin = log p(wrong) - log p(right): "
        "child %+.2f, parent %+.2f\n",
        g->grid[0].margin, g->grid[0].from_margin);
    for (int i = 0; i < 2; i++) {
        printf("  the %s (each sign a layer: tenths of the way to the other's margin, # the answer "
               "turns)\n",
               i ? "parent with the child's states" : "child with the parent's states");
        print_grid(g, &g->grid[i]);
        print_peaks(g, &g->grid[i]);
    }
}

/* ---- steps ---- */

static bool stands_out(const fmo_blame *b, uint32_t place)
{
    for (size_t i = 0; i < b->outstanding; i++)
        if (b->example[i].place == place)
            return true;
    return false;
}

static void print_points(const fmo_blame_steps *s)
{
    out_table *t = out_table_new();
    for (size_t i = 0; i < s->points; i++) {
        const fmo_blame_point *p = &s->point[i];
        out_cell_right(t, "%u", p->step);
        out_cell(t, "%s%s%s", out_c(p->verdict == FM_PASS ? OUT_GREEN : OUT_RED),
                 blame_verdict_word[p->verdict], out_c(OUT_PLAIN));
        out_cell_right(t, "%s", signed_number(p->margin));
        out_cell(t, "%s",
                 p->step == 0          ? "the parent"
                 : p->step == s->steps ? "the version"
                 : p->kept             ? "checkpoint"
                                       : "trained again");
        out_end_row(t);
    }
    out_table_print(t, stdout, "  ");
}

static void print_ablations(const fmo_blame_steps *s)
{
    double sum = 0;
    size_t waiting = 0;
    for (size_t i = 0; i < s->ablations; i++) {
        waiting += !s->ablation[i].run && !s->ablation[i].why;
        sum += s->ablation[i].estimate_s;
    }
    if (waiting) {
        printf(
            "  %zu changed recipes can be tried, about %.0f s of training: --rederive (--budget S "
            "bounds it)\n",
            waiting, sum);
        return;
    }
    if (s->ablations)
        printf("  the same training with one thing changed:\n");
    out_table *t = out_table_new();
    for (size_t i = 0; i < s->ablations; i++) {
        const fmo_blame_ablation *a = &s->ablation[i];
        out_cell(t, "%s", a->what);
        out_cell(t, "%s", a->run ? blame_verdict_word[a->verdict] : "-");
        out_cell_right(t, "%s", signed_number(a->margin));
        if (a->run)
            out_cell_right(t, "%.1f s", a->seconds);
        else
            out_cell(t, "%s", out_text(a->why ? a->why : "", 80));
        out_end_row(t);
    }
    out_table_print(t, stdout, "    ");
}

static void print_steps(const fmo_blame_more *m)
{
    const fmo_blame_steps *s = &m->steps;
    if (!s->done) {
        if (s->why_not)
            printf("\nsteps    not possible: %s\n", s->why_not);
        return;
    }
    printf("\nsteps    of a run of %u; %zu checkpoints kept; a whole training takes about %.0f s\n",
           s->steps, s->states_kept, s->plan_s);
    print_points(s);
    if (!s->fails_at)
        printf("  the case does not pass before the first step and fail after the last\n");
    else if (s->exact)
        printf("  it passes before step %u and fails after it; the step's examples:\n",
               s->fails_at);
    else
        printf("  it begins between steps %u and %u; --rederive trains them again\n", s->passes_at,
               s->fails_at);
    for (size_t i = 0; i < s->records; i++)
        printf("    %s %4u  %s\n", stands_out(m->b, s->record[i]) ? "*" : " ", s->index[i],
               out_text(s->preview[i], 90));
    print_ablations(s);
}

/* ---- repairs ---- */

static void print_names(const char *what, char **name, size_t count)
{
    if (!count)
        return;
    printf("      %s", what);
    for (size_t i = 0; i < count && i < 8; i++)
        printf("%s %s", i ? "," : "", out_text(name[i], 300));
    printf("%s\n", count > 8 ? ", .." : "");
}

static void print_repairs(const fmo_blame_repairs *r)
{
    if (!r->done) {
        if (r->why_not)
            printf("\nrepairs  not possible: %s\n", r->why_not);
        return;
    }
    printf(
        "\nrepairs  each run against all suites of the version; offered: the case passes, nothing "
        "that passed fails\n");
    for (size_t i = 0; i < r->count; i++) {
        const fmo_blame_candidate *k = &r->item[i];
        if (!k->run) {
            printf("  -  %s: not run: %s\n", k->what, k->why ? k->why : "");
            continue;
        }
        printf("  %s%s%s  %s", out_c(k->offered ? OUT_GREEN : OUT_RED), k->offered ? "ok" : "no",
               out_c(OUT_PLAIN), k->what);
        if (k->kind == BLAME_REPAIR_REWEIGHT)
            printf(", alpha %.4g", k->alpha);
        printf(
            "%s\n      margin %s, %zu of %zu cases pass (%zu before), moves %.0f %% of the step, "
            "%.1f s\n",
            k->passes && !k->firm ? " (just passes)" : "", signed_number(k->margin), k->passed,
            k->total, k->passed_before, 100 * k->moved, k->seconds);
        print_names("repairs", k->fixes, k->fix_count);
        print_names("breaks", k->breaks, k->break_count);
    }
    if (!r->count)
        printf("  none: neither a set of tensors nor examples were found\n");
    if (r->committed)
        printf("  committed the first as %.10s\n", r->committed);
}

static void print_lines(const char *head, fmo_blame_lines *l)
{
    for (size_t i = 0; i < l->count; i++)
        printf("%s%s\n", i ? "         " : head, l->line[i]);
    fmo_blame_lines_release(l);
}

void blame_print_findings(const fmo_blame_more *m, bool tensors, bool data, uint64_t top)
{
    fmo_blame_lines ran = {0}, doubts = {0};
    print_worth(m);
    if (tensors)
        print_tensors(m->b);
    print_trace(&m->grids);
    if (data)
        blame_data_print(m->b, top);
    print_steps(m);
    print_repairs(&m->repairs);
    if (!m->grids.done && !m->steps.done && !m->repairs.done)
        return;
    fmo_blame_ran_lines(m, tensors, data, &ran);
    printf("\nran      %llu evaluations, %.1f s; again by:\n",
           (unsigned long long)fmo_blame_evaluations(m), m->seconds);
    print_lines("         ", &ran);
    fmo_blame_doubt_lines(m, tensors, data, &doubts);
    if (doubts.count)
        putchar('\n');
    print_lines("unsure   ", &doubts);
}
