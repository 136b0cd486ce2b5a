/* measure_values.c - the values that a scored case adds to the measures of its suite. */
#include <math.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/run/run.h"

void fmv_softmax(double *x, size_t n)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        most = FM_MAX(most, x[i]);
    for (size_t i = 0; i < n; i++) {
        x[i] = fm_exp(x[i] - most);
        sum += x[i];
    }
    for (size_t i = 0; i < n; i++)
        x[i] /= sum;
}

static void note_text(fm_case_measures *out, const fmv_work *w)
{
    double sum = 0;
    for (size_t i = w->prompt_len; i < w->ids.count; i++)
        sum += (double)w->logprobs[i];
    out->nll = -sum;
    out->tokens = (double)(w->ids.count - w->prompt_len);
}

static fm_status note_choices(fm_case_measures *out, const fmv_job *j)
{
    const fmv_case *c = j->c;
    double *p = fm_calloc(c->choice_count, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    for (size_t k = 0; k < c->choice_count; k++)
        p[k] = fmv_score_of(j, k);
    fmv_softmax(p, c->choice_count);
    out->probability = p[c->answer];
    out->confidence = 0;
    out->brier = 0;
    for (size_t k = 0; k < c->choice_count; k++) {
        double miss = p[k] - (k == c->answer ? 1 : 0);
        out->confidence = FM_MAX(out->confidence, p[k]);
        out->brier += miss * miss;
    }
    fm_free(p);
    note_text(out, &j->work[c->answer]);
    return FM_OK;
}

fm_status fmv_note_measures(fmv_job *j)
{
    const fmv_case *c = j->c;
    fm_case_measures *out = &j->result->numbers;
    if (c->scoring == FMV_SCORE_CHOICE && c->answer < c->choice_count)
        return note_choices(out, j);
    if (c->scoring == FMV_SCORE_LOGPROB || c->scoring == FMV_SCORE_ROLLING)
        note_text(out, &j->work[0]);
    return FM_OK;
}
