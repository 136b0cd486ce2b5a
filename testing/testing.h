/* testing.h - behavioural suites of models: parse, run, score, cache, compare. The searches of
 * blame are in blame.h.
 *
 * A suite is a YAML file that belongs to a version (suites/<name>.yaml in its tree) and is
 * inherited by the versions derived from it. SUITES.md is the file format. A result is a function
 * of the model, tokenizer and template, cases, runner version, compute mode, kernel class and seed;
 * their digest is its key, so a result is never computed twice and never served stale. Nothing here
 * knows a repository. */
#ifndef FM_TESTING_TESTING_H
#define FM_TESTING_TESTING_H

#include "infer/infer.h"

FM_BEGIN_DECLS

#define FM_RUNNER_VERSION 3 /* raised whenever a verdict could change for equal inputs */

typedef struct fm_suite fm_suite; /* immutable once parsed */

/* Parses a suite, expands its templates. FM_EINVAL "<what>: case 'x': unknown key 'y' (..)". */
FM_CHECKED fm_status fm_suite_parse(fm_suite **out, fm_span yaml, const char *what);
void fm_suite_free(fm_suite *s);
const char *fm_suite_name(const fm_suite *s);
const char *fm_suite_description(const fm_suite *s); /* "" if none */
bool fm_suite_is_gate(const fm_suite *s);
typedef struct fm_policy fm_policy; /* testing/policy.h */
const fm_policy *fm_suite_policy(const fm_suite *s);
size_t fm_suite_count(const fm_suite *s);
size_t fm_suite_measure_count(const fm_suite *s);
const char *fm_suite_case_name(const fm_suite *s, size_t i);
long fm_suite_find(const fm_suite *s, const char *case_name); /* -1 = none */
fm_digest fm_suite_case_digest(const fm_suite *s, size_t i);
/* Kind, capability ("" = none) and tags (NULL = no such tag) of a case. */
typedef enum fm_case_kind { FM_CASE_MFT, FM_CASE_INV, FM_CASE_DIR } fm_case_kind;
fm_case_kind fm_suite_case_kind(const fm_suite *s, size_t i);
const char *fm_suite_case_capability(const fm_suite *s, size_t i);
const char *fm_suite_case_tag(const fm_suite *s, size_t i, const char *key);
/* How many continuations a `choice` case has; 0: it is another kind of case. */
size_t fm_suite_case_choices(const fm_suite *s, size_t i);
/* Whether the case is of the slice key = value. key: a tag, kind, capability or name. */
bool fm_suite_case_matches(const fm_suite *s, size_t i, const char *key, const char *value);
/* Calls text for every text of the case: its prompts (the contents of messages) and its
 * expectations (without patterns). The suite owns the spans. Returns the first failure. */
FM_CHECKED fm_status fm_suite_case_texts(const fm_suite *s, size_t i,
                                         fm_status (*text)(void *ctx, fm_span text), void *ctx);
/* A suite of one case from --prompt/--expect (a prompt, or messages when `chat`). */
FM_CHECKED fm_status fm_suite_from_prompt(fm_suite **out, const char *prompt, const char *expect,
                                          bool chat);
/* Up to n (1 .. FM_PERTURBED_MAX) other ways to write the prompt of case i, as a suite of cases
 * that expect the same: a neutral sentence in front, contractions, punctuation, spaces, lower case,
 * typos, in turn. The result is a function of the case and the seed. The forms differ from the case
 * and from each other; a short prompt may have fewer. Names are "<case>~<perturbation>-<k>".
 * FM_ENOTFOUND: there is no form (a prompt without letters or spaces). */
#define FM_PERTURBED_MAX 1000
FM_CHECKED fm_status fm_suite_perturbed(fm_suite **out, const fm_suite *s, size_t i, uint64_t seed,
                                        size_t n);
/* The ids of the case's (first) prompt on m; influence wants them with an answer behind. */
FM_CHECKED fm_status fm_suite_case_prompt(fm_ids *out, const fm_suite *s, size_t i,
                                          const fm_model *m);
/* The same with an answer behind it, as a model that gave the answer would hold both: [*prompt,
 * count) is the answer. FM_EUNSUPPORTED: this model has no such text (no tokenizer, no tokens, a
 * token beyond its vocabulary, more tokens than it takes). */
FM_CHECKED fm_status fm_suite_case_answer(fm_ids *out, size_t *prompt, const fm_suite *s, size_t i,
                                          const fm_model *m, const char *answer);

/* ---- changes: what a descendant adds to a suite, overrides in it, or waives ----
 *
 * A change is a document `changes: <suite>` in the suite's folder, suites/<suite>.<topic>.yaml. */
typedef struct fm_suite_doc {
    fm_span yaml;
    const char *what; /* name of the file, for errors */
} fm_suite_doc;
/* Parses a suite with changes: doc[0] is the suite, the others are its changes in the order in
 * which they apply. FM_EINVAL: as fm_suite_parse, and where a document changes another suite or a
 * case that does not exist, or adds a case that exists. */
FM_CHECKED fm_status fm_suite_parse_changed(fm_suite **out, const fm_suite_doc *doc, size_t n);
/* Finds what a file is, and checks its form without the suite: *suite is the name of the suite that
 * the file is or changes, *topic is NULL for a suite itself. The caller owns both. */
FM_CHECKED fm_status fm_suite_doc_kind(char **suite, char **topic, fm_span yaml, const char *what);

typedef struct fm_waiver {
    const char *reason;
    const char *until; /* a day ("2027-03-31"), a revision that ends it, or NULL */
    const char *owner; /* or NULL */
    bool over;         /* set by fm_suite_waiver_end */
} fm_waiver;
const fm_waiver *fm_suite_waiver(const fm_suite *s, size_t i); /* NULL: the case has none */
bool fm_suite_waived(const fm_suite *s, size_t i);             /* has a waiver that is not over */
/* called by the code that knows history, when the waiver's end has come */
void fm_suite_waiver_end(fm_suite *s, size_t i);
/* Converts a file of another tool to a suite and appends its YAML. Anything without a meaning here
 * is refused by file, test and key: FM_EINVAL, FM_EUNSUPPORTED, FM_ELIMIT. It runs nothing. */
typedef struct fm_foreign_opts {
    const char *from;      /* "promptfoo", "lm-eval", "checklist", "csv"; NULL: find out */
    const char *suite;     /* name of the suite; NULL: the one in the file */
    fm_span data;          /* lm-eval: the examples, JSON Lines */
    const char *data_what; /* name of data, for errors */
    bool chat;             /* texts become `chat`, else `prompt` */
} fm_foreign_opts;
FM_CHECKED fm_status fm_suite_convert(fm_buf *out, fm_span text, const char *what,
                                      const fm_foreign_opts *o);

typedef enum fm_verdict { FM_PASS, FM_FAIL, FM_ERROR_CASE } fm_verdict;
/* The values from which measures over a suite are computed, for the first prompt of a scored case.
 * NaN: the case has no such value. */
typedef struct fm_case_measures {
    double probability; /* choices: probability of the expected one, by softmax over their scores */
    double confidence;  /* choices: probability of the preferred one */
    double brier;       /* choices: sum over all of (probability - [it is expected])^2 */
    double nll;         /* - log-probability of the expected choice or of the continuation, nats */
    double tokens;      /* tokens of the expected choice or of the continuation */
} fm_case_measures;
typedef struct fm_case_result {
    const char *name; /* borrowed from the suite */
    fm_verdict verdict;
    char *output; /* generated text, or one line about the scores; the run owns it */
    char *answer; /* answer of the model: the text, or the choice that it preferred; NULL = none */
    char *detail; /* why it failed: "expected contains 'Paris'"; NULL when it passed */
    double score; /* logprob, margin, grade or perplexity, else NaN */
    fm_json *metrics; /* mean score in [0, 1] by name, from assertions with `metric`; NULL = none */
    bool cached;
    bool waived; /* the suite waives it: its outcome is shown and does not count */
    size_t at;   /* index in the suite */
    uint32_t repeats, repeats_passed; /* runs with this one; 0 = this one alone */
    bool flaky;       /* the repeats disagree; counted separately from passes and failures */
    bool quarantined; /* flaky according to repeats of an earlier run */
    fm_case_measures numbers;
} fm_case_result;
/* The outcome of a suite's measure over a run of all its cases. A measure whose value is outside
 * its bounds fails; one that cannot be computed (too few cases, or errors) is an error. */
typedef struct fm_measure_result {
    const char *name;        /* borrowed from the suite: the measure's `name`, or a description */
    double value, low, high; /* with its interval; NaN where there is none */
    size_t count;            /* cases that it covers */
    fm_verdict verdict;
    char *detail; /* why it did not pass; NULL when it passed; the run owns it */
} fm_measure_result;
typedef struct fm_suite_run {
    const fm_suite *suite;
    fm_case_result *result;                       /* one per selected case */
    size_t count, passed, failed, errors, cached; /* passed + failed + errors + flaky = count */
    size_t waived; /* waived cases that did not pass and are not flaky */
    size_t flaky;
    double seconds;
    fm_measure_result *measure; /* [measure_count]; empty when only some cases were selected */
    size_t measure_count;
} fm_suite_run;
void fm_suite_run_release(fm_suite_run *run);
/* Whether every measure passed (or there are none). A suite holds when cases and measures do. */
bool fm_suite_measures_hold(const fm_suite_run *run);
/* [{"name", "value", "low", "high", "count", "verdict", "detail"}], owned; NULL = ENOMEM. */
fm_json *fm_suite_measures_json(const fm_suite_run *run);

/* Services outside of a run, which the caller connects to its repository; may be NULL. */
typedef struct fm_result_cache {
    void *ctx;
    /* Read and write kept results. FM_ENOTFOUND: the case is run. Both NULL: none are kept. */
    fm_status (*get)(void *ctx, fm_buf *out, const char key[65]);
    fm_status (*put)(void *ctx, const char key[65], fm_span value);
    /* Opens a version that a case names by its full id, for assertions that ask a judge, an
     * embedder or a classifier, on the engine of the run, which closes it. The id is in the digest
     * of the case, so it must name the same content for ever: a name that can move (a branch) is
     * refused, and the error has the id. May be NULL. */
    fm_status (*open)(void *ctx, const char *id, fm_model **out);
} fm_result_cache;

/* Runs suites on models, all of them in one batch: children of a stem pay its products once. All
 * models are of one engine; the caller releases each of out[n]. seconds: of the whole. */
typedef struct fm_suite_ask {
    const fm_suite *suite;
    fm_model *model;
    const char *case_name; /* NULL: all */
    /* Added (mod 2^64) to the seed of every case that samples (temperature > 0): repeat r of a run
     * has shift r. Cases that do not sample are the same at any shift, and so are their keys. */
    uint64_t seed_shift;
    const size_t *pick; /* without case_name: the cases to run, in this order; NULL: all */
    size_t pick_count;
} fm_suite_ask;
FM_CHECKED fm_status fm_suites_run(fm_suite_run *out, const fm_suite_ask *ask, size_t n,
                                   const fm_result_cache *cache);
/* Moves the results of `more`, other cases of the same suite and model, into run and empties
 * `more`. Results are in the order of the suite. */
FM_CHECKED fm_status fm_suite_run_join(fm_suite_run *run, fm_suite_run *more);
/* Adds another run of some of the cases under another seed: a case whose verdicts differ becomes
 * flaky. The output stays that of the first run. `again` has no case that run lacks. */
FM_CHECKED fm_status fm_suite_run_repeat(fm_suite_run *run, const fm_suite_run *again);

/* ---- quarantine: flaky cases, kept with the results ---- */
typedef struct fm_quarantine {
    bool on;
    uint32_t repeats, passed; /* repeats of the run that found it flaky; 0 where on is false */
} fm_quarantine;
/* Reads the record of a case; kept NULL, or a case that does not sample: never on. */
FM_CHECKED fm_status fm_quarantine_read(fm_quarantine *out, const fm_suite *s, size_t i,
                                        const fm_result_cache *kept);
/* Records which cases of a run with repeats were flaky. */
FM_CHECKED fm_status fm_quarantine_note(const fm_suite_run *run, const fm_result_cache *kept);
/* Makes cases flaky and quarantined that have a record and were not repeated in this run, with the
 * repeats of the record; counts and measures follow. Errors stay errors. */
FM_CHECKED fm_status fm_quarantine_apply(fm_suite_run *run, const fm_result_cache *kept);
FM_CHECKED fm_status fm_quarantine_lift(const fm_suite *s, size_t i, const fm_result_cache *kept,
                                        bool *was);

/* Whether all cases that count passed, and all measures. Waived and flaky cases do not count. */
bool fm_suite_run_holds(const fm_suite_run *run);
/* Runs one suite, or one case of it, on one model. */
FM_CHECKED fm_status fm_suite_run_on(fm_suite_run *out, const fm_suite *s, fm_model *m,
                                     const char *case_name, const fm_result_cache *cache);
/* The key of one case's result. */
FM_CHECKED fm_status fm_result_key(char out[65], const fm_suite *s, size_t i, const fm_model *m);
/* The same for any shift of the seed (case_name is ignored). */
FM_CHECKED fm_status fm_ask_result_key(char out[65], const fm_suite_ask *ask, size_t i);
/* Whether another seed may give another answer; of cases that do not sample one run tells all. */
bool fm_suite_case_samples(const fm_suite *s, size_t i);

/* The report as JSON, owned by the caller:
 * {"suite","gate","passed","failed","cases":[{"name","verdict","output",...}]}. */
fm_json *fm_suite_run_json(const fm_suite_run *run);
/* JUnit XML of several runs. */
FM_CHECKED fm_status fm_report_junit(fm_buf *out, const fm_suite_run *runs, size_t n,
                                     const char *model_name);

FM_END_DECLS
#endif
