/* test_text.c - prints tested versions on the terminal. */
#include <math.h>

#include "cli/report/report.h"

/* ---- one suite on one version ---- */

static const char *word_of(const fm_case_result *r)
{
    static const char *const words[] = {"pass", "FAIL", "ERROR"};
    return r->flaky ? "flaky" : words[r->verdict];
}

static void print_case(const fm_suite_run *run, const fm_case_result *r)
{
    bool pass = r->verdict == FM_PASS && !r->flaky;
    printf("  %s%s%s%s %s",
           out_c(pass       ? OUT_GREEN
                 : r->flaky ? OUT_YELLOW
                            : OUT_RED),
           r->waived && !pass ? "waived " : "", word_of(r), out_c(OUT_PLAIN),
           out_text(r->name, 300));
    if (r->repeats)
        printf("  (%s%u of %u repeats passed)", r->quarantined ? "quarantined: " : "",
               r->repeats_passed, r->repeats);
    printf("\n");
    if (r->flaky)
        printf("       gates do not count it; 'fmstore results lift REV %s/%s' lets them\n",
               fm_suite_name(run->suite), out_text(r->name, 300));
    if (!pass && r->detail)
        printf("       %s\n", out_text(r->detail, 200));
    if (r->output)
        printf("       answer: %s\n", out_text(r->output, 120));
}

/* Prints the confidence interval and the smallest difference that the cases can show. */
static void print_worth(const fm_suite_run *run)
{
    size_t n = run->count - run->flaky - run->waived;
    if (!n)
        return;
    fm_interval i = fm_wilson(run->passed, n, TEST_CONFIDENCE);
    double least = fm_detectable_flips(n, 0, TEST_ALPHA, TEST_POWER);
    printf("  %s%.1f %% of %zu, 95 %% interval %.1f to %.1f; ", out_c(OUT_DIM),
           100 * (double)run->passed / (double)n, n, 100 * i.low, 100 * i.high);
    if (isnan(least))
        printf("too few cases to show any change%s\n", out_c(OUT_PLAIN));
    else
        printf("shows a change of %.1f points or more%s\n", 100 * least, out_c(OUT_PLAIN));
}

static void print_measures(const fm_suite_run *run)
{
    static const char *const words[] = {"holds", "FAILS", "ERROR"};
    for (size_t i = 0; i < run->measure_count; i++) {
        const fm_measure_result *m = &run->measure[i];
        printf("  %s%s%s measure %s", out_c(m->verdict == FM_PASS ? OUT_GREEN : OUT_RED),
               words[m->verdict], out_c(OUT_PLAIN), out_text(m->name, 100));
        if (isfinite(m->value))
            printf(": %.4g (%.4g to %.4g) over %zu cases", m->value, m->low, m->high, m->count);
        printf("\n");
        if (m->detail)
            printf("       %s\n", out_text(m->detail, 200));
    }
}

static void print_stop(const fm_test_part *p)
{
    if (!p->stops)
        return;
    const char *says = p->decision == FM_REACHED  ? "at least"
                       : p->decision == FM_MISSED ? "less than"
                                                  : "undecided:";
    if (p->asked == p->count)
        printf("  all %zu cases asked: %s %.4g %% pass\n", p->count, says, 100 * p->rule.threshold);
    else
        printf("  stopped after %zu of %zu cases: %s %.4g %% pass (wrong at most %.3g %% of the "
               "time)\n",
               p->asked, p->count, says, 100 * p->rule.threshold, 100 * p->rule.alpha);
}

static void print_run(const fm_tested *v, size_t k, bool verbose)
{
    const fm_suite_run *run = &v->run[k];
    printf("%s%s%s  %s%s: %zu of %zu passed", out_c(OUT_BOLD), v->rev, out_c(OUT_PLAIN),
           fm_suite_name(run->suite), fm_suite_is_gate(run->suite) ? " (gate)" : "", run->passed,
           run->count);
    if (run->flaky)
        printf(", %zu flaky", run->flaky);
    if (run->waived)
        printf(", %zu waived", run->waived);
    printf(run->cached == run->count ? ", cached\n" : ", %.1f s\n", run->seconds);
    print_worth(run);
    print_stop(&v->part[k]);
    print_measures(run);
    for (size_t i = 0; i < run->count; i++)
        if (verbose || run->result[i].verdict != FM_PASS || run->result[i].flaky)
            print_case(run, &run->result[i]);
}

/* ---- the matrix ---- */

static void print_matrix(const fm_report *r, const fm_matrix *m)
{
    out_table *t = out_table_new();
    out_cell(t, "capability");
    out_cell(t, "kind");
    for (size_t c = 0; c < r->count; c++)
        out_cell_right(t, "%s", out_text(r->column[c].name, 24));
    out_end_row(t);
    for (size_t i = 0; i < m->count; i++) {
        out_cell(t, "%s", out_text(m->row[i].capability, 40));
        out_cell(t, "%s", m->row[i].kind);
        for (size_t c = 0; c < r->count; c++) {
            const fm_matrix_cell *cell = &m->row[i].cell[c];
            double share = fm_matrix_share(cell);
            if (isnan(share))
                out_cell_right(t, "-");
            else
                out_cell_right(t, "%zu/%zu %3.0f %%%s", cell->passed,
                               cell->count - cell->flaky - cell->waived, 100 * share,
                               cell->flaky ? " ~" : "");
        }
        out_end_row(t);
    }
    out_table_print(t, stdout, "");
}

/* ---- two versions ---- */

static void print_change(const fm_suite_change *c, const char *was, const char *is, bool bh)
{
    printf("%s  %s: %zu passed -> %s: %zu passed of %zu;  %zu broken, %zu fixed (p = %.3g)\n",
           fm_suite_name(c->now->suite), was, c->before->passed, is, c->now->passed, c->now->count,
           c->broken, c->fixed, c->p_value);
    if (c->pairs) {
        double churn = 2 * (double)FM_MIN(c->broken, c->fixed) / (double)c->pairs;
        double least = fm_detectable_flips(c->pairs, churn, TEST_ALPHA, TEST_POWER);
        const fm_estimate d = fm_suite_change_interval(c, TEST_CONFIDENCE);
        printf("  %s%+.1f points, 95 %% interval %+.1f to %+.1f; p adjusted (%s) %.3g; ",
               out_c(OUT_DIM), 100 * d.value, 100 * d.low, 100 * d.high,
               bh ? "Benjamini-Hochberg" : "Holm", c->p_adjusted);
        if (isnan(least))
            printf("too few pairs to show any loss%s\n", out_c(OUT_PLAIN));
        else
            printf("a loss of %.1f points would show%s\n", 100 * least, out_c(OUT_PLAIN));
    }
    if (c->graded)
        printf("  grades: %+.3f on average of %zu answers (p = %.3g, signs permuted)\n",
               c->grade_change, c->graded, c->grade_p);
    if (c->left_out)
        printf("  %zu flaky case%s left out\n", c->left_out, c->left_out == 1 ? "" : "s");
    for (size_t k = 0; k < c->flips; k++) {
        const fm_flip *f = &c->flip[k];
        bool fixed = f->now->verdict == FM_PASS;
        printf("  %s%-6s%s %s\n", out_c(fixed ? OUT_GREEN : OUT_RED), fixed ? "fixed" : "broken",
               out_c(OUT_PLAIN), out_text(f->now->name, 300));
        printf("         %s: %s\n", was, out_text(f->before->output, 100));
        printf("         %s: %s\n", is, out_text(f->now->output, 100));
    }
}

/* ---- print ---- */

static fm_status print_text(const fm_test_result *t, const fmo_test_output *o, const fm_report *r,
                            const fmo_test_changes *ch)
{
    fm_matrix m = {0};
    bool matrix = o->matrix || t->several;
    FM_TRY(matrix ? fm_report_matrix(&m, r) : FM_OK);
    if (t->against != SIZE_MAX) {
        for (size_t i = 0; i < ch->count; i++)
            print_change(&ch->at[i], t->version[t->against].rev, t->version[0].rev, o->adjust_bh);
        for (size_t k = 0; k < t->version[0].set.count; k++)
            if (t->version[0].run[k].flaky)
                print_run(&t->version[0], k, o->verbose);
    } else {
        for (size_t i = 0; i < t->count; i++)
            for (size_t k = 0; k < t->version[i].set.count; k++)
                print_run(&t->version[i], k, o->verbose);
    }
    if (matrix)
        print_matrix(r, &m);
    fm_matrix_release(&m);
    return FM_OK;
}

static fm_status print_json(const fm_test_result *t, const fmo_test_output *o,
                            const fmo_test_changes *ch)
{
    fm_json *v = fmo_test_json(t, o, ch);
    return v ? out_json(v) : FM_ENOMEM;
}

fm_status print_tests(cli *c, const fm_test_result *t, const fmo_test_output *o)
{
    fmo_test_pages p;
    fmo_test_changes ch = {0};
    fm_status rc = fmo_test_pages_open(c, &p, t, o);
    FM_THEN(rc, fmo_test_pages_write(c, &p, t, o));
    if (rc == FM_OK && t->against != SIZE_MAX)
        rc = fmo_test_changes_of(&ch, &t->version[t->against], &t->version[0], o->adjust_bh);
    FM_THEN(rc, o->json ? print_json(t, o, &ch) : print_text(t, o, &p.report, &ch));
    fmo_test_changes_release(&ch);
    fmo_test_pages_release(&p);
    return rc;
}
