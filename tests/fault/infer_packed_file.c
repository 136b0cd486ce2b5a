/* Packed weights in files: damage in every byte class, other keys' files, writers killed at every
 * call, full and read-only disks, two processes, deletion while mapped, the bound. Whatever happens
 * to the files, a model computes the same bits. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "infer/model/packed_file.h"
#include "tests/model/serve_kit.h"

enum { N = 40, K = 24, IMAGE = 64 * 24 * 4 + 12, HEAD = FMI_ARTEFACT_HEADER_BYTES };

static uint8_t image[IMAGE];
static fmi_packed_file_key key;

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < IMAGE; i++)
        image[i] = (uint8_t)fm_rng_u64(1, 2, i);
    key = (fmi_packed_file_key){
        .role = FM_ROLE_LINEAR, .dtype = FM_BF16, .n = N, .k = K, .bytes = IMAGE};
    memset(key.id.b, 0xab, sizeof(key.id.b));
    return 0;
}

static fmi_packed_files *open_in(const char *dir, const char *layout, uint64_t bytes_max)
{
    fmi_packed_files *a = NULL;
    tk_ok(fmi_packed_files_new(&a, dir, layout, bytes_max));
    return a;
}

static bool there(fmi_packed_files *a, const fmi_packed_file_key *k)
{
    fm_file_map map;
    bool found = fmi_packed_file_map(a, &map, k);
    if (found) {
        assert_int_equal((uintptr_t)(map.data + HEAD) % 64, 0);
        assert_memory_equal(map.data + HEAD, image, IMAGE);
    }
    fm_unmap_file(&map);
    return found;
}

static char *path_in(const char *dir)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&key.id, hex);
    return fm_asprintf("%s/packed/test-1/%.2s/%s.linear", dir, hex, hex);
}

/* ==== what is read ==== */

TEST(what_was_written_is_mapped)
{
    char *dir = tk_scratch();
    fmi_packed_files *a = open_in(dir, "test-1", 0);
    assert_false(there(a, &key));
    assert_int_equal(fmi_packed_file_stats_of(a).refused, 0); /* missing is not damaged */
    assert_true(fmi_packed_file_write(a, &key, image));
    assert_true(there(a, &key));
    fmi_packed_files_free(a);
    a = open_in(dir, "test-1", 0);
    assert_true(there(a, &key));
    fmi_packed_files_free(a);
    fm_free(dir);
}

TEST(other_keys_are_not_served)
{
    char *dir = tk_scratch(), *path = path_in(dir);
    fmi_packed_files *a = open_in(dir, "test-1", 0), *b = open_in(dir, "test-2", 0);
    fmi_packed_file_key k;
    assert_true(fmi_packed_file_write(a, &key, image));
    assert_false(there(b, &key)); /* another layout has another folder */
    for (int what = 0; what < 5; what++) {
        k = key;
        k.n += what == 0;
        k.k += what == 1;
        k.dtype = what == 2 ? FM_F32 : key.dtype;
        k.bytes -= what == 3 ? 4 : 0;
        k.role = what == 4 ? FM_ROLE_LORA_A : key.role; /* another name, so not there at all */
        assert_false(there(a, &k));
    }
    assert_int_equal(fmi_packed_file_stats_of(a).refused, 4);
    /* a sound file of another tensor under this name */
    fm_buf whole;
    fm_buf_init(&whole, 0);
    k = key;
    k.id.b[31] ^= 1; /* the same folder */
    assert_true(fmi_packed_file_write(a, &k, image));
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&k.id, hex);
    char *other = fm_asprintf("%s/packed/test-1/%.2s/%s.linear", dir, hex, hex);
    tk_ok(fm_read_file(&whole, other, 0));
    tk_ok(fm_write_file(path, whole.data, whole.len));
    assert_false(there(a, &key));
    assert_true(there(a, &k));
    fm_buf_release(&whole);
    fm_free(other);
    fmi_packed_files_free(a);
    fmi_packed_files_free(b);
    fm_free(path);
    fm_free(dir);
}

static void check_refused(const char *dir, const char *path, const void *bytes, size_t len)
{
    tk_ok(fm_write_file(path, bytes, len));
    fmi_packed_files *a = open_in(dir, "test-1", 0);
    if (there(a, &key))
        fail_msg("a file of %zu bytes was taken for good", len);
    assert_int_equal(fmi_packed_file_stats_of(a).refused, 1);
    assert_true(fmi_packed_file_write(a, &key, image)); /* made anew in its place */
    assert_true(there(a, &key));
    fmi_packed_files_free(a);
}

TEST(damage_anywhere_is_refused)
{
    char *dir = tk_scratch(), *path = path_in(dir);
    fmi_packed_files *a = open_in(dir, "test-1", 0);
    fm_buf file;
    assert_true(fmi_packed_file_write(a, &key, image));
    fmi_packed_files_free(a);
    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, 0));
    assert_int_equal(file.len, HEAD + IMAGE);
    for (size_t at = 0; at < file.len; at += at < 200 ? 1 : 37) { /* each field, zeros, the image */
        uint8_t kept = file.data[at];
        file.data[at] = (uint8_t)(kept ^ (1u << at % 8));
        check_refused(dir, path, file.data, file.len);
        file.data[at] = kept;
    }
    file.data[file.len - 1] ^= 0x80; /* the last byte, in the padded end of the sum */
    check_refused(dir, path, file.data, file.len);
    file.data[file.len - 1] ^= 0x80;
    static const size_t cut[] = {0, 1, 8, 199, 200, HEAD - 1, HEAD, HEAD + 1, HEAD + IMAGE - 1};
    for (size_t i = 0; i < FM_ARRAY_LEN(cut); i++)
        check_refused(dir, path, file.data, cut[i]);
    fm_buf_append(&file, "", 1);
    check_refused(dir, path, file.data, file.len);
    fm_buf_release(&file);
    fm_free(path);
    fm_free(dir);
}

TEST(words_that_change_places_are_seen)
{
    char *dir = tk_scratch(), *path = path_in(dir);
    fmi_packed_files *a = open_in(dir, "test-1", 0);
    fm_buf file;
    assert_true(fmi_packed_file_write(a, &key, image));
    fmi_packed_files_free(a);
    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, 0));
    static const size_t apart[] = {8, 64, 128, 4096}; /* neighbours, the same lane, a page */
    for (size_t i = 0; i < FM_ARRAY_LEN(apart); i++) {
        uint8_t x[8], *p = file.data + HEAD + 512, *q = p + apart[i];
        memcpy(x, p, 8);
        memcpy(p, q, 8);
        memcpy(q, x, 8);
        check_refused(dir, path, file.data, file.len);
        memcpy(q, p, 8);
        memcpy(p, x, 8);
    }
    fm_buf_release(&file);
    fm_free(path);
    fm_free(dir);
}

TEST(a_mapped_file_may_be_deleted_or_replaced)
{
    char *dir = tk_scratch(), *path = path_in(dir);
    fmi_packed_files *a = open_in(dir, "test-1", 0);
    fm_file_map map;
    assert_true(fmi_packed_file_write(a, &key, image));
    assert_true(fmi_packed_file_map(a, &map, &key));
    assert_true(fmi_packed_file_write(a, &key, image));
    tk_ok(fm_remove_tree(dir));
    assert_memory_equal(map.data + HEAD, image, IMAGE);
    fm_unmap_file(&map);
    assert_false(there(a, &key));
    assert_true(fmi_packed_file_write(a, &key, image)); /* the folders come back too */
    assert_true(there(a, &key));
    fmi_packed_files_free(a);
    fm_free(path);
    fm_free(dir);
}

/* ==== what is written ==== */

/* In a child: 0 written, 1 not. */
static int write_in_child(const char *dir, uint64_t nth, int err)
{
    pid_t pid = fork();
    if (pid == 0) {
        fmi_packed_files *a = NULL;
        if (fmi_packed_files_new(&a, dir, "test-1", 0) != FM_OK)
            _exit(2);
        fm_io_fail_at(nth, err);
        bool ok = fmi_packed_file_write(a, &key, image);
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (err == 0 && WIFSIGNALED(status) && WTERMSIG(status) == 9)
        return 1;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    return WEXITSTATUS(status);
}

static size_t files_in(const char *path)
{
    fm_names names;
    char *dir = fm_strndup(path, (size_t)(fm_path_base(path) - path) - 1);
    size_t n = fm_list_dir(&names, dir) == FM_OK ? names.count : 0;
    if (n)
        fm_names_release(&names);
    fm_free(dir);
    return n;
}

static void at_every_call(int err)
{
    int rc = 1;
    for (uint64_t nth = 1; rc != 0; nth++) {
        char *dir = tk_scratch(), *path = path_in(dir);
        rc = write_in_child(dir, nth, err);
        assert_true(nth < 60);
        fmi_packed_files *a = open_in(dir, "test-1", 0);
        bool sound = there(a, &key);
        assert_int_equal(fmi_packed_file_stats_of(a).refused, 0); /* whole or not at all */
        assert_true(sound || rc != 0);
        assert_true(fmi_packed_file_write(a, &key, image));
        assert_true(there(a, &key));
        assert_int_equal(files_in(path), 1); /* no temporary of a dead writer is left */
        fmi_packed_files_free(a);
        fm_free(path);
        fm_free(dir);
    }
}

TEST(a_writer_killed_anywhere_leaves_whole_files)
{
    at_every_call(0);
}

TEST(a_full_disk_is_not_an_error)
{
    at_every_call(ENOSPC);
}

TEST(after_one_failure_no_more_is_tried)
{
    char *dir = tk_scratch();
    fmi_packed_files *a = open_in(dir, "test-1", 0);
    (void)fm_fail(FM_EINVAL, "the caller's own");
    fm_io_fail_at(3, EROFS);
    assert_false(fmi_packed_file_write(a, &key, image));
    fm_io_fail_at(0, 0);
    uint64_t calls = fm_io_call_count();
    assert_false(fmi_packed_file_write(a, &key, image));
    assert_int_equal(fm_io_call_count(), calls);
    assert_string_equal(fm_error_text(), "the caller's own");
    fmi_packed_files_free(a);
    fm_free(dir);
}

TEST(writers_at_once_do_no_harm)
{
    char *dir = tk_scratch(), *path = path_in(dir);
    pid_t pid[6];
    for (size_t i = 0; i < FM_ARRAY_LEN(pid); i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            fmi_packed_files *a = NULL;
            bool ok = fmi_packed_files_new(&a, dir, "test-1", 0) == FM_OK;
            for (int r = 0; ok && r < 40; r++) {
                fm_file_map map;
                ok = fmi_packed_file_write(a, &key, image) && fmi_packed_file_map(a, &map, &key);
                if (ok)
                    fm_unmap_file(&map);
            }
            _exit(ok ? 0 : 1);
        }
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(pid); i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(files_in(path), 1);
    fm_free(path);
    fm_free(dir);
}

TEST(the_folder_stays_below_its_bound)
{
    char *dir = tk_scratch();
    uint64_t each = HEAD + IMAGE;
    struct timespec tick; /* of the clock that files are stamped by */
    assert_int_equal(clock_getres(CLOCK_REALTIME_COARSE, &tick), 0);
    useconds_t nap_us = (useconds_t)(tick.tv_nsec / 1000 + 1000);
    fmi_packed_files *a = open_in(dir, "test-1", 5 * each);
    fmi_packed_file_key k = key;
    for (uint8_t i = 0; i < 20; i++) {
        fmi_packed_files_free(a); /* each process writes only so much */
        a = open_in(dir, "test-1", 5 * each);
        k.id.b[0] = i;
        assert_true(fmi_packed_file_write(a, &k, image));
        k.id.b[0] = 0;
        assert_true(there(a, &k)); /* in use all the time, so never the oldest */
        usleep(nap_us);            /* the next stamp is a later one */
    }
    size_t left = 0;
    for (uint8_t i = 0; i < 20; i++) {
        k.id.b[0] = i;
        left += there(a, &k);
    }
    assert_true(left >= 3 && left <= 5);
    fmi_packed_files_free(a);
    a = open_in(dir, "test-1", 5 * each);
    size_t written = 0;
    for (uint8_t i = 0; i < 20; i++) {
        k.id.b[0] = i;
        written += fmi_packed_file_write(a, &k, image);
    }
    assert_int_equal(written, 2); /* half, so that a large model does not push itself out */
    fmi_packed_files_free(a);
    a = open_in(dir, "test-1", each / 2); /* too small for one: nothing is written */
    assert_false(fmi_packed_file_write(a, &key, image));
    fmi_packed_files_free(a);
    fm_free(dir);
}

/* ==== models ==== */

static sk_family family;

static void logits(const char *dir, float *out, fm_engine_stats *stats)
{
    static const int32_t ids[6] = {1, 40, 41, 90, 7, 120};
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    fm_model *m = NULL;
    fm_provider p = ik_provider(&family.mem);
    o.threads = 2;
    o.max_rows = 16;
    o.cache_dir = dir;
    o.cache_min_bytes = 1;
    tk_ok(fm_engine_new(&e, &o));
    tk_ok(fm_model_load(&m, e, family.tree[1], &p, "m"));
    ik_logits(m, ids, 6, 6, out);
    *stats = fm_engine_stats_of(e);
    fm_model_close(m);
    fm_engine_free(e);
}

TEST(models_from_files_give_the_same_bits)
{
    float plain[6 * SK_VOCAB], now[6 * SK_VOCAB];
    char *dir = tk_scratch();
    fm_engine_stats s, t;
    sk_family_init(&family);
    logits(NULL, plain, &s);
    assert_int_equal(s.packed_written + s.packed_mapped, 0);
    logits(dir, now, &s);
    assert_memory_equal(now, plain, sizeof(now));
    assert_true(s.packed_written > 10);
    logits(dir, now, &t);
    assert_memory_equal(now, plain, sizeof(now));
    assert_int_equal(t.packed_written, 0);
    assert_int_equal(t.packed_mapped, s.packed_written);
    /* a process that has them mapped while another one damages nothing but the names */
    pid_t pid = fork();
    if (pid == 0) {
        logits(dir, now, &t);
        _exit(memcmp(now, plain, sizeof(now)) == 0 && t.packed_written == 0 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    tk_ok(fm_remove_tree(dir));
    logits(dir, now, &t);
    assert_memory_equal(now, plain, sizeof(now));
    assert_int_equal(t.packed_written, s.packed_written);
    sk_family_free(&family);
    fm_free(dir);
}

TEST(a_folder_that_cannot_be_made_is_done_without)
{
    float plain[6 * SK_VOCAB], now[6 * SK_VOCAB];
    char *dir = tk_scratch(), *file = fm_path_join(dir, "packed");
    fm_engine_stats s;
    sk_family_init(&family);
    logits(NULL, plain, &s);
    tk_ok(fm_write_file(file, "x", 1)); /* a file where the folder should be: also for root */
    logits(dir, now, &s);
    assert_memory_equal(now, plain, sizeof(now));
    assert_int_equal(s.packed_written, 0);
    sk_family_free(&family);
    fm_free(file);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_mapped),
        cmocka_unit_test(other_keys_are_not_served),
        cmocka_unit_test(damage_anywhere_is_refused),
        cmocka_unit_test(words_that_change_places_are_seen),
        cmocka_unit_test(a_mapped_file_may_be_deleted_or_replaced),
        cmocka_unit_test(a_writer_killed_anywhere_leaves_whole_files),
        cmocka_unit_test(a_full_disk_is_not_an_error),
        cmocka_unit_test(after_one_failure_no_more_is_tried),
        cmocka_unit_test(writers_at_once_do_no_harm),
        cmocka_unit_test(the_folder_stays_below_its_bound),
        cmocka_unit_test(models_from_files_give_the_same_bits),
        cmocka_unit_test(a_folder_that_cannot_be_made_is_done_without),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
