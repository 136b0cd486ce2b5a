/* lineage_commit.c - a tree goes into git and comes back equal; hostile git trees do not. */
#include <git2.h>
#include <time.h>

#include "tests/kit/lineage_kit.h"

TEST(bad_arguments_are_refused)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 2, 0, 0), *back = NULL;
    fm_oid oid, nobody = {{1, 2, 3}}, twice[2];
    fm_version v;
    fm_commit_opts o = {.kind = "import", .message = "m"};

    tk_fails(fm_version_commit(NULL, &oid, tree, &o), FM_EINVAL, NULL);
    tk_fails(fm_version_commit(r, &oid, NULL, &o), FM_EINVAL, NULL);
    tk_fails(fm_version_commit(r, &oid, tree, NULL), FM_EINVAL, NULL);
    tk_fails(fm_version_read(r, &v, &nobody), FM_ENOTFOUND, "no version 0102");
    tk_fails(fm_version_tree(r, &back, &nobody), FM_ENOTFOUND, "no version 0102");
    tk_fails(fm_version_tree(r, &back, NULL), FM_EINVAL, NULL);
    fm_version_release(NULL);
    o.kind = "finetuned";
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "lora");
    o.kind = NULL;
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "kind");
    o.kind = "import";
    o.message = " \n";
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "needs a message");
    o.message = "ok\n\nfmstore-kind: lora";
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "Fmstore-");
    o.message = "ok";
    o.recipe_digest = "abc";
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "recipe digest");
    o.recipe_digest = NULL;
    o.author = "nobody";
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "Name <mail>");
    o.author = NULL;
    o.parent = &nobody;
    o.parent_count = 1;
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_ENOTFOUND, "parent 0102");
    twice[0] = twice[1] = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    o.parent = twice;
    o.parent_count = 2;
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "given twice");
    o.parent_count = FM_MAX_PARENTS + 1;
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_ELIMIT, "parents");
    fm_tree_free(tree);
    kit_close(r, dir);
}

static void assert_same_tree(const fm_tree *a, const fm_tree *b)
{
    assert_int_equal(fm_tree_count(a), fm_tree_count(b));
    for (size_t i = 0; i < fm_tree_count(a); i++) {
        const fm_entry *x = fm_tree_at(a, i), *y = fm_tree_at(b, i);
        assert_string_equal(x->path, y->path);
        assert_int_equal(x->kind, y->kind);
        assert_true(fm_digest_eq(&x->id, &y->id));
        assert_int_equal(x->bytes, y->bytes);
        if (x->kind == FM_ENTRY_TENSOR) {
            assert_string_equal(x->name, y->name);
            assert_true(fm_shape_eq(&x->shape, &y->shape));
        }
    }
}

TEST(a_tree_comes_back_equal)
{
    static const char *const odd[] = {
        "a.b", "a/x", "a-b", "a0", "README.md", "source/z z", "source/\xc3\xa9"};
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 12, 0, 0), *back = NULL;
    fm_oid oid;

    for (size_t i = 0; i < FM_ARRAY_LEN(odd); i++)
        tk_ok(fm_tree_put_file(tree, odd[i], fm_span_str(odd[i])));
    oid = kit_commit(r, tree, "first", NULL, 0, KIT_TIME);
    tk_ok(fm_version_tree(r, &back, &oid));
    assert_same_tree(tree, back);
    fm_tree_free(back);
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_version_tree(r, &back, &oid));
    assert_same_tree(tree, back);
    fm_tree_free(tree);
    fm_tree_free(back);
    kit_close(r, dir);
}

TEST(one_entry_is_read_without_the_others)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 3, 0, 0), *one = NULL;

    tk_ok(fm_tree_put_file(tree, "source/source.json", fm_span_str("{}")));
    const fm_oid oid = kit_commit(r, tree, "first", NULL, 0, KIT_TIME);
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *want = fm_tree_at(tree, i);
        tk_ok(fm_version_entry(r, &one, &oid, want->path));
        assert_int_equal(fm_tree_count(one), 1);
        assert_true(fm_digest_eq(&fm_tree_at(one, 0)->id, &want->id));
        assert_int_equal(fm_tree_at(one, 0)->kind, want->kind);
        fm_tree_free(one);
    }
    tk_fails(fm_version_entry(r, &one, &oid, "source/none"), FM_ENOTFOUND, "source/none");
    tk_fails(fm_version_entry(r, &one, &oid, "source"), FM_ENOTFOUND, "source");
    assert_null(one);
    fm_tree_free(tree);
    kit_close(r, dir);
}

TEST(an_empty_tree_is_a_version)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = NULL, *back = NULL;
    fm_oid oid;

    tk_ok(fm_tree_new(&tree));
    oid = kit_commit(r, tree, "nothing yet", NULL, 0, KIT_TIME);
    tk_ok(fm_version_tree(r, &back, &oid));
    assert_int_equal(fm_tree_count(back), 0);
    fm_tree_free(tree);
    fm_tree_free(back);
    kit_close(r, dir);
}

TEST(words_and_trailers_come_back)
{
    char *dir, digest[65];
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 1, 0, 0);
    fm_oid oid, root = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    fm_version v;
    fm_commit_opts o = {.kind = "lora",
                        .message = "pirate talk\n\nRank 8.\n\nSigned-off-by: X <x@y>",
                        .parent = &root,
                        .parent_count = 1,
                        .author = "Bo <bo@example.org>",
                        .time = KIT_TIME + 5};

    memset(digest, 'a', 64);
    digest[64] = '\0';
    o.recipe_digest = digest;
    o.data_digest = digest;
    tk_ok(fm_version_commit(r, &oid, tree, &o));
    tk_ok(fm_version_read(r, &v, &oid));
    assert_string_equal(v.kind, "lora");
    assert_string_equal(v.subject, "pirate talk");
    assert_string_equal(v.message, "pirate talk\n\nRank 8.\n\nSigned-off-by: X <x@y>");
    assert_string_equal(v.author, "Bo <bo@example.org>");
    assert_string_equal(v.recipe, digest);
    assert_string_equal(v.data, digest);
    assert_int_equal(v.time, KIT_TIME + 5);
    assert_int_equal(v.parent_count, 1);
    assert_true(fm_oid_eq(&v.parent[0], &root));
    fm_version_release(&v);
    tk_ok(fm_version_read(r, &v, &root));
    assert_string_equal(v.author, "Ada Test <ada@example.org>");
    assert_string_equal(v.message, "root");
    assert_null(v.recipe);
    fm_version_release(&v);
    for (int i = 0; i < 3; i++) { /* forged */
        static const char *const forged[] = {"a\n\nFmstore-Kind: merge", "fmstore-version: 7",
                                             "a\nFMSTORE-recipe:\n\nb"};
        o.message = forged[i];
        tk_fails(fm_version_commit(r, &oid, tree, &o), FM_EINVAL, "fmstore's own");
    }
    o.message = "a rule\n\n---\nKey: value\n---\n\nand Fmstore-Kind: merge"; /* no patch */
    tk_ok(fm_version_commit(r, &oid, tree, &o));
    tk_ok(fm_version_read(r, &v, &oid));
    assert_string_equal(v.kind, "lora");
    assert_string_equal(v.recipe, digest);
    assert_string_equal(v.message, o.message);
    fm_version_release(&v);
    fm_tree_free(tree);
    kit_close(r, dir);
}

TEST(the_same_commit_has_the_same_id)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 1, 0, 0);
    fm_oid a = kit_commit(r, tree, "root", NULL, 0, KIT_TIME), b;

    b = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    assert_true(fm_oid_eq(&a, &b));
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    b = kit_commit(r, tree, "root", NULL, 0, 0);
    assert_true(fm_oid_eq(&a, &b));
    setenv("SOURCE_DATE_EPOCH", "soon", 1);
    fm_commit_opts o = {.kind = "import", .message = "m"};
    tk_fails(fm_version_commit(r, &b, tree, &o), FM_EINVAL, "SOURCE_DATE_EPOCH");
    unsetenv("SOURCE_DATE_EPOCH");
    fm_tree_free(tree);
    kit_close(r, dir);
}

TEST(a_pointer_that_is_not_stored_is_refused)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 1, 0, 0);
    fm_commit_opts o = {.kind = "import", .message = "m"};
    fm_digest id = {{7}};
    fm_oid oid;

    tk_ok(fm_tree_put_blob(tree, "source/lost.bin", &id, 10));
    tk_fails(fm_version_commit(r, &oid, tree, &o), FM_ENOTFOUND, "source/lost.bin");
    fm_tree_free(tree);
    kit_close(r, dir);
}

static size_t pack_count(const char *dir)
{
    char path[512];
    fm_names names;
    size_t n = 0;

    snprintf(path, sizeof path, "%s/lineage.git/objects/pack", dir);
    tk_ok(fm_list_dir(&names, path));
    for (size_t i = 0; i < names.count; i++)
        n += strstr(names.name[i], ".pack") != NULL;
    fm_names_release(&names);
    return n;
}

TEST(a_commit_is_one_pack_and_many_packs_are_folded)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 3, 0, 0), *back = NULL;
    fm_oid oid[80];

    oid[0] = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    assert_int_equal(pack_count(dir), 1);
    for (unsigned i = 1; i < 80; i++) {
        char text[16];
        snprintf(text, sizeof text, "%u", i);
        tk_ok(fm_tree_put_file(tree, "README.md", fm_span_str(text)));
        oid[i] = kit_commit(r, tree, text, &oid[i - 1], 1, KIT_TIME + i);
    }
    assert_true(pack_count(dir) <= 34);
    for (unsigned i = 0; i < 80; i += 13) {
        tk_ok(fm_version_tree(r, &back, &oid[i]));
        fm_tree_free(back);
    }
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, dir));
    tk_ok(fm_version_tree(r, &back, &oid[0]));
    fm_tree_free(back);
    fm_tree_free(tree);
    kit_close(r, dir);
}

/* ---- strangers' trees ---- */

typedef struct part {
    const char *mode, *name;
    const git_oid *id;
} part;

static git_oid put(git_repository *g, git_object_t type, const void *data, size_t len)
{
    git_odb *odb = NULL;
    git_oid id;

    assert_int_equal(git_repository_odb(&odb, g), 0);
    assert_int_equal(git_odb_write(&id, odb, data, len, type), 0);
    git_odb_free(odb);
    return id;
}

static git_oid put_tree(git_repository *g, const part *p, size_t n)
{
    fm_buf b;
    git_oid id;

    fm_buf_init(&b, 0);
    for (size_t i = 0; i < n; i++) {
        fm_buf_printf(&b, "%s %s", p[i].mode, p[i].name);
        fm_buf_u8(&b, 0);
        fm_buf_append(&b, p[i].id->id, 20);
    }
    id = put(g, GIT_OBJECT_TREE, b.data, b.len);
    fm_buf_release(&b);
    return id;
}

static fm_oid put_commit(git_repository *g, const git_oid *tree, const char *message)
{
    char hex[41] = "", text[512];
    git_oid id;
    fm_oid out;

    git_oid_fmt(hex, tree);
    snprintf(text, sizeof text, "tree %s\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\n%s",
             hex, message);
    id = put(g, GIT_OBJECT_COMMIT, text, strlen(text));
    memcpy(out.b, id.id, 20);
    return out;
}

static void hostile(fm_repo *r, git_repository *g, const part *p, size_t n, fm_status status,
                    const char *needle)
{
    git_oid tree = put_tree(g, p, n);
    fm_oid commit = put_commit(g, &tree, "hostile\n");
    fm_tree *back = NULL;

    tk_fails(fm_version_tree(r, &back, &commit), status, needle);
    assert_null(back);
}

static git_repository *open_git(const char *dir)
{
    git_repository *g = NULL;
    char path[512];

    snprintf(path, sizeof path, "%s/lineage.git", dir);
    assert_int_equal(git_repository_open_bare(&g, path), 0);
    return g;
}

TEST(hostile_trees_are_refused_by_path)
{
    static const char bad_pointer[] = "fmstore tensor 1\nid sha256:zz\n";
    static const char newer[] = "fmstore tensor 9\n";
    char *dir, *large;
    fm_repo *r = kit_repo(&dir);
    git_repository *g = open_git(dir);
    git_oid file = put(g, GIT_OBJECT_BLOB, "x", 1);
    git_oid pointer = put(g, GIT_OBJECT_BLOB, bad_pointer, sizeof bad_pointer - 1);
    git_oid late = put(g, GIT_OBJECT_BLOB, newer, sizeof newer - 1);
    git_oid none = {{9}}, big, sub;

    large = fm_calloc(1, FM_INLINE_MAX_BYTES + 1);
    big = put(g, GIT_OBJECT_BLOB, large, FM_INLINE_MAX_BYTES + 1);
    fm_free(large);
    sub = put_tree(g, &(part){"100644", "..", &file}, 1);
    hostile(r, g, &(part){"100644", "..", &file}, 1, FM_ECORRUPT, "'..'");
    hostile(r, g, &(part){"40000", "ok", &sub}, 1, FM_ECORRUPT, "ok/..");
    hostile(r, g, &(part){"100644", ".git", &file}, 1, FM_ECORRUPT, ".git");
    hostile(r, g, &(part){"100644", "a/b", &file}, 1, FM_ECORRUPT, "a/b");
    hostile(r, g, &(part){"100644", "a\nb", &file}, 1, FM_ECORRUPT, "control");
    hostile(r, g, &(part){"120000", "link", &file}, 1, FM_ECORRUPT, "'link': mode 120000");
    hostile(r, g, &(part){"100755", "run", &file}, 1, FM_ECORRUPT, "'run': mode 100755");
    hostile(r, g, &(part){"160000", "module", &file}, 1, FM_ECORRUPT, "'module'");
    hostile(r, g, &(part){"100644", "w", &pointer}, 1, FM_ECORRUPT, "'w': pointer field 'id'");
    hostile(r, g, &(part){"100644", "w", &late}, 1, FM_EVERSION, "'w'");
    hostile(r, g, &(part){"100644", "w", &big}, 1, FM_ECORRUPT, "'w': 65537 bytes");
    hostile(r, g, &(part){"100644", "w", &none}, 1, FM_ECORRUPT, "'w': cannot read");
    hostile(r, g, &(part){"40000", "w", &none}, 1, FM_ECORRUPT, "'w'");
    hostile(r, g, (part[]){{"100644", "w", &file}, {"100644", "w", &file}}, 2, FM_ECORRUPT,
            "twice");
    hostile(r, g, (part[]){{"100644", "w", &file}, {"40000", "w", &sub}}, 2, FM_ECORRUPT, "'w/..'");
    git_repository_free(g);
    kit_close(r, dir);
}

/* Each level names the next one twice: 2^40 paths from 40 trees. */
TEST(a_tree_that_unfolds_without_end_is_refused)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    git_repository *g = open_git(dir);
    git_oid tree = put(g, GIT_OBJECT_TREE, "", 0);
    fm_oid commit;
    fm_tree *back = NULL;

    for (int i = 0; i < 40; i++)
        tree = put_tree(g, (part[]){{"40000", "a", &tree}, {"40000", "b", &tree}}, 2);
    commit = put_commit(g, &tree, "bomb\n");
    tk_fails(fm_version_tree(r, &back, &commit), FM_ECORRUPT, "objects in one tree");
    git_repository_free(g);
    kit_close(r, dir);
}

TEST(foreign_words_are_no_trailers)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    git_repository *g = open_git(dir);
    git_oid tree = put(g, GIT_OBJECT_TREE, "", 0);
    fm_oid plain = put_commit(g, &tree, "Fmstore-Kind: lora");
    fm_oid odd = put_commit(g, &tree,
                            "s\n\nFmstore-Kind: exploit\nFmstore-Recipe: ../x\nFmstore-Version: 9");
    fm_oid none = put_commit(g, &tree, "");
    fm_tree *back = NULL;
    fm_version v;

    tk_ok(fm_version_read(r, &v, &plain));
    assert_string_equal(v.kind, "");
    assert_string_equal(v.subject, "Fmstore-Kind: lora");
    fm_version_release(&v);
    tk_ok(fm_version_read(r, &v, &odd));
    assert_string_equal(v.kind, "");
    assert_string_equal(v.message, "s");
    assert_null(v.recipe);
    fm_version_release(&v);
    tk_fails(fm_version_tree(r, &back, &odd), FM_EVERSION, "newer");
    tk_ok(fm_version_read(r, &v, &none));
    assert_string_equal(v.subject, "");
    fm_version_release(&v);
    git_repository_free(g);
    kit_close(r, dir);
}

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Printed, not judged: machines differ. */
TEST(a_model_of_300_tensors_is_quick)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 300, 0, 0), *child = kit_model(r, 300, 300, 1), *back = NULL;
    double t0 = now_ms(), t1, t2, t3;
    fm_oid root = kit_commit(r, tree, "root", NULL, 0, KIT_TIME), next;

    t1 = now_ms();
    next = kit_commit(r, child, "child", &root, 1, KIT_TIME);
    t2 = now_ms();
    tk_ok(fm_version_tree(r, &back, &next));
    t3 = now_ms();
    print_message("commit of 300 tensors: %.1f ms, of 300 changed ones %.1f ms; read %.1f ms\n",
                  t1 - t0, t2 - t1, t3 - t2);
    assert_same_tree(child, back);
    fm_tree_free(tree);
    fm_tree_free(child);
    fm_tree_free(back);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_tree_comes_back_equal),
        cmocka_unit_test(one_entry_is_read_without_the_others),
        cmocka_unit_test(an_empty_tree_is_a_version),
        cmocka_unit_test(words_and_trailers_come_back),
        cmocka_unit_test(the_same_commit_has_the_same_id),
        cmocka_unit_test(a_commit_is_one_pack_and_many_packs_are_folded),
        cmocka_unit_test(a_model_of_300_tensors_is_quick),
        cmocka_unit_test(a_pointer_that_is_not_stored_is_refused),
        cmocka_unit_test(hostile_trees_are_refused_by_path),
        cmocka_unit_test(a_tree_that_unfolds_without_end_is_refused),
        cmocka_unit_test(foreign_words_are_no_trailers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
