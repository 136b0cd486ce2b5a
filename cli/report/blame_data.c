/* blame_data.c - prints the ranking of examples. */
#include <math.h>
#include <string.h>

#include "cli/report/report.h"

static const char *measured(double v)
{
    static char ring[4][32];
    static unsigned next;
    char *s = ring[next++ % 4];
    if (isnan(v))
        return "-";
    snprintf(s, sizeof ring[0], "%+.2f", v);
    return s;
}

static void print_fidelity(const fmo_blame_data_section *d)
{
    if (d->trainings == 0)
        return;
    printf("  measured by training again %u times without groups of %zu; the margin falls by "
           "(a random group: %s)\n",
           d->trainings, d->group, measured(d->random));
    out_table *t = out_table_new();
    out_cell(t, "%s", "method");
    out_cell_right(t, "%s", "without its first");
    out_cell_right(t, "%s", "its last");
    out_cell_right(t, "%s", "LDS");
    out_end_row(t);
    for (size_t i = 0; i < d->rankings; i++) {
        const fmo_blame_fidelity *f = &d->ranking[i].fidelity;
        out_cell(t, "%s", fm_attribution_methods[d->ranking[i].kind].name);
        out_cell_right(t, "%s", measured(f->top));
        out_cell_right(t, "%s", measured(f->bottom));
        out_cell_right(t, "%s", measured(f->lds));
        out_end_row(t);
    }
    out_table_print(t, stdout, "    ");
}

static void print_advice(const fmo_blame *b)
{
    if (!b->outstanding)
        return;
    printf("  %zu stand%s out (*); to derive without them: --skip ", b->outstanding,
           b->outstanding == 1 ? "s" : "");
    for (size_t i = 0; i < b->outstanding; i++) {
        const fmo_blame_example *e = &b->example[i];
        printf("%s%s%s%u", i ? "," : "", e->file ? e->file : "", e->file ? ":" : "", e->index);
    }
    putchar('\n');
}

void blame_data_print(const fmo_blame *b, uint64_t top)
{
    const fmo_blame_data_section *d = &b->data;
    if (!b->example_count) {
        printf("\ndata     this version carries no training examples\n");
        return;
    }
    printf("\ndata     %s: %zu examples by %s\n", b->data_name, b->example_count,
           fm_attribution_methods[d->ranking[0].kind].says);
    printf("         towards %s%s\n",
           d->right_known ? "the wrong answer and away from the parent's" : "the wrong answer",
           d->checkpoints ? ", at the run's kept checkpoints" : "");
    print_fidelity(d);
    size_t shown = FM_MIN((size_t)top, b->example_count);
    shown = FM_MAX(shown, FM_MIN(b->outstanding, (size_t)64));
    out_table *t = out_table_new();
    for (size_t i = 0; i < shown; i++) {
        const fmo_blame_example *e = &b->example[i];
        out_cell(t, "%s", i < b->outstanding ? "*" : " ");
        if (e->file)
            out_cell(t, "%s", e->file);
        out_cell_right(t, "%u", e->index);
        out_cell_right(t, "%+.3g", e->score);
        out_cell(t, "%s", out_text(e->preview, 90));
        out_end_row(t);
    }
    out_table_print(t, stdout, "  ");
    print_advice(b);
}
