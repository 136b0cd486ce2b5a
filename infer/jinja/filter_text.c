/* filter_text.c - filters of text and of numbers. Those of text mostly take any value and
 * work on its str(). */
#include "infer/jinja/jinja.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

fm_status jj_as_text(jj_ctx *c, jj_val *out, jj_val in)
{
    fm_buf b;

    if (in.type == JJ_STRING) {
        *out = in;
        return FM_OK;
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = jj_to_text(c, &b, in);
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* The arguments are among names, and in as text. */
static fm_status begin(jj_ctx *c, jj_val *s, jj_val in, const jj_args *a, const char *what,
                       const char *const *names, size_t n)
{
    fm_status rc = jj_args_check(c, a, what, names, n);

    return rc < 0 ? rc : jj_as_text(c, s, in);
}

static fm_status f_trim(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_status rc = begin(c, &s, in, a, "trim", NAMES("chars"), 1);

    return rc < 0 ? rc : jj_trim(c, out, s, jj_arg(a, 0, "chars"), true, true);
}

static fm_status change_case(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool upper)
{
    jj_val s;
    fm_buf b;
    fm_status rc = begin(c, &s, in, a, upper ? "upper" : "lower", NULL, 0);

    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    rc = upper ? jj_upper(c, &b, s) : jj_lower(c, &b, s);
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static fm_status f_upper(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return change_case(c, out, in, a, true);
}

static fm_status f_lower(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return change_case(c, out, in, a, false);
}

static fm_status f_capitalize(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_status rc = begin(c, &s, in, a, "capitalize", NULL, 0);

    return rc < 0 ? rc : jj_title(c, out, s, false);
}

static bool starts_words(uint32_t cp)
{
    return fmi_is_space(cp) || (cp >= 0x1c && cp <= 0x1f) ||
           (cp < 0x80 && cp && strchr("-({[<", (int)cp));
}

/* Unlike str.title, the filter starts words behind blanks and brackets only, by upper-casing, and
 * lower-cases what follows as a text of its own. */
static fm_status f_title(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_buf b;
    fm_status rc = begin(c, &s, in, a, "title", NULL, 0);

    if (rc == FM_OK)
        rc = jj_work_by(c, s.u.s.n, JJ_MAP);
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < s.u.s.n;) {
        uint32_t cp;
        size_t n = jj_put_case(&b, s, i, JJ_UPPER), e;
        (void)fmi_utf8_next((const uint8_t *)s.u.s.p + i, &cp);
        i += n;
        if (starts_words(cp))
            continue;
        for (e = i; e < s.u.s.n; e += n) {
            n = fmi_utf8_next((const uint8_t *)s.u.s.p + e, &cp);
            if (starts_words(cp))
                break;
        }
        rc = jj_lower(c, &b, jj_str(s.u.s.p + i, e - i));
        i = e;
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static fm_status f_replace(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s, old = jj_arg(a, 0, "old"), new = jj_arg(a, 1, "new");
    fm_status rc = begin(c, &s, in, a, "replace", NAMES("old", "new", "count"), 3);

    if (rc == FM_OK)
        rc = jj_as_text(c, &old, old);
    if (rc == FM_OK)
        rc = jj_as_text(c, &new, new);
    return rc < 0 ? rc : jj_replace(c, out, s, old, new, jj_arg(a, 2, "count"));
}

static fm_status f_string(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return begin(c, out, in, a, "string", NULL, 0);
}

static fm_status f_tojson(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return jj_tojson(c, out, in, a);
}

static fm_status join_lines(jj_ctx *c, fm_buf *b, const jj_list *lines, jj_val pad, bool blank)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < lines->count; i++) {
        jj_val line = lines->v[i];
        rc = jj_work(c, 2 * JJ_ITEM + pad.u.s.n + line.u.s.n);
        if (i > 0)
            fm_buf_char(b, '\n');
        if (i > 0 && (blank || line.u.s.n > 0))
            fm_buf_append(b, pad.u.s.p, pad.u.s.n);
        fm_buf_append(b, line.u.s.p, line.u.s.n);
    }
    return rc;
}

/* As jinja2: a newline is put behind the text before it is split into lines. */
static fm_status f_indent(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val width = jj_arg(a, 0, "width"), pad = jj_str("    ", 4), lines, text;
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "indent", NAMES("width", "first", "blank"), 3);

    if (rc == FM_OK)
        rc = jj_need_str(c, in, "indent");
    if (rc == FM_OK)
        rc = jj_work(c, in.u.s.n);
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    if (width.type == JJ_STRING) {
        pad = width;
    } else if (width.type == JJ_INT) {
        rc = jj_work_by(c, (uint64_t)FM_MAX(FM_MIN(width.u.i, 100000), 0), JJ_CHAR);
        for (int64_t i = 0; i < width.u.i && i < 100000; i++)
            fm_buf_char(&b, ' ');
        if (rc == FM_OK)
            rc = jj_str_copy(c, &pad, b.data, b.len);
        fm_buf_clear(&b);
    }
    fm_buf_append(&b, in.u.s.p, in.u.s.n);
    fm_buf_char(&b, '\n');
    if (rc == FM_OK)
        rc = jj_str_copy(c, &text, b.data, b.len);
    if (rc == FM_OK)
        rc = jj_lines(c, &lines, text, false);
    fm_buf_clear(&b);
    if (rc < 0) {
        fm_buf_release(&b);
        return rc;
    }
    if (jj_truth(jj_arg(a, 1, "first")))
        fm_buf_append(&b, pad.u.s.p, pad.u.s.n);
    rc = join_lines(c, &b, lines.u.list, pad, jj_truth(jj_arg(a, 2, "blank")));
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static fm_status f_center(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s, width = jj_arg(a, 0, "width");
    fm_status rc = begin(c, &s, in, a, "center", NAMES("width"), 1);

    return rc < 0 ? rc : jj_center(c, out, s, width.type == JJ_UNDEFINED ? jj_int(80) : width);
}

static fm_status f_escape(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    jj_val s;
    fm_buf b;
    fm_status rc = begin(c, &s, in, a, "escape", NULL, 0);

    if (rc == FM_OK)
        rc = jj_work_by(c, s.u.s.n, 2 * JJ_CHAR);
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.u.s.n; i++) {
        const char *hit = s.u.s.p[i] ? strchr(from, s.u.s.p[i]) : NULL;
        if (hit)
            fm_buf_str(&b, to[hit - from]);
        else
            fm_buf_char(&b, s.u.s.p[i]);
    }
    return jj_buf_str(c, out, &b);
}

static fm_status f_format(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s, values;
    fm_status rc = jj_as_text(c, &s, in);

    if (rc == FM_OK && a->count > 0 && a->kw_count > 0)
        return jj_error(c, FM_EINVAL, "format takes positional or keyword arguments, not both");
    if (rc == FM_OK && a->kw_count > 0) {
        rc = jj_dict_new(c, &values);
        for (size_t i = 0; rc == FM_OK && i < a->kw_count; i++)
            rc = jj_dict_put(c, values.u.dict, jj_str(a->kw[i], strlen(a->kw[i])), a->kw_value[i]);
    } else if (rc == FM_OK) {
        rc = jj_list_new(c, &values);
        values.type = JJ_TUPLE;
        for (size_t i = 0; rc == FM_OK && i < a->count; i++)
            rc = jj_list_push(c, values.u.list, a->pos[i]);
    }
    return rc < 0 ? rc : jj_percent(c, out, s, values);
}

static fm_status f_truncate(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val length = jj_arg(a, 0, "length"), end = jj_arg(a, 2, "end"), lee = jj_arg(a, 3, "leeway");
    int64_t most = length.type == JJ_INT ? length.u.i : 255;
    int64_t leeway = lee.type == JJ_INT ? lee.u.i : 5;
    fm_buf b;
    fm_status rc =
        jj_args_check(c, a, "truncate", NAMES("length", "killwords", "end", "leeway"), 4);

    if (end.type != JJ_STRING)
        end = jj_str("...", 3);
    if (rc == FM_OK)
        rc = jj_need_str(c, in, "truncate");
    if (rc == FM_OK)
        rc = jj_work_by(c, in.u.s.n, 4);
    if (rc == FM_OK)
        rc = jj_work_by(c, end.u.s.n, 4);
    if (rc == FM_OK && (most < (int64_t)jj_chars(end) || leeway < 0))
        return jj_error(c, FM_EINVAL, "truncate: expected length and leeway to fit");
    if (rc < 0)
        return rc;
    *out = in;
    if ((int64_t)jj_chars(in) <= most + leeway)
        return FM_OK;
    size_t keep = jj_char_offset(in, (size_t)(most - (int64_t)jj_chars(end)));
    if (!jj_truth(jj_arg(a, 1, "killwords"))) { /* rsplit(" ", 1)[0] */
        size_t space = keep;
        while (space > 0 && in.u.s.p[space - 1] != ' ')
            space--;
        keep = space > 0 ? space - 1 : keep;
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_buf_append(&b, in.u.s.p, keep);
    fm_buf_append(&b, end.u.s.p, end.u.s.n);
    return jj_buf_str(c, out, &b);
}

static fm_status f_wordcount(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    int64_t n = 0;
    bool inside = false;
    fm_status rc = begin(c, &s, in, a, "wordcount", NULL, 0);

    if (rc == FM_OK)
        rc = jj_work_by(c, s.u.s.n, 2 * JJ_CHAR);
    for (size_t i = 0; rc == FM_OK && i < s.u.s.n;) {
        uint32_t cp;
        i += fmi_utf8_next((const uint8_t *)s.u.s.p + i, &cp);
        bool word = jj_is_word(cp);
        n += word && !inside;
        inside = word;
    }
    *out = jj_int(n);
    return rc;
}

static fm_status f_filesizeformat(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    static const char *const dec[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const bin[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool binary = jj_truth(jj_arg(a, 0, "binary"));
    double base = binary ? 1024 : 1000, unit = base, bytes;
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "filesizeformat", NAMES("binary"), 1);

    if (rc == FM_OK && !jj_is_number(in))
        return jj_error(c, FM_EUNSUPPORTED, "filesizeformat of %s", jj_type_name(in));
    if (rc == FM_OK)
        rc = jj_work(c, JJ_REAL);
    if (rc < 0)
        return rc;
    bytes = jj_number(in);
    fm_buf_init(&b, 400);
    if (bytes >= 1 && bytes <= 1) {
        fm_buf_str(&b, "1 Byte");
    } else if (bytes < base) {
        fm_buf_printf(&b, "%.0f Bytes", trunc(bytes));
    } else {
        size_t i = 0;
        for (unit = base * base; i < 7 && bytes >= unit; i++)
            unit *= base;
        fm_buf_printf(&b, "%.1f %s", base * bytes / unit, (binary ? bin : dec)[i]);
    }
    return jj_buf_str(c, out, &b);
}

static fm_status quote(jj_ctx *c, fm_buf *b, jj_val s, bool query)
{
    fm_status rc = jj_work_by(c, s.u.s.n, 2 * JJ_CHAR);

    for (size_t i = 0; rc == FM_OK && i < s.u.s.n; i++) {
        unsigned char ch = (unsigned char)s.u.s.p[i];
        bool safe = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
                    (ch >= '0' && ch <= '9') || (ch && strchr("_.-~", ch)) || (!query && ch == '/');
        if (safe)
            fm_buf_char(b, (char)ch);
        else if (query && ch == ' ')
            fm_buf_char(b, '+');
        else
            jj_put_hex(b, "%", ch, 2, true);
    }
    return rc;
}

static fm_status quote_pair(jj_ctx *c, fm_buf *b, jj_val key, jj_val value, bool first)
{
    fm_status rc = jj_as_text(c, &key, key);

    if (rc == FM_OK)
        rc = jj_as_text(c, &value, value);
    if (rc < 0)
        return rc;
    if (!first)
        fm_buf_char(b, '&');
    rc = quote(c, b, key, true);
    fm_buf_char(b, '=');
    return rc < 0 ? rc : quote(c, b, value, true);
}

static fm_status f_urlencode(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s, list, pair;
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "urlencode", NULL, 0);

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    if (rc == FM_OK && in.type == JJ_DICT) {
        for (size_t i = 0; rc == FM_OK && i < in.u.dict->count; i++)
            rc = quote_pair(c, &b, in.u.dict->p[i].key, in.u.dict->p[i].value, i == 0);
    } else if (rc == FM_OK && (jj_is_seq(in) || in.type == JJ_VIEW || in.type == JJ_GEN)) {
        rc = jj_as_list(c, &list, in);
        for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
            rc = jj_as_list(c, &pair, list.u.list->v[i]);
            if (rc == FM_OK && pair.u.list->count != 2)
                rc = jj_error(c, FM_EINVAL, "urlencode needs pairs");
            if (rc == FM_OK)
                rc = quote_pair(c, &b, pair.u.list->v[0], pair.u.list->v[1], i == 0);
        }
    } else if (rc == FM_OK) {
        rc = jj_as_text(c, &s, in);
        if (rc == FM_OK)
            rc = quote(c, &b, s, false);
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* ---- numbers ---- */

/* Without blanks around and single underscores between digits; NULL: no number's text. */
static fm_status plain_number(jj_ctx *c, jj_val in, char **out)
{
    jj_val t = in;
    size_t n = 0;
    fm_status rc = jj_trim(c, &t, in, jj_none(), true, true);

    *out = NULL;
    if (rc == FM_OK)
        rc = jj_work_by(c, t.u.s.n, 2 * JJ_CHAR);
    if (rc == FM_OK)
        rc = jj_work(c, JJ_CALL);
    if (rc == FM_OK)
        rc = jj_str_copy(c, &t, t.u.s.p, t.u.s.n);
    if (rc < 0 || t.u.s.n == 0)
        return rc;
    char *p = jj_alloc(c, t.u.s.n + 1);
    if (!p)
        return jj_alloc_status(c);
    for (size_t i = 0; i < t.u.s.n; i++) {
        bool inner = i > 0 && i + 1 < t.u.s.n && t.u.s.p[i - 1] != '_' && t.u.s.p[i + 1] != '_';
        if (t.u.s.p[i] == '_' && !inner)
            return FM_OK;
        if (t.u.s.p[i] != '_')
            p[n++] = t.u.s.p[i];
    }
    *out = p;
    return FM_OK;
}

static bool read_int(const char *p, int base, int64_t *out)
{
    const char *digits = p + (*p == '-' || *p == '+');
    char *end;

    if (!*digits || *digits == '-' || *digits == '+' || *digits == ' ')
        return false;
    if (digits[0] == '0' && base != 10 && base != 16 &&
        (digits[1] | 32) == (base == 8 ? 'o' : 'b') &&
        (base == 8 || base == 2)) { /* strtoll knows 0x alone */
        if (!read_int(digits + 2, base, out) || digits[2] == '-' || digits[2] == '+')
            return false;
        *out = *p == '-' ? -*out : *out;
        return true;
    }
    errno = 0;
    *out = strtoll(p, &end, base);
    return *end == 0 && errno == 0;
}

static bool read_float(const char *p, double *out)
{
    char *end;

    if (!*p || strpbrk(p, "xXpP("))
        return false;
    *out = strtod(p, &end);
    return *end == 0;
}

static fm_status f_int(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val dflt = jj_arg(a, 0, "default"), base = jj_arg(a, 1, "base");
    char *text = NULL;
    int64_t i = 0;
    double d = in.type == JJ_FLOAT ? in.u.f : (double)NAN;
    fm_status rc = jj_args_check(c, a, "int", NAMES("default", "base"), 2);

    if (rc == FM_OK && in.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "convert", in, in);
    if (rc == FM_OK && in.type == JJ_STRING)
        rc = plain_number(c, in, &text);
    *out = dflt.type == JJ_UNDEFINED && a->count == 0 ? jj_int(0) : dflt;
    if (rc < 0)
        return rc;
    if (in.type == JJ_BOOL || in.type == JJ_INT)
        *out = jj_int(jj_whole(in));
    else if (text && read_int(text, base.type == JJ_INT ? (int)base.u.i : 10, &i))
        *out = jj_int(i);
    else if ((in.type == JJ_FLOAT || (text && read_float(text, &d))) && isfinite(d)) {
        if (!(fabs(d) < 9.2e18))
            return jj_error(c, FM_ELIMIT, "integer overflow");
        *out = jj_int((int64_t)d);
    }
    return rc;
}

static fm_status f_float(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val dflt = jj_arg(a, 0, "default");
    char *text = NULL;
    double d = 0;
    fm_status rc = jj_args_check(c, a, "float", NAMES("default"), 1);

    if (rc == FM_OK && in.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "convert", in, in);
    if (rc == FM_OK && in.type == JJ_STRING)
        rc = plain_number(c, in, &text);
    *out = dflt.type == JJ_UNDEFINED && a->count == 0 ? jj_float(0.0) : dflt;
    if (jj_is_number(in))
        *out = jj_float(jj_number(in));
    else if (text && read_float(text, &d))
        *out = jj_float(d);
    return rc;
}

static fm_status f_abs(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    fm_status rc = jj_args_check(c, a, "abs", NULL, 0);

    if (rc == FM_OK && !jj_is_number(in))
        return jj_error(c, FM_EINVAL, "abs of %s", jj_type_name(in));
    if (in.type == JJ_FLOAT)
        *out = jj_float(fabs(in.u.f));
    else if (in.type == JJ_BOOL)
        *out = jj_int(in.u.b);
    else if (in.u.i == INT64_MIN)
        return jj_error(c, FM_ELIMIT, "integer overflow");
    else
        *out = jj_int(in.u.i < 0 ? -in.u.i : in.u.i);
    return rc;
}

/* To a power of ten that is not negative, half to even. */
static int64_t round_whole(int64_t v, int64_t p)
{
    int64_t unit = 1;

    if (p >= 0)
        return v;
    for (; p < 0 && unit < INT64_MAX / 20; p++)
        unit *= 10;
    if (p < 0)
        return 0;
    int64_t down = v / unit * unit, rest = v - down; /* towards zero */
    int64_t away = rest < 0 ? -rest : rest;
    bool up = away * 2 > unit || (away * 2 == unit && (down / unit) % 2 != 0);
    return up ? down + (v < 0 ? -unit : unit) : down;
}

/* Half to even on the exact binary value, as Python's round. */
static double round_real(double v, int64_t p)
{
    fm_buf b;

    if (!isfinite(v) || p > 300)
        return v;
    if (p < 0) {
        double unit = pow(10.0, (double)FM_MIN(-p, (int64_t)309)), q = v / unit;
        double r = nearbyint(q);
        return p < -308 ? copysign(0.0, v) : r * unit;
    }
    fm_buf_init(&b, 1024);
    fm_buf_printf(&b, "%.*f", (int)p, v);
    double r = strtod(fm_buf_cstr(&b), NULL);
    fm_buf_release(&b);
    return r;
}

static fm_status f_round(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val precision = jj_arg(a, 0, "precision"), method = jj_arg(a, 1, "method");
    int64_t p = precision.type == JJ_INT || precision.type == JJ_BOOL ? jj_whole(precision) : 0;
    fm_status rc = jj_args_check(c, a, "round", NAMES("precision", "method"), 2);
    const char *how = method.type == JJ_STRING ? method.u.s.p : "common";

    if (rc < 0)
        return rc;
    if (!jj_is_number(in) ||
        (precision.type != JJ_UNDEFINED && precision.type != JJ_INT && precision.type != JJ_BOOL))
        return jj_error(c, FM_EINVAL, "round needs a number and a whole precision");
    rc = jj_work(c, JJ_REAL);
    if (rc < 0)
        return rc;
    if (strcmp(how, "common") == 0) {
        *out = in.type == JJ_FLOAT ? jj_float(round_real(in.u.f, p))
                                   : jj_int(round_whole(jj_whole(in), p));
        return FM_OK;
    }
    if (strcmp(how, "ceil") != 0 && strcmp(how, "floor") != 0)
        return jj_error(c, FM_EINVAL, "round: method must be common, ceil or floor");
    double unit = pow(10.0, (double)p), v = jj_number(in) * unit;
    if (!isfinite(v))
        return jj_error(c, FM_EINVAL, "round of what is not finite");
    *out = jj_float(((how[0] == 'c' ? ceil(v) : floor(v)) + 0.0) /
                    unit); /* Python's is an int: no -0 */
    return FM_OK;
}

const jj_filter jj_text_filters[] = {{"trim", f_trim},
                                     {"upper", f_upper},
                                     {"lower", f_lower},
                                     {"tojson", f_tojson},
                                     {"string", f_string},
                                     {"replace", f_replace},
                                     {"indent", f_indent},
                                     {"safe", f_string},
                                     {"capitalize", f_capitalize},
                                     {"title", f_title},
                                     {"center", f_center},
                                     {"escape", f_escape},
                                     {"e", f_escape},
                                     {"forceescape", f_escape},
                                     {"format", f_format},
                                     {"truncate", f_truncate},
                                     {"wordcount", f_wordcount},
                                     {"filesizeformat", f_filesizeformat},
                                     {"urlencode", f_urlencode},
                                     {"int", f_int},
                                     {"float", f_float},
                                     {"abs", f_abs},
                                     {"round", f_round}};
const size_t jj_text_filter_count = FM_ARRAY_LEN(jj_text_filters);
