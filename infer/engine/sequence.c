/* sequence.c - timelines: their length, their page tables, one per layer, and the blocks that they
 * take from the prefix cache and leave in it.
 *
 * Tables are [layers, page_cap]: layers differ in their pages, since a layer may be shared with
 * another model while the one above it is not. Positions include the model's virtual ones, whose
 * pages the model holds. A sequence begins by holding the full virtual pages too, and copies the
 * last, partly filled one.
 *
 * A block is begun before its first row is computed. If all its tokens are known by then, it is
 * looked up in the cache: the sequence takes the pages of the lower layers that the cache has, and
 * the block's rows begin at the layer above, where the residual stream was kept; where the cache
 * has all layers, the rows need not run at all. A block whose last row is done is put into the
 * cache. Within a step a block never begins higher than the one before it, so that rows can be
 * sorted by their first layer and the rows of one sequence still stand in order of position. */
#include "infer/engine/seq_state.h"

#include <string.h>

#include "store/base/mem.h"

static uint32_t pages_of(const fm_seq *s, uint32_t len)
{
    return len ? (s->base + len + FM_KV_PAGE - 1) / FM_KV_PAGE : s->base / FM_KV_PAGE;
}

/* Tokens [block_begin, block_end) stand in block b. */
static uint32_t block_begin(const fm_seq *s, uint32_t b)
{
    return b * FM_KV_PAGE > s->base ? b * FM_KV_PAGE - s->base : 0;
}

static uint32_t block_end(const fm_seq *s, uint32_t b)
{
    return (b + 1) * FM_KV_PAGE - s->base;
}

static fmi_kv_pool *pool_of(const fm_seq *s, uint32_t layer)
{
    return fmi_pool_at(fmi_priv(s->model)->geom, layer);
}

/* The pool of residual streams before the layer. */
static fmi_kv_pool *rows_of(const fm_seq *s, uint32_t layer)
{
    return fmi_rows_at(fmi_priv(s->model)->geom, layer);
}

/* Only layers with keys and values of their own have pages; the others have -1. */
static bool attends(const fm_seq *s, uint32_t layer)
{
    return fm_layer_keeps(&s->model->arch.sw, layer);
}

static int32_t *page_at(const fm_seq *s, uint32_t layer, uint32_t b)
{
    return &s->page[(size_t)layer * s->page_cap + b];
}

static void changed(fm_seq *s)
{
    s->version = ++s->model->engine->table_clock;
}

static bool caches(const fm_seq *s)
{
    return s->model->engine->prefix && !s->uncached && !s->model->engine->tap &&
           !s->model->arch.sw.encoder; /* an encoder's keys depend on later tokens */
}

fmi_block *fmi_seq_block(const fm_seq *s, uint32_t token)
{
    return &s->block[(s->base + token) / FM_KV_PAGE];
}

/* ==== tables ==== */

static fm_status table_room(fm_seq *s, uint32_t pages)
{
    uint32_t layers = s->model->arch.layers;
    if (pages <= s->page_cap)
        return FM_OK;
    uint32_t cap = FM_MAX(pages, s->page_cap * 2);
    int32_t *page = fm_malloc((size_t)layers * cap * sizeof(int32_t));
    fmi_block *block = page ? fm_realloc(s->block, cap * sizeof(*block)) : NULL;
    if (block)
        s->block = block;
    int32_t *token = block ? fm_realloc(s->token, (size_t)cap * FM_KV_PAGE * sizeof(*token)) : NULL;
    if (token)
        s->token = token;
    fmi_prefix *c = s->model->engine->prefix;
    fm_status rc = token ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && c)
        rc = fmi_prefix_expect(c, cap);
    const fmi_geom *g = fmi_priv(s->model)->geom;
    for (uint32_t i = 0; rc == FM_OK && c && i < g->split.stages; i++) {
        rc = fmi_prefix_expect_pages(c, g->lane[i]);
        FM_THEN(rc, fmi_prefix_expect_pages(c, g->row_lane[i]));
    }
    if (rc == FM_OK && c && g->full)
        rc = fmi_prefix_expect_pages(c, g->full);
    if (rc == FM_OK && c && g->recurs)
        rc = fmi_prefix_expect_pages(c, g->states);
    if (rc != FM_OK) {
        fm_free(page);
        return rc;
    }
    for (uint32_t l = 0; l < layers && s->page_count; l++)
        memcpy(page + (size_t)l * cap, s->page + (size_t)l * s->page_cap,
               s->page_count * sizeof(int32_t));
    fm_free(s->page);
    s->page = page;
    s->page_cap = cap;
    return FM_OK;
}

fm_status fmi_seq_expect(fm_seq *s, uint32_t len)
{
    fmi_log_op(s, FMI_OP_EXPECT, len, 0);
    return table_room(s, pages_of(s, len));
}

/* ==== blocks ==== */

/* Gives back what a block holds only while it is incomplete. */
static void settle(fm_seq *s, fmi_block *k)
{
    if (k->from >= 0)
        fmi_kv_give(rows_of(s, k->first), k->from);
    for (size_t i = 0; i < FMI_SAVES; i++) {
        if (k->save[i].page >= 0)
            fmi_kv_give(rows_of(s, k->save[i].layer), k->save[i].page);
        k->save[i].page = -1;
    }
    if (k->node)
        fmi_node_drop(s->model->engine->prefix, k->node);
    k->first = 0;
    k->from = -1;
    k->node = NULL;
}

/* Drops the last block, its topmost page first. */
static void drop_last(fm_seq *s)
{
    uint32_t b = --s->page_count;
    settle(s, &s->block[b]);
    for (uint32_t l = s->model->arch.layers; l-- > 0;)
        if (attends(s, l))
            fmi_kv_give(pool_of(s, l), *page_at(s, l, b));
    changed(s);
}

/* How many rows of the block have wanted logits (fmi_seq_want, or the current step). */
static uint32_t wanted_in(const fm_seq *s, uint32_t b)
{
    uint32_t begin = FM_MAX(block_begin(s, b), s->want_begin);
    uint32_t end = FM_MIN(block_end(s, b), s->want_end);
    return end > begin ? end - begin : 0;
}

/* The node before block b, if the cache has one. */
static bool parent_of(const fm_seq *s, uint32_t b, fmi_node **out)
{
    if (block_begin(s, b) == s->whole) {
        *out = s->node;
        return s->whole == 0 || s->node;
    }
    *out = s->block[b - 1].node;
    return *out != NULL;
}

/* How many layers from below have their page in the cache. */
static uint32_t depth_of(const fm_seq *s, const fmi_node *n)
{
    const fmi_prefix *c = s->model->engine->prefix;
    const fmi_model_priv *p = fmi_priv(s->model);
    uint32_t l = 0;
    while (l < s->model->arch.layers &&
           (!attends(s, l) || fmi_prefix_find(c, pool_of(s, l), n, &p->kv_key[l]) >= 0))
        l++;
    return l;
}

/* Looks block b up in the cache: sets its node and the layer from which its rows have to run. False
 * where it cannot be looked up; *depth: layers found. */
static bool look_up(fm_seq *s, uint32_t b, fmi_block *k, uint32_t *depth)
{
    const fmi_prefix *c = s->model->engine->prefix;
    const fmi_model_priv *p = fmi_priv(s->model);
    uint32_t begin = block_begin(s, b), end = block_end(s, b), layers = s->model->arch.layers;
    fmi_node *parent = NULL;
    *depth = 0;
    if (!caches(s) || s->known < end)
        return false;
    if (!parent_of(s, b, &parent))
        return true;
    k->node = fmi_prefix_child(c, parent, s->token + begin, end - begin);
    if (!k->node)
        return true;
    fmi_node_hold(k->node);
    uint32_t limit = *depth = depth_of(s, k->node);
    if (fmi_has_state(s)) /* all layers or none: fmi_seq_adopt */
        return true;
    if (begin > s->len) /* the block before it is not done */
        limit = FM_MIN(limit, s->block[b - 1].first);
    if (limit == layers && wanted_in(s, b) == 0) {
        k->first = layers;
        return true;
    }
    for (uint32_t l = limit; l > 0 && k->from < 0; l--) {
        k->from = fmi_prefix_find(c, rows_of(s, l), k->node, &p->stream_key[l]);
        k->first = k->from >= 0 ? l : 0;
    }
    if (k->from >= 0)
        fmi_kv_hold(rows_of(s, k->first), k->from);
    return true;
}

static void count_hits(const fm_seq *s, uint32_t b, uint32_t depth)
{
    fm_engine *e = s->model->engine;
    e->prefix_queries += block_end(s, b) - block_begin(s, b);
    for (uint32_t l = 0; l < depth; l++)
        e->layer_hits[l]++;
}

/* Copies the part of a page that the model's last virtual positions fill. */
static void copy_virtual(fm_seq *s, uint32_t layer, uint32_t b)
{
    const fm_model *m = s->model;
    const fmi_model_priv *p = fmi_priv(m);
    uint32_t pages = (m->virtual_len + FM_KV_PAGE - 1) / FM_KV_PAGE;
    const fmi_kv_pool *pool = pool_of(s, layer);
    fm_backend *be = m->engine->be;
    if (fmi_kv_here(pool))
        be->kv_copy(be, fmi_kv_view(pool), *page_at(s, layer, b),
                    p->virtual_page[(size_t)layer * pages + b], p->local.kv_heads,
                    p->local.head_dim);
}

/* Takes pages of block b: below its first layer from the cache, the others fresh. The cached pages
 * are held before a fresh one is taken, since taking may evict cached pages. */
static fm_status take_pages(fm_seq *s, uint32_t b, const fmi_block *k)
{
    const fmi_model_priv *p = fmi_priv(s->model);
    uint32_t layers = s->model->arch.layers;
    for (uint32_t l = 0; l < k->first; l++) {
        fmi_kv_pool *pool = pool_of(s, l);
        if (!attends(s, l)) {
            *page_at(s, l, b) = -1;
            continue;
        }
        int32_t page = fmi_prefix_find(s->model->engine->prefix, pool, k->node, &p->kv_key[l]);
        fm_assert(page >= 0);
        fmi_kv_hold(pool, page);
        *page_at(s, l, b) = page;
    }
    for (uint32_t l = k->first; l < layers; l++) {
        *page_at(s, l, b) = -1;
        fm_status rc = attends(s, l) ? fmi_kv_take(pool_of(s, l), page_at(s, l, b)) : FM_OK;
        if (rc != FM_OK) {
            while (l-- > 0)
                if (attends(s, l))
                    fmi_kv_give(pool_of(s, l), *page_at(s, l, b));
            return rc;
        }
        if (b * FM_KV_PAGE < s->base)
            copy_virtual(s, l, b);
    }
    return FM_OK;
}

/* Takes pages for the residual streams from which other models can go on; without a page a stream
 * is not saved. Over ranks only a full budget may cause that, since all ranks see it alike; other
 * failures are returned. */
static fm_status take_saves(fm_seq *s, uint32_t b, fmi_block *k)
{
    const fmi_model_priv *p = fmi_priv(s->model);
    uint32_t n = 0, layers = s->model->arch.layers;
    if (!caches(s) || fmi_has_state(s))
        return FM_OK;
    for (uint32_t i = 0; i < p->saves; i++)
        if (p->save[i] > k->first)
            k->save[n++].layer = p->save[i];
    if (k->first < layers && wanted_in(s, b) > 1) /* a text that is scored */
        k->save[n++].layer = layers;
    for (uint32_t i = 0; i < n; i++) {
        fm_status rc = fmi_kv_take(rows_of(s, k->save[i].layer), &k->save[i].page);
        if (rc != FM_OK)
            k->save[i].page = -1;
        if (rc != FM_OK && rc != FM_ELIMIT && s->model->engine->log)
            return rc;
    }
    return FM_OK;
}

static void block_init(fmi_block *k)
{
    memset(k, 0, sizeof(*k));
    k->from = -1;
    for (size_t i = 0; i < FMI_SAVES; i++)
        k->save[i].page = -1;
}

static fm_status begin_block(fm_seq *s)
{
    uint32_t b = s->page_count, depth = 0;
    fmi_block *k = &s->block[b];
    block_init(k);
    bool asked = look_up(s, b, k, &depth);
    fm_status rc = take_pages(s, b, k);
    if (rc != FM_OK) {
        settle(s, k);
        return rc;
    }
    if (asked)
        count_hits(s, b, fmi_has_state(s) ? 0 : depth);
    s->page_count++;
    fm_status saved = take_saves(s, b, k);
    if (saved != FM_OK)
        drop_last(s);
    changed(s);
    return saved;
}

/* Makes the pages of begun blocks the sequence's own in the layers where rows will run. A block
 * that can no longer begin at its first layer runs from layer 0. */
static fm_status own_blocks(fm_seq *s, uint32_t len)
{
    uint32_t layers = s->model->arch.layers, limit = layers;
    uint32_t end = FM_MIN(s->page_count, pages_of(s, len));
    for (uint32_t b = (s->base + s->len) / FM_KV_PAGE; b < end; b++) {
        fmi_block *k = &s->block[b];
        bool silent = k->first == layers && k->from < 0;
        if (k->first > limit || (silent && wanted_in(s, b)) || (k->first && !caches(s)))
            settle(s, k);
        limit = k->first;
        for (uint32_t l = k->first; l < layers; l++) {
            int32_t *page = page_at(s, l, b), was = *page;
            FM_TRY(attends(s, l) ? fmi_kv_writable(pool_of(s, l), page) : FM_OK);
            if (*page != was)
                changed(s);
        }
    }
    return FM_OK;
}

/* Puts the saved streams of a complete block into the cache. */
static void put_saves(fm_seq *s, const fmi_block *k)
{
    fmi_prefix *c = s->model->engine->prefix;
    for (size_t i = 0; i < FMI_SAVES; i++) {
        fmi_kv_pool *rows = rows_of(s, k->save[i].layer);
        const fm_digest *key = &fmi_priv(s->model)->stream_key[k->save[i].layer];
        if (k->save[i].page >= 0 && fmi_prefix_find(c, rows, s->node, key) < 0)
            fmi_prefix_put(c, rows, s->node, key, k->save[i].page);
    }
}

/* Puts every page of the complete block b into the cache; where the cache has one already, the
 * sequence takes that one in its place: the same bits, held once. */
static void put_pages(fm_seq *s, uint32_t b)
{
    fmi_prefix *c = s->model->engine->prefix;
    for (uint32_t l = 0; l < s->model->arch.layers; l++) {
        fmi_kv_pool *pool = pool_of(s, l);
        const fm_digest *key = &fmi_priv(s->model)->kv_key[l];
        int32_t *page = page_at(s, l, b);
        if (!attends(s, l) || fmi_kv_kept(pool, *page))
            continue;
        int32_t there = fmi_prefix_find(c, pool, s->node, key);
        if (there < 0) {
            fmi_prefix_put(c, pool, s->node, key, *page);
            continue;
        }
        fmi_kv_hold(pool, there);
        fmi_kv_give(pool, *page);
        *page = there;
        changed(s);
    }
}

static void complete_block(fm_seq *s, uint32_t b)
{
    fmi_prefix *c = s->model->engine->prefix;
    uint32_t begin = block_begin(s, b), end = block_end(s, b);
    fmi_block *k = &s->block[b];
    fmi_node *n = NULL;
    if (c && !s->uncached &&
        fmi_prefix_grow(c, &n, s->node, s->token + begin, end - begin) != FM_OK)
        s->uncached = true; /* no memory: the sequence goes on without the cache */
    if (c)
        fmi_node_drop(c, s->node);
    s->node = NULL;
    if (n) {
        s->node = n;
        put_pages(s, b);
        put_saves(s, k);
    }
    if (k->first == s->model->arch.layers) {
        s->skipped += end - begin;
        s->model->engine->prefix_hits += end - begin;
    }
    settle(s, k);
    s->whole = end;
    fmi_marks_put(s);
}

/* ==== life ==== */

uint32_t fmi_positions(const fm_model *m)
{
    uint32_t positions = fmi_priv(m)->rope->positions;
    return positions > m->virtual_len ? positions - m->virtual_len : 0;
}

const char *fmi_positions_limit(const fm_model *m)
{
    if (fmi_priv(m)->rope->positions < m->arch.max_positions)
        return "the KV cache (" FMI_KV_SETTING ") holds";
    return "the model takes";
}

/* Holds the full pages of the model's virtual positions. */
static fm_status begin(fm_seq *s)
{
    const fm_model *m = s->model;
    const fmi_model_priv *p = fmi_priv(m);
    uint32_t pages = (m->virtual_len + FM_KV_PAGE - 1) / FM_KV_PAGE;
    FM_TRY(table_room(s, pages));
    s->base = m->virtual_len;
    s->page_count = m->virtual_len / FM_KV_PAGE;
    for (uint32_t i = 0; i < s->page_count; i++)
        block_init(&s->block[i]);
    for (uint32_t l = 0; l < m->arch.layers; l++)
        for (uint32_t i = 0; i < s->page_count; i++) {
            *page_at(s, l, i) = p->virtual_page[(size_t)l * pages + i];
            fmi_kv_hold(pool_of(s, l), *page_at(s, l, i));
        }
    return FM_OK;
}

fm_status fmi_seq_new(fm_seq **out, fm_model *m)
{
    *out = NULL;
    fm_seq *s = fm_calloc(1, sizeof(*s));
    if (!s)
        return FM_ENOMEM;
    s->model = m;
    s->uncached = !fmi_priv(m)->kv_key; /* models with two stacks have no keys */
    changed(s);
    fm_status rc = m->virtual_len ? begin(s) : FM_OK;
    if (rc != FM_OK) {
        fm_free(s->page);
        fm_free(s->block);
        fm_free(s->token);
        fm_free(s);
        return rc;
    }
    fmi_priv(m)->seqs++;
    m->engine->seqs++;
    *out = s;
    return FM_OK;
}

void fm_seq_close(fm_seq *s)
{
    if (!s)
        return;
    fmi_log_op(s, FMI_OP_CLOSE, 0, 0);
    fmi_source_drop(s);
    while (s->page_count)
        drop_last(s);
    if (s->node)
        fmi_node_drop(s->model->engine->prefix, s->node);
    fmi_marks_free(s);
    fmi_priv(s->model)->seqs--;
    s->model->engine->seqs--;
    fm_free(s->page);
    fm_free(s->block);
    fm_free(s->token);
    fm_free(s);
}

uint32_t fm_seq_len(const fm_seq *s)
{
    return s->len;
}

/* Forgets the tokens from `at` on, and what an incomplete last block took from the cache. */
static void forget_from(fm_seq *s, uint32_t at)
{
    s->known = FM_MIN(at, s->known);
    fmi_seq_trim(s);
    if (s->page_count > pages_of(s, 0) && block_end(s, s->page_count - 1) > s->len)
        settle(s, &s->block[s->page_count - 1]);
}

fm_status fm_seq_rewind(fm_seq *s, uint32_t len)
{
    if (len > s->len)
        return fm_fail(FM_EINVAL, "rewind to %u, the sequence has %u tokens", len, s->len);
    fmi_log_op(s, FMI_OP_REWIND, len, 0);
    uint32_t known = FM_MIN(s->known, len), at = len;
    if (fmi_has_state(s))
        at = fmi_mark_before(s, len);
    s->len = at;
    while (s->whole > at) {
        fmi_node *n = s->node;
        uint32_t b = (s->base + s->whole) / FM_KV_PAGE - 1;
        s->whole = block_begin(s, b);
        if (!n)
            continue;
        s->node = fmi_node_parent(n);
        fmi_node_hold(s->node);
        fmi_node_drop(s->model->engine->prefix, n);
    }
    forget_from(s, at);
    if (at == len)
        return FM_OK;
    s->known = known;
    fmi_seq_adopt(s);
    return fmi_marks_replay(s, len);
}

void fmi_seq_trim(fm_seq *s)
{
    uint32_t keep = pages_of(s, s->len);
    while (s->page_count > keep)
        drop_last(s);
    fmi_marks_limit(s, 0, s->len);
}

/* ==== going on ==== */

void fmi_seq_tell(fm_seq *s, uint32_t at, int32_t token)
{
    fm_assert(at >= s->len && at <= s->known && at < s->page_cap * FM_KV_PAGE);
    if (at < s->known && s->token[at] == token)
        return;
    fmi_log_op(s, FMI_OP_TELL, at, token);
    if (at < s->known)
        forget_from(s, at);
    s->token[at] = token;
    s->known = at + 1;
}

void fmi_seq_want(fm_seq *s, uint32_t begin, uint32_t end)
{
    if (s->want_begin == begin && s->want_end == end)
        return;
    fmi_log_op(s, FMI_OP_WANT, begin, (int32_t)end);
    s->want_begin = begin;
    s->want_end = end;
}

void fmi_seq_adopt(fm_seq *s)
{
    uint32_t layers = s->model->arch.layers, reach = UINT32_MAX;
    fmi_log_op(s, FMI_OP_ADOPT, 0, 0);
    if (fmi_has_state(s))
        reach = fmi_marks_reach(s);
    for (;;) {
        uint32_t b = s->page_count, end = block_end(s, b), depth = 0;
        if (fmi_has_state(s) && s->len == reach) {
            fmi_marks_adopt(s);
            return;
        }
        if (s->len != s->whole || (s->base + s->len) / FM_KV_PAGE != b || end >= s->known ||
            end > s->page_cap * FM_KV_PAGE - s->base)
            return;
        fmi_block *k = &s->block[b];
        block_init(k);
        bool all = look_up(s, b, k, &depth);
        if (fmi_has_state(s) && depth == layers)
            k->first = layers;
        all = all && k->first == layers && k->from < 0 && take_pages(s, b, k) == FM_OK;
        if (!all) {
            settle(s, k);
            return;
        }
        s->page_count++;
        s->len = end;
        changed(s);
        count_hits(s, b, depth);
        complete_block(s, b);
    }
}

fm_status fmi_seq_reserve(fm_seq *s, uint32_t len)
{
    uint32_t positions = fmi_priv(s->model)->rope->positions;
    fmi_log_op(s, FMI_OP_RESERVE, len, 0);
    if (len > positions - s->base)
        return fm_fail(FM_ELIMIT, "sequence of %u tokens: %s at most %u", len,
                       fmi_positions_limit(s->model), positions - s->base);
    fm_status rc = table_room(s, pages_of(s, len));
    if (rc == FM_OK && len > s->len)
        rc = own_blocks(s, len);
    uint32_t need = pages_of(s, len);
    while (rc == FM_OK && s->page_count < need)
        rc = begin_block(s);
    FM_THEN(rc, fmi_marks_reserve(s, len));
    if (rc != FM_OK)
        fmi_seq_trim(s);
    return rc;
}

void fmi_seq_confirm(fm_seq *s, uint32_t len)
{
    uint32_t sure = FM_MIN(FM_MIN(len, s->len), s->known);
    for (uint32_t b = (s->base + s->whole) / FM_KV_PAGE; b < s->page_count; b++) {
        if (block_end(s, b) > sure)
            break;
        complete_block(s, b);
    }
    if (s->marks) /* those of steps before the last confirmed one */
        fmi_marks_limit(s, sure, UINT32_MAX);
}

void fmi_seq_queue(fm_seq *s, uint32_t rows)
{
    s->len += rows;
}

void fmi_seq_learn(fm_seq *s, uint32_t at, int32_t token)
{
    fm_assert(at == s->known && at < s->page_cap * FM_KV_PAGE);
    s->token[at] = token;
    s->known = at + 1;
}

void fmi_seq_advance(fm_seq *s, uint32_t rows)
{
    s->len += rows;
    fmi_seq_confirm(s, s->len);
}
