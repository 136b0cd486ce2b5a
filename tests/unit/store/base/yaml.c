/* YAML: the core schema's scalars, and everything that is refused, by line. */
#include "tests/testkit.h"

#include "store/base/text/yaml.h"

static void assert_reads(const char *yaml, const char *want)
{
    fm_json *v;
    fm_buf b;

    tk_ok(fm_yaml_parse(&v, fm_span_str(yaml), "test.yaml"));
    fm_buf_init(&b, 0);
    tk_ok(fm_json_write(&b, v, FM_JSON_COMPACT));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
    fm_json_free(v);
}

static void assert_refused(const char *yaml, fm_status status, const char *needle)
{
    fm_json *v;

    tk_fails(fm_yaml_parse(&v, fm_span_str(yaml), "t.yaml"), status, needle);
    assert_null(v);
}

TEST(what_is_not_plain_data_is_refused_by_line)
{
    assert_refused("a: 1\nb: 2\na: 3\n", FM_ECORRUPT, "t.yaml: line 3: duplicate key 'a'");
    assert_refused("a: 1\n---\nb: 2\n", FM_ECORRUPT, "more than one document");
    assert_refused("1: x\n", FM_ECORRUPT, "t.yaml: line 1: a key must be a string");
    assert_refused("x: 1\ntrue: x\n", FM_ECORRUPT, "line 2: a key must be a string");
    assert_refused("? [a]\n: x\n", FM_ECORRUPT, "a key must be");
    assert_refused("{a: 1, [x]: 2}\n", FM_ECORRUPT, "a key must be");
    assert_refused("a: !!str 1\n", FM_ECORRUPT, "tags are not read");
    assert_refused("a: !x [1]\n", FM_ECORRUPT, "tags are not read");
    assert_refused("a: !x {b: 1}\n", FM_ECORRUPT, "tags are not read");
    assert_refused("a: .inf\n", FM_ECORRUPT, "infinity");
    assert_refused("a: -.INF\n", FM_ECORRUPT, "infinity");
    assert_refused("a: .nan\n", FM_ECORRUPT, "NaN");
    assert_refused("a: 1e999\n", FM_ECORRUPT, "out of range");
    assert_refused("b: &b {c: 1}\na:\n  <<: *b\n", FM_ECORRUPT, "line 3: merge keys");
    assert_refused("\"a\\0b\": 1\n", FM_ECORRUPT, "NUL");
    assert_refused("a: [1\n", FM_ECORRUPT, "line ");
    assert_refused("a: \"x\n", FM_ECORRUPT, "line ");
    assert_refused("a: \xff\n", FM_ECORRUPT, "line ");
    assert_refused("\ta: 1\n", FM_ECORRUPT, "line 1");
}

TEST(aliases_of_nothing_and_of_oneself_are_refused)
{
    assert_refused("a: *x\n", FM_ECORRUPT, "alias names no finished anchor");
    assert_refused("a: &x [1, *x]\n", FM_ECORRUPT, "alias names no finished anchor");
}

TEST(an_empty_file_is_null)
{
    fm_json *v;

    assert_reads("", "null");
    assert_reads("# only a comment\n", "null");
    assert_reads("---\n", "null");
    tk_ok(fm_yaml_parse(&v, fm_span_of(NULL, 0), "x"));
    fm_json_free(v);
}

TEST(plain_scalars_follow_the_core_schema)
{
    assert_reads("[null, ~, Null, true, False, TRUE]", "[null,null,null,true,false,true]");
    assert_reads("[0, -12, +3, 007, 0o17, 0xfF]", "[0,-12,3,7,15,255]");
    assert_reads("[1.5, -.5, 1., 1e3, 2E-2, +0.25]", "[1.5,-0.5,1.0,1000.0,0.02,0.25]");
    assert_reads("[yes, no, on, off, n, 1_000, 0b1, 1e, '.', 1.2.3, 12:30, 2024-01-01]",
                 "[\"yes\",\"no\",\"on\",\"off\",\"n\",\"1_000\",\"0b1\",\"1e\",\".\","
                 "\"1.2.3\",\"12:30\",\"2024-01-01\"]");
    assert_reads("[9223372036854775807, 1000000000000000019884624838656]",
                 "[9223372036854775807,1e+30]");
    assert_reads("a:\nb: x\n", "{\"a\":null,\"b\":\"x\"}");
}

TEST(quoted_and_block_scalars_are_strings)
{
    assert_reads("['1', \"true\", \"\\u00e9\\x41\"]", "[\"1\",\"true\",\"\xc3\xa9"
                                                      "A\"]");
    assert_reads("a: |\n  1\n  2\nb: >-\n  x\n  y\n", "{\"a\":\"1\\n2\\n\",\"b\":\"x y\"}");
    assert_reads("'1': 2\n", "{\"1\":2}");
}

TEST(nested_documents_keep_their_order)
{
    assert_reads("name: capitals\ncases:\n  - prompt: \"2+2=\"\n    expect: {equals: '4'}\n"
                 "  - [a, [b]]\n",
                 "{\"name\":\"capitals\",\"cases\":[{\"prompt\":\"2+2=\",\"expect\":"
                 "{\"equals\":\"4\"}},[\"a\",[\"b\"]]]}");
}

TEST(aliases_are_expanded_and_the_last_anchor_of_a_name_wins)
{
    assert_reads("a: &x {k: 1}\nb: *x\nc: &x 2\nd: *x\n",
                 "{\"a\":{\"k\":1},\"b\":{\"k\":1},\"c\":2,\"d\":2}");
}

TEST(a_billion_laughs_are_refused)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    fm_buf_str(&b, "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for (int i = 1; i < 12; i++) {
        fm_buf_printf(&b, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            fm_buf_printf(&b, "%s*a%d", k ? "," : "", i - 1);
        fm_buf_str(&b, "]\n");
    }
    assert_refused(fm_buf_cstr(&b), FM_ELIMIT, "too many values");
    fm_buf_release(&b);
}

TEST(depth_is_limited_through_aliases_too)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    for (int i = 0; i < 200; i++)
        fm_buf_char(&b, '[');
    assert_refused(fm_buf_cstr(&b), FM_ELIMIT, "nested too deep");
    fm_buf_clear(&b);
    fm_buf_str(&b, "a0: &a0 [x]\n");
    for (int i = 1; i < 200; i++)
        fm_buf_printf(&b, "a%d: &a%d [*a%d]\n", i, i, i - 1);
    assert_refused(fm_buf_cstr(&b), FM_ELIMIT, "nested too deep");
    fm_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_plain_data_is_refused_by_line),
        cmocka_unit_test(aliases_of_nothing_and_of_oneself_are_refused),
        cmocka_unit_test(an_empty_file_is_null),
        cmocka_unit_test(plain_scalars_follow_the_core_schema),
        cmocka_unit_test(quoted_and_block_scalars_are_strings),
        cmocka_unit_test(nested_documents_keep_their_order),
        cmocka_unit_test(aliases_are_expanded_and_the_last_anchor_of_a_name_wins),
        cmocka_unit_test(a_billion_laughs_are_refused),
        cmocka_unit_test(depth_is_limited_through_aliases_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
