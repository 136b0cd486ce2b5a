/* Model trees: paths, order, escapes, pointer blobs. */
#include "tests/testkit.h"

#include <string.h>

#include "store/tree.h"

static fm_tree *new_tree(void)
{
    fm_tree *t = NULL;
    tk_ok(fm_tree_new(&t));
    return t;
}

static void path_is(const char *name, const char *want)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_tensor_path(&b, "tensors", name));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

TEST(odd_paths_are_refused)
{
    static const char *const bad[] = {"",      "/etc/passwd", "a//b",   "a/",     "a/../b", "..",
                                      "a/./b", "a\nb",        "a/\x7f", ".git/x", "a/.GIT"};
    fm_tree *t = new_tree();
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        tk_fails(fm_tree_put_file(t, bad[i], fm_span_str("x")), FM_EINVAL, "tree path");
    assert_int_equal(fm_tree_count(t), 0);
    fm_tree_free(t);
    fm_tree_free(NULL);
}

TEST(a_path_is_no_file_and_folder_at_once)
{
    fm_tree *t = new_tree();
    tk_ok(fm_tree_put_file(t, "a/b/c", fm_span_str("x")));
    tk_fails(fm_tree_put_file(t, "a/b", fm_span_str("x")), FM_EINVAL, "a/b/c");
    tk_fails(fm_tree_put_file(t, "a/b/c/d", fm_span_str("x")), FM_EINVAL, "a/b/c");
    tk_ok(fm_tree_put_file(t, "a/b-c", fm_span_str("x")));
    tk_ok(fm_tree_put_file(t, "a/bc", fm_span_str("x")));
    fm_tree_free(t);
}

TEST(entries_stay_sorted_and_are_found)
{
    static const char *const paths[] = {"b", "a/z", "a/b", "c/d/e", "a-", "tensors/x", "source/y"};
    fm_tree *t = new_tree(), *copy = NULL;
    size_t begin, end;
    fm_digest d1, d2;
    for (size_t i = 0; i < FM_ARRAY_LEN(paths); i++)
        tk_ok(fm_tree_put_file(t, paths[i], fm_span_str(paths[i])));
    assert_int_equal(fm_tree_count(t), FM_ARRAY_LEN(paths));
    for (size_t i = 1; i < fm_tree_count(t); i++)
        assert_true(strcmp(fm_tree_at(t, i - 1)->path, fm_tree_at(t, i)->path) < 0);
    assert_string_equal((char *)fm_tree_find(t, "a/b")->data, "a/b");
    assert_null(fm_tree_find(t, "a"));
    fm_tree_range(t, "a/", &begin, &end);
    assert_int_equal(end - begin, 2);
    tk_ok(fm_tree_copy(&copy, t));
    tk_ok(fm_tree_digest(&d1, t, NULL));
    tk_ok(fm_tree_remove(copy, "source/y"));
    tk_fails(fm_tree_remove(copy, "source/y"), FM_ENOTFOUND, "source/y");
    tk_ok(fm_tree_digest(&d2, copy, NULL));
    assert_false(fm_digest_eq(&d1, &d2));
    const char *const skip[] = {"source/", NULL};
    tk_ok(fm_tree_digest(&d1, t, skip));
    assert_true(fm_digest_eq(&d1, &d2));
    fm_tree_free(copy);
    fm_tree_free(t);
}

TEST(names_become_paths)
{
    path_is("model.layers.0.mlp.up_proj.weight", "tensors/model/layers/0/mlp/up_proj.weight");
    path_is("x.weight", "tensors/x.weight");
    path_is("x.weight.absmax", "tensors/x/weight.absmax");
    path_is("plain", "tensors/plain");
    path_is("/etc/passwd", "tensors/%2Fetc%2Fpasswd");
    path_is("../../up.w", "tensors/%00/%00/%2F/%00/%2Fup.w");
    path_is("a..b.c", "tensors/a/%00/b.c");
    path_is(".git.x", "tensors/%00/git.x");
    path_is(".git", "tensors/%2Egit");
    path_is("git~1.w.x", "tensors/git%7E1/w.x");
    path_is("100%\n.a ", "tensors/100%25%0A.a%20");
    path_is("a.", "tensors/a%2E");
    path_is("\xc3\xa9.w", "tensors/\xc3\xa9.w");
    path_is("\xff\xc3.\xed\xa0\x80", "tensors/%FF%C3.%ED%A0%80");
}

TEST(names_beyond_the_limit_are_refused)
{
    char name[FM_MAX_NAME_BYTES + 2];
    fm_buf b;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    fm_buf_init(&b, 0);
    tk_fails(fm_tensor_path(&b, "tensors", name), FM_EINVAL, "513");
    tk_fails(fm_tensor_path(&b, "tensors", ""), FM_EINVAL, "0 bytes");
    fm_buf_release(&b);
}

TEST(pointers_read_back_what_was_written)
{
    static const char *const names[] = {"a.weight", "odd\nname %41 \x7f.w"};
    static const fm_shape shapes[] = {{2, {64, 32}}, {0, {0}}, {3, {0, 5, 32}}};
    fm_digest id = {{1, 2, 3}};
    for (size_t i = 0; i < FM_ARRAY_LEN(names) * FM_ARRAY_LEN(shapes); i++) {
        fm_tree *t = new_tree(), *back = new_tree();
        fm_buf b;
        fm_buf_init(&b, 0);
        tk_ok(fm_tree_put_tensor(t, "tensors/a", names[i / 3], FM_F32, &shapes[i % 3], &id));
        tk_ok(fm_entry_encode(&b, fm_tree_at(t, 0)));
        tk_ok(fm_tree_put_encoded(back, "tensors/a", fm_buf_span(&b)));
        const fm_entry *e = fm_tree_at(back, 0), *o = fm_tree_at(t, 0);
        assert_string_equal(e->name, names[i / 3]);
        assert_true(fm_shape_eq(&e->shape, &o->shape));
        assert_true(fm_digest_eq(&e->id, &id));
        assert_int_equal(e->bytes, o->bytes);
        fm_buf_release(&b);
        fm_tree_free(t);
        fm_tree_free(back);
    }
}

TEST(files_are_their_own_bytes)
{
    fm_tree *t = new_tree();
    fm_buf b;
    static uint8_t big[FM_INLINE_MAX_BYTES + 1];
    fm_buf_init(&b, 0);
    tk_ok(fm_tree_put_encoded(t, "README.md", fm_span_str("# hello")));
    tk_ok(fm_tree_put_encoded(t, "empty", fm_span_of(NULL, 0)));
    tk_ok(fm_entry_encode(&b, fm_tree_find(t, "README.md")));
    assert_string_equal(fm_buf_cstr(&b), "# hello");
    tk_fails(fm_tree_put_file(t, "x", fm_span_str("fmstore x")), FM_ELIMIT, "mark");
    tk_fails(fm_tree_put_file(t, "x", fm_span_of(big, sizeof big)), FM_ELIMIT, "65537");
    fm_buf_release(&b);
    fm_tree_free(t);
}

#define ID "id sha256:0000000000000000000000000000000000000000000000000000000000000001\n"

TEST(broken_pointers_name_path_and_field)
{
    static const struct {
        const char *text, *needle;
        fm_status rc;
    } bad[] = {
        {"fmstore tensor 1\n", "'id'", FM_ECORRUPT},
        {"fmstore tensor 1\nid sha256:12\n", "'id'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F99\nshape 1\nbytes 4\nname a\n", "F99", FM_EUNSUPPORTED},
        {"fmstore tensor 1\n" ID "dtype F32\nshape -1\nbytes 4\nname a\n", "'shape'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 01\nbytes 4\nname a\n", "'shape'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 1 1 1 1 1 1 1 1 1\nbytes 4\nname a\n", "'shape'",
         FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 1\nbytes 5\nname a\n", "'bytes'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 1\nbytes 4\nname a%\n", "'name'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 1\nbytes 4\nname %41\n", "'name'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 1\nbytes 4\nname a\nx", "'name'", FM_ECORRUPT},
        {"fmstore tensor 1\n" ID "dtype F32\nshape 18446744073709551616\nbytes 4\nname a\n",
         "'shape'", FM_ECORRUPT},
        {"fmstore blob 1\n" ID "bytes 99999999999999999999\n", "'bytes'", FM_ECORRUPT},
        {"fmstore tensor 2\n" ID, "newer", FM_EVERSION},
        {"fmstore rope 1\n" ID, "unknown kind", FM_ECORRUPT},
    };
    fm_tree *t = new_tree();
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        tk_fails(fm_tree_put_encoded(t, "tensors/p", fm_span_str(bad[i].text)), bad[i].rc,
                 bad[i].needle);
        assert_non_null(strstr(fm_error_text(), "tensors/p"));
    }
    assert_int_equal(fm_tree_count(t), 0);
    fm_tree_free(t);
}

TEST(failed_allocations_leave_the_tree_whole)
{
    fm_shape s = {1, {2}};
    fm_digest id = {{9}};
    for (uint64_t n = 1; n < 12; n++) {
        fm_tree *t = new_tree();
        tk_ok(fm_tree_put_file(t, "a", fm_span_str("x")));
        fm_mem_fail_at(n, false);
        fm_status rc = fm_tree_put_tensor(t, "tensors/a", "a", FM_F32, &s, &id);
        fm_mem_fail_at(0, false);
        assert_true(rc == FM_OK || rc == FM_ENOMEM);
        assert_int_equal(fm_tree_count(t), rc == FM_OK ? 2 : 1);
        fm_tree_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_paths_are_refused),
        cmocka_unit_test(a_path_is_no_file_and_folder_at_once),
        cmocka_unit_test(entries_stay_sorted_and_are_found),
        cmocka_unit_test(names_become_paths),
        cmocka_unit_test(names_beyond_the_limit_are_refused),
        cmocka_unit_test(pointers_read_back_what_was_written),
        cmocka_unit_test(files_are_their_own_bytes),
        cmocka_unit_test(broken_pointers_name_path_and_field),
        cmocka_unit_test(failed_allocations_leave_the_tree_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
