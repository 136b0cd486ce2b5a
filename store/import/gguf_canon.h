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
    const char *key,
        *name; /* below the prefix; Hugging Face's, GGUF_WORD: the only value, GGUF_FALSE: NULL */
    enum gguf_kind { GGUF_INT = 1, GGUF_REAL, GGUF_BOOL, GGUF_WORD, GGUF_FALSE } kind;
    double dflt; /* what Hugging Face means where the config has none; 0: nothing is written */
} gguf_setting;

/* Hugging Face's names of a model's tensors. */
typedef struct gguf_names {
    const char *const *prefix;   /* before all but the head: the first is written; ends with NULL */
    const char *layers;          /* then, in a layer, this and its number */
    const char *const (*top)[2]; /* of the whole model; "/" before a name: it has no prefix */
    const char *const (*layer)[2]; /* of a layer, before those that most have; all end with NULL */
} gguf_names;

/* Hugging Face's names of sizes; NULL: the family has no such setting. */
typedef struct gguf_words {
    const char *hidden, *inter, *layers, *heads, *kv_heads, *head_dim, *positions;
    const char *theta, *partial; /* theta NULL: positions are learned */
} gguf_words;

/* Bits of gguf_arch.has. */
#define GGUF_PERMUTES 1u       /* Q and K rows are in interleaved rotary order */
#define GGUF_PLUS_1 2u         /* norms hold 1 + w */
#define GGUF_EXPERTS 4u        /* expert tensors of three dimensions */
#define GGUF_WINDOW 8u         /* attention.sliding_window is the config's */
#define GGUF_PARTIAL 16u       /* only the first rope.dimension_count elements of a head turn */
#define GGUF_GEMMA 32u         /* query_pre_attn_scalar follows from the sizes */
#define GGUF_LONGROPE 64u      /* tensors hold longrope's factors */
#define GGUF_FREQS 128u        /* a tensor holds Llama 3's divisors */
#define GGUF_TIED 256u         /* the head is the embedding where the config does not say */
#define GGUF_PATTERN 512u      /* a list says which layers slide */
#define GGUF_SQUARE 1024u      /* the heads together are as wide as the model */
#define GGUF_NO_O_BIAS 2048u   /* llama.cpp loads no bias of attn_output */
#define GGUF_NO_MLP_BIAS 4096u /* likewise of the feed-forward part */
#define GGUF_ONE_KV 8192u      /* one head of keys, whatever the config's number */
#define GGUF_BY_TYPE 16384u    /* rotation is set by kind of layer */
#define GGUF_ALPHA 32768u      /* rope type dynamic with alpha is a fixed change of theta */
#define GGUF_YARN 65536u       /* llama.cpp reads all of YaRN's numbers */
#define GGUF_ALL_KV 131072u    /* as many heads of keys as of queries */
#define GGUF_SAYS_NONE 262144u /* rope.scaling.type says that there is none */
#define GGUF_GROUPS 524288u    /* HF's fused product is in groups of heads, GGUF's is not */
#define GGUF_CONV1D 1048576u   /* HF's matrices of layers are [in, out] */

#define GGUF_ENCODER 2097152u    /* no head; states are pooled */
#define GGUF_TYPES 4194304u      /* a table of token types */
#define GGUF_PAD_OFFSET 8388608u /* HF's positions begin behind the padding's number */

/* What a file must have for a row to be its architecture. */
typedef enum gguf_when {
    GGUF_ANY,
    GGUF_SLIDES,    /* attention.sliding_window above 0 */
    GGUF_SCALES,    /* attention.temperature_scale */
    GGUF_HAS_TYPES, /* a table of token types */
    GGUF_NORM_2,    /* a second norm before a layer's branches */
    GGUF_ONE_KEY,   /* one head of keys, and one norm */
    GGUF_NEVER,     /* it is written and comes back as another row */
} gguf_when;

/* An architecture that has words of Hugging Face's (gguf_arch.c). */
typedef struct gguf_arch {
    const char *prefix;     /* general.architecture, and the prefix of its metadata's keys */
    const char *model_type; /* HF's */
    const char *class_name; /* HF's */
    uint32_t has;
    gguf_when when;
    const gguf_names *names;      /* NULL: Llama's */
    const gguf_words *words;      /* NULL: Llama's */
    const gguf_setting *settings; /* ends with a key of NULL; NULL: none */
    const char *eps;              /* HF's name; NULL: rms_norm_eps */
    double fixed_eps;             /* HF's only value, which no config has; 0: it is a setting */
    const char *bias, *mlp_bias;  /* HF's names of switches; NULL: there are none */
    const char *o_bias;           /* likewise of attn_output alone */
    const char *fixed;       /* JSON: what the config needs besides, its first the activation; of a
                               list any, and the first is written */
    const char *const *idle; /* tensors without effect, "*end" or "begin*"; ends with NULL */
    double theta;            /* without rope.freq_base; 0: 10000 */
    double partial;          /* of a head turns, where the config does not say; 0: all */
    uint32_t head_dim;       /* where the config does not say; 0: hidden size / heads */
    uint32_t wide_layers;    /* of the Gemma whose scalar is hidden size / heads */
    uint32_t full_every;     /* each so-many-th layer has no window; 0: all layers are alike */
    uint32_t slide_layers;   /* llama.cpp slides in a model of so many layers, and no other */
} gguf_arch;
/* The i-th row; NULL at the end. Of two that hold for a file or config the first is it. */
const gguf_arch *gguf_arch_at(size_t i);
/* For a config, by its model_type and what is fixed; *out NULL: none has the type. */
fm_status gguf_arch_of_config(const gguf_arch **out, const fm_json *config);
/* *out: a setting of config that is not what the architecture fixes; empty: all are. */
fm_status gguf_misfit(fm_buf *out, const gguf_arch *arch, const fm_json *config);
/* Appends the names of all architectures; of_types: Hugging Face's. */
void gguf_arch_names(fm_buf *out, bool of_types);
const gguf_words *gguf_words_of(const gguf_arch *arch);
/* YaRN's numbers, which are below rope_scaling in a config; ends with a key of NULL. */
extern const gguf_setting gguf_yarn[];

/* ---- names (gguf_names.c) ---- */

extern const gguf_names gguf_names_llama, gguf_names_after, gguf_names_sandwich, gguf_names_phi3,
    gguf_names_glm, gguf_names_glm4, gguf_names_hunyuan, gguf_names_phi, gguf_names_mixtral,
    gguf_names_qwen_moe, gguf_names_starcoder2, gguf_names_gpt, gguf_names_neox, gguf_names_falcon,
    gguf_names_falcon_2, gguf_names_bert, gguf_names_distilbert, gguf_names_nomic;
/* The words of a name of GGUF, which are without prefix, number and last dot: of a layer or of the
 * whole; "%u" in them is the expert's number. NULL: not known. */
const char *gguf_words_of_stem(const gguf_arch *arch, bool in_layer, const char *stem, size_t len);
/* What becomes of a tensor with a name of Hugging Face's. */
typedef struct gguf_part {
    const char *stem; /* GGUF's, without number and last dot */
    uint32_t expert;  /* or GGUF_NO_EXPERT */
} gguf_part;
#define GGUF_NO_EXPERT UINT32_MAX
/* Appends GGUF's name of Hugging Face's. False: it has none. */
bool gguf_name_of(fm_buf *out, gguf_part *part, const gguf_arch *arch, const char *hf);
/* Whether the tensor has no effect. */
bool gguf_is_idle(const gguf_arch *arch, const char *hf);
/* Appends the name for words, of a layer's number (GGUF_NO_LAYER: of the whole). */
#define GGUF_NO_LAYER UINT64_MAX
void gguf_put_name(fm_buf *out, const gguf_arch *arch, const char *words, uint64_t layer,
                   uint32_t expert);

/* "llama" + "." + key, in the caller's buffer. */
const char *gguf_key(const gguf_arch *arch, const char *key, char out[128]);
/* The key of the norms' epsilon, below the prefix. */
const char *gguf_eps_key(const gguf_arch *arch);
/* query_pre_attn_scalar of a GGUF_GEMMA; share: hidden size / heads. */
uint64_t gguf_gemma_scalar(const gguf_arch *arch, uint64_t layers, uint64_t share,
                           uint64_t head_dim);
/* pooling_type's words, by its number: what sentence-transformers calls "cls_token"; NULL: none. */
const char *gguf_pooling_word(uint64_t type);

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
    uint64_t types; /* rows of the table of token types */
    bool tied;
} gguf_dims;

/* FM_EUNSUPPORTED: an architecture or a setting that has no words of Hugging Face's here. */
fm_status gguf_read_dims(gguf_dims *out, const gguf_parts *p);
/* How a tensor becomes Hugging Face's. */
typedef struct gguf_use {
    src_order order;  /* of its rows */
    uint32_t experts; /* it is so many tensors, one after another; 0: it is one */
    bool minus_1;     /* its floats are one too high */
    bool no_weight;   /* it follows from the config (rope_freqs) */
} gguf_use;
/* FM_EUNSUPPORTED: no tensor of this architecture, or of another type than its use needs. */
fm_status gguf_use_of(gguf_use *out, const gguf_dims *d, const fm_gguf *g, const fm_gguf_tensor *t);
/* The HF name of a tensor that gguf_use_of knows, of its expert if it has some. */
fm_status gguf_hf_name(fm_buf *out, const gguf_dims *d, const fm_gguf_tensor *t, uint32_t expert);
/* Puts what a sentence-transformers folder says of pooling, if the file does. */
fm_status gguf_pooling(fm_source *src, const gguf_dims *d, const fm_gguf *g);
fm_status gguf_config(fm_json **out, const gguf_dims *d, const fm_gguf *g);
/* The shortest decimal that reads back as the same float32: 1e-05, not 9.99999974e-06. */
double gguf_shortest(double v);
fm_status gguf_set_int(fm_json *o, const char *key, uint64_t v);
/* Sets one of the config's settings, if the file has it. */
fm_status gguf_set_setting(fm_json *o, const gguf_dims *d, const fm_gguf *g, const gguf_setting *s);
/* Sets rope_scaling in config, if the file has one (gguf_rope.c). */
fm_status gguf_rope_scaling(fm_json *config, const gguf_dims *d, const fm_gguf *g, double theta);
/* A LoRA of llama.cpp's, which belongs to a model. Opens it as PEFT's, by src->parent's model. */
bool gguf_is_adapter(const fm_gguf *g);
fm_status gguf_open_lora(fm_source *src, src_file *f, const fm_gguf *g);
/* Puts the files of tokenizer/, if the file has a tokenizer. */
fm_status gguf_tokenizer(fm_source *src, const fm_gguf *g);
/* The pre_tokenizer, normalizer (NULL: none) and ignore_merges of a `tokenizer.ggml.pre` value. */
fm_status gguf_pre_tokenizer(fm_json **pre, fm_json **normalizer, bool *ignore_merges,
                             const char *name, const char *what);
/* The inverse: the name whose rules these are; NULL: none. normalizer may be NULL. */
const char *gguf_pre_name(const fm_json *pre, const fm_json *normalizer, bool ignore_merges);
#endif
