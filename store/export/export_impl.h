/* export_impl.h - shared by the writers of the formats; inside store only (and for its tests).
 *
 * A format says which files an export has and what each consists of (hf.c, peft.c, source.c), by
 * filling a view; view.c gives the bytes of any range, export.c writes all of them to disk. */
#ifndef FM_STORE_EXPORT_IMPL_H
#define FM_STORE_EXPORT_IMPL_H

#include "store/adapt/adapter_impl.h"
#include "store/adapted.h"
#include "store/import/source_impl.h"
#include "store/base/os/io.h"
#include "store/export_view.h"
#include "store/formats/imatrix.h"
#include "store/formats/safetensors.h"
#include "store/scaled.h"
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
    /* GGUF: */
    fm_shape shape;  /* as written */
    src_order order; /* of its rows */
    uint64_t skip;   /* elements in front that are left out */
    bool plus_1;     /* one is added to each element */
    bool turned;     /* a matrix, columns become rows */
    /* A weight for each element of a row, to quantize by; of several matrices (three
     * dimensions) each has its own row of them. Borrowed from the view; NULL: none. */
    const float *importance;
} exp_weight;

typedef struct exp_plan {
    exp_weight *weight; /* in the order of names' paths */
    size_t count, cap;
    bool unties; /* an adapter gives a tied model its own lm_head */
} exp_plan;

/* The weights of a model with its adapters merged. */
fm_status exp_plan_make(exp_plan *out, const fm_tree *tree, const fm_provider *p, fm_dtype dtype);
fm_status exp_plan_add(exp_plan *plan, const char *name, const fm_entry *base);
/* Sets the weights' dtypes and sizes; dtype NONE: as stored where safetensors has the type. */
fm_status exp_plan_sizes(exp_plan *plan, fm_dtype dtype);
void exp_plan_free(exp_plan *plan);

/* ---- views ---- */

/* Bytes [at, at + bytes) of a file: the literal's, or a made weight's, or an entry's from `from`
 * on; with an order, which fits, all of the entry, its rows in that order. */
typedef struct exp_segment {
    uint64_t at, bytes;
    const uint8_t *literal;
    const exp_weight *made;
    const fm_entry *e;
    uint64_t from;
    src_order order;
} exp_segment;

typedef struct exp_file {
    fm_view_file shown;
    char *name;
    uint8_t *text;     /* owned; a literal of its own, or NULL */
    size_t first, end; /* its segments */
    size_t order;      /* of two files with one name the one that was added later stays */
} exp_file;

struct fm_view {
    const fm_tree *tree;
    const fm_provider *p;
    fm_plain *plain;
    fm_adapted *adapted;
    fm_imatrix *imatrix; /* or NULL */
    exp_plan plan;
    exp_file *file;
    size_t count, cap;
    exp_segment *segment;
    size_t segments, segment_cap;
    bool single; /* its one file is exported under the target's own name */
};

fm_status exp_view_open(fm_view **out, const fm_tree *tree, const fm_provider *p,
                        const fm_view_opts *opts, uint64_t shard_bytes);
void exp_view_release(fm_view *v); /* frees what it holds, not itself */
/* Writes the files to dst; a failure leaves nothing there. */
fm_status exp_write(const fm_view *v, const char *dst);
/* Adds an empty file; the calls below append to the file that was added last. */
fm_status exp_add_file(fm_view *v, const char *name);
fm_status exp_add_text(fm_view *v, fm_buf *text); /* takes the bytes; once for a file */
/* The same in two steps: the file has the text, and then bytes of it are appended. */
fm_status exp_keep_text(fm_view *v, fm_buf *text);
fm_status exp_add_kept(fm_view *v, uint64_t from, uint64_t bytes);
fm_status exp_add_entry(fm_view *v, const fm_entry *e, uint64_t from, uint64_t bytes);
fm_status exp_add_rows(fm_view *v, const fm_entry *e, src_order order);
/* Adds a safetensors file of weights, which are the view's. */
fm_status exp_add_weights(fm_view *v, const char *name, const exp_weight *weights, size_t count);
/* Appends one weight, which is the view's; so many zeros, at most 32. */
fm_status exp_add_weight(fm_view *v, const exp_weight *w);
fm_status exp_add_zeros(fm_view *v, uint64_t bytes);
/* Adds a file of JSON, and `tail` behind it. */
fm_status exp_add_json(fm_view *v, const char *name, const fm_json *json, const char *tail);

/* Fill a view with the format's files. only: of the imported files this one alone; may be NULL. */
fm_status exp_source(fm_view *v, const fm_digest *only);
fm_status exp_hf(fm_view *v, fm_dtype dtype, uint64_t shard_bytes);
fm_status exp_safetensors(fm_view *v, fm_dtype dtype);
fm_status exp_peft(fm_view *v, const fm_view_opts *opts);
fm_status exp_gguf(fm_view *v, const fm_view_opts *opts);
fm_status exp_gguf_lora(fm_view *v, fm_dtype dtype);
/* *out: a JSON file of the tree; NULL: there is none. */
fm_status exp_read_json(fm_json **out, const fm_view *v, const char *path);
/* Reads model.json, which must have an object 'config'. FM_EUNSUPPORTED: there is none. */
fm_status exp_model_json(fm_json **out, const fm_tree *tree, const fm_provider *p);

/* ---- bytes ---- */

/* Reads segments' bytes in parts on several threads and gives them to the sink in order, when a
 * batch is full or flushed; segments must live until then. */
typedef struct exp_pump exp_pump;
typedef fm_status (*exp_sink_fn)(void *ctx, const void *data, size_t len);
fm_status exp_pump_new(exp_pump **out, const fm_provider *p, unsigned threads_max, exp_sink_fn sink,
                       void *ctx);
void exp_pump_free(exp_pump *m);
/* The sink, or NULL, for entries of at least a leaf that are uncoded in a file, unverified. */
typedef fm_status (*exp_place_fn)(void *ctx, const fm_file_part *place, uint64_t offset,
                                  uint64_t len);
void exp_pump_places(exp_pump *m, exp_place_fn sink);
void exp_pump_flags(exp_pump *m, unsigned range_flags); /* for later reads; at first 0 */
/* Queues bytes [from, end) of a segment, at least one. */
fm_status exp_pump_add(exp_pump *m, const exp_segment *s, uint64_t from, uint64_t end);
fm_status exp_pump_flush(exp_pump *m);
void exp_pump_drop(exp_pump *m); /* drops the queue */

/* Gives bytes [offset, offset + bytes) of file i to the pump's sink. */
fm_status exp_view_pump(const fm_view *v, size_t i, uint64_t offset, uint64_t bytes, exp_pump *m);

/* The factors of a weight's terms in float32. */
typedef struct exp_factors {
    float **a, **b;
    size_t count;
} exp_factors;
fm_status exp_factors_read(exp_factors *out, const exp_weight *w, const fm_provider *p);
void exp_factors_free(exp_factors *f);
/* The elements that are made together: a block as stored and as written, or a row to be merged. */
uint64_t exp_unit(const exp_weight *w);
uint64_t exp_stored_bytes(const exp_weight *w, uint64_t n); /* of n elements, whole blocks */
uint64_t exp_made_bytes(const exp_weight *w, uint64_t n);   /* likewise, as written */
/* Rounds elements [first, first + n), whole blocks, to the type that they are written in. */
fm_status exp_narrow(uint8_t *out, const exp_weight *w, const float *wide, uint64_t first,
                     uint64_t n);
/* Makes elements [first, first + n), whole units, as they are written, from their stored bytes.
 * wide has room for wide_elems floats, at least a unit. */
fm_status exp_make(uint8_t *out, float *wide, uint64_t wide_elems, const exp_weight *w,
                   const exp_factors *f, const uint8_t *stored, uint64_t first, uint64_t n);

#endif
