/* JSON: what is refused and how the text says so, values, building, canonical bytes. */
#include "tests/testkit.h"

#include <math.h>
#include <string.h>

#include "store/base/cancel.h"

static fm_json *parsed(const char *text)
{
    fm_json *v;

    tk_ok(fm_json_parse(&v, fm_span_str(text), "test"));
    assert_non_null(v);
    return v;
}

static void assert_written(const fm_json *v, fm_json_style style, const char *want)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    tk_ok(fm_json_write(&b, v, style));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

static void assert_canonical(const char *text, const char *want)
{
    fm_json *v = parsed(text);

    assert_written(v, FM_JSON_CANONICAL, want);
    fm_json_free(v);
}

TEST(broken_texts_are_refused_by_line)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "nul",
                                      "01",
                                      "1.",
                                      "\"a",
                                      "{\"a\" 1}",
                                      "[1] x",
                                      "'a'",
                                      "NaN",
                                      "[1e999]",
                                      "\"\\x\"",
                                      "\"\\ud800\"",
                                      "\"\xff\"",
                                      "\"\n\"",
                                      "{1:2}",
                                      "-",
                                      "[1}",
                                      "\xef\xbb\xbf[1]",
                                      "{\"a\\u0000b\":1}"};
    fm_json *v;

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        tk_fails(fm_json_parse(&v, fm_span_str(bad[i]), "bad.json"), FM_ECORRUPT,
                 "bad.json: line 1: ");
        assert_null(v);
    }
    tk_fails(fm_json_parse(&v, fm_span_of(NULL, 0), "bad.json"), FM_ECORRUPT, "ends where");
    tk_fails(fm_json_parse(&v, fm_span_str("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"), "f"), FM_ECORRUPT,
             "f: line 3: duplicate");
}

TEST(nesting_has_a_limit)
{
    enum { DEEP = 100000 };
    fm_json *v;
    char *text = fm_malloc(DEEP);

    memset(text, '[', DEEP);
    tk_fails(fm_json_parse(&v, fm_span_of(text, DEEP), "f"), FM_ELIMIT, "deeper than 2048");
    fm_free(text);
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_json *inner = fm_json_new_array();
    for (int i = 0; i < 3000; i++) {
        fm_json *outer = fm_json_new_array();
        tk_ok(fm_json_push(outer, inner));
        inner = outer;
    }
    tk_fails(fm_json_write(&b, inner, FM_JSON_CANONICAL), FM_ELIMIT, "deeper");
    fm_json_free(inner);
    fm_buf_release(&b);
}

TEST(any_value_may_stand_at_the_top)
{
    assert_canonical("null", "null");
    assert_canonical(" true ", "true");
    assert_canonical("\"x\"", "\"x\"");
    assert_canonical("-12", "-12");
}

TEST(absent_values_are_harmless)
{
    fm_json *v = parsed("{\"a\": {\"b\": [1, \"x\"]}}");

    assert_null(fm_json_get(NULL, "a"));
    assert_null(fm_json_get(v, "z"));
    assert_null(fm_json_at(v, 0));
    assert_null(fm_json_path(v, "a.z.b"));
    assert_null(fm_json_path(v, ""));
    assert_int_equal(fm_json_count(NULL), 0);
    assert_int_equal(fm_json_typeof(NULL), FM_JSON_NULL);
    assert_false(fm_json_is(NULL, FM_JSON_NULL));
    assert_null(fm_json_iter(NULL));
    const fm_json *list = fm_json_path(v, "a.b");
    assert_int_equal(fm_json_count(list), 2);
    assert_int_equal(fm_json_int(fm_json_at(list, 0), -1), 1);
    assert_int_equal(fm_json_int(fm_json_at(list, 1), -1), -1);
    assert_string_equal(fm_json_cstr(fm_json_at(list, 1), ""), "x");
    assert_null(fm_json_str(fm_json_at(list, 0)).data);
    assert_true(fm_json_bool(fm_json_at(list, 0), true));
    fm_json_free(v);
    fm_json_free(NULL);
}

TEST(integers_beyond_64_bits_are_reals_and_the_others_stay_integers)
{
    fm_json *v = parsed("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 7,"
                        " \"lo\": -9223372036854775808, \"hi\": 9223372036854775807,"
                        " \"over\": 9223372036854775808, \"under\": -9223372036854775809,"
                        " \"s\": \"\\\"99999999999999999999\", \"r\": 12345678901234567890.5,"
                        " \"e\": 99999999999999999999e-1, \"x\": 1e-99999999999999999999}");
    assert_true(fm_json_is(fm_json_get(v, "model_max_length"), FM_JSON_REAL));
    assert_true(fm_json_real(fm_json_get(v, "model_max_length"), 0.0) == 1e30);
    assert_int_equal(fm_json_int(fm_json_get(v, "model_max_length"), -5), -5);
    assert_true(fm_json_is(fm_json_get(v, "n"), FM_JSON_INT));
    assert_true(fm_json_int(fm_json_get(v, "lo"), 0) == INT64_MIN);
    assert_true(fm_json_int(fm_json_get(v, "hi"), 0) == INT64_MAX);
    assert_true(fm_json_is(fm_json_get(v, "over"), FM_JSON_REAL));
    assert_true(fm_json_is(fm_json_get(v, "under"), FM_JSON_REAL));
    assert_string_equal(fm_json_cstr(fm_json_get(v, "s"), ""), "\"99999999999999999999");
    assert_true(fm_json_real(fm_json_get(v, "e"), 0.0) == 9999999999999999999.9);
    assert_true(fm_json_real(fm_json_get(v, "x"), 1.0) == 0.0);
    fm_json_free(v);
}

TEST(integral_reals_pass_for_integers_up_to_2_to_53)
{
    fm_json *v = parsed("[3.0, 3.5, 9007199254740992.0, 9007199254740994.0, -1e3]");

    assert_int_equal(fm_json_int(fm_json_at(v, 0), -1), 3);
    assert_int_equal(fm_json_int(fm_json_at(v, 1), -1), -1);
    assert_true(fm_json_int(fm_json_at(v, 2), -1) == (int64_t)1 << 53);
    assert_int_equal(fm_json_int(fm_json_at(v, 3), -1), -1);
    assert_int_equal(fm_json_int(fm_json_at(v, 4), -1), -1000);
    fm_json_free(v);
}

TEST(needed_fields_say_what_they_are)
{
    fm_json *v = parsed("{\"n\": 3, \"r\": 1.5, \"s\": \"x\", \"o\": {}, \"z\": null}");
    const char *s;
    int64_t n;
    double r;

    tk_ok(fm_json_need_int(&n, v, "n", "f"));
    assert_int_equal(n, 3);
    tk_ok(fm_json_need_real(&r, v, "n", "f"));
    assert_true(r == 3.0);
    tk_ok(fm_json_need_str(&s, v, "s", "f"));
    assert_string_equal(s, "x");
    tk_fails(fm_json_need_int(&n, v, "r", "f"), FM_EINVAL,
             "f: field 'r' must be an integer, is a number");
    tk_fails(fm_json_need_str(&s, v, "n", "f"), FM_EINVAL,
             "f: field 'n' must be a string, is an integer");
    assert_null(s);
    tk_fails(fm_json_need_real(&r, v, "o", "f"), FM_EINVAL, "is an object");
    tk_fails(fm_json_need_str(&s, v, "z", "f"), FM_EINVAL, "is null");
    tk_fails(fm_json_need_int(&n, v, "q", "f"), FM_EINVAL,
             "field 'q' must be an integer, is missing");
    tk_fails(fm_json_need_int(&n, NULL, "q", "f"), FM_EINVAL, "is missing");
    fm_json_free(v);
}

TEST(strings_may_hold_nul_and_bad_utf8_is_mended)
{
    fm_json *v = parsed("\"a\\u0000b\"");

    assert_true(fm_span_eq(fm_json_str(v), fm_span_of("a\0b", 3)));
    assert_written(v, FM_JSON_CANONICAL, "\"a\\u0000b\"");
    fm_json_free(v);
    v = fm_json_new_str("a\xff"
                        "b\xe2\x82\xac\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80\xe2\x82");
    assert_written(v, FM_JSON_CANONICAL,
                   "\"a\xef\xbf\xbd"
                   "b\xe2\x82\xac"
                   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                   "\xef\xbf\xbd\xef\xbf\xbd"
                   "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                   "\xef\xbf\xbd\"");
    fm_json_free(v);
}

TEST(objects_keep_the_order_of_the_file)
{
    static const char *const want[] = {"z", "a", "m"};
    fm_json *v = parsed("{\"z\": 1, \"a\": 2, \"m\": 3}");
    size_t i = 0;

    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it), i++) {
        assert_string_equal(fm_json_iter_key(it), want[i]);
        assert_int_equal(fm_json_int(fm_json_iter_value(it), 0), i + 1);
    }
    assert_int_equal(i, 3);
    assert_written(v, FM_JSON_COMPACT, "{\"z\":1,\"a\":2,\"m\":3}");
    assert_written(v, FM_JSON_PRETTY, "{\n  \"z\": 1,\n  \"a\": 2,\n  \"m\": 3\n}");
    fm_json_free(v);
}

TEST(canonical_bytes_are_the_stated_ones)
{
    assert_canonical("{\"b\":[1, 2],\"a\":{},\"B\":[],\"\\u00e9\":null,\"aa\":false}",
                     "{\"B\":[],\"a\":{},\"aa\":false,\"b\":[1,2],\"\xc3\xa9\":null}");
    assert_canonical("\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\\/\\\"\\\\\"",
                     "\"\\b\\f\\n\\r\\t\\u0001\\u001f\x7f/\\\"\\\\\"");
    assert_canonical("[0.1,1.0,-0.0,1e22,1e-5,0.30000000000000004,5e-324,1.7976931348623157e308]",
                     "[0.1,1.0,-0.0,1e+22,1e-05,0.30000000000000004,4.94065645841247e-324,"
                     "1.7976931348623157e+308]");
    assert_canonical("[100000.0,123456789012345680.0,2.5]",
                     "[100000.0,1.2345678901234568e+17,2.5]");
}

TEST(reals_read_back_bit_for_bit)
{
    uint64_t bits = 0x3ff0000000000001u;
    for (int i = 0; i < 20000; i++) {
        double x, y;
        fm_buf b;
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x))
            continue;
        fm_json *v = fm_json_new_real(x);
        fm_buf_init(&b, 0);
        tk_ok(fm_json_write(&b, v, FM_JSON_CANONICAL));
        fm_json_free(v);
        v = parsed(fm_buf_cstr(&b));
        assert_true(fm_json_is(v, FM_JSON_REAL));
        y = fm_json_real(v, 0.0);
        assert_memory_equal(&x, &y, sizeof(x));
        fm_json_free(v);
        fm_buf_release(&b);
    }
}

TEST(trees_are_built_and_shared_by_reference)
{
    fm_json *o = fm_json_new_object();
    fm_json *list = fm_json_new_array();

    tk_ok(fm_json_push(list, fm_json_new_int(INT64_MIN)));
    tk_ok(fm_json_push(list, fm_json_new_real((double)NAN)));
    tk_ok(fm_json_push(list, fm_json_new_str(NULL)));
    tk_ok(fm_json_push(list, fm_json_new_strn("a\0", 2)));
    tk_ok(fm_json_set(o, "l", fm_json_ref(list)));
    tk_ok(fm_json_set(o, "t", fm_json_new_bool(true)));
    tk_ok(fm_json_set(o, "t", fm_json_new_bool(false)));
    assert_written(o, FM_JSON_CANONICAL,
                   "{\"l\":[-9223372036854775808,null,null,\"a\\u0000\"],\"t\":false}");
    fm_json *copy = fm_json_copy(o);
    assert_true(fm_json_equal(o, copy));
    tk_ok(fm_json_push(list, fm_json_new_null()));
    assert_false(fm_json_equal(o, copy));
    assert_int_equal(fm_json_count(fm_json_get(copy, "l")), 4);
    assert_false(fm_json_equal(o, NULL));
    fm_json_free(list);
    fm_json_free(o);
    fm_json_free(copy);
}

TEST(building_with_bad_arguments_is_refused_and_leaks_nothing)
{
    fm_json *o = fm_json_new_object();

    tk_fails(fm_json_set(o, "k", NULL), FM_ENOMEM, NULL);
    tk_fails(fm_json_set(NULL, "k", fm_json_new_int(1)), FM_ENOMEM, NULL);
    tk_fails(fm_json_push(o, fm_json_new_int(1)), FM_EINVAL, NULL);
    tk_fails(fm_json_set(o, "\xff", fm_json_new_int(1)), FM_EINVAL, "cannot set field");
    fm_json_free(o);
}

TEST(a_builder_keeps_the_first_failure_and_leaks_nothing)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *a = fm_json_new_array();

    fm_json_push_to(&rc, a, fm_json_new_int(3));
    fm_json_put(&rc, o, "a", fm_json_ref(a));
    assert_int_equal(rc, FM_OK);
    fm_json_put(&rc, o, "\xff", fm_json_new_int(1));
    assert_int_equal(rc, FM_EINVAL);
    fm_json_put(&rc, NULL, "b", fm_json_new_int(2)); /* not looked at any more */
    fm_json_push_to(&rc, a, fm_json_new_int(4));
    assert_int_equal(rc, FM_EINVAL);
    assert_int_equal(fm_json_count(o), 1);
    assert_int_equal(fm_json_count(a), 1);
    rc = FM_OK;
    fm_json_put(&rc, NULL, "b", fm_json_new_int(2));
    assert_int_equal(rc, FM_ENOMEM);
    fm_json_free(a);
    fm_json_free(o);
}

TEST(files_are_read_within_their_limit)
{
    char *dir = tk_scratch();
    char *path = fm_path_join(dir, "a.json");
    fm_json *v;

    tk_fails(fm_json_parse_file(&v, path, 100), FM_ENOTFOUND, "a.json");
    tk_ok(fm_write_file(path, "{\"a\": 12}", 9));
    tk_fails(fm_json_parse_file(&v, path, 8), FM_ELIMIT, "larger than 8 bytes");
    assert_null(v);
    tk_ok(fm_json_parse_file(&v, path, 9));
    assert_int_equal(fm_json_int(fm_json_get(v, "a"), 0), 12);
    fm_json_free(v);
    fm_free(path);
    fm_free(dir);
}

/* Two spaces a level would make 4 MB of these 4 kB. */
TEST(deep_values_are_not_indented_without_end)
{
    fm_json *v = NULL, *again = NULL;
    fm_buf text, out;
    fm_buf_init(&text, 0);
    fm_buf_init(&out, 0);
    memset(fm_buf_extend(&text, 2000), '[', 2000);
    memset(fm_buf_extend(&text, 2000), ']', 2000);
    tk_ok(fm_json_parse(&v, fm_buf_span(&text), "deep"));
    tk_ok(fm_json_write(&out, v, FM_JSON_PRETTY));
    assert_true(out.len < 300000);
    tk_ok(fm_json_parse(&again, fm_buf_span(&out), "again"));
    assert_true(fm_json_equal(v, again));
    fm_json_free(v);
    fm_json_free(again);
    fm_buf_release(&text);
    fm_buf_release(&out);
}

TEST(a_request_to_stop_ends_the_reading)
{
    fm_json *v = NULL;
    fm_cancel(true);
    tk_fails(fm_json_parse(&v, fm_span_str("[1, 2]"), "x"), FM_ECANCELLED, "stopped on request");
    fm_cancel(false);
    assert_null(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_texts_are_refused_by_line),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(any_value_may_stand_at_the_top),
        cmocka_unit_test(absent_values_are_harmless),
        cmocka_unit_test(integers_beyond_64_bits_are_reals_and_the_others_stay_integers),
        cmocka_unit_test(integral_reals_pass_for_integers_up_to_2_to_53),
        cmocka_unit_test(needed_fields_say_what_they_are),
        cmocka_unit_test(strings_may_hold_nul_and_bad_utf8_is_mended),
        cmocka_unit_test(objects_keep_the_order_of_the_file),
        cmocka_unit_test(canonical_bytes_are_the_stated_ones),
        cmocka_unit_test(reals_read_back_bit_for_bit),
        cmocka_unit_test(trees_are_built_and_shared_by_reference),
        cmocka_unit_test(building_with_bad_arguments_is_refused_and_leaks_nothing),
        cmocka_unit_test(deep_values_are_not_indented_without_end),
        cmocka_unit_test(a_request_to_stop_ends_the_reading),
        cmocka_unit_test(a_builder_keeps_the_first_failure_and_leaks_nothing),
        cmocka_unit_test(files_are_read_within_their_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
