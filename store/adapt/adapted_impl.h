/* adapted_impl.h - the view of adapted.h: adapted.c makes its tree, adapted_read.c its bytes. */
#ifndef FM_STORE_ADAPTED_IMPL_H
#define FM_STORE_ADAPTED_IMPL_H

#include <pthread.h>

#include "store/adapt/adapt_impl.h"

/* What an entry of the view is made of: a weight with its folded steps, a factor of a step, or a
 * text. */
typedef struct adt_made {
    const adt_weight *weight;
    const adt_step *factor; /* NULL: the weight */
    bool b;
    fm_dtype dtype;
    fm_shape shape;
    fm_buf text; /* not empty: a config, which is too long to lie in a tree */
} adt_made;

struct fm_adapted {
    const fm_tree *tree; /* the view: own, or the tree that was given */
    fm_tree *own;
    const fm_provider *behind;
    fm_provider p;
    fm_adapted_use use;
    fm_dtype dtype;
    adt_plan plan;
    fm_map *by_id;   /* id in own -> adt_made * */
    fm_map *dropped; /* paths of tensors that are part of weights now */
    adt_made **made;
    size_t count, cap;
    pthread_mutex_t lock; /* guards what follows: the entry that was last read in parts */
    fm_digest last;
    uint8_t *last_bytes;
};

/* What reads the view's entries: those that are made here, and the others from what lies behind. */
fm_provider adt_provider(fm_adapted *v);

#endif
