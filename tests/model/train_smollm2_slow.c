/* ctest: long */
/* train_smollm2_slow.c - SmolLM2: forty steps of a LoRA follow PEFT's and end at its adapter. */
#include "tests/model/train_smollm2.h"

static smol model;

TEST(forty_steps_follow_peft_to_its_adapter)
{
    fm_train_result r;
    double worst = 0.0;

    smol_train(&model, 40, &r);
    assert_int_equal(r.count, 420);
    for (size_t i = 0; i < r.count; i++) {
        size_t n = 0;
        float *want = ik_ref_get(&model.final, r.tensors[i].name, &n);
        float *have = fm_memdup(r.tensors[i].data, (size_t)r.tensors[i].bytes);
        assert_int_equal(n * sizeof(float), r.tensors[i].bytes);
        double d = tk_rel_norm(have, want, n);
        tk_assert_le(d, 1e-3, r.tensors[i].name);
        worst = d > worst ? d : worst;
        fm_free(want);
        fm_free(have);
    }
    print_message("final adapter: worst tensor %.2g norm-wise\n", worst);
    fm_train_result_release(&r);
}

TEST(the_adapter_config_has_every_key_of_pefts)
{
    fm_train_result r;
    char *path = tk_shared("smollm2-lora/adapter_config.json");
    fm_json *want = NULL;

    assert_non_null(path);
    tk_ok(fm_json_parse_file(&want, path, (size_t)1 << 20));
    smol_train(&model, 1, &r);
    assert_int_equal(fm_json_count(r.adapter_config), fm_json_count(want));
    for (void *it = fm_json_iter(want); it; it = fm_json_next(want, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *have = fm_json_get(r.adapter_config, key);
        if (!have)
            fail_msg("%s is missing", key);
        if (strcmp(key, "base_model_name_or_path") != 0 && strcmp(key, "target_modules") != 0 &&
            !fm_json_equal(have, fm_json_iter_value(it)))
            fail_msg("%s differs", key);
    }
    fm_json_free(want);
    fm_free(path);
    fm_train_result_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_adapter_config_has_every_key_of_pefts),
        cmocka_unit_test(forty_steps_follow_peft_to_its_adapter),
    };

    if (!smol_open(&model))
        return tk_skip("SmolLM2's GGUF or its references are not on this machine (FM_MODELS, "
                       "FM_SHARED_DATA)");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    smol_close(&model);
    return failed;
}
