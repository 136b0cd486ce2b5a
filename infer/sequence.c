/* sequence.c - timelines: their length, their page tables, one per layer.
 *
 * Tables are [layers, page_cap]: layers differ in their pages, since a layer may be shared with
 * another model while the one above it is not. Positions count the model's virtual ones, whose
 * pages the model holds; a sequence begins by holding them too, and copies the last, partly filled
 * one before it writes. */
#include "infer/engine.h"

#include <string.h>

#include "store/base/mem.h"

static uint32_t pages_of(const fm_seq *s, uint32_t len)
{
    return (s->base + len + FM_KV_PAGE - 1) / FM_KV_PAGE;
}

static void changed(fm_seq *s)
{
    s->version = ++s->model->engine->table_clock;
}

/* ==== tables ==== */

static fm_status table_room(fm_seq *s, uint32_t pages)
{
    uint32_t layers = s->model->arch.layers;
    if (pages <= s->page_cap)
        return FM_OK;
    uint32_t cap = FM_MAX(pages, s->page_cap * 2);
    int32_t *page = fm_malloc((size_t)layers * cap * sizeof(int32_t));
    if (!page)
        return FM_ENOMEM;
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
    return table_room(s, pages_of(s, len));
}

/* The last page of every layer goes back, the topmost first. */
static void give_last(fm_seq *s)
{
    fmi_kv_pool *pool = fmi_priv(s->model)->geom->pool;
    s->page_count--;
    for (uint32_t l = s->model->arch.layers; l-- > 0;)
        fmi_kv_give(pool, s->page[(size_t)l * s->page_cap + s->page_count]);
    changed(s);
}

static fm_status take_next(fm_seq *s)
{
    fmi_kv_pool *pool = fmi_priv(s->model)->geom->pool;
    for (uint32_t l = 0; l < s->model->arch.layers; l++) {
        fm_status rc = fmi_kv_take(pool, &s->page[(size_t)l * s->page_cap + s->page_count]);
        if (rc != FM_OK) {
            while (l-- > 0)
                fmi_kv_give(pool, s->page[(size_t)l * s->page_cap + s->page_count]);
            return rc;
        }
    }
    s->page_count++;
    changed(s);
    return FM_OK;
}

/* The page that the next token goes to, if it is begun, becomes this sequence's own. */
static fm_status own_last(fm_seq *s)
{
    fmi_kv_pool *pool = fmi_priv(s->model)->geom->pool;
    uint32_t at = (s->base + s->len) / FM_KV_PAGE;
    for (uint32_t l = 0; l < s->model->arch.layers && at < s->page_count; l++) {
        int32_t *page = &s->page[(size_t)l * s->page_cap + at];
        if (!fmi_kv_shared(pool, *page))
            continue;
        fm_status rc = fmi_kv_writable(pool, page);
        if (rc != FM_OK)
            return rc;
        changed(s);
    }
    return FM_OK;
}

/* ==== life ==== */

uint32_t fmi_positions(const fm_model *m)
{
    uint32_t positions = fmi_priv(m)->rope->positions;
    return positions > m->virtual_len ? positions - m->virtual_len : 0;
}

/* Holds the pages of the model's virtual positions. */
static fm_status begin(fm_seq *s)
{
    const fm_model *m = s->model;
    const fmi_model_priv *p = fmi_priv(m);
    uint32_t pages = (m->virtual_len + FM_KV_PAGE - 1) / FM_KV_PAGE;
    fm_status rc = table_room(s, pages);
    if (rc != FM_OK)
        return rc;
    for (uint32_t l = 0; l < m->arch.layers; l++)
        for (uint32_t i = 0; i < pages; i++) {
            int32_t page = p->virtual_page[(size_t)l * pages + i];
            s->page[(size_t)l * s->page_cap + i] = page;
            fmi_kv_hold(p->geom->pool, page);
        }
    s->page_count = pages;
    s->base = m->virtual_len;
    return FM_OK;
}

fm_status fm_seq_open(fm_seq **out, fm_model *m)
{
    *out = NULL;
    fm_status rc = m->virtual_len ? fmi_virtual_ready(m) : FM_OK;
    fm_seq *s = rc == FM_OK ? fm_calloc(1, sizeof(*s)) : NULL;
    if (!s)
        return rc == FM_OK ? FM_ENOMEM : rc;
    s->model = m;
    changed(s);
    if (m->virtual_len && (rc = begin(s)) != FM_OK) {
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
    while (s->page_count)
        give_last(s);
    fmi_priv(s->model)->seqs--;
    s->model->engine->seqs--;
    fm_free(s->page);
    fm_free(s);
}

uint32_t fm_seq_len(const fm_seq *s)
{
    return s->len;
}

fm_status fm_seq_rewind(fm_seq *s, uint32_t len)
{
    if (len > s->len)
        return fm_fail(FM_EINVAL, "rewind to %u, the sequence has %u tokens", len, s->len);
    s->len = len;
    fmi_seq_trim(s);
    return FM_OK;
}

void fmi_seq_trim(fm_seq *s)
{
    uint32_t keep = pages_of(s, s->len);
    while (s->page_count > keep)
        give_last(s);
}

/* ==== pages ==== */

uint32_t fmi_seq_lacks(const fm_seq *s, uint32_t len)
{
    uint32_t need = pages_of(s, len);
    return need > s->page_count ? need - s->page_count : 0;
}

fm_status fmi_seq_reserve(fm_seq *s, uint32_t len)
{
    uint32_t positions = fmi_priv(s->model)->rope->positions;
    if (len > positions - s->base)
        return fm_fail(FM_ELIMIT, "sequence of %u tokens: %s at most %u", len,
                       positions < s->model->arch.max_positions
                           ? "the engine's KV memory (kv_bytes_max) holds"
                           : "the model takes",
                       positions - s->base);
    fm_status rc = table_room(s, pages_of(s, len));
    if (rc == FM_OK && len > s->len)
        rc = own_last(s);
    uint32_t need = pages_of(s, len);
    while (rc == FM_OK && s->page_count < need)
        rc = take_next(s);
    if (rc != FM_OK)
        fmi_seq_trim(s);
    return rc;
}
