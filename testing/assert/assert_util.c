/* assert_util.c - helpers of all families: texts and checks of a value, the grade of an answer. */
#include "testing/assert/assert.h"

#include <stdio.h>

fm_span fmv_text_at(const fm_json *v, size_t i)
{
    return fm_json_str(fm_json_is(v, FM_JSON_ARRAY) ? fm_json_at(v, i) : v);
}

size_t fmv_text_count(const fm_json *v)
{
    return fm_json_is(v, FM_JSON_ARRAY) ? fm_json_count(v) : 1;
}

bool fmv_is_number(const fm_json *v)
{
    return fm_json_is(v, FM_JSON_INT) || fm_json_is(v, FM_JSON_REAL);
}

void fmv_set_grade(fmv_grade *out, bool holds)
{
    out->holds = holds;
    out->score = holds ? 1 : 0;
}

void fmv_grade_at_least(fmv_grade *out, double score, double bound)
{
    out->score = FM_MIN(FM_MAX(score, 0.0), 1.0);
    out->holds = score >= bound;
    snprintf(out->note, sizeof out->note, "%.4g is %s %g", score,
             out->holds ? "not below" : "below", bound);
}

static fm_status refuse(const fmv_assertion *a, const char *where, const char *what)
{
    return fm_fail(FM_EINVAL, "%s: expect.%s%s %s", where, a->negated ? "not-" : "", a->type->word,
                   what);
}

fm_status fmv_want_text(const fmv_assertion *a, bool may_be_empty, const char *where)
{
    if (!fm_json_is(a->value, FM_JSON_STRING))
        return refuse(a, where, "wants a string (quote numbers)");
    if (!may_be_empty && !fmv_trim(fm_json_str(a->value)).len)
        return refuse(a, where, "is empty: every answer would do");
    return FM_OK;
}

fm_status fmv_want_texts(const fmv_assertion *a, bool one_will_do, const char *where)
{
    bool list = fm_json_is(a->value, FM_JSON_ARRAY) && fm_json_count(a->value);
    if (one_will_do && !fm_json_is(a->value, FM_JSON_ARRAY))
        return fmv_want_text(a, false, where);
    for (size_t i = 0; list && i < fm_json_count(a->value); i++)
        list = fm_json_is(fm_json_at(a->value, i), FM_JSON_STRING);
    return list ? FM_OK : refuse(a, where, "wants a list of strings (quote numbers)");
}
