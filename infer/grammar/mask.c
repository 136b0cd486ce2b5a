/* mask.c - running a grammar over bytes and tokens.
 *
 * A configuration is (state, stack). Stacks are shared lists of return states; each distinct one
 * has one number, so that equal stacks have equal numbers. A set of configurations is kept closed:
 * calls entered, ended rules left. From every configuration some text ends (gr_trim), so dropping
 * configurations beyond GR_SET_MAX only narrows what may be written. */
#include "infer/grammar/mask.h"

#include <string.h>

enum { OUTSIDE = 0, EMPTY = 1 }; /* stacks: unknown (for masks that are kept); empty */

typedef struct conf {
    uint32_t state, stack;
} conf;
typedef struct confs {
    conf c[GR_SET_MAX];
    uint32_t n;
    bool complete; /* the whole value may end here */
    bool outside;  /* the rule may end here, with the unknown stack */
} confs;

struct fm_grammar_state {
    fm_grammar *g;
    const fm_token_trie *trie;
    confs now, before;
    uint32_t *parent, *ret; /* [stacks] */
    size_t stacks, parent_cap, ret_cap;
    uint32_t *slot; /* hash table of numbers + 1 */
    size_t slots;
    confs *level;   /* [FM_GRAMMAR_TOKEN_BYTES_MAX + 1] of a walk */
    uint64_t *bits; /* [words] */
    uint32_t *leave;
    size_t leaves, leave_cap;
    uint64_t work;
};

void gr_cache_clear(fm_grammar *g)
{
    for (size_t i = 0; g->cached && i < g->states; i++) {
        if (!g->cached[i])
            continue;
        fm_free(g->cached[i]->bits);
        fm_free(g->cached[i]->id);
        fm_free(g->cached[i]->leave);
        fm_free(g->cached[i]);
        g->cached[i] = NULL;
    }
    g->cached_bytes = 0;
}

void fm_grammar_free(fm_grammar *g)
{
    if (!g)
        return;
    gr_cache_clear(g);
    fm_free(g->cached);
    fm_free(g->state);
    fm_free(g->edge);
    fm_free(g->call);
    fm_free(g->start);
    fm_free(g);
}

size_t fm_grammar_states(const fm_grammar *g)
{
    return g->states;
}

/* ---- stacks ---- */

static size_t slot_of(const fm_grammar_state *st, uint32_t parent, uint32_t ret)
{
    uint64_t h = ((uint64_t)parent << 32 | ret) * 0x9e3779b97f4a7c15u;

    return (size_t)(h >> 20) & (st->slots - 1);
}

static fm_status more_slots(fm_grammar_state *st)
{
    size_t slots = st->slots ? 2 * st->slots : 256;
    uint32_t *bigger = fm_calloc(slots, sizeof *bigger);

    if (!bigger)
        return FM_ENOMEM;
    fm_free(st->slot);
    st->slot = bigger;
    st->slots = slots;
    for (size_t i = EMPTY + 1; i < st->stacks; i++) {
        size_t at = slot_of(st, st->parent[i], st->ret[i]);
        while (st->slot[at])
            at = (at + 1) & (slots - 1);
        st->slot[at] = (uint32_t)i + 1;
    }
    return FM_OK;
}

static fm_status push(fm_grammar_state *st, uint32_t parent, uint32_t ret, uint32_t *out)
{
    size_t at = slot_of(st, parent, ret);

    for (; st->slot[at]; at = (at + 1) & (st->slots - 1)) {
        *out = st->slot[at] - 1;
        if (st->parent[*out] == parent && st->ret[*out] == ret)
            return FM_OK;
    }
    if (st->stacks >= FM_GRAMMAR_STACKS_MAX)
        return fm_fail(FM_ELIMIT, "grammar: the value is nested too deep or too variously");
    FM_TRY(fm_grow(&st->parent, &st->parent_cap, st->stacks + 1, sizeof *st->parent));
    FM_TRY(fm_grow(&st->ret, &st->ret_cap, st->stacks + 1, sizeof *st->ret));
    st->parent[st->stacks] = parent;
    st->ret[st->stacks] = ret;
    st->slot[at] = (uint32_t)st->stacks + 1;
    *out = (uint32_t)st->stacks++;
    return st->stacks * 2 > st->slots ? more_slots(st) : FM_OK;
}

/* ---- sets of configurations ---- */

static void add(confs *s, conf c)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->c[i].state == c.state && s->c[i].stack == c.stack)
            return;
    if (s->n < GR_SET_MAX)
        s->c[s->n++] = c;
}

/* Adds c and all configurations that it may become without reading: rules end, others are called.
 * Called rules begin with bytes, so this ends. */
static fm_status add_closed(fm_grammar_state *st, confs *s, conf c)
{
    const fm_grammar *g = st->g;

    for (;;) {
        const gr_state *q = &g->state[c.state];
        if (q->edges > 0)
            add(s, c);
        for (uint32_t i = 0; i < q->calls; i++) {
            const gr_call *call = &g->call[q->call + i];
            const gr_state *back = &g->state[call->to];
            uint32_t stack = c.stack;

            if (!back->final || back->edges > 0 || back->calls > 0) /* else it is a tail call */
                FM_TRY(push(st, c.stack, call->to, &stack));
            add(s, (conf){g->start[call->rule], stack});
        }
        st->work += 1 + q->calls;
        if (!q->final)
            return FM_OK;
        if (c.stack <= EMPTY) {
            s->complete = s->complete || c.stack == EMPTY;
            s->outside = s->outside || c.stack == OUTSIDE;
            return FM_OK;
        }
        c = (conf){st->ret[c.stack], st->parent[c.stack]};
    }
}

static uint32_t edge_on(const fm_grammar *g, uint32_t state, uint8_t byte)
{
    const gr_state *q = &g->state[state];
    const gr_edge *e = g->edge + q->edge;

    for (uint32_t i = 0; i < q->edges && e[i].lo <= byte; i++)
        if (byte <= e[i].hi)
            return e[i].to;
    return GR_NONE;
}

/* Sets *to to the configurations that `byte` leads to from a closed set, not closed yet. */
static void step(fm_grammar_state *st, confs *to, const confs *from, uint8_t byte)
{
    to->n = 0;
    to->complete = to->outside = false;
    st->work += from->n;
    for (uint32_t i = 0; i < from->n; i++) {
        uint32_t next = edge_on(st->g, from->c[i].state, byte);
        if (next != GR_NONE)
            to->c[to->n++] = (conf){next, from->c[i].stack};
    }
}

static fm_status close_set(fm_grammar_state *st, confs *s)
{
    conf open[GR_SET_MAX];
    uint32_t n = s->n;

    memcpy(open, s->c, n * sizeof *open);
    s->n = 0;
    for (uint32_t i = 0; i < n; i++)
        FM_TRY(add_closed(st, s, open[i]));
    return FM_OK;
}

/* ---- walks ---- */

/* Walks the trie nodes [at, end), children of a node of depth `base`, from level[0]. Sets the bits
 * of tokens that can be read, and notes nodes behind which the rule may have ended. */
static fm_status walk(fm_grammar_state *st, uint32_t at, uint32_t end, uint16_t base)
{
    const fm_token_trie *t = st->trie;

    while (at < end) {
        const gr_trie_node *n = &t->node[at];
        uint16_t d = (uint16_t)(n->depth - base);
        confs *s = &st->level[d];
        step(st, s, s - 1, n->byte);
        if (s->n == 0) {
            at = n->end;
            continue;
        }
        for (uint32_t i = 0; i < n->tokens; i++) {
            uint32_t id = (uint32_t)t->order[n->token + i];
            st->bits[id / 64] |= (uint64_t)1 << (id % 64);
        }
        if (n->end == at + 1) {
            at++;
            continue;
        }
        FM_TRY(close_set(st, s));
        if (s->outside) {
            FM_TRY(fm_grow(&st->leave, &st->leave_cap, st->leaves + 1, sizeof *st->leave));
            st->leave[st->leaves++] = at;
        }

        if (st->work > GR_MASK_WORK_MAX)
            return fm_fail(FM_ELIMIT, "grammar: the schema is too ambiguous at this place");
        at = s->n > 0 ? at + 1 : n->end;
    }
    return FM_OK;
}

static fm_status keep(fm_grammar_state *st, gr_cached *kept)
{
    size_t words = fm_token_trie_words(st->trie), ids = 0;

    for (size_t i = 0; i < words; i++)
        ids += (size_t)__builtin_popcountll(st->bits[i]);
    bool few = ids * sizeof(uint32_t) < words * sizeof(uint64_t) / 4;
    if (few)
        kept->id = fm_malloc(ids * sizeof *kept->id);
    else
        kept->bits = fm_memdup(st->bits, words * sizeof *st->bits);
    kept->leave = fm_memdup(st->leave, st->leaves * sizeof *st->leave);
    if (!kept->leave || (few ? !kept->id : !kept->bits))
        return FM_ENOMEM;
    kept->leaves = st->leaves;
    for (size_t i = 0; few && i < words; i++)
        for (uint64_t w = st->bits[i]; w; w &= w - 1)
            kept->id[kept->ids++] = (uint32_t)(i * 64) + (uint32_t)__builtin_ctzll(w);
    kept->bytes = sizeof *kept + kept->leaves * sizeof *kept->leave +
                  (few ? ids * sizeof *kept->id : words * sizeof *kept->bits);
    return FM_OK;
}

/* The tokens that `state` allows with any stack, made at first use. */
static fm_status cached(fm_grammar_state *st, uint32_t state, const gr_cached **out)
{
    fm_grammar *g = st->g;
    fm_status rc = FM_OK;

    if (g->trie != st->trie || g->cached_bytes > GR_CACHE_MAX)
        gr_cache_clear(g);
    g->trie = st->trie;
    if (!g->cached && !(g->cached = fm_calloc(g->states, sizeof(gr_cached *))))
        return FM_ENOMEM;
    if (!g->cached[state]) {
        memset(st->bits, 0, fm_token_trie_words(st->trie) * sizeof *st->bits);
        st->leaves = 0;
        st->level[0] = (confs){.n = 1};
        st->level[0].c[0] = (conf){state, OUTSIDE};
        rc = walk(st, 0, (uint32_t)st->trie->nodes, 0);
        gr_cached *kept = rc == FM_OK ? fm_calloc(1, sizeof *kept) : NULL;
        if (!kept)
            return rc < 0 ? rc : FM_ENOMEM;
        g->cached[state] = kept;
        rc = keep(st, kept);
        g->cached_bytes += kept->bytes;
        if (rc < 0)
            gr_cache_clear(g);
    }
    *out = g->cached[state];
    return rc;
}

/* Sets the bits of tokens that end the rule of c and go on in what follows it. */
static fm_status beyond(fm_grammar_state *st, conf c, const gr_cached *kept)
{
    confs after = {.n = 0};
    fm_status rc = FM_OK;

    if (c.stack == EMPTY || kept->leaves == 0)
        return FM_OK;
    rc = add_closed(st, &after, (conf){st->ret[c.stack], st->parent[c.stack]});
    st->level[0] = after;
    for (size_t i = 0; rc == FM_OK && i < kept->leaves && after.n > 0; i++) {
        const gr_trie_node *n = &st->trie->node[kept->leave[i]];
        rc = walk(st, kept->leave[i] + 1, n->end, n->depth);
    }
    return rc;
}

static fm_status add_mask(fm_grammar_state *st, conf c, uint64_t *mask)
{
    size_t words = fm_token_trie_words(st->trie);
    const gr_cached *kept;
    FM_TRY(cached(st, c.state, &kept));
    for (size_t i = 0; kept->bits && i < words; i++)
        mask[i] |= kept->bits[i];
    for (size_t i = 0; i < kept->ids; i++)
        mask[kept->id[i] / 64] |= (uint64_t)1 << (kept->id[i] % 64);
    uint64_t *own = st->bits;
    st->bits = mask; /* walks add to the mask */
    fm_status rc = beyond(st, c, kept);
    st->bits = own;
    return rc;
}

fm_status fm_grammar_mask(fm_grammar_state *st, uint64_t *mask)
{
    size_t words = fm_token_trie_words(st->trie);
    uint64_t any = 0;
    fm_status rc = FM_OK;

    memset(mask, 0, words * sizeof *mask);
    st->work = 0;
    for (uint32_t i = 0; rc == FM_OK && i < st->now.n; i++)
        rc = add_mask(st, st->now.c[i], mask);
    for (size_t i = 0; i < words && !any; i++)
        any = mask[i];
    if (rc == FM_OK && !any && !st->now.complete)
        return fm_fail(FM_EINVAL, "grammar: no token of the vocabulary can go on here");
    return rc;
}

/* ---- going on ---- */

fm_status fm_grammar_accept_bytes(fm_grammar_state *st, fm_span bytes)
{
    fm_status rc = FM_OK;

    st->before = st->now;
    for (size_t i = 0; rc == FM_OK && i < bytes.len; i++) {
        confs next;
        step(st, &next, &st->now, bytes.data[i]);
        rc = next.n > 0 ? close_set(st, &next)
                        : fm_fail(FM_EINVAL, "grammar: byte %zu (0x%02x) is not allowed here", i,
                                  bytes.data[i]);
        if (rc == FM_OK)
            st->now = next;
    }
    if (rc < 0)
        st->now = st->before;
    return rc;
}

fm_status fm_grammar_accept(fm_grammar_state *st, int32_t token)
{
    const fm_token_trie *t = st->trie;

    if (!t || token < 0 || (size_t)token >= t->vocab || t->at[token].len == 0)
        return fm_fail(FM_EINVAL, "grammar: token %d stands for no text", token);
    return fm_grammar_accept_bytes(st, fm_span_of(t->bytes + t->at[token].off, t->at[token].len));
}

bool fm_grammar_complete(const fm_grammar_state *st)
{
    return st->now.complete;
}

bool fm_grammar_ended(const fm_grammar_state *st)
{
    return st->now.complete && st->now.n == 0;
}

fm_status fm_grammar_state_new(fm_grammar_state **out, fm_grammar *g, const fm_token_trie *trie)
{
    fm_grammar_state *st = fm_calloc(1, sizeof *st);
    fm_status rc = st ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (rc < 0)
        return rc;
    st->g = g;
    st->trie = trie;
    rc = more_slots(st);
    for (int i = 0; rc == FM_OK && i <= EMPTY; i++) {
        rc = fm_grow(&st->parent, &st->parent_cap, st->stacks + 1, sizeof *st->parent);
        FM_THEN(rc, fm_grow(&st->ret, &st->ret_cap, st->stacks + 1, sizeof *st->ret));
        if (rc == FM_OK)
            st->parent[st->stacks] = st->ret[st->stacks] = GR_NONE;
        st->stacks++;
    }
    if (rc == FM_OK && trie) {
        st->level = fm_calloc(FM_GRAMMAR_TOKEN_BYTES_MAX + 1, sizeof *st->level);
        st->bits = fm_calloc(fm_token_trie_words(trie), sizeof *st->bits);
        rc = st->level && st->bits ? FM_OK : FM_ENOMEM;
    }
    FM_THEN(rc, add_closed(st, &st->now, (conf){g->start[0], EMPTY}));
    if (rc < 0) {
        fm_grammar_state_free(st);
        return rc;
    }
    *out = st;
    return FM_OK;
}

void fm_grammar_state_free(fm_grammar_state *st)
{
    if (!st)
        return;
    fm_free(st->parent);
    fm_free(st->ret);
    fm_free(st->slot);
    fm_free(st->level);
    fm_free(st->bits);
    fm_free(st->leave);
    fm_free(st);
}
