/* Answers: no text crashes or hangs an assertion; each holds exactly when its negation does not (a
 * search that was given up is a fail, and an error of its negation), and its score lies in [0, 1].
 */
#include <string.h>

#include "testing/assert/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char suite[] =
    "suite: s\ncases:\n"
    "  - {name: a, prompt: p, expect: [{equals: a}, {icontains: a}, {contains-any: [a, b]},\n"
    "     {starts-with: a}, {ends-with: a}, {regex: '^(a|b)*$'}, {json: {a: 1}}, {is-json: true},\n"
    "     {contains-json: {type: array, uniqueItems: true, items: {maxLength: 3}}},\n"
    "     {is-json: {$ref: '#/$defs/t', $defs: {t: {properties: {k: {items: {$ref: "
    "'#/$defs/t'}}},\n"
    "     required: [v], additionalProperties: false}}}}, {is-xml: [a.b]}, {contains-xml: true},\n"
    "     {is-html: true}, {contains-html: true}, {levenshtein: abc}, {rouge-n: a b c, n: 2},\n"
    "     {rouge-l: a b c}, {bleu: ['a, b c.', 1.5 - x]}, {gleu: a b}, {word-count: 3},\n"
    "     {length: 3}, {length-bytes: 3}]}\n"
    "  - {name: b, prompt: p, expect: [{not-equals: a}, {not-icontains: a},\n"
    "     {not-contains-any: [a, b]}, {not-starts-with: a}, {not-ends-with: a},\n"
    "     {not-regex: '^(a|b)*$'}, {not-json: {a: 1}}, {not-is-json: true},\n"
    "     {not-contains-json: {type: array, uniqueItems: true, items: {maxLength: 3}}},\n"
    "     {not-is-json: {$ref: '#/$defs/t', $defs: {t: {properties: {k: {items:\n"
    "     {$ref: '#/$defs/t'}}}, required: [v], additionalProperties: false}}}},\n"
    "     {not-is-xml: [a.b]}, {not-contains-xml: true}, {not-is-html: true},\n"
    "     {not-contains-html: true}, {not-levenshtein: abc}, {not-rouge-n: a b c, n: 2},\n"
    "     {not-rouge-l: a b c}, {not-bleu: ['a, b c.', 1.5 - x]}, {not-gleu: a b},\n"
    "     {not-word-count: 3}, {not-length: 3}, {not-length-bytes: 3}]}\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fm_suite *s;
    fm_buf detail;

    if (!s)
        fm_assert(fm_suite_parse(&s, fm_span_str(suite), "fuzz") == FM_OK);
    fm_assert(s->cases[0].assertion_count == s->cases[1].assertion_count);
    fm_buf_init(&detail, 0);
    for (size_t i = 0; i < s->cases[0].assertion_count; i++) {
        bool yes = false, no = false;
        fm_buf_clear(&detail);
        fm_status rc =
            fmv_assert_check(&s->cases[0].assertion[i], fm_span_of(data, size), &yes, &detail);
        fm_assert(rc < 0 || yes == (detail.len == 0));
        fm_buf_clear(&detail);
        fm_status again =
            fmv_assert_check(&s->cases[1].assertion[i], fm_span_of(data, size), &no, &detail);
        bool gave_up =
            rc == FM_OK && !yes && again == FM_ELIMIT; /* found nothing in bounded time */
        fm_assert(gave_up || (rc == again && (rc < 0 || yes != no)));
        fm_error_clear();
    }
    fm_buf_release(&detail);
    return 0;
}
