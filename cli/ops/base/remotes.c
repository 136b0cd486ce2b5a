/* remotes.c - names of remotes in REPO/config, and what is told of refs. */
#include "cli/ops/base/remotes.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/base/mem.h"
#include "store/base/os/io.h"

#define KEY_BYTES 300u
#define URL_KEY ".url"

/* ---- names ---- */

fm_status fmo_remote_name_check(const char *name)
{
    fm_status rc = fm_branch_name_check(name);
    if (rc == FM_OK && (strchr(name, '/') || strchr(name, '.') || strlen(name) > 80))
        rc = FM_EINVAL;
    return rc == FM_OK
               ? rc
               : fm_fail(FM_EINVAL, "'%.100s' cannot name a remote: use letters, digits and '-'",
                         name);
}

static void key_of(char out[KEY_BYTES], const char *name, const char *key)
{
    snprintf(out, KEY_BYTES, "remote.%.100s.%.100s", name, key);
}

char *fmo_remote_config(fm_ops *c, const char *name, const char *key)
{
    char k[KEY_BYTES];
    key_of(k, name, key);
    return fm_repo_config(c->repo, k);
}

/* A path that is given relative to where the command runs must mean the same from everywhere. */
static fm_status absolute(char **out, const char *url)
{
    char here[4096];
    if (fm_path_is_dir(url))
        return fm_path_real(out, url);
    const bool path = url[0] != '/' && !strchr(url, ':');
    if (path && !getcwd(here, sizeof here))
        return fm_fail(FM_EIO, "the current folder has no path");
    *out = path ? fm_path_join(here, url) : fm_strdup(url);
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status set_place(fm_ops *c, const char *name, const char *which, const char *url)
{
    char key[KEY_BYTES], *whole = NULL;
    if (url)
        FM_TRY(absolute(&whole, url));
    key_of(key, name, which);
    fm_status rc = fm_repo_config_set(c->repo, key, whole);
    fm_free(whole);
    return rc;
}

static fm_status set_url(fm_ops *c, const char *name, const char *url, const char *packs)
{
    FM_TRY(fm_remote_check_url(url, packs));
    FM_TRY(set_place(c, name, "packs", packs));
    return set_place(c, name, "url", url);
}

static bool is_there(fm_ops *c, const char *name)
{
    char *url = fmo_remote_config(c, name, "url");
    const bool yes = url != NULL;
    fm_free(url);
    return yes;
}

fm_status fm_ops_remote_add(fm_ops *c, const char *name, const char *url, const char *packs)
{
    FM_TRY(fmo_remote_name_check(name));
    FM_TRY(fm_ops_open(c));
    if (is_there(c, name))
        return fm_fail(FM_EEXISTS,
                       "remote '%s' is there already; 'fmstore remote set-url %s URL' changes it",
                       name, name);
    return set_url(c, name, url, packs);
}

fm_status fm_ops_remote_is(fm_ops *c, const char *name, bool *yes)
{
    FM_TRY(fm_ops_open(c));
    *yes = is_there(c, name);
    return FM_OK;
}

fm_status fmo_remote_needed(fm_ops *c, const char *name)
{
    FM_TRY(fm_ops_open(c));
    return is_there(c, name)
               ? FM_OK
               : fm_fail(FM_ENOTFOUND, "there is no remote '%s'; 'fmstore remote' lists them",
                         name);
}

fm_status fm_ops_remote_set_url(fm_ops *c, const char *name, const char *url, const char *packs)
{
    FM_TRY(fmo_remote_needed(c, name));
    return set_url(c, name, url, packs);
}

typedef struct keys {
    fm_words words;
    const char *prefix;
} keys;

static fm_status note_key(void *ctx, const char *key, const char *value)
{
    keys *k = ctx;
    (void)value;
    if (k->words.count == FM_WORDS_MAX)
        return fm_fail(FM_ELIMIT, "more than %d settings of '%s'", FM_WORDS_MAX, k->prefix);
    const char *copy = fm_strdup(key);
    k->words.item[k->words.count++] = copy;
    return copy ? FM_OK : FM_ENOMEM;
}

static fm_status drop_settings(fm_ops *c, const char *name)
{
    char prefix[KEY_BYTES];
    key_of(prefix, name, "");
    keys k = {.prefix = prefix};
    fm_status rc = fm_repo_config_each(c->repo, prefix, note_key, &k);
    for (size_t i = 0; i < k.words.count; i++) {
        FM_THEN(rc, fm_repo_config_set(c->repo, k.words.item[i], NULL));
        fm_free((char *)(uintptr_t)k.words.item[i]);
    }
    return rc;
}

static fm_status drop_ref(void *ctx, const char *name, const fm_oid *oid)
{
    fm_ops *c = ctx;
    (void)oid;
    return fm_ref_delete(c->repo, name, NULL);
}

fm_status fm_ops_remote_remove(fm_ops *c, const char *name)
{
    char prefix[FMO_REF_BYTES];
    FM_TRY(fmo_remote_needed(c, name));
    char *only = fmo_remote_config(c, name, "lineageOnly");
    const bool promises = only && strcmp(only, "true") == 0;
    fm_free(only);
    if (promises)
        return fm_fail(FM_EINVAL,
                       "'%s' has tensors that are not here: 'git config -f %s/config "
                       "remote.%s.lineageOnly false' and 'fmstore fetch %s' bring them all first",
                       name, fm_repo_path(c->repo), name, name);
    snprintf(prefix, sizeof prefix, "refs/remotes/%s/", name);
    FM_TRY(fm_ref_each(c->repo, prefix, drop_ref, c));
    snprintf(prefix, sizeof prefix, FM_PROMISED "%s/", name);
    FM_TRY(fm_ref_each(c->repo, prefix, drop_ref, c));
    return drop_settings(c, name);
}

typedef struct each {
    fm_ops *c;
    fm_ops_remote_fn fn;
    void *ctx;
} each;

static fm_status tell_one(void *ctx, const char *key, const char *value)
{
    const each *e = ctx;
    const size_t n = strlen(key), from = strlen("remote."), tail = strlen(URL_KEY);
    char name[KEY_BYTES];
    if (n <= from + tail || strcmp(key + n - tail, URL_KEY) != 0 || n >= sizeof name)
        return FM_OK;
    memcpy(name, key + from, n - from - tail);
    name[n - from - tail] = '\0';
    char *packs = fmo_remote_config(e->c, name, "packs");
    const fm_status rc = e->fn(e->ctx, name, value, packs);
    fm_free(packs);
    return rc;
}

fm_status fm_ops_remote_each(fm_ops *c, fm_ops_remote_fn fn, void *ctx)
{
    each e = {c, fn, ctx};
    FM_TRY(fm_ops_open(c));
    return fm_repo_config_each(c->repo, "remote.", tell_one, &e);
}

fm_status fmo_remote_promise(fm_ops *c, const char *name)
{
    char key[KEY_BYTES];
    key_of(key, name, "lineageOnly");
    FM_TRY(fm_repo_config_set(c->repo, "fmstore.partial", "true")); /* alone it promises nothing */
    return fm_repo_config_set(c->repo, key, "true");
}

/* ---- opening ---- */

typedef struct only {
    char name[KEY_BYTES];
    size_t count;
} only;

static fm_status count_remote(void *ctx, const char *name, const char *url, const char *packs)
{
    only *o = ctx;
    (void)url;
    (void)packs;
    snprintf(o->name, sizeof o->name, "%s", name);
    o->count++;
    return FM_OK;
}

/* A word that names no remote is a URL where it looks like one, or names a folder. */
static bool is_url(const char *given)
{
    return strpbrk(given, "/:") || fm_path_is_dir(given);
}

static fm_status find(fm_ops *c, fmo_remote *m, const char *given)
{
    only o = {.count = 0};
    if (!given) {
        FM_TRY(fm_ops_remote_each(c, count_remote, &o));
        given = o.count == 1 ? o.name : "origin";
    }
    m->url = c->repo ? fmo_remote_config(c, given, "url") : NULL;
    if (m->url) {
        m->name = fm_strdup(given);
        m->packs = fmo_remote_config(c, given, "packs");
        return m->name ? FM_OK : FM_ENOMEM;
    }
    if (!is_url(given))
        return fm_fail(FM_ENOTFOUND,
                       "there is no remote '%s'; 'fmstore remote add %s URL' makes one", given,
                       given);
    m->url = fm_strdup(given);
    return m->url ? FM_OK : FM_ENOMEM;
}

fm_status fmo_remote_open(fm_ops *c, fmo_remote *out, const char *given, bool write)
{
    memset(out, 0, sizeof *out);
    fm_status rc = find(c, out, given);
    bool ours = true;
    if (rc == FM_OK && c->repo)
        rc = fm_repo_is_ours(c->repo, &ours);
    if (!ours) /* whoever wrote its config must not have us run programs */
        rc = fm_fail(FM_EREFUSED,
                     "%s belongs to another user, whose config may name programs; 'git config "
                     "--global --add safe.directory %s' trusts it",
                     fm_repo_path(c->repo), fm_repo_path(c->repo));
    char *ssh = rc == FM_OK && c->repo ? fm_repo_config(c->repo, "core.sshCommand") : NULL;
    char *program = rc == FM_OK && out->name ? fmo_remote_config(c, out->name, "program") : NULL;
    char *ca_file = rc == FM_OK && c->repo ? fm_repo_config(c->repo, "http.sslCAInfo") : NULL;
    if (rc == FM_OK) {
        const fm_remote_opts o = {out->url, out->packs, write, ssh, program, ca_file};
        rc = fm_remote_open(&out->at, &o);
    }
    fm_free(ssh);
    fm_free(program);
    fm_free(ca_file);
    if (rc != FM_OK)
        fmo_remote_close(out);
    return rc;
}

void fmo_remote_close(fmo_remote *m)
{
    fm_remote_close(m->at);
    fm_free(m->name);
    fm_free(m->url);
    fm_free(m->packs);
    memset(m, 0, sizeof *m);
}

/* ---- refs ---- */

bool fmo_oid_is_none(const fm_oid *oid)
{
    static const fm_oid none;
    return fm_oid_eq(oid, &none);
}

static fm_status add_ref(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    fmo_refs *r = ctx;
    (void)peeled;
    FM_TRY(fm_grow(&r->ref, &r->cap, r->count + 1, sizeof *r->ref));
    struct fmo_ref *ref = &r->ref[r->count];
    ref->name = fm_strdup(name);
    ref->oid = *oid;
    r->count += ref->name != NULL;
    return ref->name ? FM_OK : FM_ENOMEM;
}

fm_status fmo_refs_read(fmo_remote *m, fmo_refs *out)
{
    memset(out, 0, sizeof *out);
    return fm_remote_refs(m->at, add_ref, out);
}

void fmo_refs_release(fmo_refs *refs)
{
    for (size_t i = 0; i < refs->count; i++)
        fm_free(refs->ref[i].name);
    fm_free(refs->ref);
    memset(refs, 0, sizeof *refs);
}

const struct fmo_ref *fmo_refs_find(const fmo_refs *refs, const char *name)
{
    for (size_t i = 0; i < refs->count; i++)
        if (strcmp(refs->ref[i].name, name) == 0)
            return &refs->ref[i];
    return NULL;
}

const char *fmo_ref_short(const char *name)
{
    static const char *const prefix[] = {FMO_HEADS, FMO_TAGS, "refs/remotes/", "refs/"};
    for (size_t i = 0; i < FM_ARRAY_LEN(prefix); i++)
        if (strncmp(name, prefix[i], strlen(prefix[i])) == 0)
            return name + strlen(prefix[i]);
    return name;
}

static void set_oid(fm_json *v, const char *key, const fm_oid *oid)
{
    char hex[41];
    if (!oid || fmo_oid_is_none(oid))
        return;
    fm_oid_hex(oid, hex);
    fm_ignore(fm_json_set(v, key, fm_json_new_str(hex)), "the report lacks it then");
}

const char *fmo_ref_outcome(fm_ops *c, const fm_oid *old, const fm_oid *new_oid)
{
    bool forward = false;
    if (fmo_oid_is_none(new_oid))
        return "deleted";
    if (fmo_oid_is_none(old))
        return "new";
    if (fm_oid_eq(old, new_oid))
        return "up to date";
    /* what is not here is no ancestor of what is */
    if (fm_exchange_has(c->repo, old) && fm_is_ancestor(c->repo, &forward, old, new_oid) != FM_OK)
        fm_error_clear();
    return forward ? "forwarded" : "forced";
}

void fmo_ref_say(fm_ops *c, const char *outcome, const char *from, const char *to,
                 const fm_oid *old, const fm_oid *new_oid, const char *text)
{
    const bool bad = strcmp(outcome, "refused") == 0;
    char what[40];
    if (!bad && old && new_oid && !fmo_oid_is_none(old) && !fmo_oid_is_none(new_oid) &&
        !fm_oid_eq(old, new_oid))
        snprintf(what, sizeof what, "%s..%s", fm_ops_short_oid(old), fm_ops_short_oid(new_oid));
    else
        snprintf(what, sizeof what, "%s", outcome);
    const char *mark = bad                               ? "!"
                       : strcmp(outcome, "new") == 0     ? "*"
                       : strcmp(outcome, "forced") == 0  ? "+"
                       : strcmp(outcome, "deleted") == 0 ? "-"
                                                         : " ";
    const char *shown_from = fmo_ui_shown(fmo_ref_short(from), 200),
               *shown_to = fmo_ui_shown(fmo_ref_short(to), 200);
    const bool why = text && *text;
    fmo_ui_say(c, bad ? FM_UI_WARNING : FM_UI_NOTE, " %s %-22s %s -> %s%s%s%s", mark, what,
               shown_from, shown_to, why ? " (" : "", why ? text : "", why ? ")" : "");
    fm_json *v = fm_json_new_object();
    fm_status rc = fm_json_set(v, "name", fm_json_new_str(to));
    FM_THEN(rc, fm_json_set(v, "outcome", fm_json_new_str(outcome)));
    if (why)
        FM_THEN(rc, fm_json_set(v, "text", fm_json_new_str(text)));
    set_oid(v, "old", old);
    set_oid(v, "new", new_oid);
    fmo_ui_result(c, "ref", v, rc);
}

bool fmo_remote_progress(void *ctx, uint64_t done, uint64_t total)
{
    return fmo_ui_progress_bytes(ctx, done, total, "transferring");
}

fm_status fm_ops_ls_remote(fm_ops *c, const char *remote, fm_exchange_ref_fn fn, void *ctx)
{
    fmo_remote m;
    fm_status rc = fm_ops_open(c);
    if (rc == FM_ENOTFOUND && remote) { /* a URL needs no repository here */
        fm_error_clear();
        rc = FM_OK;
    }
    FM_TRY(rc);
    FM_TRY(fmo_remote_open(c, &m, remote, false));
    rc = fm_remote_refs(m.at, fn, ctx);
    fmo_remote_close(&m);
    return rc;
}
