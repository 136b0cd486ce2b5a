/* inflight.h - a queued step of the scheduler: which requests have rows in it, and how they get
 * their tokens when it is collected. Used where the device picks tokens (fmi_picks); where
 * fmi_queues, the scheduler queues the next step before it collects this one. */
#ifndef FM_INFER_INFLIGHT_H
#define FM_INFER_INFLIGHT_H

#include "infer/sched/request.h"

FM_BEGIN_DECLS

/* A request with rows in the step. */
typedef struct fmi_aboard {
    fmi_request *r; /* NULL: it has ended */
    fm_seq *seq;
    uint32_t begin, end; /* length of seq before and after its rows */
    int32_t pick;        /* number of its token, -1: none is picked */
    bool host;           /* its logits come to the host */
} fmi_aboard;

typedef struct fmi_inflight {
    fmi_queued q;
    fmi_aboard *of; /* [max_running] */
    uint32_t count, hosts;
    uint32_t decoding, prompts; /* rows, for the prefill budget */
    double begun;
    bool up; /* queued and not collected */
} fmi_inflight;

FM_CHECKED fm_status fmi_inflight_init(fmi_inflight *f, fm_engine *e, uint32_t max_running);
void fmi_inflight_release(fmi_inflight *f, fm_engine *e); /* waits for a queued step, drops it */

/* Queues rows of the requests in run that have some (row0, rows). ask: [n] scratch. */
FM_CHECKED fm_status fmi_inflight_launch(fmi_inflight *f, fm_engine *e, fmi_request *const *run,
                                         uint32_t running, const fm_row *row, uint32_t n,
                                         fmi_row_pick *ask);
/* Waits for the step; every token that was picked goes to its request, which may end by it. Rows of
 * requests that ended meanwhile are dropped. On failure none gets a token: fmi_inflight_undo. */
FM_CHECKED fm_status fmi_inflight_land(fmi_inflight *f, fm_engine *e);
/* Rewinds the sequences to before the step; waits if it is queued. Undo the later of two first. */
void fmi_inflight_undo(fmi_inflight *f, fm_engine *e);
/* As launch, but the step is over when it returns, and every token that was picked is with its
 * request. On failure nothing has changed. */
FM_CHECKED fm_status fmi_inflight_step(fmi_inflight *f, fm_engine *e, fmi_request *const *run,
                                       uint32_t running, const fm_row *row, uint32_t n,
                                       fmi_row_pick *ask);
void fmi_inflight_forget(fmi_inflight *f, const fmi_request *r);

FM_END_DECLS
#endif
