/* nan_watch.c - finds the first tensor of a step with a number that is not finite. */
#include "train/pass/pass.h"

#include "store/base/mem.h"

#include <math.h>
#include <stdio.h>

static bool all_finite(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

fm_status fmt_watch_params(fmt_watch *w, const fmt_params *ps)
{
    float *host = fm_malloc((size_t)FM_MAX(ps->total, (uint64_t)1) * sizeof(float));
    fm_status rc = host ? fmt_params_get_all(ps, ps->p, host) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && !w->found && i < ps->count; i++) {
        const fmt_param *p = &ps->item[i];
        if (p->here == 0 || p->at >= ps->total || all_finite(host + p->at, p->here))
            continue;
        w->found = true;
        (void)snprintf(w->name, sizeof(w->name), "parameter %s", p->name);
    }
    fm_free(host);
    return rc;
}

fm_status fmt_watch_rows(fmt_pass *p, const char *what, const char *module, const float *x,
                         size_t ld, uint32_t rows, uint32_t n)
{
    fmt_watch *w = p->watch;
    fm_status rc = FM_OK;

    if (!w || w->found)
        return FM_OK;
    float *host = fm_malloc(n * sizeof(float));
    if (!host)
        return FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && !w->found && i < rows; i++) {
        rc = p->be->download(p->be, host, x + i * ld, n * sizeof(float));
        w->found = rc == FM_OK && !all_finite(host, n);
    }
    if (w->found)
        (void)snprintf(w->name, sizeof(w->name), "%s of %s", what, module);
    fm_free(host);
    return rc;
}

void fmt_pass_watch(fmt_pass *p, fmt_watch *w)
{
    p->watch = w;
}
