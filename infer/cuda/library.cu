/* library.cu - cuBLASLt, where it gives the same bits as our own products. */
#include "infer/cuda/cuda.h"
