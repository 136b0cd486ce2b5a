/* lineage_fsck.c - damage is found and named; sizes add up; plain git agrees. */
#include <git2.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include "tests/kit/lineage_kit.h"

typedef struct faults {
    char text[8192];
} faults;

static void note_fault(void *ctx, const char *text)
{
    faults *f = ctx;

    strncat(f->text, text, sizeof f->text - strlen(f->text) - 2);
    strcat(f->text, "\n");
}

static uint64_t fsck(fm_repo *r, faults *f)
{
    fm_fsck_report report;

    f->text[0] = '\0';
    tk_ok(fm_repo_fsck(r, true, &report, note_fault, f));
    if (report.faults)
        print_message("%s", f->text);
    return report.faults;
}

TEST(bad_arguments_are_refused)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_fsck_report report;
    fm_repo_stats s;

    tk_fails(fm_repo_fsck(NULL, true, &report, NULL, NULL), FM_EINVAL, NULL);
    tk_fails(fm_repo_fsck(r, true, NULL, NULL, NULL), FM_EINVAL, NULL);
    tk_fails(fm_repo_rebuild_index(NULL), FM_EINVAL, NULL);
    tk_fails(fm_repo_stats_of(NULL, &s), FM_EINVAL, NULL);
    fm_repo_stats_release(NULL);
    kit_close(r, dir);
}

TEST(an_empty_and_a_grown_repository_are_clean)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a;
    faults f;

    assert_int_equal(fsck(r, &f), 0);
    a = kit_branch(r, "main", NULL, 0);
    for (unsigned i = 1; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "c%u", i);
        a = kit_branch(r, name, &a, i);
    }
    tk_ok(fm_ref_update(r, "refs/tags/t", &a, NULL, NULL));
    tk_ok(fm_note_add(r, &a, "note"));
    assert_int_equal(fsck(r, &f), 0);
    tk_ok(fm_repo_rebuild_index(r));
    assert_int_equal(fsck(r, &f), 0);
    kit_close(r, dir);
}

static git_repository *open_git(const char *dir)
{
    git_repository *g = NULL;
    char path[512];

    snprintf(path, sizeof path, "%s/lineage.git", dir);
    assert_int_equal(git_repository_open_bare(&g, path), 0);
    return g;
}

/* A commit on refs/heads/<name> whose one file has the given bytes; written behind our back. */
static void plant(const char *dir, const char *name, const char *bytes)
{
    git_repository *g = open_git(dir);
    git_treebuilder *b = NULL;
    git_signature *who = NULL;
    git_tree *tree = NULL;
    git_oid id, blob;
    char ref[64];

    snprintf(ref, sizeof ref, "refs/heads/%s", name);
    assert_int_equal(git_blob_create_from_buffer(&blob, g, bytes, strlen(bytes)), 0);
    assert_int_equal(git_treebuilder_new(&b, g, NULL), 0);
    assert_int_equal(git_treebuilder_insert(NULL, b, "w", &blob, GIT_FILEMODE_BLOB), 0);
    assert_int_equal(git_treebuilder_write(&id, b), 0);
    assert_int_equal(git_tree_lookup(&tree, g, &id), 0);
    assert_int_equal(git_signature_new(&who, "A", "a@b", 1, 0), 0);
    assert_int_equal(git_commit_create(&id, g, ref, who, who, NULL, "planted", tree, 0, NULL), 0);
    git_treebuilder_free(b);
    git_signature_free(who);
    git_tree_free(tree);
    git_repository_free(g);
}

TEST(pointers_that_lie_are_named)
{
    char *dir, hex[65], text[512];
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 1, 0, 0);
    const fm_entry *e = fm_tree_find(tree, "tensors/model/layers/0/mlp/up_proj.weight");
    faults f;

    assert_non_null(e);
    fm_digest_hex(&e->id, hex);
    snprintf(text, sizeof text,
             "fmstore tensor 1\nid sha256:%s\ndtype F32\nshape 8 4\nbytes 128\nname w\n", hex);
    plant(dir, "shape", text);
    snprintf(text, sizeof text, "fmstore blob 1\nid sha256:%s\nbytes 128\n", hex);
    plant(dir, "kind", text);
    memset(hex, '7', 64);
    snprintf(text, sizeof text, "fmstore blob 1\nid sha256:%s\nbytes 5\n", hex);
    plant(dir, "absent", text);
    plant(dir, "broken", "fmstore blob 1\nid md5:1\n");
    assert_int_equal(fsck(r, &f), 4);
    assert_non_null(strstr(f.text, "refs/heads/shape"));
    assert_non_null(strstr(f.text, "dtype or shape"));
    assert_non_null(strstr(f.text, "refs/heads/absent"));
    assert_non_null(strstr(f.text, "refs/heads/kind"));
    assert_non_null(strstr(f.text, "pointer field 'id'"));
    fm_tree_free(tree);
    kit_close(r, dir);
}

/* Flips a byte in the middle of the only git pack. */
static void damage_git_pack(const char *dir)
{
    char folder[512], path[800];
    fm_names names;
    fm_buf b;

    snprintf(folder, sizeof folder, "%s/lineage.git/objects/pack", dir);
    tk_ok(fm_list_dir(&names, folder));
    for (size_t i = 0; i < names.count; i++) {
        if (!strstr(names.name[i], ".pack"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, names.name[i]);
        fm_buf_init(&b, 0);
        tk_ok(fm_read_file(&b, path, 1 << 20));
        b.data[b.len / 2] ^= 0xff;
        tk_ok(fm_write_file(path, b.data, b.len));
        fm_buf_release(&b);
    }
    fm_names_release(&names);
}

TEST(a_damaged_git_pack_is_found)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    faults f;

    kit_branch(r, "main", NULL, 0);
    fm_repo_close(r);
    damage_git_pack(dir);
    tk_ok(fm_repo_open(&r, dir));
    assert_true(fsck(r, &f) > 0);
    assert_non_null(strstr(f.text, "refs/heads/main"));
    kit_close(r, dir);
}

TEST(a_ref_to_nothing_and_a_lost_head_are_told_apart)
{
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);
    fm_fsck_report report;
    faults f;

    kit_branch(r, "only", NULL, 0);
    snprintf(path, sizeof path, "%s/lineage.git/HEAD", dir);
    tk_ok(fm_write_file(path, "ref: refs/heads/main\n", 21));
    tk_ok(fm_repo_fsck(r, false, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.repaired, 1);
    snprintf(path, sizeof path, "%s/lineage.git/refs/heads/ghost", dir);
    tk_ok(fm_write_file(path, "1234567890123456789012345678901234567890\n", 41));
    assert_int_equal(fsck(r, &f), 1);
    assert_non_null(strstr(f.text, "refs/heads/ghost"));
    kit_close(r, dir);
}

TEST(what_a_killed_writer_left_is_swept_once_old)
{
    char *dir, old[512], young[512];
    fm_repo *r = kit_repo(&dir);
    fm_fsck_report report;
    struct utimbuf then = {1000, 1000};

    snprintf(old, sizeof old, "%s/lineage.git/objects/pack/pack_git2_00", dir);
    snprintf(young, sizeof young, "%s/lineage.git/objects/pack/pack_git2_11", dir);
    tk_ok(fm_write_file(old, "x", 1));
    tk_ok(fm_write_file(young, "x", 1));
    assert_int_equal(utime(old, &then), 0);
    tk_ok(fm_repo_fsck(r, false, &report, NULL, NULL));
    assert_int_equal(report.repaired, 1);
    assert_false(fm_path_exists(old));
    assert_true(fm_path_exists(young));
    kit_close(r, dir);
}

/* base: t0 t1 t2 + blob; child changes t0. Tensors are 128 bytes, the blob 20. */
TEST(sizes_add_up)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "base", NULL, 0);
    fm_repo_stats s;

    kit_branch(r, "child", &a, 1);
    tk_ok(fm_repo_stats_of(r, &s));
    assert_int_equal(s.count, 2);
    assert_string_equal(s.branch[0].name, "base");
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(s.branch[i].logical_bytes, 3 * 128 + 20);
        assert_int_equal(s.branch[i].shared_bytes, 2 * 128 + 20);
        assert_int_equal(s.branch[i].own_bytes, 128);
        assert_true(s.branch[i].own_stored > 0 && s.branch[i].own_stored < 1000);
        assert_int_equal(s.branch[i].tensors, 3);
        assert_int_equal(s.branch[i].tensors_shared, 2);
    }
    assert_int_equal(s.logical_bytes, 2 * (3 * 128 + 20));
    assert_int_equal(s.unique_bytes, 4 * 128 + 20);
    assert_int_equal(s.physical_bytes, s.store.bytes_packs);
    assert_true(s.physical_bytes > 0 && s.git_bytes > 0);
    fm_repo_stats_release(&s);
    kit_close(r, dir);
}

TEST(plain_git_reads_it_and_finds_no_fault)
{
    char *dir, out[16384];
    fm_repo *r = kit_repo(&dir);
    fm_oid a, b, two[2], m;
    fm_tree *tree;

    if (!kit_have_git()) {
        fm_repo_close(r);
        fm_free(dir);
        skip();
    }
    a = kit_branch(r, "base", NULL, 0);
    b = kit_branch(r, "child", &a, 1);
    two[0] = a;
    two[1] = b;
    tree = kit_model(r, 3, 1, 9);
    m = kit_commit(r, tree, "merge both", two, 2, KIT_TIME + 30);
    tk_ok(fm_ref_update(r, "refs/heads/base", &m, &a, "merge"));
    tk_ok(fm_note_add(r, &m, "suite facts: 12 of 12"));
    tk_ok(fm_result_put(r, "00000000000000000000000000000000000000000000000000000000000000aa",
                        fm_span_str("{}")));
    tk_ok(fm_result_flush(r));
    assert_int_equal(kit_git(dir, "fsck --full --strict --no-dangling", out, sizeof out), 0);
    assert_null(strstr(out, "error"));
    assert_null(strstr(out, "warning"));
    assert_int_equal(kit_git(dir, "log --graph --stat", out, sizeof out), 0);
    assert_non_null(strstr(out, "merge both"));
    assert_non_null(strstr(out, "Fmstore-Kind: finetune"));
    assert_non_null(strstr(out, "up_proj.weight"));
    assert_non_null(strstr(out, "suite facts: 12 of 12"));
    assert_int_equal(
        kit_git(dir, "log -1 --format='%(trailers:key=Fmstore-Kind,valueonly)'", out, sizeof out),
        0);
    assert_non_null(strstr(out, "merge"));
    assert_int_equal(kit_git(dir, "gc -q --prune=now", out, sizeof out), 0);
    fm_tree_free(tree);
    tree = NULL;
    tk_ok(fm_version_tree(r, &tree, &a)); /* packs went away under an open handle */
    fm_tree_free(tree);
    tree = kit_model(r, 3, 1, 10);
    a = kit_commit(r, tree, "after gc", &m, 1, KIT_TIME + 40);
    tk_ok(fm_ref_update(r, "refs/heads/base", &a, &m, "after gc"));
    assert_int_equal(kit_git(dir, "fsck --full --strict", out, sizeof out), 0);
    fm_tree_free(tree);
    kit_close(r, dir);
}

/* Makes and drops branches, tags, results, notes, and what gc takes away, until it is killed. */
static void churn(const char *dir)
{
    fm_repo *r;
    fm_oid main_at, gone;
    fm_gc_opts opts = fm_gc_defaults();
    fm_gc_report report;

    opts.prune = opts.reflog = "now";
    for (unsigned turn = 0;; turn++) {
        char key[65], name[64];
        if (fm_repo_open(&r, dir) != FM_OK)
            _exit(1);
        tk_ok(fm_ref_read(r, &main_at, "refs/heads/main"));
        for (unsigned i = 0; i < 30; i++) {
            snprintf(name, sizeof name, "refs/%s/deep%u/r%u", i % 3 ? "heads" : "tags", i % 5, i);
            tk_ok(fm_ref_update(r, name, &main_at, NULL, "made"));
            tk_ok(fm_ref_delete(r, name, &main_at));
        }
        snprintf(key, sizeof key, "%064x", turn % 7);
        snprintf(name, sizeof name, "{\"turn\":%u}", turn);
        tk_ok(fm_result_put(r, key, fm_span_str(name)));
        tk_ok(fm_result_flush(r));
        gone = kit_branch(r, "gone", &main_at, turn + 2);
        tk_ok(fm_note_add(r, &gone, "note"));
        tk_ok(fm_ref_delete(r, "refs/heads/gone", &gone));
        fm_repo_close(r); /* with its lease */
        tk_ok(fm_repo_open(&r, dir));
        if (turn % 3 == 2) {
            tk_ok(fm_repo_gc(r, &opts, &report));
            fm_gc_report_release(&report);
        }
        fm_repo_close(r);
    }
}

TEST(beside_writers_nothing_sound_is_called_a_fault)
{
    enum { LOOKS = 60 };
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid at = kit_branch(r, "main", NULL, 1);
    uint64_t told = 0;
    int status;

    for (unsigned i = 0; i < 100; i++) { /* so that reading them takes a while */
        char name[64];
        snprintf(name, sizeof name, "refs/heads/still%u", i);
        tk_ok(fm_ref_update(r, name, &at, NULL, "made"));
    }
    fm_repo_close(r);
    pid_t pid = fork();
    if (pid == 0)
        churn(dir);
    for (unsigned i = 0; i < LOOKS; i++) {
        fm_fsck_report report;
        tk_ok(fm_repo_open(&r, dir));
        tk_ok(fm_repo_fsck(r, i % 4 == 0, &report, kit_print_fault, NULL));
        told += report.faults;
        fm_repo_close(r);
    }
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0); /* it is at work still */
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(told, 0);
    assert_int_equal(kit_faults(dir), 0);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(an_empty_and_a_grown_repository_are_clean),
        cmocka_unit_test(sizes_add_up),
        cmocka_unit_test(plain_git_reads_it_and_finds_no_fault),
        cmocka_unit_test(pointers_that_lie_are_named),
        cmocka_unit_test(a_damaged_git_pack_is_found),
        cmocka_unit_test(what_a_killed_writer_left_is_swept_once_old),
        cmocka_unit_test(a_ref_to_nothing_and_a_lost_head_are_told_apart),
        cmocka_unit_test(beside_writers_nothing_sound_is_called_a_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
