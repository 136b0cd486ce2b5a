/* format.c - text from values by a format: Python's '%' on strings and str.format. */
#include "infer/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

#define WIDTH_MAX 100000

/* What both have in common: how one value is laid out. */
typedef struct layout {
    char align; /* '<', '>', '^', '=', 0: by the type */
    char sign;  /* '+', ' ', 0 */
    bool alt, zero;
    char group;               /* ',', '_', 0 */
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
    uint8_t fill[4];
    size_t fill_len; /* 0: a space */
} layout;

/* ---- numbers ---- */

/* Thousands, or with _ and another base than ten every four digits. */
static void group_digits(fm_buf *out, const char *digits, size_t n, char sep, size_t every)
{
    for (size_t i = 0; i < n; i++) {
        if (sep && i > 0 && (n - i) % every == 0)
            fm_buf_char(out, sep);
        fm_buf_char(out, digits[i]);
    }
}

static const char *whole_digits(char tmp[72], uint64_t v, unsigned base, bool upper)
{
    const char *set = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    size_t at = 71;

    tmp[at] = 0;
    do
        tmp[--at] = set[v % base];
    while ((v /= base) > 0);
    return tmp + at;
}

/* C's conversions are Python's. */
static void float_digits(fm_buf *out, double v, char type, int precision, bool alt)
{
    if (!isfinite(v)) {
        bool upper = type >= 'A' && type <= 'Z';
        fm_buf_str(out, isnan(v) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
        return;
    }
    switch (type) {
    case 'e':
        fm_buf_printf(out, alt ? "%#.*e" : "%.*e", precision, v);
        break;
    case 'E':
        fm_buf_printf(out, alt ? "%#.*E" : "%.*E", precision, v);
        break;
    case 'g':
        fm_buf_printf(out, alt ? "%#.*g" : "%.*g", precision, v);
        break;
    case 'G':
        fm_buf_printf(out, alt ? "%#.*G" : "%.*G", precision, v);
        break;
    default:
        fm_buf_printf(out, alt ? "%#.*f" : "%.*f", precision, v);
        break;
    }
}

static void put_fill(fm_buf *out, const layout *l, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (l->fill_len)
            fm_buf_append(out, l->fill, l->fill_len);
        else
            fm_buf_char(out, ' ');
    }
}

/* head (sign, 0x) and body in a field. */
static void put_field(fm_buf *out, const layout *l, fm_span head, fm_span body, char dflt)
{
    size_t chars = jj_chars(jj_str((const char *)head.data, head.len)) +
                   jj_chars(jj_str((const char *)body.data, body.len));
    int64_t pad = l->width - (int64_t)chars;
    char align = l->align ? l->align : dflt;
    int64_t left = align == '^' ? pad / 2 : align == '>' ? pad : 0;

    put_fill(out, l, left);
    fm_buf_append(out, head.data, head.len);
    if (align == '=')
        put_fill(out, l, pad);
    fm_buf_append(out, body.data, body.len);
    if (align == '<' || align == '^')
        put_fill(out, l, pad - FM_MAX(left, 0));
}

/* Zeros that fill a field of grouped digits are grouped with them. */
static void zero_grouped(fm_buf *body, const layout *l, size_t head, size_t every)
{
    fm_buf digits;
    const char *dot = memchr(fm_buf_cstr(body), '.', body->len);
    size_t whole = dot ? (size_t)(dot - fm_buf_cstr(body)) : body->len;

    if (!l->group || !(l->zero || (l->align == '=' && l->fill_len == 1 && l->fill[0] == '0')))
        return;
    fm_buf_init(&digits, 0);
    for (size_t i = 0; i < whole; i++)
        if (body->data[i] != (uint8_t)l->group)
            fm_buf_u8(&digits, body->data[i]);
    int64_t room = l->width - (int64_t)head - (int64_t)(body->len - whole);
    size_t n = digits.len;
    while ((int64_t)(n + (n - 1) / every) < room)
        n++;
    fm_buf all;
    fm_buf_init(&all, 0);
    for (size_t i = digits.len; i < n; i++)
        fm_buf_char(&all, '0');
    fm_buf_append(&all, digits.data, digits.len);
    fm_buf_clear(&digits);
    fm_buf_append(&digits, all.data, all.len);
    fm_buf_clear(&all);
    group_digits(&all, fm_buf_cstr(&digits), digits.len, l->group, every);
    fm_buf_append(&all, body->data + whole, body->len - whole);
    fm_buf_clear(body);
    fm_buf_append(body, all.data, all.len);
    fm_buf_release(&all);
    fm_buf_release(&digits);
}

static void put_number(fm_buf *out, const layout *l, bool negative, const char *prefix,
                       fm_buf *body, size_t every)
{
    fm_buf head;

    fm_buf_init(&head, 0);
    if (negative || l->sign)
        fm_buf_char(&head, negative ? '-' : l->sign);
    fm_buf_str(&head, prefix);
    zero_grouped(body, l, head.len, every);
    put_field(out, l, fm_buf_span(&head), fm_buf_span(body), '>');
    fm_buf_release(&head);
}

static void put_whole(fm_buf *out, const layout *l, int64_t v)
{
    unsigned base = l->type == 'x' || l->type == 'X' ? 16
                    : l->type == 'o'                 ? 8
                    : l->type == 'b'                 ? 2
                                                     : 10;
    const char *prefix = !l->alt || base == 10 ? ""
                         : l->type == 'X'      ? "0X"
                         : l->type == 'x'      ? "0x"
                         : base == 8           ? "0o"
                                               : "0b";
    char tmp[72];
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    const char *digits = whole_digits(tmp, u, base, l->type == 'X');
    fm_buf body;
    size_t every = base == 10 ? 3 : 4;

    fm_buf_init(&body, 0);
    for (int64_t n = (int64_t)strlen(digits); n < l->precision; n++) /* of '%' only */
        fm_buf_char(&body, '0');
    group_digits(&body, digits, strlen(digits), l->group, every);
    put_number(out, l, v < 0, prefix, &body, every);
    fm_buf_release(&body);
}

/* Without a type Python shows what repr shows; with a precision then as 'g', but never without a
 * point. */
static void plain_float(fm_buf *body, double v, int precision)
{
    if (precision < 0 || !isfinite(v)) {
        jj_float_text(body, v);
        return;
    }
    precision = FM_MAX(precision, 1);
    char probe[64];
    (void)snprintf(probe, sizeof probe, "%.*e", FM_MIN(precision, 40) - 1, v);
    int exponent = (int)strtol(strchr(probe, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < precision - 1) {
        fm_buf_printf(body, "%.*g", precision, v);
        if (!memchr(body->data, '.', body->len))
            fm_buf_str(body, ".0");
    } else if (exponent == precision - 1) {
        fm_buf_printf(body, "%.*e", precision - 1, v);
        const char *e = memchr(body->data, 'e', body->len);
        size_t keep = e ? (size_t)(e - (const char *)body->data) : body->len, cut = keep;
        while (cut > 2 && body->data[cut - 1] == '0' && memchr(body->data, '.', cut))
            cut--;
        if (cut > 0 && body->data[cut - 1] == '.')
            cut--;
        memmove(body->data + cut, body->data + keep, body->len - keep);
        body->len -= keep - cut;
    } else {
        fm_buf_printf(body, "%.*g", precision, v);
    }
}

static void put_float(fm_buf *out, const layout *l, double v)
{
    fm_buf body, grouped;
    bool percent = l->type == '%', negative = signbit(v) && !isnan(v);
    int precision = l->precision < 0 ? 6 : (int)l->precision;

    fm_buf_init(&body, 0);
    fm_buf_init(&grouped, 0);
    v = fabs(v);
    if (!l->type)
        plain_float(&body, v, (int)l->precision);
    else
        float_digits(&body, percent ? v * 100 : v, percent ? 'f' : l->type, precision, l->alt);
    size_t whole = 0;
    while (whole < body.len && body.data[whole] >= '0' && body.data[whole] <= '9')
        whole++;
    group_digits(&grouped, fm_buf_cstr(&body), whole, l->group, 3);
    fm_buf_append(&grouped, body.data + whole, body.len - whole);
    if (percent)
        fm_buf_char(&grouped, '%');
    put_number(out, l, negative, "", &grouped, 3);
    fm_buf_release(&body);
    fm_buf_release(&grouped);
}

static void put_text(fm_buf *out, const layout *l, jj_val s)
{
    size_t n = l->precision < 0 ? s.u.s.n : jj_char_offset(s, (size_t)l->precision);

    put_field(out, l, fm_span_of("", 0), fm_span_of(s.u.s.p, n), '<');
}

/* ---- % ---- */

typedef struct percent {
    jj_ctx *c;
    const char *p;
    size_t left;
    jj_val args, list; /* list: the values of a tuple, or the one value */
    size_t used;
} percent;

static fm_status next_value(percent *x, jj_val *out)
{
    if (x->used >= x->list.u.list->count)
        return jj_error(x->c, FM_EINVAL, "not enough arguments for a format string");
    *out = x->list.u.list->v[x->used++];
    return FM_OK;
}

static bool more(const percent *x, char c)
{
    return x->left > 0 && *x->p == c;
}

static void skip(percent *x)
{
    x->p++;
    x->left--;
}

/* A number or '*'. */
static fm_status width_of(percent *x, int64_t *out)
{
    jj_val v;

    *out = 0;
    if (more(x, '*')) {
        skip(x);
        fm_status rc = next_value(x, &v);
        if (rc == FM_OK && v.type != JJ_INT && v.type != JJ_BOOL)
            return jj_error(x->c, FM_EINVAL, "'*' needs an integer");
        *out = rc == FM_OK ? jj_whole(v) : 0;
        return rc < 0 || (*out <= WIDTH_MAX && *out >= -WIDTH_MAX)
                   ? rc
                   : jj_error(x->c, FM_ELIMIT, "a field of more than %d", WIDTH_MAX);
    }
    for (; x->left > 0 && *x->p >= '0' && *x->p <= '9'; skip(x)) {
        *out = *out * 10 + (*x->p - '0');
        if (*out > WIDTH_MAX)
            return jj_error(x->c, FM_ELIMIT, "a field of more than %d", WIDTH_MAX);
    }
    return FM_OK;
}

static fm_status text_of(percent *x, jj_val *out, jj_val v, bool repr)
{
    fm_buf b;

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = repr ? jj_repr(x->c, &b, v, 0) : jj_to_text(x->c, &b, v);
    if (rc == FM_OK)
        return jj_buf_str(x->c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* What a field of l costs beside its value's text. */
static fm_status count_field(jj_ctx *c, const layout *l, jj_val v)
{
    bool real = v.type == JJ_FLOAT || strchr("eEfFgG%", l->type ? l->type : 's');
    int64_t room = FM_MAX(l->width, 0) + FM_MAX(l->precision, 0);
    fm_status rc = jj_work_by(c, (uint64_t)room, real ? 8 * JJ_CHAR : 3 * JJ_CHAR);

    if (rc == FM_OK && v.type == JJ_STRING)
        rc = jj_work_by(c, v.u.s.n, 2);
    return rc < 0 ? rc : jj_work(c, real ? JJ_REAL : JJ_CALL);
}

static fm_status percent_value(percent *x, fm_buf *out, layout *l, bool minus, jj_val v)
{
    jj_val t;
    fm_status rc = count_field(x->c, l, v);

    if (rc < 0)
        return rc;
    l->align = minus ? '<' : 0;
    if (l->type == 's' || l->type == 'r' || l->type == 'c') {
        bool code = l->type == 'c' && v.type == JJ_INT;
        if (l->type == 'c' && !code && (v.type != JJ_STRING || jj_chars(v) != 1))
            return jj_error(x->c, FM_EINVAL, "%%c needs a character or its code");
        if (code)
            return jj_error(x->c, FM_EUNSUPPORTED, "%%c of a number is not implemented");
        rc = text_of(x, &t, v, l->type == 'r');
        l->align = minus ? '<' : '>';
        if (rc == FM_OK)
            rc = jj_work_by(x->c, t.u.s.n, 2);
        if (rc == FM_OK)
            put_text(out, l, t);
        return rc;
    }
    if (!jj_is_number(v))
        return jj_error(x->c, FM_EINVAL, "%%%c needs a number, not %s", l->type, jj_type_name(v));
    if (l->zero && !minus) {
        l->align = '=';
        l->fill[0] = '0';
        l->fill_len = 1;
    }
    if (strchr("diuxXo", l->type)) {
        if (v.type == JJ_FLOAT && (strchr("xXo", l->type) || !(fabs(v.u.f) < 9e18)))
            return jj_error(x->c, FM_EINVAL, "%%%c needs an integer", l->type);
        put_whole(out, l, v.type == JJ_FLOAT ? (int64_t)v.u.f : jj_whole(v));
    } else {
        put_float(out, l, jj_number(v));
    }
    return FM_OK;
}

static fm_status key_value(percent *x, jj_val *out)
{
    const char *end = memchr(x->p, ')', x->left);

    skip(x);
    if (!end || x->args.type != JJ_DICT)
        return jj_error(x->c, FM_EINVAL, "a format with keys needs a mapping");
    size_t n = (size_t)(end - x->p);
    const jj_val *hit;
    fm_status rc = jj_dict_get(x->c, &hit, x->args.u.dict, x->p, n);
    if (rc < 0)
        return rc;
    if (!hit)
        return jj_error(x->c, FM_EINVAL, "the mapping has no '%.*s'", (int)FM_MIN(n, (size_t)80),
                        x->p);
    *out = *hit;
    x->left -= n + 1;
    x->p = end + 1;
    return FM_OK;
}

/* Behind '%'. */
static fm_status directive(percent *x, fm_buf *out)
{
    layout l = {.precision = -1};
    bool minus = false, keyed = more(x, '(');
    jj_val v;
    fm_status rc = keyed ? key_value(x, &v) : FM_OK;

    for (; rc == FM_OK && x->left > 0 && strchr("-+ #0", *x->p) && *x->p; skip(x)) {
        minus = minus || *x->p == '-';
        l.alt = l.alt || *x->p == '#';
        l.zero = l.zero || *x->p == '0';
        if (*x->p == '+' || (*x->p == ' ' && !l.sign))
            l.sign = *x->p;
    }
    if (rc == FM_OK)
        rc = width_of(x, &l.width);
    if (l.width < 0) {
        minus = true;
        l.width = -l.width;
    }
    if (rc == FM_OK && more(x, '.')) {
        skip(x);
        rc = width_of(x, &l.precision);
        l.precision = FM_MAX(l.precision, 0);
    }
    while (rc == FM_OK && x->left > 0 && *x->p && strchr("hlL", *x->p))
        skip(x);
    if (rc < 0 || x->left == 0)
        return rc < 0 ? rc : jj_error(x->c, FM_EINVAL, "incomplete format");
    l.type = *x->p;
    skip(x);
    if (l.type == '%') {
        fm_buf_char(out, '%');
        return FM_OK;
    }
    if (!l.type || !strchr("srcdiuxXoeEfFgG", l.type))
        return jj_error(x->c, FM_EINVAL, "format character '%c' is not implemented", l.type);
    if (!keyed)
        rc = next_value(x, &v);
    return rc < 0 ? rc : percent_value(x, out, &l, minus, v);
}

fm_status jj_percent(jj_ctx *c, jj_val *out, jj_val format, jj_val args)
{
    percent x = {.c = c, .p = format.u.s.p, .left = format.u.s.n, .args = args};
    fm_buf b;
    fm_status rc = jj_list_new(c, &x.list);

    if (rc == FM_OK)
        rc = jj_work_by(c, format.u.s.n, JJ_CHAR);
    if (rc == FM_OK && args.type == JJ_TUPLE)
        x.list = args;
    else if (rc == FM_OK)
        rc = jj_list_push(c, x.list.u.list, args);
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    while (rc == FM_OK && x.left > 0) {
        const char *hit = memchr(x.p, '%', x.left);
        size_t n = hit ? (size_t)(hit - x.p) : x.left;
        fm_buf_append(&b, x.p, n);
        x.p += n;
        x.left -= n;
        if (hit) {
            skip(&x);
            rc = directive(&x, &b);
        }
        if (rc == FM_OK)
            rc = fm_buf_ok(&b);
    }
    bool unused = x.used < (x.list.u.list ? x.list.u.list->count : 0);
    if (rc == FM_OK && unused && args.type != JJ_DICT && args.type != JJ_LIST)
        rc = jj_error(c, FM_EINVAL, "not all arguments of a format string are used");
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* ---- str.format ---- */

typedef struct braces {
    jj_ctx *c;
    const jj_args *a;
    int64_t next; /* automatic number; -1: fields are numbered by hand */
} braces;

static bool is_one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

/* [[fill]align][sign][#][0][width][group][.precision][type] */
static fm_status read_spec(jj_ctx *c, layout *l, const char *p, size_t n)
{
    uint32_t cp;
    size_t i = 0, first = n > 0 ? fmi_utf8_next((const uint8_t *)p, &cp) : 0;

    *l = (layout){.precision = -1};
    if (n > first && is_one_of(p[first], "<>^=")) {
        memcpy(l->fill, p, first);
        l->fill_len = first;
        i = first;
    }
    if (i < n && is_one_of(p[i], "<>^="))
        l->align = p[i++];
    if (i < n && is_one_of(p[i], "+- "))
        l->sign = p[i] == '-' ? 0 : p[i];
    i += i < n && is_one_of(p[i], "+- ");
    l->alt = i < n && p[i] == '#';
    i += l->alt;
    if (i < n && p[i] == '0') {
        l->zero = !l->align;
        if (!l->fill_len) {
            l->fill[0] = '0';
            l->fill_len = 1;
        }
        i++;
    }
    for (; i < n && p[i] >= '0' && p[i] <= '9' && l->width <= WIDTH_MAX; i++)
        l->width = l->width * 10 + (p[i] - '0');
    if (i < n && is_one_of(p[i], ",_"))
        l->group = p[i++];
    if (i + 1 < n && p[i] == '.' && p[i + 1] >= '0' && p[i + 1] <= '9')
        for (l->precision = 0, i++;
             i < n && p[i] >= '0' && p[i] <= '9' && l->precision <= WIDTH_MAX; i++)
            l->precision = l->precision * 10 + (p[i] - '0');
    if (i < n)
        l->type = p[i++];
    if (l->width > WIDTH_MAX || l->precision > WIDTH_MAX)
        return jj_error(c, FM_ELIMIT, "a field of more than %d", WIDTH_MAX);
    return i == n ? FM_OK
                  : jj_error(c, FM_EINVAL, "invalid format '%.*s'", (int)FM_MIN(n, (size_t)80), p);
}

static fm_status format_value(jj_ctx *c, fm_buf *out, jj_val v, const char *spec, size_t n)
{
    layout l;
    fm_status rc = read_spec(c, &l, spec, n);

    if (rc < 0 || n == 0)
        return rc < 0 ? rc : jj_to_text(c, out, v);
    rc = count_field(c, &l, v);
    if (rc < 0)
        return rc;
    if (v.type == JJ_STRING) {
        if ((l.type && l.type != 's') || l.align == '=' || l.sign || l.alt || l.group)
            return jj_error(c, FM_EINVAL, "a format that does not fit a string");
        put_text(out, &l, v);
        return FM_OK;
    }
    if (!jj_is_number(v))
        return jj_error(c, FM_EINVAL, "%s takes no format", jj_type_name(v));
    if (l.zero)
        l.align = '=';
    bool whole = v.type != JJ_FLOAT;
    if (v.type == JJ_BOOL && !l.type)
        return jj_error(c, FM_EUNSUPPORTED, "a format of a boolean without a type");
    if (is_one_of(l.type, "eEfFgG%") || (!whole && !l.type)) {
        put_float(out, &l, jj_number(v));
    } else if (whole && (!l.type || is_one_of(l.type, "dxXob"))) {
        if (l.precision >= 0 || (l.group == ',' && is_one_of(l.type, "xXob")))
            return jj_error(c, FM_EINVAL, "a format that does not fit an integer");
        put_whole(out, &l, jj_whole(v));
    } else {
        return jj_error(c, FM_EINVAL, "format '%c' does not fit %s", l.type, jj_type_name(v));
    }
    return FM_OK;
}

/* The argument that a field names: nothing, a number or a keyword. */
static fm_status first_part(braces *x, jj_val *out, const char *p, size_t n)
{
    int64_t i = 0;
    bool digits = n > 0 && n < 10;

    for (size_t k = 0; k < n && digits; k++) {
        digits = p[k] >= '0' && p[k] <= '9';
        i = i * 10 + (p[k] - '0');
    }
    if (n == 0) {
        if (x->next < 0)
            return jj_error(x->c, FM_EINVAL, "fields are numbered by hand and automatically");
        i = x->next++;
    } else if (digits) {
        if (x->next > 0)
            return jj_error(x->c, FM_EINVAL, "fields are numbered by hand and automatically");
        x->next = -1;
    } else {
        for (size_t k = 0; k < x->a->kw_count; k++) {
            size_t len = strlen(x->a->kw[k]);
            fm_status rc = jj_work(x->c, JJ_ITEM + len);
            if (rc < 0)
                return rc;
            if (len == n && memcmp(x->a->kw[k], p, n) == 0) {
                *out = x->a->kw_value[k];
                return FM_OK;
            }
        }
        return jj_error(x->c, FM_EINVAL, "format has no argument '%.*s'",
                        (int)FM_MIN(n, (size_t)80), p);
    }
    if ((size_t)i >= x->a->count)
        return jj_error(x->c, FM_EINVAL, "format has no argument %lld", (long long)i);
    *out = x->a->pos[i];
    return FM_OK;
}

/* name, then .attribute and [item]. */
static fm_status field_value(braces *x, jj_val *out, const char *p, size_t n)
{
    size_t i = 0;

    while (i < n && p[i] != '.' && p[i] != '[')
        i++;
    fm_status rc = first_part(x, out, p, i);
    while (rc == FM_OK && i < n) {
        bool item = p[i++] == '[';
        size_t b = i;
        while (i < n && (item ? p[i] != ']' : p[i] != '.' && p[i] != '['))
            i++;
        jj_val key = jj_str(p + b, i - b), in = *out;
        bool digits = item && i > b && i - b < 10;
        for (size_t k = b; k < i && digits; k++)
            digits = p[k] >= '0' && p[k] <= '9';
        rc = digits ? jj_attr_path(x->c, out, in, key) : jj_get_item(x->c, out, in, key);
        if (rc == FM_OK && out->type == JJ_UNDEFINED)
            return jj_error(x->c, FM_EINVAL, "format finds no '%.*s'",
                            (int)FM_MIN(i - b, (size_t)80), p + b);
        i += item;
    }
    return rc;
}

static fm_status format_into(braces *x, fm_buf *out, const char *p, size_t n, int depth);

/* Inside the braces: name[!conversion][:spec], the spec may hold fields itself. */
static fm_status one_field(braces *x, fm_buf *out, const char *p, size_t n, int depth)
{
    fm_buf spec;
    jj_val v;
    size_t i = 0;
    int bracket = 0;

    while (i < n && (bracket || (p[i] != '!' && p[i] != ':'))) {
        bracket += p[i] == '[' ? 1 : p[i] == ']' ? -1 : 0;
        i++;
    }
    fm_status rc = field_value(x, &v, p, i);
    if (rc == FM_OK && i + 1 < n && p[i] == '!') {
        percent as = {.c = x->c};
        if (p[i + 1] != 's' && p[i + 1] != 'r')
            return jj_error(x->c, FM_EINVAL, "conversion '%c' is not implemented", p[i + 1]);
        rc = text_of(&as, &v, v, p[i + 1] == 'r');
        i += 2;
    }
    if (rc < 0)
        return rc;
    if (i < n && p[i] != ':')
        return jj_error(x->c, FM_EINVAL, "expected ':' in a format");
    i += i < n;
    fm_buf_init(&spec, 4096);
    rc = format_into(x, &spec, p + i, n - i, depth + 1);
    if (rc == FM_OK)
        rc = format_value(x->c, out, v, fm_buf_cstr(&spec), spec.len);
    fm_buf_release(&spec);
    return rc;
}

static fm_status format_into(braces *x, fm_buf *out, const char *p, size_t n, int depth)
{
    fm_status rc = depth > 2 ? jj_error(x->c, FM_EINVAL, "formats nested too deep")
                             : jj_work_by(x->c, n + 1, 2 * JJ_CHAR);

    for (size_t i = 0; rc == FM_OK && i < n;) {
        if (p[i] != '{' && p[i] != '}') {
            fm_buf_char(out, p[i++]);
            continue;
        }
        if (i + 1 < n && p[i + 1] == p[i]) { /* {{ and }} */
            fm_buf_char(out, p[i]);
            i += 2;
            continue;
        }
        if (p[i] == '}')
            return jj_error(x->c, FM_EINVAL, "single '}' in a format");
        size_t begin = ++i;
        for (int open = 1; i < n; i++) {
            open += p[i] == '{' ? 1 : p[i] == '}' ? -1 : 0;
            if (open == 0)
                break;
        }
        if (i == n)
            return jj_error(x->c, FM_EINVAL, "'{' is not closed in a format");
        rc = one_field(x, out, p + begin, i - begin, depth);
        i++;
    }
    return rc < 0 ? rc : fm_buf_ok(out);
}

fm_status jj_format(jj_ctx *c, jj_val *out, jj_val format, const jj_args *a)
{
    braces x = {.c = c, .a = a};
    fm_buf b;

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = format_into(&x, &b, format.u.s.p, format.u.s.n, 0);
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}
