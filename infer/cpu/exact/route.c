/* route.c - the choice of experts (route.h), and the operations route and route_grad. */
#include "infer/cpu/route.h"

#include <string.h>

#include "infer/cpu/cpu.h"

#include "store/base/math/detmath.h"

void fmi_route(const fm_switches *sw, const float *score, double *share, fmi_route_choice *pick)
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

/* ---- operations ---- */

typedef struct route_job {
    fmi_cpu *cpu;
    const fm_route *r;
} route_job;

static fm_status route_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const route_job *j = ctx;
    const fm_route *r = j->r;
    const fm_switches sw = {
        .experts = r->experts, .chosen = r->chosen, .renormalise = r->renormalise};
    double *share =
        fmi_scratch_get(&j->cpu->worker[worker],
                        r->experts * sizeof(double) + r->chosen * sizeof(fmi_route_choice));

    if (!share)
        return FM_ENOMEM;
    fmi_route_choice *pick = (fmi_route_choice *)(void *)(share + r->experts);
    for (size_t i = begin; i < end; i++) {
        fmi_route(&sw, r->score + i * r->ld, share, pick);
        for (uint32_t k = 0; k < r->chosen; k++) {
            r->expert[i * r->chosen + k] = (int32_t)pick[k].expert;
            r->weight[i * r->chosen + k] = pick[k].weight;
        }
    }
    return FM_OK;
}

/* Sorts the choice numbers by expert, rows ascending within one. begin advances to the end of each
 * group while list is filled, and is then shifted back. */
static void deal(const fm_route *r)
{
    const size_t keys = (size_t)r->experts * r->parts;
    int32_t at = 0;

    memset(r->begin, 0, (keys + 1) * sizeof(int32_t));
    for (int fill = 0; fill < 2; fill++) {
        uint32_t part = 0;
        for (uint32_t i = 0; i < r->m; i++) {
            while (i >= (uint32_t)r->bound[part + 1])
                part++;
            for (uint32_t k = 0; k < r->chosen; k++) {
                uint32_t number = i * r->chosen + k;
                int32_t *to = &r->begin[(size_t)r->expert[number] * r->parts + part];
                if (fill)
                    r->list[*to] = (int32_t)number;
                if (fill && r->slot)
                    r->slot[number] = *to;
                ++*to;
            }
        }
        for (size_t key = 0; key < keys && !fill; key++) {
            int32_t n = r->begin[key];
            r->begin[key] = at;
            at += n;
        }
    }
    memmove(r->begin + 1, r->begin, keys * sizeof(int32_t));
    r->begin[0] = 0;
}

void fmi_exact_route(fm_backend *be, const fm_route *r)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    route_job j = {cpu, r};

    fmi_run(cpu, r->m, 1024 / r->experts + 1, route_part, &j);
    if (cpu->failed == FM_OK)
        deal(r);
}

typedef struct route_grad_job {
    fmi_cpu *cpu;
    const fm_route *r;
    float *dscore;
    const float *dweight;
} route_grad_job;

/* The gradient of one row, through the softmax over all experts or over the chosen ones. */
static void route_grad_row(const route_grad_job *j, size_t row, double *share)
{
    const fm_route *r = j->r;
    const float *score = r->score + row * r->ld;
    const int32_t *expert = r->expert + row * r->chosen, *slot = r->slot + row * r->chosen;
    float *dscore = j->dscore + row * r->experts;
    double max = (double)score[0], sum = 0.0, kept = 0.0, mean = 0.0;

    for (uint32_t i = 1; i < r->experts; i++)
        max = FM_MAX(max, (double)score[i]);
    for (uint32_t i = 0; i < r->experts; i++) {
        share[i] = fm_exp((double)score[i] - max);
        sum += share[i];
    }
    for (uint32_t k = 0; k < r->chosen; k++)
        kept += share[expert[k]];
    double whole = r->renormalise ? kept : sum;
    for (uint32_t k = 0; k < r->chosen; k++)
        mean += share[expert[k]] / whole * (double)j->dweight[slot[k]];
    for (uint32_t i = 0; i < r->experts; i++)
        dscore[i] = r->renormalise ? 0.0f : (float)(-mean * share[i] / whole);
    for (uint32_t k = 0; k < r->chosen; k++)
        dscore[expert[k]] =
            (float)(share[expert[k]] / whole * ((double)j->dweight[slot[k]] - mean));
}

static fm_status route_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const route_grad_job *j = ctx;
    double *share = fmi_scratch_get(&j->cpu->worker[worker], j->r->experts * sizeof(double));

    if (!share)
        return FM_ENOMEM;
    for (size_t i = begin; i < end; i++)
        route_grad_row(j, i, share);
    return FM_OK;
}

void fmi_exact_route_grad(fm_backend *be, const fm_route *r, float *dscore, const float *dweight)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    route_grad_job j = {cpu, r, dscore, dweight};

    fmi_run(cpu, r->m, 1024 / r->experts + 1, route_grad_part, &j);
}

void fmi_exact_sigmoid_grad(fm_backend *be, float *dx, const float *dy, const float *y, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        dx[i] = (float)((double)dy[i] * (double)y[i] * (1.0 - (double)y[i]));
}

void fmi_exact_scalings(fm_backend *be, const fm_scaling *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fm_scaling s = list[i];
        FMI_SETTLE(&s);
        be->affine(be, s.y, s.ldy, s.n, s.scale, s.bias, 0, s.m, s.rows);
    }
}

void fmi_exact_sigmoid(fm_backend *be, float *y, const float *x, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        y[i] = (float)(1.0 / (1.0 + fm_exp(-(double)x[i])));
}
