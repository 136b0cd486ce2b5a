/* Addresses that the server's owner answers: bodies and answers beyond every queue, parts, heads,
 * failures before and after an answer began, clients that leave, too many at once, keys, the
 * end. */
#include "infer/serve/site.h"

#include "store/base/math/hash.h"
#include "store/base/os/clock.h"
#include "tests/model/serve_kit.h"

#define LONG_BYTES ((size_t)9 << 20) /* beyond both queues and the sockets' own */
#define FILE_BYTES 1000u

static sk_family family;
static atomic_int waiting, outcome; /* of "wait": callbacks that wait; how the last one ended */

static int setup(void **state)
{
    (void)state;
    sk_family_init(&family);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sk_family_free(&family);
    return 0;
}

/* ==== the site ==== */

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 7 + (i >> 9));
}

static fm_status answer_text(fm_site_call *c, const char *text)
{
    FM_TRY(fm_site_set(c, "Content-Type", "text/plain"));
    FM_TRY(fm_site_begin(c, 200, strlen(text)));
    return fm_site_write(c, text, strlen(text));
}

/* Digest and length of the request's body. */
static fm_status sum(fm_site_call *c)
{
    uint8_t some[30000];
    char hex[FM_HEX_CHARS + 1], text[128];
    fm_hasher *h = NULL;
    fm_digest d;
    size_t total = 0, got = 1;
    fm_status rc = fm_hasher_new(&h);
    while (rc == FM_OK && got > 0) {
        rc = fm_site_read(c, some, sizeof some, &got);
        FM_THEN(rc, fm_hasher_update(h, some, got));
        total += got;
    }
    FM_THEN(rc, fm_hasher_final(h, &d));
    fm_hasher_free(h);
    FM_TRY(rc);
    fm_digest_hex(&d, hex);
    (void)snprintf(text, sizeof text, "%zu %s", total, hex);
    return answer_text(c, text);
}

static fm_status make(fm_site_call *c, uint64_t announced)
{
    uint8_t some[30000];
    FM_TRY(fm_site_begin(c, 200, announced));
    for (size_t at = 0; at < LONG_BYTES;) {
        const size_t n = FM_MIN(sizeof some, LONG_BYTES - at);
        for (size_t i = 0; i < n; i++)
            some[i] = byte_at(at + i);
        FM_TRY(fm_site_write(c, some, n));
        at += n;
    }
    return FM_OK;
}

static fm_status part(fm_site_call *c)
{
    const char *range = fm_site_header(c, "rAnGe");
    char text[64];
    uint8_t some[FILE_BYTES];
    size_t from = 0, to = FILE_BYTES - 1;
    if (range) {
        char *end = NULL;
        from = strtoul(range + strlen("bytes="), &end, 10);
        to = strtoul(end + 1, NULL, 10);
        (void)snprintf(text, sizeof text, "bytes %zu-%zu/%u", from, to, FILE_BYTES);
        FM_TRY(fm_site_set(c, "Content-Range", text));
    }
    FM_TRY(fm_site_set(c, "ETag", "\"abc\""));
    for (size_t i = 0; i < FILE_BYTES; i++)
        some[i] = byte_at(i);
    FM_TRY(fm_site_begin(c, range ? 206 : 200, to - from + 1));
    return fm_site_write(c, some + from, to - from + 1);
}

static fm_status cut(fm_site_call *c)
{
    FM_TRY(fm_site_begin(c, 200, fm_site_argument(c, "known") ? 1000 : FM_SITE_UNKNOWN));
    FM_TRY(fm_site_write(c, "0123456789", 10));
    return fm_fail(FM_ECORRUPT, "in the midst of it");
}

static fm_status wait_for_body(fm_site_call *c)
{
    uint8_t some[64];
    size_t got = 1;
    fm_status rc = FM_OK;
    atomic_fetch_add(&waiting, 1);
    while (rc == FM_OK && got > 0)
        rc = fm_site_read(c, some, sizeof some, &got);
    atomic_store(&outcome, rc);
    atomic_fetch_sub(&waiting, 1);
    return rc == FM_OK ? answer_text(c, "it came") : rc;
}

static fm_status answer(void *ctx, fm_site_call *c)
{
    const char *path = fm_site_path(c), *what = fm_site_argument(c, "what");
    assert_ptr_equal(ctx, &family);
    if (strcmp(path, "sum") == 0)
        return sum(c);
    if (strcmp(path, "make") == 0)
        return make(c, FM_SITE_UNKNOWN);
    if (strcmp(path, "make known") == 0)
        return make(c, LONG_BYTES);
    if (strcmp(path, "part") == 0)
        return part(c);
    if (strcmp(path, "cut") == 0)
        return cut(c);
    if (strcmp(path, "wait") == 0)
        return wait_for_body(c);
    if (strcmp(path, "early") == 0)
        return answer_text(c, "no need to read it");
    if (strcmp(path, "nothing") == 0)
        return FM_OK;
    if (strcmp(path, "say") == 0)
        return answer_text(c, what ? what : "");
    if (strcmp(path, "split") == 0)
        return fm_site_set(c, "X-Text", "a\r\nSet-Cookie: b");
    return fm_fail(FM_ENOTFOUND, "there is no '%s' on this site", path);
}

static bool takes_say(const char *path)
{
    return strncmp(path, "say", 3) == 0;
}

static fm_status answer_path(void *ctx, fm_site_call *c)
{
    (void)ctx;
    return answer_text(c, fm_site_path(c));
}

static const fm_server_site sites[] = {
    {"/site/", "GET, HEAD, PUT", false, 3, &family, answer, NULL},
    {"/wide/", "GET, HEAD, PUT", false, 8, &family, answer, NULL},
    {"/end", "GET", false, 0, NULL, answer_path, NULL},
    {"/", "GET", false, 0, NULL, answer_path, takes_say},
    {.prefix = NULL},
};

static void start(sk_server *s, const char *key)
{
    fm_server_opts o = sk_opts(&family);
    o.sites = sites;
    o.api_key = key;
    sk_start(s, &family, &o);
}

/* ==== tests ==== */

static void want_sum(const sk_reply *r, const uint8_t *data, size_t len)
{
    char hex[FM_HEX_CHARS + 1], text[128];
    fm_digest d;
    tk_ok(fm_sha256(&d, data, len));
    fm_digest_hex(&d, hex);
    (void)snprintf(text, sizeof text, "%zu %s", len, hex);
    assert_int_equal(r->status, 200);
    assert_string_equal(fm_buf_cstr(&r->body), text);
}

TEST(long_bodies_stream)
{
    static const char known[] = "PUT /site/sum HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                "Content-Length: 9437184\r\n\r\n";
    static const char chunked[] = "PUT /site/sum HTTP/1.1\r\nHost: localhost\r\n"
                                  "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    sk_server s;
    sk_reply r;
    uint8_t *data = fm_malloc(LONG_BYTES);
    assert_non_null(data);
    for (size_t i = 0; i < LONG_BYTES; i++)
        data[i] = byte_at(i);
    start(&s, NULL);
    int fd = sk_connect(fm_server_port(s.server));
    sk_send(fd, known, sizeof known - 1);
    sk_send(fd, data, LONG_BYTES);
    sk_read(&r, fd);
    want_sum(&r, data, LONG_BYTES);
    sk_release(&r);
    fd = sk_connect(fm_server_port(s.server));
    sk_send(fd, chunked, sizeof chunked - 1);
    for (size_t at = 0; at < LONG_BYTES; at += LONG_BYTES / 9) {
        sk_send(fd, "100000\r\n", 8);
        sk_send(fd, data + at, LONG_BYTES / 9);
        sk_send(fd, "\r\n", 2);
    }
    sk_send(fd, "0\r\n\r\n", 5);
    sk_read(&r, fd);
    want_sum(&r, data, LONG_BYTES);
    sk_release(&r);
    sk_stop(&s);
    fm_free(data);
}

TEST(long_answers_stream)
{
    static const char *const path[] = {"/site/make", "/site/make%20known"};
    sk_server s;
    sk_reply r;
    start(&s, NULL);
    for (size_t i = 0; i < FM_ARRAY_LEN(path); i++) {
        sk_ask(&r, fm_server_port(s.server), "GET", path[i], "", NULL);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.body.len, LONG_BYTES);
        for (size_t k = 0; k < LONG_BYTES; k++)
            if (r.body.data[k] != byte_at(k))
                fail_msg("%s: byte %zu is wrong", path[i], k);
        assert_int_equal(strstr(r.head, "Content-Length: 9437184") != NULL, i == 1);
        sk_release(&r);
    }
    sk_stop(&s);
}

TEST(parts_heads_and_arguments)
{
    sk_server s;
    sk_reply r;
    start(&s, NULL);
    const uint16_t p = fm_server_port(s.server);
    sk_ask(&r, p, "GET", "/site/part", "Range: bytes=100-199\r\n", NULL);
    assert_int_equal(r.status, 206);
    assert_int_equal(r.body.len, 100);
    assert_int_equal(r.body.data[0], byte_at(100));
    assert_non_null(strstr(r.head, "Content-Range: bytes 100-199/1000"));
    sk_release(&r);
    sk_ask(&r, p, "HEAD", "/site/part", "", NULL);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.len, 0);
    assert_non_null(strstr(r.head, "Content-Length: 1000"));
    assert_non_null(strstr(r.head, "ETag: \"abc\""));
    sk_release(&r);
    sk_ask(&r, p, "HEAD", "/site/make", "", NULL);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body.len, 0);
    sk_release(&r);
    sk_ask(&r, p, "GET", "/site/say?x=1&what=two%20words", "", NULL);
    assert_string_equal(fm_buf_cstr(&r.body), "two words");
    sk_release(&r);
    sk_stop(&s);
}

static void want_error(uint16_t port, const char *method, const char *path, const char *headers,
                       int status, const char *text)
{
    sk_reply r;
    sk_ask(&r, port, method, path, headers, NULL);
    if (r.status != status || !strstr(fm_buf_cstr(&r.body), text))
        fail_msg("%s %s: %d and not %d: %s", method, path, r.status, status, fm_buf_cstr(&r.body));
    sk_release(&r);
}

TEST(a_site_has_the_paths_that_it_takes)
{
    static const char *const path[][2] = {
        {"/end", ""},
        {"/end/x", "/x"},
        {"/ending", NULL},
        {"/say", "say"},
        {"/says", "says"},
        {"/no", NULL},
        {"/", NULL},
        {"/say%2fx", "say/x"},
        {"/say%00x", "say%00x"},
        {"/say%2g%", "say%2g%"},
        {"/say%25", "say%"},
    };
    sk_server s;
    sk_reply r;
    start(&s, NULL);
    for (size_t i = 0; i < FM_ARRAY_LEN(path); i++) {
        sk_ask(&r, fm_server_port(s.server), "GET", path[i][0], "", NULL);
        assert_int_equal(r.status, path[i][1] ? 200 : 404);
        if (path[i][1])
            assert_string_equal(fm_buf_cstr(&r.body), path[i][1]);
        sk_release(&r);
    }
    sk_stop(&s);
}

TEST(failures_before_an_answer_are_told)
{
    sk_server s;
    start(&s, NULL);
    const uint16_t p = fm_server_port(s.server);
    want_error(p, "GET", "/site/none", "", 404, "there is no 'none' on this site");
    want_error(p, "GET", "/site/nothing", "", 500, "there is no answer");
    want_error(p, "GET", "/site/split", "", 400, "cannot be set");
    want_error(p, "POST", "/site/say", "Content-Length: 0\r\n", 405, "GET, HEAD, PUT");
    want_error(p, "GET", "/sit/say", "", 404, "there is nothing at /sit/say");
    sk_stop(&s);
}

TEST(failures_within_an_answer_cut_it)
{
    sk_server s;
    sk_reply r;
    start(&s, NULL);
    sk_ask(&r, fm_server_port(s.server), "GET", "/site/cut", "", NULL);
    assert_int_equal(r.status, 200);
    assert_null(strstr((const char *)r.raw.data, "\r\n0\r\n")); /* the last chunk is missing */
    sk_release(&r);
    sk_ask(&r, fm_server_port(s.server), "GET", "/site/cut?known=1", "", NULL);
    assert_int_equal(r.status, 200);
    assert_true(r.body.len < 1000);
    sk_release(&r);
    sk_stop(&s);
}

TEST(a_body_that_is_not_wanted_is_thrown_away)
{
    static const char head[] =
        "PUT /site/early HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        "Content-Length: 9437184\r\n\r\n";
    sk_server s;
    sk_reply r;
    uint8_t *data = fm_calloc(1, LONG_BYTES);
    assert_non_null(data);
    start(&s, NULL);
    int fd = sk_connect(fm_server_port(s.server));
    sk_send(fd, head, sizeof head - 1);
    sk_send(fd, data, LONG_BYTES);
    sk_read(&r, fd);
    assert_int_equal(r.status, 200);
    assert_string_equal(fm_buf_cstr(&r.body), "no need to read it");
    sk_release(&r);
    sk_stop(&s);
    fm_free(data);
}

TEST(keys_and_pages_are_checked)
{
    sk_server s;
    sk_reply r;
    fm_server *none = NULL;
    fm_engine *e = ik_engine(1, 8);
    fm_server_opts o = sk_opts(&family);
    fm_server_site writes[2] = {sites[0], {.prefix = NULL}};
    writes[0].writes = true;
    o.sites = writes;
    tk_fails(fm_server_new(&none, e, &o), FM_EINVAL, "needs an API key");
    fm_engine_free(e);
    start(&s, "sesame");
    want_error(fm_server_port(s.server), "GET", "/site/say", "", 401, "API key");
    want_error(fm_server_port(s.server), "PUT", "/site/sum", "Authorization: Bearer x\r\n", 401,
               "API key");
    sk_ask(&r, fm_server_port(s.server), "GET", "/site/say?what=in",
           "Authorization: Bearer sesame\r\n", NULL);
    assert_string_equal(fm_buf_cstr(&r.body), "in");
    sk_release(&r);
    sk_stop(&s);
    start(&s, NULL);
    want_error(fm_server_port(s.server), "PUT", "/site/sum",
               "Origin: https://evil.example\r\nContent-Length: 0\r\n", 403, "web pages");
    sk_stop(&s);
}

/* Sends the head of a request whose body does not come, and waits for its callback. */
static int begin_waiting_at(const char *site, uint16_t port, int count)
{
    char head[128];
    const int n = snprintf(head, sizeof head,
                           "PUT %swait HTTP/1.1\r\nHost: localhost\r\n"
                           "Content-Length: 1000\r\n\r\nabc",
                           site);
    int fd = sk_connect(port);
    sk_send(fd, head, (size_t)n);
    while (atomic_load(&waiting) < count)
        (void)usleep(1000);
    return fd;
}

static int begin_waiting(uint16_t port, int count)
{
    return begin_waiting_at("/site/", port, count);
}

TEST(too_many_at_once_are_503)
{
    sk_server s;
    sk_reply r;
    int fd[3];
    start(&s, NULL);
    for (int i = 0; i < 3; i++)
        fd[i] = begin_waiting(fm_server_port(s.server), i + 1);
    sk_ask(&r, fm_server_port(s.server), "GET", "/site/say", "", NULL);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.head, "Retry-After: "));
    sk_release(&r);
    sk_ask(&r, fm_server_port(s.server), "GET", "/health", "", NULL);
    assert_int_equal(r.status, 200);
    sk_release(&r);
    for (int i = 0; i < 3; i++) {
        static const char rest[997];
        sk_send(fd[i], rest, sizeof rest);
        char c;
        assert_int_equal(recv(fd[i], &c, 1, 0), 1);
        (void)close(fd[i]);
    }
    while (atomic_load(&waiting))
        (void)usleep(1000);
    sk_stop(&s);
}

/* Asks for a long answer, and waits for its first byte: then it has its place. */
static int begin_reading(uint16_t port)
{
    char first;
    static const char head[] = "GET /site/make HTTP/1.1\r\nHost: localhost\r\n"
                               "Connection: close\r\n\r\n";
    int fd = sk_connect(port);
    sk_send(fd, head, sizeof head - 1);
    assert_int_equal(recv(fd, &first, 1, 0), 1);
    return fd;
}

static int status_now(uint16_t port, const char *path)
{
    sk_reply r;
    sk_ask(&r, port, "GET", path, "", NULL);
    const int status = r.status;
    sk_release(&r);
    return status;
}

/* One sends a byte in a tenth of a second, one reads one; the third reads 100 KB in a second. */
TEST(who_trickles_loses_its_place_to_another)
{
    sk_server s;
    char some[10000];
    size_t got = 0;
    ssize_t n;
    start(&s, NULL);
    const uint16_t p = fm_server_port(s.server);
    const int sends = begin_waiting(p, 1), reads = begin_reading(p), slow = begin_reading(p);
    const double begun = fm_now_s();
    assert_int_equal(status_now(p, "/site/say"), 503);
    while (status_now(p, "/site/say") == 503) {
        (void)usleep(100000);
        (void)send(sends, "x", 1, MSG_NOSIGNAL);
        assert_true(recv(reads, some, 1, 0) <= 1);
        n = recv(slow, some, sizeof some, 0);
        assert_true(n > 0);
        got += (size_t)n;
        if (fm_now_s() - begun > 60)
            fail_msg("clients that trickle keep their places for a minute");
    }
    while ((n = recv(slow, some, sizeof some, 0)) > 0)
        got += (size_t)n;
    assert_true(n == 0 && got > LONG_BYTES); /* the honest one was left alone */
    (void)close(sends);
    (void)close(reads);
    (void)close(slow);
    while (atomic_load(&waiting))
        (void)usleep(1000);
    sk_stop(&s);
}

static int connect_from_elsewhere(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.2", &a.sin_addr), 1);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &a.sin_addr), 1);
    a.sin_port = htons(port);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

TEST(a_client_has_three_quarters_of_the_places)
{
    static const char head[] = "GET /wide/say HTTP/1.1\r\nHost: localhost\r\n"
                               "Connection: close\r\n\r\n";
    sk_server s;
    sk_reply r;
    int fd[6];
    start(&s, NULL);
    const uint16_t p = fm_server_port(s.server);
    for (int i = 0; i < 6; i++)
        fd[i] = begin_waiting_at("/wide/", p, i + 1);
    assert_int_equal(status_now(p, "/wide/say"), 503);
    const int other = connect_from_elsewhere(p);
    sk_send(other, head, sizeof head - 1);
    sk_read(&r, other);
    assert_int_equal(r.status, 200);
    sk_release(&r);
    for (int i = 0; i < 6; i++)
        (void)close(fd[i]);
    while (atomic_load(&waiting))
        (void)usleep(1000);
    sk_stop(&s);
}

TEST(a_client_that_leaves_ends_its_callback)
{
    sk_server s;
    start(&s, NULL);
    atomic_store(&outcome, FM_OK);
    (void)close(begin_waiting(fm_server_port(s.server), 1));
    while (atomic_load(&waiting))
        (void)usleep(1000);
    assert_int_equal(atomic_load(&outcome), FM_EIO);
    sk_stop(&s);
}

TEST(the_end_of_the_server_ends_callbacks)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    o.sites = sites;
    sk_open(&s, &family, &o, 0); /* not run: its end does not wait for requests */
    atomic_store(&outcome, FM_OK);
    const int fd = begin_waiting(fm_server_port(s.server), 1);
    fm_server_free(s.server);
    assert_int_equal(atomic_load(&waiting), 0);
    assert_int_equal(atomic_load(&outcome), FM_ECANCELLED);
    (void)close(fd);
    fm_engine_free(s.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_bodies_stream),
        cmocka_unit_test(long_answers_stream),
        cmocka_unit_test(parts_heads_and_arguments),
        cmocka_unit_test(a_site_has_the_paths_that_it_takes),
        cmocka_unit_test(failures_before_an_answer_are_told),
        cmocka_unit_test(failures_within_an_answer_cut_it),
        cmocka_unit_test(a_body_that_is_not_wanted_is_thrown_away),
        cmocka_unit_test(keys_and_pages_are_checked),
        cmocka_unit_test(too_many_at_once_are_503),
        cmocka_unit_test(who_trickles_loses_its_place_to_another),
        cmocka_unit_test(a_client_has_three_quarters_of_the_places),
        cmocka_unit_test(a_client_that_leaves_ends_its_callback),
        cmocka_unit_test(the_end_of_the_server_ends_callbacks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
