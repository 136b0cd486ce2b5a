/* child.h - one job at work: what trains, which examples a step takes, its state, its result. */
#ifndef FM_TRAIN_CHILD_H
#define FM_TRAIN_CHILD_H

#include "train/objective/objective.h"
#include "train/data/order.h"
#include "train/pass/stage_pass.h"

FM_BEGIN_DECLS

/* eval.c: examples held out, as frozen rows of a pass of their own over the child's
 * net. */
typedef struct fmi_eval fmi_eval;

typedef struct fmi_child {
    fm_engine *e;
    const fm_provider *p;
    const fm_train_job *job;
    const fm_train_config *c;
    fm_train_result *result;
    fmi_stage *stage; /* the run's; NULL: all layers are here */
    uint32_t number;  /* of the job */
    uint32_t steps;
    fm_model *stem; /* what is frozen; NULL: nothing is */
    fmi_net net;
    fmi_params ps;
    fmi_lane lane;
    fmi_batch_how how;
    fmi_order *order;      /* NULL: exact batches */
    const uint32_t *picks; /* [pick_count] examples of the step in hand; NULL: exact batches */
    size_t pick_count;
    fmi_seq_in *seq; /* of the step in hand: texts of its examples */
    fmi_seq_of *of;  /* beside them */
    size_t seqs, seq_cap, of_cap;
    uint32_t *ends; /* [micros] of sequences */
    size_t micros, ends_cap;
    uint64_t loaded; /* the step in hand, from 1; 0: none */
    fmi_shards shards;
    uint32_t shard;  /* the one in hand, of shards.count */
    uint64_t tokens; /* of its micro-batches so far */
    fmi_goal goal;
    fm_train_job own_job; /* classify: with a parent that has a head */
    fm_provider own_p;
    fmi_fresh fresh;
    fmi_eval *eval;       /* NULL: nothing is held out */
    uint64_t step_labels; /* picked rows of any step, at most */
    size_t most_micros;   /* micro-batches of any step, at most */
    uint64_t targets;     /* of the step in hand */
    double loss;          /* sum over them so far */
    fmi_checkpoint state;
    fm_json *adapter_config; /* of the result; NULL: full tensors */
    uint64_t fresh_tokens;   /* since start or resume, for the rate */
    bool at_work;            /* has steps left, was not stopped, dropped or broken */
    bool saved;              /* its last state */
} fmi_child;

/* Everything before the first step: order, the largest micro-batch, what trains and its values. */
FM_CHECKED fm_status fmi_child_open(fmi_child *ch, fm_engine *e, const fm_provider *p,
                                    const fm_train_job *job, uint32_t number,
                                    fm_train_result *result);
/* The same over stages (NULL: none). */
FM_CHECKED fm_status fmi_child_open_on(fmi_child *ch, fm_engine *e, const fm_provider *p,
                                       const fm_train_job *job, uint32_t number,
                                       fm_train_result *result, fmi_stage *stage);
void fmi_child_release(fmi_child *ch);
/* The newest state that was kept, if any; then what is made of parameters. */
FM_CHECKED fm_status fmi_child_resume(fmi_child *ch);
FM_CHECKED fm_status fmi_child_save(fmi_child *ch);
/* Sequences of its next step; gradients at zero. */
FM_CHECKED fm_status fmi_child_begin_step(fmi_child *ch);
/* Puts a step's sequences in hand. */
FM_CHECKED fm_status fmi_child_load_step(fmi_child *ch, uint32_t step);
/* The next step's, if there is one: while the device is at work on what is queued of this one. */
FM_CHECKED fm_status fmi_child_look_ahead(fmi_child *ch);
/* Shard s of the step's micro-batches is in hand. */
void fmi_child_begin_shard(fmi_child *ch, uint32_t s);
/* Sequences of shard s of micro-batch k: whole examples. */
void fmi_child_part(const fmi_child *ch, size_t k, uint32_t s, size_t *begin, size_t *end);
/* child_gather.c, once a step is begun and before its shards are: what a contrastive loss over
 * several shards needs of all of them, over all ranks. *stands: p has run the last of this rank's
 * micro-batches with rows, and fmi_pass_finish may take it on. */
FM_CHECKED fm_status fmi_child_gather(fmi_child *ch, fmi_pass *p, bool *stands);
/* lane.batch of micro-batch k, the part of the shard in hand; no rows where there is none. */
FM_CHECKED fm_status fmi_child_load_micro(fmi_child *ch, size_t k);
void fmi_child_end_micro(fmi_child *ch);
/* The i-th of this rank's shards is done. */
void fmi_child_end_shard(fmi_child *ch, uint32_t i);
/* Losses of all of them are known: the step's, over all ranks. */
FM_CHECKED fm_status fmi_child_total(fmi_child *ch);
/* The update, queued. norm: the gradient's. *broken: loss or gradient is no finite number (nothing
 * was updated; result->why is the caller's to say), or the run diverged (it says). */
FM_CHECKED fm_status fmi_child_end_step(fmi_child *ch, double norm, fm_train_progress *progress,
                                        bool *broken);
FM_CHECKED fm_status fmi_child_take_result(fmi_child *ch);
/* Once the child's net is bound. */
FM_CHECKED fm_status fmi_eval_open(fmi_eval **out, struct fmi_child *ch);
void fmi_eval_free(fmi_eval *ev); /* NULL is fine */
FM_CHECKED fm_status fmi_eval_run(fmi_eval *ev, fm_evaluation *out);
/* run.c: the pass that takes the micro-batches of all together, as many rows as pay.
 * lane: room for 2 n. */
FM_CHECKED fm_status fmi_run_pass(fmi_pass **out, fm_backend *be, fmi_child *child, size_t n,
                                  fmi_lane **lane);
/* Sizes of that pass; lane[*lanes]: those that it would take. */
fmi_pass_size fmi_run_size(fmi_child *child, size_t n, fmi_lane **lane, size_t *lanes,
                           bool *recompute);
/* Marks it failed with a text (owned). */
void fmi_child_fail(fmi_child *ch, char *why);

FM_END_DECLS
#endif
