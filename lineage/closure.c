/* closure.c - the walk over what versions reach. */
#include "lineage/closure.h"
#include "lineage/named.h"
#include "store/base/cancel.h"

#include <string.h>

#define KNOWN ((void *)(uintptr_t)1)
#define WANTED ((void *)(uintptr_t)2)

fm_status fml_closure_init(fml_closure *c, fm_repo *r)
{
    memset(c, 0, sizeof *c);
    c->r = r;
    FM_TRY(fm_map_new(&c->named));
    return fm_map_new(&c->seen);
}

void fml_closure_release(fml_closure *c)
{
    fm_map_free(c->seen);
    fm_map_free(c->named);
    fm_free(c->todo);
    memset(c, 0, sizeof *c);
}

/* *walk: the object is met for the first time. Then its function was called. */
static fm_status meet(fml_closure *c, const git_oid *id, bool *walk)
{
    *walk = false;
    if (fm_map_has(c->seen, id->id, sizeof id->id) || (c->pass && c->pass(c->ctx, id)))
        return FM_OK;
    FM_TRY(fm_map_put(c->seen, id->id, sizeof id->id, c->known ? KNOWN : WANTED, NULL));
    *walk = true;
    return c->known || !c->object ? FM_OK : c->object(c->ctx, id, c->path);
}

/* Of an object that cannot be read. */
static fm_status absent(const fml_closure *c, int code, const git_oid *id)
{
    char hex[41] = "";

    git_oid_fmt(hex, id);
    if (code != GIT_ENOTFOUND)
        return fml_damage(code, "version %.12s: '%s': git object %s", c->version, c->path, hex);
    if (c->known)
        return FM_OK;
    return fm_fail(FM_ENOTFOUND, "version %.12s: '%s': git object %s is not here", c->version,
                   c->path, hex);
}

static fm_status read_file(fml_closure *c, const git_oid *id)
{
    git_odb_object *obj = NULL;
    git_object_t type;
    size_t bytes = 0;
    fm_status rc = FM_OK;

    if (c->known || !c->file)
        return FM_OK;
    int code = git_odb_read_header(&bytes, &type, c->r->odb, id);
    if (code == 0 && bytes > FM_INLINE_MAX_BYTES)
        return FM_OK;
    if (code == 0)
        code = git_odb_read(&obj, c->r->odb, id);
    if (code < 0)
        return absent(c, code, id);
    rc = c->file(c->ctx, c->path, fm_span_of(git_odb_object_data(obj), git_odb_object_size(obj)));
    git_odb_object_free(obj);
    return rc;
}

static fm_status walk_tree(fml_closure *c, const git_oid *id, size_t len);

static fm_status walk_entry(fml_closure *c, const git_tree_entry *e, size_t len)
{
    const char *name = git_tree_entry_name(e);
    const size_t n = strlen(name), at = len + (len > 0);
    const git_filemode_t mode = git_tree_entry_filemode(e);
    bool walk;

    if (mode == GIT_FILEMODE_COMMIT) /* a submodule: another repository's */
        return FM_OK;
    FM_TRY(fm_go_on());
    if (at + n > FM_MAX_PATH_BYTES)
        return fm_fail(FM_ECORRUPT, "version %.12s: path '%.60s...' is longer than %u bytes",
                       c->version, c->path, FM_MAX_PATH_BYTES);
    if (len > 0)
        c->path[len] = '/';
    memcpy(c->path + at, name, n + 1);
    fm_status rc = meet(c, git_tree_entry_id(e), &walk);
    if (rc == FM_OK && walk)
        rc = mode == GIT_FILEMODE_TREE ? walk_tree(c, git_tree_entry_id(e), at + n)
                                       : read_file(c, git_tree_entry_id(e));
    c->path[len] = '\0';
    return rc;
}

static fm_status walk_tree(fml_closure *c, const git_oid *id, size_t len)
{
    git_tree *tree = NULL;
    fm_status rc = FM_OK;
    int code = git_tree_lookup(&tree, c->r->git, id);

    if (code < 0)
        return absent(c, code, id);
    if (++c->depth > FML_TREE_DEPTH_MAX)
        rc = fm_fail(FM_ECORRUPT, "version %.12s: folders in folders, more than %u deep",
                     c->version, FML_TREE_DEPTH_MAX);
    for (size_t i = 0; rc == FM_OK && i < git_tree_entrycount(tree); i++)
        rc = walk_entry(c, git_tree_entry_byindex(tree, i), len);
    c->depth--;
    git_tree_free(tree);
    return rc;
}

static fm_status later(fml_closure *c, const git_oid *id)
{
    bool walk;
    FM_TRY(meet(c, id, &walk));
    if (!walk)
        return FM_OK;
    FM_TRY(fm_grow(&c->todo, &c->todo_cap, c->todo_count + 1, sizeof *c->todo));
    c->todo[c->todo_count++] = *id;
    return FM_OK;
}

/* ---- what a version names ---- */

static fm_status enter_named(void *ctx, const git_oid *id, bool *yes)
{
    fml_closure *c = ctx;

    *yes = fm_map_get(c->seen, id->id, sizeof id->id) != KNOWN &&
           !fm_map_has(c->named, id->id, sizeof id->id);
    return *yes ? fm_map_put(c->named, id->id, sizeof id->id, c, NULL) : FM_OK;
}

static bool is_seen(void *ctx, const git_oid *id)
{
    const fml_closure *c = ctx;

    return fm_map_has(c->seen, id->id, sizeof id->id);
}

static fm_status is_stored(void *ctx, const char *path, fm_span bytes)
{
    const fml_closure *c = ctx;
    fm_digest id;
    bool is_tensor;

    if (!fml_pointer_of(&id, &is_tensor, bytes) || fm_store_has(c->r->store, &id))
        return FM_OK;
    return fm_fail(FM_ENOTFOUND, "%s", path);
}

/* gc may have taken the bytes of a condemned version that is named, and left its commit. */
static fm_status is_whole(fml_closure *c, const git_oid *id, bool *whole)
{
    fml_closure probe;

    *whole = true;
    if (!fms_store_git_condemned(c->r->store, id->id))
        return FM_OK;
    fm_status rc = fml_closure_init(&probe, c->r);
    probe.file = is_stored;
    probe.pass = is_seen;
    probe.ctx = c;
    FM_THEN(rc, fml_closure_add(&probe, id));
    fml_closure_release(&probe);
    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    fm_error_clear();
    *whole = false;
    return FM_OK;
}

static fm_status take_name(void *ctx, const char *path, fm_span hex, const char *key)
{
    fml_closure *c = ctx;
    git_oid id;
    bool there, whole;

    (void)path;
    (void)key;
    FM_TRY(fml_named_find(c->r, hex, &id, &there));
    if (!there || is_seen(c, &id))
        return FM_OK;
    FM_TRY(is_whole(c, &id, &whole));
    if (whole && c->name)
        FM_TRY(c->name(c->ctx, &id));
    return whole ? later(c, &id) : FM_OK;
}

static fm_status walk_model(fml_closure *c, const git_oid *tree)
{
    const fml_named v = {enter_named, take_name, c};

    FM_TRY(walk_tree(c, tree, 0));
    return c->names && !c->known ? fml_named_each(c->r, tree, &v) : FM_OK;
}

/* ---- versions ---- */

static fm_status walk_commit(fml_closure *c, const git_commit *commit)
{
    bool walk = false;

    for (unsigned i = 0; i < git_commit_parentcount(commit); i++)
        FM_TRY(later(c, git_commit_parent_id(commit, i)));
    FM_TRY(meet(c, git_commit_tree_id(commit), &walk));
    return walk ? walk_model(c, git_commit_tree_id(commit)) : FM_OK;
}

static fm_status walk_next(fml_closure *c, const git_oid *id)
{
    git_object *obj = NULL;
    fm_status rc = fm_go_on();

    git_oid_fmt(c->version, id);
    if (rc < 0)
        return rc;
    int code = git_object_lookup(&obj, c->r->git, id, GIT_OBJECT_ANY);
    if (code < 0)
        return absent(c, code, id);
    const git_object_t type = git_object_type(obj);
    if (type == GIT_OBJECT_COMMIT)
        rc = walk_commit(c, (const git_commit *)obj);
    else if (type == GIT_OBJECT_TREE)
        rc = walk_model(c, id);
    else if (type == GIT_OBJECT_TAG)
        rc = later(c, git_tag_target_id((const git_tag *)obj));
    else
        rc = read_file(c, id);
    git_object_free(obj);
    return rc;
}

fm_status fml_closure_add(fml_closure *c, const git_oid *id)
{
    c->path[0] = '\0';
    c->depth = 0;
    fm_status rc = later(c, id);
    while (rc == FM_OK && c->todo_count > 0) {
        const git_oid next = c->todo[--c->todo_count];
        rc = walk_next(c, &next);
    }
    c->todo_count = 0;
    return rc;
}
