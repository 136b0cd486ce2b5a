/* refs.c - names of versions: moved by compare-and-swap, with a reflog, one move at a time.
 *
 * libgit2 locks each ref by a file, which a killed process leaves behind for ever. All moves by
 * fmstore hold one flock, so a lock file seen under it belongs to plain git (for a moment) or to a
 * killed process (it is swept once it is old). */
#include "lineage/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/base/text/markup.h"

#define HEADS "refs/heads/"
#define MOVED_LOOKS 8u
#define STALE_LOCK_SECONDS 5
#define LOCK_WAIT_STEPS 200 /* of 50 ms: longer than the age at which a lock file is swept */

/* ---- names ---- */

static fm_status bad_name(const char *name, const char *why)
{
    return fm_fail(FM_EINVAL, "branch name '%.100s' %s", name, why);
}

static const char *part_fault(const char *part, size_t len)
{
    if (len == 0)
        return "has an empty part between slashes";
    if (part[0] == '.')
        return "has a part that begins with '.'";
    if (len >= 5 && memcmp(part + len - 5, ".lock", 5) == 0)
        return "has a part that ends in '.lock'";
    return NULL;
}

static const char *name_fault(const char *name, size_t len)
{
    if (name[0] == '-')
        return "begins with '-'";
    if (name[len - 1] == '.' || name[len - 1] == '/')
        return "ends in '.' or '/'";
    if (strcmp(name, "@") == 0 || strcmp(name, "HEAD") == 0)
        return "means something else to git";
    if (strstr(name, ".."))
        return "holds '..'";
    if (strstr(name, "@{"))
        return "holds '@{'";
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f)
            return "holds a space or control byte";
    if (strpbrk(name, "~^:?*[\\"))
        return "holds one of ~ ^ : ? * [ \\";
    if (len == 40 && strspn(name, "0123456789abcdefABCDEF") == 40)
        return "looks like an object id";
    return NULL;
}

fm_status fm_branch_name_check(const char *name)
{
    const char *fault, *part = name;
    size_t len = name ? strlen(name) : 0;

    if (len == 0)
        return fm_fail(FM_EINVAL, "branch name is empty");
    if (len > FML_MAX_REF_BYTES)
        return fm_fail(FM_EINVAL, "branch name '%.40s...' is longer than %u bytes", name,
                       FML_MAX_REF_BYTES);
    fault = name_fault(name, len);
    while (!fault) {
        size_t n = strcspn(part, "/");
        fault = part_fault(part, n);
        if (part[n] == '\0')
            break;
        part += n + 1;
    }
    return fault ? bad_name(name, fault) : FM_OK;
}

fm_status fm_branch_name_fit(const char *name)
{
    FM_TRY(fm_branch_name_check(name));
    for (size_t left = strlen(name), n; left > 0; left -= n) {
        n = fm_markup_shown(name + strlen(name) - left, left);
        if (n == 0)
            return bad_name(name, "holds a control character, a mark that turns the direction of "
                                  "writing, or bytes that are no UTF-8");
    }
    if (strlen(name) >= 7 && strspn(name, "0123456789abcdefABCDEF") == strlen(name))
        return bad_name(name, "could be the beginning of a version's id; add another letter");
    return FM_OK;
}

fm_status fml_ref_name_check(const char *name)
{
    int valid = 0;

    if (name && strncmp(name, HEADS, sizeof HEADS - 1) == 0)
        return fm_branch_name_check(name + sizeof HEADS - 1);
    if (!name || strncmp(name, "refs/", 5) != 0 || strlen(name) > 5 + FML_MAX_REF_BYTES ||
        git_reference_name_is_valid(&valid, name) < 0 || !valid)
        return fm_fail(FM_EINVAL, "'%.100s' is no valid name of a ref", name ? name : "");
    return FM_OK;
}

/* ---- lock files ---- */

static bool stale(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && time(NULL) - st.st_mtime > STALE_LOCK_SECONDS;
}

/* True: try again, as a dead lock file was swept or a live one may go soon. */
static bool wait_lock(fm_repo *r, const char *name, unsigned step)
{
    const char *const file[] = {name, "HEAD", "packed-refs"};
    bool swept = false;

    for (size_t i = 0; i < FM_ARRAY_LEN(file); i++) {
        char *path = fm_asprintf("%s/%s.lock", r->git_path, file[i]);
        if (path && stale(path) && fm_remove_file(path) == FM_OK)
            swept = true;
        fm_free(path);
    }
    if (!swept) {
        struct timespec t = {0, 50 * 1000 * 1000};
        nanosleep(&t, NULL);
    }
    return step < LOCK_WAIT_STEPS;
}

/* ---- read ---- */

fm_status fml_ref_peek(fm_repo *r, git_oid *out, bool *exists, const char *name)
{
    git_reference *ref = NULL, *direct = NULL;
    int code = git_reference_lookup(&ref, r->git, name);

    *exists = false;
    if (code == GIT_ENOTFOUND)
        return FM_OK;
    if (code == 0)
        code = git_reference_resolve(&direct, ref);
    if (code == 0) {
        *out = *git_reference_target(direct);
        *exists = true;
    }
    git_reference_free(ref);
    git_reference_free(direct);
    return code < 0 ? fml_damage(code, "cannot read ref '%s'", name) : FM_OK;
}

bool fml_is_commit(fm_repo *r, const git_oid *id)
{
    git_commit *c = NULL;
    bool yes = git_commit_lookup(&c, r->git, id) == 0;

    git_commit_free(c);
    return yes;
}

fm_status fm_ref_read(fm_repo *r, fm_oid *out, const char *name)
{
    git_reference *ref = NULL;
    git_object *obj = NULL;
    fm_status rc = fml_ref_name_check(name);
    int code;

    memset(out, 0, sizeof *out);
    if (rc < 0)
        return rc;
    code = git_reference_lookup(&ref, r->git, name);
    if (code == GIT_ENOTFOUND)
        return fm_fail(FM_ENOTFOUND, "no ref '%s'", name);
    if (code == 0)
        code = git_reference_peel(&obj, ref, GIT_OBJECT_COMMIT);
    if (code < 0)
        rc = fml_damage(code, "cannot read ref '%s'", name);
    else
        fml_from_git(out, git_object_id(obj));
    git_object_free(obj);
    git_reference_free(ref);
    return rc;
}

fm_status fm_ref_read_raw(fm_repo *r, fm_oid *out, const char *name)
{
    git_oid id;
    bool there;

    memset(out, 0, sizeof *out);
    FM_TRY(fml_ref_name_check(name));
    FM_TRY(fml_ref_peek(r, &id, &there, name));
    if (!there)
        return fm_fail(FM_ENOTFOUND, "no ref '%s'", name);
    fml_from_git(out, &id);
    return FM_OK;
}

/* ---- HEAD ---- */

static bool ref_exists(fm_repo *r, const char *name)
{
    git_reference *ref = NULL;
    bool yes = git_reference_lookup(&ref, r->git, name) == 0;

    git_reference_free(ref);
    return yes;
}

static fm_status first_branch(void *ctx, const char *name, const fm_oid *oid)
{
    char **out = ctx;

    (void)oid;
    *out = fm_strdup(name);
    return *out ? FM_ECANCELLED : FM_ENOMEM;
}

/* fmstore does not read HEAD; plain `git log` begins there. */
fm_status fml_head_mend(fm_repo *r, bool *changed)
{
    git_reference *head = NULL, *made = NULL;
    char *branch = NULL;
    fm_status rc = FM_OK;
    int code = git_reference_lookup(&head, r->git, "HEAD");

    *changed = false;
    if (code == 0 && git_reference_type(head) == GIT_REFERENCE_SYMBOLIC &&
        ref_exists(r, git_reference_symbolic_target(head)))
        goto done;
    if (ref_exists(r, HEADS "main")) {
        branch = fm_strdup(HEADS "main");
        rc = branch ? FM_OK : FM_ENOMEM;
    } else {
        rc = fm_ref_each(r, HEADS, first_branch, &branch);
    }
    if (rc < 0 || !branch)
        goto done;
    for (unsigned step = 0;; step++) {
        code = git_reference_symbolic_create(&made, r->git, "HEAD", branch, 1, NULL);
        if (code != GIT_ELOCKED || !wait_lock(r, "HEAD", step))
            break;
    }
    if (code < 0)
        rc = fml_git_fail(code, "cannot point HEAD to '%s'", branch);
    else
        *changed = true;
done:
    fm_free(branch);
    git_reference_free(head);
    git_reference_free(made);
    return rc;
}

/* ---- move ---- */

/* The path of the folder that holds the file of a ref. */
static char *ref_folder(const fm_repo *r, const char *name)
{
    const char *slash = strrchr(name, '/');

    return fm_asprintf("%s/%.*s", r->git_path, slash ? (int)(slash - name) : 0, name);
}

/* libgit2 fsyncs the folder of a ref that it writes, but not the new folders above. A failure here
 * is ignored: libgit2's own message is better. */
static void make_folder(const fm_repo *r, const char *name)
{
    char *folder = ref_folder(r, name);
    fm_error_state kept;

    fm_error_save(&kept);
    if (folder)
        fm_ignore(fm_make_dirs(folder), "libgit2 says what is wrong");
    fm_error_restore(&kept);
    fm_free(folder);
}

/* Fsyncs the nearest existing folder of a deleted ref: empty folders may have gone with it. */
static fm_status fsync_folder(const fm_repo *r, const char *name)
{
    char *folder = ref_folder(r, name);
    fm_status rc;

    if (!folder)
        return FM_ENOMEM;
    for (char *slash = strrchr(folder, '/'); slash && !fm_path_is_dir(folder);
         slash = strrchr(folder, '/'))
        *slash = '\0';
    rc = fm_fsync_dir(folder);
    fm_free(folder);
    return rc;
}

static fm_status move_once(fm_repo *r, const char *name, const git_oid *to, const git_oid *old,
                           const char *reflog, int *code)
{
    git_reference *ref = NULL;

    if (old)
        *code = git_reference_create_matching(&ref, r->git, name, to, 1, old, reflog);
    else
        *code = git_reference_create(&ref, r->git, name, to, 0, reflog);
    git_reference_free(ref);
    return *code < 0 ? fml_git_fail(*code, "cannot move '%s'", name) : FM_OK;
}

fm_status fml_ref_move(fm_repo *r, const char *name, const git_oid *to, const git_oid *old,
                       const char *reflog)
{
    git_oid now;
    bool exists = false;
    int code = 0;
    fm_status rc = fml_ref_peek(r, &now, &exists, name);

    if (rc < 0)
        return rc;
    if (exists && !old)
        return fm_fail(FM_EEXISTS, "'%s' already exists", name);
    if (old && (!exists || !git_oid_equal(&now, old)))
        return fm_fail(FM_ECONFLICT, "'%s' is no longer where it was", name);
    if (!exists)
        make_folder(r, name);
    for (unsigned step = 0;; step++) {
        rc = move_once(r, name, to, old, reflog, &code);
        if (code != GIT_ELOCKED || !wait_lock(r, name, step))
            return rc;
    }
}

static const char *short_name(const char *name)
{
    return strncmp(name, HEADS, sizeof HEADS - 1) == 0 ? name + sizeof HEADS - 1 : name;
}

/* " by NAME <MAIL> at TIME (MESSAGE)" of the newest reflog entry, "" if there is none. */
static void who_moved(fm_repo *r, const char *name, fm_buf *out)
{
    git_reflog *log = NULL;
    const git_reflog_entry *e = NULL;

    if (git_reflog_read(&log, r->git, name) == 0 && git_reflog_entrycount(log) > 0)
        e = git_reflog_entry_byindex(log, 0);
    if (e) {
        const git_signature *who = git_reflog_entry_committer(e);
        const char *message = git_reflog_entry_message(e);
        struct tm tm;
        time_t when = (time_t)who->when.time;
        char at[32] = "";
        if (gmtime_r(&when, &tm))
            strftime(at, sizeof at, "%Y-%m-%d %H:%M:%S UTC", &tm);
        fm_buf_printf(out, " by %.80s <%.80s> at %s", who->name, who->email, at);
        if (message && *message)
            fm_buf_printf(out, " (%.80s)", message);
    }
    git_reflog_free(log);
}

/* A commit that lost the race may be hours of work: a ref of its own keeps it from gc. */
static fm_status keep_lost(fm_repo *r, const git_oid *lost, const char *reflog)
{
    char name[sizeof FML_LOST_PREFIX + 40] = FML_LOST_PREFIX;
    git_oid now;
    bool exists = false;
    fm_status rc;

    git_oid_fmt(name + sizeof FML_LOST_PREFIX - 1, lost);
    name[sizeof name - 1] = '\0';
    rc = fml_ref_peek(r, &now, &exists, name);
    if (rc < 0 || exists)
        return rc;
    return fml_ref_move(r, name, lost, NULL, reflog);
}

/* The text names the writer that won and the ref that keeps the other's commit. */
static fm_status report_conflict(fm_repo *r, fm_status rc, const char *name, const git_oid *to,
                                 const char *reflog)
{
    char hex[41] = "", at[41] = "nothing";
    bool kept = keep_lost(r, to, reflog) == FM_OK, exists = false;
    git_oid now;
    fm_buf who;

    fm_buf_init(&who, 4096);
    git_oid_fmt(hex, to);
    if (fml_ref_peek(r, &now, &exists, name) == FM_OK && exists)
        git_oid_fmt(at, &now);
    who_moved(r, name, &who);
    rc = fm_fail(rc, "'%s' %s%s and is now at %.12s; your commit %s %s%s", short_name(name),
                 rc == FM_EEXISTS ? "was made" : "was moved", fm_buf_cstr(&who), at, hex,
                 kept ? "is kept under " FML_LOST_PREFIX
                      : "could not be kept under a ref of its own",
                 kept ? hex : "");
    fm_buf_release(&who);
    return rc;
}

static fm_status update_locked(fm_repo *r, const char *name, const git_oid *to, const git_oid *old,
                               const char *reflog)
{
    bool is_branch = strncmp(name, HEADS, sizeof HEADS - 1) == 0, changed;
    fm_status rc = fml_ref_move(r, name, to, old, reflog);

    if (is_branch && (rc == FM_ECONFLICT || rc == FM_EEXISTS))
        return report_conflict(r, rc, name, to, reflog);
    if (rc == FM_OK && is_branch) /* the ref is moved: an unborn HEAD is no failure */
        fm_ignore(fml_head_mend(r, &changed), "only plain git's default; fsck mends it");
    return rc;
}

/* Names the ref's new target in the lease: a concurrent gc must not delete it. A handle that had no
 * lease until now may cache a deleted version, so the disk is checked, down to the pointers. */
static fm_status hold_target(fm_repo *r, const fm_oid *oid, const git_oid *id)
{
    bool leased = fms_store_leased(r->store, true);
    fm_tree *tree = NULL;
    char hex[41];
    fm_status rc = fm_store_lease(r->store, true, "a move of a ref");

    FM_THEN(rc, fml_hold_commit(r, id));
    if (rc < 0 || (leased && !fms_store_git_condemned(r->store, id->id)))
        return rc;
    if (!fml_still_there(r, id)) {
        fm_oid_hex(oid, hex);
        return fm_fail(FM_ENOTFOUND, "no version %s", hex);
    }
    rc = fm_version_tree(r, &tree, oid);
    FM_THEN(rc, fml_check_stored(r, tree));
    fm_tree_free(tree);
    return rc;
}

fm_status fm_ref_update(fm_repo *r, const char *name, const fm_oid *new_oid, const fm_oid *old,
                        const char *reflog)
{
    git_oid to, from;
    fm_lock *lock = NULL;
    char hex[41];
    fm_status rc;

    if (!r || !new_oid)
        return fm_fail(FM_EINVAL, "ref: a repository and an id are needed");
    FM_TRY(fml_ref_name_check(name));
    to = fml_git_oid(new_oid);
    if (!fml_is_commit(r, &to)) {
        fm_oid_hex(new_oid, hex);
        return fm_fail(FM_ENOTFOUND, "'%s' cannot move to %s: no such version", name, hex);
    }
    if (old)
        from = fml_git_oid(old);
    FM_TRY(hold_target(r, new_oid, &to));
    rc = fml_ref_lock(r, &lock);
    FM_THEN(rc, update_locked(r, name, &to, old ? &from : NULL, reflog ? reflog : "update"));
    fm_lock_drop(lock);
    return rc;
}

/* ---- delete ---- */

static fm_status delete_once(fm_repo *r, const char *name, int *code)
{
    git_reference *ref = NULL;

    *code = git_reference_lookup(&ref, r->git, name);
    if (*code == 0)
        *code = git_reference_delete(ref);
    git_reference_free(ref);
    return *code < 0 ? fml_git_fail(*code, "cannot delete '%s'", name) : FM_OK;
}

static fm_status delete_locked(fm_repo *r, const char *name, const fm_oid *old)
{
    git_oid now;
    bool exists = false, changed;
    int code = 0;
    fm_status rc = fml_ref_peek(r, &now, &exists, name);

    if (rc < 0)
        return rc;
    if (!exists)
        return fm_fail(FM_ENOTFOUND, "no ref '%s'", name);
    if (old && memcmp(now.id, old->b, sizeof old->b) != 0)
        return fm_fail(FM_ECONFLICT, "'%s' was moved by someone else; it is not deleted", name);
    for (unsigned step = 0;; step++) {
        rc = delete_once(r, name, &code);
        if (code != GIT_ELOCKED || !wait_lock(r, name, step))
            break;
    }
    FM_THEN(rc, fsync_folder(r, name));
    if (rc == FM_OK)
        fm_ignore(fml_head_mend(r, &changed), "only plain git's default; fsck mends it");
    return rc;
}

fm_status fm_ref_delete(fm_repo *r, const char *name, const fm_oid *old)
{
    fm_lock *lock = NULL;
    fm_status rc = r ? fml_ref_name_check(name) : fm_fail(FM_EINVAL, "ref: no repository");

    FM_THEN(rc, fml_ref_lock(r, &lock));
    FM_THEN(rc, delete_locked(r, name, old));
    fm_lock_drop(lock);
    return rc;
}

/* ---- list ---- */

typedef struct named {
    char *name;
    fm_oid oid;
} named;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* Adds a ref to the list; a ref to something else than a commit (a tag of a file) is left out. */
static fm_status take_ref(named **list, size_t *count, size_t *cap, git_reference *ref)
{
    git_object *obj = NULL;
    int code = git_reference_peel(&obj, ref, GIT_OBJECT_COMMIT);
    fm_status rc;

    if (code == GIT_EPEEL || code == GIT_EINVALIDSPEC || code == GIT_EAMBIGUOUS)
        return FM_OK;
    if (code == GIT_ENOTFOUND && git_reference_type(ref) == GIT_REFERENCE_SYMBOLIC)
        return FM_OK; /* a remote's HEAD whose branch was not fetched */
    if (code < 0)
        return fml_damage(code, "ref '%s' cannot be read", git_reference_name(ref));
    rc = fm_grow(list, cap, *count + 1, sizeof **list);
    if (rc == FM_OK) {
        (*list)[*count].name = fm_strdup(git_reference_name(ref));
        fml_from_git(&(*list)[*count].oid, git_object_id(obj));
        rc = (*list)[*count].name ? FM_OK : FM_ENOMEM;
    }
    if (rc == FM_OK)
        (*count)++;
    git_object_free(obj);
    return rc;
}

/* An unreadable version is damage only if the ref still names it and a fresh list of packs lacks
 * it: the branch may have been deleted or moved since it was listed, gc may have deleted the
 * version, or two repacks in a row may have moved it while the first one's packs were looked up. */
static fm_status take_current(fm_repo *r, named **list, size_t *count, size_t *cap,
                              git_reference *ref)
{
    fm_status rc = take_ref(list, count, cap, ref);

    for (unsigned again = 0; rc == FM_ECORRUPT && again < MOVED_LOOKS; again++) {
        git_reference *now = NULL;
        int code = git_reference_lookup(&now, r->git, git_reference_name(ref));
        if (code == GIT_ENOTFOUND)
            return FM_OK;
        if (code < 0 || git_odb_refresh(r->odb) < 0) {
            git_reference_free(now);
            return rc;
        }
        rc = take_ref(list, count, cap, now);
        git_reference_free(now);
    }
    return rc;
}

static fm_status list_refs(fm_repo *r, const char *prefix, named **list, size_t *count)
{
    git_reference_iterator *it = NULL;
    git_reference *ref = NULL;
    size_t cap = 0, len = strlen(prefix);
    fm_status rc = FM_OK;
    int code = git_reference_iterator_new(&it, r->git);

    while (code == 0 && rc == FM_OK && (code = git_reference_next(&ref, it)) == 0) {
        if (strncmp(git_reference_name(ref), prefix, len) == 0)
            rc = take_current(r, list, count, &cap, ref);
        git_reference_free(ref);
    }
    git_reference_iterator_free(it);
    if (rc == FM_OK && code < 0 && code != GIT_ITEROVER)
        rc = fml_damage(code, "cannot list the refs of '%s'", r->git_path);
    return rc;
}

fm_status fm_ref_each(fm_repo *r, const char *prefix, fm_ref_fn fn, void *ctx)
{
    named *list = NULL;
    size_t count = 0;
    fm_status rc;

    if (!r || !fn)
        return fm_fail(FM_EINVAL, "refs: a repository and a callback are needed");
    rc = list_refs(r, prefix ? prefix : "refs/", &list, &count);
    if (count > 1)
        qsort(list, count, sizeof *list, by_name);
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = fn(ctx, list[i].name, &list[i].oid);
    for (size_t i = 0; i < count; i++)
        fm_free(list[i].name);
    fm_free(list);
    return rc == FM_ECANCELLED ? FM_OK : rc;
}
