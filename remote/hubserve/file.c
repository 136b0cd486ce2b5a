/* file.c - one file: its headers, a range of it, what the client has already. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote/http/http.h"
#include "remote/hubserve/web.h"

typedef struct part {
    uint64_t from, bytes;
    unsigned status; /* 200, 206, 416 */
} part;

/* *p: behind the digits. False: there are none, or too many. */
static bool number(const char **p, uint64_t *out)
{
    const size_t n = strspn(*p, "0123456789");
    if (n == 0 || n > 19)
        return false;
    *out = strtoull(*p, NULL, 10);
    *p += n;
    return true;
}

/* One range; what is none, and several at once, mean the whole (RFC 9110, 14.2). */
static part range_of(const char *text, uint64_t bytes)
{
    const part whole = {0, bytes, 200}, none = {0, 0, 416};
    uint64_t from = 0, last = UINT64_MAX;
    if (!text || strncmp(text, "bytes=", 6) != 0)
        return whole;
    text += 6;
    const bool tail = *text == '-';
    if (!tail && !number(&text, &from))
        return whole;
    if (*text++ != '-' || (tail && !number(&text, &last)))
        return whole;
    if (!tail && *text && !number(&text, &last))
        return whole;
    if (*text || (!tail && last < from))
        return whole;
    if (tail) {
        from = last < bytes ? bytes - last : 0;
        if (last == 0)
            return none;
        last = UINT64_MAX;
    }
    if (from >= bytes)
        return none;
    return (part){from, (last < bytes ? last + 1 : bytes) - from, 206};
}

/* Whether a list of entity tags holds this one, or "*". */
static bool tags_hold(const char *list, const char *etag)
{
    const size_t n = strlen(etag);
    for (const char *p = list; p && *p;) {
        p += strspn(p, " \t,");
        if (strncmp(p, "W/", 2) == 0)
            p += 2;
        const size_t len = strcspn(p, ", \t");
        if ((len == 1 && *p == '*') || (len == n && strncmp(p, etag, n) == 0))
            return true;
        p += len;
    }
    return false;
}

static const char *header(const fmr_ask *a, const char *name)
{
    return a->x->header(a->x->ctx, name);
}

static fm_status set(const fmr_ask *a, const char *name, const char *value)
{
    return a->x->set(a->x->ctx, name, value);
}

static fm_status set_number(const fmr_ask *a, const char *name, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return set(a, name, text);
}

/* A page that a model's folder holds is shown as text, or saved. */
static fm_status set_name(const fmr_ask *a, const char *name)
{
    fm_buf text;
    const char *last = strrchr(name, '/');
    fm_buf_init(&text, 0);
    fm_buf_str(&text, "attachment; filename*=UTF-8''");
    fmr_url_escape(&text, last ? last + 1 : name, false);
    fm_buf_str(&text, "; filename=\"");
    fmr_url_escape(&text, last ? last + 1 : name, false);
    fm_buf_str(&text, "\";");
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, set(a, "Content-Disposition", fm_buf_cstr(&text)));
    fm_buf_release(&text);
    return rc;
}

static fm_status set_headers(const fmr_ask *a, const fm_view_file *f, const fmr_sum *sum,
                             const char *etag)
{
    FM_TRY(set(a, "X-Repo-Commit", a->commit));
    FM_TRY(set(a, "ETag", etag));
    if (sum->sha256[0]) {
        FM_TRY(set(a, "X-Linked-Etag", etag));
        FM_TRY(set_number(a, "X-Linked-Size", f->bytes));
    }
    FM_TRY(set(a, "Accept-Ranges", "bytes"));
    FM_TRY(set(a, "Cache-Control", "no-cache"));
    FM_TRY(set(a, "X-Content-Type-Options", "nosniff"));
    FM_TRY(set(a, "Content-Type",
               sum->sha256[0] ? "application/octet-stream" : "text/plain; charset=utf-8"));
    return set_name(a, f->name);
}

static fm_status write_piece(void *ctx, const void *data, size_t len)
{
    const fm_hub_exchange *x = ctx;
    return x->write(x->ctx, data, len);
}

static fm_status send_part(const fmr_ask *a, size_t i, const part *p)
{
    char text[64];
    const uint64_t bytes = fm_view_at(a->open->view, i)->bytes;
    if (p->status == 206)
        (void)snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)p->from,
                       (unsigned long long)(p->from + p->bytes - 1), (unsigned long long)bytes);
    else
        (void)snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)bytes);
    if (p->status != 200)
        FM_TRY(set(a, "Content-Range", text));
    FM_TRY(a->x->begin(a->x->ctx, p->status, p->bytes));
    if (p->bytes == 0 || fmr_ask_is(a, "HEAD"))
        return FM_OK;
    fm_hub_exchange x = *a->x;
    return fm_view_read(a->open->view, i, p->from, p->bytes, write_piece, &x);
}

static fm_status answer_view(fmr_ask *a, size_t i)
{
    const fm_view_file *f = fm_view_at(a->open->view, i);
    char etag[70];
    fmr_sum sum;
    FM_TRY(fmr_view_sum(&a->web->views, a->open, i, &sum, a->x));
    (void)snprintf(etag, sizeof etag, "\"%s\"", sum.sha256[0] ? sum.sha256 : sum.blob);
    FM_TRY(set_headers(a, f, &sum, etag));
    if (tags_hold(header(a, "If-None-Match"), etag))
        return a->x->begin(a->x->ctx, 304, 0);
    const char *condition = header(a, "If-Range");
    const bool ranged = fmr_ask_is(a, "GET") && (!condition || strcmp(condition, etag) == 0);
    const part p = range_of(ranged ? header(a, "Range") : NULL, f->bytes);
    return send_part(a, i, &p);
}

static fm_status answer_pointer(fmr_ask *a, size_t i)
{
    fmr_sum sum;
    fm_buf text;
    FM_TRY(fmr_view_sum(&a->web->views, a->open, i, &sum, a->x));
    fm_buf_init(&text, 0);
    fmr_lfs_pointer(&text, sum.sha256, fm_view_at(a->open->view, i)->bytes);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, set(a, "X-Repo-Commit", a->commit));
    FM_THEN(rc, fmr_say_bytes(a, 200, "text/plain; charset=utf-8", fm_buf_span(&text)));
    fm_buf_release(&text);
    return rc;
}

fm_status fmr_answer_file(fmr_ask *a, const char *what, bool raw)
{
    const char *name;
    bool answered;
    FM_TRY(fmr_ask_model(a, &answered));
    if (!answered)
        FM_TRY(fmr_ask_view(a, what, &name, &answered));
    if (answered)
        return FM_OK;
    const size_t i = fm_view_find(a->open->view, name);
    if (i == SIZE_MAX) {
        (void)fm_fail(FM_ENOTFOUND, "there is no file '%.200s' in this revision", name);
        return fmr_say_missing(a, FMR_NO_ENTRY, fm_error_text());
    }
    return raw && fmr_view_is_lfs(fm_view_at(a->open->view, i)) ? answer_pointer(a, i)
                                                                : answer_view(a, i);
}
