/* watchdog.h - a device that hangs while its process lives: nobody else would tell.
 *
 * The host waits for its device inside of calls that cannot be ended. A thread looks at how long
 * the engine's thread has been in a step; past the limit it says so, once, while the engine's
 * thread cannot leave the step. */
#ifndef FM_INFER_WATCHDOG_H
#define FM_INFER_WATCHDOG_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef struct fmi_watchdog fmi_watchdog;

/* name: of the device and its rank, for the text. hung as fm_engine_hung sets it. */
FM_CHECKED fm_status fmi_watchdog_new(fmi_watchdog **out, double limit_s, const char *name);
void fmi_watchdog_free(fmi_watchdog *p); /* outside of steps; NULL is fine */
void fmi_watchdog_hung(fmi_watchdog *p, fm_hung_fn hung, void *ctx);
/* The engine's thread; they nest. NULL: nothing. */
void fmi_watchdog_begin(fmi_watchdog *p);
void fmi_watchdog_end(fmi_watchdog *p);

FM_END_DECLS
#endif
