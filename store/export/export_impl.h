/* export_impl.h - shared by the writers of each format; inside store only (and for its tests). */
#ifndef FM_STORE_EXPORT_IMPL_H
#define FM_STORE_EXPORT_IMPL_H

#include "store/import/adapter_impl.h"
#include "store/base/os/io.h"
#include "store/formats/safetensors.h"
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
/* weights[0 .. count) as one safetensors file. */
fm_status exp_write_weights(const char *path, const exp_weight *weights, size_t count,
                            const fm_provider *p);
/* dtype of a tensor to write: wanted (or NONE) against what it is. */
fm_dtype exp_dtype(fm_dtype stored, fm_dtype wanted);

fm_status exp_source(const fm_tree *tree, const fm_provider *p, const char *dst);
/* What exp_source looks at before it writes: source.json's names, pieces and sizes. */
fm_status exp_source_check(const fm_tree *tree, const fm_provider *p);
/* model.json with its object 'config'; fm_json_free. FM_EUNSUPPORTED: there is none. */
fm_status exp_model_json(fm_json **out, const fm_tree *tree, const fm_provider *p);
fm_status exp_hf(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype,
                 uint64_t shard_bytes);
fm_status exp_safetensors(const fm_tree *tree, const fm_provider *p, const char *dst,
                          fm_dtype dtype);
fm_status exp_peft(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype);

/* Entries' bytes in order, read in parts on several threads. The sink gets them when a batch is full
 * or flushed; entries must live until then. */
typedef struct exp_pump exp_pump;
typedef fm_status (*exp_sink_fn)(void *ctx, const uint8_t *data, size_t len);
fm_status exp_pump_new(exp_pump **out, const fm_provider *p, exp_sink_fn sink, void *ctx);
void exp_pump_free(exp_pump *m);
/* Entries of a leaf and more that lie in a file as they are go to this sink, unverified. NULL: none. */
typedef fm_status (*exp_place_fn)(void *ctx, const fm_file_part *place, uint64_t offset,
                                  uint64_t len);
void exp_pump_places(exp_pump *m, exp_place_fn sink);
void exp_pump_flags(exp_pump *m, unsigned range_flags); /* of the reads from now on; first 0 */
/* Bytes [offset, offset + bytes) of e. */
fm_status exp_pump_entry(exp_pump *m, const fm_entry *e, uint64_t offset, uint64_t bytes);
/* All of a tensor, rows in GGUF's rotary order; heads divides half of its rows. */
fm_status exp_pump_rotary(exp_pump *m, const fm_entry *e, uint64_t heads);
fm_status exp_pump_flush(exp_pump *m);
void exp_pump_drop(exp_pump *m); /* forget what is not flushed */

/* dst/name = bytes. */
fm_status exp_put_file(const char *dst, const char *name, fm_span bytes);
/* dst/name = an entry's bytes. */
fm_status exp_put_entry(const char *dst, const char *name, const fm_provider *p, const fm_entry *e);

#endif
