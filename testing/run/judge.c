/* judge.c - the verdict of one case from the answers of its model. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/run/run.h"

/* Refuses scores that are not finite: broken weights give NaN, which no comparison finds. */
static fm_status need_finite(const fmv_job *j)
{
    for (size_t k = 0; k < j->count; k++)
        if (!isfinite(fmv_logprob_of(&j->work[k])))
            return fm_fail(FM_EUNSUPPORTED, "the model's log-probabilities are not finite");
    return FM_OK;
}

static void compare_answers(const fmv_job *j, size_t k, bool *ok, fm_buf *detail)
{
    fm_span first = fm_buf_span(&j->said[0].text), text = fm_buf_span(&j->said[k].text);
    fm_span said = fmv_clip(text, 200);
    if (fmv_text_equal(fmv_trim(first), fmv_trim(text), j->c->ignore_case))
        return;
    *ok = false;
    if (!detail->len)
        fm_buf_printf(detail, "answer %zu differs from the first: \"%.*s\"", k + 1, (int)said.len,
                      (const char *)said.data);
}

/* The k-th prompt's answer, with everything that assertions read. */
static fmv_answer answer_at(const fmv_job *j, size_t k)
{
    const fm_gen_result *gen = &j->said[k].work->gen;
    return (fmv_answer){.text = fm_buf_span(&j->said[k].text),
                        .finish = gen->finish,
                        .logprobs = gen->logprobs,
                        .tokens = gen->count,
                        .aux = j->aux ? j->aux + k * j->c->aux_count : NULL};
}

/* Judges a case that generates; of several answers the worst counts. */
static fm_status judge_text(fmv_job *j, fm_buf *output, fm_buf *detail)
{
    const fmv_case *c = j->c;
    const fm_buf *raw = &j->said[0].work->gen.text;
    fmv_metrics metrics = {.count = 0};
    double score = 1;
    fm_status rc = FM_OK;
    bool ok = true;
    for (size_t k = 0; rc == FM_OK && k < c->prompt_count; k++) {
        fmv_answer said = answer_at(j, k);
        fmv_grade g;
        rc = fmv_expect_grade(c, &said, &g, detail, &metrics);
        ok = ok && g.holds;
        score = FM_MIN(score, g.score);
        if (rc == FM_OK && c->kind == FMV_INV && !c->pairs)
            compare_answers(j, k, &ok, detail);
    }
    if (rc == FM_OK && c->pairs) {
        bool hold;
        rc = fmv_judge_pairs(j, output, detail, &hold);
        ok = ok && hold;
    }
    fm_buf_append(output, raw->data, raw->len);
    if (c->graded)
        j->result->score = score;
    j->result->metrics = fmv_metrics_json(&metrics);
    j->result->answer = fm_strdup(fm_buf_cstr(&j->said[0].text));
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    if (rc == FM_OK && (!j->result->answer || (metrics.count && !j->result->metrics)))
        rc = FM_ENOMEM;
    return rc;
}

/* The likeliest choice must be the answer; with a tie the model cannot tell, and the case fails.
 * Score: the lead of the answer over the best other choice (negative when it lost). */
static fm_status judge_choice(fmv_job *j, fm_buf *output, fm_buf *detail)
{
    const fmv_case *c = j->c;
    double best_other = -INFINITY, own = -INFINITY;
    size_t rival = 0;
    FM_TRY(need_finite(j));
    for (size_t k = 0; k < c->choice_count; k++) {
        double lp = fmv_score_of(j, k);
        fm_buf_printf(output, "%s\"%s\" %.3f", k ? ", " : "", c->choice[k], lp);
        if (k == c->answer) {
            own = lp;
        } else if (lp > best_other) {
            best_other = lp;
            rival = k;
        }
    }

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

static bool moves_as_wanted(const fmv_case *c, double from, double to)
{
    double by = c->increases ? to - from : from - to;
    if (c->kind == FMV_INV)
        return fabs(to - from) <= c->margin;
    return by > 0 && by >= c->margin;
}

/* Whether greedy decoding gave the continuation, token by token. */
static bool is_greedy(const fmv_work *w)
{
    size_t n = w->ids.count - w->prompt_len;
    return w->gen.count == n && memcmp(w->gen.tokens, w->ids.id + w->prompt_len, n * 4) == 0;
}

static fm_status judge_logprob(fmv_job *j, fm_buf *output, fm_buf *detail)
{
    const fmv_case *c = j->c;
    const fmv_work *w = j->work;
    double first = fmv_logprob_of(w), last = first;
    bool ok = true;
    FM_TRY(need_finite(j));
    fm_buf_printf(output, "\"%s\" %.3f", c->continuation, first);
    for (size_t k = 1; k < j->count; k++) {
        double lp = fmv_logprob_of(&w[k]),
               from = c->kind == FMV_INV || c->against_first ? first : last;
        fm_buf_printf(output, ", %.3f", lp);
        if (!moves_as_wanted(c, from, lp) && ok) {
            ok = false;
            fm_buf_printf(detail,
                          "from prompt %zu to %zu the log-probability goes from %.3f to %.3f",
                          c->kind == FMV_INV || c->against_first ? (size_t)1 : k, k + 1, from, lp);
        }
        last = lp;
    }
    if (c->kind == FMV_MFT && !isnan(c->above) && !(first > c->above)) {
        ok = false;
        fm_buf_printf(detail, "log-probability %.3f is not above %g", first, c->above);
    }
    if (c->kind == FMV_MFT && !isnan(c->below) && !(first < c->below)) {
        ok = false;
        fm_buf_printf(detail, "log-probability %.3f is not below %g", first, c->below);
    }
    if (c->greedy >= 0 && is_greedy(w) != (c->greedy > 0)) {
        ok = false;
        fm_buf_printf(detail, "greedy decoding %s it", c->greedy ? "does not say" : "says");
    }
    j->result->score = first;
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    j->result->answer = fm_strdup(c->continuation);
    return j->result->answer ? FM_OK : FM_ENOMEM;
}

fm_status fmv_judge(fmv_job *j)
{
    fm_buf output, detail;
    fm_buf_init(&output, 0);
    fm_buf_init(&detail, 0);
    fm_status rc = FM_OK;
    bool ok, pairs = j->c->pairs != NULL;
    switch (j->c->scoring) {
    case FMV_SCORE_TEXT:
        rc = judge_text(j, &output, &detail);
        break;
    case FMV_SCORE_CHOICE:
        rc = pairs ? fmv_judge_pairs(j, &output, &detail, &ok) : judge_choice(j, &output, &detail);
        break;
    case FMV_SCORE_LOGPROB:
        rc = pairs ? fmv_judge_pairs(j, &output, &detail, &ok) : judge_logprob(j, &output, &detail);
        break;
    case FMV_SCORE_ROLLING:
        rc = fmv_judge_rolling(j, &output, &detail);
        break;
    case FMV_SCORE_CLASS:
        rc = fmv_judge_class(j, &output, &detail);
        break;
    case FMV_SCORE_EMBED:
        rc = fmv_judge_embed(j, &output, &detail);
        break;
    }
    FM_THEN(rc, fmv_note_measures(j));
    if (rc == FM_OK) {
        j->result->output = fm_buf_take(&output);
        j->result->detail = detail.len ? fm_buf_take(&detail) : NULL;
        rc = j->result->output ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&output);
    fm_buf_release(&detail);
    return rc;
}
