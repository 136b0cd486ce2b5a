/* SmolLM2 and a child of it (a LoRA, merged) in Q4_K_M: the files that llama-quantize of llama-cpp-python
 * 0.3.36 made of their F32 exports. Rows of 576 fall back, those of 1536 do not. */
#include "tests/format/view_kit.h"

static char *gguf, *lora;

static void check(char *adapter, const char *sha256)
{
    const fm_view_opts opts = {.format = FM_EXPORT_GGUF, .mix = "Q4_K_M"};
    char *root = tk_scratch(), *out = fm_path_join(root, "out.gguf"), hex[FM_HEX_CHARS + 1];
    fm_file_map map;
    fm_digest d;
    vk_world w;
    vk_open(&w, fm_strdup(gguf), adapter);
    tk_ok(fm_export_as(w.tree, &w.p, out, &opts));
    tk_ok(fm_map_file(&map, out));
    tk_ok(fm_sha256(&d, map.data, map.len));
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, sha256);
    fm_unmap_file(&map);
    vk_close(&w);
    fm_free(out);
    fm_free(root);
}

TEST(smollm2_is_the_file_that_llama_quantize_makes)
{
    check(NULL, "e553370918595786a293385e94450eda3697e1806e1687576b0186733ce8dd7a");
}

TEST(a_merged_child_is_the_file_that_llama_quantize_makes)
{
    check(fm_strdup(lora), "76b9b9ca3499a5f39033b20905b6af631e90124a8eacee27c048c0e47795f1fb");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_is_the_file_that_llama_quantize_makes),
        cmocka_unit_test(a_merged_child_is_the_file_that_llama_quantize_makes),
    };
    gguf = tk_smollm2_gguf();
    lora = tk_shared("smollm2-lora");
    if (!gguf || !lora)
        return tk_skip("needs the SmolLM2 GGUF and the shared reference data");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_free(gguf);
    fm_free(lora);
    return failed;
}
