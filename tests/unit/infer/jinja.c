/* Templates against texts that jinja2 itself made (jinja_cases.json), and what must be refused. */
#include "infer/chat.h"
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

static fm_status render(fm_buf *out, const char *source, const char *messages, const char *extra)
{
    fm_chat_template *t;
    fm_json *m = NULL, *x = NULL;
    fm_status rc = fm_chat_template_open(&t, fm_span_str(source), "t");

    if (rc < 0) {
        assert_null(t);
        return rc;
    }
    tk_ok(fm_json_parse(&m, fm_span_str(messages), "messages"));
    if (extra)
        tk_ok(fm_json_parse(&x, fm_span_str(extra), "extra"));
    rc = fm_chat_render(out, t, m, NULL, false, x);
    fm_json_free(m);
    fm_json_free(x);
    fm_chat_template_close(t);
    return rc;
}

static void fails(const char *source, fm_status status, const char *needle)
{
    fm_buf out;

    fm_buf_init(&out, 0);
    fm_buf_str(&out, "kept");
    tk_fails(render(&out, source, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL), status, needle);
    assert_string_equal(fm_buf_cstr(&out), "kept");
    fm_buf_release(&out);
}

TEST(unknown_constructs_are_named_with_their_line)
{
    fails("a\n{{ x | frobnicate }}", FM_EUNSUPPORTED, "t: line 2: filter 'frobnicate'");
    fails("{% if x is weird %}{% endif %}", FM_EUNSUPPORTED, "line 1: test 'weird'");
    fails("\n\n{% include 'x' %}", FM_EUNSUPPORTED, "line 3: statement 'include'");
    fails("{% extends 'x' %}", FM_EUNSUPPORTED, "statement 'extends'");
    fails("{% from 'x' import y %}", FM_EUNSUPPORTED, "statement 'from'");
    fails("{{ messages[0].content.upper }}", FM_EUNSUPPORTED, "'upper' is used without a call");
    fails("{{ messages.append(1) }}", FM_EUNSUPPORTED, "append");
    fails("{{ 'a'.encode() }}", FM_EUNSUPPORTED, "encode");
    fails("{{ messages | tojson(skipkeys=true) }}", FM_EUNSUPPORTED, "skipkeys");
    fails("{{ messages | pprint }}", FM_EUNSUPPORTED, "pprint");
    fails("{{ messages | map(attribute='role') }}", FM_EUNSUPPORTED,
          "a generator cannot be printed");
    fails("{{ strftime_now('%Y') }}", FM_EINVAL, "'strftime_now' is undefined");
}

/* What jinja2 has and no real template was seen to use (tests/peer/jinja_census.py). */
TEST(what_templates_do_not_use_is_named)
{
    static const char *const refused[][2] = {
        {"{{ 'a' | wordcount }}", "filter 'wordcount' is not implemented"},
        {"{{ messages | groupby('role') }}", "filter 'groupby' is not implemented"},
        {"{{ messages | map('round') }}", "filter 'round' is not implemented"},
        {"{{ messages | dictsort(by='value') }}", "dictsort: argument 'by' is not implemented"},
        {"{{ messages | sort(attribute='a,b') }}", "several attributes at once"},
        {"{{ messages | map(attribute='a', default=1) }}", "beside attribute= are not implemented"},
        {"{{ messages is sameas 1 }}", "test 'sameas' is not implemented"},
        {"{{ messages | select('callable') }}", "test 'callable' is not implemented"},
        {"{{ 'a'.zfill(3) }}", "string method 'zfill' is not implemented"},
        {"{{ 'a'.zfill }}", "'zfill' is used without a call"},
        {"{{ 'a'.find('a', 1) }}", "string.find with 2 arguments is not implemented"},
        {"{{ '%s' % 1 }}", "'%' of a string is not implemented"},
        {"{{ '{:>8}'.format(1) }}", "the field '{:>8}' is not implemented"},
        {"{{ '{a.b}'.format(a=1) }}", "the field '{a.b}' is not implemented"},
        {"{{ [1] * 3 }}", "'*' of a list is not implemented"},
        {"{{ 7.5 // 2 }}", "of floats are not implemented"},
        {"{{ 2 ** 3 }}", "operator '**' is not implemented"},
        {"{{ cycler(1, 2) }}", "function 'cycler' is not implemented"},
        {"{{ range(3) }}", "a range cannot be printed"},
        {"{{ messages[0].items() }}", "a mapping's view cannot be printed"},
        {"{{ messages[0].copy() }}", "mapping method 'copy' is not implemented"},
        {"{{ messages.count(1) }}", "list method 'count' is not allowed in templates"},
        {"{% for m in messages %}{{ loop.cycle(1, 2) }}{% endfor %}", "'cycle' in templates"},
        {"{% for m in messages %}{{ loop.depth }}{% endfor %}", "loop.depth is not implemented"},
        {"{% for m in messages recursive %}{% endfor %}", "'recursive' is not implemented"},
        {"{% for m in messages %}{{ loop(m) }}{% endfor %}", "a call of the loop"},
        {"{% with a = 1 %}{% endwith %}", "statement 'with' is not implemented"},
        {"{%- raw -%}{{ \" }}{% endraw %}", "line 1: statement 'raw' is not implemented"},
        {"{% macro m() %}{{ varargs }}{% endmacro %}", "'varargs' is not implemented"},
        {"{% macro m() %}{% endmacro %}{{ m.name }}", "a macro's 'name' is not implemented"},
        {"{{ namespace(**messages[0]) }}", "'**' is not implemented"},
        {"{{ messages[1, 2] }}", "a key with ',' is not implemented"},
        {"{{ '\\101' }}", "the escape '\\1' is not implemented"},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(refused); i++)
        fails(refused[i][0], FM_EUNSUPPORTED, refused[i][1]);
}

TEST(syntax_errors_are_refused_at_open)
{
    static const char *const bad[] = {"{{ 1 + }}",
                                      "{% if 1 %}",
                                      "{% endif %}",
                                      "{{ 'abc }}",
                                      "{{ (1 }}",
                                      "{% for in x %}{% endfor %}",
                                      "{# open",
                                      "{{ 1",
                                      "{% set = 1 %}",
                                      "{{ a b }}",
                                      "{% break %}",
                                      "{{ [1 2] }}",
                                      "{{ {'a' 1} }}",
                                      "{% macro %}{% endmacro %}",
                                      "{{ 1 ? 2 }}",
                                      "{{ a. }}",
                                      "{{ a[] }}",
                                      "{% else %}",
                                      "{% if 1 %}{% endfor %}",
                                      "{{ 0x1f }}",
                                      "{{ 99999999999999999999 }}"};
    fm_chat_template *t;

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_status rc = fm_chat_template_open(&t, fm_span_str(bad[i]), "t");
        if (rc == FM_OK)
            fail_msg("accepted: %s", bad[i]);
        assert_null(t);
        assert_non_null(strstr(fm_error_text(), "t: line 1"));
    }
    tk_fails(fm_chat_template_open(&t, fm_span_of("\xff", 1), "t"), FM_EINVAL, "UTF-8");
}

TEST(rendering_errors_name_what_and_where)
{
    fails("a\n{{ raise_exception('No way: ' ~ messages[0].role) }}", FM_EINVAL,
          "t: line 2: template refuses: No way: user");
    fails("{{ missing.field }}", FM_EINVAL, "'missing' is undefined");
    fails("{{ messages[0].nope + 'x' }}", FM_EINVAL, "'nope' is undefined");
    fails("{{ 'a' + 1 }}", FM_EINVAL, "cannot add a string and an integer");
    fails("{{ 1 // 0 }}", FM_EINVAL, "division by zero");
    fails("{{ 9223372036854775807 + 1 }}", FM_ELIMIT, "overflow");
    fails("{{ 9223372036854775808 }}", FM_EINVAL, "number");
    fails("{{ '{} {}'.format(1) }}", FM_EINVAL, "no argument 1");
    fails("{{ '{} {0}'.format(1) }}", FM_EINVAL, "with a number and without one");
    fails("{{ '{a}'.format(b=1) }}", FM_EINVAL, "no argument 'a'");
    fails("{{ 'a}'.format(1) }}", FM_EINVAL, "without its '{'");
    fails("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", FM_EINVAL, "at most 1");
    fails("{% macro m(a) %}{% endmacro %}{% call m(1) %}{% endcall %}", FM_EINVAL, "caller");
    fails("{{ (messages | map(attribute='role')) | length }}", FM_EINVAL, "length of a generator");
    fails("{{ 900000000000000000 * 100 }}", FM_ELIMIT, "overflow");
    fails("{% set x.y = 1 %}", FM_EINVAL, "namespace");
    fails("{{ [1, 'a'] | sort }}", FM_EINVAL, "order");
    fails("{% for a, b in [[1]] %}{% endfor %}", FM_EINVAL, "2 names for 1 values");
    fails("{{ range(0, 10, 0) }}", FM_EINVAL, "step");
}

TEST(hostile_templates_end)
{
    fm_buf deep;

    fails("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
          FM_ELIMIT, NULL); /* memory or work, whichever is first */
    fails("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
          FM_ELIMIT, "too much");
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", FM_ELIMIT, "deeper");
    fails("{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% "
          "endcall %}"
          "{% endmacro %}{{ g() }}",
          FM_ELIMIT, "deeper");
    fails("{% set n = namespace(l=[1, 2, 3]) %}{% for i in range(60) %}{% set n.l = n.l + n.l %}"
          "{% endfor %}",
          FM_ELIMIT, NULL);
    fails("{{ range(100001) }}", FM_ELIMIT, "range");
    fails("{{ 'xxxxxxxxxxxxxxxx' * 100000000 }}", FM_ELIMIT, NULL);
    fails("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
          "{% endfor %}",
          FM_ELIMIT, NULL);
    fails("{% set n = namespace(l=[]) %}{% for i in range(200) %}{% set n.l = [n.l] %}{% endfor %}"
          "{{ n.l }}",
          FM_ELIMIT, "nested");
    fm_buf_init(&deep, 0);
    fm_buf_str(&deep, "{{ ");
    for (int i = 0; i < 5000; i++)
        fm_buf_char(&deep, '(');
    fm_buf_str(&deep, "1 }}");
    fails(fm_buf_cstr(&deep), FM_ELIMIT, "nested");
    fm_buf_release(&deep);
}

static fm_status render_case(fm_buf *out, const fm_json *file, const fm_json *c, const char *where)
{
    static const char extra_text[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\","
                                     "\"strftime_now\": 1721988000}";
    const char *set = fm_json_cstr(fm_json_get(c, "messages"), "");
    const fm_json *messages = fm_json_get(fm_json_get(file, where), set);
    bool tools = fm_json_bool(fm_json_get(c, "tools"), false);
    fm_chat_template *t = NULL;
    fm_json *extra;

    tk_ok(fm_json_parse(&extra, fm_span_str(extra_text), "extra"));
    if (!fm_json_bool(fm_json_get(c, "enable_thinking"), true))
        tk_ok(fm_json_set(extra, "enable_thinking", fm_json_new_bool(false)));
    fm_status rc = fm_chat_template_open(&t, fm_json_str(fm_json_get(c, "template")), "case");
    if (rc == FM_OK)
        rc = fm_chat_render(out, t, messages, tools ? fm_json_get(file, "tools") : NULL,
                            fm_json_bool(fm_json_get(c, "add_generation_prompt"), false), extra);
    fm_chat_template_close(t);
    fm_json_free(extra);
    return rc;
}

/* Drawn by tests/peer/jinja_diff.py. */
TEST(random_templates_equal_jinja2)
{
    char *path = tk_source("tests/unit/infer/jinja_cases.json");
    fm_json *file, *none = fm_json_new_array();
    size_t bad = 0;

    tk_ok(fm_json_parse_file(&file, path, (size_t)1 << 22));
    const fm_json *vars = fm_json_get(file, "vars"), *drawn = fm_json_get(file, "drawn");
    assert_true(fm_json_count(drawn) > 200);
    for (size_t i = 0; i < fm_json_count(drawn); i++) {
        const fm_json *c = fm_json_at(drawn, i);
        fm_chat_template *t = NULL;
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_status rc = fm_chat_template_open(&t, fm_json_str(fm_json_get(c, "template")), "drawn");
        if (rc == FM_OK)
            rc = fm_chat_render(&out, t, none, NULL, false, vars);
        if (rc < 0 || !fm_span_eq(fm_buf_span(&out), fm_json_str(fm_json_get(c, "text")))) {
            fprintf(stderr, "%s\n got  %s %s\n want %s\n",
                    fm_json_cstr(fm_json_get(c, "template"), ""), rc < 0 ? fm_error_text() : "",
                    fm_buf_cstr(&out), fm_json_cstr(fm_json_get(c, "text"), ""));
            bad++;
        }
        fm_chat_template_close(t);
        fm_buf_release(&out);
    }
    fm_json_free(none);
    fm_json_free(file);
    fm_free(path);
    assert_int_equal(bad, 0);
}

static void all_cases_equal(const char *list, const char *messages, size_t least)
{
    char *path = tk_source("tests/unit/infer/jinja_cases.json");
    fm_json *file;
    size_t bad = 0;

    tk_ok(fm_json_parse_file(&file, path, (size_t)1 << 22));
    const fm_json *cases = fm_json_get(file, list);
    assert_true(fm_json_count(cases) > least);
    for (size_t i = 0; i < fm_json_count(cases); i++) {
        const fm_json *c = fm_json_at(cases, i);
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_status rc = render_case(&out, file, c, messages);
        if (rc < 0 || !fm_span_eq(fm_buf_span(&out), fm_json_str(fm_json_get(c, "text")))) {
            fprintf(stderr, "%s: %s\n got  %s\n want %s\n",
                    fm_json_cstr(fm_json_get(c, "name"), ""), rc < 0 ? fm_error_text() : "",
                    fm_buf_cstr(&out), fm_json_cstr(fm_json_get(c, "text"), ""));
            bad++;
        }
        fm_buf_release(&out);
    }
    fm_json_free(file);
    fm_free(path);
    assert_int_equal(bad, 0);
}

TEST(cases_equal_jinja2)
{
    all_cases_equal("cases", "messages", 130);
}

/* Contents that are null, missing or parts: tests/peer/tool_turns.py. */
TEST(second_turns_of_tool_calls_equal_transformers_and_vllm)
{
    all_cases_equal("turn_cases", "turns", 50);
}

TEST(strftime_now_needs_a_given_time)
{
    fm_buf out;

    fm_buf_init(&out, 0);
    tk_ok(render(&out, "{{ 'set' if strftime_now is defined else 'unset' }}", "[]", NULL));
    assert_string_equal(fm_buf_cstr(&out), "unset");
    fm_buf_clear(&out);
    tk_ok(render(&out, "{{ strftime_now('%Y-%m-%d %H:%M') }}", "[]", "{\"strftime_now\": -1}"));
    assert_string_equal(fm_buf_cstr(&out), "1969-12-31 23:59");
    fm_buf_clear(&out);
    tk_ok(render(&out, "{{ strftime_now('%I %p %A %b %S%%') }}", "[]", "{\"strftime_now\": -1}"));
    assert_string_equal(fm_buf_cstr(&out), "11 PM Wednesday Dec 59%");
    fm_buf_release(&out);
}

static void fail_each_allocation(const char *messages, const char *source)
{
    for (uint64_t n = 1; n < 1000; n++) {
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_chat_template *t = NULL;
        fm_json *m = NULL;
        tk_ok(fm_json_parse(&m, fm_span_str(messages), "m"));
        fm_mem_fail_at(n, false);
        fm_status rc = fm_chat_template_open(&t, fm_span_str(source), "t");
        if (rc == FM_OK)
            rc = fm_chat_render(&out, t, m, NULL, false, NULL);
        fm_mem_fail_at(0, false);
        fm_chat_template_close(t);
        fm_json_free(m);
        fm_buf_release(&out);
        if (rc == FM_OK)
            return;
        assert_int_equal(rc, FM_ENOMEM);
    }
    fail_msg("never succeeded");
}

TEST(every_failed_allocation_is_reported)
{
    fail_each_allocation("[{\"a\":[1,2,\"x\"]}]",
                         "{% for i in messages %}{{ i.a | join('-') | upper }}{% endfor %}");
    fail_each_allocation("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
                         "{\"role\":\"assistant\",\"tool_calls\":[{}],\"content\":null}]",
                         "{% for i in messages %}{{ i.role }}{{ '' + i.content }}{% endfor %}");
}

/* For tests/peer/jinja_diff.py: each line of the file is {"template", "vars"}; prints a line with
 * the text or the error of each. */
static int render_lines(const char *path)
{
    fm_buf file;

    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, (size_t)1 << 30));
    for (char *line = (char *)file.data, *end; line && *line; line = end + 1) {
        fm_json *in = NULL, *o = fm_json_new_object(), *none = fm_json_new_array();
        fm_chat_template *t = NULL;
        fm_buf out, text;
        end = strchr(line, '\n');
        fm_buf_init(&out, 0);
        fm_buf_init(&text, 0);
        tk_ok(fm_json_parse(&in, fm_span_of(line, (size_t)(end - line)), "line"));
        fm_status rc = fm_chat_template_open(&t, fm_json_str(fm_json_get(in, "template")), "t");
        if (rc == FM_OK)
            rc = fm_chat_render(&out, t, none, NULL, false, fm_json_get(in, "vars"));
        if (rc == FM_OK)
            tk_ok(fm_json_set(o, "text", fm_json_new_strn(fm_buf_cstr(&out), out.len)));
        else
            tk_ok(fm_json_set(o, "error", fm_json_new_str(fm_error_text())));
        tk_ok(fm_json_write(&text, o, FM_JSON_COMPACT));
        puts(fm_buf_cstr(&text));
        fm_buf_release(&text);
        fm_buf_release(&out);
        fm_chat_template_close(t);
        fm_json_free(none);
        fm_json_free(in);
        fm_json_free(o);
    }
    fm_buf_release(&file);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--render") == 0)
        return render_lines(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_constructs_are_named_with_their_line),
        cmocka_unit_test(what_templates_do_not_use_is_named),
        cmocka_unit_test(syntax_errors_are_refused_at_open),
        cmocka_unit_test(rendering_errors_name_what_and_where),
        cmocka_unit_test(cases_equal_jinja2),
        cmocka_unit_test(second_turns_of_tool_calls_equal_transformers_and_vllm),
        cmocka_unit_test(random_templates_equal_jinja2),
        cmocka_unit_test(strftime_now_needs_a_given_time),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
