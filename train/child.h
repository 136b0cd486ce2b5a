/* child.h - one job at work: what trains, which examples a step takes, its state, its result. */
#ifndef FM_TRAIN_CHILD_H
#define FM_TRAIN_CHILD_H

#include "train/order.h"
#include "train/pass.h"

FM_BEGIN_DECLS

typedef struct fmi_child {
    fm_engine *e;
    const fm_provider *p;
    const fm_train_job *job;
    const fm_train_config *c;
    fm_train_result *result;
    uint32_t number; /* of the job */
    uint32_t steps;
    fm_model *stem; /* what is frozen; NULL: nothing is */
    fmi_net net;
    fmi_params ps;
    fmi_lane lane;
    fmi_batch_how how;
    fmi_order *order;      /* NULL: exact batches */
    const uint32_t *picks; /* [seqs] examples of the step in hand; NULL: exact batches */
    fmi_seq_in *seq;       /* of the step in hand */
    size_t seqs, seq_cap;
    const uint32_t *ends; /* [micros] */
    size_t micros;
    uint32_t *exact_ends; /* [accumulate] */
    uint64_t targets;     /* of the step in hand */
    double loss;          /* sum over them so far */
    fmi_checkpoint state;
    fm_json *adapter_config; /* of init, or NULL */
    uint64_t fresh_tokens;   /* since start or resume, for the rate */
    bool at_work;            /* has steps left, was not stopped, dropped or broken */
    bool saved;              /* its last state */
} fmi_child;

/* Everything before the first step: order, the largest micro-batch, what trains and its values. */
FM_CHECKED fm_status fmi_child_open(fmi_child *ch, fm_engine *e, const fm_provider *p,
                                    const fm_train_job *job, uint32_t number,
                                    fm_train_result *result);
void fmi_child_release(fmi_child *ch);
/* The newest state that was kept, if any; then what is made of parameters. */
FM_CHECKED fm_status fmi_child_resume(fmi_child *ch);
FM_CHECKED fm_status fmi_child_save(fmi_child *ch);
/* Sequences of its next step; gradients at zero. */
FM_CHECKED fm_status fmi_child_begin_step(fmi_child *ch);
/* lane.batch of micro-batch k; no rows where the step has fewer. */
FM_CHECKED fm_status fmi_child_load_micro(fmi_child *ch, size_t k);
void fmi_child_end_micro(fmi_child *ch);
/* The update. *broken: loss or gradient is no finite number, or the run diverged: nothing was
 * updated and result says why. */
FM_CHECKED fm_status fmi_child_end_step(fmi_child *ch, fm_train_progress *progress, bool *broken);
FM_CHECKED fm_status fmi_child_take_result(fmi_child *ch);
/* run.c: the pass that takes the micro-batches of all together, as many rows as pay. lane: room
 * for n. */
FM_CHECKED fm_status fmi_run_pass(fmi_pass **out, fm_backend *be, fmi_child *child, size_t n,
                                  fmi_lane **lane);
/* Marks it failed with a text (owned). */
void fmi_child_fail(fmi_child *ch, char *why);

FM_END_DECLS
#endif
