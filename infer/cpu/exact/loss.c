/* loss.c - losses over rows of logits, dealt to threads by rows. */
#include "infer/cpu/cpu.h"

#define MIN_ELEMS 16384u /* fewer are not worth waking a thread */

typedef struct distill_job {
    const fmi_kern *kern;
    float *loss, *logits;
    const float *teacher;
    size_t ld, ldt;
    const int32_t *label;
    uint32_t v;
    fmi_distill scalars;
} distill_job;

static fm_status distill_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const distill_job *j = ctx;

    (void)worker;
    j->kern->distill(j->loss + begin, j->logits + begin * j->ld, j->ld, j->teacher + begin * j->ldt,
                     j->ldt, j->label + begin, (uint32_t)(end - begin), j->v, &j->scalars);
    return FM_OK;
}

/* The scalars are made in double and rounded once. */
void fmi_exact_distill(fm_backend *be, float *loss, float *logits, size_t ld, const float *teacher,
                       size_t ldt, const int32_t *label, uint32_t m, uint32_t v, float temperature,
                       float weight, float dloss)
{
    fmi_cpu *cpu = fmi_cpu_of(be);
    double t = (double)temperature, w = (double)weight;
    distill_job j = {.kern = cpu->kern,
                     .loss = loss,
                     .logits = logits,
                     .teacher = teacher,
                     .ld = ld,
                     .ldt = ldt,
                     .label = label,
                     .v = v,
                     .scalars = {.inv_t = (float)(1.0 / t),
                                 .own = (float)((double)dloss * (1.0 - w)),
                                 .taught = (float)((double)dloss * w * t),
                                 .own_loss = 1.0 - w,
                                 .taught_loss = w * t * t}};

    for (uint32_t i = 0; i < m; i++)
        fm_assert(label[i] < 0 || (uint32_t)label[i] < v);
    fmi_run(cpu, m, FM_MAX(MIN_ELEMS / FM_MAX(v, 1u), 1u), distill_part, &j);
}
