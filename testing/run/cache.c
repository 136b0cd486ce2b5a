/* cache.c - the key of a case's result, and the result as JSON. The key covers what the outcome
 * depends on and nothing else: no name, no date. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/suite/internal.h"

static fm_json *digest_json(fm_digest d)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&d, hex);
    return fm_json_new_str(hex);
}

bool fmv_case_samples(const fmv_case *c)
{
    return c->scoring == FMV_SCORE_TEXT && c->sampling.temperature > 0;
}

bool fm_suite_case_samples(const fm_suite *s, size_t i)
{
    fm_assert(i < s->count);
    return fmv_case_samples(&s->cases[i]);
}

/* The kind of question that a case asks its model. */
static fm_ask_kind ask_kind(const fmv_case *c)
{
    switch (c->scoring) {
    case FMV_SCORE_TEXT:
    case FMV_SCORE_CHOICE:
    case FMV_SCORE_LOGPROB:
    case FMV_SCORE_ROLLING:
        return FM_ASK_TEXT;
    case FMV_SCORE_CLASS:
        return FM_ASK_CLASS;
    case FMV_SCORE_EMBED:
        return FM_ASK_EMBED;
    }
    return FM_ASK_TEXT;
}

static fm_status key_of(char out[65], const fmv_case *c, const fm_model *m, uint64_t seed_shift)
{
    const fm_engine *e = fm_model_engine(m);
    fm_digest key;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(o, "runner", fm_json_new_int(FM_RUNNER_VERSION)));
    FM_THEN(rc, fm_json_set(o, "case", digest_json(c->digest)));
    FM_THEN(rc, fm_json_set(o, "model", digest_json(fm_model_digest_for(m, ask_kind(c)))));
    FM_THEN(rc, fm_json_set(o, "text", digest_json(fm_model_text_digest(m))));
    FM_THEN(rc, fm_json_set(o, "mode", fm_json_new_str(fm_engine_mode(e))));
    FM_THEN(rc, fm_json_set(o, "kernel_class", fm_json_new_str(fm_engine_kernel_class(e))));
    if (rc == FM_OK && c->aux_count)
        rc = fm_json_set(o, "judge", fm_json_new_int(FMV_JUDGE_VERSION));
    if (rc == FM_OK && c->scoring == FMV_SCORE_ROLLING) /* older results have no numbers */
        rc = fm_json_set(o, "numbers", fm_json_new_int(1));
    if (rc == FM_OK && seed_shift && fmv_case_samples(c))
        rc = fm_json_set(o, "seed_shift", fm_json_new_int((int64_t)seed_shift));
    FM_THEN(rc, fm_json_write(&text, o, FM_JSON_CANONICAL));
    FM_THEN(rc, fm_sha256(&key, text.data, text.len));
    if (rc == FM_OK)
        fm_digest_hex(&key, out);
    fm_json_free(o);
    fm_buf_release(&text);
    return rc;
}

fm_status fm_result_key(char out[65], const fm_suite *s, size_t i, const fm_model *m)
{
    fm_assert(i < s->count);
    return key_of(out, &s->cases[i], m, 0);
}

fm_status fm_ask_result_key(char out[65], const fm_suite_ask *ask, size_t i)
{
    fm_assert(i < ask->suite->count);
    return key_of(out, &ask->suite->cases[i], ask->model, ask->seed_shift);
}

static const char *const verdicts[] = {"pass", "fail", "error"};

static fm_json *numbers_json(const fm_case_measures *n)
{
    const double x[] = {n->probability, n->confidence, n->brier, n->nll, n->tokens};
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < FM_ARRAY_LEN(x) && rc == FM_OK; i++)
        rc = fm_json_push(a, fm_json_new_real(x[i]));
    if (rc == FM_OK)
        return a;
    fm_json_free(a);
    return NULL;
}

static fm_case_measures numbers_of(const fm_json *a)
{
    double x[5];
    for (size_t i = 0; i < FM_ARRAY_LEN(x); i++)
        x[i] = fm_json_real(fm_json_at(a, i), NAN);
    return (fm_case_measures){x[0], x[1], x[2], x[3], x[4]};
}

fm_status fmv_result_encode(fm_buf *out, const fm_case_result *r)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(o, "verdict", fm_json_new_str(verdicts[r->verdict])));
    FM_THEN(rc, fm_json_set(o, "output", fm_json_new_str(r->output)));
    FM_THEN(rc, fm_json_set(o, "answer", fm_json_new_str(r->answer)));
    FM_THEN(rc, fm_json_set(o, "detail", fm_json_new_str(r->detail)));
    FM_THEN(rc, fm_json_set(o, "score", fm_json_new_real(r->score)));
    if (rc == FM_OK && !isnan(r->numbers.nll))
        rc = fm_json_set(o, "numbers", numbers_json(&r->numbers));
    if (rc == FM_OK && r->metrics)
        rc = fm_json_set(o, "metrics", fm_json_ref(r->metrics));
    FM_THEN(rc, fm_json_write(out, o, FM_JSON_CANONICAL));
    fm_json_free(o);
    return rc;
}

static fm_status copy_text(char **out, const fm_json *v)
{
    const char *s = fm_json_cstr(v, NULL);
    *out = s ? fm_strdup(s) : NULL;
    return s && !*out ? FM_ENOMEM : FM_OK;
}

fm_status fmv_result_decode(fm_case_result *out, fm_span text)
{
    fm_json *o = NULL;
    fm_status rc = fm_json_parse(&o, text, "kept result");
    const char *verdict = fm_json_cstr(fm_json_get(o, "verdict"), "");
    size_t v = 0;
    while (v < FM_ARRAY_LEN(verdicts) && strcmp(verdicts[v], verdict) != 0)
        v++;
    /* errors are never kept here, but a merged history may hold any record */
    if (rc == FM_OK && v >= FM_ERROR_CASE)
        rc = fm_fail(FM_ECORRUPT, "kept result: verdict '%.40s' is not pass or fail", verdict);
    if (rc == FM_OK) {
        out->verdict = (fm_verdict)v;
        out->score = fm_json_real(fm_json_get(o, "score"), NAN);
        out->numbers = numbers_of(fm_json_get(o, "numbers"));
        out->cached = true;
        if (fm_json_get(o, "metrics"))
            out->metrics = fm_json_ref(fm_json_get(o, "metrics"));
        rc = copy_text(&out->output, fm_json_get(o, "output"));
    }
    FM_THEN(rc, copy_text(&out->answer, fm_json_get(o, "answer")));
    FM_THEN(rc, copy_text(&out->detail, fm_json_get(o, "detail")));
    fm_json_free(o);
    return rc;
}
