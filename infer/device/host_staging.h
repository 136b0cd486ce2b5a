/* host_staging.h - host memory that bytes are read into on their way to the device: a few pieces
 * that the device copies from without a detour (fm_backend.host_alloc), kept from tensor to tensor
 * since making one costs more than filling it. Any thread. */
#ifndef FM_INFER_STAGING_H
#define FM_INFER_STAGING_H

#include <pthread.h>

#include "infer/backend.h"

FM_BEGIN_DECLS

#define FMI_STAGING_PIECES 4u               /* threads that read at a time, about */
#define FMI_STAGING_MOST ((size_t)64 << 20) /* larger ones are made for the one time */

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
void fmi_staging_release(fmi_staging *s); /* nothing is taken any more */
/* 64-byte aligned; NULL: no memory. */
void *fmi_staging_take(fmi_staging *s, size_t bytes);
void fmi_staging_give(fmi_staging *s, void *bytes); /* NULL is fine */

FM_END_DECLS
#endif
