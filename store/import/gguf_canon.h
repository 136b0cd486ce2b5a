/* gguf_canon.h - what a GGUF's metadata says in Hugging Face's words; inside store only. */
#ifndef FM_STORE_GGUF_CANON_H
#define FM_STORE_GGUF_CANON_H

#include "store/formats/gguf.h"
#include "store/import/source_impl.h"

#define FM_GGUF_MAX_LAYERS 4096u

typedef struct gguf_arch {
    const char *prefix;     /* prefix of its metadata keys */
    const char *model_type; /* HF's */
    const char *class_name; /* HF's */
    bool permutes;          /* Q and K rows are in interleaved rotary order */
} gguf_arch;

/* A model's file, or the parts into which it was split; the first has the metadata. */
typedef struct gguf_parts {
    fm_gguf **g;
    size_t count;
} gguf_parts;
/* The tensor in any part, and that part in *in (may be NULL); NULL: there is none. */
const fm_gguf_tensor *gguf_find(const gguf_parts *p, const char *name, const fm_gguf **in);

/* The numbers that both the config and the tensor names need. */
typedef struct gguf_dims {
    const gguf_parts *parts;
    const gguf_arch *arch;
    uint64_t layers, hidden, inter, heads, kv_heads, head_dim, context, vocab;
    bool tied;
} gguf_dims;

/* FM_EUNSUPPORTED: an architecture or a setting that has no words of Hugging Face's here. */
fm_status gguf_read_dims(gguf_dims *out, const gguf_parts *p);
/* The HF name of a GGUF tensor, and the number of heads by which its rows are permuted (0: not
 * permuted). Empty name: the tensor follows from the config (rope_freqs) and is not a weight. */
fm_status gguf_hf_name(fm_buf *out, uint32_t *heads, const gguf_dims *d, const fm_gguf *g,
                       const fm_gguf_tensor *t);
fm_status gguf_config(fm_json **out, const gguf_dims *d, const fm_gguf *g);
/* Sets rope_scaling in config, if the file has one. */
fm_status gguf_rope_scaling(fm_json *config, const gguf_dims *d, const fm_gguf *g, double theta);
/* Puts the files of tokenizer/, if the file has a tokenizer. */
fm_status gguf_tokenizer(fm_source *src, const fm_gguf *g);
/* The pre_tokenizer, normalizer (NULL: none) and ignore_merges of a `tokenizer.ggml.pre` value. */
fm_status gguf_pre_tokenizer(fm_json **pre, fm_json **normalizer, bool *ignore_merges,
                             const char *name, const char *what);
/* "llama" + "." + key, in the caller's buffer. */
const char *gguf_key(const gguf_dims *d, const char *key, char out[128]);

#endif
