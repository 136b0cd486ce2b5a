/* scheduler.h - inside of the scheduler, for its tests. */
#ifndef FM_INFER_SCHEDULER_H
#define FM_INFER_SCHEDULER_H

#include "infer/infer.h"

FM_BEGIN_DECLS

/* Sets the clock of the prefill budget, in seconds; NULL: the system's. */
typedef double (*fmi_clock)(void *ctx);
void fmi_scheduler_clock(fm_scheduler *s, fmi_clock now, void *ctx);
/* The model's counter of service: fair_queue.h. */
uint64_t fmi_scheduler_served(const fm_scheduler *s, const fm_model *m);

FM_END_DECLS
#endif
