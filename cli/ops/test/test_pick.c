/* test_pick.c - slices, single cases, and early stopping. */
#include "cli/ops/test/test_pick.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/math/rng.h"
#include "testing/policy.h"

#define LOOK_CASES 32u /* cases between two decisions; a smaller batch wastes its weight reads */
#define ORDER_SEED 1   /* of the order of cases in a sequential test */

static fm_status in_slice(bool *in, const fm_suite *s, size_t i, const fm_test_choice *choice)
{
    *in = !choice->case_name || strcmp(fm_suite_case_name(s, i), choice->case_name) == 0;
    for (size_t k = 0; choice->slice && k < choice->slice->count; k++) {
        const char *word = choice->slice->item[k], *eq = strchr(word, '=');
        char key[128];
        if (!eq || eq == word || (size_t)(eq - word) >= sizeof key)
            return fm_fail(FM_EINVAL, "--slice %s: want KEY=VALUE, such as kind=INV", word);
        snprintf(key, sizeof key, "%.*s", (int)(eq - word), word);
        *in = *in && fm_suite_case_matches(s, i, key, eq + 1);
    }
    return FM_OK;
}

/* The share of passes that decides: that of the gate, else the requested one; NaN = none. A gate
 * with other conditions than a share can only be judged on all cases. */
static double threshold_of(const fm_suite *s, const fm_test_choice *choice)
{
    const fm_policy *p = fm_suite_policy(s);
    if (!p->gate)
        return choice->threshold;
    if (p->asks_regressions || p->measures)
        return (double)NAN;
    double least = p->min_passed ? (double)p->min_passed / (double)fm_suite_count(s) : 0;
    if (!isnan(p->threshold))
        least = fmax(least, p->threshold);
    return p->all ? 1 : least;
}

static fm_status shuffle(fm_test_part *p)
{
    uint32_t *order = fm_calloc(p->count, sizeof *order);
    size_t *pick = fm_calloc(p->count, sizeof *pick);
    if (order && pick) {
        fm_rng_permutation(order, (uint32_t)p->count, ORDER_SEED, p->count);
        for (size_t i = 0; i < p->count; i++)
            pick[i] = p->pick[order[i]];
        memcpy(p->pick, pick, p->count * sizeof *pick);
    }
    fm_status rc = order && pick ? FM_OK : FM_ENOMEM;
    fm_free(order);
    fm_free(pick);
    return rc;
}

fm_status fmo_test_part_open(fm_test_part *p, const fm_suite *s, const fm_test_choice *choice)
{
    size_t n = fm_suite_count(s), waived = 0;
    fm_status rc = FM_OK;
    *p = (fm_test_part){.pick = fm_calloc(n, sizeof *p->pick)};
    if (!p->pick)
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        bool in;
        rc = in_slice(&in, s, i, choice);
        if (rc == FM_OK && in) {
            p->pick[p->count++] = i;
            waived += fm_suite_waived(s, i);
        }
    }
    double threshold = rc == FM_OK && choice->sequential ? threshold_of(s, choice) : (double)NAN;
    if (!isnan(threshold) && p->count > waived) {
        p->stops = true;
        p->rule = (fm_sequential){threshold, choice->alpha, p->count - waived};
        rc = shuffle(p);
    }
    return rc;
}

void fmo_test_part_release(fm_test_part *p)
{
    fm_free(p->pick);
    *p = (fm_test_part){0};
}

size_t fmo_test_part_next(const fm_test_part *p, const size_t **pick)
{
    size_t left = p->count - p->asked;
    *pick = p->pick + p->asked;
    if (p->stops && p->decision != FM_UNDECIDED)
        return 0;
    return p->stops ? FM_MIN(left, (size_t)LOOK_CASES) : left;
}

void fmo_test_part_look(fm_test_part *p, const fm_suite_run *run)
{
    size_t n = 0, k = 0;
    p->asked = run->count;
    for (size_t i = 0; i < run->count; i++) {
        n += !run->result[i].waived;
        k += !run->result[i].waived && run->result[i].verdict == FM_PASS;
    }
    if (p->stops)
        p->decision = fm_sequential_look(&p->rule, k, n);
}

bool fm_test_part_holds(const fm_test_part *p, const fm_suite_run *run)
{
    return p->stops && p->decision != FM_UNDECIDED ? p->decision == FM_REACHED
                                                   : fm_suite_run_holds(run);
}
