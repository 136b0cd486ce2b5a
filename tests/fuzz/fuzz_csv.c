/* ctest: store */
/* Tables: no input crashes; what is read, written with every cell in quotes and read again is the
 * same cells. */
#include "store/base/text/csv.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_row(fm_buf *out, const fm_csv *t)
{
    for (size_t i = 0; i < t->count; i++) {
        fm_span cell = fm_csv_cell(t, i);
        fm_buf_str(out, i > 0 ? ",\"" : "\"");
        for (size_t k = 0; k < cell.len; k++) {
            fm_buf_char(out, (char)cell.data[k]);
            if (cell.data[k] == '"')
                fm_buf_char(out, '"');
        }
        fm_buf_char(out, '"');
    }
    fm_buf_char(out, '\n');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_csv a, b;
    fm_buf text;
    bool found = true, again;

    fm_csv_init(&a, fm_span_of(data, size), size % 2 ? ',' : '\t', "fuzz");
    while (fm_csv_next(&a, &found) == FM_OK && found) {
        fm_assert(a.count > 0 && a.row_line <= a.line);
        fm_buf_init(&text, 0);
        put_row(&text, &a);
        fm_csv_init(&b, fm_buf_span(&text), ',', "again");
        fm_assert(fm_csv_next(&b, &again) == FM_OK && again);
        fm_assert(b.count == a.count);
        for (size_t i = 0; i < a.count; i++)
            fm_assert(fm_span_eq(fm_csv_cell(&a, i), fm_csv_cell(&b, i)));
        fm_assert(fm_csv_next(&b, &again) == FM_OK && !again);
        fm_csv_release(&b);
        fm_buf_release(&text);
    }
    fm_csv_release(&a);
    return 0;
}
