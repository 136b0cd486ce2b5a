/* tree.c - a version's files in JSON: as a model's list, as a tree's pages, by their paths. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "remote/http/http.h"
#include "remote/hubserve/web.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define PAGE_FILES 1000u /* of a tree, in one answer */
#define PAGE_S 4.0       /* then the page ends: digests are computed on the way */
#define PATHS_MAX 10000u /* of a request for paths */

/* ==== arguments ==== */

const char *fmr_argument(const fmr_ask *a, const char *name)
{
    return a->x->argument(a->x->ctx, name);
}

bool fmr_argument_true(const fmr_ask *a, const char *name)
{
    const char *text = fmr_argument(a, name);
    return text && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

uint64_t fmr_argument_number(const fmr_ask *a, const char *name, uint64_t none, uint64_t most)
{
    const char *text = fmr_argument(a, name);
    const size_t n = text ? strspn(text, "0123456789") : 0;
    if (n == 0 || n > 18 || text[n])
        return none;
    const uint64_t v = strtoull(text, NULL, 10);
    return FM_MIN(v, most);
}

fm_status fmr_set_next(const fmr_ask *a, const char *verb, const char *query)
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

fm_json *fmr_sibling(fm_status *rc, fmr_ask *a, size_t i, bool blobs)
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
    const fm_status rc = verb ? fmr_set_next(a, verb, query) : FM_ENOMEM;
    fm_free(verb);
    return rc;
}

fm_status fmr_answer_tree(fmr_ask *a, const char *folder)
{
    listing l = {.folder = folder,
                 .len = strlen(folder),
                 .recursive = fmr_argument_true(a, "recursive"),
                 .from = fmr_argument_number(a, "cursor", 0, UINT64_MAX),
                 .list = fm_json_new_array(),
                 .most = (size_t)fmr_argument_number(a, "limit", PAGE_FILES, PAGE_FILES),
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

fm_status fmr_answer_paths(fmr_ask *a)
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
