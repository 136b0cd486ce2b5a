/* assert.h - assertions on an answer: declarations of assert.c (how they are written and weighed)
 * and of the families, which have a file each.
 *
 * A family is a table of words. An assertion is read once, when the suite is parsed: an assertion
 * that could not fail, or would not mean what it says, is refused there. It is graded for each
 * answer: whether it holds, and a score in [0, 1]. Judgements of other models are asked for all
 * answers of a run together (run/aux_models.c). */
#ifndef FM_TESTING_ASSERT_H
#define FM_TESTING_ASSERT_H

#include "testing/assert/parsed.h"
#include "testing/assert/text_match.h"

#define FMV_ASSERTIONS_MAX 10000u /* of a case, with those in sets */
#define FMV_SETS_DEEP_MAX 4
#define FMV_JUDGE_VERSION 1 /* version of the judges' prompts and of the reading of their replies */

/* Another model's view of one answer. `ask` fills text and texts, run/aux_models.c the rest. */
typedef enum fmv_aux_role { FMV_NO_AUX, FMV_JUDGE, FMV_EMBEDDER, FMV_CLASSIFIER } fmv_aux_role;
typedef struct fmv_aux {
    fm_model *model; /* borrowed from the run */
    fm_buf *text;    /* [texts] what the model reads */
    fm_ids *ids;     /* [texts] */
    size_t texts;
    float *out; /* embedder: [texts, width]; classifier: [width] log-probabilities */
    size_t width;
    fm_gen_result gen; /* judge */
    char *broken;      /* why the model could not be asked; NULL: it was asked */
} fmv_aux;

/* One answer. */
typedef struct fmv_answer {
    fm_span text;
    fm_span question;      /* the prompt as the case has it, for people and judges */
    const char *finish;    /* "stop", "length"; "" unknown */
    const float *logprobs; /* of the generated tokens; NULL: not requested */
    size_t tokens;
    const fmv_aux *aux; /* [aux_count of the case] */
} fmv_answer;

typedef struct fmv_grade {
    bool holds;
    double score;   /* in [0, 1] */
    char note[240]; /* the measurement, for people: "0.41 is below 0.75"; "" = nothing to add */
} fmv_grade;

enum {
    FMV_TAKES_THRESHOLD = 1,
    FMV_NEEDS_THRESHOLD = 2,
    FMV_TAKES_N = 4,
    FMV_NEEDS_LOGPROBS = 8,
    FMV_ICASE = 16, /* ignores case, even if the case does not */
};
typedef struct fmv_assert_type fmv_assert_type;
struct fmv_assert_type {
    const char *word;
    fmv_assert_kind kind;
    int how; /* which word of its family it is */
    unsigned flags;
    fmv_aux_role role;
    double threshold, low, high; /* default of threshold, and its range */
    /* Checks what was read: a->value, threshold, n and model are set. */
    fm_status (*read)(fmv_assertion *a, const char *where);
    fm_status (*check)(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out);
    /* Only with a role: fills text and texts of h. */
    fm_status (*ask)(const fmv_assertion *a, const fmv_answer *said, fmv_aux *h);
};
/* Each ends with a word of NULL. */
extern const fmv_assert_type fmv_assert_text[], fmv_assert_json[], fmv_assert_markup[],
    fmv_assert_overlap[], fmv_assert_model[];

/* Sums of scores by name over the answers of a case. */
typedef struct fmv_metrics {
    struct {
        const char *name;
        double sum, weight;
    } m[64];
    size_t count;
} fmv_metrics;
/* Grades one answer by all of the case's assertions; adds to metrics. An error is the case's. */
fm_status fmv_expect_grade(const fmv_case *c, const fmv_answer *said, fmv_grade *out,
                           fm_buf *detail, fmv_metrics *metrics);
/* NULL where there are no metrics, or no memory. */
fm_json *fmv_metrics_json(const fmv_metrics *m);
/* Calls each(ctx, a) for the assertions that ask another model, in the order of aux_at. */
typedef fm_status (*fmv_assertion_fn)(void *ctx, const fmv_assertion *a);
fm_status fmv_each_aux(const fmv_case *c, fmv_assertion_fn each, void *ctx);

/* Checks for the families; errors name "expect.<word>". */
fm_status fmv_want_text(const fmv_assertion *a, bool may_be_empty, const char *where);
fm_status fmv_want_texts(const fmv_assertion *a, bool one_will_do, const char *where);
/* The i-th text of a text or a list of texts; their number. */
fm_span fmv_text_at(const fm_json *v, size_t i);
size_t fmv_text_count(const fm_json *v);
bool fmv_is_number(const fm_json *v);
void fmv_set_grade(fmv_grade *out, bool holds);
/* Sets holds to score >= bound; the note has both numbers. */
void fmv_grade_at_least(fmv_grade *out, double score, double bound);

/* Reads `expect` of a case. */
fm_status fmv_expect_read(fmv_case *c, const char *where);
void fmv_expect_release(fmv_case *c);
/* Sets whether the text satisfies the assertion, which must ask no other model. detail gets the
 * reason where it does not. */
fm_status fmv_assert_check(const fmv_assertion *a, fm_span text, bool *holds, fm_buf *detail);

/* aux_text.c: adds one text that the auxiliary model is to read. */
fm_status fmv_aux_text(fmv_aux *h, fm_span text);
/* FM_EUNSUPPORTED: the cosine is not finite. */
fm_status fmv_cosine(double *out, const float *a, const float *b, size_t n);
/* The number of the class with this label; FM_EINVAL lists the model's classes. */
fm_status fmv_class_of(uint32_t *out, const fm_model *m, const char *label);
/* The JSON Schema of the replies to a judge's assertion, and the grade that a reply gives. */
const char *fmv_judge_form(const fmv_assertion *a);
fm_status fmv_judge_reply(const fmv_assertion *a, fm_span text, fmv_grade *out);

/* schema.c: JSON Schema, draft 2020-12 without its dynamic parts. */
typedef struct fmv_schema fmv_schema;
fm_status fmv_schema_new(fmv_schema **out, const fm_json *doc, const char *where);
void fmv_schema_free(fmv_schema *s);
/* Validates v. why: the broken keyword and its place ("/a/0: type"). *steps: the steps used so far,
 * 0 at first; the call adds its own. An error: the limits were reached before a decision. */
fm_status fmv_schema_check(const fmv_schema *s, const fm_json *v, uint32_t *steps, bool *valid,
                           char *why, size_t why_size);

#endif
