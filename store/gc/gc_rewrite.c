/* gc_rewrite.c - copies the needed objects of packs that are mostly dead or are repacked.
 *
 * Each object of such a pack is decoded and compared with its digests before it counts as safe; an
 * object that does not decode keeps its pack in place. Records are copied as they are, unless their
 * chain is too deep or the slow level was requested: then they are coded again, against the nearest
 * ancestor that is shallow enough. Of an object's records the one of least depth is kept: records
 * of least depth never lead in a circle, whatever two writers stored against each other. The order
 * is that of the packs' names and of the records in them, so the same packs give the same new ones.
 * A run that is killed leaves some objects in two packs, which the next run cleans up. */
#include <string.h>

#include "store/gc/gc_priv.h"
#include "store/gc/room.h"
#include "store/pack/pack_writer.h"

#define PACK_BYTES_DEFAULT ((uint64_t)2 << 30)

typedef struct rewrite {
    fms_gc *g;
    fms_coder *coder;
    fms_packer packer;
    bool open;
    uint32_t features;           /* features of the packs to be written */
    uint8_t *leaf, *parent_leaf; /* FM_LEAF_BYTES each */
    fms_leaf_row *rows;
    size_t row_cap;
    fm_buf payload;
    uint32_t *fresh; /* objects of the pack being written */
    bool *recoded;   /* for each of fresh */
    size_t fresh_count, fresh_cap, recoded_cap;
    uint64_t done_bytes, total_bytes;
} rewrite;

/* ==== plan ================================================================================= */

static uint64_t pack_limit(const fms_gc *g)
{
    return g->opts.pack_bytes ? g->opts.pack_bytes : PACK_BYTES_DEFAULT;
}

/* A record of least depth of the object in a pack that stays, or FMS_GC_NONE. */
static uint32_t staying_record(const fms_gc *g, const fms_gc_object *o)
{
    for (uint32_t k = o->first; k != FMS_GC_NONE; k = g->record[k].next) {
        const fms_gc_record *rec = &g->record[k];
        const fms_gc_pack *p = &g->pack[rec->pack];
        if (!rec->bad && rec->depth == o->depth && p->sound && p->fate == FMS_FATE_KEEP)
            return k;
    }
    return FMS_GC_NONE;
}

static bool is_deep(const fms_gc *g, const fms_gc_pack *p)
{
    for (uint32_t k = 0; k < p->count; k++) {
        const fms_gc_record *rec = &g->record[p->first + k];
        if (rec->depth > g->opts.depth && !g->object[rec->object].goes)
            return true;
    }
    return false;
}

static void weigh(fms_gc *g, fms_gc_pack *p)
{
    p->needed_bytes = p->dead_bytes = 0;
    for (uint32_t k = 0; k < p->count; k++) {
        const fms_gc_record *rec = &g->record[p->first + k];
        *(g->object[rec->object].goes ? &p->dead_bytes : &p->needed_bytes) += rec->stored_bytes;
    }
}

/* Whether all its objects are in other packs too: after a killed run, or two writers at once. */
static bool is_redundant(const fms_gc *g, fms_gc_pack *p)
{
    bool yes = p->count > 0;
    p->fate = FMS_FATE_REPACK; /* for staying_record */
    for (uint32_t k = 0; yes && k < p->count; k++) {
        const fms_gc_object *o = &g->object[g->record[p->first + k].object];
        yes = o->goes || staying_record(g, o) != FMS_GC_NONE;
    }
    p->fate = FMS_FATE_KEEP;
    return yes;
}

static void plan(fms_gc *g)
{
    size_t folded = 0;
    fms_gc_pack *last = NULL;
    for (size_t i = 0; i < g->packs; i++) {
        fms_gc_pack *p = &g->pack[i];
        weigh(g, p);
        if (p->held)
            continue;
        if (p->damaged) {
            p->fate = g->opts.quarantine ? FMS_FATE_REPACK : FMS_FATE_KEEP;
            continue;
        }
        bool mostly_dead = p->dead_bytes >= p->needed_bytes;
        bool small = g->opts.repack && (g->opts.repack_all || p->map.len < pack_limit(g) / 4);
        bool deep = g->opts.repack && is_deep(g, p);
        if (!mostly_dead && !small && !deep)
            continue;
        p->fate = FMS_FATE_REPACK;
        if (!mostly_dead && !deep && p->dead_bytes == 0) {
            folded++;
            last = p;
        }
    }
    if (folded == 1 && last && !g->opts.slow) { /* a single pack would be written as it is */
        bool others = false;
        for (size_t i = 0; i < g->packs; i++)
            others = others || (&g->pack[i] != last && g->pack[i].fate == FMS_FATE_REPACK &&
                                g->pack[i].needed_bytes > 0);
        if (!others)
            last->fate = FMS_FATE_KEEP;
    }
    for (size_t i = 0; i < g->packs; i++) {
        fms_gc_pack *p = &g->pack[i];
        if (p->fate == FMS_FATE_KEEP && !p->held && !p->damaged && is_redundant(g, p))
            p->fate = FMS_FATE_REPACK;
    }
}

/* ==== verifying ============================================================================ */

static fm_status advance(rewrite *w, uint64_t bytes)
{
    const fms_gc_opts *o = &w->g->opts;
    w->done_bytes += bytes;
    if (o->progress && o->progress(o->ctx, w->done_bytes, FM_MAX(w->total_bytes, w->done_bytes)))
        return fm_fail(FM_ECANCELLED, "stopped; what was written so far is kept");
    return FM_OK;
}

/* FM_OK with rec->bad set: the record does not decode. */
static fm_status verify_record(rewrite *w, fms_gc_record *rec, fms_record *r)
{
    fm_status rc = fms_gc_parse(w->g, rec, r);
    FM_THEN(rc, fms_record_verify(w->g->s, w->coder, r, w->leaf));
    rec->bad = fms_is_damage(rc);
    if (rec->bad) {
        w->g->report.bad_objects++;
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* ==== writing ============================================================================== */

/* Checks a record of the new pack, which is mapped again: a copied record must have the same bytes,
 * a recoded one must decode to the digests. */
static fm_status check_fresh(rewrite *w, size_t i, const uint8_t *bytes, const fms_record *r)
{
    fms_gc *g = w->g;
    fms_gc_object *o = &g->object[w->fresh[i]];
    if (!fm_digest_eq(&o->id, &r->id))
        return fm_fail(FM_ECORRUPT, "gc: the new pack has its records in another order");
    fm_status rc = FM_OK;
    if (w->recoded[i]) {
        rc = fms_record_verify(w->g->s, w->coder, r, w->leaf);
    } else {
        bool same = false;
        for (uint32_t k = o->first; !same && k != FMS_GC_NONE; k = g->record[k].next) {
            const fms_gc_record *rec = &g->record[k];
            same = !rec->bad && rec->depth == r->depth && rec->stored_bytes == r->stored_bytes &&
                   memcmp(g->pack[rec->pack].map.data + rec->offset, bytes,
                          (size_t)r->stored_bytes) == 0;
        }
        if (!same)
            rc = fm_fail(FM_ECORRUPT, "gc: a record was not copied as it was: is the disk sound?");
    }
    o->safe = rc == FM_OK;
    o->pending = false;
    return rc;
}

typedef struct fresh_walk {
    rewrite *w;
    const uint8_t *pack;
    size_t at;
} fresh_walk;

static fm_status on_fresh(void *ctx, uint64_t offset, const fms_record *r)
{
    fresh_walk *f = ctx;
    if (f->at >= f->w->fresh_count)
        return fm_fail(FM_ECORRUPT, "gc: the new pack has too many records");
    return check_fresh(f->w, f->at++, f->pack + offset, r);
}

static fm_status check_pack(rewrite *w, const fms_gc_pack *p)
{
    fresh_walk f = {w, p->map.data, 0};
    fms_pack_visitor v = {&f, on_fresh, NULL};
    FM_TRY(fms_pack_walk(fm_span_of(p->map.data, p->map.len), p->name, &v));
    if (f.at != w->fresh_count)
        return fm_fail(FM_ECORRUPT, "gc: the new pack %s lacks records", p->name);
    return FM_OK;
}

/* If the new pack has the name of an old one, they are the same file: it is not gone. */
static void not_gone(fms_gc *g, const char *name)
{
    for (size_t i = 0; i < g->packs; i++)
        if (!g->pack[i].written && strcmp(g->pack[i].name, name) == 0) {
            fm_unmap_file(&g->pack[g->packs - 1].map);
            g->packs--;
            g->pack[i].written = true;
            g->pack[i].fate = FMS_FATE_KEEP;
            g->report.packs_written--;
            return;
        }
}

static fm_status end_pack(rewrite *w)
{
    fms_gc *g = w->g;
    if (!w->open)
        return FM_OK;
    FM_TRY(fm_grow(&g->pack, &g->pack_cap, g->packs + 1, sizeof *g->pack));
    fms_gc_pack *p = &g->pack[g->packs];
    memset(p, 0, sizeof *p);
    FM_TRY(fms_packer_publish(&w->packer));
    memcpy(p->name, w->packer.name, sizeof p->name);
    char *path = fms_store_pack_path(g->s, p->name);
    fm_status rc = path ? fm_map_file(&p->map, path) : FM_ENOMEM;
    fm_free(path);
    if (rc == FM_OK) {
        p->sound = p->written = true;
        g->packs++;
        g->report.packs_written++;
        rc = check_pack(w, p);
        not_gone(g, p->name);
    }
    fms_packer_release(&w->packer);
    w->open = false;
    w->fresh_count = 0;
    return rc;
}

static fm_status begin_pack(rewrite *w, uint64_t next_bytes)
{
    fm_status rc = FM_OK;
    if (w->open && w->packer.offset + next_bytes > pack_limit(w->g))
        rc = end_pack(w);
    if (rc == FM_OK && !w->open) {
        rc = fms_packer_begin(&w->packer, w->g->s, w->features);
        w->open = rc == FM_OK;
    }
    return rc;
}

static fm_status note_fresh(rewrite *w, uint32_t object, bool recoded)
{
    FM_TRY(fm_grow(&w->fresh, &w->fresh_cap, w->fresh_count + 1, sizeof *w->fresh));
    FM_TRY(fm_grow(&w->recoded, &w->recoded_cap, w->fresh_count + 1, sizeof *w->recoded));
    w->fresh[w->fresh_count] = object;
    w->recoded[w->fresh_count++] = recoded;
    w->g->object[object].pending = true;
    return FM_OK;
}

/* ==== coding again ========================================================================= */

/* A sound record of least depth, whose parent is the next ancestor. */
static const fms_gc_record *least(const fms_gc *g, uint32_t object)
{
    const fms_gc_object *o = &g->object[object];
    for (uint32_t k = o->first; k != FMS_GC_NONE; k = g->record[k].next)
        if (g->record[k].depth == o->depth && !g->record[k].bad)
            return &g->record[k];
    return NULL;
}

static bool wants_recode(const fms_gc *g, const fms_gc_record *rec)
{
    if (g->pack[rec->pack].fate != FMS_FATE_REPACK || !g->opts.repack)
        return false;
    /* A record with a recipe is kept: coded again against one parent it would grow. */
    return rec->depth > g->opts.depth || (g->opts.slow && !rec->recipe);
}

/* The nearest ancestor whose depth allows one more step; FMS_GC_NONE: code the object alone. */
static uint32_t shallow_ancestor(const fms_gc *g, const fms_gc_record *rec)
{
    uint32_t limit = FM_MIN(g->opts.depth, FMS_CHAIN_MAX);
    for (unsigned step = 0; rec && rec->parent_count == 1 && !rec->recipe && step <= FMS_CHAIN_MAX;
         step++) {
        uint32_t p = fms_gc_find(g, &g->parent[rec->parent_at]);
        if (p == FMS_GC_NONE)
            return FMS_GC_NONE;
        if (g->object[p].new_depth < limit)
            return p;
        rec = least(g, p);
    }
    return FMS_GC_NONE;
}

static fm_status encode_leaves(rewrite *w, const fms_record *from, const fms_chain *own,
                               const fms_chain *parent, bool *needs_parent)
{
    fm_status rc = fm_grow(&w->rows, &w->row_cap, (size_t)from->leaf_count + 1, sizeof *w->rows);
    fm_buf_clear(&w->payload);
    *needs_parent = false;
    for (uint32_t i = 0; rc == FM_OK && i < from->leaf_count; i++) {
        size_t before = w->payload.len, bytes = fms_leaf_bytes(from->bytes, i);
        fms_leaf_at at = fms_leaf_at_of(from->dtype, from->is_blob ? NULL : &from->shape, i);
        at.slow = w->g->opts.slow;
        rc = fms_chain_leaf(own, w->coder, i, w->leaf);
        if (rc == FM_OK && parent)
            rc = fms_chain_leaf(parent, w->coder, i, w->parent_leaf);
        FM_THEN(rc, fms_leaf_encode(w->coder, &w->payload, &w->rows[i].codec, &at,
                                    fm_span_of(w->leaf, bytes), parent ? w->parent_leaf : NULL));
        FM_THEN(rc, fm_buf_ok(&w->payload));
        fms_leaf_digest(from, i, &w->rows[i].digest);
        w->rows[i].stored_bytes = (uint32_t)(w->payload.len - before);
        *needs_parent = *needs_parent || fms_codec_needs_parent(w->rows[i].codec);
    }
    return rc;
}

/* A parent that cannot be used (another shape, damaged) is ignored. */
static fm_status recode(rewrite *w, const fms_record *from, uint32_t parent, bool *smaller,
                        fms_record *to)
{
    fms_gc *g = w->g;
    fms_chain own, up;
    bool with = false, needs = false;
    fm_status rc = fms_chain_from(&own, g->s, from, NULL);
    if (rc != FM_OK)
        return rc;
    if (parent != FMS_GC_NONE) {
        rc = fms_chain_open(&up, g->s, &g->object[parent].id, 0, NULL);
        with = rc == FM_OK;
        if (with && (up.link[0].is_blob || up.link[0].dtype != from->dtype ||
                     !fm_shape_eq(&up.link[0].shape, &from->shape))) {
            fms_chain_release(&up);
            with = false;
        }
        rc = fms_is_damage(rc) ? FM_OK : rc;
    }
    FM_THEN(rc, encode_leaves(w, from, &own, with ? &up : NULL, &needs));
    *to = *from;
    to->parent_count = needs ? 1 : 0;
    to->depth = 0;
    memset(&to->recipe, 0, sizeof to->recipe);
    if (needs) {
        to->parent[0] = g->object[parent].id;
        to->depth = g->object[parent].new_depth + 1;
    }
    to->payload_bytes = w->payload.len;
    *smaller = w->payload.len < from->payload_bytes;
    if (with)
        fms_chain_release(&up);
    fms_chain_release(&own);
    return rc;
}

static fm_status put(rewrite *w, const fms_gc_record *rec, const fms_record *r)
{
    fms_gc *g = w->g;
    bool again = wants_recode(g, rec), smaller = false;
    fms_record to;
    fm_status rc = FM_OK;
    if (again)
        rc = recode(w, r, shallow_ancestor(g, rec), &smaller, &to);
    again = again && (smaller || rec->depth > g->opts.depth);
    FM_THEN(rc, begin_pack(w, again ? to.payload_bytes + r->head_bytes : r->stored_bytes));
    FM_THEN(rc, again ? fms_packer_add(&w->packer, &to, w->rows, fm_buf_span(&w->payload))
                      : fms_packer_copy(&w->packer, r, g->pack[rec->pack].map.data + rec->offset));
    g->report.recoded_objects += again;
    return rc == FM_OK ? note_fresh(w, rec->object, again) : rc;
}

/* Sets new_depth, ancestors first. */
static void plan_depths(fms_gc *g)
{
    for (size_t i = 0; i < g->objects; i++)
        g->object[i].new_depth = g->object[i].depth;
    for (uint32_t depth = 1; depth <= FMS_CHAIN_MAX; depth++)
        for (uint32_t i = 0; i < g->objects; i++) {
            fms_gc_object *o = &g->object[i];
            const fms_gc_record *rec = o->depth == depth ? least(g, i) : NULL;
            if (!rec || staying_record(g, o) != FMS_GC_NONE || !wants_recode(g, rec))
                continue;
            uint32_t p = shallow_ancestor(g, rec);
            o->new_depth = p == FMS_GC_NONE ? 0 : g->object[p].new_depth + 1;
            if (rec->depth <= g->opts.depth) /* it may be copied, not recoded */
                o->new_depth = FM_MAX(o->new_depth, rec->depth);
        }
}

/* ==== all packs ============================================================================ */

static fm_status take(rewrite *w, uint32_t k)
{
    fms_gc *g = w->g;
    fms_record r;
    fms_gc_record *rec = &g->record[k];
    fms_gc_object *o = &g->object[rec->object];
    if (o->goes || o->safe || o->pending || rec->bad || rec->depth != o->depth)
        return FM_OK;
    fm_status rc = FM_OK;
    uint32_t there = staying_record(g, o);
    if (there != FMS_GC_NONE) {
        rc = verify_record(w, &g->record[there], &r);
        o->safe = rc == FM_OK && !g->record[there].bad;
        if (rc != FM_OK || o->safe)
            return rc == FM_OK ? advance(w, rec->stored_bytes) : rc;
    }
    rc = verify_record(w, rec, &r);
    if (rc == FM_OK && !rec->bad)
        rc = put(w, rec, &r);
    return rc == FM_OK ? advance(w, rec->stored_bytes) : rc;
}

static fm_status take_packs(rewrite *w)
{
    fms_gc *g = w->g;
    size_t packs = g->packs; /* without those that this run adds */

    for (size_t k = 0; k < g->records; k++)
        if (g->record[k].recipe && g->pack[g->record[k].pack].fate == FMS_FATE_REPACK)
            w->features |= FMS_PACK_RECIPES;
    for (size_t i = 0; i < packs; i++)
        w->total_bytes += g->pack[i].fate == FMS_FATE_REPACK ? g->pack[i].needed_bytes : 0;
    for (size_t i = 0; i < packs; i++) {
        uint32_t first = g->pack[i].first, count = g->pack[i].count;
        if (g->pack[i].fate != FMS_FATE_REPACK)
            continue;
        for (uint32_t k = first; k < first + count; k++)
            FM_TRY(take(w, k));
    }
    return end_pack(w);
}

/* A dry run only marks what would be copied. */
static void pretend(fms_gc *g)
{
    for (size_t i = 0; i < g->packs; i++)
        for (uint32_t k = 0; g->pack[i].fate == FMS_FATE_REPACK && k < g->pack[i].count; k++) {
            fms_gc_object *o = &g->object[g->record[g->pack[i].first + k].object];
            o->safe = !o->goes;
        }
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->packs; i++)
        bytes += g->pack[i].fate == FMS_FATE_REPACK ? g->pack[i].needed_bytes : 0;
    g->report.pack_bytes_after = bytes;
    g->report.packs_written = (bytes + pack_limit(g) - 1) / pack_limit(g);
}

fm_status fms_gc_rewrite(fms_gc *g)
{
    rewrite w;
    memset(&w, 0, sizeof w);
    w.g = g;
    fm_buf_init(&w.payload, (size_t)FM_MAX_TENSOR_BYTES);
    FM_TRY(fms_gc_settle(g));
    plan(g);
    plan_depths(g);
    if (g->opts.dry_run) {
        pretend(g);
        return FM_OK;
    }
    fm_status rc = fms_store_coder(g->s, &w.coder);
    w.leaf = fm_malloc(FM_LEAF_BYTES);
    w.parent_leaf = fm_malloc(FM_LEAF_BYTES);
    if (rc == FM_OK && (!w.leaf || !w.parent_leaf))
        rc = FM_ENOMEM;
    FM_THEN(rc, take_packs(&w));
    if (rc == FM_EIO && fms_no_room()) { /* objects that were not copied stay in their packs */
        g->report.no_room = true;
        fm_error_clear();
        rc = FM_OK;
    }
    fms_packer_release(&w.packer);
    fms_store_coder_return(g->s, w.coder);
    fm_free(w.leaf);
    fm_free(w.parent_leaf);
    fm_free(w.rows);
    fm_free(w.fresh);
    fm_free(w.recoded);
    fm_buf_release(&w.payload);
    return rc;
}
