/* ctest: cost=15 */
/* The nth allocation fails, for every n: the operation says so or succeeds, leaks nothing (under
 * LeakSanitizer), and the store is whole afterwards. */
#include <string.h>

#include "store/exchange.h"
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

/* ==== an intake ==== */

static fm_store *from;
static fm_record_info info[3]; /* a tensor, a child of it, a blob */

static void make_records(const char *root)
{
    uint8_t bytes[BYTES];
    fm_shape shape = {1, {BYTES / 4}};
    fm_digest id[3];
    fm_txn *t;
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * i / 50);
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&from, root));
    tk_ok(fm_txn_begin(&t, from));
    tk_ok(fm_txn_put_tensor(t, &id[0], FM_F32, &shape, fm_span_of(bytes, BYTES), NULL, NULL));
    bytes[8] ^= 3;
    tk_ok(fm_txn_put_tensor(t, &id[1], FM_F32, &shape, fm_span_of(bytes, BYTES), &id[0], NULL));
    tk_ok(fm_txn_put_blob(t, &id[2], fm_span_of(bytes, 3000), NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    for (int k = 0; k < 3; k++)
        tk_ok(fm_record_info_of(from, &info[k], &id[k]));
}

static fm_status take(void *ctx, const void *data, size_t len)
{
    return fm_intake_bytes(ctx, data, len);
}

static fm_status take_half(void *ctx, const void *data, size_t len)
{
    fm_status rc = fm_intake_bytes(ctx, data, len / 2);
    return rc == FM_OK ? fm_fail(FM_ECANCELLED, "it breaks off") : rc;
}

static fm_status receive(fm_intake *in, int which, uint64_t at)
{
    FM_TRY(fm_intake_begin(in, &info[which], at));
    FM_TRY(fm_record_send(from, &info[which], at, take, in));
    return fm_intake_end(in);
}

/* The first record and a half; then an intake that takes that over, and the rest. */
static fm_status receive_all(const char *root, uint8_t seed)
{
    fm_store *s = NULL;
    fm_intake *in = NULL;
    fm_digest id, head;
    uint64_t cut = 0;
    (void)seed;
    fm_status rc = fm_store_open(&s, root);
    FM_THEN(rc, fm_intake_open(&in, s));
    FM_THEN(rc, receive(in, 0, 0));
    FM_THEN(rc, fm_intake_begin(in, &info[1], 0));
    if (rc == FM_OK)
        rc = fm_record_send(from, &info[1], 0, take_half, in);
    rc = rc == FM_ECANCELLED ? FM_OK : rc;
    fm_intake_close(in);
    in = NULL;
    FM_THEN(rc, fm_intake_open(&in, s));
    if (rc == FM_OK && fm_intake_cut(in, &id, &head, &cut))
        rc = receive(in, 1, cut);
    FM_THEN(rc, receive(in, 2, 0));
    FM_THEN(rc, fm_intake_publish(in, NULL));
    fm_intake_close(in);
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

static void fail_each(fm_status (*scenario)(const char *root, uint8_t seed))
{
    char *scratch = tk_scratch();
    uint64_t n = 1;
    for (bool reached = true; reached && n < MAX_ALLOCATIONS; n++) {
        char *root = fm_path_join(scratch, "store");
        tk_ok(fm_make_dirs(root));
        tk_ok(fm_store_init(root));
        uint64_t before = fm_mem_alloc_count();
        fm_mem_fail_at(n, false);
        fm_status rc = scenario(root, (uint8_t)n);
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

TEST(failing_allocations_are_reported)
{
    fail_each(whole_life);
}

TEST(failing_allocations_of_an_intake_are_reported)
{
    char *root = tk_scratch();
    make_records(root);
    fail_each(receive_all);
    fm_store_close(from);
    fm_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_allocations_are_reported),
        cmocka_unit_test(failing_allocations_of_an_intake_are_reported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
