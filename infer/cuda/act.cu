/* act.cu - activation functions and their gradients. */
#include "infer/cuda/cuda.h"

void fmc_act_install(fm_backend *be)
{
    (void)be;
}
