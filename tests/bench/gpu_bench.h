/* gpu_bench.h - what the files of bench_gpu share: the GPU, its limits, turns, the report. */
#ifndef FM_TESTS_BENCH_GPU_BENCH_H
#define FM_TESTS_BENCH_GPU_BENCH_H

#include "infer/device/module.h"
#include "tests/bench/gpu_work.h"

typedef struct gb {
    const fm_module *module;
    fm_backend *be;
    bool tiny, json;
    double turn_s;           /* least length of one of the five turns */
    double bytes_s, flops_s; /* measured limits */
    const char *flops_from;  /* what measured flops_s */
    uint32_t lines;          /* of the report so far */
    void *ptr[128];          /* device memory of the part that runs */
    uint32_t ptrs;
} gb;

void gb_must(fm_status rc, const char *what); /* ends the program */
/* Device memory filled with small numbers of both signs; gb_release frees all of a part. */
void *gb_random(gb *g, size_t bytes);
float *gb_floats(gb *g, size_t n);
int32_t *gb_count(gb *g, uint32_t n); /* 0 .. n - 1 */
void gb_release(gb *g);
fm_weight *gb_weight(gb *g, fm_role role, fm_dtype d, uint32_t n, uint32_t k);

/* Median seconds of one run of fn, of five turns after a warm one. Or of its replay, as a server
 * runs decode steps: recorded once, where the GPU can. */
typedef void (*gb_fn)(gb *g, void *ctx);
double gb_time(gb *g, gb_fn fn, void *ctx);
double gb_time_replayed(gb *g, gb_fn fn, void *ctx);

/* One line: seconds, and the bound (bytes over bandwidth or operations over the peak) as a
 * share. */
void gb_report(gb *g, const char *what, double s, double bound_s, const char *limit);

/* gpu_library.c: seconds of cuBLASLt's y = x W^T in bf16 with f32 sums, its best algorithm first;
 * 0: the library is not on this machine. */
double gb_library_s(gb *g, uint32_t m, uint32_t n, uint32_t k);

/* gpu_torch.c: seconds of a request of gpu_torch.py, 0: there is none. */
double gb_torch_s(const gb *g, const char *request);
void gb_torch_end(void);
/* A line that sets s beside torch's time, where there is one. */
void gb_beside_torch(gb *g, const char *what, double s, const char *request);

/* ---- a layer of random weights and its products, in the lists that the engine makes ---- */

#define GB_RANK 16u
#define GB_CHILDREN 64u

typedef struct gb_layer {
    const gw_model *model;
    uint32_t m;
    fm_weight *w[GW_PRODUCTS];
    float *y[GW_PRODUCTS], *x[GW_PRODUCTS];
    uint32_t n[GW_PRODUCTS], k[GW_PRODUCTS];
    /* low-rank terms */
    uint32_t terms;
    fm_weight *a[GW_PRODUCTS][GB_CHILDREN], *b[GW_PRODUCTS][GB_CHILDREN];
} gb_layer;

void gb_layer_open(gb *g, gb_layer *l, const gw_model *model, fm_dtype d, uint32_t m);
void gb_layer_close(gb *g, gb_layer *l); /* and gb_release */
void gb_layer_products(gb *g, void *layer);
/* Whether the mode keeps weights of this type. */
bool gb_has_type(gb *g, fm_dtype d);
/* n numbers base + step * (i / each). */
int32_t *gb_filled(gb *g, uint32_t n, uint32_t each, int32_t base, int32_t step);
/* Pages of keys and values, written through the seam. */
fm_kv_view gb_pages(gb *g, const gw_model *m, uint32_t pages);

/* gpu_parts.c, gpu_model.c, gpu_moe.c, gpu_load.c: what is timed */
void gb_decode(gb *g);
void gb_prefill(gb *g);
void gb_lora(gb *g);
void gb_attention(gb *g);
void gb_train(gb *g);
void gb_model(gb *g);
void gb_moe(gb *g);
void gb_load(gb *g);

#endif
