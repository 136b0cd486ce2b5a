/* lm_eval.c - reads a task of lm-evaluation-harness: one YAML file that says how an example is
 * asked, and the examples as JSON Lines.
 *
 * multiple_choice becomes `choices`, generate_until an answer that must be equal, loglikelihood a
 * continuation that must be that of greedy decoding. Measures of the whole task (ppl, f1) have no
 * meaning for one example and are refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/yaml.h"
#include "testing/foreign/foreign.h"

typedef struct task {
    fmv_foreign *f;
    const fm_json *doc;
    const char *type, *delimiter;
    bool acc_norm, ignore_case;
    const fm_json *row;
    char where[300]; /* "<data>: line 3" */
} task;

static fm_status check_keys(const fm_json *doc, const char *what)
{
    static const char *const known[] = {"task",
                                        "task_alias",
                                        "tag",
                                        "group",
                                        "dataset_path",
                                        "dataset_name",
                                        "dataset_kwargs",
                                        "training_split",
                                        "test_split",
                                        "validation_split",
                                        "fewshot_split",
                                        "num_fewshot",
                                        "output_type",
                                        "doc_to_text",
                                        "doc_to_target",
                                        "doc_to_choice",
                                        "target_delimiter",
                                        "fewshot_delimiter",
                                        "description",
                                        "generation_kwargs",
                                        "metric_list",
                                        "metadata",
                                        "repeats",
                                        "should_decontaminate",
                                        "doc_to_decontamination_query",
                                        NULL};
    for (void *it = fm_json_iter(doc); it; it = fm_json_next(doc, it)) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], fm_json_iter_key(it)) != 0)
            i++;
        if (!known[i])
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: '%.60s' is not read: a suite has no such step; write its outcome "
                           "into the examples",
                           what, fm_json_iter_key(it));
    }
    if (fm_json_int(fm_json_get(doc, "num_fewshot"), 0) != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: 'num_fewshot': examples in front of the question are drawn at random "
                       "there; write them into doc_to_text",
                       what);
    if (fm_json_int(fm_json_get(doc, "repeats"), 1) != 1)
        return fm_fail(FM_EUNSUPPORTED, "%s: 'repeats': a case is asked once", what);
    return FM_OK;
}

static fm_status read_metrics(task *t)
{
    const fm_json *list = fm_json_get(t->doc, "metric_list");
    bool acc = false;
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const fm_json *m = fm_json_at(list, i);
        const char *word = fm_json_cstr(fm_json_get(m, "metric"), "");
        static const char *const options[] = {"metric", "aggregation", "higher_is_better",
                                              "ignore_case", NULL};
        char where[320];
        snprintf(where, sizeof where, "%.200s: metric_list[%zu] (%.40s)", t->f->what, i, word);
        bool choice = strcmp(t->type, "multiple_choice") == 0;
        bool fits = choice ? strcmp(word, "acc") == 0 || strcmp(word, "acc_norm") == 0
                    : strcmp(t->type, "loglikelihood") == 0 ? strcmp(word, "acc") == 0
                                                            : strcmp(word, "exact_match") == 0;
        if (!fits)
            return fm_fail(FM_EUNSUPPORTED, "%s: says nothing of one example of %s", where,
                           t->type);
        FM_TRY(fm_json_known_keys(m, options, where));
        acc = acc || strcmp(word, "acc") == 0;
        t->acc_norm = t->acc_norm || strcmp(word, "acc_norm") == 0;
        t->ignore_case = t->ignore_case || fm_json_bool(fm_json_get(m, "ignore_case"), false);
    }
    t->acc_norm = t->acc_norm && !acc; /* if both are set the plain one decides */
    return FM_OK;
}

/* The text of doc_to_<x> for the row: a field by its name, else a template. */
static fm_status text_of(fm_buf *out, const task *t, const char *key)
{
    char where[400];
    const fm_json *how = fm_json_get(t->doc, key);
    const char *tmpl = fm_json_cstr(how, NULL);
    const fm_json *field = tmpl ? fm_json_get(t->row, tmpl) : NULL;
    snprintf(where, sizeof where, "%.280s: %s", t->where, key);
    if (!tmpl && how && !fm_json_is(how, FM_JSON_INT))
        return fm_fail(FM_EINVAL, "%s: wants a field's name or a template", where);
    if (!how)
        return fm_fail(FM_EINVAL, "%.200s: '%s' is missing", t->f->what, key);
    if (!tmpl)
        return fm_json_write(out, how, FM_JSON_COMPACT);
    if (!field)
        return fmv_foreign_render(out, tmpl, t->row, where);
    fm_span s = fm_json_str(field);
    if (!s.data)
        return fm_json_write(out, field, FM_JSON_COMPACT);
    fm_buf_append(out, s.data, s.len);
    return fm_buf_ok(out);
}

/* The list of choices: written in the task, a field, or a template that names a field. */
static const fm_json *choices_of(const task *t)
{
    const fm_json *how = fm_json_get(t->doc, "doc_to_choice");
    const char *tmpl = fm_json_cstr(how, NULL);
    const fm_json *v = tmpl ? fm_json_get(t->row, tmpl) : how;
    return tmpl && !v ? fmv_foreign_value(tmpl, t->row) : v;
}

/* The text of a choice; a choice of a list may be a template. */
static fm_status choice_text(fm_buf *out, const task *t, const fm_json *v)
{
    char where[400];
    fm_span s = fm_json_str(v);
    snprintf(where, sizeof where, "%.280s: doc_to_choice", t->where);
    fm_buf_str(out, t->delimiter);
    if (s.data && fm_json_is(fm_json_get(t->doc, "doc_to_choice"), FM_JSON_ARRAY))
        return fmv_foreign_render(out, (const char *)s.data, t->row, where);
    if (!s.data)
        return fm_json_write(out, v, FM_JSON_COMPACT);
    fm_buf_append(out, s.data, s.len);
    return fm_buf_ok(out);
}

/* text as a whole number, -1: it is none. */
static long whole(const char *text)
{
    long n = 0;
    size_t len = strspn(text, "0123456789");
    if (!len || text[len] || len > 6)
        return -1;
    for (size_t i = 0; i < len; i++)
        n = n * 10 + (text[i] - '0');
    return n;
}

/* Whether the key names a field with a text: this is then a choice's text even if it has only
 * digits. An index is a number, or comes from a template. */
static bool field_of_text(const task *t, const char *key)
{
    const char *name = fm_json_cstr(fm_json_get(t->doc, key), "");
    return fm_json_is(fm_json_get(t->row, name), FM_JSON_STRING);
}

static fm_status put_choices(fm_json *c, const task *t)
{
    const fm_json *list = choices_of(t);
    fm_json *choices = fm_json_new_array();
    fm_buf target, b;
    fm_status rc = choices ? FM_OK : FM_ENOMEM;
    fm_buf_init(&b, 0);
    fm_buf_init(&target, 0);
    if (rc == FM_OK && (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) < 2))
        rc = fm_fail(FM_EINVAL, "%s: doc_to_choice gives no list of two or more", t->where);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(list); i++) {
        fm_buf_clear(&b);
        rc = choice_text(&b, t, fm_json_at(list, i));
        FM_THEN(rc, fm_json_push(choices, fm_json_new_strn(fm_buf_cstr(&b), b.len)));
    }
    FM_THEN(rc, text_of(&target, t, "doc_to_target"));
    long at = rc == FM_OK && !field_of_text(t, "doc_to_target") ? whole(fm_buf_cstr(&target)) : -1;
    for (size_t i = 0; rc == FM_OK && at < 0 && i < fm_json_count(list); i++)
        if (fm_span_eq(fm_json_str(fm_json_at(list, i)), fm_buf_span(&target)))
            at = (long)i;
    if (rc == FM_OK && (at < 0 || (size_t)at >= fm_json_count(list)))
        rc = fm_fail(FM_EINVAL, "%s: doc_to_target gives '%.60s', which is no choice and no index",
                     t->where, fm_buf_cstr(&target));
    FM_THEN(rc, fm_json_set(c, "choices", fm_json_ref(choices)));
    FM_THEN(rc, fm_json_set(c, "answer", fm_json_ref(fm_json_at(choices, (size_t)at))));
    if (rc == FM_OK && t->acc_norm)
        rc = fm_json_set(c, "normalize", fm_json_new_str("characters"));
    fm_json_free(choices);
    fm_buf_release(&b);
    fm_buf_release(&target);
    return rc;
}

static fm_status put_generate(fm_json *c, const task *t)
{
    static const char *const known[] = {"until", "max_gen_toks", "do_sample", "temperature",
                                        "top_p", "top_k",        NULL};
    const fm_json *k = fm_json_get(t->doc, "generation_kwargs"), *until = fm_json_get(k, "until");
    fm_json *g = fm_json_new_object();
    fm_status rc = g ? fm_json_known_keys(k, known, t->f->what) : FM_ENOMEM;
    bool sample = fm_json_bool(fm_json_get(k, "do_sample"), false) ||
                  fm_json_real(fm_json_get(k, "temperature"), 0) > 0;
    fm_json_put(&rc, g, "max-tokens",
                fm_json_new_int(fm_json_int(fm_json_get(k, "max_gen_toks"), 256)));
    if (rc == FM_OK && (!until || fm_json_count(until) || fm_json_is(until, FM_JSON_STRING)))
        rc = fm_json_set(g, "stop", until ? fm_json_copy(until) : fm_json_new_str("\n\n"));
    if (rc == FM_OK && sample)
        rc = fm_json_set(g, "temperature",
                         fm_json_new_real(fm_json_real(fm_json_get(k, "temperature"), 1)));
    if (rc == FM_OK && sample && fm_json_get(k, "top_p"))
        rc = fm_json_set(g, "top-p", fm_json_copy(fm_json_get(k, "top_p")));
    if (rc == FM_OK && sample && fm_json_get(k, "top_k"))
        rc = fm_json_set(g, "top-k", fm_json_copy(fm_json_get(k, "top_k")));
    FM_THEN(rc, fm_json_set(c, "generate", fm_json_ref(g)));
    fm_json_free(g);
    return rc;
}

static fm_status put_target(fm_json *c, const task *t)
{
    bool generate = strcmp(t->type, "generate_until") == 0;
    fm_json *expect = fm_json_new_object();
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_status rc = expect ? FM_OK : FM_ENOMEM;
    if (!generate)
        fm_buf_str(&b, t->delimiter);
    FM_THEN(rc, text_of(&b, t, "doc_to_target"));
    if (generate) {
        fmv_foreign_text(&rc, expect, "equals", fm_buf_span(&b));
        fm_json_put(&rc, c, "expect", fm_json_ref(expect));
        if (t->ignore_case)
            fm_json_put(&rc, c, "ignore-case", fm_json_new_bool(true));
        FM_THEN(rc, put_generate(c, t));
    } else {
        fmv_foreign_text(&rc, c, "continuation", fm_buf_span(&b));
        fm_json_put(&rc, c, "greedy", fm_json_new_bool(true));
    }
    fm_json_free(expect);
    fm_buf_release(&b);
    return rc;
}

static fm_status add_row(const task *t, size_t number)
{
    char name[100];
    fm_json *c = fm_json_new_object();
    fm_buf b;
    fm_buf_init(&b, FMV_SUITE_BYTES_MAX);
    fm_status rc = c ? FM_OK : FM_ENOMEM;
    const char *before = fm_json_cstr(fm_json_get(t->doc, "description"), "");
    if (rc == FM_OK && *before)
        rc = fmv_foreign_render(&b, before, t->row, t->f->what);
    FM_THEN(rc, text_of(&b, t, "doc_to_text"));
    fmv_foreign_text(&rc, c, t->f->key, fm_buf_span(&b));
    FM_THEN(rc, strcmp(t->type, "multiple_choice") == 0 ? put_choices(c, t) : put_target(c, t));
    fm_buf_release(&b);
    snprintf(name, sizeof name, "%zu", number);
    if (rc == FM_OK)
        return fmv_foreign_add(t->f, c, name);
    fm_json_free(c);
    return rc;
}

static fm_status add_rows(task *t)
{
    const fm_foreign_opts *o = t->f->opts;
    const char *what = o->data_what ? o->data_what : "--data";
    fm_status rc = FM_OK;
    size_t line = 0, number = 0;
    for (size_t at = 0; at < o->data.len && rc == FM_OK;) {
        const uint8_t *p = o->data.data + at, *end = memchr(p, '\n', o->data.len - at);
        fm_span s = fm_span_of(p, end ? (size_t)(end - p) : o->data.len - at);
        fm_json *row = NULL;
        at += s.len + 1;
        line++;
        if (!fmv_trim(s).len)
            continue;
        snprintf(t->where, sizeof t->where, "%.200s: line %zu", what, line);
        rc = fm_json_parse(&row, s, t->where);
        if (rc == FM_OK && !fm_json_is(row, FM_JSON_OBJECT))
            rc = fm_fail(FM_EINVAL, "%s: wants an object a line", t->where);
        t->row = row;
        FM_THEN(rc, add_row(t, ++number));
        fm_json_free(row);
    }
    return rc;
}

static fm_status read_task(task *t)
{
    fm_status rc = fm_json_is(t->doc, FM_JSON_OBJECT)
                       ? check_keys(t->doc, t->f->what)
                       : fm_fail(FM_EINVAL, "%s: a task is a mapping", t->f->what);
    t->type = fm_json_cstr(fm_json_get(t->doc, "output_type"), "generate_until");
    t->delimiter = fm_json_cstr(fm_json_get(t->doc, "target_delimiter"), " ");
    if (rc == FM_OK && strcmp(t->type, "loglikelihood_rolling") == 0)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: output_type loglikelihood_rolling has no bound, so that a case of it "
                     "could not fail; write `perplexity` cases or a measure",
                     t->f->what);
    if (rc == FM_OK && strcmp(t->type, "multiple_choice") && strcmp(t->type, "generate_until") &&
        strcmp(t->type, "loglikelihood"))
        rc = fm_fail(FM_EINVAL, "%s: output_type '%.40s' is not known", t->f->what, t->type);
    FM_THEN(rc, read_metrics(t));
    if (rc == FM_OK && !t->f->opts->data.len)
        rc = fm_fail(FM_EINVAL, "%s: its examples are wanted too: --data FILE.jsonl", t->f->what);
    FM_THEN(rc, fmv_foreign_keep(&t->f->name, fm_json_get(t->doc, "task")));
    return rc == FM_OK ? add_rows(t) : rc;
}

fm_status fmv_foreign_lm_eval(fmv_foreign *f, fm_span text)
{
    fm_json *doc = NULL;
    fm_status rc = fm_yaml_parse(&doc, text, f->what);
    task t = {.f = f, .doc = doc};
    FM_THEN(rc, read_task(&t));
    fm_json_free(doc);
    return rc;
}
