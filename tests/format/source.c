/* Foreign models in and out: every byte that came in comes out again. */
#include "tests/format/fixtures.h"

#include <stdio.h>
#include <unistd.h>

#include "store/formats/gguf.h"

static char *dir_in(const char *name)
{
    char *root = tk_scratch(), *path = fm_path_join(root, name);
    fm_free(root);
    return path;
}

static void put_gguf(const char *path, const gg_spec *spec)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    gg_build(&b, spec);
    tk_ok(fm_write_file(path, b.data, b.len));
    fm_buf_release(&b);
}

static const fm_entry *tensor(const fm_source *src, const char *name)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_tensor_path(&b, "tensors", name));
    const fm_entry *e = fm_tree_find(fm_source_tree(src), fm_buf_cstr(&b));
    fm_buf_release(&b);
    assert_non_null(e);
    return e;
}

TEST(what_is_no_model_is_refused)
{
    char *dir = tk_scratch(), *file = fm_path_join(dir, "x");
    fm_source *src = NULL;
    tk_fails(fm_source_open(&src, "/no/such/path"), FM_ENOTFOUND, "/no/such/path");
    tk_fails(fm_source_open(&src, dir), FM_ENOTFOUND, "model.safetensors");
    assert_null(src);
    fx_text(dir, "x", "PK\3\4 a zip");
    tk_fails(fm_source_open(&src, file), FM_ECORRUPT, "zip archive");
    fx_text(dir, "x", "\x80\x02}q\x01X\x05q");
    tk_fails(fm_source_open(&src, file), FM_EUNSUPPORTED, "pickle");
    fx_text(dir, "x", "abc");
    tk_fails(fm_source_open(&src, file), FM_ECORRUPT, "too few");
    fx_text(dir, "pytorch_model.bin", "x");
    tk_fails(fm_source_open(&src, dir), FM_ECORRUPT, "pytorch_model.bin");
    fx_safetensors(dir, "model.safetensors", FX_MODEL, 1);
    tk_fails(fm_source_open(&src, dir), FM_ENOTFOUND, "config.json");
    fx_text(dir, "config.json", "[]");
    tk_fails(fm_source_open(&src, dir), FM_ECORRUPT, "config.json");
    fm_source_close(NULL);
    fm_free(file);
    fm_free(dir);
}

/* Its first byte is that of a pickle. */
TEST(a_header_of_0x80_bytes_is_no_pickle)
{
    char *dir = tk_scratch(), *file = fm_path_join(dir, "x.safetensors");
    char bytes[8 + 0x80 + 4 + 1];
    fm_source *src = NULL;
    (void)snprintf(bytes + 8, 0x80 + 4 + 1, "%-132s",
                   "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    fm_put_u64((uint8_t *)bytes, 0x80);
    tk_ok(fm_write_file(file, bytes, sizeof(bytes) - 1));
    tk_ok(fm_source_open(&src, file));
    (void)tensor(src, "w");
    fm_source_close(src);
    fm_free(file);
    fm_free(dir);
}

TEST(a_model_folder_comes_back_whole)
{
    char *in = dir_in("in"), *out = dir_in("out");
    fm_source *src = NULL;
    fx_hf_folder(in);
    fx_round_trip(in, out);
    tk_ok(fm_source_open(&src, in));
    assert_int_equal(fm_source_kind_of(src), FM_SOURCE_HF);
    assert_non_null(fm_tree_find(fm_source_tree(src), "tokenizer/tokenizer_config.json"));
    assert_non_null(fm_tree_find(fm_source_tree(src), "README.md"));
    const fm_entry *model = fm_tree_find(fm_source_tree(src), "model.json");
    assert_non_null(strstr((const char *)model->data, "\"architecture\": \"llama\""));
    assert_non_null(strstr((const char *)model->data, "generation_config"));
    tensor(src, "model.layers.0.mlp.up_proj.weight");
    fm_source_close(src);
    fm_free(in);
    fm_free(out);
}

/* Latin-1, lone bytes, control bytes, and names that look like those as they are written down. */
TEST(files_of_any_name_come_back)
{
    static const char *const name[] = {"\xff\xfe.txt",
                                       "caf\xe9",
                                       "\xc3\xa9t\xe9",
                                       "%FF%FE.txt",
                                       "\x01\x1b[31m",
                                       "a\nb\x7f.txt",
                                       "\xed\xa0\x80.surrogate",
                                       "\xe2\x80\xae.bidi",
                                       "100%\xff",
                                       "%",
                                       "\\x5c",
                                       "\xef\xbf\xbd\xef\xbf\xbd.txt"};
    char *in = dir_in("in"), *out = dir_in("out");
    fx_hf_folder(in);
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++)
        fx_text(in, name[i], name[i]);
    fx_round_trip(in, out);
    fx_same_folder(in, out);
    fx_same_folder(out, in);
    fm_free(in);
    fm_free(out);
}

/* source.json of a stranger: a name leads nowhere else, and stands for one file. */
TEST(names_in_a_hostile_source_json_are_refused)
{
    static const char *const bad[] = {
        "\"name\":\"../evil\"",
        "\"name\":\"/abs\"",
        "\"name\":\"a/../../b\"",
        "\"name\":\"x\\u0000y\"",
        "\"name\":3",
        "\"name\":\"\"",
        "\"nome\":\"a\"",
        "\"name_escaped\":\"%2E%2E%2Fevil\"",
        "\"name_escaped\":\"%2E%2E/evil\"",
        "\"name_escaped\":\"%2Fabs\"",
        "\"name_escaped\":\"a%00\"",
        "\"name_escaped\":\"a%f\"",
        "\"name_escaped\":\"a%\"",
        "\"name_escaped\":\"a%ff\"",
        "\"name_escaped\":\"a\",\"name\":\"a\"",
        "\"name\":\"a\",\"bytes\":0,\"pieces\":[],\"sha256\":\""
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"},"
        "{\"name_escaped\":\"%61\"",
    };
    const fm_provider none = {.read = NULL};
    char *out = dir_in("out");
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_tree *tree = NULL;
        char *json =
            fm_asprintf("{\"format\":1,\"kind\":\"hf\",\"single\":false,\"files\":[{%s,"
                        "\"bytes\":0,\"pieces\":[],\"sha256\":\"e3b0c44298fc1c149afbf4c8996fb"
                        "92427ae41e4649b934ca495991b7852b855\"}]}",
                        bad[i]);
        char *dst = fm_asprintf("%s/%zu/deep", out, i), *above = fm_asprintf("%s/%zu", out, i);
        fm_names names = {NULL, 0};
        tk_ok(fm_tree_new(&tree));
        tk_ok(fm_tree_put_file(tree, "source/source.json", fm_span_str(json)));
        tk_fails(fm_export(tree, &none, dst, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_ECORRUPT, "name");
        if (fm_path_exists(above))
            tk_ok(fm_list_dir(&names, above));
        for (size_t n = 0; n < names.count; n++)
            assert_string_equal(names.name[n], "deep");
        fm_names_release(&names);
        fm_tree_free(tree);
        fm_free(json);
        fm_free(above);
        fm_free(dst);
    }
    fm_free(out);
}

/* name in dir becomes a link; an empty target: away. */
static void make_link(const char *dir, const char *name, const char *target)
{
    char *path = fm_path_join(dir, name);
    tk_ok(fm_remove_file(path));
    if (target[0])
        assert_int_equal(symlink(target, path), 0);
    fm_free(path);
}

TEST(links_out_of_the_folder_are_refused)
{
    static const char *const bad[][2] = {{"extra.txt", "/etc/passwd"},
                                         {"extra.txt", "../secret"},
                                         {"config.json", "../secret"},
                                         {"generation_config.json", "../secret"},
                                         {"tokenizer.json", "../in2/x"}, /* in2 begins like in */
                                         {"model.safetensors", "../model.safetensors"},
                                         {"extra.txt", "step"},
                                         {"1_Pooling", "../pooling"}};
    char *top = dir_in("top"), *in = fm_path_join(top, "in"), *out = dir_in("out");
    char *in2 = fm_path_join(top, "in2"), *pooling = fm_path_join(top, "pooling");
    fm_source *src = NULL;
    tk_ok(fm_make_dirs(in2));
    tk_ok(fm_make_dirs(pooling));
    fx_text(top, "secret", "{}");
    fx_text(in2, "x", "{}");
    fx_text(pooling, "config.json", "{}");
    fx_safetensors(top, "model.safetensors", FX_MODEL, FM_ARRAY_LEN(FX_MODEL));
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fx_hf_folder(in);
        make_link(in, "step", "../secret");
        if (strcmp(bad[i][1], "step") != 0)
            make_link(in, "step", "");
        make_link(in, bad[i][0], bad[i][1]);
        tk_fails(fm_source_open(&src, in), FM_EINVAL, bad[i][0]);
        assert_non_null(strstr(fm_error_text(), "outside of the folder"));
        make_link(in, "step", "");
        make_link(in, bad[i][0], "");
    }
    fx_hf_folder(in);
    make_link(in, "MODEL_CARD.md", "README.md"); /* inside: as if it were that file */
    make_link(top, "way", "in");
    char *way = fm_path_join(top, "way");
    fx_round_trip(way, out);
    fm_free(way);
    fm_free(top);
    fm_free(in);
    fm_free(in2);
    fm_free(pooling);
    fm_free(out);
}

/* models--a--b/snapshots/<revision>/x -> ../../blobs/<digest> */
TEST(a_snapshot_in_hugging_faces_cache_is_imported)
{
    char *cache = dir_in("cache"), *out = dir_in("out");
    char *model = fm_path_join(cache, "models--org--tiny"), *blobs = fm_path_join(model, "blobs");
    char *other = fm_path_join(cache, "models--org--other"),
         *in = fm_path_join(model, "snapshots/1f");
    char *theirs = fm_path_join(other, "blobs");
    fm_names names;
    fm_source *src = NULL;
    fx_hf_folder(blobs);
    fx_hf_folder(theirs);
    tk_ok(fm_make_dirs(in));
    tk_ok(fm_list_dir(&names, blobs));
    for (size_t i = 0; i < names.count; i++) {
        char *target = fm_asprintf("../../blobs/%s", names.name[i]);
        make_link(in, names.name[i], target);
        fm_free(target);
    }
    fm_names_release(&names);
    fx_round_trip(in, out);
    make_link(in, "README.md", "../../../models--org--other/blobs/README.md");
    tk_fails(fm_source_open(&src, in), FM_EINVAL, "README.md");
    make_link(in, "README.md", "../../blobs/README.md");
    make_link(blobs, "README.md", "/etc/passwd");
    tk_fails(fm_source_open(&src, in), FM_EINVAL, "/etc/passwd");
    fm_free(cache);
    fm_free(out);
    fm_free(model);
    fm_free(blobs);
    fm_free(other);
    fm_free(in);
    fm_free(theirs);
}

TEST(every_file_of_every_folder_comes_back)
{
    char *in = dir_in("in"), *sub = fm_path_join(in, "sub"), *deep = fm_path_join(sub, "deep");
    char *large = fm_path_join(in, "large"), *out = dir_in("out");
    static const char *const name[] = {"model.onnx", "odd\xff.bin", "large", "sub/a", "sub/deep/b"};
    fm_source *src = NULL;
    size_t count;
    fx_hf_folder(in);
    tk_ok(fm_make_dirs(deep));
    fx_text(sub, "a", "four");
    fx_text(deep, "b", "seven..");
    fx_text(in, "model.onnx", "x");
    fx_text(in, "odd\xff.bin", "12");
    fx_text(in, "large", "");
    assert_int_equal(truncate(large, (64 << 20) + 1), 0);
    tk_ok(fm_source_open(&src, in));
    (void)fm_source_left_out(src, &count);
    assert_int_equal(count, 0);
    const fm_provider p = fm_source_provider(src);
    tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++) {
        char *a = fm_path_join(in, name[i]), *b = fm_path_join(out, name[i]);
        fx_same_file(a, b);
        fm_free(a);
        fm_free(b);
    }
    fm_source_close(src);
    fm_free(deep);
    fm_free(large);
    fm_free(out);
    fm_free(in);
    fm_free(sub);
}

TEST(folders_that_are_no_part_of_the_model_are_told)
{
    char *in = dir_in("in"), *git = fm_path_join(in, ".git"), *loop = fm_path_join(in, "loop");
    char *odd = fm_path_join(in, "odd\xff"), *cache = fm_path_join(odd, ".cache");
    char *deep = fm_path_join(in, "d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d");
    fm_source *src = NULL;
    size_t count;
    fx_hf_folder(in);
    tk_ok(fm_make_dirs(git));
    tk_ok(fm_make_dirs(cache));
    tk_ok(fm_make_dirs(deep));
    fx_text(git, "HEAD", "four");
    fx_text(cache, "x", "seven..");
    assert_int_equal(symlink("odd\xff", loop), 0);
    tk_ok(fm_source_open(&src, in));
    const fm_left_out *left = fm_source_left_out(src, &count);
    static const fm_left_out want[] = {
        {".git", "git's own folder", 4},
        {"d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d", "a folder in too many others", 0},
        {"loop", "a link to a folder", 0},
        {"odd\xff/.cache", "a folder of what was downloaded", 7},
    };
    assert_int_equal(count, FM_ARRAY_LEN(want));
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(left[i].name, want[i].name);
        assert_string_equal(left[i].why, want[i].why);
        if (i != 2) /* what a link leads to is no part of it */
            assert_int_equal(left[i].bytes, want[i].bytes);
    }
    const fm_entry *e = fm_tree_find(fm_source_tree(src), "source/source.json");
    fm_json *json = NULL;
    tk_ok(fm_json_parse(&json, (fm_span){e->data, e->bytes}, "source.json"));
    const fm_json *list = fm_json_get(json, "left_out");
    assert_int_equal(fm_json_count(list), count);
    assert_string_equal(fm_json_cstr(fm_json_get(fm_json_at(list, 3), "name_escaped"), ""),
                        "odd%FF/.cache");
    assert_int_equal(fm_json_int(fm_json_get(fm_json_at(list, 3), "bytes"), 0), 7);
    assert_string_equal(fm_json_cstr(fm_json_get(fm_json_at(list, 0), "why"), ""), want[0].why);
    fm_json_free(json);
    fm_source_close(src);
    fm_free(deep);
    fm_free(cache);
    fm_free(odd);
    fm_free(loop);
    fm_free(git);
    fm_free(in);
}

TEST(shards_are_one_model_and_come_back)
{
    char *in = dir_in("in"), *out = dir_in("out"), *file = fm_path_join(in, "whole.safetensors");
    fm_source *src = NULL, *whole = NULL;
    fx_hf_folder(in);
    char *model = fm_path_join(in, "model.safetensors");
    tk_ok(fm_remove_file(model));
    fx_safetensors(in, "model-00001-of-00002.safetensors", FX_MODEL, 2);
    fx_safetensors(in, "model-00002-of-00002.safetensors", FX_MODEL + 2, 2);
    fx_text(in, "model.safetensors.index.json",
            "{\"metadata\": {}, \"weight_map\": {"
            "\"model.embed_tokens.weight\": \"model-00001-of-00002.safetensors\","
            "\"model.layers.0.self_attn.q_proj.weight\": \"model-00001-of-00002.safetensors\","
            "\"model.layers.0.mlp.up_proj.weight\": \"model-00002-of-00002.safetensors\","
            "\"model.norm.weight\": \"model-00002-of-00002.safetensors\"}}");
    fx_round_trip(in, out);
    tk_ok(fm_source_open(&src, in));
    for (size_t i = 0; i < FM_ARRAY_LEN(FX_MODEL); i++)
        tensor(src, FX_MODEL[i].name);
    fm_source_close(src);
    fx_safetensors(in, "whole.safetensors", FX_MODEL, FM_ARRAY_LEN(FX_MODEL));
    tk_ok(fm_source_open(&whole, file));
    assert_int_equal(fm_source_kind_of(whole), FM_SOURCE_SAFETENSORS);
    fm_source_close(whole);
    fm_free(model);
    fm_free(file);
    fm_free(in);
    fm_free(out);
}

TEST(an_index_must_stay_in_its_folder_and_tell_the_truth)
{
    static const char *const bad[] = {
        "{\"weight_map\": {\"a\": \"../up.safetensors\"}}",
        "{\"weight_map\": {\"a\": \"/etc/x.safetensors\"}}",
        "{\"weight_map\": {\"a\": 7}}",
        "{\"weight_map\": {}}",
        "{}",
        "{\"weight_map\": {\"no.such\": \"one.safetensors\"}}",
    };
    char *in = dir_in("in");
    fm_source *src = NULL;
    tk_ok(fm_make_dirs(in));
    fx_text(in, "config.json", FX_CONFIG);
    fx_safetensors(in, "one.safetensors", FX_MODEL, 1);
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fx_text(in, "model.safetensors.index.json", bad[i]);
        tk_fails(fm_source_open(&src, in), FM_ECORRUPT, NULL);
        assert_null(src);
    }
    fx_text(in, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"gone.safetensors\"}}");
    tk_fails(fm_source_open(&src, in), FM_ENOTFOUND, "gone.safetensors");
    fm_free(in);
}

TEST(a_tensor_in_two_shards_is_refused)
{
    char *in = dir_in("in");
    fm_source *src = NULL;
    tk_ok(fm_make_dirs(in));
    fx_text(in, "config.json", FX_CONFIG);
    fx_safetensors(in, "a.safetensors", FX_MODEL, 2);
    fx_safetensors(in, "b.safetensors", FX_MODEL + 1, 2);
    fx_text(in, "model.safetensors.index.json",
            "{\"weight_map\": {\"model.embed_tokens.weight\": \"a.safetensors\","
            "\"model.layers.0.mlp.up_proj.weight\": \"b.safetensors\"}}");
    tk_fails(fm_source_open(&src, in), FM_ECORRUPT, "q_proj.weight' is there twice");
    fm_free(in);
}

TEST(an_adapter_folder_comes_back_whole)
{
    char *in = dir_in("in"), *out = dir_in("out");
    fm_source *src = NULL;
    fx_peft_folder(in, FX_LORA, FX_ADAPTER, FM_ARRAY_LEN(FX_ADAPTER));
    fx_round_trip(in, out);
    tk_ok(fm_source_open(&src, in));
    assert_int_equal(fm_source_kind_of(src), FM_SOURCE_PEFT);
    assert_non_null(fm_tree_find(fm_source_tree(src), "adapters/0-lora/adapter_config.json"));
    fm_source_close(src);
    fm_free(in);
    fm_free(out);
}

TEST(a_gguf_comes_back_with_its_paddings)
{
    const gg_spec plain = {0}, old = {.version = 2, .bias = true};
    char *in = dir_in("in.gguf"), *out = dir_in("out.gguf"), *out2 = dir_in("out2.gguf");
    put_gguf(in, &plain);
    fx_round_trip(in, out);
    put_gguf(in, &old);
    fx_round_trip(in, out2);
    fm_free(in);
    fm_free(out);
    fm_free(out2);
}

/* Row (h, j, i) of the tree is row (h, i, j) of the file: 4 heads of 16 rows of 64 Q4_1. */
TEST(rotary_rows_are_put_back_whole)
{
    const gg_spec spec = {.bias = true};
    const uint64_t row = 40;
    char *in = dir_in("in.gguf");
    fm_source *src = NULL;
    fm_gguf *g = NULL;
    fm_buf file, bytes;
    put_gguf(in, &spec);
    tk_ok(fm_source_open(&src, in));
    const fm_provider p = fm_source_provider(src);
    const fm_entry *e = tensor(src, "model.layers.0.self_attn.q_proj.weight");
    fm_buf_init(&file, 0);
    fm_buf_init(&bytes, 0);
    tk_ok(fm_read_file(&file, in, 1 << 24));
    tk_ok(fm_entry_read(&bytes, &p, e));
    assert_int_equal(e->dtype, FM_Q4_1);
    tk_ok(fm_gguf_parse(&g, fm_buf_span(&file), "in.gguf"));
    const uint8_t *at = fm_gguf_bytes(g, fm_gguf_find(g, "blk.0.attn_q.weight")).data;
    for (uint64_t r = 0; r < 64; r++) {
        const uint64_t h = r / 16, j = r % 16 / 8, i = r % 8;
        assert_memory_equal(bytes.data + r * row, at + (h * 16 + i * 2 + j) * row, row);
    }
    for (uint64_t from = 0; from < 64 * row; from += 97) { /* and so for every part of it */
        uint8_t part[64 * 40];
        const uint64_t n = FM_MIN(64 * row - from, (uint64_t)131);
        tk_ok(fm_entry_read_range(&p, e, from, n, part, from % 2 ? FM_RANGE_UNCHECKED : 0));
        assert_memory_equal(part, bytes.data + from, n);
    }
    assert_non_null(tensor(src, "model.layers.0.self_attn.q_proj.bias"));
    fm_gguf_close(g);
    fm_buf_release(&file);
    fm_buf_release(&bytes);
    fm_source_close(src);
    fm_free(in);
}

TEST(a_changed_file_is_noticed_at_reading)
{
    char *in = dir_in("m.safetensors"), *dir = fm_strndup(in, strlen(in) - 14);
    fm_source *src = NULL;
    fm_entry other;
    float buf[64];
    fx_safetensors(dir, "m.safetensors", FX_MODEL, 2);
    tk_ok(fm_source_open(&src, in));
    const fm_provider p = fm_source_provider(src);
    other = *tensor(src, "model.layers.0.self_attn.q_proj.weight");
    other.id.b[0] ^= 1;
    tk_fails(p.read(p.ctx, &other, buf), FM_ENOTFOUND, "q_proj");
    fm_source_close(src);
    fm_free(dir);
    fm_free(in);
}

TEST(failed_allocations_leak_nothing)
{
    char *in = dir_in("in.gguf");
    const gg_spec plain = {0};
    fm_source *src = NULL;
    fm_status rc = FM_ENOMEM;
    put_gguf(in, &plain);
    for (uint64_t n = 1; rc == FM_ENOMEM; n += 1 + n / 16) {
        fm_mem_fail_at(n, true);
        rc = fm_source_open(&src, in);
        fm_mem_fail_at(0, false);
        assert_true(rc == FM_OK || rc == FM_ENOMEM);
    }
    fm_source_close(src);
    fm_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_model_is_refused),
        cmocka_unit_test(a_header_of_0x80_bytes_is_no_pickle),
        cmocka_unit_test(a_model_folder_comes_back_whole),
        cmocka_unit_test(files_of_any_name_come_back),
        cmocka_unit_test(names_in_a_hostile_source_json_are_refused),
        cmocka_unit_test(links_out_of_the_folder_are_refused),
        cmocka_unit_test(a_snapshot_in_hugging_faces_cache_is_imported),
        cmocka_unit_test(every_file_of_every_folder_comes_back),
        cmocka_unit_test(folders_that_are_no_part_of_the_model_are_told),
        cmocka_unit_test(shards_are_one_model_and_come_back),
        cmocka_unit_test(an_index_must_stay_in_its_folder_and_tell_the_truth),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(an_adapter_folder_comes_back_whole),
        cmocka_unit_test(a_gguf_comes_back_with_its_paddings),
        cmocka_unit_test(rotary_rows_are_put_back_whole),
        cmocka_unit_test(a_changed_file_is_noticed_at_reading),
        cmocka_unit_test(failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
