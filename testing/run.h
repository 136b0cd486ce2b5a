/* run.h - a run of suites, between runner.c (jobs and batches), ask.c (what a model is asked) and
 * judge.c (what its answers are worth). */
#ifndef FM_TESTING_RUN_H
#define FM_TESTING_RUN_H

#include "testing/internal.h"

/* What one case needs from its model: prompt_count x max(1, choice_count) works in a row. */
typedef struct fmi_work {
    fm_ids ids; /* prompt, then for scorings the continuation */
    size_t prompt_len;
    float *logprobs;   /* scorings: [ids.count] */
    fm_gen_result gen; /* generations */
} fmi_work;

/* One case on one model. */
typedef struct fmi_job {
    const fmi_case *c;
    fm_model *model;
    fm_case_result *result;
    fmi_work *work; /* [count], within the run's array */
    size_t count;
    uint64_t seed_shift;
    bool broken; /* an error was recorded already */
    char key[65];
} fmi_job;

/* ask.c */
size_t fmi_works_of(const fmi_case *c);
/* Fills the ids of all works. An error is the case's, unless FM_ENOMEM. */
fm_status fmi_ask(fmi_job *j);
/* judge.c: fills verdict, output, answer, detail, score. An error is the case's, unless FM_ENOMEM.
 */
fm_status fmi_judge(fmi_job *j);

#endif
