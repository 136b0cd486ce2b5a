/* remote.c - fmstore remote and fmstore ls-remote: names of other repositories, and what they
 * hold. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "cli/cmd/remote_show.h"
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
    if (n == 3 && !packs && strcmp(args[0], "rename") == 0)
        return cli_exit(fm_ops_remote_rename(c, args[1], args[2]));
    if (n == 2 && !packs && strcmp(args[0], "show") == 0)
        return cli_exit(remote_show(c, args[1], json));
    if (n == 2 && !packs && strcmp(args[0], "get-url") == 0)
        return cli_exit(remote_get_url(c, args[1]));
    if (n == 2 && !packs && strcmp(args[0], "rm") == 0)
        return cli_exit(fm_ops_remote_remove(c, args[1]));
    return cli_usage_error(c, "remote has 'ls', 'add NAME URL [--packs URL]', 'set-url NAME URL "
                              "[--packs URL]', 'get-url NAME', 'show NAME', 'rename OLD NEW' and "
                              "'rm NAME'");
}

/* ---- ls-remote ---- */

static void print_ref(const fm_oid *oid, const char *name, const char *mark)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    printf("%s\t%s%s\n", hex, out_text(name, 300), mark);
}

typedef struct listing {
    const char *const *pattern;
    size_t count;
    fm_json *array; /* --json */
} listing;

/* As git has it: a pattern is for the end of a name, from a '/' on. */
static bool is_asked(const listing *l, const char *name)
{
    char whole[400], pattern[400];
    snprintf(whole, sizeof whole, "/%s", name);
    for (size_t i = 0; i < l->count; i++) {
        snprintf(pattern, sizeof pattern, "*/%s", l->pattern[i]);
        if (fnmatch(pattern, whole, 0) == 0)
            return true;
    }
    return l->count == 0;
}

static fm_status ref_json(fm_json *array, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "name", fm_json_new_str(name));
    fm_oid_hex(oid, hex);
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_oid_hex(peeled ? peeled : oid, hex);
    fm_json_put(&rc, o, "version", fm_json_new_str(hex)); /* of an annotated tag: what it names */
    fm_json_push_to(&rc, array, o);
    return rc;
}

static fm_status list_ref(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    static const fm_oid none;
    const listing *l = ctx;
    const bool is_tag = !fm_oid_eq(peeled, &none);
    if (!is_asked(l, name))
        return FM_OK;
    if (l->array)
        return ref_json(l->array, name, oid, is_tag ? peeled : NULL);
    print_ref(oid, name, "");
    if (is_tag)
        print_ref(peeled, name, "^{}");
    return FM_OK;
}

int cmd_ls_remote(cli *c, int argc, char **argv)
{
    const char *args[FM_WORDS_MAX] = {NULL};
    size_t n;
    bool json = false;
    const opt_spec table[] = {
        {0, "json", OPT_FLAG, NULL, "as JSON", &json},
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, args, 0, FM_WORDS_MAX, &n);
    if (code != CLI_GO_ON)
        return code;
    cli_catch_interrupts(true);
    listing l = {args + 1, n ? n - 1 : 0, json ? fm_json_new_array() : NULL};
    fm_status rc = fm_ops_ls_remote(c, args[0], list_ref, &l);
    if (rc == FM_OK && json)
        return cli_exit(out_json(l.array));
    fm_json_free(l.array);
    return cli_exit(rc);
}
