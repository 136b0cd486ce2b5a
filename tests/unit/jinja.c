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

static void unknown_constructs_are_named_with_their_line(void **state)
{
    (void)state;
    fails("a\n{{ x | frobnicate }}", FM_EUNSUPPORTED, "t: line 2: filter 'frobnicate'");
    fails("{% if x is weird %}{% endif %}", FM_EUNSUPPORTED, "line 1: test 'weird'");
    fails("\n\n{% include 'x' %}", FM_EUNSUPPORTED, "line 3: statement 'include'");
    fails("{% raw %}{{ x }}{% endraw %}", FM_EUNSUPPORTED, "statement 'raw'");
    fails("{{ messages.append(1) }}", FM_EUNSUPPORTED, "append");
    fails("{{ 'a'.zfill(3) }}", FM_EUNSUPPORTED, "zfill");
    fails("{{ '%s' % 1 }}", FM_EINVAL, "line 1");
    fails("{% for x in messages recursive %}{% endfor %}", FM_EUNSUPPORTED, "recursive");
    fails("{% for m in messages %}{{ loop.changed }}{% endfor %}", FM_EUNSUPPORTED, "loop.changed");
    fails("{{ messages | tojson(sort_keys=true) }}", FM_EUNSUPPORTED, "sort_keys");
    fails("{{ strftime_now('%Y') }}", FM_EINVAL, "'strftime_now' is undefined");
}

static void syntax_errors_are_refused_at_open(void **state)
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
                                      "{{ 99999999999999999999 }}"};
    fm_chat_template *t;
    (void)state;

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_status rc = fm_chat_template_open(&t, fm_span_str(bad[i]), "t");
        if (rc == FM_OK)
            fail_msg("accepted: %s", bad[i]);
        assert_null(t);
        assert_non_null(strstr(fm_error_text(), "t: line 1"));
    }
    tk_fails(fm_chat_template_open(&t, fm_span_of("\xff", 1), "t"), FM_EINVAL, "UTF-8");
}

static void rendering_errors_name_what_and_where(void **state)
{
    (void)state;
    fails("a\n{{ raise_exception('No way: ' ~ messages[0].role) }}", FM_EINVAL,
          "t: line 2: template refuses: No way: user");
    fails("{{ missing.field }}", FM_EINVAL, "'missing' is undefined");
    fails("{{ messages[0].nope + 'x' }}", FM_EINVAL, "'nope' is undefined");
    fails("{{ 'a' + 1 }}", FM_EINVAL, "cannot add a string and an integer");
    fails("{{ 1 // 0 }}", FM_EINVAL, "division by zero");
    fails("{{ 9223372036854775807 + 1 }}", FM_EINVAL, "number");
    fails("{{ 900000000000000000 * 100 }}", FM_ELIMIT, "overflow");
    fails("{% set x.y = 1 %}", FM_EINVAL, "namespace");
    fails("{{ [1, 'a'] | sort }}", FM_EINVAL, "order");
    fails("{% for a, b in [[1]] %}{% endfor %}", FM_EINVAL, "2 names for 1 values");
    fails("{{ range(0, 10, 0) }}", FM_EINVAL, "step");
}

static void hostile_templates_end(void **state)
{
    fm_buf deep;
    (void)state;

    fails("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
          FM_ELIMIT, NULL); /* memory or steps, whichever is first */
    fails("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
          FM_ELIMIT, "steps");
    fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", FM_ELIMIT, "deeper");
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

static fm_status render_case(fm_buf *out, const fm_json *file, const fm_json *c)
{
    static const char extra_text[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\","
                                     "\"strftime_now\": 1721988000}";
    const char *set = fm_json_cstr(fm_json_get(c, "messages"), "");
    const fm_json *messages = fm_json_get(fm_json_get(file, "messages"), set);
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

static void cases_equal_jinja2(void **state)
{
    char *path = tk_source("tests/unit/jinja_cases.json");
    fm_json *file;
    size_t bad = 0;
    (void)state;

    tk_ok(fm_json_parse_file(&file, path, (size_t)1 << 22));
    const fm_json *cases = fm_json_get(file, "cases");
    assert_true(fm_json_count(cases) > 60);
    for (size_t i = 0; i < fm_json_count(cases); i++) {
        const fm_json *c = fm_json_at(cases, i);
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_status rc = render_case(&out, file, c);
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

static void strftime_now_needs_a_given_time(void **state)
{
    fm_buf out;
    (void)state;

    fm_buf_init(&out, 0);
    tk_ok(render(&out, "{{ 'set' if strftime_now is defined else 'unset' }}", "[]", NULL));
    assert_string_equal(fm_buf_cstr(&out), "unset");
    fm_buf_clear(&out);
    tk_ok(render(&out, "{{ strftime_now('%Y-%m-%d %H:%M') }}", "[]", "{\"strftime_now\": -1}"));
    assert_string_equal(fm_buf_cstr(&out), "1969-12-31 23:59");
    fm_buf_release(&out);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 200; n++) {
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_chat_template *t = NULL;
        fm_json *m = NULL;
        tk_ok(fm_json_parse(&m, fm_span_str("[{\"a\":[1,2,\"x\"]}]"), "m"));
        fm_mem_fail_at(n, false);
        fm_status rc = fm_chat_template_open(
            &t, fm_span_str("{% for i in messages %}{{ i.a | join('-') | upper }}{% endfor %}"),
            "t");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_constructs_are_named_with_their_line),
        cmocka_unit_test(syntax_errors_are_refused_at_open),
        cmocka_unit_test(rendering_errors_name_what_and_where),
        cmocka_unit_test(cases_equal_jinja2),
        cmocka_unit_test(strftime_now_needs_a_given_time),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
