/* export_impl.h - shared by the writers of the formats; inside store only (and for its tests). */
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

/* A weight to write: a base tensor, or an adapter's in its place, and the adapters' terms. */
typedef struct exp_weight {
    char *name;           /* owned */
    const fm_entry *base; /* borrowed from the tree */
    exp_term *term;
    size_t term_count, term_cap;
    fm_dtype dtype; /* dtype to write it in */
    uint64_t bytes; /* bytes to write */
} exp_weight;

typedef struct exp_plan {
    exp_weight *weight; /* in the order of names' paths */
    size_t count, cap;
    bool unties; /* an adapter gives a tied model its own lm_head */
} exp_plan;

fm_status exp_plan_make(exp_plan *out, const fm_tree *tree, const fm_provider *p, fm_dtype dtype);
void exp_plan_free(exp_plan *plan);
/* Writes weights[0 .. count) as one safetensors file. */
fm_status exp_write_weights(const char *path, const exp_weight *weights, size_t count,
                            const fm_provider *p);
/* The dtype to write a tensor in: `wanted`, or `stored` where that is NONE or does not apply. */
fm_dtype exp_dtype(fm_dtype stored, fm_dtype wanted);

fm_status exp_source(const fm_tree *tree, const fm_provider *p, const char *dst);
/* The checks of exp_source before it writes: source.json's names, pieces and sizes. */
fm_status exp_source_check(const fm_tree *tree, const fm_provider *p);
/* Reads model.json, which must have an object 'config'. FM_EUNSUPPORTED: there is none. */
fm_status exp_model_json(fm_json **out, const fm_tree *tree, const fm_provider *p);
fm_status exp_hf(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype,
                 uint64_t shard_bytes);
fm_status exp_safetensors(const fm_tree *tree, const fm_provider *p, const char *dst,
                          fm_dtype dtype);
fm_status exp_peft(const fm_tree *tree, const fm_provider *p, const char *dst, fm_dtype dtype);

/* Reads entries' bytes in parts on several threads and gives them to the sink in order, when a
 * batch is full or flushed; entries must live until then. */
typedef struct exp_pump exp_pump;
typedef fm_status (*exp_sink_fn)(void *ctx, const uint8_t *data, size_t len);
fm_status exp_pump_new(exp_pump **out, const fm_provider *p, exp_sink_fn sink, void *ctx);
void exp_pump_free(exp_pump *m);
/* The sink, or NULL, for entries of at least a leaf that are uncoded in a file, unverified. */
typedef fm_status (*exp_place_fn)(void *ctx, const fm_file_part *place, uint64_t offset,
                                  uint64_t len);
void exp_pump_places(exp_pump *m, exp_place_fn sink);
void exp_pump_flags(exp_pump *m, unsigned range_flags); /* for later reads; at first 0 */
/* Queues bytes [offset, offset + bytes) of e. */
fm_status exp_pump_entry(exp_pump *m, const fm_entry *e, uint64_t offset, uint64_t bytes);
/* Queues all of a tensor, its rows in GGUF's rotary order; heads divides half of its rows. */
fm_status exp_pump_rotary(exp_pump *m, const fm_entry *e, uint64_t heads);
fm_status exp_pump_flush(exp_pump *m);
void exp_pump_drop(exp_pump *m); /* drops the queue */

/* Write bytes, or an entry's bytes, to dst/name. */
fm_status exp_put_file(const char *dst, const char *name, fm_span bytes);
fm_status exp_put_entry(const char *dst, const char *name, const fm_provider *p, const fm_entry *e);

#endif
