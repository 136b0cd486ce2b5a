/* search.c - offers, the tensors at the path, and the choice among the candidates of the search. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/quant/quantize.h"
#include "store/search/search_impl.h"

/* ==== life and offers ====================================================================== */

fm_status fms_search_new(fms_search **out, const fms_search_env *env)
{
    fms_search *s = fm_calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return FM_ENOMEM;
    s->env = *env;
    fm_buf_init(&s->params, (size_t)FMS_PARAMS_MAX);
    return FM_OK;
}

static void close_sources(fms_search *s)
{
    for (uint32_t i = 0; i < s->sources; i++)
        fms_chain_release(&s->source[i].chain);
    s->sources = s->path_sources = 0;
}

static void end_run(fms_search *s)
{
    close_sources(s);
    src_drop_trial(&s->best);
    src_drop_trial(&s->second);
}

void fms_search_free(fms_search *s)
{
    if (!s)
        return;
    end_run(s);
    fm_free(s->bytes);
    fm_free(s->predicted);
    for (uint32_t i = 0; i < s->trees; i++)
        fm_tree_free(s->tree[i]);
    fm_buf_release(&s->params);
    src_nearest_free(s->nearest);
    fm_free(s->adamw);
    fm_free(s);
}

fm_status fms_search_offer(fms_search *s, const fm_tree *tree)
{
    if (s->nearest)
        return src_nearest_offer(s, tree);
    if (s->trees == FMS_OFFERS_MAX) {
        s->passed_over++;
        return FM_OK;
    }
    fm_status rc = fm_tree_copy(&s->tree[s->trees], tree);
    s->trees += rc == FM_OK;
    return rc;
}

fm_status fms_search_expect(fms_search *s, const fm_tree *tree, const fm_provider *from)
{
    return src_nearest_new(s, tree, from);
}

uint64_t fms_search_passed_over(const fms_search *s)
{
    return s->passed_over;
}

void fms_search_put_tree(fms_search *s, const fm_tree *tree)
{
    s->own = tree;
    if (!tree) { /* what was expected has come */
        src_nearest_free(s->nearest);
        s->nearest = NULL;
        s->expected = NULL;
    }
}

/* ==== the tensors at the path ============================================================== */

static bool same_shape(const fm_entry *e, const fms_form *f)
{
    return fm_shape_eq(&e->shape, &f->shape);
}

/* Tries one tensor alone: as it is, in another dtype, quantized, in another shape. */
static fm_status try_alone(fms_search *s, const fm_entry *e, uint32_t at)
{
    const fms_form *c = &s->subject->form;
    fms_recipe r = {.op = FMS_OP_NONE};
    fm_status rc = FM_OK;
    if (!same_shape(e, c))
        return src_same_bytes(s, e);
    if (e->dtype == c->dtype)
        rc = src_try(s, &r, &at, 1, NULL);
    r.op = FMS_OP_CAST;
    if (rc == FM_OK && e->dtype != c->dtype)
        rc = src_try(s, &r, &at, 1, NULL);
    r.op = FMS_OP_QUANT;
    if (e->dtype != c->dtype && fm_quantize_applies(c->dtype))
        for (r.mode = 0; rc == FM_OK && r.mode < FM_QUANT_VARIANTS; r.mode++)
            rc = src_try(s, &r, &at, 1, NULL);
    return rc;
}

static const fm_entry *entry_at(const fms_search *s, uint32_t tree)
{
    const fm_entry *e = s->subject->path ? fm_tree_find(s->tree[tree], s->subject->path) : NULL;
    return e && e->kind == FM_ENTRY_TENSOR ? e : NULL;
}

static fm_status open_path(fms_search *s)
{
    uint32_t at;
    fm_status rc = FM_OK;
    if (s->subject->parent)
        rc = src_open(s, s->subject->parent, &at);
    for (uint32_t t = 0; rc == FM_OK && t < s->trees && s->sources < SRC_PATH_SOURCES_MAX; t++) {
        const fm_entry *e = entry_at(s, t);
        if (e)
            rc = src_open(s, &e->id, &at);
    }
    s->path_sources = s->sources;
    return rc;
}

static fm_status try_path(fms_search *s)
{
    for (uint32_t i = 0; i < s->path_sources; i++) {
        const src_source *src = &s->source[i];
        fm_entry e = {.kind = FM_ENTRY_TENSOR, .id = src->id, .bytes = src->form.bytes};
        e.dtype = src->form.dtype;
        e.shape = src->form.shape;
        FM_TRY(try_alone(s, &e, i));
    }
    return FM_OK;
}

/* ==== the run ============================================================================== */

static fm_status sample(fms_search *s)
{
    const fms_form *f = &s->subject->form;
    const uint32_t leaves = fms_leaf_count(f->bytes);
    const fm_dtype_info *type = fm_dtype_get(f->dtype);
    const size_t unit = type->is_block ? 1 : type->block_bytes;
    fm_span leaf;
    s->leaf = leaves / 2;
    s->leaf_bytes = fms_leaf_bytes(f->bytes, s->leaf);
    s->bytes = s->bytes ? s->bytes : fm_malloc(FM_LEAF_BYTES);
    s->predicted = s->predicted ? s->predicted : fm_malloc(FM_LEAF_BYTES);
    if (!s->bytes || !s->predicted)
        return FM_ENOMEM;
    FM_TRY(s->subject->leaf(s->subject->ctx, s->leaf, s->bytes, &leaf));
    if (leaf.data != s->bytes)
        memcpy(s->bytes, leaf.data, leaf.len);
    s->window_bytes = FM_MIN(s->leaf_bytes, SRC_WINDOW_ELEMS * unit);
    s->windows = s->window_bytes == s->leaf_bytes ? 1 : SRC_WINDOWS;
    const size_t room = s->leaf_bytes - s->window_bytes;
    for (uint32_t w = 0; w < s->windows; w++)
        s->window_at[w] =
            (uint64_t)s->leaf * FM_LEAF_BYTES + room / unit * w / FM_MAX(s->windows - 1, 1u) * unit;
    return FM_OK;
}

static fm_status coded_size(fms_search *s, const src_trial *t, size_t *out)
{
    fm_buf coded;
    uint8_t codec;
    const fms_form *f = &s->subject->form;
    fm_buf_init(&coded, (size_t)4 * FM_LEAF_BYTES);
    const fms_leaf_at at = fms_leaf_at_of(f->dtype, &f->shape, s->leaf);
    fm_status rc = src_predict(s, &t->recipe, t->source, t->count,
                               (uint64_t)s->leaf * FM_LEAF_BYTES, s->leaf_bytes, s->predicted);
    FM_THEN(rc, fms_leaf_encode(s->coder, &coded, &codec, &at, fm_span_of(s->bytes, s->leaf_bytes),
                                s->predicted));
    *out = rc == FM_OK ? coded.len : SIZE_MAX;
    fm_buf_release(&coded);
    return src_passes_over(rc) ? FM_OK : rc;
}

/* The distance only estimates the coded size: where the best two are near, both are coded. */
static fm_status decide(fms_search *s)
{
    size_t a = 0, b = 0;
    if (s->second.count == 0 || s->best.bits < SRC_EXACT || s->second.bits > s->best.bits * 1.5 + 1)
        return FM_OK;
    FM_TRY(coded_size(s, &s->best, &a));
    FM_TRY(coded_size(s, &s->second, &b));
    if (b < a) {
        const src_trial held = s->best;
        s->best = s->second;
        s->second = held;
    }
    return FM_OK;
}

static void remember(fms_search *s)
{
    const src_trial *t = &s->best;
    src_habit *h = &s->habit;
    bool at_path = t->recipe.params.len <= sizeof h->params;
    for (uint32_t k = 0; k < t->count; k++)
        at_path = at_path && t->source[k] < s->path_sources;
    if (!at_path || t->count == 0)
        return;
    *h = (src_habit){.set = true, .op = t->recipe.op, .mode = t->recipe.mode, .count = t->count};
    if (t->recipe.params.len)
        memcpy(h->params, t->recipe.params.data, t->recipe.params.len);
    h->params_len = t->recipe.params.len;
    memcpy(h->source, t->source, sizeof h->source);
}

static fm_status try_habit(fms_search *s)
{
    const src_habit *h = &s->habit;
    if (!h->set || h->op == FMS_OP_NONE)
        return FM_OK;
    for (uint32_t k = 0; k < h->count; k++)
        if (h->source[k] >= s->path_sources)
            return FM_OK;
    const fms_recipe r = {h->op, h->mode, fm_span_of(h->params, h->params_len)};
    return src_try(s, &r, h->source, h->count, NULL);
}

static bool found_enough(const fms_search *s)
{
    return s->best.count && s->best.bits < SRC_EXACT;
}

static fm_status try_all(fms_search *s)
{
    fm_status rc = try_habit(s);
    if (rc == FM_OK && !found_enough(s))
        rc = src_adamw(s);
    if (rc == FM_OK && s->best.count && s->best.recipe.op == FMS_OP_ADAMW &&
        s->best.bits < SRC_NOTHING_NEARER)
        return FM_OK;
    if (rc == FM_OK && !found_enough(s))
        rc = try_path(s);
    if (rc == FM_OK && !found_enough(s))
        rc = src_lora(s);
    if (rc == FM_OK && !found_enough(s))
        rc = src_linear(s);
    /* Rows are looked for where the tensor is not related to those at its path. */
    const double poor = 0.4 * 8 * (double)fm_dtype_get(s->subject->form.dtype)->block_bytes;
    if (rc == FM_OK && (s->best.count == 0 || s->best.bits > FM_MIN(poor, 8.0)))
        rc = src_rows(s);
    return rc == FM_OK && !found_enough(s) ? decide(s) : rc;
}

static fm_status answer(fms_search *s, fms_guess *out)
{
    const src_trial *t = &s->best;
    fm_buf_clear(&s->params);
    fm_buf_append(&s->params, t->recipe.params.data, t->recipe.params.len);
    out->recipe = (fms_recipe){t->recipe.op, t->recipe.mode, fm_buf_span(&s->params)};
    out->parent_count = t->count;
    for (uint32_t k = 0; k < t->count; k++)
        out->parent[k] = s->source[t->source[k]].id;
    out->bits = t->bits;
    return fm_buf_ok(&s->params);
}

/* Bits per element beyond which a lone candidate is unrelated. Two random normal tensors are 11.5
 * (BF16, F16) and 27.5 (F32) bits apart, since half of the signs differ; in F32 the low 16 bits are
 * noise between related tensors too. */
static double strange_bits(fm_dtype dtype)
{
    return dtype == FM_F32 ? 24 : dtype == FM_BF16 || dtype == FM_F16 ? 8 : INFINITY;
}

/* With one tensor of its kind at the path and nothing else to try, the windows still judge it where
 * another candidate may exist (layers that moved, rows in another order, a transposed square). */
static fm_status judge_alone(fms_search *s, bool *is_parent)
{
    const fms_form *f = &s->subject->form;
    const fms_recipe r = {.op = FMS_OP_NONE};
    const uint32_t at = 0;
    double bits = 0;
    fm_status rc = FM_OK;
    if (s->trees && s->subject->path && f->shape.rank >= 2 && isfinite(strange_bits(f->dtype))) {
        rc = sample(s);
        FM_THEN(rc, src_try(s, &r, &at, 1, &bits));
    }
    *is_parent = rc == FM_OK && bits <= strange_bits(f->dtype);
    return rc;
}

/* Whether there is more to try: an adapter among the offers, or something else at the path than one
 * tensor of the same dtype and shape. */
static bool has_choice(const fms_search *s)
{
    const fms_form *f = &s->subject->form;
    if (s->path_sources != 1 || s->source[0].form.dtype != f->dtype ||
        !fm_shape_eq(&s->source[0].form.shape, &f->shape))
        return true;
    for (uint32_t t = 0; t < s->trees; t++) {
        size_t begin, end;
        fm_tree_range(s->tree[t], "adapters/", &begin, &end);
        if (begin < end)
            return true;
    }
    return false;
}

fm_status fms_search_run(fms_search *s, const fms_subject *subject, fms_coder *coder,
                         fms_guess *out)
{
    memset(out, 0, sizeof *out);
    if (subject->form.bytes == 0 || (s->trees == 0 && !subject->parent))
        return FM_OK;
    s->subject = subject;
    s->coder = coder;
    s->trials = 0;
    bool of_checkpoint = false, is_parent = false;
    fm_status rc = open_path(s);
    FM_THEN(rc, src_of_checkpoint(s, &of_checkpoint));
    if (rc == FM_OK && s->sources && !of_checkpoint && !has_choice(s))
        rc = judge_alone(s, &is_parent);
    if (is_parent) {
        *out = (fms_guess){.parent_count = 1, .bits = -1};
        out->parent[0] = s->source[0].id;
        end_run(s);
        return FM_OK;
    }
    if (rc == FM_OK && s->trees)
        rc = sample(s);
    if (rc == FM_OK && s->trees)
        rc = try_all(s);
    if (rc == FM_OK) {
        remember(s);
        rc = answer(s, out);
    }
    end_run(s);
    return rc;
}
