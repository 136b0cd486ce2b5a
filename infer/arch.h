/* arch.h - what a model's config says, in one struct, and the names its tensors must have.
 *
 * Read from HF config.json (transformers 4's rope_theta/rope_scaling/torch_dtype and 5's
 * rope_parameters/dtype). A field that changes the result and is not understood is an error. */
#ifndef FM_INFER_ARCH_H
#define FM_INFER_ARCH_H

#include "store/base/json.h"
#include "store/tree.h"

FM_BEGIN_DECLS

#define FM_MAX_LAYERS 512u
#define FM_MAX_VOCAB 1048576u

typedef struct fm_arch {
    char family[24]; /* model_type: "llama", "mistral", "qwen2", "qwen3" */
    uint32_t vocab, hidden, inter, layers, heads, kv_heads, head_dim;
    uint32_t max_positions;
    uint32_t window; /* sliding window of every layer, 0 = none */
    float eps;
    bool tied; /* lm_head is embed_tokens */
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    double rope_theta;
    bool rope_llama3; /* the four below are used */
    double rope_factor, rope_low, rope_high;
    uint32_t rope_original;
    int32_t bos, eos[8], pad; /* -1 = none */
    uint32_t eos_count;
} fm_arch;

/* model_json: the tree's model.json. FM_EUNSUPPORTED names a model_type or field we lack. */
FM_CHECKED fm_status fm_arch_from_json(fm_arch *out, const fm_json *model_json, const char *what);
FM_CHECKED fm_status fm_arch_of_tree(fm_arch *out, const fm_tree *tree, const char *what);

/* cos, sin: [positions, head_dim/2]; inverse frequencies and angles rounded to f32 where HF does.
 */
FM_CHECKED fm_status fm_arch_rope(const fm_arch *a, uint32_t positions, float *cos, float *sin);

/* Each parameter of the architecture in a fixed order: for (i = 0; fm_arch_param(a, i, &p); i++).
 */
typedef struct fm_param {
    char name[160]; /* "model.layers.3.self_attn.q_proj.weight" */
    fm_shape shape;
    bool is_matrix; /* a linear layer or embedding; else norm gain or bias */
    int32_t layer;  /* -1: outside the layers */
} fm_param;
bool fm_arch_param(const fm_arch *a, uint32_t i, fm_param *out);

FM_END_DECLS
#endif
