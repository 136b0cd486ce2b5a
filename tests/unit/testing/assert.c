/* The catalogue of assertions: each holds and fails as stated and so does its negation; overlaps,
 * schemas and XML against what other programs said (assert_cases.json); weights, thresholds, sets,
 * metrics; what is refused; what is hostile ends soon. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "testing/run/aux_models.h"
#include "testing/run/run.h"
#include "tests/testkit.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static fm_suite *parsed_case(const char *keys)
{
    fm_suite *s = NULL;
    char *yaml = fm_asprintf("suite: s\ncases:\n  - {name: c1, prompt: p, %s}\n", keys);
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
    fm_free(yaml);
    return s;
}

static void refused_as(const char *keys, fm_status status, const char *needle)
{
    fm_suite *s = NULL;
    char *yaml = fm_asprintf("suite: s\ncases:\n  - {name: c1, prompt: p, %s}\n", keys);
    tk_fails(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"), status, needle);
    assert_null(s);
    assert_non_null(strstr(fm_error_text(), "f.yaml: case 'c1'"));
    fm_free(yaml);
}

static void refused(const char *keys, const char *needle)
{
    refused_as(keys, FM_EINVAL, needle);
}

static fm_status graded(const char *expect, const fmv_answer *said, fmv_grade *g, fm_buf *detail,
                        fmv_metrics *metrics)
{
    fm_suite *s = parsed_case(expect);
    fm_status rc = fmv_expect_grade(&s->cases[0], said, g, detail, metrics);
    fm_suite_free(s);
    return rc;
}

static fmv_answer text_of(const char *text)
{
    return (fmv_answer){.text = fm_span_str(text), .finish = "stop"};
}

static void expect_graded(const char *expect, const fmv_answer *said, bool want)
{
    fmv_grade g;
    fm_buf detail;
    fm_buf_init(&detail, 0);
    tk_ok(graded(expect, said, &g, &detail, NULL));
    if (g.holds != want)
        fail_msg("%s on \"%s\": %d %s", expect, (const char *)said->text.data, g.holds,
                 fm_buf_cstr(&detail));
    assert_int_equal(detail.len == 0, want);
    assert_true(g.score >= 0 && g.score <= 1);
    fm_buf_release(&detail);
}

/* The assertion and its negation. */
static void holds(const char *assertion, const char *text, bool want)
{
    fmv_answer said = text_of(text);
    for (int n = 0; n < 2; n++) {
        char *expect = fm_asprintf("expect: {%s%s}", n ? "not-" : "", assertion);
        expect_graded(expect, &said, n ? !want : want);
        fm_free(expect);
    }
}

static const struct {
    const char *assertion, *passes, *fails;
} catalogue[] = {
    {"equals: Paris", " Paris\n", "Paris."},
    {"contains: Paris", "in Paris.", "in paris."},
    {"icontains: Paris", "in PARIS", "in Pari"},
    {"contains-any: [a1, b2]", "x b2", "x A1"},
    {"contains-all: [a1, b2]", "b2 a1", "b2"},
    {"icontains-any: [a1, b2]", "x B2", "x"},
    {"icontains-all: [a1, b2]", "B2A1", "B2"},
    {"starts-with: ' The'", "\n The end", "In The end"},
    {"ends-with: 'end. '", "The end.\n", "The end"},
    {"regex: '^\\d+$'", "42", "x42"},
    {"one-of: [yes, no]", " no ", "nothing"},
    {"json: {a: 1}", "{\"a\": 1, \"b\": 2}", "{\"a\": 1.0}"},
    {"is-json: true", " [1] ", "x [1]"},
    {"is-json: {type: object, required: [a]}", "{\"a\": 1}", "{\"b\": 1}"},
    {"contains-json: true", "So: {\"a\": \"}\"} it is", "So: {a: 1}"},
    {"contains-json: {required: [b]}", "[x] {\"a\": 1} {\"b\": 1}", "{\"a\": 1}"},
    {"is-xml: true", "<a b='c'><d/></a>", "<a><d></a>"},
    {"is-xml: [a.d]", "<a><c/><d/></a>", "<a><c><d/></c></a>"},
    {"is-xml: true", "<?xml version='1.0' encoding='latin1'?><a>\xc3\xa9</a>", "<a>\xe9</a>"},
    {"is-xml: true", "<a>&#233;</a>", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"},
    {"is-xml: [a.b.c]", "<a>t<b/><b>u<c/></b></a>", "<a><b/><c/></a>"},
    {"contains-xml: true", "so <a>x</a> it is", "so <a>x</b> is"},
    {"contains-xml: true", "<a><b>x</b><c>", "<a><b>x<c>"},
    {"contains-json: {required: [b]}", "\" [ {\"b\": 1} ", "\" [ {\"a\": 1} "},
    {"contains-xml: [a.b]", "<c/> <a><b/></a>", "<a><c/></a>"},
    {"is-html: true", "<!DOCTYPE html><p>a<p>b<br><ul><li>x</ul>", "<p>a</p> and"},
    {"contains-html: true", "so <b>bold</b> it is", "a < b and <blink>c</blink>"},
    {"levenshtein: kitten, threshold: 3", "sitting", "sittings."},
    {"rouge-n: the cat is on the mat, threshold: 0.8", "the cat sat on the mat", "the dog"},
    {"rouge-l: the cat is on the mat, threshold: 0.8", "the cat sat on the mat", "mat the on"},
    {"bleu: the cat is on the mat, threshold: 0.3", "the cat is on a mat", "a dog"},
    {"gleu: the cat is on the mat, threshold: 0.4", "the cat is on a mat", "a dog"},
    {"word-count: 3", " one two\xE2\x80\x83three\n", "one two"},
    {"word-count: {min: 2, max: 3}", "one two", "one two three four"},
    {"length: {max: 2}", "éé", "ééé"},
    {"length-bytes: 4", "éé", "éé."},
    {"finish-reason: stop", "x", NULL},
    {"finish-reason: length", NULL, "x"},
    {"assert-set: [{contains: a}, {contains: b}]", "ab", "a"},
    {"assert-set: [{contains: a}, {contains: b}], threshold: 0.5", "a", "c"},
};

TEST(each_assertion_holds_and_fails)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(catalogue); i++) {
        if (catalogue[i].passes)
            holds(catalogue[i].assertion, catalogue[i].passes, true);
        if (catalogue[i].fails)
            holds(catalogue[i].assertion, catalogue[i].fails, false);
    }
}

TEST(each_assertion_can_be_written_as_promptfoo_does)
{
    fmv_answer said = text_of("in PARIS");
    expect_graded("expect: [{type: icontains, value: paris}]", &said, true);
    expect_graded("expect: {type: not-icontains, value: paris, weight: 2}", &said, false);
    expect_graded("expect: {type: assert-set, assert: [{type: contains, value: x}, "
                  "{type: contains, value: PARIS}], threshold: 0.5}",
                  &said, true);
    expect_graded("expect: {type: rouge-n, value: paris in, n: 2, threshold: 0.1}", &said, false);
}

/* ---- against other programs ---- */

static fm_json *reference(void)
{
    char *path = tk_source("tests/unit/testing/assert_cases.json");
    fm_json *all = NULL;
    tk_ok(fm_json_parse_file(&all, path, 1 << 20));
    fm_free(path);
    return all;
}

static char *json_text(const fm_json *v)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_json_write(&b, v, FM_JSON_COMPACT));
    return fm_buf_take(&b);
}

static void same_score(const char *word, const char *texts, unsigned n, fmv_answer said,
                       double want)
{
    fmv_grade g;
    fm_buf detail;
    char order[16] = "";
    fm_buf_init(&detail, 0);
    if (n)
        snprintf(order, sizeof order, ", n: %u", n);
    char *expect = fm_asprintf("expect: {%s: %s%s}", word, texts, order);
    tk_ok(graded(expect, &said, &g, &detail, NULL));
    if (!(fabs(g.score - want) < 1e-9))
        fail_msg("%s on \"%s\": %.12f, want %.12f", expect, (const char *)said.text.data, g.score,
                 want);
    fm_buf_release(&detail);
    fm_free(expect);
}

/* Of the text that has the fewest: runs of letters and digits. */
static size_t fewest_words(const fm_json *texts)
{
    size_t fewest = SIZE_MAX;
    for (size_t i = 0; i < fm_json_count(texts); i++) {
        size_t n = 0;
        bool inside = false;
        for (const char *p = fm_json_cstr(fm_json_at(texts, i), ""); *p; p++) {
            bool is = (*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z');
            n += is && !inside;
            inside = is;
        }
        fewest = FM_MIN(fewest, n);
    }
    return fewest;
}

TEST(overlaps_are_those_of_their_references)
{
    fm_json *all = reference();
    const fm_json *list = fm_json_get(all, "overlap");
    assert_true(fm_json_count(list) >= 40);
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *one = fm_json_at(list, i), *rouge = fm_json_get(one, "rouge-n");
        char *texts = json_text(fm_json_get(one, "texts"));
        fmv_answer said = text_of(fm_json_cstr(fm_json_get(one, "answer"), ""));
        size_t words = fewest_words(fm_json_get(one, "texts")); /* too few are refused */
        for (unsigned n = 1; n <= FM_MIN(fm_json_count(rouge), words); n++)
            same_score("rouge-n", texts, n, said, fm_json_real(fm_json_at(rouge, n - 1), -1));
        if (words)
            same_score("rouge-l", texts, 0, said, fm_json_real(fm_json_get(one, "rouge-l"), -1));
        same_score("bleu", texts, 0, said, fm_json_real(fm_json_get(one, "bleu"), -1));
        same_score("gleu", texts, 0, said, fm_json_real(fm_json_get(one, "gleu"), -1));
        fm_free(texts);
    }
    fm_json_free(all);
}

TEST(distances_are_those_of_their_reference)
{
    fm_json *all = reference();
    const fm_json *list = fm_json_get(all, "overlap");
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *one = fm_json_at(list, i);
        char *text = json_text(fm_json_at(fm_json_get(one, "texts"), 0));
        fmv_answer said = text_of(fm_json_cstr(fm_json_get(one, "answer"), ""));
        int64_t d = fm_json_int(fm_json_get(one, "levenshtein"), -1);
        for (int64_t less = 0; less < 2 && d >= less; less++) {
            char *expect =
                fm_asprintf("expect: {levenshtein: %s, threshold: %d}", text, (int)(d - less));
            expect_graded(expect, &said, !less);
            fm_free(expect);
        }
        fm_free(text);
    }
    fm_json_free(all);
}

TEST(schemas_are_judged_as_by_their_reference)
{
    fm_json *all = reference();
    const fm_json *schemas = fm_json_get(all, "schemas"), *values = fm_json_get(all, "values");
    assert_true(fm_json_count(schemas) * fm_json_count(values) > 1000);
    for (size_t i = 0; i < fm_json_count(schemas); i++) {
        const fm_json *one = fm_json_at(schemas, i), *schema = fm_json_get(one, "schema");
        const char *want = fm_json_cstr(fm_json_get(one, "valid"), "");
        fmv_schema *s = NULL;
        tk_ok(fmv_schema_new(&s, schema, "t"));
        assert_int_equal(strlen(want), fm_json_count(values));
        for (size_t k = 0; k < fm_json_count(values); k++) {
            uint32_t steps = 0;
            bool valid = false;
            char why[200];
            tk_ok(fmv_schema_check(s, fm_json_at(values, k), &steps, &valid, why, sizeof why));
            if (valid != (want[k] == '1')) {
                char *a = json_text(schema), *b = json_text(fm_json_at(values, k));
                fail_msg("%s of %s: %d (%s)", b, a, valid, why);
            }
            assert_int_equal(why[0] == 0, valid);
        }
        fmv_schema_free(s);
    }
    fm_json_free(all);
}

TEST(xml_is_what_expat_takes)
{
    fm_json *all = reference();
    const fm_json *list = fm_json_get(all, "xml");
    assert_true(fm_json_count(list) >= 40);
    for (size_t i = 0; i < fm_json_count(list); i++)
        holds("is-xml: true", fm_json_cstr(fm_json_at(fm_json_at(list, i), 0), ""),
              fm_json_bool(fm_json_at(fm_json_at(list, i), 1), false));
    fm_json_free(all);
}

/* ---- weights and thresholds ---- */

TEST(weights_and_thresholds)
{
    fmv_answer said = text_of("only a here");
    const char *two = "expect: [{contains: a, weight: 3}, {contains: b}]";
    expect_graded(two, &said, false);
    char *with = fm_asprintf("threshold: 0.75, %s", two);
    expect_graded(with, &said, true);
    fm_free(with);
    with = fm_asprintf("threshold: 0.76, %s", two);
    expect_graded(with, &said, false);
    fm_free(with);
    /* weight 0 is measured and decides nothing */
    expect_graded("expect: [{contains: a}, {contains: b, weight: 0, metric: b}]", &said, true);
    /* 0.1 three times is 0.3 of 0.3, whatever their sum is in binary */
    expect_graded("threshold: 1, expect: [{contains: a, weight: 0.1}, {contains: o, weight: 0.1}, "
                  "{contains: h, weight: 0.1}]",
                  &said, true);
    expect_graded("expect: [{assert-set: [{contains: b}, {contains: a}], threshold: 0.5}, "
                  "{not-assert-set: [{contains: a}, {contains: b}]}]",
                  &said, true);
}

TEST(metrics_are_weighted_means_by_name)
{
    fmv_answer said = text_of("a c");
    fmv_metrics m = {.count = 0};
    fmv_grade g;
    fm_buf detail;
    fm_buf_init(&detail, 0);
    fm_suite *s = parsed_case("expect: [{contains: a, metric: x, weight: 3}, "
                              "{contains: b, metric: x}, {not-contains: c, metric: y, weight: 0}]");
    tk_ok(fmv_expect_grade(&s->cases[0], &said, &g, &detail, &m));
    fm_json *o = fmv_metrics_json(&m);
    tk_assert_le(fabs(fm_json_real(fm_json_get(o, "x"), -1) - 0.75), 1e-12, "x");
    assert_true(fm_json_real(fm_json_get(o, "y"), -1) == 0);
    tk_assert_le(fabs(g.score - 0.75), 1e-12, "score");
    assert_non_null(strstr(fm_buf_cstr(&detail), "expected contains \"b\""));
    fm_json_free(o);
    fm_suite_free(s);
    fm_buf_release(&detail);
}

TEST(perplexity_is_of_the_answer_s_tokens)
{
    const float lp[] = {-1.0F, -0.5F, -1.5F}; /* e^1 = 2.71828.., 1 / (1 + e) = 0.26894.. */
    fmv_answer said = {.text = fm_span_str("x"), .finish = "stop", .logprobs = lp, .tokens = 3};
    expect_graded("expect: {perplexity: true, threshold: 2.72}", &said, true);
    expect_graded("expect: {perplexity: true, threshold: 2.71}", &said, false);
    expect_graded("expect: {perplexity-score: true, threshold: 0.268}", &said, true);
    expect_graded("expect: {perplexity-score: true, threshold: 0.269}", &said, false);
    fmv_grade g;
    fm_buf detail;
    fm_buf_init(&detail, 0);
    said.tokens = 0;
    tk_fails(graded("expect: {perplexity: true, threshold: 2}", &said, &g, &detail, NULL),
             FM_EUNSUPPORTED, "no tokens");
}

/* ---- judges' replies ---- */

static void reply(const char *word, const char *text, fm_status status, bool want)
{
    fmv_grade g = {0};
    char *keys = fm_asprintf("expect: {%s: be kind, model: " COMMIT "}", word);
    fm_suite *s = parsed_case(keys);
    const fmv_assertion *a = &s->cases[0].assertion[0];
    fm_status rc = fmv_judge_reply(a, fm_span_str(text), &g);
    if (rc != status)
        fail_msg("%s: %s gives %d", word, text, (int)rc);
    fm_error_clear();
    if (rc == FM_OK)
        assert_int_equal(g.holds, want);
    fm_suite_free(s);
    fm_free(keys);
}

TEST(judges_are_read_strictly)
{
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":true,\"score\":0.5}", FM_OK, true);
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":false,\"score\":1}", FM_OK, false);
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":true,\"score\":1.5}", FM_EINVAL, false);
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":true}", FM_EINVAL, false);
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":\"true\",\"score\":1}", FM_EINVAL, false);
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":true,\"score\":1,\"x\":1}", FM_EINVAL, false);
    reply("llm-rubric", "I think it passes", FM_ECORRUPT, false);
    reply("llm-rubric", "{\"reason\":\"ok\",\"pass\":tr", FM_ECORRUPT, false);
    reply("factuality", "{\"reason\":\"ok\",\"choice\":\"C\"}", FM_OK, true);
    reply("factuality", "{\"reason\":\"ok\",\"choice\":\"D\"}", FM_OK, false);
    reply("factuality", "{\"reason\":\"ok\",\"choice\":\"F\"}", FM_EINVAL, false);
    reply("factuality", "{\"reason\":\"ok\",\"choice\":\"AB\"}", FM_EINVAL, false);
    reply("model-graded-closedqa", "{\"reason\":\"\",\"pass\":true}", FM_OK, true);
    reply("model-graded-closedqa", "{\"reason\":\"\",\"pass\":false}", FM_OK, false);
    reply("model-graded-closedqa", "{\"pass\":true}", FM_EINVAL, false);
}

/* ---- windows ---- */

/* lm-eval 0.4.13's get_rolling_token_windows and make_disjoint_window for 1 + n tokens, by hand;
 * compared by a script with those functions for 1 to 59 tokens and reaches of 1 to 19: equal. */
TEST(windows_are_disjoint_with_context)
{
    static const size_t want[][5] = {/* count, reach, then begin, from, end of the last */
                                     {2, 4, 0, 1, 2}, {5, 4, 0, 1, 5},   {6, 4, 1, 5, 6},
                                     {9, 4, 4, 5, 9}, {10, 4, 5, 9, 10}, {12, 4, 7, 9, 12}};
    for (size_t i = 0; i < FM_ARRAY_LEN(want); i++) {
        size_t b = 0, f = 0, e = 0, next = 1, k = 0;
        while (fmv_window(want[i][0], want[i][1], k, &b, &f, &e)) {
            assert_int_equal(f, next);
            assert_true(e > f && b < f && e - b <= want[i][1] + 1);
            next = e;
            k++;
        }
        assert_int_equal(next, want[i][0]);
        assert_int_equal(b, want[i][2]);
        assert_int_equal(f, want[i][3]);
        assert_int_equal(e, want[i][4]);
    }
    size_t b, f, e;
    assert_false(fmv_window(1, 4, 0, &b, &f, &e));
}

/* ---- filters ---- */

static void filtered(const char *keys, const char *const *texts, size_t n, const char *want)
{
    fmv_work work[8];
    memset(work, 0, sizeof work);
    for (size_t i = 0; i < n; i++) {
        fm_buf_init(&work[i].gen.text, 0);
        fm_buf_str(&work[i].gen.text, texts[i]);
        memcpy(work[i].gen.finish, "stop", 5);
    }
    fm_suite *s = parsed_case(keys);
    fmv_job j = {.c = &s->cases[0], .work = work, .count = n};
    assert_int_equal(s->cases[0].repeats, n);
    tk_ok(fmv_answers(&j));
    assert_string_equal(fm_buf_cstr(&j.said[0].text), want);
    fmv_answers_release(&j);
    for (size_t i = 0; i < n; i++)
        fm_buf_release(&work[i].gen.text);
    fm_suite_free(s);
}

/* What lm-eval 0.4.13's RegexFilter and MajorityVoteFilter make of these; where there is no such
 * match they raise IndexError, here it is the fallback. */
TEST(filters_work_as_in_lm_eval)
{
    const char *const one[] = {" So 12 and 34 or #### 56 "};
    const char *const votes[] = {"x 1", "y 2", "z 2", "none", "1"};
#define F(list) "expect: {contains: x}, filter: [" list "]"
    filtered(F("strip, lowercase"), one, 1, "so 12 and 34 or #### 56");
    filtered(F("{regex: '\\d+'}"), one, 1, "12");
    filtered(F("{regex: '\\d+', match: -1}, take-first"), one, 1, "56");
    filtered(F("{regex: '\\d+', match: 1}"), one, 1, "34");
    filtered(F("{regex: '\\d+', match: 3}"), one, 1, "[invalid]");
    filtered(F("{regex: '\\d+', match: -4, fallback: none}"), one, 1, "none");
    filtered(F("{regex: '#### (\\d+)'}"), one, 1, "56");
    filtered(F("{regex: '(zz)?( So)'}"), one, 1, "So");
    filtered(F("{regex: '(\\d+)', match: 0}, majority") ", generate: {repeats: 5, temperature: 1}",
             votes, 5, "1");
    filtered(F("majority") ", generate: {repeats: 5, temperature: 1}", votes, 5, "x 1");
#undef F
}

/* Pairs compare what the filters left of the answers to two prompts, not one prompt's repeats. */
TEST(pairs_compare_filtered_answers)
{
    static const struct {
        const char *keys, *texts[6];
        size_t each;
        bool holds;
    } is[] = {
        {"", {"the 7", "a 7"}, 1, false},
        {", filter: [{regex: '\\d+'}]", {"the 7", "a 7"}, 1, true},
        {", filter: [{regex: '\\d+'}]", {"the 7", "a 8"}, 1, false},
        {", filter: [majority], generate: {repeats: 3, temperature: 1}",
         {"a", "b", "b", "b", "c", "b"},
         3,
         true},
        {", filter: [majority], generate: {repeats: 3, temperature: 1}",
         {"a", "a", "b", "c", "c", "b"},
         3,
         false},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(is); i++) {
        fm_suite *s = NULL;
        fm_buf output, detail;
        fmv_work work[6];
        fm_case_result result = {0};
        bool holds = !is[i].holds;
        char *yaml = fm_asprintf("suite: s\ncases:\n  - {name: c, kind: INV, prompt: [p, q], "
                                 "pairs: {answer: same}%s}\n",
                                 is[i].keys);
        tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
        fm_free(yaml);
        memset(work, 0, sizeof work);
        for (size_t k = 0; k < 2 * is[i].each; k++) {
            fm_buf_init(&work[k].gen.text, 0);
            fm_buf_str(&work[k].gen.text, is[i].texts[k]);
            memcpy(work[k].gen.finish, "stop", 5);
        }
        fmv_job j = {.c = &s->cases[0], .result = &result, .work = work, .count = 2 * is[i].each};
        fm_buf_init(&output, 0);
        fm_buf_init(&detail, 0);
        tk_ok(fmv_answers(&j));
        tk_ok(fmv_judge_pairs(&j, &output, &detail, &holds));
        if (holds != is[i].holds)
            fail_msg("pairs%s: %d", is[i].keys, holds);
        fmv_answers_release(&j);
        for (size_t k = 0; k < 2 * is[i].each; k++)
            fm_buf_release(&work[k].gen.text);
        fm_buf_release(&output);
        fm_buf_release(&detail);
        fm_suite_free(s);
    }
}

/* ---- refusals ---- */

TEST(what_could_not_fail_is_refused)
{
    refused("expect: {contains-any: []}", "list of strings");
    refused("expect: {contains-all: [a, '']}", "contains-all[1] is empty");
    refused("expect: {word-count: {}}", "whole number");
    refused("expect: {word-count: {min: 0}}", "every answer is within it");
    refused("expect: {length: {min: 3, max: 2}}", "no answer is within it");
    refused("expect: {length: {mix: 3}}", "unknown key 'mix'");
    refused("expect: {length: 2.5}", "whole number");
    refused("expect: {finish-reason: tool_calls}", "not stop or length");
    refused("expect: {finish-reason: [stop, length]}", "one of stop and length");
    refused("expect: {is-json: 3}", "true or a JSON Schema");
    refused("expect: {is-xml: a.b}", "true, or a list of paths");
    refused("expect: {is-html: [p]}", "wants true");
    refused("expect: {levenshtein: a, threshold: 1.5}", "whole number");
    refused("expect: {rouge-n: '...'}", "too few words of a-z");
    refused("expect: {rouge-n: one two, n: 3}", "too few words");
    refused("expect: {rouge-n: one two, n: 5}", "'n' wants a number, 1 to 4");
    refused("expect: {bleu: one, threshold: 0}", "'threshold' wants a number");
    refused("expect: {bleu: one, n: 2}", "'n' says nothing beside expect.bleu");
    refused("expect: {contains: one, threshold: 0.5}", "'threshold' says nothing beside");
    refused("expect: {contains: one, model: x}", "'model' says nothing beside");
    refused("expect: {perplexity: true}", "wants 'threshold'");
    refused("expect: {perplexity: 3, threshold: 3}", "wants true");
    refused("expect: {similar: x}", "wants 'model', the full id");
    refused("expect: {classifier: x, model: m}", "wants 'threshold'");
    refused("expect: {llm-rubric: '', model: m}", "is empty");
    refused("expect: {factuality: x, model: m, threshold: 0.5}", "'threshold' says nothing");
    refused("expect: {contains: a, weight: -1}", "'weight' wants a number");
    refused("expect: {contains: a, weight: 0}", "every weight is 0");
    refused("expect: [{assert-set: [{contains: a, weight: 0}]}]", "every weight is 0");
    refused("expect: {contains: a, equals: b, weight: 2}", "go with one assertion");
    refused("expect: {weight: 2}", "go with one assertion");
    refused("expect: {contains: a, metric: ''}", "'metric' wants a line");
    refused("expect: {contains: a, value: b}", "go with 'type'");
    refused("expect: {type: contains, value: b, contains: a}", "'contains' beside 'type'");
    refused("expect: {type: 3, value: b}", "'type' must be a string");
    refused("expect: {type: contains, assert: b}", "'assert' says nothing");
    refused("expect: {assert-set: []}", "wants a list of assertions");
    refused("expect: {assert-set: [{assert-set: [{contain: x}]}]}", "unknown assertion 'contain'");
    refused("threshold: 0.5", "'expect' is missing");
    refused("threshold: 0, expect: {contains: a}", "'threshold' wants a number above 0");
    refused("threshold: 1.1, expect: {contains: a}", "'threshold' wants a number above 0");
}

TEST(what_is_not_offered_is_refused_with_the_reason)
{
    static const char *const words[][2] = {
        {"latency", "machine"},      {"cost", "token"},      {"javascript", "never runs code"},
        {"not-python", "runs code"}, {"webhook", "network"}, {"is-sql", "dialect"},
        {"meteor", "WordNet"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(words); i++) {
        char *keys = fm_asprintf("expect: {%s: x}", words[i][0]);
        refused_as(keys, FM_EUNSUPPORTED, "is not offered");
        assert_non_null(strstr(fm_error_text(), words[i][1]));
        fm_free(keys);
    }
}

TEST(schemas_are_refused_by_keyword)
{
#define S(x) "expect: {is-json: {" x "}}"
    refused(S("format: email"), "keyword 'format' is not understood");
    refused(S("properties: {a: {requierd: [b]}}"), "keyword 'requierd'");
    refused(S("unevaluatedProperties: false"), "keyword 'unevaluatedProperties'");
    refused(S("type: strin"), "'type' wants");
    refused(S("type: []"), "'type' wants");
    refused(S("minLength: -1"), "'minLength' wants a whole number");
    refused(S("multipleOf: 0"), "'multipleOf' wants");
    refused(S("required: a"), "'required' wants a list of names");
    refused(S("anyOf: []"), "'anyOf' wants a list of schemas");
    refused(S("items: [{type: integer}]"), "'items' wants a schema");
    refused(S("pattern: '('"), "regular expression '('");
    refused(S("$ref: '#/$defs/x'"), "'$ref' wants a schema of the same document");
    refused(S("$ref: 'http://x/y'"), "'$ref' wants a schema of the same document");
    /* What is no schema was not read as one: a multiple of 0 would be divided by. */
    refused(S("$ref: '#/default', default: {multipleOf: 0}"), "'$ref' wants a schema");
    refused(S("$ref: '#/enum/0', enum: [{multipleOf: 0}]"), "'$ref' wants a schema");
    refused(S("$ref: '#/$defs', $defs: {multipleOf: {type: string}}"), "'$ref' wants a schema");
    fm_suite_free(parsed_case(S("$ref: '#/$defs/a/anyOf/1/items', "
                                "$defs: {a: {anyOf: [true, {items: {type: string}}]}}")));
    refused_as(S("$ref: '#'"), FM_ELIMIT, "refers deeper");
    refused_as(S("$ref: '#/$defs/a', $defs: {a: {anyOf: [{$ref: '#/$defs/b'}]}, "
                 "b: {not: {$ref: '#/$defs/a'}}}"),
               FM_ELIMIT, "refers deeper");
    fm_suite_free(parsed_case(S("$id: 'x', $schema: 'http://json-schema.org/draft-07/schema#', "
                                "title: t, examples: [1], type: object")));
    refused_as(S("$schema: y"), FM_EUNSUPPORTED, "'$schema' names 'y'");
#undef S
}

TEST(filters_are_refused_by_name)
{
    refused("expect: {contains: a}, filter: []", "'filter' wants a list");
    refused("expect: {contains: a}, filter: [upper]", "filter 'upper' is not");
    refused("expect: {contains: a}, filter: [{regex: ''}]", "'regex' wants a pattern");
    refused("expect: {contains: a}, filter: [{regex: x, group: 1}]", "unknown key 'group'");
    refused("expect: {contains: a}, filter: [{regex: x, match: 1000}]", "'match' wants");
    refused("expect: {contains: a}, filter: [majority]", "go together");
    refused("expect: {contains: a}, generate: {repeats: 3, temperature: 1}", "go together");
    refused("expect: {contains: a}, filter: [majority], generate: {repeats: 3}", "temperature");
    refused("choices: [a, b], answer: a, filter: [strip]", "'filter' says nothing");
    refused("expect: {contains: a}, generate: {until: [x], stop: x}", "give one");
    fm_suite *s = parsed_case("expect: {contains: a}, generate: {until: [x, y]}");
    assert_int_equal(s->cases[0].stop_count, 2);
    fm_suite_free(s);
}

TEST(scorings_are_refused_by_key)
{
    refused("perplexity: 3", "'perplexity' wants");
    refused("perplexity: {per: line, below: 3}", "'per' wants word");
    refused("perplexity: {per: word}", "wants 'below' or 'above'");
    refused("perplexity: {per: word, below: 1}", "never below 1");
    refused("perplexity: {per: word, below: 9, window: 1}", "'window' wants");
    refused("perplexity: {per: word, below: 9}, expect: {contains: a}", "want one of");
    refused("perplexity: {per: word, below: 9}, margin: 1", "'margin' says nothing");
    refused("class: 3", "'class' wants the label");
    refused("class: x, probability-above: 1", "between 0 and 1");
    refused("class: x, probability-above: 0.5, probability-below: 0.4", "nothing is above");
    refused("class: x, logprob-above: 0.5", "'logprob-above' says nothing");
    refused("class: x, embedding: {nearer: a, than: b}", "want one of");
    refused("embedding: {nearer: a}", "wants 'than', 'above' or 'below'");
    refused("embedding: {nearer: a, than: []}", "'than' wants 1 to");
    refused("embedding: {nearer: a, than: ['']}", "than[0] wants a text");
    refused("embedding: {nearer: a, above: 0.5, margin: 0.1}", "'margin' wants");
    refused("embedding: {nearer: a, above: 1}", "between -1 and 1");
    refused("continuation: x, greedy: 3", "'greedy' must be true or false");
    refused("choices: [a, b], answer: a, greedy: true", "'greedy' says nothing");
    fm_suite_free(parsed_case("continuation: x, greedy: true"));
    fm_suite_free(parsed_case("choices: [a, b], answer: a, normalize: mutual-info"));
    fm_suite_free(parsed_case("class: x, probability-above: 0.5"));
    fm_suite_free(parsed_case("embedding: {nearer: a, than: [b, c], margin: 0.1}"));
}

/* ---- hostile ---- */

TEST(hostile_answers_and_suites_end_soon)
{
    fmv_grade g;
    fm_buf text, detail;
    struct timespec t0, t1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    fm_buf_init(&text, 0);
    fm_buf_init(&detail, 0);
    memset(fm_buf_extend(&text, 30000), 'a', 30000);
    text.data[text.len - 1] = '!';
    fmv_answer said = {.text = fm_buf_span(&text), .finish = "stop"};
    tk_fails(graded("expect: {regex: '^(a+)+$'}", &said, &g, &detail, NULL), FM_ELIMIT, "gave up");
    tk_fails(graded("expect: {is-json: {pattern: '^(a|aa)+$'}}",
                    &(fmv_answer){.text = fm_span_str("\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\"")},
                    &g, &detail, NULL),
             FM_ELIMIT, "gave up");
    memset(text.data, '[', text.len);
    said.text = fm_buf_span(&text);
    expect_graded("expect: {contains-json: true}", &said, false);
    expect_graded("expect: {not-contains-json: true}", &said, true);
    memcpy(text.data + text.len - 8, "{\"a\": 1}", 8);
    expect_graded("expect: {contains-json: {required: [a]}}", &said, true);
    expect_graded("expect: {contains-json: {required: [b]}}", &said, false);
    for (size_t i = 0; i < text.len; i++) /* each is looked at: too much */
        text.data[i] = i < text.len / 2 ? '[' : ']';
    expect_graded("expect: {contains-json: {required: [b]}}", &said, false);
    tk_fails(graded("expect: {not-contains-json: {required: [b]}}", &said, &g, &detail, NULL),
             FM_ELIMIT, "too long");
    for (size_t i = 0; i + 2 < text.len; i += 3)
        memcpy(text.data + i, "<a>", 3);
    expect_graded("expect: {is-xml: true}", &said, false);
    expect_graded("expect: {contains-xml: true}", &said, false);
    expect_graded("expect: {not-contains-xml: true}", &said, true);
    memcpy(text.data + text.len - 8, "<b></b> ", 8);
    expect_graded("expect: {contains-xml: true}", &said, true);
    expect_graded("expect: {contains-xml: [c]}", &said, false);
    tk_fails(graded("expect: {not-contains-xml: [c]}", &said, &g, &detail, NULL), FM_ELIMIT,
             "too long");
    fm_buf_clear(&text);
    for (int i = 0; i < 60000; i++) /* each is read to the text's end */
        fm_buf_str(&text, "<a><?p ");
    said.text = fm_buf_span(&text);
    expect_graded("expect: {contains-xml: true}", &said, false);
    fm_buf_clear(&text);
    for (int i = 0; i < 512; i++) /* the innermost is nested too deep, not those around it */
        fm_buf_str(&text, i < 256 ? "<a>" : i == 256 ? "<b/></a>" : "</a>");
    said.text = fm_buf_span(&text);
    expect_graded("expect: {contains-xml: [a.a]}", &said, true);
    fm_buf_clear(&text);
    fm_buf_str(&text, "expect: {is-json: ");
    for (int i = 0; i < 70; i++)
        fm_buf_str(&text, "{not: ");
    fm_buf_str(&text, "true");
    for (int i = 0; i < 70; i++)
        fm_buf_str(&text, "}");
    fm_buf_str(&text, "}");
    refused_as(fm_buf_cstr(&text), FM_ELIMIT, "deeper than 64");
    refused_as("expect: {assert-set: [{assert-set: [{assert-set: [{assert-set: [{assert-set: "
               "[{contains: a}]}]}]}]}]}",
               FM_ELIMIT, "nested deeper than 4");
    /* 3^40 ways to be wrong */
    fm_buf_clear(&text);
    fm_buf_str(&text, "expect: {is-json: {$ref: '#/$defs/a0', $defs: {");
    for (int i = 0; i < 40; i++)
        fm_buf_printf(&text, "a%d: {oneOf: [{$ref: '#/$defs/a%d'}, {$ref: '#/$defs/a%d'}]}, ", i,
                      i + 1, i + 1);
    fm_buf_str(&text, "a40: {type: string}}}}");
    refused_as(fm_buf_cstr(&text), FM_ELIMIT, "more than 1000000 steps");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    tk_assert_le((double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec), 10,
                 "seconds");
    fm_buf_release(&text);
    fm_buf_release(&detail);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_assertion_holds_and_fails),
        cmocka_unit_test(each_assertion_can_be_written_as_promptfoo_does),
        cmocka_unit_test(overlaps_are_those_of_their_references),
        cmocka_unit_test(distances_are_those_of_their_reference),
        cmocka_unit_test(schemas_are_judged_as_by_their_reference),
        cmocka_unit_test(xml_is_what_expat_takes),
        cmocka_unit_test(weights_and_thresholds),
        cmocka_unit_test(metrics_are_weighted_means_by_name),
        cmocka_unit_test(perplexity_is_of_the_answer_s_tokens),
        cmocka_unit_test(judges_are_read_strictly),
        cmocka_unit_test(windows_are_disjoint_with_context),
        cmocka_unit_test(filters_work_as_in_lm_eval),
        cmocka_unit_test(what_could_not_fail_is_refused),
        cmocka_unit_test(what_is_not_offered_is_refused_with_the_reason),
        cmocka_unit_test(pairs_compare_filtered_answers),
        cmocka_unit_test(schemas_are_refused_by_keyword),
        cmocka_unit_test(filters_are_refused_by_name),
        cmocka_unit_test(scorings_are_refused_by_key),
        cmocka_unit_test(hostile_answers_and_suites_end_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
