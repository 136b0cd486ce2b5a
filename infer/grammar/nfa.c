/* nfa.c - automata: written with empty moves, made deterministic, trimmed. */
#include "infer/grammar/internal.h"

#include <stdlib.h>
#include <string.h>

fm_status gr_work(gr_builder *b, uint64_t units)
{
    b->work += units;
    if (b->work > GR_WORK_MAX)
        return fm_fail(FM_ELIMIT, "%s: the schema takes too long to compile", b->where);
    return FM_OK;
}

/* ---- writing ---- */

fm_status gr_node(gr_builder *b, uint32_t *out)
{
    *out = 0;
    if (b->nodes >= GR_NFA_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %u states", b->where, GR_NFA_MAX);
    FM_TRY(fm_grow(&b->head, &b->nodes_cap, b->nodes + 1, sizeof *b->head));
    b->head[b->nodes] = GR_NONE;
    *out = (uint32_t)b->nodes++;
    return gr_work(b, 1);
}

static fm_status add_edge(gr_builder *b, uint32_t in, gr_nfa_edge e)
{
    FM_TRY(fm_grow(&b->nfa, &b->nfa_cap, b->nfa_count + 1, sizeof *b->nfa));
    e.next = b->head[in];
    b->head[in] = (uint32_t)b->nfa_count;
    b->nfa[b->nfa_count++] = e;
    return gr_work(b, 1);
}

fm_status gr_empty(gr_builder *b, uint32_t in, uint32_t out)
{
    return add_edge(b, in, (gr_nfa_edge){.to = out, .rule = GR_NONE, .lo = 1, .hi = 0});
}

fm_status gr_bytes(gr_builder *b, uint32_t in, uint32_t out, unsigned lo, unsigned hi)
{
    if (lo > hi)
        return FM_OK;
    return add_edge(
        b, in, (gr_nfa_edge){.to = out, .rule = GR_NONE, .lo = (uint16_t)lo, .hi = (uint16_t)hi});
}

fm_status gr_call_to(gr_builder *b, uint32_t in, uint32_t out, uint32_t rule)
{
    return add_edge(b, in, (gr_nfa_edge){.to = out, .rule = rule, .lo = 1, .hi = 0});
}

fm_status gr_text(gr_builder *b, uint32_t in, uint32_t out, fm_span text)
{
    fm_status rc = text.len == 0 ? gr_empty(b, in, out) : FM_OK;

    for (size_t i = 0; rc == FM_OK && i < text.len; i++) {
        uint32_t next = out;
        if (i + 1 < text.len)
            rc = gr_node(b, &next);
        FM_THEN(rc, gr_bytes(b, in, next, text.data[i], text.data[i]));
        in = next;
    }
    return rc;
}

/* ---- subsets ---- */

typedef struct subsets {
    gr_builder *b;
    uint32_t base; /* number of the first state in the grammar */
    uint32_t out;  /* the node that ends the rule */
    uint32_t *pool;
    size_t pool_len, pool_cap;
    size_t *off; /* [count + 1] into pool */
    size_t count, off_cap;
    uint32_t *slot; /* hash table of numbers + 1 */
    size_t slots;
    uint32_t *stamp; /* [nodes] == round: in the set being made */
    uint32_t round;
    uint32_t *set, *todo; /* [nodes] */
    size_t set_len;
} subsets;

static void begin_set(subsets *s)
{
    s->round++;
    s->set_len = 0;
}

static void put(subsets *s, uint32_t node, size_t *todo_len)
{
    if (s->stamp[node] == s->round)
        return;
    s->stamp[node] = s->round;
    s->set[s->set_len++] = node;
    s->todo[(*todo_len)++] = node;
}

/* Adds a node and all nodes that empty moves reach from it. */
static fm_status add_closed(subsets *s, uint32_t node)
{
    size_t todo = 0;

    put(s, node, &todo);
    size_t before = s->set_len;
    while (todo > 0) {
        uint32_t at = s->todo[--todo];
        for (uint32_t e = s->b->head[at]; e != GR_NONE; e = s->b->nfa[e].next)
            if (s->b->nfa[e].rule == GR_NONE && s->b->nfa[e].lo > s->b->nfa[e].hi)
                put(s, s->b->nfa[e].to, &todo);
    }
    return gr_work(s->b, 1 + s->set_len - before);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static uint64_t hash_of(const uint32_t *v, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ v[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static fm_status rehash(subsets *s)
{
    size_t slots = s->slots ? 2 * s->slots : 256;
    uint32_t *bigger = fm_calloc(slots, sizeof *bigger);

    if (!bigger)
        return FM_ENOMEM;
    for (size_t i = 0; i < s->count; i++) {
        size_t at = (size_t)hash_of(s->pool + s->off[i], s->off[i + 1] - s->off[i]) & (slots - 1);
        while (bigger[at])
            at = (at + 1) & (slots - 1);
        bigger[at] = (uint32_t)i + 1;
    }
    fm_free(s->slot);
    s->slot = bigger;
    s->slots = slots;
    return FM_OK;
}

static fm_status new_subset(subsets *s, size_t at, uint32_t *out)
{
    fm_grammar *g = s->b->g;
    bool final = false;

    if (g->states >= FM_GRAMMAR_STATES_MAX)
        return fm_fail(FM_ELIMIT, "%s: the schema needs more than %zu states", s->b->where,
                       FM_GRAMMAR_STATES_MAX);
    FM_TRY(fm_grow(&s->pool, &s->pool_cap, s->pool_len + s->set_len, sizeof *s->pool));
    FM_TRY(fm_grow(&s->off, &s->off_cap, s->count + 2, sizeof *s->off));
    FM_TRY(fm_grow(&g->state, &g->states_cap, g->states + 1, sizeof *g->state));
    memcpy(s->pool + s->pool_len, s->set, s->set_len * sizeof *s->pool);
    for (size_t i = 0; i < s->set_len; i++)
        final = final || s->set[i] == s->out;
    s->off[s->count] = s->pool_len;
    s->pool_len += s->set_len;
    s->off[s->count + 1] = s->pool_len;
    s->slot[at] = (uint32_t)s->count + 1;
    *out = (uint32_t)s->count++;
    g->state[g->states++] = (gr_state){.final = final};
    return s->count * 2 > s->slots ? rehash(s) : FM_OK;
}

/* The number of the set that was just made. */
static fm_status intern(subsets *s, uint32_t *out)
{
    qsort(s->set, s->set_len, sizeof *s->set, by_value);
    size_t at = (size_t)hash_of(s->set, s->set_len) & (s->slots - 1);
    for (; s->slot[at]; at = (at + 1) & (s->slots - 1)) {
        size_t i = s->slot[at] - 1, n = s->off[i + 1] - s->off[i];
        if (n == s->set_len && memcmp(s->pool + s->off[i], s->set, n * sizeof *s->set) == 0) {
            *out = (uint32_t)i;
            return FM_OK;
        }
    }
    return new_subset(s, at, out);
}

/* The subset that byte lo leads to from subset i; *any false: none. */
static fm_status step_on(subsets *s, uint32_t i, unsigned lo, uint32_t *to, bool *any)
{
    fm_status rc = FM_OK;

    begin_set(s);
    for (size_t k = s->off[i]; rc == FM_OK && k < s->off[i + 1]; k++)
        for (uint32_t e = s->b->head[s->pool[k]]; rc == FM_OK && e != GR_NONE;
             e = s->b->nfa[e].next)
            if (s->b->nfa[e].lo <= lo && lo <= s->b->nfa[e].hi)
                rc = add_closed(s, s->b->nfa[e].to);
    *any = s->set_len > 0;
    return rc == FM_OK && *any ? intern(s, to) : rc;
}

static fm_status push_edge(fm_grammar *g, gr_edge e, bool first)
{
    gr_edge *last = !first && g->edges ? &g->edge[g->edges - 1] : NULL;

    if (last && last->to == e.to && last->hi + 1 == e.lo) {
        last->hi = e.hi;
        return FM_OK;
    }
    FM_TRY(fm_grow(&g->edge, &g->edges_cap, g->edges + 1, sizeof *g->edge));
    g->edge[g->edges++] = e;
    return FM_OK;
}

static fm_status expand_bytes(subsets *s, uint32_t i)
{
    fm_grammar *g = s->b->g;
    bool cut[257] = {true}, any;
    uint32_t first = (uint32_t)g->edges, to;
    fm_status rc = FM_OK;

    for (size_t k = s->off[i]; k < s->off[i + 1]; k++)
        for (uint32_t e = s->b->head[s->pool[k]]; e != GR_NONE; e = s->b->nfa[e].next)
            if (s->b->nfa[e].lo <= s->b->nfa[e].hi) {
                cut[s->b->nfa[e].lo] = true;
                cut[s->b->nfa[e].hi + 1] = true;
            }
    for (unsigned lo = 0; rc == FM_OK && lo < 256;) {
        unsigned hi = lo;
        while (hi < 255 && !cut[hi + 1])
            hi++;
        rc = gr_work(s->b, s->off[i + 1] - s->off[i]);
        FM_THEN(rc, step_on(s, i, lo, &to, &any));
        if (rc == FM_OK && any)
            rc = push_edge(g, (gr_edge){.to = s->base + to, .lo = (uint8_t)lo, .hi = (uint8_t)hi},
                           g->edges == first);
        lo = hi + 1;
    }
    g->state[s->base + i].edge = first;
    g->state[s->base + i].edges = (uint32_t)g->edges - first;
    return rc;
}

/* Makes one call for each called rule: the states behind all calls of a rule become one set. */
static fm_status expand_calls(subsets *s, uint32_t i)
{
    fm_grammar *g = s->b->g;
    uint32_t first = (uint32_t)g->calls, last = GR_NONE, to;
    fm_status rc = FM_OK;

    for (;;) { /* finds the next larger rule number that is called */
        uint32_t rule = GR_NONE;
        begin_set(s);
        for (int pass = 0; rc == FM_OK && pass < 2; pass++)
            for (size_t k = s->off[i]; rc == FM_OK && k < s->off[i + 1]; k++)
                for (uint32_t e = s->b->head[s->pool[k]]; e != GR_NONE; e = s->b->nfa[e].next) {
                    uint32_t r = s->b->nfa[e].rule;
                    if (r == GR_NONE || (last != GR_NONE && r <= last))
                        continue;
                    if (pass == 0)
                        rule = FM_MIN(rule, r);
                    else if (r == rule && rc == FM_OK)
                        rc = add_closed(s, s->b->nfa[e].to);
                }
        if (rc == FM_OK && rule != GR_NONE)
            rc = intern(s, &to);
        if (rc < 0 || rule == GR_NONE)
            break;
        rc = fm_grow(&g->call, &g->calls_cap, g->calls + 1, sizeof *g->call);
        if (rc == FM_OK)
            g->call[g->calls++] = (gr_call){.rule = rule, .to = s->base + to};
        last = rule;
    }
    g->state[s->base + i].call = first;
    g->state[s->base + i].calls = (uint32_t)g->calls - first;
    return rc;
}

static fm_status subsets_init(subsets *s)
{
    s->stamp = fm_calloc(s->b->nodes, sizeof *s->stamp);
    s->set = fm_calloc(s->b->nodes, sizeof *s->set);
    s->todo = fm_calloc(s->b->nodes, sizeof *s->todo);
    return s->stamp && s->set && s->todo ? rehash(s) : FM_ENOMEM;
}

fm_status gr_determinize(gr_builder *b, uint32_t rule, uint32_t in, uint32_t out)
{
    subsets s = {.b = b, .base = (uint32_t)b->g->states, .out = out};
    fm_status rc = subsets_init(&s);
    uint32_t first;

    if (rc == FM_OK) {
        begin_set(&s);
        rc = add_closed(&s, in);
    }
    FM_THEN(rc, intern(&s, &first));
    for (uint32_t i = 0; rc == FM_OK && i < s.count; i++) {
        rc = expand_bytes(&s, i);
        FM_THEN(rc, expand_calls(&s, i));
    }
    FM_THEN(rc, fm_grow(&b->g->start, &b->g->rules_cap, rule + (size_t)1, sizeof *b->g->start));
    if (rc == FM_OK) {
        b->g->start[rule] = s.base;
        b->g->rules = rule + (size_t)1;
    }
    fm_free(s.stamp);
    fm_free(s.set);
    fm_free(s.todo);
    fm_free(s.pool);
    fm_free(s.off);
    fm_free(s.slot);
    return rc;
}

/* ---- what can end ---- */

static bool can_end(const fm_grammar *g, const gr_state *s)
{
    if (s->final)
        return true;
    for (uint32_t i = 0; i < s->edges; i++)
        if (g->state[g->edge[s->edge + i].to].live)
            return true;
    for (uint32_t i = 0; i < s->calls; i++) {
        const gr_call *c = &g->call[s->call + i];
        if (g->state[g->start[c->rule]].live && g->state[c->to].live)
            return true;
    }
    return false;
}

static void drop_dead(fm_grammar *g, gr_state *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->edges; i++)
        if (g->state[g->edge[s->edge + i].to].live)
            g->edge[s->edge + n++] = g->edge[s->edge + i];
    s->edges = n;
    n = 0;
    for (uint32_t i = 0; i < s->calls; i++) {
        gr_call c = g->call[s->call + i];
        if (g->state[g->start[c.rule]].live && g->state[c.to].live)
            g->call[s->call + n++] = c;
    }
    s->calls = n;
}

fm_status gr_trim(gr_builder *b)
{
    fm_grammar *g = b->g;
    bool more = true;

    /* Goes backwards: chains end at their highest numbers, called rules follow callers. */
    while (more) {
        more = false;
        for (size_t i = g->states; i-- > 0;)
            if (!g->state[i].live && can_end(g, &g->state[i]))
                more = g->state[i].live = true;
        FM_TRY(gr_work(b, g->states / 16));
    }
    for (size_t i = 0; i < g->states; i++)
        drop_dead(g, &g->state[i]);
    if (!g->state[g->start[0]].live)
        return fm_fail(FM_EINVAL, "schema: no value satisfies it");
    return FM_OK;
}
