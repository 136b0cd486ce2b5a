/* ctest: apart */
/* train_peft.c - every adaptation method against PEFT: gradients, AdamW steps, configs, keys. */
#include "tests/model/train_kit.h"
#include "tests/kit/train_kit.h"

/* ---- cases: an adapter as PEFT wrote it, and the settings that give its like ---- */
typedef struct kind {
    const char *folder; /* of the reference data, or of the checkout */
    const char *base;
    uint32_t steps;
    const char *settings;

} kind;

#define SHARED "arch/llama/peft/"
#define GOLDEN "tests/model/golden/train/"
#define MORE "tests/model/golden/peft/"
static const kind kinds[] = {
    {SHARED "lora", "llama", 12, "r=4 alpha=8"},
    {SHARED "lora-qv-pattern", "llama", 12,
     "r=4 alpha=8 targets=q_proj,v_proj rank_pattern=layers.1.self_attn.q_proj=2 "
     "alpha_pattern=layers.1.self_attn.q_proj=6"},
    {SHARED "rslora", "llama", 12, "r=4 alpha=8 rslora=true"},
    {SHARED "dora", "llama", 12, "r=4 alpha=8 dora=true"},
    {SHARED "lora-modules-to-save", "llama", 12,
     "r=4 alpha=8 targets=q_proj modules_to_save=lm_head"},
    {SHARED "ia3", "llama", 12, "method=ia3"},
    {SHARED "prefix", "llama", 12, "method=prefix virtual_tokens=5"},
    {SHARED "prompt", "llama", 12, "method=prompt virtual_tokens=5"},
    {GOLDEN "lora-embedding", "llama", 4, "r=2 alpha=4 targets=q_proj,embed_tokens"},
    {GOLDEN "lora-embedding-tied", "qwen2", 4, "r=2 alpha=4 targets=o_proj,embed_tokens"},
    {GOLDEN "lora-head", "llama", 4, "r=2 alpha=4 targets=v_proj,lm_head"},
    {GOLDEN "lora-bias-all", "qwen2", 4, "r=2 alpha=4 targets=q_proj,o_proj bias=all"},
    {GOLDEN "lora-bias-lora_only", "qwen2", 4, "r=2 alpha=4 targets=q_proj,o_proj bias=lora_only"},
    {GOLDEN "lora-layers", "llama", 4, "r=2 alpha=4 targets=q_proj,up_proj layers=1"},
    {GOLDEN "lora-plus", "llama", 4, "r=2 alpha=4 targets=q_proj,down_proj loraplus=16"},
    {GOLDEN "lora-gpt2", "gpt2", 4, "r=2 alpha=4 targets=c_attn,c_fc,c_proj"},
    {GOLDEN "lora-gpt2-bias-all", "gpt2", 4, "r=2 alpha=4 targets=c_attn bias=all"},
    {GOLDEN "dora-gpt2", "gpt2", 4, "r=2 alpha=4 targets=c_attn dora=true"},
    {GOLDEN "ia3-gpt2", "gpt2", 4, "method=ia3"},
    {GOLDEN "prefix-gpt2", "gpt2", 4, "method=prefix virtual_tokens=3"},
    {GOLDEN "lora-gemma3", "gemma3", 4, "r=2 alpha=4 targets=q_proj,o_proj,up_proj"},
    {GOLDEN "lora-experts", "mixtral", 4, "r=2 alpha=4 targets=q_proj,w1,w2,w3"},
    {MORE "save-norm", "llama", 4,
     "r=3 alpha=6 targets=v_proj modules_to_save=model.norm,embed_tokens"},
    {MORE "dora-bias", "qwen2", 4, "r=3 alpha=6 targets=q_proj,v_proj,down_proj dora=true"},
    {MORE "exclude", "llama", 4,
     "r=3 alpha=6 targets=q_proj,down_proj exclude=layers.0.mlp.down_proj"},
    {MORE "ia3-usual", "llama", 4, "method=ia3"},
    {MORE "ln-tuning", "llama", 4, "method=ln_tuning"},
    {MORE "loha", "llama", 4,
     "method=loha r=2 alpha=3 targets=q_proj,down_proj rank_pattern=down_proj=3 "
     "alpha_pattern=q_proj=5"},
    {MORE "lokr", "llama", 4, "method=lokr r=2 alpha=3 targets=k_proj,up_proj decompose_factor=4"},
    {MORE "lokr-both", "llama", 4,
     "method=lokr r=2 alpha=4 targets=q_proj,down_proj decompose_both=true"},
    {MORE "oft", "qwen2", 4, "method=oft oft_block_size=4 targets=q_proj,down_proj"},
    {MORE "oft-shared", "llama", 4,
     "method=oft r=4 oft_block_size=0 block_share=true num_cayley_neumann_terms=7 "
     "targets=v_proj,gate_proj"},
    {MORE "oft-coft", "llama", 4,
     "method=oft r=8 oft_block_size=0 coft=true coft_eps=0.3 use_cayley_neumann=false "
     "targets=q_proj"},
    {MORE "boft", "qwen2", 4, "method=boft boft_block_size=8 targets=q_proj,down_proj"},
    {MORE "boft-factors", "llama", 4,
     "method=boft boft_block_size=4 boft_n_butterfly_factor=3 targets=q_proj,down_proj"},
    {MORE "hra", "llama", 4, "method=hra r=3 targets=q_proj,down_proj"},
    {MORE "hra-gs", "llama", 4, "method=hra r=4 apply_GS=true targets=k_proj"},
    {MORE "miss", "llama", 4, "method=miss r=3 targets=v_proj,up_proj"},
    {MORE "miss-bat", "llama", 4, "method=miss r=4 init_weights=bat targets=q_proj"},
    {MORE "miss-mini", "llama", 4,
     "method=miss r=3 mini_r=4 init_weights=mini targets=q_proj,down_proj"},
    {MORE "shira", "llama", 4, "method=shira r=1 targets=k_proj,down_proj"},
    {MORE "fourierft", "llama", 4,
     "method=fourierft n_frequency=40 scaling=90 random_loc_seed=3 targets=q_proj,down_proj"},
    {MORE "fourierft-gpt2", "gpt2", 4, "method=fourierft n_frequency=40 targets=c_attn"},
    {MORE "randlora", "llama", 4, "method=randlora r=5 alpha=20 targets=k_proj,up_proj,down_proj"},
    {MORE "vera", "llama", 4, "method=vera r=6 projection_prng_key=4 targets=q_proj,down_proj"},
    {MORE "vera-gpt2", "gpt2", 4, "method=vera r=3 targets=c_attn,c_fc"},
    {MORE "adalora", "llama", 4, "method=adalora init_r=3 alpha=5 targets=q_proj,down_proj"},
};

typedef struct peft { /* a base with an adapter */
    fm_source *base, *adapter;
    fm_tree *both;
    ik_mem mem;
    ik_ref ref;
    uint32_t width; /* tokens of each of the two sequences */
    int32_t *ids, *labels;
} peft;

static char *folder_of(const char *folder)
{
    return strncmp(folder, "tests/", 6) == 0 ? tk_source(folder) : tk_shared(folder);
}

static void peft_open(peft *t, const kind *k)
{
    char base[64];
    char *folder = folder_of(k->folder);

    assert_non_null(folder);
    memset(t, 0, sizeof(*t));
    char *file = fm_path_join(folder, "ref.safetensors");
    tk_ok(fm_source_open(&t->ref.src, file));
    tk_ok(fm_source_open(&t->adapter, folder));
    (void)snprintf(base, sizeof(base), "arch/%s", k->base);
    t->base = ik_source(base);
    tk_ok(fm_adapter_apply(&t->both, fm_source_tree(t->base), fm_source_tree(t->adapter), k->base,
                           NULL));
    t->mem.behind[0] = fm_source_provider(t->base);
    t->mem.behind[1] = fm_source_provider(t->adapter);
    t->mem.behind_count = 2;
    size_t n = 0;
    t->ids = ik_ref_get(&t->ref, "input_ids", &n);
    t->width = (uint32_t)n / 2;
    t->labels = ik_ref_get(&t->ref, "labels", NULL);
    fm_free(file);
    fm_free(folder);
}

static void peft_close(peft *t)
{
    fm_tree_free(t->both);
    fm_source_close(t->adapter);
    fm_source_close(t->base);
    fm_source_close(t->ref.src);
    fm_free(t->ids);
    fm_free(t->labels);
    ik_mem_free(&t->mem);
}

static void set_all(fm_train_config *c, const char *settings)
{
    char text[512];
    char *rest = NULL;
    fm_method method = FM_METHOD_LORA;
    static const struct {
        const char *word;
        fm_method method;
    } others[] = {{"method=ia3", FM_METHOD_IA3},         {"method=ln_tuning", FM_METHOD_NORMS},
                  {"method=loha ", FM_METHOD_LOHA},      {"method=lokr ", FM_METHOD_LOKR},
                  {"method=oft ", FM_METHOD_OFT},        {"method=boft ", FM_METHOD_BOFT},
                  {"method=hra ", FM_METHOD_HRA},        {"method=miss ", FM_METHOD_MISS},
                  {"method=shira ", FM_METHOD_SHIRA},    {"method=fourierft ", FM_METHOD_FOURIERFT},
                  {"method=vera ", FM_METHOD_VERA},      {"method=randlora ", FM_METHOD_RANDLORA},
                  {"method=adalora ", FM_METHOD_ADALORA}};

    for (size_t i = 0; i < FM_ARRAY_LEN(others); i++)
        if (strncmp(settings, others[i].word, strlen(others[i].word)) == 0)
            method = others[i].method;
    *c = fm_train_defaults(method);
    (void)snprintf(text, sizeof(text), "%s", settings);
    for (char *one = strtok_r(text, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
        char *eq = strchr(one, '=');
        assert_non_null(eq);
        *eq = '\0';
        tk_ok(fm_train_config_set(c, one, eq + 1));
    }
}

/* Steps of the references: AdamW at a constant rate, without clipping. */
static fm_train_config config_of(const char *settings, uint32_t steps, uint32_t width)
{
    fm_train_config c;

    set_all(&c, settings);
    c.lr = 2e-3;
    c.weight_decay = 0.01;
    c.schedule = FM_SCHEDULE_CONSTANT;
    c.clip = 0;
    c.steps = steps;
    c.batch = 2;
    c.max_tokens = width;
    return c;
}

static void assert_near(double have, double want, double limit, const char *what)
{
    tk_assert_le(have > want ? have - want : want - have, limit, what);
}

TEST(gradients_equal_those_of_peft)
{
    fm_engine *e = ik_engine(2, 64);

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        peft t;
        double loss = 0.0;
        fm_train_result g;
        peft_open(&t, &kinds[i]);
        fm_provider p = ik_provider(&t.mem);
        float *want = ik_ref_get(&t.ref, "loss", NULL);
        tk_ok(fm_train_gradients(e, t.both, &p, t.ids, t.labels, 2, t.width, &loss, &g));
        assert_near(loss, (double)*want, 1e-5, kinds[i].folder);
        print_message("%s: loss %.7f, worst gradient %.2g\n", kinds[i].folder, loss,
                      kit_compare(&g, &t.ref, "grad.", 1e-5, false));
        fm_train_result_release(&g);
        fm_free(want);
        peft_close(&t);
    }
    fm_engine_free(e);
}

TEST(steps_equal_those_of_peft)
{
    fm_engine *e = ik_engine(2, 64);

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        const kind *k = &kinds[i];
        peft t;
        fm_train_result r;
        peft_open(&t, k);
        fm_provider p = fm_source_provider(t.base);
        fm_provider init = fm_source_provider(t.adapter);
        int32_t *ids = kit_repeat(t.ids, 2 * (size_t)t.width, k->steps);
        int32_t *labels = kit_repeat(t.labels, 2 * (size_t)t.width, k->steps);
        fm_train_job job = {.name = k->folder,
                            .config = config_of(k->settings, k->steps, t.width),
                            .parent = fm_source_tree(t.base),
                            .batch_ids = ids,
                            .batch_labels = labels,
                            .init = fm_source_tree(t.adapter),
                            .init_provider = &init};
        tk_ok(fm_train_run(e, &p, &job, 1, &r, NULL, NULL));
        float *losses = ik_ref_get(&t.ref, "train.losses", NULL);
        double worst = 0.0;
        for (size_t s = 0; s < k->steps; s++) {
            double diff = kit_log(&r, s, "loss") - (double)losses[s];
            diff = diff < 0 ? -diff : diff;
            tk_assert_le(diff, 1e-4, k->folder);
            worst = diff > worst ? diff : worst;
        }
        print_message("%s: worst loss %.2g, worst final parameter %.2g\n", k->folder, worst,
                      kit_compare(&r, &t.ref, "train.final.", 1e-4, true));
        fm_train_result_release(&r);
        fm_free(losses);
        fm_free(ids);
        fm_free(labels);
        peft_close(&t);
    }
    fm_engine_free(e);
}

/* What trains here runs in inference, too: the logits that PEFT has. */
TEST(inference_gives_the_logits_of_peft)
{
    fm_engine *e = ik_engine(2, 64);
    size_t checked = 0;

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        peft t;
        size_t n = 0;
        fm_model *m = NULL;
        peft_open(&t, &kinds[i]);
        if (!kit_ref_has(&t.ref, "logits") || strstr(kinds[i].folder, "/prompt")) {
            peft_close(&t); /* PEFT's prompts have logits of their own, before the text's */
            continue;
        }
        fm_provider p = ik_provider(&t.mem);
        float *want = ik_ref_get(&t.ref, "logits", &n);
        float *have = fm_malloc(n * sizeof(float));
        assert_non_null(have);
        tk_ok(fm_model_load(&m, e, t.both, &p, kinds[i].folder));
        for (size_t b = 0; b < 2; b++)
            ik_logits(m, t.ids + b * t.width, t.width, b ? 5 : t.width, have + b * n / 2);
        tk_assert_le(tk_rel_norm(have, want, n), 1e-5, kinds[i].folder);
        checked++;
        fm_model_close(m);
        fm_free(have);
        fm_free(want);
        peft_close(&t);
    }
    assert_true(checked > 20);
    fm_engine_free(e);
}

/* ---- configs and keys ---- */
static bool in_array(const fm_json *a, const fm_json *v)
{
    for (size_t i = 0; i < fm_json_count(a); i++)
        if (fm_json_equal(fm_json_at(a, i), v))
            return true;
    return false;
}

/* PEFT writes sets of names in any order. */
static bool same_value(const fm_json *a, const fm_json *b)
{
    if (!fm_json_is(a, FM_JSON_ARRAY) || !fm_json_is(b, FM_JSON_ARRAY))
        return fm_json_equal(a, b);
    bool same = fm_json_count(a) == fm_json_count(b);
    for (size_t i = 0; same && i < fm_json_count(a); i++)
        same = in_array(b, fm_json_at(a, i));
    return same;
}

static void check_config(const fm_json *have, const fm_tree *adapter, const fm_provider *p)
{
    size_t begin = 0;
    size_t end = 0;
    fm_json *want = NULL;
    fm_buf text;

    fm_buf_init(&text, 0);
    fm_tree_range(adapter, "adapters/0-", &begin, &end);
    tk_ok(fm_entry_read(&text, p, fm_tree_at(adapter, begin)));
    assert_non_null(strstr(fm_tree_at(adapter, begin)->path, "adapter_config.json"));
    tk_ok(fm_json_parse(&want, fm_buf_span(&text), "adapter_config.json"));
    assert_int_equal(fm_json_count(have), fm_json_count(want));
    for (void *it = fm_json_iter(want); it; it = fm_json_next(want, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *v = fm_json_get(have, key);
        if (!v)
            fail_msg("the config lacks %s", key);
        if (strcmp(key, "base_model_name_or_path") != 0 && !same_value(v, fm_json_iter_value(it)))
            fail_msg("%s differs", key);
    }
    fm_json_free(want);
    fm_buf_release(&text);
}

/* The result has the adapter's tensors: names and shapes. PEFT also copies frozen matrices of the
 * vocabulary. */
static void check_keys(const fm_train_result *r, const fm_tree *adapter)
{
    size_t begin = 0;
    size_t end = 0;
    size_t seen = 0;

    fm_tree_range(adapter, "adapters/0-", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(adapter, i);
        bool found = e->kind != FM_ENTRY_TENSOR || strstr(e->name, ".base_layer.weight");
        if (found)
            continue;
        seen++;
        for (size_t k = 0; !found && k < r->count; k++)
            found = strcmp(r->tensors[k].name, e->name) == 0 &&
                    fm_shape_eq(&r->tensors[k].shape, &e->shape);
        if (!found)
            fail_msg("the result lacks %s", e->name);
    }
    assert_int_equal(seen, r->count);
}

static void from_settings(fm_engine *e, const kind *k, const peft *t, fm_train_result *r)
{
    fm_provider p = fm_source_provider(t->base);
    fm_train_job job = {.name = k->folder,
                        .config = config_of(k->settings, 1, t->width),
                        .parent = fm_source_tree(t->base),
                        .batch_ids = t->ids,
                        .batch_labels = t->labels};

    tk_ok(fm_train_run(e, &p, &job, 1, r, NULL, NULL));
}

TEST(settings_give_the_config_and_the_keys_of_peft)
{
    fm_engine *e = ik_engine(2, 64);

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        peft t;
        fm_train_result r;
        peft_open(&t, &kinds[i]);
        fm_provider p = fm_source_provider(t.adapter);
        print_message("%s\n", kinds[i].folder);
        from_settings(e, &kinds[i], &t, &r);
        check_config(r.adapter_config, fm_source_tree(t.adapter), &p);
        check_keys(&r, fm_source_tree(t.adapter));
        fm_train_result_release(&r);
        peft_close(&t);
    }
    fm_engine_free(e);
}

/* A new adapter changes nothing before its first step, but for virtual tokens. */
TEST(a_seeded_adapter_begins_as_its_parent)
{
    fm_engine *e = ik_engine(2, 64);

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        peft t;
        fm_train_result r;
        fm_train_result g;
        double loss = 0.0;
        if (strstr(kinds[i].settings, "virtual") || strstr(kinds[i].settings, "fourierft") ||
            strstr(kinds[i].settings, "method=hra"))
            continue; /* random from the first step on, as PEFT's are */
        peft_open(&t, &kinds[i]);
        fm_provider p = fm_source_provider(t.base);
        from_settings(e, &kinds[i], &t, &r);
        tk_ok(fm_train_gradients(e, fm_source_tree(t.base), &p, t.ids, t.labels, 2, t.width, &loss,
                                 &g));
        assert_near(kit_log(&r, 0, "loss") / loss, 1.0, 1e-6, kinds[i].folder);
        fm_train_result_release(&g);
        fm_train_result_release(&r);
        peft_close(&t);
    }
    fm_engine_free(e);
}

TEST(bitfit_equals_pytorch)
{
    static const kind k = {GOLDEN "bitfit", "qwen2", 4, "method=bitfit"};
    fm_train_result r;
    ik_ref ref;
    size_t n = 0;
    fm_engine *e = ik_engine(2, 64);
    char *path = tk_source(GOLDEN "bitfit/ref.safetensors");
    fm_source *base = ik_source("arch/qwen2");
    fm_provider p = fm_source_provider(base);

    tk_ok(fm_source_open(&ref.src, path));
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n);
    int32_t *labels = ik_ref_get(&ref, "labels", NULL);
    int32_t *all_ids = kit_repeat(ids, n, k.steps);
    int32_t *all_labels = kit_repeat(labels, n, k.steps);
    fm_train_job job = {.name = "bitfit",
                        .config = config_of(k.settings, k.steps, (uint32_t)n / 2),
                        .parent = fm_source_tree(base),
                        .batch_ids = all_ids,
                        .batch_labels = all_labels};
    tk_ok(fm_train_run(e, &p, &job, 1, &r, NULL, NULL));
    float *losses = ik_ref_get(&ref, "train.losses", NULL);
    for (size_t s = 0; s < k.steps; s++)
        assert_near(kit_log(&r, s, "loss"), (double)losses[s], 1e-4, "loss");
    assert_null(r.adapter_config);
    print_message("bitfit: worst final parameter %.2g\n",
                  kit_compare(&r, &ref, "train.final.", 1e-4, true));
    int32_t *const lists[] = {ids, labels, all_ids, all_labels};
    for (size_t i = 0; i < FM_ARRAY_LEN(lists); i++)
        fm_free(lists[i]);
    fm_free(losses);
    fm_free(path);
    fm_train_result_release(&r);
    fm_source_close(base);
    fm_source_close(ref.src);
    fm_engine_free(e);
}

int main(void)
{
    char *data = tk_shared("arch/qwen2/ref.safetensors");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_those_of_peft),
        cmocka_unit_test(steps_equal_those_of_peft),
        cmocka_unit_test(inference_gives_the_logits_of_peft),
        cmocka_unit_test(settings_give_the_config_and_the_keys_of_peft),
        cmocka_unit_test(a_seeded_adapter_begins_as_its_parent),
        cmocka_unit_test(bitfit_equals_pytorch),
    };

    if (!data)
        return tk_skip("reference data is not on this machine (FM_SHARED_DATA)");
    fm_free(data);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
