/* results_merge.c - joins the results of another clone with those of this one.
 *
 * The union of two trees, key by key, becomes a commit of two parents, so that the next merge has a
 * merge base and every value that ever was stays reachable. Where two clones hold different values
 * for a key, the side that changed it since the merge base has its value taken; where both did, the
 * value that compares less as bytes is taken. The choice depends on no order and no side: clones
 * that merge each other, in whatever order, end with the same tree. */
#include "lineage/internal.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/text/json.h"

typedef struct join {
    fm_repo *r;
    fm_results_merge_report *out;
    fm_result_differ_fn differ;
    void *ctx;
    git_tree *ours, *theirs, *base; /* ours, base may be NULL */
    git_treebuilder *top, *sub;
} join;

/* ---- find the other clone's results ---- */

static fm_status commit_of(fm_repo *r, const git_oid *id, const char *name, git_oid *out)
{
    git_object *obj = NULL, *commit = NULL;
    int code = git_object_lookup(&obj, r->git, id, GIT_OBJECT_ANY);
    if (code == 0)
        code = git_object_peel(&commit, obj, GIT_OBJECT_COMMIT);
    if (code == 0)
        git_oid_cpy(out, git_object_id(commit));
    git_object_free(commit);
    git_object_free(obj);
    return code < 0 ? fml_damage(code, "results of '%s'", name) : FM_OK;
}

/* The path of a folder's bare git repository, fmstore's or any other; fm_free. */
static char *git_folder(const char *path)
{
    static const char *const inside[] = {"lineage.git", ".fmstore/lineage.git", "."};
    for (size_t i = 0; i < FM_ARRAY_LEN(inside); i++) {
        char *dir = fm_path_join(path, inside[i]);
        char *head = dir ? fm_path_join(dir, "HEAD") : NULL;
        bool found = head && access(head, R_OK) == 0;
        fm_free(head);
        if (found || !dir)
            return dir;
        fm_free(dir);
    }
    return NULL;
}

/* Fetches the other repository's results under a ref named after this process. */
static fm_status fetch(fm_repo *r, const char *path, char *ref, size_t ref_bytes, git_oid *out)
{
    char spec[200], whole[PATH_MAX];
    char *specs[] = {spec};
    const git_strarray list = {specs, 1};
    git_fetch_options opts;
    git_remote *remote = NULL;
    char *dir = git_folder(path), *url = dir ? realpath(dir, whole) : NULL;
    snprintf(ref, ref_bytes, FML_INCOMING "%ld", (long)getpid());
    snprintf(spec, sizeof spec, "+" FML_RESULTS_REF ":%s", ref);
    int code = git_fetch_options_init(&opts, GIT_FETCH_OPTIONS_VERSION);
    opts.download_tags = GIT_REMOTE_DOWNLOAD_TAGS_NONE;
    opts.update_fetchhead = 0;
    fm_status rc = url ? FM_OK : fm_fail(FM_ENOTFOUND, "'%s' is no repository", path);
    if (rc == FM_OK && code == 0)
        code = git_remote_create_anonymous(&remote, r->git, url);
    if (rc == FM_OK && code == 0)
        code = git_remote_fetch(remote, &list, &opts, "results");
    if (rc == FM_OK && code < 0)
        rc = fml_git_fail(code, "cannot read the results of '%s'", path);
    git_remote_free(remote);
    fm_free(dir);
    if (rc == FM_OK && git_reference_name_to_id(out, r->git, ref) < 0)
        rc = fm_fail(FM_ENOTFOUND, "'%s' holds no results yet", path);
    return rc;
}

static fm_status find(fm_repo *r, const char *from, char *ref, size_t ref_bytes, git_oid *out)
{
    git_object *obj = NULL;
    ref[0] = '\0';
    if (fm_path_is_dir(from))
        return fetch(r, from, ref, ref_bytes, out);
    int code = git_revparse_single(&obj, r->git, from);
    fm_status rc = FM_OK;
    if (code < 0)
        rc = fm_fail(FM_ENOTFOUND,
                     "'%s' is neither a folder with a repository nor a ref of this one; fetch the "
                     "other's refs/fmstore/results under a name of your own, or give its path",
                     from);
    else
        rc = commit_of(r, git_object_id(obj), from, out);
    git_object_free(obj);
    return rc;
}

static fm_status tree_of(fm_repo *r, const git_oid *commit, git_tree **out)
{
    git_commit *c = NULL;
    int code = git_commit_lookup(&c, r->git, commit);
    if (code == 0)
        code = git_commit_tree(out, c);
    git_commit_free(c);
    return code < 0 ? fml_damage(code, "results: commit") : FM_OK;
}

/* Refuses a tree that is not one of results, where every name is a folder of two hex digits. */
static fm_status check_shape(const git_tree *t, const char *from)
{
    for (size_t i = 0; i < git_tree_entrycount(t); i++) {
        const git_tree_entry *e = git_tree_entry_byindex(t, i);
        const char *name = git_tree_entry_name(e);
        if (git_tree_entry_type(e) != GIT_OBJECT_TREE || strlen(name) != 2 ||
            strspn(name, "0123456789abcdef") != 2)
            return fm_fail(FM_EINVAL, "'%s' holds no results: it has a '%.60s'", from, name);
    }
    return FM_OK;
}

/* ---- one key ---- */

static fm_status read_blob(fm_repo *r, const git_tree_entry *e, git_blob **out, fm_span *bytes)
{
    int code = git_blob_lookup(out, r->git, git_tree_entry_id(e));
    if (code < 0)
        return fml_damage(code, "result %.16s...", git_tree_entry_name(e));
    *bytes = fm_span_of(git_blob_rawcontent(*out), (size_t)git_blob_rawsize(*out));
    return FM_OK;
}

/* Checked before the blob is read into memory. */
static bool too_large(fm_repo *r, const git_tree_entry *e)
{
    size_t bytes = 0;
    git_object_t type;
    return git_odb_read_header(&bytes, &type, r->odb, git_tree_entry_id(e)) == 0 &&
           bytes > FML_MAX_RESULT_BYTES;
}

static bool sound(fm_span bytes)
{
    fm_json *v = NULL;
    bool ok = fm_json_parse(&v, bytes, "result") == FM_OK;
    fm_json_free(v);
    if (!ok)
        fm_error_clear();
    return ok;
}

static bool less(fm_span a, fm_span b)
{
    int order = memcmp(a.data, b.data, FM_MIN(a.len, b.len));
    return order < 0 || (order == 0 && a.len < b.len);
}

/* *take: whether theirs replaces ours; the two differ. */
static fm_status choose(join *j, const git_tree_entry *ours, const git_tree_entry *theirs,
                        const git_tree_entry *base, fm_span value, bool *take)
{
    git_blob *blob = NULL;
    fm_span mine;
    *take = false;
    if (base && git_oid_equal(git_tree_entry_id(base), git_tree_entry_id(theirs)))
        return FM_OK; /* only this side renewed it */
    fm_status rc = read_blob(j->r, ours, &blob, &mine);
    if (rc < 0)
        return rc;
    if (base && git_oid_equal(git_tree_entry_id(base), git_tree_entry_id(ours))) {
        *take = true;
    } else {
        *take = !sound(mine) || less(value, mine);
        if (j->out->differing++ == 0)
            memcpy(j->out->first_differing, git_tree_entry_name(theirs), FM_HEX_CHARS);
        if (j->differ)
            rc = j->differ(j->ctx, git_tree_entry_name(theirs), mine, value, *take);
    }
    git_blob_free(blob);
    return rc;
}

static fm_status join_key(join *j, const git_tree_entry *theirs, const git_tree_entry *base)
{
    const char *key = git_tree_entry_name(theirs);
    const git_tree_entry *ours = git_treebuilder_get(j->sub, key);
    git_blob *blob = NULL;
    fm_span value;
    bool take = !ours;
    j->out->theirs++;
    if (ours && git_oid_equal(git_tree_entry_id(ours), git_tree_entry_id(theirs)))
        return FM_OK;
    if (too_large(j->r, theirs)) {
        j->out->refused++;
        return FM_OK;
    }
    fm_status rc = read_blob(j->r, theirs, &blob, &value);
    if (rc == FM_OK && !sound(value)) {
        j->out->refused++;
        git_blob_free(blob);
        return FM_OK;
    }
    if (rc == FM_OK && ours)
        rc = choose(j, ours, theirs, base, value, &take);
    if (rc == FM_OK && take) {
        j->out->added += !ours;
        int code =
            git_treebuilder_insert(NULL, j->sub, key, git_tree_entry_id(theirs), GIT_FILEMODE_BLOB);
        rc = code < 0 ? fml_git_fail(code, "cannot add '%s' to a tree", key)
                      : fml_rows_put(j->r->rows, key, value, true, false);
    }
    git_blob_free(blob);
    return rc;
}

/* ---- a folder, all folders ---- */

/* *out: the folder of that name; NULL if there is none. */
static fm_status folder(fm_repo *r, const git_tree *of, const char *name, git_tree **out)
{
    const git_tree_entry *e = of ? git_tree_entry_byname(of, name) : NULL;
    *out = NULL;
    if (!e || git_tree_entry_type(e) != GIT_OBJECT_TREE)
        return FM_OK;
    int code = git_tree_lookup(out, r->git, git_tree_entry_id(e));
    return code < 0 ? fml_damage(code, "results: folder '%s'", name) : FM_OK;
}

static fm_status write_tree(join *j, git_treebuilder *b, git_oid *out)
{
    int code = git_treebuilder_write(out, b);
    return code < 0 ? fml_git_fail(code, "cannot write a tree") : fml_object_note(j->r, out);
}

static fm_status join_folder(join *j, const char *name)
{
    git_tree *ours = NULL, *theirs = NULL, *base = NULL;
    git_oid id;
    fm_status rc = folder(j->r, j->ours, name, &ours);
    FM_THEN(rc, folder(j->r, j->theirs, name, &theirs));
    FM_THEN(rc, folder(j->r, j->base, name, &base));
    if (rc == FM_OK) {
        int code = git_treebuilder_new(&j->sub, j->r->git, ours);
        rc = code < 0 ? fml_git_fail(code, "cannot begin a tree") : FM_OK;
    }
    for (size_t i = 0; rc == FM_OK && i < git_tree_entrycount(theirs); i++) {
        const git_tree_entry *e = git_tree_entry_byindex(theirs, i);
        const char *key = git_tree_entry_name(e);
        if (git_tree_entry_type(e) == GIT_OBJECT_BLOB && fml_result_key_ok(key) &&
            strncmp(key, name, 2) == 0)
            rc = join_key(j, e, base ? git_tree_entry_byname(base, key) : NULL);
        else
            j->out->refused++;
    }
    if (rc == FM_OK && git_treebuilder_entrycount(j->sub) > 0) {
        rc = write_tree(j, j->sub, &id);
        int code =
            rc == FM_OK ? git_treebuilder_insert(NULL, j->top, name, &id, GIT_FILEMODE_TREE) : 0;
        if (code < 0)
            rc = fml_git_fail(code, "cannot add '%s' to a tree", name);
    }
    git_treebuilder_free(j->sub);
    j->sub = NULL;
    git_tree_free(ours);
    git_tree_free(theirs);
    git_tree_free(base);
    return rc;
}

static fm_status join_trees(join *j, git_oid *out)
{
    int code = git_treebuilder_new(&j->top, j->r->git, j->ours);
    fm_status rc = code < 0 ? fml_git_fail(code, "cannot begin a tree") : FM_OK;
    for (size_t i = 0; rc == FM_OK && i < git_tree_entrycount(j->theirs); i++) {
        const git_tree_entry *t = git_tree_entry_byindex(j->theirs, i), *o;
        o = j->ours ? git_tree_entry_byname(j->ours, git_tree_entry_name(t)) : NULL;
        git_tree *known = NULL;
        if (!o || !git_oid_equal(git_tree_entry_id(o), git_tree_entry_id(t))) {
            rc = join_folder(j, git_tree_entry_name(t));
            continue;
        }
        rc = folder(j->r, j->theirs, git_tree_entry_name(t), &known);
        j->out->theirs += known ? git_tree_entrycount(known) : 0;
        git_tree_free(known);
    }
    return rc == FM_OK ? write_tree(j, j->top, out) : rc;
}

/* ---- the commit ---- */

static fm_status open_base(join *j, const git_oid *ours, const git_oid *theirs)
{
    git_oid base;
    int code = git_merge_base(&base, j->r->git, ours, theirs);
    if (code == GIT_ENOTFOUND)
        return FM_OK;
    return code < 0 ? fml_git_fail(code, "merge base of results") : tree_of(j->r, &base, &j->base);
}

static fm_status commit(join *j, const git_oid *tree, const git_oid *parent, size_t parents,
                        git_oid *out)
{
    char message[80];
    snprintf(message, sizeof message, "results: %llu more from another repository\n",
             (unsigned long long)j->out->added);
    fml_commit c = {.tree = *tree, .parent = parent, .parent_count = parents, .message = message};
    FM_TRY(fml_commit_clock(&c.author_time));
    c.commit_time = c.author_time;
    return fml_commit_put(j->r, out, &c);
}

/* Runs under the lock of refs and SQLite's. */
static fm_status join_locked(join *j, const git_oid *theirs)
{
    git_oid parent[2], tree, to;
    bool exists = false;
    char hex[41] = "";
    fm_status rc = fml_ref_peek(j->r, &parent[0], &exists, FML_RESULTS_REF);
    if (rc == FM_OK && exists)
        rc = tree_of(j->r, &parent[0], &j->ours);
    if (rc == FM_OK && exists)
        rc = open_base(j, &parent[0], theirs);
    FM_THEN(rc, join_trees(j, &tree));
    if (rc < 0)
        return rc;
    if (exists && (git_oid_equal(&parent[0], theirs) ||
                   git_graph_descendant_of(j->r->git, &parent[0], theirs) == 1))
        return FM_OK; /* the other clone has nothing new */
    parent[1] = *theirs;
    bool forward = !exists || git_graph_descendant_of(j->r->git, theirs, &parent[0]) == 1;
    if (forward && git_oid_equal(&tree, git_tree_id(j->theirs)))
        to = *theirs;
    else
        rc = commit(j, &tree, exists ? parent : &parent[1], exists ? 2 : 1, &to);
    FM_THEN(rc, fml_objects_write(j->r));
    FM_THEN(rc,
            fml_ref_move(j->r, FML_RESULTS_REF, &to, exists ? &parent[0] : NULL, "results merged"));
    git_oid_fmt(hex, &to);
    return rc == FM_OK ? fml_rows_set_head(j->r->rows, hex) : rc;
}

static fm_status join_at(join *j, const git_oid *theirs, const char *from)
{
    fm_lock *lock = NULL;
    fm_status rc = tree_of(j->r, theirs, &j->theirs);
    FM_THEN(rc, check_shape(j->theirs, from));
    FM_THEN(rc, fm_result_flush(j->r)); /* unflushed results must be in the tree to join */
    FM_THEN(rc, fml_ref_lock(j->r, &lock));
    FM_THEN(rc, fml_results_sync(j->r));
    FM_THEN(rc, fml_rows_begin(j->r->rows));
    FM_THEN(rc, join_locked(j, theirs));
    FM_THEN(rc, fml_rows_commit(j->r->rows));
    fml_rows_rollback(j->r->rows);
    fml_objects_abort(j->r);
    git_treebuilder_free(j->sub);
    git_treebuilder_free(j->top);
    git_tree_free(j->ours);
    git_tree_free(j->theirs);
    git_tree_free(j->base);
    fm_lock_drop(lock);
    return rc;
}

/* Deletes the ref of fetched results; it may not exist. Keeps the current error text. */
static void drop(fm_repo *r, const char *ref)
{
    fm_error_state kept;
    fm_oid at;
    git_oid id;
    fm_error_save(&kept);
    if (git_reference_name_to_id(&id, r->git, ref) == 0) {
        fml_from_git(&at, &id);
        fm_ignore(fm_ref_delete(r, ref, &at), "what is left of it is a name that nobody reads");
    }
    fm_error_restore(&kept);
}

/* Whether the process that made a ref is known to be gone. */
static bool is_left_over(const char *name)
{
    char *end;
    long pid = strtol(name + strlen(FML_INCOMING), &end, 10);
    return pid > 0 && *end == '\0' && pid != (long)getpid() && kill((pid_t)pid, 0) < 0 &&
           errno == ESRCH;
}

fm_status fml_results_sweep(fm_repo *r)
{
    git_reference_iterator *it = NULL;
    const char *name = NULL;
    int code = git_reference_iterator_glob_new(&it, r->git, FML_INCOMING "*");
    while (code == 0 && (code = git_reference_next_name(&name, it)) == 0)
        if (is_left_over(name))
            drop(r, name);
    git_reference_iterator_free(it);
    return code < 0 && code != GIT_ITEROVER
               ? fml_damage(code, "cannot list the refs of '%s'", r->git_path)
               : FM_OK;
}

fm_status fml_results_join(fm_repo *r, const git_oid *theirs, const char *from)
{
    fm_results_merge_report report = {0};
    join j = {.r = r, .out = &report};

    return join_at(&j, theirs, from);
}

fm_status fm_results_merge(fm_repo *r, const char *from, fm_result_differ_fn differ, void *ctx,
                           fm_results_merge_report *out)
{
    char incoming[64] = "";
    git_oid theirs;
    memset(out, 0, sizeof *out);
    if (!r || !from || !*from)
        return fm_fail(FM_EINVAL, "results: a repository and where to merge from are needed");
    join j = {.r = r, .out = out, .differ = differ, .ctx = ctx};
    fm_status rc = fml_results_sweep(r);
    FM_THEN(rc, find(r, from, incoming, sizeof incoming, &theirs));
    FM_THEN(rc, join_at(&j, &theirs, from));
    if (incoming[0])
        drop(r, incoming);
    return rc;
}
