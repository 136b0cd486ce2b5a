/* exchange_gc.c - gc beside versions that arrive, and refs that it meets. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kit/grown_kit.h"

static void gc_now(const char *dir)
{
    fm_gc_opts o = fm_gc_defaults();
    fm_gc_report report;
    fm_repo *r;

    o.prune = "now";
    o.reflog = "now";
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_repo_gc(r, &o, &report));
    fm_gc_report_release(&report);
    fm_repo_close(r);
}

static int tag_text(char text[200], const fm_oid *at, bool of_tag)
{
    char hex[41];

    fm_oid_hex(at, hex);
    return snprintf(text, 200, "object %s\ntype %s\ntag t\ntagger A <a@b> 1 +0000\n\nt\n", hex,
                    of_tag ? "tag" : "commit");
}

/* Tags of tags, the last first: as many as a stack of calls would not bear. */
TEST(a_long_chain_of_tags_is_refused_and_does_no_harm)
{
    enum { TAGS = 5000, STACK_BYTES = 400 << 10 };
    static fm_oid at[TAGS + 1];
    char *dir, text[200];
    fm_repo *r = kit_repo(&dir);
    fm_ref_wish w;
    fm_buf pack;
    int status;

    at[0] = kit_branch(r, "main", NULL, 0);
    for (unsigned i = 0; i < TAGS; i++) {
        git_oid id;
        int n = tag_text(text, &at[i], i > 0);
        assert_int_equal(git_odb_hash(&id, text, (size_t)n, GIT_OBJECT_TAG), 0);
        memcpy(at[i + 1].b, id.id, sizeof id.id);
    }
    kit_pack_begin(&pack, TAGS);
    for (unsigned i = TAGS; i-- > 0;) {
        int n = tag_text(text, &at[i], i > 0);
        kit_pack_object(&pack, 4, text, (size_t)n);
    }
    kit_pack_end(&pack);
    tk_ok(kit_take(r, fm_buf_span(&pack), pack.len));
    w = kit_wish("refs/tags/two", &at[2], NULL);
    assert_int_equal(kit_move(r, &w), FM_OK);
    w.name = "refs/heads/two";
    assert_int_equal(kit_move(r, &w), FM_EINVAL);
    assert_non_null(strstr(w.text, "a branch holds a version"));
    w = kit_wish("refs/tags/deep", &at[TAGS], NULL);
    assert_int_equal(kit_move(r, &w), FM_ELIMIT);
    pid_t pid = fork();
    if (pid == 0) { /* while the lease holds them all */
        const struct rlimit stack = {STACK_BYTES, STACK_BYTES};
        setrlimit(RLIMIT_STACK, &stack);
        gc_now(dir);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    fm_buf_release(&pack);
    fm_repo_close(r);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

TEST(gc_keeps_what_arrives_until_its_ref_moves_or_the_process_ends)
{
    char *here, *there;
    fm_repo *a = kit_repo(&here), *b = kit_repo(&there);
    fm_oid tip[3], other;
    fm_ref_wish w;
    fm_buf pack;

    grow(a, tip, 3);
    other = kit_branch(a, "other", NULL, 7);
    kit_send(a, &pack, &tip[2], 1, NULL, 0);
    tk_ok(kit_take(b, fm_buf_span(&pack), 100));
    fm_buf_release(&pack);
    gc_now(there); /* tensors have not arrived: no reason to stop */
    gc_now(there);
    assert_true(fm_exchange_has(b, &tip[0]));
    share_tensors(b, 3);
    gc_now(there);
    w = kit_wish("refs/heads/main", &tip[2], NULL);
    assert_int_equal(kit_move(b, &w), FM_OK);
    kit_send(a, &pack, &other, 1, NULL, 0);
    tk_ok(kit_take(b, fm_buf_span(&pack), 100));
    fm_buf_release(&pack);
    fm_repo_close(b); /* as if it had been killed */
    gc_now(there);
    gc_now(there);
    tk_ok(fm_repo_open(&b, there));
    assert_true(fm_exchange_has(b, &tip[0]));
    assert_false(fm_exchange_has(b, &other));
    kit_close(a, here);
    fm_repo_close(b);
    assert_int_equal(kit_faults(there), 0);
    fm_free(there);
}

TEST(gc_keeps_what_a_remote_tracking_ref_reaches)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid at = kit_branch(r, "main", NULL, 0);
    fm_ref_wish w = kit_wish("refs/remotes/origin/x", &at, NULL);

    w.any_old = true;
    assert_int_equal(kit_move(r, &w), FM_OK);
    tk_ok(fm_ref_delete(r, "refs/heads/main", &at));
    fm_repo_close(r);
    gc_now(dir);
    gc_now(dir);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_rev_resolve(r, &at, "origin/x"));
    fm_repo_close(r);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
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

TEST(the_log_of_all_shows_remote_tracking_refs_and_no_branch_is_made_of_them)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid at = kit_branch(r, "main", NULL, 0), other = kit_branch(r, "other", &at, 1), got;
    fm_ref_wish w = kit_wish("refs/remotes/origin/other", &other, NULL);
    unsigned versions = 0, branches = 0;

    w.any_old = true;
    assert_int_equal(kit_move(r, &w), FM_OK);
    tk_ok(fm_ref_delete(r, "refs/heads/other", &other));
    tk_ok(fm_log_walk(r, NULL, 0, count_version, &versions));
    assert_int_equal(versions, 2);
    tk_ok(fm_ref_each(r, "refs/heads/", count_ref, &branches));
    assert_int_equal(branches, 1);
    tk_fails(fm_rev_resolve(r, &got, "origin/othr"), FM_ENOTFOUND, "did you mean 'origin/other'");
    kit_close(r, dir);
}

TEST(what_a_killed_intake_left_is_swept)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_git_intake *in;
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        if (fm_git_intake_open(&in, r, 0) < 0 || fm_git_intake_bytes(in, "PACK", 4) < 0)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(files_in(dir, "tmp"), 2); /* a folder and its lock */
    char *outlived = fm_asprintf("%s/tmp/git-1-0/objects", dir); /* its lock is gone */
    tk_ok(fm_make_dirs(outlived));
    fm_free(outlived);
    assert_int_equal(files_in(dir, "tmp"), 3);
    tk_ok(fm_git_intake_open(&in, r, 0));
    assert_int_equal(files_in(dir, "tmp"), 2); /* those of the new one */
    fm_git_intake_close(in);
    assert_int_equal(files_in(dir, "tmp"), 0);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_chain_of_tags_is_refused_and_does_no_harm),
        cmocka_unit_test(gc_keeps_what_arrives_until_its_ref_moves_or_the_process_ends),
        cmocka_unit_test(gc_keeps_what_a_remote_tracking_ref_reaches),
        cmocka_unit_test(the_log_of_all_shows_remote_tracking_refs_and_no_branch_is_made_of_them),
        cmocka_unit_test(what_a_killed_intake_left_is_swept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
