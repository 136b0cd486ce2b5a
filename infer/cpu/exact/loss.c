/* loss.c - losses over rows of logits, split over threads by rows. */
#include "infer/cpu/exact/elem_job.h"

#define MIN_ELEMS 16384u /* fewer are not worth waking a thread */

static void distill_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->distill(j->y + begin, j->y2 + begin * j->ldy2, j->ldy2, j->a + begin * j->lda, j->lda,
                     j->ids + begin, (uint32_t)(end - begin), j->n, j->scalars);
}

/* The scalars are computed in double and rounded once. */
void fmi_exact_distill(fm_backend *be, float *loss, float *logits, size_t ld, const float *teacher,
                       size_t ldt, const int32_t *label, uint32_t m, uint32_t v, float temperature,
                       float weight, float dloss)
{
    double t = (double)temperature, w = (double)weight;
    const fmi_distill scalars = {.inv_t = (float)(1.0 / t),
                                 .own = (float)((double)dloss * (1.0 - w)),
                                 .taught = (float)((double)dloss * w * t),
                                 .own_loss = 1.0 - w,
                                 .taught_loss = w * t * t};
    fmi_elem_job j = {.y = loss,
                      .y2 = logits,
                      .ldy2 = ld,
                      .a = teacher,
                      .lda = ldt,
                      .ids = label,
                      .n = v,
                      .scalars = &scalars};

    for (uint32_t i = 0; i < m; i++)
        fm_assert(label[i] < 0 || (uint32_t)label[i] < v);
    fmi_elem_run(be, &j, distill_part, m, fmi_rows_of(MIN_ELEMS, v));
}
