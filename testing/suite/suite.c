/* suite.c - a suite file: its frame, its cases and templates. Cases are in suite_case.c. */
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/text/yaml.h"
#include "testing/cases/perturb.h"
#include "testing/suite/internal.h"

typedef struct builder {
    fm_suite *suite;
    const char *what;
    const fm_json *override; /* case name -> document that replaces the case; NULL = none */
    fm_map *names;           /* names of the cases so far */
    fmv_expansion_room room;
    bool filled; /* the case comes from a template */
} builder;

/* The document that replaces the case of this name, owned (doc is consumed), or doc itself; NULL =
 * ENOMEM. override may be NULL. */
static fm_json *overridden(fm_json *doc, const fm_json *override)
{
    const char *name = fm_json_cstr(fm_json_get(doc, "name"), NULL);
    const fm_json *other = name ? fm_json_get(override, name) : NULL;
    if (!other)
        return doc;
    fm_json_free(doc);
    return fm_json_copy(other);
}

/* Consumes doc. */
static fm_status add_case(void *ctx, fm_json *doc)
{
    builder *b = ctx;
    fm_suite *s = b->suite;
    fmv_case *c;
    doc = overridden(doc, b->override);
    if (!doc)
        return FM_ENOMEM;
    fm_status rc = fmv_perturb_case(&doc, &b->room, !b->filled, b->what);
    if (rc < 0 || !doc)
        return rc;
    rc = s->count < FMV_CASES_MAX
             ? fm_grow(&s->cases, &s->cap, s->count + 1, sizeof *s->cases)
             : fm_fail(FM_ELIMIT, "%s: more than %u cases", b->what, FMV_CASES_MAX);
    if (rc < 0) {
        fm_json_free(doc);
        return rc;
    }
    c = &s->cases[s->count];
    FM_TRY(fmv_case_init(c, doc, fm_json_get(s->doc, "generate"), b->what));
    s->count++; /* from here on the suite owns it */
    if (fm_map_has(b->names, c->name, strlen(c->name)))
        return fm_fail(FM_EINVAL, "%s: two cases are named '%s'", b->what, c->name);
    return fm_map_put(b->names, c->name, strlen(c->name), c->name, NULL);
}

/* Adds the cases of a template. A template of which every filling is left out, since no
 * perturbation applies, tests nothing and is refused. */
static fm_status add_template(builder *b, const fm_json *tmpl)
{
    const size_t before = b->suite->count;
    b->filled = true;
    FM_TRY(fmv_template_expand(tmpl, b->what, &b->room, add_case, b));
    if (b->suite->count == before)
        return fm_fail(FM_EINVAL,
                       "%s: template '%.200s': 'perturb' finds nothing to change in any "
                       "filling",
                       b->what, fm_json_cstr(fm_json_get(tmpl, "name"), ""));
    return FM_OK;
}

static fm_status add_all(builder *b)
{
    const fm_json *cases = fm_json_get(b->suite->doc, "cases");
    const fm_json *templates = fm_json_get(b->suite->doc, "templates");

    if ((cases && !fm_json_is(cases, FM_JSON_ARRAY)) ||
        (templates && !fm_json_is(templates, FM_JSON_ARRAY)))
        return fm_fail(FM_EINVAL, "%s: 'cases' and 'templates' must be lists", b->what);
    for (size_t i = 0; i < fm_json_count(cases); i++) {
        fm_json *doc = fm_json_copy(fm_json_at(cases, i));
        FM_TRY(doc ? add_case(b, doc) : FM_ENOMEM);
    }
    for (size_t i = 0; i < fm_json_count(templates); i++)
        FM_TRY(add_template(b, fm_json_at(templates, i)));
    if (b->suite->count == 0)
        return fm_fail(FM_EINVAL, "%s: the suite has no case", b->what);
    for (void *it = fm_json_iter(b->override); it; it = fm_json_next(b->override, it)) {
        const char *name = fm_json_iter_key(it);
        if (!fm_map_has(b->names, name, strlen(name)))
            return fm_fail(FM_EINVAL, "%s: 'override' names '%.200s', which no case is called",
                           b->what, name);
    }
    return FM_OK;
}

/* A suite's name is a file name in the tree. */
bool fmv_is_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n <= 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == n;
}

static fm_status check_name(const char *name, const char *what)
{
    return fmv_is_name(name)
               ? FM_OK
               : fm_fail(FM_EINVAL, "%s: suite name '%.80s' wants 1 to 64 of a-z A-Z 0-9 - _", what,
                         name);
}

/* Whether a string in v has a NUL: other code ends names, prompts and patterns there. */
static bool has_nul(const fm_json *v)
{
    fm_span s = fm_json_str(v);
    bool found = s.len && memchr(s.data, 0, s.len);
    for (size_t i = 0; fm_json_is(v, FM_JSON_ARRAY) && !found && i < fm_json_count(v); i++)
        found = has_nul(fm_json_at(v, i));
    for (void *it = fm_json_iter(v); it && !found; it = fm_json_next(v, it))
        found = has_nul(fm_json_iter_value(it));
    return found;
}

static fm_status read_frame(fm_suite *s, const char *what)
{
    static const char *const known[] = {"suite",     "description", "gate",     "generate", "cases",
                                        "templates", "lexicons",    "measures", NULL};
    const char *name = NULL;
    const fm_json *gate = fm_json_get(s->doc, "gate"),
                  *description = fm_json_get(s->doc, "description");
    if (!fm_json_is(s->doc, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: a suite is a mapping with 'suite' and 'cases'", what);
    FM_TRY(fm_json_known_keys(s->doc, known, what));
    FM_TRY(fm_json_need_str(&name, s->doc, "suite", what));
    FM_TRY(check_name(name, what));
    FM_TRY(fm_policy_read(&s->policy, gate, what));
    if (description && !fm_json_is(description, FM_JSON_STRING))
        return fm_fail(FM_EINVAL, "%s: 'description' must be a string", what);
    if (has_nul(s->doc))
        return fm_fail(FM_EINVAL, "%s: a string holds a NUL character", what);
    FM_TRY(fmv_check_generate(fm_json_get(s->doc, "generate"), what));
    FM_TRY(fmv_lexicons_check(fm_json_get(s->doc, "lexicons"), what));
    s->name = fm_strdup(name);
    s->description = fm_strdup(fm_json_cstr(description, ""));
    return s->name && s->description ? FM_OK : FM_ENOMEM;
}

fm_status fmv_suite_of_doc(fm_suite **out, fm_json *doc, const fm_json *override, const char *what)
{
    *out = NULL;
    fm_suite *s = fm_calloc(1, sizeof *s);
    if (!s) {
        fm_json_free(doc);
        return FM_ENOMEM;
    }
    s->doc = doc;
    builder b = {
        .suite = s,
        .what = what,
        .override = override,
        .room = {fm_json_get(doc, "lexicons"), FMV_EXPANDED_BYTES_MAX, FMV_EXPANSION_STEPS_MAX}};
    fm_status rc = read_frame(s, what);
    if (rc == FM_OK && has_nul(override))
        rc = fm_fail(FM_EINVAL, "%s: a string of 'override' holds a NUL character", what);
    FM_THEN(rc, fm_map_new(&b.names));
    FM_THEN(rc, add_all(&b));
    FM_THEN(rc, fmv_measures_read(s, what));
    fm_map_free(b.names);
    if (rc < 0) {
        fm_suite_free(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

fm_status fm_suite_parse(fm_suite **out, fm_span yaml, const char *what)
{
    fm_json *doc = NULL;
    *out = NULL;
    if (yaml.len > FMV_SUITE_BYTES_MAX)
        return fm_fail(FM_ELIMIT, "%s: a suite has at most %zu bytes, this one %zu", what,
                       FMV_SUITE_BYTES_MAX, yaml.len);
    FM_TRY(fm_yaml_parse(&doc, yaml, what));
    return fmv_suite_of_doc(out, doc, NULL, what);
}

fm_status fm_suite_from_prompt(fm_suite **out, const char *prompt, const char *expect, bool chat)
{
    fm_json *doc = fm_json_new_object(), *cases = fm_json_new_array(), *c = fm_json_new_object(),
            *want = fm_json_new_object();
    *out = NULL;
    fm_status rc = doc && cases && c && want ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(want, "contains", fm_json_new_str(expect)));
    FM_THEN(rc, fm_json_set(c, "name", fm_json_new_str("prompt")));
    FM_THEN(rc, fm_json_set(c, chat ? "chat" : "prompt", fm_json_new_str(prompt)));
    FM_THEN(rc, fm_json_set(c, "expect", fm_json_ref(want)));
    FM_THEN(rc, fm_json_push(cases, fm_json_ref(c)));
    FM_THEN(rc, fm_json_set(doc, "suite", fm_json_new_str("command-line")));
    FM_THEN(rc, fm_json_set(doc, "cases", fm_json_ref(cases)));
    fm_json_free(want);
    fm_json_free(c);
    fm_json_free(cases);
    if (rc == FM_OK)
        return fmv_suite_of_doc(out, doc, NULL, "--prompt");
    fm_json_free(doc);
    return rc;
}

void fm_suite_free(fm_suite *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++)
        fmv_case_release(&s->cases[i]);
    fmv_measures_release(s);
    fm_free(s->cases);
    fm_free(s->waiver);
    fm_free(s->name);
    fm_free(s->description);
    fm_json_free(s->doc);
    fm_free(s);
}

const char *fm_suite_name(const fm_suite *s)
{
    return s->name;
}

const char *fm_suite_description(const fm_suite *s)
{
    return s->description;
}

bool fm_suite_is_gate(const fm_suite *s)
{
    return s->policy.gate;
}

const fm_policy *fm_suite_policy(const fm_suite *s)
{
    return &s->policy;
}

size_t fm_suite_count(const fm_suite *s)
{
    return s->count;
}

size_t fm_suite_measure_count(const fm_suite *s)
{
    return s->measure_count;
}

const char *fm_suite_case_name(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return s->cases[i].name;
}

fm_digest fm_suite_case_digest(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return s->cases[i].digest;
}

long fm_suite_find(const fm_suite *s, const char *case_name)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->cases[i].name, case_name) == 0)
            return (long)i;
    return -1;
}

/* Calls text for every string in v, at any depth. */
static fm_status texts_of(const fm_json *v, fm_status (*text)(void *ctx, fm_span text), void *ctx)
{
    fm_span s = fm_json_str(v);
    FM_TRY(s.data ? text(ctx, s) : FM_OK);

    for (size_t i = 0; fm_json_is(v, FM_JSON_ARRAY) && i < fm_json_count(v); i++)
        FM_TRY(texts_of(fm_json_at(v, i), text, ctx));
    if (fm_json_is(v, FM_JSON_OBJECT))
        FM_TRY(texts_of(fm_json_get(v, "content"), text, ctx));
    return FM_OK;
}

fm_status fm_suite_case_texts(const fm_suite *s, size_t i,
                              fm_status (*text)(void *ctx, fm_span text), void *ctx)
{
    fm_assert(i < s->count);
    const fmv_case *c = &s->cases[i];

    for (size_t k = 0; k < c->prompt_count; k++)
        FM_TRY(texts_of(c->prompt[k], text, ctx));
    for (size_t k = 0; k < c->assertion_count; k++)
        if (c->assertion[k].kind != FMV_REGEX && c->assertion[k].kind != FMV_JSON)
            FM_TRY(texts_of(c->assertion[k].value, text, ctx));
    if (c->answer < c->choice_count)
        FM_TRY(text(ctx, fm_span_str(c->choice[c->answer])));
    if (c->continuation)
        FM_TRY(text(ctx, fm_span_str(c->continuation)));
    if (c->near_text)
        FM_TRY(text(ctx, fm_span_str(c->near_text)));
    return FM_OK;
}

fm_status fm_suite_perturbed(fm_suite **out, const fm_suite *s, size_t i, uint64_t seed, size_t n)
{
    fm_json *doc = fm_json_new_object(), *cases = fm_json_new_array();
    const fm_json *generate = fm_json_get(s->doc, "generate");
    fm_status rc = doc && cases ? FM_OK : FM_ENOMEM;
    fm_assert(i < s->count && n > 0 && n <= FM_PERTURBED_MAX);
    *out = NULL;
    FM_THEN(rc, fmv_perturbed_forms(cases, &s->cases[i], seed, n));
    if (rc == FM_OK && fm_json_count(cases) == 0)
        rc = fm_fail(FM_ENOTFOUND, "case '%s': no perturbation changes its prompt",
                     s->cases[i].name);
    FM_THEN(rc, fm_json_set(doc, "suite", fm_json_new_str(s->name)));
    if (rc == FM_OK && generate)
        rc = fm_json_set(doc, "generate", fm_json_ref(generate));
    FM_THEN(rc, fm_json_set(doc, "cases", fm_json_ref(cases)));
    fm_json_free(cases);
    if (rc == FM_OK)
        return fmv_suite_of_doc(out, doc, NULL, s->name);
    fm_json_free(doc);
    return rc;
}
