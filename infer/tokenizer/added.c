/* added.c - added tokens: texts that are one token wherever they stand. They are found before the
 * other steps, leftmost first, of several at one place the longest. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

typedef struct trie_node {
    uint32_t child, sibling; /* 0 = none; node 0 is the root */
    uint32_t token;          /* index + 1 into the added tokens; 0 = none ends here */
    uint8_t byte;
} trie_node;

struct fmi_trie {
    uint32_t root[256]; /* first byte -> node */
    trie_node *node;
    size_t count, cap;
};

static const char field[] = "tokenizer.json: added_tokens";

static fm_status parse_one(fmi_added *a, const fm_json *v)
{
    fm_span text = fm_json_str(fm_json_get(v, "content"));
    int64_t id = fm_json_int(fm_json_get(v, "id"), -1);
    fm_status rc;

    if (text.len > FMI_TOK_PIECE_MAX)
        return fm_fail(FM_ELIMIT, "%s[%zu]: 'content' of %zu bytes (at most %d)", field, a->count,
                       text.len, FMI_TOK_PIECE_MAX);
    if (!text.data || id < 0 || id >= (int64_t)FM_TOK_VOCAB_MAX)
        return fm_fail(FM_EINVAL, "%s[%zu]: needs 'content' and a valid 'id'", field, a->count);
    rc = fm_grow(&a->tok, &a->cap, a->count + 1, sizeof *a->tok);
    if (rc < 0)
        return rc;
    fmi_added_token *t = &a->tok[a->count];
    memset(t, 0, sizeof *t);
    t->id = (int32_t)id;
    t->len = text.len;
    t->text = fm_strndup((const char *)text.data, text.len);
    if (!t->text)
        return FM_ENOMEM;
    a->count++;
    if ((rc = fmi_need_bool(&t->special, v, "special", false, field)) < 0 ||
        (rc = fmi_need_bool(&t->normalized, v, "normalized", !t->special, field)) < 0 ||
        (rc = fmi_need_bool(&t->lstrip, v, "lstrip", false, field)) < 0 ||
        (rc = fmi_need_bool(&t->rstrip, v, "rstrip", false, field)) < 0)
        return rc;
    return fmi_need_bool(&t->single_word, v, "single_word", false, field);
}

fm_status fmi_added_parse(fmi_added *out, const fm_json *list)
{
    if (fm_json_typeof(list) == FM_JSON_NULL)
        return FM_OK;
    if (!fm_json_is(list, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "%s: must be a list", field);
    for (size_t i = 0; i < fm_json_count(list); i++) {
        FM_TRY(parse_one(out, fm_json_at(list, i)));
    }
    return FM_OK;
}

static fm_status new_node(fmi_trie *t, uint8_t byte, uint32_t *out)
{
    FM_TRY(fm_grow(&t->node, &t->cap, t->count + 1, sizeof *t->node));
    memset(&t->node[t->count], 0, sizeof *t->node);
    t->node[t->count].byte = byte;
    *out = (uint32_t)t->count++;
    return FM_OK;
}

static uint32_t child_of(const fmi_trie *t, uint32_t node, uint8_t byte)
{
    uint32_t c = t->node[node].child;

    while (c != 0 && t->node[c].byte != byte)
        c = t->node[c].sibling;
    return c;
}

static fm_status trie_put(fmi_trie *t, fm_span text, uint32_t token)
{
    uint32_t at = t->root[text.data[0]];

    if (at == 0) {
        FM_TRY(new_node(t, text.data[0], &at));
        t->root[text.data[0]] = at;
    }
    for (size_t i = 1; i < text.len; i++) {
        uint32_t c = child_of(t, at, text.data[i]);
        if (c == 0) {
            FM_TRY(new_node(t, text.data[i], &c));
            t->node[c].sibling = t->node[at].child;
            t->node[at].child = c;
        }
        at = c;
    }
    if (t->node[at].token == 0)
        t->node[at].token = token + 1;
    return FM_OK;
}

static fm_status trie_new(fmi_trie **out)
{
    uint32_t root;

    *out = fm_calloc(1, sizeof **out);
    return *out ? new_node(*out, 0, &root) : FM_ENOMEM;
}

fm_status fmi_added_build(fmi_added *a, const fmi_norms *ns, fmi_tok_scratch *s)
{
    FM_TRY(trie_new(&a->raw));

    FM_TRY(trie_new(&a->normalized));
    for (size_t i = 0; i < a->count; i++) {
        fm_span text = fm_span_of(a->tok[i].text, a->tok[i].len);
        if (a->tok[i].normalized)
            FM_TRY(fmi_norms_run(ns, s, text, &text));
        if (text.len > FMI_TOK_PIECE_MAX)
            return fm_fail(FM_ELIMIT,
                           "%s[%zu]: 'content' of %zu bytes when normalized (at most %d)", field, i,
                           text.len, FMI_TOK_PIECE_MAX);
        a->tok[i].shown = fm_strndup((const char *)text.data, text.len);
        a->tok[i].shown_len = text.len;
        FM_TRY(a->tok[i].shown ? FM_OK : FM_ENOMEM);
        if (text.len > 0)
            FM_TRY(trie_put(a->tok[i].normalized ? a->normalized : a->raw, text, (uint32_t)i));
    }
    return FM_OK;
}

void fmi_added_release(fmi_added *a)
{
    fmi_trie *both[2] = {a->raw, a->normalized};

    for (size_t i = 0; i < a->count; i++) {
        fm_free(a->tok[i].text);
        fm_free(a->tok[i].shown);
    }
    fm_free(a->tok);
    for (size_t i = 0; i < 2; i++) {
        if (both[i])
            fm_free(both[i]->node);
        fm_free(both[i]);
    }
    memset(a, 0, sizeof *a);
}

/* Longest token at text[at]; its end, or 0. */
static size_t match_at(const fmi_trie *t, fm_span text, size_t at, uint32_t *token)
{
    uint32_t n = t->root[text.data[at]];
    size_t end = 0;

    while (n != 0) {
        at++;
        if (t->node[n].token != 0) {
            *token = t->node[n].token - 1;
            end = at;
        }
        n = at < text.len ? child_of(t, n, text.data[at]) : 0;
    }
    return end;
}

static bool word_before(fm_span text, size_t at)
{
    uint32_t cp;

    if (at == 0)
        return false;
    do
        at--;
    while (at > 0 && (text.data[at] & 0xc0) == 0x80);
    fm_utf8_next(text.data + at, &cp);
    return fmi_is_word(cp);
}

static bool word_after(fm_span text, size_t at)
{
    uint32_t cp;

    if (at == text.len)
        return false;
    fm_utf8_next(text.data + at, &cp);
    return fmi_is_word(cp);
}

static size_t strip_back(fm_span text, size_t at)
{
    while (at > 0) {
        size_t p = at - 1;
        uint32_t cp;
        while (p > 0 && (text.data[p] & 0xc0) == 0x80)
            p--;
        fm_utf8_next(text.data + p, &cp);
        if (!fmi_is_space(cp))
            break;
        at = p;
    }
    return at;
}

static size_t strip_forward(fm_span text, size_t at)
{
    while (at < text.len) {
        uint32_t cp;
        size_t n = fm_utf8_next(text.data + at, &cp);
        if (!fmi_is_space(cp))
            break;
        at += n;
    }
    return at;
}

bool fmi_added_marked(const fmi_added_scan *sc, size_t begin, size_t end)
{
    size_t lo = 0, hi = sc->marks;

    while (lo < hi) { /* the first mark behind begin */
        size_t mid = (lo + hi) / 2;
        if (sc->mark[mid] <= begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sc->marks && sc->mark[lo] < end;
}

/* Whether the match [begin, end) counts. Widens it by spaces that lstrip and rstrip include. */
static bool accept(const fmi_added_scan *sc, const fmi_added_token *t, size_t *begin, size_t *end)
{
    if (t->special && (sc->plain || fmi_added_marked(sc, *begin, *end)))
        return false;
    if (t->single_word && (word_before(sc->text, *begin) || word_after(sc->text, *end)))
        return false;
    if (t->lstrip)
        *begin = FM_MAX(strip_back(sc->text, *begin), sc->pos);
    if (t->rstrip)
        *end = strip_forward(sc->text, *end);
    return true;
}

static bool emit(fmi_added_scan *sc, size_t begin, size_t end, int32_t id, fmi_segment *out)
{
    fmi_segment hit = {begin, end, id};

    if (begin <= sc->pos) {
        *out = hit;
    } else { /* returns the text before the match first */
        out->begin = sc->pos;
        out->end = begin;
        out->id = -1;
        sc->next = hit;
        sc->pending = true;
    }
    sc->pos = end;
    return true;
}

bool fmi_added_next(fmi_added_scan *sc, fmi_segment *out)
{
    if (sc->pending) {
        *out = sc->next;
        sc->pending = false;
        return true;
    }
    for (size_t turns = 1; sc->search < sc->text.len; turns++) {
        if (turns % 1024 == 0 && fm_go_on() < 0)
            return false;
        uint32_t token = 0;
        size_t begin = sc->search;
        size_t end = match_at(sc->trie, sc->text, begin, &token);
        if (end == 0) {
            sc->search++;
            continue;
        }
        sc->search = end;
        const fmi_added_token *t = &sc->added->tok[token];
        if (accept(sc, t, &begin, &end))
            return emit(sc, begin, end, t->id, out);
    }
    if (sc->pos >= sc->text.len)
        return false;
    out->begin = sc->pos;
    out->end = sc->text.len;
    out->id = -1;
    sc->pos = sc->text.len;
    return true;
}
