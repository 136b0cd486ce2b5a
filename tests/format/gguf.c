/* The GGUF reader refuses every lie, and what it cannot map to Hugging Face's words, by name. */
#include "tests/format/fixtures.h"

#include <math.h>

#include "store/formats/gguf.h"

static fm_buf file;

static fm_status parse_len(size_t len)
{
    fm_gguf *g = NULL;
    fm_status rc = fm_gguf_parse(&g, fm_span_of(file.data, len), "m.gguf");
    if (rc < 0)
        assert_null(g);
    fm_gguf_close(g);
    return rc;
}

static fm_status parse_spec(const gg_spec *spec)
{
    fm_buf_clear(&file);
    gg_build(&file, spec);
    return parse_len(file.len);
}

/* As a source: names, config, tokenizer. */
static fm_status open_spec(const gg_spec *spec, fm_source **out)
{
    char *dir = tk_scratch(), *path = fm_path_join(dir, "m.gguf");
    fm_source *src = NULL;
    fm_buf_clear(&file);
    gg_build(&file, spec);
    tk_ok(fm_write_file(path, file.data, file.len));
    fm_status rc = fm_source_open(&src, path);
    if (out)
        *out = src;
    else
        fm_source_close(src);
    fm_free(path);
    fm_free(dir);
    return rc;
}

TEST(every_truncation_is_refused)
{
    const gg_spec plain = {0};
    tk_ok(parse_spec(&plain));
    for (size_t n = 0; n < file.len; n += 1 + n / 300)
        assert_int_equal(parse_len(n), FM_ECORRUPT);
    assert_int_equal(parse_len(file.len - 1), FM_ECORRUPT);
}

TEST(versions_and_counts_are_checked)
{
    const gg_spec v1 = {.version = 1}, v9 = {.version = 9}, big = {.version = 0x03000000};
    const gg_spec tensors = {.tensor_claim = 1ull << 60}, kvs = {.kv_claim = 1ull << 60};
    const gg_spec more = {.tensor_claim = 1000};
    tk_fails(parse_spec(&v1), FM_EUNSUPPORTED, "version 1");
    tk_fails(parse_spec(&v9), FM_EUNSUPPORTED, "version 9");
    tk_fails(parse_spec(&big), FM_ECORRUPT, "claims"); /* whose numbers are not big-endian */
    tk_fails(parse_spec(&tensors), FM_ECORRUPT, "tensors");
    tk_fails(parse_spec(&kvs), FM_ECORRUPT, "metadata");
    tk_fails(parse_spec(&more), FM_ECORRUPT, NULL);
    fm_buf_clear(&file);
    fm_buf_str(&file, "GGUX\3\0\0\0");
    tk_fails(parse_len(file.len), FM_ECORRUPT, "GGUF");
}

static void bend_overlap(gg_tensor *t, size_t n)
{
    (void)n;
    t[2].at = t[1].at;
}
static void bend_far(gg_tensor *t, size_t n)
{
    t[n - 1].at = 1ull << 40;
}
static void bend_wrap(gg_tensor *t, size_t n)
{
    t[n - 1].at = UINT64_MAX - 31;
}
static void bend_odd(gg_tensor *t, size_t n)
{
    t[n - 1].at += 4;
}
static void bend_twice(gg_tensor *t, size_t n)
{
    t[n - 1].name = t[0].name;
}
static void bend_empty(gg_tensor *t, size_t n)
{
    t[n - 1].name = "";
}
static void bend_type(gg_tensor *t, size_t n)
{
    t[n - 1].type = 99;
}
static void bend_huge(gg_tensor *t, size_t n)
{
    t[n - 1].cols = 1ull << 62;
}
static void bend_block(gg_tensor *t, size_t n)
{
    (void)n;
    t[0].cols = 33;
}

TEST(places_and_shapes_are_checked)
{
    static const struct {
        void (*bend)(gg_tensor *t, size_t n);
        fm_status rc;
        const char *needle;
    } bad[] = {
        {bend_overlap, FM_ECORRUPT, "overlaps"},      {bend_far, FM_ECORRUPT, "outside the file"},
        {bend_wrap, FM_ECORRUPT, "outside the file"}, {bend_odd, FM_ECORRUPT, "alignment"},
        {bend_twice, FM_ECORRUPT, "twice"},           {bend_empty, FM_ECORRUPT, "empty"},
        {bend_huge, FM_ECORRUPT, "output_norm"},      {bend_block, FM_ECORRUPT, "token_embd"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        const gg_spec spec = {.bend = bad[i].bend};
        tk_fails(parse_spec(&spec), bad[i].rc, bad[i].needle);
        assert_non_null(strstr(fm_error_text(), "m.gguf"));
    }
}

static void more_twice(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "llama.block_count", 2);
    ++*count;
}
static void more_alignment(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "general.alignment", 24);
    ++*count;
}
static void more_text_alignment(fm_buf *kv, uint64_t *count)
{
    gg_str(kv, "general.alignment", "32");
    ++*count;
}
static void more_array(fm_buf *kv, uint64_t *count)
{
    gg_text(kv, "x");
    fm_buf_u32(kv, GG_ARR);
    fm_buf_u32(kv, GG_U32);
    fm_buf_u64(kv, UINT64_MAX / 2);
    ++*count;
}
static void more_nested(fm_buf *kv, uint64_t *count)
{
    gg_text(kv, "x");
    fm_buf_u32(kv, GG_ARR);
    for (int i = 0; i < 40; i++) {
        fm_buf_u32(kv, GG_ARR);
        fm_buf_u64(kv, 1);
    }
    ++*count;
}
static void more_type(fm_buf *kv, uint64_t *count)
{
    gg_text(kv, "x");
    fm_buf_u32(kv, 77);
    ++*count;
}

TEST(metadata_is_checked)
{
    static const struct {
        void (*more)(fm_buf *kv, uint64_t *count);
        const char *needle;
    } bad[] = {{more_twice, "llama.block_count' is there twice"},
               {more_alignment, "general.alignment"},
               {more_text_alignment, "general.alignment"},
               {more_array, "x"},
               {more_nested, "nests"},
               {more_type, "type 77"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        const gg_spec spec = {.more = bad[i].more};
        tk_fails(parse_spec(&spec), FM_ECORRUPT, bad[i].needle);
    }
}

static void more_unknown(fm_buf *kv, uint64_t *count)
{
    gg_f32(kv, "llama.logit_scale", 2.0f);
    ++*count;
}
static void more_experts(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "qwen2.expert_count", 8);
    ++*count;
}
static void more_longrope(fm_buf *kv, uint64_t *count)
{
    gg_str(kv, "llama.rope.scaling.type", "longrope");
    ++*count;
}
static void more_split(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "split.count", 3);
    ++*count;
}
static void more_unk(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "tokenizer.ggml.unknown_token_id", 2);
    ++*count;
}
static void more_rot(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "llama.rope.dimension_count", 8);
    ++*count;
}
static void bend_name(gg_tensor *t, size_t n)
{
    t[n - 2].name = "blk.7.ffn_down.weight";
}
static void bend_alias(gg_tensor *t, size_t n)
{
    t[n - 2].name = "blk.01.ffn_down.weight";
}
static void bend_rows(gg_tensor *t, size_t n)
{
    (void)n;
    t[3].rows = 32; /* fewer rows than four heads of 16 have */
}

TEST(contradictions_are_refused_by_field)
{
    static const struct {
        gg_spec spec;
        fm_status rc;
        const char *needle;
    } bad[] = {{{.model = "llama"}, FM_ECORRUPT, "tokenizer.ggml.unknown_token_id"},
               {{.model = "llama", .more = more_unk}, FM_ECORRUPT, "tokenizer.ggml.scores"},
               {{.more = more_split}, FM_EINVAL, "-00001-of-00003.gguf"},
               {{.bend = bend_rows}, FM_ECORRUPT, "attn_q"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        tk_fails(open_spec(&bad[i].spec, NULL), bad[i].rc, bad[i].needle);
}

TEST(what_cannot_be_mapped_is_kept_and_says_why)
{
    static const struct {
        gg_spec spec;
        const char *needle;
    } odd[] = {{{.arch = "mamba"}, "mamba"},
               {{.pre = "kimi-k2"}, "kimi-k2"},
               {{.model = "rwkv"}, "'rwkv' is not supported"},
               {{.more = more_unknown}, "llama.logit_scale"},
               {{.more = more_experts, .arch = "qwen2"}, "with experts"},
               {{.more = more_longrope}, "longrope"},
               {{.more = more_rot}, "rope.dimension_count"},
               {{.bend = bend_name}, "blk.7.ffn_down"},
               {{.bend = bend_alias}, "blk.01.ffn_down"},
               {{.bend = bend_type}, "ggml type 99"},
               {{.rope_freqs = true}, "rope_freqs"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(odd); i++) {
        fm_source *src = NULL;
        tk_ok(open_spec(&odd[i].spec, &src));
        const char *why = fm_source_kept(src);
        assert_non_null(why);
        assert_non_null(strstr(why, odd[i].needle));
        assert_null(strstr(why, "m.gguf")); /* the place is no part of a version */
        assert_null(fm_tree_find(fm_source_tree(src), "model.json"));
        assert_non_null(fm_tree_find(fm_source_tree(src), "tensors/token_embd.weight"));
        fm_source_close(src);
    }
}

static void more_sliding(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "llama.attention.sliding_window", 8);
    gg_str(kv, "llama.rope.scaling.type", "linear");
    gg_f32(kv, "llama.rope.scaling.factor", 2.5f);
    *count += 3;
}

TEST(the_config_speaks_hugging_faces_words)
{
    const gg_spec spec = {.more = more_sliding, .bias = true};
    fm_source *src = NULL;
    fm_json *model = NULL;
    tk_ok(open_spec(&spec, &src));
    const fm_entry *e = fm_tree_find(fm_source_tree(src), "model.json");
    tk_ok(fm_json_parse(&model, fm_span_of(e->data, (size_t)e->bytes), "model.json"));
    const fm_json *c = fm_json_get(model, "config");
    assert_string_equal(fm_json_cstr(fm_json_get(c, "model_type"), ""), "mistral");
    assert_int_equal(fm_json_int(fm_json_get(c, "sliding_window"), 0), 8);
    assert_int_equal(fm_json_int(fm_json_get(c, "head_dim"), 0), 16);
    assert_int_equal(fm_json_int(fm_json_get(c, "vocab_size"), 0), GG_VOCAB);
    assert_true(fm_json_real(fm_json_get(c, "rms_norm_eps"), 0) == 1e-6);
    assert_true(fm_json_real(fm_json_path(c, "rope_scaling.factor"), 0) == 2.5);
    assert_true(fm_json_bool(fm_json_get(c, "attention_bias"), false));
    assert_true(fm_json_bool(fm_json_get(c, "tie_word_embeddings"), false));
    fm_json_free(model);
    fm_source_close(src);
}

static void more_llama3(fm_buf *kv, uint64_t *count)
{
    gg_u32(kv, "llama.rope.dimension_count", 16);
    ++*count;
}

/* Llama 3's divisors as its converter makes them: factor 8, low 1, high 4, original 64. */
TEST(llama3_scaling_is_read_back_from_its_table)
{
    const gg_spec spec = {.rope_freqs = true, .more = more_llama3};
    char *dir = tk_scratch(), *path = fm_path_join(dir, "m.gguf"), *out = fm_path_join(dir, "o");
    fm_source *src = NULL;
    fm_gguf *g = NULL;
    fm_json *model = NULL;
    fm_buf_clear(&file);
    gg_build(&file, &spec);
    tk_ok(fm_gguf_parse(&g, fm_buf_span(&file), "m.gguf"));
    const size_t at = (size_t)fm_gguf_find(g, "rope_freqs.weight")->at;
    fm_gguf_close(g);
    for (size_t i = 0; i < 8; i++) {
        const double wave = 2 * 3.14159265358979 * pow(10000.0, (double)i / 8.0);
        const double smooth = (64.0 / wave - 1.0) / 3.0;
        const double mid = 1.0 / ((1.0 - smooth) / 8.0 + smooth);
        const float v = (float)(wave < 16 ? 1.0 : wave > 64 ? 8.0 : mid);
        memcpy(file.data + at + 4 * i, &v, 4);
    }
    tk_ok(fm_write_file(path, file.data, file.len));
    tk_ok(fm_source_open(&src, path));
    const fm_entry *e = fm_tree_find(fm_source_tree(src), "model.json");
    tk_ok(fm_json_parse(&model, fm_span_of(e->data, (size_t)e->bytes), "model.json"));
    const fm_json *r = fm_json_path(model, "config.rope_scaling");
    assert_string_equal(fm_json_cstr(fm_json_get(r, "rope_type"), ""), "llama3");
    assert_true(fm_json_real(fm_json_get(r, "factor"), 0) == 8.0);
    assert_int_equal(fm_json_int(fm_json_get(r, "original_max_position_embeddings"), 0), 64);
    fm_source_close(src);
    fx_round_trip(path, out);
    fm_json_free(model);
    fm_free(path);
    fm_free(out);
    fm_free(dir);
}

TEST(special_and_user_tokens_are_added_tokens)
{
    const gg_spec spec = {0};
    fm_source *src = NULL;
    fm_json *tok = NULL;
    tk_ok(open_spec(&spec, &src));
    const fm_entry *e = fm_tree_find(fm_source_tree(src), "tokenizer/tokenizer.json");
    assert_non_null(e);
    tk_ok(fm_json_parse(&tok, fm_span_of(e->data, (size_t)e->bytes), "tokenizer.json"));
    const fm_json *added = fm_json_get(tok, "added_tokens");
    assert_int_equal(fm_json_count(added), 3);
    assert_true(fm_json_bool(fm_json_get(fm_json_at(added, 0), "special"), false));
    assert_false(fm_json_bool(fm_json_get(fm_json_at(added, 2), "special"), true));
    assert_int_equal(fm_json_int(fm_json_path(tok, "model.vocab.abc"), -1), 6);
    fm_json_free(tok);
    fm_source_close(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(versions_and_counts_are_checked),
        cmocka_unit_test(places_and_shapes_are_checked),
        cmocka_unit_test(metadata_is_checked),
        cmocka_unit_test(contradictions_are_refused_by_field),
        cmocka_unit_test(what_cannot_be_mapped_is_kept_and_says_why),
        cmocka_unit_test(the_config_speaks_hugging_faces_words),
        cmocka_unit_test(llama3_scaling_is_read_back_from_its_table),
        cmocka_unit_test(special_and_user_tokens_are_added_tokens),
    };
    fm_buf_init(&file, 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_buf_release(&file);
    return failed;
}
