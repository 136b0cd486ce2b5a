/* The CUDA backend's own matters, on the emulated card or a real one (KK_DEVICE=cuda): what opens
 * and what refuses, memory, the order of copies and operations, a failure that sticks. */
#include "tests/kernel/kernel_kit.h"

static fm_backend *card(void)
{
    fm_backend *be = kk_card("exact");
    assert_non_null(be);
    return be;
}

static void memory_is_cleared_and_comes_back(void **state)
{
    fm_backend *be = card();
    size_t sizes[] = {0, 1, 255, 4096, 3u << 20};

    (void)state;
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
static void a_full_card_says_so(void **state)
{
    fm_backend *be = card();
    void *p = &p, *small = NULL;

    (void)state;
    tk_fails(be->alloc(be, &p, (size_t)1 << 46), FM_ELIMIT, "no room for 70368744177664 bytes");
    assert_null(p);
    tk_ok(be->alloc(be, &small, 100)); /* and goes on */
    be->free(be, small);
    tk_ok(be->sync(be));
    be->close(be);
}

/* More uploads than the way to the card holds, each from the same host buffer, each followed by an
 * operation that reads it. */
static void copies_keep_their_order(void **state)
{
    enum { N = 100000, TIMES = 120 };
    fm_backend *be = card();
    float *host = fm_malloc(N * sizeof *host);
    void *x, *sum;

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_cleared_and_comes_back),
        cmocka_unit_test(a_full_card_says_so),
        cmocka_unit_test(copies_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
