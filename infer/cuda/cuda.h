/* cuda.h - inside the CUDA backend: what its files share. The files of operations match those of
 * infer/cpu; README.md has the table of kernels.
 *
 * Operations come from one thread at a time and are queued on `stream`; any thread may allocate
 * memory and make weights (`lock` guards what they share). The first failure is kept until sync. */
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

/* Scratch memory that became too small: recorded steps hold its address, so it is kept. */
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

/* Memory for the lists of a step that is being recorded: they stay at their addresses as long as
 * the recording lives. */
typedef struct fmc_arena fmc_arena;

#define FMC_TICKETS 8u /* fetches that have an event of their own */

typedef struct fmc_device {
    fm_backend be; /* first: the fm_backend is this object */
    uint32_t ordinal;
    int multiprocessors, shared_max; /* bytes of shared memory that a block may ask for */
    int capability;                  /* 90: sm_90 */
    char isa[16];
    fm_pool *pool;
    /* line orders all work; stream: where operations are launched, which is line unless a step is
     * being recorded or aside is on; copy: large uploads and clearing. */
    cudaStream_t line, stream, copy;
    cudaEvent_t mark;
    pthread_mutex_t lock; /* guards ring, copy, mark and rooms */
    fmc_ring ring;
    fmc_scratch scratch[FMC_SCRATCHES]; /* used by the thread of operations alone */
    fmc_outgrown *outgrown;
    struct fmc_room *rooms;         /* vmm.cu; guarded by lock */
    fmc_arena *arena;               /* not NULL: a step is being recorded */
    struct fmc_graphs *graphs;      /* graph.cu; NULL until a step is recorded */
    struct fmc_side_stream *second; /* side_stream.cu; NULL until it is used */
    cudaEvent_t ticket[FMC_TICKETS];
    uint64_t tickets; /* given so far */
    void *fast;       /* cuda/mma/fast.cu's state in mode fast */
    /* The answers of fmc_may_begin_soon, by kernel; used by the thread of operations alone. */
    struct fmc_known *known;
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
/* Host memory, zeroed, 64-byte aligned; NULL: out of memory. fmc_release takes NULL too. */
void *fmc_take(size_t bytes);
void fmc_release(void *p);
/* The status for e, with the text "what: ..."; FM_OK for cudaSuccess. */
fm_status fmc_status(cudaError_t e, const char *what);
/* Remembers the first failure for sync. */
void fmc_stick(fmc_device *d, fm_status rc, const char *text);
/* Called after a launch: keeps a failure that the runtime reports. */
void fmc_launched(fmc_device *d, const char *kernel);
/* Device memory of at least bytes, valid until the next call for the same slot; NULL: failed, which
 * is kept for sync. */
void *fmc_scratch_get(fmc_device *d, unsigned slot, size_t bytes);
/* A copy on the device of host bytes, 256-byte aligned, for the operations that are queued next (at
 * most FMC_ARGS_MAX bytes of such copies). They must not write to it: a recorded step keeps it from
 * one replay to the next. NULL: failed, which is kept for sync. */
#define FMC_ARGS_MAX (1u << 20)
void *fmc_args(fmc_device *d, const void *host, size_t bytes);

/* The GPU that was last made current on this thread; -1: none yet. A cudaSetDevice for each launch
 * would cost as much as queueing it, so it is called where the thread changes to another GPU, and
 * always where the host waits or a step is recorded or replayed. Other code that makes another GPU
 * current has to restore it (fmc_enter_anew after libraries that may not). */
extern __thread int fmc_here;
void fmc_enter_anew(const fmc_device *d);
static inline void fmc_enter(const fmc_device *d)
{
    if (fmc_here != (int)d->ordinal)
        fmc_enter_anew(d);
}

/* Whether the GPU runs code of this kernel that was made from sm_90's PTX, which waits for its
 * turn; machine code made from older PTX does not. FMSTORE_CUDA_PDL=0: never. */
bool fmc_may_begin_soon(fmc_device *d, const void *kernel);

/* Launches a kernel unless an operation failed before. A template stands in parentheses. */
#define FMC_RUN(d, kernel, grid, block, shared_bytes, ...)                                         \
    do {                                                                                           \
        if ((d)->failed == FM_OK) {                                                                \
            fmc_enter(d);                                                                          \
            FMC_LAUNCH(kernel, grid, block, shared_bytes, (d)->stream, __VA_ARGS__);               \
            fmc_launched((d), #kernel);                                                            \
        }                                                                                          \
    } while (0)

/* Likewise for a kernel that calls fmc_wait_for_turn: it may begin before its turn. */
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

/* Sets rows and m of a task from its segment, whose length only the device knows (fm_product.from).
 * True where the segment is empty; the same for all threads of a block. */
template <class Task> static __device__ __forceinline__ bool fmc_settle(Task *t)
{
    if (!t->from)
        return t->m == 0;
    const int32_t begin = *t->from;
    t->m = (uint32_t)(*t->to - begin);
    t->rows += begin;
    return t->m == 0;
}

/* cuda/exact/elem.cu: does keep_rows by rope and kv_write where there are more rows than its kernel
 * is made for; false: there are not so many. */
bool fmc_keep_apart(fm_backend *be, const fm_new_rows *r);

/* ---- the operations of mode exact, fmc_op_<op>, each in the file of its family ---- */

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
/* Installs the operations of modes fast and bf16. FM_EUNSUPPORTED: the GPU lacks something. */
fm_status fmc_fast_open(fmc_device *d);
void fmc_fast_close(fmc_device *d);
fm_status fmc_bf16_open(fmc_device *d);
void fmc_graph_close(fmc_device *d);
void fmc_side_stream_close(fmc_device *d);
/* nccl.cu: fm_module.nccl. */
fm_status fmc_nccl_open(fm_backend *be, struct fmc_nccl_card *out);
/* vmm.cu: frees the range at ptr if reserve returned it; false: it did not. */
bool fmc_room_free(fmc_device *d, void *ptr);
/* graph.cu: memory in the arena of the current recording, on the host and on the device. */
fm_status fmc_arena_take(fmc_device *d, size_t bytes, void **host, void **dev);
/* Destroys every recording's graph without waiting; one that is running ends first. The recordings'
 * memory stays until forget. */
void fmc_graphs_let_go(fm_backend *be);

#endif
