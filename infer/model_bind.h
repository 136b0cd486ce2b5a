/* model_bind.h - what model.c and adapter.c share while a tree is bound. */
#ifndef FM_INFER_MODEL_BIND_H
#define FM_INFER_MODEL_BIND_H

#include "infer/engine.h"
#include "store/base/map.h"

FM_BEGIN_DECLS

#define FMI_MAX_ADAPTERS 64u

/* adapters/<n>-lora/ of a tree: its config and its entries. */
typedef struct fmi_adapter {
    fm_json *config;
    size_t begin, end; /* entries of its tensors in the tree */
    char what[256];    /* "<model>: adapter 0" */
} fmi_adapter;

typedef struct fmi_binder {
    fm_model *m;
    const fm_tree *tree;
    const fm_provider *p;
    const char *what;
    fm_map *replaced; /* parameter name -> const fm_entry * of the adapter that replaces it */
    fmi_adapter adapter[FMI_MAX_ADAPTERS];
    uint32_t adapters;
} fmi_binder;

/* One more reference to e's tensor, given back when the model closes. */
FM_CHECKED fm_status fmi_hold(fmi_binder *b, fmi_cached **out, const fm_entry *e, fmi_form form);
/* The linear layer of `name` ("self_attn.q_proj", or the same with ".weight"); NULL: none. */
fm_linear *fmi_linear_named(fm_model *m, uint32_t layer, const char *name);

/* Tokenizer, chat template and text_digest of the tree, shared through the engine. */
FM_CHECKED fm_status fmi_text_bind(fmi_binder *b);

/* Reads the configs, fills `replaced`; then, once the base is bound, hangs the LoRA terms on. */
FM_CHECKED fm_status fmi_adapters_find(fmi_binder *b);
FM_CHECKED fm_status fmi_adapters_bind(fmi_binder *b, fm_hasher *digest);
void fmi_adapters_release(fmi_binder *b);

FM_END_DECLS
#endif
