/* arch_params.c - what an architecture is made of: its parameters in a fixed order, and its rotary
 * table. */
#include "infer/arch.h"

#include <stdio.h>
#include <string.h>

#include "store/base/detmath.h"

/* ==== parameters ==== */

typedef enum part_when { ALWAYS, QKV_BIAS, O_BIAS, MLP_BIAS, QK_NORM } part_when;
typedef enum part_dim { DIM_1, HIDDEN, INTER, Q_OUT, KV_OUT, HEAD_DIM } part_dim;

/* The parameters of a layer, in order. DIM_1 as the second dimension: a vector. */
static const struct part {
    const char *name;
    part_when when;
    part_dim rows, cols;
} parts[] = {
    {"input_layernorm.weight", ALWAYS, HIDDEN, DIM_1},
    {"self_attn.q_proj.weight", ALWAYS, Q_OUT, HIDDEN},
    {"self_attn.q_proj.bias", QKV_BIAS, Q_OUT, DIM_1},
    {"self_attn.k_proj.weight", ALWAYS, KV_OUT, HIDDEN},
    {"self_attn.k_proj.bias", QKV_BIAS, KV_OUT, DIM_1},
    {"self_attn.v_proj.weight", ALWAYS, KV_OUT, HIDDEN},
    {"self_attn.v_proj.bias", QKV_BIAS, KV_OUT, DIM_1},
    {"self_attn.q_norm.weight", QK_NORM, HEAD_DIM, DIM_1},
    {"self_attn.k_norm.weight", QK_NORM, HEAD_DIM, DIM_1},
    {"self_attn.o_proj.weight", ALWAYS, HIDDEN, Q_OUT},
    {"self_attn.o_proj.bias", O_BIAS, HIDDEN, DIM_1},
    {"post_attention_layernorm.weight", ALWAYS, HIDDEN, DIM_1},
    {"mlp.gate_proj.weight", ALWAYS, INTER, HIDDEN},
    {"mlp.gate_proj.bias", MLP_BIAS, INTER, DIM_1},
    {"mlp.up_proj.weight", ALWAYS, INTER, HIDDEN},
    {"mlp.up_proj.bias", MLP_BIAS, INTER, DIM_1},
    {"mlp.down_proj.weight", ALWAYS, HIDDEN, INTER},
    {"mlp.down_proj.bias", MLP_BIAS, HIDDEN, DIM_1},
};

static bool part_is_there(const fm_arch *a, part_when when)
{
    switch (when) {
    case QKV_BIAS:
        return a->qkv_bias;
    case O_BIAS:
        return a->o_bias;
    case MLP_BIAS:
        return a->mlp_bias;
    case QK_NORM:
        return a->qk_norm;
    case ALWAYS:
        break;
    }
    return true;
}

static uint64_t part_size(const fm_arch *a, part_dim d)
{
    switch (d) {
    case HIDDEN:
        return a->hidden;
    case INTER:
        return a->inter;
    case Q_OUT:
        return (uint64_t)a->heads * a->head_dim;
    case KV_OUT:
        return (uint64_t)a->kv_heads * a->head_dim;
    case HEAD_DIM:
        return a->head_dim;
    case DIM_1:
        break;
    }
    return 1;
}

static void set_param(fm_param *p, const char *name, uint64_t rows, uint64_t cols, int32_t layer)
{
    memset(p, 0, sizeof(*p));
    if (layer < 0)
        (void)snprintf(p->name, sizeof(p->name), "%s", name);
    else
        (void)snprintf(p->name, sizeof(p->name), "model.layers.%d.%s", (int)layer, name);
    p->is_matrix = cols > 0;
    p->shape.rank = cols ? 2 : 1;
    p->shape.dim[0] = rows;
    p->shape.dim[1] = cols;
    p->layer = layer;
}

bool fm_arch_param(const fm_arch *a, uint32_t i, fm_param *out)
{
    const struct part *there[FM_ARRAY_LEN(parts)];
    uint32_t per_layer = 0;
    for (size_t k = 0; k < FM_ARRAY_LEN(parts); k++)
        if (part_is_there(a, parts[k].when))
            there[per_layer++] = &parts[k];
    if (i == 0) {
        set_param(out, "model.embed_tokens.weight", a->vocab, a->hidden, -1);
        return true;
    }
    i -= 1;
    if (i < per_layer * a->layers) {
        const struct part *p = there[i % per_layer];
        uint64_t cols = p->cols == DIM_1 ? 0 : part_size(a, p->cols);
        set_param(out, p->name, part_size(a, p->rows), cols, (int32_t)(i / per_layer));
        return true;
    }
    i -= per_layer * a->layers;
    if (i == 0) {
        set_param(out, "model.norm.weight", a->hidden, 0, -1);
        return true;
    }
    if (i == 1 && !a->tied) {
        set_param(out, "lm_head.weight", a->vocab, a->hidden, -1);
        return true;
    }
    return false;
}

/* ==== rotary table ==== */

#define TWO_PI 6.283185307179586476925286766559

/* One inverse frequency. Hugging Face computes each operation on float32 tensors; the roundings
 * between them are kept, only pow is taken in double and rounded once. */
static float inv_freq(const fm_arch *a, uint32_t i)
{
    float exponent = (float)(2 * i) / (float)a->head_dim;
    float inv = 1.0f / (float)fm_pow(a->rope_theta, (double)exponent);
    if (!a->rope_llama3)
        return inv;
    float factor = (float)a->rope_factor, low = (float)a->rope_low, high = (float)a->rope_high;
    float old_len = (float)a->rope_original;
    float wavelen = (float)TWO_PI / inv;
    if (wavelen > (float)(a->rope_original / a->rope_low))
        return inv / factor;
    if (wavelen < (float)(a->rope_original / a->rope_high))
        return inv;
    float smooth = (old_len / wavelen - low) / (high - low);
    return (1.0f - smooth) * inv / factor + smooth * inv;
}

fm_status fm_arch_rope(const fm_arch *a, uint32_t positions, float *cos, float *sin)
{
    uint32_t half = a->head_dim / 2;
    if (positions > a->max_positions)
        return fm_fail(FM_ELIMIT, "rope: %u positions asked for, the model has %u", positions,
                       a->max_positions);
    for (uint32_t i = 0; i < half; i++) {
        float f = inv_freq(a, i);
        for (uint32_t p = 0; p < positions; p++) {
            float angle = (float)p * f;
            double s = 0, c = 0;
            fm_sincos(&s, &c, (double)angle);
            cos[(size_t)p * half + i] = (float)c;
            sin[(size_t)p * half + i] = (float)s;
        }
    }
    return FM_OK;
}
