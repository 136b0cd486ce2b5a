/* gate.c - judges a run of a suite by its gate: gives the outcomes of its cases to the policy. */
#include "testing/policy.h"

#include <string.h>

#include "store/base/mem.h"

static fm_status cases_of(fm_policy_case **out, const fm_suite_run *run)
{
    fm_policy_case *c = fm_calloc(run->count, sizeof *c);
    if (!c)
        return FM_ENOMEM;
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        long at = i < fm_suite_count(run->suite) &&
                          strcmp(fm_suite_case_name(run->suite, i), r->name) == 0
                      ? (long)i
                      : fm_suite_find(run->suite, r->name);
        c[i].digest = fm_suite_case_digest(run->suite, (size_t)at);
        c[i].verdict = r->verdict;
        c[i].waived = fm_suite_waived(run->suite, (size_t)at) || r->flaky;
    }
    *out = c;
    return FM_OK;
}

/* Lists failed measures: "gap by group: 0.2 is above 0.1; ..." */
static fm_status failed_measures(fm_buf *out, const fm_suite_run *run)
{
    for (size_t i = 0; i < run->measure_count; i++) {
        const fm_measure_result *m = &run->measure[i];
        if (m->verdict != FM_PASS)
            fm_buf_printf(out, "%s%s: %s", out->len ? "; " : "", m->name, m->detail);
    }
    return fm_buf_ok(out);
}

fm_status fm_gate_judge(fm_policy_outcome *out, fm_buf *why, const fm_suite_run *run,
                        const fm_suite_run *baseline, const char *baseline_name)
{
    fm_policy_case *now = NULL, *before = NULL;
    fm_buf measures;
    fm_buf_init(&measures, 0);
    fm_status rc = failed_measures(&measures, run);
    FM_THEN(rc, cases_of(&now, run));
    if (rc == FM_OK && baseline)
        rc = cases_of(&before, baseline);
    const fm_policy_facts facts = {.now = now,
                                   .count = run->count,
                                   .before = before,
                                   .before_count = baseline ? baseline->count : 0,
                                   .baseline_name = baseline_name,
                                   .measures_failed = measures.len ? fm_buf_cstr(&measures) : NULL};
    FM_THEN(rc, fm_policy_judge(out, why, fm_suite_policy(run->suite), &facts));
    fm_buf_release(&measures);
    fm_free(now);
    fm_free(before);
    return rc;
}
