/* What one client may take of the server: memory of answers, places, time, and what a web page may
 * ask for. */
#include "infer/serve/internal.h"
#include "tests/model/serve_kit.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static sk_family family;

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

static void want_status(int fd, int status, const char *needle)
{
    sk_reply r;
    sk_read(&r, fd);
    if (r.status != status || !strstr(fm_buf_cstr(&r.body), needle))
        fail_msg("%d, not %d with '%s': %s", r.status, status, needle, fm_buf_cstr(&r.body));
    assert_true(status != 503 || strstr(r.head, "Retry-After: "));
    sk_release(&r);
}

/* ==== memory of answers ==== */

static const char *const asked[] = {
    HI ",\"logprobs\":true,\"top_logprobs\":20,\"return_token_ids\":true",
    "\"prompt\":[\"a\",\"b\"],\"logprobs\":20,\"return_token_ids\":true"};

static fm_json *ask_n(uint16_t port, int form, unsigned n, unsigned seed, bool *pieces)
{
    char body[512];
    sk_reply r;
    (void)snprintf(body, sizeof(body),
                   "{\"model\":\"m1\",%s,\"n\":%u,\"seed\":%u,\"max_tokens\":50,"
                   "\"ignore_eos\":true}",
                   asked[form], n, seed);
    sk_ask(&r, port, "POST", form ? TEXT : CHAT, "", body);
    assert_int_equal(r.status, 200);
    *pieces = strstr(r.head, "chunked") != NULL;
    fm_json *o = sk_json(&r);
    sk_release(&r);
    return o;
}

/* Choice i draws with seed + i, so that a long answer is made of the choices of short ones. */
TEST(long_answers_leave_in_pieces)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    for (int form = 0; form < 2; form++) {
        bool pieces;
        unsigned n = form ? 24 : 20;
        fm_json *all = ask_n(p, form, n, 100, &pieces);
        const fm_json *choices = fm_json_get(all, "choices");
        assert_true(pieces);
        assert_int_equal(fm_json_count(choices), form ? 2 * n : n);
        assert_int_equal(fm_json_int(fm_json_path(all, "usage.completion_tokens"), 0),
                         50 * fm_json_count(choices));
        for (unsigned i = 0; i < n; i += 7) {
            fm_json *one = ask_n(p, form, 1, 100 + i, &pieces);
            const fm_json *a = fm_json_at(choices, i),
                          *b = fm_json_at(fm_json_get(one, "choices"), 0);
            static const char *const same[] = {
                "message", "text", "logprobs", "finish_reason", "prompt_token_ids", "token_ids"};
            assert_false(pieces);
            assert_int_equal(fm_json_int(fm_json_get(a, "index"), -1), i);
            assert_int_equal(fm_json_count(fm_json_get(a, "token_ids")), 50);
            for (size_t k = 0; k < FM_ARRAY_LEN(same); k++)
                assert_true(fm_json_equal(fm_json_get(a, same[k]), fm_json_get(b, same[k])));
            fm_json_free(one);
        }
        fm_json_free(all);
    }
    sk_stop(&s);
}

static size_t tokens_of(const fm_json *choice)
{
    return fm_json_count(fm_json_path(choice, "logprobs.tokens"));
}

/* Whoever reads late gets what piled up in chunks of a bounded size. */
TEST(late_readers_get_small_chunks)
{
    sk_server s;
    sk_reply r;
    fm_buf text;
    size_t most = 0, tokens = 0;
    bool done = false;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    int fd = sk_begin(p, "POST", TEXT, "",
                      "{\"model\":\"m0\",\"prompt\":\"a\",\"n\":2,\"seed\":7,\"max_tokens\":3000,"
                      "\"logprobs\":20,\"ignore_eos\":true,\"stream\":true}");
    sk_wait_metric(p, "requests_running", 2);
    sk_wait_metric(p, "requests_running", 0);
    sk_read(&r, fd);
    assert_int_equal(r.status, 200);
    fm_buf_init(&text, 0);
    for (const char *at = fm_buf_cstr(&r.body); (at = strstr(at, "data: ")); at++) {
        fm_json *e = NULL;
        done = strncmp(at, "data: [DONE]", 12) == 0;
        if (done)
            break;
        tk_ok(
            fm_json_parse(&e, fm_span_of(at + 6, (size_t)(strstr(at, "\n\n") - at - 6)), "event"));
        const fm_json *c = fm_json_at(fm_json_get(e, "choices"), 0);
        fm_span piece = fm_json_str(fm_json_get(c, "text"));
        most = FM_MAX(most, tokens_of(c));
        tokens += tokens_of(c);
        if (fm_json_int(fm_json_get(c, "index"), -1) == 0)
            fm_buf_append(&text, piece.data, piece.len);
        fm_json_free(e);
    }
    assert_true(done);
    assert_int_equal(tokens, 6000);
    assert_true(most > 1 && most <= 64);
    fm_json *whole = sk_post(p, TEXT,
                             "{\"model\":\"m0\",\"prompt\":\"a\",\"seed\":7,\"max_tokens\":3000,"
                             "\"ignore_eos\":true}");
    fm_span want = fm_json_str(fm_json_get(fm_json_at(fm_json_get(whole, "choices"), 0), "text"));
    assert_true(fm_span_eq(fm_buf_span(&text), want));
    fm_json_free(whole);
    fm_buf_release(&text);
    sk_release(&r);
    sk_stop(&s);
}

#define LARGE                                                                                      \
    "{\"model\":\"m0\",\"prompt\":\"a\",\"n\":20,\"max_tokens\":60000,\"logprobs\":20,"            \
    "\"ignore_eos\":true,\"stream\":true}" /* 221 MB at most, of 302 */

TEST(answers_together_have_a_bound)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    want_status(sk_begin(p, "POST", TEXT, "",
                         "{\"model\":\"m0\",\"prompt\":\"a\",\"n\":128,\"max_tokens\":60000,"
                         "\"logprobs\":20}"),
                400, "'max_tokens'");
    int fd = sk_begin(p, "POST", TEXT, "", LARGE);
    sk_wait_metric(p, "requests_running", 20);
    want_status(sk_begin(p, "POST", TEXT, "", LARGE), 503, "'max_tokens'");
    fm_json_free(sk_post(p, TEXT, "{\"model\":\"m0\",\"prompt\":\"a\",\"logprobs\":20}"));
    (void)close(fd);
    sk_wait_metric(p, "requests_running", 0);
    fd = sk_begin(p, "POST", TEXT, "", LARGE);
    sk_wait_metric(p, "requests_running", 20); /* there is room again */
    (void)close(fd);
    sk_stop(&s);
}

/* ==== places and time ==== */

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds until the server hangs up on a client that goes on sending a byte at a time. */
static double dribble(uint16_t port, const char *head)
{
    double begun = now_s();
    int fd = sk_connect(port);
    char c;
    sk_send(fd, head, strlen(head));
    while (now_s() - begun < 20.0 && recv(fd, &c, 1, MSG_DONTWAIT) != 0) {
        sk_pause_ms(50);
        if (send(fd, "a", 1, MSG_NOSIGNAL) < 0)
            break;
    }
    (void)close(fd);
    return now_s() - begun;
}

TEST(bytes_do_not_put_off_a_deadline)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_open(&s, &family, &o, 0);
    s.server->conns.head_s = s.server->conns.body_s = 1.0;
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    double head = dribble(p, "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\nX-a: ");
    double body = dribble(p, "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\n"
                             "Content-Length: 4000\r\n\r\n");
    assert_true(head > 0.9 && head < 10.0);
    assert_true(body > 0.9 && body < 10.0);
    /* what runs or waits has none, and neither has whoever sends as fast as a slow line */
    int fd = sk_begin(p, "POST", TEXT, "",
                      "{\"model\":\"m0\",\"prompt\":\"a\",\"ignore_eos\":"
                      "true,\"max_tokens\":60000,\"stream\":true}");
    sk_wait_metric(p, "requests_running", 1);
    char spaces[2048];
    memset(spaces, ' ', sizeof(spaces));
    int slow = sk_begin(p, "POST", TEXT, "Content-Length: 20522\r\n", NULL);
    for (int i = 0; i < 10; i++) {
        sk_send(slow, spaces, sizeof(spaces));
        sk_pause_ms(200);
    }
    sk_send(slow, "{\"model\":\"m0\",\"prompt\":\"a\",\"max_tokens\":1}", 42);
    want_status(slow, 200, "\"usage\"");
    assert_true(sk_metric(p, "requests_running") > 0.5);
    (void)close(fd);
    sk_stop(&s);
}

#define CROWD 300

TEST(a_crowd_that_says_nothing_shuts_nobody_out)
{
    sk_server s;
    sk_reply r;
    int crowd[CROWD];
    fm_server_opts o = sk_opts(&family);
    o.max_running = o.max_queue = 1; /* 130 places */
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = sk_connect(p);
        sk_send(crowd[i], "GET /health HTTP/1.1\r\nX-a: ", 28);
    }
    double begun = now_s();
    sk_ask(&r, p, "GET", "/health", "", NULL);
    assert_int_equal(r.status, 200);
    assert_true(now_s() - begun < 20.0);
    sk_release(&r);
    for (int i = 0; i < CROWD; i++)
        (void)close(crowd[i]);
    sk_stop(&s);
}

TEST(a_client_has_a_share_of_the_places)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    sk_open(&s, &family, &o, 0);
    assert_int_equal(s.server->conns.places, 32 + 256 + 128);
    assert_int_equal(s.server->conns.share, 312);
    s.server->conns.share = 2;
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    int one = sk_begin(p, "POST", TEXT, "", LARGE);
    sk_wait_metric(p, "requests_running", 20);
    int two = sk_begin(p, "POST", TEXT, "Content-Length: 10\r\n", NULL);
    while (sk_ask(&r, p, "GET", "/v1/models", "", NULL), r.status == 200)
        sk_release(&r);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(fm_buf_cstr(&r.body), "of this client"));
    sk_release(&r);
    sk_ask(&r, p, "GET", "/health", "", NULL);
    assert_int_equal(r.status, 200);
    sk_release(&r);
    (void)close(one);
    (void)close(two);
    sk_stop(&s);
}

/* ==== who asks ==== */

/* The status of a request that is sent as it stands. */
static int status_of(uint16_t port, const char *request)
{
    sk_reply r;
    int fd = sk_connect(port);
    sk_send(fd, request, strlen(request));
    sk_read(&r, fd);
    int status = r.status;
    sk_release(&r);
    return status;
}

static int post_with(uint16_t port, const char *headers)
{
    sk_reply r;
    sk_ask(&r, port, "POST", TEXT, headers, "{\"model\":\"m0\",\"prompt\":\"a\",\"max_tokens\":1}");
    int status = r.status;
    sk_release(&r);
    return status;
}

TEST(pages_of_other_sites_may_not_ask)
{
    static const struct {
        const char *headers;
        int status;
    } table[] = {
        {"Content-Type: text/plain\r\nOrigin: http://evil.com\r\n", 403},
        {"Content-Type: application/x-www-form-urlencoded\r\nOrigin: null\r\n", 403},
        {"Content-Type: application/json\r\nOrigin: https://localhost.evil.com\r\n", 403},
        {"Origin: http://127.0.0.1:80.evil.com\r\n", 403},
        {"Sec-Fetch-Site: cross-site\r\n", 403},
        {"Content-Type: application/x-www-form-urlencoded\r\n", 200}, /* curl -d */
        {"Content-Type: text/plain\r\n", 200},
        {"Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n", 200},
        {"Origin: http://127.0.0.1:3000\r\nSec-Fetch-Site: cross-site\r\n", 200},
        {"Origin: https://[::1]:3000\r\n", 200},
        {"Sec-Fetch-Site: none\r\n", 200},
    };
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    for (size_t i = 0; i < FM_ARRAY_LEN(table); i++) {
        int status = post_with(p, table[i].headers);
        if (status != table[i].status)
            fail_msg("%s: %d, not %d", table[i].headers, status, table[i].status);
    }
    sk_stop(&s);
    o.api_key = "sesame"; /* a page does not have it */
    sk_start(&s, &family, &o);
    assert_int_equal(post_with(fm_server_port(s.server),
                               "Origin: https://ui.example\r\nAuthorization: Bearer sesame\r\n"),
                     200);
    sk_stop(&s);
}

TEST(hosts_are_whole_names)
{
    static const struct {
        const char *host;
        int status;
    } table[] = {{"[::1]evil.com", 403},     {"[::1]", 200},      {"[::1]:8080", 200},
                 {"localhost.evil", 403},    {"localhost:", 200}, {"LOCALHOST:80", 200},
                 {"localhost:80.evil", 403}, {"127.0.0.1", 200},  {"127.0.0.1.evil.com:80", 403}};
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    for (size_t i = 0; i < FM_ARRAY_LEN(table); i++) {
        char text[160];
        (void)snprintf(text, sizeof(text),
                       "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                       table[i].host);
        int status = status_of(fm_server_port(s.server), text);
        if (status != table[i].status)
            fail_msg("%s: %d, not %d", table[i].host, status, table[i].status);
    }
    sk_stop(&s);
}

/* sk_read reads to the end of the connection: that it returns says that it was closed. */
TEST(heads_of_two_meanings_end_the_connection)
{
    static const char head[] = "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\n";
    static const char *const lines[] = {
        "Host: localhost\r\nContent-Length: 2\r\n\r\n{}",
        "hOST: evil.example\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2, 2\r\n\r\n{}",
        "Content-Length: -2\r\n\r\n{}",
        "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: identity\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n2\r\n{}\r\n0\r\n\r\n"};
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    for (size_t i = 0; i < FM_ARRAY_LEN(lines); i++) {
        char text[256];
        double begun = now_s();
        (void)snprintf(text, sizeof(text), "%s%s", head, lines[i]);
        int status = status_of(fm_server_port(s.server), text);
        if (status != 400 || now_s() - begun > 20.0)
            fail_msg("%s: %d after %g s", lines[i], status, now_s() - begun);
    }
    sk_stop(&s);
}

TEST(clients_that_left_are_no_503)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    int fd = sk_begin(p, "POST", TEXT, "",
                      "{\"model\":\"m0\",\"prompt\":\"a\",\"max_tokens\":60000,"
                      "\"ignore_eos\":true}");
    sk_wait_metric(p, "requests_running", 1);
    (void)close(fd);
    sk_wait_metric(p, "requests_total{code=\"499\"}", 1);
    assert_true(sk_metric(p, "requests_total{code=\"503\"}") < 0);
    sk_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_answers_leave_in_pieces),
        cmocka_unit_test(late_readers_get_small_chunks),
        cmocka_unit_test(answers_together_have_a_bound),
        cmocka_unit_test(bytes_do_not_put_off_a_deadline),
        cmocka_unit_test(a_crowd_that_says_nothing_shuts_nobody_out),
        cmocka_unit_test(a_client_has_a_share_of_the_places),
        cmocka_unit_test(pages_of_other_sites_may_not_ask),
        cmocka_unit_test(hosts_are_whole_names),
        cmocka_unit_test(heads_of_two_meanings_end_the_connection),
        cmocka_unit_test(clients_that_left_are_no_503),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
