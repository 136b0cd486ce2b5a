/* gpu_work.h - the least that a GPU must do for the work that bench_gpu times: bytes that must
 * cross its memory once (inputs read, results written), and floating-point operations. */
#ifndef FM_TESTS_BENCH_GPU_WORK_H
#define FM_TESTS_BENCH_GPU_WORK_H

#include "store/tensor.h"

typedef struct gw_model {
    const char *name;
    uint32_t h, inter, nh, nkv, hd, layers, vocab;
} gw_model;

static const gw_model gw_1b = {"1B", 2048, 8192, 32, 8, 64, 16, 128256};   /* as Llama 3.2 1B */
static const gw_model gw_7b = {"7B", 4096, 11008, 32, 32, 128, 32, 32000}; /* as Llama 2 7B */
static const gw_model gw_tiny = {"tiny", 256, 256, 4, 2, 64, 2, 300};      /* for the emulator */

#define GW_PRODUCTS 7u

/* Outputs and k of a layer's products: q, k, v, o, gate, up, down. */
static inline void gw_product(const gw_model *m, uint32_t i, uint32_t *n, uint32_t *k)
{
    const uint32_t q = m->nh * m->hd, kv = m->nkv * m->hd;
    const uint32_t ns[GW_PRODUCTS] = {q, kv, kv, m->h, m->inter, m->inter, m->h};
    const uint32_t ks[GW_PRODUCTS] = {m->h, m->h, m->h, q, m->h, m->h, m->inter};

    *n = ns[i];
    *k = ks[i];
}

static inline double gw_weight_bytes(fm_dtype d, uint32_t n, uint32_t k)
{
    const fm_dtype_info *info = fm_dtype_get(d);
    return (double)n * k / info->block_elems * info->block_bytes;
}

/* m rows: the weights of a layer once, x of each group (q k v; o; gate up; down) once, y once. */
static inline double gw_layer_bytes(const gw_model *model, fm_dtype d, uint32_t m)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t n, k;
        gw_product(model, i, &n, &k);
        bytes += gw_weight_bytes(d, n, k) + 4.0 * m * n;
        if (i == 0 || i == 3 || i == 4 || i == 6)
            bytes += 4.0 * m * k;
    }
    return bytes;
}

static inline double gw_layer_flops(const gw_model *model, uint32_t m)
{
    double flops = 0.0;
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t n, k;
        gw_product(model, i, &n, &k);
        flops += 2.0 * m * n * k;
    }
    return flops;
}

/* Factors of `terms` children on every product of a layer, as bf16; x, y as gw_layer_bytes has them
 * already, but that y is read once more and written once more. */
static inline double gw_lora_bytes(const gw_model *model, uint32_t terms, uint32_t r, uint32_t m)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < GW_PRODUCTS; i++) {
        uint32_t n, k;
        gw_product(model, i, &n, &k);
        bytes += 2.0 * terms * r * ((double)n + k) + 8.0 * m * n;
    }
    return bytes;
}

/* m rows that see `positions` each: page bytes of keys and values as the backend keeps them, q and
 * out as floats. */
static inline double gw_decode_bytes(const gw_model *m, uint32_t rows, uint32_t positions,
                                     double page_bytes)
{
    double pages = (double)((positions + 31) / 32);
    return rows * (2.0 * pages * page_bytes + 8.0 * m->nh * m->hd);
}

/* A causal sequence of t: scores and sums over values, 2 each. */
static inline double gw_prefill_flops(const gw_model *m, uint32_t t)
{
    return 4.0 * m->nh * m->hd * ((double)t * (t + 1.0) / 2.0);
}

/* A decode step of the whole model on m rows that see `positions` each: layers, head and its
 * logits, which are written and read once. */
static inline double gw_step_bytes(const gw_model *model, fm_dtype d, uint32_t m,
                                   uint32_t positions, double page_bytes)
{
    return model->layers *
               (gw_layer_bytes(model, d, m) + gw_decode_bytes(model, m, positions, page_bytes)) +
           gw_weight_bytes(d, model->vocab, model->h) + 8.0 * m * model->vocab;
}

/* A layer's branch with experts. */
typedef struct gw_moe {
    const char *name;
    uint32_t h, inter, experts, chosen;
} gw_moe;

static const gw_moe gw_30b_a3b = {"30B-A3B", 2048, 768, 128, 8}; /* as Qwen 3 30B-A3B */
static const gw_moe gw_moe_tiny = {"tiny", 256, 64, 8, 2};

/* m rows that go to `distinct` experts: those experts' weights once, the router's, and each row of
 * x and y of every product once. */
static inline double gw_moe_bytes(const gw_moe *w, fm_dtype d, uint32_t m, uint32_t distinct)
{
    double rows = (double)m * w->chosen;
    return distinct *
               (2.0 * gw_weight_bytes(d, w->inter, w->h) + gw_weight_bytes(d, w->h, w->inter)) +
           gw_weight_bytes(d, w->experts, w->h) + 4.0 * m * ((double)w->h + w->experts) +
           4.0 * rows * (2.0 * w->h + 3.0 * w->inter);
}

static inline double gw_moe_flops(const gw_moe *w, uint32_t m)
{
    return 2.0 * m * ((double)w->h * w->experts + 3.0 * w->chosen * (double)w->h * w->inter);
}

/* A LoRA step of a layer: forward and the gradient of its input through frozen weights. */
static inline double gw_lora_step_flops(const gw_model *m, uint32_t rows)
{
    return 2.0 * gw_layer_flops(m, rows);
}

#endif
