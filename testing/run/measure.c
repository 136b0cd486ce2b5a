/* measure.c - the measures of a suite over a run of all its cases.
 *
 * In rates a case that could not be run counts as not passed. Means (perplexity, calibration,
 * Brier) would have to leave it out, and the rest would flatter: then the measure is an error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "testing/suite/internal.h"
#include "testing/stats.h"

/* Whether a case counts: waived and flaky cases do not, here as elsewhere. */
static bool counts(const fmv_measure *m, const fm_suite_run *run, size_t i)
{
    const fm_case_result *r = &run->result[i];
    return !r->waived && !r->flaky && fmv_measure_covers(m, run->suite, r->at);
}

static bool right(const fmv_measure *m, const fm_suite_run *run, size_t i)
{
    const fm_case_result *r = &run->result[i];
    const fmv_case *c = &run->suite->cases[r->at];
    fmv_measure_kind of = m->by ? m->of : m->kind;
    if (of == FMV_ACCURACY || of == FMV_CALIBRATION)
        return r->verdict != FM_ERROR_CASE && r->answer &&
               strcmp(r->answer, c->choice[c->answer]) == 0;
    return r->verdict == FM_PASS;
}

/* Checks that enough cases count: some may be waived or flaky since the suite was read. */
static fm_status enough(const fmv_measure *m, size_t count)
{
    return count >= m->min_count
               ? FM_OK
               : fm_fail(FM_EINVAL, "%zu cases are neither waived nor flaky, wanted are %u", count,
                         m->min_count);
}

/* ==== groups ==== */

typedef struct group {
    const char *name;
    size_t passed, count;
} group;

static fm_status find_groups(group **out, size_t *count, const fmv_measure *m,
                             const fm_suite_run *run)
{
    fm_map *at = NULL;
    size_t cap = 0;
    *out = NULL;
    *count = 0;
    fm_status rc = fm_map_new(&at);
    for (size_t i = 0; rc == FM_OK && i < run->count; i++) {
        if (!counts(m, run, i))
            continue;
        const char *name = fmv_group_of(m, run->suite, run->result[i].at);
        size_t g = (size_t)(uintptr_t)fm_map_get(at, name, strlen(name));
        if (g == 0) {
            rc = fm_grow(out, &cap, *count + 1, sizeof **out);
            FM_THEN(rc, fm_map_put(at, name, strlen(name), (void *)(uintptr_t)(*count + 1), NULL));
            if (rc < 0)
                break;
            (*out)[*count] = (group){name, 0, 0};
            g = ++*count;
        }
        (*out)[g - 1].count++;
        (*out)[g - 1].passed += right(m, run, i);
    }
    fm_map_free(at);
    return rc;
}

static double rate(const group *g)
{
    return (double)g->passed / (double)g->count;
}

/* Compares the best group with the worst. Their interval is at the confidence that all pairs of
 * groups have together (Bonferroni), since the two were picked from all. */
static fm_status take_groups(fm_measure_result *out, const fmv_measure *m, const fm_suite_run *run)
{
    group *g = NULL;
    size_t n = 0, best = 0, worst = 0;
    fm_status rc = find_groups(&g, &n, m, run);
    if (rc == FM_OK && n < 2)
        rc =
            fm_fail(FM_EINVAL, "%zu of the groups have a case that is neither waived nor flaky", n);
    if (rc < 0)
        goto end;
    for (size_t i = 0; i < n; i++) {
        out->count += g[i].count;
        if (g[i].count < m->min_count) {
            rc = fm_fail(FM_EINVAL, "group '%s' has %zu cases, wanted are %u", g[i].name,
                         g[i].count, m->min_count);
            goto end;
        }
        best = rate(&g[i]) > rate(&g[best]) ? i : best;
        worst = rate(&g[i]) < rate(&g[worst]) ? i : worst;
    }
    double pairs = (double)n * (double)(n - 1) / 2, confidence = 1 - (1 - m->confidence) / pairs;
    size_t a = worst, b = best == worst ? (worst + 1) % n : best;
    fm_estimate e =
        m->kind == FMV_GAP
            ? fm_rate_difference(g[a].passed, g[a].count, g[b].passed, g[b].count, confidence)
            : fm_rate_ratio(g[b].passed, g[b].count, g[a].passed, g[a].count, confidence);
    out->value = e.value;
    out->low = e.low;
    out->high = e.high;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "%s %zu/%zu, %s %zu/%zu", g[b].name, g[b].passed, g[b].count, g[a].name,
                  g[a].passed, g[a].count);
    out->detail = fm_buf_take(&text);
    rc = out->detail ? FM_OK : FM_ENOMEM;
end:
    fm_free(g);
    return rc;
}

/* ==== rates and means ==== */

static fm_status take_rate(fm_measure_result *out, const fmv_measure *m, const fm_suite_run *run)
{
    size_t k = 0;
    for (size_t i = 0; i < run->count; i++)
        if (counts(m, run, i)) {
            out->count++;
            k += right(m, run, i);
        }
    FM_TRY(enough(m, out->count));
    fm_interval w = fm_wilson(k, out->count, m->confidence);
    out->value = (double)k / (double)out->count;
    out->low = w.low;
    out->high = w.high;
    return FM_OK;
}

typedef struct column {
    double *a, *b; /* by kind of measure: nll and tokens; Brier; confidence */
    bool *right;
    size_t count;
} column;

static fm_status read_column(column *c, const fmv_measure *m, const fm_suite_run *run)
{
    c->a = fm_calloc(run->count, sizeof *c->a);
    c->b = fm_calloc(run->count, sizeof *c->b);
    c->right = fm_calloc(run->count, sizeof *c->right);
    if (!c->a || !c->b || !c->right)
        return FM_ENOMEM;
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        if (!counts(m, run, i))
            continue;
        if (r->verdict == FM_ERROR_CASE || isnan(r->numbers.nll))
            return fm_fail(FM_EINVAL, "case '%s' has no scores: it could not be run", r->name);
        c->a[c->count] = m->kind == FMV_BRIER        ? r->numbers.brier
                         : m->kind == FMV_PERPLEXITY ? r->numbers.nll
                                                     : r->numbers.confidence;
        c->b[c->count] = r->numbers.tokens;
        c->right[c->count++] = right(m, run, i);
    }
    return FM_OK;
}

/* exp of nats per token over all picked texts. */
static double perplexity(const void *ctx, const uint32_t *pick, size_t n)
{
    const column *c = ctx;
    double nats = 0, tokens = 0;
    for (size_t i = 0; i < n; i++) {
        nats += c->a[pick[i]];
        tokens += c->b[pick[i]];
    }
    return fm_exp(nats / tokens);
}

static fm_status take_mean(fm_measure_result *out, const fmv_measure *m, const fm_suite_run *run)
{
    column c = {0};
    fm_estimate e = {NAN, NAN, NAN};
    fm_bootstrap how = fm_bootstrap_defaults();
    how.confidence = m->confidence;
    fm_status rc = read_column(&c, m, run);
    FM_THEN(rc, enough(m, c.count));
    if (rc == FM_OK && m->kind == FMV_PERPLEXITY)
        rc = fm_bootstrap_of(&e, perplexity, &c, c.count, &how);
    else if (rc == FM_OK && m->kind == FMV_BRIER)
        rc = fm_bootstrap_mean(&e, c.a, c.count, &how);
    else if (rc == FM_OK)
        rc = fm_expected_calibration_error(&e, c.a, c.right, c.count, m->bins, &how);
    out->count = c.count;
    out->value = e.value;
    out->low = e.low;
    out->high = e.high;
    fm_free(c.a);
    fm_free(c.b);
    fm_free(c.right);
    return rc;
}

/* ==== verdict ==== */

static fm_status set_detail(fm_measure_result *out, const char *text)
{
    char *detail = out->detail ? fm_asprintf("%s (%s)", text, out->detail) : fm_strdup(text);
    fm_free(out->detail);
    out->detail = detail;
    return detail ? FM_OK : FM_ENOMEM;
}

static fm_status judge(fm_measure_result *out, const fmv_measure *m)
{
    char text[200];
    double low = m->surely ? out->low : out->value, high = m->surely ? out->high : out->value;
    const char *which = m->surely ? "the interval" : "the value";
    if (!isfinite(out->value) || isnan(low) || isnan(high)) {
        out->verdict = FM_ERROR_CASE;
        return set_detail(out, "it has no value");
    }
    if (low < m->at_least)
        snprintf(text, sizeof text, "%s is not at least %g: %.4g, %.4g to %.4g", which, m->at_least,
                 out->value, out->low, out->high);
    else if (high > m->at_most)
        snprintf(text, sizeof text, "%s is not at most %g: %.4g, %.4g to %.4g", which, m->at_most,
                 out->value, out->low, out->high);
    else {
        fm_free(out->detail); /* names of the groups, which a pass does not report */
        out->detail = NULL;
        return FM_OK;
    }
    out->verdict = FM_FAIL;
    return set_detail(out, text);
}

static fm_status take(fm_measure_result *out, const fmv_measure *m, const fm_suite_run *run)
{
    fm_status rc;
    *out = (fm_measure_result){.name = m->name, .value = NAN, .low = NAN, .high = NAN};
    if (m->by)
        rc = take_groups(out, m, run);
    else if (m->kind == FMV_PASS_RATE || m->kind == FMV_ACCURACY)
        rc = take_rate(out, m, run);
    else
        rc = take_mean(out, m, run);
    if (rc == FM_OK)
        return judge(out, m);
    if (rc == FM_ENOMEM)
        return rc;
    out->verdict = FM_ERROR_CASE;
    rc = set_detail(out, fm_error_text());
    fm_error_clear();
    return rc;
}

void fmv_measures_drop(fm_suite_run *run)
{
    for (size_t i = 0; run->measure && i < run->measure_count; i++)
        fm_free(run->measure[i].detail);
    fm_free(run->measure);
    run->measure = NULL;
    run->measure_count = 0;
}

fm_status fmv_measures_take(fm_suite_run *run)
{
    const fm_suite *s = run->suite;

    fmv_measures_drop(run);
    if (!s->measure_count || run->count != s->count)
        return FM_OK;
    run->measure = fm_calloc(s->measure_count, sizeof *run->measure);
    if (!run->measure)
        return FM_ENOMEM;
    run->measure_count = s->measure_count;
    for (size_t i = 0; i < s->measure_count; i++)
        FM_TRY(take(&run->measure[i], &s->measure[i], run));
    return FM_OK;
}

bool fm_suite_measures_hold(const fm_suite_run *run)
{
    for (size_t i = 0; i < run->measure_count; i++)
        if (run->measure[i].verdict != FM_PASS)
            return false;
    return true;
}

static fm_json *measure_json(const fm_measure_result *m)
{
    static const char *const verdicts[] = {"pass", "fail", "error"};
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "name", fm_json_new_str(m->name)) : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(o, "value", fm_json_new_real(m->value)));
    FM_THEN(rc, fm_json_set(o, "low", fm_json_new_real(m->low)));
    FM_THEN(rc, fm_json_set(o, "high", fm_json_new_real(m->high)));
    FM_THEN(rc, fm_json_set(o, "count", fm_json_new_int((int64_t)m->count)));
    FM_THEN(rc, fm_json_set(o, "verdict", fm_json_new_str(verdicts[m->verdict])));
    if (rc == FM_OK && m->detail)
        rc = fm_json_set(o, "detail", fm_json_new_str(m->detail));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

fm_json *fm_suite_measures_json(const fm_suite_run *run)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; i < run->measure_count && rc == FM_OK; i++)
        rc = fm_json_push(list, measure_json(&run->measure[i]));
    if (rc == FM_OK)
        return list;
    fm_json_free(list);
    return NULL;
}
