/* cmd_blame.c - fmstore blame: a readable account of where a failure came from, with the evidence.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/blame.h"
#include "cli/commands.h"
#include "store/base/mem.h"

typedef struct blame_opts {
    const char *rev, *case_spec, *prompt, *expect, *flip_rate, *confidence;
    bool tensors, data, raw, json, all_versions, ranks, shapley;
    uint64_t max_runs, top;
} blame_opts;

static const char *const verdict_word[] = {"pass", "FAIL", "error"};

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
        out_cell(t, "%s%s%s%s", out_c(v == FM_PASS ? OUT_GREEN : OUT_RED), verdict_word[v],
                 out_c(OUT_PLAIN), b->history.asks[i] ? "" : "?");
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
    case FM_BLAME_EXPOSED:
        printf("exposed by %s: its parents pass, but the fault is older", who);
        break;
    case FM_BLAME_INTERACTION:
        printf("interaction: %s fails, though what it is made of passes", who);
        break;
    case FM_BLAME_FLAKY:
        printf("flaky: repeats disagree from %s on", who);
        break;
    case FM_BLAME_CANNOT_TELL:
        printf("cannot tell; likeliest is %s by %s", fm_blame_class_word(b->history.likely), who);
        break;
    }
    printf(" (%.0f %%, %u asks)", 100 * b->history.posterior, b->history.runs);
    printf("%s\n         %s\n", out_c(OUT_PLAIN), v->subject);
    if (b->history.uncertain)
        printf("         a version in between cannot be run here; it may have begun there\n");
    if (b->history.note[0])
        printf("         %s\n", b->history.note);
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

static void print_data(const blame *b, uint64_t top)
{
    if (!b->example_count) {
        printf("\ndata     this version carries no training examples\n");
        return;
    }
    printf("\ndata     %s: %zu examples by the cosine of their gradient with the wrong answer's\n",
           b->data_name, b->example_count);
    size_t shown = FM_MIN((size_t)top, b->example_count);
    shown = FM_MAX(shown, FM_MIN(b->outstanding, (size_t)64));
    out_table *t = out_table_new();
    for (size_t i = 0; i < shown; i++) {
        const blame_example *e = &b->example[i];
        out_cell(t, "%s", i < b->outstanding ? "*" : " ");
        out_cell_right(t, "%u", e->index);
        out_cell_right(t, "%+.3f", e->score);
        out_cell(t, "%s", out_text(e->preview, 90));
        out_end_row(t);
    }
    out_table_print(t, stdout, "  ");
    if (!b->outstanding)
        return;
    printf("  %zu stand%s out (*); to derive without them: --skip ", b->outstanding,
           b->outstanding == 1 ? "s" : "");
    for (size_t i = 0; i < b->outstanding; i++)
        printf("%s%u", i ? "," : "", b->example[i].index);
    putchar('\n');
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
        out_set(&rc, o, "asks", fm_json_new_int(b->history.asks[i]));
        out_set(&rc, o, "fails", fm_json_new_real(b->history.fails[i]));
        out_set(&rc, o, "share", fm_json_new_real(b->history.share[i]));
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

static fm_json *data_json(const blame *b)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *list = fm_json_new_array();
    for (size_t i = 0; i < b->example_count; i++) {
        fm_json *e = fm_json_new_object();
        out_set(&rc, e, "record", fm_json_new_int(b->example[i].index));
        out_set(&rc, e, "score", fm_json_new_real(b->example[i].score));
        out_set(&rc, e, "stands_out", fm_json_new_bool(i < b->outstanding));
        out_set(&rc, e, "preview", fm_json_new_str(b->example[i].preview));
        out_push(&rc, list, e);
    }
    out_set(&rc, o, "name", fm_json_new_str(b->data_name));
    out_set(&rc, o, "method", fm_json_new_str("gradient cosine"));
    out_set(&rc, o, "examples", list);
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
    out_set(&rc, o, "verdict", fm_json_new_str(fm_blame_class_word(b->history.verdict)));
    out_set(&rc, o, "culprit", fm_json_new_str(hex));
    out_set(&rc, o, "uncertain", fm_json_new_bool(b->history.uncertain));
    out_set(&rc, o, "likely", fm_json_new_str(fm_blame_class_word(b->history.likely)));
    out_set(&rc, o, "posterior", fm_json_new_real(b->history.posterior));
    out_set(&rc, o, "flip_rate", fm_json_new_real(b->history.flip_rate));
    out_set(&rc, o, "runs", fm_json_new_int(b->history.runs));
    out_set(&rc, o, "rounds", fm_json_new_int(b->history.rounds));
    out_set(&rc, o, "note", fm_json_new_str(b->history.note));
    out_set(&rc, o, "history", history_json(b));
    if (tensors)
        out_set(&rc, o, "tensors", tensors_json(b));
    if (data)
        out_set(&rc, o, "data", data_json(b));
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static fm_status investigate(blame *b, const blame_opts *o, const fm_oid *start)
{
    bool all = !o->tensors && !o->data; /* neither asked for: both */
    fm_status rc = blame_history(b, start);
    bool step = rc == FM_OK && blame_has_step(b);
    bool tensors = step && (all || o->tensors), data = step && (all || o->data);
    if (rc == FM_OK && !o->json) {
        printf("case     %s/%s on %s\n", fm_suite_name(b->suite),
               fm_suite_case_name(b->suite, b->case_index), o->rev);
        print_history(b);
        print_verdict(b);
    }
    if (tensors)
        rc = blame_tensors(b);
    if (rc == FM_OK && tensors && !o->json)
        print_tensors(b);
    if (rc == FM_OK && data)
        rc = blame_data(b);
    if (rc == FM_OK && data && !o->json)
        print_data(b, o->top);
    if (rc == FM_OK && o->json)
        rc = print_json(b, tensors, data);
    if (rc == FM_OK)
        rc = fm_result_flush(b->c->repo);
    return rc;
}

/* A number from 0 to below `end`, 0 where the option was not given. */
static bool parse_share(const char *text, double end, double *out)
{
    char *rest = NULL;
    *out = text ? strtod(text, &rest) : 0;
    return !text || (rest != text && *rest == 0 && *out >= 0 && *out < end);
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
    if (!o->prompt != !o->expect)
        return cli_usage_error(c, "--prompt and --expect go together");
    if (o->max_runs == 0 || o->max_runs > 1000000)
        return cli_usage_error(c, "--max-runs wants 1 to 1,000,000");
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
        {0, "flip-rate", OPT_STR, "P",
         "how often one run says the opposite of what is true (default: 0, or measured where the "
         "case samples)",
         &o.flip_rate},
        {0, "confidence", OPT_STR, "P", "wanted of the verdict (0.95)", &o.confidence},
        {0, "all-versions", OPT_FLAG, NULL, "ask every version, not only those that decide",
         &o.all_versions},
        {0, "ranks", OPT_FLAG, NULL, "go on to the rank-one parts of the adapters found", &o.ranks},
        {0, "shapley", OPT_FLAG, NULL, "what each unit found is worth, with intervals", &o.shapley},
        {0, "max-runs", OPT_UINT, "N", "mixtures to run at most in each search (400)", &o.max_runs},
        {0, "top", OPT_UINT, "N", "examples to show (10)", &o.top},
        {0, "json", OPT_FLAG, NULL, "as JSON", &o.json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    blame b = {.c = c};
    int code = cli_parse(c, argc, argv, table, &o.rev, 1, 1, &n);
    if (code == CLI_GO_ON)
        code = check_opts(c, &o, &b.how);
    if (code != CLI_GO_ON)
        return code;
    fm_oid oid;
    fm_tree *tree = NULL;
    suite_set set = {0};
    fm_suite *made = NULL;
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
