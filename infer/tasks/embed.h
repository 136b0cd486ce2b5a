/* embed.h - sums of a model's states; inside of infer, and for train. */
#ifndef FM_INFER_EMBED_H
#define FM_INFER_EMBED_H

#include "infer/model/pooling.h"

FM_BEGIN_DECLS

/* The sum over tokens first .. last of their states behind the final norm, ascending, in double. */
typedef struct fmi_states_request {
    fm_model *model;
    const int32_t *ids;
    size_t n; /* 1 to the model's positions */
    size_t first, last;
    double *sum;      /* [hidden], += */
    const char *what; /* prefix of error texts */
} fmi_states_request;
/* Many texts of any models of the engine in shared steps. */
FM_CHECKED fm_status fmi_states_many(fm_engine *e, const fmi_states_request *req, size_t n);

FM_END_DECLS

#endif
