/* Each allocation of parsing a suite fails in turn, once and for ever after: FM_ENOMEM or the whole
 * suite, never a part of it; leaks are for the address sanitizer to find. */
#include <math.h>
#include <string.h>

#include "testing/assert/assert.h"
#include "testing/blame.h"
#include "testing/suite/internal.h"
#include "tests/fault/kit/alloc_kit.h"

static const char yaml[] =
    "suite: s\ndescription: d\ngate: true\ngenerate: {max-tokens: 5, stop: [x, y]}\ncases:\n"
    "  - {name: a, prompt: p, expect: [{contains: x}, {regex: 'a+'}, {json: {k: [1]}}]}\n"
    "  - {name: b, messages: [{role: user, content: hi}], expect: {one-of: [x, y]}, note: n}\n"
    "  - {name: c, prompt: p, choices: [x, y], answer: y}\n"
    "  - {name: d, kind: DIR, prompt: [p, q], continuation: x, direction: increases}\n"
    "  - {name: e, prompt: p, threshold: 0.5, filter: [{regex: 'x(y)'}, strip], expect: "
    "[{is-json:\n"
    "     {pattern: a, patternProperties: {b: true}}}, {assert-set: [{bleu: x y, metric: m}]},\n"
    "     {rouge-n: [x y, z w], n: 2}, {type: similar, value: x, model: m}]}\n"
    "  - {name: f, prompt: p, embedding: {nearer: a, than: [b, c]}}\n"
    "templates:\n"
    "  - {name: 't-{n}', chat: 'ask {n} {{', expect: {contains: '{n}'}, slots: [{n: 1}, {n: z}]}\n"
    "  - {name: 'u-{a}{b}', prompt: '{a}', expect: {json: true}, slots: {a: [1, 2], b: [x, y]}}\n";

static fm_status parse_suite(void)
{
    fm_suite *s = NULL;
    fm_status rc = fm_suite_parse(&s, fm_span_str(yaml), "t");
    if (rc < 0) {
        assert_null(s);
        return rc;
    }
    assert_int_equal(fm_suite_count(s), 12);
    assert_string_equal(fm_suite_case_name(s, 11), "u-2y");
    assert_true(fm_suite_is_gate(s));
    fm_suite_free(s);
    return FM_OK;
}

static fm_status prompt_suite(void)
{
    fm_suite *s = NULL;
    fm_status rc = fm_suite_from_prompt(&s, "who", "me", true);
    assert_int_equal(rc == FM_OK, s != NULL);
    fm_suite_free(s);
    return rc;
}

static fm_status keep_result(void)
{
    char out[] = "o", answer[] = "a";
    fm_case_result r = {.verdict = FM_PASS, .output = out, .answer = answer, .score = NAN},
                   back = {0};
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fmv_result_encode(&text, &r);
    if (rc == FM_OK)
        rc = fmv_result_decode(&back, fm_buf_span(&text));
    fm_free(back.output);
    fm_free(back.answer);
    fm_free(back.detail);
    fm_buf_release(&text);
    return rc;
}

/* Every assertion that needs memory, on an answer for which it is at work. */
static fm_status grade_answer(void)
{
    static const char expect[] =
        "suite: s\ncases:\n  - {name: c, prompt: p, expect: [{regex: 'a+'}, {json: {a: 1}},\n"
        "     {is-json: {propertyNames: {pattern: a}, properties: {a: {enum: [1]}}}},\n"
        "     {contains-json: true}, {contains-xml: [c]}, {levenshtein: x}, {rouge-n: a b}, {rouge-l: a b},\n"
        "     {bleu: [a b, c], metric: m}, {gleu: a b}, {assert-set: [{contains: zz}]}]}\n";
    const fmv_answer said = {.text = fm_span_str("{\"a\": 1, \"ab\": \"<c d='e'/>\"}"), .finish = "stop"};
    fm_suite *s = NULL;
    fmv_metrics m = {.count = 0};
    fmv_grade g = {0};
    fm_buf detail;
    fm_buf_init(&detail, 0);
    fm_status rc = fm_suite_parse(&s, fm_span_str(expect), "t");
    if (rc == FM_OK)
        rc = fmv_expect_grade(&s->cases[0], &said, &g, &detail, &m);
    if (rc == FM_OK) {
        fm_json *o = fmv_metrics_json(&m);
        rc = o ? FM_OK : FM_ENOMEM;
        fm_json_free(o);
        assert_true(!g.holds && m.count == 1);
        assert_int_equal(strncmp(fm_buf_cstr(&detail), "expected levenshtein", 20), 0);
    }
    fm_buf_release(&detail);
    fm_suite_free(s);
    return rc;
}

static fm_status says(void *ctx, const fm_blame_ask *ask, size_t n, fm_blame_reply *out)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++)
        out[i] = (fm_blame_reply){ask[i].node < 2 ? FM_FAIL : FM_PASS, 1, 0};
    return FM_OK;
}

static fm_status two_units(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++)
        out[i] = (fm_mixture_reply){.fails = mix[i].take[3] && mix[i].take[6]};
    return FM_OK;
}

static fm_status worth(void *ctx, const bool *take, size_t n, double *value)
{
    (void)ctx;
    for (size_t i = 0; i < n; i++)
        value[i] = take[3 * i] && take[3 * i + 2];
    return FM_OK;
}

static fm_status search(void)
{
    static const size_t next[] = {1, 2}, group[] = {0, 0, 0, 0, 1, 1, 1, 1};
    const fm_blame_node nodes[] = {{&next[0], 1, 0}, {&next[1], 1, 0}, {NULL, 0, 0}};
    const fm_blame_oracle oracle = {.ask = says};
    const fm_blame_opts opts = {0};
    const fm_blame_units units = {.count = 8, .levels = 1, .group_of = {group}};
    const fm_minimal_opts few = {0};
    const fm_shapley_opts exact = {0};
    fm_blame_history h;
    fm_minimal_set m = {0};
    fm_shapley s = {0};
    fm_status rc = fm_blame_search(&h, nodes, 3, &oracle, &opts);
    if (rc == FM_OK) {
        assert_int_equal(h.culprit, 1);
        rc = fm_blame_minimal(&m, &units, two_units, NULL, &few);
    }
    if (rc == FM_OK) {
        assert_int_equal(m.size, 2);
        rc = fm_shapley_values(&s, 3, worth, NULL, &exact);
    }
    if (rc == FM_OK)
        assert_true(s.value[0] > 0.49 && s.value[0] < 0.51);
    fm_shapley_release(&s);
    fm_free(m.take);
    fm_blame_history_release(&h);
    return rc;
}

TEST(parsing_survives_each_failure)
{
    ak_fail_each(parse_suite, 100);
    ak_fail_each(prompt_suite, 10);
}

TEST(grading_survives_each_failure)
{
    ak_fail_each(grade_answer, 100);
}

TEST(results_and_searches_survive_each_failure)
{
    ak_fail_each(keep_result, 5);
    ak_fail_each(search, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsing_survives_each_failure),
        cmocka_unit_test(grading_survives_each_failure),
        cmocka_unit_test(results_and_searches_survive_each_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
