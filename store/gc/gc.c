/* gc.c - a run: condemn what is not reached, and remove what no process can need any more. */
#include "store/gc/gc.h"

#include <string.h>

#include "store/gc/gc_priv.h"

static fm_status read_leases(fms_gc *g);

/* Reads the leases for the first marking; condemn and enter read them again. */
static fm_status first_leases(fms_gc *g)
{
    fm_status rc = fms_gate_close(&g->gate, g->s->root);
    FM_THEN(rc, read_leases(g));
    fm_lock_drop(g->gate);
    g->gate = NULL;
    return rc;
}

fm_status fms_gc_open(fms_gc **out, fm_store *s, const fms_gc_opts *opts)
{
    *out = NULL;
    fms_gc *g = fm_calloc(1, sizeof *g);
    if (!g)
        return FM_ENOMEM;
    g->s = s;
    g->opts = *opts;
    char *path = fm_path_join(s->root, "gc.lock");
    fm_status rc = path ? fm_lock_take(&g->lock, path) : FM_ENOMEM;
    fm_free(path);
    FM_THEN(rc, fm_map_new(&g->git_gone));
    if (rc == FM_OK) {
        rc = fms_condemned_read(&g->condemned, s->root);
        rc = rc == FM_ECORRUPT ? FM_OK : rc; /* start with an empty list */
    }
    FM_THEN(rc, fm_map_new(&g->by_id));
    FM_THEN(rc, fms_gc_look(g));
    FM_THEN(rc, first_leases(g));
    if (rc != FM_OK) {
        fms_gc_close(g);
        return rc;
    }
    fms_gc_report *r = &g->report;
    for (size_t i = 0; i < g->packs; i++)
        r->pack_bytes_before += g->pack[i].map.len;
    r->packs_before = g->packs;
    *out = g;
    return FM_OK;
}

void fms_gc_close(fms_gc *g)
{
    if (!g)
        return;
    fm_lock_drop(g->gate);
    fm_lock_drop(g->lock);
    fms_gc_forget(g);
    fms_condemned_free(g->condemned);
    fms_leases_release(&g->leases);
    fm_map_free(g->git_gone);
    fm_free(g);
}

const fms_leases *fms_gc_leases(const fms_gc *g)
{
    return &g->leases;
}

const fms_gc_report *fms_gc_result(const fms_gc *g)
{
    return &g->report;
}

/* ==== condemning =========================================================================== */

static fm_status reach_held(fms_gc *g)
{
    const fm_buf *objects = &g->leases.held[FMS_HOLD_OBJECT];
    const fm_buf *packs = &g->leases.held[FMS_HOLD_PACK];
    fm_status rc = FM_OK;
    fm_digest id;
    for (size_t at = 0; rc == FM_OK && at < objects->len; at += FM_DIGEST_BYTES) {
        memcpy(id.b, objects->data + at, FM_DIGEST_BYTES);
        rc = fms_gc_reach_held(g, &id);
    }
    for (size_t at = 0; rc == FM_OK && at < packs->len; at += FM_DIGEST_BYTES) {
        char name[FM_HEX_CHARS + 1];
        memcpy(id.b, packs->data + at, FM_DIGEST_BYTES);
        fm_digest_hex(&id, name);
        for (size_t i = 0; i < g->packs; i++) {
            fms_gc_pack *p = &g->pack[i];
            if (strcmp(p->name, name) != 0)
                continue;
            p->fate = FMS_FATE_KEEP;
            p->held = true;
            for (uint32_t k = 0; rc == FM_OK && k < p->count; k++)
                rc = fms_gc_reach_held(g, &g->object[g->record[p->first + k].object].id);
        }
    }
    return rc;
}

static fm_status read_leases(fms_gc *g)
{
    fms_leases_release(&g->leases);
    FM_TRY(fms_leases_read(&g->leases, g->s->root));
    return reach_held(g);
}

/* Copies the old list's batches, without ids that are reached again or gone. */
static fm_status carry_over(fms_gc *g, fms_condemned *to, fm_map *git)
{
    const fms_condemned *from = g->condemned;

    for (size_t b = 0; b < from->batch_count; b++) {
        FM_TRY(fms_condemned_add_batch(to, from->batch[b].time));
        for (size_t k = 0; k < from->batch[b].lease_count; k++)
            FM_TRY(fms_condemned_add_lease(to, from->batch[b].lease[k]));
    }
    for (size_t i = 0; i < fm_map_count(from->object); i++) {
        fm_digest id;
        memcpy(id.b, fm_map_key_at(from->object, i).data, FM_DIGEST_BYTES);
        uint32_t at = fms_gc_find(g, &id);
        uintptr_t batch = (uintptr_t)fm_map_value_at(from->object, i);
        if (at != FMS_GC_NONE && g->object[at].root == FMS_ROOT_NONE)
            FM_TRY(fms_condemned_add_object(to, (size_t)batch - 1, &id));
    }
    for (size_t i = 0; i < fm_map_count(from->git); i++) {
        fm_span id = fm_map_key_at(from->git, i);
        uintptr_t batch = (uintptr_t)fm_map_value_at(from->git, i);
        if (fm_map_has(git, id.data, id.len))
            FM_TRY(fms_condemned_add_git(to, (size_t)batch - 1, id.data));
    }
    return FM_OK;
}

static fm_status add_new(fms_gc *g, fms_condemned *to, const fm_map *git)
{
    FM_TRY(fms_condemned_add_batch(to, g->opts.now));
    size_t batch = to->batch_count - 1;
    for (size_t i = 0; i < g->leases.count; i++)
        if (g->leases.lease[i].writes)
            FM_TRY(fms_condemned_add_lease(to, g->leases.lease[i].name));
    for (size_t i = 0; i < g->objects; i++) {
        const fms_gc_object *o = &g->object[i];
        if (o->root != FMS_ROOT_NONE || fms_condemned_object(to, &o->id))
            continue;
        g->report.new_objects++;
        g->report.new_bytes += o->stored_bytes;
        FM_TRY(fms_condemned_add_object(to, batch, &o->id));
    }
    for (size_t i = 0; i < fm_map_count(git); i++) {
        const uint8_t *id = fm_map_key_at(git, i).data;
        g->report.git_new += !fms_condemned_git(to, id);
        FM_TRY(fms_condemned_add_git(to, batch, id));
    }
    return FM_OK;
}

static fm_status next_list(fms_gc *g, const uint8_t *git_ids, size_t count, fms_condemned **out)
{
    fm_map *git = NULL;
    fm_status rc = fms_condemned_new(out);
    FM_THEN(rc, fm_map_new(&git));
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = fm_map_put(git, git_ids + i * FMS_GIT_ID_BYTES, FMS_GIT_ID_BYTES, g, NULL);
    FM_THEN(rc, carry_over(g, *out, git));
    if (rc == FM_OK && !g->opts.quarantine)
        rc = add_new(g, *out, git);
    fm_map_free(git);
    return rc;
}

fm_status fms_gc_condemn(fms_gc *g, const uint8_t *git_ids, size_t count)
{
    fms_condemned *next = NULL;
    fm_status rc = fms_gate_close(&g->gate, g->s->root);
    FM_THEN(rc, read_leases(g));
    FM_THEN(rc, next_list(g, git_ids, count, &next));
    if (rc == FM_OK && !g->opts.dry_run) {
        rc = fms_condemned_write(next, g->s->root, &g->sum);
        g->written = rc == FM_OK;
    }
    if (rc == FM_OK) {
        fms_condemned_free(g->condemned);
        g->condemned = next;
        next = NULL;
    }
    fms_condemned_free(next);
    fm_lock_drop(g->gate);
    g->gate = NULL;
    for (size_t i = 0; rc == FM_OK && i < g->objects; i++) {
        const fms_gc_object *o = &g->object[i];
        g->report.objects++;
        g->report.bytes += o->stored_bytes;
        g->report.live_objects += o->root != FMS_ROOT_NONE;
        g->report.live_bytes += o->root != FMS_ROOT_NONE ? o->stored_bytes : 0;
    }
    return rc;
}

/* ==== removing ============================================================================= */

fm_status fms_gc_enter(fms_gc *g)
{
    fm_digest now;
    if (g->opts.dry_run)
        return FM_OK;
    fm_status rc = fms_gate_close(&g->gate, g->s->root);
    FM_THEN(rc, fms_condemned_sum(&now, g->s->root));
    if (rc == FM_OK && (!g->written || !fm_digest_eq(&now, &g->sum)))
        rc = fm_fail(FM_ECONFLICT,
                     "%s/condemned was changed while gc ran; nothing was deleted: run gc again",
                     g->s->root);
    if (rc == FM_OK) /* new packs must be readable too, and their objects keep their parents */
        rc = fms_gc_look(g);
    return rc == FM_OK ? read_leases(g) : rc;
}

bool fms_gc_git_condemned(const fms_gc *g, const uint8_t *id)
{
    return fms_condemned_git(g->condemned, id) != NULL;
}

bool fms_gc_git_goes(const fms_gc *g, const uint8_t *id)
{
    bool held;
    const fms_batch *b = fms_condemned_git(g->condemned, id);
    return b && fms_gc_batch_over(g, b, &held);
}

void fms_gc_git_gone(fms_gc *g, const uint8_t *id)
{
    if (fm_map_put(g->git_gone, id, FMS_GIT_ID_BYTES, g, NULL) == FM_OK)
        g->report.git_gone++;
}

fm_status fms_gc_git_stays(fms_gc *g)
{
    fm_map_free(g->git_gone);
    g->git_gone = NULL;
    g->report.git_gone = 0;
    return fm_map_new(&g->git_gone);
}

/* Whether the pack is not needed any more: each of its objects goes, or is safe in another pack. In
 * a damaged pack this must hold for the sound records; no reached object needs the others. */
static bool may_go(const fms_gc *g, const fms_gc_pack *p)
{
    if (p->fate != FMS_FATE_REPACK || p->held || (p->damaged && !g->opts.quarantine))
        return false;
    for (uint32_t k = 0; k < p->count; k++) {
        const fms_gc_record *rec = &g->record[p->first + k];
        const fms_gc_object *o = &g->object[rec->object];
        if (!o->goes && !o->safe && !(rec->bad && g->opts.quarantine))
            return false;
    }
    return true;
}

/* Whether the file is the one that gc read: a writer may have put the same pack into place
 * again. */
static bool same_file(const fms_gc *g, const fms_gc_pack *p, const char *path)
{
    uint64_t now[2];
    for (size_t i = 0; i < g->packs; i++)
        if (g->pack[i].written && strcmp(g->pack[i].name, p->name) == 0)
            return false;
    return fm_file_identity(now, path) == FM_OK && now[0] == p->identity[0] &&
           now[1] == p->identity[1];
}

static fm_status drop_rows(fms_gc *g)
{
    for (size_t i = 0; i < g->packs; i++) {
        const fms_gc_pack *p = &g->pack[i];
        int64_t row;
        bool known;
        if (p->fate != FMS_FATE_GONE)
            continue;
        FM_TRY(fms_index_put_pack(g->s->index, p->name, p->map.len, true, &row, &known));
        FM_TRY(fms_index_drop_pack(g->s->index, row));
    }
    return FM_OK;
}

/* Moves a damaged pack to quarantine/: its bytes may be the only copy of something. */
static fm_status set_aside(const fms_gc *g, const char *name, const char *path)
{
    char *dir = fm_path_join(g->s->root, "quarantine");
    char *to = dir ? fm_asprintf("%s/%s" FMS_PACK_SUFFIX, dir, name) : NULL;
    fm_status rc = to ? fm_make_dirs(dir) : FM_ENOMEM;
    FM_THEN(rc, fm_move_file(path, to));
    fm_free(to);
    fm_free(dir);
    return rc;
}

static fm_status remove_files(fms_gc *g)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < g->packs; i++) {
        if (g->pack[i].fate != FMS_FATE_GONE)
            continue;
        char *path = fms_store_pack_path(g->s, g->pack[i].name);
        rc = !path                ? FM_ENOMEM
             : g->pack[i].damaged ? set_aside(g, g->pack[i].name, path)
                                  : fm_remove_file(path);
        fm_free(path);
        fm_unmap_file(&g->pack[i].map); /* else its blocks would be freed only when gc ends */
    }
    return rc == FM_OK ? fm_fsync_dir(g->s->packs_dir) : rc;
}

/* Drops the rows first, durably; then removes the files within a change of the index, so that no
 * process scans a pack into it that is just being removed. */
static fm_status remove_packs(fms_gc *g)
{
    fm_store *s = g->s;
    fm_lock *lock = NULL;
    FM_TRY(fm_lock_take(&lock, s->lock_path));
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_index_durable(s->index, true);
    for (int pass = 0; rc == FM_OK && pass < 2; pass++) {
        rc = fms_index_begin(s->index);
        if (rc != FM_OK)
            break;
        rc = drop_rows(g);
        if (rc == FM_OK && pass == 1)
            rc = remove_files(g);
        rc = fms_index_end(s->index, rc);
    }
    fm_ignore(fms_index_durable(s->index, false), "more is synced than need be");
    pthread_mutex_unlock(&s->mutex);
    fm_lock_drop(lock);
    return rc;
}

static void count_result(fms_gc *g)
{
    fms_gc_report *r = &g->report;
    r->packs_after = g->opts.dry_run ? r->packs_written : 0;
    for (size_t i = 0; i < g->packs; i++)
        if (g->pack[i].fate != FMS_FATE_GONE) {
            r->packs_after++;
            r->pack_bytes_after += g->pack[i].map.len;
        }
    for (size_t i = 0; i < g->objects; i++) {
        const fms_gc_object *o = &g->object[i];
        const fms_batch *b =
            o->root == FMS_ROOT_NONE ? fms_condemned_object(g->condemned, &o->id) : NULL;
        bool held = false, left = false;
        if (!b)
            continue;
        for (uint32_t k = o->first; k != FMS_GC_NONE; k = g->record[k].next)
            left = left || g->pack[g->record[k].pack].fate != FMS_FATE_GONE;
        uint64_t *count = &r->waiting_objects, *bytes = &r->waiting_bytes;
        if (o->goes && !left)
            count = &r->gone_objects, bytes = &r->gone_bytes;
        else if (o->goes)
            count = &r->stuck_objects, bytes = &r->stuck_bytes;
        else if (!fms_gc_batch_over(g, b, &held) && held)
            count = &r->held_objects, bytes = &r->held_bytes;
        *count += 1;
        *bytes += o->stored_bytes;
    }
}

fm_status fms_gc_remove(fms_gc *g)
{
    bool any = false;
    fm_status rc = fms_gc_settle(g);
    for (size_t i = 0; rc == FM_OK && i < g->packs; i++) {
        fms_gc_pack *p = &g->pack[i];
        if (!may_go(g, p))
            continue;
        char *path = fms_store_pack_path(g->s, p->name);
        if (!path)
            rc = FM_ENOMEM;
        else if (g->opts.dry_run || same_file(g, p, path))
            p->fate = FMS_FATE_GONE;
        any = any || p->fate == FMS_FATE_GONE;
        fm_free(path);
    }
    if (rc == FM_OK && any && !g->opts.dry_run)
        rc = remove_packs(g);
    if (rc == FM_OK)
        count_result(g);
    return rc;
}

static bool is_left(const fms_gc *g, const fm_digest *id)
{
    uint32_t at = fms_gc_find(g, id);
    if (at == FMS_GC_NONE || g->object[at].root != FMS_ROOT_NONE)
        return false;
    for (uint32_t k = g->object[at].first; k != FMS_GC_NONE; k = g->record[k].next)
        if (g->pack[g->record[k].pack].fate != FMS_FATE_GONE)
            return true;
    return false;
}

static fm_status write_rest(fms_gc *g)
{
    fms_condemned *rest = NULL;
    const fms_condemned *from = g->condemned;
    fm_status rc = fms_condemned_new(&rest);
    for (size_t b = 0; rc == FM_OK && b < from->batch_count; b++) {
        rc = fms_condemned_add_batch(rest, from->batch[b].time);
        for (size_t k = 0; rc == FM_OK && k < from->batch[b].lease_count; k++)
            rc = fms_condemned_add_lease(rest, from->batch[b].lease[k]);
    }
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(from->object); i++) {
        fm_digest id;
        memcpy(id.b, fm_map_key_at(from->object, i).data, FM_DIGEST_BYTES);
        if (is_left(g, &id))
            rc = fms_condemned_add_object(
                rest, (size_t)(uintptr_t)fm_map_value_at(from->object, i) - 1, &id);
    }
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(from->git); i++) {
        fm_span id = fm_map_key_at(from->git, i);
        if (!fm_map_has(g->git_gone, id.data, id.len))
            rc = fms_condemned_add_git(rest, (size_t)(uintptr_t)fm_map_value_at(from->git, i) - 1,
                                       id.data);
    }
    FM_THEN(rc, fms_condemned_write(rest, g->s->root, NULL));
    fms_condemned_free(rest);
    return rc;
}

fm_status fms_gc_leave(fms_gc *g)
{
    fm_status rc = g->opts.dry_run ? FM_OK : write_rest(g);
    fm_lock_drop(g->gate);
    g->gate = NULL;
    return rc;
}
