/* Suite files: what is refused, with file, case and key; what templates become; digests. */
#include <stdio.h>
#include <string.h>

#include "testing/suite/internal.h"
#include "tests/testkit.h"

#define HEAD "suite: s\ncases:\n"

static void refused(const char *yaml, fm_status status, const char *needle)
{
    fm_suite *s = (fm_suite *)1;
    tk_fails(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"), status, needle);
    assert_null(s);
    assert_non_null(strstr(fm_error_text(), "f.yaml"));
}

static void refused_case(const char *keys, const char *needle)
{
    char yaml[2048];
    snprintf(yaml, sizeof yaml, HEAD "  - {name: c1, %s}\n", keys);
    refused(yaml, FM_EINVAL, needle);
    assert_non_null(strstr(fm_error_text(), "case 'c1'"));
}

static fm_suite *parsed(const char *yaml)
{
    fm_suite *s = NULL;
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
    return s;
}

static fm_suite *parsed_case(const char *keys)
{
    char yaml[2048];
    snprintf(yaml, sizeof yaml, HEAD "  - {name: c1, %s}\n", keys);
    return parsed(yaml);
}

TEST(frames_are_refused_by_file_and_key)
{
    refused("[1]", FM_EINVAL, "mapping");
    refused("suite: s\n", FM_EINVAL, "no case");
    refused("suite: s\ncases: []\n", FM_EINVAL, "no case");
    refused("suite: s\ncases: 3\n", FM_EINVAL, "'cases' and 'templates' must be lists");
    refused("suite: s\ncase: []\n", FM_EINVAL, "unknown key 'case' (known: suite, description");
    refused("suite: s\ngate: 'yes'\ncases: []\n", FM_EINVAL, "'gate' must be true or false");
    refused("suite: s\ndescription: 3\ncases: []\n", FM_EINVAL, "'description'");
    refused("suite: a b\ncases: []\n", FM_EINVAL, "suite name 'a b'");
    refused("suite: ../x\ncases: []\n", FM_EINVAL, "suite name '../x'");
    refused("cases: []\n", FM_EINVAL, "'suite'");
    refused("suite: s\ngenerate: 5\ncases: []\n", FM_EINVAL, "'generate' wants a mapping");
    refused("suite: s\ngenerate: {max_tokens: 5}\n", FM_EINVAL, "unknown key 'max_tokens'");
    refused("suite: s\ndescription: \"a\\0b\"\n", FM_EINVAL, "NUL");
    refused("suite: [", FM_ECORRUPT, "f.yaml");
}

TEST(cases_are_refused_by_name_and_key)
{
    refused(HEAD "  - just text\n", FM_EINVAL, "a case is a mapping");
    refused(HEAD "  - {prompt: a, expect: {contains: b}}\n", FM_EINVAL, "'name'");
    refused(HEAD "  - {name: \"a\\nb\", prompt: a, expect: {contains: b}}\n", FM_EINVAL,
            "one line");
    refused_case("prompt: a, expect: {contains: b}, stopp: x", "unknown key 'stopp'");
    refused_case("prompt: a, chat: b, expect: {contains: b}", "'prompt', 'chat', 'messages'");
    refused_case("expect: {contains: b}", "is missing");
    refused_case("prompt: 3, expect: {contains: b}", "'prompt' must be a string");
    refused_case("messages: [], expect: {contains: b}", "'messages' is empty");
    refused_case("messages: hello, expect: {contains: b}", "'messages' wants a list");
    refused_case("messages: [{role: user}], expect: {contains: b}", "messages[0]");
    refused_case("prompt: [a, b], expect: {contains: b}", "MFT case has one prompt");
    refused_case("prompt: a, kind: mft, expect: {contains: b}", "kind 'mft'");
    refused_case("prompt: a, kind: 3, expect: {contains: b}", "'kind' must be a string");
    refused_case("prompt: a, kind: INV", "INV wants a list of at least two");
    refused_case("prompt: [a], kind: INV", "INV wants a list of at least two");
    refused_case("prompt: a, kind: DIR, continuation: x, direction: increases", "DIR wants a list");
    refused_case("prompt: a, expect: {contains: b}, ignore-case: 'yes'", "'ignore-case'");
    refused_case("prompt: a, expect: {contains: b}, generate: [1]", "'generate' wants a mapping");
    refused_case("prompt: a, expect: {contains: b}, generate: {max-tokens: 0}",
                 "generate.max-tokens");
    refused_case("prompt: a, expect: {contains: b}, generate: {max-tokens: 1.5}", "whole number");
    refused_case("prompt: a, expect: {contains: b}, generate: {max-tokens: 9999999}", "1 to 4096");
    refused_case("prompt: a, expect: {contains: b}, generate: {seed: -1}", "generate.seed");
    refused_case("prompt: a, expect: {contains: b}, generate: {temperature: -1}", "generate");
    refused_case("prompt: a, expect: {contains: b}, generate: {top-p: x}",
                 "'top-p' must be a number");
    refused_case("prompt: a, expect: {contains: b}, generate: {stop: ''}", "generate.stop");
    refused_case("prompt: a, expect: {contains: b}, generate: {stop: [a, '']}", "generate.stop[1]");
    refused_case("prompt: a, expect: {contains: b}, generate: {stop: [1,2,3,4,5,6,7,8,9]}",
                 "up to 8");
}

TEST(expectations_that_cannot_fail_are_refused)
{
    refused_case("prompt: a", "'expect' is missing: the case could not fail");
    refused_case("prompt: a, expect: {}", "'expect' is empty");
    refused_case("prompt: [a, b], kind: INV, expect: []", "'expect' is empty");
    refused_case("prompt: a, expect: text", "wants assertions");
    refused_case("prompt: a, expect: {contain: x}", "unknown assertion 'contain'");
    refused_case("prompt: a, expect: {contains: 42}", "quote numbers");
    refused_case("prompt: a, expect: {contains: ''}", "every answer would do");
    refused_case("prompt: a, expect: {not-regex: ''}", "expect.not-regex is empty");
    refused_case("prompt: a, expect: {regex: '('}", "regular expression '('");
    refused_case("prompt: a, expect: {one-of: []}", "list of strings");
    refused_case("prompt: a, expect: {one-of: [a, 3]}", "list of strings");
    refused_case("prompt: a, expect: {json: false}", "true or a mapping");
    refused_case("prompt: a, expect: {json: [1]}", "true or a mapping");
    refused_case("prompt: a, expect: {contains: x}, choices: [a, b], answer: a", "want one of");
    refused_case("prompt: a, choices: [a], answer: a", "2 to 64");
    refused_case("prompt: a, choices: [a, b], answer: A", "letter for letter");
    refused_case("prompt: a, choices: [a, b]", "'answer' must be one");
    refused_case("prompt: a, choices: [a, b, a], answer: a", "choices[2] is there twice");
    refused_case("prompt: a, choices: [a, ''], answer: a", "choices[1]");
    refused_case("prompt: a, choices: [a, b], answer: a, normalize: words", "normalize 'words'");
    refused_case("prompt: a, choices: [a, b], answer: a, normalize: 1", "'normalize'");
    refused_case("prompt: a, continuation: x", "'logprob-above' or 'logprob-below'");
    refused_case("prompt: a, continuation: ''", "'continuation'");
    refused_case("prompt: a, continuation: x, logprob-above: '-1'", "must be a number");
    refused_case("prompt: a, continuation: x, logprob-above: -1, logprob-below: -5", "nothing is");
    refused_case("prompt: [a, b], kind: DIR, continuation: x", "DIR wants direction");
    refused_case("prompt: [a, b], kind: DIR, continuation: x, direction: up",
                 "DIR wants direction");
    refused_case("prompt: [a, b], kind: DIR, expect: {contains: x}", "give 'continuation'");
    refused_case("prompt: [a, b], kind: INV, continuation: x", "wants 'margin'");
    refused_case("prompt: [a, b], kind: INV, continuation: x, margin: -1", "negative");
}

TEST(keys_without_effect_are_refused)
{
    refused_case("prompt: a, expect: {contains: x}, answer: x", "'answer' says nothing here");
    refused_case("prompt: a, expect: {contains: x}, normalize: tokens", "'normalize' says nothing");
    refused_case("prompt: a, expect: {contains: x}, margin: 1", "'margin' says nothing");
    refused_case("prompt: a, choices: [a, b], answer: a, generate: {seed: 1}", "'generate' says");
    refused_case("prompt: a, choices: [a, b], answer: a, ignore-case: true", "'ignore-case' says");
    refused_case("prompt: a, continuation: x, logprob-above: -1, margin: 1", "'margin' says");
    refused_case("prompt: a, continuation: x, logprob-above: -1, direction: increases",
                 "'direction'");
    refused_case("prompt: [a, b], kind: INV, continuation: x, margin: 1, logprob-above: -1",
                 "'logprob-above' says");
}

TEST(each_kind_is_accepted)
{
    fm_suite_free(parsed_case("prompt: a, expect: {contains: b}"));
    fm_suite_free(
        parsed_case("chat: a, expect: [{contains: b}, {not-regex: c}], ignore-case: true"));
    fm_suite_free(parsed_case("messages: [{role: user, content: a}], expect: {json: true}"));
    fm_suite_free(parsed_case("prompt: a, choices: [x, y], answer: y, normalize: bytes"));
    fm_suite_free(parsed_case("prompt: a, continuation: x, logprob-above: -5, logprob-below: -1"));
    fm_suite_free(parsed_case("chat: [a, b], kind: INV"));
    fm_suite_free(parsed_case("prompt: [a, b], kind: INV, continuation: x, margin: 0.5"));
    fm_suite *s =
        parsed("suite: s-1\ngate: true\ndescription: d\ngenerate: {max-tokens: 3, stop: x}\n"
               "cases:\n  - {name: a/b, prompt: p, expect: {equals: ''}, note: why}\n"
               "  - {name: d, prompt: [a, b, c], kind: DIR, continuation: x, "
               "direction: decreases, margin: 1}\n");
    assert_string_equal(fm_suite_name(s), "s-1");
    assert_string_equal(fm_suite_description(s), "d");
    assert_true(fm_suite_is_gate(s));
    assert_int_equal(fm_suite_count(s), 2);
    assert_int_equal(fm_suite_find(s, "d"), 1);
    assert_int_equal(fm_suite_find(s, "x"), -1);
    assert_int_equal(s->cases[0].max_tokens, 3);
    assert_string_equal(s->cases[0].stop[0], "x");
    assert_int_equal(s->cases[1].prompt_count, 3);
    fm_suite_free(s);
    tk_ok(fm_suite_from_prompt(&s, "who {is} it", "me", true));
    assert_int_equal(fm_suite_count(s), 1);
    assert_int_equal(s->cases[0].form, FMV_PROMPT_CHAT);
    fm_suite_free(s);
    tk_fails(fm_suite_from_prompt(&s, "who", "", false), FM_EINVAL, "expect.contains is empty");
}

TEST(twice_named_cases_are_refused)
{
    refused(HEAD "  - {name: a, prompt: p, expect: {contains: b}}\n"
                 "  - {name: a, prompt: q, expect: {contains: b}}\n",
            FM_EINVAL, "two cases are named 'a'");
    refused("suite: s\ntemplates:\n  - {name: a, prompt: '{x}', expect: {contains: b}, "
            "slots: {x: [1, 2]}}\n",
            FM_EINVAL, "two cases are named 'a'");
}

TEST(rows_fill_every_string)
{
    fm_suite *s = parsed("suite: s\ntemplates:\n"
                         "  - name: 'cap-{n}'\n"
                         "    chat: 'Capital of {land}? Answer {{\"city\": ...}} }x'\n"
                         "    expect: [{contains: '{city}'}, {json: {city: '{city}'}}]\n"
                         "    generate: {max-tokens: 7}\n"
                         "    slots:\n"
                         "      - {n: 1, land: Chad, city: N'Djamena}\n"
                         "      - {n: 2.5, land: '{n}', city: Ö}\n");
    assert_int_equal(fm_suite_count(s), 2);
    assert_string_equal(fm_suite_case_name(s, 0), "cap-1");
    assert_string_equal(fm_suite_case_name(s, 1), "cap-2.5");
    assert_string_equal(fm_json_cstr(s->cases[0].prompt[0], ""),
                        "Capital of Chad? Answer {\"city\": ...} }x");
    assert_string_equal(fm_json_cstr(s->cases[1].prompt[0], ""),
                        "Capital of {n}? Answer {\"city\": ...} }x"); /* filled once */
    assert_string_equal(fm_json_cstr(s->cases[0].assertion[0].value, ""), "N'Djamena");
    assert_string_equal(fm_json_cstr(fm_json_get(s->cases[1].assertion[1].value, "city"), ""), "Ö");
    assert_int_equal(s->cases[1].max_tokens, 7);
    fm_suite_free(s);
}

TEST(lists_make_their_product_last_fastest)
{
    static const char *const want[] = {"a-1-x", "a-2-x", "b-1-x", "b-2-x", "c-1-x", "c-2-x"};
    fm_suite *s = parsed("suite: s\ntemplates:\n"
                         "  - {name: '{l}-{d}-{k}', prompt: '{l}{d}', expect: {contains: '{d}'}, "
                         "slots: {l: [a, b, c], d: [1, 2], k: [x]}}\n");
    assert_int_equal(fm_suite_count(s), 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(fm_suite_case_name(s, i), want[i]);
    fm_suite_free(s);
}

static void refused_template(const char *keys, const char *needle)
{
    char yaml[2048];
    snprintf(yaml, sizeof yaml, "suite: s\ntemplates:\n  - {name: 't{x}', %s}\n", keys);
    refused(yaml, FM_EINVAL, needle);
    assert_non_null(strstr(fm_error_text(), "template 't{x}'"));
}

TEST(templates_are_refused_by_name)
{
    refused_template("prompt: a", "'slots' wants");
    refused_template("prompt: a, slots: []", "'slots' wants");
    refused_template("prompt: a, slots: {}", "'slots' wants");
    refused_template("prompt: a, slots: {x: []}", "none of them empty");
    refused_template("prompt: a, slots: {x: 3}", "none of them empty");
    refused_template("prompt: a, slots: [3]", "slots[0] wants a mapping");
    refused_template("prompt: '{y}', slots: [{x: 1}]", "'{y}' names no slot");
    refused_template("prompt: '{', slots: [{x: 1}]", "has no end");
    refused_template("prompt: '{}', slots: [{x: 1}]", "names no slot");
}

TEST(hostile_sizes_end_soon)
{
    fm_buf b;
    fm_suite *s = NULL;
    /* 10^9 cases from one line. */
    refused("suite: s\ntemplates:\n  - {name: '{a}{b}{c}{d}{e}{f}{g}{h}{i}', prompt: p, "
            "expect: {contains: x}, slots: {a: [0,1,2,3,4,5,6,7,8,9], b: [0,1,2,3,4,5,6,7,8,9], "
            "c: [0,1,2,3,4,5,6,7,8,9], d: [0,1,2,3,4,5,6,7,8,9], e: [0,1,2,3,4,5,6,7,8,9], "
            "f: [0,1,2,3,4,5,6,7,8,9], g: [0,1,2,3,4,5,6,7,8,9], h: [0,1,2,3,4,5,6,7,8,9], "
            "i: [0,1,2,3,4,5,6,7,8,9]}}\n",
            FM_ELIMIT, "f.yaml");
    /* A megabyte, a thousand times in one prompt. */
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "suite: s\ntemplates:\n  - {name: n, expect: {contains: x}, prompt: '");
    for (int i = 0; i < 1000; i++)
        fm_buf_str(&b, "{x}");
    fm_buf_str(&b, "', slots: [{x: '");
    memset(fm_buf_extend(&b, 1 << 20), 'a', 1 << 20);
    fm_buf_str(&b, "'}]}\n");
    tk_fails(fm_suite_parse(&s, fm_buf_span(&b), "f.yaml"), FM_ELIMIT, "template 'n'");
    fm_buf_clear(&b);
    fm_buf_str(&b, "suite: s\ndescription: '");
    memset(fm_buf_extend(&b, FMV_SUITE_BYTES_MAX), 'a', FMV_SUITE_BYTES_MAX);
    tk_fails(fm_suite_parse(&s, fm_buf_span(&b), "f.yaml"), FM_ELIMIT, "at most");
    fm_buf_clear(&b);
    fm_buf_str(&b, HEAD "  - {name: c1, prompt: a, expect: {regex: '");
    memset(fm_buf_extend(&b, 9000), 'a', 9000);
    fm_buf_str(&b, "'}}\n");
    tk_fails(fm_suite_parse(&s, fm_buf_span(&b), "f.yaml"), FM_ELIMIT, "longer than 8192");
    fm_buf_clear(&b);
    fm_buf_str(&b, HEAD "  - {name: c1, kind: INV, prompt: [a");
    for (unsigned i = 0; i < FMV_PROMPTS_MAX; i++)
        fm_buf_str(&b, ", b");
    fm_buf_str(&b, "]}\n");
    tk_fails(fm_suite_parse(&s, fm_buf_span(&b), "f.yaml"), FM_ELIMIT, "more than 64 prompts");
    fm_buf_release(&b);
}

static bool same_digest(const char *a, const char *b)
{
    fm_suite *x = parsed(a), *y = parsed(b);
    fm_digest p = fm_suite_case_digest(x, 0), q = fm_suite_case_digest(y, 0);
    fm_suite_free(x);
    fm_suite_free(y);
    return fm_digest_eq(&p, &q);
}

TEST(digests_cover_what_a_verdict_depends_on)
{
    static const char plain[] = HEAD "  - {name: a, prompt: p, expect: {contains: x}}\n";
    assert_true(
        same_digest(plain, HEAD "  - {name: b, expect: {contains: x}, prompt: p, note: n}\n"));
    assert_true(same_digest(plain, "suite: t\ngate: true\n"
                                   "generate: {max-tokens: 32, temperature: 0}\n"
                                   "cases:\n  - {name: a, prompt: p, expect: {contains: x}}\n"));
    assert_false(same_digest(plain, "suite: s\ngenerate: {max-tokens: 31}\n"
                                    "cases:\n  - {name: a, prompt: p, expect: {contains: x}}\n"));
    assert_true(same_digest("suite: s\ngenerate: {max-tokens: 31}\n"
                            "cases:\n  - {name: a, prompt: p, expect: {contains: x}}\n",
                            HEAD "  - {name: a, prompt: p, expect: {contains: x}, "
                                 "generate: {max-tokens: 31}}\n"));
    assert_false(same_digest(plain, HEAD "  - {name: a, chat: p, expect: {contains: x}}\n"));
    assert_false(same_digest(plain, HEAD "  - {name: a, prompt: q, expect: {contains: x}}\n"));
    assert_false(same_digest(plain, HEAD "  - {name: a, prompt: p, expect: {contains: y}}\n"));
    assert_false(same_digest(plain, HEAD "  - {name: a, prompt: p, expect: {not-contains: x}}\n"));
    assert_false(same_digest(plain, HEAD "  - {name: a, prompt: p, expect: {contains: x}, "
                                         "ignore-case: true}\n"));
    assert_false(same_digest(plain, HEAD "  - {name: a, prompt: p, expect: {contains: x}, "
                                         "generate: {stop: x}}\n"));
}

/* What the documentation shows is what the parser takes. */
TEST(documented_suites_parse)
{
    size_t count = 0;
    char *path = tk_source("testing/SUITES.md");
    fm_buf text;
    fm_buf_init(&text, 0);
    tk_ok(fm_read_file(&text, path, 1 << 20));
    fm_free(path);
    for (char *at = strstr((char *)text.data, "```yaml\n"); at; at = strstr(at, "```yaml\n")) {
        at += strlen("```yaml\n");
        char *end = strstr(at, "```");
        assert_non_null(end);
        char *suite, *topic; /* of a document that changes a suite the form alone */
        tk_ok(fm_suite_doc_kind(&suite, &topic, fm_span_of(at, (size_t)(end - at)), "SUITES.md"));
        fm_free(suite);
        fm_free(topic);
        at = end + 3;
        count++;
    }
    assert_true(count >= 5);
    fm_buf_release(&text);
}

static void parse_folder(const char *relative)
{
    char *folder = tk_source(relative);
    fm_names names;
    tk_ok(fm_list_dir(&names, folder));
    assert_true(names.count > 0);
    for (size_t i = 0; i < names.count; i++) {
        char *path = fm_path_join(folder, names.name[i]);
        fm_suite *s = NULL;
        fm_buf text;
        fm_buf_init(&text, 0);
        tk_ok(fm_read_file(&text, path, 1 << 20));
        tk_ok(fm_suite_parse(&s, fm_buf_span(&text), names.name[i]));
        fm_suite_free(s);
        fm_buf_release(&text);
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(folder);
}

TEST(shipped_suites_parse)
{
    parse_folder("examples/atlas/suites");
}

static fm_status join(void *ctx, fm_span text)
{
    fm_buf_append(ctx, text.data, text.len);
    fm_buf_char(ctx, '|');
    return FM_OK;
}

static void check_texts(const char *keys, const char *want)
{
    fm_suite *s = parsed_case(keys);
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_suite_case_texts(s, 0, join, &b));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
    fm_suite_free(s);
}

TEST(a_case_tells_its_texts)
{
    check_texts("prompt: hi, expect: [{contains: a}, {one-of: [b, c]}, {regex: d}]", "hi|a|b|c|");
    check_texts("messages: [{role: system, content: s}, {role: user, content: u}], "
                "expect: [{equals: a}]",
                "s|u|a|");
    check_texts("prompt: hi, choices: [x, y], answer: y", "hi|y|");
    check_texts("prompt: hi, embedding: {nearer: x, than: y}", "hi|x|");
    check_texts("prompt: hi, expect: [{icontains-any: [a, b]}, {word-count: 3}, {bleu: c}]",
                "hi|a|b|c|");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_are_refused_by_file_and_key),
        cmocka_unit_test(cases_are_refused_by_name_and_key),
        cmocka_unit_test(expectations_that_cannot_fail_are_refused),
        cmocka_unit_test(keys_without_effect_are_refused),
        cmocka_unit_test(twice_named_cases_are_refused),
        cmocka_unit_test(templates_are_refused_by_name),
        cmocka_unit_test(each_kind_is_accepted),
        cmocka_unit_test(rows_fill_every_string),
        cmocka_unit_test(lists_make_their_product_last_fastest),
        cmocka_unit_test(digests_cover_what_a_verdict_depends_on),
        cmocka_unit_test(hostile_sizes_end_soon),
        cmocka_unit_test(a_case_tells_its_texts),
        cmocka_unit_test(documented_suites_parse),
        cmocka_unit_test(shipped_suites_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
