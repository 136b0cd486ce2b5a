/* test.c - the operation: finds versions, runs their suites, stores and notes the results. */
#include "cli/ops/test.h"

#include "cli/ops/test/test_many.h"

static fm_tally tally_of(const fm_tested *v)
{
    fm_tally t = {0};
    for (size_t i = 0; i < v->set.count; i++) {
        t.passed += v->run[i].passed;
        t.count += v->run[i].count;
        t.waived += v->run[i].waived;
        t.quarantined += v->run[i].flaky;
    }
    return t;
}

static bool holds(const fm_tested *v)
{
    bool all = true;
    for (size_t i = 0; i < v->set.count; i++)
        all = all && fm_test_part_holds(&v->part[i], &v->run[i]);
    return all;
}

/* Whether all suites ran once: only such a run is noted on the commit. */
static bool is_whole(const fm_test_opts *o)
{
    const fm_test_choice *ch = &o->choice;
    return !ch->suite && !ch->case_name && !o->slice.count && !ch->sequential && ch->repeat <= 1;
}

static fm_status note_all(fm_ops *c, const fm_test_opts *o, const fm_test_result *t)
{
    FM_TRY(fm_result_flush(c->repo));
    for (size_t i = 0; is_whole(o) && i < t->count; i++) {
        const fm_tally tally = tally_of(&t->version[i]);
        if (i == 0 || !o->choice.suites_of)
            FM_TRY(fmo_note_tests(c, &t->version[i].oid, &tally));
    }
    return FM_OK;
}

static fm_status add_versions(fm_ops *c, fm_test_result *t, const fm_test_opts *o)
{
    for (size_t i = 0; i < o->revs; i++)
        FM_TRY(o->descendants ? fmo_test_many_descendants(c, t, o->rev[i])
               : o->ancestors ? fmo_test_many_ancestors(c, t, o->rev[i])
                              : fmo_test_many_add(c, t, o->rev[i]));
    return FM_OK;
}

/* Adds the version to compare with as the last one; it may be version 0 itself. */
static fm_status add_against(fm_ops *c, fm_test_result *t, const char *rev)
{
    fm_oid oid;
    fm_status rc = fm_ops_resolve(c, rev, &oid, NULL);
    if (rc == FM_OK && !fm_oid_eq(&oid, &t->version[0].oid))
        rc = fmo_test_many_add(c, t, rev);
    t->against = t->count - 1;
    return rc;
}

fm_status fm_ops_test(fm_ops *c, const fm_test_opts *opts, fm_test_result *out)
{
    fm_test_opts o = *opts;
    fm_oid own;
    *out = (fm_test_result){.against = SIZE_MAX,
                            .several = o.revs > 1 || o.descendants || o.ancestors};
    o.choice.slice = &o.slice;
    c->stopped = false;
    fm_status rc = FM_OK;
    if (o.revs == 0 || (o.descendants && o.ancestors) || (o.against && out->several))
        rc = fm_fail(FM_EINVAL, "want versions, of which descendants or ancestors, or one against "
                                "another");
    FM_THEN(rc, fm_ops_lease(c, false, "test"));
    FM_THEN(rc, add_versions(c, out, &o));
    if (rc == FM_OK && o.against)
        rc = add_against(c, out, o.against);
    if (rc == FM_OK && (o.against || o.ancestors)) {
        own = out->version[0].oid;
        o.choice.suites_of = &own;
    }
    FM_THEN(rc, fmo_test_many_run(c, out, &o.choice));
    FM_THEN(rc, note_all(c, &o, out));
    out->holds = rc == FM_OK;
    for (size_t i = 0; rc == FM_OK && i < out->count; i++)
        if (i == 0 || !o.choice.suites_of) /* the others are only for comparison */
            out->holds = out->holds && holds(&out->version[i]);
    return rc;
}
