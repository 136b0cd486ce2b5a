/* margin.c - a score for cases that have none: the log-probability of the right answer less that of
 * the wrong one. */
#include "cli/ops/blame/blame.h"

#include <math.h>
#include <string.h>

#include "store/base/math/hash.h"
#include "store/base/mem.h"

void fmo_blame_contrast(fmo_blame *b)
{
    const fm_blame_node *n = &b->version[b->history.culprit].node;
    const char *right =
        n->parent_count && b->version[n->parent[0]].passed ? b->version[n->parent[0]].text : NULL;
    if (right && *right && b->answer && *b->answer && strcmp(right, b->answer) != 0) {
        b->right = right;
        b->wrong = b->answer;
    }
}

typedef struct scoring {
    fm_ids ids;
    size_t prompt;
    float *logprob; /* [ids.count]; NULL: it cannot be computed, or was found in the results */
    char key[FM_HEX_CHARS + 1];
} scoring;

/* The key of a log-probability, a digest of all that it depends on: it is stored with the results
 * of tests, so that a later search finds it. */
static fm_status scoring_key(scoring *s, const fm_model *m)
{
    const fm_engine *e = fm_model_engine(m);
    const fm_digest model = fm_model_digest_for(m, FM_ASK_TEXT);
    fm_digest key;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "blame answer 1 %s %s %zu %zu\n", fm_engine_mode(e),
                  fm_engine_kernel_class(e), s->prompt, s->ids.count);
    fm_buf_append(&text, model.b, sizeof model.b);
    fm_buf_append(&text, s->ids.id, s->ids.count * sizeof *s->ids.id);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, fm_sha256(&key, text.data, text.len));
    if (rc == FM_OK)
        fm_digest_hex(&key, s->key);
    fm_buf_release(&text);
    return rc;
}

/* Reads a stored log-probability; *out is unchanged (NaN) if there is none. */
static fm_status kept_lp(const fmo_blame *b, const char *key, double *out)
{
    fm_buf text;
    fm_json *o = NULL;
    fm_buf_init(&text, 0);
    fm_status rc = fm_result_get(b->c->repo, &text, key);
    FM_THEN(rc, fm_json_parse(&o, fm_buf_span(&text), "kept answer"));
    if (rc == FM_OK)
        *out = fm_json_real(fm_json_get(o, "logprob"), NAN);
    fm_json_free(o);
    fm_buf_release(&text);
    if (rc == FM_ENOTFOUND || rc == FM_ECORRUPT || rc == FM_EINVAL) { /* none is stored */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

static fm_status keep_lp(const fmo_blame *b, const char *key, double lp)
{
    fm_buf text;
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_buf_init(&text, 0);
    fm_json_put(&rc, o, "logprob", fm_json_new_real(lp));
    FM_THEN(rc, fm_json_write(&text, o, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_result_put(b->c->repo, key, fm_buf_span(&text)));
    fm_json_free(o);
    fm_buf_release(&text);
    return rc;
}

/* *lp: the stored value; else allocates s->logprob for the request. */
static fm_status open_scoring(const fmo_blame *b, const fmo_blame_answer *a, scoring *s, double *lp)
{
    if (!a->text)
        return FM_OK;
    fm_status rc =
        fm_suite_case_answer(&s->ids, &s->prompt, b->suite, b->case_index, a->model, a->text);
    if (rc == FM_EUNSUPPORTED) { /* then there is only the verdict */
        fm_error_clear();
        return FM_OK;
    }
    FM_THEN(rc, scoring_key(s, a->model));
    FM_THEN(rc, kept_lp(b, s->key, lp));
    if (rc == FM_OK && isnan(*lp) && !(s->logprob = fm_calloc(s->ids.count, sizeof *s->logprob)))
        rc = FM_ENOMEM;
    return rc;
}

/* Sums the log-probabilities of the answer's tokens, and stores the sum. */
static fm_status close_scoring(const fmo_blame *b, const scoring *s, double *lp)
{
    *lp = 0;
    for (size_t t = s->prompt; t < s->ids.count; t++)
        *lp += (double)s->logprob[t];
    return isfinite(*lp) ? keep_lp(b, s->key, *lp) : FM_OK;
}

fm_status fmo_blame_lps(const fmo_blame *b, const fmo_blame_answer *a, size_t n, double *lp)
{
    scoring *s = fm_calloc(n, sizeof *s);
    fm_score_request *req = fm_calloc(n, sizeof *req);
    size_t asks = 0;
    fm_status rc = s && req ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        lp[i] = NAN;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = open_scoring(b, &a[i], &s[i], &lp[i]);
        if (rc == FM_OK && s[i].logprob)
            req[asks++] = (fm_score_request){.model = a[i].model,
                                             .ids = s[i].ids.id,
                                             .n = s[i].ids.count,
                                             .logprobs = s[i].logprob,
                                             .from = s[i].prompt};
    }
    if (rc == FM_OK && asks)
        rc = fm_score_many(fm_model_engine(req[0].model), req, asks);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        if (s[i].logprob)
            rc = close_scoring(b, &s[i], &lp[i]);
    for (size_t i = 0; s && i < n; i++) {
        fm_ids_release(&s[i].ids);
        fm_free(s[i].logprob);
    }
    fm_free(s);
    fm_free(req);
    if (rc == FM_EUNSUPPORTED || rc == FM_EINVAL) { /* no text model, or too long a text */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

fm_status fmo_blame_margins(const fmo_blame *b, fm_model *const *model, size_t n, double *out)
{
    fmo_blame_answer *a = fm_calloc(2 * n, sizeof *a);
    double *lp = fm_calloc(2 * n, sizeof *lp);
    fm_status rc = a && lp ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < 2 * n; i++)
        a[i] = (fmo_blame_answer){model[i / 2], i % 2 ? b->wrong : b->right};
    FM_THEN(rc, fmo_blame_lps(b, a, 2 * n, lp));
    for (size_t i = 0; i < n; i++)
        out[i] = rc == FM_OK ? lp[2 * i] - lp[2 * i + 1] : (double)NAN;
    fm_free(a);
    fm_free(lp);
    return rc;
}
