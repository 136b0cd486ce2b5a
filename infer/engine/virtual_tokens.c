/* virtual_tokens.c - positions that a model puts before every text: prefix tuning gives their keys
 * and values, prompt tuning their embeddings. Either way the model makes their pages once, when its
 * first sequence opens, and holds them; every sequence shares them (Li and Liang 2021, Lester et
 * al. 2021, as PEFT computes them). */
#include "infer/engine/engine.h"

#include <string.h>

#include "store/base/mem.h"

/* Writes keys and values, rows [len, layers, 2, kv_heads * head_dim], to the pages of s. */
static fm_status write_rows(fm_seq *s, const float *rows, uint32_t len)
{
    const fm_arch *a = &fmi_priv(s->model)->local;
    fm_engine *e = s->model->engine;
    fm_backend *be = e->be;
    fmi_kv_pool *pool = fmi_priv(s->model)->geom->pool;
    size_t d = (size_t)a->kv_heads * a->head_dim, row = 2 * d * a->layers;
    void *dev = NULL, *slots = NULL;
    int32_t *slot = fm_malloc(len * sizeof(int32_t));
    fm_status rc = slot ? be->alloc(be, &dev, len * row * sizeof(float)) : FM_ENOMEM;
    FM_THEN(rc, be->alloc(be, &slots, len * sizeof(int32_t)));
    FM_THEN(rc, be->upload(be, dev, rows, len * row * sizeof(float)));
    for (uint32_t l = 0; l < a->layers && rc == FM_OK; l++) {
        const int32_t *page = s->page + (size_t)l * s->page_cap;
        if (!fmi_kv_here(fmi_pool_at(fmi_priv(s->model)->geom, l)))
            continue;
        const float *k = (const float *)dev + 2 * d * l;
        for (uint32_t i = 0; i < len; i++)
            slot[i] = page[i / FM_KV_PAGE] * (int32_t)FM_KV_PAGE + (int32_t)(i % FM_KV_PAGE);
        rc = be->upload(be, slots, slot, len * sizeof(int32_t));
        if (rc == FM_OK) {
            be->kv_write(be, fmi_kv_view(pool), k, row, k + d, row, slots, len, a->kv_heads,
                         a->head_dim);
            rc = be->sync(be); /* before the next round overwrites slots */
        }
    }
    if (dev)
        be->free(be, dev);
    if (slots)
        be->free(be, slots);
    fm_free(slot);
    return rc;
}

static fm_status compute(fm_seq *s, const fm_model *m)
{
    FM_TRY(fmi_seq_reserve(s, m->virtual_len));
    if (m->virtual_is_kv)
        return write_rows(s, m->virtual_rows, m->virtual_len);
    uint32_t most = m->engine->opts.max_rows, h = m->arch.hidden;
    for (uint32_t at = 0; at < m->virtual_len; at += most)
        FM_TRY(
            fmi_step_given(s, m->virtual_rows + (size_t)at * h, FM_MIN(most, m->virtual_len - at)));
    return FM_OK;
}

fm_status fmi_virtual_ready(fm_model *m)
{
    fmi_model_priv *p = fmi_priv(m);
    uint32_t pages = (m->virtual_len + FM_KV_PAGE - 1) / FM_KV_PAGE, layers = m->arch.layers;
    if (p->virtual_page)
        return FM_OK;
    if (m->virtual_len >= p->rope->positions)
        return fm_fail(FM_ELIMIT, "%u virtual tokens leave no position of %u for text",
                       m->virtual_len, p->rope->positions);
    int32_t *page = fm_malloc((size_t)layers * pages * sizeof(int32_t));
    if (!page)
        return FM_ENOMEM;
    /* A sequence without virtual positions computes them; then the model takes over its pages. */
    uint32_t len = m->virtual_len;
    fm_seq s = {.model = m, .uncached = true};
    fm_status rc = compute(&s, m);
    for (uint32_t l = 0; l < layers; l++)
        for (uint32_t i = 0; i < s.page_count; i++) {
            int32_t at = s.page[(size_t)l * s.page_cap + i];
            if (rc == FM_OK)
                page[(size_t)l * pages + i] = at;
            else
                fmi_kv_give(fmi_pool_at(p->geom, l), at);
        }
    fm_free(s.page);
    fm_free(s.block);
    fm_free(s.token);
    if (rc != FM_OK) {
        fm_free(page);
        return fm_error_prefix(rc, "%u virtual tokens", len);
    }
    p->virtual_page = page;
    return FM_OK;
}

void fmi_virtual_drop(fm_model *m)
{
    fmi_model_priv *p = fmi_priv(m);
    uint32_t pages = (m->virtual_len + FM_KV_PAGE - 1) / FM_KV_PAGE;
    if (!p->virtual_page)
        return;
    for (size_t i = (size_t)m->arch.layers * pages; i-- > 0;)
        fmi_kv_give(fmi_pool_at(p->geom, (uint32_t)(i / pages)), p->virtual_page[i]);
    fm_free(p->virtual_page);
    p->virtual_page = NULL;
}
