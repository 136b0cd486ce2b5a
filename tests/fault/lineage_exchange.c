/* ctest: plain cost=20 */
/* The receiver of versions dies at each call that changes a file, libgit2's calls too (preload/),
 * or lacks memory at each allocation: fsck is clean, ours and git's, each ref is at its old or its
 * new version, and the same work done again finishes. */
#include <git2.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fault/kit/fault_kit.h"
#include "tests/kit/versions_kit.h"

enum { MAX_CALLS = 2000, REFS = 6 };

static const char *const ref_name[REFS] = {"refs/heads/main",    "refs/heads/new",
                                           "refs/heads/gone",    "refs/tags/v1",
                                           "refs/notes/fmstore", "refs/fmstore/results"};

/* What the child is to do, in a file: a pack and what the refs become. */
typedef struct work {
    fm_oid to[REFS], old[REFS];
} work;

static fm_status take_and_move(const char *dir, const work *k, fm_span pack)
{
    fm_repo *r = NULL;
    fm_git_intake *in = NULL;
    fm_ref_wish w[REFS];
    fm_status rc = fm_repo_open(&r, dir);

    FM_THEN(rc, fm_git_intake_open(&in, r, 0));
    for (size_t at = 0; rc == FM_OK && at < pack.len; at += 300)
        rc = fm_git_intake_bytes(in, pack.data + at, FM_MIN(pack.len - at, (size_t)300));
    FM_THEN(rc, fm_git_intake_end(in, NULL));
    fm_git_intake_close(in);
    for (size_t i = 0; i < REFS; i++)
        w[i] = kit_wish(ref_name[i], &k->to[i], &k->old[i]);
    FM_THEN(rc, fm_refs_move(r, w, REFS, false, "push"));
    for (size_t i = 0; rc == FM_OK && i < REFS; i++) {
        rc = w[i].status;
        if (rc < 0)
            rc = fm_fail(rc, "%s", w[i].text);
    }
    fm_repo_close(r);
    return rc;
}

static void put_result(fm_repo *r, char c)
{
    char key[65];

    memset(key, c, 64);
    key[64] = '\0';
    tk_ok(fm_result_put(r, key, fm_span_str("[1]")));
    tk_ok(fm_result_flush(r));
}

static void read_id(const char *dir, const char *name, fm_oid *out)
{
    git_repository *g = NULL;
    git_oid id;
    char path[512];

    snprintf(path, sizeof path, "%s/lineage.git", dir);
    assert_int_equal(git_repository_open_bare(&g, path), 0);
    assert_int_equal(git_reference_name_to_id(&id, g, name), 0);
    memcpy(out->b, id.id, sizeof out->b);
    git_repository_free(g);
}

/* Two repositories with one version in common, and notes and results of their own. */
static char *prepared(work *k, fm_buf *pack)
{
    char *here, *there;
    fm_repo *a = kit_repo(&here), *b = kit_repo(&there);
    fm_oid base = kit_branch(a, "main", NULL, 0), want[4];
    fm_tree *tree;

    memset(k, 0, sizeof *k);
    for (unsigned i = 0; i < 4; i++)
        fm_tree_free(kit_model(b, 3, 1, i));
    kit_carry(a, b, "refs/heads/main");
    tk_ok(fm_ref_update(b, "refs/heads/gone", &base, NULL, "made"));
    tk_ok(fm_note_add(a, &base, "of a"));
    tk_ok(fm_note_add(b, &base, "of b"));
    put_result(a, 'a');
    put_result(b, 'b');
    k->to[1] = kit_branch(a, "new", &base, 3);
    tree = kit_model(a, 3, 1, 2);
    k->to[0] = kit_commit(a, tree, "more", &base, 1, KIT_TIME + 9);
    tk_ok(fm_ref_update(a, "refs/heads/main", &k->to[0], &base, "more"));
    k->to[3] = k->to[1];
    k->old[0] = k->old[2] = base;
    read_id(here, ref_name[4], &k->to[4]);
    read_id(here, ref_name[5], &k->to[5]);
    want[0] = k->to[0];
    want[1] = k->to[1];
    want[2] = k->to[4];
    want[3] = k->to[5];
    kit_send(a, pack, want, 4, &base, 1);
    fm_tree_free(tree);
    kit_close(a, here);
    fm_repo_close(b);
    return there;
}

static void expect_sound(const char *dir, const work *k, bool done, bool with_git)
{
    fm_repo *r;
    fm_oid at;
    char out[4000];

    assert_int_equal(kit_faults(dir), 0);
    tk_ok(fm_repo_open(&r, dir));
    for (size_t i = 0; i < 4; i++) { /* notes and results are unions: their ids are their own */
        static const fm_oid none;
        if (fm_ref_read(r, &at, ref_name[i]) != FM_OK)
            at = none;
        if (!fm_oid_eq(&at, &k->to[i]) && (done || !fm_oid_eq(&at, &k->old[i])))
            fail_msg("%s is neither where it was nor where it is to be", ref_name[i]);
    }
    fm_repo_close(r);
    if (with_git && kit_have_git() && kit_git(dir, "fsck --strict", out, sizeof out) != 0)
        fail_msg("git fsck: %s", out);
}

static void expect_unions(const char *dir)
{
    fm_repo *r;
    fm_oid base;
    fm_buf b;
    char key[65];

    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_rev_resolve(r, &base, "main~1"));
    fm_buf_init(&b, 0);
    tk_ok(fm_note_read(r, &b, &base));
    assert_string_equal(fm_buf_cstr(&b), "of a\nof b\n");
    for (char c = 'a'; c <= 'b'; c++) {
        memset(key, c, 64);
        key[64] = '\0';
        fm_buf_clear(&b);
        tk_ok(fm_result_get(r, &b, key));
        assert_string_equal(fm_buf_cstr(&b), "[1]");
    }
    fm_buf_release(&b);
    fm_repo_close(r);
}

/* The child: argv is program, "take", the repository, the file of work and pack. */
static int child(char **argv)
{
    fm_buf b;
    work k;

    fm_buf_init(&b, 0);
    if (fm_read_file(&b, argv[3], 1u << 24) < 0 || b.len < sizeof k)
        return 2;
    memcpy(&k, b.data, sizeof k);
    return take_and_move(argv[2], &k, fm_span_of(b.data + sizeof k, b.len - sizeof k)) < 0;
}

static int start(const char *dir, const char *file, unsigned nth)
{
    char program[512] = "", at[16];
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
            _exit(126);
        snprintf(at, sizeof at, "%u", nth);
        setenv("FM_FAULT_ROOT", dir, 1);
        setenv("FM_FAULT_AT", at, 1);
        setenv("FM_FAULT_HOW", "KILL", 1);
        setenv("FM_FAULT_NOSYNC", "1", 1);
        setenv("LD_PRELOAD", getenv("FM_INJECT"), 1);
        execl(program, program, "take", dir, file, (char *)NULL);
        _exit(126);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

TEST(a_receiver_killed_at_any_call_loses_nothing)
{
    fm_buf pack, all;
    work k;
    char *sound = prepared(&k, &pack), *dir = fm_asprintf("%s.work", sound);
    char *file = fm_asprintf("%s.pack", sound);
    unsigned nth = 1;

    fm_buf_init(&all, 0);
    fm_buf_append(&all, &k, sizeof k);
    fm_buf_append(&all, pack.data, pack.len);
    tk_ok(fm_write_file(file, all.data, all.len));
    for (; nth < MAX_CALLS; nth++) {
        kit_copy_tree(sound, dir);
        int status = start(dir, file, nth);
        bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (!killed && status != 0)
            print_message("call %u: exit %d\n", nth, WEXITSTATUS(status));
        assert_true(killed || status == 0);
        expect_sound(dir, &k, !killed, nth % 4 == 0);
        if (!killed)
            break;
        fk_age(dir); /* a lock file of libgit2's is waited for while it is young */
        if (start(dir, file, 0) != 0)
            fail_msg("after a kill at call %u it cannot be done again", nth);
        expect_sound(dir, &k, true, nth % 4 == 0);
        expect_unions(dir);
    }
    expect_unions(dir);
    print_message("%u calls\n", nth - 1);
    assert_true(nth > 60 && nth < MAX_CALLS);
    tk_ok(fm_remove_tree(dir));
    tk_ok(fm_remove_file(file));
    fm_free(dir);
    fm_free(file);
    fm_free(sound);
    fm_buf_release(&pack);
    fm_buf_release(&all);
}

TEST(a_receiver_without_memory_says_so)
{
    fm_buf pack;
    work k;
    char *sound = prepared(&k, &pack), *dir = fm_asprintf("%s.work", sound);
    bool reached = true;
    unsigned tried = 0;

    for (uint64_t nth = 1; reached; nth += 1 + nth / 64, tried++) {
        kit_copy_tree(sound, dir);
        uint64_t before = fm_mem_alloc_count();
        fm_mem_fail_at(nth, false);
        fm_status rc = take_and_move(dir, &k, fm_buf_span(&pack));
        fm_mem_fail_at(0, false);
        reached = fm_mem_alloc_count() - before >= nth;
        if (rc != FM_OK && (rc != FM_ENOMEM || !reached))
            fail_msg("allocation %u: %s: %s", (unsigned)nth, fm_status_name(rc), fm_error_text());
        expect_sound(dir, &k, !reached, false);
    }
    print_message("%u allocations\n", tried);
    assert_true(tried > 100);
    tk_ok(fm_remove_tree(dir));
    fm_free(dir);
    fm_free(sound);
    fm_buf_release(&pack);
}

static fm_status count_pointer(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes)
{
    (void)id;
    (void)is_tensor;
    (void)bytes;
    ++*(unsigned *)ctx;
    return FM_OK;
}

static fm_status ask_and_send(const char *dir, const fm_oid *want, const fm_oid *have)
{
    const fm_exchange_ask ask = {want, have, 1, 1};
    fm_oid *haves = NULL;
    unsigned pointers = 0;
    size_t count = 0;
    fm_buf pack;
    fm_repo *r = NULL;
    bool yes;
    fm_status rc = fm_repo_open(&r, dir);

    fm_buf_init(&pack, 0);
    FM_THEN(rc, fm_exchange_haves(r, &haves, &count, 10));
    FM_THEN(rc, fm_is_ancestor(r, &yes, have, want));
    FM_THEN(rc, fm_exchange_pointers(r, &ask, count_pointer, &pointers));
    FM_THEN(rc, fm_git_send(r, &ask, kit_gather, &pack, NULL));
    if (rc == FM_OK)
        assert_int_equal(pointers, 1);
    fm_free(haves);
    fm_buf_release(&pack);
    fm_repo_close(r);
    return rc;
}

TEST(a_sender_without_memory_says_so)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid base = kit_branch(r, "main", NULL, 0), next = kit_branch(r, "next", &base, 1);
    bool reached = true;
    unsigned tried = 0;

    fm_repo_close(r);
    for (uint64_t nth = 1; reached; nth++, tried++) {
        uint64_t before = fm_mem_alloc_count();
        fm_mem_fail_at(nth, false);
        fm_status rc = ask_and_send(dir, &next, &base);
        fm_mem_fail_at(0, false);
        reached = fm_mem_alloc_count() - before >= nth;
        if (rc != FM_OK && (rc != FM_ENOMEM || !reached))
            fail_msg("allocation %u: %s: %s", (unsigned)nth, fm_status_name(rc), fm_error_text());
    }
    print_message("%u allocations\n", tried);
    assert_true(tried > 50);
    fm_free(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_receiver_killed_at_any_call_loses_nothing),
        cmocka_unit_test(a_receiver_without_memory_says_so),
        cmocka_unit_test(a_sender_without_memory_says_so),
    };
    if (argc == 4 && strcmp(argv[1], "take") == 0)
        return child(argv);
    fk_use_memory();
    return fk_available() ? cmocka_run_group_tests(tests, NULL, NULL) : TK_SKIP;
}
