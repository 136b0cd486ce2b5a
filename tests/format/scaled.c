/* Checkpoints of 8-bit floats with scales: values against the formula, forms of configs and scales,
 * exports of them. That they are what transformers makes of them: model/infer_golden.c. */
#include "tests/format/fixtures.h"
#include "tests/model/infer_kit.h"

#include "store/scaled.h"

#define N 37u /* no whole number of blocks either way */
#define K 21u

typedef struct model {
    fm_tree *tree;
    ik_mem *mem;
    fm_provider p;
} model;

static void put(model *m, const char *name, fm_dtype dtype, fm_shape shape, const void *bytes)
{
    uint64_t len = 0;
    fm_digest id;
    fm_buf path;
    tk_ok(fm_tensor_bytes(&len, dtype, &shape, name));
    tk_ok(fm_tensor_id(&id, dtype, &shape, fm_span_of(bytes, (size_t)len), NULL));
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    tk_ok(fm_tree_put_tensor(m->tree, fm_buf_cstr(&path), name, dtype, &shape, &id));
    fm_buf_release(&path);
    m->mem->t[m->mem->count].id = id;
    m->mem->t[m->mem->count].len = len;
    m->mem->t[m->mem->count].bytes = fm_memdup(bytes, (size_t)len);
    assert_non_null(m->mem->t[m->mem->count++].bytes);
}

/* config: what stands between model_type and the end. scale: its shape, rank 3 for none. */
static void make(model *m, const char *config, const char *suffix, fm_shape scale, uint8_t *w,
                 float *s)
{
    char name[64];
    fm_buf text;
    memset(m, 0, sizeof(*m));
    m->mem = fm_calloc(1, sizeof(*m->mem));
    assert_non_null(m->mem);
    m->p = ik_provider(m->mem);
    tk_ok(fm_tree_new(&m->tree));
    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "{\"format\":1,\"config\":{\"model_type\":\"llama\",%s}}", config);
    tk_ok(fm_tree_put_file(m->tree, "model.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    for (uint32_t i = 0; i < N * K; i++)
        w[i] = (uint8_t)(i * 37 % 0x7f + (i % 3 ? 0 : 0x80)); /* no NaN */
    put(m, "a.weight", FM_F8_E4M3, (fm_shape){2, {N, K}}, w);
    put(m, "a.input_scale", FM_F32, (fm_shape){1, {1}}, &(float){3});
    put(m, "norm.weight", FM_F32, (fm_shape){1, {1}}, &(float){5});
    for (uint32_t i = 0; i < N * K; i++)
        s[i] = 0.3f + 0.01f * (float)i;
    (void)snprintf(name, sizeof(name), "a%s", suffix);
    if (scale.rank < 3)
        put(m, name, FM_F32, scale, s);
}

static void drop(model *m)
{
    fm_tree_free(m->tree);
    ik_mem_free(m->mem);
    fm_free(m->mem);
}

#define GROUP(weights)                                                                             \
    "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{"  \
    "\"weights\":{\"num_bits\":8,\"type\":\"float\"," weights "}}}}"
#define BLOCKS GROUP("\"strategy\":\"block\",\"block_structure\":[8,5]")
#define FP8 "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[8,5]}"

static const fm_entry *weight_of(const fm_tree *t)
{
    return fm_tree_find(t, "tensors/a.weight");
}

TEST(values_are_those_of_the_formula)
{
    static const struct {
        const char *config, *suffix;
        fm_shape scale;
        uint32_t rows, cols;
        fm_dtype dtype;
    } form[] = {
        {FP8, ".weight_scale_inv", {2, {5, 5}}, 8, 5, FM_BF16},
        {FP8 ",\"torch_dtype\":\"float32\"", ".weight_scale_inv", {2, {5, 5}}, 8, 5, FM_F32},
        {FP8 ",\"dtype\":\"float16\"", ".weight_scale_inv", {0, {0}}, N, K, FM_F16},
        {BLOCKS, ".weight_scale", {2, {5, 5}}, 8, 5, FM_BF16},
        {GROUP("\"strategy\":\"channel\""), ".weight_scale", {2, {N, 1}}, 1, K, FM_BF16},
        {GROUP("\"strategy\":\"tensor\""), ".weight_scale", {1, {1}}, N, K, FM_BF16},
        {"\"quantization_config\":{\"quant_method\":\"fbgemm_fp8\"}",
         ".weight_scale",
         {1, {N}},
         1,
         K,
         FM_BF16},
        {"\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\"}",
         ".weight_scale",
         {0, {0}},
         N,
         K,
         FM_BF16},
    };
    uint8_t w[N * K];
    float s[N * K], wide[N * K], want[N * K];
    for (size_t f = 0; f < FM_ARRAY_LEN(form); f++) {
        model m;
        fm_plain *v = NULL;
        uint8_t have[N * K * 4], part[N * K * 4], must[N * K * 4];
        make(&m, form[f].config, form[f].suffix, form[f].scale, w, s);
        tk_ok(fm_to_f32(wide, FM_F8_E4M3, w, (uint64_t)N * K));
        for (uint32_t i = 0; i < N * K; i++)
            want[i] = wide[i] * s[i / K / form[f].rows * ((K + form[f].cols - 1) / form[f].cols) +
                                  i % K / form[f].cols];
        tk_ok(fm_from_f32(must, form[f].dtype, want, (uint64_t)N * K));
        tk_ok(fm_plain_open(&v, m.tree, &m.p, "m"));
        assert_true(fm_plain_scales(v));
        const fm_provider *p = fm_plain_provider(v);
        const fm_entry *e = weight_of(fm_plain_tree(v));
        assert_int_equal(e->dtype, form[f].dtype);
        tk_ok(p->read(p->ctx, e, have));
        assert_memory_equal(have, must, (size_t)e->bytes);
        for (uint64_t at = 0; at < e->bytes; at += 101) { /* wherever a range begins and ends */
            uint64_t n = FM_MIN(e->bytes - at, 301);
            tk_ok(fm_entry_read_range(p, e, at, n, part, 0));
            assert_memory_equal(part, must + at, (size_t)n);
        }
        assert_int_equal(fm_tree_count(fm_plain_tree(v)), 3); /* model.json, a, norm */
        assert_null(strstr((const char *)fm_tree_find(fm_plain_tree(v), "model.json")->data,
                           "quantization_config"));
        e = fm_tree_find(fm_plain_tree(v), "tensors/norm.weight");
        tk_ok(p->read(p->ctx, e, part));
        assert_memory_equal(part, &(float){5}, 4);
        fm_plain_close(v);
        drop(&m);
    }
}

/* Another scale, another form or another type is another weight; the same again is the same. */
TEST(ids_tell_weights_apart)
{
    static const char *const config[] = {FP8, FP8 ",\"dtype\":\"float16\"",
                                         "\"quantization_config\":{\"quant_method\":\"fp8\","
                                         "\"weight_block_size\":[9,5]}",
                                         FP8};
    fm_digest id[4];
    uint8_t w[N * K];
    float s[N * K];
    for (size_t i = 0; i < FM_ARRAY_LEN(config); i++) {
        model m;
        fm_plain *v = NULL;
        make(&m, config[i], ".weight_scale_inv", (fm_shape){2, {5, 5}}, w, s);
        tk_ok(fm_plain_open(&v, m.tree, &m.p, "m"));
        id[i] = weight_of(fm_plain_tree(v))->id;
        assert_false(fm_digest_eq(&id[i], &weight_of(m.tree)->id));
        fm_plain_close(v);
        drop(&m);
    }
    assert_true(fm_digest_eq(&id[0], &id[3]));
    assert_false(fm_digest_eq(&id[0], &id[1]));
    assert_false(fm_digest_eq(&id[0], &id[2]));
}

TEST(what_does_not_fit_is_refused_by_name)
{
    static const struct {
        const char *config, *suffix;
        fm_shape scale;
        fm_status rc;
        const char *says;
    } bad[] = {
        {FP8, ".weight_scale", {1, {1}}, FM_EBASE, "a.weight_scale_inv"},
        {FP8, ".weight_scale_inv", {3, {0}}, FM_EBASE, "no scale"},
        {FP8, ".weight_scale_inv", {2, {5, 4}}, FM_EBASE, "[37, 21]"},
        {FP8, ".weight_scale_inv", {2, {4, 5}}, FM_EBASE, "[4, 5]"},
        {FP8, ".weight_scale_inv", {1, {5}}, FM_EBASE, "does not fit"},
        {GROUP("\"strategy\":\"group\""), ".weight_scale", {1, {1}}, FM_EUNSUPPORTED, "group"},
        {GROUP("\"strategy\":\"block\",\"block_structure\":[8]"),
         ".weight_scale",
         {1, {1}},
         FM_EINVAL,
         "two positive"},
        {"\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[0,5]}",
         ".weight_scale_inv",
         {1, {1}},
         FM_EINVAL,
         "two positive"},
        {"\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}",
         ".weight_scale_inv",
         {1, {1}},
         FM_EUNSUPPORTED,
         "e5m2"},
        {"\"quantization_config\":{\"quant_method\":\"hqq\",\"bits\":4}",
         ".weight_scale",
         {1, {1}},
         FM_EUNSUPPORTED,
         "hqq"},
        {"\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
         ".weight_scale",
         {1, {1}},
         FM_EUNSUPPORTED,
         "NVFP4"},
        {"\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-"
         "quantized\"}",
         ".weight_scale",
         {1, {1}},
         FM_EUNSUPPORTED,
         "nvfp4-pack-quantized"},
        {"\"quantization_config\":7", ".weight_scale", {1, {1}}, FM_EUNSUPPORTED, "quant_method"},
    };
    uint8_t w[N * K];
    float s[N * K];
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        model m;
        fm_plain *v = NULL;
        make(&m, bad[i].config, bad[i].suffix, bad[i].scale, w, s);
        tk_fails(fm_plain_open(&v, m.tree, &m.p, "m"), bad[i].rc, bad[i].says);
        assert_null(v);
        drop(&m);
    }
}

/* Experts in one tensor, say: their scales are not looked for, so they are not taken as they
 * are. */
TEST(other_tensors_of_8_bits_are_refused)
{
    static const struct {
        const char *name;
        fm_shape shape;
    } bad[] = {{"experts.gate_up_proj", {2, {N, K}}}, {"experts.weight", {3, {1, N, K}}}};
    uint8_t w[N * K];
    float s[N * K];
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        model m;
        fm_plain *v = NULL;
        make(&m, FP8, ".weight_scale_inv", (fm_shape){2, {5, 5}}, w, s);
        put(&m, bad[i].name, FM_F8_E4M3, bad[i].shape, w);
        tk_fails(fm_plain_open(&v, m.tree, &m.p, "m"), FM_EUNSUPPORTED, bad[i].name);
        assert_null(v);
        drop(&m);
    }
}

static char *golden(const char *name)
{
    return fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, name);
}

/* As it came without a dtype; with one, every weight plain and no word of scales. */
TEST(exports_keep_scales_or_apply_them)
{
    char *in = golden("llama-fp8"), *root = tk_scratch();
    char *same = fm_path_join(root, "same"), *plain = fm_path_join(root, "plain");
    char *a = fm_path_join(in, "model.safetensors"), *b = fm_path_join(same, "model.safetensors");
    fm_source *src = NULL, *got = NULL;
    fm_plain *v = NULL;
    size_t begin, end;
    tk_ok(fm_source_open(&src, in));
    fm_provider p = fm_source_provider(src);
    tk_ok(fm_export(fm_source_tree(src), &p, same, FM_EXPORT_HF, FM_DTYPE_NONE));
    fx_same_file(a, b);
    tk_ok(fm_export(fm_source_tree(src), &p, plain, FM_EXPORT_HF, FM_BF16));
    tk_ok(fm_source_open(&got, plain));
    tk_ok(fm_plain_open(&v, fm_source_tree(src), &p, "m"));
    const fm_provider *seen = fm_plain_provider(v);
    fm_provider pg = fm_source_provider(got);
    fm_tree_range(fm_plain_tree(v), "tensors/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(fm_plain_tree(v), i);
        const fm_entry *f = fm_tree_find(fm_source_tree(got), e->path);
        uint8_t *x = fm_malloc((size_t)e->bytes), *y = fm_malloc((size_t)e->bytes);
        assert_true(f && x && y && f->dtype == e->dtype && e->dtype == FM_BF16);
        tk_ok(seen->read(seen->ctx, e, x));
        tk_ok(pg.read(pg.ctx, f, y));
        assert_memory_equal(x, y, (size_t)e->bytes);
        fm_free(x);
        fm_free(y);
    }
    const fm_entry *model_json = fm_tree_find(fm_source_tree(got), "model.json");
    assert_null(strstr((const char *)model_json->data, "quantization_config"));
    fm_tree_range(fm_source_tree(got), "tensors/", &begin, &end);
    assert_int_equal(end - begin, 21);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_formula),
        cmocka_unit_test(ids_tell_weights_apart),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(other_tensors_of_8_bits_are_refused),
        cmocka_unit_test(exports_keep_scales_or_apply_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
