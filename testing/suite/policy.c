/* policy.c - gates: reads their rules, and judges outcomes by them. */
#include "testing/policy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "testing/stats.h"

/* ---- reading ---- */

static fm_status read_share(double *out, const fm_json *gate, const char *key, const char *what)
{
    const fm_json *v = fm_json_get(gate, key);
    *out = NAN;
    if (!v)
        return FM_OK;
    double share = fm_json_real(v, NAN);
    if (!(share > 0 && share <= 1))
        return fm_fail(FM_EINVAL, "%s: gate: '%s' must be a number above 0 and at most 1", what,
                       key);
    *out = share;
    return FM_OK;
}

static fm_status read_min_passed(fm_policy *p, const fm_json *gate, const char *what)
{
    const fm_json *v = fm_json_get(gate, "min-passed");
    int64_t n = fm_json_int(v, 0);
    if (v && (!fm_json_is(v, FM_JSON_INT) || n < 1 || n > 1000000000))
        return fm_fail(FM_EINVAL, "%s: gate: 'min-passed' must be a whole number of at least 1",
                       what);
    p->min_passed = (size_t)n;
    return FM_OK;
}

static bool is_id(const char *s)
{
    size_t n = strlen(s);
    return n >= 7 && n <= 64 && strspn(s, "0123456789abcdef") == n;
}

static fm_status read_baseline(fm_policy *p, const fm_json *gate, const char *what)
{
    const fm_json *v = fm_json_get(gate, "baseline");
    const char *word = fm_json_cstr(v, "");
    if (!v)
        return FM_OK;
    if (strcmp(word, "parent") == 0) {
        p->baseline = FM_BASELINE_PARENT;
    } else if (strcmp(word, "first") == 0) {
        p->baseline = FM_BASELINE_FIRST;
    } else if (is_id(word)) {
        p->baseline = FM_BASELINE_ID;
        memcpy(p->baseline_id, word, strlen(word) + 1);
    } else {
        return fm_fail(FM_EINVAL,
                       "%s: gate: 'baseline' must be parent, first, or 7 to 64 hex digits of a "
                       "version's id in quotes",
                       what);
    }
    p->asks_regressions = true;
    return FM_OK;
}

/* Reads a whole number of cases, or a share of them below 1. */
static fm_status read_allowed(fm_policy *p, const fm_json *gate, const char *what)
{
    const fm_json *v = fm_json_get(gate, "allowed-regressions");
    int64_t n = fm_json_int(v, -1);
    double share = fm_json_real(v, NAN);
    if (!v)
        return FM_OK;
    if (fm_json_is(v, FM_JSON_INT) && n >= 0 && n <= 1000000000) {
        p->allowed = (size_t)n;
        return FM_OK;
    }
    if (!fm_json_is(v, FM_JSON_REAL) || !(share > 0 && share < 1))
        return fm_fail(FM_EINVAL,
                       "%s: gate: 'allowed-regressions' must be a whole number of cases, or a "
                       "share of them between 0 and 1",
                       what);
    p->allowed_share = share;
    return FM_OK;
}

static fm_status read_rules(fm_policy *p, const fm_json *gate, const char *what)
{
    static const char *const known[] = {
        "threshold",    "min-passed", "baseline", "allowed-regressions",
        "significance", "measures",   NULL};
    char where[512];
    const fm_json *measures = fm_json_get(gate, "measures");
    snprintf(where, sizeof where, "%.400s: gate", what);
    FM_TRY(fm_json_known_keys(gate, known, where));
    FM_TRY(read_share(&p->threshold, gate, "threshold", what));
    FM_TRY(read_min_passed(p, gate, what));
    FM_TRY(read_baseline(p, gate, what));
    FM_TRY(read_allowed(p, gate, what));
    FM_TRY(read_share(&p->significance, gate, "significance", what));
    if (measures && !(fm_json_is(measures, FM_JSON_BOOL) && fm_json_bool(measures, false)))
        return fm_fail(FM_EINVAL, "%s: gate: 'measures' says something only as true", what);
    p->measures = measures != NULL;
    if (!p->asks_regressions && fm_json_get(gate, "allowed-regressions"))
        return fm_fail(FM_EINVAL, "%s: gate: 'allowed-regressions' wants a 'baseline'", what);
    if (!p->asks_regressions && !isnan(p->significance))
        return fm_fail(FM_EINVAL, "%s: gate: 'significance' wants a 'baseline'", what);
    if (isnan(p->threshold) && !p->min_passed && !p->asks_regressions && !p->measures)
        return fm_fail(FM_EINVAL,
                       "%s: gate: this mapping asks for nothing; want 'threshold', 'min-passed', "
                       "'baseline' or 'measures', or 'gate: true' for every case",
                       what);
    return FM_OK;
}

fm_status fm_policy_read(fm_policy *out, const fm_json *gate, const char *what)
{
    *out = (fm_policy){.threshold = NAN, .allowed_share = NAN, .significance = NAN};
    if (!gate)
        return FM_OK;
    if (fm_json_is(gate, FM_JSON_BOOL)) {
        out->gate = out->all = fm_json_bool(gate, false);
        return FM_OK;
    }
    if (!fm_json_is(gate, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: 'gate' must be true or false, or a mapping of rules", what);
    out->gate = true;
    return read_rules(out, gate, what);
}

/* ---- judging ---- */

/* Counts flips. Cases pair by digest: the case is the same in both runs, even under another name.
 * Equal cases of one suite have equal outcomes, so any of them stands for all. */
static fm_status count_flips(fm_policy_outcome *o, const fm_policy_facts *f)
{
    fm_map *passed = NULL, *known = NULL;
    static char yes;
    fm_status rc = fm_map_new(&passed);
    FM_THEN(rc, fm_map_new(&known));
    for (size_t i = 0; rc == FM_OK && i < f->before_count; i++) {
        const fm_policy_case *c = &f->before[i];
        rc = fm_map_put(known, c->digest.b, sizeof c->digest.b, &yes, NULL);
        if (rc == FM_OK && c->verdict == FM_PASS)
            rc = fm_map_put(passed, c->digest.b, sizeof c->digest.b, &yes, NULL);
    }
    for (size_t i = 0; rc == FM_OK && i < f->count; i++) {
        const fm_policy_case *c = &f->now[i];
        if (c->waived || !fm_map_has(known, c->digest.b, sizeof c->digest.b))
            continue;
        bool was = fm_map_has(passed, c->digest.b, sizeof c->digest.b);
        o->paired++;
        o->broken += was && c->verdict != FM_PASS;
        o->fixed += !was && c->verdict == FM_PASS;
    }
    fm_map_free(passed);
    fm_map_free(known);
    o->p_value = fm_mcnemar(o->broken, o->fixed);
    return rc;
}

static void fails(fm_policy_outcome *o, fm_buf *why, const char *line)
{
    o->holds = false;
    fm_buf_str(why, line);
    fm_buf_char(why, '\n');
}

static void judge_counts(fm_policy_outcome *o, fm_buf *why, const fm_policy *p)
{
    char line[300];
    size_t with_waived = o->passed + o->waived;
    double share = o->counted ? (double)o->passed / (double)o->counted : 1;
    if (p->all && o->passed < o->counted) {
        snprintf(line, sizeof line, "%zu of %zu cases passed, the gate wants every one", o->passed,
                 o->counted);
        fails(o, why, line);
    }
    if ((double)o->passed < p->threshold * (double)o->counted - 1e-9) { /* never with NaN */
        snprintf(line, sizeof line,
                 "threshold: %zu of %zu cases passed, a share of %.4g; the gate wants %.4g",
                 o->passed, o->counted, share, p->threshold);
        fails(o, why, line);
    }
    if (with_waived < p->min_passed) {
        snprintf(line, sizeof line, "min-passed: %zu cases passed%s; the gate wants %zu",
                 with_waived, o->waived ? " or are waived or flaky" : "", p->min_passed);
        fails(o, why, line);
    }
}

static void judge_regressions(fm_policy_outcome *o, fm_buf *why, const fm_policy *p,
                              const char *baseline)
{
    char line[400], allowed[60], certain[80] = "";
    bool by_share = !isnan(p->allowed_share);
    double most = by_share ? p->allowed_share * (double)o->paired : (double)p->allowed;
    if ((double)o->broken <= most + 1e-9)
        return;
    if (!isnan(p->significance) && !(o->broken > o->fixed && o->p_value <= p->significance))
        return;
    if (by_share)
        snprintf(allowed, sizeof allowed, "a share of %.4g", p->allowed_share);
    else
        snprintf(allowed, sizeof allowed, "%zu", p->allowed);
    if (!isnan(p->significance))
        snprintf(certain, sizeof certain, " (McNemar p = %.3g, at most %.3g counts)", o->p_value,
                 p->significance);
    snprintf(line, sizeof line,
             "regressions: %zu of %zu cases broken and %zu fixed against %s%s; the gate allows %s "
             "broken",
             o->broken, o->paired, o->fixed, baseline, certain, allowed);
    fails(o, why, line);
}

fm_status fm_policy_judge(fm_policy_outcome *out, fm_buf *why, const fm_policy *p,
                          const fm_policy_facts *facts)
{
    *out = (fm_policy_outcome){.holds = true, .p_value = 1};
    for (size_t i = 0; i < facts->count; i++) {
        const fm_policy_case *c = &facts->now[i];
        bool pass = c->verdict == FM_PASS;
        out->waived += c->waived;
        out->waived_passed += c->waived && pass;
        out->counted += !c->waived;
        out->passed += !c->waived && pass;
    }
    if (!p->gate)
        return FM_OK;
    judge_counts(out, why, p);
    if (p->asks_regressions && facts->before) {
        FM_TRY(count_flips(out, facts));
        judge_regressions(out, why, p, facts->baseline_name);
    }
    if ((p->measures || p->all) && facts->measures_failed) {
        fm_buf_printf(why, "measures: %s\n", facts->measures_failed);
        out->holds = false;
    }
    return fm_buf_ok(why);
}

/* ---- words ---- */

static const char *baseline_word(const fm_policy *p)
{
    switch (p->baseline) {
    case FM_BASELINE_PARENT:
        return "the parent";
    case FM_BASELINE_FIRST:
        return "the first version";
    case FM_BASELINE_ID:
        return p->baseline_id;
    case FM_BASELINE_NONE:
        break;
    }
    return "";
}

fm_status fm_policy_words(fm_buf *out, const fm_policy *p)
{
    const char *sep = "";
    if (!p->gate || p->all) {
        fm_buf_str(out, p->gate ? "every case" : "nothing");
        return fm_buf_ok(out);
    }
    if (!isnan(p->threshold)) {
        fm_buf_printf(out, "a share of %.4g", p->threshold);
        sep = ", ";
    }
    if (p->min_passed) {
        fm_buf_printf(out, "%sat least %zu cases", sep, p->min_passed);
        sep = ", ";
    }
    if (p->asks_regressions) {
        if (isnan(p->allowed_share))
            fm_buf_printf(out, "%sat most %zu", sep, p->allowed);
        else
            fm_buf_printf(out, "%sat most a share of %.4g", sep, p->allowed_share);
        fm_buf_printf(out, " broken against %s", baseline_word(p));
        if (!isnan(p->significance))
            fm_buf_printf(out, " at p <= %.4g", p->significance);
        sep = ", ";
    }
    if (p->measures)
        fm_buf_printf(out, "%sits measures", sep);
    return fm_buf_ok(out);
}
