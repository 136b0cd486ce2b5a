/* walk.h - a run's parameters at some points, each example's gradient there. Inner header. */
#ifndef FM_TRAIN_ATTRIBUTION_WALK_H
#define FM_TRAIN_ATTRIBUTION_WALK_H

#include "train/attribution.h"
#include "train/run/child.h"

FM_BEGIN_DECLS

enum { FMT_WALK_LINE = 3, FMT_WALK_STATES = 16 };

/* Examples go through the pass as lanes, each with a net and gradients of its own over shared
 * frozen weights: the gradient of an example is exactly the one that it has alone. */
typedef struct fmt_walk {
    const fm_attribution_in *in;
    fm_provider p;
    fm_train_job job; /* the step's job; of a full fine-tune only the layers that count */
    fmt_child *worker;
    fm_train_result *result; /* [workers] stays empty */
    size_t workers, opened;
    fmt_lane **lane; /* [2 workers] */
    fmt_pass *pass;
    const fmt_objective *objective; /* objective of the examples */
    fmt_batch_how how;
    uint64_t total; /* floats of a gradient, with padding, which is 0 */
    /* [total] values before the step, of the child, at the current point; host: a gradient */
    float *from, *to, *here, *host;
    /* Points on the line come first, then the states. weight: equal for points on the line, for a
     * state the learning rate spent since the state before; each kind sums to 1. */
    size_t points;
    double weight[FMT_WALK_LINE + FMT_WALK_STATES];
    size_t done, of;
} fmt_walk;
/* bounded: take only the last layers of a large full fine-tune. */
FM_CHECKED fm_status fmt_walk_open(fmt_walk *w, const fm_attribution_in *in, bool bounded);
void fmt_walk_close(fmt_walk *w);
/* Moves to a point below w->points; w->points is the child itself. */
FM_CHECKED fm_status fmt_walk_stand(fmt_walk *w, size_t point);
/* Gradient of -margin in g [total]: that of the wrong answer's loss less the right one's. */
FM_CHECKED fm_status fmt_walk_target(fmt_walk *w, float *g);
/* fmt_walk_put takes the values that another run of the same step made; fmt_walk_margin gives the
 * case's margin at the current values. */
FM_CHECKED fm_status fmt_walk_put(fmt_walk *w, const fm_train_result *r);
FM_CHECKED fm_status fmt_walk_margin(fmt_walk *w, double *margin);
/* Calls take(ctx, k, g) for k = 0 .. n - 1 in this order with the gradient [total] of the loss, a
 * sum over targets, of example which[k] (NULL: k). g is valid in the call. */
typedef fm_status (*fmt_gradient_fn)(void *ctx, size_t k, const float *g);
FM_CHECKED fm_status fmt_walk_each(fmt_walk *w, const size_t *which, size_t n, fmt_gradient_fn take,
                                   void *ctx);

/* kron.c: a damped Gauss-Newton matrix by parameter, in the eigenbasis of Kronecker factors. */
typedef struct fmt_kron fmt_kron;
/* Made at the walk's point from the gradients of at most FMT_KRON_SAMPLE examples. */
enum { FMT_KRON_SAMPLE = 128, FMT_KRON_SIDE = 160, FMT_KRON_WORK = 1 << 21 };
FM_CHECKED fm_status fmt_kron_new(fmt_kron **out, fmt_walk *w);
void fmt_kron_free(fmt_kron *k);
/* y = (F + damping)^-1 x, both [total]; they may be the same. */
void fmt_kron_solve(const fmt_kron *k, float *y, const float *x);
/* Returns x^T (F + damping)^-1 x. */
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
/* gradients.c: fills the scores of the gradient methods. */
FM_CHECKED fm_status fmt_attribution_gradients(const fm_attribution_in *in,
                                               double *const score[FM_ATTRIBUTIONS]);

FM_END_DECLS
#endif
