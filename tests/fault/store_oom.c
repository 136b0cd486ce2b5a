/* ctest: cost=15 */
/* The nth allocation fails, for every n: the operation says so or succeeds, leaks nothing (under
 * LeakSanitizer), and the store is whole afterwards. */
#include <string.h>

#include "store/store.h"
#include "tests/testkit.h"

enum { BYTES = 5000, MAX_ALLOCATIONS = 2000 };

static fm_status whole_life(const char *root, uint8_t seed)
{
    uint8_t bytes[BYTES], back[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * i / 50 + seed);
    fm_shape shape = {1, {BYTES / 4}};
    fm_store *s = NULL;
    fm_txn *t = NULL;
    fm_digest a, b;
    fm_status rc = fm_store_open(&s, root);
    if (rc == FM_OK)
        rc = fm_txn_begin(&t, s);
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(t, &a, FM_F32, &shape, fm_span_of(bytes, BYTES), NULL, NULL);
    bytes[8] ^= 3;
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(t, &b, FM_F32, &shape, fm_span_of(bytes, BYTES), &a, NULL);
    if (rc == FM_OK)
        rc = fm_txn_commit(t, NULL);
    if (rc == FM_OK)
        rc = fm_store_read(s, &b, back, BYTES);
    if (rc == FM_OK)
        assert_memory_equal(back, bytes, BYTES);
    fm_fsck_report report;
    if (rc == FM_OK)
        rc = fm_store_fsck(s, true, &report, NULL, NULL);
    if (rc == FM_OK)
        rc = fm_store_rebuild_index(s);
    fm_txn_close(t);
    fm_store_close(s);
    return rc;
}

static void expect_sound(const char *root)
{
    fm_store *s;
    fm_fsck_report report;
    tk_ok(fm_store_open(&s, root));
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    fm_store_close(s);
}

TEST(failing_allocations_are_reported)
{
    char *scratch = tk_scratch();
    uint64_t n = 1;
    for (bool reached = true; reached && n < MAX_ALLOCATIONS; n++) {
        char *root = fm_path_join(scratch, "store");
        tk_ok(fm_make_dirs(root));
        tk_ok(fm_store_init(root));
        uint64_t before = fm_mem_alloc_count();
        fm_mem_fail_at(n, false);
        fm_status rc = whole_life(root, (uint8_t)n);
        fm_mem_fail_at(0, false);
        reached = fm_mem_alloc_count() - before >= n;
        if (rc != FM_OK)
            assert_int_equal(rc, FM_ENOMEM);
        assert_true(reached || rc == FM_OK);
        expect_sound(root);
        tk_ok(fm_remove_tree(root));
        fm_free(root);
    }
    assert_true(n > 20 && n < MAX_ALLOCATIONS);
    fm_free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failing_allocations_are_reported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
