/* lineage_diff.c - which entries differ, and by how much. */
#include <math.h>

#include "tests/kit/lineage_kit.h"

static fm_status take(void *ctx, const fm_change *c)
{
    fm_buf *b = ctx;
    const fm_entry *e = c->a ? c->a : c->b;

    assert_true((c->kind == FM_CHANGE_ADD) == !c->a);
    assert_true((c->kind == FM_CHANGE_DELETE) == !c->b);
    fm_buf_printf(b, "%c%s ", "+-~"[c->kind], e -> path);
    return FM_OK;
}

static fm_status stop(void *ctx, const fm_change *c)
{
    (void)c;
    ++*(int *)ctx;
    return FM_ECANCELLED;
}

static fm_status give(void *ctx, const fm_entry *e, void *dst)
{
    const char *const *bytes = ctx; /* one per last letter of the path: a, b */

    memcpy(dst, bytes[strcmp(e->path, "b") == 0], e->bytes);
    return FM_OK;
}

TEST(bad_arguments_are_refused)
{
    fm_entry file = {.path = (char[]){"f"}, .kind = FM_ENTRY_FILE};
    fm_entry a = {.path = (char[]){"a"}, .kind = FM_ENTRY_TENSOR, .dtype = FM_F32}, b = a;
    fm_provider p = {.ctx = NULL, .read = give};
    fm_tensor_change c;
    int n = 0;

    tk_fails(fm_diff_trees(NULL, NULL, stop, &n), FM_EINVAL, NULL);
    tk_fails(fm_tensor_compare(NULL, &a, &b, &c), FM_EINVAL, NULL);
    tk_fails(fm_tensor_compare(&p, &a, NULL, &c), FM_EINVAL, NULL);
    tk_fails(fm_tensor_compare(&p, &a, &file, &c), FM_EINVAL, "not both tensors");
    b.dtype = FM_F16;
    tk_fails(fm_tensor_compare(&p, &a, &b, &c), FM_EINVAL, "dtype or shape");
}

TEST(changes_come_in_order_of_path)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *a = kit_model(r, 3, 0, 0), *b = kit_model(r, 3, 1, 4);
    fm_buf text;
    int stops = 0;

    fm_buf_init(&text, 0);
    tk_ok(fm_diff_trees(a, a, take, &text));
    assert_string_equal(fm_buf_cstr(&text), "");
    tk_ok(fm_tree_put_file(b, "README.md", fm_span_str("card")));
    tk_ok(fm_tree_remove(b, "tokenizer/tokenizer.json"));
    tk_ok(fm_diff_trees(a, b, take, &text));
    assert_string_equal(fm_buf_cstr(&text), "+README.md ~tensors/model/layers/0/mlp/up_proj.weight "
                                            "-tokenizer/tokenizer.json ");
    tk_ok(fm_diff_trees(a, b, stop, &stops));
    assert_int_equal(stops, 1);
    fm_buf_release(&text);
    fm_tree_free(a);
    fm_tree_free(b);
    kit_close(r, dir);
}

static fm_tensor_change compare(fm_dtype dtype, uint64_t n, const void *a, const void *b)
{
    const void *bytes[2] = {a, b};
    fm_provider p = {.ctx = bytes, .read = give};
    fm_shape shape = {1, {n}};
    fm_entry x = {.path = (char[]){"a"}, .kind = FM_ENTRY_TENSOR, .dtype = dtype, .shape = shape};
    fm_entry y = x;
    fm_tensor_change c;

    x.id.b[0] = 1;
    y.path = (char[]){"b"};
    y.id.b[0] = 2;
    tk_ok(fm_tensor_bytes(&x.bytes, dtype, &shape, "t"));
    y.bytes = x.bytes;
    tk_ok(fm_tensor_compare(&p, &x, &y, &c));
    assert_int_equal(c.elems, n);
    return c;
}

TEST(distances_are_as_computed_by_hand)
{
    const float a[4] = {3, 0, 4, 1}, b[4] = {3, 2, 4, -1};
    fm_tensor_change c = compare(FM_F32, 4, a, b);

    assert_int_equal(c.changed, 2);
    tk_assert_le(fabs(c.norm_a - sqrt(26)), 1e-15, "norm");
    tk_assert_le(fabs(c.norm_delta - sqrt(8)), 1e-15, "delta");
    tk_assert_le(fabs(c.max_abs_delta - 2), 0, "max");
    tk_assert_le(fabs(c.cosine - 24 / (sqrt(26) * sqrt(30))), 1e-15, "cosine");
    c = compare(FM_F32, 4, a, a);
    assert_int_equal(c.changed, 0);
    tk_assert_le(fabs(c.cosine - 1), 1e-15, "cosine of itself");
}

TEST(other_types_are_widened)
{
    const int8_t a8[3] = {-128, 127, -1}, b8[3] = {-128, 126, 1};
    const uint16_t a16[2] = {0xffff, 0}, b16[2] = {0, 0};
    const int64_t a64[2] = {-5, 7}, b64[2] = {-4, 7};
    const uint16_t abf[2] = {0x3f80, 0x8000}, bbf[2] = {0x3f80, 0x0000}; /* 1 -0 / 1 0 */
    const double ad[1] = {1e300}, bd[1] = {1.5e300};
    fm_tensor_change c = compare(FM_I8, 3, a8, b8);

    assert_int_equal(c.changed, 2);
    tk_assert_le(fabs(c.max_abs_delta - 2), 0, "i8");
    tk_assert_le(fabs(c.norm_a - sqrt(128. * 128 + 127. * 127 + 1)), 1e-12, "i8 norm");
    c = compare(FM_U16, 2, a16, b16);
    tk_assert_le(fabs(c.norm_delta - 65535), 0, "u16");
    tk_assert_le(fabs(c.cosine), 0, "against zero");
    c = compare(FM_I64, 2, a64, b64);
    tk_assert_le(fabs(c.norm_delta - 1), 0, "i64");
    c = compare(FM_BF16, 2, abf, bbf);
    assert_int_equal(c.changed, 1); /* the sign of zero is a change of bits, of no size */
    tk_assert_le(c.norm_delta, 0, "bf16");
    c = compare(FM_F64, 1, ad, bd);
    assert_int_equal(c.changed, 1);
}

TEST(zeros_nan_and_infinity_do_not_lie)
{
    const float zero[2] = {0, 0}, nan[2] = {NAN, 1}, inf[2] = {INFINITY, 1};
    fm_tensor_change c = compare(FM_F32, 2, zero, zero);

    tk_assert_le(fabs(c.cosine - 1), 0, "zeros");
    c = compare(FM_F32, 2, nan, zero);
    assert_true(isnan(c.norm_delta) && isnan(c.max_abs_delta) && isnan(c.cosine));
    c = compare(FM_F32, 2, zero, inf);
    assert_true(isinf(c.norm_delta) && isinf(c.max_abs_delta));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(changes_come_in_order_of_path),
        cmocka_unit_test(distances_are_as_computed_by_hand),
        cmocka_unit_test(other_types_are_widened),
        cmocka_unit_test(zeros_nan_and_infinity_do_not_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
