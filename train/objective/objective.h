/* objective.h - what a lane is trained towards: losses over sequences and vectors, in double on the
 * host, one thread, fixed order: their work is thousands of times less than the pass's. Losses over
 * rows of logits are the backend's (cross_entropy, distill). */
#ifndef FM_TRAIN_OBJECTIVE_H
#define FM_TRAIN_OBJECTIVE_H

#include "infer/tasks/embed.h"
#include "train/pass/pass.h"

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
 * margin: log-probability of the chosen answer over the rejected one under the policy, less the
 * same under the reference. Returns -log sigmoid(beta margin); *slope: its derivative by margin. */
double fmi_dpo_loss(double margin, double beta, double *slope);

/* ---- at work: what a lane's objective needs beside the lane ---- */
extern const fmi_objective fmi_classify, fmi_contrastive, fmi_dpo, fmi_reference, fmi_distill,
    fmi_teacher;

/* Contrastive over several shards (run/child_gather.c): host, [sequences of the step, H]. */
typedef struct fmi_gathered {
    bool given; /* dvec is that of the step in hand, and *loss of a lane stays 0 */
    double *vec, *dvec;
    size_t vec_cap, dvec_cap;
    size_t first; /* number of the lane's first sequence */
    double loss;  /* of the whole step */
} fmi_gathered;

typedef struct fmi_goal { /* the lane's objective_ctx */
    fm_engine *e;
    fm_backend *be;
    const fm_train_job *job;
    const fm_train_config *c;
    fmi_lane *lane;     /* the child's, or that of its evaluation */
    fmi_batch_how how;  /* of the lane */
    fmi_pool_mode mode; /* contrastive */
    /* Frozen rows beside the lane's: DPO's reference, a teacher. net.block NULL: there are none. */
    fmi_lane aux;
    fmi_net aux_net;
    fm_model *aux_model; /* NULL: the child's stem, borrowed */
    fmi_pass *own;       /* where aux goes alone: a teacher of another shape; NULL: with the lane */
    float *room;         /* device: classify */
    double *sums;        /* host: contrastive */
    float *x, *dx;       /* host, where the device is not: contrastive */
    float *host;         /* host: classify's logits */
    fmi_gathered all;
    uint64_t hits, tried; /* of an evaluation: what came out right, of so many */
} fmi_goal;
/* Settings of the loss; vectors, gradients and work are the caller's to set. */
fmi_infonce fmi_contrastive_loss(const fm_train_config *c, uint32_t n, uint32_t cands, uint32_t h);
/* Behind fmi_pass_states: vectors of the lane's sequences, to g->all.vec. */
FM_CHECKED fm_status fmi_contrastive_vectors(fmi_pass *p, fmi_lane *lane);
/* How the data become rows; refuses what does not fit the parent. */
FM_CHECKED fm_status fmi_goal_how(fmi_goal *g, fmi_batch_how *how, const fm_train_job *job,
                                  const fm_provider *p, const fm_arch *arch);
/* Memory, reference, teacher; once lane->most and its net are known. stem: the parent with its
 * adapters, loaded; NULL: it is loaded here where it is needed. */
FM_CHECKED fm_status fmi_goal_open(fmi_goal *g, fm_engine *e, const fm_provider *p, fmi_lane *lane,
                                   fm_model *stem);
void fmi_goal_release(fmi_goal *g);
/* The lanes that go through a pass together: 1 or 2. */
size_t fmi_goal_lanes(fmi_goal *g, fmi_lane *lanes[2]);
/* How its data become rows of the frozen lane. */
fmi_batch_how fmi_goal_aux_how(const fmi_goal *g);
/* The lane's batch is in hand: so is what stands beside it. */
FM_CHECKED fm_status fmi_goal_load(fmi_goal *g);
/* What the mean loss is the mean over: targets, pairs, anchors, texts. */
uint64_t fmi_goal_units(const fm_train_config *c, const fmi_seq_in *s, const fmi_seq_of *of,
                        size_t n);
/* An example as sequences; their number, at most FM_EXAMPLE_PARTS. */
size_t fmi_goal_seqs(fmi_seq_in *out, fmi_seq_of *of, const fm_example *e, uint32_t unit);
/* Rows of exact batches that make one example. */
uint32_t fmi_goal_parts(const fm_train_job *job);

/* ---- classify: the parent with a head for the classes of the data ---- */
typedef struct fmi_fresh {
    fm_tree *tree;
    const fm_provider *behind;
    struct {
        fm_digest id;
        float *data;
        uint64_t bytes;
    } part[6];
    size_t parts;
    uint32_t classes;
    bool new_dense; /* the parent has no layer before the scores, though its family has one */
    char *model_json;
    char score[FMI_MODULE_BYTES], dense[FMI_MODULE_BYTES]; /* modules of the head */
} fmi_fresh;
/* job: what job becomes; p: where its parent's bytes are. *out is the caller's, zeroed. */
FM_CHECKED fm_status fmi_fresh_head(fmi_fresh *out, fm_train_job *job, fm_provider *p,
                                    const fm_provider *behind);
void fmi_fresh_release(fmi_fresh *f);
/* Modules and parameters of the head, once those of the method are declared. */
FM_CHECKED fm_status fmi_fresh_declare(fmi_fresh *f, fmi_net *net, fmi_params *ps,
                                       const fm_train_config *c, const fm_model *stem);
/* What transformers and PEFT want to see of a classifier. */
FM_CHECKED fm_status fmi_fresh_result(const fmi_fresh *f, const fmi_net *net, fm_train_result *out);

FM_END_DECLS
#endif
