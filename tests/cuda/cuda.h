/* cuda.h - stands in for the driver's header where .cu files are compiled for simt.h: virtual
 * memory, as the driver's reference has it, from virtual.cpp. */
#ifndef FM_TESTS_CUDA_DRIVER_H
#define FM_TESTS_CUDA_DRIVER_H

#include <stddef.h>

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef enum CUdevice_attribute {
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
} CUdevice_attribute;
typedef enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;
typedef enum CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 } CUmemLocationType;
typedef enum CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 } CUmemAccess_flags;
typedef enum CUmemAllocationGranularity_flags {
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
} CUmemAllocationGranularity_flags;
typedef struct CUmemLocation {
    CUmemLocationType type;
    int id;
} CUmemLocation;
typedef struct CUmemAllocationProp {
    CUmemAllocationType type;
    CUmemLocation location;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

CUresult cuDeviceGet(CUdevice *out, int ordinal);
CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device);
CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option);
CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle memory);
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle memory,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count);

#endif
