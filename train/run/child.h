/* child.h - one job at work: what trains, which examples a step takes, its state, its result. */
#ifndef FM_TRAIN_CHILD_H
#define FM_TRAIN_CHILD_H

#include "train/objective/objective.h"
#include "train/data/order.h"
#include "train/pass/stage_pass.h"

FM_BEGIN_DECLS

/* eval.c: examples held out, as frozen rows of a pass of their own over the child's
 * net. */
typedef struct fmt_eval fmt_eval;

typedef struct fmt_child {
    fm_engine *e;
    const fm_provider *p;
    const fm_train_job *job;
    const fm_train_config *c;
    fm_train_result *result;
    fmt_stage *stage; /* the run's; NULL: all layers are here */
    uint32_t number;  /* of the job */
    uint32_t steps;
    fm_model *stem; /* what is frozen; NULL: nothing is */
    fmt_net net;
    fmt_params ps;
    fmt_lane lane;
    fmt_batch_how how;
    fmt_order *order;      /* NULL: exact batches */
    const uint32_t *picks; /* [pick_count] examples of the step in hand; NULL: exact batches */
    size_t pick_count;
    fmt_seq_in *seq; /* of the step in hand: texts of its examples */
    fmt_seq_of *of;  /* beside them */
    size_t seqs, seq_cap, of_cap;
    uint32_t *ends; /* [micros] of sequences */
    size_t micros, ends_cap;
    uint64_t loaded; /* the step in hand, from 1; 0: none */
    fmt_shards shards;
    uint32_t shard;  /* the one in hand, of shards.count */
    uint64_t tokens; /* of its micro-batches so far */
    fmt_objective_setup goal;
    fm_train_job own_job; /* classify: with a parent that has a head */
    fm_provider own_p;
    fmt_fresh fresh;
    fmt_eval *eval;       /* NULL: nothing is held out */
    uint64_t step_labels; /* picked rows of any step, at most */
    size_t most_micros;   /* micro-batches of any step, at most */
    uint64_t targets;     /* of the step in hand */
    double loss;          /* sum over them so far */
    fmt_checkpoint state;
    fm_json *adapter_config; /* of the result; NULL: full tensors */
    uint64_t fresh_tokens;   /* since start or resume, for the rate */
    bool at_work;            /* has steps left, was not stopped, dropped or broken */
    bool saved;              /* its last state */
} fmt_child;

/* Everything before the first step: order, the largest micro-batch, what trains and its values. */
FM_CHECKED fm_status fmt_child_open(fmt_child *ch, fm_engine *e, const fm_provider *p,
                                    const fm_train_job *job, uint32_t number,
                                    fm_train_result *result);
/* The same over stages (NULL: none). */
FM_CHECKED fm_status fmt_child_open_on(fmt_child *ch, fm_engine *e, const fm_provider *p,
                                       const fm_train_job *job, uint32_t number,
                                       fm_train_result *result, fmt_stage *stage);
void fmt_child_release(fmt_child *ch);
/* The newest state that was kept, if any; then what is made of parameters. */
FM_CHECKED fm_status fmt_child_resume(fmt_child *ch);
FM_CHECKED fm_status fmt_child_save(fmt_child *ch);
/* Sequences of its next step; gradients at zero. */
FM_CHECKED fm_status fmt_child_begin_step(fmt_child *ch);
/* Puts a step's sequences in hand. */
FM_CHECKED fm_status fmt_child_load_step(fmt_child *ch, uint32_t step);
/* The next step's, if there is one: while the device is at work on what is queued of this one. */
FM_CHECKED fm_status fmt_child_look_ahead(fmt_child *ch);
/* Shard s of the step's micro-batches is in hand. */
void fmt_child_begin_shard(fmt_child *ch, uint32_t s);
/* Sequences of shard s of micro-batch k: whole examples. */
void fmt_child_part(const fmt_child *ch, size_t k, uint32_t s, size_t *begin, size_t *end);
/* child_gather.c, once a step is begun and before its shards are: what a contrastive loss over
 * several shards needs of all of them, over all ranks. *stands: p has run the last of this rank's
 * micro-batches with rows, and fmt_pass_finish may take it on. */
FM_CHECKED fm_status fmt_child_gather(fmt_child *ch, fmt_pass *p, bool *stands);
/* lane.batch of micro-batch k, the part of the shard in hand; no rows where there is none. */
FM_CHECKED fm_status fmt_child_load_micro(fmt_child *ch, size_t k);
void fmt_child_end_micro(fmt_child *ch);
/* The i-th of this rank's shards is done. */
void fmt_child_end_shard(fmt_child *ch, uint32_t i);
/* Losses of all of them are known: the step's, over all ranks. */
FM_CHECKED fm_status fmt_child_total(fmt_child *ch);
/* The update, queued. norm: the gradient's. *broken: loss or gradient is no finite number (nothing
 * was updated; result->why is the caller's to say), or the run diverged (it says). */
FM_CHECKED fm_status fmt_child_end_step(fmt_child *ch, double norm, fm_train_progress *progress,
                                        bool *broken);
FM_CHECKED fm_status fmt_child_take_result(fmt_child *ch);
/* Once the child's net is bound. */
FM_CHECKED fm_status fmt_eval_open(fmt_eval **out, struct fmt_child *ch);
void fmt_eval_free(fmt_eval *ev); /* NULL is fine */
FM_CHECKED fm_status fmt_eval_run(fmt_eval *ev, fm_evaluation *out);
/* run.c: the pass that takes the micro-batches of all together, as many rows as pay.
 * lane: room for 2 n. */
FM_CHECKED fm_status fmt_run_pass(fmt_pass **out, fm_backend *be, fmt_child *child, size_t n,
                                  fmt_lane **lane);
/* Sizes of that pass; lane[*lanes]: those that it would take. */
fmt_pass_size fmt_run_size(fmt_child *child, size_t n, fmt_lane **lane, size_t *lanes,
                           bool *recompute);
/* Marks it failed with a text (owned). */
void fmt_child_fail(fmt_child *ch, char *why);

FM_END_DECLS
#endif
