/* text_match.c - texts, and regular expressions by PCRE2 with match limits: a suite is a file from a
 * stranger too. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctype.h>
#include <string.h>

#include "testing/assert/text_match.h"

#define MATCH_LIMIT 1000000u
#define HEAP_LIMIT_KIB 65536u
#define PATTERN_MAX_BYTES 8192u

fm_span fmv_trim(fm_span s)
{
    while (s.len && isspace(s.data[0])) {
        s.data++;
        s.len--;
    }
    while (s.len && isspace(s.data[s.len - 1]))
        s.len--;
    return s;
}

fm_span fmv_clip(fm_span s, size_t max)
{
    size_t n = FM_MIN(s.len, max);
    while (n && n < s.len && (s.data[n] & 0xC0) == 0x80)
        n--;
    return (fm_span){s.data ? s.data : (const uint8_t *)"", n};
}

fm_status fmv_pattern_compile(void **out, const char *pattern, bool ignore_case, const char *where)
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

void fmv_pattern_free(void *regex)
{
    pcre2_code_free(regex);
}

/* got: the groups' beginnings and ends, where wanted. */
static fm_status match_at(const void *regex, const char *pattern, fm_span text, size_t from,
                          uint32_t limit, pcre2_match_data *data, int *n)
{
    pcre2_match_context *ctx = pcre2_match_context_create(NULL);
    *n = PCRE2_ERROR_NOMEMORY;
    if (ctx && data) {
        pcre2_set_match_limit(ctx, limit);
        pcre2_set_heap_limit(ctx, HEAP_LIMIT_KIB);
        *n = pcre2_match(regex, text.data ? text.data : (PCRE2_SPTR) "", text.len, from, 0, data,
                         ctx);
    }
    pcre2_match_context_free(ctx);
    if (*n >= 0 || *n == PCRE2_ERROR_NOMATCH)
        return FM_OK;
    return *n == PCRE2_ERROR_NOMEMORY
               ? FM_ENOMEM
               : fm_fail(FM_ELIMIT, "regex '%.100s' gave up on the answer (PCRE2 error %d)",
                         pattern, *n);
}

fm_status fmv_pattern_found(const void *regex, const char *pattern, fm_span text, bool *found)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex, NULL);
    int n;
    fm_status rc = match_at(regex, pattern, text, 0, MATCH_LIMIT, data, &n);
    pcre2_match_data_free(data);
    *found = n >= 0;
    return rc;
}

fm_status fmv_pattern_next(const void *regex, const char *pattern, fm_span text, size_t *at,
                           fm_span *got, bool *found)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex, NULL);
    int n = -1;
    *found = false;
    fm_status rc =
        *at > text.len ? FM_OK : match_at(regex, pattern, text, *at, MATCH_LIMIT / 10, data, &n);
    if (rc == FM_OK && n > 0) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(data);
        size_t groups = pcre2_get_ovector_count(data), g = groups > 1 ? 1 : 0;
        while (g && g + 1 < (size_t)n &&
               (span[2 * g] == PCRE2_UNSET || span[2 * g] == span[2 * g + 1]))
            g++;
        bool has = g < (size_t)n && span[2 * g] != PCRE2_UNSET;
        *got = has ? fm_span_of(text.data + span[2 * g], span[2 * g + 1] - span[2 * g])
                   : (fm_span){(const uint8_t *)"", 0};
        *at = span[1];
        if (span[1] == span[0])
            fmv_next_point(text, at);
        *found = true;
    }
    pcre2_match_data_free(data);
    return rc;
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
bool fmv_text_equal(fm_span a, fm_span b, bool ignore_case)
{
    return a.len == b.len && bytes_equal(a.data, b.data, a.len, ignore_case);
}

bool fmv_text_contains(fm_span text, fm_span part, bool ignore_case)
{
    for (size_t i = 0; i + part.len <= text.len; i++)
        if (bytes_equal(text.data + i, part.data, part.len, ignore_case))
            return true;
    return false;
}

/* ---- code points and words ---- */

uint32_t fmv_next_point(fm_span s, size_t *at)
{
    if (*at >= s.len) {
        ++*at;
        return 0;
    }
    const uint8_t *p = s.data + *at;
    size_t more = *p >= 0xF0 ? 3 : *p >= 0xE0 ? 2 : *p >= 0xC0 ? 1 : 0, left = s.len - *at;
    uint32_t point = *p & (more == 3 ? 0x07u : more == 2 ? 0x0Fu : more == 1 ? 0x1Fu : 0xFFu);
    for (size_t i = 1; i <= more; i++) {
        if (i >= left || (p[i] & 0xC0) != 0x80) {
            ++*at;
            return *p;
        }
        point = point << 6 | (p[i] & 0x3Fu);
    }
    *at += more + 1;
    return point;
}

bool fmv_is_blank(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t fmv_count_points(fm_span s)
{
    size_t n = 0;
    for (size_t at = 0; at < s.len; n++)
        fmv_next_point(s, &at);
    return n;
}

size_t fmv_count_words(fm_span s)
{
    size_t n = 0;
    bool inside = false;
    for (size_t at = 0; at < s.len;) {
        bool blank = fmv_is_blank(fmv_next_point(s, &at));
        n += !blank && !inside;
        inside = !blank;
    }
    return n;
}
