/* embed.h - how a model's states become one vector; inside of infer, and for train. */
#ifndef FM_INFER_EMBED_H
#define FM_INFER_EMBED_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef enum fmi_pool_mode { FMI_POOL_MEAN, FMI_POOL_FIRST, FMI_POOL_LAST } fmi_pool_mode;

typedef struct fmi_pooling {
    fmi_pool_mode mode;
    bool normalise;
    uint32_t tokens_max; /* a text is cut to so many */
    char refused[200];   /* why this model gives no embeddings; empty: it does */
} fmi_pooling;

/* How a version's texts are pooled: what its folder of sentence-transformers says, else what its
 * kind is used with. */
FM_CHECKED fm_status fmi_pooling_read(fmi_pooling *out, const fm_tree *tree, const fm_provider *p,
                                      const fm_arch *a, const char *what);

/* The sum over tokens first .. last of their states behind the final norm, ascending, in double. */
typedef struct fmi_states_request {
    fm_model *model;
    const int32_t *ids;
    size_t n; /* 1 to the model's positions */
    size_t first, last;
    double *sum;      /* [hidden], added to */
    const char *what; /* before errors */
} fmi_states_request;
/* Many texts of any models of the engine in shared steps. */
FM_CHECKED fm_status fmi_states_many(fm_engine *e, const fmi_states_request *req, size_t n);

FM_END_DECLS

#endif
