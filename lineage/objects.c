/* objects.c - new git objects: they gather in memory and become one durable pack.
 *
 * A commit of 300 tensors as loose objects costs 300 fsyncs (1.5 s measured), as one pack one.
 * libgit2's own mempack dump packs the whole tree of each commit; here only new objects are packed,
 * so the cost of a commit is that of its changes. */
#include "lineage/internal.h"

#include <string.h>
#include <git2/sys/mempack.h>
#include <git2/sys/odb_backend.h>
#include <git2/sys/repository.h>

#define FRESH_PRIORITY 999
#define SHA1_BYTES 20u

bool fml_is_pack_index(const char *name)
{
    const size_t n = strlen(name);

    return n > 4 && strcmp(name + n - 4, ".idx") == 0;
}

int fml_pack_each(const char *idx, git_odb_foreach_cb fn, void *ctx)
{
    git_odb *odb = NULL;
    git_odb_backend *one = NULL;
    int code = git_odb_new(&odb);

    if (code == 0)
        code = git_odb_backend_one_pack(&one, idx);
    if (code == 0)
        code = git_odb_add_backend(odb, one, 1);
    if (code == 0)
        code = git_odb_foreach(odb, fn, ctx);
    git_odb_free(odb);
    return code;
}

static fm_status check_index(const char *path)
{
    fm_file_map map = {NULL, 0};
    uint8_t sum[SHA1_BYTES];
    fm_status rc = fm_map_file(&map, path);

    if (rc == FM_ENOTFOUND) /* repacked away since it was listed */
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

fm_status fml_pack_indexes_check(const fm_repo *r)
{
    char *dir = fm_path_join(r->git_path, "objects/pack");
    fm_names names = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        if (!fml_is_pack_index(names.name[i]))
            continue;
        char *path = fm_path_join(dir, names.name[i]);
        rc = path ? check_index(path) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}

fm_status fml_odb_setup(fm_repo *r)
{
    int code = git_repository_odb(&r->odb, r->git);

    r->fresh = NULL;
    if (code == 0)
        code = git_mempack_new(&r->fresh);
    if (code == 0)
        code = git_odb_add_backend(r->odb, r->fresh, FRESH_PRIORITY);
    if (code < 0)
        return fml_git_fail(code, "cannot open the objects of '%s'", r->git_path);
    return FM_OK;
}

fm_status fml_object_note(fm_repo *r, const git_oid *id)
{
    FM_TRY(fm_grow(&r->pending, &r->pending_cap, r->pending_count + 1, sizeof(git_oid)));

    r->pending[r->pending_count++] = *id;
    return FM_OK;
}

fm_status fml_object_put(fm_repo *r, git_oid *out, git_object_t type, fm_span bytes)
{
    const void *data = bytes.data ? (const void *)bytes.data : "";
    int code;

    if (!r->odb)
        return fm_fail(FM_EIO, "'%s': closed after an earlier failure", r->git_path);
    code = git_odb_hash(out, data, bytes.len, type);
    if (code < 0)
        return fml_git_fail(code, "cannot hash a git object");
    /* No refresh: a rescan of the packs for each new object costs more than a duplicate object. */
    if (git_odb_exists_ext(r->odb, out, GIT_ODB_LOOKUP_NO_REFRESH) &&
        !fms_store_git_condemned(r->store, out->id))
        return FM_OK;
    code = r->fresh->write(r->fresh, out, data, bytes.len, type);
    if (code < 0)
        return fml_git_fail(code, "cannot hold a git object");
    return fml_object_note(r, out);
}

/* libgit2 writes pack and index under temporary names, fsyncs both, renames, fsyncs the folder
 * (GIT_OPT_ENABLE_FSYNC_GITDIR). An index without its pack, left by a crash between the two
 * renames, is ignored by every reader. */
fm_status fml_pack_write(fm_repo *r, const git_oid *id, size_t count, char **name)
{
    git_packbuilder *pb = NULL;
    fm_status rc = FM_OK;
    int code = git_packbuilder_new(&pb, r->git);

    for (size_t i = 0; code == 0 && i < count; i++)
        code = git_packbuilder_insert(pb, &id[i], NULL);
    if (code == 0)
        code = git_packbuilder_write(pb, NULL, 0, NULL, NULL);
    if (code < 0) {
        rc = fml_git_fail(code, "cannot write a pack into '%s/objects/pack'", r->git_path);
    } else if (name) {
        *name = fm_strdup(git_packbuilder_name(pb));
        rc = *name ? FM_OK : FM_ENOMEM;
    }
    git_packbuilder_free(pb);
    return rc;
}

_Static_assert(sizeof(git_oid) == FMS_GIT_ID_BYTES, "ids lie side by side");

fm_status fml_objects_hold(fm_repo *r)
{
    return r->pending_count == 0
               ? FM_OK
               : fms_store_hold(r->store, FMS_HOLD_GIT, r->pending[0].id, r->pending_count);
}

fm_status fml_objects_write(fm_repo *r)
{
    int code;

    if (r->pending_count == 0)
        return FM_OK;
    FM_TRY(fml_pack_write(r, r->pending, r->pending_count, NULL));
    r->pending_count = 0;
    code = git_odb_refresh(r->odb);
    if (code == 0)
        code = git_mempack_reset(r->fresh);
    return code < 0 ? fml_git_fail(code, "cannot reload '%s'", r->git_path) : FM_OK;
}

fm_status fml_odb_renew(fm_repo *r)
{
    git_odb_free(r->odb);
    r->odb = NULL;
    git_repository__cleanup(r->git);
    return fml_odb_setup(r);
}

/* libgit2's cache may hold objects that were never written, and would report them as existing. */
void fml_objects_abort(fm_repo *r)
{
    fm_error_state kept;

    if (r->pending_count == 0)
        return;
    fm_error_save(&kept);
    r->pending_count = 0;
    if (fml_odb_renew(r) < 0) {
        git_odb_free(r->odb);
        r->odb = NULL; /* later writes are refused */
    }
    fm_error_restore(&kept);
}

/* Opens a database of its own: that of the handle may cache objects that were deleted. */
bool fml_still_there(const fm_repo *r, const git_oid *id)
{
    git_odb *odb = NULL;
    char *dir = fm_path_join(r->git_path, "objects");
    bool yes = dir && git_odb_open(&odb, dir) == 0 && git_odb_exists(odb, id);

    git_odb_free(odb);
    fm_free(dir);
    return yes;
}

fm_status fml_hold_commit(fm_repo *r, const git_oid *id)
{
    fm_status rc = fms_store_hold(r->store, FMS_HOLD_COMMIT, id->id, 1);
    char hex[41] = "";

    if (rc < 0 || !fms_store_git_condemned(r->store, id->id) || fml_still_there(r, id))
        return rc;
    git_oid_fmt(hex, id);
    return fm_fail(FM_ENOTFOUND, "no version %s: gc has deleted it", hex);
}
