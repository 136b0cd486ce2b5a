/* str.c - methods of strings, as Python has them. */
#include "infer/jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

#include "infer/tokenizer/internal.h"

static size_t next_cp(jj_val s, size_t at, uint32_t *cp)
{
    return fmi_utf8_next((const uint8_t *)s.u.s.p + at, cp);
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
        size_t n = fmi_utf8_next(p + b, &cp);
        rc = in_set(c, &in, chars, cp);
        b += in ? n : 0;
    }
    in = true;
    while (rc == FM_OK && right && in && e > b) {
        size_t k = e - 1;
        while (k > b && (p[k] & 0xc0) == 0x80)
            k--;
        fmi_utf8_next(p + k, &cp);
        rc = in_set(c, &in, chars, cp);
        e = in ? k : e;
    }
    *out = jj_str(s.u.s.p + b, e - b);
    return rc;
}

/* jj_count_search backwards, where every place may compare the whole part. */
static fm_status count_search_back(jj_ctx *c, jj_val s, jj_val part)
{
    size_t places = s.u.s.n >= part.u.s.n ? s.u.s.n - part.u.s.n + 1 : 0;

    return jj_work_by(c, places, 4 + part.u.s.n / 16);
}

fm_status jj_replace(jj_ctx *c, jj_val *out, jj_val s, jj_val from, jj_val to, jj_val count)
{
    int64_t left = count.type == JJ_INT ? count.u.i : -1;
    size_t i = 0;
    fm_buf b;

    fm_status rc = jj_need_str(c, from, "replace");
    if (rc == FM_OK)
        rc = jj_need_str(c, to, "replace");
    if (rc == FM_OK)
        rc = jj_count_search(c, s, from);
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
        uint32_t cp; /* before every character and at the end */
        rc = jj_work(c, 2 * JJ_CHAR + to.u.s.n);
        fm_buf_append(&b, to.u.s.p, to.u.s.n);
        if (i >= s.u.s.n)
            break;
        size_t n = next_cp(s, i, &cp);
        fm_buf_append(&b, s.u.s.p + i, n);
        i += n;
    }
    fm_buf_append(&b, s.u.s.p + i, s.u.s.n - i);
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* whole: str.title (a capital after whatever is not cased); else only the first character. */
fm_status jj_title(jj_ctx *c, jj_val *out, jj_val s, bool whole)
{
    fm_buf b;
    bool start = true;
    fm_status rc = jj_work_by(c, s.u.s.n, JJ_MAP);

    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        (void)next_cp(s, i, &cp);
        i += jj_put_case(&b, s, i, start ? JJ_TITLE : JJ_LOWER);
        start = whole && !jj_is_cased(cp);
    }
    return jj_buf_str(c, out, &b);
}

/* lower, upper, swapcase, casefold */
static fm_status change(jj_ctx *c, jj_val *out, jj_val s, const char *how)
{
    fm_buf b;
    fm_status rc = jj_work_by(c, s.u.s.n, how[0] == 'c' ? 2 * JJ_MAP : JJ_MAP);

    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        size_t n = next_cp(s, i, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        bool big = k == UTF8PROC_CATEGORY_LU, small = k == UTF8PROC_CATEGORY_LL;
        if (how[0] == 's' && !big && !small)
            fm_buf_append(&b, s.u.s.p + i, n);
        else
            (void)jj_put_case(&b, s, i,
                              how[0] == 'c'                             ? JJ_FOLD
                              : how[0] == 'l' || (how[0] == 's' && big) ? JJ_LOWER
                                                                        : JJ_UPPER);
        i += n;
    }
    return jj_buf_str(c, out, &b);
}

/* ---- splitting ---- */

static fm_status split_on(jj_ctx *c, jj_list *list, jj_val s, jj_val sep, int64_t max)
{
    size_t i = 0;
    fm_status rc = jj_count_search(c, s, sep);

    while (rc == FM_OK && max-- != 0) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, sep.u.s.p, sep.u.s.n);
        if (!hit)
            break;
        rc = jj_work(c, JJ_HIT + sep.u.s.n);
        if (rc == FM_OK)
            rc = jj_list_push(c, list, jj_str(s.u.s.p + i, (size_t)(hit - s.u.s.p) - i));
        i = (size_t)(hit - s.u.s.p) + sep.u.s.n;
    }
    return rc < 0 ? rc : jj_list_push(c, list, jj_str(s.u.s.p + i, s.u.s.n - i));
}

/* The last place where part lies within the first n bytes; SIZE_MAX: none. */
static size_t last_of(const char *p, size_t n, jj_val part)
{
    for (size_t i = n >= part.u.s.n ? n - part.u.s.n + 1 : 0; i-- > 0;)
        if (memcmp(p + i, part.u.s.p, part.u.s.n) == 0)
            return i;
    return SIZE_MAX;
}

/* The first or the last place of part; SIZE_MAX: none. */
static fm_status place_of(jj_ctx *c, size_t *at, jj_val s, jj_val part, bool last)
{
    const char *hit = NULL;
    fm_status rc = last ? count_search_back(c, s, part) : jj_find(c, &hit, s, part);

    *at = hit ? (size_t)(hit - s.u.s.p) : SIZE_MAX;
    if (rc == FM_OK && last)
        *at = last_of(s.u.s.p, s.u.s.n, part);
    return rc;
}

static void turn_round(jj_list *list)
{
    for (size_t i = 0; i < list->count / 2; i++) {
        jj_val v = list->v[i];
        list->v[i] = list->v[list->count - 1 - i];
        list->v[list->count - 1 - i] = v;
    }
}

static fm_status rsplit_on(jj_ctx *c, jj_list *list, jj_val s, jj_val sep, int64_t max)
{
    size_t end = s.u.s.n;
    fm_status rc = count_search_back(c, s, sep);

    while (rc == FM_OK && max-- != 0) {
        size_t at = last_of(s.u.s.p, end, sep);
        if (at == SIZE_MAX)
            break;
        rc = jj_list_push(c, list, jj_str(s.u.s.p + at + sep.u.s.n, end - at - sep.u.s.n));
        end = at;
    }
    if (rc == FM_OK)
        rc = jj_list_push(c, list, jj_str(s.u.s.p, end));
    turn_round(list);
    return rc;
}

static fm_status split_spaces(jj_ctx *c, jj_list *list, jj_val s, int64_t max)
{
    jj_val rest = s, none = jj_none();
    fm_status rc = jj_trim(c, &rest, rest, none, true, false);

    while (rc == FM_OK && rest.u.s.n > 0) {
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
        rc = jj_list_push(c, list, jj_str(rest.u.s.p, e));
        if (rc == FM_OK)
            rc = jj_trim(c, &rest, jj_str(rest.u.s.p + e, rest.u.s.n - e), none, true, false);
    }
    return rc;
}

static fm_status rsplit_spaces(jj_ctx *c, jj_list *list, jj_val s, int64_t max)
{
    jj_val rest = s, none = jj_none();
    fm_status rc = jj_trim(c, &rest, rest, none, false, true);

    while (rc == FM_OK && rest.u.s.n > 0) {
        size_t b = rest.u.s.n;
        if (max-- == 0) {
            rc = jj_list_push(c, list, rest);
            break;
        }
        while (b > 0) {
            uint32_t cp;
            size_t k = b - 1;
            while (k > 0 && (rest.u.s.p[k] & 0xc0) == 0x80)
                k--;
            (void)next_cp(rest, k, &cp);
            if (is_space(cp))
                break;
            b = k;
        }
        rc = jj_list_push(c, list, jj_str(rest.u.s.p + b, rest.u.s.n - b));
        if (rc == FM_OK)
            rc = jj_trim(c, &rest, jj_str(rest.u.s.p, b), none, false, true);
    }
    turn_round(list);
    return rc;
}

static fm_status split(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a, bool right)
{
    static const char *const names[] = {"sep", "maxsplit"};
    jj_val sep = jj_arg(a, 0, "sep"), max = jj_arg(a, 1, "maxsplit");
    int64_t n = max.type == JJ_INT ? max.u.i : -1;
    fm_status rc = jj_args_check(c, a, "split", names, 2);

    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    if (rc < 0)
        return rc;
    if (sep.type == JJ_STRING && sep.u.s.n == 0)
        return jj_error(c, FM_EINVAL, "split needs a separator that is not empty");
    if (sep.type == JJ_STRING)
        return right ? rsplit_on(c, out->u.list, s, sep, n) : split_on(c, out->u.list, s, sep, n);
    if (sep.type != JJ_NONE && sep.type != JJ_UNDEFINED)
        return jj_error(c, FM_EINVAL, "split needs a string, not %s", jj_type_name(sep));
    rc = jj_work_by(c, s.u.s.n, JJ_CHAR);
    if (rc < 0)
        return rc;
    return right ? rsplit_spaces(c, out->u.list, s, n) : split_spaces(c, out->u.list, s, n);
}

/* Bytes of the line break at p, 0: none. */
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

fm_status jj_lines(jj_ctx *c, jj_val *out, jj_val s, bool keep)
{
    size_t begin = 0, i = 0;
    fm_status rc = jj_list_new(c, out);

    if (rc == FM_OK)
        rc = jj_work_by(c, s.u.s.n, 2 * JJ_CHAR);
    while (rc == FM_OK && i < s.u.s.n) {
        size_t n = break_at(s, i);
        if (n > 0) {
            rc = jj_list_push(c, out->u.list, jj_str(s.u.s.p + begin, i - begin + (keep ? n : 0)));
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

static fm_status partition(jj_ctx *c, jj_val *out, jj_val s, jj_val sep, bool right)
{
    fm_status rc = jj_need_str(c, sep, "partition");

    if (rc == FM_OK && sep.u.s.n == 0)
        return jj_error(c, FM_EINVAL, "partition needs a separator that is not empty");
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    if (rc < 0)
        return rc;
    size_t at;
    out->type = JJ_TUPLE;
    rc = place_of(c, &at, s, sep, right);
    jj_val none = jj_str("", 0), part[3] = {s, none, none};
    if (at != SIZE_MAX) {
        part[0] = jj_str(s.u.s.p, at);
        part[1] = sep;
        part[2] = jj_str(s.u.s.p + at + sep.u.s.n, s.u.s.n - at - sep.u.s.n);
    } else if (right) {
        part[0] = none;
        part[2] = s;
    }
    for (int i = 0; rc == FM_OK && i < 3; i++)
        rc = jj_list_push(c, out->u.list, part[i]);
    return rc;
}

/* ---- searching ---- */

/* s[from:to] by arguments `at` and behind; *skipped: characters before it. false: outside. */
static bool within(jj_val *s, const jj_args *a, size_t at, int64_t *skipped)
{
    int64_t n = (int64_t)jj_chars(*s), from = 0, to = n;

    if (a->count > at && a->pos[at].type == JJ_INT)
        from = a->pos[at].u.i < 0 ? FM_MAX(a->pos[at].u.i + n, 0) : a->pos[at].u.i;
    if (a->count > at + 1 && a->pos[at + 1].type == JJ_INT)
        to = a->pos[at + 1].u.i < 0 ? FM_MAX(a->pos[at + 1].u.i + n, 0) : a->pos[at + 1].u.i;
    to = FM_MIN(to, n);
    if (from > to)
        return false;
    size_t b = jj_char_offset(*s, (size_t)from), e = jj_char_offset(*s, (size_t)to);
    *skipped = from;
    *s = jj_str(s->u.s.p + b, e - b);
    return true;
}

static bool affix(jj_val s, jj_val part, bool front)
{
    if (part.type != JJ_STRING || part.u.s.n > s.u.s.n)
        return false;
    const char *at = front ? s.u.s.p : s.u.s.p + s.u.s.n - part.u.s.n;
    return memcmp(at, part.u.s.p, part.u.s.n) == 0;
}

/* startswith, endswith: one string or a tuple of them */
static fm_status has_affix(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a, bool front)
{
    jj_val part = a->pos[0];
    int64_t skipped;
    bool inside = within(&s, a, 1, &skipped), hit = inside && affix(s, part, front);

    if (part.type == JJ_TUPLE) {
        for (size_t i = 0; i < part.u.list->count && !hit; i++) {
            jj_val one = part.u.list->v[i];
            fm_status rc = jj_work(c, JJ_ITEM + (one.type == JJ_STRING ? one.u.s.n : 0));
            if (rc < 0)
                return rc;
            hit = inside && affix(s, one, front);
        }
    } else if (part.type != JJ_STRING) {
        return jj_need_str(c, part, front ? "startswith" : "endswith");
    }
    *out = jj_bool(hit);
    return FM_OK;
}

static fm_status count_of(jj_ctx *c, int64_t *n, jj_val s, jj_val part)
{
    fm_status rc = jj_count_search(c, s, part);

    *n = 0;
    if (part.u.s.n == 0)
        *n = (int64_t)jj_chars(s) + 1;
    for (size_t i = 0; rc == FM_OK && part.u.s.n > 0 && i < s.u.s.n; ++*n) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, part.u.s.p, part.u.s.n);
        if (!hit)
            break;
        i = (size_t)(hit - s.u.s.p) + part.u.s.n;
        rc = jj_work(c, JJ_HIT + part.u.s.n);
    }
    return rc;
}

/* find, rfind, index, rindex, count */
static fm_status search(jj_ctx *c, jj_val *out, jj_val s, const char *how, const jj_args *a)
{
    int64_t skipped = 0, found = -1;
    jj_val part = jj_arg(a, 0, NULL);
    fm_status rc = jj_need_str(c, part, how);
    bool inside = rc == FM_OK && within(&s, a, 1, &skipped);

    if (rc < 0)
        return rc;
    if (how[0] == 'c') {
        found = 0;
        if (inside)
            rc = count_of(c, &found, s, part);
        *out = jj_int(found);
        return rc;
    }
    if (inside) {
        size_t at;
        rc = place_of(c, &at, s, part, how[0] == 'r');
        if (rc < 0)
            return rc;
        if (at != SIZE_MAX)
            found = skipped + (int64_t)jj_chars(jj_str(s.u.s.p, at));
    }
    if (found < 0 && strstr(how, "index"))
        return jj_error(c, FM_EINVAL, "substring not found");
    *out = jj_int(found);
    return FM_OK;
}

/* ---- fields ---- */

/* ljust, rjust, center, zfill */
static fm_status justify(jj_ctx *c, jj_val *out, jj_val s, const char *how, const jj_args *a)
{
    jj_val fill = a->count > 1 ? a->pos[1] : jj_str(" ", 1);
    fm_buf b;
    fm_status rc = jj_work(c, s.u.s.n + (fill.type == JJ_STRING ? fill.u.s.n : 0));

    if (rc < 0)
        return rc;
    if (a->pos[0].type != JJ_INT || fill.type != JJ_STRING || jj_chars(fill) != 1)
        return jj_error(c, FM_EINVAL, "%s needs a width and one character", how);
    int64_t pad = a->pos[0].u.i - (int64_t)jj_chars(s);
    if (pad > (int64_t)FM_CHAT_OUTPUT_MAX)
        return jj_error(c, FM_ELIMIT, "%s of %lld", how, (long long)pad);
    if (pad <= 0) {
        *out = s;
        return FM_OK;
    }
    rc = jj_work_by(c, (uint64_t)pad, JJ_CHAR);
    if (rc < 0)
        return rc;
    int64_t left = how[0] == 'r' ? pad : how[0] == 'c' ? pad / 2 + (pad & a->pos[0].u.i & 1) : 0;
    size_t sign = 0;
    if (how[0] == 'z') {
        fill = jj_str("0", 1);
        left = pad;
        sign = s.u.s.n > 0 && (s.u.s.p[0] == '-' || s.u.s.p[0] == '+');
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_buf_append(&b, s.u.s.p, sign);
    for (int64_t i = 0; i < left; i++)
        fm_buf_append(&b, fill.u.s.p, fill.u.s.n);
    fm_buf_append(&b, s.u.s.p + sign, s.u.s.n - sign);
    for (int64_t i = FM_MAX(left, 0); i < pad; i++)
        fm_buf_append(&b, fill.u.s.p, fill.u.s.n);
    return jj_buf_str(c, out, &b);
}

fm_status jj_center(jj_ctx *c, jj_val *out, jj_val s, jj_val width)
{
    return justify(c, out, s, "center", &(jj_args){.pos = &width, .count = 1});
}

static fm_status expand_tabs(jj_ctx *c, jj_val *out, jj_val s, jj_val size)
{
    int64_t every = size.type == JJ_INT ? size.u.i : 8, column = 0;
    fm_buf b;

    if (every > 1000)
        return jj_error(c, FM_ELIMIT, "tabs of more than 1000");
    fm_status rc = jj_work_by(c, s.u.s.n, JJ_CHAR);
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < s.u.s.n;) {
        uint32_t cp;
        size_t n = next_cp(s, i, &cp);
        if (cp == '\t') {
            int64_t k = every > 0 ? every - column % every : 0;
            rc = jj_work_by(c, (uint64_t)k, JJ_CHAR);
            for (; rc == FM_OK && k > 0; k--, column++)
                fm_buf_char(&b, ' ');
        } else {
            fm_buf_append(&b, s.u.s.p + i, n);
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        }
        i += n;
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static fm_status join_strings(jj_ctx *c, jj_val *out, jj_val sep, jj_val list)
{
    jj_val items;
    fm_buf b;
    fm_status rc = jj_as_list(c, &items, list);

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < items.u.list->count; i++) {
        jj_val v = items.u.list->v[i];
        rc = jj_need_str(c, v, "join");
        if (rc == FM_OK)
            rc = jj_work(c, 2 * JJ_ITEM + sep.u.s.n + v.u.s.n);
        if (rc < 0)
            break;
        if (i > 0)
            fm_buf_append(&b, sep.u.s.p, sep.u.s.n);
        fm_buf_append(&b, v.u.s.p, v.u.s.n);
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* ---- what kind of text ---- */

static bool category_in(uint32_t cp, utf8proc_category_t lo, utf8proc_category_t hi)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);

    return k >= lo && k <= hi;
}

static bool is_alpha(uint32_t cp)
{
    return category_in(cp, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

static bool is_decimal(uint32_t cp)
{
    return category_in(cp, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND);
}

static bool is_digit(uint32_t cp) /* with superscripts, subscripts and circled ones */
{
    return is_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
           (cp >= 0x2460 && cp <= 0x2468) || (cp >= 0x2474 && cp <= 0x247c) ||
           (cp >= 0x2488 && cp <= 0x2490);
}

static bool is_numeric(uint32_t cp)
{
    static const uint16_t han[] = {0x4e00, 0x4e8c, 0x4e09, 0x56db, 0x4e94, 0x516d, 0x4e03,
                                   0x516b, 0x4e5d, 0x5341, 0x767e, 0x5343, 0x4e07, 0x5104};

    for (size_t i = 0; i < FM_ARRAY_LEN(han); i++)
        if (cp == han[i])
            return true;
    return category_in(cp, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

static bool is_alnum(uint32_t cp)
{
    return is_alpha(cp) || is_numeric(cp);
}

bool jj_is_word(uint32_t cp)
{
    return is_alnum(cp) || cp == '_';
}

static bool is_ascii(uint32_t cp)
{
    return cp < 0x80;
}

static bool is_name(uint32_t cp)
{
    return fmi_is_word(cp) && cp != 0x200c && cp != 0x200d;
}

static bool all_of(jj_val s, bool (*fn)(uint32_t), bool empty)
{
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        i += next_cp(s, i, &cp);
        if (!fn(cp))
            return false;
    }
    return s.u.s.n > 0 || empty;
}

/* islower, isupper: all that is cased is so, and something is. */
static bool all_case(jj_val s, bool upper)
{
    bool any = false;

    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        i += next_cp(s, i, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        if (k == UTF8PROC_CATEGORY_LT || k == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
            return false;
        any = any || k == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
    }
    return any;
}

fm_status jj_all_case(jj_ctx *c, bool *out, jj_val s, bool upper)
{
    fm_status rc = jj_work_by(c, s.u.s.n, 2 * JJ_CHAR);

    *out = rc == FM_OK && all_case(s, upper);
    return rc;
}

static bool is_title(jj_val s)
{
    bool any = false, before = false;

    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        i += next_cp(s, i, &cp);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
        bool big = k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT;
        if ((big && before) || (k == UTF8PROC_CATEGORY_LL && !before))
            return false;
        before = jj_is_cased(cp);
        any = any || before;
    }
    return any;
}

static bool kind_test(jj_val s, const char *name, bool *out)
{
    static const struct {
        const char *name;
        bool (*fn)(uint32_t);
    } all[] = {{"isalpha", is_alpha}, {"isdigit", is_digit},           {"isnumeric", is_numeric},
               {"isalnum", is_alnum}, {"isdecimal", is_decimal},       {"isspace", is_space},
               {"isascii", is_ascii}, {"isprintable", jj_is_printable}};
    uint32_t first;

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        if (strcmp(name, all[i].name) == 0) {
            *out = all_of(s, all[i].fn, i >= 6);
            return true;
        }
    if (strcmp(name, "islower") == 0 || strcmp(name, "isupper") == 0) {
        *out = all_case(s, name[2] == 'u');
    } else if (strcmp(name, "istitle") == 0) {
        *out = is_title(s);
    } else if (strcmp(name, "isidentifier") == 0) {
        *out =
            s.u.s.n > 0 && next_cp(s, 0, &first) && !is_numeric(first) && all_of(s, is_name, false);
    } else {
        return false;
    }
    return true;
}

/* ---- the table ---- */

static fm_status remove_affix(jj_ctx *c, jj_val *out, jj_val s, jj_val part, bool front)
{
    fm_status rc = jj_need_str(c, part, front ? "removeprefix" : "removesuffix");

    if (rc < 0)
        return rc;
    size_t n = affix(s, part, front) ? part.u.s.n : 0;
    *out = jj_str(s.u.s.p + (front ? n : 0), s.u.s.n - n);
    return FM_OK;
}

typedef enum method {
    M_SPLIT,
    M_RSPLIT,
    M_LINES,
    M_STRIP,
    M_LSTRIP,
    M_RSTRIP,
    M_STARTS,
    M_ENDS,
    M_REPLACE,
    M_SEARCH,
    M_JOIN,
    M_TITLE,
    M_CAPITALIZE,
    M_CHANGE,
    M_PARTITION,
    M_RPARTITION,
    M_JUSTIFY,
    M_PREFIX,
    M_SUFFIX,
    M_TABS,
    M_FORMAT,
    M_FORMAT_MAP
} method;
static const struct {
    const char *name;
    method m;
    size_t least, most;
} methods[] = {{"split", M_SPLIT, 0, 2},
               {"rsplit", M_RSPLIT, 0, 2},
               {"splitlines", M_LINES, 0, 1},
               {"strip", M_STRIP, 0, 1},
               {"lstrip", M_LSTRIP, 0, 1},
               {"rstrip", M_RSTRIP, 0, 1},
               {"startswith", M_STARTS, 1, 3},
               {"endswith", M_ENDS, 1, 3},
               {"replace", M_REPLACE, 2, 3},
               {"find", M_SEARCH, 1, 3},
               {"rfind", M_SEARCH, 1, 3},
               {"index", M_SEARCH, 1, 3},
               {"rindex", M_SEARCH, 1, 3},
               {"count", M_SEARCH, 1, 3},
               {"join", M_JOIN, 1, 1},
               {"title", M_TITLE, 0, 0},
               {"capitalize", M_CAPITALIZE, 0, 0},
               {"lower", M_CHANGE, 0, 0},
               {"upper", M_CHANGE, 0, 0},
               {"swapcase", M_CHANGE, 0, 0},
               {"casefold", M_CHANGE, 0, 0},
               {"partition", M_PARTITION, 1, 1},
               {"rpartition", M_RPARTITION, 1, 1},
               {"ljust", M_JUSTIFY, 1, 2},
               {"rjust", M_JUSTIFY, 1, 2},
               {"center", M_JUSTIFY, 1, 2},
               {"zfill", M_JUSTIFY, 1, 1},
               {"removeprefix", M_PREFIX, 1, 1},
               {"removesuffix", M_SUFFIX, 1, 1},
               {"expandtabs", M_TABS, 0, 1},
               {"format", M_FORMAT, 0, 64},
               {"format_map", M_FORMAT_MAP, 1, 1}};

static fm_status format_map(jj_ctx *c, jj_val *out, jj_val s, jj_val map)
{
    jj_args a = {.count = 0};

    if (map.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "format_map needs a mapping");
    const char **kw = jj_alloc(c, (map.u.dict->count + 1) * sizeof *kw);
    a.kw_value = jj_alloc(c, (map.u.dict->count + 1) * sizeof *a.kw_value);
    if (!kw || !a.kw_value)
        return jj_alloc_status(c);
    a.kw = kw;
    for (size_t i = 0; i < map.u.dict->count; i++) {
        jj_val key = map.u.dict->p[i].key;
        if (key.type != JJ_STRING)
            continue;
        fm_status rc = jj_work(c, JJ_ITEM);
        if (rc == FM_OK)
            rc = jj_str_copy(c, &key, key.u.s.p, key.u.s.n);
        if (rc < 0)
            return rc;
        kw[a.kw_count] = key.u.s.p;
        a.kw_value[a.kw_count++] = map.u.dict->p[i].value;
    }
    return jj_format(c, out, s, &a);
}

static fm_status run(jj_ctx *c, jj_val *out, jj_val s, size_t i, const jj_args *a)
{
    jj_val first = jj_arg(a, 0, NULL);

    switch (methods[i].m) {
    case M_SPLIT:
    case M_RSPLIT:
        return split(c, out, s, a, methods[i].m == M_RSPLIT);
    case M_LINES:
        return jj_lines(c, out, s, jj_truth(jj_arg(a, 0, "keepends")));
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP:
        return jj_trim(c, out, s, first, methods[i].m != M_RSTRIP, methods[i].m != M_LSTRIP);
    case M_STARTS:
    case M_ENDS:
        return has_affix(c, out, s, a, methods[i].m == M_STARTS);
    case M_REPLACE:
        return jj_replace(c, out, s, first, a->pos[1], jj_arg(a, 2, NULL));
    case M_SEARCH:
        return search(c, out, s, methods[i].name, a);
    case M_JOIN:
        return join_strings(c, out, s, first);
    case M_TITLE:
    case M_CAPITALIZE:
        return jj_title(c, out, s, methods[i].m == M_TITLE);
    case M_CHANGE:
        return change(c, out, s, methods[i].name);
    case M_PARTITION:
    case M_RPARTITION:
        return partition(c, out, s, first, methods[i].m == M_RPARTITION);
    case M_JUSTIFY:
        return justify(c, out, s, methods[i].name, a);
    case M_PREFIX:
    case M_SUFFIX:
        return remove_affix(c, out, s, first, methods[i].m == M_PREFIX);
    case M_TABS:
        return expand_tabs(c, out, s, jj_arg(a, 0, "tabsize"));
    case M_FORMAT:
        return jj_format(c, out, s, a);
    case M_FORMAT_MAP:
        return format_map(c, out, s, first);
    }
    return FM_OK;
}

bool jj_is_str_method(const char *name)
{
    bool dummy;

    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++)
        if (strcmp(methods[i].name, name) == 0)
            return true;
    return kind_test(jj_str("", 0), name, &dummy) || strcmp(name, "encode") == 0 ||
           strcmp(name, "translate") == 0 || strcmp(name, "maketrans") == 0;
}

fm_status jj_str_method(jj_ctx *c, jj_val *out, jj_val s, const char *name, const jj_args *a)
{
    bool yes;
    fm_status rc = jj_work_by(c, s.u.s.n, 4); /* most methods look at every byte once or twice */

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++) {
        if (strcmp(methods[i].name, name) != 0)
            continue;
        bool keywords =
            methods[i].m <= M_LINES || methods[i].m == M_TABS || methods[i].m == M_FORMAT;
        if (a->kw_count > 0 && !keywords)
            return jj_error(c, FM_EINVAL, "string.%s takes no keywords", name);
        if (a->count < methods[i].least || a->count > methods[i].most)
            return jj_error(c, FM_EINVAL, "string.%s takes %zu to %zu arguments", name,
                            methods[i].least, methods[i].most);
        return run(c, out, s, i, a);
    }
    rc = jj_work_by(c, s.u.s.n, 2 * JJ_CHAR);
    if (rc < 0)
        return rc;
    if (!kind_test(s, name, &yes))
        return jj_error(c, FM_EUNSUPPORTED, "string method '%s' is not implemented", name);
    if (a->count + a->kw_count > 0)
        return jj_error(c, FM_EINVAL, "string.%s takes no arguments", name);
    *out = jj_bool(yes);
    return FM_OK;
}
