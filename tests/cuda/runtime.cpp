/* runtime.cpp - the runtime's calls on the host: memory with guards, streams that run late, graphs.
 *
 * A stream is a queue that is run when somebody waits for it, for an event of it, or for a stream
 * that waits for such an event. SIMT_EAGER=1 runs everything at once; SIMT_DEVICES says how many
 * GPUs there are (1), 0 is a machine without one. One lock around all of it; who waits for work of
 * nccl.cpp, which other ranks must do their part of, lets go of it meanwhile. */
#include "cuda_runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

bool simt_fits(dim3 grid, dim3 block, size_t shared_bytes);

/* What stands in a stream: a kernel, or run(), which is false where it has to wait and is asked
 * again. */
struct work {
    std::function<bool()> run;
    std::shared_ptr<simt_kernel> kernel;
};

struct node { /* of a graph */
    work w;
    std::function<work()> each; /* not empty: w anew for each launch, shared with other ranks */
};
struct CUgraph_st {
    std::vector<node> list;
};
struct CUgraphExec_st {
    std::vector<node> list;
};
struct CUstream_st {
    std::deque<work> queue;
    CUgraph_st *capture = NULL;
    bool running = false;
    bool invalid = false;                             /* what it captures is lost */
    int device = -1;                                  /* the default stream's: whichever is there */
    unsigned long pushed = 0, popped = 0, shared = 0; /* up to `shared` it goes on by itself */
};
struct event_state {
    cudaStream_t stream = NULL; /* of the last record; NULL: never recorded, or done */
    unsigned long record = 0, done = 0;
    unsigned long at = 0; /* of the last record in its stream; 0: in a graph */
};
struct CUevent_st {
    std::shared_ptr<event_state> s = std::make_shared<event_state>();
};

static std::recursive_mutex lock;
static unsigned depth; /* how often its owner has it */
struct guard {
    explicit guard(std::recursive_mutex &m)
    {
        m.lock();
        depth++;
    }
    ~guard()
    {
        depth--;
        lock.unlock();
    }
};
static CUstream_st default_stream;
static std::vector<cudaStream_t> streams{&default_stream};
static thread_local cudaError_t last;
static thread_local int device;
static std::atomic<unsigned long> device_calls, copies, launches, kernels, early;

/* Kernels, graphs and groups of other ranks' that the host queued. */
extern "C" __attribute__((visibility("default"))) unsigned long simt_launches(void)
{
    return launches;
}
/* How often cudaSetDevice was called: it costs as much as a launch. */
extern "C" __attribute__((visibility("default"))) unsigned long simt_device_calls(void)
{
    return device_calls;
}
/* Copies between host and device that ran. */
extern "C" __attribute__((visibility("default"))) unsigned long simt_copies(void)
{
    return copies;
}
/* Kernels that ran, and those of them that began before the one before them had ended. */
extern "C" __attribute__((visibility("default"))) unsigned long simt_kernels(void)
{
    return kernels;
}
extern "C" __attribute__((visibility("default"))) unsigned long simt_early(void)
{
    return early;
}

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

/* Lets others have the lock for a moment, however deep this thread is in it. */
static void wait_a_moment(void)
{
    unsigned n = depth;
    depth = 0;
    for (unsigned i = 0; i < n; i++)
        lock.unlock();
    usleep(50);
    for (unsigned i = 0; i < n; i++)
        lock.lock();
    depth = n;
}

static cudaStream_t at_work; /* whose kernel runs */

static void run_kernel(cudaStream_t s, simt_kernel *k)
{
    cudaStream_t before = at_work;
    at_work = s;
    kernels++;
    early += k->begun != NULL;
    simt_run_kernel(k);
    at_work = before;
}

/* The next kernel that may: at the beginning of one, and each time that one lets it. */
void simt_next_may_begin(void)
{
    if (!at_work)
        return;
    for (const work &w : at_work->queue) {
        if (!w.kernel || !w.kernel->soon)
            return;
        if (!w.kernel->begun) {
            simt_begin_kernel(w.kernel.get());
            return;
        }
    }
}

/* What can run, up to number; true: all of that has run. */
static bool advance(cudaStream_t s, unsigned long number)
{
    if (s->running) /* work of it that waits for an event of it: already in order */
        return true;
    s->running = true;
    while (s->popped < number) {
        work w = std::move(s->queue.front());
        s->queue.pop_front();
        if (w.kernel) {
            run_kernel(s, w.kernel.get());
        } else if (!w.run()) {
            s->queue.push_front(std::move(w));
            break;
        }
        s->popped++;
    }
    s->running = false;
    return s->popped >= number;
}

static void drain(cudaStream_t s)
{
    unsigned long number = s->pushed;
    while (!advance(s, number))
        wait_a_moment();
}

static void push_work(cudaStream_t s, work w)
{
    s = of(s);
    if (s->capture) {
        s->capture->list.push_back({std::move(w), {}});
        return;
    }
    if (w.kernel) /* a graph's runs more than once */
        w.kernel = std::make_shared<simt_kernel>(*w.kernel);
    s->queue.push_back(std::move(w));
    s->pushed++;
    const char *eager = getenv("SIMT_EAGER");
    if (eager && *eager == '1')
        drain(s);
}

static void push(cudaStream_t s, std::function<void()> w)
{
    push_work(s, {[=] {
                      w();
                      return true;
                  },
                  NULL});
}

/* ---- for nccl.cpp: work that waits for other ranks ---- */

/* A GPU goes on by itself; here nothing runs before somebody waits, and what others wait for must
 * not. So this thread runs streams up to the last work that is shared with others. */
static struct far_thread {
    std::thread thread;
    bool ends = false;
    ~far_thread()
    {
        {
            guard g(lock);
            ends = true;
        }
        if (thread.joinable())
            thread.join();
    }
} far;

static void run_far(void)
{
    for (bool ends = false, any = false; !ends; usleep(any ? 50 : 1000)) {
        guard g(lock);
        ends = far.ends;
        any = false;
        for (size_t i = 0; i < streams.size() && !ends; i++)
            if (streams[i]->popped < streams[i]->shared) {
                any = true;
                (void)advance(streams[i], streams[i]->shared);
            }
    }
}

static void push_shared(cudaStream_t s, work w)
{
    s = of(s);
    if (!far.thread.joinable())
        far.thread = std::thread(run_far);
    push_work(s, std::move(w));
    s->shared = s->pushed;
}

/* run(task) until it is true, which ends the task. In a graph each launch has a task of its own:
 * begin(arg), and drop(arg) when neither the graph nor a launch of it is left. Else the one task is
 * begin(arg) too, and drop(arg) follows it. */
extern "C" __attribute__((visibility("default"))) void simt_share(void *stream,
                                                                  void *(*begin)(void *),
                                                                  bool (*run)(void *),
                                                                  void (*drop)(void *), void *arg)
{
    guard g(lock);
    cudaStream_t s = of((cudaStream_t)stream);
    std::shared_ptr<void> held(arg, drop);
    auto each = [=]() -> work {
        void *task = begin(held.get());
        return {[=, keeps = held] { return run(task); }, NULL};
    };
    launches += !s->capture;
    if (s->capture)
        s->capture->list.push_back({{}, each});
    else
        push_shared(s, each());
}

extern "C" __attribute__((visibility("default"))) bool simt_captures(void *stream)
{
    guard g(lock);
    return of((cudaStream_t)stream)->capture;
}

extern "C" __attribute__((visibility("default"))) int simt_card(void)
{
    return device;
}

/* The nth next allocation (what 0) or launch (1) of the GPU fails, 0: none does. */
static struct {
    int card;
    unsigned long left[2];
} fault;

extern "C" __attribute__((visibility("default"))) void simt_fail(int card, int what,
                                                                 unsigned long nth)
{
    guard g(lock);
    fault.card = card;
    fault.left[what] = nth;
}

static bool fails(int what)
{
    return fault.left[what] && fault.card == device && --fault.left[what] == 0;
}

static std::map<const void *, size_t> granted_bytes;

void simt_grant(const void *kernel, size_t bytes)
{
    guard g(lock);
    granted_bytes[kernel] = bytes;
}

static std::map<const void *, unsigned> clusters;

void simt_cluster(const void *kernel, unsigned blocks)
{
    guard g(lock);
    clusters[kernel] = blocks;
}

/* SIMT_FAULT=kind:GPU:n, of the launches of that GPU: hang: the nth never ends; starve: from the
 * nth on there is no memory for them. */
static bool launch_faulty(const char *kind)
{
    static std::string text;
    static unsigned long launches;
    const char *now = getenv("SIMT_FAULT");
    char word[16] = "";
    int card = -1;
    unsigned long n = 0;
    if (!now || text != now) {
        text = now ? now : "";
        launches = 0;
    }
    if (sscanf(text.c_str(), "%15[^:]:%d:%lu", word, &card, &n) != 3 || card != device ||
        strcmp(word, kind) != 0)
        return false;
    launches++;
    return strcmp(kind, "hang") == 0 ? launches == n : launches >= n;
}

void simt_launch(cudaStream_t stream, const void *kernel, const char *name, dim3 grid, dim3 block,
                 size_t shared_bytes, bool soon, std::function<void()> thread)
{
    guard g(lock);
    auto it = granted_bytes.find(kernel);
    size_t granted = it == granted_bytes.end() ? 0 : it->second;
    if (fails(1)) {
        note(cudaErrorUnknown);
        return;
    }
    if (launch_faulty("starve")) {
        note(cudaErrorMemoryAllocation);
        return;
    }
    if (launch_faulty("hang"))
        push_work(stream, {[] { return false; }, NULL});
    if (of(stream)->device >= 0 && of(stream)->device != device) { /* another GPU's */
        note(cudaErrorInvalidResourceHandle);
        return;
    }
    auto of_cluster = clusters.find(kernel);
    unsigned cluster = of_cluster == clusters.end() ? 1 : of_cluster->second;
    if (!simt_fits(grid, block, shared_bytes)) {
        note(cudaErrorInvalidConfiguration);
        return;
    }
    launches += !of(stream)->capture;
    push_work(stream,
              {NULL, std::make_shared<simt_kernel>(simt_kernel{name, grid, block, shared_bytes,
                                                               granted, cluster, soon, thread})});
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
cudaError_t cudaSetDevice(int d)
{
    device_calls++;
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
/* ---- memory ---- */

static std::map<void *, size_t> pinned; /* begin -> bytes */
static std::map<void *, size_t> device_memory;
static size_t device_bytes;

static size_t device_total(void);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    guard g(lock);
    *total = device_total();
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

static size_t device_total(void)
{
    const char *mib = getenv("SIMT_MIB");
    return mib ? (size_t)atoll(mib) << 20 : (size_t)4 << 30;
}

bool simt_charge(long long bytes)
{
    guard g(lock);
    if (bytes > 0 && device_bytes + (size_t)bytes > device_total())
        return false;
    device_bytes += (size_t)bytes;
    return true;
}

void simt_device_range(void *begin, size_t bytes)
{
    guard g(lock);
    if (bytes > 0)
        device_memory[begin] = bytes;
    else
        device_memory.erase(begin);
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
    if (fails(0) || !simt_charge((long long)bytes))
        return note(cudaErrorMemoryAllocation);
    *out = guarded_map(bytes);
    if (!*out) {
        (void)simt_charge(-(long long)bytes);
        return note(cudaErrorMemoryAllocation);
    }
    if (bytes <= POISON_MAX)
        memset(*out, 0xff, bytes);
    device_memory[*out] = bytes;
    return cudaSuccess;
}

extern "C" __attribute__((visibility("default"))) bool simt_is_device(const void *p, size_t bytes)
{
    guard g(lock);
    return inside(device_memory, p, bytes);
}

/* Of the calling thread's GPU, of which no stream may be capturing. */
cudaError_t cudaDeviceSynchronize(void)
{
    guard g(lock);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i]->device == device && streams[i]->capture) {
            streams[i]->invalid = true;
            return note(cudaErrorStreamCaptureInvalidated);
        }
    for (bool done = false; !done;) {
        done = true;
        for (size_t i = 0; i < streams.size(); i++)
            if (streams[i]->device == device || streams[i]->device < 0)
                done = advance(streams[i], streams[i]->pushed) && done;
        if (!done)
            wait_a_moment();
    }
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
        push(stream, [=] {
            copies++;
            memcpy(dst, copy->data(), bytes);
        });
    } else {
        push(stream, [=] {
            copies++;
            memmove(dst, src, bytes);
        });
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
    (*out)->device = device;
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
    return advance(of(s), of(s)->pushed) ? cudaSuccess : cudaErrorNotReady;
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
    state->at = of(s)->capture ? 0 : of(s)->pushed;
    return cudaSuccess;
}

/* Runs what stands before the record; true: it is reached. */
static bool reach(const std::shared_ptr<event_state> &state, unsigned long number)
{
    if (state->done < number && state->stream)
        (void)advance(state->stream, state->at ? state->at : state->stream->pushed);
    return state->done >= number;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    guard g(lock);
    (void)flags;
    std::shared_ptr<event_state> state = e->s;
    unsigned long number = state->record;
    push_work(s, {[=] { return reach(state, number); }, NULL});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    guard g(lock);
    while (!reach(e->s, e->s->record))
        wait_a_moment();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    guard g(lock);
    return reach(e->s, e->s->record) ? cudaSuccess : cudaErrorNotReady;
}

/* ---- graphs: what was queued while a stream captured ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    guard g(lock);
    (void)mode;
    if (!s || s->capture)
        return note(cudaErrorInvalidValue);
    s->capture = new CUgraph_st;
    s->invalid = false;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    guard g(lock);
    *out = s->capture;
    s->capture = NULL;
    if (s->invalid) {
        delete *out;
        *out = NULL;
        return note(cudaErrorStreamCaptureInvalidated);
    }
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
    if (fails(1))
        return note(cudaErrorUnknown);
    launches++;
    for (const node &n : exec->list)
        if (n.each)
            push_shared(s, n.each());
        else
            push_work(s, n.w);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    guard g(lock); /* what is under way of it ends by itself */
    delete exec;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    guard g(lock);
    delete graph;
    return cudaSuccess;
}

/* ---- errors ---- */

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
