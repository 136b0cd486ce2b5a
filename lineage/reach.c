/* reach.c - the mark phase of gc over refs, reflogs, leases, commits, trees and pointers. */
#include "lineage/reach.h"
#include "lineage/closure.h"
#include "lineage/named.h"

#include <string.h>

#define MAX_REF_DEPTH 100u
#define REFLOG_MAX_BYTES ((size_t)1 << 30)

fm_status fml_reach_init(fml_reach *x, fm_repo *r, fms_gc *gc, int64_t reflog_expire)
{
    memset(x, 0, sizeof *x);
    x->r = r;
    x->gc = gc;
    x->reflog_expire = reflog_expire;
    FM_TRY(fm_map_new(&x->named));
    FM_TRY(fm_map_new(&x->cut));
    return fm_map_new(&x->seen);
}

void fml_reach_release(fml_reach *x)
{
    for (size_t i = 0; i < x->roots; i++)
        fm_free(x->root[i]);
    fm_free(x->root);
    fm_free(x->todo);
    fm_map_free(x->seen);
    fm_map_free(x->named);
    fm_map_free(x->cut);
    memset(x, 0, sizeof *x);
}

static fm_status root_of(fml_reach *x, const char *name, uint32_t *out)
{
    for (size_t i = x->roots; i > 0; i--)
        if (strcmp(x->root[i - 1], name) == 0) {
            *out = (uint32_t)i;
            return FM_OK;
        }
    fm_status rc = fm_grow(&x->root, &x->root_cap, x->roots + 1, sizeof *x->root);
    char *copy = rc == FM_OK ? fm_strdup(name) : NULL;
    if (!copy)
        return FM_ENOMEM;
    x->root[x->roots++] = copy;
    *out = (uint32_t)x->roots;
    return FM_OK;
}

static uint32_t root_in(const fm_map *map, const git_oid *id)
{
    return (uint32_t)(uintptr_t)fm_map_get(map, id->id, sizeof id->id);
}

static uint32_t root_at(const fml_reach *x, const git_oid *id)
{
    return root_in(x->seen, id);
}

bool fml_reach_has(const fml_reach *x, const git_oid *id)
{
    uint32_t k = root_at(x, id);
    return k != FMS_ROOT_NONE && k != FML_ROOT_GRACE;
}

bool fml_reach_stays(const fml_reach *x, const git_oid *id)
{
    return root_at(x, id) != FMS_ROOT_NONE;
}

/* True: it is to be walked for this root. */
static fm_status first_in(fm_map *map, const git_oid *id, uint32_t root, bool *walk)
{
    uint32_t now = root_in(map, id);
    *walk = false;
    if (now == root || now == FMS_ROOT_SHARED || (root == FML_ROOT_GRACE && now != FMS_ROOT_NONE))
        return FM_OK;
    if (now != FMS_ROOT_NONE && now != FML_ROOT_GRACE)
        root = FMS_ROOT_SHARED;
    *walk = true;
    return fm_map_put(map, id->id, sizeof id->id, (void *)(uintptr_t)root, NULL);
}

static fm_status first_sight(fml_reach *x, const git_oid *id, uint32_t root, bool *walk)
{
    return first_in(x->seen, id, root, walk);
}

/* ---- objects ---- */

static fm_status emit(fml_reach *x, const fm_digest *id, uint32_t root)
{
    return root == FML_ROOT_GRACE ? fms_gc_stay(x->gc, id) : fms_gc_reach(x->gc, id, root);
}

/* A file of a model's tree that begins with "fmstore " is a pointer; nothing else may. */
static fm_status take_blob(fml_reach *x, const git_oid *id, uint32_t root)
{
    static const char mark[] = "fmstore ";
    git_odb_object *obj = NULL;
    fm_digest digest;
    bool is_tensor;
    fm_status rc = FM_OK;
    int code = git_odb_read(&obj, x->r->odb, id);

    if (code < 0)
        return fml_damage(code, "a file of a version cannot be read");
    const fm_span file = fm_span_of(git_odb_object_data(obj), git_odb_object_size(obj));
    if (fml_pointer_of(&digest, &is_tensor, file))
        rc = emit(x, &digest, root);
    else if (file.len >= sizeof mark - 1 && memcmp(file.data, mark, sizeof mark - 1) == 0)
        rc = fm_fail(FM_EVERSION, "a pointer that this fmstore cannot read: '%.40s'",
                     (const char *)file.data); /* libgit2 ends data with a NUL */
    git_odb_object_free(obj);
    return rc;
}

static fm_status take_tree(fml_reach *x, const git_oid *id, uint32_t root);

static fm_status take_entry(fml_reach *x, const git_tree_entry *e, uint32_t root)
{
    bool walk;
    const git_oid *id = git_tree_entry_id(e);
    git_filemode_t mode = git_tree_entry_filemode(e);
    if (mode == GIT_FILEMODE_COMMIT) /* a submodule: another repository's */
        return FM_OK;
    fm_status rc = first_sight(x, id, root, &walk);
    if (rc < 0 || !walk)
        return rc;
    return mode == GIT_FILEMODE_TREE ? take_tree(x, id, root) : take_blob(x, id, root);
}

static fm_status take_tree(fml_reach *x, const git_oid *id, uint32_t root)
{
    git_tree *tree = NULL;
    fm_status rc = FM_OK;
    int code = git_tree_lookup(&tree, x->r->git, id);

    if (code < 0)
        return fml_damage(code, "a folder of a version cannot be read");
    if (++x->depth > FML_TREE_DEPTH_MAX)
        rc = fm_fail(FM_ECORRUPT, "folders in folders, more than %u deep", FML_TREE_DEPTH_MAX);
    for (size_t i = 0; rc == FM_OK && i < git_tree_entrycount(tree); i++)
        rc = take_entry(x, git_tree_entry_byindex(tree, i), root);
    x->depth--;
    git_tree_free(tree);
    return rc;
}

static fm_status add_todo(fml_reach *x, const git_oid *id, uint32_t root)
{
    bool walk;
    fm_status rc = first_sight(x, id, root, &walk);
    if (rc < 0 || !walk)
        return rc;
    rc = fm_grow(&x->todo, &x->todo_cap, x->todo_count + 1, sizeof *x->todo);
    if (rc == FM_OK)
        x->todo[x->todo_count++] = *id;
    return rc;
}

static fm_status add_version(fml_reach *x, const git_oid *id, uint32_t root)
{
    uint32_t before = root_at(x, id);

    x->versions += root != FML_ROOT_GRACE && (before == FMS_ROOT_NONE || before == FML_ROOT_GRACE);
    return add_todo(x, id, root);
}

/* ---- what a version names ---- */

typedef struct naming {
    fml_reach *x;
    uint32_t root;
} naming;

static fm_status enter_named(void *ctx, const git_oid *id, bool *yes)
{
    const naming *n = ctx;

    return first_in(n->x->named, id, n->root, yes);
}

static fm_status is_whole(void *ctx, const char *path, const git_oid *id, fm_span bytes)
{
    const fml_reach *x = ctx;
    fm_digest digest;
    bool is_tensor, whole = true;

    (void)id;
    if (fml_pointer_of(&digest, &is_tensor, bytes))
        FM_TRY(fms_gc_whole(x->gc, &digest, &whole));
    if (!whole)
        FM_TRY(fml_promised(x->r, &digest, &whole));
    return whole ? FM_OK : fm_fail(FM_ENOTFOUND, "%s", path);
}

static fm_status whole_version(fml_reach *x, const git_oid *id, fm_map *todo)
{
    const fml_tree_visitor v = {.blob = is_whole, .ctx = x, .max_blob_bytes = FM_INLINE_MAX_BYTES};
    git_object *obj = NULL;
    const git_oid *tree = id;
    fm_status rc = FM_OK;
    int code = git_object_lookup(&obj, x->r->git, id, GIT_OBJECT_ANY);

    if (code < 0)
        return fml_damage(code, "a named version");
    if (git_object_type(obj) == GIT_OBJECT_COMMIT) {
        const git_commit *commit = (const git_commit *)obj;
        tree = git_commit_tree_id(commit);
        for (unsigned i = 0; rc == FM_OK && i < git_commit_parentcount(commit); i++)
            rc = fm_map_put(todo, git_commit_parent_id(commit, i)->id, sizeof tree->id, x, NULL);
    }
    FM_THEN(rc, fml_tree_walk(x->r, tree, &v));
    git_object_free(obj);
    return rc;
}

typedef enum named_is { WHOLE, CUT, GONE } named_is;

/* Neither is a reason to stop, as a name that nothing has is none:
 * GONE: a gc that was killed may have taken the bytes of a condemned version, or of one that it
 * comes from, and left the commit; one that is whole comes back from the list.
 * CUT: a fetch that did not end brought it, and no ref has it; something of it lies nowhere. */
static fm_status look_at_named(fml_reach *x, const git_oid *id, named_is *out)
{
    fm_map *todo = NULL;
    fm_status rc = fm_map_new(&todo);

    *out = WHOLE;
    FM_THEN(rc, fm_map_put(todo, id->id, sizeof id->id, x, NULL));
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(todo); i++) {
        git_oid next;
        git_oid_fromraw(&next, fm_map_key_at(todo, i).data);
        if (fml_reach_has(x, &next))
            continue;
        rc = whole_version(x, &next, todo);
        if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
            break;
        if (rc < 0 && fms_gc_git_condemned(x->gc, next.id))
            *out = GONE;
        else if (rc == FM_ENOTFOUND)
            *out = CUT;
        else if (rc < 0) /* the walk meets it, and says what is damaged */
            break;
    }
    fm_map_free(todo);
    if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    fm_error_clear();
    return FM_OK;
}

/* Keeps what is here of a version that is not whole: the rest may come. */
static fm_status keep_cut(fml_reach *x, const git_oid *id)
{
    git_oid *todo = x->todo;
    const size_t count = x->todo_count, cap = x->todo_cap;
    const unsigned depth = x->depth;

    x->todo = NULL;
    x->todo_count = x->todo_cap = 0;
    x->depth = 0;
    fm_status rc = fml_reach_grace(x, id);
    fm_error_clear();
    fm_free(x->todo);
    x->todo = todo;
    x->todo_count = count;
    x->todo_cap = cap;
    x->depth = depth;
    FM_THEN(rc, fm_map_put(x->cut, id->id, sizeof id->id, x, NULL));
    return rc;
}

static fm_status take_name(void *ctx, const char *path, fm_span hex, const char *key)
{
    const naming *n = ctx;
    git_oid id;
    size_t bytes;
    git_object_t type;
    bool there;
    named_is state;

    (void)path;
    (void)key;
    FM_TRY(fml_named_find(n->x->r, hex, &id, &there));
    if (!there || fm_map_has(n->x->cut, id.id, sizeof id.id))
        return FM_OK;
    if (n->root != FML_ROOT_GRACE) {
        FM_TRY(look_at_named(n->x, &id, &state));
        if (state == CUT)
            return keep_cut(n->x, &id);
        if (state == GONE)
            return FM_OK;
    }
    if (git_odb_read_header(&bytes, &type, n->x->r->odb, &id) == 0 && type == GIT_OBJECT_COMMIT)
        return add_version(n->x, &id, n->root);
    return add_todo(n->x, &id, n->root);
}

/* A model's whole tree. */
static fm_status take_model(fml_reach *x, const git_oid *tree, uint32_t root)
{
    naming n = {x, root};
    const fml_named v = {enter_named, take_name, &n};

    FM_TRY(take_tree(x, tree, root));
    return fml_named_each(x->r, tree, &v);
}

static fm_status take_commit(fml_reach *x, const git_commit *commit, uint32_t root)
{
    bool walk = false;
    fm_status rc = FM_OK;

    if (fml_message_encoding(git_commit_message_raw(commit)) > FML_ENCODING)
        rc = fm_fail(FM_EVERSION, "its tree is written by a newer fmstore");
    for (unsigned i = 0; rc == FM_OK && i < git_commit_parentcount(commit); i++)
        rc = add_version(x, git_commit_parent_id(commit, i), root);
    FM_THEN(rc, first_sight(x, git_commit_tree_id(commit), root, &walk));
    return rc == FM_OK && walk ? take_model(x, git_commit_tree_id(commit), root) : rc;
}

static fm_status take_next(fml_reach *x, const git_oid *id, uint32_t root)
{
    git_object *obj = NULL;
    char hex[41] = "";
    fm_status rc = FM_OK;
    int code = git_object_lookup(&obj, x->r->git, id, GIT_OBJECT_ANY);

    git_oid_fmt(hex, id);
    if (code < 0)
        return fml_damage(code, "version %.12s cannot be read", hex);
    if (git_object_type(obj) == GIT_OBJECT_COMMIT)
        rc = take_commit(x, (const git_commit *)obj, root);
    else if (git_object_type(obj) == GIT_OBJECT_TREE)
        rc = take_model(x, id, root);
    else
        rc = fm_fail(FM_ECORRUPT, "is no commit");
    git_object_free(obj);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "version %.12s", hex);
}

/* An object of any kind but what it waits for. *tag: a tag, whose target *next is. */
static fm_status take_first(fml_reach *x, const git_oid *id, uint32_t root, bool *tag,
                            git_oid *next)
{
    git_object *obj = NULL;
    bool walk = false;
    char hex[41] = "";
    fm_status rc = FM_OK;
    int code = git_object_lookup(&obj, x->r->git, id, GIT_OBJECT_ANY);

    *tag = false;
    git_oid_fmt(hex, id);
    if (code < 0)
        return fml_damage(code, "git object %.12s cannot be read", hex);
    git_object_t type = git_object_type(obj);
    if (type == GIT_OBJECT_COMMIT)
        rc = add_version(x, id, root);
    else
        rc = first_sight(x, id, root, &walk);
    if (rc == FM_OK && walk && type == GIT_OBJECT_TAG) {
        *tag = true;
        *next = *git_tag_target_id((const git_tag *)obj);
    } else if (rc == FM_OK && walk && type == GIT_OBJECT_TREE) {
        rc = take_model(x, id, root);
    } else if (rc == FM_OK && walk) {
        rc = take_blob(x, id, root);
    }
    git_object_free(obj);
    return rc;
}

static fm_status take_any(fml_reach *x, const git_oid *id, uint32_t root)
{
    git_oid next = *id;
    bool tag = true;
    fm_status rc = FM_OK;

    while (rc == FM_OK && tag) { /* tags of tags: a hostile chain of them has any length */
        const git_oid at = next;
        rc = take_first(x, &at, root, &tag, &next);
    }
    while (rc == FM_OK && x->todo_count > 0) {
        next = x->todo[--x->todo_count];
        rc = take_next(x, &next, root);
    }
    return rc;
}

fm_status fml_reach_grace(fml_reach *x, const git_oid *id)
{
    fm_status rc = take_any(x, id, FML_ROOT_GRACE);
    x->todo_count = 0;
    x->depth = 0;
    return rc == FM_ENOMEM ? rc : FM_OK;
}

/* ---- names ---- */

static fm_status take_named(fml_reach *x, const char *name, const git_oid *id)
{
    uint32_t root = 0;
    fm_status rc = root_of(x, name, &root);
    FM_THEN(rc, take_any(x, id, root));
    return rc == FM_OK ? rc
                       : fm_error_prefix(rc, "gc: nothing was deleted, run fsck first: %s", name);
}

static fm_status take_ref(fml_reach *x, const char *name)
{
    git_reference *ref = NULL, *direct = NULL;
    fm_status rc = FM_OK;
    int code = git_reference_lookup(&ref, x->r->git, name);

    if (code == GIT_ENOTFOUND) /* deleted since it was listed */
        return FM_OK;
    if (code == 0 && git_reference_type(ref) == GIT_REFERENCE_DIRECT) {
        rc = take_named(x, name, git_reference_target(ref));
    } else if (code == 0) { /* symbolic: its target is listed as a ref too */
        code = git_reference_resolve(&direct, ref);
        code = code == GIT_ENOTFOUND ? 0 : code;
    }
    git_reference_free(direct);
    git_reference_free(ref);
    if (code < 0)
        return fml_damage(code, "gc: nothing was deleted, run fsck first: ref '%s'", name);
    return rc;
}

/* An entry whose version an earlier gc deleted keeps nothing. */
static fm_status take_entry_id(fml_reach *x, const char *root, const git_oid *id)
{
    if (git_oid_is_zero(id) || !git_odb_exists(x->r->odb, id))
        return FM_OK;
    return take_named(x, root, id);
}

/* A reflog counts for the root of its branch, HEAD's for that of the branch that HEAD names. */
static fm_status log_keeper(fml_reach *x, const char *name, char **out)
{
    git_reference *head = NULL;
    const char *root = name;

    if (strcmp(name, "HEAD") == 0 && git_reference_lookup(&head, x->r->git, name) == 0 &&
        git_reference_type(head) == GIT_REFERENCE_SYMBOLIC)
        root = git_reference_symbolic_target(head);
    *out = fm_strdup(root);
    git_reference_free(head);
    return *out ? FM_OK : FM_ENOMEM;
}

/* "old new Name <mail> time zone\tmessage". False: another line, as a crash may leave at the
 * end. */
static bool parse_entry(const char *line, size_t len, git_oid id[2], int64_t *time)
{
    const char *mail = memchr(line, '>', len);

    if (len < 82 || line[40] != ' ' || line[81] != ' ' ||
        git_oid_fromstrn(&id[0], line, GIT_OID_HEXSZ) < 0 ||
        git_oid_fromstrn(&id[1], line + 41, GIT_OID_HEXSZ) < 0)
        return false;
    *time = INT64_MAX; /* unreadable: it does not expire */
    if (mail && mail + 2 < line + len && mail[2] >= '0' && mail[2] <= '9') {
        *time = 0;
        for (const char *p = mail + 2; p < line + len && *p >= '0' && *p <= '9' && p - mail < 16;
             p++)
            *time = *time * 10 + (*p - '0');
    }
    return true;
}

static fm_status take_entries(fml_reach *x, const char *root, fm_span text)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && text.len > 0) {
        const uint8_t *end = memchr(text.data, '\n', text.len);
        size_t len = end ? (size_t)(end - text.data) : text.len;
        bool newest = !end || len + 1 == text.len;
        git_oid id[2];
        int64_t time;
        if (parse_entry((const char *)text.data, len, id, &time)) {
            if (time > x->reflog_expire || newest)
                rc = take_entry_id(x, root, &id[1]);
            if (rc == FM_OK && time > x->reflog_expire)
                rc = take_entry_id(x, root, &id[0]);
        }
        len += end != NULL;
        text = fm_span_of(text.data + len, text.len - len);
    }
    return rc;
}

/* Reads the file itself: libgit2 makes a missing reflog, so a branch that is just being deleted
 * would get an empty one. */
static fm_status take_reflog(fml_reach *x, const char *name)
{
    char *root = NULL, *path = fm_asprintf("%s/logs/%s", x->r->git_path, name);
    fm_buf text;
    fm_status rc = path ? log_keeper(x, name, &root) : FM_ENOMEM;

    fm_buf_init(&text, REFLOG_MAX_BYTES);
    FM_THEN(rc, fm_read_file(&text, path, REFLOG_MAX_BYTES));
    FM_THEN(rc, take_entries(x, root, fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_free(root);
    fm_free(path);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

/* Lists the files below "refs" (broken refs included) or "logs" in lineage.git. */
static fm_status file_names(fm_repo *r, fm_map *names, const char *folder, size_t skip,
                            unsigned depth)
{
    char *dir = fm_path_join(r->git_path, folder);
    fm_names files = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&files, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char *name = fm_path_join(folder, files.name[i]);
        char *path = name ? fm_path_join(r->git_path, name) : NULL;
        size_t len = name ? strlen(name) : 0;
        if (!path)
            rc = FM_ENOMEM;
        else if (fm_path_is_dir(path))
            rc = depth < MAX_REF_DEPTH ? file_names(r, names, name, skip, depth + 1) : FM_OK;
        else if (len < 5 || strcmp(name + len - 5, ".lock") != 0)
            rc = fm_map_put(names, name + skip, len + 1 - skip, r, NULL);
        fm_free(name);
        fm_free(path);
    }
    fm_names_release(&files);
    fm_free(dir);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

static fm_status ref_names(fm_repo *r, fm_map *names)
{
    git_reference_iterator *it = NULL;
    const char *name = NULL;
    fm_status rc = file_names(r, names, "refs", 0, 0);
    int code = git_reference_iterator_new(&it, r->git);

    while (rc == FM_OK && code == 0 && (code = git_reference_next_name(&name, it)) == 0)
        rc = fm_map_put(names, name, strlen(name) + 1, r, NULL);
    git_reference_iterator_free(it);
    if (rc == FM_OK && code < 0 && code != GIT_ITEROVER)
        rc = fml_damage(code, "gc: nothing was deleted: the refs of '%s' cannot be listed",
                        r->git_path);
    return rc;
}

static fm_status take_held(fml_reach *x, fms_hold kind)
{
    const fm_buf *held = &fms_gc_leases(x->gc)->held[kind];

    for (size_t at = 0; at < held->len; at += FMS_GIT_ID_BYTES) {
        git_oid id;
        git_oid_fromraw(&id, held->data + at);
        if (git_odb_exists(x->r->odb, &id)) /* else its owner has not written it yet */
            FM_TRY(take_named(x, "running processes", &id));
    }
    return FM_OK;
}

static bool is_reached(void *ctx, const git_oid *id)
{
    return fml_reach_has(ctx, id);
}

static fm_status is_whole_file(void *ctx, const char *path, fm_span bytes)
{
    static const char mark[] = "fmstore ";
    fm_digest digest;
    bool is_tensor;

    if (bytes.len >= sizeof mark - 1 && memcmp(bytes.data, mark, sizeof mark - 1) == 0 &&
        !fml_pointer_of(&digest, &is_tensor, bytes))
        return fm_fail(FM_EVERSION, "%s", path);
    return is_whole(ctx, path, NULL, bytes);
}

static fm_status is_ours(void *ctx, const git_oid *id, const char *path)
{
    const fml_reach *x = ctx;
    git_commit *commit = NULL;
    fm_status rc = FM_OK;

    if (*path || git_commit_lookup(&commit, x->r->git, id) < 0)
        return FM_OK;
    if (fml_message_encoding(git_commit_message_raw(commit)) > FML_ENCODING)
        rc = fm_fail(FM_EVERSION, "its tree is written by a newer fmstore");
    git_commit_free(commit);
    return rc;
}

/* Git objects that a process writes or receives. What arrives from another repository is not whole
 * until its ref moves, which is no reason to stop: it stays then, with all that is here of it. */
static fm_status take_arriving(fml_reach *x)
{
    const fm_buf *held = &fms_gc_leases(x->gc)->held[FMS_HOLD_GIT];
    fml_closure whole;
    fm_status rc = fml_closure_init(&whole, x->r);

    whole.pass = is_reached;
    whole.object = is_ours;
    whole.file = is_whole_file;
    whole.ctx = x;
    for (size_t at = 0; rc == FM_OK && at < held->len; at += FMS_GIT_ID_BYTES) {
        git_oid id;
        git_oid_fromraw(&id, held->data + at);
        if (git_odb_exists(x->r->odb, &id))
            rc = fml_closure_add(&whole, &id);
    }
    fml_closure_release(&whole);
    if (rc == FM_OK)
        return take_held(x, FMS_HOLD_GIT);
    if (rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    fm_error_clear();
    for (size_t at = 0; at < held->len; at += FMS_GIT_ID_BYTES) {
        git_oid id;
        git_oid_fromraw(&id, held->data + at);
        if (git_odb_exists(x->r->odb, &id))
            FM_TRY(fml_reach_grace(x, &id));
    }
    return FM_OK;
}

fm_status fml_reach_all(fml_reach *x)
{
    fm_map *refs = NULL, *logs = NULL;
    fm_status rc = fm_map_new(&refs);

    FM_THEN(rc, fm_map_new(&logs));
    if (rc == FM_OK && git_odb_refresh(x->r->odb) < 0)
        rc = fml_damage(-1, "gc: nothing was deleted: the objects of '%s' cannot be listed",
                        x->r->git_path);
    FM_THEN(rc, ref_names(x->r, refs));
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(refs); i++)
        rc = take_ref(x, (const char *)fm_map_key_at(refs, i).data);
    FM_THEN(rc, file_names(x->r, logs, "logs", strlen("logs/"), 0));
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(logs); i++)
        rc = take_reflog(x, (const char *)fm_map_key_at(logs, i).data);
    FM_THEN(rc, take_held(x, FMS_HOLD_COMMIT));
    FM_THEN(rc, take_arriving(x));
    fm_map_free(refs);
    fm_map_free(logs);
    return rc;
}

/* ---- reflogs ---- */

/* After a dropped line the old id becomes zero, or git would report it as missing. */
static void keep_line(fm_buf *to, const char *line, size_t len, bool after_gap)
{
    static const char zeros[] = "0000000000000000000000000000000000000000";

    if (after_gap && len > GIT_OID_HEXSZ) {
        fm_buf_append(to, zeros, GIT_OID_HEXSZ);
        line += GIT_OID_HEXSZ;
        len -= GIT_OID_HEXSZ;
    }
    fm_buf_append(to, line, len);
}

static uint64_t shorten(fm_buf *to, fm_span text, int64_t expire)
{
    uint64_t dropped = 0;
    bool gap = false;

    while (text.len > 0) {
        const uint8_t *end = memchr(text.data, '\n', text.len);
        size_t len = end ? (size_t)(end - text.data) + 1 : text.len;
        git_oid id[2];
        int64_t time;
        bool old = len < text.len && parse_entry((const char *)text.data, len, id, &time) &&
                   time <= expire;
        if (!old)
            keep_line(to, (const char *)text.data, len, gap);
        dropped += old;
        gap = old;
        text = fm_span_of(text.data + len, text.len - len);
    }
    return dropped;
}

/* libgit2 is not used: its lock file would outlive a kill and stop every later gc. */
static fm_status write_log(fm_repo *r, const char *path, const fm_buf *text)
{
    char *tmp = fm_path_join(r->path, "tmp");
    fm_writer *w = NULL;
    fm_status rc = tmp ? fm_writer_open(&w, path, tmp) : FM_ENOMEM;

    FM_THEN(rc, fm_writer_write(w, text->data, text->len));
    FM_THEN(rc, fm_writer_commit(w, NULL));
    fm_writer_close(w);
    fm_free(tmp);
    return rc;
}

static fm_status expire_one(fm_repo *r, const char *name, int64_t expire, uint64_t *dropped)
{
    char *path = fm_asprintf("%s/logs/%s", r->git_path, name);
    fm_buf text, kept;
    uint64_t gone = 0;

    fm_buf_init(&text, REFLOG_MAX_BYTES);
    fm_buf_init(&kept, REFLOG_MAX_BYTES);
    fm_status rc = path ? fm_read_file(&text, path, REFLOG_MAX_BYTES) : FM_ENOMEM;
    if (rc == FM_OK) {
        gone = shorten(&kept, fm_buf_span(&text), expire);
        rc = fm_buf_ok(&kept);
    }
    if (rc == FM_OK && gone > 0)
        rc = write_log(r, path, &kept);
    *dropped += rc == FM_OK ? gone : 0;
    fm_buf_release(&text);
    fm_buf_release(&kept);
    fm_free(path);
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

fm_status fml_reflogs_expire(fm_repo *r, int64_t expire, uint64_t *dropped)
{
    fm_map *logs = NULL;
    fm_status rc = fm_map_new(&logs);

    FM_THEN(rc, file_names(r, logs, "logs", strlen("logs/"), 0));
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(logs); i++)
        rc = expire_one(r, (const char *)fm_map_key_at(logs, i).data, expire, dropped);
    fm_map_free(logs);
    return rc;
}
