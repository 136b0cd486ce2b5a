/* regex.c - 'pattern': the part of ECMA regular expressions that is regular and means the same in
 * every engine. Literals, escapes, classes, groups, alternatives, quantifiers, ^ and $ at the ends.
 * The automaton is written while the pattern is read; a repeated part is read again. \d \w \s are
 * their ASCII sets; \D \W \S and negated classes that hold such a set are limited to ASCII too, so
 * that all engines agree. */
#include "infer/grammar/internal.h"

#include <string.h>

#include "infer/tokenizer/internal.h"

#define PATTERN_MAX 4096
#define GROUPS_MAX 32

typedef struct rx {
    gr_builder *b;
    fm_span s;
    size_t at;
    int groups;
} rx;

static fm_status alternatives(rx *x, uint32_t in, uint32_t out);

static fm_status bad(const rx *x, const char *what)
{
    return fm_fail(FM_EUNSUPPORTED, "%s: pattern '%.200s': %s at byte %zu", x->b->where,
                   (const char *)x->s.data, what, x->at);
}

static int peek(const rx *x, size_t ahead)
{
    return x->at + ahead < x->s.len ? x->s.data[x->at + ahead] : -1;
}

static bool take(rx *x, int c)
{
    bool hit = peek(x, 0) == c;

    x->at += hit;
    return hit;
}

/* ---- classes ---- */

static fm_status add_ranges(gr_set *set, const char *pairs, bool negated)
{
    gr_set s = {0};
    fm_status rc = FM_OK;

    for (; rc == FM_OK && *pairs; pairs += 2)
        rc = gr_set_add(&s, (uint8_t)pairs[0], (uint8_t)pairs[1]);
    if (rc == FM_OK && negated)
        rc = gr_set_invert(&s);
    for (size_t i = 0; rc == FM_OK && i < s.count && (!negated || s.r[i].lo < 0x80); i++)
        rc = gr_set_add(set, FM_MAX(s.r[i].lo, 1u), negated ? FM_MIN(s.r[i].hi, 0x7fu) : s.r[i].hi);
    gr_set_release(&s);
    return rc;
}

/* \d and the like; false: c is none of them. */
static bool shorthand(int c, gr_set *set, fm_status *rc)
{
    static const struct {
        char name;
        const char *pairs;
    } all[] = {{'d', "09"}, {'w', "09AZaz__"}, {'s', "\t\r  "}};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++) {
        if (c != all[i].name && c != all[i].name - 'a' + 'A')
            continue;
        *rc = add_ranges(set, all[i].pairs, c != all[i].name);
        return true;
    }
    return false;
}

static fm_status hex_escape(rx *x, size_t digits, uint32_t *cp)
{
    *cp = 0;
    for (size_t i = 0; i < digits; i++, x->at++) {
        int c = peek(x, 0), d = -1;
        if (c >= '0' && c <= '9')
            d = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            d = (c | 32) - 'a' + 10;
        if (d < 0)
            return bad(x, "a malformed escape");
        *cp = *cp << 4 | (uint32_t)d;
    }
    return *cp >= 0xd800 && *cp <= 0xdfff ? bad(x, "a surrogate") : FM_OK;
}

/* Reads an escape behind its backslash: one code point. */
static fm_status escape(rx *x, uint32_t *cp)
{
    static const char from[] = "nrtfv", to[] = "\n\r\t\f\v";
    int c = peek(x, 0);
    const char *hit = c > 0 ? strchr(from, c) : NULL;

    if (c < 0)
        return bad(x, "a backslash at the end");
    x->at++;
    if (c == 'x' || c == 'u')
        return hex_escape(x, c == 'x' ? 2 : 4, cp);
    *cp = hit ? (uint8_t)to[hit - from] : (uint32_t)c;
    if (!hit &&
        (c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
        x->at--;
        return bad(x, "an escape that is not supported");
    }
    return FM_OK;
}

static fm_status literal(rx *x, uint32_t *cp)
{
    if (x->at >= x->s.len)
        return bad(x, "an unexpected end");
    if (take(x, '\\'))
        return escape(x, cp);
    x->at += fm_utf8_next(x->s.data + x->at, cp);
    return FM_OK;
}

static fm_status class_item(rx *x, gr_set *set, bool *has_shorthand)
{
    uint32_t lo, hi;
    fm_status rc = FM_OK;

    if (peek(x, 0) == '\\' && shorthand(peek(x, 1), set, &rc)) {
        *has_shorthand = true;
        x->at += 2;
        return rc;
    }
    if (peek(x, 0) == '\\' && peek(x, 1) == 'b')
        return bad(x, "an escape that is not supported");
    if (peek(x, 0) == '[' && (peek(x, 1) == ':' || peek(x, 1) == '.' || peek(x, 1) == '='))
        return bad(x, "a named class");
    rc = literal(x, &lo);
    hi = lo;
    if (rc == FM_OK && peek(x, 0) == '-' && peek(x, 1) != ']' && peek(x, 1) >= 0) {
        x->at++;
        gr_set none = {0};
        if (peek(x, 0) == '\\' && shorthand(peek(x, 1), &none, &rc)) {
            gr_set_release(&none);
            return bad(x, "a range that ends in a class");
        }
        rc = literal(x, &hi);
        if (rc == FM_OK && hi < lo)
            return bad(x, "a range that is upside down");
    }
    return rc < 0 ? rc : gr_set_add(set, lo, hi);
}

/* Reads a class behind its '['. */
static fm_status class_of(rx *x, gr_set *set)
{
    bool negated = take(x, '^'), has_shorthand = false;
    fm_status rc = peek(x, 0) == ']' ? bad(x, "an empty class") : FM_OK;

    while (rc == FM_OK && !take(x, ']')) {
        if (peek(x, 0) < 0)
            return bad(x, "a class that is not closed");
        rc = class_item(x, set, &has_shorthand);
    }
    if (rc < 0 || !negated)
        return rc;
    rc = gr_set_invert(set);
    while (rc == FM_OK && has_shorthand && set->count > 0 && set->r[set->count - 1].hi > 0x7f) {
        if (set->r[set->count - 1].lo > 0x7f)
            set->count--;
        else
            set->r[set->count - 1].hi = 0x7f;
    }
    return rc;
}

/* ---- atoms ---- */

static fm_status any_text(rx *x, uint32_t in, uint32_t out)
{
    gr_set all = {0};
    uint32_t loop;
    fm_status rc = gr_set_add(&all, 1, 0x10ffff);

    FM_THEN(rc, gr_node(x->b, &loop));
    FM_THEN(rc, gr_empty(x->b, in, loop));
    FM_THEN(rc, gr_chars(x->b, loop, loop, &all, false));
    gr_set_release(&all);
    return rc < 0 ? rc : gr_empty(x->b, loop, out);
}

/* Reads a group behind its '('. */
static fm_status group(rx *x, uint32_t in, uint32_t out)
{
    fm_status rc;

    if (take(x, '?') && !take(x, ':'))
        return bad(x, "a group that is not supported");
    if (++x->groups > GROUPS_MAX)
        return bad(x, "too many groups inside one another");
    rc = alternatives(x, in, out);
    x->groups--;
    if (rc == FM_OK && !take(x, ')'))
        return bad(x, "a group that is not closed");
    return rc;
}

static fm_status one_char(rx *x, gr_set *set)
{
    uint32_t cp;
    fm_status rc = FM_OK;

    if (take(x, '['))
        return class_of(x, set);
    if (take(x, '.')) {
        rc = gr_set_add(set, 1, 9);
        FM_THEN(rc, gr_set_add(set, 11, 12));
        FM_THEN(rc, gr_set_add(set, 14, 0x2027));
        return rc < 0 ? rc : gr_set_add(set, 0x202a, 0x10ffff);
    }
    if (peek(x, 0) == '\\' && shorthand(peek(x, 1), set, &rc)) {
        x->at += 2;
        return rc;
    }
    if (peek(x, 0) >= 0 && strchr("^$*+?{)", peek(x, 0)))
        return bad(x, "an anchor or a quantifier that is not supported here");
    rc = literal(x, &cp);
    return rc < 0 ? rc : gr_set_add(set, cp, cp);
}

static fm_status atom(rx *x, uint32_t in, uint32_t out)
{
    gr_set set = {0};

    if (take(x, '('))
        return group(x, in, out);
    fm_status rc = one_char(x, &set);
    FM_THEN(rc, gr_chars(x->b, in, out, &set, false));
    gr_set_release(&set);
    return rc;
}

/* ---- quantifiers ---- */

static bool number(rx *x, uint32_t *out)
{
    size_t begin = x->at;

    for (*out = 0; peek(x, 0) >= '0' && peek(x, 0) <= '9' && *out < 100000; x->at++)
        *out = *out * 10 + (uint32_t)(peek(x, 0) - '0');
    return x->at > begin;
}

/* Reads a quantifier; without one, once. *most GR_NONE: no limit. */
static fm_status quantifier(rx *x, uint32_t *least, uint32_t *most)
{
    *least = *most = 1;
    if (take(x, '*')) {
        *least = 0;
        *most = GR_NONE;
    } else if (take(x, '+')) {
        *most = GR_NONE;
    } else if (take(x, '?')) {
        *least = 0;
    } else if (take(x, '{')) {
        if (!number(x, least))
            return bad(x, "a quantifier that is not supported");
        *most = *least;
        if (take(x, ',') && !number(x, most))
            *most = GR_NONE;
        if (!take(x, '}') || *most < *least)
            return bad(x, "a malformed quantifier");
    } else {
        return FM_OK;
    }
    (void)take(x, '?'); /* a lazy quantifier matches the same texts */
    if (peek(x, 0) == '+' || peek(x, 0) == '*')
        return bad(x, "a quantifier that is not supported");
    if (*least > FM_GRAMMAR_REPEAT_MAX || (*most != GR_NONE && *most > FM_GRAMMAR_REPEAT_MAX))
        return bad(x, "too many repetitions");
    return FM_OK;
}

/* Writes atom{least,most}, reading the atom at `begin` anew each time. */
static fm_status repeat(rx *x, size_t begin, uint32_t in, uint32_t out, uint32_t least,
                        uint32_t most)
{
    uint32_t copies = most == GR_NONE ? least : most, next;
    size_t end = x->at;
    fm_status rc = FM_OK;

    for (uint32_t i = 0; rc == FM_OK && i < copies; i++) {
        if (i >= least)
            rc = gr_empty(x->b, in, out);
        FM_THEN(rc, gr_node(x->b, &next));
        x->at = begin;
        FM_THEN(rc, atom(x, in, next));
        in = next;
    }
    if (rc == FM_OK && most == GR_NONE) { /* a new node, since `in` may have other edges */
        rc = gr_node(x->b, &next);
        FM_THEN(rc, gr_empty(x->b, in, next));
        x->at = begin;
        FM_THEN(rc, atom(x, next, next));
        in = next;
    }
    x->at = end;
    return rc < 0 ? rc : gr_empty(x->b, in, out);
}

/* Skips one atom without writing it; a malformed one is found when it is written. */
static void skip_atom(rx *x)
{
    int open = 0;
    bool in_class = false;

    do {
        int c = peek(x, 0);
        x->at++;
        if (c == '\\')
            x->at += peek(x, 0) == 'x' ? 3 : peek(x, 0) == 'u' ? 5 : 1;
        else if (in_class)
            in_class = c != ']';
        else if (c == '[')
            in_class = true;
        else if (c == '(' || c == ')')
            open += c == '(' ? 1 : -1;
        else if (c >= 0x80)
            while ((peek(x, 0) & 0xc0) == 0x80 && peek(x, 0) >= 0)
                x->at++;
    } while ((open > 0 || in_class) && x->at < x->s.len);
    x->at = FM_MIN(x->at, x->s.len);
}

static fm_status piece(rx *x, uint32_t in, uint32_t out)
{
    size_t begin = x->at;
    uint32_t least, most;

    skip_atom(x);
    FM_TRY(quantifier(x, &least, &most));
    return repeat(x, begin, in, out, least, most);
}

static bool at_end(const rx *x)
{
    return peek(x, 0) < 0 || peek(x, 0) == '|' || (peek(x, 0) == ')' && x->groups > 0);
}

static fm_status sequence(rx *x, uint32_t in, uint32_t out)
{
    bool top = x->groups == 0;
    uint32_t next;
    fm_status rc = FM_OK;

    if (top && !take(x, '^')) {
        rc = gr_node(x->b, &next);
        FM_THEN(rc, any_text(x, in, next));
        in = next;
    }
    if (rc == FM_OK) { /* a loop must not lead back into the part before it */
        rc = gr_node(x->b, &next);
        FM_THEN(rc, gr_empty(x->b, in, next));
        in = next;
    }
    while (rc == FM_OK && !at_end(x) && !(top && peek(x, 0) == '$')) {
        rc = gr_node(x->b, &next);
        FM_THEN(rc, piece(x, in, next));
        in = next;
    }
    if (rc < 0)
        return rc;
    if (top && take(x, '$'))
        return at_end(x) ? gr_empty(x->b, in, out) : bad(x, "'$' before the end");
    return top ? any_text(x, in, out) : gr_empty(x->b, in, out);
}

static fm_status alternatives(rx *x, uint32_t in, uint32_t out)
{
    FM_TRY(sequence(x, in, out));

    while (take(x, '|'))
        FM_TRY(sequence(x, in, out));
    return FM_OK;
}

fm_status gr_pattern(gr_builder *b, uint32_t in, uint32_t out, fm_span pattern)
{
    rx x = {.b = b, .s = pattern};

    if (pattern.len > PATTERN_MAX)
        return fm_fail(FM_ELIMIT, "%s: a pattern of %zu bytes (at most %d)", b->where, pattern.len,
                       PATTERN_MAX);
    fm_status rc = alternatives(&x, in, out);
    return rc == FM_OK && x.at < x.s.len ? bad(&x, "an unexpected character") : rc;
}
