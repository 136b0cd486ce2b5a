/* config.json to fm_arch: old and new spellings, defaults, and refusals that name the field. */
#include "tests/model/infer_kit.h"

#include <math.h>

#include "store/base/cancel.h"

#define BASE                                                                                       \
    "\"vocab_size\":100,\"hidden_size\":48,\"intermediate_size\":96,\"num_hidden_layers\":2,"      \
    "\"num_attention_heads\":4"

static fm_status parse_with(fm_arch *a, const char *type, const char *more, const char *gen)
{
    char text[2048];
    fm_json *v = NULL;
    (void)snprintf(text, sizeof(text),
                   "{\"format\":1,\"config\":{\"model_type\":\"%s\"," BASE "%s%s}%s%s}", type,
                   more[0] ? "," : "", more, gen[0] ? ",\"generation_config\":" : "", gen);
    tk_ok(fm_json_parse(&v, fm_span_str(text), "model.json"));
    fm_status rc = fm_arch_from_json(a, v, "m");
    fm_json_free(v);
    return rc;
}

static fm_arch good(const char *type, const char *more)
{
    fm_arch a;
    tk_ok(parse_with(&a, type, more, ""));
    return a;
}

static void bad(const char *type, const char *more, fm_status want, const char *needle)
{
    fm_arch a;
    tk_fails(parse_with(&a, type, more, ""), want, needle);
    assert_int_equal(a.layers, 0);
}

/* A family without attention. */
static void bad_mixer(const char *type, const char *more, fm_status want, const char *needle)
{
    fm_json *v = NULL;
    fm_arch a;
    char *text = fm_asprintf("{\"config\":{\"model_type\":\"%s\",\"vocab_size\":100,"
                             "\"hidden_size\":48,\"num_hidden_layers\":2,%s}}",
                             type, more);
    tk_ok(fm_json_parse(&v, fm_span_str(text), "model.json"));
    tk_fails(fm_arch_from_json(&a, v, "m"), want, needle);
    fm_json_free(v);
    fm_free(text);
}

/* A family that has other names for its sizes. */
static void bad_alone(const char *type, const char *more, fm_status want, const char *needle)
{
    fm_json *v = NULL;
    fm_arch a;
    char *text = fm_asprintf("{\"config\":{\"model_type\":\"%s\",\"vocab_size\":100,"
                             "\"hidden_size\":48,\"num_hidden_layers\":2,"
                             "\"num_attention_heads\":4,%s}}",
                             type, more);
    tk_ok(fm_json_parse(&v, fm_span_str(text), "model.json"));
    tk_fails(fm_arch_from_json(&a, v, "m"), want, needle);
    fm_json_free(v);
    fm_free(text);
}

static void bad_stacks(const char *more, fm_status want, const char *needle)
{
    fm_json *v = NULL;
    fm_arch a;
    char *text = fm_asprintf("{\"config\":{\"model_type\":\"t5\",\"vocab_size\":100,"
                             "\"d_model\":48,\"num_layers\":2,\"d_ff\":64,%s}}",
                             more);
    tk_ok(fm_json_parse(&v, fm_span_str(text), "model.json"));
    tk_fails(fm_arch_from_json(&a, v, "m"), want, needle);
    fm_json_free(v);
    fm_free(text);
}

static void bad_bart(const char *more, fm_status want, const char *needle)
{
    fm_json *v = NULL;
    fm_arch a;
    char *text = fm_asprintf("{\"config\":{\"model_type\":\"bart\",\"vocab_size\":100,"
                             "\"d_model\":48,\"decoder_layers\":2,%s}}",
                             more);
    tk_ok(fm_json_parse(&v, fm_span_str(text), "model.json"));
    tk_fails(fm_arch_from_json(&a, v, "m"), want, needle);
    fm_json_free(v);
    fm_free(text);
}

TEST(unknown_fields_are_refused_by_name)
{
    bad("llama", "\"softcap\":3", FM_EUNSUPPORTED, "softcap");
    bad("llama", "\"quantization_config\":{\"bits\":4}", FM_EUNSUPPORTED, "quantization_config");
    bad("rwkv", "", FM_EUNSUPPORTED, "rwkv");
    bad("llama", "\"hidden_act\":\"mish\"", FM_EUNSUPPORTED, "mish");
    bad("llama", "\"rope_scaling\":{\"type\":\"mrope\",\"factor\":4}", FM_EUNSUPPORTED, "mrope");
    bad("llama", "\"query_pre_attn_scalar\":4", FM_EUNSUPPORTED, "query_pre_attn_scalar");
    bad("bert", "\"rope_theta\":4", FM_EUNSUPPORTED, "rope_theta");
    bad("bert", "\"is_decoder\":true", FM_EUNSUPPORTED, "is_decoder");
    bad("bert", "\"position_embedding_type\":\"relative_key\"", FM_EUNSUPPORTED, "relative_key");
    bad("stablelm", "\"num_key_value_heads\":2,\"qk_layernorm\":true", FM_EUNSUPPORTED,
        "qk_layernorm");
    bad("gemma2", "\"num_key_value_heads\":2,\"use_bidirectional_attention\":true", FM_EUNSUPPORTED,
        "use_bidirectional_attention");
    bad("llama", "\"rope_scaling\":{\"type\":\"default\",\"beta\":4}", FM_EUNSUPPORTED, "beta");
    bad("llama", "\"partial_rotary_factor\":0.3", FM_EINVAL, "pairs"); /* 3 of 12 */
    bad("qwen2", "\"num_key_value_heads\":2,\"layer_types\":[\"full_attention\",\"linear\"]",
        FM_EUNSUPPORTED, "linear");
    bad("mistral", "\"num_key_value_heads\":2,\"attention_bias\":true", FM_EUNSUPPORTED, "bias");
    good("llama", "\"softcap\":null,\"torch_dtype\":\"bfloat16\",\"pretraining_tp\":1");
}

TEST(wrong_values_are_refused_by_name)
{
    bad("llama", "\"num_key_value_heads\":3", FM_EINVAL, "3 key/value heads");
    bad("llama", "\"head_dim\":5", FM_EINVAL, "head_dim");
    bad("llama", "\"head_dim\":514", FM_EINVAL, "head_dim"); /* beyond what attention computes */
    bad("llama", "\"rms_norm_eps\":-1", FM_EINVAL, "rms_norm_eps");
    bad("llama", "\"rms_norm_eps\":\"x\"", FM_EINVAL, "rms_norm_eps");
    bad("llama", "\"tie_word_embeddings\":1", FM_EINVAL, "tie_word_embeddings");
    bad("llama", "\"max_position_embeddings\":0", FM_EINVAL, "max_position_embeddings");
    bad("llama", "\"eos_token_id\":100", FM_EINVAL, "eos_token_id");
    bad("llama", "\"eos_token_id\":[1,2,3,4,5,6,7,8,9]", FM_ELIMIT, "eos_token_id");
    bad("llama", "\"rope_theta\":0", FM_EINVAL, "rope_theta");
    bad("llama", "\"rope_scaling\":{\"rope_type\":\"llama3\"}", FM_EINVAL, "factor");
    bad("llama", "\"rope_scaling\":7", FM_EINVAL, "rope");
    bad("llama", "\"head_dim\":4294967298", FM_EINVAL, "head_dim");
    fm_arch a;
    fm_json *v = NULL;
    tk_ok(fm_json_parse(&v, fm_span_str("{\"format\":1}"), "x"));
    tk_fails(fm_arch_from_json(&a, v, "m"), FM_EINVAL, "config");
    fm_json_free(v);
    tk_ok(fm_json_parse(&v, fm_span_str("{\"config\":{\"model_type\":\"llama\"}}"), "x"));
    tk_fails(fm_arch_from_json(&a, v, "m"), FM_EINVAL, "vocab_size");
    fm_json_free(v);
}

TEST(old_and_new_spellings_agree)
{
    fm_arch a = good("llama", "\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
                              "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                              "\"original_max_position_embeddings\":64}");
    fm_arch b = good("llama", "\"rope_parameters\":{\"rope_theta\":500000,\"rope_type\":\"llama3\","
                              "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                              "\"original_max_position_embeddings\":64}");
    assert_true(a.rope[0].kind == FM_ROPE_LLAMA3 && b.rope[0].kind == FM_ROPE_LLAMA3);
    assert_true(a.rope[0].theta == b.rope[0].theta && a.rope[0].theta == 500000.0);
    assert_true(a.rope[0].factor == b.rope[0].factor && a.rope[0].high == b.rope[0].high);
    assert_int_equal(a.rope[0].original, b.rope[0].original);
}

TEST(silence_means_the_family_default)
{
    fm_arch a = good("llama", "");
    assert_int_equal(a.kv_heads, 4);
    assert_int_equal(a.head_dim, 12);
    assert_int_equal(a.max_positions, 2048);
    assert_true(a.rope[0].theta == 10000.0 && a.eps == 1e-6f && !a.tied && !a.window);
    assert_int_equal(a.bos, -1);
    assert_int_equal(good("mistral", "\"num_key_value_heads\":2").window, 4096);
    assert_int_equal(good("mistral", "\"num_key_value_heads\":2,\"sliding_window\":null").window,
                     0);
    assert_int_equal(good("mistral", "\"num_key_value_heads\":null").kv_heads, 4);
    a = good("qwen2", "\"num_key_value_heads\":2,\"use_sliding_window\":true,"
                      "\"max_window_layers\":0,\"sliding_window\":16");
    assert_int_equal(a.window, 16);
    assert_true(a.qkv_bias && !a.o_bias && !a.qk_norm);
    a = good("qwen3", "\"num_key_value_heads\":2");
    assert_int_equal(a.head_dim, 128);
    assert_true(a.qk_norm && !a.qkv_bias && a.window == 0);
    a = good("llama", "\"attention_bias\":true,\"mlp_bias\":true");
    assert_true(a.qkv_bias && a.o_bias && a.mlp_bias);
}

/* What a family's row and its config make of each other. */
TEST(families_are_read_as_written)
{
    fm_arch a =
        good("gemma2", "\"num_key_value_heads\":2,\"head_dim\":12,\"query_pre_attn_scalar\":16,"
                       "\"dtype\":\"bfloat16\"");
    assert_true(a.sw.norm == FM_NORM_RMS_PLUS1 && a.sw.order == FM_BLOCK_SANDWICH && a.tied);
    assert_true(a.sw.act == FM_ACT_GELU_TANH && a.sw.attn_scale == 0.25f);
    assert_true(a.sw.embed_scale == 6.9375f); /* sqrt(48) = 6.928, as bfloat16 */
    assert_true(a.sw.attn_softcap == 50.0f && a.sw.logit_softcap == 30.0f);
    assert_true(a.sw.layer[0] == FM_LAYER_SLIDES && a.sw.layer[1] == 0);
    a = good("gemma2", "\"num_key_value_heads\":2,\"head_dim\":12,\"attn_logit_softcapping\":null");
    assert_true(a.sw.attn_softcap == 0.0f && a.sw.embed_scale == sqrtf(48.0f));
    a = good("qwen2", "\"num_key_value_heads\":2,\"use_sliding_window\":true,"
                      "\"max_window_layers\":1,\"sliding_window\":16");
    assert_true(a.sw.layer[0] == 0 && a.sw.layer[1] == FM_LAYER_SLIDES);
    a = good("phi3", "\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"su\","
                     "\"short_factor\":[1,2,3],\"long_factor\":[4,5,6]},"
                     "\"max_position_embeddings\":4096,"
                     "\"original_max_position_embeddings\":128");
    assert_int_equal(a.sw.rotary_dim, 6);
    assert_int_equal(a.max_positions, 128);
    assert_true(fabs(a.rope[0].attention - sqrt(1.0 + log(32.0) / log(128.0))) < 1e-12);
    a = good("llama", "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                      "\"original_max_position_embeddings\":1024}");
    assert_int_equal(a.max_positions, 4096);
    assert_true(fabs(a.rope[0].attention - (0.1 * log(4.0) + 1.0)) < 1e-12);
    a = good("roberta", "\"max_position_embeddings\":66,\"pad_token_id\":1");
    assert_true(a.max_positions == 64 && a.sw.position_offset == 2 && a.sw.encoder);
    a = good("qwen3_moe", "\"num_key_value_heads\":2,\"num_experts\":4,\"num_experts_per_tok\":2,"
                          "\"moe_intermediate_size\":8,\"mlp_only_layers\":[0]");
    assert_true(a.sw.layer[0] == 0 && a.sw.layer[1] == FM_LAYER_SPARSE && !a.sw.renormalise);
    assert_non_null(fm_arch_beyond_llama(&a));
    a = good("qwen3", "\"num_key_value_heads\":2");
    assert_null(fm_arch_beyond_llama(&a));
    a = good("gemma", "\"num_key_value_heads\":2,\"head_dim\":12,\"hidden_act\":\"gelu\","
                      "\"hidden_activation\":null");
    assert_true(a.sw.act == FM_ACT_GELU_TANH && a.sw.order == FM_BLOCK_PRE && a.tied);
    a = good("internlm3", "\"num_key_value_heads\":2,\"qkv_bias\":true,\"bias\":true");
    assert_true(a.qkv_bias && a.o_bias && a.mlp_bias);
    a = good("seed_oss", "\"num_key_value_heads\":2,\"head_dim\":12");
    assert_true(a.qkv_bias && !a.o_bias && !a.mlp_bias);
    a = good("exaone4", "\"num_key_value_heads\":2,\"sliding_window\":null,"
                        "\"sliding_window_pattern\":null");
    assert_true(a.sw.layer[0] == 0 && a.sw.layer[1] == 0);
    a = good("exaone4", "\"num_key_value_heads\":2,\"sliding_window_pattern\":2");
    assert_true(a.sw.layer[0] == FM_LAYER_SLIDES && a.sw.layer[1] == FM_LAYER_NO_ROPE);
    a = good("qwen2_5_vl", "\"num_key_value_heads\":2,\"vision_config\":{},\"rope_scaling\":"
                           "{\"type\":\"mrope\",\"mrope_section\":[2,2,2]}");
    assert_true(a.rope[0].kind == FM_ROPE_DEFAULT && a.rope[0].theta == 1e6 && a.qkv_bias);
    a = good("cohere2", "\"num_key_value_heads\":2,\"position_embedding_type\":\"rope_gptj\"");
    assert_true(a.sw.layer[0] == FM_LAYER_SLIDES && a.sw.pairs && a.sw.logit_divisor == 16.0f);
    a = good("hunyuan_v1_dense", "\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000.0,"
                                 "\"factor\":1.0},\"max_position_embeddings\":4096");
    assert_true(fabs(a.rope[0].theta - 1e4 * pow(1000.0, 1.2)) < 1e-3 && a.max_positions == 4096);
    a = good("modernbert", "\"global_attn_every_n_layers\":2,\"local_attention\":7,"
                           "\"global_rope_theta\":80000.0,\"local_rope_theta\":500.0,"
                           "\"layer_norm_eps\":1e-5,\"position_embedding_type\":\"absolute\"");
    assert_true(a.window == 4 && a.rope[0].theta == 8e4 && a.rope[1].theta == 500 && !a.qkv_bias);
    assert_true(a.sw.layer[0] == FM_LAYER_NO_INPUT_NORM && a.sw.layer[1] == FM_LAYER_SLIDES);
    a = good("llama4_text", "\"num_key_value_heads\":2,\"no_rope_layers\":[],"
                            "\"attn_temperature_tuning\":4,\"no_rope_layer_interval\":2,"
                            "\"attention_chunk_size\":96,\"interleave_moe_layer_step\":2");
    assert_true(a.sw.layer[0] == FM_LAYER_SLIDES &&
                a.sw.layer[1] == (FM_LAYER_NO_ROPE | FM_LAYER_SPARSE));
    assert_true(a.sw.chunk == 96 && a.sw.qk_bare && a.sw.grow.every == 8192 && a.sw.grow.unturned);
    assert_true(a.inter == 16384 || a.inter == 64);
    a = good("ministral3", "\"num_key_value_heads\":2,\"rope_parameters\":{\"rope_type\":"
                           "\"yarn\",\"factor\":16,\"original_max_position_embeddings\":256,"
                           "\"llama_4_scaling_beta\":0.1}");
    assert_int_equal(a.max_positions, 262144);
    assert_true(a.sw.grow.every == 256 && a.sw.grow.by == 0.1f && !a.sw.grow.next);
}

/* Configs as they stand beside published weights (sizes apart). */
TEST(published_configs_are_read)
{
    static const struct {
        const char *type, *more;
    } known[] = {
        {"cohere2", "\"cache_implementation\":\"hybrid\",\"head_dim\":12,\"layer_switch\":4,"
                    "\"order_of_interleaved_layers\":\"local_attn_first\",\"rotary_pct\":1.0,"
                    "\"position_embedding_type\":\"rope_gptj\",\"use_qk_norm\":false,"
                    "\"use_embedding_sharing\":true,\"use_gated_activation\":true,"
                    "\"use_parallel_block\":true,\"use_parallel_embedding\":true,"
                    "\"model_max_length\":64,\"rope_scaling\":null,\"rope_theta\":50000"},
        {"hunyuan_v1_dense", "\"use_qk_norm\":true,\"use_cla\":false,\"cla_share_factor\":2,"
                             "\"norm_type\":\"rms\",\"attention_head_dim\":12,\"head_dim\":12,"
                             "\"mlp_bias\":false,\"rope_scaling\":{\"type\":\"dynamic\","
                             "\"alpha\":1000.0,\"beta_fast\":32,\"beta_slow\":1,\"factor\":1.0,"
                             "\"mscale\":1.0,\"mscale_all_dim\":1.0}"},
        {"phi", "\"partial_rotary_factor\":0.5,\"qk_layernorm\":false,\"embd_pdrop\":0.0,"
                "\"resid_pdrop\":0.1,\"rope_scaling\":null,\"rope_theta\":10000.0"},
        {"nemotron", "\"kv_channels\":128,\"norm_eps\":1e-5,\"partial_rotary_factor\":0.5"},
        {"exaone4", "\"num_key_value_heads\":2,\"sliding_window\":16,\"sliding_window_pattern\":"
                    "\"LLLG\",\"layer_types\":[\"sliding_attention\",\"full_attention\"]"},
        {"olmoe", "\"num_experts\":4,\"num_experts_per_tok\":2,\"norm_topk_prob\":false,"
                  "\"clip_qkv\":null,\"router_aux_loss_coef\":0.01,\"rope_scaling\":null"},
        {"seed_oss", "\"num_key_value_heads\":2,\"attention_dropout\":0.1,\"pretraining_tp\":1,"
                     "\"residual_dropout\":0.1,\"rope_scaling\":{\"rope_type\":\"default\"}"},
        {"qwen3_5_text",
         "\"num_key_value_heads\":2,\"attn_output_gate\":true,\"mamba_ssm_dtype\":\"float32\","
         "\"full_attention_interval\":2,\"mtp_num_hidden_layers\":1,\"rope_parameters\":"
         "{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],\"rope_theta\":10000000,"
         "\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}"},
        {"lfm2", "\"num_key_value_heads\":2,\"full_attn_idxs\":[1],\"block_ff_dim\":48,"
                 "\"block_norm_eps\":1e-5,\"conv_dim\":48,\"num_heads\":4,"
                 "\"theta\":1e6,\"tie_embedding\":true"},
        {"nemotron_h",
         "\"num_key_value_heads\":2,\"hybrid_override_pattern\":\"MEM*E\",\"mamba_num_heads\":4,"
         "\"n_groups\":2,\"attention_bias\":false,\"expand\":2,\"moe_latent_size\":16,"
         "\"num_nextn_predict_layers\":1,\"mtp_hybrid_override_pattern\":\"*E\","
         "\"rope_theta\":10000,\"partial_rotary_factor\":1.0,\"norm_eps\":1e-5,"
         "\"residual_in_fp32\":false,\"time_step_limit\":[0.0,\"Infinity\"]"},
        {"falcon_h1", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"mamba_d_ssm\":null,"
                      "\"mamba_use_mlp\":true,\"num_logits_to_keep\":1,\"rope_scaling\":null,"
                      "\"attn_layer_indices\":null,\"rope_theta\":1e11"},
        {"ernie4_5", "\"num_key_value_heads\":2,\"use_bias\":false,\"rope_theta\":500000,"
                     "\"auto_map\":{}"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        (void)good(known[i].type, known[i].more);
}

/* The settings that no class of transformers has a default for. */
static bool is_needed(const char *key)
{
    static const char *const needed[] = {"model_type",
                                         "vocab_size",
                                         "hidden_size",
                                         "n_embd",
                                         "d_model",
                                         "dim",
                                         "intermediate_size",
                                         "hidden_dim",
                                         "ffn_dim",
                                         "d_ff",
                                         "decoder_layers",
                                         "num_layers",
                                         "num_hidden_layers",
                                         "n_layer",
                                         "n_layers",
                                         "num_attention_heads",
                                         "n_head",
                                         "n_heads",
                                         "num_experts",
                                         "num_local_experts",
                                         "num_experts_per_tok",
                                         "embedding_size",
                                         "moe_intermediate_size",
                                         "shared_expert_intermediate_size"};
    for (size_t i = 0; i < FM_ARRAY_LEN(needed); i++)
        if (strcmp(key, needed[i]) == 0)
            return true;
    return false;
}

/* Sizes by layer in both spellings, and which of its settings are not computed. */
TEST(uneven_layers_are_read)
{
#define TYPES "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"head_dim\":12,"
#define KV "\"num_key_value_heads\":2,\"hidden_size_per_layer_input\":0,"
    fm_arch a = good("gemma4_text", KV TYPES "\"global_head_dim\":16,\"attention_k_eq_v\":true,"
                                             "\"num_global_key_value_heads\":1");
    assert_true(a.sw.full_head_dim == 16 && a.sw.full_kv_heads == 1 && a.sw.full_k_is_v);
    assert_true(a.rope[0].kind == FM_ROPE_PART && a.rope[0].low == 2 && fm_arch_turns(&a, 0) == 16);
    assert_true(a.rope[1].kind == FM_ROPE_DEFAULT && fm_arch_turns(&a, 1) == 12);
    fm_arch b = good("gemma4_text", KV TYPES "\"attention_k_eq_v\":true,\"per_layer_config\":{"
                                             "\"01\":{\"head_dim\":16,\"num_key_value_heads\":1}}");
    assert_memory_equal(&a, &b, sizeof(a));
    a = good("gemma4_text", KV TYPES "\"global_head_dim\":12,\"num_global_key_value_heads\":1");
    assert_true(a.sw.full_head_dim == 0 && a.sw.full_kv_heads == 0); /* without attention_k_eq_v */
    a = good("gemma4_text", KV "\"head_dim\":12,\"use_bidirectional_attention\":\"vision\","
                               "\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]");
    assert_true(!fm_layer_is_full(&a.sw, 0) && fm_layer_is_full(&a.sw, 1)); /* the last always */
    bad("gemma4_text", KV "\"use_bidirectional_attention\":\"all\"", FM_EUNSUPPORTED,
        "use_bidirectional_attention");
    bad("gemma4_text", KV "\"enable_moe_block\":true", FM_EINVAL, "num_experts");
    bad("gemma4_text",
        KV "\"enable_moe_block\":true,\"num_experts\":4,\"top_k_experts\":5,"
           "\"moe_intermediate_size\":8",
        FM_EINVAL, "top_k_experts");
    bad("gemma4_text", KV TYPES "\"num_kv_shared_layers\":1", FM_EINVAL, "num_kv_shared_layers");
    bad("gemma4_text", KV TYPES "\"num_kv_shared_layers\":2", FM_EINVAL, "num_kv_shared_layers");
    bad("gemma4_text", KV TYPES "\"per_layer_config\":{\"0\":{\"head_dim\":16}}", FM_EUNSUPPORTED,
        "per_layer_config");
    bad("gemma4_text", KV TYPES "\"per_layer_config\":{\"2\":{\"head_dim\":16}}", FM_EINVAL,
        "'2' is no layer");
    bad("gemma4_text",
        KV TYPES "\"per_layer_config\":{\"1\":{\"head_dim\":16},\"01\":{\"head_dim\":16}}",
        FM_EINVAL, "'01' is no layer");
    bad("gemma4_text", KV TYPES "\"per_layer_config\":{\"1\":{\"window\":16}}", FM_EUNSUPPORTED,
        "window");
    bad("gemma4_text",
        KV TYPES "\"per_layer_config\":{\"0\":{\"head_dim\":8},\"1\":{\"head_dim\":16}}",
        FM_EUNSUPPORTED, "several sizes");
    bad("gemma4_text", "\"num_key_value_heads\":2,\"vocab_size_per_layer_input\":99",
        FM_EUNSUPPORTED, "vocab_size_per_layer_input");
    bad("gemma4_text", KV "\"head_dim\":11", FM_EINVAL, "even size");
    bad("gemma4_text", KV "\"partial_rotary_factor\":0.5", FM_EUNSUPPORTED, "rotary settings");
    bad("gemma4_text", KV "\"rope_parameters\":{\"rope_theta\":4}", FM_EUNSUPPORTED, "rope_theta");
    bad("gemma4_text",
        KV "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":9,\"rope_type\":\"yarn\"},"
           "\"sliding_attention\":{\"rope_theta\":9}}",
        FM_EUNSUPPORTED, "yarn");
    bad("gemma3_text",
        "\"num_key_value_heads\":2,\"rope_parameters\":{\"full_attention\":{"
        "\"rope_type\":\"proportional\"}}",
        FM_EUNSUPPORTED, "proportional");
#undef TYPES
#undef KV
}

/* golden/defaults.json: what transformers makes of a config that says nothing. */
TEST(absent_settings_mean_what_transformers_means)
{
    char *path = fm_asprintf("%s/tests/model/golden/defaults.json", FM_SOURCE_DIR);
    fm_json *all = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    tk_ok(fm_read_file(&text, path, (size_t)1 << 20));
    tk_ok(fm_json_parse(&all, fm_buf_span(&text), path));
    for (void *it = fm_json_iter(all); it; it = fm_json_next(all, it)) {
        const char *family = fm_json_iter_key(it);
        const fm_json *full = fm_json_iter_value(it);
        fm_json *bare = fm_json_new_object(), *m = fm_json_new_object();
        fm_arch said, silent;
        for (void *k = fm_json_iter(full); k; k = fm_json_next(full, k))
            if (is_needed(fm_json_iter_key(k)))
                tk_ok(fm_json_set(bare, fm_json_iter_key(k), fm_json_copy(fm_json_iter_value(k))));
        tk_ok(fm_json_set(m, "config", fm_json_copy(full)));
        tk_ok(fm_arch_from_json(&said, m, family));
        tk_ok(fm_json_set(m, "config", bare));
        tk_ok(fm_arch_from_json(&silent, m, family));
        if (memcmp(&said, &silent, sizeof(said)) != 0)
            fail_msg("%s: heads %u %u, %u %u; positions %u %u; window %u %u; theta %g %g; eps %g "
                     "%g; tied %d %d; biases %d%d%d %d%d%d; turns %u %u; act %d %d",
                     family, said.kv_heads, silent.kv_heads, said.head_dim, silent.head_dim,
                     said.max_positions, silent.max_positions, said.window, silent.window,
                     said.rope[0].theta, silent.rope[0].theta, (double)said.eps, (double)silent.eps,
                     said.tied, silent.tied, said.qkv_bias, said.o_bias, said.mlp_bias,
                     silent.qkv_bias, silent.o_bias, silent.mlp_bias, said.sw.rotary_dim,
                     silent.sw.rotary_dim, (int)said.sw.act, (int)silent.sw.act);
        fm_json_free(m);
    }
    fm_json_free(all);
    fm_buf_release(&text);
    fm_free(path);
}

TEST(wrong_values_of_families_are_refused)
{
    bad("qwen3_moe",
        "\"num_key_value_heads\":2,\"num_experts\":4,\"num_experts_per_tok\":5,"
        "\"moe_intermediate_size\":8",
        FM_EINVAL, "num_experts_per_tok");
    bad("qwen3_moe",
        "\"num_key_value_heads\":2,\"num_experts\":2000,\"num_experts_per_tok\":5,"
        "\"moe_intermediate_size\":8",
        FM_EINVAL, "num_experts");
    bad("mixtral", "\"num_key_value_heads\":2", FM_EINVAL, "num_local_experts");
    bad("glm4_moe", "\"num_key_value_heads\":2,\"n_routed_experts\":8,\"n_group\":3", FM_EINVAL,
        "n_group");
    bad("glm4_moe",
        "\"num_key_value_heads\":2,\"n_routed_experts\":16,\"n_group\":4,\"topk_group\":1",
        FM_EINVAL, "topk_group");
    bad("ernie4_5_moe", "\"num_key_value_heads\":2,\"use_bias\":true", FM_EUNSUPPORTED, "use_bias");
    bad("smollm3", "\"num_key_value_heads\":2,\"no_rope_layers\":[1]", FM_EINVAL, "no_rope_layers");
    bad("llama", "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}", FM_EINVAL, "yarn");
    bad("llama", "\"rope_scaling\":{\"type\":\"linear\"}", FM_EINVAL, "factor");
    bad("phi3", "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}", FM_EINVAL,
        "short_factor");
    bad("roberta", "\"max_position_embeddings\":2,\"pad_token_id\":1", FM_EINVAL, "pad_token_id");
    bad("stablelm", "\"num_key_value_heads\":2,\"use_parallel_residual\":true", FM_EUNSUPPORTED,
        "use_parallel_residual");
    bad("olmoe", "\"num_experts\":4,\"num_experts_per_tok\":2,\"clip_qkv\":8", FM_EUNSUPPORTED,
        "clip_qkv");
    bad("bitnet", "\"num_key_value_heads\":2,\"head_dim\":6", FM_EUNSUPPORTED, "hidden_size");
    bad("mixtral",
        "\"num_key_value_heads\":2,\"num_local_experts\":4,\"num_experts_per_tok\":2,"
        "\"quantization_config\":{\"quant_method\":\"bitnet\"}",
        FM_EUNSUPPORTED, "bitnet");
    bad("apertus", "\"num_key_value_heads\":2", FM_EUNSUPPORTED, "rotary settings");
    bad("apertus", "\"num_key_value_heads\":2,\"hidden_act\":\"silu\"", FM_EUNSUPPORTED, "xielu");
    bad("cohere", "\"use_qk_norm\":true", FM_EUNSUPPORTED, "use_qk_norm");
    bad("lfm2", "\"num_key_value_heads\":2,\"full_attn_idxs\":[2]", FM_EINVAL, "full_attn_idxs");
    bad("lfm2", "\"num_key_value_heads\":2,\"layer_types\":[\"conv\"]", FM_EINVAL, "layer_types");
    bad("lfm2", "\"num_key_value_heads\":2,\"layer_types\":[\"conv\",\"mamba\"]", FM_EUNSUPPORTED,
        "mamba");
    bad("lfm2", "\"num_key_value_heads\":2,\"conv_L_cache\":17", FM_EINVAL, "conv_L_cache");
    bad("llama", "\"layer_types\":[\"conv\",\"full_attention\"]", FM_EUNSUPPORTED, "conv");
    bad("olmo", "\"clip_qkv\":8", FM_EUNSUPPORTED, "clip_qkv");
    bad("phi", "\"qk_layernorm\":true", FM_EUNSUPPORTED, "qk_layernorm");
    bad("qwen3_5_text",
        "\"num_key_value_heads\":2,\"linear_num_key_heads\":3,\"linear_num_value_heads\":4",
        FM_EUNSUPPORTED, "heads of values");
    bad("qwen3_5_text", "\"num_key_value_heads\":2,\"linear_key_head_dim\":513", FM_EINVAL,
        "linear_key_head_dim");
    bad("qwen3_5_text", "\"num_key_value_heads\":2,\"full_attention_interval\":0", FM_EINVAL,
        "full_attention_interval");
    bad("granitemoehybrid", "\"mamba_n_heads\":4,\"num_local_experts\":1", FM_EINVAL,
        "num_experts_per_tok");
    bad("granitemoehybrid",
        "\"mamba_n_heads\":4,\"num_local_experts\":0,\"position_embedding_type\":\"alibi\"",
        FM_EUNSUPPORTED, "position_embedding_type");
    bad("bamba", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"mamba_d_head\":23", FM_EINVAL,
        "heads of 23");
    bad("bamba", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"attn_layer_indices\":[2]",
        FM_EINVAL, "attn_layer_indices");
    bad_mixer("nemotron_h", "\"hybrid_override_pattern\":\"M*X\"", FM_EUNSUPPORTED, "'X'");
    bad_mixer("nemotron_h", "\"layers_block_type\":[\"mamba\",\"conv\"]", FM_EUNSUPPORTED, "conv");
    bad_mixer("nemotron_h", "\"layers_block_type\":[]", FM_EINVAL, "layers_block_type");
    bad_mixer("nemotron_h", "\"hybrid_override_pattern\":\"ME\",\"n_shared_experts\":2",
              FM_EUNSUPPORTED, "n_shared_experts 2");
    bad_mixer("nemotron_h", "\"hybrid_override_pattern\":\"ME\",\"mlp_bias\":true", FM_EUNSUPPORTED,
              "mlp_bias");
    bad_mixer("nemotron_h", "\"mamba_hidden_act\":\"relu\"", FM_EUNSUPPORTED, "mamba_hidden_act");
    bad_mixer("nemotron_h", "\"attention_bias\":true", FM_EUNSUPPORTED, "biases");
    bad_mixer("nemotron_h", "\"sliding_window\":8", FM_EUNSUPPORTED, "sliding_window");
    bad_mixer("nemotron_h", "\"n_groups\":3", FM_EINVAL, "3 groups");
    bad("falcon_h1", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"mamba_d_ssm\":42", FM_EINVAL,
        "mamba_d_ssm is 42");
    bad("falcon_h1", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"ssm_multipliers\":[1,2]",
        FM_EINVAL, "ssm_multipliers must be 5");
    bad("falcon_h1", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"mlp_multipliers\":[1,0]",
        FM_EINVAL, "mlp_multipliers must be 2");
    bad("falcon_h1", "\"num_key_value_heads\":2,\"mamba_n_heads\":4,\"key_multiplier\":0",
        FM_EINVAL, "key_multiplier");
    bad_mixer("mamba", "\"state_size\":513", FM_EINVAL, "state_size");
    bad_mixer("mamba", "\"expand\":3,\"intermediate_size\":96", FM_EINVAL, "intermediate_size");
    bad_mixer("mamba2", "\"num_heads\":4,\"head_dim\":24,\"n_groups\":3", FM_EINVAL, "groups");
    bad_mixer("mamba2", "\"num_heads\":4,\"head_dim\":24,\"n_groups\":2,\"time_step_limit\":[1,0]",
              FM_EINVAL, "time_step_limit");
    bad_mixer("mamba2", "\"num_heads\":4,\"head_dim\":24,\"n_groups\":2,\"hidden_act\":\"gelu\"",
              FM_EUNSUPPORTED, "hidden_act");
    bad_alone("falcon", "\"alibi\":true", FM_EUNSUPPORTED, "alibi");
    bad_alone("falcon", "\"num_ln_in_parallel_attn\":2", FM_EUNSUPPORTED,
              "num_ln_in_parallel_attn");
    bad_alone("falcon", "\"new_decoder_architecture\":true,\"parallel_attn\":false",
              FM_EUNSUPPORTED, "parallel_attn");
    bad_alone("opt", "\"word_embed_proj_dim\":24", FM_EUNSUPPORTED, "word_embed_proj_dim");
    bad_alone("opt", "\"do_layer_norm_before\":false", FM_EUNSUPPORTED, "do_layer_norm_before");
    bad("deepseek_v2", "\"num_experts_per_tok\":2,\"v_head_dim\":200,\"qk_nope_head_dim\":128",
        FM_EUNSUPPORTED, "v_head_dim 200");
    bad("deepseek_v2", "\"num_experts_per_tok\":2,\"topk_method\":\"noaux_tc\"", FM_EUNSUPPORTED,
        "topk_method 'noaux_tc'");
    bad("deepseek_v2", "\"num_experts_per_tok\":2,\"norm_topk_prob\":true", FM_EUNSUPPORTED,
        "norm_topk_prob");
    bad_alone("albert", "\"intermediate_size\":64,\"num_hidden_groups\":3", FM_EINVAL,
              "num_hidden_groups");
    bad_alone("albert", "\"intermediate_size\":64,\"inner_group_num\":257", FM_EINVAL,
              "inner_group_num");
    bad("modernbert", "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0}",
        FM_EUNSUPPORTED, "not by layer type");
    bad("modernbert", "\"layer_types\":[\"full_attention\"]", FM_EINVAL, "layer_types");
    bad("modernbert", "\"norm_bias\":1", FM_EINVAL, "norm_bias");
    bad("llama4_text", "\"num_key_value_heads\":2,\"attention_chunk_size\":null", FM_EUNSUPPORTED,
        "attention_chunk_size null");
    bad("llama4_text", "\"num_key_value_heads\":2,\"attn_temperature_tuning\":\"yes\"", FM_EINVAL,
        "attn_temperature_tuning");
    bad("llama4_text", "\"num_key_value_heads\":2,\"moe_layers\":[0,-1]", FM_EINVAL, "moe_layers");
    bad("llama4_text", "\"num_key_value_heads\":2,\"no_rope_layers\":[1]", FM_EINVAL,
        "no_rope_layers");
    bad("llama4_text",
        "\"num_key_value_heads\":2,\"layer_types\":[\"chunked_attention\",\"sliding_attention\"]",
        FM_EUNSUPPORTED, "sliding_attention");
    bad("llama4_text",
        "\"num_key_value_heads\":2,\"num_local_experts\":2,\"num_experts_per_tok\":3", FM_EINVAL,
        "num_experts_per_tok");
    bad_stacks("\"feed_forward_proj\":\"gated-mish\"", FM_EUNSUPPORTED, "'mish' is not supported");
    bad_stacks("\"dense_act_fn\":\"gelu\"", FM_EUNSUPPORTED, "dense_act_fn");
    bad_stacks("\"is_gated_act\":true", FM_EUNSUPPORTED, "is_gated_act");
    bad_stacks("\"relative_attention_num_buckets\":3", FM_EINVAL, "num_buckets");
    bad_stacks("\"relative_attention_max_distance\":16", FM_EINVAL, "max_distance");
    bad_stacks("\"num_decoder_layers\":0", FM_EINVAL, "num_decoder_layers");
    bad_stacks("\"decoder_start_token_id\":100", FM_EINVAL, "decoder_start_token_id");
    bad_stacks("\"pad_token_id\":null", FM_EINVAL, "'decoder_start_token_id' is missing");
    bad_stacks("\"is_decoder\":true", FM_EUNSUPPORTED, "is_decoder");
    bad_alone("bart", "\"d_model\":48", FM_EUNSUPPORTED, "'hidden_size' is not understood");
    bad_bart("\"encoder_attention_heads\":5", FM_EINVAL, "48 elements cannot be split over 5");
    bad_bart("\"activation_function\":\"mish\"", FM_EUNSUPPORTED, "'mish' is not supported");
    bad_bart("\"forced_bos_token_id\":100", FM_EINVAL, "forced_bos_token_id");
    bad_bart("\"static_positions\":true", FM_EUNSUPPORTED, "static_positions");
    bad_stacks("\"num_key_value_heads\":2", FM_EUNSUPPORTED, "num_key_value_heads");
    bad("deepseek_v3", "\"num_key_value_heads\":2", FM_EUNSUPPORTED, "2 key/value heads");
    bad("gpt_oss",
        "\"num_key_value_heads\":2,\"num_local_experts\":4,\"num_experts_per_tok\":2,\"swiglu_"
        "limit\":6",
        FM_EUNSUPPORTED, "swiglu_limit 6");
    bad("ministral3", "\"num_key_value_heads\":2", FM_EUNSUPPORTED, "llama_4_scaling_beta");
    bad("gemma3_text",
        "\"num_key_value_heads\":2,\"rope_parameters\":{\"full_attention\":{},"
        "\"other\":{}}",
        FM_EUNSUPPORTED, "other");
}

TEST(generation_config_says_what_ends_a_text)
{
    fm_arch a;
    tk_ok(parse_with(&a, "llama", "\"eos_token_id\":2,\"pad_token_id\":-1",
                     "{\"eos_token_id\":[7,9]}"));
    assert_int_equal(a.eos_count, 2);
    assert_int_equal(a.eos[0], 7);
    assert_int_equal(a.eos[1], 9);
    a = good("llama", "\"eos_token_id\":2");
    assert_int_equal(a.eos_count, 1);
    assert_int_equal(a.eos[0], 2);
    assert_int_equal(good("llama", "").eos_count, 0);
}

TEST(parameters_are_listed_once_each)
{
    fm_arch a = good("qwen3", "\"num_key_value_heads\":2,\"attention_bias\":true,\"head_dim\":16");
    fm_param p;
    uint32_t n = 0, matrices = 0;
    for (; fm_arch_param(&a, n, &p); n++)
        matrices += p.is_matrix;
    assert_int_equal(n, 1 + 2 * (9 + 4 + 2) + 2);
    assert_int_equal(matrices, 1 + 2 * 7 + 1);
    assert_string_equal(p.name, "lm_head.weight"); /* the last one that was filled */
    assert_true(fm_arch_param(&a, 2, &p));
    assert_string_equal(p.name, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(p.shape.dim[0], 64);
    assert_int_equal(p.shape.dim[1], 48);
    assert_false(fm_arch_param(&a, UINT32_MAX, &p));
}

TEST(rotary_table_is_cos_and_sin)
{
    fm_arch a = good("llama", "\"head_dim\":4,\"max_position_embeddings\":5000");
    float *c = fm_malloc(2 * 5000 * sizeof(float)), *s = fm_malloc(2 * 5000 * sizeof(float));
    tk_fails(fm_arch_rope(&a, 0, 5001, c, s), FM_ELIMIT, "5001");
    tk_ok(fm_arch_rope(&a, 0, 5000, c, s));
    for (int p = 0; p < 5000; p++) {
        assert_true(fabsf(c[2 * p] - (float)cos(p)) <= 1e-7f);
        assert_true(fabsf(s[2 * p + 1] - (float)sin((double)((float)p * 0.01f))) <= 1e-7f);
    }
    fm_cancel(true); /* a config may claim millions of positions */
    tk_fails(fm_arch_rope(&a, 0, 5000, c, s), FM_ECANCELLED, "stopped");
    fm_cancel(false);
    fm_free(c);
    fm_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_fields_are_refused_by_name),
        cmocka_unit_test(wrong_values_are_refused_by_name),
        cmocka_unit_test(old_and_new_spellings_agree),
        cmocka_unit_test(silence_means_the_family_default),
        cmocka_unit_test(families_are_read_as_written),
        cmocka_unit_test(published_configs_are_read),
        cmocka_unit_test(uneven_layers_are_read),
        cmocka_unit_test(absent_settings_mean_what_transformers_means),
        cmocka_unit_test(wrong_values_of_families_are_refused),
        cmocka_unit_test(generation_config_says_what_ends_a_text),
        cmocka_unit_test(parameters_are_listed_once_each),
        cmocka_unit_test(rotary_table_is_cos_and_sin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
