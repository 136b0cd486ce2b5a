/* route.c - the choice of experts. See route.h. */
#include "infer/route.h"

#include "store/base/detmath.h"

void fmi_route(const fm_switches *sw, const float *score, double *share, fmi_choice *pick)
{
    double max = (double)score[0], sum = 0, kept = 0;
    for (uint32_t i = 1; i < sw->experts; i++)
        max = FM_MAX(max, (double)score[i]);
    for (uint32_t i = 0; i < sw->experts; i++) {
        share[i] = fm_exp((double)score[i] - max);
        sum += share[i];
    }
    for (uint32_t k = 0; k < sw->chosen; k++) {
        uint32_t best = UINT32_MAX, at = k;
        for (uint32_t i = 0; i < sw->experts; i++) {
            bool taken = false;
            for (uint32_t j = 0; j < k; j++)
                taken = taken || pick[j].expert == i;
            if (!taken && (best == UINT32_MAX || score[i] > score[best]))
                best = i;
        }
        for (; at > 0 && pick[at - 1].expert > best; at--)
            pick[at] = pick[at - 1];
        pick[at].expert = best;
    }
    for (uint32_t k = 0; k < sw->chosen; k++)
        kept += share[pick[k].expert];
    for (uint32_t k = 0; k < sw->chosen; k++)
        pick[k].weight = (float)(share[pick[k].expert] / (sw->renormalise ? kept : sum));
}
