/* bpe.c - byte-pair encoding: a word's characters are merged, lowest rank first, leftmost
 * first among equals, until no neighbouring pair has a rank.
 *
 * Short words (nearly all) are merged by scanning; long ones through a heap, so that a megabyte
 * without a space does not take quadratic time. Pairs of ids are looked up in one open-addressed
 * table; it is built once and then only read. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

#define SCAN_MAX 24 /* symbols; longer words use the heap */
#define NO_ID UINT32_MAX

typedef struct merge_slot {
    uint64_t pair; /* left << 32 | right; UINT64_MAX = empty */
    uint32_t rank, id;
} merge_slot;

struct fmi_symbol {
    uint32_t id;
    uint32_t prev, next; /* NO_ID = none; a merged-away symbol has id NO_ID */
};

typedef struct fmi_heap_item {
    uint64_t key; /* rank << 32 | position: the order of merging */
    uint64_t pair;
    uint32_t id; /* of the merged pair */
} fmi_heap_item;

typedef struct fmi_affix {
    uint8_t text[64];
    size_t len;
} fmi_affix;

struct fmi_bpe {
    fmi_affix inside, last; /* continuing_subword_prefix, end_of_word_suffix */
    fmi_vocab vocab;
    merge_slot *merge;
    size_t merge_mask;
    uint32_t quick[0x180]; /* ids of single characters below U+0180 */
    int32_t byte_id[256];  /* of <0x00> .. <0xFF>; -1: none */
    bool byte_fallback;
    bool fuse_unk, ignore_merges;
    uint32_t unk;
};

const fmi_vocab *fmi_bpe_vocab(const fmi_bpe *m)
{
    return &m->vocab;
}

/* ---- merges ---- */

static size_t merge_hash(const fmi_bpe *m, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;

    return (size_t)(h >> 29 ^ h >> 47) & m->merge_mask;
}

static const merge_slot *merge_find(const fmi_bpe *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;

    for (size_t i = merge_hash(m, pair);; i = (i + 1) & m->merge_mask) {
        if (m->merge[i].pair == pair)
            return &m->merge[i];
        if (m->merge[i].pair == UINT64_MAX)
            return NULL;
    }
}

static fm_status merge_put(fmi_bpe *m, size_t rank, fm_span left, fm_span right)
{
    uint8_t joined[512];
    uint8_t *text = joined;
    size_t len = left.len + right.len - m->inside.len;
    int32_t a = fmi_vocab_find(&m->vocab, left), b = fmi_vocab_find(&m->vocab, right);

    if (a < 0 || b < 0)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: model.merges[%zu] names an unknown token",
                       rank);
    if (right.len < m->inside.len)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: model.merges[%zu] lacks the prefix", rank);
    if (len > sizeof joined) {
        text = fm_malloc(len);
        if (!text)
            return FM_ENOMEM;
    }
    memcpy(text, left.data, left.len);
    memcpy(text + left.len, right.data + m->inside.len, right.len - m->inside.len);
    int32_t id = fmi_vocab_find(&m->vocab, fm_span_of(text, len));
    if (text != joined)
        fm_free(text);
    if (id < 0)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: model.merges[%zu] makes an unknown token",
                       rank);
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    size_t i = merge_hash(m, pair);
    while (m->merge[i].pair != UINT64_MAX && m->merge[i].pair != pair)
        i = (i + 1) & m->merge_mask;
    m->merge[i].pair = pair; /* a repeated pair: the later rank wins, as in a map */
    m->merge[i].rank = (uint32_t)rank;
    m->merge[i].id = (uint32_t)id;
    return FM_OK;
}

/* "a b" or ["a", "b"] */
static fm_status parse_merge(fmi_bpe *m, size_t rank, const fm_json *v)
{
    fm_span s = fm_json_str(v);

    if (s.data) {
        const uint8_t *sp = memchr(s.data, ' ', s.len);
        size_t n = sp ? (size_t)(sp - s.data) : 0;
        if (!sp || n == 0 || n + 1 == s.len || memchr(sp + 1, ' ', s.len - n - 1))
            return fm_fail(FM_ECORRUPT, "tokenizer.json: model.merges[%zu] is not a pair", rank);
        return merge_put(m, rank, fm_span_of(s.data, n), fm_span_of(sp + 1, s.len - n - 1));
    }
    fm_span a = fm_json_str(fm_json_at(v, 0)), b = fm_json_str(fm_json_at(v, 1));
    if (fm_json_count(v) != 2 || !a.data || !b.data)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: model.merges[%zu] is not a pair", rank);
    return merge_put(m, rank, a, b);
}

static fm_status parse_merges(fmi_bpe *m, const fm_json *list)
{
    size_t count = fm_json_count(list), n = 16;

    if (!fm_json_is(list, FM_JSON_ARRAY) || count > FM_TOK_VOCAB_MAX)
        return fm_fail(FM_EINVAL, "tokenizer.json: model.merges must be a list (at most %zu)",
                       FM_TOK_VOCAB_MAX);
    while (n < count * 2 + 1)
        n *= 2;
    m->merge = fm_malloc(n * sizeof *m->merge);
    if (!m->merge)
        return FM_ENOMEM;
    memset(m->merge, 0xff, n * sizeof *m->merge);
    m->merge_mask = n - 1;
    for (size_t i = 0; i < count; i++) {
        FM_TRY(parse_merge(m, i, fm_json_at(list, i)));
    }
    return FM_OK;
}

/* ---- reading ---- */

/* Refuses options that would make encoding random. */
static fm_status refuse_options(const fm_json *model)
{
    const fm_json *v = fm_json_get(model, "dropout");

    if (fm_json_typeof(v) == FM_JSON_NULL || fm_json_real(v, 1) == 0)
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED, "tokenizer.json: model.dropout is not implemented");
}

/* Reads the text that is put before every character but a word's first, or behind its last. */
static fm_status parse_affix(fmi_affix *out, const fm_json *model, const char *key)
{
    const fm_json *v = fm_json_get(model, key);
    fm_span s = fm_json_str(v);

    if (fm_json_typeof(v) == FM_JSON_NULL)
        return FM_OK;
    if (!s.data || s.len > sizeof out->text)
        return fm_fail(FM_EUNSUPPORTED, "tokenizer.json: model.%s must be a short text", key);
    memcpy(out->text, s.data, s.len);
    out->len = s.len;
    return FM_OK;
}

static fm_status parse_unk(fmi_bpe *m, const fm_json *v)
{
    fm_span s = fm_json_str(v);

    m->unk = NO_ID;
    if (!s.data)
        return FM_OK;
    int32_t id = fmi_vocab_find(&m->vocab, s);
    if (id < 0)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: model.unk_token is not in the vocabulary");
    m->unk = (uint32_t)id;
    return FM_OK;
}

static void fill_quick(fmi_bpe *m)
{
    for (uint32_t c = 0; c < FM_ARRAY_LEN(m->quick); c++) {
        uint8_t b[4];
        m->quick[c] = (uint32_t)fmi_vocab_find(&m->vocab, fm_span_of(b, fm_utf8_put(b, c)));
    }
    fmi_byte_ids(m->byte_id, &m->vocab);
}

static fm_status parse(fmi_bpe *m, const fm_json *model)
{
    static const char field[] = "tokenizer.json: model";
    fm_status rc;

    if ((rc = refuse_options(model)) < 0 ||
        (rc = parse_affix(&m->inside, model, "continuing_subword_prefix")) < 0 ||
        (rc = parse_affix(&m->last, model, "end_of_word_suffix")) < 0 ||
        (rc = fmi_need_bool(&m->fuse_unk, model, "fuse_unk", false, field)) < 0 ||
        (rc = fmi_need_bool(&m->byte_fallback, model, "byte_fallback", false, field)) < 0 ||
        (rc = fmi_need_bool(&m->ignore_merges, model, "ignore_merges", false, field)) < 0 ||
        (rc = fmi_vocab_parse(&m->vocab, fm_json_get(model, "vocab"))) < 0 ||
        (rc = parse_unk(m, fm_json_get(model, "unk_token"))) < 0)
        return rc;
    fill_quick(m);
    return parse_merges(m, fm_json_get(model, "merges"));
}

fm_status fmi_bpe_new(fmi_bpe **out, const fm_json *model)
{
    fmi_bpe *m = fm_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return FM_ENOMEM;
    fm_status rc = parse(m, model);
    if (rc < 0) {
        fmi_bpe_free(m);
        return rc;
    }
    *out = m;
    return FM_OK;
}

void fmi_bpe_free(fmi_bpe *m)
{
    if (!m)
        return;
    fmi_vocab_release(&m->vocab);
    fm_free(m->merge);
    fm_free(m);
}

/* ---- encoding ---- */

static bool put_fallback(const fmi_bpe *m, fmi_tok_scratch *s, size_t *n, const uint8_t *c,
                         size_t len)
{
    if (!m->byte_fallback)
        return false;
    for (size_t i = 0; i < len; i++)
        if (m->byte_id[c[i]] < 0)
            return false;
    for (size_t i = 0; i < len; i++)
        s->sym[(*n)++].id = (uint32_t)m->byte_id[c[i]];
    return true;
}

/* The id of the character at word[i] with its affixes; text[0..*len) is the text that falls back to
 * bytes where there is no id. */
static uint32_t symbol_at(const fmi_bpe *m, fm_span word, size_t i, uint8_t *text, size_t *len)
{
    uint32_t cp;
    size_t n = fm_utf8_next(word.data + i, &cp);
    bool first = i == 0, last = i + n == word.len;
    size_t at = 0;

    if ((first || m->inside.len == 0) && (!last || m->last.len == 0)) {
        memcpy(text, word.data + i, n);
        *len = n;
        return cp < FM_ARRAY_LEN(m->quick)
                   ? m->quick[cp]
                   : (uint32_t)fmi_vocab_find(&m->vocab, fm_span_of(text, n));
    }
    if (!first) {
        memcpy(text, m->inside.text, m->inside.len);
        at = m->inside.len;
    }
    memcpy(text + at, word.data + i, n);
    at += n;
    if (last) {
        memcpy(text + at, m->last.text, m->last.len);
        at += m->last.len;
    }
    *len = at;
    return (uint32_t)fmi_vocab_find(&m->vocab, fm_span_of(text, at));
}

/* Turns characters into ids. A character that the vocabulary lacks becomes bytes, else unk, else
 * nothing. As in `tokenizers`, an unk is written when the next known character comes, behind later
 * bytes. */
static fm_status first_symbols(const fmi_bpe *m, fmi_tok_scratch *s, fm_span word, size_t *count)
{
    size_t n = 0, room = word.len + m->last.len, next = 0;
    bool unk_open = false;

    if (m->inside.len > 0)
        room += m->inside.len * word.len; /* prefixes fall back to bytes too */
    if (room > s->sym_cap) {
        FM_TRY(fm_grow(&s->sym, &s->sym_cap, room, sizeof *s->sym));
    }
    for (size_t i = 0; i < word.len;) {
        uint8_t text[2 * sizeof m->last.text + 4];
        uint32_t cp;
        size_t len;
        FM_TRY(fm_go_on_at(i, &next));
        uint32_t id = symbol_at(m, word, i, text, &len);
        i += fm_utf8_next(word.data + i, &cp);
        if (id == NO_ID && put_fallback(m, s, &n, text, len))
            continue;
        if (unk_open && (id != NO_ID || !m->fuse_unk))
            s->sym[n++].id = m->unk;
        unk_open = id == NO_ID && m->unk != NO_ID;
        if (id != NO_ID)
            s->sym[n++].id = id;
    }
    if (unk_open)
        s->sym[n++].id = m->unk;
    *count = n;
    return FM_OK;
}

static size_t merge_scan(const fmi_bpe *m, struct fmi_symbol *sym, size_t n)
{
    const merge_slot *found[SCAN_MAX]; /* of the pair (i, i + 1) */

    for (size_t i = 0; i + 1 < n; i++)
        found[i] = merge_find(m, sym[i].id, sym[i + 1].id);
    while (n > 1) {
        const merge_slot *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (found[i] && (!best || found[i]->rank < best->rank)) {
                best = found[i];
                at = i;
            }
        }
        if (!best)
            break;
        sym[at].id = best->id;
        for (size_t i = at + 1; i + 1 < n; i++) {
            sym[i].id = sym[i + 1].id;
            found[i] = i + 2 < n ? found[i + 1] : NULL;
        }
        n--;
        if (at > 0)
            found[at - 1] = merge_find(m, sym[at - 1].id, sym[at].id);
        if (at + 1 < n)
            found[at] = merge_find(m, sym[at].id, sym[at + 1].id);
    }
    return n;
}

static void heap_down(fmi_heap_item *h, size_t n, size_t i)
{
    fmi_heap_item item = h[i];

    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && h[c + 1].key < h[c].key)
            c++;
        if (h[c].key >= item.key)
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = item;
}

static void heap_up(fmi_heap_item *h, size_t i)
{
    fmi_heap_item item = h[i];

    while (i > 0 && h[(i - 1) / 2].key > item.key) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = item;
}

static void heap_push(const fmi_bpe *m, fmi_tok_scratch *s, size_t *n, uint32_t left,
                      uint32_t right)
{
    const merge_slot *f = merge_find(m, s->sym[left].id, s->sym[right].id);

    if (!f)
        return;
    s->heap[*n].key = (uint64_t)f->rank << 32 | left;
    s->heap[*n].pair = f->pair;
    s->heap[*n].id = f->id;
    heap_up(s->heap, (*n)++);
}

/* Each merge adds at most two pairs and ends one symbol, so 3 n items are enough. */
static fm_status merge_heap(const fmi_bpe *m, fmi_tok_scratch *s, size_t *count)
{
    size_t n = *count, items = 0, turns = 0, next = 0;
    struct fmi_symbol *sym = s->sym;

    FM_TRY(fm_grow(&s->heap, &s->heap_cap, 3 * n, sizeof *s->heap));
    for (uint32_t i = 0; i < n; i++) {
        sym[i].prev = i == 0 ? NO_ID : i - 1;
        sym[i].next = i + 1 == n ? NO_ID : i + 1;
    }
    for (uint32_t i = 0; i + 1 < n; i++) {
        FM_TRY(fm_go_on_at(turns++, &next));
        heap_push(m, s, &items, i, i + 1);
    }
    while (items > 0) {
        FM_TRY(fm_go_on_at(turns++, &next));
        fmi_heap_item top = s->heap[0];
        s->heap[0] = s->heap[--items];
        if (items > 0)
            heap_down(s->heap, items, 0);
        uint32_t left = (uint32_t)top.key, right = sym[left].next;
        if (sym[left].id != (uint32_t)(top.pair >> 32) || right == NO_ID ||
            sym[right].id != (uint32_t)top.pair)
            continue; /* stale: one of the two was merged since */
        sym[left].id = top.id;
        sym[left].next = sym[right].next;
        sym[right].id = NO_ID;
        if (sym[left].next != NO_ID) {
            sym[sym[left].next].prev = left;
            heap_push(m, s, &items, left, sym[left].next);
        }
        if (sym[left].prev != NO_ID)
            heap_push(m, s, &items, sym[left].prev, left);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (sym[i].id != NO_ID)
            sym[kept++].id = sym[i].id;
    *count = kept;
    return FM_OK;
}

fm_status fmi_bpe_encode(const fmi_bpe *m, fmi_tok_scratch *s, fm_span word, fm_ids *out)
{
    size_t n = 0;

    if (m->ignore_merges) {
        int32_t id = fmi_vocab_find(&m->vocab, word);
        if (id >= 0)
            return fm_ids_push(out, id);
    }
    FM_TRY(first_symbols(m, s, word, &n));
    if (n > SCAN_MAX)
        FM_TRY(merge_heap(m, s, &n));
    else
        n = merge_scan(m, s->sym, n);
    for (size_t i = 0; i < n; i++)
        FM_TRY(fm_ids_push(out, (int32_t)s->sym[i].id));
    return FM_OK;
}
