/* ctest: card apart stages=2:5 */
/* Adapters as PEFT saved them, against PEFT's logits; what is not computed is refused by name. */
#include "tests/model/infer_kit.h"

#define LIMIT 1e-5

/* One thing changed in the adapted tree. */
typedef void (*spoil_fn)(ik_adapted *a);

static void check_changed(const char *kind, spoil_fn change)
{
    ik_adapted a;
    ik_ref ref;
    char path[128];
    ik_open_adapted(&a, kind);
    if (change)
        change(&a);
    (void)snprintf(path, sizeof(path), "arch/llama/peft/%s/ref.safetensors", kind);
    assert_true(ik_ref_open(&ref, path));
    size_t n = 0, count = 0;
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n);
    float *want = ik_ref_get(&ref, "logits", &count);
    float *got = fm_malloc(count * sizeof(float));
    fm_engine *e = ik_engine(1, 64);
    fm_provider p = ik_provider(&a.both);
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, e, a.tree, &p, kind));
    for (size_t b = 0; b < n / 24; b++)
        ik_logits(m, ids + b * 24, 24, b ? 5 : 24, got + b * 24 * (count / n));
    tk_assert_le(tk_rel_norm(got, want, count), LIMIT, kind);
    fm_model_close(m);
    fm_engine_free(e);
    fm_free(got);
    fm_free(want);
    fm_free(ids);
    fm_source_close(ref.src);
    ik_close_adapted(&a);
}

static void check_kind(const char *kind)
{
    check_changed(kind, NULL);
}

TEST(lora_logits_match)
{
    check_kind("lora");
}
TEST(rank_and_alpha_patterns_match)
{
    check_kind("lora-qv-pattern");
}
TEST(rslora_scale_matches)
{
    check_kind("rslora");
}
TEST(dora_matches)
{
    check_kind("dora");
}
TEST(ia3_matches)
{
    check_kind("ia3");
}
TEST(prefix_tuning_matches)
{
    check_kind("prefix");
}
TEST(prompt_tuning_matches)
{
    check_kind("prompt");
}
TEST(a_saved_head_replaces_the_base_head)
{
    check_kind("lora-modules-to-save");
}

/* PEFT's name for the same tensor when the head is a target too. */
static void wrap_head(ik_adapted *a)
{
    const char *old = "adapters/0-lora/tensors/base_model/model/lm_head.weight";
    const fm_entry *e = fm_tree_find(a->tree, old);
    assert_non_null(e);
    fm_shape shape = e->shape;
    fm_dtype dtype = e->dtype;
    fm_digest id = e->id;
    tk_ok(fm_tree_remove(a->tree, old));
    tk_ok(fm_tree_put_tensor(a->tree,
                             "adapters/0-lora/tensors/base_model/model/lm_head/base_layer.weight",
                             "base_model.model.lm_head.base_layer.weight", dtype, &shape, &id));
}
TEST(a_wrapped_modules_own_weight_replaces_it)
{
    check_changed("lora-modules-to-save", wrap_head);
}

/* ==== refusals: the LoRA's tree with one thing changed ==== */

static void refuse(spoil_fn spoil, fm_status want, const char *needle)
{
    ik_adapted a;
    ik_open_adapted(&a, "lora");
    spoil(&a);
    fm_engine *e = ik_engine(1, 64);
    fm_provider p = ik_provider(&a.both);
    fm_model *m = NULL;
    tk_fails(fm_model_load(&m, e, a.tree, &p, "child"), want, needle);
    assert_null(m);
    assert_int_equal(fm_engine_stats_of(e).weights, 0);
    assert_int_equal(fm_engine_stats_of(e).models, 0);
    fm_engine_free(e);
    ik_close_adapted(&a);
}

#define CONFIG "adapters/0-lora/adapter_config.json"
#define ROOM "adapters/0-lora/tensors"

static void put_config(ik_adapted *a, const char *text)
{
    tk_ok(fm_tree_put_file(a->tree, CONFIG, fm_span_str(text)));
}
static void dora(ik_adapted *a)
{
    put_config(a, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"use_dora\":true}");
}
static void other_type(ik_adapted *a)
{
    put_config(a, "{\"peft_type\":\"IA3\"}");
}
static void other_biases(ik_adapted *a)
{
    put_config(a, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"bias\":\"some\"}");
}
static void unknown_setting(ik_adapted *a)
{
    put_config(a, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"lora_twist\":2}");
}
static void start_in_the_base(ik_adapted *a)
{
    put_config(a, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,"
                  "\"init_lora_weights\":\"pissa_niter_16\"}");
}
static void wrong_rank(ik_adapted *a)
{
    put_config(a, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":8,"
                  "\"target_modules\":[\"q_proj\"]}");
}
static void put_factor(ik_adapted *a, const char *name, uint64_t rows, uint64_t cols)
{
    float zero[96 * 8] = {0};
    ik_put(&a->both, a->tree, ROOM, name, zero, 2, rows, cols);
}
static void no_such_module(ik_adapted *a)
{
    put_factor(a, "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", 4, 48);
}
static void half_a_term(ik_adapted *a)
{
    tk_ok(fm_tree_remove(a->tree, ROOM "/base_model/model/model/layers/0/mlp/up_proj/"
                                       "lora_B.weight"));
}
static void wrong_shape(ik_adapted *a)
{
    put_factor(a, "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", 4, 47);
}
static void embedding_factors(ik_adapted *a)
{
    put_factor(a, "base_model.model.model.embed_token.lora_embedding_A", 4, 48);
}
static void foreign_parameter(ik_adapted *a)
{
    put_factor(a, "base_model.model.rotor.weight", 2, 48);
}
static void other_kind(ik_adapted *a)
{
    tk_ok(fm_tree_put_file(a->tree, "adapters/1-vera/adapter_config.json", fm_span_str("{}")));
}
static void folder_of_another_kind(ik_adapted *a)
{
    tk_ok(fm_tree_put_file(a->tree, "adapters/1-prefix/adapter_config.json",
                           fm_span_str("{\"peft_type\":\"LORA\",\"r\":4}")));
}
static void magnitude_in_a_lora(ik_adapted *a)
{
    put_factor(a, "base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", 96, 1);
}
static void gap_in_numbers(ik_adapted *a)
{
    tk_ok(fm_tree_put_file(a->tree, "adapters/2-lora/adapter_config.json", fm_span_str("{}")));
}
static void no_config(ik_adapted *a)
{
    tk_ok(fm_tree_remove(a->tree, CONFIG));
}

TEST(what_is_not_computed_is_refused)
{
    refuse(dora, FM_EUNSUPPORTED, "use_dora");
    refuse(other_type, FM_EUNSUPPORTED, "IA3");
    refuse(other_biases, FM_EUNSUPPORTED, "bias");
    refuse(unknown_setting, FM_EUNSUPPORTED, "lora_twist");
    refuse(start_in_the_base, FM_EUNSUPPORTED, "pissa_niter_16");
    refuse(other_kind, FM_EUNSUPPORTED, "vera");
    refuse(folder_of_another_kind, FM_EUNSUPPORTED, "kind prefix");
    refuse(magnitude_in_a_lora, FM_EUNSUPPORTED, "lora_magnitude_vector");
}

TEST(what_does_not_fit_is_refused)
{
    refuse(wrong_rank, FM_EBASE, "rank 3");
    refuse(no_such_module, FM_EBASE, "layers.9");
    refuse(embedding_factors, FM_EBASE, "embed_token'");
    refuse(wrong_shape, FM_EBASE, "47");
    refuse(foreign_parameter, FM_EBASE, "rotor.weight");
    refuse(half_a_term, FM_ECORRUPT, "lora_B");
    refuse(gap_in_numbers, FM_ECORRUPT, "numbered");
    refuse(no_config, FM_ENOTFOUND, "adapter_config.json");
}

/* ==== trained biases ==== */

/* PEFT's bias "lora_only": the adapter's biases stand for the model's own. */
TEST(trained_biases_replace_the_models)
{
    const char *name = "model.layers.1.self_attn.k_proj.bias";
    fm_source *base = ik_source("arch/qwen2");
    assert_non_null(base);
    ik_mem mem = {.behind = {fm_source_provider(base)}, .behind_count = 1};
    fm_tree *child = NULL, *edited = NULL;
    tk_ok(fm_tree_copy(&child, fm_source_tree(base)));
    tk_ok(fm_tree_copy(&edited, fm_source_tree(base)));
    const fm_entry *e = fm_tree_find(edited, "tensors/model/layers/1/self_attn/k_proj.bias");
    assert_non_null(e);
    uint64_t n = e->shape.dim[0];
    float bias[512];
    assert_true(n <= FM_ARRAY_LEN(bias));
    for (size_t i = 0; i < n; i++)
        bias[i] = 0.25f * (float)(i % 7) - 0.5f;
    tk_ok(fm_tree_put_file(child, CONFIG,
                           fm_span_str("{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,"
                                       "\"bias\":\"lora_only\"}")));
    ik_put(&mem, child, ROOM, "base_model.model.model.layers.1.self_attn.k_proj.base_layer.bias",
           bias, 1, n, 0);
    ik_put(&mem, edited, "tensors", name, bias, 1, n, 0);
    fm_provider p = ik_provider(&mem);
    fm_engine *g = ik_engine(1, 64);
    fm_model *m[3] = {NULL, NULL, ik_model(g, base, "qwen2")};
    tk_ok(fm_model_load(&m[0], g, child, &p, "child"));
    tk_ok(fm_model_load(&m[1], g, edited, &p, "edited"));
    uint32_t vocab = fm_model_arch(m[0])->vocab;
    int32_t ids[8] = {9, 8, 7, 6, 5, 4, 3, 3};
    float *out = fm_malloc(3 * 8 * vocab * sizeof(float));
    for (size_t i = 0; i < 3; i++)
        ik_logits(m[i], ids, 8, 8, out + i * 8 * vocab);
    assert_memory_equal(out, out + 8 * vocab, 8 * vocab * sizeof(float));
    assert_true(tk_rel_norm(out, out + 16 * vocab, 8 * vocab) > 1e-3);
    for (size_t i = 0; i < 3; i++)
        fm_model_close(m[i]);
    fm_engine_free(g);
    fm_free(out);
    fm_tree_free(child);
    fm_tree_free(edited);
    ik_mem_free(&mem);
    fm_source_close(base);
}

/* ==== two adapters, one on the other ==== */

/* What scales a module's output must come last. */
TEST(nothing_goes_on_top_of_a_scale)
{
    ik_adapted a, b;
    ik_open_adapted(&a, "dora");
    ik_open_adapted(&b, "rslora");
    fm_tree *twice = NULL;
    tk_ok(fm_adapter_apply(&twice, a.tree, fm_source_tree(b.adapter), "", NULL));
    ik_mem all = {.behind = {ik_provider(&a.both), ik_provider(&b.both)}, .behind_count = 2};
    fm_provider p = ik_provider(&all);
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = NULL;
    tk_fails(fm_model_load(&m, e, twice, &p, "twice"), FM_EUNSUPPORTED, "on top");
    assert_int_equal(fm_engine_stats_of(e).weights, 0);
    fm_engine_free(e);
    fm_tree_free(twice);
    ik_close_adapted(&a);
    ik_close_adapted(&b);
}

TEST(two_adapters_add_up)
{
    ik_adapted a, b;
    ik_open_adapted(&a, "lora");
    ik_open_adapted(&b, "rslora");
    fm_tree *twice = NULL;
    tk_ok(fm_adapter_apply(&twice, a.tree, fm_source_tree(b.adapter), "", NULL));
    ik_mem all = {.behind = {ik_provider(&a.both), ik_provider(&b.both)}, .behind_count = 2};
    fm_provider p = ik_provider(&all);
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = NULL, *one = NULL;
    tk_ok(fm_model_load(&m, e, twice, &p, "twice"));
    tk_ok(fm_model_load(&one, e, a.tree, &p, "once"));
    int32_t ids[8] = {9, 8, 7, 6, 5, 4, 3, 3};
    float x[8 * 160], y[8 * 160];
    ik_logits(m, ids, 8, 8, x);
    ik_logits(one, ids, 8, 8, y);
    assert_true(tk_rel_norm(x, y, 8 * 160) > 0.01);
    fm_model_close(m);
    fm_model_close(one);
    fm_engine_free(e);
    fm_tree_free(twice);
    ik_close_adapted(&a);
    ik_close_adapted(&b);
}

int main(void)
{
    char *here = tk_shared("arch/llama/peft/lora");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_computed_is_refused),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(lora_logits_match),
        cmocka_unit_test(rank_and_alpha_patterns_match),
        cmocka_unit_test(rslora_scale_matches),
        cmocka_unit_test(a_saved_head_replaces_the_base_head),
        cmocka_unit_test(a_wrapped_modules_own_weight_replaces_it),
        cmocka_unit_test(dora_matches),
        cmocka_unit_test(ia3_matches),
        cmocka_unit_test(prefix_tuning_matches),
        cmocka_unit_test(prompt_tuning_matches),
        cmocka_unit_test(trained_biases_replace_the_models),
        cmocka_unit_test(nothing_goes_on_top_of_a_scale),
        cmocka_unit_test(two_adapters_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
