/* promptfoo.c - reads a promptfooconfig.yaml: each prompt with each test (and each combination of
 * variables that are lists) is a case.
 *
 * Here the version decides which model answers, and the command how a run is shown: keys for these
 * are ignored. Keys that change a prompt or an expectation are translated or refused. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/yaml.h"
#include "testing/foreign/foreign.h"

#define LISTS_MAX 16 /* variables that are lists, in one test */

static bool among(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(key, *list) == 0)
            return true;
    return false;
}

/* Refuses keys that are neither read nor ignored, by name. */
static fm_status check_keys(const fm_json *o, const char *const *known, const char *where)
{
    for (void *it = fm_json_iter(o); it; it = fm_json_next(o, it))
        if (!among(fm_json_iter_key(it), known))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: '%.60s' has no meaning in a suite: take it out, or "
                           "write the case by hand",
                           where, fm_json_iter_key(it));
    return FM_OK;
}

/* ==== assertions ==== */

static const struct {
    const char *word, *why;
} refused[] = {
    {"javascript", "a suite runs no code"},
    {"python", "a suite runs no code"},
    {"ruby", "a suite runs no code"},
    {"webhook", "a suite asks no network"},
    {"latency", "it depends on the machine, and results are kept for all"},
    {"cost", "nobody is paid for a token here"},
    {"similar", "it needs an embedder; name a version of the repository in the case"},
    {"classifier", "it needs a classifier; name a version of the repository in the case"},
    {"llm-rubric", "it needs a judge; name a version of the repository in the case"},
    {"model-graded-closedqa", "it needs a judge; name a version of the repository in the case"},
    {"model-graded-factuality", "it needs a judge; name a version of the repository in the case"},
    {"factuality", "it needs a judge; name a version of the repository in the case"},
    {"answer-relevance", "it needs a judge; name a version of the repository in the case"},
    {"g-eval", "it needs a judge; name a version of the repository in the case"},
    {"select-best", "a case is judged alone; compare versions with `fmstore test --against`"},
    {"human", "nobody is asked"},
};

/* A value of any type with its {{variables}} filled in. */
static fm_status rendered(fm_json **out, const fm_json *v, const fm_json *vars, int depth,
                          const char *where)
{
    fm_status rc = FM_OK;
    fm_json *one = NULL;
    *out = NULL;
    if (fm_json_is(v, FM_JSON_STRING)) {
        fm_buf b;
        fm_buf_init(&b, FMV_SUITE_BYTES_MAX);
        rc = fmv_foreign_render(&b, fm_json_cstr(v, ""), vars, where);
        if (rc == FM_OK && !(*out = fm_json_new_strn(fm_buf_cstr(&b), b.len)))
            rc = FM_ENOMEM;
        fm_buf_release(&b);
        return rc;
    }
    if (depth > 16)
        return fm_fail(FM_ELIMIT, "%s: nested too deep", where);
    if (!fm_json_is(v, FM_JSON_ARRAY) && !fm_json_is(v, FM_JSON_OBJECT)) {
        *out = fm_json_copy(v);
        return *out ? FM_OK : FM_ENOMEM;
    }
    bool list = fm_json_is(v, FM_JSON_ARRAY);
    *out = list ? fm_json_new_array() : fm_json_new_object();
    rc = *out ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; list && rc == FM_OK && i < fm_json_count(v); i++) {
        rc = rendered(&one, fm_json_at(v, i), vars, depth + 1, where);
        FM_THEN(rc, fm_json_push(*out, one));
    }
    for (void *it = list ? NULL : fm_json_iter(v); rc == FM_OK && it; it = fm_json_next(v, it)) {
        rc = rendered(&one, fm_json_iter_value(it), vars, depth + 1, where);
        FM_THEN(rc, fm_json_set(*out, fm_json_iter_key(it), one));
    }
    if (rc < 0) {
        fm_json_free(*out);
        *out = NULL;
    }
    return rc;
}

/* Sets the value of an assertion. promptfoo compares numbers in "contains" as texts; some words
 * have another name here. */
static fm_status put_value(fm_json *entry, const char *type, const fm_json *value,
                           const fm_json *vars, const char *where)
{
    bool negated = strncmp(type, "not-", 4) == 0;
    const char *word = negated ? type + 4 : type;
    fm_json *v = NULL;
    fm_buf text;
    if (strcmp(word, "is-json") == 0 && !value)
        return fm_json_set(entry, negated ? "not-json" : "json", fm_json_new_bool(true));
    if (!value)
        return fm_json_set(entry, type, fm_json_new_bool(true));
    const char *file = fm_json_cstr(value, "");
    if (strncmp(file, "file://", 7) == 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: value '%.60s': files are not fetched; write it in",
                       where, file);
    fm_status rc = rendered(&v, value, vars, 0, where);
    if (rc == FM_OK && (fm_json_is(v, FM_JSON_INT) || fm_json_is(v, FM_JSON_REAL)) &&
        (strcmp(word, "equals") == 0 || strstr(word, "contains") || strcmp(word, "regex") == 0)) {
        fm_buf_init(&text, 0);
        rc = fm_json_write(&text, v, FM_JSON_COMPACT);
        fm_json_free(v);
        v = rc == FM_OK ? fm_json_new_str(fm_buf_cstr(&text)) : NULL;
        fm_buf_release(&text);
    }
    if (rc == FM_OK && strcmp(word, "equals") == 0 && !fm_json_is(v, FM_JSON_STRING)) {
        fm_json_free(v);
        return fm_fail(
            FM_EUNSUPPORTED,
            "%s: equality of JSON values is not read: ask 'is-json' with a schema, or the "
            "fields with `json` by hand",
            where);
    }
    return rc == FM_OK ? fm_json_set(entry, type, v) : rc;
}

static fm_status push_set(fm_json *entry, const fm_json *a, const fm_json *vars, const char *where)
{
    const fm_json *list = fm_json_get(a, "assert");
    fm_json *parts = fm_json_new_array();
    fm_status rc = parts ? FM_OK : FM_ENOMEM;
    if (!fm_json_is(list, FM_JSON_ARRAY))
        rc = fm_fail(FM_EINVAL, "%s: assert-set wants a list 'assert'", where);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(list); i++) {
        if (strcmp(fm_json_cstr(fm_json_get(fm_json_at(list, i), "type"), ""), "assert-set") == 0)
            rc = fm_fail(FM_EUNSUPPORTED, "%s: an assert-set within an assert-set", where);
        else
            rc = fmv_foreign_assert(parts, fm_json_at(list, i), vars, where);
    }
    if (rc == FM_OK)
        return fm_json_set(entry, "assert-set", parts);
    fm_json_free(parts);
    return rc;
}

fm_status fmv_foreign_assert(fm_json *expect, const fm_json *a, const fm_json *vars,
                             const char *where)
{
    static const char *const known[] = {"type",   "value",  "threshold", "weight",
                                        "metric", "assert", NULL};
    static const char *const beside[] = {"threshold", "weight", "metric"};
    char here[600];
    const char *type = fm_json_cstr(fm_json_get(a, "type"), NULL);
    if (!type)
        return fm_fail(FM_EINVAL, "%s: an assertion wants a 'type'", where);
    snprintf(here, sizeof here, "%.500s: %.60s", where, type);
    const char *word = strncmp(type, "not-", 4) == 0 ? type + 4 : type;
    for (size_t i = 0; i < FM_ARRAY_LEN(refused); i++)
        if (strcmp(refused[i].word, word) == 0)
            return fm_fail(FM_EUNSUPPORTED, "%s: is not read: %s", here, refused[i].why);
    fm_status rc = check_keys(a, known, here);
    fm_json *entry = rc == FM_OK ? fm_json_new_object() : NULL;
    if (rc == FM_OK && !entry)
        rc = FM_ENOMEM;
    if (rc == FM_OK && strcmp(type, "assert-set") == 0)
        rc = push_set(entry, a, vars, here);
    else if (rc == FM_OK)
        rc = put_value(entry, type, fm_json_get(a, "value"), vars, here);
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(beside); i++)
        if (fm_json_get(a, beside[i]))
            rc = fm_json_set(entry, beside[i], fm_json_copy(fm_json_get(a, beside[i])));
    if (rc == FM_OK)
        return fm_json_push(expect, entry);
    fm_json_free(entry);
    return rc;
}

/* ==== tests ==== */

typedef struct config {
    fmv_foreign *f;
    const fm_json *prompts, *defaults;
    const fm_json *test;
    char where[300];
    char name[200];
} config;

/* An option of the test, else of the defaults. */
static bool option(const config *g, const char *name)
{
    const fm_json *own = fm_json_get(fm_json_get(g->test, "options"), name);
    return fm_json_bool(own ? own : fm_json_get(fm_json_get(g->defaults, "options"), name), false);
}

static fm_status push_asserts(fm_json *expect, const fm_json *of, const fm_json *vars,
                              const char *where)
{
    char here[400];
    const fm_json *list = fm_json_get(of, "assert");

    if (list && !fm_json_is(list, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: 'assert' wants a list", where);
    for (size_t i = 0; i < fm_json_count(list); i++) {
        snprintf(here, sizeof here, "%.300s: assert[%zu]", where, i);
        FM_TRY(fmv_foreign_assert(expect, fm_json_at(list, i), vars, here));
    }
    return FM_OK;
}

/* A prompt that is a JSON list of messages is a conversation. */
static fm_status put_prompt(fm_json *c, const config *g, const fm_json *prompt, const fm_json *vars)
{
    fm_buf b;
    fm_json *messages = NULL;
    const char *text = fm_json_cstr(prompt, NULL);
    if (!text)
        text = fm_json_cstr(fm_json_get(prompt, "raw"), NULL);
    if (!text)
        return fm_fail(FM_EINVAL, "%s: a prompt wants text (or {raw: text})", g->f->what);
    if (strncmp(text, "file://", 7) == 0 || strncmp(text, "exec:", 5) == 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: prompt '%.60s': files are not fetched; write it in",
                       g->f->what, text);
    fm_buf_init(&b, FMV_SUITE_BYTES_MAX);
    fm_status rc = fmv_foreign_render(&b, text, vars, g->where);
    fm_span s = fmv_trim(fm_buf_span(&b));
    if (rc == FM_OK && s.len && s.data[0] == '[' &&
        fm_json_parse(&messages, s, g->f->what) == FM_OK && fm_json_count(messages) &&
        fm_json_get(fm_json_at(messages, 0), "role"))
        rc = fm_json_set(c, "messages", fm_json_ref(messages));
    else
        fmv_foreign_text(&rc, c, g->f->key, fm_buf_span(&b));
    if (rc == FM_OK)
        fm_error_clear(); /* a prompt that is not JSON is a text */
    fm_json_free(messages);
    fm_buf_release(&b);
    return rc;
}

static fm_status add_tags(fm_json *tags, const fm_json *meta)
{
    fm_status rc = FM_OK;
    for (void *it = fm_json_iter(meta); it && rc == FM_OK; it = fm_json_next(meta, it)) {
        fm_buf text;
        const fm_json *v = fm_json_iter_value(it);
        const char *value = fm_json_cstr(v, NULL);
        fm_buf_init(&text, 0);
        if (!value && !fm_json_is(v, FM_JSON_ARRAY) && !fm_json_is(v, FM_JSON_OBJECT))
            rc = fm_json_write(&text, v, FM_JSON_COMPACT);
        else
            fm_buf_str(&text, value ? value : "");
        if (rc == FM_OK && text.len)
            rc = fm_json_set(tags, fm_json_iter_key(it), fm_json_new_str(fm_buf_cstr(&text)));
        fm_buf_release(&text);
    }
    return rc;
}

/* Sets the test's tags over those of the defaults. */
static fm_status put_tags(fm_json *c, const config *g)
{
    fm_json *tags = fm_json_new_object();
    fm_status rc = tags ? add_tags(tags, fm_json_get(g->defaults, "metadata")) : FM_ENOMEM;
    FM_THEN(rc, add_tags(tags, fm_json_get(g->test, "metadata")));
    if (rc == FM_OK && fm_json_count(tags))
        rc = fm_json_set(c, "tags", fm_json_ref(tags));
    fm_json_free(tags);
    return rc;
}

/* Adds one case: prompt p with these variables. */
static fm_status add_case(const config *g, size_t p, const fm_json *vars)
{
    char name[260];
    fm_json *c = fm_json_new_object(), *expect = fm_json_new_array();
    const fm_json *threshold = fm_json_get(g->test, "threshold");
    fm_status rc = c && expect ? FM_OK : FM_ENOMEM;
    if (!threshold)
        threshold = fm_json_get(g->defaults, "threshold");
    FM_THEN(rc, put_prompt(c, g, fm_json_at(g->prompts, p), vars));
    if (rc == FM_OK && !option(g, "disableDefaultAsserts"))
        rc = push_asserts(expect, g->defaults, vars, g->where);
    FM_THEN(rc, push_asserts(expect, g->test, vars, g->where));
    if (rc == FM_OK && !fm_json_count(expect))
        rc = fm_fail(FM_EINVAL, "%s: has no assertion: the case could not fail", g->where);
    fm_json_put(&rc, c, "expect", fm_json_ref(expect));
    if (rc == FM_OK && threshold)
        rc = fm_json_set(c, "threshold", fm_json_copy(threshold));
    FM_THEN(rc, put_tags(c, g));
    fm_json_free(expect);
    if (fm_json_count(g->prompts) > 1)
        snprintf(name, sizeof name, "%.190s/prompt-%zu", g->name, p + 1);
    else
        snprintf(name, sizeof name, "%.190s", g->name);
    if (rc == FM_OK)
        return fmv_foreign_add(g->f, c, name);
    fm_json_free(c);
    return rc;
}

/* Adds all combinations of variables that are lists, the last one fastest, as promptfoo. */
static fm_status add_test(const config *g, const fm_json *vars)
{
    const char *key[LISTS_MAX];
    const fm_json *list[LISTS_MAX];
    size_t at[LISTS_MAX] = {0}, n = 0, i;
    fm_status rc = FM_OK;
    bool expand = !option(g, "disableVarExpansion");
    for (void *it = fm_json_iter(vars); it && expand; it = fm_json_next(vars, it)) {
        if (!fm_json_is(fm_json_iter_value(it), FM_JSON_ARRAY))
            continue;
        if (n == LISTS_MAX || !fm_json_count(fm_json_iter_value(it)))
            return fm_fail(FM_EINVAL, "%s: vars: up to %d lists, none of them empty", g->where,
                           LISTS_MAX);
        key[n] = fm_json_iter_key(it);
        list[n++] = fm_json_iter_value(it);
    }
    do {
        fm_json *row = fm_json_new_object();
        rc = row ? FM_OK : FM_ENOMEM;
        for (void *it = fm_json_iter(vars); it && rc == FM_OK; it = fm_json_next(vars, it))
            rc = fm_json_set(row, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
        for (i = 0; i < n && rc == FM_OK; i++)
            rc = fm_json_set(row, key[i], fm_json_ref(fm_json_at(list[i], at[i])));
        for (size_t p = 0; p < fm_json_count(g->prompts) && rc == FM_OK; p++)
            rc = add_case(g, p, row);
        fm_json_free(row);
        i = n;
        while (i > 0 && ++at[i - 1] == fm_json_count(list[i - 1]))
            at[--i] = 0;
    } while (i > 0 && rc == FM_OK);
    return rc;
}

static fm_status check_test(const fm_json *t, const char *where)
{
    static const char *const known[] = {"description", "vars",      "assert",
                                        "metadata",    "threshold", "provider",
                                        "providers",   "options",   NULL};
    static const char *const options[] = {"disableVarExpansion", "disableConversationVar",
                                          "disableDefaultAsserts", NULL};
    const fm_json *vars = fm_json_get(t, "vars");
    if (!fm_json_is(t, FM_JSON_OBJECT))
        return fm_fail(FM_EUNSUPPORTED, "%s: wants a mapping; files of tests are not fetched",
                       where);
    FM_TRY(check_keys(t, known, where));
    FM_TRY(check_keys(fm_json_get(t, "options"), options, where));
    if (vars && !fm_json_is(vars, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: 'vars' wants a mapping", where);
    for (void *it = fm_json_iter(vars); it; it = fm_json_next(vars, it))
        if (strncmp(fm_json_cstr(fm_json_iter_value(it), ""), "file://", 7) == 0)
            return fm_fail(FM_EUNSUPPORTED, "%s: vars.%.60s: files are not fetched; write it in",
                           where, fm_json_iter_key(it));
    return FM_OK;
}

static fm_status read_test(config *g, size_t i)
{
    const fm_json *t = g->test, *own = fm_json_get(t, "vars"),
                  *common = fm_json_get(g->defaults, "vars");
    const char *description = fm_json_cstr(fm_json_get(t, "description"), "");
    fm_json *vars = fm_json_new_object();
    fm_status rc = vars ? check_test(t, g->where) : FM_ENOMEM;
    for (void *it = fm_json_iter(common); it && rc == FM_OK; it = fm_json_next(common, it))
        rc = fm_json_set(vars, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    for (void *it = fm_json_iter(own); it && rc == FM_OK; it = fm_json_next(own, it))
        rc = fm_json_set(vars, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
    if (*description)
        snprintf(g->name, sizeof g->name, "%.190s", description);
    else
        snprintf(g->name, sizeof g->name, "test-%zu", i + 1);
    FM_THEN(rc, add_test(g, vars));
    fm_json_free(vars);
    return rc;
}

static fm_status read_config(fmv_foreign *f, const fm_json *doc)
{
    static const char *const known[] = {"description",
                                        "prompts",
                                        "tests",
                                        "defaultTest",
                                        "providers",
                                        "targets",
                                        "tags",
                                        "env",
                                        "outputPath",
                                        "sharing",
                                        "metadata",
                                        "evaluateOptions",
                                        "commandLineOptions",
                                        "writeLatestResults",
                                        NULL};
    static const char *const options[] = {"maxConcurrency", "showProgressBar", "delay", "cache",
                                          "timeoutMs",      "maxEvalTimeMs",   NULL};
    const fm_json *tests = fm_json_get(doc, "tests"), *prompts = fm_json_get(doc, "prompts");
    config g = {.f = f, .prompts = prompts, .defaults = fm_json_get(doc, "defaultTest")};
    if (!fm_json_is(doc, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: wants a mapping with 'prompts' and 'tests'", f->what);
    fm_status rc = check_keys(doc, known, f->what);
    snprintf(g.where, sizeof g.where, "%.200s: evaluateOptions", f->what);
    FM_THEN(rc, check_keys(fm_json_get(doc, "evaluateOptions"), options, g.where));
    if (rc == FM_OK && (!fm_json_is(prompts, FM_JSON_ARRAY) || !fm_json_count(prompts)))
        rc = fm_fail(FM_EUNSUPPORTED, "%s: 'prompts' wants a list of texts; files are not fetched",
                     f->what);
    if (rc == FM_OK && (!fm_json_is(tests, FM_JSON_ARRAY) || !fm_json_count(tests)))
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: 'tests' wants a list; a table of tests is read with --from csv", f->what);
    snprintf(g.where, sizeof g.where, "%.200s: defaultTest", f->what);
    if (rc == FM_OK && g.defaults)
        rc = check_test(g.defaults, g.where);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(tests); i++) {
        g.test = fm_json_at(tests, i);
        snprintf(g.where, sizeof g.where, "%.200s: tests[%zu]", f->what, i);
        rc = read_test(&g, i);
    }
    return rc == FM_OK ? fmv_foreign_keep(&f->description, fm_json_get(doc, "description")) : rc;
}

fm_status fmv_foreign_promptfoo(fmv_foreign *f, fm_span text)
{
    fm_json *doc = NULL;
    fm_status rc = fm_yaml_parse(&doc, text, f->what);
    FM_THEN(rc, read_config(f, doc));
    fm_json_free(doc);
    return rc;
}
