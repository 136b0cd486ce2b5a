/* state_kit.h - tiny random models of families with recurrent layers, each with two variants. */
#ifndef FM_TESTS_MODEL_STATE_KIT_H
#define FM_TESTS_MODEL_STATE_KIT_H

#include "tests/model/variant_kit.h"

#define TOKENS 150u /* four blocks and a part of one */
#define TEXTS 3u
#define VOCAB 64u

enum { BASE, LORA, TUNED, VARIANTS };

typedef struct family {
    const char *config;  /* without the braces */
    const char *module;  /* a recurrent layer's product, which LORA adapts */
    const char *changed; /* a tensor of the upper layers, which differs in TUNED */
    uint64_t little;     /* bytes of a cache that holds a few states */
    uint32_t stride;     /* blocks between states that stay */
    const char *kind;    /* what a device without the operation is said to lack */
} family;

#define SIZES                                                                                      \
    "\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":40,\"num_hidden_layers\":4,"       \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_embeddings\":512,"         \
    "\"tie_word_embeddings\":true,"

#define PLAIN_SIZES                                                                                \
    "\"vocab_size\":64,\"hidden_size\":32,\"num_hidden_layers\":4,\"tie_word_embeddings\":true,"

#define DELTA_SIZES                                                                                \
    "\"head_dim\":8,\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,"                      \
    "\"linear_key_head_dim\":8,\"linear_value_head_dim\":8,"

static const family families[] = {
    {"\"model_type\":\"lfm2\"," SIZES
     "\"conv_L_cache\":4,\"conv_bias\":true,\"block_auto_adjust_ff_dim\":false,"
     "\"layer_types\":[\"conv\",\"full_attention\",\"conv\",\"conv\"]",
     "model.layers.0.conv.in_proj", "model.layers.3.conv.conv.weight", 90000, 1,
     "short convolutions"},
    {"\"model_type\":\"lfm2_moe\"," SIZES
     "\"layer_types\":[\"conv\",\"full_attention\",\"conv\",\"conv\"],\"num_experts\":5,"
     "\"num_experts_per_tok\":2,\"moe_intermediate_size\":12,\"num_dense_layers\":1",
     "model.layers.0.conv.in_proj", "model.layers.3.conv.conv.weight", 90000, 1,
     "short convolutions"},
    {"\"model_type\":\"mamba\"," PLAIN_SIZES "\"state_size\":6", "backbone.layers.0.mixer.x_proj",
     "backbone.layers.3.mixer.A_log", 160000, 1, "state-space layers"},
    {"\"model_type\":\"mamba2\"," PLAIN_SIZES "\"num_heads\":4,\"head_dim\":16,\"state_size\":40,"
     "\"n_groups\":2",
     "backbone.layers.0.mixer.in_proj", "backbone.layers.3.mixer.D", 900000, 2,
     "state-space layers"},
    {"\"model_type\":\"qwen3_next\"," SIZES DELTA_SIZES
     "\"num_experts\":3,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8,"
     "\"shared_expert_intermediate_size\":12",
     "model.layers.0.linear_attn.in_proj_qkvz", "model.layers.2.linear_attn.A_log", 90000, 1,
     "gated delta rules"},
    {"\"model_type\":\"qwen3_5_text\"," SIZES DELTA_SIZES "\"full_attention_interval\":2",
     "model.layers.0.linear_attn.in_proj_a", "model.layers.3.self_attn.q_proj.weight", 90000, 1,
     "gated delta rules"},
    {"\"model_type\":\"bamba\"," SIZES "\"attn_layer_indices\":[1],\"mamba_n_heads\":4,"
     "\"mamba_d_head\":\"auto\",\"mamba_d_state\":20,\"mamba_n_groups\":2",
     "model.layers.0.mamba.out_proj", "model.layers.3.mamba.dt_bias", 500000, 1,
     "state-space layers"},
    {"\"model_type\":\"granitemoehybrid\"," SIZES
     "\"layer_types\":[\"mamba\",\"attention\",\"mamba\",\"mamba\"],\"mamba_n_heads\":4,"
     "\"mamba_d_state\":20,\"mamba_n_groups\":2,\"num_local_experts\":5,"
     "\"shared_intermediate_size\":12,\"residual_multiplier\":0.5",
     "model.layers.0.mamba.out_proj", "model.layers.3.mamba.dt_bias", 500000, 1,
     "state-space layers"},
    {"\"model_type\":\"nemotron_h\"," SIZES
     "\"head_dim\":8,\"hybrid_override_pattern\":\"M-*EM\",\"mamba_num_heads\":4,"
     "\"mamba_head_dim\":10,\"ssm_state_size\":20,\"n_groups\":2,\"n_routed_experts\":5,"
     "\"moe_intermediate_size\":12,\"moe_latent_size\":20,"
     "\"moe_shared_expert_intermediate_size\":12",
     "model.layers.0.mixer.out_proj", "model.layers.3.mixer.fc1_latent_proj.weight", 250000, 1,
     "state-space layers"},
    {"\"model_type\":\"falcon_h1\"," SIZES
     "\"mamba_n_heads\":4,\"mamba_d_ssm\":40,\"mamba_d_state\":20,\"mamba_n_groups\":2,"
     "\"mamba_rms_norm\":true,\"ssm_in_multiplier\":1.25,\"key_multiplier\":0.5,"
     "\"ssm_multipliers\":[0.6,1.2,0.7,1.5,0.8],\"attention_in_multiplier\":0.9",
     "model.layers.0.mamba.in_proj", "model.layers.3.mamba.dt_bias", 500000, 1,
     "state-space layers"},
};

typedef struct world {
    ik_mem mem;
    const family *of;
    fm_tree *tree[VARIANTS];
    int32_t text[TEXTS][TOKENS]; /* they begin alike for a while */
    const char *mode;
    float *alone[VARIANTS][TEXTS]; /* [TOKENS, VOCAB] in that mode */
} world;

/* ==== models ==== */

static inline void put_param(world *w, fm_tree *t, const fm_param *p, uint64_t seed)
{
    uint64_t n = 0;
    fm_digest id;
    fm_buf path;
    tk_ok(fm_shape_elems(&n, &p->shape));
    float *v = vk_noise(seed, n, p->shape.rank == 1 && !strstr(p->name, "bias") ? 1.0 : 0.0,
                        p->is_matrix ? 0.25 : 0.4);
    tk_ok(fm_tensor_id(&id, FM_F32, &p->shape, fm_span_of(v, n * sizeof(float)), NULL));
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", p->name));
    tk_ok(fm_tree_put_tensor(t, fm_buf_cstr(&path), p->name, FM_F32, &p->shape, &id));
    fm_buf_release(&path);
    w->mem.t[w->mem.count].id = id;
    w->mem.t[w->mem.count].len = n * sizeof(float);
    w->mem.t[w->mem.count++].bytes = v;
}

static inline void put_lora(world *w, fm_tree *t, const char *module)
{
    fm_param p;
    fm_arch a;
    char name[200];
    const char *config = "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}";
    (void)snprintf(name, sizeof(name), "%s.weight", module);
    tk_ok(fm_arch_of_tree(&a, t, NULL, "it"));
    assert_true(fm_arch_param_named(&a, name, &p));
    tk_ok(fm_tree_put_file(t, "adapters/0-lora/adapter_config.json", fm_span_str(config)));
    for (uint32_t b = 0; b < 2; b++) {
        (void)snprintf(name, sizeof(name), "base_model.model.%s.lora_%c.weight", module,
                       b ? 'B' : 'A');
        vk_put(&w->mem, t, "adapters/0-lora/tensors", name, 900 + b, 2, b ? p.shape.dim[0] : 3,
               b ? 3 : p.shape.dim[1], 0.0, 0.3);
    }
}

static inline void make(world *w, const family *of)
{
    char text[2048];
    fm_arch a;
    fm_param p;
    memset(w, 0, sizeof(*w));
    w->of = of;
    (void)snprintf(text, sizeof(text), "{\"format\":1,\"config\":{%s}}", of->config);
    for (int v = 0; v < VARIANTS; v++) {
        tk_ok(fm_tree_new(&w->tree[v]));
        tk_ok(fm_tree_put_file(w->tree[v], "model.json", fm_span_str(text)));
        tk_ok(fm_arch_of_tree(&a, w->tree[v], NULL, "it"));
        for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++)
            put_param(w, w->tree[v], &p,
                      100 + i + (v == TUNED && strcmp(p.name, of->changed) == 0 ? 1000 : 0));
    }
    put_lora(w, w->tree[LORA], of->module);
    for (uint32_t t = 0; t < TEXTS; t++)
        for (uint32_t i = 0; i < TOKENS; i++)
            w->text[t][i] = (int32_t)fm_rng_below(9, i < 50 * t + 30 ? 0 : t + 1, i, VOCAB);
}

static inline void drop(world *w)
{
    for (int v = 0; v < VARIANTS; v++)
        fm_tree_free(w->tree[v]);
    ik_mem_free(&w->mem);
}

static inline fm_engine *engine_of(const world *w, unsigned threads, uint32_t rows, bool cache,
                                   uint64_t kv)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = threads;
    o.mode = w->mode;
    o.max_rows = rows;
    o.prefix_cache = cache;
    if (kv)
        o.kv_bytes_max = kv;
    tk_ok(fm_engine_new(&e, &o));
    return e;
}

/* Logits of each token of a text that is computed row by row. */
static inline float *alone(world *w, int v, const int32_t *ids)
{
    fm_engine *e = engine_of(w, 1, 4, false, 0);
    fm_model *m = vk_load(e, &w->mem, w->tree[v]);
    float *out = fm_malloc(TOKENS * VOCAB * sizeof(float));
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t i = 0; i < TOKENS; i++) {
        fm_row row = {s, ids[i], true};
        tk_ok(fm_engine_step(e, &row, 1));
        memcpy(out + (size_t)i * VOCAB, fm_engine_logits(e, 0), VOCAB * sizeof(float));
    }
    fm_seq_close(s);
    fm_model_close(m);
    fm_engine_free(e);
    return out;
}

#endif
