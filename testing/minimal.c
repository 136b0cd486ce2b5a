/* minimal.c - a minimal set of units whose child values make a case fail: delta debugging (ddmin,
 * Zeller & Hildebrandt 2002) over groups first, then over the units of the groups that remain.
 *
 * "Minimal" is 1-minimal: no single unit can be left out. Interactions are found because sets are
 * run, not added up. Mixtures already run are remembered by their bit set. */
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "testing/internal.h"

#define END_RUNS 3u /* none taken, all taken, child without the set: always run */

typedef struct dd {
    size_t units;
    const size_t *group_of; /* unit -> atom in the first round; NULL: each unit is its own atom */
    fm_mixture_fn oracle;
    void *ctx;
    fm_map *seen; /* bit set -> 1 passes, 2 fails */
    bool *take;   /* scratch [units] */
    uint32_t runs, max_runs;
    bool exhausted;
} dd;

/* Does parent + `take` fail? */
static fm_status fails(dd *d, const bool *take, bool *out)
{
    uintptr_t seen = (uintptr_t)fm_map_get(d->seen, take, d->units * sizeof *take);
    *out = seen == 2;
    if (seen)
        return FM_OK;
    d->runs++;
    fm_status rc = d->oracle(d->ctx, take, out);
    if (rc == FM_OK)
        rc = fm_map_put(d->seen, take, d->units * sizeof *take, (void *)(uintptr_t)(*out ? 2 : 1),
                        NULL);
    return rc;
}

/* Does the set of atoms in d->take fail? Once the runs are used up a set that was
 * never run does not: what was found so far stays. */
static fm_status works(dd *d, bool *out)
{
    bool known = fm_map_has(d->seen, d->take, d->units * sizeof *d->take);
    *out = false;
    if (!known && d->runs >= d->max_runs) {
        d->exhausted = true;
        return FM_OK;
    }
    return fails(d, d->take, out);
}

/* take = units whose atom is in atoms[0..n). */
static fm_status atoms_work(dd *d, const size_t *atoms, size_t n, bool *out)
{
    memset(d->take, 0, d->units * sizeof *d->take);
    for (size_t u = 0; u < d->units; u++)
        for (size_t i = 0; i < n; i++)
            if ((d->group_of ? d->group_of[u] : u) == atoms[i])
                d->take[u] = true;
    return works(d, out);
}

/* One pass with granularity g over atoms[0..*n): a part that works alone, or a complement that
 * still works. *reduced says that atoms became smaller; *alone that it was to a single part. */
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
            fm_status rc = atoms_work(d, scratch, m, &f);
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

/* atoms becomes the *n units of a minimal set, all units together being known to work. */
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

typedef struct ends {
    bool none_fails, all_fails;
} ends;

static fm_status run_ends(dd *d, ends *out)
{
    memset(d->take, 0, d->units * sizeof *d->take);
    fm_status rc = fails(d, d->take, &out->none_fails);
    memset(d->take, 1, d->units * sizeof *d->take);
    return rc == FM_OK ? fails(d, d->take, &out->all_fails) : rc;
}

static fm_status find_cause(dd *d, const ends *e, const size_t *group_of, size_t groups,
                            size_t *atoms, fm_minimal_set *out)
{
    fm_status rc = FM_OK;
    size_t n = e->none_fails ? 0 : d->units;
    bool f = false;
    for (size_t u = 0; u < d->units; u++)
        atoms[u] = u;
    if (!e->none_fails && e->all_fails)
        rc = minimize(d, group_of, groups, atoms, &n);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        out->take[atoms[i]] = true;
    out->size = n;
    out->sufficient = e->none_fails || e->all_fails;
    out->minimal = out->sufficient && !d->exhausted;
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
    /* The last of the end runs comes after the search: kept back for it. */
    dd d = {
        .units = units, .oracle = oracle, .ctx = ctx, .max_runs = FM_MAX(max_runs, END_RUNS) - 1};
    ends e = {false, false};
    memset(out, 0, sizeof *out);
    for (size_t u = 0; u < units; u++)
        fm_assert(group_of[u] < groups);
    size_t *atoms = fm_calloc(FM_MAX(units, groups), sizeof *atoms);
    d.take = fm_calloc(units, sizeof *d.take);
    out->take = fm_calloc(units, sizeof *out->take);
    fm_status rc = atoms && d.take && out->take ? fm_map_new(&d.seen) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = run_ends(&d, &e);
    if (rc == FM_OK)
        rc = find_cause(&d, &e, group_of, groups, atoms, out);
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
