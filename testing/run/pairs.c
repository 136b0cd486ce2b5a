/* pairs.c - judges what must hold between the answers to two prompts of an INV or DIR case.
 *
 * As in CheckList an expectation gives a verdict and a number: 0 or more where it holds, and larger
 * where it holds more safely. `all` takes the least, `any` the greatest; the case's score is the
 * least over its pairs. */
#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/run/run.h"

typedef struct side {
    const double *p; /* softmax over the choices; for a continuation [0] alone */
    size_t best;
    fm_span text;
} side;

typedef struct held {
    bool holds;
    double by;
} held;

static held probability_moves(const fmv_case *c, const fm_json *v, const side *a, const side *b)
{
    const char *of = fm_json_cstr(fm_json_get(v, "of"), NULL);
    size_t k = c->scoring == FMV_SCORE_CHOICE ? c->answer : 0;
    for (size_t i = 0; of && i < c->choice_count; i++)
        if (strcmp(of, c->choice[i]) == 0)
            k = i;
    double change = b->p[k] - a->p[k], by;
    if (fm_json_get(v, "increases"))
        by = change - fm_json_real(fm_json_get(v, "increases"), 0);
    else if (fm_json_get(v, "decreases"))
        by = -change - fm_json_real(fm_json_get(v, "decreases"), 0);
    else
        by = fm_json_real(fm_json_get(v, "within"), 0) - fabs(change);
    return (held){by >= 0, by};
}

/* The lead of a's choice among b's probabilities: how far b is from another answer. */
static held answer_same(const fmv_case *c, const side *a, const side *b)
{
    double other = -INFINITY;
    if (c->scoring == FMV_SCORE_TEXT) {
        bool same = fmv_text_equal(fmv_trim(a->text), fmv_trim(b->text), c->ignore_case);
        return (held){same, same ? 1 : -1};
    }
    for (size_t k = 0; k < c->choice_count; k++)
        if (k != a->best)
            other = FM_MAX(other, b->p[k]);
    return (held){a->best == b->best, b->p[a->best] - other};
}

static held holds(const fmv_case *c, const fm_json *v, const side *a, const side *b, bool any)
{
    bool list = fm_json_is(v, FM_JSON_ARRAY);
    held all = {!any, any ? -INFINITY : INFINITY}, one;
    void *it = list ? NULL : fm_json_iter(v);
    for (size_t i = 0; list ? i < fm_json_count(v) : it != NULL; i++) {
        const char *key = list ? "all" : fm_json_iter_key(it);
        const fm_json *x = list ? fm_json_at(v, i) : fm_json_iter_value(it);
        if (strcmp(key, "probability") == 0) {
            one = probability_moves(c, x, a, b);
        } else if (strcmp(key, "answer") == 0) {
            one = answer_same(c, a, b);
            if (strcmp(fm_json_cstr(x, ""), "changes") == 0)
                one = (held){!one.holds, -one.by};
        } else {
            one = holds(c, x, a, b, strcmp(key, "any") == 0);
        }
        all.holds = any ? all.holds || one.holds : all.holds && one.holds;
        all.by = any ? FM_MAX(all.by, one.by) : FM_MIN(all.by, one.by);
        it = list ? NULL : fm_json_next(v, it);
    }
    return all;
}

static fm_status read_sides(side *s, double *p, const fmv_job *j)
{
    const fmv_case *c = j->c;
    size_t per = c->scoring == FMV_SCORE_CHOICE ? c->choice_count : 1;
    for (size_t i = 0; i < c->prompt_count; i++) {
        s[i] = (side){p + i * per, 0, {NULL, 0}};
        if (c->scoring == FMV_SCORE_TEXT) {
            s[i].text = fm_buf_span(&j->said[i].text);
            continue;
        }
        for (size_t k = 0; k < per; k++) {
            p[i * per + k] = fmv_score_of(j, i * per + k);
            if (!isfinite(p[i * per + k]))
                return fm_fail(FM_EUNSUPPORTED, "the model's log-probabilities are not finite");
            if (p[i * per + k] > p[i * per + s[i].best])
                s[i].best = k;
        }
        if (c->scoring == FMV_SCORE_CHOICE)
            fmv_softmax(p + i * per, per);
        else
            p[i] = fm_exp(p[i]);
    }
    return FM_OK;
}

static void show_side(fm_buf *output, const fmv_case *c, const side *s, size_t i)
{
    if (c->scoring == FMV_SCORE_CHOICE)
        fm_buf_printf(output, "%s\"%s\" %.3f", i ? ", " : "", c->choice[s->best], s->p[s->best]);
    else if (c->scoring == FMV_SCORE_LOGPROB)
        fm_buf_printf(output, "%s%.4f", i ? ", " : "", s->p[0]);
}

/* Whether `answer` holds, which a case may have in addition to its pairs: in INV all prompts must
 * prefer it, in DIR the first. */
static bool answers_right(const fmv_case *c, const side *s, fm_buf *detail)
{
    if (c->scoring != FMV_SCORE_CHOICE || c->answer == c->choice_count)
        return true;
    for (size_t i = 0; i < (c->kind == FMV_INV ? c->prompt_count : 1); i++)
        if (s[i].best != c->answer) {
            fm_buf_printf(detail, "prompt %zu: expected \"%s\", \"%s\" is likelier", i + 1,
                          c->choice[c->answer], c->choice[s[i].best]);
            return false;
        }
    return true;
}

static fm_status judge_sides(fmv_job *j, const side *s, fm_buf *output, fm_buf *detail, bool *ok)
{
    const fmv_case *c = j->c;
    double least = INFINITY;
    fm_buf text;
    *ok = answers_right(c, s, detail);
    for (size_t i = 0; i < c->prompt_count; i++) {
        size_t from = c->kind == FMV_INV || c->against_first ? 0 : i - 1;
        show_side(output, c, &s[i], i);
        if (i == 0)
            continue;
        held h = holds(c, c->pairs, &s[from], &s[i], false);
        least = FM_MIN(least, h.by);
        if (h.holds || !*ok)
            continue;
        *ok = false;
        fm_buf_init(&text, 0);
        fm_status rc = fm_json_write(&text, c->pairs, FM_JSON_COMPACT);
        fm_buf_printf(detail, "from prompt %zu to %zu does not hold: %s (by %.3f)", from + 1, i + 1,
                      fm_buf_cstr(&text), -h.by);
        fm_buf_release(&text);
        if (rc < 0)
            return rc;
    }
    j->result->score = least;
    return FM_OK;
}

fm_status fmv_judge_pairs(fmv_job *j, fm_buf *output, fm_buf *detail, bool *ok)
{
    const fmv_case *c = j->c;
    side *s = fm_calloc(c->prompt_count, sizeof *s);
    double *p = fm_calloc(c->prompt_count * FM_MAX(c->choice_count, (size_t)1), sizeof *p);
    fm_status rc = s && p ? read_sides(s, p, j) : FM_ENOMEM;
    FM_THEN(rc, judge_sides(j, s, output, detail, ok));
    if (rc == FM_OK && c->scoring != FMV_SCORE_TEXT) {
        j->result->verdict = *ok ? FM_PASS : FM_FAIL;
        j->result->answer =
            fm_strdup(c->scoring == FMV_SCORE_CHOICE ? c->choice[s[0].best] : c->continuation);
        rc = j->result->answer ? FM_OK : FM_ENOMEM;
    }
    fm_free(s);
    fm_free(p);
    return rc;
}
