/* gguf_arch.c - the architectures of GGUF that have words of Hugging Face's: one row each.
 *
 * Sources: llama.cpp's conversion of each class (what is renamed, permuted, added) and its reading
 * of each architecture (what is fixed in its code and stands in no file). */
#include "store/import/gguf_canon.h"

#include <stdio.h>
#include <string.h>

/* ---- settings ---- */

static const gguf_setting MIXTRAL_SETTINGS[] = {
    {"expert_count", "num_local_experts", GGUF_INT, 0},
    {"expert_used_count", "num_experts_per_tok", GGUF_INT, 0},
    {.key = NULL},
};
static const gguf_setting QWEN_MOE_SETTINGS[] = {
    {"expert_count", "num_experts", GGUF_INT, 0},
    {"expert_used_count", "num_experts_per_tok", GGUF_INT, 0},
    {"expert_feed_forward_length", "moe_intermediate_size", GGUF_INT, 0},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", GGUF_INT, 0},
    {.key = NULL},
};
static const gguf_setting GEMMA_SETTINGS[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping", GGUF_REAL, 0},
    {"final_logit_softcapping", "final_logit_softcapping", GGUF_REAL, 0},
    {"rope.freq_base_swa", "rope_local_base_freq", GGUF_REAL, 0},
    {.key = NULL},
};
static const gguf_setting GRANITE_SETTINGS[] = {
    {"attention.scale", "attention_multiplier", GGUF_REAL, 0},
    {"embedding_scale", "embedding_multiplier", GGUF_REAL, 0},
    {"residual_scale", "residual_multiplier", GGUF_REAL, 0},
    {"logit_scale", "logits_scaling", GGUF_REAL, 0},
    {.key = NULL},
};
static const gguf_setting STABLELM_SETTINGS[] = {
    {"use_parallel_residual", "use_parallel_residual", GGUF_BOOL, 0},
    {.key = NULL},
};
static const gguf_setting COHERE_SETTINGS[] = {
    {"logit_scale", "logit_scale", GGUF_REAL, 0.0625},
    {.key = NULL},
};
static const gguf_setting OLMO3_SETTINGS[] = {
    {"rope.freq_base_swa", "rope_local_base_freq", GGUF_REAL, 0},
    {.key = NULL},
};
static const gguf_setting OLMOE_SETTINGS[] = {
    {"expert_count", "num_experts", GGUF_INT, 0},
    {"expert_used_count", "num_experts_per_tok", GGUF_INT, 0},
    {.key = NULL},
};
static const gguf_setting NEMOTRON_SETTINGS[] = {
    {"attention.layer_norm_rms_epsilon", "norm_eps", GGUF_REAL, 0}, /* the converter has both */
    {.key = NULL},
};
static const gguf_setting NEOX_SETTINGS[] = {
    {"use_parallel_residual", "use_parallel_residual", GGUF_BOOL, 1},
    {.key = NULL},
};
static const gguf_setting FALCON_SETTINGS[] = {
    {"tensor_data_layout", "jploski", GGUF_WORD, 0},
    {.key = NULL},
};
static const gguf_setting ENCODER_SETTINGS[] = {
    {"attention.causal", NULL, GGUF_FALSE, 0},
    {.key = NULL},
};
const gguf_setting gguf_yarn[] = {
    {"rope.scaling.yarn_beta_fast", "beta_fast", GGUF_REAL, 32},
    {"rope.scaling.yarn_beta_slow", "beta_slow", GGUF_REAL, 1},
    {"rope.scaling.yarn_attn_factor", "attention_factor", GGUF_REAL, 0},
    {"rope.scaling.yarn_log_multiplier", "mscale_all_dim", GGUF_REAL, 0},
    {"attention.temperature_scale", "llama_4_scaling_beta", GGUF_REAL, 0},
    {.key = NULL},
};

/* ---- the rows ---- */

static const char *const VISION[] = {"vision_tower.*", "multi_modal_projector.*",
                                     "model.vision_tower.*", "model.multi_modal_projector.*", NULL};

static const char *const GPT_IDLE[] = {"*.attn.bias", "*.attn.masked_bias", NULL};
static const char *const NEOX_IDLE[] = {"*.attention.bias", "*.attention.masked_bias", NULL};

static const gguf_words LLAMA_WORDS = {
    "hidden_size",          "intermediate_size", "num_hidden_layers",       "num_attention_heads",
    "num_key_value_heads",  "head_dim",          "max_position_embeddings", "rope_theta",
    "partial_rotary_factor"};
static const gguf_words NEOX_WORDS = {
    "hidden_size", "intermediate_size",       "num_hidden_layers", "num_attention_heads", NULL,
    NULL,          "max_position_embeddings", "rotary_emb_base",   "rotary_pct"};
static const gguf_words FALCON_WORDS = {"hidden_size",
                                        "ffn_hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "num_kv_heads",
                                        NULL,
                                        "max_position_embeddings",
                                        "rope_theta",
                                        NULL};
static const gguf_words GPT_WORDS = {"n_embd", "n_inner",     "n_layer", "n_head", NULL,
                                     NULL,     "n_positions", NULL,      NULL};

static const gguf_words BERT_WORDS = {"hidden_size",
                                      "intermediate_size",
                                      "num_hidden_layers",
                                      "num_attention_heads",
                                      NULL,
                                      NULL,
                                      "max_position_embeddings",
                                      NULL,
                                      NULL};
static const gguf_words DISTILBERT_WORDS = {
    "dim", "hidden_dim", "n_layers", "n_heads", NULL, NULL, "max_position_embeddings", NULL, NULL};
static const gguf_words NOMIC_WORDS = {
    "hidden_size", "intermediate_size", "num_hidden_layers",       "num_attention_heads",
    NULL,          "head_dim",          "max_position_embeddings", "rope_theta",
    NULL};
static const char *const BERT_IDLE[] = {"*embeddings.position_ids",
                                        "pooler.*",
                                        "cls.*",
                                        "lm_head.*",
                                        "bert.pooler.*",
                                        "roberta.pooler.*",
                                        "vocab_transform.*",
                                        "vocab_layer_norm.*",
                                        "vocab_projector.*",
                                        "nomic_bert.pooler.*",
                                        NULL};

#define SILU "{\"hidden_act\": \"silu\""
#define RELU2 "{\"hidden_act\": \"relu2\""
#define GELU_TANH "{\"hidden_act\": \"gelu_pytorch_tanh\""
#define NO_WINDOW ", \"use_sliding_window\": false"
#define MOE(norm) ", \"norm_topk_prob\": " norm ", \"decoder_sparse_step\": 1"
#define TIED(is) ", \"tie_word_embeddings\": " is
#define GPT_TANH "{\"activation_function\": [\"gelu_pytorch_tanh\", \"gelu_new\"]"
#define PLAIN_SCALE ", \"scale_attn_weights\": true"
#define FALCON_PLAIN "{\"activation\": \"gelu\", \"alibi\": false, \"bias\": false"
#define BERT_PLAIN                                                                                 \
    "{\"hidden_act\": \"gelu\", \"position_embedding_type\": \"absolute\", "                       \
    "\"is_decoder\": false"
#define NO_CLIP ", \"clip_qkv\": null"

static const gguf_arch ARCHES[] = {
    {.prefix = "llama",
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .has = GGUF_PERMUTES | GGUF_EXPERTS | GGUF_WINDOW | GGUF_FREQS,
     .names = &gguf_names_mixtral,
     .settings = MIXTRAL_SETTINGS,
     .fixed = SILU "}",
     .theta = 1e6},
    {.prefix = "llama",
     .model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .when = GGUF_SLIDES,
     .has = GGUF_PERMUTES | GGUF_FREQS | GGUF_WINDOW,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU "}",
     .idle = VISION},
    {.prefix = "llama",
     .model_type = "internlm3",
     .class_name = "InternLM3ForCausalLM",
     .when = GGUF_NEVER,
     .has = GGUF_PERMUTES | GGUF_FREQS,
     .bias = "qkv_bias",
     .mlp_bias = "bias",
     .fixed = SILU "}"},
    {.prefix = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .has = GGUF_PERMUTES | GGUF_FREQS,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU "}"},
    {.prefix = "arcee",
     .model_type = "arcee",
     .class_name = "ArceeForCausalLM",
     .has = GGUF_PERMUTES | GGUF_FREQS | GGUF_NO_O_BIAS | GGUF_NO_MLP_BIAS,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = RELU2 "}"},
    {.prefix = "mistral3",
     .model_type = "ministral3",
     .class_name = "Ministral3ForCausalLM",
     .when = GGUF_SCALES,
     .has = GGUF_PERMUTES | GGUF_FREQS | GGUF_YARN,
     .fixed = SILU "}",
     .idle = VISION},
    {.prefix = "mistral3",
     .model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .has = GGUF_PERMUTES | GGUF_FREQS | GGUF_WINDOW,
     .fixed = SILU "}"},
    {.prefix = "qwen2",
     .model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .fixed = SILU NO_WINDOW "}"},
    {.prefix = "qwen2moe",
     .model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .has = GGUF_EXPERTS,
     .names = &gguf_names_qwen_moe,
     .settings = QWEN_MOE_SETTINGS,
     .bias = "qkv_bias",
     .fixed = SILU NO_WINDOW MOE("false") "}"},
    {.prefix = "qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .has = GGUF_NO_O_BIAS,
     .bias = "attention_bias",
     .fixed = SILU NO_WINDOW "}",
     .head_dim = 128},
    {.prefix = "qwen3moe",
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .has = GGUF_EXPERTS | GGUF_NO_O_BIAS,
     .names = &gguf_names_qwen_moe,
     .settings = QWEN_MOE_SETTINGS,
     .bias = "attention_bias",
     .fixed = SILU NO_WINDOW MOE("true") "}",
     .head_dim = 128},
    {.prefix = "gemma",
     .model_type = "gemma",
     .class_name = "GemmaForCausalLM",
     .has = GGUF_PLUS_1 | GGUF_TIED | GGUF_NO_O_BIAS,
     .bias = "attention_bias",
     .fixed = "{\"hidden_act\": [\"gelu_pytorch_tanh\", \"gelu\"]" TIED("true") "}",
     .head_dim = 256},
    {.prefix = "gemma2",
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .has = GGUF_PLUS_1 | GGUF_WINDOW | GGUF_GEMMA | GGUF_TIED,
     .names = &gguf_names_sandwich,
     .settings = GEMMA_SETTINGS,
     .fixed = GELU_TANH ", \"hidden_activation\": \"gelu_pytorch_tanh\"}",
     .head_dim = 256,
     .wide_layers = 46,
     .full_every = 2},
    {.prefix = "gemma3",
     .model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .has = GGUF_PLUS_1 | GGUF_WINDOW | GGUF_GEMMA | GGUF_TIED,
     .names = &gguf_names_sandwich,
     .settings = GEMMA_SETTINGS,
     .fixed = GELU_TANH ", \"hidden_activation\": \"gelu_pytorch_tanh\", "
                        "\"sliding_window_pattern\": 6, \"rope_local_base_freq\": 10000.0}",
     .idle = VISION,
     .theta = 1e6,
     .head_dim = 256,
     .wide_layers = 62,
     .full_every = 6},
    {.prefix = "phi2",
     .model_type = "phi",
     .class_name = "PhiForCausalLM",
     .has = GGUF_PARTIAL | GGUF_SQUARE,
     .names = &gguf_names_phi,
     .eps = "layer_norm_eps",
     .fixed = "{\"hidden_act\": [\"gelu_new\", \"gelu_pytorch_tanh\"], "
              "\"qk_layernorm\": false" TIED("false") "}",
     .partial = 0.5},
    {.prefix = "phi3",
     .model_type = "phi3",
     .class_name = "Phi3ForCausalLM",
     .has = GGUF_WINDOW | GGUF_PARTIAL | GGUF_LONGROPE,
     .names = &gguf_names_phi3,
     .fixed = SILU "}"},
    {.prefix = "granite",
     .model_type = "granite",
     .class_name = "GraniteForCausalLM",
     .has = GGUF_PERMUTES | GGUF_FREQS,
     .settings = GRANITE_SETTINGS,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU "}"},
    {.prefix = "olmo",
     .model_type = "olmo",
     .class_name = "OlmoForCausalLM",
     .has = GGUF_PERMUTES | GGUF_SQUARE | GGUF_NO_O_BIAS,
     .eps = "layer_norm_eps",
     .fixed_eps = 1e-5,
     .bias = "attention_bias",
     .fixed = SILU NO_CLIP "}"},
    {.prefix = "olmo2",
     .model_type = "olmo3",
     .class_name = "Olmo3ForCausalLM",
     .when = GGUF_SLIDES,
     .has = GGUF_WINDOW | GGUF_PATTERN | GGUF_BY_TYPE | GGUF_SQUARE | GGUF_NO_O_BIAS,
     .names = &gguf_names_after,
     .settings = OLMO3_SETTINGS,
     .bias = "attention_bias",
     .fixed = SILU TIED("false") "}",
     .theta = 500000,
     .full_every = 4},
    {.prefix = "olmo2",
     .model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .has = GGUF_SQUARE | GGUF_NO_O_BIAS,
     .names = &gguf_names_after,
     .bias = "attention_bias",
     .fixed = SILU TIED("false") "}"},
    {.prefix = "olmoe",
     .model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .has = GGUF_EXPERTS | GGUF_SQUARE | GGUF_ALL_KV | GGUF_NO_O_BIAS,
     .names = &gguf_names_qwen_moe,
     .settings = OLMOE_SETTINGS,
     .bias = "attention_bias",
     .fixed = SILU ", \"norm_topk_prob\": false" NO_CLIP TIED("false") "}"},
    {.prefix = "smollm3",
     .model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .has = GGUF_PERMUTES | GGUF_TIED | GGUF_NO_O_BIAS | GGUF_NO_MLP_BIAS,
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU ", \"no_rope_layer_interval\": 4" NO_WINDOW "}",
     .theta = 2e6},
    {.prefix = "stablelm",
     .model_type = "stablelm",
     .class_name = "StableLmForCausalLM",
     .has = GGUF_PARTIAL,
     .settings = STABLELM_SETTINGS,
     .eps = "layer_norm_eps",
     .bias = "use_qkv_bias",
     .fixed = SILU "}",
     .partial = 0.25},
    {.prefix = "starcoder2",
     .model_type = "starcoder2",
     .class_name = "Starcoder2ForCausalLM",
     .has = GGUF_TIED,
     .names = &gguf_names_starcoder2,
     .eps = "norm_epsilon",
     .bias = "use_bias",
     .fixed = GELU_TANH ", \"sliding_window\": null}"},
    {.prefix = "command-r",
     .model_type = "cohere",
     .class_name = "CohereForCausalLM",
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_NO_O_BIAS | GGUF_SAYS_NONE,
     .settings = COHERE_SETTINGS,
     .eps = "layer_norm_eps",
     .bias = "attention_bias",
     .fixed = SILU ", \"use_qk_norm\": false" TIED("true") "}",
     .theta = 500000},
    {.prefix = "cohere2",
     .model_type = "cohere2",
     .class_name = "Cohere2ForCausalLM",
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_NO_O_BIAS | GGUF_WINDOW | GGUF_PATTERN | GGUF_SAYS_NONE,
     .settings = COHERE_SETTINGS,
     .eps = "layer_norm_eps",
     .bias = "attention_bias",
     .fixed = SILU ", \"use_qk_norm\": false" TIED("true") "}",
     .full_every = 4},
    {.prefix = "exaone4",
     .model_type = "exaone4",
     .class_name = "Exaone4ForCausalLM",
     .has = GGUF_SQUARE | GGUF_FREQS | GGUF_WINDOW | GGUF_PATTERN,
     .names = &gguf_names_after,
     .fixed = SILU "}",
     .full_every = 4,
     .slide_layers = 64},
    {.prefix = "seed_oss",
     .model_type = "seed_oss",
     .class_name = "SeedOssForCausalLM",
     .has = GGUF_NO_O_BIAS | GGUF_NO_MLP_BIAS,
     .names = &gguf_names_after,
     .bias = "attention_bias",
     .o_bias = "attention_out_bias",
     .mlp_bias = "mlp_bias",
     .fixed = SILU "}",
     .head_dim = 128},
    {.prefix = "chatglm",
     .model_type = "glm",
     .class_name = "GlmForCausalLM",
     .has = GGUF_PARTIAL | GGUF_SQUARE,
     .names = &gguf_names_glm,
     .bias = "attention_bias",
     .fixed = SILU "}",
     .partial = 0.5,
     .head_dim = 128},
    {.prefix = "glm4",
     .model_type = "glm4",
     .class_name = "Glm4ForCausalLM",
     .has = GGUF_PARTIAL,
     .names = &gguf_names_glm4,
     .bias = "attention_bias",
     .fixed = SILU "}",
     .partial = 0.5,
     .head_dim = 128},
    {.prefix = "ernie4_5",
     .model_type = "ernie4_5",
     .class_name = "Ernie4_5ForCausalLM",
     .has = GGUF_TIED | GGUF_NO_MLP_BIAS,
     .bias = "use_bias",
     .fixed = SILU "}",
     .theta = 500000,
     .head_dim = 128},
    {.prefix = "hunyuan-dense",
     .model_type = "hunyuan_v1_dense",
     .class_name = "HunYuanDenseV1ForCausalLM",
     .has = GGUF_ALPHA | GGUF_NO_O_BIAS,
     .names = &gguf_names_hunyuan,
     .bias = "attention_bias",
     .fixed = SILU "}"},
    {.prefix = "nemotron",
     .model_type = "nemotron",
     .class_name = "NemotronForCausalLM",
     .has = GGUF_PLUS_1 | GGUF_PARTIAL | GGUF_SQUARE | GGUF_SAYS_NONE,
     .settings = NEMOTRON_SETTINGS,
     .eps = "norm_eps",
     .bias = "attention_bias",
     .mlp_bias = "mlp_bias",
     .fixed = RELU2 TIED("false") "}",
     .partial = 0.5},
    {.prefix = "jais2",
     .model_type = "jais2",
     .class_name = "Jais2ForCausalLM",
     .eps = "layer_norm_eps",
     .fixed = RELU2 ", \"attention_bias\": true, \"mlp_bias\": true}"},
    {.prefix = "starcoder",
     .model_type = "gpt_bigcode",
     .class_name = "GPTBigCodeForCausalLM",
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_ONE_KV,
     .names = &gguf_names_gpt,
     .words = &GPT_WORDS,
     .eps = "layer_norm_epsilon",
     .fixed = GPT_TANH ", \"multi_query\": true" PLAIN_SCALE "}",
     .idle = GPT_IDLE},
    {.prefix = "gpt2", /* a GPT-2 whose matrices are [out, in], as a GGUF has them */
     .model_type = "gpt_bigcode",
     .class_name = "GPTBigCodeForCausalLM",
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_GROUPS,
     .names = &gguf_names_gpt,
     .words = &GPT_WORDS,
     .eps = "layer_norm_epsilon",
     .fixed = GPT_TANH ", \"multi_query\": false" PLAIN_SCALE "}",
     .idle = GPT_IDLE},
    {.prefix = "gpt2",
     .model_type = "gpt2",
     .class_name = "GPT2LMHeadModel",
     .when = GGUF_NEVER,
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_CONV1D,
     .names = &gguf_names_gpt,
     .words = &GPT_WORDS,
     .eps = "layer_norm_epsilon",
     .fixed = GPT_TANH ", \"scale_attn_by_inverse_layer_idx\": false" PLAIN_SCALE "}",
     .idle = GPT_IDLE},
    {.prefix = "gptneox",
     .model_type = "gpt_neox",
     .class_name = "GPTNeoXForCausalLM",
     .has = GGUF_PARTIAL | GGUF_SQUARE | GGUF_GROUPS,
     .names = &gguf_names_neox,
     .words = &NEOX_WORDS,
     .settings = NEOX_SETTINGS,
     .eps = "layer_norm_eps",
     .fixed = "{\"hidden_act\": [\"gelu\", \"gelu_new\", \"gelu_fast\", \"gelu_pytorch_tanh\"], "
              "\"attention_bias\": true" TIED("false") "}",
     .idle = NEOX_IDLE,
     .partial = 0.25},
    {.prefix = "bert",
     .model_type = "bert",
     .class_name = "BertModel",
     .when = GGUF_HAS_TYPES,
     .has = GGUF_SQUARE | GGUF_ENCODER | GGUF_TYPES,
     .names = &gguf_names_bert,
     .words = &BERT_WORDS,
     .settings = ENCODER_SETTINGS,
     .eps = "layer_norm_eps",
     .fixed = BERT_PLAIN "}",
     .idle = BERT_IDLE},
    {.prefix = "bert",
     .model_type = "distilbert",
     .class_name = "DistilBertModel",
     .has = GGUF_SQUARE | GGUF_ENCODER,
     .names = &gguf_names_distilbert,
     .words = &DISTILBERT_WORDS,
     .settings = ENCODER_SETTINGS,
     .eps = "layer_norm_eps",
     .fixed_eps = 1e-12,
     .fixed = "{\"activation\": \"gelu\"}",
     .idle = BERT_IDLE},
    {.prefix = "bert", /* without the positions before its first, a bert */
     .model_type = "roberta",
     .class_name = "RobertaModel",
     .when = GGUF_NEVER,
     .has = GGUF_SQUARE | GGUF_ENCODER | GGUF_TYPES | GGUF_PAD_OFFSET,
     .names = &gguf_names_bert,
     .words = &BERT_WORDS,
     .settings = ENCODER_SETTINGS,
     .eps = "layer_norm_eps",
     .fixed = BERT_PLAIN "}",
     .idle = BERT_IDLE},
    {.prefix = "bert",
     .model_type = "xlm-roberta",
     .class_name = "XLMRobertaModel",
     .when = GGUF_NEVER,
     .has = GGUF_SQUARE | GGUF_ENCODER | GGUF_TYPES | GGUF_PAD_OFFSET,
     .names = &gguf_names_bert,
     .words = &BERT_WORDS,
     .settings = ENCODER_SETTINGS,
     .eps = "layer_norm_eps",
     .fixed = BERT_PLAIN "}",
     .idle = BERT_IDLE},
    {.prefix = "nomic-bert",
     .model_type = "nomic_bert",
     .class_name = "NomicBertModel",
     .has = GGUF_SQUARE | GGUF_ENCODER | GGUF_TYPES,
     .names = &gguf_names_nomic,
     .words = &NOMIC_WORDS,
     .settings = ENCODER_SETTINGS,
     .eps = "layer_norm_eps",
     .fixed = SILU "}",
     .idle = BERT_IDLE,
     .theta = 1000},
    {.prefix = "falcon",
     .model_type = "falcon",
     .class_name = "FalconForCausalLM",
     .when = GGUF_ONE_KEY,
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_ONE_KV,
     .names = &gguf_names_falcon,
     .words = &FALCON_WORDS,
     .settings = FALCON_SETTINGS,
     .eps = "layer_norm_epsilon",
     .fixed = FALCON_PLAIN ", \"new_decoder_architecture\": false, \"multi_query\": true, "
                           "\"parallel_attn\": true}"},
    {.prefix = "falcon",
     .model_type = "falcon",
     .class_name = "FalconForCausalLM",
     .when = GGUF_NORM_2,
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_GROUPS,
     .names = &gguf_names_falcon_2,
     .words = &FALCON_WORDS,
     .settings = FALCON_SETTINGS,
     .eps = "layer_norm_epsilon",
     .fixed = FALCON_PLAIN ", \"new_decoder_architecture\": true, "
                           "\"num_ln_in_parallel_attn\": 2}"},
    {.prefix = "falcon",
     .model_type = "falcon",
     .class_name = "FalconForCausalLM",
     .has = GGUF_TIED | GGUF_SQUARE | GGUF_GROUPS,
     .names = &gguf_names_falcon,
     .words = &FALCON_WORDS,
     .settings = FALCON_SETTINGS,
     .eps = "layer_norm_epsilon",
     .fixed = FALCON_PLAIN ", \"new_decoder_architecture\": true, "
                           "\"num_ln_in_parallel_attn\": 1}"},
};

const gguf_arch *gguf_arch_at(size_t i)
{
    return i < FM_ARRAY_LEN(ARCHES) ? &ARCHES[i] : NULL;
}

const gguf_words *gguf_words_of(const gguf_arch *arch)
{
    return arch->words ? arch->words : &LLAMA_WORDS;
}

/* ---- what is fixed ---- */

static bool is_number(const fm_json *v)
{
    return fm_json_is(v, FM_JSON_INT) || fm_json_is(v, FM_JSON_REAL);
}

static bool agrees(const fm_json *has, const fm_json *want)
{
    for (size_t i = 0; fm_json_is(want, FM_JSON_ARRAY) && i < fm_json_count(want); i++)
        if (agrees(has, fm_json_at(want, i)))
            return true;
    return fm_json_typeof(has) == FM_JSON_NULL || fm_json_equal(has, want) ||
           (is_number(has) && is_number(want) && fm_json_real(has, 0) == fm_json_real(want, 1));
}

fm_status gguf_misfit(fm_buf *out, const gguf_arch *arch, const fm_json *config)
{
    fm_json *fixed = NULL;
    fm_status rc = fm_json_parse(&fixed, fm_span_str(arch->fixed), arch->prefix);

    fm_buf_clear(out);
    for (void *it = rc == FM_OK ? fm_json_iter(fixed) : NULL; it && out->len == 0;
         it = fm_json_next(fixed, it)) {
        const char *key = fm_json_iter_key(it);
        const bool setting = strcmp(key, "rope_local_base_freq") == 0; /* it is written too */
        if (!setting && !agrees(fm_json_get(config, key), fm_json_iter_value(it)))
            fm_buf_str(out, key);
    }
    fm_json_free(fixed);
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}

fm_status gguf_arch_of_config(const gguf_arch **out, const fm_json *config)
{
    const char *type = fm_json_cstr(fm_json_get(config, "model_type"), "");
    fm_status rc = FM_OK;
    fm_buf misfit;

    *out = NULL;
    fm_buf_init(&misfit, 0);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(ARCHES); i++) {
        if (strcmp(type, ARCHES[i].model_type) != 0)
            continue;
        rc = gguf_misfit(&misfit, &ARCHES[i], config);
        *out = *out ? *out : &ARCHES[i];
        if (rc == FM_OK && misfit.len == 0) {
            *out = &ARCHES[i];
            break;
        }
    }
    fm_buf_release(&misfit);
    return rc;
}

/* Whether a row before it has the same name. */
static bool is_said(size_t i, bool of_types)
{
    for (size_t k = 0; k < i; k++)
        if (of_types ? strcmp(ARCHES[k].model_type, ARCHES[i].model_type) == 0
                     : strcmp(ARCHES[k].prefix, ARCHES[i].prefix) == 0)
            return true;
    return false;
}

void gguf_arch_names(fm_buf *out, bool of_types)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(ARCHES); i++)
        if (!is_said(i, of_types))
            fm_buf_printf(out, "%s%s", i ? ", " : "",
                          of_types ? ARCHES[i].model_type : ARCHES[i].prefix);
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

const char *gguf_pooling_word(uint64_t type)
{
    static const char *const words[] = {NULL, "mean_tokens", "cls_token", "lasttoken"};
    return type < FM_ARRAY_LEN(words) ? words[type] : NULL;
}
