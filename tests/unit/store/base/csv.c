/* Tables: RFC 4180, and what is refused by line. */
#include "tests/testkit.h"

#include <string.h>

#include "store/base/text/csv.h"

/* Cells behind | each, rows behind their line. */
static void reads(const char *text, char separator, const char *want)
{
    fm_csv t;
    fm_buf b;
    bool found;
    fm_buf_init(&b, 0);
    fm_csv_init(&t, fm_span_str(text), separator, "t.csv");
    for (;;) {
        tk_ok(fm_csv_next(&t, &found));
        if (!found)
            break;
        fm_buf_printf(&b, "%zu", t.row_line);
        for (size_t i = 0; i < t.count; i++)
            fm_buf_printf(&b, "|%s", (const char *)fm_csv_cell(&t, i).data);
        fm_buf_char(&b, ';');
    }
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
    fm_csv_release(&t);
}

static void refused(fm_span text, fm_status rc, const char *needle)
{
    fm_csv t;
    bool found = true;
    fm_status got = FM_OK;
    fm_csv_init(&t, text, ',', "t.csv");
    while (got == FM_OK && found)
        got = fm_csv_next(&t, &found);
    tk_fails(got, rc, needle);
    fm_csv_release(&t);
}

TEST(rows_and_cells_are_those_of_rfc_4180)
{
    reads("a,b\nc,d\n", ',', "1|a|b;2|c|d;");
    reads("a,b\r\nc,d", ',', "1|a|b;2|c|d;");
    reads("\xEF\xBB\xBF"
          "a\n\n\r\nb",
          ',', "1|a;4|b;");
    reads("\"a,\"\"b\"\"\nc\",d\ne,", ',', "1|a,\"b\"\nc|d;3|e|;");
    reads("a,b\tc\n,\t\"\t\"", '\t', "1|a,b|c;2|,|\t;");
    reads("a\rb,\"\"\n", ',', "1|a\rb|;");
    reads("say \"hi\",{\"a\": 1}\n", ',', "1|say \"hi\"|{\"a\": 1};");
    reads("", ',', "");
    reads("\n\n", ',', "");
}

TEST(broken_rows_are_refused_by_line)
{
    char columns[600];
    refused(fm_span_str("a\n\"b\"c\n"), FM_ECORRUPT, "t.csv: line 2: text stands behind");
    refused(fm_span_str("a\n\n\"b\nc\n"), FM_ECORRUPT, "t.csv: line 3: a quote is opened");
    refused(fm_span_str("a\n\"b\n\xc3\",c\n"), FM_ECORRUPT, "t.csv: row at line 2: text is not");
    memset(columns, ',', sizeof columns);
    refused(fm_span_of((const uint8_t *)columns, sizeof columns), FM_ELIMIT,
            "line 1: more than 256");
}

TEST(a_row_has_a_limit)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "a\n\"");
    memset(fm_buf_extend(&b, FM_CSV_ROW_BYTES_MAX), '\n', FM_CSV_ROW_BYTES_MAX);
    fm_buf_str(&b, "\"\n");
    tk_ok(fm_buf_ok(&b));
    refused(fm_buf_span(&b), FM_ELIMIT, "row at line 2: more than 67108864 bytes");
    fm_buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_cells_are_those_of_rfc_4180),
        cmocka_unit_test(broken_rows_are_refused_by_line),
        cmocka_unit_test(a_row_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
