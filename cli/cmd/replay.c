/* replay.c - fmstore replay: trained again, is it the same? */
#include <string.h>

#include "cli/ops/blame/repair/fix.h"
#include "cli/commands.h"
#include "cli/ops/derive/replay.h"
#include "store/base/mem.h"

#define NAMED 20u /* paths that differ, for people */

typedef struct ancestry { /* newest first */
    fm_oid *oid;
    size_t count, cap;
} ancestry;

static fm_status add_oid(ancestry *a, const fm_oid *oid)
{
    FM_TRY(fm_grow(&a->oid, &a->cap, a->count + 1, sizeof *a->oid));
    a->oid[a->count++] = *oid;
    return FM_OK;
}

/* First parents, up to what no training made. */
static fm_status find_chain(cli *c, ancestry *a)
{
    fm_status rc = FM_OK;
    for (bool more = true; rc == FM_OK && more;) {
        fm_version v = {0};
        bool can = false;
        rc = fm_version_read(c->repo, &v, &a->oid[a->count - 1]);
        more = rc == FM_OK && v.parent_count > 0;
        if (more)
            rc = replay_can(c, &v.parent[0], &can);
        more = more && can;
        if (rc == FM_OK && more)
            rc = add_oid(a, &v.parent[0]);
        fm_version_release(&v);
    }
    return rc;
}

static void print_report(const char *label, const replay_report *r)
{
    bool same = replay_equal(r);
    printf("%s%s%s  %s: %zu tensors, %u steps, %.1f s\n", out_c(same ? OUT_GREEN : OUT_RED),
           same ? "equal" : "differs", out_c(OUT_PLAIN), label, r->tensors, r->steps, r->seconds);
    for (size_t i = 0; i < fm_json_count(r->paths) && i < NAMED; i++)
        printf("  %s\n", fm_json_cstr(fm_json_at(r->paths, i), ""));
    if (r->differ > NAMED)
        printf("  and %zu more\n", r->differ - NAMED);
    if (!r->log_same)
        printf("  train_log.json\n");
}

static fm_json *report_json(const char *label, const fm_oid *oid, const replay_report *r)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_oid_hex(oid, hex);
    fm_json_put(&rc, o, "rev", fm_json_new_str(label));
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_put(&rc, o, "equal", fm_json_new_bool(replay_equal(r)));
    fm_json_put(&rc, o, "tensors", fm_json_new_int((int64_t)r->tensors));
    fm_json_put(&rc, o, "steps", fm_json_new_int((int64_t)r->steps));
    fm_json_put(&rc, o, "differ", fm_json_new_int((int64_t)r->differ));
    fm_json_put(&rc, o, "paths", fm_json_ref(r->paths));
    fm_json_put(&rc, o, "log_equal", fm_json_new_bool(r->log_same));
    fm_json_put(&rc, o, "seconds", fm_json_new_real(r->seconds));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* *yes: the version is a graft, and it was made again. */
static fm_status try_graft(cli *c, const fm_oid *oid, const char *label, replay_report *out,
                           bool *yes)
{
    fm_tree *tree = NULL;
    fm_json *recipe = NULL;
    fm_status rc = fm_version_tree(c->repo, &tree, oid);
    FM_THEN(rc, tree_recipe(c, tree, &recipe));
    *yes = rc == FM_OK && strcmp(fm_json_cstr(fm_json_get(recipe, "operation"), ""), "graft") == 0;
    if (*yes)
        rc = replay_graft(c, tree, recipe, label, out);
    fm_json_free(recipe);
    fm_tree_free(tree);
    return rc;
}

static fm_status replay_version(cli *c, const fm_oid *oid, const char *label, replay_report *out)
{
    bool graft = false;
    memset(out, 0, sizeof *out);
    fm_status rc = try_graft(c, oid, label, out, &graft);
    return rc < 0 || graft ? rc : replay_training(c, oid, label, out);
}

/* Oldest first: what a version was trained on is told before it. */
static fm_status replay_all(cli *c, const ancestry *a, const char *rev, fm_json *list, bool *same)
{
    fm_status rc = FM_OK;
    for (size_t i = a->count; rc == FM_OK && i > 0; i--) {
        char label[100];
        replay_report r;
        snprintf(label, sizeof label, i == 1 ? "%.80s" : "%.80s~%zu", rev, i - 1);
        rc = replay_version(c, &a->oid[i - 1], label, &r);
        if (rc == FM_OK && list)
            fm_json_push_to(&rc, list, report_json(label, &a->oid[i - 1], &r));
        else if (rc == FM_OK)
            print_report(label, &r);
        *same = *same && rc == FM_OK && replay_equal(&r);
        replay_report_release(&r);
    }
    return rc;
}

int cmd_replay(cli *c, int argc, char **argv)
{
    bool json = false, chain = false, same = true;
    const char *rev;
    size_t n;
    const opt_spec table[] = {
        {0, "chain", OPT_FLAG, NULL, "also all it stands on, up to an import", &chain},
        {0, "json", OPT_FLAG, NULL, "as a JSON array, one object a version", &json},
        CLI_DEVICE_OPTION(c),
        {0, NULL, OPT_FLAG, NULL, NULL, NULL},
    };
    int code = cli_parse(c, argc, argv, table, &rev, 1, 1, &n);
    if (code != CLI_GO_ON)
        return code;
    fm_oid oid;
    ancestry a = {0};
    fm_json *list = json ? fm_json_new_array() : NULL;
    fm_status rc = json && !list ? FM_ENOMEM : FM_OK;
    cli_catch_interrupts(false);
    FM_THEN(rc, fm_ops_lease(c, false, "replay"));
    FM_THEN(rc, fm_ops_resolve(c, rev, &oid, NULL));
    FM_THEN(rc, add_oid(&a, &oid));
    if (rc == FM_OK && chain)
        rc = find_chain(c, &a);
    FM_THEN(rc, replay_all(c, &a, rev, list, &same));
    if (rc == FM_OK && json)
        rc = out_json(list);
    else
        fm_json_free(list);
    fm_free(a.oid);
    if (rc < 0)
        return cli_exit(rc);
    return same ? EXIT_YES : EXIT_NO;
}
