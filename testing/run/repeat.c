/* repeat.c - joins runs of one suite on one model: more cases, or the same under other seeds. */
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"

void fmv_run_count(fm_suite_run *run)
{
    run->passed = run->failed = run->errors = run->cached = run->waived = run->flaky = 0;
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *c = &run->result[i];
        run->cached += c->cached;
        run->flaky += c->flaky;
        if (c->flaky)
            continue;
        run->passed += c->verdict == FM_PASS;
        run->failed += c->verdict == FM_FAIL;
        run->errors += c->verdict == FM_ERROR_CASE;
        run->waived += c->waived && c->verdict != FM_PASS;
    }
}

bool fm_suite_run_holds(const fm_suite_run *run)
{
    bool all = run->passed + run->flaky + run->waived == run->count;
    for (size_t i = 0; i < run->measure_count; i++)
        all = all && run->measure[i].verdict == FM_PASS;
    return all;
}

static int by_place(const void *a, const void *b)
{
    const fm_case_result *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

fm_status fm_suite_run_join(fm_suite_run *run, fm_suite_run *more)
{
    size_t n = run->count + more->count;
    if (!run->result) { /* the first part is taken whole */
        *run = *more;
        *more = (fm_suite_run){0};
    } else {
        fm_case_result *all = fm_realloc(run->result, FM_MAX(n, (size_t)1) * sizeof *all);
        if (!all)
            return FM_ENOMEM;
        if (more->count)
            memcpy(all + run->count, more->result, more->count * sizeof *all);
        run->result = all;
        run->count = n;
        run->seconds += more->seconds;
        more->count = 0;
        fm_suite_run_release(more);
    }
    qsort(run->result, n, sizeof *run->result, by_place);
    fmv_run_count(run);
    return fmv_measures_take(run);
}

fm_status fm_suite_run_repeat(fm_suite_run *run, const fm_suite_run *again)
{
    size_t *at = fm_calloc(again->count, sizeof *at);
    fm_status rc = at ? fmv_run_pairs(at, run, again) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < again->count; i++) {
        fm_assert(at[i] != SIZE_MAX);
        fm_case_result *r = &run->result[at[i]];
        if (!r->repeats) {
            r->repeats = 1;
            r->repeats_passed = r->verdict == FM_PASS;
        }
        r->repeats++;
        r->repeats_passed += again->result[i].verdict == FM_PASS;
        if (again->result[i].verdict == FM_ERROR_CASE && r->verdict != FM_ERROR_CASE) {
            /* A case that could not be asked once has no verdict and excuses nothing. */
            r->verdict = FM_ERROR_CASE;
            r->flaky = false;
            fm_free(r->detail);
            r->detail = again->result[i].detail ? fm_strdup(again->result[i].detail) : NULL;
        }
        r->flaky |= r->verdict != FM_ERROR_CASE && again->result[i].verdict != r->verdict;
    }
    fm_free(at);
    run->seconds += again->seconds;
    fmv_run_count(run);
    return rc == FM_OK ? fmv_measures_take(run) : rc;
}

void fm_suite_run_release(fm_suite_run *run)
{
    for (size_t i = 0; run->result && i < run->count; i++) {
        fm_free(run->result[i].output);
        fm_free(run->result[i].answer);
        fm_free(run->result[i].detail);
        fm_json_free(run->result[i].metrics);
    }
    fm_free(run->result);
    fmv_measures_drop(run);
    memset(run, 0, sizeof *run);
}
