/* fast_attention.cu - attention of mode fast. */
#include "infer/cuda/cuda.h"
