/* product.h - products of two matrices in mode exact; a list of them is one launch.
 *
 * Every output is one chain of fmaf over ascending k, restarted every FM_K_BLOCK, blocks added in
 * ascending order (KERNELS.md), whatever kernel computes it. */
#ifndef FM_INFER_CUDA_PRODUCT_H
#define FM_INFER_CUDA_PRODUCT_H

#include "infer/cuda/exact/weight.h"

typedef enum fmc_product_kind {
    FMC_ROWS,     /* element (i, k) at p[row(i) * ld + k] */
    FMC_COLUMNS,  /* at p[k * ld + i] */
    FMC_WEIGHT,   /* W[i][k] */
    FMC_WEIGHT_T, /* W[k][i] */
} fmc_product_kind;

typedef struct fmc_operand {
    fmc_product_kind kind;
    bool aligned; /* set by fmc_products_run */
    const float *p;
    size_t ld;
    const int32_t *rows; /* FMC_ROWS: row(i); NULL: i */
    fmc_matrix w;
} fmc_operand;

/* c(i, j) = alpha * a(i, .) b(j, .), i < m, j < n, over k >= 1; added to c if add; + bias[j]. */
typedef struct fmc_task {
    fmc_operand a, b; /* a is no weight */
    float *c;         /* (i, j) at c[row(i) * step_i + j * step_j] */
    size_t step_i, step_j;
    const int32_t *rows; /* row(i); NULL: i */
    /* Not NULL: c's rows, and a's where it has a list, are the segment (fm_product.from) of their
     * lists, m rows at most. */
    const int32_t *from, *to;
    const float *bias; /* or NULL */
    float *part;       /* set by fmc_products_run: sums of blocks of k, [blocks, m, n]; or NULL */
    uint32_t m, n, k;
    float alpha;
    bool add;
} fmc_task;

/* Runs a list in host memory, whose tasks it may transpose. No element of c is written by two
 * tasks, or read by one. */
void fmc_products_run(fmc_device *d, fmc_task *list, uint32_t count);

static inline fmc_operand fmc_rows(const float *p, size_t ld, const int32_t *rows)
{
    fmc_operand o = fmc_operand();
    o.kind = FMC_ROWS;
    o.p = p;
    o.ld = ld;
    o.rows = rows;
    return o;
}
static inline fmc_operand fmc_columns(const float *p, size_t ld)
{
    fmc_operand o = fmc_rows(p, ld, NULL);
    o.kind = FMC_COLUMNS;
    return o;
}
static inline fmc_operand fmc_weight(const fmc_exact_weight *w, bool turned)
{
    fmc_operand o = fmc_operand();
    o.kind = turned ? FMC_WEIGHT_T : FMC_WEIGHT;
    o.w = w->m;
    return o;
}
static inline fmc_task fmc_task_of(float *c, size_t ldc, fmc_operand a, fmc_operand b, uint32_t m,
                                   uint32_t n, uint32_t k)
{
    fmc_task t = fmc_task();
    t.a = a;
    t.b = b;
    t.c = c;
    t.step_i = ldc;
    t.step_j = 1;
    t.m = m;
    t.n = n;
    t.k = k;
    t.alpha = 1.0f;
    return t;
}

/* The task that a block of a grouped launch belongs to; first [count + 1]: where each task's blocks
 * begin, ascending. */
FMC_DEVICE uint32_t fmc_find(const uint32_t *first, uint32_t count, uint32_t block)
{
    uint32_t lo = 0;
    while (count > 1) {
        uint32_t half = count / 2;
        if (first[lo + half] <= block)
            lo += half;
        count -= half;
    }
    return lo;
}

/* Copies a task to shared memory, where it takes no registers. All threads call it. */
template <class Task> FMC_DEVICE void fmc_read_task(Task *mine, const Task *o)
{
    const uint32_t *from = (const uint32_t *)(const void *)o;
    uint32_t *to = (uint32_t *)(void *)mine;
    for (uint32_t i = threadIdx.x; i < sizeof *o / 4; i += blockDim.x)
        to[i] = from[i];
    __syncthreads();
}

#if !defined(__CUDACC__)
#define __grid_constant__
#endif
#define FMC_INLINE_BYTES 2048u

/* A list as a kernel's parameter: a short one is in the parameter, a longer one on the GPU. */
template <class Task> struct fmc_list {
    enum { most = FMC_INLINE_BYTES / (sizeof(Task) + sizeof(uint32_t)) };
    const Task *far;
    const uint32_t *far_first;
    uint32_t count;
    uint32_t near_first[most + 1];
    Task near[most];
};
template <class Task> FMC_DEVICE const Task *fmc_tasks(const fmc_list<Task> &l)
{
    return l.far ? l.far : l.near;
}
template <class Task> FMC_DEVICE const uint32_t *fmc_first(const fmc_list<Task> &l)
{
    return l.far ? l.far_first : l.near_first;
}

/* Copies tasks [count] of `each` bytes and first [count + 1] to the GPU at once; returns the tasks.
 * NULL: failed, which is kept for sync; count at most fmc_group_most(each). */
const void *fmc_group(fmc_device *d, const void *tasks, size_t each, const uint32_t *first,
                      uint32_t count, const uint32_t **first_out);
/* False: failed, which is kept for sync. */
template <class Task>
static inline bool fmc_list_of(fmc_list<Task> *l, fmc_device *d, const Task *tasks,
                               const uint32_t *first, uint32_t count)
{
    memset((void *)l, 0, sizeof *l);
    l->count = count;
    if (count <= fmc_list<Task>::most) {
        memcpy((void *)l->near, tasks, count * sizeof *tasks);
        memcpy(l->near_first, first, (count + 1) * sizeof *first);
        return true;
    }
    l->far = (const Task *)fmc_group(d, tasks, sizeof *tasks, first, count, &l->far_first);
    return l->far != NULL;
}
static inline uint32_t fmc_group_most(size_t each)
{
    return (uint32_t)((FMC_ARGS_MAX - 512) / (each + sizeof(uint32_t)));
}

#endif
