/* blame_worth.c - answers as numbers: how much more a model likes the right answer than the
 * wrong one, and what each unit of a found set adds to that. */
#include <math.h>
#include <string.h>

#include "cli/blame.h"
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

fm_status blame_margins(const blame *b, fm_model *const *model, size_t n, double *out)
{
    fm_ids *ids = fm_calloc(2 * n, sizeof *ids);
    size_t *prompt = fm_calloc(2 * n, sizeof *prompt), asks = 0;
    fm_score_request *req = fm_calloc(2 * n, sizeof *req);
    float **logprob = fm_calloc(2 * n, sizeof *logprob);
    fm_status rc = ids && prompt && req && logprob ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        out[i] = NAN;
    for (size_t i = 0; rc == FM_OK && i < 2 * n; i++) {
        rc = answer_ids(b, model[i / 2], i % 2 ? b->wrong : b->right, &ids[i], &prompt[i]);
        if (rc == FM_EUNSUPPORTED) { /* no such number for this model */
            fm_error_clear();
            rc = FM_OK;
            continue;
        }
        if (rc == FM_OK && !(logprob[i] = fm_calloc(ids[i].count, sizeof **logprob)))
            rc = FM_ENOMEM;
        if (rc == FM_OK)
            req[asks++] = (fm_score_request){.model = model[i / 2],
                                             .ids = ids[i].id,
                                             .n = ids[i].count,
                                             .logprobs = logprob[i],
                                             .from = prompt[i]};
    }
    if (rc == FM_OK)
        rc = fm_score_many(b->c->engine, req, asks);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        double sum[2] = {0, 0};
        if (!logprob[2 * i] || !logprob[2 * i + 1])
            continue;
        for (size_t k = 0; k < 2; k++)
            for (size_t t = prompt[2 * i + k]; t < ids[2 * i + k].count; t++)
                sum[k] += (double)logprob[2 * i + k][t];
        out[i] = sum[0] - sum[1];
    }
    for (size_t i = 0; i < 2 * n; i++) {
        if (ids)
            fm_ids_release(&ids[i]);
        if (logprob)
            fm_free(logprob[i]);
    }
    fm_free(ids);
    fm_free(prompt);
    fm_free(req);
    fm_free(logprob);
    if (rc == FM_EUNSUPPORTED) { /* no such number; the verdict stands */
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
    fm_free(w.unit);
    return rc;
}
