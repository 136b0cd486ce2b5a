/* kern.h - what one instruction set offers: kernels on plain ranges, without threads or checks.
 *
 * kern.c is compiled once per instruction set and fills one fmi_kern; cpu.c chooses among them, in
 * one place. Shapes as in infer/backend.h; "panel" is 32 outputs x k: element (k, j) at
 * [k * FMI_PANEL + j]. */
#ifndef FM_INFER_CPU_KERN_H
#define FM_INFER_CPU_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "infer/act.h"
#include "infer/recurrent.h"

#define FMI_PANEL 32u

/* What is done with a block's sum s: s *= alpha; if add: s = c + s; if bias: s += bias. */
typedef struct fmi_epilogue {
    float alpha;
    bool add;
    const float *bias; /* of the panel's first output, or NULL */
    const float *next; /* the panel that is read after this one, prefetched meanwhile; or NULL */
} fmi_epilogue;

/* g query rows against the same keys: positions first..last (inclusive), pages of 32 positions. */
typedef struct fmi_attn {
    float *out; /* g rows, out_stride apart, hd each */
    const float *q;
    size_t out_stride, q_stride;
    float *lse; /* g values, lse_stride apart, or NULL */
    size_t lse_stride;
    const float *const *kpage; /* [position / 32] -> [hd, 32] */
    const float *const *vpage; /* [position / 32] -> rows of hd, ldv apart */
    size_t ldv;
    float *score; /* scratch: g rows of fmi_attn_score_ld(first, last) */
    uint32_t g, first, last, hd;
    float scale, softcap; /* softcap 0: none */
    const float *sink;    /* [g] or NULL */
    const float *bias;    /* g rows, bias_ld apart, of the positions from `first` on, or NULL */
    size_t bias_ld;
} fmi_attn;

/* One (sequence, key/value head) of training, with its group of g query heads. */
typedef struct fmi_attn_seq {
    const float *q, *k, *v; /* at the group's first query head; rows ldq, ldk, ldk apart */
    size_t ldq, ldk;
    const float *vk, *vv; /* virtual positions, ldvirt apart */
    size_t ldvirt;
    float *out; /* rows ldo apart, also of dout */
    const float *dout;
    size_t ldo;
    float *lse;          /* [g, len] */
    float *dq, *dk, *dv; /* as q, k, v */
    float *dvk, *dvv;    /* [virt, hd] dense; NULL: not wanted */
    /* Pages of [hd, 32] of keys (for the gradient also values); virtual positions come first. */
    const float *const *kpage, *const *vpage;
    uint32_t g, len, virt, hd, window;
    bool encoder;
    float scale, softcap;
    const float *sink; /* [g] or NULL */
    const float *bias; /* g rows, bias_ld apart: at bias_zero is distance 0; NULL: none */
    size_t bias_ld, bias_zero;
} fmi_attn_seq;

typedef struct fmi_adamw {
    float decay, one_less_beta1, beta2, one_less_beta2, step_size, bias2_sqrt, eps, g_scale;
} fmi_adamw;

/* Scalars of distill: 1 / T; factors of the label's and the teacher's gradients; the losses'
 * shares. */
typedef struct fmi_distill {
    float inv_t, own, taught;
    double own_loss, taught_loss;
} fmi_distill;
typedef struct fmi_dropout {
    uint64_t seed, stream;
    uint32_t drop; /* of 65,536: a smaller number drops the element */
    float scale;
    bool accumulate;
} fmi_dropout;

#define FMI_THIN_COLUMNS 8u /* columns of b are readable up to the next multiple of this */

/* c[m, n] = (c +) alpha * a b over one block of k; neither matrix is packed. Element (i, k) of a
 * lies at a[i * lda + k], or if ta at a[k * lda + i]; (k, j) of b at b[k * ldb + j]. */
typedef struct fmi_thin {
    float *c;
    const float *a, *b;
    size_t ldc, lda, ldb;
    uint32_t m, n, k;
    float alpha;
    bool ta, add;
} fmi_thin;

typedef struct fmi_kern {
    const char *isa;
    uint32_t tile_rows; /* rows of a register tile */

    /* ---- products ---- */
    /* Packs rows of a as tiles of [kc, rows of the tile]. Element (i, k) of a lies at a[(rows ?
     * rows[i] : i) * lda + k], or if ta at a[k * lda + i]. */
    void (*pack_a)(float *dst, const float *a, size_t lda, const int32_t *rows, bool ta, uint32_t m,
                   uint32_t kc);
    /* c[m, n] from a packed block and one panel, n <= 32. rows as in pack_a. */
    void (*product)(float *c, size_t ldc, const int32_t *rows, const float *apack, uint32_t m,
                    const float *panel, uint32_t n, uint32_t kc, const fmi_epilogue *epi);
    /* c[j] j < n, from one row a and rows of b, ldb apart: nothing is packed */
    void (*row_product)(float *c, const float *a, const float *b, size_t ldb, uint32_t n,
                        uint32_t kc, const fmi_epilogue *epi);
    /* dst[k * ld_dst + i] = src[i * ld_src + k] for i < n, k < kc. */
    void (*transpose)(float *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t n,
                      uint32_t kc);
    /* dst[k * FMI_PANEL + j] = src[k * ld_src + j] for j < n <= 32 */
    void (*copy_panel)(float *dst, const float *src, size_t ld_src, uint32_t n, uint32_t kc);

    /* ---- elements, norms, losses ---- */
    void (*swiglu)(float *y, const float *gate, const float *up, size_t n);
    void (*swiglu_grad)(float *dgate, float *dup, const float *dy, const float *gate,
                        const float *up, size_t n);
    void (*add)(float *y, const float *x, size_t n);
    void (*scale)(float *y, float s, size_t n);
    void (*layernorm)(float *y, const float *x, const float *gain, const float *bias, uint32_t m,
                      uint32_t h, size_t ldx, float eps);
    /* stat[2 i], stat[2 i + 1] = mean and 1 / deviation of row i, as in layernorm. */
    void (*layernorm_stats)(float *stat, const float *x, uint32_t m, uint32_t h, size_t ldx,
                            float eps);
    void (*layernorm_dx)(float *dx, const float *dy, const float *x, const float *gain,
                         const float *stat, uint32_t m, uint32_t h, size_t ldx, bool accumulate);
    /* dgain[j] += sum over rows ascending of dy * xhat, dbias[j] += of dy; either NULL; j < n */
    void (*layernorm_columns)(float *dgain, float *dbias, const float *dy, const float *x,
                              const float *stat, uint32_t m, uint32_t n, size_t ldx);
    /* dst[j] += sum over rows ascending of dy * x, j < n */
    void (*column_dots)(float *dst, const float *dy, size_t lddy, const float *x, size_t ldx,
                        uint32_t m, uint32_t n);
    void (*act_grad)(fm_act f, float *dgate, float *dup, const float *dy, const float *gate,
                     const float *up, size_t n);
    void (*softcap_grad)(float *dy, const float *y, size_t n, float cap);
    void (*multiply)(float *y, const float *x, const float *w, size_t n); /* y = x * w */
    void (*scale_to)(float *y, const float *x, float s, size_t n);        /* y = x * s */
    float (*dot)(const float *a, const float *b, uint32_t n);
    /* One row: y = (or +=) x * s where its random number is not below `drop` of 65,536, else 0. */
    void (*dropout)(float *y, const float *x, size_t n, const fmi_dropout *d, uint64_t row);
    void (*act)(fm_act f, float *y, const float *gate, const float *up, size_t n);
    void (*softcap)(float *y, size_t n, float cap);
    /* One row: y = sum over j < per of weight[j] * x[row[j]] */
    void (*mix_rows)(float *y, const float *x, size_t ldx, const int32_t *row, const float *weight,
                     uint32_t per, uint32_t n);
    void (*rope)(float *x, size_t ldx, const int32_t *pos, const float *cos, const float *sin,
                 uint32_t m, uint32_t heads, uint32_t hd, bool pairs, bool inverse);
    void (*rmsnorm)(float *y, const float *x, const float *gain, float *rstd, uint32_t m,
                    uint32_t h, size_t ldx, float eps);
    void (*rmsnorm_dx)(float *dx, const float *dy, const float *x, const float *gain,
                       const float *rstd, uint32_t m, uint32_t h, size_t ldx, bool accumulate);
    /* dst[j] += sum over rows ascending of dy (* (x * rstd) if x), j < n */
    void (*column_sum)(float *dst, const float *dy, const float *x, const float *rstd, uint32_t m,
                       uint32_t n, size_t ld);
    void (*logsumexp)(float *lse, const float *logits, size_t ld, uint32_t m, uint32_t v);
    void (*cross_entropy)(float *loss, float *logits, size_t ld, const int32_t *label, uint32_t m,
                          uint32_t v, float dloss);
    void (*distill)(float *loss, float *logits, size_t ld, const float *teacher, size_t ldt,
                    const int32_t *label, uint32_t m, uint32_t v, const fmi_distill *d);
    double (*sum_squares)(const float *x, size_t n);
    void (*adamw)(float *p, float *m, float *v, const float *g, size_t n, const fmi_adamw *o);

    /* Channels begin .. end - 1 of all rows; begin is a multiple of 16. */
    void (*convolve)(const fm_convolve *c, uint32_t begin, uint32_t end);
    void (*convolve_grad)(const fm_convolve_grad *g, uint32_t begin, uint32_t end);
    /* Blocks begin .. end - 1 of all rows: 16 channels of a head each, head by head. */
    void (*scan)(const fm_scan *s, uint32_t begin, uint32_t end);
    /* Units begin .. end - 1: the states before each chunk; all but db and dc of a chunk, whose
     * shares stay in work; and of a chunk's entries, not units, these sums. */
    void (*scan_states)(const fm_scan_grad *g, uint32_t begin, uint32_t end);
    void (*scan_grad)(const fm_scan_grad *g, uint32_t chunk, uint32_t begin, uint32_t end);
    void (*scan_grad_sum)(const fm_scan_grad *g, uint32_t begin, uint32_t end);
    void (*delta)(const fm_delta *d, uint32_t begin, uint32_t end);
    /* The same for heads of values; the sums are dq and dk. */
    void (*delta_states)(const fm_delta_grad *g, uint32_t begin, uint32_t end);
    void (*delta_grad)(const fm_delta_grad *g, uint32_t chunk, uint32_t begin, uint32_t end);
    void (*delta_grad_sum)(const fm_delta_grad *g, uint32_t begin, uint32_t end);

    /* ---- attention ---- */
    void (*attention)(const fmi_attn *job);
    /* Rows row .. row + rows - 1 of one head, at most 4: out, lse. score: scratch [4, ld], ld being
     * the padded virtual and own positions. */
    void (*attn_rows)(const fmi_attn_seq *s, uint32_t head, uint32_t row, uint32_t rows,
                      float *score);
    /* Up to FMI_GRAD_ROWS rows: dq is set; p and ds [rows, ld] are left for attn_spread, which adds
     * the share of these rows in the padded positions from .. to - 1 to dk, dv, dvk, dvv. */
    void (*attn_grad_rows)(const fmi_attn_seq *s, uint32_t head, uint32_t row, uint32_t rows,
                           float *p, float *ds);
    void (*attn_spread)(const fmi_attn_seq *s, uint32_t head, uint32_t row, uint32_t rows,
                        const float *p, const float *ds, uint32_t from, uint32_t to);
    void (*attn_pages)(float *dst, const float *src, size_t ld, uint32_t n, uint32_t hd);

    /* ---- training's products ---- */
    /* Per element a chain of fmaf over ascending k from +0, times alpha, then added to c. */
    void (*thin)(const fmi_thin *t);
    void (*round)(uint16_t *dst, const float *src, size_t n); /* to bf16, nearest even */
    /* dst[i * ld_dst + j] = column j of rows 2 i (low half) and 2 i + 1 of src [k, n] as bf16, to
     * nearest even; an odd k is padded with 0. */
    void (*pairs)(uint32_t *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t n,
                  uint32_t k);
} fmi_kern;

extern const fmi_kern fmi_kern_generic;
#if defined(__x86_64__)
extern const fmi_kern fmi_kern_avx2;
extern const fmi_kern fmi_kern_avx512;
#elif defined(__aarch64__)
extern const fmi_kern fmi_kern_neon;
#endif

/* Number of scores in the pages that hold first..last. */
static inline size_t fmi_attn_score_ld(uint32_t first, uint32_t last)
{
    return (size_t)(last / FMI_PANEL - first / FMI_PANEL + 1) * FMI_PANEL;
}
#define FMI_GRAD_ROWS 8u /* rows of the backward pass that share one walk over the keys */
/* n rounded up to whole pages. */
static inline size_t fmi_attn_padded(uint32_t n)
{
    return ((size_t)n + FMI_PANEL - 1) / FMI_PANEL * FMI_PANEL;
}

#endif
