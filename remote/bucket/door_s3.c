/* door_s3.c - a bucket in S3, or in what speaks its protocol.
 *
 * Every request is signed here (s3_sign.h) with the digest of its body, which S3 compares. A pack
 * of several parts is a multipart upload; one that a push left is found by the pack's name, and
 * its parts are not sent again. That compare-and-swap works there is tried out before a first use:
 * a server that takes no notice of If-Match would lose the push of one of two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "remote/bucket/door.h"
#include "remote/bucket/s3_keys.h"
#include "remote/bucket/s3_sign.h"
#include "remote/bucket/s3_xml.h"
#include "remote/http/http.h"
#include "store/base/mem.h"

#define WORKERS 4u
#define LIST_MAX ((uint64_t)8 << 20) /* bytes of one page of a list */
#define PAGES_MAX 100000u
#define PROBE_NAME "fmstore-probe"

typedef struct s3 {
    fmr_door door;
    fmr_http *http;
    fmr_s3_keys keys;
    char *bucket, *prefix; /* prefix: "" or "a/b/" */
    char *scheme_host;     /* "https://host:port" */
    const char *host;      /* within it */
    char *root;            /* the path of the bucket: "", "/bucket" */
    bool probed;
} s3;

static s3 *of(fmr_door *d)
{
    return (s3 *)d;
}

/* ==== one request ==== */

typedef struct ask {
    const char *method;
    const char *name;      /* of an object; NULL: of the bucket itself */
    const char *query;     /* escaped and sorted; NULL: none */
    const char *condition; /* one more header; NULL */
    fm_span body;
    uint64_t from, bytes, max;
    fm_buf *out; /* what came; NULL: the answer's own */
} ask;

static fm_status take(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

static void now_text(char out[17])
{
    const time_t now = time(NULL);
    struct tm tm;
    (void)gmtime_r(&now, &tm);
    if (strftime(out, 17, "%Y%m%dT%H%M%SZ", &tm) != 16)
        out[0] = '\0';
}

/* Header lines of a signed request. */
typedef struct lines {
    fm_buf authorization, digest, date, token;
} lines;

static void release_lines(lines *l)
{
    fm_buf_release(&l->authorization);
    fm_buf_release(&l->digest);
    fm_buf_release(&l->date);
    fm_buf_release(&l->token);
}

static fm_status sign(const s3 *s, const ask *a, const char *path, lines *l)
{
    char hex[FM_HEX_CHARS + 1], time_text[17];
    fm_digest sum;
    FM_TRY(fm_sha256(&sum, a->body.data ? a->body.data : (const uint8_t *)"", a->body.len));
    fm_digest_hex(&sum, hex);
    now_text(time_text);
    const fmr_sign q = {s->keys.access,
                        s->keys.secret,
                        s->keys.region,
                        "s3",
                        time_text,
                        a->method,
                        path,
                        a->query ? a->query : "",
                        hex,
                        {{"host", s->host},
                         {"x-amz-content-sha256", hex},
                         {"x-amz-date", time_text},
                         {s->keys.token ? "x-amz-security-token" : NULL, s->keys.token}}};
    fm_buf_str(&l->authorization, "Authorization: ");
    FM_TRY(fmr_sign_v4(&l->authorization, &q));
    fm_buf_printf(&l->digest, "x-amz-content-sha256: %s", hex);
    fm_buf_printf(&l->date, "x-amz-date: %s", time_text);
    if (s->keys.token)
        fm_buf_printf(&l->token, "x-amz-security-token: %s", s->keys.token);
    FM_TRY(fm_buf_ok(&l->digest));
    FM_TRY(fm_buf_ok(&l->date));
    return fm_buf_ok(&l->token);
}

static fm_status request(s3 *s, const ask *a, const char *path, const char *url, fmr_answer *out)
{
    lines l;
    fmr_request q = {.method = a->method,
                     .url = url,
                     .from = a->from,
                     .bytes = a->bytes,
                     .body = a->body,
                     .max_bytes = a->max,
                     .take = a->out ? take : NULL,
                     .ctx = a->out,
                     .no_redirect = true};
    size_t n = 0;
    fm_status rc = FM_OK;
    fm_buf_init(&l.authorization, 0);
    fm_buf_init(&l.digest, 0);
    fm_buf_init(&l.date, 0);
    fm_buf_init(&l.token, 0);
    if (s->keys.access) {
        rc = sign(s, a, path, &l);
        q.header[n++] = fm_buf_cstr(&l.authorization);
        q.header[n++] = fm_buf_cstr(&l.digest);
        q.header[n++] = fm_buf_cstr(&l.date);
        if (s->keys.token)
            q.header[n++] = fm_buf_cstr(&l.token);
    }
    if (a->condition)
        q.header[n++] = a->condition;
    FM_THEN(rc, fmr_http_do(s->http, &q, out));
    release_lines(&l);
    return rc;
}

/* FM_OK: an answer came, whatever its status. */
static fm_status call(s3 *s, const ask *a, fmr_answer *out)
{
    fm_buf path, url;
    memset(out, 0, sizeof *out);
    fm_buf_init(&path, 0);
    fm_buf_init(&url, 0);
    fm_buf_printf(&path, "%s/", s->root);
    if (a->name) {
        fmr_url_escape(&path, s->prefix, true);
        fmr_url_escape(&path, a->name, true);
    }
    fm_buf_printf(&url, "%s%s%s%s", s->scheme_host, fm_buf_cstr(&path), a->query ? "?" : "",
                  a->query ? a->query : "");
    fm_status rc = fm_buf_ok(&path);
    FM_THEN(rc, fm_buf_ok(&url));
    FM_THEN(rc, request(s, a, fm_buf_cstr(&path), fm_buf_cstr(&url), out));
    fm_buf_release(&url);
    fm_buf_release(&path);
    return rc;
}

static bool is_word(fm_span s)
{
    for (size_t i = 0; i < s.len; i++)
        if ((s.data[i] | 0x20) < 'a' || (s.data[i] | 0x20) > 'z')
            return false;
    return s.len > 0 && s.len < 60;
}

/* As fmr_answer_check, with S3's own word for what is wrong. */
static fm_status check(const s3 *s, const fmr_answer *a)
{
    fm_status rc = fmr_answer_check(a, "S3");
    if (rc == FM_OK)
        return FM_OK;
    const fm_span code = fmr_xml_first(fm_buf_span(&a->body), "Code");
    if (code.data && is_word(code))
        rc = fm_fail(rc, "%s; S3 says '%.*s'", fm_error_text(), (int)code.len,
                     (const char *)code.data);
    if (rc == FM_EREFUSED && !s->keys.access)
        rc = fm_fail(rc,
                     "%s; there are no credentials: set AWS_ACCESS_KEY_ID and "
                     "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                     fm_error_text());
    return rc;
}

/* One that must succeed; the answer is released after a failure. */
static fm_status done(s3 *s, const ask *a, fmr_answer *out)
{
    FM_TRY(call(s, a, out));
    fm_status rc = check(s, out);
    if (rc != FM_OK)
        fmr_answer_release(out);
    return rc;
}

static fm_status tag_of(const fmr_answer *a, char tag[FMR_TAG_MAX])
{
    const fm_span text = fmr_answer_header(a, "ETag");
    if (!text.data || text.len == 0 || text.len >= FMR_TAG_MAX)
        return fm_fail(FM_ECORRUPT, "S3: sends no ETag that can be one");
    memcpy(tag, text.data, text.len);
    tag[text.len] = '\0';
    return FM_OK;
}

/* ==== objects ==== */

static fm_status get(fmr_door *d, const char *name, uint64_t from, uint64_t bytes, fm_buf *out,
                     char tag[FMR_TAG_MAX])
{
    const size_t before = out->len;
    const ask q = {.method = "GET",
                   .name = name,
                   .from = from,
                   .bytes = bytes,
                   .max = bytes ? bytes : out->max,
                   .out = out};
    fmr_answer a;
    fm_status rc = done(of(d), &q, &a);
    d->in += out->len - before;
    FM_TRY(rc);
    if (tag)
        rc = tag_of(&a, tag);
    fmr_answer_release(&a);
    if (rc == FM_OK && bytes && out->len - before != bytes)
        rc = fm_fail(FM_ECORRUPT, "%s: %s is shorter than the bucket's list says", d->shown, name);
    return rc;
}

static fm_status put_if(s3 *s, const char *name, fm_span body, const char *condition,
                        unsigned *status)
{
    const ask q = {.method = "PUT", .name = name, .condition = condition, .body = body};
    fmr_answer a;
    FM_TRY(call(s, &q, &a));
    s->door.out += body.len;
    *status = a.status;
    fm_status rc = check(s, &a);
    fmr_answer_release(&a);
    return rc;
}

static bool is_refusal(unsigned status)
{
    return status == 409 || status == 412;
}

/* Writes that must be refused: over an object that is there, and over one of another tag. */
static fm_status probe(s3 *s)
{
    static const char *const condition[] = {"If-None-Match: *", "If-None-Match: *",
                                            "If-Match: \"00000000000000000000000000000000\""};
    const fm_span body = fm_span_str("fmstore tries out whether writes can be conditional\n");
    for (size_t i = 0; i < FM_ARRAY_LEN(condition); i++) {
        unsigned status = 0;
        fm_status rc = put_if(s, PROBE_NAME, body, condition[i], &status);
        if (rc != FM_OK && !is_refusal(status))
            return rc;
        if (rc == FM_OK && i > 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: the server takes no notice of '%s', so of two pushes at once one "
                           "would be lost; use one that has conditional writes",
                           s->door.shown, condition[i]);
        if (rc != FM_OK)
            fm_error_clear();
    }
    s->probed = true;
    return FM_OK;
}

static fm_status put(fmr_door *d, const char *name, fm_span body, const char *old)
{
    char condition[FMR_TAG_MAX + 16];
    unsigned status = 0;
    s3 *s = of(d);
    if (!old)
        return put_if(s, name, body, NULL, &status);
    if (!s->probed)
        FM_TRY(probe(s));
    if (*old)
        (void)snprintf(condition, sizeof condition, "If-Match: %s", old);
    else
        (void)snprintf(condition, sizeof condition, "If-None-Match: *");
    fm_status rc = put_if(s, name, body, condition, &status);
    return rc != FM_OK && is_refusal(status) ? FM_ECONFLICT : rc;
}

/* ==== lists ==== */

/* One page's objects. */
static fm_status tell_page(const s3 *s, fm_span text, fmr_listed_fn fn, void *ctx)
{
    fm_buf key;
    fm_status rc = FM_OK;
    fm_buf_init(&key, 8192);
    while (rc == FM_OK) {
        const fm_span item = fmr_xml_next(&text, "Contents");
        uint64_t bytes;
        if (!item.data)
            break;
        fm_buf_clear(&key);
        fmr_xml_text(&key, fmr_xml_first(item, "Key"));
        if (!fmr_xml_number(fmr_xml_first(item, "Size"), &bytes))
            rc = fm_fail(FM_ECORRUPT, "%s: a list says no size", s->door.shown);
        const size_t skip = strlen(s->prefix);
        FM_THEN(rc, fm_buf_ok(&key));
        if (rc == FM_OK && key.len > skip && memcmp(key.data, s->prefix, skip) == 0)
            rc = fn(ctx, fm_buf_cstr(&key) + skip, bytes);
    }
    fm_buf_release(&key);
    return rc;
}

/* Escapes what stands in an element, for a query. */
static void put_query(fm_buf *out, const char *key, fm_span element)
{
    fm_buf text;
    fm_buf_init(&text, 8192);
    fmr_xml_text(&text, element);
    fm_buf_printf(out, "%s=", key);
    fmr_url_escape(out, fm_buf_cstr(&text), false);
    fm_buf_release(&text);
}

static fm_status list_page(s3 *s, const char *folder, fm_buf *token, fmr_listed_fn fn, void *ctx)
{
    fm_buf query;
    fmr_answer a;
    fm_buf_init(&query, 0);
    if (token->len)
        fm_buf_printf(&query, "%s&", fm_buf_cstr(token));
    fm_buf_str(&query, "list-type=2&prefix=");
    fmr_url_escape(&query, s->prefix, false);
    fmr_url_escape(&query, folder, false);
    fm_buf_str(&query, "%2F");
    fm_status rc = fm_buf_ok(&query);
    const ask q = {.method = "GET", .query = fm_buf_cstr(&query), .max = LIST_MAX};
    FM_THEN(rc, done(s, &q, &a));
    fm_buf_clear(token);
    if (rc == FM_OK) {
        s->door.in += a.body.len;
        rc = tell_page(s, fm_buf_span(&a.body), fn, ctx);
        const fm_span next = fmr_xml_first(fm_buf_span(&a.body), "NextContinuationToken");
        if (next.data)
            put_query(token, "continuation-token", next);
        FM_THEN(rc, fm_buf_ok(token));
        fmr_answer_release(&a);
    }
    fm_buf_release(&query);
    return rc;
}

static fm_status list(fmr_door *d, const char *folder, fmr_listed_fn fn, void *ctx)
{
    fm_buf token;
    fm_status rc = FM_OK;
    fm_buf_init(&token, 65536);
    for (unsigned n = 0; rc == FM_OK && (n == 0 || token.len); n++) {
        if (n == PAGES_MAX)
            rc = fm_fail(FM_ELIMIT, "%s: its list has no end", d->shown);
        FM_THEN(rc, list_page(of(d), folder, &token, fn, ctx));
    }
    fm_buf_release(&token);
    return rc;
}

/* ==== uploads in parts ==== */

static bool is_key(const s3 *s, fm_span element, const char *name)
{
    fm_buf key;
    fm_buf_init(&key, 8192);
    fmr_xml_text(&key, element);
    const size_t skip = strlen(s->prefix);
    const bool yes = key.len == skip + strlen(name) && memcmp(key.data, s->prefix, skip) == 0 &&
                     memcmp(key.data + skip, name, strlen(name)) == 0;
    fm_buf_release(&key);
    return yes;
}

static fm_status take_id(fm_span element, char **out)
{
    fm_buf id;
    fm_buf_init(&id, 4096);
    fmr_xml_text(&id, element);
    if (id.len == 0)
        fm_buf_release(&id);
    else
        *out = fm_buf_take(&id);
    return *out ? FM_OK : fm_fail(FM_ECORRUPT, "S3: an upload has no name");
}

/* An upload of this object that was begun before; u->id stays NULL where there is none. */
static fm_status find_upload(s3 *s, fmr_upload *u)
{
    fm_buf query;
    fmr_answer a;
    fm_buf_init(&query, 0);
    fm_buf_str(&query, "prefix=");
    fmr_url_escape(&query, s->prefix, false);
    fmr_url_escape(&query, u->name, false);
    fm_buf_str(&query, "&uploads=");
    fm_status rc = fm_buf_ok(&query);
    const ask q = {.method = "GET", .query = fm_buf_cstr(&query), .max = LIST_MAX};
    FM_THEN(rc, done(s, &q, &a));
    fm_buf_release(&query);
    FM_TRY(rc);
    fm_span text = fm_buf_span(&a.body);
    while (rc == FM_OK && !u->id) {
        const fm_span item = fmr_xml_next(&text, "Upload");
        if (!item.data)
            break;
        if (is_key(s, fmr_xml_first(item, "Key"), u->name))
            rc = take_id(fmr_xml_first(item, "UploadId"), &u->id);
    }
    fmr_answer_release(&a);
    return rc;
}

static void note_part(fmr_upload *u, fm_span item)
{
    uint64_t number, bytes;
    fm_buf tag;
    if (!fmr_xml_number(fmr_xml_first(item, "PartNumber"), &number) || number < 1 ||
        number > u->count || !fmr_xml_number(fmr_xml_first(item, "Size"), &bytes) ||
        bytes != fmr_upload_part_bytes(u, (size_t)number - 1))
        return;
    fm_buf_init(&tag, FMR_TAG_MAX - 1);
    fmr_xml_text(&tag, fmr_xml_first(item, "ETag"));
    if (tag.len > 0 && fm_buf_ok(&tag) == FM_OK) {
        memcpy(u->part[number - 1].tag, tag.data, tag.len + 1);
        u->part[number - 1].there = true;
    }
    fm_buf_release(&tag);
}

/* One page of the parts that are there; *next: where the next begins, 0: it was the last one. */
static fm_status find_parts(s3 *s, fmr_upload *u, uint64_t from, uint64_t *next)
{
    fm_buf query;
    fmr_answer a;
    *next = 0;
    fm_buf_init(&query, 0);
    fm_buf_printf(&query, "part-number-marker=%llu&uploadId=", (unsigned long long)from);
    fmr_url_escape(&query, u->id, false);
    fm_status rc = fm_buf_ok(&query);
    const ask q = {.method = "GET", .name = u->name, .query = fm_buf_cstr(&query), .max = LIST_MAX};
    FM_THEN(rc, done(s, &q, &a));
    fm_buf_release(&query);
    FM_TRY(rc);
    const fm_span all = fm_buf_span(&a.body);
    fm_span text = all;
    for (;;) {
        const fm_span item = fmr_xml_next(&text, "Part");
        if (!item.data)
            break;
        note_part(u, item);
    }
    const bool more = fm_span_eq_str(fmr_xml_first(all, "IsTruncated"), "true");
    if (more &&
        (!fmr_xml_number(fmr_xml_first(all, "NextPartNumberMarker"), next) || *next <= from))
        rc = fm_fail(FM_ECORRUPT, "%s: a list of parts does not say how it goes on", s->door.shown);
    fmr_answer_release(&a);
    return rc;
}

static fm_status begin_new(s3 *s, fmr_upload *u)
{
    const ask q = {.method = "POST", .name = u->name, .query = "uploads="};
    fmr_answer a;
    FM_TRY(done(s, &q, &a));
    fm_status rc = take_id(fmr_xml_first(fm_buf_span(&a.body), "UploadId"), &u->id);
    fmr_answer_release(&a);
    return rc;
}

static fm_status begin(fmr_door *d, fmr_upload *u)
{
    s3 *s = of(d);
    uint64_t from = 0;
    if (u->count == 1) /* one PUT */
        return FM_OK;
    FM_TRY(find_upload(s, u));
    if (!u->id)
        return begin_new(s, u);
    do {
        fm_status rc = find_parts(s, u, from, &from);
        if (rc == FM_ENOTFOUND) { /* it was ended in between */
            fm_error_clear();
            fm_free(u->id);
            u->id = NULL;
            memset(u->part, 0, u->count * sizeof *u->part);
            return begin_new(s, u);
        }
        FM_TRY(rc);
    } while (from);
    return FM_OK;
}

static fm_status part(fmr_door *d, fmr_upload *u, size_t i, fm_span bytes)
{
    s3 *s = of(d);
    fm_buf query;
    fmr_answer a;
    unsigned status;
    if (u->count == 1)
        return put_if(s, u->name, bytes, NULL, &status);
    fm_buf_init(&query, 0);
    fm_buf_printf(&query, "partNumber=%zu&uploadId=", i + 1);
    fmr_url_escape(&query, u->id, false);
    fm_status rc = fm_buf_ok(&query);
    const ask q = {.method = "PUT", .name = u->name, .query = fm_buf_cstr(&query), .body = bytes};
    FM_THEN(rc, done(s, &q, &a));
    fm_buf_release(&query);
    FM_TRY(rc);
    d->out += bytes.len;
    rc = tag_of(&a, u->part[i].tag);
    fmr_answer_release(&a);
    u->part[i].there = rc == FM_OK;
    return rc;
}

static fm_status has_size(s3 *s, const char *name, uint64_t bytes, bool *yes)
{
    const ask q = {.method = "HEAD", .name = name};
    fmr_answer a;
    uint64_t size;
    *yes = false;
    FM_TRY(done(s, &q, &a));
    *yes = fmr_xml_number(fmr_answer_header(&a, "Content-Length"), &size) && size == bytes;
    fmr_answer_release(&a);
    return FM_OK;
}

static fm_status end_upload(s3 *s, const fmr_upload *u)
{
    fm_buf body, query;
    fmr_answer a;
    fm_buf_init(&body, 0);
    fm_buf_init(&query, 0);
    fm_buf_str(&body, "<CompleteMultipartUpload>");
    for (size_t i = 0; i < u->count; i++)
        fm_buf_printf(&body, "<Part><PartNumber>%zu</PartNumber><ETag>%s</ETag></Part>", i + 1,
                      u->part[i].tag);
    fm_buf_str(&body, "</CompleteMultipartUpload>");
    fm_buf_str(&query, "uploadId=");
    fmr_url_escape(&query, u->id, false);
    fm_status rc = fm_buf_ok(&body);
    FM_THEN(rc, fm_buf_ok(&query));
    const ask q = {.method = "POST",
                   .name = u->name,
                   .query = fm_buf_cstr(&query),
                   .body = fm_buf_span(&body)};
    FM_THEN(rc, done(s, &q, &a));
    if (rc == FM_OK) { /* S3 may fail after it has said 200 */
        if (fmr_xml_first(fm_buf_span(&a.body), "Code").data)
            rc = fm_fail(FM_EIO, "%s: S3 could not join the parts of %s; push again", s->door.shown,
                         u->name);
        fmr_answer_release(&a);
    }
    fm_buf_release(&query);
    fm_buf_release(&body);
    return rc;
}

/* Another push may have ended the same upload: what counts is that the object is there. */
static fm_status finish(fmr_door *d, fmr_upload *u)
{
    s3 *s = of(d);
    bool there = false;
    fm_error_state text = {""};
    fm_status rc = u->count == 1 ? FM_OK : end_upload(s, u);
    if (rc != FM_OK)
        fm_error_save(&text);
    fm_status seen = has_size(s, u->name, u->bytes, &there);
    if (seen == FM_OK && there)
        return FM_OK;
    if (rc != FM_OK)
        fm_error_restore(&text);
    else
        rc = seen != FM_OK
                 ? seen
                 : fm_fail(FM_EIO, "%s: %s was sent whole and is there in part", d->shown, u->name);
    return rc;
}

/* ==== opening ==== */

static fm_status again(fmr_door *d, fmr_door **out)
{
    return fmr_door_s3(out, of(d)->bucket, of(d)->prefix);
}

static void close_s3(fmr_door *d)
{
    s3 *s = of(d);
    fmr_http_close(s->http);
    fmr_s3_keys_release(&s->keys);
    fm_free(s->bucket);
    fm_free(s->prefix);
    fm_free(s->scheme_host);
    fm_free(s->root);
    fm_free(d->shown);
    fm_free(s);
}

static const fmr_door_ops s3_ops = {.get = get,
                                    .put = put,
                                    .list = list,
                                    .begin = begin,
                                    .part = part,
                                    .finish = finish,
                                    .again = again,
                                    .close = close_s3};

static fm_status check_bucket(const char *bucket)
{
    const size_t len = strlen(bucket);
    if (len < 3 || len > 255 || bucket[0] == '.' ||
        strspn(bucket, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_") != len)
        return fm_fail(FM_EINVAL, "'%.80s' is no name of a bucket", bucket);
    return FM_OK;
}

/* libcurl would shorten a path with such parts, and the signature would be another's. */
static fm_status check_prefix(const char *prefix)
{
    while (*prefix) {
        const size_t len = strcspn(prefix, "/");
        if (len == 0 || (len == 1 && prefix[0] == '.') ||
            (len == 2 && memcmp(prefix, "..", 2) == 0))
            return fm_fail(FM_EINVAL, "a prefix in a bucket has no empty part, no '.' and no '..'");
        prefix += len + (prefix[len] == '/');
    }
    return FM_OK;
}

/* Path style where an endpoint is given, and for a bucket that is no part of a host's name. */
static fm_status set_place(s3 *s)
{
    const char *at = s->keys.endpoint;
    if (!at) {
        const bool plain = !strpbrk(s->bucket, "._") &&
                           strcspn(s->bucket, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == strlen(s->bucket);
        s->scheme_host =
            plain ? fm_asprintf("https://%s.s3.%s.amazonaws.com", s->bucket, s->keys.region)
                  : fm_asprintf("https://s3.%s.amazonaws.com", s->keys.region);
        s->root = plain ? fm_strdup("") : fm_asprintf("/%s", s->bucket);
    } else {
        const char *host = strstr(at, "://");
        if (!host || (strncmp(at, "http://", 7) != 0 && strncmp(at, "https://", 8) != 0) ||
            strpbrk(at, "?#@ "))
            return fm_fail(FM_EINVAL, "S3: the endpoint is no http:// or https:// URL of a server");
        const size_t len = (size_t)(host + 3 - at) + strcspn(host + 3, "/");
        size_t end = strlen(at);
        while (end > len && at[end - 1] == '/')
            end--;
        s->scheme_host = fm_strndup(at, len);
        s->root = fm_asprintf("%.*s/%s", (int)(end - len), at + len, s->bucket);
    }
    if (!s->scheme_host || !s->root)
        return FM_ENOMEM;
    char *colon = strrchr(s->scheme_host, ':'); /* libcurl names no port that is the scheme's */
    if (strcmp(colon, strncmp(s->scheme_host, "https", 5) == 0 ? ":443" : ":80") == 0)
        *colon = '\0';
    s->host = strstr(s->scheme_host, "://") + 3;
    return FM_OK;
}

static fm_status open_s3(s3 *s, const char *bucket, const char *prefix)
{
    size_t len = strlen(prefix);
    while (len > 0 && prefix[len - 1] == '/')
        len--;
    FM_TRY(check_bucket(bucket));
    s->bucket = fm_strdup(bucket);
    s->prefix = len ? fm_asprintf("%.*s/", (int)len, prefix) : fm_strdup("");
    s->door.shown = fm_asprintf("s3://%s/%.*s", bucket, (int)len, prefix);
    if (!s->bucket || !s->prefix || !s->door.shown)
        return FM_ENOMEM;
    FM_TRY(check_prefix(s->prefix));
    FM_TRY(fmr_s3_keys_read(&s->keys));
    FM_TRY(set_place(s));
    const char *ca = getenv("AWS_CA_BUNDLE"); /* as AWS's own clients have it */
    const fmr_http_opts o = {.ca_file = ca && *ca ? ca : NULL};
    return fmr_http_open(&s->http, &o);
}

fm_status fmr_door_s3(fmr_door **out, const char *bucket, const char *prefix)
{
    *out = NULL;
    s3 *s = fm_calloc(1, sizeof *s);
    if (!s)
        return FM_ENOMEM;
    s->door.ops = &s3_ops;
    s->door.workers = WORKERS;
    fm_status rc = open_s3(s, bucket, prefix);
    if (rc != FM_OK) {
        fm_error_state text;
        fm_error_save(&text);
        close_s3(&s->door);
        fm_error_restore(&text);
        return rc;
    }
    *out = &s->door;
    return FM_OK;
}
