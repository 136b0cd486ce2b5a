/* fast.h - modes fast and bf16 on a GPU: what their files share.
 *
 * A product y = x W^T has one order, whichever kernel computes it: k is cut into fmc_splits(k) <= 8
 * parts whose length depends on k alone; the sum of a part is a chain of mma over its steps of 16 k
 * from +0; parts are added in ascending order. W is always the first operand of mma (16 outputs),
 * rows of x the second. So a row's bits depend on that row and W alone: not on the number of rows
 * nor on the kernel, block or warp that computes it.
 *
 * W is stored as mma reads it: panels of 16 outputs, in them tiles of 64 k, in a tile the bytes of
 * lane after lane (tile.h). x is rounded to bf16 (f16 weights: to f16, after scaling by a power of
 * two that brings the row's largest value to 2^14) and packed in tiles of 8 rows by 64 k. */
#ifndef FM_INFER_CUDA_FAST_H
#define FM_INFER_CUDA_FAST_H

#include "infer/cuda/cuda.h"

#define FMC_OUTPUTS 16u  /* outputs of a panel */
#define FMC_TILE_K 64u   /* k of a tile */
#define FMC_TILE_ROWS 8u /* rows of a tile of x */
#define FMC_TILE_X 1024u /* bytes of a tile of x */
#define FMC_TILE_X8 576u /* bytes of a tile rounded to int8 (int8.h) */
#define FMC_STAGING_BYTES (32u << 20)
#define FMC_SPLITS_MAX 8u /* most parts of k; warps of the kernel for few rows */

/* The form in which a weight of these modes is kept. */
typedef enum fmc_kind {
    FMC_BF16,
    FMC_F16,
    FMC_PAIR, /* f32 as two bf16: rounded, and the remainder */
    FMC_Q8_0,
    FMC_Q4_0,
    FMC_Q4_1,
    FMC_Q4_K,
    FMC_Q6_K,
    FMC_E4M3, /* F8 whose values are all finite: others are kept as BF16 */
    FMC_E5M2,
    FMC_KINDS
} fmc_kind;

typedef struct fmc_fast_weight {
    uint32_t n, k;
    fm_role role;
    fmc_kind kind;
    unsigned char *tiles;  /* device */
    unsigned char *turned; /* device: W^T in the same form, for linear_dx; or NULL */
    uint64_t bytes;
    fm_weight *exact; /* mode bf16, low-rank factors: mode exact's weight; no other field is set */
    const float *(*exact_floats)(const fm_weight *w);
} fmc_fast_weight;

static inline fmc_fast_weight *fmc_fast_weight_of(const fm_weight *w)
{
    return (fmc_fast_weight *)(void *)w;
}

/* Kinds of plain numbers, whose products may keep the remainder of x too. */
static inline bool fmc_is_plain(fmc_kind kind)
{
    return kind == FMC_BF16 || kind == FMC_F16 || kind == FMC_PAIR || kind == FMC_E4M3 ||
           kind == FMC_E5M2;
}
/* Kinds whose products take x as int8. */
static inline bool fmc_is_int8(fmc_kind kind)
{
    return kind == FMC_Q8_0 || kind == FMC_Q4_0;
}
/* Whether FMC_FEW_DIRECT takes m rows of such a kind: as int8 they fit into shared memory. */
#define FMC_DIRECT8_ELEMENTS 16384u
static inline bool fmc_is_direct8(uint32_t m, uint32_t k)
{
    return m <= FMC_TILE_ROWS && (uint64_t)m * ((k + 63ull) / 64 * 64) <= FMC_DIRECT8_ELEMENTS;
}

static inline uint32_t fmc_ceil(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Tiles of 64 k in one part: k is cut into at most eight parts of at least 128 k. */
static inline uint32_t fmc_split_tiles(uint32_t k)
{
    uint32_t tiles = fmc_ceil(k, FMC_TILE_K), each = fmc_ceil(tiles, FMC_SPLITS_MAX);
    return each < 2 ? 2 : each;
}
static inline uint32_t fmc_splits(uint32_t k)
{
    return fmc_ceil(fmc_ceil(k, FMC_TILE_K), fmc_split_tiles(k));
}

/* One product of a launch. Sums times alpha, times the row's scale, + bias, + y where `add`. */
typedef struct fmc_job {
    float *y;
    size_t ldy;
    const unsigned char *w;
    const unsigned char *x, *rest; /* tiles; rest: of the remainder of rounding (split), or NULL */
    const float *row_scale;        /* [m] for f16, or NULL */
    const float *floats;           /* x unpacked, for the kernel that rounds it itself */
    size_t ldx;
    const float *bias;
    const int32_t *rows; /* NULL: first, first + 1, .. */
    float *parts;        /* sums of single parts [splits][m][n], or NULL */
    float alpha;
    uint32_t first, m, n, k;
    uint32_t begin; /* block at which it begins */
    uint32_t most;  /* rows that the blocks are counted for: m before the segment was settled */
    /* A segment (fm_product.from): k_fast_settle sets m, rows and the addresses of x from it. */
    const int32_t *from, *to;
    uint32_t nth;    /* its number among the segments that are packed one behind the other */
    bool int8;       /* x's tiles are int8 */
    bool add, dense; /* dense: rows of y are 0, 1, .. */
    bool across;     /* y is [n, m], and so are sums of parts: skinny.cu alone */
    /* y += tail_scale * u B^T after all of the above: u as k_wide_pack_tail packs it, B [n, tail_k]
     * PAIR. For sm90/product.cu alone; tail_k 0: no tail */
    const unsigned char *tail_x, *tail_w;
    uint32_t tail_k;
    float tail_scale;
} fmc_job;

/* Bytes of a tile of packed rows. */
static inline __host__ __device__ uint32_t fmc_row_tile(bool int8)
{
    return int8 ? FMC_TILE_X8 : FMC_TILE_X;
}

/* Rows of x to be packed. */
typedef struct fmc_pack {
    const float *x;
    size_t ld;
    const int32_t *rows;
    unsigned char *to, *rest; /* rest: NULL unless split */
    float *row_scale;         /* not NULL: f16 */
    bool scaled;              /* row_scale has been computed already */
    uint32_t first, m, k;
    uint32_t begin; /* block at which it begins */
    bool turned;    /* x is stored [k, m] */
    bool int8;
    const int32_t *from, *to_row; /* a segment; its tiles begin at fmc_segment_tile */
    uint32_t nth;
} fmc_pack;

/* From so many row tiles on a separate launch computes the rows' scales once, where packing uses
 * several blocks for a row; with fewer each block computes them itself, which costs less. */
#define FMC_POWERS_LEAST 32u

/* The tile of the packed rows at which the nth segment begins. Segments ascend and fill whole
 * tiles; b / 8 + n tiles always hold the segments before it, since b + c rows end in (b + c) / 8 >=
 * b / 8 + ceil(c / 8) - 1. */
static inline __host__ __device__ uint32_t fmc_segment_tile(uint32_t begin, uint32_t nth)
{
    return begin / FMC_TILE_ROWS + nth;
}

/* The kernels of products, chosen by the number of rows. */
enum {
    FMC_FEW_DIRECT, /* reads x unpacked */
    FMC_FEW,
    FMC_FEW_SPLIT,
    FMC_MANY_64,
    FMC_MANY_64_SPLIT,
    FMC_MANY_128,
    FMC_MANY_128_SPLIT,
    FMC_WAYS
};

typedef struct fmc_way {
    /* arguments: jobs, their number, stages of the ring */
    void (*run)(const fmc_job *, uint32_t, unsigned);
    /* Stages that the kernel is written for; `fewer` (0: the same) where two blocks with `stages`
     * do not fit on a multiprocessor; two where not even one block fits. */
    unsigned stages, fewer;
    unsigned stage_bytes, fixed_bytes, static_bytes; /* bytes of shared memory */
    unsigned rows, panels, threads;                  /* of a block; rows 0: all rows */
} fmc_way;

/* A low-rank term of the rows of a product, y += scale * u B^T, added once the product is complete:
 * it has the bits of a separate product (PAIR, split) that is added to y. */
typedef struct fmc_tail {
    const float *u;             /* [m, r]; row 0 belongs to the product's row `first` */
    const unsigned char *tiles; /* B [n, r], PAIR */
    uint32_t r;                 /* 0: no term */
    float scale;
} fmc_tail;

/* A product on packed operands, as the host describes it. */
typedef struct fmc_sum {
    fm_product p;               /* all but w */
    fmc_kind kind;              /* kind of the tiles */
    const unsigned char *tiles; /* W [n, k] */
    uint32_t n, k;
    const float *x;
    size_t ldx;
    bool turned; /* x is stored [k, m] */
    bool add;    /* y += */
    bool dense;  /* first and rows apply to x alone; y has rows 0, 1, .. */
    bool across; /* y is [n, m]: only where fmc_is_skinny; bias NULL, first 0 */
    float alpha;
    /* x in the layout of cuda/sm90/kernels.h (fmc_cores_bytes), or NULL: written by a thin product
     * of the same x, read by one for which fmc_sm90_takes is true. */
    unsigned char *cores;
    fmc_tail tail; /* likewise */
    /* Not NULL: x is silu(x) * up. skinny.cu alone. */
    const float *up;
} fmc_sum;

/* Bytes of rows in cores of 8 by 8, whole tiles of 64 k. */
static inline uint64_t fmc_cores_bytes(uint32_t m, uint32_t k)
{
    return (uint64_t)fmc_ceil(k, FMC_TILE_K) * fmc_ceil(m, FMC_TILE_ROWS) * FMC_TILE_X;
}

/* Reserves `more` bytes in a scratch of *bytes so far; returns their offset, 256-byte aligned. */
static inline uint64_t fmc_take(uint64_t *bytes, uint64_t more)
{
    uint64_t at = *bytes;
    *bytes += (more + 255) / 256 * 256;
    return at;
}

/* The rows of s as they are to be packed, from block `begin` on; `to` is not set. */
static inline fmc_pack fmc_pack_of(const fmc_sum *s, uint32_t begin)
{
    fmc_pack p = {};
    p.x = s->x;
    p.ld = s->ldx;
    p.rows = s->p.rows;
    p.first = s->p.rows ? 0 : s->p.first;
    p.m = s->p.m;
    p.k = s->k;
    p.turned = s->turned;
    p.begin = begin;
    return p;
}

typedef struct fmc_sm90_state fmc_sm90_state;
typedef struct fmc_sm908_state fmc_sm908_state;

/* A kernel's bits compared with those of the kernel for all GPUs. */
typedef enum fmc_verdict { FMC_UNKNOWN, FMC_EQUAL, FMC_OTHER } fmc_verdict;

/* The verdict after a trial of a kernel, before which no operation had failed. A refused launch of
 * the trial is cleared, and the kernel counts as different. */
fmc_verdict fmc_found(fmc_device *d, bool equal);

typedef struct fmc_fast {
    fm_backend exact;     /* the table of mode exact */
    pthread_mutex_t lock; /* staging, stream */
    cudaStream_t stream;  /* for weights that are being loaded */
    void *staging;
    unsigned *special;    /* device: set where a stored F8 is not finite */
    fmc_sm90_state *wide; /* NULL: not for this GPU */
    fmc_sm908_state *wide8;
    uint32_t *arrived; /* device [FMC_ARRIVED], zeros between kernels: blocks done of a work item of
                        * attention; NULL in mode bf16 */
    fmc_verdict wide_attention[2], wide_whole[2]; /* heads of up to 64 elements, of up to 128 */
} fmc_fast;

#define FMC_ARRIVED 65536u

static inline fmc_fast *fmc_fast_of(fm_backend *be)
{
    return (fmc_fast *)fmc_of(be)->fast;
}

/* cuda/sm90/product.cu: Hopper's kernels, on GPUs of that kind; FM_OK also where there are none. */
fm_status fmc_sm90_begin(fmc_device *d);
void fmc_sm90_end(fmc_device *d);
/* Queues the products of the list that such a kernel takes and that are not marked in taken [count]
 * yet, and marks them. */
void fmc_sm90_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken);
/* Whether such kernels take the whole list and are busy with it without splitting k over blocks;
 * then its x may come in cores, and products may have tails. */
bool fmc_sm90_takes(fmc_device *d, const fmc_sum *list, uint32_t count);
/* cuda/sm90/int8.cu: the same for products of whole numbers. */
fm_status fmc_sm908_begin(fmc_device *d);
void fmc_sm908_end(fmc_device *d);
void fmc_sm908_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken);
/* skinny.cu: likewise for few outputs of pairs; called before the others. Adjacent products of the
 * list with the same x read it once. */
bool fmc_is_skinny(const fmc_sum *s);
void fmc_thin_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken);

/* Bytes of the tiles of [n, k]. */
uint64_t fmc_tiles_bytes(fmc_kind kind, uint32_t n, uint32_t k);
/* f32 src [n, k] (ld apart, device; turned: [k, n]) into tiles of BF16 or PAIR, on the stream. */
void fmc_tiles_from_floats(fmc_device *d, fmc_kind kind, unsigned char *tiles, const float *src,
                           size_t ld, bool turned, uint32_t n, uint32_t k);
/* Makes the tiles of W^T [k, n] from tiles of BF16. */
void fmc_tiles_turn(fmc_device *d, unsigned char *to, const unsigned char *tiles, uint32_t n,
                    uint32_t k);
void fmc_fast_weight_install(fm_backend *be);

/* The product of x with the weight of p, alpha 1. */
fmc_sum fmc_sum_of(const fm_product *p, const float *x, size_t ldx);
/* Adds the sums of parts to y, for jobs that have them; changes `begin`. */
void fmc_add_parts(fmc_device *d, fmc_job *jobs, uint32_t count);
/* Queues a list of products in few launches, with FMC_SCRATCH_PRODUCT. */
void fmc_sums(fmc_device *d, const fmc_sum *list, uint32_t count);
void fmc_fast_product_install(fm_backend *be);
/* int8.cu: the kernels of a kind that fmc_is_int8. */
void fmc_int8_ways(fmc_way way[FMC_WAYS], fmc_kind kind);
/* Requests the shared memory that the kernels of this mode need. */
fm_status fmc_fast_product_open(fmc_device *d);

void fmc_fast_lora_install(fm_backend *be);
/* Attention, and pages of keys and values. */
void fmc_fast_attention_install(fm_backend *be);
/* Mode bf16: gradients and updates; called after the others. */
void fmc_fast_train_install(fm_backend *be);
void fmc_fast_attention_train_install(fm_backend *be);

#endif
