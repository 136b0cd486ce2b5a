/* refs.c - fmstore branch and fmstore tag: list, make and delete names of versions. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/version/version_tree.h"

typedef struct ref_list {
    cli *c;
    out_table *table;
} ref_list;

static fm_status add_ref_row(void *ctx, const char *name, const fm_oid *oid)
{
    ref_list *list = ctx;
    fm_version v;
    const char *shown = strchr(name + 5, '/') + 1; /* after "refs/heads/" */
    FM_TRY(fm_version_read(list->c->repo, &v, oid));
    out_cell(list->table, "%s", out_text(shown, 300));
    out_cell(list->table, "%s", fm_ops_short_oid(oid));
    out_cell(list->table, "%s", out_text(v.kind, 60));
    out_cell(list->table, "%s", out_text(v.subject, 500));
    out_end_row(list->table);
    fm_version_release(&v);
    return FM_OK;
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

static fm_status list_refs(cli *c, const char *prefix)
{
    ref_list list = {c, out_table_new()};
    fm_status rc = fm_ref_each(c->repo, prefix, add_ref_row, &list);
    if (rc == FM_OK)
        out_table_print(list.table, stdout, "");
    else
        out_table_free(list.table);
    return rc;
}

static int refs_command(cli *c, int argc, char **argv, const char *space, const char *prefix)
{
    bool del = false, move = false;
    const char *args[2];
    size_t n;
    const opt_spec table[] = {
        {'d', "delete", OPT_FLAG, NULL, "delete the name; its versions stay in the store", &del},
        {'m', "move", OPT_FLAG, NULL, space[0] == 'h' ? "rename a branch: -m OLD NEW" : NULL,
         &move},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, 2, &n);
    if (code != CLI_GO_ON)
        return code;
    if ((del && n != 1) || (move && n != 2) || (del && move))
        return cli_usage_error(c, space[0] == 'h' ? "-d wants one name, -m wants two, not both"
                                                  : "-d wants one name");
    if (n == 1 && !del)
        return cli_usage_error(c, "which version should '%s' name? give a REV", args[0]);
    fm_status rc = n == 0 || del ? fm_ops_open(c) : fm_ops_lease(c, true, "naming a version");
    if (rc == FM_OK && n == 0)
        rc = list_refs(c, prefix);
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
    return refs_command(c, argc, argv, "heads", "refs/heads/");
}

int cmd_tag(cli *c, int argc, char **argv)
{
    return refs_command(c, argc, argv, "tags", "refs/tags/");
}
