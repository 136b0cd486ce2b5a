/* fast_lora.cu - low-rank terms of mixed ranks in one launch. */
#include "infer/cuda/cuda.h"
