/* The safetensors reader refuses every lie that a header can tell; the writer tells none. */
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

#include "store/formats/safetensors.h"

static void put_file(fm_buf *b, const char *header, size_t body)
{
    fm_buf_clear(b);
    fm_buf_u64(b, strlen(header));
    fm_buf_str(b, header);
    for (size_t i = 0; i < body; i++)
        fm_buf_u8(b, (uint8_t)i);
}

static fm_status parse(const fm_buf *b)
{
    fm_st *st = NULL;
    fm_status rc = fm_st_parse(&st, fm_buf_span(b), "m.safetensors");
    if (rc < 0)
        assert_null(st);
    fm_st_close(st);
    return rc;
}

#define T(name, dtype, shape, at)                                                                  \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" at "}"

TEST(hostile_headers_are_refused_by_tensor_and_field)
{
    static const struct {
        const char *header;
        size_t body;
        fm_status rc;
        const char *needle;
    } bad[] = {
        {"[]", 0, FM_ECORRUPT, "no JSON object"},
        {"", 0, FM_ECORRUPT, "no JSON object"},
        {"{\"a\"", 0, FM_ECORRUPT, "m.safetensors"},
        {"{} x", 0, FM_ECORRUPT, "m.safetensors"},
        {"{}", 4, FM_ECORRUPT, "4 bytes follow"},
        {"{\"a\":7}", 0, FM_ECORRUPT, "'a'"},
        {"{\"a\":{}}", 0, FM_ECORRUPT, "'dtype'"},
        {"{" T("", "U8", "[4]", "[0,4]") "}", 4, FM_ECORRUPT, "0 bytes"},
        {"{" T("a", "U9", "[4]", "[0,4]") "}", 4, FM_EUNSUPPORTED, "'U9'"},
        {"{" T("a", "Q8_0", "[32]", "[0,34]") "}", 34, FM_EUNSUPPORTED, "'Q8_0'"},
        {"{" T("a", "U8", "4", "[0,4]") "}", 4, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[-4]", "[0,4]") "}", 4, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[4.0]", "[0,4]") "}", 4, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[true]", "[0,4]") "}", 4, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,4]", "[0,4]") "}", 4, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[18446744073709551616]", "[0,4]") "}", 4, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "F32", "[4611686018427387904,4]", "[0,0]") "}", 0, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[0,9223372036854775807,9]", "[0,0]") "}", 0, FM_ECORRUPT, "'shape'"},
        {"{" T("a", "U8", "[4]", "[0]") "}", 4, FM_ECORRUPT, "'data_offsets'"},
        {"{" T("a", "U8", "[4]", "[-1,3]") "}", 4, FM_ECORRUPT, "'data_offsets'"},
        {"{" T("a", "U8", "[4]", "[4,0]") "}", 4, FM_ECORRUPT, "'data_offsets'"},
        {"{" T("a", "U8", "[4]", "[0,5]") "}", 4, FM_ECORRUPT, "'data_offsets'"},
        {"{" T("a", "U8", "[3]", "[0,4]") "}", 4, FM_ECORRUPT, "need 3 bytes"},
        {"{" T("a", "U8", "[3]", "[0,3]") "}", 4, FM_ECORRUPT, "1 bytes follow"},
        {"{" T("a", "U8", "[3]", "[1,4]") "}", 4, FM_ECORRUPT, "hole"},
        {"{" T("a", "U8", "[3]", "[0,3]") "," T("b", "U8", "[2]", "[2,4]") "}", 4, FM_ECORRUPT,
         "overlaps"},
        {"{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[0,4]") "}", 4, FM_ECORRUPT,
         "overlaps"},
        {"{" T("a", "U8", "[4]", "[0,4]") "," T("a", "U8", "[4]", "[0,4]") "}", 4, FM_ECORRUPT,
         "duplicate"},
        {"{\"__metadata__\":{\"a\":1}}", 0, FM_ECORRUPT, "__metadata__.a"},
        {"{\"__metadata__\":[]}", 0, FM_ECORRUPT, "__metadata__"},
    };
    fm_buf b;
    fm_buf_init(&b, 0);
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        put_file(&b, bad[i].header, bad[i].body);
        tk_fails(parse(&b), bad[i].rc, bad[i].needle);
        assert_non_null(strstr(fm_error_text(), "m.safetensors"));
    }
    fm_buf_release(&b);
}

TEST(lengths_are_checked_before_anything_else)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_fails(parse(&b), FM_ECORRUPT, "too few");
    fm_buf_u64(&b, UINT64_MAX);
    tk_fails(parse(&b), FM_ECORRUPT, "limit");
    fm_buf_clear(&b);
    fm_buf_u64(&b, 3);
    fm_buf_str(&b, "{}");
    tk_fails(parse(&b), FM_ECORRUPT, "past the end");
    fm_buf_release(&b);
}

TEST(every_truncation_is_refused)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    put_file(&b, "{" T("a", "U8", "[3]", "[0,3]") "," T("b", "F16", "[2,1]", "[3,7]") "}  ", 7);
    tk_ok(parse(&b));
    for (size_t n = 0; n < b.len; n++) {
        fm_st *st = NULL;
        assert_true(fm_st_parse(&st, fm_span_of(b.data, n), "cut") == FM_ECORRUPT);
    }
    fm_buf_release(&b);
}

/* Absolute, climbing and odd names are names like others: paths escape them. */
TEST(odd_names_empty_tensors_and_scalars_are_read)
{
    fm_st *st = NULL;
    fm_buf b;
    fm_buf_init(&b, 0);
    put_file(&b,
             "{\"__metadata__\":{\"k\":\"v\"}," T("/etc/passwd", "U8", "[]", "[0,1]") "," T(
                 "../..", "F32", "[0,7]", "[1,1]") "," T("a\\nb", "BF16", "[1]", "[1,3]") "}",
             3);
    tk_ok(fm_st_parse(&st, fm_buf_span(&b), "m"));
    assert_int_equal(fm_st_count(st), 3);
    assert_non_null(fm_st_find(st, "../.."));
    assert_null(fm_st_find(st, "x"));
    const fm_st_tensor *t = fm_st_find(st, "a\nb");
    assert_non_null(t);
    assert_int_equal(fm_st_bytes(st, t).data[1], 2);
    assert_int_equal(fm_st_find(st, "/etc/passwd")->shape.rank, 0);
    fm_st_close(st);
    fm_buf_release(&b);
}

TEST(the_header_is_written_as_the_formats_library_writes_it)
{
    fm_st_item items[] = {
        {"b", FM_BF16, {1, {2}}, NULL},
        {"z", FM_F32, {2, {1, 2}}, NULL},
        {"a", FM_BF16, {0, {0}}, NULL},
        {"i", FM_I64, {1, {1}}, NULL},
    };
    static const char want[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," T("i", "I64", "[1]", "[0,8]") "," T(
            "z", "F32", "[1,2]",
            "[8,16]") "," T("a", "BF16", "[]", "[16,18]") "," T("b", "BF16", "[2]", "[18,22]") "}";
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_st_header(&b, items, FM_ARRAY_LEN(items)));
    assert_int_equal(b.len % 8, 0);
    assert_int_equal(fm_get_u64(b.data), b.len - 8);
    assert_memory_equal(b.data + 8, want, sizeof want - 1);
    for (size_t i = 8 + sizeof want - 1; i < b.len; i++)
        assert_int_equal(b.data[i], ' ');
    for (int i = 0; i < 22; i++)
        fm_buf_u8(&b, 0);
    tk_ok(parse(&b));
    fm_st_item block = {"q", FM_Q8_0, {1, {32}}, NULL};
    tk_fails(fm_st_header(&b, &block, 1), FM_EUNSUPPORTED, "Q8_0");
    fm_st_item twice[] = {{"q", FM_U8, {1, {1}}, NULL}, {"q", FM_U8, {1, {1}}, NULL}};
    tk_fails(fm_st_header(&b, twice, 2), FM_EINVAL, "one name");
    fm_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_headers_are_refused_by_tensor_and_field),
        cmocka_unit_test(lengths_are_checked_before_anything_else),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(odd_names_empty_tensors_and_scalars_are_read),
        cmocka_unit_test(the_header_is_written_as_the_formats_library_writes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
