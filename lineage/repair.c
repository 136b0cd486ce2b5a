/* repair.c - replaces damaged or missing objects by sound copies from another repository or from
 * the file that was once imported. Every object is found by id and checked against it, so a wrong
 * source does no harm. Git's objects come first: the pointers in them name the store's. */
#include "lineage/internal.h"

#include <stdio.h>
#include <string.h>

#include <git2/sys/odb_backend.h>

#include "store/source.h"

typedef struct repair {
    fm_repo *r, *other; /* other NULL: copies come from a file or folder */
    fm_source *source;
    fm_map *by_id;   /* content id -> entry of the file or folder */
    fm_tree *wanted; /* entries under made-up paths */
    fm_map *known;   /* ids in `wanted` */
    fm_repair_report *out;
    uint64_t unreadable; /* git objects without a sound copy anywhere */
    git_oid *todo;
    size_t todo_count, todo_cap;
    fm_map *seen;
} repair;

/* ---- git's objects ---- */

static bool readable(fm_repo *r, const git_oid *id)
{
    git_odb_object *obj = NULL;
    bool yes = git_odb_read(&obj, r->odb, id) == 0;

    git_odb_object_free(obj);
    return yes;
}

/* Puts a sound copy in memory, which hides the damaged object; fml_packs_renew writes it. */
static fm_status mend_git(repair *p, const git_oid *id)
{
    git_odb_object *obj = NULL;
    fm_status rc = FM_OK;

    if (readable(p->r, id))
        return FM_OK;
    if (git_odb_read(&obj, p->other->odb, id) < 0) {
        p->unreadable++;
        return FM_OK;
    }
    if (p->r->fresh->write(p->r->fresh, id, git_odb_object_data(obj), git_odb_object_size(obj),
                           git_odb_object_type(obj)) < 0)
        rc = fml_git_fail(-1, "cannot hold a git object");
    FM_THEN(rc, fml_object_note(p->r, id));
    p->out->git_objects += rc == FM_OK;
    git_odb_object_free(obj);
    return rc;
}

static fm_status visit(repair *p, const git_oid *id)
{
    if (fm_map_has(p->seen, id->id, sizeof id->id))
        return FM_OK;
    FM_TRY(fm_map_put(p->seen, id->id, sizeof id->id, p, NULL));
    FM_TRY(fm_grow(&p->todo, &p->todo_cap, p->todo_count + 1, sizeof *p->todo));
    p->todo[p->todo_count++] = *id;
    return FM_OK;
}

static fm_status visit_children(repair *p, const git_object *obj)
{
    if (git_object_type(obj) == GIT_OBJECT_COMMIT) {
        const git_commit *c = (const git_commit *)obj;
        FM_TRY(visit(p, git_commit_tree_id(c)));
        for (unsigned i = 0; i < git_commit_parentcount(c); i++)
            FM_TRY(visit(p, git_commit_parent_id(c, i)));
    } else if (git_object_type(obj) == GIT_OBJECT_TREE) {
        const git_tree *t = (const git_tree *)obj;
        for (size_t i = 0; i < git_tree_entrycount(t); i++) {
            const git_tree_entry *e = git_tree_entry_byindex(t, i);
            if (git_tree_entry_filemode(e) != GIT_FILEMODE_COMMIT)
                FM_TRY(visit(p, git_tree_entry_id(e)));
        }
    } else if (git_object_type(obj) == GIT_OBJECT_TAG) {
        FM_TRY(visit(p, git_tag_target_id((const git_tag *)obj)));
    }
    return FM_OK;
}

static fm_status mend_reached(repair *p)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && p->todo_count > 0) {
        git_oid id = p->todo[--p->todo_count];
        git_object *obj = NULL;
        rc = mend_git(p, &id);
        if (rc == FM_OK && git_object_lookup(&obj, p->r->git, &id, GIT_OBJECT_ANY) == 0)
            rc = visit_children(p, obj);
        git_object_free(obj);
    }
    return rc;
}

static fm_status visit_refs(repair *p)
{
    git_reference_iterator *it = NULL;
    git_reference *ref = NULL;
    fm_status rc = FM_OK;
    int code = git_reference_iterator_new(&it, p->r->git);

    while (code == 0 && rc == FM_OK && (code = git_reference_next(&ref, it)) == 0) {
        if (git_reference_type(ref) == GIT_REFERENCE_DIRECT)
            rc = visit(p, git_reference_target(ref));
        git_reference_free(ref);
    }
    git_reference_iterator_free(it);
    return rc;
}

static bool still_bad(void *ctx, const git_oid *id)
{
    repair *p = ctx;
    return !readable(p->r, id);
}

static fm_status repair_git(repair *p)
{
    git_oid *id = NULL;
    size_t count = 0;
    fm_lock *lock = NULL;
    fm_status rc = fm_map_new(&p->seen);

    FM_THEN(rc, fml_ref_lock(p->r, &lock));
    FM_THEN(rc, fml_packed_ids(p->r, &id, &count));
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = mend_git(p, &id[i]);
    FM_THEN(rc, visit_refs(p));
    FM_THEN(rc, mend_reached(p));
    if (rc == FM_OK && p->out->git_objects)
        rc = fml_packs_renew(p->r, still_bad, p);
    fml_objects_abort(p->r);
    fm_lock_drop(lock);
    fm_free(id);
    return rc;
}

/* ---- the store's ---- */

static fm_status want(void *ctx, const char *rev, const char *path, const fm_entry *e)
{
    repair *p = ctx;
    char name[40];

    (void)rev;
    (void)path;
    if (fm_map_has(p->known, e->id.b, FM_DIGEST_BYTES))
        return FM_OK;
    fm_status rc = fm_map_put(p->known, e->id.b, FM_DIGEST_BYTES, p, NULL);
    snprintf(name, sizeof name, "%zu", fm_map_count(p->known));
    p->out->wanted++;
    if (rc != FM_OK)
        return rc;
    return e->kind == FM_ENTRY_TENSOR
               ? fm_tree_put_tensor(p->wanted, name, e->name, e->dtype, &e->shape, &e->id)
               : fm_tree_put_blob(p->wanted, name, &e->id, e->bytes);
}

/* Reads a sound copy of e. FM_ENOTFOUND, FM_ECORRUPT, FM_EBASE: the source has none. */
static fm_status fetch(repair *p, const fm_entry *e, fm_buf *to)
{
    if (p->other) {
        uint8_t *dst = fm_buf_extend(to, (size_t)e->bytes);
        return dst ? fm_store_read(fm_repo_store(p->other), &e->id, dst, e->bytes) : fm_buf_ok(to);
    }
    const fm_entry *there = fm_map_get(p->by_id, e->id.b, FM_DIGEST_BYTES);
    fm_provider from = fm_source_provider(p->source);
    return there && there->bytes == e->bytes ? fm_entry_read(to, &from, there)
                                             : fm_fail(FM_ENOTFOUND, "the source has it not");
}

static fm_status put_one(repair *p, fm_txn *t, const fm_entry *e)
{
    fm_buf bytes;
    fm_digest id;

    fm_buf_init(&bytes, (size_t)e->bytes + 1);
    fm_status rc = fetch(p, e, &bytes);
    if (rc == FM_ENOTFOUND || rc == FM_ECORRUPT || rc == FM_EBASE) {
        fm_error_clear();
        fm_buf_release(&bytes);
        return FM_OK;
    }
    FM_THEN(rc, e->kind == FM_ENTRY_TENSOR ? fm_txn_put_tensor(t, &id, e->dtype, &e->shape,
                                                               fm_buf_span(&bytes), NULL, &e->id)
                                           : fm_txn_put_blob(t, &id, fm_buf_span(&bytes), &e->id));
    p->out->objects += rc == FM_OK;
    fm_buf_release(&bytes);
    return rc;
}

static fm_status repair_store(repair *p)
{
    fm_txn *t = NULL;
    fm_status rc = fm_map_new(&p->known);

    FM_THEN(rc, fm_tree_new(&p->wanted));
    FM_THEN(rc, fm_repo_damage(p->r, want, p));
    FM_THEN(rc, fm_txn_begin(&t, p->r->store));
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(p->wanted); i++)
        rc = put_one(p, t, fm_tree_at(p->wanted, i));
    FM_THEN(rc, fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return rc;
}

static fm_status open_from(repair *p, const char *from)
{
    bool repo; /* fm_repo_open would take a folder above, and a model may lie inside r's */
    FM_TRY(fm_repo_is(from, &repo));
    if (repo)
        return fm_repo_open(&p->other, from);
    FM_TRY(fm_source_open(&p->source, from));
    FM_TRY(fm_map_new(&p->by_id));
    for (size_t i = 0; i < fm_tree_count(fm_source_tree(p->source)); i++) {
        const fm_entry *e = fm_tree_at(fm_source_tree(p->source), i);
        if (e->kind != FM_ENTRY_FILE)
            FM_TRY(fm_map_put(p->by_id, e->id.b, FM_DIGEST_BYTES, (void *)(uintptr_t)e, NULL));
    }
    return FM_OK;
}

fm_status fm_repo_repair(fm_repo *r, const char *from, fm_repair_report *out)
{
    repair p = {.r = r, .out = out};
    fm_status rc;

    if (!r || !from || !out)
        return fm_fail(FM_EINVAL, "repair: a repository, a source and a report are needed");
    memset(out, 0, sizeof *out);
    rc = open_from(&p, from);
    const bool self = rc == FM_OK && p.other && strcmp(p.other->path, r->path) == 0;
    FM_THEN(rc, fm_store_lease(r->store, true, "repair"));
    FM_THEN(rc, fm_store_salvage(r->store, &out->packs));
    if (rc == FM_OK && p.other && !self)
        rc = repair_git(&p);
    if (rc == FM_OK && !self)
        rc = repair_store(&p);
    fm_tree_free(p.wanted);
    fm_map_free(p.known);
    fm_map_free(p.seen);
    fm_map_free(p.by_id);
    fm_free(p.todo);
    fm_source_close(p.source);
    fm_repo_close(p.other);
    return rc;
}
