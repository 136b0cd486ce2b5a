/* adamw.c - is the tensor AdamW's second moment, or a weight, one step after an offered tree?
 *
 * The first moment of the same checkpoint has to be stored before, and for a weight also the
 * second. That is why put_entries (txn.c) puts a tree's entries in the order of fms_search_turn. */
#include <string.h>

#include "store/recipe/adamw.h"
#include "store/base/mem.h"
#include "store/search/search_impl.h"

#define FIT_MAX 4096u
#define FIT_MIN 64u

/* How checkpoints name weight, first and second moment: the texts before and after the stem. */
static const struct naming {
    const char *before[3], *after[3];
} NAMING[] = {
    {{"", "", ""}, {"", ".exp_avg", ".exp_avg_sq"}}, /* PyTorch's state, by parameter */
    {{"", "exp_avg.", "exp_avg_sq."}, {"", "", ""}},
    {{"", "m.", "v."}, {"", "", ""}},
    {{"w.", "m.", "v."}, {"", "", ""}},
    {{"", "", ""}, {"", ".m", ".v"}},
    {{"", "optimizer.m.", "optimizer.v."}, {"", "", ""}},
    {{"model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."}, {"", "", ""}},
};

/* *out: the F32 tensor of this name, or NULL; a name that has no path has no tensor. */
static fm_status named(const fm_entry **out, const fm_tree *tree, const char *before, fm_span stem,
                       const char *after)
{
    fm_buf name, path;
    fm_buf_init(&name, FM_MAX_NAME_BYTES + 64);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_buf_str(&name, before);
    fm_buf_append(&name, stem.data, stem.len);
    fm_buf_str(&name, after);
    fm_status rc = fm_buf_ok(&name);
    FM_THEN(rc, fm_tensor_path(&path, "tensors", fm_buf_cstr(&name)));
    FM_THEN(rc, fm_buf_ok(&path));
    const fm_entry *e = rc == FM_OK ? fm_tree_find(tree, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&name);
    fm_buf_release(&path);
    *out = e && e->kind == FM_ENTRY_TENSOR && e->dtype == FM_F32 ? e : NULL;
    return rc == FM_ENOMEM ? rc : FM_OK;
}

enum { NO_PART = 3 };

/* The three entries of e's checkpoint; *which of them e is: 0 weight, 1 m, 2 v, or NO_PART. */
static fm_status triple_of(const fm_tree *tree, const fm_entry *e, unsigned *which,
                           const fm_entry *part[3])
{
    fm_status rc = FM_OK;
    *which = NO_PART;
    if (!e->name || e->dtype != FM_F32 || e->kind != FM_ENTRY_TENSOR)
        return FM_OK;
    const size_t len = strlen(e->name);
    for (size_t k = 0; k < FM_ARRAY_LEN(NAMING); k++)
        for (unsigned w = 3; w-- > 0;) { /* longer endings first */
            const struct naming *n = &NAMING[k];
            const size_t head = strlen(n->before[w]), tail = strlen(n->after[w]);
            if (len <= head + tail || strncmp(e->name, n->before[w], head) != 0 ||
                strcmp(e->name + len - tail, n->after[w]) != 0)
                continue;
            const fm_span stem = fm_span_of(e->name + head, len - head - tail);
            bool whole = true;
            for (unsigned i = 0; rc == FM_OK && i < 3; i++) {
                rc = named(&part[i], tree, n->before[i], stem, n->after[i]);
                whole = whole && part[i] && fm_shape_eq(&part[i]->shape, &e->shape);
            }
            if (rc != FM_OK || whole) {
                *which = w;
                return rc;
            }
        }
    return FM_OK;
}

fm_status fms_search_turn(unsigned *out, const fm_tree *tree, const fm_entry *e)
{
    static const unsigned turn[] = {2, 0, 1, 0};
    const fm_entry *part[3];
    unsigned which = NO_PART;
    const fm_status rc = triple_of(tree, e, &which, part);
    *out = turn[which];
    return rc;
}

/* ==== fitting ============================================================================== */

typedef struct samples {
    float want[FIT_MAX], x[3][FIT_MAX];
    size_t n;
} samples;

static float float_at(const uint8_t *p)
{
    const uint32_t u = fm_get_u32(p);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Gathers elements of the windows, without those whose second moment v is 0: these say nothing. */
static fm_status gather(fms_search *s, samples *out, const uint32_t source[3], bool weights)
{
    const size_t n = s->window_bytes / 4;
    uint8_t *part = fm_malloc(3 * s->window_bytes);
    fm_status rc = part ? FM_OK : FM_ENOMEM;

    out->n = 0;
    for (uint32_t w = 0; rc == FM_OK && w < s->windows; w++) {
        const uint8_t *want = s->bytes + s->window_at[w] % FM_LEAF_BYTES;
        for (uint32_t k = 0; rc == FM_OK && k < 3; k++)
            rc = src_read(s, source[k], s->window_at[w], part + k * s->window_bytes,
                          s->window_bytes);
        const uint8_t *v = weights ? part + 2 * s->window_bytes : want;
        const size_t room = FIT_MAX / s->windows * (w + 1);
        for (size_t i = 0; rc == FM_OK && i < n && out->n < room; i++) {
            if (float_at(v + 4 * i) == 0.0f)
                continue;
            out->want[out->n] = float_at(want + 4 * i);
            for (uint32_t k = 0; k < 3; k++)
                out->x[k][out->n] = float_at(part + k * s->window_bytes + 4 * i);
            out->n++;
        }
    }
    fm_free(part);
    return rc;
}

static fm_status try_scalars(fms_search *s, const uint32_t source[3], bool weights, double *bits)
{
    uint8_t params[FMS_ADAMW_BYTES];
    const uint16_t mode = (uint16_t)((unsigned)s->adamw->mode | (weights ? FMS_ADAMW_WEIGHTS : 0));
    const fms_recipe r = {FMS_OP_ADAMW, mode, fm_span_of(params, sizeof params)};
    fms_adamw_put(params, &s->adamw->s);
    return src_try(s, &r, source, 3, bits);
}

/* The scalars hold for all tensors of a checkpoint, so those of the last tensor are tried first. */
static fm_status fit(fms_search *s, const uint32_t source[3], bool weights)
{
    double bits = 1e9;
    fm_status rc = FM_OK;
    if (s->adamw->s.one_less_beta1 > 0.0f && (!weights || s->adamw->s.root > 0.0f))
        rc = try_scalars(s, source, weights, &bits);
    if (rc != FM_OK || bits < SRC_NOTHING_NEARER)
        return rc;
    samples *x = fm_malloc(sizeof *x);
    if (!x)
        return FM_ENOMEM;
    rc = gather(s, x, source, weights);
    if (rc == FM_OK && x->n >= FIT_MIN) {
        if (weights)
            fms_adamw_fit_w(s->adamw, x->want, x->x[0], x->x[1], x->x[2], x->n);
        else
            fms_adamw_fit_v(s->adamw, x->want, x->x[0], x->x[1], x->x[2], x->n);
        if ((weights ? s->adamw->exact_w : s->adamw->exact_v) > x->n / 4)
            rc = try_scalars(s, source, weights, NULL);
    }
    fm_free(x);
    return rc;
}

/* ==== sources ============================================================================== */

/* m' of a step gives v', and v' gives w', each one deeper; so m's chains end two steps earlier. */
static uint32_t depth_limit(unsigned which)
{
    return which == 1 ? FMS_CHAIN_MAX - 2 : FMS_CHAIN_MAX;
}

/* Where the chain is too deep for a step of the recurrence, it starts again with a delta to its
 * first tensor, which is several steps old, but the tensors after it are cheap again. */
static fm_status from_the_start(fms_search *s, uint32_t before)
{
    const fms_chain *c = &s->source[before].chain;
    const fms_recipe none = {.op = FMS_OP_NONE};
    const fms_record *r = &c->link[0];
    bool more = true;

    while (r->parent_count > 0 && more) {
        const fms_record *next = NULL;
        for (uint32_t k = 0; k < c->count && !next; k++)
            if (fm_digest_eq(&c->link[k].id, &r->parent[0]))
                next = &c->link[k];
        more = next && next->dtype == r->dtype && fm_shape_eq(&next->shape, &r->shape);
        r = more ? next : r;
    }
    uint32_t at;
    const fm_digest id = r->id;
    fm_status rc = src_open(s, &id, &at);
    if (rc != FM_OK || at == UINT32_MAX)
        return rc;
    rc = src_try(s, &none, &at, 1, NULL);
    if (rc == FM_OK && s->best.count == 1 && s->best.source[0] == at)
        s->best.bits = 0.0; /* nearer tensors are too deep */
    return rc;
}

/* Tries the subject as one step after `before`, an entry of the older checkpoint `old`. */
static fm_status step_from(fms_search *s, const fm_entry *before, const fm_entry *const own[3],
                           const fm_entry *const old[3], unsigned which)
{
    const fm_entry *const part[3] = {before, which == 2 ? old[1] : own[1],
                                     which == 2 ? own[1] : own[2]};
    const uint32_t parts = which == 1 ? 1 : 3;
    uint32_t source[3], deepest = 0;
    fm_status rc = FM_OK;

    for (uint32_t k = 0; rc == FM_OK && k < parts; k++) {
        rc = src_open(s, &part[k]->id, &source[k]);
        if (rc != FM_OK || source[k] == UINT32_MAX)
            return rc;
        deepest = FM_MAX(deepest, s->source[source[k]].depth);
    }
    if (rc != FM_OK || (which == 1 && deepest < depth_limit(which)))
        return rc;
    return deepest < depth_limit(which) ? fit(s, source, which == 0) : from_the_start(s, source[0]);
}

fm_status src_adamw(fms_search *s)
{
    const fm_entry *own[3], *old[3], *e = src_own_entry(s);
    unsigned which = NO_PART, again = NO_PART;
    fm_status rc = e ? triple_of(s->own, e, &which, own) : FM_OK;

    if (rc != FM_OK || which == NO_PART)
        return rc;
    if (!s->adamw && !(s->adamw = fm_calloc(1, sizeof *s->adamw)))
        return FM_ENOMEM;
    for (uint32_t t = 0; rc == FM_OK && t < s->trees; t++) {
        const fm_entry *before = fm_tree_find(s->tree[t], e->path);
        if (!before || !fm_shape_eq(&before->shape, &e->shape))
            continue;
        rc = triple_of(s->tree[t], before, &again, old);
        if (rc == FM_OK && again == which)
            rc = step_from(s, before, own, old, which);
        if (s->best.count && s->best.bits < SRC_NOTHING_NEARER)
            break;
    }
    return rc;
}

fm_status src_of_checkpoint(const fms_search *s, bool *out)
{
    const fm_entry *own[3], *e = src_own_entry(s);
    unsigned which = NO_PART;
    const fm_status rc = e ? triple_of(s->own, e, &which, own) : FM_OK;
    *out = which != NO_PART;
    return rc;
}
