/* fast_weight.cu - weights of mode fast: bf16, and blocks as they are stored. */
#include "infer/cuda/cuda.h"
