/* model.c - assertions that need a model: the confidence of the answer's own model, and the
 * judgement of an embedder, a classifier or a judge of the repository.
 *
 * A judge's prompt and the form of its reply are fixed (FMV_JUDGE_VERSION) and are in SUITES.md. A
 * judge decodes greedily under a grammar of the form; another reply is the case's error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/assert/assert.h"

#define TEXTS_MAX 16u

enum { PERPLEXITY, PERPLEXITY_SCORE, RUBRIC, FACTUALITY, CLOSED_QA };

/* ---- the answer's own tokens ---- */

static fm_status read_alone(fmv_assertion *a, const char *where)
{
    if (!fm_json_is(a->value, FM_JSON_BOOL) || !fm_json_bool(a->value, false))
        return fm_fail(FM_EINVAL, "%s: expect.%s wants true, and its bound as 'threshold'", where,
                       a->type->word);
    return FM_OK;
}

static fm_status check_perplexity(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    double sum = 0;
    if (!said->logprobs || !said->tokens)
        return fm_fail(FM_EUNSUPPORTED, "the answer has no tokens, so no perplexity");
    for (size_t i = 0; i < said->tokens; i++)
        sum += (double)said->logprobs[i];
    double ppl = fm_exp(-sum / (double)said->tokens), score = 1 / (1 + ppl);
    if (isnan(ppl))
        return fm_fail(FM_EUNSUPPORTED, "the model's log-probabilities are not finite");
    out->score = score;
    out->holds = a->type->how == PERPLEXITY ? ppl <= a->threshold : score >= a->threshold;
    snprintf(out->note, sizeof out->note, "perplexity %.4g, score %.4g", ppl, score);
    return FM_OK;
}

/* ---- similar ---- */

static fm_status read_similar(fmv_assertion *a, const char *where)
{
    FM_TRY(fmv_want_texts(a, true, where));
    for (size_t i = 0; i < fmv_text_count(a->value); i++)
        if (!fmv_trim(fmv_text_at(a->value, i)).len)
            return fm_fail(FM_EINVAL, "%s: expect.similar[%zu] is empty", where, i);
    if (fmv_text_count(a->value) > TEXTS_MAX)
        return fm_fail(FM_ELIMIT, "%s: expect.similar: more than %u texts", where, TEXTS_MAX);
    return FM_OK;
}

static fm_status ask_similar(const fmv_assertion *a, const fmv_answer *said, fmv_aux *h)
{
    FM_TRY(fmv_aux_text(h, said->text));
    for (size_t i = 0; i < fmv_text_count(a->value); i++)
        FM_TRY(fmv_aux_text(h, fmv_text_at(a->value, i)));
    return FM_OK;
}

static fm_status check_similar(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    const fmv_aux *h = &said->aux[a->aux_at];
    double best = h->ids[0].count ? -1 : 0;
    fm_status rc = FM_OK;
    for (size_t i = 1; rc == FM_OK && h->ids[0].count && i < h->texts; i++) {
        double one = 0;
        rc = fmv_cosine(&one, h->out, h->out + i * h->width, h->width);
        best = FM_MAX(best, one);
    }
    fmv_grade_at_least(out, best, a->threshold);
    return rc;
}

/* ---- classifier ---- */

static fm_status read_label(fmv_assertion *a, const char *where)
{
    return fmv_want_text(a, false, where);
}

static fm_status ask_whole(const fmv_assertion *a, const fmv_answer *said, fmv_aux *h)
{
    (void)a;
    return fmv_aux_text(h, said->text);
}

static fm_status check_label(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    const fmv_aux *h = &said->aux[a->aux_at];
    uint32_t k = 0;
    FM_TRY(fmv_class_of(&k, h->model, fm_json_cstr(a->value, "")));
    double p = h->ids[0].count ? fm_exp((double)h->out[k]) : 0;
    if (isnan(p))
        return fm_fail(FM_EUNSUPPORTED, "the classifier's probabilities are not finite");
    fmv_grade_at_least(out, p, a->threshold);
    return FM_OK;
}

/* ---- judges ---- */

static const char *const prompts[] = {
    [RUBRIC] = "Grade an answer by a rubric.\nRubric: %s\nAnswer: %s\n"
               "Reply in JSON: {\"reason\": a few words, \"pass\": true or false, "
               "\"score\": 0 to 1}",
    [FACTUALITY] = "Compare an answer with an expert's.\nQuestion: %q\nExpert: %s\nAnswer: %s\n"
                   "A: less, agrees. B: more, agrees. C: the same. D: disagrees. E: differs, but "
                   "not in facts.\nReply in JSON: {\"reason\": a few words, \"choice\": A to E}",
    [CLOSED_QA] = "Does an answer meet a criterion?\nQuestion: %q\nCriterion: %s\nAnswer: %s\n"
                  "Reply in JSON: {\"reason\": a few words, \"pass\": true or false}",
};
static const char *const forms[] = {
    [RUBRIC] = "{\"type\":\"object\",\"properties\":{\"reason\":{\"type\":\"string\","
               "\"maxLength\":60},\"pass\":{\"type\":\"boolean\"},\"score\":{\"type\":\"number\","
               "\"minimum\":0,\"maximum\":1}},\"required\":[\"reason\",\"pass\",\"score\"]}",
    [FACTUALITY] = "{\"type\":\"object\",\"properties\":{\"reason\":{\"type\":\"string\","
                   "\"maxLength\":60},\"choice\":{\"enum\":[\"A\",\"B\",\"C\",\"D\",\"E\"]}},"
                   "\"required\":[\"reason\",\"choice\"]}",
    [CLOSED_QA] = "{\"type\":\"object\",\"properties\":{\"reason\":{\"type\":\"string\","
                  "\"maxLength\":60},\"pass\":{\"type\":\"boolean\"}},"
                  "\"required\":[\"reason\",\"pass\"]}",
};

const char *fmv_judge_form(const fmv_assertion *a)
{
    return forms[a->type->how];
}

/* Builds a judge's prompt: %q is the question, the two %s are what the case wants and the answer.
 * Texts are inserted as they are. */
static fm_status ask_judge(const fmv_assertion *a, const fmv_answer *said, fmv_aux *h)
{
    fm_buf b;
    bool wanted = false;
    fm_buf_init(&b, 0);
    for (const char *p = prompts[a->type->how]; *p; p++) {
        if (*p != '%') {
            fm_buf_char(&b, *p);
            continue;
        }
        fm_span s = *++p == 'q' ? said->question : wanted ? said->text : fm_json_str(a->value);
        wanted = wanted || *p == 's';
        fm_buf_append(&b, s.data, s.len);
    }
    fm_status rc = fm_buf_ok(&b);
    FM_THEN(rc, fmv_aux_text(h, fm_buf_span(&b)));
    fm_buf_release(&b);
    return rc;
}

static fm_status graded(const fmv_assertion *a, const fm_json *reply, fmv_grade *out)
{
    const fm_json *pass = fm_json_get(reply, "pass"), *choice = fm_json_get(reply, "choice");
    double score = fm_json_real(fm_json_get(reply, "score"), NAN);
    const char *c = fm_json_cstr(choice, "");
    bool ok = fm_json_is(fm_json_get(reply, "reason"), FM_JSON_STRING);
    ok = ok && fm_json_count(reply) == (a->type->how == RUBRIC ? 3 : 2);
    if (a->type->how == FACTUALITY)
        ok = ok && strlen(c) == 1 && c[0] >= 'A' && c[0] <= 'E';
    else
        ok = ok && fm_json_is(pass, FM_JSON_BOOL);
    if (a->type->how == RUBRIC)
        ok = ok && score >= 0 && score <= 1;
    if (!ok)
        return fm_fail(FM_EINVAL, "the judge's reply is not of the form that was asked for");
    out->holds = a->type->how == FACTUALITY ? c[0] != 'D' : fm_json_bool(pass, false);
    out->score = a->type->how == RUBRIC ? score : out->holds ? 1 : 0;
    if (a->type->how == RUBRIC && !isnan(a->threshold))
        out->holds = out->holds && score >= a->threshold;
    fm_span why = fmv_clip(fm_json_str(fm_json_get(reply, "reason")), 120);
    snprintf(out->note, sizeof out->note, "judge: %s%s%.3g, \"%.*s\"", c, *c ? ", " : "",
             out->score, (int)why.len, (const char *)why.data);
    return FM_OK;
}

fm_status fmv_judge_reply(const fmv_assertion *a, fm_span text, fmv_grade *out)
{
    fm_json *reply = NULL;
    fm_status rc = fm_json_parse(&reply, text, "the judge's reply");
    FM_THEN(rc, graded(a, reply, out));
    fm_json_free(reply);
    return rc;
}

static fm_status check_judge(const fmv_assertion *a, const fmv_answer *said, fmv_grade *out)
{
    const fmv_aux *h = &said->aux[a->aux_at];
    if (strcmp(h->gen.finish, "error") == 0)
        return fm_fail(FM_EUNSUPPORTED, "the judge gave up: %s", fm_buf_cstr(&h->gen.text));
    return fmv_judge_reply(a, fm_buf_span(&h->gen.text), out);
}

static fm_status read_rubric(fmv_assertion *a, const char *where)
{
    return fmv_want_text(a, false, where);
}

#define JUDGE(w, h, f)                                                                             \
    {                                                                                              \
        .word = w, .kind = FMV_RULE, .how = h, .flags = f, .role = FMV_JUDGE, .threshold = NAN,    \
        .low = 1e-6, .high = 1, .read = read_rubric, .check = check_judge, .ask = ask_judge        \
    }
const fmv_assert_type fmv_assert_model[] = {
    {.word = "perplexity",
     .kind = FMV_RULE,
     .how = PERPLEXITY,
     .flags = FMV_NEEDS_THRESHOLD | FMV_NEEDS_LOGPROBS,
     .threshold = NAN,
     .low = 1,
     .high = 1e9,
     .read = read_alone,
     .check = check_perplexity},
    {.word = "perplexity-score",
     .kind = FMV_RULE,
     .how = PERPLEXITY_SCORE,
     .flags = FMV_TAKES_THRESHOLD | FMV_NEEDS_LOGPROBS,
     .threshold = 0.5,
     .low = 1e-6,
     .high = 0.5,
     .read = read_alone,
     .check = check_perplexity},
    {.word = "similar",
     .kind = FMV_TEXTS,
     .flags = FMV_TAKES_THRESHOLD,
     .role = FMV_EMBEDDER,
     .threshold = 0.75,
     .low = -1,
     .high = 1,
     .read = read_similar,
     .check = check_similar,
     .ask = ask_similar},
    {.word = "classifier",
     .kind = FMV_RULE,
     .flags = FMV_NEEDS_THRESHOLD,
     .role = FMV_CLASSIFIER,
     .threshold = NAN,
     .low = 1e-6,
     .high = 1,
     .read = read_label,
     .check = check_label,
     .ask = ask_whole},
    JUDGE("llm-rubric", RUBRIC, FMV_TAKES_THRESHOLD),
    JUDGE("factuality", FACTUALITY, 0),
    JUDGE("model-graded-closedqa", CLOSED_QA, 0),
    {0},
};
