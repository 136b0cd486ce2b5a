/* delta_chain.c - opens an object with its delta parents and recipes' inputs, checks forms, depths
 * and cost, and then decodes leaves and ranges.
 *
 * A plain delta chain needs only the coder's two scratch leaves. A recipe's leaf is made in memory
 * of its own before a scratch leaf is in use, so its inputs' chains may use them. */
#include <string.h>

#include "store/base/mem.h"
#include "store/pack/store_priv.h"

#define CACHE_MIN 8u
#define CACHE_MAX 64u

/* ==== opening ============================================================================== */

static fm_status leaf_offsets(uint64_t **out, const fms_record *r)
{
    uint64_t *offset = fm_malloc(((size_t)r->leaf_count + 1) * sizeof *offset);
    if (!offset)
        return FM_ENOMEM;
    offset[0] = 0;
    for (uint32_t i = 0; r->table && i < r->leaf_count; i++)
        offset[i + 1] = offset[i] + fms_leaf_stored(r, i);
    *out = offset;
    return FM_OK;
}

/* Takes ownership of owned (may be NULL), also on failure. */
static fm_status push_link(fms_chain *ch, const fms_record *r, uint8_t *owned)
{
    fm_status rc = FM_OK;
    if (ch->count == FMS_LINKS_MAX)
        rc = fm_fail(FM_ELIMIT, "an object is made from more than %u others", FMS_LINKS_MAX);
    FM_THEN(rc, fm_grow(&ch->link, &ch->link_cap, ch->count + 1, sizeof *ch->link));
    FM_THEN(rc, fm_grow(&ch->more, &ch->more_cap, ch->count + 1, sizeof *ch->more));
    if (rc != FM_OK) {
        fm_free(owned);
        return rc;
    }
    ch->link[ch->count] = *r;
    memset(&ch->more[ch->count], 0, sizeof *ch->more);
    ch->more[ch->count].owned = owned;
    ch->count++;
    return leaf_offsets(&ch->more[ch->count - 1].offset, r);
}

/* *bytes: what the link will own, or NULL. */
static fm_status staged_record(const fms_staged *staged, const fm_digest *id, fms_record *r,
                               uint8_t **bytes)
{
    size_t len = 0;
    if (staged->map)
        return staged->map(staged->ctx, id, r);
    FM_TRY(staged->read(staged->ctx, id, bytes, &len));
    fm_status rc = fms_record_parse(r, fm_span_of(*bytes, len), "staged record");
    if (rc != FM_OK) {
        fm_free(*bytes);
        *bytes = NULL;
    }
    return rc;
}

static fm_status push_object(fms_chain *ch, fm_store *s, const fm_digest *id, uint32_t nth,
                             const fms_staged *staged)
{
    fms_record r;
    fms_place place;
    uint8_t *bytes = NULL;
    fm_status rc = staged && nth == 0 ? staged_record(staged, id, &r, &bytes) : FM_ENOTFOUND;
    const bool is_staged = rc == FM_OK;
    if (rc == FM_ENOTFOUND)
        rc = fms_store_record(s, id, nth, true, &r, &place);
    if (rc != FM_OK)
        return rc;
    rc = push_link(ch, &r, bytes);
    if (rc == FM_OK)
        ch->more[ch->count - 1].staged = is_staged;
    return rc;
}

/* After repack, or two writers at once, an object has several places of different depths; chains
 * through the places of least depth form no circle. */
static fm_status push_shallowest(fms_chain *ch, fm_store *s, const fm_digest *id,
                                 const fms_staged *staged)
{
    fm_status rc = push_object(ch, s, id, 0, staged);
    if (rc != FM_OK || ch->more[ch->count - 1].staged)
        return rc;
    fm_error_state kept;
    fm_error_save(&kept);
    for (uint32_t nth = 1; ch->link[ch->count - 1].depth > 0; nth++) {
        fms_record r;
        fms_place place;
        if (fms_store_record(s, id, nth, false, &r, &place) != FM_OK || place.bad)
            break;
        if (r.depth >= ch->link[ch->count - 1].depth)
            continue;
        fm_free(ch->more[--ch->count].offset);
        FM_TRY(push_link(ch, &r, NULL));
    }
    fm_error_restore(&kept);
    return FM_OK;
}

static fm_status misfit(const fms_record *child, const fms_record *parent)
{
    char a[FM_HEX_CHARS + 1], b[FM_HEX_CHARS + 1];
    fm_digest_hex(&child->id, a);
    fm_digest_hex(&parent->id, b);
    return fm_fail(FM_EBASE, "tensor %s: its delta parent %s has another dtype, shape or depth", a,
                   b);
}

static fm_status missing(const fms_record *child, const fm_digest *parent)
{
    char a[FM_HEX_CHARS + 1], b[FM_HEX_CHARS + 1];
    fm_digest_hex(&child->id, a);
    fm_digest_hex(parent, b);
    return fm_fail(FM_EBASE,
                   "tensor %s is stored as a delta against %s, which is missing: run fsck", a, b);
}

/* Finds or adds parent n of link k, and checks it. */
static fm_status attach(fms_chain *ch, fm_store *s, const fms_staged *staged, uint32_t k,
                        uint32_t n)
{
    const fm_digest id = ch->link[k].parent[n];
    uint32_t at = 0;
    while (at < ch->count && (at == k || !fm_digest_eq(&ch->link[at].id, &id)))
        at++;
    if (at == ch->count) {
        fm_status rc = push_shallowest(ch, s, &id, staged);
        if (rc != FM_OK)
            return rc == FM_ENOTFOUND ? missing(&ch->link[k], &id) : rc;
    }
    const fms_record *child = &ch->link[k], *parent = &ch->link[at];
    if (parent->is_blob || parent->depth >= child->depth)
        return misfit(child, parent);
    if (child->recipe.op == FMS_OP_NONE &&
        (parent->dtype != child->dtype || !fm_shape_eq(&parent->shape, &child->shape)))
        return misfit(child, parent);
    ch->more[k].parent[n] = at;
    return FM_OK;
}

static fms_form form_of(const fms_record *r)
{
    return (fms_form){r->dtype, r->shape, r->bytes};
}

static fm_status check_recipe(fms_chain *ch, uint32_t k)
{
    const fms_record *r = &ch->link[k];
    fms_inputs *in = &ch->more[k].inputs;
    in->child = form_of(r);
    in->count = r->parent_count;
    for (uint32_t n = 0; n < in->count; n++)
        in->input[n] = form_of(&ch->link[ch->more[k].parent[n]]);
    fm_status rc = fms_recipe_check(&r->recipe, in);
    if (rc == FM_OK)
        return rc;
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&r->id, hex);
    return fm_error_prefix(rc, "tensor %s", hex);
}

/* Sets link k's cost, the leaves decoded for one leaf of it; its parents' costs are known. */
static fm_status count_cost(fms_chain *ch, uint32_t k)
{
    const fms_record *r = &ch->link[k];
    uint64_t cost = 1;
    for (uint32_t n = 0; n < r->parent_count && cost <= FMS_COST_MAX; n++) {
        const uint64_t touches = r->recipe.op == FMS_OP_NONE
                                     ? 1
                                     : fms_recipe_touches(&r->recipe, &ch->more[k].inputs, n);
        cost += FM_MIN(touches, (uint64_t)FMS_COST_MAX + 1) * ch->more[ch->more[k].parent[n]].cost;
    }
    ch->more[k].cost = cost;
    if (cost <= FMS_COST_MAX)
        return FM_OK;
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&r->id, hex);
    return fm_fail(FM_ELIMIT, "tensor %s: a leaf of it needs more than %u others", hex,
                   FMS_COST_MAX);
}

static fm_status open_all(fms_chain *ch, fm_store *s, const fms_staged *staged)
{
    fm_status rc = FM_OK;
    bool recipes = false;
    for (uint32_t k = 0; rc == FM_OK && k < ch->count; k++)
        for (uint32_t n = 0; rc == FM_OK && n < ch->link[k].parent_count; n++)
            rc = attach(ch, s, staged, k, n);
    for (uint32_t depth = 0; rc == FM_OK && depth <= FMS_CHAIN_MAX; depth++)
        for (uint32_t k = 0; rc == FM_OK && k < ch->count; k++) {
            if (ch->link[k].depth != depth)
                continue;
            if (ch->link[k].recipe.op != FMS_OP_NONE) {
                recipes = true;
                rc = check_recipe(ch, k);
            }
            FM_THEN(rc, count_cost(ch, k));
        }
    if (rc == FM_OK && recipes)
        rc = fms_chain_keep(ch, (size_t)ch->more[0].cost);
    if (rc != FM_OK)
        fms_chain_release(ch);
    return rc;
}

fm_status fms_chain_from(fms_chain *out, fm_store *s, const fms_record *r, const fms_staged *staged)
{
    memset(out, 0, sizeof *out);
    fm_status rc = push_link(out, r, NULL);
    if (rc == FM_OK)
        return open_all(out, s, staged);
    fms_chain_release(out);
    return rc;
}

fm_status fms_chain_open(fms_chain *out, fm_store *s, const fm_digest *id, uint32_t nth,
                         const fms_staged *staged)
{
    memset(out, 0, sizeof *out);
    fm_status rc = push_object(out, s, id, nth, staged);
    if (rc == FM_OK)
        return open_all(out, s, staged);
    fms_chain_release(out);
    return rc;
}

fm_status fms_chain_draft(fms_chain *out, fm_store *s, fms_record *draft, const fms_staged *staged)
{
    memset(out, 0, sizeof *out);
    draft->depth = FMS_CHAIN_MAX;
    uint32_t depth = 0;
    uint8_t *params = fm_malloc(draft->recipe.params.len);
    if (!params)
        return FM_ENOMEM;
    if (draft->recipe.params.len)
        memcpy(params, draft->recipe.params.data, draft->recipe.params.len);
    draft->recipe.params.data = params;
    fm_status rc = push_link(out, draft, params);
    for (uint32_t n = 0; rc == FM_OK && n < draft->parent_count; n++) {
        rc = push_object(out, s, &draft->parent[n], 0, staged);
        if (rc == FM_OK)
            depth = FM_MAX(depth, out->link[out->count - 1].depth + 1);
    }
    if (rc == FM_OK && depth > FMS_CHAIN_MAX)
        rc = fm_fail(FM_ELIMIT, "a parent is made in %u steps already", FMS_CHAIN_MAX);
    if (rc != FM_OK) {
        fms_chain_release(out);
        return rc;
    }
    draft->depth = out->link[0].depth = depth;
    return open_all(out, s, staged);
}

void fms_chain_release(fms_chain *ch)
{
    for (uint32_t k = 0; k < ch->count; k++) {
        fm_free(ch->more[k].offset);
        fm_free(ch->more[k].owned);
    }
    fm_free(ch->link);
    fm_free(ch->more);
    fms_cache_free(ch->cache);
    memset(ch, 0, sizeof *ch);
}

fm_status fms_chain_keep(fms_chain *ch, size_t leaves)
{
    if (ch->cache)
        return FM_OK;
    return fms_cache_new(&ch->cache, FM_MIN(FM_MAX(leaves, (size_t)CACHE_MIN), (size_t)CACHE_MAX));
}

/* ==== leaves =============================================================================== */

static fm_status wrong_leaf(const fms_record *r, uint32_t i, bool against)
{
    char hex[FM_HEX_CHARS + 1], base[FM_HEX_CHARS + 1];
    fm_digest_hex(&r->id, hex);
    if (!against)
        return fm_fail(FM_ECORRUPT,
                       "object %s, leaf %u: stored bytes do not match their digest: run fsck", hex,
                       i);
    fm_digest_hex(&r->parent[0], base);
    if (r->recipe.op == FMS_OP_NONE)
        return fm_fail(FM_ECORRUPT,
                       "object %s, leaf %u: the delta against %s does not give the bytes of "
                       "its digest: run fsck",
                       hex, i, base);
    return fm_fail(FM_ECORRUPT,
                   "object %s, leaf %u: the recipe '%s' of %s and others does not give the bytes "
                   "of its digest: run fsck",
                   hex, i, fms_op_name(r->recipe.op), base);
}

static fm_status decode_coded(const fms_chain *ch, fms_coder *c, uint32_t k, uint32_t i,
                              uint8_t *dst, const uint8_t *against)
{
    const fms_record *r = &ch->link[k];
    size_t bytes = fms_leaf_bytes(r->bytes, i);
    fm_span coded = fm_span_of(r->payload + ch->more[k].offset[i], fms_leaf_stored(r, i));
    fms_leaf_at at = fms_leaf_at_of(r->dtype, &r->shape, i);
    fm_status rc = fms_leaf_decode(c, dst, bytes, fms_leaf_codec(r, i), &at, coded, against);
    fm_digest want, got;
    if (rc == FM_OK && ch->unchecked)
        return FM_OK;
    FM_THEN(rc, fm_sha256(&got, dst, bytes));
    if (rc != FM_OK) {
        char hex[FM_HEX_CHARS + 1];
        fm_digest_hex(&r->id, hex);
        return fm_error_prefix(rc, "object %s, leaf %u", hex, i);
    }
    fms_leaf_digest(r, i, &want);
    return fm_digest_eq(&got, &want) ? FM_OK : wrong_leaf(r, i, against != NULL);
}

static fm_status decode_link(const fms_chain *ch, fms_coder *c, uint32_t k, uint32_t i,
                             uint8_t *dst, const uint8_t *against)
{
    fm_status rc = decode_coded(ch, c, k, i, dst, against);
    const char *path = rc == FM_ECORRUPT ? fm_map_failed(ch->link[k].payload) : NULL;
    char hex[FM_HEX_CHARS + 1];
    if (!path)
        return rc;
    fm_digest_hex(&ch->link[k].id, hex);
    return fm_fail(rc, "object %s, leaf %u: %s was cut since it was opened, or its disk fails", hex,
                   i, path);
}

static fm_status link_leaf(const fms_chain *ch, fms_coder *c, uint32_t k, uint32_t i, uint8_t *dst);

typedef struct eval {
    const fms_chain *ch;
    fms_coder *c;
    uint32_t link; /* the link that has the recipe */
} eval;

/* Gives a leaf of link k, from the cache, or decoded and put into it. */
static fm_status hold_leaf(const fms_chain *ch, fms_coder *c, uint32_t k, uint32_t i,
                           fms_held_leaf *out)
{
    fms_cache_take(ch->cache, k, i, out);
    if (out->data)
        return FM_OK;
    uint8_t *data = fm_malloc(fms_leaf_bytes(ch->link[k].bytes, i));
    if (!data)
        return FM_ENOMEM;
    fm_status rc = link_leaf(ch, c, k, i, data);
    if (rc == FM_OK)
        fms_cache_add(ch->cache, k, i, data, out);
    else
        fm_free(data);
    return rc;
}

static fm_status link_range(const fms_chain *ch, fms_coder *c, uint32_t k, uint64_t offset,
                            uint8_t *dst, size_t bytes)
{
    fm_status rc = FM_OK;
    fm_assert(offset <= ch->link[k].bytes && bytes <= ch->link[k].bytes - offset);
    while (rc == FM_OK && bytes > 0) {
        const uint32_t i = (uint32_t)(offset / FM_LEAF_BYTES);
        const size_t skip = (size_t)(offset % FM_LEAF_BYTES);
        const size_t n = FM_MIN(bytes, fms_leaf_bytes(ch->link[k].bytes, i) - skip);
        fms_held_leaf held;
        rc = hold_leaf(ch, c, k, i, &held);
        if (rc == FM_OK) {
            memcpy(dst, held.data + skip, n);
            fms_cache_return(ch->cache, &held);
        }
        dst += n;
        offset += n;
        bytes -= n;
    }
    return rc;
}

static fm_status read_input(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    const eval *e = ctx;
    return link_range(e->ch, e->c, e->ch->more[e->link].parent[input], offset, dst, bytes);
}

/* Makes leaf i by link k's recipe; the caller frees *out. */
static fm_status evaluate(const fms_chain *ch, fms_coder *c, uint32_t k, uint32_t i, uint8_t **out)
{
    eval e = {ch, c, k};
    fms_inputs in = ch->more[k].inputs;
    in.ctx = &e;
    in.read = read_input;
    *out = fm_malloc(fms_leaf_bytes(ch->link[k].bytes, i));
    fm_status rc = *out ? fms_recipe_leaf(&ch->link[k].recipe, &in, i, *out) : FM_ENOMEM;
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

static fm_status link_leaf(const fms_chain *ch, fms_coder *c, uint32_t k, uint32_t i, uint8_t *dst)
{
    uint32_t way[FMS_CHAIN_MAX + 1], n = 0;
    uint8_t *made = NULL;
    fm_status rc = FM_OK;
    way[0] = k;
    while (fms_codec_needs_parent(fms_leaf_codec(&ch->link[way[n]], i))) {
        if (ch->link[way[n]].recipe.op != FMS_OP_NONE) {
            rc = evaluate(ch, c, way[n], i, &made);
            break;
        }
        fm_assert(n < FMS_CHAIN_MAX && ch->link[way[n]].parent_count == 1); /* depths decrease */
        way[n + 1] = ch->more[way[n]].parent[0];
        n++;
    }
    const uint8_t *against = made;
    for (; rc == FM_OK; n--) {
        uint8_t *to = n == 0 ? dst : fms_coder_scratch(c, n & 1);
        rc = decode_link(ch, c, way[n], i, to, against);
        against = to;
        if (n == 0)
            break;
    }
    fm_free(made);
    return rc;
}

fm_status fms_chain_leaf(const fms_chain *ch, fms_coder *c, uint32_t i, uint8_t *dst)
{
    return link_leaf(ch, c, 0, i, dst);
}

fm_status fms_chain_predict(const fms_chain *ch, fms_coder *c, uint32_t i, uint8_t *dst)
{
    if (ch->link[0].recipe.op == FMS_OP_NONE)
        return link_leaf(ch, c, ch->more[0].parent[0], i, dst);
    uint8_t *made; /* not dst: that may be a scratch leaf, which the inputs' chains use */
    fm_status rc = evaluate(ch, c, 0, i, &made);
    if (rc == FM_OK)
        memcpy(dst, made, fms_leaf_bytes(ch->link[0].bytes, i));
    fm_free(made);
    return rc;
}

fm_status fms_chain_range(const fms_chain *ch, fms_coder *c, uint64_t offset, void *dst,
                          size_t bytes)
{
    fm_assert(ch->cache); /* made by fms_chain_keep */
    return link_range(ch, c, 0, offset, dst, bytes);
}

fm_status fms_record_verify(fm_store *s, fms_coder *c, const fms_record *r, uint8_t *leaf)
{
    fms_chain ch;
    fm_status rc = fms_chain_from(&ch, s, r, NULL);
    if (rc != FM_OK)
        return rc;
    for (uint32_t i = 0; rc == FM_OK && i < r->leaf_count; i++)
        rc = fms_chain_leaf(&ch, c, i, leaf);
    fms_chain_release(&ch);
    return rc;
}

bool fms_is_damage(fm_status rc)
{
    return rc == FM_ECORRUPT || rc == FM_EBASE || rc == FM_EVERSION || rc == FM_ENOTFOUND;
}
