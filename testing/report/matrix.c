/* matrix.c - outcomes by capability, kind and version; the cases to look at first. */
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

/* The number of a case's row, which is made for its first case; rows holds the number plus one. */
static fm_status row_of(size_t *row, fm_matrix *m, size_t cap[2], fm_map *rows, const fm_suite *s,
                        size_t i)
{
    const char *capability = fmv_case_capability(s, i), *kind = fmv_case_kind_name(s, i);
    char key[512];
    const int len = snprintf(key, sizeof key, "%s %.400s", kind, capability);
    const uintptr_t known = (uintptr_t)fm_map_get(rows, key, (size_t)len);
    *row = known ? known - 1 : m->count;
    if (known)
        return FM_OK;
    const size_t cells = (m->count + 1) * m->columns;
    FM_TRY(fm_grow(&m->row, &cap[0], m->count + 1, sizeof *m->row));
    FM_TRY(fm_grow(&m->cells, &cap[1], cells, sizeof *m->cells));
    FM_TRY(fm_map_put(rows, key, (size_t)len, (void *)(uintptr_t)(m->count + 1), NULL));
    memset(m->cells + m->count * m->columns, 0, m->columns * sizeof *m->cells);
    m->row[m->count++] = (fm_matrix_row){capability, kind, NULL};
    return FM_OK;
}

fm_status fm_report_matrix(fm_matrix *out, const fm_report *r)
{
    fm_map *rows = NULL;
    size_t cap[2] = {0}, row = 0;
    *out = (fm_matrix){.columns = r->count};
    fm_status rc = fm_map_new(&rows);
    for (size_t c = 0; c < r->count; c++)
        for (size_t k = 0; k < r->column[c].run_count; k++) {
            const fm_suite_run *run = &r->column[c].run[k];
            for (size_t i = 0; rc == FM_OK && i < run->count; i++) {
                rc = row_of(&row, out, cap, rows, run->suite, run->result[i].at);
                if (rc == FM_OK)
                    count_case(&out->cells[row * r->count + c], &run->result[i]);
            }
        }
    for (size_t i = 0; i < out->count; i++)
        out->row[i].cell = out->cells + i * r->count;
    fm_map_free(rows);
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

/* Lowest score first, cases without a score last; equal ones by name, then by index in the suite
 * (qsort is not stable). */
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
