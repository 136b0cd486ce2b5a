/* ctest: plain */
/* gc and repack killed, or (at each third) refused by the system, at every write-side call: the
 * repository opens, fsck is clean, every ref holds what it held, and the same command run again
 * finishes. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/kit/fault_kit.h"
#include "tests/kit/lineage_kit.h"

enum { MAX_CALLS = 600, BRANCHES = 4 };

static fm_gc_opts how(bool repack)
{
    fm_gc_opts o = fm_gc_defaults();
    o.prune = "now";
    o.repack = repack;
    o.repack_all = repack;
    o.depth = repack ? 0 : FM_GC_ANY_DEPTH;
    return o;
}

/* Tensors of one leaf, each branch's changed ones coded against main's. */
static fm_oid grow_branch(fm_repo *r, const char *name, const fm_oid *parent, unsigned seed)
{
    static uint8_t bytes[20000];
    fm_tree *tree, *before = NULL;
    fm_txn *t;
    fm_shape shape = {1, {sizeof bytes / 2}};
    char ref[64];
    tk_ok(fm_tree_new(&tree));
    if (parent)
        tk_ok(fm_version_tree(r, &before, parent));
    tk_ok(fm_txn_begin(&t, fm_repo_store(r)));
    for (unsigned k = 0; k < 3; k++) {
        char path[64], tensor[64];
        fm_digest id;
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)((i * 2654435761u + k * 977) >> 16);
        for (unsigned i = 0; i < seed * 3; i++)
            bytes[(i * 1013 + k) % sizeof bytes & ~1u] ^= (uint8_t)(1 + (seed & 7));
        snprintf(tensor, sizeof tensor, "layers.%u.weight", k);
        snprintf(path, sizeof path, "tensors/layers/%u.weight", k);
        const fm_entry *p = before ? fm_tree_find(before, path) : NULL;
        tk_ok(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(bytes, sizeof bytes),
                                p ? &p->id : NULL, NULL));
        tk_ok(fm_tree_put_tensor(tree, path, tensor, FM_BF16, &shape, &id));
    }
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_oid oid = kit_commit(r, tree, name, parent, parent ? 1 : 0, KIT_TIME + seed);
    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    tk_ok(fm_ref_update(r, ref, &oid, NULL, "made"));
    fm_tree_free(tree);
    fm_tree_free(before);
    return oid;
}

static char *prepared(fm_oid oid[BRANCHES])
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    oid[0] = grow_branch(r, "main", NULL, 0);
    oid[1] = grow_branch(r, "one", &oid[0], 1);
    oid[2] = grow_branch(r, "two", &oid[1], 2);
    oid[3] = grow_branch(r, "gone", &oid[2], 3);
    tk_ok(fm_ref_delete(r, "refs/heads/gone", &oid[3]));
    fm_repo_close(r);
    return dir;
}

static void expect_whole(const char *dir, const fm_oid oid[BRANCHES])
{
    fm_repo *r;
    static const char *const ref[] = {"refs/heads/main", "refs/heads/one", "refs/heads/two"};
    assert_int_equal(kit_faults(dir), 0);
    tk_ok(fm_repo_open(&r, dir));
    for (int i = 0; i < 3; i++) {
        fm_oid at;
        fm_tree *tree;
        fm_provider p = fm_store_provider(fm_repo_store(r));
        tk_ok(fm_ref_read(r, &at, ref[i]));
        assert_true(fm_oid_eq(&at, &oid[i]));
        tk_ok(fm_version_tree(r, &tree, &at));
        for (size_t k = 0; k < fm_tree_count(tree); k++) {
            fm_buf b;
            fm_buf_init(&b, 0);
            tk_ok(fm_entry_read(&b, &p, fm_tree_at(tree, k)));
            fm_buf_release(&b);
        }
        fm_tree_free(tree);
    }
    fm_repo_close(r);
}

static void finish(const char *dir, bool repack)
{
    fm_repo *r;
    fm_gc_report report;
    fm_gc_opts o = how(repack);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_repo_gc(r, &o, &report));
    assert_int_equal(report.live_objects, report.objects - report.gone_objects);
    assert_int_equal(report.stuck_objects + report.held_objects + report.waiting_objects, 0);
    assert_int_equal(report.bad_objects, 0);
    if (repack)
        assert_int_equal(report.packs_after, 1);
    fm_gc_report_release(&report);
    fm_repo_close(r);
}

/* Exit 0: it ended before its nth call; 1: that was refused, and gc stopped or did without. */
static void run_child(const char *dir, bool repack, uint64_t nth, int err)
{
    fm_repo *r;
    fm_gc_report report;
    fm_gc_opts o = how(repack);
    if (fm_repo_open(&r, dir) != FM_OK)
        _exit(2);
    const uint64_t before = fm_io_call_count();
    fm_io_fail_at(nth, err);
    fm_status rc = fm_repo_gc(r, &o, &report);
    bool met = fm_io_call_count() - before >= nth;
    fm_gc_report_release(&report);
    fm_repo_close(r);
    _exit(rc == FM_OK && !met ? 0 : 1);
}

static void at_every_call(bool repack, int err)
{
    fm_oid oid[BRANCHES];
    char *sound = prepared(oid), *dir = fm_asprintf("%s.work", sound);
    uint64_t nth = 1;
    for (; nth < MAX_CALLS; nth += err ? 3 : 1) { /* kills at each, refusals at each third */
        int status;
        kit_copy_tree(sound, dir);
        pid_t pid = fork();
        if (pid == 0)
            run_child(dir, repack, nth, err);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == 9;
        assert_true(err == 0 ? killed || WIFEXITED(status) : WIFEXITED(status));
        assert_true(killed || WEXITSTATUS(status) <= 1);
        expect_whole(dir, oid);
        finish(dir, repack);
        expect_whole(dir, oid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && (err == 0 || nth > 12))
            break;
    }
    print_message("%s: %llu calls\n", repack ? "repack" : "gc", (unsigned long long)nth - 1);
    assert_true(nth > 12);
    assert_true(nth < MAX_CALLS); /* the last run met no failure */
    assert_int_equal(fm_remove_tree(dir), FM_OK);
    fm_free(dir);
    fm_free(sound);
}

TEST(gc_killed_at_any_call_loses_nothing)
{
    at_every_call(false, 0);
}

TEST(repack_killed_at_any_call_loses_nothing)
{
    at_every_call(true, 0);
}

TEST(gc_on_a_full_disk_loses_nothing)
{
    at_every_call(false, ENOSPC);
}

TEST(repack_on_a_full_disk_loses_nothing)
{
    at_every_call(true, ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gc_killed_at_any_call_loses_nothing),
        cmocka_unit_test(repack_killed_at_any_call_loses_nothing),
        cmocka_unit_test(gc_on_a_full_disk_loses_nothing),
        cmocka_unit_test(repack_on_a_full_disk_loses_nothing),
    };
    fk_use_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
