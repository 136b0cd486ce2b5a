/* ctest: cost=20 */
/* train_smollm2_real.c - SmolLM2: the first four steps of a LoRA follow PEFT's, and alpaca records
 * become the very ids that PEFT trained on. */
#include "tests/model/train_smollm2.h"

static smol model;

TEST(four_steps_follow_peft)
{
    fm_train_result r;

    smol_train(&model, 4, &r);
    fm_train_result_release(&r);
}

static void same_as_batch(const fm_example *e, const int32_t *ids, const int32_t *labels,
                          const int32_t *mask, size_t number)
{
    for (uint32_t t = 0; t < 160; t++) {
        bool valid = t < e->len;
        if ((mask[t] != 0) != valid || labels[t] != (valid ? e->labels[t] : -100) ||
            (valid && ids[t] != e->ids[t]))
            fail_msg("example %zu differs at token %u", number, t);
    }
}

TEST(alpaca_records_become_the_ids_of_the_reference)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = ik_model(e, model.src, "smollm2");
    char *path = tk_shared("text/alpaca_en_demo.json");
    fm_train_config c = smol_config();
    fm_dataset *d = NULL;
    fm_buf bytes;
    int32_t *ids = ik_ref_get(&model.batches, "input_ids", NULL);
    int32_t *labels = ik_ref_get(&model.batches, "labels", NULL);
    int32_t *mask = ik_ref_get(&model.batches, "attention_mask", NULL);

    assert_non_null(path);
    fm_buf_init(&bytes, 0);
    tk_ok(fm_read_file(&bytes, path, (size_t)1 << 24));
    tk_ok(fm_dataset_open(&d, fm_buf_span(&bytes), "alpaca_en_demo.json", fm_model_tokenizer(m),
                          fm_model_chat_template(m), &c, NULL, 0));
    size_t found = 0;
    for (size_t i = 0; i < fm_dataset_count(d); i++) {
        const fm_example *x = fm_dataset_at(d, i);
        if (x->index < 100 || x->index >= 260)
            continue;
        size_t at = (size_t)(x->index - 100) * 160;
        same_as_batch(x, ids + at, labels + at, mask + at, x->index);
        assert_true(strlen(x->preview) > 0 && strlen(x->preview) <= 120);
        found++;
    }
    assert_int_equal(found, 160);
    fm_dataset_close(d);
    fm_buf_release(&bytes);
    fm_free(path);
    fm_free(ids);
    fm_free(labels);
    fm_free(mask);
    fm_model_close(m);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alpaca_records_become_the_ids_of_the_reference),
        cmocka_unit_test(four_steps_follow_peft),
    };

    if (!smol_open(&model))
        return tk_skip("SmolLM2's GGUF or its references are not on this machine (FM_MODELS, "
                       "FM_SHARED_DATA)");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    smol_close(&model);
    return failed;
}
