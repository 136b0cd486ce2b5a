/* gguf_arch.c - the architectures of GGUF that have words of Hugging Face's: one row each.
 *
 * Sources: llama.cpp's conversion of each class (what is renamed, permuted, added) and its reading
 * of each architecture (what is fixed in its code and stands in no file). */
#include "store/import/gguf_canon.h"

#include <stdio.h>
#include <string.h>

/* ---- names in a layer ---- */

static const char *const COMMON[][2] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},       {NULL, NULL},
};
static const char *const AFTER[][2] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL, NULL},
};
static const char *const SANDWICH[][2] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {NULL, NULL},
};
static const char *const PHI3[][2] = {
    {"attn_qkv", "self_attn.qkv_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
    {NULL, NULL},
};
static const char *const MIXTRAL[][2] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.%u.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.%u.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.%u.w2"},
    {NULL, NULL},
};
static const char *const QWEN_MOE[][2] = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.%u.gate_proj"},
    {"ffn_up_exps", "mlp.experts.%u.up_proj"},
    {"ffn_down_exps", "mlp.experts.%u.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {NULL, NULL},
};
static const char *const STARCODER2[][2] = {
    {"ffn_up", "mlp.c_fc"},
    {"ffn_down", "mlp.c_proj"},
    {NULL, NULL},
};

/* ---- settings ---- */

static const gguf_setting MIXTRAL_SETTINGS[] = {
    {"expert_count", "num_local_experts", GGUF_INT},
    {"expert_used_count", "num_experts_per_tok", GGUF_INT},
    {.key = NULL},
};
static const gguf_setting QWEN_MOE_SETTINGS[] = {
    {"expert_count", "num_experts", GGUF_INT},
    {"expert_used_count", "num_experts_per_tok", GGUF_INT},
    {"expert_feed_forward_length", "moe_intermediate_size", GGUF_INT},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", GGUF_INT},
    {.key = NULL},
};
static const gguf_setting GEMMA_SETTINGS[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", GGUF_REAL},
    {"final_logit_softcapping", "final_logit_softcapping", GGUF_REAL},
    {"rope.freq_base_swa", "rope_local_base_freq", GGUF_REAL},
    {.key = NULL},
};
static const gguf_setting GRANITE_SETTINGS[] = {
    {"attention.scale", "attention_multiplier", GGUF_REAL},
    {"embedding_scale", "embedding_multiplier", GGUF_REAL},
    {"residual_scale", "residual_multiplier", GGUF_REAL},
    {"logit_scale", "logits_scaling", GGUF_REAL},
    {.key = NULL},
};
static const gguf_setting STABLELM_SETTINGS[] = {
    {"use_parallel_residual", "use_parallel_residual", GGUF_BOOL},
    {.key = NULL},
};

/* ---- the rows ---- */

#define SILU "{\"hidden_act\": \"silu\""
#define GELU_TANH "{\"hidden_act\": \"gelu_pytorch_tanh\""
#define NO_WINDOW ", \"use_sliding_window\": false"
#define MOE(norm) ", \"norm_topk_prob\": " norm ", \"decoder_sparse_step\": 1"

static const gguf_arch ARCHES[] = {
    {.prefix = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .has = GGUF_PERMUTES,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU "}"},
    {.prefix = "llama",
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .has = GGUF_PERMUTES | GGUF_EXPERTS | GGUF_WINDOW,
     .names = MIXTRAL,
     .settings = MIXTRAL_SETTINGS,
     .fixed = SILU "}"},
    {.prefix = "qwen2",
     .model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .fixed = SILU NO_WINDOW "}"},
    {.prefix = "qwen2moe",
     .model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .has = GGUF_EXPERTS,
     .names = QWEN_MOE,
     .settings = QWEN_MOE_SETTINGS,
     .bias = "qkv_bias",
     .fixed = SILU NO_WINDOW MOE("false") "}"},
    {.prefix = "qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .bias = "attention_bias",
     .fixed = SILU NO_WINDOW "}"},
    {.prefix = "qwen3moe",
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .has = GGUF_EXPERTS,
     .names = QWEN_MOE,
     .settings = QWEN_MOE_SETTINGS,
     .bias = "attention_bias",
     .fixed = SILU NO_WINDOW MOE("true") "}"},
    {.prefix = "gemma2",
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .has = GGUF_PLUS_1 | GGUF_WINDOW | GGUF_GEMMA,
     .names = SANDWICH,
     .settings = GEMMA_SETTINGS,
     .fixed = GELU_TANH ", \"hidden_activation\": \"gelu_pytorch_tanh\"}",
     .wide_layers = 46,
     .full_every = 2},
    {.prefix = "gemma3",
     .model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .has = GGUF_PLUS_1 | GGUF_WINDOW | GGUF_GEMMA,
     .names = SANDWICH,
     .settings = GEMMA_SETTINGS,
     .fixed = GELU_TANH ", \"hidden_activation\": \"gelu_pytorch_tanh\", "
                        "\"sliding_window_pattern\": 6, \"rope_local_base_freq\": 10000.0}",
     .theta = 1e6,
     .wide_layers = 62,
     .full_every = 6},
    {.prefix = "phi3",
     .model_type = "phi3",
     .class_name = "Phi3ForCausalLM",
     .has = GGUF_WINDOW | GGUF_PARTIAL | GGUF_LONGROPE,
     .names = PHI3,
     .fixed = SILU "}"},
    {.prefix = "granite",
     .model_type = "granite",
     .class_name = "GraniteForCausalLM",
     .has = GGUF_PERMUTES,
     .settings = GRANITE_SETTINGS,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU "}"},
    {.prefix = "olmo2",
     .model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .names = AFTER,
     .bias = "attention_bias",
     .fixed = SILU "}"},
    {.prefix = "smollm3",
     .model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .has = GGUF_PERMUTES,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU ", \"no_rope_layer_interval\": 4" NO_WINDOW "}"},
    {.prefix = "stablelm",
     .model_type = "stablelm",
     .class_name = "StableLmForCausalLM",
     .has = GGUF_PARTIAL,
     .settings = STABLELM_SETTINGS,
     .eps = "layer_norm_eps",
     .bias = "use_qkv_bias",
     .fixed = SILU "}"},
    {.prefix = "starcoder2",
     .model_type = "starcoder2",
     .class_name = "Starcoder2ForCausalLM",
     .names = STARCODER2,
     .eps = "norm_epsilon",
     .bias = "use_bias",
     .fixed = GELU_TANH ", \"sliding_window\": null}"},
};

const gguf_arch *gguf_arch_find(fm_span name, bool experts)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(ARCHES); i++)
        if (fm_span_eq_str(name, ARCHES[i].prefix) && !(ARCHES[i].has & GGUF_EXPERTS) == !experts)
            return &ARCHES[i];
    return NULL;
}

const gguf_arch *gguf_arch_of_type(const char *model_type)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(ARCHES); i++)
        if (strcmp(model_type, ARCHES[i].model_type) == 0)
            return &ARCHES[i];
    return strcmp(model_type, "mistral") == 0 ? &ARCHES[0] : NULL;
}

void gguf_arch_names(fm_buf *out, bool of_types)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(ARCHES); i++)
        if (of_types)
            fm_buf_printf(out, "%s%s", i ? ", " : "mistral, ", ARCHES[i].model_type);
        else if (i == 0 || strcmp(ARCHES[i].prefix, ARCHES[i - 1].prefix) != 0)
            fm_buf_printf(out, "%s%s", i ? ", " : "", ARCHES[i].prefix);
}

static const char *lookup(const char *const (*table)[2], const char *stem, size_t len)
{
    for (; table && (*table)[0]; table++)
        if (strlen((*table)[0]) == len && memcmp((*table)[0], stem, len) == 0)
            return (*table)[1];
    return NULL;
}

const char *gguf_layer_name(const gguf_arch *arch, const char *stem, size_t len)
{
    const char *own = lookup(arch->names, stem, len);

    return own ? own : lookup(COMMON, stem, len);
}

/* Whether the words are the pattern's, whose "%u" stands for an expert's number. */
static bool fits(const char *pattern, const char *words, size_t len, uint32_t *expert)
{
    const char *number = strstr(pattern, "%u");
    const size_t head = number ? (size_t)(number - pattern) : strlen(pattern);
    size_t at = head;
    uint32_t v = 0;

    *expert = GGUF_NO_EXPERT;
    if (len < head || memcmp(words, pattern, head) != 0)
        return false;
    if (!number)
        return len == head;
    while (at < len && words[at] >= '0' && words[at] <= '9' && v < 100000)
        v = v * 10 + (uint32_t)(words[at++] - '0');
    *expert = v;
    return at > head && strlen(number + 2) == len - at &&
           memcmp(words + at, number + 2, len - at) == 0;
}

const char *gguf_layer_stem(const gguf_arch *arch, const char *words, size_t len, uint32_t *expert)
{
    for (size_t i = 0; arch->names && arch->names[i][0]; i++)
        if (fits(arch->names[i][1], words, len, expert))
            return arch->names[i][0];
    for (size_t i = 0; COMMON[i][0]; i++)
        if (!lookup(arch->names, COMMON[i][0], strlen(COMMON[i][0])) &&
            fits(COMMON[i][1], words, len, expert))
            return COMMON[i][0];
    return NULL;
}

const char *gguf_key(const gguf_arch *arch, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", arch->prefix, key);
    return out;
}

const char *gguf_eps_key(const gguf_arch *arch)
{
    return arch->eps ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
}

uint64_t gguf_gemma_scalar(const gguf_arch *arch, uint64_t layers, uint64_t share,
                           uint64_t head_dim)
{
    return layers == arch->wide_layers ? share : head_dim;
}
