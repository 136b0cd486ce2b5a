/* The error text: one per thread, cut at its size, never lost while a prefix is added. */
#include "tests/testkit.h"

#include <pthread.h>
#include <string.h>

TEST(text_is_empty_before_the_first_failure)
{
    fm_error_clear();
    assert_string_equal(fm_error_text(), "");
}

TEST(fail_returns_its_status_and_keeps_the_text)
{
    assert_int_equal(fm_fail(FM_ECORRUPT, "%s: byte %d", "a.pack", 7), FM_ECORRUPT);
    assert_string_equal(fm_error_text(), "a.pack: byte 7");
}

TEST(fail_may_quote_the_current_text)
{
    fm_fail(FM_EIO, "inner");
    fm_fail(FM_EIO, "outer (%s)", fm_error_text());
    assert_string_equal(fm_error_text(), "outer (inner)");
}

TEST(prefix_goes_in_front)
{
    fm_fail(FM_EINVAL, "no such field");
    assert_int_equal(fm_error_prefix(FM_EINVAL, "file %s", "x"), FM_EINVAL);
    assert_string_equal(fm_error_text(), "file x: no such field");
}

TEST(long_texts_are_cut_at_1023_bytes)
{
    char text[3000];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    fm_fail(FM_EIO, "%s", text);
    assert_int_equal(strlen(fm_error_text()), 1023);
    fm_error_prefix(FM_EIO, "%s", "place");
    assert_int_equal(strlen(fm_error_text()), 1023);
    assert_memory_equal(fm_error_text(), "place: xxx", 10);
    fm_error_prefix(FM_EIO, "%s", text);
    assert_int_equal(strlen(fm_error_text()), 1023);
}

TEST(save_and_restore_carry_the_text)
{
    fm_error_state kept;

    fm_fail(FM_EIO, "first");
    fm_error_save(&kept);
    fm_fail(FM_EIO, "second");
    fm_error_restore(&kept);
    assert_string_equal(fm_error_text(), "first");
}

static void *fail_elsewhere(void *arg)
{
    (void)arg;
    fm_fail(FM_EIO, "other thread");
    return NULL;
}

TEST(each_thread_has_its_own_text)
{
    pthread_t t;

    fm_fail(FM_EIO, "mine");
    assert_int_equal(pthread_create(&t, NULL, fail_elsewhere, NULL), 0);
    pthread_join(t, NULL);
    assert_string_equal(fm_error_text(), "mine");
}

TEST(every_status_has_a_name)
{
    for (int s = FM_EREFUSED; s <= FM_OK; s++)
        assert_string_not_equal(fm_status_name((fm_status)s), "unknown");
    assert_string_equal(fm_status_name((fm_status)-99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_empty_before_the_first_failure),
        cmocka_unit_test(fail_returns_its_status_and_keeps_the_text),
        cmocka_unit_test(fail_may_quote_the_current_text),
        cmocka_unit_test(prefix_goes_in_front),
        cmocka_unit_test(long_texts_are_cut_at_1023_bytes),
        cmocka_unit_test(save_and_restore_carry_the_text),
        cmocka_unit_test(each_thread_has_its_own_text),
        cmocka_unit_test(every_status_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
