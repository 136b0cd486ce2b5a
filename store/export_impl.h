/* export_impl.h - shared by the writers of each format; inside store only (and for its tests). */
#ifndef FM_STORE_EXPORT_IMPL_H
#define FM_STORE_EXPORT_IMPL_H

#include "store/adapter_impl.h"
#include "store/base/io.h"
#include "store/safetensors.h"
#include "store/source.h"

#define FM_EXPORT_SHARD_BYTES 5000000000ull /* as Hugging Face splits by default */

/* One low-rank term of a weight. */
typedef struct exp_term {
    const fm_entry *a, *b;
    float scale;
} exp_term;

/* A weight to write: a base tensor, what adapters put in its place, what they add. */
typedef struct exp_weight {
    char *name;           /* owned */
    const fm_entry *base; /* borrowed from the tree */
    exp_term *term;
    size_t term_count, term_cap;
    fm_dtype dtype; /* to write */
    uint64_t bytes; /* to write */
} exp_weight;

typedef struct exp_plan {
    exp_weight *weight; /* in the order of names' paths */
    size_t count, cap;
    bool unties; /* an adapter gives a tied model an lm_head of its own */
} exp_plan;

fm_status exp_plan_make(exp_plan *out, const fm_tree *tree, const fm_provider *p, fm_dtype dtype);
void exp_plan_free(exp_plan *plan);
/* The bytes of one weight as they are to be written; replaces what is in out. */
fm_status exp_weight_read(fm_buf *out, const exp_weight *w, const fm_provider *p);
/* weights[0 .. count) as one safetensors file. */
fm_status exp_write_weights(const char *path, const exp_weight *weights, size_t count,
                            const fm_provider *p);
/* dtype of a tensor to write: wanted (or NONE) against what it is. */
fm_dtype exp_dtype(fm_dtype stored, fm_dtype wanted);

fm_status exp_source(const fm_tree *tree, const fm_provider *p, const char *dst);
fm_status exp_hf(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype,
                 uint64_t shard_bytes);
fm_status exp_safetensors(const fm_tree *tree, const fm_provider *p, const char *dst,
                          fm_dtype dtype);
fm_status exp_peft(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype);

/* dst/name = bytes. */
fm_status exp_put_file(const char *dst, const char *name, fm_span bytes);
/* dst/name = an entry's bytes. */
fm_status exp_put_entry(const char *dst, const char *name, const fm_provider *p, const fm_entry *e);

#endif
