/* merge.c - sums the weights of several trees by the recipes as which the sums are stored. */
#include "store/merge.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/export/export_impl.h"
#include "store/txn/put.h"

/* A part with its adapters merged. */
typedef struct view {
    exp_plan plan;
    fm_entry *value; /* [plan.count]: the stored tensor, or the float32 one that was made of it */
} view;

typedef struct merge {
    fm_store *store;
    fm_provider from;
    const fm_merge *spec;
    view part[FM_PARENTS_MAX], base; /* base: of TASK only */
    fm_merge_stats stats;
} merge;

/* ==== one tensor =========================================================================== */

static fm_status read_input(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    const fm_buf *in = ctx;
    memcpy(dst, in[input].data + offset, bytes);
    return FM_OK;
}

/* Puts what the recipe makes of the inputs. made has dtype and shape, and gets bytes and id. */
static fm_status make(merge *m, fm_txn *t, const fms_recipe *r, const fm_entry *const *input,
                      uint32_t count, fm_entry *made)
{
    fm_buf bytes[FM_PARENTS_MAX];
    fms_guess how = {.recipe = *r, .parent_count = count};
    fm_status rc = fm_tensor_bytes(&made->bytes, made->dtype, &made->shape, made->name);
    fms_inputs in = {.child = {made->dtype, made->shape, made->bytes},
                     .count = count,
                     .ctx = bytes,
                     .read = read_input};
    for (uint32_t k = 0; k < count; k++) {
        fm_buf_init(&bytes[k], (size_t)FM_MAX_TENSOR_BYTES);
        in.input[k] = (fms_form){input[k]->dtype, input[k]->shape, input[k]->bytes};
        how.parent[k] = input[k]->id;
        FM_THEN(rc, fm_entry_read(&bytes[k], &m->from, input[k]));
    }
    FM_THEN(rc, fms_recipe_check(r, &in));
    uint8_t *dst = rc == FM_OK ? fm_malloc((size_t)made->bytes) : NULL;
    FM_THEN(rc, dst ? fms_recipe_range(r, &in, 0, (size_t)made->bytes, dst) : FM_ENOMEM);
    FM_THEN(rc, fms_txn_put_made(t, &made->id, made->dtype, &made->shape,
                                 fm_span_of(dst, (size_t)made->bytes), &how));
    for (uint32_t k = 0; k < count; k++)
        fm_buf_release(&bytes[k]);
    fm_free(dst);
    return rc;
}

static fm_status commit(merge *m, fm_txn *t, fm_status rc)
{
    fm_txn_stats s;
    FM_THEN(rc, fm_txn_commit(t, &s));
    if (rc == FM_OK)
        m->stats.bytes_stored += s.bytes_stored;
    fm_txn_close(t);
    return rc;
}

/* ==== adapters ============================================================================= */

static void close_view(view *v)
{
    exp_plan_free(&v->plan);
    fm_free(v->value);
}

static fm_status open_view(merge *m, view *v, const fm_merge_part *p)
{
    fm_status rc = exp_plan_make(&v->plan, p->tree, &m->from, FM_DTYPE_NONE);
    if (rc == FM_OK && v->plan.unties)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "an adapter gives the tied model a head of its own, which a merge cannot "
                     "hold; export it with --format hf and import that");
    if (rc == FM_OK && !(v->value = fm_calloc(v->plan.count, sizeof *v->value)))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < v->plan.count; i++)
        v->value[i] = *v->plan.weight[i].base;
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", p->name);
}

static fm_status fold_term(merge *m, fm_txn *t, const exp_weight *w, size_t k, fm_entry *value)
{
    const exp_term *term = &w->term[k];
    const fm_entry before = *value, *input[3] = {&before, term->a, term->b};
    uint8_t params[4];
    uint32_t scale;
    memcpy(&scale, &term->scale, sizeof scale);
    fm_put_u32(params, scale);
    const fms_recipe r = {FMS_OP_LORA, FMS_LORA_F32, fm_span_of(params, sizeof params)};
    value->dtype = FM_F32;
    m->stats.folded++;
    fm_status rc = make(m, t, &r, input, 3, value);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "tensor '%s'", w->name);
}

/* Folds term k of every weight that has one; the next term needs the results stored. */
static fm_status fold_terms(merge *m, view *v, size_t k, bool *any)
{
    fm_txn *t = NULL;
    fm_status rc = FM_OK;
    *any = false;
    for (size_t i = 0; i < v->plan.count; i++)
        *any = *any || v->plan.weight[i].term_count > k;
    if (!*any)
        return FM_OK;
    rc = fm_txn_begin(&t, m->store);
    for (size_t i = 0; rc == FM_OK && i < v->plan.count; i++)
        if (v->plan.weight[i].term_count > k)
            rc = fold_term(m, t, &v->plan.weight[i], k, &v->value[i]);
    return commit(m, t, rc);
}

static fm_status fold(merge *m, view *v, const fm_merge_part *p)
{
    bool any = true;
    FM_TRY(open_view(m, v, p));
    for (size_t k = 0; any; k++)
        FM_TRY(fold_terms(m, v, k, &any));
    return FM_OK;
}

/* ==== the same tensors in all ============================================================== */

static fm_status only_in(const exp_weight *w, const fm_merge_part *has, const fm_merge_part *lacks)
{
    return fm_fail(FM_EBASE, "tensor '%s' is in %s, not in %s: these are no versions of one model",
                   w->name, has->name, lacks->name);
}

static fm_status same_shape(const exp_weight *x, const exp_weight *y, const fm_merge_part *px,
                            const fm_merge_part *py)
{
    char sx[96], sy[96];
    if (fm_shape_eq(&x->base->shape, &y->base->shape))
        return FM_OK;
    fm_shape_text(&x->base->shape, sx, sizeof sx);
    fm_shape_text(&y->base->shape, sy, sizeof sy);
    return fm_fail(FM_EBASE, "tensor '%s' is %s in %s and %s in %s; nothing is cut or padded",
                   x->name, sx, px->name, sy, py->name);
}

static fm_status same_tensors(const exp_plan *a, const exp_plan *b, const fm_merge_part *pa,
                              const fm_merge_part *pb)
{
    for (size_t i = 0; i < a->count || i < b->count; i++) {
        if (i >= a->count)
            return only_in(&b->weight[i], pb, pa);
        if (i >= b->count)
            return only_in(&a->weight[i], pa, pb);
        const exp_weight *x = &a->weight[i], *y = &b->weight[i];
        const int order = strcmp(x->name, y->name);
        if (order)
            return order < 0 ? only_in(x, pa, pb) : only_in(y, pb, pa);
        FM_TRY(same_shape(x, y, pa, pb));
    }
    return FM_OK;
}

/* ==== sums ================================================================================= */

static void put_coef(uint8_t *params, uint32_t k, double c)
{
    const double v = (double)(float)c;
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    fm_put_u64(params + 8 * (size_t)k, bits);
}

/* The terms of tensor i's sum; count 0: all tensors are equal, the first one is taken as it is. */
typedef struct terms {
    const fm_entry *input[FM_PARENTS_MAX];
    uint8_t params[8 * FM_PARENTS_MAX];
    uint32_t count;
} terms;

static terms terms_of(const merge *m, size_t i)
{
    const bool task = m->spec->method == FM_MERGE_TASK;
    const fm_entry *first = task ? &m->base.value[i] : &m->part[0].value[i];
    terms t = {.count = 0};
    bool same = true;
    if (task) {
        t.input[t.count] = first;
        put_coef(t.params, t.count++, 1);
    }
    for (uint32_t k = 0; k < m->spec->count; k++) {
        const fm_entry *e = &m->part[k].value[i];
        const bool as_first = fm_digest_eq(&e->id, &first->id);
        same = same && as_first;
        if (task && as_first)
            continue;
        t.input[t.count] = e;
        put_coef(t.params, t.count++, m->spec->part[k].coef);
    }
    if (same)
        t.count = 0;
    return t;
}

static fm_status can_sum(const fm_entry *like)
{
    if (like->dtype != FM_F32 && like->dtype != FM_BF16 && like->dtype != FM_F16)
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s' differs between the parents and is %s; F32, BF16 and F16 can "
                       "be merged: export with --dtype bf16 and import that",
                       like->name, fm_dtype_get(like->dtype)->name);
    return FM_OK;
}

static fm_status merge_one(merge *m, fm_txn *t, size_t i, fm_tree *out)
{
    const bool task = m->spec->method == FM_MERGE_TASK;
    const view *first = task ? &m->base : &m->part[0];
    const fm_entry *like = first->plan.weight[i].base;
    terms sum = terms_of(m, i);
    fm_entry made = first->value[i];
    fm_status rc = FM_OK;
    made.dtype = like->dtype;
    m->stats.tensors++;
    /* Equal float32 tensors, made by an adapter of all parts: they only have to be rounded. */
    if (sum.count == 0 && first->value[i].dtype != like->dtype) {
        sum.input[0] = &first->value[i];
        sum.count = 1;
        put_coef(sum.params, 0, 1);
    }
    if (sum.count == 0) {
        m->stats.kept++;
    } else {
        const fms_recipe r = {
            FMS_OP_LINEAR,
            (uint16_t)((task ? FMS_LINEAR_TASK : FMS_LINEAR_SUM) | (int)FMS_ARITH_F32 << 8),
            fm_span_of(sum.params, 8 * (size_t)sum.count)};
        rc = can_sum(like);
        FM_THEN(rc, make(m, t, &r, sum.input, sum.count, &made));
        m->stats.bytes += made.bytes;
    }
    FM_THEN(rc, fm_tree_put_tensor(out, like->path, first->plan.weight[i].name, made.dtype,
                                   &made.shape, &made.id));
    return rc;
}

static fm_status merge_all(merge *m, fm_tree *out)
{
    fm_txn *t = NULL;
    fm_status rc = fm_txn_begin(&t, m->store);
    for (size_t i = 0; rc == FM_OK && i < m->part[0].plan.count; i++)
        rc = merge_one(m, t, i, out);
    return commit(m, t, rc);
}

static fm_status check_count(const fm_merge *m)
{
    const uint32_t most = FM_PARENTS_MAX - (m->method == FM_MERGE_TASK ? 1 : 0);
    return m->count <= most
               ? FM_OK
               : fm_fail(FM_ELIMIT,
                         "%u versions at once: a merge takes %u at most; merge some of "
                         "them first",
                         m->count, most);
}

fm_status fm_merge_tensors(fm_tree *out, fm_store *s, const fm_merge *spec, fm_merge_stats *stats)
{
    merge m = {.store = s, .from = fm_store_provider(s), .spec = spec};
    const bool task = spec->method == FM_MERGE_TASK;
    fm_assert(spec->count > 0);
    fm_status rc = check_count(spec);
    const uint32_t count = rc == FM_OK ? spec->count : 0;
    if (rc == FM_OK && task)
        rc = fold(&m, &m.base, &spec->base);
    for (uint32_t k = 0; rc == FM_OK && k < count; k++)
        rc = fold(&m, &m.part[k], &spec->part[k]);
    for (uint32_t k = task ? 0 : 1; rc == FM_OK && k < count; k++)
        rc = task ? same_tensors(&m.base.plan, &m.part[k].plan, &spec->base, &spec->part[k])
                  : same_tensors(&m.part[0].plan, &m.part[k].plan, &spec->part[0], &spec->part[k]);
    FM_THEN(rc, merge_all(&m, out));
    for (uint32_t k = 0; k < count; k++)
        close_view(&m.part[k]);
    close_view(&m.base);
    *stats = m.stats;
    return rc;
}
