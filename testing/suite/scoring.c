/* scoring.c - reads cases that generate nothing and compare no continuation: how likely the prompt
 * is as a text, which class it has, how similar other texts are to it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing/suite/internal.h"

#define WINDOW_MAX 1000000.0

static const struct {
    const char *key;
    fmv_scoring scoring;
} kinds[] = {
    {"perplexity", FMV_SCORE_ROLLING}, {"class", FMV_SCORE_CLASS}, {"embedding", FMV_SCORE_EMBED}};

fm_status fmv_read_number(double *out, const fm_json *obj, const char *key, const char *where)
{
    const fm_json *v = fm_json_get(obj, key);
    if (!v)
        return FM_OK;
    if (!fm_json_is(v, FM_JSON_INT) && !fm_json_is(v, FM_JSON_REAL))
        return fm_fail(FM_EINVAL, "%s: '%s' must be a number", where, key);
    *out = fm_json_real(v, 0);
    return FM_OK;
}

int fmv_scorings_of(const fmv_case *c, fmv_scoring *out)
{
    int n = 0;
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (fm_json_get(c->doc, kinds[i].key)) {
            *out = kinds[i].scoring;
            n++;
        }
    return n;
}

static fm_status read_bounds(fmv_case *c, const fm_json *from, const char *above, const char *below,
                             const char *where)
{
    FM_TRY(fmv_read_number(&c->above, from, above, where));
    FM_TRY(fmv_read_number(&c->below, from, below, where));
    if (c->above >= c->below)
        return fm_fail(FM_EINVAL, "%s: nothing is above '%s' and below '%s'", where, above, below);
    return FM_OK;
}

static fm_status read_rolling(fmv_case *c, const char *where)
{
    static const char *const known[] = {"per", "above", "below", "window", NULL};
    static const char *const units[] = {"word", "byte", "token"};
    const fm_json *v = fm_json_get(c->doc, "perplexity");
    const char *per = fm_json_cstr(fm_json_get(v, "per"), "");
    double window = 0;
    size_t u = 0;
    if (!fm_json_is(v, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: 'perplexity' wants {per: word, below: ..}", where);
    fm_status rc = fm_json_known_keys(v, known, where);
    while (u < FM_ARRAY_LEN(units) && strcmp(units[u], per) != 0)
        u++;
    if (rc == FM_OK && u == FM_ARRAY_LEN(units))
        rc = fm_fail(FM_EINVAL, "%s: perplexity: 'per' wants word, byte or token", where);
    c->per = (fmv_per)u;
    FM_THEN(rc, fmv_read_number(&window, v, "window", where));
    if (rc == FM_OK && fm_json_get(v, "window") &&
        !(window >= 2 && window <= WINDOW_MAX && floor(window) == window))
        rc = fm_fail(FM_EINVAL, "%s: perplexity: 'window' wants a whole number, 2 to %.0f", where,
                     WINDOW_MAX);
    c->window = (uint32_t)window;
    FM_THEN(rc, read_bounds(c, v, "above", "below", where));
    if (rc == FM_OK && isnan(c->above) && isnan(c->below))
        rc = fm_fail(FM_EINVAL, "%s: perplexity wants 'below' or 'above'", where);
    if (rc == FM_OK && (c->above < 1 || c->below <= 1))
        rc = fm_fail(FM_EINVAL, "%s: a perplexity is never below 1", where);
    return rc;
}

/* Reads a relation between prompts, as for a continuation: within `margin`, or in a direction. */
static fm_status read_relation(fmv_case *c, const char *where)
{
    const char *direction = fm_json_cstr(fm_json_get(c->doc, "direction"), "");
    fm_status rc = fmv_read_number(&c->margin, c->doc, "margin", where);
    if (rc == FM_OK && !(c->margin >= 0 && c->margin < 1))
        rc =
            fm_fail(FM_EINVAL, "%s: 'margin' of a probability wants a number, 0 to below 1", where);
    if (rc == FM_OK && c->kind == FMV_INV && !fm_json_get(c->doc, "margin"))
        rc = fm_fail(FM_EINVAL, "%s: INV with 'class' wants 'margin'", where);
    c->increases = strcmp(direction, "increases") == 0;
    if (rc == FM_OK && c->kind == FMV_DIR && !c->increases && strcmp(direction, "decreases") != 0)
        rc = fm_fail(FM_EINVAL, "%s: DIR wants direction: increases or decreases", where);
    return rc;
}

static fm_status read_class(fmv_case *c, const char *where)
{
    c->label = fm_json_cstr(fm_json_get(c->doc, "class"), "");
    if (!*c->label)
        return fm_fail(FM_EINVAL, "%s: 'class' wants the label of a class (quote numbers)", where);
    if (c->kind != FMV_MFT)
        return read_relation(c, where);
    FM_TRY(read_bounds(c, c->doc, "probability-above", "probability-below", where));
    if (c->above < 0 || c->above >= 1 || c->below <= 0 || c->below > 1)
        return fm_fail(FM_EINVAL, "%s: bounds of a probability lie between 0 and 1", where);
    return FM_OK;
}

static fm_status read_embed(fmv_case *c, const char *where)
{
    static const char *const known[] = {"nearer", "than", "margin", "above", "below", NULL};
    const fm_json *v = fm_json_get(c->doc, "embedding"), *than = fm_json_get(v, "than");
    bool many = fm_json_is(than, FM_JSON_ARRAY);
    c->near_text = fm_json_cstr(fm_json_get(v, "nearer"), "");
    if (!fm_json_is(v, FM_JSON_OBJECT) || !fmv_trim(fm_span_str(c->near_text)).len)
        return fm_fail(FM_EINVAL, "%s: 'embedding' wants {nearer: text, than: text}", where);
    if (c->kind != FMV_MFT)
        return fm_fail(FM_EINVAL, "%s: 'embedding' goes with kind MFT", where);
    fm_status rc = fm_json_known_keys(v, known, where);
    c->far_texts = than;
    c->far_count = !than ? 0 : many ? fm_json_count(than) : 1;
    if (rc == FM_OK && (c->far_count > FMV_EMBED_FAR_MAX || (than && !c->far_count)))
        rc = fm_fail(FM_EINVAL, "%s: embedding: 'than' wants 1 to %u texts", where,
                     FMV_EMBED_FAR_MAX);
    for (size_t i = 0; rc == FM_OK && i < c->far_count; i++) {
        if (!fmv_trim(fm_json_str(many ? fm_json_at(than, i) : than)).len)
            rc = fm_fail(FM_EINVAL, "%s: embedding: than[%zu] wants a text", where, i);
    }
    FM_THEN(rc, fmv_read_number(&c->margin, v, "margin", where));
    if (rc == FM_OK && (c->margin < 0 || c->margin >= 2 || (c->margin > 0 && !than)))
        rc = fm_fail(FM_EINVAL, "%s: embedding: 'margin' wants 0 to below 2, and 'than'", where);
    FM_THEN(rc, read_bounds(c, v, "above", "below", where));
    if (rc == FM_OK && (c->above >= 1 || c->below <= -1))
        rc = fm_fail(FM_EINVAL, "%s: embedding: similarities lie between -1 and 1", where);
    if (rc == FM_OK && !than && isnan(c->above) && isnan(c->below))
        rc = fm_fail(FM_EINVAL, "%s: embedding wants 'than', 'above' or 'below'", where);
    return rc;
}

fm_status fmv_scoring_read(fmv_case *c, const char *where)
{
    if (c->form != FMV_PROMPT_TEXT)
        return fm_fail(FM_EINVAL, "%s: a text that is looked at is a 'prompt'", where);
    for (size_t i = 0; i < c->prompt_count; i++)
        if (!fmv_trim(fm_json_str(c->prompt[i])).len)
            return fm_fail(FM_EINVAL, "%s: 'prompt' is empty", where);
    if (c->scoring == FMV_SCORE_CLASS)
        return read_class(c, where);
    if (c->scoring == FMV_SCORE_EMBED)
        return read_embed(c, where);
    if (c->kind != FMV_MFT)
        return fm_fail(FM_EINVAL, "%s: 'perplexity' goes with kind MFT", where);
    return read_rolling(c, where);
}
