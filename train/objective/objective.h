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
void fmt_pool_rows(double *out, const float *x, uint32_t len, uint32_t h, fmi_pool_mode mode);
/* dx [len, h] is set from dout [h]. */
void fmt_pool_rows_grad(float *dx, const double *dout, uint32_t len, uint32_t h,
                        fmi_pool_mode mode);

/* ---- contrastive: InfoNCE (Oord et al. 2018), as sentence-transformers' ranking losses ----
 * Scores are the cosine of every anchor with every candidate over the temperature; an anchor's loss
 * is the cross entropy of its own candidate. symmetric: the mean of that and of each positive's
 * choice among the anchors. */
typedef struct fmt_infonce {
    uint32_t n, cands, h;        /* cands >= n >= 1; candidate i < n is anchor i's positive */
    const double *anchor, *cand; /* [n, h], [cands, h] */
    double temperature, dloss;   /* dloss: what one anchor's loss counts for */
    bool symmetric;
    double *danchor, *dcand; /* set; NULL: only the loss is wanted */
    double *work;            /* [fmt_infonce_work] */
    double loss;             /* out: sum over the anchors */
    uint32_t hits;           /* out: anchors whose positive scores best (ties count) */
} fmt_infonce;
size_t fmt_infonce_work(uint32_t n, uint32_t cands, uint32_t h);
void fmt_infonce_run(fmt_infonce *c);

/* ---- preferences: DPO (Rafailov et al. 2023) of one pair ----
 * margin: log-probability of the chosen answer over the rejected one under the policy, less the
 * same under the reference. Returns -log sigmoid(beta margin); *slope: its derivative by margin. */
double fmt_dpo_loss(double margin, double beta, double *slope);

/* ---- at work: what a lane's objective needs beside the lane ---- */
extern const fmt_objective fmt_classify, fmt_contrastive, fmt_dpo, fmt_reference, fmt_distill,
    fmt_teacher;

/* Contrastive over several shards (run/child_gather.c): host, [sequences of the step, H]. */
typedef struct fmt_gathered {
    bool given; /* dvec is that of the step in hand, and *loss of a lane stays 0 */
    double *vec, *dvec;
    size_t vec_cap, dvec_cap;
    size_t first; /* number of the lane's first sequence */
    double loss;  /* of the whole step */
} fmt_gathered;

typedef struct fmt_objective_setup { /* the lane's objective_ctx */
    fm_engine *e;
    fm_backend *be;
    const fm_train_job *job;
    const fm_train_config *c;
    fmt_lane *lane;     /* the child's, or that of its evaluation */
    fmt_batch_how how;  /* of the lane */
    fmi_pool_mode mode; /* contrastive */
    /* Frozen rows beside the lane's: DPO's reference, a teacher. net.block NULL: there are none. */
    fmt_lane aux;
    fmt_net aux_net;
    fm_model *aux_model; /* NULL: the child's stem, borrowed */
    fmt_pass *own;       /* where aux goes alone: a teacher of another shape; NULL: with the lane */
    float *room;         /* device: classify */
    double *sums;        /* host: contrastive */
    float *x, *dx;       /* host, where the device is not: contrastive */
    float *host;         /* host: classify's logits */
    fmt_gathered all;
    uint64_t hits, tried; /* of an evaluation: what came out right, of so many */
} fmt_objective_setup;
/* Settings of the loss; vectors, gradients and work are the caller's to set. */
fmt_infonce fmt_contrastive_loss(const fm_train_config *c, uint32_t n, uint32_t cands, uint32_t h);
/* Behind fmt_pass_states: vectors of the lane's sequences, to g->all.vec. */
FM_CHECKED fm_status fmt_contrastive_vectors(fmt_pass *p, fmt_lane *lane);
/* How the data become rows; refuses what does not fit the parent. */
FM_CHECKED fm_status fmt_objective_setup_how(fmt_objective_setup *g, fmt_batch_how *how,
                                             const fm_train_job *job, const fm_provider *p,
                                             const fm_arch *arch);
/* Memory, reference, teacher; once lane->most and its net are known. stem: the parent with its
 * adapters, loaded; NULL: it is loaded here where it is needed. */
FM_CHECKED fm_status fmt_objective_setup_open(fmt_objective_setup *g, fm_engine *e,
                                              const fm_provider *p, fmt_lane *lane, fm_model *stem);
void fmt_objective_setup_release(fmt_objective_setup *g);
/* The lanes that go through a pass together: 1 or 2. */
size_t fmt_objective_setup_lanes(fmt_objective_setup *g, fmt_lane *lanes[2]);
/* How its data become rows of the frozen lane. */
fmt_batch_how fmt_objective_setup_aux_how(const fmt_objective_setup *g);
/* The lane's batch is in hand: so is what stands beside it. */
FM_CHECKED fm_status fmt_objective_setup_load(fmt_objective_setup *g);
/* What the mean loss is the mean over: targets, pairs, anchors, texts. */
uint64_t fmt_objective_setup_units(const fm_train_config *c, const fmt_seq_in *s,
                                   const fmt_seq_of *of, size_t n);
/* An example as sequences; their number, at most FM_EXAMPLE_PARTS. */
size_t fmt_objective_setup_seqs(fmt_seq_in *out, fmt_seq_of *of, const fm_example *e,
                                uint32_t unit);
/* Rows of exact batches that make one example. */
uint32_t fmt_objective_setup_parts(const fm_train_job *job);

/* ---- classify: the parent with a head for the classes of the data ---- */
typedef struct fmt_fresh {
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
    char score[FMT_MODULE_BYTES], dense[FMT_MODULE_BYTES]; /* modules of the head */
} fmt_fresh;
/* job: what job becomes; p: where its parent's bytes are. *out is the caller's, zeroed. */
FM_CHECKED fm_status fmt_fresh_head(fmt_fresh *out, fm_train_job *job, fm_provider *p,
                                    const fm_provider *behind);
void fmt_fresh_release(fmt_fresh *f);
/* Modules and parameters of the head, once those of the method are declared. */
FM_CHECKED fm_status fmt_fresh_declare(fmt_fresh *f, fmt_net *net, fmt_params *ps,
                                       const fm_train_config *c, const fm_model *stem);
/* What transformers and PEFT want to see of a classifier. */
FM_CHECKED fm_status fmt_fresh_result(const fmt_fresh *f, const fmt_net *net, fm_train_result *out);

FM_END_DECLS
#endif
