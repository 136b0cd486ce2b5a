/* measure_read.c - reads `measures` of a suite: what is refused, and the name of each. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"

#define MEASURES_MAX 100

static const struct {
    const char *word;
    fmv_measure_kind kind;
    double low, high; /* values that the measure can have */
} words[] = {
    {"pass-rate", FMV_PASS_RATE, 0, 1},
    {"accuracy", FMV_ACCURACY, 0, 1},
    {"perplexity", FMV_PERPLEXITY, 1, 1e300},
    {"calibration-error", FMV_CALIBRATION, 0, 1},
    {"brier", FMV_BRIER, 0, 2},
    {"gap", FMV_GAP, 0, 1},
    {"ratio", FMV_RATIO, 0, 1},
};

static fm_status read_kind(fmv_measure_kind *out, const char *word, const char *where)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(words); i++)
        if (strcmp(words[i].word, word) == 0) {
            *out = words[i].kind;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL,
                   "%s: unknown measure '%.60s' (pass-rate, accuracy, perplexity, "
                   "calibration-error, brier, gap, ratio)",
                   where, word);
}

static fm_status number(double *out, const fm_json *o, const char *key, double low, double high,
                        bool whole, const char *where)
{
    const fm_json *v = fm_json_get(o, key);
    double x = fm_json_real(v, NAN);
    if (!v)
        return FM_OK;
    if (!(x >= low && x <= high) || (whole && floor(x) != x))
        return fm_fail(FM_EINVAL, "%s: '%s' wants a %snumber, %g to %g", where, key,
                       whole ? "whole " : "", low, high);
    *out = x;
    return FM_OK;
}

/* Reads bounds. A bound at the end of a measure's range would hold always, or never. */
static fm_status read_bounds(fmv_measure *m, const fm_json *o, const char *where)
{
    double low = words[m->kind].low, high = words[m->kind].high;
    FM_TRY(number(&m->at_least, o, "at-least", low, high, false, where));
    FM_TRY(number(&m->at_most, o, "at-most", low, high, false, where));
    if (isnan(m->at_least) && isnan(m->at_most))
        return fm_fail(FM_EINVAL, "%s: want 'at-least' or 'at-most'", where);
    if (m->at_least <= low || m->at_most >= high)
        return fm_fail(FM_EINVAL, "%s: every value keeps this bound (%g to %g)", where, low, high);
    if (m->at_least > m->at_most)
        return fm_fail(FM_EINVAL, "%s: nothing is both at least and at most that", where);
    return FM_OK;
}

static fm_status read_over(fmv_measure *m, const fm_json *over, const char *where)
{
    if (!over)
        return FM_OK;
    if (!fm_json_is(over, FM_JSON_OBJECT) || !fm_json_count(over))
        return fm_fail(FM_EINVAL, "%s: 'over' wants a mapping of tag to text", where);
    for (void *it = fm_json_iter(over); it; it = fm_json_next(over, it))
        if (!*fm_json_cstr(fm_json_iter_value(it), ""))
            return fm_fail(FM_EINVAL, "%s: over.%.60s wants text", where, fm_json_iter_key(it));
    m->over = over;
    return FM_OK;
}

static fm_status read_groups(fmv_measure *m, const fm_json *o, const char *where)
{
    const char *of = "pass-rate";
    bool grouped = m->kind == FMV_GAP || m->kind == FMV_RATIO;
    if (!grouped && (fm_json_get(o, "by") || fm_json_get(o, "of")))
        return fm_fail(FM_EINVAL, "%s: 'by' and 'of' go with gap and ratio", where);
    if (!grouped)
        return FM_OK;
    m->by = fm_json_cstr(fm_json_get(o, "by"), "");
    of = fm_json_cstr(fm_json_get(o, "of"), of);
    if (!*m->by)
        return fm_fail(FM_EINVAL, "%s: 'by' wants the tag whose values make the groups", where);
    FM_TRY(read_kind(&m->of, of, where));
    if (m->of != FMV_PASS_RATE && m->of != FMV_ACCURACY)
        return fm_fail(FM_EINVAL, "%s: 'of' wants pass-rate or accuracy", where);
    return FM_OK;
}

static fm_status name_it(fmv_measure *m, const fm_json *o, const char *word, const char *where)
{
    const fm_json *name = fm_json_get(o, "name");
    fm_buf b;
    if (name && (!*fm_json_cstr(name, "") || strlen(fm_json_cstr(name, "")) > FMV_CASE_NAME_MAX ||
                 strchr(fm_json_cstr(name, ""), '\n')))
        return fm_fail(FM_EINVAL, "%s: 'name' wants one line of 1 to %u bytes", where,
                       FMV_CASE_NAME_MAX);
    fm_buf_init(&b, 0);
    fm_buf_str(&b, fm_json_cstr(name, word));
    if (!name && m->by)
        fm_buf_printf(&b, " of %s by %s", words[m->of].word, m->by);
    for (void *it = name ? NULL : fm_json_iter(m->over); it; it = fm_json_next(m->over, it))
        fm_buf_printf(&b, " %s=%s", fm_json_iter_key(it), fm_json_cstr(fm_json_iter_value(it), ""));
    m->name = fm_buf_take(&b);
    return m->name ? FM_OK : FM_ENOMEM;
}

static fm_status read_measure(fmv_measure *m, const fm_json *o, const char *where)
{
    static const char *const known[] = {"name",       "measure",   "over",    "by",
                                        "of",         "at-least",  "at-most", "surely",
                                        "confidence", "min-count", "bins",    NULL};
    const fm_json *surely = fm_json_get(o, "surely");
    const char *word = fm_json_cstr(fm_json_get(o, "measure"), NULL);
    double min_count = 1, bins = 10;
    *m = (fmv_measure){.at_least = NAN, .at_most = NAN, .confidence = 0.95};
    if (!fm_json_is(o, FM_JSON_OBJECT) || !word)
        return fm_fail(FM_EINVAL, "%s: want a mapping with 'measure' and a bound", where);
    fm_status rc = fm_json_known_keys(o, known, where);
    FM_THEN(rc, read_kind(&m->kind, word, where));
    FM_THEN(rc, read_over(m, fm_json_get(o, "over"), where));
    FM_THEN(rc, read_groups(m, o, where));
    FM_THEN(rc, read_bounds(m, o, where));
    if (rc == FM_OK && surely && !fm_json_is(surely, FM_JSON_BOOL))
        rc = fm_fail(FM_EINVAL, "%s: 'surely' must be true or false", where);
    FM_THEN(rc, number(&m->confidence, o, "confidence", 0.5, 0.9999, false, where));
    FM_THEN(rc, number(&min_count, o, "min-count", 1, FMV_CASES_MAX, true, where));
    FM_THEN(rc, number(&bins, o, "bins", 1, 1000, true, where));
    if (rc == FM_OK && fm_json_get(o, "bins") && m->kind != FMV_CALIBRATION)
        rc = fm_fail(FM_EINVAL, "%s: 'bins' says nothing here: it goes with calibration-error",
                     where);
    m->surely = fm_json_bool(surely, false);
    m->min_count = (uint32_t)min_count;
    m->bins = (uint32_t)bins;
    return rc == FM_OK ? name_it(m, o, word, where) : rc;
}

static bool applies(const fmv_measure *m, const fmv_case *c)
{
    switch (m->kind == FMV_GAP || m->kind == FMV_RATIO ? m->of : m->kind) {
    case FMV_ACCURACY:
    case FMV_CALIBRATION:
    case FMV_BRIER:
        return c->scoring == FMV_SCORE_CHOICE && c->answer < c->choice_count;
    case FMV_PERPLEXITY:
        return c->scoring == FMV_SCORE_LOGPROB || c->scoring == FMV_SCORE_ROLLING ||
               (c->scoring == FMV_SCORE_CHOICE && c->answer < c->choice_count);
    case FMV_PASS_RATE:
    case FMV_GAP:
    case FMV_RATIO:
        break;
    }
    return true;
}

bool fmv_measure_covers(const fmv_measure *m, const fm_suite *s, size_t i)
{
    for (void *it = fm_json_iter(m->over); it; it = fm_json_next(m->over, it))
        if (!fm_suite_case_matches(s, i, fm_json_iter_key(it),
                                   fm_json_cstr(fm_json_iter_value(it), "")))
            return false;
    return applies(m, &s->cases[i]) && (!m->by || fmv_group_of(m, s, i));
}

const char *fmv_group_of(const fmv_measure *m, const fm_suite *s, size_t i)
{
    const char *tag = fm_suite_case_tag(s, i, m->by);
    if (strcmp(m->by, "capability") == 0)
        tag = *s->cases[i].capability ? s->cases[i].capability : NULL;
    return tag;
}

/* Checks that a measure's slice has enough cases: one of an empty slice could never be computed. */
static fm_status check_slice(const fmv_measure *m, const fm_suite *s, const char *where)
{
    size_t n = 0, other = 0;
    const char *first = NULL;
    for (size_t i = 0; i < s->count; i++) {
        if (!fmv_measure_covers(m, s, i))
            continue;
        n++;
        if (m->by && !first)
            first = fmv_group_of(m, s, i);
        other += m->by && strcmp(first, fmv_group_of(m, s, i)) != 0;
    }
    if (n < m->min_count)
        return fm_fail(FM_EINVAL, "%s: it is over %zu cases that can be measured so, and wants %u",
                       where, n, m->min_count);
    return m->by && !other ? fm_fail(FM_EINVAL, "%s: 'by' %.60s makes no two groups", where, m->by)
                           : FM_OK;
}

fm_status fmv_measures_read(fm_suite *s, const char *what)
{
    const fm_json *list = fm_json_get(s->doc, "measures");
    char where[512];
    fm_status rc = FM_OK;
    if (!list)
        return FM_OK;
    if (!fm_json_is(list, FM_JSON_ARRAY) || !fm_json_count(list) ||
        fm_json_count(list) > MEASURES_MAX)
        return fm_fail(FM_EINVAL, "%s: 'measures' wants a list of 1 to %d", what, MEASURES_MAX);
    s->measure = fm_calloc(fm_json_count(list), sizeof *s->measure);
    if (!s->measure)
        return FM_ENOMEM;
    for (size_t i = 0; i < fm_json_count(list) && rc == FM_OK; i++) {
        fmv_measure *m = &s->measure[i];
        snprintf(where, sizeof where, "%.200s: measures[%zu]", what, i);
        rc = read_measure(m, fm_json_at(list, i), where);
        s->measure_count++;
        FM_THEN(rc, check_slice(m, s, where));
        for (size_t k = 0; k < i && rc == FM_OK; k++)
            if (strcmp(s->measure[k].name, m->name) == 0)
                rc = fm_fail(FM_EINVAL, "%s: two measures are named '%s': give them names", where,
                             m->name);
    }
    return rc;
}

void fmv_measures_release(fm_suite *s)
{
    for (size_t i = 0; i < s->measure_count; i++)
        fm_free(s->measure[i].name);
    fm_free(s->measure);
}
