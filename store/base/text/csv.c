/* csv.c - tables, row by row. */
#include "store/base/text/csv.h"

#include <string.h>

#include "store/base/text/utf8.h"

static fm_status broken(const fm_csv *t, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: line %zu: %s", t->what, t->line, why);
}

static bool at_line_end(const fm_csv *t)
{
    return t->at == t->s.len || t->s.data[t->at] == '\n' ||
           (t->s.data[t->at] == '\r' && (t->at + 1 == t->s.len || t->s.data[t->at + 1] == '\n'));
}

static void skip_line_end(fm_csv *t)
{
    if (t->at < t->s.len && t->s.data[t->at] == '\r')
        t->at++;
    if (t->at < t->s.len && t->s.data[t->at] == '\n')
        t->at++;
    t->line++;
}

static bool at_cell_end(const fm_csv *t)
{
    return at_line_end(t) || t->s.data[t->at] == (uint8_t)t->separator;
}

static fm_status read_quoted(fm_csv *t)
{
    size_t began = t->line;

    for (t->at++; t->at < t->s.len; t->at++) {
        char c = (char)t->s.data[t->at];
        if (c == '"' && t->at + 1 < t->s.len && t->s.data[t->at + 1] == '"') {
            t->at++;
        } else if (c == '"') {
            t->at++;
            return at_cell_end(t) ? FM_OK
                                  : broken(t, "text stands behind a closing quote; a quote inside "
                                              "a quoted cell is written twice");
        }
        t->line += c == '\n';
        fm_buf_char(&t->cells, c);
    }
    t->line = began;
    return broken(t, "a quote is opened here and never closed");
}

/* Quotes mean nothing in a cell that does not begin with one, as Python's csv has it. */
static void read_plain(fm_csv *t)
{
    for (; !at_cell_end(t); t->at++)
        fm_buf_char(&t->cells, (char)t->s.data[t->at]);
}

static fm_status check_utf8(const fm_csv *t, fm_span cell)
{
    if (fm_utf8_valid(cell.data, cell.len) == cell.len)
        return FM_OK;
    return fm_fail(FM_ECORRUPT, "%s: row at line %zu: text is not UTF-8", t->what, t->row_line);
}

static fm_status read_cell(fm_csv *t)
{
    if (t->count == FM_CSV_COLUMNS_MAX)
        return fm_fail(FM_ELIMIT, "%s: line %zu: more than %u columns", t->what, t->line,
                       FM_CSV_COLUMNS_MAX);
    if (t->at < t->s.len && t->s.data[t->at] == '"')
        FM_TRY(read_quoted(t));
    else
        read_plain(t);
    t->end[t->count++] = t->cells.len;
    fm_buf_char(&t->cells, '\0');
    fm_status rc = fm_buf_ok(&t->cells);
    if (rc == FM_ELIMIT)
        return fm_fail(FM_ELIMIT, "%s: row at line %zu: more than %zu bytes", t->what, t->row_line,
                       FM_CSV_ROW_BYTES_MAX);
    if (rc < 0)
        return rc;
    return check_utf8(t, fm_csv_cell(t, t->count - 1));
}

void fm_csv_init(fm_csv *t, fm_span bytes, char separator, const char *what)
{
    *t = (fm_csv){.s = bytes, .line = 1, .separator = separator, .what = what};
    if (bytes.len >= 3 && memcmp(bytes.data, "\xEF\xBB\xBF", 3) == 0)
        t->at = 3;
    fm_buf_init(&t->cells, FM_CSV_ROW_BYTES_MAX);
}

void fm_csv_release(fm_csv *t)
{
    fm_buf_release(&t->cells);
}

fm_status fm_csv_next(fm_csv *t, bool *found)
{
    while (t->at < t->s.len && at_line_end(t))
        skip_line_end(t);
    *found = t->at < t->s.len;
    t->row_line = t->line;
    t->count = 0;
    fm_buf_clear(&t->cells);
    if (!*found)
        return FM_OK;
    FM_TRY(read_cell(t));
    while (!at_line_end(t)) {
        t->at++;
        FM_TRY(read_cell(t));
    }
    skip_line_end(t);
    return FM_OK;
}

fm_span fm_csv_cell(const fm_csv *t, size_t i)
{
    size_t begin = i > 0 ? t->end[i - 1] + 1 : 0;
    return fm_span_of(t->cells.data + begin, t->end[i] - begin);
}
