/* crew.h - a few threads that make requests at once. Jobs are slots, which are done in the order in
 * which they are given; the one thread that gives them waits for each. */
#ifndef FM_REMOTE_BUCKET_CREW_H
#define FM_REMOTE_BUCKET_CREW_H

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMR_CREW_MAX 16u /* workers, and slots */

typedef struct fmr_crew fmr_crew;
typedef fm_status (*fmr_job_fn)(void *ctx, unsigned worker, unsigned slot);

FM_CHECKED fm_status fmr_crew_new(fmr_crew **out, unsigned workers, fmr_job_fn fn, void *ctx);
void fmr_crew_give(fmr_crew *c, unsigned slot); /* which is idle */
/* Until the slot is idle. The result of its last job, with its text; FM_OK where it had none. */
FM_CHECKED fm_status fmr_crew_wait(fmr_crew *c, unsigned slot);
/* Drops what has not begun and waits for what has; NULL is fine. */
void fmr_crew_free(fmr_crew *c);

FM_END_DECLS
#endif
