/* bench_kit.h - what the benchmarks share: clocks, figures of many turns, the machine's limits,
 * SmolLM2 in its forms, children made of noise, and programs run beside ours.
 *
 * Machines are shared and clocks wander, so everything that is compared takes turns in one run, the
 * best turn counts, and the median stands beside it to show the noise. */
#ifndef FM_TESTS_BENCH_KIT_H
#define FM_TESTS_BENCH_KIT_H

#include <sys/types.h>

#include "infer/model.h"
#include "tests/model/infer_kit.h"

/* ==== clocks and figures ==== */

double bk_now_s(void); /* wall */
double bk_cpu_s(void); /* of this thread */
/* What work is timed by: this thread's clock where there is one thread, which other programs on the
 * machine hardly disturb, else the wall's. Sets oneDNN's threads too. */
void bk_clock(unsigned threads);
double bk_work_s(void);
void bk_rest(void); /* 20 ms: OpenMP's idle threads spin for a while and would be charged to us */

#define BK_MAX_TURNS 64
typedef struct bk_figure { /* rates: more is better */
    double v[BK_MAX_TURNS];
    uint32_t n;
} bk_figure;
void bk_add(bk_figure *f, double v); /* beyond BK_MAX_TURNS the last is replaced */
double bk_best(const bk_figure *f);  /* 0 without turns */
double bk_median(const bk_figure *f);
int bk_compare(const void *a, const void *b); /* doubles, for qsort */

/* ==== limits of the machine ==== */

enum { BK_INT8, BK_BF16, BK_F32, BK_KINDS };
extern const char *const bk_kind_name[BK_KINDS];

/* Rates seen so far in this run, each raised by bk_limits_take. */
typedef struct bk_limits {
    double read1_gbs, read_gbs; /* memory, one word of every line of 512 MiB; 1 thread, all */
    double onednn[BK_KINDS];    /* 1e9 operations a second of oneDNN's matmul, all threads */
    double peak[BK_KINDS];      /* of a loop that only multiplies registers; 0: not on this CPU */
} bk_limits;
void bk_limits_take(bk_limits *l, fm_pool *pool);
void bk_limits_print(const bk_limits *l, unsigned threads);
double bk_memory_gbs(fm_pool *pool); /* NULL: this thread */
/* 1e9 operations a second of register-only dot products (int8: u8 x s8, 32-bit sums). */
double bk_peak_gops(fm_pool *pool, int kind);
const char *bk_cpu_name(char *out, size_t out_bytes);

/* ==== oneDNN's matmul: y[m, n] f32 (int8: s32) = x[m, k] w[n, k]^T, weights packed before ==== */

typedef struct bk_product bk_product;
bk_product *bk_product_open(int kind, int64_t m, int64_t n, int64_t k); /* data of its own */
void bk_product_run(bk_product *p);
void bk_product_close(bk_product *p);
/* Best seconds of one product in a turn of turn_s. */
double bk_product_s(bk_product *p, double turn_s);

/* ==== SmolLM2 and its children ==== */

enum { BK_Q4_1, BK_Q8_0, BK_BF16_FILE, BK_Q4_K_M, BK_IQ4_XS, BK_MXFP4, BK_FILES };
extern const char *const bk_file_name[BK_FILES];
/* NULL where the file is not on this machine; fm_free. The Q4_1 of "smollm2" as the tests find it,
 * the others in FM_LLAMA/models, where build_llama.sh puts them: "smollm2", "shape-1b", .. */
char *bk_model_file(const char *model, int file);

/* FM_EUNSUPPORTED for a mode that this build lacks. */
fm_status bk_engine(fm_engine **out, unsigned threads, const char *mode, uint32_t max_rows);

/* Stem plus one adapter or own weights, of noise that `seed` picks. *bytes: what a step must read
 * beyond the stem: factors at 2 bytes, vectors at 4, own weights as stored. */
typedef enum bk_child {
    BK_STEM,
    BK_LORA,
    BK_IA3,
    BK_PREFIX,
    BK_FULL_UPPER,
    BK_LORA_UPPER
} bk_child; /* of the upper half of the layers alone */
fm_status bk_child_load(fm_model **out, fm_engine *e, const fm_source *src, bk_child kind,
                        uint32_t rank, uint32_t seed, double *bytes);

double bk_matrix_bytes(const fm_source *src); /* matrices as stored: what a decode step reads */
double bk_linear_params(const fm_arch *a);    /* of the layers */
double bk_prefill_ops(const fm_arch *a, double tokens); /* logits for the last row alone */

/* ==== programs beside ours ==== */

/* Starts argv (NULL-ended; PATH is searched) with its standard output in *fd and its standard error
 * dropped; -1 where it cannot. The caller closes fd and waits for it. */
pid_t bk_start(const char *const *argv, int *fd);
/* Standard output of argv as JSON; NULL where it fails. */
fm_json *bk_run_json(const char *const *argv);
/* FM_LLAMA/name where it is there, else NULL; fm_free. */
char *bk_llama(const char *name);

#endif
