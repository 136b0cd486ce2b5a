/* text_match.c - comparison of texts, and regular expressions with limits against strangers. */
#include <ctype.h>
#include <string.h>

#include "store/base/text/utf8.h"
#include "testing/assert/text_match.h"

#define MATCH_LIMIT 1000000u
#define TEXT_LIMIT 10000000u /* steps in vain of all matches in one text */
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
    size_t n = fm_utf8_clip(s.data, s.len, max);
    return (fm_span){s.data ? s.data : (const uint8_t *)"", n};
}

fm_status fmv_pattern_compile(fm_regex **out, const char *pattern, bool ignore_case,
                              const char *where)
{
    *out = NULL;
    if (strlen(pattern) > PATTERN_MAX_BYTES)
        return fm_fail(FM_ELIMIT, "%s: a regex is longer than %u bytes", where, PATTERN_MAX_BYTES);
    return fm_regex_new(out, fm_span_str(pattern), ignore_case ? FM_REGEX_CASELESS : 0u, where);
}

fm_status fmv_pattern_found(const fm_regex *regex, fm_span text, bool *found)
{
    fm_regex_run *run = NULL;
    size_t begin, end;
    *found = false;
    fm_status rc = fm_regex_run_new(&run, MATCH_LIMIT, TEXT_LIMIT);
    FM_THEN(rc, fm_regex_next(regex, run, text, 0, found, &begin, &end));
    fm_regex_run_free(run);
    return rc;
}

fm_status fmv_pattern_run(fm_regex_run **out)
{
    return fm_regex_run_new(out, MATCH_LIMIT / 10, TEXT_LIMIT);
}

fm_status fmv_pattern_next(const fm_regex *regex, fm_regex_run *run, fm_span text, size_t *at,
                           fm_span *got, bool *found)
{
    size_t begin, end, groups;
    fm_status rc = FM_OK;
    *found = false;
    if (*at <= text.len)
        rc = fm_regex_next(regex, run, text, *at, found, &begin, &end);
    if (*found) {
        const size_t *span = fm_regex_groups(run, &groups);
        size_t g = groups > 1 ? 1 : 0;
        while (g && g + 1 < groups && span[2 * g] == span[2 * g + 1])
            g++;
        *got = span[2 * g] == SIZE_MAX
                   ? (fm_span){(const uint8_t *)"", 0}
                   : fm_span_of(text.data + span[2 * g], span[2 * g + 1] - span[2 * g]);
        *at = end;
        if (end == begin)
            fmv_next_point(text, at);
    }
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

/* Only ASCII letters are folded: more would need a locale. */
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
    uint32_t point = 0xFFFD;
    size_t n = fm_utf8_len(s.data + *at, s.len - *at);
    if (n)
        fm_utf8_next(s.data + *at, &point);
    *at += n ? n : 1;
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
