/* Whole GGUF files dequantized to float32: each leaf's origin is found and costs the GGUF's bytes.
 * Files as in quantize_real.c. */
#include "tests/testkit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "store/quant/dequantized.h"
#include "store/quant/quantize.h"
#include "store/source.h"

static const char *const KIND[] = {"Q8_0",   "Q4_0",   "Q4_1",   "Q5_0", "Q5_1",
                                   "IQ4_NL", "Q4_K_M", "Q5_K_M", "Q6_K"};

typedef struct tally {
    uint64_t leaves, found, gguf, blocks, rest, f32;
    double seconds;
} tally;

static double thread_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check_leaf(tally *t, fm_dtype type, const float *wide, size_t bytes)
{
    const fm_span leaf = fm_span_of(wide, bytes);
    fms_origin o;
    fm_buf blocks, rest;
    bool fits = false;
    fm_buf_init(&blocks, 0);
    fm_buf_init(&rest, 0);
    const double begin = thread_seconds();
    if (fms_origin_find(&o, FM_F32, leaf))
        tk_ok(fms_origin_encode(&blocks, &rest, &fits, &o, FM_F32, leaf));
    t->seconds += thread_seconds() - begin;
    t->leaves++;
    t->f32 += bytes;
    t->gguf += fms_origin_block_bytes(type, FM_F32, bytes);
    if (fits) {
        uint8_t *back = fm_malloc(bytes);
        t->found++;
        t->blocks += blocks.len;
        t->rest += rest.len;
        tk_ok(fms_origin_decode(back, bytes, FM_F32, o.type, fm_buf_span(&blocks),
                                fm_buf_span(&rest)));
        assert_memory_equal(back, wide, bytes);
        fm_free(back);
    } else {
        t->rest += bytes;
    }
    fm_buf_release(&blocks);
    fm_buf_release(&rest);
}

static void check_tensor(tally *t, fm_source *src, const fm_entry *e)
{
    const fm_provider p = fm_source_provider(src);
    uint64_t n = 0;
    uint8_t *raw = fm_malloc((size_t)e->bytes);
    tk_ok(fm_shape_elems(&n, &e->shape));
    float *wide = fm_malloc(n * sizeof(float));
    tk_ok(p.read(p.ctx, e, raw));
    tk_ok(fm_to_f32(wide, e->dtype, raw, n));
    for (uint64_t at = 0; at < n; at += FM_LEAF_BYTES / sizeof(float))
        check_leaf(t, e->dtype, wide + at,
                   (size_t)FM_MIN(n - at, FM_LEAF_BYTES / sizeof(float)) * sizeof(float));
    fm_free(raw);
    fm_free(wide);
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
    printf("%-7s %" PRIu64 " of %" PRIu64 " leaves; %" PRIu64 " blocks + %" PRIu64
           " rest, %.4f of the GGUF's %" PRIu64 "; %.0f MB/s of float32\n",
           kind, t.found, t.leaves, t.blocks, t.rest, (double)(t.blocks + t.rest) / (double)t.gguf,
           t.gguf, (double)t.f32 / t.seconds / 1e6);
    fflush(stdout);
    fm_source_close(src);
    fm_free(path);
    tk_assert_le((double)(t.blocks + t.rest), 1.001 * (double)t.gguf, "bytes");
}

TEST(every_leaf_comes_to_its_blocks)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(KIND); i++)
        check_file(KIND[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_leaf_comes_to_its_blocks),
    };
    char *path = tk_model("quantized/smollm2-Q8_0.gguf");

    if (!path)
        return tk_skip("needs what llama-quantize made of quantized/smollm2-bf16.gguf");
    fm_free(path);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
