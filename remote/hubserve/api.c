/* api.c - what the Hub says in JSON: models, refs and commits. */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "remote/hubserve/web.h"
#include "store/base/mem.h"

#define PAGE_COMMITS 50u
#define PAGE_COMMITS_MAX 1000u

static fm_json *date(int64_t when)
{
    char text[64];
    struct tm tm;
    const time_t t = (time_t)when;
    if (!gmtime_r(&t, &tm) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000Z", &tm) == 0)
        return fm_json_new_str("1970-01-01T00:00:00.000Z");
    return fm_json_new_str(text);
}

/* ==== a model ==== */

/* architectures and model_type of the model's config, as the Hub shows them. */
static void put_config(fm_status *rc, fm_json *o, const fmr_open *v)
{
    static const char *const keys[] = {"architectures", "model_type"};
    const fm_entry *e = fm_tree_find(v->tree, "model.json");
    fm_json *model = NULL, *config = fm_json_new_object();
    fm_buf text;
    fm_buf_init(&text, FM_INLINE_MAX_BYTES * 16);
    if (*rc == FM_OK && e) {
        *rc = fm_entry_read(&text, &v->provider, e);
        FM_THEN(*rc, fm_json_parse(&model, fm_buf_span(&text), e->path));
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++) {
        const fm_json *value = fm_json_get(fm_json_get(model, "config"), keys[i]);
        if (value)
            fm_json_put(rc, config, keys[i], fm_json_copy(value));
    }
    fm_json_put(rc, o, "config", config);
    fm_json_free(model);
    fm_buf_release(&text);
}

static void put_kind(fm_status *rc, fm_json *o, const fmr_open *v)
{
    const bool gguf = v->form == FMR_FORM_GGUF;
    const char *library = v->peft ? "peft" : gguf ? "gguf" : "transformers";
    fm_json *tags = fm_json_new_array();
    fm_json_push_to(rc, tags, fm_json_new_str(library));
    if (fmr_view_has(v->view, ".safetensors"))
        fm_json_push_to(rc, tags, fm_json_new_str("safetensors"));
    if (v->peft) {
        char *base = fm_asprintf("base_model:adapter:%s", v->base);
        fm_json_push_to(rc, tags, base ? fm_json_new_str(base) : NULL);
        fm_free(base);
    }
    fm_json_put(rc, o, "tags", tags);
    fm_json_put(rc, o, "library_name", fm_json_new_str(library));
}

static void put_head(fm_status *rc, fm_json *o, const char *owner, const char *name,
                     const char *commit, int64_t when)
{
    char *id = fm_asprintf("%s/%s", owner, name);
    if (!id)
        *rc = FM_ENOMEM;
    fm_json_put(rc, o, "_id", fm_json_new_str(commit));
    fm_json_put(rc, o, "id", fm_json_new_str(id));
    fm_json_put(rc, o, "modelId", fm_json_new_str(id));
    fm_json_put(rc, o, "author", fm_json_new_str(owner));
    fm_json_put(rc, o, "sha", fm_json_new_str(commit));
    fm_json_put(rc, o, "lastModified", date(when));
    fm_json_put(rc, o, "createdAt", date(when));
    fm_json_put(rc, o, "private", fm_json_new_bool(false));
    fm_json_put(rc, o, "gated", fm_json_new_bool(false));
    fm_json_put(rc, o, "disabled", fm_json_new_bool(false));
    fm_json_put(rc, o, "downloads", fm_json_new_int(0));
    fm_json_put(rc, o, "likes", fm_json_new_int(0));
    fm_free(id);
}

static fm_status answer_info(fmr_ask *a)
{
    const bool blobs = fmr_argument_true(a, "blobs");
    fm_json *o = fm_json_new_object(), *files = fm_json_new_array();
    fm_status rc = FM_OK;
    put_head(&rc, o, a->owner, a->name, a->commit, a->open->time);
    put_kind(&rc, o, a->open);
    put_config(&rc, o, a->open);
    for (size_t i = 0; rc == FM_OK && i < fm_view_count(a->open->view); i++)
        fm_json_push_to(&rc, files, fmr_sibling(&rc, a, i, blobs));
    fm_json_put(&rc, o, "siblings", files);
    FM_THEN(rc, a->x->set(a->x->ctx, "X-Repo-Commit", a->commit));
    FM_THEN(rc, fmr_say_json(a, o));
    fm_json_free(o);
    return rc;
}

/* ==== commits ==== */

typedef struct commits {
    fm_json *list;
    uint64_t skip, left;
    bool more;
} commits;

static fm_status put_commit(void *ctx, const fm_version *v)
{
    commits *c = ctx;
    char hex[41];
    fm_status rc = FM_OK;
    if (c->skip > 0) {
        c->skip--;
        return FM_OK;
    }
    c->more = c->left == 0;
    if (c->more)
        return FM_ECANCELLED;
    c->left--;
    fm_oid_hex(&v->oid, hex);
    const size_t subject = strlen(v->subject);
    size_t name = strcspn(v->author, "<");
    name -= name > 0 && v->author[name - 1] == ' ';
    const char *body = strncmp(v->message, v->subject, subject) == 0 ? v->message + subject : "";
    fm_json *o = fm_json_new_object(), *authors = fm_json_new_array(), *one = fm_json_new_object();
    fm_json_put(&rc, one, "user", fm_json_new_strn(v->author, name));
    fm_json_push_to(&rc, authors, one);
    fm_json_put(&rc, o, "id", fm_json_new_str(hex));
    fm_json_put(&rc, o, "title", fm_json_new_str(v->subject));
    fm_json_put(&rc, o, "message", fm_json_new_str(body + strspn(body, "\n")));
    fm_json_put(&rc, o, "authors", authors);
    fm_json_put(&rc, o, "date", date(v->time));
    fm_json_push_to(&rc, c->list, o);
    return rc;
}

static fm_status answer_commits(fmr_ask *a)
{
    const uint64_t page = fmr_argument_number(a, "p", 0, 1u << 30);
    const uint64_t limit = fmr_argument_number(a, "limit", PAGE_COMMITS, PAGE_COMMITS_MAX);
    commits c = {.list = fm_json_new_array(), .skip = page * limit, .left = limit};
    char query[64], verb[64];
    fm_status rc = c.list ? FM_OK : FM_ENOMEM;
    (void)pthread_mutex_lock(&a->web->lock);
    FM_THEN(rc, fm_log_walk(a->web->repo, &a->oid, 1, put_commit, &c));
    (void)pthread_mutex_unlock(&a->web->lock);
    (void)snprintf(query, sizeof query, "p=%llu&limit=%llu", (unsigned long long)page + 1,
                   (unsigned long long)limit);
    (void)snprintf(verb, sizeof verb, "commits/%s", a->commit);
    if (rc == FM_OK && c.more)
        rc = fmr_set_next(a, verb, query);
    FM_THEN(rc, fmr_say_json(a, c.list));
    fm_json_free(c.list);
    return rc;
}

/* ==== refs ==== */

static void put_ref(fm_status *rc, fm_json *list, const char *name, const char *ref,
                    const fm_oid *oid)
{
    char hex[41];
    fm_json *o = fm_json_new_object();
    fm_oid_hex(oid, hex);
    fm_json_put(rc, o, "name", fm_json_new_str(name));
    fm_json_put(rc, o, "ref", fm_json_new_str(ref));
    fm_json_put(rc, o, "targetCommit", fm_json_new_str(hex));
    fm_json_push_to(rc, list, o);
}

typedef struct tags {
    fmr_ask *ask;
    fm_json *list;
} tags;

/* Those of the model's own history. */
static fm_status put_tag(void *ctx, const char *ref, const fm_oid *oid)
{
    const tags *t = ctx;
    fm_oid common;
    fm_status rc = fm_merge_base(t->ask->web->repo, &common, &t->ask->oid, oid);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        return FM_OK;
    }
    if (rc == FM_OK && fm_oid_eq(&common, oid))
        put_ref(&rc, t->list, ref + strlen("refs/tags/"), ref, oid);
    return rc;
}

static fm_status answer_refs(fmr_ask *a)
{
    fm_json *o = fm_json_new_object(), *branches = fm_json_new_array();
    tags t = {a, fm_json_new_array()};
    fm_status rc = branches && t.list ? FM_OK : FM_ENOMEM;
    (void)pthread_mutex_lock(&a->web->lock);
    if (a->model.ref[0])
        FM_THEN(rc, fm_ref_each(a->web->repo, "refs/tags/", put_tag, &t));
    (void)pthread_mutex_unlock(&a->web->lock);
    if (rc == FM_OK)
        put_ref(&rc, branches, "main", "refs/heads/main", &a->oid);
    fm_json_put(&rc, o, "branches", branches);
    fm_json_put(&rc, o, "converts", fm_json_new_array());
    fm_json_put(&rc, o, "tags", t.list);
    fm_json_put(&rc, o, "pullRequests", fm_json_new_array());
    FM_THEN(rc, fmr_say_json(a, o));
    fm_json_free(o);
    return rc;
}

/* ==== which of these ==== */

static fm_status answer_auth(fmr_ask *a)
{
    fm_json *o = fm_json_new_object();
    const fm_status rc = o ? fmr_say_json(a, o) : FM_ENOMEM;
    fm_json_free(o);
    return rc;
}

/* Those that speak of a revision, which follows the verb. */
static fm_status answer_revision(fmr_ask *a, const char *verb, const char *what)
{
    const char *rest;
    bool answered;
    FM_TRY(fmr_ask_view(a, what, &rest, &answered));
    if (answered)
        return FM_OK;
    if (strncmp(verb, "tree/", 5) == 0)
        return fmr_answer_tree(a, rest);
    if (*rest)
        return fmr_say_missing(a, FMR_NO_ENTRY, "there is nothing below a revision here");
    if (strncmp(verb, "paths-info/", 11) == 0)
        return fmr_answer_paths(a);
    return strncmp(verb, "commits/", 8) == 0 ? answer_commits(a) : answer_info(a);
}

fm_status fmr_answer_model(fmr_ask *a, const char *verb)
{
    static const char *const of_revision[] = {"revision/", "tree/", "commits/", "paths-info/"};
    bool answered;
    FM_TRY(fmr_ask_model(a, &answered));
    if (answered)
        return FM_OK;
    if (!*verb)
        return answer_revision(a, verb, "main");
    if (strcmp(verb, "refs") == 0)
        return answer_refs(a);
    if (strcmp(verb, "auth-check") == 0)
        return answer_auth(a);
    for (size_t i = 0; i < FM_ARRAY_LEN(of_revision); i++)
        if (strncmp(verb, of_revision[i], strlen(of_revision[i])) == 0)
            return answer_revision(a, verb, verb + strlen(of_revision[i]));
    return fmr_say_error(a, 404, "fmstore does not answer this part of the Hub's API");
}

/* ==== all models ==== */

typedef struct models {
    fmr_ask *ask;
    fm_json *list;
    const char *owner, *search;
    uint64_t left;
} models;

static bool holds(const char *text, const char *part)
{
    const size_t n = strlen(part);
    for (; *text; text++)
        if (strncasecmp(text, part, n) == 0)
            return true;
    return n == 0;
}

static fm_status put_model(void *ctx, const char *ref, const fm_oid *oid)
{
    models *m = ctx;
    char hex[41];
    fm_version v;
    fm_buf name;
    fm_status rc = FM_OK;
    fm_buf_init(&name, 0);
    fmr_model_name(&name, ref + strlen("refs/heads/"));
    if (m->left > 0 && (!m->search || holds(fm_buf_cstr(&name), m->search))) {
        m->left--;
        fm_oid_hex(oid, hex);
        rc = fm_version_read(m->ask->web->repo, &v, oid);
        fm_json *o = fm_json_new_object();
        if (rc == FM_OK) {
            put_head(&rc, o, m->owner, fm_buf_cstr(&name), hex, v.time);
            fm_version_release(&v);
        }
        fm_json_put(&rc, o, "tags", fm_json_new_array());
        fm_json_push_to(&rc, m->list, o);
    }
    fm_buf_release(&name);
    return rc;
}

fm_status fmr_answer_models(fmr_ask *a)
{
    const char *author = fmr_argument(a, "author");
    models m = {.ask = a,
                .list = fm_json_new_array(),
                .owner = author && *author ? author : "fmstore",
                .search = fmr_argument(a, "search"),
                .left = fmr_argument_number(a, "limit", UINT64_MAX, UINT64_MAX)};
    fm_status rc = m.list ? FM_OK : FM_ENOMEM;
    (void)pthread_mutex_lock(&a->web->lock);
    FM_THEN(rc, fm_ref_each(a->web->repo, "refs/heads/", put_model, &m));
    (void)pthread_mutex_unlock(&a->web->lock);
    FM_THEN(rc, fmr_say_json(a, m.list));
    fm_json_free(m.list);
    return rc;
}

/* The server has looked at the key before; without one anybody is nobody. */
fm_status fmr_answer_whoami(fmr_ask *a)
{
    fm_status rc = FM_OK;
    if (!a->x->header(a->x->ctx, "Authorization"))
        return fmr_say_error(a, 401, "this server asks for no key, and has no users");
    fm_json *o = fm_json_new_object(), *token = fm_json_new_object(), *auth = fm_json_new_object();
    fm_json_put(&rc, token, "displayName", fm_json_new_str("fmstore"));
    fm_json_put(&rc, token, "role", fm_json_new_str("read"));
    fm_json_put(&rc, auth, "type", fm_json_new_str("access_token"));
    fm_json_put(&rc, auth, "accessToken", token);
    fm_json_put(&rc, o, "type", fm_json_new_str("user"));
    fm_json_put(&rc, o, "id", fm_json_new_str("fmstore"));
    fm_json_put(&rc, o, "name", fm_json_new_str("fmstore"));
    fm_json_put(&rc, o, "fullname", fm_json_new_str("fmstore"));
    fm_json_put(&rc, o, "orgs", fm_json_new_array());
    fm_json_put(&rc, o, "auth", auth);
    FM_THEN(rc, fmr_say_json(a, o));
    fm_json_free(o);
    return rc;
}

/* ==== llama.cpp ==== */

static bool is_gguf(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0 && !strstr(name, "mmproj");
}

/* The file that the tag names; "latest" and none: Q4_K_M, Q4, the first. */
static size_t choose_gguf(const fm_view *v, const char *tag)
{
    static const char *const liked[] = {"Q4_K_M", "Q4"};
    const bool any = !*tag || strcmp(tag, "latest") == 0;
    for (size_t k = 0; k < (any ? FM_ARRAY_LEN(liked) : 1); k++)
        for (size_t i = 0; i < fm_view_count(v); i++)
            if (is_gguf(fm_view_at(v, i)->name) &&
                holds(fm_view_at(v, i)->name, any ? liked[k] : tag))
                return i;
    for (size_t i = 0; any && i < fm_view_count(v); i++)
        if (is_gguf(fm_view_at(v, i)->name))
            return i;
    return SIZE_MAX;
}

fm_status fmr_answer_manifest(fmr_ask *a, const char *tag)
{
    const char *rest;
    bool answered;
    fm_status rc = FM_OK;
    FM_TRY(fmr_ask_model(a, &answered));
    if (!answered)
        FM_TRY(fmr_ask_view(a, "main", &rest, &answered));
    if (answered)
        return FM_OK;
    const size_t i = choose_gguf(a->open->view, tag);
    if (i == SIZE_MAX) {
        (void)fm_fail(FM_ENOTFOUND, "there is no GGUF file of '%.100s'; ask for {owner}/%s-GGUF",
                      tag, a->model.form == FMR_FORM_GGUF ? "{name}" : a->name);
        return fmr_say_missing(a, FMR_NO_ENTRY, fm_error_text());
    }
    fm_json *o = fm_json_new_object();
    fm_json_put(&rc, o, "ggufFile", fmr_sibling(&rc, a, i, true));
    FM_THEN(rc, fmr_say_json(a, o));
    fm_json_free(o);
    return rc;
}
