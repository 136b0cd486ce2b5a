/* ctest: card */
/* lora_step.c - a LoRA step in mode bf16 on a GPU, emulated or real: products and terms at once
 * (Hopper's kernels) train the bits of one call after another. */
#include <unistd.h>

#include "infer/device/module.h"
#include "tests/model/infer_kit.h"
#include "train/train.h"

#define TOKENS 34u
#define BATCH 2u
#define STEPS 2u

static char log_path[] = "/tmp/fm_lora_step_XXXXXX";

/* Bytes that the emulated GPU has logged of Hopper's products. */
static long logged(void)
{
    FILE *f = fopen(log_path, "r");

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    fclose(f);
    return n;
}

static fm_train_result train(const fm_source *src, const char *wide, uint32_t r)
{
    int32_t ids[BATCH * TOKENS * STEPS], labels[BATCH * TOKENS * STEPS];
    fm_engine_opts o = fm_engine_defaults();
    fm_provider p = fm_source_provider(src);
    fm_train_result out;
    fm_engine *e;

    for (uint32_t i = 0; i < FM_ARRAY_LEN(ids); i++) {
        ids[i] = (int32_t)(5 + (i * 37 + i / 9 * 11) % 900);
        labels[i] = i % TOKENS < 2 ? -100 : ids[i];
    }
    fm_train_job j = {.name = "atlas",
                      .config = fm_train_defaults(FM_METHOD_LORA),
                      .parent = fm_source_tree(src),
                      .batch_ids = ids,
                      .batch_labels = labels};
    j.config.r = r;
    j.config.alpha = 2 * r;
    j.config.lr = 1e-2;
    j.config.steps = STEPS;
    j.config.batch = BATCH;
    j.config.max_tokens = TOKENS;
    (void)snprintf(j.config.layers, sizeof(j.config.layers), "2-4");
    setenv("FMSTORE_CUDA_WIDE", wide, 1);
    o.threads = 1;
    o.device = "cuda";
    o.mode = "bf16";
    tk_ok(fm_engine_new(&e, &o));
    tk_ok(fm_train_run(e, &p, &j, 1, &out, NULL, NULL));
    fm_engine_free(e);
    return out;
}

TEST(a_step_at_once_has_the_bits_of_one_after_another)
{
    char *dir = tk_source("examples/atlas/base");
    fm_source *src;

    tk_ok(fm_source_open(&src, dir));
    fm_train_result want = train(src, "0", 4);
    long before = logged();
    fm_train_result got = train(src, "64", 4);
    if (getenv("FMSTORE_CUDA_MODULE") && strstr(getenv("FMSTORE_CUDA_MODULE"), "emulated"))
        assert_true(logged() > before);
    assert_int_equal(want.count, got.count);
    assert_true(want.count > 0);
    for (size_t i = 0; i < want.count; i++)
        if (want.tensors[i].bytes != got.tensors[i].bytes ||
            memcmp(want.tensors[i].data, got.tensors[i].data, (size_t)want.tensors[i].bytes) != 0)
            fail_msg("%s differs", want.tensors[i].name);
    fm_train_result_release(&want);
    fm_train_result_release(&got);
    fm_source_close(src);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_at_once_has_the_bits_of_one_after_another),
    };
    const fm_module *module;
    uint32_t cards;
    int fd = mkstemp(log_path);

    if (fd < 0 || fm_module_cuda(&module) != FM_OK)
        return 1;
    close(fd);
    setenv("SIMT_WIDE_LOG", log_path, 1);
    if (module->count(&cards) != FM_OK) {
        printf("skipped: %s\n", fm_error_text());
        (void)remove(log_path);
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)remove(log_path);
    return rc;
}
