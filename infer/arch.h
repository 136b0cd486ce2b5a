/* arch.h - what a model's config says, in one struct, and the names its tensors must have.
 *
 * The config is HF's config.json (transformers 4's rope_theta/rope_scaling/torch_dtype and 5's
 * rope_parameters/dtype). A field that changes the result and is not understood is an error.
 * Families differ by sizes, switches and names; arch/table.c holds one row for each. */
#ifndef FM_INFER_ARCH_H
#define FM_INFER_ARCH_H

#include "infer/act.h"
#include "store/base/text/json.h"
#include "store/scaled.h"
#include "store/tree.h"

FM_BEGIN_DECLS

#define FM_MAX_LAYERS 512u
#define FM_MAX_VOCAB 1048576u
#define FM_MAX_EXPERTS 1024u
#define FM_MAX_EXPERT_PARTS 65536u /* layers times experts */
#define FM_MAX_HEAD_DIM 512u

typedef enum fm_norm_kind {
    FM_NORM_RMS,         /* x / rms(x) * w */
    FM_NORM_RMS_PLUS1,   /* x / rms(x) * (1 + w): Gemma */
    FM_NORM_LAYER,       /* (x - mean) / std * w + b */
    FM_NORM_LAYER_PLUS1, /* (x - mean) / std * (1 + w) + b: Nemotron */
} fm_norm_kind;

static inline bool fm_norm_is_layer(fm_norm_kind k)
{
    return k == FM_NORM_LAYER || k == FM_NORM_LAYER_PLUS1;
}
/* Whether 1 is added to the stored gain. */
static inline bool fm_norm_adds_one(fm_norm_kind k)
{
    return k == FM_NORM_RMS_PLUS1 || k == FM_NORM_LAYER_PLUS1;
}

/* Where norms stand around a branch f (attention, then the feed-forward network). */
typedef enum fm_block_order {
    FM_BLOCK_PRE,      /* x + f(norm(x)) */
    FM_BLOCK_SANDWICH, /* x + norm'(f(norm(x))): Gemma 2, 3 */
    FM_BLOCK_PARALLEL, /* x + attention(norm(x)) + mlp(norm'(x)): GPT-NeoX */
    FM_BLOCK_AFTER,    /* x + norm'(f(x)): OLMo 2 */
    FM_BLOCK_POST,     /* norm'(x + f(x)): BERT */
} fm_block_order;

typedef enum fm_qk_norm { FM_QK_NONE, FM_QK_HEAD, FM_QK_ALL } fm_qk_norm; /* per head, or q whole */
/* q, k and v apart; one after another; (q.., k, v) of each head of keys with its heads of
 * queries. */
typedef enum fm_fused { FM_FUSED_NONE, FM_FUSED_QKV, FM_FUSED_QKV_HEADS } fm_fused;

/* Scores fall with the distance, more in one head than in another (model/fixed.c has slopes). */
typedef enum fm_alibi { FM_ALIBI_NONE, FM_ALIBI_BLOOM, FM_ALIBI_MPT } fm_alibi;

/* Bits of fm_switches.layer. */
#define FM_LAYER_SLIDES 1u /* sees `window` positions and turns by rope[1] */
#define FM_LAYER_SPARSE 2u /* a mixture of experts */
#define FM_LAYER_NO_ROPE 4u
#define FM_LAYER_SHARES_KV 8u      /* reads the keys and values of fm_layer_kv_of */
#define FM_LAYER_NO_INPUT_NORM 16u /* the first branch reads x itself */
#define FM_LAYER_NO_MLP 32u        /* no feed-forward branch */
#define FM_LAYER_RECURS 64u        /* a recurrent block: fm_recurrence */
#define FM_LAYER_NO_ATTENTION 128u /* a recurrent block stands in its place, or nothing does */

/* What a recurrent block computes. It keeps a state of each sequence, float32. in, x, dt, out:
 * products; norm: RMS, group by group. */
typedef enum fm_recurs {
    FM_RECURS_NOT,
    FM_RECURS_CONV,   /* LFM2: out(c * conv(b * x)), where (b, c, x) = in(row) */
    FM_RECURS_MAMBA,  /* out(y * silu(z)), y = scan(u, b, c, dt(t)), where (x, z) = in(row), u =
                       * silu(conv(x)), (t, b, c) = x(u) */
    FM_RECURS_MAMBA2, /* out(norm(y * silu(z))), y = scan(x, b, c, t), where (z, x', t) = in(row),
                       * (x, b, c) = silu(conv(x')) */
    FM_RECURS_DELTA,  /* out(norm(y) * silu(z)), y = delta(q, k, v, a, b), where (q, k, v) =
                       * silu(conv(in(row))), and z, b, a are products of the row; norm by head */
} fm_recurs;

/* Queries are multiplied by 1 + by * log(1 + floor(n / every)), n their position (`next`: 1 more),
 * rounded to f32 where HF does. */
typedef struct fm_growth {
    uint32_t every; /* 0: they are not */
    float by;
    bool next, unturned; /* unturned: in layers that do not turn alone */
} fm_growth;

/* The recurrent blocks of a model, which are alike. The state of a layer is `kernel` - 1 rows of
 * `channels`, which the next row's convolution reads, then the scan's [heads, n, hd]. */
typedef struct fm_recurrence {
    fm_recurs kind;
    uint32_t kernel, channels; /* of the convolution along the sequence, channel by channel */
    uint32_t in, inner;        /* width of the first product; of what the last one reads */
    uint32_t heads, hd, n;     /* of the scan; 0: there is none */
    uint32_t groups, rank;     /* heads of a group share b and c (q and k); width of t before dt */
    bool bias, conv_bias;      /* of in and out; of the convolution */
    bool by_groups;            /* DELTA: in has (q, k, v.., z..) group by group, b has (b.., a..) */
    float dt_min, dt_max;
    bool out_bias;         /* of out, where it has a setting of its own */
    bool bare, norm_first; /* MAMBA2: y * silu(z) without the norm; norm(y) * silu(z) */
} fm_recurrence;

/* Falcon-H1: what a product reads, or what it gives with its bias, times a number; 0: none are. */
typedef struct fm_multipliers {
    float attn_in, key, attn_out, gate, down;
    float ssm_in, ssm[5], ssm_out; /* ssm: of z, x, b, c and t */
} fm_multipliers;

/* Everything that decides what a pass computes, apart from sizes. Llama: zeros, scales 1. */
typedef struct fm_switches {
    fm_norm_kind norm;
    fm_block_order order;
    fm_act act;
    fm_qk_norm qk;
    fm_fused fused;  /* q, k, v are one tensor */
    bool xielu;      /* the activation is xIELU with numbers of each layer, in place of act */
    bool plain_mlp;  /* down(act(up x)), without a gate */
    bool fused_mlp;  /* gate and up are one tensor, gate first */
    bool no_rope;    /* learned positions, or none */
    bool positions;  /* rows of a table are added by position */
    bool types;      /* the first row of a table of token types is added */
    bool embed_norm; /* the sum of embeddings is normed */
    bool encoder;    /* every position sees every other (in a layer that slides: those less than
                       * `window` away); no head */
    fm_alibi alibi;
    uint32_t embed_width;   /* of embeddings, which a product makes `hidden` wide; 0: they are */
    uint32_t groups, inner; /* layers share parameters: that many groups of `inner` layers, each
                             * repeated; 0: none do */
    uint32_t buckets; /* of relative positions, each with a score in each head; 0: none */
    uint32_t bucket_far; /* from this distance on all share a bucket */
    bool cross; /* a decoder that attends to what an encoder makes of another text, the source:
                 * fm_arch_source. Its layers have a branch for it between the two others */
    bool renormalise; /* the chosen experts' weights are divided by their sum */
    bool shared_expert;
    bool sub_norms;    /* a norm before o, and before down */
    bool rounds;       /* inputs of the layers' products are rounded: fm_backend.round_rows */
    bool sinks;        /* each query head has a learned score beside those of the positions */
    bool shared_plain; /* without a gate of its own */
    bool router_sigmoid, router_bias;           /* as fm_route.sigmoid, .bias */
    uint32_t router_groups, router_groups_kept; /* 0: none */
    bool router_groups_best;                    /* as fm_route.groups_best */
    bool router_first; /* weights multiply what experts read, and the choice goes by scores */
    float router_scale, router_jitter;          /* as fm_route.scale, .jitter; 0: none */
    double router_least;                        /* the least sum that renormalises */
    double router_more;                         /* as fm_route.more */
    bool pairs;          /* elements 2i and 2i + 1 of a head turn together, not i and i + half */
    bool qk_after;       /* qk norms behind the rotation */
    bool qk_bare;        /* heads are normed without gains, and only in layers that turn */
    bool norm_bias;      /* of a LAYER norm whose biases a config switches on */
    bool bare_norms;     /* of kind RMS, without gains: the parameters are not there */
    bool one_norm;       /* PARALLEL: both branches read norm(x) */
    bool attn_gate;      /* q has (q, g) of each head; attention's result times sigmoid(g) */
    bool beside;         /* layers that recur attend too: both read norm(x), their sum is added */
    uint32_t rotary_dim; /* leading elements of a head that turn; head_dim: all */
    uint32_t position_offset;
    uint32_t chunk; /* a layer that slides sees positions from the last multiple of it on; 0: it has
                     * fm_arch.window */
    uint32_t experts, chosen, expert_inter, shared_inter;
    uint32_t expert_in;                /* width of what experts read and write; 0: hidden */
    float embed_scale, residual_scale; /* 1: none */
    float attn_scale;                  /* of q k */
    /* Keys and values come from a latent vector of kv_rank elements (0: from the input), queries
     * from one of q_rank (0: from the input). A head's first `nope` elements never turn; its value
     * has v_dim. */
    uint32_t kv_rank, q_rank, nope, v_dim;
    float attn_softcap, logit_softcap; /* 0: none */
    float logit_divisor;               /* 1: none */
    /* Layers that do not slide: elements of a head and heads of keys, where other than those of
     * layers that slide (0: the same); their values are their keys before norm and rotation. */
    uint32_t full_head_dim, full_kv_heads;
    bool full_k_is_v;
    bool v_norm;              /* values are normed head by head, without gains */
    bool layer_scale;         /* what a layer gives is multiplied by a number of its own */
    bool wide_shared;         /* layers that share keys have twice the feed-forward width */
    bool mlp_too;             /* layers with experts have the feed-forward branch too: its norm and
                               * that of the experts, which read their own norms of x, are added */
    uint32_t kv_shared;       /* so many last layers share keys and values; 0: none */
    uint32_t per_layer;       /* width of the embeddings that each layer has of its own; 0: none */
    uint32_t per_layer_vocab; /* rows of their table, at least the vocabulary */
    float per_layer_scale;    /* of the table's rows */
    uint8_t layer[FM_MAX_LAYERS];
    fm_recurrence rec;
    fm_growth grow;
    fm_multipliers by;
} fm_switches;

static inline bool fm_layer_grows(const fm_switches *s, uint32_t layer)
{
    return s->grow.every && (!s->grow.unturned || (s->layer[layer] & FM_LAYER_NO_ROPE));
}
/* Sizes of layer l, where head_dim, kv_heads and inter are those of fm_arch. */
static inline bool fm_layer_is_full(const fm_switches *s, uint32_t l)
{
    return !(s->layer[l] & FM_LAYER_SLIDES);
}
static inline uint32_t fm_layer_head_dim(const fm_switches *s, uint32_t head_dim, uint32_t l)
{
    return s->full_head_dim && fm_layer_is_full(s, l) ? s->full_head_dim : head_dim;
}
static inline uint32_t fm_layer_kv_heads(const fm_switches *s, uint32_t kv_heads, uint32_t l)
{
    return s->full_kv_heads && fm_layer_is_full(s, l) ? s->full_kv_heads : kv_heads;
}
static inline uint32_t fm_layer_inter(const fm_switches *s, uint32_t inter, uint32_t l)
{
    return s->wide_shared && (s->layer[l] & FM_LAYER_SHARES_KV) ? 2 * inter : inter;
}
/* The layer whose keys and values layer l reads: its own, or those of the last layer before all
 * that share which slides as l does. */
static inline uint32_t fm_layer_kv_of(const fm_switches *s, uint32_t l)
{
    uint32_t k = l;
    while ((s->layer[k] & FM_LAYER_SHARES_KV) || fm_layer_is_full(s, k) != fm_layer_is_full(s, l))
        k--;
    return k;
}
/* Whether layers have sizes, values or inputs that only inference on one rank computes. */
static inline bool fm_layers_uneven(const fm_switches *s)
{
    return s->full_head_dim || s->full_kv_heads || s->full_k_is_v || s->v_norm || s->layer_scale ||
           s->kv_shared || s->per_layer;
}

/* Whether a norm stands behind the last layer. */
static inline bool fm_ends_normed(const fm_switches *s)
{
    return !(s->encoder || s->cross) || s->order != FM_BLOCK_POST;
}

typedef enum fm_rope_kind {
    FM_ROPE_DEFAULT,
    FM_ROPE_LINEAR,
    FM_ROPE_LLAMA3,
    FM_ROPE_YARN,
    FM_ROPE_LONG,
    FM_ROPE_PART /* proportional: the first `low` pairs of a head turn, the others stand still */
} fm_rope_kind;

typedef struct fm_rope {
    fm_rope_kind kind;
    uint32_t original;               /* positions it was trained with: llama3, yarn */
    double theta, factor, low, high; /* llama3: frequency factors; yarn: first and last dim of the
                                        ramp, already truncated where asked */
    double attention;                /* cos and sin are multiplied by it */
    bool back;                       /* turns the other way: the sine is negative */
    float divisor[FM_MAX_HEAD_DIM / 2]; /* longrope: short_factor, or long_factor */
} fm_rope;

typedef struct fm_arch {
    char family[24];    /* model_type: "llama", "gemma3_text", "bert", ... */
    char prefix[24];    /* before every name but the head's: "model.", "transformer.", "" */
    char head_name[24]; /* "lm_head", "embed_out" */
    uint8_t row;        /* of the family in arch/table.c */
    uint32_t vocab, hidden, inter, layers, heads, kv_heads, head_dim;
    uint32_t max_positions;  /* longest sequence that is computed as it was trained */
    uint32_t long_positions; /* longest one that rope_long computes; 0: there is none */
    uint32_t window;         /* of the layers that slide, 0 = none do */
    uint32_t type_vocab, position_rows;
    uint32_t source_layers, source_heads, source_inter; /* sw.cross: of the encoder */
    bool of_source;       /* it is the encoder of a family with two stacks */
    uint32_t more_layers; /* layers in the files, behind the others, that guess further tokens */
    float eps;
    bool head_bias; /* where the config says so */
    bool tied;      /* lm_head is embed_tokens */
    bool headless;  /* a decoder without a language head: a classifier, or a base model */
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    fm_switches sw;
    fm_rope rope[2];          /* [0] of full layers, [1] of sliding layers */
    fm_rope rope_long;        /* longrope: of texts longer than max_positions, from their start */
    int32_t bos, eos[8], pad; /* -1 = none */
    int32_t start[2];         /* sw.cross: the decoder's first tokens; -1: no second one */
    uint32_t eos_count;
} fm_arch;

/* model_json: the tree's model.json. FM_EUNSUPPORTED names an unsupported model_type or field. */
FM_CHECKED fm_status fm_arch_from_json(fm_arch *out, const fm_json *model_json, const char *what);
/* Likewise; `prefix` becomes the one under which the tree has its embedding. p may be NULL where
 * the tree holds model.json itself. */
FM_CHECKED fm_status fm_arch_of_tree(fm_arch *out, const fm_tree *tree, const fm_provider *p,
                                     const char *what);
/* The tree's model.json, parsed; a large one is a blob of the store. */
FM_CHECKED fm_status fm_model_json_of_tree(fm_json **out, const fm_tree *tree, const fm_provider *p,
                                           const char *what);
/* NULL: sizes and rotary settings say all of the architecture, as with Llama, and a model's digest
 * needs no more; else the name of what the architecture has besides. */
const char *fm_arch_beyond_llama(const fm_arch *a);

/* The longest text that any of its rotary tables is for. */
static inline uint32_t fm_arch_longest(const fm_arch *a)
{
    return a->long_positions ? a->long_positions : a->max_positions;
}
/* Makes a the architecture that long texts are computed with; it must have long_positions. */
void fm_arch_lengthen(fm_arch *a);

/* The encoder of a decoder with sw.cross, as an architecture of its own. */
void fm_arch_source(fm_arch *out, const fm_arch *a);

/* Elements of a head that rope[which] turns. */
static inline uint32_t fm_arch_turns(const fm_arch *a, uint32_t which)
{
    return which == 0 && a->sw.full_head_dim ? a->sw.full_head_dim : a->sw.rotary_dim;
}
/* cos, sin: [positions, fm_arch_turns/2] of rope[which]; inverse frequencies and angles rounded to
 * f32 where HF does. */
FM_CHECKED fm_status fm_arch_rope(const fm_arch *a, uint32_t which, uint32_t positions, float *cos,
                                  float *sin);
/* factor, zero: [positions] of sw.grow: the table of a rotation of pairs that turns nothing. */
void fm_arch_growth(const fm_growth *g, uint32_t positions, float *factor, float *zero);

/* A tree and its provider as models read them: quantized weights are plain (store/scaled.h),
 * experts that a file stacks in one tensor have one each, under the names of fm_arch_param, and
 * what adapters do to whole weights is done (store/adapted.h). Where nothing of this applies these
 * are the tree and provider that were given, which are borrowed until fm_model_view_close. */
typedef struct fm_model_view fm_model_view;
FM_CHECKED fm_status fm_model_view_open(fm_model_view **out, const fm_tree *tree,
                                        const fm_provider *p, const char *what, fm_plain_as as);
void fm_model_view_close(fm_model_view *v); /* NULL is fine */
const fm_tree *fm_model_view_tree(const fm_model_view *v);
const fm_provider *fm_model_view_provider(const fm_model_view *v); /* thread-safe if p is */

/* What a parameter is to the model. FM_P_*_B is the bias of the one before it. */
typedef enum fm_place {
    FM_P_EMBED,
    FM_P_POSITIONS,
    FM_P_TYPES,
    FM_P_EMBED_NORM,
    FM_P_EMBED_NORM_B,
    FM_P_BUCKETS,
    FM_P_EMBED_MAP, /* [hidden, embed_width], behind the embeddings' norm */
    FM_P_EMBED_MAP_B,
    FM_P_NORM,
    FM_P_NORM_B,
    FM_P_HEAD,
    FM_P_HEAD_B,
    /* Parameters of a layer. */
    FM_P_ATTN_NORM,
    FM_P_ATTN_NORM_B,
    FM_P_ATTN_POST,
    FM_P_ATTN_POST_B,
    FM_P_MLP_NORM,
    FM_P_MLP_NORM_B,
    FM_P_MLP_POST,
    FM_P_MLP_POST_B,
    FM_P_Q_NORM,
    FM_P_K_NORM,
    FM_P_SINKS,
    FM_P_ATTN_SUB, /* before o, before down */
    FM_P_MLP_SUB,
    FM_P_Q,
    FM_P_Q_B,
    FM_P_K,
    FM_P_K_B,
    FM_P_V,
    FM_P_V_B,
    FM_P_O,
    FM_P_O_B,
    FM_P_GATE,
    FM_P_GATE_B,
    FM_P_UP,
    FM_P_UP_B,
    FM_P_DOWN,
    FM_P_DOWN_B,
    FM_P_ACT_P,
    FM_P_ACT_N, /* xIELU's numbers before their softplus; they do not train */
    FM_P_Q_A,   /* latent: from the input; FM_P_Q, FM_P_K and FM_P_V are what block_latent.c says */
    FM_P_Q_A_B,
    FM_P_ROUTER,
    FM_P_ROUTER_SUM_B, /* of the product itself: it counts in the choice and in the weights */
    FM_P_ROUTER_B,     /* of the choice alone; it is no bias of the product, and never trains */
    FM_P_X_GATE,
    FM_P_X_GATE_B,
    FM_P_X_UP,
    FM_P_X_UP_B,
    FM_P_X_DOWN,
    FM_P_X_DOWN_B, /* one for each expert */
    FM_P_S_GATE,
    FM_P_S_UP,
    FM_P_S_DOWN,
    FM_P_S_SWITCH, /* the shared expert */
    FM_P_X_INTO,
    FM_P_X_FROM, /* products before and behind all experts: fm_switches.expert_in */
    FM_P_REC_IN, /* a recurrent block: first and last product, convolution [channels, 1, kernel] */
    FM_P_REC_IN_B,
    FM_P_REC_OUT,
    FM_P_REC_OUT_B,
    FM_P_REC_X,
    FM_P_REC_DT,
    FM_P_REC_Z,
    FM_P_REC_BETA,
    FM_P_REC_ALPHA,
    FM_P_CONV,
    FM_P_CONV_B,
    FM_P_RATES, /* a_log of fm_scan: [heads], or [channels, n] */
    FM_P_SKIP,  /* d */
    FM_P_DT_B,
    FM_P_REC_NORM,
    FM_P_CROSS_NORM, /* attention to the source */
    FM_P_CROSS_NORM_B,
    FM_P_CROSS_POST,
    FM_P_CROSS_POST_B,
    FM_P_CROSS_Q,
    FM_P_CROSS_Q_B,
    FM_P_CROSS_K,
    FM_P_CROSS_K_B,
    FM_P_CROSS_V,
    FM_P_CROSS_V_B,
    FM_P_CROSS_O,
    FM_P_CROSS_O_B,
    FM_P_PER_EMBED, /* of fm_switches.per_layer: the table, the embeddings' product, its norm */
    FM_P_PER_MAP,
    FM_P_PER_NORM,
    FM_P_PER_GATE, /* in a layer: to per_layer elements and back, and the norm behind */
    FM_P_PER_OUT,
    FM_P_PER_POST,
    FM_P_LAYER_SCALE,
    FM_P_MLP_SUM, /* of fm_switches.mlp_too: norms behind both, and before the experts */
    FM_P_X_POST,
    FM_P_X_NORM,
    FM_P_ROUTER_GAIN, /* what the router reads: x / rms(x) * gain / sqrt(hidden) */
    FM_P_X_SCALE,     /* each expert's weight is multiplied by its number */
} fm_place;

static inline bool fm_arch_recurs(const fm_arch *a)
{
    return a->sw.rec.kind != FM_RECURS_NOT;
}
static inline bool fm_layer_attends(const fm_switches *sw, uint32_t layer)
{
    return !(sw->layer[layer] & FM_LAYER_NO_ATTENTION);
}
/* Whether the layer has keys and values of its own. */
static inline bool fm_layer_keeps(const fm_switches *sw, uint32_t layer)
{
    return !(sw->layer[layer] & (FM_LAYER_NO_ATTENTION | FM_LAYER_SHARES_KV));
}
static inline bool fm_layer_recurs(const fm_switches *sw, uint32_t layer)
{
    return sw->layer[layer] & FM_LAYER_RECURS;
}
/* Whether anything in the layer mixes positions; else it is a feed-forward branch alone. */
static inline bool fm_layer_mixes(const fm_switches *sw, uint32_t layer)
{
    return fm_layer_attends(sw, layer) || fm_layer_recurs(sw, layer);
}
/* Floats of the state of one layer. */
static inline size_t fm_recurrence_floats(const fm_recurrence *r)
{
    size_t conv = r->kernel ? (size_t)(r->kernel - 1) * r->channels : 0;
    return conv + (size_t)r->heads * r->n * r->hd;
}

/* Each parameter in a fixed order: for (i = 0; fm_arch_param(a, i, &p); i++). Those of an encoder
 * come last; the embedding that both stacks share is there once. */
typedef struct fm_param {
    char name[160];  /* "model.layers.3.self_attn.q_proj.weight" */
    fm_shape shape;  /* as stored */
    bool is_matrix;  /* a linear layer or embedding; else norm gain or bias */
    bool transposed; /* stored [in, out] (GPT-2's Conv1D) */
    int32_t layer;   /* -1: outside the layers */
    uint32_t expert;
    fm_place place;
    bool source; /* of the encoder: layer is one of its layers */
} fm_param;
bool fm_arch_param(const fm_arch *a, uint32_t i, fm_param *out);
/* The first layer with the parameters of layer l, which it may share with others; else l itself.
 * The parameters of a shared layer have the same names in each. */
uint32_t fm_arch_layer_shared(const fm_arch *a, uint32_t l);
static inline uint32_t fm_arch_embed_width(const fm_arch *a)
{
    return a->sw.embed_width ? a->sw.embed_width : a->hidden;
}
/* Whether files of this family have the experts' parameters of this place in one tensor. */
bool fm_arch_stacks(const fm_arch *a, fm_place place);
/* The parameter of this name; false: the architecture has none. */
bool fm_arch_param_named(const fm_arch *a, const char *name, fm_param *out);

FM_END_DECLS
#endif
