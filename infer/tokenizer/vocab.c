/* vocab.c - shared by the kinds of models: the vocabulary, a hash from text to id with the texts in
 * one arena; and a prefix tree over token texts, to find the tokens that begin at a place. */
#include "infer/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

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

    if (id >= v->id_cap) {
        FM_TRY(fm_grow(&v->off, &cap_off, (size_t)id + 1, sizeof *v->off));
        FM_TRY(fm_grow(&v->len, &cap_len, cap_off, sizeof *v->len));
        v->id_cap = FM_MIN(cap_off, cap_len);
    }
    for (; v->size <= id; v->size++)
        v->len[v->size] = UINT32_MAX;
    if ((v->used + 1) * 2 > (v->slot ? v->slot_mask + 1 : 0))
        FM_TRY(vocab_rehash(v));
    if (v->bytes_len + len > v->bytes_cap)
        FM_TRY(fm_grow(&v->bytes, &v->bytes_cap, v->bytes_len + len, 1));
    return FM_OK;
}

fm_status fmi_vocab_put(fmi_vocab *v, fm_span text, uint32_t id)
{
    if (id >= FM_TOK_VOCAB_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer.json: token id %u is beyond %zu", id,
                       FM_TOK_VOCAB_MAX);
    if (text.len > FMI_TOK_TOKEN_MAX || v->bytes_len > UINT32_MAX - FMI_TOK_TOKEN_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer.json: token %u is %zu bytes long (at most %d)", id,
                       text.len, FMI_TOK_TOKEN_MAX);
    FM_TRY(vocab_room(v, id, text.len));
    if (v->len[id] != UINT32_MAX)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: two tokens have id %u", id);
    size_t i = vocab_slot(v, text);
    if (v->slot[i] != 0 && !v->twice_ok)
        return fm_fail(FM_ECORRUPT, "tokenizer.json: a token text has ids %u and %u",
                       v->slot[i] - 1, id);
    if (text.len > 0)
        memcpy(v->bytes + v->bytes_len, text.data, text.len);
    v->off[id] = (uint32_t)v->bytes_len;
    v->len[id] = (uint32_t)text.len;
    v->bytes_len += text.len;
    v->used += v->slot[i] == 0;
    v->slot[i] = id + 1;
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

void fmi_byte_ids(int32_t out[256], const fmi_vocab *v)
{
    static const char hex[] = "0123456789ABCDEF";

    for (uint32_t c = 0; c < 256; c++) {
        uint8_t b[6] = {'<', '0', 'x', (uint8_t)hex[c >> 4], (uint8_t)hex[c & 15], '>'};
        out[c] = fmi_vocab_find(v, fm_span_of(b, 6));
    }
}

fm_status fmi_vocab_parse(fmi_vocab *out, const fm_json *v)
{
    if (!fm_json_is(v, FM_JSON_OBJECT) || fm_json_count(v) == 0)
        return fm_fail(FM_EINVAL, "tokenizer.json: model.vocab must be a filled object");
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it)) {
        int64_t id = fm_json_int(fm_json_iter_value(it), -1);
        if (id < 0 || id >= (int64_t)FM_TOK_VOCAB_MAX)
            return fm_fail(FM_EINVAL, "tokenizer.json: model.vocab: '%.40s' has no valid id",
                           fm_json_iter_key(it));
        FM_TRY(fmi_vocab_put(out, fm_span_str(fm_json_iter_key(it)), (uint32_t)id));
    }
    return FM_OK;
}

/* ---- prefix tree ----
 * Nodes lie in breadth-first order, so that the children of one are neighbours, sorted by byte. */

struct fmi_ptree_node {
    uint32_t child; /* index of the first child */
    uint16_t count; /* of children */
    uint8_t byte;
    int32_t token; /* -1: no token ends here */
};

static int compare_keys(const void *a, const void *b)
{
    const fmi_ptree_key *x = a, *y = b;
    size_t n = FM_MIN(x->text.len, y->text.len);
    int c = n > 0 ? memcmp(x->text.data, y->text.data, n) : 0;

    if (c != 0)
        return c;
    if (x->text.len != y->text.len)
        return x->text.len < y->text.len ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static fm_status add_node(fmi_ptree *t, uint8_t byte, uint32_t *out)
{
    FM_TRY(fm_grow(&t->node, &t->cap, t->count + 1, sizeof *t->node));
    t->node[t->count] = (fmi_ptree_node){0, 0, byte, -1};
    *out = (uint32_t)t->count++;
    return FM_OK;
}

typedef struct range { /* of sorted keys that share the text of a node */
    size_t begin, end;
    uint32_t node, depth;
} range;

typedef struct queue {
    range *r;
    size_t count, cap;
} queue;

/* Adds the children of one node and puts their ranges into the queue. */
static fm_status grow_node(fmi_ptree *t, const fmi_ptree_key *key, range r, queue *q)
{
    fm_status rc = FM_OK;

    for (; r.begin < r.end && key[r.begin].text.len == r.depth; r.begin++)
        t->node[r.node].token = key[r.begin].token; /* of equal texts the last id is used */
    t->node[r.node].child = (uint32_t)t->count;
    while (rc == FM_OK && r.begin < r.end) {
        range kid = {r.begin, r.begin, 0, r.depth + 1};
        uint8_t byte = key[r.begin].text.data[r.depth];
        while (kid.end < r.end && key[kid.end].text.data[r.depth] == byte)
            kid.end++;
        rc = add_node(t, byte, &kid.node);
        FM_THEN(rc, fm_grow(&q->r, &q->cap, q->count + 1, sizeof *q->r));
        if (rc == FM_OK) {
            t->node[r.node].count++;
            q->r[q->count++] = kid;
        }
        r.begin = kid.end;
    }
    return rc;
}

fm_status fmi_ptree_build(fmi_ptree *t, fmi_ptree_key *key, size_t count)
{
    queue q = {NULL, 0, 0};
    size_t bytes = 1;
    uint32_t root;

    for (size_t i = 0; i < count; i++) {
        if (key[i].text.len > FMI_TOK_PIECE_MAX)
            return fm_fail(FM_ELIMIT, "tokenizer: token %d is %zu bytes long (at most %d)",
                           key[i].token, key[i].text.len, FMI_TOK_PIECE_MAX);
        bytes += key[i].text.len;
    }
    if (bytes > FMI_TOK_PTREE_MAX)
        return fm_fail(FM_ELIMIT, "tokenizer: a vocabulary of %zu bytes (at most %zu)", bytes,
                       FMI_TOK_PTREE_MAX);
    if (count > 0)
        qsort(key, count, sizeof *key, compare_keys);
    fm_status rc = add_node(t, 0, &root);
    FM_THEN(rc, grow_node(t, key, (range){0, count, 0, 0}, &q));
    for (size_t i = 0; i < q.count && rc == FM_OK; i++)
        rc = grow_node(t, key, q.r[i], &q);
    fm_free(q.r);
    for (uint32_t i = 0; rc == FM_OK && i < t->node[0].count; i++)
        t->first[t->node[1 + i].byte] = 1 + i;
    return rc;
}

uint32_t fmi_ptree_step(const fmi_ptree *t, uint32_t node, uint8_t byte)
{
    if (node == 0)
        return t->first[byte];
    const fmi_ptree_node *p = &t->node[node];
    uint32_t lo = p->child, hi = lo + p->count;
    while (hi - lo > 4) {
        uint32_t mid = (lo + hi) / 2;
        if (t->node[mid].byte > byte)
            hi = mid;
        else
            lo = mid;
    }
    for (; lo < hi; lo++)
        if (t->node[lo].byte == byte)
            return lo;
    return 0;
}

int32_t fmi_ptree_token(const fmi_ptree *t, uint32_t node)
{
    return t->node[node].token;
}

void fmi_ptree_release(fmi_ptree *t)
{
    fm_free(t->node);
    memset(t, 0, sizeof *t);
}

size_t fmi_ptree_longest(const fmi_ptree *t, fm_span text, int32_t *token)
{
    size_t end = 0;
    uint32_t node = 0;

    for (size_t i = 0; i < text.len; i++) {
        node = fmi_ptree_step(t, node, text.data[i]);
        if (node == 0)
            break;
        if (t->node[node].token >= 0) {
            *token = t->node[node].token;
            end = i + 1;
        }
    }
    return end;
}
