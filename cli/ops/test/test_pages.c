/* test_pages.c - makes a report of tested versions, in the order of history, and writes its
 * files. */
#include <math.h>
#include <string.h>

#include "cli/ops/test/test_report.h"
#include "store/base/os/io.h"
#include "store/base/map.h"
#include "store/base/mem.h"

#define WORST_CASES 12u   /* cases whose answers are scored token by token for the page */
#define ANSWER_TOKENS 96u /* of each answer, at most */

/* ---- order and parents ---- */

typedef struct ancestry {
    fm_oid *oid; /* every version of the history, children before parents */
    fm_oid *first;
    bool *root;
    size_t count, cap[3];
} ancestry;

static fm_status note_version(void *ctx, const fm_version *v)
{
    ancestry *a = ctx;
    FM_TRY(fm_grow(&a->oid, &a->cap[0], a->count + 1, sizeof *a->oid));
    FM_TRY(fm_grow(&a->first, &a->cap[1], a->count + 1, sizeof *a->first));
    FM_TRY(fm_grow(&a->root, &a->cap[2], a->count + 1, sizeof *a->root));
    a->oid[a->count] = v->oid;
    a->root[a->count] = v->parent_count == 0;
    if (v->parent_count)
        a->first[a->count] = v->parent[0];
    a->count++;
    return FM_OK;
}

static size_t tested_place(const fm_test_result *t, const fm_oid *oid)
{
    for (size_t i = 0; i < t->count; i++)
        if (fm_oid_eq(&t->version[i].oid, oid))
            return i;
    return SIZE_MAX;
}

/* Makes the columns, the oldest version first. The parent of a column is the nearest tested version
 * along first parents; near[] holds that column plus one, by position in the walk. */
static fm_status place_columns(fmo_test_pages *p, const fm_test_result *t, const ancestry *a)
{
    fm_map *at = NULL;
    size_t *near = fm_calloc(a->count, sizeof *near), n = 0;
    fm_status rc = near ? fm_map_new(&at) : FM_ENOMEM;
    for (size_t i = a->count; rc == FM_OK && i-- > 0;) {
        const size_t *up = a->root[i] ? NULL : fm_map_get(at, &a->first[i], sizeof a->first[i]);
        size_t place = tested_place(t, &a->oid[i]);
        near[i] = up ? *up : 0;
        if (place != SIZE_MAX && t->version[place].set.count) {
            p->column[n].parent = near[i] ? near[i] - 1 : SIZE_MAX;
            p->version[n++] = place;
            near[i] = n;
        }
        rc = fm_map_put(at, &a->oid[i], sizeof a->oid[i], &near[i], NULL);
    }
    p->report.count = n;
    fm_map_free(at);
    fm_free(near);
    return rc;
}

static fm_status order_columns(fm_ops *c, fmo_test_pages *p, const fm_test_result *t)
{
    ancestry a = {0};
    fm_oid *start = fm_calloc(t->count, sizeof *start);
    fm_status rc = start ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < t->count; i++)
        start[i] = t->version[i].oid;
    FM_THEN(rc, fm_log_walk(c->repo, start, t->count, note_version, &a));
    FM_THEN(rc, place_columns(p, t, &a));
    fm_free(start);
    fm_free(a.oid);
    fm_free(a.first);
    fm_free(a.root);
    return rc;
}

static fm_status fill_column(fm_ops *c, fmo_test_pages *p, size_t i, const fm_tested *v)
{
    fm_version version;
    fm_report_column *col = &p->column[i];
    FM_TRY(fm_version_read(c->repo, &version, &v->oid));
    fm_oid_hex(&v->oid, p->hex[i]);
    p->note[i] = fm_strdup(version.subject ? version.subject : "");
    fm_version_release(&version);
    col->name = v->rev;
    col->id = p->hex[i];
    col->note = p->note[i];
    col->run = v->run;
    col->run_count = v->set.count;
    return p->note[i] ? FM_OK : FM_ENOMEM;
}

fm_status fmo_test_pages_open(fm_ops *c, fmo_test_pages *p, const fm_test_result *t,
                              const fmo_test_output *o)
{
    *p = (fmo_test_pages){.column = fm_calloc(t->count, sizeof *p->column),
                          .version = fm_calloc(t->count, sizeof *p->version),
                          .hex = fm_calloc(t->count, sizeof *p->hex),
                          .note = fm_calloc(t->count, sizeof *p->note)};
    if (!p->column || !p->version || !p->hex || !p->note)
        return FM_ENOMEM;
    size_t against = SIZE_MAX;
    fm_status rc = order_columns(c, p, t);
    for (size_t i = 0; rc == FM_OK && i < p->report.count; i++) {
        if (p->version[i] == 0)
            p->report.shown = i;
        if (p->version[i] == t->against)
            against = i;
        rc = fill_column(c, p, i, &t->version[p->version[i]]);
    }
    if (t->against != SIZE_MAX) {
        for (size_t i = 0; i < p->report.count; i++)
            p->column[i].parent = SIZE_MAX;
        p->column[p->report.shown].parent = against;
    }
    if (rc == FM_OK && t->count > 1)
        p->title = t->against == SIZE_MAX ? fm_asprintf("Suites of %zu versions", p->report.count)
                                          : fm_asprintf("%s against %s", t->version[0].rev,
                                                        t->version[t->against].rev);
    if (rc == FM_OK && t->count > 1 && !p->title)
        rc = FM_ENOMEM;
    p->report.title = p->title ? p->title : t->version[0].rev;
    p->report.mode = fm_engine_mode(c->engine);
    p->report.column = p->column;
    p->report.confidence = 0.95;
    p->report.adjust_bh = o->adjust_bh;
    return rc;
}

void fmo_test_pages_release(fmo_test_pages *p)
{
    for (size_t i = 0; p->note && i < p->report.count; i++)
        fm_free(p->note[i]);
    for (size_t i = 0; p->tokens && i < p->report.token_count; i++) {
        for (size_t k = 0; k < p->tokens[i].count; k++)
            fm_free(p->tokens[i].token[k].text);
        fm_free(p->tokens[i].token);
    }
    fm_free(p->tokens);
    fm_free(p->title);
    fm_free(p->column);
    fm_free(p->version);
    fm_free(p->hex);
    fm_free(p->note);
}

/* ---- the model's probabilities of its answers ---- */

/* The text that token i adds to the answer. */
static fm_status token_text(char **out, const fm_tokenizer *tok, const int32_t *ids, size_t i)
{
    fm_buf before, after;
    fm_buf_init(&before, 0);
    fm_buf_init(&after, 0);
    fm_status rc = fm_tokenizer_decode(tok, ids, i, false, &before);
    FM_THEN(rc, fm_tokenizer_decode(tok, ids, i + 1, false, &after));
    size_t from = FM_MIN(before.len, after.len);
    *out = rc == FM_OK ? fm_strndup(fm_buf_cstr(&after) + from, after.len - from) : NULL;
    fm_buf_release(&before);
    fm_buf_release(&after);
    return rc == FM_OK && !*out ? FM_ENOMEM : rc;
}

/* Gives the answer's tokens, encoded after the case's (first) prompt, and the model's probability
 * of each; none if the prompt is too long for the model. */
static fm_status score_answer(fm_answer_tokens *out, fm_model *m, const fm_suite *s,
                              const fm_case_result *r)
{
    const fm_tokenizer *tok = fm_model_tokenizer(m);
    fm_ids ids = {0};
    size_t prompt = 0;
    fm_status rc = fm_suite_case_answer(&ids, &prompt, s, r->at, m, r->answer);
    size_t n = rc == FM_OK ? FM_MIN(ids.count - prompt, (size_t)ANSWER_TOKENS) : 0;
    float *logprobs = rc == FM_OK ? fm_calloc(prompt + n, sizeof *logprobs) : NULL;
    if (rc == FM_OK && !logprobs)
        rc = FM_ENOMEM;
    const fm_score_request req = {
        .model = m, .ids = ids.id, .n = prompt + n, .logprobs = logprobs, .from = prompt};
    FM_THEN(rc, fm_score_many(fm_model_engine(m), &req, 1));
    if (rc == FM_OK && !(out->token = fm_calloc(n, sizeof *out->token)))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = token_text(&out->token[i].text, tok, ids.id + prompt, i);
        out->token[i].logprob = (double)logprobs[prompt + i];
        out->count = i + 1;
    }
    out->result = r;
    fm_ids_release(&ids);
    fm_free(logprobs);
    if (rc < 0 && rc != FM_ENOMEM) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

static fm_status score_worst(fm_ops *c, fmo_test_pages *p, const fm_test_result *t)
{
    const fm_case_result *worst[WORST_CASES];
    const fm_tested *v = &t->version[p->version[p->report.shown]];
    size_t n = 0;
    fm_model *m = NULL;
    fm_tree *tree = NULL;
    fm_status rc = fm_report_worst(worst, &n, WORST_CASES, &p->report);
    if (rc < 0 || !n)
        return rc;
    p->tokens = fm_calloc(n, sizeof *p->tokens);
    if (!p->tokens)
        return FM_ENOMEM;
    rc = fm_version_tree(c->repo, &tree, &v->oid);
    FM_THEN(rc, fm_ops_load_model(c, tree, v->rev, &m));
    for (size_t i = 0; rc == FM_OK && m && fm_model_tokenizer(m) && i < n; i++) {
        if (!worst[i]->answer || !worst[i]->answer[0])
            continue;
        rc = score_answer(&p->tokens[p->report.token_count], m,
                          fm_report_suite_of(&p->report, worst[i]), worst[i]);
        p->report.token_count++;
    }
    p->report.tokens = p->tokens;
    fm_model_close(m);
    fm_tree_free(tree);
    return rc;
}

/* ---- files ---- */

typedef fm_status (*page_fn)(fm_buf *out, const fm_report *r);

static fm_status write_page(const char *path, page_fn make, const fm_report *r)
{
    fm_buf text;
    if (!path)
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = make(&text, r);
    FM_THEN(rc, fm_write_file(path, text.data, text.len));
    fm_buf_release(&text);
    return rc;
}

static fm_status junit_page(fm_buf *out, const fm_report *r)
{
    const fm_report_column *c = &r->column[r->shown];
    return fm_report_junit(out, c->run, c->run_count, c->name);
}

fm_status fmo_test_pages_write(fm_ops *c, fmo_test_pages *p, const fm_test_result *t,
                               const fmo_test_output *o)
{
    FM_TRY(write_page(o->junit, junit_page, &p->report));
    FM_TRY(write_page(o->sarif, fm_report_sarif, &p->report));
    FM_TRY(write_page(o->markdown, fm_report_markdown, &p->report));
    FM_TRY(write_page(o->tap, fm_report_tap, &p->report));
    if (o->html)
        FM_TRY(score_worst(c, p, t));
    return write_page(o->html, fm_report_html, &p->report);
}
