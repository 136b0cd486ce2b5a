/* ctest: apart */
/* Every allocation of opening an engine, loading a model with an adapter, generating and scoring
 * fails in turn: the failure is reported, nothing leaks, and the same call works afterwards. */
#include "tests/model/infer_kit.h"

typedef struct world {
    fm_source *base, *adapter;
    fm_tree *tree;
    ik_mem both;
} world;

static void world_open(world *w, const char *kind)
{
    *w = (world){.base = ik_source("arch/llama"), .adapter = ik_source(kind)};
    tk_ok(
        fm_adapter_apply(&w->tree, fm_source_tree(w->base), fm_source_tree(w->adapter), "", NULL));
    w->both.behind[0] = fm_source_provider(w->base);
    w->both.behind[1] = fm_source_provider(w->adapter);
    w->both.behind_count = 2;
}

static void world_close(world *w)
{
    fm_tree_free(w->tree);
    fm_source_close(w->adapter);
    fm_source_close(w->base);
}

/* FM_OK, or the first failure; a request that ended "error" counts as one. */
static fm_status use(fm_model *m)
{
    int32_t ids[70];
    float lp[70];
    fm_gen_request q[2];
    fm_gen_result r[2];
    fm_status rc = FM_OK;
    for (int32_t i = 0; i < 70; i++)
        ids[i] = 5 + i;
    for (int i = 0; i < 2; i++) { /* the second finds the first one's blocks */
        q[i] = (fm_gen_request){.model = m, .prompt = ids, .prompt_len = 70, .max_new = 3};
        fm_sample_defaults(&q[i].sampling);
        q[i].ignore_eos = true;
    }
    rc = fm_generate(fm_model_engine(m), q, 2, r);
    for (int i = 0; i < 2; i++) {
        if (rc == FM_OK && strcmp(r[i].finish, "length") != 0)
            rc = FM_ENOMEM;
        fm_gen_result_release(&r[i]);
    }
    return rc == FM_OK ? fm_score(m, ids, 70, lp, NULL, 0) : rc;
}

static fm_status whole_life(world *w)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    fm_model *m = NULL;
    o.threads = 1;
    o.max_rows = 8;
    fm_provider p = ik_provider(&w->both);
    fm_status rc = fm_engine_new(&e, &o);
    if (rc == FM_OK)
        rc = fm_model_load(&m, e, w->tree, &p, "m");
    if (rc == FM_OK)
        rc = use(m);
    fm_model_close(m);
    fm_engine_free(e);
    return rc;
}

static void each_failed_allocation_is_reported(const char *kind)
{
    world w;
    world_open(&w, kind);
    fm_status rc = FM_ENOMEM;
    uint64_t nth = 0;
    while (rc != FM_OK) {
        fm_mem_fail_at(++nth, false);
        rc = whole_life(&w);
        fm_mem_fail_at(0, false);
        if (rc != FM_OK && rc != FM_ENOMEM)
            fail_msg("allocation %llu: %s", (unsigned long long)nth, fm_error_text());
        assert_true(nth < 20000);
    }
    assert_true(nth > 50);
    tk_ok(whole_life(&w));
    world_close(&w);
}

TEST(with_a_lora_and_a_saved_module)
{
    each_failed_allocation_is_reported("arch/llama/peft/lora-modules-to-save");
}
TEST(with_prefixes)
{
    each_failed_allocation_is_reported("arch/llama/peft/prefix");
}
TEST(with_prompts)
{
    each_failed_allocation_is_reported("arch/llama/peft/prompt");
}

int main(void)
{
    char *here = tk_shared("arch/llama/peft/lora");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_a_lora_and_a_saved_module),
        cmocka_unit_test(with_prefixes),
        cmocka_unit_test(with_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
