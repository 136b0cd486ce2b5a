/* Dtypes, shapes and the frozen identity of tensors and blobs. */
#include "tests/testkit.h"

#include <string.h>

#include "store/tensor.h"

static void hex_is(const fm_digest *d, const char *want)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(d, hex);
    assert_string_equal(hex, want);
}

TEST(unknown_dtype_names_are_none)
{
    assert_int_equal(fm_dtype_parse("F33", 3), FM_DTYPE_NONE);
    assert_int_equal(fm_dtype_parse("", 0), FM_DTYPE_NONE);
    assert_int_equal(fm_dtype_parse("none", 4), FM_DTYPE_NONE);
    assert_int_equal(fm_dtype_parse("BF1", 3), FM_DTYPE_NONE);
}

TEST(every_dtype_parses_back_to_itself)
{
    for (int i = FM_DTYPE_NONE + 1; i < FM_DTYPE_COUNT; i++) {
        const fm_dtype_info *info = fm_dtype_get((fm_dtype)i);
        assert_int_equal(fm_dtype_parse(info->name, strlen(info->name)), i);
        assert_true(info->block_bytes > 0 && info->block_elems > 0);
        assert_int_equal(info->is_block, info->block_elems > 1);
    }
}

TEST(bytes_follow_dtype_and_shape)
{
    const fm_shape s = {2, {3, 64}}, scalar = {0, {0}}, empty = {2, {0, 7}};
    uint64_t n = 0;
    tk_ok(fm_tensor_bytes(&n, FM_F32, &s, "t"));
    assert_int_equal(n, 768);
    tk_ok(fm_tensor_bytes(&n, FM_Q4_1, &s, "t"));
    assert_int_equal(n, 120);
    tk_ok(fm_tensor_bytes(&n, FM_F16, &scalar, "t"));
    assert_int_equal(n, 2);
    tk_ok(fm_tensor_bytes(&n, FM_F16, &empty, "t"));
    assert_int_equal(n, 0);
}

TEST(blocks_must_fill_rows)
{
    const fm_shape s = {2, {32, 33}}, scalar = {0, {0}};
    uint64_t n = 0;
    tk_fails(fm_tensor_bytes(&n, FM_Q8_0, &s, "a.b"), FM_EINVAL, "a.b");
    tk_fails(fm_tensor_bytes(&n, FM_Q8_0, &scalar, "a.b"), FM_EINVAL, "[]");
}

TEST(products_that_overflow_are_refused)
{
    const fm_shape big = {2, {UINT64_MAX, 2}}, hidden = {3, {0, UINT64_MAX, 3}};
    const fm_shape huge = {1, {FM_MAX_TENSOR_BYTES}};
    uint64_t n = 0;
    tk_fails(fm_tensor_bytes(&n, FM_U8, &big, "t"), FM_ELIMIT, "overflow");
    tk_fails(fm_tensor_bytes(&n, FM_U8, &hidden, "t"), FM_ELIMIT, "overflow");
    tk_fails(fm_tensor_bytes(&n, FM_F32, &huge, "t"), FM_ELIMIT, "beyond");
    tk_ok(fm_tensor_bytes(&n, FM_U8, &huge, "t"));
}

TEST(shapes_print_within_their_room)
{
    const fm_shape s = {2, {576, 1536}}, scalar = {0, {0}};
    char text[32], tiny[6];
    fm_shape_text(&s, text, sizeof text);
    assert_string_equal(text, "[576, 1536]");
    fm_shape_text(&scalar, text, sizeof text);
    assert_string_equal(text, "[]");
    fm_shape_text(&s, tiny, sizeof tiny);
    assert_string_equal(tiny, "[576,");
}

/* Golden values from an independent program; FORMAT.md lists them. They can never change. */
TEST(identities_are_frozen)
{
    const float v[6] = {0, 1, 2, 3, 4, 5};
    const fm_shape scalar = {0, {0}}, two = {2, {2, 3}}, empty = {2, {0, 4}};
    fm_digest d;
    tk_ok(fm_tensor_id(&d, FM_F32, &scalar, fm_span_of(&v[1], 4), NULL));
    hex_is(&d, "f0f9f9f62a5a7283cabc53e451da2b225191bce2b8796e168bf4898710b71ab5");
    tk_ok(fm_tensor_id(&d, FM_F32, &two, fm_span_of(v, 24), NULL));
    hex_is(&d, "f070b00d214862d1b3ce4c42f891229c2c83784f14356991da1860ed1e8676f4");
    tk_ok(fm_tensor_id(&d, FM_BF16, &empty, fm_span_of(NULL, 0), NULL));
    hex_is(&d, "b221e6dd5366bd6b82874490aa22590b9f4dd3322ff8267f8b192ec65b248a2d");
    tk_ok(fm_blob_id(&d, fm_span_of(NULL, 0), NULL));
    hex_is(&d, "d46ab2d36fdd8cc2d296184cf6b87ebc4a006708328f248494af4377b1c8d527");
    tk_ok(fm_blob_id(&d, fm_span_str("hello\n"), NULL));
    hex_is(&d, "30dc551d99872ed68db1ccd21e7539ea33479e6916e92f1002ad656d9c891a37");
}

TEST(identity_runs_over_leaves)
{
    const size_t n = 2 * FM_LEAF_BYTES + 2;
    const fm_shape s = {1, {n}};
    uint8_t *p = fm_malloc(n);
    fm_digest d, again, leaf[3], want;
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(i * 7 + (i >> 8));
    tk_ok(fm_tensor_id(&d, FM_U8, &s, fm_span_of(p, n), leaf));
    hex_is(&d, "3f01e927e3b51eeba3a343f5a18c30349753956c38b25c864944c3e017e7e719");
    tk_ok(fm_sha256(&want, p + 2 * FM_LEAF_BYTES, 2));
    assert_true(fm_digest_eq(&leaf[2], &want));
    tk_ok(fm_tensor_id_from_leaves(&again, FM_U8, &s, n, leaf));
    assert_true(fm_digest_eq(&d, &again));
    tk_ok(fm_blob_id(&d, fm_span_of(p, n), leaf));
    hex_is(&d, "07a1b4f227432913b1e012b1f51d9c33c5e2387fa15dfe19760046058f430bd6");
    tk_ok(fm_blob_id_from_leaves(&again, n, leaf));
    assert_true(fm_digest_eq(&d, &again));
    fm_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_dtype_names_are_none),
        cmocka_unit_test(every_dtype_parses_back_to_itself),
        cmocka_unit_test(bytes_follow_dtype_and_shape),
        cmocka_unit_test(blocks_must_fill_rows),
        cmocka_unit_test(products_that_overflow_are_refused),
        cmocka_unit_test(shapes_print_within_their_room),
        cmocka_unit_test(identities_are_frozen),
        cmocka_unit_test(identity_runs_over_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
