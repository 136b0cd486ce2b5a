/* compare.c - two runs of one suite, case by case. */
#include <math.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "testing/suite/internal.h"
#include "testing/report.h"

/* Runs of the same cases pair in order; a map is made only where one run lacks cases. */
fm_status fmv_run_pairs(size_t *at, const fm_suite_run *a, const fm_suite_run *b)
{
    fm_map *names = NULL;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < b->count; i++) {
        const char *name = b->result[i].name;
        at[i] = i;
        if (i < a->count && strcmp(a->result[i].name, name) == 0)
            continue;
        if (!names) {
            rc = fm_map_new(&names);
            for (size_t k = 0; rc == FM_OK && k < a->count; k++)
                rc = fm_map_put(names, a->result[k].name, strlen(a->result[k].name), &a->result[k],
                                NULL);
        }
        const fm_case_result *found = rc == FM_OK ? fm_map_get(names, name, strlen(name)) : NULL;
        at[i] = found ? (size_t)(found - a->result) : SIZE_MAX;
    }
    fm_map_free(names);
    return rc;
}

#define SIGN_FLIPS 20000u

/* Compares grades, which show changes that flip no verdict. */
static void take_grades(fm_suite_change *c, double *difference, const size_t *at)
{
    double sum = 0;
    /* NULL: a run without a suite, whose cases have no grades */
    const fm_suite *suite = c->now->suite;
    for (size_t i = 0; suite && i < c->now->count; i++) {
        if (at[i] == SIZE_MAX)
            continue;
        const fm_case_result *old = &c->before->result[at[i]], *new = &c->now->result[i];
        bool asked = old->verdict != FM_ERROR_CASE && new->verdict != FM_ERROR_CASE;
        if (old->flaky || new->flaky || !asked || !suite->cases[new->at].graded ||
            !isfinite(old->score) || !isfinite(new->score))
            continue;
        sum += difference[c->graded++] = new->score - old->score;
    }
    if (!c->graded)
        return;
    c->grade_change = sum / (double)c->graded;
    c->grade_p = fm_permutation_paired(difference, c->graded, SIGN_FLIPS, 0);
}

/* Collects the pairs that count, as later minus earlier, and the flips. */
static void take_pairs(fm_suite_change *c, double *difference, const size_t *at)
{
    for (size_t i = 0; i < c->now->count; i++) {
        if (at[i] == SIZE_MAX)
            continue;
        const fm_case_result *old = &c->before->result[at[i]], *new = &c->now->result[i];
        if (old->flaky || new->flaky) {
            c->left_out++;
            continue;
        }
        bool was = old->verdict == FM_PASS, is = new->verdict == FM_PASS;
        difference[c->pairs++] = (double)is - (double)was;
        c->fixed += !was && is;
        c->broken += was && !is;
        c->both_pass += was && is;
        if (was != is)
            c->flip[c->flips++] = (fm_flip){old, new};
    }
    c->p_value = c->p_adjusted = fm_mcnemar(c->fixed, c->broken);
}

fm_status fm_suite_change_of(fm_suite_change *out, const fm_suite_run *before,
                             const fm_suite_run *now, const fm_bootstrap *how)
{
    size_t *at = fm_calloc(now->count, sizeof *at);
    double *difference = fm_calloc(now->count, sizeof *difference);
    *out = (fm_suite_change){.before = before,
                             .now = now,
                             .p_value = 1,
                             .p_adjusted = 1,
                             .grade_change = (double)NAN,
                             .grade_p = (double)NAN};
    out->flip = fm_calloc(now->count, sizeof *out->flip);
    fm_status rc = at && difference && out->flip ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fmv_run_pairs(at, before, now));
    if (rc == FM_OK)
        take_pairs(out, difference, at);
    if (rc == FM_OK && out->pairs)
        rc = fm_bootstrap_mean(&out->difference, difference, out->pairs, how);
    if (rc == FM_OK)
        take_grades(out, difference, at);
    fm_free(at);
    fm_free(difference);
    if (rc < 0)
        fm_suite_change_release(out);
    return rc;
}

void fm_suite_change_release(fm_suite_change *c)
{
    fm_free(c->flip);
    c->flip = NULL;
    c->flips = 0;
}

fm_status fm_suite_changes_adjust(fm_suite_change *c, size_t n, bool bh)
{
    double *p = fm_calloc(n, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        p[i] = c[i].p_value;
    fm_status rc = bh ? fm_adjust_bh(p, p, n) : fm_adjust_holm(p, p, n);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        c[i].p_adjusted = p[i];
    fm_free(p);
    return rc;
}

fm_estimate fm_suite_change_interval(const fm_suite_change *c, double confidence)
{
    if (c->difference.high > c->difference.low)
        return c->difference;
    return fm_paired_difference(c->fixed, c->broken, c->both_pass,
                                c->pairs - c->fixed - c->broken - c->both_pass, confidence);
}
