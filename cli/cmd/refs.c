/* refs.c - fmstore branch and fmstore tag: list, make and delete names of versions. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"

typedef struct ref_list {
    cli *c;
    size_t skip; /* bytes of the prefix that is not shown */
    out_table *table;
    fm_json *array; /* --json */
} ref_list;

static void add_row(out_table *t, const char *shown, const fm_version *v)
{
    out_cell(t, "%s", out_text(shown, 300));
    out_cell(t, "%s", fm_ops_short_oid(&v->oid));
    out_cell(t, "%s", out_text(v->kind, 60));
    out_cell(t, "%s", out_text(v->subject, 500));
    out_end_row(t);
}

static fm_status add_json(fm_json *array, const char *ref, const char *shown, const fm_version *v)
{
    fm_status rc = FM_OK;
    fm_json *o = fmo_version_json(v);
    fm_json_put(&rc, o, "name", fm_json_new_str(shown));
    fm_json_put(&rc, o, "ref", fm_json_new_str(ref));
    fm_json_push_to(&rc, array, o);
    return rc;
}

static fm_status add_ref(void *ctx, const char *name, const fm_oid *oid)
{
    ref_list *list = ctx;
    fm_version v;
    fm_status rc = FM_OK;
    FM_TRY(fm_version_read(list->c->repo, &v, oid));
    if (list->array)
        rc = add_json(list->array, name, name + list->skip, &v);
    else
        add_row(list->table, name + list->skip, &v);
    fm_version_release(&v);
    return rc;
}

static fm_status full_name(char *out, size_t bytes, const char *space, const char *name)
{
    FM_TRY(fm_branch_name_check(name));
    int n = snprintf(out, bytes, "refs/%s/%s", space, name);
    return n > 0 && (size_t)n < bytes ? FM_OK
                                      : fm_fail(FM_EINVAL, "the name is longer than 250 bytes");
}

static fm_status make_ref(cli *c, const char *space, const char *name, const char *rev)
{
    char ref[300];
    fm_oid oid;
    fm_status rc = full_name(ref, sizeof ref, space, name);
    FM_THEN(rc, fm_branch_name_fit(name));
    FM_THEN(rc, fm_ops_resolve(c, rev, &oid, NULL));
    if (rc == FM_OK && space[0] == 'h') /* here a name in use is a mistake, not a lost race */
        rc = fmo_branch_must_be_new(c, name);
    FM_THEN(rc, fm_ref_update(c->repo, ref, &oid, NULL, "created"));
    if (rc == FM_EEXISTS && space[0] == 't')
        rc = fm_fail(rc,
                     "tag '%s' is there already; choose another name or delete it with "
                     "'fmstore tag -d %s'",
                     name, name);
    if (rc == FM_OK)
        printf("%s is %s\n", name, fm_ops_short_oid(&oid));
    return rc;
}

static fm_status read_ref(cli *c, fm_oid *oid, const char *ref, const char *space, const char *name)
{
    const char *what = space[0] == 'h' ? "branch" : "tag";
    fm_status rc = fm_ref_read(c->repo, oid, ref);
    return rc == FM_ENOTFOUND
               ? fm_fail(rc, "there is no %s '%s'; 'fmstore %s' lists them", what, name, what)
               : rc;
}

static fm_status delete_ref(cli *c, const char *space, const char *name)
{
    char ref[300];
    fm_oid oid;
    FM_TRY(full_name(ref, sizeof ref, space, name));
    FM_TRY(read_ref(c, &oid, ref, space, name));
    FM_TRY(fm_ref_delete(c->repo, ref, &oid));
    printf("%s (was %s) is deleted; 'fmstore %s %s %s' brings it back\n", name,
           fm_ops_short_oid(&oid), space[0] == 'h' ? "branch" : "tag", name,
           fm_ops_short_oid(&oid));
    return FM_OK;
}

static fm_status rename_branch(cli *c, const char *from, const char *to)
{
    char old_ref[300], new_ref[300];
    fm_oid oid;
    FM_TRY(full_name(old_ref, sizeof old_ref, "heads", from));
    FM_TRY(full_name(new_ref, sizeof new_ref, "heads", to));
    FM_TRY(read_ref(c, &oid, old_ref, "heads", from));
    FM_TRY(fmo_branch_must_be_new(c, to));
    FM_TRY(fm_ref_update(c->repo, new_ref, &oid, NULL, "renamed"));
    FM_TRY(fm_ref_delete(c->repo, old_ref, &oid));
    printf("%s is now %s\n", from, to);
    return FM_OK;
}

/* The refs of each prefix (NULL ends them). Those after the first keep their "remotes/", as in
 * git. */
static fm_status list_refs(cli *c, const char *const *prefix, bool json)
{
    ref_list list = {
        .c = c, .table = json ? NULL : out_table_new(), .array = json ? fm_json_new_array() : NULL};
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && prefix[i]; i++) {
        list.skip = strlen(i == 0 ? prefix[i] : "refs/");
        rc = fm_ref_each(c->repo, prefix[i], add_ref, &list);
    }
    if (rc == FM_OK && json)
        return out_json(list.array);
    if (rc == FM_OK)
        out_table_print(list.table, stdout, "");
    else
        out_table_free(list.table);
    fm_json_free(list.array);
    return rc;
}

#define REMOTES "refs/remotes/"

static int refs_command(cli *c, int argc, char **argv, const char *space)
{
    static const char *const heads[] = {"refs/heads/", NULL}, *const tags[] = {"refs/tags/", NULL},
                             *const remotes[] = {REMOTES, NULL},
                             *const both[] = {"refs/heads/", REMOTES, NULL};
    const bool branches = space[0] == 'h';
    bool del = false, move = false, far = false, all = false, json = false;
    const char *args[2];
    size_t n;
    const opt_spec table[] = {
        {'d', "delete", OPT_FLAG, NULL, "delete the name; its versions stay in the store", &del},
        {0, "json", OPT_FLAG, NULL, "list as JSON", &json},
        {'m', "move", OPT_FLAG, NULL, branches ? "rename a branch: -m OLD NEW" : NULL, &move},
        {'r', "remotes", OPT_FLAG, NULL, "list the remotes' branches, as fetched last", &far},
        {'a', "all", OPT_FLAG, NULL, "list both", &all},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, 2, &n);
    if (code != CLI_GO_ON)
        return code;
    if ((del && n != 1) || (move && n != 2) || (del && move))
        return cli_usage_error(c, branches ? "-d wants one name, -m wants two, not both"
                                           : "-d wants one name");
    if (n && (far || all || json))
        return cli_usage_error(c, "-r, -a and --json list names, and want none");
    if (n == 1 && !del)
        return cli_usage_error(c, "which version should '%s' name? give a REV", args[0]);
    fm_status rc = n == 0 || del ? fm_ops_open(c) : fm_ops_lease(c, true, "naming a version");
    if (rc == FM_OK && n == 0)
        rc = list_refs(c, !branches ? tags : all ? both : far ? remotes : heads, json);
    else if (rc == FM_OK && del)
        rc = delete_ref(c, space, args[0]);
    else if (rc == FM_OK && move)
        rc = rename_branch(c, args[0], args[1]);
    else if (rc == FM_OK)
        rc = make_ref(c, space, args[0], args[1]);
    return cli_exit(rc);
}

int cmd_branch(cli *c, int argc, char **argv)
{
    return refs_command(c, argc, argv, "heads");
}

int cmd_tag(cli *c, int argc, char **argv)
{
    return refs_command(c, argc, argv, "tags");
}
