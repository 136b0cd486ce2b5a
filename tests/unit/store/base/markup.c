/* Markup by formats, tables and pictures: what comes from a stranger stays text. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/base/text/chart.h"
#include "store/base/text/page.h"
#include "tests/testkit.h"

#define ODD "a<b>&\"\n\t\r\xC3\xA9\xF0\x9F\x98\x80\x02\xEF\xBF\xBE\xED\xA0\x80\xC0\xAF"
#define NO "\xEF\xBF\xBD" /* U+FFFD */

/* out is want, and empty again. */
static void says(fm_buf *out, const char *want)
{
    tk_ok(fm_buf_ok(out));
    assert_string_equal(fm_buf_cstr(out), want);
    fm_buf_clear(out);
}

TEST(texts_keep_what_xml_can_hold_and_no_more)
{
    const char *volatile none = NULL;
    fm_buf out;
    fm_buf_init(&out, 0);
    fm_markup(&out, "%s", ODD); /* U+FFFE and a surrogate are three bytes, U+002F in two is two */
    says(&out, "a&lt;b&gt;&amp;&quot;\n\t&#13;\xC3\xA9\xF0\x9F\x98\x80" NO NO NO NO NO NO NO NO NO);
    fm_markup(&out, "<p title=\"%s\">%s</p>", "\n\"><p>", "\n\"><p>");
    says(&out, "<p title=\"&#10;&quot;&gt;&lt;p&gt;\">\n&quot;&gt;&lt;p&gt;</p>");
    fm_markup(&out, "%s|%.3s|%.3s|%.0s", none, "\xC3\xA9<\x01>", "abc", "abc");
    says(&out, "|\xC3\xA9&lt;" NO "\xE2\x80\xA6|abc|\xE2\x80\xA6");
    fm_buf_release(&out);
}

TEST(numbers_are_printf_s_and_a_nan_is_a_dash)
{
    fm_buf out;
    fm_buf_init(&out, 0);
    fm_markup(&out, "%d %u %zu %% %f %.2f %+.1f %g %.3g %+g", -3, 4u, (size_t)5, 0.5, 1.005, 2.0,
              1e9, 2.0 / 3, 1.5);
    says(&out, "-3 4 5 % 0.500000 1.00 +2.0 1e+09 0.667 +1.5");
    fm_markup(&out, "%.1f %+.2g", (double)NAN, (double)NAN);
    says(&out, "- -");
    assert_true(fabs(fm_svg_tick(1, 5.5) - 0.2) < 1e-12 && fabs(fm_svg_tick(100, 4) - 50) < 1e-9);
    fm_buf_release(&out);
}

TEST(bars_of_a_format_divide_cells_and_those_of_texts_do_not)
{
    static const char json[] =
        "[{\"a|<b>\":1,\"t\":\"<i>|#\",\"v\":0.25,\"outcome\":\"FAIL\"},"
        "{\"t\":[\"x\",[\"&\"],null,true],\"v\":null,\"outcome\":\"\\\"\"},{}]";
    fm_json *rows = NULL;
    fm_buf out;
    fm_buf_init(&out, 0);
    fm_table_row(&out, "%s|#%u|<b>%s</b>", "a|#b", 1u, "|");
    says(&out, "<tr><td>a|#b</td><td class=\"n\">1</td><td><b>|</b></td></tr>\n");
    tk_ok(fm_json_parse(&rows, fm_span_str(json), "rows"));
    fm_table_of(&out, "text=t|#v|outcome", rows, 2);
    says(&out, "<div class=\"wide\"><table>\n"
               "<tr><th>text</th><th class=\"n\">v</th><th>outcome</th></tr>\n"
               "<tr><td class=\"t\">&lt;i&gt;|#</td><td class=\"n\">0.25</td>"
               "<td class=\"FAIL\">FAIL</td></tr>\n"
               "<tr><td class=\"t\">x, &amp;, , true</td><td class=\"n\"></td>"
               "<td class=\"&quot;\">&quot;</td></tr>\n</table></div>\n");
    fm_table_of_keys(&out, fm_json_at(rows, 0));
    assert_non_null(strstr(fm_buf_cstr(&out), "<tr><th>a|&lt;b&gt;</th><td>1</td></tr>"));
    fm_json_free(rows);
    fm_buf_release(&out);
}

/* Values so large that a tick changes nothing, and none at all: a few lines, and an end. */
TEST(a_plot_of_any_values_ends)
{
    static const char *const logs[] = {"[]", "[{\"x\":0,\"y\":1e30}]", "[{\"x\":1e300,\"y\":1}]",
                                       "[{\"x\":0,\"y\":-1e308},{\"x\":1,\"y\":1e308}]",
                                       "[{\"x\":0,\"y\":null},{\"x\":1,\"y\":2}]"};
    for (size_t i = 0; i < FM_ARRAY_LEN(logs); i++) {
        fm_json *log = NULL;
        fm_series *s = fm_calloc(1, sizeof *s);
        fm_buf out;
        fm_buf_init(&out, 100000);
        tk_ok(fm_json_parse(&log, fm_span_str(logs[i]), "log"));
        fm_series_of(s, log, "x", 1, "y");
        assert_int_equal(s->count, i == 0 ? 0 : i == 3 ? 2 : 1);
        const fm_plot p = {0, 100, 0, 100, 1, s->x_high, s->y_low, s->y_high};
        fm_plot_grid_x(&out, &p, fm_svg_tick(p.x_high - 1, 8));
        fm_plot_grid_y(&out, &p, fm_svg_tick(p.y_high - p.y_low, 6));
        fm_plot_line(&out, &p, "c", s, 1);
        tk_ok(fm_buf_ok(&out));
        fm_buf_release(&out);
        fm_json_free(log);
        fm_free(s);
    }
}

/* 10,000 rows are no more points than a picture shows, and their means. */
TEST(a_long_series_is_means_of_neighbours)
{
    fm_status rc = FM_OK;
    fm_json *log = fm_json_new_array();
    fm_series *s = fm_calloc(1, sizeof *s);
    for (int i = 0; i < 10000; i++) {
        fm_json *o = fm_json_new_object();
        fm_json_put(&rc, o, "step", fm_json_new_int(i));
        fm_json_put(&rc, o, "loss", fm_json_new_real(i % 2));
        fm_json_push_to(&rc, log, o);
    }
    tk_ok(rc);
    fm_series_of(s, log, "step", 1, "loss");
    assert_int_equal(s->count, 589); /* groups of 17 */
    assert_true(fabs(s->x[0] - 9) < 1e-9 && fabs(s->y[0] - 8.0 / 17) < 1e-9);
    fm_json_free(log);
    fm_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_keep_what_xml_can_hold_and_no_more),
        cmocka_unit_test(numbers_are_printf_s_and_a_nan_is_a_dash),
        cmocka_unit_test(bars_of_a_format_divide_cells_and_those_of_texts_do_not),
        cmocka_unit_test(a_plot_of_any_values_ends),
        cmocka_unit_test(a_long_series_is_means_of_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
