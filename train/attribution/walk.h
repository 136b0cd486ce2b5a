/* walk.h - a run's parameters at its points, and the gradient of each example there.
 * Inner header of this folder. */
#ifndef FM_TRAIN_ATTRIBUTION_WALK_H
#define FM_TRAIN_ATTRIBUTION_WALK_H

#include "train/attribution.h"
#include "train/run/child.h"

FM_BEGIN_DECLS

enum { FMT_WALK_LINE = 3, FMT_WALK_STATES = 16 };

/* Examples go through the pass as lanes, each with a net and gradients of its own over shared
 * frozen weights: one example's gradient is exactly what it is alone. */
typedef struct fmt_walk {
    const fm_attribution_in *in;
    fm_provider p;
    fm_train_job job; /* the step's; a full fine-tune: over the layers that count */
    fmt_child *worker;
    fm_train_result *result; /* [workers] none is made */
    size_t workers, opened;
    fmt_lane **lane; /* [2 workers] */
    fmt_pass *pass;
    const fmt_objective *objective; /* of the examples */
    fmt_batch_how how;
    uint64_t total;                 /* floats of a gradient, padding included (it is 0) */
    float *from, *to, *here, *host; /* [total]: before, child, at the point in hand, a gradient */
    /* First those on the line, then those of states. weight: of the former equal, of the latter the
     * learning rate spent since the one before; both sum to 1. */
    size_t points;
    double weight[FMT_WALK_LINE + FMT_WALK_STATES];
    size_t done, of;
} fmt_walk;
/* bounded: of a large full fine-tune the last layers alone. */
FM_CHECKED fm_status fmt_walk_open(fmt_walk *w, const fm_attribution_in *in, bool bounded);
void fmt_walk_close(fmt_walk *w);
/* point: of w->points; w->points is the child itself. */
FM_CHECKED fm_status fmt_walk_stand(fmt_walk *w, size_t point);
/* Gradient of -margin of the case in g [total]: what the wrong answer's loss has, less the right
 * one's. */
FM_CHECKED fm_status fmt_walk_target(fmt_walk *w, float *g);
/* What another run of the same step made, and the case's margin there. */
FM_CHECKED fm_status fmt_walk_put(fmt_walk *w, const fm_train_result *r);
FM_CHECKED fm_status fmt_walk_margin(fmt_walk *w, double *margin);
/* Calls take(ctx, k, g) for k = 0 .. n - 1 in this order with the gradient [total] of the loss, a
 * sum over targets, of example which[k] (NULL: k). g is valid in the call. */
typedef fm_status (*fmt_gradient_fn)(void *ctx, size_t k, const float *g);
FM_CHECKED fm_status fmt_walk_each(fmt_walk *w, const size_t *which, size_t n, fmt_gradient_fn take,
                                   void *ctx);

/* kron.c: a damped Gauss-Newton matrix, block by parameter, in the eigenbasis of its
 * Kronecker factors. */
typedef struct fmt_kron fmt_kron;
/* At the walk's point, from the gradients of at most FMT_KRON_SAMPLE examples. */
enum { FMT_KRON_SAMPLE = 128, FMT_KRON_SIDE = 160, FMT_KRON_WORK = 1 << 21 };
FM_CHECKED fm_status fmt_kron_new(fmt_kron **out, fmt_walk *w);
void fmt_kron_free(fmt_kron *k);
/* y = (F + damping)^-1 x, both [total]; they may be the same. */
void fmt_kron_solve(const fmt_kron *k, float *y, const float *x);
/* x^T (F + damping)^-1 x */
double fmt_kron_size(const fmt_kron *k, const float *x);

/* Eigenvectors of the symmetric a [n, n] (double, destroyed) as the rows of qt, values ascending in
 * d; work [2 n]. Householder's tridiagonal form, then QR steps with implicit shifts.
 * FM_EINVAL: no convergence, which finite values do not give. */
FM_CHECKED fm_status fmt_eigen(double *a, double *qt, double *d, double *work, size_t n);

/* bm25.c. query and documents: ids; k1 1.5, b 0.75, idf = ln((N - df + .5) / (df + .5))
 * with negative ones at a quarter of the mean idf, as rank_bm25's BM25Okapi. score [n]. */
FM_CHECKED fm_status fmt_bm25(double *score, const int32_t *query, size_t query_len,
                              const int32_t *const *doc, const uint32_t *len, size_t n);
FM_CHECKED fm_status fmt_attribution_bm25(const fm_attribution_in *in, double *score);
/* gradients.c: what of score is a gradient method. */
FM_CHECKED fm_status fmt_attribution_gradients(const fm_attribution_in *in,
                                               double *const score[FM_ATTRIBUTIONS]);

FM_END_DECLS
#endif
