/* chat_plain.c - contents that are null or parts, as texts; which rendering is the right one. */
#include "infer/text/chat_plain.h"

#include <string.h>

/* A list of texts alone: what else a part may be stays as it is. */
static bool is_texts(const fm_json *content)
{
    const size_t n = fm_json_is(content, FM_JSON_ARRAY) ? fm_json_count(content) : 0;
    for (size_t i = 0; i < n; i++) {
        const fm_json *part = fm_json_at(content, i);
        if (!fm_span_eq_str(fm_json_str(fm_json_get(part, "type")), "text") ||
            !fm_json_str(fm_json_get(part, "text")).data)
            return false;
    }
    return n > 0;
}

static bool is_missing(const fm_json *message)
{
    return fm_json_typeof(fm_json_get(message, "content")) == FM_JSON_NULL &&
           fm_json_count(fm_json_get(message, "tool_calls")) > 0;
}

static fm_status with_text(fm_json **out, const fm_json *message)
{
    const fm_json *parts = fm_json_get(message, "content");
    fm_buf text;
    fm_buf_init(&text, 0);
    for (size_t i = 0; i < fm_json_count(parts); i++) {
        const fm_span one = fm_json_str(fm_json_get(fm_json_at(parts, i), "text"));
        if (i > 0)
            fm_buf_char(&text, '\n');
        fm_buf_append(&text, one.data, one.len);
    }
    fm_status rc = fm_buf_ok(&text);
    *out = rc == FM_OK ? fm_json_copy(message) : NULL;
    if (rc == FM_OK)
        rc = *out ? fm_json_set(*out, "content", fm_json_new_strn(fm_buf_cstr(&text), text.len))
                  : FM_ENOMEM;
    fm_buf_release(&text);
    return rc;
}

static int unplain(const fm_json *message)
{
    if (is_texts(fm_json_get(message, "content")))
        return FMI_CHAT_JOIN;
    return is_missing(message) ? FMI_CHAT_BLANK : 0;
}

int fmi_chat_unplain(const fm_json *messages)
{
    int all = 0;
    for (size_t i = 0; i < fm_json_count(messages); i++)
        all |= unplain(fm_json_at(messages, i));
    return all;
}

fm_status fmi_chat_plain(fm_json **out, const fm_json *messages, int changes)
{
    fm_status rc = (*out = fm_json_new_array()) ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(messages); i++) {
        const fm_json *m = fm_json_at(messages, i);
        fm_json *plain = NULL;
        if (unplain(m) & changes)
            rc = with_text(&plain, m);
        else
            plain = fm_json_ref(m);
        if (rc == FM_OK)
            rc = fm_json_push(*out, plain);
        else
            fm_json_free(plain);
    }
    return rc;
}

static size_t times(const fm_buf *text, const char *word)
{
    const size_t len = strlen(word);
    size_t n = 0;
    if (!text || !text->len)
        return 0;
    const uint8_t *at = text->data, *end = text->data + text->len;
    while ((at = memmem(at, (size_t)(end - at), word, len))) {
        at += len;
        n++;
    }
    return n;
}

static fm_span trimmed(fm_span s)
{
    while (s.len > 0 && strchr(" \t\r\n", s.data[s.len - 1]))
        s.len--;
    while (s.len > 0 && strchr(" \t\r\n", s.data[0])) {
        s.data++;
        s.len--;
    }
    return s;
}

static bool shows_parts(const fm_buf *text, const fm_json *content)
{
    for (size_t i = 0; i < fm_json_count(content); i++) {
        const fm_span s = trimmed(fm_json_str(fm_json_get(fm_json_at(content, i), "text")));
        if (s.len > 0 && (!text->len || !memmem(text->data, text->len, s.data, s.len)))
            return false;
    }
    return true;
}

bool fmi_chat_shows_all(const fm_buf *given, const fm_buf *plain, const fm_json *messages)
{
    static const char *const raw[] = {"None", "'type'"};

    for (size_t i = 0; i < FM_ARRAY_LEN(raw); i++)
        if (times(given, raw[i]) > times(plain, raw[i]))
            return false;
    for (size_t i = 0; i < fm_json_count(messages); i++) {
        const fm_json *content = fm_json_get(fm_json_at(messages, i), "content");
        if (is_texts(content) && !shows_parts(given, content))
            return false;
    }
    return true;
}
