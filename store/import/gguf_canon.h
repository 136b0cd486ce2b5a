/* gguf_canon.h - what a GGUF's metadata says in Hugging Face's words; inside store only. */
#ifndef FM_STORE_GGUF_CANON_H
#define FM_STORE_GGUF_CANON_H

#include "store/formats/gguf.h"
#include "store/import/source_impl.h"

#define FM_GGUF_MAX_LAYERS 4096u
#define GGUF_FACTORS_LONG "rope_factors_long.weight"
#define GGUF_FACTORS_SHORT "rope_factors_short.weight"

/* A setting of the metadata that is one of the config's, under another name. */
typedef struct gguf_setting {
    const char *key, *name; /* below the prefix; Hugging Face's */
    enum gguf_kind { GGUF_INT = 1, GGUF_REAL, GGUF_BOOL } kind;
} gguf_setting;

/* Bits of gguf_arch.has. */
#define GGUF_PERMUTES 1u  /* Q and K rows are in interleaved rotary order */
#define GGUF_PLUS_1 2u    /* norms hold 1 + w */
#define GGUF_EXPERTS 4u   /* expert tensors of three dimensions */
#define GGUF_WINDOW 8u    /* attention.sliding_window is the config's */
#define GGUF_PARTIAL 16u  /* only the first rope.dimension_count elements of a head turn */
#define GGUF_GEMMA 32u    /* query_pre_attn_scalar follows from the sizes */
#define GGUF_LONGROPE 64u /* tensors hold longrope's factors */

/* An architecture that has words of Hugging Face's (gguf_arch.c). */
typedef struct gguf_arch {
    const char *prefix;     /* general.architecture, and the prefix of its metadata's keys */
    const char *model_type; /* HF's */
    const char *class_name; /* HF's */
    uint32_t has;
    const char *const (*names)[2]; /* of a layer, before those that all have; ends with NULL */
    const gguf_setting *settings;  /* ends with a key of NULL; NULL: none */
    const char *eps;               /* HF's name; NULL: rms_norm_eps */
    const char *bias, *mlp_bias;   /* HF's names of switches; NULL: there are none */
    const char *fixed;    /* JSON: what the config needs besides; its first is hidden_act */
    double theta;         /* without rope.freq_base; 0: 10000 */
    uint32_t wide_layers; /* of the Gemma whose scalar is hidden size / heads */
    uint32_t full_every;  /* each so-many-th layer has no window; 0: all layers are alike */
} gguf_arch;
/* NULL: none of this name with (without) experts. */
const gguf_arch *gguf_arch_find(fm_span name, bool experts);
/* By Hugging Face's model_type, for writing; NULL: none. A Mistral is a llama with a window. */
const gguf_arch *gguf_arch_of_type(const char *model_type);
/* Appends the names that gguf_arch_find knows; of_types: that gguf_arch_of_type knows. */
void gguf_arch_names(fm_buf *out, bool of_types);
/* The words after "model.layers.N." of the words between "blk.N." and the last dot; "%u" in them is
 * the expert's number. NULL: not known. */
const char *gguf_layer_name(const gguf_arch *arch, const char *stem, size_t len);
/* The inverse: *expert is the number in an expert's words, else GGUF_NO_EXPERT. */
#define GGUF_NO_EXPERT UINT32_MAX
const char *gguf_layer_stem(const gguf_arch *arch, const char *words, size_t len, uint32_t *expert);
/* Appends GGUF's name of Hugging Face's. *q, *k: its rows turn. False: it has none. */
bool gguf_name_of(fm_buf *out, const gguf_arch *arch, const char *hf, uint32_t *expert, bool *q,
                  bool *k);

/* "llama" + "." + key, in the caller's buffer. */
const char *gguf_key(const gguf_arch *arch, const char *key, char out[128]);
/* The key of the norms' epsilon, below the prefix. */
const char *gguf_eps_key(const gguf_arch *arch);
/* query_pre_attn_scalar of a GGUF_GEMMA; share: hidden size / heads. */
uint64_t gguf_gemma_scalar(const gguf_arch *arch, uint64_t layers, uint64_t share,
                           uint64_t head_dim);

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
    uint64_t layers, hidden, inter, heads, kv_heads, head_dim, rotary, context, vocab, experts;
    bool tied;
} gguf_dims;

/* FM_EUNSUPPORTED: an architecture or a setting that has no words of Hugging Face's here. */
fm_status gguf_read_dims(gguf_dims *out, const gguf_parts *p);
/* How a tensor becomes Hugging Face's. */
typedef struct gguf_use {
    uint32_t heads;   /* rows are permuted by this many heads; 0: not */
    uint32_t experts; /* it is so many tensors, one after another; 0: it is one */
    bool minus_1;     /* its floats are one too high */
    bool no_weight;   /* it follows from the config (rope_freqs) */
} gguf_use;
/* FM_EUNSUPPORTED: no tensor of this architecture, or of another type than its use needs. */
fm_status gguf_use_of(gguf_use *out, const gguf_dims *d, const fm_gguf *g, const fm_gguf_tensor *t);
/* The HF name of a tensor that gguf_use_of knows, of its expert if it has some. */
fm_status gguf_hf_name(fm_buf *out, const gguf_dims *d, const fm_gguf_tensor *t, uint32_t expert);
fm_status gguf_config(fm_json **out, const gguf_dims *d, const fm_gguf *g);
/* Sets rope_scaling in config, if the file has one. */
fm_status gguf_rope_scaling(fm_json *config, const gguf_dims *d, const fm_gguf *g, double theta);
/* Puts the files of tokenizer/, if the file has a tokenizer. */
fm_status gguf_tokenizer(fm_source *src, const fm_gguf *g);
/* The pre_tokenizer, normalizer (NULL: none) and ignore_merges of a `tokenizer.ggml.pre` value. */
fm_status gguf_pre_tokenizer(fm_json **pre, fm_json **normalizer, bool *ignore_merges,
                             const char *name, const char *what);
/* The inverse: the name whose rules these are; NULL: none. normalizer may be NULL. */
const char *gguf_pre_name(const fm_json *pre, const fm_json *normalizer, bool ignore_merges);
#endif
