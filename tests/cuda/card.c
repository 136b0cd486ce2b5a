/* ctest: card */
/* The CUDA backend's own matters, on the emulated GPU or a real one (KK_DEVICE=cuda): what opens
 * and what refuses, memory, the order of copies and operations, a failure that sticks. */
#include "tests/kernel/kernel_kit.h"

#include <dlfcn.h>
#include <pthread.h>

#include "infer/kv/kvcache.h"

static fm_backend *card(void)
{
    fm_backend *be = kk_card("exact");
    assert_non_null(be);
    return be;
}

TEST(memory_is_cleared_and_comes_back)
{
    fm_backend *be = card();
    size_t sizes[] = {0, 1, 255, 4096, 3u << 20};

    assert_false(be->host_visible);
    for (size_t i = 0; i < FM_ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i];
        unsigned char *a = fm_malloc(n + 1), *b = fm_malloc(n + 1);
        void *dev;
        tk_ok(be->alloc(be, &dev, n));
        tk_ok(be->download(be, b, dev, n));
        for (size_t j = 0; j < n; j++) {
            assert_int_equal(b[j], 0);
            a[j] = (unsigned char)(j * 7 + i);
        }
        tk_ok(be->upload(be, dev, a, n));
        tk_ok(be->download(be, b, dev, n));
        assert_memory_equal(a, b, n);
        be->free(be, dev);
        fm_free(a);
        fm_free(b);
    }
    be->close(be);
}

/* FM_ELIMIT: whoever holds models may close some and ask again. */
TEST(a_full_card_says_so)
{
    fm_backend *be = card();
    void *p = &p, *small = NULL;

    tk_fails(be->alloc(be, &p, (size_t)1 << 46), FM_ELIMIT, "no room for 70368744177664 bytes");
    assert_null(p);
    tk_ok(be->alloc(be, &small, 100)); /* and goes on */
    be->free(be, small);
    tk_ok(be->sync(be));
    be->close(be);
}

/* More uploads than the way to the GPU holds, each from the same host buffer, each followed by an
 * operation that reads it. */
TEST(copies_keep_their_order)
{
    enum { N = 100000, TIMES = 120 };
    fm_backend *be = card();
    float *host = fm_malloc(N * sizeof *host);
    void *x, *sum;

    tk_ok(be->alloc(be, &x, N * sizeof(float)));
    tk_ok(be->alloc(be, &sum, N * sizeof(float)));
    for (int t = 1; t <= TIMES; t++) {
        for (int i = 0; i < N; i++)
            host[i] = (float)(t * (i % 3));
        tk_ok(be->upload(be, x, host, N * sizeof(float)));
        be->add(be, sum, x, N);
    }
    tk_ok(be->download(be, host, sum, N * sizeof(float)));
    for (int i = 0; i < N; i++)
        assert_true(host[i] == (float)(i % 3 * TIMES * (TIMES + 1) / 2));
    be->free(be, x);
    be->free(be, sum);
    fm_free(host);
    be->close(be);
}

/* ==== memory as it is used ==== */

#define MIB ((size_t)1 << 20)

static void expect(fm_backend *be, const void *at, size_t n, unsigned char value)
{
    unsigned char *host = fm_malloc(n);
    tk_ok(be->download(be, host, at, n));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(host[i], value);
    fm_free(host);
}

/* Far more than any GPU has; what is asked for is there and cleared, beside what is written. */
TEST(room_is_larger_than_the_card)
{
    fm_backend *be = card();
    void *room;
    unsigned char *at, ones[100];

    memset(ones, 1, sizeof ones);
    tk_ok(be->reserve(be, &room, (size_t)1 << 42));
    at = room;
    tk_ok(be->commit(be, room, 0, 3000));
    expect(be, at, 3000, 0);
    tk_ok(be->upload(be, at + 2900, ones, sizeof ones));
    tk_ok(be->commit(be, room, 3000, 5 * MIB)); /* the same piece, and others */
    expect(be, at + 2900, 100, 1);
    expect(be, at + 3000, 5 * MIB, 0);
    tk_ok(be->commit(be, room, (size_t)1 << 41, 100));
    tk_ok(be->upload(be, at + ((size_t)1 << 41), ones, sizeof ones));
    expect(be, at + ((size_t)1 << 41), 100, 1);
    be->free(be, room);
    tk_ok(be->reserve(be, &room, 0));
    tk_ok(be->commit(be, room, 0, 0));
    be->free(be, room);
    be->close(be);
}

TEST(room_has_an_end)
{
    fm_backend *be = card();
    void *room;

    tk_ok(be->reserve(be, &room, 5 * MIB));
    tk_ok(be->commit(be, room, 5 * MIB - 10, 10));
    tk_ok(be->commit(be, room, 5 * MIB, 0));
    tk_fails(be->commit(be, room, 5 * MIB - 10, 11), FM_EINVAL, "of a room of 5242880");
    tk_fails(be->commit(be, room, 6 * MIB, 1), FM_EINVAL, "of a room of 5242880");
    tk_fails(be->commit(be, room, 100, SIZE_MAX - 50), FM_EINVAL, "of a room of 5242880");
    tk_fails(be->commit(be, (char *)room + 1, 0, 1), FM_EINVAL, "of a room of 0");
    be->free(be, room);
    be->close(be);
}

/* In every mode: what no id says stays as it is. */
TEST(an_id_beyond_the_table_touches_nothing)
{
    enum { N = 40, K = 70, M = 5 };
    static const char *const mode[] = {"exact", "fast", "bf16"};
    const int32_t id[M] = {-1, 3, N, INT32_MAX, N - 1};
    float table[N * K], got[M][K], before[M][K];
    for (int i = 0; i < N * K; i++)
        table[i] = (float)(i % 64);
    for (int i = 0; i < M * K; i++)
        before[i / K][i % K] = -5.0f;
    for (size_t i = 0; i < FM_ARRAY_LEN(mode); i++) {
        fm_backend *be = kk_card(mode[i]);
        fm_weight *w;
        void *y, *ids;
        assert_non_null(be);
        tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F32, N, K, table));
        tk_ok(be->alloc(be, &y, sizeof got));
        tk_ok(be->alloc(be, &ids, sizeof id));
        tk_ok(be->upload(be, y, before, sizeof before));
        tk_ok(be->upload(be, ids, id, sizeof id));
        be->embed(be, y, K, w, ids, NULL, M);
        tk_ok(be->download(be, got, y, sizeof got));
        for (int r = 0; r < M; r++)
            for (int k = 0; k < K; k++)
                assert_true(got[r][k] == (id[r] < 0 || id[r] >= N ? -5.0f : table[id[r] * K + k]));
        be->weight_free(be, w);
        be->free(be, y);
        be->free(be, ids);
        be->close(be);
    }
}

/* Whose memory SIMT_MIB says. */
static bool emulated(void)
{
    const char *path = getenv("FMSTORE_CUDA_MODULE");
    return path && strstr(path, "emulated");
}

TEST(memory_comes_back_with_the_room)
{
    fm_backend *be = card();
    void *room, *all = NULL;

    if (!emulated()) {
        be->close(be);
        skip();
    }
    (void)setenv("SIMT_MIB", "1000", 1);
    for (int i = 0; i < 3; i++) {
        tk_ok(be->reserve(be, &room, (size_t)1 << 40));
        tk_ok(be->commit(be, room, 0, 600 * MIB));
        tk_fails(be->commit(be, room, 600 * MIB, 600 * MIB), FM_ELIMIT, "no room for");
        tk_fails(be->alloc(be, &all, 600 * MIB), FM_ELIMIT, "no room for");
        be->free(be, room);
        tk_ok(be->alloc(be, &all, 600 * MIB));
        be->free(be, all);
    }
    (void)unsetenv("SIMT_MIB");
    be->close(be);
}

/* A budget beyond what is left on the GPU: pages that nobody holds make room before a text
 * waits. */
TEST(a_cache_outgrows_the_card)
{
    enum { MOST = 400 };
    fm_backend *be = card();
    fmi_kv *kv;
    fmi_kv_pool *pool;
    int32_t page[MOST], more;
    uint32_t n = 0;

    if (!emulated()) {
        be->close(be);
        skip();
    }
    (void)setenv("SIMT_MIB", "48", 1);
    tk_ok(fmi_kv_new(&kv, be, (uint64_t)1 << 30));
    tk_ok(fmi_kv_pool_of(kv, &pool, 0, 8, 128));
    fm_status rc = FM_OK;
    while (n < MOST && (rc = fmi_kv_take(pool, &page[n])) == FM_OK)
        fmi_kv_keep(pool, page[n++]);
    assert_int_equal(rc, FM_ELIMIT);
    assert_true(n >= 32 && n < MOST); /* of 256 KiB each */
    fmi_kv_give(pool, page[3]);
    fmi_kv_give(pool, page[5]);
    tk_ok(fmi_kv_take(pool, &more));
    assert_int_equal(more, page[3]); /* held longest ago */
    tk_ok(fmi_kv_take(pool, &page[5]));
    assert_int_equal(fmi_kv_take(pool, &page[3]), FM_ELIMIT);
    page[3] = more;
    for (uint32_t i = 0; i < n; i++)
        fmi_kv_give(pool, page[i]);
    fmi_kv_free(kv);
    (void)unsetenv("SIMT_MIB");
    be->close(be);
}

/* ==== GPUs and threads ==== */

typedef unsigned long (*calls_fn)(void);

/* The emulated GPU's count of calls that say which GPU is meant; NULL on a real one. */
static calls_fn device_calls(void)
{
    const char *path = getenv("FMSTORE_CUDA_MODULE");
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = lib ? dlsym(lib, "simt_device_calls") : NULL;
    calls_fn fn = NULL;
    memcpy(&fn, &symbol, sizeof fn);
    return fn;
}

TEST(launches_do_not_ask_for_their_card)
{
    enum { N = 64, TIMES = 100 };
    fm_backend *be = card();
    calls_fn calls = device_calls();
    void *x, *y;

    tk_ok(be->alloc(be, &x, N * sizeof(float)));
    tk_ok(be->alloc(be, &y, N * sizeof(float)));
    tk_ok(be->sync(be));
    unsigned long before = calls ? calls() : 0;
    for (int i = 0; i < TIMES; i++)
        be->add(be, y, x, N);
    tk_ok(be->sync(be));
    assert_true(!calls || calls() - before == 1); /* the sync's */
    be->free(be, x);
    be->free(be, y);
    be->close(be);
}

#define CARDS 2u
#define ROUNDS 60u
#define FLOATS 500u

typedef struct own { /* of one thread, on each GPU */
    fm_backend *be[CARDS];
    void *x[CARDS], *sum[CARDS];
    uint64_t number;
    bool good;
} own;

/* From GPU to GPU, so that each operation is another one's. */
static void *both_cards(void *ctx)
{
    own *o = ctx;
    float host[FLOATS];
    o->good = true;
    for (uint32_t i = 0; i < ROUNDS * CARDS; i++) {
        uint32_t c = (i / (1 + o->number)) % CARDS;
        o->be[c]->add(o->be[c], o->sum[c], o->x[c], FLOATS);
        o->be[c]->scale(o->be[c], o->sum[c], 1.0f, FLOATS);
    }
    for (uint32_t c = 0; c < CARDS; c++)
        o->good = o->good && o->be[c]->download(o->be[c], host, o->sum[c], sizeof host) == FM_OK &&
                  host[7] == (float)(ROUNDS * (1 + o->number));
    return NULL;
}

TEST(threads_use_several_cards)
{
    const fm_module *module;
    own o[2] = {{.number = 0}, {.number = 1}};
    pthread_t thread[2];
    uint32_t cards;
    float host[FLOATS];

    fm_backend *first = card(); /* or the program is skipped */
    first->close(first);
    if (!getenv("FMSTORE_CUDA_MODULE"))
        skip();
    tk_ok(fm_module_cuda(&module));
    (void)setenv("SIMT_DEVICES", "2", 1);
    tk_ok(module->count(&cards));
    if (cards < CARDS)
        skip();
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t c = 0; c < CARDS; c++) {
            fm_backend **be = &o[t].be[c];
            tk_ok(module->open(be, c, "exact", NULL));
            tk_ok((*be)->alloc(*be, &o[t].x[c], sizeof host));
            tk_ok((*be)->alloc(*be, &o[t].sum[c], sizeof host));
            for (uint32_t i = 0; i < FLOATS; i++)
                host[i] = (float)(1 + o[t].number);
            tk_ok((*be)->upload(*be, o[t].x[c], host, sizeof host));
        }
    for (uint32_t t = 0; t < 2; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, both_cards, &o[t]), 0);
    for (uint32_t t = 0; t < 2; t++)
        assert_int_equal(pthread_join(thread[t], NULL), 0);
    for (uint32_t t = 0; t < 2; t++) {
        assert_true(o[t].good);
        for (uint32_t c = 0; c < CARDS; c++) {
            fm_backend *be = o[t].be[c];
            be->free(be, o[t].x[c]);
            be->free(be, o[t].sum[c]);
            be->close(be);
        }
    }
    (void)unsetenv("SIMT_DEVICES");
}

/* What stands aside sees what was queued before it, and what follows the join sees that. */
TEST(a_second_line_keeps_its_turn)
{
    enum { N = 1000 };
    fm_backend *be = card();
    float a[N], b[N], got[N];
    void *mem;
    tk_ok(be->alloc(be, &mem, 4 * N * sizeof(float)));
    float *x = mem, *y = x + N, *z = y + N, *w = z + N;
    for (unsigned i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = 1.0f;
    }
    for (unsigned turn = 0; turn < 3; turn++) {
        tk_ok(be->upload(be, x, a, sizeof a));
        tk_ok(be->upload(be, y, b, sizeof b));
        be->add(be, x, y, N); /* a + 1 */
        be->aside(be, true);
        be->copy_rows(be, z, N, x, N, NULL, 1, N);
        be->aside(be, false);
        be->copy_rows(be, w, N, y, N, NULL, 1, N);
        be->add(be, w, y, N); /* 2, beside it */
        be->aside(be, true);
        be->add(be, z, w, N); /* a + 3 */
        be->aside(be, false);
        be->join(be);
        be->add(be, z, y, N);
        tk_ok(be->download(be, got, z, sizeof got));
        for (unsigned i = 0; i < N; i++)
            assert_true(got[i] == (float)i + 4.0f);
    }
    be->join(be); /* nothing stands there */
    tk_ok(be->sync(be));
    be->free(be, mem);
    be->close(be);
}

/* A step that is recorded has one line: nothing of it runs, and the GPU goes on. */
TEST(a_second_line_is_not_recorded)
{
    enum { N = 64 };
    fm_backend *be = card();
    float a[N], got[N];
    void *mem;
    tk_ok(be->alloc(be, &mem, 2 * N * sizeof(float)));
    float *x = mem, *y = x + N;
    for (unsigned i = 0; i < N; i++)
        a[i] = (float)i;
    tk_ok(be->upload(be, x, a, sizeof a));
    tk_ok(be->upload(be, y, a, sizeof a));
    tk_ok(be->sync(be));
    tk_ok(be->record(be, 7));
    be->add(be, y, x, N);
    be->aside(be, true);
    be->add(be, y, x, N);
    be->aside(be, false);
    be->join(be);
    assert_int_equal(be->recorded(be), FM_EUNSUPPORTED);
    assert_non_null(strstr(fm_error_text(), "second line"));
    be->aside(be, true);
    be->add(be, y, x, N);
    be->aside(be, false);
    be->join(be);
    tk_ok(be->download(be, got, y, sizeof got));
    for (unsigned i = 0; i < N; i++)
        assert_true(got[i] == 2.0f * (float)i);
    be->free(be, mem);
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_cleared_and_comes_back),
        cmocka_unit_test(a_full_card_says_so),
        cmocka_unit_test(copies_keep_their_order),
        cmocka_unit_test(room_is_larger_than_the_card),
        cmocka_unit_test(room_has_an_end),
        cmocka_unit_test(an_id_beyond_the_table_touches_nothing),
        cmocka_unit_test(memory_comes_back_with_the_room),
        cmocka_unit_test(a_cache_outgrows_the_card),
        cmocka_unit_test(a_second_line_keeps_its_turn),
        cmocka_unit_test(a_second_line_is_not_recorded),
        cmocka_unit_test(launches_do_not_ask_for_their_card),
        cmocka_unit_test(threads_use_several_cards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
