/* commit.c - writes a model tree as git trees and a commit, and reads a version back.
 *
 * fm_tree is sorted by whole path bytes, which is exactly git's order (a folder sorts as if its
 * name ended in '/'), so one pass over the entries writes every folder. Reading trusts nothing: a
 * clone may be hostile. */
#include "lineage/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/cancel.h"

/* ---- write ---- */

static fm_status put_blob(fm_repo *r, const fm_entry *e, git_oid *out)
{
    fm_buf b;
    fm_status rc;

    fm_buf_init(&b, 0);
    rc = fm_entry_encode(&b, e);
    FM_THEN(rc, fm_buf_ok(&b));
    FM_THEN(rc, fml_object_put(r, out, GIT_OBJECT_BLOB, fm_buf_span(&b)));
    fm_buf_release(&b);
    return rc;
}

/* Writes the folder of entries [begin, end), which share their first `skip` bytes, its path. Depth
 * is bounded by FM_MAX_PATH_BYTES / 2. */
static fm_status put_folder(fm_repo *r, const fm_tree *tree, size_t begin, size_t end, size_t skip,
                            git_oid *out)
{
    fm_buf b;
    fm_status rc = FM_OK;

    fm_buf_init(&b, 0);
    for (size_t i = begin; rc == FM_OK && i < end;) {
        rc = fm_go_on();
        if (rc < 0)
            break;
        const fm_entry *e = fm_tree_at(tree, i);
        const char *name = e->path + skip;
        size_t len = strcspn(name, "/"), next = i + 1;
        git_oid id;

        if (name[len] == '/') {
            while (next < end && strncmp(fm_tree_at(tree, next)->path + skip, name, len + 1) == 0)
                next++;
            rc = put_folder(r, tree, i, next, skip + len + 1, &id);
        } else {
            rc = put_blob(r, e, &id);
        }
        if (rc < 0)
            break;
        fm_buf_printf(&b, "%s %.*s", name[len] == '/' ? "40000" : "100644", (int)len, name);
        fm_buf_u8(&b, 0);
        fm_buf_append(&b, id.id, sizeof id.id);
        i = next;
    }
    FM_THEN(rc, fm_buf_ok(&b));
    FM_THEN(rc, fml_object_put(r, out, GIT_OBJECT_TREE, fm_buf_span(&b)));
    fm_buf_release(&b);
    return rc;
}

fm_status fml_check_stored(fm_repo *r, const fm_tree *tree)
{
    char hex[FM_HEX_CHARS + 1];

    /* A condemned object was taken from another version, not stored under this lease: the lease
     * must name it before gc deletes it. */
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);

        if (e->kind != FM_ENTRY_FILE && fms_store_condemned(r->store, &e->id))
            FM_TRY(fms_store_hold(r->store, FMS_HOLD_OBJECT, e->id.b, 1));
    }
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        fm_object_info info;
        if (e->kind == FM_ENTRY_FILE || fm_store_has(r->store, &e->id))
            continue;
        fm_status rc = fm_store_info(r->store, &info, &e->id); /* also reads the index anew */
        if (rc == FM_OK && fm_store_has(r->store, &e->id))
            continue;
        if (rc < 0 && rc != FM_ENOTFOUND)
            return fm_error_prefix(rc, "commit: '%s'", e->path);
        bool elsewhere;
        FM_TRY(fml_elsewhere(r, &e->id, &elsewhere));
        if (elsewhere)
            continue;
        fm_digest_hex(&e->id, hex);
        return fm_fail(FM_ENOTFOUND,
                       "commit: '%s' (sha256:%.16s...) is not in the store; commit the store's "
                       "transaction first",
                       e->path, hex);
    }
    return FM_OK;
}

fm_status fml_commit_clock(int64_t *out)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    char *end = NULL;
    long long v;

    *out = (int64_t)time(NULL);
    if (!epoch || !*epoch)
        return FM_OK;
    v = strtoll(epoch, &end, 10);
    if (*end || v < 0)
        return fm_fail(FM_EINVAL, "SOURCE_DATE_EPOCH='%.40s' is not seconds since 1970", epoch);
    *out = (int64_t)v;
    return FM_OK;
}

/* Times are UTC: the bytes of a commit then follow from its content and SOURCE_DATE_EPOCH. */
fm_status fml_commit_put(fm_repo *r, git_oid *out, const fml_commit *c)
{
    char hex[41] = "", *author = NULL;
    fm_buf b;
    FM_TRY(fml_author(&author, r, c->author));
    fm_buf_init(&b, 0);
    git_oid_fmt(hex, &c->tree);
    fm_buf_printf(&b, "tree %s\n", hex);
    for (size_t i = 0; i < c->parent_count; i++) {
        git_oid_fmt(hex, &c->parent[i]);
        fm_buf_printf(&b, "parent %s\n", hex);
    }
    fm_buf_printf(&b, "author %s %" PRId64 " +0000\n", author, c->author_time);
    fm_buf_printf(&b, "committer %s %" PRId64 " +0000\n\n", author, c->commit_time);
    fm_buf_str(&b, c->message);
    fm_status rc = fm_buf_ok(&b);
    FM_THEN(rc, fml_object_put(r, out, GIT_OBJECT_COMMIT, fm_buf_span(&b)));
    fm_buf_release(&b);
    fm_free(author);
    return rc;
}

/* Checks that parents exist and are named once. The commit is not dated before one: a walk by
 * commit time then shows children first without looking ahead. */
static fm_status read_parents(fm_repo *r, const fm_commit_opts *opts, git_oid *parent,
                              int64_t *commit_time)
{
    char hex[41];

    if (opts->parent_count > FM_MAX_PARENTS)
        return fm_fail(FM_ELIMIT, "commit: %" PRIu32 " parents, at most %u", opts->parent_count,
                       FM_MAX_PARENTS);
    if (opts->parent_count > 0 && !opts->parent)
        return fm_fail(FM_EINVAL, "commit: parents are counted but not given");
    for (uint32_t i = 0; i < opts->parent_count; i++) {
        git_commit *c = NULL;
        int code;
        parent[i] = fml_git_oid(&opts->parent[i]);
        fm_oid_hex(&opts->parent[i], hex);
        for (uint32_t k = 0; k < i; k++)
            if (git_oid_equal(&parent[i], &parent[k]))
                return fm_fail(FM_EINVAL, "commit: parent %s is given twice", hex);
        FM_TRY(fml_hold_commit(r, &parent[i]));
        code = git_commit_lookup(&c, r->git, &parent[i]);
        if (code < 0)
            return fml_git_fail(code, "commit: parent %s is no version here", hex);
        *commit_time = FM_MAX(*commit_time, (int64_t)git_commit_time(c));
        git_commit_free(c);
    }
    return FM_OK;
}

static fm_status commit_tree(fm_repo *r, git_oid *out, const fm_tree *tree,
                             const fm_commit_opts *opts, const char *message)
{
    git_oid parent[FM_MAX_PARENTS];
    fml_commit c = {.parent = parent,
                    .parent_count = opts->parent_count,
                    .author = opts->author,
                    .author_time = opts->time,
                    .message = message};
    FM_TRY(opts->time ? FM_OK : fml_commit_clock(&c.author_time));

    c.commit_time = c.author_time;
    FM_TRY(read_parents(r, opts, parent, &c.commit_time));
    FM_TRY(fml_check_stored(r, tree));
    FM_TRY(put_folder(r, tree, 0, fm_tree_count(tree), 0, &c.tree));
    FM_TRY(fml_commit_put(r, out, &c));
    FM_TRY(fml_objects_hold(r));

    return fml_objects_write(r);
}

fm_status fm_version_commit(fm_repo *r, fm_oid *out, const fm_tree *tree,
                            const fm_commit_opts *opts)
{
    fm_buf message;
    git_oid id;
    fm_status rc;

    memset(out, 0, sizeof *out);
    if (!r || !tree || !opts)
        return fm_fail(FM_EINVAL, "commit: a repository, a tree and options are needed");
    if (opts->time < 0)
        return fm_fail(FM_EINVAL, "commit: a time before 1970");
    fm_buf_init(&message, 0);
    rc = fml_message_make(&message, opts);
    FM_THEN(rc, fm_store_lease(r->store, true, "a commit"));
    FM_THEN(rc, commit_tree(r, &id, tree, opts, fm_buf_cstr(&message)));
    fm_buf_release(&message);
    if (rc < 0) {
        fml_objects_abort(r);
        return rc;
    }
    fml_from_git(out, &id);
    fm_ignore(fml_packs_repack(r, false), "the commit stands; the next one repacks");
    return FM_OK;
}

/* ---- read ---- */

typedef struct tree_walk {
    fm_repo *r;
    const fml_tree_visitor *v;
    char path[FM_MAX_PATH_BYTES + 1];
    uint64_t nodes;
} tree_walk;

static fm_status unreadable(const tree_walk *w, int code, const git_oid *id, const char *what)
{
    const fm_status rc = fml_damage(code, "tree path '%s': cannot read its git %s", w->path, what);

    return w->v->absent < 0 && !git_odb_exists(w->r->odb, id) ? w->v->absent : rc;
}

static fm_status walk_blob(tree_walk *w, const git_oid *id)
{
    git_odb_object *obj = NULL;
    git_object_t type = GIT_OBJECT_INVALID;
    size_t bytes = 0;
    fm_status rc;
    int code = git_odb_read_header(&bytes, &type, w->r->odb, id);

    if (code == 0 && type != GIT_OBJECT_BLOB)
        return fm_fail(FM_ECORRUPT, "tree path '%s': not a file but a %s", w->path,
                       git_object_type2string(type));
    if (code == 0 && bytes > w->v->max_blob_bytes)
        return fm_fail(FM_ECORRUPT, "tree path '%s': %zu bytes in git, at most %" PRIu64, w->path,
                       bytes, w->v->max_blob_bytes);
    if (code == 0)
        code = git_odb_read(&obj, w->r->odb, id);
    if (code < 0)
        return unreadable(w, code, id, "object");
    rc = w->v->blob(w->v->ctx, w->path, id,
                    fm_span_of(git_odb_object_data(obj), git_odb_object_size(obj)));
    git_odb_object_free(obj);
    return rc;
}

/* git_tree accepts entry names that no checkout could hold. fm_tree refuses them later, but would
 * take a '/' inside one name for a folder. */
static fm_status push_name(tree_walk *w, size_t *len, const git_tree_entry *e)
{
    const char *name = git_tree_entry_name(e);
    size_t n = strlen(name), at = *len;

    if (n == 0 || strchr(name, '/'))
        return fm_fail(FM_ECORRUPT, "tree path '%s': an entry named '%.80s'", w->path, name);
    if (at + 1 + n > FM_MAX_PATH_BYTES)
        return fm_fail(FM_ECORRUPT, "tree path '%.60s...' is longer than %u bytes", w->path,
                       FM_MAX_PATH_BYTES);
    if (at > 0)
        w->path[at++] = '/';
    memcpy(w->path + at, name, n + 1);
    *len = at + n;
    return FM_OK;
}

static fm_status walk_folder(tree_walk *w, const git_oid *id, size_t len)
{
    git_tree *tree = NULL;
    fm_status rc = FM_OK;
    int code = git_tree_lookup(&tree, w->r->git, id);

    if (code < 0)
        return unreadable(w, code, id, "tree");
    for (size_t i = 0; rc == FM_OK && i < git_tree_entrycount(tree); i++) {
        const git_tree_entry *e = git_tree_entry_byindex(tree, i);
        git_filemode_t mode = git_tree_entry_filemode(e);
        size_t at = len;

        rc = fm_go_on();
        FM_THEN(rc, push_name(w, &at, e));
        if (rc == FM_OK && ++w->nodes > FML_MAX_WALK_NODES)
            rc = fm_fail(FM_ECORRUPT, "tree path '%s': more than %u objects in one tree", w->path,
                         FML_MAX_WALK_NODES);
        if (rc < 0)
            break;
        if (mode == GIT_FILEMODE_TREE) {
            if (!w->v->enter || w->v->enter(w->v->ctx, git_tree_entry_id(e), w->path))
                rc = walk_folder(w, git_tree_entry_id(e), at);
        } else if (mode == GIT_FILEMODE_BLOB) {
            rc = walk_blob(w, git_tree_entry_id(e));
        } else {
            rc = fm_fail(FM_ECORRUPT, "tree path '%s': mode %o; only plain files and folders",
                         w->path, (unsigned)git_tree_entry_filemode_raw(e));
        }
        w->path[len] = '\0';
    }
    git_tree_free(tree);
    return rc;
}

fm_status fml_tree_walk(fm_repo *r, const git_oid *tree, const fml_tree_visitor *v)
{
    tree_walk *w = fm_calloc(1, sizeof *w);
    fm_status rc;

    if (!w)
        return FM_ENOMEM;
    w->r = r;
    w->v = v;
    rc = walk_folder(w, tree, 0);
    fm_free(w);
    return rc;
}

/* fm_tree's FM_EINVAL, for a mistake of its caller, becomes FM_ECORRUPT: the tree comes from
 * git. */
static fm_status decode_blob(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    fm_tree *tree = ctx;
    fm_status rc;

    (void)id;
    if (fm_tree_find(tree, path))
        return fm_fail(FM_ECORRUPT, "tree path '%s' is there twice", path);
    rc = fm_tree_put_encoded(tree, path, bytes);
    return rc == FM_EINVAL || rc == FM_ELIMIT ? FM_ECORRUPT : rc;
}

static fm_status lookup_commit(fm_repo *r, git_commit **out, const fm_oid *oid)
{
    git_oid id = fml_git_oid(oid);
    char hex[41];
    int code = git_commit_lookup(out, r->git, &id);

    if (code == 0)
        return FM_OK;
    fm_oid_hex(oid, hex);
    return fml_git_fail(code, "no version %s", hex);
}

static fm_status read_model(fm_repo *r, fm_tree **out, const git_oid *id)
{
    fml_tree_visitor v = {.blob = decode_blob, .max_blob_bytes = FM_INLINE_MAX_BYTES};
    fm_tree *tree = NULL;
    fm_status rc = fm_tree_new(&tree);

    *out = NULL;
    if (rc == FM_OK) {
        v.ctx = tree;
        rc = fml_tree_walk(r, id, &v);
    }
    if (rc < 0)
        fm_tree_free(tree);
    else
        *out = tree;
    return rc;
}

fm_status fml_tree_read(fm_repo *r, fm_tree **out, const git_commit *commit)
{
    *out = NULL;
    if (fml_message_encoding(git_commit_message_raw(commit)) > FML_ENCODING)
        return fm_fail(FM_EVERSION, "its tree is written by a newer fmstore");
    return read_model(r, out, git_commit_tree_id(commit));
}

fm_status fm_tree_of_id(fm_repo *r, fm_tree **out, const char *id)
{
    git_oid git;
    git_object *obj = NULL;
    fm_oid oid;
    fm_status rc = FM_OK;

    *out = NULL;
    if (!r || !id || git_oid_fromstr(&git, id) < 0)
        return fm_fail(FM_EINVAL, "tree: a repository and an id of 40 hex digits are needed");
    int code = git_object_lookup(&obj, r->git, &git, GIT_OBJECT_ANY);
    if (code < 0)
        return fml_git_fail(code, "no version or tree %s", id);
    FM_THEN(rc, fml_hold_commit(r, &git));
    fml_from_git(&oid, &git);
    if (rc == FM_OK && git_object_type(obj) == GIT_OBJECT_TREE)
        rc = read_model(r, out, &git);
    else if (rc == FM_OK && git_object_type(obj) == GIT_OBJECT_COMMIT)
        rc = fm_version_tree(r, out, &oid);
    else if (rc == FM_OK)
        rc = fm_fail(FM_ENOTFOUND, "no version or tree %s", id);
    git_object_free(obj);
    return rc;
}

fm_status fm_version_tree(fm_repo *r, fm_tree **out, const fm_oid *oid)
{
    git_commit *commit = NULL;
    fm_status rc;

    *out = NULL;
    if (!r || !oid)
        return fm_fail(FM_EINVAL, "version: a repository and an id are needed");
    rc = lookup_commit(r, &commit, oid);
    FM_THEN(rc, fml_tree_read(r, out, commit));
    git_commit_free(commit);
    if (rc < 0) {
        char hex[41];
        fm_oid_hex(oid, hex);
        return fm_error_prefix(rc, "version %.12s", hex);
    }
    return FM_OK;
}

/* Reads the blob at path into the tree. */
static fm_status read_entry(fm_repo *r, fm_tree *tree, const git_commit *commit, const char *path)
{
    git_tree *root = NULL;
    git_tree_entry *entry = NULL;
    git_blob *blob = NULL;
    fm_status rc = FM_OK;

    int code = git_commit_tree(&root, commit);
    if (code == 0)
        code = git_tree_entry_bypath(&entry, root, path);
    if (code == 0)
        code = git_blob_lookup(&blob, r->git, git_tree_entry_id(entry));
    if (code < 0)
        rc = fml_git_fail(code, "%s", path);
    else if (git_blob_rawsize(blob) > (git_object_size_t)FM_INLINE_MAX_BYTES)
        rc = fm_fail(FM_ECORRUPT, "%s: larger than a file or pointer of a version may be", path);
    else
        rc = fm_tree_put_encoded(
            tree, path, fm_span_of(git_blob_rawcontent(blob), (size_t)git_blob_rawsize(blob)));
    git_blob_free(blob);
    git_tree_entry_free(entry);
    git_tree_free(root);
    return rc;
}

fm_status fm_version_entry(fm_repo *r, fm_tree **out, const fm_oid *oid, const char *path)
{
    git_commit *commit = NULL;
    fm_tree *tree = NULL;

    *out = NULL;
    if (!r || !oid || !path)
        return fm_fail(FM_EINVAL, "version: a repository, an id and a path are needed");
    fm_status rc = fm_tree_new(&tree);
    FM_THEN(rc, lookup_commit(r, &commit, oid));
    FM_THEN(rc, read_entry(r, tree, commit, path));
    git_commit_free(commit);
    if (rc == FM_OK)
        *out = tree;
    else
        fm_tree_free(tree);
    return rc;
}

fm_status fml_version_of(fm_version *out, git_commit *commit)
{
    const git_signature *author = git_commit_author(commit);
    const char *message = git_commit_message_raw(commit);
    unsigned count = git_commit_parentcount(commit);
    fm_status rc;

    memset(out, 0, sizeof *out);
    fml_from_git(&out->oid, git_commit_id(commit));
    fml_from_git(&out->tree, git_commit_tree_id(commit));
    if (count > FM_MAX_PARENTS) {
        char hex[41];
        fm_oid_hex(&out->oid, hex);
        return fm_fail(FM_ELIMIT, "version %.12s has %u parents, at most %u", hex, count,
                       FM_MAX_PARENTS);
    }
    out->parent_count = (uint32_t)count;
    for (unsigned i = 0; i < count; i++)
        fml_from_git(&out->parent[i], git_commit_parent_id(commit, i));
    out->time = author ? (int64_t)author->when.time : (int64_t)git_commit_time(commit);
    out->author = fm_asprintf("%s <%s>", author ? author->name : "", author ? author->email : "");
    rc = out->author ? fml_message_read(out, message ? message : "") : FM_ENOMEM;
    if (rc < 0)
        fm_version_release(out);
    return rc;
}

fm_status fm_version_read(fm_repo *r, fm_version *out, const fm_oid *oid)
{
    git_commit *commit = NULL;
    fm_status rc;

    memset(out, 0, sizeof *out);
    if (!r || !oid)
        return fm_fail(FM_EINVAL, "version: a repository and an id are needed");
    rc = lookup_commit(r, &commit, oid);
    FM_THEN(rc, fml_version_of(out, commit));
    git_commit_free(commit);
    return rc;
}

void fm_version_release(fm_version *v)
{
    if (!v)
        return;
    fm_free(v->subject);
    fm_free(v->message);
    fm_free(v->author);
    fm_free(v->recipe);
    fm_free(v->data);
    memset(v, 0, sizeof *v);
}
