/* str.c - methods of strings, as Python has them. */
#include "infer/jinja/jinja.h"

#include <string.h>

#include "infer/tokenizer/internal.h"

static size_t next_cp(jj_val s, size_t at, uint32_t *cp)
{
    return fm_utf8_next((const uint8_t *)s.u.s.p + at, cp);
}

static bool is_space(uint32_t cp) /* Python also counts the separators U+001C to U+001F */
{
    return fmi_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

static fm_status in_set(jj_ctx *c, bool *out, jj_val chars, uint32_t cp)
{
    uint32_t have;
    bool set = chars.type == JJ_STRING;
    fm_status rc = jj_work_by(c, 1 + (set ? chars.u.s.n : 0), JJ_CHAR);

    *out = !set && is_space(cp);
    for (size_t i = 0; rc == FM_OK && set && !*out && i < chars.u.s.n;) {
        i += next_cp(chars, i, &have);
        *out = have == cp;
    }
    return rc;
}

fm_status jj_trim(jj_ctx *c, jj_val *out, jj_val s, jj_val chars, bool left, bool right)
{
    const uint8_t *p = (const uint8_t *)s.u.s.p;
    size_t b = 0, e = s.u.s.n;
    uint32_t cp;
    bool in = true;
    fm_status rc = FM_OK;

    if (chars.type != JJ_STRING && chars.type != JJ_UNDEFINED && chars.type != JJ_NONE)
        return jj_error(c, FM_EINVAL, "strip needs a string, not %s", jj_type_name(chars));
    while (rc == FM_OK && left && in && b < e) {
        size_t n = fm_utf8_next(p + b, &cp);
        rc = in_set(c, &in, chars, cp);
        b += in ? n : 0;
    }
    in = true;
    while (rc == FM_OK && right && in && e > b) {
        size_t k = e - 1;
        while (k > b && (p[k] & 0xc0) == 0x80)
            k--;
        fm_utf8_next(p + k, &cp);
        rc = in_set(c, &in, chars, cp);
        e = in ? k : e;
    }
    *out = jj_str(s.u.s.p + b, e - b);
    return rc;
}

fm_status jj_replace(jj_ctx *c, jj_val *out, jj_val s, jj_val from, jj_val to, jj_val count)
{
    int64_t left = count.type == JJ_INT ? count.u.i : -1;
    size_t i = 0;
    fm_buf b;

    fm_status rc = jj_need_str(c, from, "replace");
    FM_THEN(rc, jj_need_str(c, to, "replace"));
    FM_THEN(rc, jj_count_search(c, s, from));
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    while (rc == FM_OK && left != 0 && from.u.s.n > 0 && i < s.u.s.n) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, from.u.s.p, from.u.s.n);
        if (!hit)
            break;
        rc = jj_work(c, JJ_HIT + from.u.s.n + to.u.s.n);
        fm_buf_append(&b, s.u.s.p + i, (size_t)(hit - s.u.s.p) - i);
        fm_buf_append(&b, to.u.s.p, to.u.s.n);
        i = (size_t)(hit - s.u.s.p) + from.u.s.n;
        left--;
    }
    for (; rc == FM_OK && from.u.s.n == 0 && left != 0; left--) {
        uint32_t cp; /* inserts before every character and at the end */
        rc = jj_work(c, 2 * JJ_CHAR + to.u.s.n);
        fm_buf_append(&b, to.u.s.p, to.u.s.n);
        if (i >= s.u.s.n)
            break;
        size_t n = next_cp(s, i, &cp);
        fm_buf_append(&b, s.u.s.p + i, n);
        i += n;
    }
    fm_buf_append(&b, s.u.s.p + i, s.u.s.n - i);
    return jj_buf_str(c, out, &b, rc);
}

/* whole: as str.title, a capital behind every uncased character; else only the first character. */
fm_status jj_title(jj_ctx *c, jj_val *out, jj_val s, bool whole)
{
    fm_buf b;
    bool start = true;
    FM_TRY(jj_work_by(c, s.u.s.n, JJ_MAP));
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        (void)next_cp(s, i, &cp);
        i += jj_put_case(&b, s, i, start ? JJ_TITLE : JJ_LOWER);
        start = whole && !jj_is_cased(cp);
    }
    return jj_buf_str(c, out, &b, FM_OK);
}

/* ---- splitting ---- */

static fm_status split_on(jj_ctx *c, jj_list *list, jj_val s, jj_val sep, int64_t max)
{
    size_t i = 0;
    FM_TRY(jj_count_search(c, s, sep));

    while (max-- != 0) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, sep.u.s.p, sep.u.s.n);
        if (!hit)
            break;
        FM_TRY(jj_work(c, JJ_HIT + sep.u.s.n));
        FM_TRY(jj_list_push(c, list, jj_str(s.u.s.p + i, (size_t)(hit - s.u.s.p) - i)));
        i = (size_t)(hit - s.u.s.p) + sep.u.s.n;
    }
    return jj_list_push(c, list, jj_str(s.u.s.p + i, s.u.s.n - i));
}

static fm_status split_spaces(jj_ctx *c, jj_list *list, jj_val s, int64_t max)
{
    jj_val rest = s, none = jj_none();
    FM_TRY(jj_trim(c, &rest, rest, none, true, false));

    while (rest.u.s.n > 0) {
        size_t e = 0;
        if (max-- == 0)
            return jj_list_push(c, list, rest);
        while (e < rest.u.s.n) {
            uint32_t cp;
            size_t n = next_cp(rest, e, &cp);
            if (is_space(cp))
                break;
            e += n;
        }
        FM_TRY(jj_list_push(c, list, jj_str(rest.u.s.p, e)));
        FM_TRY(jj_trim(c, &rest, jj_str(rest.u.s.p + e, rest.u.s.n - e), none, true, false));
    }
    return FM_OK;
}

static fm_status m_split(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    static const char *const names[] = {"sep", "maxsplit"};
    jj_val sep = jj_arg(a, 0, "sep"), max = jj_arg(a, 1, "maxsplit");
    int64_t n = max.type == JJ_INT ? max.u.i : -1;
    FM_TRY(jj_args_check(c, a, "split", names, 2));

    FM_TRY(jj_list_new(c, out));
    if (sep.type == JJ_STRING && sep.u.s.n == 0)
        return jj_error(c, FM_EINVAL, "split needs a separator that is not empty");
    if (sep.type == JJ_STRING)
        return split_on(c, out->u.list, s, sep, n);
    if (sep.type != JJ_NONE && sep.type != JJ_UNDEFINED)
        return jj_error(c, FM_EINVAL, "split needs a string, not %s", jj_type_name(sep));
    FM_TRY(jj_work_by(c, s.u.s.n, JJ_CHAR));
    return split_spaces(c, out->u.list, s, n);
}

/* Bytes of the line break at byte `at` of s, 0: none. */
static size_t break_at(jj_val s, size_t at)
{
    uint32_t cp;
    size_t n = next_cp(s, at, &cp);

    if (cp == '\r' && at + 1 < s.u.s.n && s.u.s.p[at + 1] == '\n')
        return 2;
    bool is = (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
              cp == 0x2028 || cp == 0x2029;
    return is ? n : 0;
}

fm_status jj_lines(jj_ctx *c, jj_val *out, jj_val s)
{
    size_t begin = 0, i = 0;
    fm_status rc = jj_list_new(c, out);

    FM_THEN(rc, jj_work_by(c, s.u.s.n, 2 * JJ_CHAR));
    while (rc == FM_OK && i < s.u.s.n) {
        size_t n = break_at(s, i);
        if (n > 0) {
            rc = jj_list_push(c, out->u.list, jj_str(s.u.s.p + begin, i - begin));
            begin = i += n;
        } else {
            uint32_t cp;
            i += next_cp(s, i, &cp);
        }
    }
    if (rc == FM_OK && begin < s.u.s.n)
        rc = jj_list_push(c, out->u.list, jj_str(s.u.s.p + begin, s.u.s.n - begin));
    return rc;
}

/* ---- searching, joining ---- */

static bool affix(jj_val s, jj_val part, bool front)
{
    if (part.type != JJ_STRING || part.u.s.n > s.u.s.n)
        return false;
    const char *at = front ? s.u.s.p : s.u.s.p + s.u.s.n - part.u.s.n;
    return memcmp(at, part.u.s.p, part.u.s.n) == 0;
}

/* startswith and endswith: part is one string or a tuple of strings. */
static fm_status has_affix(jj_ctx *c, jj_val *out, jj_val s, jj_val part, bool front)
{
    bool hit = affix(s, part, front);

    if (part.type != JJ_TUPLE && part.type != JJ_STRING)
        return jj_need_str(c, part, front ? "startswith" : "endswith");
    for (size_t i = 0; part.type == JJ_TUPLE && i < part.u.list->count && !hit; i++) {
        jj_val one = part.u.list->v[i];
        FM_TRY(jj_work(c, JJ_ITEM + (one.type == JJ_STRING ? one.u.s.n : 0)));
        FM_TRY(jj_need_str(c, one, front ? "startswith" : "endswith"));

        hit = affix(s, one, front);
    }
    *out = jj_bool(hit);
    return FM_OK;
}

static fm_status m_startswith(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    return has_affix(c, out, s, a->pos[0], true);
}

static fm_status m_endswith(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    return has_affix(c, out, s, a->pos[0], false);
}

static fm_status m_find(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    const char *hit = NULL;
    fm_status rc = jj_need_str(c, a->pos[0], "find");

    FM_THEN(rc, jj_find(c, &hit, s, a->pos[0]));
    *out = jj_int(hit ? (int64_t)jj_chars(jj_str(s.u.s.p, (size_t)(hit - s.u.s.p))) : -1);
    return rc;
}

static fm_status m_join(jj_ctx *c, jj_val *out, jj_val sep, const jj_args *a)
{
    jj_val items;
    fm_buf b;
    fm_status rc = jj_as_list(c, &items, a->pos[0]);

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < items.u.list->count; i++) {
        jj_val v = items.u.list->v[i];
        rc = jj_need_str(c, v, "join");
        FM_THEN(rc, jj_work(c, 2 * JJ_ITEM + sep.u.s.n + v.u.s.n));
        if (rc < 0)
            break;
        if (i > 0)
            fm_buf_append(&b, sep.u.s.p, sep.u.s.n);
        fm_buf_append(&b, v.u.s.p, v.u.s.n);
    }
    return jj_buf_str(c, out, &b, rc);
}

/* ---- format ---- */

/* The arguments that the fields of a format take: in turn {}, by number {0}, by name {key}. */
typedef struct fields {
    const jj_args *args;
    size_t next;
    bool in_turn, numbered;
} fields;

static fm_status field_value(jj_ctx *c, jj_val *out, fields *f, const char *name, size_t n)
{
    bool digits = n < 10 && strspn(name, "0123456789") >= n;
    size_t at = 0;

    *out = jj_undefined(NULL);
    if (n > 0 && !digits) {
        FM_TRY(jj_work_by(c, f->args->kw_count + 1, n));
        for (size_t i = 0; i < f->args->kw_count; i++) {
            const char *kw = f->args->kw[i];
            if (strlen(kw) != n || memcmp(kw, name, n) != 0)
                continue;
            *out = f->args->kw_value[i];
            return FM_OK;
        }
        return jj_error(c, FM_EINVAL, "format: no argument '%.*s'", (int)n, name);
    }
    for (size_t i = 0; i < n; i++)
        at = at * 10 + (size_t)(name[i] - '0');
    f->in_turn = f->in_turn || n == 0;
    f->numbered = f->numbered || n > 0;
    if (f->in_turn && f->numbered)
        return jj_error(c, FM_EINVAL, "format: fields with a number and without one");
    at = n > 0 ? at : f->next++;
    if (at >= f->args->count)
        return jj_error(c, FM_EINVAL, "format: no argument %zu", at);
    *out = f->args->pos[at];
    return FM_OK;
}

/* Writes the field behind the '{' at s[*at]; *at moves to its '}'. */
static fm_status put_field(jj_ctx *c, fm_buf *b, jj_val s, size_t *at, fields *f)
{
    const char *name = s.u.s.p + *at + 1, *end = memchr(name, '}', s.u.s.n - *at - 1);
    size_t n = end ? (size_t)(end - name) : 0;
    jj_val v;

    if (!end)
        return jj_error(c, FM_EINVAL, "format: a '{' without its '}'");
    for (size_t i = 0; i < n; i++)
        if (strchr("{!:.[", name[i]))
            return jj_error(c, FM_EUNSUPPORTED, "format: the field '{%.*s}' is not implemented",
                            (int)FM_MIN(n, (size_t)80), name);
    fm_status rc = field_value(c, &v, f, name, n);
    *at += n + 1;
    return rc < 0 ? rc : jj_to_text(c, b, v);
}

static fm_status m_format(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    fields f = {.args = a};
    fm_buf b;
    fm_status rc = jj_work_by(c, s.u.s.n, JJ_CHAR);

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < s.u.s.n; i++) {
        char ch = s.u.s.p[i];
        bool brace = ch == '{' || ch == '}', twice = i + 1 < s.u.s.n && s.u.s.p[i + 1] == ch;
        if (!brace || twice) {
            fm_buf_char(&b, ch);
            i += brace;
        } else if (ch == '}') {
            rc = jj_error(c, FM_EINVAL, "format: a '}' without its '{'");
        } else {
            rc = put_field(c, &b, s, &i, &f);
        }
    }
    return jj_buf_str(c, out, &b, rc);
}

/* ---- the table ---- */

static fm_status m_strip(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    return jj_trim(c, out, s, jj_arg(a, 0, NULL), true, true);
}

static fm_status m_lstrip(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    return jj_trim(c, out, s, jj_arg(a, 0, NULL), true, false);
}

static fm_status m_rstrip(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    return jj_trim(c, out, s, jj_arg(a, 0, NULL), false, true);
}

static fm_status m_replace(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    return jj_replace(c, out, s, a->pos[0], a->pos[1], jj_arg(a, 2, NULL));
}

static fm_status m_title(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    (void)a;
    return jj_title(c, out, s, true);
}

static fm_status m_capitalize(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    (void)a;
    return jj_title(c, out, s, false);
}

static fm_status m_lower(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    (void)a;
    return jj_cased(c, out, s, JJ_LOWER);
}

static fm_status m_upper(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    (void)a;
    return jj_cased(c, out, s, JJ_UPPER);
}

static fm_status m_splitlines(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    (void)a;
    return jj_lines(c, out, s);
}

static const struct {
    const char *name;
    jj_filter_fn fn;
    size_t least, most;
} methods[] = {{"split", m_split, 0, 2},
               {"splitlines", m_splitlines, 0, 0},
               {"strip", m_strip, 0, 1},
               {"lstrip", m_lstrip, 0, 1},
               {"rstrip", m_rstrip, 0, 1},
               {"startswith", m_startswith, 1, 1},
               {"endswith", m_endswith, 1, 1},
               {"replace", m_replace, 2, 3},
               {"find", m_find, 1, 1},
               {"join", m_join, 1, 1},
               {"format", m_format, 0, 64},
               {"title", m_title, 0, 0},
               {"capitalize", m_capitalize, 0, 0},
               {"lower", m_lower, 0, 0},
               {"upper", m_upper, 0, 0}};

/* Further methods of Python's strings, which are not implemented: as attributes they exist too. */
static const char *const others[] = {
    "casefold",     "center",       "count",      "encode",    "expandtabs",  "format_map",
    "index",        "isalnum",      "isalpha",    "isascii",   "isdecimal",   "isdigit",
    "isidentifier", "islower",      "isnumeric",  "isspace",   "isprintable", "istitle",
    "isupper",      "ljust",        "maketrans",  "partition", "rfind",       "rindex",
    "removeprefix", "removesuffix", "rpartition", "rjust",     "rsplit",      "swapcase",
    "translate",    "zfill"};

bool jj_is_str_method(const char *name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++)
        if (strcmp(methods[i].name, name) == 0)
            return true;
    for (size_t i = 0; i < FM_ARRAY_LEN(others); i++)
        if (strcmp(others[i], name) == 0)
            return true;
    return false;
}

fm_status jj_str_method(jj_ctx *c, jj_val *out, jj_val s, const char *name, const jj_args *a)
{
    fm_status rc = jj_work_by(c, s.u.s.n, 4); /* most methods look at every byte once or twice */
    size_t i = 0;

    while (i < FM_ARRAY_LEN(methods) && strcmp(methods[i].name, name) != 0)
        i++;
    if (rc < 0)
        return rc;
    if (i == FM_ARRAY_LEN(methods))
        return jj_error(c, FM_EUNSUPPORTED, "string method '%s' is not implemented", name);
    if (a->kw_count > 0 && methods[i].fn != m_split && methods[i].fn != m_format)
        return jj_error(c, FM_EUNSUPPORTED, "string.%s with keywords is not implemented", name);
    if (a->count < methods[i].least || a->count > methods[i].most)
        return jj_error(c, FM_EUNSUPPORTED, "string.%s with %zu arguments is not implemented", name,
                        a->count);
    return methods[i].fn(c, out, s, a);
}
