/* http.c - the HTTP side, on libmicrohttpd's threads: routes, bodies, answers.
 *
 * A request is called back at its headers, for each piece of its body, at the end of it, and after
 * each resume; job->stage says what comes next. A request that is refused still has its body read
 * (and thrown away): closing on unread bytes would reset the connection before the client saw why.
 * Nothing of a request ever names a file; the Host header is only used to refuse. */
#include "infer/serve/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "infer/serve/heads.h"
#include "store/base/mem.h"

#define THREADS 4u
#define SPARE_CONNECTIONS 128u /* beyond waiting and running requests: health, metrics, idle ones */
#define MEMORY_PER_CONNECTION ((size_t)64 << 10)
#define DISCARD_FACTOR 16 /* a body of that many limits is cut off instead of read to its end */
#define BODIES_FACTOR 32  /* limit of all bodies together, in limits of one body */
#define SSE_BLOCK 16384
#define FILL_BYTES ((size_t)64 << 10)   /* formatted ahead of an answer that leaves in pieces */
#define WHOLE_BYTES ((size_t)512 << 10) /* a longer answer leaves in pieces */

/* ==== sending ==== */

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    /* Fails only without memory; the answer then lacks the header. */
    (void)MHD_add_response_header(r, name, value);
}

static const char *methods_of(const fmi_job *j)
{
    if (j->route == FMI_ROUTE_SITE)
        return j->site->site->methods;
    return j->route >= FMI_ROUTE_COMPLETIONS ? "POST" : "GET, HEAD";
}

static enum MHD_Result queue_response(fmi_job *j, unsigned code, struct MHD_Response *r,
                                      const char *type)
{
    if (!r)
        return MHD_NO;
    if (type)
        add_header(r, "Content-Type", type);
    add_header(r, "X-Request-Id", j->id);
    if (code == 401)
        add_header(r, "WWW-Authenticate", "Bearer");
    if (code == 405)
        add_header(r, "Allow", methods_of(j));
    if (code == 503)
        add_header(r, "Retry-After", "1");
    if (j->close || atomic_load(&j->server->refusing))
        add_header(r, "Connection", "close");
    enum MHD_Result ok = MHD_queue_response(j->conn, code, r);
    MHD_destroy_response(r);
    if (ok == MHD_YES)
        fmi_metrics_code(&j->server->metrics, code);
    return ok;
}

static enum MHD_Result send_buf(fmi_job *j, unsigned code, fm_buf *text, const char *type)
{
    size_t len = text->len;
    char *data = fm_buf_take(text);
    struct MHD_Response *r =
        data ? MHD_create_response_from_buffer_with_free_callback(len, data, fm_free) : NULL;
    if (!r)
        fm_free(data);
    return queue_response(j, code, r, type);
}

static enum MHD_Result send_fault(fmi_job *j)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    if (fmi_fault_write(&text, &j->fault) < 0) {
        fm_buf_release(&text);
        return MHD_NO;
    }
    return send_buf(j, j->fault.http, &text, "application/json");
}

static enum MHD_Result send_json(fmi_job *j, const fm_json *o)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    if (fm_json_write(&text, o, FM_JSON_COMPACT) == FM_OK)
        return send_buf(j, 200, &text, "application/json");
    fm_buf_release(&text);
    return MHD_NO;
}

/* ==== streaming ==== */

static fm_status fill(fmi_job *j, size_t most)
{
    if (j->ask.stream)
        return fmi_sse_fill(j, most);
    return j->ask.kind == FMI_ASK_EMBED ? fmi_vectors_fill(j, most) : fmi_answer_fill(j, most);
}

static ssize_t read_stream(void *cls, uint64_t pos, char *dst, size_t max)
{
    fmi_job *j = cls;
    ssize_t n = 0;
    (void)pos;
    (void)pthread_mutex_lock(&j->lock);
    if (j->out_at == j->out.len) {
        fm_buf_clear(&j->out);
        j->out_at = 0;
        if (!j->stream_over && fill(j, FILL_BYTES) < 0)
            n = MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t left = FM_MIN(j->out.len - j->out_at, max);
    if (n == 0 && left > 0) {
        memcpy(dst, j->out.data + j->out_at, left);
        j->out_at += left;
        n = (ssize_t)left;
    } else if (n == 0 && j->stream_over) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (n == 0) { /* the next event resumes the connection */
        j->suspended = true;
        MHD_suspend_connection(j->conn);
    }
    (void)pthread_mutex_unlock(&j->lock);
    return n;
}

static void stream_done(void *cls)
{
    fmi_job_unref(cls);
}

static struct MHD_Response *make_stream(fmi_job *j)
{
    fmi_job_ref(j);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, SSE_BLOCK, read_stream, j, stream_done);
    if (!r)
        fmi_job_unref(j);
    return r;
}

static enum MHD_Result send_stream(fmi_job *j)
{
    struct MHD_Response *r = make_stream(j);
    if (!r)
        return MHD_NO;
    add_header(r, "Cache-Control", "no-cache");
    add_header(r, "X-Accel-Buffering", "no");
    return queue_response(j, 200, r, "text/event-stream; charset=utf-8");
}

/* A long answer is written while it is sent, in chunks, since its length is not known before. */
static enum MHD_Result send_answer(fmi_job *j)
{
    fm_status rc = fill(j, WHOLE_BYTES);
    if (rc == FM_OK && !j->stream_over)
        return queue_response(j, 200, make_stream(j), "application/json");
    if (rc == FM_OK)
        return send_buf(j, 200, &j->out, "application/json");
    fmi_job_fail(j, 500, "out_of_memory", NULL, NULL);
    return send_fault(j);
}

/* ==== the body ==== */

/* Hands j to the engine thread and suspends the connection, or refuses at once. */
static enum MHD_Result hand_over(fmi_job *j, fmi_stage stage)
{
    (void)pthread_mutex_lock(&j->lock);
    j->stage = stage;
    j->suspended = fmi_server_post(j->server, j);
    bool posted = j->suspended;
    if (posted) /* the engine cannot resume the connection before: that needs the lock */
        MHD_suspend_connection(j->conn);
    (void)pthread_mutex_unlock(&j->lock);
    if (posted)
        return MHD_YES;
    fmi_job_fail(j, 503, "shutting_down", NULL, "the server is shutting down");
    return send_fault(j);
}

static void release_body(fmi_job *j)
{
    atomic_fetch_sub(&j->server->body_bytes, j->body.len);
    fm_buf_release(&j->body);
}

static fmi_ask_kind ask_kind(fmi_route route)
{
    return route == FMI_ROUTE_CHAT         ? FMI_ASK_CHAT
           : route == FMI_ROUTE_EMBEDDINGS ? FMI_ASK_EMBED
                                           : FMI_ASK_TEXT;
}

static void parse(fmi_job *j)
{
    fm_json *body = NULL;
    fm_status rc = fm_json_parse(&body, fm_buf_span(&j->body), "request body");
    release_body(j);
    if (rc < 0) {
        fmi_job_fail(j, rc == FM_ENOMEM ? 500 : 400, "invalid_json", NULL, NULL);
        return;
    }
    rc = fmi_ask_parse(&j->ask, body, ask_kind(j->route), j->server->opts.max_tokens);
    fm_json_free(body);
    if (rc < 0) {
        fmi_job_fail(j, rc == FM_ENOMEM ? 500 : 400, "invalid_value", j->ask.param, NULL);
        return;
    }
    if (!j->ask.seeded &&
        getrandom(&j->ask.sampling.seed, sizeof(j->ask.sampling.seed), GRND_NONBLOCK) < 0)
        j->ask.sampling.seed = (uint64_t)(fm_now_s() * 1e9);
    uint32_t n = (j->ask.kind == FMI_ASK_TEXT ? (uint32_t)j->ask.prompts : 1) * j->ask.n;
    if (fmi_server_admit(j->server, n))
        j->admitted = n;
    else
        fmi_job_fail(j, 503, "queue_full", NULL,
                     "too many requests are waiting (serve --max-queue); try again");
}

/* ==== stages ==== */

static enum MHD_Result send_health(fmi_job *j)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_buf_str(&text, "{\"status\":\"ok\"}");
    return send_buf(j, 200, &text, "application/json");
}

static enum MHD_Result send_metrics(fmi_job *j)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    fmi_metrics_write(&j->server->metrics, &text);
    return send_buf(j, 200, &text, "text/plain; version=0.0.4; charset=utf-8");
}

static enum MHD_Result send_site(fmi_job *j)
{
    struct MHD_Response *r = NULL;
    unsigned status = 0;
    switch (fmi_site_asked(j, &status, &r)) {
    case FMI_SITE_WAITS:
        return MHD_YES;
    case FMI_SITE_ANSWERS:
        return queue_response(j, status, r, NULL);
    case FMI_SITE_FAILED:
        break;
    }
    return send_fault(j);
}

static enum MHD_Result after_read(fmi_job *j)
{
    if (j->call)
        return send_site(j);
    if (j->fault.http)
        return send_fault(j);
    switch (j->route) {
    case FMI_ROUTE_HEALTH:
        return send_health(j);
    case FMI_ROUTE_METRICS:
        return send_metrics(j);
    case FMI_ROUTE_MODELS:
    case FMI_ROUTE_MODEL:
        return hand_over(j, FMI_LIST);
    case FMI_ROUTE_COMPLETIONS:
    case FMI_ROUTE_CHAT:
    case FMI_ROUTE_EMBEDDINGS:
        parse(j);
        return j->fault.http ? send_fault(j) : hand_over(j, FMI_FIND);
    case FMI_ROUTE_SITE:
    case FMI_ROUTE_NONE:
        break;
    }
    return MHD_NO;
}

static enum MHD_Result after_run(fmi_job *j)
{
    (void)pthread_mutex_lock(&j->lock);
    bool failed = j->fault.http != 0, done = j->left == 0;
    bool wait = !done && (failed || !j->ask.stream);
    if (wait) { /* resumed early: the engine side still works on it */
        j->suspended = true;
        MHD_suspend_connection(j->conn);
    }
    (void)pthread_mutex_unlock(&j->lock);
    if (wait)
        return MHD_YES;
    if (failed)
        return send_fault(j);
    return j->ask.stream ? send_stream(j) : send_answer(j);
}

static enum MHD_Result advance(fmi_job *j)
{
    (void)pthread_mutex_lock(&j->lock);
    fmi_stage stage = j->stage;
    (void)pthread_mutex_unlock(&j->lock);
    switch (stage) {
    case FMI_READ:
        return after_read(j);
    case FMI_LISTED:
        return send_json(j, j->listing);
    case FMI_RUNNING:
        return after_run(j);
    case FMI_FAILED:
        return send_fault(j);
    case FMI_LIST:
    case FMI_FIND:
    case FMI_FOUND:
    case FMI_RUN:
        break; /* other threads have the job; the connection is suspended */
    }
    return MHD_NO;
}

/* ==== headers ==== */

static fmi_route route_of(const char *url)
{
    static const struct {
        const char *path;
        fmi_route route;
    } table[] = {{"/health", FMI_ROUTE_HEALTH},
                 {"/metrics", FMI_ROUTE_METRICS},
                 {"/v1/models", FMI_ROUTE_MODELS},
                 {"/v1/completions", FMI_ROUTE_COMPLETIONS},
                 {"/v1/chat/completions", FMI_ROUTE_CHAT},
                 {"/v1/embeddings", FMI_ROUTE_EMBEDDINGS}};
    for (size_t i = 0; i < FM_ARRAY_LEN(table); i++)
        if (strcmp(url, table[i].path) == 0)
            return table[i].route;
    return strncmp(url, "/v1/models/", 11) == 0 && url[11] ? FMI_ROUTE_MODEL : FMI_ROUTE_NONE;
}

static const char *header(const fmi_job *j, const char *name)
{
    return MHD_lookup_connection_value(j->conn, MHD_HEADER_KIND, name);
}

/* Compares digests of fixed length without a branch on their content, so that the time reveals
 * nothing about the key. */
static bool key_fits(const fmi_job *j)
{
    const char *given = header(j, "Authorization");
    fm_digest d;
    uint8_t differ = 0;
    if (!j->server->opts.api_key)
        return true;
    if (!given || strncasecmp(given, "Bearer ", 7) != 0)
        return false;
    given += 7 + strspn(given + 7, " ");
    if (fm_sha256(&d, given, strlen(given)) < 0)
        return false;
    for (size_t i = 0; i < FM_DIGEST_BYTES; i++)
        differ |= (uint8_t)(d.b[i] ^ j->server->key.b[i]);
    return differ == 0;
}

/* A web page can point a name of its own at 127.0.0.1 and so reach a server that needs no key; its
 * requests carry that name. */
static bool host_fits(const fmi_job *j)
{
    const char *host = header(j, "Host");
    return !j->server->local || j->server->opts.api_key || !host ||
           fmi_host_local(host, j->server->host);
}

/* Lenient: accepts the type that curl sends by default; refuses types that are surely no JSON. */
static bool type_fits(const fmi_job *j)
{
    static const char *const fit[] = {"application/json", "text/json", "text/plain",
                                      "application/x-www-form-urlencoded"};
    const char *type = header(j, "Content-Type");
    if (!type || !type[0])
        return true;
    size_t n = strcspn(type, "; ");
    for (size_t i = 0; i < FM_ARRAY_LEN(fit); i++)
        if (n == strlen(fit[i]) && strncasecmp(type, fit[i], n) == 0)
            return true;
    return n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0;
}

static bool too_long(const fmi_job *j)
{
    const char *length = header(j, "Content-Length");
    return length && strtoull(length, NULL, 10) > j->server->opts.max_body_bytes;
}

static void fail_too_long(fmi_job *j)
{
    char text[96];
    (void)snprintf(text, sizeof(text), "the body has more than %zu bytes",
                   j->server->opts.max_body_bytes);
    fmi_job_fail(j, 413, "body_too_large", NULL, text);
}

static void check_head(fmi_job *j, const char *url, const char *method)
{
    char text[256];
    bool post = j->route >= FMI_ROUTE_COMPLETIONS;
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    bool site = j->route == FMI_ROUTE_SITE, changes = site ? !get : post;
    if (atomic_load(&j->server->refusing))
        fmi_job_fail(j, 503, "shutting_down", NULL, "the server is shutting down");
    else if (!host_fits(j))
        fmi_job_fail(j, 403, "foreign_host", NULL,
                     "this server is for this machine alone; its Host header must say so");
    else if (changes && !j->server->opts.api_key && !fmi_origin_fits(j->conn))
        fmi_job_fail(j, 403, "foreign_origin", NULL,
                     "web pages of other sites may not ask here; behind a proxy, let it pass the "
                     "Host header on or set an API key");
    else if (j->route != FMI_ROUTE_HEALTH && !key_fits(j))
        fmi_job_fail(j, 401, "invalid_api_key", NULL,
                     "wrong or missing API key; send 'Authorization: Bearer KEY'");
    if (j->route == FMI_ROUTE_NONE) {
        (void)snprintf(text, sizeof(text), "there is nothing at %.200s", url);
        fmi_job_fail(j, 404, "unknown_url", NULL, text);
    } else if (site ? !fmi_site_takes(j->site->site, method)
                    : post ? strcmp(method, "POST") != 0
                           : !get) {
        (void)snprintf(text, sizeof(text), "this address takes %s",
                       site ? j->site->site->methods : post ? "POST" : "GET");
        fmi_job_fail(j, 405, "method_not_allowed", NULL, text);
    } else if (post && !type_fits(j)) {
        fmi_job_fail(j, 415, "unsupported_media_type", NULL, "send application/json");
    }
    if (!site && too_long(j))
        fail_too_long(j);
}

static void make_id(fmi_job *j)
{
    static atomic_ulong counter;
    uint64_t r[2] = {0, atomic_fetch_add(&counter, 1)};
    const char *kind = j->route == FMI_ROUTE_CHAT          ? "chatcmpl"
                       : j->route == FMI_ROUTE_COMPLETIONS ? "cmpl"
                       : j->route == FMI_ROUTE_EMBEDDINGS  ? "embd"
                                                           : "req";
    if (getrandom(r, sizeof(r), GRND_NONBLOCK) < 0)
        r[0] = (uint64_t)(fm_now_s() * 1e9);
    (void)snprintf(j->id, sizeof(j->id), "%s-%016llx%08llx", kind, (unsigned long long)r[0],
                   (unsigned long long)(r[1] & 0xffffffffu));
}

static fmi_job *job_new(fm_server *s, struct MHD_Connection *conn, const char *url)
{
    fmi_job *j = fm_calloc(1, sizeof(*j));
    if (!j)
        return NULL;
    if (pthread_mutex_init(&j->lock, NULL) != 0) {
        fm_free(j);
        return NULL;
    }
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    atomic_init(&j->refs, 1);
    j->server = s;
    j->conn = conn;
    j->fd = fd ? fd->connect_fd : -1;
    j->begun = fm_now_s();
    j->created = (int64_t)time(NULL);
    j->route = route_of(url);
    if (j->route == FMI_ROUTE_NONE && (j->site = fmi_site_of(s, url)))
        j->route = FMI_ROUTE_SITE;
    fm_buf_init(&j->body, s->opts.max_body_bytes);
    fm_buf_init(&j->out, 0);
    make_id(j);
    if (j->route == FMI_ROUTE_MODEL && !(j->name = fm_strdup(url + strlen("/v1/models/")))) {
        fmi_job_unref(j);
        return NULL;
    }
    atomic_fetch_add(&s->open_jobs, 1);
    return j;
}

/* ==== callbacks of libmicrohttpd ==== */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* In place. %00 stays as it is written: a name would end there, and be that of another thing. */
static size_t unescape(void *cls, struct MHD_Connection *conn, char *s)
{
    char *to = s;
    (void)cls;
    (void)conn;
    for (const char *p = s; *p; p++) {
        const int high = *p == '%' ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
        if (low >= 0 && high * 16 + low > 0) {
            *to++ = (char)(high * 16 + low);
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
    return (size_t)(to - s);
}

static enum MHD_Result take_body(fmi_job *j, const char *data, size_t n)
{
    fm_server *s = j->server;
    fmi_conns_body(&s->conns, j->conn, n);
    j->body_seen += n;
    if (j->body_seen / DISCARD_FACTOR > s->opts.max_body_bytes)
        return MHD_NO;
    if (j->body_seen > s->opts.max_body_bytes)
        fail_too_long(j);
    if (j->fault.http || j->route < FMI_ROUTE_COMPLETIONS)
        return MHD_YES;
    if (atomic_load(&s->body_bytes) / BODIES_FACTOR > s->opts.max_body_bytes) {
        fmi_job_fail(j, 503, "queue_full", NULL, "too many bodies are being read; try again");
        return MHD_YES;
    }
    size_t had = j->body.len;
    fm_buf_append(&j->body, data, n);
    atomic_fetch_add(&s->body_bytes, j->body.len - had);
    if (fm_buf_ok(&j->body) < 0)
        fmi_job_fail(j, 503, "out_of_memory", NULL, NULL);
    return MHD_YES;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *conn, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_len, void **con_cls)
{
    fmi_job *j = *con_cls;
    (void)version;
    if (!j) {
        *con_cls = j = job_new(cls, conn, url);
        if (!j)
            return MHD_NO;
        check_head(j, url, method);
        if (!fmi_conns_head(&j->server->conns, conn) && j->route != FMI_ROUTE_HEALTH)
            fmi_job_fail(j, 503, "queue_full", NULL, "too many requests of this client; try again");
        if (!fmi_framing_fits(conn)) { /* the body's end is unknown: close the connection */
            fmi_job_fail(j, 400, "bad_framing", NULL,
                         "give one Host, and one Content-Length or chunks, not both");
            j->close = true;
            return send_fault(j);
        }
        bool refused = j->fault.http != 0;
        if (j->site && !refused)
            refused = !fmi_site_begin(j, url, method);
        /* A client that waits with its body (Expect) gets the refusal before it sends the body. */
        return refused && header(j, "Expect") ? send_fault(j) : MHD_YES;
    }
    if (*upload_len) {
        size_t n = *upload_len;
        if (j->call) {
            fmi_conns_body(&j->server->conns, conn, n);
            return fmi_site_body(j, upload, upload_len) ? MHD_YES : MHD_NO;
        }
        *upload_len = 0;
        return take_body(j, upload, n);
    }
    fmi_conns_asked(&j->server->conns, conn);
    return advance(j);
}

static void completed(void *cls, struct MHD_Connection *conn, void **con_cls,
                      enum MHD_RequestTerminationCode how)
{
    fm_server *s = cls;
    fmi_job *j = *con_cls;
    if (!j)
        return;
    *con_cls = NULL;
    fmi_conns_answered(&s->conns, conn);
    release_body(j);
    (void)pthread_mutex_lock(&j->lock);
    /* A client whose answer was sent in full has not left. */
    j->gone = j->gone || how != MHD_REQUEST_TERMINATED_COMPLETED_OK || j->left > 0;
    j->suspended = false;
    if (j->call)
        fmi_site_left(j);
    (void)pthread_mutex_unlock(&j->lock);
    fmi_job_unref(j);
    atomic_fetch_sub(&s->open_jobs, 1);
}

/* ==== listening ==== */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof(in));
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, a, sizeof(in6));
        return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
    }
    return false;
}

static struct MHD_Daemon *listen_at(fm_server *s, const struct addrinfo *ai)
{
    unsigned flags = MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    if (ai->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    return MHD_start_daemon(flags, s->opts.port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR,
                            ai->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, completed, s,
                            MHD_OPTION_THREAD_POOL_SIZE, THREADS, MHD_OPTION_CONNECTION_TIMEOUT,
                            FMI_CONN_IDLE_SECONDS, MHD_OPTION_CONNECTION_LIMIT, s->conns.places,
                            MHD_OPTION_NOTIFY_CONNECTION, fmi_conns_notify, &s->conns,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY_PER_CONNECTION,
                            MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
}

fm_status fmi_http_start(fm_server *s)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *ai = NULL;
    char port[8];
    FM_TRY(fmi_mhd_open());
    FM_TRY(fmi_conns_init(&s->conns, FM_MIN(s->opts.max_running + s->opts.max_queue, 65536u) +
                                         SPARE_CONNECTIONS));
    (void)snprintf(port, sizeof(port), "%u", s->opts.port);
    int bad = getaddrinfo(s->host, port, &hints, &ai);
    if (bad)
        return fm_fail(FM_EIO, "cannot listen on %s:%u: %s", s->host, s->opts.port,
                       gai_strerror(bad));
    s->local = is_loopback(ai->ai_addr);
    errno = 0;
    s->daemon = listen_at(s, ai);
    int why = errno;
    freeaddrinfo(ai);
    if (!s->daemon)
        return fm_fail(FM_EIO, "cannot listen on %s:%u: %s; choose another port", s->host,
                       s->opts.port, why ? strerror(why) : "libmicrohttpd did not start");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info ? info->port : s->opts.port;
    return FM_OK;
}

void fmi_http_stop(fm_server *s)
{
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    fmi_conns_destroy(&s->conns);
}
