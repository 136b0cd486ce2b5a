/* remote_show.c - fmstore remote show and get-url: where a remote is, and its branches beside
 * ours. */
#include <stdio.h>
#include <string.h>

#include "cli/base/out.h"
#include "cli/cmd/remote_show.h"
#include "store/base/mem.h"

fm_status remote_get_url(fm_ops *c, const char *name)
{
    char *url = NULL;
    FM_TRY(fm_ops_remote_url(c, name, &url));
    out_line(url, strlen(url));
    fm_free(url);
    return FM_OK;
}

static void beside_ours(out_table *t, const fm_remote_branch *b)
{
    if (!b->here)
        out_cell(t, "no branch here");
    else if (!b->counted)
        out_cell(t, "not fetched");
    else if (b->ahead && b->behind)
        out_cell(t, "%zu here alone, %zu there alone", b->ahead, b->behind);
    else if (b->ahead)
        out_cell(t, "%zu ahead", b->ahead);
    else if (b->behind)
        out_cell(t, "%zu behind", b->behind);
    else
        out_cell(t, "up to date");
}

static fm_status add_row(void *ctx, const fm_remote_branch *b)
{
    out_cell(ctx, "%s", out_text(b->name, 300));
    out_cell(ctx, "%s", fm_ops_short_oid(&b->version));
    out_cell(ctx, "%s", b->state);
    beside_ours(ctx, b);
    out_end_row(ctx);
    return FM_OK;
}

static fm_status add_json(void *ctx, const fm_remote_branch *b)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_oid_hex(&b->version, hex);
    fm_json_put(&rc, o, "name", fm_json_new_str(b->name));
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_put(&rc, o, "state", fm_json_new_str(b->state));
    fm_json_put(&rc, o, "branch", fm_json_new_bool(b->here));
    if (b->counted) {
        fm_json_put(&rc, o, "ahead", fm_json_new_int((int64_t)b->ahead));
        fm_json_put(&rc, o, "behind", fm_json_new_int((int64_t)b->behind));
    }
    fm_json_push_to(&rc, ctx, o);
    return rc;
}

static fm_status show_json(fm_ops *c, const char *name, const char *url)
{
    fm_json *o = fm_json_new_object(), *branches = fm_json_new_array();
    fm_status rc = fm_ops_remote_show(c, name, add_json, branches);
    fm_json_put(&rc, o, "name", fm_json_new_str(name));
    fm_json_put(&rc, o, "url", fm_json_new_str(url));
    fm_json_put(&rc, o, "branches", branches);
    if (rc == FM_OK)
        return out_json(o);
    fm_json_free(o);
    return rc;
}

static fm_status show_text(fm_ops *c, const char *name, const char *url)
{
    out_table *t = out_table_new();
    fm_status rc = fm_ops_remote_show(c, name, add_row, t);
    if (rc != FM_OK) {
        out_table_free(t);
        return rc;
    }
    printf("%s  %s\n", name, out_text(url, 500));
    out_table_print(t, stdout, "  ");
    return FM_OK;
}

fm_status remote_show(fm_ops *c, const char *name, bool json)
{
    char *url = NULL;
    FM_TRY(fm_ops_remote_url(c, name, &url));
    fm_status rc = json ? show_json(c, name, url) : show_text(c, name, url);
    fm_free(url);
    return rc;
}
