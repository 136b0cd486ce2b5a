/* act.c - layer norm, activations, softcaps and mixtures of rows, split over threads by rows. */
#include "infer/cpu/exact/elem_job.h"

#include <string.h>

#include "store/base/math/detmath.h"

#define MIN_ELEMS 8192u /* fewer are not worth waking a thread */

static void layernorm_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    j->kern->layernorm(j->y + begin * j->lda, j->a + begin * j->lda, j->b, j->c,
                       (uint32_t)(end - begin), j->n, j->lda, j->s);
}

void fmi_exact_layernorm(fm_backend *be, float *y, const float *x, const float *gain,
                         const float *bias, uint32_t m, uint32_t h, size_t ldx, float eps)
{
    fmi_elem_job j = {.y = y, .a = x, .b = gain, .c = bias, .n = h, .lda = ldx, .s = eps};
    fmi_elem_run(be, &j, layernorm_part, m, fmi_rows_of(MIN_ELEMS, h));
}

static void act_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->act(j->f, j->y + i * j->ldy, j->a + i * j->lda, j->b ? j->b + i * j->ldb : NULL,
                     j->n);
}

void fmi_exact_act(fm_backend *be, fm_act f, float *y, size_t ldy, const float *gate, size_t ldg,
                   const float *up, size_t ldu, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {
        .f = f, .y = y, .ldy = ldy, .a = gate, .lda = ldg, .b = up, .ldb = ldu, .n = n};
    fmi_elem_run(be, &j, act_part, m, fmi_rows_of(MIN_ELEMS, n));
}

static void xielu_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    const double a = (double)j->b[0], b = (double)j->b[1], beta = (double)j->b[2];
    const double eps = (double)j->b[3];

    for (size_t i = begin; i < end; i++)
        for (size_t k = 0; k < j->n; k++) {
            double x = (double)j->a[i * j->lda + k], low = x < eps ? x : eps;
            double y = x > 0.0 ? a * x * x : b * ((fm_exp(low) - 1.0) - x);
            j->y[i * j->ldy + k] = (float)(y + beta * x);
        }
}

void fmi_exact_xielu(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                     const float *param, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {.y = y, .ldy = ldy, .a = x, .lda = ldx, .b = param, .n = n};
    fmi_elem_run(be, &j, xielu_part, m, fmi_rows_of(MIN_ELEMS / 8, n));
}

/* Bits of floats without sign are ordered as their values are, NaN at the top. */
static float largest(const float *x, uint32_t n)
{
    uint32_t most = 0;
    float value;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    memcpy(&value, &most, sizeof value);
    return value < 1e-5f ? 1e-5f : value;
}

static void round_rows_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        const float *x = j->a + i * j->lda;
        const float s = 127.0f / largest(x, j->n);
        for (size_t k = 0; k < j->n;
             k++) /* 1.5 * 2^23: what is below is rounded to whole numbers */
            j->y[i * j->ldy + k] = ((x[k] * s + 12582912.0f) - 12582912.0f) / s;
        j->y2[i] = s;
    }
}

void fmi_exact_round_rows(fm_backend *be, float *y, size_t ldy, float *grain, const float *x,
                          size_t ldx, uint32_t m, uint32_t n)
{
    fmi_elem_job j = {.y = y, .ldy = ldy, .y2 = grain, .a = x, .lda = ldx, .n = n};
    fmi_elem_run(be, &j, round_rows_part, m, fmi_rows_of(MIN_ELEMS, n));
}

static void softcap_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->softcap(j->y + i * j->ldy, j->n, j->s);
}

void fmi_exact_softcap(fm_backend *be, float *y, size_t ldy, uint32_t m, uint32_t n, float cap)
{
    fmi_elem_job j = {.y = y, .ldy = ldy, .n = n, .s = cap};
    fmi_elem_run(be, &j, softcap_part, m, fmi_rows_of(MIN_ELEMS, n));
}

static void mix_part(const fmi_elem_job *j, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        j->kern->mix_rows(j->y + i * j->ldy, j->a, j->lda, j->ids + i * j->per, j->b + i * j->per,
                          j->per, j->n);
}

void fmi_exact_mix_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                        const int32_t *row, const float *weight, uint32_t per, uint32_t m,
                        uint32_t n)
{
    fmi_elem_job j = {
        .y = y, .ldy = ldy, .a = x, .lda = ldx, .ids = row, .b = weight, .per = per, .n = n};
    fmi_elem_run(be, &j, mix_part, m, fmi_rows_of(MIN_ELEMS, (size_t)n * per));
}
