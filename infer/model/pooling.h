/* pooling.h - how a model's states become one vector; inside of infer, and for train. */
#ifndef FM_INFER_POOLING_H
#define FM_INFER_POOLING_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef enum fmi_pool_mode { FMI_POOL_MEAN, FMI_POOL_FIRST, FMI_POOL_LAST } fmi_pool_mode;

typedef struct fmi_pooling {
    fmi_pool_mode mode;
    bool normalise;
    uint32_t tokens_max; /* a text is cut to so many */
    char refused[200];   /* why this model gives no embeddings; empty: it does */
} fmi_pooling;

/* How a version's texts are pooled: as its sentence-transformers folder says, else an encoder's by
 * mean and a decoder's by the last token. */
FM_CHECKED fm_status fmi_pooling_read(fmi_pooling *out, const fm_tree *tree, const fm_provider *p,
                                      const fm_arch *a, const char *what);

FM_END_DECLS
#endif
