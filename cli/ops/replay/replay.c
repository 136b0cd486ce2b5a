/* replay.c - trains or grafts a version, or all of a chain, again and reports. */
#include "cli/ops/replay.h"

#include <stdio.h>
#include <string.h>

#include "cli/ops/blame/repair/fix.h"
#include "cli/ops/derive/replay.h"
#include "store/base/mem.h"

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

/* Lists the first parents, up to a version that no training made. */
static fm_status find_chain(fm_ops *c, ancestry *a)
{
    fm_status rc = FM_OK;
    for (bool more = true; rc == FM_OK && more;) {
        fm_version v = {0};
        bool can = false;
        rc = fm_version_read(c->repo, &v, &a->oid[a->count - 1]);
        more = rc == FM_OK && v.parent_count > 0;
        if (more)
            rc = fmo_replay_can(c, &v.parent[0], &can);
        more = more && can;
        if (rc == FM_OK && more)
            rc = add_oid(a, &v.parent[0]);
        fm_version_release(&v);
    }
    return rc;
}

static fm_json *report_json(const char *label, const fm_oid *oid, const fmo_replay_report *r)
{
    char hex[41];
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_oid_hex(oid, hex);
    fm_json_put(&rc, o, "rev", fm_json_new_str(label));
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_put(&rc, o, "equal", fm_json_new_bool(fmo_replay_equal(r)));
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

/* Makes a version again if it is a graft (*yes). */
static fm_status try_graft(fm_ops *c, const fm_oid *oid, const char *label, fmo_replay_report *out,
                           bool *yes)
{
    fm_tree *tree = NULL;
    fm_json *recipe = NULL;
    fm_status rc = fm_version_tree(c->repo, &tree, oid);
    FM_THEN(rc, fmo_tree_recipe(c, tree, &recipe));
    *yes = rc == FM_OK && strcmp(fm_json_cstr(fm_json_get(recipe, "operation"), ""), "graft") == 0;
    if (*yes)
        rc = fmo_replay_graft(c, tree, recipe, label, out);
    fm_json_free(recipe);
    fm_tree_free(tree);
    return rc;
}

static fm_status replay_version(fm_ops *c, const fm_oid *oid, const char *label,
                                fmo_replay_report *out)
{
    bool graft = false;
    memset(out, 0, sizeof *out);
    fm_status rc = try_graft(c, oid, label, out, &graft);
    return rc < 0 || graft ? rc : fmo_replay_training(c, oid, label, out);
}

/* Replays the oldest first: a version is reported after the one that it was trained on. */
static fm_status replay_all(fm_ops *c, const ancestry *a, const char *rev, bool *equal)
{
    for (size_t i = a->count; i > 0; i--) {
        char label[100];
        fmo_replay_report r;
        snprintf(label, sizeof label, i == 1 ? "%.80s" : "%.80s~%zu", rev, i - 1);
        fm_status rc = replay_version(c, &a->oid[i - 1], label, &r);
        fm_json *told = rc == FM_OK ? report_json(label, &a->oid[i - 1], &r) : NULL;
        if (rc == FM_OK && !told)
            rc = FM_ENOMEM;
        fmo_ui_result(c, "replayed", told, rc);
        *equal = *equal && fmo_replay_equal(&r);
        fmo_replay_report_release(&r);
        FM_TRY(rc);
    }
    return FM_OK;
}

fm_status fm_ops_replay(fm_ops *c, const char *rev, bool chain, bool *equal)
{
    fm_oid oid;
    ancestry a = {0};
    *equal = true;
    c->stopped = false;
    FM_TRY(fm_ops_lease(c, false, "replay"));
    FM_TRY(fm_ops_resolve(c, rev, &oid, NULL));
    fm_status rc = add_oid(&a, &oid);
    if (rc == FM_OK && chain)
        rc = find_chain(c, &a);
    FM_THEN(rc, replay_all(c, &a, rev, equal));
    fm_free(a.oid);
    return rc;
}
