/* gguf_canon.h - what a GGUF's metadata says in Hugging Face's words; inside store only. */
#ifndef FM_STORE_GGUF_CANON_H
#define FM_STORE_GGUF_CANON_H

#include "store/formats/gguf.h"
#include "store/import/source_impl.h"

#define FM_GGUF_MAX_LAYERS 4096u

typedef struct gguf_arch {
    const char *prefix;     /* of its metadata keys */
    const char *model_type; /* HF's */
    const char *class_name; /* HF's */
    bool permutes;          /* Q and K rows stand in interleaved rotary order */
} gguf_arch;

/* The numbers that both the config and the tensor names need. */
typedef struct gguf_dims {
    const gguf_arch *arch;
    uint64_t layers, hidden, inter, heads, kv_heads, head_dim, context, vocab;
    bool tied;
} gguf_dims;

fm_status gguf_read_dims(gguf_dims *out, const fm_gguf *g);
/* HF name of a GGUF tensor and how many heads its rows are permuted by (0: not). Empty name: the
 * tensor is derived from the config (rope_freqs) and is no weight. */
fm_status gguf_hf_name(fm_buf *out, uint32_t *heads, const gguf_dims *d, const fm_gguf *g,
                       const fm_gguf_tensor *t);
fm_status gguf_config(fm_json **out, const gguf_dims *d, const fm_gguf *g);
/* Sets rope_scaling (and nothing where there is none) in config. */
fm_status gguf_rope_scaling(fm_json *config, const gguf_dims *d, const fm_gguf *g, double theta);
/* tokenizer/...: nothing where the file has no tokenizer. */
fm_status gguf_tokenizer(fm_source *src, const fm_gguf *g);
/* pre_tokenizer, normalizer (NULL: none) and ignore_merges of a `tokenizer.ggml.pre` value. */
fm_status gguf_pre_tokenizer(fm_json **pre, fm_json **normalizer, bool *ignore_merges,
                             const char *name, const char *what);
/* "llama" + "." + key in a buffer of the caller's; key is a literal of ours. */
const char *gguf_key(const gguf_dims *d, const char *key, char out[128]);

#endif
