/* suite.c - fmstore suite: lists and changes the suites of a branch. */
#include <string.h>

#include "cli/commands.h"
#include "cli/cmd/suite_convert.h"
#include "cli/ops/version/suite_edit.h"
#include "cli/report/report.h"
#include "store/base/mem.h"

static fm_status add(cli *c, const char *branch, const char *const *files, size_t n)
{
    fmo_suite_edit e;
    char subject[300];
    bool same = false;
    fm_status rc = fmo_suite_edit_open(&e, c, branch);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = fm_ops_add_suite(e.txn, e.tree, files[i]);
    snprintf(subject, sizeof subject, "add %zu suite%s", n, n == 1 ? "" : "s");
    FM_THEN(rc, fmo_suite_edit_land(&e, subject, &same));
    if (rc == FM_OK && same)
        printf("%s carries %s already\n", branch, n == 1 ? "this suite" : "these suites");
    fmo_suite_edit_close(&e);
    return rc;
}

static size_t waived_cases(const fm_suite *s)
{
    size_t n = 0;
    for (size_t i = 0; i < fm_suite_count(s); i++)
        n += fm_suite_waived(s, i);
    return n;
}

static fm_status list_json(const fm_suite_set *set)
{
    fm_status rc = FM_OK;
    fm_json *array = fm_json_new_array();
    for (size_t i = 0; i < set->count; i++) {
        fm_json *o = fm_json_new_object(), *cases = fm_json_new_array();
        for (size_t k = 0; k < fm_suite_count(set->suite[i]); k++)
            fm_json_push_to(&rc, cases, fm_json_new_str(fm_suite_case_name(set->suite[i], k)));
        fm_json_put(&rc, o, "name", fm_json_new_str(fm_suite_name(set->suite[i])));
        fm_json_put(&rc, o, "gate", fm_json_new_bool(fm_suite_is_gate(set->suite[i])));
        fm_json_put(&rc, o, "waived", fm_json_new_int((int64_t)waived_cases(set->suite[i])));
        fm_json_put(&rc, o, "description", fm_json_new_str(fm_suite_description(set->suite[i])));
        fm_json_put(&rc, o, "cases", cases);
        fm_json_push_to(&rc, array, o);
    }
    if (rc == FM_OK)
        return out_json(array);
    fm_json_free(array);
    return rc;
}

static fm_status list(cli *c, const char *rev, bool json)
{
    fm_oid oid;
    fm_suite_set set = {0};
    fm_status rc = fm_ops_resolve(c, rev, &oid, NULL);
    FM_THEN(rc, fm_ops_suites(c, &oid, NULL, &set));
    if (rc == FM_OK && json)
        rc = list_json(&set);
    for (size_t i = 0; rc == FM_OK && !json && i < set.count; i++) {
        const fm_suite *s = set.suite[i];
        char waived[40] = "";
        if (waived_cases(s))
            snprintf(waived, sizeof waived, "%zu waived  ", waived_cases(s));
        printf("%-16s %3zu cases  %-5s %s%s\n", fm_suite_name(s), fm_suite_count(s),
               fm_suite_is_gate(s) ? "gate" : "", waived, out_text(fm_suite_description(s), 500));
    }
    fm_suite_set_free(&set);
    return rc;
}

int cmd_suite(cli *c, int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "convert") == 0)
        return suite_convert(c, argc, argv);
    bool json = false;
    fmo_waive_words w = {0};
    const char *args[OPT_LIST_MAX];
    size_t n;
    const opt_spec table[] = {
        {0, "reason", OPT_STR, "TEXT", "waive: why; it stays in history", &w.reason},
        {0, "until", OPT_STR, "DATE|REV",
         "waive: through that day (2027-03-31), or until a version has REV behind it", &w.until},
        {0, "owner", OPT_STR, "NAME", "waive: who sees to it", &w.owner},
        {0, "json", OPT_FLAG, NULL, "ls, show: as JSON, with the names of the cases", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 2, OPT_LIST_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    bool waive = strcmp(args[0], "waive") == 0;
    if (!waive && (w.reason || w.until || w.owner))
        return cli_usage_error(c, "--reason, --until and --owner go with 'suite waive'");
    if (strcmp(args[0], "add") == 0 && n >= 3)
        return cli_exit(add(c, args[1], args + 2, n - 2));
    if (strcmp(args[0], "ls") == 0 && n == 2)
        return cli_exit(list(c, args[1], json));
    if (strcmp(args[0], "show") == 0 && n == 3)
        return cli_exit(print_suite(c, args[1], args[2], json));
    if (waive && n == 3) {
        w.branch = args[1];
        w.which = args[2];
        if (!w.reason || !*w.reason)
            return cli_usage_error(c, "--reason TEXT is missing: why may this case fail?");
        return cli_exit(fmo_suite_waive(c, &w));
    }
    if (strcmp(args[0], "unwaive") == 0 && n == 3)
        return cli_exit(fmo_suite_unwaive(c, args[1], args[2]));
    return cli_usage_error(c, "want 'suite add BRANCH FILE...', 'suite ls REV', 'suite show REV "
                              "SUITE', 'suite waive BRANCH SUITE/CASE --reason TEXT' or 'suite "
                              "unwaive BRANCH SUITE/CASE'");
}
