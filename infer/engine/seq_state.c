/* seq_state.c - see seq_state.h. */
#include "infer/engine/seq_state.h"

#include <string.h>

#include "store/base/mem.h"

static const fmi_geom *geom_of(const fm_seq *s)
{
    return fmi_priv(s->model)->geom;
}

static int32_t *pages_of_mark(const fm_seq *s, uint32_t i)
{
    return s->mark_page + (size_t)i * geom_of(s)->recurs;
}

const int32_t *fmi_mark_at(const fm_seq *s, uint32_t at)
{
    for (uint32_t i = 0; i < s->marks; i++)
        if (s->mark[i].at == at)
            return pages_of_mark(s, i);
    return NULL;
}

uint32_t fmi_mark_before(const fm_seq *s, uint32_t at)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < s->marks; i++)
        if (s->mark[i].at <= at)
            best = FM_MAX(best, s->mark[i].at);
    return best;
}

/* ==== taking and giving ==== */

static fm_status room_for_one(fm_seq *s)
{
    const size_t layers = geom_of(s)->recurs;
    if (s->marks < s->mark_cap)
        return FM_OK;
    uint32_t cap = s->mark_cap ? 2 * s->mark_cap : 8;
    fmi_mark *mark = fm_realloc(s->mark, cap * sizeof(*mark));
    if (mark)
        s->mark = mark;
    int32_t *page = mark ? fm_realloc(s->mark_page, cap * layers * sizeof(*page)) : NULL;
    if (!page)
        return FM_ENOMEM;
    s->mark_page = page;
    s->mark_cap = cap;
    return FM_OK;
}

static fm_status take(fm_seq *s, uint32_t at, bool keeps)
{
    const fmi_geom *g = geom_of(s);
    FM_TRY(room_for_one(s));
    int32_t *page = pages_of_mark(s, s->marks);
    for (uint32_t r = 0; r < g->recurs; r++) {
        fm_status rc = fmi_kv_take(g->states, &page[r]);
        if (rc != FM_OK) {
            while (r-- > 0)
                fmi_kv_give(g->states, page[r]);
            return rc;
        }
    }
    s->mark[s->marks++] = (fmi_mark){at, keeps};
    return FM_OK;
}

static void give(fm_seq *s, uint32_t i)
{
    const fmi_geom *g = geom_of(s);
    int32_t *page = pages_of_mark(s, i);
    for (uint32_t r = g->recurs; r-- > 0;)
        fmi_kv_give(g->states, page[r]);
    s->mark[i] = s->mark[--s->marks];
    memcpy(page, pages_of_mark(s, s->marks), g->recurs * sizeof(*page));
}

void fmi_marks_limit(fm_seq *s, uint32_t first, uint32_t last)
{
    for (uint32_t i = s->marks; i-- > 0;)
        if (s->mark[i].at < first || s->mark[i].at > last)
            give(s, i);
}

fm_status fmi_marks_reserve(fm_seq *s, uint32_t len)
{
    bool caches = s->model->engine->prefix && !s->uncached, several = len > s->len + 1;
    uint32_t wide = FM_KV_PAGE * geom_of(s)->stride, last = len / FM_KV_PAGE * FM_KV_PAGE;
    if (!fmi_has_state(s) || len <= s->len)
        return FM_OK;
    fmi_marks_limit(s, 0, s->len);
    FM_TRY(take(s, len, caches && len == last && (several || len % wide == 0)));
    for (uint32_t at = (s->len / FM_KV_PAGE + 1) * FM_KV_PAGE; caches && at < len; at += FM_KV_PAGE)
        if ((at == last || at % wide == 0) && take(s, at, true) != FM_OK) {
            fm_error_clear(); /* the cache goes without it */
            break;
        }
    return FM_OK;
}

void fmi_marks_free(fm_seq *s)
{
    while (s->marks)
        give(s, s->marks - 1);
    fm_free(s->mark);
    fm_free(s->mark_page);
}

/* ==== the cache ==== */

/* The cached page of recurrent layer r of block n's end, -1: none. */
static int32_t cached(const fm_seq *s, const fmi_node *n, uint32_t layer)
{
    const fmi_model_priv *p = fmi_priv(s->model);
    return fmi_prefix_find(s->model->engine->prefix, p->geom->states, n, &p->kv_key[layer]);
}

void fmi_marks_put(fm_seq *s)
{
    const fmi_geom *g = geom_of(s);
    uint32_t i = 0;
    while (i < s->marks && (s->mark[i].at != s->whole || !s->mark[i].keeps))
        i++;
    for (uint32_t l = 0; i < s->marks && s->node && l < g->layers; l++)
        if (fm_layer_recurs(&g->sw, l) && cached(s, s->node, l) < 0)
            fmi_prefix_put(s->model->engine->prefix, g->states, s->node,
                           &fmi_priv(s->model)->kv_key[l], pages_of_mark(s, i)[g->recur_at[l]]);
}

/* Whether the cache has block n: its keys and values, or (states) the states behind it. */
static bool has(const fm_seq *s, const fmi_node *n, bool states)
{
    const fmi_prefix *c = s->model->engine->prefix;
    const fmi_model_priv *p = fmi_priv(s->model);
    for (uint32_t l = 0; l < p->geom->layers; l++) {
        bool here = states ? fm_layer_recurs(&p->geom->sw, l) : fm_layer_keeps(&p->geom->sw, l);
        if (here && (states ? cached(s, n, l)
                            : fmi_prefix_find(c, fmi_pool_at(p->geom, l), n, &p->kv_key[l])) < 0)
            return false;
    }
    return true;
}

uint32_t fmi_marks_reach(fm_seq *s)
{
    fmi_node *n = s->node;
    uint32_t reach = s->len;
    if (!s->model->engine->prefix || s->uncached || s->len != s->whole || (s->len > 0 && !n) ||
        room_for_one(s) != FM_OK)
        return reach;
    for (uint32_t at = s->len; at + FM_KV_PAGE < s->known; at += FM_KV_PAGE) {
        uint32_t end = at + FM_KV_PAGE;
        if (s->want_begin < end && s->want_end > at)
            break; /* logits of its rows are wanted */
        n = fmi_prefix_child(s->model->engine->prefix, n, s->token + at, FM_KV_PAGE);
        if (!n || !has(s, n, false))
            break;
        if (has(s, n, true))
            reach = end;
    }
    return reach;
}

void fmi_marks_adopt(fm_seq *s)
{
    const fmi_geom *g = geom_of(s);
    if (s->len == 0 || fmi_mark_at(s, s->len))
        return;
    fm_assert(s->marks < s->mark_cap); /* fmi_marks_reach made room */
    int32_t *page = pages_of_mark(s, s->marks);
    for (uint32_t l = 0; l < g->layers; l++) {
        if (!fm_layer_recurs(&g->sw, l))
            continue;
        int32_t there = cached(s, s->node, l);
        fm_assert(there >= 0);
        fmi_kv_hold(g->states, there);
        page[g->recur_at[l]] = there;
    }
    s->mark[s->marks++] = (fmi_mark){.at = s->len};
    fmi_marks_limit(s, s->len, UINT32_MAX);
}

/* ==== rewinding ==== */

/* Runs steps over the tokens from the sequence's length up to len. */
static fm_status run_again(fm_seq *s, fm_row *row, uint32_t most, uint32_t len)
{
    while (s->len < len) {
        uint32_t n = FM_MIN(most, len - s->len);
        for (uint32_t i = 0; i < n; i++)
            row[i] = (fm_row){.seq = s, .token = s->token[s->len + i]};
        FM_TRY(fm_engine_step(s->model->engine, row, n));
    }
    return FM_OK;
}

fm_status fmi_marks_replay(fm_seq *s, uint32_t len)
{
    fm_engine *e = s->model->engine;
    uint32_t most = FM_MIN(e->opts.max_rows, len - s->len);
    if (s->known < len)
        return fm_fail(FM_EINVAL, "rewind to %u tokens: only %u of them are known", len, s->known);
    fm_row *row = fm_calloc(FM_MAX(most, 1u), sizeof(*row));
    if (!row)
        return FM_ENOMEM;
    fm_tap_fn tap = e->tap;
    size_t hooks = s->hooks;
    e->tap = NULL;
    s->hooks = 0; /* the tokens went by these before */
    fm_status rc = run_again(s, row, most, len);
    s->hooks = hooks;
    e->tap = tap;
    fm_free(row);
    return rc;
}
