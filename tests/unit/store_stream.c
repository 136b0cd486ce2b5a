/* The store in parts: ranges of objects, puts from a provider, and that nothing of it depends on
 * the number of threads. */
#include <stdlib.h>
#include <string.h>

#include "store/base/rng.h"
#include "store/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

static char *fresh_store(fm_store **s)
{
    char *root = tk_scratch();
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(s, root));
    return root;
}

static uint8_t *weights(size_t bytes, uint64_t stream)
{
    uint8_t *p = fm_malloc(bytes + 1);
    for (size_t i = 0; i < bytes / 2; i++)
        fm_put_u16(p + 2 * i, fm_f32_to_bf16((float)(0.02 * fm_rng_normal(1, stream, i))));
    return p;
}

static void nudge(uint8_t *p, size_t bytes, uint64_t stream)
{
    for (size_t i = 0; i + 1 < bytes; i += 2)
        if (fm_rng_u64(2, stream, i) % 3 == 0)
            fm_put_u16(p + i, (uint16_t)(fm_get_u16(p + i) + 1));
}

/* Any range of a base, a delta child and a blob is the same stretch of the whole. */
static void a_range_is_that_stretch_of_the_whole(void **state)
{
    (void)state;
    fm_store *s;
    char *root = fresh_store(&s);
    const fm_shape shape = {2, {1100, 1024}};
    const size_t len = (size_t)1100 * 1024 * 2;
    uint8_t *bytes = weights(len, 1), *part = fm_malloc(len);
    fm_digest id[3];
    fm_txn *t;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &id[0], FM_BF16, &shape, fm_span_of(bytes, len), NULL, NULL));
    tk_ok(fm_txn_put_blob(t, &id[1], fm_span_of(bytes, len), NULL));
    uint8_t *child = weights(len, 1);
    nudge(child, len, 1);
    tk_ok(fm_txn_put_tensor(t, &id[2], FM_BF16, &shape, fm_span_of(child, len), &id[0], NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    for (int o = 0; o < 3; o++)
        for (uint64_t k = 0; k < 40; k++) {
            uint64_t at = fm_rng_u64(3, 0, k) % (len + 1);
            uint64_t n = fm_rng_u64(3, 1, k) % (len - at + 1);
            at = k % 4 == 0 ? at / FM_LEAF_BYTES * FM_LEAF_BYTES : at;
            tk_ok(fm_store_read_range(s, &id[o], at, n, part, k & 1 ? FM_RANGE_UNCHECKED : 0));
            assert_memory_equal(part, (o == 2 ? child : bytes) + at, n);
        }
    tk_fails(fm_store_read_range(s, &id[0], len, 1, part, 0), FM_EINVAL, "were asked for");
    tk_fails(fm_store_read_range(s, &id[0], 1, UINT64_MAX, part, 0), FM_EINVAL, "asked for");
    fm_free(part);
    fm_free(child);
    fm_free(bytes);
    fm_store_close(s);
    fm_free(root);
}

static fm_status read_counted(void *ctx, const fm_entry *e, void *dst)
{
    memset(dst, 7, (size_t)e->bytes);
    ++*(unsigned *)ctx;
    return FM_OK;
}

static void a_provider_without_ranges_is_read_whole(void **state)
{
    (void)state;
    unsigned reads = 0;
    fm_provider p = {.ctx = &reads, .read = read_counted};
    char path[] = "tensors/a", text[] = "0123456789";
    fm_entry e = {.path = path, .kind = FM_ENTRY_BLOB, .bytes = 100};
    uint8_t dst[100] = {0};
    tk_ok(fm_entry_read_range(&p, &e, 10, 20, dst, 0));
    assert_int_equal(reads, 1);
    assert_int_equal(dst[19], 7);
    assert_int_equal(dst[20], 0);
    tk_fails(fm_entry_read_range(&p, &e, 90, 11, dst, 0), FM_EINVAL, "not within");
    e.kind = FM_ENTRY_FILE;
    e.data = (uint8_t *)text;
    e.bytes = 10;
    tk_ok(fm_entry_read_range(&p, &e, 4, 3, dst, 0));
    assert_memory_equal(dst, "456", 3);
    assert_int_equal(reads, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_that_stretch_of_the_whole),
        cmocka_unit_test(a_provider_without_ranges_is_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
