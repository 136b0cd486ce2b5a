/* run.h - declarations that the files of a run share: runner.c (jobs and batches), ask.c (prompts
 * to tokens), answers.c (generated texts, filtered), aux_models.c (other models' judgement of
 * answers), judge.c (verdicts). */
#ifndef FM_TESTING_RUN_H
#define FM_TESTING_RUN_H

#include "testing/run/aux_models.h"
#include "testing/suite/internal.h"

/* One request of a case to its model. */
typedef struct fmv_work {
    fm_ids ids; /* the prompt; in scorings the continuation follows */
    size_t prompt_len;
    float *logprobs;   /* scorings: [ids.count]; classes: [classes]; embeddings: [hidden] */
    fm_gen_result gen; /* generations */
} fmv_work;

/* An answer to one prompt, after the case's filters. */
typedef struct fmv_said {
    fm_buf text;
    const fmv_work *work; /* the work whose finish and log-probabilities are those of the answer */
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
    bool broken; /* an error is already recorded */
    char key[65];
} fmv_job;

/* runner.c */
/* Records this thread's error rc as the case's; returns lack of memory and a stop. */
fm_status fmv_case_error(fmv_job *j, fm_status rc);
fm_status fmv_generate_all(fm_engine *e, const fm_gen_request *req, fm_gen_result *const *to,
                           size_t n);

/* ask.c */
size_t fmv_works_of(const fmv_case *c);
/* Fills the ids of all works. An error is the case's, except FM_ENOMEM. */
fm_status fmv_ask(fmv_job *j);
/* The prompt for people and judges: the text, or "role: content" lines. */
fm_status fmv_question(fm_buf *out, const fmv_case *c, size_t prompt);
fm_status fmv_check_ids(const fm_ids *ids, size_t answer, const fm_arch *arch);
/* Windows for rolling log-probabilities of ids (a prefix and the text's tokens): the i-th window is
 * [*begin, *end), and its tokens from *from on are scored; at most `reach` are read before the
 * last. As in lm-eval windows are disjoint, and the last one has as much context as fits. False:
 * there is no such window. */
bool fmv_window(size_t count, size_t reach, size_t i, size_t *begin, size_t *from, size_t *end);
/* How many tokens a model reads at once for the case. */
size_t fmv_reach(const fmv_job *j);

/* score_batch.c: runs the scorings of texts: rolling log-probabilities, classes, states. */
fm_status fmv_look_all(fm_engine *e, fmv_job *job, size_t jobs);

/* answers.c: fills said from the generations; an error is the case's. */
fm_status fmv_answers(fmv_job *j);
void fmv_answers_release(fmv_job *j);

/* aux_models.c: asks the auxiliary models of all jobs. *out stays open until they are judged. */
fm_status fmv_aux_ask_all(fmv_aux_models **out, fm_engine *e, const fm_result_cache *env,
                          fmv_job *job, size_t jobs);
void fmv_auxs_release(fmv_job *j);

/* judge.c, judge_scores.c: fill verdict, output, answer, detail, score, metrics. An error is the
 * case's, except FM_ENOMEM. */
fm_status fmv_judge(fmv_job *j);
/* work_score.c: the sum over the tokens of a continuation. */
double fmv_logprob_of(const fmv_work *w);
/* The score of a scoring's work: a choice's normalized log-probability, a continuation's. */
double fmv_score_of(const fmv_job *j, size_t work);
/* pairs.c: judges the pairs of the case; fills score, in scorings verdict and answer too. *ok
 * false: some pair does not hold, and detail names it. */
fm_status fmv_judge_pairs(fmv_job *j, fm_buf *output, fm_buf *detail, bool *ok);
/* measure_values.c: fills the result's numbers, in scorings. */
fm_status fmv_note_measures(fmv_job *j);
void fmv_softmax(double *x, size_t n); /* in place, of log-probabilities */
fm_status fmv_judge_rolling(fmv_job *j, fm_buf *output, fm_buf *detail);
fm_status fmv_judge_class(fmv_job *j, fm_buf *output, fm_buf *detail);
fm_status fmv_judge_embed(fmv_job *j, fm_buf *output, fm_buf *detail);

#endif
