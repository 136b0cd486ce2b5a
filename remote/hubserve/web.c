/* web.c - the Hub's paths, who answers them, and how refusals are told. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "remote/hubserve/web.h"
#include "store/base/mem.h"

#define MODELS "api/models"
#define MESSAGE_MAX 300u /* characters of an error's header */

/* ==== paths ==== */

typedef enum route {
    ROUTE_NONE,
    ROUTE_MODELS,
    ROUTE_MODEL,
    ROUTE_WHOAMI,
    ROUTE_RESOLVE,
    ROUTE_RAW,
    ROUTE_MANIFEST
} route;

typedef struct target {
    route route;
    const char *owner, *name, *rest; /* within the path; owner and name end at a '/' or NUL */
} target;

static bool starts(const char *text, const char *prefix, const char **rest)
{
    const size_t n = strlen(prefix);
    if (strncmp(text, prefix, n) != 0)
        return false;
    *rest = text + n;
    return true;
}

/* "{owner}/{name}", then the end or '/'. *rest: behind that. */
static bool split(target *t, const char *text, const char **rest)
{
    const size_t n = strcspn(text, "/");
    const size_t m = text[n] ? strcspn(text + n + 1, "/") : 0;
    if (n == 0 || m == 0)
        return false;
    t->owner = text;
    t->name = text + n + 1;
    *rest = t->name + m + (t->name[m] == '/');
    return true;
}

static target target_of(const char *path)
{
    target t = {ROUTE_NONE, NULL, NULL, ""};
    const char *rest = path;
    if (strcmp(path, MODELS) == 0 || strcmp(path, MODELS "/") == 0)
        t.route = ROUTE_MODELS;
    else if (strcmp(path, "api/whoami-v2") == 0)
        t.route = ROUTE_WHOAMI;
    else if (starts(path, MODELS "/", &rest) && split(&t, rest, &t.rest))
        t.route = ROUTE_MODEL;
    else if (starts(path, "v2/", &rest) && split(&t, rest, &rest) &&
             starts(rest, "manifests", &t.rest) && (!*t.rest || *t.rest == '/'))
        t.route = ROUTE_MANIFEST;
    else if (strncmp(path, "v1/", 3) == 0 || strncmp(path, "api/", 4) == 0 ||
             !split(&t, path, &rest))
        t.route = ROUTE_NONE;
    else if (starts(rest, "resolve/", &t.rest))
        t.route = ROUTE_RESOLVE;
    else if (starts(rest, "raw/", &t.rest))
        t.route = ROUTE_RAW;
    return t;
}

bool fm_hub_web_takes(const char *path)
{
    return target_of(path).route != ROUTE_NONE;
}

/* ==== answers ==== */

bool fmr_ask_is(const fmr_ask *a, const char *method)
{
    return strcmp(a->x->method, method) == 0;
}

fm_status fmr_say_bytes(fmr_ask *a, unsigned status, const char *type, fm_span bytes)
{
    FM_TRY(a->x->set(a->x->ctx, "Content-Type", type));
    FM_TRY(a->x->set(a->x->ctx, "Cache-Control", "no-cache"));
    FM_TRY(a->x->set(a->x->ctx, "X-Content-Type-Options", "nosniff"));
    FM_TRY(a->x->begin(a->x->ctx, status, bytes.len));
    return bytes.len > 0 && !fmr_ask_is(a, "HEAD") ? a->x->write(a->x->ctx, bytes.data, bytes.len)
                                                   : FM_OK;
}

static fm_status say(fmr_ask *a, unsigned status, const fm_json *v)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = v ? fm_json_write(&text, v, FM_JSON_COMPACT) : FM_ENOMEM;
    FM_THEN(rc, fmr_say_bytes(a, status, "application/json; charset=utf-8", fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

fm_status fmr_say_json(fmr_ask *a, const fm_json *v)
{
    return say(a, 200, v);
}

fm_status fmr_say_error(fmr_ask *a, unsigned status, const char *text)
{
    char message[MESSAGE_MAX + 1];
    size_t n = 0;
    fm_status rc = FM_OK;
    for (; n < MESSAGE_MAX && text[n]; n++)
        message[n] = (uint8_t)text[n] < 0x20 || (uint8_t)text[n] > 0x7e ? '?' : text[n];
    message[n] = '\0';
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "error", fm_json_new_str(text));
    FM_THEN(rc, a->x->set(a->x->ctx, "X-Error-Message", message));
    FM_THEN(rc, say(a, status, o));
    fm_json_free(o);
    return rc;
}

fm_status fmr_say_missing(fmr_ask *a, fmr_missing what, const char *text)
{
    static const char *const code[] = {[FMR_NO_MODEL] = "RepoNotFound",
                                       [FMR_NO_REVISION] = "RevisionNotFound",
                                       [FMR_NO_ENTRY] = "EntryNotFound"};
    char words[1024];
    (void)snprintf(words, sizeof words, "%s", text);
    FM_TRY(a->x->set(a->x->ctx, "X-Error-Code", code[what]));
    if (what == FMR_NO_ENTRY) /* clients keep in mind which files a commit has not */
        FM_TRY(a->x->set(a->x->ctx, "X-Repo-Commit", a->commit));
    return fmr_say_error(a, 404, words);
}

/* A failure that means there is no such thing is told so; others are the caller's. */
static fm_status missing(fmr_ask *a, fm_status rc, fmr_missing what, bool *answered)
{
    *answered = rc == FM_ENOTFOUND || rc == FM_EUNSUPPORTED || rc == FM_EBASE;
    return *answered ? fmr_say_missing(a, what, fm_error_text()) : rc;
}

fm_status fmr_ask_model(fmr_ask *a, bool *answered)
{
    fm_hub_web *w = a->web;
    (void)pthread_mutex_lock(&w->lock);
    const fm_status rc = fmr_model_find(w->repo, &a->model, a->name);
    (void)pthread_mutex_unlock(&w->lock);
    a->oid = a->model.oid;
    return missing(a, rc, FMR_NO_MODEL, answered);
}

fm_status fmr_ask_view(fmr_ask *a, const char *text, const char **rest, bool *answered)
{
    fm_hub_web *w = a->web;
    (void)pthread_mutex_lock(&w->lock);
    fm_status rc = fmr_model_revision(w->repo, &a->oid, &a->model, text, rest);
    (void)pthread_mutex_unlock(&w->lock);
    FM_TRY(missing(a, rc, FMR_NO_REVISION, answered));
    if (*answered)
        return FM_OK;
    fm_oid_hex(&a->oid, a->commit);
    rc = fmr_views_take(&w->views, &a->open, &a->oid, a->model.form, a->owner);
    return missing(a, rc, FMR_NO_REVISION, answered);
}

/* ==== requests ==== */

static fm_status read_body(fmr_ask *a)
{
    uint8_t piece[16384];
    size_t got;
    do {
        FM_TRY(a->x->read(a->x->ctx, piece, sizeof piece, &got));
        fm_buf_append(&a->body, piece, got);
        if (a->body.failed == FM_ELIMIT)
            return fm_fail(FM_EINVAL, "the request's body has more than %zu bytes",
                           FMR_SERVE_BODY_MAX);
    } while (got > 0);
    return fm_buf_ok(&a->body);
}

static bool copy_part(char *out, const char *from)
{
    const size_t n = from ? strcspn(from, "/") : 0;
    if (n > FMR_SERVE_NAME_MAX)
        return false;
    memcpy(out, from ? from : "", n);
    out[n] = '\0';
    return true;
}

static fm_status answer(fmr_ask *a, const target *t)
{
    const bool reads = fmr_ask_is(a, "GET") || fmr_ask_is(a, "HEAD");
    FM_TRY(read_body(a));
    if (!copy_part(a->owner, t->owner) || !copy_part(a->name, t->name))
        return fmr_say_missing(a, FMR_NO_MODEL, "no model has so long a name");
    if (!reads && !(t->route == ROUTE_MODEL && strncmp(t->rest, "paths-info/", 11) == 0))
        return fmr_say_error(a, 403,
                             "nothing is written through the Hub's API; models come in by "
                             "fmstore's commands import, derive and push");
    switch (t->route) {
    case ROUTE_MODELS:
        return fmr_answer_models(a);
    case ROUTE_WHOAMI:
        return fmr_answer_whoami(a);
    case ROUTE_MODEL:
        return fmr_answer_model(a, t->rest);
    case ROUTE_MANIFEST:
        return fmr_answer_manifest(a, t->rest + (*t->rest == '/'));
    case ROUTE_RESOLVE:
    case ROUTE_RAW:
        return fmr_answer_file(a, t->rest, t->route == ROUTE_RAW);
    case ROUTE_NONE:
        break;
    }
    return fm_fail(FM_ENOTFOUND, "the Hub's API has no such address");
}

fm_status fm_hub_web_answer(fm_hub_web *w, const fm_hub_exchange *x)
{
    const target t = target_of(x->path);
    fmr_ask *a = fm_calloc(1, sizeof *a);
    if (!a)
        return FM_ENOMEM;
    a->web = w;
    a->x = x;
    fm_buf_init(&a->body, FMR_SERVE_BODY_MAX);
    const fm_status rc = answer(a, &t);
    fmr_views_give(&w->views, a->open);
    fm_buf_release(&a->body);
    fm_free(a);
    return rc;
}

/* ==== begin and end ==== */

fm_status fm_hub_web_new(fm_hub_web **out, const char *dir)
{
    *out = NULL;
    fm_hub_web *w = fm_calloc(1, sizeof *w);
    if (!w)
        return FM_ENOMEM;
    w->dir = fm_strdup(dir);
    fm_status rc = w->dir ? fmr_views_init(&w->views, w->dir) : FM_ENOMEM;
    if (rc == FM_OK && pthread_mutex_init(&w->lock, NULL) != 0) {
        fmr_views_release(&w->views);
        rc = fm_fail(FM_ENOMEM, "a Hub's server: cannot make a lock");
    }
    if (rc != FM_OK) {
        fm_free(w->dir);
        fm_free(w);
        return rc;
    }
    rc = fm_repo_open(&w->repo, dir);
    if (rc != FM_OK) {
        fm_hub_web_free(w);
        return rc;
    }
    *out = w;
    return FM_OK;
}

void fm_hub_web_free(fm_hub_web *w)
{
    if (!w)
        return;
    fmr_views_release(&w->views);
    fm_repo_close(w->repo);
    (void)pthread_mutex_destroy(&w->lock);
    fm_free(w->dir);
    fm_free(w);
}
