/* blame.c - fmstore blame: a readable account of where a failure came from, with the evidence.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/report/report.h"
#include "cli/ops/base/ranks.h"
#include "cli/ops/version/suite_edit.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"

typedef struct blame_opts {
    const char *rev, *case_spec, *prompt, *expect, *flip_rate, *confidence;
    const char *html;
    bool tensors, data, raw, json, all_versions, ranks, shapley;
    bool trace, steps, repairs, fix, rederive;
    uint64_t max_runs, top, budget;
    blame_data_opts examples;
} blame_opts;

typedef struct parts { /* of the report */
    bool worth, tensors, data, trace, steps, repairs;
} parts;

/* ---- the parts, in order ---- */

static void to_terminal(const blame_more *m, const blame_opts *o)
{
    const blame *b = m->b;
    printf("case     %s/%s on %s\n", fm_suite_name(b->suite),
           fm_suite_case_name(b->suite, b->case_index), o->rev);
    blame_print_history(m);
}

static fm_status write_html(const blame_more *m, const blame_opts *o, const parts *p)
{
    fm_buf page;
    fm_buf_init(&page, 0);
    fm_status rc = blame_html(&page, m, p->tensors, p->data, o->top);
    if (rc == FM_OK)
        rc = fm_write_file(o->html, page.data, page.len);
    fm_buf_release(&page);
    return rc;
}

static fm_status write_json(const blame_more *m, const parts *p)
{
    fm_json *o = blame_json(m, p->tensors, p->data);
    return o ? out_json(o) : FM_ENOMEM;
}

/* Gradients and runs need whole models. */
static fm_status check_ranks(const blame_more *m, const blame_opts *o)
{
    bool trains = o->data || o->steps || o->repairs || o->fix;
    return trains && ranks_count(m->b->c) > 1
               ? fm_fail(FM_EUNSUPPORTED,
                         "blame --data, --steps, --repairs and --fix train, and models that are "
                         "split over ranks cannot; leave --ranks and --stages out, or ask for "
                         "--tensors and --trace")
               : FM_OK;
}

/* What was asked for, of a failure that a step made. Tensors and data where nothing is named
 * (tensors alone with several ranks); what a repair is made of comes with it. */
static parts parts_of(const blame_opts *o, bool step, bool whole)
{
    bool repairs = o->repairs || o->fix;
    bool none = !o->tensors && !o->data && !o->trace && !o->steps && !repairs;
    return (parts){.worth = step && o->shapley,
                   .tensors = step && (none || o->tensors || repairs),
                   .data = step && ((none && whole) || o->data || repairs),
                   .trace = step && o->trace,
                   .steps = step && o->steps,
                   .repairs = step && repairs};
}

static fm_status look(blame_more *m, const parts *p)
{
    double began = blame_now_s();
    fm_status rc = p->worth ? blame_shapley_steps(m) : FM_OK;
    if (rc == FM_OK && p->tensors)
        rc = blame_tensors(m->b);
    if (rc == FM_OK && p->data)
        rc = blame_data(m->b);
    m->seconds += blame_now_s() - began;
    if (p->trace || p->steps || p->repairs) /* these look at cli_interrupted */
        cli_catch_interrupts();
    if (rc == FM_OK && p->trace)
        rc = blame_trace(m);
    if (rc == FM_OK && p->steps)
        rc = blame_find_step(m);
    return rc == FM_OK && p->repairs ? blame_find_repairs(m) : rc;
}

/* A branch to move must be what was asked about. */
static fm_status check_branch(const blame_more *m)
{
    fm_oid oid;
    char *ref = fm_asprintf("refs/heads/%s", m->rev);
    fm_status rc = ref ? fm_ref_read(m->b->c->repo, &oid, ref) : FM_ENOMEM;
    fm_free(ref);
    bool none = rc == FM_ENOTFOUND || rc == FM_EINVAL;
    return none ? fm_fail(FM_EINVAL,
                          "--fix moves a branch, and '%s' is none; name a "
                          "branch",
                          m->rev)
                : rc;
}

static fm_status investigate(blame_more *m, const blame_opts *o, const fm_oid *start)
{
    fm_status rc = check_ranks(m, o), fixed = FM_OK;
    fm_error_state why;
    double began = blame_now_s();
    if (rc == FM_OK && o->fix)
        rc = check_branch(m);
    if (rc == FM_OK)
        rc = blame_history(m->b, start);
    m->seconds += blame_now_s() - began;
    if (rc == FM_OK && m->b->history.verdict != FM_BLAME_PASSES)
        rc = blame_find_answers(m);
    if (rc == FM_OK && !o->json)
        to_terminal(m, o);
    parts p =
        rc == FM_OK ? parts_of(o, blame_has_step(m->b), ranks_count(m->b->c) == 1) : (parts){0};
    if (rc == FM_OK)
        rc = look(m, &p);
    if (rc == FM_OK && p.repairs && o->fix) {
        fixed = blame_fix(m, m->rev);
        fm_error_save(&why);
    }
    if (rc == FM_OK && !o->json)
        blame_print_findings(m, p.tensors, p.data, o->top);
    if (rc == FM_OK && o->json)
        rc = write_json(m, &p);
    if (rc == FM_OK && o->html)
        rc = write_html(m, o, &p);
    if (rc == FM_OK)
        rc = fm_result_flush(m->b->c->repo);
    if (rc == FM_OK && fixed < 0) {
        fm_error_restore(&why);
        rc = fixed;
    }
    return rc;
}

/* A number from 0 to below `end`, 0 where the option was not given. */
static bool parse_share(const char *text, double end, double *out)
{
    char *rest = NULL;
    *out = text ? strtod(text, &rest) : 0;
    return !text || (rest != text && *rest == 0 && *out >= 0 && *out < end);
}

static int check_examples(cli *c, const blame_data_opts *o)
{
    fm_attribution_kind kind;
    if (o->method && strcmp(o->method, "all") != 0 && fm_attribution_find(&kind, o->method) < 0)
        return cli_usage_error(c, "--data-method: %s, all", fm_error_text());
    if (o->target && strcmp(o->target, "margin") != 0 && strcmp(o->target, "wrong") != 0)
        return cli_usage_error(c, "--data-target wants margin or wrong, got '%s'", o->target);
    if (o->budget > 1000)
        return cli_usage_error(c, "--trainings wants 1 to 1,000");
    return CLI_GO_ON;
}

static int check_opts(cli *c, const blame_opts *o, blame_how *how)
{
    if (!parse_share(o->flip_rate, 0.451, &how->flip_rate))
        return cli_usage_error(c, "--flip-rate wants 0 to 0.45, got '%s'", o->flip_rate);
    if (!parse_share(o->confidence, 1, &how->confidence))
        return cli_usage_error(c, "--confidence wants 0 to below 1, got '%s'", o->confidence);
    how->all_versions = o->all_versions;
    how->ranks = o->ranks;
    how->shapley = o->shapley;
    how->max_runs = (uint32_t)FM_MIN(o->max_runs, (uint64_t)UINT32_MAX);
    if (!o->case_spec == !o->prompt)
        return cli_usage_error(c, "want --case SUITE/CASE, or --prompt P with --expect E");
    if (o->budget == 0 || o->budget > 1000000)
        return cli_usage_error(c, "--budget wants 1 to 1,000,000 seconds");
    if (!o->prompt != !o->expect)
        return cli_usage_error(c, "--prompt and --expect go together");
    if (o->max_runs == 0 || o->max_runs > 1000000)
        return cli_usage_error(c, "--max-runs wants 1 to 1,000,000");
    return check_examples(c, &o->examples);
}

static int run_blame(cli *c, blame *b, const blame_opts *o)
{
    fm_oid oid;
    fm_tree *tree = NULL;
    fm_suite_set set = {0};
    fm_suite *made = NULL;
    size_t at = 0;
    fm_status rc = fm_ops_lease(c, o->fix, "blame");
    if (rc == FM_OK)
        rc = fm_ops_resolve(c, o->rev, &oid, &tree);
    if (rc == FM_OK && o->prompt) {
        rc = fm_suite_from_prompt(&made, o->prompt, o->expect, !o->raw);
        b->suite = made;
    }
    if (rc == FM_OK && (!o->prompt || o->repairs || o->fix))
        rc = suites_of(c, tree, &set);
    if (rc == FM_OK && !o->prompt)
        rc = suite_case_find(&set, o->case_spec, &at, &b->case_index);
    if (rc == FM_OK && !o->prompt)
        b->suite = set.suite[at];
    blame_more m = {.b = b,
                    .suites = &set,
                    .rev = o->rev,
                    .case_spec = o->case_spec,
                    .rederive = o->rederive,
                    .budget_s = o->budget,
                    .max_runs = (uint32_t)o->max_runs};
    if (rc == FM_OK)
        rc = investigate(&m, o, &oid);
    blame_more_release(&m);
    blame_release(b);
    fm_suite_free(made);
    suites_free(&set);
    fm_tree_free(tree);
    return cli_exit(rc);
}

int cmd_blame(cli *c, int argc, char **argv)
{
    blame_opts o = {.max_runs = 400, .top = 10, .budget = 600};
    size_t n;
    const opt_spec table[] = {
        {0, "case", OPT_STR, "SUITE/CASE", "a case of a suite of this version", &o.case_spec},
        {0, "prompt", OPT_STR, "TEXT", "instead of a case: this prompt ...", &o.prompt},
        {0, "expect", OPT_STR, "TEXT", "... should be answered with text that contains this",
         &o.expect},
        {0, "raw", OPT_FLAG, NULL, "--prompt is plain text, not a chat message", &o.raw},
        {0, "tensors", OPT_FLAG, NULL, "only look for the tensors (default: tensors and data)",
         &o.tensors},
        {0, "data", OPT_FLAG, NULL, "only rank the training examples", &o.data},
        {0, "flip-rate", OPT_STR, "P",
         "how often one run says the opposite of what is true (default: 0, or measured where the "
         "case samples)",
         &o.flip_rate},
        {0, "confidence", OPT_STR, "P", "wanted of the verdict (0.95)", &o.confidence},
        {0, "all-versions", OPT_FLAG, NULL, "ask every version, not only those that decide",
         &o.all_versions},
        {0, "ranks", OPT_FLAG, NULL, "go on to the rank-one parts of the adapters found", &o.ranks},
        {0, "shapley", OPT_FLAG, NULL, "what each step of the history and each unit found is worth",
         &o.shapley},
        {0, "max-runs", OPT_UINT, "N", "mixtures to run at most in each search (400)", &o.max_runs},
        {0, "top", OPT_UINT, "N", "examples to show (10)", &o.top},
        {0, "data-method", OPT_STR, "NAME|all", "how examples are ranked", &o.examples.method},
        {0, "data-target", OPT_STR, "margin|wrong",
         "towards the wrong answer, away from the parent's", &o.examples.target},
        {0, "fidelity", OPT_FLAG, NULL, "measure the rankings by training again without groups",
         &o.examples.fidelity},
        {0, "trainings", OPT_UINT, "N", "trainings at most for --fidelity (12)",
         &o.examples.budget},
        {0, "trace", OPT_FLAG, NULL, "at which layer and token the answer turns", &o.trace},
        {0, "steps", OPT_FLAG, NULL, "at which step of the run it began, and by which setting",
         &o.steps},
        {0, "repairs", OPT_FLAG, NULL, "what would repair it, run against all suites", &o.repairs},
        {0, "fix", OPT_FLAG, NULL, "commit the best repair as a child and move the branch", &o.fix},
        {0, "rederive", OPT_FLAG, NULL, "let --steps and repairs train again", &o.rederive},
        {0, "budget", OPT_UINT, "S", "seconds of training at most with --rederive (600)",
         &o.budget},
        {0, "html", OPT_STR, "FILE", "write the report as one page", &o.html},
        {0, "json", OPT_FLAG, NULL, "as JSON", &o.json},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    blame b = {.c = c};
    int code = cli_parse(c, argc, argv, table, &o.rev, 1, 1, &n);
    if (code == CLI_GO_ON)
        code = check_opts(c, &o, &b.how);
    if (code != CLI_GO_ON)
        return code;
    b.data.opts = o.examples;
    return run_blame(c, &b, &o);
}
