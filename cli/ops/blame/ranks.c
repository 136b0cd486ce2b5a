/* ranks.c - looks inside the units: the size of a change, and the rank-one parts of an adapter's
 * module, column r of B with row r of A. */
#include <math.h>
#include <string.h>

#include "cli/ops/blame/blame.h"
#include "store/base/mem.h"

#define RANK_ID 13u /* question ids of mixtures of ranks begin with it */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

/* The factors of a unit that consists of a LoRA which its step added; false: any other unit. */
static bool factors_of(const fmo_blame_unit *u, const fm_entry **a, const fm_entry **b)
{
    *a = *b = NULL;
    for (size_t i = 0; i < u->count; i++) {
        const fm_change *ch = u->change[i];
        if (ch->a || !ch->b || !fmo_blame_can_compute(ch->b) || ch->b->shape.rank != 2)
            return false;
        if (ends_with(ch->b->name, ".lora_A.weight"))
            *a = ch->b;
        else if (ends_with(ch->b->name, ".lora_B.weight"))
            *b = ch->b;
        else
            return false;
    }
    return *a && *b && (*a)->shape.dim[0] == (*b)->shape.dim[1];
}

/* ---- size of a change ---- */

/* |B A|^2 = sum over r, s of (B'B)[r][s] (A A')[r][s]; A [rank][in], B [out][rank]. */
static double product_norm(const float *a, const float *b, size_t rank, size_t in, size_t out)
{
    double sum = 0;
    for (size_t r = 0; r < rank; r++)
        for (size_t s = 0; s < rank; s++) {
            double aa = 0, bb = 0;
            for (size_t k = 0; k < in; k++)
                aa += (double)a[r * in + k] * (double)a[s * in + k];
            for (size_t k = 0; k < out; k++)
                bb += (double)b[k * rank + r] * (double)b[k * rank + s];
            sum += aa * bb;
        }
    return sqrt(FM_MAX(sum, 0));
}

static fm_status factor_size(const fm_provider *p, const fm_entry *a, const fm_entry *b,
                             double *out)
{
    float *x = NULL, *y = NULL;
    fm_status rc = fmo_blame_read_f32(p, a, &x);
    FM_THEN(rc, fmo_blame_read_f32(p, b, &y));
    if (rc == FM_OK)
        *out = product_norm(x, y, a->shape.dim[0], a->shape.dim[1], b->shape.dim[0]);
    fm_free(x);
    fm_free(y);
    return rc;
}

/* |after - before| / |before|; 1 if one of them is missing or cannot be read as numbers. */
static fm_status tensor_size(const fm_provider *p, const fm_change *ch, double *out)
{
    float *a = NULL, *b = NULL;
    uint64_t n;
    double moved = 0, was = 0;
    *out = 1;
    if (!ch->a || !ch->b || !fmo_blame_can_compute(ch->a) || !fmo_blame_can_compute(ch->b) ||
        !fm_shape_eq(&ch->a->shape, &ch->b->shape))
        return FM_OK;
    fm_status rc = fm_shape_elems(&n, &ch->a->shape);
    FM_THEN(rc, fmo_blame_read_f32(p, ch->a, &a));
    FM_THEN(rc, fmo_blame_read_f32(p, ch->b, &b));
    for (uint64_t i = 0; rc == FM_OK && i < n; i++) {
        double d = (double)b[i] - (double)a[i];
        moved += d * d;
        was += (double)a[i] * (double)a[i];
    }
    if (rc == FM_OK)
        *out = sqrt(moved) / (sqrt(was) + 1e-12);
    fm_free(a);
    fm_free(b);
    return rc;
}

fm_status fmo_blame_unit_size(const fmo_blame *b, const fmo_blame_unit *u, double *out)
{
    const fm_provider p = fm_store_provider(fm_repo_store(b->c->repo));
    const fm_entry *fa, *fb;
    fm_status rc = FM_OK;
    *out = 0;
    if (factors_of(u, &fa, &fb))
        rc = factor_size(&p, fa, fb, out);
    else
        for (size_t i = 0; rc == FM_OK && i < u->count; i++) {
            double one;
            rc = tensor_size(&p, u->change[i], &one);
            *out = FM_MAX(*out, one);
        }
    if (!isfinite(*out)) /* a tensor with NaN or infinity comes first */
        *out = 1e12;
    return rc;
}

/* ---- ranks ---- */

/* Puts B of one unit into tree, with zeros in the columns that are not taken. */
static fm_status put_columns(const fmo_blame *b, size_t unit, const bool *take,
                             fmo_blame_overlay *overlay, fm_tree *tree)
{
    const fm_entry *fa, *fb;
    float *x = NULL;
    bool all = true;
    if (!factors_of(&b->unit[unit], &fa, &fb))
        return FM_OK;
    size_t rank = fb->shape.dim[1], rows = fb->shape.dim[0];
    for (size_t k = 0; k < b->rank_count; k++)
        all = all && (b->rank[k].unit != unit || take[k]);
    if (all)
        return FM_OK;
    fm_status rc = fmo_blame_read_f32(&overlay->store, fb, &x);
    for (size_t k = 0; rc == FM_OK && k < b->rank_count; k++)
        for (size_t i = 0; b->rank[k].unit == unit && !take[k] && i < rows; i++)
            x[i * rank + b->rank[k].rank] = 0;
    FM_THEN(rc, fmo_blame_overlay_put(overlay, tree, fb, x));
    fm_free(x);
    return rc;
}

/* Makes the tree of the parent with the found units, these without the ranks that are not taken. */
static fm_status rank_tree(const fmo_blame *b, const bool *take, fmo_blame_overlay *overlay,
                           fm_tree **out)
{
    bool *unit = fm_memdup(b->minimal.take, b->unit_count * sizeof *unit);
    fm_status rc = unit ? FM_OK : FM_ENOMEM;
    /* A unit without a taken rank is set back to the parent's. */
    for (size_t u = 0; rc == FM_OK && u < b->unit_count; u++) {
        bool any = false, has = false;
        for (size_t k = 0; k < b->rank_count; k++)
            if (b->rank[k].unit == u) {
                has = true;
                any = any || take[k];
            }
        unit[u] = unit[u] && (!has || any);
    }
    *out = NULL;
    fm_tree *ranks = NULL;
    /* Columns are set in a copy of the child, whose paths are those of the units. */
    FM_THEN(rc, fm_tree_copy(&ranks, b->child));
    for (size_t u = 0; rc == FM_OK && u < b->unit_count; u++)
        if (unit[u])
            rc = put_columns(b, u, take, overlay, ranks);
    FM_THEN(rc, fmo_blame_mixture(b, ranks, unit, out));
    fm_tree_free(ranks);
    fm_free(unit);
    return rc;
}

static fm_status ranks_fail(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    fmo_blame *b = ctx;
    fmo_blame_overlay *overlay = fm_calloc(n, sizeof *overlay);
    fm_tree **tree = fm_calloc(n, sizeof *tree);
    fmo_blame_question *q = fm_calloc(n, sizeof *q);
    fmo_blame_heard *heard = fm_calloc(n, sizeof *heard);
    fm_status rc = overlay && tree && q && heard ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        fmo_blame_overlay_open(&overlay[i], b);
        q[i] = (fmo_blame_question){.provider = &overlay[i].provider,
                                    .what = "ranks of an adapter",
                                    .id = RANK_ID,
                                    .repeat = mix[i].repeat};
        for (size_t k = 0; k < b->rank_count; k++)
            q[i].id = q[i].id * 1000003 + mix[i].take[k];
        rc = rank_tree(b, mix[i].take, &overlay[i], &tree[i]);
        q[i].tree = tree[i];
    }
    FM_THEN(rc, fmo_blame_ask(b, q, n, heard));
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        out[i] = (fm_mixture_reply){heard[i].verdict == FM_FAIL, heard[i].verdict == FM_ERROR_CASE,
                                    heard[i].score};
    if (rc == FM_OK)
        fmo_blame_heard_release(heard, n);
    for (size_t i = 0; overlay && tree && i < n; i++) {
        fm_tree_free(tree[i]);
        fmo_blame_overlay_release(&overlay[i]);
    }
    fm_free(overlay);
    fm_free(tree);
    fm_free(q);
    fm_free(heard);
    return rc;
}

/* Lists every rank of the adapters' modules among the found units, with the size of its part. */
static fm_status list_ranks(fmo_blame *b, double **weight)
{
    const fm_provider p = fm_store_provider(fm_repo_store(b->c->repo));
    size_t cap = 0, weights = 0;
    fm_status rc = FM_OK;
    for (size_t u = 0; rc == FM_OK && u < b->unit_count; u++) {
        const fm_entry *fa, *fb;
        float *x = NULL, *y = NULL;
        if (!b->minimal.take[u] || !factors_of(&b->unit[u], &fa, &fb))
            continue;
        size_t rank = fa->shape.dim[0], in = fa->shape.dim[1], rows = fb->shape.dim[0];
        rc = fmo_blame_read_f32(&p, fa, &x);
        FM_THEN(rc, fmo_blame_read_f32(&p, fb, &y));
        for (uint32_t r = 0; rc == FM_OK && r < rank; r++) {
            double row = 0, column = 0;
            for (size_t k = 0; k < in; k++)
                row += (double)x[r * in + k] * (double)x[r * in + k];
            for (size_t k = 0; k < rows; k++)
                column += (double)y[k * rank + r] * (double)y[k * rank + r];
            rc = fm_grow(&b->rank, &cap, b->rank_count + 1, sizeof *b->rank);
            FM_THEN(rc, fm_grow(weight, &weights, b->rank_count + 1, sizeof **weight));
            if (rc == FM_OK) {
                (*weight)[b->rank_count] = sqrt(row * column);
                b->rank[b->rank_count++] = (fmo_blame_rank){u, r};
            }
        }
        fm_free(x);
        fm_free(y);
    }
    return rc;
}

fm_status fmo_blame_ranks(fmo_blame *b)
{
    double *weight = NULL;
    size_t *module = NULL;
    fm_status rc = b->minimal.sufficient ? list_ranks(b, &weight) : FM_OK;
    if (rc == FM_OK && b->rank_count) {
        module = fm_calloc(b->rank_count, sizeof *module);
        rc = module ? FM_OK : FM_ENOMEM;
    }
    /* The group number of a module is the index of its first rank: numbers must be below the
     * count. */
    for (size_t k = 0; rc == FM_OK && k < b->rank_count; k++)
        module[k] = k && b->rank[k].unit == b->rank[k - 1].unit ? module[k - 1] : k;
    if (rc == FM_OK && b->rank_count) {
        const fm_blame_units units = {
            .count = b->rank_count, .levels = 1, .group_of = {module}, .weight = weight};
        const fm_minimal_opts opts = {.flip_rate = b->history.flip_rate,
                                      .confidence = b->how.confidence,
                                      .max_runs = b->how.max_runs};
        rc = fm_blame_minimal(&b->rank_set, &units, ranks_fail, b, &opts);
    }
    fm_free(weight);
    fm_free(module);
    return rc;
}
