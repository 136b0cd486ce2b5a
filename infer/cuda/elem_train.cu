/* elem_train.cu - gradients of elem.cu, dropout, sums, AdamW. */
#include "infer/cuda/cuda.h"

void fmc_elem_train_install(fm_backend *be)
{
    (void)be;
}
