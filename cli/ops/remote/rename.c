/* rename.c - a remote gets another name: its settings and what was fetched from it go along. */
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/remotes.h"
#include "store/base/mem.h"

typedef struct settings {
    char *key[FM_WORDS_MAX], *value[FM_WORDS_MAX];
    size_t count;
} settings;

static fm_status note_setting(void *ctx, const char *key, const char *value)
{
    settings *s = ctx;
    if (s->count == FM_WORDS_MAX)
        return fm_fail(FM_ELIMIT, "the remote has more than %d settings", FM_WORDS_MAX);
    s->key[s->count] = fm_strdup(key);
    s->value[s->count] = fm_strdup(value);
    s->count++;
    return s->key[s->count - 1] && s->value[s->count - 1] ? FM_OK : FM_ENOMEM;
}

static void release(settings *s)
{
    for (size_t i = 0; i < s->count; i++) {
        fm_free(s->key[i]);
        fm_free(s->value[i]);
    }
}

static fm_status set(fm_ops *c, const char *name, const char *key, const char *value)
{
    char *whole = fm_asprintf("remote.%s.%s", name, key);
    fm_status rc = whole ? fm_repo_config_set(c->repo, whole, value) : FM_ENOMEM;
    fm_free(whole);
    return rc;
}

typedef struct renaming {
    fm_ops *c;
    const char *space, *to;
    size_t skip; /* bytes of "refs/remotes/<old>/" */
} renaming;

static fm_status move_ref(void *ctx, const char *name, const fm_oid *oid)
{
    const renaming *n = ctx;
    char *other = fm_asprintf("%s%s/%s", n->space, n->to, name + n->skip);
    fm_status rc = other ? fm_ref_update(n->c->repo, other, oid, NULL, "remote rename") : FM_ENOMEM;
    FM_THEN(rc, fm_ref_delete(n->c->repo, name, NULL));
    fm_free(other);
    return rc;
}

static fm_status move_refs(fm_ops *c, const char *space, const char *from, const char *to)
{
    char prefix[FMO_REF_BYTES];
    snprintf(prefix, sizeof prefix, "%s%.100s/", space, from);
    renaming n = {c, space, to, strlen(prefix)};
    return fm_ref_each(c->repo, prefix, move_ref, &n);
}

/* The new settings are there before the refs, and the old ones after them, so that what the remote
 * has and this clone lacks is promised by one of the two names at every moment. */
static fm_status rename_all(fm_ops *c, const char *from, const char *to, settings *s)
{
    char prefix[FMO_REF_BYTES];
    snprintf(prefix, sizeof prefix, "remote.%.100s.", from);
    const size_t skip = strlen(prefix);
    FM_TRY(fm_repo_config_each(c->repo, prefix, note_setting, s));
    for (size_t i = 0; i < s->count; i++)
        FM_TRY(set(c, to, s->key[i] + skip, s->value[i]));
    FM_TRY(move_refs(c, "refs/remotes/", from, to));
    FM_TRY(move_refs(c, FM_PROMISED, from, to));
    for (size_t i = 0; i < s->count; i++)
        FM_TRY(fm_repo_config_set(c->repo, s->key[i], NULL));
    return FM_OK;
}

fm_status fm_ops_remote_rename(fm_ops *c, const char *from, const char *to)
{
    settings s = {.count = 0};
    bool there;
    FM_TRY(fm_ops_lease(c, true, "a renaming"));
    FM_TRY(fmo_remote_needed(c, from));
    FM_TRY(fmo_remote_name_check(to));
    FM_TRY(fm_ops_remote_is(c, to, &there));
    if (there)
        return fm_fail(FM_EEXISTS, "remote '%s' is there already", to);
    fm_status rc = rename_all(c, from, to, &s);
    release(&s);
    return rc;
}
