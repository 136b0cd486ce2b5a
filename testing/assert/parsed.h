/* parsed.h - a parsed suite, its cases and their assertions: types only. */
#ifndef FM_TESTING_PARSED_H
#define FM_TESTING_PARSED_H

#include "testing/policy.h"
#include "testing/testing.h"

#define FMV_CASES_MAX 100000u
#define FMV_PROMPTS_MAX 64u
#define FMV_CHOICES_MAX 64u
#define FMV_CASE_NAME_MAX 200u
#define FMV_SUITE_BYTES_MAX ((size_t)16 << 20)    /* of the file */
#define FMV_EXPANDED_BYTES_MAX ((size_t)64 << 20) /* of all strings that templates write */
#define FMV_EXPANSION_STEPS_MAX ((size_t)10000000)

typedef enum fmv_case_kind { FMV_MFT, FMV_INV, FMV_DIR } fmv_case_kind;
typedef enum fmv_scoring {
    FMV_SCORE_TEXT,   /* generate, then assertions */
    FMV_SCORE_CHOICE, /* the likeliest of several continuations must be the answer */
    /* a continuation's log-probability against a bound, or compared between prompts (DIR) */
    FMV_SCORE_LOGPROB,
    FMV_SCORE_ROLLING, /* how likely the prompt is as a text, per word, byte or token */
    FMV_SCORE_CLASS,   /* the class that a classification version gives the prompt */
    FMV_SCORE_EMBED,   /* how similar texts are to the prompt for an embedder */
} fmv_scoring;
typedef enum fmv_normalize {
    FMV_PER_NOTHING,
    FMV_PER_TOKEN,
    FMV_PER_BYTE,
    FMV_PER_CHARACTER,
    FMV_LESS_ALONE, /* minus the log-probability without the prompt */
} fmv_normalize;
typedef enum fmv_per { FMV_WORDS, FMV_BYTES, FMV_TOKENS } fmv_per;
typedef enum fmv_prompt_form {
    FMV_PROMPT_TEXT,
    FMV_PROMPT_CHAT,
    FMV_PROMPT_MESSAGES
} fmv_prompt_form;

typedef enum fmv_assert_kind {
    FMV_TEXTS, /* value: a text, or texts, to compare the answer with */
    FMV_REGEX,
    FMV_JSON,
    FMV_RULE, /* value: a bound, a schema or a rubric, not the text of an answer */
    FMV_SET,  /* a set of assertions */
} fmv_assert_kind;

struct fmv_assert_type; /* assert.h */
struct fmv_schema;
typedef struct fmv_assertion fmv_assertion;
struct fmv_assertion {
    fmv_assert_kind kind;
    bool negated;
    const fm_json *value;   /* borrowed from the case, as all texts here */
    struct fm_regex *regex; /* compiled, FMV_REGEX */
    const struct fmv_assert_type *type;
    bool ignore_case;
    double weight;      /* 0: measured, but decides nothing */
    double threshold;   /* NaN: none */
    double low, high;   /* bounds of a number of the answer */
    uint32_t n;         /* n of n-grams */
    const char *metric; /* NULL: none */
    const char *model;  /* the id of a version that is asked about the answer; NULL: none */
    size_t aux_at;      /* index among the case's assertions that have a model */
    struct fmv_schema *schema;
    fmv_assertion *part; /* FMV_SET */
    size_t part_count;
};

typedef enum fmv_filter_kind {
    FMV_STRIP,
    FMV_LOWERCASE,
    FMV_TAKE_FIRST,
    FMV_MAJORITY,
    FMV_FILTER_REGEX,
} fmv_filter_kind;
typedef struct fmv_filter {
    fmv_filter_kind kind;
    struct fm_regex *regex;
    const char *pattern, *fallback;
    long match; /* which match, from 0; negative: from the end */
} fmv_filter;
#define FMV_FILTERS_MAX 8u
#define FMV_REPEATS_MAX 64u
/* Distance between the seeds of a case's repeats, so that shifted cases share no seed. */
#define FMV_REPEAT_STRIDE ((uint64_t)1 << 32)
#define FMV_EMBED_FAR_MAX 16u

typedef struct fmv_case {
    char *name;
    fm_json *doc; /* the expanded case, from which the digest is computed */
    fm_digest digest;
    fmv_case_kind kind;
    fmv_scoring scoring;
    fmv_prompt_form form;
    const fm_json *prompt[FMV_PROMPTS_MAX]; /* MFT: one; INV, DIR: several */
    size_t prompt_count;
    bool ignore_case;
    /* text */
    uint32_t max_tokens;
    const char *stop[8];
    size_t stop_count;
    fm_sample_params sampling;
    fmv_assertion *assertion;
    size_t assertion_count;
    double threshold; /* threshold of the weighted score; NaN: all must hold */
    bool graded;      /* the result has a score */
    bool wants_logprobs;
    size_t aux_count; /* assertions that ask another model */
    uint32_t repeats; /* answers to each prompt */
    fmv_filter *filter;
    size_t filter_count;
    /* choice */
    const char *choice[FMV_CHOICES_MAX];
    size_t choice_count, answer;
    fmv_normalize normalize; /* what a choice's log-probability is divided by */
    /* logprob */
    const char *continuation;
    double above, below; /* bounds; NaN = none */
    bool increases;      /* DIR: the continuation's logprob must grow from prompt to prompt */
    double margin;       /* DIR: by at least this */
    /* classification of the case, and what must hold between its prompts (suite/case_form.c) */
    const char *capability; /* "" none */
    const fm_json *tags;    /* texts by name, or NULL */
    bool against_first;   /* DIR: each prompt is compared with the first, not with the one before */
    const fm_json *pairs; /* NULL: none */
    int greedy;           /* whether greedy decoding must give the continuation; -1: unset */
    /* rolling: `above` and `below` bound the perplexity */
    fmv_per per;
    uint32_t window;   /* tokens that the model reads at once; 0: as many as it has positions */
    const char *label; /* class: `above` and `below` bound its probability */
    /* embed: `above` and `below` bound the similarity to `near` */
    const char *near_text;
    const fm_json *far_texts; /* a text or a list of texts */
    size_t far_count;
} fmv_case;

/* A measure over the cases of a suite (run/measure.c). Texts are borrowed from the suite's doc. */
typedef enum fmv_measure_kind {
    FMV_PASS_RATE,
    FMV_ACCURACY,
    FMV_PERPLEXITY,
    FMV_CALIBRATION,
    FMV_BRIER,
    FMV_GAP,
    FMV_RATIO
} fmv_measure_kind;
typedef struct fmv_measure {
    char *name;
    fmv_measure_kind kind;
    fmv_measure_kind of;      /* FMV_GAP, FMV_RATIO: FMV_PASS_RATE or FMV_ACCURACY */
    const fm_json *over;      /* the slice: texts by tag; NULL: all cases */
    const char *by;           /* FMV_GAP, FMV_RATIO: the tag that defines the groups */
    double at_least, at_most; /* NaN: no bound */
    bool surely;              /* the whole interval must lie within the bounds */
    double confidence;        /* confidence of the interval */
    uint32_t min_count;       /* least cases, in each group */
    uint32_t bins;            /* FMV_CALIBRATION */
} fmv_measure;

struct fm_suite {
    char *name, *description;
    fm_policy policy;
    fmv_case *cases;
    size_t count, cap;
    fm_waiver *waiver; /* [count], reason NULL = none; NULL: no waivers. Texts: doc's */
    fmv_measure *measure;
    size_t measure_count;
    fm_json *doc;
};

#endif
