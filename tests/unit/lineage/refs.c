/* lineage_refs.c - names move by compare-and-swap, and are understood as git writes them. */
#include <git2.h>
#include <utime.h>

#include "tests/kit/lineage_kit.h"

TEST(bad_arguments_are_refused)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), oid, nobody = {{5}};

    tk_fails(fm_ref_update(NULL, "refs/heads/x", &a, NULL, NULL), FM_EINVAL, NULL);
    tk_fails(fm_ref_update(r, "refs/heads/x", NULL, NULL, NULL), FM_EINVAL, NULL);
    tk_fails(fm_ref_update(r, NULL, &a, NULL, NULL), FM_EINVAL, NULL);
    tk_fails(fm_ref_update(r, "main", &a, NULL, NULL), FM_EINVAL, "no valid name");
    tk_fails(fm_ref_update(r, "refs/tags/a..b", &a, NULL, NULL), FM_EINVAL, "no valid name");
    tk_fails(fm_ref_update(r, "refs/heads/x", &nobody, NULL, NULL), FM_ENOTFOUND,
             "no such version");
    tk_fails(fm_ref_read(r, &oid, "refs/heads/none"), FM_ENOTFOUND, "refs/heads/none");
    tk_fails(fm_ref_read(r, &oid, "../../etc/passwd"), FM_EINVAL, NULL);
    tk_fails(fm_ref_delete(NULL, "refs/heads/main", NULL), FM_EINVAL, NULL);
    tk_fails(fm_ref_delete(r, "refs/heads/none", NULL), FM_ENOTFOUND, "none");
    tk_fails(fm_ref_each(r, "refs/", NULL, NULL), FM_EINVAL, NULL);
    kit_close(r, dir);
}

TEST(odd_branch_names_are_refused_with_the_reason)
{
    static const char *const bad[][2] = {
        {"", "empty"},
        {"-x", "begins"},
        {"a b", "space"},
        {"a..b", "'..'"},
        {"a@{1}", "'@{'"},
        {"@", "something"},
        {"HEAD", "something"},
        {"/a", "empty part"},
        {"a//b", "empty"},
        {"a/", "ends in"},
        {"a.", "ends in"},
        {".a", "begins with '.'"},
        {"a/.b", "begins"},
        {"a.lock", "'.lock'"},
        {"a.lock/b", "'.lock'"},
        {"a~1", "~"},
        {"a^", "^"},
        {"a:b", ":"},
        {"a?", "?"},
        {"a*", "*"},
        {"a[b", "["},
        {"a\\b", "\\"},
        {"a\tb", "control"},
        {"a\x7f", "control"},
        {"0123456789012345678901234567890123456789", "object id"},
    };
    char longer[300];

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        tk_fails(fm_branch_name_check(bad[i][0]), FM_EINVAL, bad[i][1]);
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    tk_fails(fm_branch_name_check(longer), FM_EINVAL, "longer");
    tk_fails(fm_branch_name_check(NULL), FM_EINVAL, "empty");
    tk_ok(fm_branch_name_check("team/llama-3.2_v1"));
    tk_ok(fm_branch_name_check("mod\xc3\xa8le"));
}

static fm_status collect(void *ctx, const char *name, const fm_oid *oid)
{
    fm_buf *b = ctx;

    (void)oid;
    fm_buf_printf(b, "%s ", name);
    return FM_OK;
}

TEST(names_are_listed_in_order)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "zeta", NULL, 0);
    fm_buf b;

    fm_buf_init(&b, 0);
    tk_ok(fm_ref_update(r, "refs/heads/alpha/one", &a, NULL, NULL));
    tk_ok(fm_ref_update(r, "refs/tags/v1", &a, NULL, NULL));
    tk_ok(fm_ref_each(r, "refs/heads/", collect, &b));
    assert_string_equal(fm_buf_cstr(&b), "refs/heads/alpha/one refs/heads/zeta ");
    fm_buf_clear(&b);
    tk_ok(fm_ref_each(r, NULL, collect, &b));
    assert_string_equal(fm_buf_cstr(&b), "refs/heads/alpha/one refs/heads/zeta refs/tags/v1 ");
    tk_fails(fm_ref_update(r, "refs/heads/alpha", &a, NULL, NULL), FM_EINVAL, "alpha");
    fm_buf_release(&b);
    kit_close(r, dir);
}

TEST(of_two_writers_one_wins_and_the_other_keeps_its_commit)
{
    char *dir, hex[41], ref[80];
    fm_repo *r = kit_repo(&dir);
    fm_oid base = kit_branch(r, "main", NULL, 0), kept;
    fm_tree *one = kit_model(r, 3, 1, 1), *two = kit_model(r, 3, 1, 2);
    fm_oid a = kit_commit(r, one, "winner", &base, 1, KIT_TIME + 9);
    fm_oid b = kit_commit(r, two, "loser", &base, 1, KIT_TIME + 9);

    tk_ok(fm_ref_update(r, "refs/heads/main", &a, &base, "derive: winner"));
    tk_fails(fm_ref_update(r, "refs/heads/main", &b, &base, "derive: loser"), FM_ECONFLICT,
             "Ada Test <ada@example.org>");
    assert_non_null(strstr(fm_error_text(), "derive: winner"));
    fm_oid_hex(&b, hex);
    assert_non_null(strstr(fm_error_text(), hex));
    snprintf(ref, sizeof ref, "refs/fmstore/lost/%s", hex);
    assert_non_null(strstr(fm_error_text(), ref));
    tk_ok(fm_ref_read(r, &kept, ref));
    assert_true(fm_oid_eq(&kept, &b));
    tk_ok(fm_ref_read(r, &kept, "refs/heads/main"));
    assert_true(fm_oid_eq(&kept, &a));
    tk_fails(fm_ref_update(r, "refs/heads/main", &b, NULL, NULL), FM_EEXISTS, "was made by");
    tk_fails(fm_ref_update(r, "refs/heads/gone", &b, &base, NULL), FM_ECONFLICT, "nothing");
    tk_fails(fm_ref_delete(r, "refs/heads/main", &b), FM_ECONFLICT, "not deleted");
    fm_tree_free(one);
    fm_tree_free(two);
    kit_close(r, dir);
}

static void assert_head(const char *dir, const char *want)
{
    char path[512];
    fm_buf b;

    snprintf(path, sizeof path, "%s/lineage.git/HEAD", dir);
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, 1000));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

TEST(head_follows_the_first_branch)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a;

    assert_head(dir, "ref: refs/heads/main\n");
    a = kit_branch(r, "smol", NULL, 0);
    assert_head(dir, "ref: refs/heads/smol\n");
    tk_ok(fm_ref_update(r, "refs/heads/other", &a, NULL, NULL));
    assert_head(dir, "ref: refs/heads/smol\n");
    tk_ok(fm_ref_delete(r, "refs/heads/smol", &a));
    assert_head(dir, "ref: refs/heads/other\n");
    kit_close(r, dir);
}

static void assert_rev(fm_repo *r, const char *rev, const fm_oid *want)
{
    fm_oid got;

    tk_ok(fm_rev_resolve(r, &got, rev));
    assert_true(fm_oid_eq(&got, want));
}

TEST(versions_are_spelled_as_in_git)
{
    char *dir, hex[41], part[9];
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), b, c, m, two[2];
    fm_tree *tree = kit_model(r, 3, 1, 7);

    b = kit_commit(r, tree, "b", &a, 1, KIT_TIME + 1);
    tk_ok(fm_ref_update(r, "refs/heads/main", &b, &a, "b"));
    c = kit_branch(r, "side/way", &a, 8);
    two[0] = b;
    two[1] = c;
    m = kit_commit(r, tree, "merge", two, 2, KIT_TIME + 20);
    tk_ok(fm_ref_update(r, "refs/heads/main", &m, &b, "merge"));
    tk_ok(fm_ref_update(r, "refs/tags/v1.0", &b, NULL, "tag"));
    assert_rev(r, "main", &m);
    assert_rev(r, "refs/heads/main", &m);
    assert_rev(r, "main~1", &b);
    assert_rev(r, "main~2", &a);
    assert_rev(r, "main^2", &c);
    assert_rev(r, "main^^", &a);
    assert_rev(r, "main@{0}", &m);
    assert_rev(r, "main@{1}", &b);
    assert_rev(r, "main@{2}", &a);
    assert_rev(r, "side/way", &c);
    assert_rev(r, "v1.0", &b);
    assert_rev(r, "v1.0^{commit}", &b);
    fm_oid_hex(&c, hex);
    assert_rev(r, hex, &c);
    memcpy(part, hex, 8);
    part[8] = '\0';
    assert_rev(r, part, &c);
    fm_tree_free(tree);
    kit_close(r, dir);
}

TEST(a_wrong_name_suggests_a_near_one)
{
    static const char *const bad[] = {"",  "-x",     "HEAD", "HEAD~1", "@{1}",
                                      "@", "main:x", "a..b", "a\nb"};
    char *dir, longer[600];
    fm_repo *r = kit_repo(&dir);
    fm_oid oid, a = kit_branch(r, "pirate-talk", NULL, 0);

    tk_ok(fm_ref_update(r, "refs/tags/stable", &a, NULL, NULL));
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        tk_fails(fm_rev_resolve(r, &oid, bad[i]), FM_EINVAL, NULL);
    tk_fails(fm_rev_resolve(r, &oid, NULL), FM_EINVAL, NULL);
    tk_fails(fm_rev_resolve(NULL, &oid, "x"), FM_EINVAL, NULL);
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    tk_fails(fm_rev_resolve(r, &oid, longer), FM_EINVAL, "longer");
    tk_fails(fm_rev_resolve(r, &oid, "pirat-talk"), FM_ENOTFOUND, "did you mean 'pirate-talk'");
    tk_fails(fm_rev_resolve(r, &oid, "pirate_talk~1"), FM_ENOTFOUND, "did you mean");
    tk_fails(fm_rev_resolve(r, &oid, "stabel"), FM_ENOTFOUND, "did you mean 'stable'");
    tk_fails(fm_rev_resolve(r, &oid, "quantum"), FM_ENOTFOUND, "lists the names");
    tk_fails(fm_rev_resolve(r, &oid, "pirate-talk~3"), FM_ENOTFOUND, "does not go back");
    tk_fails(fm_rev_resolve(r, &oid, "pirate-talk^{tree}"), FM_EINVAL, "is a tree");
    kit_close(r, dir);
}

TEST(many_branches_share_one_repository)
{
    char *dir, name[32];
    fm_repo *r = kit_repo(&dir);
    fm_oid base = kit_branch(r, "main", NULL, 0), at[50];
    fm_repo_stats s;

    for (unsigned i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "child%02u", i);
        at[i] = kit_branch(r, name, &base, i + 1);
    }
    for (unsigned i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "child%02u", i);
        assert_rev(r, name, &at[i]);
        strcat(name, "~1");
        assert_rev(r, name, &base);
    }
    tk_ok(fm_repo_stats_of(r, &s));
    assert_int_equal(s.count, 51);
    fm_repo_stats_release(&s);
    kit_close(r, dir);
}

/* A process that was killed while it held the lock file of a ref. */
TEST(a_dead_lock_does_not_block_a_branch)
{
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), b;
    fm_tree *tree = kit_model(r, 3, 1, 7);
    struct utimbuf old = {1000, 1000};

    b = kit_commit(r, tree, "b", &a, 1, KIT_TIME + 1);
    snprintf(path, sizeof path, "%s/lineage.git/refs/heads/main.lock", dir);
    tk_ok(fm_write_file(path, "x", 1));
    assert_int_equal(utime(path, &old), 0);
    tk_ok(fm_ref_update(r, "refs/heads/main", &b, &a, "b"));
    assert_rev(r, "main", &b);
    assert_false(fm_path_exists(path));
    fm_tree_free(tree);
    kit_close(r, dir);
}

/* As before, but it held that of HEAD, in a repository whose HEAD names no branch yet. */
TEST(a_dead_lock_does_not_block_head)
{
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);
    struct utimbuf old = {1000, 1000};

    kit_branch(r, "smol", NULL, 0);
    snprintf(path, sizeof path, "%s/lineage.git/HEAD", dir);
    tk_ok(fm_write_file(path, "ref: refs/heads/gone\n", 21));
    snprintf(path, sizeof path, "%s/lineage.git/HEAD.lock", dir);
    tk_ok(fm_write_file(path, "x", 1));
    assert_int_equal(utime(path, &old), 0);
    assert_int_equal(kit_faults(dir), 0);
    assert_head(dir, "ref: refs/heads/smol\n");
    assert_false(fm_path_exists(path));
    kit_close(r, dir);
}

TEST(an_annotated_tag_is_peeled)
{
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), got;
    git_repository *g = NULL;
    git_signature *who = NULL;
    git_object *target = NULL;
    git_oid id, tag;

    snprintf(path, sizeof path, "%s/lineage.git", dir);
    assert_int_equal(git_repository_open_bare(&g, path), 0);
    assert_int_equal(git_signature_new(&who, "A", "a@b", 1, 0), 0);
    git_oid_fromraw(&id, a.b);
    assert_int_equal(git_object_lookup(&target, g, &id, GIT_OBJECT_COMMIT), 0);
    assert_int_equal(git_tag_create(&tag, g, "release", target, who, "words", 0), 0);
    tk_ok(fm_ref_read(r, &got, "refs/tags/release"));
    assert_true(fm_oid_eq(&got, &a));
    assert_rev(r, "release", &a);
    git_object_free(target);
    git_signature_free(who);
    git_repository_free(g);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(odd_branch_names_are_refused_with_the_reason),
        cmocka_unit_test(names_are_listed_in_order),
        cmocka_unit_test(head_follows_the_first_branch),
        cmocka_unit_test(versions_are_spelled_as_in_git),
        cmocka_unit_test(a_wrong_name_suggests_a_near_one),
        cmocka_unit_test(an_annotated_tag_is_peeled),
        cmocka_unit_test(many_branches_share_one_repository),
        cmocka_unit_test(of_two_writers_one_wins_and_the_other_keeps_its_commit),
        cmocka_unit_test(a_dead_lock_does_not_block_a_branch),
        cmocka_unit_test(a_dead_lock_does_not_block_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
