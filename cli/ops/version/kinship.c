/* kinship.c - what a model has of its declared parent: names and shapes, very tensors, values.
 *
 * A full fine-tune changes every tensor a little, so that equal ones say much where there are some
 * and nothing where there are none. Values tell the two apart: a matrix and what training made of
 * it point the same way, two matrices that were drawn and trained apart do not. */
#include "cli/ops/version/kinship.h"

#include <string.h>

#include "cli/ops/base/say.h"
#include "store/base/cancel.h"
#include "store/base/map.h"
#include "store/base/mem.h"

#define LOOKS 32u        /* matrices whose values are compared */
#define VALUES 16384u    /* of each, from its middle; whole blocks of every type */
#define BLOCK_ELEMS 256u /* the largest block of a type */

typedef struct pair {
    const fm_entry *child, *parent;
} pair;

static fm_status map_ids(fm_map **out, const fm_tree *tree)
{
    size_t begin, end;
    FM_TRY(fm_map_new(out));
    fm_tree_range(tree, "tensors/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_TENSOR)
            FM_TRY(fm_map_put(*out, &e->id, sizeof e->id, *out, NULL));
    }
    return FM_OK;
}

/* matrix: room for every tensor of child; *matrices: those that fit and whose values can be
 * read. */
static void count_fit(fm_import_kin *out, const fm_tree *child, const fm_tree *parent,
                      const fm_map *ids, pair *matrix, size_t *matrices)
{
    size_t begin, end;
    fm_tree_range(child, "tensors/", &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const fm_entry *e = fm_tree_at(child, i), *was = fm_tree_find(parent, e->path);
        if (e->kind != FM_ENTRY_TENSOR)
            continue;
        out->tensors++;
        out->equal += fm_map_has(ids, &e->id, sizeof e->id);
        if (!was || was->kind != FM_ENTRY_TENSOR || !fm_shape_eq(&e->shape, &was->shape))
            continue;
        out->fit++;
        if (e->shape.rank >= 2 && e->bytes > 0 && fm_dtype_get(e->dtype)->is_float &&
            fm_dtype_get(was->dtype)->is_float)
            matrix[(*matrices)++] = (pair){e, was};
    }
}

/* The cosine of the two is above a half. */
static bool same_way(const float *a, const float *b, uint64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double x = (double)a[i], y = (double)b[i];
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return ab > 0 && ab * ab > 0.25 * aa * bb;
}

/* values: room for two times VALUES, raw for VALUES of the widest type. */
static fm_status look_at(fm_import_kin *out, const pair *m, const fm_provider *pc,
                         const fm_provider *pp, float *values, uint8_t *raw)
{
    uint64_t elems = 0;
    if (fm_digest_eq(&m->child->id, &m->parent->id)) {
        out->looked++;
        out->alike++;
        return FM_OK;
    }
    FM_TRY(fm_shape_elems(&elems, &m->child->shape));
    const uint64_t n = FM_MIN(elems, (uint64_t)VALUES);
    const uint64_t at = (elems - n) / 2 / BLOCK_ELEMS * BLOCK_ELEMS;
    fm_status rc = fm_entry_read_f32(values, pc, m->child, at, n, raw);
    FM_THEN(rc, fm_entry_read_f32(values + VALUES, pp, m->parent, at, n, raw));
    if (rc == FM_OK) {
        out->looked++;
        out->alike += same_way(values, values + VALUES, n);
    }
    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_ECANCELLED)
        return rc;
    fm_error_clear(); /* what cannot be read is told by who stores it */
    return FM_OK;
}

static fm_status look(fm_ops *c, fm_import_kin *out, const pair *matrix, size_t n,
                      const fm_provider *pc)
{
    const fm_provider pp = fm_store_provider(fm_repo_store(c->repo));
    float *values = fm_calloc(2 * (size_t)VALUES, sizeof *values);
    uint8_t *raw = fm_malloc((size_t)VALUES * sizeof(double));
    fm_status rc = values && raw ? FM_OK : FM_ENOMEM;
    const size_t looks = FM_MIN(n, (size_t)LOOKS);
    for (size_t i = 0; rc == FM_OK && i < looks; i++) {
        rc = fm_go_on() < 0 ? FM_ECANCELLED : FM_OK;
        FM_THEN(rc, look_at(out, &matrix[i * n / looks], pc, &pp, values, raw));
    }
    fm_free(values);
    fm_free(raw);
    return rc;
}

/* Edges whose child need not hold its parent's weights. */
static bool may_differ(const char *kind)
{
    return kind && (strcmp(kind, "distill") == 0 || strcmp(kind, "prune") == 0 ||
                    strcmp(kind, "retrieval") == 0);
}

static fm_status judge(fm_ops *c, const fm_import_opts *o, fm_import_kin *k)
{
    if (may_differ(o->kind))
        return FM_OK;
    if (k->tensors > 0 && k->fit == 0 && k->equal == 0)
        return fm_fail(
            FM_EBASE,
            "none of the %zu tensors has name and shape of one of '%s', which cannot be "
            "what this model's weights were made from; name its true parent, leave --parent "
            "out, or say --kind distill where it learned from the parent's answers",
            k->tensors, o->parent);
    k->doubted = k->equal * 2 < k->tensors &&
                 (k->fit * 2 < k->tensors || (k->looked > 0 && k->alike * 2 < k->looked));
    if (k->doubted)
        fmo_ui_say(c, FM_UI_NOTE,
                   "  note: this model does not look like one made from '%s': of its %zu tensors "
                   "%zu have name and shape of the parent's, %zu are the parent's very tensors; "
                   "of %zu matrices looked at %zu have values like the parent's. It is recorded "
                   "as its child all the same",
                   o->parent, k->tensors, k->fit, k->equal, k->looked, k->alike);
    return FM_OK;
}

fm_status fmo_kinship(fm_ops *c, const fm_tree *child, const fm_provider *p, const fm_tree *parent,
                      const fm_import_opts *o, fm_import_kin *out)
{
    fm_map *ids = NULL;
    size_t matrices = 0;
    pair *matrix = fm_calloc(fm_tree_count(child) + 1, sizeof *matrix);
    fm_status rc = matrix ? map_ids(&ids, parent) : FM_ENOMEM;
    if (rc == FM_OK) {
        count_fit(out, child, parent, ids, matrix, &matrices);
        rc = look(c, out, matrix, matrices, p);
    }
    FM_THEN(rc, judge(c, o, out));
    fm_map_free(ids);
    fm_free(matrix);
    return rc;
}
