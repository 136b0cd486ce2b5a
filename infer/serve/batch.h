/* batch.h - the engine side of the server, as its loop calls it. Engine thread only. */
#ifndef FM_INFER_SERVE_BATCH_H
#define FM_INFER_SERVE_BATCH_H

#include "infer/serve/internal.h"

FM_BEGIN_DECLS

/* Does the work of j's stage and hands j back. The caller keeps its reference. */
void fmi_batch_serve(fm_server *s, fmi_job *j);
/* One step over all sequences; jobs that ended leave. */
FM_CHECKED fm_status fmi_batch_step(fm_server *s);
void fmi_batch_drop_departed(fm_server *s); /* ends sequences whose clients have left */
void fmi_batch_cancel_all(fm_server *s);
/* Every running job ends with text. stuck: at once, since the engine's thread will not come back
 * from a step; else when the job is cancelled. */
void fmi_batch_abandon(fm_server *s, const char *code, const char *text, bool stuck);
void fmi_batch_retire_done(fm_server *s);
void fmi_batch_publish(fm_server *s); /* gauges */

FM_END_DECLS
#endif
