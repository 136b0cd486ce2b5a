/* chars.c - sets of code points, and how a character stands inside a JSON string: as itself
 * in UTF-8, or with the shortest escape where it must have one. */
#include "infer/grammar/internal.h"

#include <string.h>

#include "store/base/text/utf8.h"

#define LAST_CODE_POINT 0x10ffffu

/* ---- sets ---- */

fm_status gr_set_add(gr_set *s, uint32_t lo, uint32_t hi)
{
    size_t i = 0;

    if (lo > hi)
        return FM_OK;
    while (i < s->count && s->r[i].hi + 1 < lo)
        i++;
    size_t k = i; /* ranges [i, k) touch the new one and are merged into it */
    for (; k < s->count && s->r[k].lo <= hi + 1; k++) {
        lo = FM_MIN(lo, s->r[k].lo);
        hi = FM_MAX(hi, s->r[k].hi);
    }
    FM_TRY(fm_grow(&s->r, &s->cap, s->count + 1, sizeof *s->r));
    memmove(s->r + i + 1, s->r + k, (s->count - k) * sizeof *s->r);
    s->r[i] = (gr_range){lo, hi};
    s->count = s->count - (k - i) + 1;
    return FM_OK;
}

fm_status gr_set_invert(gr_set *s)
{
    gr_set out = {0};
    uint32_t at = 0;
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < s->count; i++) {
        if (s->r[i].lo > at)
            rc = gr_set_add(&out, at, s->r[i].lo - 1);
        at = s->r[i].hi + 1;
    }
    if (rc == FM_OK && at <= LAST_CODE_POINT)
        rc = gr_set_add(&out, at, LAST_CODE_POINT);
    gr_set_release(s);
    *s = out;
    return rc;
}

bool gr_set_has(const gr_set *s, uint32_t cp)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->r[i].lo <= cp && cp <= s->r[i].hi)
            return true;
    return false;
}

void gr_set_release(gr_set *s)
{
    fm_free(s->r);
    memset(s, 0, sizeof *s);
}

/* ---- UTF-8 ---- */

/* Writes code points whose UTF-8 bytes are a product of byte ranges. */
static fm_status product(gr_builder *b, uint32_t in, uint32_t out, uint32_t lo, uint32_t hi)
{
    uint8_t x[4], y[4];
    size_t n = fm_utf8_put(x, lo);
    fm_status rc = FM_OK;

    (void)fm_utf8_put(y, hi);
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        uint32_t next = out;
        if (i + 1 < n)
            rc = gr_node(b, &next);
        FM_THEN(rc, gr_bytes(b, in, next, x[i], y[i]));
        in = next;
    }
    return rc;
}

/* Writes lo..hi as products: cut where the length changes, and where a leading part would end in
 * the middle of a block. */
static fm_status utf8_range(gr_builder *b, uint32_t in, uint32_t out, uint32_t lo, uint32_t hi)
{
    static const uint32_t ends[] = {0x7f, 0x7ff, 0xd7ff, 0xffff, LAST_CODE_POINT};
    fm_status rc = FM_OK;

    while (rc == FM_OK && lo <= hi) {
        uint32_t end = hi;
        if (lo >= 0xd800 && lo <= 0xdfff) { /* surrogates are no characters */
            lo = 0xe000;
            continue;
        }
        for (size_t i = FM_ARRAY_LEN(ends); i-- > 0;)
            if (lo <= ends[i])
                end = FM_MIN(hi, ends[i]);
        for (int bits = 6; lo >= 0x80 && bits <= 18; bits += 6) {
            uint32_t block = (1u << bits) - 1;
            if ((lo & ~block) == (end & ~block))
                break;
            if (lo & block) { /* up to the end of lo's block */
                end = lo | block;
                break;
            }
            if ((end & block) != block)
                end = (end & ~block) - 1; /* whole blocks only */
        }
        rc = product(b, in, out, lo, end);
        lo = end + 1;
    }
    return rc;
}

/* ---- spelling ---- */

static fm_status hex_digits(gr_builder *b, uint32_t in, uint32_t out, unsigned value, int digits)
{
    fm_status rc = FM_OK;

    for (int i = digits - 1; rc == FM_OK && i >= 0; i--) {
        unsigned d = value >> (4 * i) & 15;
        uint32_t next = out;
        if (i > 0)
            rc = gr_node(b, &next);
        FM_THEN(rc, gr_bytes(b, in, next, d < 10 ? '0' + d : 'a' + d - 10,
                             d < 10 ? '0' + d : 'a' + d - 10));
        if (rc == FM_OK && d >= 10)
            rc = gr_bytes(b, in, next, 'A' + d - 10, 'A' + d - 10);
        in = next;
    }
    return rc;
}

static fm_status escaped(gr_builder *b, uint32_t in, uint32_t out, uint32_t cp)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *hit = cp ? strchr(from, (int)cp) : NULL;
    uint32_t mid, u;

    fm_status rc = gr_node(b, &mid);
    FM_THEN(rc, gr_bytes(b, in, mid, '\\', '\\'));
    if (rc < 0 || hit)
        return rc < 0 ? rc
                      : gr_bytes(b, mid, out, (uint8_t)to[hit - from], (uint8_t)to[hit - from]);
    rc = gr_node(b, &u);
    FM_THEN(rc, gr_bytes(b, mid, u, 'u', 'u'));
    return rc < 0 ? rc : hex_digits(b, u, out, cp, 4);
}

static bool needs_escape(uint32_t cp)
{
    return cp < 0x20 || cp == '"' || cp == '\\';
}

fm_status gr_chars(gr_builder *b, uint32_t in, uint32_t out, const gr_set *set, bool plain)
{
    for (size_t i = 0; i < set->count; i++) {
        uint32_t lo = set->r[i].lo, hi = set->r[i].hi;
        for (uint32_t cp = lo; cp <= hi && cp <= '\\'; cp++) {
            if (!needs_escape(cp))
                continue;
            if (cp > lo) /* the characters before it need no escape */
                FM_TRY(utf8_range(b, in, out, lo, cp - 1));
            if (!plain && cp > 0)
                FM_TRY(escaped(b, in, out, cp));
            lo = cp + 1;
        }
        if (lo <= hi)
            FM_TRY(utf8_range(b, in, out, lo, hi));
    }
    return FM_OK;
}

static fm_status hex_range(gr_builder *b, uint32_t in, uint32_t out, unsigned lo, unsigned hi)
{
    fm_status rc = gr_bytes(b, in, out, '0' + lo, '0' + FM_MIN(hi, 9u));

    if (rc == FM_OK && hi >= 10)
        rc = gr_bytes(b, in, out, 'a' + FM_MAX(lo, 10u) - 10, 'a' + hi - 10);
    return rc < 0 || hi < 10 ? rc : gr_bytes(b, in, out, 'A' + FM_MAX(lo, 10u) - 10, 'A' + hi - 10);
}

/* Writes \uXXXX from behind the u: four ranges of hexadecimal digits. */
static fm_status hex4(gr_builder *b, uint32_t in, uint32_t out, const uint8_t range[4][2])
{
    fm_status rc = FM_OK;

    for (int i = 0; rc == FM_OK && i < 4; i++) {
        uint32_t next = out;
        if (i < 3)
            rc = gr_node(b, &next);
        FM_THEN(rc, hex_range(b, in, next, range[i][0], range[i][1]));
        in = next;
    }
    return rc;
}

/* Any \u except NUL and a lone surrogate. */
static fm_status any_unicode_escape(gr_builder *b, uint32_t in, uint32_t out)
{
    static const uint8_t all[][4][2] = {
        {{0, 0}, {0, 0}, {0, 0}, {1, 15}},    {{0, 0}, {0, 0}, {1, 15}, {0, 15}},
        {{0, 0}, {1, 15}, {0, 15}, {0, 15}},  {{1, 12}, {0, 15}, {0, 15}, {0, 15}},
        {{13, 13}, {0, 7}, {0, 15}, {0, 15}}, {{14, 15}, {0, 15}, {0, 15}, {0, 15}}};
    static const uint8_t high[4][2] = {{13, 13}, {8, 11}, {0, 15}, {0, 15}};
    static const uint8_t low[4][2] = {{13, 13}, {12, 15}, {0, 15}, {0, 15}};
    uint32_t half, u;

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        FM_TRY(hex4(b, in, out, all[i]));
    FM_TRY(gr_node(b, &half));
    FM_TRY(gr_node(b, &u));
    FM_TRY(hex4(b, in, half, high));
    FM_TRY(gr_text(b, half, u, fm_span_str("\\u")));
    return hex4(b, u, out, low);
}

fm_status gr_any_char(gr_builder *b, uint32_t in, uint32_t out)
{
    gr_set all = {0};
    uint32_t mid, u;
    fm_status rc = gr_set_add(&all, 1, LAST_CODE_POINT);

    FM_THEN(rc, gr_chars(b, in, out, &all, true));
    gr_set_release(&all);
    FM_THEN(rc, gr_node(b, &mid));
    FM_THEN(rc, gr_node(b, &u));
    FM_THEN(rc, gr_bytes(b, in, mid, '\\', '\\'));
    for (const char *p = "\"\\/bfnrt"; rc == FM_OK && *p; p++)
        rc = gr_bytes(b, mid, out, (uint8_t)*p, (uint8_t)*p);
    FM_THEN(rc, gr_bytes(b, mid, u, 'u', 'u'));
    return rc < 0 ? rc : any_unicode_escape(b, u, out);
}

/* ---- names of undeclared properties ---- */

/* The characters with which names go on behind `prefix`; *whole: one of the names ends here. */
static fm_status continuations(gr_builder *b, gr_set *set, bool *whole, const fm_json *names,
                               fm_span prefix)
{
    fm_status rc = gr_work(b, 1 + fm_json_count(names));

    *whole = false;
    for (void *it = fm_json_iter(names); it && rc == FM_OK; it = fm_json_next(names, it)) {
        fm_span name = fm_span_str(fm_json_iter_key(it));
        uint32_t cp;
        if (!fm_span_starts(name, prefix))
            continue;
        *whole = *whole || name.len == prefix.len;
        if (name.len > prefix.len) {
            fm_utf8_next(name.data + prefix.len, &cp);
            rc = gr_set_add(set, cp, cp);
        }
    }
    return rc;
}

typedef struct name_trie {
    gr_builder *b;
    const fm_json *names;
    uint32_t other, close; /* states: the text is no declared name any more; after the quote */
} name_trie;

static fm_status name_node(name_trie *t, uint32_t node, fm_span prefix);

/* Writes the edge for cp to the node of the names that go on with it; once for each character. */
static fm_status name_child(name_trie *t, uint32_t node, fm_span prefix, uint32_t cp)
{
    for (void *it = fm_json_iter(t->names); it; it = fm_json_next(t->names, it)) {
        fm_span name = fm_span_str(fm_json_iter_key(it));
        uint32_t next, own;
        if (!fm_span_starts(name, prefix) || name.len == prefix.len)
            continue;
        size_t n = fm_utf8_next(name.data + prefix.len, &own);
        if (own != cp)
            continue;
        fm_status rc = gr_node(t->b, &next);
        FM_THEN(rc, utf8_range(t->b, node, next, cp, cp));
        return rc < 0 ? rc : name_node(t, next, fm_span_of(name.data, prefix.len + n));
    }
    return FM_OK;
}

static fm_status name_node(name_trie *t, uint32_t node, fm_span prefix)
{
    gr_set taken = {0}, rest = {0};
    bool whole;
    fm_status rc = continuations(t->b, &taken, &whole, t->names, prefix);

    if (rc == FM_OK && prefix.len > 0 && !whole)
        rc = gr_bytes(t->b, node, t->close, '"', '"');
    for (size_t i = 0; rc == FM_OK && i < taken.count; i++)
        rc = gr_set_add(&rest, taken.r[i].lo, taken.r[i].hi);
    FM_THEN(rc, gr_set_invert(&rest));
    FM_THEN(rc, gr_chars(t->b, node, t->other, &rest, true));
    for (size_t i = 0; rc == FM_OK && i < taken.count; i++)
        for (uint32_t cp = taken.r[i].lo; rc == FM_OK && cp <= taken.r[i].hi; cp++)
            if (!needs_escape(cp))
                rc = name_child(t, node, prefix, cp);
    gr_set_release(&taken);
    gr_set_release(&rest);
    return rc;
}

fm_status gr_other_name(gr_builder *b, uint32_t in, uint32_t out, const fm_json *names)
{
    name_trie t = {.b = b, .names = names, .close = out};
    gr_set all = {0};
    uint32_t first;
    fm_status rc = gr_set_add(&all, 0x20, LAST_CODE_POINT);

    for (void *it = fm_json_iter(names); it && rc == FM_OK; it = fm_json_next(names, it))
        if (strlen(fm_json_iter_key(it)) > 512) /* limits the recursion of name_node */
            rc = fm_fail(FM_ELIMIT, "%s: a property's name has more than 512 bytes", b->where);
    FM_THEN(rc, gr_node(b, &first));
    FM_THEN(rc, gr_node(b, &t.other));
    FM_THEN(rc, gr_bytes(b, in, first, '"', '"'));
    FM_THEN(rc, gr_chars(b, t.other, t.other, &all, true));
    FM_THEN(rc, gr_bytes(b, t.other, out, '"', '"'));
    FM_THEN(rc, name_node(&t, first, fm_span_of("", 0)));
    gr_set_release(&all);
    return rc;
}
