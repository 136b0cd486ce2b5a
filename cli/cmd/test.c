/* test.c - fmstore test: suites of versions, alone, together, or one against another. */
#include <math.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/test/test_report.h"

typedef struct test_opts {
    const char *against, *adjust;
    opt_list slice;
    bool descendants, ancestors;
    test_choice choice;
    test_output output;
} test_opts;

static test_tally tally_of(const tested *v)
{
    test_tally t = {0};
    for (size_t i = 0; i < v->set.count; i++) {
        t.passed += v->run[i].passed;
        t.count += v->run[i].count;
        t.waived += v->run[i].waived;
        t.quarantined += v->run[i].flaky;
    }
    return t;
}

static bool holds(const tested *v)
{
    bool all = true;
    for (size_t i = 0; i < v->set.count; i++)
        all = all && test_part_holds(&v->part[i], &v->run[i]);
    return all;
}

/* The note on a commit tells of all of a version's own suites, run once. */
static bool is_whole(const test_opts *o)
{
    const test_choice *ch = &o->choice;
    return !ch->suite && !ch->case_name && !o->slice.count && !ch->sequential && ch->repeat <= 1;
}

static fm_status note_all(cli *c, const test_opts *o, const test_many *t)
{
    fm_status rc = fm_result_flush(c->repo);
    for (size_t i = 0; rc == FM_OK && is_whole(o) && i < t->count; i++) {
        const test_tally tally = tally_of(&t->version[i]);
        if (i == 0 || !o->choice.suites_of)
            rc = note_tests(c, &t->version[i].oid, &tally);
    }
    return rc;
}

static fm_status add_versions(cli *c, test_many *t, const test_opts *o, const char *const *rev,
                              size_t n)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = o->descendants ? test_many_descendants(c, t, rev[i])
             : o->ancestors ? test_many_ancestors(c, t, rev[i])
                            : test_many_add(c, t, rev[i]);
    return rc;
}

/* The version to compare with stands behind the one that is told; the two may be one. */
static fm_status add_against(cli *c, test_many *t, test_opts *o)
{
    fm_oid oid;
    fm_status rc = cli_resolve(c, o->against, &oid, NULL);
    if (rc == FM_OK && !fm_oid_eq(&oid, &t->version[0].oid))
        rc = test_many_add(c, t, o->against);
    o->output.against = t->count - 1;
    return rc;
}

static fm_status run(cli *c, test_opts *o, const char *const *rev, size_t n)
{
    test_many t = {0};
    fm_oid own;
    fm_status rc = cli_lease(c, false, "test");
    if (rc == FM_OK)
        rc = add_versions(c, &t, o, rev, n);
    if (rc == FM_OK && o->against)
        rc = add_against(c, &t, o);
    if (rc == FM_OK && (o->against || o->ancestors)) {
        own = t.version[0].oid;
        o->choice.suites_of = &own;
    }
    if (rc == FM_OK)
        rc = test_many_run(c, &t, &o->choice);
    if (rc == FM_OK)
        rc = note_all(c, o, &t);
    if (rc == FM_OK)
        rc = test_report(c, &t, &o->output);
    bool good = true;
    for (size_t i = 0; rc == FM_OK && i < t.count; i++)
        if (i == 0 || !o->choice.suites_of) /* of the others it is only asked how they do */
            good = good && holds(&t.version[i]);
    test_many_release(&t);
    if (rc < 0 || good)
        return rc;
    fm_error_clear();
    return FM_EREFUSED; /* the honest no has been printed already */
}

/* CLI_GO_ON, or the exit code of what cannot be meant. */
static int check(cli *c, test_opts *o, size_t n)
{
    bool several = n > 1 || o->descendants || o->ancestors;
    if (several && o->against)
        return cli_usage_error(c, "--against goes with one version");
    if (o->descendants && o->ancestors)
        return cli_usage_error(c, "--descendants or --ancestors, not both");
    if (n > 1 && o->ancestors)
        return cli_usage_error(c, "--ancestors goes with one version");
    if (several && (o->output.junit || o->output.sarif || o->output.tap))
        return cli_usage_error(c, "--junit, --sarif and --tap go with one version");
    if (o->choice.sequential && (o->against || several || o->choice.repeat > 1))
        return cli_usage_error(c, "--sequential goes with one version, asked once");
    if (!(o->choice.alpha > 0 && o->choice.alpha < 1))
        return cli_usage_error(c, "--alpha must lie between 0 and 1");
    if (!isnan(o->choice.threshold) && !(o->choice.threshold > 0 && o->choice.threshold <= 1))
        return cli_usage_error(c, "--threshold is a share: above 0, at most 1");
    if (!isnan(o->choice.threshold) && !o->choice.sequential)
        return cli_usage_error(c, "--threshold goes with --sequential");
    if (o->choice.repeat > 1000)
        return cli_usage_error(c, "--repeat goes up to 1000");
    o->output.adjust_bh = o->adjust && strcmp(o->adjust, "bh") == 0;
    if (o->adjust && !o->output.adjust_bh && strcmp(o->adjust, "holm") != 0)
        return cli_usage_error(c, "--adjust is holm or bh");
    o->output.several = several;
    return CLI_GO_ON;
}

int cmd_test(cli *c, int argc, char **argv)
{
    test_opts o = {.choice = {.threshold = (double)NAN, .alpha = 0.05},
                   .output = {.against = SIZE_MAX}};
    const char *revs[OPT_LIST_MAX];
    size_t n;
    const opt_spec table[] = {
        {0, "suite", OPT_STR, "NAME", "only this suite", &o.choice.suite},
        {0, "case", OPT_STR, "NAME", "only this case; SUITE/NAME too", &o.choice.case_name},
        {0, "slice", OPT_LIST, "KEY=VALUE", "only cases of that kind, capability or tag", &o.slice},
        {0, "against", OPT_STR, "REV", "run the same suites on REV too and show what flipped",
         &o.against},
        {0, "adjust", OPT_STR, "HOW", "p-values over several suites: holm (default) or bh",
         &o.adjust},
        {0, "descendants", OPT_FLAG, NULL, "REV and every branch that comes from it, in one batch",
         &o.descendants},
        {0, "ancestors", OPT_FLAG, NULL, "REV's suites on all that it comes from, in one batch",
         &o.ancestors},
        {0, "repeat", OPT_UINT, "N", "ask what samples under N seeds; who disagrees is flaky",
         &o.choice.repeat},
        {0, "sequential", OPT_FLAG, NULL,
         "stop when it is decided whether a gate's share is reached", &o.choice.sequential},
        {0, "threshold", OPT_REAL, "SHARE", "the share of suites that are no gate (--sequential)",
         &o.choice.threshold},
        {0, "alpha", OPT_REAL, "P", "how often --sequential may be wrong (0.05)", &o.choice.alpha},
        {0, "matrix", OPT_FLAG, NULL, "passes by capability and kind", &o.output.matrix},
        {0, "junit", OPT_STR, "FILE", "write JUnit XML", &o.output.junit},
        {0, "sarif", OPT_STR, "FILE", "write SARIF 2.1.0", &o.output.sarif},
        {0, "html", OPT_STR, "FILE", "write one page with pictures", &o.output.html},
        {0, "markdown", OPT_STR, "FILE", "write Markdown", &o.output.markdown},
        {0, "tap", OPT_STR, "FILE", "write TAP 14", &o.output.tap},
        {'v', "verbose", OPT_FLAG, NULL, "show passing cases too", &o.output.verbose},
        {0, "json", OPT_FLAG, NULL, "as JSON", &o.output.json},
        CLI_MODE_OPTION(c),
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    c->keep_packed = true;
    int code = cli_parse(c, argc, argv, table, revs, 1, OPT_LIST_MAX, &n);
    if (code == CLI_GO_ON)
        code = check(c, &o, n);
    if (code != CLI_GO_ON)
        return code;
    o.choice.slice = &o.slice;
    return cli_exit(run(c, &o, revs, n));
}
