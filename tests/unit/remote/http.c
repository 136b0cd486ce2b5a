/* Requests against servers that lie, stall, drop and redirect: what is believed, what is refused by
 * name, and where credentials go. The servers are threads that send what a test tells them to. */
#include "remote/http/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/base/cancel.h"
#include "store/base/os/clock.h"
#include "tests/testkit.h"

/* ==== a server of prepared answers ==== */

#define MAX_REPLIES 16
#define MAX_REQUEST 65536

typedef enum ending { KEEP, CLOSE, STALL, ENDLESS, CANCEL } ending;
typedef struct reply {
    const char *text; /* sent as it is */
    ending then;      /* ENDLESS: text again and again after the first line that is empty */
} reply;

typedef struct server {
    int listener;
    unsigned port;
    pthread_t thread;
    reply replies[MAX_REPLIES];
    atomic_uint count, next;
    char request[MAX_REPLIES][MAX_REQUEST]; /* of each reply */
} server;

static bool send_text(int fd, const char *text, size_t len)
{
    while (len > 0) {
        const ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

/* Reads until `end` is in the request; false: the client left. */
static bool read_until(int fd, char *into, size_t *len, const char *end)
{
    while (!strstr(into, end)) {
        const ssize_t n = recv(fd, into + *len, MAX_REQUEST - 1 - *len, 0);
        if (n <= 0)
            return false;
        *len += (size_t)n;
        into[*len] = '\0';
    }
    return true;
}

static bool read_request(int fd, char *into)
{
    size_t len = 0;
    into[0] = '\0';
    if (!read_until(fd, into, &len, "\r\n\r\n"))
        return false;
    if (strstr(into, "Expect: 100-continue") && !send_text(fd, "HTTP/1.1 100 Continue\r\n\r\n", 25))
        return false;
    if (strstr(into, "Transfer-Encoding: chunked"))
        return read_until(fd, into, &len, "\r\n0\r\n\r\n");
    const char *announced = strstr(into, "Content-Length: ");
    unsigned long bytes = announced ? strtoul(announced + 16, NULL, 10) : 0;
    const size_t head = (size_t)(strstr(into, "\r\n\r\n") - into) + 4;
    while (len < head + bytes) {
        const ssize_t n = recv(fd, into + len, MAX_REQUEST - 1 - len, 0);
        if (n <= 0)
            return false;
        len += (size_t)n;
        into[len] = '\0';
    }
    return true;
}

/* Returns whether the connection stays. */
static bool answer(int fd, const reply *r)
{
    char byte;
    bool well = send_text(fd, r->text, strlen(r->text));
    if (r->then == CANCEL)
        fm_cancel(true);
    while (well && r->then == ENDLESS) {
        const char *body = strstr(r->text, "\r\n\r\n");
        body = body ? body + 4 : strstr(r->text, "\r\n") + 2; /* a head without an end */
        well = send_text(fd, body, strlen(body));
    }
    if (r->then == STALL || r->then == CANCEL)
        (void)recv(fd, &byte, 1, 0); /* until the client leaves */
    return well && r->then == KEEP;
}

static void *serve(void *arg)
{
    server *s = arg;
    int fd;
    while ((fd = accept(s->listener, NULL, NULL)) >= 0) {
        for (;;) {
            const unsigned i = s->next;
            if (i >= s->count || !read_request(fd, s->request[i]))
                break;
            s->next = i + 1;
            if (!answer(fd, &s->replies[i]))
                break;
        }
        close(fd);
    }
    return NULL;
}

static server *server_new(void)
{
    server *s = fm_calloc(1, sizeof *s);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(s->listener, 8), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&at, &len), 0);
    s->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    return s;
}

static void server_free(server *s)
{
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
    fm_free(s);
}

static void will_say(server *s, const char *text, ending then)
{
    s->replies[s->count] = (reply){text, then};
    s->count = s->count + 1;
}

/* ==== requests ==== */

static char address[64];
static const char *url_of(const server *s, const char *path)
{
    snprintf(address, sizeof address, "http://127.0.0.1:%u%s", s->port, path);
    return address;
}

static fmr_http *client(unsigned tries)
{
    fmr_http *h;
    const fmr_http_opts o = {.tries = tries, .stall_seconds = 1};
    tk_ok(fmr_http_open(&h, &o));
    return h;
}

static fm_status get(server *s, fmr_answer *a, unsigned tries)
{
    fmr_http *h = client(tries);
    const fmr_request q = {.method = "GET", .url = url_of(s, "/x?secret=1")};
    fm_status rc = fmr_http_do(h, &q, a);
    fmr_http_close(h);
    return rc;
}

/* A GET of one try that must fail. */
static void fails(const char *reply_text, ending then, fmr_request q, fm_status rc,
                  const char *text)
{
    server *s = server_new();
    fmr_http *h = client(1);
    fmr_answer a;
    will_say(s, reply_text, then);
    q.method = "GET";
    q.url = url_of(s, "/x?secret=1");
    tk_fails(fmr_http_do(h, &q, &a), rc, text);
    assert_non_null(strstr(fm_error_text(), "127.0.0.1"));
    assert_null(strstr(fm_error_text(), "secret"));
    assert_null(a.body.data);
    fmr_http_close(h);
    server_free(s);
}

#define NOTHING                                                                                    \
    (fmr_request)                                                                                  \
    {                                                                                              \
        .method = NULL                                                                             \
    }
#define RANGE(a, n)                                                                                \
    (fmr_request)                                                                                  \
    {                                                                                              \
        .from = a, .bytes = n                                                                      \
    }
#define OK_HEAD "HTTP/1.1 200 OK\r\n"

static void body_is(const fmr_answer *a, unsigned status, const char *text)
{
    assert_int_equal(a->status, status);
    assert_string_equal(fm_buf_cstr(&a->body), text);
}

TEST(answers_and_their_headers_come_back)
{
    server *s = server_new();
    fmr_http *h = client(1);
    fmr_answer a;
    fmr_request q = {.method = "GET",
                     .url = url_of(s, "/x"),
                     .header = {"X-Mine: yes"},
                     .user = "u",
                     .password = "p"};
    will_say(s, OK_HEAD "Content-Length: 5\r\neTaG:  \"7\" \r\nX-Empty:\r\n\r\nhello", KEEP);
    will_say(s, "HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\ngone", KEEP);
    will_say(s, OK_HEAD "Content-Length: 9\r\n\r\n", KEEP);
    will_say(s, "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
             KEEP);
    tk_ok(fmr_http_do(h, &q, &a));
    body_is(&a, 200, "hello");
    assert_true(fm_span_eq_str(fmr_answer_header(&a, "ETag"), "\"7\""));
    assert_true(fmr_answer_header(&a, "x-empty").data && !fmr_answer_header(&a, "x-empty").len);
    assert_null(fmr_answer_header(&a, "Tag").data);
    tk_ok(fmr_answer_check(&a, "test"));
    assert_non_null(strstr(s->request[0], "X-Mine: yes\r\n"));
    assert_non_null(strstr(s->request[0], "Authorization: Basic dTpw\r\n"));
    fmr_answer_release(&a);
    tk_ok(fmr_http_do(h, &q, &a));
    body_is(&a, 404, "gone");
    tk_fails(fmr_answer_check(&a, "test"), FM_ENOTFOUND, "test: http://127.0.0.1");
    fmr_answer_release(&a);
    q.method = "HEAD";
    tk_ok(fmr_http_do(h, &q, &a));
    body_is(&a, 200, "");
    fmr_answer_release(&a);
    q.method = "POST";
    q.body = fm_span_str("what I say");
    q.user = q.password = NULL;
    q.bearer = "abc";
    tk_ok(fmr_http_do(h, &q, &a));
    body_is(&a, 201, "ok");
    assert_non_null(strstr(s->request[3], "POST /x HTTP/1.1\r\n"));
    assert_non_null(strstr(s->request[3], "Authorization: Bearer abc\r\n"));
    assert_non_null(strstr(s->request[3], "\r\n\r\nwhat I say"));
    fmr_answer_release(&a);
    fmr_http_close(h);
    server_free(s);
}

TEST(more_than_the_limit_is_refused_while_it_arrives)
{
    const fmr_request few = {.max_bytes = 100000};
    fails(OK_HEAD "\r\nxxxxxxxxxxxxxxxx", ENDLESS, few, FM_ELIMIT, "more than 100000 bytes");
    fails(OK_HEAD "Content-Length: 100001\r\n\r\nx", STALL, few, FM_ELIMIT, "announces 100001");
    fails(OK_HEAD "X-Line: ......................................\r\n", ENDLESS, few, FM_ELIMIT,
          "bytes of headers");
    fails(OK_HEAD
          "\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
          ENDLESS, NOTHING, FM_ELIMIT, "more than 67108864 bytes");
    server *s = server_new();
    fmr_answer a;
    will_say(s, "HTTP/1.1 400 Bad\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxx", ENDLESS);
    tk_ok(get(s, &a, 1));
    assert_int_equal(a.status, 400);
    assert_int_equal(a.body.len, 65536);
    fmr_answer_release(&a);
    server_free(s);
}

TEST(lengths_that_do_not_hold_are_refused)
{
    fails(OK_HEAD "Content-Length: 9\r\n\r\nhello", CLOSE, NOTHING, FM_ECORRUPT,
          "ended after 5 bytes");
    fails(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", CLOSE, NOTHING, FM_ECORRUPT,
          "ended after 5 bytes");
    fails("", CLOSE, NOTHING, FM_EIO, "Empty reply");
    fails("SSH-2.0-dropbear\r\n\r\n", CLOSE, NOTHING, FM_EIO, NULL);
}

TEST(other_ranges_than_asked_for_are_refused)
{
    static const char part[] = "HTTP/1.1 206 Part\r\nContent-Length: 5\r\n";
    char text[256];
    static const char *const wrong[] = {
        "bytes 4-8/20", "bytes 5-8/20",  "bytes 5-10/20", "bytes 5-9/9",
        "bytes 9-5/20", "bytes 5-8/*",   "bytes 5-/20",   "chunks 5-9/20",
        "bytes 5-9",    "bytes 5-9/20x", "bytes -5-9/20", "5-9/20",
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(wrong); i++) {
        snprintf(text, sizeof text, "%sContent-Range: %s\r\n\r\nhello", part, wrong[i]);
        fails(text, CLOSE, RANGE(5, 5), FM_ECORRUPT, "sent");
    }
    fails("HTTP/1.1 206 Part\r\nContent-Length: 5\r\n\r\nhello", CLOSE, RANGE(5, 5), FM_ECORRUPT,
          "does not say which");
    fails("HTTP/1.1 206 Part\r\nContent-Range: bytes 0-4/5\r\n\r\nhello", CLOSE, NOTHING,
          FM_ECORRUPT, "where the whole was asked for");
    fails(OK_HEAD "Content-Length: 20\r\n\r\n01234567890123456789", CLOSE, RANGE(5, 5), FM_ECORRUPT,
          "does not give parts");
    fails(OK_HEAD "\r\n01234567890123456789", CLOSE, RANGE(0, 5), FM_ECORRUPT,
          "does not give parts");
    fails("HTTP/1.1 206 Part\r\nContent-Length: 6\r\nContent-Range: bytes 5-9/20\r\n\r\nhello!",
          CLOSE, RANGE(5, 5), FM_ECORRUPT, "announced 6 bytes for a part of 5");
    fails("HTTP/1.1 206 Part\r\nContent-Range: bytes 5-9/20\r\n\r\nhello!", CLOSE, RANGE(5, 5),
          FM_ECORRUPT, "more than the 5 bytes");
    fails("HTTP/1.1 206 Part\r\nContent-Range: bytes 5-9/20\r\n\r\nhel", CLOSE, RANGE(5, 5),
          FM_ECORRUPT, "sent 3 of the 5");
}

TEST(ranges_that_were_asked_for_come)
{
    static const struct {
        fmr_request q;
        const char *asked, *reply;
    } cases[] = {
        {{.from = 5, .bytes = 5}, "Range: bytes=5-9\r\n", "Content-Range: bytes 5-9/20"},
        {{.from = 5, .bytes = 50}, "Range: bytes=5-54\r\n", "Content-Range: bytes 5-9/10"},
        {{.from = 5, .bytes = FMR_HTTP_ANY}, "Range: bytes=5-\r\n", "Content-Range: bytes 5-9/10"},
        {{.from = 5, .bytes = FMR_HTTP_ANY}, "Range: bytes=5-\r\n", "Content-Range: bytes 5-9/*"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        server *s = server_new();
        fmr_http *h = client(1);
        fmr_answer a;
        char text[256];
        snprintf(text, sizeof text, "HTTP/1.1 206 Part\r\n%s\r\nContent-Length: 5\r\n\r\nhello",
                 cases[i].reply);
        will_say(s, text, KEEP);
        fmr_request q = cases[i].q;
        q.method = "GET";
        q.url = url_of(s, "/x");
        tk_ok(fmr_http_do(h, &q, &a));
        body_is(&a, 206, "hello");
        assert_non_null(strstr(s->request[0], cases[i].asked));
        fmr_answer_release(&a);
        fmr_http_close(h);
        server_free(s);
    }
}

TEST(what_may_pass_is_tried_again)
{
    server *s = server_new();
    fmr_answer a;
    will_say(s, "HTTP/1.1 429 Busy\r\nRetry-After: 0\r\nContent-Length: 1\r\n\r\nx", KEEP);
    will_say(s, "", CLOSE);
    will_say(s, OK_HEAD "Content-Length: 9\r\n\r\nhel", CLOSE);
    will_say(s, OK_HEAD "Content-Length: 5\r\n\r\nhello", KEEP);
    tk_ok(get(s, &a, 4));
    body_is(&a, 200, "hello");
    fmr_answer_release(&a);
    will_say(s, "HTTP/1.1 503 Busy\r\nContent-Length: 1\r\n\r\nx", KEEP);
    will_say(s, "HTTP/1.1 502 Busy\r\nContent-Length: 1\r\n\r\ny", KEEP);
    tk_ok(get(s, &a, 2));
    body_is(&a, 502, "y");
    tk_fails(fmr_answer_check(&a, "w"), FM_EIO, "HTTP 502");
    assert_null(strstr(fm_error_text(), "secret"));
    fmr_answer_release(&a);
    will_say(s, "HTTP/1.1 501 No\r\nContent-Length: 0\r\n\r\n", KEEP);
    tk_ok(get(s, &a, 3));
    assert_int_equal(a.status, 501);
    fmr_answer_release(&a);
    server_free(s);
}

static fm_status collect(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

TEST(a_dropped_connection_goes_on_where_it_ended)
{
    server *s = server_new();
    fmr_http *h = client(3);
    fmr_answer a;
    fm_buf all;
    fm_buf_init(&all, 0);
    will_say(s, OK_HEAD "Content-Length: 10\r\n\r\n01234", CLOSE);
    will_say(s, "HTTP/1.1 206 P\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\n56789",
             KEEP);
    fmr_request q = {.method = "GET", .url = url_of(s, "/x"), .take = collect, .ctx = &all};
    tk_fails(fmr_http_do(h, &q, &a), FM_ECORRUPT, "ended after 5 bytes");
    assert_int_equal(s->next, 1); /* bytes were taken: no second try */
    q.from = all.len;
    q.bytes = FMR_HTTP_ANY;
    tk_ok(fmr_http_do(h, &q, &a));
    assert_string_equal(fm_buf_cstr(&all), "0123456789");
    assert_int_equal(a.body.len, 0);
    fmr_answer_release(&a);
    fm_buf_release(&all);
    fmr_http_close(h);
    server_free(s);
}

static fm_status full(void *ctx, const void *data, size_t len)
{
    (void)ctx;
    (void)data;
    return fm_fail(FM_EIO, "disk full after %zu", len);
}

TEST(the_taker_s_failure_is_the_request_s)
{
    server *s = server_new();
    fmr_http *h = client(3);
    fmr_answer a;
    will_say(s, OK_HEAD "\r\nabcabc", ENDLESS);
    const fmr_request q = {.method = "GET", .url = url_of(s, "/x"), .take = full};
    tk_fails(fmr_http_do(h, &q, &a), FM_EIO, "disk full after");
    fmr_http_close(h);
    server_free(s);
}

TEST(redirects_are_followed_without_credentials_to_another_host)
{
    server *s = server_new(), *other = server_new();
    fmr_http *h = client(1);
    fmr_answer a;
    char to[256], back[256];
    snprintf(to, sizeof to,
             "HTTP/1.1 302 F\r\nLocation: http://evil:pw@127.0.0.1:%u/b?sig=1\r\n"
             "Content-Length: 3\r\n\r\nsee",
             other->port);
    snprintf(back, sizeof back,
             "HTTP/1.1 307 F\r\nLocation: http://127.0.0.1:%u/c\r\nContent-Length: 0\r\n\r\n",
             s->port);
    will_say(s, "HTTP/1.1 301 M\r\nLocation: ../a\r\nContent-Length: 0\r\n\r\n", KEEP);
    will_say(s, to, KEEP);
    will_say(other, back, KEEP);
    will_say(s, OK_HEAD "Content-Length: 5\r\n\r\nhello", KEEP);
    const fmr_request q = {.method = "GET",
                           .url = url_of(s, "/d/e/x"),
                           .header = {"X-Token: t", "Cookie: c", "Accept: text/x"},
                           .from = 0,
                           .bytes = FMR_HTTP_ANY,
                           .bearer = "abc"};
    tk_ok(fmr_http_do(h, &q, &a));
    body_is(&a, 200, "hello");
    assert_string_equal(strrchr(a.url, '/'), "/c");
    assert_non_null(strstr(s->request[1], "GET /d/a HTTP/1.1"));
    assert_non_null(strstr(s->request[1], "Authorization: Bearer abc"));
    assert_non_null(strstr(s->request[1], "X-Token: t"));
    assert_non_null(strstr(other->request[0], "GET /b?sig=1 HTTP/1.1"));
    assert_non_null(strstr(other->request[0], "Accept: text/x"));
    assert_non_null(strstr(other->request[0], "Range: bytes=0-"));
    assert_null(strstr(other->request[0], "Authorization"));
    assert_null(strstr(other->request[0], "X-Token"));
    assert_null(strstr(other->request[0], "Cookie"));
    assert_null(strstr(s->request[2], "Authorization")); /* the other host chose this address */
    fmr_answer_release(&a);
    fmr_http_close(h);
    server_free(s);
    server_free(other);
}

static void redirect_fails(const char *to, const char *text)
{
    char reply_text[512];
    snprintf(reply_text, sizeof reply_text,
             "HTTP/1.1 302 F\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", to);
    fails(reply_text, KEEP, NOTHING, FM_EIO, text);
}

TEST(redirects_to_other_schemes_and_loops_are_refused)
{
    redirect_fails("file:///etc/passwd", "redirects to a file: URL");
    redirect_fails("FILE:///etc/passwd", "redirects to a file: URL");
    redirect_fails("ftp://127.0.0.1/x", "redirects to a ftp: URL");
    redirect_fails("gopher://127.0.0.1/x", "redirects to a gopher: URL");
    redirect_fails("javascript:alert(1)", "redirects to");
    redirect_fails("http://", "redirects to");
    redirect_fails("http://a b/", "redirects to");
    server *s = server_new();
    fmr_answer a;
    for (int i = 0; i < 12; i++)
        will_say(s, "HTTP/1.1 302 F\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", KEEP);
    tk_fails(get(s, &a, 3), FM_EIO, "more than 10 redirects");
    assert_int_equal(s->next, 11);
    server_free(s);
}

TEST(what_writes_is_redirected_only_where_it_stays_what_it_is)
{
    server *s = server_new();
    fmr_http *h = client(1);
    fmr_answer a;
    fmr_request q = {.method = "POST", .url = url_of(s, "/x"), .body = fm_span_str("hello")};
    will_say(s, "HTTP/1.1 302 F\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", KEEP);
    will_say(s, "HTTP/1.1 307 F\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", KEEP);
    will_say(s, OK_HEAD "Content-Length: 0\r\n\r\n", KEEP);
    will_say(s, "HTTP/1.1 302 F\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", KEEP);
    tk_ok(fmr_http_do(h, &q, &a));
    assert_int_equal(a.status, 302);
    tk_fails(fmr_answer_check(&a, "w"), FM_EIO, "another place");
    fmr_answer_release(&a);
    tk_ok(fmr_http_do(h, &q, &a));
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(s->request[2], "POST /y "));
    assert_non_null(strstr(s->request[2], "\r\n\r\nhello"));
    fmr_answer_release(&a);
    q = (fmr_request){.method = "GET", .url = q.url, .no_redirect = true};
    tk_ok(fmr_http_do(h, &q, &a));
    assert_int_equal(a.status, 302);
    fmr_answer_release(&a);
    fmr_http_close(h);
    server_free(s);
}

static fm_status three_pieces(void *ctx, void *dst, size_t cap, size_t *got)
{
    unsigned *n = ctx;
    *got = *n < 3 ? 2 : 0;
    assert_true(cap >= 2);
    memcpy(dst, &"abcdef"[*n < 3 ? *n * 2 : 0], *got);
    ++*n;
    return FM_OK;
}

TEST(a_body_in_pieces_is_sent_once)
{
    server *s = server_new();
    fmr_http *h = client(3);
    fmr_answer a;
    unsigned n = 0;
    fmr_request q = {.method = "PUT",
                     .url = url_of(s, "/x"),
                     .send = three_pieces,
                     .send_bytes = FMR_HTTP_ANY,
                     .ctx = &n};
    will_say(s, "HTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n", KEEP);
    will_say(s, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", KEEP);
    tk_ok(fmr_http_do(h, &q, &a));
    assert_int_equal(a.status, 201);
    assert_non_null(strstr(s->request[0], "PUT /x "));
    assert_non_null(strstr(s->request[0], "ab"));
    assert_non_null(strstr(s->request[0], "ef"));
    fmr_answer_release(&a);
    n = 0;
    q.send_bytes = 6;
    tk_ok(fmr_http_do(h, &q, &a));
    assert_int_equal(a.status, 503);
    assert_int_equal(s->next, 2);
    assert_non_null(strstr(s->request[1], "Content-Length: 6\r\n"));
    assert_non_null(strstr(s->request[1], "\r\n\r\nabcdef"));
    fmr_answer_release(&a);
    fmr_http_close(h);
    server_free(s);
}

TEST(silence_ends_and_so_does_a_request_that_is_stopped)
{
    fails(OK_HEAD "Content-Le", STALL, NOTHING, FM_EIO, NULL);
    fails(OK_HEAD "Content-Length: 10\r\n\r\nhello", STALL, NOTHING, FM_EIO, NULL);
    server *s = server_new();
    fmr_http *h;
    fmr_answer a;
    tk_ok(fmr_http_open(&h, NULL)); /* which would wait for a minute */
    will_say(s, OK_HEAD "Content-Length: 10\r\n\r\nhello", CANCEL);
    const fmr_request q = {.method = "GET", .url = url_of(s, "/x")};
    const double begin = fm_now_s();
    tk_fails(fmr_http_do(h, &q, &a), FM_ECANCELLED, NULL);
    tk_assert_le(fm_now_s() - begin, 1.0, "seconds until it stopped");
    tk_fails(fmr_http_do(h, &q, &a), FM_ECANCELLED, NULL);
    fm_cancel(false);
    fmr_http_close(h);
    server_free(s);
}

TEST(no_text_shows_credentials)
{
    fmr_answer a = {.status = 403, .url = (char *)(uintptr_t) "https://u:pw@h.x:9/p@q?tok=pw#pw"};
    tk_fails(fmr_answer_check(&a, "push"), FM_EREFUSED, "push: https://h.x:9/p@q: HTTP 403");
    assert_null(strstr(fm_error_text(), "pw"));
    fmr_http *h = client(1);
    const char *const urls[] = {"http://u:pw@127.0.0.1:1/x?pw", "ftp://u:pw@127.0.0.1/",
                                "http://u:pw@/", "http:u:pw", "http://u:pw@a b/"};
    for (size_t i = 0; i < FM_ARRAY_LEN(urls); i++) {
        const fmr_request q = {.method = "GET", .url = urls[i]};
        tk_fails(fmr_http_do(h, &q, &a), i ? FM_EINVAL : FM_EIO, NULL);
        assert_null(strstr(fm_error_text(), "pw"));
    }
    const fmr_request q = {.method = "GET", .url = "http://h/", .bearer = "a\r\nX: y"};
    tk_fails(fmr_http_do(h, &q, &a), FM_EINVAL, "control byte");
    fmr_http_close(h);
    server *s = server_new();
    will_say(s, OK_HEAD "Content-Length: 0\r\n\r\n", KEEP);
    char with_user[80];
    snprintf(with_user, sizeof with_user, "http://u:p%%3aw@127.0.0.1:%u/", s->port);
    h = client(1);
    const fmr_request named = {.method = "GET", .url = with_user};
    tk_ok(fmr_http_do(h, &named, &a));
    assert_non_null(strstr(s->request[0], "Authorization: Basic dTpwOnc=\r\n")); /* u:p:w */
    assert_null(strchr(a.url, '@'));
    fmr_answer_release(&a);
    fmr_http_close(h);
    server_free(s);
}

TEST(lack_of_memory_is_reported)
{
    server *s = server_new();
    fmr_http *h = client(1);
    for (int i = 0; i < MAX_REPLIES; i++)
        will_say(s, OK_HEAD "Content-Length: 5\r\n\r\nhello", KEEP);
    const fmr_request q = {.method = "GET", .url = url_of(s, "/x"), .user = "u", .password = "p"};
    for (uint64_t n = 1;; n++) {
        fmr_answer a;
        fm_mem_fail_at(n, false);
        fm_status rc = fmr_http_do(h, &q, &a);
        fm_mem_fail_at(0, false);
        if (rc == FM_OK)
            body_is(&a, 200, "hello");
        fmr_answer_release(&a);
        if (rc == FM_OK)
            break;
        tk_fails(rc, FM_ENOMEM, NULL);
        assert_true(n < MAX_REPLIES);
    }
    fmr_http_close(h);
    server_free(s);
}

TEST(urls_are_escaped)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fmr_url_escape(&b, "a b/c%\xc3\xa9~-._?", true);
    fm_buf_char(&b, '|');
    fmr_url_escape(&b, "a/b", false);
    assert_string_equal(fm_buf_cstr(&b), "a%20b/c%25%C3%A9~-._%3F|a%2Fb");
    fm_buf_release(&b);
}

/* ==== TLS: a server of Python's, whose certificate this process makes ==== */

static const char tls_server[] =
    "import ssl, sys, http.server\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    protocol_version = 'HTTP/1.1'\n"
    "    def log_message(self, *a): pass\n"
    "    def do_GET(self):\n"
    "        down = self.path == '/down'\n"
    "        self.send_response(302 if down else 200)\n"
    "        if down: self.send_header('Location', 'http://127.0.0.1:1/')\n"
    "        self.send_header('Content-Length', '0')\n"
    "        self.end_headers()\n"
    "s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\n"
    "c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
    "c.load_cert_chain('cert.pem', 'key.pem')\n"
    "s.socket = c.wrap_socket(s.socket, server_side=True)\n"
    "print(s.server_address[1], flush=True)\n"
    "import threading\n"
    "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
    "sys.stdin.read()\n"; /* until this process closes the pipe, or ends */

TEST(tls_is_checked_and_never_left)
{
    char *dir = tk_scratch();
    char command[4096];
    snprintf(
        command, sizeof command,
        "cd '%s' && command -v python3 >/dev/null && openssl req -x509 -newkey rsa:2048 -nodes "
        "-keyout key.pem -out cert.pem -days 2 -subj /CN=t -addext "
        "subjectAltName=IP:127.0.0.1 2>/dev/null",
        dir);
    if (system(command) != 0) {
        print_message("skipped: no openssl or no python3\n");
        fm_free(dir);
        skip();
    }
    snprintf(command, sizeof command, "%s/server.py", dir);
    tk_ok(fm_write_file(command, tls_server, sizeof tls_server - 1));
    snprintf(command, sizeof command, "cd '%s' && mkfifo port && exec python3 server.py >port",
             dir);
    FILE *to = popen(command, "w");
    assert_non_null(to);
    snprintf(command, sizeof command, "%s/port", dir);
    while (!fm_path_exists(command))
        usleep(1000);
    FILE *from = fopen(command, "r");
    unsigned port = 0;
    assert_int_equal(fscanf(from, "%u", &port), 1);
    fclose(from);

    char ca[512], url[64];
    fmr_http *h = client(1);
    fmr_answer a;
    snprintf(ca, sizeof ca, "%s/cert.pem", dir);
    snprintf(url, sizeof url, "https://127.0.0.1:%u/", port);
    fmr_request q = {.method = "GET", .url = url};
    tk_fails(fmr_http_do(h, &q, &a), FM_EIO, "certificate is not trusted");
    fmr_http_close(h);
    const fmr_http_opts o = {.ca_file = ca, .tries = 1};
    tk_ok(fmr_http_open(&h, &o));
    tk_ok(fmr_http_do(h, &q, &a));
    assert_int_equal(a.status, 200);
    fmr_answer_release(&a);
    snprintf(url, sizeof url, "https://127.0.0.1:%u/down", port);
    tk_fails(fmr_http_do(h, &q, &a), FM_EIO, "redirects from https to http");
    fmr_http_close(h);
    pclose(to);
    fm_free(dir);
}

int main(void)
{
    /* A proxy of the machine is not what this is about. */
    unsetenv("http_proxy");
    unsetenv("https_proxy");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    unsetenv("HTTPS_PROXY");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_their_headers_come_back),
        cmocka_unit_test(more_than_the_limit_is_refused_while_it_arrives),
        cmocka_unit_test(lengths_that_do_not_hold_are_refused),
        cmocka_unit_test(other_ranges_than_asked_for_are_refused),
        cmocka_unit_test(ranges_that_were_asked_for_come),
        cmocka_unit_test(what_may_pass_is_tried_again),
        cmocka_unit_test(a_dropped_connection_goes_on_where_it_ended),
        cmocka_unit_test(the_taker_s_failure_is_the_request_s),
        cmocka_unit_test(redirects_are_followed_without_credentials_to_another_host),
        cmocka_unit_test(redirects_to_other_schemes_and_loops_are_refused),
        cmocka_unit_test(what_writes_is_redirected_only_where_it_stays_what_it_is),
        cmocka_unit_test(a_body_in_pieces_is_sent_once),
        cmocka_unit_test(silence_ends_and_so_does_a_request_that_is_stopped),
        cmocka_unit_test(no_text_shows_credentials),
        cmocka_unit_test(lack_of_memory_is_reported),
        cmocka_unit_test(urls_are_escaped),
        cmocka_unit_test(tls_is_checked_and_never_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
