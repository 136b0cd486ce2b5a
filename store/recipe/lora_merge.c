/* lora_merge.c - W += scale * (B A), in the order of PEFT's float32 merge on a CPU.
 *
 * Per element: a chain of fused multiply-adds over ascending rank from zero, then one product with
 * scale, then one addition. Tiles of rows and columns change no bit. */
#include "store/source.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

enum { SPAN = 64, FEW_RANKS = 48 };

/* ==== few ranks: row by row ==== */

static inline __attribute__((always_inline)) void
merge_row(float *w, const float *a, const float *b, uint64_t in, uint64_t r, float scale)
{
    float sum[SPAN];

    for (uint64_t at = 0; at < in; at += SPAN) {
        const uint64_t n = FM_MIN(in - at, (uint64_t)SPAN);
        for (uint64_t j = 0; j < n; j++)
            sum[j] = 0.0f;
        for (uint64_t k = 0; k < r; k++) {
            const float bk = b[k];
            const float *ak = a + k * in + at;
            for (uint64_t j = 0; j < n; j++)
                sum[j] = fmaf(bk, ak[j], sum[j]);
        }
        for (uint64_t j = 0; j < n; j++) {
            const float delta = sum[j] * scale;
            w[at + j] += delta;
        }
    }
}

static void merge_plain(float *w, const float *a, const float *b, uint64_t out, uint64_t in,
                        uint64_t r, float scale)
{
    for (uint64_t o = 0; o < out; o++)
        merge_row(w + o * in, a, b + o * r, in, r, scale);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same code with the FMA instruction: without it fmaf is a call per element. */
__attribute__((target("avx2,fma"))) static void merge_fma(float *w, const float *a, const float *b,
                                                          uint64_t out, uint64_t in, uint64_t r,
                                                          float scale)
{
    for (uint64_t o = 0; o < out; o++)
        merge_row(w + o * in, a, b + o * r, in, r, scale);
}
#endif

/* ==== many ranks: tiles ==== */

/* A panel of rows meets COLUMNS columns of A at a time, DEPTH ranks of them in one piece of memory,
 * so that a quad of rows keeps its sums in registers. */
enum { QUAD = 4, COLUMNS = 16, PANEL = 128, DEPTH = 256 };

typedef struct tile {
    float sum[PANEL][COLUMNS];
    float a[DEPTH][COLUMNS];
} tile;

/* Adds the products of `depth` ranks to the sums of one row; b: their first factor. */
static void add_ranks(tile *t, uint64_t row, const float *b, uint64_t depth)
{
    for (uint64_t k = 0; k < depth; k++)
        for (int j = 0; j < COLUMNS; j++)
            t->sum[row][j] = fmaf(b[k], t->a[k][j], t->sum[row][j]);
}

/* Columns [at, at + n) of ranks [k, k + depth), zeros behind them. */
static inline __attribute__((always_inline)) void
gather(tile *t, const float *a, uint64_t in, uint64_t at, uint64_t n, uint64_t k, uint64_t depth)
{
    for (uint64_t d = 0; d < depth; d++) {
        for (uint64_t j = 0; j < n; j++)
            t->a[d][j] = a[(k + d) * in + at + j];
        for (uint64_t j = n; j < COLUMNS; j++)
            t->a[d][j] = 0.0f;
    }
}

static void add_sums(float *w, const tile *t, uint64_t rows, uint64_t in, uint64_t n, float scale)
{
    for (uint64_t o = 0; o < rows; o++)
        for (uint64_t j = 0; j < n; j++) {
            const float delta = t->sum[o][j] * scale;
            w[o * in + j] += delta;
        }
}

/* The products of a panel's rows with `depth` ranks, into its sums. */
typedef void (*panel_fn)(tile *t, const float *b, uint64_t rows, uint64_t r, uint64_t depth);

static void panel_plain(tile *t, const float *b, uint64_t rows, uint64_t r, uint64_t depth)
{
    for (uint64_t o = 0; o < rows; o++)
        add_ranks(t, o, b + o * r, depth);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* The same with the FMA instruction: without it fmaf is a call per element. */
__attribute__((target("avx2,fma"))) static void quad_fma(tile *t, uint64_t row, const float *b,
                                                         uint64_t r, uint64_t depth)
{
    __m256 sum[QUAD][2];

    for (int i = 0; i < QUAD; i++) {
        sum[i][0] = _mm256_loadu_ps(t->sum[row + (uint64_t)i]);
        sum[i][1] = _mm256_loadu_ps(t->sum[row + (uint64_t)i] + 8);
    }
    for (uint64_t k = 0; k < depth; k++) {
        const __m256 x = _mm256_loadu_ps(t->a[k]), y = _mm256_loadu_ps(t->a[k] + 8);
        for (int i = 0; i < QUAD; i++) {
            const __m256 f = _mm256_set1_ps(b[(uint64_t)i * r + k]);
            sum[i][0] = _mm256_fmadd_ps(f, x, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(f, y, sum[i][1]);
        }
    }
    for (int i = 0; i < QUAD; i++) {
        _mm256_storeu_ps(t->sum[row + (uint64_t)i], sum[i][0]);
        _mm256_storeu_ps(t->sum[row + (uint64_t)i] + 8, sum[i][1]);
    }
}

__attribute__((target("avx2,fma"))) static void row_fma(tile *t, uint64_t row, const float *b,
                                                        uint64_t depth)
{
    __m256 sum[2] = {_mm256_loadu_ps(t->sum[row]), _mm256_loadu_ps(t->sum[row] + 8)};

    for (uint64_t k = 0; k < depth; k++) {
        const __m256 f = _mm256_set1_ps(b[k]);
        sum[0] = _mm256_fmadd_ps(f, _mm256_loadu_ps(t->a[k]), sum[0]);
        sum[1] = _mm256_fmadd_ps(f, _mm256_loadu_ps(t->a[k] + 8), sum[1]);
    }
    _mm256_storeu_ps(t->sum[row], sum[0]);
    _mm256_storeu_ps(t->sum[row] + 8, sum[1]);
}

static void panel_fma(tile *t, const float *b, uint64_t rows, uint64_t r, uint64_t depth)
{
    uint64_t o = 0;

    for (; o + QUAD <= rows; o += QUAD)
        quad_fma(t, o, b + o * r, r, depth);
    for (; o < rows; o++)
        row_fma(t, o, b + o * r, depth);
}
#endif

static panel_fn panel_of_cpu(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
        return panel_fma;
#endif
    return panel_plain;
}

static void merge_tiles(float *w, const float *a, const float *b, uint64_t out, uint64_t in,
                        uint64_t r, float scale)
{
    const panel_fn panel = panel_of_cpu();
    tile t;

    for (uint64_t o = 0; o < out; o += PANEL) {
        const uint64_t rows = FM_MIN(out - o, (uint64_t)PANEL);
        for (uint64_t at = 0; at < in; at += COLUMNS) {
            const uint64_t n = FM_MIN(in - at, (uint64_t)COLUMNS);
            memset(t.sum, 0, (size_t)rows * sizeof t.sum[0]);
            for (uint64_t k = 0; k < r; k += DEPTH) {
                const uint64_t depth = FM_MIN(r - k, (uint64_t)DEPTH);
                gather(&t, a, in, at, n, k, depth);
                panel(&t, b + o * r + k, rows, r, depth);
            }
            add_sums(w + o * in + at, &t, rows, in, n, scale);
        }
    }
}

void fm_lora_merge(float *w, const float *a, const float *b, uint64_t out, uint64_t in, uint64_t r,
                   float scale)
{
    if (r > FEW_RANKS) {
        merge_tiles(w, a, b, out, in, r, scale);
        return;
    }
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        merge_fma(w, a, b, out, in, r, scale);
        return;
    }
#endif
    merge_plain(w, a, b, out, in, r, scale);
}
