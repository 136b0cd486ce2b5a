/* variant_kit.h - a small Llama with biases, made of noise, and children of every kind made of it:
 * changed parameters and settings, LoRA, rsLoRA, DoRA, IA3, prefix, prompt, modules_to_save. */
#ifndef FM_TESTS_MODEL_VARIANT_KIT_H
#define FM_TESTS_MODEL_VARIANT_KIT_H

#include <math.h>

#include "store/base/math/rng.h"
#include "tests/model/infer_kit.h"

#define VK_VOCAB 96u
#define VK_LAYERS 4u
#define VK_HIDDEN 32u
#define VK_INTER 48u
#define VK_KV 16u /* 2 heads of 8 */

static inline float *vk_noise(uint64_t seed, size_t n, double mean, double scale)
{
    float *x = fm_malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(mean + scale * fm_rng_normal(seed, 1, i));
    return x;
}

static inline void vk_put(ik_mem *mem, fm_tree *t, const char *at, const char *name, uint64_t seed,
                          uint32_t rank, uint64_t rows, uint64_t cols, double mean, double scale)
{
    float *x = vk_noise(seed, (size_t)(rows * (rank == 2 ? cols : 1)), mean, scale);
    ik_put(mem, t, at, name, x, rank, rows, cols);
    fm_free(x);
}

static inline void vk_config(fm_tree *t, const char *eps, const char *theta)
{
    char *text = fm_asprintf(
        "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":%u,\"hidden_size\":%u,"
        "\"intermediate_size\":%u,\"num_hidden_layers\":%u,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_embeddings\":512,"
        "\"attention_bias\":true,\"rms_norm_eps\":%s,\"rope_theta\":%s,"
        "\"tie_word_embeddings\":false}}",
        VK_VOCAB, VK_HIDDEN, VK_INTER, VK_LAYERS, eps, theta);
    tk_ok(fm_tree_put_file(t, "model.json", fm_span_str(text)));
    fm_free(text);
}

static inline void vk_base(ik_mem *mem, fm_tree **t)
{
    fm_arch a;
    fm_param p;
    tk_ok(fm_tree_new(t));
    vk_config(*t, "1e-6", "10000.0");
    tk_ok(fm_arch_of_tree(&a, *t, NULL, "base"));
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++) {
        bool matrix = p.shape.rank == 2, bias = strstr(p.name, ".bias") != NULL;
        vk_put(mem, *t, "tensors", p.name, 100 + i, p.shape.rank, p.shape.dim[0],
               matrix ? p.shape.dim[1] : 1, matrix || bias ? 0.0 : 1.0,
               matrix ? 1.0 / sqrt((double)p.shape.dim[1]) : 0.2);
    }
}

/* Another value for one parameter of the tree. */
static inline void vk_change(ik_mem *mem, fm_tree *t, const char *name, uint64_t seed)
{
    fm_arch a;
    fm_param p;
    uint32_t i = 0;
    tk_ok(fm_arch_of_tree(&a, t, NULL, "base"));
    while (fm_arch_param(&a, i, &p) && strcmp(p.name, name) != 0)
        i++;
    assert_string_equal(p.name, name);
    bool matrix = p.shape.rank == 2;
    vk_put(mem, t, "tensors", name, seed, p.shape.rank, p.shape.dim[0], matrix ? p.shape.dim[1] : 1,
           matrix ? 0.0 : 1.0, matrix ? 1.0 / sqrt((double)p.shape.dim[1]) : 0.2);
}

/* ==== adapters ==== */

typedef struct vk_module {
    const char *name;
    uint32_t out, in;
} vk_module;

static const vk_module vk_modules[] = {
    {"self_attn.q_proj", VK_HIDDEN, VK_HIDDEN}, {"self_attn.k_proj", VK_KV, VK_HIDDEN},
    {"self_attn.v_proj", VK_KV, VK_HIDDEN},     {"self_attn.o_proj", VK_HIDDEN, VK_HIDDEN},
    {"mlp.gate_proj", VK_INTER, VK_HIDDEN},     {"mlp.up_proj", VK_INTER, VK_HIDDEN},
    {"mlp.down_proj", VK_HIDDEN, VK_INTER}};

/* What adapter 0 is. modules: a bit for each of vk_modules. */
typedef struct vk_adapter {
    const char *kind; /* "lora", "dora" */
    uint32_t modules, from_layer, to_layer;
    uint32_t r, alpha;
    bool rslora, saves_head;
    uint64_t seed;
} vk_adapter;

static inline void vk_lora(ik_mem *mem, fm_tree *t, const vk_adapter *a)
{
    char at[64], config[64], name[160], text[512];
    bool dora = strcmp(a->kind, "dora") == 0;
    (void)snprintf(at, sizeof(at), "adapters/0-%s/tensors", a->kind);
    (void)snprintf(config, sizeof(config), "adapters/0-%s/adapter_config.json", a->kind);
    (void)snprintf(text, sizeof(text),
                   "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":%u,\"use_rslora\":%s,"
                   "\"use_dora\":%s}",
                   a->r, a->alpha, a->rslora ? "true" : "false", dora ? "true" : "false");
    tk_ok(fm_tree_put_file(t, config, fm_span_str(text)));
    for (uint32_t l = a->from_layer; l < a->to_layer; l++)
        for (uint32_t i = 0; i < FM_ARRAY_LEN(vk_modules); i++) {
            const vk_module *m = &vk_modules[i];
            uint64_t seed = a->seed * 1000 + l * 50 + i * 3;
            if (!(a->modules >> i & 1))
                continue;
            (void)snprintf(name, sizeof(name), "base_model.model.model.layers.%u.%s.lora_A.weight",
                           l, m->name);
            vk_put(mem, t, at, name, seed, 2, a->r, m->in, 0.0, 0.2);
            (void)snprintf(name, sizeof(name), "base_model.model.model.layers.%u.%s.lora_B.weight",
                           l, m->name);
            vk_put(mem, t, at, name, seed + 1, 2, m->out, a->r, 0.0, 0.2);
            (void)snprintf(name, sizeof(name),
                           "base_model.model.model.layers.%u.%s.lora_magnitude_vector", l, m->name);
            if (dora)
                vk_put(mem, t, at, name, seed + 2, 1, m->out, 1, 1.0, 0.2);
        }
    if (a->saves_head)
        vk_put(mem, t, at, "base_model.model.lm_head.weight", a->seed, 2, VK_VOCAB, VK_HIDDEN, 0.0,
               0.2);
}

static inline void vk_ia3(ik_mem *mem, fm_tree *t, uint32_t from_layer, uint64_t seed)
{
    char name[160];
    tk_ok(fm_tree_put_file(t, "adapters/0-ia3/adapter_config.json",
                           fm_span_str("{\"peft_type\":\"IA3\",\"feedforward_modules\":"
                                       "[\"down_proj\"]}")));
    for (uint32_t l = from_layer; l < VK_LAYERS; l++) {
        const char *at = "adapters/0-ia3/tensors";
        (void)snprintf(name, sizeof(name), "base_model.model.model.layers.%u.mlp.down_proj.ia3_l",
                       l);
        vk_put(mem, t, at, name, seed * 100 + l, 2, 1, VK_INTER, 1.0, 0.3);
        (void)snprintf(name, sizeof(name),
                       "base_model.model.model.layers.%u.self_attn.v_proj.ia3_l", l);
        vk_put(mem, t, at, name, seed * 100 + 50 + l, 2, VK_KV, 1, 1.0, 0.3);
    }
}

static inline void vk_virtual(ik_mem *mem, fm_tree *t, bool prefix, uint32_t len, uint64_t seed)
{
    char text[256];
    const char *kind = prefix ? "prefix" : "prompt";
    char at[64], config[64];
    (void)snprintf(at, sizeof(at), "adapters/0-%s/tensors", kind);
    (void)snprintf(config, sizeof(config), "adapters/0-%s/adapter_config.json", kind);
    (void)snprintf(text, sizeof(text), "{\"peft_type\":\"%s\",\"num_virtual_tokens\":%u}",
                   prefix ? "PREFIX_TUNING" : "PROMPT_TUNING", len);
    tk_ok(fm_tree_put_file(t, config, fm_span_str(text)));
    vk_put(mem, t, at, "prompt_embeddings", seed, 2, len,
           prefix ? 2 * VK_LAYERS * VK_KV : VK_HIDDEN, 0.0, 0.4);
}

static inline fm_model *vk_load(fm_engine *e, ik_mem *mem, const fm_tree *t)
{
    fm_provider p = ik_provider(mem);
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, e, t, &p, "variant"));
    return m;
}

/* Logits [n, vocab] of ids by the model alone, in an engine that keeps nothing. */
static inline float *vk_alone(ik_mem *mem, const fm_tree *t, const int32_t *ids, uint32_t n,
                              const char *mode)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = 1;
    o.mode = mode;
    o.prefix_cache = false;
    tk_ok(fm_engine_new(&e, &o));
    fm_model *m = vk_load(e, mem, t);
    float *out = fm_malloc((size_t)n * VK_VOCAB * sizeof(float));
    ik_logits(m, ids, n, n, out);
    fm_model_close(m);
    fm_engine_free(e);
    return out;
}

#endif
