/* pooling.h - how a model's states become one vector; inside of infer, and for train. */
#ifndef FM_INFER_POOLING_H
#define FM_INFER_POOLING_H

#include "infer/infer.h"

FM_BEGIN_DECLS

typedef enum fmi_pool_mode { FMI_POOL_MEAN, FMI_POOL_FIRST, FMI_POOL_LAST } fmi_pool_mode;

/* A linear layer over the pooled vector; the weights are the host's, set by fmi_dense_load. */
typedef struct fmi_dense {
    char path[160]; /* of the module in the folder */
    uint32_t in, out;
    bool biased, tanh;
    float *w, *b; /* [out, in], [out] or NULL */
} fmi_dense;
#define FMI_DENSES 4u

typedef struct fmi_pooling {
    fmi_pool_mode mode;
    uint32_t denses;
    fmi_dense dense[FMI_DENSES]; /* one after another, before the norm */
    bool normalise;
    uint32_t tokens_max; /* a text is cut to so many */
    char refused[200];   /* why this model gives no embeddings; empty: it does */
} fmi_pooling;

/* How a version's texts are pooled: as its sentence-transformers folder says, else an encoder's by
 * mean and a decoder's by the last token. */
FM_CHECKED fm_status fmi_pooling_read(fmi_pooling *out, const fm_tree *tree, const fm_provider *p,
                                      const fm_arch *a, const char *what);

/* dense.c. fmi_pooling_read takes settings alone, so its result needs no release. */
FM_CHECKED fm_status fmi_dense_load(fmi_dense *d, const fm_tree *tree, const fm_provider *p,
                                    const char *what);
void fmi_dense_run(const fmi_dense *d, double *y, const double *x);
void fmi_pooling_release(fmi_pooling *p);

FM_END_DECLS
#endif
