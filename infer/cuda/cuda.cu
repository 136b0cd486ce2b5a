/* cuda.cu - the CUDA backend's life cycle: entries of the module, devices, memory, streams,
 * errors. */
#include "infer/cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#define RING_BYTES (16u << 20)
#define ALIGN 256u
#define PDL_CAPABILITY 90 /* griddepcontrol */

static const fm_module_host *host_side;

/* ---- errors ---- */

fm_status fmc_fail(fm_status rc, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return host_side->fail(rc, text);
}

void *fmc_take(size_t bytes)
{
    void *p = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void fmc_release(void *p)
{
    free(p);
}

fm_status fmc_status(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return FM_OK;
    (void)cudaGetLastError(); /* reported here, not again at the next launch */
    if (e == cudaErrorMemoryAllocation)
        return fmc_fail(FM_ELIMIT, "%s: the device's memory is used up", what);
    if (e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver || e == cudaErrorInvalidDevice)
        return fmc_fail(FM_EUNSUPPORTED, "%s: %s", what, cudaGetErrorString(e));
    return fmc_fail(FM_EIO, "%s: CUDA says: %s", what, cudaGetErrorString(e));
}

void fmc_stick(fmc_device *d, fm_status rc, const char *text)
{
    if (rc < 0 && d->failed == FM_OK) {
        d->failed = rc;
        (void)snprintf(d->why, sizeof d->why, "%s", text);
    }
}

void fmc_launched(fmc_device *d, const char *kernel)
{
    cudaError_t e = cudaGetLastError();
    char text[256];
    if (e == cudaSuccess)
        return;
    (void)snprintf(text, sizeof text, "%s: the kernel was not started: %s", kernel,
                   cudaGetErrorString(e));
    fmc_stick(d, e == cudaErrorMemoryAllocation ? FM_ENOMEM : FM_EIO, text);
}

static void stick_cuda(fmc_device *d, cudaError_t e, const char *what)
{
    char text[256];
    if (e == cudaSuccess)
        return;
    (void)cudaGetLastError();
    (void)snprintf(text, sizeof text, "%s: %s", what, cudaGetErrorString(e));
    fmc_stick(d, e == cudaErrorMemoryAllocation ? FM_ENOMEM : FM_EIO, text);
}

__thread int fmc_here = -1;

void fmc_enter_anew(const fmc_device *d)
{
    fmc_here = cudaSetDevice((int)d->ordinal) == cudaSuccess ? (int)d->ordinal : -1;
}

/* ---- kernels that begin before their turn ---- */

#define KNOWN_MAX 512u /* a power of two; further kernels are launched without overlap */

struct fmc_known {
    const void *kernel[KNOWN_MAX]; /* hashed by address, then the next free place */
    bool soon[KNOWN_MAX];
};

bool fmc_may_begin_soon(fmc_device *d, const void *kernel)
{
    unsigned at = (unsigned)((uintptr_t)kernel >> 4) % KNOWN_MAX;
    if (d->never_soon)
        return false;
    if (!d->known)
        d->known = (struct fmc_known *)fmc_take(sizeof *d->known);
    for (unsigned i = 0; d->known && i < KNOWN_MAX; i++, at = (at + 1) % KNOWN_MAX) {
        if (d->known->kernel[at] == kernel)
            return d->known->soon[at];
        if (!d->known->kernel[at]) {
            cudaFuncAttributes a = {};
            d->known->kernel[at] = kernel;
            d->known->soon[at] =
                cudaFuncGetAttributes(&a, kernel) == cudaSuccess && a.ptxVersion >= PDL_CAPABILITY;
            (void)cudaGetLastError();
            return d->known->soon[at];
        }
    }
    return false;
}

/* ---- memory ---- */

fm_status fmc_op_alloc(fm_backend *be, void **out, size_t bytes)
{
    fmc_device *d = fmc_of(be);
    fmc_enter(d);
    *out = NULL;
    cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    if (e == cudaSuccess) {
        pthread_mutex_lock(&d->lock);
        e = cudaMemsetAsync(*out, 0, bytes ? bytes : 1, d->copy);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(d->copy);
        pthread_mutex_unlock(&d->lock);
    }
    if (e != cudaSuccess) {
        (void)cudaFree(*out);
        *out = NULL;
        if (e == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            return fmc_fail(FM_ELIMIT, "cuda:%u: no room for %zu bytes more on the device",
                            d->ordinal, bytes);
        }
    }
    return fmc_status(e, "allocation on the device");
}

void fmc_op_free(fm_backend *be, void *ptr)
{
    fmc_enter(fmc_of(be));
    if (!fmc_room_free(fmc_of(be), ptr))
        (void)cudaFree(ptr); /* waits for kernels that still use it */
}

fm_status fmc_op_host_alloc(fm_backend *be, void **out, size_t bytes)
{
    fmc_enter(fmc_of(be));
    *out = NULL;
    return fmc_status(cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault),
                      "pinned memory of the host");
}

void fmc_op_host_free(fm_backend *be, void *ptr)
{
    fmc_enter(fmc_of(be));
    (void)cudaFreeHost(ptr);
}

/* Offset of a piece of the ring, whose older half may still be read. The caller holds the lock. */
static cudaError_t ring_take(fmc_device *d, size_t bytes, size_t *at)
{
    fmc_ring *r = &d->ring;
    size_t half = r->cap_bytes / 2, take = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    unsigned now = r->at > half; /* exactly half: the first half is full, the other not begun */
    cudaError_t e = cudaSuccess;
    if (r->at + take > (now + 1) * half) {
        e = cudaEventRecord(r->passed[now], d->line);
        r->used[now] = true;
        now = !now;
        r->at = now * half;
        if (e == cudaSuccess && r->used[now])
            e = cudaEventSynchronize(r->passed[now]);
    }
    *at = r->at;
    r->at += take;
    return e;
}

void *fmc_args(fmc_device *d, const void *host, size_t bytes)
{
    void *to, *dev;
    cudaError_t e;
    if (d->failed != FM_OK)
        return NULL;
    fmc_enter(d);
    if (bytes > FMC_ARGS_MAX) {
        fmc_stick(d, FM_ELIMIT, "a list of operations is too long for one call");
        return NULL;
    }
    if (d->arena) {
        if (fmc_arena_take(d, bytes, &to, &dev) != FM_OK) {
            fmc_stick(d, FM_ENOMEM, "no room for the lists of a recorded step");
            return NULL;
        }
        memcpy(to, host, bytes); /* copied to the GPU once, when the recording is complete */
        e = cudaSuccess;
    } else {
        size_t at;
        pthread_mutex_lock(&d->lock);
        e = ring_take(d, bytes, &at);
        to = d->ring.host + at;
        dev = d->ring.dev + at;
        memcpy(to, host, bytes);
        if (e == cudaSuccess)
            e = cudaMemcpyAsync(dev, to, bytes, cudaMemcpyHostToDevice, d->line);
        pthread_mutex_unlock(&d->lock);
    }
    stick_cuda(d, e, "a list of operations");
    return e == cudaSuccess ? dev : NULL;
}

/* Small uploads pass through the ring in the order of operations. Large ones are copied on a stream
 * of their own behind what is queued already, and the host waits for them. */
fm_status fmc_op_upload(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    fmc_device *d = fmc_of(be);
    cudaError_t e = cudaSuccess;
    if (bytes == 0)
        return FM_OK;
    fmc_enter(d);
    pthread_mutex_lock(&d->lock);
    if (bytes <= RING_BYTES / 8) {
        size_t at;
        e = ring_take(d, bytes, &at);
        memcpy(d->ring.host + at, src, bytes);
        if (e == cudaSuccess)
            e = cudaMemcpyAsync(dst, d->ring.host + at, bytes, cudaMemcpyHostToDevice, d->line);
    } else {
        e = cudaEventRecord(d->mark, d->line);
        if (e == cudaSuccess)
            e = cudaStreamWaitEvent(d->copy, d->mark, 0);
        if (e == cudaSuccess)
            e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, d->copy);
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(d->copy);
    }
    pthread_mutex_unlock(&d->lock);
    return fmc_status(e, "upload to the device");
}

fm_status fmc_op_sync(fm_backend *be)
{
    fmc_device *d = fmc_of(be);
    fmc_enter_anew(d);
    stick_cuda(d, cudaStreamSynchronize(d->line), "waiting for the device");
    fm_status rc = d->failed;
    d->failed = FM_OK;
    return rc < 0 ? fmc_fail(rc, "cuda:%u: %s", d->ordinal, d->why) : FM_OK;
}

fm_status fmc_op_download(fm_backend *be, void *dst, const void *src, size_t bytes)
{
    fmc_device *d = fmc_of(be);
    fmc_enter(d);
    if (bytes > 0)
        stick_cuda(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->line),
                   "download from the device");
    return fmc_op_sync(be);
}

/* Replaces a slot's memory, but keeps the old one, which recorded steps may still write to. */
static void outgrow(fmc_device *d, fmc_scratch *s)
{
    fmc_outgrown *old = d->graphs && s->bytes ? (fmc_outgrown *)fmc_take(sizeof *old) : NULL;
    if (old) {
        *old = {s->bytes, d->outgrown};
        d->outgrown = old;
    } else if (d->graphs && s->bytes) {
        fmc_stick(d, FM_ENOMEM, "out of memory");
        return;
    } else {
        (void)cudaFree(s->bytes);
    }
    s->bytes = NULL;
    s->cap_bytes = 0;
}

void *fmc_scratch_get(fmc_device *d, unsigned slot, size_t bytes)
{
    fmc_scratch *s = &d->scratch[slot];
    if (d->failed != FM_OK)
        return NULL;
    fmc_enter(d);
    if (bytes > s->cap_bytes || !s->bytes) {
        if (d->arena) {
            fmc_stick(d, FM_ELIMIT, "a recorded step needs more room than the step before it");
            return NULL;
        }
        size_t cap = FM_MAX(bytes + bytes / 4, d->graphs ? 2 * s->cap_bytes : 0) + ALIGN;
        outgrow(d, s);
        if (d->failed == FM_OK)
            stick_cuda(d, cudaMalloc(&s->bytes, cap), "room for an operation on the device");
        if (d->failed != FM_OK) {
            s->bytes = NULL;
            return NULL;
        }
        s->cap_bytes = cap;
    }
    return s->bytes;
}

/* ---- life cycle ---- */

static void cuda_close(fm_backend *be)
{
    fmc_device *d = fmc_of(be);
    fmc_enter(d);
    (void)cudaStreamSynchronize(d->line); /* not the whole GPU: others may be recording */
    (void)cudaStreamSynchronize(d->copy);
    fmc_fast_close(d);
    fmc_graph_close(d);
    fmc_side_stream_close(d);
    for (unsigned i = 0; i < FMC_SCRATCHES; i++)
        (void)cudaFree(d->scratch[i].bytes);
    for (fmc_outgrown *o = d->outgrown, *next; o; o = next) {
        next = o->next;
        (void)cudaFree(o->bytes);
        fmc_release(o);
    }
    (void)cudaFree(d->ring.dev);
    (void)cudaFreeHost(d->ring.host);
    for (unsigned i = 0; i < 2; i++)
        if (d->ring.passed[i])
            (void)cudaEventDestroy(d->ring.passed[i]);
    if (d->mark)
        (void)cudaEventDestroy(d->mark);
    if (d->copy)
        (void)cudaStreamDestroy(d->copy);
    if (d->line)
        (void)cudaStreamDestroy(d->line);
    pthread_mutex_destroy(&d->lock);
    fmc_release(d->known);
    delete d;
}

static cudaError_t open_streams(fmc_device *d)
{
    cudaError_t e = cudaStreamCreateWithFlags(&d->line, cudaStreamNonBlocking);
    d->stream = d->line;
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&d->copy, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&d->mark, cudaEventDisableTiming);
    for (unsigned i = 0; i < 2 && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&d->ring.passed[i], cudaEventDisableTiming);
    d->ring.cap_bytes = RING_BYTES;
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&d->ring.host, RING_BYTES, cudaHostAllocDefault);
    if (e == cudaSuccess)
        e = cudaMalloc((void **)&d->ring.dev, RING_BYTES);
    return e;
}

static cudaError_t ask_device(fmc_device *d)
{
    int major = 0, minor = 0, device = (int)d->ordinal;
    cudaError_t e = cudaSetDevice(device);
    fmc_here = e == cudaSuccess ? device : -1;
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&d->multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&d->shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    d->capability = 10 * major + minor;
    const char *soon = getenv("FMSTORE_CUDA_PDL");
    d->never_soon = d->capability < PDL_CAPABILITY || (soon && strcmp(soon, "0") == 0);
    (void)snprintf(d->isa, sizeof d->isa, "sm_%d", d->capability);
    return e;
}

static void install(fmc_device *d)
{
    fm_backend *be = &d->be;
    be->name = "cuda";
    be->mode = "exact";
    be->kernel_class = "exact-f32-1";
    be->layout = "cuda-stored-1";
    be->isa = d->isa;
    be->host_visible = false;
    be->attends = FM_ATTENDS_SINK | FM_ATTENDS_FIRST | FM_ATTENDS_WIDE;
    be->ctx = d;
    be->close = cuda_close;
#define SLOT(op) be->op = fmc_op_##op;
    FMC_OPS(SLOT)
#undef SLOT
}

#define OLDEST_CAPABILITY 80

static fm_status open_device(fmc_device *d, const char *mode)
{
    cudaError_t e = ask_device(d);
    if (e == cudaSuccess && d->capability < OLDEST_CAPABILITY)
        return fmc_fail(FM_EUNSUPPORTED, "cuda:%u is %s; sm_80 (A100, RTX 30) or newer is needed",
                        d->ordinal, d->isa);
    if (e == cudaSuccess)
        e = open_streams(d);
    if (e != cudaSuccess)
        return fmc_status(e, "opening the device");
    install(d);
    if (strcmp(mode, "fast") == 0)
        return fmc_fast_open(d);
    return strcmp(mode, "bf16") == 0 ? fmc_bf16_open(d) : FM_OK;
}

static fm_status count_devices(uint32_t *out)
{
    int n = 0, driver = 0;
    *out = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess) {
        (void)cudaGetLastError();
        return driver == 0
                   ? fmc_fail(FM_EUNSUPPORTED, "there is no NVIDIA driver on this machine")
                   : fmc_fail(FM_EUNSUPPORTED,
                              "the NVIDIA driver is for CUDA %d.%d, older than the module's "
                              "%d.%d: install a newer driver",
                              driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                              CUDART_VERSION % 1000 / 10);
    }
    if (e != cudaSuccess)
        return fmc_status(e, "looking for CUDA devices");
    *out = (uint32_t)n;
    return n > 0 ? FM_OK : fmc_fail(FM_EUNSUPPORTED, "there is no CUDA device here");
}

static fm_status module_open(fm_backend **out, uint32_t device, const char *mode, fm_pool *pool)
{
    uint32_t n;
    *out = NULL;
    if (strcmp(mode, "exact") != 0 && strcmp(mode, "fast") != 0 && strcmp(mode, "bf16") != 0)
        return fmc_fail(FM_EUNSUPPORTED,
                        "compute mode '%s' is not supported; exact, fast and bf16 are", mode);
    fm_status rc = count_devices(&n);
    if (rc != FM_OK)
        return rc;
    if (device >= n)
        return fmc_fail(FM_EINVAL, "there is no device cuda:%u; %u %s here, numbered from 0",
                        device, n, n == 1 ? "is" : "are");
    fmc_device *d = new (std::nothrow) fmc_device();
    if (!d)
        return fmc_fail(FM_ENOMEM, "out of memory");
    d->ordinal = device;
    d->pool = pool;
    pthread_mutex_init(&d->lock, NULL);
    rc = open_device(d, mode);
    if (rc != FM_OK)
        cuda_close(&d->be);
    else
        *out = &d->be;
    return rc;
}

static fm_status describe(char *text, size_t cap, uint32_t device)
{
    cudaDeviceProp p;
    fm_status rc = fmc_status(cudaGetDeviceProperties(&p, (int)device), "asking the device");
    if (rc == FM_OK)
        (void)snprintf(text, cap, "%s, %.1f GiB, compute capability %d.%d, %d multiprocessors",
                       p.name, (double)p.totalGlobalMem / (1 << 30), p.major, p.minor,
                       p.multiProcessorCount);
    else if (cap > 0)
        text[0] = '\0';
    return rc;
}

extern "C" const fm_module *fm_module_get(const fm_module_host *host)
{
    static const fm_module module = {FM_MODULE_ABI, "cuda",      count_devices,
                                     describe,      module_open, fmc_nccl_open};
    if (host->abi != FM_MODULE_ABI)
        return NULL;
    host_side = host;
    return &module;
}
