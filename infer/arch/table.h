/* table.h - the table of architectures (table.c), for this folder. */
#ifndef FM_INFER_ARCH_TABLE_H
#define FM_INFER_ARCH_TABLE_H

#include "infer/arch.h"

/* When a parameter is there. */
typedef enum fmi_when {
    W_ALWAYS,
    W_QKV_BIAS,
    W_O_BIAS,
    W_MLP_BIAS,
    W_QK_NORM,
    W_DENSE,       /* in layers without experts */
    W_SPARSE,      /* in layers with experts */
    W_EXPERT,      /* likewise, one for each expert: %u in the name */
    W_SHARED,      /* likewise, where there is a shared expert */
    W_SHARED_GATE, /* likewise, where a gate of its own scales it */
    W_ROUTER_BIAS, /* in layers with experts, where a bias steers the choice */
    W_EMBED_MAP,   /* where embeddings are of another width than the model */
    W_HEAD,        /* unless the head is the embedding */
    W_HEAD_BIAS,
    W_HEAD_BIAS_MAY, /* where fm_arch.head_bias */
    W_LATENT_Q,      /* queries from a latent vector */
    W_LATENT_Q_BIAS,
    W_PLAIN_Q,       /* all others */
    W_TWO_NORMS,     /* parallel branches with a norm each */
    W_NOT_TWO_NORMS, /* all others */
    W_SANDWICH,      /* norms behind the branches too */
    W_IN_TURN,       /* branches one after another */
    W_NORM_BIAS,     /* where fm_switches.norm_bias */
    W_INPUT_NORM,    /* in layers whose first branch has a norm in front */
    W_INPUT_NORM_BIAS,
    W_ATTENDS,      /* in layers with attention */
    W_RECURS,       /* in layers with a recurrent block */
    W_RECURS_BIAS,  /* likewise, where its products have biases */
    W_CONV_BIAS,    /* likewise, where its convolution has */
    W_MLP,          /* in layers with a feed-forward branch */
    W_GATED,        /* where that has a gate */
    W_PLAIN,        /* where it has none */
    W_MIXES,        /* in layers with attention or a recurrent block */
    W_MLP_ALONE,    /* in layers with neither */
    W_REC_NORM,     /* in layers with a recurrent block whose result is normed */
    W_REC_OUT_BIAS, /* in layers with one, where fm_recurrence.out_bias */
    W_EXPERT_IN,    /* in layers with experts of another width */
    W_LOGIT_BIAS,   /* where fm_arch.head_bias: [1, vocab], outside of the prefix and the head */
    W_KEEPS,        /* in layers with keys and values of their own */
    W_KEEPS_BIAS,
    W_KEEPS_V, /* likewise, where values are not the keys */
    W_KEEPS_V_BIAS,
    W_PER_LAYER,   /* embeddings of each layer's own */
    W_LAYER_SCALE, /* results times a number */
} fmi_when;

typedef enum fmi_dim {
    D_1, /* as cols: the parameter is a vector */
    D_ONE,
    D_HIDDEN,
    D_EMBED,
    D_INTER,
    D_INTER_2,
    D_Q,
    D_KV,
    D_QKV,
    D_HEAD,
    D_HEADS,
    D_BUCKETS,
    D_Q_RANK,
    D_KV_RANK,
    D_KV_A,
    D_KV_B,
    D_VALUES, /* the values of all heads */
    D_EXPERTS,
    D_X_INTER,
    D_S_INTER,
    D_VOCAB,
    D_POSITIONS,
    D_TYPES,
    D_REC_IN,
    D_REC_INNER,
    D_CHANNELS,
    D_KERNEL, /* as cols: the shape is [rows, 1, kernel] */
    D_STATE,  /* as cols: no matrix for products, [rows, n] */
    D_REC_HEADS,
    D_REC_X,
    D_RANK,
    D_REC_2HEADS,
    D_REC_HD,
    D_Q2,
    D_X_IN, /* what experts read and write */
    D_PER,
    D_PER_ALL, /* of all layers, one after another */
    D_PER_VOCAB,
} fmi_dim;

typedef struct fmi_arch_part {
    const char *name; /* after the family's prefix and, in a layer, its number */
    fm_place place;
    fmi_when when;
    fmi_dim rows, cols; /* out, in */
} fmi_arch_part;

/* A tensor in which a file may stack what all experts of a layer have, or two matrices of a layer
 * (model_view.c). */
typedef enum fmi_stack_share {
    FMI_STACK_ALL,
    FMI_STACK_EVEN, /* outputs 0, 2, .. */
    FMI_STACK_ODD,
    FMI_STACK_FRONT, /* the first half of the outputs */
    FMI_STACK_BEHIND,
} fmi_stack_share;

typedef struct fmi_stack {
    const char *name; /* in a layer */
    fm_place place;   /* what is taken from it */
    fmi_stack_share share;
    bool turned; /* [experts, in, out] */
    bool alone;  /* not of experts: [out, in] */
} fmi_stack;

/* Bits of fmi_family.has: settings that this family's config may hold. */
#define F_BIAS_KEY 1u      /* attention_bias */
#define F_MLP_BIAS_KEY 2u  /* mlp_bias */
#define F_WINDOW_SWITCH 4u /* sliding_window counts only with use_sliding_window */
#define F_NO_WINDOW 8u     /* use_sliding_window must be off */
#define F_GEMMA 16u        /* query_pre_attn_scalar, softcaps, scaled embedding */
#define F_ROPE_BY_TYPE 32u /* rope_parameters by layer type, rope_local_base_freq */
#define F_GRANITE 64u      /* four multipliers */
#define F_NO_ROPE_LAYERS 128u
#define F_QWEN_EXPERTS 256u
#define F_MIXTRAL_EXPERTS 512u
#define F_PAD_OFFSET 1024u          /* positions are counted from pad_token_id + 1 */
#define F_USE_BIAS 2048u            /* use_bias: all linear layers */
#define F_USE_QKV_BIAS 4096u        /* use_qkv_bias */
#define F_CONV1D 8192u              /* matrices of layers are stored [in, out] */
#define F_ORIGINAL_KEY 16384u       /* original_max_position_embeddings next to the rope settings */
#define F_PARALLEL_KEY 32768u       /* use_parallel_residual, true where absent */
#define F_QKV_BIAS_KEY 65536u       /* qkv_bias, true where absent */
#define F_EMBED_SCALE (1u << 17)    /* embedding times sqrt(hidden_size) */
#define F_GELU_IS_TANH (1u << 18)   /* hidden_act "gelu" means its tanh form */
#define F_BIAS_NOT_O (1u << 19)     /* attention_bias: of q, k and v alone */
#define F_OUT_BIAS_KEY (1u << 20)   /* attention_out_bias: of o */
#define F_BIAS_NAMES (1u << 21)     /* qkv_bias, bias: other names of attention_bias and mlp_bias */
#define F_FULL_NO_ROPE (1u << 22)   /* where layers slide, those that do not are not turned */
#define F_LOGIT_SCALE (1u << 23)    /* logit_scale */
#define F_ROTARY_DIM (1u << 24)     /* rotary_dim */
#define F_FALCON (1u << 25)         /* the layouts that Falcon's switches choose */
#define F_MULTI_QUERY (1u << 26)    /* multi_query: one head of keys and values */
#define F_POSITIONS_2 (1u << 27)    /* two unused rows before the first position */
#define F_PATTERN_KEY (1u << 28)    /* sliding_window_pattern */
#define F_NTK_ALPHA (1u << 29)      /* rope type dynamic with alpha: a fixed change of theta */
#define F_MROPE (1u << 30)          /* rope type mrope: in a text its three positions are equal */
#define F_CLOVA (UINT64_C(1) << 33) /* F_GRANITE's multipliers with use_post_norm; logits times */
#define F_ELSE_ROPE (UINT64_C(1) << 32)    /* with F_FULL_NO_ROPE: sliding_window null, all turn */
#define F_CLAMPED (UINT64_C(1) << 34)      /* swiglu_limit, swiglu_alpha: of FM_ACT_CLAMPED alone */
#define F_WHOLE_HEADS (UINT64_C(1) << 38)  /* heads times head_dim must be hidden_size */
#define F_MAY_EXPERTS (UINT64_C(1) << 39)  /* num_local_experts 0: the shared one is the MLP */
#define F_DEEP_EXPERTS (UINT64_C(1) << 40) /* n_routed_experts, n_group, .. */
#define F_GLM_EXPERTS (UINT64_C(1) << 41)  /* likewise, with GLM's defaults */
#define F_LATENT (UINT64_C(1) << 35)       /* kv_lora_rank, qk_rope_head_dim, .. */
#define F_DEEPSEEK_2 (UINT64_C(1) << 36)   /* with F_DEEP_EXPERTS: its defaults and its groups */
#define F_DEEPSEEK_3 (UINT64_C(1) << 37)
#define F_ERNIE_EXPERTS (UINT64_C(1) << 42) /* moe_num_experts, moe_k, .. */
#define F_WINDOW_FROM (UINT64_C(1) << 43)   /* max_window_layers: layers from it on slide */
#define F_QK_NORM_KEY (UINT64_C(1) << 44)   /* use_qk_norm: heads are normed */
#define F_MORE_LAYERS (UINT64_C(1) << 45)   /* layers behind the last guess tokens: not read */
#define F_BOTH_WAYS_KEY (UINT64_C(1) << 46) /* use_bidirectional_attention: an encoder */
#define F_MPT (UINT64_C(1) << 47)           /* attn_config */
#define F_PAD_1 (UINT64_C(1) << 48)         /* with F_PAD_OFFSET: the padding's id counts as 1 */
#define F_LFM2 (UINT64_C(1) << 56)          /* short convolutions in layers of type conv */
#define F_LOGIT_CAP (UINT64_C(1) << 49)     /* final_logit_softcapping alone */
#define F_TURNS_BACK (UINT64_C(1) << 50)    /* fm_rope.back */
#define F_ROPE_NEEDED (UINT64_C(1) << 51)   /* without rotary settings the class has its own */
#define F_PHIMOE (UINT64_C(1) << 52)        /* lm_head_bias, router_jitter_noise, short_mscale */
#define F_ONE_BLOCK (UINT64_C(1) << 59)     /* a layer is one block: hybrid_override_pattern */
#define F_BESIDE (UINT64_C(1) << 63)        /* with F_HYBRID: beside attention; its multipliers */
#define F_MAMBA (UINT64_C(1) << 60)         /* every layer is a recurrent block and no more */
#define F_DELTA (UINT64_C(1) << 61)    /* the gated delta rule in layers of type linear_attention */
#define F_HYBRID (UINT64_C(1) << 62)   /* Mamba-2 in layers that do not attend: mamba_* */
#define F_LFM2_MOE (UINT64_C(1) << 54) /* with F_LFM2: num_dense_layers, use_expert_bias, .. */
#define F_LLAMA_4 (UINT64_C(1) << 57)  /* chunks, growing queries, experts of weighted inputs */
#define F_MODERNBERT (UINT64_C(1) << 58)  /* local_attention, norm_bias, two rotary settings, .. */
#define F_EMBED_MAP (UINT64_C(1) << 55)   /* embedding_size may be other than hidden_size */
#define F_SHARED_SIZE (UINT64_C(1) << 53) /* shared_intermediate_size; 0: no shared expert */
#define F_QUERY_SCALE (1u << 31)          /* llama_4_scaling_beta: fm_growth */
/* Bits of fmi_family.more, likewise. */
#define M_GEMMA4 1u /* global_head_dim, num_kv_shared_layers, hidden_size_per_layer_input, .. */
#define M_T5 2u     /* feed_forward_proj, relative_attention_*, .. */
#define M_MT5 4u    /* with M_T5: logits are never scaled */

typedef struct fmi_family {
    const char *name, *also; /* model_type; another one with the same settings, or NULL */
    uint64_t has, more;
    const char *prefix[4]; /* the first is the default; the others are tried on a tree */
    const char *layers;    /* "layers." */
    const char *inner;     /* where layers share parameters: behind `layers` and a group's number */
    const char *head_name;
    const fmi_arch_part *first, *layer, *last; /* each ends with a name of NULL */
    /* Names of settings; NULL: the usual name. */
    const char *k_hidden_else; /* a second name of k_hidden */
    const char *k_hidden, *k_inter, *k_layers, *k_heads, *k_kv_heads, *k_positions, *k_eps, *k_act;
    const char *k_head_dim;
    /* Values where the config has none; 0 (NULL): the usual value. */
    uint32_t kv_heads, head_dim, heads, vocab, max_positions, window;
    uint32_t experts, chosen;
    uint32_t full_below;    /* with use_sliding_window: layers below it are full; 0: 28 */
    uint32_t slide_pattern; /* without layer_types every n-th layer is full, the others slide */
    double eps, theta, local_theta, partial;
    const char *k_embed; /* width of embeddings; without F_EMBED_MAP it must be hidden_size */
    uint32_t embed;      /* where it is absent; 0: hidden_size */
    const char *act;
    bool tied, qkv_bias, o_bias, mlp_bias;
    fm_switches sw;              /* before the config's settings are read */
    const char *const *keys;     /* further settings that are read or checked */
    const char *const *harmless; /* further settings without effect */
    const fmi_stack *stacks;     /* ends with a name of NULL; NULL: none */
    /* Of a family with two stacks: the encoder's names (fm_arch.of_source); NULL: one stack. */
    const struct fmi_family *source;
    const char *rope;           /* JSON of rope_parameters where the config has none */
    const char *const *ignored; /* tensors without effect: "*end" or "begin*" */
    bool alone;                 /* the usual keys of rotary decoders are not this family's */
} fmi_family;

const fmi_family *fmi_family_at(size_t i); /* NULL at the end */
const fmi_family *fmi_family_of(const fm_arch *a);
/* "llama, mistral, ...": for messages. */
void fmi_family_names(char *out, size_t cap);
/* The prefix of names in transformers' class, which PEFT writes, whatever the file's names begin
 * with: a text beside pictures is inside of "model.language_model.". */
const char *fmi_class_prefix(const fm_arch *a);
/* Tensors that the family's files may hold and that change nothing. */
bool fmi_family_ignores(const fm_arch *a, const char *tensor);

/* ---- settings of a config by name (take.c) ---- */
bool fmi_absent(const fm_json *v);
/* An integer in [low, high]; dflt where absent or null; dflt < 0: required. */
FM_CHECKED fm_status fmi_take_u32(uint32_t *out, const fm_json *c, const char *key, int64_t dflt,
                                  int64_t low, int64_t high, const char *what);
/* A finite number in (0, 1e12]. */
FM_CHECKED fm_status fmi_take_positive(double *out, const fm_json *c, const char *key, double dflt,
                                       const char *what);
FM_CHECKED fm_status fmi_take_bool(bool *out, const fm_json *c, const char *key, bool dflt,
                                   const char *what);
/* The settings of experts (experts.c), recurrent blocks (recurrent.c: which layers have one, and
 * its sizes) and the rotary ones (rope.c), of c. */
FM_CHECKED fm_status fmi_read_experts(fm_arch *a, const fmi_family *f, const fm_json *c,
                                      const char *what);
FM_CHECKED fm_status fmi_read_recurrence(fm_arch *a, const fmi_family *f, const fm_json *c,
                                         const char *what);
/* The kinds of layers that are one block each, and their number. */
FM_CHECKED fm_status fmi_read_blocks(fm_arch *a, const fm_json *c, const char *what);
/* gemma.c: sizes of heads and embeddings by layer; once it is known which layers slide, which of
 * them share keys and values. */
FM_CHECKED fm_status fmi_read_gemma4(fm_arch *a, const fm_json *c, const char *what);
FM_CHECKED fm_status fmi_read_gemma4_layers(fm_arch *a, const fm_json *c, const char *what);
FM_CHECKED fm_status fmi_read_latent(fm_arch *a, const fm_json *c, const char *what); /* latent.c */
/* Sets the scale of latent attention's scores by rotary settings r. */
FM_CHECKED fm_status fmi_latent_scale(fm_arch *a, const fm_json *r, const char *what);
/* The settings of a family with two stacks (stacks.c); g: generation_config. */
FM_CHECKED fm_status fmi_read_stacks(fm_arch *a, const fmi_family *f, const fm_json *c,
                                     const fm_json *g, const char *what);
/* The activation of T5's feed_forward_proj. */
const char *fmi_t5_act(const char *projection, bool *gated);
FM_CHECKED fm_status fmi_read_rope(fm_arch *a, const fmi_family *f, const fm_json *c,
                                   const char *what);

#endif
