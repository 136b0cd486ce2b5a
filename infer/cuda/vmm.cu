/* vmm.cu - address ranges (reserve) whose memory comes as it is used: all addresses at once, memory
 * of the GPU in pieces when commit first asks for them (2 to 32 MiB, a 64th of the range: creating,
 * mapping and clearing cost more by the piece than by the byte), freed with the range. So a cache
 * of keys and values takes the memory that its texts need, and several budgets can share the GPU.
 * Where the driver has no virtual memory the whole range gets memory at once.
 *
 * The driver's calls are found through the runtime: the module is not linked with libcuda. */
#include "infer/cuda/cuda.h"

#include <cuda.h>
#include <string.h>

struct driver {
    decltype(&cuMemAddressReserve) reserve;
    decltype(&cuMemAddressFree) unreserve;
    decltype(&cuMemCreate) create;
    decltype(&cuMemRelease) release;
    decltype(&cuMemMap) map;
    decltype(&cuMemUnmap) unmap;
    decltype(&cuMemSetAccess) access;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuDeviceGet) device;
    decltype(&cuDeviceGetAttribute) attribute;
    bool there;
};

struct fmc_room {
    CUdeviceptr at;
    size_t asked;          /* bytes that reserve was asked for */
    size_t bytes, piece;   /* piece 0: the whole range has memory from the start (cudaMalloc) */
    unsigned char *mapped; /* [bytes / piece] */
    fmc_room *next;
};

#define PIECE_MOST ((size_t)32 << 20)

template <class F> static bool find(F *slot, const char *name)
{
    void *symbol = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t e = cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, NULL);
#else
    cudaError_t e = cudaGetDriverEntryPoint(name, &symbol, cudaEnableDefault, NULL);
#endif
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    *slot = e == cudaSuccess ? (F)symbol : NULL;
    return *slot != NULL;
}

static const driver *driver_of(void)
{
    static driver d;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
        d.there = find(&d.reserve, "cuMemAddressReserve") &&
                  find(&d.unreserve, "cuMemAddressFree") && find(&d.create, "cuMemCreate") &&
                  find(&d.release, "cuMemRelease") && find(&d.map, "cuMemMap") &&
                  find(&d.unmap, "cuMemUnmap") && find(&d.access, "cuMemSetAccess") &&
                  find(&d.granularity, "cuMemGetAllocationGranularity") &&
                  find(&d.device, "cuDeviceGet") && find(&d.attribute, "cuDeviceGetAttribute");
    });
    return &d;
}

static CUmemAllocationProp memory_of(const fmc_device *d)
{
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = (int)d->ordinal;
    return p;
}

/* Bytes of a piece of a range of that size; 0: the GPU has no virtual memory. */
static size_t piece_of(const fmc_device *d, size_t bytes)
{
    const driver *v = driver_of();
    CUmemAllocationProp p = memory_of(d);
    CUdevice device;
    int yes = 0;
    size_t piece = 0, most = bytes / 64 < PIECE_MOST ? bytes / 64 : PIECE_MOST;
    if (!v->there || v->device(&device, (int)d->ordinal) != CUDA_SUCCESS ||
        v->attribute(&yes, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) !=
            CUDA_SUCCESS ||
        !yes || v->granularity(&piece, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        return 0;
    return most > piece ? most / piece * piece : piece;
}

/* ---- ranges ---- */

static fmc_room *room_at(fmc_device *d, const void *ptr)
{
    fmc_room *r = d->rooms;
    while (r && (void *)(uintptr_t)r->at != ptr)
        r = r->next;
    return r;
}

static fmc_room *room_new(fmc_device *d, size_t bytes)
{
    const size_t piece = piece_of(d, bytes);
    fmc_room *r = piece ? (fmc_room *)fmc_take(sizeof *r) : NULL;
    if (!r)
        return NULL;
    r->asked = bytes;
    r->piece = piece;
    r->bytes = (bytes + piece - 1) / piece * piece;
    r->mapped = (unsigned char *)fmc_take(r->bytes / piece);
    if (!r->mapped || driver_of()->reserve(&r->at, r->bytes, 0, 0, 0) != CUDA_SUCCESS) {
        fmc_release(r->mapped);
        fmc_release(r);
        return NULL;
    }
    return r;
}

/* Allocates the whole range at once; commit clears it. */
static fm_status whole_room(fmc_room **out, size_t bytes)
{
    void *at = NULL;
    fmc_room *r = (fmc_room *)fmc_take(sizeof *r);
    *out = NULL;
    if (!r)
        return fmc_fail(FM_ENOMEM, "out of memory");
    fm_status rc = fmc_status(cudaMalloc(&at, bytes ? bytes : 1), "room on the device");
    if (rc != FM_OK) {
        fmc_release(r);
        return rc;
    }
    r->asked = bytes;
    r->at = (CUdeviceptr)(uintptr_t)at;
    *out = r;
    return FM_OK;
}

static void room_free(fmc_room *r)
{
    const driver *v = driver_of();
    if (r->piece == 0) {
        (void)cudaFree((void *)(uintptr_t)r->at);
        fmc_release(r);
        return;
    }
    for (size_t i = 0; i < r->bytes / r->piece; i++)
        if (r->mapped[i])
            (void)v->unmap(r->at + i * r->piece, r->piece);
    (void)v->unreserve(r->at, r->bytes);
    fmc_release(r->mapped);
    fmc_release(r);
}

/* Maps cleared memory for piece i; its handle is released at once, so unmapping frees the
 * memory. */
static CUresult map_piece(fmc_device *d, fmc_room *r, size_t i)
{
    const driver *v = driver_of();
    CUmemAllocationProp p = memory_of(d);
    CUmemGenericAllocationHandle memory;
    CUmemAccessDesc access;
    CUdeviceptr at = r->at + i * r->piece;
    CUresult e = v->create(&memory, r->piece, &p, 0);
    if (e != CUDA_SUCCESS)
        return e;
    e = v->map(at, r->piece, 0, memory, 0);
    (void)v->release(memory);
    if (e != CUDA_SUCCESS)
        return e;
    memset(&access, 0, sizeof access);
    access.location = p.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    e = v->access(at, r->piece, &access, 1);
    if (e == CUDA_SUCCESS &&
        cudaMemsetAsync((void *)(uintptr_t)at, 0, r->piece, d->line) != cudaSuccess) {
        (void)cudaGetLastError();
        e = CUDA_ERROR_UNKNOWN;
    }
    if (e != CUDA_SUCCESS)
        (void)v->unmap(at, r->piece);
    r->mapped[i] = e == CUDA_SUCCESS;
    return e;
}

/* ---- operations ---- */

fm_status fmc_op_reserve(fm_backend *be, void **out, size_t bytes)
{
    fmc_device *d = fmc_of(be);
    fmc_enter(d);
    *out = NULL;
    fmc_room *r = bytes > 0 ? room_new(d, bytes) : NULL;
    fm_status rc = r ? FM_OK : whole_room(&r, bytes);
    if (rc != FM_OK)
        return rc;
    pthread_mutex_lock(&d->lock);
    r->next = d->rooms;
    d->rooms = r;
    pthread_mutex_unlock(&d->lock);
    *out = (void *)(uintptr_t)r->at;
    return FM_OK;
}

fm_status fmc_op_commit(fm_backend *be, void *ptr, size_t at, size_t bytes)
{
    fmc_device *d = fmc_of(be);
    CUresult e = CUDA_SUCCESS;
    fmc_enter(d);
    pthread_mutex_lock(&d->lock);
    fmc_room *r = room_at(d, ptr);
    size_t asked = r ? r->asked : 0, piece = r ? r->piece : 0;
    bool inside = r && at <= asked && bytes <= asked - at;
    for (size_t i = piece ? at / piece : 0;
         inside && piece && i * piece < at + bytes && e == CUDA_SUCCESS; i++)
        if (!r->mapped[i])
            e = map_piece(d, r, i);
    pthread_mutex_unlock(&d->lock);
    if (!inside)
        return fmc_fail(FM_EINVAL, "cuda:%u: bytes %zu to %zu of a room of %zu", d->ordinal, at,
                        at + bytes, asked);
    if (e == CUDA_ERROR_OUT_OF_MEMORY)
        return fmc_fail(FM_ELIMIT, "cuda:%u: no room for %zu bytes more on the device", d->ordinal,
                        bytes);
    if (e != CUDA_SUCCESS)
        return fmc_fail(FM_EIO, "cuda:%u: memory cannot be mapped: the driver says %d", d->ordinal,
                        (int)e);
    if (piece || bytes == 0) /* not written to before: each byte is committed once */
        return FM_OK;
    return fmc_status(cudaMemsetAsync((unsigned char *)ptr + at, 0, bytes, d->line),
                      "clearing memory of the device");
}

bool fmc_room_free(fmc_device *d, void *ptr)
{
    pthread_mutex_lock(&d->lock);
    fmc_room **at = &d->rooms;
    while (*at && (void *)(uintptr_t)(*at)->at != ptr)
        at = &(*at)->next;
    fmc_room *r = *at;
    if (r)
        *at = r->next;
    pthread_mutex_unlock(&d->lock);
    if (!r)
        return false;
    /* Waits, as cudaFree does. All use of these ranges is in this stream; waiting for the whole GPU
     * would fail, and break the recording, while a step is recorded. */
    (void)cudaStreamSynchronize(d->line);
    room_free(r);
    return true;
}
