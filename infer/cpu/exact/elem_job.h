/* elem_job.h - operations on rows, elements or columns, split over threads; see elem.c. */
#ifndef FM_INFER_CPU_ELEM_JOB_H
#define FM_INFER_CPU_ELEM_JOB_H

#include "infer/cpu/cpu.h"

/* The arguments of such an operation; each operation uses those that it needs. */
typedef struct fmi_elem_job {
    const fmi_kern *kern; /* set by the functions below, as are the next three */
    void (*part)(const struct fmi_elem_job *j, size_t begin, size_t end);
    size_t count, unit;
    float *y, *y2, *y3;
    const float *a, *b, *c, *d;
    const int32_t *ids;
    double *partial;
    size_t ldy, ldy2, lda, ldb, ldc;
    size_t elems;
    uint32_t m, n, per;
    fm_act f;
    float s;
    bool flag;
    const void *scalars; /* a structure that the kernel defines */
    uint64_t row0;
} fmi_elem_job;

typedef void (*fmi_elem_fn)(const fmi_elem_job *j, size_t begin, size_t end);

/* Rows of `elems` elements that hold `least` of them: fewer are not worth waking a thread. */
static inline size_t fmi_rows_of(size_t least, size_t elems)
{
    return (least + elems - 1) / FM_MAX(elems, (size_t)1);
}
/* Runs part on rows (or elements) 0 .. count, at least `least` of them on a thread. */
void fmi_elem_run(fm_backend *be, fmi_elem_job *j, fmi_elem_fn part, size_t count, size_t least);
/* Runs part on columns 0 .. n of m rows, at least `least` elements on a thread. */
void fmi_elem_run_columns(fm_backend *be, fmi_elem_job *j, fmi_elem_fn part, size_t least);

#endif
