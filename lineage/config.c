/* config.c - REPO/config, in git's syntax. */
#include "lineage/internal.h"

#include <string.h>

/* Reads REPO/config, then git's files (lineage.git/config, the user's, the system's). */
char *fm_repo_config(fm_repo *r, const char *key)
{
    char *path = fm_path_join(r->path, "config"), *out = NULL;
    git_config *ours = NULL, *theirs = NULL;
    git_buf value = GIT_BUF_INIT;
    int code = path ? git_config_open_ondisk(&ours, path) : -1;

    if (code == 0)
        code = git_config_get_string_buf(&value, ours, key);
    if (code < 0 && git_repository_config(&theirs, r->git) == 0)
        code = git_config_get_string_buf(&value, theirs, key);
    if (code == 0 && value.size > 0)
        out = fm_strndup(value.ptr, value.size);
    git_buf_dispose(&value);
    git_config_free(ours);
    git_config_free(theirs);
    fm_free(path);
    return out;
}

static fm_status open_ours(fm_repo *r, git_config **out)
{
    char *path = fm_path_join(r->path, "config");
    *out = NULL;
    if (!path)
        return FM_ENOMEM;
    const int code = git_config_open_ondisk(out, path);
    fm_status rc = code < 0 ? fml_git_fail(code, "cannot read '%s'", path) : FM_OK;
    fm_free(path);
    return rc;
}

fm_status fm_repo_config_set(fm_repo *r, const char *key, const char *value)
{
    git_config *ours;
    FM_TRY(open_ours(r, &ours));
    const int code =
        value ? git_config_set_string(ours, key, value) : git_config_delete_entry(ours, key);
    git_config_free(ours);
    r->partial = 0;
    if (code == 0 || (!value && code == GIT_ENOTFOUND))
        return FM_OK;
    return fml_git_fail(code, "cannot set '%s' in '%s/config'", key, r->path);
}

fm_status fml_partial(fm_repo *r, bool *yes)
{
    if (r->partial == 0) {
        git_config *ours;
        int set = 0;
        FM_TRY(open_ours(r, &ours));
        const int code = git_config_get_bool(&set, ours, "fmstore.partial");
        git_config_free(ours);
        if (code < 0 && code != GIT_ENOTFOUND)
            return fml_git_fail(code, "cannot read '%s/config'", r->path);
        r->partial = code == 0 && set ? 2 : 1;
    }
    *yes = r->partial == 2;
    return FM_OK;
}

fm_status fml_promised(fm_repo *r, const fm_digest *id, bool *yes)
{
    fm_object_info info;
    FM_TRY(fml_partial(r, yes));
    if (!*yes)
        return FM_OK;
    const fm_status rc = fm_store_info(r->store, &info, id);
    *yes = rc == FM_ENOTFOUND;
    if (*yes)
        fm_error_clear();
    return FM_OK;
}

typedef struct visit {
    const char *prefix;
    fm_config_fn fn;
    void *ctx;
    fm_status rc;
} visit;

static int each(const git_config_entry *e, void *ctx)
{
    visit *v = ctx;
    if (strncmp(e->name, v->prefix, strlen(v->prefix)) == 0)
        v->rc = v->fn(v->ctx, e->name, e->value ? e->value : "");
    return v->rc == FM_OK ? 0 : GIT_EUSER;
}

fm_status fm_repo_config_each(fm_repo *r, const char *prefix, fm_config_fn fn, void *ctx)
{
    visit v = {prefix, fn, ctx, FM_OK};
    git_config *ours;
    FM_TRY(open_ours(r, &ours));
    const int code = git_config_foreach(ours, each, &v);
    git_config_free(ours);
    if (v.rc != FM_OK)
        return v.rc;
    return code < 0 ? fml_git_fail(code, "cannot read '%s/config'", r->path) : FM_OK;
}
