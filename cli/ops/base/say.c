/* say.c - formats messages, progress and results, and passes them to the callbacks. */
#include "cli/ops/base/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/markup.h"

static void pass_on(const fm_ops *c, fm_ui_level level, char *text)
{
    size_t n = strlen(text);
    if (n && text[n - 1] == '\n')
        text[n - 1] = 0;
    c->ui.message(c->ui.ctx, level, text);
}

void fmo_ui_say(const fm_ops *c, fm_ui_level level, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    if (!c->ui.message)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pass_on(c, level, text);
}

void fmo_ui_say_buf(const fm_ops *c, fm_ui_level level, fm_buf *text)
{
    if (c->ui.message && text->failed == FM_OK && text->len)
        pass_on(c, level, (char *)text->data);
    fm_buf_release(text);
}

static bool show(fm_ops *c, const fm_ui_progress *p)
{
    bool stop = c->ui.progress && c->ui.progress(c->ui.ctx, p);
    c->stopped = c->stopped || stop;
    return stop;
}

bool fmo_ui_progress_bytes(fm_ops *c, uint64_t done, uint64_t total, const char *verb)
{
    return show(c, &(fm_ui_progress){verb, done, total, true});
}

bool fmo_ui_progress(fm_ops *c, uint64_t done, uint64_t total, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!c->ui.progress)
        return false;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return show(c, &(fm_ui_progress){text, done, total, false});
}

void fmo_ui_progress_end(const fm_ops *c)
{
    if (c->ui.progress)
        (void)c->ui.progress(c->ui.ctx, &(fm_ui_progress){0});
}

fm_status fmo_ui_go_on(const fm_ops *c)
{
    return c->stopped ? fm_fail(FM_ECANCELLED, "stopped") : FM_OK;
}

void fmo_ui_result(const fm_ops *c, const char *kind, fm_json *value, fm_status rc)
{
    if (rc == FM_OK && value && c->ui.result)
        c->ui.result(c->ui.ctx, kind, value);
    fm_json_free(value);
}

static char *ring(void)
{
    static _Thread_local char slot[8][512];
    static _Thread_local unsigned next;
    return slot[next++ % 8];
}

size_t fmo_ui_show_char(char out[8], const char *s, size_t left, size_t *used)
{
    const size_t n = fm_markup_shown(s, left);
    *used = FM_MAX(n, (size_t)1);
    if (n > 0) {
        memcpy(out, s, n);
        return n;
    }
    if (*s == '\n' || *s == '\t') {
        out[0] = '\\';
        out[1] = *s == '\n' ? 'n' : 't';
        return 2;
    }
    return (size_t)snprintf(out, 8, "\\x%02x", (unsigned)(unsigned char)*s);
}

const char *fmo_ui_shown(const char *s, size_t max)
{
    char *out = ring();
    size_t left = s ? strlen(s) : 0, n = 0, used;
    max = FM_MIN(max, (size_t)500);
    for (; left && n + 6 < max; s += used, left -= used)
        n += fmo_ui_show_char(out + n, s, left, &used);
    if (left) {
        memcpy(out + n, "\xE2\x80\xA6", 3);
        n += 3;
    }
    out[n] = 0;
    return out;
}
