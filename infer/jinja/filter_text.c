/* filter_text.c - filters of text and of numbers. Most of the former work on any value's str(). */
#include "infer/jinja/jinja.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

static fm_status as_text(jj_ctx *c, jj_val *out, jj_val in)
{
    fm_buf b;

    if (in.type == JJ_STRING) {
        *out = in;
        return FM_OK;
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = jj_to_text(c, &b, in);
    return jj_buf_str(c, out, &b, rc);
}

/* Checks that the arguments are among names, and gives `in` as text. */
static fm_status begin(jj_ctx *c, jj_val *s, jj_val in, const jj_args *a, const char *what,
                       const char *const *names, size_t n)
{
    FM_TRY(jj_args_check(c, a, what, names, n));

    return as_text(c, s, in);
}

static fm_status f_trim(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    FM_TRY(begin(c, &s, in, a, "trim", NAMES("chars"), 1));

    return jj_trim(c, out, s, jj_arg(a, 0, "chars"), true, true);
}

static fm_status f_upper(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    FM_TRY(begin(c, &s, in, a, "upper", NULL, 0));

    return jj_cased(c, out, s, JJ_UPPER);
}

static fm_status f_lower(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    FM_TRY(begin(c, &s, in, a, "lower", NULL, 0));

    return jj_cased(c, out, s, JJ_LOWER);
}

static fm_status f_capitalize(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    FM_TRY(begin(c, &s, in, a, "capitalize", NULL, 0));

    return jj_title(c, out, s, false);
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

    FM_THEN(rc, jj_work_by(c, s.u.s.n, JJ_MAP));
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < s.u.s.n;) {
        uint32_t cp;
        size_t n = jj_put_case(&b, s, i, JJ_UPPER), e;
        (void)fm_utf8_next((const uint8_t *)s.u.s.p + i, &cp);
        i += n;
        if (starts_words(cp))
            continue;
        for (e = i; e < s.u.s.n; e += n) {
            n = fm_utf8_next((const uint8_t *)s.u.s.p + e, &cp);
            if (starts_words(cp))
                break;
        }
        rc = jj_put_cased(c, &b, jj_str(s.u.s.p + i, e - i), JJ_LOWER);
        i = e;
    }
    return jj_buf_str(c, out, &b, rc);
}

static fm_status f_replace(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s, old = jj_arg(a, 0, "old"), new = jj_arg(a, 1, "new");
    FM_TRY(begin(c, &s, in, a, "replace", NAMES("old", "new", "count"), 3));

    FM_TRY(as_text(c, &old, old));
    FM_TRY(as_text(c, &new, new));
    return jj_replace(c, out, s, old, new, jj_arg(a, 2, "count"));
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

    FM_THEN(rc, jj_need_str(c, in, "indent"));
    FM_THEN(rc, jj_work(c, in.u.s.n));
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    if (width.type == JJ_STRING) {
        pad = width;
    } else if (width.type == JJ_INT) {
        rc = jj_work_by(c, (uint64_t)FM_MAX(FM_MIN(width.u.i, 100000), 0), JJ_CHAR);
        for (int64_t i = 0; i < width.u.i && i < 100000; i++)
            fm_buf_char(&b, ' ');
        FM_THEN(rc, jj_str_copy(c, &pad, b.data, b.len));
        fm_buf_clear(&b);
    }
    fm_buf_append(&b, in.u.s.p, in.u.s.n);
    fm_buf_char(&b, '\n');
    FM_THEN(rc, jj_str_copy(c, &text, b.data, b.len));
    FM_THEN(rc, jj_lines(c, &lines, text));
    fm_buf_clear(&b);
    if (rc < 0) {
        fm_buf_release(&b);
        return rc;
    }
    if (jj_truth(jj_arg(a, 1, "first")))
        fm_buf_append(&b, pad.u.s.p, pad.u.s.n);
    rc = join_lines(c, &b, lines.u.list, pad, jj_truth(jj_arg(a, 2, "blank")));
    return jj_buf_str(c, out, &b, rc);
}

/* ---- numbers ---- */

/* A number's text without blanks around and single underscores between digits; NULL: none. */
static fm_status plain_number(jj_ctx *c, jj_val in, char **out)
{
    jj_val t = in;
    size_t n = 0;
    fm_status rc = jj_trim(c, &t, in, jj_none(), true, true);

    *out = NULL;
    FM_THEN(rc, jj_work_by(c, t.u.s.n, 2 * JJ_CHAR));
    FM_THEN(rc, jj_work(c, JJ_CALL));
    FM_THEN(rc, jj_str_copy(c, &t, t.u.s.p, t.u.s.n));
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

static bool read_int(const char *p, int64_t *out)
{
    const char *digits = p + (*p == '-' || *p == '+');
    char *end;

    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    *out = strtoll(p, &end, 10);
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
    jj_val dflt = jj_arg(a, 0, "default");
    char *text = NULL;
    int64_t i = 0;
    double d = in.type == JJ_FLOAT ? in.u.f : (double)NAN;
    fm_status rc = jj_args_check(c, a, "int", NAMES("default"), 1);

    if (rc == FM_OK && in.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "convert", in, in);
    if (rc == FM_OK && in.type == JJ_STRING)
        rc = plain_number(c, in, &text);
    *out = dflt.type == JJ_UNDEFINED && a->count == 0 ? jj_int(0) : dflt;
    if (rc < 0)
        return rc;
    if (in.type == JJ_BOOL || in.type == JJ_INT)
        *out = jj_int(jj_whole(in));
    else if (text && read_int(text, &i))
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

const jj_filter jj_text_filters[] = {
    {"trim", f_trim},     {"upper", f_upper},   {"lower", f_lower},
    {"tojson", f_tojson}, {"string", f_string}, {"replace", f_replace},
    {"indent", f_indent}, {"safe", f_string},   {"capitalize", f_capitalize},
    {"title", f_title},   {"int", f_int},       {"float", f_float}};
const size_t jj_text_filter_count = FM_ARRAY_LEN(jj_text_filters);
