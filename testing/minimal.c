/* minimal.c - a minimal set of units whose child values make a case fail: delta debugging (ddmin,
 * Zeller & Hildebrandt 2002) over groups first, then over the units of the groups that remain.
 *
 * "Minimal" is 1-minimal: no single unit can be left out. Interactions are found because sets are
 * run, not added up. Mixtures already run are remembered by their bit set. */
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "testing/internal.h"

typedef struct dd {
    size_t units;
    const size_t *group_of; /* unit -> atom in the first round; NULL: each unit is its own atom */
    fm_mixture_fn oracle;
    void *ctx;
    fm_map *seen;  /* bit set -> 1 passes, 2 fails */
    bool *take;    /* scratch [units] */
    uint32_t runs, max_runs;
    bool exhausted;
} dd;

/* Does parent + `take` fail? A budget that is used up answers "passes": the set found so far stays. */
static fm_status fails(dd *d, const bool *take, bool *out)
{
    uintptr_t seen = (uintptr_t)fm_map_get(d->seen, take, d->units * sizeof *take);
    *out = seen == 2;
    if (seen)
        return FM_OK;
    if (d->runs >= d->max_runs) {
        d->exhausted = true;
        return FM_OK;
    }
    d->runs++;
    fm_status rc = d->oracle(d->ctx, take, out);
    if (rc == FM_OK)
        rc = fm_map_put(d->seen, take, d->units * sizeof *take, (void *)(uintptr_t)(*out ? 2 : 1),
                        NULL);
    return rc;
}

/* take = units whose atom is in atoms[0..n). */
static fm_status atoms_fail(dd *d, const size_t *atoms, size_t n, bool *out)
{
    memset(d->take, 0, d->units * sizeof *d->take);
    for (size_t u = 0; u < d->units; u++)
        for (size_t i = 0; i < n; i++)
            if ((d->group_of ? d->group_of[u] : u) == atoms[i])
                d->take[u] = true;
    return fails(d, d->take, out);
}

/* One pass with granularity g over atoms[0..*n): a part that fails alone, or a complement that still
 * fails. *reduced says that atoms became smaller; *alone that it was to a single part. */
static fm_status reduce_once(dd *d, size_t *atoms, size_t *n, size_t g, size_t *scratch,
                             bool *reduced, bool *alone)
{
    bool f = false;
    *reduced = *alone = false;
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < g; k++) {
            size_t begin = *n * k / g, end = *n * (k + 1) / g, m = 0;
            for (size_t i = 0; i < *n; i++)
                if ((i >= begin && i < end) == (pass == 0))
                    scratch[m++] = atoms[i];
            if (m == *n || (m == 0 && pass == 0))
                continue;
            fm_status rc = atoms_fail(d, scratch, m, &f);
            if (rc < 0)
                return rc;
            if (f) {
                memcpy(atoms, scratch, m * sizeof *atoms);
                *n = m;
                *reduced = true;
                *alone = pass == 0;
                return FM_OK;
            }
        }
        if (g == 2 && pass == 0)
            break; /* of two halves, each complement is the other half */
    }
    return FM_OK;
}

static fm_status ddmin(dd *d, size_t *atoms, size_t *n)
{
    size_t g = 2, *scratch = fm_calloc(*n, sizeof *scratch);
    fm_status rc = scratch ? FM_OK : FM_ENOMEM;
    bool reduced, alone;
    while (rc == FM_OK && *n >= 2 && !d->exhausted) {
        g = FM_MIN(g, *n);
        rc = reduce_once(d, atoms, n, g, scratch, &reduced, &alone);
        if (rc < 0)
            break;
        if (reduced)
            g = alone ? 2 : FM_MAX(g - 1, (size_t)2);
        else if (g >= *n)
            break;
        else
            g = FM_MIN(2 * g, *n);
    }
    fm_free(scratch);
    return rc;
}

static fm_status minimize(dd *d, const size_t *group_of, size_t groups, size_t *atoms, size_t *n)
{
    bool *in = fm_calloc(groups, sizeof *in);
    if (!in)
        return FM_ENOMEM;
    d->group_of = group_of;
    *n = groups;
    for (size_t i = 0; i < groups; i++)
        atoms[i] = i;
    fm_status rc = ddmin(d, atoms, n);
    for (size_t i = 0; i < *n; i++)
        in[atoms[i]] = true;
    d->group_of = NULL;
    *n = 0;
    for (size_t u = 0; u < d->units; u++)
        if (in[group_of[u]])
            atoms[(*n)++] = u;
    fm_free(in);
    return rc == FM_OK ? ddmin(d, atoms, n) : rc;
}

/* The two runs that make the set evidence: it alone is enough, and without it the child passes. */
static fm_status confirm(dd *d, fm_minimal_set *out)
{
    bool f = false;
    d->max_runs = UINT32_MAX;
    fm_status rc = fails(d, out->take, &f);
    out->sufficient = f;
    for (size_t u = 0; u < d->units; u++)
        d->take[u] = !out->take[u];
    if (rc == FM_OK)
        rc = fails(d, d->take, &f);
    out->necessary = rc == FM_OK && !f;
    return rc;
}

fm_status fm_blame_units(fm_minimal_set *out, size_t units, const size_t *group_of, size_t groups,
                         fm_mixture_fn oracle, void *ctx, uint32_t max_runs)
{
    dd d = {.units = units, .oracle = oracle, .ctx = ctx, .max_runs = max_runs};
    size_t n = 0, room = FM_MAX(units, groups);
    memset(out, 0, sizeof *out);
    size_t *atoms = fm_calloc(room, sizeof *atoms);
    d.take = fm_calloc(units, sizeof *d.take);
    out->take = fm_calloc(units, sizeof *out->take);
    fm_status rc = atoms && d.take && out->take ? fm_map_new(&d.seen) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = minimize(&d, group_of, groups, atoms, &n);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        out->take[atoms[i]] = true;
    out->size = n;
    if (rc == FM_OK)
        rc = confirm(&d, out);
    out->runs = d.runs;
    fm_map_free(d.seen);
    fm_free(d.take);
    fm_free(atoms);
    if (rc < 0) {
        fm_free(out->take);
        memset(out, 0, sizeof *out);
    }
    return rc;
}
