/* cache.c - finds files in Hugging Face's cache, and keeps the folder of downloads. */
#include "remote/hub/cache.h"

#include <inttypes.h>
#include <string.h>

#include "store/base/mem.h"

/* CACHE/models--org--name/<sub>/<name>, where it exists; *out NULL: it does not. */
static fm_status find(char **out, const fmr_hub_env *env, const char *repo, const char *sub,
                      const char *name)
{
    *out = NULL;
    if (!env->cache)
        return FM_OK;
    const size_t owner = strcspn(repo, "/");
    char *path = repo[owner] ? fm_asprintf("%s/models--%.*s--%s/%s/%s", env->cache, (int)owner,
                                           repo, repo + owner + 1, sub, name)
                             : fm_asprintf("%s/models--%s/%s/%s", env->cache, repo, sub, name);
    if (!path)
        return FM_ENOMEM;
    if (fm_path_exists(path))
        *out = path;
    else
        fm_free(path);
    return FM_OK;
}

fm_status fmr_cache_snapshot(char **out, const fmr_hub_env *env, const char *repo,
                             const char *commit)
{
    FM_TRY(find(out, env, repo, "snapshots", commit));
    if (*out && !fm_path_is_dir(*out)) {
        fm_free(*out);
        *out = NULL;
    }
    return FM_OK;
}

static bool is_commit(const char *text)
{
    return strlen(text) == 40 && strspn(text, "0123456789abcdef") == 40;
}

fm_status fmr_cache_commit(char out[41], const fmr_hub_env *env, const char *repo,
                           const char *revision)
{
    char *path;
    fm_buf text;
    out[0] = '\0';
    if (is_commit(revision)) {
        memcpy(out, revision, 41);
        return FM_OK;
    }
    FM_TRY(find(&path, env, repo, "refs", revision));
    if (!path)
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = fm_read_file(&text, path, 128);
    while (text.len > 0 && strchr("\r\n ", text.data[text.len - 1]))
        text.data[--text.len] = '\0';
    if (rc == FM_OK && is_commit(fm_buf_cstr(&text)))
        memcpy(out, text.data, 41);
    fm_buf_release(&text);
    fm_free(path);
    return rc;
}

static fm_status read_whole(fm_buf *out, const char *path, uint64_t bytes)
{
    fm_buf_printf(out, "blob %" PRIu64, bytes);
    fm_buf_append(out, "", 1);
    FM_TRY(fm_buf_ok(out));
    return fm_read_file(out, path, FMR_HUB_PLAIN_MAX_BYTES);
}

fm_status fmr_git_id(char out[41], const char *path, uint64_t bytes)
{
    uint8_t sha1[20];
    fm_buf text;
    fm_buf_init(&text, FMR_HUB_PLAIN_MAX_BYTES + 4096);
    fm_status rc = read_whole(&text, path, bytes);
    FM_THEN(rc, fm_sha1(sha1, text.data, text.len));
    for (size_t i = 0; rc == FM_OK && i < sizeof sha1; i++) {
        out[2 * i] = "0123456789abcdef"[sha1[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[sha1[i] & 15];
    }
    out[40] = '\0';
    fm_buf_release(&text);
    return rc;
}

/* Whether the file at path is this one, as far as that is cheap to say. */
static fm_status is_file(bool *yes, const char *path, const fmr_hub_file *file)
{
    uint64_t bytes = 0;
    char hex[41];
    *yes = false;
    if (!fm_path_exists(path) || fm_path_is_dir(path))
        return FM_OK;
    fm_status rc = fm_file_bytes(&bytes, path);
    *yes = rc == FM_OK && bytes == file->bytes;
    if (*yes && !file->lfs) {
        rc = fmr_git_id(hex, path, bytes);
        *yes = rc == FM_OK && strcmp(hex, file->etag) == 0;
    }
    if (rc == FM_OK || rc == FM_ENOMEM)
        return rc;
    fm_error_clear(); /* what cannot be read is fetched */
    return FM_OK;
}

fm_status fmr_folder_has(bool *yes, const char *folder, const fmr_hub_file *file)
{
    char *path = fm_path_join(folder, file->name);
    fm_status rc = path ? is_file(yes, path, file) : FM_ENOMEM;
    fm_free(path);
    return rc;
}

fm_status fmr_folder_has_all(bool *yes, const char *folder, const fmr_listing *l)
{
    *yes = true;
    for (size_t i = 0; *yes && i < l->count; i++)
        if (l->file[i].take)
            FM_TRY(fmr_folder_has(yes, folder, &l->file[i]));
    return FM_OK;
}

fm_status fmr_cache_blob(char **out, const fmr_hub_env *env, const char *repo,
                         const fmr_hub_file *file)
{
    bool yes = false;
    FM_TRY(find(out, env, repo, "blobs", file->etag));
    fm_status rc = *out ? is_file(&yes, *out, file) : FM_OK;
    if (!yes) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ==== the folder of downloads ==== */

fm_status fmr_gathering_open(fmr_gathering *out, const char *repo_path, const char *key)
{
    memset(out, 0, sizeof *out);
    out->dir = fm_asprintf("%s/incoming-hub/%s", repo_path, key);
    out->lock_path = fm_asprintf("%s/incoming-hub/%s.lock", repo_path, key);
    out->files = fm_asprintf("%s/incoming-hub/%s/files", repo_path, key);
    out->parts = fm_asprintf("%s/incoming-hub/%s/parts", repo_path, key);
    char *above = fm_asprintf("%s/incoming-hub", repo_path);
    fm_status rc =
        out->dir && out->lock_path && out->files && out->parts && above ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_make_dirs(above));
    FM_THEN(rc, fm_lock_try(&out->lock, out->lock_path));
    if (rc == FM_ECONFLICT)
        rc = fm_fail(rc, "another process imports the same model into this repository now");
    FM_THEN(rc, fm_touch_file(out->lock_path)); /* gc counts from here */
    FM_THEN(rc, fm_make_dirs(out->files));
    FM_THEN(rc, fm_make_dirs(out->parts));
    fm_free(above);
    if (rc != FM_OK)
        fmr_gathering_close(out, false);
    return rc;
}

void fmr_gathering_close(fmr_gathering *g, bool remove)
{
    if (remove && g->lock) {
        fm_ignore(fm_remove_tree(g->dir), "gc removes what is left");
        fm_lock_end(g->lock, g->lock_path);
    } else {
        fm_lock_drop(g->lock);
    }
    fm_free(g->files);
    fm_free(g->parts);
    fm_free(g->dir);
    fm_free(g->lock_path);
    memset(g, 0, sizeof *g);
}

fm_status fmr_path_for(char **out, const char *folder, const char *name)
{
    *out = fm_path_join(folder, name);
    if (!*out)
        return FM_ENOMEM;
    const char *slash = strrchr(name, '/');
    if (!slash)
        return FM_OK;
    char *dir = fm_asprintf("%s/%.*s", folder, (int)(slash - name), name);
    fm_status rc = dir ? fm_make_dirs(dir) : FM_ENOMEM;
    fm_free(dir);
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}
