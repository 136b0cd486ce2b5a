/* fast.cu - modes fast and bf16: what they do otherwise than exact. */
#include "infer/cuda/cuda.h"

fm_status fmc_fast_open(fmc_device *d)
{
    return fmc_fail(FM_EUNSUPPORTED, "cuda:%u: mode fast is not there yet; exact is", d->ordinal);
}

void fmc_fast_close(fmc_device *d)
{
    (void)d;
}

fm_status fmc_bf16_open(fmc_device *d)
{
    return fmc_fail(FM_EUNSUPPORTED, "cuda:%u: mode bf16 is not there yet; exact is", d->ordinal);
}
