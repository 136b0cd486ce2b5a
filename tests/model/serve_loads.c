/* ctest: apart */
/* Models that come and go while the server answers: loads beside decoding, failures that end their
 * own requests alone, a budget for memory, pins. */
#include "tests/model/serve_kit.h"

#include "infer/prompt.h"

#define TEXT "/v1/completions"
#define LONG                                                                                       \
    "\"prompt\":\"a\",\"ignore_eos\":true,\"temperature\":0,\"max_tokens\":60000,\"stream\":true"

static sk_family family;
static char *alone[SK_CHILDREN];               /* greedy, 30 tokens after "a" */
static uint64_t stem_bytes, with[SK_CHILDREN]; /* weights of m0, of each child whole */

/* ==== a provider that waits, or fails ==== */

static struct {
    atomic_bool closed;    /* reads of adapters wait */
    atomic_uint fail_rank; /* reads of factors of this rank fail; 0: none */
} gate;

static fm_status gated_read(void *ctx, const fm_entry *e, void *dst)
{
    bool adapter = strncmp(e->path, "adapters/", 9) == 0;
    uint64_t rank = FM_MIN(e->shape.dim[0], e->shape.dim[1]);
    while (adapter && atomic_load(&gate.closed))
        sk_pause_ms(1);
    if (adapter && rank == atomic_load(&gate.fail_rank))
        return fm_fail(FM_ECORRUPT, "the disk gave up");
    return ik_read(ctx, e, dst);
}

static fm_server_opts options(void)
{
    fm_server_opts o = sk_opts(&family);
    o.catalog.provider.read = gated_read;
    atomic_store(&gate.closed, false);
    atomic_store(&gate.fail_rank, 0);
    return o;
}

static int setup(void **state)
{
    (void)state;
    sk_family_init(&family);
    for (int i = 0; i < SK_CHILDREN; i++) {
        fm_engine *e = ik_engine(1, 64);
        fm_model *m = NULL;
        fm_provider p = ik_provider(&family.mem);
        fm_gen_result r;
        fm_ids id = {0};
        tk_ok(fm_model_load(&m, e, family.tree[i], &p, "alone"));
        with[i] = fm_engine_stats_of(e).weight_bytes;
        tk_ok(fm_prompt_text(&id, m, fm_span_str("a")));
        fm_gen_request q = {.model = m, .prompt = id.id, .prompt_len = id.count, .max_new = 30};
        fm_sample_defaults(&q.sampling);
        q.sampling.temperature = 0;
        tk_ok(fm_generate(e, &q, 1, &r));
        alone[i] = fm_strdup(fm_buf_cstr(&r.text));
        fm_gen_result_release(&r);
        fm_ids_release(&id);
        fm_model_close(m);
        fm_engine_free(e);
    }
    stem_bytes = with[0];
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < SK_CHILDREN; i++)
        fm_free(alone[i]);
    sk_family_free(&family);
    return 0;
}

/* ==== asking ==== */

static int begin_ask(uint16_t port, const char *model, const char *fields)
{
    char body[256];
    (void)snprintf(body, sizeof(body), "{\"model\":\"%s\",%s}", model, fields);
    return sk_begin(port, "POST", TEXT, "", body);
}

#define SHORT "\"prompt\":\"a\",\"temperature\":0,\"max_tokens\":30"

static void finish_reply(sk_reply r, int child)
{
    if (r.status != 200)
        fail_msg("m%d: %d: %s", child, r.status, fm_buf_cstr(&r.body));
    fm_json *o = sk_json(&r);
    const fm_json *c = fm_json_at(fm_json_get(o, "choices"), 0);
    assert_string_equal(fm_json_cstr(fm_json_get(c, "text"), "?"), alone[child]);
    fm_json_free(o);
    sk_release(&r);
}

static void finish_ask(int fd, int child)
{
    sk_reply r;
    sk_read(&r, fd);
    finish_reply(r, child);
}

static void ask(uint16_t port, int child)
{
    char name[8];
    (void)snprintf(name, sizeof(name), "m%d", child);
    finish_ask(begin_ask(port, name, SHORT), child);
}

static void want_refusal(int fd, int status, const char *needle)
{
    sk_reply r;
    sk_read(&r, fd);
    if (r.status != status || !strstr(fm_buf_cstr(&r.body), needle))
        fail_msg("%d, not %d with '%s': %s", r.status, status, needle, fm_buf_cstr(&r.body));
    assert_true(status != 503 || strstr(r.head, "Retry-After: "));
    sk_release(&r);
}

/* ==== loads beside decoding ==== */

/* A client that reads its stream to the end: one that does not read is waited for. */
typedef struct reader {
    pthread_t thread;
    int fd;
    atomic_bool ended;
} reader;

static void *read_on(void *arg)
{
    reader *r = arg;
    char some[4096];
    while (recv(r->fd, some, sizeof(some), 0) > 0)
        continue;
    atomic_store(&r->ended, true);
    return NULL;
}

TEST(answers_stream_while_a_model_loads)
{
    sk_server s;
    fm_server_opts o = options();
    sk_open(&s, &family, &o, 0);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    reader stream = {.fd = begin_ask(p, "m0", LONG)};
    sk_wait_metric(p, "requests_running", 1);
    assert_int_equal(pthread_create(&stream.thread, NULL, read_on, &stream), 0);
    atomic_store(&gate.closed, true);
    int late = begin_ask(p, "m1", SHORT);
    sk_wait_metric(p, "models_loading", 1);
    /* the load cannot end before the gate opens, and the gate opens after 300 more tokens */
    double before = sk_metric(p, "rows_total");
    while (sk_metric(p, "rows_total") < before + 300)
        sk_pause_ms(5);
    assert_true(sk_metric(p, "models_loading") > 0.5);
    ask(p, 0); /* a resident model is not held up either */
    atomic_store(&gate.closed, false);
    finish_ask(late, 1);
    /* While the stream goes on, both models go in one step; where its reader was held up for the
     * whole of an answer, the next answer tells. */
    double shared = 0;
    for (int i = 0; i < 50 && shared <= 0 && !atomic_load(&stream.ended); i++) {
        if (i)
            ask(p, 1);
        shared = sk_metric(p, "step_models_sum") - sk_metric(p, "step_models_count");
    }
    assert_true(shared > 0 || atomic_load(&stream.ended));
    (void)shutdown(stream.fd, SHUT_RDWR);
    assert_int_equal(pthread_join(stream.thread, NULL), 0);
    (void)close(stream.fd);
    sk_wait_metric(p, "requests_running", 0);
    sk_stop(&s);
}

TEST(loads_queue_and_errors_end_their_own_requests)
{
    sk_server s;
    fm_server_opts o = options();
    int fd[5];
    sk_open(&s, &family, &o, 0);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    atomic_store(&gate.closed, true);
    atomic_store(&gate.fail_rank, 5); /* m2's */
    fd[0] = begin_ask(p, "m1", SHORT);
    fd[1] = begin_ask(p, "m2", SHORT);
    fd[2] = begin_ask(p, "m3", SHORT);
    fd[3] = begin_ask(p, "m1", SHORT);
    fd[4] = begin_ask(p, "m2", SHORT);
    sk_wait_metric(p, "models_loading", 3);
    atomic_store(&gate.closed, false);
    finish_ask(fd[0], 1);
    want_refusal(fd[1], 500, "the disk gave up");
    finish_ask(fd[2], 3);
    finish_ask(fd[3], 1);
    want_refusal(fd[4], 500, "the disk gave up");
    assert_true(sk_metric(p, "model_loads_total") < 2.5);
    sk_wait_metric(p, "models_resident", 2);
    sk_wait_metric(p, "models_loading", 0);
    atomic_store(&gate.fail_rank, 0);
    ask(p, 2); /* and it may be asked for again */
    sk_stop(&s);
}

TEST(a_client_may_leave_while_its_model_loads)
{
    sk_server s;
    fm_server_opts o = options();
    sk_open(&s, &family, &o, 0);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    atomic_store(&gate.closed, true);
    int gone = begin_ask(p, "m1", SHORT);
    sk_wait_metric(p, "models_loading", 1);
    int stays = begin_ask(p, "m1", SHORT);
    (void)close(gone);
    sk_wait_metric(p, "requests_total{code=\"499\"}", 1); /* to nobody */
    atomic_store(&gate.closed, false);
    finish_ask(stays, 1);
    sk_stop(&s);
}

TEST(the_end_waits_for_a_load_and_its_answer)
{
    sk_server s;
    fm_server_opts o = options();
    sk_open(&s, &family, &o, 0);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    atomic_store(&gate.closed, true);
    int fd = begin_ask(p, "m1", SHORT);
    sk_wait_metric(p, "models_loading", 1);
    fm_server_stop(s.server);
    sk_pause_ms(50);
    atomic_store(&gate.closed, false);
    sk_stop(&s);
    finish_ask(fd, 1);
}

/* ==== memory ==== */

TEST(idle_models_make_room)
{
    sk_server s;
    fm_server_opts o = options();
    uint64_t budget =
        with[2] + 512; /* the larger LoRA; not both, not m3's head beside the stem's */
    sk_open(&s, &family, &o, budget);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    for (int round = 0; round < 3; round++)
        for (int child = 1; child < SK_CHILDREN; child++) {
            ask(p, child);
            assert_true(sk_metric(p, "weight_bytes") <= (double)budget);
        }
    assert_true(sk_metric(p, "weight_evictions_total") > 5);
    assert_true(sk_metric(p, "weight_hits_total") > sk_metric(p, "weight_misses_total"));
    sk_stop(&s);
}

TEST(busy_models_are_503_until_they_are_done)
{
    sk_server s;
    fm_server_opts o = options();
    sk_open(&s, &family, &o, with[2] + 512);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    int stream = begin_ask(p, "m1", LONG);
    sk_wait_metric(p, "requests_running", 1);
    want_refusal(begin_ask(p, "m2", SHORT), 503, "budget"); /* after a second */
    ask(p, 0);                                              /* nothing but the stem: it fits */
    (void)close(stream);
    sk_wait_metric(p, "requests_running", 0);
    ask(p, 2);
    sk_stop(&s);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* False: the server has waited its second before we came to hang up. */
static bool waits_for_room(bool by_count)
{
    sk_server s;
    sk_reply r, also;
    fm_server_opts o = options();
    o.max_models = by_count ? 1 : 64;
    sk_open(&s, &family, &o, by_count ? 0 : with[2] + 512);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    int stream = begin_ask(p, "m1", LONG);
    sk_wait_metric(p, "requests_running", 1);
    double begun = now_s();
    int fd[2] = {begin_ask(p, "m2", SHORT), begin_ask(p, "m3", SHORT)};
    while (sk_metric(p, "models_loading") < 1.5 && now_s() - begun < 1.0)
        sk_pause_ms(1);
    (void)close(stream);
    sk_read(&r, fd[0]);
    sk_read(&also, fd[1]);
    bool late = (r.status == 503 || also.status == 503) && now_s() - begun >= 1.0;
    if (late) {
        sk_release(&r);
        sk_release(&also);
    } else {
        finish_reply(r, 2);
        finish_reply(also, 3);
    }
    sk_stop(&s);
    return !late;
}

TEST(a_busy_model_that_ends_soon_makes_room)
{
    for (int by_count = 0; by_count < 2; by_count++)
        for (int tries = 0; !waits_for_room(by_count); tries++)
            assert_true(tries < 20);
}

TEST(too_many_busy_models_are_503)
{
    sk_server s;
    fm_server_opts o = options();
    o.max_models = 1;
    sk_open(&s, &family, &o, 0);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    int stream = begin_ask(p, "m1", LONG);
    sk_wait_metric(p, "requests_running", 1);
    want_refusal(begin_ask(p, "m2", SHORT), 503, "all 1 models");
    (void)close(stream);
    sk_stop(&s);
}

typedef struct stormer {
    pthread_t thread;
    uint16_t port;
    int first;
    unsigned right, busy, never;
} stormer;

static void *storm(void *arg)
{
    stormer *t = arg;
    for (int i = 0; i < 60; i++) {
        sk_reply r;
        int child = (t->first + i * (1 + 2 * (t->first % 2))) % SK_CHILDREN;
        char name[8];
        (void)snprintf(name, sizeof(name), "m%d", child);
        sk_read(&r, begin_ask(t->port, name, SHORT));
        bool fits = child == 0 || child == 3;
        t->right += fits && r.status == 200;
        t->busy += r.status == 503 && strstr(r.head, "Retry-After: ");
        t->never += !fits && r.status == 400;
        sk_release(&r);
    }
    return NULL;
}

/* m0 and m3 fit, but not together, m1 and m2 never: what a load lacked may be free when it is
 * looked at, since its place was given to one that did not fit. */
TEST(what_fits_alone_is_never_400)
{
    sk_server s;
    stormer t[12];
    fm_server_opts o = options();
    unsigned right = 0, busy = 0, never = 0;
    sk_open(&s, &family, &o, stem_bytes + 512);
    sk_go(&s);
    for (int i = 0; i < 12; i++) {
        t[i] = (stormer){.port = fm_server_port(s.server), .first = i};
        assert_int_equal(pthread_create(&t[i].thread, NULL, storm, &t[i]), 0);
    }
    for (int i = 0; i < 12; i++) {
        assert_int_equal(pthread_join(t[i].thread, NULL), 0);
        right += t[i].right;
        busy += t[i].busy;
        never += t[i].never;
    }
    assert_int_equal(right + busy + never, 12 * 60);
    assert_true(right > 12 * 15 && never > 12 * 15);
    sk_stop(&s);
}

TEST(a_model_that_can_never_fit_is_400)
{
    sk_server s;
    fm_server_opts o = options();
    sk_open(&s, &family, &o, stem_bytes - 1);
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    want_refusal(begin_ask(p, "m0", SHORT), 400, "memory is too small");
    sk_wait_metric(p, "models_loading", 0);
    sk_stop(&s);
}

TEST(pinned_versions_stay)
{
    sk_server s;
    fm_server_opts o = options();
    o.max_models = 2;
    sk_open(&s, &family, &o, 0);
    tk_fails(fm_server_pin(s.server, "nobody"), FM_ENOTFOUND, "nobody");
    atomic_store(&family.branch, 1);
    tk_ok(fm_server_pin(s.server, "branch"));
    sk_go(&s);
    uint16_t p = fm_server_port(s.server);
    for (int i = 0; i < 4; i++)
        ask(p, 2 + i % 2);
    double loads = sk_metric(p, "model_loads_total");
    finish_ask(begin_ask(p, "branch", SHORT), 1);
    assert_true(sk_metric(p, "model_loads_total") <= loads);
    atomic_store(&family.branch, 2); /* the pin goes with the name */
    finish_ask(begin_ask(p, "branch", SHORT), 2);
    ask(p, 3);
    ask(p, 0);
    loads = sk_metric(p, "model_loads_total");
    finish_ask(begin_ask(p, "branch", SHORT), 2);
    assert_true(sk_metric(p, "model_loads_total") <= loads);
    ask(p, 1); /* no longer kept: it was closed for the others */
    assert_true(sk_metric(p, "model_loads_total") > loads);
    sk_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_stream_while_a_model_loads),
        cmocka_unit_test(loads_queue_and_errors_end_their_own_requests),
        cmocka_unit_test(a_client_may_leave_while_its_model_loads),
        cmocka_unit_test(the_end_waits_for_a_load_and_its_answer),
        cmocka_unit_test(idle_models_make_room),
        cmocka_unit_test(busy_models_are_503_until_they_are_done),
        cmocka_unit_test(a_busy_model_that_ends_soon_makes_room),
        cmocka_unit_test(too_many_busy_models_are_503),
        cmocka_unit_test(what_fits_alone_is_never_400),
        cmocka_unit_test(a_model_that_can_never_fit_is_400),
        cmocka_unit_test(pinned_versions_stay),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
