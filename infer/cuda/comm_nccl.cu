/* comm_nccl.cu - collectives between cards: NCCL. */
#include "infer/cuda/cuda.h"
