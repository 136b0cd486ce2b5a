/* elem_train.c - gradients of layer norm, activations and softcaps, sums over columns, dropout,
 * split over threads: rows, or columns where the sum runs over rows. */
#include "infer/cpu/exact/elem_job.h"

#include "store/base/math/detmath.h"

#include <string.h>

#define MIN_ELEMS 8192u /* fewer are not worth waking a thread */

/* ---- layer norm: statistics, then sums over rows (dx may be dy), then dx ---- */

static void stats_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->layernorm_stats(j->y + 2 * begin, j->b + begin * j->lda, (uint32_t)(end - begin), j->n,
                             j->lda, j->s);
}

static void norm_columns_part(const fmi_elem_job *j, size_t at, size_t to)
{
    j->kern->layernorm_columns(j->y ? j->y + at : NULL, j->y2 ? j->y2 + at : NULL, j->a + at,
                               j->b + at, j->d, j->m, (uint32_t)(to - at), j->lda);
}

static void norm_dx_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    size_t at = begin * j->lda;

    j->kern->layernorm_dx(j->y + at, j->a + at, j->b + at, j->c, j->d + 2 * begin,
                          (uint32_t)(end - begin), j->n, j->lda, j->flag);
}

void fmi_exact_layernorm_grad(fm_backend *be, float *dx, float *dgain, float *dbias,
                              const float *dy, const float *x, const float *gain, uint32_t m,
                              uint32_t h, size_t ldx, float eps, bool accumulate_dx)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    float *stat = fmi_scratch_get(&cpu->shared, 2 * (size_t)m * sizeof *stat);
    fmi_elem_job j = {.y = stat,
                      .a = dy,
                      .b = x,
                      .c = gain,
                      .d = stat,
                      .lda = ldx,
                      .m = m,
                      .n = h,
                      .s = eps,
                      .flag = accumulate_dx};

    if (!stat) {
        fmi_stick(cpu, FM_ENOMEM);
        return;
    }
    fmi_elem_run(be, &j, stats_part, m, fmi_rows_of(MIN_ELEMS, h));
    j.y = dgain;
    j.y2 = dbias;
    if (dgain || dbias)
        fmi_elem_run_columns(be, &j, norm_columns_part, MIN_ELEMS);
    j.y = dx;
    if (dx)
        fmi_elem_run(be, &j, norm_dx_part, m, fmi_rows_of(MIN_ELEMS, h));
}

/* ---- activations and caps ---- */

static void act_grad_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->act_grad(j->f, j->y + i * j->ldy, j->y2 ? j->y2 + i * j->ldy2 : NULL,
                          j->a + i * j->lda, j->b + i * j->ldb, j->c ? j->c + i * j->ldc : NULL,
                          j->n);
}

void fmi_exact_act_grad(fm_backend *be, fm_act f, float *dgate, size_t lddg, float *dup,
                        size_t lddu, const float *dy, size_t lddy, const float *gate, size_t ldg,
                        const float *up, size_t ldu, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {.f = f,
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
    fmi_elem_run(be, &j, act_grad_part, m, fmi_rows_of(MIN_ELEMS, n));
}

static void xielu_grad_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    const double a = (double)j->c[0], b = (double)j->c[1], beta = (double)j->c[2];
    const double eps = (double)j->c[3];

    for (size_t i = begin; i < end; i++)
        for (size_t k = 0; k < j->n; k++) {
            double x = (double)j->b[i * j->ldb + k];
            double slope = x > 0.0 ? 2.0 * a * x : b * (x < eps ? fm_exp(x) - 1.0 : -1.0);
            j->y[i * j->ldy + k] = (float)((double)j->a[i * j->lda + k] * (slope + beta));
        }
}

void fmi_exact_xielu_grad(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                          const float *x, size_t ldx, const float *param, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {
        .y = dx, .ldy = lddx, .a = dy, .lda = lddy, .b = x, .ldb = ldx, .c = param, .n = n};
    fmi_elem_run(be, &j, xielu_grad_part, m, fmi_rows_of(MIN_ELEMS / 8, n));
}

static void softcap_grad_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->softcap_grad(j->y + i * j->ldy, j->a + i * j->lda, j->n, j->s);
}

void fmi_exact_softcap_grad(fm_backend *be, float *dy, size_t lddy, const float *y, size_t ldy,
                            uint32_t m, uint32_t n, float cap)
{
    fmi_elem_job j = {.y = dy, .ldy = lddy, .a = y, .lda = ldy, .n = n, .s = cap};
    fmi_elem_run(be, &j, softcap_grad_part, m, fmi_rows_of(MIN_ELEMS, n));
}

/* ---- scales by column and by row, products of rows ---- */

static void column_dots_part(const fmi_elem_job *j, size_t at, size_t to)
{
    j->kern->column_dots(j->y + at, j->a + at, j->lda, j->b + at, j->ldb, j->m,
                         (uint32_t)(to - at));
}

static void multiply_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->multiply(j->y + i * j->ldy, j->a + i * j->lda, j->c, j->n);
}

void fmi_exact_scale_grad(fm_backend *be, float *dx, size_t lddx, float *dscale, const float *dy,
                          size_t lddy, const float *x, size_t ldx, const float *scale, uint32_t m,
                          uint32_t n)
{
    fmi_elem_job j = {
        .y = dscale, .a = dy, .lda = lddy, .b = x, .ldb = ldx, .c = scale, .m = m, .n = n};

    if (dscale)
        fmi_elem_run_columns(be, &j, column_dots_part, MIN_ELEMS);
    j.y = dx;
    j.ldy = lddx;
    if (dx)
        fmi_elem_run(be, &j, multiply_part, m, fmi_rows_of(MIN_ELEMS, n));
}

static void row_dots_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        size_t other = j->ids ? (size_t)j->ids[i] : i;
        j->y[i] = j->kern->dot(j->a + i * j->lda, j->b + other * j->ldb, j->n);
    }
}

void fmi_exact_row_dots(fm_backend *be, float *out, const float *a, size_t lda, const float *b,
                        size_t ldb, const int32_t *rows_of_b, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {.y = out, .a = a, .lda = lda, .b = b, .ldb = ldb, .ids = rows_of_b, .n = n};
    fmi_elem_run(be, &j, row_dots_part, m, fmi_rows_of(MIN_ELEMS, n));
}

static void scale_rows_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->scale_to(j->y + i * j->ldy, j->a + i * j->lda, j->b[i], j->n);
}

void fmi_exact_scale_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                          const float *w, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {.y = y, .ldy = ldy, .a = x, .lda = ldx, .b = w, .n = n};
    fmi_elem_run(be, &j, scale_rows_part, m, fmi_rows_of(MIN_ELEMS, n));
}

/* ---- dropout ---- */

static void dropout_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->dropout(j->y + i * j->ldy, j->a + i * j->lda, j->n, j->scalars, j->row0 + i);
}

void fmi_exact_dropout(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
                       uint32_t n, float p, uint64_t seed, uint64_t stream, uint64_t row0,
                       bool accumulate)
{
    const fmi_dropout drop = {.seed = seed,
                              .stream = stream,
                              .drop = (uint32_t)((double)p * 65536.0 + 0.5),
                              .scale = 1.0f / (1.0f - p),
                              .accumulate = accumulate};
    fmi_elem_job j = {
        .y = y, .ldy = ldy, .a = x, .lda = ldx, .n = n, .row0 = row0, .scalars = &drop};

    fm_assert(p >= 0.0f && p < 1.0f && row0 + m <= (uint64_t)1 << 40 && n < 1u << 27);
    fmi_elem_run(be, &j, dropout_part, m, fmi_rows_of(MIN_ELEMS, n));
}
