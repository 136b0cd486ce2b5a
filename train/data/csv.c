/* csv.c - turns tables into records: the header row names the fields. */
#include "store/base/text/csv.h"

#include "store/base/mem.h"
#include "train/data/dataset.h"

#include <string.h>

#define MAX_HEADER_BYTES 65536u

typedef struct table {
    fm_csv csv;
    char *column[FM_CSV_COLUMNS_MAX];
    size_t columns;
} table;

static void release(table *t)
{
    for (size_t i = 0; i < t->columns; i++)
        fm_free(t->column[i]);
    fm_csv_release(&t->csv);
}

static fm_status add_column(table *t, fm_span name)
{
    const char *what = t->csv.what;

    if (name.len == 0 || memchr(name.data, 0, name.len))
        return fm_fail(FM_ECORRUPT,
                       "%s: line %zu: a column has no name; the first row must name every column",
                       what, t->csv.row_line);
    for (size_t i = 0; i < t->columns; i++)
        if (strcmp(t->column[i], (const char *)name.data) == 0)
            return fm_fail(FM_ECORRUPT, "%s: two columns are called '%.60s'", what, t->column[i]);
    t->column[t->columns] = fm_strdup((const char *)name.data);
    return t->column[t->columns++] ? FM_OK : FM_ENOMEM;
}

static fm_status read_header(table *t)
{
    bool found;

    FM_TRY(fm_csv_next(&t->csv, &found));
    for (size_t i = 0; i < t->csv.count; i++)
        FM_TRY(add_column(t, fm_csv_cell(&t->csv, i)));
    return FM_OK;
}

static fm_status set_cells(const table *t, fm_json *record)
{
    if (t->csv.count != t->columns)
        return fm_fail(FM_ECORRUPT,
                       "%s: line %zu: %zu cells, the header row has %zu; a cell that holds the "
                       "separator, a quote or a line's end must be in quotes",
                       t->csv.what, t->csv.row_line, t->csv.count, t->columns);
    for (size_t i = 0; i < t->columns; i++) {
        fm_span cell = fm_csv_cell(&t->csv, i);
        FM_TRY(
            fm_json_set(record, t->column[i], fm_json_new_strn((const char *)cell.data, cell.len)));
    }
    return FM_OK;
}

static fm_status read_rows(table *t, const fmt_record_sink *sink)
{
    bool found = true;
    fm_status rc = FM_OK;

    while (rc == FM_OK && found) {
        FM_TRY(fm_csv_next(&t->csv, &found));
        fm_json *record = found ? fm_json_new_object() : NULL;
        if (found)
            rc = record ? set_cells(t, record) : FM_ENOMEM;
        if (rc == FM_OK && found)
            rc = sink->record(sink->ctx, record);
        fm_json_free(record);
    }
    return rc;
}

fm_status fmt_csv_records(fm_span bytes, char separator, const char *what,
                          const fmt_record_sink *sink)
{
    table t = {.columns = 0};

    fm_csv_init(&t.csv, bytes, separator, what);
    fm_status rc = read_header(&t);
    FM_THEN(rc, read_rows(&t, sink));
    release(&t);
    return rc;
}

/* Whether a record with these fields is of some kind. */
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
    table t = {.columns = 0};

    *found = false;
    if (!end)
        return FM_OK;
    fm_csv_init(&t.csv, fm_span_of(bytes.data, (size_t)(end - bytes.data)), separator, "header");
    fm_status rc = read_header(&t);
    if (rc == FM_OK && t.columns > 1)
        rc = names_record(found, &t);
    release(&t);
    return rc == FM_ENOMEM ? rc : FM_OK; /* any other error means that there is no header */
}
