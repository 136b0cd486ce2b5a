/* elem.c - norms, rope, activations, losses and the optimizer, dealt to threads.
 *
 * Rows or elements are dealt; sums over rows (gradients of gains, biases, embeddings) deal columns
 * instead, so that each sum stays with one thread and runs over ascending rows. */
#include "infer/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"

#define MIN_ELEMS 16384u /* fewer are not worth waking a thread */
#define SUM_BLOCK 65536u /* elements of one partial sum of squares, whatever the threads */
#define COLUMN_UNIT 64u  /* columns dealt together */

typedef struct elem_job {
    const fmi_kern *kern;
    float *y, *y2, *y3;
    const float *a, *b, *c, *d;
    const int32_t *ids;
    double *partial;
    size_t n, ld, ld2;
    uint32_t m, h, heads;
    float s;
    bool flag;
    fmi_adamw adamw;
} elem_job;

static size_t rows_per_part(size_t row_elems)
{
    return (MIN_ELEMS + row_elems - 1) / FM_MAX(row_elems, (size_t)1);
}

/* ---- per row ---- */

static fm_status rmsnorm_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->rmsnorm(j->y + begin * j->ld, j->a + begin * j->ld, j->b, j->y2 ? j->y2 + begin : NULL,
                     (uint32_t)(end - begin), j->h, j->ld, j->s);
    return FM_OK;
}

void fmi_exact_rmsnorm(fm_backend *be, float *y, const float *x, const float *gain, float *rstd_out,
                       uint32_t m, uint32_t h, size_t ldx, float eps)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {
        .kern = cpu->kern, .y = y, .y2 = rstd_out, .a = x, .b = gain, .h = h, .ld = ldx, .s = eps};
    fmi_run(cpu, m, rows_per_part(h), rmsnorm_part, &j);
}

static fm_status rope_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->rope(j->y + begin * j->ld, j->ld, j->ids + begin, j->a, j->b, (uint32_t)(end - begin),
                  j->heads, j->h, j->flag);
    return FM_OK;
}

void fmi_exact_rope(fm_backend *be, float *x, size_t ldx, const int32_t *pos,
                    const float *cos_table, const float *sin_table, uint32_t m, uint32_t heads,
                    uint32_t hd, bool inverse)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern,
                  .y = x,
                  .a = cos_table,
                  .b = sin_table,
                  .ids = pos,
                  .h = hd,
                  .heads = heads,
                  .ld = ldx,
                  .flag = inverse};
    fmi_run(cpu, m, rows_per_part((size_t)heads * hd), rope_part, &j);
}

static fm_status lse_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->logsumexp(j->y + begin, j->a + begin * j->ld, j->ld, (uint32_t)(end - begin), j->h);
    return FM_OK;
}

void fmi_exact_logsumexp(fm_backend *be, float *lse, const float *logits, size_t ld, uint32_t m,
                         uint32_t v)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = lse, .a = logits, .ld = ld, .h = v};

    fm_assert(v > 0);
    fmi_run(cpu, m, rows_per_part(v), lse_part, &j);
}

static fm_status xent_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->cross_entropy(j->y + begin, j->y2 + begin * j->ld, j->ld, j->ids + begin,
                           (uint32_t)(end - begin), j->h, j->s);
    return FM_OK;
}

void fmi_exact_cross_entropy(fm_backend *be, float *loss, float *logits, size_t ld,
                             const int32_t *label, uint32_t m, uint32_t v, float dloss)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {
        .kern = cpu->kern, .y = loss, .y2 = logits, .ids = label, .ld = ld, .h = v, .s = dloss};

    for (uint32_t i = 0; i < m; i++)
        fm_assert(label[i] < 0 || (uint32_t)label[i] < v);
    fmi_run(cpu, m, rows_per_part(v), xent_part, &j);
}

/* ---- per element ---- */

static fm_status swiglu_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->swiglu(j->y + begin, j->a + begin, j->b + begin, end - begin);
    return FM_OK;
}

void fmi_exact_swiglu(fm_backend *be, float *y, const float *gate, const float *up, uint64_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = y, .a = gate, .b = up};
    fmi_run(cpu, n, MIN_ELEMS, swiglu_part, &j);
}

static fm_status swiglu_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->swiglu_grad(j->y + begin, j->y2 + begin, j->a + begin, j->b + begin, j->c + begin,
                         end - begin);
    return FM_OK;
}

void fmi_exact_swiglu_grad(fm_backend *be, float *dgate, float *dup, const float *dy,
                           const float *gate, const float *up, uint64_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = dgate, .y2 = dup, .a = dy, .b = gate, .c = up};
    fmi_run(cpu, n, MIN_ELEMS, swiglu_grad_part, &j);
}

static fm_status add_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->add(j->y + begin, j->a + begin, end - begin);
    return FM_OK;
}

void fmi_exact_add(fm_backend *be, float *y, const float *x, uint64_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = y, .a = x};
    fmi_run(cpu, n, 4 * MIN_ELEMS, add_part, &j);
}

static fm_status scale_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->scale(j->y + begin, j->s, end - begin);
    return FM_OK;
}

void fmi_exact_scale(fm_backend *be, float *y, float s, uint64_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = y, .s = s};
    fmi_run(cpu, n, 4 * MIN_ELEMS, scale_part, &j);
}

static fm_status adamw_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->adamw(j->y + begin, j->y2 + begin, j->y3 + begin, j->a + begin, end - begin,
                   &j->adamw);
    return FM_OK;
}

/* The scalars are made in double and rounded once, as PyTorch does. */
void fmi_exact_adamw(fm_backend *be, float *p, float *m, float *v, const float *g, uint64_t n,
                     float lr, float beta1, float beta2, float eps, float weight_decay,
                     uint64_t step, float g_scale)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    double t = (double)step, bias1 = 1.0 - fm_pow((double)beta1, t);
    double bias2 = 1.0 - fm_pow((double)beta2, t);
    elem_job j = {.kern = cpu->kern,
                  .y = p,
                  .y2 = m,
                  .y3 = v,
                  .a = g,
                  .adamw = {.decay = (float)(1.0 - (double)lr * (double)weight_decay),
                            .one_less_beta1 = (float)(1.0 - (double)beta1),
                            .beta2 = beta2,
                            .one_less_beta2 = (float)(1.0 - (double)beta2),
                            .step_size = (float)((double)lr / bias1),
                            .bias2_sqrt = (float)sqrt(bias2),
                            .eps = eps,
                            .g_scale = g_scale}};

    fm_assert(step > 0);
    fmi_run(cpu, n, MIN_ELEMS, adamw_part, &j);
}

static fm_status sum_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        j->partial[i] =
            j->kern->sum_squares(j->a + i * SUM_BLOCK, FM_MIN(SUM_BLOCK, j->n - i * SUM_BLOCK));
    return FM_OK;
}

void fmi_exact_block_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .a = x, .n = n, .partial = out};

    fmi_run(cpu, (n + SUM_BLOCK - 1) / SUM_BLOCK, 1, sum_part, &j);
}

void fmi_exact_sum_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    size_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    double *partial = fmi_scratch_get(&cpu->shared, blocks * sizeof *partial), sum = 0.0;

    if (!partial) {
        fmi_stick(cpu, FM_ENOMEM);
        return;
    }
    fmi_exact_block_squares(be, partial, x, n);
    if (cpu->failed < 0)
        return;
    for (size_t i = 0; i < blocks; i++)
        sum = sum + partial[i];
    *out = *out + sum;
}

/* ---- rows by number ---- */

void fmi_exact_copy_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                         const int32_t *rows_of_x, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        size_t row = rows_of_x ? (size_t)rows_of_x[i] : i;
        memcpy(y + i * ldy, x + row * ldx, n * sizeof *y);
    }
}

/* ---- per column: sums over rows ---- */

static fm_status column_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;
    size_t at = begin * COLUMN_UNIT, to = FM_MIN(end * COLUMN_UNIT, (size_t)j->h);

    (void)worker;
    j->kern->column_sum(j->y + at, j->a + at, j->b ? j->b + at : NULL, j->c, j->m,
                        (uint32_t)(to - at), j->ld);
    return FM_OK;
}

static void run_columns(fmi_cpu *cpu, elem_job *j, fm_pool_fn fn)
{
    size_t units = (j->h + COLUMN_UNIT - 1) / COLUMN_UNIT;
    fmi_run(cpu, units, rows_per_part((size_t)j->m * COLUMN_UNIT), fn, j);
}

void fmi_exact_bias_grad(fm_backend *be, float *db, const float *dy, size_t lddy, uint32_t m,
                         uint32_t n)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = db, .a = dy, .m = m, .h = n, .ld = lddy};
    run_columns(cpu, &j, column_part);
}

static fm_status rmsnorm_dx_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;
    size_t at = begin * j->ld;

    (void)worker;
    j->kern->rmsnorm_dx(j->y + at, j->a + at, j->b + at, j->d, j->c + begin,
                        (uint32_t)(end - begin), j->h, j->ld, j->flag);
    return FM_OK;
}

/* The gain's sums come first: dx may be dy. */
void fmi_exact_rmsnorm_grad(fm_backend *be, float *dx, float *dgain, const float *dy,
                            const float *x, const float *gain, const float *rstd, uint32_t m,
                            uint32_t h, size_t ldx, bool accumulate_dx)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern,
                  .y = dgain,
                  .a = dy,
                  .b = x,
                  .c = rstd,
                  .d = gain,
                  .m = m,
                  .h = h,
                  .ld = ldx,
                  .flag = accumulate_dx};

    if (dgain)
        run_columns(cpu, &j, column_part);
    j.y = dx;
    if (dx)
        fmi_run(cpu, m, rows_per_part(h), rmsnorm_dx_part, &j);
}

static fm_status embed_grad_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;
    size_t at = begin * COLUMN_UNIT, to = FM_MIN(end * COLUMN_UNIT, (size_t)j->h);

    (void)worker;
    for (uint32_t i = 0; i < j->m; i++)
        j->kern->add(j->y + (size_t)j->ids[i] * j->h + at, j->a + i * j->ld + at, to - at);
    return FM_OK;
}

void fmi_exact_embed_grad(fm_backend *be, float *dw, const float *dy, size_t lddy,
                          const int32_t *ids, uint32_t m, uint32_t h)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    elem_job j = {.kern = cpu->kern, .y = dw, .a = dy, .ids = ids, .m = m, .h = h, .ld = lddy};
    run_columns(cpu, &j, embed_grad_part);
}
