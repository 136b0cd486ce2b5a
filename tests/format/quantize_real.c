/* Whole models as llama.cpp's llama-quantize wrote them, made again from the bfloat16 GGUF: every
 * block of every quantized tensor, bit for bit, and the time it takes.
 *
 * The files are FM_MODELS/quantized/smollm2-<kind>.gguf, each from smollm2-bf16.gguf beside them by
 * `llama-quantize smollm2-bf16.gguf smollm2-Q4_0.gguf Q4_0` and so on; absent ones are passed
 * over. */
#include "tests/testkit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "store/quant/quantize.h"
#include "store/source.h"

static const char *const KIND[] = {"Q8_0",   "Q4_0",   "Q4_1",   "Q5_0", "Q5_1",
                                   "IQ4_NL", "Q4_K_M", "Q5_K_M", "Q6_K"};
static fm_source *base;

typedef struct tally {
    uint64_t bytes, blocks, wrong, src_bytes[FM_DTYPE_COUNT];
    double seconds[FM_DTYPE_COUNT];
} tally;

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float *widened(fm_source *src, const fm_entry *e, uint64_t *n)
{
    const fm_provider p = fm_source_provider(src);
    uint8_t *raw = fm_malloc((size_t)e->bytes);
    tk_ok(fm_shape_elems(n, &e->shape));
    float *wide = fm_malloc(*n * sizeof(float));
    tk_ok(p.read(p.ctx, e, raw));
    tk_ok(fm_to_f32(wide, e->dtype, raw, *n));
    fm_free(raw);
    return wide;
}

static void check_tensor(tally *t, fm_source *src, const fm_entry *e)
{
    const fm_dtype_info *info = fm_dtype_get(e->dtype);
    const fm_provider p = fm_source_provider(src);
    const fm_entry *from = fm_tree_find(fm_source_tree(base), e->path);
    uint64_t n = 0;
    assert_non_null(from);
    float *wide = widened(base, from, &n);
    uint8_t *want = fm_malloc((size_t)e->bytes), *got = fm_malloc((size_t)e->bytes);
    tk_ok(p.read(p.ctx, e, want));
    const double begin = thread_seconds();
    tk_ok(fm_quantize_rows(got, e->dtype, wide, n, 1, FM_QUANT_PLAIN));
    t->seconds[e->dtype] += thread_seconds() - begin;
    t->src_bytes[e->dtype] += n * 4;
    for (uint64_t at = 0; at < e->bytes; at += info->block_bytes, t->blocks++)
        t->wrong += memcmp(got + at, want + at, info->block_bytes) != 0;
    t->bytes += e->bytes;
    fm_free(wide);
    fm_free(want);
    fm_free(got);
}

static void check_file(const char *kind)
{
    char *name = fm_asprintf("quantized/smollm2-%s.gguf", kind), *path = tk_model(name);
    fm_source *src = NULL;
    tally t = {0};
    size_t begin, end;
    fm_free(name);
    if (!path)
        return;
    tk_ok(fm_source_open(&src, path));
    fm_tree_range(fm_source_tree(src), "tensors/", &begin, &end);
    for (size_t i = begin; i < end; i++)
        if (fm_quantize_applies(fm_tree_at(fm_source_tree(src), i)->dtype))
            check_tensor(&t, src, fm_tree_at(fm_source_tree(src), i));
    printf("%-7s %9" PRIu64 " bytes in %7" PRIu64 " blocks, %" PRIu64 " differ;", kind, t.bytes,
           t.blocks, t.wrong);
    for (int d = 0; d < FM_DTYPE_COUNT; d++)
        if (t.src_bytes[d] > 0)
            printf(" %s %.0f MB/s", fm_dtype_get((fm_dtype)d)->name,
                   (double)t.src_bytes[d] / t.seconds[d] / 1e6);
    printf(" of float32\n");
    assert_true(t.blocks > 0);
    assert_int_equal(t.wrong, 0);
    fm_source_close(src);
    fm_free(path);
}

TEST(every_block_is_llama_quantizes)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(KIND); i++)
        check_file(KIND[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_llama_quantizes),
    };
    char *path = tk_model("quantized/smollm2-bf16.gguf");

    if (!path)
        return tk_skip("needs quantized/smollm2-bf16.gguf and what llama-quantize made of it");
    tk_ok(fm_source_open(&base, path));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_source_close(base);
    fm_free(path);
    return failed;
}
