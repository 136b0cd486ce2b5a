/* route.h - chooses the experts of a row and their weights. */
#ifndef FM_INFER_ROUTE_H
#define FM_INFER_ROUTE_H

#include "infer/arch.h"

FM_BEGIN_DECLS

typedef struct fmi_route_choice { /* one chosen expert of a row */
    uint32_t expert;
    float weight;
} fmi_route_choice;

/* The chosen experts of one row in ascending order, with their weights, from its scores [experts]:
 * softmax in double; of equal scores the lower expert wins. share: scratch [experts]. */
void fmi_route(const fm_switches *sw, const float *score, double *share, fmi_route_choice *pick);

FM_END_DECLS
#endif
