/* model.h - inside of a model: weights bound by name. For infer's own files and for train, which
 * mirrors the forward pass; nobody else needs it. */
#ifndef FM_INFER_MODEL_H
#define FM_INFER_MODEL_H

#include "infer/backend.h"
#include "infer/infer.h"

FM_BEGIN_DECLS

/* One low-rank term on one linear layer, applied in order of the adapters. */
typedef struct fm_lora_term {
    const float *a; /* [r, in] device */
    const float *b; /* [out, r] device */
    uint32_t r;
    float scale;
    uint32_t adapter; /* which adapters/<n> it is of */
} fm_lora_term;

typedef struct fm_linear {
    const fm_weight *w; /* [out, in]; shared through the cache */
    fm_digest id;       /* of w's tensor: rows are grouped by it */
    const float *bias;  /* [out] or NULL */
    uint32_t in, out;
    fm_lora_term *lora;
    uint32_t lora_count;
} fm_linear;

typedef struct fm_layer {
    const float *attn_norm, *mlp_norm; /* [hidden] */
    const float *q_norm, *k_norm;      /* [head_dim] or NULL */
    fm_digest attn_norm_id, mlp_norm_id;
    fm_linear q, k, v, o, gate, up, down;
} fm_layer;

struct fm_model {
    fm_engine *engine;
    fm_arch arch;
    fm_linear embed;   /* [vocab, hidden]; used by rows */
    fm_linear head;    /* [vocab, hidden]; the same weight where tied */
    const float *norm; /* [hidden] */
    fm_layer *layers;
    const float *cos, *sin; /* [max_positions or less, head_dim/2] */
    fm_tokenizer *tokenizer;
    fm_chat_template *chat;
    fm_digest digest;
    fm_digest text_digest; /* of everything under tokenizer/ */
    void *priv;            /* the engine's bookkeeping */
};

fm_backend *fm_engine_backend(fm_engine *e);

FM_END_DECLS
#endif
