/* watchdog.h - reports a device that hangs while its process lives.
 *
 * The host waits for its device inside of calls that cannot be ended. A thread of the watchdog
 * looks how long the engine's thread has been in a step; past the limit it calls hung, once, and
 * the engine's thread cannot leave the step during that call. */
#ifndef FM_INFER_WATCHDOG_H
#define FM_INFER_WATCHDOG_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef struct fmi_watchdog fmi_watchdog;

/* name: device and rank, for the text. */
FM_CHECKED fm_status fmi_watchdog_new(fmi_watchdog **out, double limit_s, const char *name);
void fmi_watchdog_free(fmi_watchdog *p); /* outside of steps; NULL is fine */
void fmi_watchdog_hung(fmi_watchdog *p, fm_hung_fn hung, void *ctx);
/* The engine's thread calls them around a step; calls nest. NULL is a no-op. */
void fmi_watchdog_begin(fmi_watchdog *p);
void fmi_watchdog_end(fmi_watchdog *p);

FM_END_DECLS
#endif
