/* blame_worth.c - answers as numbers: how much more a model likes the right answer than the
 * wrong one, and what each unit of a found set adds to that. */
#include <math.h>
#include <string.h>

#include "cli/blame.h"
#include "store/base/hash.h"
#include "store/base/mem.h"

#define SHAPLEY_MOST 64u

/* ---- right against wrong ---- */

void blame_contrast(blame *b)
{
    const fm_blame_node *n = &b->node[b->history.culprit];
    const char *right = n->parent_count && b->passed[n->parent[0]] ? b->text[n->parent[0]] : NULL;
    if (right && *right && b->answer && *b->answer && strcmp(right, b->answer) != 0) {
        b->right = right;
        b->wrong = b->answer;
    }
}

/* One answer behind the prompt. */
static fm_status answer_ids(const blame *b, const fm_model *m, const char *answer, fm_ids *ids,
                            size_t *prompt)
{
    fm_status rc = fm_suite_case_prompt(ids, b->suite, b->case_index, m);
    *prompt = ids->count;
    if (rc == FM_OK)
        rc = fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(answer), false, ids);
    if (rc == FM_OK && (*prompt == 0 || ids->count == *prompt))
        rc = FM_EUNSUPPORTED;
    for (size_t i = 0; rc == FM_OK && i < ids->count; i++)
        if (ids->id[i] < 0 || (uint32_t)ids->id[i] >= fm_model_arch(m)->vocab)
            rc = FM_EUNSUPPORTED;
    if (rc == FM_OK && ids->count > fm_model_arch(m)->max_positions)
        rc = FM_EUNSUPPORTED;
    return rc;
}

/* Both answers behind the prompt of one model. */
typedef struct pair {
    fm_ids ids[2]; /* right, wrong */
    size_t prompt[2];
    float *logprob[2]; /* [ids.count]; NULL: not to be asked */
    char key[FM_HEX_CHARS + 1];
} pair;

/* What the number depends on: kept with the results of tests, a later search need not ask again. */
static fm_status pair_key(pair *p, const fm_model *m)
{
    const fm_engine *e = fm_model_engine(m);
    const fm_digest model = fm_model_digest_for(m, FM_ASK_TEXT);
    fm_digest key;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "blame margin 1 %s %s %zu %zu %zu %zu\n", fm_engine_mode(e),
                  fm_engine_kernel_class(e), p->prompt[0], p->ids[0].count, p->prompt[1],
                  p->ids[1].count);
    fm_buf_append(&text, model.b, sizeof model.b);
    for (size_t k = 0; k < 2; k++)
        fm_buf_append(&text, p->ids[k].id, p->ids[k].count * sizeof *p->ids[k].id);
    fm_status rc = fm_buf_ok(&text);
    if (rc == FM_OK)
        rc = fm_sha256(&key, text.data, text.len);
    if (rc == FM_OK)
        fm_digest_hex(&key, p->key);
    fm_buf_release(&text);
    return rc;
}

static fm_status kept_margin(const blame *b, const char *key, double *out)
{
    fm_buf text;
    fm_json *o = NULL;
    fm_buf_init(&text, 0);
    fm_status rc = fm_result_get(b->c->repo, &text, key);
    if (rc == FM_OK)
        rc = fm_json_parse(&o, fm_buf_span(&text), "kept margin");
    if (rc == FM_OK)
        *out = fm_json_real(fm_json_get(o, "margin"), NAN);
    fm_json_free(o);
    fm_buf_release(&text);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

static fm_status keep_margin(const blame *b, const char *key, double margin)
{
    fm_buf text;
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_buf_init(&text, 0);
    out_set(&rc, o, "margin", fm_json_new_real(margin));
    if (rc == FM_OK)
        rc = fm_json_write(&text, o, FM_JSON_CANONICAL);
    if (rc == FM_OK)
        rc = fm_result_put(b->c->repo, key, fm_buf_span(&text));
    fm_json_free(o);
    fm_buf_release(&text);
    return rc;
}

/* *out: what is kept of it; NaN, and room for the log-probabilities, where it must be asked. */
static fm_status open_pair(const blame *b, const fm_model *m, pair *p, double *out)
{
    fm_status rc = answer_ids(b, m, b->right, &p->ids[0], &p->prompt[0]);
    if (rc == FM_OK)
        rc = answer_ids(b, m, b->wrong, &p->ids[1], &p->prompt[1]);
    if (rc == FM_EUNSUPPORTED) { /* no such number for this model; the verdict stands */
        fm_error_clear();
        return FM_OK;
    }
    if (rc == FM_OK)
        rc = pair_key(p, m);
    if (rc == FM_OK)
        rc = kept_margin(b, p->key, out);
    for (size_t k = 0; rc == FM_OK && isnan(*out) && k < 2; k++)
        if (!(p->logprob[k] = fm_calloc(p->ids[k].count, sizeof **p->logprob)))
            return FM_ENOMEM;
    return rc;
}

static double lead(const pair *p)
{
    double sum[2] = {0, 0};
    for (size_t k = 0; k < 2; k++)
        for (size_t t = p->prompt[k]; t < p->ids[k].count; t++)
            sum[k] += (double)p->logprob[k][t];
    return sum[0] - sum[1];
}

static fm_status ask_pairs(const blame *b, fm_model *const *model, size_t n, pair *p, double *out)
{
    size_t asks = 0;
    fm_score_request *req = fm_calloc(2 * n, sizeof *req);
    fm_status rc = req ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < 2 * n; i++) {
        const pair *of = &p[i / 2];
        if (of->logprob[i % 2])
            req[asks++] = (fm_score_request){model[i / 2], of->ids[i % 2].id, of->ids[i % 2].count,
                                             of->logprob[i % 2]};
    }
    if (rc == FM_OK && asks)
        rc = fm_score_many(b->c->engine, req, asks);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        if (!p[i].logprob[0])
            continue;
        out[i] = lead(&p[i]);
        if (isfinite(out[i]))
            rc = keep_margin(b, p[i].key, out[i]);
    }
    fm_free(req);
    return rc;
}

fm_status blame_margins(const blame *b, fm_model *const *model, size_t n, double *out)
{
    pair *p = fm_calloc(n, sizeof *p);
    fm_status rc = p ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        out[i] = NAN;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = open_pair(b, model[i], &p[i], &out[i]);
    if (rc == FM_OK)
        rc = ask_pairs(b, model, n, p, out);
    for (size_t i = 0; p && i < 2 * n; i++) {
        fm_ids_release(&p[i / 2].ids[i % 2]);
        fm_free(p[i / 2].logprob[i % 2]);
    }
    fm_free(p);
    if (rc == FM_EUNSUPPORTED) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* ---- Shapley values of the units found ---- */

typedef struct worth {
    blame *b;
    size_t *unit; /* [n] of the set */
    size_t n;
    bool margin;
} worth;

static fm_status coalitions(void *ctx, const bool *take, size_t n, double *value)
{
    const worth *w = ctx;
    blame *b = w->b;
    bool *units = fm_calloc(n * b->unit_count, sizeof *units);
    uint32_t *repeat = fm_calloc(n, sizeof *repeat);
    blame_heard *heard = fm_calloc(n, sizeof *heard);
    fm_status rc = units && repeat && heard ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        for (size_t k = 0; k < w->n; k++)
            units[i * b->unit_count + w->unit[k]] = take[i * w->n + k];
    if (rc == FM_OK)
        rc = blame_run_mixtures(b, units, repeat, n, heard);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        value[i] = w->margin ? -heard[i].score : heard[i].verdict == FM_FAIL;
    if (rc == FM_OK)
        blame_heard_release(heard, n);
    fm_free(units);
    fm_free(repeat);
    fm_free(heard);
    return rc;
}

/* Is there a number, not only a verdict, for both ends? */
static fm_status has_margin(worth *w)
{
    bool *both = fm_calloc(2 * w->n, sizeof *both);
    double value[2] = {NAN, NAN};
    fm_status rc = both ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        memset(both + w->n, 1, w->n * sizeof *both);
    w->margin = true;
    if (rc == FM_OK)
        rc = coalitions(w, both, 2, value);
    w->margin = isfinite(value[0]) && isfinite(value[1]);
    fm_free(both);
    return rc;
}

fm_status blame_shapley(blame *b)
{
    const fm_shapley_opts opts = {
        .max_runs = b->how.max_runs, .confidence = b->how.confidence, .seed = b->how.seed};
    worth w = {.b = b};
    if (b->minimal.size < 2 || b->minimal.size > SHAPLEY_MOST)
        return FM_OK;
    if (!(w.unit = fm_calloc(b->minimal.size, sizeof *w.unit)))
        return FM_ENOMEM;
    for (size_t u = 0; u < b->unit_count; u++)
        if (b->minimal.take[u])
            w.unit[w.n++] = u;
    fm_status rc = has_margin(&w);
    b->shapley_margin = w.margin;
    if (rc == FM_OK)
        rc = fm_shapley_values(&b->shapley, w.n, coalitions, &w, &opts);
    if (rc == FM_EINVAL) { /* what the search found stands */
        b->shapley_why_not = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = b->shapley_why_not ? FM_OK : FM_ENOMEM;
    }
    fm_free(w.unit);
    return rc;
}
