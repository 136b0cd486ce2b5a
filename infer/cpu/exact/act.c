/* act.c - layer norm, activations, softcaps and mixtures of rows, dealt to threads by rows. */
#include "infer/cpu/cpu.h"

#define MIN_ELEMS 8192u /* fewer are not worth waking a thread */

typedef struct act_job {
    const fmi_kern *kern;
    float *y;
    const float *a, *b, *c;
    const int32_t *row;
    size_t ldy, lda, ldb;
    uint32_t n, per;
    fm_act f;
    float s;
} act_job;

static size_t rows_per_part(size_t row_elems)
{
    return (MIN_ELEMS + row_elems - 1) / FM_MAX(row_elems, (size_t)1);
}

static fm_status layernorm_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const act_job *j = ctx;

    (void)worker;
    j->kern->layernorm(j->y + begin * j->lda, j->a + begin * j->lda, j->b, j->c,
                       (uint32_t)(end - begin), j->n, j->lda, j->s);
    return FM_OK;
}

void fmi_exact_layernorm(fm_backend *be, float *y, const float *x, const float *gain,
                         const float *bias, uint32_t m, uint32_t h, size_t ldx, float eps)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    act_job j = {
        .kern = cpu->kern, .y = y, .a = x, .b = gain, .c = bias, .n = h, .lda = ldx, .s = eps};
    fmi_run(cpu, m, rows_per_part(h), layernorm_part, &j);
}

static fm_status act_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const act_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->act(j->f, j->y + i * j->ldy, j->a + i * j->lda, j->b ? j->b + i * j->ldb : NULL,
                     j->n);
    return FM_OK;
}

void fmi_exact_act(fm_backend *be, fm_act f, float *y, size_t ldy, const float *gate, size_t ldg,
                   const float *up, size_t ldu, uint32_t m, uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    act_job j = {.kern = cpu->kern,
                 .f = f,
                 .y = y,
                 .ldy = ldy,
                 .a = gate,
                 .lda = ldg,
                 .b = up,
                 .ldb = ldu,
                 .n = n};
    fmi_run(cpu, m, rows_per_part(n), act_part, &j);
}

static fm_status softcap_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const act_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->softcap(j->y + i * j->ldy, j->n, j->s);
    return FM_OK;
}

void fmi_exact_softcap(fm_backend *be, float *y, size_t ldy, uint32_t m, uint32_t n, float cap)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    act_job j = {.kern = cpu->kern, .y = y, .ldy = ldy, .n = n, .s = cap};
    fmi_run(cpu, m, rows_per_part(n), softcap_part, &j);
}

static fm_status mix_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const act_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->mix_rows(j->y + i * j->ldy, j->a, j->lda, j->row + i * j->per, j->b + i * j->per,
                          j->per, j->n);
    return FM_OK;
}

void fmi_exact_mix_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                        const int32_t *row, const float *weight, uint32_t per, uint32_t m,
                        uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    act_job j = {.kern = cpu->kern,
                 .y = y,
                 .ldy = ldy,
                 .a = x,
                 .lda = ldx,
                 .row = row,
                 .b = weight,
                 .per = per,
                 .n = n};
    fmi_run(cpu, m, rows_per_part((size_t)n * per), mix_part, &j);
}
