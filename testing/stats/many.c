/* many.c - p-values of many tests, adjusted. */
#include "testing/stats.h"

#include <math.h>
#include <stdlib.h>

#include "store/base/mem.h"

typedef struct ranked {
    double p;
    size_t at;
} ranked;

static int by_p(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->p < y->p || x->p > y->p)
        return x->p < y->p ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static fm_status rank_all(ranked **out, const double *p, size_t n)
{
    *out = fm_calloc(n, sizeof **out);
    for (size_t i = 0; *out && i < n; i++)
        (*out)[i] = (ranked){p[i], i};
    if (!*out)
        return FM_ENOMEM;
    qsort(*out, n, sizeof **out, by_p);
    return FM_OK;
}

fm_status fm_adjust_holm(double *out, const double *p, size_t n)
{
    ranked *r;
    fm_status rc = rank_all(&r, p, n);
    double most = 0;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        most = fmax(most, fmin(1, r[i].p * (double)(n - i)));
        out[r[i].at] = most;
    }
    fm_free(r);
    return rc;
}

fm_status fm_adjust_bh(double *out, const double *p, size_t n)
{
    ranked *r;
    fm_status rc = rank_all(&r, p, n);
    double least = 1;
    for (size_t i = n; rc == FM_OK && i-- > 0;) {
        least = fmin(least, r[i].p * (double)n / (double)(i + 1));
        out[r[i].at] = least;
    }
    fm_free(r);
    return rc;
}
