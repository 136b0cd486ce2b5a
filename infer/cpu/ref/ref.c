/* ref.c - the oracle: every operation as its formula reads, sums in double, libm for functions.
 *
 * It shares nothing with the kernels but backend.h, so that an error has to be made twice to pass.
 * Results are rounded to float once, at the end; tests compare within tolerances (KERNELS.md), and
 * check equal bits against their own scalar chains of fmaf. Slow on purpose. */
#include "infer/cpu/ref/ref.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"

fm_status fmi_ref_alloc(fm_backend *be, void **out, size_t bytes)
{
    (void)be;
    *out = fm_aligned_alloc(64, bytes);
    if (!*out)
        return FM_ENOMEM;
    memset(*out, 0, bytes);
    return FM_OK;
}

void fmi_ref_free(fm_backend *be, void *ptr)
{
    (void)be;
    fm_free(ptr);
}

fm_status fmi_ref_upload(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    memcpy(dst, src, bytes);
    return FM_OK;
}

fm_status fmi_ref_download(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    return fmi_ref_upload(be, dst, src, bytes);
}

fm_status fmi_ref_sync(fm_backend *be)
{
    (void)be;
    return FM_OK;
}

static void ref_close(fm_backend *be)
{
    fm_free(be);
}

fm_status fmi_ref_weight_new(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                             uint32_t n, uint32_t k, const void *host_bytes)
{
    fmi_ref_matrix *w = fm_calloc(1, sizeof *w);
    fm_status rc = FM_ENOMEM;

    (void)be;
    (void)role;
    *out = NULL;
    if (!w)
        return FM_ENOMEM;
    *w = (fmi_ref_matrix){n, k, fm_calloc((size_t)n * k, sizeof(float))};
    if (w->w)
        rc = fm_to_f32(w->w, dtype, host_bytes, (uint64_t)n * k);
    if (rc < 0) {
        fm_free(w->w);
        fm_free(w);
        return rc;
    }
    *out = (fm_weight *)(void *)w;
    return FM_OK;
}

fm_status fmi_ref_weight_image_bytes(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                     uint32_t n, uint32_t k)
{
    (void)be;
    (void)role;
    (void)dtype;
    *out = (uint64_t)n * k * sizeof(float);
    return FM_OK;
}

void fmi_ref_weight_free(fm_backend *be, fm_weight *weight)
{
    fmi_ref_matrix *w = fmi_ref_matrix_of(weight);
    (void)be;
    if (w)
        fm_free(w->w);
    fm_free(w);
}

uint64_t fmi_ref_weight_bytes(const fm_weight *weight)
{
    const fmi_ref_matrix *w = fmi_ref_matrix_of(weight);
    return (uint64_t)w->n * w->k * sizeof(float);
}

void fmi_ref_weight_update(fm_backend *be, fm_weight *weight, const float *src)
{
    fmi_ref_matrix *w = fmi_ref_matrix_of(weight);
    (void)be;
    memcpy(w->w, src, (size_t)w->n * w->k * sizeof *src);
}

static const int32_t *segment(const int32_t *rows, const int32_t *from, const int32_t *to,
                              uint32_t *m)
{
    if (!from)
        return rows;
    *m = (uint32_t)(*to - *from);
    return rows + *from;
}

static size_t row_of(const int32_t *rows, uint32_t i)
{
    return rows ? (size_t)rows[i] : i;
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

void fmi_ref_linear(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                    const fm_weight *weight, const float *bias, const int32_t *rows, uint32_t m)
{
    const fmi_ref_matrix *w = fmi_ref_matrix_of(weight);
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t n = 0; n < w->n; n++) {
            size_t row = row_of(rows, i);
            double sum = dot(x + row * ldx, w->w + (size_t)n * w->k, w->k);
            y[row * ldy + n] = (float)(sum + (bias ? (double)bias[n] : 0.0));
        }
}

void fmi_ref_products(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                      const fm_product *list, uint32_t count)
{
    (void)k;
    for (uint32_t i = 0; i < count; i++) {
        fm_product p = list[i];
        p.rows = segment(p.rows, p.from, p.to, &p.m);
        size_t first = p.rows ? 0 : p.first;
        fmi_ref_linear(be, p.y + first * p.ldy, p.ldy, x + first * ldx, ldx, p.w, p.bias, p.rows,
                       p.m);
    }
}

void fmi_ref_lora(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                  uint32_t terms)
{
    (void)be;
    for (uint32_t at = 0; at < terms; at++) {
        fm_lora t = term[at];
        const fmi_ref_matrix *a = fmi_ref_matrix_of(t.a), *b = fmi_ref_matrix_of(t.b);
        t.rows = segment(t.rows, t.from, t.to, &t.m);
        for (uint32_t i = 0; i < t.m; i++) {
            size_t row = t.rows ? (size_t)t.rows[i] : t.first + i;
            for (uint32_t j = 0; j < b->n; j++) {
                double sum = 0.0;
                for (uint32_t l = 0; l < a->n; l++)
                    sum += dot(x + row * ldx, a->w + (size_t)l * k, k) *
                           (double)b->w[(size_t)j * a->n + l];
                float *y = t.y + row * t.ldy + j;
                *y = (float)((double)*y + (double)t.scale * sum);
            }
        }
    }
}

void fmi_ref_affine(fm_backend *be, float *y, size_t ldy, uint32_t n, const float *scale,
                    const float *bias, uint32_t first, uint32_t m, const int32_t *rows)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            float *at = y + (rows ? (size_t)rows[i] : first + i) * ldy + j;
            *at = (float)((double)*at * (scale ? (double)scale[j] : 1.0) +
                          (bias ? (double)bias[j] : 0.0));
        }
}

void fmi_ref_scalings(fm_backend *be, const fm_scaling *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fm_scaling s = list[i];
        s.rows = segment(s.rows, s.from, s.to, &s.m);
        fmi_ref_affine(be, s.y, s.ldy, s.n, s.scale, s.bias, 0, s.m, s.rows);
    }
}

void fmi_ref_embed(fm_backend *be, float *y, size_t ldy, const fm_weight *weight,
                   const int32_t *ids, const int32_t *rows, uint32_t m)
{
    const fmi_ref_matrix *w = fmi_ref_matrix_of(weight);
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        size_t row = row_of(rows, i);
        memcpy(y + row * ldy, w->w + (size_t)ids[row] * w->k, w->k * sizeof *y);
    }
}

void fmi_ref_rmsnorm(fm_backend *be, float *y, const float *x, const float *gain, float *rstd_out,
                     uint32_t m, uint32_t h, size_t ldx, float eps)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        const float *xr = x + i * ldx;
        double rstd = 1.0 / sqrt(dot(xr, xr, h) / h + (double)eps);
        for (uint32_t j = 0; j < h; j++)
            y[i * ldx + j] = (float)((double)xr[j] * rstd * (double)gain[j]);
        if (rstd_out)
            rstd_out[i] = (float)rstd;
    }
}

void fmi_ref_rope(fm_backend *be, float *x, size_t ldx, const int32_t *pos, const float *cos_table,
                  const float *sin_table, uint32_t m, uint32_t heads, uint32_t hd, bool pairs,
                  bool inverse)
{
    uint32_t half = hd / 2, step = pairs ? 2 : 1, apart = pairs ? 1 : half;

    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < heads * half; j++) {
            float *p = x + i * ldx + (size_t)(j / half) * hd + j % half * step;
            double c = (double)cos_table[(size_t)pos[i] * half + j % half];
            double s = (double)sin_table[(size_t)pos[i] * half + j % half];
            double a = (double)p[0], b = (double)p[apart];
            s = inverse ? -s : s;
            p[0] = (float)(a * c - b * s);
            p[apart] = (float)(b * c + a * s);
        }
}

void fmi_ref_swiglu(fm_backend *be, float *y, const float *gate, const float *up, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++) {
        double g = (double)gate[i];
        y[i] = (float)(g / (1.0 + exp(-g)) * (double)up[i]);
    }
}

void fmi_ref_add(fm_backend *be, float *y, const float *x, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        y[i] += x[i];
}

void fmi_ref_scale(fm_backend *be, float *y, float s, uint64_t n)
{
    (void)be;
    for (uint64_t i = 0; i < n; i++)
        y[i] *= s;
}

void fmi_ref_copy_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                       const int32_t *rows_of_x, uint32_t m, uint32_t n)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++)
            y[i * ldy + j] = x[row_of(rows_of_x, i) * ldx + j];
}

static size_t kv_base(uint32_t page, uint32_t head, uint32_t nkv, uint32_t hd)
{
    return ((size_t)page * nkv + head) * hd * FM_KV_PAGE;
}

void fmi_ref_kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                      size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < nkv * hd; j++) {
            uint32_t page = (uint32_t)slot[i] / FM_KV_PAGE, at = (uint32_t)slot[i] % FM_KV_PAGE;
            size_t base = kv_base(page, j / hd, nkv, hd);
            ((float *)kv.k)[base + (size_t)(j % hd) * FM_KV_PAGE + at] = k[i * ldk + j];
            ((float *)kv.v)[base + (size_t)at * hd + j % hd] = v[i * ldv + j];
        }
}

size_t fmi_ref_kv_page_bytes(const fm_backend *be, uint32_t nkv, uint32_t hd)
{
    (void)be;
    return (size_t)nkv * hd * FM_KV_PAGE * sizeof(float);
}

void fmi_ref_kv_copy(fm_backend *be, fm_kv_view kv, int32_t dst, int32_t src, uint32_t nkv,
                     uint32_t hd)
{
    size_t n = (size_t)nkv * hd * FM_KV_PAGE;
    float *all[] = {kv.k, kv.v};

    (void)be;
    for (size_t i = 0; i < 2 * n; i++)
        all[i / n][(size_t)dst * n + i % n] = all[i / n][(size_t)src * n + i % n];
}

/* The cache entry of one position: its page's place and its offset in the page. */
static size_t kv_at(const int32_t *table, uint32_t pos, uint32_t head, uint32_t nkv, uint32_t hd,
                    uint32_t *offset)
{
    *offset = pos % FM_KV_PAGE;
    return kv_base((uint32_t)table[pos / FM_KV_PAGE], head, nkv, hd);
}

static double paged_score(const float *q, fm_kv_view kv, const int32_t *table, uint32_t pos,
                          uint32_t head, uint32_t nkv, uint32_t hd)
{
    uint32_t at;
    size_t base = kv_at(table, pos, head, nkv, hd, &at);
    double sum = 0.0;

    for (uint32_t d = 0; d < hd; d++)
        sum += (double)q[d] * (double)((float *)kv.k)[base + (size_t)d * FM_KV_PAGE + at];
    return sum;
}

/* The score of query head h of row i at position pos; q: its elements. */
static double ref_score(const fm_attn *a, const int32_t *table, const float *q, uint32_t pos,
                        uint32_t i, uint32_t h)
{
    uint32_t head = h / (a->nh / a->nkv);
    double s = (double)a->scale * paged_score(q, a->kv, table, pos, head, a->nkv, a->hd);
    double cap = (double)a->softcap;
    s = cap > 0.0 ? cap * tanh(s / cap) : s;
    if (a->bias)
        s += (double)a->bias[(size_t)h * a->bias_ld +
                             (a->bias_zero + pos - (uint32_t)(a->own ? a->own : a->pos)[i])];
    return s;
}

void fmi_ref_attention(fm_backend *be, const fm_attn *a)
{
    (void)be;
    for (uint32_t u = 0; u < a->m * a->nh; u++) {
        uint32_t i = u / a->nh, h = u % a->nh, kvh = h / (a->nh / a->nkv);
        uint32_t last = (uint32_t)a->pos[i];
        uint32_t first = a->window && last + 1 > a->window ? last + 1 - a->window : 0;
        first = a->first ? FM_MAX(first, (uint32_t)a->first[i]) : first;
        const int32_t *t = a->table + (size_t)a->seq[i] * a->table_stride;
        const float *qh = a->q + i * a->ldq + (size_t)h * a->hd;
        double max = (double)-INFINITY, total = 0.0, sum[FM_K_BLOCK] = {0};
        for (uint32_t p = first; p <= last; p++)
            max = fmax(max, ref_score(a, t, qh, p, i, h));
        if (a->sink) {
            max = fmax(max, (double)a->sink[h]);
            total = exp((double)a->sink[h] - max);
        }
        for (uint32_t p = first; p <= last; p++) {
            uint32_t at;
            size_t base = kv_at(t, p, kvh, a->nkv, a->hd, &at);
            double e = exp(ref_score(a, t, qh, p, i, h) - max);
            total += e;
            for (uint32_t d = 0; d < a->hd; d++)
                sum[d] += e * (double)((float *)a->kv.v)[base + (size_t)at * a->hd + d];
        }
        for (uint32_t d = 0; d < a->hd; d++)
            a->out[i * a->ldo + (size_t)h * a->hd + d] = (float)(sum[d] / total);
    }
}

void fmi_ref_logsumexp(fm_backend *be, float *lse, const float *logits, size_t ld, uint32_t m,
                       uint32_t v)
{
    (void)be;
    for (uint32_t i = 0; i < m; i++) {
        double max = (double)-INFINITY, sum = 0.0;
        for (uint32_t j = 0; j < v; j++)
            max = fmax(max, (double)logits[i * ld + j]);
        for (uint32_t j = 0; j < v; j++)
            sum += exp((double)logits[i * ld + j] - max);
        lse[i] = (float)(max + log(sum));
    }
}

fm_status fm_backend_cpu_ref(fm_backend **out)
{
    fm_backend *be = fm_calloc(1, sizeof *be);

    *out = be;
    if (!be)
        return FM_ENOMEM;
    *be = (fm_backend){.name = "cpu-ref",
                       .mode = "oracle",
                       .kernel_class = "oracle-f64",
                       .isa = "plain",
                       .host_visible = true,
                       .attends = FM_ATTENDS_SINK | FM_ATTENDS_FIRST | FM_ATTENDS_TRAIN_SINK |
                                  FM_ATTENDS_WIDE,
                       .close = ref_close,
#define SLOT(op) .op = fmi_ref_##op,
                       FMI_REF_OPS(SLOT)
#undef SLOT
    };
    return FM_OK;
}
