/* objects.c - the door for new git objects: they gather in memory and become one durable pack.
 *
 * A commit of 300 tensors as loose objects costs 300 fsyncs (1.5 s measured), as one pack one.
 * libgit2's own mempack dump packs the whole tree of each commit; here only what is new is
 * packed, so a commit costs what it changed. */
#include "lineage/internal.h"

#include <string.h>
#include <git2/sys/mempack.h>
#include <git2/sys/odb_backend.h>
#include <git2/sys/repository.h>

#define FRESH_PRIORITY 999
#define SHA1_BYTES 20u
#define FOLD_AT 32u /* packs; each lookup asks every pack */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && memcmp(s + n - m, end, m) == 0;
}

static fm_status check_index(const char *path)
{
    fm_file_map map = {NULL, 0};
    uint8_t sum[SHA1_BYTES];
    fm_status rc = fm_map_file(&map, path);

    if (rc == FM_ENOTFOUND) /* folded away since it was listed */
        return FM_OK;
    if (rc == FM_OK && map.len > SHA1_BYTES)
        rc = fm_sha1(sum, map.data, map.len - SHA1_BYTES);
    if (rc == FM_OK &&
        (map.len <= SHA1_BYTES || memcmp(sum, map.data + map.len - SHA1_BYTES, SHA1_BYTES) != 0))
        rc =
            fm_fail(FM_ECORRUPT,
                    "%s is damaged: its checksum is wrong; 'git index-pack' on the .pack beside it "
                    "makes it again",
                    path);
    fm_unmap_file(&map);
    return rc;
}

fm_status fmi_pack_indexes_check(const fm_repo *r)
{
    char *dir = fm_path_join(r->git_path, "objects/pack");
    fm_names names = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        if (!ends_with(names.name[i], ".idx"))
            continue;
        char *path = fm_path_join(dir, names.name[i]);
        rc = path ? check_index(path) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}

fm_status fmi_odb_setup(fm_repo *r)
{
    int code = git_repository_odb(&r->odb, r->git);

    r->fresh = NULL;
    if (code == 0)
        code = git_mempack_new(&r->fresh);
    if (code == 0)
        code = git_odb_add_backend(r->odb, r->fresh, FRESH_PRIORITY);
    if (code < 0)
        return fmi_git_fail(code, "cannot open the objects of '%s'", r->git_path);
    return FM_OK;
}

fm_status fmi_object_note(fm_repo *r, const git_oid *id)
{
    fm_status rc = fm_grow(&r->pending, &r->pending_cap, r->pending_count + 1, sizeof(git_oid));

    if (rc == FM_OK)
        r->pending[r->pending_count++] = *id;
    return rc;
}

fm_status fmi_object_put(fm_repo *r, git_oid *out, git_object_t type, fm_span bytes)
{
    const void *data = bytes.data ? (const void *)bytes.data : "";
    int code;

    if (!r->odb)
        return fm_fail(FM_EIO, "'%s': closed after an earlier failure", r->git_path);
    code = git_odb_hash(out, data, bytes.len, type);
    if (code < 0)
        return fmi_git_fail(code, "cannot hash a git object");
    /* No refresh: to rescan the packs for each new object costs more than a doubled one. */
    if (git_odb_exists_ext(r->odb, out, GIT_ODB_LOOKUP_NO_REFRESH))
        return FM_OK;
    code = r->fresh->write(r->fresh, out, data, bytes.len, type);
    if (code < 0)
        return fmi_git_fail(code, "cannot hold a git object");
    return fmi_object_note(r, out);
}

/* libgit2 writes pack and index under temporary names, fsyncs both, renames, fsyncs the folder
 * (GIT_OPT_ENABLE_FSYNC_GITDIR). An index without its pack, left by a crash between the two
 * renames, is ignored by every reader. */
static fm_status write_pack(fm_repo *r, const git_oid *id, size_t count, char **name)
{
    git_packbuilder *pb = NULL;
    fm_status rc = FM_OK;
    int code = git_packbuilder_new(&pb, r->git);

    for (size_t i = 0; code == 0 && i < count; i++)
        code = git_packbuilder_insert(pb, &id[i], NULL);
    if (code == 0)
        code = git_packbuilder_write(pb, NULL, 0, NULL, NULL);
    if (code < 0) {
        rc = fmi_git_fail(code, "cannot write a pack into '%s/objects/pack'", r->git_path);
    } else if (name) {
        *name = fm_strdup(git_packbuilder_name(pb));
        rc = *name ? FM_OK : FM_ENOMEM;
    }
    git_packbuilder_free(pb);
    return rc;
}

fm_status fmi_objects_write(fm_repo *r)
{
    fm_status rc;
    int code;

    if (r->pending_count == 0)
        return FM_OK;
    rc = write_pack(r, r->pending, r->pending_count, NULL);
    if (rc < 0)
        return rc;
    r->pending_count = 0;
    code = git_odb_refresh(r->odb);
    if (code == 0)
        code = git_mempack_reset(r->fresh);
    return code < 0 ? fmi_git_fail(code, "cannot reload '%s'", r->git_path) : FM_OK;
}

/* libgit2's cache may hold objects that were never written and would then say that they exist:
 * the whole object database is dropped and opened again. */
void fmi_objects_abort(fm_repo *r)
{
    fm_error_state kept;

    if (r->pending_count == 0)
        return;
    fm_error_save(&kept);
    r->pending_count = 0;
    git_odb_free(r->odb);
    r->odb = NULL;
    git_repository__cleanup(r->git);
    if (fmi_odb_setup(r) < 0) {
        git_odb_free(r->odb);
        r->odb = NULL; /* later writes are refused */
    }
    fm_error_restore(&kept);
}

/* ---- fold ---- */

typedef struct fold {
    fm_repo *r;
    char **idx; /* paths of the packs' indexes */
    uint64_t *bytes;
    size_t count, cap_idx, cap_bytes;
    git_oid *id;
    size_t id_count, id_cap;
    fm_status rc;
} fold;

/* path with its ".idx" replaced. */
static char *sibling(const char *idx, const char *ext)
{
    return fm_asprintf("%.*s%s", (int)(strlen(idx) - 4), idx, ext);
}

/* One more candidate, kept sorted by size. A pack that git was told to keep stays. */
static fm_status add_pack(fold *f, const char *dir, const char *name)
{
    char *idx = fm_path_join(dir, name), *pack = idx ? sibling(idx, ".pack") : NULL;
    char *keep = idx ? sibling(idx, ".keep") : NULL;
    uint64_t bytes = 0;
    size_t at = f->count;
    fm_status rc = idx && pack && keep ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && fm_path_exists(pack) && !fm_path_exists(keep)) {
        rc = fm_file_bytes(&bytes, pack);
        if (rc == FM_OK)
            rc = fm_grow(&f->idx, &f->cap_idx, f->count + 1, sizeof(char *));
        if (rc == FM_OK)
            rc = fm_grow(&f->bytes, &f->cap_bytes, f->count + 1, sizeof(uint64_t));
        for (; rc == FM_OK && at > 0 && f->bytes[at - 1] > bytes; at--) {
            f->bytes[at] = f->bytes[at - 1];
            f->idx[at] = f->idx[at - 1];
        }
        if (rc == FM_OK) {
            f->bytes[at] = bytes;
            f->idx[at] = idx;
            f->count++;
            idx = NULL;
        }
    }
    fm_free(idx);
    fm_free(pack);
    fm_free(keep);
    return rc;
}

static int gather_id(const git_oid *id, void *ctx)
{
    fold *f = ctx;

    f->rc = fm_grow(&f->id, &f->id_cap, f->id_count + 1, sizeof(git_oid));
    if (f->rc < 0)
        return -1;
    f->id[f->id_count++] = *id;
    return 0;
}

static fm_status gather_pack(fold *f, const char *idx)
{
    git_odb *odb = NULL;
    git_odb_backend *one = NULL;
    int code = git_odb_new(&odb);

    if (code == 0)
        code = git_odb_backend_one_pack(&one, idx);
    if (code == 0)
        code = git_odb_add_backend(odb, one, 1);
    if (code == 0)
        code = git_odb_foreach(odb, gather_id, f);
    git_odb_free(odb);
    if (f->rc < 0)
        return f->rc;
    return code < 0 ? fmi_damage(code, "cannot read '%s'", idx) : FM_OK;
}

/* The new pack is durable before an old one goes. A reader that loses a pack under its feet looks
 * again (git and libgit2 both do). A pack is named by a hash: an old one that held everything
 * has the new one's name, and must stay. */
static fm_status drop_packs(fold *f, size_t count, const char *new_name)
{
    static const char *const ext[] = {".idx", ".pack", ".rev"};
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < count; i++)
        for (size_t k = 0; rc == FM_OK && k < FM_ARRAY_LEN(ext); k++) {
            if (strstr(fm_path_base(f->idx[i]), new_name))
                break;
            char *path = sibling(f->idx[i], ext[k]);
            rc = path ? fm_remove_file(path) : FM_ENOMEM;
            fm_free(path);
        }
    return rc;
}

/* All packs but the ones so large that rewriting them each time would cost a quadratic sum. */
static size_t choose(const fold *f)
{
    uint64_t sum = 0;
    size_t n = 0;

    while (n < f->count && (n < FOLD_AT / 2 || f->bytes[n] <= 2 * sum))
        sum += f->bytes[n++];
    return n;
}

static fm_status fold_now(fold *f, const char *dir, const fm_names *names, bool force)
{
    char *new_name = NULL;
    fm_status rc = FM_OK;
    size_t n;

    for (size_t i = 0; rc == FM_OK && i < names->count; i++)
        if (ends_with(names->name[i], ".idx"))
            rc = add_pack(f, dir, names->name[i]);
    if (rc < 0 || f->count < 2 || (!force && f->count <= FOLD_AT))
        return rc;
    n = force ? f->count : choose(f);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = gather_pack(f, f->idx[i]);
    if (rc == FM_OK)
        rc = write_pack(f->r, f->id, f->id_count, &new_name);
    if (rc == FM_OK)
        rc = drop_packs(f, n, new_name);
    fm_free(new_name);
    if (rc == FM_OK && git_odb_refresh(f->r->odb) < 0)
        rc = fmi_git_fail(-1, "cannot reload '%s'", f->r->git_path);
    return rc;
}

fm_status fmi_packs_fold(fm_repo *r, bool force)
{
    fold f = {.r = r};
    fm_names names = {NULL, 0};
    fm_lock *lock = NULL;
    char *dir = fm_path_join(r->git_path, "objects/pack");
    char *midx = dir ? fm_path_join(dir, "multi-pack-index") : NULL;
    fm_status rc = midx ? fm_list_dir(&names, dir) : FM_ENOMEM;

    if (rc < 0 || fm_path_exists(midx) || (!force && names.count <= 2 * (size_t)FOLD_AT))
        goto fail;
    rc = fmi_ref_lock(r, &lock); /* one folder at a time */
    if (rc == FM_OK) {
        fm_names_release(&names);
        rc = fm_list_dir(&names, dir);
    }
    if (rc == FM_OK)
        rc = fold_now(&f, dir, &names, force);
fail:
    fm_lock_drop(lock);
    fm_names_release(&names);
    for (size_t i = 0; i < f.count; i++)
        fm_free(f.idx[i]);
    fm_free(f.idx);
    fm_free(f.bytes);
    fm_free(f.id);
    fm_free(dir);
    fm_free(midx);
    return rc;
}
