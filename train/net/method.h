/* method.h - adaptation methods: which parameters train, how they begin, what PEFT calls them.
 *
 * Two ways lead to what trains: the settings of a run, or an adapter that exists (training goes on,
 * or its gradients are wanted); then its tensors and its adapter_config.json say it. Matching of
 * modules, beginnings and configs follow PEFT 0.21 (peft/tuners/tuners_utils.py, lora, ia3,
 * prefix_tuning, prompt_tuning); random numbers are our own. */
#ifndef FM_TRAIN_METHOD_H
#define FM_TRAIN_METHOD_H

#include "train/net/internal.h"

FM_BEGIN_DECLS

/* DoRA (Liu et al. 2024): y = m / ||W + s B A|| * (W x + s B A x) + bias by outputs, the norm a
 * constant of the gradient. The norms are remade after each step from one product of A's rows with
 * W: ||w + s b A||^2 = ||w||^2 + 2 s b (A w) + s^2 b (A A^T) b^T, summed in double on the host. */
typedef struct fmt_dora {
    int32_t magnitude; /* parameter */
    uint32_t term;     /* of the module's terms */
    double *norm2;     /* [out]: of W's rows */
    float *gram;       /* [r, r] host: A A^T */
    /* Device, in the net's fmt_dora_set. */
    float *inv;   /* [out] 1 / norm, for the gradient of the magnitude */
    float *scale; /* [out] what the module's out_scale points at */
    float *aw;    /* [r, out] */
} fmt_dora;

/* What a method needs to know beside the net. */
typedef struct fmt_method {
    const fm_train_config *c;
    const fm_tree *parent;
    const fm_provider *p;
    const fm_tree *init; /* or NULL */
    const fm_provider *init_p;
} fmt_method;

/* An adapter (PEFT's config and keys) rather than tensors of the parent's names. */
bool fmt_method_is_adapter(fm_method m);
/* Frozen weights of the parent take part. */
bool fmt_method_needs_stem(const fm_train_config *c);
/* Settings that do not go together, by name: FM_EINVAL, FM_EUNSUPPORTED. */
FM_CHECKED fm_status fmt_method_check(const fm_train_config *c, const char *name);
/* What trains. *config (the caller's): adapter_config.json of the result; NULL for full tensors.
 * FM_EBASE: names that the parent lacks. */
FM_CHECKED fm_status fmt_method_declare(fmt_net *net, fmt_params *ps, const fmt_method *m,
                                        fm_json **config);
/* What the adapter at prefix ("adapters/0-lora/") of tree has, on parent; without dropout. */
FM_CHECKED fm_status fmt_method_declare_from(fmt_net *net, fmt_params *ps, const fm_tree *parent,
                                             const fm_tree *tree, const fm_provider *p,
                                             const char *prefix, fm_json **config);
/* Points scales, virtual rows and what DoRA needs at the parameters' memory: fmt_net_bind's end. */
void fmt_method_bind(fmt_net *net, fmt_params *ps);
/* Values: the seeded beginning or the parent's, then init's. After fmt_net_bind. */
FM_CHECKED fm_status fmt_method_fill(fmt_net *net, fmt_params *ps, const fmt_method *m);

/* ---- method_match.c: names ---- */
/* The next name of a comma-separated list, spaces around it left out; NULL at the end. */
const char *fmt_next_name(const char **at, size_t *len);
/* module is `target` or ends with ".target". */
bool fmt_names_module(const char *module, const char *target, size_t len);
/* One of the list's names stands in path between dots: a module above it or itself. */
bool fmt_lies_in(const char *path, const char *list);
/* Does it lie in a module of modules_to_save? As PEFT takes the list: by the end of a module's name,
 * which need not begin at a dot, so "norm" is "input_layernorm" too. */
bool fmt_is_saved(const char *path, const char *list);
/* "0-3,7": layer is in it; an empty list holds every layer. */
bool fmt_layer_listed(const char *list, int32_t layer);
FM_CHECKED fm_status fmt_check_layers(const char *list, uint32_t layers);
/* The name that PEFT has for a module or parameter of the net: the class's prefix, whatever the
 * file's is. out: FMT_MODULE_BYTES + 16. */
void fmt_peft_name(const fmt_net *net, const char *name, char *out, size_t room);
/* The other way round; out as name where it has not the class's prefix. */
void fmt_own_name(const fmt_net *net, const char *peft, char *out, size_t room);
/* The settings choose this module for a term or a scale: PEFT's check_target_module_exists. */
bool fmt_is_target(fmt_net *net, const fmt_linear *l, const fm_train_config *c,
                   const char *targets);
/* FM_EBASE: a name of the list that no linear module has. */
FM_CHECKED fm_status fmt_check_targets(fmt_net *net, const char *list, const char *setting);
/* Last parts of the names of the linear modules in layers, as "all-linear" is written out. */
fm_json *fmt_all_linear_json(fmt_net *net);
fm_json *fmt_names_json(const char *list);

/* ---- method_lora.c, method_dora.c ---- */
FM_CHECKED fm_status fmt_lora_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c,
                                      const fm_json *config);
/* A trained term on l, which PEFT calls module; embeddings: lora_embedding_A, lora_embedding_B. */
FM_CHECKED fm_status fmt_lora_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module,
                                  const fm_lora_spec *spec, const fm_json *config);
/* LoRA+, as PEFT's create_loraplus_optimizer: B and vectors learn at ratio times the rate. */
void fmt_loraplus(fmt_params *ps, double ratio);
FM_CHECKED fm_status fmt_dora_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module);
/* Norms of W's rows, from the tensor that the parent computes with. */
FM_CHECKED fm_status fmt_dora_prepare(fmt_net *net, const fm_tree *parent, const fm_provider *p);
/* Memory of what is made; ps is allocated. */
FM_CHECKED fm_status fmt_dora_room(fmt_net *net, const fmt_params *ps);
/* Waits for the device twice, however many modules there are. */
FM_CHECKED fm_status fmt_dora_refresh(fmt_net *net, fmt_params *ps);
void fmt_dora_release(fmt_net *net);
void fmt_dora_free(fmt_dora *d);
/* FM_EUNSUPPORTED: nothing can be put on l (scaled by the parent's DoRA or IA3). */
FM_CHECKED fm_status fmt_check_free(const fmt_linear *l);

/* ---- method_ia3.c, method_virtual.c, method_full.c ---- */
/* Names that stand where targets and feedforward are left empty: PEFT's for the family. */
FM_CHECKED fm_status fmt_ia3_defaults(const fm_arch *a, const fm_train_config *c,
                                      const char **targets, const char **feedforward);
FM_CHECKED fm_status fmt_ia3_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
FM_CHECKED fm_status fmt_ia3_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module,
                                 bool feedforward);
/* The parent's virtual tokens, frozen. */
FM_CHECKED fm_status fmt_virtual_take(fmt_net *net, const fm_model *model);
/* Rows and positions that virtual tokens take, for batches. */
void fmt_virtual_how(const fmt_net *net, fmt_batch_how *how);
FM_CHECKED fm_status fmt_virtual_declare(fmt_net *net, fmt_params *ps, fmt_virtual kind,
                                         uint32_t tokens);
FM_CHECKED fm_status fmt_full_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
FM_CHECKED fm_status fmt_bitfit_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
/* modules_to_save and trained biases of an adapter, under PEFT's names. */
FM_CHECKED fm_status fmt_saved_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
FM_CHECKED fm_status fmt_biases_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);

/* ---- method_init.c ---- */
FM_CHECKED fm_status fmt_method_begin(fmt_net *net, fmt_params *ps, const fmt_method *m);
/* What the parent computes with in the place of `name`: its adapters' replacement, its own tensor,
 * or for a tied head the embedding. NULL: there is none. */
const fm_entry *fmt_base_entry(const fmt_net *net, const fm_tree *parent, const char *name);

/* ---- method_config.c: adapter_config.json, every field that PEFT writes ---- */
FM_CHECKED fm_status fmt_method_config(fm_json **out, fmt_net *net, const fm_train_config *c,
                                       const char *base_name);

FM_END_DECLS
#endif
