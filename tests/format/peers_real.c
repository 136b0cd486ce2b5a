/* Folders and hashes that Hugging Face and PEFT wrote: import, export, merge, against the
 * originals. */
#include "tests/format/fixtures.h"

static char *data_dir, *gguf_path;

static char *shared(const char *name)
{
    return fm_path_join(data_dir, name);
}

TEST(every_architectures_folder_comes_back)
{
    static const char *const arch[] = {"llama",  "llama3",  "mistral", "qwen2", "qwen3",
                                       "gemma3", "mixtral", "gpt2",    "bert"};
    char *scratch = tk_scratch();
    for (size_t i = 0; i < FM_ARRAY_LEN(arch); i++) {
        char *rel = fm_path_join("arch", arch[i]), *in = shared(rel);
        char *out = fm_path_join(scratch, arch[i]);
        fx_round_trip(in, out);
        fm_free(rel);
        fm_free(in);
        fm_free(out);
    }
    fm_free(scratch);
}

/* The weights written anew by us are byte for byte what safetensors wrote. */
TEST(weights_are_written_as_safetensors_writes_them)
{
    static const char *const arch[] = {"llama", "qwen3", "gpt2", "bert"};
    char *scratch = tk_scratch();
    for (size_t i = 0; i < FM_ARRAY_LEN(arch); i++) {
        char *rel = fm_asprintf("arch/%s", arch[i]), *in = shared(rel);
        char *out = fm_path_join(scratch, arch[i]);
        char *a = fm_path_join(in, "model.safetensors"),
             *b = fm_path_join(out, "model.safetensors");
        fm_source *src = NULL;
        tk_ok(fm_source_open(&src, in));
        const fm_provider p = fm_source_provider(src);
        tk_ok(fm_export(fm_source_tree(src), &p, out, FM_EXPORT_HF, FM_DTYPE_NONE));
        fx_same_file(a, b);
        fm_source_close(src);
        fm_free(a);
        fm_free(b);
        fm_free(rel);
        fm_free(in);
        fm_free(out);
    }
    fm_free(scratch);
}

static void check_adapter(const fm_tree *base, const char *name, const char *kind,
                          const char *scratch)
{
    char *rel = fm_asprintf("arch/llama/peft/%s", name), *in = shared(rel);
    char *out = fm_path_join(scratch, name), *peft = fm_asprintf("%s/%s-peft", scratch, name);
    char *config = fm_asprintf("adapters/0-%s/adapter_config.json", kind);
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    fm_source *src = NULL;
    fm_tree *tree = NULL;
    fx_round_trip(in, out);
    tk_ok(fm_source_open(&src, in));
    const fm_provider p = fm_source_provider(src);
    tk_ok(fm_adapter_apply(&tree, base, fm_source_tree(src), NULL, NULL));
    assert_non_null(fm_tree_find(tree, config));
    tk_ok(fm_export(tree, &p, peft, FM_EXPORT_PEFT, FM_DTYPE_NONE));
    for (size_t i = 0; i < 2; i++) {
        char *a = fm_path_join(in, files[i]), *b = fm_path_join(peft, files[i]);
        fx_same_file(a, b);
        fm_free(a);
        fm_free(b);
    }
    fm_tree_free(tree);
    fm_source_close(src);
    fm_free(config);
    fm_free(peft);
    fm_free(rel);
    fm_free(in);
    fm_free(out);
}

TEST(every_adapter_kind_comes_back_and_leaves_as_peft_wrote_it)
{
    static const char *const kind[][2] = {
        {"lora", "lora"},     {"lora-qv-pattern", "lora"},
        {"rslora", "lora"},   {"lora-modules-to-save", "lora"},
        {"dora", "dora"},     {"ia3", "ia3"},
        {"prefix", "prefix"}, {"prompt", "prompt"},
    };
    char *scratch = tk_scratch(), *base = shared("arch/llama");
    fm_source *src = NULL;
    tk_ok(fm_source_open(&src, base));
    for (size_t i = 0; i < FM_ARRAY_LEN(kind); i++)
        check_adapter(fm_source_tree(src), kind[i][0], kind[i][1], scratch);
    fm_source_close(src);
    fm_free(scratch);
    fm_free(base);
}

TEST(an_adapter_of_another_model_is_refused)
{
    char *base = shared("arch/qwen3"), *ad = shared("smollm2-lora");
    fm_source *b = NULL, *a = NULL;
    fm_tree *tree = NULL;
    tk_ok(fm_source_open(&b, base));
    tk_ok(fm_source_open(&a, ad));
    tk_fails(fm_adapter_apply(&tree, fm_source_tree(b), fm_source_tree(a), NULL, NULL), FM_EBASE,
             "lora_A");
    fm_source_close(a);
    fm_source_close(b);
    fm_free(base);
    fm_free(ad);
}

TEST(the_gguf_comes_back)
{
    if (!gguf_path)
        skip();
    char *scratch = tk_scratch(), *out = fm_path_join(scratch, "out.gguf");
    fx_round_trip(gguf_path, out);
    fm_free(out);
    fm_free(scratch);
}

typedef struct two_providers {
    fm_provider first, second;
} two_providers;

static fm_status read_either(void *ctx, const fm_entry *e, void *dst)
{
    const two_providers *two = ctx;
    fm_status rc = two->first.read(two->first.ctx, e, dst);
    return rc == FM_ENOTFOUND ? two->second.read(two->second.ctx, e, dst) : rc;
}

static void hash_is(const uint8_t *data, size_t len, const fm_json *want, const char *field)
{
    fm_digest d;
    char hex[FM_HEX_CHARS + 1];
    tk_ok(fm_sha256(&d, data, len));
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, fm_json_cstr(fm_json_get(want, field), ""));
}

static void check_merged(const char *file, const char *field)
{
    char *sums = shared("smollm2-lora/merged.json");
    fm_json *ref = NULL;
    fm_file_map map;
    fm_st *st = NULL;
    tk_ok(fm_json_parse_file(&ref, sums, 1 << 20));
    tk_ok(fm_map_file(&map, file));
    tk_ok(fm_st_parse(&st, fm_span_of(map.data, map.len), file));
    assert_true(fm_json_count(ref) > 0);
    for (void *it = fm_json_iter(ref); it; it = fm_json_next(ref, it)) {
        const fm_st_tensor *t = fm_st_find(st, fm_json_iter_key(it));
        assert_non_null(t);
        const fm_span bytes = fm_st_bytes(st, t);
        hash_is(bytes.data, bytes.len, fm_json_iter_value(it), field);
    }
    fm_st_close(st);
    fm_unmap_file(&map);
    fm_json_free(ref);
    fm_free(sums);
}

TEST(merging_the_adapter_gives_pefts_weights)
{
    if (!gguf_path)
        skip();
    char *scratch = tk_scratch(), *ad = shared("smollm2-lora");
    char *f32 = fm_path_join(scratch, "f32.safetensors");
    char *bf16 = fm_path_join(scratch, "bf16.safetensors");
    fm_source *base = NULL, *adapter = NULL;
    fm_tree *tree = NULL;
    tk_ok(fm_source_open(&base, gguf_path));
    tk_ok(fm_source_open(&adapter, ad));
    two_providers two = {fm_source_provider(base), fm_source_provider(adapter)};
    const fm_provider p = {.ctx = &two, .read = read_either};
    tk_ok(fm_adapter_apply(&tree, fm_source_tree(base), fm_source_tree(adapter), NULL, NULL));
    tk_ok(fm_export(tree, &p, f32, FM_EXPORT_SAFETENSORS, FM_DTYPE_NONE));
    check_merged(f32, "sha256_f32");
    tk_ok(fm_export(tree, &p, bf16, FM_EXPORT_SAFETENSORS, FM_BF16));
    check_merged(bf16, "sha256_bf16");
    fm_tree_free(tree);
    fm_source_close(base);
    fm_source_close(adapter);
    fm_free(f32);
    fm_free(bf16);
    fm_free(ad);
    fm_free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architectures_folder_comes_back),
        cmocka_unit_test(weights_are_written_as_safetensors_writes_them),
        cmocka_unit_test(every_adapter_kind_comes_back_and_leaves_as_peft_wrote_it),
        cmocka_unit_test(an_adapter_of_another_model_is_refused),
        cmocka_unit_test(the_gguf_comes_back),
        cmocka_unit_test(merging_the_adapter_gives_pefts_weights),
    };
    int failed;

    data_dir = tk_shared("");
    if (!data_dir)
        return tk_skip("needs the shared reference data");
    gguf_path = tk_smollm2_gguf();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_free(gguf_path);
    fm_free(data_dir);
    return failed;
}
