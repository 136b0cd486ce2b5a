/* fast.cu - opens modes fast and bf16: mode exact's table with weights and products of their
 * own. */
#include "infer/cuda/mma/fast.h"

#include <stdio.h>

#include <new>

/* The bits of mma differ between generations of GPUs, so the class names the generation. */
static const char *class_of(const char *mode, int capability)
{
    static char text[2][16][32]; /* by tens of capability; the same text each time */
    char *t = text[mode[0] == 'b'][capability / 10 % 16];
    (void)snprintf(t, sizeof text[0][0], "cuda-%s.sm%d", mode[0] == 'b' ? "bf16-2" : "fast-2",
                   capability / 10 * 10);
    return t;
}

fmc_verdict fmc_found(fmc_device *d, bool equal)
{
    if (d->failed == FM_OK)
        return equal ? FMC_EQUAL : FMC_OTHER;
    if (cudaStreamSynchronize(d->stream) == cudaSuccess && cudaGetLastError() == cudaSuccess)
        d->failed = FM_OK;
    return FMC_OTHER;
}

static fm_status begin(fmc_device *d)
{
    fmc_fast *f = new (std::nothrow) fmc_fast();
    if (!f)
        return fmc_fail(FM_ENOMEM, "out of memory");
    f->exact = d->be;
    pthread_mutex_init(&f->lock, NULL);
    d->fast = f;
    cudaError_t e = cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaMalloc(&f->staging, FMC_STAGING_BYTES);
    void *special = NULL;
    if (e == cudaSuccess)
        e = cudaMalloc(&special, sizeof *f->special);
    f->special = (unsigned *)special;
    if (e != cudaSuccess)
        return fmc_status(e, "opening the device");
    fm_status rc = fmc_fast_product_open(d);
    if (rc == FM_OK)
        rc = fmc_sm90_begin(d);
    return rc == FM_OK ? fmc_sm908_begin(d) : rc;
}

fm_status fmc_fast_open(fmc_device *d)
{
    fm_backend *be = &d->be;
    void *arrived = NULL;
    fm_status rc = begin(d);
    if (rc == FM_OK)
        rc = be->alloc(be, &arrived, FMC_ARRIVED * sizeof(uint32_t));
    if (rc != FM_OK)
        return rc;
    fmc_fast_of(be)->arrived = (uint32_t *)arrived;
    be->mode = "fast";
    be->kernel_class = class_of("fast", d->capability);
    be->layout = "cuda-tiles-1";
    fm_backend_drop_training(be);
    fmc_fast_weight_install(be);
    fmc_fast_product_install(be);
    fmc_fast_lora_install(be);
    fmc_fast_attention_install(be);
    return FM_OK;
}

void fmc_fast_close(fmc_device *d)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    if (!f)
        return;
    fmc_sm908_end(d);
    fmc_sm90_end(d);
    if (f->stream)
        (void)cudaStreamDestroy(f->stream);
    (void)cudaFree(f->staging);
    (void)cudaFree(f->special);
    (void)cudaFree(f->arrived);
    pthread_mutex_destroy(&f->lock);
    delete f;
    d->fast = NULL;
}

fm_status fmc_bf16_open(fmc_device *d)
{
    fm_backend *be = &d->be;
    fm_status rc = begin(d);
    if (rc != FM_OK)
        return rc;
    be->mode = "bf16";
    be->kernel_class = class_of("bf16", d->capability);
    be->layout = "cuda-tiles-bf16-1";
    fmc_fast_weight_install(be);
    fmc_fast_product_install(be);
    fmc_fast_train_install(be);
    fmc_fast_attention_train_install(be);
    return FM_OK;
}
