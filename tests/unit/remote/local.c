/* Records go between two repositories of one process without messages, while a thread of it answers
 * what is asked: what is there, what an earlier push left cut, what is wrong. */
#include "remote/link/open.h"
#include "tests/kit/exchange_kit.h"

static xk_store from; /* every kind of record */
static const uint64_t offset[XK_OBJECTS];

static int set_up(void **state)
{
    (void)state;
    from = xk_full();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    xk_release(&from);
    return 0;
}

static char *new_repository(void)
{
    char *scratch = tk_scratch(), *dir = fm_path_join(scratch, "repository");
    tk_ok(fm_repo_init(dir, true));
    fm_free(scratch);
    return dir;
}

static fmr_far *open_far(const char *dir, fmr_service service)
{
    fmr_url url;
    fmr_far *f;
    tk_ok(fmr_url_parse(&url, dir));
    tk_ok(fmr_open_folder(&f, &url, service));
    fmr_url_release(&url);
    return f;
}

typedef struct stop {
    uint64_t sent, at; /* bytes */
} stop;

static fm_status count_sent(void *ctx, const void *data, size_t len)
{
    stop *s = ctx;
    (void)data;
    s->sent += len;
    return s->sent >= s->at ? fm_fail(FM_ECANCELLED, "stopped by the test") : FM_OK;
}

static uint64_t all_bytes(void)
{
    uint64_t n = 0;
    for (int i = 0; i < XK_OBJECTS; i++)
        n += from.info[i].stored_bytes;
    return n;
}

static size_t count_there(fmr_far *f)
{
    bool there[XK_OBJECTS];
    size_t n = 0;
    tk_ok(f->ops->has(f, from.id, XK_OBJECTS, there));
    for (int i = 0; i < XK_OBJECTS; i++)
        n += there[i];
    return n;
}

static uint64_t bytes_in(fmr_far *f)
{
    uint64_t in, out;
    f->ops->traffic(f, &in, &out);
    return in;
}

static uint64_t bytes_out(fmr_far *f)
{
    uint64_t in, out;
    f->ops->traffic(f, &in, &out);
    return out;
}

static void put_all(const char *dir)
{
    fmr_far *f = open_far(dir, FMR_WRITE);
    stop s = {0, UINT64_MAX};
    const fmr_load load = {from.s, from.info, offset, XK_OBJECTS, count_sent, &s};
    assert_int_equal(count_there(f), 0);
    const uint64_t before = bytes_out(f);
    tk_ok(f->ops->put(f, &load));
    assert_int_equal(s.sent, all_bytes());
    assert_int_equal(bytes_out(f) - before, all_bytes());
    assert_int_equal(count_there(f), XK_OBJECTS); /* the thread goes on answering */
    f->ops->close(f);
}

typedef struct sink {
    const fmr_ask_record *ask;
    fm_buf got;
    size_t next, absent;
} sink;

static fm_status begin(void *ctx, size_t i, bool there)
{
    sink *s = ctx;
    assert_int_equal(i, s->next);
    fm_buf_clear(&s->got);
    s->absent += !there;
    s->next += !there;
    return FM_OK;
}

static fm_status bytes(void *ctx, const void *data, size_t len)
{
    sink *s = ctx;
    fm_buf_append(&s->got, data, len);
    return fm_buf_ok(&s->got);
}

static fm_status end(void *ctx)
{
    sink *s = ctx;
    fm_buf want = xk_record(&from, (int)s->next);
    const size_t left = (size_t)s->ask[s->next].offset;
    assert_int_equal(s->got.len, want.len - left);
    assert_memory_equal(s->got.data, want.data + left, s->got.len);
    fm_buf_release(&want);
    s->next++;
    return FM_OK;
}

TEST(records_are_put_and_come_back_as_they_lay)
{
    char *dir = new_repository();
    fmr_ask_record ask[XK_OBJECTS];
    sink s = {.ask = ask};
    const fmr_sink to = {&s, begin, bytes, end};
    put_all(dir);
    fmr_far *f = open_far(dir, FMR_READ);
    for (int i = 0; i < XK_OBJECTS; i++)
        ask[i] = (fmr_ask_record){from.id[i], from.info[i].head,
                                  i % 2 ? from.info[i].stored_bytes / 2 : 0};
    ask[XK_BLOB].head.b[0] ^= 1; /* coded anew in between */
    fm_buf_init(&s.got, 0);
    tk_ok(f->ops->get(f, ask, XK_OBJECTS, &to));
    assert_int_equal(s.next, XK_OBJECTS);
    assert_int_equal(s.absent, 1);
    assert_true(bytes_in(f) >= all_bytes() / 2);
    fm_buf_release(&s.got);
    f->ops->close(f);
    fm_free(dir);
}

TEST(a_push_that_stops_is_gone_on_with)
{
    char *dir = new_repository();
    uint64_t rest[XK_OBJECTS] = {0};
    fmr_far *f = open_far(dir, FMR_WRITE);
    stop s = {0, from.info[0].stored_bytes + 1};
    fmr_load load = {from.s, from.info, offset, 2, count_sent, &s};
    tk_fails(f->ops->put(f, &load), FM_ECANCELLED, "by the test");
    f->ops->close(f);
    f = open_far(dir, FMR_WRITE);
    fmr_ask_record cut;
    bool there;
    assert_true(count_there(f) >= 1);
    tk_ok(f->ops->cut(f, &cut, &there));
    if (there)
        for (int i = 0; i < XK_OBJECTS; i++)
            rest[i] = fm_digest_eq(&cut.id, &from.id[i]) ? cut.offset : 0;
    s = (stop){0, UINT64_MAX};
    load = (fmr_load){from.s, from.info + 1, rest + 1, XK_OBJECTS - 1, count_sent, &s};
    tk_ok(f->ops->put(f, &load));
    assert_int_equal(count_there(f), XK_OBJECTS);
    f->ops->close(f);
    fm_free(dir);
}

TEST(what_is_put_wrongly_is_told_and_the_rest_can_follow)
{
    char *dir = new_repository();
    fmr_far *f = open_far(dir, FMR_WRITE);
    stop s = {0, UINT64_MAX};
    fmr_load load = {from.s, from.info + XK_CHILD, offset, 1, count_sent, &s};
    tk_fails(f->ops->put(f, &load), FM_EBASE, "neither stored nor received");
    load = (fmr_load){from.s, from.info, offset, XK_OBJECTS, count_sent, &s};
    tk_ok(f->ops->put(f, &load));
    assert_int_equal(count_there(f), XK_OBJECTS);
    f->ops->close(f);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_put_and_come_back_as_they_lay),
        cmocka_unit_test(a_push_that_stops_is_gone_on_with),
        cmocka_unit_test(what_is_put_wrongly_is_told_and_the_rest_can_follow),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
