/* UTF-8: what is well-formed (Unicode, table 3-7), and what becomes of the rest. */
#include "tests/testkit.h"

#include <string.h>

#include "store/base/text/utf8.h"

TEST(every_code_point_is_written_and_read_back)
{
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        uint8_t b[4];
        uint32_t back;
        size_t n = fm_utf8_put(b, cp), want = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        bool surrogate = cp >= 0xd800 && cp < 0xe000;
        assert_int_equal(n, want);
        assert_int_equal(fm_utf8_len(b, 4), surrogate ? 0 : n);
        assert_int_equal(fm_utf8_valid(b, n), surrogate ? 0 : n);
        if (n > 1)
            assert_int_equal(fm_utf8_len(b, n - 1), 0);
        assert_int_equal(fm_utf8_next(b, &back), n);
        assert_int_equal(back, cp);
    }
}

/* Each answer is that of Python's bytes.decode(errors="replace"). */
TEST(ill_formed_parts_become_one_mark_each)
{
    static const struct {
        const char *text;
        size_t valid, marks, cut;
    } is[] = {
        {"a\xc3\xa9", 3, 0, 0},
        {"a\xff", 1, 1, 0},
        {"\xc0\xaf", 0, 2, 0},
        {"\xed\xa0\x80", 0, 3, 0},
        {"\xf4\x90\x80\x80", 0, 4, 0},
        {"\xe2\x82", 0, 1, 2},
        {"b\xf0\x9f\x98", 1, 1, 3},
        {"\xf0\x9f\x98z", 0, 1, 0},
        {"\xe2\x82\xe2\x82\xac", 0, 1, 0},
        {"\x80\x80", 0, 2, 0},
        {"\xc3", 0, 1, 1},
        {"\xf8\x88\x80\x80\x80", 0, 5, 0},
    };
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < FM_ARRAY_LEN(is); i++) {
        const uint8_t *s = (const uint8_t *)is[i].text;
        size_t len = strlen(is[i].text), marks = 0;
        assert_int_equal(fm_utf8_valid(s, len), is[i].valid);
        assert_int_equal(fm_utf8_cut(s, len), is[i].cut);
        fm_buf_clear(&b);
        fm_utf8_lossy(&b, s, len);
        for (const char *p = fm_buf_cstr(&b); (p = strstr(p, FM_UTF8_REPLACEMENT)); p += 3)
            marks++;
        assert_int_equal(marks, is[i].marks);
        assert_int_equal(fm_utf8_valid(b.data, b.len), b.len);
    }
    fm_buf_release(&b);
}

TEST(no_code_point_is_cut)
{
    const uint8_t *s = (const uint8_t *)"a\xe2\x82\xac"
                                        "b";
    static const size_t want[] = {0, 1, 1, 1, 4, 5, 5};
    for (size_t max = 0; max < FM_ARRAY_LEN(want); max++)
        assert_int_equal(fm_utf8_clip(s, 5, max), want[max]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_written_and_read_back),
        cmocka_unit_test(ill_formed_parts_become_one_mark_each),
        cmocka_unit_test(no_code_point_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
