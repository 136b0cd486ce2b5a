/* error_kit.h - how far one engine's logits are from another's on real text, and SmolLM2 in other
 * dtypes than its file's.
 *
 * KL is of the reference from the other, in nats; everything is summed in double. */
#ifndef FM_TESTS_MODEL_ERROR_KIT_H
#define FM_TESTS_MODEL_ERROR_KIT_H

#include <math.h>
#include <stdlib.h>

#include "tests/model/infer_kit.h"

#define EK_MAX_TOKENS 4096u
#define EK_PIECE 512u /* tokens of one context */

/* ==== gaps between logits ==== */

typedef struct ek_row {
    double kl, change; /* |change of the target's log-probability| */
    bool agrees;       /* on the most likely token */
} ek_row;

typedef struct ek_gap { /* over all rows so far */
    double kl[EK_MAX_TOKENS];
    uint32_t n, agree;
    double worst; /* largest change */
} ek_gap;

static inline uint32_t ek_best(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static inline double ek_log_sum(const float *x, uint32_t n, double most)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - most);
    return most + log(sum);
}

static inline ek_row ek_compare(const float *want, const float *got, uint32_t vocab, int32_t target)
{
    uint32_t best_want = ek_best(want, vocab), best_got = ek_best(got, vocab);
    double zw = ek_log_sum(want, vocab, (double)want[best_want]);
    double zg = ek_log_sum(got, vocab, (double)got[best_got]), kl = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double lw = (double)want[i] - zw;
        kl += exp(lw) * (lw - ((double)got[i] - zg));
    }
    double change = (double)want[target] - zw - ((double)got[target] - zg);
    return (ek_row){.kl = kl, .change = fabs(change), .agrees = best_want == best_got};
}

static inline void ek_add(ek_gap *g, const ek_row *r)
{
    assert_true(g->n < EK_MAX_TOKENS);
    g->kl[g->n++] = r->kl;
    g->agree += r->agrees;
    g->worst = !(r->change <= g->worst) ? r->change : g->worst; /* a NaN is taken and kept */
}

static inline int ek_order(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static inline double ek_mean(const ek_gap *g)
{
    double sum = 0;
    for (uint32_t i = 0; i < g->n; i++)
        sum += g->kl[i];
    return sum / g->n;
}

/* Standard error of the mean, rows taken as independent. */
static inline double ek_mean_error(const ek_gap *g)
{
    double mean = ek_mean(g), sum = 0;
    for (uint32_t i = 0; i < g->n; i++)
        sum += (g->kl[i] - mean) * (g->kl[i] - mean);
    return sqrt(sum / g->n / (g->n > 1 ? g->n - 1 : 1));
}

static inline double ek_share(ek_gap *g, double share) /* sorts kl */
{
    qsort(g->kl, g->n, sizeof(double), ek_order);
    return g->kl[(uint32_t)(share * (g->n - 1))];
}

/* ==== the text ==== */

/* The first n ids of tinyshakespeare; false where it is not on this machine. */
static inline bool ek_text(int32_t *out, uint32_t n, const fm_tokenizer *t)
{
    char *path = tk_shared("text/tinyshakespeare.txt");
    fm_buf b;
    fm_ids ids = {0};
    if (!path)
        return false;
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, (size_t)1 << 24));
    fm_span head = fm_span_of(b.data, FM_MIN(b.len, (size_t)n * 8));
    tk_ok(fm_tokenizer_encode(t, head, false, &ids));
    assert_true(ids.count >= n);
    memcpy(out, ids.id, n * sizeof(int32_t));
    fm_ids_release(&ids);
    fm_buf_release(&b);
    fm_free(path);
    return true;
}

/* Logits of one context of n tokens, each row wanted; they are the engine's until its next step. */
static inline fm_status ek_step(fm_model *m, const int32_t *ids, uint32_t n, const float **row)
{
    fm_row in[EK_PIECE];
    fm_seq *s = NULL;
    fm_status rc = fm_seq_open(&s, m);
    for (uint32_t i = 0; i < n; i++)
        in[i] = (fm_row){.seq = s, .token = ids[i], .want_logits = true};
    if (rc >= 0)
        rc = fm_engine_step(fm_model_engine(m), in, n);
    for (uint32_t i = 0; i < n && rc >= 0; i++)
        row[i] = fm_engine_logits(fm_model_engine(m), i);
    fm_seq_close(s);
    return rc;
}

/* ==== the matrices of a source in another dtype: BF16, Q8_0, Q4_0, or as they are (NONE) ==== */

typedef struct ek_recast {
    const fm_source *src;
    fm_dtype dtype;
} ek_recast;

/* ggml's reference: the element of the largest magnitude becomes -8. */
static inline void ek_block_q4_0(uint8_t out[18], const float *x)
{
    float most = 0;
    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    uint16_t d = fm_f32_to_f16(most / -8.0f);
    float inverse = most != 0 ? -8.0f / most : 0;
    memcpy(out, &d, sizeof(d));
    for (int i = 0; i < 16; i++) {
        int lo = FM_MIN(15, (int)(x[i] * inverse + 8.5f));
        int hi = FM_MIN(15, (int)(x[i + 16] * inverse + 8.5f));
        out[2 + i] = (uint8_t)(lo | hi << 4);
    }
}

static inline void ek_block_q8_0(uint8_t out[34], const float *x)
{
    float most = 0;
    for (int i = 0; i < 32; i++)
        most = fmaxf(most, fabsf(x[i]));
    uint16_t d = fm_f32_to_f16(most / 127.0f);
    float inverse = most != 0 ? 127.0f / most : 0;
    memcpy(out, &d, sizeof(d));
    for (int i = 0; i < 32; i++)
        out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
}

static inline void ek_from_f32(void *dst, fm_dtype dtype, const float *x, uint64_t n)
{
    uint8_t *out = dst;
    if (dtype == FM_BF16) {
        tk_ok(fm_from_f32(dst, dtype, x, n));
        return;
    }
    for (uint64_t b = 0; b < n / 32; b++) {
        if (dtype == FM_Q8_0)
            ek_block_q8_0(out + 34 * b, x + 32 * b);
        else
            ek_block_q4_0(out + 18 * b, x + 32 * b);
    }
}

static inline fm_status ek_recast_read(void *ctx, const fm_entry *e, void *dst)
{
    const ek_recast *c = ctx;
    const fm_entry *from = fm_tree_find(fm_source_tree(c->src), e->path);
    fm_provider p = fm_source_provider(c->src);
    if (from->dtype == e->dtype)
        return p.read(p.ctx, from, dst);
    uint64_t n = e->shape.dim[0] * e->shape.dim[1];
    void *raw = fm_malloc((size_t)from->bytes);
    float *wide = fm_malloc((size_t)n * sizeof(float));
    assert_true(raw && wide);
    tk_ok(p.read(p.ctx, from, raw));
    tk_ok(fm_to_f32(wide, from->dtype, raw, n));
    ek_from_f32(dst, e->dtype, wide, n);
    fm_free(wide);
    fm_free(raw);
    return FM_OK;
}

static inline fm_tree *ek_recast_tree(ek_recast *c)
{
    const fm_tree *from = fm_source_tree(c->src);
    fm_tree *t = NULL;
    tk_ok(fm_tree_copy(&t, from));
    for (size_t i = 0; i < fm_tree_count(from) && c->dtype != FM_DTYPE_NONE; i++) {
        fm_entry e = *fm_tree_at(from, i);
        if (e.kind != FM_ENTRY_TENSOR || e.shape.rank != 2)
            continue;
        e.dtype = c->dtype;
        tk_ok(fm_tensor_bytes(&e.bytes, e.dtype, &e.shape, e.name));
        void *bytes = fm_malloc((size_t)e.bytes);
        assert_non_null(bytes);
        tk_ok(ek_recast_read(c, &e, bytes));
        tk_ok(fm_tensor_id(&e.id, e.dtype, &e.shape, fm_span_of(bytes, (size_t)e.bytes), NULL));
        fm_free(bytes);
        tk_ok(fm_tree_put_tensor(t, e.path, e.name, e.dtype, &e.shape, &e.id));
    }
    return t;
}

#endif
