/* elem.cu - norms, rope, embedding and element-wise operations of inference. All are bound by the
 * bytes that they read and write. */
#include "infer/cuda/cuda.h"
#include "infer/cuda/lanes.h"

__global__ void k_add(float *y, const float *x, uint64_t n)
{
    for (uint64_t i = fmc_index(); i < n; i += fmc_stride())
        y[i] = y[i] + x[i];
}

__global__ void k_scale(float *y, float s, uint64_t n)
{
    for (uint64_t i = fmc_index(); i < n; i += fmc_stride())
        y[i] = y[i] * s;
}

static void add(fm_backend *be, float *y, const float *x, uint64_t n)
{
    fmc_device *d = fmc_of(be);
    if (n > 0)
        FMC_RUN(d, k_add, fmc_blocks(n, FMC_THREADS), FMC_THREADS, 0, y, x, n);
}

static void scale(fm_backend *be, float *y, float s, uint64_t n)
{
    fmc_device *d = fmc_of(be);
    if (n > 0)
        FMC_RUN(d, k_scale, fmc_blocks(n, FMC_THREADS), FMC_THREADS, 0, y, s, n);
}

/* One row of h floats to a half warp. */
__global__ void k_rmsnorm(float *y, const float *x, const float *gain, float *rstd_out, uint32_t m,
                          uint32_t h, size_t ldx, float eps)
{
    uint32_t lane = threadIdx.x % FMC_LANES, each = blockDim.x / FMC_LANES;
    for (uint32_t row = blockIdx.x * each + threadIdx.x / FMC_LANES; row < m;
         row += gridDim.x * each) {
        const float *xr = x + row * ldx;
        float sum = 0.0f;
        for (uint32_t i = lane; i < h; i += FMC_LANES)
            sum = fmaf(xr[i], xr[i], sum);
        float rstd = 1.0f / sqrtf(fmc_fold_add(sum) / (float)h + eps);
        for (uint32_t i = lane; i < h; i += FMC_LANES)
            y[row * ldx + i] = (xr[i] * rstd) * gain[i];
        if (rstd_out && lane == 0)
            rstd_out[row] = rstd;
    }
}

static void rmsnorm(fm_backend *be, float *y, const float *x, const float *gain, float *rstd_out,
                    uint32_t m, uint32_t h, size_t ldx, float eps)
{
    fmc_device *d = fmc_of(be);
    if (m > 0)
        FMC_RUN(d, k_rmsnorm, fmc_blocks(m, FMC_THREADS / FMC_LANES), FMC_THREADS, 0, y, x, gain,
                rstd_out, m, h, ldx, eps);
}

void fmc_elem_install(fm_backend *be)
{
    be->add = add;
    be->scale = scale;
    be->rmsnorm = rmsnorm;
}
