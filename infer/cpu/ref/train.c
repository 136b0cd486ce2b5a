/* train.c - the oracle's self-attention of whole sequences, and the gradients of layer norm,
 * activations, softcaps, scales; dropout by the generator itself. Naive, in double. See ref.c. */
#include "infer/cpu/ref/ref.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/math/rng.h"

/* ---- attention: one query head of one sequence; the first `virt` columns are virtual ---- */

typedef struct head {
    const fm_attn_train *a;
    const fm_train_seq *s;
    uint32_t h, kv;
} head;

static const float *q_of(const head *x, uint32_t i)
{
    return x->a->q + (x->s->begin + (size_t)i) * x->a->ldq + (size_t)x->h * x->a->hd;
}

static const float *column(const head *x, const float *own, const float *virtual_rows, uint32_t j)
{
    size_t at = (size_t)x->kv * x->a->hd;
    if (j < x->s->virt)
        return virtual_rows + (size_t)j * x->a->nkv * x->a->hd + at;
    return own + ((size_t)x->s->begin + j - x->s->virt) * x->a->ldk + at;
}

static const float *k_of(const head *x, uint32_t j)
{
    return column(x, x->a->k, x->s->vk, j);
}
static const float *v_of(const head *x, uint32_t j)
{
    return column(x, x->a->v, x->s->vv, j);
}

static bool sees(const head *x, uint32_t i, uint32_t j)
{
    if (j < x->s->virt)
        return true;
    j -= x->s->virt;
    bool near = !x->a->window || (j > i ? j - i : i - j) < x->a->window;
    return near && (x->a->encoder || j <= i);
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t d = 0; d < n; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static double score(const head *x, uint32_t i, uint32_t j)
{
    double s = dot(q_of(x, i), k_of(x, j), x->a->hd) * (double)x->a->scale;
    double cap = (double)x->a->softcap;
    return cap > 0.0 ? cap * tanh(s / cap) : s;
}

/* What is added to the score. */
static double bias_of(const head *x, uint32_t i, uint32_t j)
{
    const fm_attn_train *a = x->a;
    size_t at = (size_t)x->h * a->bias_ld + a->bias_zero + j - x->s->virt - i;
    return x->s->bias ? (double)x->s->bias[at] : 0.0;
}

static double sum_of(const head *x, uint32_t i, uint32_t j)
{
    return score(x, i, j) + bias_of(x, i, j);
}

static double lse_of(const head *x, uint32_t i)
{
    uint32_t n = x->s->virt + x->s->len;
    double max = (double)-INFINITY, sum = 0.0;

    for (uint32_t j = 0; j < n; j++)
        if (sees(x, i, j))
            max = fmax(max, sum_of(x, i, j));
    if (x->s->sink) {
        max = fmax(max, (double)x->s->sink[x->h]);
        sum = exp((double)x->s->sink[x->h] - max);
    }
    for (uint32_t j = 0; j < n; j++)
        if (sees(x, i, j))
            sum += exp(sum_of(x, i, j) - max);
    return max + log(sum);
}

static size_t out_at(const head *x, uint32_t i)
{
    return ((x->s->begin + (size_t)i) * x->a->nh + x->h) * x->a->hd;
}

static void head_forward(const head *x)
{
    uint32_t n = x->s->virt + x->s->len;

    for (uint32_t i = 0; i < x->s->len; i++) {
        double lse = lse_of(x, i);
        x->a->lse[(size_t)x->s->begin * x->a->nh + (size_t)x->h * x->s->len + i] = (float)lse;
        for (uint32_t d = 0; d < x->a->hd; d++) {
            double sum = 0.0;
            for (uint32_t j = 0; j < n; j++)
                if (sees(x, i, j))
                    sum += exp(sum_of(x, i, j) - lse) * (double)v_of(x, j)[d];
            x->a->out[out_at(x, i) + d] = (float)sum;
        }
    }
}

/* dk, dv: [virt + len, hd] in double, of the key/value head; each query head adds to them. */
static void head_backward(const head *x, double *dk, double *dv)
{
    uint32_t n = x->s->virt + x->s->len, hd = x->a->hd;
    double sunk = 0.0;

    for (uint32_t i = 0; i < x->s->len; i++) {
        const float *dout = x->a->dout + out_at(x, i), *q = q_of(x, i);
        double lse = lse_of(x, i), own = dot(dout, x->a->out + out_at(x, i), hd);
        double dq[FM_K_BLOCK] = {0};
        sunk -= x->s->sink ? exp((double)x->s->sink[x->h] - lse) * own : 0.0;
        for (uint32_t j = 0; j < n; j++) {
            if (!sees(x, i, j))
                continue;
            double s = score(x, i, j), p = exp(s + bias_of(x, i, j) - lse),
                   cap = (double)x->a->softcap;
            double ds = p * (dot(dout, v_of(x, j), hd) - own) * (double)x->a->scale;
            ds *= cap > 0.0 ? 1.0 - (s / cap) * (s / cap) : 1.0;
            for (uint32_t d = 0; d < hd; d++) {
                dq[d] += ds * (double)k_of(x, j)[d];
                dk[(size_t)j * hd + d] += ds * (double)q[d];
                dv[(size_t)j * hd + d] += p * (double)dout[d];
            }
        }
        for (uint32_t d = 0; d < hd; d++)
            x->a->dq[(size_t)(q - x->a->q) + d] = (float)dq[d];
    }
    if (x->s->dsink)
        x->s->dsink[x->h] = (float)((double)x->s->dsink[x->h] + sunk);
}

static void put_columns(const head *x, const double *from, float *own, float *virtual_rows)
{
    uint32_t hd = x->a->hd;
    size_t at = (size_t)x->kv * hd;

    for (uint32_t j = 0; j < x->s->virt + x->s->len; j++)
        for (uint32_t d = 0; d < hd; d++) {
            double g = from[(size_t)j * hd + d];
            if (j >= x->s->virt)
                own[((size_t)x->s->begin + j - x->s->virt) * x->a->ldk + at + d] = (float)g;
            else if (virtual_rows)
                virtual_rows[(size_t)j * x->a->nkv * hd + at + d] += (float)g;
        }
}

void fmi_ref_self_attention(fm_backend *be, const fm_attn_train *a)
{
    (void)be;
    for (uint32_t i = 0; i < a->seqs; i++)
        for (uint32_t h = 0; h < a->nh; h++)
            head_forward(&(head){a, &a->seq[i], h, h / (a->nh / a->nkv)});
}

void fmi_ref_self_attention_grad(fm_backend *be, const fm_attn_train *a)
{
    uint32_t group = a->nh / a->nkv;

    (void)be;
    for (uint32_t i = 0; i < a->seqs; i++)
        for (uint32_t kv = 0; kv < a->nkv; kv++) {
            size_t n = ((size_t)a->seq[i].virt + a->seq[i].len) * a->hd;
            double *dk = fm_calloc(2 * n + 1, sizeof *dk);
            head x = {a, &a->seq[i], kv * group, kv};
            fm_assert(dk);
            for (; x.h < (kv + 1) * group; x.h++)
                head_backward(&x, dk, dk + n);
            put_columns(&x, dk, a->dk, x.s->dvk);
            put_columns(&x, dk + n, a->dv, x.s->dvv);
            fm_free(dk);
        }
}

/* ---- layer norm ---- */

void fmi_ref_layernorm_grad(fm_backend *be, float *dx, float *dgain, float *dbias, const float *dy,
                            const float *x, const float *gain, uint32_t m, uint32_t h, size_t ldx,
                            float eps, bool accumulate_dx)
{
    double *sum = fm_calloc(2 * (size_t)h, sizeof *sum);

    (void)be;
    fm_assert(sum);
    for (uint32_t i = 0; i < m; i++) {
        const float *xr = x + i * ldx, *dyr = dy + i * ldx;
        double mean = 0.0, var = 0.0, g_mean = 0.0, gx_mean = 0.0;
        for (uint32_t j = 0; j < h; j++)
            mean += (double)xr[j] / h;
        for (uint32_t j = 0; j < h; j++)
            var += ((double)xr[j] - mean) * ((double)xr[j] - mean) / h;
        double rstd = 1.0 / sqrt(var + (double)eps);
        for (uint32_t j = 0; j < h; j++) {
            double xhat = ((double)xr[j] - mean) * rstd, d = (double)dyr[j];
            sum[j] += d * xhat;
            sum[h + j] += d;
            d *= gain ? (double)gain[j] : 1.0;
            g_mean += d / h;
            gx_mean += d * xhat / h;
        }
        for (uint32_t j = 0; dx && j < h; j++) {
            double xhat = ((double)xr[j] - mean) * rstd;
            double d = (double)dyr[j] * (gain ? (double)gain[j] : 1.0);
            d = rstd * (d - g_mean - xhat * gx_mean);
            dx[i * ldx + j] = (float)(accumulate_dx ? (double)dx[i * ldx + j] + d : d);
        }
    }
    for (uint32_t j = 0; j < h; j++) {
        if (dgain)
            dgain[j] = (float)((double)dgain[j] + sum[j]);
        if (dbias)
            dbias[j] = (float)((double)dbias[j] + sum[h + j]);
    }
    fm_free(sum);
}

/* ---- elements ---- */

static double slope_of(fm_act f, double x)
{
    double s, t;

    switch (f) {
    case FM_ACT_GELU_TANH:
        t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
        s = 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * x * x);
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * s;
    case FM_ACT_GELU:
        s = 0.39894228040143267794 * exp(-0.5 * x * x);
        return 0.5 * erfc(-x / 1.4142135623730950488) + x * s;
    case FM_ACT_RELU:
        return x > 0.0 ? 1.0 : 0.0;
    case FM_ACT_RELU2:
        return x > 0.0 ? 2.0 * x : 0.0;
    case FM_ACT_CLAMPED:
        if (x > (double)FM_ACT_LIMIT)
            return 0.0;
        t = (double)FM_ACT_ALPHA * x;
        s = 1.0 / (1.0 + exp(-t));
        return s + s * t * (1.0 - s);
    case FM_ACT_SIGMOID:
        s = 1.0 / (1.0 + exp(-x));
        return s * (1.0 - s);
    case FM_ACT_SILU:
        break;
    }
    s = 1.0 / (1.0 + exp(-x));
    return s + x * s * (1.0 - s);
}

void fmi_ref_act_grad(fm_backend *be, fm_act f, float *dgate, size_t lddg, float *dup, size_t lddu,
                      const float *dy, size_t lddy, const float *gate, size_t ldg, const float *up,
                      size_t ldu, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double d = (double)dy[i * lddy + j], g = (double)gate[i * ldg + j];
            double u = up ? (double)up[i * ldu + j] : 1.0;
            bool cut = f == FM_ACT_CLAMPED && fabs(u) > (double)FM_ACT_LIMIT;
            if (dup)
                dup[i * lddu + j] = cut ? 0.0f : (float)(d * fmi_ref_f(f, g));
            u = up ? fmi_ref_factor(f, u) : u;
            dgate[i * lddg + j] = (float)(d * u * slope_of(f, g));
        }
}

void fmi_ref_softcap_grad(fm_backend *be, float *dy, size_t lddy, const float *y, size_t ldy,
                          uint32_t m, uint32_t n, float cap)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            double t = (double)y[i * ldy + j] / (double)cap;
            dy[i * lddy + j] = (float)((double)dy[i * lddy + j] * (1.0 - t * t));
        }
}

void fmi_ref_scale_grad(fm_backend *be, float *dx, size_t lddx, float *dscale, const float *dy,
                        size_t lddy, const float *x, size_t ldx, const float *scale, uint32_t m,
                        uint32_t n)
{
    (void)be;
    for (uint32_t j = 0; j < n; j++) {
        double sum = 0.0;
        for (uint32_t i = 0; i < m; i++)
            sum += (double)dy[i * lddy + j] * (double)x[i * ldx + j];
        if (dscale)
            dscale[j] = (float)((double)dscale[j] + sum);
        for (uint32_t i = 0; dx && i < m; i++)
            dx[i * lddx + j] = (float)((double)dy[i * lddy + j] * (double)scale[j]);
    }
}

/* Column j: 16-bit number (j / 16) % 8 of the Philox block (j / 128) * 16 + j % 16 of its row. */
void fmi_ref_dropout(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
                     uint32_t n, float p, uint64_t seed, uint64_t stream, uint64_t row0,
                     bool accumulate)
{
    double limit = floor((double)p * 65536.0 + 0.5);

    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            uint64_t block = (row0 + i) * 16777216u + j / 128 * 16 + j % 16;
            fm_u32x4 r = fm_philox(seed, stream, block);
            uint32_t number = j / 16 % 8, word = r.v[number / 2];
            double half = number % 2 ? word / 65536 : word % 65536;
            double v = half >= limit ? (double)x[i * ldx + j] / (1.0 - (double)p) : 0.0;
            y[i * ldy + j] = (float)(accumulate ? (double)y[i * ldy + j] + v : v);
        }
}

void fmi_ref_row_dots(fm_backend *be, float *out, const float *a, size_t lda, const float *b,
                      size_t ldb, const int32_t *rows_of_b, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        out[i] = (float)dot(a + i * lda, b + (rows_of_b ? (size_t)rows_of_b[i] : i) * ldb, n);
}

void fmi_ref_scale_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                        const float *w, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++)
            y[i * ldy + j] = (float)((double)x[i * ldx + j] * (double)w[i]);
}
