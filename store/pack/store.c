/* store.c - a repository's packs, and finding objects in them.
 *
 * The packs are the truth. The index only says where to look, and is compared with the folder's
 * list at open and again whenever an id is not found, which is how a reader learns of packs that
 * another process wrote. Where a row is wrong, all packs are scanned anew, once a handle. Records
 * are parsed and checked from the mapping at each read. */
#include "store/pack/store_priv.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

enum { LOOKS_MAX = 16 };

/* ==== packs and the index ================================================================== */

bool fms_is_pack_name(const char *file, char name[FM_HEX_CHARS + 1])
{
    fm_digest d;
    if (strlen(file) != FM_HEX_CHARS + strlen(FMS_PACK_SUFFIX) ||
        strcmp(file + FM_HEX_CHARS, FMS_PACK_SUFFIX) != 0 ||
        !fm_digest_parse(&d, file, FM_HEX_CHARS))
        return false;
    fm_digest_hex(&d, name);
    return memcmp(file, name, FM_HEX_CHARS) == 0;
}

char *fms_store_pack_path(const fm_store *s, const char *name)
{
    return fm_asprintf("%s/%s" FMS_PACK_SUFFIX, s->packs_dir, name);
}

typedef struct scan_state {
    fms_index *index;
    int64_t pack;
} scan_state;

static fm_status scan_record(void *ctx, uint64_t offset, const fms_record *r)
{
    scan_state *st = ctx;
    return fms_index_put_object(st->index, st->pack, offset, r);
}

fm_status fms_store_scan_pack(fm_store *s, const char *name, bool *sound)
{
    *sound = false;
    fm_file_map map = {NULL, 0};
    char *path = fms_store_pack_path(s, name);
    fm_status rc = path ? fm_map_verified(&map, path) : FM_ENOMEM;
    fm_free(path);
    if (rc == FM_ENOTFOUND)
        return FM_OK; /* removed since it was listed */
    if (rc != FM_OK)
        return rc;
    scan_state st = {s->index, 0};
    bool known;
    rc = fms_index_put_pack(s->index, name, map.len, true, &st.pack, &known);
    fms_pack_visitor v = {&st, scan_record, NULL};
    fm_status walked = rc == FM_OK ? fms_pack_walk(fm_span_of(map.data, map.len), name, &v) : rc;
    *sound = walked == FM_OK;
    rc = walked;
    if (walked == FM_ECORRUPT || walked == FM_EVERSION) /* one pack must not block the others */
        rc = fms_index_put_pack(s->index, name, map.len, false, &st.pack, &known);
    fm_unmap_verified(&map);
    return rc;
}

fm_status fms_store_index_pack(fm_store *s, const char *name)
{
    bool sound = false;
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_index_begin(s->index);
    if (rc == FM_OK) {
        rc = fms_store_scan_pack(s, name, &sound);
        if (rc == FM_OK && !sound)
            rc = fm_fail(FM_ECORRUPT, "pack %s cannot be read back after it was written", name);
        rc = fms_index_end(s->index, rc);
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

typedef struct pack_row {
    struct pack_row *next;
    int64_t row;
    uint64_t bytes;
    bool sound, present;
    char name[FM_HEX_CHARS + 1];
} pack_row;

typedef struct row_list {
    fm_arena *arena;
    fm_map *by_name; /* name -> pack_row */
    pack_row *first;
    size_t unsound;
    bool begun; /* the index has an open change */
} row_list;

static fm_status collect_row(void *ctx, int64_t pack, const char *name, uint64_t bytes, bool sound)
{
    row_list *l = ctx;
    pack_row *p = fm_arena_alloc(l->arena, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    p->row = pack;
    p->bytes = bytes;
    p->sound = sound;
    memcpy(p->name, name, strnlen(name, FM_HEX_CHARS)); /* the arena's memory is zero */
    p->next = l->first;
    l->first = p;
    l->unsound += !sound;
    return fm_map_put(l->by_name, p->name, strlen(p->name), p, NULL);
}

static fm_status begin_once(fm_store *s, row_list *rows)
{
    fm_status rc = rows->begun ? FM_OK : fms_index_begin(s->index);
    rows->begun = rows->begun || rc == FM_OK;
    return rc;
}

/* Whether a damaged pack changed its size since it was scanned: it was still being copied then. */
static bool has_grown(const fm_store *s, const pack_row *p)
{
    uint64_t bytes = 0;
    char *path = fms_store_pack_path(s, p->name);
    bool grown = path && fm_file_bytes(&bytes, path) == FM_OK && bytes != p->bytes;
    fm_free(path);
    return grown;
}

/* Drops the row of a pack whose file is gone. gc drops rows before it removes files, so if the row
 * is still there within a change, the file was lost or moved, and the index notes it as missing. */
static fm_status drop_row(fm_store *s, const pack_row *p)
{
    char name[FM_HEX_CHARS + 1] = "";
    uint64_t bytes;
    fm_status rc = fms_index_pack_at(s->index, p->row, name, &bytes);
    if (rc != FM_OK || strcmp(name, p->name) != 0)
        return rc == FM_ENOTFOUND ? FM_OK : rc;
    char *path = fms_store_pack_path(s, p->name);
    if (!path)
        return FM_ENOMEM;
    rc = fm_path_exists(path) ? FM_OK : fms_index_miss_pack(s->index, p->row);
    fm_free(path);
    return rc;
}

/* Adds packs that the index lacks and drops rows whose pack is gone. */
static fm_status reconcile(fm_store *s, const fm_names *files, row_list *rows)
{
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < files->count; i++) {
        char name[FM_HEX_CHARS + 1];
        if (!fms_is_pack_name(files->name[i], name))
            continue;
        pack_row *p = fm_map_get(rows->by_name, name, FM_HEX_CHARS);
        if (p)
            p->present = true;
        if (p && (p->sound || !has_grown(s, p)))
            continue;
        bool sound = true;
        rc = begin_once(s, rows);
        FM_THEN(rc, fms_store_scan_pack(s, name, &sound));
        rows->unsound = rows->unsound + !sound - (p != NULL);
    }
    for (const pack_row *p = rows->first; rc == FM_OK && p; p = p->next) {
        if (p->present)
            continue;
        rc = begin_once(s, rows);
        FM_THEN(rc, drop_row(s, p));
        rows->unsound -= !p->sound;
    }
    return rc;
}

static int64_t folder_time(const fm_store *s)
{
    int64_t t = 0;

    return fm_file_time(&t, s->packs_dir) == FM_OK ? t : 0;
}

bool fms_store_is_fresh(fm_store *s)
{
    int64_t seen = 0;

    return fms_index_folder(s->index, &seen) == FM_OK && seen != 0 && folder_time(s) == seen;
}

void fms_store_mark_fresh(fm_store *s)
{
    int64_t mark = 0;

    if (fm_mark_time(&mark, s->packs_dir) == FM_OK)
        fm_ignore(fms_index_set_folder(s->index, mark), "then the next open looks at all packs");
}

static fm_status refresh_rows(fm_store *s)
{
    fm_names files = {NULL, 0};
    row_list rows;
    int64_t mark = 0;
    memset(&rows, 0, sizeof rows);
    fm_ignore(fm_mark_time(&mark, s->packs_dir), "then the next open looks at all packs too");
    fm_status rc = fm_map_new(&rows.by_name);
    FM_THEN(rc, fm_arena_new(&rows.arena));
    /* Rows first: a pack that appears in between is then only scanned needlessly. */
    FM_THEN(rc, fms_index_packs(s->index, collect_row, &rows));
    FM_THEN(rc, fm_list_dir(&files, s->packs_dir));
    FM_THEN(rc, reconcile(s, &files, &rows));
    if (rows.begun)
        rc = fms_index_end(s->index, rc);
    if (rc == FM_OK)
        s->unsound_packs = rows.unsound;
    if (rc == FM_OK && rows.unsound == 0 && mark && folder_time(s) == mark)
        fm_ignore(fms_index_set_folder(s->index, mark), "likewise");
    fm_names_release(&files);
    fm_map_free(rows.by_name);
    fm_arena_free(rows.arena);
    return rc;
}

/* Forgets row numbers, which are given anew; open packs are then found by name. */
static void forget_rows(fm_store *s)
{
    for (fms_open_pack *p = s->open; p; p = p->next)
        p->row = 0;
}

static fm_status to_memory(fm_store *s)
{
    forget_rows(s);
    return fms_index_to_memory(s->index);
}

fm_status fms_store_refresh(fm_store *s)
{
    fm_status rc = refresh_rows(s);
    if (rc == FM_ECORRUPT)
        return fms_store_rescan(s, true);
    if (rc != FM_EIO)
        return rc;
    rc = to_memory(s); /* on a full disk, say, reading must still work */
    return rc == FM_OK ? refresh_rows(s) : rc;
}

fm_status fms_store_look(fm_store *s)
{
    return fms_store_is_fresh(s) ? FM_OK : fms_store_refresh(s);
}

static fm_status scan_all(fm_store *s, const fm_names *files)
{
    size_t unsound = 0;
    FM_TRY(fms_index_begin(s->index));

    fm_status rc = fms_index_drop_all(s->index);
    for (size_t i = 0; rc == FM_OK && i < files->count; i++) {
        char name[FM_HEX_CHARS + 1];
        bool sound = true;
        if (fms_is_pack_name(files->name[i], name))
            rc = fms_store_scan_pack(s, name, &sound);
        unsound += !sound;
    }
    FM_THEN(rc, fms_index_mark_again(s->index));
    rc = fms_index_end(s->index, rc);
    if (rc == FM_OK)
        s->unsound_packs = unsound;
    return rc;
}

fm_status fms_store_rescan(fm_store *s, bool fresh)
{
    fm_names files = {NULL, 0};
    forget_rows(s);
    fm_status rc = fm_list_dir(&files, s->packs_dir);
    if (rc == FM_OK && !fresh) {
        fm_ignore(refresh_rows(s), "it notes what is missing; the scan reads the rest");
        rc = scan_all(s, &files);
        fresh = rc == FM_ECORRUPT; /* the index is damaged: a damaged pack does not fail a scan */
        rc = fresh ? FM_OK : rc;
    }
    if (rc == FM_OK && fresh)
        rc = fms_index_reset(s->index);
    if (rc == FM_OK && fresh)
        rc = scan_all(s, &files);
    if (rc == FM_EIO) {
        rc = to_memory(s);
        FM_THEN(rc, scan_all(s, &files));
    }
    fm_names_release(&files);
    return rc;
}

static fm_status map_pack(const fm_store *s, fms_open_pack *p, uint64_t bytes)
{
    char *path = fms_store_pack_path(s, p->name);
    fm_status rc = path ? fm_map_verified(&p->map, path) : FM_ENOMEM;
    fm_free(path);
    if (rc == FM_ENOTFOUND)
        return fm_fail(FM_ECONFLICT, "pack %s is gone since it was indexed: run fsck", p->name);
    if (rc == FM_OK && p->map.len != bytes)
        return fm_fail(FM_ECORRUPT,
                       "pack %s has %zu bytes, not the %llu it was written with: run fsck", p->name,
                       p->map.len, (unsigned long long)bytes);
    return rc;
}

/* Gives a pack, mapped at its first use. The mutex is held. FM_ECONFLICT: the file is gone. */
static fm_status open_pack(fm_store *s, int64_t row, const fms_open_pack **out)
{
    char name[FM_HEX_CHARS + 1];
    uint64_t bytes = 0;
    for (const fms_open_pack *p = s->open; p; p = p->next)
        if (p->row == row) {
            *out = p;
            return FM_OK;
        }
    fm_status rc = fms_index_pack_at(s->index, row, name, &bytes);
    if (rc != FM_OK)
        return rc == FM_ENOTFOUND
                   ? fm_fail(FM_ECONFLICT, "%s: a row names no pack: delete it", s->index_path)
                   : rc;
    for (fms_open_pack *p = s->open; p; p = p->next)
        if (strcmp(p->name, name) == 0 && p->map.len == bytes) {
            p->row = row;
            *out = p;
            return FM_OK;
        }
    fms_open_pack *p = fm_calloc(1, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    memcpy(p->name, name, sizeof name);
    rc = map_pack(s, p, bytes);
    if (rc != FM_OK) {
        fm_unmap_verified(&p->map);
        fm_free(p);
        return rc;
    }
    p->row = row;
    p->next = s->open;
    s->open = p;
    *out = p;
    return FM_OK;
}

/* ==== coders ============================================================================= */

fm_status fms_store_coder(fm_store *s, fms_coder **out)
{
    *out = NULL;
    pthread_mutex_lock(&s->mutex);
    if (s->idle_count)
        *out = s->idle[--s->idle_count];
    pthread_mutex_unlock(&s->mutex);
    return *out ? FM_OK : fms_coder_new(out);
}

void fms_store_coder_return(fm_store *s, fms_coder *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&s->mutex);
    bool kept = s->idle_count < FMS_IDLE_CODERS;
    if (kept)
        s->idle[s->idle_count++] = c;
    pthread_mutex_unlock(&s->mutex);
    if (!kept)
        fms_coder_free(c);
}

/* ==== finding ============================================================================== */

static fm_status find_locked(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                             fms_place *place)
{
    fm_status rc = fms_index_find(s->index, id, nth, place);
    if (rc == FM_ENOTFOUND && nth == 0 && look)
        rc = fms_store_refresh(s);
    else if (rc == FM_ECORRUPT)
        rc = fms_store_rescan(s, true);
    else
        return rc;
    return rc == FM_OK ? fms_index_find(s->index, id, nth, place) : rc;
}

/* Many objects share ancestors; each is looked up once. */
typedef struct has_state {
    fm_store *s;
    bool look;
    fm_map *had; /* ids found; made when an object has several parents */
} has_state;

static fm_status has_locked(has_state *st, const fm_digest *id, uint32_t left, bool *out);

static fm_status has_parents(has_state *st, const fms_place *place, uint32_t left, bool *out)
{
    *out = true;
    if (place->parent_count > 1 && !st->had)
        FM_TRY(fm_map_new(&st->had));
    for (uint32_t k = 0; *out && k < place->parent_count; k++)
        FM_TRY(has_locked(st, &place->parent[k], left, out));
    return FM_OK;
}

/* *out: some place of the object is sound, and all objects that it needs are stored too; otherwise
 * a stray pack would keep its bytes from being stored again. left: most steps to an ancestor. */
static fm_status has_locked(has_state *st, const fm_digest *id, uint32_t left, bool *out)
{
    fm_status rc = FM_OK;
    *out = st->had && fm_map_has(st->had, id->b, FM_DIGEST_BYTES);
    for (uint32_t nth = 0; rc == FM_OK && !*out; nth++) {
        fms_place place;
        rc = find_locked(st->s, id, nth, st->look, &place);
        if (rc != FM_OK || place.bad) /* sound places come first */
            break;
        if (place.parent_count == 0 || left > 0)
            rc = has_parents(st, &place, left - (left > 0), out);
        if (rc == FM_OK && *out && st->had)
            rc = fm_map_put(st->had, id->b, FM_DIGEST_BYTES, st, NULL);
    }
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

fm_status fms_store_has(fm_store *s, const fm_digest *id, bool look, bool *out)
{
    has_state st = {s, look, NULL};
    pthread_mutex_lock(&s->mutex);
    fm_status rc = has_locked(&st, id, FMS_CHAIN_MAX, out);
    pthread_mutex_unlock(&s->mutex);
    fm_map_free(st.had);
    return rc;
}

bool fm_store_has(fm_store *s, const fm_digest *id)
{
    bool has;
    return fms_store_has(s, id, true, &has) == FM_OK && has;
}

static fm_status not_found(const fm_store *s, const fm_digest *id)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(id, hex);
    if (s->unsound_packs)
        return fm_fail(FM_ENOTFOUND,
                       "object %s is not in the store; %zu packs are damaged or of a newer "
                       "fmstore: run fsck",
                       hex, s->unsound_packs);
    return fm_fail(FM_ENOTFOUND, "object %s is not in the store", hex);
}

/* Finds an object again whose pack is gone. Another process's gc or repack has moved the object, or
 * it is lost, and the first error says so. The mutex is held. */
static fm_status look_again(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                            fms_place *place, const fms_open_pack **pack)
{
    fm_error_state first;
    fm_status rc = FM_ECONFLICT;
    fm_error_save(&first);
    for (int again = 0; rc == FM_ECONFLICT && again < LOOKS_MAX; again++) {
        rc = fms_store_refresh(s);
        FM_THEN(rc, find_locked(s, id, nth, look, place));
        FM_THEN(rc, open_pack(s, place->pack, pack));
    }
    if (rc != FM_ENOTFOUND && rc != FM_ECONFLICT)
        return rc;
    fm_error_restore(&first);
    return FM_ECORRUPT;
}

static fm_status record_at(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                           fms_record *out, fms_place *place)
{
    const fms_open_pack *pack = NULL;
    pthread_mutex_lock(&s->mutex);
    fm_status rc = find_locked(s, id, nth, look, place);
    FM_THEN(rc, open_pack(s, place->pack, &pack));
    if (rc == FM_ECONFLICT)
        rc = look_again(s, id, nth, look, place, &pack);
    else if (rc == FM_ENOTFOUND)
        rc = not_found(s, id);
    pthread_mutex_unlock(&s->mutex);
    if (rc != FM_OK || !pack)
        return rc;
    size_t end = pack->map.len - FM_MIN(pack->map.len, FMS_PACK_FOOTER_BYTES);
    if (place->offset > end)
        return fm_fail(FM_ECORRUPT, "pack %s: the index points beyond its end: delete %s",
                       pack->name, s->index_path);
    char what[FM_HEX_CHARS + 64];
    snprintf(what, sizeof what, "pack %s: at byte %llu", pack->name,
             (unsigned long long)place->offset);
    rc = fms_record_parse(
        out, fm_span_of(pack->map.data + place->offset, end - (size_t)place->offset), what);
    if (rc == FM_OK && !fm_digest_eq(&out->id, id))
        return fm_fail(FM_ECORRUPT, "pack %s: the index points at another object: delete %s",
                       pack->name, s->index_path);
    return rc;
}

/* Scans all packs, since the index is wrong about an object or lacks it. Only once per handle: an
 * object that is really gone or damaged would cause a scan at each read. */
static bool rescan_once(fm_store *s)
{
    pthread_mutex_lock(&s->mutex);
    bool done = s->rescanned || fms_store_rescan(s, false) == FM_OK; /* or another thread did */
    s->rescanned = true;
    pthread_mutex_unlock(&s->mutex);
    return done;
}

static fm_status record_here(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                             fms_record *out, fms_place *place)
{
    fm_status rc = record_at(s, id, nth, look, out, place);
    if (nth > 0 || !look || (rc != FM_ECORRUPT && rc != FM_ENOTFOUND))
        return rc;
    fm_error_state first;
    fm_error_save(&first);
    if (rescan_once(s) && record_at(s, id, nth, look, out, place) == FM_OK)
        return FM_OK;
    fm_error_restore(&first);
    return rc;
}

void fm_store_on_missing(fm_store *s, fm_missing_fn fn, void *ctx)
{
    s->missing = fn;
    s->missing_ctx = ctx;
}

fm_status fms_store_record(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                           fms_record *out, fms_place *place)
{
    static _Thread_local bool asking; /* what brings an object reads what it is coded against */
    if (!s->missing || asking || nth > 0 || !look)
        return record_here(s, id, nth, look, out, place);
    const fm_status rc = record_at(s, id, nth, look, out, place);
    if (rc != FM_ENOTFOUND)
        return rc == FM_ECORRUPT ? record_here(s, id, nth, look, out, place) : rc;
    asking = true; /* before all packs are scanned anew: most are simply not here */
    const fm_status brought = s->missing(s->missing_ctx, id);
    asking = false;
    return brought == FM_OK || brought == FM_ENOTFOUND ? record_here(s, id, nth, look, out, place)
                                                       : brought;
}

/* ==== totals =============================================================================== */

fm_status fm_store_totals_of(fm_store *s, fm_store_totals *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_store_refresh(s);
    FM_THEN(rc, fms_index_totals(s->index, &out->objects, &out->bytes_decoded, &out->packs,
                                 &out->bytes_packs));
    pthread_mutex_unlock(&s->mutex);
    return rc;
}
