/* cuda.h - inside of the CUDA backend: what its files share. One file of operations each, as beside
 * it in infer/cpu; README.md has the table of kernels.
 *
 * Operations come from one thread at a time and are queued on `stream`; memory and weights may be
 * asked for by any thread (`lock` guards what they share). The first failure sticks until sync. */
#ifndef FM_INFER_CUDA_CUDA_H
#define FM_INFER_CUDA_CUDA_H

#include <pthread.h>

#include "infer/cuda/device.h"
#include "infer/device/module.h"

/* Host memory on its way to the GPU: two halves, each free again when its event has passed. */
typedef struct fmc_ring {
    unsigned char *host, *dev; /* pinned; device memory of the same size */
    size_t cap_bytes, at;
    cudaEvent_t passed[2];
    bool used[2];
} fmc_ring;

typedef struct fmc_scratch {
    void *bytes; /* device */
    size_t cap_bytes;
} fmc_scratch;

/* Scratch that became too small: recorded steps know its address, so it stays until the end. */
typedef struct fmc_outgrown {
    void *bytes; /* device */
    struct fmc_outgrown *next;
} fmc_outgrown;

enum {
    FMC_SCRATCH_PRODUCT,
    FMC_SCRATCH_ATTENTION,
    FMC_SCRATCH_LOSS,
    FMC_SCRATCH_OTHER,
    FMC_SCRATCH_CORES, /* rows packed by one operation for another of the same call */
    FMC_SCRATCHES
};

/* Lists of operations while a step is being recorded: they must stay where they are for as long as
 * the recording lives. */
typedef struct fmc_arena fmc_arena;

#define FMC_TICKETS 8u /* fetches whose events are kept apart */

typedef struct fmc_device {
    fm_backend be; /* first: an fm_backend * of ours is an fmc_device * */
    uint32_t ordinal;
    int multiprocessors, shared_max; /* bytes of shared memory that a block may ask for */
    int capability;                  /* 90: sm_90 */
    char isa[16];
    fm_pool *pool;
    /* line: where all stands in order; stream: where operations are launched, which is line unless
     * a step is being recorded or they stand aside; copy: large uploads and clearing. */
    cudaStream_t line, stream, copy;
    cudaEvent_t mark;
    pthread_mutex_t lock; /* ring, copy, mark */
    fmc_ring ring;
    fmc_scratch scratch[FMC_SCRATCHES]; /* of the thread of operations */
    fmc_outgrown *outgrown;
    struct fmc_room *rooms;         /* vmm.cu; under the lock */
    fmc_arena *arena;               /* not NULL: a step is being recorded */
    struct fmc_graphs *graphs;      /* graph.cu; NULL until a step is recorded */
    struct fmc_side_stream *second; /* side_stream.cu; NULL until something stands there */
    cudaEvent_t ticket[FMC_TICKETS];
    uint64_t tickets; /* ever given */
    void *fast;       /* cuda/mma/fast.cu's state in mode fast */
    struct fmc_known
        *known; /* kernels of which fmc_may_begin_soon was asked; of the thread of operations */
    bool never_soon;
    fm_status failed;
    char why[512];
} fmc_device;

static inline fmc_device *fmc_of(fm_backend *be)
{
    return (fmc_device *)(void *)be;
}

/* ---- cuda.cu ---- */

/* Sets the caller's error text; returns rc. Any thread. */
fm_status fmc_fail(fm_status rc, const char *fmt, ...) FM_PRINTF(2, 3);
/* Host memory, zeroed, 64-byte aligned; NULL: there is none. fmc_release takes NULL too. */
void *fmc_take(size_t bytes);
void fmc_release(void *p);
/* The status for e, with the text "what: ..."; FM_OK for cudaSuccess. */
fm_status fmc_status(cudaError_t e, const char *what);
/* Remembers the first failure for sync. */
void fmc_stick(fmc_device *d, fm_status rc, const char *text);
/* After a launch: sticks what the runtime says of it. */
void fmc_launched(fmc_device *d, const char *kernel);
/* Device memory of at least bytes until the next call for the same slot; NULL: failed, sticks. */
void *fmc_scratch_get(fmc_device *d, unsigned slot, size_t bytes);
/* A copy of bytes of the host's on the device, 256-byte aligned, for the operations that are queued
 * next (up to FMC_ARGS_MAX bytes of such copies), which do not write to it: a recorded step has it
 * from one replay to the next. NULL: failed, sticks. */
#define FMC_ARGS_MAX (1u << 20)
void *fmc_args(fmc_device *d, const void *host, size_t bytes);

/* The GPU that this thread's calls go to, -1: nobody has said so yet. Asking the driver for each
 * launch costs as much as a launch's queueing; so it is asked where the thread turns to another
 * GPU, and anew where the host waits or a step is recorded or replayed. Code that is not this
 * module's and leaves a thread on another GPU in between has to put it back (fmc_enter_anew
 * behind calls of libraries that may not). */
extern __thread int fmc_here;
void fmc_enter_anew(const fmc_device *d);
static inline void fmc_enter(const fmc_device *d)
{
    if (fmc_here != (int)d->ordinal)
        fmc_enter_anew(d);
}

/* Whether what runs of this kernel on the GPU is sm_90's code, which waits for its turn: machine
 * code that was made of older PTX does not. FMSTORE_CUDA_PDL=0: never. */
bool fmc_may_begin_soon(fmc_device *d, const void *kernel);

/* Launches a kernel of this backend unless something failed before. A template in parentheses. */
#define FMC_RUN(d, kernel, grid, block, shared_bytes, ...)                                         \
    do {                                                                                           \
        if ((d)->failed == FM_OK) {                                                                \
            fmc_enter(d);                                                                          \
            FMC_LAUNCH(kernel, grid, block, shared_bytes, (d)->stream, __VA_ARGS__);               \
            fmc_launched((d), #kernel);                                                            \
        }                                                                                          \
    } while (0)

/* Likewise, a kernel that calls fmc_wait_for_turn: it begins before its turn where GPU and code
 * can do that. */
#define FMC_RUN_PDL(d, kernel, grid, block, shared_bytes, ...)                                     \
    do {                                                                                           \
        if ((d)->failed == FM_OK) {                                                                \
            fmc_enter(d);                                                                          \
            if (fmc_may_begin_soon((d), (const void *)(kernel)))                                   \
                FMC_LAUNCH_PDL(kernel, grid, block, shared_bytes, (d)->stream, __VA_ARGS__);       \
            else                                                                                   \
                FMC_LAUNCH(kernel, grid, block, shared_bytes, (d)->stream, __VA_ARGS__);           \
            fmc_launched((d), #kernel);                                                            \
        }                                                                                          \
    } while (0)

/* Of a task at work: a segment of a list whose length the device alone knows (fm_product.from)
 * becomes rows and m. True where that is none; the same for all threads of a block. */
template <class Task> static __device__ __forceinline__ bool fmc_settle(Task *t)
{
    if (!t->from)
        return t->m == 0;
    const int32_t begin = *t->from;
    t->m = (uint32_t)(*t->to - begin);
    t->rows += begin;
    return t->m == 0;
}

/* cuda/exact/elem.cu: keep_rows of more rows than its kernel is for, by rope and kv_write; false:
 * not so many. */
bool fmc_keep_apart(fm_backend *be, const fm_new_rows *r);

/* ---- what mode exact has: fmc_op_<op>, each in the file of its family ---- */

/* clang-format off */
#define FMC_OPS(X)                                                                                 \
    FM_BACKEND_FORWARD(X)                                                                          \
    FM_BACKEND_TRAINING(X)                                                                         \
    X(weight_image) X(weight_map) X(weight_floats) X(keep_stored) X(add_rmsnorm) X(keep_rows)      \
    X(host_alloc) X(host_free) X(reserve) X(commit) X(fetch) X(wait) X(sample) X(aside) X(join)    \
    X(record) X(recorded) X(replay) X(forget)
/* clang-format on */
#define FMC_DECLARE(op) FM_BACKEND_FN(op, fmc_op_##op);
FMC_OPS(FMC_DECLARE)
#undef FMC_DECLARE
/* Modes fast and bf16: what they do otherwise than exact. FM_EUNSUPPORTED: the GPU lacks it. */
fm_status fmc_fast_open(fmc_device *d);
void fmc_fast_close(fmc_device *d);
fm_status fmc_bf16_open(fmc_device *d);
void fmc_graph_close(fmc_device *d);
void fmc_side_stream_close(fmc_device *d);
/* nccl.cu: fm_module.nccl. */
fm_status fmc_nccl_open(fm_backend *be, struct fmc_nccl_card *out);
/* vmm.cu: whether ptr was a room of reserve, which is gone then. */
bool fmc_room_free(fmc_device *d, void *ptr);
/* graph.cu: room in the arena of the recording that is going on; host and device sides. */
fm_status fmc_arena_take(fmc_device *d, size_t bytes, void **host, void **dev);
/* Ends every recording's graph, also one that runs (then behind it); without waiting. What they
 * had keeps its memory until it is forgotten. */
void fmc_graphs_let_go(fm_backend *be);

#endif
