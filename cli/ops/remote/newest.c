/* newest.c - the tensors of the newest versions, in a clone of the lineage alone (clone
 * --depth). */
#include <string.h>

#include "cli/ops/remote/fetch_parts.h"
#include "store/base/cancel.h"
#include "store/base/map.h"
#include "store/base/mem.h"

typedef struct newest {
    fm_ops *c;
    fm_map *met; /* version -> itself */
    fm_oid *todo;
    size_t count, cap;
    fm_map *seen; /* of ids */
    fm_digest *id;
    size_t ids, id_cap;
} newest;

static fm_status meet(newest *n, const fm_oid *oid)
{
    if (fm_map_has(n->met, oid->b, sizeof oid->b))
        return FM_OK;
    FM_TRY(fm_map_put(n->met, oid->b, sizeof oid->b, n, NULL));
    FM_TRY(fm_grow(&n->todo, &n->cap, n->count + 1, sizeof *n->todo));
    n->todo[n->count++] = *oid;
    return FM_OK;
}

static fm_status take_tree(newest *n, const fm_oid *oid)
{
    fm_tree *tree = NULL;
    fm_status rc = fm_version_tree(n->c->repo, &tree, oid);
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_FILE || fm_map_has(n->seen, e->id.b, sizeof e->id.b))
            continue;
        rc = fm_map_put(n->seen, e->id.b, sizeof e->id.b, n, NULL);
        FM_THEN(rc, fm_grow(&n->id, &n->id_cap, n->ids + 1, sizeof *n->id));
        if (rc == FM_OK)
            n->id[n->ids++] = e->id;
    }
    fm_tree_free(tree);
    return rc;
}

/* As git counts: the tips, and all versions fewer than depth steps behind them. */
static fm_status gather(newest *n, const fm_oid *tip, size_t tips, uint64_t depth)
{
    size_t at = 0;
    for (size_t i = 0; i < tips; i++)
        FM_TRY(meet(n, &tip[i]));
    for (; depth > 0 && at < n->count; depth--) {
        for (const size_t end = n->count; at < end; at++) {
            const fm_oid oid = n->todo[at];
            fm_version version;
            FM_TRY(fm_go_on());
            FM_TRY(take_tree(n, &oid));
            FM_TRY(fm_version_read(n->c->repo, &version, &oid));
            fm_status rc = FM_OK;
            for (uint32_t k = 0; rc == FM_OK && k < version.parent_count; k++)
                rc = meet(n, &version.parent[k]);
            fm_version_release(&version);
            FM_TRY(rc);
        }
    }
    return FM_OK;
}

fm_status fmo_bring_newest(fm_ops *c, fmo_remote *m, const fm_oid *tip, size_t tips, uint64_t depth,
                           fm_travel *out)
{
    newest n = {.c = c};
    fm_travel t;
    size_t absent = 0;
    fm_status rc = fm_map_new(&n.met);
    FM_THEN(rc, fm_map_new(&n.seen));
    FM_THEN(rc, gather(&n, tip, tips, depth));
    if (rc == FM_OK && n.ids) {
        rc = fm_remote_bring(m->at, c->repo, n.id, n.ids, fmo_remote_progress, c, &absent, &t);
        if (rc == FM_OK && absent)
            rc = fm_fail(FM_ENOTFOUND, "%s: lacks %zu of its newest versions' tensors",
                         fm_remote_url(m->at), absent);
        out->objects += t.objects;
        out->bytes += t.bytes;
        out->wire_in = t.wire_in;
        out->wire_out = t.wire_out;
    }
    fm_map_free(n.met);
    fm_map_free(n.seen);
    fm_free(n.todo);
    fm_free(n.id);
    return rc;
}
