/* interpolate.c - bisection on the share of a change that is kept. */
#include "testing/interpolate.h"

static fm_status ask(fm_interpolation *out, double alpha, fm_interpolate_fn passes, void *ctx,
                     bool *yes)
{
    out->runs++;
    return passes(ctx, alpha, yes);
}

fm_status fm_blame_interpolate(fm_interpolation *out, unsigned halvings, fm_interpolate_fn passes,
                               void *ctx)
{
    bool yes = false;
    *out = (fm_interpolation){.fails = 1};
    if (halvings < 1 || halvings > 30)
        return fm_fail(FM_EINVAL, "%u halvings of alpha, allowed are 1 to 30", halvings);
    fm_status rc = ask(out, 0, passes, ctx, &yes);
    if (rc < 0 || !yes) {
        out->fails = 0;
        return rc;
    }
    out->found = true;
    rc = ask(out, 1, passes, ctx, &yes);
    if (rc < 0)
        return rc;
    if (yes) {
        out->alpha = 1;
        out->fails = 1 + 1.0 / (double)(1u << halvings);
        return FM_OK;
    }
    for (unsigned i = 0; rc == FM_OK && i < halvings; i++) {
        double middle = (out->alpha + out->fails) / 2;
        rc = ask(out, middle, passes, ctx, &yes);
        if (rc == FM_OK && yes)
            out->alpha = middle;
        else if (rc == FM_OK)
            out->fails = middle;
    }
    return rc;
}
