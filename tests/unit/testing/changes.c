/* Documents that change an inherited suite: what they may say, and what becomes of the suite. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"
#include "tests/testkit.h"

#define BASE                                                                                       \
    "suite: s\ngate: true\ngenerate: {max-tokens: 3}\n"                                            \
    "cases:\n  - {name: a, prompt: pa, expect: {contains: x}}\n"                                   \
    "  - {name: b, prompt: pb, expect: {contains: x}}\n"                                           \
    "templates:\n  - {name: \"t-{n}\", prompt: \"p{n}\", expect: {contains: y},"                   \
    " slots: {n: [one, two]}}\n"
#define TOPIC "changes: s\ntopic: t\n"

static fm_status laid(fm_suite **out, const char *one, const char *two)
{
    const fm_suite_doc doc[] = {{fm_span_str(BASE), "suites/s.yaml"},
                                {fm_span_str(one), "suites/s.t.yaml"},
                                {fm_span_str(two ? two : ""), "suites/s.u.yaml"}};
    return fm_suite_parse_changed(out, doc, two ? 3 : 2);
}

static void refused(const char *text, const char *needle)
{
    fm_suite *s = (fm_suite *)1;
    char *suite, *topic;
    tk_fails(laid(&s, text, NULL), FM_EINVAL, needle);
    assert_null(s);
    assert_non_null(strstr(fm_error_text(), "suites/s.t.yaml"));
    fm_status rc = fm_suite_doc_kind(&suite, &topic, fm_span_str(text), "f");
    assert_true(rc == FM_OK || (!suite && !topic));
    fm_free(suite);
    fm_free(topic);
}

TEST(what_changes_nothing_or_the_wrong_thing_is_refused)
{
    refused(TOPIC, "it changes nothing");
    refused("changes: s\nadd: []\n", "'topic'");
    refused("changes: s\ntopic: a.b\nadd: [{}]\n", "'topic' wants");
    refused("changes: other\ntopic: t\nwaive: [{case: a, reason: r}]\n",
            "it changes the suite 'other', but lies beside 's'");
    refused(TOPIC "wave: []\n", "unknown key 'wave'");
    refused(TOPIC "waive: {a: b}\n", "'waive' must be a list");
    refused(TOPIC "waive: [a]\n", "'waive' is a list of mappings");
    refused(TOPIC "waive: [{case: a}]\n", "waive 'a': 'reason'");
    refused(TOPIC "waive: [{case: a, reason: ''}]\n", "'reason'");
    refused(TOPIC "waive: [{case: a, reason: r, till: x}]\n", "unknown key 'till'");
    refused(TOPIC "waive: [{case: a, reason: r, until: 2026}]\n", "'until'");
    refused(TOPIC "waive: [{case: z, reason: r}]\n", "'waive' names 'z'");
    refused(TOPIC "waive: [{case: a, reason: r}, {case: a, reason: q}]\n",
            "'a' stands there twice");
    refused(TOPIC "override: [{name: z, prompt: p, expect: {contains: x}}]\n",
            "'override' names 'z'");
    refused(TOPIC "override: [{name: a, prompt: p, expect: {contains: \"x\\0y\"}}]\n", "NUL");
    refused(TOPIC "add: [{name: b, prompt: p, expect: {contains: \"x\\0y\"}}]\n", "NUL");
    refused(TOPIC "override: [{prompt: p, expect: {contains: x}}]\n", "cases with a 'name'");
    refused(TOPIC "override: [{name: a, prompt: p, expect: {contain: x}}]\n", "case 'a'");
    refused(TOPIC "add: [{name: a, prompt: p, expect: {contains: x}}]\n",
            "two cases are named 'a'");
}

static bool same_case(const fm_suite *a, const fm_suite *b, const char *name)
{
    long i = fm_suite_find(a, name), j = fm_suite_find(b, name);
    assert_true(i >= 0 && j >= 0);
    fm_digest x = fm_suite_case_digest(a, (size_t)i), y = fm_suite_case_digest(b, (size_t)j);
    return fm_digest_eq(&x, &y);
}

TEST(cases_are_overridden_added_and_waived)
{
    fm_suite *base = NULL, *s = NULL;
    tk_ok(fm_suite_parse(&base, fm_span_str(BASE), "s"));
    tk_ok(laid(&s,
               TOPIC "override:\n  - {name: a, prompt: other, expect: {contains: x}}\n"
                     "  - {name: t-two, prompt: other, expect: {contains: y}}\n"
                     "add: [{name: c, prompt: pc, expect: {contains: z}}]\n"
                     "templates: [{name: 'u-{k}', prompt: '{k}', expect: {contains: z},"
                     " slots: {k: [p, q]}}]\n"
                     "waive: [{case: b, reason: slow, until: 2027-01-31, owner: me}]\n",
               NULL));
    assert_string_equal(fm_suite_name(s), "s");
    assert_true(fm_suite_is_gate(s));
    assert_int_equal(fm_suite_count(s), 7);
    assert_false(same_case(base, s, "a"));
    assert_true(same_case(base, s, "b"));
    assert_true(same_case(base, s, "t-one"));
    assert_false(same_case(base, s, "t-two"));
    assert_true(fm_suite_find(s, "c") >= 0 && fm_suite_find(s, "u-q") >= 0);
    assert_int_equal(s->cases[fm_suite_find(s, "c")].max_tokens, 3); /* the suite's defaults */
    size_t b = (size_t)fm_suite_find(s, "b");
    const fm_waiver *w = fm_suite_waiver(s, b);
    assert_non_null(w);
    assert_string_equal(w->reason, "slow");
    assert_string_equal(w->until, "2027-01-31");
    assert_string_equal(w->owner, "me");
    assert_true(fm_suite_waived(s, b));
    fm_suite_waiver_end(s, b);
    assert_false(fm_suite_waived(s, b));
    assert_non_null(fm_suite_waiver(s, b));
    assert_null(fm_suite_waiver(s, (size_t)fm_suite_find(s, "a")));
    assert_false(fm_suite_waived(base, 0));
    fm_suite_free(base);
    fm_suite_free(s);
}

TEST(later_documents_have_the_last_word)
{
    fm_suite *s = NULL;
    tk_ok(laid(&s,
               TOPIC "add: [{name: c, prompt: one, expect: {contains: z}}]\n"
                     "waive: [{case: a, reason: first}]\n",
               "changes: s\ntopic: u\noverride: [{name: c, prompt: two, expect: {contains: z}}]\n"
               "waive: [{case: a, reason: second}, {case: c, reason: third}]\n"));
    assert_string_equal(fm_suite_waiver(s, 0)->reason, "second");
    size_t c = (size_t)fm_suite_find(s, "c");
    assert_string_equal(fm_suite_waiver(s, c)->reason, "third");
    assert_string_equal(fm_json_cstr(fm_json_get(s->cases[c].doc, "prompt"), ""), "two");
    fm_suite_free(s);
}

TEST(a_file_says_what_it_is)
{
    char *suite, *topic;
    tk_ok(fm_suite_doc_kind(&suite, &topic, fm_span_str(BASE), "f"));
    assert_string_equal(suite, "s");
    assert_null(topic);
    fm_free(suite);
    tk_ok(fm_suite_doc_kind(&suite, &topic, fm_span_str(TOPIC "add: [{name: x}]\n"), "f"));
    assert_string_equal(suite, "s");
    assert_string_equal(topic, "t");
    fm_free(suite);
    fm_free(topic);
    tk_fails(fm_suite_doc_kind(&suite, &topic, fm_span_str("suite: s\n"), "f"), FM_EINVAL,
             "no case");
    assert_null(suite);
}

TEST(many_waivers_end_soon)
{
    fm_buf base, change;
    fm_suite *s = NULL;
    fm_buf_init(&base, 0);
    fm_buf_init(&change, 0);
    fm_buf_str(&base, "suite: s\ncases:\n");
    fm_buf_str(&change, TOPIC "waive:\n");
    for (int i = 0; i < 20000; i++) {
        fm_buf_printf(&base, "- {name: c%d, prompt: p, expect: {contains: x}}\n", i);
        fm_buf_printf(&change, "- {case: c%d, reason: r}\n", i);
    }
    const fm_suite_doc doc[] = {{fm_buf_span(&base), "a"}, {fm_buf_span(&change), "b"}};
    tk_ok(fm_suite_parse_changed(&s, doc, 2));
    assert_true(fm_suite_waived(s, 19999));
    fm_suite_free(s);
    fm_buf_release(&base);
    fm_buf_release(&change);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_changes_nothing_or_the_wrong_thing_is_refused),
        cmocka_unit_test(cases_are_overridden_added_and_waived),
        cmocka_unit_test(later_documents_have_the_last_word),
        cmocka_unit_test(a_file_says_what_it_is),
        cmocka_unit_test(many_waivers_end_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
