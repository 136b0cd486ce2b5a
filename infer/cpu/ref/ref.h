/* ref.h - what the oracle's files share. */
#ifndef FM_INFER_CPU_REF_H
#define FM_INFER_CPU_REF_H

#include "infer/backend.h"

typedef struct fmi_ref_matrix {
    uint32_t n, k;
    float *w; /* [n, k] */
} fmi_ref_matrix;
/* The object behind backend.h's handle. */
static inline fmi_ref_matrix *fmi_ref_matrix_of(const fm_weight *w)
{
    return (fmi_ref_matrix *)(uintptr_t)w;
}

double fmi_ref_f(fm_act f, double x);
double fmi_ref_factor(fm_act f, double up); /* what f(gate) is multiplied by */ /* an activation */

/* The operations of the oracle, fmi_ref_<op>. */
#define FMI_REF_OPS(X)                                                                             \
    FM_BACKEND_FORWARD(X)                                                                          \
    FM_BACKEND_TRAINING(X) FM_BACKEND_RECURRENT(X) FM_BACKEND_RECURRENT_TRAINING(X)
#define FMI_DECLARE(op) FM_BACKEND_FN(op, fmi_ref_##op);
FMI_REF_OPS(FMI_DECLARE)
#undef FMI_DECLARE

#endif
