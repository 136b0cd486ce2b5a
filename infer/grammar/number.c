/* number.c - numbers as decimal text. A number with bounds is compared with them digit by digit:
 * the states hold whether the digits so far equal those of the lower or upper bound. Numbers have
 * at most 15 digits, since distinct decimals of so few digits stay distinct as doubles. */
#include "infer/grammar/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOO_LARGE 1e15

static fm_status digits(gr_builder *b, uint32_t in, uint32_t out, int at_most)
{
    fm_status rc = FM_OK;

    for (int i = 0; rc == FM_OK && i < at_most; i++) { /* `in` is the state before any digit */
        uint32_t next;
        rc = gr_node(b, &next);
        FM_THEN(rc, gr_bytes(b, in, next, '0', '9'));
        FM_THEN(rc, gr_empty(b, next, out));
        in = next;
    }
    return rc;
}

/* Without bounds: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)? within the limits of digits. */
static fm_status plain(gr_builder *b, uint32_t in, uint32_t out, bool integer)
{
    uint32_t sign, first, whole, dot, fraction, e, e_sign;
    fm_status rc = gr_node(b, &sign);

    FM_THEN(rc, gr_node(b, &first));
    FM_THEN(rc, gr_node(b, &whole));
    FM_THEN(rc, gr_empty(b, in, sign));
    FM_THEN(rc, gr_bytes(b, in, sign, '-', '-'));
    FM_THEN(rc, gr_bytes(b, sign, whole, '0', '0'));
    FM_THEN(rc, gr_bytes(b, sign, first, '1', '9'));
    FM_THEN(rc, gr_empty(b, first, whole));
    FM_THEN(rc, digits(b, first, whole, GR_DIGITS - 1));
    FM_THEN(rc, gr_empty(b, whole, out));
    if (rc < 0 || integer)
        return rc;
    rc = gr_node(b, &dot);
    FM_THEN(rc, gr_node(b, &fraction));
    FM_THEN(rc, gr_node(b, &e));
    FM_THEN(rc, gr_node(b, &e_sign));
    FM_THEN(rc, gr_bytes(b, whole, dot, '.', '.'));
    FM_THEN(rc, digits(b, dot, fraction, GR_DIGITS));
    FM_THEN(rc, gr_empty(b, fraction, out));
    for (int i = 0; rc == FM_OK && i < 2; i++) {
        rc = gr_bytes(b, i ? whole : fraction, e, 'e', 'e');
        FM_THEN(rc, gr_bytes(b, i ? whole : fraction, e, 'E', 'E'));
        FM_THEN(rc, gr_bytes(b, e, e_sign, i ? '+' : '-', i ? '+' : '-'));
    }
    FM_THEN(rc, gr_empty(b, e, e_sign));
    return rc < 0 ? rc : digits(b, e_sign, out, 2);
}

/* ---- bounds ---- */

typedef struct decimal {
    uint8_t digit[40]; /* of the whole part, then of the fraction */
    int whole, count;
    bool open;  /* the bound itself is not allowed */
    bool given; /* false: no bound (a lower one: zero) */
} decimal;

/* |value| in the shortest digits that read back as the same double. */
static fm_status decimal_of(gr_builder *b, decimal *out, double value, bool open)
{
    char text[64];
    int precision = 0;

    memset(out, 0, sizeof *out);
    out->given = true;
    out->open = open;
    value = fabs(value);
    do
        (void)snprintf(text, sizeof text, "%.*f", precision, value);
    while (strtod(text, NULL) != value && ++precision < GR_DIGITS + 2);
    if (strtod(text, NULL) != value || strlen(text) > GR_DIGITS + 2)
        return fm_fail(FM_EUNSUPPORTED, "%s: a bound has more than %d digits", b->where, GR_DIGITS);
    for (const char *p = text; *p; p++) {
        if (*p == '.')
            out->whole = out->count;
        else
            out->digit[out->count++] = (uint8_t)(*p - '0');
    }
    if (!strchr(text, '.'))
        out->whole = out->count;
    return FM_OK;
}

static uint8_t digit_at(const decimal *d, int i)
{
    return i < d->count ? d->digit[i] : 0;
}

static bool zeros_from(const decimal *d, int i)
{
    for (; i < d->count; i++)
        if (d->digit[i])
            return false;
    return true;
}

/* State of writing the numbers between lo and hi with `whole` digits before the point. */
typedef struct walk {
    gr_builder *b;
    const decimal *lo, *hi;
    int whole;
    bool integer;
    uint32_t out;
    uint32_t node[GR_DIGITS + 1][2][2]; /* digits so far, on lo, on hi; + 1, 0: none yet */
} walk;

static bool may_end(const walk *w, int at, bool on_lo, bool on_hi)
{
    if (on_lo && (!zeros_from(w->lo, at) || w->lo->open))
        return false;
    return !(on_hi && w->hi->open && zeros_from(w->hi, at));
}

static fm_status node_of(walk *w, int at, bool on_lo, bool on_hi, uint32_t *out)
{
    uint32_t *kept = &w->node[at][on_lo][on_hi];
    fm_status rc = FM_OK;

    if (!*kept) {
        rc = gr_node(w->b, out);
        *kept = *out + 1;
    }
    *out = *kept - 1;
    return rc;
}

/* Writes the edges for the digit at position `at`. */
static fm_status one_digit(walk *w, uint32_t from, int at, bool on_lo, bool on_hi)
{
    unsigned first = at == 0 && w->whole > 1 ? 1 : 0;
    unsigned lo = on_lo ? digit_at(w->lo, at) : first, hi = on_hi ? digit_at(w->hi, at) : 9;

    for (unsigned d = FM_MAX(lo, first); d <= hi; d++) {
        uint32_t to;
        FM_TRY(node_of(w, at + 1, on_lo && d == lo, on_hi && d == hi, &to));
        FM_TRY(gr_bytes(w->b, from, to, '0' + d, '0' + d));
    }
    return FM_OK;
}

/* Writes what follows the state with `at` digits. */
static fm_status go_on(walk *w, int at, bool on_lo, bool on_hi)
{
    uint32_t from = w->node[at][on_lo][on_hi] - 1, dot = from;
    fm_status rc = FM_OK;

    if (at >= w->whole && may_end(w, at, on_lo, on_hi))
        rc = gr_empty(w->b, from, w->out);
    if (rc < 0 || at >= GR_DIGITS || (at >= w->whole && w->integer))
        return rc;
    if (at == w->whole) {
        rc = gr_node(w->b, &dot);
        FM_THEN(rc, gr_bytes(w->b, from, dot, '.', '.'));
    }
    return rc < 0 ? rc : one_digit(w, dot, at, on_lo, on_hi);
}

/* Numbers from lo (0 where not given) to hi, both without sign. */
static fm_status between(gr_builder *b, uint32_t in, uint32_t out, const decimal *lo,
                         const decimal *hi, bool integer)
{
    decimal zero = {.digit = {0}, .whole = 1, .count = 1, .given = true};
    int most = hi->given ? hi->whole : GR_DIGITS;

    if (!lo->given)
        lo = &zero;
    for (int n = lo->whole; n <= most; n++) {
        walk w = {.b = b, .lo = lo, .hi = hi, .whole = n, .integer = integer, .out = out};
        FM_TRY(one_digit(&w, in, 0, n == lo->whole, hi->given && n == hi->whole));
        for (int at = 1; at <= GR_DIGITS; at++)
            for (int k = 0; k < 4; k++)
                if (w.node[at][k >> 1][k & 1])
                    FM_TRY(go_on(&w, at, k >> 1, k & 1));
    }
    return FM_OK;
}

typedef struct bounds {
    double lo, hi;
    bool lo_open, hi_open;
} bounds;

static fm_status read_bounds(const gr_builder *b, bounds *out, const fm_json *schema)
{
    static const char *const key[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};

    *out = (bounds){.lo = -INFINITY, .hi = INFINITY};
    for (int i = 0; i < 4; i++) {
        const fm_json *v = fm_json_get(schema, key[i]);
        double x = fm_json_real(v, 0);
        if (!v)
            continue;
        if (!fm_json_is(v, FM_JSON_INT) && !fm_json_is(v, FM_JSON_REAL))
            return fm_fail(FM_EINVAL, "%s: '%s' must be a number", b->where, key[i]);
        if (i < 2 && (x > out->lo || (i == 1 && x >= out->lo))) {
            out->lo = x;
            out->lo_open = i == 1;
        } else if (i >= 2 && (x < out->hi || (i == 3 && x <= out->hi))) {
            out->hi = x;
            out->hi_open = i == 3;
        }
    }
    if (out->lo >= TOO_LARGE || out->hi <= -TOO_LARGE)
        return fm_fail(FM_EUNSUPPORTED, "%s: numbers beyond 1e15 are not supported", b->where);
    return FM_OK;
}

/* Numbers without sign from lo to hi (each may be infinite). */
static fm_status side(gr_builder *b, uint32_t in, uint32_t out, bounds s, bool integer)
{
    decimal lo = {.given = false}, hi = {.given = false};

    if (s.lo > 0 || s.lo_open)
        FM_TRY(decimal_of(b, &lo, FM_MAX(s.lo, 0.0), s.lo_open));
    if (s.hi < TOO_LARGE)
        FM_TRY(decimal_of(b, &hi, s.hi, s.hi_open));
    return between(b, in, out, &lo, &hi, integer);
}

fm_status gr_number(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema, bool integer)
{
    bounds s;
    uint32_t minus;
    fm_status rc = read_bounds(b, &s, schema);

    if (rc < 0)
        return rc;
    if (isinf(s.lo) && isinf(s.hi))
        return plain(b, in, out, integer);
    if (s.hi > 0 || (!(s.hi < 0) && !s.hi_open)) { /* zero and above */
        bounds up = s;
        if (s.lo < 0) {
            up.lo = 0;
            up.lo_open = false;
        }
        rc = side(b, in, out, up, integer);
    }
    if (rc < 0 || !(s.lo < 0))
        return rc;
    bounds down = {.lo = s.hi < 0 ? -s.hi : 0,
                   .lo_open = s.hi < 0 ? s.hi_open : true, /* no -0 */
                   .hi = -s.lo,
                   .hi_open = s.lo_open};
    rc = gr_node(b, &minus);
    FM_THEN(rc, gr_bytes(b, in, minus, '-', '-'));
    return rc < 0 ? rc : side(b, minus, out, down, integer);
}
