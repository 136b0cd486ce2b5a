/* matrix.c - capability by kind by version, and which cases to look at first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "testing/suite/internal.h"
#include "testing/report.h"

const char *fmv_case_capability(const fm_suite *s, size_t i)
{
    const char *own = fm_suite_case_capability(s, i);
    return own[0] ? own : s->name;
}

static void count_case(fm_matrix_cell *c, const fm_case_result *r)
{
    c->count++;
    c->flaky += r->flaky;
    if (r->flaky)
        return;
    c->passed += r->verdict == FM_PASS;
    c->failed += r->verdict == FM_FAIL;
    c->errors += r->verdict == FM_ERROR_CASE;
    c->waived += r->waived && r->verdict != FM_PASS;
}

double fm_matrix_share(const fm_matrix_cell *c)
{
    size_t n = c->count - c->flaky - c->waived;
    return n ? (double)c->passed / (double)n : (double)NAN;
}

/* The row of a case, made at its first appearance; rows[] holds its number plus one. */
static fm_status row_of(size_t *row, fm_matrix *m, size_t *cap, fm_map *rows, const fm_suite *s,
                        size_t i)
{
    const char *capability = fmv_case_capability(s, i), *kind = fmv_case_kind_name(s, i);
    char key[512];
    int len = snprintf(key, sizeof key, "%s %.400s", kind, capability);
    const char *known = fm_map_get(rows, key, (size_t)len);
    if (known) {
        *row = (size_t)strtoul(known, NULL, 10);
        return FM_OK;
    }
    fm_status rc = fm_grow(&m->row, cap, m->count + 1, sizeof *m->row);
    char *number = rc == FM_OK ? fm_asprintf("%zu", m->count) : NULL;
    if (rc == FM_OK && !number)
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        rc = fm_map_put(rows, key, (size_t)len, number, NULL);
    if (rc < 0) {
        fm_free(number);
        return rc;
    }
    m->row[m->count] = (fm_matrix_row){capability, kind, NULL};
    *row = m->count++;
    return FM_OK;
}

typedef fm_status (*case_fn)(void *ctx, size_t column, const fm_suite *s, const fm_case_result *r);

static fm_status each_case(const fm_report *r, case_fn fn, void *ctx)
{
    fm_status rc = FM_OK;
    for (size_t c = 0; c < r->count; c++)
        for (size_t k = 0; k < r->column[c].run_count; k++) {
            const fm_suite_run *run = &r->column[c].run[k];
            for (size_t i = 0; rc == FM_OK && i < run->count; i++)
                rc = fn(ctx, c, run->suite, &run->result[i]);
        }
    return rc;
}

typedef struct filling {
    fm_matrix *m;
    size_t cap;
    fm_map *rows;
} filling;

static fm_status note_row(void *ctx, size_t column, const fm_suite *s, const fm_case_result *r)
{
    filling *f = ctx;
    size_t row;
    (void)column;
    return row_of(&row, f->m, &f->cap, f->rows, s, r->at);
}

static fm_status fill_cell(void *ctx, size_t column, const fm_suite *s, const fm_case_result *r)
{
    filling *f = ctx;
    size_t row = 0;
    fm_status rc = row_of(&row, f->m, &f->cap, f->rows, s, r->at);
    if (rc == FM_OK)
        count_case(&f->m->row[row].cell[column], r);
    return rc;
}

fm_status fm_report_matrix(fm_matrix *out, const fm_report *r)
{
    filling f = {.m = out};
    *out = (fm_matrix){.columns = r->count};
    fm_status rc = fm_map_new(&f.rows);
    if (rc == FM_OK)
        rc = each_case(r, note_row, &f);
    if (rc == FM_OK && !(out->cells = fm_calloc(out->count * r->count, sizeof *out->cells)))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < out->count; i++)
        out->row[i].cell = out->cells + i * r->count;
    if (rc == FM_OK)
        rc = each_case(r, fill_cell, &f);
    for (size_t i = 0; f.rows && i < fm_map_count(f.rows); i++)
        fm_free(fm_map_value_at(f.rows, i));
    fm_map_free(f.rows);
    if (rc < 0)
        fm_matrix_release(out);
    return rc;
}

void fm_matrix_release(fm_matrix *m)
{
    fm_free(m->row);
    fm_free(m->cells);
    *m = (fm_matrix){0};
}

/* Lowest score first; those without one behind, in the order of the suites (qsort is not stable, so
 * places decide: results of one run lie side by side, runs are compared by their suite's name). */
static int worse_first(const void *a, const void *b)
{
    const fm_case_result *x = *(const fm_case_result *const *)a;
    const fm_case_result *y = *(const fm_case_result *const *)b;
    if (isnan(x->score) != isnan(y->score))
        return isnan(x->score) ? 1 : -1;
    if (x->score < y->score || x->score > y->score)
        return x->score < y->score ? -1 : 1;
    int by_name = strcmp(x->name, y->name);
    return by_name ? by_name : x->at < y->at ? -1 : x->at > y->at;
}

fm_status fm_report_worst(const fm_case_result **out, size_t *n, size_t max, const fm_report *r)
{
    const fm_report_column *c = &r->column[r->shown];
    size_t all = 0;
    *n = 0;
    for (size_t k = 0; k < c->run_count; k++)
        all += c->run[k].count;
    const fm_case_result **bad = fm_calloc(all, sizeof *bad);
    if (!bad)
        return FM_ENOMEM;
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].count; i++)
            if (c->run[k].result[i].verdict != FM_PASS || c->run[k].result[i].flaky)
                bad[(*n)++] = &c->run[k].result[i];
    qsort(bad, *n, sizeof *bad, worse_first);
    *n = FM_MIN(*n, max);
    for (size_t i = 0; i < *n; i++)
        out[i] = bad[i];
    fm_free(bad);
    return FM_OK;
}

const fm_suite *fm_report_suite_of(const fm_report *r, const fm_case_result *result)
{
    const fm_report_column *c = &r->column[r->shown];
    for (size_t k = 0; k < c->run_count; k++)
        if ((uintptr_t)result >= (uintptr_t)c->run[k].result &&
            (uintptr_t)result < (uintptr_t)(c->run[k].result + c->run[k].count))
            return c->run[k].suite;
    return NULL;
}
