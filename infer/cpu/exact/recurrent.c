/* recurrent.c - recurrences along sequences. A thread takes some channels through all rows, since a
 * row needs the state behind the row before it. */
#include "infer/cpu/cpu.h"

#define LANES 16u
#define MIN_ELEMS 8192u /* fewer are not worth waking a thread */

typedef struct conv_job {
    const fmi_kern *kern;
    const fm_convolve *c;
} conv_job;

static fm_status conv_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const conv_job *j = ctx;
    (void)worker;
    j->kern->convolve(j->c, (uint32_t)begin * LANES, FM_MIN((uint32_t)end * LANES, j->c->channels));
    return FM_OK;
}

void fmi_exact_convolve(fm_backend *be, const fm_convolve *c)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    conv_job j = {cpu->kern, c};
    fm_assert(c->kernel >= 1 && c->kernel <= FM_MAX_CONV_KERNEL);
    fmi_run(cpu, (c->channels + LANES - 1) / LANES, MIN_ELEMS / LANES / FM_MAX(c->rows.m, 1u) + 1,
            conv_part, &j);
}
