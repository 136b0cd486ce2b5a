/* method.h - adaptation methods: which parameters train, their initial values, their names in PEFT.
 *
 * What trains is given by the settings of a run, or by an adapter that exists (to train it further
 * or to take its gradients): then its tensors and its adapter_config.json decide. Matching of
 * modules, initial values and configs follow PEFT 0.21 (peft/tuners/tuners_utils.py, lora, ia3,
 * prefix_tuning, prompt_tuning); the random numbers are our own. */
#ifndef FM_TRAIN_METHOD_H
#define FM_TRAIN_METHOD_H

#include "store/fold.h"
#include "train/net/internal.h"

FM_BEGIN_DECLS

/* DoRA (Liu et al. 2024): y = m / ||W + s B A|| * (W x + s B A x) + bias for each output; the
 * gradient takes the norm as a constant. The norms are computed again after each step from one
 * product of A's rows with W: ||w + s b A||^2 = ||w||^2 + 2 s b (A w) + s^2 b (A A^T) b^T, summed
 * in double on the host. */
typedef struct fmt_dora {
    int32_t magnitude; /* index of the parameter */
    uint32_t term;     /* index among the module's terms */
    double *norm2;     /* [out]: squared norms of W's rows */
    float *gram;       /* [r, r] host: A A^T */
    /* On the device, in the net's fmt_dora_set. */
    float *inv;   /* [out] 1 / norm, for the gradient of the magnitude */
    float *scale; /* [out] the module's out_scale */
    float *aw;    /* [r, out] */
} fmt_dora;

/* A target that trains by a formula of the adapter's tensors (store/fold.h): the product reads a
 * weight that is made anew after each step; the gradient of this weight becomes that of the
 * tensors. */
typedef struct fmt_fold {
    fm_fold *formula;
    int32_t param[FM_FOLD_PARTS]; /* -1: the module trains no such tensor */
    int32_t fixed[FM_FOLD_PARTS]; /* index in the parameters' `fixed`, or -1 */
    float *base;                  /* [out, in] host: the parent's weight */
    fm_weight *w;
    float *dw; /* [out, in] device, in the net's fmt_fold_set */
    /* A kind with a rank: the product stays, a term has factors that are made of the tensors. */
    uint32_t rank, term; /* term: index among the module's terms */
    float *a, *b;        /* device: [r, in], [out, r]; their gradients follow in the same order */
} fmt_fold;

/* Shapes of a module's tensors; rank 0: absent. */
typedef struct fmt_fold_wanted {
    fm_shape shape[FM_FOLD_PARTS];
} fmt_fold_wanted;
typedef struct fmt_fold_most { /* greatest sizes of the targets */
    uint64_t in, out;
} fmt_fold_most;

/* What a method needs besides the net. */
typedef struct fmt_method {
    const fm_train_config *c;
    const fm_tree *parent;
    const fm_provider *p;
    const fm_tree *init; /* or NULL */
    const fm_provider *init_p;
} fmt_method;

/* Whether the result is an adapter (PEFT's names) rather than tensors of the parent's names. */
bool fmt_method_is_adapter(fm_method m);
/* Whether frozen weights of the parent take part. */
bool fmt_method_needs_stem(const fm_train_config *c);
/* FM_EINVAL, FM_EUNSUPPORTED: names settings that do not go together. name: the job's. */
FM_CHECKED fm_status fmt_method_check(const fm_train_config *c, const char *name);
/* Declares the parameters that train. *config (owned by the caller): adapter_config.json of the
 * result; NULL for full tensors. FM_EBASE: a name that the parent lacks. */
FM_CHECKED fm_status fmt_method_declare(fmt_net *net, fmt_params *ps, const fmt_method *m,
                                        fm_json **config);
/* Declares the adapter at prefix ("adapters/0-lora/") of tree, on parent; no dropout. */
FM_CHECKED fm_status fmt_method_declare_from(fmt_net *net, fmt_params *ps, const fm_tree *parent,
                                             const fm_tree *tree, const fm_provider *p,
                                             const char *prefix, fm_json **config);
/* Points scales, virtual rows and DoRA's vectors at ps; the last part of fmt_net_bind. */
void fmt_method_bind(fmt_net *net, fmt_params *ps);
/* After fmt_net_bind: sets initial values, seeded or the parent's, then those of init. */
FM_CHECKED fm_status fmt_method_fill(fmt_net *net, fmt_params *ps, const fmt_method *m);

/* ---- method_match.c: names ---- */
/* The next name of a comma-separated list, without the spaces around it; NULL at the end. */
const char *fmt_next_name(const char **at, size_t *len);
/* Whether module is `target` or ends with ".target". */
bool fmt_names_module(const char *module, const char *target, size_t len);
/* Whether a name of the list stands in path between dots: a module above it, or itself. */
bool fmt_lies_in(const char *path, const char *list);
/* Whether path lies in a module of modules_to_save. As in PEFT a name of the list is the end of a
 * module's name and need not begin at a dot, so "norm" also means "input_layernorm". */
bool fmt_is_saved(const char *path, const char *list);
/* Whether a list like "0-3,7" holds layer; an empty list holds every layer. */
bool fmt_layer_listed(const char *list, int32_t layer);
FM_CHECKED fm_status fmt_check_layers(const char *list, uint32_t layers);
/* PEFT's name of a module or parameter of the net, with the prefix of the model's class, whatever
 * prefix the file has. out: FMT_MODULE_BYTES + 16. */
void fmt_peft_name(const fmt_net *net, const char *name, char *out, size_t room);
/* The net's name for PEFT's; `out` is a copy where it lacks the class's prefix. */
void fmt_own_name(const fmt_net *net, const char *peft, char *out, size_t room);
/* Whether the settings choose this module for a term or a scale: PEFT's
 * check_target_module_exists. */
bool fmt_is_target(fmt_net *net, const fmt_linear *l, const fm_train_config *c,
                   const char *targets);
/* FM_EBASE: a name of the list that no linear module has. */
FM_CHECKED fm_status fmt_check_targets(fmt_net *net, const char *list, const char *setting);
/* What "all-linear" means: last parts of the names of the linear modules in layers. */
fm_json *fmt_all_linear_json(fmt_net *net);
fm_json *fmt_names_json(const char *list);

/* ---- method_lora.c, method_dora.c ---- */
FM_CHECKED fm_status fmt_lora_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c,
                                      const fm_json *config);
/* Adds a trained term on l, PEFT's `module`; embeddings: lora_embedding_A and _B. */
FM_CHECKED fm_status fmt_lora_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module,
                                  const fm_lora_spec *spec, const fm_json *config);
/* LoRA+, as PEFT's create_loraplus_optimizer: B and vectors learn at `ratio` times lr. */
void fmt_loraplus(fmt_params *ps, double ratio);
FM_CHECKED fm_status fmt_dora_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module);
/* Computes the norms of W's rows from the tensor that the parent computes with. */
FM_CHECKED fm_status fmt_dora_prepare(fmt_net *net, const fm_tree *parent, const fm_provider *p);
/* Allocates the net's fmt_dora_set, after fmt_params_alloc. */
FM_CHECKED fm_status fmt_dora_room(fmt_net *net, const fmt_params *ps);
/* Waits for the device twice, however many modules there are. */
FM_CHECKED fm_status fmt_dora_refresh(fmt_net *net, fmt_params *ps);
void fmt_dora_release(fmt_net *net);
void fmt_dora_free(fmt_dora *d);
/* FM_EUNSUPPORTED: l takes no term or scale, since the parent's DoRA or IA3 scales it. */
FM_CHECKED fm_status fmt_check_free(const fmt_linear *l);

/* FM_EBASE: a name in rank_pattern or alpha_pattern of config that means no chosen module. */
FM_CHECKED fm_status fmt_check_patterns(fmt_net *net, const fm_train_config *c,
                                        const fm_json *config);

/* ---- method_fold.c ---- */
/* The folder's kind of a method that trains by formulas, or of a peft_type; NULL: it does not. */
const char *fmt_fold_kind(fm_method m);
const char *fmt_fold_kind_of_type(const char *peft_type);
FM_CHECKED fm_status fmt_fold_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c,
                                      const fm_json *config);
/* Declares the tensors that the adapter at prefix of tree has for l, PEFT's `module`. */
FM_CHECKED fm_status fmt_fold_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *kind,
                                  const char *module, const fm_json *config, const fm_tree *tree,
                                  const fm_provider *p, const char *prefix);
/* ---- method_fold_shapes.c ---- */
FM_CHECKED fm_status fmt_fold_shapes(fmt_fold_wanted *w, fm_method m, const fmt_linear *l,
                                     const fm_json *config, const char *module,
                                     const fmt_fold_most *most);
/* Draws a part that is never trained; name: of its tensor. */
FM_CHECKED fm_status fmt_fold_draw(float *x, const fm_train_config *c, const fmt_linear *l,
                                   const fm_json *config, const fmt_fold_most *most, int part,
                                   const fm_shape *shape, const char *name);
/* ---- method_fold.c: memory and steps ---- */
/* Reads the parent's weights of the targets. */
FM_CHECKED fm_status fmt_fold_prepare(fmt_net *net, const fm_tree *parent, const fm_provider *p);
/* Allocates the net's fmt_fold_set and the layouts, after fmt_params_alloc. */
FM_CHECKED fm_status fmt_fold_room(fmt_net *net, const fmt_params *ps);
uint64_t fmt_fold_bytes(const fmt_net *net);
FM_CHECKED fm_status fmt_fold_refresh(fmt_net *net, fmt_params *ps);
/* Begins a gradient; fmt_fold_gather does it, too. */
void fmt_fold_zero(fmt_net *net, const fmt_params *ps);
/* At the end of a shard: stores the gradients of the tensors in ps->g. */
FM_CHECKED fm_status fmt_fold_gather(fmt_net *net, fmt_params *ps);
void fmt_fold_release(fmt_net *net);
void fmt_fold_free(fmt_fold *f);
/* Where the gradient of l's weight is added up: dense, or the parameter's; NULL: it is frozen. ps:
 * the lane's, NULL for frozen rows. */
float *fmt_weight_grad(const fmt_linear *l, const fmt_params *ps);

/* ---- method_ia3.c, method_virtual.c, method_full.c ---- */
/* PEFT's names for the family where targets and feedforward are left empty. */
FM_CHECKED fm_status fmt_ia3_defaults(const fm_arch *a, const fm_train_config *c,
                                      const char **targets, const char **feedforward);
FM_CHECKED fm_status fmt_ia3_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
FM_CHECKED fm_status fmt_ia3_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module,
                                 bool feedforward);
/* Takes the parent's virtual tokens into the net, frozen. */
FM_CHECKED fm_status fmt_virtual_take(fmt_net *net, const fm_model *model);
/* Sets the rows and positions that virtual tokens take in batches. */
void fmt_virtual_how(const fmt_net *net, fmt_batch_how *how);
FM_CHECKED fm_status fmt_virtual_declare(fmt_net *net, fmt_params *ps, fmt_virtual kind,
                                         uint32_t tokens);
FM_CHECKED fm_status fmt_full_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
/* Copies a name of an adapter's tensor without what PEFT puts into the names of modules that it
 * wraps: ".base_layer", ".ln_tuning_layers". */
void fmt_unwrap(char *out, size_t room, const char *name);
/* PEFT's target_modules for LN tuning: the norms that targets names; "": all. */
fm_json *fmt_norms_json(const fm_arch *a, const char *targets);
FM_CHECKED fm_status fmt_norms_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
FM_CHECKED fm_status fmt_bitfit_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
/* Declare modules_to_save and the trained biases of an adapter, under PEFT's names. */
FM_CHECKED fm_status fmt_saved_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);
FM_CHECKED fm_status fmt_biases_declare(fmt_net *net, fmt_params *ps, const fm_train_config *c);

/* ---- method_init.c ---- */
FM_CHECKED fm_status fmt_method_begin(fmt_net *net, fmt_params *ps, const fmt_method *m);
/* The tensor that the parent computes with for parameter `name`: its adapters' replacement, its own
 * tensor, or for a tied head the embedding. NULL: there is none. */
const fm_entry *fmt_base_entry(const fmt_net *net, const fm_tree *parent, const char *name);

/* ---- method_config.c: adapter_config.json, every field that PEFT writes ---- */
FM_CHECKED fm_status fmt_method_config(fm_json **out, fmt_net *net, const fm_train_config *c,
                                       const char *base_name);

FM_END_DECLS
#endif
