/* The heap door: limits, growth, the arena, injected failures. */
#include "tests/testkit.h"

#include "store/base/checked.h"

#include <string.h>

TEST(impossible_sizes_are_refused)
{
    void *p = NULL;
    size_t cap = 0;

    assert_null(fm_malloc(SIZE_MAX));
    assert_non_null(strstr(fm_error_text(), "out of memory"));
    assert_null(fm_calloc(SIZE_MAX, 2));
    assert_null(fm_aligned_alloc(64, SIZE_MAX));
    assert_null(fm_strndup("x", SIZE_MAX));
    tk_fails(fm_grow(&p, &cap, SIZE_MAX / 2, 16), FM_ENOMEM, "out of memory");
    assert_null(p);
    assert_int_equal(cap, 0);
}

TEST(size_zero_gives_a_valid_pointer)
{
    void *a = fm_malloc(0);
    void *b = fm_calloc(0, 8);
    a = fm_realloc(a, 0);
    assert_non_null(a);
    assert_non_null(b);
    fm_free(a);
    fm_free(b);
    fm_free(NULL);
}

TEST(aligned_blocks_are_aligned_and_freed_like_others)
{
    for (size_t align = 1; align <= 4096; align *= 2) {
        void *p = fm_aligned_alloc(align, 100);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        memset(p, 1, 100);
        fm_free(p);
    }
}

TEST(strings_are_copied_with_a_nul)
{
    char *a = fm_strndup("ab\0cd", 5);
    assert_memory_equal(a, "ab\0cd", 6);
    char *b = fm_asprintf("%d-%s", 12, "x");
    assert_string_equal(b, "12-x");
    char *c = fm_memdup("xyz", 3);
    assert_memory_equal(c, "xyz", 3);
    fm_free(a);
    fm_free(b);
    fm_free(c);
}

TEST(grow_keeps_what_was_there)
{
    uint32_t *v = NULL;
    size_t cap = 0;

    for (uint32_t i = 0; i < 1000; i++) {
        tk_ok(fm_grow(&v, &cap, i + 1, sizeof(*v)));
        assert_true(cap > i);
        v[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(v[i], i);
    fm_free(v);
}

TEST(arena_pieces_are_zeroed_aligned_and_stay_put)
{
    fm_arena *a;
    uint8_t *piece[300];

    tk_ok(fm_arena_new(&a));
    for (size_t i = 0; i < 300; i++) {
        size_t bytes = i * 37 % 9000;
        piece[i] = fm_arena_alloc(a, bytes);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        for (size_t k = 0; k < bytes; k++)
            assert_int_equal(piece[i][k], 0);
        memset(piece[i], (int)(i & 255), bytes);
    }
    for (size_t i = 0; i < 300; i++)
        for (size_t k = 0; k < i * 37 % 9000; k++)
            assert_int_equal(piece[i][k], i & 255);
    assert_memory_equal(fm_arena_strndup(a, "a\0b", 3), "a\0b", 4);
    assert_null(fm_arena_alloc(a, SIZE_MAX));
    fm_arena_free(a);
    fm_arena_free(NULL);
}

TEST(checked_arithmetic_reports_overflow)
{
    uint64_t v;

    assert_true(fm_add_overflow(&v, UINT64_MAX, 1));
    assert_false(fm_add_overflow(&v, UINT64_MAX - 1, 1));
    assert_true(fm_mul_overflow(&v, (uint64_t)1 << 33, (uint64_t)1 << 31));
    assert_true(fm_align_overflow(&v, UINT64_MAX - 3, 64));
    assert_false(fm_align_overflow(&v, 65, 64));
    assert_int_equal(v, 128);
}

TEST(the_nth_allocation_fails_once)
{
    uint64_t before = fm_mem_alloc_count();
    fm_mem_fail_at(2, false);
    void *a = fm_malloc(1);
    void *b = fm_malloc(1);
    void *c = fm_malloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(fm_mem_alloc_count() - before, 3);
    fm_free(a);
    fm_free(c);
}

TEST(or_every_one_from_there_on)
{
    fm_mem_fail_at(2, true);
    char *a = fm_malloc(8);
    assert_non_null(a);
    a[0] = 'x';
    assert_null(fm_realloc(a, 100)); /* and the old block stays good */
    assert_int_equal(a[0], 'x');
    assert_null(fm_calloc(1, 1));
    fm_mem_fail_at(0, false);
    void *b = fm_malloc(1);
    assert_non_null(b);
    fm_free(a);
    fm_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(size_zero_gives_a_valid_pointer),
        cmocka_unit_test(aligned_blocks_are_aligned_and_freed_like_others),
        cmocka_unit_test(strings_are_copied_with_a_nul),
        cmocka_unit_test(grow_keeps_what_was_there),
        cmocka_unit_test(arena_pieces_are_zeroed_aligned_and_stay_put),
        cmocka_unit_test(checked_arithmetic_reports_overflow),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(or_every_one_from_there_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
