/* page.c - the frame of pages, with the one style sheet, and tables. */
#include "store/base/text/page.h"

#include <string.h>

#include "store/base/text/chart.h"

static const char page_style[] =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;"
    "background:#fff;overflow-wrap:break-word}\n"
    "@media (prefers-color-scheme:dark){body{background:#16181b}}\n"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin:1.8em 0 .4em}\n"
    "table{border-collapse:collapse;margin:.5em 0}th,td{padding:.2em .9em .2em 0;text-align:left;"
    "vertical-align:top;border-bottom:1px solid #8884}th{vertical-align:bottom}\n"
    "td{overflow-wrap:anywhere;min-width:5em}td svg{max-width:none}"
    ".n{text-align:right;min-width:0}td.n{white-space:nowrap}\n"
    ".wide{overflow-x:auto}.cell{color:#111;font-weight:600;padding:.2em .5em;"
    "border:1px solid #8884}svg+p{margin-top:.2em}"
    ".turn{outline:2px solid #e0913a;outline-offset:-2px}\n"
    ".heat{font-size:12px}.heat td,.heat th{padding:0 .3em}\n"
    "details{margin:.4em 0}summary{cursor:pointer}code{white-space:pre-wrap}\n"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.5em .7em}\n"
    ".row{display:flex;flex-wrap:wrap;gap:0 1.5em}.verdict{border-left:4px solid;"
    "padding:.3em .9em;font-weight:600}\n"
    ".tok{border-bottom:3px solid;white-space:pre-wrap}.tok.p0{border-color:#d64545}"
    ".tok.p1{border-color:#e0913a}.tok.p2{border-color:#c9b23c}.tok.p3{border-color:#2f9e5b}\n";

void fm_page_open(fm_buf *out, const char *title, ...)
{
    va_list args;
    fm_buf_str(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                    "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>");
    va_start(args, title);
    fm_markup_part(out, title, strlen(title), &args);
    va_end(args);
    fm_buf_printf(out, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<h1>", fm_chart_style,
                  page_style);
    va_start(args, title);
    fm_markup_part(out, title, strlen(title), &args);
    va_end(args);
    fm_buf_str(out, "</h1>\n");
}

void fm_page_close(fm_buf *out)
{
    fm_buf_str(out, "</body>\n</html>\n");
}

static void row(fm_buf *out, const char *element, const char *fmt, va_list *args)
{
    fm_buf_str(out, "<tr>");
    for (bool more = true; more;) {
        const size_t len = strcspn(fmt, "|");
        const bool number = *fmt == '#';
        fm_markup(out, number ? "<%s class=\"n\">" : "<%s>", element);
        fm_markup_part(out, fmt + number, len - number, args);
        fm_markup(out, "</%s>", element);
        more = fmt[len] == '|';
        fmt += len + 1;
    }
}

void fm_row_close(fm_buf *out)
{
    fm_buf_str(out, "</td></tr>\n");
}

void fm_table_open(fm_buf *out, const char *heads, ...)
{
    va_list args;
    fm_markup(out, "<div class=\"wide\"><table>\n");
    va_start(args, heads);
    row(out, "th", heads, &args);
    va_end(args);
    fm_buf_str(out, "</tr>\n");
}

void fm_table_row(fm_buf *out, const char *cells, ...)
{
    va_list args;
    va_start(args, cells);
    row(out, "td", cells, &args);
    va_end(args);
    fm_buf_str(out, "</tr>\n");
}

void fm_row_open(fm_buf *out, const char *cells, ...)
{
    va_list args;
    va_start(args, cells);
    row(out, "td", cells, &args);
    va_end(args);
    fm_buf_str(out, "<td>");
}

void fm_table_close(fm_buf *out)
{
    fm_buf_str(out, "</table></div>\n");
}

/* ---- of JSON ---- */

static void value(fm_buf *out, const fm_json *v, bool exact)
{
    const size_t n = fm_json_is(v, FM_JSON_ARRAY) ? fm_json_count(v) : 0;
    for (size_t i = 0; i < n; i++) {
        fm_buf_str(out, i ? ", " : "");
        value(out, fm_json_at(v, i), exact);
    }
    if (fm_json_is(v, FM_JSON_REAL)) {
        fm_markup(out, exact ? "%.9g" : "%.6g", fm_json_real(v, 0));
    } else if (fm_json_is(v, FM_JSON_STRING)) {
        fm_markup(out, "%s", fm_json_cstr(v, ""));
    } else if (v && !fm_json_is(v, FM_JSON_ARRAY) && !fm_json_is(v, FM_JSON_NULL)) {
        fm_buf text;
        fm_buf_init(&text, 0);
        if (fm_json_write(&text, v, FM_JSON_COMPACT) < 0)
            out->failed = FM_ENOMEM;
        fm_markup(out, "%s", fm_buf_cstr(&text));
        fm_buf_release(&text);
    }
}

static void cell(fm_buf *out, const fm_json *row, const char *key, size_t len, bool number)
{
    char name[64] = "";
    fm_assert(len < sizeof name);
    memcpy(name, key, len);
    const fm_json *v = fm_json_get(row, name);
    fm_markup(out, "<td class=\"%s\">",
              number                         ? "n"
              : strcmp(name, "outcome") == 0 ? fm_json_cstr(v, "")
                                             : "t");
    value(out, v, false);
    fm_markup(out, "</td>");
}

/* Appends the head row (row NULL) or the cells of a row. */
static void columns_of(fm_buf *out, const char *column, const fm_json *row)
{
    fm_markup(out, "<tr>");
    for (bool more = true; more;) {
        const bool number = *column == '#';
        column += number;
        const size_t len = strcspn(column, "|"), head = FM_MIN(strcspn(column, "="), len);
        const size_t key = head < len ? head + 1 : 0;
        if (row) {
            cell(out, row, column + key, len - key, number);
        } else {
            fm_markup(out, number ? "<th class=\"n\">" : "<th>");
            fm_buf_append(out, column, head);
            fm_markup(out, "</th>");
        }
        more = column[len] == '|';
        column += len + 1;
    }
    fm_markup(out, "</tr>\n");
}

void fm_table_of(fm_buf *out, const char *columns, const fm_json *rows, size_t most)
{
    fm_markup(out, "<div class=\"wide\"><table>\n");
    columns_of(out, columns, NULL);
    if (fm_json_is(rows, FM_JSON_OBJECT))
        columns_of(out, columns, rows);
    else
        for (size_t i = 0; i < fm_json_count(rows) && i < most; i++)
            columns_of(out, columns, fm_json_at(rows, i));
    fm_table_close(out);
}

void fm_table_of_keys(fm_buf *out, const fm_json *object)
{
    fm_markup(out, "<div class=\"wide\"><table>\n");
    for (void *it = fm_json_iter(object); it; it = fm_json_next(object, it)) {
        fm_markup(out, "<tr><th>%s</th><td>", fm_json_iter_key(it));
        value(out, fm_json_iter_value(it), true);
        fm_markup(out, "</td></tr>\n");
    }
    fm_table_close(out);
}

void fm_list_of(fm_buf *out, const fm_json *array)
{
    fm_markup(out, "<ul>\n");
    for (size_t i = 0; i < fm_json_count(array); i++) {
        fm_markup(out, "<li>");
        value(out, fm_json_at(array, i), true);
        fm_markup(out, "</li>\n");
    }
    fm_markup(out, "</ul>\n");
}
