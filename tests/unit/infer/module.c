/* module.c - devices by name: what is opened, and what every refusal says. The module is opened
 * once in a process, so each case is a child of its own. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "infer/infer.h"
#include "infer/device/module.h"
#include "tests/testkit.h"

/* What a try gave. */
typedef struct outcome {
    fm_status rc;
    char name[32], text[512];
} outcome;

/* In a child with FMSTORE_CUDA_MODULE = module (NULL: not set) and FAKE_CARDS = GPUs. */
static outcome open_in_child(const char *module, const char *cards, const char *device,
                             const char *mode)
{
    outcome o;
    int fd[2], status;
    memset(&o, 0, sizeof o);
    assert_int_equal(pipe(fd), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fm_backend *be = NULL;
        (void)(module ? setenv("FMSTORE_CUDA_MODULE", module, 1) : unsetenv("FMSTORE_CUDA_MODULE"));
        (void)(cards ? setenv("FAKE_CARDS", cards, 1) : unsetenv("FAKE_CARDS"));
        o.rc = fm_backend_open_on(&be, device, mode, NULL);
        if (be)
            memcpy(o.name, be->name, strlen(be->name) + 1);
        size_t n = FM_MIN(strlen(fm_error_text()), sizeof o.text - 1);
        memcpy(o.text, fm_error_text(), n);
        fm_backend_close(be);
        _exit(write(fd[1], &o, sizeof o) == (ssize_t)sizeof o ? 0 : 1);
    }
    assert_int_equal(close(fd[1]), 0);
    assert_int_equal(read(fd[0], &o, sizeof o), sizeof o);
    assert_int_equal(close(fd[0]), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return o;
}

static void opens_cpu(const char *module, const char *cards, const char *device)
{
    outcome o = open_in_child(module, cards, device, "exact");
    assert_int_equal(o.rc, FM_OK);
    assert_string_equal(o.name, "cpu");
}

static void refuses(const char *module, const char *cards, const char *device, fm_status rc,
                    const char *says, const char *advises)
{
    outcome o = open_in_child(module, cards, device, "fast");
    assert_int_equal(o.rc, rc);
    if (!strstr(o.text, says) || !strstr(o.text, advises))
        fail_msg("'%s' says neither '%s' nor '%s'", o.text, says, advises);
}

TEST(the_cpu_needs_no_module)
{
    opens_cpu(NULL, NULL, NULL);
    opens_cpu("/nowhere", NULL, "cpu");
}

TEST(auto_takes_the_cpu_where_no_card_is)
{
    opens_cpu(NULL, NULL, "auto");
    opens_cpu("/nowhere", NULL, "auto");
    opens_cpu(FM_MODULE_OTHER, NULL, "auto");
    opens_cpu(FM_MODULE_SOUND, "-1", "auto");
    opens_cpu(FM_MODULE_SOUND, "0", "auto");
    refuses(FM_MODULE_SOUND, "1", "auto", FM_EIO, "card 0 in mode fast", "");
}

TEST(names_are_checked)
{
    static const char *const bad[] = {"",        "gpu",     "CPU",      "cuda:", "cuda:x",
                                      "cuda:-1", "cuda:1 ", "cuda:0x1", "cuda1", "cuda:9999999"};
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++)
        refuses(FM_MODULE_SOUND, NULL, bad[i], FM_EINVAL, "is unknown", "cuda:N");
}

TEST(refusals_say_what_is_missing)
{
    refuses("/nowhere.so", NULL, "cuda", FM_EUNSUPPORTED, "'/nowhere.so': No such file",
            "--device cpu");
    refuses("/proc/self/exe", NULL, "cuda", FM_EUNSUPPORTED, "CUDA module: ", "--device cpu");
    refuses(FM_MODULE_OTHER, NULL, "cuda", FM_EUNSUPPORTED, "of another version", "--device cpu");
    refuses(FM_MODULE_NONE, NULL, "cuda", FM_EUNSUPPORTED, "is no device module",
            "FMSTORE_CUDA_MODULE");
    refuses(FM_MODULE_SOUND, "-1", "cuda", FM_EUNSUPPORTED, "no driver is installed", "");
    refuses(FM_MODULE_SOUND, "0", "cuda", FM_EUNSUPPORTED, "no GPU", "--device cpu");
    refuses(FM_MODULE_SOUND, NULL, "cuda:2", FM_EINVAL, "cuda:0 to cuda:1", "fmstore devices");
}

TEST(cards_go_by_number)
{
    refuses(FM_MODULE_SOUND, NULL, "cuda", FM_EIO, "card 0 in mode fast", "");
    refuses(FM_MODULE_SOUND, NULL, "cuda:1", FM_EIO, "card 1 in mode fast", "");
    refuses(FM_MODULE_SOUND, "12", "cuda:11", FM_EIO, "card 11 in mode fast", "");
}

TEST(cards_are_counted_and_described)
{
    uint32_t n = 7;
    char text[64];
    assert_int_equal(setenv("FMSTORE_CUDA_MODULE", FM_MODULE_SOUND, 1), 0);
    assert_string_equal(fm_device_module(), "");
    tk_ok(fm_device_count(&n));
    assert_int_equal(n, 2);
    tk_ok(fm_device_describe(text, sizeof text, 1));
    assert_string_equal(text, "fake card 1");
    assert_string_equal(fm_device_module(), FM_MODULE_SOUND);
    assert_int_equal(unsetenv("FMSTORE_CUDA_MODULE"), 0);
}

/* Every slot that an engine needs is asked for by its name. */
TEST(missing_operations_are_named)
{
    fm_backend *be = NULL;
    tk_ok(fm_backend_open(&be, "exact", NULL));
    assert_null(fm_backend_lacks(be, true));
    fm_backend less = *be;
    less.attention = NULL;
    assert_string_equal(fm_backend_lacks(&less, false), "attention");
    less = *be;
    less.adamw = NULL;
    assert_null(fm_backend_lacks(&less, false));
    assert_string_equal(fm_backend_lacks(&less, true), "adamw");
    less = *be;
    less.weight_map = NULL;
    assert_string_equal(fm_backend_lacks(&less, false), "weight_map");
    less.weight_image = NULL;
    less.host_visible = false; /* a device makes its own layout */
    assert_null(fm_backend_lacks(&less, false));
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cpu_needs_no_module),
        cmocka_unit_test(auto_takes_the_cpu_where_no_card_is),
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(refusals_say_what_is_missing),
        cmocka_unit_test(cards_go_by_number),
        cmocka_unit_test(missing_operations_are_named),
        cmocka_unit_test(cards_are_counted_and_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
