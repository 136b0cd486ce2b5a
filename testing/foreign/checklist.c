/* checklist.c - tests of CheckList (Ribeiro et al. 2020), exported as JSON with their templates
 * expanded: {"tests": [...]} or, as a TestSuite keeps them, {"tests": {"name": {...}}}.
 *
 *   {"name", "type": "MFT|INV|DIR", "capability", "description", "data", "labels",
 *    "choices", "prompt", "expect": {"direction", "label"}}
 *
 * data is a list of texts, or of lists of texts: the examples of one test case of MFT, the original
 * and its perturbed forms of INV and DIR. labels is one for all or a list as long as data. A
 * classifier's labels mean nothing to a language model until they are words: `choices` names the
 * labels in their order, `prompt` says how a text is asked ({text}); both may stand at the top for
 * all tests. Functions, which pickles hold, are not read. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/foreign/foreign.h"

typedef struct reader {
    fmv_foreign *f;
    const fm_json *doc, *test;
    const char *name;
    const fm_json *choices;
    const char *prompt;
    char where[400];
} reader;

/* A setting of the test, else of the file. */
static const fm_json *setting(const reader *r, const char *key)
{
    const fm_json *v = fm_json_get(r->test, key);
    return v ? v : fm_json_get(r->doc, key);
}

static fm_json *asked(const reader *r, const fm_json *text)
{
    fm_span s = fm_json_str(text);
    const char *at = strstr(r->prompt, "{text}");
    fm_buf b;
    fm_buf_init(&b, FMV_SUITE_BYTES_MAX);
    fm_buf_append(&b, r->prompt, (size_t)(at - r->prompt));
    fm_buf_append(&b, s.data, s.len);
    fm_buf_str(&b, at + strlen("{text}"));
    fm_json *v = fm_buf_ok(&b) == FM_OK ? fm_json_new_strn(fm_buf_cstr(&b), b.len) : NULL;
    fm_buf_release(&b);
    return v;
}

/* The choice that a label means: by its index, or the word itself; NULL: neither. */
static const fm_json *choice_of(const reader *r, const fm_json *label)
{
    if (fm_json_is(label, FM_JSON_INT)) {
        int64_t i = fm_json_int(label, -1);
        return i >= 0 && (uint64_t)i < fm_json_count(r->choices) ? fm_json_at(r->choices, (size_t)i)
                                                                 : NULL;
    }
    for (size_t i = 0; i < fm_json_count(r->choices); i++)
        if (fm_json_equal(fm_json_at(r->choices, i), label))
            return fm_json_at(r->choices, i);
    return NULL;
}

static fm_status put_label(fm_json *c, const reader *r, const fm_json *label)
{
    fm_status rc = FM_OK;
    if (!r->choices) {
        fm_json *expect = fm_json_new_object();
        rc = expect ? FM_OK : FM_ENOMEM;
        if (rc == FM_OK && !fm_json_is(label, FM_JSON_STRING))
            rc = fm_fail(FM_EINVAL,
                         "%s: a label that is a number says nothing to a model: name the labels in "
                         "their order, \"choices\": [\"negative\", ...]",
                         r->where);
        fm_json_put(&rc, expect, "contains", fm_json_ref(label));
        fm_json_put(&rc, c, "expect", fm_json_ref(expect));
        fm_json_free(expect);
        return rc;
    }
    const fm_json *choice = choice_of(r, label);
    if (!choice)
        return fm_fail(FM_EINVAL, "%s: a label is none of 'choices'", r->where);
    rc = fm_json_set(c, "choices", fm_json_ref(r->choices));
    fm_json_put(&rc, c, "answer", fm_json_ref(choice));
    return rc;
}

static fm_status put_direction(fm_json *c, const reader *r)
{
    const fm_json *expect = fm_json_get(r->test, "expect"), *label = fm_json_get(expect, "label");
    const char *direction = fm_json_cstr(fm_json_get(expect, "direction"), "");
    const fm_json *choice = choice_of(r, label);
    fm_json *p = fm_json_new_object(), *pairs = fm_json_new_object();
    fm_status rc = p && pairs ? FM_OK : FM_ENOMEM;
    bool changes = strcmp(direction, "changes") == 0;
    if (rc == FM_OK && !changes && strcmp(direction, "increases") && strcmp(direction, "decreases"))
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: DIR wants 'expect' as {\"direction\": \"increases\", \"decreases\" or "
                     "\"changes\", \"label\"}; a function of Python is not read",
                     r->where);
    if (rc == FM_OK && !changes && !choice)
        rc = fm_fail(FM_EINVAL, "%s: expect.label is none of 'choices'", r->where);
    if (changes) {
        fm_json_put(&rc, pairs, "answer", fm_json_new_str("changes"));
    } else {
        fm_json_put(&rc, p, direction, fm_json_new_int(0));
        fm_json_put(&rc, p, "of", fm_json_ref(choice));
        fm_json_put(&rc, pairs, "probability", fm_json_ref(p));
    }
    fm_json_put(&rc, c, "pairs", fm_json_ref(pairs));
    fm_json_put(&rc, c, "against", fm_json_new_str("first"));
    if (r->choices)
        fm_json_put(&rc, c, "choices", fm_json_ref(r->choices));
    fm_json_free(p);
    fm_json_free(pairs);
    return rc;
}

/* Adds a case. texts NULL: it has the one text `text`. */
static fm_status add_case(const reader *r, const char *kind, const fm_json *texts,
                          const fm_json *text, const fm_json *label)
{
    fm_json *c = fm_json_new_object(), *prompts = fm_json_new_array();
    const fm_json *capability = fm_json_get(r->test, "capability");
    fm_status rc = c && prompts ? FM_OK : FM_ENOMEM;
    if (strcmp(kind, "MFT") != 0)
        fm_json_put(&rc, c, "kind", fm_json_new_str(kind));
    if (*fm_json_cstr(capability, ""))
        fm_json_put(&rc, c, "capability", fm_json_ref(capability));
    for (size_t i = 0; texts && i < fm_json_count(texts) && rc == FM_OK; i++)
        rc = fm_json_is(fm_json_at(texts, i), FM_JSON_STRING)
                 ? fm_json_push(prompts, asked(r, fm_json_at(texts, i)))
                 : fm_fail(FM_EINVAL, "%s: data wants texts", r->where);
    if (texts)
        fm_json_put(&rc, c, r->f->key, fm_json_ref(prompts));
    else if (rc == FM_OK)
        rc = fm_json_is(text, FM_JSON_STRING)
                 ? fm_json_set(c, r->f->key, asked(r, text))
                 : fm_fail(FM_EINVAL, "%s: data wants texts", r->where);
    if (rc == FM_OK && strcmp(kind, "DIR") == 0)
        rc = put_direction(c, r);
    else if (rc == FM_OK && label)
        rc = put_label(c, r, label);
    else if (r->choices)
        fm_json_put(&rc, c, "choices", fm_json_ref(r->choices));
    fm_json_free(prompts);
    if (rc == FM_OK)
        return fmv_foreign_add(r->f, c, r->name);
    fm_json_free(c);
    return rc;
}

/* Adds data[i] of a test: an example, or a list of examples. */
static fm_status add_example(reader *r, const char *kind, size_t i)
{
    const fm_json *data = fm_json_at(fm_json_get(r->test, "data"), i),
                  *labels = fm_json_get(r->test, "labels");
    bool list = fm_json_is(data, FM_JSON_ARRAY), mft = strcmp(kind, "MFT") == 0;
    const fm_json *label = fm_json_is(labels, FM_JSON_ARRAY) ? fm_json_at(labels, i) : labels;

    snprintf(r->where, sizeof r->where, "%.150s: test '%.100s': data[%zu]", r->f->what, r->name, i);
    if (fm_json_typeof(label) == FM_JSON_NULL)
        label = NULL;
    if (mft && !label)
        return fm_fail(FM_EINVAL, "%s: MFT wants a label", r->where);
    if (!mft)
        return list ? add_case(r, kind, data, NULL, label)
                    : fm_fail(FM_EINVAL, "%s: %s wants a list: the original and its changed forms",
                              r->where, kind);
    if (!list)
        return add_case(r, kind, NULL, data, label);
    for (size_t k = 0; k < fm_json_count(data); k++) {
        const fm_json *one = fm_json_is(label, FM_JSON_ARRAY) ? fm_json_at(label, k) : label;
        FM_TRY(add_case(r, kind, NULL, fm_json_at(data, k), one));
    }
    return FM_OK;
}

static fm_status read_test(reader *r)
{
    static const char *const known[] = {"name",   "type",   "capability", "description",
                                        "data",   "labels", "choices",    "prompt",
                                        "expect", "meta",   NULL};
    const fm_json *data = fm_json_get(r->test, "data"), *labels = fm_json_get(r->test, "labels");
    const char *kind = fm_json_cstr(fm_json_get(r->test, "type"), "");
    snprintf(r->where, sizeof r->where, "%.150s: test '%.100s'", r->f->what, r->name);
    FM_TRY(fm_json_known_keys(r->test, known, r->where));
    if (!*r->name)
        return fm_fail(FM_EINVAL, "%s: a test wants a 'name'", r->f->what);
    if (strcmp(kind, "MFT") && strcmp(kind, "INV") && strcmp(kind, "DIR"))
        return fm_fail(FM_EINVAL, "%s: type '%.20s' is not MFT, INV or DIR", r->where, kind);
    if (!fm_json_is(data, FM_JSON_ARRAY) || !fm_json_count(data))
        return fm_fail(FM_EINVAL, "%s: 'data' wants a list of texts", r->where);
    if (fm_json_is(labels, FM_JSON_ARRAY) && fm_json_count(labels) != fm_json_count(data))
        return fm_fail(FM_EINVAL, "%s: %zu labels for %zu examples", r->where,
                       fm_json_count(labels), fm_json_count(data));
    if (fm_json_get(r->test, "expect") && strcmp(kind, "DIR") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: 'expect' is read of DIR alone", r->where);
    r->choices = setting(r, "choices");
    r->prompt = fm_json_cstr(setting(r, "prompt"), "{text}");
    if (!strstr(r->prompt, "{text}"))
        return fm_fail(FM_EINVAL, "%s: 'prompt' wants '{text}' where the example goes", r->where);
    for (size_t i = 0; i < fm_json_count(data); i++)
        FM_TRY(add_example(r, kind, i));
    return FM_OK;
}

static fm_status read_tests(fmv_foreign *f, const fm_json *doc)
{
    static const char *const known[] = {"name", "description", "tests", "choices", "prompt", NULL};
    reader r = {.f = f, .doc = doc};
    const fm_json *tests = fm_json_is(doc, FM_JSON_ARRAY) ? doc : fm_json_get(doc, "tests");
    FM_TRY(fm_json_known_keys(doc, known, f->what));
    if (!fm_json_count(tests))
        return fm_fail(FM_EINVAL, "%s: wants {\"tests\": [...]}", f->what);
    for (size_t i = 0; fm_json_is(tests, FM_JSON_ARRAY) && i < fm_json_count(tests); i++) {
        r.test = fm_json_at(tests, i);
        r.name = fm_json_cstr(fm_json_get(r.test, "name"), "");
        FM_TRY(read_test(&r));
    }
    for (void *it = fm_json_is(tests, FM_JSON_OBJECT) ? fm_json_iter(tests) : NULL; it;
         it = fm_json_next(tests, it)) {
        r.test = fm_json_iter_value(it);
        r.name = fm_json_iter_key(it);
        FM_TRY(read_test(&r));
    }
    FM_TRY(fmv_foreign_keep(&f->name, fm_json_get(doc, "name")));
    return fmv_foreign_keep(&f->description, fm_json_get(doc, "description"));
}

fm_status fmv_foreign_checklist(fmv_foreign *f, fm_span text)
{
    fm_json *doc = NULL;
    fm_status rc = fm_json_parse(&doc, text, f->what);
    FM_THEN(rc, read_tests(f, doc));
    fm_json_free(doc);
    return rc;
}
