/* runtime.cpp - the runtime's calls on the host: memory with guards, streams that run late, graphs.
 *
 * A stream is a queue that is run when somebody waits for it, for an event of it, or for a stream
 * that waits for such an event. SIMT_EAGER=1 runs everything at once; SIMT_DEVICES says how many
 * cards there are (1), 0 is a machine without one. One lock around all of it. */
#include "cuda_runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

void simt_run_kernel(const char *name, dim3 grid, dim3 block, size_t shared_bytes, size_t granted,
                     const std::function<void()> &thread);
bool simt_fits(dim3 grid, dim3 block, size_t shared_bytes);

typedef std::function<void()> work;

struct CUgraph_st {
    std::vector<work> list;
};
struct CUgraphExec_st {
    std::vector<work> list;
};
struct CUstream_st {
    std::deque<work> queue;
    CUgraph_st *capture = NULL;
    bool running = false;
};
struct event_state {
    cudaStream_t stream = NULL; /* of the last record; NULL: never recorded, or done */
    unsigned long record = 0, done = 0;
};
struct CUevent_st {
    std::shared_ptr<event_state> s = std::make_shared<event_state>();
};

static std::recursive_mutex lock;
typedef std::lock_guard<std::recursive_mutex> guard;
static CUstream_st default_stream;
static std::vector<cudaStream_t> streams{&default_stream};
static cudaError_t last;
static thread_local int device;

static cudaError_t note(cudaError_t e)
{
    if (e != cudaSuccess)
        last = e;
    return e;
}

static cudaStream_t of(cudaStream_t s)
{
    return s ? s : &default_stream;
}

static void drain(cudaStream_t s)
{
    if (s->running) /* work of it that waits for an event of it: already in order */
        return;
    s->running = true;
    while (!s->queue.empty()) {
        work w = std::move(s->queue.front());
        s->queue.pop_front();
        w();
    }
    s->running = false;
}

static void push(cudaStream_t s, work w)
{
    s = of(s);
    if (s->capture) {
        s->capture->list.push_back(std::move(w));
        return;
    }
    s->queue.push_back(std::move(w));
    const char *eager = getenv("SIMT_EAGER");
    if (eager && *eager == '1')
        drain(s);
}

static std::map<const void *, size_t> granted_bytes;

void simt_grant(const void *kernel, size_t bytes)
{
    guard g(lock);
    granted_bytes[kernel] = bytes;
}

void simt_launch(cudaStream_t stream, const void *kernel, const char *name, dim3 grid, dim3 block,
                 size_t shared_bytes, std::function<void()> thread)
{
    guard g(lock);
    auto it = granted_bytes.find(kernel);
    size_t granted = it == granted_bytes.end() ? 0 : it->second;
    if (!simt_fits(grid, block, shared_bytes)) {
        note(cudaErrorInvalidConfiguration);
        return;
    }
    push(stream, [=] { simt_run_kernel(name, grid, block, shared_bytes, granted, thread); });
}

/* ---- devices ---- */

static int devices(void)
{
    const char *n = getenv("SIMT_DEVICES");
    return n ? atoi(n) : 1;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = devices();
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= devices())
        return note(cudaErrorInvalidDevice);
    device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d)
{
    *d = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int d)
{
    if (d < 0 || d >= devices())
        return note(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)simt_shared_max();
        break;
    default:
        return note(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    if (d < 0 || d >= devices())
        return note(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device");
    p->totalGlobalMem = (size_t)4 << 30;
    p->major = 9;
    p->multiProcessorCount = 4;
    return cudaSuccess;
}

/* ---- memory ---- */

static std::map<void *, size_t> pinned; /* begin -> bytes */
static std::map<void *, size_t> device_memory;
static size_t device_bytes;

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    guard g(lock);
    *total = (size_t)4 << 30;
    *free_bytes = *total > device_bytes ? *total - device_bytes : 0;
    return cudaSuccess;
}

static bool inside(const std::map<void *, size_t> &m, const void *p, size_t bytes)
{
    auto it = m.upper_bound(const_cast<void *>(p));
    if (it == m.begin())
        return false;
    --it;
    const char *begin = (const char *)it->first;
    return (const char *)p >= begin && (const char *)p + bytes <= begin + it->second;
}

#if defined(__SANITIZE_ADDRESS__)
static void *guarded_map(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}
static void guarded_unmap(void *p, size_t bytes)
{
    (void)bytes;
    free(p);
}
#else
/* [room][guard page]: the end, rounded up to 256 bytes, touches the guard. */
static void *guarded_map(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + 255) / 256 * 256;
    size_t whole = (body + page - 1) / page * page;
    char *p = (char *)mmap(NULL, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + page, whole, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    return p + page + whole - body;
}
static void guarded_unmap(void *p, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + 255) / 256 * 256;
    size_t whole = (body + page - 1) / page * page;
    (void)munmap((char *)p - (whole - body) - page, whole + 2 * page);
}
#endif

#define POISON_MAX                                                                                 \
    ((size_t)1 << 20) /* larger rooms begin as zeros: filling them takes longer than tests */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    guard g(lock);
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (device_bytes + bytes > (size_t)4 << 30)
        return note(cudaErrorMemoryAllocation);
    *out = guarded_map(bytes);
    if (!*out)
        return note(cudaErrorMemoryAllocation);
    if (bytes <= POISON_MAX)
        memset(*out, 0xff, bytes);
    device_memory[*out] = bytes;
    device_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    guard g(lock);
    for (size_t i = 0; i < streams.size(); i++)
        drain(streams[i]);
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    guard g(lock);
    if (!p)
        return cudaSuccess;
    cudaDeviceSynchronize(); /* as the runtime does */
    auto it = device_memory.find(p);
    if (it == device_memory.end())
        return note(cudaErrorInvalidValue);
    guarded_unmap(p, it->second);
    device_bytes -= it->second;
    device_memory.erase(it);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    guard g(lock);
    (void)flags;
    *out = guarded_map(bytes ? bytes : 1);
    if (!*out)
        return note(cudaErrorMemoryAllocation);
    pinned[*out] = bytes ? bytes : 1;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    guard g(lock);
    if (!p)
        return cudaSuccess;
    cudaDeviceSynchronize();
    auto it = pinned.find(p);
    if (it == pinned.end())
        return note(cudaErrorInvalidValue);
    guarded_unmap(p, it->second);
    pinned.erase(it);
    return cudaSuccess;
}

/* Pageable host memory is read at the call and written before it returns; pinned memory late. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    guard g(lock);
    if (bytes == 0)
        return cudaSuccess;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (!dst || !src || kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault ||
        (to_device && !inside(device_memory, dst, bytes) && !inside(pinned, dst, bytes)) ||
        (from_device && !inside(device_memory, src, bytes) && !inside(pinned, src, bytes)))
        return note(cudaErrorInvalidValue);
    if (kind == cudaMemcpyHostToDevice && !inside(pinned, src, bytes)) {
        auto copy =
            std::make_shared<std::vector<char>>((const char *)src, (const char *)src + bytes);
        push(stream, [=] { memcpy(dst, copy->data(), bytes); });
    } else {
        push(stream, [=] { memmove(dst, src, bytes); });
        if (kind == cudaMemcpyDeviceToHost && !inside(pinned, dst, bytes))
            drain(of(stream));
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    guard g(lock);
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, kind, NULL);
    drain(&default_stream);
    return e;
}

/* Large rooms are cleared by giving their pages back. */
static void set(void *dst, int value, size_t bytes)
{
#if !defined(__SANITIZE_ADDRESS__)
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *begin = (char *)dst, *end = begin + bytes;
    char *first = (char *)(((uintptr_t)begin + page - 1) / page * page);
    char *last = (char *)((uintptr_t)end / page * page);
    if (value == 0 && bytes > POISON_MAX &&
        madvise(first, (size_t)(last - first), MADV_DONTNEED) == 0) {
        memset(begin, 0, (size_t)(first - begin));
        memset(last, 0, (size_t)(end - last));
        return;
    }
#endif
    memset(dst, value, bytes);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    guard g(lock);
    if (bytes == 0)
        return cudaSuccess;
    if (!inside(device_memory, dst, bytes))
        return note(cudaErrorInvalidValue);
    push(stream, [=] { set(dst, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    guard g(lock);
    cudaError_t e = cudaMemsetAsync(dst, value, bytes, NULL);
    drain(&default_stream);
    return e;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    guard g(lock);
    (void)flags;
    *out = new CUstream_st;
    streams.push_back(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    guard g(lock);
    drain(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + (ptrdiff_t)i);
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    guard g(lock);
    if (of(s)->capture)
        return note(cudaErrorStreamCaptureInvalidated);
    drain(of(s));
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    guard g(lock);
    return of(s)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    guard g(lock);
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    guard g(lock);
    std::shared_ptr<event_state> state = e->s;
    unsigned long number = ++state->record;
    state->stream = of(s);
    push(s, [=] { state->done = number; });
    return cudaSuccess;
}

static void await(const std::shared_ptr<event_state> &state, unsigned long number)
{
    if (state->done < number && state->stream)
        drain(state->stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    guard g(lock);
    (void)flags;
    std::shared_ptr<event_state> state = e->s;
    unsigned long number = state->record;
    push(s, [=] { await(state, number); });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    guard g(lock);
    await(e->s, e->s->record);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    guard g(lock);
    return e->s->done >= e->s->record ? cudaSuccess : cudaErrorNotReady;
}

/* ---- graphs: what was queued while a stream captured ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    guard g(lock);
    (void)mode;
    if (!s || s->capture)
        return note(cudaErrorInvalidValue);
    s->capture = new CUgraph_st;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    guard g(lock);
    *out = s->capture;
    s->capture = NULL;
    return *out ? cudaSuccess : note(cudaErrorInvalidValue);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *out = new CUgraphExec_st{graph->list};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    guard g(lock);
    for (const work &w : exec->list)
        push(s, w);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

/* ---- errors ---- */

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidValue:
        return "invalid argument";
    default:
        return "unknown error";
    }
}
const char *cudaGetErrorName(cudaError_t e)
{
    return cudaGetErrorString(e);
}
cudaError_t cudaPeekAtLastError(void)
{
    return last;
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
