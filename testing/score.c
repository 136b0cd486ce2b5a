/* score.c - assertions on a text. Regular expressions by PCRE2 with match limits: a suite is a file
 * from a stranger too. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <string.h>

#include "testing/internal.h"

#define MATCH_LIMIT 1000000u
#define HEAP_LIMIT_KIB 65536u
#define PATTERN_MAX_BYTES 8192u
#define SHOWN_BYTES ((size_t)200) /* of an answer in a detail */

fm_span fmi_trim(fm_span s)
{
    while (s.len && isspace(s.data[0])) {
        s.data++;
        s.len--;
    }
    while (s.len && isspace(s.data[s.len - 1]))
        s.len--;
    return s;
}

fm_span fmi_clip(fm_span s, size_t max)
{
    size_t n = FM_MIN(s.len, max);
    while (n && n < s.len && (s.data[n] & 0xC0) == 0x80)
        n--;
    return (fm_span){s.data ? s.data : (const uint8_t *)"", n};
}

fm_status fmi_pattern_compile(void **out, const char *pattern, bool ignore_case, const char *where)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    *out = NULL;
    if (strlen(pattern) > PATTERN_MAX_BYTES)
        return fm_fail(FM_ELIMIT, "%s: a regex is longer than %u bytes", where, PATTERN_MAX_BYTES);
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                             (ignore_case ? PCRE2_CASELESS : 0u),
                         &code, &at, NULL);
    if (*out)
        return FM_OK;
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(code, text, sizeof text);
    return fm_fail(FM_EINVAL, "%s: regex '%.100s': %s at offset %zu", where, pattern,
                   (const char *)text, (size_t)at);
}

void fmi_pattern_free(void *regex)
{
    pcre2_code_free(regex);
}

static fm_status regex_found(const fmi_assertion *a, fm_span text, bool *found)
{
    pcre2_match_context *ctx = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(a->regex, NULL);
    int n = PCRE2_ERROR_NOMEMORY;
    if (ctx && data) {
        pcre2_set_match_limit(ctx, MATCH_LIMIT);
        pcre2_set_heap_limit(ctx, HEAP_LIMIT_KIB);
        n = pcre2_match(a->regex, text.data ? text.data : (PCRE2_SPTR) "", text.len, 0, 0, data,
                        ctx);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(ctx);
    *found = n >= 0;
    if (n >= 0 || n == PCRE2_ERROR_NOMATCH)
        return FM_OK;
    return n == PCRE2_ERROR_NOMEMORY
               ? FM_ENOMEM
               : fm_fail(FM_ELIMIT, "regex '%.100s' gave up on the answer (PCRE2 error %d)",
                         fm_json_cstr(a->value, ""), n);
}

static bool bytes_equal(const uint8_t *a, const uint8_t *b, size_t n, bool ignore_case)
{
    for (size_t i = 0; i < n; i++) {
        int x = a[i], y = b[i];
        if (ignore_case && x < 0x80 && y < 0x80) {
            x = tolower(x);
            y = tolower(y);
        }
        if (x != y)
            return false;
    }
    return true;
}

/* ASCII letters alone are folded: more would need a locale. */
bool fmi_text_equal(fm_span a, fm_span b, bool ignore_case)
{
    return a.len == b.len && bytes_equal(a.data, b.data, a.len, ignore_case);
}

static bool span_contains(fm_span text, fm_span part, bool ignore_case)
{
    for (size_t i = 0; i + part.len <= text.len; i++)
        if (bytes_equal(text.data + i, part.data, part.len, ignore_case))
            return true;
    return false;
}

/* json: true = any JSON value; a mapping: an object that has these fields with these values. */
static fm_status json_fits(bool *out, fm_span text, const fm_json *want)
{
    fm_json *got = NULL;
    fm_status rc = fm_json_parse(&got, text, "answer");
    if (rc == FM_ENOMEM)
        return rc;
    *out = false;
    if (rc < 0) {
        fm_error_clear();
        return FM_OK;
    }
    bool fits = !fm_json_is(want, FM_JSON_OBJECT) || fm_json_is(got, FM_JSON_OBJECT);
    for (void *it = fm_json_iter(want); fits && it; it = fm_json_next(want, it))
        fits = fm_json_equal(fm_json_get(got, fm_json_iter_key(it)), fm_json_iter_value(it));
    fm_json_free(got);
    *out = fits;
    return FM_OK;
}

static bool any_equal(const fm_json *list, fm_span text, bool ignore_case)
{
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (fmi_text_equal(fmi_trim(fm_json_str(fm_json_at(list, i))), text, ignore_case))
            return true;
    return false;
}

fm_status fmi_assert_check(const fmi_assertion *a, bool ignore_case, fm_span text, bool *holds,
                           fm_buf *detail)
{
    static const char *const word[] = {"equals", "contains", "starts-with",
                                       "regex",  "one-of",   "json"};
    fm_span want = fm_json_str(a->value), trimmed = fmi_trim(text);
    bool is = false;
    fm_status rc = FM_OK;
    switch (a->kind) {
    case FMI_EQUALS:
        is = fmi_text_equal(trimmed, fmi_trim(want), ignore_case);
        break;
    case FMI_CONTAINS:
        is = span_contains(text, want, ignore_case);
        break;
    case FMI_STARTS_WITH:
        while (want.len && isspace(want.data[0])) /* the answer's are trimmed too */
            want = (fm_span){want.data + 1, want.len - 1};
        is = trimmed.len >= want.len && bytes_equal(trimmed.data, want.data, want.len, ignore_case);
        break;
    case FMI_REGEX:
        rc = regex_found(a, text, &is);
        break;
    case FMI_ONE_OF:
        is = any_equal(a->value, trimmed, ignore_case);
        break;
    case FMI_JSON:
        rc = json_fits(&is, trimmed, a->value);
        break;
    }
    *holds = is != a->negated;
    if (rc == FM_OK && !*holds && detail->len == 0) {
        fm_buf shown;
        fm_span said = fmi_clip(text, SHOWN_BYTES);
        fm_buf_init(&shown, 0);
        rc = fm_json_write(&shown, a->value, FM_JSON_COMPACT);
        fm_buf_printf(detail, "expected %s%s %s, got \"%.*s\"", a->negated ? "not-" : "",
                      word[a->kind], fm_buf_cstr(&shown), (int)said.len, (const char *)said.data);
        fm_buf_release(&shown);
    }
    return rc;
}
