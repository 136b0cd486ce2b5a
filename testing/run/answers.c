/* answers.c - applies the filters of a case (suite/filters.c) to the generated texts.
 *
 * As in lm-eval, every filter works on the list of answers to one prompt: regex, strip and
 * lowercase on each answer, take-first and majority on the list. The first one left counts. */
#include <string.h>

#include "store/base/mem.h"
#include "testing/run/run.h"

#define MATCHES_MAX 1000 /* most matches in one answer */

static fm_status set_text(fm_buf *b, fm_span text)
{
    fm_buf now;
    fm_buf_init(&now, 0);
    fm_buf_append(&now, text.data, text.len);
    fm_status rc = fm_buf_ok(&now);
    fm_buf_release(b);
    *b = now;
    return rc;
}

/* Replaces the text by its match number f->match, of those that do not overlap, trimmed. */
static fm_status by_regex(const fmv_filter *f, fm_buf *b)
{
    fm_span got, kept[101] = {{0}};
    size_t at = 0, n = 0;
    bool found = true;
    fm_regex_run *run = NULL;
    fm_status rc = fmv_pattern_run(&run);

    while (rc == FM_OK && found && n < MATCHES_MAX && (f->match < 0 || n <= (size_t)f->match)) {
        rc = fmv_pattern_next(f->regex, run, fm_buf_span(b), &at, &got, &found);
        if (rc == FM_OK && found)
            kept[n++ % FM_ARRAY_LEN(kept)] = got;
    }
    fm_regex_run_free(run);
    if (rc < 0)
        return rc;

    /* wraps around where there is no such match */
    size_t want = f->match < 0 ? n - (size_t)-f->match : (size_t)f->match;
    return set_text(b, want < n ? fmv_trim(kept[want % FM_ARRAY_LEN(kept)])
                                : fm_span_str(f->fallback));
}

static void to_lower(fm_buf *b)
{
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] >= 'A' && b->data[i] <= 'Z')
            b->data[i] += 32;
}

/* The first of the most frequent answers. */
static size_t majority_of(const fmv_said *s, size_t n)
{
    size_t best = 0, votes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        for (size_t k = 0; k < n; k++)
            same += fm_span_eq(fm_buf_span(&s[i].text), fm_buf_span(&s[k].text));
        if (same > votes) {
            best = i;
            votes = same;
        }
    }
    return best;
}

static void keep_only(fmv_said *s, size_t *n, size_t which)
{
    fmv_said kept = s[which];
    fm_buf_init(&s[which].text, 0);
    for (size_t i = 0; i < *n; i++)
        fm_buf_release(&s[i].text);
    s[0] = kept;
    *n = 1;
}

static fm_status filtered(const fmv_filter *f, fmv_said *s, size_t *n)
{
    if (f->kind == FMV_TAKE_FIRST || f->kind == FMV_MAJORITY) {
        keep_only(s, n, f->kind == FMV_MAJORITY ? majority_of(s, *n) : 0);
        return FM_OK;
    }
    for (size_t i = 0; i < *n; i++) {
        if (f->kind == FMV_FILTER_REGEX)
            FM_TRY(by_regex(f, &s[i].text));
        else if (f->kind == FMV_STRIP)
            FM_TRY(set_text(&s[i].text, fmv_trim(fm_buf_span(&s[i].text))));
        else
            to_lower(&s[i].text);
    }
    return FM_OK;
}

/* Makes one answer of the answers to one prompt. */
static fm_status answer_of(fmv_said *out, const fmv_case *c, const fmv_work *w)
{
    fmv_said all[FMV_REPEATS_MAX];
    size_t n = c->repeats;
    fm_status rc = FM_OK;
    for (size_t i = 0; i < n; i++) {
        fm_buf_init(&all[i].text, 0);
        fm_buf_append(&all[i].text, w[i].gen.text.data, w[i].gen.text.len);
        all[i].work = &w[i];
        FM_THEN(rc, strcmp(w[i].gen.finish, "error") == 0
                        ? fm_fail(FM_EUNSUPPORTED, "the engine gave up: %s",
                                  fm_buf_cstr(&w[i].gen.text))
                        : fm_buf_ok(&all[i].text));
    }
    for (size_t f = 0; rc == FM_OK && f < c->filter_count; f++)
        rc = filtered(&c->filter[f], all, &n);
    keep_only(all, &n, 0);
    *out = all[0];
    return rc;
}

fm_status fmv_answers(fmv_job *j)
{
    j->said = fm_calloc(j->c->prompt_count, sizeof *j->said);
    if (!j->said)
        return FM_ENOMEM;
    for (size_t k = 0; k < j->c->prompt_count; k++)
        FM_TRY(answer_of(&j->said[k], j->c, j->work + k * j->c->repeats));
    return FM_OK;
}

void fmv_answers_release(fmv_job *j)
{
    for (size_t k = 0; j->said && k < j->c->prompt_count; k++)
        fm_buf_release(&j->said[k].text);
    fm_free(j->said);
    j->said = NULL;
}
