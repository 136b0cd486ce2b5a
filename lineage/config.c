/* config.c - REPO/config, in git's syntax. */
#include "lineage/internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lineage/exchange.h"

#define CONFIG_MAX ((size_t)1 << 20)

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

/* Makes the file durable as it is: libgit2 renames a new one into place and syncs nothing. */
static fm_status settle(fm_repo *r)
{
    char *path = fm_path_join(r->path, "config");
    fm_buf text;
    fm_buf_init(&text, CONFIG_MAX);
    fm_map_free(r->promised);
    r->promised = NULL;
    fm_status rc = path ? fm_read_file(&text, path, CONFIG_MAX) : FM_ENOMEM;
    FM_THEN(rc, fm_write_file(path, text.data, text.len));
    fm_buf_release(&text);
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
    if (code == 0)
        FM_TRY(settle(r));
    if (code == 0 || (!value && code == GIT_ENOTFOUND))
        return FM_OK;
    return fml_git_fail(code, "cannot set '%s' in '%s/config'", key, r->path);
}

fm_status fm_repo_partial(fm_repo *r, bool *yes)
{
    git_config *ours;
    int set = 0;
    FM_TRY(open_ours(r, &ours));
    const int code = git_config_get_bool(&set, ours, "fmstore.partial");
    git_config_free(ours);
    *yes = code == 0 && set;
    return code < 0 && code != GIT_ENOTFOUND
               ? fml_git_fail(code, "cannot read '%s/config'", r->path)
               : FM_OK;
}

typedef struct allowed {
    const char *path;
    bool yes;
} allowed;

static int is_allowed(const git_config_entry *e, void *ctx)
{
    allowed *a = ctx;
    a->yes = a->yes || (e->value && (strcmp(e->value, "*") == 0 || strcmp(e->value, a->path) == 0));
    return 0;
}

/* git's own list of what its user trusts, which no repository can add to. */
static bool is_safe_directory(const char *path)
{
    allowed a = {path, false};
    git_config *user = NULL;
    if (git_config_open_default(&user) == 0)
        (void)git_config_get_multivar_foreach(user, "safe.directory", NULL, is_allowed, &a);
    git_config_free(user);
    return a.yes;
}

/* Ours, that of the user who called sudo, or one that this user trusts. */
fm_status fm_repo_is_ours(const fm_repo *r, bool *yes)
{
    char *path = fm_path_join(r->path, "config");
    const char *sudo = geteuid() == 0 ? getenv("SUDO_UID") : NULL;
    uint64_t owner = 0;
    fm_status rc = path ? fm_file_owner(&owner, path) : FM_ENOMEM;
    *yes = rc == FM_OK && (owner == geteuid() || (sudo && strtoull(sudo, NULL, 10) == owner) ||
                           is_safe_directory(r->path));
    fm_free(path);
    return rc;
}

/* ---- what remotes promise ---- */

typedef struct tips {
    fm_repo *r;
    const char *prefix; /* before the remote's name */
    fm_oid *oid;
    size_t count, cap;
} tips;

static fm_status add_promising(void *ctx, const char *name, const fm_oid *oid)
{
    tips *t = ctx;
    const char *remote = name + strlen(t->prefix), *slash = strchr(remote, '/');
    char *key =
        slash ? fm_asprintf("remote.%.*s.lineageOnly", (int)(slash - remote), remote) : NULL;
    char *value = key ? fm_repo_config(t->r, key) : NULL;
    fm_status rc = slash && !key ? FM_ENOMEM : FM_OK;
    if (rc == FM_OK && value && strcmp(value, "true") == 0) {
        rc = fm_grow(&t->oid, &t->cap, t->count + 1, sizeof *t->oid);
        if (rc == FM_OK)
            t->oid[t->count++] = *oid;
    }
    fm_free(key);
    fm_free(value);
    return rc;
}

static fm_status add_promise(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes)
{
    (void)is_tensor;
    (void)bytes;
    return fm_map_put(ctx, id->b, sizeof id->b, ctx, NULL);
}

static bool is_unreadable(fm_status rc)
{
    return rc == FM_ENOTFOUND || rc == FM_ECORRUPT || rc == FM_EIO;
}

static fm_status add_tips(tips *t, const char *prefix)
{
    t->prefix = prefix;
    return fm_ref_each(t->r, prefix, add_promising, t);
}

/* All in one walk; where that fails, version by version: one that cannot be read promises nothing,
 * and fsck tells it. */
static fm_status gather_promises(fm_repo *r)
{
    tips t = {.r = r};
    bool partial;
    FM_TRY(fm_map_new(&r->promised));
    FM_TRY(fm_repo_partial(r, &partial));
    if (!partial)
        return FM_OK;
    fm_status rc = add_tips(&t, "refs/remotes/");
    FM_THEN(rc, add_tips(&t, FM_PROMISED));
    const fm_exchange_ask all = {t.oid, NULL, t.count, 0};
    if (rc == FM_OK && t.count)
        rc = fm_exchange_pointers(r, &all, add_promise, r->promised);
    const bool one_by_one = is_unreadable(rc);
    if (one_by_one) {
        fm_error_clear();
        rc = FM_OK;
    }
    for (size_t i = 0; one_by_one && rc == FM_OK && i < t.count; i++) {
        const fm_exchange_ask ask = {&t.oid[i], NULL, 1, 0};
        rc = fm_exchange_pointers(r, &ask, add_promise, r->promised);
        if (is_unreadable(rc)) {
            fm_error_clear();
            rc = FM_OK;
        }
    }
    fm_free(t.oid);
    return rc;
}

fm_status fml_promised(fm_repo *r, const fm_digest *id, bool *yes)
{
    *yes = false;
    if (!r->promised)
        FM_TRY(gather_promises(r));
    *yes = fm_map_has(r->promised, id->b, sizeof id->b);
    return FM_OK;
}

fm_status fml_elsewhere(fm_repo *r, const fm_digest *id, bool *yes)
{
    fm_object_info info;
    FM_TRY(fml_promised(r, id, yes));
    if (!*yes)
        return FM_OK;
    *yes = fm_store_info(r->store, &info, id) == FM_ENOTFOUND;
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
