/* changes.c - changes of a descendant to a suite that it inherits: cases overridden, added, waived.
 *
 * Each change is a file of its own next to the suite, so that git keeps who made it and why, and a
 * new version of the suite does not lose the changes of descendants. The documents are applied to
 * the suite's document before cases are made from it: an added case may use everything that the
 * suite's own cases may. */
#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/text/yaml.h"
#include "testing/suite/internal.h"

#define CHANGES_MAX 64u /* most documents over one suite */
#define REASON_MAX 2000u
#define WORD_MAX 200u

/* ---- one document ---- */

static fm_status check_text(const fm_json *v, const char *key, size_t max, bool needed,
                            const char *where)
{
    fm_span s = fm_json_str(v);
    if (!v && !needed)
        return FM_OK;
    if (!s.data || s.len == 0 || s.len > max || memchr(s.data, 0, s.len))
        return fm_fail(FM_EINVAL, "%s: '%s' must be a text of 1 to %zu bytes", where, key, max);
    return FM_OK;
}

static fm_status check_waiver(const fm_json *w, const char *what)
{
    static const char *const known[] = {"case", "reason", "until", "owner", NULL};
    char where[512];
    const char *name = fm_json_cstr(fm_json_get(w, "case"), "");
    if (!fm_json_is(w, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: waive: want mappings with 'case' and 'reason'", what);
    snprintf(where, sizeof where, "%.200s: waive '%.200s'", what, name);
    FM_TRY(fm_json_known_keys(w, known, where));
    FM_TRY(check_text(fm_json_get(w, "case"), "case", FMV_CASE_NAME_MAX, true, where));
    FM_TRY(check_text(fm_json_get(w, "reason"), "reason", REASON_MAX, true, where));
    FM_TRY(check_text(fm_json_get(w, "until"), "until", WORD_MAX, false, where));
    return check_text(fm_json_get(w, "owner"), "owner", WORD_MAX, false, where);
}

static fm_status check_list(const fm_json *doc, const char *key, const char *what)
{
    const fm_json *list = fm_json_get(doc, key);
    if (list && !fm_json_is(list, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: '%s' must be a list", what, key);
    if (fm_json_count(list) > FMV_CASES_MAX)
        return fm_fail(FM_ELIMIT, "%s: '%s' has more than %u entries", what, key, FMV_CASES_MAX);
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (!fm_json_is(fm_json_at(list, i), FM_JSON_OBJECT))
            return fm_fail(FM_EINVAL, "%s: '%s' is a list of mappings", what, key);
    return FM_OK;
}

static fm_status check_changes(const fm_json *doc, const char *what)
{
    static const char *const known[] = {"changes", "topic",     "note",  "override",
                                        "add",     "templates", "waive", NULL};
    static const char *const lists[] = {"override", "add", "templates", "waive"};
    size_t changes = 0;
    fm_status rc = fm_json_known_keys(doc, known, what);
    if (rc == FM_OK && !fmv_is_name(fm_json_cstr(fm_json_get(doc, "changes"), "")))
        rc = fm_fail(FM_EINVAL, "%s: 'changes' wants the name of a suite", what);
    if (rc == FM_OK && !fmv_is_name(fm_json_cstr(fm_json_get(doc, "topic"), "")))
        rc = fm_fail(FM_EINVAL, "%s: 'topic' wants 1 to 64 of a-z A-Z 0-9 - _", what);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(lists); i++) {
        rc = check_list(doc, lists[i], what);
        changes += fm_json_count(fm_json_get(doc, lists[i]));
    }
    const fm_json *waive = fm_json_get(doc, "waive");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(waive); i++)
        rc = check_waiver(fm_json_at(waive, i), what);
    if (rc == FM_OK && !changes)
        rc = fm_fail(FM_EINVAL,
                     "%s: it changes nothing: want 'override', 'add', 'templates' or "
                     "'waive'",
                     what);
    return rc;
}

static fm_status read_doc(fm_json **out, fm_span yaml, const char *what)
{
    *out = NULL;
    if (yaml.len > FMV_SUITE_BYTES_MAX)
        return fm_fail(FM_ELIMIT, "%s: a suite has at most %zu bytes, this one %zu", what,
                       FMV_SUITE_BYTES_MAX, yaml.len);
    return fm_yaml_parse(out, yaml, what);
}

fm_status fm_suite_doc_kind(char **suite, char **topic, fm_span yaml, const char *what)
{
    fm_json *doc = NULL;
    fm_suite *whole = NULL;
    *suite = *topic = NULL;
    fm_status rc = read_doc(&doc, yaml, what);
    bool changes = rc == FM_OK && fm_json_get(doc, "changes");
    if (changes) {
        rc = check_changes(doc, what);
        if (rc == FM_OK && (!(*suite = fm_strdup(fm_json_cstr(fm_json_get(doc, "changes"), ""))) ||
                            !(*topic = fm_strdup(fm_json_cstr(fm_json_get(doc, "topic"), "")))))
            rc = FM_ENOMEM;
        fm_json_free(doc);
    } else if (rc == FM_OK) {
        rc = fmv_suite_of_doc(&whole, doc, NULL, what);
        if (rc == FM_OK && !(*suite = fm_strdup(fm_suite_name(whole))))
            rc = FM_ENOMEM;
    }
    fm_suite_free(whole);
    if (rc < 0) {
        fm_free(*suite);
        fm_free(*topic);
        *suite = *topic = NULL;
    }
    return rc;
}

/* ---- applying the documents ---- */

typedef struct overlay {
    fm_json *doc;      /* the suite's document, with added cases */
    fm_json *override; /* case name -> document */
    fm_json *waive;    /* case name -> waiver; the last one for a case holds */
} overlay;

/* The list of that key, made if it is missing; borrowed. */
static fm_status list_of(const fm_json **out, fm_json *doc, const char *key)
{
    fm_status rc = FM_OK;
    if (!fm_json_get(doc, key))
        rc = fm_json_set(doc, key, fm_json_new_array());
    *out = fm_json_get(doc, key);
    return rc;
}

static fm_status append(fm_json *doc, const char *key, const fm_json *more, const char *what)
{
    const fm_json *list = NULL;
    fm_json *whole;
    if (!fm_json_count(more))
        return FM_OK;
    fm_status rc = list_of(&list, doc, key);
    if (rc == FM_OK && !fm_json_is(list, FM_JSON_ARRAY))
        rc = fm_fail(FM_EINVAL, "%s: 'cases' and 'templates' must be lists", what);
    if (rc < 0)
        return rc;
    whole = fm_json_ref(list);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(more); i++)
        rc = fm_json_push(whole, fm_json_ref(fm_json_at(more, i)));
    fm_json_free(whole);
    return rc;
}

static fm_status by_name(fm_json *into, const fm_json *list, const char *key, const char *what)
{
    fm_json *here = fm_json_new_object();
    fm_status rc = here ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(list); i++) {
        const fm_json *entry = fm_json_at(list, i);
        const char *name = fm_json_cstr(fm_json_get(entry, key), "");
        if (!*name)
            rc = fm_fail(FM_EINVAL, "%s: 'override' wants cases with a 'name'", what);
        else if (fm_json_get(here, name))
            rc = fm_fail(FM_EINVAL, "%s: '%.200s' stands there twice", what, name);
        FM_THEN(rc, fm_json_set(here, name, fm_json_ref(entry)));
        FM_THEN(rc, fm_json_set(into, name, fm_json_ref(entry)));
    }
    fm_json_free(here);
    return rc;
}

static fm_status lay_over(overlay *o, const fm_suite_doc *d, const char *suite)
{
    fm_json *doc = NULL;
    fm_status rc = read_doc(&doc, d->yaml, d->what);
    FM_THEN(rc, check_changes(doc, d->what));
    if (rc == FM_OK && strcmp(fm_json_cstr(fm_json_get(doc, "changes"), ""), suite) != 0)
        rc = fm_fail(FM_EINVAL, "%s: it changes the suite '%s', but lies beside '%.80s'", d->what,
                     fm_json_cstr(fm_json_get(doc, "changes"), ""), suite);
    FM_THEN(rc, append(o->doc, "cases", fm_json_get(doc, "add"), d->what));
    FM_THEN(rc, append(o->doc, "templates", fm_json_get(doc, "templates"), d->what));
    FM_THEN(rc, by_name(o->override, fm_json_get(doc, "override"), "name", d->what));
    FM_THEN(rc, by_name(o->waive, fm_json_get(doc, "waive"), "case", d->what));
    fm_json_free(doc);
    return rc;
}

/* Maps the name of each case to its waiver. */
static fm_status places(fm_map **at, const fm_suite *s)
{
    FM_TRY(fm_map_new(at));
    for (size_t i = 0; i < s->count; i++)
        FM_TRY(fm_map_put(*at, s->cases[i].name, strlen(s->cases[i].name), &s->waiver[i], NULL));
    return FM_OK;
}

/* Sets waivers. Their texts stay in the suite's document, under a key that no file can have. */
static fm_status set_waivers(fm_suite *s, fm_json *waive, const char *what)
{
    fm_map *at = NULL;
    if (!fm_json_count(waive))
        return FM_OK;
    s->waiver = fm_calloc(s->count, sizeof *s->waiver);
    fm_status rc = s->waiver ? fm_json_set(s->doc, "waive", fm_json_ref(waive)) : FM_ENOMEM;
    FM_THEN(rc, places(&at, s));
    for (void *it = fm_json_iter(waive); rc == FM_OK && it; it = fm_json_next(waive, it)) {
        const fm_json *w = fm_json_iter_value(it);
        const char *name = fm_json_iter_key(it);
        fm_waiver *to = fm_map_get(at, name, strlen(name));
        if (to)
            *to = (fm_waiver){.reason = fm_json_cstr(fm_json_get(w, "reason"), ""),
                              .until = fm_json_cstr(fm_json_get(w, "until"), NULL),
                              .owner = fm_json_cstr(fm_json_get(w, "owner"), NULL)};
        else
            rc = fm_fail(FM_EINVAL,
                         "%s: 'waive' names '%.200s', which no case is called; take the waiver out "
                         "('fmstore suite unwaive') or give the case's name of today",
                         what, name);
    }
    fm_map_free(at);
    return rc;
}

static fm_status suite_of_overlay(fm_suite **out, overlay *o, const fm_suite_doc *doc, size_t n)
{
    fm_buf what;
    fm_buf_init(&what, 0);
    for (size_t i = 0; i < n; i++)
        fm_buf_printf(&what, "%s%.200s", i == 0 ? "" : i == 1 ? " with " : ", ", doc[i].what);
    fm_status rc = fm_buf_ok(&what);
    if (rc == FM_OK) {
        rc = fmv_suite_of_doc(out, o->doc, o->override, fm_buf_cstr(&what));
        o->doc = NULL;
    }
    FM_THEN(rc, set_waivers(*out, o->waive, fm_buf_cstr(&what)));
    if (rc < 0) {
        fm_suite_free(*out);
        *out = NULL;
    }
    fm_buf_release(&what);
    return rc;
}

fm_status fm_suite_parse_changed(fm_suite **out, const fm_suite_doc *doc, size_t n)
{
    *out = NULL;
    fm_assert(n > 0);
    if (n == 1)
        return fm_suite_parse(out, doc[0].yaml, doc[0].what);
    if (n > CHANGES_MAX + 1)
        return fm_fail(FM_ELIMIT, "%s: at most %u files may change one suite", doc[0].what,
                       CHANGES_MAX);
    overlay o = {.override = fm_json_new_object(), .waive = fm_json_new_object()};
    fm_status rc = o.override && o.waive ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, read_doc(&o.doc, doc[0].yaml, doc[0].what));
    const char *suite = fm_json_cstr(fm_json_get(o.doc, "suite"), "");
    for (size_t i = 1; rc == FM_OK && i < n; i++)
        rc = lay_over(&o, &doc[i], suite);
    FM_THEN(rc, suite_of_overlay(out, &o, doc, n));
    fm_json_free(o.doc);
    fm_json_free(o.override);
    fm_json_free(o.waive);
    return rc;
}

/* ---- waivers of a suite ---- */

const fm_waiver *fm_suite_waiver(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return s->waiver && s->waiver[i].reason ? &s->waiver[i] : NULL;
}

bool fm_suite_waived(const fm_suite *s, size_t i)
{
    const fm_waiver *w = fm_suite_waiver(s, i);
    return w && !w->over;
}

void fm_suite_waiver_end(fm_suite *s, size_t i)
{
    fm_assert(fm_suite_waiver(s, i));
    s->waiver[i].over = true;
}
