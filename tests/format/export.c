/* Exports: files that Hugging Face's own writers would have written; honest refusals. */
#include "tests/format/fixtures.h"

#include "store/export/export_impl.h"

static char *root;

static char *under(const char *name)
{
    return fm_path_join(root, name);
}

static int make_root(void **state)
{
    (void)state;
    fm_free(root);
    root = tk_scratch();
    return 0;
}

static fm_source *open_model(void)
{
    fm_source *src = NULL;
    char *in = under("in");
    fx_hf_folder(in);
    tk_ok(fm_source_open(&src, in));
    fm_free(in);
    return src;
}

TEST(bad_requests_are_refused_and_leave_nothing)
{
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    const fm_tree *t = fm_source_tree(src);
    char *in = under("in"), *out = under("out");
    tk_fails(fm_export(t, &p, in, FM_EXPORT_HF, FM_DTYPE_NONE), FM_EEXISTS, "in");
    tk_fails(fm_export(t, &p, out, FM_EXPORT_HF, FM_I32), FM_EINVAL, "I32");
    tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_F16), FM_EINVAL, "dtype");
    tk_fails(fm_export(t, &p, out, FM_EXPORT_PEFT, FM_DTYPE_NONE), FM_EUNSUPPORTED, "adapter");
    assert_false(fm_path_exists(out));
    fm_source_close(src);
    fm_free(in);
    fm_free(out);
}

TEST(an_unchanged_model_is_written_as_it_came)
{
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    char *out = under("hf"), *one = under("one.safetensors"),
         *model = under("in/model.safetensors");
    char *hf = under("hf/model.safetensors");
    tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    fx_same_file(model, hf);
    tk_ok(fm_export(fm_source_tree(src), &p, one, FM_EXPORT_SAFETENSORS, FM_DTYPE_NONE));
    fx_same_file(model, one);
    fm_source_close(src);
    fm_free(out);
    fm_free(one);
    fm_free(model);
    fm_free(hf);
}

TEST(another_dtype_rounds_every_float_and_says_so)
{
    fm_source *src = open_model(), *got = NULL;
    const fm_provider p = fm_source_provider(src);
    char *out = under("bf16");
    tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_HF, FM_BF16));
    tk_ok(fm_source_open(&got, out));
    const fm_provider pg = fm_source_provider(got);
    float wide[8];
    uint16_t narrow[8];
    tk_ok(p.read(p.ctx, fm_tree_find(fm_source_tree(src), "tensors/model/norm.weight"), wide));
    tk_ok(pg.read(pg.ctx, fm_tree_find(fm_source_tree(got), "tensors/model/norm.weight"), narrow));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(narrow[i], fm_f32_to_bf16(wide[i]));
    const fm_entry *model = fm_tree_find(fm_source_tree(got), "model.json");
    assert_non_null(strstr((const char *)model->data, "\"torch_dtype\": \"bfloat16\""));
    fm_source_close(got);
    fm_source_close(src);
    fm_free(out);
}

/* A loader that believes a stale "bfloat16" would round float32 weights without a word. */
TEST(the_config_names_the_dtype_that_is_written)
{
    static const char stale[] =
        "{\"config\": {\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\"}}";
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    fm_tree *t = NULL;
    fm_json *v = NULL;
    char *out = under("named"), *config = under("named/config.json");
    tk_ok(fm_tree_copy(&t, fm_source_tree(src)));
    tk_ok(fm_tree_put_file(t, "model.json", fm_span_str(stale)));
    tk_ok(fm_export(t, &p, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    tk_ok(fm_json_parse_file(&v, config, 1 << 20));
    assert_string_equal(fm_json_cstr(fm_json_get(v, "torch_dtype"), ""), "float32");
    fm_json_free(v);
    fm_tree_free(t);
    fm_source_close(src);
    fm_free(out);
    fm_free(config);
}

TEST(large_models_are_sharded_with_an_index)
{
    fm_source *src = open_model(), *got = NULL;
    const fm_provider p = fm_source_provider(src);
    char *out = under("shards"), *index = under("shards/model.safetensors.index.json");
    fm_json *v = NULL;
    fm_digest a, b;
    const char *const skip[] = {"source/", NULL};
    const fm_view_opts opts = {.format = FM_EXPORT_HF};
    fm_view *view = NULL;
    tk_ok(exp_view_open(&view, fm_source_tree(src), &p, &opts, 400));
    tk_ok(exp_write(view, out));
    fm_view_close(view);
    tk_ok(fm_json_parse_file(&v, index, 1 << 20));
    assert_int_equal(fm_json_int(fm_json_path(v, "metadata.total_size"), 0),
                     4 * (6 * 8 + 8 * 8 + 12 * 8 + 8));
    tk_ok(fm_source_open(&got, out));
    tk_ok(fm_tree_digest(&a, fm_source_tree(src), skip));
    tk_ok(fm_tree_digest(&b, fm_source_tree(got), skip));
    assert_true(fm_digest_eq(&a, &b));
    fm_json_free(v);
    fm_source_close(got);
    fm_source_close(src);
    fm_free(out);
    fm_free(index);
}

TEST(blocks_are_widened_where_the_format_has_none)
{
    const gg_spec spec = {.bias = true};
    fm_source *src = NULL, *got = NULL;
    char *in = under("m.gguf"), *out = under("hf");
    fm_buf b;
    fm_buf_init(&b, 0);
    gg_build(&b, &spec);
    tk_ok(fm_write_file(in, b.data, b.len));
    fm_buf_release(&b);
    tk_ok(fm_source_open(&src, in));
    const fm_provider p = fm_source_provider(src);
    tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_HF, FM_DTYPE_NONE));
    tk_ok(fm_source_open(&got, out));
    const fm_entry *e =
        fm_tree_find(fm_source_tree(got), "tensors/model/layers/1/self_attn/k_proj.weight");
    assert_non_null(e);
    assert_int_equal(e->dtype, FM_F32);
    assert_non_null(fm_tree_find(fm_source_tree(got), "tokenizer/tokenizer.json"));
    fm_source_close(got);
    fm_source_close(src);
    fm_free(in);
    fm_free(out);
}

/* A config that a derivation wrote gets the fields that PEFT's own files have, keys sorted. */
TEST(an_adapter_made_here_leaves_as_peft_writes_it)
{
    static const char config[] =
        "{\"r\": 3, \"peft_type\": \"LORA\", \"lora_alpha\": 6, \"target_modules\": [\"q_proj\"]}";
    fm_source *src = NULL;
    char *in = under("ad"), *out = under("out"), *file = under("out/adapter_config.json");
    char *a = under("ad/adapter_model.safetensors"), *b = under("out/adapter_model.safetensors");
    fm_buf text;
    fx_peft_folder(in, config, FX_ADAPTER, 2);
    tk_ok(fm_source_open(&src, in));
    const fm_provider p = fm_source_provider(src);
    tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_PEFT, FM_DTYPE_NONE));
    fx_same_file(a, b);
    fm_buf_init(&text, 0);
    tk_ok(fm_read_file(&text, file, 1 << 20));
    const char *s = fm_buf_cstr(&text);
    assert_true(strncmp(s, "{\n  \"alpha_pattern\": {},\n  \"auto_mapping\": null,", 48) == 0);
    assert_non_null(strstr(s, "\"use_rslora\": false\n}"));
    assert_non_null(strstr(s, "\"r\": 3,"));
    fm_buf_release(&text);
    fm_source_close(src);
    fm_free(in);
    fm_free(out);
    fm_free(file);
    fm_free(a);
    fm_free(b);
}

static void bend_source(fm_tree *t, const char *text)
{
    tk_ok(fm_tree_put_file(t, "source/source.json", fm_span_str(text)));
}

TEST(a_strangers_source_json_cannot_leave_the_folder)
{
    static const char *const bad[] = {
        "{\"format\":1,\"files\":[{\"name\":\"../x\",\"bytes\":0,\"sha256\":\"\",\"pieces\":[]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"/x\",\"bytes\":0,\"sha256\":\"\",\"pieces\":[]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"a//b\",\"bytes\":0,\"pieces\":[]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"\",\"bytes\":0,\"pieces\":[]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":-1,\"pieces\":[]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":0,\"pieces\":[{}]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":9,\"pieces\":"
        "[{\"literal\":\"README.md\",\"at\":9,\"bytes\":9223372036854775807}]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":1,\"pieces\":"
        "[{\"literal\":\"README.md\"}]}]}",
        "{\"format\":1,\"files\":[{\"name\":\"x\",\"bytes\":32,\"pieces\":"
        "[{\"entry\":\"tensors/model/norm.weight\",\"rotary_heads\":3}]}]}",
        "{\"format\":1,\"files\":{}}",
    };
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    fm_tree *t = NULL;
    char *out = under("out");
    tk_ok(fm_tree_copy(&t, fm_source_tree(src)));
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        bend_source(t, bad[i]);
        tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_ECORRUPT,
                 "source.json");
        assert_false(fm_path_exists(out));
    }
    bend_source(t, "{\"format\":2}");
    tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_EVERSION, "format");
    tk_ok(fm_tree_remove(t, "source/source.json"));
    tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_EUNSUPPORTED, "no file");
    fm_tree_free(t);
    fm_source_close(src);
    fm_free(out);
}

TEST(one_file_is_made_again_by_its_digest)
{
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    const fm_tree *t = fm_source_tree(src);
    char *out = under("again"), *in = under("in/model.safetensors");
    fm_file_map came, made;
    fm_digest sha;
    tk_ok(fm_map_file(&came, in));
    tk_ok(fm_sha256(&sha, came.data, came.len));
    tk_ok(fm_export_file(t, &p, &sha, out));
    tk_ok(fm_map_file(&made, out));
    assert_int_equal(made.len, came.len);
    assert_memory_equal(made.data, came.data, came.len);
    tk_fails(fm_export_file(t, &p, &sha, out), FM_EEXISTS, "again");
    tk_ok(fm_remove_file(out));
    sha.b[0] ^= 1;
    tk_fails(fm_export_file(t, &p, &sha, out), FM_ENOTFOUND, "SHA-256");
    assert_false(fm_path_exists(out));
    fm_unmap_file(&came);
    fm_unmap_file(&made);
    fm_source_close(src);
    fm_free(out);
    fm_free(in);
}

TEST(a_changed_version_has_no_source_bytes)
{
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    fm_tree *t = NULL;
    char *out = under("out");
    tk_ok(fm_tree_copy(&t, fm_source_tree(src)));
    tk_ok(fm_tree_put_file(t, "README.md", fm_span_str("# b card\n")));
    tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_EUNSUPPORTED, "changed");
    tk_ok(fm_tree_remove(t, "README.md"));
    tk_fails(fm_export(t, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_EUNSUPPORTED, "no longer");
    assert_false(fm_path_exists(out));
    fm_tree_free(t);
    fm_source_close(src);
    fm_free(out);
}

/* Of a changed version, the file that a digest names is still made where its own pieces are
 * there. */
TEST(a_file_that_was_not_changed_is_still_made)
{
    fm_source *src = open_model();
    const fm_provider p = fm_source_provider(src);
    fm_tree *t = NULL;
    char *out = under("still"), *in = under("in/model.safetensors");
    fm_file_map came;
    fm_digest sha;
    tk_ok(fm_map_file(&came, in));
    tk_ok(fm_sha256(&sha, came.data, came.len));
    tk_ok(fm_tree_copy(&t, fm_source_tree(src)));
    tk_ok(fm_tree_remove(t, "README.md"));
    tk_ok(fm_export_file(t, &p, &sha, out));
    fx_same_file(in, out);
    tk_ok(fm_remove_file(out));
    tk_ok(fm_tree_remove(t, "tensors/model/norm.weight"));
    tk_fails(fm_export_file(t, &p, &sha, out), FM_EUNSUPPORTED, "no longer");
    assert_false(fm_path_exists(out));
    fm_unmap_file(&came);
    fm_tree_free(t);
    fm_source_close(src);
    fm_free(out);
    fm_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(bad_requests_are_refused_and_leave_nothing, make_root),
        cmocka_unit_test_setup(an_unchanged_model_is_written_as_it_came, make_root),
        cmocka_unit_test_setup(another_dtype_rounds_every_float_and_says_so, make_root),
        cmocka_unit_test_setup(the_config_names_the_dtype_that_is_written, make_root),
        cmocka_unit_test_setup(large_models_are_sharded_with_an_index, make_root),
        cmocka_unit_test_setup(blocks_are_widened_where_the_format_has_none, make_root),
        cmocka_unit_test_setup(an_adapter_made_here_leaves_as_peft_writes_it, make_root),
        cmocka_unit_test_setup(a_strangers_source_json_cannot_leave_the_folder, make_root),
        cmocka_unit_test_setup(one_file_is_made_again_by_its_digest, make_root),
        cmocka_unit_test_setup(a_changed_version_has_no_source_bytes, make_root),
        cmocka_unit_test_setup(a_file_that_was_not_changed_is_still_made, make_root),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_free(root);
    return failed;
}
