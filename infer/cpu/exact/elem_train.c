/* elem_train.c - gradients of layer norm, activations and softcaps, sums over columns, dropout,
 * dealt to threads: rows, or columns where the sum runs over rows. */
#include "infer/cpu/cpu.h"

#include <string.h>

#define MIN_ELEMS 8192u /* fewer are not worth waking a thread */
#define COLUMN_UNIT 64u /* columns dealt together */

typedef struct train_job {
    const fmi_kern *kern;
    float *y, *y2;
    const float *a, *b, *c, *stat;
    const int32_t *row;
    size_t ldy, ldy2, lda, ldb, ldc;
    uint32_t m, n;
    fm_act f;
    float s;
    bool flag;
    fmi_dropout drop;
    uint64_t row0;
} train_job;

static size_t rows_per_part(size_t row_elems)
{
    return (MIN_ELEMS + row_elems - 1) / FM_MAX(row_elems, (size_t)1);
}

static void run_columns(fmi_cpu *cpu, train_job *j, fm_pool_fn fn)
{
    size_t units = (j->n + COLUMN_UNIT - 1) / COLUMN_UNIT;
    fmi_run(cpu, units, rows_per_part((size_t)j->m * COLUMN_UNIT), fn, j);
}

/* ---- layer norm: statistics, then sums over rows (dx may be dy), then dx ---- */

static fm_status stats_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    j->kern->layernorm_stats(j->y + 2 * begin, j->b + begin * j->lda, (uint32_t)(end - begin), j->n,
                             j->lda, j->s);
    return FM_OK;
}

static fm_status norm_columns_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;
    size_t at = begin * COLUMN_UNIT, to = FM_MIN(end * COLUMN_UNIT, (size_t)j->n);

    (void)worker;
    j->kern->layernorm_columns(j->y ? j->y + at : NULL, j->y2 ? j->y2 + at : NULL, j->a + at,
                               j->b + at, j->stat, j->m, (uint32_t)(to - at), j->lda);
    return FM_OK;
}

static fm_status norm_dx_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;
    size_t at = begin * j->lda;

    (void)worker;
    j->kern->layernorm_dx(j->y + at, j->a + at, j->b + at, j->c, j->stat + 2 * begin,
                          (uint32_t)(end - begin), j->n, j->lda, j->flag);
    return FM_OK;
}

void fmi_exact_layernorm_grad(fm_backend *be, float *dx, float *dgain, float *dbias,
                              const float *dy, const float *x, const float *gain, uint32_t m,
                              uint32_t h, size_t ldx, float eps, bool accumulate_dx)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    float *stat = fmi_scratch_get(&cpu->shared, 2 * (size_t)m * sizeof *stat);
    train_job j = {.kern = cpu->kern,
                   .y = stat,
                   .a = dy,
                   .b = x,
                   .c = gain,
                   .stat = stat,
                   .lda = ldx,
                   .m = m,
                   .n = h,
                   .s = eps,
                   .flag = accumulate_dx};

    if (!stat) {
        fmi_stick(cpu, FM_ENOMEM);
        return;
    }
    fmi_run(cpu, m, rows_per_part(h), stats_part, &j);
    j.y = dgain;
    j.y2 = dbias;
    if (dgain || dbias)
        run_columns(cpu, &j, norm_columns_part);
    j.y = dx;
    if (dx)
        fmi_run(cpu, m, rows_per_part(h), norm_dx_part, &j);
}

/* ---- activations and caps ---- */

static fm_status act_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->act_grad(j->f, j->y + i * j->ldy, j->y2 ? j->y2 + i * j->ldy2 : NULL,
                          j->a + i * j->lda, j->b + i * j->ldb, j->c ? j->c + i * j->ldc : NULL,
                          j->n);
    return FM_OK;
}

void fmi_exact_act_grad(fm_backend *be, fm_act f, float *dgate, size_t lddg, float *dup,
                        size_t lddu, const float *dy, size_t lddy, const float *gate, size_t ldg,
                        const float *up, size_t ldu, uint32_t m, uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern,
                   .f = f,
                   .y = dgate,
                   .ldy = lddg,
                   .y2 = dup,
                   .ldy2 = lddu,
                   .a = dy,
                   .lda = lddy,
                   .b = gate,
                   .ldb = ldg,
                   .c = up,
                   .ldc = ldu,
                   .n = n};
    fmi_run(cpu, m, rows_per_part(n), act_grad_part, &j);
}

static fm_status softcap_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->softcap_grad(j->y + i * j->ldy, j->a + i * j->lda, j->n, j->s);
    return FM_OK;
}

void fmi_exact_softcap_grad(fm_backend *be, float *dy, size_t lddy, const float *y, size_t ldy,
                            uint32_t m, uint32_t n, float cap)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern, .y = dy, .ldy = lddy, .a = y, .lda = ldy, .n = n, .s = cap};
    fmi_run(cpu, m, rows_per_part(n), softcap_grad_part, &j);
}

/* ---- scales by column and by row, products of rows ---- */

static fm_status column_dots_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;
    size_t at = begin * COLUMN_UNIT, to = FM_MIN(end * COLUMN_UNIT, (size_t)j->n);

    (void)worker;
    j->kern->column_dots(j->y + at, j->a + at, j->lda, j->b + at, j->ldb, j->m,
                         (uint32_t)(to - at));
    return FM_OK;
}

static fm_status multiply_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->multiply(j->y + i * j->ldy, j->a + i * j->lda, j->c, j->n);
    return FM_OK;
}

void fmi_exact_scale_grad(fm_backend *be, float *dx, size_t lddx, float *dscale, const float *dy,
                          size_t lddy, const float *x, size_t ldx, const float *scale, uint32_t m,
                          uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern,
                   .y = dscale,
                   .a = dy,
                   .lda = lddy,
                   .b = x,
                   .ldb = ldx,
                   .c = scale,
                   .m = m,
                   .n = n};

    if (dscale)
        run_columns(cpu, &j, column_dots_part);
    j.y = dx;
    j.ldy = lddx;
    if (dx)
        fmi_run(cpu, m, rows_per_part(n), multiply_part, &j);
}

static fm_status row_dots_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++) {
        size_t other = j->row ? (size_t)j->row[i] : i;
        j->y[i] = j->kern->dot(j->a + i * j->lda, j->b + other * j->ldb, j->n);
    }
    return FM_OK;
}

void fmi_exact_row_dots(fm_backend *be, float *out, const float *a, size_t lda, const float *b,
                        size_t ldb, const int32_t *rows_of_b, uint32_t m, uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern,
                   .y = out,
                   .a = a,
                   .lda = lda,
                   .b = b,
                   .ldb = ldb,
                   .row = rows_of_b,
                   .n = n};
    fmi_run(cpu, m, rows_per_part(n), row_dots_part, &j);
}

static fm_status scale_rows_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->scale_to(j->y + i * j->ldy, j->a + i * j->lda, j->b[i], j->n);
    return FM_OK;
}

void fmi_exact_scale_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                          const float *w, uint32_t m, uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern, .y = y, .ldy = ldy, .a = x, .lda = ldx, .b = w, .n = n};
    fmi_run(cpu, m, rows_per_part(n), scale_rows_part, &j);
}

/* ---- dropout ---- */

static fm_status dropout_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const train_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->kern->dropout(j->y + i * j->ldy, j->a + i * j->lda, j->n, &j->drop, j->row0 + i);
    return FM_OK;
}

void fmi_exact_dropout(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
                       uint32_t n, float p, uint64_t seed, uint64_t stream, uint64_t row0,
                       bool accumulate)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    train_job j = {.kern = cpu->kern,
                   .y = y,
                   .ldy = ldy,
                   .a = x,
                   .lda = ldx,
                   .n = n,
                   .row0 = row0,
                   .drop = {.seed = seed,
                            .stream = stream,
                            .drop = (uint32_t)((double)p * 65536.0 + 0.5),
                            .scale = 1.0f / (1.0f - p),
                            .accumulate = accumulate}};

    fm_assert(p >= 0.0f && p < 1.0f && row0 + m <= (uint64_t)1 << 40 && n < 1u << 27);
    fmi_run(cpu, m, rows_per_part(n), dropout_part, &j);
}
