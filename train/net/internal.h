/* internal.h - declarations that the files of train/ share: the net of a child, its batches,
 * schedule and checkpoints.
 *
 * A net mirrors fm_model: the same modules by name, each with the indices of its trainable
 * parameters. Frozen weights are the model's (shared through the engine's cache, so that equal
 * pointers are equal values); weights that train have a product layout of their own, refreshed from
 * the flat parameters after each step. pass/pass.h runs the nets of several children together. */
#ifndef FM_TRAIN_INTERNAL_H
#define FM_TRAIN_INTERNAL_H

#include "infer/model.h"
#include "train/params/params.h"

FM_BEGIN_DECLS

#define FMT_MODULE_BYTES 160
#define FMT_NO_LABEL (-100)
#define FMT_PEFT_PREFIX "base_model.model."

/* ---- the net ---- */
typedef struct fmt_term { /* y += scale * (drop(x) A^T) B^T */
    const float *a;       /* [r, in] device */
    const float *b;       /* [out, r] device */
    uint32_t r;
    float scale;
    int32_t a_param, b_param; /* -1: frozen */
    bool made;                /* the factors are made of parameters (method_fold.c): */
    float *da, *db;           /* their gradients, on the device */
    float *u;                 /* [rows, r] x A^T kept in the lane's memory; NULL: frozen */
    float dropout;            /* dropout of x; 0 = none */
    uint64_t stream;          /* stream of the dropout's random numbers */
} fmt_term;

typedef struct fmt_scale { /* A factor for each column; s NULL: none. */
    const float *s;
    int32_t param; /* -1: frozen, or computed from parameters (DoRA) */
} fmt_scale;

/* y = ((x * in_scale) W^T + bias + terms) * out_scale + bias_after, as fm_linear. */
typedef struct fmt_linear {
    char module[FMT_MODULE_BYTES]; /* "model.layers.0.self_attn.q_proj"; empty: not in this net */
    const fm_weight *w;
    const float *bias; /* NULL = none */
    uint32_t in, out;
    int32_t w_param, bias_param;
    bool has_bias;
    bool transposed; /* stored [in, out]: GPT-2 */
    bool no_module;  /* no linear module in transformers' class: adapters cannot name it */
    fmt_term *term;
    size_t terms, cap;
    fmt_scale in_scale, out_scale;
    const float *bias_after;
    struct fmt_dora *dora; /* trained, else NULL */
    struct fmt_fold *fold; /* trained, else NULL; w is its layout */
    /* [rows, out], the lane's: y before a trained out_scale; DoRA: divided by the norm. */
    float *kept;
} fmt_linear;

typedef struct fmt_norm {
    char module[FMT_MODULE_BYTES];
    const float *gain, *bias; /* adds_one: 1 + w, made by fmt_net_refresh if w trains */
    uint32_t n;               /* 0: absent */
    bool has_bias, adds_one;
    int32_t param, bias_param;
} fmt_norm;

/* Linear modules of a layer; experts follow: FMT_EXPERTS + 3 * expert + 0 gate, 1 up, 2 down. */
enum {
    FMT_Q,
    FMT_K,
    FMT_V,
    FMT_O,
    FMT_GATE,
    FMT_UP,
    FMT_DOWN,
    FMT_ROUTER,
    FMT_S_GATE,
    FMT_S_UP,
    FMT_S_DOWN,
    FMT_S_SWITCH,
    FMT_REC_IN, /* of a recurrent block, as fm_recurrent */
    FMT_REC_OUT,
    FMT_REC_X,
    FMT_REC_DT,
    FMT_REC_Z,
    FMT_REC_BETA,
    FMT_REC_ALPHA,
    FMT_EXPERTS
};
enum {
    FMT_ATTN_NORM,
    FMT_ATTN_POST,
    FMT_MLP_NORM,
    FMT_MLP_POST,
    FMT_Q_NORM,
    FMT_K_NORM,
    FMT_SINKS, /* no norm: a vector that trains as a gain does, like what follows */
    FMT_CONV,  /* gain: [channels, kernel], bias: [channels] */
    FMT_RATES, /* of a recurrent block, as fm_recurrent */
    FMT_SKIP,
    FMT_DT_B,
    FMT_REC_NORM,
    FMT_NORMS
};
/* Modules of no layer (layer = FMT_OUTSIDE). */
enum { FMT_EMBED, FMT_POSITIONS, FMT_TYPES, FMT_HEAD, FMT_DENSE, FMT_SCORE, FMT_OUTER };
enum { FMT_EMBED_NORM, FMT_NORM, FMT_OUTER_NORMS };
#define FMT_OUTSIDE (-1)

typedef struct fmt_block {
    fmt_linear *lin;  /* [FMT_EXPERTS + 3 * experts] */
    uint32_t present; /* how many entries of lin this layer has */
    const float *xielu;       /* [4] the parent's (fm_backend.xielu), or NULL */
    const float *choice_bias; /* [experts] the parent's (FM_P_ROUTER_B), or NULL */
    fmt_norm norm[FMT_NORMS];
} fmt_block;

typedef enum fmt_virtual { FMT_VIRTUAL_NONE, FMT_VIRTUAL_KV, FMT_VIRTUAL_ROWS } fmt_virtual;

/* Memory of all modules with a trained magnitude (method_dora.c). mem, on the device: products A w
 * [r, out], then scales and inverse norms [out] each. host mirrors mem and holds parameters lo ..
 * hi - 1 behind it. */
typedef struct fmt_dora_set {
    float *mem, *host;
    uint64_t products, vectors, lo, hi;
} fmt_dora_set;

/* Memory of all modules that train by a formula (method_fold.c). mem, on the device: the gradients
 * of their weights or factors, `all` floats, then one weight on its way, then factors. host: two
 * weights, then parameters lo .. hi - 1 and their gradients. most: floats of the largest weight. */
typedef struct fmt_fold_set {
    float *mem, *host;
    uint64_t all, most, factors, lo, hi;
} fmt_fold_set;

/* Where a net has something to train. */
typedef struct fmt_depth {
    uint32_t first;   /* lowest layer with something to train in or below it; arch.layers: none */
    bool embed, norm; /* something before the layers trains; the final norm trains */
} fmt_depth;

typedef struct fmt_net {
    fm_backend *be;
    fm_arch arch;
    uint32_t begin, end; /* layers that are here: all, or a stage's (params/stage.h) */
    bool frozen;         /* the parent's frozen weights take part */
    bool staged;         /* only one stage's modules are here; `depth` describes the whole net */
    fmt_depth depth;
    uint32_t virt_from; /* layer of the first keys and values in virt_rows */
    uint32_t lins;      /* linear modules of a block */
    fmt_linear outer[FMT_OUTER];
    fmt_norm outer_norm[FMT_OUTER_NORMS];
    fmt_block *block; /* [arch.layers] */
    /* Virtual tokens before every sequence (the parent's or trained): rows in the embeddings' place
     * [virt, H], or keys and values [layers][2][virt][NKV*HD]. */
    fmt_virtual virt_kind;
    uint32_t virt;
    int32_t virt_param;     /* -1: frozen */
    const float *virt_rows; /* device */
    float *virt_own;        /* device: memory of the parent's frozen virt_rows */
    uint32_t doras;         /* modules with a trained magnitude */
    fmt_dora_set dora;
    uint32_t folds; /* modules that train by a formula */
    fmt_fold_set fold;
    const float *near;    /* fm_train_seq.bias (infer/model/fixed.h), or NULL */
    float *fixed_own;     /* device: of fmt_net_fixed */
    float *embed_own;     /* device: factors of the parent's low-rank terms on the embedding */
    float *made;          /* device: gains that fmt_net_refresh computes from parameters */
    float *turned, *turn; /* device, host: buffers to transpose a matrix */
    uint64_t turn_floats;
    struct fmt_turn *turns; /* [turn_count] where the device transposes: the indices */
    size_t turn_count, turn_cap;
} fmt_net;

/* Sets module names and shapes; binds frozen weights and adapters of model, if not NULL. */
FM_CHECKED fm_status fmt_net_init(fmt_net *net, fm_backend *be, const fm_arch *arch,
                                  const fm_model *model);
/* Whether a parameter of this place can train; false: it is of no module of the net. */
bool fmt_place_trains(fm_place place);
/* Takes what no training changes from the parent's tree; for a net without a model. */
FM_CHECKED fm_status fmt_net_fixed(fmt_net *net, const fm_tree *tree, const fm_provider *p,
                                   const char *what);
/* The same as fmt_net_init where the engine has only layers begin .. end - 1 of the model: modules
 * before the layers are bound where begin is 0, modules behind them where end is arch->layers. */
FM_CHECKED fm_status fmt_net_init_layers(fmt_net *net, fm_backend *be, const fm_arch *arch,
                                         const fm_model *model, uint32_t begin, uint32_t end);
fmt_depth fmt_net_depth(const fmt_net *net);
void fmt_net_release(fmt_net *net);
/* Adds the modules of a classification head (infer/model/class_head.h), which the architecture does
 * not list: FMT_DENSE where the family has one, FMT_SCORE. Frozen values: from model, or NULL. */
FM_CHECKED fm_status fmt_net_add_classes(fmt_net *net, uint32_t classes, const fm_model *model);
fmt_linear *fmt_net_at(const fmt_net *net, int32_t layer, uint32_t which);
fmt_norm *fmt_net_norm_at(const fmt_net *net, int32_t layer, uint32_t which);
/* The i-th linear module or norm (layers ascending, modules of no layer last); NULL: end. */
fmt_linear *fmt_net_linear(fmt_net *net, size_t i);
fmt_norm *fmt_net_norm(fmt_net *net, size_t i);
/* The layer of module l, FMT_OUTSIDE for none. */
int32_t fmt_net_layer_of(const fmt_net *net, const fmt_linear *l);
/* Lets the parameter `name` ("<module>.weight", ".bias") train as `as`. FM_EBASE: no such
 * module. */
FM_CHECKED fm_status fmt_net_train(fmt_net *net, fmt_params *ps, const char *name,
                                   const fm_shape *shape, const char *as);
/* Points the modules at the parameters' memory. own_weights: matrices that train get a product
 * layout of their own (false: only gradients are wanted and the model's weights stay bound). */
FM_CHECKED fm_status fmt_net_bind(fmt_net *net, fmt_params *ps, bool own_weights);
/* Computes product layouts, scales and gains again after the parameters changed. */
FM_CHECKED fm_status fmt_net_refresh(fmt_net *net, fmt_params *ps);
bool fmt_linear_trains(const fmt_linear *l);
/* Whether something in this layer trains. */
bool fmt_net_layer_trains(const fmt_net *net, uint32_t layer);

/* ---- batches: rows of all sequences of one child, one after another, without padding ---- */
typedef struct fmt_seq_in {
    const int32_t *ids, *labels; /* labels: needed for FMT_PICK_TARGETS alone; else NULL is fine */
    uint32_t len;
} fmt_seq_in;

/* The example that a sequence belongs to, in an array parallel to that of the sequences. */
typedef struct fmt_seq_of {
    uint32_t unit, part; /* number of the example in the step; which of its texts */
    int32_t klass;       /* class of the text, from 0 */
} fmt_seq_of;

/* Which rows of a sequence an objective reads: its "labelled" ones. */
typedef enum fmt_pick {
    FMT_PICK_TARGETS, /* rows that predict a counted token */
    FMT_PICK_ALL,     /* every token of the text */
    FMT_PICK_CLASS,   /* the row whose state is classified */
    FMT_PICK_FIRST,
    FMT_PICK_LAST,
} fmt_pick;

typedef struct fmt_batch_how {
    uint32_t vocab;
    bool whole;    /* every token is a row: encoders */
    uint32_t virt; /* rows of virtual tokens before each sequence */
    fmt_pick pick;
    int32_t pad;     /* padding token, which a decoder's PICK_CLASS skips; -1: none */
    uint32_t offset; /* first position: virtual keys and values come before */
} fmt_batch_how;

typedef struct fmt_batch {
    uint32_t rows;      /* tokens that some counted target depends on */
    uint32_t labels;    /* rows that are picked */
    uint32_t seqs;      /* sequences with rows */
    uint32_t longest;   /* positions of the longest sequence */
    uint64_t tokens;    /* tokens of the sequences as given */
    int32_t *ids, *pos; /* [rows]; id 0 for virtual rows */
    int32_t *label_row; /* [labels] */
    int32_t *label;     /* [labels] the token that should come next */
    uint32_t *len;      /* [seqs] rows of each */
    uint32_t *which;    /* [seqs] number of the sequence as given */
    size_t cap[6];      /* capacities of the arrays above, in their order */
} fmt_batch;
/* Rows of a sequence. Unless `whole`, tokens after the last target, and this last token itself, are
 * left out: they change nothing. */
uint32_t fmt_seq_rows(const fmt_seq_in *s, const fmt_batch_how *how);
uint32_t fmt_seq_labels(const fmt_seq_in *s);
/* Rows of a sequence that how->pick picks. */
uint32_t fmt_seq_picked(const fmt_seq_in *s, const fmt_batch_how *how);
/* out is all zero before the first call; later calls use its arrays again. */
FM_CHECKED fm_status fmt_batch_build(fmt_batch *out, const fmt_seq_in *s, size_t n,
                                     const fmt_batch_how *how);
void fmt_batch_clear(fmt_batch *b); /* removes all rows; the arrays stay */
void fmt_batch_release(fmt_batch *b);

/* ---- tensors and adapters of trees (method.h: what they mean) ---- */
/* The highest "adapters/<n>-<kind>/" of tree; empty when there is none. */
FM_CHECKED fm_status fmt_top_adapter(fm_buf *prefix, const fm_tree *tree);
/* A copy of tree without prefix (and without the tokenizer, which no gradient needs). */
FM_CHECKED fm_status fmt_tree_without(fm_tree **out, const fm_tree *tree, const char *prefix);

/* ---- schedule ---- */
/* Steps of a run over `examples` examples. */
uint32_t fmt_schedule_steps(const fm_train_config *c, uint64_t examples);
double fmt_schedule_lr(const fm_train_config *c, uint32_t step, uint32_t steps);
/* The factor by which PyTorch's clip_grad_norm_ multiplies gradients; 1 where max_norm is 0. */
float fmt_clip_scale(double norm, double max_norm);

/* ---- settings ---- */
/* FM_EINVAL: names a field that is set for another method than c's. */
FM_CHECKED fm_status fmt_config_check(const fm_train_config *c, const char *name);
bool fmt_config_has(const fm_train_config *c, const char *key);
/* A field's value, owned; NULL: the method does not read it. */
fm_json *fmt_config_value(const fm_train_config *c, const char *key);

/* ---- checkpoints ---- */
typedef struct fmt_checkpoint {
    fm_digest run; /* digest of everything that the run's bits depend on */
    uint32_t step; /* steps done */
    uint64_t tokens;
    fm_json *log; /* the caller of fmt_checkpoint_load owns it */
} fmt_checkpoint;
/* Saves a state through job->checkpoints, unless there are none or no state is due. */
FM_CHECKED fm_status fmt_checkpoint_save(const fm_train_job *job, uint32_t child,
                                         const fmt_checkpoint *c, const fmt_params *ps);
/* *found false (and nothing changed) where this run has no state. FM_ECORRUPT: a damaged state. */
FM_CHECKED fm_status fmt_checkpoint_load(const fm_train_job *job, uint32_t child, fmt_checkpoint *c,
                                         fmt_params *ps, bool *found);

FM_END_DECLS
#endif
