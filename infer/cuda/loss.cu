/* loss.cu - cross entropy, distillation, log sum exp. */
#include "infer/cuda/cuda.h"

void fmc_loss_install(fm_backend *be)
{
    (void)be;
}
