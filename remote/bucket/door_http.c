/* door_http.c - a bucket behind any static file server, for reading. */
#include <string.h>

#include "remote/bucket/door.h"
#include "remote/http/http.h"
#include "store/base/mem.h"

#define WORKERS 4u

typedef struct web {
    fmr_door door;
    fmr_http *http;
    char *url;     /* without a slash at its end */
    char *ca_file; /* NULL: the system's certificates */
} web;

static web *of(fmr_door *d)
{
    return (web *)d;
}

static fm_status take(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

static fm_status get(fmr_door *d, const char *name, uint64_t from, uint64_t bytes, fm_buf *out,
                     char tag[FMR_TAG_MAX])
{
    const size_t before = out->len;
    fmr_answer a;
    fm_buf url;
    if (tag)
        tag[0] = '\0';
    fm_buf_init(&url, 0);
    fm_buf_printf(&url, "%s/%s", of(d)->url, name);
    fm_status rc = fm_buf_ok(&url);
    const fmr_request q = {.method = "GET",
                           .url = fm_buf_cstr(&url),
                           .from = from,
                           .bytes = bytes,
                           .max_bytes = bytes ? bytes : out->max,
                           .take = take,
                           .ctx = out};
    if (rc == FM_OK)
        rc = fmr_http_do(of(d)->http, &q, &a);
    if (rc == FM_OK) {
        rc = fmr_answer_check(&a, "bucket");
        fmr_answer_release(&a);
    }
    d->in += out->len - before;
    if (rc == FM_OK && bytes && out->len - before != bytes)
        rc = fm_fail(FM_ECORRUPT, "%s: is shorter than the bucket's list says", fm_buf_cstr(&url));
    fm_buf_release(&url);
    return rc;
}

static fm_status again(fmr_door *d, fmr_door **out)
{
    return fmr_door_http(out, of(d)->url, of(d)->ca_file);
}

static void close_web(fmr_door *d)
{
    fmr_http_close(of(d)->http);
    fm_free(d->shown);
    fm_free(of(d)->url);
    fm_free(of(d)->ca_file);
    fm_free(d);
}

static const fmr_door_ops web_ops = {.get = get, .again = again, .close = close_web};

fm_status fmr_door_http(fmr_door **out, const char *url, const char *ca_file)
{
    *out = NULL;
    fm_buf shown;
    web *w = fm_calloc(1, sizeof *w);
    if (!w)
        return FM_ENOMEM;
    w->door.ops = &web_ops;
    w->door.workers = WORKERS;
    size_t len = strlen(url);
    while (len > 0 && url[len - 1] == '/')
        len--;
    w->url = fm_strndup(url, len);
    fm_buf_init(&shown, 0);
    fmr_url_shown(&shown, url);
    w->door.shown = fm_buf_take(&shown);
    w->ca_file = ca_file ? fm_strdup(ca_file) : NULL;
    const fmr_http_opts o = {.ca_file = w->ca_file};
    const bool made = w->url && w->door.shown && (!ca_file || w->ca_file);
    fm_status rc = made ? fmr_http_open(&w->http, &o) : FM_ENOMEM;
    if (rc != FM_OK) {
        close_web(&w->door);
        return rc;
    }
    *out = &w->door;
    return FM_OK;
}
