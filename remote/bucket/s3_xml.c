/* s3_xml.c - reads S3's answers. */
#include "remote/bucket/s3_xml.h"

#include <string.h>

/* The place of `what` in text; text.len where it is not. */
static size_t find(fm_span text, const char *what)
{
    const size_t len = strlen(what);
    for (size_t i = 0; i + len <= text.len; i++)
        if (memcmp(text.data + i, what, len) == 0)
            return i;
    return text.len;
}

fm_span fmr_xml_next(fm_span *text, const char *name)
{
    char tag[64];
    const fm_span none = {NULL, 0};
    const size_t len = strlen(name);
    fm_assert(len + 4 < sizeof tag);
    tag[0] = '<';
    memcpy(tag + 1, name, len);
    memcpy(tag + 1 + len, ">", 2);
    const size_t begin = find(*text, tag);
    if (begin == text->len) {
        *text = fm_span_of(text->data + text->len, 0);
        return none;
    }
    const fm_span rest = fm_span_of(text->data + begin + len + 2, text->len - begin - len - 2);
    memcpy(tag, "</", 2);
    memcpy(tag + 2, name, len);
    memcpy(tag + 2 + len, ">", 2);
    const size_t end = find(rest, tag);
    if (end == rest.len) {
        *text = fm_span_of(text->data + text->len, 0);
        return none;
    }
    *text = fm_span_of(rest.data + end + len + 3, rest.len - end - len - 3);
    return fm_span_of(rest.data, end);
}

fm_span fmr_xml_first(fm_span text, const char *name)
{
    return fmr_xml_next(&text, name);
}

bool fmr_xml_number(fm_span text, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < text.len; i++)
        if (text.data[i] < '0' || text.data[i] > '9' ||
            __builtin_mul_overflow(*out, (uint64_t)10, out) ||
            __builtin_add_overflow(*out, (uint64_t)(text.data[i] - '0'), out))
            return false;
    return text.len > 0;
}

/* The character of an entity without its '&' and ';'; 0: none that is known. */
static char entity(fm_span e)
{
    static const struct {
        const char *name;
        char c;
    } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    uint64_t n;
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (fm_span_eq_str(e, known[i].name))
            return known[i].c;
    if (e.len > 1 && e.data[0] == '#' && fmr_xml_number(fm_span_of(e.data + 1, e.len - 1), &n) &&
        n < 128)
        return (char)n;
    return 0;
}

void fmr_xml_text(fm_buf *out, fm_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        const uint8_t *end =
            text.data[i] == '&' ? memchr(text.data + i, ';', FM_MIN(text.len - i, 10u)) : NULL;
        const char c =
            end ? entity(fm_span_of(text.data + i + 1, (size_t)(end - text.data) - i - 1)) : 0;
        fm_buf_char(out, c ? c : (char)text.data[i]);
        if (c)
            i = (size_t)(end - text.data);
    }
}
