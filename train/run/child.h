/* child.h - one job: what trains, which examples a step takes, its state, its result. */
#ifndef FM_TRAIN_CHILD_H
#define FM_TRAIN_CHILD_H

#include "train/objective/objective.h"
#include "train/data/order.h"
#include "train/pass/stage_pass.h"

FM_BEGIN_DECLS

/* eval.c: held-out examples, as frozen rows of a pass of their own over the child's net. */
typedef struct fmt_eval fmt_eval;

typedef struct fmt_child {
    fm_engine *e;
    const fm_provider *p;
    const fm_train_job *job;
    const fm_train_config *c;
    fm_train_result *result;
    fmt_stage *stage; /* the run's stage; NULL: all layers are here */
    uint32_t number;  /* number of the job */
    uint32_t steps;
    fm_model *stem; /* the frozen weights; NULL: there are none */
    fmt_net net;
    fmt_params ps;
    fmt_lane lane;
    fmt_batch_how how;
    fmt_order *order;      /* NULL: exact batches */
    const uint32_t *picks; /* [pick_count] examples of the current step; NULL: exact batches */
    size_t pick_count;
    fmt_seq_in *seq; /* texts of the current step's examples */
    fmt_seq_of *of;  /* parallel to seq: which example each belongs to */
    size_t seqs, seq_cap, of_cap;
    uint32_t *ends; /* [micros] end of each micro-batch in seq */
    size_t micros, ends_cap;
    uint64_t loaded; /* the step whose sequences are loaded, from 1; 0: none */
    fmt_shards shards;
    uint32_t shard;  /* the current one of shards.count */
    uint64_t tokens; /* tokens of the shard's micro-batches so far */
    fmt_objective_setup goal;
    fm_train_job own_job; /* classify: the job with a parent that has a head */
    fm_provider own_p;
    fmt_fresh fresh;
    fmt_eval *eval;       /* NULL: nothing is held out */
    uint64_t step_labels; /* most picked rows of any step */
    size_t most_micros;   /* most micro-batches of any step */
    uint64_t targets;     /* targets of the current step */
    double loss;          /* sum of their losses so far */
    fmt_checkpoint state;
    fm_json *adapter_config; /* of the result; NULL: full tensors */
    uint64_t fresh_tokens;   /* tokens since start or resume, for the rate */
    bool at_work;            /* has steps left and was not stopped, dropped or broken */
    bool saved;              /* its last state is saved */
} fmt_child;

/* Everything before the first step: order, largest micro-batch, what trains, its values. */
FM_CHECKED fm_status fmt_child_open(fmt_child *ch, fm_engine *e, const fm_provider *p,
                                    const fm_train_job *job, uint32_t number,
                                    fm_train_result *result);
/* The same over stages (NULL: none). */
FM_CHECKED fm_status fmt_child_open_on(fmt_child *ch, fm_engine *e, const fm_provider *p,
                                       const fm_train_job *job, uint32_t number,
                                       fm_train_result *result, fmt_stage *stage);
void fmt_child_release(fmt_child *ch);
/* Loads the newest state that was kept, if any; then refreshes what depends on parameters. */
FM_CHECKED fm_status fmt_child_resume(fmt_child *ch);
FM_CHECKED fm_status fmt_child_save(fmt_child *ch);
/* Begins the child's next step: loads its sequences, zeroes the gradients. */
FM_CHECKED fm_status fmt_child_begin_step(fmt_child *ch);
/* Loads the sequences of a step. */
FM_CHECKED fm_status fmt_child_load_step(fmt_child *ch, uint32_t step);
/* Loads those of the next step, if there is one, while the device works on the current step. */
FM_CHECKED fm_status fmt_child_look_ahead(fmt_child *ch);
/* Makes s the current shard. */
void fmt_child_begin_shard(fmt_child *ch, uint32_t s);
/* Which sequences shard s of micro-batch k has: begin .. end - 1, whole examples. */
void fmt_child_part(const fmt_child *ch, size_t k, uint32_t s, size_t *begin, size_t *end);
/* child_gather.c, between fmt_child_begin_step and the step's shards: gathers the vectors of all
 * shards on all ranks for a contrastive loss over several shards. *stands: p has run this rank's
 * last micro-batch with rows forward, and fmt_pass_finish may go on from there. */
FM_CHECKED fm_status fmt_child_gather(fmt_child *ch, fmt_pass *p, bool *stands);
/* Builds lane.batch from the current shard's part of micro-batch k, which may be empty. */
FM_CHECKED fm_status fmt_child_load_micro(fmt_child *ch, size_t k);
void fmt_child_end_micro(fmt_child *ch);
/* Ends this rank's i-th shard. */
FM_CHECKED fm_status fmt_child_end_shard(fmt_child *ch, uint32_t i);
/* Sums the step's loss over all shards and ranks, once this rank's losses are known. */
FM_CHECKED fm_status fmt_child_total(fmt_child *ch);
/* Queues the update. norm: the gradient's. *broken: the loss or the gradient is not finite (nothing
 * was updated; the caller sets result->why), or the run diverged (result->why is set). */
FM_CHECKED fm_status fmt_child_end_step(fmt_child *ch, double norm, fm_train_progress *progress,
                                        bool *broken);
FM_CHECKED fm_status fmt_child_take_result(fmt_child *ch);
/* Opens the evaluation, once the child's net is bound. */
FM_CHECKED fm_status fmt_eval_open(fmt_eval **out, struct fmt_child *ch);
void fmt_eval_free(fmt_eval *ev); /* NULL is fine */
FM_CHECKED fm_status fmt_eval_run(fmt_eval *ev, fm_evaluation *out);
/* run.c: makes the pass for the children's micro-batches. lane: capacity for 2 n. */
FM_CHECKED fm_status fmt_run_pass(fmt_pass **out, fm_backend *be, fmt_child *child, size_t n,
                                  fmt_lane **lane);
/* Sizes of that pass; lane[*lanes]: the lanes that it would take. */
fmt_pass_size fmt_run_size(fmt_child *child, size_t n, fmt_lane **lane, size_t *lanes,
                           bool *recompute);
/* Marks the child as failed; takes ownership of why. */
void fmt_child_fail(fmt_child *ch, char *why);

FM_END_DECLS
#endif
