/* objective.h - the losses of a lane over sequences and vectors, in double on the host, by one
 * thread, in a fixed order: they are thousands of times less work than the pass. Losses over rows
 * of logits are the backend's (cross_entropy, distill). */
#ifndef FM_TRAIN_OBJECTIVE_H
#define FM_TRAIN_OBJECTIVE_H

#include "infer/tasks/embed.h"
#include "train/pass/pass.h"

FM_BEGIN_DECLS

/* ---- pooling: one vector from a sequence's states, as infer's embed does before its norm ---- */
/* out [h] from x [len, h], len >= 1. Means are sums over ascending rows, divided once. */
void fmt_pool_rows(double *out, const float *x, uint32_t len, uint32_t h, fmi_pool_mode mode);
/* dx [len, h] is set from dout [h]. */
void fmt_pool_rows_grad(float *dx, const double *dout, uint32_t len, uint32_t h,
                        fmi_pool_mode mode);

/* ---- contrastive: InfoNCE (Oord et al. 2018), as sentence-transformers' ranking losses ----
 *
 * Scores are the cosine of every anchor with every candidate, divided by the temperature; an
 * anchor's loss is the cross entropy of its own candidate. symmetric: the mean of this loss and of
 * the cross entropy of each positive among the anchors. */
typedef struct fmt_infonce {
    uint32_t n, cands, h;        /* cands >= n >= 1; candidate i < n is anchor i's positive */
    const double *anchor, *cand; /* [n, h], [cands, h] */
    double temperature, dloss;   /* dloss: weight of one anchor's loss */
    bool symmetric;
    double *danchor, *dcand; /* out: gradients; NULL: only the loss is wanted */
    double *work;            /* [fmt_infonce_work] */
    double loss;             /* out: sum over the anchors */
    uint32_t hits;           /* out: anchors whose positive scores best (ties count as best) */
} fmt_infonce;
size_t fmt_infonce_work(uint32_t n, uint32_t cands, uint32_t h);
void fmt_infonce_run(fmt_infonce *c);

/* ---- preferences: DPO (Rafailov et al. 2023) of one pair ----
 *
 * margin: log-probability of the chosen answer over the rejected one under the policy, less the
 * same under the reference. Returns -log sigmoid(beta margin); *slope: its derivative by margin. */
double fmt_dpo_loss(double margin, double beta, double *slope);

/* ---- the setup of a lane's objective in a run ---- */
extern const fmt_objective fmt_classify, fmt_contrastive, fmt_dpo, fmt_reference, fmt_distill,
    fmt_teacher;

/* For a contrastive loss over shards (run/child_gather.c): host, [sequences of the step, H]. */
typedef struct fmt_gathered {
    bool given; /* dvec has the gradients of the current step, and a lane adds nothing to *loss */
    double *vec, *dvec;
    size_t vec_cap, dvec_cap;
    size_t first; /* number of the lane's first sequence */
    double loss;  /* loss of the whole step */
} fmt_gathered;

/* What a lane's objective needs besides the lane: its objective_ctx. */
typedef struct fmt_objective_setup {
    fm_engine *e;
    fm_backend *be;
    const fm_train_job *job;
    const fm_train_config *c;
    fmt_lane *lane;     /* the child's lane, or that of its evaluation */
    fmt_batch_how how;  /* how the lane's batches are built */
    fmi_pool_mode mode; /* contrastive */
    fmt_lane aux;       /* frozen: DPO's reference or a teacher; aux_net.block NULL: none */
    fmt_net aux_net;
    fm_model *aux_model; /* NULL: the child's stem, borrowed */
    fmt_pass *own;       /* aux's own pass (another shape); NULL: with the lane */
    float *room;         /* device: classify */
    double *sums;        /* host: contrastive */
    float *x, *dx;       /* contrastive: host copies of device memory */
    float *host;         /* host: classify's logits */
    fmt_gathered all;
    uint64_t hits, tried; /* evaluation: units that came out right; all units */
} fmt_objective_setup;
/* The loss with its settings; the caller sets vectors, gradients and work. */
fmt_infonce fmt_contrastive_loss(const fm_train_config *c, uint32_t n, uint32_t cands, uint32_t h);
/* After fmt_pass_states: writes the vectors of the lane's sequences to g->all.vec. */
FM_CHECKED fm_status fmt_contrastive_vectors(fmt_pass *p, fmt_lane *lane);
/* Sets how the data become rows; refuses settings that do not fit the parent. */
FM_CHECKED fm_status fmt_objective_setup_how(fmt_objective_setup *g, fmt_batch_how *how,
                                             const fm_train_job *job, const fm_provider *p,
                                             const fm_arch *arch);
/* Allocates memory and opens reference or teacher, once lane->most and its net are known. stem: the
 * parent with its adapters, loaded; NULL: it is loaded here if it is needed. */
FM_CHECKED fm_status fmt_objective_setup_open(fmt_objective_setup *g, fm_engine *e,
                                              const fm_provider *p, fmt_lane *lane, fm_model *stem);
void fmt_objective_setup_release(fmt_objective_setup *g);
/* The lanes that go through a pass together; returns their number, 1 or 2. */
size_t fmt_objective_setup_lanes(fmt_objective_setup *g, fmt_lane *lanes[2]);
/* How the data become rows of the frozen lane. */
fmt_batch_how fmt_objective_setup_aux_how(const fmt_objective_setup *g);
/* Builds the batch of the frozen lane for the lane's current batch. */
FM_CHECKED fm_status fmt_objective_setup_load(fmt_objective_setup *g);
/* Number of units that the mean loss is over: targets, pairs, anchors or texts. */
uint64_t fmt_objective_setup_units(const fm_train_config *c, const fmt_seq_in *s,
                                   const fmt_seq_of *of, size_t n);
/* Splits an example into sequences; returns their number, at most FM_EXAMPLE_PARTS. */
size_t fmt_objective_setup_seqs(fmt_seq_in *out, fmt_seq_of *of, const fm_example *e,
                                uint32_t unit);
/* Rows of exact batches (fm_train_job.batch_ids) that make one example. */
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
    bool new_dense; /* the parent has no layer before the scores, though the family has one */
    bool
        save_dense; /* it trains and is saved whole: PEFT takes what is called "classifier" along */
    char *model_json;
    char score[FMT_MODULE_BYTES], dense[FMT_MODULE_BYTES]; /* modules of the head */
} fmt_fresh;
/* Gives the job's parent a head: job gets the new parent, p a provider of its bytes. *out is zeroed
 * by the caller, who releases it. */
FM_CHECKED fm_status fmt_fresh_head(fmt_fresh *out, fm_train_job *job, fm_provider *p,
                                    const fm_provider *behind);
void fmt_fresh_release(fmt_fresh *f);
/* Declares modules and parameters of the head, after those of the method. */
FM_CHECKED fm_status fmt_fresh_declare(fmt_fresh *f, fmt_net *net, fmt_params *ps,
                                       const fm_train_config *c, const fm_model *stem);
/* Changes the result into the form that transformers and PEFT want for a classifier. */
FM_CHECKED fm_status fmt_fresh_result(const fmt_fresh *f, const fmt_net *net, fm_train_result *out);

FM_END_DECLS
#endif
