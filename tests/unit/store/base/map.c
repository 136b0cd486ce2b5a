/* The map: byte-string keys, insertion order, replacement. */
#include "tests/testkit.h"

#include "store/base/map.h"

#include <stdio.h>

TEST(absent_keys_and_absent_maps_give_null)
{
    fm_map *m;

    tk_ok(fm_map_new(&m));
    assert_null(fm_map_get(m, "a", 1));
    assert_false(fm_map_has(m, "", 0));
    assert_int_equal(fm_map_count(m), 0);
    assert_int_equal(fm_map_count(NULL), 0);
    fm_map_free(m);
    fm_map_free(NULL);
}

TEST(keys_are_bytes_and_are_copied)
{
    fm_map *m;
    int a, b, c, d;
    char key[] = {'x', '\0', 'y'};

    tk_ok(fm_map_new(&m));
    tk_ok(fm_map_put(m, key, 3, &a, NULL));
    key[2] = 'z';
    tk_ok(fm_map_put(m, key, 3, &b, NULL));
    tk_ok(fm_map_put(m, "x", 1, &c, NULL));
    tk_ok(fm_map_put(m, "", 0, &d, NULL));
    assert_ptr_equal(fm_map_get(m, "x\0y", 3), &a);
    assert_ptr_equal(fm_map_get(m, "x\0z", 3), &b);
    assert_ptr_equal(fm_map_get(m, "x", 1), &c);
    assert_ptr_equal(fm_map_get(m, "", 0), &d);
    assert_false(fm_map_has(m, "x\0", 2));
    fm_map_free(m);
}

TEST(putting_again_replaces_and_gives_the_old_value)
{
    fm_map *m;
    int a, b;
    void *old = &a;

    tk_ok(fm_map_new(&m));
    tk_ok(fm_map_put(m, "k", 1, &a, &old));
    assert_null(old);
    tk_ok(fm_map_put(m, "k", 1, &b, &old));
    assert_ptr_equal(old, &a);
    assert_int_equal(fm_map_count(m), 1);
    assert_ptr_equal(fm_map_get(m, "k", 1), &b);
    fm_map_free(m);
}

TEST(many_keys_keep_their_order_of_insertion)
{
    enum { N = 50000 };
    fm_map *m;
    char key[32];

    tk_ok(fm_map_new(&m));
    for (uintptr_t i = 0; i < N; i++) {
        int len = snprintf(key, sizeof(key), "model.layers.%zu", (size_t)(i * 7919 % N));
        tk_ok(fm_map_put(m, key, (size_t)len, (void *)(i + 1), NULL));
    }
    assert_int_equal(fm_map_count(m), N);
    for (uintptr_t i = 0; i < N; i++) {
        int len = snprintf(key, sizeof(key), "model.layers.%zu", (size_t)(i * 7919 % N));
        assert_ptr_equal(fm_map_get(m, key, (size_t)len), (void *)(i + 1));
        assert_true(fm_span_eq_str(fm_map_key_at(m, i), key));
        assert_ptr_equal(fm_map_value_at(m, i), (void *)(i + 1));
    }
    assert_false(fm_map_has(m, "model.layers.50000", 18));
    fm_map_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_and_absent_maps_give_null),
        cmocka_unit_test(keys_are_bytes_and_are_copied),
        cmocka_unit_test(putting_again_replaces_and_gives_the_old_value),
        cmocka_unit_test(many_keys_keep_their_order_of_insertion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
