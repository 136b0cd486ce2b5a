/* test.c - fmstore test: runs the suites of one version, of several, or of one against another. */
#include <math.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/report/report.h"

typedef struct test_opts {
    const char *adjust;
    fm_test_opts ask;
    fmo_test_output output;
} test_opts;

static fm_status run(cli *c, const test_opts *o)
{
    fm_test_result r;
    fm_status rc = fm_ops_test(c, &o->ask, &r);
    FM_THEN(rc, print_tests(c, &r, &o->output));
    bool good = r.holds;
    fm_test_result_release(&r);
    if (rc < 0 || good)
        return rc;
    fm_error_clear();
    return FM_EREFUSED; /* the results are printed already */
}

/* Returns CLI_GO_ON, or the exit code for options that exclude each other. */
static int check(cli *c, test_opts *o, size_t n)
{
    bool several = n > 1 || o->ask.descendants || o->ask.ancestors;
    if (several && o->ask.against)
        return cli_usage_error(c, "--against goes with one version");
    if (o->ask.descendants && o->ask.ancestors)
        return cli_usage_error(c, "--descendants or --ancestors, not both");
    if (n > 1 && o->ask.ancestors)
        return cli_usage_error(c, "--ancestors goes with one version");
    if (several && (o->output.junit || o->output.sarif || o->output.tap))
        return cli_usage_error(c, "--junit, --sarif and --tap go with one version");
    if (o->ask.choice.sequential && (o->ask.against || several || o->ask.choice.repeat > 1))
        return cli_usage_error(c, "--sequential goes with one version, asked once");
    if (!(o->ask.choice.alpha > 0 && o->ask.choice.alpha < 1))
        return cli_usage_error(c, "--alpha must lie between 0 and 1");
    if (!isnan(o->ask.choice.threshold) &&
        !(o->ask.choice.threshold > 0 && o->ask.choice.threshold <= 1))
        return cli_usage_error(c, "--threshold is a share: above 0, at most 1");
    if (!isnan(o->ask.choice.threshold) && !o->ask.choice.sequential)
        return cli_usage_error(c, "--threshold goes with --sequential");
    if (o->ask.choice.repeat > 1000)
        return cli_usage_error(c, "--repeat goes up to 1000");
    o->output.adjust_bh = o->adjust && strcmp(o->adjust, "bh") == 0;
    if (o->adjust && !o->output.adjust_bh && strcmp(o->adjust, "holm") != 0)
        return cli_usage_error(c, "--adjust is holm or bh");
    return CLI_GO_ON;
}

int cmd_test(cli *c, int argc, char **argv)
{
    test_opts o = {.ask.choice = {.threshold = (double)NAN, .alpha = 0.05}};
    const char *revs[OPT_LIST_MAX];
    size_t n;
    const opt_spec table[] = {
        {0, "suite", OPT_STR, "NAME", "only this suite", &o.ask.choice.suite},
        {0, "case", OPT_STR, "NAME", "only this case; SUITE/NAME too", &o.ask.choice.case_name},
        {0, "slice", OPT_LIST, "KEY=VALUE", "only cases of that kind, capability or tag",
         &o.ask.slice},
        {0, "against", OPT_STR, "REV", "run the same suites on REV too and show what flipped",
         &o.ask.against},
        {0, "adjust", OPT_STR, "HOW", "p-values over several suites: holm (default) or bh",
         &o.adjust},
        {0, "descendants", OPT_FLAG, NULL, "REV and every branch that comes from it, in one batch",
         &o.ask.descendants},
        {0, "ancestors", OPT_FLAG, NULL, "REV's suites on all that it comes from, in one batch",
         &o.ask.ancestors},
        {0, "repeat", OPT_UINT, "N", "ask what samples under N seeds; who disagrees is flaky",
         &o.ask.choice.repeat},
        {0, "sequential", OPT_FLAG, NULL,
         "stop when it is decided whether a gate's share is reached", &o.ask.choice.sequential},
        {0, "threshold", OPT_REAL, "SHARE", "the share of suites that are no gate (--sequential)",
         &o.ask.choice.threshold},
        {0, "alpha", OPT_REAL, "P", "how often --sequential may be wrong (0.05)",
         &o.ask.choice.alpha},
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
    o.ask.rev = revs;
    o.ask.revs = n;
    return cli_exit(run(c, &o));
}
