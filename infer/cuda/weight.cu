/* weight.cu - weights on the card: the stored bytes, row by row, in the type that they are stored in. */
#include "infer/cuda/cuda.h"

void fmc_weight_install(fm_backend *be)
{
    (void)be;
}
