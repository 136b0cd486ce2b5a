/* A queue of bytes against a plain list of them: pieces of every length, across its end. */
#include "store/base/ring.h"

#include <string.h>

#include "store/base/math/rng.h"
#include "store/base/mem.h"
#include "tests/testkit.h"

#define MAX_BYTES 37u
#define ROUNDS 5000u

TEST(bytes_leave_in_the_order_in_which_they_came)
{
    fm_ring r = {.max = MAX_BYTES};
    uint8_t in[64], out[64], next_in = 0, next_out = 0;
    size_t held = 0;

    for (uint64_t i = 0; i < ROUNDS; i++) {
        const size_t want = (size_t)(fm_rng_u64(1, 0, 2 * i) % 50);
        const size_t take = (size_t)(fm_rng_u64(1, 0, 2 * i + 1) % 50);
        size_t put;
        for (size_t k = 0; k < want; k++)
            in[k] = (uint8_t)(next_in + k);
        tk_ok(fm_ring_put(&r, in, want, &put));
        assert_int_equal(put, FM_MIN(want, MAX_BYTES - held));
        next_in = (uint8_t)(next_in + put);
        held += put;
        assert_int_equal(r.len, held);
        const size_t got = fm_ring_take(&r, out, take);
        assert_int_equal(got, FM_MIN(take, held));
        held -= got;
        for (size_t k = 0; k < got; k++)
            assert_int_equal(out[k], next_out++);
    }
    fm_ring_clear(&r);
    assert_int_equal(fm_ring_take(&r, out, sizeof out), 0);
    fm_ring_release(&r);
    assert_int_equal(r.max, MAX_BYTES);
}

TEST(without_memory_nothing_is_put)
{
    fm_ring r = {.max = MAX_BYTES};
    size_t put = 7;

    fm_mem_fail_at(1, false);
    tk_fails(fm_ring_put(&r, "abc", 3, &put), FM_ENOMEM, "memory");
    fm_mem_fail_at(0, false);
    assert_int_equal(put, 0);
    assert_int_equal(r.len, 0);
    tk_ok(fm_ring_put(&r, "abc", 3, &put));
    assert_int_equal(put, 3);
    fm_ring_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_leave_in_the_order_in_which_they_came),
        cmocka_unit_test(without_memory_nothing_is_put),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
