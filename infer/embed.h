/* embed.h - how a model's states become one vector; inside of infer. */
#ifndef FM_INFER_EMBED_H
#define FM_INFER_EMBED_H

#include <stdbool.h>
#include <stdint.h>

typedef enum fmi_pool_mode { FMI_POOL_MEAN, FMI_POOL_FIRST, FMI_POOL_LAST } fmi_pool_mode;

typedef struct fmi_pooling {
    fmi_pool_mode mode;
    bool normalise;
    uint32_t tokens_max; /* a text is cut to so many */
    char refused[200];   /* why this model gives no embeddings; empty: it does */
} fmi_pooling;

#endif
