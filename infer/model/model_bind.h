/* model_bind.h - what engine/models.c and the files of this folder share while a tree is bound.
 *
 * Binding may run on another thread while the engine steps: it uses the weights cache, rotary
 * tables and texts (which lock), and those calls of the backend that any thread may make; never an
 * operation, the engine's pool or its counters. fm_model_adopt does what needs these. */
#ifndef FM_INFER_MODEL_BIND_H
#define FM_INFER_MODEL_BIND_H

#include "infer/model/state.h"
#include "store/base/map.h"

FM_BEGIN_DECLS

#define FMI_MAX_ADAPTERS 64u

typedef enum fmi_adapter_kind {
    FMI_LORA, /* rsLoRA too: only its scale differs */
    FMI_DORA,
    FMI_IA3,
    FMI_PREFIX,
    FMI_PROMPT,
    FMI_ADAPTER_KINDS
} fmi_adapter_kind;

/* adapters/<n>-<kind>/ of a tree: its config and its entries. */
typedef struct fmi_adapter {
    fmi_adapter_kind kind;
    fm_json *config;
    size_t begin, end; /* entries of its tensors in the tree */
    char what[256];    /* "<model>: adapter 0" */
} fmi_adapter;

typedef struct fmi_binder {
    fm_model *m;
    const fm_tree *tree;
    const fm_provider *p;
    const char *what;
    fm_pool *pool;    /* threads that read for this model alone; NULL: the caller's thread */
    bool longer;      /* the model of long texts: fm_model_for_length */
    fm_map *replaced; /* parameter name -> const fm_entry * of the adapter that replaces it */
    fmi_adapter adapter[FMI_MAX_ADAPTERS];
    uint32_t adapters;
} fmi_binder;

/* ---- bind.c ---- */

/* Binds every tensor of the tree to its place in the model and adds what it read to digest, whose
 * result becomes the model's digest. */
FM_CHECKED fm_status fmi_bind_weights(fmi_binder *b, fm_hasher *digest);
/* Adds sizes and settings of an architecture to h. */
FM_CHECKED fm_status fmi_digest_arch(fm_hasher *h, const fm_arch *a);

/* ---- take.c ---- */

/* e's tensor, held until the model closes. */
FM_CHECKED fm_status fmi_hold(fmi_binder *b, fmi_cached **out, const fm_entry *e, fmi_form form);
/* Likewise a slice of e's tensor (shard.h). */
struct fmi_slice;
FM_CHECKED fm_status fmi_hold_slice(fmi_binder *b, fmi_cached **out, const fm_entry *e,
                                    fmi_form form, const struct fmi_slice *slice);
/* Hands a reference to w over to the model, which keeps one of each. */
FM_CHECKED fm_status fmi_held(fm_model *m, fmi_cached *w);
/* The entry that holds parameter `name`: an adapter's replacement, else the base tensor. */
FM_CHECKED fm_status fmi_find_entry(fmi_binder *b, const fm_entry **out, const char *name);
/* e's elements as f32 [n]; the caller frees them by fm_free. */
FM_CHECKED fm_status fmi_read_floats(fmi_binder *b, float **out, const fm_entry *e);
/* A device vector that the model owns: values computed from tensors, not held by the cache. */
FM_CHECKED fm_status fmi_own(fm_model *m, const float **out, const float *host, uint32_t n);
/* The form in which the cache holds a parameter's tensor. */
fmi_form fmi_form_of(const fm_arch *a, const fm_param *p);

/* prefetch.c: reads the parameters' tensors on the pool's threads and holds them. What it cannot
 * read is left to binding, which reports it. */
void fmi_read_ahead(fmi_binder *b);

/* pooling.c: reads how states are pooled; an unknown setting is refused at the first request. */
FM_CHECKED fm_status fmi_pooling_bind(fmi_binder *b);

/* ask_digest.c: the digests of embeddings and classes, when all else is bound. */
FM_CHECKED fm_status fmi_ask_digests(fmi_binder *b);

/* multipliers.c: scales of products that the config has, once all products are bound. */
FM_CHECKED fm_status fmi_multipliers_bind(fmi_binder *b);

/* class_head.c: binds a classification head where the tree or an adapter has one. */
FM_CHECKED fm_status fmi_class_bind(fmi_binder *b, fm_hasher *digest);
/* Whether a tensor of this name is of such a head. */
bool fmi_class_tensor(const fm_arch *a, const char *tensor);

/* ---- model_places.c ---- */

/* The linear layer whose weight or bias p is; NULL: p is a norm's or a table of the embedding. */
fm_linear *fmi_linear_at(fm_model *m, const fm_param *p);
/* The field that points to this vector of a norm or of the embedding. */
const float **fmi_vector_at(fm_model *m, const fm_param *p);
/* PEFT's "base_model.model.X": X, else NULL. */
const char *fmi_module_of(const char *key);
/* The linear layer that PEFT's module name means ("model.layers.1.self_attn.q_proj", "lm_head");
 * NULL: there is none that takes a LoRA. */
fm_linear *fmi_linear_of_module(fm_model *m, const char *module);
/* Whether that module name means the embedding of tokens. */
bool fmi_is_embedding(const fm_model *m, const char *module);
/* Allocates the model's layers, with the experts of sparse ones. */
FM_CHECKED fm_status fmi_layers_new(fm_model *m);
/* Gives layers that share parameters what adapters did to the first of them. */
FM_CHECKED fm_status fmi_layers_share(fm_model *m);
void fmi_layers_free(fm_model *m);

/* Binds tokenizer, chat template and text_digest of the tree, shared through the engine. */
FM_CHECKED fm_status fmi_text_bind(fmi_binder *b);
void fmi_text_drop(fm_engine *e, fmi_text *t); /* NULL is fine */
void fmi_texts_free(fm_engine *e);
/* The trie of the model's vocabulary, made at the first call. FM_EINVAL: no tokenizer. */
FM_CHECKED fm_status fmi_text_trie(const fm_token_trie **out, const fm_model *m);

/* adapter.c: find reads the configs and fills `replaced`; bind, called once the base is bound, adds
 * terms, scales and virtual positions. */
FM_CHECKED fm_status fmi_adapters_find(fmi_binder *b);
FM_CHECKED fm_status fmi_adapters_bind(fmi_binder *b, fm_hasher *digest);
void fmi_adapters_release(fmi_binder *b);

/* adapter_kinds.c: each binds what entry e of adapter n means and adds it to digest. */
FM_CHECKED fm_status fmi_bind_lora(fmi_binder *b, uint32_t n, const fm_entry *e, fm_hasher *digest);
FM_CHECKED fm_status fmi_bind_lora_bias(fmi_binder *b, uint32_t n, const fm_entry *e,
                                        fm_hasher *digest);
FM_CHECKED fm_status fmi_bind_embedding(fmi_binder *b, uint32_t n, const fm_entry *ea,
                                        fm_hasher *digest);
FM_CHECKED fm_status fmi_bind_magnitude(fmi_binder *b, uint32_t n, const fm_entry *e,
                                        fm_hasher *digest);
FM_CHECKED fm_status fmi_bind_ia3(fmi_binder *b, uint32_t n, const fm_entry *e, fm_hasher *digest);
FM_CHECKED fm_status fmi_bind_virtual(fmi_binder *b, uint32_t n, const fm_entry *e,
                                      fm_hasher *digest);

FM_END_DECLS
#endif
