/* A repository behind a web server: readers need nothing, a push has a session, which ends by
 * DELETE, by a message that fails, and gives no other its place while it is in use. */
#include "remote/serve.h"
#include "tests/kit/wire_kit.h"

typedef struct asked {
    wk_bytes bytes;
    unsigned status; /* 0: it did not begin */
    char session[FM_REMOTE_SESSION_MAX + 1];
} asked;

static fm_status read_it(void *ctx, void *dst, size_t cap, size_t *got)
{
    asked *a = ctx;
    return wk_read(&a->bytes, dst, cap, got);
}

static fm_status begin_it(void *ctx, unsigned status, const char *session)
{
    asked *a = ctx;
    a->status = status;
    snprintf(a->session, sizeof a->session, "%s", session ? session : "");
    return FM_OK;
}

static fm_status write_it(void *ctx, const void *data, size_t len)
{
    asked *a = ctx;
    return wk_write(&a->bytes, data, len);
}

/* Asks with one message; the caller releases out->bytes.to. */
static fm_status ask(fm_remote_web *w, asked *out, const char *session, const void *message,
                     size_t len)
{
    const fm_remote_exchange x = {.session = session,
                                  .ends = !message,
                                  .ctx = out,
                                  .read = read_it,
                                  .begin = begin_it,
                                  .write = write_it};
    memset(out, 0, sizeof *out);
    out->bytes.from = fm_span_of(message ? message : "", len);
    fm_buf_init(&out->bytes.to, 0);
    return fm_remote_web_answer(w, &x);
}

static const uint8_t hello[] = {6, 0, 0, 0, 'A', FMR_HELLO, 1, 0, 0, 0, 1, 0, 0, 0, 0, 'E'};
static const uint8_t cut[] = {1, 0, 0, 0, 'A', FMR_CUT, 0, 0, 0, 0, 'E'};
static const uint8_t refs[] = {1, 0, 0, 0, 'A', FMR_REFS, 0, 0, 0, 0, 'E'};
static const uint8_t unknown[] = {1, 0, 0, 0, 'A', 99, 0, 0, 0, 0, 'E'};

/* The answer is a failure of this status. */
static void want_fail(const asked *a, fm_status status)
{
    assert_int_equal(a->status, 200);
    assert_true(a->bytes.to.len > 9);
    assert_int_equal(a->bytes.to.data[4], FMR_FAIL);
    assert_int_equal(fm_get_u32(a->bytes.to.data + 5), -status);
}

static void begin_session(fm_remote_web *w, char session[FM_REMOTE_SESSION_MAX + 1])
{
    asked a;
    tk_ok(ask(w, &a, "new", hello, sizeof hello));
    assert_int_equal(a.status, 200);
    assert_int_equal(strlen(a.session), 32);
    assert_int_equal(a.bytes.to.data[4], FMR_END);
    assert_int_equal(a.bytes.to.data[9], 1); /* may_write */
    memcpy(session, a.session, sizeof a.session);
    fm_buf_release(&a.bytes.to);
}

static void want(fm_remote_web *w, const char *session, const uint8_t *message, size_t len,
                 fm_status fail)
{
    asked a;
    tk_ok(ask(w, &a, session, message, len));
    if (fail)
        want_fail(&a, fail);
    else
        assert_int_not_equal(a.bytes.to.data[4], FMR_FAIL);
    assert_string_equal(a.session, "");
    fm_buf_release(&a.bytes.to);
}

static fm_remote_web *web(char **dir, bool write)
{
    fm_remote_web *w = NULL;
    fm_repo *r = wk_repo(dir);
    fm_repo_close(r);
    tk_ok(fm_remote_web_new(&w, *dir, write));
    return w;
}

TEST(readers_need_no_session_and_write_nothing)
{
    char *dir;
    asked a;
    fm_remote_web *w = web(&dir, false);
    for (int i = 0; i < 3; i++)
        want(w, NULL, refs, sizeof refs, FM_OK);
    want(w, NULL, cut, sizeof cut, FM_EREFUSED);
    tk_ok(ask(w, &a, "new", hello, sizeof hello)); /* it hears that it may not write */
    assert_string_equal(a.session, "");
    assert_int_equal(a.bytes.to.data[9], 0);
    fm_buf_release(&a.bytes.to);
    want(w, "new", cut, sizeof cut, FM_EREFUSED);
    fm_remote_web_free(w);
    w = NULL;
    tk_ok(fm_remote_web_new(&w, dir, true));
    want(w, NULL, cut, sizeof cut, FM_EREFUSED); /* no session */
    fm_remote_web_free(w);
    fm_free(dir);
}

TEST(what_is_no_message_is_the_requests_fault)
{
    static const struct {
        const char *text;
        size_t len;
    } bad[] = {{"", 0}, {"GET / HTTP/1.0\r\n", 16}, {"\1\0\0", 3}, {"\0\0\0\0E", 5}};
    char *dir;
    fm_remote_web *w = web(&dir, true);
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        asked a;
        assert_int_equal(ask(w, &a, NULL, bad[i].text, bad[i].len), FM_EINVAL);
        assert_int_equal(a.status, 0);
        fm_buf_release(&a.bytes.to);
    }
    want(w, NULL, unknown, sizeof unknown, FM_EUNSUPPORTED);
    fm_remote_web_free(w);
    fm_free(dir);
}

TEST(a_session_ends_with_a_failure_and_by_its_client)
{
    char *dir, name[FM_REMOTE_SESSION_MAX + 1], other[FM_REMOTE_SESSION_MAX + 1];
    asked a;
    fm_remote_web *w = web(&dir, true);
    begin_session(w, name);
    begin_session(w, other);
    assert_string_not_equal(name, other);
    want(w, name, cut, sizeof cut, FM_OK);
    want(w, name, refs, sizeof refs, FM_OK);
    want(w, name, unknown, sizeof unknown, FM_EUNSUPPORTED);
    want(w, name, cut, sizeof cut, FM_ECONFLICT);
    want(w, "0123456789abcdef0123456789abcdef", cut, sizeof cut, FM_ECONFLICT);
    want(w, other, cut, sizeof cut, FM_OK);
    for (int i = 0; i < 2; i++) { /* one that is over is over */
        tk_ok(ask(w, &a, other, NULL, 0));
        assert_int_equal(a.status, 204);
        fm_buf_release(&a.bytes.to);
    }
    want(w, other, cut, sizeof cut, FM_ECONFLICT);
    fm_remote_web_free(w);
    fm_free(dir);
}

TEST(sessions_are_limited)
{
    char *dir, name[FM_REMOTE_SESSIONS][FM_REMOTE_SESSION_MAX + 1];
    asked a;
    fm_remote_web *w = web(&dir, true);
    for (size_t i = 0; i < FM_REMOTE_SESSIONS; i++)
        begin_session(w, name[i]);
    assert_int_equal(ask(w, &a, "new", hello, sizeof hello), FM_ELIMIT); /* all are new */
    assert_int_equal(a.status, 0);
    fm_buf_release(&a.bytes.to);
    for (size_t i = 0; i < FM_REMOTE_SESSIONS; i++)
        want(w, name[i], cut, sizeof cut, FM_OK);
    tk_ok(ask(w, &a, name[3], NULL, 0));
    fm_buf_release(&a.bytes.to);
    begin_session(w, name[3]);
    fm_remote_web_free(w);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_need_no_session_and_write_nothing),
        cmocka_unit_test(what_is_no_message_is_the_requests_fault),
        cmocka_unit_test(a_session_ends_with_a_failure_and_by_its_client),
        cmocka_unit_test(sessions_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
