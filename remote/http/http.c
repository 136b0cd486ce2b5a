/* http.c - a request: its tries, the redirects of a try, and what is checked while bytes arrive.
 *
 * Redirects are followed here and not by libcurl, so that each one is looked at (target.c): where
 * it leads, and whether the credentials go along. The transfer itself runs by curl's multi
 * interface with short waits, because only then the process hears of a request to stop in the
 * midst of a silent one. */
#include "remote/http/http.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "remote/http/curl.h"
#include "remote/http/target.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define TRIES 5u
#define STALL_SECONDS 60u
#define CONNECT_SECONDS 20u
#define MAX_REDIRECTS 10u
#define MAX_BODY_BYTES ((uint64_t)64 << 20) /* where the request says nothing */
#define MAX_ERROR_BYTES ((size_t)64 << 10)
#define MAX_HEADER_BYTES ((size_t)256 << 10)
#define FIRST_PAUSE_S 0.25
#define MAX_PAUSE_S 60.0 /* also where the server asks for a longer one */
#define POLL_MS 100
#define BUFFER_BYTES (512L << 10)

struct fmr_http {
    CURL *easy;
    CURLM *multi;
    char *ca_file;
    unsigned tries, stall_seconds, connect_seconds;
};

/* One request, and the state of its current hop. */
typedef struct transfer {
    fmr_http *h;
    const fmr_request *q;
    fmr_answer *out;
    char *first;           /* the request's URL without user and password */
    char *user, *password; /* those of the request or of its URL; NULL */
    char *url;             /* of this hop */
    bool home;             /* this hop's host is the request's own: it gets the credentials */
    bool began, took, sent, cut;
    bool passing;     /* the failure may pass */
    fm_status failed; /* of a callback; the text is the thread's */
    uint64_t got;     /* bytes of this hop's body */
    uint64_t expected;
    size_t body_at; /* of fmr_request.body: what is sent */
    char cause[CURL_ERROR_SIZE];
} transfer;

/* ==== the session ==== */

static char *certificates(const fmr_http_opts *o)
{
    const char *file = o && o->ca_file ? o->ca_file : getenv("CURL_CA_BUNDLE");
    if (!file || !*file)
        file = getenv("SSL_CERT_FILE"); /* both as the program curl has it */
    return file && *file ? fm_strdup(file) : NULL;
}

fm_status fmr_http_open(fmr_http **out, const fmr_http_opts *opts)
{
    *out = NULL;
    FM_TRY(fmr_curl_open());
    fmr_http *h = fm_calloc(1, sizeof *h);
    if (!h)
        return FM_ENOMEM;
    h->tries = opts && opts->tries ? opts->tries : TRIES;
    h->stall_seconds = opts && opts->stall_seconds ? opts->stall_seconds : STALL_SECONDS;
    h->connect_seconds = opts && opts->connect_seconds ? opts->connect_seconds : CONNECT_SECONDS;
    h->ca_file = certificates(opts);
    h->easy = curl_easy_init();
    h->multi = curl_multi_init();
    if (!h->easy || !h->multi || (opts && opts->ca_file && !h->ca_file)) {
        fmr_http_close(h);
        return fm_fail(FM_ENOMEM, "http: out of memory");
    }
    *out = h;
    return FM_OK;
}

void fmr_http_close(fmr_http *h)
{
    if (!h)
        return;
    if (h->easy)
        curl_easy_cleanup(h->easy);
    if (h->multi)
        (void)curl_multi_cleanup(h->multi);
    fm_free(h->ca_file);
    fm_free(h);
}

/* ==== errors ==== */

static fm_status fail(const transfer *t, fm_status rc, const char *fmt, ...) FM_PRINTF(3, 4);
static fm_status fail(const transfer *t, fm_status rc, const char *fmt, ...)
{
    char why[512];
    va_list args;
    fm_buf url;

    va_start(args, fmt);
    (void)vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    fm_buf_init(&url, 0);
    fmr_url_shown(&url, t->url ? t->url : t->q->url);
    (void)fm_fail(rc, "%s: %s", fm_buf_cstr(&url), why);
    fm_buf_release(&url);
    return rc;
}

static fm_status of_curl(CURLcode code, const char *option)
{
    if (code == CURLE_OK)
        return FM_OK;
    if (code == CURLE_OUT_OF_MEMORY)
        return fm_fail(FM_ENOMEM, "http: out of memory");
    return fm_fail(FM_EUNSUPPORTED, "http: this libcurl does not know %s; install 7.88 or newer",
                   option);
}

/* Failures of the network and of a server that is being restarted. */
static bool may_pass(CURLcode code)
{
    static const CURLcode known[] = {
        CURLE_COULDNT_RESOLVE_PROXY, CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT,
        CURLE_PARTIAL_FILE,          CURLE_OPERATION_TIMEDOUT,   CURLE_SSL_CONNECT_ERROR,
        CURLE_GOT_NOTHING,           CURLE_SEND_ERROR,           CURLE_RECV_ERROR,
        CURLE_SEND_FAIL_REWIND,
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (known[i] == code)
            return true;
    return false;
}

static fm_status of_transfer(transfer *t, CURLcode code)
{
    const char *cause = t->cause[0] ? t->cause : curl_easy_strerror(code);

    t->passing = may_pass(code);
    if (code == CURLE_OUT_OF_MEMORY)
        return fm_fail(FM_ENOMEM, "http: out of memory");
    if (code == CURLE_PARTIAL_FILE)
        return fail(t, FM_ECORRUPT,
                    "the connection ended after %" PRIu64
                    " bytes, before the end that the server announced",
                    t->got);
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return fail(t, FM_EIO, "its certificate is not trusted: %s", cause);
    return fail(t, FM_EIO, "%s", cause);
}

/* ==== the answer, while it arrives ==== */

static unsigned status_of(const transfer *t)
{
    long status = 0;
    (void)curl_easy_getinfo(t->h->easy, CURLINFO_RESPONSE_CODE, &status);
    return status > 0 && status < 1000 ? (unsigned)status : 0;
}

static bool has_range(const fmr_request *q)
{
    return q->bytes != 0;
}

/* A run of digits; false: none, or beyond 64 bits. */
static bool number(fm_span *s, uint64_t *out)
{
    size_t i = 0;
    *out = 0;
    for (; i < s->len && s->data[i] >= '0' && s->data[i] <= '9'; i++)
        if (__builtin_mul_overflow(*out, 10u, out) ||
            __builtin_add_overflow(*out, (uint64_t)(s->data[i] - '0'), out))
            return false;
    s->data += i;
    s->len -= i;
    return i > 0;
}

static bool skip(fm_span *s, const char *text)
{
    const size_t len = strlen(text);
    if (s->len < len || strncasecmp((const char *)s->data, text, len) != 0)
        return false;
    s->data += len;
    s->len -= len;
    return true;
}

/* "bytes 5-9/20", or "/" and '*' where the whole length is not known (FMR_HTTP_ANY). */
static bool read_range(fm_span s, uint64_t *from, uint64_t *to, uint64_t *total)
{
    *total = FMR_HTTP_ANY;
    if (!s.data || !skip(&s, "bytes ") || !number(&s, from) || !skip(&s, "-") || !number(&s, to) ||
        !skip(&s, "/"))
        return false;
    if (!skip(&s, "*") && (!number(&s, total) || *to >= *total))
        return false;
    return s.len == 0 && *from <= *to && *to < FMR_HTTP_ANY;
}

/* A part came: it must be the one that was asked for, or what the file has of it. */
static fm_status check_part(transfer *t, uint64_t announced)
{
    const fmr_request *q = t->q;
    uint64_t from, to, total;
    if (!has_range(q))
        return fail(t, FM_ECORRUPT, "sent a part where the whole was asked for");
    if (!read_range(fmr_answer_header(t->out, "Content-Range"), &from, &to, &total))
        return fail(t, FM_ECORRUPT, "sent a part and does not say which");
    const uint64_t wanted = q->bytes > FMR_HTTP_ANY - q->from ? FMR_HTTP_ANY : q->from + q->bytes;
    const bool to_the_end = to + 1 == total || (q->bytes == FMR_HTTP_ANY && total == FMR_HTTP_ANY);
    if (from != q->from || to >= wanted || (to + 1 < wanted && !to_the_end))
        return fail(t, FM_ECORRUPT,
                    "sent bytes %" PRIu64 " to %" PRIu64 " where those from %" PRIu64
                    " on were asked for",
                    from, to, q->from);
    t->expected = to - from + 1;
    if (announced != FMR_HTTP_ANY && announced != t->expected)
        return fail(t, FM_ECORRUPT, "announced %" PRIu64 " bytes for a part of %" PRIu64, announced,
                    t->expected);
    return FM_OK;
}

/* The whole came; for a range that is fine where the range is the whole. */
static fm_status check_whole(transfer *t, uint64_t announced)
{
    const fmr_request *q = t->q;
    t->expected = announced;
    if (!has_range(q) || (q->from == 0 && (q->bytes == FMR_HTTP_ANY ||
                                           (announced != FMR_HTTP_ANY && announced <= q->bytes))))
        return FM_OK;
    return fail(t, FM_ECORRUPT,
                "sent the whole where bytes from %" PRIu64
                " on were asked for: it does not give parts",
                q->from);
}

static uint64_t announced_bytes(const transfer *t)
{
    fm_span text = fmr_answer_header(t->out, "Content-Length");
    uint64_t bytes;
    return text.data && number(&text, &bytes) && text.len == 0 ? bytes : FMR_HTTP_ANY;
}

static uint64_t max_bytes(const transfer *t)
{
    return t->q->max_bytes ? t->q->max_bytes : MAX_BODY_BYTES;
}

/* All headers are there; called once a hop, before its body or where it has none. */
static fm_status begin_body(transfer *t)
{
    t->began = true;
    t->out->status = status_of(t);
    t->expected = FMR_HTTP_ANY;
    if (t->out->status >= 300 || strcmp(t->q->method, "HEAD") == 0)
        return FM_OK;
    const uint64_t announced = announced_bytes(t);
    if (t->out->status == 206)
        FM_TRY(check_part(t, announced));
    else if (t->out->status == 200)
        FM_TRY(check_whole(t, announced));
    if (t->expected != FMR_HTTP_ANY && t->expected > max_bytes(t))
        return fail(t, FM_ELIMIT, "announces %" PRIu64 " bytes; at most %" PRIu64 " are taken",
                    t->expected, max_bytes(t));
    return FM_OK;
}

static fm_status keep(transfer *t, const void *data, size_t len)
{
    fm_buf_append(&t->out->body, data, len);
    return fm_buf_ok(&t->out->body);
}

static fm_status take_body(transfer *t, const void *data, size_t len)
{
    if (!t->began)
        FM_TRY(begin_body(t));
    t->got += len;
    if (t->out->status >= 300) {
        const size_t room = MAX_ERROR_BYTES - t->out->body.len;
        t->cut = len > room;
        return keep(t, data, FM_MIN(len, room));
    }
    if (t->got > t->expected)
        return fail(t, FM_ECORRUPT, "sends more than the %" PRIu64 " bytes that it announced",
                    t->expected);
    if (t->got > max_bytes(t))
        return fail(t, FM_ELIMIT, "sends more than %" PRIu64 " bytes, the most that is taken",
                    max_bytes(t));
    if (!t->q->take || (t->out->status != 200 && t->out->status != 206))
        return keep(t, data, len);
    t->took = true;
    return t->q->take(t->q->ctx, data, len);
}

static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
    transfer *t = ctx;
    if (t->failed == FM_OK)
        t->failed = take_body(t, data, size * count);
    return t->failed == FM_OK && !t->cut ? size * count : CURL_WRITEFUNC_ERROR;
}

static size_t on_header(char *data, size_t size, size_t count, void *ctx)
{
    transfer *t = ctx;
    const size_t len = size * count;
    fm_buf *to = &t->out->headers;
    if (t->began)
        return len; /* a trailer */
    if (len >= 5 && memcmp(data, "HTTP/", 5) == 0)
        fm_buf_clear(to); /* the one before was a "100 Continue" or a proxy's */
    fm_buf_append(to, data, len);
    if (t->failed == FM_OK)
        t->failed = fm_buf_ok(to);
    if (t->failed == FM_ELIMIT)
        t->failed = fail(t, FM_ELIMIT, "sends more than %zu bytes of headers", MAX_HEADER_BYTES);
    return t->failed == FM_OK ? len : 0;
}

static size_t on_send(char *dst, size_t size, size_t count, void *ctx)
{
    transfer *t = ctx;
    const fmr_request *q = t->q;
    size_t got = 0;
    if (q->send) {
        t->sent = true;
        if (t->failed == FM_OK)
            t->failed = q->send(q->ctx, dst, size * count, &got);
        return t->failed == FM_OK ? got : CURL_READFUNC_ABORT;
    }
    got = FM_MIN(size * count, q->body.len - t->body_at);
    if (got > 0)
        memcpy(dst, q->body.data + t->body_at, got);
    t->body_at += got;
    return got;
}

/* libcurl sends a body anew where a kept connection turns out to be closed. */
static int on_seek(void *ctx, curl_off_t offset, int origin)
{
    transfer *t = ctx;
    if (t->q->send || origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->q->body.len)
        return CURL_SEEKFUNC_FAIL;
    t->body_at = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ==== one hop ==== */

#define SET(option, value)                                                                         \
    FM_THEN(rc, of_curl(curl_easy_setopt(e, CURLOPT_##option, value), "CURLOPT_" #option))

static bool is_read(const fmr_request *q)
{
    return strcmp(q->method, "GET") == 0 || strcmp(q->method, "HEAD") == 0;
}

static fm_status set_method(transfer *t)
{
    CURL *e = t->h->easy;
    const fmr_request *q = t->q;
    fm_status rc = FM_OK;
    if (strcmp(q->method, "HEAD") == 0) {
        SET(NOBODY, 1L);
    } else if (is_read(q) || (strcmp(q->method, "DELETE") == 0 && !q->send && q->body.len == 0)) {
        SET(HTTPGET, 1L);
    } else {
        const uint64_t bytes = q->send ? q->send_bytes : q->body.len;
        SET(UPLOAD, 1L);
        SET(INFILESIZE_LARGE, bytes > INT64_MAX ? (curl_off_t)-1 : (curl_off_t)bytes);
    }
    SET(CUSTOMREQUEST, strcmp(q->method, "HEAD") == 0 ? NULL : q->method);
    if (has_range(q)) {
        char range[48];
        const uint64_t last = q->from + q->bytes - 1;
        if (q->bytes == FMR_HTTP_ANY)
            snprintf(range, sizeof range, "%" PRIu64 "-", q->from);
        else
            snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, q->from, last);
        SET(RANGE, range);
    }
    return rc;
}

/* Headers that a host may see which the request did not name. */
static bool is_harmless(const char *header)
{
    static const char *const known[] = {"Accept:", "Content-Type:", "If-Range:", "User-Agent:"};
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strncasecmp(header, known[i], strlen(known[i])) == 0)
            return true;
    return false;
}

static fm_status set_headers(transfer *t, struct curl_slist **list)
{
    for (size_t i = 0; i < FMR_HTTP_MAX_HEADERS && t->q->header[i]; i++) {
        if (!t->home && !is_harmless(t->q->header[i]))
            continue;
        struct curl_slist *longer = curl_slist_append(*list, t->q->header[i]);
        if (!longer)
            return fm_fail(FM_ENOMEM, "http: out of memory");
        *list = longer;
    }
    CURL *e = t->h->easy;
    fm_status rc = FM_OK;
    SET(HTTPHEADER, *list);
    return rc;
}

static fm_status set_credentials(transfer *t)
{
    CURL *e = t->h->easy;
    fm_status rc = FM_OK;
    if (!t->home)
        return FM_OK;
    if (t->q->bearer) {
        SET(HTTPAUTH, (long)CURLAUTH_BEARER);
        SET(XOAUTH2_BEARER, t->q->bearer);
    } else if (t->user || t->password) {
        SET(HTTPAUTH, (long)CURLAUTH_BASIC);
        SET(USERNAME, t->user ? t->user : "");
        SET(PASSWORD, t->password ? t->password : "");
    }
    return rc;
}

static fm_status prepare(transfer *t, struct curl_slist **list)
{
    CURL *e = t->h->easy;
    fm_status rc = FM_OK;

    curl_easy_reset(e); /* open connections stay */
    SET(URL, t->url);
    SET(PROTOCOLS_STR, "http,https");
    SET(FOLLOWLOCATION, 0L);
    SET(HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(NOSIGNAL, 1L);
    SET(QUICK_EXIT, 1L); /* a request that is stopped does not wait for the resolver */
    SET(SUPPRESS_CONNECT_HEADERS, 1L);
    SET(USERAGENT, "fmstore/" FM_VERSION);
    SET(CONNECTTIMEOUT, (long)t->h->connect_seconds);
    SET(LOW_SPEED_LIMIT, 1L);
    SET(LOW_SPEED_TIME, (long)t->h->stall_seconds);
    SET(TCP_KEEPALIVE, 1L);
    /* Hints; libcurl 7.88 refuses them after a transfer that failed in its resolver. */
    (void)curl_easy_setopt(e, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    (void)curl_easy_setopt(e, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER_BYTES);
    SET(ERRORBUFFER, t->cause);
    SET(WRITEFUNCTION, on_body);
    SET(WRITEDATA, t);
    SET(HEADERFUNCTION, on_header);
    SET(HEADERDATA, t);
    SET(READFUNCTION, on_send);
    SET(READDATA, t);
    SET(SEEKFUNCTION, on_seek);
    SET(SEEKDATA, t);
    if (t->h->ca_file)
        SET(CAINFO, t->h->ca_file);
    FM_THEN(rc, set_method(t));
    FM_THEN(rc, set_headers(t, list));
    FM_THEN(rc, set_credentials(t));
    return rc;
}

static CURLcode result_of(fmr_http *h)
{
    CURLcode code = CURLE_OK;
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(h->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            code = m->data.result;
    return code;
}

static fm_status go_on(const transfer *t)
{
    if (t->q->stopped && t->q->stopped(t->q->ctx))
        return fm_fail(FM_ECANCELLED, "stopped");
    return fm_go_on();
}

/* Runs the transfer to its end, or until it is asked to stop. */
static fm_status run(transfer *t)
{
    CURLM *m = t->h->multi;
    int running = 1;
    fm_status rc = FM_OK;
    CURLMcode code = curl_multi_add_handle(m, t->h->easy);
    if (code != CURLM_OK)
        return fail(t, FM_EIO, "%s", curl_multi_strerror(code));
    for (;;) {
        code = curl_multi_perform(m, &running);
        if (code != CURLM_OK || !running)
            break;
        rc = go_on(t);
        if (rc == FM_OK)
            code = curl_multi_poll(m, NULL, 0, POLL_MS, NULL);
        if (rc != FM_OK || code != CURLM_OK)
            break;
    }
    const CURLcode result = result_of(t->h);
    if (rc == FM_OK && t->failed != FM_OK)
        rc = t->failed;
    else if (rc == FM_OK && code != CURLM_OK)
        rc = fail(t, FM_EIO, "%s", curl_multi_strerror(code));
    else if (rc == FM_OK && result != CURLE_OK && !t->cut)
        rc = of_transfer(t, result);
    (void)curl_multi_remove_handle(m, t->h->easy);
    return rc;
}

/* As run; a connection that the other side closed must not end the process by SIGPIPE, and the
 * signal's handler belongs to the program. */
static fm_status run_quietly(transfer *t)
{
    sigset_t pipe, before, pending;
    const struct timespec no_time = {0, 0};
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    (void)sigpending(&pending);
    const bool was_there = sigismember(&pending, SIGPIPE) == 1;
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &before);
    fm_status rc = run(t);
    if (!was_there)
        (void)sigtimedwait(&pipe, NULL, &no_time);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static fm_status hop(transfer *t)
{
    struct curl_slist *list = NULL;

    fm_buf_clear(&t->out->headers);
    fm_buf_clear(&t->out->body);
    t->out->status = 0;
    t->began = t->cut = false;
    t->failed = FM_OK;
    t->got = 0;
    t->body_at = 0;
    t->cause[0] = '\0';
    fm_status rc = prepare(t, &list);
    FM_THEN(rc, run_quietly(t));
    if (rc == FM_OK && !t->began)
        rc = begin_body(t);
    if (rc == FM_OK && t->out->status < 300 && t->expected != FMR_HTTP_ANY && t->got < t->expected)
        rc = fail(t, FM_ECORRUPT, "sent %" PRIu64 " of the %" PRIu64 " bytes that it announced",
                  t->got, t->expected);
    curl_easy_reset(t->h->easy); /* it must not keep the list's address */
    curl_slist_free_all(list);
    return rc;
}

static fm_status check_request(const fmr_request *q)
{
    bool bad = fmr_has_control(q->method) || fmr_has_control(q->bearer) ||
               fmr_has_control(q->user) || fmr_has_control(q->password);
    for (size_t i = 0; i < FMR_HTTP_MAX_HEADERS && q->header[i]; i++)
        bad = bad || fmr_has_control(q->header[i]);
    if (bad)
        return fm_fail(FM_EINVAL, "http: a header or a credential has a control byte in it");
    return FM_OK;
}

/* The credentials are the request's, or those that its URL has. */
static fm_status read_url(transfer *t)
{
    char *user, *password;
    fm_status rc = fmr_target_read(&t->first, &user, &password, t->q->url);
    const bool given = t->q->user || t->q->password;
    t->user = given ? fm_strdup(t->q->user ? t->q->user : "") : user;
    t->password = given ? fm_strdup(t->q->password ? t->q->password : "") : password;
    if (given) {
        fm_free(user);
        fm_free(password);
        if (!t->user || !t->password)
            FM_THEN(rc, FM_ENOMEM);
    }
    return rc;
}

static fm_status set_url(transfer *t, const char *url)
{
    char *copy = fm_strdup(url);
    if (!copy)
        return FM_ENOMEM;
    fm_free(t->url);
    t->url = copy;
    return FM_OK;
}

/* ==== the request ==== */

static bool follows(const fmr_request *q, unsigned status)
{
    if (q->no_redirect)
        return false;
    if (status == 307 || status == 308)
        return !q->send;
    return is_read(q) && (status == 301 || status == 302 || status == 303);
}

/* One try: from the request's own URL to the end of its redirects. */
static fm_status follow(transfer *t)
{
    FM_TRY(set_url(t, t->first));
    t->home = true;
    t->passing = false;
    for (unsigned n = 0;; n++) {
        char *next = NULL;
        bool same = false;
        FM_TRY(hop(t));
        const fm_span location = fmr_answer_header(t->out, "Location");
        if (!follows(t->q, t->out->status) || location.len == 0)
            return FM_OK;
        fm_status rc =
            n < MAX_REDIRECTS
                ? FM_OK
                : fail(t, FM_EIO, "more than %u redirects follow each other", MAX_REDIRECTS);
        FM_THEN(rc, fmr_target_redirect(&next, &same, location, t->url, t->first));
        FM_THEN(rc, set_url(t, next));
        t->home = t->home && same; /* a host that was left is not trusted again */
        fm_free(next);
        if (rc != FM_OK)
            return rc;
    }
}

static bool is_busy(unsigned status)
{
    return status == 429 || (status >= 500 && status <= 504 && status != 501);
}

/* Waits before the next try: twice as long each time, or as long as the server asks for. */
static fm_status pause_before(const transfer *t, unsigned tried)
{
    double seconds = FIRST_PAUSE_S * (double)(1u << FM_MIN(tried, 16u));
    fm_span asked = fmr_answer_header(t->out, "Retry-After");
    uint64_t asked_seconds;
    if (asked.data && number(&asked, &asked_seconds) && asked.len == 0)
        seconds = FM_MAX(seconds, (double)asked_seconds);
    const double end = fm_now_s() + FM_MIN(seconds, MAX_PAUSE_S);
    const struct timespec step = {0, 20 * 1000 * 1000};
    while (fm_now_s() < end) {
        FM_TRY(go_on(t));
        (void)nanosleep(&step, NULL);
    }
    return FM_OK;
}

static fm_status try_until_it_works(transfer *t)
{
    for (unsigned tried = 0;; tried++) {
        fm_status rc = follow(t);
        const bool again = rc == FM_OK ? is_busy(t->out->status) : t->passing;
        if (!again || t->took || t->sent || tried + 1 >= t->h->tries)
            return rc;
        FM_TRY(pause_before(t, tried));
    }
}

fm_status fmr_http_do(fmr_http *h, const fmr_request *q, fmr_answer *out)
{
    transfer t = {.h = h, .q = q, .out = out};

    memset(out, 0, sizeof *out);
    fm_buf_init(&out->headers, MAX_HEADER_BYTES);
    fm_buf_init(&out->body, 0);
    out->body.max = FM_MAX((size_t)FM_MIN(max_bytes(&t), SIZE_MAX / 2), MAX_ERROR_BYTES) + 1;
    fm_status rc = fm_go_on();
    FM_THEN(rc, check_request(q));
    FM_THEN(rc, read_url(&t));
    FM_THEN(rc, try_until_it_works(&t));
    out->url = t.url;
    fm_free(t.first);
    fm_free(t.user);
    fm_free(t.password);
    if (rc != FM_OK)
        fmr_answer_release(out);
    return rc;
}
