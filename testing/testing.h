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

#define FM_RUNNER_VERSION 3 /* raised whenever a verdict could change for equal inputs */

typedef struct fm_suite fm_suite; /* immutable once parsed */

/* FM_EINVAL "<what>: case 'x': unknown key 'y' (known: ...)". Templates are expanded here. */
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
/* What the case is filed under. capability: "" none. tag: NULL none. */
typedef enum fm_case_kind { FM_CASE_MFT, FM_CASE_INV, FM_CASE_DIR } fm_case_kind;
fm_case_kind fm_suite_case_kind(const fm_suite *s, size_t i);
const char *fm_suite_case_capability(const fm_suite *s, size_t i);
const char *fm_suite_case_tag(const fm_suite *s, size_t i, const char *key);
/* How many continuations a `choice` case has; 0: it is no such case. */
size_t fm_suite_case_choices(const fm_suite *s, size_t i);
/* Is the case of the slice key = value? key: a tag, or one of kind (MFT, INV, DIR), capability,
 * name. */
bool fm_suite_case_matches(const fm_suite *s, size_t i, const char *key, const char *value);
/* Calls text for every text of the case: its prompts (of messages the contents) and what it expects
 * (patterns left out). The spans are the suite's. Ends at the first failure, which it returns. */
FM_CHECKED fm_status fm_suite_case_texts(const fm_suite *s, size_t i,
                                         fm_status (*text)(void *ctx, fm_span text), void *ctx);
/* A suite of one case from --prompt/--expect (a prompt, or messages when `chat`). */
FM_CHECKED fm_status fm_suite_from_prompt(fm_suite **out, const char *prompt, const char *expect,
                                          bool chat);
/* Up to n (1 .. FM_PERTURBED_MAX) other ways to write the prompt of case i, as a suite of cases
 * that expect the same: a neutral sentence in front, contractions, punctuation, spaces, lower case,
 * typos, in turn. A function of the case and the seed. They differ from the case and from each
 * other; a short prompt may have fewer. Names are "<case>~<perturbation>-<k>".
 * FM_ENOTFOUND: there is none (a prompt without letters or spaces). */
#define FM_PERTURBED_MAX 1000
FM_CHECKED fm_status fm_suite_perturbed(fm_suite **out, const fm_suite *s, size_t i, uint64_t seed,
                                        size_t n);
/* The ids that the case's (first) prompt becomes on m: for influence, which wants prompt + answer.
 */
FM_CHECKED fm_status fm_suite_case_prompt(fm_ids *out, const fm_suite *s, size_t i,
                                          const fm_model *m);
/* ... and an answer behind it, as a model that gave it would hold both: [*prompt, count) is the
 * answer's. FM_EUNSUPPORTED: there is no such text for this model (no tokenizer, no tokens, a token
 * beyond its vocabulary, more than it takes). */
FM_CHECKED fm_status fm_suite_case_answer(fm_ids *out, size_t *prompt, const fm_suite *s, size_t i,
                                          const fm_model *m, const char *answer);

/* ---- changes: what a descendant adds to a suite, overrides in it, or waives ----
 * A document `changes: <suite>` that lies beside the suite as suites/<suite>.<topic>.yaml. */
typedef struct fm_suite_doc {
    fm_span yaml;
    const char *what; /* the file, for errors */
} fm_suite_doc;
/* doc[0] is the suite, the others its changes, in the order in which they apply. FM_EINVAL: as
 * parse, and a change of another suite, of a case that there is not, an addition that is there. */
FM_CHECKED fm_status fm_suite_parse_changed(fm_suite **out, const fm_suite_doc *doc, size_t n);
/* What a file is, its form checked as far as that goes without the suite: *suite the name of
 * what it is or changes, *topic NULL for a suite itself; both owned. */
FM_CHECKED fm_status fm_suite_doc_kind(char **suite, char **topic, fm_span yaml, const char *what);

typedef struct fm_waiver {
    const char *reason;
    const char
        *until; /* "2027-03-31", or a revision: over with the versions that have it; or NULL */
    const char *owner; /* or NULL */
    bool over;         /* set by fm_suite_waiver_end */
} fm_waiver;
const fm_waiver *fm_suite_waiver(const fm_suite *s, size_t i); /* NULL: the case has none */
bool fm_suite_waived(const fm_suite *s, size_t i);             /* has one that is not over */
void fm_suite_waiver_end(fm_suite *s, size_t i); /* its time has come, says who knows history */
/* Appends, as YAML, the suite that a file of another tool is. What has no meaning here is refused by
 * file, test and key: FM_EINVAL, FM_EUNSUPPORTED; FM_ELIMIT. Nothing is fetched and nothing run. */
typedef struct fm_foreign_opts {
    const char *from;      /* "promptfoo", "lm-eval", "checklist", "csv"; NULL: told by the file */
    const char *suite;     /* the suite's name; NULL: the file's own */
    fm_span data;          /* lm-eval: the examples, JSON Lines */
    const char *data_what; /* its name, for errors */
    bool chat;             /* texts become `chat`, else `prompt` */
} fm_foreign_opts;
FM_CHECKED fm_status fm_suite_convert(fm_buf *out, fm_span text, const char *what,
                                      const fm_foreign_opts *o);

typedef enum fm_verdict { FM_PASS, FM_FAIL, FM_ERROR_CASE } fm_verdict;
/* What measures over a suite are made of; of the first prompt of a case that is scored. NaN: the
 * case has none. */
typedef struct fm_case_measures {
    double probability; /* choices: of the expected one, by softmax over all as they are scored */
    double confidence;  /* choices: of the preferred one */
    double brier;       /* choices: sum over them of (probability - [it is expected])^2 */
    double nll;         /* - log-probability of the expected choice or of the continuation, nats */
    double tokens;      /* of that text */
} fm_case_measures;
typedef struct fm_case_result {
    const char *name; /* borrowed from the suite */
    fm_verdict verdict;
    char *output; /* text generated, or a one-line account of the scores; owned by the run */
    char *answer; /* what the model said: the text, or the choice it preferred; NULL = none */
    char *detail; /* why it failed: "expected contains 'Paris'"; NULL when passed */
    double
        score; /* logprob, margin, weighted grade or perplexity where the case has one, else NaN */
    fm_json *metrics; /* name to mean score in [0, 1], of assertions with `metric`; NULL = none */
    bool cached;
    bool waived; /* by its suite: shown as it came out, and counts against nothing */
    size_t at;   /* its place in the suite */
    uint32_t repeats,
        repeats_passed; /* runs under other seeds, this one among them; 0 = this one alone */
    bool flaky;         /* the repeats disagree: counted apart from passes and failures */
    bool quarantined;   /* flaky, as repeats that were run some other day have shown */
    fm_case_measures numbers;
} fm_case_result;
/* What a suite's `measures` say of a run of all its cases. A measure whose value is beyond its
 * bounds fails; one that cannot be taken (too few cases, cases that could not be run) is an error.
 */
typedef struct fm_measure_result {
    const char *name;        /* borrowed from the suite; its `name`, or a description */
    double value, low, high; /* with its interval at the measure's confidence; NaN where there is
                                none */
    size_t count;            /* cases that it is taken over */
    fm_verdict verdict;
    char *detail; /* why no pass; NULL when passed; owned by the run */
} fm_measure_result;
typedef struct fm_suite_run {
    const fm_suite *suite;
    fm_case_result *result;                       /* one per selected case */
    size_t count, passed, failed, errors, cached; /* passed + failed + errors + flaky = count */
    size_t waived;                                /* of those that did not pass and are not flaky */
    size_t flaky;
    double seconds;
    fm_measure_result *measure; /* [measure_count]; none when only some cases were selected */
    size_t measure_count;
} fm_suite_run;
void fm_suite_run_release(fm_suite_run *run);
/* Every measure passed (true when there are none). A suite holds when its cases and measures do. */
bool fm_suite_measures_hold(const fm_suite_run *run);
/* [{"name", "value", "low", "high", "count", "verdict", "detail"}], owned; NULL = ENOMEM. */
fm_json *fm_suite_measures_json(const fm_suite_run *run);

/* What a run leans on outside of it, wired by the cli to lineage; may be NULL. */
typedef struct fm_result_cache {
    void *ctx;
    /* Where results are kept. FM_ENOTFOUND = run it. Both may be NULL: nowhere. */
    fm_status (*get)(void *ctx, fm_buf *out, const char key[65]);
    fm_status (*put)(void *ctx, const char key[65], fm_span value);
    /* May be NULL: a version that a case names by its full id, for assertions that ask a judge, an
     * embedder or a classifier, on the engine of the run, which closes it. The id is in the digest
     * of the case, so it must name content for ever: what moves (a branch) is refused, saying the
     * id. */
    fm_status (*open)(void *ctx, const char *id, fm_model **out);
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
    const size_t *pick; /* without case_name: these cases in this order; NULL: all */
    size_t pick_count;
} fm_suite_ask;
FM_CHECKED fm_status fm_suites_run(fm_suite_run *out, const fm_suite_ask *ask, size_t n,
                                   const fm_result_cache *cache);
/* Takes over the results of `more`, other cases of the same suite and model, and empties it. Results
 * stand in the order of the suite. */
FM_CHECKED fm_status fm_suite_run_join(fm_suite_run *run, fm_suite_run *more);
/* One more run of some of the cases under another seed: a case whose verdicts differ is flaky from
 * then on. The output stays that of the first run. `again` holds no case that run lacks. */
FM_CHECKED fm_status fm_suite_run_repeat(fm_suite_run *run, const fm_suite_run *again);

/* ---- quarantine: flaky cases, kept with the results ---- */
typedef struct fm_quarantine {
    bool on;
    uint32_t repeats, passed; /* when it was found; also where it was lifted since */
} fm_quarantine;
/* kept NULL, or a case that does not sample: never on. */
FM_CHECKED fm_status fm_quarantine_read(fm_quarantine *out, const fm_suite *s, size_t i,
                                        const fm_result_cache *kept);
/* Keeps which cases of a run with repeats were flaky. */
FM_CHECKED fm_status fm_quarantine_note(const fm_suite_run *run, const fm_result_cache *kept);
/* Cases that are kept as flaky, and were not repeated in this run, become flaky and quarantined,
 * with the repeats of then; counts and measures follow. What could not be asked stays an error. */
FM_CHECKED fm_status fm_quarantine_apply(fm_suite_run *run, const fm_result_cache *kept);
FM_CHECKED fm_status fm_quarantine_lift(const fm_suite *s, size_t i, const fm_result_cache *kept,
                                        bool *was);

/* Did everything pass that counts, measures too? Waived and flaky cases do not count. */
bool fm_suite_run_holds(const fm_suite_run *run);
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

FM_END_DECLS
#endif
