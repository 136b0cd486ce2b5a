/* parsed.h - a parsed suite, its cases and their assertions: types alone. */
#ifndef FM_TESTING_PARSED_H
#define FM_TESTING_PARSED_H

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
    /* what the case is filed under, and what holds between its prompts (suite/case_form.c) */
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

/* A measure over the cases of a suite (run/measure.c). Texts are borrowed from the suite's doc. */
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

#endif
