/* test_report.c - compares two tested versions, and writes results as JSON. */
#include "cli/ops/test/test_report.h"

#include <string.h>

#include "store/base/mem.h"

/* ---- two versions ---- */

static const fm_suite_run *run_named(const fm_tested *v, const fm_suite *s)
{
    for (size_t k = 0; k < v->set.count; k++)
        if (strcmp(fm_suite_name(v->set.suite[k]), fm_suite_name(s)) == 0)
            return &v->run[k];
    return NULL;
}

void fmo_test_changes_release(fmo_test_changes *ch)
{
    for (size_t k = 0; k < ch->count; k++)
        fm_suite_change_release(&ch->at[k]);
    fm_free(ch->at);
    *ch = (fmo_test_changes){0};
}

fm_status fmo_test_changes_of(fmo_test_changes *ch, const fm_tested *was, const fm_tested *is,
                              bool bh)
{
    fm_bootstrap how = fm_bootstrap_defaults();
    *ch = (fmo_test_changes){.at = fm_calloc(is->set.count, sizeof *ch->at)};
    fm_status rc = ch->at ? FM_OK : FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < is->set.count; k++) {
        const fm_suite_run *old = run_named(was, is->set.suite[k]);
        if (!old)
            continue;
        rc = fm_suite_change_of(&ch->at[ch->count], old, &is->run[k], &how);
        ch->count += rc == FM_OK;
    }
    FM_THEN(rc, fm_suite_changes_adjust(ch->at, ch->count, bh));
    if (rc < 0)
        fmo_test_changes_release(ch);
    return rc;
}

/* ---- JSON ---- */

static fm_json *interval_json(fm_status *rc, double value, double low, double high)
{
    fm_json *o = fm_json_new_object();
    fm_json_put(rc, o, "value", fm_json_new_real(value));
    fm_json_put(rc, o, "low", fm_json_new_real(low));
    fm_json_put(rc, o, "high", fm_json_new_real(high));
    fm_json_put(rc, o, "confidence", fm_json_new_real(TEST_CONFIDENCE));
    return o;
}

static fm_json *stop_json(fm_status *rc, const fm_test_part *p, const fm_suite_run *run)
{
    static const char *const words[] = {"undecided", "reached", "missed"};
    size_t n = 0, k = 0;
    for (size_t i = 0; i < run->count; i++) {
        n += !run->result[i].waived;
        k += !run->result[i].waived && run->result[i].verdict == FM_PASS;
    }
    fm_interval i = fm_confidence_sequence(&p->rule, k, n);
    fm_json *o = fm_json_new_object();
    fm_json_put(rc, o, "decision", fm_json_new_str(words[p->decision]));
    fm_json_put(rc, o, "threshold", fm_json_new_real(p->rule.threshold));
    fm_json_put(rc, o, "alpha", fm_json_new_real(p->rule.alpha));
    fm_json_put(rc, o, "asked", fm_json_new_int((int64_t)p->asked));
    fm_json_put(rc, o, "of", fm_json_new_int((int64_t)p->count));
    fm_json_put(rc, o, "low", fm_json_new_real(i.low));
    fm_json_put(rc, o, "high", fm_json_new_real(i.high));
    return o;
}

static fm_json *run_json(fm_status *rc, const fm_tested *v, size_t k)
{
    const fm_suite_run *run = &v->run[k];
    fm_json *o = fm_suite_run_json(run);
    size_t n = run->count - run->flaky - run->waived;
    if (n) {
        fm_interval i = fm_wilson(run->passed, n, TEST_CONFIDENCE);
        fm_json_put(rc, o, "rate",
                    interval_json(rc, (double)run->passed / (double)n, i.low, i.high));
        fm_json_put(rc, o, "detectable_change",
                    fm_json_new_real(fm_detectable_flips(n, 0, TEST_ALPHA, TEST_POWER)));
    }
    if (v->part[k].stops)
        fm_json_put(rc, o, "sequential", stop_json(rc, &v->part[k], run));
    return o;
}

static fm_json *version_json_of(fm_status *rc, const fm_tested *v)
{
    char hex[41];
    fm_json *o = fm_json_new_object(), *runs = fm_json_new_array();
    fm_oid_hex(&v->oid, hex);
    for (size_t i = 0; i < v->set.count; i++)
        fm_json_push_to(rc, runs, run_json(rc, v, i));
    fm_json_put(rc, o, "rev", fm_json_new_str(v->rev));
    fm_json_put(rc, o, "id", fm_json_new_str(hex));
    fm_json_put(rc, o, "suites", runs);
    return o;
}

static fm_json *change_json(fm_status *rc, const fm_suite_change *c, bool bh)
{
    fm_json *f = fm_json_new_object(), *cases = fm_json_new_array();
    fm_json_put(rc, f, "suite", fm_json_new_str(fm_suite_name(c->now->suite)));
    fm_json_put(rc, f, "pairs", fm_json_new_int((int64_t)c->pairs));
    fm_json_put(rc, f, "flaky_left_out", fm_json_new_int((int64_t)c->left_out));
    fm_json_put(rc, f, "fixed", fm_json_new_int((int64_t)c->fixed));
    fm_json_put(rc, f, "broken", fm_json_new_int((int64_t)c->broken));
    fm_json_put(rc, f, "p_value", fm_json_new_real(c->p_value));
    fm_json_put(rc, f, "p_adjusted", fm_json_new_real(c->p_adjusted));
    fm_json_put(rc, f, "adjusted_by", fm_json_new_str(bh ? "benjamini-hochberg" : "holm"));
    if (c->pairs) {
        const fm_estimate d = fm_suite_change_interval(c, TEST_CONFIDENCE);
        fm_json_put(rc, f, "difference", interval_json(rc, d.value, d.low, d.high));
    }
    if (c->graded) {
        fm_json *g = fm_json_new_object();
        fm_json_put(rc, g, "pairs", fm_json_new_int((int64_t)c->graded));
        fm_json_put(rc, g, "change", fm_json_new_real(c->grade_change));
        fm_json_put(rc, g, "p_value", fm_json_new_real(c->grade_p));
        fm_json_put(rc, f, "grades", g);
    }
    for (size_t k = 0; k < c->flips; k++) {
        fm_json *one = fm_json_new_object();
        bool fixed = c->flip[k].now->verdict == FM_PASS;
        fm_json_put(rc, one, "name", fm_json_new_str(c->flip[k].now->name));
        fm_json_put(rc, one, "flip", fm_json_new_str(fixed ? "fixed" : "broken"));
        fm_json_put(rc, one, "before", fm_json_new_str(c->flip[k].before->output));
        fm_json_put(rc, one, "now", fm_json_new_str(c->flip[k].now->output));
        fm_json_push_to(rc, cases, one);
    }
    fm_json_put(rc, f, "cases", cases);
    return f;
}

fm_json *fmo_test_json(const fm_test_result *t, const fmo_test_output *o,
                       const fmo_test_changes *ch)
{
    fm_status rc = FM_OK;
    fm_json *top;
    if (t->several) {
        top = fm_json_new_array();
        for (size_t i = 0; i < t->count; i++)
            fm_json_push_to(&rc, top, version_json_of(&rc, &t->version[i]));
    } else {
        top = version_json_of(&rc, &t->version[0]);
    }
    if (t->against != SIZE_MAX) {
        fm_json *flips = fm_json_new_array();
        for (size_t i = 0; i < ch->count; i++)
            fm_json_push_to(&rc, flips, change_json(&rc, &ch->at[i], o->adjust_bh));
        fm_json_put(&rc, top, "against", version_json_of(&rc, &t->version[t->against]));
        fm_json_put(&rc, top, "flips", flips);
    }
    if (rc == FM_OK)
        return top;
    fm_json_free(top);
    return NULL;
}
