/* Quantized checkpoints of golden/make_quantized.py: weights with the bits that the libraries make,
 * wide and as codes, any range of them; exports; what is refused. That models of them compute what
 * transformers does: model/infer_golden.c. */
#include "tests/format/fixtures.h"
#include "tests/model/infer_kit.h"

#include <math.h>

#include "store/quant/codes.h"
#include "store/quant/mxfp4.h"
#include "store/scaled.h"

static const struct {
    const char *name;
    fm_dtype wide;
    const char *codes, *integers; /* layouts of down_proj [64, 128] */
} forms[] = {
    {"llama-gptq", FM_F16, "C4/32", "Q4_1"},
    {"llama-gptq-act", FM_F16, "F16", "F16"},
    {"llama-gptq-8", FM_F16, "C8/128", "Q8_0"},
    {"llama-awq", FM_F16, "C4/32", "Q4_1"},
    {"llama-bnb-nf4", FM_BF16, "C4/64", "BF16"},
    {"llama-bnb-fp4", FM_F32, "C4/64", "F32"},
    {"llama-bnb-int8", FM_F16, "C8/128", "Q8_0"},
    {"llama-ct-int4", FM_BF16, "C4/32", "Q4_1"},
    {"llama-ct-int8", FM_BF16, "C8/128", "Q8_0"},
    {"llama-ct-pack8", FM_BF16, "C8/128", "Q8_0"},
    {"llama-ao-int4", FM_BF16, "BF16", "Q4_1"},
    {"llama-ao-intx", FM_BF16, "C4/32", "Q4_1"},
    {"llama-ao-int8", FM_BF16, "C8/128", "Q8_0"},
    {"llama-bitlinear", FM_F32, "C2/128", "Q4_0"},
    {"llama-bitnet", FM_BF16, "C2/128", "Q4_0"},
    {"llama-bitnet-online", FM_BF16, "C2/128", "Q4_0"},
};

static char *golden(const char *name, const char *file)
{
    return fm_asprintf("%s/tests/model/golden/arch/%s%s", FM_SOURCE_DIR, name, file);
}

static uint8_t *bytes_of(const fm_provider *p, const fm_entry *e)
{
    uint8_t *x = fm_malloc((size_t)e->bytes);
    assert_non_null(x);
    tk_ok(p->read(p->ctx, e, x));
    return x;
}

static float *floats_of(const fm_provider *p, const fm_entry *e, uint64_t *n)
{
    uint8_t *raw = bytes_of(p, e);
    tk_ok(fm_shape_elems(n, &e->shape));
    float *x = fm_malloc((size_t)*n * sizeof(float));
    assert_non_null(x);
    tk_ok(fm_to_f32(x, e->dtype, raw, *n));
    fm_free(raw);
    return x;
}

/* A codes' view has the wide view's floats, in every range. */
static void same_values(const fm_plain *wide, const fm_plain *codes)
{
    const fm_provider *pw = fm_plain_provider(wide), *pc = fm_plain_provider(codes);
    assert_int_equal(fm_tree_count(fm_plain_tree(wide)), fm_tree_count(fm_plain_tree(codes)));
    for (size_t i = 0; i < fm_tree_count(fm_plain_tree(codes)); i++) {
        const fm_entry *c = fm_tree_at(fm_plain_tree(codes), i);
        const fm_entry *w = fm_tree_find(fm_plain_tree(wide), c->path);
        uint8_t part[700];
        uint64_t n = 0;
        assert_non_null(w);
        if (!fm_plain_made(codes, c))
            continue;
        assert_true(fm_plain_made(wide, w) && fm_shape_eq(&w->shape, &c->shape));
        float *x = floats_of(pw, w, &n), *y = floats_of(pc, c, &n);
        uint8_t *whole = bytes_of(pc, c);
        assert_memory_equal(x, y, n * sizeof(float));
        for (uint64_t at = 0; at < c->bytes; at += 997) {
            uint64_t some = FM_MIN(c->bytes - at, sizeof(part));
            tk_ok(fm_entry_read_range(pc, c, at, some, part, 0));
            assert_memory_equal(part, whole + at, some);
        }
        fm_free(whole);
        fm_free(x);
        fm_free(y);
    }
}

/* Integers' floats differ by roundings to float16 alone: of the library's products, of scales, and
 * of zero * scale, which is as large as the largest value. */
static void near_values(const fm_plain *wide, const fm_plain *integers, const char *type)
{
    const char *path = "tensors/model/layers/0/mlp/down_proj.weight";
    const fm_entry *w = fm_tree_find(fm_plain_tree(wide), path);
    const fm_entry *e = fm_tree_find(fm_plain_tree(integers), path);
    uint64_t n = 0;
    double most = 0;
    assert_string_equal(fm_dtype_get(e->dtype)->name, type);
    float *x = floats_of(fm_plain_provider(wide), w, &n);
    float *y = floats_of(fm_plain_provider(integers), e, &n);
    double ulp = w->dtype == FM_BF16 ? 0x1p-8 : 0x1p-10;
    for (uint64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)x[i]));
    for (uint64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - (double)y[i]) <= ulp * fabs((double)x[i]) + 0x1p-11 * most))
            fail_msg("%s: element %d: %g for %g", type, (int)i, (double)y[i], (double)x[i]);
    fm_free(x);
    fm_free(y);
}

TEST(weights_are_those_of_the_libraries)
{
    for (size_t f = 0; f < FM_ARRAY_LEN(forms); f++) {
        char *in = golden(forms[f].name, ""), *file = golden(forms[f].name, "/ref.safetensors");
        fm_source *src = NULL, *ref = NULL;
        fm_plain *wide = NULL, *codes = NULL, *integers = NULL;
        size_t begin, end, seen = 0;
        tk_ok(fm_source_open(&src, in));
        tk_ok(fm_source_open(&ref, file));
        fm_provider p = fm_source_provider(src), pr = fm_source_provider(ref);
        tk_ok(fm_plain_open(&wide, fm_source_tree(src), &p, "m"));
        tk_ok(fm_plain_open_as(&codes, fm_source_tree(src), &p, "m", FM_PLAIN_CODES));
        fm_tree_range(fm_source_tree(ref), "tensors/", &begin, &end);
        for (size_t i = begin; i < end; i++) {
            const fm_entry *want = fm_tree_at(fm_source_tree(ref), i);
            const fm_entry *have = fm_tree_find(fm_plain_tree(wide), want->path);
            if (!strstr(want->name, "_proj.weight"))
                continue;
            assert_true(have && have->dtype == forms[f].wide && have->dtype == want->dtype);
            uint8_t *x = bytes_of(fm_plain_provider(wide), have), *y = bytes_of(&pr, want);
            assert_memory_equal(x, y, (size_t)want->bytes);
            seen++;
            fm_free(x);
            fm_free(y);
        }
        assert_int_equal(seen, 2);
        const fm_entry *down =
            fm_tree_find(fm_plain_tree(codes), "tensors/model/layers/0/mlp/down_proj.weight");
        assert_string_equal(fm_dtype_get(down->dtype)->name, forms[f].codes);
        same_values(wide, codes);
        tk_ok(fm_plain_open_as(&integers, fm_source_tree(src), &p, "m", FM_PLAIN_INTEGERS));
        near_values(wide, integers, forms[f].integers);
        fm_plain_close(integers);
        fm_tree_range(fm_plain_tree(wide), "tensors/", &begin, &end);
        assert_int_equal(end - begin, 11); /* nothing of the quantized form is left */
        fm_plain_close(wide);
        fm_plain_close(codes);
        fm_source_close(src);
        fm_source_close(ref);
        fm_free(in);
        fm_free(file);
    }
}

/* As it came without a dtype; with one, every weight plain and no word of the form. */
TEST(exports_keep_codes_or_widen_them)
{
    for (size_t f = 0; f < FM_ARRAY_LEN(forms); f++) {
        char *in = golden(forms[f].name, ""), *root = tk_scratch();
        char *same = fm_path_join(root, "same"), *plain = fm_path_join(root, "plain");
        char *a = golden(forms[f].name, "/model.safetensors");
        char *b = fm_path_join(same, "model.safetensors");
        fm_source *src = NULL, *got = NULL;
        fm_plain *v = NULL;
        size_t begin, end;
        tk_ok(fm_source_open(&src, in));
        fm_provider p = fm_source_provider(src);
        tk_ok(fm_export(fm_source_tree(src), &p, same, FM_EXPORT_SOURCE, FM_DTYPE_NONE));
        fx_same_file(a, b);
        tk_ok(fm_export(fm_source_tree(src), &p, plain, FM_EXPORT_HF, forms[f].wide));
        tk_ok(fm_source_open(&got, plain));
        tk_ok(fm_plain_open(&v, fm_source_tree(src), &p, "m"));
        fm_provider pg = fm_source_provider(got);
        fm_tree_range(fm_plain_tree(v), "tensors/", &begin, &end);
        for (size_t i = begin; i < end; i++) {
            const fm_entry *e = fm_tree_at(fm_plain_tree(v), i);
            const fm_entry *g = fm_tree_find(fm_source_tree(got), e->path);
            assert_true(g && g->dtype == forms[f].wide);
            if (!fm_plain_made(v, e))
                continue;
            uint8_t *x = bytes_of(fm_plain_provider(v), e), *y = bytes_of(&pg, g);
            assert_memory_equal(x, y, (size_t)e->bytes);
            fm_free(x);
            fm_free(y);
        }
        const fm_entry *model_json = fm_tree_find(fm_source_tree(got), "model.json");
        const char *text = (const char *)model_json->data;
        const bool rounds = strstr(forms[f].name, "bit"); /* what models of it read is rounded */
        assert_int_equal(strstr(text, "quantization_config") != NULL, rounds);
        assert_int_equal(strstr(text, "fmstore-plain") != NULL, rounds);
        fm_plain_close(v);
        fm_source_close(src);
        fm_source_close(got);
        fm_free(in);
        fm_free(root);
        fm_free(same);
        fm_free(plain);
        fm_free(a);
        fm_free(b);
    }
}

/* ---- configs and tensors that do not fit ---- */

typedef struct model {
    fm_tree *tree;
    ik_mem *mem;
    fm_provider p;
} model;

typedef struct piece {
    const char *name;
    fm_dtype dtype;
    fm_shape shape;
    const void *bytes; /* NULL: zeros */
} piece;

static void put(model *m, const piece *t)
{
    uint64_t len = 0;
    fm_digest id;
    fm_buf path;
    tk_ok(fm_tensor_bytes(&len, t->dtype, &t->shape, t->name));
    uint8_t *x = fm_calloc((size_t)len + 1, 1);
    assert_non_null(x);
    if (t->bytes)
        memcpy(x, t->bytes, (size_t)len);
    tk_ok(fm_tensor_id(&id, t->dtype, &t->shape, fm_span_of(x, (size_t)len), NULL));
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", t->name));
    tk_ok(fm_tree_put_tensor(m->tree, fm_buf_cstr(&path), t->name, t->dtype, &t->shape, &id));
    fm_buf_release(&path);
    m->mem->t[m->mem->count].id = id;
    m->mem->t[m->mem->count].len = len;
    m->mem->t[m->mem->count++].bytes = x;
}

static void make(model *m, const char *type, const char *config, const piece *t, size_t count)
{
    fm_buf text;
    memset(m, 0, sizeof(*m));
    m->mem = fm_calloc(1, sizeof(*m->mem));
    assert_non_null(m->mem);
    m->p = ik_provider(m->mem);
    tk_ok(fm_tree_new(&m->tree));
    fm_buf_init(&text, 0);
    fm_buf_printf(&text,
                  "{\"format\":1,\"config\":{\"model_type\":\"%s\",\"quantization_config\":{%s}}}",
                  type, config);
    tk_ok(fm_tree_put_file(m->tree, "model.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    for (size_t i = 0; i < count && t[i].name; i++)
        put(m, &t[i]);
}

static void drop(model *m)
{
    fm_tree_free(m->tree);
    ik_mem_free(m->mem);
    fm_free(m->mem);
}

#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32"
#define AWQ "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32"
#define BNB "\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true"
#define AO(type)                                                                                   \
    "\"quant_method\":\"torchao\",\"quant_type\":{\"default\":{\"_type\":\"" type                  \
    "\",\"_data\":{\"int4_packing_format\":{\"_data\":\"PLAIN\"}}}}"
#define QDATA                                                                                      \
    {                                                                                              \
        "a._weight_qdata", FM_I8, {2, {8, 16}}, NULL                                               \
    }
#define BIT "\"quant_method\":\"bitnet\""
#define CT_OF(format, weights, more)                                                               \
    "\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\"," more                      \
    "\"config_groups\":{\"g\":{\"weights\":{" weights "}}}"
#define CT(weights) CT_OF("pack-quantized", weights, "")
#define INT4 "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32"

TEST(unknown_settings_are_refused_by_name)
{
    static const struct {
        const char *type, *config, *says;
        fm_status rc;
    } bad[] = {
        {"llama", "\"quant_method\":\"hqq\"", "hqq", FM_EUNSUPPORTED},
        {"llama", GPTQ ",\"new_trick\":1", "quantization_config.new_trick", FM_EUNSUPPORTED},
        {"llama", GPTQ ",\"rotation\":\"hadamard\"", "rotation", FM_EUNSUPPORTED},
        {"llama", GPTQ ",\"dynamic\":{\"+:.*\":{\"bits\":8}}", "dynamic", FM_EUNSUPPORTED},
        {"llama", GPTQ ",\"checkpoint_format\":\"marlin\"", "marlin", FM_EUNSUPPORTED},
        {"llama", GPTQ ",\"pack_dtype\":\"int16\"", "int16", FM_EUNSUPPORTED},
        {"llama", "\"quant_method\":\"gptq\",\"bits\":3", "bits' is 3", FM_EUNSUPPORTED},
        {"llama", "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":0", "group_size", FM_EINVAL},
        {"gpt2", GPTQ, "GPT-2", FM_EUNSUPPORTED},
        {"llama", "\"quant_method\":\"torchao\",\"quant_type\":\"int4wo\"", "quant_type",
         FM_EUNSUPPORTED},
        {"llama",
         "\"quant_method\":\"torchao\",\"quant_type\":{\"default\":{\"_type\":"
         "\"Float8WeightOnlyConfig\"}}",
         "Float8WeightOnlyConfig", FM_EUNSUPPORTED},
        {"llama",
         "\"quant_method\":\"torchao\",\"quant_type\":{\"default\":{\"_type\":"
         "\"Int4WeightOnlyConfig\",\"_data\":{\"int4_packing_format\":{\"_data\":\"TILE_PACKED_TO_"
         "4D\"}}}}",
         "TILE_PACKED_TO_4D", FM_EUNSUPPORTED},
        {"llama", BIT ",\"linear_class\":\"trilinear\"", "trilinear", FM_EUNSUPPORTED},
        {"llama", BIT ",\"quantization_mode\":\"dynamic\"", "dynamic", FM_EUNSUPPORTED},
        {"llama", BIT ",\"use_rms_norm\":true", "use_rms_norm", FM_EUNSUPPORTED},
        {"llama", BIT ",\"modules_to_not_convert\":[]", "modules_to_not_convert", FM_EUNSUPPORTED},
        {"llama", BIT ",\"modules_to_not_convert\":[\"lm_head\",\"o_proj\"]", "o_proj",
         FM_EUNSUPPORTED},
        {"gpt2", BIT, "GPT-2", FM_EUNSUPPORTED},
        {"llama", AWQ ",\"version\":\"gemv\"", "gemv", FM_EUNSUPPORTED},
        {"llama", AWQ ",\"zero_point\":false", "zero_point", FM_EUNSUPPORTED},
        {"llama", "\"quant_method\":\"awq\",\"bits\":8", "4 is read", FM_EUNSUPPORTED},
        {"llama", BNB ",\"llm_int8_has_fp16_weight\":true", "fp16_weight", FM_EUNSUPPORTED},
        {"llama", BNB ",\"bnb_5bit\":true", "bnb_5bit", FM_EUNSUPPORTED},
        {"llama", CT("\"num_bits\":3,\"type\":\"int\",\"strategy\":\"channel\""), "num_bits",
         FM_EUNSUPPORTED},
        {"llama", CT("\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\""), "type float",
         FM_EUNSUPPORTED},
        {"llama", CT("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"token\""), "token",
         FM_EUNSUPPORTED},
        {"llama", CT("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\""), "group_size",
         FM_EINVAL},
        {"llama", CT(INT4 ",\"odd\":2"), "quantization_config.odd", FM_EUNSUPPORTED},
        {"llama", CT_OF("nvfp4-pack-quantized", INT4, ""), "nvfp4", FM_EUNSUPPORTED},
        {"llama", CT_OF("pack-quantized", INT4, "\"transform_config\":{\"config_groups\":{}},"),
         "transform_config", FM_EUNSUPPORTED},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        model m;
        fm_plain *v = NULL;
        make(&m, bad[i].type, bad[i].config, NULL, 0);
        tk_fails(fm_plain_open(&v, m.tree, &m.p, "m"), bad[i].rc, bad[i].says);
        assert_null(v);
        drop(&m);
    }
}

static const int32_t far_group[64] = {[40] = 2}, below[64] = {[63] = -1};
static const int64_t shape_8_64[2] = {8, 64}, shape_far[2] = {8, INT64_MAX};
#define STATE(more) "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\"," more "}"
static const char no_shape[] = STATE("\"shape\":[8]");
static const char too_wide[] = STATE("\"shape\":[8,128]");
static const char crooked[] = STATE("\"shape\":[16,32]") "x";
static const char in_rows[] = STATE("\"shape\":[5,96]");

#define QWEIGHT                                                                                    \
    {                                                                                              \
        "a.qweight", FM_I32, {2, {8, 8}}, NULL                                                     \
    }
#define QZEROS                                                                                     \
    {                                                                                              \
        "a.qzeros", FM_I32, {2, {2, 1}}, NULL                                                      \
    }
#define GSCALES                                                                                    \
    {                                                                                              \
        "a.scales", FM_F16, {2, {2, 8}}, NULL                                                      \
    }
#define NF4                                                                                        \
    {                                                                                              \
        "a.weight", FM_U8, {2, {256, 1}}, NULL                                                     \
    }
#define ABSMAX                                                                                     \
    {                                                                                              \
        "a.weight.absmax", FM_F32, {1, {8}}, NULL                                                  \
    }
#define BLOB(text)                                                                                 \
    {                                                                                              \
        "a.weight.quant_state.bitsandbytes__nf4", FM_U8, {1, {sizeof(text) - 1}}, text             \
    }
#define WORDS                                                                                      \
    {                                                                                              \
        "a.weight_packed", FM_I32, {2, {8, 8}}, NULL                                               \
    }
#define SHAPED                                                                                     \
    {                                                                                              \
        "a.weight_shape", FM_I64, {1, {2}}, shape_8_64                                             \
    }

TEST(tensors_that_do_not_fit_are_refused_by_name)
{
    static const struct {
        const char *config, *says;
        piece t[5];
    } bad[] = {
        {GPTQ, "a.qweight' has no '.scales'", {QWEIGHT, QZEROS}},
        {GPTQ, "a.qweight' has no '.qzeros'", {QWEIGHT, GSCALES}},
        {GPTQ, "needs I32 [2, 1]", {QWEIGHT, {"a.qzeros", FM_I32, {2, {2, 8}}, NULL}, GSCALES}},
        {GPTQ, "needs F16", {QWEIGHT, QZEROS, {"a.scales", FM_F16, {2, {1, 8}}, NULL}}},
        {GPTQ, "a.scales' is I32", {QWEIGHT, QZEROS, {"a.scales", FM_I32, {2, {2, 8}}, NULL}}},
        {GPTQ, "no whole number of words", {{"a.qweight", FM_I32, {2, {8, 7}}, NULL}}},
        {GPTQ, "not I32", {{"a.qweight", FM_I32, {1, {8}}, NULL}}},
        {GPTQ,
         "column 40 is of group 2; there are 2",
         {QWEIGHT, QZEROS, GSCALES, {"a.g_idx", FM_I32, {1, {64}}, far_group}}},
        {GPTQ,
         "column 63 is of group -1",
         {QWEIGHT, QZEROS, GSCALES, {"a.g_idx", FM_I32, {1, {64}}, below}}},
        {GPTQ, "a.g_idx", {QWEIGHT, QZEROS, GSCALES, {"a.g_idx", FM_I32, {1, {63}}, NULL}}},
        {GPTQ, "both there", {QWEIGHT, QZEROS, GSCALES, {"a.weight", FM_F16, {2, {8, 64}}, NULL}}},
        {AWQ, "no '.qzeros'", {{"a.qweight", FM_I32, {2, {64, 1}}, NULL}, GSCALES}},
        {AO("Int4WeightOnlyConfig"),
         "a._weight_qdata' is U8",
         {{"a._weight_qdata", FM_U8, {2, {8, 16}}, NULL}}},
        {AO("Int4WeightOnlyConfig"),
         "no '._weight_zero_point'",
         {QDATA, {"a._weight_scale", FM_BF16, {2, {1, 8}}, NULL}}},
        {AO("Int4WeightOnlyConfig"),
         "not 3 equal groups",
         {QDATA, {"a._weight_scale", FM_BF16, {2, {3, 8}}, NULL}}},
        {AO("Int4WeightOnlyConfig"),
         "scales activations",
         {QDATA, {"a._weight_act_pre_scale", FM_BF16, {1, {32}}, NULL}}},
        {BNB, "no 'quant_state", {NF4, ABSMAX}},
        {BNB, "field 'shape'", {NF4, ABSMAX, BLOB(no_shape)}},
        {BNB, "256 bytes; 8 x 128", {NF4, ABSMAX, BLOB(too_wide)}},
        {BNB, "more text", {NF4, ABSMAX, BLOB(crooked)}},
        {BNB, "not I8", {NF4, {"a.SCB", FM_F32, {1, {256}}, NULL}}},
        {BNB, "a.SCB", {{"a.weight", FM_I8, {2, {8, 8}}, NULL}, {"a.SCB", FM_F32, {1, {7}}, NULL}}},
        {CT(INT4), "weight_shape", {WORDS}},
        {CT(INT4), "says [8, ", {WORDS, {"a.weight_shape", FM_I64, {1, {2}}, shape_far}}},
        {CT(INT4), "no '.weight_scale'", {WORDS, SHAPED}},
        {CT(INT4), "needs F16", {WORDS, SHAPED, {"a.weight_scale", FM_BF16, {2, {8, 1}}, NULL}}},
        {CT(INT4 ",\"symmetric\":false"),
         "no '.weight_zero_point'",
         {WORDS, SHAPED, {"a.weight_scale", FM_BF16, {2, {8, 2}}, NULL}}},
        {BIT, "a.weight' has no '.weight_scale'", {{"a.weight", FM_U8, {2, {2, 8}}, NULL}}},
        {BIT,
         "needs F16, BF16 or F32 [1]",
         {{"a.weight", FM_U8, {2, {2, 8}}, NULL}, {"a.weight_scale", FM_F32, {1, {2}}, NULL}}},
        {BIT, "says that the weights of layers", {{"h.0.a.weight", FM_BF16, {2, {2, 8}}, NULL}}},
        {BIT ",\"linear_class\":\"autobitlinear\"",
         "biases of autobitlinear",
         {{"a.weight", FM_U8, {2, {2, 8}}, NULL},
          {"a.weight_scale", FM_F32, {1, {1}}, NULL},
          {"a.bias", FM_F32, {1, {8}}, NULL}}},
        {BIT ",\"linear_class\":\"autobitlinear\",\"quantization_mode\":\"online\"",
         "h.0.a.weight' is U8",
         {{"h.0.a.weight", FM_U8, {2, {2, 8}}, NULL}}},
        {"\"quant_method\":\"mxfp4\"", "not U8", {{"e_blocks", FM_U8, {3, {2, 2, 8}}, NULL}}},
        {"\"quant_method\":\"mxfp4\"",
         "e_scales",
         {{"e_blocks", FM_U8, {3, {2, 2, 16}}, NULL}, {"e_scales", FM_U8, {2, {2, 1}}, NULL}}},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        model m;
        fm_plain *v = NULL;
        make(&m, "llama", bad[i].config, bad[i].t, 5);
        fm_status rc = fm_plain_open(&v, m.tree, &m.p, "m");
        assert_true(rc < 0);
        if (!strstr(fm_error_text(), bad[i].says))
            fail_msg("%zu: '%s' for '%s'", i, fm_error_text(), bad[i].says);
        assert_null(v);
        drop(&m);
    }
}

TEST(blocks_that_begin_inside_of_rows_are_refused)
{
    model m;
    fm_plain *v = NULL;
    const piece t[] = {{"a.weight", FM_U8, {2, {240, 1}}, NULL}, ABSMAX, BLOB(in_rows)};
    make(&m, "llama", BNB, t, 3);
    tk_fails(fm_plain_open(&v, m.tree, &m.p, "m"), FM_EUNSUPPORTED, "inside of its rows");
    drop(&m);
}

TEST(numbers_beyond_the_bits_of_the_config_are_refused)
{
    static const int8_t far[8 * 32] = {[70] = -9};
    static const char config[] =
        "\"quant_method\":\"torchao\",\"quant_type\":{\"default\":{\"_type\":"
        "\"IntxWeightOnlyConfig\","
        "\"_data\":{\"weight_dtype\":{\"_data\":\"int4\"},\"intx_packing_format\":{\"_data\":"
        "\"UNPACKED_TO_INT8\"}}}}";
    const piece t[] = {{"a._weight_qdata", FM_I8, {2, {8, 32}}, far},
                       {"a._weight_scale", FM_F32, {2, {8, 1}}, NULL}};
    uint16_t w[8 * 32];
    model m;
    fm_plain *v = NULL;
    make(&m, "llama", config, t, 2);
    tk_ok(fm_plain_open(&v, m.tree, &m.p, "m"));
    const fm_provider *p = fm_plain_provider(v);
    const fm_entry *e = fm_tree_find(fm_plain_tree(v), "tensors/a.weight");
    assert_non_null(e);
    tk_fails(p->read(p->ctx, e, w), FM_EBASE, "-9 is no number of 4 bits");
    fm_plain_close(v);
    drop(&m);
}

/* ---- gpt-oss' blocks ---- */

TEST(mxfp4_pairs_are_mxfp4_blocks)
{
    static const float value[16] = {0, .5f,  1,  1.5f,  2,  3,  4,  6,
                                    0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    enum { E = 2, N = 3, BLOCKS = 2, K = 32 * BLOCKS };
    uint8_t blocks[E * N * BLOCKS * 16], scales[E * N * BLOCKS];
    float want[E * N * K];
    for (size_t i = 0; i < sizeof(blocks); i++)
        blocks[i] = (uint8_t)(i * 77 + 5);
    for (size_t i = 0; i < sizeof(scales); i++)
        scales[i] = (uint8_t)(120 + i);
    for (size_t i = 0; i < FM_ARRAY_LEN(want); i++)
        want[i] = value[blocks[i / 2] >> (i % 2 * 4) & 15] * ldexpf(1, scales[i / 32] - 127);
    const piece t[] = {{"e.up_blocks", FM_U8, {4, {E, N, BLOCKS, 16}}, blocks},
                       {"e.up_scales", FM_U8, {3, {E, N, BLOCKS}}, scales},
                       {"e.up_bias", FM_F32, {1, {1}}, NULL}};
    model m;
    fm_plain *v = NULL;
    uint64_t n = 0;
    make(&m, "gpt_oss", "\"quant_method\":\"mxfp4\"", t, 3);
    tk_ok(fm_plain_open_as(&v, m.tree, &m.p, "m", FM_PLAIN_CODES));
    const fm_entry *e = fm_tree_find(fm_plain_tree(v), "tensors/e.up");
    assert_true(e && e->dtype == FM_MXFP4 && e->shape.rank == 3 && e->shape.dim[2] == K);
    float *have = floats_of(fm_plain_provider(v), e, &n);
    assert_int_equal(n, FM_ARRAY_LEN(want));
    assert_memory_equal(have, want, sizeof(want));
    uint8_t part[17];
    tk_ok(fm_entry_read_range(fm_plain_provider(v), e, 17 * 5, 17, part, 0));
    tk_ok(fm_to_f32(have, FM_MXFP4, part, 32));
    assert_memory_equal(have, want + 160, 32 * sizeof(float));
    assert_non_null(fm_tree_find(fm_plain_tree(v), "tensors/e.up_bias"));
    assert_int_equal(fm_tree_count(fm_plain_tree(v)), 3);
    fm_free(have);
    fm_plain_close(v);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_settings_are_refused_by_name),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(blocks_that_begin_inside_of_rows_are_refused),
        cmocka_unit_test(numbers_beyond_the_bits_of_the_config_are_refused),
        cmocka_unit_test(weights_are_those_of_the_libraries),
        cmocka_unit_test(exports_keep_codes_or_widen_them),
        cmocka_unit_test(mxfp4_pairs_are_mxfp4_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
