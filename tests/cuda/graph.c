/* ctest: card */
/* graph.c - steps that a GPU keeps and runs again, copies to the host that are waited for by
 * ticket: on the emulated GPU or a real one (KK_DEVICE=cuda). */
#include "tests/kernel/kernel_kit.h"

#include <dlfcn.h>

#define N 3000u

static float *device_floats(fm_backend *be, float value)
{
    void *p = NULL;
    float *host = fm_malloc(N * sizeof(float));
    for (uint32_t i = 0; i < N; i++)
        host[i] = value * (float)(1 + i % 7);
    tk_ok(be->alloc(be, &p, N * sizeof(float)));
    tk_ok(be->upload(be, p, host, N * sizeof(float)));
    fm_free(host);
    return p;
}

static void is(fm_backend *be, const float *dev, float value)
{
    float *host = fm_malloc(N * sizeof(float));
    tk_ok(be->download(be, host, dev, N * sizeof(float)));
    for (uint32_t i = 0; i < N; i++)
        assert_true(host[i] == value * (float)(1 + i % 7));
    fm_free(host);
}

TEST(what_is_kept_runs_again_on_what_memory_holds_then)
{
    fm_backend *be = kk_card("exact");
    assert_non_null(be->record);
    float *y = device_floats(be, 1), *x = device_floats(be, 2), *z = device_floats(be, 1);
    tk_ok(be->record(be, 7));
    be->add(be, y, x, N); /* 1 + 2 */
    be->scale(be, y, 2, N);
    tk_ok(be->recorded(be));
    tk_ok(be->replay(be, 7));
    be->add(be, z, y, N); /* behind it in line */
    is(be, y, 6);
    is(be, z, 7);
    be->scale(be, x, 5, N);
    tk_ok(be->replay(be, 7));
    is(be, y, 32); /* (6 + 10) * 2 */
    tk_ok(be->record(be, 8));
    be->scale(be, y, 0.5f, N);
    tk_ok(be->recorded(be));
    tk_ok(be->replay(be, 8));
    for (int i = 0; i < 3; i++) {
        tk_ok(be->replay(be, 7));
        tk_ok(be->replay(be, 8));
    }
    is(be, y, 16 + 30); /* each time (y + 10) * 2 / 2 */
    be->forget(be, 7);
    be->forget(be, 7);
    be->forget(be, 99);
    tk_ok(be->replay(be, 8));
    is(be, y, 23);
    be->free(be, x);
    be->free(be, y);
    be->free(be, z);
    be->close(be); /* with 8 kept */
}

TEST(uploads_of_others_are_no_part_of_a_record)
{
    fm_backend *be = kk_card("exact");
    float *y = device_floats(be, 1), *x = device_floats(be, 2);
    tk_ok(be->record(be, 1));
    be->add(be, y, x, N);
    float *loaded = device_floats(be, 3); /* as a loader's thread would: in line, not kept */
    tk_ok(be->recorded(be));
    tk_ok(be->replay(be, 1));
    is(be, loaded, 3);
    be->scale(be, loaded, 2, N);
    tk_ok(be->replay(be, 1));
    is(be, loaded, 6);
    is(be, y, 5);
    be->free(be, x);
    be->free(be, y);
    be->free(be, loaded);
    be->close(be);
}

/* A model is closed beside a step that is recorded: what is queued on the room still runs. */
TEST(a_room_goes_while_a_step_is_recorded)
{
    fm_backend *be = kk_card("exact");
    float *x = device_floats(be, 2), *y = device_floats(be, 1);
    void *room;
    tk_ok(be->reserve(be, &room, N * sizeof(float)));
    tk_ok(be->commit(be, room, 0, N * sizeof(float)));
    be->add(be, room, x, N);
    be->add(be, y, room, N);
    tk_ok(be->record(be, 3));
    be->scale(be, y, 2, N);
    be->free(be, room);
    tk_ok(be->recorded(be));
    tk_ok(be->replay(be, 3));
    is(be, y, 6);
    be->free(be, x);
    be->free(be, y);
    be->close(be);
}

/* What an operation keeps its sums in meanwhile is part of the record, whatever comes later. */
TEST(a_record_keeps_its_scratch)
{
    enum { K = 1101, SMALL = 40, LARGE = 300, ROWS = 20 }; /* rows at odd places are copied first */
    fm_backend *be = kk_card("exact");
    kk k = {.be = be};
    float *w = kk_in(&k, (size_t)LARGE * K, 1), *x = kk_in(&k, (size_t)ROWS * K, 1);
    float *y = kk_in(&k, SMALL, 1), *wide = kk_in(&k, (size_t)ROWS * LARGE, 1), want[SMALL];
    fm_weight *small = kk_weight(&k, w, SMALL, K), *large = kk_weight(&k, w, LARGE, K);
    be->linear(be, y, SMALL, x, K, small, NULL, NULL, 1);
    tk_ok(be->sync(be));
    memcpy(want, y, sizeof want);
    tk_ok(be->record(be, 1));
    be->linear(be, y, SMALL, x, K, small, NULL, NULL, 1);
    tk_ok(be->recorded(be));
    tk_ok(be->replay(be, 1));
    be->linear(be, wide, LARGE, x, K, large, NULL, NULL, ROWS);
    tk_ok(be->sync(be));
    memset(y, 0, sizeof want);
    tk_ok(be->replay(be, 1));
    tk_ok(be->sync(be));
    assert_memory_equal(y, want, sizeof want);
    be->weight_free(be, small);
    be->weight_free(be, large);
    for (size_t i = 0; i < k.ptrs; i++)
        be->host_free(be, k.ptr[i]);
    be->close(be);
}

/* The emulated GPU's count of copies that ran; 0 on a real one. */
static unsigned long copies(void)
{
    const char *path = getenv("FMSTORE_CUDA_MODULE");
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = lib ? dlsym(lib, "simt_copies") : NULL;
    unsigned long (*fn)(void) = NULL;
    memcpy(&fn, &symbol, sizeof fn);
    return fn ? fn() : 0;
}

/* Lists of products and terms go to the GPU once, with the recording. */
TEST(a_replay_is_kernels_alone)
{
    enum { K = 128, WIDE = 64, ROWS = 4, TIMES = 3, COUNT = 40 };
    static const char *const mode[] = {"exact", "fast"};
    for (size_t m = 0; m < FM_ARRAY_LEN(mode); m++) {
        fm_backend *be = kk_card(mode[m]);
        kk k = {.be = be};
        float *w = kk_in(&k, (size_t)WIDE * K, 1), *x = kk_in(&k, (size_t)ROWS * K, 1);
        float *y = kk_in(&k, (size_t)COUNT * ROWS * WIDE, 1);
        float want[ROWS * WIDE];
        fm_weight *weight = kk_weight(&k, w, WIDE, K);
        fm_product list[COUNT];
        for (uint32_t i = 0; i < COUNT; i++)
            list[i] =
                (fm_product){.y = y + i * ROWS * WIDE, .ldy = WIDE, .w = weight, .m = ROWS - i % 2};
        for (int t = 0; t < 2; t++) {
            if (t == 1)
                tk_ok(be->record(be, 1));
            be->products(be, x, K, K, list, COUNT);
            if (t == 1) {
                tk_ok(be->recorded(be));
                tk_ok(be->replay(be, 1));
            }
            tk_ok(be->sync(be));
        }
        memcpy(want, y + 38 * ROWS * WIDE, sizeof want);
        unsigned long before = copies();
        for (int t = 0; t < TIMES; t++) {
            memset(y, 0, sizeof want * COUNT);
            tk_ok(be->replay(be, 1));
            tk_ok(be->sync(be));
            assert_memory_equal(y + 38 * ROWS * WIDE, want, sizeof want);
        }
        assert_int_equal(copies(), before);
        be->weight_free(be, weight);
        for (size_t i = 0; i < k.ptrs; i++)
            be->host_free(be, k.ptr[i]);
        be->close(be);
    }
}

TEST(tickets_come_in_order)
{
    enum { TIMES = 40 };
    fm_backend *be = kk_card("exact");
    float *y = device_floats(be, 1);
    void *host[TIMES];
    uint64_t ticket[TIMES];
    assert_true(be->fetch && be->wait && be->host_alloc);
    for (int i = 0; i < TIMES; i++) {
        tk_ok(be->host_alloc(be, &host[i], N * sizeof(float)));
        be->scale(be, y, i % 2 ? 0.5f : 2.0f, N);
        tk_ok(be->fetch(be, host[i], y, N * sizeof(float), &ticket[i]));
        assert_true(i == 0 || ticket[i] > ticket[i - 1]);
        if (i > 1) {
            tk_ok(be->wait(be, ticket[i - 2]));
            assert_true(((float *)host[i - 2])[8] == (i % 2 ? 2.0f : 4.0f));
        }
    }
    tk_ok(be->wait(be, ticket[TIMES - 1]));
    tk_ok(be->wait(be, ticket[3])); /* long past */
    for (int i = 0; i < TIMES; i++)
        be->host_free(be, host[i]);
    be->free(be, y);
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_runs_again_on_what_memory_holds_then),
        cmocka_unit_test(uploads_of_others_are_no_part_of_a_record),
        cmocka_unit_test(a_room_goes_while_a_step_is_recorded),
        cmocka_unit_test(a_record_keeps_its_scratch),
        cmocka_unit_test(a_replay_is_kernels_alone),
        cmocka_unit_test(tickets_come_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
