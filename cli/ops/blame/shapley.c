/* shapley.c - Shapley values of the units of a found set: how much each adds to the failure. */
#include <math.h>
#include <string.h>

#include "cli/ops/blame/blame.h"
#include "store/base/mem.h"

#define SHAPLEY_MOST 64u

typedef struct worth {
    fmo_blame *b;
    size_t *unit; /* [n] the set's units */
    size_t n;
    bool margin;
} worth;

static fm_status coalitions(void *ctx, const bool *take, size_t n, double *value)
{
    const worth *w = ctx;
    fmo_blame *b = w->b;
    bool *units = fm_calloc(n * b->unit_count, sizeof *units);
    uint32_t *repeat = fm_calloc(n, sizeof *repeat);
    fmo_blame_heard *heard = fm_calloc(n, sizeof *heard);
    fm_status rc = units && repeat && heard ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        for (size_t k = 0; k < w->n; k++)
            units[i * b->unit_count + w->unit[k]] = take[i * w->n + k];
    FM_THEN(rc, fmo_blame_run_mixtures(b, units, repeat, n, heard));
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        value[i] = w->margin ? -heard[i].score : heard[i].verdict == FM_FAIL;
    if (rc == FM_OK)
        fmo_blame_heard_release(heard, n);
    fm_free(units);
    fm_free(repeat);
    fm_free(heard);
    return rc;
}

/* Sets w->margin: whether the empty and the whole set both have a score. */
static fm_status has_margin(worth *w)
{
    bool *both = fm_calloc(2 * w->n, sizeof *both);
    double value[2] = {NAN, NAN};
    fm_status rc = both ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK)
        memset(both + w->n, 1, w->n * sizeof *both);
    w->margin = true;
    FM_THEN(rc, coalitions(w, both, 2, value));
    w->margin = isfinite(value[0]) && isfinite(value[1]);
    fm_free(both);
    return rc;
}

fm_status fmo_blame_shapley(fmo_blame *b)
{
    const fm_shapley_opts opts = {
        .max_runs = b->how.max_runs, .confidence = b->how.confidence, .seed = b->how.seed};
    worth w = {.b = b};
    if (b->minimal.size < 2 || b->minimal.size > SHAPLEY_MOST)
        return FM_OK;
    if (!(w.unit = fm_calloc(b->minimal.size, sizeof *w.unit)))
        return FM_ENOMEM;
    for (size_t u = 0; u < b->unit_count; u++)
        if (b->minimal.take[u])
            w.unit[w.n++] = u;
    fm_status rc = has_margin(&w);
    b->shapley_margin = w.margin;
    FM_THEN(rc, fm_shapley_values(&b->shapley, w.n, coalitions, &w, &opts));
    if (rc == FM_EINVAL) { /* the set itself is still valid */
        b->shapley_why_not = fm_strdup(fm_error_text());
        fm_error_clear();
        rc = b->shapley_why_not ? FM_OK : FM_ENOMEM;
    }
    fm_free(w.unit);
    return rc;
}
