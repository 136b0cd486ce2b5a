/* host_staging.h - host memory that bytes are read into on their way to the device: a few pieces of
 * pinned memory (fm_backend.host_alloc), kept from tensor to tensor since allocating one costs more
 * than filling it. Any thread may call these functions. */
#ifndef FM_INFER_HOST_STAGING_H
#define FM_INFER_HOST_STAGING_H

#include <pthread.h>

#include "infer/backend.h"

FM_BEGIN_DECLS

#define FMI_STAGING_PIECES 4u               /* about as many threads read at a time */
#define FMI_STAGING_MOST ((size_t)64 << 20) /* larger requests get plain memory */

typedef struct fmi_staging {
    fm_backend *be;
    pthread_mutex_t lock;
    struct {
        void *bytes;
        size_t cap;
        bool taken;
    } piece[FMI_STAGING_PIECES];
} fmi_staging;

void fmi_staging_init(fmi_staging *s, fm_backend *be);
void fmi_staging_release(fmi_staging *s); /* every piece has been given back */
/* 64-byte aligned; NULL: out of memory. */
void *fmi_staging_take(fmi_staging *s, size_t bytes);
void fmi_staging_give(fmi_staging *s, void *bytes); /* NULL is fine */

FM_END_DECLS
#endif
