/* route.h - which experts a row goes to, and with what weights: one place for the operation of the
 * CPU (fm_route) and for training. */
#ifndef FM_INFER_ROUTE_H
#define FM_INFER_ROUTE_H

#include "infer/arch.h"

FM_BEGIN_DECLS

typedef struct fmi_route_choice { /* one row's */
    uint32_t expert;
    float weight;
} fmi_route_choice;

/* The chosen experts of one row in ascending order, with their weights, from its scores [experts]:
 * softmax over all, in double; of equal scores the lower expert. share: room for [experts]. */
void fmi_route(const fm_switches *sw, const float *score, double *share, fmi_route_choice *pick);

FM_END_DECLS
#endif
