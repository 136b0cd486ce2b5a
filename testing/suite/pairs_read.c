/* pairs_read.c - reads `pairs` of a case: what must hold between prompts (run/pairs.c). */
#include <math.h>
#include <string.h>

#include "testing/suite/internal.h"

#define DEPTH_MAX 8

static fm_status check_probability(const fmv_case *c, const fm_json *v, const char *where)
{
    static const char *const known[] = {"of", "increases", "decreases", "within", NULL};
    const char *of = fm_json_cstr(fm_json_get(v, "of"), NULL);
    bool among = false;
    size_t bounds = 0;
    if (!fm_json_is(v, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL,
                       "%s: pairs.probability wants {increases|decreases|within: number}", where);
    if (c->scoring == FMV_SCORE_TEXT)
        return fm_fail(FM_EINVAL, "%s: pairs.probability goes with 'choices' or 'continuation'",
                       where);
    fm_status rc = fm_json_known_keys(v, known, where);
    for (size_t i = 1; i < 4 && rc == FM_OK; i++) {
        const fm_json *n = fm_json_get(v, known[i]);
        double x = fm_json_real(n, NAN);
        bounds += n != NULL;
        if (n && !(x >= (i == 3 ? 0 : -1) && x < 1))
            rc = fm_fail(FM_EINVAL, "%s: pairs.probability.%s wants a number of %d to less than 1",
                         where, known[i], i == 3 ? 0 : -1);
    }
    if (rc == FM_OK && bounds != 1)
        rc = fm_fail(FM_EINVAL, "%s: pairs.probability wants one of increases, decreases, within",
                     where);
    for (size_t k = 0; of && k < c->choice_count; k++)
        among = among || strcmp(of, c->choice[k]) == 0;
    if (rc == FM_OK && fm_json_get(v, "of") && !among)
        rc = fm_fail(FM_EINVAL, "%s: pairs.probability.of must be one of 'choices'", where);
    if (rc == FM_OK && !of && c->scoring == FMV_SCORE_CHOICE && c->answer == c->choice_count)
        rc = fm_fail(FM_EINVAL, "%s: pairs.probability: of which choice? Say 'of', or 'answer'",
                     where);
    return rc;
}

static fm_status check(const fmv_case *c, const fm_json *v, unsigned depth, const char *where)
{
    bool list = fm_json_is(v, FM_JSON_ARRAY);
    if (depth > DEPTH_MAX)
        return fm_fail(FM_ELIMIT, "%s: 'pairs' is nested deeper than %d", where, DEPTH_MAX);
    if ((!list && !fm_json_is(v, FM_JSON_OBJECT)) || fm_json_count(v) == 0)
        return fm_fail(FM_EINVAL, "%s: 'pairs' wants expectations like {answer: same}", where);
    for (size_t i = 0; list && i < fm_json_count(v); i++)
        FM_TRY(check(c, fm_json_at(v, i), depth + 1, where));
    for (void *it = list ? NULL : fm_json_iter(v); it; it = fm_json_next(v, it)) {
        const char *key = fm_json_iter_key(it);
        const fm_json *x = fm_json_iter_value(it);
        const char *word = fm_json_cstr(x, "");
        if (strcmp(key, "any") == 0 || strcmp(key, "all") == 0)
            FM_TRY(fm_json_is(x, FM_JSON_ARRAY)
                       ? check(c, x, depth + 1, where)
                       : fm_fail(FM_EINVAL, "%s: pairs.%s wants a list", where, key));
        else if (strcmp(key, "probability") == 0)
            FM_TRY(check_probability(c, x, where));
        else if (strcmp(key, "answer") != 0)
            return fm_fail(FM_EINVAL,
                           "%s: pairs: unknown key '%.60s' (known: answer, probability, any, all)",
                           where, key);
        else if (c->scoring == FMV_SCORE_LOGPROB)
            return fm_fail(FM_EINVAL,
                           "%s: pairs.answer: a continuation has no answer; use "
                           "'probability'",
                           where);
        else if (strcmp(word, "same") != 0 && strcmp(word, "changes") != 0)
            return fm_fail(FM_EINVAL, "%s: pairs.answer wants same or changes", where);
    }
    return FM_OK;
}

fm_status fmv_pairs_read(fmv_case *c, const char *where)
{
    const fm_json *pairs = fm_json_get(c->doc, "pairs");
    fm_status rc = FM_OK;
    if (!pairs && c->scoring == FMV_SCORE_CHOICE && c->kind == FMV_INV) {
        fm_json *same = fm_json_new_object();
        rc = same ? fm_json_set(same, "answer", fm_json_new_str("same")) : FM_ENOMEM;
        FM_THEN(rc, fm_json_set(c->doc, "pairs", fm_json_ref(same)));
        fm_json_free(same);
        pairs = fm_json_get(c->doc, "pairs");
    }
    c->pairs = pairs;
    if (rc < 0)
        return rc;
    if (!pairs && c->kind == FMV_DIR && c->scoring != FMV_SCORE_LOGPROB &&
        c->scoring != FMV_SCORE_CLASS)
        return fm_fail(FM_EINVAL,
                       "%s: DIR wants 'continuation' or 'class' with 'direction', or 'pairs': "
                       "what changes?",
                       where);
    if (!pairs)
        return FM_OK;
    if (c->kind == FMV_MFT)
        return fm_fail(FM_EINVAL, "%s: 'pairs' says nothing here: it goes with kind INV or DIR",
                       where);
    if (c->scoring != FMV_SCORE_TEXT && c->scoring != FMV_SCORE_CHOICE &&
        c->scoring != FMV_SCORE_LOGPROB)
        return fm_fail(FM_EINVAL, "%s: 'pairs' goes with answers, 'choices' or 'continuation'",
                       where);
    if (fm_json_get(c->doc, "direction") || fm_json_get(c->doc, "margin"))
        return fm_fail(FM_EINVAL, "%s: 'pairs' stands in the place of 'direction' and 'margin'",
                       where);
    return check(c, pairs, 0, where);
}
