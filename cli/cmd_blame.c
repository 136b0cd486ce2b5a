/* cmd_blame.c - fmstore blame: a readable account of where a failure came from, with the evidence.
 */
#include <string.h>

#include "cli/blame.h"
#include "cli/commands.h"
#include "store/base/mem.h"

typedef struct blame_opts {
    const char *rev, *case_spec, *prompt, *expect;
    bool tensors, data, raw, json;
    uint64_t max_runs, top;
    blame_data_opts examples;
} blame_opts;

static const char *const verdict_word[] = {"pass", "FAIL", "error"};
static const char *const class_word[] = {"passes", "inherited", "introduced", "reintroduced"};

/* "SUITE/CASE" among the version's suites; the suite stays owned by the set. */
static fm_status find_case(const suite_set *set, const char *spec, const fm_suite **suite,
                           size_t *index)
{
    const char *slash = strchr(spec, '/');
    if (!slash)
        return fm_fail(FM_EINVAL, "--case wants SUITE/CASE, got '%s'", spec);
    for (size_t i = 0; i < set->count; i++) {
        const char *name = fm_suite_name(set->suite[i]);
        if (strlen(name) != (size_t)(slash - spec) || strncmp(name, spec, strlen(name)) != 0)
            continue;
        long at = fm_suite_find(set->suite[i], slash + 1);
        if (at < 0)
            return fm_fail(FM_ENOTFOUND, "suite '%s' has no case '%s'", name, slash + 1);
        *suite = set->suite[i];
        *index = (size_t)at;
        return FM_OK;
    }
    return fm_fail(FM_ENOTFOUND,
                   "no suite '%.*s' hangs on this version; 'fmstore suite ls' lists them",
                   (int)(slash - spec), spec);
}

static void print_history(const blame *b)
{
    out_table *t = out_table_new();
    printf("\nhistory\n");
    for (size_t i = b->count; i-- > 0;) {
        fm_verdict v = b->history.at[i];
        out_cell(t, "%s%s%s", out_c(v == FM_PASS ? OUT_GREEN : OUT_RED), verdict_word[v],
                 out_c(OUT_PLAIN));
        out_cell(t, "%s", b->names[i][0] ? b->names[i] : "-");
        out_cell(t, "%s", cli_short_oid(&b->version[i].oid));
        out_cell(t, "%s", b->version[i].kind);
        out_cell(t, "%s", out_text(b->output[i], 70));
        out_end_row(t);
    }
    out_table_print(t, stdout, "  ");
}

static void print_verdict(const blame *b)
{
    const fm_version *v = &b->version[b->history.culprit];
    const char *name = b->names[b->history.culprit], *oid = cli_short_oid(&v->oid);
    char who[400];
    if (name[0])
        snprintf(who, sizeof who, "%s (%s, %s)", name, oid, v->kind);
    else
        snprintf(who, sizeof who, "%s (%s)", oid, v->kind);
    printf("\nverdict  %s", out_c(OUT_BOLD));
    switch (b->history.verdict) {
    case FM_BLAME_PASSES:
        printf("nothing to blame: the case passes here%s\n", out_c(OUT_PLAIN));
        return;
    case FM_BLAME_INHERITED:
        printf("inherited: it fails as far back as %s", who);
        break;
    case FM_BLAME_INTRODUCED:
        printf("introduced by %s: its parents pass, it fails", who);
        break;
    case FM_BLAME_REINTRODUCED:
        printf("fixed, then broken again by %s", who);
        break;
    }
    printf("%s\n         %s\n", out_c(OUT_PLAIN), v->subject);
    if (b->history.uncertain)
        printf("         a version in between cannot be run here; it may have begun there\n");
}

/* One line a layer: what is left of the name after "model.layers.N.". */
static void print_units(const blame *b, const fm_minimal_set *set)
{
    for (size_t g = 0; g < b->group_count; g++) {
        const char *sep = "    ";
        for (size_t u = 0; u < b->unit_count; u++) {
            if (b->unit[u].group != g || !set->take[u])
                continue;
            const char *name = b->unit[u].name, *layers = strstr(name, "layers.");
            const char *rest = layers ? strchr(layers + strlen("layers."), '.') : NULL;
            if (rest && sep[0] == ' ')
                printf("    %.*s: %s", (int)(rest - name), name, rest + 1);
            else
                printf("%s%s", sep, rest ? rest + 1 : name);
            sep = ", ";
        }
        if (sep[0] == ',')
            putchar('\n');
    }
}

static void print_tensors(const blame *b)
{
    if (!b->unit_count) {
        printf("\ntensors  none changed in this step\n");
        return;
    }
    printf("\ntensors  of %zu changed units, by running %u mixtures of parent and child\n",
           b->unit_count, b->minimal.runs + b->repair.runs);
    printf("  the parent %s with these %zu of the child:\n",
           b->minimal.sufficient ? "fails" : "still passes", b->minimal.size);
    print_units(b, &b->minimal);
    printf("  the child %s with these %zu set back to the parent:\n",
           b->repair.sufficient ? "passes" : "still fails", b->repair.size);
    print_units(b, &b->repair);
    if (!b->minimal.minimal || !b->repair.minimal)
        printf("  the runs were used up (--max-runs): smaller sets may do\n");
}

static fm_json *history_json(const blame *b)
{
    fm_status rc = FM_OK;
    fm_json *array = fm_json_new_array();
    for (size_t i = 0; i < b->count; i++) {
        fm_json *o = version_json(&b->version[i]);
        out_set(&rc, o, "names", fm_json_new_str(b->names[i]));
        out_set(&rc, o, "outcome", fm_json_new_str(verdict_word[b->history.at[i]]));
        out_set(&rc, o, "output", fm_json_new_str(b->output[i]));
        out_push(&rc, array, o);
    }
    return array;
}

static fm_json *set_json(const blame *b, const fm_minimal_set *set)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *units = fm_json_new_array();
    for (size_t u = 0; u < b->unit_count; u++)
        if (set->take[u])
            out_push(&rc, units, fm_json_new_str(b->unit[u].name));
    out_set(&rc, o, "units", units);
    out_set(&rc, o, "sufficient", fm_json_new_bool(set->sufficient));
    out_set(&rc, o, "minimal", fm_json_new_bool(set->minimal));
    out_set(&rc, o, "runs", fm_json_new_int(set->runs));
    return o;
}

static fm_json *tensors_json(const blame *b)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    out_set(&rc, o, "changed", fm_json_new_int((int64_t)b->unit_count));
    if (b->unit_count) {
        out_set(&rc, o, "breaks_parent", set_json(b, &b->minimal));
        out_set(&rc, o, "repairs_child", set_json(b, &b->repair));
    }
    return o;
}

static fm_status print_json(const blame *b, bool tensors, bool data)
{
    fm_status rc = FM_OK;
    char hex[41];
    fm_json *o = fm_json_new_object();
    fm_oid_hex(&b->version[b->history.culprit].oid, hex);
    out_set(&rc, o, "suite", fm_json_new_str(fm_suite_name(b->suite)));
    out_set(&rc, o, "case", fm_json_new_str(fm_suite_case_name(b->suite, b->case_index)));
    out_set(&rc, o, "verdict", fm_json_new_str(class_word[b->history.verdict]));
    out_set(&rc, o, "culprit", fm_json_new_str(hex));
    out_set(&rc, o, "uncertain", fm_json_new_bool(b->history.uncertain));
    out_set(&rc, o, "history", history_json(b));
    if (tensors)
        out_set(&rc, o, "tensors", tensors_json(b));
    if (data)
        out_set(&rc, o, "data", blame_data_json(b));
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static fm_status investigate(blame *b, const blame_opts *o, const fm_oid *start)
{
    bool all = !o->tensors && !o->data; /* neither asked for: both */
    fm_status rc = blame_history(b, start);
    bool step = rc == FM_OK && (b->history.verdict == FM_BLAME_INTRODUCED ||
                                b->history.verdict == FM_BLAME_REINTRODUCED);
    bool tensors = step && (all || o->tensors), data = step && (all || o->data);
    if (rc == FM_OK && !o->json) {
        printf("case     %s/%s on %s\n", fm_suite_name(b->suite),
               fm_suite_case_name(b->suite, b->case_index), o->rev);
        print_history(b);
        print_verdict(b);
    }
    if (tensors)
        rc = blame_tensors(b, (uint32_t)o->max_runs);
    if (rc == FM_OK && tensors && !o->json)
        print_tensors(b);
    if (rc == FM_OK && data)
        rc = blame_data(b);
    if (rc == FM_OK && data && !o->json)
        blame_data_print(b, o->top);
    if (rc == FM_OK && o->json)
        rc = print_json(b, tensors, data);
    if (rc == FM_OK)
        rc = fm_result_flush(b->c->repo);
    return rc;
}

static int check_opts(cli *c, const blame_opts *o)
{
    if (!o->case_spec == !o->prompt)
        return cli_usage_error(c, "want --case SUITE/CASE, or --prompt P with --expect E");
    if (!o->prompt != !o->expect)
        return cli_usage_error(c, "--prompt and --expect go together");
    if (o->max_runs == 0 || o->max_runs > 1000000)
        return cli_usage_error(c, "--max-runs wants 1 to 1,000,000");
    fm_attribution_kind kind;
    const char *method = o->examples.method;
    if (method && strcmp(method, "all") != 0 && fm_attribution_find(&kind, method) < 0)
        return cli_usage_error(c, "--data-method: %s, all", fm_error_text());
    const char *target = o->examples.target;
    if (target && strcmp(target, "margin") != 0 && strcmp(target, "wrong") != 0)
        return cli_usage_error(c, "--data-target wants margin or wrong, got '%s'", target);
    if (o->examples.budget > 1000)
        return cli_usage_error(c, "--budget wants 1 to 1,000 trainings");
    return CLI_GO_ON;
}

int cmd_blame(cli *c, int argc, char **argv)
{
    blame_opts o = {.max_runs = 400, .top = 10};
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
        {0, "max-runs", OPT_UINT, "N", "mixtures to run at most in each search (400)", &o.max_runs},
        {0, "top", OPT_UINT, "N", "examples to show (10)", &o.top},
        {0, "data-method", OPT_STR, "NAME|all", "how examples are ranked", &o.examples.method},
        {0, "data-target", OPT_STR, "margin|wrong",
         "towards the wrong answer, away from the parent's", &o.examples.target},
        {0, "fidelity", OPT_FLAG, NULL, "measure the rankings by training again without groups",
         &o.examples.fidelity},
        {0, "budget", OPT_UINT, "N", "trainings at most for --fidelity (12)", &o.examples.budget},
        {0, "json", OPT_FLAG, NULL, "as JSON", &o.json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &o.rev, 1, 1, &n);
    if (code == CLI_GO_ON)
        code = check_opts(c, &o);
    if (code != CLI_GO_ON)
        return code;
    fm_oid oid;
    fm_tree *tree = NULL;
    suite_set set = {0};
    fm_suite *made = NULL;
    blame b = {.c = c, .data.opts = o.examples};
    fm_status rc = cli_lease(c, false, "blame");
    if (rc == FM_OK)
        rc = cli_resolve(c, o.rev, &oid, &tree);
    if (rc == FM_OK && o.prompt) {
        rc = fm_suite_from_prompt(&made, o.prompt, o.expect, !o.raw);
        b.suite = made;
    } else if (rc == FM_OK) {
        rc = suites_of(c, tree, &set);
        if (rc == FM_OK)
            rc = find_case(&set, o.case_spec, &b.suite, &b.case_index);
    }
    if (rc == FM_OK)
        rc = investigate(&b, &o, &oid);
    blame_release(&b);
    fm_suite_free(made);
    suites_free(&set);
    fm_tree_free(tree);
    return cli_exit(rc);
}
