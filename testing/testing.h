/* testing.h - behavioural suites of models: parse, run, score, cache, compare. Blame's searches are
 * in blame.h.
 *
 * A suite is a YAML file that hangs on a version (suites/<name>.yaml in its tree) and is inherited
 * by what is derived from it. SUITES.md is the file format. A result is a function of the model,
 * tokenizer and template, cases, runner version, compute mode, kernel class and seed; their digest
 * is its key, so a result is never computed twice and never served stale.
 * Nothing here knows a repository. */
#ifndef FM_TESTING_TESTING_H
#define FM_TESTING_TESTING_H

#include "infer/infer.h"

FM_BEGIN_DECLS

#define FM_RUNNER_VERSION 1 /* raised whenever a verdict could change for equal inputs */

typedef struct fm_suite fm_suite; /* immutable once parsed */

/* FM_EINVAL "<what>: case 'x': unknown key 'y' (known: ...)". Templates are expanded here. */
FM_CHECKED fm_status fm_suite_parse(fm_suite **out, fm_span yaml, const char *what);
void fm_suite_free(fm_suite *s);
const char *fm_suite_name(const fm_suite *s);
const char *fm_suite_description(const fm_suite *s); /* "" if none */
bool fm_suite_is_gate(const fm_suite *s);
size_t fm_suite_count(const fm_suite *s);
const char *fm_suite_case_name(const fm_suite *s, size_t i);
long fm_suite_find(const fm_suite *s, const char *case_name); /* -1 = none */
fm_digest fm_suite_case_digest(const fm_suite *s, size_t i);
/* Calls text for every text of the case: its prompts (of messages the contents) and what it expects
 * (patterns left out). The spans are the suite's. Ends at the first failure, which it returns. */
FM_CHECKED fm_status fm_suite_case_texts(const fm_suite *s, size_t i,
                                         fm_status (*text)(void *ctx, fm_span text), void *ctx);
/* A suite of one case from --prompt/--expect (a prompt, or messages when `chat`). */
FM_CHECKED fm_status fm_suite_from_prompt(fm_suite **out, const char *prompt, const char *expect,
                                          bool chat);
/* The ids that the case's (first) prompt becomes on m: for influence, which wants prompt + answer.
 */
FM_CHECKED fm_status fm_suite_case_prompt(fm_ids *out, const fm_suite *s, size_t i,
                                          const fm_model *m);

typedef enum fm_verdict { FM_PASS, FM_FAIL, FM_ERROR_CASE } fm_verdict;
typedef struct fm_case_result {
    const char *name; /* borrowed from the suite */
    fm_verdict verdict;
    char *output; /* text generated, or a one-line account of the scores; owned by the run */
    char *answer; /* what the model said: the text, or the choice it preferred; NULL = none */
    char *detail; /* why it failed: "expected contains 'Paris'"; NULL when passed */
    double score; /* logprob or margin where the case has one, else NaN */
    bool cached;
} fm_case_result;
typedef struct fm_suite_run {
    const fm_suite *suite;
    fm_case_result *result; /* one per selected case */
    size_t count, passed, failed, errors, cached;
    double seconds;
} fm_suite_run;
void fm_suite_run_release(fm_suite_run *run);

/* Where results are kept, wired by the cli to lineage; may be NULL. get: FM_ENOTFOUND = run it. */
typedef struct fm_result_cache {
    void *ctx;
    fm_status (*get)(void *ctx, fm_buf *out, const char key[65]);
    fm_status (*put)(void *ctx, const char key[65], fm_span value);
} fm_result_cache;

/* Runs suites on models, all of them in one batch: children of a stem pay its products once. The
 * models are of one engine; out[n], each to be released. seconds is the time of the whole. */
typedef struct fm_suite_ask {
    const fm_suite *suite;
    fm_model *model;
    const char *case_name; /* NULL: all */
    /* Added (mod 2^64) to the seed of every case that samples (temperature > 0): repeat r of a run
     * has shift r. Cases that do not sample are the same at any shift, and so are their keys. */
    uint64_t seed_shift;
} fm_suite_ask;
FM_CHECKED fm_status fm_suites_run(fm_suite_run *out, const fm_suite_ask *ask, size_t n,
                                   const fm_result_cache *cache);
/* One of them. */
FM_CHECKED fm_status fm_suite_run_on(fm_suite_run *out, const fm_suite *s, fm_model *m,
                                     const char *case_name, const fm_result_cache *cache);
/* The key's ingredients, for people and --json; the key of one case's result. */
FM_CHECKED fm_status fm_result_key(char out[65], const fm_suite *s, size_t i, const fm_model *m);
/* The same for any shift of the seed (case_name is not looked at). */
FM_CHECKED fm_status fm_ask_result_key(char out[65], const fm_suite_ask *ask, size_t i);
/* Would another seed give another answer? Of the others one run is all there is to know. */
bool fm_suite_case_samples(const fm_suite *s, size_t i);

/* Report as JSON: {"suite","gate","passed","failed","cases":[{"name","verdict","output",...}]}
 * owned. */
fm_json *fm_suite_run_json(const fm_suite_run *run);
/* JUnit XML of several runs. */
FM_CHECKED fm_status fm_report_junit(fm_buf *out, const fm_suite_run *runs, size_t n,
                                     const char *model_name);

/* Paired comparison of two runs of one suite: which cases flipped, and an exact two-sided
 * McNemar p-value over the flips. */
typedef struct fm_comparison {
    size_t fixed, broken, both_pass, both_fail;
    double p_value;
} fm_comparison;
fm_comparison fm_suite_compare(const fm_suite_run *a, const fm_suite_run *b);

FM_END_DECLS
#endif
