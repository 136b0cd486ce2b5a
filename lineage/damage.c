/* damage.c - finds the versions and paths that a damaged or missing object affects.
 *
 * A version's name is the shortest walk along first parents from a branch or tag ("main~2"), or the
 * beginning of its id. A folder without damage is read once, whatever the number of versions that
 * share it. Unreadable git objects are reported by fsck, not here. */
#include "lineage/internal.h"
#include "lineage/named.h"
#include "store/lease/doomed.h"

#include <stdio.h>
#include <string.h>

#define CLEAN ((void *)1)
#define DIRTY ((void *)2)
#define MAX_TREE_DEPTH 1100u

typedef struct search {
    fm_repo *r;
    fm_damage_fn fn;
    void *ctx;
    fm_map *state; /* git id of a folder or file -> CLEAN or DIRTY */
    fm_map *seen;  /* commits, and trees that are named */
    fm_map *named; /* recipes, suites and their folders that were read for what they name */
    fms_condemned *condemned;
    git_oid *todo; /* that no walk along first parents met */
    size_t todo_count, todo_cap;
    char rev[FML_MAX_REF_BYTES + 32];
    char path[FM_MAX_PATH_BYTES + 1];
    unsigned depth;
} search;

static fm_status look_at_file(search *s, const git_oid *id, bool *dirty)
{
    git_odb_object *obj = NULL;
    fm_tree *one = NULL;
    fm_status rc = FM_OK;

    *dirty = false;
    if (git_odb_read(&obj, s->r->odb, id) < 0)
        return FM_OK;
    rc = fm_tree_new(&one);
    FM_THEN(rc, fm_tree_put_encoded(
                    one, "x", fm_span_of(git_odb_object_data(obj), git_odb_object_size(obj))));
    const fm_entry *e = rc == FM_OK ? fm_tree_at(one, 0) : NULL;
    if (rc != FM_ENOMEM) /* not a valid pointer: fsck reports it */
        rc = FM_OK;
    bool promised = false;
    *dirty = e && e->kind != FM_ENTRY_FILE && !fm_store_has(s->r->store, &e->id);
    if (*dirty)
        rc = fml_elsewhere(s->r, &e->id, &promised);
    *dirty = *dirty && !promised;
    if (rc == FM_OK && *dirty)
        rc = s->fn(s->ctx, s->rev, s->path, e);
    fm_tree_free(one);
    git_odb_object_free(obj);
    return rc;
}

static fm_status look_at_folder(search *s, const git_oid *id, size_t len, bool *dirty);

static fm_status look_at_entry(search *s, const git_tree_entry *e, size_t len, bool *dirty)
{
    const git_oid *id = git_tree_entry_id(e);
    const char *name = git_tree_entry_name(e);
    size_t n = strlen(name), at = len;
    fm_status rc = FM_OK;

    *dirty = false;
    if (fm_map_get(s->state, id->id, sizeof id->id) == CLEAN || len + n + 1 > FM_MAX_PATH_BYTES)
        return FM_OK;
    if (at > 0)
        s->path[at++] = '/';
    memcpy(s->path + at, name, n + 1);
    if (git_tree_entry_filemode(e) == GIT_FILEMODE_TREE)
        rc = look_at_folder(s, id, at + n, dirty);
    else if (git_tree_entry_filemode(e) != GIT_FILEMODE_COMMIT)
        rc = look_at_file(s, id, dirty);
    s->path[len] = '\0';
    return rc == FM_OK ? fm_map_put(s->state, id->id, sizeof id->id, *dirty ? DIRTY : CLEAN, NULL)
                       : rc;
}

static fm_status look_at_folder(search *s, const git_oid *id, size_t len, bool *dirty)
{
    git_tree *tree = NULL;
    fm_status rc = FM_OK;

    *dirty = false;
    if (s->depth >= MAX_TREE_DEPTH || git_tree_lookup(&tree, s->r->git, id) < 0)
        return FM_OK;
    s->depth++;
    for (size_t i = 0; rc == FM_OK && i < git_tree_entrycount(tree); i++) {
        bool below;
        rc = look_at_entry(s, git_tree_entry_byindex(tree, i), len, &below);
        *dirty = *dirty || below;
    }
    s->depth--;
    git_tree_free(tree);
    return rc;
}

static fm_status look_at_version(search *s, git_commit *commit)
{
    bool dirty = false;
    const git_oid *tree = git_commit_tree_id(commit);

    if (fm_map_get(s->state, tree->id, sizeof tree->id) == CLEAN)
        return FM_OK;
    s->path[0] = '\0';
    FM_TRY(look_at_folder(s, tree, 0, &dirty));
    return fm_map_put(s->state, tree->id, sizeof tree->id, dirty ? DIRTY : CLEAN, NULL);
}

static fm_status add_todo(search *s, const git_oid *id)
{
    FM_TRY(fm_grow(&s->todo, &s->todo_cap, s->todo_count + 1, sizeof *s->todo));

    s->todo[s->todo_count++] = *id;
    return FM_OK;
}

static fm_status walk_line(search *s, const char *name, const git_oid *tip);

static fm_status enter_named(void *ctx, const git_oid *id, bool *yes)
{
    search *s = ctx;

    *yes = !fm_map_has(s->named, id->id, sizeof id->id);
    return *yes ? fm_map_put(s->named, id->id, sizeof id->id, s, NULL) : FM_OK;
}

/* What was condemned before it was named may be half gone: that is no damage. */
static fm_status take_name(void *ctx, const char *path, fm_span hex, const char *key)
{
    search *s = ctx;
    git_oid id;
    bool there;

    (void)path;
    (void)key;
    FM_TRY(fml_named_find(s->r, hex, &id, &there));
    return there && !fms_condemned_git(s->condemned, id.id) ? add_todo(s, &id) : FM_OK;
}

static fm_status look_at_names(search *s, const git_oid *tree)
{
    const fml_named v = {enter_named, take_name, s};
    fm_status rc = fml_named_each(s->r, tree, &v);

    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    fm_error_clear(); /* the file itself is damaged, and was told */
    return FM_OK;
}

/* A suite may name a version's tree. */
static fm_status walk_named(search *s, const git_oid *id)
{
    size_t bytes;
    git_object_t type;
    bool dirty;

    if (git_odb_read_header(&bytes, &type, s->r->odb, id) < 0 || type != GIT_OBJECT_TREE)
        return walk_line(s, NULL, id);
    if (fm_map_has(s->seen, id->id, sizeof id->id))
        return FM_OK;
    char hex[41] = "";
    git_oid_fmt(hex, id);
    snprintf(s->rev, sizeof s->rev, "%.10s", hex);
    s->path[0] = '\0';
    FM_TRY(fm_map_put(s->seen, id->id, sizeof id->id, s, NULL));
    FM_TRY(look_at_folder(s, id, 0, &dirty));
    return look_at_names(s, id);
}

/* name: of the commit, or NULL: its id. */
static fm_status walk_line(search *s, const char *name, const git_oid *tip)
{
    git_oid at = *tip;
    fm_status rc = FM_OK;

    for (unsigned n = 0; rc == FM_OK; n++) {
        git_commit *commit = NULL;
        if (fm_map_has(s->seen, at.id, sizeof at.id) ||
            git_commit_lookup(&commit, s->r->git, &at) < 0)
            break;
        char hex[41] = "";
        git_oid_fmt(hex, &at);
        if (!name)
            snprintf(s->rev, sizeof s->rev, "%.10s", hex);
        else if (n == 0)
            snprintf(s->rev, sizeof s->rev, "%s", name);
        else
            snprintf(s->rev, sizeof s->rev, "%.*s~%u", (int)FML_MAX_REF_BYTES, name, n);
        rc = fm_map_put(s->seen, at.id, sizeof at.id, s, NULL);
        FM_THEN(rc, look_at_version(s, commit));
        FM_THEN(rc, look_at_names(s, git_commit_tree_id(commit)));
        unsigned parents = git_commit_parentcount(commit);
        for (unsigned i = 1; rc == FM_OK && i < parents; i++)
            rc = add_todo(s, git_commit_parent_id(commit, i));
        if (parents > 0)
            at = *git_commit_parent_id(commit, 0);
        git_commit_free(commit);
        if (parents == 0)
            break;
    }
    return rc;
}

static fm_status walk_ref(void *ctx, const char *name, const fm_oid *oid)
{
    git_oid id = fml_git_oid(oid);
    const char *bare = strncmp(name, "refs/heads/", 11) == 0  ? name + 11
                       : strncmp(name, "refs/tags/", 10) == 0 ? name + 10
                                                              : name;
    return strncmp(name, "refs/notes/", 11) == 0 || strcmp(name, FML_RESULTS_REF) == 0
               ? FM_OK
               : walk_line(ctx, bare, &id);
}

fm_status fm_repo_damage(fm_repo *r, fm_damage_fn fn, void *ctx)
{
    search *s = r && fn ? fm_calloc(1, sizeof *s) : NULL;
    fm_status rc;

    if (!r || !fn)
        return fm_fail(FM_EINVAL, "damage: a repository and a callback are needed");
    if (!s)
        return FM_ENOMEM;
    s->r = r;
    s->fn = fn;
    s->ctx = ctx;
    rc = fm_map_new(&s->state);
    FM_THEN(rc, fm_map_new(&s->seen));
    FM_THEN(rc, fm_map_new(&s->named));
    if (rc == FM_OK && git_odb_refresh(r->odb) < 0)
        rc = fml_damage(-1, "the objects of '%s' cannot be listed", r->git_path);
    FM_THEN(rc, fms_condemned_read(&s->condemned, r->path));
    if (rc == FM_ECORRUPT && s->condemned) { /* then nothing is condemned */
        fm_error_clear();
        rc = FM_OK;
    }
    static const char *const order[] = {"refs/heads/", "refs/tags/", "refs/"};
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(order); i++) {
        rc = fm_ref_each(r, order[i], walk_ref, s);
        rc = rc == FM_ECORRUPT ? FM_OK : rc; /* fsck reports a broken ref */
    }
    while (rc == FM_OK && s->todo_count > 0) {
        git_oid next = s->todo[--s->todo_count];
        rc = walk_named(s, &next);
    }
    fm_map_free(s->state);
    fm_map_free(s->seen);
    fm_map_free(s->named);
    fms_condemned_free(s->condemned);
    fm_free(s->todo);
    fm_free(s);
    return rc;
}
