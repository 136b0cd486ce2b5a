/* fast_product.cu - tensor-core products of mode fast. */
#include "infer/cuda/cuda.h"
