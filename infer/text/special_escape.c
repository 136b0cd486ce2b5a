/* special_escape.c - see special_escape.h. */
#include "infer/text/special_escape.h"

#include <stdio.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

#define FIRST_MARK 0xfdd0u
#define LAST_MARK 0xfdefu
#define SHORTEST_PART 2 /* fewest bytes of a token's end or beginning that get a mark */

/* ---- the mark ---- */

static bool holds(const fm_buf *text, uint32_t mark)
{
    uint8_t raw[4];
    char escaped[8];
    size_t n = fm_utf8_put(raw, mark);

    (void)snprintf(escaped, sizeof escaped, "\\u%04x", mark);
    return text->len > 0 &&
           (memmem(text->data, text->len, raw, n) || memmem(text->data, text->len, escaped, 6));
}

static fm_status choose_mark(fmi_special_escape *g, const fm_json *const *values, size_t n)
{
    fm_buf all;
    fm_status rc = FM_OK;

    fm_buf_init(&all, 0);
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        if (values[i])
            rc = fm_json_write(&all, values[i], FM_JSON_COMPACT);
    for (g->mark = FIRST_MARK; rc == FM_OK && g->mark <= LAST_MARK && holds(&all, g->mark);)
        g->mark++;
    fm_buf_release(&all);
    if (rc == FM_OK && g->mark > LAST_MARK)
        return fm_fail(FM_EINVAL, "the messages hold every noncharacter from U+FDD0 to U+FDEF");
    return rc;
}

fm_status fmi_special_escape_init(fmi_special_escape *g, const fm_tokenizer *t,
                                  const fm_json *const *values, size_t n)
{
    size_t cap = 0;
    fm_status rc = FM_OK;

    memset(g, 0, sizeof *g);
    for (size_t id = 0; id < fm_tokenizer_vocab_size(t) && rc == FM_OK; id++) {
        fm_span s = fm_tokenizer_token_text(t, (int32_t)id);
        if (!fm_tokenizer_is_special(t, (int32_t)id) || s.len <= 1)
            continue;
        rc = fm_grow(&g->special, &cap, g->specials + 1, sizeof *g->special);
        if (rc == FM_OK)
            g->special[g->specials++] = s;
    }
    return rc == FM_OK && g->specials ? choose_mark(g, values, n) : rc;
}

void fmi_special_escape_release(fmi_special_escape *g)
{
    fm_free(g->special);
    fm_free(g->at);
    memset(g, 0, sizeof *g);
}

/* ---- marking ---- */

static bool is_boundary(fm_span s, size_t at)
{
    return at == s.len || (s.data[at] & 0xc0) != 0x80;
}

/* Whether a mark belongs before byte i of s: inside a whole token, before a possible end of one, or
 * behind a possible beginning of one. */
static bool marked_at(const fmi_special_escape *g, fm_span s, size_t i)
{
    for (size_t k = 0; k < g->specials; k++) {
        fm_span t = g->special[k];
        size_t first = 1; /* bytes of the token's first character */
        while (first < t.len && (t.data[first] & 0xc0) == 0x80)
            first++;
        if (i >= first && s.len - (i - first) >= t.len &&
            memcmp(s.data + i - first, t.data, t.len) == 0)
            return true;
        for (size_t n = SHORTEST_PART; n < t.len && n <= s.len; n++)
            if ((i == 0 && memcmp(s.data, t.data + t.len - n, n) == 0) ||
                (i == s.len && memcmp(s.data + s.len - n, t.data, n) == 0))
                return true;
    }
    return false;
}

static fm_status mark_text(fmi_special_escape *g, fm_buf *out, fm_span s)
{
    bool starts[256] = {false};
    uint8_t mark[4];
    size_t n = fm_utf8_put(mark, g->mark);

    for (size_t k = 0; k < g->specials; k++)
        starts[g->special[k].data[0]] = true;
    for (size_t i = 0; i <= s.len; i++) {
        /* Inside a whole token the mark stands behind the first character: look only there. */
        bool look = i == 0 || i == s.len;
        for (size_t back = 1; back <= 4 && back <= i && !look; back++)
            look = starts[s.data[i - back]];
        if (look && is_boundary(s, i) && marked_at(g, s, i)) {
            fm_buf_append(out, mark, n);
            g->marked = true;
        }
        if (i < s.len)
            fm_buf_u8(out, s.data[i]);
    }
    return fm_buf_ok(out);
}

static fm_status marked_string(fmi_special_escape *g, fm_json **out, fm_span s)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    fm_status rc = mark_text(g, &b, s);
    *out = rc == FM_OK ? fm_json_new_strn(fm_buf_cstr(&b), b.len) : NULL;
    fm_buf_release(&b);
    return rc < 0 ? rc : *out ? FM_OK : FM_ENOMEM;
}

static fm_status marked_object(fmi_special_escape *g, fm_json *out, const fm_json *value)
{
    fm_status rc = FM_OK;

    for (void *it = fm_json_iter(value); it && rc == FM_OK; it = fm_json_next(value, it)) {
        fm_json *v = NULL;
        fm_buf key;
        fm_buf_init(&key, 0);
        rc = mark_text(g, &key, fm_span_str(fm_json_iter_key(it)));
        FM_THEN(rc, fmi_special_escape_value(g, &v, fm_json_iter_value(it)));
        FM_THEN(rc, fm_json_set(out, fm_buf_cstr(&key), v));
        fm_buf_release(&key);
    }
    return rc;
}

fm_status fmi_special_escape_value(fmi_special_escape *g, fm_json **out, const fm_json *value)
{
    fm_status rc = FM_OK;

    *out = NULL;
    if (!value)
        return FM_OK;
    if (g->specials && fm_json_is(value, FM_JSON_STRING))
        return marked_string(g, out, fm_json_str(value));
    bool array = fm_json_is(value, FM_JSON_ARRAY);
    if (!g->specials || (!array && !fm_json_is(value, FM_JSON_OBJECT))) {
        *out = fm_json_ref(value);
        return FM_OK;
    }
    fm_json *o = array ? fm_json_new_array() : fm_json_new_object();
    rc = !o ? FM_ENOMEM : array ? FM_OK : marked_object(g, o, value);
    for (size_t i = 0; rc == FM_OK && array && i < fm_json_count(value); i++) {
        fm_json *v = NULL;
        rc = fmi_special_escape_value(g, &v, fm_json_at(value, i));
        FM_THEN(rc, fm_json_push(o, v));
    }
    if (rc == FM_OK)
        *out = o;
    else
        fm_json_free(o);
    return rc;
}

/* ---- taking the marks out ---- */

fm_status fmi_special_escape_strip(fmi_special_escape *g, fm_buf *text)
{
    uint8_t raw[4];
    char escaped[8]; /* as tojson(ensure_ascii=true) writes it */
    size_t n = fm_utf8_put(raw, g->mark), to = 0;

    if (!g->marked)
        return FM_OK;
    (void)snprintf(escaped, sizeof escaped, "\\u%04x", g->mark);
    for (size_t i = 0; i < text->len;) {
        size_t left = text->len - i;
        size_t skip = left >= n && memcmp(text->data + i, raw, n) == 0       ? n
                      : left >= 6 && memcmp(text->data + i, escaped, 6) == 0 ? 6
                                                                             : 0;
        if (skip == 0) {
            text->data[to++] = text->data[i++];
            continue;
        }
        FM_TRY(fm_grow(&g->at, &g->cap, g->count + 1, sizeof *g->at));
        g->at[g->count++] = to;
        i += skip;
    }
    text->len = to;
    if (text->data)
        text->data[to] = '\0';
    return FM_OK;
}
