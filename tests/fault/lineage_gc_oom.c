/* Allocations of gc, repack and repair fail in turn: an error and nothing more. */
#include "tests/kit/lineage_kit.h"

typedef fm_status (*job_fn)(fm_repo *r, const char *other);

static fm_status dry_run(fm_repo *r, const char *other)
{
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    (void)other;
    o.prune = "now";
    o.dry_run = true;
    fm_status rc = fm_repo_gc(r, &o, &report);
    fm_gc_report_release(&report);
    return rc;
}

static fm_status collect(fm_repo *r, const char *other)
{
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    (void)other;
    o.prune = o.reflog = "now";
    o.repack = o.repack_all = true;
    o.depth = 0;
    fm_status rc = fm_repo_gc(r, &o, &report);
    fm_gc_report_release(&report);
    return rc;
}

static fm_status repair(fm_repo *r, const char *other)
{
    fm_repair_report report;
    return fm_repo_repair(r, other, &report);
}

/* Each step-th allocation, once; the repository is made anew for each where the job changes it. */
static void each_allocation(job_fn job, uint64_t step, bool changes, bool lose_packs)
{
    char *sound;
    fm_repo *r = kit_repo(&sound);
    fm_oid a = kit_branch(r, "main", NULL, 0), b = kit_branch(r, "side", &a, 1);
    tk_ok(fm_ref_delete(r, "refs/heads/side", &b));
    fm_repo_close(r);
    char *dir = fm_asprintf("%s.work", sound), *packs = fm_asprintf("%s/packs", dir);
    kit_copy_tree(sound, dir);
    bool done = false;
    unsigned tried = 0;
    for (uint64_t nth = 1; !done && tried < 20000; nth += step, tried++) {
        fm_fsck_report report;
        if (changes)
            kit_copy_tree(sound, dir);
        if (lose_packs) {
            tk_ok(fm_remove_tree(packs));
            tk_ok(fm_make_dirs(packs));
        }
        tk_ok(fm_repo_open(&r, dir));
        uint64_t before = fm_mem_alloc_count();
        fm_mem_fail_at(nth, false);
        fm_status rc = job(r, sound);
        fm_mem_fail_at(0, false);
        done = fm_mem_alloc_count() - before < nth;
        if (rc != FM_OK && rc != FM_ENOMEM)
            print_message("allocation %llu: %s\n", (unsigned long long)nth, fm_error_text());
        assert_true(rc == FM_OK || rc == FM_ENOMEM);
        fm_repo_close(r);
        if (lose_packs || (!changes && !done))
            continue;
        tk_ok(fm_repo_open(&r, dir));
        tk_ok(fm_repo_fsck(r, true, &report, NULL, NULL));
        assert_int_equal(report.faults, 0);
        fm_repo_close(r);
    }
    print_message("%u allocations\n", tried);
    assert_true(done && tried > 10);
    tk_ok(fm_remove_tree(dir));
    fm_free(dir);
    fm_free(packs);
    fm_free(sound);
}

TEST(a_dry_run_without_memory)
{
    each_allocation(dry_run, 1, false, false);
}

TEST(a_collection_without_memory)
{
    each_allocation(collect, 13, true, false);
}

TEST(a_repair_without_memory)
{
    each_allocation(repair, 7, true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dry_run_without_memory),
        cmocka_unit_test(a_collection_without_memory),
        cmocka_unit_test(a_repair_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
