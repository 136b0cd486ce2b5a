/* fsck.c - checks that all objects that a ref reaches are present, readable and correct.
 *
 * Each git object is read once, whatever the number of versions that share it; libgit2 checks its
 * hash on the way. A pointer is checked against the store's record: id, dtype, shape, size. Then
 * each distinct tree is opened by the functions that open and export use, so that they can read
 * every version that fsck calls clean.
 *
 * Other processes may write meanwhile: refs are deleted, git's packs are joined, gc runs. So after
 * a pass with faults all of git is checked once more with gc and refs locked, and only the faults
 * of that second pass are reported. */
#include "lineage/internal.h"
#include "lineage/named.h"
#include "store/lease/doomed.h"
#include "store/source.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DEAD_PACK_SECONDS 3600
#define MAX_REF_DEPTH 100u
#define SHA1_BYTES 20u

typedef struct check {
    fm_repo *r;
    const fm_fsck_opts *opts;
    fm_buf lines;     /* faults of this pass, each with its NUL */
    fm_buf absent;    /* likewise, what names a version that is not here */
    uint64_t faults;  /* their number */
    uint64_t objects; /* of git, of this pass */
    bool rows_differ; /* of lineage.sqlite and git */
    fm_map *seen;     /* ids of trees and blobs that were checked */
    fm_map *commits;  /* ids of commits (and named trees) that were, or wait in todo */
    fm_map *named;    /* recipes, suites and their folders that were read for what they name */
    fm_map *missed;   /* hex of what was named and is not here */
    fms_condemned *condemned;
    fm_map *opened; /* trees that were opened, with the digest of the recipe that goes with them */
    git_oid *todo;
    size_t todo_count, todo_cap;
    const char *ref;
    char commit[41];
    bool is_model;  /* tree of pointers, not results or notes */
    fm_status stop; /* out of memory ends the walk */
} check;

static void say(check *c, const char *text)
{
    c->faults++;
    fm_buf_append(&c->lines, text, strlen(text) + 1);
    if (c->lines.failed)
        c->stop = FM_ENOMEM;
}

/* Notes the current error text as a fault, with the place in front. Lack of memory and cancellation
 * are no faults of the repository. */
static void say_error(check *c, fm_status rc)
{
    fm_status ignored;

    if (rc == FM_ENOMEM || rc == FM_ECANCELLED) {
        c->stop = rc;
        return;
    }
    ignored = fm_error_prefix(rc, "%s: version %.12s", c->ref, c->commit);
    fm_ignore(ignored, "the text is what counts");
    say(c, fm_error_text());
}

/* True the first time that id is met. */
static bool first_sight(check *c, fm_map *map, const git_oid *id)
{
    if (fm_map_has(map, id->id, sizeof id->id))
        return false;
    if (fm_map_put(map, id->id, sizeof id->id, c, NULL) < 0)
        c->stop = FM_ENOMEM;
    return true;
}

static fm_status check_pointer(check *c, const fm_entry *e)
{
    fm_object_info info;
    bool promised = false;
    fm_status rc = FM_OK;

    if (e->kind != FM_ENTRY_FILE)
        rc = fml_elsewhere(c->r, &e->id, &promised);
    if (rc < 0 || promised || e->kind == FM_ENTRY_FILE)
        return rc;
    rc = fm_store_info(c->r->store, &info, &e->id);
    if (rc < 0)
        return fm_error_prefix(rc, "tree path '%s'", e->path);
    if (info.is_blob != (e->kind == FM_ENTRY_BLOB) || info.bytes != e->bytes)
        return fm_fail(FM_ECORRUPT,
                       "tree path '%s': pointer says %" PRIu64 " bytes of a %s, store has %" PRIu64
                       " of a %s",
                       e->path, e->bytes, e->kind == FM_ENTRY_BLOB ? "blob" : "tensor", info.bytes,
                       info.is_blob ? "blob" : "tensor");
    if (e->kind == FM_ENTRY_TENSOR &&
        (info.dtype != e->dtype || !fm_shape_eq(&info.shape, &e->shape)))
        return fm_fail(FM_ECORRUPT, "tree path '%s': dtype or shape differs from the store's",
                       e->path);
    return FM_OK;
}

static fm_status model_blob(check *c, const char *path, fm_span bytes)
{
    fm_tree *one = NULL;
    fm_status rc = fm_tree_new(&one);

    FM_THEN(rc, fm_tree_put_encoded(one, path, bytes));
    FM_THEN(rc, check_pointer(c, fm_tree_at(one, 0)));
    fm_tree_free(one);
    return rc;
}

/* Notes a fault in one blob; the walk goes on. */
static fm_status on_blob(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    check *c = ctx;
    fm_status rc = FM_OK;

    if (!first_sight(c, c->seen, id))
        return c->stop;
    c->objects++;
    if (c->is_model)
        rc = model_blob(c, path, bytes);
    if (rc < 0)
        say_error(c, rc);
    return c->stop;
}

static bool on_folder(void *ctx, const git_oid *tree, const char *path)
{
    check *c = ctx;

    (void)path;
    if (!first_sight(c, c->seen, tree))
        return false;
    c->objects++;
    return true;
}

static void check_tree(check *c, const git_oid *tree)
{
    fml_tree_visitor v = {
        .enter = on_folder, .blob = on_blob, .ctx = c, .max_blob_bytes = FM_INLINE_MAX_BYTES};
    fm_status rc;

    if (!c->is_model)
        v.max_blob_bytes = FML_MAX_RESULT_BYTES;
    if (!first_sight(c, c->seen, tree))
        return;
    c->objects++;
    rc = fml_tree_walk(c->r, tree, &v);
    if (rc < 0 && c->stop == FM_OK)
        say_error(c, rc);
}

static void add_todo(check *c, const git_oid *id)
{
    if (!first_sight(c, c->commits, id))
        return;
    if (fm_grow(&c->todo, &c->todo_cap, c->todo_count + 1, sizeof *id) < 0)
        c->stop = FM_ENOMEM;
    else
        c->todo[c->todo_count++] = *id;
}

/* Versions that share a tree may still name different recipes. */
static bool first_opening(check *c, const git_commit *commit, const fm_version *v)
{
    fm_buf key;
    bool first = false;

    fm_buf_init(&key, 0);
    fm_buf_append(&key, git_commit_tree_id(commit)->id, SHA1_BYTES);
    fm_buf_str(&key, v->recipe ? v->recipe : "");
    if (fm_buf_ok(&key) < 0)
        c->stop = FM_ENOMEM;
    else
        first = !fm_map_has(c->opened, key.data, key.len);
    if (first && fm_map_put(c->opened, key.data, key.len, c, NULL) < 0)
        c->stop = FM_ENOMEM;
    fm_buf_release(&key);
    return first && c->stop == FM_OK;
}

static fm_status open_version(check *c, const git_commit *commit, const fm_version *v)
{
    fm_tree *tree = NULL;
    fm_provider p = fm_store_provider(c->r->store);
    fm_status rc = fml_tree_read(c->r, &tree, commit);

    FM_THEN(rc, fm_export_check(tree, &p));
    if (rc == FM_OK && c->opts->version)
        rc = c->opts->version(c->opts->ctx, v, tree);
    fm_tree_free(tree);
    return rc;
}

/* Opens a version after its objects were checked one by one, which names each bad one. */
static void check_version(check *c, git_commit *commit)
{
    fm_version v;
    fm_status rc = fml_version_of(&v, commit);

    if (rc == FM_OK && first_opening(c, commit, &v))
        rc = open_version(c, commit, &v);
    if (rc < 0 && c->stop == FM_OK)
        say_error(c, rc);
    fm_version_release(&v);
}

static fm_status enter_named(void *ctx, const git_oid *id, bool *yes)
{
    check *c = ctx;

    *yes = first_sight(c, c->named, id);
    return c->stop;
}

static fm_status is_stored(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    const check *c = ctx;
    fm_digest digest;
    bool is_tensor;

    (void)id;
    if (!fml_pointer_of(&digest, &is_tensor, bytes) || fm_store_has(c->r->store, &digest))
        return FM_OK;
    return fm_fail(FM_ENOTFOUND, "%s", path);
}

/* What gc gave up before anything named it may have lost its bytes. */
static bool is_half_gone(check *c, const git_oid *id)
{
    const fml_tree_visitor v = {.blob = is_stored, .ctx = c, .max_blob_bytes = FM_INLINE_MAX_BYTES};
    git_object *obj = NULL, *tree = NULL;
    bool gone = false;

    if (!fms_condemned_git(c->condemned, id->id))
        return false;
    if (git_object_lookup(&obj, c->r->git, id, GIT_OBJECT_ANY) < 0 ||
        git_object_peel(&tree, obj, GIT_OBJECT_TREE) < 0 ||
        fml_tree_walk(c->r, git_object_id(tree), &v) < 0)
        gone = true;
    fm_error_clear();
    git_object_free(tree);
    git_object_free(obj);
    return gone;
}

/* What is named is reached, so gc needs it whole. */
static fm_status check_name(void *ctx, const char *path, fm_span hex, const char *key)
{
    check *c = ctx;
    git_oid id;
    bool there;

    FM_TRY(fml_named_find(c->r, hex, &id, &there));
    if (there && !fm_map_has(c->commits, id.id, sizeof id.id) && !is_half_gone(c, &id)) {
        add_todo(c, &id);
        return c->stop;
    }
    if (!key || (there && fm_map_has(c->commits, id.id, sizeof id.id)) ||
        fm_map_has(c->missed, hex.data, hex.len)) /* digits of a text; here; told */
        return FM_OK;
    fm_buf_printf(&c->absent, "%s: version %.12s: %s names %s %.*s, which is not here", c->ref,
                  c->commit, path, key, (int)hex.len, (const char *)hex.data);
    fm_buf_append(&c->absent, "", 1);
    FM_TRY(fm_buf_ok(&c->absent));
    return fm_map_put(c->missed, hex.data, hex.len, c, NULL);
}

static void check_names(check *c, const git_oid *tree)
{
    const fml_named v = {enter_named, check_name, c};
    fm_status rc = fml_named_each(c->r, tree, &v);

    if (rc < 0 && c->stop == FM_OK)
        say_error(c, rc);
}

/* A suite may name a version's tree. */
static void check_named_tree(check *c, const git_oid *id)
{
    uint64_t before = c->faults;

    git_oid_fmt(c->commit, id);
    check_tree(c, id);
    if (c->faults == before && c->stop == FM_OK)
        check_names(c, id);
}

static void check_commit(check *c, const git_oid *id)
{
    git_commit *commit = NULL;
    uint64_t before = c->faults;
    int code = git_commit_lookup(&commit, c->r->git, id);

    git_oid_fmt(c->commit, id);
    if (code < 0) {
        say_error(c, fml_damage(code, "cannot be read"));
        return;
    }
    c->objects++;
    for (unsigned i = 0; i < git_commit_parentcount(commit); i++)
        add_todo(c, git_commit_parent_id(commit, i));
    check_tree(c, git_commit_tree_id(commit));
    if (c->is_model && c->faults == before && c->stop == FM_OK)
        check_version(c, commit);
    if (c->is_model && c->faults == before && c->stop == FM_OK)
        check_names(c, git_commit_tree_id(commit));
    git_commit_free(commit);
}

static void check_history(check *c, const git_oid *tip)
{
    c->is_model = !fm_starts_with(c->ref, FML_RESULTS_REF) &&
                  !fm_starts_with(c->ref, FML_INCOMING) && !fm_starts_with(c->ref, "refs/notes/");
    add_todo(c, tip);
    while (c->stop == FM_OK && c->todo_count > 0) {
        git_oid next = c->todo[--c->todo_count];
        size_t bytes;
        git_object_t type = GIT_OBJECT_INVALID;
        if (git_odb_read_header(&bytes, &type, c->r->odb, &next) == 0 && type == GIT_OBJECT_TREE)
            check_named_tree(c, &next);
        else
            check_commit(c, &next);
    }
}

/* Reports a bad ref by name; other refs are checked all the same. A ref to something else than a
 * commit (a tag of a file) has no history; a symbolic ref without its branch is no fault. */
static void check_ref(check *c, const char *name)
{
    git_reference *ref = NULL;
    git_object *obj = NULL;
    bool symbolic = false;
    int code = git_reference_lookup(&ref, c->r->git, name);

    c->ref = name;
    if (code == 0) {
        symbolic = git_reference_type(ref) == GIT_REFERENCE_SYMBOLIC;
        code = git_reference_peel(&obj, ref, GIT_OBJECT_COMMIT);
    }
    if (code == 0) {
        check_history(c, git_object_id(obj));
    } else if (code != GIT_EPEEL && code != GIT_EINVALIDSPEC && code != GIT_EAMBIGUOUS &&
               !(code == GIT_ENOTFOUND && symbolic)) {
        fm_ignore(fml_damage(code, "ref '%s' points to nothing readable", name),
                  "the text is what counts");
        say(c, fm_error_text());
    }
    git_object_free(obj);
    git_reference_free(ref);
}

static fm_status add_name(check *c, fm_map *names, const char *name)
{
    return fm_map_put(names, name, strlen(name) + 1, c, NULL);
}

/* Lists the files below a folder of refs, readable or not. */
static fm_status loose_names(check *c, fm_map *names, const char *folder, unsigned depth)
{
    char *dir = fm_path_join(c->r->git_path, folder);
    fm_names files = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&files, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char *name = fm_path_join(folder, files.name[i]);
        char *path = name ? fm_path_join(c->r->git_path, name) : NULL;
        size_t len = name ? strlen(name) : 0;
        if (!path)
            rc = FM_ENOMEM;
        else if (fm_path_is_dir(path))
            rc = depth < MAX_REF_DEPTH ? loose_names(c, names, name, depth + 1) : FM_OK;
        else if (len < 5 || strcmp(name + len - 5, ".lock") != 0)
            rc = add_name(c, names, name);
        fm_free(name);
        fm_free(path);
    }
    fm_names_release(&files);
    fm_free(dir);
    return rc == FM_ENOTFOUND && depth > 0 ? FM_OK : rc; /* the last ref in it was deleted */
}

/* libgit2's iterator passes over a file that holds no id, so the files are listed too. */
static fm_status all_names(check *c, fm_map *names)
{
    git_reference_iterator *it = NULL;
    const char *name = NULL;
    fm_status rc = loose_names(c, names, "refs", 0);
    int code = git_reference_iterator_new(&it, c->r->git);

    while (rc == FM_OK && code == 0 && (code = git_reference_next_name(&name, it)) == 0)
        rc = add_name(c, names, name);
    git_reference_iterator_free(it);
    if (rc == FM_OK && code < 0 && code != GIT_ITEROVER) {
        fm_ignore(fml_damage(code, "the refs of '%s' cannot be listed", c->r->git_path),
                  "the text is what counts");
        say(c, fm_error_text());
    }
    return rc;
}

static fm_status check_refs(check *c)
{
    fm_map *names = NULL;
    fm_status rc = fm_map_new(&names);

    FM_THEN(rc, all_names(c, names));
    for (size_t i = 0; rc == FM_OK && c->stop == FM_OK && i < fm_map_count(names); i++)
        check_ref(c, (const char *)fm_map_key_at(names, i).data);
    fm_map_free(names);
    return rc < 0 ? rc : c->stop;
}

/* ---- results ---- */

static fm_status compare_row(void *ctx, const char *key, fm_span value)
{
    check *c = ctx;
    char spec[128];
    git_object *obj = NULL;
    fm_buf b;

    fm_buf_init(&b, sizeof spec - 1);
    fm_buf_printf(&b, FML_RESULTS_REF ":%.2s/%.64s", key, key);
    memcpy(spec, fm_buf_cstr(&b), b.len + 1);
    fm_buf_release(&b);
    if (git_revparse_single(&obj, c->r->git, spec) < 0 || git_object_type(obj) != GIT_OBJECT_BLOB) {
        fm_ignore(fm_fail(FM_ECORRUPT, "result %.16s...: in lineage.sqlite, not in git", key),
                  "the text is what counts");
        say(c, fm_error_text());
    } else {
        const git_blob *blob = (const git_blob *)obj;
        fm_span have = fm_span_of(git_blob_rawcontent(blob), (size_t)git_blob_rawsize(blob));
        if (!fm_span_eq(have, value)) {
            fm_ignore(fm_fail(FM_ECORRUPT, "result %.16s...: lineage.sqlite and git differ", key),
                      "the text is what counts");
            say(c, fm_error_text());
        }
    }
    git_object_free(obj);
    return FM_OK;
}

static fm_status check_results(check *c)
{
    uint64_t before = c->faults;
    fm_status rc = fml_results_sync(c->r);

    FM_THEN(rc, fml_rows_check(c->r->rows));
    FM_THEN(rc, fml_rows_flushed(c->r->rows, compare_row, c));
    if (rc == FM_ECORRUPT) {
        say(c, fm_error_text());
        rc = FM_OK;
    }
    c->rows_differ = c->faults > before;
    return rc;
}

/* Deletes old temporary files that a killed process left; young ones may still be written. */
static fm_status sweep_packs(const fm_repo *r, fm_fsck_report *out)
{
    char *dir = fm_path_join(r->git_path, "objects/pack");
    fm_names names = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        char *path =
            fm_starts_with(names.name[i], "pack_git2_") ? fm_path_join(dir, names.name[i]) : NULL;
        struct stat st;
        if (path && lstat(path, &st) == 0 && time(NULL) - st.st_mtime > DEAD_PACK_SECONDS) {
            rc = fm_remove_file(path);
            out->repaired += rc == FM_OK;
            rc = rc == FM_ENOTFOUND ? FM_OK : rc; /* another process swept it */
        }
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}

/* Checks a pack's checksum: this covers bytes that no ref reaches, and names the file. The objects
 * themselves are checked when they are read. */
static fm_status check_pack(check *c, const char *dir, const char *name)
{
    char *path = fm_path_join(dir, name);
    fm_file_map map = {NULL, 0};
    uint8_t sum[SHA1_BYTES];
    fm_status rc = path ? fm_map_file(&map, path) : FM_ENOMEM;

    if (rc == FM_ENOTFOUND) { /* repacked away since it was listed */
        rc = FM_OK;
    } else if (rc == FM_OK && map.len > SHA1_BYTES) {
        rc = fm_sha1(sum, map.data, map.len - SHA1_BYTES);
        if (rc == FM_OK && memcmp(sum, map.data + map.len - SHA1_BYTES, SHA1_BYTES) != 0)
            rc = fm_fail(FM_ECORRUPT, "%s: its checksum is wrong", path);
    } else if (rc == FM_OK) {
        rc = fm_fail(FM_ECORRUPT, "%s: is no git pack", path);
    }
    if (rc == FM_ECORRUPT) {
        say(c, fm_error_text());
        rc = FM_OK;
    }
    fm_unmap_file(&map);
    fm_free(path);
    return rc;
}

static fm_status check_packs(check *c)
{
    char *dir = fm_path_join(c->r->git_path, "objects/pack");
    fm_names names = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        size_t len = strlen(names.name[i]);
        if (fm_starts_with(names.name[i], "pack-") && strcmp(names.name[i] + len - 5, ".pack") == 0)
            rc = check_pack(c, dir, names.name[i]);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}

static void end_pass(check *c)
{
    fm_map_free(c->seen);
    fm_map_free(c->commits);
    fm_map_free(c->opened);
    fm_map_free(c->named);
    fm_map_free(c->missed);
    fms_condemned_free(c->condemned);
    fm_free(c->todo);
    fm_buf_release(&c->lines);
    fm_buf_release(&c->absent);
}

static fm_status look(check *c, fm_repo *r, const fm_fsck_opts *opts)
{
    *c = (check){.r = r, .opts = opts, .ref = "", .is_model = true};
    fm_buf_init(&c->lines, 0);
    fm_buf_init(&c->absent, 0);
    FM_TRY(fm_map_new(&c->seen));
    FM_TRY(fm_map_new(&c->commits));
    FM_TRY(fm_map_new(&c->opened));
    FM_TRY(fm_map_new(&c->named));
    FM_TRY(fm_map_new(&c->missed));
    if (git_odb_refresh(r->odb) < 0)
        return fml_damage(-1, "the objects of '%s' cannot be listed", r->git_path);
    fm_status rc = fms_condemned_read(&c->condemned, r->path);
    if (rc == FM_ECORRUPT) { /* then nothing is condemned */
        fm_error_clear();
        rc = FM_OK;
    }
    FM_TRY(rc);
    FM_TRY(check_packs(c));
    FM_TRY(check_refs(c));
    return check_results(c);
}

/* Takes both locks; goes on without them on a read-only disk, where no fmstore process can
 * write. */
static fm_status hold_still(fm_repo *r, fm_lock **gc, fm_lock **refs)
{
    char *path = fm_path_join(r->path, "gc.lock");
    fm_status rc = path ? fm_lock_take(gc, path) : FM_ENOMEM;

    FM_THEN(rc, fml_ref_lock(r, refs));
    if (rc == FM_EIO) {
        fm_error_clear();
        rc = FM_OK;
    }
    fm_free(path);
    return rc;
}

static fm_status look_again(check *c, fm_repo *r, const fm_fsck_opts *opts)
{
    fm_lock *gc = NULL, *refs = NULL;
    fm_status rc = hold_still(r, &gc, &refs);

    end_pass(c);
    *c = (check){.r = r};
    fm_buf_init(&c->lines, 0);
    fm_buf_init(&c->absent, 0);
    FM_THEN(rc, look(c, r, opts));
    fm_lock_drop(refs);
    fm_lock_drop(gc);
    return rc;
}

static void tell(const check *c, const fm_buf *lines, fm_fault_fn fn)
{
    for (size_t at = 0; fn && at < lines->len; at += strlen((char *)lines->data + at) + 1)
        fn(c->opts->ctx, (char *)lines->data + at);
}

static void tell_all(const check *c, fm_fsck_report *out)
{
    tell(c, &c->lines, c->opts->fault);
    tell(c, &c->absent, c->opts->absent);
    out->faults += c->faults;
    out->objects += c->objects;
}

static fm_status check_git(fm_repo *r, const fm_fsck_opts *opts, fm_fsck_report *out)
{
    check c;
    bool mended = false;
    fm_status rc = look(&c, r, opts);

    if (c.faults > 0 && (rc == FM_OK || rc == FM_ECORRUPT))
        rc = look_again(&c, r, opts);
    if (rc == FM_OK)
        tell_all(&c, out);
    FM_THEN(rc, fml_head_mend(r, &mended));
    if (mended)
        out->repaired++;
    FM_THEN(rc, sweep_packs(r, out));
    if (rc == FM_OK && c.rows_differ) {
        rc = fml_results_renew(r);
        out->repaired += rc == FM_OK;
        rc = rc == FM_ECORRUPT ? FM_OK : rc; /* git's copy is damaged, and was reported */
    }
    end_pass(&c);
    return rc;
}

fm_status fm_repo_fsck_as(fm_repo *r, const fm_fsck_opts *opts, fm_fsck_report *out)
{
    if (!out || !opts)
        return fm_fail(FM_EINVAL, "fsck: a report and options are needed");
    memset(out, 0, sizeof *out);
    if (!r)
        return fm_fail(FM_EINVAL, "fsck: no repository");
    FM_TRY(!opts->full && opts->share
               ? fm_store_fsck_oldest(r->store, opts->share, out, opts->fault, opts->ctx)
               : fm_store_fsck(r->store, opts->full, out, opts->fault, opts->ctx));
    FM_TRY(check_git(r, opts, out));
    if (opts->full && out->faults == 0)
        FM_TRY(fm_store_forget_missing(r->store));
    return FM_OK;
}

fm_status fm_repo_fsck(fm_repo *r, bool full, fm_fsck_report *out, fm_fault_fn fault, void *ctx)
{
    const fm_fsck_opts opts = {.full = full, .fault = fault, .ctx = ctx};

    return fm_repo_fsck_as(r, &opts, out);
}

fm_status fm_repo_rebuild_index(fm_repo *r)
{
    FM_TRY(r ? fm_store_rebuild_index(r->store) : fm_fail(FM_EINVAL, "no repository"));

    return fml_results_renew(r);
}
