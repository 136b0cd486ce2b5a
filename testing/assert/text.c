/* text.c - assertions on the text of an answer, its length and its end. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing/assert/assert.h"

enum { EQUALS, ONE_OF, CONTAINS, ANY, ALL, STARTS, ENDS, WORDS, LENGTH, BYTES };

static fm_status read_text(fmv_assertion *a, const char *where)
{
    return fmv_want_text(a, a->type->how == EQUALS, where);
}

static fm_status read_texts(fmv_assertion *a, const char *where)
{
    FM_TRY(fmv_want_texts(a, false, where));
    for (size_t i = 0; a->type->how != ONE_OF && i < fm_json_count(a->value); i++)
        if (!fmv_trim(fm_json_str(fm_json_at(a->value, i))).len)
            return fm_fail(FM_EINVAL, "%s: expect.%s[%zu] is empty: every answer would do", where,
                           a->type->word, i);
    return FM_OK;
}

static fm_status check_texts(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    fm_span trimmed = fmv_trim(said->text);
    size_t n = fmv_text_count(a->value), found = 0;
    for (size_t i = 0; i < n; i++) {
        fm_span want = fmv_text_at(a->value, i);
        found += a->type->how == EQUALS || a->type->how == ONE_OF
                     ? fmv_text_equal(trimmed, fmv_trim(want), a->ignore_case)
                     : fmv_text_contains(said->text, want, a->ignore_case);
    }
    fmv_set_grade(out, a->type->how == ALL ? found == n : found > 0);
    return FM_OK;
}

/* Checks how the answer starts or ends; white space at this end of both texts is ignored. */
static fm_status check_end(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    fm_span text = fmv_trim(said->text), want = fm_json_str(a->value);
    bool start = a->type->how == STARTS;
    while (want.len && start && isspace(want.data[0]))
        want = (fm_span){want.data + 1, want.len - 1};
    while (want.len && !start && isspace(want.data[want.len - 1]))
        want.len--;
    fm_span part = {text.data, FM_MIN(want.len, text.len)};
    if (!start && text.len)
        part.data += text.len - part.len;
    fmv_set_grade(out, fmv_text_equal(part, want, a->ignore_case));
    return FM_OK;
}

static fm_status read_regex(fmv_assertion *a, const char *where)
{
    FM_TRY(fmv_want_text(a, false, where));
    return fmv_pattern_compile(&a->regex, fm_json_cstr(a->value, ""), a->ignore_case, where);
}

static fm_status check_regex(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    bool found = false;
    fm_status rc = fmv_pattern_found(a->regex, said->text, &found);
    fmv_set_grade(out, found);
    return rc;
}

/* Reads a whole number, or {min, max}. */
static fm_status read_size(fmv_assertion *a, const char *where)
{
    static const char *const known[] = {"min", "max", NULL};
    const fm_json *v = a->value, *low = fm_json_get(v, "min"), *high = fm_json_get(v, "max");
    FM_TRY(fm_json_known_keys(v, known, where));
    if (fm_json_is(v, FM_JSON_INT))
        low = high = v;
    if ((!low && !high) || (low && (!fm_json_is(low, FM_JSON_INT) || fm_json_int(low, 0) < 0)) ||
        (high && (!fm_json_is(high, FM_JSON_INT) || fm_json_int(high, 0) < 0)))
        return fm_fail(FM_EINVAL, "%s: expect.%s wants a whole number, or {min: .., max: ..}",
                       where, a->type->word);
    a->low = low ? fm_json_real(low, 0) : 0;
    a->high = high ? fm_json_real(high, 0) : (double)INFINITY;
    if (a->low > a->high || (a->low <= 0 && isinf(a->high)))
        return fm_fail(FM_EINVAL, "%s: expect.%s: %s answer is within it", where, a->type->word,
                       a->low > a->high ? "no" : "every");
    return FM_OK;
}

static fm_status check_size(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    size_t n = a->type->how == WORDS    ? fmv_count_words(said->text)
               : a->type->how == LENGTH ? fmv_count_points(said->text)
                                        : said->text.len;
    fmv_set_grade(out, (double)n >= a->low && (double)n <= a->high);
    snprintf(out->note, sizeof out->note, "it has %zu", n);
    return FM_OK;
}

static fm_status read_finish(fmv_assertion *a, const char *where)
{
    FM_TRY(fmv_want_texts(a, true, where));
    for (size_t i = 0; i < fmv_text_count(a->value); i++) {
        fm_span s = fmv_text_at(a->value, i);
        if (!fm_span_eq_str(s, "stop") && !fm_span_eq_str(s, "length"))
            return fm_fail(FM_EINVAL, "%s: expect.finish-reason '%.40s' is not stop or length",
                           where, (const char *)s.data);
    }
    if (fmv_text_count(a->value) > 1)
        return fm_fail(FM_EINVAL, "%s: expect.finish-reason wants one of stop and length", where);
    return FM_OK;
}

static fm_status check_finish(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    if (!said->finish[0])
        return fm_fail(FM_EUNSUPPORTED, "how the answer ended is not known");
    fmv_set_grade(out, fm_span_eq_str(fmv_text_at(a->value, 0), said->finish));
    snprintf(out->note, sizeof out->note, "it ended by %.20s", said->finish);
    return FM_OK;
}

#define TEXT(w, h, f, r, c)                                                                        \
    {                                                                                              \
        .word = w, .kind = FMV_TEXTS, .how = h, .flags = f, .threshold = NAN, .read = r,           \
        .check = c                                                                                 \
    }
#define RULE(w, h, r, c)                                                                           \
    {                                                                                              \
        .word = w, .kind = FMV_RULE, .how = h, .threshold = NAN, .read = r, .check = c             \
    }

const fmv_assert_type fmv_assert_text[] = {
    TEXT("equals", EQUALS, 0, read_text, check_texts),
    TEXT("contains", CONTAINS, 0, read_text, check_texts),
    TEXT("icontains", CONTAINS, FMV_ICASE, read_text, check_texts),
    TEXT("contains-any", ANY, 0, read_texts, check_texts),
    TEXT("contains-all", ALL, 0, read_texts, check_texts),
    TEXT("icontains-any", ANY, FMV_ICASE, read_texts, check_texts),
    TEXT("icontains-all", ALL, FMV_ICASE, read_texts, check_texts),
    TEXT("starts-with", STARTS, 0, read_text, check_end),
    TEXT("ends-with", ENDS, 0, read_text, check_end),
    {.word = "regex",
     .kind = FMV_REGEX,
     .threshold = NAN,
     .read = read_regex,
     .check = check_regex},
    TEXT("one-of", ONE_OF, 0, read_texts, check_texts),
    RULE("word-count", WORDS, read_size, check_size),
    RULE("length", LENGTH, read_size, check_size),
    RULE("length-bytes", BYTES, read_size, check_size),
    RULE("finish-reason", 0, read_finish, check_finish),
    {0},
};
