/* Bits flipped in git's files and in lineage.sqlite: what is read is what was written, or an error
 * that says where; fsck finds what a reader would meet; a bad ref hides no other. */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "tests/kit/lineage_kit.h"

enum { FLIPS = 60, RESULTS = 40 };

typedef struct told {
    unsigned count;
    char text[4000];
} told;

static void note(void *ctx, const char *text)
{
    told *t = ctx;
    size_t at = strlen(t->text);
    t->count++;
    snprintf(t->text + at, sizeof t->text - at, "%s\n", text);
}

static told faults_of(fm_repo *r, bool full)
{
    told t = {0, ""};
    fm_fsck_report report;
    tk_ok(fm_repo_fsck(r, full, &report, note, &t));
    assert_int_equal(report.faults, t.count);
    return t;
}

static void key_of(char key[65], unsigned i)
{
    snprintf(key, 65, "%02x%062x", i * 7 % 256, i);
}

static void value_of(char *value, size_t bytes, unsigned i)
{
    snprintf(value, bytes, "{\"case\":%u,\"passed\":%u}", i, i * i);
}

static void put_results(fm_repo *r)
{
    char key[65], value[64];
    for (unsigned i = 0; i < RESULTS; i++) {
        key_of(key, i);
        value_of(value, sizeof value, i);
        tk_ok(fm_result_put(r, key, fm_span_str(value)));
    }
    tk_ok(fm_result_flush(r));
}

static void flip(const char *path, const fm_buf *good, unsigned n)
{
    fm_buf bad;
    fm_buf_init(&bad, 0);
    fm_buf_append(&bad, good->data, good->len);
    for (unsigned k = 0; k < 1 + n % 5; k++)
        bad.data[fm_rng_below(3, n, k, bad.len)] ^= (uint8_t)(1u << fm_rng_below(4, n, k, 8));
    tk_ok(fm_write_file(path, bad.data, n % 12 == 11 ? bad.len / 2 : bad.len));
    fm_buf_release(&bad);
}

TEST(a_damaged_sqlite_never_gives_a_wrong_result)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_buf good;

    put_results(r);
    fm_repo_close(r);
    char *path = fm_path_join(dir, "lineage.sqlite");
    fm_buf_init(&good, 0);
    tk_ok(fm_read_file(&good, path, 1 << 24));
    for (unsigned n = 0; n < 2 * FLIPS; n++) {
        flip(path, &good, n);
        tk_ok(fm_repo_open(&r, dir));
        for (unsigned i = 0; i < RESULTS; i++) {
            char key[65], value[64];
            fm_buf got;
            key_of(key, i);
            value_of(value, sizeof value, i);
            fm_buf_init(&got, 0);
            fm_status rc = fm_result_get(r, &got, key);
            if (rc == FM_OK)
                assert_string_equal(fm_buf_cstr(&got), value);
            else
                assert_int_equal(rc, FM_ENOTFOUND); /* its row is lost: fsck brings it back */
            fm_buf_release(&got);
        }
        (void)faults_of(r, false); /* mends */
        assert_int_equal(faults_of(r, false).count, 0);
        for (unsigned i = 0; i < RESULTS; i++) {
            char key[65];
            fm_buf got;
            key_of(key, i);
            fm_buf_init(&got, 0);
            tk_ok(fm_result_get(r, &got, key));
            fm_buf_release(&got);
        }
        fm_repo_close(r);
    }
    fm_buf_release(&good);
    fm_free(path);
    fm_free(dir);
}

/* The one git pack (after a fold) of a repository. */
static char *git_file(const char *dir, const char *ext)
{
    char *packs = fm_path_join(dir, "lineage.git/objects/pack"), *out = NULL;
    fm_names names;
    tk_ok(fm_list_dir(&names, packs));
    for (size_t i = 0; i < names.count; i++)
        if (strstr(names.name[i], ext) && !out)
            out = fm_path_join(packs, names.name[i]);
    fm_names_release(&names);
    fm_free(packs);
    assert_non_null(out);
    return out;
}

TEST(a_damaged_git_pack_never_gives_a_wrong_tree)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 5, 1, 1), *back;
    fm_oid id = kit_commit(r, tree, "first", NULL, 0, KIT_TIME);
    fm_digest want, got;
    fm_buf good;
    unsigned refused = 0;

    tk_ok(fm_ref_update(r, "refs/heads/main", &id, NULL, "made"));
    tk_ok(fm_tree_digest(&want, tree, NULL));
    fm_tree_free(tree);
    fm_repo_close(r);
    char *path = git_file(dir, ".pack");
    fm_buf_init(&good, 0);
    tk_ok(fm_read_file(&good, path, 1 << 24));
    for (unsigned n = 0; n < FLIPS; n++) {
        fm_version v;
        flip(path, &good, n);
        tk_ok(fm_repo_open(&r, dir));
        fm_status rc = fm_version_tree(r, &back, &id);
        if (rc == FM_OK) {
            tk_ok(fm_tree_digest(&got, back, NULL));
            assert_true(fm_digest_eq(&got, &want));
        } else {
            assert_true(strlen(fm_error_text()) > 20);
            refused++;
        }
        fm_tree_free(back);
        if (fm_version_read(r, &v, &id) == FM_OK)
            assert_string_equal(v.subject, "first");
        fm_version_release(&v);
        told t = faults_of(r, false);
        assert_true(rc == FM_OK || t.count > 0);
        fm_repo_close(r);
    }
    assert_true(refused > FLIPS / 10);
    fm_buf_release(&good);
    fm_free(path);
    fm_free(dir);
}

/* libgit2 follows the offsets of an index that lies, so it never sees one. */
TEST(a_damaged_git_index_is_refused_by_name)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_buf good;

    kit_branch(r, "main", NULL, 1);
    fm_repo_close(r);
    char *path = git_file(dir, ".idx");
    fm_buf_init(&good, 0);
    tk_ok(fm_read_file(&good, path, 1 << 24));
    for (unsigned n = 0; n < FLIPS; n++) {
        flip(path, &good, n);
        tk_fails(fm_repo_open(&r, dir), FM_ECORRUPT, path);
    }
    tk_ok(fm_write_file(path, NULL, 0));
    tk_fails(fm_repo_open(&r, dir), FM_ECORRUPT, "git index-pack");
    fm_buf_release(&good);
    fm_free(path);
    fm_free(dir);
}

TEST(each_bad_ref_is_named_and_hides_no_other)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    static const char *const bad[][2] = {
        {"lineage.git/refs/heads/aaa", "this is no id\n"},
        {"lineage.git/refs/heads/bbb", "00000000000000000000000000000000000000ff\n"},
        {"lineage.git/refs/heads/ccc", ""},
    };

    kit_branch(r, "main", NULL, 1);
    for (unsigned i = 0; i < 3; i++) {
        char *path = fm_path_join(dir, bad[i][0]);
        tk_ok(fm_write_file(path, bad[i][1], strlen(bad[i][1])));
        fm_free(path);
    }
    char *pack = git_file(dir, ".pack");
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, pack, 1 << 24));
    fm_repo_close(r);
    b.data[b.len / 2] ^= 0x40;
    tk_ok(fm_write_file(pack, b.data, b.len));
    tk_ok(fm_repo_open(&r, dir));
    told t = faults_of(r, false);
    assert_non_null(strstr(t.text, "'refs/heads/aaa'"));
    assert_non_null(strstr(t.text, "'refs/heads/bbb'"));
    assert_non_null(strstr(t.text, "'refs/heads/ccc'"));
    assert_non_null(strstr(t.text, "refs/heads/main: version"));
    fm_buf_release(&b);
    fm_free(pack);
    kit_close(r, dir);
}

static fm_status count_versions(void *ctx, const fm_version *v)
{
    (void)v;
    *(unsigned *)ctx += 1;
    return FM_OK;
}

/* What log, show and export do, as somebody who may only read. 0 = all of it went well. */
static int read_everything(const char *dir)
{
    fm_repo *r;
    fm_oid id;
    fm_tree *tree;
    fm_buf b;
    fm_repo_stats stats;
    char key[65];
    unsigned count = 0;

    key_of(key, 7);
    fm_buf_init(&b, 0);
    if (fm_repo_open(&r, dir) != FM_OK || fm_rev_resolve(r, &id, "main") != FM_OK)
        return 1;
    if (fm_version_tree(r, &tree, &id) != FM_OK ||
        fm_log_walk(r, NULL, 0, count_versions, &count) != FM_OK || count != 1)
        return 2;
    fm_provider p = fm_store_provider(fm_repo_store(r));
    for (size_t i = 0; i < fm_tree_count(tree); i++)
        if (fm_entry_read(&b, &p, fm_tree_at(tree, i)) != FM_OK)
            return 3;
    fm_buf_clear(&b);
    if (fm_result_get(r, &b, key) != FM_OK || fm_repo_stats_of(r, &stats) != FM_OK)
        return 4;
    if (faults_of(r, true).count != 0)
        return 5;
    return fm_ref_update(r, "refs/heads/other", &id, NULL, "x") == FM_EIO ? 0 : 6;
}

TEST(a_repository_that_may_only_be_read_is_read)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    int status;

    kit_branch(r, "main", NULL, 1);
    put_results(r);
    fm_repo_close(r);
    assert_int_equal(chmod(dir, 0755), 0);
    if (getuid() != 0)
        assert_int_equal(chmod(dir, 0555), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(7);
        _exit(read_everything(dir));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(chmod(dir, 0755), 0);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_sqlite_never_gives_a_wrong_result),
        cmocka_unit_test(a_damaged_git_pack_never_gives_a_wrong_tree),
        cmocka_unit_test(a_damaged_git_index_is_refused_by_name),
        cmocka_unit_test(each_bad_ref_is_named_and_hides_no_other),
        cmocka_unit_test(a_repository_that_may_only_be_read_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
