/* version_tree.c - lands a finished tree on a branch, in the only safe order. */
#include "cli/ops/version/version_tree.h"
#include "cli/ops/base/say.h"

#include <stdio.h>
#include <string.h>

#include "store/base/os/io.h"
#include "store/base/mem.h"

fm_status fmo_tree_drop(fm_tree *tree, const char *prefix)
{
    size_t begin, end;
    fm_tree_range(tree, prefix, &begin, &end);
    while (end > begin)
        FM_TRY(fm_tree_remove(tree, fm_tree_at(tree, --end)->path));
    return FM_OK;
}

fm_status fmo_tree_inherit(fm_tree *dst, const fm_tree *src, const char *prefix)
{
    size_t begin, end;
    fm_tree_range(src, prefix, &begin, &end);
    for (size_t i = begin; i < end; i++)
        if (!fm_tree_find(dst, fm_tree_at(src, i)->path))
            FM_TRY(fm_tree_put_entry(dst, fm_tree_at(src, i)));
    return FM_OK;
}

fm_status fmo_tree_drop_history(fm_tree *tree)
{
    static const char *const own[] = {"source/",   "data/",      "recipe.json", "train_log.json",
                                      "train.svg", "train.html", "sweep.json"};

    for (size_t i = 0; i < FM_ARRAY_LEN(own); i++)
        FM_TRY(fmo_tree_drop(tree, own[i]));
    return FM_OK;
}

fm_status fmo_branch_must_be_new(fm_ops *c, const char *name)
{
    fm_oid there;
    fm_status rc = fm_branch_name_fit(name);
    char *ref = rc == FM_OK ? fm_asprintf("refs/heads/%s", name) : NULL;
    FM_THEN(rc, ref ? fm_ref_read(c->repo, &there, ref) : FM_ENOMEM);
    fm_free(ref);
    if (rc == FM_OK)
        return fm_fail(FM_EEXISTS,
                       "branch '%s' is there already; choose another name or delete it "
                       "with 'fmstore branch -d %s'",
                       name, name);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

fm_status fmo_tree_put_json(fm_txn *txn, fm_tree *tree, const char *path, const fm_json *v)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, v, FM_JSON_PRETTY);
    fm_buf_char(&text, '\n');
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fm_txn_put_path(txn, tree, path, fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

fm_status fmo_tree_recipe(fm_ops *c, const fm_tree *tree, fm_json **out)
{
    fm_buf text;
    *out = NULL;
    const fm_entry *e = fm_tree_find(tree, "recipe.json");
    if (!e)
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = fm_ops_entry_bytes(c, e, &text);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), "recipe.json"));
    fm_buf_release(&text);
    return rc;
}

static fm_json *oid_json(const fm_oid *oid)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    return fm_json_new_str(hex);
}

fm_json *fmo_version_json(const fm_version *v)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object(), *parents = fm_json_new_array();
    fm_json_put(&rc, o, "id", oid_json(&v->oid));
    fm_json_put(&rc, o, "tree", oid_json(&v->tree));
    fm_json_put(&rc, o, "kind", fm_json_new_str(v->kind));
    for (uint32_t i = 0; i < v->parent_count; i++)
        fm_json_push_to(&rc, parents, oid_json(&v->parent[i]));
    fm_json_put(&rc, o, "parents", parents);
    fm_json_put(&rc, o, "author", fm_json_new_str(v->author));
    fm_json_put(&rc, o, "time", fm_json_new_int(v->time));
    fm_json_put(&rc, o, "message", fm_json_new_str(v->message));
    fm_json_put(&rc, o, "recipe", fm_json_new_str(v->recipe));
    fm_json_put(&rc, o, "data", fm_json_new_str(v->data));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_status keep_rejected(fm_ops *c, const fm_landing *l, const fm_oid *oid,
                               const fm_tally *tally)
{
    char hex[41];
    fm_oid_hex(oid, hex);
    fm_buf ref;
    fm_buf_init(&ref, 0);
    fm_buf_printf(&ref, "refs/fmstore/rejected/%s/%.10s", l->branch, hex);
    fm_status rc = fm_buf_ok(&ref);
    FM_THEN(rc, fm_ref_update(c->repo, fm_buf_cstr(&ref), oid, NULL, "rejected by a gate suite"));
    if (rc == FM_EEXISTS)
        rc = FM_OK; /* the same candidate was rejected before */
    fm_buf_release(&ref);
    FM_THEN(rc, fmo_note_tests(c, oid, tally));
    if (rc < 0)
        return rc;
    return fm_fail(FM_EREFUSED,
                   "branch '%s' is not %s: %zu gate suite%s failed; the candidate is kept as %.10s "
                   "(--no-gate lands it all the same)",
                   l->branch, l->expect_old ? "moved" : "made", tally->gates_failed,
                   tally->gates_failed == 1 ? "" : "s", hex);
}

enum { PACKS_MANY = 50 };

/* Each version adds a pack, and a lookup that misses searches all packs. */
static void hint_repack(fm_ops *c)
{
    fm_names packs = {NULL, 0};
    char *dir = fm_path_join(fm_repo_path(c->repo), "packs");
    if (dir && fm_list_dir(&packs, dir) == FM_OK && packs.count > PACKS_MANY)
        fmo_ui_say(c, FM_UI_NOTE, "  note: %zu packs; 'fmstore repack' makes few of them",
                   packs.count);
    fm_names_release(&packs);
    fm_free(dir);
    fm_error_clear();
}

fm_status fmo_version_candidate(fm_ops *c, const fm_landing *l, fm_oid *out, fm_tally *tally)
{
    *tally = (fm_tally){0};
    FM_TRY(fm_version_commit(c->repo, out, l->tree, &l->commit));
    if (l->gate)
        FM_TRY(fm_ops_gate(c, out, l->tree, l->branch, tally));
    if (tally->gates_failed)
        FM_TRY(keep_rejected(c, l, out, tally));
    return FM_OK;
}

static void tell_landed(const fm_ops *c, const fm_landing *l, const fm_oid *oid)
{
    fm_status rc = FM_OK;
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "branch", fm_json_new_str(l->branch));
    fm_json_put(&rc, o, "id", oid_json(oid));
    fm_json_put(&rc, o, "message", fm_json_new_str(l->commit.message));
    fmo_ui_result(c, "landed", o, rc);
}

fm_status fmo_version_land(fm_ops *c, const fm_landing *l, const fm_oid *oid, const fm_tally *tally)
{
    char ref[300];
    int n = snprintf(ref, sizeof ref, "refs/heads/%s", l->branch);
    if (n < 0 || (size_t)n >= sizeof ref)
        return fm_fail(FM_EINVAL, "the branch name is longer than 250 bytes");
    FM_TRY(fm_ref_update(c->repo, ref, oid, l->expect_old, l->commit.message));
    FM_TRY(fmo_note_tests(c, oid, tally));
    if (!l->quiet)
        tell_landed(c, l, oid);
    hint_repack(c);
    return FM_OK;
}

fm_status fm_ops_land(fm_ops *c, const fm_landing *l, fm_oid *out)
{
    fm_tally tally;
    FM_TRY(fmo_version_candidate(c, l, out, &tally));
    return fmo_version_land(c, l, out, &tally);
}

typedef struct offering {
    fm_ops *c;
    fm_txn *txn;
    size_t passed_over;
} offering;

/* A branch that cannot be read is no reason to refuse: only what new objects are coded against
 * depends on it. The first is named. */
static fm_status pass_over(offering *o, const char *name, fm_status rc)
{
    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    if (o->passed_over++ == 0)
        fmo_ui_say(o->c, FM_UI_NOTE,
                   "  note: what is new is not coded against %s: %s; 'fmstore fsck' says more",
                   name, fm_error_text());
    fm_error_clear();
    return FM_OK;
}

static fm_status offer_one(void *ctx, const char *name, const fm_oid *oid)
{
    offering *o = ctx;
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(o->c->repo, &tree, oid);
    FM_THEN(rc, fm_txn_offer(o->txn, tree));
    fm_tree_free(tree);
    return pass_over(o, name, rc);
}

fm_status fmo_offer_branches(fm_ops *c, fm_txn *txn)
{
    offering o = {c, txn, 0};
    return pass_over(&o, "any branch", fm_ref_each(c->repo, "refs/heads/", offer_one, &o));
}
