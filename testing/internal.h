/* internal.h - a parsed suite, for the files of this folder. */
#ifndef FM_TESTING_INTERNAL_H
#define FM_TESTING_INTERNAL_H

#include "testing/testing.h"

#define FMI_CASES_MAX 100000u
#define FMI_PROMPTS_MAX 64u
#define FMI_CHOICES_MAX 64u
#define FMI_CASE_NAME_MAX 200u
#define FMI_SUITE_BYTES_MAX ((size_t)16 << 20)    /* of the file */
#define FMI_EXPANDED_BYTES_MAX ((size_t)64 << 20) /* of all strings that templates become */

typedef enum fmi_case_kind { FMI_MFT, FMI_INV, FMI_DIR } fmi_case_kind;
typedef enum fmi_scoring {
    FMI_SCORE_TEXT,    /* generate, then assertions */
    FMI_SCORE_CHOICE,  /* the likeliest of several continuations must be the answer */
    FMI_SCORE_LOGPROB, /* a continuation's log-probability against a bound, or between prompts (DIR)
                        */
} fmi_scoring;
typedef enum fmi_normalize { FMI_PER_NOTHING, FMI_PER_TOKEN, FMI_PER_BYTE } fmi_normalize;
typedef enum fmi_prompt_form {
    FMI_PROMPT_TEXT,
    FMI_PROMPT_CHAT,
    FMI_PROMPT_MESSAGES
} fmi_prompt_form;

typedef enum fmi_assert_kind {
    FMI_EQUALS,
    FMI_CONTAINS,
    FMI_STARTS_WITH,
    FMI_REGEX,
    FMI_ONE_OF,
    FMI_JSON,
} fmi_assert_kind;

typedef struct fmi_assertion {
    fmi_assert_kind kind;
    bool negated;
    const fm_json *value; /* borrowed from the case */
    void *regex;          /* compiled, FMI_REGEX */
} fmi_assertion;

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
    /* choice */
    const char *choice[FMI_CHOICES_MAX];
    size_t choice_count, answer;
    fmi_normalize normalize; /* what a choice's log-probability is divided by */
    /* logprob */
    const char *continuation;
    double above, below; /* bounds; NaN = none */
    bool increases;      /* DIR: the continuation's logprob must grow from prompt to prompt */
    double margin;       /* DIR: by at least this */
} fmi_case;

struct fm_suite {
    char *name, *description;
    bool gate;
    fmi_case *cases;
    size_t count, cap;
    fm_json *doc;
};

/* suite_case.c: validate one expanded case (consumes doc). defaults: the suite's `generate`. */
fm_status fmi_case_init(fmi_case *out, fm_json *doc, const fm_json *defaults, const char *what);
void fmi_case_release(fmi_case *c);
/* The suite's `generate`, which no case may look at. */
fm_status fmi_check_generate(const fm_json *g, const char *where);

/* template.c: calls each(ctx, case) for every filling of the slots; each consumes its case. *budget
 * is what all templates of the suite may still write, in bytes: beyond it FM_ELIMIT. */
typedef fm_status (*fmi_case_fn)(void *ctx, fm_json *doc);
fm_status fmi_template_expand(const fm_json *tmpl, const char *what, size_t *budget,
                              fmi_case_fn each, void *ctx);

/* score.c: does the text satisfy the assertion? detail gets the reason when not. */
fm_status fmi_pattern_compile(void **out, const char *pattern, bool ignore_case, const char *where);
void fmi_pattern_free(void *regex);
fm_status fmi_assert_check(const fmi_assertion *a, bool ignore_case, fm_span text, bool *holds,
                           fm_buf *detail);
fm_span fmi_trim(fm_span s);
bool fmi_text_equal(fm_span a, fm_span b, bool ignore_case);
/* The beginning of a text for people: at most max bytes, no code point cut. */
fm_span fmi_clip(fm_span s, size_t max);

/* cache.c: does the answer depend on a seed? */
bool fmi_case_samples(const fmi_case *c);
/* One case's result as JSON and back; key in testing.h. */
fm_status fmi_result_encode(fm_buf *out, const fm_case_result *r);
fm_status fmi_result_decode(fm_case_result *out, fm_span text);

#endif
