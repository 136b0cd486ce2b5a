/* graph.cu - steps that are recorded once and replayed (CUDA graphs), and copies to the host that
 * are waited for by ticket. Both keep the host ahead of the GPU.
 *
 * While a step is recorded its operations go to a stream of their own, which captures them; work of
 * other threads (uploads, weights) goes to the device's own stream as always. Lists that operations
 * copy from the host belong to the recording, and are copied to the GPU once: a replay consists of
 * kernels alone. Exchanges with other ranks (comm/wire_nccl.c) are recorded like kernels; their
 * communicator ends only when no such graph is left, so all graphs can be destroyed at once. */
#include "infer/cuda/cuda.h"

#include <string.h>

#include <new>

#define BLOCK_BYTES (1u << 20)
#define ALIGN 256u

struct arena_block {
    unsigned char *host, *dev;
    size_t cap_bytes, used;
    arena_block *next;
};

struct fmc_arena {
    arena_block *first;
};

struct recording {
    uint64_t key;
    cudaGraphExec_t exec;
    fmc_arena arena;
    recording *next;
};

struct fmc_graphs {
    recording *first, *now; /* now: not in the list yet */
    cudaStream_t capture;
};

/* ---- arenas ---- */

static void arena_release(fmc_arena *a)
{
    arena_block *next;
    for (arena_block *b = a->first; b; b = next) {
        next = b->next;
        (void)cudaFree(b->dev);
        (void)cudaFreeHost(b->host);
        delete b;
    }
    a->first = NULL;
}

static cudaError_t arena_grow(fmc_arena *a, size_t bytes)
{
    arena_block *b = new (std::nothrow) arena_block();
    if (!b)
        return cudaErrorMemoryAllocation;
    b->cap_bytes = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    b->next = a->first;
    a->first = b;
    cudaError_t e = cudaHostAlloc((void **)&b->host, b->cap_bytes, cudaHostAllocDefault);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&b->dev, b->cap_bytes);
    if (e != cudaSuccess)
        b->cap_bytes = 0;
    return e;
}

fm_status fmc_arena_take(fmc_device *d, size_t bytes, void **host, void **dev)
{
    fmc_arena *a = d->arena;
    size_t take = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    *host = *dev = NULL;
    if (!a->first || a->first->used + take > a->first->cap_bytes) {
        fm_status rc = fmc_status(arena_grow(a, take), "lists of a recorded step");
        if (rc != FM_OK)
            return rc;
    }
    *host = a->first->host + a->first->used;
    *dev = a->first->dev + a->first->used;
    a->first->used += take;
    return FM_OK;
}

/* ---- recordings ---- */

static void recording_free(recording *r)
{
    if (r->exec)
        (void)cudaGraphExecDestroy(r->exec);
    arena_release(&r->arena);
    delete r;
}

static fm_status graphs_of(fmc_device *d)
{
    if (!d->graphs)
        d->graphs = new (std::nothrow) fmc_graphs();
    if (!d->graphs)
        return fmc_fail(FM_ENOMEM, "out of memory");
    if (d->graphs->capture)
        return FM_OK;
    return fmc_status(cudaStreamCreateWithFlags(&d->graphs->capture, cudaStreamNonBlocking),
                      "a stream to record on");
}

void fmc_op_forget(fm_backend *be, uint64_t key)
{
    fmc_device *d = fmc_of(be);
    recording **at = d->graphs ? &d->graphs->first : NULL;
    while (at && *at && (*at)->key != key)
        at = &(*at)->next;
    if (!at || !*at)
        return;
    recording *r = *at;
    *at = r->next;
    fmc_enter(d);
    (void)cudaStreamSynchronize(d->line); /* the recording may still run */
    recording_free(r);
}

/* Captures in relaxed mode: this thread and others may allocate memory meanwhile. */
fm_status fmc_op_record(fm_backend *be, uint64_t key)
{
    fmc_device *d = fmc_of(be);
    fmc_enter_anew(d);
    if (d->failed != FM_OK)
        return fmc_fail(FM_EUNSUPPORTED, "a step behind a failure is not recorded");
    fm_status rc = graphs_of(d);
    if (rc != FM_OK)
        return rc;
    fmc_op_forget(be, key);
    recording *r = new (std::nothrow) recording();
    if (!r)
        return fmc_fail(FM_ENOMEM, "out of memory");
    r->key = key;
    rc = fmc_status(arena_grow(&r->arena, BLOCK_BYTES), "lists of a recorded step");
    if (rc == FM_OK)
        rc = fmc_status(cudaStreamBeginCapture(d->graphs->capture, cudaStreamCaptureModeRelaxed),
                        "recording a step");
    if (rc != FM_OK) {
        recording_free(r);
        return rc;
    }
    d->graphs->now = r;
    d->arena = &r->arena;
    d->stream = d->graphs->capture;
    return FM_OK;
}

/* Reports a failed launch at once, since other ranks may have launched their graphs. */
static fm_status launch(fmc_device *d, const recording *r)
{
    if (d->failed == FM_OK) {
        cudaError_t e = cudaGraphLaunch(r->exec, d->line);
        if (e == cudaSuccess)
            return FM_OK;
        (void)cudaGetLastError();
        fmc_stick(d, e == cudaErrorMemoryAllocation ? FM_ENOMEM : FM_EIO, cudaGetErrorString(e));
    }
    return fmc_fail(d->failed, "cuda:%u: a recorded step was not started: %s", d->ordinal, d->why);
}

/* Copies the lists of a recording to the GPU, before it runs for the first time. */
static cudaError_t arena_send(const fmc_arena *a, cudaStream_t line)
{
    cudaError_t e = cudaSuccess;
    for (const arena_block *b = a->first; b && e == cudaSuccess; b = b->next)
        if (b->used > 0)
            e = cudaMemcpyAsync(b->dev, b->host, b->used, cudaMemcpyHostToDevice, line);
    return e;
}

fm_status fmc_op_recorded(fm_backend *be)
{
    fmc_device *d = fmc_of(be);
    recording *r = d->graphs->now;
    cudaGraph_t graph = NULL;
    cudaError_t e = cudaStreamEndCapture(d->graphs->capture, &graph);
    d->stream = d->line;
    d->arena = NULL;
    d->graphs->now = NULL;
    if (e == cudaSuccess && d->failed == FM_OK)
        e = cudaGraphInstantiate(&r->exec, graph, 0);
    if (e == cudaSuccess && d->failed == FM_OK)
        e = arena_send(&r->arena, d->line);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (e != cudaSuccess || d->failed != FM_OK) { /* nothing of it ran, so no operation failed */
        (void)cudaGetLastError();
        recording_free(r);
        fm_status rc = fmc_fail(FM_EUNSUPPORTED, "a step cannot be recorded: %s",
                                d->failed != FM_OK ? d->why : cudaGetErrorString(e));
        d->failed = FM_OK;
        return rc;
    }
    r->next = d->graphs->first;
    d->graphs->first = r;
    return FM_OK;
}

fm_status fmc_op_replay(fm_backend *be, uint64_t key)
{
    fmc_device *d = fmc_of(be);
    const recording *r = d->graphs ? d->graphs->first : NULL;
    while (r && r->key != key)
        r = r->next;
    if (!r || !r->exec)
        return fmc_fail(FM_ENOTFOUND, "no step is recorded under %llu", (unsigned long long)key);
    fmc_enter_anew(d);
    return launch(d, r);
}

void fmc_graphs_let_go(fm_backend *be)
{
    fmc_device *d = fmc_of(be);
    fmc_enter_anew(d);
    if (d->arena) { /* a step is being recorded: recorded will find no graph */
        cudaGraph_t graph = NULL;
        (void)cudaStreamEndCapture(d->graphs->capture, &graph);
        if (graph)
            (void)cudaGraphDestroy(graph);
        fmc_stick(d, FM_EUNSUPPORTED, "the exchanges in it are no more");
    }
    for (recording *r = d->graphs ? d->graphs->first : NULL; r; r = r->next) {
        if (r->exec)
            (void)cudaGraphExecDestroy(r->exec);
        r->exec = NULL;
    }
}

/* ---- copies to the host ---- */

fm_status fmc_op_fetch(fm_backend *be, void *dst, const void *src, size_t bytes,
                       uint64_t *ticket_out)
{
    fmc_device *d = fmc_of(be);
    cudaEvent_t *event = &d->ticket[d->tickets % FMC_TICKETS];
    cudaError_t e = cudaSuccess;
    fmc_enter(d);
    *ticket_out = ++d->tickets;
    if (!*event)
        e = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    if (e == cudaSuccess && bytes > 0)
        e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->line);
    if (e == cudaSuccess)
        e = cudaEventRecord(*event, d->line);
    return fmc_status(e, "a copy from the device");
}

/* An old ticket's event belongs to a later ticket by now: the wait is longer, never too short. */
fm_status fmc_op_wait(fm_backend *be, uint64_t ticket)
{
    fmc_device *d = fmc_of(be);
    fmc_enter_anew(d);
    cudaError_t e = cudaEventSynchronize(d->ticket[(ticket - 1) % FMC_TICKETS]);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        fmc_stick(d, FM_EIO, cudaGetErrorString(e));
    }
    fm_status rc = d->failed;
    d->failed = FM_OK;
    return rc < 0 ? fmc_fail(rc, "cuda:%u: %s", d->ordinal, d->why) : FM_OK;
}

/* ---- life ---- */

void fmc_graph_close(fmc_device *d)
{
    for (unsigned i = 0; i < FMC_TICKETS; i++)
        if (d->ticket[i])
            (void)cudaEventDestroy(d->ticket[i]);
    if (!d->graphs)
        return;
    while (d->graphs->first) {
        recording *r = d->graphs->first;
        d->graphs->first = r->next;
        recording_free(r);
    }
    if (d->graphs->capture)
        (void)cudaStreamDestroy(d->graphs->capture);
    delete d->graphs;
    d->graphs = NULL;
}
