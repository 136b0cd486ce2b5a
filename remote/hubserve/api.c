/* api.c - what the Hub says in JSON: models, their files, refs and commits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "remote/http/http.h"
#include "remote/hubserve/web.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define PAGE_FILES 1000u /* of a tree, in one answer */
#define PAGE_S 4.0       /* then the page ends: digests are computed on the way */
#define PAGE_COMMITS 50u
#define PAGE_COMMITS_MAX 1000u
#define PATHS_MAX 10000u /* of a request for paths */

static const char *argument(const fmr_ask *a, const char *name)
{
    return a->x->argument(a->x->ctx, name);
}

static bool is_true(const char *text)
{
    return text && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

/* most: also where nothing is asked for. */
static uint64_t number(const char *text, uint64_t most)
{
    const size_t n = text ? strspn(text, "0123456789") : 0;
    if (n == 0 || n > 18 || text[n])
        return most;
    const uint64_t v = strtoull(text, NULL, 10);
    return FM_MIN(v, most);
}

static fm_json *date(int64_t when)
{
    char text[64];
    struct tm tm;
    const time_t t = (time_t)when;
    if (!gmtime_r(&t, &tm) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000Z", &tm) == 0)
        return fm_json_new_str("1970-01-01T00:00:00.000Z");
    return fm_json_new_str(text);
}

/* The answer goes on at this page: {scheme}://{host}/api/models/{owner}/{name}/{verb}?{query}. */
static fm_status set_next(const fmr_ask *a, const char *verb, const char *query)
{
    const char *host = a->x->header(a->x->ctx, "Host");
    const char *proto = a->x->header(a->x->ctx, "X-Forwarded-Proto");
    fm_buf link;
    fm_buf_init(&link, 0);
    fm_buf_printf(&link, "<%s://%s/api/models/",
                  proto && strcmp(proto, "https") == 0 ? "https" : "http",
                  host ? host : "localhost");
    fmr_url_escape(&link, a->owner, false);
    fm_buf_char(&link, '/');
    fmr_url_escape(&link, a->name, false);
    fm_buf_char(&link, '/');
    fmr_url_escape(&link, verb, true);
    fm_buf_printf(&link, "?%s>; rel=\"next\"", query);
    fm_status rc = fm_buf_ok(&link);
    FM_THEN(rc, a->x->set(a->x->ctx, "Link", fm_buf_cstr(&link)));
    fm_buf_release(&link);
    return rc;
}

/* ==== files ==== */

/* key: what the digest of an LFS file is called, which differs. */
static fm_json *lfs_of(fm_status *rc, const fmr_sum *sum, uint64_t bytes, const char *key)
{
    fm_buf text;
    fm_json *o = fm_json_new_object();
    fm_buf_init(&text, 0);
    fmr_lfs_pointer(&text, sum->sha256, bytes);
    fm_json_put(rc, o, key, fm_json_new_str(sum->sha256));
    fm_json_put(rc, o, "size", fm_json_new_int((int64_t)bytes));
    fm_json_put(rc, o, "pointerSize", fm_json_new_int((int64_t)text.len));
    fm_buf_release(&text);
    return o;
}

/* As the list of a model's files has it. blobs: with sizes and digests. */
static fm_json *sibling(fm_status *rc, fmr_ask *a, size_t i, bool blobs)
{
    const fm_view_file *f = fm_view_at(a->open->view, i);
    fmr_sum sum;
    fm_json *o = fm_json_new_object();
    fm_json_put(rc, o, "rfilename", fm_json_new_str(f->name));
    if (blobs)
        FM_THEN(*rc, fmr_view_sum(&a->web->views, a->open, i, &sum, a->x));
    if (!blobs || *rc != FM_OK)
        return o;
    fm_json_put(rc, o, "size", fm_json_new_int((int64_t)f->bytes));
    fm_json_put(rc, o, "blobId", fm_json_new_str(sum.blob));
    if (sum.sha256[0])
        fm_json_put(rc, o, "lfs", lfs_of(rc, &sum, f->bytes, "sha256"));
    return o;
}

/* As a tree's listing has it. */
static fm_json *file_entry(fm_status *rc, fmr_ask *a, size_t i)
{
    const fm_view_file *f = fm_view_at(a->open->view, i);
    fmr_sum sum;
    fm_json *o = fm_json_new_object();
    FM_THEN(*rc, fmr_view_sum(&a->web->views, a->open, i, &sum, a->x));
    if (*rc != FM_OK)
        return o;
    fm_json_put(rc, o, "type", fm_json_new_str("file"));
    fm_json_put(rc, o, "oid", fm_json_new_str(sum.blob));
    fm_json_put(rc, o, "size", fm_json_new_int((int64_t)f->bytes));
    if (sum.sha256[0])
        fm_json_put(rc, o, "lfs", lfs_of(rc, &sum, f->bytes, "oid"));
    fm_json_put(rc, o, "path", fm_json_new_str(f->name));
    return o;
}

/* A folder has no object of git's: its id is one of its name and commit. */
static fm_json *folder_entry(fm_status *rc, const fmr_ask *a, const char *path, size_t len)
{
    char oid[41] = "";
    char *name = fm_asprintf("%s %.*s", a->commit, (int)len, path);
    fm_json *o = fm_json_new_object();
    if (*rc == FM_OK)
        *rc = name ? fmr_blob_id(oid, (fm_span){(const uint8_t *)name, strlen(name)}) : FM_ENOMEM;
    fm_json_put(rc, o, "type", fm_json_new_str("directory"));
    fm_json_put(rc, o, "oid", fm_json_new_str(oid));
    fm_json_put(rc, o, "size", fm_json_new_int(0));
    fm_json_put(rc, o, "path", fm_json_new_strn(path, len));
    fm_free(name);
    return o;
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
    const bool blobs = is_true(argument(a, "blobs"));
    fm_json *o = fm_json_new_object(), *files = fm_json_new_array();
    fm_status rc = FM_OK;
    put_head(&rc, o, a->owner, a->name, a->commit, a->open->time);
    put_kind(&rc, o, a->open);
    put_config(&rc, o, a->open);
    for (size_t i = 0; rc == FM_OK && i < fm_view_count(a->open->view); i++)
        fm_json_push_to(&rc, files, sibling(&rc, a, i, blobs));
    fm_json_put(&rc, o, "siblings", files);
    FM_THEN(rc, a->x->set(a->x->ctx, "X-Repo-Commit", a->commit));
    FM_THEN(rc, fmr_say_json(a, o));
    fm_json_free(o);
    return rc;
}

/* ==== a tree ==== */

/* The files below `folder`: an entry each, and for a folder in it, where not recursive, one. */
typedef struct listing {
    const char *folder; /* "" or "a/b" */
    size_t len;
    bool recursive;
    uint64_t from; /* the number of the first entry of the page */
    uint64_t seen;
    fm_json *list;
    size_t count, most; /* entries of the page */
    double begun;
    bool more;
} listing;

static bool is_below(const listing *l, const char *name)
{
    return l->len == 0 || (strncmp(name, l->folder, l->len) == 0 && name[l->len] == '/');
}

/* Whether the page takes one more entry. */
static bool takes(listing *l)
{
    if (l->more || l->seen < l->from) {
        l->seen += !l->more;
        return false;
    }
    l->more = l->count > 0 && (l->count >= l->most || fm_now_s() - l->begun > PAGE_S);
    l->seen += !l->more;
    l->count += !l->more;
    return !l->more;
}

static bool same_folder(const char *a, const char *b, size_t len)
{
    return a && strncmp(a, b, len) == 0 && a[len] == '/';
}

/* The folders that begin with this file. before: the name of the file before it. */
static void list_folders(fm_status *rc, fmr_ask *a, listing *l, const char *name,
                         const char *before)
{
    size_t at = l->len ? l->len + 1 : 0;
    for (const char *end; (end = strchr(name + at, '/')); at = (size_t)(end - name) + 1) {
        const size_t len = (size_t)(end - name);
        if (!same_folder(before, name, len) && takes(l))
            fm_json_push_to(rc, l->list, folder_entry(rc, a, name, len));
        if (!l->recursive)
            return;
    }
}

static bool is_deeper(const listing *l, const char *name)
{
    return strchr(name + (l->len ? l->len + 1 : 0), '/') != NULL;
}

static fm_status list_files(fmr_ask *a, listing *l)
{
    const fm_view *v = a->open->view;
    const char *before = NULL;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && !l->more && i < fm_view_count(v); i++) {
        const char *name = fm_view_at(v, i)->name;
        if (!is_below(l, name))
            continue;
        list_folders(&rc, a, l, name, before);
        before = name;
        if (!l->more && (l->recursive || !is_deeper(l, name)) && takes(l))
            fm_json_push_to(&rc, l->list, file_entry(&rc, a, i));
    }
    return rc;
}

static fm_status next_files(const fmr_ask *a, const listing *l)
{
    char query[96];
    char *verb = fm_asprintf("tree/%s%s%s", a->commit, l->len ? "/" : "", l->folder);
    (void)snprintf(query, sizeof query, "recursive=%s&limit=%zu&cursor=%llu",
                   l->recursive ? "true" : "false", l->most, (unsigned long long)l->seen);
    const fm_status rc = verb ? set_next(a, verb, query) : FM_ENOMEM;
    fm_free(verb);
    return rc;
}

static fm_status answer_tree(fmr_ask *a, const char *folder)
{
    listing l = {.folder = folder,
                 .len = strlen(folder),
                 .recursive = is_true(argument(a, "recursive")),
                 .from = argument(a, "cursor") ? number(argument(a, "cursor"), UINT64_MAX) : 0,
                 .list = fm_json_new_array(),
                 .most = (size_t)number(argument(a, "limit"), PAGE_FILES),
                 .begun = fm_now_s()};
    fm_status rc = l.list ? list_files(a, &l) : FM_ENOMEM;
    if (rc == FM_OK && l.seen == 0 && l.len > 0) {
        (void)fm_fail(FM_ENOTFOUND, "there is no folder '%.200s' in this revision", folder);
        fm_json_free(l.list);
        return fmr_say_missing(a, FMR_NO_ENTRY, fm_error_text());
    }
    if (rc == FM_OK && l.more)
        rc = next_files(a, &l);
    FM_THEN(rc, a->x->set(a->x->ctx, "X-Repo-Commit", a->commit));
    FM_THEN(rc, fmr_say_json(a, l.list));
    fm_json_free(l.list);
    return rc;
}

/* ==== paths ==== */

/* What the view has of this path: a file, a folder, nothing. */
static void put_path(fm_status *rc, fmr_ask *a, fm_json *list, const char *path)
{
    const fm_view *v = a->open->view;
    const size_t i = fm_view_find(v, path), len = strlen(path);
    if (i != SIZE_MAX) {
        fm_json_push_to(rc, list, file_entry(rc, a, i));
        return;
    }
    for (size_t k = 0; len > 0 && k < fm_view_count(v); k++)
        if (same_folder(fm_view_at(v, k)->name, path, len)) {
            fm_json_push_to(rc, list, folder_entry(rc, a, path, len));
            return;
        }
}

static fm_status paths_of_form(fmr_ask *a, fm_json *list)
{
    const char *text = fm_buf_cstr(&a->body);
    size_t count = 0;
    fm_status rc = FM_OK;
    fm_buf path;
    fm_buf_init(&path, 0);
    while (rc == FM_OK && *text && count < PATHS_MAX) {
        const size_t n = strcspn(text, "&");
        const size_t name = strncmp(text, "paths=", 6) == 0     ? 6
                            : strncmp(text, "paths[]=", 8) == 0 ? 8
                                                                : 0;
        if (name) {
            fm_buf_clear(&path);
            fmr_url_unescape(&path, text + name, n - name, true);
            rc = fm_buf_ok(&path);
            put_path(&rc, a, list, fm_buf_cstr(&path));
            count++;
        }
        text += n + (text[n] == '&');
    }
    fm_buf_release(&path);
    return rc;
}

static fm_status paths_of_json(fmr_ask *a, fm_json *list)
{
    fm_json *root = NULL;
    FM_TRY(fm_json_parse(&root, fm_buf_span(&a->body), "the request"));
    const fm_json *paths = fm_json_get(root, "paths");
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < FM_MIN(fm_json_count(paths), PATHS_MAX); i++)
        put_path(&rc, a, list, fm_json_cstr(fm_json_at(paths, i), ""));
    fm_json_free(root);
    return rc;
}

static fm_status answer_paths(fmr_ask *a)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = !list                                       ? FM_ENOMEM
                   : a->body.len > 0 && a->body.data[0] == '{' ? paths_of_json(a, list)
                                                               : paths_of_form(a, list);
    if (rc == FM_ECORRUPT || rc == FM_ELIMIT)
        rc = fmr_say_error(a, 400, "the request's body is neither a form nor JSON");
    else
        FM_THEN(rc, fmr_say_json(a, list));
    fm_json_free(list);
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
    const uint64_t page = argument(a, "p") ? number(argument(a, "p"), 1u << 30) : 0;
    const uint64_t limit =
        argument(a, "limit") ? number(argument(a, "limit"), PAGE_COMMITS_MAX) : PAGE_COMMITS;
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
        rc = set_next(a, verb, query);
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
        return answer_tree(a, rest);
    if (*rest)
        return fmr_say_missing(a, FMR_NO_ENTRY, "there is nothing below a revision here");
    if (strncmp(verb, "paths-info/", 11) == 0)
        return answer_paths(a);
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
    const char *author = argument(a, "author");
    models m = {.ask = a,
                .list = fm_json_new_array(),
                .owner = author && *author ? author : "fmstore",
                .search = argument(a, "search"),
                .left = number(argument(a, "limit"), UINT64_MAX)};
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
    fm_json_put(&rc, o, "ggufFile", sibling(&rc, a, i, true));
    FM_THEN(rc, fmr_say_json(a, o));
    fm_json_free(o);
    return rc;
}
