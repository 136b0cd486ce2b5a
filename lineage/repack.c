/* repack.c - keeps the git packs few, by a bounded amount of work in each commit.
 *
 * A commit writes one small pack, and each lookup searches every pack. So when there are more than
 * REPACK_AT, one of two things is done. If the smallest packs are small commits, they are coded
 * anew as one pack, whose deltas halve the size; at most CODE_OBJECTS, since an object costs 50 us.
 * Else packs are joined by copying (concat.c, as fast as a disk) in geometric steps, up to
 * CONCAT_BYTES: a byte is copied a few times in all, and no commit waits for a long history. gc
 * codes the packs that were only joined. */
#include "lineage/internal.h"

#include <string.h>

#define REPACK_AT 32u
#define CODE_OBJECTS 1024u
#define CODE_PACKS 16u /* the fewest packs worth coding anew */
#define CONCAT_BYTES ((uint64_t)32 << 20)
#define IDX_FIXED_BYTES 1072u /* bytes of an index without its entries */
#define IDX_ENTRY_BYTES 28u

typedef struct repack {
    fm_repo *r;
    char **idx; /* paths of the packs' indexes */
    uint64_t *bytes;
    uint64_t *objects; /* number per pack, from the size of its index */
    size_t count, cap_idx, cap_bytes, cap_objects;
    git_oid *id;
    size_t id_count, id_cap;
    bool (*drop)(void *ctx, const git_oid *id); /* NULL: all stay */
    void *ctx;
    size_t dropped;
    fm_status rc;
} repack;

/* The index's path with another extension. */
static char *sibling(const char *idx, const char *ext)
{
    return fm_asprintf("%.*s%s", (int)(strlen(idx) - 4), idx, ext);
}

static fm_status grow(repack *f)
{
    FM_TRY(fm_grow(&f->idx, &f->cap_idx, f->count + 1, sizeof(char *)));

    FM_TRY(fm_grow(&f->bytes, &f->cap_bytes, f->count + 1, sizeof(uint64_t)));

    return fm_grow(&f->objects, &f->cap_objects, f->count + 1, sizeof(uint64_t));
}

/* Adds a candidate, sorted by size; takes ownership of idx. */
static fm_status insert(repack *f, char *idx, uint64_t bytes, uint64_t idx_bytes)
{
    size_t at = f->count;
    fm_status rc = grow(f);

    if (rc < 0) {
        fm_free(idx);
        return rc;
    }
    for (; at > 0 && f->bytes[at - 1] > bytes; at--) {
        f->bytes[at] = f->bytes[at - 1];
        f->objects[at] = f->objects[at - 1];
        f->idx[at] = f->idx[at - 1];
    }
    f->bytes[at] = bytes;
    f->objects[at] =
        idx_bytes > IDX_FIXED_BYTES ? (idx_bytes - IDX_FIXED_BYTES) / IDX_ENTRY_BYTES : 0;
    f->idx[at] = idx;
    f->count++;
    return FM_OK;
}

/* Adds a pack unless a .keep file protects it. */
static fm_status add_pack(repack *f, const char *dir, const char *name)
{
    char *idx = fm_path_join(dir, name), *pack = idx ? sibling(idx, ".pack") : NULL;
    char *keep = idx ? sibling(idx, ".keep") : NULL;
    uint64_t bytes = 0, idx_bytes = 0;
    fm_status rc = idx && pack && keep ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && fm_path_exists(pack) && !fm_path_exists(keep)) {
        rc = fm_file_bytes(&bytes, pack);
        FM_THEN(rc, fm_file_bytes(&idx_bytes, idx));
        if (rc == FM_OK) {
            rc = insert(f, idx, bytes, idx_bytes);
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
    repack *f = ctx;

    if (f->drop && f->drop(f->ctx, id)) {
        f->dropped++;
        return 0;
    }
    f->rc = fm_grow(&f->id, &f->id_cap, f->id_count + 1, sizeof(git_oid));
    if (f->rc < 0)
        return -1;
    f->id[f->id_count++] = *id;
    return 0;
}

static fm_status gather_pack(repack *f, const char *idx)
{
    int code = fml_pack_each(idx, gather_id, f);

    if (f->rc < 0)
        return f->rc;
    return code < 0 ? fml_damage(code, "cannot read '%s'", idx) : FM_OK;
}

/* Removes the old packs once the new one is durable. A reader whose pack is removed looks again
 * (git and libgit2 both do). A pack is named by a hash: an old pack that held all objects has the
 * new one's name, and must stay. */
static fm_status drop_packs(repack *f, size_t count, char *const new_name[2])
{
    static const char *const ext[] = {".idx", ".pack", ".rev"};
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < count; i++)
        for (size_t k = 0; rc == FM_OK && k < FM_ARRAY_LEN(ext); k++) {
            if ((new_name[0] && strstr(fm_path_base(f->idx[i]), new_name[0])) ||
                (new_name[1] && strstr(fm_path_base(f->idx[i]), new_name[1])))
                break;
            char *path = sibling(f->idx[i], ext[k]);
            rc = path ? fm_remove_file(path) : FM_ENOMEM;
            fm_free(path);
        }
    return rc;
}

/* The number of the smallest packs to code anew. */
static size_t choose_code(const repack *f)
{
    uint64_t sum = 0;
    size_t n = 0;

    while (n < f->count && sum + f->objects[n] <= CODE_OBJECTS)
        sum += f->objects[n++];
    return n >= CODE_PACKS ? n : 0;
}

/* The number of the smallest packs to join: each next one while it is at most twice their sum. */
static size_t choose_concat(const repack *f)
{
    uint64_t sum = 0;
    size_t n = 0;

    while (n < f->count && (n < REPACK_AT / 2 || f->bytes[n] <= 2 * sum) &&
           sum + f->bytes[n] <= CONCAT_BYTES)
        sum += f->bytes[n++];
    return n >= 2 ? n : 0;
}

static fm_status code_anew(repack *f, size_t n, char **name)
{
    for (size_t i = 0; i < n; i++)
        FM_TRY(gather_pack(f, f->idx[i]));
    return fml_pack_write(f->r, f->id, f->id_count, name);
}

static fm_status repack_now(repack *f, const char *dir, const fm_names *names, bool force)
{
    char *new_name[2] = {NULL, NULL};
    fm_status rc = FM_OK;
    size_t n;

    for (size_t i = 0; rc == FM_OK && i < names->count; i++)
        if (fml_is_pack_index(names->name[i]))
            rc = add_pack(f, dir, names->name[i]);
    if (rc < 0 || f->count < 2 || (!force && f->count <= REPACK_AT))
        return rc;
    n = force ? f->count : choose_code(f);
    if (n > 0) {
        rc = code_anew(f, n, &new_name[0]);
    } else {
        n = choose_concat(f);
        if (n == 0)
            return FM_OK;
        rc = fml_packs_concat(f->r, f->idx, n, &new_name[0], &new_name[1]);
    }
    FM_THEN(rc, drop_packs(f, n, new_name));
    fm_free(new_name[0]);
    fm_free(new_name[1]);
    if (rc == FM_OK && git_odb_refresh(f->r->odb) < 0)
        rc = fml_git_fail(-1, "cannot reload '%s'", f->r->git_path);
    return rc;
}

static void release(repack *f)
{
    for (size_t i = 0; i < f->count; i++)
        fm_free(f->idx[i]);
    fm_free(f->idx);
    fm_free(f->bytes);
    fm_free(f->objects);
    fm_free(f->id);
    memset(f, 0, sizeof *f);
}

fm_status fml_packs_repack(fm_repo *r, bool force)
{
    repack f = {.r = r};
    fm_names names = {NULL, 0};
    fm_lock *lock = NULL;
    char *dir = fm_path_join(r->git_path, "objects/pack");
    char *midx = dir ? fm_path_join(dir, "multi-pack-index") : NULL;
    fm_status rc = midx ? fm_list_dir(&names, dir) : FM_ENOMEM;

    if (rc < 0 || fm_path_exists(midx) || (!force && names.count <= 2 * (size_t)REPACK_AT))
        goto fail;
    rc = fml_ref_lock(r, &lock); /* one process repacks at a time */
    if (rc == FM_OK) {
        fm_names_release(&names);
        rc = fm_list_dir(&names, dir);
    }
    FM_THEN(rc, repack_now(&f, dir, &names, force));
fail:
    fm_lock_drop(lock);
    fm_names_release(&names);
    release(&f);
    fm_free(dir);
    fm_free(midx);
    return rc;
}

/* ---- for gc ---- */

/* Lists all packs without a .keep, and their objects; none if git keeps a multi-pack-index. */
static fm_status gather_all(repack *f, const char *dir)
{
    fm_names names = {NULL, 0};
    char *midx = fm_path_join(dir, "multi-pack-index");
    fm_status rc = midx ? fm_list_dir(&names, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && !fm_path_exists(midx) && i < names.count; i++)
        if (fml_is_pack_index(names.name[i]))
            rc = add_pack(f, dir, names.name[i]);
    for (size_t i = 0; rc == FM_OK && i < f->count; i++)
        rc = gather_pack(f, f->idx[i]);
    fm_names_release(&names);
    fm_free(midx);
    return rc;
}

fm_status fml_packs_drop(fm_repo *r, bool (*drop)(void *ctx, const git_oid *id), void *ctx)
{
    repack f = {.r = r, .drop = drop, .ctx = ctx};
    char *new_name[2] = {NULL, NULL};
    char *dir = fm_path_join(r->git_path, "objects/pack");
    fm_status rc = dir ? gather_all(&f, dir) : FM_ENOMEM;

    if (rc == FM_OK && f.dropped > 0) {
        if (f.id_count > 0)
            rc = fml_pack_write(r, f.id, f.id_count, &new_name[0]);
        FM_THEN(rc, drop_packs(&f, f.count, new_name));
        if (rc == FM_OK && git_odb_refresh(r->odb) < 0)
            rc = fml_git_fail(-1, "cannot reload '%s'", r->git_path);
    }
    fm_free(new_name[0]);
    fm_free(dir);
    release(&f);
    return rc;
}

fm_status fml_packed_ids(fm_repo *r, git_oid **out, size_t *count)
{
    repack f = {.r = r};
    char *dir = fm_path_join(r->git_path, "objects/pack");
    fm_status rc = dir ? gather_all(&f, dir) : FM_ENOMEM;

    *out = NULL;
    *count = 0;
    if (rc == FM_OK) {
        *out = f.id;
        *count = f.id_count;
        f.id = NULL;
    }
    fm_free(dir);
    release(&f);
    return rc;
}

fm_status fml_packs_renew(fm_repo *r, bool (*bad)(void *ctx, const git_oid *id), void *ctx)
{
    repack f = {.r = r, .drop = bad, .ctx = ctx};
    char *new_name[2] = {NULL, NULL};
    char *dir = fm_path_join(r->git_path, "objects/pack");
    fm_status rc = dir ? gather_all(&f, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < r->pending_count; i++)
        if (gather_id(&r->pending[i], &f) < 0)
            rc = f.rc;
    if (rc == FM_OK && f.id_count > 0)
        rc = fml_pack_write(r, f.id, f.id_count, &new_name[0]);
    if (rc == FM_OK && f.dropped == 0)
        rc = drop_packs(&f, f.count, new_name);
    if (rc == FM_OK) { /* libgit2 still has the removed packs open */
        r->pending_count = 0;
        rc = fml_odb_renew(r);
    }
    fm_free(new_name[0]);
    fm_free(dir);
    release(&f);
    return rc;
}
