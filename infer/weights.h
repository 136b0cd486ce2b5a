/* weights.h - the cache of weights on the device, keyed by tensor id and form.
 *
 * An id stands for a tensor's value, so two models (or two names) that hold the same tensor hold
 * one copy here, and equal pointers mean equal weights: the engine groups rows by pointer. Entries
 * are reference-counted and leave with their last user. A tensor used both as a matrix and as a
 * plain vector is held in both forms. */
#ifndef FM_INFER_WEIGHTS_H
#define FM_INFER_WEIGHTS_H

#include "infer/backend.h"
#include "store/tree.h"

FM_BEGIN_DECLS

typedef enum fmi_form {
    FMI_MATRIX = FM_ROLE_LINEAR, /* fm_weight [n, k]: a linear layer or embedding */
    FMI_LORA_A = FM_ROLE_LORA_A, /* fm_weight [r, k] */
    FMI_LORA_B = FM_ROLE_LORA_B, /* fm_weight [n, r] */
    FMI_VECTOR,                  /* float32 as stored, row-major: gains, biases */
} fmi_form;

typedef struct fmi_cached {
    fm_digest id;
    fmi_form form;
    fm_weight *w;   /* all forms but FMI_VECTOR */
    float *v;       /* FMI_VECTOR */
    uint64_t bytes; /* on the device */
    uint32_t refs;
    struct fmi_cached *next; /* of its bucket */
} fmi_cached;

typedef struct fmi_weights fmi_weights;
FM_CHECKED fm_status fmi_weights_new(fmi_weights **out, fm_backend *be);
void fmi_weights_free(fmi_weights *c); /* asserts that nothing is held any more */

/* One more reference to e's tensor in this form, read from p if it is not resident. */
FM_CHECKED fm_status fmi_weights_take(fmi_weights *c, fmi_cached **out, const fm_entry *e,
                                      fmi_form form, const fm_provider *p);
void fmi_weights_drop(fmi_weights *c, fmi_cached *w); /* NULL is fine */

uint64_t fmi_weights_count(const fmi_weights *c);
uint64_t fmi_weights_bytes(const fmi_weights *c);

FM_END_DECLS
#endif
