/* exchange_refs.c - refs move to versions that arrived, each after it was found whole.
 *
 * The versions of a ref that is here are whole: each was checked before its ref moved. So the check
 * of a new one ends at them. What it must hold is what gc and fsck need: every object readable, a
 * model's tree as commit.c reads it, each pointer's object stored. */
#include "lineage/exchange.h"
#include "lineage/named.h"
#include "store/base/cancel.h"
#include "store/base/text/markup.h"

#include <stdio.h>
#include <string.h>

#define HEADS "refs/heads/"
#define TAGS "refs/tags/"
#define REMOTES "refs/remotes/"
#define MAX_TAGS 16u /* of tags; plain git makes one */

typedef struct whole {
    fm_repo *r;
    bool model;        /* not results or notes */
    bool lineage_only; /* objects of pointers may be missing */
    fm_map *seen;      /* id and path of folders that were checked, and the kind of their version */
    fm_map *named;     /* recipes, suites and their folders that were read */
    fm_map *known[2];  /* versions that are whole with all that they come from; [1]: models */
    bool all_known[2]; /* not only the tips */
    fm_map *met;       /* versions that are being checked, */
    git_oid *todo;     /* ... in order */
    size_t todo_count, todo_cap;
    /* of one version */
    fm_tree *tree; /* what is new of it */
    fm_map *paths;
    fm_status rc;
} whole;

/* ---- one version ---- */

static fm_status new_path(whole *w, const char *path)
{
    const size_t n = strlen(path) + 1;

    if (fm_map_has(w->paths, path, n))
        return fm_fail(FM_ECORRUPT, "tree path '%s' is there twice", path);
    return fm_map_put(w->paths, path, n, w, NULL);
}

/* A folder that was checked at this path is not entered again. */
static bool enter(void *ctx, const git_oid *id, const char *path)
{
    whole *w = ctx;
    fm_buf key;
    bool fresh = false;

    fm_buf_init(&key, 0);
    fm_buf_u8(&key, w->model);
    fm_buf_append(&key, id->id, sizeof id->id);
    fm_buf_str(&key, path);
    FM_THEN(w->rc, new_path(w, path));
    FM_THEN(w->rc, fm_buf_ok(&key));
    if (w->rc == FM_OK) {
        fresh = !fm_map_has(w->seen, key.data, key.len);
        w->rc = fresh ? fm_map_put(w->seen, key.data, key.len, w, NULL) : FM_OK;
    }
    fm_buf_release(&key);
    return fresh && w->rc == FM_OK;
}

static fm_status take_file(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    static const char mark[] = "fmstore ";
    whole *w = ctx;
    fm_status rc = w->rc;

    (void)id;
    FM_THEN(rc, new_path(w, path));
    if (rc < 0)
        return rc;
    if (w->model) {
        rc = fm_tree_put_encoded(w->tree, path, bytes);
        return rc == FM_EINVAL || rc == FM_ELIMIT ? FM_ECORRUPT : rc;
    }
    if (bytes.len >= sizeof mark - 1 && memcmp(bytes.data, mark, sizeof mark - 1) == 0)
        return fm_fail(FM_ECORRUPT, "'%s' looks like a pointer and is none", path);
    return FM_OK;
}

static fm_status check_stored(const whole *w)
{
    char hex[FM_HEX_CHARS + 1];

    if (!w->model || w->lineage_only)
        return FM_OK;
    fm_status rc = fml_check_stored(w->r, w->tree);
    for (size_t i = 0; rc == FM_ENOTFOUND && i < fm_tree_count(w->tree); i++) {
        const fm_entry *e = fm_tree_at(w->tree, i);
        if (e->kind == FM_ENTRY_FILE || fm_store_has(w->r->store, &e->id))
            continue;
        fm_digest_hex(&e->id, hex);
        return fm_fail(FM_EBASE, "'%s' (sha256:%.16s...) has not arrived", e->path, hex);
    }
    return rc;
}

static fm_status check_tree(whole *w, const git_oid *tree)
{
    const fml_tree_visitor v = {.enter = enter,
                                .blob = take_file,
                                .ctx = w,
                                .max_blob_bytes =
                                    w->model ? FM_INLINE_MAX_BYTES : FML_MAX_RESULT_BYTES,
                                .absent = FM_EBASE};

    w->rc = FM_OK;
    fm_status rc = w->seen ? FM_OK : fm_map_new(&w->seen);
    FM_THEN(rc, fm_map_new(&w->paths));
    FM_THEN(rc, fm_tree_new(&w->tree));
    FM_THEN(rc, fml_tree_walk(w->r, tree, &v));
    FM_THEN(rc, w->rc);
    FM_THEN(rc, check_stored(w));
    fm_tree_free(w->tree);
    fm_map_free(w->paths);
    w->tree = NULL;
    w->paths = NULL;
    return rc;
}

/* ---- all that is new ---- */

static fm_status add_known(whole *w, const git_oid *id)
{
    return fm_map_put(w->known[w->model], id->id, sizeof id->id, w, NULL);
}

typedef struct begin {
    whole *w;
    git_revwalk *walk; /* NULL: only the tips are wanted */
} begin;

static fm_status begin_at(void *ctx, const char *name, const fm_oid *oid)
{
    const begin *b = ctx;
    const git_oid id = fml_git_oid(oid);
    const bool model = !fm_starts_with(name, FML_RESULTS_REF) &&
                       !fm_starts_with(name, FML_INCOMING) && !fm_starts_with(name, "refs/notes/");
    if (model != b->w->model)
        return FM_OK;
    int code = b->walk ? git_revwalk_push(b->walk, &id) : 0;
    return code < 0 ? fml_damage(code, "ref '%s'", name) : add_known(b->w, &id);
}

static fm_status find_tips(whole *w)
{
    begin b = {.w = w};

    if (w->known[w->model])
        return FM_OK;
    FM_TRY(fm_map_new(&w->known[w->model]));
    return fm_ref_each(w->r, "refs/", begin_at, &b);
}

/* All versions of the refs. */
static fm_status find_known(whole *w)
{
    begin b = {.w = w};
    git_oid id;
    fm_status rc = FM_OK;
    int code = git_revwalk_new(&b.walk, w->r->git);

    if (code == 0)
        rc = fm_ref_each(w->r, "refs/", begin_at, &b);
    while (rc == FM_OK && code == 0 && (code = git_revwalk_next(&id, b.walk)) == 0) {
        rc = fm_go_on();
        FM_THEN(rc, add_known(w, &id));
    }
    git_revwalk_free(b.walk);
    w->all_known[w->model] = rc == FM_OK;
    return rc < 0 || code == GIT_ITEROVER ? rc : fml_damage(code, "the versions of the refs");
}

/* Most often a new version comes from the tip of a branch, and no history is read. */
static fm_status is_known(whole *w, const git_oid *id, bool *yes)
{
    *yes = fm_map_has(w->known[w->model], id->id, sizeof id->id);
    if (*yes || w->all_known[w->model])
        return FM_OK;
    FM_TRY(find_known(w));
    *yes = fm_map_has(w->known[w->model], id->id, sizeof id->id);
    return FM_OK;
}

static fm_status add_todo(whole *w, const git_oid *id)
{
    if (fm_map_has(w->met, id->id, sizeof id->id))
        return FM_OK;
    FM_TRY(fm_map_put(w->met, id->id, sizeof id->id, w, NULL));
    FM_TRY(fm_grow(&w->todo, &w->todo_cap, w->todo_count + 1, sizeof *w->todo));
    w->todo[w->todo_count++] = *id;
    return FM_OK;
}

static fm_status add_new(whole *w, const git_oid *id)
{
    bool known;
    FM_TRY(is_known(w, id, &known));

    return known ? FM_OK : add_todo(w, id);
}

static fm_status enter_named(void *ctx, const git_oid *id, bool *yes)
{
    whole *w = ctx;

    *yes = !fm_map_has(w->named, id->id, sizeof id->id);
    return *yes ? fm_map_put(w->named, id->id, sizeof id->id, w, NULL) : FM_OK;
}

/* gc reaches what is named and here; of what it has condemned it minds no loss. */
static fm_status take_name(void *ctx, const char *path, fm_span hex, const char *key)
{
    whole *w = ctx;
    git_oid id;
    bool there;

    (void)path;
    (void)key;
    FM_TRY(fml_named_find(w->r, hex, &id, &there));
    return there && !fms_store_git_condemned(w->r->store, id.id) ? add_new(w, &id) : FM_OK;
}

static fm_status check_model(whole *w, const git_oid *tree)
{
    const fml_named v = {enter_named, take_name, w};
    FM_TRY(check_tree(w, tree));

    if (!w->model)
        return FM_OK;
    fm_status rc = w->named ? FM_OK : fm_map_new(&w->named);
    FM_THEN(rc, fml_named_each(w->r, tree, &v));
    return w->lineage_only && rc == FM_ENOTFOUND ? FM_OK : rc;
}

static fm_status check_commit(whole *w, git_commit *commit)
{
    fm_version version;

    if (fml_message_encoding(git_commit_message_raw(commit)) > FML_ENCODING)
        return fm_fail(FM_EVERSION, "its tree is written by a newer fmstore");
    FM_TRY(fml_version_of(&version, commit));
    fm_version_release(&version);
    for (unsigned i = 0; i < git_commit_parentcount(commit); i++)
        FM_TRY(add_new(w, git_commit_parent_id(commit, i)));
    return check_model(w, git_commit_tree_id(commit));
}

/* libgit2's own walk is not used here: version 1.5 leaks where a commit is malformed. */
static fm_status check_version(whole *w, const git_oid *id)
{
    git_object *obj = NULL;
    char hex[41] = "";
    int code = git_object_lookup(&obj, w->r->git, id, GIT_OBJECT_ANY);
    fm_status rc;

    git_oid_fmt(hex, id);
    if (code == GIT_ENOTFOUND)
        return fm_fail(FM_EBASE, "version %.12s has not arrived", hex);
    if (code < 0)
        return fml_damage(code, "version %.12s", hex);
    if (git_object_type(obj) == GIT_OBJECT_COMMIT)
        rc = check_commit(w, (git_commit *)obj);
    else if (git_object_type(obj) == GIT_OBJECT_TREE) /* a suite may name one */
        rc = check_model(w, id);
    else
        rc = fm_fail(FM_ECORRUPT, "is no version");
    git_object_free(obj);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "version %.12s", hex);
}

/* A version that a ref reaches is looked at again itself, as its tensors may be missing in a
 * partial clone. What was seen under one that is not whole counts for nothing. */
static fm_status check_new(whole *w, const git_oid *tip)
{
    fm_status rc = find_tips(w);

    w->todo_count = 0;
    FM_THEN(rc, fm_map_new(&w->met));
    FM_THEN(rc, add_todo(w, tip));
    for (size_t i = 0; rc == FM_OK && i < w->todo_count; i++) {
        const git_oid id = w->todo[i];
        rc = fm_go_on();
        FM_THEN(rc, check_version(w, &id));
    }
    for (size_t i = 0; rc == FM_OK && i < w->todo_count; i++)
        rc = add_known(w, &w->todo[i]);
    fm_map_free(w->met);
    w->met = NULL;
    if (rc == FM_OK)
        return FM_OK;
    fm_map_free(w->seen);
    fm_map_free(w->named);
    w->seen = w->named = NULL;
    return rc;
}

/* What a ref holds: a version, or of refs/tags/ a tag of one. *commit: the version. */
static fm_status find_version(fm_repo *r, const fm_ref_wish *wish, git_oid *commit)
{
    const git_oid id = fml_git_oid(&wish->new_oid);
    git_oid at = id;
    git_tag *tag = NULL;
    char hex[41];

    for (unsigned depth = 0; git_tag_lookup(&tag, r->git, &at) == 0; depth++) {
        at = *git_tag_target_id(tag);
        git_tag_free(tag);
        if (depth == MAX_TAGS)
            return fm_fail(FM_ELIMIT, "tags of tags, more than %u", MAX_TAGS);
    }
    fm_status rc = fml_peel(r, commit, &at);
    fm_oid_hex(&wish->new_oid, hex);
    if (rc == FM_ENOTFOUND)
        return fm_fail(FM_EBASE, "version %.12s has not arrived", hex);
    if (rc == FM_OK && !fm_starts_with(wish->name, TAGS) && !git_oid_equal(commit, &id))
        return fm_fail(FM_EINVAL, "%.12s is a tag; a branch holds a version", hex);
    return rc;
}

/* ---- names ---- */

static fm_status check_name(const char *name)
{
    FM_TRY(fml_ref_name_check(name));
    if (fm_exchange_ref_travels(name))
        return FM_OK;
    const char *slash = fm_starts_with(name, REMOTES) ? strchr(name + strlen(REMOTES), '/') : NULL;
    return slash ? fm_branch_name_check(slash + 1)
                 : fm_fail(FM_EINVAL, "only branches, tags, notes and results travel");
}

/* Of a ref that is to be made. */
static fm_status check_new_name(const char *name)
{
    for (size_t left = strlen(name), n; left > 0; left -= n) {
        n = fm_markup_shown(name + strlen(name) - left, left);
        if (n == 0)
            return fm_fail(FM_EINVAL, "its name holds what is not shown as it is written");
    }
    if (fm_starts_with(name, HEADS))
        return fm_branch_name_fit(name + strlen(HEADS));
    return fm_starts_with(name, TAGS) ? fm_branch_name_fit(name + strlen(TAGS)) : FM_OK;
}

/* ---- the move ---- */

static bool is_zero(const fm_oid *oid)
{
    static const fm_oid zero;

    return fm_oid_eq(oid, &zero);
}

static fm_status moved_meanwhile(const git_oid *now, bool exists, const fm_oid *old)
{
    char at[41] = "", was[41];

    git_oid_fmt(at, now);
    fm_oid_hex(old, was);
    if (!exists)
        return fm_fail(FM_ECONFLICT, "it was deleted meanwhile: fetch and try again");
    if (is_zero(old))
        return fm_fail(FM_ECONFLICT, "it was made meanwhile, at %.12s: fetch and try again", at);
    return fm_fail(FM_ECONFLICT, "it moved meanwhile from %.12s to %.12s: fetch and try again", was,
                   at);
}

static fm_status check_old(const fm_ref_wish *w, const git_oid *now, bool exists)
{
    fm_oid at = {{0}};

    if (exists)
        fml_from_git(&at, now);
    return w->any_old || fm_oid_eq(&at, &w->old) ? FM_OK : moved_meanwhile(now, exists, &w->old);
}

/* Of a ref that holds `now`. */
static fm_status check_forward(fm_repo *r, const fm_ref_wish *w, const git_oid *now)
{
    fm_oid old;
    bool yes = true;

    if (w->force || fm_starts_with(w->name, REMOTES))
        return FM_OK;
    if (fm_starts_with(w->name, TAGS))
        return fm_fail(FM_EREFUSED, "the tag is there and holds another version: tags do not move, "
                                    "but for --force-with-lease");
    fml_from_git(&old, now);
    FM_TRY(fm_is_ancestor(r, &yes, &old, &w->new_oid));
    return yes ? FM_OK
               : fm_fail(FM_EREFUSED, "not a fast-forward (the remote has versions that you lack): "
                                      "fetch and merge, or --force-with-lease");
}

static fm_status move_locked(fm_repo *r, const fm_ref_wish *w, const git_oid *to,
                             const char *reflog)
{
    git_oid now = {{0}};
    bool exists = false, changed;
    FM_TRY(fml_ref_peek(r, &now, &exists, w->name));

    if (exists && git_oid_equal(&now, to))
        return FM_OK;
    FM_TRY(check_old(w, &now, exists));
    FM_TRY(exists ? check_forward(r, w, &now) : check_new_name(w->name));
    FM_TRY(fml_ref_move(r, w->name, to, exists ? &now : NULL, reflog));
    if (fm_starts_with(w->name, HEADS)) /* the ref is moved: an unborn HEAD is no failure */
        fm_ignore(fml_head_mend(r, &changed), "only plain git's default; fsck mends it");
    return FM_OK;
}

static fm_status delete_ref(fm_repo *r, const fm_ref_wish *w)
{
    git_oid now = {{0}};
    fm_oid at;
    bool exists = false;
    FM_TRY(fml_ref_peek(r, &now, &exists, w->name));

    if (!exists)
        return FM_OK;
    FM_TRY(check_old(w, &now, exists));
    fml_from_git(&at, &now);
    fm_status rc = fm_ref_delete(r, w->name, w->any_old ? NULL : &at);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

static fm_status move_one(whole *whole_of, const fm_ref_wish *w, const char *reflog)
{
    fm_repo *r = whole_of->r;
    const bool results = strcmp(w->name, FML_RESULTS_REF) == 0,
               notes = strcmp(w->name, FML_NOTES_REF) == 0;
    const git_oid to = fml_git_oid(&w->new_oid);
    fm_lock *lock = NULL;
    git_oid commit;

    FM_TRY(check_name(w->name));
    if (is_zero(&w->new_oid))
        return results || notes
                   ? fm_fail(FM_EREFUSED, "results and notes are merged, never deleted")
                   : delete_ref(r, w);
    whole_of->model = !results && !notes;
    FM_TRY(find_version(r, w, &commit));
    FM_TRY(check_new(whole_of, &commit));
    if (results)
        return fml_results_join(r, &commit, "the other side");
    if (notes)
        return fml_notes_join(r, &commit);
    fm_status rc = fml_ref_lock(r, &lock);
    FM_THEN(rc, move_locked(r, w, &to, reflog));
    fm_lock_drop(lock);
    return rc;
}

/* From here on gc keeps them; and what is looked at is what it has left. */
static fm_status hold_new(fm_repo *r, const fm_ref_wish *wish, size_t count)
{
    FM_TRY(fm_store_lease(r->store, true, "a move of refs"));
    for (size_t i = 0; i < count; i++)
        if (!is_zero(&wish[i].new_oid))
            FM_TRY(fms_store_hold(r->store, FMS_HOLD_GIT, wish[i].new_oid.b, 1));
    return fml_odb_renew(r);
}

fm_status fm_refs_move(fm_repo *r, fm_ref_wish *wish, size_t count, bool lineage_only,
                       const char *reflog)
{
    whole w = {.r = r, .lineage_only = lineage_only};

    if (!r || (count > 0 && !wish))
        return fm_fail(FM_EINVAL, "refs: a repository and wishes are needed");
    for (size_t i = 0; i < count; i++)
        if (!wish[i].name)
            return fm_fail(FM_EINVAL, "refs: a wish has no name");
    fm_status rc = hold_new(r, wish, count);
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        fm_ref_wish *k = &wish[i];
        k->text[0] = '\0';
        k->status = move_one(&w, k, reflog ? reflog : "exchange");
        if (k->status < 0)
            snprintf(k->text, sizeof k->text, "%.100s: %s", k->name, fm_error_text());
        if (k->status == FM_ENOMEM || k->status == FM_ECANCELLED)
            rc = k->status;
    }
    fm_map_free(w.seen);
    fm_map_free(w.named);
    fm_map_free(w.known[0]);
    fm_map_free(w.known[1]);
    fm_free(w.todo);
    if (rc == FM_OK)
        fm_ignore(fml_packs_repack(r, false), "the refs stand; the next commit repacks");
    return rc;
}
