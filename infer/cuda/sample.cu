/* sample.cu - choice of tokens on the card. */
#include "infer/cuda/cuda.h"

void fmc_sample_install(fm_backend *be)
{
    (void)be;
}
