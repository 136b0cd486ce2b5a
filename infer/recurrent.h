/* recurrent.h - the arguments of operations that go along sequences with a state (backend.h).
 * Kernels include it, so it has types alone. */
#ifndef FM_INFER_RECURRENT_H
#define FM_INFER_RECURRENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows that go through a recurrence, and the states of their sequences before and behind them, one
 * float32 state a page: page p begins at pages + p * page_floats. Entry i of the list stands for
 * row row[i]; the rows of a sequence are one behind another, in order of position. No page is both
 * read and written by one call. */
#define FM_STATE_NONE (-1) /* from: the sequence begins, all zeros; to: nobody wants the state */
#define FM_STATE_ON (-2)   /* from: the state behind the entry before this one */
#define FM_MAX_CONV_KERNEL 16u
typedef struct fm_state_rows {
    float *pages;
    size_t page_floats;
    const int32_t *row, *from, *to; /* [m] device */
    uint32_t m;
} fm_state_rows;

/* A causal convolution along each sequence, channel by channel. With u = x, times `before` where
 * that is not NULL: y = sum over j < kernel, ascending, of weight[j] * u of kernel - 1 - j rows ago
 * (a chain of fmaf that begins with the product of j = 0), then + bias, silu of it, times `after`,
 * each where it is wanted. State: the last kernel - 1 rows of u, the oldest first. */
typedef struct fm_convolve {
    fm_state_rows rows;
    float *y; /* not among the inputs */
    size_t ldy;
    const float *x, *before, *after; /* [.., channels], ldx apart */
    size_t ldx;
    const float *weight, *bias; /* [channels, kernel], [channels] or NULL */
    uint32_t channels, kernel;
    bool silu;
} fm_convolve;

/* The gradient of a convolution of sequences that all begin in the list: c.rows.from has no pages.
 * Everything of c but y and the pages is read. With z what silu takes and s what `after`
 * multiplies: dz = dy * after * silu'(z). Set are dafter = dy * s, dx = du * before and dbefore =
 * du * x, where du = sum over the rows from u's own on, ascending, of dz * the weight that u has
 * there. dweight += sum over the list, ascending, of dz * u, dbias += sum of dz (NULL: frozen). */
typedef struct fm_convolve_grad {
    fm_convolve c;
    const float *dy;
    size_t lddy;
    float *dx, *dbefore, *dafter; /* lddx apart, not among the inputs; NULL where c has NULL */
    size_t lddx;
    float *dweight, *dbias;
} fm_convolve_grad;

#define FM_MAX_STATE 512u /* rows of a state: fm_scan.n, fm_delta.dk */

/* A selective scan (Mamba, Mamba-2). Channel c of head h has x and y, group h / (heads / groups)
 * has b and c. With A = -exp(a_log) and dt = softplus(dt + dt_bias), kept within dt_min and dt_max:
 * s[j] = s[j] * exp(dt * A) + (dt * x) * b[j], y = sum over j ascending of s[j] * c[j], + d * x.
 * One dt, A and d for each head; by_channel: dt, dt_bias and d for each channel, A for each channel
 * and j. State: [heads, n, hd]. */
typedef struct fm_scan {
    fm_state_rows rows;
    float *y; /* [.., heads * hd]; not among the inputs */
    size_t ldy;
    const float *x, *b, *c; /* [.., heads * hd], [.., groups * n] */
    size_t ldx, ldb;        /* of x; of b and c */
    const float *dt;        /* [.., heads] or [.., heads * hd] */
    size_t lddt;
    const float *a_log, *d, *dt_bias;
    uint32_t heads, hd, groups, n;
    float dt_min, dt_max;
    bool by_channel;
} fm_scan;

/* The gradient of a scan of sequences that all begin in the list: s.rows.from has no pages.
 * Everything of s but y and the pages is read. With g[j] the gradient of the state s[j] behind a
 * row: g[j] = dy * c[j] + g[j] of the next row * its exp(dt * A). Set are dx, db, dc (sums over the
 * channels of a group) and ddt, before softplus; outside dt's limits it is 0. da_log += the
 * gradient of a_log, dd and ddt_bias likewise (NULL: frozen). The states are computed again, from
 * those before every FM_SCAN_CHUNK-th entry of the list. */
#define FM_SCAN_CHUNK 64u
#define FM_SCAN_LANES 16u
typedef struct fm_scan_grad {
    fm_scan s;
    const float *dy;
    size_t lddy;
    float *dx, *db, *dc, *ddt; /* not among the inputs */
    size_t lddx, lddb, ldddt;
    float *da_log, *dd, *ddt_bias;
    float *work; /* fm_scan_grad_floats, of any value */
} fm_scan_grad;

/* Channels in blocks of a head each; heads, or blocks where it is by channel, are units, of which
 * each has sums of its own. work: a state before each chunk, the gradient of a state, and each
 * unit's share of a chunk's db and dc. */
static inline size_t fm_scan_blocks(const fm_scan *s)
{
    return (size_t)s->heads * ((s->hd + FM_SCAN_LANES - 1) / FM_SCAN_LANES);
}

static inline size_t fm_scan_units(const fm_scan *s)
{
    return s->by_channel ? fm_scan_blocks(s) : s->heads;
}

static inline size_t fm_scan_chunks(const fm_scan *s)
{
    return (s->rows.m + FM_SCAN_CHUNK - 1) / FM_SCAN_CHUNK;
}

static inline size_t fm_scan_grad_floats(const fm_scan *s)
{
    return (fm_scan_chunks(s) + 1) * fm_scan_blocks(s) * FM_SCAN_LANES * s->n +
           fm_scan_units(s) * 2 * FM_SCAN_CHUNK * s->n;
}

/* The gated delta rule (Yang et al. 2024). Heads of values share heads of queries and keys. With q
 * and k divided by the root of the sum of their squares + 1e-6, q also by the root of dk, decay =
 * exp(-exp(a_log) * softplus(a + dt_bias)) and beta = sigmoid(b): s = s * decay; u = (v - sum over
 * j ascending of k[j] * s[j]) * beta; s[j] += k[j] * u; y = sum over j ascending of q[j] * s[j].
 * State: [hv, dk, dv]. */
typedef struct fm_delta {
    fm_state_rows rows;
    float *y; /* [.., hv * dv]; not among the inputs */
    size_t ldy;
    const float *q, *k, *v; /* [.., hk * dk], [.., hk * dk], [.., hv * dv], ldx apart */
    size_t ldx;
    const float *a, *b; /* [.., hv], lda apart */
    size_t lda;
    const float *a_log, *dt_bias; /* [hv] */
    uint32_t hk, hv, dk, dv;
} fm_delta;

/* The gradient of a delta rule of sequences that all begin in the list: d.rows.from has no pages.
 * Everything of d but y and the pages is read. Set are dq, dk (before their division, sums over the
 * heads that share them), dv, da (before softplus) and db (before sigmoid); da_log and ddt_bias +=
 * (NULL: frozen). The states are computed again, from those before every FM_SCAN_CHUNK-th entry. */
typedef struct fm_delta_grad {
    fm_delta d;
    const float *dy;
    size_t lddy;
    float *dq, *dk, *dv; /* lddx apart, not among the inputs */
    size_t lddx;
    float *da, *db; /* ldda apart */
    size_t ldda;
    float *da_log, *ddt_bias;
    float *work; /* fm_delta_grad_floats, of any value */
} fm_delta_grad;

/* Blocks of FM_SCAN_LANES columns of a head each: a state before each chunk, the gradient of a
 * state; of each head the states of one block in a chunk, and its share of a chunk's dq and dk. */
static inline size_t fm_delta_blocks(const fm_delta *d)
{
    return (size_t)d->hv * ((d->dv + FM_SCAN_LANES - 1) / FM_SCAN_LANES);
}

static inline size_t fm_delta_chunks(const fm_delta *d)
{
    return (d->rows.m + FM_SCAN_CHUNK - 1) / FM_SCAN_CHUNK;
}

static inline size_t fm_delta_grad_floats(const fm_delta *d)
{
    return ((fm_delta_chunks(d) + 1) * fm_delta_blocks(d) * FM_SCAN_LANES +
            (size_t)d->hv * FM_SCAN_CHUNK * (FM_SCAN_LANES + 2)) *
           d->dk;
}

#endif
