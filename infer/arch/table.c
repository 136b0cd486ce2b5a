/* table.c - the architectures: names, shapes and switches of each family, one row each.
 *
 * Sources: the modeling and configuration classes of `transformers` 5 (and what 4 wrote); the
 * names are those of its files. A row says how a family differs from Llama, which is all zeros. */
#include "infer/arch/table.h"

#include <stdio.h>
#include <string.h>

/* ==== parameters ==== */

static const fmi_arch_part llama_first[] = {
    {"embed_tokens.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN}, {.name = NULL}};
static const fmi_arch_part llama_last[] = {{"norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                           {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                           {.name = NULL}};
static const fmi_arch_part layernorm_last[] = {{"norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                               {"norm.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
                                               {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                               {.name = NULL}};

#define QKV                                                                                        \
    {"self_attn.q_proj.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},                                  \
        {"self_attn.q_proj.bias", FM_P_Q_B, W_QKV_BIAS, D_Q, D_1},                                 \
        {"self_attn.k_proj.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},                             \
        {"self_attn.k_proj.bias", FM_P_K_B, W_QKV_BIAS, D_KV, D_1},                                \
        {"self_attn.v_proj.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},                             \
    {                                                                                              \
        "self_attn.v_proj.bias", FM_P_V_B, W_QKV_BIAS, D_KV, D_1                                   \
    }
#define HEAD_NORMS                                                                                 \
    {"self_attn.q_norm.weight", FM_P_Q_NORM, W_QK_NORM, D_HEAD, D_1},                              \
    {                                                                                              \
        "self_attn.k_norm.weight", FM_P_K_NORM, W_QK_NORM, D_HEAD, D_1                             \
    }
#define O_PROJ                                                                                     \
    {"self_attn.o_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},                                  \
    {                                                                                              \
        "self_attn.o_proj.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1                                 \
    }
#define MLP(when)                                                                                  \
    {"mlp.gate_proj.weight", FM_P_GATE, when, D_INTER, D_HIDDEN},                                  \
        {"mlp.gate_proj.bias", FM_P_GATE_B, W_MLP_BIAS, D_INTER, D_1},                             \
        {"mlp.up_proj.weight", FM_P_UP, when, D_INTER, D_HIDDEN},                                  \
        {"mlp.up_proj.bias", FM_P_UP_B, W_MLP_BIAS, D_INTER, D_1},                                 \
        {"mlp.down_proj.weight", FM_P_DOWN, when, D_HIDDEN, D_INTER},                              \
    {                                                                                              \
        "mlp.down_proj.bias", FM_P_DOWN_B, W_MLP_BIAS, D_HIDDEN, D_1                               \
    }
#define TWO_NORMS_1                                                                                \
    {                                                                                              \
        "input_layernorm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1                          \
    }
#define TWO_NORMS_2                                                                                \
    {                                                                                              \
        "post_attention_layernorm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1                  \
    }

static const fmi_arch_part llama_layer[] = {TWO_NORMS_1, QKV,          HEAD_NORMS,    O_PROJ,
                                            TWO_NORMS_2, MLP(W_DENSE), {.name = NULL}};

static const fmi_arch_part bitnet_layer[] = {
    TWO_NORMS_1,
    QKV,
    {"self_attn.attn_sub_norm.weight", FM_P_ATTN_SUB, W_ALWAYS, D_HIDDEN, D_1},
    O_PROJ,
    TWO_NORMS_2,
    MLP(W_DENSE),
    {"mlp.ffn_sub_norm.weight", FM_P_MLP_SUB, W_ALWAYS, D_INTER, D_1},
    {.name = NULL}};

static const fmi_arch_part gemma_layer[] = {
    TWO_NORMS_1,
    QKV,
    HEAD_NORMS,
    O_PROJ,
    {"post_attention_layernorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"pre_feedforward_layernorm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    MLP(W_DENSE),
    {"post_feedforward_layernorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part gemma4_first[] = {
    {"embed_tokens.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"embed_tokens_per_layer.weight", FM_P_PER_EMBED, W_PER_LAYER, D_PER_VOCAB, D_PER_ALL},
    {"per_layer_model_projection.weight", FM_P_PER_MAP, W_PER_LAYER, D_PER_ALL, D_HIDDEN},
    {"per_layer_projection_norm.weight", FM_P_PER_NORM, W_PER_LAYER, D_PER, D_1},
    {.name = NULL}};
static const fmi_arch_part gemma4_layer[] = {
    TWO_NORMS_1,
    {"self_attn.q_proj.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"self_attn.q_proj.bias", FM_P_Q_B, W_QKV_BIAS, D_Q, D_1},
    {"self_attn.k_proj.weight", FM_P_K, W_KEEPS, D_KV, D_HIDDEN},
    {"self_attn.k_proj.bias", FM_P_K_B, W_KEEPS_BIAS, D_KV, D_1},
    {"self_attn.v_proj.weight", FM_P_V, W_KEEPS_V, D_KV, D_HIDDEN},
    {"self_attn.v_proj.bias", FM_P_V_B, W_KEEPS_V_BIAS, D_KV, D_1},
    {"self_attn.q_norm.weight", FM_P_Q_NORM, W_ALWAYS, D_HEAD, D_1},
    {"self_attn.k_norm.weight", FM_P_K_NORM, W_KEEPS, D_HEAD, D_1},
    O_PROJ,
    {"post_attention_layernorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"pre_feedforward_layernorm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    MLP(W_ALWAYS),
    {"post_feedforward_layernorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"post_feedforward_layernorm_1.weight", FM_P_MLP_SUM, W_SPARSE, D_HIDDEN, D_1},
    {"pre_feedforward_layernorm_2.weight", FM_P_X_NORM, W_SPARSE, D_HIDDEN, D_1},
    {"post_feedforward_layernorm_2.weight", FM_P_X_POST, W_SPARSE, D_HIDDEN, D_1},
    {"router.scale", FM_P_ROUTER_GAIN, W_SPARSE, D_HIDDEN, D_1},
    {"router.proj.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"router.per_expert_scale", FM_P_X_SCALE, W_SPARSE, D_EXPERTS, D_1},
    {"experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {"per_layer_input_gate.weight", FM_P_PER_GATE, W_PER_LAYER, D_PER, D_HIDDEN},
    {"per_layer_projection.weight", FM_P_PER_OUT, W_PER_LAYER, D_HIDDEN, D_PER},
    {"post_per_layer_input_norm.weight", FM_P_PER_POST, W_PER_LAYER, D_HIDDEN, D_1},
    {"layer_scalar", FM_P_LAYER_SCALE, W_LAYER_SCALE, D_ONE, D_1},
    {.name = NULL}};
static const fmi_stack gemma4_stacks[] = {
    {"experts.gate_up_proj", FM_P_X_GATE, FMI_STACK_FRONT, .turned = false},
    {"experts.gate_up_proj", FM_P_X_UP, FMI_STACK_BEHIND, .turned = false},
    {"experts.down_proj", FM_P_X_DOWN, FMI_STACK_ALL, .turned = false},
    {.name = NULL}};
static const char gemma4_rope[] =
    "{\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},"
    " \"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0,"
    " \"partial_rotary_factor\": 0.25}}";

static const fmi_arch_part vaultgemma_layer[] = {
    TWO_NORMS_1,  QKV,
    O_PROJ,       {"pre_feedforward_layernorm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    MLP(W_DENSE), {.name = NULL}};

static const fmi_arch_part hyperclovax_layer[] = {
    TWO_NORMS_1,
    QKV,
    O_PROJ,
    {"post_norm1.weight", FM_P_ATTN_POST, W_SANDWICH, D_HIDDEN, D_1},
    TWO_NORMS_2,
    MLP(W_DENSE),
    {"post_norm2.weight", FM_P_MLP_POST, W_SANDWICH, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part olmo2_layer[] = {
    QKV,
    {"self_attn.q_norm.weight", FM_P_Q_NORM, W_ALWAYS, D_Q, D_1},
    {"self_attn.k_norm.weight", FM_P_K_NORM, W_ALWAYS, D_KV, D_1},
    O_PROJ,
    {"post_attention_layernorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    MLP(W_DENSE),
    {"post_feedforward_layernorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part phi3_layer[] = {
    TWO_NORMS_1,
    {"self_attn.qkv_proj.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    O_PROJ,
    TWO_NORMS_2,
    {"mlp.gate_up_proj.weight", FM_P_GATE, W_ALWAYS, D_INTER_2, D_HIDDEN},
    {"mlp.down_proj.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {.name = NULL}};

static const fmi_arch_part mixtral_layer[] = {
    TWO_NORMS_1,
    QKV,
    O_PROJ,
    TWO_NORMS_2,
    {"block_sparse_moe.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w1.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w3.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w2.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {.name = NULL}};

static const fmi_arch_part qwen_moe_layer[] = {
    TWO_NORMS_1,
    QKV,
    HEAD_NORMS,
    O_PROJ,
    TWO_NORMS_2,
    MLP(W_DENSE),
    {"mlp.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"mlp.experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"mlp.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"mlp.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {"mlp.shared_expert.gate_proj.weight", FM_P_S_GATE, W_SHARED, D_S_INTER, D_HIDDEN},
    {"mlp.shared_expert.up_proj.weight", FM_P_S_UP, W_SHARED, D_S_INTER, D_HIDDEN},
    {"mlp.shared_expert.down_proj.weight", FM_P_S_DOWN, W_SHARED, D_HIDDEN, D_S_INTER},
    {"mlp.shared_expert_gate.weight", FM_P_S_SWITCH, W_SHARED_GATE, D_ONE, D_HIDDEN},
    {.name = NULL}};

/* Experts of their own and shared ones, as DeepSeek names them. */
#define DEEP_EXPERTS(bias, bias_rows, bias_cols)                                                   \
    {"mlp.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},                               \
        {bias, FM_P_ROUTER_B, W_ROUTER_BIAS, bias_rows, bias_cols},                                \
        {"mlp.experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},           \
        {"mlp.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},               \
        {"mlp.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},           \
        {"mlp.shared_experts.gate_proj.weight", FM_P_S_GATE, W_SHARED, D_S_INTER, D_HIDDEN},       \
        {"mlp.shared_experts.up_proj.weight", FM_P_S_UP, W_SHARED, D_S_INTER, D_HIDDEN},           \
    {                                                                                              \
        "mlp.shared_experts.down_proj.weight", FM_P_S_DOWN, W_SHARED, D_HIDDEN, D_S_INTER          \
    }

static const fmi_arch_part glm4_moe_layer[] = {
    TWO_NORMS_1,
    QKV,
    HEAD_NORMS,
    O_PROJ,
    TWO_NORMS_2,
    MLP(W_DENSE),
    DEEP_EXPERTS("mlp.gate.e_score_correction_bias", D_EXPERTS, D_1),
    {.name = NULL}};

#define LATENT                                                                                     \
    {"self_attn.q_proj.weight", FM_P_Q, W_PLAIN_Q, D_Q, D_HIDDEN},                                 \
        {"self_attn.q_a_proj.weight", FM_P_Q_A, W_LATENT_Q, D_Q_RANK, D_HIDDEN},                   \
        {"self_attn.q_a_proj.bias", FM_P_Q_A_B, W_LATENT_Q_BIAS, D_Q_RANK, D_1},                   \
        {"self_attn.q_a_layernorm.weight", FM_P_Q_NORM, W_LATENT_Q, D_Q_RANK, D_1},                \
        {"self_attn.q_b_proj.weight", FM_P_Q, W_LATENT_Q, D_Q, D_Q_RANK},                          \
        {"self_attn.kv_a_proj_with_mqa.weight", FM_P_K, W_ALWAYS, D_KV_A, D_HIDDEN},               \
        {"self_attn.kv_a_proj_with_mqa.bias", FM_P_K_B, W_QKV_BIAS, D_KV_A, D_1},                  \
        {"self_attn.kv_a_layernorm.weight", FM_P_K_NORM, W_ALWAYS, D_KV_RANK, D_1},                \
        {"self_attn.kv_b_proj.weight", FM_P_V, W_ALWAYS, D_KV_B, D_KV_RANK},                       \
        {"self_attn.o_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_VALUES},                         \
    {                                                                                              \
        "self_attn.o_proj.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1                                 \
    }

static const fmi_arch_part deepseek_layer[] = {
    TWO_NORMS_1,
    LATENT,
    TWO_NORMS_2,
    MLP(W_DENSE),
    DEEP_EXPERTS("mlp.gate.e_score_correction_bias", D_EXPERTS, D_1),
    {.name = NULL}};

static const fmi_arch_part ernie4_5_moe_layer[] = {
    TWO_NORMS_1,   QKV,
    O_PROJ,        TWO_NORMS_2,
    MLP(W_DENSE),  DEEP_EXPERTS("mlp.moe_statics.e_score_correction_bias", D_ONE, D_EXPERTS),
    {.name = NULL}};

static const fmi_arch_part minimax_m2_layer[] = {
    TWO_NORMS_1,
    QKV,
    {"self_attn.q_norm.weight", FM_P_Q_NORM, W_ALWAYS, D_Q, D_1},
    {"self_attn.k_norm.weight", FM_P_K_NORM, W_ALWAYS, D_KV, D_1},
    O_PROJ,
    TWO_NORMS_2,
    {"block_sparse_moe.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"block_sparse_moe.e_score_correction_bias", FM_P_ROUTER_B, W_ROUTER_BIAS, D_EXPERTS, D_1},
    {"block_sparse_moe.experts.%u.w1.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w3.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w2.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {.name = NULL}};

/* The names of experts are those of other families: its files have them stacked. */
static const fmi_arch_part gpt_oss_layer[] = {
    TWO_NORMS_1,
    QKV,
    O_PROJ,
    {"self_attn.sinks", FM_P_SINKS, W_ALWAYS, D_HEADS, D_1},
    TWO_NORMS_2,
    {"mlp.router.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"mlp.router.bias", FM_P_ROUTER_SUM_B, W_SPARSE, D_EXPERTS, D_1},
    {"mlp.experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"mlp.experts.%u.gate_proj.bias", FM_P_X_GATE_B, W_EXPERT, D_X_INTER, D_1},
    {"mlp.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"mlp.experts.%u.up_proj.bias", FM_P_X_UP_B, W_EXPERT, D_X_INTER, D_1},
    {"mlp.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {"mlp.experts.%u.down_proj.bias", FM_P_X_DOWN_B, W_EXPERT, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_stack gpt_oss_stacks[] = {
    {"mlp.experts.gate_up_proj", FM_P_X_GATE, FMI_STACK_EVEN, .turned = true},
    {"mlp.experts.gate_up_proj", FM_P_X_UP, FMI_STACK_ODD, .turned = true},
    {"mlp.experts.gate_up_proj_bias", FM_P_X_GATE_B, FMI_STACK_EVEN, .turned = false},
    {"mlp.experts.gate_up_proj_bias", FM_P_X_UP_B, FMI_STACK_ODD, .turned = false},
    {"mlp.experts.down_proj", FM_P_X_DOWN, FMI_STACK_ALL, .turned = true},
    {"mlp.experts.down_proj_bias", FM_P_X_DOWN_B, FMI_STACK_ALL, .turned = false},
    {.name = NULL}};
#define LLAMA4_MLP(at, when, inter, gate, up, down)                                                \
    {at "gate_proj.weight", gate, when, inter, D_HIDDEN},                                          \
        {at "up_proj.weight", up, when, inter, D_HIDDEN},                                          \
    {                                                                                              \
        at "down_proj.weight", down, when, D_HIDDEN, inter                                         \
    }
static const fmi_arch_part llama4_layer[] = {
    TWO_NORMS_1,
    QKV,
    O_PROJ,
    TWO_NORMS_2,
    LLAMA4_MLP("feed_forward.", W_DENSE, D_INTER, FM_P_GATE, FM_P_UP, FM_P_DOWN),
    {"feed_forward.router.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    LLAMA4_MLP("feed_forward.experts.%u.", W_EXPERT, D_X_INTER, FM_P_X_GATE, FM_P_X_UP,
               FM_P_X_DOWN),
    LLAMA4_MLP("feed_forward.shared_expert.", W_SHARED, D_S_INTER, FM_P_S_GATE, FM_P_S_UP,
               FM_P_S_DOWN),
    {.name = NULL}};
static const fmi_stack llama4_stacks[] = {
    {"feed_forward.experts.gate_up_proj", FM_P_X_GATE, FMI_STACK_FRONT, .turned = true},
    {"feed_forward.experts.gate_up_proj", FM_P_X_UP, FMI_STACK_BEHIND, .turned = true},
    {"feed_forward.experts.down_proj", FM_P_X_DOWN, FMI_STACK_ALL, .turned = true},
    {.name = NULL}};
/* Its files have gate and up of all experts, and of the shared one, in one tensor each. */
#define GRANITE_EXPERTS                                                                            \
    {"block_sparse_moe.router.layer.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},          \
        {"block_sparse_moe.experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER,         \
         D_HIDDEN},                                                                                \
        {"block_sparse_moe.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},  \
        {"block_sparse_moe.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN,          \
         D_X_INTER},                                                                               \
        {"shared_mlp.gate_proj.weight", FM_P_S_GATE, W_SHARED, D_S_INTER, D_HIDDEN},               \
        {"shared_mlp.up_proj.weight", FM_P_S_UP, W_SHARED, D_S_INTER, D_HIDDEN},                   \
    {                                                                                              \
        "shared_mlp.output_linear.weight", FM_P_S_DOWN, W_SHARED, D_HIDDEN, D_S_INTER              \
    }
static const fmi_arch_part granitemoe_layer[] = {
    TWO_NORMS_1, QKV, O_PROJ, TWO_NORMS_2, GRANITE_EXPERTS, {.name = NULL}};
static const fmi_stack granitemoe_stacks[] = {
    {"block_sparse_moe.input_linear.weight", FM_P_X_GATE, FMI_STACK_FRONT, .turned = false},
    {"block_sparse_moe.input_linear.weight", FM_P_X_UP, FMI_STACK_BEHIND, .turned = false},
    {"block_sparse_moe.output_linear.weight", FM_P_X_DOWN, FMI_STACK_ALL, .turned = false},
    {"shared_mlp.input_linear.weight", FM_P_S_GATE, FMI_STACK_FRONT, .alone = true},
    {"shared_mlp.input_linear.weight", FM_P_S_UP, FMI_STACK_BEHIND, .alone = true},
    {.name = NULL}};
static const char gpt_oss_rope[] =
    "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"truncate\": false,"
    " \"original_max_position_embeddings\": 4096}";

#define LAYERNORMS_1                                                                               \
    TWO_NORMS_1,                                                                                   \
    {                                                                                              \
        "input_layernorm.bias", FM_P_ATTN_NORM_B, W_ALWAYS, D_HIDDEN, D_1                          \
    }
#define LAYERNORMS_2                                                                               \
    TWO_NORMS_2,                                                                                   \
    {                                                                                              \
        "post_attention_layernorm.bias", FM_P_MLP_NORM_B, W_ALWAYS, D_HIDDEN, D_1                  \
    }

static const fmi_arch_part stablelm_layer[] = {LAYERNORMS_1, QKV,          O_PROJ,
                                               LAYERNORMS_2, MLP(W_DENSE), {.name = NULL}};

static const fmi_arch_part starcoder2_layer[] = {
    LAYERNORMS_1,
    QKV,
    O_PROJ,
    LAYERNORMS_2,
    {"mlp.c_fc.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"mlp.c_fc.bias", FM_P_UP_B, W_MLP_BIAS, D_INTER, D_1},
    {"mlp.c_proj.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"mlp.c_proj.bias", FM_P_DOWN_B, W_MLP_BIAS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part exaone4_layer[] = {
    QKV,           HEAD_NORMS,
    O_PROJ,        {"post_attention_layernorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    MLP(W_DENSE),  {"post_feedforward_layernorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part olmoe_layer[] = {
    TWO_NORMS_1,
    QKV,
    {"self_attn.q_norm.weight", FM_P_Q_NORM, W_ALWAYS, D_Q, D_1},
    {"self_attn.k_norm.weight", FM_P_K_NORM, W_ALWAYS, D_KV, D_1},
    O_PROJ,
    TWO_NORMS_2,
    {"mlp.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"mlp.experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"mlp.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"mlp.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {.name = NULL}};

#define UP_DOWN(up, down)                                                                          \
    {up ".weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},                                          \
        {up ".bias", FM_P_UP_B, W_MLP_BIAS, D_INTER, D_1},                                         \
        {down ".weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},                                  \
    {                                                                                              \
        down ".bias", FM_P_DOWN_B, W_MLP_BIAS, D_HIDDEN, D_1                                       \
    }
#define GATE_UP                                                                                    \
    {"mlp.gate_up_proj.weight", FM_P_GATE, W_ALWAYS, D_INTER_2, D_HIDDEN},                         \
    {                                                                                              \
        "mlp.down_proj.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER                             \
    }

static const fmi_arch_part hunyuan_layer[] = {
    TWO_NORMS_1,
    QKV,
    {"self_attn.query_layernorm.weight", FM_P_Q_NORM, W_ALWAYS, D_HEAD, D_1},
    {"self_attn.key_layernorm.weight", FM_P_K_NORM, W_ALWAYS, D_HEAD, D_1},
    O_PROJ,
    TWO_NORMS_2,
    MLP(W_DENSE),
    {.name = NULL}};

/* OLMo's norms have no parameters. */
static const fmi_arch_part olmo_layer[] = {QKV, O_PROJ, MLP(W_DENSE), {.name = NULL}};
static const fmi_arch_part olmo_last[] = {{"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                          {.name = NULL}};

static const fmi_arch_part cohere_layer[] = {
    TWO_NORMS_1, QKV, O_PROJ, MLP(W_DENSE), {.name = NULL}};

static const fmi_arch_part glm_layer[] = {TWO_NORMS_1, QKV,     O_PROJ,
                                          TWO_NORMS_2, GATE_UP, {.name = NULL}};
static const fmi_arch_part glm4_layer[] = {
    TWO_NORMS_1,
    QKV,
    O_PROJ,
    {"post_self_attn_layernorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    TWO_NORMS_2,
    GATE_UP,
    {"post_mlp_layernorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part arcee_layer[] = {
    TWO_NORMS_1, QKV, O_PROJ, TWO_NORMS_2, UP_DOWN("mlp.up_proj", "mlp.down_proj"), {.name = NULL}};
static const fmi_arch_part nemotron_layer[] = {
    LAYERNORMS_1,  QKV, O_PROJ, LAYERNORMS_2, UP_DOWN("mlp.up_proj", "mlp.down_proj"),
    {.name = NULL}};

/* Its norms have no parameters. */
static const fmi_arch_part nanochat_layer[] = {
    QKV, O_PROJ, UP_DOWN("mlp.fc1", "mlp.fc2"), {.name = NULL}};

static const fmi_arch_part apertus_layer[] = {
    {"attention_layernorm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    QKV,
    HEAD_NORMS,
    O_PROJ,
    {"feedforward_layernorm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"mlp.up_proj.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"mlp.down_proj.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"mlp.act_fn.alpha_p", FM_P_ACT_P, W_ALWAYS, D_ONE, D_1},
    {"mlp.act_fn.alpha_n", FM_P_ACT_N, W_ALWAYS, D_ONE, D_1},
    {.name = NULL}};

static const fmi_arch_part phi_layer[] = {
    LAYERNORMS_1,
    QKV,
    {"self_attn.dense.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"self_attn.dense.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},
    UP_DOWN("mlp.fc1", "mlp.fc2"),
    {.name = NULL}};
static const fmi_arch_part phi_last[] = {
    {"final_layernorm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"final_layernorm.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
    {"bias", FM_P_HEAD_B, W_HEAD_BIAS, D_VOCAB, D_1},
    {.name = NULL}};

static const fmi_arch_part phimoe_layer[] = {
    LAYERNORMS_1,
    QKV,
    O_PROJ,
    LAYERNORMS_2,
    {"block_sparse_moe.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w1.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w3.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"block_sparse_moe.experts.%u.w2.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {.name = NULL}};
static const fmi_arch_part phimoe_last[] = {{"norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                            {"norm.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
                                            {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                            {"bias", FM_P_HEAD_B, W_HEAD_BIAS_MAY, D_VOCAB, D_1},
                                            {.name = NULL}};

static const fmi_arch_part gptj_first[] = {{"wte.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
                                           {.name = NULL}};
static const fmi_arch_part gptj_layer[] = {
    {"ln_1.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"ln_1.bias", FM_P_ATTN_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"attn.q_proj.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"attn.k_proj.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},
    {"attn.v_proj.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},
    {"attn.out_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    UP_DOWN("mlp.fc_in", "mlp.fc_out"),
    {.name = NULL}};
static const fmi_arch_part gptj_last[] = {{"ln_f.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                          {"ln_f.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
                                          {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                          {"bias", FM_P_HEAD_B, W_HEAD_BIAS, D_VOCAB, D_1},
                                          {.name = NULL}};

static const fmi_arch_part opt_first[] = {
    {"embed_tokens.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"embed_positions.weight", FM_P_POSITIONS, W_ALWAYS, D_POSITIONS, D_HIDDEN},
    {.name = NULL}};
static const fmi_arch_part opt_layer[] = {
    {"self_attn_layer_norm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"self_attn_layer_norm.bias", FM_P_ATTN_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    QKV,
    {"self_attn.out_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"self_attn.out_proj.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},
    {"final_layer_norm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"final_layer_norm.bias", FM_P_MLP_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    UP_DOWN("fc1", "fc2"),
    {.name = NULL}};
static const fmi_arch_part opt_last[] = {
    {"final_layer_norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"final_layer_norm.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
    {.name = NULL}};

static const fmi_arch_part falcon_first[] = {
    {"word_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN}, {.name = NULL}};
static const fmi_arch_part falcon_layer[] = {
    {"ln_attn.weight", FM_P_ATTN_NORM, W_TWO_NORMS, D_HIDDEN, D_1},
    {"ln_attn.bias", FM_P_ATTN_NORM_B, W_TWO_NORMS, D_HIDDEN, D_1},
    {"ln_mlp.weight", FM_P_MLP_NORM, W_TWO_NORMS, D_HIDDEN, D_1},
    {"ln_mlp.bias", FM_P_MLP_NORM_B, W_TWO_NORMS, D_HIDDEN, D_1},
    {"input_layernorm.weight", FM_P_ATTN_NORM, W_NOT_TWO_NORMS, D_HIDDEN, D_1},
    {"input_layernorm.bias", FM_P_ATTN_NORM_B, W_NOT_TWO_NORMS, D_HIDDEN, D_1},
    {"self_attention.query_key_value.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"self_attention.query_key_value.bias", FM_P_Q_B, W_QKV_BIAS, D_QKV, D_1},
    {"self_attention.dense.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"self_attention.dense.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},
    {"post_attention_layernorm.weight", FM_P_MLP_NORM, W_IN_TURN, D_HIDDEN, D_1},
    {"post_attention_layernorm.bias", FM_P_MLP_NORM_B, W_IN_TURN, D_HIDDEN, D_1},
    UP_DOWN("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    {.name = NULL}};

/* LFM2's layer without its feed-forward branch, which is dense or of experts. */
#define LFM2                                                                                       \
    {"operator_norm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},                             \
        {"self_attn.q_proj.weight", FM_P_Q, W_ATTENDS, D_Q, D_HIDDEN},                             \
        {"self_attn.k_proj.weight", FM_P_K, W_ATTENDS, D_KV, D_HIDDEN},                            \
        {"self_attn.v_proj.weight", FM_P_V, W_ATTENDS, D_KV, D_HIDDEN},                            \
        {"self_attn.out_proj.weight", FM_P_O, W_ATTENDS, D_HIDDEN, D_Q},                           \
        {"self_attn.q_layernorm.weight", FM_P_Q_NORM, W_ATTENDS, D_HEAD, D_1},                     \
        {"self_attn.k_layernorm.weight", FM_P_K_NORM, W_ATTENDS, D_HEAD, D_1},                     \
        {"conv.conv.weight", FM_P_CONV, W_RECURS, D_CHANNELS, D_KERNEL},                           \
        {"conv.conv.bias", FM_P_CONV_B, W_CONV_BIAS, D_CHANNELS, D_1},                             \
        {"conv.in_proj.weight", FM_P_REC_IN, W_RECURS, D_REC_IN, D_HIDDEN},                        \
        {"conv.in_proj.bias", FM_P_REC_IN_B, W_RECURS_BIAS, D_REC_IN, D_1},                        \
        {"conv.out_proj.weight", FM_P_REC_OUT, W_RECURS, D_HIDDEN, D_REC_INNER},                   \
        {"conv.out_proj.bias", FM_P_REC_OUT_B, W_RECURS_BIAS, D_HIDDEN, D_1},                      \
    {                                                                                              \
        "ffn_norm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1                                  \
    }

static const fmi_arch_part lfm2_layer[] = {
    LFM2,
    {"feed_forward.w1.weight", FM_P_GATE, W_ALWAYS, D_INTER, D_HIDDEN},
    {"feed_forward.w3.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"feed_forward.w2.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {.name = NULL}};
static const fmi_arch_part lfm2_moe_layer[] = {
    LFM2,
    {"feed_forward.w1.weight", FM_P_GATE, W_DENSE, D_INTER, D_HIDDEN},
    {"feed_forward.w3.weight", FM_P_UP, W_DENSE, D_INTER, D_HIDDEN},
    {"feed_forward.w2.weight", FM_P_DOWN, W_DENSE, D_HIDDEN, D_INTER},
    {"feed_forward.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"feed_forward.expert_bias", FM_P_ROUTER_B, W_ROUTER_BIAS, D_EXPERTS, D_1},
    {"feed_forward.experts.%u.w1.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"feed_forward.experts.%u.w3.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},
    {"feed_forward.experts.%u.w2.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},
    {.name = NULL}};
static const fmi_arch_part lfm2_last[] = {
    {"embedding_norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
    {.name = NULL}};

#define DELTA_MIXERS                                                                               \
    TWO_NORMS_1, {"self_attn.q_proj.weight", FM_P_Q, W_ATTENDS, D_Q2, D_HIDDEN},                   \
        {"self_attn.q_proj.bias", FM_P_Q_B, W_QKV_BIAS, D_Q2, D_1},                                \
        {"self_attn.k_proj.weight", FM_P_K, W_ATTENDS, D_KV, D_HIDDEN},                            \
        {"self_attn.k_proj.bias", FM_P_K_B, W_QKV_BIAS, D_KV, D_1},                                \
        {"self_attn.v_proj.weight", FM_P_V, W_ATTENDS, D_KV, D_HIDDEN},                            \
        {"self_attn.v_proj.bias", FM_P_V_B, W_QKV_BIAS, D_KV, D_1},                                \
        {"self_attn.q_norm.weight", FM_P_Q_NORM, W_ATTENDS, D_HEAD, D_1},                          \
        {"self_attn.k_norm.weight", FM_P_K_NORM, W_ATTENDS, D_HEAD, D_1},                          \
        {"self_attn.o_proj.weight", FM_P_O, W_ATTENDS, D_HIDDEN, D_Q},                             \
        {"self_attn.o_proj.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},                              \
        {"linear_attn.A_log", FM_P_RATES, W_RECURS, D_REC_HEADS, D_1},                             \
        {"linear_attn.dt_bias", FM_P_DT_B, W_RECURS, D_REC_HEADS, D_1},                            \
        {"linear_attn.conv1d.weight", FM_P_CONV, W_RECURS, D_CHANNELS, D_KERNEL},                  \
        {"linear_attn.norm.weight", FM_P_REC_NORM, W_RECURS, D_REC_HD, D_1},                       \
    {                                                                                              \
        "linear_attn.out_proj.weight", FM_P_REC_OUT, W_RECURS, D_HIDDEN, D_REC_INNER               \
    }
#define DELTA_PRODUCTS                                                                             \
    {"linear_attn.in_proj_qkv.weight", FM_P_REC_IN, W_RECURS, D_REC_IN, D_HIDDEN},                 \
        {"linear_attn.in_proj_z.weight", FM_P_REC_Z, W_RECURS, D_REC_INNER, D_HIDDEN},             \
        {"linear_attn.in_proj_b.weight", FM_P_REC_BETA, W_RECURS, D_REC_HEADS, D_HIDDEN},          \
    {                                                                                              \
        "linear_attn.in_proj_a.weight", FM_P_REC_ALPHA, W_RECURS, D_REC_HEADS, D_HIDDEN            \
    }
#define QWEN_EXPERTS                                                                               \
    TWO_NORMS_2, MLP(W_DENSE), {"mlp.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},    \
        {"mlp.experts.%u.gate_proj.weight", FM_P_X_GATE, W_EXPERT, D_X_INTER, D_HIDDEN},           \
        {"mlp.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_HIDDEN},               \
        {"mlp.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_HIDDEN, D_X_INTER},           \
        {"mlp.shared_expert.gate_proj.weight", FM_P_S_GATE, W_SHARED, D_S_INTER, D_HIDDEN},        \
        {"mlp.shared_expert.up_proj.weight", FM_P_S_UP, W_SHARED, D_S_INTER, D_HIDDEN},            \
        {"mlp.shared_expert.down_proj.weight", FM_P_S_DOWN, W_SHARED, D_HIDDEN, D_S_INTER},        \
    {                                                                                              \
        "mlp.shared_expert_gate.weight", FM_P_S_SWITCH, W_SHARED, D_ONE, D_HIDDEN                  \
    }
static const fmi_arch_part qwen3_next_layer[] = {
    DELTA_MIXERS,
    {"linear_attn.in_proj_qkvz.weight", FM_P_REC_IN, W_RECURS, D_REC_IN, D_HIDDEN},
    {"linear_attn.in_proj_ba.weight", FM_P_REC_BETA, W_RECURS, D_REC_2HEADS, D_HIDDEN},
    QWEN_EXPERTS,
    {.name = NULL}};
static const fmi_arch_part qwen35_layer[] = {
    DELTA_MIXERS, DELTA_PRODUCTS, TWO_NORMS_2, MLP(W_DENSE), {.name = NULL}};
static const fmi_arch_part qwen35_moe_layer[] = {
    DELTA_MIXERS, DELTA_PRODUCTS, QWEN_EXPERTS, {.name = NULL}};

#define MIXER_PRODUCTS                                                                             \
    {"mixer.conv1d.weight", FM_P_CONV, W_RECURS, D_CHANNELS, D_KERNEL},                            \
        {"mixer.conv1d.bias", FM_P_CONV_B, W_CONV_BIAS, D_CHANNELS, D_1},                          \
        {"mixer.in_proj.weight", FM_P_REC_IN, W_RECURS, D_REC_IN, D_HIDDEN},                       \
        {"mixer.in_proj.bias", FM_P_REC_IN_B, W_RECURS_BIAS, D_REC_IN, D_1},                       \
        {"mixer.out_proj.weight", FM_P_REC_OUT, W_RECURS, D_HIDDEN, D_REC_INNER},                  \
    {                                                                                              \
        "mixer.out_proj.bias", FM_P_REC_OUT_B, W_RECURS_BIAS, D_HIDDEN, D_1                        \
    }
#define HYBRID_MIXERS(when_norm, when_out_bias)                                                    \
    TWO_NORMS_1, {"self_attn.q_proj.weight", FM_P_Q, W_ATTENDS, D_Q, D_HIDDEN},                    \
        {"self_attn.q_proj.bias", FM_P_Q_B, W_QKV_BIAS, D_Q, D_1},                                 \
        {"self_attn.k_proj.weight", FM_P_K, W_ATTENDS, D_KV, D_HIDDEN},                            \
        {"self_attn.k_proj.bias", FM_P_K_B, W_QKV_BIAS, D_KV, D_1},                                \
        {"self_attn.v_proj.weight", FM_P_V, W_ATTENDS, D_KV, D_HIDDEN},                            \
        {"self_attn.v_proj.bias", FM_P_V_B, W_QKV_BIAS, D_KV, D_1},                                \
        {"self_attn.o_proj.weight", FM_P_O, W_ATTENDS, D_HIDDEN, D_Q},                             \
        {"self_attn.o_proj.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},                              \
        {"mamba.A_log", FM_P_RATES, W_RECURS, D_REC_HEADS, D_1},                                   \
        {"mamba.D", FM_P_SKIP, W_RECURS, D_REC_HEADS, D_1},                                        \
        {"mamba.dt_bias", FM_P_DT_B, W_RECURS, D_REC_HEADS, D_1},                                  \
        {"mamba.conv1d.weight", FM_P_CONV, W_RECURS, D_CHANNELS, D_KERNEL},                        \
        {"mamba.conv1d.bias", FM_P_CONV_B, W_CONV_BIAS, D_CHANNELS, D_1},                          \
        {"mamba.in_proj.weight", FM_P_REC_IN, W_RECURS, D_REC_IN, D_HIDDEN},                       \
        {"mamba.in_proj.bias", FM_P_REC_IN_B, W_RECURS_BIAS, D_REC_IN, D_1},                       \
        {"mamba.norm.weight", FM_P_REC_NORM, when_norm, D_REC_INNER, D_1},                         \
        {"mamba.out_proj.weight", FM_P_REC_OUT, W_RECURS, D_HIDDEN, D_REC_INNER},                  \
    {                                                                                              \
        "mamba.out_proj.bias", FM_P_REC_OUT_B, when_out_bias, D_HIDDEN, D_1                        \
    }
#define BAMBA_MLP                                                                                  \
    {"pre_ff_layernorm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},                           \
        {"feed_forward.gate_proj.weight", FM_P_GATE, W_ALWAYS, D_INTER, D_HIDDEN},                 \
        {"feed_forward.gate_proj.bias", FM_P_GATE_B, W_MLP_BIAS, D_INTER, D_1},                    \
        {"feed_forward.up_proj.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},                     \
        {"feed_forward.up_proj.bias", FM_P_UP_B, W_MLP_BIAS, D_INTER, D_1},                        \
        {"feed_forward.down_proj.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},                 \
    {                                                                                              \
        "feed_forward.down_proj.bias", FM_P_DOWN_B, W_MLP_BIAS, D_HIDDEN, D_1                      \
    }
static const fmi_arch_part bamba_layer[] = {
    HYBRID_MIXERS(W_RECURS, W_RECURS_BIAS), BAMBA_MLP, {.name = NULL}};
static const fmi_arch_part falcon_h1_layer[] = {
    HYBRID_MIXERS(W_REC_NORM, W_REC_OUT_BIAS), BAMBA_MLP, {.name = NULL}};
static const fmi_arch_part bamba_last[] = {
    {"final_layernorm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
    {.name = NULL}};
static const fmi_arch_part granite_hybrid_layer[] = {
    HYBRID_MIXERS(W_RECURS, W_RECURS_BIAS),
    TWO_NORMS_2,
    {"shared_mlp.input_linear.weight", FM_P_GATE, W_DENSE, D_INTER_2, D_HIDDEN},
    {"shared_mlp.output_linear.weight", FM_P_DOWN, W_DENSE, D_HIDDEN, D_INTER},
    GRANITE_EXPERTS,
    {.name = NULL}};
static const fmi_arch_part mamba_first[] = {
    {"embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN}, {.name = NULL}};
static const fmi_arch_part mamba_layer[] = {
    {"norm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"mixer.A_log", FM_P_RATES, W_RECURS, D_REC_INNER, D_STATE},
    {"mixer.D", FM_P_SKIP, W_RECURS, D_REC_INNER, D_1},
    MIXER_PRODUCTS,
    {"mixer.x_proj.weight", FM_P_REC_X, W_RECURS, D_REC_X, D_REC_INNER},
    {"mixer.dt_proj.weight", FM_P_REC_DT, W_RECURS, D_REC_INNER, D_RANK},
    {"mixer.dt_proj.bias", FM_P_DT_B, W_RECURS, D_REC_INNER, D_1},
    {.name = NULL}};
static const fmi_arch_part mamba2_layer[] = {
    {"norm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"mixer.A_log", FM_P_RATES, W_RECURS, D_REC_HEADS, D_1},
    {"mixer.D", FM_P_SKIP, W_RECURS, D_REC_HEADS, D_1},
    {"mixer.dt_bias", FM_P_DT_B, W_RECURS, D_REC_HEADS, D_1},
    MIXER_PRODUCTS,
    {"mixer.norm.weight", FM_P_REC_NORM, W_RECURS, D_REC_INNER, D_1},
    {.name = NULL}};
/* One norm and one block in each layer, all named alike. */
static const fmi_arch_part nemotron_h_layer[] = {
    {"norm.weight", FM_P_ATTN_NORM, W_MIXES, D_HIDDEN, D_1},
    {"mixer.q_proj.weight", FM_P_Q, W_ATTENDS, D_Q, D_HIDDEN},
    {"mixer.k_proj.weight", FM_P_K, W_ATTENDS, D_KV, D_HIDDEN},
    {"mixer.v_proj.weight", FM_P_V, W_ATTENDS, D_KV, D_HIDDEN},
    {"mixer.o_proj.weight", FM_P_O, W_ATTENDS, D_HIDDEN, D_Q},
    {"mixer.A_log", FM_P_RATES, W_RECURS, D_REC_HEADS, D_1},
    {"mixer.D", FM_P_SKIP, W_RECURS, D_REC_HEADS, D_1},
    {"mixer.dt_bias", FM_P_DT_B, W_RECURS, D_REC_HEADS, D_1},
    MIXER_PRODUCTS,
    {"mixer.norm.weight", FM_P_REC_NORM, W_RECURS, D_REC_INNER, D_1},
    {"norm.weight", FM_P_MLP_NORM, W_MLP_ALONE, D_HIDDEN, D_1},
    {"mixer.up_proj.weight", FM_P_UP, W_DENSE, D_INTER, D_HIDDEN},
    {"mixer.up_proj.bias", FM_P_UP_B, W_MLP_BIAS, D_INTER, D_1},
    {"mixer.down_proj.weight", FM_P_DOWN, W_DENSE, D_HIDDEN, D_INTER},
    {"mixer.down_proj.bias", FM_P_DOWN_B, W_MLP_BIAS, D_HIDDEN, D_1},
    {"mixer.gate.weight", FM_P_ROUTER, W_SPARSE, D_EXPERTS, D_HIDDEN},
    {"mixer.gate.e_score_correction_bias", FM_P_ROUTER_B, W_ROUTER_BIAS, D_EXPERTS, D_1},
    {"mixer.fc1_latent_proj.weight", FM_P_X_INTO, W_EXPERT_IN, D_X_IN, D_HIDDEN},
    {"mixer.fc2_latent_proj.weight", FM_P_X_FROM, W_EXPERT_IN, D_HIDDEN, D_X_IN},
    {"mixer.experts.%u.up_proj.weight", FM_P_X_UP, W_EXPERT, D_X_INTER, D_X_IN},
    {"mixer.experts.%u.down_proj.weight", FM_P_X_DOWN, W_EXPERT, D_X_IN, D_X_INTER},
    {"mixer.shared_experts.up_proj.weight", FM_P_S_UP, W_SHARED, D_S_INTER, D_HIDDEN},
    {"mixer.shared_experts.down_proj.weight", FM_P_S_DOWN, W_SHARED, D_HIDDEN, D_S_INTER},
    {.name = NULL}};
static const fmi_arch_part mamba_last[] = {{"norm_f.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                           {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                           {.name = NULL}};

static const fmi_arch_part gpt2_first[] = {
    {"wte.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"wpe.weight", FM_P_POSITIONS, W_ALWAYS, D_POSITIONS, D_HIDDEN},
    {.name = NULL}};
static const fmi_arch_part gpt2_layer[] = {
    {"ln_1.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"ln_1.bias", FM_P_ATTN_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"attn.c_attn.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"attn.c_attn.bias", FM_P_Q_B, W_ALWAYS, D_QKV, D_1},
    {"attn.c_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attn.c_proj.bias", FM_P_O_B, W_ALWAYS, D_HIDDEN, D_1},
    {"ln_2.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"ln_2.bias", FM_P_MLP_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"mlp.c_fc.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"mlp.c_fc.bias", FM_P_UP_B, W_ALWAYS, D_INTER, D_1},
    {"mlp.c_proj.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"mlp.c_proj.bias", FM_P_DOWN_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part gpt2_last[] = {{"ln_f.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                          {"ln_f.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
                                          {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                          {.name = NULL}};

static const fmi_arch_part neox_first[] = {
    {"embed_in.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN}, {.name = NULL}};
static const fmi_arch_part neox_layer[] = {
    LAYERNORMS_1,
    {"attention.query_key_value.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"attention.query_key_value.bias", FM_P_Q_B, W_QKV_BIAS, D_QKV, D_1},
    {"attention.dense.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attention.dense.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},
    LAYERNORMS_2,
    {"mlp.dense_h_to_4h.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"mlp.dense_h_to_4h.bias", FM_P_UP_B, W_ALWAYS, D_INTER, D_1},
    {"mlp.dense_4h_to_h.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"mlp.dense_4h_to_h.bias", FM_P_DOWN_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part neox_last[] = {
    {"final_layer_norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"final_layer_norm.bias", FM_P_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
    {.name = NULL}};

#define BERT_TABLES                                                                                \
    {"embeddings.word_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_EMBED},                 \
        {"embeddings.position_embeddings.weight", FM_P_POSITIONS, W_ALWAYS, D_POSITIONS, D_EMBED}, \
        {"embeddings.token_type_embeddings.weight", FM_P_TYPES, W_ALWAYS, D_TYPES, D_EMBED},       \
        {"embeddings.LayerNorm.weight", FM_P_EMBED_NORM, W_ALWAYS, D_EMBED, D_1},                  \
    {                                                                                              \
        "embeddings.LayerNorm.bias", FM_P_EMBED_NORM_B, W_ALWAYS, D_EMBED, D_1                     \
    }
static const fmi_arch_part bert_first[] = {BERT_TABLES, {.name = NULL}};
static const fmi_arch_part bert_layer[] = {
    {"attention.self.query.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"attention.self.query.bias", FM_P_Q_B, W_ALWAYS, D_Q, D_1},
    {"attention.self.key.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.self.key.bias", FM_P_K_B, W_ALWAYS, D_KV, D_1},
    {"attention.self.value.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.self.value.bias", FM_P_V_B, W_ALWAYS, D_KV, D_1},
    {"attention.output.dense.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attention.output.dense.bias", FM_P_O_B, W_ALWAYS, D_HIDDEN, D_1},
    {"attention.output.LayerNorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"attention.output.LayerNorm.bias", FM_P_ATTN_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {"intermediate.dense.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"intermediate.dense.bias", FM_P_UP_B, W_ALWAYS, D_INTER, D_1},
    {"output.dense.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"output.dense.bias", FM_P_DOWN_B, W_ALWAYS, D_HIDDEN, D_1},
    {"output.LayerNorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"output.LayerNorm.bias", FM_P_MLP_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part bert_last[] = {{.name = NULL}};

static const fmi_arch_part electra_first[] = {
    BERT_TABLES,
    {"embeddings_project.weight", FM_P_EMBED_MAP, W_EMBED_MAP, D_HIDDEN, D_EMBED},
    {"embeddings_project.bias", FM_P_EMBED_MAP_B, W_EMBED_MAP, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part albert_first[] = {
    BERT_TABLES,
    {"encoder.embedding_hidden_mapping_in.weight", FM_P_EMBED_MAP, W_ALWAYS, D_HIDDEN, D_EMBED},
    {"encoder.embedding_hidden_mapping_in.bias", FM_P_EMBED_MAP_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part albert_layer[] = {
    {"attention.query.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"attention.query.bias", FM_P_Q_B, W_ALWAYS, D_Q, D_1},
    {"attention.key.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.key.bias", FM_P_K_B, W_ALWAYS, D_KV, D_1},
    {"attention.value.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.value.bias", FM_P_V_B, W_ALWAYS, D_KV, D_1},
    {"attention.dense.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attention.dense.bias", FM_P_O_B, W_ALWAYS, D_HIDDEN, D_1},
    {"attention.LayerNorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"attention.LayerNorm.bias", FM_P_ATTN_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    UP_DOWN("ffn", "ffn_output"),
    {"full_layer_layer_norm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"full_layer_layer_norm.bias", FM_P_MLP_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part mpnet_first[] = {
    {"embeddings.word_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"embeddings.position_embeddings.weight", FM_P_POSITIONS, W_ALWAYS, D_POSITIONS, D_HIDDEN},
    {"embeddings.LayerNorm.weight", FM_P_EMBED_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"embeddings.LayerNorm.bias", FM_P_EMBED_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {"encoder.relative_attention_bias.weight", FM_P_BUCKETS, W_ALWAYS, D_BUCKETS, D_HEADS},
    {.name = NULL}};
static const fmi_arch_part mpnet_layer[] = {
    {"attention.attn.q.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"attention.attn.q.bias", FM_P_Q_B, W_ALWAYS, D_Q, D_1},
    {"attention.attn.k.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.attn.k.bias", FM_P_K_B, W_ALWAYS, D_KV, D_1},
    {"attention.attn.v.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.attn.v.bias", FM_P_V_B, W_ALWAYS, D_KV, D_1},
    {"attention.attn.o.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attention.attn.o.bias", FM_P_O_B, W_ALWAYS, D_HIDDEN, D_1},
    {"attention.LayerNorm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"attention.LayerNorm.bias", FM_P_ATTN_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    UP_DOWN("intermediate.dense", "output.dense"),
    {"output.LayerNorm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"output.LayerNorm.bias", FM_P_MLP_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

#define T5_FIRST(stack)                                                                            \
    {"shared.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},                                    \
    {                                                                                              \
        stack ".block.0.layer.0.SelfAttention.relative_attention_bias.weight", FM_P_BUCKETS,       \
            W_ALWAYS, D_BUCKETS, D_HEADS                                                           \
    }
#define T5_SELF                                                                                    \
    {"layer.0.layer_norm.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},                        \
        {"layer.0.SelfAttention.q.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},                       \
        {"layer.0.SelfAttention.k.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},                      \
        {"layer.0.SelfAttention.v.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},                      \
    {                                                                                              \
        "layer.0.SelfAttention.o.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q                          \
    }
#define T5_MLP(number)                                                                             \
    {"layer." number ".layer_norm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},                \
        {"layer." number ".DenseReluDense.wi_0.weight", FM_P_GATE, W_GATED, D_INTER, D_HIDDEN},    \
        {"layer." number ".DenseReluDense.wi_1.weight", FM_P_UP, W_GATED, D_INTER, D_HIDDEN},      \
        {"layer." number ".DenseReluDense.wi.weight", FM_P_UP, W_PLAIN, D_INTER, D_HIDDEN},        \
    {                                                                                              \
        "layer." number ".DenseReluDense.wo.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER        \
    }
static const fmi_arch_part t5_first[] = {T5_FIRST("decoder"), {.name = NULL}};
static const fmi_arch_part t5_layer[] = {
    T5_SELF,
    {"layer.1.layer_norm.weight", FM_P_CROSS_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"layer.1.EncDecAttention.q.weight", FM_P_CROSS_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"layer.1.EncDecAttention.k.weight", FM_P_CROSS_K, W_ALWAYS, D_KV, D_HIDDEN},
    {"layer.1.EncDecAttention.v.weight", FM_P_CROSS_V, W_ALWAYS, D_KV, D_HIDDEN},
    {"layer.1.EncDecAttention.o.weight", FM_P_CROSS_O, W_ALWAYS, D_HIDDEN, D_Q},
    T5_MLP("2"),
    {.name = NULL}};
static const fmi_arch_part t5_last[] = {
    {"decoder.final_layer_norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
    {.name = NULL}};
static const fmi_arch_part t5_source_first[] = {T5_FIRST("encoder"), {.name = NULL}};
static const fmi_arch_part t5_source_layer[] = {T5_SELF, T5_MLP("1"), {.name = NULL}};
static const fmi_arch_part t5_source_last[] = {
    {"encoder.final_layer_norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1}, {.name = NULL}};

#define BART_FIRST(stack)                                                                          \
    {"shared.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},                                    \
        {stack ".embed_positions.weight", FM_P_POSITIONS, W_ALWAYS, D_POSITIONS, D_HIDDEN},        \
        {stack ".layernorm_embedding.weight", FM_P_EMBED_NORM, W_ALWAYS, D_HIDDEN, D_1},           \
    {                                                                                              \
        stack ".layernorm_embedding.bias", FM_P_EMBED_NORM_B, W_ALWAYS, D_HIDDEN, D_1              \
    }
#define BART_NORM(name, place)                                                                     \
    {name ".weight", place, W_ALWAYS, D_HIDDEN, D_1},                                              \
    {                                                                                              \
        name ".bias", place##_B, W_ALWAYS, D_HIDDEN, D_1                                           \
    }
#define BART_SELF                                                                                  \
    QKV, {"self_attn.out_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},                           \
    {                                                                                              \
        "self_attn.out_proj.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1                               \
    }
#define BART_CROSS                                                                                 \
    {"encoder_attn.q_proj.weight", FM_P_CROSS_Q, W_ALWAYS, D_Q, D_HIDDEN},                         \
        {"encoder_attn.q_proj.bias", FM_P_CROSS_Q_B, W_ALWAYS, D_Q, D_1},                          \
        {"encoder_attn.k_proj.weight", FM_P_CROSS_K, W_ALWAYS, D_KV, D_HIDDEN},                    \
        {"encoder_attn.k_proj.bias", FM_P_CROSS_K_B, W_ALWAYS, D_KV, D_1},                         \
        {"encoder_attn.v_proj.weight", FM_P_CROSS_V, W_ALWAYS, D_KV, D_HIDDEN},                    \
        {"encoder_attn.v_proj.bias", FM_P_CROSS_V_B, W_ALWAYS, D_KV, D_1},                         \
        {"encoder_attn.out_proj.weight", FM_P_CROSS_O, W_ALWAYS, D_HIDDEN, D_Q},                   \
    {                                                                                              \
        "encoder_attn.out_proj.bias", FM_P_CROSS_O_B, W_ALWAYS, D_HIDDEN, D_1                      \
    }
#define BART_HEAD                                                                                  \
    {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},                                              \
    {                                                                                              \
        "final_logits_bias", FM_P_HEAD_B, W_LOGIT_BIAS, D_VOCAB, D_1                               \
    }
static const fmi_arch_part bart_first[] = {BART_FIRST("decoder"), {.name = NULL}};
static const fmi_arch_part bart_source_first[] = {BART_FIRST("encoder"), {.name = NULL}};
static const fmi_arch_part bart_layer[] = {BART_SELF,
                                           BART_NORM("self_attn_layer_norm", FM_P_ATTN_POST),
                                           BART_CROSS,
                                           BART_NORM("encoder_attn_layer_norm", FM_P_CROSS_POST),
                                           UP_DOWN("fc1", "fc2"),
                                           BART_NORM("final_layer_norm", FM_P_MLP_POST),
                                           {.name = NULL}};
static const fmi_arch_part bart_source_layer[] = {BART_SELF,
                                                  BART_NORM("self_attn_layer_norm", FM_P_ATTN_POST),
                                                  UP_DOWN("fc1", "fc2"),
                                                  BART_NORM("final_layer_norm", FM_P_MLP_POST),
                                                  {.name = NULL}};
static const fmi_arch_part bart_last[] = {BART_HEAD, {.name = NULL}};
static const fmi_arch_part bart_source_last[] = {{.name = NULL}};
static const fmi_arch_part mbart_layer[] = {BART_NORM("self_attn_layer_norm", FM_P_ATTN_NORM),
                                            BART_SELF,
                                            BART_NORM("encoder_attn_layer_norm", FM_P_CROSS_NORM),
                                            BART_CROSS,
                                            BART_NORM("final_layer_norm", FM_P_MLP_NORM),
                                            UP_DOWN("fc1", "fc2"),
                                            {.name = NULL}};
static const fmi_arch_part mbart_source_layer[] = {
    BART_NORM("self_attn_layer_norm", FM_P_ATTN_NORM),
    BART_SELF,
    BART_NORM("final_layer_norm", FM_P_MLP_NORM),
    UP_DOWN("fc1", "fc2"),
    {.name = NULL}};
static const fmi_arch_part mbart_last[] = {
    BART_NORM("decoder.layer_norm", FM_P_NORM), BART_HEAD, {.name = NULL}};
static const fmi_arch_part mbart_source_last[] = {BART_NORM("encoder.layer_norm", FM_P_NORM),
                                                  {.name = NULL}};

static const fmi_arch_part bloom_first[] = {
    {"word_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"word_embeddings_layernorm.weight", FM_P_EMBED_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"word_embeddings_layernorm.bias", FM_P_EMBED_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part bloom_layer[] = {
    LAYERNORMS_1,
    {"self_attention.query_key_value.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"self_attention.query_key_value.bias", FM_P_Q_B, W_ALWAYS, D_QKV, D_1},
    {"self_attention.dense.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"self_attention.dense.bias", FM_P_O_B, W_ALWAYS, D_HIDDEN, D_1},
    LAYERNORMS_2,
    UP_DOWN("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    {.name = NULL}};

static const fmi_arch_part mpt_layer[] = {
    {"norm_1.weight", FM_P_ATTN_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"attn.Wqkv.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"attn.out_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"norm_2.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    UP_DOWN("ffn.up_proj", "ffn.down_proj"),
    {.name = NULL}};
static const fmi_arch_part mpt_last[] = {{"norm_f.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
                                         {"weight", FM_P_HEAD, W_HEAD, D_VOCAB, D_HIDDEN},
                                         {.name = NULL}};

static const fmi_arch_part distilbert_first[] = {
    {"embeddings.word_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"embeddings.position_embeddings.weight", FM_P_POSITIONS, W_ALWAYS, D_POSITIONS, D_HIDDEN},
    {"embeddings.LayerNorm.weight", FM_P_EMBED_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"embeddings.LayerNorm.bias", FM_P_EMBED_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part distilbert_layer[] = {
    {"attention.q_lin.weight", FM_P_Q, W_ALWAYS, D_Q, D_HIDDEN},
    {"attention.q_lin.bias", FM_P_Q_B, W_ALWAYS, D_Q, D_1},
    {"attention.k_lin.weight", FM_P_K, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.k_lin.bias", FM_P_K_B, W_ALWAYS, D_KV, D_1},
    {"attention.v_lin.weight", FM_P_V, W_ALWAYS, D_KV, D_HIDDEN},
    {"attention.v_lin.bias", FM_P_V_B, W_ALWAYS, D_KV, D_1},
    {"attention.out_lin.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attention.out_lin.bias", FM_P_O_B, W_ALWAYS, D_HIDDEN, D_1},
    {"sa_layer_norm.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"sa_layer_norm.bias", FM_P_ATTN_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    UP_DOWN("ffn.lin1", "ffn.lin2"),
    {"output_layer_norm.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"output_layer_norm.bias", FM_P_MLP_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part nomic_first[] = {
    {"embeddings.word_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"embeddings.token_type_embeddings.weight", FM_P_TYPES, W_ALWAYS, D_TYPES, D_HIDDEN},
    {"emb_ln.weight", FM_P_EMBED_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"emb_ln.bias", FM_P_EMBED_NORM_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part nomic_layer[] = {
    {"attn.Wqkv.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"attn.out_proj.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"norm1.weight", FM_P_ATTN_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"norm1.bias", FM_P_ATTN_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {"mlp.fc12.weight", FM_P_GATE, W_ALWAYS, D_INTER, D_HIDDEN},
    {"mlp.fc11.weight", FM_P_UP, W_ALWAYS, D_INTER, D_HIDDEN},
    {"mlp.fc2.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"norm2.weight", FM_P_MLP_POST, W_ALWAYS, D_HIDDEN, D_1},
    {"norm2.bias", FM_P_MLP_POST_B, W_ALWAYS, D_HIDDEN, D_1},
    {.name = NULL}};

static const fmi_arch_part modernbert_first[] = {
    {"embeddings.tok_embeddings.weight", FM_P_EMBED, W_ALWAYS, D_VOCAB, D_HIDDEN},
    {"embeddings.norm.weight", FM_P_EMBED_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"embeddings.norm.bias", FM_P_EMBED_NORM_B, W_NORM_BIAS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part modernbert_layer[] = {
    {"attn_norm.weight", FM_P_ATTN_NORM, W_INPUT_NORM, D_HIDDEN, D_1},
    {"attn_norm.bias", FM_P_ATTN_NORM_B, W_INPUT_NORM_BIAS, D_HIDDEN, D_1},
    {"attn.Wqkv.weight", FM_P_Q, W_ALWAYS, D_QKV, D_HIDDEN},
    {"attn.Wqkv.bias", FM_P_Q_B, W_QKV_BIAS, D_QKV, D_1},
    {"attn.Wo.weight", FM_P_O, W_ALWAYS, D_HIDDEN, D_Q},
    {"attn.Wo.bias", FM_P_O_B, W_O_BIAS, D_HIDDEN, D_1},
    {"mlp_norm.weight", FM_P_MLP_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"mlp_norm.bias", FM_P_MLP_NORM_B, W_NORM_BIAS, D_HIDDEN, D_1},
    {"mlp.Wi.weight", FM_P_GATE, W_ALWAYS, D_INTER_2, D_HIDDEN},
    {"mlp.Wi.bias", FM_P_GATE_B, W_MLP_BIAS, D_INTER_2, D_1},
    {"mlp.Wo.weight", FM_P_DOWN, W_ALWAYS, D_HIDDEN, D_INTER},
    {"mlp.Wo.bias", FM_P_DOWN_B, W_MLP_BIAS, D_HIDDEN, D_1},
    {.name = NULL}};
static const fmi_arch_part modernbert_last[] = {
    {"final_norm.weight", FM_P_NORM, W_ALWAYS, D_HIDDEN, D_1},
    {"final_norm.bias", FM_P_NORM_B, W_NORM_BIAS, D_HIDDEN, D_1},
    {.name = NULL}};

/* ==== settings in addition to the usual ones ==== */

#define LIST(name, ...) static const char *const name[] = {__VA_ARGS__, NULL}

LIST(gemma_keys, "query_pre_attn_scalar", "hidden_activation", "attn_logit_softcapping",
     "final_logit_softcapping", "use_bidirectional_attention", "rope_local_base_freq",
     "sliding_window_pattern", "_sliding_window_pattern");
LIST(gemma4_keys, "hidden_activation", "final_logit_softcapping", "use_bidirectional_attention",
     "global_head_dim", "num_global_key_value_heads", "per_layer_config", "attention_k_eq_v",
     "num_kv_shared_layers", "use_double_wide_mlp", "hidden_size_per_layer_input",
     "vocab_size_per_layer_input", "enable_moe_block", "num_experts", "top_k_experts",
     "moe_intermediate_size");
LIST(gemma1_keys, "use_bidirectional_attention");
LIST(gemma1_harmless, "hidden_activation");
LIST(vaultgemma_keys, "query_pre_attn_scalar", "hidden_activation", "attn_logit_softcapping",
     "final_logit_softcapping");
LIST(gemma_harmless, "hidden_act", "cache_implementation");
/* Settings of what makes rows of pictures, beside the text's; without such rows it lies idle. */
LIST(beside_text, "vision_config", "vision_start_token_id", "vision_end_token_id",
     "vision_token_id", "image_token_id", "video_token_id");
LIST(vision_ignored, "vision_tower.*", "multi_modal_projector.*", "model.vision_tower.*",
     "model.multi_modal_projector.*", "visual.*", "model.visual.*", "vision_model.*",
     "model.vision_model.*");
LIST(gemma4_ignored, "vision_tower.*", "model.vision_tower.*", "audio_tower.*",
     "model.audio_tower.*", "embed_vision.*", "model.embed_vision.*", "embed_audio.*",
     "model.embed_audio.*");
LIST(granite_keys, "embedding_multiplier", "logits_scaling", "residual_multiplier",
     "attention_multiplier");
#define GRANITEMOE_KEYS                                                                            \
    "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier",       \
        "num_local_experts", "num_experts_per_tok"
LIST(granitemoe_keys, GRANITEMOE_KEYS);
LIST(granitemoeshared_keys, GRANITEMOE_KEYS, "shared_intermediate_size");
LIST(hyperclovax_keys, "embedding_multiplier", "logits_scaling", "residual_multiplier",
     "attention_multiplier", "use_post_norm");
LIST(smollm3_keys, "no_rope_layers", "no_rope_layer_interval");
LIST(phi3_keys, "original_max_position_embeddings");
LIST(mixtral_keys, "num_local_experts", "num_experts_per_tok");
LIST(gpt_oss_keys, "num_local_experts", "num_experts_per_tok", "swiglu_limit", "swiglu_alpha");
LIST(gpt_oss_harmless, "output_router_logits", "router_aux_loss_coef", "experts_per_token",
     "initial_context_length");
LIST(moe_harmless, "output_router_logits", "router_aux_loss_coef", "router_jitter_noise");
LIST(llama4_keys, "intermediate_size_mlp", "num_local_experts", "num_experts_per_tok", "moe_layers",
     "interleave_moe_layer_step", "use_qk_norm", "no_rope_layers", "no_rope_layer_interval",
     "attention_chunk_size", "attn_temperature_tuning", "floor_scale", "attn_scale");
LIST(llama4_harmless, "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
     "for_llm_compressor");
LIST(olmoe_keys, "num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob");
LIST(exaone4_keys, "sliding_window_pattern");
LIST(seed_oss_keys, "attention_out_bias");
LIST(residual_dropout, "residual_dropout");
LIST(internlm3_keys, "qkv_bias", "bias");
LIST(qwen_moe_keys, "num_experts", "num_local_experts", "num_experts_per_tok",
     "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
     "decoder_sparse_step", "mlp_only_layers", "qkv_bias");
LIST(deep_keys, "n_routed_experts", "num_local_experts", "num_experts_per_tok",
     "moe_intermediate_size", "n_shared_experts", "n_group", "topk_group", "norm_topk_prob",
     "routed_scaling_factor", "first_k_dense_replace", "use_qk_norm", "num_nextn_predict_layers");
/* scoring_func and topk_method say what the class does anyway; of layers that guess further tokens
 * there is nothing to set. */
LIST(deep_harmless, "output_router_logits", "router_aux_loss_coef", "scoring_func", "topk_method",
     "moe_layer_freq", "aux_loss_alpha", "seq_aux", "ep_size", "num_mtp_layers");
#define LATENT_KEYS                                                                                \
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",           \
        "n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",   \
        "n_shared_experts", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor",    \
        "first_k_dense_replace"
LIST(deepseek_2_keys, LATENT_KEYS, "topk_method");
LIST(deepseek_3_keys, LATENT_KEYS, "rope_interleave", "num_nextn_predict_layers");
LIST(deepseek_2_harmless, "output_router_logits", "router_aux_loss_coef", "scoring_func",
     "moe_layer_freq", "aux_loss_alpha", "seq_aux", "ep_size", "qk_head_dim", "head_dim");
LIST(deepseek_3_harmless, "output_router_logits", "router_aux_loss_coef", "scoring_func",
     "topk_method", "moe_layer_freq", "aux_loss_alpha", "seq_aux", "ep_size", "num_mtp_layers",
     "qk_head_dim", "head_dim");
LIST(minimax_m2_keys, "num_local_experts", "num_experts", "num_experts_per_tok", "rotary_dim");
LIST(minimax_m2_harmless, "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
     "attn_type_list", "mtp_transformer_layers", "num_mtp_modules", "qk_norm_type", "scoring_func",
     "shared_intermediate_size", "use_mtp", "use_qk_norm", "use_routing_bias",
     "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta",
     "shared_moe_mode");
LIST(ernie_moe_keys, "moe_num_experts", "moe_k", "moe_num_shared_experts", "moe_intermediate_size",
     "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "moe_norm_min",
     "use_bias");
LIST(ernie_moe_harmless, "output_router_logits", "router_aux_loss_coef", "moe_capacity", "moe_gate",
     "moe_use_aux_free", "num_nextn_predict_layers");
LIST(ernie_ignored, "model.mtp*", "mtp*");
LIST(phimoe_keys, "num_local_experts", "num_experts", "num_experts_per_tok", "lm_head_bias",
     "router_jitter_noise", "original_max_position_embeddings");
/* Noise on the input is for training alone. */
LIST(phimoe_harmless, "output_router_logits", "router_aux_loss_coef", "input_jitter_noise");
LIST(stablelm_keys, "layer_norm_eps", "use_qkv_bias", "qk_layernorm", "use_parallel_residual");
LIST(starcoder2_keys, "norm_epsilon", "use_bias", "mlp_type", "norm_type");
LIST(starcoder2_harmless, "residual_dropout", "embedding_dropout", "activation_function");
LIST(gpt2_keys, "model_type", "vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner",
     "activation_function", "layer_norm_epsilon", "tie_word_embeddings", "bos_token_id",
     "eos_token_id", "pad_token_id", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
     "add_cross_attention", "is_decoder");
LIST(gpt2_harmless, "attn_pdrop", "summary_activation", "summary_first_dropout",
     "summary_proj_to_labels", "summary_type", "summary_use_proj", "reorder_and_upcast_attn",
     "n_ctx");
LIST(gpt2_ignored, "*.attn.bias", "*.attn.masked_bias");
LIST(neox_keys, "layer_norm_eps", "rotary_pct", "rotary_emb_base", "use_parallel_residual",
     "is_decoder");
LIST(neox_harmless, "classifier_dropout");
LIST(neox_ignored, "*.attention.bias", "*.attention.masked_bias");
LIST(bert_keys, "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
     "num_attention_heads", "intermediate_size", "hidden_act", "max_position_embeddings",
     "type_vocab_size", "layer_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id",
     "is_decoder", "add_cross_attention", "position_embedding_type");
LIST(bert_harmless, "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
     "gradient_checkpointing", "tie_word_embeddings", "output_past", "num_labels");
LIST(bert_ignored, "*embeddings.position_ids", "pooler.*", "cls.*", "lm_head.*", "bert.pooler.*",
     "roberta.pooler.*");

/* Beside pictures the text has a prefix of its own, in a base model none. */
#define NAMES(parts, end)                                                                          \
    .prefix = {"model.", "language_model.model.", "model.language_model.", ""},                    \
    .layers = "layers.", .head_name = "lm_head", .first = llama_first, .layer = parts, .last = end
#define GEMMA                                                                                      \
    NAMES(gemma_layer, llama_last), .k_act = "hidden_activation", .act = "gelu_pytorch_tanh",      \
                                    .tied = true, .keys = gemma_keys, .harmless = gemma_harmless,  \
                                    .ignored = vision_ignored
#define BERT_ROW                                                                                   \
    .layers = "encoder.layer.", .head_name = "", .layer = bert_layer, .last = bert_last,           \
    .max_positions = 512, .k_eps = "layer_norm_eps", .eps = 1e-12, .act = "gelu",                  \
    .qkv_bias = true, .o_bias = true, .mlp_bias = true, .alone = true
#define BERT_SWITCHES                                                                              \
    .norm = FM_NORM_LAYER, .order = FM_BLOCK_POST, .plain_mlp = true, .no_rope = true,             \
    .positions = true, .embed_norm = true, .encoder = true
#define BERT                                                                                       \
    BERT_ROW, .first = bert_first, .keys = bert_keys, .harmless = bert_harmless,                   \
              .ignored = bert_ignored, .sw = {BERT_SWITCHES, .types = true}

/* Constants of the activation, which model/fixed.c reads. */
LIST(apertus_ignored, "*.mlp.act_fn.beta", "*.mlp.act_fn.eps");
LIST(nanochat_keys, "final_logit_softcapping");
LIST(phi_keys, "layer_norm_eps", "qk_layernorm");
LIST(cohere_keys, "layer_norm_eps", "logit_scale", "use_qk_norm");
LIST(cohere2_keys, "layer_norm_eps", "logit_scale", "sliding_window_pattern", "rotary_pct",
     "use_qk_norm");
/* Written beside the settings that are read, and read by nothing in transformers. */
LIST(cohere2_harmless, "cache_implementation", "layer_switch", "order_of_interleaved_layers",
     "position_embedding_type", "use_embedding_sharing", "use_gated_activation",
     "use_parallel_block", "use_parallel_embedding");
LIST(use_bias_keys, "use_bias");
LIST(nemotron_keys, "norm_eps");
LIST(layer_norm_eps_keys, "layer_norm_eps");
LIST(hunyuan_harmless, "eod_token_id", "attention_head_dim", "use_qk_norm", "use_cla",
     "cla_share_factor", "add_classification_head", "class_num", "pool_type", "mask_init_id",
     "dense_list", "norm_type", "org_vocab_size", "pad_id", "sep_token_id", "im_start_id",
     "im_end_id", "im_newline_id", "image_token_id", "num_media_embeds", "text_start_id",
     "text_end_id", "use_rotary_pos_emb");
LIST(nemotron_harmless, "kv_channels");
LIST(gptj_keys, "model_type", "vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner",
     "rotary_dim", "activation_function", "layer_norm_epsilon", "tie_word_embeddings",
     "bos_token_id", "eos_token_id", "pad_token_id", "scale_attn_weights");
LIST(gptj_harmless, "attn_pdrop", "summary_activation", "summary_first_dropout",
     "summary_proj_to_labels", "summary_type", "summary_use_proj", "rotary", "n_ctx");
LIST(gptj_ignored, "*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions");
LIST(bigcode_keys, "model_type", "vocab_size", "n_embd", "n_layer", "n_head", "n_positions",
     "n_inner", "multi_query", "activation_function", "layer_norm_epsilon", "tie_word_embeddings",
     "bos_token_id", "eos_token_id", "pad_token_id", "scale_attn_weights", "add_cross_attention");
LIST(bigcode_harmless, "attn_pdrop", "summary_activation", "summary_first_dropout",
     "summary_proj_to_labels", "summary_type", "summary_use_proj", "attention_softmax_in_fp32",
     "scale_attention_softmax_in_fp32", "n_ctx", "num_key_value_heads", "inference_runner",
     "max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache",
     "validate_runner_input");
LIST(opt_keys, "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "ffn_dim",
     "num_attention_heads", "max_position_embeddings", "do_layer_norm_before",
     "_remove_final_layer_norm", "word_embed_proj_dim", "activation_function", "enable_bias",
     "layer_norm_elementwise_affine", "tie_word_embeddings", "bos_token_id", "eos_token_id",
     "pad_token_id");
LIST(opt_harmless, "dropout", "activation_dropout", "layerdrop", "init_std", "prefix");
LIST(falcon_keys, "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
     "num_attention_heads", "num_kv_heads", "ffn_hidden_size", "max_position_embeddings",
     "layer_norm_epsilon", "alibi", "new_decoder_architecture", "multi_query", "parallel_attn",
     "num_ln_in_parallel_attn", "bias", "activation", "rope_theta", "rope_scaling",
     "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id");
LIST(falcon_harmless, "apply_residual_connection_post_layernorm", "ff_factor");

LIST(electra_keys, "model_type", "vocab_size", "hidden_size", "embedding_size", "num_hidden_layers",
     "num_attention_heads", "intermediate_size", "hidden_act", "max_position_embeddings",
     "type_vocab_size", "layer_norm_eps", "pad_token_id", "bos_token_id", "eos_token_id",
     "is_decoder", "add_cross_attention", "position_embedding_type");
LIST(electra_harmless, "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
     "gradient_checkpointing", "tie_word_embeddings", "summary_type", "summary_use_proj",
     "summary_activation", "summary_last_dropout");
LIST(electra_ignored, "*embeddings.position_ids", "discriminator_predictions.*",
     "generator_predictions.*", "generator_lm_head.*");
LIST(albert_keys, "model_type", "vocab_size", "hidden_size", "embedding_size", "num_hidden_layers",
     "num_hidden_groups", "inner_group_num", "num_attention_heads", "intermediate_size",
     "hidden_act", "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "pad_token_id",
     "bos_token_id", "eos_token_id", "is_decoder", "add_cross_attention",
     "position_embedding_type");
/* Of the first checkpoints; read by nothing in transformers. */
LIST(albert_harmless, "hidden_dropout_prob", "attention_probs_dropout_prob",
     "classifier_dropout_prob", "tie_word_embeddings", "down_scale_factor", "gap_size",
     "net_structure_type", "num_memory_blocks", "layers_to_keep", "output_past");
LIST(albert_ignored, "*embeddings.position_ids", "pooler.*", "albert.pooler.*", "predictions.*",
     "sop_classifier.*");
LIST(mpnet_keys, "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
     "num_attention_heads", "intermediate_size", "hidden_act", "max_position_embeddings",
     "layer_norm_eps", "relative_attention_num_buckets", "pad_token_id", "bos_token_id",
     "eos_token_id");
LIST(mpnet_harmless, "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
     "tie_word_embeddings", "output_past");
LIST(mpnet_ignored, "*embeddings.position_ids", "pooler.*", "lm_head.*", "mpnet.pooler.*");
LIST(t5_keys, "model_type", "vocab_size", "d_model", "d_kv", "d_ff", "num_layers",
     "num_decoder_layers", "num_heads", "relative_attention_num_buckets",
     "relative_attention_max_distance", "layer_norm_epsilon", "feed_forward_proj", "dense_act_fn",
     "is_gated_act", "is_decoder", "tie_word_embeddings", "scale_decoder_outputs",
     "decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id");
/* n_positions is the length of training, which relative positions do not limit. */
LIST(t5_harmless, "dropout_rate", "classifier_dropout", "initializer_factor", "n_positions",
     "is_encoder_decoder", "output_past");
LIST(t5_ignored, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.*");
LIST(bart_keys, "model_type", "vocab_size", "d_model", "encoder_layers", "decoder_layers",
     "encoder_ffn_dim", "decoder_ffn_dim", "encoder_attention_heads", "decoder_attention_heads",
     "activation_function", "max_position_embeddings", "scale_embedding", "is_decoder",
     "tie_word_embeddings", "decoder_start_token_id", "forced_bos_token_id", "bos_token_id",
     "eos_token_id", "pad_token_id");
/* Settings of beam search, of the last token, and of the first checkpoints, which transformers
 * reads no more. */
LIST(bart_harmless, "dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop",
     "classifier_dropout", "classif_dropout", "init_std", "is_encoder_decoder", "num_hidden_layers",
     "forced_eos_token_id", "force_bos_token_to_be_generated", "early_stopping", "length_penalty",
     "min_length", "no_repeat_ngram_size", "num_beams", "prefix", "normalize_before",
     "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "extra_pos_embeddings",
     "static_position_embeddings", "output_past");
LIST(bloom_keys, "model_type", "vocab_size", "hidden_size", "n_embed", "n_layer", "n_head",
     "seq_length", "layer_norm_epsilon", "apply_residual_connection_post_layernorm",
     "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id");
/* The length of training is no limit of transformers' class, but the table of biases ends there. */
LIST(bloom_harmless, "slow_but_exact", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv",
     "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
     "num_attention_heads", "n_inner");
LIST(mpt_keys, "model_type", "vocab_size", "d_model", "n_layers", "n_heads", "max_seq_len",
     "layer_norm_epsilon", "attn_config", "no_bias", "tie_word_embeddings", "bos_token_id",
     "eos_token_id", "pad_token_id");
LIST(mpt_harmless, "expansion_ratio", "learned_pos_emb", "emb_pdrop", "init_device", "init_config",
     "logit_scale", "embedding_fraction", "norm_type", "verbose", "tokenizer_name");
LIST(distilbert_keys, "model_type", "vocab_size", "dim", "hidden_dim", "n_layers", "n_heads",
     "activation", "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id");
LIST(distilbert_harmless, "dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds",
     "tie_weights_", "tie_word_embeddings", "output_past");
LIST(distilbert_ignored, "*embeddings.position_ids", "vocab_transform.*", "vocab_layer_norm.*",
     "vocab_projector.*");
LIST(nomic_keys, "layer_norm_eps", "type_vocab_size");
LIST(nomic_harmless, "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout");
LIST(modernbert_keys, "hidden_activation", "norm_eps", "norm_bias", "local_attention",
     "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta");
LIST(modernbert_harmless, "embedding_dropout", "mlp_dropout", "decoder_bias", "classifier_pooling",
     "classifier_bias", "classifier_activation", "classifier_dropout", "deterministic_flash_attn",
     "sparse_prediction", "sparse_pred_ignore_index", "initializer_cutoff_factor", "cls_token_id",
     "sep_token_id", "mask_token_id", "reference_compile", "repad_logits_with_grad",
     "layer_norm_eps", "position_embedding_type");
LIST(modernbert_ignored, "head.*", "decoder.*"); /* of masked tokens */
LIST(nomic_ignored, "*embeddings.position_ids", "pooler.*", "cls.*", "nomic_bert.pooler.*");

LIST(lfm2_keys, "norm_eps", "conv_bias", "conv_L_cache", "block_ff_dim", "block_multiple_of",
     "block_ffn_dim_multiplier", "block_auto_adjust_ff_dim", "full_attn_idxs", "tie_embedding");
LIST(lfm2_moe_keys, "norm_eps", "conv_bias", "conv_L_cache", "tie_embedding", "num_experts",
     "num_experts_per_tok", "moe_intermediate_size", "num_dense_layers", "use_expert_bias",
     "norm_topk_prob", "routed_scaling_factor");
/* Written by the first versions, and read by nothing in transformers. */
LIST(lfm2_harmless, "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale",
     "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
     "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc");

LIST(delta_keys, "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
     "linear_value_head_dim", "linear_conv_kernel_dim", "full_attention_interval", "num_experts",
     "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size",
     "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers");
LIST(delta_harmless, "router_aux_loss_coef", "output_router_logits", "attn_output_gate",
     "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_dim");
LIST(delta_ignored, "mtp.*", "visual.*", "model.visual.*");
#define DELTA                                                                                      \
    .head_dim = 256, .max_positions = 32768, .partial = 0.25, .keys = delta_keys,                  \
    .harmless = delta_harmless, .ignored = delta_ignored
#define DELTA_SWITCHES .norm = FM_NORM_RMS_PLUS1, .qk = FM_QK_HEAD, .attn_gate = true

LIST(mamba_keys, "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
     "layer_norm_epsilon", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
     "hidden_act", "expand", "intermediate_size", "state_size", "conv_kernel", "use_bias",
     "use_conv_bias", "time_step_rank");
LIST(mamba2_keys, "model_type", "vocab_size", "hidden_size", "num_hidden_layers",
     "layer_norm_epsilon", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
     "hidden_act", "expand", "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel",
     "use_bias", "use_conv_bias", "time_step_limit");
#define HYBRID_KEYS                                                                                \
    "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",            \
        "mamba_expand", "mamba_conv_bias", "mamba_proj_bias", "time_step_limit"
LIST(bamba_keys, HYBRID_KEYS, "attn_layer_indices");
LIST(bamba_harmless, "mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient",
     "attn_rotary_emb", "time_step_min", "time_step_max", "time_step_floor");
LIST(granite_hybrid_keys, HYBRID_KEYS, GRANITEMOE_KEYS, "shared_intermediate_size");
/* position_embedding_type is read with the recurrent blocks, and is no word of BERT's here. */
LIST(granite_hybrid_harmless, "mamba_chunk_size", "router_aux_loss_coef", "output_router_logits",
     "position_embedding_type", "init_method", "normalization_function", "rope_theta");
/* How weights begin, how the same numbers are computed, and what nothing reads. */
LIST(mamba_harmless, "residual_in_fp32", "rescale_prenorm_residual", "time_step_floor",
     "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale",
     "use_associative_scan", "use_mambapy", "chunk_size", "time_step_rank", "d_inner", "d_model",
     "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple",
     "norm_before_gate");
LIST(nemotron_h_keys, "model_type", "vocab_size", "hidden_size", "intermediate_size",
     "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
     "attention_bias", "mlp_bias", "mlp_hidden_act", "layer_norm_epsilon", "tie_word_embeddings",
     "bos_token_id", "eos_token_id", "pad_token_id", "layers_block_type", "layer_types",
     "hybrid_override_pattern", "ssm_state_size", "mamba_num_heads", "mamba_head_dim",
     "mamba_hidden_act", "n_groups", "conv_kernel", "use_bias", "use_conv_bias", "time_step_min",
     "n_routed_experts", "num_local_experts", "n_shared_experts", "moe_intermediate_size",
     "moe_shared_expert_intermediate_size", "moe_latent_size", "num_experts_per_tok",
     "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob", "quantization_config");
/* What nothing reads, how weights begin, and the layers that guess further tokens. The rotary
 * settings are among them: no layer turns anything. */
LIST(nemotron_h_harmless, "num_hidden_layers", "expand", "chunk_size", "num_logits_to_keep",
     "use_mamba_kernels", "mamba_proj_bias", "mamba_ssm_cache_dtype", "time_step_limit",
     "time_step_max", "time_step_floor", "output_router_logits", "router_aux_loss_coef",
     "moe_shared_expert_overlap", "num_nextn_predict_layers", "mtp_layers_block_type",
     "mtp_hybrid_override_pattern", "residual_in_fp32", "rescale_prenorm_residual", "rms_norm_eps",
     "norm_eps", "rope_theta", "rope_parameters", "partial_rotary_factor");
LIST(nemotron_h_ignored, "mtp*");
LIST(falcon_h1_keys, HYBRID_KEYS, "mamba_d_ssm", "mamba_rms_norm", "mamba_norm_before_gate",
     "projectors_bias", "embedding_multiplier", "lm_head_multiplier", "mlp_multipliers",
     "key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "ssm_multipliers",
     "ssm_in_multiplier", "ssm_out_multiplier");
LIST(falcon_h1_harmless, "mamba_chunk_size", "num_logits_to_keep", "mamba_use_mlp", "time_step_min",
     "time_step_max", "time_step_floor");
#define MAMBA(parts, k)                                                                            \
    .has = F_MAMBA, .prefix = {"backbone.", ""}, .layers = "layers.", .head_name = "lm_head",      \
    .first = mamba_first, .layer = parts, .last = mamba_last, .k_eps = "layer_norm_epsilon",       \
    .eps = 1e-5, .heads = 1, .max_positions = 1 << 20, .alone = true, .harmless = mamba_harmless,  \
    .sw = {.no_rope = true, .rec = {.kind = k}}

#define GLM                                                                                        \
    .has = F_BIAS_KEY | F_BIAS_NOT_O, .kv_heads = 2, .head_dim = 128, .max_positions = 131072,     \
    .eps = 1.5625e-7, .partial = 0.5, .qkv_bias = true
#define GPT_KEYS                                                                                   \
    .k_hidden = "n_embd", .k_inter = "n_inner", .k_layers = "n_layer", .k_heads = "n_head",        \
    .k_positions = "n_positions", .k_eps = "layer_norm_epsilon", .k_act = "activation_function"
#define LEARNED .norm = FM_NORM_LAYER, .plain_mlp = true, .no_rope = true, .positions = true
#define QWEN_VL                                                                                    \
    .has = F_WINDOW_SWITCH | F_MROPE, .kv_heads = 8, .max_positions = 32768, .window = 4096,       \
    .full_below = 80, .eps = 1e-5, .theta = 1e6, .qkv_bias = true, .harmless = beside_text,        \
    .ignored = vision_ignored

/* ==== families ==== */

/* The encoders of families with two stacks. */
static const fmi_family t5_source = {.name = "t5",
                                     .prefix = {""},
                                     .layers = "encoder.block.",
                                     .head_name = "",
                                     .first = t5_source_first,
                                     .layer = t5_source_layer,
                                     .last = t5_source_last,
                                     .ignored = t5_ignored};
static const fmi_family bart_source = {.name = "bart",
                                       .prefix = {"model.", ""},
                                       .layers = "encoder.layers.",
                                       .head_name = "",
                                       .first = bart_source_first,
                                       .layer = bart_source_layer,
                                       .last = bart_source_last};
static const fmi_family mbart_source = {.name = "mbart",
                                        .prefix = {"model.", ""},
                                        .layers = "encoder.layers.",
                                        .head_name = "",
                                        .first = bart_source_first,
                                        .layer = mbart_source_layer,
                                        .last = mbart_source_last};
#define BART_ROW                                                                                   \
    .has = F_POSITIONS_2, .prefix = {"model.", ""}, .layers = "decoder.layers.",                   \
    .head_name = "lm_head", .first = bart_first, .k_hidden = "d_model",                            \
    .k_inter = "decoder_ffn_dim", .k_layers = "decoder_layers",                                    \
    .k_heads = "decoder_attention_heads", .k_act = "activation_function",                          \
    .k_eps = "layer_norm_eps" /* no setting */, .heads = 16, .vocab = 50265,                       \
    .max_positions = 1024, .eps = 1e-5, .act = "gelu", .tied = true, .qkv_bias = true,             \
    .o_bias = true, .mlp_bias = true, .keys = bart_keys, .harmless = bart_harmless, .alone = true

/* Tables of biases by distance end with max_positions. */
#define T5_ROW                                                                                     \
    .prefix = {""}, .layers = "decoder.block.", .head_name = "lm_head", .first = t5_first,         \
    .layer = t5_layer, .last = t5_last, .k_hidden = "d_model", .k_inter = "d_ff",                  \
    .k_layers = "num_layers", .k_heads = "num_heads", .k_kv_heads = "num_heads",                   \
    .k_head_dim = "d_kv", .k_eps = "layer_norm_epsilon", .k_act = "feed_forward_proj",             \
    .max_positions = 8192, .head_dim = 64, .tied = true, .keys = t5_keys, .harmless = t5_harmless, \
    .ignored = t5_ignored, .source = &t5_source, .alone = true,                                    \
    .sw = {.no_rope = true, .cross = true}

static const fmi_family families[] = {
    {.name = "llama",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY,
     .max_positions = 2048},
    {.name = "bitnet",
     NAMES(bitnet_layer, llama_last),
     .has = F_BIAS_KEY | F_WHOLE_HEADS,
     .kv_heads = 5,
     .max_positions = 2048,
     .eps = 1e-5,
     .theta = 500000.0,
     .act = "relu2",
     .sw = {.sub_norms = true}},
    {.name = "mistral",
     NAMES(llama_layer, llama_last),
     .kv_heads = 8,
     .max_positions = 131072,
     .window = 4096,
     .ignored = vision_ignored},
    {.name = "ministral",
     NAMES(llama_layer, llama_last),
     .kv_heads = 8,
     .max_positions = 131072,
     .window = 4096},
    {.name = "ministral3",
     NAMES(llama_layer, llama_last),
     .has = F_QUERY_SCALE,
     .kv_heads = 8,
     .head_dim = 128,
     .max_positions = 262144,
     .eps = 1e-5,
     .ignored = vision_ignored},
    {.name = "qwen2",
     NAMES(llama_layer, llama_last),
     .has = F_WINDOW_SWITCH,
     .kv_heads = 32,
     .max_positions = 32768,
     .window = 4096,
     .qkv_bias = true},
    {.name = "qwen2_vl_text", .also = "qwen2_vl", NAMES(llama_layer, llama_last), QWEN_VL},
    {.name = "qwen2_5_vl_text", .also = "qwen2_5_vl", NAMES(llama_layer, llama_last), QWEN_VL},
    {.name = "qwen3",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_WINDOW_SWITCH,
     .kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .window = 4096,
     .sw = {.qk = FM_QK_HEAD}},
    {.name = "gemma",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_EMBED_SCALE | F_GELU_IS_TANH,
     .kv_heads = 16,
     .head_dim = 256,
     .max_positions = 8192,
     .act = "gelu_pytorch_tanh",
     .tied = true,
     .keys = gemma1_keys,
     .harmless = gemma1_harmless,
     .sw = {.norm = FM_NORM_RMS_PLUS1}},
    {.name = "gemma2",
     GEMMA,
     .has = F_BIAS_KEY | F_GEMMA,
     .kv_heads = 4,
     .head_dim = 256,
     .max_positions = 8192,
     .window = 4096,
     .slide_pattern = 2,
     .sw = {.norm = FM_NORM_RMS_PLUS1,
            .order = FM_BLOCK_SANDWICH,
            .attn_softcap = 50.0f,
            .logit_softcap = 30.0f}},
    {.name = "vaultgemma",
     NAMES(vaultgemma_layer, llama_last),
     .has = F_BIAS_KEY | F_GEMMA,
     .kv_heads = 4,
     .head_dim = 256,
     .max_positions = 8192,
     .window = 4096,
     .slide_pattern = 2,
     .k_act = "hidden_activation",
     .act = "gelu_pytorch_tanh",
     .tied = true,
     .keys = vaultgemma_keys,
     .harmless = gemma_harmless,
     .sw = {.norm = FM_NORM_RMS_PLUS1, .attn_softcap = 50.0f, .logit_softcap = 30.0f}},
    {.name = "gemma3_text",
     GEMMA,
     .has = F_BIAS_KEY | F_GEMMA | F_ROPE_BY_TYPE | F_BOTH_WAYS_KEY,
     .kv_heads = 4,
     .head_dim = 256,
     .heads = 8,
     .vocab = 262208,
     .max_positions = 131072,
     .window = 4096,
     .slide_pattern = 6,
     .theta = 1e6,
     .local_theta = 1e4,
     .sw = {.norm = FM_NORM_RMS_PLUS1, .order = FM_BLOCK_SANDWICH, .qk = FM_QK_HEAD}},
    {.name = "gemma4_text",
     .prefix = {"model.", "language_model.model.", "model.language_model.", ""},
     .layers = "layers.",
     .head_name = "lm_head",
     .first = gemma4_first,
     .layer = gemma4_layer,
     .last = llama_last,
     .has = F_BIAS_KEY | F_ROPE_BY_TYPE | F_EMBED_SCALE | F_LOGIT_CAP,
     .more = M_GEMMA4,
     .k_act = "hidden_activation",
     .act = "gelu_pytorch_tanh",
     .kv_heads = 4,
     .head_dim = 256,
     .heads = 8,
     .vocab = 262144,
     .max_positions = 131072,
     .window = 512,
     .slide_pattern = 6,
     .theta = 1e6,
     .local_theta = 1e4,
     .tied = true,
     .keys = gemma4_keys,
     .harmless = gemma_harmless,
     .ignored = gemma4_ignored,
     .stacks = gemma4_stacks,
     .rope = gemma4_rope,
     .sw = {.order = FM_BLOCK_SANDWICH, .qk = FM_QK_HEAD, .v_norm = true, .layer_scale = true}},
    {.name = "phi3",
     NAMES(phi3_layer, llama_last),
     .has = F_ORIGINAL_KEY,
     .max_positions = 4096,
     .eps = 1e-5,
     .keys = phi3_keys,
     .sw = {.fused = FM_FUSED_QKV, .fused_mlp = true}},
    {.name = "mixtral",
     NAMES(mixtral_layer, llama_last),
     .has = F_MIXTRAL_EXPERTS,
     .kv_heads = 8,
     .max_positions = 131072,
     .eps = 1e-5,
     .theta = 1e6,
     .keys = mixtral_keys,
     .harmless = moe_harmless,
     .sw = {.renormalise = true}},
    {.name = "llama4_text",
     NAMES(llama4_layer, llama_last),
     .has = F_LLAMA_4 | F_BIAS_KEY | F_QK_NORM_KEY | F_NO_ROPE_LAYERS,
     .kv_heads = 8,
     .head_dim = 128,
     .max_positions = 131072,
     .k_inter = "intermediate_size_mlp",
     .eps = 1e-5,
     .theta = 500000,
     .keys = llama4_keys,
     .harmless = llama4_harmless,
     .ignored = vision_ignored,
     .stacks = llama4_stacks,
     .sw = {.qk = FM_QK_HEAD,
            .qk_after = true,
            .qk_bare = true,
            .pairs = true,
            .router_sigmoid = true,
            .router_first = true,
            .shared_expert = true,
            .shared_plain = true}},
    {.name = "gpt_oss",
     NAMES(gpt_oss_layer, llama_last),
     .has = F_BIAS_KEY | F_MIXTRAL_EXPERTS | F_CLAMPED,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .max_positions = 131072,
     .window = 128,
     .slide_pattern = 2,
     .eps = 1e-5,
     .theta = 150000,
     .rope = gpt_oss_rope,
     .qkv_bias = true,
     .keys = gpt_oss_keys,
     .harmless = gpt_oss_harmless,
     .stacks = gpt_oss_stacks,
     .sw = {.act = FM_ACT_CLAMPED, .renormalise = true, .sinks = true}},
    {.name = "qwen2_moe",
     NAMES(qwen_moe_layer, llama_last),
     .has = F_QWEN_EXPERTS | F_NO_WINDOW | F_QKV_BIAS_KEY,
     .kv_heads = 16,
     .max_positions = 32768,
     .keys = qwen_moe_keys,
     .harmless = moe_harmless,
     .sw = {.shared_expert = true}},
    {.name = "qwen3_moe",
     NAMES(qwen_moe_layer, llama_last),
     .has = F_BIAS_KEY | F_QWEN_EXPERTS | F_NO_WINDOW,
     .kv_heads = 4,
     .head_dim = 128,
     .max_positions = 32768,
     .keys = qwen_moe_keys,
     .harmless = moe_harmless,
     .sw = {.qk = FM_QK_HEAD}},
    {.name = "glm4_moe",
     NAMES(glm4_moe_layer, llama_last),
     .has =
         F_BIAS_KEY | F_BIAS_NOT_O | F_DEEP_EXPERTS | F_GLM_EXPERTS | F_QK_NORM_KEY | F_MORE_LAYERS,
     .kv_heads = 8,
     .max_positions = 131072,
     .eps = 1e-5,
     .partial = 0.5,
     .keys = deep_keys,
     .harmless = deep_harmless,
     .sw = {.router_sigmoid = true, .router_bias = true}},
    {.name = "deepseek_v2",
     NAMES(deepseek_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY | F_LATENT | F_DEEP_EXPERTS | F_DEEPSEEK_2,
     .max_positions = 2048,
     .keys = deepseek_2_keys,
     .harmless = deepseek_2_harmless,
     .sw = {.pairs = true}},
    {.name = "deepseek_v3",
     NAMES(deepseek_layer, llama_last),
     .has = F_BIAS_KEY | F_LATENT | F_DEEP_EXPERTS | F_DEEPSEEK_3 | F_MORE_LAYERS,
     .kv_heads = 128,
     .max_positions = 4096,
     .keys = deepseek_3_keys,
     .harmless = deepseek_3_harmless,
     .sw = {.router_sigmoid = true, .router_bias = true}},
    {.name = "dots1",
     NAMES(glm4_moe_layer, llama_last),
     .has = F_BIAS_KEY | F_DEEP_EXPERTS | F_WINDOW_FROM,
     .kv_heads = 32,
     .max_positions = 2048,
     .window = 4096,
     .full_below = 62,
     .keys = deep_keys,
     .harmless = deep_harmless,
     .sw = {.qk = FM_QK_HEAD, .router_sigmoid = true, .router_bias = true}},
    {.name = "minimax_m2",
     NAMES(minimax_m2_layer, llama_last),
     .has = F_MIXTRAL_EXPERTS,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 256,
     .chosen = 8,
     .max_positions = 196608,
     .theta = 5e6,
     .keys = minimax_m2_keys,
     .harmless = minimax_m2_harmless,
     .sw = {.qk = FM_QK_ALL, .renormalise = true, .router_sigmoid = true, .router_bias = true}},
    {.name = "ernie4_5_moe",
     NAMES(ernie4_5_moe_layer, llama_last),
     .has = F_ERNIE_EXPERTS,
     .kv_heads = 4,
     .max_positions = 131072,
     .eps = 1e-5,
     .theta = 500000,
     .tied = true,
     .keys = ernie_moe_keys,
     .harmless = ernie_moe_harmless,
     .ignored = ernie_ignored,
     .sw = {.pairs = true, .renormalise = true, .router_bias = true}},
    {.name = "phimoe",
     NAMES(phimoe_layer, phimoe_last),
     .has = F_BIAS_KEY | F_MIXTRAL_EXPERTS | F_PHIMOE | F_ORIGINAL_KEY,
     .kv_heads = 8,
     .experts = 16,
     .chosen = 2,
     .max_positions = 131072,
     .eps = 1e-5,
     .theta = 1e6,
     .keys = phimoe_keys,
     .harmless = phimoe_harmless,
     .sw = {.norm = FM_NORM_LAYER}},
    {.name = "granitemoe",
     NAMES(granitemoe_layer, llama_last),
     .has = F_BIAS_KEY | F_GRANITE | F_MIXTRAL_EXPERTS,
     .experts = 8,
     .chosen = 2,
     .max_positions = 2048,
     .keys = granitemoe_keys,
     .harmless = moe_harmless,
     .stacks = granitemoe_stacks,
     .sw = {.renormalise = true}},
    {.name = "granitemoeshared",
     NAMES(granitemoe_layer, llama_last),
     .has = F_BIAS_KEY | F_GRANITE | F_MIXTRAL_EXPERTS | F_SHARED_SIZE,
     .experts = 8,
     .chosen = 2,
     .max_positions = 2048,
     .keys = granitemoeshared_keys,
     .harmless = moe_harmless,
     .stacks = granitemoe_stacks,
     .sw = {.renormalise = true}},
    {.name = "gpt2",
     .has = F_CONV1D,
     .prefix = {"transformer.", ""},
     .layers = "h.",
     .head_name = "lm_head",
     .first = gpt2_first,
     .layer = gpt2_layer,
     .last = gpt2_last,
     GPT_KEYS,
     .max_positions = 1024,
     .eps = 1e-5,
     .act = "gelu_new",
     .tied = true,
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = gpt2_keys,
     .harmless = gpt2_harmless,
     .ignored = gpt2_ignored,
     .alone = true,
     .sw = {LEARNED, .fused = FM_FUSED_QKV}},
    {.name = "gpt_neox",
     .has = F_BIAS_KEY | F_PARALLEL_KEY,
     .prefix = {"gpt_neox.", ""},
     .layers = "layers.",
     .head_name = "embed_out",
     .first = neox_first,
     .layer = neox_layer,
     .last = neox_last,
     .k_eps = "layer_norm_eps",
     .max_positions = 2048,
     .eps = 1e-5,
     .partial = 0.25,
     .act = "gelu",
     .mlp_bias = true,
     .qkv_bias = true,
     .o_bias = true,
     .keys = neox_keys,
     .harmless = neox_harmless,
     .ignored = neox_ignored,
     .sw = {.norm = FM_NORM_LAYER,
            .order = FM_BLOCK_PARALLEL,
            .fused = FM_FUSED_QKV_HEADS,
            .plain_mlp = true}},
    {.name = "bert", BERT, .prefix = {"", "bert."}},
    {.name = "roberta", BERT, .has = F_PAD_OFFSET, .prefix = {"", "roberta."}},
    {.name = "xlm-roberta", BERT, .has = F_PAD_OFFSET, .prefix = {"", "roberta."}},
    {.name = "electra",
     BERT_ROW,
     .has = F_EMBED_MAP,
     .prefix = {"", "electra."},
     .first = electra_first,
     .k_embed = "embedding_size",
     .embed = 128,
     .keys = electra_keys,
     .harmless = electra_harmless,
     .ignored = electra_ignored,
     .sw = {BERT_SWITCHES, .types = true}},
    {.name = "albert",
     .has = F_EMBED_MAP,
     .prefix = {"", "albert."},
     .layers = "encoder.albert_layer_groups.",
     .inner = "albert_layers.",
     .head_name = "",
     .first = albert_first,
     .layer = albert_layer,
     .last = bert_last,
     .k_embed = "embedding_size",
     .k_eps = "layer_norm_eps",
     .max_positions = 512,
     .embed = 128,
     .eps = 1e-12,
     .act = "gelu_new",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = albert_keys,
     .harmless = albert_harmless,
     .ignored = albert_ignored,
     .alone = true,
     .sw = {BERT_SWITCHES, .types = true}},
    {.name = "mpnet",
     .has = F_PAD_OFFSET | F_PAD_1,
     .prefix = {"", "mpnet."},
     .layers = "encoder.layer.",
     .head_name = "",
     .first = mpnet_first,
     .layer = mpnet_layer,
     .last = bert_last,
     .k_eps = "layer_norm_eps",
     .max_positions = 512,
     .eps = 1e-12,
     .act = "gelu",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = mpnet_keys,
     .harmless = mpnet_harmless,
     .ignored = mpnet_ignored,
     .alone = true,
     .sw = {BERT_SWITCHES, .buckets = 32, .bucket_far = 128}},
    {.name = "t5", T5_ROW, .more = M_T5, .vocab = 32128, .heads = 8, .act = "relu"},
    {.name = "mt5", T5_ROW, .more = M_T5 | M_MT5, .vocab = 250112, .heads = 6, .act = "gated-gelu"},
    {.name = "bart",
     BART_ROW,
     .layer = bart_layer,
     .last = bart_last,
     .source = &bart_source,
     .sw = {LEARNED, .order = FM_BLOCK_POST, .embed_norm = true, .cross = true}},
    {.name = "mbart",
     BART_ROW,
     .layer = mbart_layer,
     .last = mbart_last,
     .source = &mbart_source,
     .sw = {LEARNED, .embed_norm = true, .cross = true}},
    {.name = "bloom",
     .prefix = {"transformer.", ""},
     .layers = "h.",
     .head_name = "lm_head",
     .first = bloom_first,
     .layer = bloom_layer,
     .last = gpt2_last,
     .k_hidden_else = "n_embed",
     .k_inter = "n_inner",
     .k_layers = "n_layer",
     .k_heads = "n_head",
     .k_positions = "seq_length",
     .k_eps = "layer_norm_epsilon",
     .max_positions = 2048,
     .eps = 1e-5,
     .act = "gelu_new",
     .tied = true,
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = bloom_keys,
     .harmless = bloom_harmless,
     .alone = true,
     .sw = {.norm = FM_NORM_LAYER,
            .fused = FM_FUSED_QKV_HEADS,
            .plain_mlp = true,
            .no_rope = true,
            .embed_norm = true,
            .alibi = FM_ALIBI_BLOOM}},
    {.name = "mpt",
     .has = F_MPT,
     .prefix = {"transformer.", ""},
     .layers = "blocks.",
     .head_name = "lm_head",
     .first = gptj_first,
     .layer = mpt_layer,
     .last = mpt_last,
     .k_hidden = "d_model",
     .k_inter = "ffn_hidden_size", /* no setting */
     .k_layers = "n_layers",
     .k_heads = "n_heads",
     .k_positions = "max_seq_len",
     .k_eps = "layer_norm_epsilon",
     .max_positions = 2048,
     .eps = 1e-5,
     .act = "gelu",
     .tied = true,
     .keys = mpt_keys,
     .harmless = mpt_harmless,
     .alone = true,
     .sw = {.norm = FM_NORM_LAYER,
            .fused = FM_FUSED_QKV,
            .plain_mlp = true,
            .no_rope = true,
            .alibi = FM_ALIBI_MPT}},
    {.name = "distilbert",
     .prefix = {"", "distilbert."},
     .layers = "transformer.layer.",
     .head_name = "",
     .first = distilbert_first,
     .layer = distilbert_layer,
     .last = bert_last,
     .k_hidden = "dim",
     .k_inter = "hidden_dim",
     .k_layers = "n_layers",
     .k_heads = "n_heads",
     .k_eps = "layer_norm_eps", /* no setting */
     .k_act = "activation",
     .max_positions = 512,
     .eps = 1e-12,
     .act = "gelu",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = distilbert_keys,
     .harmless = distilbert_harmless,
     .ignored = distilbert_ignored,
     .alone = true,
     .sw = {BERT_SWITCHES}},
    {.name = "nomic_bert",
     .prefix = {"", "nomic_bert."},
     .layers = "encoder.layers.",
     .head_name = "",
     .first = nomic_first,
     .layer = nomic_layer,
     .last = bert_last,
     .k_eps = "layer_norm_eps",
     .max_positions = 2048,
     .eps = 1e-12,
     .theta = 1000,
     .keys = nomic_keys,
     .harmless = nomic_harmless,
     .ignored = nomic_ignored,
     .sw = {.norm = FM_NORM_LAYER,
            .order = FM_BLOCK_POST,
            .fused = FM_FUSED_QKV,
            .types = true,
            .embed_norm = true,
            .encoder = true}},
    {.name = "modernbert",
     .has = F_MODERNBERT | F_BIAS_KEY | F_MLP_BIAS_KEY | F_ROPE_BY_TYPE,
     .prefix = {"", "model."},
     .layers = "layers.",
     .head_name = "",
     .first = modernbert_first,
     .layer = modernbert_layer,
     .last = modernbert_last,
     .k_eps = "norm_eps",
     .k_act = "hidden_activation",
     .vocab = 50368,
     .max_positions = 8192,
     .eps = 1e-5,
     .theta = 160000,
     .local_theta = 10000,
     .act = "gelu",
     .keys = modernbert_keys,
     .harmless = modernbert_harmless,
     .ignored = modernbert_ignored,
     .sw = {.norm = FM_NORM_LAYER,
            .fused = FM_FUSED_QKV,
            .fused_mlp = true,
            .embed_norm = true,
            .encoder = true}},
    {.name = "granite",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY | F_GRANITE,
     .max_positions = 2048,
     .keys = granite_keys},
    {.name = "olmo2",
     NAMES(olmo2_layer, llama_last),
     .has = F_BIAS_KEY,
     .max_positions = 2048,
     .eps = 1e-5,
     .sw = {.order = FM_BLOCK_AFTER, .qk = FM_QK_ALL}},
    {.name = "hyperclovax",
     NAMES(hyperclovax_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY | F_GRANITE | F_CLOVA,
     .max_positions = 2048,
     .keys = hyperclovax_keys},
    {.name = "olmo", /* its eps is no setting */
     NAMES(olmo_layer, olmo_last),
     .has = F_BIAS_KEY,
     .max_positions = 2048,
     .k_eps = "layer_norm_eps",
     .eps = 1e-5,
     .sw = {.norm = FM_NORM_LAYER}},
    {.name = "olmo3",
     NAMES(olmo2_layer, llama_last),
     .has = F_BIAS_KEY | F_ROPE_BY_TYPE,
     .max_positions = 2048,
     .window = 4096,
     .slide_pattern = 4,
     .eps = 1e-5,
     .theta = 500000,
     .local_theta = 500000,
     .sw = {.order = FM_BLOCK_AFTER, .qk = FM_QK_ALL}},
    {.name = "olmoe",
     NAMES(olmoe_layer, llama_last),
     .has = F_BIAS_KEY | F_MIXTRAL_EXPERTS,
     .max_positions = 4096,
     .eps = 1e-5,
     .keys = olmoe_keys,
     .harmless = moe_harmless,
     .sw = {.qk = FM_QK_ALL}},
    {.name = "exaone4",
     NAMES(exaone4_layer, llama_last),
     .has = F_PATTERN_KEY | F_FULL_NO_ROPE | F_ELSE_ROPE,
     .kv_heads = 32,
     .max_positions = 2048,
     .window = 4096,
     .slide_pattern = 4,
     .eps = 1e-5,
     .keys = exaone4_keys,
     .sw = {.order = FM_BLOCK_AFTER, .qk = FM_QK_HEAD}},
    {.name = "seed_oss",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_BIAS_NOT_O | F_OUT_BIAS_KEY | F_MLP_BIAS_KEY,
     .kv_heads = 8,
     .head_dim = 128,
     .max_positions = 524288,
     .qkv_bias = true,
     .keys = seed_oss_keys,
     .harmless = residual_dropout},
    {.name = "internlm3",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY | F_BIAS_NAMES,
     .kv_heads = 2,
     .head_dim = 128,
     .max_positions = 32768,
     .eps = 1e-5,
     .keys = internlm3_keys},
    {.name = "cohere",
     NAMES(cohere_layer, llama_last),
     .has = F_BIAS_KEY | F_LOGIT_SCALE,
     .max_positions = 8192,
     .k_eps = "layer_norm_eps",
     .eps = 1e-5,
     .theta = 500000,
     .tied = true,
     .keys = cohere_keys,
     .sw = {.norm = FM_NORM_LAYER, .order = FM_BLOCK_PARALLEL, .one_norm = true, .pairs = true}},
    {.name = "cohere2",
     NAMES(cohere_layer, llama_last),
     .has = F_BIAS_KEY | F_LOGIT_SCALE | F_PATTERN_KEY | F_FULL_NO_ROPE,
     .max_positions = 8192,
     .window = 4096,
     .slide_pattern = 4,
     .k_eps = "layer_norm_eps",
     .eps = 1e-5,
     .tied = true,
     .keys = cohere2_keys,
     .harmless = cohere2_harmless,
     .sw = {.norm = FM_NORM_LAYER, .order = FM_BLOCK_PARALLEL, .one_norm = true, .pairs = true}},
    {.name = "glm", NAMES(glm_layer, llama_last), GLM, .sw = {.fused_mlp = true, .pairs = true}},
    {.name = "glm4",
     NAMES(glm4_layer, llama_last),
     GLM,
     .sw = {.order = FM_BLOCK_SANDWICH, .fused_mlp = true, .pairs = true}},
    {.name = "ernie4_5",
     NAMES(llama_layer, llama_last),
     .has = F_USE_BIAS,
     .kv_heads = 2,
     .head_dim = 128,
     .max_positions = 131072,
     .eps = 1e-5,
     .theta = 500000,
     .tied = true,
     .keys = use_bias_keys,
     .sw = {.pairs = true}},
    {.name = "helium",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_BIAS_NOT_O | F_MLP_BIAS_KEY,
     .kv_heads = 20,
     .head_dim = 128,
     .max_positions = 4096,
     .eps = 1e-8,
     .theta = 100000,
     .sw = {.pairs = true}},
    {.name = "hunyuan_v1_dense",
     NAMES(hunyuan_layer, llama_last),
     .has = F_BIAS_KEY | F_NTK_ALPHA,
     .max_positions = 2048,
     .eps = 1e-5,
     .harmless = hunyuan_harmless,
     .sw = {.qk = FM_QK_HEAD, .qk_after = true}},
    {.name = "arcee",
     NAMES(arcee_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY,
     .max_positions = 4096,
     .eps = 1e-5,
     .act = "relu2",
     .sw = {.plain_mlp = true}},
    {.name = "nemotron",
     NAMES(nemotron_layer, layernorm_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY,
     .max_positions = 4096,
     .k_eps = "norm_eps",
     .eps = 1e-5,
     .partial = 0.5,
     .act = "relu2",
     .keys = nemotron_keys,
     .harmless = nemotron_harmless,
     .sw = {.norm = FM_NORM_LAYER_PLUS1, .plain_mlp = true}},
    {.name = "jais2",
     NAMES(nemotron_layer, layernorm_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY,
     .max_positions = 8192,
     .k_eps = "layer_norm_eps",
     .eps = 1e-5,
     .act = "relu2",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = layer_norm_eps_keys,
     .sw = {.norm = FM_NORM_LAYER, .plain_mlp = true}},
    {.name = "apertus",
     NAMES(apertus_layer, llama_last),
     .has = F_BIAS_KEY | F_ROPE_NEEDED,
     .max_positions = 65536,
     .eps = 1e-5,
     .theta = 12e6,
     .act = "xielu",
     .ignored = apertus_ignored,
     .sw = {.qk = FM_QK_HEAD, .plain_mlp = true, .xielu = true}},
    {.name = "nanochat",
     NAMES(nanochat_layer, olmo_last),
     .has = F_BIAS_KEY | F_LOGIT_CAP | F_TURNS_BACK,
     .max_positions = 2048,
     .act = "relu2",
     .keys = nanochat_keys,
     .sw = {.qk = FM_QK_HEAD,
            .qk_after = true,
            .bare_norms = true,
            .plain_mlp = true,
            .embed_norm = true,
            .logit_softcap = 15.0f}},
    {.name = "phi",
     NAMES(phi_layer, phi_last),
     .max_positions = 2048,
     .k_eps = "layer_norm_eps",
     .eps = 1e-5,
     .partial = 0.5,
     .act = "gelu_new",
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = phi_keys,
     .sw =
         {.norm = FM_NORM_LAYER, .order = FM_BLOCK_PARALLEL, .one_norm = true, .plain_mlp = true}},
    {.name = "gptj",
     .has = F_ROTARY_DIM,
     .prefix = {"transformer.", ""},
     .layers = "h.",
     .head_name = "lm_head",
     .first = gptj_first,
     .layer = gptj_layer,
     .last = gptj_last,
     GPT_KEYS,
     .max_positions = 2048,
     .eps = 1e-5,
     .act = "gelu_new",
     .mlp_bias = true,
     .keys = gptj_keys,
     .harmless = gptj_harmless,
     .ignored = gptj_ignored,
     .alone = true,
     .sw = {.norm = FM_NORM_LAYER,
            .order = FM_BLOCK_PARALLEL,
            .one_norm = true,
            .pairs = true,
            .plain_mlp = true}},
    {.name = "gpt_bigcode",
     .has = F_MULTI_QUERY,
     .prefix = {"transformer.", ""},
     .layers = "h.",
     .head_name = "lm_head",
     .first = gpt2_first,
     .layer = gpt2_layer,
     .last = gpt2_last,
     GPT_KEYS,
     .max_positions = 1024,
     .eps = 1e-5,
     .act = "gelu_pytorch_tanh",
     .tied = true,
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = bigcode_keys,
     .harmless = bigcode_harmless,
     .ignored = gpt2_ignored,
     .alone = true,
     .sw = {LEARNED}},
    {.name = "opt",
     .has = F_POSITIONS_2,
     .prefix = {"model.decoder.", "decoder."},
     .layers = "layers.",
     .head_name = "lm_head",
     .first = opt_first,
     .layer = opt_layer,
     .last = opt_last,
     .k_inter = "ffn_dim",
     .k_embed = "word_embed_proj_dim",
     .k_eps = "layer_norm_eps", /* no setting */
     .k_act = "activation_function",
     .max_positions = 2048,
     .eps = 1e-5,
     .act = "relu",
     .tied = true,
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .keys = opt_keys,
     .harmless = opt_harmless,
     .alone = true,
     .sw = {LEARNED}},
    {.name = "falcon",
     .has = F_FALCON | F_USE_BIAS,
     .prefix = {"transformer.", ""},
     .layers = "h.",
     .head_name = "lm_head",
     .first = falcon_first,
     .layer = falcon_layer,
     .last = gpt2_last,
     .k_inter = "ffn_hidden_size",
     .k_kv_heads = "num_kv_heads",
     .k_eps = "layer_norm_epsilon",
     .k_act = "activation",
     .max_positions = 2048,
     .eps = 1e-5,
     .act = "gelu",
     .tied = true,
     .keys = falcon_keys,
     .harmless = falcon_harmless,
     .alone = true,
     .sw = {.norm = FM_NORM_LAYER, .plain_mlp = true}},
    {.name = "smollm3",
     NAMES(llama_layer, llama_last),
     .has = F_BIAS_KEY | F_MLP_BIAS_KEY | F_NO_ROPE_LAYERS | F_NO_WINDOW,
     .kv_heads = 4,
     .max_positions = 32768,
     .theta = 2e6,
     .tied = true,
     .keys = smollm3_keys},
    {.name = "lfm2",
     NAMES(lfm2_layer, lfm2_last),
     .has = F_LFM2,
     .kv_heads = 8,
     .max_positions = 128000,
     .k_eps = "norm_eps",
     .eps = 1e-5,
     .theta = 1e6,
     .tied = true,
     .keys = lfm2_keys,
     .harmless = lfm2_harmless,
     .sw = {.qk = FM_QK_HEAD}},
    {.name = "qwen3_next",
     NAMES(qwen3_next_layer, llama_last),
     DELTA,
     .has = F_DELTA | F_BIAS_KEY | F_QWEN_EXPERTS | F_NO_WINDOW,
     .kv_heads = 2,
     .sw = {DELTA_SWITCHES, .shared_expert = true, .renormalise = true,
            .rec = {.by_groups = true}}},
    {.name = "qwen3_5_text",
     NAMES(qwen35_layer, llama_last),
     DELTA,
     .has = F_DELTA | F_BIAS_KEY | F_NO_WINDOW,
     .kv_heads = 4,
     .sw = {DELTA_SWITCHES}},
    {.name = "qwen3_5_moe_text",
     NAMES(qwen35_moe_layer, llama_last),
     DELTA,
     .has = F_DELTA | F_BIAS_KEY | F_QWEN_EXPERTS | F_NO_WINDOW,
     .kv_heads = 2,
     .sw = {DELTA_SWITCHES, .shared_expert = true, .renormalise = true}},
    {.name = "bamba",
     NAMES(bamba_layer, bamba_last),
     .has = F_HYBRID | F_BIAS_KEY | F_MLP_BIAS_KEY,
     .kv_heads = 8,
     .max_positions = 262144,
     .eps = 1e-5,
     .partial = 0.5,
     .keys = bamba_keys,
     .harmless = bamba_harmless},
    {.name = "nemotron_h",
     .has = F_ONE_BLOCK | F_MLP_BIAS_KEY,
     .prefix = {"model.", "backbone.", ""},
     .layers = "layers.",
     .head_name = "lm_head",
     .first = mamba_first,
     .layer = nemotron_h_layer,
     .last = mamba_last,
     .k_inter = "intermediate_size",
     .k_kv_heads = "num_key_value_heads",
     .k_eps = "layer_norm_epsilon",
     .k_act = "mlp_hidden_act",
     .vocab = 131072,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .max_positions = 4096,
     .eps = 1e-5,
     .act = "relu2",
     .keys = nemotron_h_keys,
     .harmless = nemotron_h_harmless,
     .ignored = nemotron_h_ignored,
     .alone = true,
     .sw = {.no_rope = true, .plain_mlp = true}},
    {.name = "falcon_h1",
     NAMES(falcon_h1_layer, bamba_last),
     .has = F_HYBRID | F_BESIDE | F_BIAS_KEY | F_MLP_BIAS_KEY,
     .heads = 32,
     .kv_heads = 8,
     .max_positions = 8192,
     .eps = 1e-5,
     .keys = falcon_h1_keys,
     .harmless = falcon_h1_harmless},
    {.name = "granitemoehybrid",
     NAMES(granite_hybrid_layer, llama_last),
     .has = F_HYBRID | F_BIAS_KEY | F_GRANITE | F_MIXTRAL_EXPERTS | F_MAY_EXPERTS,
     .experts = 8,
     .chosen = 2,
     .max_positions = 2048,
     .keys = granite_hybrid_keys,
     .harmless = granite_hybrid_harmless,
     .stacks = granitemoe_stacks,
     .sw = {.fused_mlp = true, .renormalise = true}},
    {.name = "mamba", MAMBA(mamba_layer, FM_RECURS_MAMBA), .keys = mamba_keys, .tied = true},
    {.name = "mamba2", MAMBA(mamba2_layer, FM_RECURS_MAMBA2), .keys = mamba2_keys},
    {.name = "lfm2_moe",
     NAMES(lfm2_moe_layer, lfm2_last),
     .has = F_LFM2 | F_LFM2_MOE,
     .kv_heads = 8,
     .max_positions = 128000,
     .k_eps = "norm_eps",
     .eps = 1e-5,
     .theta = 1e6,
     .tied = true,
     .keys = lfm2_moe_keys,
     .harmless = moe_harmless,
     .sw = {.qk = FM_QK_HEAD}},
    {.name = "stablelm",
     NAMES(stablelm_layer, layernorm_last),
     .has = F_USE_QKV_BIAS,
     .kv_heads = 32,
     .max_positions = 4096,
     .k_eps = "layer_norm_eps",
     .eps = 1e-5,
     .partial = 0.25,
     .keys = stablelm_keys,
     .sw = {.norm = FM_NORM_LAYER}},
    {.name = "starcoder2",
     NAMES(starcoder2_layer, layernorm_last),
     .has = F_USE_BIAS,
     .kv_heads = 2,
     .max_positions = 4096,
     .k_eps = "norm_epsilon",
     .eps = 1e-5,
     .act = "gelu_pytorch_tanh",
     .tied = true,
     .qkv_bias = true,
     .keys = starcoder2_keys,
     .harmless = starcoder2_harmless,
     .sw = {.norm = FM_NORM_LAYER, .plain_mlp = true}},
};

const fmi_family *fmi_family_at(size_t i)
{
    return i < FM_ARRAY_LEN(families) ? &families[i] : NULL;
}

const fmi_family *fmi_family_of(const fm_arch *a)
{
    fm_assert(a->row < FM_ARRAY_LEN(families));
    const fmi_family *f = &families[a->row];
    return a->of_source ? f->source : f;
}

void fmi_family_names(char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < FM_ARRAY_LEN(families) && at < cap; i++) {
        int n = snprintf(out + at, cap - at, "%s%s", i ? ", " : "", families[i].name);
        at += n > 0 ? (size_t)n : 0;
    }
}

const char *fmi_class_prefix(const fm_arch *a)
{
    const fmi_family *f = fmi_family_of(a);
    bool beside = (f->has & F_MROPE) || strstr(a->prefix, "language_model.");
    return beside ? "model.language_model." : a->headless && !a->prefix[0] ? "" : f->prefix[0];
}

static bool matches(const char *pattern, const char *name)
{
    size_t n = strlen(pattern), k = strlen(name);
    if (pattern[0] == '*')
        return k >= n - 1 && strcmp(name + k - (n - 1), pattern + 1) == 0;
    return strncmp(name, pattern, n - 1) == 0;
}

/* Whether the tensor is of one of the layers behind the last that the config says there are. */
static bool behind_layers(const fm_arch *a, const char *tensor)
{
    size_t prefix = strlen(a->prefix), n = strlen(fmi_family_of(a)->layers);
    if (strncmp(tensor, a->prefix, prefix) != 0 ||
        strncmp(tensor + prefix, fmi_family_of(a)->layers, n) != 0)
        return false;
    for (uint32_t i = 0; i < a->more_layers; i++) {
        char number[16];
        int digits = snprintf(number, sizeof(number), "%u.", a->layers + i);
        if (strncmp(tensor + prefix + n, number, (size_t)digits) == 0)
            return true;
    }
    return false;
}

/* Whether the tensor would make keys or values of a layer that reads those of another. */
static bool of_shared_keys(const fm_arch *a, const char *tensor)
{
    static const char *const parts[] = {"k_proj", "v_proj", "k_norm", "v_norm"};
    for (uint32_t l = a->layers - a->sw.kv_shared; l < a->layers; l++)
        for (size_t i = 0; i < FM_ARRAY_LEN(parts); i++) {
            char begin[96];
            int n = snprintf(begin, sizeof(begin), "%s%s%u.self_attn.%s.", a->prefix,
                             fmi_family_of(a)->layers, l, parts[i]);
            if (strncmp(tensor, begin, (size_t)n) == 0)
                return true;
        }
    return false;
}

bool fmi_family_ignores(const fm_arch *a, const char *tensor)
{
    if (matches("*.rotary_emb.inv_freq", tensor))
        return true;
    if (behind_layers(a, tensor) || of_shared_keys(a, tensor))
        return true;
    const char *const *list = fmi_family_of(a)->ignored;
    for (; list && *list; list++)
        if (matches(*list, tensor))
            return true;
    return false;
}
