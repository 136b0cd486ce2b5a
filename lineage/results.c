/* results.c - results of tests: rows in SQLite for fast lookup, blobs in git for other clones.
 *
 * refs/fmstore/results holds "<2 hex>/<64 hex>" -> JSON. A flush is one commit on top of the ref's
 * current one, so two writers, or two clones, join by union. SQLite stores the commit that its rows
 * agree with; when the ref has moved (a fetch, another process, a lost SQLite file) the folders
 * that differ are read again. */
#include "lineage/internal.h"

#include <string.h>

#include "store/base/text/json.h"

bool fml_result_key_ok(const char *key)
{
    return key && strlen(key) == FM_HEX_CHARS && strspn(key, "0123456789abcdef") == FM_HEX_CHARS;
}

static fm_status check_key(fm_repo *r, const char *key)
{
    if (!r)
        return fm_fail(FM_EINVAL, "result: no repository");
    if (!fml_result_key_ok(key))
        return fm_fail(FM_EINVAL, "result key '%.80s' is not 64 lower-case hex digits",
                       key ? key : "");
    return FM_OK;
}

/* ---- git -> SQLite ---- */

typedef struct sync_ctx {
    fm_repo *r;
    git_tree *old; /* the tree that the rows agree with; NULL = none */
} sync_ctx;

static bool enter_changed(void *ctx, const git_oid *tree, const char *path)
{
    const sync_ctx *s = ctx;
    const git_tree_entry *e = s->old ? git_tree_entry_byname(s->old, path) : NULL;

    return !e || !git_oid_equal(git_tree_entry_id(e), tree);
}

/* Passes over names that are no keys; fsck reports them. */
static fm_status sync_blob(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    const sync_ctx *s = ctx;
    const char *key = fm_path_base(path);

    (void)id;
    if (!fml_result_key_ok(key) || strlen(path) != 3 + FM_HEX_CHARS || strncmp(path, key, 2) != 0)
        return FM_OK;
    return fml_rows_put(s->r->rows, key, bytes, true, true);
}

static git_tree *tree_of(fm_repo *r, const char *hex)
{
    git_commit *c = NULL;
    git_tree *tree = NULL;
    git_oid id;

    if (git_oid_fromstr(&id, hex) == 0 && git_commit_lookup(&c, r->git, &id) == 0 &&
        git_commit_tree(&tree, c) < 0)
        tree = NULL;
    git_commit_free(c);
    return tree;
}

static fm_status sync_rows(fm_repo *r, const char *have, const char *want)
{
    sync_ctx s = {r, *have ? tree_of(r, have) : NULL};
    fml_tree_visitor v = {.enter = enter_changed,
                          .blob = sync_blob,
                          .ctx = &s,
                          .max_blob_bytes = FML_MAX_RESULT_BYTES};
    git_tree *now = tree_of(r, want);
    fm_status rc;

    if (!now) {
        git_tree_free(s.old);
        return fm_fail(FM_ECORRUPT, FML_RESULTS_REF ": commit %s cannot be read", want);
    }
    rc = fml_rows_begin(r->rows);
    FM_THEN(rc, fml_tree_walk(r, git_tree_id(now), &v));
    FM_THEN(rc, fml_rows_set_head(r->rows, want));
    FM_THEN(rc, fml_rows_commit(r->rows));
    fml_rows_rollback(r->rows);
    git_tree_free(now);
    git_tree_free(s.old);
    return rc < 0 ? fm_error_prefix(rc, FML_RESULTS_REF) : FM_OK;
}

fm_status fml_results_sync(fm_repo *r)
{
    git_oid at;
    bool exists = false;
    char have[41], want[41] = "";
    fm_status rc = fml_rows_need(r);

    FM_THEN(rc, fml_rows_head(r->rows, have));
    FM_THEN(rc, fml_ref_peek(r, &at, &exists, FML_RESULTS_REF));
    if (rc < 0 || !exists)
        return rc;
    git_oid_fmt(want, &at);
    return strcmp(have, want) == 0 ? FM_OK : sync_rows(r, have, want);
}

fm_status fml_results_renew(fm_repo *r)
{
    FM_TRY(fml_rows_drop(r));

    return fml_results_sync(r);
}

/* ---- get, put ---- */

fm_status fm_result_get(fm_repo *r, fm_buf *out, const char key[65])
{
    fm_status rc = check_key(r, key);

    FM_THEN(rc, fml_rows_need(r));
    FM_THEN(rc, fml_rows_get(r->rows, out, key));
    if (rc == FM_ENOTFOUND) {
        rc = fml_results_sync(r);
        FM_THEN(rc, fml_rows_get(r->rows, out, key));
    }
    if (rc == FM_ECORRUPT) {
        rc = fml_results_renew(r);
        FM_THEN(rc, fml_rows_get(r->rows, out, key));
    }
    return rc;
}

fm_status fm_result_put(fm_repo *r, const char key[65], fm_span value)
{
    fm_json *json = NULL;
    FM_TRY(check_key(r, key));
    if (value.len > FML_MAX_RESULT_BYTES)
        return fm_fail(FM_ELIMIT, "result %.16s...: %zu bytes, at most %u", key, value.len,
                       FML_MAX_RESULT_BYTES);
    fm_status rc = fm_json_parse(&json, value, "result");
    fm_json_free(json);
    if (rc < 0)
        return rc == FM_ECORRUPT ? FM_EINVAL : rc;
    rc = fml_results_sync(r);
    return rc == FM_OK ? fml_rows_put(r->rows, key, value, false, false) : rc;
}

/* ---- SQLite -> git ---- */

typedef struct flush {
    fm_repo *r;
    git_tree *base;       /* of the ref, or NULL */
    git_treebuilder *top; /* of the new tree */
    git_treebuilder *sub; /* of the folder being filled */
    char folder[3];
    size_t count;
} flush;

static fm_status insert(git_treebuilder *b, const char *name, const git_oid *id, unsigned mode)
{
    int code = git_treebuilder_insert(NULL, b, name, id, (git_filemode_t)mode);

    return code < 0 ? fml_git_fail(code, "cannot add '%s' to a tree", name) : FM_OK;
}

static fm_status write_tree(fm_repo *r, git_treebuilder *b, git_oid *out)
{
    int code = git_treebuilder_write(out, b);

    return code < 0 ? fml_git_fail(code, "cannot write a tree") : fml_object_note(r, out);
}

static fm_status close_folder(flush *f)
{
    git_oid id;
    fm_status rc;

    if (!f->sub)
        return FM_OK;
    rc = write_tree(f->r, f->sub, &id);
    FM_THEN(rc, insert(f->top, f->folder, &id, GIT_FILEMODE_TREE));
    git_treebuilder_free(f->sub);
    f->sub = NULL;
    return rc;
}

static fm_status open_folder(flush *f, const char *key)
{
    const git_tree_entry *e;
    git_tree *old = NULL;
    int code = 0;
    FM_TRY(close_folder(f));
    memcpy(f->folder, key, 2);
    f->folder[2] = '\0';
    e = f->base ? git_tree_entry_byname(f->base, f->folder) : NULL;
    if (e && git_tree_entry_type(e) == GIT_OBJECT_TREE)
        code = git_tree_lookup(&old, f->r->git, git_tree_entry_id(e));
    if (code == 0)
        code = git_treebuilder_new(&f->sub, f->r->git, old);
    git_tree_free(old);
    return code < 0 ? fml_damage(code, FML_RESULTS_REF ": folder '%s'", f->folder) : FM_OK;
}

static fm_status flush_row(void *ctx, const char *key, fm_span value)
{
    flush *f = ctx;
    git_oid id;
    fm_status rc = FM_OK;

    if (!f->sub || strncmp(f->folder, key, 2) != 0)
        rc = open_folder(f, key);
    FM_THEN(rc, fml_object_put(f->r, &id, GIT_OBJECT_BLOB, value));
    FM_THEN(rc, insert(f->sub, key, &id, GIT_FILEMODE_BLOB));
    f->count++;
    return rc;
}

static fm_status flush_commit(flush *f, const git_oid *parent, git_oid *out)
{
    char message[64];
    fm_buf b = {0};
    fml_commit c = {.parent = parent, .parent_count = parent ? 1 : 0, .message = message};
    fm_status rc = write_tree(f->r, f->top, &c.tree);

    fm_buf_init(&b, sizeof message - 1);
    fm_buf_printf(&b, "results: %zu more\n", f->count);
    memcpy(message, fm_buf_cstr(&b), b.len + 1);
    fm_buf_release(&b);
    FM_THEN(rc, fml_commit_clock(&c.author_time));
    c.commit_time = c.author_time;
    return rc == FM_OK ? fml_commit_put(f->r, out, &c) : rc;
}

/* Runs under the ref lock and SQLite's: no result can be put between the read and the mark. */
static fm_status flush_locked(flush *f)
{
    fm_repo *r = f->r;
    git_oid at, to;
    bool exists = false;
    char hex[41] = "";
    int code;
    FM_TRY(fml_ref_peek(r, &at, &exists, FML_RESULTS_REF));
    git_oid_fmt(hex, &at);
    f->base = exists ? tree_of(r, hex) : NULL;
    if (exists && !f->base)
        return fm_fail(FM_ECORRUPT, FML_RESULTS_REF ": commit %s cannot be read", hex);
    code = git_treebuilder_new(&f->top, r->git, f->base);
    if (code < 0)
        return fml_git_fail(code, "cannot begin a tree");
    fm_status rc = fml_rows_unflushed(r->rows, flush_row, f);
    FM_THEN(rc, close_folder(f));
    if (rc < 0 || f->count == 0)
        return rc;
    rc = flush_commit(f, exists ? &at : NULL, &to);
    FM_THEN(rc, fml_objects_write(r));
    FM_THEN(rc, fml_ref_move(r, FML_RESULTS_REF, &to, exists ? &at : NULL, "results"));
    FM_THEN(rc, fml_rows_mark_flushed(r->rows));
    git_oid_fmt(hex, &to);
    return rc == FM_OK ? fml_rows_set_head(r->rows, hex) : rc;
}

fm_status fm_result_flush(fm_repo *r)
{
    flush f = {.r = r};
    fm_lock *lock = NULL;
    fm_status rc = r ? fml_ref_lock(r, &lock) : fm_fail(FM_EINVAL, "result: no repository");

    if (rc == FM_OK) /* the ref's rows first: the new results_head covers them */
        rc = fml_results_sync(r);
    FM_THEN(rc, fml_rows_begin(r->rows));
    FM_THEN(rc, flush_locked(&f));
    FM_THEN(rc, fml_rows_commit(r->rows));
    if (r) {
        fml_rows_rollback(r->rows);
        fml_objects_abort(r);
    }
    git_treebuilder_free(f.sub);
    git_treebuilder_free(f.top);
    git_tree_free(f.base);
    fm_lock_drop(lock);
    return rc;
}
