/* ui.c - the callbacks of the command line. */
#include "cli/report/ui.h"

#include <string.h>

#include "cli/base/context.h"

static void say(void *ctx, fm_ui_level level, const char *text)
{
    (void)ctx;
    out_progress_end();
    if (level == FM_UI_WARNING)
        cli_say_failure(text);
    else
        out_lines(level == FM_UI_RESULT ? stdout : stderr, text);
}

static bool show(void *ctx, const fm_ui_progress *p)
{
    static out_bar bar;
    (void)ctx;
    if (!p->what || !p->bytes)
        bar.verb = NULL;
    else if (!bar.verb)
        out_bar_begin(&bar, p->what);
    if (!p->what)
        out_progress_end();
    else if (p->bytes)
        out_bar_at(&bar, p->done, p->total);
    else
        out_progress("%s", out_text(p->what, 500));
    return cli_interrupted;
}

static void print_landed(const fm_json *v)
{
    const char *id = fm_json_cstr(fm_json_get(v, "id"), "");
    const char *message = fm_json_cstr(fm_json_get(v, "message"), "");
    printf("%s%s%s  %.10s  ", out_c(OUT_BOLD), fm_json_cstr(fm_json_get(v, "branch"), ""),
           out_c(OUT_PLAIN), id);
    out_line(message, strcspn(message, "\n"));
    fflush(stdout); /* in order with stderr; main checks the stream's error */
}

static void print_settings(out_table *table, const fm_json *set)
{
    for (void *it = fm_json_iter(set); it; it = fm_json_next(set, it)) {
        const fm_json *v = fm_json_iter_value(it);
        if (fm_json_is(v, FM_JSON_INT) || fm_json_is(v, FM_JSON_REAL))
            out_cell_right(table, "%g", fm_json_real(v, 0));
        else if (fm_json_is(v, FM_JSON_BOOL))
            out_cell(table, "%s", fm_json_bool(v, false) ? "true" : "false");
        else
            out_cell(table, "%s", out_text(fm_json_cstr(v, "?"), 40));
    }
}

static void print_sweep(const fm_json *v)
{
    const fm_json *trials = fm_json_get(v, "trials");
    const fm_json *first = fm_json_get(fm_json_at(trials, 0), "set");
    out_table *table = out_table_new();
    out_cell(table, "%s", fm_json_cstr(fm_json_get(v, "name"), ""));
    for (void *it = fm_json_iter(first); it; it = fm_json_next(first, it))
        out_cell(table, "%s", fm_json_iter_key(it));
    out_cell_right(table, "steps");
    out_cell_right(table, "loss");
    out_cell(table, "outcome");
    out_end_row(table);
    for (size_t i = 0; i < fm_json_count(trials); i++) {
        const fm_json *t = fm_json_at(trials, i), *loss = fm_json_get(t, "loss");
        out_cell(table, "trial %zu", i + 1);
        print_settings(table, fm_json_get(t, "set"));
        out_cell_right(table, "%lld", (long long)fm_json_int(fm_json_get(t, "steps"), 0));
        if (fm_json_is(loss, FM_JSON_NULL)) /* it failed, or has no loss */
            out_cell_right(table, "-");
        else
            out_cell_right(table, "%.4f", fm_json_real(loss, 0));
        out_cell(table, "%s", out_text(fm_json_cstr(fm_json_get(t, "outcome"), ""), 120));
        out_end_row(table);
    }
    out_progress_end();
    out_table_print(table, stderr, "  ");
}

static void tell(void *ctx, const char *kind, const fm_json *value)
{
    (void)ctx;
    if (strcmp(kind, "landed") == 0)
        print_landed(value);
    else if (strcmp(kind, "sweep") == 0)
        print_sweep(value);
}

const fm_ui cli_ui = {.message = say, .progress = show, .result = tell, .hung = cli_hung};
