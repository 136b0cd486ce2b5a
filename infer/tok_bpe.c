/* tok_bpe.c - byte-pair encoding: a word's characters are merged, lowest rank first, leftmost
 * first among equals, until no neighbouring pair has a rank.
 *
 * Short words (nearly all) are merged by scanning; long ones through a heap, so that a megabyte
 * without a space does not take quadratic time. Pairs of ids are looked up in one open-addressed
 * table; it is built once and then only read. */
#include "infer/tok_internal.h"

#include <string.h>

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
    uint32_t id; /* what the pair becomes */
} fmi_heap_item;

struct fmi_bpe {
    fmi_vocab vocab;
    merge_slot *merge;
    size_t merge_mask;
    uint32_t quick[0x180]; /* ids of single characters below U+0180 */
    uint32_t byte_id[256]; /* ids of <0x00>.. <0xFF> */
    bool byte_fallback;    /* and all 256 may not exist: NO_ID */
    bool fuse_unk, ignore_merges;
    uint32_t unk;
};

/* ---- vocabulary ---- */

static uint64_t hash_bytes(const uint8_t *s, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len;

    for (; len >= 8; s += 8, len -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; len > 0; s++, len--)
        h = (h ^ *s) * 0x100000001b3u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

fm_span fmi_vocab_text(const fmi_vocab *v, int32_t id)
{
    if (id < 0 || (size_t)id >= v->size || v->len[id] == UINT32_MAX)
        return fm_span_of(NULL, 0);
    return fm_span_of(v->bytes + v->off[id], v->len[id]);
}

static size_t vocab_slot(const fmi_vocab *v, fm_span text)
{
    size_t i = (size_t)hash_bytes(text.data, text.len) & v->slot_mask;

    while (v->slot[i] != 0) {
        uint32_t id = v->slot[i] - 1;
        if (v->len[id] == text.len && memcmp(v->bytes + v->off[id], text.data, text.len) == 0)
            break;
        i = (i + 1) & v->slot_mask;
    }
    return i;
}

int32_t fmi_vocab_find(const fmi_vocab *v, fm_span text)
{
    if (!v->slot)
        return -1;
    return (int32_t)v->slot[vocab_slot(v, text)] - 1;
}

static fm_status vocab_rehash(fmi_vocab *v)
{
    size_t n = v->slot ? (v->slot_mask + 1) * 2 : 1024;
    uint32_t *old = v->slot;
    size_t old_n = old ? v->slot_mask + 1 : 0;
    uint32_t *slot = fm_calloc(n, sizeof *slot);

    if (!slot)
        return FM_ENOMEM;
    v->slot = slot;
    v->slot_mask = n - 1;
    for (size_t i = 0; i < old_n; i++)
        if (old[i])
            v->slot[vocab_slot(v, fmi_vocab_text(v, (int32_t)(old[i] - 1)))] = old[i];
    fm_free(old);
    return FM_OK;
}

static fm_status vocab_room(fmi_vocab *v, uint32_t id, size_t len)
{
    size_t cap_off = v->id_cap, cap_len = v->id_cap;
    fm_status rc = FM_OK;

    if (id >= v->id_cap) {
        rc = fm_grow(&v->off, &cap_off, (size_t)id + 1, sizeof *v->off);
        if (rc == FM_OK)
            rc = fm_grow(&v->len, &cap_len, cap_off, sizeof *v->len);
        if (rc < 0)
            return rc;
        v->id_cap = FM_MIN(cap_off, cap_len);
    }
    for (; v->size <= id; v->size++)
        v->len[v->size] = UINT32_MAX;
    if ((v->used + 1) * 2 > (v->slot ? v->slot_mask + 1 : 0))
        rc = vocab_rehash(v);
    if (rc == FM_OK && v->bytes_len + len > v->bytes_cap)
        rc = fm_grow(&v->bytes, &v->bytes_cap, v->bytes_len + len, 1);
    return rc;
}

fm_status fmi_vocab_put(fmi_vocab *v, fm_span text, uint32_t id)
{
    if (id >= FM_TOK_VOCAB_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer.json: token id %u is beyond %zu", id,
                       FM_TOK_VOCAB_MAX);
    if (text.len > FMI_TOK_TOKEN_MAX || v->bytes_len > UINT32_MAX - FMI_TOK_TOKEN_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer.json: token %u is %zu bytes long (at most %d)", id,
                       text.len, FMI_TOK_TOKEN_MAX);
    fm_status rc = vocab_room(v, id, text.len);
    if (rc < 0)
        return rc;
    if (v->len[id] != UINT32_MAX)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: two tokens have id %u", id);
    size_t i = vocab_slot(v, text);
    if (v->slot[i] != 0)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: a token text has ids %u and %u",
                       v->slot[i] - 1, id);
    if (text.len > 0)
        memcpy(v->bytes + v->bytes_len, text.data, text.len);
    v->off[id] = (uint32_t)v->bytes_len;
    v->len[id] = (uint32_t)text.len;
    v->bytes_len += text.len;
    v->slot[i] = id + 1;
    v->used++;
    return FM_OK;
}

void fmi_vocab_release(fmi_vocab *v)
{
    fm_free(v->bytes);
    fm_free(v->off);
    fm_free(v->len);
    fm_free(v->slot);
    memset(v, 0, sizeof *v);
}

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
    size_t len = left.len + right.len;
    int32_t a = fmi_vocab_find(&m->vocab, left), b = fmi_vocab_find(&m->vocab, right);

    if (a < 0 || b < 0)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: model.merges[%zu] names an unknown token",
                       rank);
    if (len > sizeof joined) {
        text = fm_malloc(len);
        if (!text)
            return FM_ENOMEM;
    }
    memcpy(text, left.data, left.len);
    memcpy(text + left.len, right.data, right.len);
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
        fm_status rc = parse_merge(m, i, fm_json_at(list, i));
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

/* ---- reading ---- */

static fm_status parse_vocab(fmi_bpe *m, const fm_json *v)
{
    if (!fm_json_is(v, FM_JSON_OBJECT) || fm_json_count(v) == 0)
        return fm_fail(FM_EINVAL, "tokenizer.json: model.vocab must be a filled object");
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it)) {
        int64_t id = fm_json_int(fm_json_iter_value(it), -1);
        if (id < 0 || id >= (int64_t)FM_TOK_VOCAB_MAX)
            return fm_fail(FM_EINVAL, "tokenizer.json: model.vocab: '%.40s' has no valid id",
                           fm_json_iter_key(it));
        fm_status rc = fmi_vocab_put(&m->vocab, fm_span_str(fm_json_iter_key(it)), (uint32_t)id);
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

/* Options that would change ids in ways not implemented must be absent, null, "" or 0. */
static fm_status refuse_options(const fm_json *model)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};

    for (size_t i = 0; i < FM_ARRAY_LEN(off); i++) {
        const fm_json *v = fm_json_get(model, off[i]);
        fm_span s = fm_json_str(v);
        bool zero =
            (fm_json_is(v, FM_JSON_REAL) || fm_json_is(v, FM_JSON_INT)) && fm_json_real(v, 1) == 0;
        if (fm_json_typeof(v) != FM_JSON_NULL && !zero && !(s.data && s.len == 0))
            return fm_fail(FM_EUNSUPPORTED, "tokenizer.json: model.%s is not implemented", off[i]);
    }
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
        m->quick[c] = (uint32_t)fmi_vocab_find(&m->vocab, fm_span_of(b, fmi_utf8_put(b, c)));
    }
    for (uint32_t c = 0; c < 256; c++) {
        static const char hex[] = "0123456789ABCDEF";
        uint8_t b[6] = {'<', '0', 'x', (uint8_t)hex[c >> 4], (uint8_t)hex[c & 15], '>'};
        m->byte_id[c] = (uint32_t)fmi_vocab_find(&m->vocab, fm_span_of(b, 6));
    }
}

static fm_status parse(fmi_bpe *m, const fm_json *model)
{
    static const char field[] = "tokenizer.json: model";
    const char *type = fm_json_cstr(fm_json_get(model, "type"), "BPE");
    fm_status rc;

    if (!fm_json_is(model, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "tokenizer.json: field 'model' must be an object");
    if (strcmp(type, "BPE") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: type '%s' is not implemented (BPE is)", field, type);
    if ((rc = refuse_options(model)) < 0 ||
        (rc = fmi_need_bool(&m->fuse_unk, model, "fuse_unk", false, field)) < 0 ||
        (rc = fmi_need_bool(&m->byte_fallback, model, "byte_fallback", false, field)) < 0 ||
        (rc = fmi_need_bool(&m->ignore_merges, model, "ignore_merges", false, field)) < 0 ||
        (rc = parse_vocab(m, fm_json_get(model, "vocab"))) < 0 ||
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

static bool put_fallback(const fmi_bpe *m, fmi_scratch *s, size_t *n, const uint8_t *c, size_t len)
{
    if (!m->byte_fallback)
        return false;
    for (size_t i = 0; i < len; i++)
        if (m->byte_id[c[i]] == NO_ID)
            return false;
    for (size_t i = 0; i < len; i++)
        s->sym[(*n)++].id = m->byte_id[c[i]];
    return true;
}

/* Characters to ids. What the vocabulary lacks becomes bytes, else unk, else nothing. */
static fm_status first_symbols(const fmi_bpe *m, fmi_scratch *s, fm_span word, size_t *count)
{
    size_t n = 0;
    bool unk_open = false;

    if (word.len > s->sym_cap) {
        fm_status rc = fm_grow(&s->sym, &s->sym_cap, word.len, sizeof *s->sym);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < word.len;) {
        uint32_t cp;
        size_t len = fmi_utf8_next(word.data + i, &cp);
        uint32_t id = cp < FM_ARRAY_LEN(m->quick)
                          ? m->quick[cp]
                          : (uint32_t)fmi_vocab_find(&m->vocab, fm_span_of(word.data + i, len));
        if (id != NO_ID) {
            s->sym[n++].id = id;
            unk_open = false;
        } else if (put_fallback(m, s, &n, word.data + i, len)) {
            unk_open = false;
        } else if (m->unk != NO_ID && !(unk_open && m->fuse_unk)) {
            s->sym[n++].id = m->unk;
            unk_open = true;
        }
        i += len;
    }
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

static void heap_push(const fmi_bpe *m, fmi_scratch *s, size_t *n, uint32_t left, uint32_t right)
{
    const merge_slot *f = merge_find(m, s->sym[left].id, s->sym[right].id);

    if (!f)
        return;
    s->heap[*n].key = (uint64_t)f->rank << 32 | left;
    s->heap[*n].pair = f->pair;
    s->heap[*n].id = f->id;
    heap_up(s->heap, (*n)++);
}

/* Each merge adds at most two pairs and ends one symbol: 3 n items are enough. */
static fm_status merge_heap(const fmi_bpe *m, fmi_scratch *s, size_t *count)
{
    size_t n = *count, items = 0;
    struct fmi_symbol *sym = s->sym;

    fm_status rc = fm_grow(&s->heap, &s->heap_cap, 3 * n, sizeof *s->heap);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        sym[i].prev = i == 0 ? NO_ID : i - 1;
        sym[i].next = i + 1 == n ? NO_ID : i + 1;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        heap_push(m, s, &items, i, i + 1);
    while (items > 0) {
        fmi_heap_item top = s->heap[0];
        s->heap[0] = s->heap[--items];
        if (items > 0)
            heap_down(s->heap, items, 0);
        uint32_t left = (uint32_t)top.key, right = sym[left].next;
        if (sym[left].id != (uint32_t)(top.pair >> 32) || right == NO_ID ||
            sym[right].id != (uint32_t)top.pair)
            continue; /* stale: one of them was merged since */
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

fm_status fmi_bpe_encode(const fmi_bpe *m, fmi_scratch *s, fm_span word, fm_ids *out)
{
    size_t n = 0;
    fm_status rc;

    if (m->ignore_merges) {
        int32_t id = fmi_vocab_find(&m->vocab, word);
        if (id >= 0)
            return fm_ids_push(out, id);
    }
    rc = first_symbols(m, s, word, &n);
    if (rc < 0)
        return rc;
    if (n > SCAN_MAX)
        rc = merge_heap(m, s, &n);
    else
        n = merge_scan(m, s->sym, n);
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        rc = fm_ids_push(out, (int32_t)s->sym[i].id);
    return rc;
}
