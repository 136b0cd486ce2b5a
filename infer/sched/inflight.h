/* inflight.h - a step of the scheduler that is queued: who is aboard, and what becomes of them when
 * it lands. Used where the device picks tokens (fmi_picks), ahead of the host where fmi_queues. */
#ifndef FM_INFER_INFLIGHT_H
#define FM_INFER_INFLIGHT_H

#include "infer/sched/request.h"

FM_BEGIN_DECLS

typedef struct fmi_aboard {
    fmi_request *r; /* NULL: it is gone */
    fm_seq *seq;
    uint32_t begin, end; /* length of seq before and behind its rows */
    int32_t pick;        /* number of its token, -1: none is picked */
    bool host;           /* its logits are the host's */
} fmi_aboard;

typedef struct fmi_inflight {
    fmi_queued q;
    fmi_aboard *of; /* [max_running] */
    uint32_t count, hosts;
    uint32_t decoding, prompts; /* rows, for the pace */
    double begun;
    bool up;
} fmi_inflight;

FM_CHECKED fm_status fmi_inflight_init(fmi_inflight *f, fm_engine *e, uint32_t max_running);
void fmi_inflight_release(fmi_inflight *f, fm_engine *e); /* lands for nobody, if it is up */

/* Queues the rows of those of run that have some (fmi_request.row0, rows). ask: room for n. */
FM_CHECKED fm_status fmi_inflight_launch(fmi_inflight *f, fm_engine *e, fmi_request *const *run,
                                         uint32_t running, const fm_row *row, uint32_t n,
                                         fmi_row_pick *ask);
/* Waits; every token that was picked goes to its request, which may end by it. Rows of requests
 * that ended meanwhile were for nothing. On failure nobody hears anything: fmi_inflight_undo. */
FM_CHECKED fm_status fmi_inflight_land(fmi_inflight *f, fm_engine *e);
/* Sequences as they were before it; waits if it is up. Of two the later one first. */
void fmi_inflight_undo(fmi_inflight *f, fm_engine *e);
/* As launch, but the step is over when it returns, with every token that was picked at its
 * request. On failure nothing has changed. */
FM_CHECKED fm_status fmi_inflight_step(fmi_inflight *f, fm_engine *e, fmi_request *const *run,
                                       uint32_t running, const fm_row *row, uint32_t n,
                                       fmi_row_pick *ask);
void fmi_inflight_forget(fmi_inflight *f, const fmi_request *r);

FM_END_DECLS
#endif
