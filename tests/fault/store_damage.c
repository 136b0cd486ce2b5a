/* ctest: cost=8 */
/* Damage beside the packs' own bytes (unit/store/pack.c flips each of those): an index that lies,
 * packs that do not belong, damaged parents. Whatever happens, a read gives the right bytes or an
 * error. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "store/pack/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { OBJECTS = 24, ELEMS = 700, BYTES = 2 * ELEMS, FLIPS = 120 };

typedef struct repo {
    char *root;
    fm_digest id[OBJECTS]; /* each the child of the one before, but every sixth */
    uint8_t bytes[OBJECTS][BYTES];
} repo;

static char *in(const repo *x, const char *name)
{
    char *path = fm_path_join(x->root, name);
    assert_non_null(path);
    return path;
}

static fm_digest put(fm_store *s, const uint8_t *bytes, const fm_digest *parent)
{
    fm_shape shape = {1, {ELEMS}};
    fm_txn *t;
    fm_digest id;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(bytes, BYTES), parent, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return id;
}

static void make(repo *x)
{
    fm_store *s;
    memset(x, 0, sizeof *x);
    x->root = tk_scratch();
    tk_ok(fm_store_init(x->root));
    tk_ok(fm_store_open(&s, x->root));
    for (unsigned i = 0; i < OBJECTS; i++) {
        for (unsigned k = 0; i % 6 == 0 && k < ELEMS; k++)
            fm_put_u16(x->bytes[i] + 2 * k, fm_f32_to_bf16((float)fm_rng_normal(5, i, k)));
        if (i % 6) {
            memcpy(x->bytes[i], x->bytes[i - 1], BYTES);
            for (unsigned k = i; k < BYTES; k += 50)
                x->bytes[i][k] ^= 1;
        }
        x->id[i] = put(s, x->bytes[i], i % 6 ? &x->id[i - 1] : NULL);
    }
    fm_store_close(s);
}

static unsigned right(fm_store *s, const repo *x)
{
    uint8_t back[BYTES];
    unsigned n = 0;
    for (unsigned i = 0; i < OBJECTS; i++) {
        if (fm_store_read(s, &x->id[i], back, BYTES) != FM_OK)
            continue;
        assert_memory_equal(back, x->bytes[i], BYTES);
        n++;
    }
    return n;
}

static void note(void *ctx, const char *text)
{
    if (*(char *)ctx == '\0')
        snprintf(ctx, 400, "%s", text);
}

TEST(a_lying_index_never_gives_wrong_bytes_and_mends_itself)
{
    repo x;
    make(&x);
    char *path = in(&x, "index.sqlite");
    fm_buf good;
    fm_buf_init(&good, 0);
    tk_ok(fm_read_file(&good, path, 1 << 24));
    for (unsigned n = 0; n < FLIPS; n++) {
        fm_buf bad;
        fm_buf_init(&bad, 0);
        fm_buf_append(&bad, good.data, good.len);
        for (unsigned k = 0; k < 1 + n % 7; k++)
            bad.data[fm_rng_below(1, n, k, bad.len)] ^= (uint8_t)(1u << fm_rng_below(2, n, k, 8));
        tk_ok(fm_write_file(path, bad.data, n % 10 == 9 ? bad.len / 2 : bad.len));
        fm_buf_release(&bad);
        fm_store *s;
        tk_ok(fm_store_open(&s, x.root));
        assert_int_equal(right(s, &x), OBJECTS);
        fm_fsck_report report;
        char text[400] = "";
        tk_ok(fm_store_fsck(s, true, &report, note, text));
        tk_ok(fm_store_fsck(s, true, &report, note, text));
        assert_int_equal(report.faults, 0);
        assert_int_equal(report.repaired, 0);
        assert_int_equal(report.objects, OBJECTS);
        fm_store_close(s);
    }
    fm_buf_release(&good);
    fm_free(path);
    fm_free(x.root);
}

/* dst/packs gets the pack of src that holds object i (each has its own pack). */
static char *copy_pack(const repo *from, const repo *to, unsigned i, size_t bytes)
{
    char *dir = in(from, "packs"), *out = NULL;
    fm_names names;
    tk_ok(fm_list_dir(&names, dir));
    for (size_t k = 0; k < names.count; k++) {
        char *path = fm_path_join(dir, names.name[k]);
        fm_buf b;
        fm_buf_init(&b, 0);
        tk_ok(fm_read_file(&b, path, 1 << 24));
        if (memcmp(b.data + FMS_PACK_HEADER_BYTES + 32, from->id[i].b, 32) == 0) {
            char *rel = fm_asprintf("packs/%s", names.name[k]);
            out = in(to, rel);
            tk_ok(fm_write_file(out, b.data, FM_MIN(bytes, b.len)));
            fm_free(rel);
        }
        fm_buf_release(&b);
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
    assert_non_null(out);
    return out;
}

static void empty_repo(repo *y)
{
    memset(y, 0, sizeof *y);
    y->root = tk_scratch();
    tk_ok(fm_store_init(y->root));
}

/* A delta whose parent is not there must not count as stored: the import would write nothing. */
TEST(a_strayed_delta_does_not_stand_for_its_object)
{
    repo x, y;
    make(&x);
    empty_repo(&y);
    fm_free(copy_pack(&x, &y, 1, SIZE_MAX));
    fm_store *s;
    uint8_t back[BYTES];
    tk_ok(fm_store_open(&s, y.root));
    assert_false(fm_store_has(s, &x.id[1]));
    tk_fails(fm_store_read(s, &x.id[1], back, BYTES), FM_EBASE, "missing");
    fm_digest id = put(s, x.bytes[1], NULL);
    assert_true(fm_digest_eq(&id, &x.id[1]));
    assert_true(fm_store_has(s, &id));
    tk_ok(fm_store_read(s, &id, back, BYTES));
    assert_memory_equal(back, x.bytes[1], BYTES);
    fm_free(copy_pack(&x, &y, 0, SIZE_MAX)); /* and the parent's pack makes all of it whole */
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    fm_store_close(s);
    fm_free(x.root);
    fm_free(y.root);
}

TEST(a_pack_still_being_copied_is_taken_once_whole)
{
    repo x, y;
    make(&x);
    empty_repo(&y);
    fm_store *s;
    uint8_t back[BYTES];
    tk_ok(fm_store_open(&s, y.root));
    fm_free(copy_pack(&x, &y, 0, 500));
    tk_fails(fm_store_read(s, &x.id[0], back, BYTES), FM_ENOTFOUND, "1 packs are damaged");
    fm_free(copy_pack(&x, &y, 0, SIZE_MAX));
    tk_ok(fm_store_read(s, &x.id[0], back, BYTES));
    assert_memory_equal(back, x.bytes[0], BYTES);
    fm_store_close(s);
    fm_free(x.root);
    fm_free(y.root);
}

/* Hours of training must not be lost because an ancestor's bytes have rotted. */
TEST(a_damaged_parent_does_not_cost_its_child)
{
    repo x;
    make(&x);
    char *path = copy_pack(&x, &x, 0, SIZE_MAX);
    fm_buf b;
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, 1 << 24));
    b.data[FMS_PACK_HEADER_BYTES + 320 + 20] ^= 4; /* the payload: the head stays sound */
    tk_ok(fm_write_file(path, b.data, b.len));
    fm_store *s;
    uint8_t child[BYTES], back[BYTES];
    tk_ok(fm_store_open(&s, x.root));
    tk_fails(fm_store_read(s, &x.id[0], back, BYTES), FM_ECORRUPT, "object ");
    memcpy(child, x.bytes[0], BYTES);
    child[3] ^= 1;
    fm_digest id = put(s, child, &x.id[0]);
    tk_ok(fm_store_read(s, &id, back, BYTES));
    assert_memory_equal(back, child, BYTES);
    fm_fsck_report report;
    char text[400] = "";
    tk_ok(fm_store_fsck(s, true, &report, note, text));
    assert_true(report.faults >= 2); /* the object, its children, the file's name */
    assert_non_null(strstr(text, "pack "));
    fm_store_close(s);
    fm_buf_release(&b);
    fm_free(path);
    fm_free(x.root);
}

/* A miss scans all packs anew, and a scan decodes no leaf. */
TEST(what_fsck_found_bad_stays_so_when_an_object_is_missed)
{
    repo x;
    make(&x);
    char *path = copy_pack(&x, &x, 0, SIZE_MAX);
    fm_buf b;
    fm_digest nowhere = {{7}};
    fm_fsck_report report;
    char text[400] = "";
    uint8_t back[BYTES];
    fm_store *s;
    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, 1 << 24));
    b.data[FMS_PACK_HEADER_BYTES + 320 + 20] ^= 4;
    tk_ok(fm_write_file(path, b.data, b.len));
    tk_ok(fm_store_open(&s, x.root));
    assert_true(fm_store_has(s, &x.id[0]));
    tk_ok(fm_store_fsck(s, true, &report, note, text));
    assert_false(fm_store_has(s, &x.id[0]));
    tk_fails(fm_store_read(s, &nowhere, back, BYTES), FM_ENOTFOUND, "is not in the store");
    assert_false(fm_store_has(s, &x.id[0]));
    (void)put(s, x.bytes[0], NULL); /* the same pack by name: the damaged one is still mapped */
    fm_store_close(s);
    tk_ok(fm_store_open(&s, x.root));
    assert_true(fm_store_has(s, &x.id[0]));
    tk_ok(fm_store_read(s, &x.id[0], back, BYTES));
    assert_memory_equal(back, x.bytes[0], BYTES);
    fm_store_close(s);
    fm_buf_release(&b);
    fm_free(path);
    fm_free(x.root);
}

TEST(a_pack_that_goes_away_is_an_error_that_names_it)
{
    repo x;
    make(&x);
    char *path = copy_pack(&x, &x, 6, SIZE_MAX);
    fm_store *s;
    uint8_t back[BYTES];
    tk_ok(fm_store_open(&s, x.root));
    tk_ok(fm_remove_file(path));
    tk_fails(fm_store_read(s, &x.id[6], back, BYTES), FM_ECORRUPT, "is gone");
    assert_int_equal(right(s, &x), OBJECTS - 6);
    fm_store_close(s);
    fm_free(path);
    fm_free(x.root);
}

/* 8 MiB of heads that each claim the longest head there is: found wanting in bounded time. */
TEST(a_pack_of_lying_heads_costs_no_more_than_reading_it)
{
    repo y;
    empty_repo(&y);
    size_t len = 8u << 20;
    uint8_t *p = fm_calloc(1, len);
    uint32_t leaves = 150000;
    fm_digest none = {{0}};
    fms_pack_header(p, 0);
    for (size_t at = 64; at + 256 < len; at += 64) {
        memcpy(p + at,
               "\x93"
               "FMREC1\n",
               8);
        fm_put_u32(p + at + 8, (192 + 40 * leaves + 32 + 63) / 64 * 64);
    }
    for (size_t at = 64 + 64; at + 256 < len;
         at += 64) /* each record's leaf count lies in the next */
        fm_put_u32(p + at + 48, leaves);
    fms_pack_footer(p + len - 64, 1, len, &none);
    char name[100];
    snprintf(name, sizeof name, "packs/%064d.pack", 7);
    char *path = in(&y, name);
    tk_ok(fm_write_file(path, p, len));
    fm_store *s;
    fm_fsck_report report;
    tk_ok(fm_store_open(&s, y.root));
    tk_ok(fm_store_fsck(s, false, &report, NULL, NULL));
    assert_true(report.faults >= 2);
    fm_store_close(s);
    fm_free(path);
    fm_free(p);
    fm_free(y.root);
}

/* "tmp-<pid>-...", whose pid means nothing in another container: the lock on it does. */
TEST(a_living_writer_s_temporary_is_left_alone)
{
    repo y;
    empty_repo(&y);
    char *mine = in(&y, "tmp/tmp-999999-0000000000000001");
    char *dead = in(&y, "tmp/tmp-999999-0000000000000002");
    tk_ok(fm_write_file(mine, "x", 1));
    tk_ok(fm_write_file(dead, "x", 1));
    int fd = open(mine, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    fm_store *s;
    tk_ok(fm_store_open(&s, y.root));
    assert_true(fm_path_exists(mine));
    assert_false(fm_path_exists(dead));
    fm_store_close(s);
    close(fd);
    tk_ok(fm_store_open(&s, y.root));
    assert_false(fm_path_exists(mine));
    fm_store_close(s);
    fm_free(mine);
    fm_free(dead);
    fm_free(y.root);
}

/* No file may grow: a full disk, as far as SQLite can tell. */
TEST(a_disk_that_takes_nothing_can_still_be_read)
{
    repo x;
    make(&x);
    for (unsigned limit = 0; limit <= 64; limit += 8) {
        char *index = in(&x, "index.sqlite");
        tk_ok(fm_remove_file(index));
        fm_free(index);
        pid_t pid = fork();
        if (pid == 0) {
            const struct rlimit most = {limit * 1024, limit * 1024};
            fm_store *s;
            fm_fsck_report report;
            signal(SIGXFSZ, SIG_IGN);
            bool good = setrlimit(RLIMIT_FSIZE, &most) == 0;
            good = good && fm_store_open(&s, x.root) == FM_OK && right(s, &x) == OBJECTS;
            good = good && fm_store_fsck(s, true, &report, NULL, NULL) == FM_OK;
            _exit(good && report.faults == 0 ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    fm_free(x.root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lying_index_never_gives_wrong_bytes_and_mends_itself),
        cmocka_unit_test(a_strayed_delta_does_not_stand_for_its_object),
        cmocka_unit_test(a_pack_still_being_copied_is_taken_once_whole),
        cmocka_unit_test(a_damaged_parent_does_not_cost_its_child),
        cmocka_unit_test(what_fsck_found_bad_stays_so_when_an_object_is_missed),
        cmocka_unit_test(a_pack_that_goes_away_is_an_error_that_names_it),
        cmocka_unit_test(a_pack_of_lying_heads_costs_no_more_than_reading_it),
        cmocka_unit_test(a_disk_that_takes_nothing_can_still_be_read),
        cmocka_unit_test(a_living_writer_s_temporary_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
