/* objective.h - what a lane is trained towards: losses over sequences and vectors, in double on the
 * host, one thread, fixed order: their work is thousands of times less than the pass's. Losses over
 * rows of logits are the backend's (cross_entropy, distill). */
#ifndef FM_TRAIN_OBJECTIVE_H
#define FM_TRAIN_OBJECTIVE_H

#include "infer/embed.h"
#include "train/train.h"

FM_BEGIN_DECLS

/* ---- pooling: one vector of a sequence's states; what infer's embed does, before its norm ---- */
/* out [h] of x [len, h], len >= 1. Means are sums over ascending rows, divided once. */
void fmi_pool_rows(double *out, const float *x, uint32_t len, uint32_t h, fmi_pool_mode mode);
/* dx [len, h] is set from dout [h]. */
void fmi_pool_rows_grad(float *dx, const double *dout, uint32_t len, uint32_t h,
                        fmi_pool_mode mode);

/* ---- contrastive: InfoNCE (Oord et al. 2018), as sentence-transformers' ranking losses ----
 * Scores are the cosine of every anchor with every candidate over the temperature; an anchor's loss
 * is the cross entropy of its own candidate. symmetric: the mean of that and of each positive's
 * choice among the anchors. */
typedef struct fmi_infonce {
    uint32_t n, cands, h;        /* cands >= n >= 1; candidate i < n is anchor i's positive */
    const double *anchor, *cand; /* [n, h], [cands, h] */
    double temperature, dloss;   /* dloss: what one anchor's loss counts for */
    bool symmetric;
    double *danchor, *dcand; /* set; NULL: only the loss is wanted */
    double *work;            /* [fmi_infonce_work] */
    double loss;             /* out: sum over the anchors */
    uint32_t hits;           /* out: anchors whose positive scores best (ties count) */
} fmi_infonce;
size_t fmi_infonce_work(uint32_t n, uint32_t cands, uint32_t h);
void fmi_infonce_run(fmi_infonce *c);

/* ---- preferences: DPO (Rafailov et al. 2023) of one pair ----
 * margin: log-probability of the chosen answer over the rejected one under the policy, less the same
 * under the reference. Returns -log sigmoid(beta margin); *slope: its derivative by margin. */
double fmi_dpo_loss(double margin, double beta, double *slope);

FM_END_DECLS
#endif
