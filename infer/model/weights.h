/* weights.h - the cache of weights on the device, keyed by tensor id and form.
 *
 * An id stands for a tensor's dtype, shape and value, and a cache has one backend, so one layout:
 * two models (or two names) that hold the same tensor hold one copy here, and equal pointers mean
 * equal weights: the engine groups rows by pointer. A tensor used both as a matrix and as a plain
 * vector is held in both forms.
 *
 * References are pins. An entry without references leaves at once where there is no budget; with a
 * budget it stays until memory is needed, and the least recently used one leaves first. Bytes are
 * reserved before they are read, so the budget holds at every moment.
 *
 * Any thread may call; the lock is never held while a tensor is read or packed. When two threads
 * want the same tensor the first reads it and the second waits. */
#ifndef FM_INFER_WEIGHTS_H
#define FM_INFER_WEIGHTS_H

#include "infer/model/packed_file.h"
#include "infer/model/slab.h"
#include "store/tree.h"

FM_BEGIN_DECLS

typedef enum fmi_form {
    FMI_MATRIX = FM_ROLE_LINEAR, /* fm_weight [n, k]: a linear layer or embedding */
    FMI_LORA_A = FM_ROLE_LORA_A, /* fm_weight [r, k] */
    FMI_LORA_B = FM_ROLE_LORA_B, /* fm_weight [n, r] */
    FMI_VECTOR,                  /* float32 as stored, row-major: gains, biases */
    FMI_VECTOR_PLUS1,            /* likewise, 1 added to each: Gemma's gains */
    FMI_MATRIX_T,                /* FMI_MATRIX of a tensor that is stored [k, n] */
    /* Added to a form: another stage has the tensor (stage_split.h). The entry has an id and an
     * address of its own, so that models can be compared as on that stage, but no bytes to read. */
    FMI_ELSEWHERE = 64,
} fmi_form;

static inline bool fmi_form_is_vector(fmi_form form)
{
    form &= ~(unsigned)FMI_ELSEWHERE;
    return form == FMI_VECTOR || form == FMI_VECTOR_PLUS1;
}
typedef struct fmi_cached {
    fm_digest id;
    fmi_form form;
    fm_weight *w;   /* forms of matrices */
    const float *v; /* forms of vectors */
    uint64_t bytes; /* on the device */
    /* For the cache alone, behind its lock. */
    enum { FMI_LOADING, FMI_READY, FMI_FAILED } state;
    uint32_t refs;
    void *mem;       /* device memory of v */
    fmi_slab *slab;  /* the slab from a piece of which w is mapped, or */
    fm_file_map map; /* the packed file from which w is mapped */
    bool lent;       /* w or v is the provider's own bytes: leaves with its last reference */
    struct fmi_cached *next;          /* in its bucket */
    struct fmi_cached *older, *newer; /* in the list of entries without references */
} fmi_cached;

typedef struct fmi_weights fmi_weights;
typedef struct fmi_weights_opts {
    uint64_t bytes_max;          /* 0: no budget */
    fmi_packed_files *artefacts; /* borrowed; NULL: images are made anew each time */
    uint64_t artefact_min;       /* images of fewer bytes are not kept in files */
} fmi_weights_opts;
FM_CHECKED fm_status fmi_weights_new(fmi_weights **out, fm_backend *be,
                                     const fmi_weights_opts *opts);
void fmi_weights_free(fmi_weights *c); /* asserts that nothing is held any more */

/* One more reference to e's tensor in this form, read from p if it is not resident. Where p has
 * view and the backend can use the bytes as they are stored, they stay where they are: p's owner
 * must outlive the reference. FM_ELIMIT names what is needed, what is in use and the budget; then
 * closing models and asking again may help. */
FM_CHECKED fm_status fmi_weights_take(fmi_weights *c, fmi_cached **out, const fm_entry *e,
                                      fmi_form form, const fm_provider *p);
void fmi_weights_drop(fmi_weights *c, fmi_cached *w); /* NULL is fine */

typedef struct fmi_weights_stats {
    uint64_t count, bytes, bytes_max; /* resident, and being read */
    uint64_t idle, idle_bytes;        /* of them: without references */
    uint64_t shared, shared_bytes;    /* of them: with two or more */
    uint64_t mapped_bytes;            /* of them: files, not memory of this process */
    uint64_t hits, misses, evictions; /* since the beginning */
    uint64_t elsewhere;               /* of count: without bytes */
} fmi_weights_stats;
fmi_weights_stats fmi_weights_stats_of(fmi_weights *c);

FM_END_DECLS
#endif
