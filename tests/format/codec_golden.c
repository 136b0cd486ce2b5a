/* The second golden pack: codecs 7 to 12 as they were first written must decode for ever, here and
 * by tests/format/decode.py. FM_BLESS=FOLDER writes a new one there (only together with a new
 * codec). */
#include <stdlib.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/codec/codec.h"
#include "store/quant/quantize.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { OBJECTS = 17, MAX_BYTES = 32768 };
#define GOLDEN "tests/format/golden/codecs"

typedef enum values { WEIGHTS, ROUNDED, FEW, BLOCKS } values;

typedef struct object {
    fm_dtype dtype;
    fm_shape shape;
    values values;
    fm_dtype origin; /* ROUNDED, BLOCKS: values of this type, widened */
    int parent;      /* index, -1: none */
    const char *codec;
} object;

static const object objects[OBJECTS] = {
    {FM_BF16, {2, {40, 130}}, WEIGHTS, FM_DTYPE_NONE, -1, "exps"},
    {FM_BF16, {2, {40, 130}}, WEIGHTS, FM_DTYPE_NONE, 0, "cdelta"},
    {FM_F16, {2, {9, 700}}, WEIGHTS, FM_DTYPE_NONE, -1, "exps"},
    {FM_F16, {2, {9, 700}}, WEIGHTS, FM_DTYPE_NONE, 2, "cdelta"},
    {FM_F32, {1, {5000}}, WEIGHTS, FM_DTYPE_NONE, -1, "exps"},
    {FM_F32, {1, {5000}}, WEIGHTS, FM_DTYPE_NONE, 4, "cdelta"},
    {FM_F32, {2, {50, 90}}, ROUNDED, FM_BF16, -1, "narrow"},
    {FM_F32, {2, {50, 90}}, ROUNDED, FM_BF16, 6, "narrow-delta"},
    {FM_F32, {2, {50, 90}}, ROUNDED, FM_F16, -1, "narrow"},
    {FM_F32, {2, {50, 90}}, ROUNDED, FM_F16, 6, "narrow-delta"},
    {FM_BF16, {1, {6000}}, FEW, FM_DTYPE_NONE, -1, "palette"},
    {FM_F32, {1, {6000}}, FEW, FM_DTYPE_NONE, -1, "palette"},
    {FM_F32, {2, {20, 256}}, BLOCKS, FM_Q8_0, -1, "blocks"},
    {FM_F32, {2, {20, 256}}, BLOCKS, FM_Q4_1, -1, "blocks"},
    {FM_F32, {2, {20, 256}}, BLOCKS, FM_Q5_0, -1, "blocks"},
    {FM_F32, {2, {20, 256}}, BLOCKS, FM_Q6_K, -1, "blocks"},
    {FM_F32, {2, {20, 256}}, BLOCKS, FM_IQ4_NL, -1, "blocks"},
};

static size_t elems_of(const object *o)
{
    return (size_t)(o->shape.dim[0] * (o->shape.rank == 2 ? o->shape.dim[1] : 1));
}

static size_t bytes_of(const object *o)
{
    return elems_of(o) * fm_dtype_get(o->dtype)->block_bytes;
}

static float rounded(float v, fm_dtype to)
{
    return to == FM_BF16  ? fm_bf16_to_f32(fm_f32_to_bf16(v))
           : to == FM_F16 ? fm_f16_to_f32(fm_f32_to_f16(v))
                          : v;
}

/* Weights quantized to blocks, and those widened; the last ones are weights still. */
static void fill_blocks(uint8_t *p, const object *o)
{
    size_t n = elems_of(o), whole = n - 256;
    float *v = fm_malloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = (float)(0.03 * fm_rng_normal(14, (uint64_t)o->origin, i));
    fm_shape shape = {1, {whole}};
    uint64_t bytes;
    tk_ok(fm_tensor_bytes(&bytes, o->origin, &shape, "golden"));
    uint8_t *blocks = fm_malloc((size_t)bytes);
    tk_ok(fm_quantize_rows(blocks, o->origin, v, whole, 1, FM_QUANT_PLAIN));
    tk_ok(fm_to_f32(v, o->origin, blocks, whole));
    fm_free(blocks);
    memcpy(p, v, n * sizeof *v);
    fm_free(v);
}

/* Rows and columns of several scales; a child's rows move by several amounts, some not at all. */
static void fill(uint8_t *p, int k)
{
    const object *o = &objects[k];
    if (o->values == BLOCKS) {
        fill_blocks(p, o);
        return;
    }
    int root = o->parent < 0 ? k : o->parent;
    size_t columns = (size_t)o->shape.dim[o->shape.rank - 1];
    for (size_t i = 0; i < elems_of(o); i++) {
        size_t row = i / columns;
        double v = 0.03 * (double)(1u << (row % 4)) * fm_rng_normal(11, (uint64_t)root, i);
        if (o->parent >= 0 && row % 5 != 4)
            v += 2e-5 * (double)(1u << (row % 7)) * fm_rng_normal(12, (uint64_t)k, i);
        if (o->values == FEW)
            v = (double)(fm_rng_u64(13, (uint64_t)k, i) % (o->dtype == FM_F32 ? 600 : 40)) / 61;
        float f = rounded((float)v, o->origin);
        if (o->dtype == FM_F32)
            memcpy(p + 4 * i, &f, 4);
        else
            fm_put_u16(p + 2 * i, o->dtype == FM_BF16 ? fm_f32_to_bf16(f) : fm_f32_to_f16(f));
    }
    if (o->values == WEIGHTS && o->parent >= 0) { /* what floats have beside numbers */
        static const uint32_t odd[] = {0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc10000u, 1u};
        for (size_t i = 0; i < FM_ARRAY_LEN(odd); i++)
            if (o->dtype == FM_F32)
                fm_put_u32(p + 4 * i, odd[i]);
            else
                fm_put_u16(p + 2 * i, (uint16_t)(odd[i] >> 16));
    }
}

static void put_all(fm_store *s, uint8_t *p)
{
    fm_txn *t;
    fm_digest id[OBJECTS];
    tk_ok(fm_txn_begin(&t, s));
    for (int k = 0; k < OBJECTS; k++) {
        const object *o = &objects[k];
        fill(p, k);
        tk_ok(fm_txn_put_tensor(t, &id[k], o->dtype, &o->shape, fm_span_of(p, bytes_of(o)),
                                o->parent < 0 ? NULL : &id[o->parent], NULL));
    }
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
}

static size_t copy_packs(const char *from, const char *to)
{
    fm_names names;
    size_t count = 0;
    tk_ok(fm_list_dir(&names, from));
    for (size_t i = 0; i < names.count; i++) {
        char *a = fm_path_join(from, names.name[i]), *b = fm_path_join(to, names.name[i]);
        fm_buf bytes;
        fm_buf_init(&bytes, 0);
        tk_ok(fm_read_file(&bytes, a, 1 << 24));
        tk_ok(fm_write_file(b, bytes.data, bytes.len));
        fm_buf_release(&bytes);
        fm_free(a);
        fm_free(b);
        count++;
    }
    fm_names_release(&names);
    return count;
}

TEST(the_second_golden_pack_decodes)
{
    uint8_t *p = fm_malloc(MAX_BYTES), *back = fm_malloc(MAX_BYTES);
    char *root = tk_scratch(), *packs = fm_path_join(root, "packs");
    fm_store *s;
    tk_ok(fm_store_init(root));
    const char *bless = getenv("FM_BLESS");
    if (bless) {
        tk_ok(fm_store_open(&s, root));
        put_all(s, p);
        fm_store_close(s);
        copy_packs(packs, bless);
    } else {
        char *golden = tk_source(GOLDEN);
        assert_int_equal(copy_packs(golden, packs), 1);
        fm_free(golden);
    }
    tk_ok(fm_store_open(&s, root));
    for (int k = 0; k < OBJECTS; k++) {
        const object *o = &objects[k];
        fm_digest id;
        fm_object_info info;
        fill(p, k);
        tk_ok(fm_tensor_id(&id, o->dtype, &o->shape, fm_span_of(p, bytes_of(o)), NULL));
        tk_ok(fm_store_read(s, &id, back, bytes_of(o)));
        assert_memory_equal(back, p, bytes_of(o));
        tk_ok(fm_store_info(s, &info, &id));
        assert_string_equal(info.codec, o->codec);
    }
    fm_store_close(s);
    fm_free(packs);
    fm_free(root);
    fm_free(p);
    fm_free(back);
}

/* Only leaves are ever coded by the slow level here (a pack has it after repack --slow): the child
 * of a pattern, as tests/fuzz/corpora/codec has it, behind that target's four bytes. */
TEST(golden_leaves_of_the_slow_level_decode)
{
    static const struct {
        fm_dtype dtype;
        const char *path;
    } leaves[] = {{FM_BF16, "tests/fuzz/corpora/codec/ctx_15_mixed_BF16"},
                  {FM_F16, "tests/fuzz/corpora/codec/ctx_16_mixed_F16"},
                  {FM_F32, "tests/fuzz/corpora/codec/ctx_17_mixed_F32"}};
    enum { ELEMS = 4300 };
    static uint8_t parent[4 * ELEMS], want[4 * ELEMS], back[4 * ELEMS];
    fms_coder *c;
    tk_ok(fms_coder_new(&c));
    for (size_t d = 0; d < FM_ARRAY_LEN(leaves); d++) {
        size_t width = leaves[d].dtype == FM_F32 ? 4 : 2;
        for (size_t i = 0; i < sizeof parent; i++)
            parent[i] = (uint8_t)(i * 7 + i / 251);
        memcpy(want, parent, sizeof want);
        for (size_t i = 0; i < ELEMS; i++) {
            uint64_t r = fm_rng_u64(5, 0, i);
            uint32_t k = (uint32_t)((r % 40) * ((r >> 32) % 40) / 20);
            if (i / 300 % 4 == 0 || fm_rng_u64(4, d, i) % 3)
                continue;
            if (width == 4)
                fm_put_u32(want + 4 * i, fm_get_u32(want + 4 * i) + k * 100 - 900);
            else
                fm_put_u16(want + 2 * i, (uint16_t)(fm_get_u16(want + 2 * i) + k - 9));
        }
        char *path = tk_source(leaves[d].path);
        fm_buf coded;
        fm_buf_init(&coded, 0);
        tk_ok(fm_read_file(&coded, path, 1 << 20));
        assert_int_equal(coded.data[0], FMS_CODEC_MIXED);
        fms_leaf_at at = {leaves[d].dtype, 300 * width, 0, false};
        fm_span rest = fm_span_of(coded.data + 4, coded.len - 4);
        tk_ok(fms_leaf_decode(c, back, ELEMS * width, FMS_CODEC_MIXED, &at, rest, parent));
        assert_memory_equal(back, want, ELEMS * width);
        fm_buf_release(&coded);
        fm_free(path);
    }
    fms_coder_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_second_golden_pack_decodes),
                                       cmocka_unit_test(golden_leaves_of_the_slow_level_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
