/* library.cpp - stands in for cuBLASLt behind infer/cuda/mma/cublaslt.h: SIMT_LIBRARY=same sums as
 * the emulated mma does, =other in another order (the check must find that), else there is none.
 * SIMT_LIBRARY_LOG names a file that gets a line for each call of 512 rows and more. */
#include "infer/cuda/mma/cublaslt.h"

struct fmc_library {
    bool same;
};

fmc_library *fmc_library_open(void)
{
    const char *how = getenv("SIMT_LIBRARY");
    if (!how || (strcmp(how, "same") != 0 && strcmp(how, "other") != 0))
        return NULL;
    return new fmc_library{strcmp(how, "same") == 0};
}

void fmc_library_close(fmc_library *l)
{
    delete l;
}

static float value(const void *p, size_t at)
{
    return __uint_as_float((unsigned)((const uint16_t *)p)[at] << 16);
}

static void multiply(const fmc_library_call &c, bool same)
{
    for (uint32_t i = 0; i < c.m; i++)
        for (uint32_t j = 0; j < c.n; j++) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < c.k; k += same ? 16 : 24) {
                double s = (double)sum;
                for (uint32_t e = k; e < k + (same ? 16 : 24) && e < c.k; e++)
                    s += (double)value(c.x, i * c.ldx + e) * (double)value(c.w, j * c.ldw + e);
                sum = (float)s;
            }
            float *y = c.y + i * c.ldy + j;
            *y = c.add ? *y + sum : sum;
        }
}

bool fmc_library_run(fmc_library *l, cudaStream_t stream, const fmc_library_call *c)
{
    const fmc_library_call call = *c;
    const bool same = l->same;
    const char *log = getenv("SIMT_LIBRARY_LOG");
    FILE *f = log ? fopen(log, "a") : NULL;
    if (f) {
        fprintf(f, "%u %u %u\n", c->m, c->n, c->k);
        fclose(f);
    }
    simt_launch(stream, NULL, "library", dim3(1), dim3(1), 0, false, [=] { multiply(call, same); });
    return true;
}
