/* filters.c - reads `filter` of a case. run/answers.c applies filters. */
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"

static fm_status read_regex(fmv_case *c, fmv_filter *f, const fm_json *v, const char *where)
{
    static const char *const known[] = {"regex", "match", "fallback", NULL};
    const fm_json *match = fm_json_get(v, "match"), *fallback = fm_json_get(v, "fallback");
    f->kind = FMV_FILTER_REGEX;
    f->pattern = fm_json_cstr(fm_json_get(v, "regex"), "");
    f->fallback = fm_json_cstr(fallback, "[invalid]");
    f->match = (long)fm_json_int(match, 0);
    FM_TRY(fm_json_known_keys(v, known, where));
    if (!*f->pattern)
        return fm_fail(FM_EINVAL, "%s: filter: 'regex' wants a pattern", where);
    if (fallback && !fm_json_is(fallback, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: filter: 'fallback' must be a string", where);
    if (match && (!fm_json_is(match, FM_JSON_INT) || f->match < -100 || f->match > 100))
        return fm_fail(FM_EINVAL, "%s: filter: 'match' wants a whole number, -100 to 100", where);
    return fmv_pattern_compile(&f->regex, f->pattern, c->ignore_case, where);
}

static fm_status read_filter(fmv_case *c, fmv_filter *f, const fm_json *v, const char *where)
{
    static const struct {
        const char *word;
        fmv_filter_kind kind;
    } words[] = {{"strip", FMV_STRIP},
                 {"lowercase", FMV_LOWERCASE},
                 {"take-first", FMV_TAKE_FIRST},
                 {"majority", FMV_MAJORITY}};
    if (fm_json_is(v, FM_JSON_OBJECT))
        return read_regex(c, f, v, where);
    for (size_t i = 0; i < FM_ARRAY_LEN(words); i++)
        if (strcmp(fm_json_cstr(v, ""), words[i].word) == 0) {
            f->kind = words[i].kind;
            return FM_OK;
        }
    return fm_fail(
        FM_EINVAL,
        "%s: filter '%.40s' is not strip, lowercase, take-first, majority or {regex: ..}", where,
        fm_json_cstr(v, ""));
}

fm_status fmv_filters_read(fmv_case *c, const char *where)
{
    const fm_json *v = fm_json_get(c->doc, "filter");
    bool majority = false;
    fm_status rc = FM_OK;
    if (v &&
        (!fm_json_is(v, FM_JSON_ARRAY) || !fm_json_count(v) || fm_json_count(v) > FMV_FILTERS_MAX))
        return fm_fail(FM_EINVAL, "%s: 'filter' wants a list of 1 to %u filters", where,
                       FMV_FILTERS_MAX);
    if (v && !(c->filter = fm_calloc(fm_json_count(v), sizeof *c->filter)))
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(v); i++) {
        rc = read_filter(c, &c->filter[i], fm_json_at(v, i), where);
        c->filter_count = i + 1;
        majority = majority || c->filter[i].kind == FMV_MAJORITY;
    }
    if (rc == FM_OK && majority != (c->repeats > 1))
        rc = fm_fail(FM_EINVAL, "%s: filter majority and generate.repeats go together", where);
    if (rc == FM_OK && c->repeats > 1 && !(c->sampling.temperature > 0))
        rc = fm_fail(FM_EINVAL, "%s: generate.repeats wants a temperature: all would be the same",
                     where);
    return rc;
}

void fmv_filters_release(fmv_case *c)
{
    for (size_t i = 0; i < c->filter_count; i++)
        fm_regex_free(c->filter[i].regex);
    fm_free(c->filter);
    c->filter = NULL;
    c->filter_count = 0;
}
