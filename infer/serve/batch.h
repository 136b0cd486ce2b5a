/* batch.h - the engine side of the server, as its loop calls it. Engine thread only. */
#ifndef FM_INFER_SERVE_BATCH_H
#define FM_INFER_SERVE_BATCH_H

#include "infer/serve/internal.h"

FM_BEGIN_DECLS

/* Does what j's stage asks for and hands it back. The caller keeps its reference. */
void fmi_batch_serve(fm_server *s, fmi_job *j);
/* One step over all sequences; jobs that ended leave. */
FM_CHECKED fm_status fmi_batch_step(fm_server *s);
void fmi_batch_drop_departed(fm_server *s); /* clients that closed: their sequences end */
void fmi_batch_cancel_all(fm_server *s);
/* Whoever runs ends with text. stuck: now, since the engine's thread will not come back from a
 * step; else when it is cancelled. */
void fmi_batch_abandon(fm_server *s, const char *code, const char *text, bool stuck);
void fmi_batch_retire_done(fm_server *s);
void fmi_batch_publish(fm_server *s); /* gauges */

FM_END_DECLS
#endif
