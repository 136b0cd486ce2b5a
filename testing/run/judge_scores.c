/* judge_scores.c - verdicts on scored texts: perplexity, class, similarity. */
#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/run/run.h"

static bool is_within(const fmv_case *c, double x, const char *what, fm_buf *detail)
{
    if (!isnan(c->above) && !(x > c->above)) {
        fm_buf_printf(detail, "%s %.4g is not above %g", what, x, c->above);
        return false;
    }
    if (!isnan(c->below) && !(x < c->below)) {
        fm_buf_printf(detail, "%s %.4g is not below %g", what, x, c->below);
        return false;
    }
    return true;
}

/* Counts words as lm-eval does: the number of runs of white space, plus one. */
static size_t words_between_blanks(fm_span s)
{
    size_t n = 1;
    bool inside = false;
    for (size_t at = 0; at < s.len;) {
        bool blank = fmv_is_blank(fmv_next_point(s, &at));
        n += blank && !inside;
        inside = blank;
    }
    return n;
}

fm_status fmv_judge_rolling(fmv_job *j, fm_buf *output, fm_buf *detail)
{
    static const char *const unit[] = {"word", "byte", "token"};
    const fmv_case *c = j->c;
    const fmv_work *w = j->work;
    fm_span text = fm_json_str(c->prompt[0]);
    double sum = 0;
    for (size_t i = w->prompt_len; i < w->ids.count; i++)
        sum += (double)w->logprobs[i];
    size_t n = c->per == FMV_WORDS   ? words_between_blanks(text)
               : c->per == FMV_BYTES ? text.len
                                     : w->ids.count - w->prompt_len;
    if (!isfinite(sum))
        return fm_fail(FM_EUNSUPPORTED, "the model's log-probabilities are not finite");
    double ppl = fm_exp(-sum / (double)n);
    fm_buf_printf(output, "%.3f over %zu %ss, perplexity %.4f", sum, n, unit[c->per], ppl);
    j->result->score = ppl;
    j->result->verdict = is_within(c, ppl, "perplexity", detail) ? FM_PASS : FM_FAIL;
    return FM_OK;
}

/* ---- classes ---- */

static fm_status likeliest(uint32_t *out, const fmv_job *j, const fmv_work *w)
{
    *out = 0;
    for (uint32_t i = 0; i < fm_model_classes(j->model); i++) {
        if (isnan(w->logprobs[i]))
            return fm_fail(FM_EUNSUPPORTED, "the model's probabilities are not finite");
        if (w->logprobs[i] > w->logprobs[*out])
            *out = i;
    }
    return FM_OK;
}

static bool class_moves(const fmv_case *c, double first, double last, double now)
{
    double by = c->increases ? now - last : last - now;
    return c->kind == FMV_INV ? fabs(now - first) <= c->margin : by > 0 && by >= c->margin;
}

/* Without bounds the label must be the single likeliest class. */
static bool class_fits(const fmv_job *j, uint32_t want, double p, fm_buf *detail)
{
    const fmv_case *c = j->c;
    if (!isnan(c->above) || !isnan(c->below))
        return is_within(c, p, "probability", detail);
    for (uint32_t i = 0; i < fm_model_classes(j->model); i++)
        if (i != want && j->work->logprobs[i] >= j->work->logprobs[want]) {
            fm_buf_printf(detail, "expected class \"%s\" (%.3f), \"%s\" has %.3f", c->label, p,
                          fm_model_label(j->model, i), fm_exp((double)j->work->logprobs[i]));
            return false;
        }
    return true;
}

fm_status fmv_judge_class(fmv_job *j, fm_buf *output, fm_buf *detail)
{
    const fmv_case *c = j->c;
    double first = 0, last = 0;
    uint32_t want, best, said = 0;
    bool ok = true;
    FM_TRY(fmv_class_of(&want, j->model, c->label));
    for (size_t k = 0; k < j->count; k++) {
        double p = fm_exp((double)j->work[k].logprobs[want]);
        FM_TRY(likeliest(&best, j, &j->work[k]));
        fm_buf_printf(output, "%s%s (%s %.3f)", k ? ", " : "", fm_model_label(j->model, best),
                      c->label, p);
        if (k == 0) {
            first = p;
            said = best;
        } else if (!class_moves(c, first, last, p) && ok) {
            ok = false;
            fm_buf_printf(detail, "from prompt %zu to %zu its probability goes from %.3f to %.3f",
                          c->kind == FMV_INV ? (size_t)1 : k, k + 1,
                          c->kind == FMV_INV ? first : last, p);
        }
        last = p;
    }
    if (c->kind == FMV_MFT)
        ok = class_fits(j, want, first, detail);

    j->result->score = first;
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    j->result->answer = fm_strdup(fm_model_label(j->model, said));
    return j->result->answer ? FM_OK : FM_ENOMEM;
}

/* ---- similarity ---- */

fm_status fmv_judge_embed(fmv_job *j, fm_buf *output, fm_buf *detail)
{
    const fmv_case *c = j->c;
    size_t n = fm_model_arch(j->model)->hidden, rival = 0;
    double near = 0, far = -2, one;
    fm_status rc = fmv_cosine(&near, j->work[0].logprobs, j->work[1].logprobs, n);
    fm_buf_printf(output, "%.4f", near);
    for (size_t i = 0; rc == FM_OK && i < c->far_count; i++) {
        rc = fmv_cosine(&one, j->work[0].logprobs, j->work[2 + i].logprobs, n);
        fm_buf_printf(output, ", %.4f", one);
        if (one > far) {
            far = one;
            rival = i;
        }
    }
    if (rc < 0)
        return rc;
    const char *other = (const char *)fmv_text_at(c->far_texts, rival).data;
    bool ok = is_within(c, near, "similarity", detail);
    if (ok && c->far_count && !(near > far && near - far >= c->margin)) {
        ok = false;
        fm_buf_printf(detail, "\"%.80s\" is %.4f near, \"%.80s\" %.4f (margin %g)", c->near_text,
                      near, other, far, c->margin);
    }
    j->result->score = c->far_count ? near - far : near;
    j->result->verdict = ok ? FM_PASS : FM_FAIL;
    j->result->answer = c->far_count ? fm_strdup(near > far ? c->near_text : other) : NULL;
    return c->far_count && !j->result->answer ? FM_ENOMEM : FM_OK;
}
