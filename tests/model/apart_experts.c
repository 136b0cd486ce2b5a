/* apart_experts.c - models with experts on a device that runs late: steps are queued ahead and come
 * again though nobody knows who goes where; children that differ in experts, by every kind of
 * adapter, beside their parent give the CPU's answers. Adapters on experts against the weights that
 * they stand for. */
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"

#ifndef FM_ON_CARD /* tests/cuda/moe.c: on a GPU beside the CPU */
#include "tests/apart/apart.h"
#endif

#define EXPERTS 6u
#define LAYERS 3u
#define INTER 20u
#define MODELS 6u
#define TOKENS 60u

static const char config[] =
    "{\"format\":1,\"config\":{\"model_type\":\"qwen2_moe\",\"vocab_size\":96,\"hidden_size\":32,"
    "\"intermediate_size\":40,\"moe_intermediate_size\":20,\"shared_expert_intermediate_size\":24,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"num_experts\":6,\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,"
    "\"mlp_only_layers\":[],\"qkv_bias\":true,\"max_position_embeddings\":512,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":false}}";

static const char *const linears[] = {"gate_proj", "up_proj", "down_proj"};

static uint32_t out_of(uint32_t i)
{
    return i == 2 ? VK_HIDDEN : INTER;
}
static uint32_t in_of(uint32_t i)
{
    return i == 2 ? INTER : VK_HIDDEN;
}

/* An adapter on all linears of all experts. */
static void on_experts(ik_mem *mem, fm_tree *t, const char *kind, uint64_t seed)
{
    char at[64], name[160], text[200];
    bool ia3 = strcmp(kind, "ia3") == 0, dora = strcmp(kind, "dora") == 0;
    (void)snprintf(at, sizeof at, "adapters/0-%s/adapter_config.json", kind);
    (void)snprintf(text, sizeof text,
                   ia3 ? "{\"peft_type\":\"IA3\",\"feedforward_modules\":[\"down_proj\"]}"
                       : "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,\"use_dora\":%s}",
                   dora ? "true" : "false");
    tk_ok(fm_tree_put_file(t, at, fm_span_str(text)));
    (void)snprintf(at, sizeof at, "adapters/0-%s/tensors", kind);
    for (uint32_t i = 0; i < LAYERS * EXPERTS * 3; i++) {
        uint32_t w = i % 3, n = out_of(w), k = in_of(w);
        int len = snprintf(name, sizeof name, "base_model.model.model.layers.%u.mlp.experts.%u.%s",
                           i / 3 / EXPERTS, i / 3 % EXPERTS, linears[w]);
        char *end = name + len;
        size_t left = sizeof name - (size_t)len;
        seed += 3;
        if (ia3 && w == 1)
            continue;
        if (ia3) { /* down scales what it reads, gate what it gives */
            (void)snprintf(end, left, ".ia3_l");
            vk_put(mem, t, at, name, seed, 2, w == 2 ? 1 : n, w == 2 ? k : 1, 1.0, 0.3);
            continue;
        }
        (void)snprintf(end, left, ".lora_A.weight");
        vk_put(mem, t, at, name, seed, 2, 3, k, 0.0, 0.2);
        (void)snprintf(end, left, ".lora_B.weight");
        vk_put(mem, t, at, name, seed + 1, 2, n, 3, 0.0, 0.2);
        (void)snprintf(end, left, ".lora_magnitude_vector");
        if (dora)
            vk_put(mem, t, at, name, seed + 2, 1, n, 1, 1.0, 0.2);
    }
}

typedef struct world {
    ik_mem mem;
    fm_tree *tree[MODELS]; /* base, LoRA, one expert changed, another one changed, DoRA, IA3 */
    fm_provider p;
} world;

static world w;

static void base(void)
{
    fm_arch a;
    fm_param p;
    tk_ok(fm_tree_new(&w.tree[0]));
    tk_ok(fm_tree_put_file(w.tree[0], "model.json", fm_span_str(config)));
    tk_ok(fm_arch_of_tree(&a, w.tree[0], NULL, "base"));
    assert_int_equal(a.sw.experts, EXPERTS);
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++) {
        bool matrix = p.shape.rank == 2, bias = strstr(p.name, ".bias") != NULL;
        vk_put(&w.mem, w.tree[0], "tensors", p.name, 100 + i, p.shape.rank, p.shape.dim[0],
               matrix ? p.shape.dim[1] : 1, matrix || bias ? 0.0 : 1.0,
               matrix ? 1.5 / sqrt((double)p.shape.dim[1]) : 0.2);
    }
}

static int open_world(void **state)
{
    (void)state;
    base();
    for (size_t i = 1; i < MODELS; i++)
        tk_ok(fm_tree_copy(&w.tree[i], w.tree[0]));
    on_experts(&w.mem, w.tree[1], "lora", 3);
    vk_put(&w.mem, w.tree[2], "tensors", "model.layers.1.mlp.experts.4.up_proj.weight", 77, 2,
           INTER, VK_HIDDEN, 0.0, 0.3);
    vk_put(&w.mem, w.tree[3], "tensors", "model.layers.0.mlp.experts.1.down_proj.weight", 78, 2,
           VK_HIDDEN, INTER, 0.0, 0.3);
    on_experts(&w.mem, w.tree[4], "dora", 5);
    on_experts(&w.mem, w.tree[5], "ia3", 7);
    w.p = ik_provider(&w.mem);
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        fm_tree_free(w.tree[i]);
    ik_mem_free(&w.mem);
    return 0;
}

/* ==== answers ==== */

typedef struct answer {
    int32_t token[TOKENS];
    uint32_t count;
} answer;

static bool take(void *ctx, const fm_gen_event *ev)
{
    answer *a = ctx;
    assert_null(ev->error);
    if (ev->token >= 0)
        a->token[a->count++] = ev->token;
    return true;
}

typedef struct counts {
    uint64_t replayed, downloaded, waits_ahead;
} counts;

#ifdef FM_ON_CARD
static const char *device(bool own)
{
    return own ? "cuda" : "cpu";
}
static counts counts_of(fm_engine *e)
{
    return (counts){.replayed = e->replayed, .waits_ahead = TOKENS};
}
#else
static const char *device(bool own)
{
    apart_use(own ? APART_LATE : APART_OFF);
    return NULL;
}
static counts counts_of(fm_engine *e)
{
    apart_stats s = apart_stats_of(fm_engine_backend(e));
    assert_int_equal(s.replayed, e->replayed);
    return (counts){s.replayed, s.download_bytes, s.waits_ahead};
}
#endif

typedef struct lot {
    const char *mode;
    uint32_t tokens, only; /* only: this model's stream, MODELS: all */
} lot;

/* A stream of each model, prompts of several lengths; out: while they ran, NULL: on the CPU. */
static void answers(const lot *l, answer *a, counts *out)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e;
    fm_model *m[MODELS];
    fm_scheduler *s;
    bool busy = true;
    o.threads = 2;
    o.max_rows = 40;
    o.mode = l->mode;
    memset(a, 0, MODELS * sizeof *a);
    o.device = device(out != NULL);
    tk_ok(fm_engine_new(&e, &o));
    tk_ok(fm_scheduler_new(&s, e, MODELS));
    for (uint32_t i = 0; i < MODELS; i++) {
        int32_t prompt[30];
        uint32_t len = 4 + 5 * i;
        for (uint32_t t = 0; t < len; t++)
            prompt[t] = (int32_t)(fm_rng_u64(i % 2, 3, t) % 96);
        tk_ok(fm_model_load(&m[i], e, w.tree[i], &w.p, "it"));
        fm_gen_request q = {.model = m[i],
                            .prompt = prompt,
                            .prompt_len = len,
                            .max_new = l->tokens,
                            .ignore_eos = true,
                            .on_event = take,
                            .ctx = &a[i]};
        fm_sample_defaults(&q.sampling);
        q.sampling.temperature = i % 2 ? 0.8f : 0.0f;
        q.sampling.seed = i;
        if (l->only == MODELS || l->only == i)
            tk_ok(fm_scheduler_add(s, &q, NULL));
    }
    uint64_t loaded = out ? counts_of(e).downloaded : 0; /* DoRA's norms */
    while (busy)
        tk_ok(fm_scheduler_step(s, &busy));
    if (out) {
        *out = counts_of(e);
        out->downloaded -= loaded;
    }
    fm_scheduler_free(s);
    for (uint32_t i = 0; i < MODELS; i++)
        fm_model_close(m[i]);
    fm_engine_free(e);
}

TEST(steps_with_experts_are_ahead_and_come_again)
{
    answer want[MODELS], have[MODELS];
    counts run;
    const lot exact = {"exact", TOKENS, MODELS};
    answers(&exact, want, NULL);
    answers(&exact, have, &run);
    for (uint32_t i = 0; i < MODELS; i++) {
        assert_int_equal(want[i].count, TOKENS);
        assert_memory_equal(have[i].token, want[i].token, sizeof have[i].token);
        for (uint32_t k = 0; k < i; k++) /* or the test says little */
            assert_memory_not_equal(want[i].token, want[k].token, sizeof have[i].token);
    }
    assert_int_equal(run.downloaded, 0);
    assert_true(run.waits_ahead >= TOKENS - 2);
    assert_true(run.replayed >= TOKENS / 2);
}

/* Mode fast rounds, but a row's bits are its own: whoever is beside it, however many go to its
 * expert, and whatever kernel their number chooses. */
TEST(in_mode_fast_a_stream_is_itself_beside_others)
{
    answer all[MODELS], one[MODELS];
    counts run;
    answers(&(lot){"fast", 12, MODELS}, all, &run);
    for (uint32_t i = 0; i < MODELS; i++) {
        answers(&(lot){"fast", 12, i}, one, &run);
        assert_int_equal(all[i].count, 12);
        assert_memory_equal(one[i].token, all[i].token, sizeof one[i].token);
    }
}

/* ==== adapters against whole weights ==== */

static float *logits_of(const fm_tree *t, const int32_t *ids, uint32_t n)
{
    return vk_alone(&w.mem, t, ids, n, "exact");
}

/* The tree whose experts are W * what the adapter does; seeds as on_experts has them. */
static fm_tree *merged(const char *kind, uint64_t seed)
{
    fm_tree *t;
    fm_arch a;
    fm_param p;
    char name[128];
    bool ia3 = strcmp(kind, "ia3") == 0, dora = strcmp(kind, "dora") == 0;
    tk_ok(fm_tree_copy(&t, w.tree[0]));
    tk_ok(fm_arch_of_tree(&a, w.tree[0], NULL, "base"));
    for (uint32_t i = 0; i < LAYERS * EXPERTS * 3; i++) {
        uint32_t which = i % 3, n = out_of(which), k = in_of(which), number = 0;
        (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight",
                       i / 3 / EXPERTS, i / 3 % EXPERTS, linears[which]);
        seed += 3;
        while (fm_arch_param(&a, number, &p) && strcmp(p.name, name) != 0)
            number++;
        float *x = vk_noise(100 + number, (size_t)n * k, 0.0, 1.5 / sqrt((double)k));
        if (ia3 && which != 1) {
            float *by = vk_noise(seed, which == 2 ? k : n, 1.0, 0.3);
            for (uint32_t c = 0; c < n * k; c++)
                x[c] *= by[which == 2 ? c % k : c / k];
            fm_free(by);
        } else if (!ia3) {
            float *la = vk_noise(seed, 3 * (size_t)k, 0.0, 0.2),
                  *lb = vk_noise(seed + 1, 3 * (size_t)n, 0.0, 0.2);
            float *size = vk_noise(seed + 2, n, 1.0, 0.2);
            for (uint32_t r = 0; r < n; r++) {
                double norm = 0;
                for (uint32_t c = 0; c < k; c++) {
                    for (uint32_t j = 0; j < 3; j++)
                        x[r * k + c] += 2.0f * lb[r * 3 + j] * la[j * k + c];
                    norm += (double)x[r * k + c] * (double)x[r * k + c];
                }
                for (uint32_t c = 0; dora && c < k; c++)
                    x[r * k + c] = (float)((double)x[r * k + c] * (double)size[r] / sqrt(norm));
            }
            fm_free(la);
            fm_free(lb);
            fm_free(size);
        }
        ik_put(&w.mem, t, "tensors", name, x, 2, n, k);
        fm_free(x);
    }
    return t;
}

TEST(adapters_on_experts_are_the_weights_they_stand_for)
{
    static const struct {
        const char *kind;
        uint64_t seed;
        size_t tree;
    } adapter[] = {{"lora", 3, 1}, {"dora", 5, 4}, {"ia3", 7, 5}};
    int32_t ids[20];
    (void)device(false);
    for (int i = 0; i < 20; i++)
        ids[i] = (i * 37 + 5) % 96;
    float *plain = logits_of(w.tree[0], ids, 20);
    for (size_t i = 0; i < FM_ARRAY_LEN(adapter); i++) {
        fm_tree *t = merged(adapter[i].kind, adapter[i].seed);
        float *want = logits_of(t, ids, 20), *have = logits_of(w.tree[adapter[i].tree], ids, 20);
        tk_assert_le(tk_rel_norm(have, want, 20 * 96), 2e-5, adapter[i].kind);
        assert_true(tk_rel_norm(plain, want, 20 * 96) > 0.01);
        fm_free(want);
        fm_free(have);
        fm_tree_free(t);
    }
    fm_free(plain);
}

int main(void)
{
#ifdef FM_ON_CARD
    uint32_t cards;
    if (fm_device_count(&cards) == FM_EUNSUPPORTED)
        return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_on_experts_are_the_weights_they_stand_for),
        cmocka_unit_test(steps_with_experts_are_ahead_and_come_again),
        cmocka_unit_test(in_mode_fast_a_stream_is_itself_beside_others),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
