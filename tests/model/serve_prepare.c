/* Templates that want to run for minutes, sent by many clients to one model: whoever asks for
 * health or for another model is answered, clients that leave end theirs, and so does the server's
 * end. */
#include "tests/model/serve_kit.h"

#include <poll.h>

#define CHAT "/v1/chat/completions"
#define EVIL                                                                                       \
    "{\"model\":\"m3\",\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
#define GOOD                                                                                       \
    "{\"model\":\"m0\",\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
#define CLIENTS 32

static sk_family family;

static int setup(void **state)
{
    (void)state;
    sk_family_init(&family);
    tk_ok(fm_tree_put_file(
        family.tree[3], "tokenizer/tokenizer_config.json",
        fm_span_str("{\"chat_template\":\"{% set ns = namespace(x=[1], y=[1]) %}{% for i in "
                    "range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
                    "{% endfor %}{{ ns.x == ns.y }}\"}")));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sk_family_free(&family);
    return 0;
}

static void start(sk_server *s, int fd[CLIENTS])
{
    fm_server_opts o = sk_opts(&family);
    sk_open(s, &family, &o, 0);
    tk_ok(fm_server_preload(s->server, "m0"));
    tk_ok(fm_server_preload(s->server, "m3"));
    sk_go(s);
    for (int i = 0; i < CLIENTS; i++)
        fd[i] = sk_begin(fm_server_port(s->server), "POST", CHAT, "", EVIL);
}

static void want_200(uint16_t port, const char *method, const char *path, const char *body)
{
    sk_reply r;
    sk_ask(&r, port, method, path, "", body);
    if (r.status != 200)
        fail_msg("%s: %d %s", path, r.status, fm_buf_cstr(&r.body));
    sk_release(&r);
}

static int unanswered(const int fd[CLIENTS])
{
    int n = 0;
    for (int i = 0; i < CLIENTS; i++) {
        struct pollfd p = {.fd = fd[i], .events = POLLIN};
        n += poll(&p, 1, 0) == 0;
    }
    return n;
}

TEST(others_are_answered_while_hostile_templates_render)
{
    sk_server s;
    int fd[CLIENTS], refused = 0;
    start(&s, fd);
    uint16_t port = fm_server_port(s.server);
    want_200(port, "GET", "/health", NULL);
    want_200(port, "GET", "/metrics", NULL);
    want_200(port, "GET", "/v1/models", NULL);
    want_200(port, "POST", CHAT, GOOD);
    assert_true(unanswered(fd) > 0); /* the good one did not stand in line behind them */
    fm_server_stop(s.server);
    assert_int_equal(pthread_join(s.thread, NULL), 0); /* though they render */
    tk_ok(s.rc);
    for (int i = 0; i < CLIENTS; i++) {
        sk_reply r;
        sk_read(&r, fd[i]);
        if (r.status == 400) {
            assert_non_null(strstr(fm_buf_cstr(&r.body), "chat template: line 1: the template does "
                                                         "too much: more than 1000 million"));
            refused++;
        } else { /* 0: connected and not yet read when the server ended */
            assert_true(r.status == 503 || r.status == 0);
        }
        sk_release(&r);
    }
    assert_true(refused > 0);
    fm_server_free(s.server);
    fm_engine_free(s.engine);
}

TEST(clients_that_leave_end_their_renderings)
{
    sk_server s;
    int fd[CLIENTS];
    start(&s, fd);
    uint16_t port = fm_server_port(s.server);
    for (int i = 0; i < CLIENTS; i++)
        (void)close(fd[i]);
    want_200(port, "POST", CHAT, GOOD);
    want_200(port, "GET", "/health", NULL);
    sk_wait_metric(port, "requests_waiting", 0);
    assert_true(sk_metric(port, "requests_total{code=\"499\"}") > 0);
    assert_true(sk_metric(port, "requests_total{code=\"503\"}") <= 0); /* nobody received one */
    sk_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_answered_while_hostile_templates_render),
        cmocka_unit_test(clients_that_leave_end_their_renderings),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
