/* index.c - lineage.sqlite, a cache of results; the only file of lineage with SQL.
 *
 * A file that SQLite cannot read, or of another schema, is deleted and filled again from
 * refs/fmstore/results; only results that were put and never flushed can be lost with it. SQLite
 * keeps no checksums: each row has the digest of its key and value, compared at every read. */
#include "lineage/internal.h"

#include <sqlite3.h>
#include <string.h>

#define SCHEMA 2
#define BUSY_MS 30000

struct fml_rows {
    sqlite3 *db;
    sqlite3_stmt *get, *put, *keep;
    bool in_txn;
};

static const char schema_sql[] =
    "CREATE TABLE IF NOT EXISTS result("
    " key TEXT PRIMARY KEY, value BLOB NOT NULL, flushed INTEGER NOT NULL, sum BLOB NOT NULL)"
    " WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS result_unflushed ON result(key) WHERE flushed = 0;"
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;";

static fm_status sql_fail(sqlite3 *db, int code, const char *what)
{
    int base = code & 0xff;
    fm_status status = FM_EIO;

    if (base == SQLITE_NOMEM)
        status = FM_ENOMEM;
    else if (base == SQLITE_CORRUPT || base == SQLITE_NOTADB || base == SQLITE_ERROR)
        status = FM_ECORRUPT; /* ERROR: the statements are fixed, so the tables are foreign */
    return fm_fail(status,
                   "lineage.sqlite: %s: %s; it is a cache of results, 'fmstore fsck "
                   "--rebuild-index' makes it again",
                   what, db ? sqlite3_errmsg(db) : "");
}

static fm_status exec(sqlite3 *db, const char *sql)
{
    int code = sqlite3_exec(db, sql, NULL, NULL, NULL);

    return code == SQLITE_OK ? FM_OK : sql_fail(db, code, sql);
}

static fm_status prepare(fml_rows *ix, sqlite3_stmt **out, const char *sql)
{
    int code = sqlite3_prepare_v3(ix->db, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);

    return code == SQLITE_OK ? FM_OK : sql_fail(ix->db, code, sql);
}

void fml_rows_close(fml_rows *ix)
{
    if (!ix)
        return;
    sqlite3_finalize(ix->get);
    sqlite3_finalize(ix->put);
    sqlite3_finalize(ix->keep);
    sqlite3_close(ix->db);
    fm_free(ix);
}

/* FM_ECORRUPT also for another schema: the caller then makes the file anew. */
static fm_status check_schema(fml_rows *ix)
{
    sqlite3_stmt *q = NULL;
    int version = -1;
    fm_status rc = prepare(ix, &q, "PRAGMA user_version");

    if (rc == FM_OK) {
        int code = sqlite3_step(q);
        if (code == SQLITE_ROW)
            version = sqlite3_column_int(q, 0);
        else
            rc = sql_fail(ix->db, code, "user_version");
    }
    sqlite3_finalize(q);
    if (rc < 0 || version == SCHEMA)
        return rc;
    if (version != 0)
        return fm_fail(FM_ECORRUPT, "lineage.sqlite: schema %d, wanted %d", version, SCHEMA);
    rc = exec(ix->db, "BEGIN IMMEDIATE");
    FM_THEN(rc, exec(ix->db, schema_sql));
    FM_THEN(rc, exec(ix->db, "PRAGMA user_version = 2"));
    return rc == FM_OK ? exec(ix->db, "COMMIT") : rc;
}

static fm_status open_at(fml_rows **out, const char *path)
{
    fml_rows *ix = fm_calloc(1, sizeof *ix);
    fm_status rc = ix ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK) {
        int code = sqlite3_open_v2(
            path, &ix->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
        if (code != SQLITE_OK)
            rc = sql_fail(ix->db, code, "open");
    }
    if (rc == FM_OK) {
        sqlite3_busy_timeout(ix->db, BUSY_MS);
        rc = exec(ix->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
        if (rc == FM_OK && sqlite3_db_readonly(ix->db, "main") == 1)
            rc = fm_fail(FM_EIO, "lineage.sqlite: cannot be written");
    }
    FM_THEN(rc, check_schema(ix));
    FM_THEN(rc, prepare(ix, &ix->get, "SELECT key, value, sum FROM result WHERE key = ?1"));
    FM_THEN(rc,
            prepare(ix, &ix->put,
                    "INSERT INTO result(key, value, flushed, sum) VALUES(?1, ?2, ?3, ?4) ON "
                    "CONFLICT(key) DO UPDATE SET value = ?2, flushed = ?3, sum = ?4 WHERE value "
                    "<> ?2"));
    FM_THEN(rc, prepare(ix, &ix->keep,
                        "INSERT OR IGNORE INTO result(key, value, flushed, sum) VALUES(?1, ?2, ?3, "
                        "?4)"));
    if (rc < 0) {
        fml_rows_close(ix);
        return rc;
    }
    *out = ix;
    return FM_OK;
}

static fm_status remove_files(fm_repo *r)
{
    static const char *const end[] = {"", "-wal", "-shm"};
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(end); i++) {
        char *path = fm_asprintf("%s/lineage.sqlite%s", r->path, end[i]);
        rc = path ? fm_remove_file(path) : FM_ENOMEM;
        fm_free(path);
    }
    return rc;
}

fm_status fml_rows_need(fm_repo *r)
{
    char *path;
    fm_status rc;

    if (r->rows)
        return FM_OK;
    path = fm_path_join(r->path, "lineage.sqlite");
    if (!path)
        return FM_ENOMEM;
    rc = open_at(&r->rows, path);
    if (rc == FM_ECORRUPT) {
        rc = remove_files(r);
        FM_THEN(rc, open_at(&r->rows, path));
    }
    if (rc == FM_EIO) /* a repository that may only be read, a full disk */
        rc = open_at(&r->rows, ":memory:");
    fm_free(path);
    return rc;
}

fm_status fml_rows_drop(fm_repo *r)
{
    fml_rows_close(r->rows);
    r->rows = NULL;
    return remove_files(r);
}

static fm_status sum_of(fm_digest *out, const char *key, fm_span value)
{
    fm_hasher *h = NULL;
    fm_status rc = fm_hasher_new(&h);

    FM_THEN(rc, fm_hasher_update(h, key, strlen(key) + 1));
    if (rc == FM_OK && value.len > 0)
        rc = fm_hasher_update(h, value.data, value.len);
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

/* The current row: key, value, sum; both results are borrowed until the next step. */
static fm_status row_at(sqlite3_stmt *q, const char **key, fm_span *value)
{
    fm_digest want;

    *key = (const char *)sqlite3_column_text(q, 0);
    const void *data = sqlite3_column_blob(q, 1), *sum = sqlite3_column_blob(q, 2);
    *value = fm_span_of(data, (size_t)sqlite3_column_bytes(q, 1));
    if (!*key)
        *key = "";
    FM_TRY(sum_of(&want, *key, *value));
    if (!sum || sqlite3_column_bytes(q, 2) != FM_DIGEST_BYTES ||
        memcmp(sum, want.b, FM_DIGEST_BYTES) != 0)
        return fm_fail(FM_ECORRUPT,
                       "lineage.sqlite: result %.16s... is damaged; 'fmstore fsck --rebuild-index' "
                       "makes the file again",
                       *key);
    return FM_OK;
}

fm_status fml_rows_get(fml_rows *ix, fm_buf *out, const char *key)
{
    fm_status rc = FM_OK;
    int code;

    sqlite3_reset(ix->get);
    sqlite3_bind_text(ix->get, 1, key, -1, SQLITE_STATIC);
    code = sqlite3_step(ix->get);
    if (code == SQLITE_ROW) {
        const char *found;
        fm_span value;
        rc = row_at(ix->get, &found, &value);
        if (rc == FM_OK && strcmp(found, key) != 0) /* a damaged page led to another's row */
            rc = fm_fail(FM_ECORRUPT, "lineage.sqlite: result %.16s... has another's row", key);
        if (rc == FM_OK && value.len > 0)
            fm_buf_append(out, value.data, value.len);
        FM_THEN(rc, fm_buf_ok(out));
    } else if (code == SQLITE_DONE) {
        rc = fm_fail(FM_ENOTFOUND, "no result %.16s...", key);
    } else {
        rc = sql_fail(ix->db, code, "read a result");
    }
    sqlite3_reset(ix->get);
    sqlite3_clear_bindings(ix->get);
    return rc;
}

fm_status fml_rows_put(fml_rows *ix, const char *key, fm_span value, bool flushed, bool keep)
{
    sqlite3_stmt *q = keep ? ix->keep : ix->put;
    const void *data = value.data ? (const void *)value.data : "";
    fm_digest sum;
    FM_TRY(sum_of(&sum, key, value));
    int code;

    sqlite3_reset(q);
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_blob64(q, 2, data, value.len, SQLITE_STATIC);
    sqlite3_bind_int(q, 3, flushed);
    sqlite3_bind_blob(q, 4, sum.b, FM_DIGEST_BYTES, SQLITE_STATIC);
    code = sqlite3_step(q);
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return code == SQLITE_DONE ? FM_OK : sql_fail(ix->db, code, "write a result");
}

static fm_status each(fml_rows *ix, const char *sql, fml_row_fn fn, void *ctx)
{
    sqlite3_stmt *q = NULL;
    fm_status rc = prepare(ix, &q, sql);
    int code = SQLITE_DONE;

    while (rc == FM_OK && (code = sqlite3_step(q)) == SQLITE_ROW) {
        const char *key;
        fm_span value;
        rc = row_at(q, &key, &value);
        FM_THEN(rc, fn(ctx, key, value));
    }
    if (rc == FM_OK && code != SQLITE_DONE)
        rc = sql_fail(ix->db, code, "list results");
    sqlite3_finalize(q);
    return rc;
}

fm_status fml_rows_unflushed(fml_rows *ix, fml_row_fn fn, void *ctx)
{
    return each(ix, "SELECT key, value, sum FROM result WHERE flushed = 0 ORDER BY key", fn, ctx);
}

fm_status fml_rows_flushed(fml_rows *ix, fml_row_fn fn, void *ctx)
{
    return each(ix, "SELECT key, value, sum FROM result WHERE flushed = 1 ORDER BY key", fn, ctx);
}

fm_status fml_rows_mark_flushed(fml_rows *ix)
{
    return exec(ix->db, "UPDATE result SET flushed = 1 WHERE flushed = 0");
}

fm_status fml_rows_head(fml_rows *ix, char hex[41])
{
    sqlite3_stmt *q = NULL;
    fm_status rc = prepare(ix, &q, "SELECT value FROM meta WHERE key = 'results_head'");
    int code = rc == FM_OK ? sqlite3_step(q) : SQLITE_DONE;

    memset(hex, 0, 41);
    if (code == SQLITE_ROW && sqlite3_column_bytes(q, 0) == 40)
        memcpy(hex, sqlite3_column_text(q, 0), 40);
    else if (rc == FM_OK && code != SQLITE_ROW && code != SQLITE_DONE)
        rc = sql_fail(ix->db, code, "read the head of results");
    sqlite3_finalize(q);
    return rc;
}

fm_status fml_rows_set_head(fml_rows *ix, const char *hex)
{
    sqlite3_stmt *q = NULL;
    fm_status rc = prepare(ix, &q, "INSERT OR REPLACE INTO meta VALUES('results_head', ?1)");
    int code = SQLITE_DONE;

    if (rc == FM_OK) {
        sqlite3_bind_text(q, 1, hex, -1, SQLITE_STATIC);
        code = sqlite3_step(q);
    }
    if (rc == FM_OK && code != SQLITE_DONE)
        rc = sql_fail(ix->db, code, "write the head of results");
    sqlite3_finalize(q);
    return rc;
}

fm_status fml_rows_check(fml_rows *ix)
{
    sqlite3_stmt *q = NULL;
    fm_status rc = prepare(ix, &q, "PRAGMA integrity_check(1)");

    if (rc == FM_OK) {
        int code = sqlite3_step(q);
        const char *said = (const char *)sqlite3_column_text(q, 0);
        if (code != SQLITE_ROW)
            rc = sql_fail(ix->db, code, "check");
        else if (!said || strcmp(said, "ok") != 0)
            rc = fm_fail(FM_ECORRUPT, "lineage.sqlite: %s", said ? said : "?");
    }
    sqlite3_finalize(q);
    return rc;
}

fm_status fml_rows_begin(fml_rows *ix)
{
    fm_status rc = exec(ix->db, "BEGIN IMMEDIATE");

    ix->in_txn = rc == FM_OK;
    return rc;
}

fm_status fml_rows_commit(fml_rows *ix)
{
    FM_TRY(exec(ix->db, "COMMIT"));

    ix->in_txn = false;
    return FM_OK;
}

void fml_rows_rollback(fml_rows *ix)
{
    fm_error_state kept;

    if (!ix || !ix->in_txn)
        return;
    fm_error_save(&kept);
    ix->in_txn = false;
    fm_ignore(exec(ix->db, "ROLLBACK"), "closing the file rolls back as well");
    fm_error_restore(&kept);
}
