/* internal.h - a parsed suite, for the files of this folder. */
#ifndef FM_TESTING_INTERNAL_H
#define FM_TESTING_INTERNAL_H

#include "testing/policy.h"
#include "testing/testing.h"

#define FMI_CASES_MAX 100000u
#define FMI_PROMPTS_MAX 64u
#define FMI_CHOICES_MAX 64u
#define FMI_CASE_NAME_MAX 200u
#define FMI_SUITE_BYTES_MAX ((size_t)16 << 20)    /* of the file */
#define FMI_EXPANDED_BYTES_MAX ((size_t)64 << 20) /* of all strings that templates become */
#define FMI_EXPANSION_STEPS_MAX ((size_t)10000000)

typedef enum fmi_case_kind { FMI_MFT, FMI_INV, FMI_DIR } fmi_case_kind;
typedef enum fmi_scoring {
    FMI_SCORE_TEXT,    /* generate, then assertions */
    FMI_SCORE_CHOICE,  /* the likeliest of several continuations must be the answer */
    FMI_SCORE_LOGPROB, /* a continuation's log-probability against a bound, or between prompts (DIR)
                        */
    FMI_SCORE_ROLLING, /* how likely the prompt is as a text, per word, byte or token */
    FMI_SCORE_CLASS,   /* the class that a classification version gives the prompt */
    FMI_SCORE_EMBED,   /* how near texts are to the prompt for an embedder */
} fmi_scoring;
typedef enum fmi_normalize {
    FMI_PER_NOTHING,
    FMI_PER_TOKEN,
    FMI_PER_BYTE,
    FMI_PER_CHARACTER,
    FMI_LESS_ALONE, /* less the log-probability without the prompt */
} fmi_normalize;
typedef enum fmi_per { FMI_WORDS, FMI_BYTES, FMI_TOKENS } fmi_per;
typedef enum fmi_prompt_form {
    FMI_PROMPT_TEXT,
    FMI_PROMPT_CHAT,
    FMI_PROMPT_MESSAGES
} fmi_prompt_form;

typedef enum fmi_assert_kind {
    FMI_TEXTS, /* value: a text or texts that the answer is like */
    FMI_REGEX,
    FMI_JSON,
    FMI_RULE, /* a bound, a schema, a rubric: no text of an answer */
    FMI_SET,  /* assertions together */
} fmi_assert_kind;

struct fmi_assert_type; /* assert.h */
struct fmi_schema;
typedef struct fmi_assertion fmi_assertion;
struct fmi_assertion {
    fmi_assert_kind kind;
    bool negated;
    const fm_json *value; /* borrowed from the case, as all texts here */
    void *regex;          /* compiled, FMI_REGEX */
    const struct fmi_assert_type *type;
    bool ignore_case;
    double weight;      /* 0: measured, decides nothing */
    double threshold;   /* NaN: none */
    double low, high;   /* of a number of the answer */
    uint32_t n;         /* of n-grams */
    const char *metric; /* NULL: none */
    const char *model;  /* the id of a version that is asked about the answer; NULL: none */
    size_t helper;      /* its place among the case's assertions that have a model */
    struct fmi_schema *schema;
    fmi_assertion *part; /* FMI_SET */
    size_t part_count;
};

typedef enum fmi_filter_kind {
    FMI_STRIP,
    FMI_LOWERCASE,
    FMI_TAKE_FIRST,
    FMI_MAJORITY,
    FMI_FILTER_REGEX,
} fmi_filter_kind;
typedef struct fmi_filter {
    fmi_filter_kind kind;
    void *regex;
    const char *pattern, *fallback;
    long match; /* which of them, from 0; negative: from the end */
} fmi_filter;
#define FMI_FILTERS_MAX 8u
#define FMI_REPEATS_MAX 64u
/* Between the seeds of a case's repeats: a shifted case shares none with the case as it is. */
#define FMI_REPEAT_STRIDE ((uint64_t)1 << 32)
#define FMI_EMBED_FAR_MAX 16u

typedef struct fmi_case {
    char *name;
    fm_json *doc; /* the expanded case: what the digest is taken of */
    fm_digest digest;
    fmi_case_kind kind;
    fmi_scoring scoring;
    fmi_prompt_form form;
    const fm_json *prompt[FMI_PROMPTS_MAX]; /* MFT: one; INV, DIR: several */
    size_t prompt_count;
    bool ignore_case;
    /* text */
    uint32_t max_tokens;
    const char *stop[8];
    size_t stop_count;
    fm_sample_params sampling;
    fmi_assertion *assertion;
    size_t assertion_count;
    double threshold; /* of the weighted score; NaN: all must hold */
    bool graded;      /* the result has a score */
    bool wants_logprobs;
    size_t helper_count; /* assertions that ask another model */
    uint32_t repeats;    /* answers to each prompt */
    fmi_filter *filter;
    size_t filter_count;
    /* choice */
    const char *choice[FMI_CHOICES_MAX];
    size_t choice_count, answer;
    fmi_normalize normalize; /* what a choice's log-probability is divided by */
    /* logprob */
    const char *continuation;
    double above, below; /* bounds; NaN = none */
    bool increases;      /* DIR: the continuation's logprob must grow from prompt to prompt */
    double margin;       /* DIR: by at least this */
    /* what the case is filed under, and what holds between its prompts (case_form.c) */
    const char *capability; /* "" none */
    const fm_json *tags;    /* text by name, or NULL */
    bool against_first;   /* DIR: each prompt is compared with the first, not with the one before */
    const fm_json *pairs; /* NULL: none */
    int greedy;           /* must the continuation be what greedy decoding says? -1: not asked */
    /* rolling: `above` and `below` bound the perplexity */
    fmi_per per;
    uint32_t window; /* tokens that the model reads at once; 0: its positions */
    /* class: `above` and `below` bound its probability */
    const char *label;
    /* embed: `above` and `below` bound the similarity to `near` */
    const char *near_text;
    const fm_json *far_texts; /* one or a list */
    size_t far_count;
} fmi_case;

/* A measure over the cases of a suite (measure.c). Texts are borrowed from the suite's doc. */
typedef enum fmi_measure_kind {
    FMI_PASS_RATE,
    FMI_ACCURACY,
    FMI_PERPLEXITY,
    FMI_CALIBRATION,
    FMI_BRIER,
    FMI_GAP,
    FMI_RATIO
} fmi_measure_kind;
typedef struct fmi_measure {
    char *name;
    fmi_measure_kind kind;
    fmi_measure_kind of;      /* FMI_GAP, FMI_RATIO: FMI_PASS_RATE or FMI_ACCURACY */
    const fm_json *over;      /* the slice: text by tag; NULL: all */
    const char *by;           /* FMI_GAP, FMI_RATIO: the tag that makes groups */
    double at_least, at_most; /* NaN: no bound */
    bool surely;              /* the whole interval must keep the bounds */
    double confidence;        /* of the interval */
    uint32_t min_count;       /* cases, of each group */
    uint32_t bins;            /* FMI_CALIBRATION */
} fmi_measure;

struct fm_suite {
    char *name, *description;
    fm_policy policy;
    fmi_case *cases;
    size_t count, cap;
    fm_waiver *waiver; /* [count], reason NULL = none; NULL: no case is waived. Texts are doc's */
    fmi_measure *measure;
    size_t measure_count;
    fm_json *doc;
};

/* suite.c: 1 to 64 of a-z A-Z 0-9 - _, as suites and topics are called. */
bool fmi_is_name(const char *s);
/* suite.c: a suite of its document (consumed). override: case name -> document that stands for it, or
 * NULL; a name that no case has is an error. */
fm_status fmi_suite_of_doc(fm_suite **out, fm_json *doc, const fm_json *override, const char *what);

/* suite_case.c: validate one expanded case (consumes doc). defaults: the suite's `generate`. */
fm_status fmi_case_init(fmi_case *out, fm_json *doc, const fm_json *defaults, const char *what);
void fmi_case_release(fmi_case *c);
/* case_form.c: capability, tags, against. */
fm_status fmi_form_read(fmi_case *c, const char *where);
/* pairs.c: what holds between prompts; a default for INV over choices. */
fm_status fmi_pairs_read(fmi_case *c, const char *where);
/* The suite's `generate`, which no case may look at. */
fm_status fmi_check_generate(const fm_json *g, const char *where);

/* An optional number: *out stays where there is none. */
fm_status fmi_read_number(double *out, const fm_json *obj, const char *key, const char *where);

/* changes.c: what stands for the case of that name, owned (doc is consumed), or doc itself; NULL =
 * ENOMEM. override may be NULL. */
fm_json *fmi_overridden(fm_json *doc, const fm_json *override);

/* measure_read.c: `measures` of the suite, once its cases are there. */
fm_status fmi_measures_read(fm_suite *s, const char *what);
void fmi_measures_release(fm_suite *s);
/* Is the case among those that m is taken over? Its group (m->by); NULL: none. */
bool fmi_measure_covers(const fmi_measure *m, const fm_suite *s, size_t i);
const char *fmi_group_of(const fmi_measure *m, const fm_suite *s, size_t i);
/* measure.c: fills run->measure anew; there are none unless all cases were run. */
fm_status fmi_measures_take(fm_suite_run *run);
void fmi_measures_drop(fm_suite_run *run);

/* template.c: calls each(ctx, case) for every filling of the slots; each consumes its case. room is
 * shared by all templates of the suite: what they may still write and do; beyond it FM_ELIMIT. */
typedef struct fmi_expansion_room {
    const fm_json *lexicons; /* the suite's, or NULL */
    size_t bytes;            /* FMI_EXPANDED_BYTES_MAX at first */
    size_t steps;            /* FMI_EXPANSION_STEPS_MAX: slots written, values tried */
} fmi_expansion_room;
typedef fm_status (*fmi_case_fn)(void *ctx, fm_json *doc);
fm_status fmi_template_expand(const fm_json *tmpl, const char *what, fmi_expansion_room *room,
                              fmi_case_fn each, void *ctx);

/* assert.c: `expect` of a case. */
fm_status fmi_expect_read(fmi_case *c, const char *where);
void fmi_expect_release(fmi_case *c);
/* Does the text satisfy the assertion (one that asks no other model)? detail gets the reason when
 * not. */
fm_status fmi_assert_check(const fmi_assertion *a, fm_span text, bool *holds, fm_buf *detail);
/* answers.c: `filter` of a case. */
fm_status fmi_filters_read(fmi_case *c, const char *where);
void fmi_filters_release(fmi_case *c);
/* scoring.c: how many of `perplexity`, `class`, `embedding` the case has; *out: which. */
int fmi_scorings_of(const fmi_case *c, fmi_scoring *out);
fm_status fmi_scoring_read(fmi_case *c, const char *where);

/* score.c: texts, and patterns with limits. */
fm_status fmi_pattern_compile(void **out, const char *pattern, bool ignore_case, const char *where);
void fmi_pattern_free(void *regex);
/* pattern is for the error. FM_ELIMIT: it gave up. */
fm_status fmi_pattern_found(const void *regex, const char *pattern, fm_span text, bool *found);
/* The next match at or after *at, which is moved behind it; got: its first group that is not empty,
 * or the whole where there are no groups. *found false: none. */
fm_status fmi_pattern_next(const void *regex, const char *pattern, fm_span text, size_t *at,
                           fm_span *got, bool *found);
fm_span fmi_trim(fm_span s);
bool fmi_text_equal(fm_span a, fm_span b, bool ignore_case);
bool fmi_text_contains(fm_span text, fm_span part, bool ignore_case);
/* The beginning of a text for people: at most max bytes, no code point cut. */
fm_span fmi_clip(fm_span s, size_t max);
/* The code point at *at, which is moved behind it; a byte that begins none stands for itself. */
uint32_t fmi_next_point(fm_span s, size_t *at);
bool fmi_is_blank(uint32_t point); /* Unicode's white space, as Python's split() */
size_t fmi_count_points(fm_span s);
size_t fmi_count_words(fm_span s);

/* case_form.c: "MFT", "INV" or "DIR". report/matrix.c: what a case is counted under. */
const char *fmi_case_kind_name(const fm_suite *s, size_t i);
const char *fmi_case_capability(const fm_suite *s, size_t i);

/* repeat.c: the counts of a run, from its results. */
void fmi_run_count(fm_suite_run *run);
/* compare.c: at[i] = where the i-th result of b stands in a, SIZE_MAX = nowhere; by name. */
fm_status fmi_run_pairs(size_t *at, const fm_suite_run *a, const fm_suite_run *b);

/* cache.c: does the answer depend on a seed? */
bool fmi_case_samples(const fmi_case *c);
/* One case's result as JSON and back; key in testing.h. */
fm_status fmi_result_encode(fm_buf *out, const fm_case_result *r);
fm_status fmi_result_decode(fm_case_result *out, fm_span text);

/* perturb.c: FNV-1a: what is drawn for one text does not depend on its neighbours. */
uint64_t fmi_stream_of(fm_span text, uint64_t salt);

#endif
