/* answer.c - what an answer says, and URLs as text. */
#include "remote/http/http.h"

#include <string.h>
#include <strings.h>

#include "store/base/mem.h"

void fmr_answer_release(fmr_answer *a)
{
    fm_buf_release(&a->body);
    fm_buf_release(&a->headers);
    fm_free(a->url);
    a->url = NULL;
    a->status = 0;
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static fm_span trimmed(fm_span s)
{
    while (s.len > 0 && is_blank(s.data[0])) {
        s.data++;
        s.len--;
    }
    while (s.len > 0 && is_blank(s.data[s.len - 1]))
        s.len--;
    return s;
}

fm_span fmr_answer_header(const fmr_answer *a, const char *name)
{
    const size_t name_len = strlen(name);
    fm_span left = fm_buf_span(&a->headers);

    while (left.len > 0) {
        const uint8_t *end = memchr(left.data, '\n', left.len);
        const size_t line = end ? (size_t)(end - left.data) + 1 : left.len;
        if (line > name_len && left.data[name_len] == ':' &&
            strncasecmp((const char *)left.data, name, name_len) == 0)
            return trimmed(fm_span_of(left.data + name_len + 1, line - name_len - 1));
        left.data += line;
        left.len -= line;
    }
    return (fm_span){NULL, 0};
}

typedef struct meaning {
    unsigned status;
    fm_status rc;
    const char *text;
} meaning;

static meaning meaning_of(unsigned status)
{
    static const meaning known[] = {
        {400, FM_EIO, "the server does not accept the request"},
        {401, FM_EREFUSED, "credentials are missing or wrong"},
        {403, FM_EREFUSED, "these credentials do not allow it"},
        {404, FM_ENOTFOUND, "not there"},
        {409, FM_ECONFLICT, "another request changed it first"},
        {412, FM_ECONFLICT, "another request changed it first"},
        {413, FM_EIO, "too large for the server"},
        {429, FM_EIO, "too many requests; try again later"},
        {503, FM_EIO, "the server is not available now; try again later"},
        {507, FM_EIO, "the server's disk is full"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (known[i].status == status)
            return known[i];
    return (meaning){status, FM_EIO,
                     status < 400   ? "it points to another place, which was not followed"
                     : status < 500 ? "the server refuses the request"
                                    : "the server failed"};
}

fm_status fmr_answer_check(const fmr_answer *a, const char *what)
{
    if (a->status < 300)
        return FM_OK;
    const meaning m = meaning_of(a->status);
    fm_buf url;
    fm_buf_init(&url, 0);
    fmr_url_shown(&url, a->url ? a->url : "");
    fm_status rc = fm_fail(m.rc, "%s: %s: HTTP %u: %s", what, fm_buf_cstr(&url), a->status, m.text);
    fm_buf_release(&url);
    return rc;
}

void fmr_url_shown(fm_buf *out, const char *url)
{
    enum { SHOWN = 300 };
    const char *authority = strstr(url, "://");
    if (!authority) {
        fm_buf_str(out, "(no URL)");
        return;
    }
    authority += 3;
    const char *end = authority + strcspn(authority, "/?#\\");
    const char *host = authority;
    for (const char *p = authority; p < end; p++)
        if (*p == '@')
            host = p + 1;
    const char *stop = end + strcspn(end, "?#");
    fm_buf_append(out, url, (size_t)(authority - url));
    for (const char *p = host; p < stop && p - host < SHOWN; p++)
        fm_buf_char(out, (uint8_t)*p < 0x20 || *p == 0x7f ? '?' : *p);
    if (stop - host > SHOWN)
        fm_buf_str(out, "...");
}

void fmr_url_escape(fm_buf *out, const char *text, bool slashes)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (const char *p = text; *p; p++) {
        if (strchr(plain, *p) || (slashes && *p == '/'))
            fm_buf_char(out, *p);
        else
            fm_buf_printf(out, "%%%02X", (unsigned)(uint8_t)*p);
    }
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

void fmr_url_unescape(fm_buf *out, const char *text, size_t len, bool form)
{
    for (size_t i = 0; i < len; i++) {
        const int high = text[i] == '%' && i + 2 < len ? hex_digit(text[i + 1]) : -1;
        const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
        if (low >= 0) {
            fm_buf_char(out, (char)(high * 16 + low));
            i += 2;
        } else {
            fm_buf_char(out, form && text[i] == '+' ? ' ' : text[i]);
        }
    }
}
