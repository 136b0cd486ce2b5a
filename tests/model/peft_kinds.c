/* ctest: apart stages=2:5 */
/* Every kind of PEFT that runs, as PEFT saved it: its logits, its merged weights, its bytes. */
#include "tests/model/infer_kit.h"
#include "tests/format/fixtures.h"
#include "train/train.h"

#define ROOM "/tests/model/golden/peft_kinds/"
#define LIMIT 1e-5

typedef struct pair {
    fm_source *base, *adapter;
    fm_tree *both;
    ik_mem mem;
    ik_ref ref;
    fm_json *about;
} pair;

static void open_pair(pair *p, const char *name)
{
    char *dir = fm_asprintf("%s%s%s", FM_SOURCE_DIR, ROOM, name);
    char *ref = fm_path_join(dir, "ref.safetensors"), *about = fm_path_join(dir, "case.json");
    char base[64];

    memset(p, 0, sizeof(*p));
    tk_ok(fm_json_parse_file(&p->about, about, 1 << 16));
    (void)snprintf(base, sizeof(base), "arch/%s", fm_json_cstr(fm_json_get(p->about, "base"), ""));
    p->base = ik_source(base);
    tk_ok(fm_source_open(&p->adapter, dir));
    if (fm_source_kept(p->adapter))
        fail_msg("%s: %s", name, fm_source_kept(p->adapter));
    tk_ok(fm_source_open(&p->ref.src, ref));
    tk_ok(fm_adapter_apply(&p->both, fm_source_tree(p->base), fm_source_tree(p->adapter), base,
                           NULL));
    p->mem.behind[0] = fm_source_provider(p->base);
    p->mem.behind[1] = fm_source_provider(p->adapter);
    p->mem.behind_count = 2;
    fm_free(about);
    fm_free(ref);
    fm_free(dir);
}

static void close_pair(pair *p)
{
    fm_json_free(p->about);
    fm_tree_free(p->both);
    fm_source_close(p->ref.src);
    fm_source_close(p->adapter);
    fm_source_close(p->base);
    ik_mem_free(&p->mem);
}

static void check_logits(const pair *p, const fm_tree *tree, const fm_provider *from,
                         const char *what)
{
    size_t n = 0, count = 0;
    int32_t *ids = ik_ref_get(&p->ref, "input_ids", &n);
    float *want = ik_ref_get(&p->ref, "logits", &count);
    float *got = fm_malloc(count * sizeof(float));
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = NULL;

    tk_ok(fm_model_check(tree, from, what));
    tk_ok(fm_model_load(&m, e, tree, from, what));
    ik_logits(m, ids, (uint32_t)n, 5, got);
    tk_assert_le(tk_rel_norm(got, want, count), LIMIT, what);
    fm_model_close(m);
    fm_engine_free(e);
    fm_free(got);
    fm_free(want);
    fm_free(ids);
}

/* Every fourth row of the weights that merge_and_unload changed. */
static void check_merged(const pair *p, const fm_source *out, const char *name)
{
    const fm_tree *refs = fm_source_tree(p->ref.src);
    const fm_provider from = fm_source_provider(out);
    size_t compared = 0;

    for (size_t i = 0; i < fm_tree_count(refs); i++) {
        const fm_entry *r = fm_tree_at(refs, i);
        if (strncmp(r->path, "tensors/merged/", 15) != 0)
            continue;
        char *path = fm_asprintf("tensors/%s", r->path + 15);
        const fm_entry *e = fm_tree_find(fm_source_tree(out), path);
        if (!e)
            fail_msg("%s: no %s", name, path);
        const uint64_t row = e->shape.rank > 1 ? e->shape.dim[1] : 1;
        size_t n = 0;
        float *want = ik_ref_get(&p->ref, r->name, &n), *got = fm_malloc((size_t)e->bytes);
        float *few = fm_malloc(n * sizeof(float));
        tk_ok(from.read(from.ctx, e, got));
        for (size_t k = 0; k < n; k++)
            few[k] = got[k / row * 4 * row + k % row];
        tk_assert_le(tk_rel_norm(few, want, n), 2e-6, path);
        compared++;
        fm_free(few);
        fm_free(got);
        fm_free(want);
        fm_free(path);
    }
    assert_true(compared > 0);
}

static void check_export(pair *p, const char *name)
{
    char *dir = tk_scratch(), *same = fm_path_join(dir, "same"), *hf = fm_path_join(dir, "hf");
    char *in = fm_asprintf("%s%s%s", FM_SOURCE_DIR, ROOM, name);
    const fm_provider from = ik_provider(&p->mem);
    const char *files[] = {"adapter_config.json", "adapter_model.safetensors"};
    fm_source *out = NULL;

    tk_ok(fm_export_check(p->both, &from));
    tk_ok(fm_export(p->both, &from, same, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
    for (size_t i = 0; i < 2; i++) {
        char *a = fm_path_join(in, files[i]), *b = fm_path_join(same, files[i]);
        fx_same_file(a, b);
        fm_free(a);
        fm_free(b);
    }
    if (fm_json_bool(fm_json_get(p->about, "merges"), false)) {
        tk_ok(fm_export(p->both, &from, hf, FM_EXPORT_HF, FM_DTYPE_NONE));
        tk_ok(fm_source_open(&out, hf));
        const fm_provider of = fm_source_provider(out);
        check_logits(p, fm_source_tree(out), &of, name);
        if (fm_json_bool(fm_json_get(p->about, "merged"), false))
            check_merged(p, out, name);
        fm_source_close(out);
    } else {
        tk_fails(fm_export(p->both, &from, hf, FM_EXPORT_HF, FM_DTYPE_NONE), FM_EUNSUPPORTED,
                 "merged");
    }
    fm_free(in);
    fm_free(hf);
    fm_free(same);
    fm_free(dir);
}

static void check_case(const char *name)
{
    pair p;
    open_pair(&p, name);
    const fm_provider from = ik_provider(&p.mem);
    check_logits(&p, p.both, &from, name);
    check_export(&p, name);
    close_pair(&p);
}

TEST(kinds_that_come_to_factors_match)
{
    static const char *const names[] = {"lora-bias-term", "lora-bias-new", "adalora",
                                        "adalora-ranks",  "vera",          "vera-unsaved",
                                        "vera-gpt2",      "vblora",        "vblora-logits"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_case(names[i]);
}

TEST(kinds_that_add_a_matrix_match)
{
    static const char *const names[] = {"loha",     "loha-gpt2", "lokr",      "lokr-whole",
                                        "randlora", "shira",     "fourierft", "fourierft-gpt2",
                                        "miss",     "miss-bat",  "miss-mini"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_case(names[i]);
}

TEST(kinds_that_rotate_match)
{
    static const char *const names[] = {"oft",          "oft-shared", "oft-coft", "boft",
                                        "boft-factors", "hra",        "hra-gs"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_case(names[i]);
}

TEST(rows_norms_and_prompts_match)
{
    static const char *const names[] = {"lora-tokens", "lora-tokens-tied", "tokens",
                                        "tokens-tied", "ln-tuning",        "p-tuning"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_case(names[i]);
}

TEST(starts_that_change_the_base_match)
{
    static const char *const names[] = {"pissa", "olora"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_case(names[i]);
}

TEST(what_engines_add_is_merged)
{
    static const char *const names[] = {"merge-dora", "merge-dora-gpt2", "merge-lora-gpt2",
                                        "merge-ia3",  "merge-embedding", "merge-embedding-tied"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check_case(names[i]);
}

/* ==== one on the other ==== */

/* An adapter of the reference data (by its own name) or of this room, on a tree. */
typedef struct layer {
    fm_source *src;
    fm_tree *tree;
    ik_mem mem;
} layer;

static void lay(layer *l, const fm_tree *on, const fm_provider *from, const char *name)
{
    char *dir = ik_adapter_path(name, "");

    memset(l, 0, sizeof(*l));
    assert_non_null(dir);
    tk_ok(fm_source_open(&l->src, dir));
    tk_ok(fm_adapter_apply(&l->tree, on, fm_source_tree(l->src), name, NULL));
    l->mem.behind[0] = *from;
    l->mem.behind[1] = fm_source_provider(l->src);
    l->mem.behind_count = 2;
    fm_free(dir);
}

static void lift(layer *l)
{
    fm_tree_free(l->tree);
    fm_source_close(l->src);
    ik_mem_free(&l->mem);
}

static void logits_of(const fm_tree *tree, const fm_provider *p, float *out, const char *what)
{
    static const int32_t ids[8] = {9, 3, 17, 6, 5, 4, 3, 3};
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, e, tree, p, what));
    ik_logits(m, ids, 8, 3, out);
    fm_model_close(m);
    fm_engine_free(e);
}

/* The upper adapter on what the lower one was merged into, beside both on the base. */
typedef struct stack {
    fm_source *base, *merged;
    layer lower, both, apart;
    fm_provider of_base, of_lower, of_merged, of_both, of_apart;
} stack;

static void build(stack *s, const char *lower, const char *upper)
{
    char *dir = tk_scratch(), *out = fm_path_join(dir, "merged");

    s->base = ik_source("arch/llama");
    s->of_base = fm_source_provider(s->base);
    lay(&s->lower, fm_source_tree(s->base), &s->of_base, lower);
    s->of_lower = ik_provider(&s->lower.mem);
    tk_ok(fm_export(s->lower.tree, &s->of_lower, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    tk_ok(fm_source_open(&s->merged, out));
    s->of_merged = fm_source_provider(s->merged);
    lay(&s->both, s->lower.tree, &s->of_lower, upper);
    lay(&s->apart, fm_source_tree(s->merged), &s->of_merged, upper);
    s->of_both = ik_provider(&s->both.mem);
    s->of_apart = ik_provider(&s->apart.mem);
    fm_free(out);
    fm_free(dir);
}

static void demolish(stack *s)
{
    lift(&s->both);
    lift(&s->apart);
    lift(&s->lower);
    fm_source_close(s->merged);
    fm_source_close(s->base);
}

TEST(what_lies_below_a_changed_weight_is_part_of_it)
{
    static const char *const pairs[][2] = {{"lora", "oft"},
                                           {"oft", "lora"},
                                           {"dora", "loha"},
                                           {"ia3", "hra"},
                                           {"vera", "lokr"},
                                           {"lokr", "vera"},
                                           {"rslora", "pissa"},
                                           {"loha", "oft-shared"},
                                           {"oft", "tokens"},
                                           {"tokens", "lora"},
                                           {"ln-tuning", "fourierft"},
                                           {"lora", "vera"},
                                           {"oft", "dora"},
                                           {"merge-embedding", "tokens"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(pairs); i++) {
        stack s;
        char what[80];
        float both[8 * 160], apart[8 * 160], lower[8 * 160];
        (void)snprintf(what, sizeof(what), "%s under %s", pairs[i][0], pairs[i][1]);
        build(&s, pairs[i][0], pairs[i][1]);
        logits_of(s.both.tree, &s.of_both, both, what);
        logits_of(s.apart.tree, &s.of_apart, apart, what);
        logits_of(s.lower.tree, &s.of_lower, lower, what);
        tk_assert_le(tk_rel_norm(both, apart, 8 * 160), LIMIT, what);
        assert_true(tk_rel_norm(both, lower, 8 * 160) > 1e-3);
        demolish(&s);
    }
}

/* Kinds that come to factors leave their base shared: beside the base's weights an engine holds the
 * factors alone. A changed weight is held once, for all models that change it alike. */
TEST(factors_share_the_base_and_changed_weights_are_held_once)
{
    static const struct {
        const char *name;
        size_t more;
    } cases[] = {{"vera", 8}, {"adalora", 8}, {"oft", 4}, {"pissa", 4 + 8}, {"ln-tuning", 3}};
    if (ik_on_stages())
        skip(); /* a stage holds its own part */
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        pair p;
        fm_model *base = NULL, *one = NULL, *two = NULL;
        open_pair(&p, cases[i].name);
        const fm_provider from = ik_provider(&p.mem), of = fm_source_provider(p.base);
        fm_engine *e = ik_engine(1, 64);
        tk_ok(fm_model_load(&base, e, fm_source_tree(p.base), &of, "base"));
        const size_t before = fm_engine_stats_of(e).weights;
        tk_ok(fm_model_load(&one, e, p.both, &from, cases[i].name));
        assert_int_equal(fm_engine_stats_of(e).weights, before + cases[i].more);
        tk_ok(fm_model_load(&two, e, p.both, &from, cases[i].name));
        assert_int_equal(fm_engine_stats_of(e).weights, before + cases[i].more);
        fm_model_close(base);
        fm_model_close(one);
        fm_model_close(two);
        fm_engine_free(e);
        close_pair(&p);
    }
}

/* ==== training ==== */

TEST(a_lora_trains_on_a_changed_weight)
{
    static const int32_t ids[8] = {9, 3, 17, 6, 5, 4, 3, 3};
    if (ik_on_stages())
        skip(); /* training deals its own stages */
    stack s;
    fm_train_result g[2];
    double loss[2];
    fm_engine *e = ik_engine(1, 64);
    build(&s, "oft", "lora");
    tk_ok(fm_train_gradients(e, s.both.tree, &s.of_both, ids, ids, 1, 8, &loss[0], &g[0]));
    tk_ok(fm_train_gradients(e, s.apart.tree, &s.of_apart, ids, ids, 1, 8, &loss[1], &g[1]));
    assert_true(loss[0] == loss[1]);
    assert_int_equal(g[0].count, g[1].count);
    for (size_t i = 0; i < g[0].count; i++)
        assert_memory_equal(g[0].tensors[i].data, g[1].tensors[i].data, g[0].tensors[i].bytes);
    fm_train_result_release(&g[0]);
    fm_train_result_release(&g[1]);
    demolish(&s);
    fm_engine_free(e);
}

TEST(a_kind_without_gradients_is_refused_by_name)
{
    static const char *const names[] = {"vblora", "lora-bias-term", "lora-tokens", "pissa"};
    static const int32_t ids[8] = {9, 3, 17, 6, 5, 4, 3, 3};
    if (ik_on_stages())
        skip();
    fm_engine *e = ik_engine(1, 64);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        pair p;
        double loss;
        fm_train_result g;
        open_pair(&p, names[i]);
        const fm_provider from = ik_provider(&p.mem);
        tk_fails(fm_train_gradients(e, p.both, &from, ids, ids, 1, 8, &loss, &g), FM_EUNSUPPORTED,
                 "not trained here");
        close_pair(&p);
    }
    fm_engine_free(e);
}

int main(void)
{
    char *here = tk_shared("arch/llama");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_that_come_to_factors_match),
        cmocka_unit_test(kinds_that_add_a_matrix_match),
        cmocka_unit_test(kinds_that_rotate_match),
        cmocka_unit_test(rows_norms_and_prompts_match),
        cmocka_unit_test(starts_that_change_the_base_match),
        cmocka_unit_test(what_engines_add_is_merged),
        cmocka_unit_test(what_lies_below_a_changed_weight_is_part_of_it),
        cmocka_unit_test(factors_share_the_base_and_changed_weights_are_held_once),
        cmocka_unit_test(a_lora_trains_on_a_changed_weight),
        cmocka_unit_test(a_kind_without_gradients_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
