/* Buffers and cursors: what is written reads back, limits stick. */
#include "tests/testkit.h"

#include <string.h>

TEST(passing_the_maximum_sticks_and_keeps_what_was_there)
{
    fm_buf b;

    fm_buf_init(&b, 10);
    fm_buf_str(&b, "1234567890");
    tk_ok(fm_buf_ok(&b));
    fm_buf_char(&b, 'x');
    tk_fails(fm_buf_ok(&b), FM_ELIMIT, "10 bytes");
    fm_buf_clear(&b);
    tk_ok(fm_buf_ok(&b));
    fm_buf_str(&b, "12345678901");
    fm_buf_str(&b, "1"); /* would fit, but a hole must not pass for data */
    tk_fails(fm_buf_ok(&b), FM_ELIMIT, NULL);
    assert_null(fm_buf_extend(&b, 1));
    assert_int_equal(b.len, 0);
    assert_null(fm_buf_take(&b));
    fm_buf_release(&b);
}

TEST(a_huge_length_does_not_wrap)
{
    fm_buf b;

    fm_buf_init(&b, SIZE_MAX);
    assert_null(fm_buf_extend(&b, SIZE_MAX));
    assert_true(fm_buf_ok(&b) < 0);
    fm_buf_release(&b);
    fm_buf_init(&b, 0);
    fm_buf_char(&b, 'a');
    assert_null(fm_buf_extend(&b, SIZE_MAX - 1));
    tk_fails(fm_buf_ok(&b), FM_ELIMIT, NULL);
    fm_buf_release(&b);
}

TEST(an_empty_buffer_is_an_empty_string)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    assert_string_equal(fm_buf_cstr(&b), "");
    assert_int_equal(fm_buf_span(&b).len, 0);
    char *s = fm_buf_take(&b);
    assert_string_equal(s, "");
    fm_free(s);
    fm_buf_release(&b);
}

TEST(data_is_always_nul_terminated)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    for (int i = 0; i < 5000; i++) {
        fm_buf_char(&b, 'a');
        assert_int_equal(b.data[b.len], '\0');
    }
    fm_buf_clear(&b);
    fm_buf_printf(&b, "%s=%d", "key", 42);
    assert_string_equal(fm_buf_cstr(&b), "key=42");
    char *s = fm_buf_take(&b);
    assert_string_equal(s, "key=42");
    assert_int_equal(b.len, 0);
    fm_free(s);
    fm_buf_release(&b);
}

TEST(integers_read_back_little_endian)
{
    fm_buf b;
    fm_cursor c;

    fm_buf_init(&b, 0);
    fm_buf_u8(&b, 0x12);
    fm_buf_u16(&b, 0x3456);
    fm_buf_u32(&b, 0x789abcde);
    fm_buf_u64(&b, 0xfedcba9876543210u);
    fm_buf_str(&b, "tail");
    tk_ok(fm_buf_ok(&b));
    assert_memory_equal(b.data, "\x12\x56\x34\xde\xbc\x9a\x78\x10\x32", 9);
    fm_cursor_init(&c, fm_buf_span(&b));
    assert_int_equal(fm_cursor_u8(&c), 0x12);
    assert_int_equal(fm_cursor_u16(&c), 0x3456);
    assert_int_equal(fm_cursor_u32(&c), 0x789abcde);
    assert_true(fm_cursor_u64(&c) == 0xfedcba9876543210u);
    assert_int_equal(fm_cursor_left(&c), 4);
    assert_true(fm_span_eq_str(fm_cursor_bytes(&c, 4), "tail"));
    tk_ok(fm_cursor_ok(&c, "f", "x"));
    assert_int_equal(fm_cursor_left(&c), 0);
    fm_buf_release(&b);
}

TEST(a_cursor_sticks_at_its_first_failure)
{
    const uint8_t bytes[] = {1, 2, 3};
    fm_cursor c;

    fm_cursor_init(&c, fm_span_of(bytes, 3));
    fm_cursor_skip(&c, 1);
    assert_int_equal(fm_cursor_u32(&c), 0);
    assert_int_equal(fm_cursor_u8(&c), 0); /* there would be bytes, but the record is broken */
    assert_int_equal(fm_cursor_left(&c), 0);
    tk_fails(fm_cursor_ok(&c, "a.pack", "the header"), FM_ECORRUPT,
             "a.pack: ends in the middle of the header at byte 1");
}

TEST(a_hostile_length_does_not_wrap)
{
    const uint8_t bytes[] = {1, 2, 3};
    fm_cursor c;

    fm_cursor_init(&c, fm_span_of(bytes, 3));
    fm_cursor_skip(&c, 2);
    fm_span s = fm_cursor_bytes(&c, UINT64_MAX);
    assert_null(s.data);
    assert_int_equal(s.len, 0);
    assert_true(c.failed);
    fm_cursor_init(&c, fm_span_of(NULL, 0));
    assert_int_equal(fm_cursor_bytes(&c, 0).len, 0);
    assert_false(c.failed);
}

TEST(spans_compare_by_bytes)
{
    assert_true(fm_span_eq(fm_span_of("ab", 2), fm_span_str("ab")));
    assert_false(fm_span_eq_str(fm_span_of("ab\0", 3), "ab"));
    assert_true(fm_span_eq(fm_span_of(NULL, 0), fm_span_str("")));
}

TEST(heads_and_tails_are_told)
{
    const fm_span none = {NULL, 0};

    assert_true(fm_starts_with("refs/heads/a", "refs/heads/"));
    assert_true(fm_starts_with("a", "") && fm_starts_with("a", "a"));
    assert_false(fm_starts_with("refs", "refs/"));
    assert_true(fm_ends_with("x.weight", ".weight"));
    assert_true(fm_ends_with("a", "") && fm_ends_with("a", "a"));
    assert_false(fm_ends_with("eight", "weight"));
    assert_false(fm_ends_with("weight.x", "weight"));
    assert_true(fm_span_starts(none, none) && fm_span_ends(none, none));
    assert_true(fm_span_starts(fm_span_of("a\0b", 3), fm_span_of("a\0", 2)));
    assert_false(fm_span_starts(fm_span_of("a\0b", 3), fm_span_of("a\0c", 3)));
    assert_true(fm_span_ends(fm_span_of("a\0b", 3), fm_span_of("\0b", 2)));
    assert_false(fm_span_ends(fm_span_of("b", 1), fm_span_of("\0b", 2)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passing_the_maximum_sticks_and_keeps_what_was_there),
        cmocka_unit_test(a_huge_length_does_not_wrap),
        cmocka_unit_test(an_empty_buffer_is_an_empty_string),
        cmocka_unit_test(data_is_always_nul_terminated),
        cmocka_unit_test(integers_read_back_little_endian),
        cmocka_unit_test(a_cursor_sticks_at_its_first_failure),
        cmocka_unit_test(a_hostile_length_does_not_wrap),
        cmocka_unit_test(spans_compare_by_bytes),
        cmocka_unit_test(heads_and_tails_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
