/* lora.c - low-rank terms of mode fast.
 *
 * A work item is some rows of one term, and where a list has too few rows for the threads, a share
 * of its outputs: each thread with a share then computes t = x A^T itself, which costs less than a
 * second barrier. Items are split over threads by their cost. */
#include "infer/cpu/fast/fast.h"

#include <string.h>

#define UNIT_ROWS 48u
#define SMALL_COST 20000u

typedef struct lora_job {
    fmi_cpu *cpu;
    const fmi_fast_kern *kern;
    const float *x;
    size_t ldx;
    const fm_lora *term;
    uint32_t terms, widest, kp; /* largest r of a term; k padded to 32 */
    uint32_t rows;              /* of a work item, at most */
    uint32_t shares, parts;
    uint64_t cost;
} lora_job;

typedef struct lora_unit {
    const fm_lora *term;
    uint32_t at, m, share;
    const void *next; /* the factor that is read after this work item */
    size_t next_bytes;
    uint16_t *x; /* scratch: rows as bf16, x A^T, that as two bf16 */
    float *t;
    uint32_t *wide;
} lora_unit;

/* Estimated cycles of m rows of a term: reading both factors, and two dot products of B. */
static uint64_t unit_cost(const lora_job *j, const fm_lora *l, uint32_t m)
{
    const uint32_t r = fmi_cpu_weight_of(l->a)->n, n = fmi_cpu_weight_of(l->b)->n;
    uint64_t a = (uint64_t)j->kp * r, b = (uint64_t)n * r / j->shares;

    return (a + b) * 2 / 6 + m * ((uint64_t)j->kp / 8 + (a + 2 * b) / 32) + 50;
}

static void do_unit(const lora_job *j, const lora_unit *u)
{
    const fm_lora *l = u->term;
    const fmi_fast_weight *a = fmi_fast_weight_of(l->a), *b = fmi_fast_weight_of(l->b);
    const uint32_t r = a->base.n, panels = b->base.panels;
    uint32_t p0 = (uint32_t)((uint64_t)panels * u->share / j->shares);
    uint32_t p1 = (uint32_t)((uint64_t)panels * (u->share + 1) / j->shares);
    fmi_fast_out out = {.y = l->y + p0 * FMI_OUTPUTS,
                        .ldy = l->ldy,
                        .rows = l->rows ? l->rows + u->at : NULL,
                        .first = l->rows ? 0 : l->first + u->at};

    if (p0 == p1)
        return;
    out.n = FM_MIN(p1 * FMI_OUTPUTS, b->base.n) - p0 * FMI_OUTPUTS;
    for (uint32_t i = 0; i < u->m; i++) {
        size_t row = out.rows ? (size_t)out.rows[i] : out.first + i;
        j->kern->round_row(u->x + (size_t)i * j->kp, j->x + row * j->ldx, a->base.k, j->kp);
    }
    j->kern->lora_down(u->t, u->x, u->m, (const uint16_t *)(const void *)a->q, r, j->kp,
                       b->q + p0 * b->panel_q, (p1 - p0) * b->panel_q);
    j->kern->lora_up(&out, u->t, l->scale, u->m, b->q + p0 * b->panel_q, r, u->wide, u->next,
                     u->next_bytes);
}

static fm_status lora_worker(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const lora_job *j = ctx;
    const size_t wide = ((size_t)j->widest + 1) & ~(size_t)1;
    const size_t x_bytes = (size_t)j->rows * j->kp * 2;
    const size_t t_bytes = ((size_t)j->rows * j->widest * 4 + 63) & ~(size_t)63;
    uint8_t *scratch = fmi_scratch_get(&j->cpu->worker[worker], x_bytes + t_bytes + 8 * wide * 4);
    lora_unit u = {.x = (uint16_t *)(void *)scratch};
    uint64_t at = 0, from = j->cost * begin / j->parts, to = j->cost * end / j->parts;

    if (!scratch)
        return FM_ENOMEM;
    u.t = (float *)(void *)(scratch + x_bytes);
    u.wide = (uint32_t *)(void *)(scratch + x_bytes + t_bytes);
    for (uint32_t i = 0; i < j->terms && at < to; i++) {
        const fmi_fast_weight *next =
            i + 1 < j->terms ? fmi_fast_weight_of(j->term[i + 1].a) : NULL;
        u.term = &j->term[i];
        u.next = next ? next->q : NULL;
        u.next_bytes = next ? (size_t)next->base.n * j->kp * 2 : 0;
        for (u.at = 0; u.at < u.term->m; u.at += u.m) {
            u.m = FM_MIN(u.term->m - u.at, j->rows);
            for (u.share = 0; u.share < j->shares; u.share++) {
                if (at >= from && at < to)
                    do_unit(j, &u);
                at += unit_cost(j, u.term, u.m);
            }
        }
    }
    return FM_OK;
}

static uint64_t units_of(const lora_job *j, uint64_t *cost)
{
    uint64_t units = 0;

    *cost = 0;
    for (uint32_t i = 0; i < j->terms; i++) {
        const fm_lora *l = &j->term[i];
        uint32_t whole = l->m / j->rows, rest = l->m % j->rows;
        units += whole + (rest > 0);
        *cost +=
            j->shares * (whole * unit_cost(j, l, j->rows) + (rest > 0 ? unit_cost(j, l, rest) : 0));
    }
    return units;
}

static void run_terms(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                      uint32_t terms)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    lora_job j = {.cpu = cpu,
                  .kern = fmi_fast_of(be)->kern,
                  .x = x,
                  .ldx = ldx,
                  .term = term,
                  .terms = terms,
                  .kp = (k + 31) / 32 * 32,
                  .shares = 1,
                  .parts = cpu->threads};
    uint64_t rows = 0;

    for (uint32_t i = 0; i < terms; i++) {
        const fmi_cpu_weight *a = fmi_cpu_weight_of(term[i].a);
        fm_assert(a->k == k && a->n == fmi_cpu_weight_of(term[i].b)->k);
        rows += term[i].m;
        j.widest = FM_MAX(j.widest, a->n);
    }
    if (rows == 0)
        return;
    j.rows = (uint32_t)FM_MAX(2u, FM_MIN(UNIT_ROWS, (rows + j.parts - 1) / j.parts));
    uint64_t units = units_of(&j, &j.cost);
    if (j.cost < SMALL_COST) {
        j.parts = 1;
    } else if (units < 2 * (uint64_t)j.parts) {
        j.shares = j.parts;
        units_of(&j, &j.cost);
    }
    fmi_run(cpu, j.parts, 1, lora_worker, &j);
}

static void op_lora(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                    uint32_t terms)
{
    fmi_settle_terms(be, x, ldx, k, term, terms, run_terms);
}

void fmi_fast_lora_install(fm_backend *be)
{
    be->lora = op_lora;
}
