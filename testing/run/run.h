/* run.h - a run of suites, between runner.c (jobs and batches), ask.c (what a model is asked),
 * answers.c (what it said, filtered), aux_models.c (what others say of that) and judge.c (what it
 * is worth). */
#ifndef FM_TESTING_RUN_H
#define FM_TESTING_RUN_H

#include "testing/run/aux_models.h"
#include "testing/suite/internal.h"

/* One request of a case to its model. */
typedef struct fmi_work {
    fm_ids ids; /* prompt, then for scorings the continuation */
    size_t prompt_len;
    float *logprobs;   /* scorings: [ids.count]; classes: [classes]; embeddings: [hidden] */
    fm_gen_result gen; /* generations */
} fmi_work;

/* An answer to one prompt, through the case's filters. */
typedef struct fmi_said {
    fm_buf text;
    const fmi_work *work; /* whose finish and log-probabilities are its own */
} fmi_said;

/* One case on one model. */
typedef struct fmi_job {
    const fmi_case *c;
    fm_model *model;
    fm_case_result *result;
    fmi_work *work; /* [count], within the run's array */
    size_t count;
    fmi_said *said; /* [prompt_count] */
    fmi_help *help; /* [prompt_count, helper_count] */
    uint64_t seed_shift;
    bool broken; /* an error was recorded already */
    char key[65];
} fmi_job;

/* runner.c */
/* The error of this thread, rc, becomes the case's; lack of memory and a stop are the run's and come
 * back. */
fm_status fmi_case_error(fmi_job *j, fm_status rc);
fm_status fmi_generate_all(fm_engine *e, const fm_gen_request *req, fm_gen_result *const *to,
                           size_t n);

/* ask.c */
size_t fmi_works_of(const fmi_case *c);
/* Fills the ids of all works. An error is the case's, unless FM_ENOMEM. */
fm_status fmi_ask(fmi_job *j);
/* The prompt for people and judges: the text, or "role: content" lines. */
fm_status fmi_question(fm_buf *out, const fmi_case *c, size_t prompt);
fm_status fmi_check_ids(const fm_ids *ids, size_t answer, const fm_arch *arch);
/* Rolling log-probabilities of ids (a prefix and the text's tokens): the i-th window is
 * [*begin, *end), of which the tokens from *from on are scored; at most `reach` are read before the
 * last. As lm-eval's windows: disjoint, the last with all the context that there is room for.
 * False: no more. */
bool fmi_window(size_t count, size_t reach, size_t i, size_t *begin, size_t *from, size_t *end);
/* How many tokens a model reads at once for the case. */
size_t fmi_reach(const fmi_job *j);

/* score_batch.c: what scores texts: rolling log-probabilities, classes, states. */
fm_status fmi_look_all(fm_engine *e, fmi_job *job, size_t jobs);

/* answers.c: said, from the generations; an error is the case's. */
fm_status fmi_answers(fmi_job *j);
void fmi_answers_release(fmi_job *j);

/* aux_models.c: asks the helpers of all jobs, together. *out stays open until the jobs are
 * judged. */
fm_status fmi_help_all(fmi_helpers **out, fm_engine *e, const fm_result_cache *env, fmi_job *job,
                       size_t jobs);
void fmi_helps_release(fmi_job *j);

/* judge.c, judge_scores.c: fills verdict, output, answer, detail, score, metrics. An error is the
 * case's, unless FM_ENOMEM. */
fm_status fmi_judge(fmi_job *j);
/* What a scoring's work is worth: a choice's log-probability as normalized, a continuation's. */
double fmi_score_of(const fmi_job *j, size_t work);
/* pairs.c: the pairs of the case; fills score, of scorings verdict and answer too. *ok false: some
 * pair does not hold, detail says which. */
fm_status fmi_judge_pairs(fmi_job *j, fm_buf *output, fm_buf *detail, bool *ok);
/* measure_values.c: the result's numbers, of scorings. */
fm_status fmi_note_numbers(fmi_job *j);
void fmi_softmax(double *x, size_t n); /* in place, of log-probabilities */
fm_status fmi_judge_rolling(fmi_job *j, fm_buf *output, fm_buf *detail);
fm_status fmi_judge_class(fmi_job *j, fm_buf *output, fm_buf *detail);
fm_status fmi_judge_embed(fmi_job *j, fm_buf *output, fm_buf *detail);

#endif
