/* work_score.c - the score of one work of a scoring: its log-probability, as normalized. */
#include <string.h>

#include "testing/run/run.h"

double fmv_logprob_of(const fmv_work *w)
{
    double sum = 0;
    for (size_t i = w->prompt_len; i < w->ids.count; i++)
        sum += (double)w->logprobs[i];
    return sum;
}

/* Number of characters of a choice, without the space between prompt and choice. */
static size_t characters(const char *choice)
{
    size_t n = fmv_count_points(fm_span_str(choice));
    return *choice == ' ' && n > 1 ? n - 1 : n;
}

/* The score of a work that scores a choice after a prompt. */
static double choice_score(const fmv_job *j, size_t work)
{
    const fmv_case *c = j->c;
    const fmv_work *w = &j->work[work];
    size_t k = work % c->choice_count;
    double sum = fmv_logprob_of(w);
    switch (c->normalize) {
    case FMV_PER_TOKEN:
        return sum / (double)(w->ids.count - w->prompt_len);
    case FMV_PER_BYTE:
        return sum / (double)strlen(c->choice[k]);
    case FMV_PER_CHARACTER:
        return sum / (double)characters(c->choice[k]);
    case FMV_LESS_ALONE:
        return sum - fmv_logprob_of(&j->work[c->prompt_count * c->choice_count + k]);
    case FMV_PER_NOTHING:
        break;
    }
    return sum;
}

double fmv_score_of(const fmv_job *j, size_t work)
{
    return j->c->scoring == FMV_SCORE_CHOICE ? choice_score(j, work)
                                             : fmv_logprob_of(&j->work[work]);
}
