/* judge.c - the verdict of one case from what its model answered. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/run.h"

static double logprob_of(const fmi_work *w)
{
    double sum = 0;
    for (size_t i = w->prompt_len; i < w->ids.count; i++)
        sum += (double)w->logprobs[i];
    return sum;
}

/* A model whose weights are broken gives scores that compare as nothing at all. */
static fm_status need_finite(const fmi_job *j)
{
    for (size_t k = 0; k < j->count; k++)
        if (!isfinite(logprob_of(&j->work[k])))
            return fm_fail(FM_EUNSUPPORTED, "the model's log-probabilities are not finite");
    return FM_OK;
}

static void compare_answers(const fmi_job *j, const fmi_work *w, size_t k, bool *ok, fm_buf *detail)
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

static fm_status judge_text(fmi_job *j, fm_buf *output, fm_buf *detail)
{
    const fmi_work *w = j->work;
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
        if (!j->c->pairs)
            compare_answers(j, w, k, &ok, detail);
    }
    if (rc == FM_OK && j->c->pairs) {
        rc = fmi_judge_pairs(j, output, detail, &holds);
        ok = ok && holds;
    }
    fm_buf_append(output, w->gen.text.data, w->gen.text.len);
    j->result->answer = fm_strdup(fm_buf_cstr(&w->gen.text));
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    return rc == FM_OK && !j->result->answer ? FM_ENOMEM : rc;
}

static double choice_score(const fmi_case *c, const fmi_work *w, size_t k)
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

double fmi_score_of(const fmi_job *j, size_t work)
{
    const fmi_case *c = j->c;
    return c->scoring == FMI_SCORE_CHOICE ? choice_score(c, &j->work[work], work % c->choice_count)
                                          : logprob_of(&j->work[work]);
}

/* The likeliest choice must be the answer, alone: a tie says that the model cannot tell. Score: its
 * lead over the best other (negative when it lost). */
static fm_status judge_choice(fmi_job *j, fm_buf *output, fm_buf *detail)
{
    const fmi_case *c = j->c;
    double best_other = -INFINITY, own = -INFINITY;
    size_t rival = 0;
    fm_status rc = need_finite(j);
    for (size_t k = 0; rc == FM_OK && k < c->choice_count; k++) {
        double lp = choice_score(c, &j->work[k], k);
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

static fm_status judge_logprob(fmi_job *j, fm_buf *output, fm_buf *detail)
{
    const fmi_case *c = j->c;
    const fmi_work *w = j->work;
    double first = logprob_of(w), last = first;
    bool ok = true;
    fm_status rc = need_finite(j);
    if (rc < 0)
        return rc;
    fm_buf_printf(output, "\"%s\" %.3f", c->continuation, first);
    for (size_t k = 1; k < j->count; k++) {
        double lp = logprob_of(&w[k]), from = c->kind == FMI_INV || c->against_first ? first : last;
        fm_buf_printf(output, ", %.3f", lp);
        if (!moves_as_wanted(c, from, lp) && ok) {
            ok = false;
            fm_buf_printf(detail,
                          "from prompt %zu to %zu the log-probability goes from %.3f to %.3f",
                          c->kind == FMI_INV || c->against_first ? (size_t)1 : k, k + 1, from, lp);
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

fm_status fmi_judge(fmi_job *j)
{
    fm_buf output, detail;
    fm_buf_init(&output, 0);
    fm_buf_init(&detail, 0);
    fm_status rc = FM_OK;
    bool ok, pairs = j->c->pairs != NULL;
    switch (j->c->scoring) {
    case FMI_SCORE_TEXT:
        rc = judge_text(j, &output, &detail);
        break;
    case FMI_SCORE_CHOICE:
        rc = pairs ? fmi_judge_pairs(j, &output, &detail, &ok) : judge_choice(j, &output, &detail);
        break;
    case FMI_SCORE_LOGPROB:
        rc = pairs ? fmi_judge_pairs(j, &output, &detail, &ok) : judge_logprob(j, &output, &detail);
        break;
    }
    if (rc == FM_OK)
        rc = fmi_note_numbers(j);
    if (rc == FM_OK) {
        j->result->output = fm_buf_take(&output);
        j->result->detail = detail.len ? fm_buf_take(&detail) : NULL;
        rc = j->result->output ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&output);
    fm_buf_release(&detail);
    return rc;
}
