/* run.h - a run of suites, between runner.c (jobs and batches), ask.c (what a model is asked),
 * answers.c (what it said, filtered), aux_models.c (what others say of that) and judge.c (what it
 * is worth). */
#ifndef FM_TESTING_RUN_H
#define FM_TESTING_RUN_H

#include "testing/run/aux_models.h"
#include "testing/suite/internal.h"

/* One request of a case to its model. */
typedef struct fmv_work {
    fm_ids ids; /* prompt, then for scorings the continuation */
    size_t prompt_len;
    float *logprobs;   /* scorings: [ids.count]; classes: [classes]; embeddings: [hidden] */
    fm_gen_result gen; /* generations */
} fmv_work;

/* An answer to one prompt, through the case's filters. */
typedef struct fmv_said {
    fm_buf text;
    const fmv_work *work; /* whose finish and log-probabilities are its own */
} fmv_said;

/* One case on one model. */
typedef struct fmv_job {
    const fmv_case *c;
    fm_model *model;
    fm_case_result *result;
    fmv_work *work; /* [count], within the run's array */
    size_t count;
    fmv_said *said; /* [prompt_count] */
    fmv_aux *aux;   /* [prompt_count, aux_count] */
    uint64_t seed_shift;
    bool broken; /* an error was recorded already */
    char key[65];
} fmv_job;

/* runner.c */
/* The error of this thread, rc, becomes the case's; lack of memory and a stop are the run's and come
 * back. */
fm_status fmv_case_error(fmv_job *j, fm_status rc);
fm_status fmv_generate_all(fm_engine *e, const fm_gen_request *req, fm_gen_result *const *to,
                           size_t n);

/* ask.c */
size_t fmv_works_of(const fmv_case *c);
/* Fills the ids of all works. An error is the case's, unless FM_ENOMEM. */
fm_status fmv_ask(fmv_job *j);
/* The prompt for people and judges: the text, or "role: content" lines. */
fm_status fmv_question(fm_buf *out, const fmv_case *c, size_t prompt);
fm_status fmv_check_ids(const fm_ids *ids, size_t answer, const fm_arch *arch);
/* Rolling log-probabilities of ids (a prefix and the text's tokens): the i-th window is
 * [*begin, *end), of which the tokens from *from on are scored; at most `reach` are read before the
 * last. As lm-eval's windows: disjoint, the last with all the context that there is room for.
 * False: no more. */
bool fmv_window(size_t count, size_t reach, size_t i, size_t *begin, size_t *from, size_t *end);
/* How many tokens a model reads at once for the case. */
size_t fmv_reach(const fmv_job *j);

/* score_batch.c: what scores texts: rolling log-probabilities, classes, states. */
fm_status fmv_look_all(fm_engine *e, fmv_job *job, size_t jobs);

/* answers.c: said, from the generations; an error is the case's. */
fm_status fmv_answers(fmv_job *j);
void fmv_answers_release(fmv_job *j);

/* aux_models.c: asks the helpers of all jobs, together. *out stays open until the jobs are
 * judged. */
fm_status fmv_aux_ask_all(fmv_aux_models **out, fm_engine *e, const fm_result_cache *env,
                          fmv_job *job, size_t jobs);
void fmv_auxs_release(fmv_job *j);

/* judge.c, judge_scores.c: fills verdict, output, answer, detail, score, metrics. An error is the
 * case's, unless FM_ENOMEM. */
fm_status fmv_judge(fmv_job *j);
/* work_score.c: the sum over the tokens of a continuation. */
double fmv_logprob_of(const fmv_work *w);
/* What a scoring's work is worth: a choice's log-probability as normalized, a continuation's. */
double fmv_score_of(const fmv_job *j, size_t work);
/* pairs.c: the pairs of the case; fills score, of scorings verdict and answer too. *ok false: some
 * pair does not hold, detail says which. */
fm_status fmv_judge_pairs(fmv_job *j, fm_buf *output, fm_buf *detail, bool *ok);
/* measure_values.c: the result's numbers, of scorings. */
fm_status fmv_note_measures(fmv_job *j);
void fmv_softmax(double *x, size_t n); /* in place, of log-probabilities */
fm_status fmv_judge_rolling(fmv_job *j, fm_buf *output, fm_buf *detail);
fm_status fmv_judge_class(fmv_job *j, fm_buf *output, fm_buf *detail);
fm_status fmv_judge_embed(fmv_job *j, fm_buf *output, fm_buf *detail);

#endif
