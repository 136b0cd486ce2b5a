/* assert.h - assertions on an answer, between assert.c (how they are written and weighed) and the
 * families of them, a file each.
 *
 * A family is a table of words. An assertion is read once, when the suite is parsed: what could not
 * fail, or would not mean what it says, is refused there. It is graded per answer: does it hold,
 * and a score in [0, 1]. What another model must say of the answer first is asked for all answers
 * of a run together (run/aux_models.c). */
#ifndef FM_TESTING_ASSERT_H
#define FM_TESTING_ASSERT_H

#include "testing/assert/parsed.h"
#include "testing/assert/text_match.h"

#define FMI_ASSERTIONS_MAX 10000u /* of a case, sets counted whole */
#define FMI_SETS_DEEP_MAX 4
#define FMI_JUDGE_VERSION 1 /* of the judges' prompts and of how their answers are read */

/* What another model said of one answer. Filled by ask (texts), run/aux_models.c (ids, out,
 * gen). */
typedef enum fmi_helper_role {
    FMI_NO_HELPER,
    FMI_JUDGE,
    FMI_EMBEDDER,
    FMI_CLASSIFIER
} fmi_helper_role;
typedef struct fmi_help {
    fm_model *model; /* borrowed from the run */
    fm_buf *text;    /* [texts] what it reads */
    fm_ids *ids;     /* [texts] */
    size_t texts;
    float *out; /* embedder: [texts, width]; classifier: [width] log-probabilities */
    size_t width;
    fm_gen_result gen; /* judge */
    char *broken;      /* why it could not be asked; NULL: it was */
} fmi_help;

/* One answer. */
typedef struct fmi_answer {
    fm_span text;
    fm_span question;      /* for people and judges: the prompt as the case has it */
    const char *finish;    /* "stop", "length"; "" unknown */
    const float *logprobs; /* of the tokens generated; NULL: not asked for */
    size_t tokens;
    const fmi_help *help; /* [helper_count of the case] */
} fmi_answer;

typedef struct fmi_grade {
    bool holds;
    double score;   /* in [0, 1] */
    char note[240]; /* what was measured, for people: "0.41 is below 0.75"; "" nothing to add */
} fmi_grade;

enum {
    FMI_TAKES_THRESHOLD = 1,
    FMI_NEEDS_THRESHOLD = 2,
    FMI_TAKES_N = 4,
    FMI_NEEDS_LOGPROBS = 8,
    FMI_ICASE = 16, /* whatever the case says */
};
typedef struct fmi_assert_type fmi_assert_type;
struct fmi_assert_type {
    const char *word;
    fmi_assert_kind kind;
    int how; /* tells the words of a family apart */
    unsigned flags;
    fmi_helper_role role;
    double threshold, low, high; /* the default of threshold, and the range it may have */
    /* a->value, threshold, n and model are set. */
    fm_status (*read)(fmi_assertion *a, const char *where);
    fm_status (*check)(const fmi_assertion *a, const fmi_answer *said, fmi_grade *out);
    /* With a role: fills text and texts. */
    fm_status (*ask)(const fmi_assertion *a, const fmi_answer *said, fmi_help *h);
};
/* NULL-ended by a word of NULL. */
extern const fmi_assert_type fmi_assert_text[], fmi_assert_json[], fmi_assert_markup[],
    fmi_assert_overlap[], fmi_assert_model[];

/* Scores of one name over the answers of a case. */
typedef struct fmi_metrics {
    struct {
        const char *name;
        double sum, weight;
    } m[64];
    size_t count;
} fmi_metrics;
/* All of the case's assertions on one answer; metrics are added to. An error is the case's. */
fm_status fmi_expect_grade(const fmi_case *c, const fmi_answer *said, fmi_grade *out,
                           fm_buf *detail, fmi_metrics *metrics);
/* NULL where there are none, or without memory. */
fm_json *fmi_metrics_json(const fmi_metrics *m);
/* Calls each(ctx, a) for the assertions that ask another model, in the order of their places. */
typedef fm_status (*fmi_assertion_fn)(void *ctx, const fmi_assertion *a);
fm_status fmi_each_helper(const fmi_case *c, fmi_assertion_fn each, void *ctx);

/* For the families. "expect.<word>" in errors. */
fm_status fmi_want_text(const fmi_assertion *a, bool may_be_empty, const char *where);
fm_status fmi_want_texts(const fmi_assertion *a, bool one_will_do, const char *where);
/* The i-th of a text or a list of texts; count of them. */
fm_span fmi_text_at(const fm_json *v, size_t i);
size_t fmi_text_count(const fm_json *v);
bool fmi_is_number(const fm_json *v);
void fmi_set_grade(fmi_grade *out, bool holds);
/* Holds where score >= bound; the note says how far it is. */
void fmi_grade_at_least(fmi_grade *out, double score, double bound);

/* `expect` of a case. */
fm_status fmi_expect_read(fmi_case *c, const char *where);
void fmi_expect_release(fmi_case *c);
/* Does the text satisfy the assertion (one that asks no other model)? detail gets the reason when
 * not. */
fm_status fmi_assert_check(const fmi_assertion *a, fm_span text, bool *holds, fm_buf *detail);

/* helped.c: adds one text that the helper is to read. */
fm_status fmi_help_text(fmi_help *h, fm_span text);
/* FM_EUNSUPPORTED: not finite. */
fm_status fmi_cosine(double *out, const float *a, const float *b, size_t n);
/* The class of that label; FM_EINVAL lists those there are. */
fm_status fmi_class_of(uint32_t *out, const fm_model *m, const char *label);
/* The JSON Schema of the replies to a judge's assertion; what a reply says. */
const char *fmi_judge_form(const fmi_assertion *a);
fm_status fmi_judge_reply(const fmi_assertion *a, fm_span text, fmi_grade *out);

/* schema.c: JSON Schema, draft 2020-12 without its dynamic parts. */
typedef struct fmi_schema fmi_schema;
fm_status fmi_schema_new(fmi_schema **out, const fm_json *doc, const char *where);
void fmi_schema_free(fmi_schema *s);
/* why: which keyword at which place was broken ("/a/0: type"). *steps: what was spent already, and
 * what is then; 0 at first. An error: it could not be decided within the limits. */
fm_status fmi_schema_check(const fmi_schema *s, const fm_json *v, uint32_t *steps, bool *valid,
                           char *why, size_t why_size);

#endif
