/* Adapters: fit to their parent, numbers, rank and scale, merging. */
#include "tests/format/fixtures.h"

#include <math.h>

#include "store/export/export_impl.h"

typedef struct pair {
    fm_source *base, *adapter;
    char *dir;
} pair;

/* Bytes from whichever of two sources has the object. */
typedef struct two_providers {
    fm_provider first, second;
} two_providers;

static fm_status read_either(void *ctx, const fm_entry *e, void *dst)
{
    const two_providers *two = ctx;
    fm_status rc = two->first.read(two->first.ctx, e, dst);
    return rc == FM_ENOTFOUND ? two->second.read(two->second.ctx, e, dst) : rc;
}

static char *under(const pair *p, const char *name)
{
    return fm_path_join(p->dir, name);
}

static void open_pair(pair *p, const char *config, const fx_item *items, size_t n)
{
    p->dir = tk_scratch();
    char *base = under(p, "base"), *adapter = under(p, "adapter");
    fx_hf_folder(base);
    fx_peft_folder(adapter, config, items, n);
    tk_ok(fm_source_open(&p->base, base));
    tk_ok(fm_source_open(&p->adapter, adapter));
    fm_free(base);
    fm_free(adapter);
}

static void close_pair(pair *p)
{
    fm_source_close(p->base);
    fm_source_close(p->adapter);
    fm_free(p->dir);
}

static void refused(const char *config, const fx_item *items, size_t n, fm_status rc,
                    const char *needle)
{
    pair p;
    fm_tree *tree = NULL;
    open_pair(&p, config, items, n);
    tk_fails(fm_adapter_apply(&tree, fm_source_tree(p.base), fm_source_tree(p.adapter), NULL, NULL),
             rc, needle);
    assert_null(tree);
    close_pair(&p);
}

TEST(what_does_not_fit_the_parent_is_refused_by_name)
{
    fx_item items[4];
    memcpy(items, FX_ADAPTER, sizeof items);
    items[0].cols = 9;
    refused(FX_LORA, items, 4, FM_EBASE, "q_proj.lora_A");
    memcpy(items, FX_ADAPTER, sizeof items);
    items[2].rows = items[3].cols = 3; /* rank_pattern says 2 */
    refused(FX_LORA, items, 4, FM_EBASE, "up_proj.lora_A");
    memcpy(items, FX_ADAPTER, sizeof items);
    items[0].name = FX_KEY "self_attn.z_proj.lora_A.weight";
    items[1].name = FX_KEY "self_attn.z_proj.lora_B.weight";
    refused(FX_LORA, items, 4, FM_EBASE, "z_proj");
    refused(FX_LORA, FX_ADAPTER, 1, FM_EBASE, "partner");
    const fx_item saved[] = {{"base_model.model.lm_head.weight", 5, 8}};
    refused(FX_LORA, saved, 1, FM_EBASE, "lm_head");
    refused("{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 1}", FX_ADAPTER, 4, FM_EINVAL,
            "'r'");
    refused("{\"peft_type\": \"LORA\", \"r\": 3}", FX_ADAPTER, 4, FM_EINVAL, "'lora_alpha'");
    refused("{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 1, "
            "\"rank_pattern\": {\".*(?R)_proj\": 2}}",
            FX_ADAPTER, 4, FM_EUNSUPPORTED, "(?R)");
}

/* Each is tried on each tensor, so that two files of some megabytes would take days. */
TEST(patterns_times_tensors_have_a_limit)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 1, \"alpha_pattern\": {");
    for (int i = 0; i < 6000; i++)
        fm_buf_printf(&b, "%s\"%x*\":1", i > 0 ? "," : "", (unsigned)i);
    fm_buf_str(&b, "}}");
    refused(fm_buf_cstr(&b), FX_ADAPTER, 4, FM_ELIMIT, "6000 of them regular expressions");
    fm_buf_release(&b);
}

TEST(a_second_adapter_gets_the_next_number)
{
    pair p;
    fm_tree *one = NULL, *two = NULL;
    fm_buf warning;
    open_pair(&p, FX_LORA, FX_ADAPTER, 4);
    fm_buf_init(&warning, 0);
    tk_ok(fm_adapter_apply(&one, fm_source_tree(p.base), fm_source_tree(p.adapter), "tiny",
                           &warning));
    assert_int_equal(warning.len, 0);
    tk_ok(fm_adapter_apply(&two, one, fm_source_tree(p.adapter), "other", &warning));
    assert_non_null(strstr(fm_buf_cstr(&warning), "'tiny'"));
    assert_non_null(fm_tree_find(one, "adapters/0-lora/adapter_config.json"));
    assert_null(fm_tree_find(one, "adapters/1-lora/adapter_config.json"));
    assert_non_null(fm_tree_find(two, "adapters/1-lora/adapter_config.json"));
    /* the bytes that came in last are the adapter's, from its new place */
    char *out = under(&p, "out"), *in = under(&p, "adapter");
    const fm_provider from = fm_source_provider(p.adapter);
    tk_ok(fm_export(two, &from, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
    fx_same_folder(in, out);
    fm_buf_release(&warning);
    fm_tree_free(one);
    fm_tree_free(two);
    fm_free(out);
    fm_free(in);
    close_pair(&p);
}

TEST(rank_and_scale_follow_pefts_rules)
{
    static const char text[] =
        "{\"r\": 4, \"lora_alpha\": 8, \"rank_pattern\": {\"layers.1.self_attn.q_proj\": 2},"
        "\"alpha_pattern\": {\"layers.1.self_attn.q_proj\": 6, \"x_proj\": 1}}";
    fm_json *config = NULL;
    fm_lora_spec s;
    tk_ok(fm_json_parse(&config, fm_span_str(text), "c"));
    tk_ok(fm_lora_spec_of(&s, config, "model.layers.1.self_attn.q_proj"));
    assert_int_equal(s.r, 2);
    assert_true(s.scale == 3.0f);
    tk_ok(fm_lora_spec_of(&s, config, "model.layers.11.self_attn.q_proj"));
    assert_int_equal(s.r, 4);
    assert_true(s.scale == 2.0f);
    tk_ok(fm_lora_spec_of(&s, config, "model.max_proj")); /* a pattern ends at a dot */
    assert_true(s.scale == 2.0f);
    tk_ok(fm_json_set(config, "use_rslora", fm_json_new_bool(true)));
    tk_ok(fm_lora_spec_of(&s, config, "model.layers.0.q"));
    assert_true(s.scale == 4.0f);
    fm_json_free(config);
}

/* What Python's re.match(rf"(.*\.)?({key})$", module) says. */
TEST(patterns_are_regular_expressions)
{
    static const struct {
        const char *key, *module;
        bool found;
    } is[] = {
        {"layers\\.\\d+\\.mlp\\.(up|down)_proj", "model.layers.12.mlp.down_proj", true},
        {"layers\\.\\d+\\.mlp\\.(up|down)_proj", "model.layers.12.mlp.gate_proj", false},
        {".*[qv]_proj", "model.layers.0.self_attn.v_proj", true},
        {"[qv]_proj", "model.layers.0.self_attn.vv_proj", false},
        {"^model\\.layers\\.(?:0|1)\\..*?proj$", "model.layers.1.self_attn.q_proj", true},
        {"^layers\\.1.*", "model.layers.1.self_attn.q_proj", false},
        {"layers.1.+_proj", "model.layers.1.self_attn.q_proj", true},
        {"[^.]+_proj", "a.b_proj", true},
        {"\\w+_proj|lm_head", "lm_head", true},
        {"x\\-y", "x-y", true},
        {"\\w{3,5}\\d{1,2}\\.[^\\W\\d]+", "m.layer12.q", true},
        {"(?!k)\\w_proj", "a.k_proj", false},
        {"(?!k)\\w_proj", "a.q_proj", true},
    };
    static const struct {
        const char *key;
        fm_status rc;
    } bad[] = {
        {"a\\Z", FM_EUNSUPPORTED}, {"a\\Kb", FM_EUNSUPPORTED}, {"[[:alpha:]]", FM_EUNSUPPORTED},
        {"(a", FM_EINVAL},         {"[a", FM_EINVAL},          {"a**", FM_EINVAL}};
    fm_lora_spec s;
    for (size_t i = 0; i < FM_ARRAY_LEN(is) + FM_ARRAY_LEN(bad); i++) {
        bool wrong = i >= FM_ARRAY_LEN(is);
        const char *key = wrong ? bad[i - FM_ARRAY_LEN(is)].key : is[i].key;
        fm_json *config = fm_json_new_object(), *map = fm_json_new_object();
        tk_ok(fm_json_set(map, key, fm_json_new_int(2)));
        tk_ok(fm_json_set(config, "r", fm_json_new_int(4)));
        tk_ok(fm_json_set(config, "lora_alpha", fm_json_new_int(8)));
        tk_ok(fm_json_set(config, "rank_pattern", map));
        if (wrong) {
            tk_fails(fm_lora_spec_of(&s, config, "a.b"), bad[i - FM_ARRAY_LEN(is)].rc,
                     "rank_pattern");
        } else {
            tk_ok(fm_lora_spec_of(&s, config, is[i].module));
            if ((s.r == 2) != is[i].found)
                fail_msg("%s: %s", is[i].key, is[i].module);
        }
        fm_json_free(config);
    }
}

static float small(uint64_t i)
{
    return (float)((i * 37) % 101) / 53.0f - 0.9f;
}

static void check_chain(int out, int in, int r)
{
    float *w = fm_malloc((size_t)(out * in) * sizeof *w), *want = fm_malloc((size_t)(out * in) * 4);
    float *a = fm_malloc((size_t)(r * in) * sizeof *a), *b = fm_malloc((size_t)(out * r) * 4);
    for (int i = 0; i < out * in; i++)
        w[i] = want[i] = small((uint64_t)i);
    for (int i = 0; i < r * in; i++)
        a[i] = small((uint64_t)i + 7);
    for (int i = 0; i < out * r; i++)
        b[i] = small((uint64_t)i + 3);
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) {
            float sum = 0;
            for (int k = 0; k < r; k++)
                sum = fmaf(b[o * r + k], a[k * in + i], sum);
            const float delta = sum * 1.7f;
            want[o * in + i] += delta;
        }
    fm_lora_merge(w, a, b, (uint64_t)out, (uint64_t)in, (uint64_t)r, 1.7f);
    assert_memory_equal(w, want, (size_t)(out * in) * sizeof *w);
    fm_free(w);
    fm_free(want);
    fm_free(a);
    fm_free(b);
}

/* Few ranks and many, which go in tiles, with rows and columns beyond whole tiles. */
TEST(merging_is_a_fused_chain_a_product_and_a_sum)
{
    check_chain(3, 131, 5);
    check_chain(131, 37, 300);
    check_chain(6, 16, 49);
}

/* HF export of parent + adapter holds W + scale * B A; the lm_head that was saved whole unties. */
TEST(export_merges_adapters_into_the_weights)
{
    const fx_item items[] = {
        {"base_model.model.lm_head.weight", 6, 8}, FX_ADAPTER[0], FX_ADAPTER[1]};
    pair p;
    fm_tree *tree = NULL;
    fm_source *got = NULL;
    open_pair(&p, FX_LORA, items, 3);
    tk_ok(fm_adapter_apply(&tree, fm_source_tree(p.base), fm_source_tree(p.adapter), NULL, NULL));
    const fm_provider pb = fm_source_provider(p.base), pa = fm_source_provider(p.adapter);
    two_providers both = {pb, pa};
    const fm_provider p2 = {.ctx = &both, .read = read_either};
    char *out = under(&p, "out");
    tk_ok(fm_export(tree, &p2, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    tk_ok(fm_source_open(&got, out));
    const fm_provider pg = fm_source_provider(got);
    float w[64], a[24], b[24], m[64];
    const fm_tree *base = fm_source_tree(p.base), *ad = fm_source_tree(p.adapter);
    tk_ok(pb.read(pb.ctx, fm_tree_find(base, "tensors/model/layers/0/self_attn/q_proj.weight"), w));
#define AT "adapters/0-lora/tensors/base_model/model/model/layers/0/self_attn/q_proj/"
    tk_ok(pa.read(pa.ctx, fm_tree_find(ad, AT "lora_A.weight"), a));
    tk_ok(pa.read(pa.ctx, fm_tree_find(ad, AT "lora_B.weight"), b));
    fm_lora_merge(w, a, b, 8, 8, 3, 2.0f);
    tk_ok(pg.read(
        pg.ctx, fm_tree_find(fm_source_tree(got), "tensors/model/layers/0/self_attn/q_proj.weight"),
        m));
    assert_memory_equal(w, m, sizeof w);
    const fm_entry *head = fm_tree_find(fm_source_tree(got), "tensors/lm_head.weight");
    assert_non_null(head);
    const fm_entry *model = fm_tree_find(fm_source_tree(got), "model.json");
    assert_non_null(strstr((const char *)model->data, "\"tie_word_embeddings\": false"));
    fm_source_close(got);
    fm_tree_free(tree);
    fm_free(out);
    close_pair(&p);
}

/* The names in an export of the fixture's model under the adapter, and whether it stays tied. */
static void export_with(const fx_item *items, size_t n, bool *head, bool *tied)
{
    pair p;
    fm_tree *tree = NULL;
    fm_source *got = NULL;
    open_pair(&p, FX_LORA, items, n);
    tk_ok(fm_adapter_apply(&tree, fm_source_tree(p.base), fm_source_tree(p.adapter), NULL, NULL));
    two_providers both = {fm_source_provider(p.base), fm_source_provider(p.adapter)};
    const fm_provider from = {.ctx = &both, .read = read_either};
    char *out = under(&p, "out");
    tk_ok(fm_export(tree, &from, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    tk_ok(fm_source_open(&got, out));
    const fm_entry *model = fm_tree_find(fm_source_tree(got), "model.json");
    *head = fm_tree_find(fm_source_tree(got), "tensors/lm_head.weight") != NULL;
    *tied = strstr((const char *)model->data, "\"tie_word_embeddings\": false") == NULL;
    fm_source_close(got);
    fm_tree_free(tree);
    fm_free(out);
    close_pair(&p);
}

TEST(a_wrapped_modules_own_weight_replaces_it)
{
    const fx_item items[] = {
        {"base_model.model.lm_head.base_layer.weight", 6, 8}, FX_ADAPTER[0], FX_ADAPTER[1]};
    bool head, tied;
    export_with(items, 3, &head, &tied);
    assert_true(head && !tied);
}

TEST(a_saved_embedding_leaves_a_tied_head_as_it_was)
{
    const fx_item items[] = {
        {"base_model.model.model.embed_tokens.weight", 6, 8}, FX_ADAPTER[0], FX_ADAPTER[1]};
    bool head, tied;
    export_with(items, 3, &head, &tied);
    assert_true(head && !tied);
}

TEST(other_kinds_are_kept_and_not_merged)
{
    static const char prompt[] = "{\"peft_type\": \"PROMPT_TUNING\"}";
    const fx_item items[] = {{"prompt_embeddings", 3, 8}};
    pair p;
    fm_tree *tree = NULL;
    open_pair(&p, prompt, items, 1);
    tk_ok(fm_adapter_apply(&tree, fm_source_tree(p.base), fm_source_tree(p.adapter), NULL, NULL));
    assert_non_null(fm_tree_find(tree, "adapters/0-prompt/adapter_config.json"));
    char *out = under(&p, "out");
    const fm_provider from = fm_source_provider(p.adapter);
    tk_fails(fm_export(tree, &from, out, FM_EXPORT_HF, FM_DTYPE_NONE), FM_EUNSUPPORTED, "prompt");
    assert_false(fm_path_exists(out));
    tk_ok(fm_export(tree, &from, out, FM_EXPORT_PEFT, FM_DTYPE_NONE));
    fm_tree_free(tree);
    fm_free(out);
    close_pair(&p);
}

/* ---- adapter_config.json ---- */

static fm_json *peft_configs(void)
{
    fm_json *all = NULL;
    tk_ok(fm_json_parse_file(&all, FM_SOURCE_DIR "/tests/format/peft_configs.json", 1 << 20));
    return all;
}

/* c with one field changed. */
static fm_json *changed(const fm_json *c, const char *name, fm_json *value)
{
    fm_json *out = fm_json_new_object();
    for (void *it = fm_json_iter(c); it; it = fm_json_next(c, it))
        tk_ok(fm_json_set(out, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
    tk_ok(fm_json_set(out, name, value));
    return out;
}

/* What PEFT writes passes as it is; each of its fields, set to something, is taken or refused as a
 * field that is known. */
TEST(every_field_that_peft_writes_is_known)
{
    fm_json *all = peft_configs();
    size_t fields = 0, refused_fields = 0;
    for (void *k = fm_json_iter(all); k; k = fm_json_next(all, k)) {
        const char *kind = fm_json_iter_key(k);
        const fm_json *config = fm_json_iter_value(k);
        tk_ok(fm_adapter_config_check(config, kind, kind));
        for (void *it = fm_json_iter(config); it; it = fm_json_next(config, it)) {
            fm_json *c = changed(config, fm_json_iter_key(it), fm_json_new_str("something"));
            fm_status rc = fm_adapter_config_check(c, kind, kind);
            if (rc < 0 && strstr(fm_error_text(), "not known"))
                fail_msg("%s", fm_error_text());
            fields++;
            refused_fields += rc < 0;
            fm_json_free(c);
        }
    }
    assert_int_equal(fm_json_count(all), 5);
    assert_int_equal(fields, 41 + 41 + 13 + 16 + 17);
    /* of a LoRA 10 that are not computed, of a DoRA 12, of each peft_type, bias, init_lora_weights,
     * and 7 or 6 that are read and no text; of an IA3 peft_type and one of those; of the others
     * peft_type */
    assert_int_equal(refused_fields, (10 + 3 + 7) + (12 + 3 + 6) + 2 + 1 + 1);
    fm_json_free(all);
}

TEST(a_field_that_is_not_known_is_refused_where_it_is_set)
{
    fm_json *all = peft_configs();
    for (void *k = fm_json_iter(all); k; k = fm_json_next(all, k)) {
        const char *kind = fm_json_iter_key(k);
        fm_json *off[] = {fm_json_new_null(), fm_json_new_bool(false), fm_json_new_str(""),
                          fm_json_new_object()};
        fm_json *on[] = {fm_json_new_int(0), fm_json_new_bool(true), fm_json_new_str("x")};
        for (size_t i = 0; i < FM_ARRAY_LEN(off); i++) {
            fm_json *c = changed(fm_json_iter_value(k), "lora_twist", off[i]);
            tk_ok(fm_adapter_config_check(c, kind, kind));
            fm_json_free(c);
        }
        for (size_t i = 0; i < FM_ARRAY_LEN(on); i++) {
            fm_json *c = changed(fm_json_iter_value(k), "lora_twist", on[i]);
            tk_fails(fm_adapter_config_check(c, kind, kind), FM_EUNSUPPORTED,
                     "'lora_twist' is not known here");
            fm_json_free(c);
        }
    }
    fm_json_free(all);
}

/* Python takes 1 and "x" for true; read as false here it would be another scale. */
TEST(a_field_that_is_read_has_its_type)
{
    fm_json *all = peft_configs();
    fm_json *c = changed(fm_json_get(all, "lora"), "use_rslora", fm_json_new_int(1));
    tk_fails(fm_adapter_config_check(c, "lora", "a"), FM_EINVAL, "'use_rslora' must be true or");
    fm_json_free(c);
    c = changed(fm_json_get(all, "lora"), "rank_pattern", fm_json_new_str("x"));
    tk_fails(fm_adapter_config_check(c, "lora", "a"), FM_EINVAL, "'rank_pattern' must be an obj");
    fm_json_free(c);
    fm_json_free(all);
}

/* A start that takes out of the base's weights what chance or data chose: its factors mean nothing
 * on the base. */
TEST(a_start_that_cannot_be_repeated_is_kept_and_does_not_run)
{
    static const char *const bad[] = {"pissa_niter_16", "corda", "loftq", "lora_ga", "tomorrows"};
    static const char *const good[] = {"true",         "false",     "null",
                                       "\"gaussian\"", "\"eva\"",   "\"orthogonal\"",
                                       "\"mica\"",     "\"pissa\"", "\"olora\""};
    char *dir = tk_scratch();
    for (size_t i = 0; i < FM_ARRAY_LEN(bad) + FM_ARRAY_LEN(good); i++) {
        bool wrong = i < FM_ARRAY_LEN(bad);
        char *config = fm_asprintf(
            "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 6, \"rank_pattern\": "
            "{\"mlp.up_proj\": 2}, \"init_lora_weights\": %s%s%s}",
            wrong ? "\"" : "", wrong ? bad[i] : good[i - FM_ARRAY_LEN(bad)], wrong ? "\"" : "");
        char *at = fm_asprintf("%s/%zu", dir, i);
        fm_source *src = NULL;
        fx_peft_folder(at, config, FX_ADAPTER, 4);
        tk_ok(fm_source_open(&src, at));
        const char *why = fm_source_kept(src);
        assert_true(wrong == (why != NULL));
        assert_true(!wrong || (strstr(why, "'init_lora_weights'") && strstr(why, bad[i])));
        fm_source_close(src);
        fm_free(config);
        fm_free(at);
    }
    fm_free(dir);
}

/* Kinds, settings and tensors that nothing here knows: stored on any parent, given back byte for
 * byte, and refused by name where they would have to be computed. */
TEST(what_does_not_run_comes_out_again)
{
    static const struct {
        const char *config, *why, *dir;
        fx_item item[2];
    } bad[] = {
        {"{\"peft_type\": \"XLORA\", \"depth\": 2}",
         "adapter kind xlora",
         "adapters/0-xlora",
         {{"base_model.model.internal.0.weight", 3, 5}, {"nothing.of.the.parent", 2, 2}}},
        {"{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 1, \"use_qalora\": true}",
         "'use_qalora'",
         "adapters/0-lora",
         {{FX_KEY "self_attn.q_proj.lora_A.weight", 3, 4},
          {FX_KEY "self_attn.q_proj.lora_twist", 9, 9}}},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        pair p;
        fm_tree *tree = NULL;
        open_pair(&p, bad[i].config, bad[i].item, 2);
        assert_non_null(strstr(fm_source_kept(p.adapter), bad[i].why));
        assert_null(strstr(fm_source_kept(p.adapter), "/")); /* no path of a machine */
        tk_ok(
            fm_adapter_apply(&tree, fm_source_tree(p.base), fm_source_tree(p.adapter), NULL, NULL));
        char *config = fm_path_join(bad[i].dir, "adapter_config.json");
        assert_non_null(fm_tree_find(tree, config));
        fm_free(config);
        char *out = under(&p, "out"), *in = under(&p, "adapter"), *hf = under(&p, "hf");
        const fm_provider from = fm_source_provider(p.adapter);
        tk_ok(fm_export(tree, &from, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
        fx_same_folder(in, out);
        tk_fails(fm_export(tree, &from, hf, FM_EXPORT_HF, FM_DTYPE_NONE), FM_EUNSUPPORTED,
                 i == 0 ? "xlora" : "use_qalora");
        tk_ok(fm_export_check(tree, &from));
        fm_tree_free(tree);
        fm_free(out);
        fm_free(in);
        fm_free(hf);
        close_pair(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_the_parent_is_refused_by_name),
        cmocka_unit_test(patterns_times_tensors_have_a_limit),
        cmocka_unit_test(a_second_adapter_gets_the_next_number),
        cmocka_unit_test(rank_and_scale_follow_pefts_rules),
        cmocka_unit_test(patterns_are_regular_expressions),
        cmocka_unit_test(merging_is_a_fused_chain_a_product_and_a_sum),
        cmocka_unit_test(export_merges_adapters_into_the_weights),
        cmocka_unit_test(a_wrapped_modules_own_weight_replaces_it),
        cmocka_unit_test(a_saved_embedding_leaves_a_tied_head_as_it_was),
        cmocka_unit_test(other_kinds_are_kept_and_not_merged),
        cmocka_unit_test(every_field_that_peft_writes_is_known),
        cmocka_unit_test(a_field_that_is_not_known_is_refused_where_it_is_set),
        cmocka_unit_test(a_field_that_is_read_has_its_type),
        cmocka_unit_test(a_start_that_cannot_be_repeated_is_kept_and_does_not_run),
        cmocka_unit_test(what_does_not_run_comes_out_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
