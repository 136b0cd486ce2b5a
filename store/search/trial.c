/* trial.c - the sources of a search, and how well a recipe over them predicts the subject. */
#include <string.h>

#include "store/base/mem.h"
#include "store/search/search_impl.h"

const fm_entry *src_own_entry(const fms_search *s)
{
    const fm_entry *e = s->own && s->subject->path ? fm_tree_find(s->own, s->subject->path) : NULL;
    return e && e->kind == FM_ENTRY_TENSOR ? e : NULL;
}

/* ==== sources ============================================================================== */

/* Whether a failure only rules out a candidate; other failures end the put. */
bool src_passes_over(fm_status rc)
{
    return rc == FM_ECORRUPT || rc == FM_EBASE || rc == FM_ENOTFOUND || rc == FM_EVERSION ||
           rc == FM_ELIMIT || rc == FM_EUNSUPPORTED || rc == FM_EINVAL;
}

fm_status src_open(fms_search *s, const fm_digest *id, uint32_t *at)
{
    bool known = false;
    *at = UINT32_MAX;
    for (uint32_t i = 0; i < s->sources; i++)
        if (fm_digest_eq(&s->source[i].id, id)) {
            *at = i;
            return FM_OK;
        }
    fm_status rc = s->env.known(s->env.ctx, id, &known);
    if (rc != FM_OK || !known || s->sources == SRC_SOURCES_MAX)
        return rc;
    src_source *src = &s->source[s->sources];
    memset(src, 0, sizeof *src);
    rc = fms_chain_open(&src->chain, s->env.store, id, 0, s->env.staged);
    FM_THEN(rc, fms_chain_keep(&src->chain, 0));
    if (rc != FM_OK)
        return src_passes_over(rc) ? FM_OK : rc;
    const fms_record *r = &src->chain.link[0];
    src->id = *id;
    src->form = (fms_form){r->dtype, r->shape, r->bytes};
    src->depth = r->depth;
    *at = s->sources++;
    return FM_OK;
}

fm_status src_read(fms_search *s, uint32_t source, uint64_t offset, void *dst, size_t bytes)
{
    return fms_chain_range(&s->source[source].chain, s->coder, offset, dst, bytes);
}

/* ==== judging ============================================================================== */

typedef struct trial_ctx {
    fms_search *s;
    const uint32_t *source;
} trial_ctx;

static fm_status read_source(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    const trial_ctx *t = ctx;
    return src_read(t->s, t->source[input], offset, dst, bytes);
}

static unsigned bits_in(uint32_t v)
{
    return v ? 32u - (unsigned)__builtin_clz(v) : 0;
}

static uint32_t ordered(uint32_t v, uint32_t sign)
{
    return v & sign ? ~v : v | sign;
}

/* The mean length in bits of the elements' differences, as ordered integers where there are
 * such. */
static double distance(fm_dtype dtype, const uint8_t *a, const uint8_t *b, size_t bytes)
{
    uint64_t sum = 0;
    size_t n = bytes;
    if (dtype == FM_F32) {
        n = bytes / 4;
        for (size_t i = 0; i < n; i++) {
            const int32_t d = (int32_t)(ordered(fm_get_u32(a + 4 * i), 0x80000000u) -
                                        ordered(fm_get_u32(b + 4 * i), 0x80000000u));
            sum += bits_in((uint32_t)d << 1 ^ (uint32_t)(d >> 31));
        }
    } else if (dtype == FM_BF16 || dtype == FM_F16) {
        n = bytes / 2;
        for (size_t i = 0; i < n; i++) {
            const int32_t d = (int32_t)ordered(fm_get_u16(a + 2 * i) | 0xffff0000u, 0x8000u) -
                              (int32_t)ordered(fm_get_u16(b + 2 * i) | 0xffff0000u, 0x8000u);
            sum += bits_in((uint32_t)(d < 0 ? -2 * d - 1 : 2 * d));
        }
    } else {
        for (size_t i = 0; i < n; i++)
            sum += a[i] == b[i] ? 0 : 8;
    }
    return n ? (double)sum / (double)n : 0;
}

static fms_inputs inputs_of(fms_search *s, const uint32_t *source, uint32_t count, trial_ctx *t)
{
    fms_inputs in = {.child = s->subject->form, .count = count, .ctx = t, .read = read_source};
    *t = (trial_ctx){s, source};
    for (uint32_t k = 0; k < count; k++)
        in.input[k] = s->source[source[k]].form;
    return in;
}

fm_status src_predict(fms_search *s, const fms_recipe *r, const uint32_t *source, uint32_t count,
                      uint64_t offset, size_t bytes, uint8_t *dst)
{
    trial_ctx t;
    if (r->op == FMS_OP_NONE)
        return src_read(s, source[0], offset, dst, bytes);
    const fms_inputs in = inputs_of(s, source, count, &t);
    return fms_recipe_range(r, &in, offset, bytes, dst);
}

/* Whether the recipe fits its sources, which may not be at the greatest depth, but for a delta. */
static fm_status fits(fms_search *s, const fms_recipe *r, const uint32_t *source, uint32_t count)
{
    const fms_form *c = &s->subject->form;
    trial_ctx t;
    if (r->op == FMS_OP_NONE)
        return s->source[source[0]].form.dtype == c->dtype &&
                       fm_shape_eq(&s->source[source[0]].form.shape, &c->shape)
                   ? FM_OK
                   : FM_EINVAL;
    for (uint32_t k = 0; k < count; k++)
        if (s->source[source[k]].depth >= FMS_CHAIN_MAX)
            return FM_EINVAL;
    const fms_inputs in = inputs_of(s, source, count, &t);
    return fms_recipe_check(r, &in);
}

void src_drop_trial(src_trial *t)
{
    fm_free((void *)(uintptr_t)t->recipe.params.data);
    memset(t, 0, sizeof *t);
}

static fm_status keep(src_trial *to, const fms_recipe *r, const uint32_t *source, uint32_t count,
                      double bits)
{
    src_drop_trial(to);
    void *params = r->params.len ? fm_memdup(r->params.data, r->params.len) : NULL;
    if (r->params.len && !params)
        return FM_ENOMEM;
    to->recipe = (fms_recipe){r->op, r->mode, fm_span_of(params, r->params.len)};
    to->count = count;
    memcpy(to->source, source, count * sizeof *source);
    to->bits = bits;
    return FM_OK;
}

static fm_status rank(fms_search *s, const fms_recipe *r, const uint32_t *source, uint32_t count,
                      double bits)
{
    if (s->best.count == 0 || bits < s->best.bits) {
        src_drop_trial(&s->second);
        s->second = s->best;
        memset(&s->best, 0, sizeof s->best);
        return keep(&s->best, r, source, count, bits);
    }
    if (s->second.count == 0 || bits < s->second.bits)
        return keep(&s->second, r, source, count, bits);
    return FM_OK;
}

fm_status src_try(fms_search *s, const fms_recipe *r, const uint32_t *source, uint32_t count,
                  double *bits)
{
    double sum = 0;
    if (bits)
        *bits = 1e9;
    if (s->trials >= SRC_TRIALS_MAX)
        return FM_OK;
    s->trials++;
    fm_status rc = fits(s, r, source, count);
    for (uint32_t w = 0; rc == FM_OK && w < s->windows; w++) {
        rc = src_predict(s, r, source, count, s->window_at[w], s->window_bytes, s->predicted);
        if (rc == FM_OK)
            sum += distance(s->subject->form.dtype, s->bytes + s->window_at[w] % FM_LEAF_BYTES,
                            s->predicted, s->window_bytes);
    }
    if (rc != FM_OK)
        return src_passes_over(rc) ? FM_OK : rc;
    sum /= s->windows;
    if (bits)
        *bits = sum;
    return rank(s, r, source, count, sum);
}
