/* remote.c - fmstore remote and fmstore ls-remote: names of other repositories, and what they hold. */
#include <string.h>

#include "cli/commands.h"
#include "cli/ops/remote.h"

static fm_status add_row(void *ctx, const char *name, const char *url, const char *packs)
{
    out_cell(ctx, "%s", out_text(name, 100));
    out_cell(ctx, "%s", out_text(url, 500));
    if (packs)
        out_cell(ctx, "%s", out_text(packs, 500));
    out_end_row(ctx);
    return FM_OK;
}

static fm_status add_json(void *ctx, const char *name, const char *url, const char *packs)
{
    fm_json *v = fm_json_new_object();
    fm_status rc = fm_json_set(v, "name", fm_json_new_str(name));
    FM_THEN(rc, fm_json_set(v, "url", fm_json_new_str(url)));
    if (packs)
        FM_THEN(rc, fm_json_set(v, "packs", fm_json_new_str(packs)));
    if (rc != FM_OK) {
        fm_json_free(v);
        return rc;
    }
    return fm_json_push(ctx, v);
}

static fm_status list(cli *c, bool json)
{
    if (json) {
        fm_json *all = fm_json_new_array();
        fm_status rc = fm_ops_remote_each(c, add_json, all);
        if (rc == FM_OK)
            return out_json(all);
        fm_json_free(all);
        return rc;
    }
    out_table *t = out_table_new();
    fm_status rc = fm_ops_remote_each(c, add_row, t);
    if (rc == FM_OK)
        out_table_print(t, stdout, "");
    else
        out_table_free(t);
    return rc;
}

int cmd_remote(cli *c, int argc, char **argv)
{
    bool json = false;
    const char *args[3] = {"ls"}, *packs = NULL;
    size_t n;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, "packs", OPT_STR, "URL", "add, set-url: the bucket of the tensors; URL is a git host's",
         &packs},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, 3, &n);
    if (code != CLI_GO_ON)
        return code;
    if (n <= 1 && !packs && strcmp(args[0], "ls") == 0)
        return cli_exit(list(c, json));
    if (n == 3 && strcmp(args[0], "add") == 0)
        return cli_exit(fm_ops_remote_add(c, args[1], args[2], packs));
    if (n == 3 && strcmp(args[0], "set-url") == 0)
        return cli_exit(fm_ops_remote_set_url(c, args[1], args[2], packs));
    if (n == 2 && !packs && strcmp(args[0], "rm") == 0)
        return cli_exit(fm_ops_remote_remove(c, args[1]));
    return cli_usage_error(c, "remote has 'ls', 'add NAME URL [--packs URL]', 'set-url NAME URL "
                              "[--packs URL]' and 'rm NAME'");
}

/* ---- ls-remote ---- */

static void print_ref(const fm_oid *oid, const char *name, const char *mark)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    printf("%s\t%s%s\n", hex, out_text(name, 300), mark);
}

static fm_status print_one(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    static const fm_oid none;
    (void)ctx;
    print_ref(oid, name, "");
    if (!fm_oid_eq(peeled, &none))
        print_ref(peeled, name, "^{}");
    return FM_OK;
}

int cmd_ls_remote(cli *c, int argc, char **argv)
{
    const char *args[1] = {NULL};
    size_t n;
    const opt_spec table[] = {{0, NULL, OPT_FLAG, NULL, NULL, NULL}};
    int code = cli_parse(c, argc, argv, table, args, 0, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    cli_catch_interrupts(true);
    return cli_exit(fm_ops_ls_remote(c, args[0], print_one, NULL));
}
