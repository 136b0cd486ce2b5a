/* virtual.cpp - the driver's virtual memory on the host: addresses that fault until memory is
 * mapped there and may be accessed. Memory counts against the GPU's from its creation to the end
 * of handle and mapping, whichever is later. SIMT_VIRTUAL=0: a driver without it. */
#include "cuda_runtime.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <string>

#include "cuda.h"

#define PIECE ((size_t)2 << 20) /* memory and mappings are whole ones */

struct memory {
    size_t bytes;
    unsigned held; /* by its handle and by its mapping */
};

static std::mutex lock;
static std::map<CUmemGenericAllocationHandle, memory> memories;
struct mapping {
    CUmemGenericAllocationHandle memory;
    size_t bytes;
};
static std::map<CUdeviceptr, mapping> mapped;
static std::map<CUdeviceptr, size_t> reserved;
static CUmemGenericAllocationHandle last;

static void drop(CUmemGenericAllocationHandle h)
{
    memory &m = memories[h];
    if (--m.held > 0)
        return;
    simt_charge(-(long long)m.bytes);
    memories.erase(h);
}

static bool is_piece(CUdeviceptr at, size_t bytes)
{
    auto it = reserved.upper_bound(at);
    return bytes > 0 && bytes % PIECE == 0 && at % PIECE == 0 && it != reserved.begin() &&
           at + bytes <= std::prev(it)->first + std::prev(it)->second;
}

static bool is_taken(CUdeviceptr at, size_t bytes)
{
    auto it = mapped.lower_bound(at + bytes);
    return it != mapped.begin() && std::prev(it)->first + std::prev(it)->second.bytes > at;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    int n = 0;
    *out = ordinal;
    return cudaGetDeviceCount(&n) == cudaSuccess && ordinal < n ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *out = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    (void)prop;
    (void)option;
    *out = PIECE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags)
{
    std::lock_guard<std::mutex> g(lock);
    if (bytes == 0 || bytes % PIECE != 0 || alignment != 0 || at != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    char *p = (char *)mmap(NULL, bytes + PIECE, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *begin = (char *)(((uintptr_t)p + PIECE - 1) / PIECE * PIECE);
    (void)munmap(p, (size_t)(begin - p));
    (void)munmap(begin + bytes, PIECE - (size_t)(begin - p));
    *out = (CUdeviceptr)(uintptr_t)begin;
    reserved[*out] = bytes;
    simt_device_range(begin, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    std::lock_guard<std::mutex> g(lock);
    auto it = reserved.find(at);
    auto m = mapped.lower_bound(at);
    if (it == reserved.end() || it->second != bytes || (m != mapped.end() && m->first < at + bytes))
        return CUDA_ERROR_INVALID_VALUE;
    simt_device_range((void *)(uintptr_t)at, 0);
    (void)munmap((void *)(uintptr_t)at, bytes);
    reserved.erase(it);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    std::lock_guard<std::mutex> g(lock);
    if (bytes == 0 || bytes % PIECE != 0 || flags != 0 ||
        prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (!simt_charge((long long)bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = ++last;
    memories[*out] = {bytes, 1};
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
    std::lock_guard<std::mutex> g(lock);
    if (memories.find(h) == memories.end())
        return CUDA_ERROR_INVALID_VALUE;
    drop(h);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle h,
                  unsigned long long flags)
{
    std::lock_guard<std::mutex> g(lock);
    auto m = memories.find(h);
    if (m == memories.end() || m->second.bytes != bytes || offset != 0 || flags != 0 ||
        !is_piece(at, bytes) || is_taken(at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    m->second.held++;
    mapped[at] = {h, bytes};
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    std::lock_guard<std::mutex> g(lock);
    void *p = (void *)(uintptr_t)at;
    auto it = mapped.find(at);
    if (it == mapped.end() || bytes != it->second.bytes || count != 1 ||
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        mprotect(p, bytes, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memset(p, 0xff, bytes); /* nobody promises zeros */
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    std::lock_guard<std::mutex> g(lock);
    auto it = mapped.find(at);
    void *p = (void *)(uintptr_t)at;
    if (it == mapped.end() || bytes != it->second.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    (void)madvise(p, bytes, MADV_DONTNEED);
    (void)mprotect(p, bytes, PROT_NONE);
    drop(it->second.memory);
    mapped.erase(it);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags, void *status)
{
    static const std::map<std::string, void *> symbols = {
        {"cuDeviceGet", (void *)cuDeviceGet},
        {"cuDeviceGetAttribute", (void *)cuDeviceGetAttribute},
        {"cuMemGetAllocationGranularity", (void *)cuMemGetAllocationGranularity},
        {"cuMemAddressReserve", (void *)cuMemAddressReserve},
        {"cuMemAddressFree", (void *)cuMemAddressFree},
        {"cuMemCreate", (void *)cuMemCreate},
        {"cuMemRelease", (void *)cuMemRelease},
        {"cuMemMap", (void *)cuMemMap},
        {"cuMemUnmap", (void *)cuMemUnmap},
        {"cuMemSetAccess", (void *)cuMemSetAccess}};
    const char *has = getenv("SIMT_VIRTUAL");
    auto it = symbols.find(name);
    (void)flags;
    (void)status;
    *out =
        it == symbols.end() || version > CUDART_VERSION || (has && *has == '0') ? NULL : it->second;
    return *out ? cudaSuccess : cudaErrorInvalidValue;
}
