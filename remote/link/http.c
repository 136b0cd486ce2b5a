/* http.c - fmstore's own server: each message of the wire is a POST, whose body and answer stream
 * through bounded queues between this thread and the one that runs the request. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "remote/http/http.h"
#include "remote/link/credential.h"
#include "remote/link/open.h"
#include "remote/serve.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"
#include "store/base/ring.h"
#include "store/base/text/json.h"

#define QUEUE_BYTES ((size_t)1 << 20)
#define LOOK_S 0.2
#define STALL_S 300u /* the far side makes what came durable before it answers */
#define END_S 5.0    /* for the end of an answer whose frames have all come */
#define NEW_SESSION "new"

typedef enum step {
    IDLE,   /* no message */
    GATHER, /* its first piece is here: a short message is sent whole, and may be tried again */
    STREAM, /* it goes out as it is made */
    TURNED, /* it is whole: the answer comes */
} step;

typedef struct credentials {
    const char *token; /* FMSTORE_TOKEN; NULL */
    fmr_credential helped;
    enum { NONE, TOKEN, HELPED_BASIC, HELPED_BEARER } by;
    bool told;
} credentials;

typedef struct http {
    const fmr_url *url; /* borrowed */
    fmr_http *http;
    char *address;
    char session[FM_REMOTE_SESSION_MAX + 1]; /* "": a reader */
    credentials key;
    fm_buf message;
    step at;
    bool asked;   /* a message was sent before */
    bool streams; /* this one is sent as it is made */
    pthread_t thread;
    bool running;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t change;
    fm_ring up, down;
    bool up_ended, took;
    bool over;    /* the request has ended: rc and error say how */
    fm_status rc; /* of it */
    fm_error_state error;
    fmr_answer answer;
    atomic_bool closing;
} http;

static void wait_a_little(http *l)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(LOOK_S * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    (void)pthread_cond_timedwait(&l->change, &l->lock, &until);
}

/* ==== the request's thread: bodies ==== */

static fm_status go_on(const http *l)
{
    return atomic_load(&l->closing) ? fm_fail(FM_ECANCELLED, "stopped") : fm_go_on();
}

static bool stopped(void *ctx)
{
    const http *l = ctx;
    return atomic_load(&l->closing);
}

static fm_status give_body(void *ctx, void *dst, size_t cap, size_t *got)
{
    http *l = ctx;
    fm_status rc;
    *got = 0;
    (void)pthread_mutex_lock(&l->lock);
    while ((rc = go_on(l)) == FM_OK && !(*got = fm_ring_take(&l->up, dst, cap)) && !l->up_ended)
        wait_a_little(l);
    if (l->up.len <= QUEUE_BYTES / 2)
        (void)pthread_cond_broadcast(&l->change);
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

static bool is_ours(const fmr_answer *a)
{
    const fm_span type = fmr_answer_header(a, "Content-Type");
    return type.data && type.len == strlen(FM_REMOTE_WIRE_TYPE) &&
           memcmp(type.data, FM_REMOTE_WIRE_TYPE, type.len) == 0;
}

static fm_status not_ours(const http *l)
{
    const fm_span type = fmr_answer_header(&l->answer, "Content-Type");
    char shown[60] = "no type";
    size_t n = 0;
    for (size_t i = 0; type.data && i < type.len && n + 1 < sizeof shown; i++)
        if (type.data[i] >= 0x20 && type.data[i] < 0x7f)
            shown[n++] = (char)type.data[i];
    if (n)
        shown[n] = '\0';
    return fm_fail(FM_ENOTFOUND, "%s: no fmstore server answers there, but something with %s",
                   l->url->text, shown);
}

static fm_status take_answer(void *ctx, const void *data, size_t len)
{
    http *l = ctx;
    const uint8_t *from = data;
    fm_status rc = FM_OK;
    if (!l->took && !is_ours(&l->answer))
        return not_ours(l);
    l->took = true;
    (void)pthread_mutex_lock(&l->lock);
    while (rc == FM_OK && len > 0 && (rc = go_on(l)) == FM_OK) {
        size_t put;
        rc = fm_ring_put(&l->down, from, len, &put);
        from += put;
        len -= put;
        if (put)
            (void)pthread_cond_broadcast(&l->change);
        else if (rc == FM_OK)
            wait_a_little(l);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

/* ==== the request's thread: what the server says ==== */

/* Appends ": text" of the server's own error, if it is one of fmstore's. */
static void add_reason(const http *l, fm_buf *b)
{
    fm_json *body = NULL;
    fm_error_state text;
    fm_error_save(&text);
    if (l->answer.body.len &&
        fm_json_parse(&body, fm_buf_span(&l->answer.body), "error") == FM_OK) {
        const fm_json *e = fm_json_get(body, "error");
        const fm_span said = fm_json_str(fm_json_get(e, "message"));
        for (size_t i = 0; said.data && i < said.len && i < 300; i++) {
            if (i == 0)
                fm_buf_str(b, ": ");
            if (said.data[i] >= 0x20 && said.data[i] != 0x7f)
                fm_buf_char(b, (char)said.data[i]);
        }
    }
    fm_json_free(body);
    fm_error_restore(&text);
}

static fm_status refused(const http *l, fm_status rc, const char *what)
{
    fm_buf b;
    fm_buf_init(&b, 4096);
    fm_buf_str(&b, what);
    add_reason(l, &b);
    (void)fm_fail(rc, "%s: %s", l->url->text, fm_buf_cstr(&b));
    fm_buf_release(&b);
    return rc;
}

static fm_status redirected(const http *l)
{
    const fm_span to = fmr_answer_header(&l->answer, "Location");
    char *text = to.data ? fm_strndup((const char *)to.data, to.len) : NULL;
    fm_buf shown;
    fm_buf_init(&shown, 4 * FMR_URL_MAX);
    if (text)
        fmr_url_shown(&shown, text);
    const size_t tail = strlen(FM_REMOTE_WIRE_PATH);
    if (shown.len > tail && memcmp(shown.data + shown.len - tail, FM_REMOTE_WIRE_PATH, tail) == 0)
        shown.data[shown.len -= tail] = '\0';
    const bool web =
        text && (strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0);
    fm_status rc =
        web ? fm_fail(FM_EIO,
                      "%s: sends on to %s; if you trust that, 'fmstore remote set-url NAME %s'",
                      l->url->text, fm_buf_cstr(&shown), fm_buf_cstr(&shown))
            : fm_fail(FM_EIO, "%s: sends on to '%s', which is not followed", l->url->text,
                      fm_buf_cstr(&shown));
    fm_buf_release(&shown);
    fm_free(text);
    return rc;
}

static fm_status check_answer(const http *l)
{
    const unsigned status = l->answer.status;
    switch (status) {
    case 200:
        return l->took || is_ours(&l->answer) ? FM_OK : not_ours(l);
    case 401:
        return refused(l, FM_EREFUSED,
                       l->key.by == NONE
                           ? "wants a key: set FMSTORE_TOKEN, or have git's credential helper know "
                             "it ('git credential approve')"
                           : "does not take the key or password that was sent");
    case 403:
        return refused(l, FM_EREFUSED, "refuses this request");
    case 404:
    case 405:
    case 410:
    case 501:
        return fm_fail(FM_ENOTFOUND,
                       "%s: no fmstore server answers there (HTTP status %u); 'fmstore serve "
                       "--remote' makes one",
                       l->url->text, status);
    case 413:
        return refused(l, FM_ELIMIT, "takes no body of this size; a proxy in front may say so");
    case 503:
        return refused(l, FM_EIO, "is busy");
    default:
        break;
    }
    if (status >= 300 && status < 400)
        return redirected(l);
    FM_TRY(fmr_answer_check(&l->answer, "the remote"));
    return not_ours(l);
}

/* ==== the request's thread: credentials ==== */

/* Whether a challenge of the answer offers a scheme. */
static bool offers(const fmr_answer *a, const char *scheme)
{
    const char *at = (const char *)a->headers.data, *end = at + a->headers.len;
    const char name[] = "WWW-Authenticate:";
    while (at && at < end) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((eol ? eol : end) - at), n = sizeof name - 1;
        if (len > n && strncasecmp(at, name, n) == 0)
            for (size_t i = n; i + strlen(scheme) <= len; i++)
                if (strncasecmp(at + i, scheme, strlen(scheme)) == 0)
                    return true;
        at = eol ? eol + 1 : end;
    }
    return false;
}

/* The environment's token is for whatever host is asked: others must not read it on the way. */
static bool may_send_token(const fmr_url *u)
{
    return strncmp(u->text, "https:", 6) == 0 || strcmp(u->host, "localhost") == 0 ||
           strncmp(u->host, "127.", 4) == 0 || strcmp(u->host, "::1") == 0;
}

/* What was sent is refused. *again: something else can be sent. */
static fm_status next_credentials(http *l, bool *again)
{
    credentials *k = &l->key;
    *again = false;
    if (k->by == NONE && k->token && !may_send_token(l->url))
        return fm_fail(FM_EREFUSED, "%s: wants a key, and FMSTORE_TOKEN is not sent without TLS",
                       l->url->text);
    if (k->by == NONE && k->token) {
        k->by = TOKEN;
        *again = true;
        return FM_OK;
    }
    if (k->by == HELPED_BASIC || k->by == HELPED_BEARER) {
        fmr_credential_tell(&k->helped, l->url, false);
        fmr_credential_release(&k->helped);
        return FM_OK;
    }
    if (k->by != NONE)
        return FM_OK;
    const fm_status rc = fmr_credential_fill(&k->helped, l->url);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        return FM_OK;
    }
    FM_TRY(rc);
    k->by = offers(&l->answer, "basic") ? HELPED_BASIC : HELPED_BEARER;
    *again = true;
    return FM_OK;
}

static void tell_helper(http *l)
{
    credentials *k = &l->key;
    if (k->told || (k->by != HELPED_BASIC && k->by != HELPED_BEARER))
        return;
    fmr_credential_tell(&k->helped, l->url, true);
    k->told = true;
}

/* ==== the request's thread ==== */

static fm_status post(http *l, const char *session)
{
    const credentials *k = &l->key;
    fmr_request q = {.method = "POST",
                     .url = l->address,
                     .header = {"Content-Type: " FM_REMOTE_WIRE_TYPE,
                                "Accept: " FM_REMOTE_WIRE_TYPE, *session ? session : NULL},
                     .max_bytes = FMR_HTTP_ANY,
                     .take = take_answer,
                     .ctx = l,
                     .stopped = stopped,
                     .no_redirect = true};
    if (k->by == TOKEN)
        q.bearer = k->token;
    if (k->by == HELPED_BEARER)
        q.bearer = k->helped.password;
    if (k->by == HELPED_BASIC) {
        q.user = k->helped.user ? k->helped.user : "";
        q.password = k->helped.password;
    }
    if (l->streams) {
        q.send = give_body;
        q.send_bytes = FMR_HTTP_ANY;
    } else {
        q.body = fm_buf_span(&l->message);
    }
    fmr_answer_release(&l->answer);
    l->took = false;
    return fmr_http_do(l->http, &q, &l->answer);
}

/* The name of a session: letters and digits, or the server is none of ours. */
static fm_status take_session(http *l)
{
    const fm_span name = fmr_answer_header(&l->answer, FM_REMOTE_SESSION);
    if (!name.data || strcmp(l->session, NEW_SESSION) != 0)
        return FM_OK;
    for (size_t i = 0; i < name.len; i++)
        if (!((name.data[i] >= '0' && name.data[i] <= '9') ||
              ((name.data[i] | 32) >= 'a' && (name.data[i] | 32) <= 'z')))
            return fm_fail(FM_ECORRUPT, "%s: gives a session no proper name", l->url->text);
    if (name.len == 0 || name.len > FM_REMOTE_SESSION_MAX)
        return fm_fail(FM_ECORRUPT, "%s: gives a session no proper name", l->url->text);
    memcpy(l->session, name.data, name.len);
    l->session[name.len] = '\0';
    return FM_OK;
}

static fm_status ask(http *l)
{
    char session[sizeof FM_REMOTE_SESSION + FM_REMOTE_SESSION_MAX + 4] = "";
    bool again = true;
    if (l->session[0])
        (void)snprintf(session, sizeof session, FM_REMOTE_SESSION ": %s", l->session);
    while (again) {
        FM_TRY(post(l, session));
        again = false;
        if (l->answer.status == 401 && !l->streams)
            FM_TRY(next_credentials(l, &again));
    }
    FM_TRY(check_answer(l));
    tell_helper(l);
    return take_session(l);
}

static void *exchange(void *arg)
{
    http *l = arg;
    fm_error_clear();
    const fm_status rc = ask(l);
    (void)pthread_mutex_lock(&l->lock);
    l->rc = rc;
    fm_error_save(&l->error);
    l->over = true;
    (void)pthread_cond_broadcast(&l->change);
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ==== the stream ==== */

static fm_status begin(http *l, bool streams)
{
    if (l->asked && strcmp(l->session, NEW_SESSION) == 0)
        return fm_fail(FM_ECORRUPT, "%s: takes a push and gives it no session", l->url->text);
    l->at = streams ? STREAM : TURNED;
    l->streams = streams;
    l->asked = true;
    l->over = l->up_ended = false;
    l->rc = FM_OK;
    fm_ring_clear(&l->up);
    fm_ring_clear(&l->down);
    l->running = pthread_create(&l->thread, NULL, exchange, l) == 0;
    return l->running ? FM_OK : fm_fail(FM_ENOMEM, "%s: no thread", l->url->text);
}

static fm_status failure(http *l)
{
    if (l->rc != FM_OK)
        fm_error_restore(&l->error);
    return l->rc;
}

static void join(http *l)
{
    if (l->running)
        (void)pthread_join(l->thread, NULL);
    l->running = false;
}

/* The answer was read: nothing more may come. */
static fm_status finish(http *l)
{
    const double end = fm_now_s() + END_S;
    fm_status rc = FM_OK;
    (void)pthread_mutex_lock(&l->lock);
    while (rc == FM_OK && !l->over && l->down.len == 0 && fm_now_s() < end &&
           (rc = go_on(l)) == FM_OK)
        wait_a_little(l);
    if (rc == FM_OK && (l->down.len || !l->over))
        rc =
            fm_fail(FM_ECORRUPT, "%s: sends more than an answer, or does not end it", l->url->text);
    (void)pthread_mutex_unlock(&l->lock);
    FM_TRY(rc);
    join(l);
    l->at = IDLE;
    fm_buf_clear(&l->message);
    return failure(l);
}

static fm_status push(http *l, const uint8_t *data, size_t len)
{
    fm_status rc = FM_OK;
    (void)pthread_mutex_lock(&l->lock);
    while (rc == FM_OK && len > 0 && (rc = go_on(l)) == FM_OK) {
        size_t put = 0;
        if (l->over) /* fmr_client asks then what the server said */
            rc = l->rc == FM_OK
                     ? fm_fail(FM_EIO, "%s: answers before the message ends", l->url->text)
                     : failure(l);
        FM_THEN(rc, fm_ring_put(&l->up, data, len, &put));
        data += put;
        len -= put;
        if (put)
            (void)pthread_cond_broadcast(&l->change);
        else if (rc == FM_OK)
            wait_a_little(l);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

static fm_status write_some(void *ctx, const void *data, size_t len)
{
    http *l = ctx;
    if (l->at == TURNED)
        FM_TRY(finish(l));
    if (l->at == IDLE) {
        l->at = GATHER;
        fm_buf_append(&l->message, data, len);
        return fm_buf_ok(&l->message);
    }
    if (l->at == GATHER) {
        FM_TRY(begin(l, true));
        FM_TRY(push(l, l->message.data, l->message.len));
    }
    return push(l, data, len);
}

static fm_status turn(void *ctx)
{
    http *l = ctx;
    if (l->at == GATHER) {
        FM_TRY(begin(l, false));
    } else if (l->at == STREAM) {
        (void)pthread_mutex_lock(&l->lock);
        l->up_ended = true;
        l->at = TURNED;
        (void)pthread_cond_broadcast(&l->change);
        (void)pthread_mutex_unlock(&l->lock);
    }
    return FM_OK;
}

static fm_status read_some(void *ctx, void *dst, size_t cap, size_t *got)
{
    http *l = ctx;
    fm_status rc;
    *got = 0;
    (void)pthread_mutex_lock(&l->lock);
    while ((rc = go_on(l)) == FM_OK && !(*got = fm_ring_take(&l->down, dst, cap)) && l->running &&
           !l->over)
        wait_a_little(l);
    if (rc == FM_OK && *got == 0)
        rc = failure(l);
    (void)pthread_cond_broadcast(&l->change);
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

/* ==== begin and end ==== */

static void end_session(http *l)
{
    char session[sizeof FM_REMOTE_SESSION + FM_REMOTE_SESSION_MAX + 4];
    fmr_answer answer;
    (void)snprintf(session, sizeof session, FM_REMOTE_SESSION ": %s", l->session);
    fmr_request q = {
        .method = "DELETE", .url = l->address, .header = {session}, .no_redirect = true};
    if (l->key.by == TOKEN)
        q.bearer = l->key.token;
    if (l->key.by == HELPED_BEARER)
        q.bearer = l->key.helped.password;
    if (l->key.by == HELPED_BASIC) {
        q.user = l->key.helped.user ? l->key.helped.user : "";
        q.password = l->key.helped.password;
    }
    if (fmr_http_do(l->http, &q, &answer) == FM_OK)
        fmr_answer_release(&answer);
}

static void close_http(void *ctx)
{
    http *l = ctx;
    const bool sound = l->at == TURNED && finish(l) == FM_OK;
    atomic_store(&l->closing, true);
    join(l);
    if (sound && l->session[0] && strcmp(l->session, NEW_SESSION) != 0)
        end_session(l);
    fmr_http_close(l->http);
    fmr_answer_release(&l->answer);
    fmr_credential_release(&l->key.helped);
    fm_buf_release(&l->message);
    fm_ring_release(&l->up);
    fm_ring_release(&l->down);
    fm_free(l->address);
    (void)pthread_cond_destroy(&l->change);
    (void)pthread_mutex_destroy(&l->lock);
    fm_free(l);
}

static http *make(const fmr_url *url, fmr_service service)
{
    pthread_condattr_t attr;
    const char *token = getenv("FMSTORE_TOKEN");
    http *l = fm_calloc(1, sizeof *l);
    if (!l)
        return NULL;
    bool ok = pthread_mutex_init(&l->lock, NULL) == 0 && pthread_condattr_init(&attr) == 0;
    if (ok) {
        ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
             pthread_cond_init(&l->change, &attr) == 0;
        (void)pthread_condattr_destroy(&attr);
    }
    if (!ok) {
        fm_free(l);
        return NULL;
    }
    l->url = url;
    l->up.max = l->down.max = QUEUE_BYTES;
    l->key.token = token && *token ? token : NULL;
    fm_buf_init(&l->message, 4 * QUEUE_BYTES);
    if (service == FMR_WRITE)
        memcpy(l->session, NEW_SESSION, sizeof NEW_SESSION);
    return l;
}

static fm_status open_session(http *l, const char *given)
{
    char *file = fmr_ca_file(l->url, given);
    const fmr_http_opts o = {.ca_file = file, .stall_seconds = STALL_S};
    fm_status rc = fmr_http_open(&l->http, &o);
    fm_free(file);
    return rc;
}

fm_status fmr_open_http(fmr_far **out, const fmr_url *url, fmr_service service,
                        const fmr_open_opts *opts)
{
    http *l = make(url, service);
    *out = NULL;
    if (!l)
        return fm_fail(FM_ENOMEM, "%s: out of memory", url->text);
    l->address = fm_asprintf("%s" FM_REMOTE_WIRE_PATH, url->text);
    fm_status rc = l->address ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, open_session(l, opts ? opts->ca_file : NULL));
    if (rc != FM_OK) {
        close_http(l);
        return rc;
    }
    const fmr_stream stream = {l, read_some, write_some, turn};
    return fmr_client_new(out, &stream, close_http, url->text, service);
}
