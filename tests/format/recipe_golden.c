/* The golden packs of recipes must decode for ever: every operation, chains of them, leaves that
 * the recipe gives whole and leaves that differ from it; quantize, all types, in a pack of its
 * own. The packs are built here from the pure parts, so that what the search would choose is of no
 * account. FM_BLESS=FOLDER writes them to folders in it. */
#include <stdlib.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/codec/codec.h"
#include "store/pack/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { OBJECTS_MAX = 24, LEAF_MAX = 8192 };

typedef struct object {
    fm_dtype dtype;
    fm_shape shape;
    uint16_t op, mode;
    int parent[3];    /* 1 + number, 0: none */
    unsigned changed; /* elements that are not as predicted */
} object;

static const object operations[] = {
    {FM_F32, {2, {24, 40}}, 0, 0, {0}, 0},
    {FM_F32, {2, {24, 40}}, 0, 0, {0}, 0},
    {FM_F32, {2, {3, 40}}, 0, 0, {0}, 0},
    {FM_F32, {2, {24, 3}}, 0, 0, {0}, 0},
    {FM_BF16, {2, {24, 40}}, FMS_OP_CAST, 0, {1}, 0},
    {FM_F16, {1, {960}}, FMS_OP_CAST, 0, {2}, 5},
    {FM_F64, {2, {24, 40}}, FMS_OP_CAST, 0, {1}, 0},
    {FM_F32, {2, {24, 40}}, FMS_OP_LINEAR, FMS_LINEAR_SUM, {1, 2}, 3},
    {FM_F32, {2, {24, 40}}, FMS_OP_LINEAR, FMS_LINEAR_TASK | FMS_ARITH_FUSED << 8, {1, 2}, 0},
    {FM_F32, {2, {24, 40}}, FMS_OP_LINEAR, FMS_LINEAR_DIVIDED | FMS_ARITH_F64 << 8, {1, 2, 8}, 0},
    {FM_BF16,
     {2, {24, 40}},
     FMS_OP_LINEAR,
     FMS_LINEAR_TASK | FMS_LINEAR_NARROW | FMS_ARITH_STORED << 8,
     {5, 1, 2},
     0},
    {FM_F32, {2, {24, 40}}, FMS_OP_LORA, FMS_LORA_F32, {1, 3, 4}, 0},
    {FM_BF16,
     {2, {24, 40}},
     FMS_OP_LORA,
     FMS_LORA_STEPS | FMS_LORA_NARROW_BASE | FMS_LORA_NARROW_FACTORS,
     {1, 3, 4},
     2},
    {FM_F32, {2, {40, 24}}, FMS_OP_TRANSPOSE, 0, {12}, 0},
    {FM_F32, {2, {40, 24}}, FMS_OP_LORA, FMS_LORA_DELTA | FMS_LORA_TURNED, {14, 3, 4}, 0},
    {FM_F32, {2, {50, 40}}, FMS_OP_GATHER, FMS_GATHER_PIECES, {1, 2}, 4},
    {FM_F32, {2, {24, 40}}, FMS_OP_GATHER, FMS_GATHER_ROTARY, {8}, 0},
    {FM_F32, {2, {24, 40}}, FMS_OP_GATHER, FMS_GATHER_UNROTARY, {17}, 1},
};

/* Of float32, float16 and bfloat16, and of blocks. */
static const object quantized[] = {
    {FM_F32, {2, {6, 256}}, 0, 0, {0}, 0},
    {FM_BF16, {2, {6, 256}}, FMS_OP_CAST, 0, {1}, 0},
    {FM_F16, {2, {6, 256}}, FMS_OP_CAST, 0, {1}, 0},
    {FM_Q8_0, {2, {6, 256}}, FMS_OP_QUANT, 0, {1}, 0},
    {FM_Q4_0, {2, {6, 256}}, FMS_OP_QUANT, 1, {2}, 1},
    {FM_Q4_1, {2, {6, 256}}, FMS_OP_QUANT, 2, {2}, 0},
    {FM_Q5_0, {2, {6, 256}}, FMS_OP_QUANT, 0, {3}, 0},
    {FM_Q5_1, {2, {6, 256}}, FMS_OP_QUANT, 1, {1}, 3},
    {FM_IQ4_NL, {2, {6, 256}}, FMS_OP_QUANT, 2, {1}, 0},
    {FM_Q4_K, {2, {6, 256}}, FMS_OP_QUANT, 0, {1}, 0},
    {FM_Q4_K, {2, {6, 256}}, FMS_OP_QUANT, 1, {2}, 0},
    {FM_Q4_K, {2, {6, 256}}, FMS_OP_QUANT, 2, {3}, 0},
    {FM_Q5_K, {2, {6, 256}}, FMS_OP_QUANT, 0, {2}, 0},
    {FM_Q5_K, {2, {6, 256}}, FMS_OP_QUANT, 1, {3}, 0},
    {FM_Q5_K, {2, {6, 256}}, FMS_OP_QUANT, 2, {1}, 0},
    {FM_Q6_K, {2, {6, 256}}, FMS_OP_QUANT, 0, {3}, 0},
    {FM_Q6_K, {2, {6, 256}}, FMS_OP_QUANT, 1, {1}, 0},
    {FM_Q6_K, {2, {6, 256}}, FMS_OP_QUANT, 2, {2}, 0},
    {FM_Q4_0, {2, {6, 256}}, FMS_OP_QUANT, 0, {4}, 0},
    {FM_Q4_0, {2, {6, 256}}, FMS_OP_QUANT, 0, {16}, 0},
};

typedef struct golden_pack {
    const char *folder; /* of tests/format */
    const object *object;
    uint32_t count;
} golden_pack;

static const golden_pack packs_of[] = {
    {"golden_recipes", operations, FM_ARRAY_LEN(operations)},
    {"golden_quantize", quantized, FM_ARRAY_LEN(quantized)},
};

typedef struct made {
    uint8_t bytes[LEAF_MAX];
    fms_record r;
} made;

typedef struct world {
    made *all;
    const golden_pack *golden;
    const object *of;
} world;

static fm_status read_parent(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    const world *w = ctx;
    memcpy(dst, w->all[w->of->parent[input] - 1].bytes + offset, bytes);
    return FM_OK;
}

static size_t params_of(const object *o, uint8_t *p)
{
    static const double c[3] = {0.3, 0.7, -0.25};
    static const uint64_t piece[4][3] = {
        {0, 0, 1600}, {1, 320, 2400}, {FMS_PIECE_ZEROS, 0, 800}, {0, 640, 3200}};
    const float scale = 1.5f;
    size_t n = 0;
    if (o->op == FMS_OP_LINEAR)
        for (; n < 24 && o->parent[n / 8]; n += 8)
            memcpy(p + n, &c[n / 8], 8); /* little-endian here */
    else if (o->op == FMS_OP_LORA)
        memcpy(p, &scale, n = 4);
    else if (o->op == FMS_OP_GATHER && o->mode != FMS_GATHER_PIECES)
        fm_put_u64(p, 2), n = 8;
    else if (o->op == FMS_OP_GATHER)
        for (size_t i = 0; i < 4; i++, n += FMS_PIECE_BYTES) {
            fm_put_u32(p + n, (uint32_t)piece[i][0]);
            fm_put_u64(p + n + 4, piece[i][1]);
            fm_put_u64(p + n + 12, piece[i][2]);
        }
    return n;
}

static void predict(world *w, made *m, const fms_recipe *recipe)
{
    fms_inputs in = {.child = {m->r.dtype, m->r.shape, m->r.bytes}, .ctx = w, .read = read_parent};
    for (; in.count < 3 && w->of->parent[in.count]; in.count++) {
        const fms_record *p = &w->all[w->of->parent[in.count] - 1].r;
        in.input[in.count] = (fms_form){p->dtype, p->shape, p->bytes};
        m->r.parent[in.count] = p->id;
        m->r.depth = FM_MAX(m->r.depth, p->depth + 1);
    }
    m->r.parent_count = in.count;
    tk_ok(fms_recipe_check(recipe, &in));
    tk_ok(fms_recipe_leaf(recipe, &in, 0, m->bytes));
}

/* Object k and its record, appended to the pack. */
static void make(world *w, uint32_t k, fm_buf *pack, fm_hasher *heads, fms_coder *coder)
{
    made *m = &w->all[k];
    uint8_t params[128], predicted[LEAF_MAX];
    fms_leaf_row row;
    fm_buf head, coded;
    w->of = &w->golden->object[k];
    m->r.dtype = w->of->dtype;
    m->r.shape = w->of->shape;
    m->r.leaf_count = 1;
    m->r.recipe =
        (fms_recipe){w->of->op, w->of->mode, fm_span_of(params, params_of(w->of, params))};
    tk_ok(fm_tensor_bytes(&m->r.bytes, m->r.dtype, &m->r.shape, "golden"));
    assert_true(m->r.bytes <= LEAF_MAX);
    if (w->of->op)
        predict(w, m, &m->r.recipe);
    for (size_t i = 0; !w->of->op && i < m->r.bytes / 4; i++) {
        const float v = (float)fm_rng_normal(11, k, i);
        memcpy(m->bytes + 4 * i, &v, 4);
    }
    memcpy(predicted, m->bytes, LEAF_MAX);
    for (unsigned i = 0; i < w->of->changed; i++)
        m->bytes[(i * 376 + 8) % m->r.bytes] ^= 1;
    fm_buf_init(&coded, 0);
    fm_buf_init(&head, 0);
    const fm_span leaf = fm_span_of(m->bytes, (size_t)m->r.bytes);
    const fms_leaf_at at = fms_leaf_at_of(m->r.dtype, &m->r.shape, 0);
    tk_ok(fms_leaf_encode(coder, &coded, &row.codec, &at, leaf, w->of->op ? predicted : NULL));
    assert_true(!w->of->op || fms_codec_needs_parent(row.codec));
    tk_ok(fm_tensor_id(&m->r.id, m->r.dtype, &m->r.shape, leaf, &row.digest));
    row.stored_bytes = (uint32_t)coded.len;
    m->r.payload_bytes = coded.len;
    tk_ok(fms_record_head(&head, &m->r, &row));
    tk_ok(fm_hasher_update(heads, head.data + head.len - FM_DIGEST_BYTES, FM_DIGEST_BYTES));
    fm_buf_append(pack, head.data, head.len);
    fm_buf_append(pack, coded.data, coded.len);
    while (pack->len % FMS_PACK_ALIGN)
        fm_buf_u8(pack, 0);
    fm_buf_release(&coded);
    fm_buf_release(&head);
    m->r.recipe.params = fm_span_of(NULL, 0);
}

static void make_all(world *w, fm_buf *pack)
{
    uint8_t frame[FMS_PACK_HEADER_BYTES];
    fm_hasher *heads;
    fms_coder *coder;
    fm_digest sum;
    tk_ok(fm_hasher_new(&heads));
    tk_ok(fms_coder_new(&coder));
    fms_pack_header(frame, FMS_PACK_RECIPES);
    fm_buf_append(pack, frame, sizeof frame);
    for (uint32_t k = 0; k < w->golden->count; k++)
        make(w, k, pack, heads, coder);
    tk_ok(fm_hasher_final(heads, &sum));
    fms_pack_footer(frame, w->golden->count, pack->len + FMS_PACK_FOOTER_BYTES, &sum);
    fm_buf_append(pack, frame, FMS_PACK_FOOTER_BYTES);
    tk_ok(fm_buf_ok(pack));
    fm_hasher_free(heads);
    fms_coder_free(coder);
}

static void place(const fm_buf *pack, const char *folder)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest d;
    tk_ok(fm_sha256(&d, pack->data, pack->len));
    fm_digest_hex(&d, hex);
    char *path = fm_asprintf("%s/%s.pack", folder, hex);
    tk_ok(fm_write_file(path, pack->data, pack->len));
    fm_free(path);
}

static void read_golden(fm_buf *out, const golden_pack *g)
{
    char *base = tk_source("tests/format"), *folder = fm_path_join(base, g->folder);
    fm_names names;
    tk_ok(fm_list_dir(&names, folder));
    assert_int_equal(names.count, 1);
    char *path = fm_path_join(folder, names.name[0]);
    tk_ok(fm_read_file(out, path, 1 << 20));
    fm_free(path);
    fm_free(folder);
    fm_free(base);
    fm_names_release(&names);
}

static void expect_all(const world *w, const fm_buf *pack)
{
    char *root = tk_scratch();
    fm_store *s;
    fm_fsck_report report;
    uint8_t back[LEAF_MAX];
    tk_ok(fm_store_init(root));
    char *packs = fm_path_join(root, "packs");
    place(pack, packs);
    tk_ok(fm_store_open(&s, root));
    for (uint32_t k = 0; k < w->golden->count; k++) {
        const made *m = &w->all[k];
        fm_object_info info;
        tk_ok(fm_store_read(s, &m->r.id, back, m->r.bytes));
        assert_memory_equal(back, m->bytes, m->r.bytes);
        tk_ok(fm_store_info(s, &info, &m->r.id));
        assert_int_equal(info.parent_count, m->r.parent_count);
        assert_int_equal(info.chain_depth, m->r.depth);
        if (m->r.bytes > 2000) {
            tk_ok(fm_store_read_range(s, &m->r.id, 1000, 777, back, 0));
            assert_memory_equal(back, m->bytes + 1000, 777);
        }
    }
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.objects, w->golden->count);
    fm_store_close(s);
    fm_free(packs);
    fm_free(root);
}

static void expect_golden(const golden_pack *g)
{
    const char *bless = getenv("FM_BLESS");
    fm_buf now, golden;
    world w = {.all = fm_calloc(OBJECTS_MAX, sizeof(made)), .golden = g};
    assert_non_null(w.all);
    assert_true(g->count <= OBJECTS_MAX);
    fm_buf_init(&now, 0);
    fm_buf_init(&golden, 0);
    make_all(&w, &now);
    expect_all(&w, &now);
    if (bless) {
        char *folder = fm_path_join(bless, g->folder);
        tk_ok(fm_make_dirs(folder));
        place(&now, folder);
        fm_free(folder);
    } else {
        read_golden(&golden, g);
        expect_all(&w, &golden);
    }
    fm_buf_release(&now);
    fm_buf_release(&golden);
    fm_free(w.all);
}

TEST(golden_recipes_decode)
{
    for (size_t k = 0; k < FM_ARRAY_LEN(packs_of); k++)
        expect_golden(&packs_of[k]);
}

/* A record's recipe is judged before anything is computed; what does not fit is refused by name. */
TEST(a_recipe_that_does_not_fit_is_refused)
{
    fm_buf pack;
    world w = {.all = fm_calloc(OBJECTS_MAX, sizeof(made)), .golden = &packs_of[0]};
    uint64_t offset = FMS_PACK_HEADER_BYTES;
    fms_record r;
    assert_non_null(w.all);
    fm_buf_init(&pack, 0);
    make_all(&w, &pack);
    for (uint32_t k = 0; k < 7; k++) {
        tk_ok(fms_record_parse(&r, fm_span_of(pack.data + offset, pack.len - offset), "golden"));
        offset += r.stored_bytes;
    }
    uint8_t *h = pack.data + offset, *section = h + FMS_RECORD_FIXED_BYTES + FMS_LEAF_ROW_BYTES;
    const size_t end = fm_get_u32(h + 8) - FM_DIGEST_BYTES;
    static const struct {
        size_t at;
        uint8_t byte;
        const char *text;
    } wrong[] = {{4, 0, "0 parents"},
                 {4, 9, "9 parents"},
                 {8, 77, "parameter bytes"},
                 {12, 1, "the recipe"},
                 {0, 0, "the recipe"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(wrong); i++) {
        const uint8_t was = section[wrong[i].at];
        fm_digest sum;
        section[wrong[i].at] = wrong[i].byte;
        tk_ok(fm_sha256(&sum, h, end));
        memcpy(h + end, sum.b, FM_DIGEST_BYTES);
        tk_fails(fms_record_parse(&r, fm_span_of(h, pack.len - offset), "golden"), FM_ECORRUPT,
                 wrong[i].text);
        section[wrong[i].at] = was;
    }
    fm_buf_release(&pack);
    fm_free(w.all);
}

TEST(older_readers_refuse_by_name)
{
    uint8_t frame[FMS_PACK_HEADER_BYTES + FMS_PACK_FOOTER_BYTES] = {0};
    fm_digest none = {{0}};
    fms_pack_visitor v = {NULL, NULL, NULL};
    fms_pack_header(frame, 2); /* what a later version may add */
    fms_pack_footer(frame + FMS_PACK_HEADER_BYTES, 0, sizeof frame, &none);
    tk_fails(fms_pack_walk(fm_span_of(frame, sizeof frame), "p", &v), FM_EVERSION, "features 0x2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_recipes_decode),
        cmocka_unit_test(a_recipe_that_does_not_fit_is_refused),
        cmocka_unit_test(older_readers_refuse_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
