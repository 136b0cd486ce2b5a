/* watchdog.h - a device that hangs while its process lives: nobody else would tell.
 *
 * The host waits for its device inside of calls that cannot be ended. A thread looks at how long
 * the engine's thread has been in a step; past the limit it says so, once, while the engine's
 * thread cannot leave the step. */
#ifndef FM_INFER_PATIENCE_H
#define FM_INFER_PATIENCE_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef struct fmi_patience fmi_patience;

/* name: of the device and its rank, for the text. hung as fm_engine_hung sets it. */
FM_CHECKED fm_status fmi_patience_new(fmi_patience **out, double limit_s, const char *name);
void fmi_patience_free(fmi_patience *p); /* outside of steps; NULL is fine */
void fmi_patience_hung(fmi_patience *p, fm_hung_fn hung, void *ctx);
/* The engine's thread; they nest. NULL: nothing. */
void fmi_patience_begin(fmi_patience *p);
void fmi_patience_end(fmi_patience *p);

FM_END_DECLS
#endif
