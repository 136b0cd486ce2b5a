/* Every block type against vectors that an independent program made (golden/make_dequant.py). */
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

#include "store/tensor.h"

static void check(fm_dtype dtype)
{
    const fm_dtype_info *info = fm_dtype_get(dtype);
    const uint64_t blocks = 16, n = blocks * info->block_elems;
    const size_t raw = (size_t)blocks * info->block_bytes;
    float wide[16 * 256 + 2];
    char name[80];
    fm_buf file;
    snprintf(name, sizeof name, "tests/format/golden/dequant_%s.bin", info->name);
    char *path = tk_source(name);
    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, 1 << 20));
    assert_int_equal(file.len, raw + n * sizeof(float));
    wide[n] = 42.0f; /* nothing is written past the end */
    tk_ok(fm_to_f32(wide, dtype, file.data, n));
    assert_memory_equal(wide, file.data + raw, n * sizeof(float));
    assert_true(wide[n] == 42.0f);
    fm_buf_release(&file);
    fm_free(path);
}

TEST(every_block_type_widens_to_the_reference_bits)
{
    int types = 0;
    for (int t = FM_DTYPE_NONE + 1; t < FM_DTYPE_COUNT; t++)
        if (fm_dtype_get((fm_dtype)t)->is_block) {
            check((fm_dtype)t);
            types++;
        }
    assert_int_equal(types, 26);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_type_widens_to_the_reference_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
