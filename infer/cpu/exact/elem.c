/* elem.c - norms, rope, activations, losses and the optimizer, split over threads.
 *
 * Rows or elements are split; sums over rows (gradients of gains, biases, embeddings) split columns
 * instead, so that one thread computes each sum over ascending rows. */
#include "infer/cpu/exact/elem_job.h"

#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"

#define MIN_ELEMS 16384u /* fewer are not worth waking a thread */
#define SUM_BLOCK 65536u /* elements of one partial sum of squares, whatever the threads */
#define COLUMN_UNIT 64u  /* columns that go to one thread together */

static fm_status run_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const fmi_elem_job *j = ctx;

    (void)worker;
    j->part(j, begin * j->unit, FM_MIN(end * j->unit, j->count));
    return FM_OK;
}

void fmi_elem_run(fm_backend *be, fmi_elem_job *j, fmi_elem_fn part, size_t count, size_t least)
{
    fmi_cpu *cpu = fmi_cpu_of(be);

    j->kern = cpu->kern;
    j->part = part;
    j->count = count;
    j->unit = 1;
    fmi_run(cpu, count, least, run_part, j);
}

void fmi_elem_run_columns(fm_backend *be, fmi_elem_job *j, fmi_elem_fn part, size_t least)
{
    fmi_cpu *cpu = fmi_cpu_of(be);

    j->kern = cpu->kern;
    j->part = part;
    j->count = j->n;
    j->unit = COLUMN_UNIT;
    fmi_run(cpu, (j->count + COLUMN_UNIT - 1) / COLUMN_UNIT,
            fmi_rows_of(least, (size_t)j->m * COLUMN_UNIT), run_part, j);
}

/* ---- per row ---- */

static void rmsnorm_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->rmsnorm(j->y + begin * j->lda, j->a + begin * j->lda, j->b,
                     j->y2 ? j->y2 + begin : NULL, (uint32_t)(end - begin), j->n, j->lda, j->s);
}

void fmi_exact_rmsnorm(fm_backend *be, float *y, const float *x, const float *gain, float *rstd_out,
                       uint32_t m, uint32_t h, size_t ldx, float eps)
{
    fmi_elem_job j = {.y = y, .y2 = rstd_out, .a = x, .b = gain, .n = h, .lda = ldx, .s = eps};
    fmi_elem_run(be, &j, rmsnorm_part, m, fmi_rows_of(MIN_ELEMS, h));
}

static void rope_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->rope(j->y + begin * j->lda, j->lda, j->ids + begin, j->a, j->b,
                  (uint32_t)(end - begin), j->per, j->n, j->m, j->flag);
}

void fmi_exact_rope(fm_backend *be, float *x, size_t ldx, const int32_t *pos,
                    const float *cos_table, const float *sin_table, uint32_t m, uint32_t heads,
                    uint32_t hd, bool pairs, bool inverse)
{
    fmi_elem_job j = {.y = x,
                      .a = cos_table,
                      .b = sin_table,
                      .ids = pos,
                      .n = hd,
                      .per = heads,
                      .lda = ldx,
                      .m = pairs,
                      .flag = inverse};
    fmi_elem_run(be, &j, rope_part, m, fmi_rows_of(MIN_ELEMS, (size_t)heads * hd));
}

static void lse_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->logsumexp(j->y + begin, j->a + begin * j->lda, j->lda, (uint32_t)(end - begin), j->n);
}

void fmi_exact_logsumexp(fm_backend *be, float *lse, const float *logits, size_t ld, uint32_t m,
                         uint32_t v)
{
    fmi_elem_job j = {.y = lse, .a = logits, .lda = ld, .n = v};

    fm_assert(v > 0);
    fmi_elem_run(be, &j, lse_part, m, fmi_rows_of(MIN_ELEMS, v));
}

static void xent_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->cross_entropy(j->y + begin, j->y2 + begin * j->lda, j->lda, j->ids + begin,
                           (uint32_t)(end - begin), j->n, j->s);
}

void fmi_exact_cross_entropy(fm_backend *be, float *loss, float *logits, size_t ld,
                             const int32_t *label, uint32_t m, uint32_t v, float dloss)
{
    fmi_elem_job j = {.y = loss, .y2 = logits, .ids = label, .lda = ld, .n = v, .s = dloss};

    for (uint32_t i = 0; i < m; i++)
        fm_assert(label[i] < 0 || (uint32_t)label[i] < v);
    fmi_elem_run(be, &j, xent_part, m, fmi_rows_of(MIN_ELEMS, v));
}

/* ---- per element ---- */

static void swiglu_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->swiglu(j->y + begin, j->a + begin, j->b + begin, end - begin);
}

void fmi_exact_swiglu(fm_backend *be, float *y, const float *gate, const float *up, uint64_t n)
{
    fmi_elem_job j = {.y = y, .a = gate, .b = up};
    fmi_elem_run(be, &j, swiglu_part, n, MIN_ELEMS);
}

static void swiglu_grad_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->swiglu_grad(j->y + begin, j->y2 + begin, j->a + begin, j->b + begin, j->c + begin,
                         end - begin);
}

void fmi_exact_swiglu_grad(fm_backend *be, float *dgate, float *dup, const float *dy,
                           const float *gate, const float *up, uint64_t n)
{
    fmi_elem_job j = {.y = dgate, .y2 = dup, .a = dy, .b = gate, .c = up};
    fmi_elem_run(be, &j, swiglu_grad_part, n, MIN_ELEMS);
}

static void add_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->add(j->y + begin, j->a + begin, end - begin);
}

void fmi_exact_add(fm_backend *be, float *y, const float *x, uint64_t n)
{
    fmi_elem_job j = {.y = y, .a = x};
    fmi_elem_run(be, &j, add_part, n, 4 * MIN_ELEMS);
}

static void scale_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->scale(j->y + begin, j->s, end - begin);
}

void fmi_exact_scale(fm_backend *be, float *y, float s, uint64_t n)
{
    fmi_elem_job j = {.y = y, .s = s};
    fmi_elem_run(be, &j, scale_part, n, 4 * MIN_ELEMS);
}

static void adamw_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->adamw(j->y + begin, j->y2 + begin, j->y3 + begin, j->a + begin, end - begin,
                   j->scalars);
}

/* The scalars are computed in double and rounded once, as in PyTorch. */
void fmi_exact_adamw(fm_backend *be, float *p, float *m, float *v, const float *g, uint64_t n,
                     float lr, float beta1, float beta2, float eps, float weight_decay,
                     uint64_t step, float g_scale)
{
    double t = (double)step, bias1 = 1.0 - fm_pow((double)beta1, t);
    double bias2 = 1.0 - fm_pow((double)beta2, t);
    const fmi_adamw scalars = {.decay = (float)(1.0 - (double)lr * (double)weight_decay),
                               .one_less_beta1 = (float)(1.0 - (double)beta1),
                               .beta2 = beta2,
                               .one_less_beta2 = (float)(1.0 - (double)beta2),
                               .step_size = (float)((double)lr / bias1),
                               .bias2_sqrt = (float)sqrt(bias2),
                               .eps = eps,
                               .g_scale = g_scale};
    fmi_elem_job j = {.y = p, .y2 = m, .y3 = v, .a = g, .scalars = &scalars};

    fm_assert(step > 0);
    fmi_elem_run(be, &j, adamw_part, n, MIN_ELEMS);
}

static void sum_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->partial[i] =
            j->kern->sum_squares(j->a + i * SUM_BLOCK, FM_MIN(SUM_BLOCK, j->elems - i * SUM_BLOCK));
}

void fmi_exact_block_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    fmi_elem_job j = {.a = x, .elems = n, .partial = out};
    fmi_elem_run(be, &j, sum_part, (n + SUM_BLOCK - 1) / SUM_BLOCK, 1);
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

static void affine_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float *y = j->y + (j->ids ? (size_t)j->ids[i] : i) * j->ldy;
        for (uint32_t c = 0; j->a && c < j->n; c++)
            y[c] = y[c] * j->a[c];
        for (uint32_t c = 0; j->b && c < j->n; c++)
            y[c] = y[c] + j->b[c];
    }
}

void fmi_exact_affine(fm_backend *be, float *y, size_t ldy, uint32_t n, const float *scale,
                      const float *bias, uint32_t first, uint32_t m, const int32_t *rows)
{
    fmi_elem_job j = {
        .y = y + (rows ? 0 : first * ldy), .ldy = ldy, .a = scale, .b = bias, .ids = rows, .n = n};
    fmi_elem_run(be, &j, affine_part, m, fmi_rows_of(4 * MIN_ELEMS, n));
}

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

static void column_part(const fmi_elem_job *j, size_t at, size_t to)
{
    j->kern->column_sum(j->y + at, j->a + at, j->b ? j->b + at : NULL, j->c, j->m,
                        (uint32_t)(to - at), j->lda);
}

void fmi_exact_bias_grad(fm_backend *be, float *db, const float *dy, size_t lddy, uint32_t m,
                         uint32_t n)
{
    fmi_elem_job j = {.y = db, .a = dy, .m = m, .n = n, .lda = lddy};
    fmi_elem_run_columns(be, &j, column_part, MIN_ELEMS);
}

static void rmsnorm_dx_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    size_t at = begin * j->lda;

    j->kern->rmsnorm_dx(j->y + at, j->a + at, j->b + at, j->d, j->c + begin,
                        (uint32_t)(end - begin), j->n, j->lda, j->flag);
}

/* The gain's sums come first: dx may be dy. */
void fmi_exact_rmsnorm_grad(fm_backend *be, float *dx, float *dgain, const float *dy,
                            const float *x, const float *gain, const float *rstd, uint32_t m,
                            uint32_t h, size_t ldx, bool accumulate_dx)
{
    fmi_elem_job j = {.y = dgain,
                      .a = dy,
                      .b = x,
                      .c = rstd,
                      .d = gain,
                      .m = m,
                      .n = h,
                      .lda = ldx,
                      .flag = accumulate_dx};

    if (dgain)
        fmi_elem_run_columns(be, &j, column_part, MIN_ELEMS);
    j.y = dx;
    if (dx)
        fmi_elem_run(be, &j, rmsnorm_dx_part, m, fmi_rows_of(MIN_ELEMS, h));
}

static void embed_grad_part(const fmi_elem_job *j, size_t at, size_t to)
{
    for (uint32_t i = 0; i < j->m; i++)
        j->kern->add(j->y + (size_t)j->ids[i] * j->n + at, j->a + i * j->lda + at, to - at);
}

void fmi_exact_embed_grad(fm_backend *be, float *dw, const float *dy, size_t lddy,
                          const int32_t *ids, uint32_t m, uint32_t h)
{
    fmi_elem_job j = {.y = dw, .a = dy, .ids = ids, .m = m, .n = h, .lda = lddy};
    fmi_elem_run_columns(be, &j, embed_grad_part, MIN_ELEMS);
}
