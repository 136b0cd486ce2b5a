/* lineage_results.c - results are found again, travel in git, and outlive lineage.sqlite. */
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/mem.h"
#include "tests/kit/lineage_kit.h"

static void key_of(char key[65], unsigned i)
{
    snprintf(key, 65, "%02x%062u", i * 7 % 256, i);
}

static void put(fm_repo *r, unsigned i, const char *value)
{
    char key[65];

    key_of(key, i);
    tk_ok(fm_result_put(r, key, fm_span_str(value)));
}

static void assert_result(fm_repo *r, unsigned i, const char *value)
{
    char key[65];
    fm_buf b;

    key_of(key, i);
    fm_buf_init(&b, 0);
    tk_ok(fm_result_get(r, &b, key));
    assert_string_equal(fm_buf_cstr(&b), value);
    fm_buf_release(&b);
}

static void assert_no_result(fm_repo *r, unsigned i)
{
    char key[65];
    fm_buf b;

    key_of(key, i);
    fm_buf_init(&b, 0);
    tk_fails(fm_result_get(r, &b, key), FM_ENOTFOUND, "no result");
    fm_buf_release(&b);
}

static void assert_clean(fm_repo *r)
{
    fm_fsck_report report;

    tk_ok(fm_repo_fsck(r, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
}

TEST(bad_arguments_are_refused)
{
    char *dir, key[65], bad[65] = "abc", escape[65] = "../../x";
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), nobody = {{4}};
    fm_buf b;

    fm_buf_init(&b, 0);
    key_of(key, 1);
    tk_fails(fm_result_put(NULL, key, fm_span_str("1")), FM_EINVAL, NULL);
    tk_fails(fm_result_put(r, NULL, fm_span_str("1")), FM_EINVAL, NULL);
    tk_fails(fm_result_put(r, bad, fm_span_str("1")), FM_EINVAL, "64");
    tk_fails(fm_result_put(r, key, fm_span_str("{")), FM_EINVAL, "result");
    tk_fails(fm_result_get(r, &b, escape), FM_EINVAL, "64");
    tk_fails(fm_result_flush(NULL), FM_EINVAL, NULL);
    tk_fails(fm_note_add(r, &a, "two\nlines"), FM_EINVAL, "one line");
    tk_fails(fm_note_add(r, &a, NULL), FM_EINVAL, NULL);
    tk_fails(fm_note_add(r, &nobody, "x"), FM_ENOTFOUND, "no version 0400");
    tk_fails(fm_note_read(r, &b, &a), FM_ENOTFOUND, "no note");
    tk_fails(fm_note_read(r, &b, NULL), FM_EINVAL, NULL);
    fm_buf_release(&b);
    kit_close(r, dir);
}

TEST(a_result_is_found_before_and_after_a_flush)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid first, second;

    assert_no_result(r, 1);
    tk_ok(fm_result_flush(r)); /* nothing to write */
    tk_fails(fm_ref_read(r, &first, "refs/fmstore/results"), FM_ENOTFOUND, NULL);
    for (unsigned i = 0; i < 100; i++)
        put(r, i, "{\"pass\":true}");
    assert_result(r, 99, "{\"pass\":true}");
    tk_ok(fm_result_flush(r));
    tk_ok(fm_ref_read(r, &first, "refs/fmstore/results"));
    put(r, 5, "{\"pass\":true}"); /* the same again is nothing new */
    tk_ok(fm_result_flush(r));
    tk_ok(fm_ref_read(r, &second, "refs/fmstore/results"));
    assert_true(fm_oid_eq(&first, &second));
    put(r, 5, "{\"pass\":false}");
    tk_ok(fm_result_flush(r));
    assert_result(r, 5, "{\"pass\":false}");
    assert_clean(r);
    kit_close(r, dir);
}

static void remove_sqlite(const char *dir)
{
    static const char *const end[] = {"", "-wal", "-shm"};
    char path[512];

    for (size_t i = 0; i < FM_ARRAY_LEN(end); i++) {
        snprintf(path, sizeof path, "%s/lineage.sqlite%s", dir, end[i]);
        tk_ok(fm_remove_file(path));
    }
}

TEST(a_lost_or_broken_sqlite_is_made_again)
{
    char *dir, path[512], junk[5000];
    fm_repo *r = kit_repo(&dir);

    for (unsigned i = 0; i < 30; i++)
        put(r, i, "[1,2]");
    tk_ok(fm_result_flush(r));
    fm_repo_close(r);
    remove_sqlite(dir);
    tk_ok(fm_repo_open(&r, dir));
    assert_result(r, 17, "[1,2]");
    assert_clean(r);
    fm_repo_close(r);
    remove_sqlite(dir);
    memset(junk, 'j', sizeof junk);
    snprintf(path, sizeof path, "%s/lineage.sqlite", dir);
    tk_ok(fm_write_file(path, junk, sizeof junk));
    tk_ok(fm_repo_open(&r, dir));
    assert_result(r, 18, "[1,2]");
    tk_ok(fm_repo_rebuild_index(r));
    assert_result(r, 19, "[1,2]");
    put(r, 40, "7");
    tk_ok(fm_result_flush(r));
    assert_clean(r);
    kit_close(r, dir);
}

TEST(two_handles_join_by_union)
{
    char *dir;
    fm_repo *r = kit_repo(&dir), *other = NULL;

    tk_ok(fm_repo_open(&other, dir));
    put(r, 1, "1");
    tk_ok(fm_result_flush(r));
    put(other, 2, "2");
    tk_ok(fm_result_flush(other));
    put(r, 3, "3");
    tk_ok(fm_result_flush(r));
    fm_repo_close(other);
    fm_repo_close(r);
    remove_sqlite(dir);
    tk_ok(fm_repo_open(&r, dir));
    assert_result(r, 1, "1");
    assert_result(r, 2, "2");
    assert_result(r, 3, "3");
    assert_clean(r);
    kit_close(r, dir);
}

/* ---- two clones ---- */

static char *tree_of_results(const char *dir)
{
    char command[600], *line = fm_calloc(1, 64);
    snprintf(command, sizeof command,
             "git -C '%s/lineage.git' rev-parse 'refs/fmstore/results^{tree}'", dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, 64, f));
    pclose(f);
    return line;
}

static void assert_same_results(const char *a, const char *b)
{
    char *x = tree_of_results(a), *y = tree_of_results(b);
    assert_string_equal(x, y);
    fm_free(x);
    fm_free(y);
}

typedef struct differing {
    unsigned count;
    bool theirs_stands;
    char ours[40], theirs[40];
} differing;

static fm_status note_differing(void *ctx, const char *key, fm_span ours, fm_span theirs,
                                bool stands)
{
    differing *d = ctx;
    (void)key;
    d->count++;
    d->theirs_stands = stands;
    snprintf(d->ours, sizeof d->ours, "%.*s", (int)ours.len, (const char *)ours.data);
    snprintf(d->theirs, sizeof d->theirs, "%.*s", (int)theirs.len, (const char *)theirs.data);
    return FM_OK;
}

static fm_results_merge_report merged(fm_repo *r, const char *from, differing *d)
{
    fm_results_merge_report report;
    tk_ok(fm_results_merge(r, from, note_differing, d, &report));
    assert_int_equal(report.differing, d->count);
    return report;
}

TEST(two_clones_end_with_the_same_union)
{
    char *da, *db;
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    differing d = {0};

    for (unsigned i = 0; i < 300; i++)
        put(i % 3 ? a : b, i, i % 2 ? "1" : "2");
    tk_ok(fm_result_flush(a));
    tk_ok(fm_result_flush(b));
    put(b, 500, "5"); /* not flushed: merge does it */
    fm_results_merge_report m = merged(b, da, &d);
    assert_int_equal(m.theirs, 200);
    assert_int_equal(m.added, 200);
    m = merged(a, db, &d);
    assert_int_equal(m.theirs, 301);
    assert_int_equal(m.added, 101);
    assert_same_results(da, db);
    for (unsigned i = 0; i < 300; i++)
        assert_result(i % 3 ? b : a, i, i % 2 ? "1" : "2");
    assert_result(a, 500, "5");
    fm_oid at, later;
    tk_ok(fm_ref_read(a, &at, "refs/fmstore/results"));
    m = merged(b, da, &d); /* nothing is left to do: the name moves forward, then stays */
    assert_int_equal(m.added + d.count, 0);
    tk_ok(fm_ref_read(b, &later, "refs/fmstore/results"));
    assert_true(fm_oid_eq(&at, &later));
    merged(a, db, &d);
    tk_ok(fm_ref_read(a, &later, "refs/fmstore/results"));
    assert_true(fm_oid_eq(&at, &later));
    assert_clean(a);
    assert_clean(b);
    kit_close(a, da);
    kit_close(b, db);
}

/* A merge that was killed leaves the name of what it fetched; the next merge or gc drops it, but
 * not that of a process that lives. */
TEST(names_of_killed_merges_are_dropped)
{
    char *da, *db, dead[64], alive[64];
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    fm_gc_opts how = fm_gc_defaults();
    fm_gc_report report;
    differing d = {0};
    fm_oid at, left;
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    snprintf(dead, sizeof dead, "refs/fmstore/incoming-%ld", (long)child);
    snprintf(alive, sizeof alive, "refs/fmstore/incoming-%ld", (long)getppid());
    put(a, 1, "1");
    put(b, 2, "2");
    tk_ok(fm_result_flush(a));
    tk_ok(fm_result_flush(b));
    tk_ok(fm_ref_read(a, &at, "refs/fmstore/results"));
    for (int way = 0; way < 2; way++) {
        tk_ok(fm_ref_update(a, dead, &at, NULL, "fetched"));
        if (way == 0)
            tk_ok(fm_ref_update(a, alive, &at, NULL, "fetched"));
        if (way == 0) {
            merged(a, db, &d);
        } else {
            tk_ok(fm_repo_gc(a, &how, &report));
            fm_gc_report_release(&report);
        }
        tk_fails(fm_ref_read(a, &left, dead), FM_ENOTFOUND, NULL);
        tk_ok(fm_ref_read(a, &left, alive));
    }
    assert_result(a, 2, "2");
    assert_clean(a);
    kit_close(a, da);
    kit_close(b, db);
}

/* Which of two values stands does not depend on who merges whom. */
TEST(differing_values_are_told_and_settled_alike)
{
    char *da, *db;
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    differing d = {0};

    put(a, 1, "\"same\"");
    put(b, 1, "\"same\"");
    put(a, 2, "\"bravo\"");
    put(b, 2, "\"alpha\"");
    tk_ok(fm_result_flush(a));
    tk_ok(fm_result_flush(b));
    merged(a, db, &d);
    assert_int_equal(d.count, 1);
    assert_true(d.theirs_stands);
    assert_string_equal(d.ours, "\"bravo\"");
    assert_string_equal(d.theirs, "\"alpha\"");
    assert_result(a, 2, "\"alpha\"");
    d.count = 0;
    merged(b, da, &d);
    assert_int_equal(d.count, 0); /* a's tree comes from b's: nobody differs any more */
    assert_same_results(da, db);
    put(a, 2, "\"zulu\""); /* renewed on one side alone: that is what stands, though it is more */
    tk_ok(fm_result_flush(a));
    merged(b, da, &d);
    assert_int_equal(d.count, 0);
    assert_result(b, 2, "\"zulu\"");
    assert_same_results(da, db);
    assert_clean(a);
    assert_clean(b);
    kit_close(a, da);
    kit_close(b, db);
}

TEST(a_fetched_ref_is_merged_and_strangers_are_refused)
{
    char *da, *db, command[900];
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    fm_results_merge_report m;
    differing d = {0};

    kit_branch(a, "main", NULL, 0);
    for (unsigned i = 0; i < 120; i++)
        put(b, i, "[3]");
    tk_ok(fm_result_flush(b));
    snprintf(
        command, sizeof command,
        "git -C '%s/lineage.git' fetch -q '%s/lineage.git' refs/fmstore/results:refs/fmstore/b", da,
        db);
    assert_int_equal(system(command), 0);
    m = merged(a, "refs/fmstore/b", &d);
    assert_int_equal(m.added, 120);
    assert_result(a, 119, "[3]");
    tk_fails(fm_results_merge(a, "main", NULL, NULL, &m), FM_EINVAL, "'main' holds no results");
    tk_fails(fm_results_merge(a, "nothing", NULL, NULL, &m), FM_ENOTFOUND, "neither a folder");
    tk_fails(fm_results_merge(a, "/dev", NULL, NULL, &m), FM_ENOTFOUND, "'/dev' is no repository");
    tk_fails(fm_results_merge(a, "", NULL, NULL, &m), FM_EINVAL, NULL);
    /* Entries that are no results, and a value that is no JSON. */
    snprintf(command, sizeof command,
             "cd '%s/lineage.git' && bad=$(printf '{' | git hash-object -w --stdin) && "
             "t=$(printf '100644 blob %%s\\tnote\\n100644 blob %%s\\tab%%062d\\n' $bad $bad 7 | "
             "git mktree) && "
             "t=$(printf '040000 tree %%s\\tab\\n' $t | git mktree) && "
             "git update-ref refs/fmstore/bad $(git -c user.name=x -c user.email=x@y commit-tree "
             "-m x $t)",
             da);
    assert_int_equal(system(command), 0);
    m = merged(a, "refs/fmstore/bad", &d);
    assert_int_equal(m.added, 0);
    assert_int_equal(m.refused, 2);
    assert_clean(a);
    kit_close(a, da);
    kit_close(b, db);
}

/* Writers and mergers at once: every value is there in the end, on both sides. */
TEST(writers_and_mergers_at_once_lose_nothing)
{
    enum { WRITERS = 3, EACH = 4 };
    char *da, *db;
    fm_repo *a = kit_repo(&da), *b = kit_repo(&db);
    fm_results_merge_report m;
    pid_t pid[WRITERS];

    put(a, 900, "9");
    tk_ok(fm_result_flush(a));
    fm_repo_close(a);
    fm_repo_close(b);
    for (unsigned w = 0; w < WRITERS; w++) {
        pid[w] = fork();
        if (pid[w] != 0)
            continue;
        fm_repo *mine = NULL;
        const char *dir = w % 2 ? da : db, *other = w % 2 ? db : da;
        bool ok = fm_repo_open(&mine, dir) == FM_OK;
        for (unsigned i = 0; ok && i < EACH; i++) {
            char key[65];
            key_of(key, 1000 + w * EACH + i);
            ok = fm_result_put(mine, key, fm_span_str("7")) == FM_OK &&
                 fm_result_flush(mine) == FM_OK;
            fm_status rc = ok && i % 2 == 1 ? fm_results_merge(mine, other, NULL, NULL, &m) : FM_OK;
            ok = ok && (rc == FM_OK || rc == FM_ENOTFOUND); /* nothing there yet */
        }
        _exit(ok ? 0 : 1);
    }
    for (unsigned w = 0; w < WRITERS; w++) {
        int status = 0;
        assert_int_equal(waitpid(pid[w], &status, 0), pid[w]);
        assert_int_equal(status, 0);
    }
    tk_ok(fm_repo_open(&a, da));
    tk_ok(fm_repo_open(&b, db));
    tk_ok(fm_results_merge(a, db, NULL, NULL, &m));
    tk_ok(fm_results_merge(b, da, NULL, NULL, &m));
    assert_same_results(da, db);
    for (unsigned i = 0; i < WRITERS * EACH; i++) {
        assert_result(a, 1000 + i, "7");
        assert_result(b, 1000 + i, "7");
    }
    assert_clean(a);
    assert_clean(b);
    kit_close(a, da);
    kit_close(b, db);
}

TEST(notes_gather_lines)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), b = kit_branch(r, "next", &a, 1);
    fm_buf text;

    fm_buf_init(&text, 0);
    tk_ok(fm_note_add(r, &a, "suite facts: 12 of 12"));
    tk_ok(fm_note_add(r, &b, "suite facts: 11 of 12"));
    tk_ok(fm_note_add(r, &a, "suite tone: 3 of 3"));
    tk_ok(fm_note_add(r, &a, "suite facts: 12 of 12"));
    tk_ok(fm_note_read(r, &text, &a));
    assert_string_equal(fm_buf_cstr(&text), "suite facts: 12 of 12\nsuite tone: 3 of 3\n");
    fm_buf_clear(&text);
    tk_ok(fm_note_read(r, &text, &b));
    assert_string_equal(fm_buf_cstr(&text), "suite facts: 11 of 12\n");
    assert_clean(r);
    fm_buf_release(&text);
    kit_close(r, dir);
}

/* libgit2 1.5 leaks the match data of each pattern that does not match (git_regexp_match with
 * PCRE2), which it asks of the configuration whenever it opens a remote. Nothing else here uses
 * PCRE2. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpcre2\n";
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_result_is_found_before_and_after_a_flush),
        cmocka_unit_test(two_handles_join_by_union),
        cmocka_unit_test(two_clones_end_with_the_same_union),
        cmocka_unit_test(names_of_killed_merges_are_dropped),
        cmocka_unit_test(differing_values_are_told_and_settled_alike),
        cmocka_unit_test(a_fetched_ref_is_merged_and_strangers_are_refused),
        cmocka_unit_test(writers_and_mergers_at_once_lose_nothing),
        cmocka_unit_test(notes_gather_lines),
        cmocka_unit_test(a_lost_or_broken_sqlite_is_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
