/* gc_packs.c - the packs on disk, and which of their objects are reached. The records' heads are
 * read, not the index: the packs are the truth. The index only tells which packs are missing. */
#include <stdio.h>
#include <string.h>

#include "store/gc/gc_priv.h"

/* ==== looking ============================================================================== */

static fm_status object_of(fms_gc *g, const fm_digest *id, uint32_t *out)
{
    *out = fms_gc_find(g, id);
    if (*out != FMS_GC_NONE)
        return FM_OK;
    if (g->objects >= FMS_GC_NONE - 1)
        return fm_fail(FM_ELIMIT, "gc: more than 4,294,967,293 objects");
    FM_TRY(fm_grow(&g->object, &g->object_cap, g->objects + 1, sizeof *g->object));
    *out = (uint32_t)g->objects++;
    fms_gc_object *o = &g->object[*out];
    memset(o, 0, sizeof *o);
    o->id = *id;
    o->first = FMS_GC_NONE;
    o->depth = UINT32_MAX;
    return fm_map_put(g->by_id, id->b, FM_DIGEST_BYTES, (void *)((uintptr_t)*out + 1), NULL);
}

uint32_t fms_gc_find(const fms_gc *g, const fm_digest *id)
{
    uintptr_t at = (uintptr_t)fm_map_get(g->by_id, id->b, FM_DIGEST_BYTES);
    return at ? (uint32_t)(at - 1) : FMS_GC_NONE;
}

static fm_status add_parents(fms_gc *g, const fms_record *r)
{
    if (g->parents + r->parent_count >= FMS_GC_NONE)
        return fm_fail(FM_ELIMIT, "gc: more than 4,294,967,293 delta parents");
    FM_TRY(fm_grow(&g->parent, &g->parent_cap, g->parents + r->parent_count, sizeof *g->parent));
    for (uint32_t i = 0; i < r->parent_count; i++)
        g->parent[g->parents++] = r->parent[i];
    return FM_OK;
}

static fm_status on_record(void *ctx, uint64_t offset, const fms_record *r)
{
    fms_gc *g = ctx;
    uint32_t object = FMS_GC_NONE;
    fm_status rc = g->records >= FMS_GC_NONE - 1 ? fm_fail(FM_ELIMIT, "gc: too many records")
                                                 : object_of(g, &r->id, &object);
    FM_THEN(rc, fm_grow(&g->record, &g->record_cap, g->records + 1, sizeof *g->record));
    if (rc != FM_OK || object == FMS_GC_NONE)
        return rc;
    fms_gc_object *o = &g->object[object];
    fms_gc_record *rec = &g->record[g->records];
    memset(rec, 0, sizeof *rec);
    rec->object = object;
    rec->pack = (uint32_t)g->packs - 1;
    rec->offset = offset;
    rec->stored_bytes = r->stored_bytes;
    rec->depth = r->depth;
    rec->recipe = r->recipe.op != FMS_OP_NONE;
    rec->parent_at = (uint32_t)g->parents;
    rec->parent_count = r->parent_count;
    rec->next = o->first;
    o->first = (uint32_t)g->records++;
    o->depth = FM_MIN(o->depth, r->depth);
    o->stored_bytes += r->stored_bytes;
    g->pack[rec->pack].count++;
    return add_parents(g, r);
}

static fm_status on_fault(void *ctx, const char *text)
{
    fms_gc *g = ctx;
    if (!g->pack[g->packs - 1].faulty)
        snprintf(g->fault, sizeof g->fault, "%s", text);
    g->pack[g->packs - 1].faulty = true;
    return FM_OK;
}

/* Counts a pack that cannot be read; g->fault says why. */
static fm_status note_unreadable(fms_gc *g, const fms_gc_pack *p)
{
    bool newer = false; /* intact, so a newer fmstore wrote it */
    fm_status rc = fms_pack_is_intact(fm_span_of(p->map.data, p->map.len), p->name, &newer);
    if (g->unreadable++ == 0)
        snprintf(g->trouble, sizeof g->trouble,
                 newer ? "pack %s. Upgrade this fmstore"
                       : "pack %s, and its bytes do not have the SHA-256 of its name. Mend it with "
                         "'fmstore fsck --repair FROM': FROM is this repository itself, another "
                         "one with its versions, or what was imported",
                 g->fault);
    g->upgrade = newer && (g->upgrade || g->unreadable == 1);
    return rc;
}

static fm_status look_at(fms_gc *g, const char *path, const char *name)
{
    FM_TRY(fm_grow(&g->pack, &g->pack_cap, g->packs + 1, sizeof *g->pack));
    fms_gc_pack *p = &g->pack[g->packs];
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->first = (uint32_t)g->records;
    fm_status rc = fm_file_identity(p->identity, path);
    FM_THEN(rc, fm_map_file(&p->map, path));
    if (rc == FM_ENOTFOUND)
        return fm_fail(FM_ECONFLICT, "pack %s went away while gc looked: run it again", name);
    if (rc != FM_OK)
        return rc;
    g->packs++;
    fms_pack_visitor v = {g, on_record, on_fault};
    rc = fms_pack_walk(fm_span_of(p->map.data, p->map.len), name, &v);
    p = &g->pack[g->packs - 1];
    p->sound = rc == FM_OK;
    if (rc != FM_OK && rc != FM_ECORRUPT && rc != FM_EVERSION)
        return rc;
    if (p->sound && !p->faulty)
        return FM_OK;
    if (!p->sound)
        snprintf(g->fault, sizeof g->fault, "%s", fm_error_text());
    return note_unreadable(g, p);
}

/* ==== damage =============================================================================== */

static fms_gc_record *record_of(fms_gc *g, uint32_t object, const char *pack, uint64_t offset)
{
    for (uint32_t k = g->object[object].first; k != FMS_GC_NONE; k = g->record[k].next)
        if (g->record[k].offset == offset && strcmp(g->pack[g->record[k].pack].name, pack) == 0)
            return &g->record[k];
    return NULL;
}

static void least_sound_depth(fms_gc *g, uint32_t object)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t k = g->object[object].first; k != FMS_GC_NONE; k = g->record[k].next)
        if (!g->record[k].bad)
            least = FM_MIN(least, g->record[k].depth);
    if (least != UINT32_MAX)
        g->object[object].depth = least;
}

/* Takes over the index's marks of records that a full fsck found damaged. */
static fm_status take_marks(fms_gc *g, const fm_digest *id)
{
    fm_status rc = FM_OK;
    uint32_t at = fms_gc_find(g, id);
    for (uint32_t nth = 0; at != FMS_GC_NONE && rc == FM_OK; nth++) {
        fms_place place;
        char name[FM_HEX_CHARS + 1];
        uint64_t bytes;
        rc = fms_index_find(g->s->index, id, nth, &place);
        if (rc != FM_OK || !place.bad)
            continue;
        rc = fms_index_pack_at(g->s->index, place.pack, name, &bytes);
        fms_gc_record *rec = rc == FM_OK ? record_of(g, at, name, place.offset) : NULL;
        if (rec)
            rec->bad = g->pack[rec->pack].damaged = true;
    }
    if (at != FMS_GC_NONE)
        least_sound_depth(g, at);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

static fm_status collect_mark(void *ctx, const fm_digest *id)
{
    fm_buf_append(ctx, id->b, FM_DIGEST_BYTES);
    return FM_OK;
}

static fm_status look_for_damage(fms_gc *g)
{
    fm_buf ids;
    fm_buf_init(&ids, 0);
    pthread_mutex_lock(&g->s->mutex);
    fm_status rc = fms_index_bad(g->s->index, collect_mark, &ids);
    FM_THEN(rc, fm_buf_ok(&ids));
    for (size_t i = 0; rc == FM_OK && i < ids.len; i += FM_DIGEST_BYTES) {
        fm_digest id;
        memcpy(id.b, ids.data + i, FM_DIGEST_BYTES);
        rc = take_marks(g, &id);
    }
    pthread_mutex_unlock(&g->s->mutex);
    fm_buf_release(&ids);
    for (size_t i = 0; i < g->packs; i++)
        g->pack[i].damaged = g->pack[i].damaged || g->pack[i].faulty || !g->pack[i].sound;
    return rc;
}

static bool is_known(const fms_gc *g, const char *name)
{
    for (size_t i = 0; i < g->packs; i++)
        if (strcmp(g->pack[i].name, name) == 0)
            return true;
    return false;
}

/* Finds the packs that the index knows and packs/ lacks. */
static fm_status look_for_missing(fms_gc *g)
{
    char name[FM_HEX_CHARS + 1];
    uint64_t count = 0;
    pthread_mutex_lock(&g->s->mutex);
    fm_status rc = fms_store_refresh(g->s);
    FM_THEN(rc, fms_index_missing(g->s->index, name, &count));
    pthread_mutex_unlock(&g->s->mutex);
    g->missing = (size_t)count;
    if (rc == FM_OK && count && g->unreadable == 0)
        snprintf(g->trouble, sizeof g->trouble,
                 "pack %s is missing from packs/. Put it back; or let 'fmstore fsck' find that no "
                 "version needs it, with --repair FROM where one does",
                 name);
    return rc;
}

/* Whether some record of the object needs only whole objects. Chains are short: a few rounds do. */
static bool has_whole_record(const fms_gc *g, const fms_gc_object *o)
{
    for (uint32_t k = o->first; k != FMS_GC_NONE; k = g->record[k].next) {
        const fms_gc_record *rec = &g->record[k];
        bool whole = !(rec->bad && g->opts.quarantine);
        for (uint32_t n = 0; whole && n < rec->parent_count; n++) {
            uint32_t p = fms_gc_find(g, &g->parent[rec->parent_at + n]);
            whole = p != FMS_GC_NONE && g->object[p].whole;
        }
        if (whole)
            return true;
    }
    return false;
}

static void find_whole(fms_gc *g)
{
    bool more = true;
    for (size_t i = 0; i < g->objects; i++)
        g->object[i].whole = false;
    while (more) {
        more = false;
        for (size_t i = 0; i < g->objects; i++) {
            fms_gc_object *o = &g->object[i];
            if (o->whole || !has_whole_record(g, o))
                continue;
            o->whole = more = true;
        }
    }
}

/* Refuses while packs are unreadable or missing; with `quarantine` only if one is just newer. */
static fm_status refuse(const fms_gc *g)
{
    size_t others = g->unreadable + g->missing - 1;
    char more[48] = "";
    if (g->unreadable + g->missing == 0 || (g->opts.quarantine && !g->upgrade))
        return FM_OK;
    if (others)
        snprintf(more, sizeof more, "; and %zu more such packs", others);
    return fm_fail(g->upgrade && g->missing == 0 ? FM_EVERSION : FM_ECORRUPT,
                   "nothing was deleted: what the records of this pack need cannot be known: %s%s",
                   g->trouble, more);
}

fm_status fms_gc_look(fms_gc *g)
{
    fm_names files = {NULL, 0};
    fm_status rc = fm_list_dir(&files, g->s->packs_dir);
    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char name[FM_HEX_CHARS + 1];
        if (!fms_is_pack_name(files.name[i], name) || is_known(g, name))
            continue;
        char *path = fms_store_pack_path(g->s, name);
        rc = path ? look_at(g, path, name) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&files);
    FM_THEN(rc, look_for_missing(g));
    FM_THEN(rc, look_for_damage(g));
    if (rc == FM_OK)
        find_whole(g);
    return rc == FM_OK ? refuse(g) : rc;
}

void fms_gc_forget(fms_gc *g)
{
    for (size_t i = 0; i < g->packs; i++)
        fm_unmap_file(&g->pack[i].map);
    fm_free(g->pack);
    fm_free(g->record);
    fm_free(g->object);
    fm_free(g->parent);
    fm_free(g->stack);
    fm_map_free(g->by_id);
}

fm_status fms_gc_parse(const fms_gc *g, const fms_gc_record *rec, fms_record *out)
{
    const fms_gc_pack *p = &g->pack[rec->pack];
    size_t end = p->map.len - FMS_PACK_FOOTER_BYTES;
    return fms_record_parse(out, fm_span_of(p->map.data + rec->offset, end - (size_t)rec->offset),
                            p->name);
}

/* ==== reaching ============================================================================= */

static fm_status push(fms_gc *g, size_t *depth, uint32_t object)
{
    FM_TRY(fm_grow(&g->stack, &g->stack_cap, *depth + 1, sizeof *g->stack));
    g->stack[(*depth)++] = object;
    return FM_OK;
}

/* Pushes each object that a record of `object` needs. */
static fm_status each_parent(fms_gc *g, uint32_t object, size_t *depth)
{
    for (uint32_t r = g->object[object].first; r != FMS_GC_NONE; r = g->record[r].next) {
        const fms_gc_record *rec = &g->record[r];
        for (uint32_t k = 0; k < rec->parent_count; k++) {
            uint32_t p = fms_gc_find(g, &g->parent[rec->parent_at + k]);
            if (p != FMS_GC_NONE)
                FM_TRY(push(g, depth, p));
        }
    }
    return FM_OK;
}

static fm_status reach_from(fms_gc *g, uint32_t at, uint32_t root)
{
    size_t depth = 0;
    FM_TRY(push(g, &depth, at));
    while (depth > 0) {
        uint32_t i = g->stack[--depth];
        fms_gc_object *o = &g->object[i];
        if (o->root == root || o->root == FMS_ROOT_SHARED)
            continue;
        o->root = o->root == FMS_ROOT_NONE ? root : FMS_ROOT_SHARED;
        FM_TRY(each_parent(g, i, &depth));
    }
    return FM_OK;
}

static bool is_whole(const fms_gc *g, const fm_digest *id, uint32_t *at)
{
    *at = fms_gc_find(g, id);
    return *at != FMS_GC_NONE && g->object[*at].whole;
}

/* Where it is not: it may lie in a pack that was written since gc looked. */
static fm_status find_whole_one(fms_gc *g, const fm_digest *id, uint32_t *at, bool *whole)
{
    *whole = is_whole(g, id, at);
    if (*whole)
        return FM_OK;
    FM_TRY(fms_gc_look(g));
    *whole = is_whole(g, id, at);
    return FM_OK;
}

fm_status fms_gc_whole(fms_gc *g, const fm_digest *id, bool *out)
{
    uint32_t at;

    return find_whole_one(g, id, &at, out);
}

/* *yes: no pack has the object, and another repository does. Packs that came since gc looked may
 * have it, but a look for each such object would take hours with the gate closed. */
static fm_status is_elsewhere(fms_gc *g, const fm_digest *id, bool *yes)
{
    *yes = false;
    if (!g->opts.promised || fms_gc_find(g, id) != FMS_GC_NONE)
        return FM_OK;
    FM_TRY(g->opts.promised(g->opts.promised_ctx, id, yes));
    if (!*yes || g->looked)
        return FM_OK;
    g->looked = true;
    FM_TRY(fms_gc_look(g));
    *yes = fms_gc_find(g, id) == FMS_GC_NONE;
    return FM_OK;
}

fm_status fms_gc_reach(fms_gc *g, const fm_digest *id, uint32_t root)
{
    uint32_t at;
    bool whole;
    char hex[FM_HEX_CHARS + 1];
    FM_TRY(is_elsewhere(g, id, &whole));
    if (whole)
        return FM_OK;
    FM_TRY(find_whole_one(g, id, &at, &whole));
    if (whole)
        return reach_from(g, at, root);
    fm_digest_hex(id, hex);
    return fm_fail(FM_ECORRUPT,
                   "no pack holds object %s with all that it is coded against: 'fmstore fsck "
                   "--repair FROM' brings it back; or delete all versions that need it",
                   hex);
}

fm_status fms_gc_reach_held(fms_gc *g, const fm_digest *id)
{
    uint32_t at = fms_gc_find(g, id);
    return at == FMS_GC_NONE ? FM_OK : reach_from(g, at, FMS_ROOT_SHARED);
}

fm_status fms_gc_stay(fms_gc *g, const fm_digest *id)
{
    uint32_t at = fms_gc_find(g, id);
    if (at != FMS_GC_NONE)
        g->object[at].stay = true; /* fms_gc_settle keeps what it needs */
    return FM_OK;
}

void fms_gc_kept(const fms_gc *g, uint32_t root, uint64_t *objects, uint64_t *bytes)
{
    *objects = *bytes = 0;
    for (size_t i = 0; i < g->objects; i++)
        if (g->object[i].root == root) {
            *objects += 1;
            *bytes += g->object[i].stored_bytes;
        }
}

bool fms_gc_batch_over(const fms_gc *g, const fms_batch *b, bool *held)
{
    *held = false;
    if (b->time > g->opts.expire || g->opts.expire == INT64_MIN)
        return false;
    for (size_t i = 0; i < b->lease_count; i++)
        for (size_t k = 0; k < g->leases.count; k++)
            if (strcmp(b->lease[i], g->leases.lease[k].name) == 0) {
                *held = true;
                return false;
            }
    return true;
}

/* Objects that stay though they are not reached (in a pack too live to be rewritten, or still in
 * their grace) must stay readable: their parents stay too. */
fm_status fms_gc_settle(fms_gc *g)
{
    size_t depth = 0;

    for (size_t i = 0; i < g->objects; i++) {
        fms_gc_object *o = &g->object[i];
        const fms_batch *b = o->root == FMS_ROOT_NONE && !o->stay
                                 ? fms_condemned_object(g->condemned, &o->id)
                                 : NULL;
        bool held;
        o->goes = b && fms_gc_batch_over(g, b, &held);
    }
    for (uint32_t i = 0; i < g->objects; i++)
        if (!g->object[i].goes)
            FM_TRY(each_parent(g, i, &depth));
    while (depth > 0) {
        uint32_t i = g->stack[--depth];
        if (!g->object[i].goes)
            continue;
        g->object[i].goes = false;
        FM_TRY(each_parent(g, i, &depth));
    }
    return FM_OK;
}
