/* merge.c - fmstore merge: merges versions into one, by weighted average or task arithmetic. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/merge.h"

static fm_status read_method(fm_merge_method *out, const char *word)
{
    for (fm_merge_method m = FM_MERGE_AVERAGE; m <= FM_MERGE_TASK; m++)
        if (!word || strcmp(word, fm_merge_method_name(m)) == 0) {
            *out = m;
            return FM_OK;
        }
    return fm_fail(FM_EINVAL, "--method '%s' is not known; there are average and task-arithmetic",
                   word);
}

/* out [FM_PARENTS_MAX]: the values of --weight for each of `count` versions. */
static fm_status read_weights(double *out, const opt_list *words, size_t count)
{
    if (words->count != count)
        return fm_fail(FM_EINVAL,
                       "%zu versions and %zu times --weight; give one for each, in order", count,
                       words->count);
    for (size_t k = 0; k < count; k++) {
        char *end;
        errno = 0;
        out[k] = strtod(words->item[k], &end);
        if (end == words->item[k] || *end || errno || !isfinite(out[k]))
            return fm_fail(FM_EINVAL, "--weight wants a number, got '%s'", words->item[k]);
    }
    return FM_OK;
}

static fm_status run(cli *c, fm_merge_opts *o, const char *method, const opt_list *weights)
{
    double weight[FM_PARENTS_MAX];
    fm_merge_result r;
    FM_TRY(read_method(&o->method, method));
    if (weights->count) {
        FM_TRY(read_weights(weight, weights, o->count));
        o->weight = weight;
    }
    fm_status rc = fm_ops_merge(c, o, &r);
    if (rc != FM_OK && rc != FM_EREFUSED)
        return rc;
    printf("  %llu tensors, %llu of them the same in all; %s made, %s stored",
           (unsigned long long)r.stats.tensors, (unsigned long long)r.stats.kept,
           out_bytes(r.stats.bytes), out_bytes(r.stats.bytes_stored));
    if (r.stats.folded)
        printf(" (%llu adapter terms merged first)", (unsigned long long)r.stats.folded);
    putchar('\n');
    return rc;
}

int cmd_merge(cli *c, int argc, char **argv)
{
    const char *rev[FM_PARENTS_MAX], *method = NULL;
    opt_list weights = {0};
    fm_merge_opts o = {.rev = rev, .lambda = 1};
    const opt_spec table[] = {
        {0, "as", OPT_STR, "NAME", "branch to make", &o.name},
        {0, "method", OPT_STR, "M", "average (default) or task-arithmetic", &method},
        {0, "weight", OPT_LIST, "W",
         "of each version, in order (1); an average divides by their sum", &weights},
        {0, "lambda", OPT_REAL, "L", "task-arithmetic: times each difference (1)", &o.lambda},
        {0, "base", OPT_STR, "REV",
         "task-arithmetic: what differences are taken from (the merge base)", &o.base},
        {0, "suite", OPT_LIST, "FILE", "hang a test suite on it", &o.suites},
        {0, "no-gate", OPT_FLAG, NULL, "land it without running its suites", &o.no_gate},
        {'m', "message", OPT_STR, "TEXT", "commit message", &o.message},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, rev, 2, FM_PARENTS_MAX, &o.count);
    if (code != CLI_GO_ON)
        return code;
    if (!o.name)
        return cli_usage_error(c, "--as NAME is missing: what should the branch be called?");
    return cli_exit(run(c, &o, method, &weights));
}
