/* The golden pack must decode for ever: every codec, every kind of entropy stream, as the first
 * version wrote them. FM_BLESS=FOLDER writes a new one there (only together with a new version). */
#include <stdlib.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/codec/codec.h"
#include "store/pack/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { OBJECTS = 15, MAX_BYTES = FM_LEAF_BYTES + 4096 };
#define GOLDEN "tests/format/golden"

typedef struct object {
    fm_dtype dtype; /* FM_DTYPE_NONE: blob */
    fm_shape shape;
    size_t bytes;
    int parent;    /* index, -1: none */
    uint8_t codec; /* of leaf 0; FMS_CODEC_COUNT: no leaf */
} object;

static const object objects[OBJECTS] = {
    {FM_DTYPE_NONE, {0, {0}}, 0, -1, FMS_CODEC_COUNT},    /* empty blob */
    {FM_F32, {2, {0, 5}}, 0, -1, FMS_CODEC_COUNT},        /* empty tensor */
    {FM_F32, {0, {0}}, 4, -1, FMS_CODEC_RAW},             /* scalar NaN */
    {FM_DTYPE_NONE, {0, {0}}, 3001, -1, FMS_CODEC_RAW},   /* noise */
    {FM_DTYPE_NONE, {0, {0}}, 9000, -1, FMS_CODEC_BYTES}, /* text that repeats */
    {FM_F64, {1, {600}}, 4800, -1, FMS_CODEC_CONST},
    {FM_BF16, {2, {64, 96}}, 12288, -1, FMS_CODEC_PLANES},
    {FM_BF16, {2, {64, 96}}, 12288, 6, FMS_CODEC_DELTA},
    {FM_BF16, {2, {64, 96}}, 12288, 7, FMS_CODEC_DELTA}, /* a chain of two */
    {FM_F16, {1, {5000}}, 10000, -1, FMS_CODEC_PLANES},
    {FM_F16, {1, {5000}}, 10000, 9, FMS_CODEC_DELTA},
    {FM_F32, {1, {2000}}, 8000, -1, FMS_CODEC_PLANES},
    {FM_F32, {1, {2000}}, 8000, 11, FMS_CODEC_DELTA},
    {FM_Q4_1, {2, {512, 64}}, 20480, -1, FMS_CODEC_PLANES},
    {FM_I8, {1, {MAX_BYTES}}, MAX_BYTES, -1, FMS_CODEC_BYTES}, /* two leaves; child below */
};
static const object last = {FM_I8, {1, {MAX_BYTES}}, MAX_BYTES, 14, FMS_CODEC_SAME};

static const object *object_at(int k)
{
    return k == OBJECTS ? &last : &objects[k];
}

static void put_float(uint8_t *p, fm_dtype dtype, size_t i, float v)
{
    if (dtype == FM_BF16)
        fm_put_u16(p + 2 * i, fm_f32_to_bf16(v));
    else if (dtype == FM_F16)
        fm_put_u16(p + 2 * i, fm_f32_to_f16(v));
    else
        memcpy(p + 4 * i, &v, 4);
}

/* Weights, and a small step away from the parent's where there is one. */
static void fill_floats(uint8_t *p, int k)
{
    const object *o = object_at(k);
    size_t n = o->bytes / fm_dtype_get(o->dtype)->block_bytes;
    int generation = o->parent < 0 ? 0 : k - (o->dtype == FM_BF16 ? 6 : k - 1);
    uint64_t root = (uint64_t)(k - generation);
    for (size_t i = 0; i < n; i++) {
        double v = 0.05 * fm_rng_normal(1, root, i);
        for (int g = 1; g <= generation; g++)
            v += 3e-5 * fm_rng_normal(2, root + (uint64_t)g, i);
        put_float(p, o->dtype, i, (float)v);
    }
    if (o->dtype == FM_BF16) { /* what floats have beside numbers */
        fm_put_u16(p, 0x8000);
        fm_put_u16(p + 2, generation ? 0x7f80 : 0xff80);
        fm_put_u16(p + 4, generation ? 0x7fc1 : 0xffff);
        fm_put_u16(p + 6, 0x0001);
    }
}

static void fill(uint8_t *p, int k)
{
    static const char text[] = "{\"token\": \"ab\", \"id\": 00},\n";
    const object *o = object_at(k);
    if (k == 2)
        memcpy(p, "\x01\x00\xc0\x7f", 4);
    else if (k == 5)
        for (size_t i = 0; i < o->bytes; i++)
            p[i] = (uint8_t)(i % 8 * 31);
    else if (k >= 6 && k <= 12)
        fill_floats(p, k);
    else
        for (size_t i = 0; i < o->bytes; i++) {
            uint64_t r = fm_rng_u64(3, (uint64_t)k, i);
            p[i] = k == 4    ? (uint8_t)((uint8_t)text[i % 27] + (i % 27 == 20 ? i / 27 % 10 : 0u))
                   : k == 13 ? (uint8_t)(i % 20 < 4 ? r & 3 : r & 0x77)
                   : k >= 14 ? (uint8_t)(i % 4096 == 9 ? i / 4096 : 0)
                             : (uint8_t)r;
        }
    if (k == OBJECTS)
        p[o->bytes - 1] = 99;
}

static void put_all(fm_store *s, uint8_t *p)
{
    fm_txn *t;
    fm_digest id[OBJECTS + 1];
    tk_ok(fm_txn_begin(&t, s));
    for (int k = 0; k <= OBJECTS; k++) {
        const object *o = object_at(k);
        const fm_digest *parent = o->parent < 0 ? NULL : &id[o->parent];
        fill(p, k);
        fm_span bytes = fm_span_of(p, o->bytes);
        if (o->dtype == FM_DTYPE_NONE)
            tk_ok(fm_txn_put_blob(t, &id[k], bytes, NULL));
        else
            tk_ok(fm_txn_put_tensor(t, &id[k], o->dtype, &o->shape, bytes, parent, NULL));
    }
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
}

static void copy_packs(const char *from, const char *to, size_t *count)
{
    fm_names names;
    tk_ok(fm_list_dir(&names, from));
    *count = 0;
    for (size_t i = 0; i < names.count; i++) {
        if (!strstr(names.name[i], ".pack"))
            continue;
        char *a = fm_path_join(from, names.name[i]), *b = fm_path_join(to, names.name[i]);
        fm_buf bytes;
        fm_buf_init(&bytes, 0);
        tk_ok(fm_read_file(&bytes, a, 1 << 24));
        tk_ok(fm_write_file(b, bytes.data, bytes.len));
        fm_buf_release(&bytes);
        fm_free(a);
        fm_free(b);
        ++*count;
    }
    fm_names_release(&names);
}

static void expect_all(fm_store *s, uint8_t *p, uint8_t *back)
{
    for (int k = 0; k <= OBJECTS; k++) {
        const object *o = object_at(k);
        fm_digest id;
        fill(p, k);
        fm_span bytes = fm_span_of(p, o->bytes);
        if (o->dtype == FM_DTYPE_NONE)
            tk_ok(fm_blob_id(&id, bytes, NULL));
        else
            tk_ok(fm_tensor_id(&id, o->dtype, &o->shape, bytes, NULL));
        tk_ok(fm_store_read(s, &id, back, o->bytes));
        assert_memory_equal(back, p, o->bytes);
        fm_object_info info;
        tk_ok(fm_store_info(s, &info, &id));
        assert_int_equal(info.parent_count, o->parent >= 0);
        if (o->codec < FMS_CODEC_COUNT && o->bytes <= FM_LEAF_BYTES)
            assert_string_equal(info.codec, fms_codec_name(o->codec));
    }
}

TEST(the_golden_pack_decodes)
{
    uint8_t *p = fm_malloc(MAX_BYTES), *back = fm_malloc(MAX_BYTES);
    char *root = tk_scratch();
    fm_store *s;
    size_t count;
    tk_ok(fm_store_init(root));
    char *packs = fm_path_join(root, "packs");
    const char *bless = getenv("FM_BLESS");
    if (bless) {
        tk_ok(fm_store_open(&s, root));
        put_all(s, p);
        fm_store_close(s);
        copy_packs(packs, bless, &count);
    } else {
        char *golden = tk_source(GOLDEN);
        copy_packs(golden, packs, &count);
        fm_free(golden);
    }
    assert_true(count > 0);
    tk_ok(fm_store_open(&s, root));
    expect_all(s, p, back);
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.objects, OBJECTS + 1);
    fm_store_close(s);
    fm_free(packs);
    fm_free(root);
    fm_free(p);
    fm_free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_golden_pack_decodes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
