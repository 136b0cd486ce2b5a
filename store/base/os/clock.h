/* clock.h - a monotonic clock, for durations. */
#ifndef FM_BASE_CLOCK_H
#define FM_BASE_CLOCK_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

/* Seconds since some point in the past that stays the same while the process lives; no change of
 * the system's time moves it. */
double fm_now_s(void);
/* Seconds of processor time that this thread has used. */
double fm_thread_cpu_s(void);

FM_END_DECLS
#endif
