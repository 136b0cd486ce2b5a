/* diff.c - the entries that two trees do not share, and the distance of two tensors.
 *
 * Ids decide what changed; weights are read only by fm_tensor_compare. Each sum is one chain of
 * doubles in element order, so that a figure in a report is the same on every machine. */
#include "lineage/internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define STEP_ELEMS 8192u /* a whole number of every block type's elements */

static bool same_entry(const fm_entry *a, const fm_entry *b)
{
    if (a->kind != b->kind || !fm_digest_eq(&a->id, &b->id))
        return false;
    return a->kind != FM_ENTRY_TENSOR || strcmp(a->name, b->name) == 0;
}

fm_status fm_diff_trees(const fm_tree *a, const fm_tree *b, fm_change_fn fn, void *ctx)
{
    size_t i = 0, k = 0, n, m;
    fm_status rc = FM_OK;

    if (!a || !b || !fn)
        return fm_fail(FM_EINVAL, "diff: two trees and a callback are needed");
    n = fm_tree_count(a);
    m = fm_tree_count(b);
    while (rc == FM_OK && (i < n || k < m)) {
        fm_change c = {FM_CHANGE_MODIFY, i < n ? fm_tree_at(a, i) : NULL,
                       k < m ? fm_tree_at(b, k) : NULL};
        int order = !c.a ? 1 : !c.b ? -1 : strcmp(c.a->path, c.b->path);
        if (order < 0) {
            c.kind = FM_CHANGE_DELETE;
            c.b = NULL;
            i++;
        } else if (order > 0) {
            c.kind = FM_CHANGE_ADD;
            c.a = NULL;
            k++;
        } else {
            i++;
            k++;
            if (same_entry(c.a, c.b))
                continue;
        }
        rc = fn(ctx, &c);
    }
    return rc == FM_ECANCELLED ? FM_OK : rc;
}

/* ---- compare ---- */

static double int_at(fm_dtype dtype, const uint8_t *p, uint64_t i)
{
    uint32_t width = fm_dtype_get(dtype)->block_bytes;
    uint64_t mask = width == 8 ? UINT64_MAX : ((uint64_t)1 << (8 * width)) - 1, u = 0;
    bool is_signed = dtype == FM_I64 || dtype == FM_I32 || dtype == FM_I16 || dtype == FM_I8;

    for (uint32_t k = 0; k < width; k++)
        u |= (uint64_t)p[i * width + k] << (8 * k);
    if (is_signed && (u >> (8 * width - 1)) != 0)
        return -(double)(~u & mask) - 1.0;
    return (double)u;
}

/* Converts n elements at element offset `at` to double; exact for all but 64-bit integers. */
static fm_status widen(double *dst, fm_dtype dtype, const uint8_t *src, uint64_t at, uint64_t n)
{
    const fm_dtype_info *info = fm_dtype_get(dtype);
    const uint8_t *p = src + at / info->block_elems * info->block_bytes;
    float tmp[STEP_ELEMS];

    if (dtype == FM_F64) {
        memcpy(dst, p, n * sizeof *dst);
        return FM_OK;
    }
    if (!info->is_float) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = int_at(dtype, p, i);
        return FM_OK;
    }
    FM_TRY(fm_to_f32(tmp, dtype, p, n));
    for (uint64_t i = 0; i < n; i++)
        dst[i] = (double)tmp[i];
    return FM_OK;
}

typedef struct sums {
    double aa, bb, ab, dd, max;
    uint64_t changed;
} sums;

static void add(sums *s, const double *a, const double *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        double d = b[i] - a[i], size = fabs(d);
        s->aa += a[i] * a[i];
        s->bb += b[i] * b[i];
        s->ab += a[i] * b[i];
        s->dd += d * d;
        if (size > s->max || isnan(size))
            s->max = isnan(s->max) ? s->max : size;
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0) /* -0.0 and NaN payloads are changes */
            s->changed++;
    }
}

static void finish(fm_tensor_change *out, const sums *s)
{
    out->changed = s->changed;
    out->norm_a = sqrt(s->aa);
    out->norm_delta = sqrt(s->dd);
    out->max_abs_delta = s->max;
    if (s->aa > 0 && s->bb > 0)
        out->cosine = s->ab / (sqrt(s->aa) * sqrt(s->bb));
    else
        out->cosine = s->aa == s->bb ? 1.0 : s->aa + s->bb > 0 ? 0.0 : (double)NAN;
}

static fm_status check_pair(const fm_entry *a, const fm_entry *b)
{
    if (a->kind != FM_ENTRY_TENSOR || b->kind != FM_ENTRY_TENSOR)
        return fm_fail(FM_EINVAL, "compare: '%s' and '%s' are not both tensors", a->path, b->path);
    if (a->dtype != b->dtype || !fm_shape_eq(&a->shape, &b->shape))
        return fm_fail(FM_EINVAL, "compare: '%s' and '%s' differ in dtype or shape", a->path,
                       b->path);
    return FM_OK;
}

static fm_status compare_bytes(const fm_entry *e, const fm_buf *a, const fm_buf *b,
                               fm_tensor_change *out)
{
    double *x = fm_calloc(2 * (size_t)STEP_ELEMS, sizeof *x);
    sums s = {0};
    fm_status rc = x ? FM_OK : FM_ENOMEM;

    for (uint64_t at = 0; rc == FM_OK && at < out->elems; at += STEP_ELEMS) {
        uint64_t n = FM_MIN(out->elems - at, (uint64_t)STEP_ELEMS);
        rc = widen(x, e->dtype, a->data, at, n);
        FM_THEN(rc, widen(x + STEP_ELEMS, e->dtype, b->data, at, n));
        if (rc == FM_OK)
            add(&s, x, x + STEP_ELEMS, n);
    }
    if (rc == FM_OK)
        finish(out, &s);
    fm_free(x);
    return rc;
}

fm_status fm_tensor_compare(const fm_provider *p, const fm_entry *a, const fm_entry *b,
                            fm_tensor_change *out)
{
    fm_buf x, y;
    bool same;
    fm_status rc;

    memset(out, 0, sizeof *out);
    if (!p || !a || !b)
        return fm_fail(FM_EINVAL, "compare: a provider and two tensors are needed");
    FM_TRY(check_pair(a, b));
    FM_TRY(fm_shape_elems(&out->elems, &a->shape));
    same = fm_digest_eq(&a->id, &b->id);
    fm_buf_init(&x, SIZE_MAX / 2);
    fm_buf_init(&y, SIZE_MAX / 2);
    rc = fm_entry_read(&x, p, a);
    if (rc == FM_OK && !same)
        rc = fm_entry_read(&y, p, b);
    if (rc == FM_OK && (x.len != a->bytes || (!same && y.len != b->bytes)))
        rc = fm_fail(FM_ECORRUPT, "compare: '%s' has %zu bytes, not %" PRIu64, a->path, x.len,
                     a->bytes);
    FM_THEN(rc, compare_bytes(a, &x, same ? &x : &y, out));
    fm_buf_release(&x);
    fm_buf_release(&y);
    if (rc < 0)
        memset(out, 0, sizeof *out);
    return rc;
}
