/* ctest: plain cost=10 */
/* The store in parts: ranges of objects, puts from a provider, and that nothing of it depends on
 * the number of threads. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/pack/pack.h"
#include "store/txn/put.h"
#include "store/formats/safetensors.h"
#include "store/export_view.h"
#include "store/source.h"
#include "store/store.h"
#include "tests/testkit.h"

static char *fresh_store(fm_store **s)
{
    char *root = tk_scratch();
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(s, root));
    return root;
}

static uint8_t *weights(size_t bytes, uint64_t stream)
{
    uint8_t *p = fm_malloc(bytes + 1);
    for (size_t i = 0; i < bytes / 2; i++)
        fm_put_u16(p + 2 * i, fm_f32_to_bf16((float)(0.02 * fm_rng_normal(1, stream, i))));
    return p;
}

static void nudge(uint8_t *p, size_t bytes, uint64_t stream)
{
    for (size_t i = 0; i + 1 < bytes; i += 2)
        if (fm_rng_u64(2, stream, i) % 3 == 0)
            fm_put_u16(p + i, (uint16_t)(fm_get_u16(p + i) + 1));
}

/* Any range of a base, a delta child and a blob is the same segment of the whole. */
TEST(a_range_is_that_segment_of_the_whole)
{
    fm_store *s;
    char *root = fresh_store(&s);
    const fm_shape shape = {2, {1100, 1024}};
    const size_t len = (size_t)1100 * 1024 * 2;
    uint8_t *bytes = weights(len, 1), *part = fm_malloc(len);
    fm_digest id[3];
    fm_txn *t;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &id[0], FM_BF16, &shape, fm_span_of(bytes, len), NULL, NULL));
    tk_ok(fm_txn_put_blob(t, &id[1], fm_span_of(bytes, len), NULL));
    uint8_t *child = weights(len, 1);
    nudge(child, len, 1);
    tk_ok(fm_txn_put_tensor(t, &id[2], FM_BF16, &shape, fm_span_of(child, len), &id[0], NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    for (int o = 0; o < 3; o++)
        for (uint64_t k = 0; k < 40; k++) {
            uint64_t at = fm_rng_u64(3, 0, k) % (len + 1);
            uint64_t n = fm_rng_u64(3, 1, k) % (len - at + 1);
            at = k % 4 == 0 ? at / FM_LEAF_BYTES * FM_LEAF_BYTES : at;
            tk_ok(fm_store_read_range(s, &id[o], at, n, part, k & 1 ? FM_RANGE_UNCHECKED : 0));
            assert_memory_equal(part, (o == 2 ? child : bytes) + at, n);
        }
    tk_fails(fm_store_read_range(s, &id[0], len, 1, part, 0), FM_EINVAL, "were asked for");
    tk_fails(fm_store_read_range(s, &id[0], 1, UINT64_MAX, part, 0), FM_EINVAL, "asked for");
    fm_free(part);
    fm_free(child);
    fm_free(bytes);
    fm_store_close(s);
    fm_free(root);
}

static fm_status read_counted(void *ctx, const fm_entry *e, void *dst)
{
    memset(dst, 7, (size_t)e->bytes);
    ++*(unsigned *)ctx;
    return FM_OK;
}

TEST(a_provider_without_ranges_is_read_whole)
{
    unsigned reads = 0;
    fm_provider p = {.ctx = &reads, .read = read_counted};
    char path[] = "tensors/a", text[] = "0123456789";
    fm_entry e = {.path = path, .kind = FM_ENTRY_BLOB, .bytes = 100};
    uint8_t dst[100] = {0};
    tk_ok(fm_entry_read_range(&p, &e, 10, 20, dst, 0));
    assert_int_equal(reads, 1);
    assert_int_equal(dst[19], 7);
    assert_int_equal(dst[20], 0);
    tk_fails(fm_entry_read_range(&p, &e, 90, 11, dst, 0), FM_EINVAL, "not within");
    e.kind = FM_ENTRY_FILE;
    e.data = (uint8_t *)text;
    e.bytes = 10;
    tk_ok(fm_entry_read_range(&p, &e, 4, 3, dst, 0));
    assert_memory_equal(dst, "456", 3);
    assert_int_equal(reads, 1);
}

/* ==== puts from a provider ================================================================= */

/* A model that lies nowhere: 16-bit words of a counter, `salt` says which version. */
typedef struct made {
    uint64_t salt;
    unsigned whole_reads;
    bool lies; /* other bytes than the ids are of */
} made;

static void fill(uint8_t *dst, const made *m, const fm_entry *e, uint64_t at, uint64_t n)
{
    const uint64_t stream = (uint64_t)e->path[strlen(e->path) - 1];
    for (uint64_t i = 0; i < n; i += 2) {
        uint64_t k = (at + i) / 2, word = fm_rng_u64(11, stream, k / 3) >> (16 * (k % 3));
        bool moved = m->salt && fm_rng_u64(12, stream, k / 8) % 16 == 0;
        fm_put_u16(dst + i, (uint16_t)(word + (moved ? m->salt : 0)));
    }
}

static fm_status made_read(void *ctx, const fm_entry *e, void *dst)
{
    made *m = ctx;
    m->whole_reads++;
    fill(dst, m, e, 0, e->bytes);
    return FM_OK;
}

static fm_status made_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                            void *dst, unsigned flags)
{
    const made *m = ctx;
    (void)flags;
    fill(dst, m, e, offset, bytes);
    if (m->lies)
        *(uint8_t *)dst ^= 1;
    return FM_OK;
}

static void add_made(fm_tree *tree, const made *m, const char *name, uint64_t rows, uint64_t cols)
{
    fm_shape shape = {2, {rows, cols}};
    fm_entry e = {.path = fm_asprintf("tensors/%s", name)};
    uint8_t *bytes = fm_malloc((size_t)(rows * cols * 2) + 1);
    fm_digest id;
    fill(bytes, m, &e, 0, rows * cols * 2);
    tk_ok(fm_tensor_id(&id, FM_BF16, &shape, fm_span_of(bytes, (size_t)(rows * cols * 2)), NULL));
    tk_ok(fm_tree_put_tensor(tree, e.path, name, FM_BF16, &shape, &id));
    fm_free(bytes);
    fm_free(e.path);
}

/* Tensors of no bytes, of a few, of many leaves; more small ones than a batch has leaves. */
static fm_tree *made_tree(const made *m, uint64_t large_rows)
{
    fm_tree *tree;
    tk_ok(fm_tree_new(&tree));
    for (char c = 'a'; c <= 'z'; c++) {
        char name[3] = {'s', c, 0};
        add_made(tree, m, name, c == 'd' || c == 'z' ? 0 : (uint64_t)(c - 'a') * 7 + 1, 96);
    }
    add_made(tree, m, "k1", large_rows, 1024);
    add_made(tree, m, "t2", 1500, 512);
    return tree;
}

static void put_made(fm_store *s, const fm_tree *tree, made *m, const fm_tree *parent,
                     size_t held_max)
{
    fm_provider p = {.ctx = m, .read = made_read, .range = made_range};
    fm_txn *t;
    tk_ok(fm_txn_begin(&t, s));
    if (held_max)
        t->held_max = held_max;
    tk_ok(fm_txn_put_tree(t, tree, &p, parent, NULL, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    assert_int_equal(m->whole_reads, 0);
}

static void expect_made(fm_store *s, const fm_tree *tree, const made *m)
{
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        uint8_t *want = fm_malloc((size_t)e->bytes + 1), *got = fm_malloc((size_t)e->bytes + 1);
        fill(want, m, e, 0, e->bytes);
        tk_ok(fm_store_read(s, &e->id, got, e->bytes));
        assert_memory_equal(want, got, (size_t)e->bytes);
        fm_free(want);
        fm_free(got);
    }
}

static fm_names packs_of(const char *root)
{
    fm_names names;
    char *dir = fm_path_join(root, "packs");
    tk_ok(fm_list_dir(&names, dir));
    fm_free(dir);
    return names;
}

static void leave_one_cpu(cpu_set_t *before)
{
    cpu_set_t one;
    assert_int_equal(sched_getaffinity(0, sizeof *before, before), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, before)) {
            CPU_SET(i, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

/* Once with one thread, and coded leaves going by a temporary. */
TEST(packs_do_not_depend_on_threads)
{
    made base = {0}, child = {.salt = 3};
    fm_tree *a = made_tree(&base, 15000), *b = made_tree(&child, 15000);
    fm_names names[2];
    for (int one = 0; one < 2; one++) {
        fm_store *s;
        cpu_set_t before;
        char *root = fresh_store(&s);
        if (one)
            leave_one_cpu(&before);
        put_made(s, a, &base, NULL, one ? 3 << 20 : 0);
        put_made(s, b, &child, a, one ? 3 << 20 : 0);
        if (one)
            assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
        expect_made(s, a, &base);
        expect_made(s, b, &child);
        fm_object_info info;
        tk_ok(fm_store_info(s, &info, &fm_tree_find(b, "tensors/k1")->id));
        assert_int_equal(info.parent_count, 1);
        names[one] = packs_of(root);
        assert_int_equal(names[one].count, 2);
        fm_store_close(s);
        fm_free(root);
    }
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(names[0].name[i], names[1].name[i]);
    fm_names_release(&names[0]);
    fm_names_release(&names[1]);
    fm_tree_free(a);
    fm_tree_free(b);
}

TEST(a_large_transaction_goes_on_in_another_pack)
{
    made base = {0}, child = {.salt = 3};
    fm_tree *a = made_tree(&base, 3000), *b = made_tree(&child, 3000);
    fm_store *s;
    fm_provider p = {.ctx = &base, .read = made_read, .range = made_range};
    fm_provider q = {.ctx = &child, .read = made_read, .range = made_range};
    fm_txn *t;
    fm_txn_stats st;
    char *root = fresh_store(&s);
    tk_ok(fm_txn_begin(&t, s));
    t->roll_bytes = 100000;
    tk_ok(fm_txn_put_tree(t, a, &p, NULL, NULL, NULL));
    tk_ok(fm_txn_put_tree(t, b, &q, a, NULL, NULL)); /* parents lie in packs that are sealed */
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    fm_names names = packs_of(root);
    assert_true(names.count > 3);
    expect_made(s, a, &base);
    expect_made(s, b, &child);
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    fm_names_release(&names);
    fm_store_close(s);
    fm_tree_free(a);
    fm_tree_free(b);
    fm_free(root);
}

TEST(bytes_that_are_not_the_id_s_are_refused)
{
    made m = {0};
    fm_tree *tree = made_tree(&m, 100);
    fm_store *s;
    char *root = fresh_store(&s);
    fm_provider p = {.ctx = &m, .read = made_read, .range = made_range};
    fm_txn *t;
    m.lies = true;
    tk_ok(fm_txn_begin(&t, s));
    tk_fails(fm_txn_put_tree(t, tree, &p, NULL, NULL, NULL), FM_ECORRUPT, "tensors/k1");
    tk_fails(fm_txn_commit(t, NULL), FM_EINVAL, "failed before");
    fm_txn_close(t);
    fm_names names = packs_of(root);
    assert_int_equal(names.count, 0);
    fm_names_release(&names);
    fm_store_close(s);
    fm_tree_free(tree);
    fm_free(root);
}

static bool stop_half_way(void *ctx, uint64_t done, uint64_t total)
{
    uint64_t *last = ctx;
    assert_true(done >= *last && done <= total);
    *last = done;
    return done > total / 2;
}

TEST(a_put_can_be_stopped_within_a_tensor)
{
    made m = {0};
    fm_tree *tree = made_tree(&m, 30000);
    fm_store *s;
    char *root = fresh_store(&s);
    fm_provider p = {.ctx = &m, .read = made_read, .range = made_range};
    fm_txn *t;
    uint64_t last = 0;
    tk_ok(fm_txn_begin(&t, s));
    tk_fails(fm_txn_put_tree(t, tree, &p, NULL, stop_half_way, &last), FM_ECANCELLED, "stopped");
    assert_true(last < fm_tree_find(tree, "tensors/k1")->bytes); /* it is the first */
    fm_txn_close(t);
    fm_store_close(s);
    fm_tree_free(tree);
    fm_free(root);
}

/* ==== memory =============================================================================== */

static uint64_t anonymous_bytes(void)
{
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "RssAnon:", 8) == 0)
            kb = strtoull(line + 8, NULL, 10);
    if (f)
        fclose(f);
    return kb * 1024;
}

/* Noise that is quick to make and cannot be compressed. */
static fm_status noise_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                             void *dst, unsigned flags)
{
    uint8_t *out = dst;
    (void)ctx, (void)e, (void)flags;
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t x = (offset + i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
        fm_put_u64(out + i, x ^ x >> 32);
    }
    return FM_OK;
}

static bool note_peak(void *ctx, uint64_t done, uint64_t total)
{
    uint64_t *peak = ctx, now = anonymous_bytes();
    (void)done, (void)total;
    *peak = FM_MAX(*peak, now);
    return false;
}

TEST(memory_does_not_grow_with_a_tensor)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* freed memory is kept to find mistakes */
#endif
    enum { LEAVES = 160 };
    const fm_shape shape = {2, {LEAVES * 256, 1024}};
    fm_digest leaf[LEAVES], id;
    uint8_t *buf = fm_malloc(FM_LEAF_BYTES);
    for (uint64_t i = 0; i < LEAVES; i++) {
        tk_ok(noise_range(NULL, NULL, i * FM_LEAF_BYTES, FM_LEAF_BYTES, buf, 0));
        tk_ok(fm_sha256(&leaf[i], buf, FM_LEAF_BYTES));
    }
    tk_ok(fm_tensor_id_from_leaves(&id, FM_F32, &shape, (uint64_t)LEAVES * FM_LEAF_BYTES, leaf));
    fm_store *s;
    fm_tree *tree;
    fm_txn *t;
    fm_provider p = {.range = noise_range};
    char *root = fresh_store(&s);
    tk_ok(fm_tree_new(&tree));
    tk_ok(fm_tree_put_tensor(tree, "tensors/a", "a", FM_F32, &shape, &id));
    tk_ok(fm_txn_begin(&t, s));
    t->held_max = 4 << 20;
    const uint64_t before = anonymous_bytes();
    uint64_t peak = before;
    tk_ok(fm_txn_put_tree(t, tree, &p, NULL, note_peak, &peak));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_provider back = fm_store_provider(s);
    for (uint64_t at = 0; at < LEAVES; at += 8) {
        fm_entry e = *fm_tree_find(tree, "tensors/a");
        tk_ok(fm_entry_read_range(&back, &e, at * FM_LEAF_BYTES, FM_LEAF_BYTES, buf, 0));
        peak = FM_MAX(peak, anonymous_bytes());
    }
    const uint64_t threads_bytes = (uint64_t)FMS_TXN_THREADS_MAX * (20 << 20);
    printf("%d MiB put with %.1f MiB\n", LEAVES, (double)(peak - before) / 1048576);
    assert_true(peak - before < FM_MIN(threads_bytes, (uint64_t)64 << 20));
    fm_tree_free(tree);
    fm_store_close(s);
    fm_free(buf);
    fm_free(root);
}

/* ==== exports ============================================================================== */

static char *write_model(const char *dir, const fm_shape *shape, fm_buf *body)
{
    fm_st_item item = {"model.norm.weight", FM_F32, *shape, NULL};
    char *path = fm_path_join(dir, "in.safetensors");
    fm_buf file;
    uint64_t elems;
    tk_ok(fm_shape_elems(&elems, shape));
    fm_buf_init(body, 0);
    for (uint64_t i = 0; i < elems; i++)
        fm_buf_u32(body, (uint32_t)fm_rng_u64(21, 0, i));
    fm_buf_init(&file, 0);
    tk_ok(fm_st_header(&file, &item, 1));
    fm_buf_append(&file, body->data, body->len);
    tk_ok(fm_write_file(path, file.data, file.len));
    fm_buf_release(&file);
    return path;
}

static void expect_same_file(const char *a, const char *b)
{
    fm_file_map x, y;
    tk_ok(fm_map_file(&x, a));
    tk_ok(fm_map_file(&y, b));
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    fm_unmap_file(&x);
    fm_unmap_file(&y);
}

static void flip_in_pack(const char *root, uint64_t at)
{
    fm_names names = packs_of(root);
    assert_int_equal(names.count, 1);
    char *path = fm_asprintf("%s/packs/%s", root, names.name[0]);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, (long)at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
    fm_free(path);
    fm_names_release(&names);
}

static fm_status append(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

/* Reads the last `bytes` bytes of the view's file. */
static fm_status read_end(fm_buf *out, fm_view *v, uint64_t bytes)
{
    fm_buf_clear(out);
    return fm_view_read(v, 0, fm_view_at(v, 0)->bytes - bytes, bytes, append, out);
}

/* The file's own digest is the one that is compared; what it tells, the leaves' digests name. A
 * view compares the leaves that it reads. */
TEST(exports_in_stretches_are_whole_and_tell_of_damage)
{
    fm_store *s;
    fm_source *src;
    fm_txn *t;
    fm_buf body;
    char *root = fresh_store(&s);
    const fm_shape shape = {2, {1501, 1003}};
    char *in = write_model(root, &shape, &body), *out = fm_path_join(root, "out.safetensors");
    tk_ok(fm_source_open(&src, in));
    fm_provider from = fm_source_provider(src), p = fm_store_provider(s);
    const fm_tree *tree = fm_source_tree(src);
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tree(t, tree, &from, NULL, NULL, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_file_part where; /* noise is stored as it is, and goes from file to file */
    tk_ok(p.place(p.ctx, fm_tree_find(tree, "tensors/model/norm.weight"), &where));
    assert_non_null(where.path);
    assert_memory_equal(where.data.data, body.data, body.len);
    fm_free(where.path);
    for (int f = 0; f < 4; f++) {
        const fm_export_format format = f % 2 ? FM_EXPORT_SAFETENSORS : FM_EXPORT_SOURCE;
        fm_io_copy_plainly(f >= 2);
        tk_ok(fm_export(tree, &p, out, format, FM_DTYPE_NONE));
        expect_same_file(in, out);
        tk_ok(fm_remove_file(out));
    }
    fm_io_copy_plainly(false);
    tk_ok(fm_export(tree, &p, out, FM_EXPORT_SAFETENSORS, FM_BF16)); /* by segments of rows */
    fm_file_map got;
    tk_ok(fm_map_file(&got, out));
    uint8_t *want = fm_malloc(body.len / 2);
    float *wide = fm_malloc(body.len);
    tk_ok(fm_to_f32(wide, FM_F32, body.data, body.len / 4));
    tk_ok(fm_from_f32(want, FM_BF16, wide, body.len / 4));
    assert_memory_equal(got.data + got.len - body.len / 2, want, body.len / 2);
    fm_unmap_file(&got);
    tk_ok(fm_remove_file(out));
    const fm_view_opts opts = {.format = FM_EXPORT_SAFETENSORS};
    fm_view *view;
    fm_buf end;
    fm_buf_init(&end, 0);
    tk_ok(fm_view_open(&view, tree, &p, &opts));
    tk_ok(read_end(&end, view, body.len));
    assert_memory_equal(end.data, body.data, body.len);
    flip_in_pack(root, 3 << 20);
    tk_fails(read_end(&end, view, body.len), FM_ECORRUPT, "leaf");
    tk_ok(read_end(&end, view, 1 << 20)); /* another leaf */
    assert_memory_equal(end.data, body.data + body.len - end.len, end.len);
    fm_view_close(view);
    fm_buf_release(&end);
    tk_fails(fm_export(tree, &p, out, FM_EXPORT_SOURCE, FM_DTYPE_NONE), FM_ECORRUPT, "leaf");
    assert_false(fm_path_exists(out));
    tk_fails(fm_export(tree, &p, out, FM_EXPORT_SAFETENSORS, FM_DTYPE_NONE), FM_ECORRUPT, "leaf");
    assert_false(fm_path_exists(out));
    fm_source_close(src);
    fm_store_close(s);
    fm_buf_release(&body);
    fm_free(wide);
    fm_free(want);
    fm_free(in);
    fm_free(out);
    fm_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_that_segment_of_the_whole),
        cmocka_unit_test(a_provider_without_ranges_is_read_whole),
        cmocka_unit_test(packs_do_not_depend_on_threads),
        cmocka_unit_test(a_large_transaction_goes_on_in_another_pack),
        cmocka_unit_test(bytes_that_are_not_the_id_s_are_refused),
        cmocka_unit_test(a_put_can_be_stopped_within_a_tensor),
        cmocka_unit_test(memory_does_not_grow_with_a_tensor),
        cmocka_unit_test(exports_in_stretches_are_whole_and_tell_of_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
