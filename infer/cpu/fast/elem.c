/* elem.c - element-wise operations that differ from mode exact's. */
#include "infer/cpu/fast/fast.h"
#include "infer/cpu/fast/kern_fast_attention.h"

#define MIN_ELEMS 6144u /* some 1.5 us: fewer are not worth a second thread */

typedef struct elem_job {
    const fmi_fast_attn_kern *kern;
    float *y;
    const float *gate, *up;
} elem_job;

static fm_status swiglu_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const elem_job *j = ctx;

    (void)worker;
    j->kern->swiglu(j->y + begin, j->gate + begin, j->up + begin, end - begin);
    return FM_OK;
}

static void op_swiglu(fm_backend *be, float *y, const float *gate, const float *up, uint64_t n)
{
    elem_job j = {.kern = fmi_fast_of(be)->kern->attention, .y = y, .gate = gate, .up = up};
    fmi_run(fmi_cpu_of(be), n, MIN_ELEMS, swiglu_part, &j);
}

void fmi_fast_elem_install(fm_backend *be)
{
    be->swiglu = op_swiglu;
}
