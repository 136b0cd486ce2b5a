/* lineage_race.c - many processes on one branch; deaths and failed allocations in between. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "tests/kit/lineage_kit.h"

#define WRITERS 4
#define ROUNDS 5

/* Exit code: how many moves were won, or 100 on any other outcome than won or lost. */
static int race_child(const char *dir, const fm_oid *base, unsigned id)
{
    fm_repo *r = NULL;
    fm_tree *tree = NULL;
    int won = 0;

    if (fm_repo_open(&r, dir) < 0)
        return 100;
    for (unsigned i = 0; i < ROUNDS; i++) {
        char text[32];
        fm_commit_opts o = {.kind = "edit", .message = text, .parent = base, .parent_count = 1};
        fm_oid at, mine;
        fm_status rc;
        snprintf(text, sizeof text, "writer %u round %u", id, i);
        if (fm_ref_read(r, &at, "refs/heads/main") < 0 || fm_version_tree(r, &tree, &at) < 0 ||
            fm_tree_put_file(tree, "README.md", fm_span_str(text)) < 0)
            return 100;
        o.parent = &at;
        if (fm_version_commit(r, &mine, tree, &o) < 0)
            return 100;
        rc = fm_ref_update(r, "refs/heads/main", &mine, &at, text);
        fm_tree_free(tree);
        if (rc != FM_OK && rc != FM_ECONFLICT)
            return 100;
        won += rc == FM_OK;
    }
    fm_repo_close(r);
    return won;
}

static fm_status count_version(void *ctx, const fm_version *v)
{
    (void)v;
    ++*(unsigned *)ctx;
    return FM_OK;
}

static fm_status count_ref(void *ctx, const char *name, const fm_oid *oid)
{
    (void)name;
    (void)oid;
    ++*(unsigned *)ctx;
    return FM_OK;
}

static void assert_clean(fm_repo *r)
{
    fm_fsck_report report;

    tk_ok(fm_repo_fsck(r, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
}

TEST(no_move_is_lost_among_processes)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid base = kit_branch(r, "main", NULL, 0), head;
    unsigned won = 0, versions = 0, lost = 0;
    pid_t pid[WRITERS];

    fm_repo_close(r);
    for (unsigned i = 0; i < WRITERS; i++) {
        pid[i] = fork();
        if (pid[i] == 0)
            _exit(race_child(dir, &base, i));
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= ROUNDS);
        won += (unsigned)WEXITSTATUS(status);
    }
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_ref_read(r, &head, "refs/heads/main"));
    tk_ok(fm_log_walk(r, &head, 1, count_version, &versions));
    tk_ok(fm_ref_each(r, "refs/fmstore/lost/", count_ref, &lost));
    assert_int_equal(versions, won + 1);
    assert_int_equal(lost, WRITERS * ROUNDS - won);
    assert_clean(r);
    kit_close(r, dir);
}

/* Commits without end until it is killed. */
static void commit_for_ever(const char *dir)
{
    fm_repo *r = NULL;
    fm_tree *tree = NULL;
    fm_oid at, next;

    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_ref_read(r, &at, "refs/heads/main"));
    for (unsigned i = 0;; i++) {
        char key[65], text[16];
        snprintf(text, sizeof text, "%u", i);
        tree = kit_model(r, 3, 2, i);
        next = kit_commit(r, tree, text, &at, 1, 0);
        fm_tree_free(tree);
        if (fm_ref_update(r, "refs/heads/main", &next, &at, text) < 0)
            _exit(1);
        at = next;
        snprintf(key, sizeof key, "%064u", i);
        if (fm_result_put(r, key, fm_span_str("{}")) < 0 || fm_result_flush(r) < 0 ||
            fm_note_add(r, &at, text) < 0)
            _exit(1);
    }
}

TEST(a_kill_at_any_time_leaves_a_sound_repository)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);

    kit_branch(r, "main", NULL, 0);
    fm_repo_close(r);
    for (unsigned i = 0; i < 20; i++) {
        pid_t pid = fork();
        int status;
        if (pid == 0)
            commit_for_ever(dir);
        usleep(3000 + i * 7919 % 60000);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        tk_ok(fm_repo_open(&r, dir));
        assert_clean(r);
        fm_repo_close(r);
    }
    fm_free(dir);
}

/* One whole round of everything that allocates; the first failure is what it returns. */
static fm_status round_of_work(const char *dir, const fm_tree *tree, const fm_oid *at)
{
    fm_commit_opts o = {
        .kind = "edit", .message = "again", .parent = at, .parent_count = 1, .time = KIT_TIME + 99};
    fm_repo *r = NULL;
    fm_tree *back = NULL;
    fm_repo_stats s = {0};
    fm_oid next;
    char key[65];
    unsigned n = 0;
    fm_status rc = fm_repo_open(&r, dir);

    memset(key, 'c', 64);
    key[64] = '\0';

    if (rc == FM_OK)
        rc = fm_version_commit(r, &next, tree, &o);
    if (rc == FM_OK)
        rc = fm_version_tree(r, &back, &next);
    if (rc == FM_OK)
        rc = fm_log_walk(r, &next, 1, count_version, &n);
    if (rc == FM_OK)
        rc = fm_repo_stats_of(r, &s);
    if (rc == FM_OK)
        rc = fm_note_add(r, &next, "line");
    if (rc == FM_OK)
        rc = fm_rev_resolve(r, &next, "main");
    if (rc == FM_OK)
        rc = fm_result_put(r, key, fm_span_str("[1,2]"));
    if (rc == FM_OK)
        rc = fm_result_flush(r);
    fm_repo_stats_release(&s);
    fm_tree_free(back);
    fm_repo_close(r);
    return rc;
}

TEST(a_failed_allocation_is_an_error_and_nothing_more)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid at = kit_branch(r, "main", NULL, 0);
    fm_tree *tree = kit_model(r, 3, 2, 5);
    uint64_t n = 1, tried = 0;

    tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str("x")));
    fm_repo_close(r);
    for (;; n += 1 + n / 16) { /* every one at first, then a sample */
        fm_status rc;
        fm_mem_fail_at(n, false);
        rc = round_of_work(dir, tree, &at);
        fm_mem_fail_at(0, false);
        tried++;
        if (rc == FM_OK)
            break;
        if (rc != FM_ENOMEM)
            print_message("allocation %u: %s: %s\n", (unsigned)n, fm_status_name(rc),
                          fm_error_text());
        assert_int_equal(rc, FM_ENOMEM);
    }
    assert_true(tried > 20);
    tk_ok(fm_repo_open(&r, dir));
    assert_clean(r);
    fm_tree_free(tree);
    kit_close(r, dir);
}

/* What was in memory when a pack could not be written must not be taken for stored later. */
TEST(a_pack_that_cannot_be_written_is_written_next_time)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid at = kit_branch(r, "main", NULL, 0), next;
    fm_tree *tree = kit_model(r, 3, 2, 5), *back = NULL;
    struct rlimit any, tight;
    fm_commit_opts o = {
        .kind = "edit", .message = "m", .parent = &at, .parent_count = 1, .time = KIT_TIME + 1};

    static uint8_t noise[40000]; /* so that git's pack is larger than the lines of the lease */
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)fm_rng_u64(7, 1, i);
    tk_ok(fm_tree_put_file(tree, "noise", fm_span_of(noise, sizeof noise)));
    signal(SIGXFSZ, SIG_IGN); /* a full disk, as far as write can tell */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &any), 0);
    tight = any;
    tight.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    tk_fails(fm_version_commit(r, &next, tree, &o), FM_EIO, "lease");
    tight.rlim_cur = 8192;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    tk_fails(fm_version_commit(r, &next, tree, &o), FM_EIO, "cannot write a pack");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &any), 0);
    tk_ok(fm_version_commit(r, &next, tree, &o));
    tk_ok(fm_ref_update(r, "refs/heads/main", &next, &at, "m"));
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_version_tree(r, &back, &next));
    assert_clean(r);
    fm_tree_free(tree);
    fm_tree_free(back);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_move_is_lost_among_processes),
        cmocka_unit_test(a_kill_at_any_time_leaves_a_sound_repository),
        cmocka_unit_test(a_pack_that_cannot_be_written_is_written_next_time),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_nothing_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
