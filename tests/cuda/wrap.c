/* wrap.c - engines of this program are on the GPU of FMSTORE_CUDA_MODULE, whatever device they ask
 * for; linked with --wrap=fm_backend_open_on. Where that machine has no GPU the test is skipped. */
#include <stdio.h>
#include <stdlib.h>

#include "infer/device/module.h"

fm_status __real_fm_backend_open_on(fm_backend **out, const char *device, const char *mode,
                                    fm_pool *pool);
fm_status __wrap_fm_backend_open_on(fm_backend **out, const char *device, const char *mode,
                                    fm_pool *pool);

fm_status __wrap_fm_backend_open_on(fm_backend **out, const char *device, const char *mode,
                                    fm_pool *pool)
{
    const fm_module *module;
    uint32_t cards;
    fm_status rc = fm_module_cuda(&module);
    (void)device;
    if (rc != FM_OK) /* no module is a fault of the build, no GPU is none */
        return rc;
    if (module->count(&cards) == FM_EUNSUPPORTED) {
        printf("skipped: %s\n", fm_error_text());
        exit(77);
    }
    return __real_fm_backend_open_on(out, "cuda", mode, pool);
}
