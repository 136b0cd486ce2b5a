/* graph.cu - steps that are recorded once and replayed: CUDA graphs. */
#include "infer/cuda/cuda.h"

fm_status fmc_arena_take(fmc_device *d, size_t bytes, void **host, void **dev)
{
    (void)d;
    *host = *dev = NULL;
    return fmc_fail(FM_EUNSUPPORTED, "no step is being recorded (%zu bytes)", bytes);
}

void fmc_graph_install(fm_backend *be)
{
    (void)be;
}
