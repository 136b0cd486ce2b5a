/* compare.c - two runs of one suite, case by case. */
#include <string.h>

#include "testing/internal.h"
#include "testing/stats.h"

/* The result of that name, first looked for where a run of the same cases has it. */
static const fm_case_result *pair_of(const fm_case_result *r, const fm_suite_run *in, size_t at)
{
    if (at < in->count && strcmp(in->result[at].name, r->name) == 0)
        return &in->result[at];
    for (size_t i = 0; i < in->count; i++)
        if (strcmp(in->result[i].name, r->name) == 0)
            return &in->result[i];
    return NULL;
}

/* A case that could not be run has not passed. */
fm_comparison fm_suite_compare(const fm_suite_run *a, const fm_suite_run *b)
{
    fm_comparison c = {0};
    for (size_t i = 0; i < a->count; i++) {
        const fm_case_result *other = pair_of(&a->result[i], b, i);
        if (!other)
            continue;
        bool was = a->result[i].verdict == FM_PASS, is = other->verdict == FM_PASS;
        c.fixed += !was && is;
        c.broken += was && !is;
        c.both_pass += was && is;
        c.both_fail += !was && !is;
    }
    c.p_value = fm_mcnemar(c.fixed, c.broken);
    return c;
}
