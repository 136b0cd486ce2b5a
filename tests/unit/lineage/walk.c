/* lineage_walk.c - history newest first, children before parents, whatever the clocks say. */
#include <time.h>

#include "tests/kit/lineage_kit.h"

typedef struct seen {
    char text[4096];
    fm_oid oid[64];
    size_t count, stop_at;
} seen;

static fm_status take(void *ctx, const fm_version *v)
{
    seen *s = ctx;

    assert_true(s->count < FM_ARRAY_LEN(s->oid));
    for (size_t i = 0; i < s->count; i++)
        for (uint32_t p = 0; p < v->parent_count; p++)
            assert_false(fm_oid_eq(&s->oid[i], &v->parent[p])); /* a parent came first */
    s->oid[s->count++] = v->oid;
    strncat(s->text, v->subject, sizeof s->text - strlen(s->text) - 2);
    strcat(s->text, " ");
    return s->stop_at == s->count ? FM_ECANCELLED : FM_OK;
}

static fm_status refuse(void *ctx, const fm_version *v)
{
    (void)ctx;
    (void)v;
    return fm_fail(FM_EREFUSED, "no more");
}

TEST(bad_arguments_are_refused)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid nobody = {{3}}, out, a = kit_branch(r, "main", NULL, 0);
    seen s = {0};

    tk_fails(fm_log_walk(NULL, NULL, 0, take, &s), FM_EINVAL, NULL);
    tk_fails(fm_log_walk(r, NULL, 0, NULL, &s), FM_EINVAL, NULL);
    tk_fails(fm_log_walk(r, &nobody, 1, take, &s), FM_ECORRUPT, "0300");
    tk_fails(fm_log_walk(r, &a, 1, refuse, NULL), FM_EREFUSED, "no more");
    tk_fails(fm_merge_base(r, &out, &a, NULL), FM_EINVAL, NULL);
    tk_fails(fm_merge_base(r, &out, &a, &nobody), FM_ENOTFOUND, NULL);
    kit_close(r, dir);
}

/* root - a - b - m     all in one second, then t on a branch of its own
 *      \ c ------/                                                        */
TEST(one_second_is_put_in_order)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 2, 0, 0);
    fm_oid root = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    fm_oid a = kit_commit(r, tree, "a", &root, 1, KIT_TIME);
    fm_oid b = kit_commit(r, tree, "b", &a, 1, KIT_TIME);
    fm_oid c = kit_commit(r, tree, "c", &root, 1, KIT_TIME);
    fm_oid two[2] = {b, root}, m, base;
    seen s = {0}, all = {0}, few = {.stop_at = 2}, none = {0};

    two[1] = c;
    tk_ok(fm_log_walk(r, NULL, 0, take, &none));
    assert_int_equal(none.count, 0);
    m = kit_commit(r, tree, "m", two, 2, KIT_TIME);
    tk_ok(fm_log_walk(r, &m, 1, take, &s));
    assert_int_equal(s.count, 5);
    assert_memory_equal(s.text, "m ", 2);
    assert_string_equal(s.text + strlen(s.text) - 5, "root ");
    tk_ok(fm_ref_update(r, "refs/heads/main", &m, NULL, NULL));
    tk_ok(fm_ref_update(r, "refs/heads/c", &c, NULL, NULL));
    tk_ok(fm_ref_update(r, "refs/tags/a", &a, NULL, NULL));
    tk_ok(fm_log_walk(r, NULL, 0, take, &all));
    assert_int_equal(all.count, 5);
    tk_ok(fm_log_walk(r, NULL, 0, take, &few));
    assert_int_equal(few.count, 2);
    tk_ok(fm_merge_base(r, &base, &b, &c));
    assert_true(fm_oid_eq(&base, &root));
    fm_tree_free(tree);
    kit_close(r, dir);
}

TEST(newer_comes_first_and_a_slow_clock_is_mended)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = kit_model(r, 2, 0, 0);
    fm_oid root = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    fm_oid a = kit_commit(r, tree, "a", &root, 1, KIT_TIME + 10);
    fm_oid b = kit_commit(r, tree, "b", &root, 1, KIT_TIME + 20);
    fm_oid slow = kit_commit(r, tree, "slow", &b, 1, KIT_TIME - 5000), heads[2] = {a, root};
    fm_oid other = kit_commit(r, tree, "other", NULL, 0, KIT_TIME), base;
    fm_version v;
    seen s = {0};

    heads[1] = slow;
    tk_ok(fm_log_walk(r, heads, 2, take, &s));
    assert_string_equal(s.text, "slow b a root ");
    tk_ok(fm_version_read(r, &v, &slow));
    assert_int_equal(v.time, KIT_TIME - 5000);
    fm_version_release(&v);
    tk_fails(fm_merge_base(r, &base, &a, &other), FM_ENOTFOUND, "no common ancestor");
    fm_tree_free(tree);
    kit_close(r, dir);
}

static fm_status count(void *ctx, const fm_version *v)
{
    (void)v;
    ++*(size_t *)ctx;
    return FM_OK;
}

static fm_status first(void *ctx, const fm_version *v)
{
    (void)v;
    ++*(size_t *)ctx;
    return FM_ECANCELLED;
}

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Printed, not judged: machines differ. */
TEST(a_long_history_streams)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_tree *tree = NULL;
    fm_oid at;
    size_t n = 0, one = 0;
    double t0, t1, t2;

    tk_ok(fm_tree_new(&tree));
    at = kit_commit(r, tree, "root", NULL, 0, KIT_TIME);
    for (int i = 1; i < 400; i++)
        at = kit_commit(r, tree, "next", &at, 1, KIT_TIME + i / 3);
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, dir));
    t0 = now_ms();
    tk_ok(fm_log_walk(r, &at, 1, first, &one));
    t1 = now_ms();
    tk_ok(fm_log_walk(r, &at, 1, count, &n));
    t2 = now_ms();
    print_message("400 versions: first after %.2f ms, all after %.2f ms\n", t1 - t0, t2 - t1);
    assert_int_equal(n, 400);
    assert_int_equal(one, 1);
    fm_tree_free(tree);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(one_second_is_put_in_order),
        cmocka_unit_test(newer_comes_first_and_a_slow_clock_is_mended),
        cmocka_unit_test(a_long_history_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
