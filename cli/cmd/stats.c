/* stats.c - fmstore stats: the size of each branch, and how much of it is shared. */
#include "cli/commands.h"
#include "cli/cmd/stats_codecs.h"

static fm_json *branch_json(const fm_branch_stats *b)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "name", fm_json_new_str(b->name));
    fm_json_put(&rc, o, "tensors", fm_json_new_int((int64_t)b->tensors));
    fm_json_put(&rc, o, "tensors_shared", fm_json_new_int((int64_t)b->tensors_shared));
    fm_json_put(&rc, o, "logical_bytes", fm_json_new_int((int64_t)b->logical_bytes));
    fm_json_put(&rc, o, "shared_bytes", fm_json_new_int((int64_t)b->shared_bytes));
    fm_json_put(&rc, o, "own_bytes", fm_json_new_int((int64_t)b->own_bytes));
    fm_json_put(&rc, o, "own_stored_bytes", fm_json_new_int((int64_t)b->own_stored));
    return o;
}

static fm_status print_json(const fm_repo_stats *s)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *branches = fm_json_new_array();
    for (size_t i = 0; i < s->count; i++)
        fm_json_push_to(&rc, branches, branch_json(&s->branch[i]));
    fm_json_put(&rc, o, "branches", branches);
    fm_json_put(&rc, o, "logical_bytes", fm_json_new_int((int64_t)s->logical_bytes));
    fm_json_put(&rc, o, "unique_bytes", fm_json_new_int((int64_t)s->unique_bytes));
    fm_json_put(&rc, o, "physical_bytes", fm_json_new_int((int64_t)s->physical_bytes));
    fm_json_put(&rc, o, "git_bytes", fm_json_new_int((int64_t)s->git_bytes));
    fm_json_put(&rc, o, "objects", fm_json_new_int((int64_t)s->store.objects));
    fm_json_put(&rc, o, "packs", fm_json_new_int((int64_t)s->store.packs));
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static void print_text(const fm_repo_stats *s)
{
    out_table *t = out_table_new();
    out_cell(t, "branch");
    out_cell_right(t, "tensors");
    out_cell_right(t, "shared");
    out_cell_right(t, "as a copy");
    out_cell_right(t, "of it shared");
    out_cell_right(t, "its own");
    out_cell_right(t, "on disk");
    out_end_row(t);
    for (size_t i = 0; i < s->count; i++) {
        const fm_branch_stats *b = &s->branch[i];
        out_cell(t, "%s", b->name);
        out_cell_right(t, "%llu", (unsigned long long)b->tensors);
        out_cell_right(t, "%llu", (unsigned long long)b->tensors_shared);
        out_cell_right(t, "%s", out_bytes(b->logical_bytes));
        out_cell_right(t, "%s", out_bytes(b->shared_bytes));
        out_cell_right(t, "%s", out_bytes(b->own_bytes));
        out_cell_right(t, "%s", out_bytes(b->own_stored));
        out_end_row(t);
    }
    out_table_print(t, stdout, "");
    uint64_t disk = s->physical_bytes + s->git_bytes;
    printf("\n%zu separate cop%s would take %s; this repository takes %s (%s packs, %s lineage)",
           s->count, s->count == 1 ? "y" : "ies", out_bytes(s->logical_bytes), out_bytes(disk),
           out_bytes(s->physical_bytes), out_bytes(s->git_bytes));
    if (s->logical_bytes)
        printf(": %.1f %%", 100.0 * (double)disk / (double)s->logical_bytes);
    putchar('\n');
}

int cmd_stats(cli *c, int argc, char **argv)
{
    bool json = false, codecs = false;
    const char *rev = NULL;
    size_t n;
    fm_repo_stats s = {0};
    const opt_spec table[] = {
        {0, "codecs", OPT_FLAG, NULL, "how objects are stored; with REV: each tensor of it",
         &codecs},
        {0, "json", OPT_FLAG, NULL, "as JSON, in bytes", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &rev, 0, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    if (rev && !codecs)
        return cli_usage_error(c, "a version is only looked at with --codecs");
    fm_status rc = fm_ops_open(c);
    if (rc == FM_OK && codecs)
        return cli_exit(rev ? stats_of_version(c, rev, json) : stats_of_codecs(c, json));
    FM_THEN(rc, fm_repo_stats_of(c->repo, &s));
    if (rc == FM_OK && json)
        rc = print_json(&s);
    else if (rc == FM_OK)
        print_text(&s);
    fm_repo_stats_release(&s);
    return cli_exit(rc);
}
