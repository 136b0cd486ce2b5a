/* replay_graft.c - makes a version that blame --fix grafted from other versions' tensors again,
 * from its recipe. */
#include <math.h>
#include <string.h>

#include "cli/ops/blame/repair/fix.h"
#include "store/base/mem.h"

typedef struct grafted {
    fm_tree *tree, *from;
    fm_json *recipe;
    const char *label;
} grafted;

static fm_status tree_named(fm_ops *c, const grafted *g, const char *key, fm_tree **out)
{
    fm_oid oid;
    const char *hex = fm_json_cstr(fm_json_get(g->recipe, key), "");
    fm_status rc = fm_rev_resolve(c->repo, &oid, hex);
    FM_THEN(rc, fm_version_tree(c->repo, out, &oid));
    return rc < 0 ? fm_error_prefix(rc, "%s: recipe.json: %s", g->label, key) : rc;
}

static fm_status put_all(grafted *g, fmo_blame_overlay *made)
{
    const fm_json *list = fm_json_get(g->recipe, "tensors");
    double alpha = 0;
    fm_status rc = fm_json_need_real(&alpha, g->recipe, "alpha", "recipe.json");
    if (rc == FM_OK && !(alpha >= 0 && alpha <= 1))
        rc = fm_fail(FM_ECORRUPT, "%s: recipe.json: alpha is no share", g->label);
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(list); i++) {
        const char *path = fm_json_cstr(fm_json_at(list, i), "");
        const fm_entry *a = fm_tree_find(g->from, path), *b = fm_tree_find(g->tree, path);
        if (!a && !b)
            rc = fm_fail(FM_ECORRUPT, "%s: recipe.json names %s, which neither version has",
                         g->label, path);
        else
            rc = fmo_blame_graft_entry(g->tree, made, a, b, alpha);
    }
    return rc == FM_OK && alpha <= 0 ? fmo_blame_close_gaps(g->tree) : rc;
}

static fm_status take_change(void *ctx, const fm_change *change)
{
    fmo_replay_report *out = ctx;
    const fm_entry *e = change->a ? change->a : change->b;
    if (e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    out->differ++;
    return out->differ > REPLAY_PATHS ? FM_OK : fm_json_push(out->paths, fm_json_new_str(e->path));
}

fm_status fmo_replay_graft(fm_ops *c, const fm_tree *stored, const fm_json *recipe,
                           const char *label, fmo_replay_report *out)
{
    fmo_blame b = {.c = c};
    fmo_blame_overlay made;
    grafted g = {.label = label, .recipe = fm_json_ref(recipe)};
    double began = fm_now_s();
    fmo_blame_overlay_open(&made, &b);
    out->paths = fm_json_new_array();
    out->log_same = true; /* a graft has no log */
    out->tensors = fm_json_count(fm_json_get(recipe, "tensors"));
    fm_status rc = out->paths ? tree_named(c, &g, "version", &g.tree) : FM_ENOMEM;
    FM_THEN(rc, tree_named(c, &g, "from", &g.from));
    FM_THEN(rc, put_all(&g, &made));
    FM_THEN(rc, fm_diff_trees(g.tree, stored, take_change, out));
    out->seconds = fm_now_s() - began;
    fm_tree_free(g.tree);
    fm_tree_free(g.from);
    fm_json_free(g.recipe);
    fmo_blame_overlay_release(&made);
    return rc;
}
