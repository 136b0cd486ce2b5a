/* assert.c - `expect` of a case: how assertions are written, weighed and combined. */
#include "testing/assert/assert.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"

#define SHOWN_BYTES ((size_t)200)  /* of an answer in a detail */
#define WANTED_BYTES ((size_t)400) /* of an expectation in a detail */
#define WEIGHT_MAX 1e6

static const fmv_assert_type *const families[] = {
    fmv_assert_text, fmv_assert_json, fmv_assert_markup, fmv_assert_overlap, fmv_assert_model};
static const fmv_assert_type set_type = {.word = "assert-set",
                                         .kind = FMV_SET,
                                         .flags = FMV_TAKES_THRESHOLD,
                                         .threshold = NAN,
                                         .low = 0,
                                         .high = 1};

/* Words of other tools that are refused with a reason, lest users look for a misspelling. */
static const struct {
    const char *word, *why;
} refused[] = {
    {"latency", "it depends on the machine and its neighbours, and a result is kept for all"},
    {"cost", "nobody is paid for a token here"},
    {"javascript", "a suite never runs code"},
    {"python", "a suite never runs code"},
    {"ruby", "a suite never runs code"},
    {"webhook", "a suite never asks the network"},
    {"is-sql", "what is SQL differs by dialect; ask with regex, or a judge"},
    {"contains-sql", "what is SQL differs by dialect; ask with regex, or a judge"},
    {"meteor", "it needs WordNet's synonyms; use rouge-l, bleu or gleu"},
    {"moderation", "no such version is known; use classifier with one of yours"},
    {"select-best", "a case is judged alone; compare versions with `fmstore test --against`"},
    {"g-eval", "use llm-rubric"},
};

/* ---- reading ---- */

typedef struct reader {
    fmv_case *c;
    const char *where;
    size_t total; /* assertions so far */
    int depth;
} reader;

static const char *const beside[] = {"threshold", "weight", "metric", "model",
                                     "n",         "type",   "value",  "assert"};

static bool is_beside(const char *key)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(beside); i++)
        if (strcmp(beside[i], key) == 0)
            return true;
    return false;
}

static const fmv_assert_type *type_of(const char *word)
{
    for (size_t f = 0; f < FM_ARRAY_LEN(families); f++)
        for (const fmv_assert_type *t = families[f]; t->word; t++)
            if (strcmp(t->word, word) == 0)
                return t;
    return strcmp(word, set_type.word) == 0 ? &set_type : NULL;
}

static fm_status unknown_word(const char *word, const char *where)
{
    fm_buf list;
    fm_buf_init(&list, 4096);
    const char *plain = strncmp(word, "not-", 4) == 0 ? word + 4 : word;
    for (size_t i = 0; i < FM_ARRAY_LEN(refused); i++)
        if (strcmp(refused[i].word, plain) == 0)
            return fm_fail(FM_EUNSUPPORTED, "%s: expect: '%s' is not offered: %s", where, word,
                           refused[i].why);
    for (size_t f = 0; f < FM_ARRAY_LEN(families); f++)
        for (const fmv_assert_type *t = families[f]; t->word; t++)
            fm_buf_printf(&list, "%s%s", list.len ? ", " : "", t->word);
    fm_status rc = fm_fail(FM_EINVAL,
                           "%s: expect: unknown assertion '%.60s' (%s, assert-set, each also with "
                           "not-)",
                           where, word, fm_buf_cstr(&list));
    fm_buf_release(&list);
    return rc;
}

static fm_status read_number(double *out, const fm_json *spec, const char *key, double low,
                             double high, const char *where)
{
    const fm_json *v = fm_json_get(spec, key);
    if (!v)
        return FM_OK;
    *out = fm_json_real(v, NAN);
    if (!fmv_is_number(v) || !(*out >= low && *out <= high))
        return fm_fail(FM_EINVAL, "%s: expect: '%s' wants a number, %g to %g", where, key, low,
                       high);
    return FM_OK;
}

/* Refuses keys that have no meaning together with this word. */
static fm_status check_beside(const fmv_assertion *a, const fm_json *spec, const char *where)
{
    const fmv_assert_type *t = a->type;
    const struct {
        const char *key;
        bool may, must;
    } rule[] = {
        {"threshold", t->flags & (FMV_TAKES_THRESHOLD | FMV_NEEDS_THRESHOLD),
         t->flags & FMV_NEEDS_THRESHOLD},
        {"n", t->flags & FMV_TAKES_N, false},
        {"model", t->role != FMV_NO_AUX, t->role != FMV_NO_AUX},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(rule); i++) {
        bool has = fm_json_get(spec, rule[i].key) != NULL;
        if (has && !rule[i].may)
            return fm_fail(FM_EINVAL, "%s: '%s' says nothing beside expect.%s", where, rule[i].key,
                           t->word);
        if (!has && rule[i].must)
            return fm_fail(FM_EINVAL, "%s: expect.%s wants '%s'%s", where, t->word, rule[i].key,
                           strcmp(rule[i].key, "model") == 0
                               ? ", the full id of a version of the repository"
                               : "");
    }
    return FM_OK;
}

static fm_status read_name(const char **out, const fm_json *spec, const char *key,
                           const char *where)
{
    const fm_json *v = fm_json_get(spec, key);
    const char *s = fm_json_cstr(v, NULL);
    if (!v)
        return FM_OK;
    if (!s || !*s || strlen(s) > 100 || strpbrk(s, "\n\r\t"))
        return fm_fail(FM_EINVAL, "%s: expect: '%s' wants a line of 1 to 100 bytes (quote numbers)",
                       where, key);
    *out = s;
    return FM_OK;
}

static fm_status read_list(reader *r, const fm_json *list, fmv_assertion **out, size_t *count);

static fm_status read_part(reader *r, fmv_assertion *a)
{
    if (!fm_json_is(a->value, FM_JSON_ARRAY) || !fm_json_count(a->value))
        return fm_fail(FM_EINVAL, "%s: expect.assert-set wants a list of assertions", r->where);
    if (r->depth >= FMV_SETS_DEEP_MAX)
        return fm_fail(FM_ELIMIT, "%s: expect: assert-set is nested deeper than %d", r->where,
                       FMV_SETS_DEEP_MAX);
    r->depth++;
    fm_status rc = read_list(r, a->value, &a->part, &a->part_count);
    r->depth--;
    return rc;
}

/* Reads one assertion. spec: the mapping that contains it, with its options. */
static fm_status read_one(reader *r, fmv_assertion *a, const char *word, const fm_json *value,
                          const fm_json *spec)
{
    bool negated = strncmp(word, "not-", 4) == 0;
    const fmv_assert_type *t = type_of(negated ? word + 4 : word);
    double n = 1;
    if (!t)
        return unknown_word(word, r->where);
    if (++r->total > FMV_ASSERTIONS_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %u assertions", r->where, FMV_ASSERTIONS_MAX);
    *a = (fmv_assertion){.kind = t->kind,
                         .negated = negated,
                         .value = value,
                         .type = t,
                         .ignore_case = r->c->ignore_case || (t->flags & FMV_ICASE),
                         .weight = 1,
                         .threshold = t->threshold,
                         .low = NAN,
                         .high = NAN};
    FM_TRY(check_beside(a, spec, r->where));
    FM_TRY(read_number(&a->weight, spec, "weight", 0, WEIGHT_MAX, r->where));
    FM_TRY(read_number(&a->threshold, spec, "threshold", t->low, t->high, r->where));
    FM_TRY(read_number(&n, spec, "n", 1, 4, r->where));
    if (n != floor(n))
        return fm_fail(FM_EINVAL, "%s: expect.%s: 'n' wants a whole number", r->where, word);
    FM_TRY(read_name(&a->metric, spec, "metric", r->where));
    FM_TRY(read_name(&a->model, spec, "model", r->where));
    a->n = (uint32_t)n;
    if (t->role != FMV_NO_AUX)
        a->aux_at = r->c->aux_count++;
    if (t->flags & FMV_NEEDS_LOGPROBS)
        r->c->wants_logprobs = true;
    if (a->metric || a->weight < 1 || a->weight > 1 || !isnan(a->threshold) || t->role)
        r->c->graded = true;
    return t == &set_type ? read_part(r, a) : t->read(a, r->where);
}

/* Reads {type: contains, value: x, weight: 2}, promptfoo's form. */
static fm_status read_typed(reader *r, fmv_assertion *a, const fm_json *spec)
{
    const char *word = fm_json_cstr(fm_json_get(spec, "type"), NULL);
    for (void *it = fm_json_iter(spec); it; it = fm_json_next(spec, it))
        if (!is_beside(fm_json_iter_key(it)))
            return fm_fail(FM_EINVAL, "%s: expect: '%s' beside 'type'", r->where,
                           fm_json_iter_key(it));
    if (!word)
        return fm_fail(FM_EINVAL, "%s: expect: 'type' must be a string", r->where);
    const char *plain = strncmp(word, "not-", 4) == 0 ? word + 4 : word;
    const char *key = strcmp(plain, set_type.word) == 0 ? "assert" : "value";
    const char *other = strcmp(key, "value") == 0 ? "assert" : "value";
    if (fm_json_get(spec, other))
        return fm_fail(FM_EINVAL, "%s: expect: '%s' says nothing with type %s", r->where, other,
                       word);
    return read_one(r, a, word, fm_json_get(spec, key), spec);
}

/* Reads one mapping: words to values, or one word and its options. */
static fm_status read_mapping(reader *r, const fm_json *spec, fmv_assertion **out, size_t *count)
{
    size_t words = 0, others = 0;
    for (void *it = fm_json_iter(spec); it; it = fm_json_next(spec, it))
        is_beside(fm_json_iter_key(it)) ? others++ : words++;
    bool typed = fm_json_get(spec, "type") != NULL;
    if (!typed && words != 1 && others)
        return fm_fail(FM_EINVAL,
                       "%s: expect: weight, threshold and the like go with one assertion: write a "
                       "list of mappings",
                       r->where);
    if (!typed && (fm_json_get(spec, "value") || fm_json_get(spec, "assert")))
        return fm_fail(FM_EINVAL, "%s: expect: 'value' and 'assert' go with 'type'", r->where);
    size_t more = typed ? 1 : words;
    fmv_assertion *all = fm_realloc(*out, (*count + more) * sizeof *all);
    if (!all)
        return FM_ENOMEM;
    *out = all;
    fm_status rc = FM_OK;
    for (void *it = fm_json_iter(spec); rc == FM_OK && it; it = fm_json_next(spec, it)) {
        if (is_beside(fm_json_iter_key(it)) && !(typed && it == fm_json_iter(spec)))
            continue;
        fmv_assertion *a = &all[(*count)++];
        memset(a, 0, sizeof *a);
        rc = typed ? read_typed(r, a, spec)
                   : read_one(r, a, fm_json_iter_key(it), fm_json_iter_value(it), spec);
        if (typed)
            break;
    }
    return rc;
}

static fm_status need_weight(const fmv_assertion *a, size_t n, const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].weight > 0)
            return FM_OK;
    return n ? fm_fail(FM_EINVAL, "%s: expect: every weight is 0: it could not fail", where)
             : FM_OK;
}

static fm_status read_list(reader *r, const fm_json *list, fmv_assertion **out, size_t *count)
{
    bool many = fm_json_is(list, FM_JSON_ARRAY);

    for (size_t i = 0; i < (many ? fm_json_count(list) : 1); i++) {
        const fm_json *one = many ? fm_json_at(list, i) : list;
        if (one && !fm_json_is(one, FM_JSON_OBJECT))
            return fm_fail(FM_EINVAL, "%s: 'expect' wants assertions like {contains: text}",
                           r->where);
        FM_TRY(read_mapping(r, one, out, count));
    }
    return need_weight(*out, *count, r->where);
}

fm_status fmv_expect_read(fmv_case *c, const char *where)
{
    const fm_json *expect = fm_json_get(c->doc, "expect");
    reader r = {.c = c, .where = where};
    c->threshold = NAN;
    fm_status rc = read_list(&r, expect, &c->assertion, &c->assertion_count);
    if (rc == FM_OK && c->assertion_count == 0 && (c->kind == FMV_MFT || expect))
        rc = fm_fail(FM_EINVAL, "%s: 'expect' is %s: the case could not fail", where,
                     expect ? "empty" : "missing");
    if (rc == FM_OK && c->kind == FMV_DIR && !fm_json_get(c->doc, "pairs"))
        rc = fm_fail(FM_EINVAL,
                     "%s: DIR compares log-probabilities: give 'continuation', or 'pairs'", where);
    const fm_json *t = fm_json_get(c->doc, "threshold");
    if (rc == FM_OK && t && !c->assertion_count)
        rc = fm_fail(FM_EINVAL, "%s: 'threshold' says nothing without 'expect'", where);
    if (rc == FM_OK && t) {
        c->threshold = fm_json_real(t, NAN);
        c->graded = true;
        if (!fmv_is_number(t) || !(c->threshold > 0 && c->threshold <= 1))
            rc = fm_fail(FM_EINVAL, "%s: 'threshold' wants a number above 0, at most 1", where);
    }
    return rc;
}

static void release_list(fmv_assertion *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fm_regex_free(a[i].regex);
        fmv_schema_free(a[i].schema);
        release_list(a[i].part, a[i].part_count);
    }
    fm_free(a);
}

void fmv_expect_release(fmv_case *c)
{
    release_list(c->assertion, c->assertion_count);
    c->assertion = NULL;
    c->assertion_count = 0;
}

static fm_status each_aux(const fmv_assertion *a, size_t n, fmv_assertion_fn each, void *ctx)
{
    for (size_t i = 0; i < n; i++)
        FM_TRY(a[i].kind == FMV_SET            ? each_aux(a[i].part, a[i].part_count, each, ctx)
               : a[i].type->role != FMV_NO_AUX ? each(ctx, &a[i])
                                               : FM_OK);
    return FM_OK;
}

fm_status fmv_each_aux(const fmv_case *c, fmv_assertion_fn each, void *ctx)
{
    return each_aux(c->assertion, c->assertion_count, each, ctx);
}

/* ---- grading ---- */

static fm_status explain(const fmv_assertion *a, const fmv_answer *said, const fmv_grade *g,
                         fm_buf *detail)
{
    fm_buf shown;
    fm_span got = fmv_clip(said->text, SHOWN_BYTES);
    fm_buf_init(&shown, 0);
    fm_status rc = a->value ? fm_json_write(&shown, a->value, FM_JSON_COMPACT) : FM_OK;
    fm_span want = fmv_clip(fm_buf_span(&shown), WANTED_BYTES);
    fm_buf_printf(detail, "expected %s%s %.*s, got \"%.*s\"", a->negated ? "not-" : "",
                  a->type->word, (int)want.len, (const char *)want.data, (int)got.len,
                  (const char *)got.data);
    if (g->note[0])
        fm_buf_printf(detail, " (%s)", g->note);
    fm_buf_release(&shown);
    return rc == FM_OK ? fm_buf_ok(detail) : rc;
}

static void add_metric(fmv_metrics *m, const fmv_assertion *a, const fmv_grade *g)
{
    size_t i = 0;
    double weight = a->weight > 0 ? a->weight : 1;
    if (!m || !a->metric)
        return;
    while (i < m->count && strcmp(m->m[i].name, a->metric) != 0)
        i++;
    if (i == FM_ARRAY_LEN(m->m))
        return;
    if (i == m->count) {
        m->m[m->count++].name = a->metric;
        m->m[i].sum = m->m[i].weight = 0;
    }
    m->m[i].sum += weight * g->score;
    m->m[i].weight += weight;
}

fm_json *fmv_metrics_json(const fmv_metrics *m)
{
    fm_json *o = m->count ? fm_json_new_object() : NULL;
    for (size_t i = 0; o && i < m->count; i++)
        if (fm_json_set(o, m->m[i].name, fm_json_new_real(m->m[i].sum / m->m[i].weight)) < 0) {
            fm_json_free(o);
            return NULL;
        }
    return o;
}

static fm_status grade_list(const fmv_assertion *a, size_t n, double threshold,
                            const fmv_answer *said, fmv_grade *out, fm_buf *detail,
                            fmv_metrics *metrics);

static fm_status grade_one(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out,
                           fm_buf *detail, fmv_metrics *metrics)
{
    fm_buf why; /* in a set: which part broke it */
    fm_buf_init(&why, 0);
    memset(out, 0, sizeof *out);
    fm_status rc = a->kind == FMV_SET
                       ? grade_list(a->part, a->part_count, a->threshold, said, out, &why, metrics)
                       : a->type->check(a, said, out);
    if (a->negated) {
        out->holds = !out->holds;
        out->score = 1 - out->score;
    }
    if (rc == FM_OK && !out->holds && detail->len == 0) {
        if (why.len)
            fm_buf_append(detail, why.data, why.len);
        else
            rc = explain(a, said, out, detail);
    }
    fm_buf_release(&why);
    if (rc == FM_OK)
        add_metric(metrics, a, out);
    return rc;
}

/* holds: all assertions do, or the weighted mean of the scores reaches the threshold, if any. */
static fm_status grade_list(const fmv_assertion *a, size_t n, double threshold,
                            const fmv_answer *said, fmv_grade *out, fm_buf *detail,
                            fmv_metrics *metrics)
{
    double sum = 0, weight = 0;
    bool all = true;
    fm_status rc = FM_OK;
    fm_buf why;
    fm_buf_init(&why, 0);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        fmv_grade g;
        fm_buf ignored;
        fm_buf_init(&ignored, 0);
        rc = grade_one(&a[i], said, &g, a[i].weight > 0 ? &why : &ignored, metrics);
        fm_buf_release(&ignored);
        sum += a[i].weight * g.score;
        weight += a[i].weight;
        all = all && (g.holds || !(a[i].weight > 0));
    }
    FM_THEN(rc, fm_buf_ok(&why));
    out->score = weight > 0 ? sum / weight : 1;
    /* rounding of the weights must not decide */
    out->holds = isnan(threshold) ? all : out->score >= threshold - 1e-12;
    if (rc == FM_OK && !out->holds && detail->len == 0) {
        if (!isnan(threshold))
            fm_buf_printf(detail, "score %.3f is below the threshold %g: ", out->score, threshold);
        fm_buf_append(detail, why.data, why.len);
    }
    fm_buf_release(&why);
    return rc == FM_OK ? fm_buf_ok(detail) : rc;
}

fm_status fmv_expect_grade(const fmv_case *c, const fmv_answer *said, fmv_grade *out,
                           fm_buf *detail, fmv_metrics *metrics)
{
    memset(out, 0, sizeof *out);
    return grade_list(c->assertion, c->assertion_count, c->threshold, said, out, detail, metrics);
}

fm_status fmv_assert_check(const fmv_assertion *a, fm_span text, bool *holds, fm_buf *detail)
{
    fmv_grade g;
    const fmv_answer said = {.text = text, .finish = ""};
    fm_status rc = grade_one(a, &said, &g, detail, NULL);
    *holds = g.holds;
    return rc;
}
