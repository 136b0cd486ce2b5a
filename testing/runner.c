/* runner.c - all cases of a suite on one model, in one batch.
 *
 * Every prompt of every case becomes one generation or one scoring per continuation; all of them
 * run together (rows of a batch do not change each other's bits), then each case is judged alone. A
 * case that cannot be asked (no chat template, a token beyond the model) is an error of that case.
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "infer/prompt.h"
#include "store/base/mem.h"
#include "testing/internal.h"

/* What one case needs from the model: prompt_count x max(1, choice_count) works in a row. */
typedef struct work {
    fm_ids ids; /* prompt, then for scorings the continuation */
    size_t prompt_len;
    float *logprobs;   /* scorings: [ids.count] */
    fm_gen_result gen; /* generations */
} work;

typedef struct job {
    const fmi_case *c;
    fm_case_result *result;
    size_t first, count; /* its works */
    bool broken;         /* an error was recorded already */
    char key[65];
} job;

typedef struct runner {
    fm_model *model;
    job *job;
    size_t jobs;
    work *work;
    size_t works;
} runner;

static size_t works_of(const fmi_case *c)
{
    return c->prompt_count * (c->scoring == FMI_SCORE_CHOICE ? c->choice_count : 1);
}

/* The text that the model reads: as written, or through the model's chat template. */
static fm_status chat_text(fm_buf *out, const fm_model *m, const fm_json *messages)
{
    fm_json *extra = NULL;
    fm_status rc = fm_chat_extra_new(&extra, fm_model_tokenizer(m));
    if (rc == FM_OK)
        rc = fm_chat_render(out, fm_model_chat_template(m), messages, NULL, true, extra);
    fm_json_free(extra);
    return rc;
}

static fm_status user_message(fm_json **out, const fm_json *text)
{
    fm_json *one = fm_json_new_object();
    fm_status rc = one && (*out = fm_json_new_array()) ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_json_set(one, "role", fm_json_new_str("user"));
    if (rc == FM_OK)
        rc = fm_json_set(one, "content", fm_json_ref(text));
    if (rc == FM_OK)
        rc = fm_json_push(*out, fm_json_ref(one));
    fm_json_free(one);
    return rc;
}

static fm_status prompt_text(fm_buf *out, const fmi_case *c, size_t i, const fm_model *m)
{
    fm_span plain = fm_json_str(c->prompt[i]);
    fm_json *made = NULL;
    if (c->form == FMI_PROMPT_TEXT) {
        fm_buf_append(out, plain.data, plain.len);
        return fm_buf_ok(out);
    }
    if (c->form == FMI_PROMPT_MESSAGES)
        return chat_text(out, m, c->prompt[i]);
    fm_status rc = user_message(&made, c->prompt[i]);
    if (rc == FM_OK)
        rc = chat_text(out, m, made);
    fm_json_free(made);
    return rc;
}

static fm_status encode_prompt(fm_ids *ids, const fmi_case *c, size_t i, const fm_model *m)
{
    switch (c->form) {
    case FMI_PROMPT_TEXT:
        return fm_prompt_text(ids, m, fm_json_str(c->prompt[i]));
    case FMI_PROMPT_CHAT:
        return fm_prompt_user(ids, m, fm_json_str(c->prompt[i]));
    case FMI_PROMPT_MESSAGES:
        return fm_prompt_chat(ids, m, c->prompt[i], NULL);
    }
    return FM_OK;
}

fm_status fm_suite_case_prompt(fm_ids *out, const fm_suite *s, size_t i, const fm_model *m)
{
    fm_assert(i < s->count);
    return encode_prompt(out, &s->cases[i], 0, m);
}

static const char *continuation_of(const fmi_case *c, size_t k)
{
    if (c->scoring == FMI_SCORE_CHOICE)
        return c->choice[k % c->choice_count];
    return c->scoring == FMI_SCORE_LOGPROB ? c->continuation : NULL;
}

/* ids = prompt and continuation encoded as one text, as a reader of the whole would see it, since
 * tokens may reach over the seam ("of " + "Paris" is "of", " Paris"). The continuation is what
 * comes after the tokens that both encodings share. So the space that ends a prompt goes with the
 * continuation, as in lm-eval; unlike there, a seam inside a token costs no token. */
static fm_status encode_pair(work *w, const fmi_case *c, size_t prompt, const char *continuation,
                             const fm_model *m)
{
    fm_ids alone = {0};
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = encode_prompt(&alone, c, prompt, m);
    if (rc == FM_OK)
        rc = prompt_text(&text, c, prompt, m);
    fm_buf_str(&text, continuation);
    if (rc == FM_OK)
        rc = fm_buf_ok(&text);
    if (rc == FM_OK)
        rc = fm_tokenizer_encode(fm_model_tokenizer(m), fm_buf_span(&text),
                                 c->form == FMI_PROMPT_TEXT, &w->ids);
    while (w->prompt_len < FM_MIN(alone.count, w->ids.count) &&
           alone.id[w->prompt_len] == w->ids.id[w->prompt_len])
        w->prompt_len++;
    fm_ids_release(&alone);
    fm_buf_release(&text);
    return rc;
}

static fm_status check_ids(const fm_ids *ids, size_t answer, const fm_arch *arch)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->id[i] < 0 || (uint32_t)ids->id[i] >= arch->vocab)
            return fm_fail(FM_EINVAL, "token %d is beyond the model's vocabulary of %u", ids->id[i],
                           arch->vocab);
    if (ids->count + answer > arch->max_positions)
        return fm_fail(FM_ELIMIT, "prompt and answer need %zu positions, the model has %u",
                       ids->count + answer, arch->max_positions);
    return FM_OK;
}

static fm_status prepare_work(runner *r, const fmi_case *c, size_t k, work *w)
{
    size_t prompt = c->scoring == FMI_SCORE_CHOICE ? k / c->choice_count : k;
    const char *continuation = continuation_of(c, k);
    fm_status rc;
    if (continuation) {
        rc = encode_pair(w, c, prompt, continuation, r->model);
    } else {
        rc = encode_prompt(&w->ids, c, prompt, r->model);
        w->prompt_len = w->ids.count;
    }
    if (rc == FM_OK && w->prompt_len == 0)
        rc = fm_fail(FM_EINVAL, "the prompt has no token of its own before the answer");
    if (rc == FM_OK && continuation && w->ids.count == w->prompt_len)
        rc = fm_fail(FM_EINVAL, "the continuation '%.60s' has no tokens", continuation);
    if (rc == FM_OK)
        rc = check_ids(&w->ids, continuation ? 0 : c->max_tokens, fm_model_arch(r->model));
    if (rc == FM_OK && continuation && !(w->logprobs = fm_calloc(w->ids.count, sizeof(float))))
        rc = FM_ENOMEM;
    return rc;
}

/* All choices are scored after the same tokens, or their sums would be of different events. */
static void share_prefix(runner *r, const job *j)
{
    size_t least = SIZE_MAX;
    for (size_t k = 0; k < j->count; k++)
        least = FM_MIN(least, r->work[j->first + k].prompt_len);
    for (size_t k = 0; k < j->count; k++)
        r->work[j->first + k].prompt_len = least;
}

static fm_status case_error(job *j)
{
    fm_free(j->result->detail);
    j->broken = true;
    j->result->verdict = FM_ERROR_CASE;
    j->result->detail = fm_strdup(fm_error_text());
    fm_error_clear();
    return j->result->detail ? FM_OK : FM_ENOMEM;
}

static fm_status prepare(runner *r)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; i < r->jobs; i++) {
        r->job[i].first = r->works;
        r->job[i].count = works_of(r->job[i].c);
        r->works += r->job[i].count;
    }
    r->work = fm_calloc(r->works, sizeof *r->work);
    if (!r->work)
        return FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        job *j = &r->job[i];
        for (size_t k = 0; k < j->count && !j->broken && rc == FM_OK; k++) {
            fm_status one = prepare_work(r, j->c, k, &r->work[j->first + k]);
            if (one == FM_ENOMEM)
                return one;
            if (one < 0)
                rc = case_error(j);
        }
        if (j->c->scoring == FMI_SCORE_CHOICE)
            share_prefix(r, j);
    }
    return rc;
}

#define GENERATIONS_AT_ONCE 4096 /* what the scheduler may hold waiting is bounded */

/* at[i]: the work that request i is for. */
static fm_status generate_all(runner *r, const fm_gen_request *req, const size_t *at, size_t n)
{
    fm_gen_result *out = fm_calloc(FM_MIN(n, (size_t)GENERATIONS_AT_ONCE), sizeof *out);
    fm_status rc = out ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i += GENERATIONS_AT_ONCE) {
        size_t some = FM_MIN(n - i, (size_t)GENERATIONS_AT_ONCE);
        rc = fm_generate(fm_model_engine(r->model), req + i, some, out);
        for (size_t k = 0; rc == FM_OK && k < some; k++)
            r->work[at[i + k]].gen = out[k];
    }
    fm_free(out);
    return rc;
}

static fm_status run_generations(runner *r)
{
    fm_gen_request *req = fm_calloc(r->works, sizeof *req);
    size_t *at = fm_calloc(r->works, sizeof *at), n = 0;
    fm_status rc = req && at ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        const job *j = &r->job[i];
        for (size_t k = 0; k < j->count && !j->broken && j->c->scoring == FMI_SCORE_TEXT; k++) {
            const work *w = &r->work[j->first + k];
            at[n] = j->first + k;
            req[n++] = (fm_gen_request){.model = r->model,
                                        .prompt = w->ids.id,
                                        .prompt_len = w->ids.count,
                                        .max_new = j->c->max_tokens,
                                        .sampling = j->c->sampling,
                                        .stop = j->c->stop,
                                        .stop_count = j->c->stop_count};
        }
    }
    if (rc == FM_OK)
        rc = generate_all(r, req, at, n);
    fm_free(req);
    fm_free(at);
    return rc;
}

static fm_status run_scorings(runner *r)
{
    fm_score_request *req = fm_calloc(r->works, sizeof *req);
    size_t n = 0;
    if (!req)
        return FM_ENOMEM;
    for (size_t i = 0; i < r->jobs; i++) {
        const job *j = &r->job[i];
        for (size_t k = 0; k < j->count && !j->broken && j->c->scoring != FMI_SCORE_TEXT; k++) {
            const work *w = &r->work[j->first + k];
            req[n++] = (fm_score_request){r->model, w->ids.id, w->ids.count, w->logprobs};
        }
    }
    fm_status rc = n ? fm_score_many(fm_model_engine(r->model), req, n) : FM_OK;
    fm_free(req);
    return rc;
}

/* ---- judging ---- */

static double logprob_of(const work *w)
{
    double sum = 0;
    for (size_t i = w->prompt_len; i < w->ids.count; i++)
        sum += (double)w->logprobs[i];
    return sum;
}

/* A model whose weights are broken gives scores that compare as nothing at all. */
static fm_status need_finite(const runner *r, const job *j)
{
    for (size_t k = 0; k < j->count; k++)
        if (!isfinite(logprob_of(&r->work[j->first + k])))
            return fm_fail(FM_EUNSUPPORTED, "the model's log-probabilities are not finite");
    return FM_OK;
}

static void compare_answers(const job *j, const work *w, size_t k, bool *ok, fm_buf *detail)
{
    fm_span first = fm_buf_span(&w[0].gen.text), text = fm_buf_span(&w[k].gen.text);
    fm_span said = fmi_clip(text, 200);
    if (fmi_text_equal(fmi_trim(first), fmi_trim(text), j->c->ignore_case))
        return;
    *ok = false;
    if (!detail->len)
        fm_buf_printf(detail, "answer %zu differs from the first: \"%.*s\"", k + 1, (int)said.len,
                      (const char *)said.data);
}

static fm_status judge_text(const runner *r, job *j, fm_buf *output, fm_buf *detail)
{
    const work *w = &r->work[j->first];
    fm_status rc = FM_OK;
    bool ok = true, holds;
    for (size_t k = 0; rc == FM_OK && k < j->count; k++) {
        fm_span text = fm_buf_span(&w[k].gen.text);
        if (strcmp(w[k].gen.finish, "error") == 0)
            return fm_fail(FM_EUNSUPPORTED, "the engine gave up: %s", fm_buf_cstr(&w[k].gen.text));
        for (size_t a = 0; rc == FM_OK && a < j->c->assertion_count; a++) {
            rc = fmi_assert_check(&j->c->assertion[a], j->c->ignore_case, text, &holds, detail);
            ok = ok && holds;
        }
        compare_answers(j, w, k, &ok, detail);
    }
    fm_buf_append(output, w->gen.text.data, w->gen.text.len);
    j->result->answer = fm_strdup(fm_buf_cstr(&w->gen.text));
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    return rc == FM_OK && !j->result->answer ? FM_ENOMEM : rc;
}

static double choice_score(const fmi_case *c, const work *w, size_t k)
{
    double sum = logprob_of(w);
    switch (c->normalize) {
    case FMI_PER_TOKEN:
        return sum / (double)(w->ids.count - w->prompt_len);
    case FMI_PER_BYTE:
        return sum / (double)strlen(c->choice[k]);
    case FMI_PER_NOTHING:
        break;
    }
    return sum;
}

/* The likeliest choice must be the answer, alone: a tie says that the model cannot tell. Score: its
 * lead over the best other (negative when it lost). */
static fm_status judge_choice(const runner *r, job *j, fm_buf *output, fm_buf *detail)
{
    const fmi_case *c = j->c;
    double best_other = -INFINITY, own = -INFINITY;
    size_t rival = 0;
    fm_status rc = need_finite(r, j);
    for (size_t k = 0; rc == FM_OK && k < c->choice_count; k++) {
        double lp = choice_score(c, &r->work[j->first + k], k);
        fm_buf_printf(output, "%s\"%s\" %.3f", k ? ", " : "", c->choice[k], lp);
        if (k == c->answer) {
            own = lp;
        } else if (lp > best_other) {
            best_other = lp;
            rival = k;
        }
    }
    if (rc < 0)
        return rc;
    bool ok = own > best_other;
    j->result->score = own - best_other;
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    if (!ok)
        fm_buf_printf(detail, "expected \"%s\", \"%s\" is %s (by %.3f)", c->choice[c->answer],
                      c->choice[rival], own < best_other ? "likelier" : "as likely",
                      best_other - own);
    j->result->answer = fm_strdup(c->choice[ok ? c->answer : rival]);
    return j->result->answer ? FM_OK : FM_ENOMEM;
}

static bool moves_as_wanted(const fmi_case *c, double from, double to)
{
    double by = c->increases ? to - from : from - to;
    if (c->kind == FMI_INV)
        return fabs(to - from) <= c->margin;
    return by > 0 && by >= c->margin;
}

static fm_status judge_logprob(const runner *r, job *j, fm_buf *output, fm_buf *detail)
{
    const fmi_case *c = j->c;
    const work *w = &r->work[j->first];
    double first = logprob_of(w), last = first;
    bool ok = true;
    fm_status rc = need_finite(r, j);
    if (rc < 0)
        return rc;
    fm_buf_printf(output, "\"%s\" %.3f", c->continuation, first);
    for (size_t k = 1; k < j->count; k++) {
        double lp = logprob_of(&w[k]), from = c->kind == FMI_INV ? first : last;
        fm_buf_printf(output, ", %.3f", lp);
        if (!moves_as_wanted(c, from, lp) && ok) {
            ok = false;
            fm_buf_printf(detail,
                          "from prompt %zu to %zu the log-probability goes from %.3f to %.3f",
                          c->kind == FMI_INV ? (size_t)1 : k, k + 1, from, lp);
        }
        last = lp;
    }
    if (c->kind == FMI_MFT && !isnan(c->above) && !(first > c->above)) {
        ok = false;
        fm_buf_printf(detail, "log-probability %.3f is not above %g", first, c->above);
    }
    if (c->kind == FMI_MFT && !isnan(c->below) && !(first < c->below)) {
        ok = false;
        fm_buf_printf(detail, "log-probability %.3f is not below %g", first, c->below);
    }
    j->result->score = first;
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    j->result->answer = fm_strdup(c->continuation);
    return j->result->answer ? FM_OK : FM_ENOMEM;
}

static fm_status judge(const runner *r, job *j)
{
    fm_buf output, detail;
    fm_buf_init(&output, 0);
    fm_buf_init(&detail, 0);
    fm_status rc = FM_OK;
    switch (j->c->scoring) {
    case FMI_SCORE_TEXT:
        rc = judge_text(r, j, &output, &detail);
        break;
    case FMI_SCORE_CHOICE:
        rc = judge_choice(r, j, &output, &detail);
        break;
    case FMI_SCORE_LOGPROB:
        rc = judge_logprob(r, j, &output, &detail);
        break;
    }
    if (rc < 0 && rc != FM_ENOMEM)
        rc = case_error(j); /* a regex that gave up, a score that is NaN: this case's error */
    if (rc == FM_OK && !j->broken) {
        j->result->output = fm_buf_take(&output);
        j->result->detail = detail.len ? fm_buf_take(&detail) : NULL;
        rc = j->result->output ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&output);
    fm_buf_release(&detail);
    return rc;
}

static void runner_release(runner *r)
{
    for (size_t i = 0; i < r->works && r->work; i++) {
        fm_ids_release(&r->work[i].ids);
        fm_free(r->work[i].logprobs);
        fm_gen_result_release(&r->work[i].gen);
    }
    fm_free(r->work);
    fm_free(r->job);
}

static fm_status run_jobs(runner *r, const fm_result_cache *cache)
{
    fm_status rc = prepare(r);
    if (rc == FM_OK)
        rc = run_generations(r);
    if (rc == FM_OK)
        rc = run_scorings(r);
    for (size_t i = 0; rc == FM_OK && i < r->jobs; i++) {
        job *j = &r->job[i];
        fm_buf text;
        fm_buf_init(&text, 0);
        if (!j->broken)
            rc = judge(r, j);
        /* Errors are not kept: what stood in the way may be gone tomorrow. */
        bool keep = rc == FM_OK && cache && j->result->verdict != FM_ERROR_CASE;
        if (keep)
            rc = fmi_result_encode(&text, j->result);
        if (rc == FM_OK && keep)
            rc = cache->put(cache->ctx, j->key, fm_buf_span(&text));
        fm_buf_release(&text);
    }
    return rc;
}

/* A kept result fills *result; otherwise the case becomes a job. */
static fm_status cached_or_job(runner *r, const fm_suite *s, size_t i, fm_case_result *result,
                               const fm_result_cache *cache)
{
    fm_buf kept;
    job *j = &r->job[r->jobs];
    result->name = s->cases[i].name;
    result->score = NAN;
    fm_status rc = fm_result_key(j->key, s, i, r->model);
    fm_buf_init(&kept, 0);
    if (rc == FM_OK && cache)
        rc = cache->get(cache->ctx, &kept, j->key);
    if (rc == FM_OK && cache)
        rc = fmi_result_decode(result, fm_buf_span(&kept));
    fm_buf_release(&kept);
    if (rc == FM_ENOTFOUND || rc == FM_ECORRUPT || (rc == FM_OK && !cache)) {
        fm_error_clear();
        j->c = &s->cases[i];
        j->result = result;
        r->jobs++;
        rc = FM_OK;
    }
    return rc;
}

static void count_results(fm_suite_run *run)
{
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *c = &run->result[i];
        run->passed += c->verdict == FM_PASS;
        run->failed += c->verdict == FM_FAIL;
        run->errors += c->verdict == FM_ERROR_CASE;
        run->cached += c->cached;
    }
}

fm_status fm_suite_run_on(fm_suite_run *out, const fm_suite *s, fm_model *m, const char *case_name,
                          const fm_result_cache *cache)
{
    struct timespec t0, t1;
    runner r = {.model = m};
    memset(out, 0, sizeof *out);
    long only = case_name ? fm_suite_find(s, case_name) : 0;
    if (only < 0)
        return fm_fail(FM_ENOTFOUND, "suite '%s' has no case '%s'", s->name, case_name);
    size_t first = (size_t)only, end = case_name ? first + 1 : s->count;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    out->suite = s;
    out->count = end - first;
    out->result = fm_calloc(out->count, sizeof *out->result);
    r.job = fm_calloc(out->count, sizeof *r.job);
    fm_status rc = out->result && r.job ? FM_OK : FM_ENOMEM;
    for (size_t i = first; rc == FM_OK && i < end; i++)
        rc = cached_or_job(&r, s, i, &out->result[i - first], cache);
    if (rc == FM_OK && r.jobs)
        rc = run_jobs(&r, cache);
    runner_release(&r);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    out->seconds = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
    if (rc == FM_OK)
        count_results(out);
    else
        fm_suite_run_release(out);
    return rc;
}

void fm_suite_run_release(fm_suite_run *run)
{
    for (size_t i = 0; run->result && i < run->count; i++) {
        fm_free(run->result[i].output);
        fm_free(run->result[i].answer);
        fm_free(run->result[i].detail);
    }
    fm_free(run->result);
    memset(run, 0, sizeof *run);
}
