/* blame.c - fmstore blame: reports the cause of a failure, with the evidence. */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/blame/report/run.h"
#include "cli/report/report.h"
#include "store/base/os/io.h"

typedef struct blame_opts {
    fm_blame_request ask;
    const char *flip_rate, *confidence, *html;
    bool json;
    uint64_t max_runs, top;
} blame_opts;

static void print_history(const fmo_blame_run *r)
{
    printf("case     %s/%s on %s\n", fm_suite_name(r->b.suite),
           out_text(fm_suite_case_name(r->b.suite, r->b.case_index), 300), r->ask->rev);
    blame_print_history(&r->m);
}

static fm_status write_html(const fmo_blame_run *r, const blame_opts *o)
{
    fm_buf page;
    fm_buf_init(&page, 0);
    fm_status rc = fmo_blame_html(&page, &r->m, r->parts.tensors, r->parts.data, o->top);
    FM_THEN(rc, fm_write_file(o->html, page.data, page.len));
    fm_buf_release(&page);
    return rc;
}

static fm_status write_json(const fmo_blame_run *r)
{
    fm_json *o = fmo_blame_json(&r->m, r->parts.tensors, r->parts.data);
    return o ? out_json(o) : FM_ENOMEM;
}

/* Prints the history's verdict before the other parts are searched. */
static fm_status run(cli *c, const blame_opts *o)
{
    fmo_blame_run r;
    fm_status rc = fmo_blame_run_history(&r, c, &o->ask);
    if (rc == FM_OK && !o->json)
        print_history(&r);
    FM_THEN(rc, fmo_blame_run_search(&r));
    if (r.parts.trace || r.parts.steps || r.parts.repairs) /* these parts can be stopped */
        cli_catch_interrupts(true);
    FM_THEN(rc, fmo_blame_run_explain(&r));
    if (rc == FM_OK && !o->json)
        blame_print_findings(&r.m, r.parts.tensors, r.parts.data, o->top);
    if (rc == FM_OK && o->json)
        rc = write_json(&r);
    if (rc == FM_OK && o->html)
        rc = write_html(&r, o);
    FM_THEN(rc, fmo_blame_run_end(&r));
    fmo_blame_run_close(&r);
    return rc;
}

/* Reads a number from 0 to below `end`; 0 if the option was not given. */
static bool parse_share(const char *text, double end, double *out)
{
    char *rest = NULL;
    *out = text ? strtod(text, &rest) : 0;
    return !text || (rest != text && *rest == 0 && *out >= 0 && *out < end);
}

static int check_examples(cli *c, const fm_blame_request *o)
{
    fm_attribution_kind kind;
    if (o->data_method && strcmp(o->data_method, "all") != 0 &&
        fm_attribution_find(&kind, o->data_method) < 0)
        return cli_usage_error(c, "--data-method: %s, all", fm_error_text());
    if (o->data_target && strcmp(o->data_target, "margin") != 0 &&
        strcmp(o->data_target, "wrong") != 0)
        return cli_usage_error(c, "--data-target wants margin or wrong, got '%s'", o->data_target);
    if (o->trainings > 1000)
        return cli_usage_error(c, "--trainings wants 1 to 1,000");
    return CLI_GO_ON;
}

static int check_opts(cli *c, blame_opts *o)
{
    fm_blame_request *a = &o->ask;
    if (!parse_share(o->flip_rate, 0.451, &a->flip_rate))
        return cli_usage_error(c, "--flip-rate wants 0 to 0.45, got '%s'", o->flip_rate);
    if (!parse_share(o->confidence, 1, &a->confidence))
        return cli_usage_error(c, "--confidence wants 0 to below 1, got '%s'", o->confidence);
    if (!a->case_spec == !a->prompt)
        return cli_usage_error(c, "want --case SUITE/CASE, or --prompt P with --expect E");
    if (a->budget_s == 0 || a->budget_s > 1000000)
        return cli_usage_error(c, "--budget wants 1 to 1,000,000 seconds");
    if (!a->prompt != !a->expect)
        return cli_usage_error(c, "--prompt and --expect go together");
    if (o->max_runs == 0 || o->max_runs > 1000000)
        return cli_usage_error(c, "--max-runs wants 1 to 1,000,000");
    a->max_runs = (uint32_t)o->max_runs;
    return check_examples(c, a);
}

int cmd_blame(cli *c, int argc, char **argv)
{
    blame_opts o = {.max_runs = 400, .top = 10, .ask.budget_s = 600};
    size_t n;
    const opt_spec table[] = {
        {0, "case", OPT_STR, "SUITE/CASE", "a case of a suite of this version", &o.ask.case_spec},
        {0, "prompt", OPT_STR, "TEXT", "instead of a case: this prompt ...", &o.ask.prompt},
        {0, "expect", OPT_STR, "TEXT", "... should be answered with text that contains this",
         &o.ask.expect},
        {0, "raw", OPT_FLAG, NULL, "--prompt is plain text, not a chat message", &o.ask.raw},
        {0, "tensors", OPT_FLAG, NULL, "only look for the tensors (default: tensors and data)",
         &o.ask.tensors},
        {0, "data", OPT_FLAG, NULL, "only rank the training examples", &o.ask.data},
        {0, "flip-rate", OPT_STR, "P",
         "how often one run says the opposite of what is true (default: 0, or measured where the "
         "case samples)",
         &o.flip_rate},
        {0, "confidence", OPT_STR, "P", "wanted of the verdict (0.95)", &o.confidence},
        {0, "all-versions", OPT_FLAG, NULL, "ask every version, not only those that decide",
         &o.ask.all_versions},
        {0, "ranks", OPT_FLAG, NULL, "go on to the rank-one parts of the adapters found",
         &o.ask.ranks},
        {0, "shapley", OPT_FLAG, NULL, "what each step of the history and each unit found is worth",
         &o.ask.shapley},
        {0, "max-runs", OPT_UINT, "N", "mixtures to run at most in each search (400)", &o.max_runs},
        {0, "top", OPT_UINT, "N", "examples to show (10)", &o.top},
        {0, "data-method", OPT_STR, "NAME|all", "how examples are ranked", &o.ask.data_method},
        {0, "data-target", OPT_STR, "margin|wrong",
         "towards the wrong answer, away from the parent's", &o.ask.data_target},
        {0, "fidelity", OPT_FLAG, NULL, "measure the rankings by training again without groups",
         &o.ask.fidelity},
        {0, "trainings", OPT_UINT, "N", "trainings at most for --fidelity (12)", &o.ask.trainings},
        {0, "trace", OPT_FLAG, NULL, "at which layer and token the answer turns", &o.ask.trace},
        {0, "steps", OPT_FLAG, NULL, "at which step of the run it began, and by which setting",
         &o.ask.steps},
        {0, "repairs", OPT_FLAG, NULL, "what would repair it, run against all suites",
         &o.ask.repairs},
        {0, "fix", OPT_FLAG, NULL, "commit the best repair as a child and move the branch",
         &o.ask.fix},
        {0, "rederive", OPT_FLAG, NULL, "let --steps and repairs train again", &o.ask.rederive},
        {0, "budget", OPT_UINT, "S", "seconds of training at most with --rederive (600)",
         &o.ask.budget_s},
        {0, "html", OPT_STR, "FILE", "write the report as one page", &o.html},
        {0, "json", OPT_FLAG, NULL, "as JSON", &o.json},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &o.ask.rev, 1, 1, &n);
    if (code == CLI_GO_ON)
        code = check_opts(c, &o);
    return code == CLI_GO_ON ? cli_exit(run(c, &o)) : code;
}
