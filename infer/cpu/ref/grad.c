/* grad.c - the oracle's training half: losses, gradients, optimizer, naive and in double. */
#include "infer/cpu/ref/ref.h"

#include <math.h>

void fmi_ref_gemm(fm_backend *be, float *c, size_t ldc, const float *a, size_t lda, bool ta,
                  const float *b, size_t ldb, bool tb, uint32_t m, uint32_t n, uint32_t k,
                  float alpha, bool accumulate)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (uint32_t l = 0; l < k; l++)
                sum += (double)(ta ? a[l * lda + i] : a[i * lda + l]) *
                       (double)(tb ? b[j * ldb + l] : b[l * ldb + j]);
            sum *= (double)alpha;
            c[i * ldc + j] = (float)(accumulate ? (double)c[i * ldc + j] + sum : sum);
        }
}

void fmi_ref_linear_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                       const fm_weight *weight, uint32_t m, bool accumulate)
{
    const fmi_ref_matrix *w = fmi_ref_matrix_of(weight);

    fmi_ref_gemm(be, dx, lddx, dy, lddy, false, w->w, w->k, false, m, w->k, w->n, 1.0f, accumulate);
}

void fmi_ref_bias_grad(fm_backend *be, float *db, const float *dy, size_t lddy, uint32_t m,
                       uint32_t n)
{
    (void)be;
    for (uint32_t j = 0; j < n; j++) {
        double sum = (double)db[j];
        for (uint32_t i = 0; i < m; i++)
            sum += (double)dy[i * lddy + j];
        db[j] = (float)sum;
    }
}

void fmi_ref_embed_grad(fm_backend *be, float *dw, const float *dy, size_t lddy, const int32_t *ids,
                        uint32_t m, uint32_t h)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < h; j++)
            dw[(size_t)ids[i] * h + j] += dy[i * lddy + j];
}

void fmi_ref_rmsnorm_grad(fm_backend *be, float *dx, float *dgain, const float *dy, const float *x,
                          const float *gain, const float *rstd, uint32_t m, uint32_t h, size_t ldx,
                          bool accumulate_dx)
{
    (void)be;
    for (uint32_t j = 0; dgain && j < h; j++) {
        double sum = (double)dgain[j];
        for (uint32_t i = 0; i < m; i++)
            sum += (double)dy[i * ldx + j] * (double)x[i * ldx + j] * (double)rstd[i];
        dgain[j] = (float)sum;
    }
    for (uint32_t i = 0; i < m; i++) {
        const float *xr = x + i * ldx, *dyr = dy + i * ldx;
        double mean = 0.0, r = (double)rstd[i];
        for (uint32_t j = 0; j < h; j++)
            mean += (double)dyr[j] * (double)gain[j] * (double)xr[j] * r / h;
        for (uint32_t j = 0; j < h; j++) {
            double d = r * ((double)dyr[j] * (double)gain[j] - (double)xr[j] * r * mean);
            dx[i * ldx + j] = (float)(accumulate_dx ? (double)dx[i * ldx + j] + d : d);
        }
    }
}

void fmi_ref_swiglu_grad(fm_backend *be, float *dgate, float *dup, const float *dy,
                         const float *gate, const float *up, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++) {
        double g = (double)gate[i], s = 1.0 / (1.0 + exp(-g)), d = (double)dy[i];
        double u = (double)up[i];
        dup[i] = (float)(d * g * s);
        dgate[i] = (float)(d * u * (s + g * s * (1.0 - s)));
    }
}

void fmi_ref_cross_entropy(fm_backend *be, float *loss, float *logits, size_t ld,
                           const int32_t *label, uint32_t m, uint32_t v, float dloss)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        float *x = logits + i * ld;
        double max = (double)-INFINITY, sum = 0.0;
        for (uint32_t j = 0; j < v; j++)
            max = fmax(max, (double)x[j]);
        for (uint32_t j = 0; j < v; j++)
            sum += exp((double)x[j] - max);
        loss[i] = label[i] < 0 ? 0.0f : (float)(max + log(sum) - (double)x[label[i]]);
        for (uint32_t j = 0; j < v; j++) {
            double p = exp((double)x[j] - max) / sum - (j == (uint32_t)label[i] ? 1.0 : 0.0);
            x[j] = label[i] < 0 ? 0.0f : (float)(p * (double)dloss);
        }
    }
}

void fmi_ref_sum_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        *out += (double)x[i] * (double)x[i];
}

void fmi_ref_block_squares(fm_backend *be, double *out, const float *x, uint64_t n)
{
    const uint64_t block = 65536;

    for (uint64_t at = 0; at < n; at += block, out++) {
        *out = 0.0;
        fmi_ref_sum_squares(be, out, x + at, n - at < block ? n - at : block);
    }
}

void fmi_ref_adamw(fm_backend *be, float *p, float *m, float *v, const float *g, uint64_t n,
                   float lr, float beta1, float beta2, float eps, float weight_decay, uint64_t step,
                   float g_scale)
{
    double bias1 = 1.0 - pow((double)beta1, (double)step);
    double bias2 = 1.0 - pow((double)beta2, (double)step);

    (void)be;
    for (uint64_t i = 0; i < n; i++) {
        double grad = (double)g[i] * (double)g_scale, w = (double)p[i];
        double m1 = (double)beta1 * (double)m[i] + (1.0 - (double)beta1) * grad;
        double v1 = (double)beta2 * (double)v[i] + (1.0 - (double)beta2) * grad * grad;
        w -= (double)lr * (double)weight_decay * w;
        w -= (double)lr / bias1 * m1 / (sqrt(v1) / sqrt(bias2) + (double)eps);
        p[i] = (float)w;
        m[i] = (float)m1;
        v[i] = (float)v1;
    }
}

/* Low-rank terms as plain products, which terms.c must equal. */
void fmi_ref_terms(fm_backend *be, const fm_term *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, t++) {
        be->gemm(be, t->u, t->r, t->x, t->ldx, false, t->a, t->in, true, t->m, t->r, t->in, 1.0f,
                 false);
        be->gemm(be, t->y, t->ldy, t->u, t->r, false, t->b, t->r, true, t->m, t->out, t->r,
                 t->scale, true);
    }
}

void fmi_ref_terms_grad(fm_backend *be, const fm_term *t, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, t++) {
        if (t->m == 0)
            continue;
        if (t->db)
            be->gemm(be, t->db, t->r, t->dy, t->lddy, true, t->u, t->r, false, t->out, t->r, t->m,
                     t->scale, true);
        if (!t->da && !t->dx)
            continue;
        be->gemm(be, t->du, t->r, t->dy, t->lddy, false, t->b, t->r, false, t->m, t->r, t->out,
                 t->scale, false);
        if (t->da)
            be->gemm(be, t->da, t->in, t->du, t->r, true, t->x, t->ldx, false, t->r, t->in, t->m,
                     1.0f, true);
        if (t->dx)
            be->gemm(be, t->dx, t->lddx, t->du, t->r, false, t->a, t->in, false, t->m, t->in, t->r,
                     1.0f, true);
    }
}

void fmi_ref_linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                       size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    if (stored_kn)
        be->gemm(be, dw, n, x, ldx, true, dy, lddy, false, k, n, m, 1.0f, true);
    else
        be->gemm(be, dw, k, dy, lddy, true, x, ldx, false, n, k, m, 1.0f, true);
}
