/* loss.cu - log sum exp, cross entropy, distillation: one block a row of logits.
 *
 * The sum of a row's exponentials is sixteen chains of v / 16 additions, whose order is fixed: 4
 * cycles each, some 40 us for a vocabulary of 262,144. While half a warp adds a piece, sixteen
 * other warps compute the exponentials of the next; several rows share a multiprocessor. With few
 * rows that chain is the limit, with many the exponentials and bytes. Gradients compute the
 * exponentials again instead of keeping them: reading twice costs less than writing and reading. */
#include "infer/cuda/detmath.h"
#include "infer/cuda/rows.h"

#define PIECE 4096u         /* elements of a piece; two pieces are 32 KiB */
#define DISTILL_PIECE 1024u /* two pieces of three arrays are 24 KiB */

FMC_DEVICE float row_exp_sum(float *stat, float *buf, const float *x, uint32_t v, bool wide,
                             float max)
{
    float sum[1];
    fmc_long_sums<1, PIECE>(
        sum, stat, buf, v, wide,
        [&](auto w, uint32_t i, float *tile, uint32_t to) {
            float a[w.value];
            fmc_get(a, x + i);
            for (int j = 0; j < w.value; j++)
                a[j] = fmc_exp(a[j] - max);
            fmc_put(tile + to, a);
        },
        [](uint32_t, const float *tile, uint32_t at, float l) { return l + tile[at]; });
    return sum[0];
}

__global__ void k_logsumexp(float *lse, const float *logits, size_t ld, uint32_t m, uint32_t v,
                            bool wide)
{
    FMC_SHARED(float, buf, [2 * PIECE]);
    FMC_SHARED(float, stat, [32]);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        const float *x = logits + row * ld;
        float max = fmc_block_max(x, v, wide, stat);
        float sum = row_exp_sum(stat, buf, x, v, wide, max);
        if (threadIdx.x == 0)
            lse[row] = (float)((double)max + fmc_log((double)sum));
    }
}

void fmc_op_logsumexp(fm_backend *be, float *lse, const float *logits, size_t ld, uint32_t m,
                      uint32_t v)
{
    fmc_device *d = fmc_of(be);
    if (m > 0)
        FMC_RUN(d, k_logsumexp, fmc_blocks(m, 1), fmc_long<1>::threads, 0, lse, logits, ld, m, v,
                fmc_aligned(logits) && fmc_aligned_ld(ld));
}

FMC_DEVICE void clear_row(float *x, uint32_t v, bool wide)
{
    fmc_span(threadIdx.x, blockDim.x, v, wide, [&](auto w, uint32_t i) {
        float a[w.value];
        for (int j = 0; j < w.value; j++)
            a[j] = 0.0f;
        fmc_put(x + i, a);
    });
}

__global__ void k_cross_entropy(float *loss, float *logits, size_t ld, const int32_t *labels,
                                uint32_t m, uint32_t v, float dloss, bool wide)
{
    FMC_SHARED(float, buf, [2 * PIECE]);
    FMC_SHARED(float, stat, [32]);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        float *x = logits + row * ld;
        int32_t label = labels[row];
        if (label < 0) {
            clear_row(x, v, wide);
            if (threadIdx.x == 0)
                loss[row] = 0.0f;
            continue;
        }
        float target = x[label], max = fmc_block_max(x, v, wide, stat);
        float sum = row_exp_sum(stat, buf, x, v, wide, max), by = dloss / sum;
        fmc_span(threadIdx.x, blockDim.x, v, wide, [&](auto w, uint32_t i) {
            float a[w.value];
            fmc_get(a, x + i);
            for (int j = 0; j < w.value; j++) {
                a[j] = fmc_exp(a[j] - max) * by;
                if (i + (uint32_t)j == (uint32_t)label)
                    a[j] = a[j] - dloss;
            }
            fmc_put(x + i, a);
        });
        if (threadIdx.x == 0)
            loss[row] = (float)((double)max + fmc_log((double)sum) - (double)target);
    }
}

void fmc_op_cross_entropy(fm_backend *be, float *loss, float *logits, size_t ld,
                          const int32_t *label, uint32_t m, uint32_t v, float dloss)
{
    fmc_device *d = fmc_of(be);
    if (m > 0 && v > 0)
        FMC_RUN(d, k_cross_entropy, fmc_blocks(m, 1), fmc_long<1>::threads, 0, loss, logits, ld,
                label, m, v, dloss, fmc_aligned(logits) && fmc_aligned_ld(ld));
}

/* ---- distillation: cpu/kern/loss.h ---- */

typedef struct distill_scalars {
    float inv_t, own, taught;
    double own_loss, taught_loss;
} distill_scalars;

enum { TAUGHT, SOFT, PLAIN };

/* Sums of a row's exponentials: of the teacher's and of z with the temperature, of z without. */
FMC_DEVICE void distill_sums(float (&sum)[3], float *stat, float *buf, const float *z,
                             const float *t, uint32_t v, bool wide, float zmax, float tmax,
                             float inv_t)
{
    fmc_long_sums<3, DISTILL_PIECE>(
        sum, stat, buf, v, wide,
        [&](auto w, uint32_t i, float *tile, uint32_t to) {
            float a[w.value], b[w.value], c[w.value];
            fmc_get(a, t + i);
            fmc_get(b, z + i);
            for (int j = 0; j < w.value; j++) {
                float far = b[j] - zmax;
                a[j] = fmc_exp((a[j] - tmax) * inv_t);
                b[j] = fmc_exp(far * inv_t);
                c[j] = inv_t == 1.0f ? b[j] : fmc_exp(far);
            }
            fmc_put(tile + TAUGHT * DISTILL_PIECE + to, a);
            fmc_put(tile + SOFT * DISTILL_PIECE + to, b);
            fmc_put(tile + PLAIN * DISTILL_PIECE + to, c);
        },
        [](uint32_t chain, const float *tile, uint32_t at, float l) {
            return l + tile[chain * DISTILL_PIECE + at];
        });
}

typedef struct distill_row {
    float zmax, tmax, far; /* far: log of the teacher's sum over the student's */
    float own, q, p;       /* factors of the exponentials */
} distill_row;

/* z becomes the gradient; returns the lane sum of p log(p / q). */
FMC_DEVICE float distill_grad(float *stat, float *buf, float *z, const float *t, uint32_t v,
                              bool wide, int32_t label, const distill_row &r,
                              const distill_scalars &d)
{
    float kl[1];
    fmc_long_sums<2, DISTILL_PIECE>(
        kl, stat, buf, v, wide,
        [&](auto w, uint32_t i, float *tile, uint32_t to) {
            float ps[w.value], fs[w.value], zs[w.value];
            fmc_get(ps, t + i);
            fmc_get(zs, z + i);
            for (int j = 0; j < w.value; j++) {
                float over = zs[j] - r.zmax, a = (ps[j] - r.tmax) * d.inv_t, b = over * d.inv_t;
                float p = fmc_exp(a) * r.p, eb = fmc_exp(b), q = eb * r.q;
                float one = d.inv_t == 1.0f ? eb : fmc_exp(over);
                ps[j] = p;
                fs[j] = (a - b) - r.far;
                zs[j] = fmaf(q - p, d.taught, one * r.own);
                if (i + (uint32_t)j == (uint32_t)label)
                    zs[j] = zs[j] - d.own;
            }
            fmc_put(z + i, zs);
            fmc_put(tile + to, ps);
            fmc_put(tile + DISTILL_PIECE + to, fs);
        },
        [](uint32_t, const float *tile, uint32_t at, float l) {
            return fmaf(tile[at], tile[DISTILL_PIECE + at], l);
        });
    return kl[0];
}

__global__ void k_distill(float *loss, float *logits, size_t ld, const float *teacher, size_t ldt,
                          const int32_t *labels, uint32_t m, uint32_t v, distill_scalars d,
                          bool wide)
{
    FMC_SHARED(float, buf, [2 * 3 * DISTILL_PIECE]);
    FMC_SHARED(float, stat, [32]);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        float *z = logits + row * ld;
        const float *t = teacher + row * ldt;
        int32_t label = labels[row];
        if (label < 0) {
            clear_row(z, v, wide);
            if (threadIdx.x == 0)
                loss[row] = 0.0f;
            continue;
        }
        float target = z[label], sum[3];
        distill_row r;
        r.zmax = fmc_block_max(z, v, wide, stat);
        r.tmax = fmc_block_max(t, v, wide, stat);
        distill_sums(sum, stat, buf, z, t, v, wide, r.zmax, r.tmax, d.inv_t);
        double plain = fmc_log((double)sum[PLAIN]);
        r.far = (float)(fmc_log((double)sum[TAUGHT]) - fmc_log((double)sum[SOFT]));
        r.own = d.own / sum[PLAIN];
        r.q = 1.0f / sum[SOFT];
        r.p = 1.0f / sum[TAUGHT];
        float kl = distill_grad(stat, buf, z, t, v, wide, label, r, d);
        double own = (double)r.zmax + plain - (double)target;
        if (threadIdx.x == 0)
            loss[row] = (float)(d.own_loss * own + d.taught_loss * (double)kl);
    }
}

/* The scalars are computed in double and rounded once. */
void fmc_op_distill(fm_backend *be, float *loss, float *logits, size_t ld, const float *teacher,
                    size_t ldt, const int32_t *label, uint32_t m, uint32_t v, float temperature,
                    float weight, float dloss)
{
    fmc_device *dev = fmc_of(be);
    double t = (double)temperature, w = (double)weight;
    distill_scalars d = {(float)(1.0 / t), (float)((double)dloss * (1.0 - w)),
                         (float)((double)dloss * w * t), 1.0 - w, w * t * t};
    if (m > 0 && v > 0)
        FMC_RUN(dev, k_distill, fmc_blocks(m, 1), fmc_long<3>::threads, 0, loss, logits, ld,
                teacher, ldt, label, m, v, d,
                fmc_aligned(logits, teacher) && fmc_aligned_ld(ld, ldt));
}
