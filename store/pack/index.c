/* index.c - the store's only door to SQLite. Statements are prepared once; every failure becomes an
 * fm_status with SQLite's message and the file's path. */
#include "store/pack/index.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "store/base/os/io.h"
#include "store/base/mem.h"

enum { SCHEMA_VERSION = 3, BUSY_MS = 30000 };

enum {
    Q_FIND,
    Q_MARK,
    Q_PACK_GET,
    Q_PACK_PUT,
    Q_OBJECT_PUT,
    Q_EDGES,
    Q_EDGE_PUT,
    Q_EDGES_DROP,
    Q_PACK_DROP,
    Q_OBJECTS_DROP,
    Q_MISS,
    Q_FOUND,
    Q_MISSING,
    Q_PACKS,
    Q_PACK_AT,
    Q_PACK_COUNT,
    Q_VERIFIED,
    Q_OLDEST,
    Q_BAD,
    Q_IDS,
    Q_COUNT
};

static const char *const query_text[Q_COUNT] = {
    [Q_FIND] = "SELECT pack, offset, stored, bad, parents, id FROM object WHERE id = ?1"
               " ORDER BY bad, pack, offset LIMIT 1 OFFSET ?2",
    [Q_MARK] = "UPDATE object SET bad = ?4 WHERE id = ?1 AND pack = ?2 AND offset = ?3"
               " AND bad <> ?4",
    [Q_PACK_GET] = "SELECT pack, bytes, sound FROM pack WHERE name = ?1",
    [Q_PACK_PUT] = "INSERT INTO pack (name, bytes, sound) VALUES (?1, ?2, ?3)",
    [Q_OBJECT_PUT] =
        "INSERT OR REPLACE INTO object (id, pack, offset, stored, bytes, kind, parents,"
        " bad) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)",
    [Q_EDGES] = "SELECT parent FROM edge WHERE id = ?1 AND pack = ?2 AND offset = ?3 ORDER BY n",
    [Q_EDGE_PUT] = "INSERT OR REPLACE INTO edge (id, pack, offset, n, parent)"
                   " VALUES (?1, ?2, ?3, ?4, ?5)",
    [Q_EDGES_DROP] = "DELETE FROM edge WHERE pack = ?1",
    [Q_PACK_DROP] = "DELETE FROM pack WHERE pack = ?1",
    [Q_OBJECTS_DROP] = "DELETE FROM object WHERE pack = ?1",
    [Q_MISS] = "INSERT OR REPLACE INTO missing SELECT name FROM pack WHERE pack = ?1",
    [Q_FOUND] = "DELETE FROM missing WHERE name = ?1",
    [Q_MISSING] = "SELECT MIN(name), COUNT(*) FROM missing",
    [Q_PACKS] = "SELECT pack, name, bytes, sound FROM pack ORDER BY pack",
    [Q_PACK_AT] = "SELECT name, bytes FROM pack WHERE pack = ?1",
    [Q_VERIFIED] = "UPDATE pack SET verified = ?2 WHERE name = ?1",
    [Q_OLDEST] = "SELECT pack, name, bytes, sound FROM pack ORDER BY verified, name",
    [Q_BAD] = "SELECT DISTINCT id FROM object WHERE bad <> 0",
    [Q_IDS] = "SELECT DISTINCT id FROM object ORDER BY id",
    [Q_PACK_COUNT] = "SELECT COUNT(*) FROM object WHERE pack = ?1",
};

static const char schema[] =
    "CREATE TABLE pack (pack INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,"
    " bytes INTEGER NOT NULL, sound INTEGER NOT NULL, verified INTEGER NOT NULL DEFAULT 0);"
    "CREATE TABLE object (id BLOB NOT NULL, pack INTEGER NOT NULL, offset INTEGER NOT NULL,"
    " stored INTEGER NOT NULL, bytes INTEGER NOT NULL, kind INTEGER NOT NULL,"
    " parents INTEGER NOT NULL,"
    " bad INTEGER NOT NULL, PRIMARY KEY (id, pack, offset)) WITHOUT ROWID;"
    "CREATE TABLE edge (id BLOB NOT NULL, pack INTEGER NOT NULL, offset INTEGER NOT NULL,"
    " n INTEGER NOT NULL, parent BLOB NOT NULL, PRIMARY KEY (id, pack, offset, n)) WITHOUT ROWID;"
    "CREATE INDEX edge_by_pack ON edge (pack);"
    "CREATE INDEX object_by_pack ON object (pack);"
    "CREATE TABLE folder (seen INTEGER NOT NULL);"
    "INSERT INTO folder VALUES (0);"
    "PRAGMA user_version = 3;";

struct fms_index {
    sqlite3 *db;
    char *path;
    sqlite3_stmt *query[Q_COUNT];
};

static fm_status sql_fail(const fms_index *ix, const char *what)
{
    int code = sqlite3_errcode(ix->db);
    if (code == SQLITE_NOMEM)
        return fm_fail(FM_ENOMEM, "out of memory");
    /* SQLITE_ERROR: the statements are fixed, so the file must have other tables. */
    bool damaged = code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR;
    fm_status rc = damaged ? FM_ECORRUPT : FM_EIO;
    return fm_fail(rc, "%s: %s: %s; it is a cache and may be deleted", ix->path, what,
                   sqlite3_errmsg(ix->db));
}

static fm_status run(fms_index *ix, const char *sql)
{
    if (sqlite3_exec(ix->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        return sql_fail(ix, "cannot run a statement");
    return FM_OK;
}

/* ==== opening ============================================================================== */

static fm_status read_int(fms_index *ix, const char *sql, int64_t *out)
{
    sqlite3_stmt *st = NULL;
    fm_status rc = FM_OK;
    if (sqlite3_prepare_v2(ix->db, sql, -1, &st, NULL) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW)
        rc = sql_fail(ix, "cannot be read");
    else
        *out = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return rc;
}

/* Two processes may open an empty file at once: the version is read again under the lock. */
static fm_status make_schema(fms_index *ix)
{
    int64_t version = 0;
    fm_status rc = read_int(ix, "PRAGMA user_version", &version);
    if (rc != FM_OK || version == SCHEMA_VERSION)
        return rc;
    FM_TRY(run(ix, "BEGIN IMMEDIATE"));
    rc = read_int(ix, "PRAGMA user_version", &version);
    if (rc == FM_OK && version == 0)
        rc = run(ix, schema);
    else if (rc == FM_OK && version != SCHEMA_VERSION)
        rc = fm_fail(FM_ECORRUPT, "%s: the index is of another version", ix->path);
    fm_status ended = run(ix, rc == FM_OK ? "COMMIT" : "ROLLBACK");
    return rc == FM_OK ? ended : rc;
}

static fm_status connect(fms_index *ix, const char *path)
{
    if (sqlite3_open_v2(path, &ix->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) !=
        SQLITE_OK)
        return ix->db ? sql_fail(ix, "cannot be opened") : fm_fail(FM_ENOMEM, "out of memory");
    sqlite3_busy_timeout(ix->db, BUSY_MS);
    fm_status rc = run(ix, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
    if (rc == FM_OK && sqlite3_db_readonly(ix->db, "main") == 1)
        rc = fm_fail(FM_EIO, "%s: cannot be written", ix->path);
    FM_THEN(rc, make_schema(ix));
    if (rc == FM_OK) /* not part of the schema's version: older builds share the file */
        rc = run(ix, "CREATE TABLE IF NOT EXISTS missing (name TEXT PRIMARY KEY) WITHOUT ROWID");
    for (int q = 0; rc == FM_OK && q < Q_COUNT; q++)
        if (sqlite3_prepare_v3(ix->db, query_text[q], -1, SQLITE_PREPARE_PERSISTENT, &ix->query[q],
                               NULL) != SQLITE_OK)
            rc = sql_fail(ix, "has other tables than it should");
    return rc;
}

static void disconnect(fms_index *ix)
{
    for (int q = 0; q < Q_COUNT; q++) {
        sqlite3_finalize(ix->query[q]);
        ix->query[q] = NULL;
    }
    sqlite3_close(ix->db);
    ix->db = NULL;
}

static fm_status remove_files(const char *path)
{
    static const char *const suffix[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < FM_ARRAY_LEN(suffix); i++) {
        char *name = fm_asprintf("%s%s", path, suffix[i]);
        fm_status rc = name ? fm_remove_file(name) : FM_ENOMEM;
        fm_free(name);
        if (rc != FM_OK)
            return rc;
    }
    return FM_OK;
}

static fm_status open_files(fms_index *ix)
{
    fm_status rc = connect(ix, ix->path);
    if (rc == FM_ECORRUPT) {
        disconnect(ix);
        rc = remove_files(ix->path);
        FM_THEN(rc, connect(ix, ix->path));
    }
    /* A folder that cannot be written: reading must still work. */
    return rc == FM_EIO ? fms_index_to_memory(ix) : rc;
}

fm_status fms_index_open(fms_index **out, const char *path)
{
    *out = NULL;
    fms_index *ix = fm_calloc(1, sizeof *ix);
    if (!ix)
        return FM_ENOMEM;
    ix->path = fm_strdup(path);
    fm_status rc = ix->path ? open_files(ix) : FM_ENOMEM;
    if (rc == FM_OK)
        *out = ix;
    else
        fms_index_close(ix);
    return rc;
}

fm_status fms_index_reset(fms_index *ix)
{
    disconnect(ix);
    fm_status rc = remove_files(ix->path);
    return rc == FM_OK || rc == FM_EIO ? open_files(ix) : rc;
}

void fms_index_close(fms_index *ix)
{
    if (!ix)
        return;
    disconnect(ix);
    fm_free(ix->path);
    fm_free(ix);
}

fm_status fms_index_to_memory(fms_index *ix)
{
    disconnect(ix);
    return connect(ix, ":memory:");
}

fm_status fms_index_folder(fms_index *ix, int64_t *seen)
{
    *seen = 0;
    return read_int(ix, "SELECT seen FROM folder", seen);
}

fm_status fms_index_set_folder(fms_index *ix, int64_t seen)
{
    char sql[64];

    snprintf(sql, sizeof sql, "UPDATE folder SET seen = %lld", (long long)seen);
    sqlite3_busy_timeout(ix->db, 0);
    fm_status rc = run(ix, sql);
    sqlite3_busy_timeout(ix->db, BUSY_MS);
    return rc;
}

fm_status fms_index_check(fms_index *ix)
{
    sqlite3_stmt *st = NULL;
    fm_status rc = FM_OK;
    if (sqlite3_prepare_v2(ix->db, "PRAGMA integrity_check(1)", -1, &st, NULL) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW)
        rc = sql_fail(ix, "cannot be read");
    else if (strcmp((const char *)sqlite3_column_text(st, 0), "ok") != 0)
        rc = fm_fail(FM_ECORRUPT, "%s: %s", ix->path, sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    return rc;
}

/* ==== rows ================================================================================= */

static sqlite3_stmt *fresh(fms_index *ix, int q)
{
    sqlite3_reset(ix->query[q]);
    sqlite3_clear_bindings(ix->query[q]);
    return ix->query[q];
}

static void bind_id(sqlite3_stmt *st, int at, const fm_digest *id)
{
    sqlite3_bind_blob(st, at, id->b, FM_DIGEST_BYTES, SQLITE_TRANSIENT);
}

static fm_status step_done(fms_index *ix, sqlite3_stmt *st)
{
    int code = sqlite3_step(st);
    fm_status rc = code == SQLITE_DONE ? FM_OK : sql_fail(ix, "cannot be written");
    sqlite3_reset(st);
    return rc;
}

/* Fills out->parent; a number of parents other than `want` means that the file is damaged. */
static fm_status find_parents(fms_index *ix, const fm_digest *id, int64_t want, fms_place *out)
{
    sqlite3_stmt *st = fresh(ix, Q_EDGES);
    bind_id(st, 1, id);
    sqlite3_bind_int64(st, 2, out->pack);
    sqlite3_bind_int64(st, 3, (int64_t)out->offset);
    int code;
    while ((code = sqlite3_step(st)) == SQLITE_ROW && out->parent_count < FMS_PARENTS_MAX &&
           sqlite3_column_bytes(st, 0) == FM_DIGEST_BYTES)
        memcpy(out->parent[out->parent_count++].b, sqlite3_column_blob(st, 0), FM_DIGEST_BYTES);
    fm_status rc = FM_OK;
    if (code != SQLITE_DONE && code != SQLITE_ROW)
        rc = sql_fail(ix, "cannot be read");
    else if (code == SQLITE_ROW || out->parent_count != want)
        rc = fm_fail(FM_ECORRUPT, "%s: is damaged; it is a cache and may be deleted", ix->path);
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_find(fms_index *ix, const fm_digest *id, uint32_t nth, fms_place *out)
{
    int64_t want = 0;
    memset(out, 0, sizeof *out);
    sqlite3_stmt *st = fresh(ix, Q_FIND);
    bind_id(st, 1, id);
    sqlite3_bind_int64(st, 2, nth);
    int code = sqlite3_step(st);
    fm_status rc = FM_OK;
    /* A damaged page can lead the search to another id's row. */
    if (code == SQLITE_ROW && (sqlite3_column_bytes(st, 5) != FM_DIGEST_BYTES ||
                               memcmp(sqlite3_column_blob(st, 5), id->b, FM_DIGEST_BYTES) != 0)) {
        rc = fm_fail(FM_ECORRUPT, "%s: is damaged; it is a cache and may be deleted", ix->path);
    } else if (code == SQLITE_ROW) {
        out->pack = sqlite3_column_int64(st, 0);
        out->offset = (uint64_t)sqlite3_column_int64(st, 1);
        out->stored_bytes = (uint64_t)sqlite3_column_int64(st, 2);
        out->bad = sqlite3_column_int64(st, 3) != 0;
        want = sqlite3_column_int64(st, 4);
    } else {
        rc = code == SQLITE_DONE ? FM_ENOTFOUND : sql_fail(ix, "cannot be read");
    }
    sqlite3_reset(st);
    return rc == FM_OK && want ? find_parents(ix, id, want, out) : rc;
}

fm_status fms_index_mark_bad(fms_index *ix, const fm_digest *id, int64_t pack, uint64_t offset,
                             bool bad)
{
    sqlite3_stmt *st = fresh(ix, Q_MARK);
    bind_id(st, 1, id);
    sqlite3_bind_int64(st, 2, pack);
    sqlite3_bind_int64(st, 3, (int64_t)offset);
    sqlite3_bind_int64(st, 4, bad);
    return step_done(ix, st);
}

fm_status fms_index_begin(fms_index *ix)
{
    return run(ix, "BEGIN IMMEDIATE");
}

fm_status fms_index_end(fms_index *ix, fm_status rc)
{
    FM_THEN(rc, run(ix, "COMMIT"));
    if (rc != FM_OK)
        fm_ignore(sqlite3_exec(ix->db, "ROLLBACK", NULL, NULL, NULL), "the first failure is told");
    return rc;
}

static fm_status get_pack(fms_index *ix, const char *name, int64_t *pack, uint64_t *bytes,
                          bool *sound)
{
    sqlite3_stmt *st = fresh(ix, Q_PACK_GET);
    sqlite3_bind_text(st, 1, name, -1, SQLITE_TRANSIENT);
    int code = sqlite3_step(st);
    fm_status rc = FM_OK;
    if (code == SQLITE_ROW) {
        *pack = sqlite3_column_int64(st, 0);
        *bytes = (uint64_t)sqlite3_column_int64(st, 1);
        *sound = sqlite3_column_int64(st, 2) != 0;
    } else {
        rc = code == SQLITE_DONE ? FM_ENOTFOUND : sql_fail(ix, "cannot be read");
    }
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_put_pack(fms_index *ix, const char *name, uint64_t bytes, bool sound,
                             int64_t *pack, bool *known)
{
    uint64_t old_bytes = 0;
    bool old_sound = false;
    fm_status rc = get_pack(ix, name, pack, &old_bytes, &old_sound);
    *known = rc == FM_OK && old_bytes == bytes && old_sound == sound;
    if (*known || (rc != FM_OK && rc != FM_ENOTFOUND))
        return rc;
    if (rc == FM_OK) {
        rc = fms_index_drop_pack(ix, *pack);
        if (rc != FM_OK)
            return rc;
    }
    sqlite3_stmt *st = fresh(ix, Q_PACK_PUT);
    sqlite3_bind_text(st, 1, name, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(st, 2, (int64_t)bytes);
    sqlite3_bind_int64(st, 3, sound);
    rc = step_done(ix, st);
    *pack = sqlite3_last_insert_rowid(ix->db);
    if (rc == FM_OK) {
        st = fresh(ix, Q_FOUND);
        sqlite3_bind_text(st, 1, name, -1, SQLITE_TRANSIENT);
        rc = step_done(ix, st);
    }
    return rc;
}

fm_status fms_index_put_object(fms_index *ix, int64_t pack, uint64_t offset, const fms_record *r)
{
    sqlite3_stmt *st = fresh(ix, Q_OBJECT_PUT);
    bind_id(st, 1, &r->id);
    sqlite3_bind_int64(st, 2, pack);
    sqlite3_bind_int64(st, 3, (int64_t)offset);
    sqlite3_bind_int64(st, 4, (int64_t)r->stored_bytes);
    sqlite3_bind_int64(st, 5, (int64_t)r->bytes);
    sqlite3_bind_int64(st, 6, r->is_blob ? 2 : 1);
    sqlite3_bind_int64(st, 7, r->parent_count);
    FM_TRY(step_done(ix, st));
    for (uint32_t k = 0; k < r->parent_count; k++) {
        st = fresh(ix, Q_EDGE_PUT);
        bind_id(st, 1, &r->id);
        sqlite3_bind_int64(st, 2, pack);
        sqlite3_bind_int64(st, 3, (int64_t)offset);
        sqlite3_bind_int64(st, 4, k);
        bind_id(st, 5, &r->parent[k]);
        FM_TRY(step_done(ix, st));
    }
    return FM_OK;
}

fm_status fms_index_drop_pack(fms_index *ix, int64_t pack)
{
    static const int query[] = {Q_EDGES_DROP, Q_OBJECTS_DROP, Q_PACK_DROP};

    for (size_t i = 0; i < FM_ARRAY_LEN(query); i++) {
        sqlite3_stmt *st = fresh(ix, query[i]);
        sqlite3_bind_int64(st, 1, pack);
        FM_TRY(step_done(ix, st));
    }
    return FM_OK;
}

fm_status fms_index_miss_pack(fms_index *ix, int64_t pack)
{
    sqlite3_stmt *st = fresh(ix, Q_MISS);
    sqlite3_bind_int64(st, 1, pack);
    FM_TRY(step_done(ix, st));
    return fms_index_drop_pack(ix, pack);
}

fm_status fms_index_forget_missing(fms_index *ix)
{
    return run(ix, "DELETE FROM missing");
}

fm_status fms_index_durable(fms_index *ix, bool yes)
{
    return run(ix, yes ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
}

fm_status fms_index_drop_all(fms_index *ix)
{
    return run(ix, "DROP TABLE IF EXISTS temp.found_bad;"
                   "CREATE TEMP TABLE found_bad AS SELECT o.id, o.offset, p.name FROM object o"
                   " JOIN pack p ON p.pack = o.pack WHERE o.bad <> 0;"
                   "DELETE FROM edge; DELETE FROM object; DELETE FROM pack;"
                   "UPDATE folder SET seen = 0;");
}

fm_status fms_index_mark_again(fms_index *ix)
{
    return run(ix, "UPDATE object SET bad = 1 WHERE (id, pack, offset) IN"
                   " (SELECT f.id, p.pack, f.offset FROM temp.found_bad f"
                   " JOIN pack p ON p.name = f.name);"
                   "DROP TABLE temp.found_bad;");
}

static const char *column_name(sqlite3_stmt *st, int at)
{
    const unsigned char *text = sqlite3_column_text(st, at);
    return text ? (const char *)text : "";
}

fm_status fms_index_missing(fms_index *ix, char name[FM_HEX_CHARS + 1], uint64_t *count)
{
    sqlite3_stmt *st = fresh(ix, Q_MISSING);
    fm_status rc = sqlite3_step(st) == SQLITE_ROW ? FM_OK : sql_fail(ix, "cannot be read");
    *count = rc == FM_OK ? (uint64_t)sqlite3_column_int64(st, 1) : 0;
    snprintf(name, FM_HEX_CHARS + 1, "%s", rc == FM_OK ? column_name(st, 0) : "");
    sqlite3_reset(st);
    return rc;
}

static fm_status each_pack(fms_index *ix, int query, fms_pack_row_fn fn, void *ctx)
{
    sqlite3_stmt *st = fresh(ix, query);
    fm_status rc = FM_OK;
    int code = SQLITE_DONE;
    while (rc == FM_OK && (code = sqlite3_step(st)) == SQLITE_ROW)
        rc = fn(ctx, sqlite3_column_int64(st, 0), column_name(st, 1),
                (uint64_t)sqlite3_column_int64(st, 2), sqlite3_column_int64(st, 3) != 0);
    if (rc == FM_OK && code != SQLITE_DONE)
        rc = sql_fail(ix, "cannot be read");
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_packs(fms_index *ix, fms_pack_row_fn fn, void *ctx)
{
    return each_pack(ix, Q_PACKS, fn, ctx);
}

fm_status fms_index_oldest(fms_index *ix, fms_pack_row_fn fn, void *ctx)
{
    return each_pack(ix, Q_OLDEST, fn, ctx);
}

fm_status fms_index_verified(fms_index *ix, const char *name, int64_t time)
{
    sqlite3_stmt *st = fresh(ix, Q_VERIFIED);
    sqlite3_bind_text(st, 1, name, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(st, 2, time);
    return step_done(ix, st);
}

fm_status fms_index_bad(fms_index *ix, fms_id_fn fn, void *ctx)
{
    sqlite3_stmt *st = fresh(ix, Q_BAD);
    fm_status rc = FM_OK;
    int code = SQLITE_DONE;
    while (rc == FM_OK && (code = sqlite3_step(st)) == SQLITE_ROW) {
        fm_digest id;
        if (sqlite3_column_bytes(st, 0) != FM_DIGEST_BYTES)
            continue;
        memcpy(id.b, sqlite3_column_blob(st, 0), FM_DIGEST_BYTES);
        rc = fn(ctx, &id);
    }
    if (rc == FM_OK && code != SQLITE_DONE)
        rc = sql_fail(ix, "cannot be read");
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_pack_at(fms_index *ix, int64_t pack, char name[FM_HEX_CHARS + 1],
                            uint64_t *bytes)
{
    sqlite3_stmt *st = fresh(ix, Q_PACK_AT);
    sqlite3_bind_int64(st, 1, pack);
    int code = sqlite3_step(st);
    fm_status rc = FM_OK;
    if (code == SQLITE_ROW) {
        const char *text = column_name(st, 0);
        size_t len = strnlen(text, FM_HEX_CHARS);
        memcpy(name, text, len);
        name[len] = '\0';
        *bytes = (uint64_t)sqlite3_column_int64(st, 1);
    } else {
        rc = code == SQLITE_DONE ? FM_ENOTFOUND : sql_fail(ix, "cannot be read");
    }
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_count(fms_index *ix, int64_t pack, uint64_t *objects)
{
    sqlite3_stmt *st = fresh(ix, Q_PACK_COUNT);
    sqlite3_bind_int64(st, 1, pack);
    fm_status rc = sqlite3_step(st) == SQLITE_ROW ? FM_OK : sql_fail(ix, "cannot be read");
    *objects = rc == FM_OK ? (uint64_t)sqlite3_column_int64(st, 0) : 0;
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_ids(fms_index *ix, fms_id_fn fn, void *ctx)
{
    sqlite3_stmt *st = fresh(ix, Q_IDS);
    fm_status rc = FM_OK;
    int code = SQLITE_DONE;
    while (rc == FM_OK && (code = sqlite3_step(st)) == SQLITE_ROW) {
        fm_digest id;
        if (sqlite3_column_bytes(st, 0) != FM_DIGEST_BYTES) {
            rc = fm_fail(FM_ECORRUPT, "%s: is damaged; it is a cache and may be deleted", ix->path);
            break;
        }
        memcpy(id.b, sqlite3_column_blob(st, 0), FM_DIGEST_BYTES);
        rc = fn(ctx, &id);
    }
    if (rc == FM_OK && code != SQLITE_DONE)
        rc = sql_fail(ix, "cannot be read");
    sqlite3_reset(st);
    return rc;
}

fm_status fms_index_totals(fms_index *ix, uint64_t *objects, uint64_t *bytes_decoded,
                           uint64_t *packs, uint64_t *bytes_packs)
{
    static const char *const sql[4] = {
        "SELECT COUNT(DISTINCT id) FROM object",
        "SELECT COALESCE(SUM(bytes), 0) FROM (SELECT DISTINCT id, bytes FROM object)",
        "SELECT COUNT(*) FROM pack", "SELECT COALESCE(SUM(bytes), 0) FROM pack"};
    uint64_t *const to[4] = {objects, bytes_decoded, packs, bytes_packs};
    for (int i = 0; i < 4; i++) {
        int64_t v = 0;
        FM_TRY(read_int(ix, sql[i], &v));
        *to[i] = (uint64_t)v;
    }
    return FM_OK;
}
