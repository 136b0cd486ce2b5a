/* csv.c - tables (RFC 4180, any separator) to records: the header row names the fields. */
#include "train/data/dataset.h"

#include "store/base/mem.h"

#include <string.h>

#define MAX_COLUMNS 256u
#define MAX_HEADER_BYTES 65536u

typedef struct table {
    fm_span s;
    size_t at;
    size_t line;     /* of the file, from 1 */
    size_t row_line; /* where the row in hand began */
    char separator;
    const char *what;
    fm_buf cell;
    char *column[MAX_COLUMNS];
    size_t columns;
} table;

static fm_status broken(const table *t, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s, line %zu of the file: %s", t->what, t->line, why);
}

static bool at_line_end(const table *t)
{
    return t->at == t->s.len || t->s.data[t->at] == '\n' ||
           (t->s.data[t->at] == '\r' && (t->at + 1 == t->s.len || t->s.data[t->at + 1] == '\n'));
}

static void skip_line_end(table *t)
{
    if (t->at < t->s.len && t->s.data[t->at] == '\r')
        t->at++;
    if (t->at < t->s.len && t->s.data[t->at] == '\n')
        t->at++;
    t->line++;
}

static fm_status read_quoted(table *t)
{
    size_t began = t->line;

    for (t->at++; t->at < t->s.len; t->at++) {
        char c = (char)t->s.data[t->at];
        if (c == '"' && t->at + 1 < t->s.len && t->s.data[t->at + 1] == '"') {
            t->at++;
        } else if (c == '"') {
            t->at++;
            if (!at_line_end(t) && t->s.data[t->at] != (uint8_t)t->separator)
                return broken(t, "text stands behind a closing quote; a quote inside a quoted cell "
                                 "is written twice");
            return FM_OK;
        }
        t->line += c == '\n';
        fm_buf_char(&t->cell, c);
    }
    t->line = began;
    return broken(t, "a quote is opened here and never closed");
}

static fm_status read_plain(table *t)
{
    for (; !at_line_end(t) && t->s.data[t->at] != (uint8_t)t->separator; t->at++) {
        if (t->s.data[t->at] == '"')
            return broken(t, "a quote stands inside a cell that does not begin with one; put the "
                             "whole cell in quotes and write the quote twice");
        fm_buf_char(&t->cell, (char)t->s.data[t->at]);
    }
    return FM_OK;
}

/* One cell into t->cell; *last: it ends its row, whose end is passed. */
static fm_status read_cell(table *t, bool *last)
{
    fm_buf_clear(&t->cell);
    bool quoted = t->at < t->s.len && t->s.data[t->at] == '"';
    fm_status rc = quoted ? read_quoted(t) : read_plain(t);
    if (rc == FM_OK)
        rc = fm_buf_ok(&t->cell);
    if (rc < 0)
        return rc;
    *last = at_line_end(t);
    if (*last)
        skip_line_end(t);
    else
        t->at++;
    return FM_OK;
}

static fm_status check_utf8(const table *t)
{
    for (size_t i = 0; i < t->cell.len;) {
        size_t n = fms_json_utf8_len(t->cell.data + i, t->cell.len - i);
        if (n == 0)
            return fm_fail(FM_ECORRUPT, "%s, row at line %zu of the file: text is not UTF-8",
                           t->what, t->row_line);
        i += n;
    }
    return FM_OK;
}

static fm_status add_column(table *t)
{
    fm_status rc = check_utf8(t);

    if (rc < 0)
        return rc;
    if (t->columns == MAX_COLUMNS)
        return fm_fail(FM_ELIMIT, "%s: more than %u columns", t->what, MAX_COLUMNS);
    if (t->cell.len == 0 || memchr(t->cell.data, 0, t->cell.len))
        return broken(t, "a column has no name; the first row must name every column");
    for (size_t i = 0; i < t->columns; i++)
        if (strcmp(t->column[i], fm_buf_cstr(&t->cell)) == 0)
            return fm_fail(FM_ECORRUPT, "%s: two columns are called '%.60s'", t->what,
                           t->column[i]);
    t->column[t->columns] = fm_strdup(fm_buf_cstr(&t->cell));
    return t->column[t->columns++] ? FM_OK : FM_ENOMEM;
}

static fm_status read_header(table *t)
{
    fm_status rc = FM_OK;

    for (bool last = false; !last && rc == FM_OK;) {
        rc = read_cell(t, &last);
        if (rc == FM_OK)
            rc = add_column(t);
    }
    return rc;
}

static fm_status read_row(table *t, fm_json *record)
{
    size_t n = 0;
    fm_status rc = FM_OK;

    for (bool last = false; !last && rc == FM_OK; n++) {
        rc = read_cell(t, &last);
        if (rc == FM_OK && n < t->columns)
            rc = check_utf8(t);
        if (rc == FM_OK && n < t->columns)
            rc = fm_json_set(record, t->column[n],
                             fm_json_new_strn(fm_buf_cstr(&t->cell), t->cell.len));
    }
    if (rc == FM_OK && n != t->columns)
        rc = fm_fail(FM_ECORRUPT,
                     "%s, line %zu of the file: %zu cells, the header row has %zu; a cell that "
                     "holds the separator, a quote or a line's end must be in quotes",
                     t->what, t->row_line, n, t->columns);
    return rc;
}

/* An empty line between rows says nothing; with one column it could be an empty cell, which no
 * record can use. */
static fm_status read_rows(table *t, const fmt_record_sink *sink)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && t->at < t->s.len) {
        if (at_line_end(t)) {
            skip_line_end(t);
            continue;
        }
        fm_json *record = fm_json_new_object();
        t->row_line = t->line;
        rc = record ? read_row(t, record) : FM_ENOMEM;
        if (rc == FM_OK)
            rc = sink->record(sink->ctx, record);
        fm_json_free(record);
    }
    return rc;
}

fm_status fmt_csv_records(fm_span bytes, char separator, const char *what,
                          const fmt_record_sink *sink)
{
    table t = {.s = bytes, .line = 1, .row_line = 1, .separator = separator, .what = what};

    fm_buf_init(&t.cell, 0);
    while (t.at < bytes.len && at_line_end(&t))
        skip_line_end(&t);
    fm_status rc = read_header(&t);
    if (rc == FM_OK)
        rc = read_rows(&t, sink);
    for (size_t i = 0; i < t.columns; i++)
        fm_free(t.column[i]);
    fm_buf_release(&t.cell);
    return rc;
}

/* Would a record with these fields be of any kind? */
static fm_status names_record(bool *found, const table *t)
{
    static const fm_objective objectives[] = {FM_OBJECTIVE_NEXT_TOKEN, FM_OBJECTIVE_DPO,
                                              FM_OBJECTIVE_CONTRASTIVE, FM_OBJECTIVE_CLASSIFY};
    fm_json *names = fm_json_new_object();
    fm_status rc = names ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < t->columns && rc == FM_OK; i++)
        rc = fm_json_set(names, t->column[i], fm_json_new_str(""));
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(objectives); i++)
        *found = *found || fmt_kind_of(names, objectives[i]) != FMT_KIND_NONE;
    fm_json_free(names);
    return rc;
}

fm_status fmt_csv_header(bool *found, fm_span bytes, char separator)
{
    const uint8_t *end = memchr(bytes.data, '\n', FM_MIN(bytes.len, (size_t)MAX_HEADER_BYTES));
    table t = {.line = 1, .row_line = 1, .separator = separator, .what = "header"};

    *found = false;
    if (!end)
        return FM_OK;
    t.s = fm_span_of(bytes.data, (size_t)(end - bytes.data));
    fm_buf_init(&t.cell, 0);
    fm_status rc = t.s.len > 0 ? read_header(&t) : FM_OK;
    if (rc == FM_OK && t.columns > 1)
        rc = names_record(found, &t);
    for (size_t i = 0; i < t.columns; i++)
        fm_free(t.column[i]);
    fm_buf_release(&t.cell);
    return rc == FM_ENOMEM ? rc : FM_OK; /* anything else: no header */
}
