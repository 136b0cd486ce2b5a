/* answers.cpp - what the runtime says of itself, of a GPU and of its errors. */
#include "cuda_runtime.h"

static bool is_device(int d)
{
    int n = 0;
    (void)cudaGetDeviceCount(&n);
    return d >= 0 && d < n;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int d)
{
    if (!is_device(d))
        return cudaErrorInvalidDevice;
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
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    if (!is_device(d))
        return cudaErrorInvalidDevice;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device");
    p->totalGlobalMem = (size_t)4 << 30;
    p->major = 9;
    p->multiProcessorCount = 4;
    return cudaSuccess;
}

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
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
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
