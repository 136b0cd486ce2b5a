/* backend.h - the seam between the engines and a device: buffers and a flat table of operations.
 *
 * Device memory is plain addresses (float *, int32_t *) that fm_backend.alloc returns; only
 * operations, upload and download may touch that memory unless host_visible is true. Index arrays
 * (rows, ids, pos, tables) are device memory too. Operations are queued in order and return
 * nothing: the first failure is kept until sync returns it, and operations behind the failure may
 * do nothing until then (uploads still happen). A NULL slot is an operation that this device lacks:
 * a caller that needs it checks first (fm_backend_lacks) and refuses by name; nothing is silently
 * run on another device.
 *
 * A device may run an operation later. What an operation gets in host memory (scalars, lists) is
 * read before the call returns, and so are the bytes that upload copies: the caller may overwrite
 * both at once. upload, free and weight_free are queued behind the operations of the same thread:
 * operations queued earlier still see the old bytes. The host sees results only after download,
 * sync or wait.
 *
 * In mode exact all arithmetic is float32 in the order that DESIGN section 10 fixes: per output a
 * chain of fmaf over ascending k, restarted every FM_K_BLOCK, block sums added in ascending order
 * (the first block's sum is the start, not 0 + sum); vectors run over outputs. Other reductions run
 * over FM_LANES lanes (element i into lane i % FM_LANES, ascending), then the lanes are folded by
 * halves (lane l += lane l + 8, then 4, 2, 1). So a row's result depends on that row alone: not on
 * M, on other rows, on threads or on the CPU. cpu/ref/ref.c states each operation naively;
 * KERNELS.md has the contracts and tolerances.
 *
 * Dims: M rows of a step, H hidden, I intermediate, V vocabulary, NH query heads, NKV key/value
 * heads, HD head size, B batch, T sequence length. Matrices are row-major; ld* count floats. */
#ifndef FM_INFER_BACKEND_H
#define FM_INFER_BACKEND_H

#include "infer/act.h"
#include "infer/recurrent.h"
#include "store/base/os/pool.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

#define FM_K_BLOCK 512
#define FM_LANES 16
#define FM_KV_PAGE 32 /* positions of one page of the KV cache */

typedef struct fm_backend fm_backend;
/* A matrix [N, K] in the device's layout for its role; immutable but for weight_update. */
typedef struct fm_weight fm_weight;

/* What a matrix is used for, which decides its layout. */
typedef enum fm_role {
    FM_ROLE_LINEAR, /* [n, k] of linear, products, embed */
    FM_ROLE_LORA_A, /* [r, k] */
    FM_ROLE_LORA_B, /* [n, r] */
} fm_role;

/* A rope table is cos and sin [positions, HD/2] f32, already scaled by the attention factor. */

/* Pages of keys and values: page p begins at k + p * kv_page_bytes, v likewise. The layout inside a
 * page is the backend's; mode exact has f32 k [NKV, HD, FM_KV_PAGE] and v [NKV, FM_KV_PAGE, HD]. */
typedef struct fm_kv_view {
    void *k, *v;
} fm_kv_view;

/* Rows of a list: first, first + 1, .. (rows NULL), or the m row numbers in rows (device). Where
 * only the device knows how many rows there are (from and to not NULL, both device): the row
 * numbers rows[*from] .. rows[*to - 1], at most m of them; rows then holds `listed` numbers. In one
 * list of operations, segments of the same rows array come in ascending order of from, and a
 * segment may repeat only directly behind itself. */

/* One product of a list that shares x: y[row, 0..n) = x[row, 0..k) W^T (+ bias[n], added last). */
typedef struct fm_product {
    float *y;
    size_t ldy;
    const fm_weight *w;
    const float *bias; /* [n] or NULL */
    uint32_t first, m;
    const int32_t *rows;
    bool split; /* a mode that rounds x to bf16 keeps the remainder as a second bf16 */
    const int32_t *from, *to;
    uint32_t listed;
    const float *grain; /* of each row, where x was made by round_rows; NULL: it was not */
} fm_product;

/* One low-rank term of a list that shares x: y[row, 0..n) += scale * ((x[row] A^T) B^T). */
typedef struct fm_lora {
    float *y;
    size_t ldy;
    const fm_weight *a, *b; /* [r, k], [n, r] */
    float scale;
    uint32_t first, m;
    const int32_t *rows;
    const int32_t *from, *to;
    uint32_t listed;
} fm_lora;

/* y[row, 0..n) = y * scale (if not NULL), then + bias (if not NULL), on listed rows. */
typedef struct fm_scaling {
    float *y;
    size_t ldy;
    uint32_t n;
    const float *scale, *bias; /* [n] */
    uint32_t m;
    const int32_t *rows, *from, *to;
} fm_scaling;

/* The choice of experts for each row. An expert's share is its part of the softmax of score[i], or
 * (sigmoid) 1 / (1 + e^-score). Row i gets the `chosen` experts with the largest values; of equal
 * values the lower expert wins (a NaN is never larger than another value). A value is the score, or
 * (sigmoid, bias or groups) the share rounded, plus the bias. groups: experts stand in that many
 * groups of equal size, one after another; only the groups_kept groups with the largest sums of
 * their two largest values (groups_best: with the largest value) are chosen from, of equal ones the
 * lower. The weights of row i are the shares of its experts, or (renormalise) these over the sum
 * of the chosen ones, which is at least `least`, or to which (sigmoid) `more` is added; then times
 * scale. They are computed in double, ascending, rounded at the end. jitter (PhiMoE's sparse
 * mixer, which knows none of the above and chooses 2): the first expert has the largest score s,
 * and its weight is its share among the experts e with (s - score[e]) / max(|score[e]|, s) <= 2
 * jitter; the second likewise among the others. Choice number i * chosen + j is row i's j-th
 * expert, experts ascending. */
typedef struct fm_route {
    const float *score; /* [m, experts], ld apart */
    size_t ld;
    uint32_t m, experts, chosen;
    bool renormalise, sigmoid;
    bool by_score; /* the choice goes by the scores of sigmoids too; without bias and groups */
    uint32_t groups, groups_kept; /* 0: none */
    bool groups_best;
    const float *bias;    /* [m, experts], for the choice alone; NULL: none */
    double least, more;   /* one of them is 0 */
    float scale, jitter;  /* 0: none */
    const int32_t *bound; /* [parts + 1] ascending: part p has rows bound[p] .. bound[p + 1] - 1 */
    uint32_t parts;
    float *weight;   /* [m, chosen] */
    int32_t *expert; /* [m, chosen] */
    int32_t *list;   /* [m * chosen] choice numbers of expert 0, then of 1, ..; ascending in each */
    int32_t *begin;  /* [experts * parts + 1] element e * parts + p: where in list expert e's
                      * choices of part p begin; the last one: m * chosen */
    int32_t *slot;   /* [m, chosen] where in list each choice stands; NULL: not wanted */
} fm_route;

/* Row i attends to positions max(0, pos[i]-window+1) .. pos[i] (window 0: all up to pos[i]) of
 * sequence seq[i], whose position t lies in page table[seq[i] * table_stride + t / FM_KV_PAGE].
 * Consecutive rows of one sequence have ascending positions, or in an encoder all the same
 * position: each row sees the whole text. Scores are s = (q . k) * scale, then softcap * tanh(s /
 * softcap) where softcap > 0, then + bias; then softmax of the scores and the weighted sum of v,
 * both over ascending positions. A sink is one more score of its head, before the first position,
 * whose share of the softmax falls away. The bias of head h, row i and position t is the number at
 * bias_zero + t - own[i] of the table's row h. Of a device, fm_backend.attends says which of the
 * optional fields it reads. */
typedef struct fm_attn {
    float *out; /* [m, NH*HD], ldo apart */
    size_t ldo;
    const float *q; /* likewise */
    size_t ldq;
    fm_kv_view kv;
    const int32_t *table;
    uint32_t table_stride;
    const int32_t *seq, *pos; /* [m] */
    uint32_t m, nh, nkv, hd;
    uint32_t window;
    float scale, softcap;
    const float *sink;    /* [NH]; NULL: none. FM_ATTENDS_SINK */
    const int32_t *first; /* [m], ascending as pos is: row i sees nothing before first[i] either;
                           * NULL: no such bound. FM_ATTENDS_FIRST */
    const float *bias;    /* [NH, bias_ld] by distance; NULL: none. FM_ATTENDS_BIAS */
    uint32_t bias_ld, bias_zero;
    const int32_t *own; /* [m] each row's own position, for the bias; NULL: pos */
    bool single;        /* each row is of another sequence; false is always correct */
} fm_attn;

#define FM_ATTENDS_SINK 1u
#define FM_ATTENDS_FIRST 2u
#define FM_ATTENDS_TRAIN_SINK 4u /* fm_train_seq.sink */
#define FM_ATTENDS_BIAS 8u
#define FM_ATTENDS_TRAIN_BIAS 16u   /* fm_train_seq.bias */
#define FM_ATTENDS_TRAIN_WINDOW 32u /* fm_attn_train.window of an encoder */
#define FM_ATTENDS_WIDE 64u         /* fm_attn.hd above 256 */

/* Rows of q and of new keys and values, the arguments of fm_backend.keep_rows. */
typedef struct fm_new_rows {
    fm_kv_view kv;
    float *q, *k; /* [m, NH*HD] ldq apart, [m, NKV*HD] ldk apart; k is lost */
    const float *v;
    size_t ldq, ldk, ldv;
    const int32_t *slot, *pos; /* [m] */
    const float *cos, *sin;    /* [positions, turns / 2] */
    uint32_t m, nh, nkv, hd, turns;
} fm_new_rows;

/* One low-rank term on m rows, y += scale * (x A^T) B^T; x, y, dx and dy point to the first row.
 * Terms of one call may share x (q, k and v do) and dx, and no other memory. */
typedef struct fm_term {
    const float *a, *b; /* [r, in], [out, r] */
    uint32_t in, out, r, m;
    float scale;
    const float *x; /* [m, in] */
    size_t ldx;
    float *y; /* [m, out]; forward */
    size_t ldy;
    float *u;        /* [m, r]: x A^T, set by terms, read by terms_grad */
    const float *dy; /* [m, out]; dy and the fields below: gradient */
    size_t lddy;
    float *du;      /* [m, r]: scratch for scale * dy B */
    float *da, *db; /* += ; NULL: frozen */
    float *dx;      /* [m, in] += ; NULL: not wanted */
    size_t lddx;
} fm_term;

/* x [n] = silu(gate) * up */
typedef struct fm_swiglu {
    float *x;
    const float *gate, *up;
    uint64_t n;
} fm_swiglu;

/* One contribution to the gradient of a linear layer's input, or of some rows of it. Entries of one
 * layer whose rows are adjacent follow one another in a list. Every entry has a du of its own. */
typedef struct fm_back {
    const float *dy; /* [m, out] */
    size_t lddy;
    const fm_weight *w;
    uint32_t first, m; /* rows of the call's dx */
    bool add;          /* dx += */
    fm_term term;      /* with the same dy and m; its dx is NULL or these rows; m 0: no term */
} fm_back;

/* A whole sequence, with rows begin .. begin + len - 1. Every row also sees the virt positions of
 * vk, vv [virt, NKV*HD] (prefix tuning), which no window hides. */
typedef struct fm_train_seq {
    uint32_t begin, len;
    uint32_t virt;        /* 0: none */
    const float *vk, *vv; /* device */
    float *dvk, *dvv;     /* +=, in ascending sequences; NULL: frozen */
    /* [NH] as in fm_attn, and lse counts it; NULL: none. FM_ATTENDS_TRAIN_SINK. dsink: += -sum of
     * exp(sink - lse) (dout . out) over ascending rows, in ascending sequences; NULL: frozen. */
    const float *sink;
    float *dsink;
    const float *bias; /* as in fm_attn, by distance; NULL: none. FM_ATTENDS_TRAIN_BIAS */
} fm_train_seq;

/* Self-attention of whole sequences, causal or (encoder) each row to all of its sequence. */
typedef struct fm_attn_train {
    uint32_t rows, seqs, nh, nkv, hd;
    uint32_t window; /* positions less far than this are seen, in an encoder to both sides; 0: all.
                      * FM_ATTENDS_TRAIN_WINDOW of an encoder */
    bool encoder;
    float scale, softcap;        /* as in fm_attn */
    uint32_t bias_ld, bias_zero; /* of all sequences' biases */
    const fm_train_seq *seq;     /* host [seqs], ascending begin */
    const float *q, *k, *v;      /* [rows, NH*HD] ldq apart, [rows, NKV*HD] ldk apart */
    size_t ldq, ldk;
    float *out;          /* [rows, NH*HD] dense */
    float *lse;          /* [rows * NH], in the backend's order; for the gradient */
    const float *dout;   /* gradient: dense as out */
    float *dq, *dk, *dv; /* set; strides ldq, ldk */
} fm_attn_train;

/* How the token of one row is chosen. Fields and ranges are those of fm_sample_params. */
typedef struct fm_pick {
    uint64_t seed, index; /* index: number of the token within the answer */
    uint64_t *seen;       /* [vocab / 64 + 1] device: tokens so far; NULL: no repetition penalty */
    uint32_t row, vocab;  /* row of logits */
    uint32_t top_k;
    float temperature, top_p, min_p, repetition_penalty;
} fm_pick;

struct fm_backend {
    const char *name;         /* "cpu", "cuda" */
    const char *mode;         /* "exact", "fast", "bf16" */
    const char *kernel_class; /* part of every result's key. "exact-f32-1": same on every CPU */
    const char *layout;       /* names what weight_image writes: part of a cached artefact's key */
    const char *isa;          /* "avx512", "avx2", "generic": for people, never in a key */
    bool host_visible;
    uint32_t attends; /* FM_ATTENDS_*: optional fields that attention reads */
    void *ctx;
    void (*close)(fm_backend *be);

    /* ---- memory; alloc, free and upload: from any thread, in parallel with operations ---- */
    fm_status (*alloc)(fm_backend *be, void **out, size_t bytes); /* 64-byte aligned, zeroed */
    void (*free)(fm_backend *be, void *ptr);
    fm_status (*upload)(fm_backend *be, void *dst, const void *src, size_t bytes);
    fm_status (*download)(fm_backend *be, void *dst, const void *src, size_t bytes); /* syncs */
    fm_status (*sync)(fm_backend *be); /* wait; the first failure since the last sync */

    /* ---- weights: bytes of (dtype, [n, k]) on the host -> the layout of a role ----
     * Mode exact widens exactly to f32; mode fast keeps the stored block types where it has kernels
     * for them. An image is the weight's bytes in that layout: plain, free of addresses, so that it
     * can be kept in a file and mapped. weight_map borrows an image (64-byte aligned) for the
     * weight's life; weight_new makes an image that the weight owns, and has read host_bytes when
     * it returns. weight_new, weight_image_bytes, weight_image and weight_map may be called from
     * any thread. A device whose memory the host cannot see leaves weight_image and weight_map
     * NULL; weight_image_bytes then returns what weight_new takes on the device. */
    fm_status (*weight_new)(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                            uint32_t n, uint32_t k, const void *host_bytes);
    /* Bytes of the image; FM_EUNSUPPORTED for a dtype that cannot be used in this role. */
    fm_status (*weight_image_bytes)(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                    uint32_t n, uint32_t k);
    fm_status (*weight_image)(fm_backend *be, void *image, fm_role role, fm_dtype dtype, uint32_t n,
                              uint32_t k, const void *host_bytes);
    fm_status (*weight_map)(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                            uint32_t n, uint32_t k, const void *image);
    void (*weight_free)(fm_backend *be, fm_weight *w);
    uint64_t (*weight_bytes)(const fm_weight *w); /* resident bytes, the image included */
    /* Training: role LINEAR takes new values; roles LORA_* are read as f32 [n, k]. */
    void (*weight_update)(fm_backend *be, fm_weight *w, const float *src /* [n,k] device */);
    const float *(*weight_floats)(const fm_weight *w);
    /* A second layout for linear_dx, which multiplies with W itself. Its memory is allocated here
     * and filled by the second such product; weight_bytes counts it. Optional: where the slot is
     * NULL or was not called, linear_dx uses the first layout. */
    fm_status (*weight_for_dx)(fm_backend *be, fm_weight *w);
    /* Called before the first weight: weights of role LINEAR then keep their stored type and are
     * widened block by block inside the products. Less memory, more time, the same bits. Optional:
     * NULL where a mode has layouts of its own. */
    fm_status (*keep_stored)(fm_backend *be);

    /* ---- forward. rows: NULL = 0..m-1, else the m row numbers used in both x and y ---- */
    /* y[row, 0..n) = x[row, 0..k) W^T (+ bias[n] if not NULL, added last) */
    void (*linear)(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                   const fm_weight *w, const float *bias, const int32_t *rows, uint32_t m);
    /* The same for a list (on the host): q, k, v of every group of rows in one call, which share
     * the packing of x and one barrier of the threads. No element of y is in two products. */
    void (*products)(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_product *list,
                     uint32_t count);
    /* Each term of the list (on the host) on its rows; no element of y is in two terms. It is a
     * list because a step has one term for each child and module, and each is tiny. */
    void (*lora)(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                 uint32_t terms);
    /* y[row, 0..n) = y * scale (if not NULL), then + bias (if not NULL). rows as in fm_product. */
    void (*affine)(fm_backend *be, float *y, size_t ldy, uint32_t n, const float *scale,
                   const float *bias, uint32_t first, uint32_t m, const int32_t *rows);
    /* y = q / s, where s = 127 / max(|x|) of the row of n, of at least 1e-5, and q = x s rounded to
     * a whole number, of halves to the even one; grain[row] = s. A mode that rounds x to 8 bits in
     * its products takes q for it. y may be x. */
    void (*round_rows)(fm_backend *be, float *y, size_t ldy, float *grain, const float *x,
                       size_t ldx, uint32_t m, uint32_t n);
    /* y[i] = row ids[i] of W. An id outside [0, n) is a bug of the caller: the CPU asserts, another
     * device leaves that row of y as it is. */
    void (*embed)(fm_backend *be, float *y, size_t ldy, const fm_weight *w, const int32_t *ids,
                  const int32_t *rows, uint32_t m);
    /* y = x / sqrt(mean(x^2) + eps) * gain, per row of h; rstd_out [m] may be NULL. y may be x. */
    void (*rmsnorm)(fm_backend *be, float *y, const float *x, const float *gain, float *rstd_out,
                    uint32_t m, uint32_t h, size_t ldx, float eps);
    /* In place on heads of x (row stride ldx): elements i and i + hd/2, or with pairs 2i and 2i +
     * 1, rotated by pos[row]'s angle i; inverse rotates back (the gradient). */
    void (*rope)(fm_backend *be, float *x, size_t ldx, const int32_t *pos, const float *cos,
                 const float *sin, uint32_t m, uint32_t heads, uint32_t hd, bool pairs,
                 bool inverse);
    /* y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * gain + bias, per row of h; gain and bias
     * may be NULL. y may be x. */
    void (*layernorm)(fm_backend *be, float *y, const float *x, const float *gain,
                      const float *bias, uint32_t m, uint32_t h, size_t ldx, float eps);
    void (*swiglu)(fm_backend *be, float *y, const float *gate, const float *up, uint64_t n);
    /* y = f(gate), times up where that is not NULL, on rows of n. y may be gate with its ld. SILU
     * with up gives swiglu's bits. */
    void (*act)(fm_backend *be, fm_act f, float *y, size_t ldy, const float *gate, size_t ldg,
                const float *up, size_t ldu, uint32_t m, uint32_t n);
    /* xIELU (Huang and Schlag 2024) with param [4] (device) = a, b, beta, eps: a x^2 + beta x where
     * x > 0, else b (e^min(x, eps) - 1 - x) + beta x; in double, rounded at the end. y may be x. */
    void (*xielu)(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                  const float *param, uint32_t m, uint32_t n);
    /* y = cap * tanh(y / cap) on rows of n */
    void (*softcap)(fm_backend *be, float *y, size_t ldy, uint32_t m, uint32_t n, float cap);
    /* Experts: route chooses them (all arguments are device memory); scalings are applied to the
     * rows of its list. */
    void (*route)(fm_backend *be, const fm_route *r);
    void (*scalings)(fm_backend *be, const fm_scaling *list, uint32_t count);
    /* y[i] = 1 / (1 + exp(-x[i])), in double, rounded at the end */
    void (*sigmoid)(fm_backend *be, float *y, const float *x, uint64_t n);
    /* y[i] = sum over j < per ascending of weight[i * per + j] * x[row[i * per + j]] */
    void (*mix_rows)(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                     const int32_t *row, const float *weight, uint32_t per, uint32_t m, uint32_t n);
    void (*add)(fm_backend *be, float *y, const float *x, uint64_t n); /* y += x */
    void (*scale)(fm_backend *be, float *y, float s, uint64_t n);
    void (*copy_rows)(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                      const int32_t *rows_of_x, uint32_t m, uint32_t n); /* y[i] = x[rows[i]] */
    /* Bytes of one page of keys in one layer; a page of values has the same size. */
    size_t (*kv_page_bytes)(const fm_backend *be, uint32_t nkv, uint32_t hd);
    /* Copies keys and values of page src to page dst, before a shared page is written to. */
    void (*kv_copy)(fm_backend *be, fm_kv_view kv, int32_t dst, int32_t src, uint32_t nkv,
                    uint32_t hd);
    /* Puts k, v rows [m, NKV*HD] at slot[i] = page * FM_KV_PAGE + offset. */
    void (*kv_write)(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                     size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd);
    void (*attention)(fm_backend *be, const fm_attn *a);
    /* lse[i] = log sum exp of logits row i, in the lane order. */
    void (*logsumexp)(fm_backend *be, float *lse, const float *logits, size_t ld, uint32_t m,
                      uint32_t v);

    /* ---- training: forward with saved state, and backward; d* += unless said otherwise ---- */
    /* c[M,N] = alpha * op(a) op(b) (+ c if accumulate); ta/tb: the stored matrix is transposed. */
    void (*gemm)(fm_backend *be, float *c, size_t ldc, const float *a, size_t lda, bool ta,
                 const float *b, size_t ldb, bool tb, uint32_t m, uint32_t n, uint32_t k,
                 float alpha, bool accumulate);
    /* dx[M,K] (= or +=) dy[M,N] W */
    void (*linear_dx)(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                      const fm_weight *w, uint32_t m, bool accumulate);
    void (*bias_grad)(fm_backend *be, float *db, const float *dy, size_t lddy, uint32_t m,
                      uint32_t n);
    void (*embed_grad)(fm_backend *be, float *dw /* [V,H] */, const float *dy, size_t lddy,
                       const int32_t *ids, uint32_t m, uint32_t h); /* rows ascending */
    void (*rmsnorm_grad)(fm_backend *be, float *dx, float *dgain /* may be NULL */, const float *dy,
                         const float *x, const float *gain, const float *rstd, uint32_t m,
                         uint32_t h, size_t ldx, bool accumulate_dx);
    /* dgate, dup are set (not added). */
    void (*swiglu_grad)(fm_backend *be, float *dgate, float *dup, const float *dy,
                        const float *gate, const float *up, uint64_t n);
    void (*self_attention)(fm_backend *be, const fm_attn_train *a);
    void (*self_attention_grad)(fm_backend *be, const fm_attn_train *a);
    /* Low-rank terms of a list (host): forward, and backward: du = scale dy B; db += scale dy^T u;
     * da += du^T x; dx += du A, in the order of the list. Sums as gemm's. */
    void (*terms)(fm_backend *be, const fm_term *list, uint32_t count);
    void (*terms_grad)(fm_backend *be, const fm_term *list, uint32_t count);
    /* dw[N,K] += dy[M,N]^T x[M,K]; stored_kn: dw is [K,N] (a matrix stored [in, out]). */
    void (*linear_dw)(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                      size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn);
    /* Mean and deviation are computed again from x; dgain, dbias +=, NULL: frozen. */
    void (*layernorm_grad)(fm_backend *be, float *dx, float *dgain, float *dbias, const float *dy,
                           const float *x, const float *gain, uint32_t m, uint32_t h, size_t ldx,
                           float eps, bool accumulate_dx);
    /* Gradient of act: dgate, dup are set (up, dup NULL: no gate). dy [m,n]. */
    void (*act_grad)(fm_backend *be, fm_act f, float *dgate, size_t lddg, float *dup, size_t lddu,
                     const float *dy, size_t lddy, const float *gate, size_t ldg, const float *up,
                     size_t ldu, uint32_t m, uint32_t n);
    /* Gradient of xielu by x: dx is set, in double, rounded at the end; dx may be dy. */
    void (*xielu_grad)(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                       const float *x, size_t ldx, const float *param, uint32_t m, uint32_t n);
    /* Gradient of softcap, given its result y: dy *= 1 - (y / cap)^2. */
    void (*softcap_grad)(fm_backend *be, float *dy, size_t lddy, const float *y, size_t ldy,
                         uint32_t m, uint32_t n, float cap);
    /* Gradient of y = x * scale by columns: dscale[n] += sum over rows of dy * x (NULL: frozen),
     * then dx = dy * scale (dx may be dy; NULL: not wanted). */
    void (*scale_grad)(fm_backend *be, float *dx, size_t lddx, float *dscale, const float *dy,
                       size_t lddy, const float *x, size_t ldx, const float *scale, uint32_t m,
                       uint32_t n);
    /* y = (or +=) x * mask / (1 - p); the mask of element (i, j) is f(seed, stream, row0 + i,
     * j). */
    void (*dropout)(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
                    uint32_t n, float p, uint64_t seed, uint64_t stream, uint64_t row0,
                    bool accumulate);
    /* out[i] = sum over n of a[i] * b[rows_of_b[i]] (NULL: i), in the lane order. */
    void (*row_dots)(fm_backend *be, float *out, const float *a, size_t lda, const float *b,
                     size_t ldb, const int32_t *rows_of_b, uint32_t m, uint32_t n);
    /* y[i] = x[i] * w[i] by rows; y may be x. */
    void (*scale_rows)(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                       const float *w, uint32_t m, uint32_t n);
    /* Gradient of route. Of r score, expert, slot, the sizes and what makes the weights are read:
     * renormalise, sigmoid, least, more, scale, jitter. dscore [m, experts] is set to the gradient
     * of the scores through the weights; dweight [m * chosen] is the gradient of the weights, in
     * the order of list. In double, rounded at the end; the choice itself has no gradient. */
    void (*route_grad)(fm_backend *be, const fm_route *r, float *dscore, const float *dweight);
    /* dx[i] = dy[i] * y[i] * (1 - y[i]), in double, rounded at the end; y: sigmoid's. dx may be
     * dy. */
    void (*sigmoid_grad)(fm_backend *be, float *dx, const float *dy, const float *y, uint64_t n);
    /* loss[i] = -log softmax(logits[i])[label[i]], 0 where label < 0; logits become
     * (softmax - onehot) * dloss, 0 where label < 0. */
    void (*cross_entropy)(fm_backend *be, float *loss, float *logits, size_t ld,
                          const int32_t *label, uint32_t m, uint32_t v, float dloss);
    /* Distillation of logits z towards a teacher's t (both [m,v]), with w = weight and T =
     * temperature: loss[i] = (1 - w) * -log softmax(z)[label] + w T^2 KL(softmax(t / T) ||
     * softmax(z / T)) (Hinton et al. 2015); z becomes dloss times its gradient, (1 - w) (softmax(z)
     * - onehot) + w T (softmax(z / T) - softmax(t / T)): exactly 0 for w = 1 and equal rows,
     * cross_entropy's bits for w = 0. Loss and row are 0 where label < 0. */
    void (*distill)(fm_backend *be, float *loss, float *logits, size_t ld, const float *teacher,
                    size_t ldt, const int32_t *label, uint32_t m, uint32_t v, float temperature,
                    float weight, float dloss);
    /* *out (device double) += sum of squares, each product and sum in double, lane order. */
    void (*sum_squares)(fm_backend *be, double *out, const float *x, uint64_t n);
    /* out[b] (device doubles) = the sum over block b of x, 65,536 elements each: what sum_squares
     * adds in ascending order. */
    void (*block_squares)(fm_backend *be, double *out, const float *x, uint64_t n);
    /* AdamW (Loshchilov & Hutter) in PyTorch's order of operations: p -= lr*wd*p; m, v updated;
     * p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps); g is multiplied by g_scale first. */
    void (*adamw)(fm_backend *be, float *p, float *m, float *v, const float *g, uint64_t n,
                  float lr, float beta1, float beta2, float eps, float weight_decay, uint64_t step,
                  float g_scale);

    /* ---- optional operations: each may be NULL, and no caller depends on one ---- */
    /* Two operations in one call: the same bits, in fewer launches. x += branch, then y =
     * rmsnorm(x); rows of h, dense. */
    void (*add_rmsnorm)(fm_backend *be, float *y, float *x, const float *branch, const float *gain,
                        uint32_t m, uint32_t h, float eps);
    /* rope on the first `turns` elements of each head of q, in place, and of k; then kv_write. */
    void (*keep_rows)(fm_backend *be, const fm_new_rows *r);
    /* Recurrent blocks: a model that has some is refused where its operation is missing. */
    void (*convolve)(fm_backend *be, const fm_convolve *c);
    void (*scan)(fm_backend *be, const fm_scan *s);
    void (*delta)(fm_backend *be, const fm_delta *d);
    /* Their gradients: training of such a model is refused where its operation is missing. */
    void (*convolve_grad)(fm_backend *be, const fm_convolve_grad *g);
    void (*scan_grad)(fm_backend *be, const fm_scan_grad *g);
    void (*delta_grad)(fm_backend *be, const fm_delta_grad *g);
    /* Training: this and linears_dx give the bits of the calls that they stand for, with fewer
     * bytes moved. products(list), then terms(term), whose x and y are rows of the products' x and
     * y. made not NULL: swiglu(made) comes first, but x need not hold its result afterwards. */
    void (*products_terms)(fm_backend *be, const float *x, size_t ldx, uint32_t k,
                           const fm_product *list, uint32_t count, const fm_term *term,
                           uint32_t terms, const fm_swiglu *made);
    /* For each entry of the list (on the host): linear_dx into its rows of dx, then terms_grad.
     * made: as in products_terms, for the terms' x. */
    void (*linears_dx)(fm_backend *be, float *dx, size_t lddx, const fm_back *list, uint32_t count,
                       const fm_swiglu *made);
    /* Pinned host memory: the device copies from and to it without the driver's staging buffer, and
     * operations may take its addresses as device memory (tests do). Any thread. */
    fm_status (*host_alloc)(fm_backend *be, void **out, size_t bytes);
    void (*host_free)(fm_backend *be, void *ptr);
    /* reserve returns a range of `bytes` addresses, which may have no memory behind them yet;
     * commit puts zeroed memory behind [at, at + bytes), once for each byte. free releases the
     * whole range. Any thread. */
    fm_status (*reserve)(fm_backend *be, void **out, size_t bytes);
    fm_status (*commit)(fm_backend *be, void *ptr, size_t at, size_t bytes);
    /* fetch queues a copy to the host: dst (from host_alloc) holds the bytes once wait has returned
     * for the ticket. wait returns the first failure of what was queued up to that copy. */
    fm_status (*fetch)(fm_backend *be, void *dst, const void *src, size_t bytes,
                       uint64_t *ticket_out);
    fm_status (*wait)(fm_backend *be, uint64_t ticket);
    /* token[i] = the token that sampler.h picks from row pick[i].row of logits, and bad[i] = 0.
     * Where no token can be picked token[i] = 0 and bad[i] has the reason: 1 + j where logit j, the
     * first that is not below +inf, is NaN; -2 - j where it is +inf; -1 where all are -inf. The
     * token joins pick[i].seen. */
    void (*sample)(fm_backend *be, int32_t *token, int32_t *bad, const float *logits, size_t ld,
                   const fm_pick *pick /* [count] device */, uint32_t count, uint32_t vocab_max);
    /* A second stream: what is queued between aside(true) and aside(false) runs there, behind
     * everything that was queued in either stream before; the first stream goes on in parallel
     * until join. Only copy_rows without a list, add and a device wire's exchanges may be queued in
     * it, and sync, download, record and replay may not come before the join. A step that is being
     * recorded has no second stream: recorded then returns FM_EUNSUPPORTED. */
    void (*aside)(fm_backend *be, bool on);
    void (*join)(fm_backend *be);
    /* Recorded steps. Operations between record and recorded are kept under key, not run. Between
     * the two calls there may be operations alone, whose lists, addresses and scalars are the same
     * each time the step is replayed: only the contents of memory may differ. replay runs what is
     * kept under key, or fails at once and runs none of it; forget drops it (an unknown key:
     * nothing happens). recorded returns FM_EUNSUPPORTED where the step cannot be kept. */
    fm_status (*record)(fm_backend *be, uint64_t key);
    fm_status (*recorded)(fm_backend *be);
    fm_status (*replay)(fm_backend *be, uint64_t key);
    void (*forget)(fm_backend *be, uint64_t key);
};

/* Every slot that a caller needs, once: what must be there to run a model, what training needs too,
 * what training uses where it is there, and what recurrent models need to run and to train. A
 * backend builds its table from these lists, so a slot without a function fails to link. */
/* clang-format off */
#define FM_BACKEND_FORWARD(X)                                                                      \
    X(alloc) X(free) X(upload) X(download) X(sync) X(weight_new) X(weight_free) X(weight_bytes)    \
    X(weight_image_bytes) X(linear) X(lora) X(products) X(affine) X(kv_page_bytes) X(kv_copy)      \
    X(embed) X(rmsnorm) X(rope) X(swiglu) X(add) X(scale) X(layernorm) X(act) X(softcap) X(xielu)  \
    X(round_rows) X(mix_rows) X(route) X(scalings) X(sigmoid) X(copy_rows) X(kv_write)             \
    X(attention) X(logsumexp)
#define FM_BACKEND_TRAINING(X)                                                                     \
    X(weight_update) X(gemm) X(linear_dx) X(bias_grad) X(embed_grad) X(rmsnorm_grad)               \
    X(swiglu_grad) X(cross_entropy) X(sum_squares) X(block_squares) X(adamw) X(self_attention)     \
    X(self_attention_grad) X(terms) X(terms_grad) X(linear_dw) X(layernorm_grad) X(act_grad)       \
    X(xielu_grad) X(softcap_grad) X(scale_grad) X(dropout) X(row_dots) X(scale_rows) X(route_grad) \
    X(sigmoid_grad) X(distill)
#define FM_BACKEND_TRAINING_MAY(X)                                                                 \
    X(weight_floats) X(weight_for_dx) X(keep_stored) X(products_terms) X(linears_dx)
/* clang-format on */
#define FM_BACKEND_RECURRENT(X) X(convolve) X(scan) X(delta)
#define FM_BACKEND_RECURRENT_TRAINING(X) X(convolve_grad) X(scan_grad) X(delta_grad)
/* Declares a function that fits the slot. */
#define FM_BACKEND_FN(slot, name) __typeof__(*((fm_backend *)0)->slot) name

/* Drops the slots of training, for mode fast: rounded activations have no gradient that fits them.
 * It is inline because a device module shares no code with its host. */
static inline void fm_backend_drop_training(fm_backend *be)
{
#define FM_DROP(slot) be->slot = NULL;
    FM_BACKEND_TRAINING(FM_DROP)
    FM_BACKEND_TRAINING_MAY(FM_DROP)
    FM_BACKEND_RECURRENT_TRAINING(FM_DROP)
#undef FM_DROP
}

/* The backend of a device by name: "cpu" (NULL too), "cuda" (its first GPU), "cuda:N", or "auto":
 * the first GPU where module, driver and GPU are there, else the CPU. FM_EUNSUPPORTED names what is
 * missing; FM_EINVAL: no such name, or a number that no GPU has. pool as below. */
FM_CHECKED fm_status fm_backend_open_on(fm_backend **out, const char *device, const char *mode,
                                        fm_pool *pool);
/* The CPU backend in mode "exact", "fast" or "bf16" (training with the operands of large products
 * rounded); FM_EUNSUPPORTED for another mode. pool is borrowed and must outlive the backend; NULL:
 * the calling thread. Weights made by one backend serve every backend of that mode. */
FM_CHECKED fm_status fm_backend_open(fm_backend **out, const char *mode, fm_pool *pool);
/* The naive reference, for tests only (double sums where a tolerance is tested). */
FM_CHECKED fm_status fm_backend_cpu_ref(fm_backend **out);
void fm_backend_close(fm_backend *be); /* NULL is fine */
/* Name of the first forward (training: any) operation that is missing, NULL if none. */
const char *fm_backend_lacks(const fm_backend *be, bool training);

FM_END_DECLS
#endif
