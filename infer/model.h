/* model.h - inside of a model: weights bound by name. For infer's own files and for train, which
 * mirrors the forward pass. */
#ifndef FM_INFER_MODEL_H
#define FM_INFER_MODEL_H

#include "infer/backend.h"
#include "infer/infer.h"

FM_BEGIN_DECLS

/* One low-rank term on one linear layer, applied in order of the adapters. */
typedef struct fm_lora_term {
    const fm_weight *a; /* [r, in] */
    const fm_weight *b; /* [out, r] */
    uint32_t r;
    float scale;
    uint32_t adapter; /* n of its adapters/<n>-<kind>/ */
} fm_lora_term;

/* y = ((x * in_scale) W^T + bias + low-rank terms) * out_scale + bias_after; NULL parts are left
 * out. Rows are grouped by (w, bias), terms by their factors. */
typedef struct fm_linear {
    const fm_weight *w; /* [out, in]; shared through the cache */
    fm_digest id;       /* of w's tensor */
    const float *bias;  /* [out] or NULL */
    uint32_t in, out;
    fm_lora_term *lora;
    uint32_t lora_count;
    const float *in_scale;   /* [in]: IA3 on a feed-forward module */
    const float *out_scale;  /* [out]: IA3; DoRA's magnitude over the norm of W + scale B A */
    const float *bias_after; /* [out]: the bias under DoRA, whose out_scale must not scale it */
    bool transposed;         /* its tensor is stored [in, out] */
    bool split;              /* fm_product.split: set on the head */
    bool rounds;             /* fm_switches.rounds: what w is multiplied with is rounded */
} fm_linear;

/* Experts of a layer: a router's product chooses some for each row. */
typedef struct fm_experts {
    fm_linear router;                         /* [experts, hidden] */
    const float *choice_bias;                 /* [experts] (FM_P_ROUTER_B) or NULL */
    /* Of fm_switches.mlp_too, else NULL: [hidden], but scale [experts]; router_norm is made of
     * router_gain. */
    const float *mlp_sum, *post, *norm, *router_gain, *scale, *router_norm;
    fm_linear *gate, *up, *down;              /* [experts] each; one allocation at gate */
    fm_linear s_gate, s_up, s_down, s_switch; /* the shared expert, w NULL: none */
    fm_linear into, from; /* [expert_in, hidden], [hidden, expert_in]; w NULL: none */
} fm_experts;

/* A recurrent block (fm_recurrence). */
typedef struct fm_recurrent {
    fm_linear in, out, x, dt;   /* x and dt: of FM_RECURS_MAMBA */
    fm_linear z, beta, alpha;   /* of FM_RECURS_DELTA; by_groups: z and alpha have no w */
    const float *conv, *conv_b; /* [channels, kernel], [channels] or NULL */
    const float *rates, *skip, *dt_b, *norm; /* of a scan; gain of the norm behind it */
} fm_recurrent;

/* Gains (Gemma's with 1 added) and biases of norms; NULL: not there. fm_switches.order says which
 * of them a family has and where they stand. */
typedef struct fm_layer {
    const float *attn_norm, *mlp_norm;     /* [hidden], before the branch */
    const float *attn_norm_b, *mlp_norm_b; /* their biases */
    const float *attn_post, *mlp_post;     /* [hidden], behind the branch */
    const float *attn_post_b, *mlp_post_b;
    const float *q_norm, *k_norm; /* [head_dim], or q's and k's whole width */
    const float *sinks;           /* [heads] or NULL */
    const float *attn_sub, *mlp_sub; /* gains before o and before down, or NULL */
    fm_digest attn_norm_id, mlp_norm_id;
    fm_linear q, k, v, o;     /* fused: q is all three, k and v have no w */
    fm_linear q_a;            /* latent queries; w NULL: none */
    fm_linear gate, up, down; /* fused: gate is both; plain: gate has no w */
    const float *act_p, *act_n; /* FM_P_ACT_P, _N, from which xielu is made, or NULL */
    const float *xielu;         /* [4] fm_backend.xielu's param, or NULL */
    /* Attention to the source, of a decoder with sw.cross: norms as those above. */
    const float *cross_norm, *cross_norm_b, *cross_post, *cross_post_b; /* [hidden] */
    fm_linear cross_q, cross_k, cross_v, cross_o;
    fm_linear per_gate, per_out; /* of fm_switches.per_layer; w NULL: none */
    const float *per_post;
    const float *scalar, *scale; /* [1] FM_P_LAYER_SCALE, from which [hidden] is made, or NULL */
    fm_experts *experts;      /* of a sparse layer, which has no gate, up, down */
    fm_recurrent *rec;        /* of a layer that recurs */
} fm_layer;

struct fm_model {
    fm_engine *engine;
    fm_arch arch;
    /* The encoder of arch.sw.cross, else NULL: a model that runs by itself. Its weights are held by
     * this one, which frees it. */
    struct fm_model *source;
    fm_linear embed;            /* [vocab, hidden]; looked up by rows, as lora[].a [vocab, r] is */
    fm_linear head;             /* [vocab, hidden]; the same weight where tied */
    const float *norm, *norm_b; /* [hidden]; NULL: none */
    fm_linear positions;        /* [position_rows, hidden], looked up by rows; w NULL: none */
    const float *types;         /* [hidden], row 0 of the token types; NULL: none */
    const float *embed_norm, *embed_norm_b; /* [embed_width or hidden] or NULL */
    fm_linear embed_map;                    /* [hidden, embed_width]; w NULL: none */
    /* Of fm_switches.per_layer: [vocab, layers * per_layer], looked up by rows;
     * [layers * per_layer, hidden]; the gain [per_layer]. w NULL: none. */
    fm_linear per_embed, per_map;
    const float *per_norm;
    const float *ones;                      /* [head_dim] gain of values' norms, or NULL */
    const float *buckets;                   /* FM_P_BUCKETS, from which `near` is made, or NULL */
    const float *near; /* fm_attn.bias of this rank's heads (model/fixed.h), or NULL */
    fm_layer *layers;
    const float *cos, *sin; /* of full layers: [max_positions or less, rotary_dim/2] */
    fm_tokenizer *tokenizer;
    fm_chat_template *chat;
    fm_digest digest;
    fm_digest text_digest; /* of everything under tokenizer/ */
    /* Positions before the first token of every sequence: prefix tuning (keys and values as they
     * stand in the cache: [len, layers, 2, kv_heads * head_dim]) or prompt tuning (rows that take
     * the embeddings' place: [len, hidden]). They count as positions: rope goes on behind them. */
    uint32_t virtual_len;
    bool virtual_is_kv;
    float *virtual_rows; /* host, NULL where virtual_len is 0 */
    fm_digest virtual_id;
    void *priv; /* the engine's bookkeeping */
};

fm_backend *fm_engine_backend(fm_engine *e);

FM_END_DECLS
#endif
