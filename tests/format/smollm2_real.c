/* The real GGUF against what an independent program read out of it: every tensor, bit for bit. */
#include "tests/testkit.h"

#include <string.h>

#include "store/source.h"

static char *gguf_path, *sums_path;
static fm_source *src;

static int open_source(void **state)
{
    (void)state;
    tk_ok(fm_source_open(&src, gguf_path));
    return 0;
}

static int close_source(void **state)
{
    (void)state;
    fm_source_close(src);
    return 0;
}

static void sha_is(const void *bytes, size_t len, const fm_json *want)
{
    fm_digest d;
    char hex[FM_HEX_CHARS + 1];
    tk_ok(fm_sha256(&d, bytes, len));
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, fm_json_cstr(want, ""));
}

static void check_tensor(const fm_entry *e, const fm_json *ref)
{
    const fm_provider p = fm_source_provider(src);
    uint64_t n = 0;
    uint8_t *raw = fm_malloc((size_t)e->bytes);
    tk_ok(fm_shape_elems(&n, &e->shape));
    float *wide = fm_malloc(n * sizeof(float));
    uint16_t *narrow = fm_malloc(n * 2);
    tk_ok(p.read(p.ctx, e, raw));
    tk_ok(fm_to_f32(wide, e->dtype, raw, n));
    sha_is(wide, n * sizeof(float), fm_json_get(ref, "sha256_f32"));
    tk_ok(fm_from_f32(narrow, FM_BF16, wide, n));
    sha_is(narrow, n * 2, fm_json_get(ref, "sha256_bf16"));
    tk_ok(fm_from_f32(narrow, FM_F16, wide, n));
    sha_is(narrow, n * 2, fm_json_get(ref, "sha256_f16"));
    fm_free(raw);
    fm_free(wide);
    fm_free(narrow);
}

TEST(every_tensor_has_the_reference_bits)
{
    fm_json *ref = NULL;
    size_t begin, end;
    tk_ok(fm_json_parse_file(&ref, sums_path, 1 << 24));
    fm_tree_range(fm_source_tree(src), "tensors/", &begin, &end);
    assert_int_equal(end - begin, fm_json_count(ref));
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(fm_source_tree(src), i);
        const fm_json *r = fm_json_get(ref, e->name);
        assert_non_null(r);
        assert_string_equal(fm_dtype_get(e->dtype)->name,
                            fm_json_cstr(fm_json_get(r, "gguf_type"), ""));
        check_tensor(e, r);
    }
    fm_json_free(ref);
}

/* Hugging Face's own config of this model, field by field where ours has the field. */
TEST(config_says_what_hugging_face_says)
{
    static const char *const keys[] = {"hidden_size",
                                       "intermediate_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "num_key_value_heads",
                                       "vocab_size",
                                       "max_position_embeddings",
                                       "head_dim",
                                       "rms_norm_eps",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "model_type",
                                       "hidden_act",
                                       "tie_word_embeddings",
                                       "attention_bias",
                                       "mlp_bias"};
    const fm_entry *e = fm_tree_find(fm_source_tree(src), "model.json");
    fm_json *model = NULL, *ref = NULL;
    char *path = tk_shared("smollm2/config.json");
    assert_non_null(e);
    tk_ok(fm_json_parse(&model, fm_span_of(e->data, (size_t)e->bytes), "model.json"));
    tk_ok(fm_json_parse_file(&ref, path, 1 << 20));
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++) {
        const fm_json *got = fm_json_get(fm_json_get(model, "config"), keys[i]);
        if (!fm_json_equal(got, fm_json_get(ref, keys[i])))
            fail_msg("config field %s differs", keys[i]);
    }
    assert_true(fm_json_real(fm_json_path(model, "config.rope_theta"), 0) == 100000.0);
    fm_json_free(model);
    fm_json_free(ref);
    fm_free(path);
}

static fm_json *tree_json(const char *path)
{
    const fm_entry *e = fm_tree_find(fm_source_tree(src), path);
    const fm_provider p = fm_source_provider(src);
    fm_json *v = NULL;
    fm_buf b;
    assert_non_null(e);
    fm_buf_init(&b, 0);
    tk_ok(fm_entry_read(&b, &p, e));
    tk_ok(fm_json_parse(&v, fm_buf_span(&b), path));
    fm_buf_release(&b);
    return v;
}

TEST(tokenizer_json_is_the_reference_one)
{
    static const char *const keys[] = {"normalizer", "pre_tokenizer", "post_processor",
                                       "decoder",    "added_tokens",  "model"};
    fm_json *got = tree_json("tokenizer/tokenizer.json"), *ref = NULL;
    char *path = tk_shared("smollm2/tokenizer.json");
    tk_ok(fm_json_parse_file(&ref, path, 1 << 26));
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++)
        if (!fm_json_equal(fm_json_get(got, keys[i]), fm_json_get(ref, keys[i])))
            fail_msg("tokenizer.json: %s differs", keys[i]);
    fm_json_free(got);
    fm_json_free(ref);
    fm_free(path);
}

TEST(special_tokens_and_template_are_the_reference_ones)
{
    static const char *const keys[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    fm_json *got = tree_json("tokenizer/tokenizer_config.json"), *ref = NULL;
    char *path = tk_shared("smollm2/tokenizer_config.json");
    char *jinja = tk_shared("smollm2/chat_template.jinja");
    const fm_entry *e = fm_tree_find(fm_source_tree(src), "tokenizer/chat_template.jinja");
    fm_buf b;
    tk_ok(fm_json_parse_file(&ref, path, 1 << 20));
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++)
        assert_string_equal(fm_json_cstr(fm_json_get(got, keys[i]), ""),
                            fm_json_cstr(fm_json_get(ref, keys[i]), "-"));
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, jinja, 1 << 20));
    assert_non_null(e);
    assert_string_equal((const char *)e->data, fm_buf_cstr(&b));
    fm_buf_release(&b);
    fm_json_free(got);
    fm_json_free(ref);
    fm_free(path);
    fm_free(jinja);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_has_the_reference_bits),
        cmocka_unit_test(config_says_what_hugging_face_says),
        cmocka_unit_test(tokenizer_json_is_the_reference_one),
        cmocka_unit_test(special_tokens_and_template_are_the_reference_ones),
    };
    int failed;

    gguf_path = tk_smollm2_gguf();
    sums_path = tk_shared("smollm2/tensors.json");
    if (!gguf_path || !sums_path)
        return tk_skip("needs the SmolLM2 GGUF and the shared reference data");
    failed = cmocka_run_group_tests(tests, open_source, close_source);
    fm_free(gguf_path);
    fm_free(sums_path);
    return failed;
}
