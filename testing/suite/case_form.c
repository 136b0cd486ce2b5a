/* case_form.c - reads capability and tags of a case, and what DIR compares with. */
#include <string.h>

#include "testing/suite/internal.h"

#define TAGS_MAX 32

static const char *const kinds[] = {"MFT", "INV", "DIR"};

static fm_status read_tags(fmv_case *c, const char *where)
{
    const fm_json *tags = fm_json_get(c->doc, "tags");
    if (!tags)
        return FM_OK;
    if (!fm_json_is(tags, FM_JSON_OBJECT) || !fm_json_count(tags) || fm_json_count(tags) > TAGS_MAX)
        return fm_fail(FM_EINVAL, "%s: 'tags' wants a mapping of 1 to %d names to text", where,
                       TAGS_MAX);
    for (void *it = fm_json_iter(tags); it; it = fm_json_next(tags, it)) {
        const char *key = fm_json_iter_key(it), *value = fm_json_cstr(fm_json_iter_value(it), "");
        if (!*value)
            return fm_fail(FM_EINVAL, "%s: tags.%.60s wants text (quote numbers)", where, key);
        if (!*key || strchr(key, '=') || !strcmp(key, "kind") || !strcmp(key, "capability") ||
            !strcmp(key, "name"))
            return fm_fail(FM_EINVAL,
                           "%s: a tag cannot be named '%.60s' (kind, capability and name are there "
                           "already, '=' parts a slice)",
                           where, key);
    }
    c->tags = tags;
    return FM_OK;
}

fm_status fmv_form_read(fmv_case *c, const char *where)
{
    const fm_json *capability = fm_json_get(c->doc, "capability");
    const fm_json *against = fm_json_get(c->doc, "against");
    const char *word = fm_json_cstr(against, "");
    c->capability = fm_json_cstr(capability, "");
    if (capability && (!*c->capability || strlen(c->capability) > FMV_CASE_NAME_MAX))
        return fm_fail(FM_EINVAL, "%s: 'capability' wants text of 1 to %u bytes", where,
                       FMV_CASE_NAME_MAX);
    c->against_first = strcmp(word, "first") == 0;
    if (against && c->kind != FMV_DIR)
        return fm_fail(FM_EINVAL, "%s: 'against' says nothing here: it goes with kind DIR", where);
    if (against && !c->against_first && strcmp(word, "previous") != 0)
        return fm_fail(FM_EINVAL, "%s: 'against' wants first or previous", where);
    FM_TRY(read_tags(c, where));
    return fmv_pairs_read(c, where);
}

fm_case_kind fm_suite_case_kind(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return (fm_case_kind)s->cases[i].kind;
}

const char *fmv_case_kind_name(const fm_suite *s, size_t i)
{
    return kinds[s->cases[i].kind];
}

size_t fm_suite_case_choices(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return s->cases[i].scoring == FMV_SCORE_CHOICE ? s->cases[i].choice_count : 0;
}

const char *fm_suite_case_capability(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return s->cases[i].capability;
}

const char *fm_suite_case_tag(const fm_suite *s, size_t i, const char *key)
{
    fm_assert(i < s->count);
    return fm_json_cstr(fm_json_get(s->cases[i].tags, key), NULL);
}

bool fm_suite_case_matches(const fm_suite *s, size_t i, const char *key, const char *value)
{
    const char *own = fm_suite_case_tag(s, i, key);
    if (strcmp(key, "kind") == 0)
        own = kinds[s->cases[i].kind];
    else if (strcmp(key, "capability") == 0)
        own = s->cases[i].capability;
    else if (strcmp(key, "name") == 0)
        own = s->cases[i].name;
    return own && strcmp(own, value) == 0;
}
