/* commit.c - commits the best repair as a child of the version: stores tensors and recipe, runs the
 * gates, moves the branch by compare-and-swap. */
#include <string.h>

#include "cli/ops/blame/blame_more.h"
#include "store/base/math/hash.h"
#include "store/base/mem.h"

static bool trained(const fmo_blame_candidate *k)
{
    return k->kind == BLAME_REPAIR_DROP || k->kind == BLAME_REPAIR_FILE;
}

static const fmo_blame_made *made_for(const fmo_blame_overlay *o, const fm_entry *e)
{
    for (size_t i = 0; i < o->count; i++)
        if (e->kind == FM_ENTRY_TENSOR && fm_digest_eq(&o->made[i].id, &e->id))
            return &o->made[i];
    return NULL;
}

/* Stores the computed tensors, coded against the version's tensor of the same path if it fits. */
static fm_status put_tensors(const fmo_blame_candidate *k, const fm_tree *version, fm_txn *txn)
{
    for (size_t i = 0; i < fm_tree_count(k->tree); i++) {
        const fm_entry *e = fm_tree_at(k->tree, i);
        const fmo_blame_made *made = made_for(k->made, e);
        const fm_entry *old = fm_tree_find(version, e->path);
        fm_digest id;
        if (!made)
            continue;
        bool fits = old && old->kind == FM_ENTRY_TENSOR && old->dtype == e->dtype &&
                    fm_shape_eq(&old->shape, &e->shape);
        FM_TRY(fm_txn_put_tensor(txn, &id, e->dtype, &e->shape,
                                 fm_span_of(made->data, (size_t)made->bytes),
                                 fits ? &old->id : NULL, NULL));
    }
    return FM_OK;
}

static fm_status drop_stale_pages(fm_tree *tree)
{
    static const char *const pages[] = {"train.svg", "train.html", "sweep.json"};

    for (size_t i = 0; i < FM_ARRAY_LEN(pages); i++)
        FM_TRY(fmo_tree_drop(tree, pages[i]));
    return FM_OK;
}

/* Makes the tree to commit: that of a trained repair keeps its data, a graft has none. */
static fm_status make_tree(fm_ops *c, const fmo_blame_candidate *k, const fm_tree *version,
                           fm_tree **out)
{
    fm_txn *txn = NULL;
    fm_status rc = fm_tree_copy(out, k->tree);
    FM_THEN(rc, trained(k) ? drop_stale_pages(*out) : fmo_tree_drop_history(*out));
    FM_THEN(rc, fm_txn_begin(&txn, fm_repo_store(c->repo)));
    FM_THEN(rc, put_tensors(k, version, txn));
    FM_THEN(rc, fmo_tree_put_json(txn, *out, "recipe.json", k->recipe));
    if (rc == FM_OK && k->log)
        rc = fmo_tree_put_json(txn, *out, "train_log.json", k->log);
    FM_THEN(rc, fm_txn_commit(txn, NULL));
    fm_txn_close(txn);
    return rc;
}

static fm_status digest_hex(const fm_json *v, char hex[FM_HEX_CHARS + 1])
{
    fm_buf text;
    fm_digest digest;
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, v, FM_JSON_CANONICAL);
    FM_THEN(rc, fm_sha256(&digest, text.data, text.len));
    if (rc == FM_OK)
        fm_digest_hex(&digest, hex);
    fm_buf_release(&text);
    return rc;
}

static fm_status land(fmo_blame_more *m, const fmo_blame_candidate *k, const fm_tree *tree,
                      const char *branch)
{
    const fmo_blame *b = m->b;
    const fm_version *v = &b->version[0].commit, *culprit = &b->version[b->history.culprit].commit;
    const fm_oid parent[2] = {v->oid, culprit->parent[0]};
    const fm_json *data = fm_json_get(k->recipe, "data");
    char recipe_hex[FM_HEX_CHARS + 1], data_hex[FM_HEX_CHARS + 1];
    fm_oid oid;
    fm_tally tally;
    char *message = fm_asprintf("repair %s: %s", m->case_spec ? m->case_spec : "a prompt", k->what);
    fm_status rc = message ? digest_hex(k->recipe, recipe_hex) : FM_ENOMEM;
    if (rc == FM_OK && trained(k))
        rc = digest_hex(fm_json_count(data) == 1 ? fm_json_at(data, 0) : data, data_hex);
    const fm_landing l = {.branch = branch,
                          .expect_old = &v->oid,
                          .tree = tree,
                          .gate = true,
                          .quiet = true,
                          .commit = {.kind = trained(k) ? culprit->kind : "edit",
                                     .message = message,
                                     .parent = parent,
                                     .parent_count = trained(k) ? 2 : 1,
                                     .recipe_digest = recipe_hex,
                                     .data_digest = trained(k) ? data_hex : NULL}};
    FM_THEN(rc, fmo_version_candidate(b->c, &l, &oid, &tally));
    FM_THEN(rc, fmo_version_land(b->c, &l, &oid, &tally));
    if (rc == FM_OK) {
        char hex[41];
        fm_oid_hex(&oid, hex);
        m->repairs.committed = fm_strdup(hex);
    }
    fm_free(message);
    return rc;
}

fm_status fmo_blame_fix(fmo_blame_more *m, const char *branch)
{
    const fmo_blame_candidate *k = m->repairs.count ? &m->repairs.item[0] : NULL;
    fm_tree *version = NULL, *tree = NULL;
    if (!k || !k->offered)
        return fm_fail(FM_EREFUSED,
                       "no candidate repairs the case without breaking another: nothing was "
                       "committed");
    fm_status rc = fm_version_tree(m->b->c->repo, &version, &m->b->version[0].commit.oid);
    FM_THEN(rc, make_tree(m->b->c, k, version, &tree));
    FM_THEN(rc, land(m, k, tree, branch));
    fm_tree_free(tree);
    fm_tree_free(version);
    return rc;
}
