/* cmd_suite.c - fmstore suite add / ls: what a branch and its descendants are held to. */
#include <string.h>

#include "cli/commands.h"
#include "cli/suite_convert.h"
#include "cli/version_tree.h"

static bool same_entries(const fm_tree *a, const fm_tree *b)
{
    bool same = fm_tree_count(a) == fm_tree_count(b);
    for (size_t i = 0; same && i < fm_tree_count(a); i++) {
        const fm_entry *x = fm_tree_at(a, i), *y = fm_tree_at(b, i);
        same = strcmp(x->path, y->path) == 0 && memcmp(&x->id, &y->id, sizeof x->id) == 0;
    }
    return same;
}

static fm_status add(cli *c, const char *branch, const char *const *files, size_t n)
{
    char ref[300], subject[300];
    fm_oid old, oid;
    fm_tree *tree = NULL, *before = NULL;
    fm_txn *txn = NULL;
    snprintf(ref, sizeof ref, "refs/heads/%.250s", branch);
    fm_status rc = cli_lease(c, true, "suite add");
    if (rc == FM_OK)
        rc = fm_ref_read(c->repo, &old, ref);
    if (rc == FM_ENOTFOUND)
        rc = fm_fail(FM_ENOTFOUND, "'%s' is not a branch; a suite is added to a branch's tip",
                     branch);
    if (rc == FM_OK)
        rc = fm_version_tree(c->repo, &before, &old);
    if (rc == FM_OK)
        rc = fm_version_tree(c->repo, &tree, &old);
    if (rc == FM_OK)
        rc = fm_txn_begin(&txn, fm_repo_store(c->repo));
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = tree_add_suite(txn, tree, files[i]);
    if (rc == FM_OK)
        rc = fm_txn_commit(txn, NULL);
    if (rc == FM_OK && same_entries(tree, before)) {
        printf("%s carries %s already\n", branch, n == 1 ? "this suite" : "these suites");
    } else if (rc == FM_OK) {
        snprintf(subject, sizeof subject, "add %zu suite%s", n, n == 1 ? "" : "s");
        landing l = {.branch = branch, .expect_old = &old, .tree = tree, .gate = false};
        l.commit =
            (fm_commit_opts){.kind = "edit", .message = subject, .parent = &old, .parent_count = 1};
        rc = land_version(c, &l, &oid);
    }
    fm_txn_close(txn);
    fm_tree_free(before);
    fm_tree_free(tree);
    return rc;
}

static fm_status list_json(const suite_set *set)
{
    fm_status rc = FM_OK;
    fm_json *array = fm_json_new_array();
    for (size_t i = 0; i < set->count; i++) {
        fm_json *o = fm_json_new_object(), *cases = fm_json_new_array();
        for (size_t k = 0; k < fm_suite_count(set->suite[i]); k++)
            out_push(&rc, cases, fm_json_new_str(fm_suite_case_name(set->suite[i], k)));
        out_set(&rc, o, "name", fm_json_new_str(fm_suite_name(set->suite[i])));
        out_set(&rc, o, "gate", fm_json_new_bool(fm_suite_is_gate(set->suite[i])));
        out_set(&rc, o, "description", fm_json_new_str(fm_suite_description(set->suite[i])));
        out_set(&rc, o, "cases", cases);
        out_push(&rc, array, o);
    }
    if (rc == FM_OK)
        return out_json(array);
    fm_json_free(array);
    return rc;
}

static fm_status list(cli *c, const char *rev, bool json)
{
    fm_oid oid;
    fm_tree *tree = NULL;
    suite_set set = {0};
    fm_status rc = cli_resolve(c, rev, &oid, &tree);
    if (rc == FM_OK)
        rc = suites_of(c, tree, &set);
    if (rc == FM_OK && json)
        rc = list_json(&set);
    for (size_t i = 0; rc == FM_OK && !json && i < set.count; i++)
        printf("%-16s %3zu cases  %-5s %s\n", fm_suite_name(set.suite[i]),
               fm_suite_count(set.suite[i]), fm_suite_is_gate(set.suite[i]) ? "gate" : "",
               fm_suite_description(set.suite[i]));
    suites_free(&set);
    fm_tree_free(tree);
    return rc;
}

int cmd_suite(cli *c, int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "convert") == 0)
        return suite_convert(c, argc, argv);
    bool json = false;
    const char *args[OPT_LIST_MAX];
    size_t n;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "ls: as JSON, with the names of the cases", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 2, OPT_LIST_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    if (strcmp(args[0], "add") == 0 && n >= 3)
        return cli_exit(add(c, args[1], args + 2, n - 2));
    if (strcmp(args[0], "ls") == 0 && n == 2)
        return cli_exit(list(c, args[1], json));
    return cli_usage_error(c, "want 'suite add BRANCH FILE...' or 'suite ls REV'");
}
