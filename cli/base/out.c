/* out.c - formats all output of the command line. */
#include "cli/base/out.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/ops/base/say.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

static char *ring(void)
{
    static char slot[8][512];
    static unsigned next;
    return slot[next++ % 8];
}

const char *out_bytes(uint64_t bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 999.5 && u + 1 < FM_ARRAY_LEN(unit)) {
        v /= 1000;
        u++;
    }
    char *s = ring();
    snprintf(s, 512, u == 0 || v >= 99.95 ? "%.0f %s" : "%.1f %s", v, unit[u]);
    return s;
}

const char *out_date(int64_t seconds)
{
    time_t t = (time_t)seconds;
    struct tm tm;
    char *s = ring();
    if (!localtime_r(&t, &tm) || !strftime(s, 512, "%Y-%m-%d %H:%M", &tm))
        snprintf(s, 512, "%lld", (long long)seconds);
    return s;
}

const char *out_c(out_colour c)
{
    static const char *const code[] = {"\033[0m",  "\033[1m",  "\033[31m",
                                       "\033[32m", "\033[33m", "\033[2m"};
    static int on = -1;
    if (on < 0)
        on = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    return on ? code[c] : "";
}

struct out_table {
    struct cell {
        char *text;
        bool right, ends_row;
    } * cell;
    size_t count, cap;
};

out_table *out_table_new(void)
{
    return fm_calloc(1, sizeof(out_table));
}

static void add_cell(out_table *t, bool right, const char *fmt, va_list ap)
{
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    if (!t || fm_grow(&t->cell, &t->cap, t->count + 1, sizeof *t->cell) < 0)
        return;
    t->cell[t->count++] = (struct cell){fm_strdup(text), right, false};
}

void out_cell(out_table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_cell(t, false, fmt, ap);
    va_end(ap);
}

void out_cell_right(out_table *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_cell(t, true, fmt, ap);
    va_end(ap);
}

void out_end_row(out_table *t)
{
    if (t && t->count)
        t->cell[t->count - 1].ends_row = true;
}

/* The visible width in columns: escape sequences and UTF-8 continuation bytes take none. */
static int seen_width(const char *s)
{
    int w = 0;
    for (; s && *s; s++) {
        if (*s == '\033') {
            while (*s && *s != 'm')
                s++;
            if (!*s)
                break;
        } else if (((unsigned char)*s & 0xC0) != 0x80) {
            w++;
        }
    }
    return w;
}

#define OUT_COLUMNS_MAX 32
void out_table_print(out_table *t, FILE *to, const char *indent)
{
    int width[OUT_COLUMNS_MAX] = {0};
    if (!t)
        return;
    for (size_t i = 0, col = 0; i < t->count; i++) {
        int w = seen_width(t->cell[i].text);
        if (col < OUT_COLUMNS_MAX && w > width[col])
            width[col] = w;
        col = t->cell[i].ends_row ? 0 : col + 1;
    }
    for (size_t i = 0, col = 0; i < t->count; i++) {
        const struct cell *c = &t->cell[i];
        int pad = col < OUT_COLUMNS_MAX ? width[col] - seen_width(c->text) : 0;
        fputs(col ? "  " : indent, to);
        if (c->right)
            fprintf(to, "%*s", pad, "");
        fputs(c->text ? c->text : "", to);
        if (!c->right && !c->ends_row)
            fprintf(to, "%*s", pad, "");
        if (c->ends_row)
            fputc('\n', to);
        col = c->ends_row ? 0 : col + 1;
    }
    out_table_free(t);
}

void out_table_free(out_table *t)
{
    for (size_t i = 0; t && i < t->count; i++)
        fm_free(t->cell[i].text);
    if (t)
        fm_free(t->cell);
    fm_free(t);
}

static bool progress_shown;

void out_progress(const char *fmt, ...)
{
    static int tty = -1;
    if (tty < 0)
        tty = isatty(STDERR_FILENO);
    if (!tty)
        return;
    va_list ap;
    va_start(ap, fmt);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, fmt, ap);
    fflush(stderr);
    va_end(ap);
    progress_shown = true;
}

void out_progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

void out_bar_begin(out_bar *b, const char *verb)
{
    *b = (out_bar){verb, fm_now_s(), 0};
}

void out_bar_text(char *out, size_t bytes, const char *verb, uint64_t done_bytes,
                  uint64_t total_bytes, double seconds)
{
    enum { WIDTH = 24 };
    char bar[WIDTH + 1], left[32] = "";
    done_bytes = FM_MIN(done_bytes, total_bytes);
    const double part = total_bytes ? (double)done_bytes / (double)total_bytes : 1;
    const double rate = seconds > 0 ? (double)done_bytes / seconds : 0;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < (int)(part * WIDTH) ? '#' : '-';
    bar[WIDTH] = '\0';
    if (rate > 0 && seconds > 0.5) {
        const uint64_t s = (uint64_t)((double)(total_bytes - done_bytes) / rate + 0.5);
        if (s >= 3600)
            snprintf(left, sizeof left, "  %llu:%02u:%02u left", (unsigned long long)(s / 3600),
                     (unsigned)(s / 60 % 60), (unsigned)(s % 60));
        else
            snprintf(left, sizeof left, "  %u:%02u left", (unsigned)(s / 60), (unsigned)(s % 60));
    }
    snprintf(out, bytes, "%s [%s] %s of %s  %s/s%s", verb, bar, out_bytes(done_bytes),
             out_bytes(total_bytes), out_bytes((uint64_t)rate), left);
}

void out_bar_at(out_bar *b, uint64_t done_bytes, uint64_t total_bytes)
{
    char text[256];
    const double now = fm_now_s();
    if (now - b->drawn_s < 0.1)
        return;
    b->drawn_s = now;
    out_bar_text(text, sizeof text, b->verb, done_bytes, total_bytes, now - b->begun_s);
    out_progress("%s", text);
}

fm_status out_json(fm_json *v)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_status rc = v ? fm_json_write(&b, v, FM_JSON_PRETTY) : FM_ENOMEM;
    if (rc == FM_OK)
        printf("%s\n", fm_buf_cstr(&b));
    fm_buf_release(&b);
    fm_json_free(v);
    return rc;
}

const char *out_text(const char *s, size_t max)
{
    return fmo_ui_shown(s, max);
}

static void put_shown(FILE *to, const char *s, size_t len)
{
    char one[8];
    for (size_t used; len; s += used, len -= used)
        fwrite(one, 1, fmo_ui_show_char(one, s, len, &used), to);
    putc('\n', to);
}

void out_line(const char *s, size_t len)
{
    put_shown(stdout, s, len);
}

void out_lines(FILE *to, const char *s)
{
    for (size_t n; *s; s += n + (s[n] == '\n')) {
        n = strcspn(s, "\n");
        put_shown(to, s, n);
    }
}
