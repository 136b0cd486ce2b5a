/* Real JSON files of the field parse, and their canonical form is a fixed point. */
#include "tests/testkit.h"

static const char *const files[] = {"smollm2/tokenizer_config.json", "smollm2/config.json",
                                    "smollm2/tokenizer.json",
                                    "arch/llama/peft/lora/adapter_config.json"};

TEST(real_files_survive_a_round_trip)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(files); i++) {
        char *path = tk_shared(files[i]);
        fm_json *a, *b;
        fm_buf one, two;
        if (!path)
            continue;
        tk_ok(fm_json_parse_file(&a, path, (size_t)64 << 20));
        fm_buf_init(&one, 0);
        fm_buf_init(&two, 0);
        tk_ok(fm_json_write(&one, a, FM_JSON_CANONICAL));
        tk_ok(fm_json_parse(&b, fm_buf_span(&one), "canonical"));
        assert_true(fm_json_equal(a, b));
        tk_ok(fm_json_write(&two, b, FM_JSON_CANONICAL));
        assert_true(fm_span_eq(fm_buf_span(&one), fm_buf_span(&two)));
        fm_buf_release(&one);
        fm_buf_release(&two);
        fm_json_free(a);
        fm_json_free(b);
        fm_free(path);
    }
}

TEST(integers_of_1e30_in_tokenizer_configs_are_reals)
{
    char *path = tk_shared("smollm2/tokenizer_config.json");
    fm_json *v;

    tk_ok(fm_json_parse_file(&v, path, (size_t)1 << 24));
    const fm_json *n = fm_json_get(v, "model_max_length");
    assert_true(fm_json_is(n, FM_JSON_REAL) && fm_json_real(n, 0.0) == 1e30);
    fm_json_free(v);
    fm_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_files_survive_a_round_trip),
        cmocka_unit_test(integers_of_1e30_in_tokenizer_configs_are_reals),
    };
    char *probe = tk_shared(files[0]);

    if (!probe)
        return tk_skip("no shared reference data: set FM_SHARED_DATA");
    fm_free(probe);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
