/* internal.h - what the files of train/ share: the net of a child, data as rows.
 *
 * A net mirrors fm_model: the same modules by name, each with the places of its trainable
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
    float *u;                 /* [rows, r] x A^T, kept for the gradient; the lane's, NULL: frozen */
    float dropout;            /* of x; 0 = none */
    uint64_t stream;          /* of the dropout's random numbers */
} fmt_term;

typedef struct fmt_scale { /* by columns; s NULL: none */
    const float *s;
    int32_t param; /* -1: frozen, or made of parameters (DoRA) */
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
    fmt_term *term;
    size_t terms, cap;
    fmt_scale in_scale, out_scale;
    const float *bias_after;
    struct fmt_dora *dora; /* trained, else NULL */
    float *
        kept; /* [rows, out] before out_scale, where that trains; the lane's. DoRA: over the norm */
} fmt_linear;

typedef struct fmt_norm {
    char module[FMT_MODULE_BYTES];
    const float *gain, *bias; /* of RMS_PLUS1: 1 + w, made by fmt_net_refresh where it trains */
    uint32_t n;               /* 0: absent */
    bool has_bias;
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
    FMT_EXPERTS
};
enum {
    FMT_ATTN_NORM,
    FMT_ATTN_POST,
    FMT_MLP_NORM,
    FMT_MLP_POST,
    FMT_Q_NORM,
    FMT_K_NORM,
    FMT_NORMS
};
/* Of no layer (layer = FMT_OUTSIDE). */
enum { FMT_EMBED, FMT_POSITIONS, FMT_TYPES, FMT_HEAD, FMT_DENSE, FMT_SCORE, FMT_OUTER };
enum { FMT_EMBED_NORM, FMT_NORM, FMT_OUTER_NORMS };
#define FMT_OUTSIDE (-1)

typedef struct fmt_block {
    fmt_linear *lin;  /* [FMT_EXPERTS + 3 * experts] */
    uint32_t present; /* of them: modules of this layer */
    fmt_norm norm[FMT_NORMS];
} fmt_block;

typedef enum fmt_virtual { FMT_VIRTUAL_NONE, FMT_VIRTUAL_KV, FMT_VIRTUAL_ROWS } fmt_virtual;

/* Of all modules with a trained magnitude (method_dora.c): products A w [r, out], then scales and
 * inverse norms [out] each, on the device, with a mirror on the host behind which lie parameters
 * lo .. hi - 1. */
typedef struct fmt_dora_set {
    float *mem, *host;
    uint64_t products, vectors, lo, hi;
} fmt_dora_set;

/* What trains of a whole net. */
typedef struct fmt_depth {
    uint32_t first;   /* lowest layer with something to train in or below it; layers: none */
    bool embed, norm; /* something before the layers trains; the final norm does */
} fmt_depth;

typedef struct fmt_net {
    fm_backend *be;
    fm_arch arch;
    uint32_t begin, end; /* layers that are here: all, or a stage's (params/stage.h) */
    bool frozen;         /* a stem stands under what trains */
    bool staged;         /* then modules of others are absent, and `depth` is of all */
    fmt_depth depth;
    uint32_t virt_from; /* layer of the first keys and values in virt_rows */
    uint32_t lins;      /* of a block */
    fmt_linear outer[FMT_OUTER];
    fmt_norm outer_norm[FMT_OUTER_NORMS];
    fmt_block *block; /* [arch.layers] */
    /* Virtual tokens before every sequence (the parent's or trained): rows in the embeddings' place
     * [virt, H], or keys and values [layers][2][virt][NKV*HD]. */
    fmt_virtual virt_kind;
    uint32_t virt;
    int32_t virt_param;     /* -1: frozen */
    const float *virt_rows; /* device */
    float *virt_own;        /* device: the parent's, frozen */
    uint32_t doras;         /* modules with a trained magnitude */
    fmt_dora_set dora;
    float *embed_own;     /* device: factors of the parent's terms on the embedding */
    float *made;          /* device: scales and gains made of parameters (refresh) */
    float *turned, *turn; /* device, host: room for a matrix stored [in, out]; host: two of it */
    uint64_t turn_floats;
    struct fmt_turn *turns; /* [turn_count] where the device turns it: which float goes where */
    size_t turn_count, turn_cap;
} fmt_net;

/* Module names, shapes and nothing bound; model: bind the frozen weights and adapters of it. */
FM_CHECKED fm_status fmt_net_init(fmt_net *net, fm_backend *be, const fm_arch *arch,
                                  const fm_model *model);
/* The same for layers begin .. end - 1 of a model of which an engine has those alone: what stands
 * before the layers is bound where begin is 0, what stands behind them where end is all. */
FM_CHECKED fm_status fmt_net_init_layers(fmt_net *net, fm_backend *be, const fm_arch *arch,
                                         const fm_model *model, uint32_t begin, uint32_t end);
fmt_depth fmt_net_depth(const fmt_net *net);
void fmt_net_release(fmt_net *net);
/* The modules of a classification head (infer/model/class_head.h), which the architecture does not
 * list: FMT_DENSE where the family has one, FMT_SCORE; frozen values from model, which may be
 * NULL. */
FM_CHECKED fm_status fmt_net_add_classes(fmt_net *net, uint32_t classes, const fm_model *model);
fmt_linear *fmt_net_at(const fmt_net *net, int32_t layer, uint32_t which);
fmt_norm *fmt_net_norm_at(const fmt_net *net, int32_t layer, uint32_t which);
/* Every linear module that the net has (layers ascending, those of no layer last), NULL at the end;
 * every norm likewise. */
fmt_linear *fmt_net_linear(fmt_net *net, size_t i);
fmt_norm *fmt_net_norm(fmt_net *net, size_t i);
/* Layer of the i-th of these, FMT_OUTSIDE for none. */
int32_t fmt_net_layer_of(const fmt_net *net, const fmt_linear *l);
/* Let the parameter `name` ("<module>.weight" or ".bias") train under the name `as`.
 * FM_EBASE: no such module. */
FM_CHECKED fm_status fmt_net_train(fmt_net *net, fmt_params *ps, const char *name,
                                   const fm_shape *shape, const char *as);
/* Point the modules at the parameters' memory. own_weights: matrices that train get a product
 * layout of their own (false: gradients alone are wanted and the model's weights stand). */
FM_CHECKED fm_status fmt_net_bind(fmt_net *net, fmt_params *ps, bool own_weights);
/* Whatever is made of parameters, after they changed: product layouts, scales, gains. */
FM_CHECKED fm_status fmt_net_refresh(fmt_net *net, fmt_params *ps);
bool fmt_linear_trains(const fmt_linear *l);
/* Something in this layer trains. */
bool fmt_net_layer_trains(const fmt_net *net, uint32_t layer);

/* ---- batches: rows of all sequences of one child, one after another, without padding ---- */
typedef struct fmt_seq_in {
    const int32_t *ids, *labels; /* labels: of targets alone, else NULL is fine */
    uint32_t len;
} fmt_seq_in;

/* What a sequence is to its example, in an array beside the sequences'. */
typedef struct fmt_seq_of {
    uint32_t unit, part; /* number of the example in the step; which of its texts */
    int32_t klass;       /* of the text, from 0 */
} fmt_seq_of;

/* Which rows of a sequence an objective reads: its "labelled" ones. */
typedef enum fmt_pick {
    FMT_PICK_TARGETS, /* those that predict a counted token */
    FMT_PICK_ALL,     /* every token of the text */
    FMT_PICK_CLASS,   /* the one whose state is classified */
    FMT_PICK_FIRST,
    FMT_PICK_LAST,
} fmt_pick;

typedef struct fmt_batch_how {
    uint32_t vocab;
    bool whole;    /* every token is a row: encoders */
    uint32_t virt; /* rows of virtual tokens before each sequence */
    fmt_pick pick;
    int32_t pad;     /* PICK_CLASS of a decoder: no such token; -1: none */
    uint32_t offset; /* of positions: keys and values of virtual tokens before each */
} fmt_batch_how;

typedef struct fmt_batch {
    uint32_t rows;      /* tokens that some counted target depends on */
    uint32_t labels;    /* rows that are picked */
    uint32_t seqs;      /* sequences with rows */
    uint32_t longest;   /* positions */
    uint64_t tokens;    /* of the sequences as given */
    int32_t *ids, *pos; /* [rows]; id 0 for virtual rows */
    int32_t *label_row; /* [labels] */
    int32_t *label;     /* [labels] the token that should come next */
    uint32_t *len;      /* [seqs] rows */
    uint32_t *which;    /* [seqs] number of the sequence as given */
    size_t cap[6];      /* of the arrays, in their order */
} fmt_batch;
/* Unless `whole`: tokens after the last target and the last token itself change nothing and are
 * left out. */
uint32_t fmt_seq_rows(const fmt_seq_in *s, const fmt_batch_how *how);
uint32_t fmt_seq_labels(const fmt_seq_in *s);
/* Rows that are picked. */
uint32_t fmt_seq_picked(const fmt_seq_in *s, const fmt_batch_how *how);
/* out: all zero at first; its arrays are used again from call to call. */
FM_CHECKED fm_status fmt_batch_build(fmt_batch *out, const fmt_seq_in *s, size_t n,
                                     const fmt_batch_how *how);
void fmt_batch_clear(fmt_batch *b); /* no rows; its arrays stay */
void fmt_batch_release(fmt_batch *b);

/* ---- tensors and adapters of trees (method.h: what they mean) ---- */
/* The highest "adapters/<n>-<kind>/" of tree; empty when there is none. */
FM_CHECKED fm_status fmt_top_adapter(fm_buf *prefix, const fm_tree *tree);
/* tree without what lies under prefix (and without its tokenizer, which no gradient needs). */
FM_CHECKED fm_status fmt_tree_without(fm_tree **out, const fm_tree *tree, const char *prefix);

/* ---- schedule ---- */
/* Steps of a run over `examples` examples. */
uint32_t fmt_schedule_steps(const fm_train_config *c, uint64_t examples);
double fmt_schedule_lr(const fm_train_config *c, uint32_t step, uint32_t steps);
/* PyTorch's clip_grad_norm_: what gradients are multiplied by. max_norm 0 = 1. */
float fmt_clip_scale(double norm, double max_norm);

/* ---- checkpoints ---- */
typedef struct fmt_checkpoint {
    fm_digest run; /* of everything that the run's bits depend on */
    uint32_t step; /* steps done */
    uint64_t tokens;
    fm_json *log; /* owned by the loader's caller */
} fmt_checkpoint;
/* Through job->checkpoints; nothing is done where it has none, or where none is due. */
FM_CHECKED fm_status fmt_checkpoint_save(const fm_train_job *job, uint32_t child,
                                         const fmt_checkpoint *c, const fmt_params *ps);
/* *found false (and nothing changed) where there is none of this run. FM_ECORRUPT: damaged. */
FM_CHECKED fm_status fmt_checkpoint_load(const fm_train_job *job, uint32_t child, fmt_checkpoint *c,
                                         fmt_params *ps, bool *found);

FM_END_DECLS
#endif
