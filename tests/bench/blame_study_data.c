/* blame_study_data.c - which examples: the program's own ranking of a poisoned step's data, as it
 * prints it, beside words in common (BM25) and chance. */
#include "tests/bench/blame_bench.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/os/io.h"
#include "tests/bench/bench_kit.h"

typedef struct ranked {
    uint32_t record;
    double score;
} ranked;

typedef struct tally {
    bb_rate found;            /* the command got to a ranking of the planted step */
    double precision, recall; /* sums over families: of the first 1 %; of as many as were planted */
    double flagged, flagged_right, planted;
    size_t of;
} tally;

static int by_score(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->score != b->score)
        return a->score < b->score ? 1 : -1;
    return a->record < b->record ? -1 : a->record > b->record;
}

static bool is_poisoned(const bb_family *f, uint32_t record)
{
    const fm_json *list = fm_json_get(f->plan, "poisoned");
    for (size_t i = 0; i < fm_json_count(list); i++)
        if (fm_json_int(fm_json_at(list, i), -1) == (int64_t)record)
            return true;
    return false;
}

static void judge(tally *t, const bb_family *f, const ranked *r, size_t n)
{
    const size_t planted = fm_json_count(fm_json_get(f->plan, "poisoned"));
    const size_t top = FM_MAX((n + 99) / 100, (size_t)1);
    size_t in_top = 0, in_planted = 0;
    for (size_t i = 0; i < n; i++) {
        const bool bad = is_poisoned(f, r[i].record);
        in_top += bad && i < top;
        in_planted += bad && i < planted;
    }
    t->precision += (double)in_top / (double)FM_MIN(top, planted);
    t->recall += (double)in_planted / (double)FM_MAX(planted, (size_t)1);
    t->of++;
}

/* ==== the program ========================================================================== */

static fm_status rank_by_program(const bench *b, const bb_family *f, const char *program,
                                 const char *method, tally *t, bool *right_verdict)
{
    char name[64], hex[41];
    snprintf(name, sizeof name, "%s/case", f->id);
    const char *tip = fm_json_cstr(fm_json_get(f->plan, "tip"), "");
    const char *argv[] = {program,  "-C", b->dir,   "blame",  tip,
                          "--case", name, "--data", "--json", method ? "--data-method" : NULL,
                          method,   NULL};
    fm_json *doc = bk_run_json(argv);
    fm_oid_hex(&f->version[f->culprit].oid, hex);
    const bool right = strcmp(fm_json_cstr(fm_json_get(doc, "culprit"), ""), hex) == 0;
    *right_verdict = right && strcmp(fm_json_cstr(fm_json_get(doc, "verdict"), ""),
                                     fm_blame_class_word(f->truth)) == 0;
    const fm_json *list = fm_json_path(doc, "data.examples");
    const size_t n = fm_json_count(list);
    ranked *r = fm_calloc(n + 1, sizeof *r);
    if (!r) {
        fm_json_free(doc);
        return FM_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const fm_json *e = fm_json_at(list, i);
        r[i].record = (uint32_t)fm_json_int(fm_json_get(e, "record"), -1);
        if (fm_json_bool(fm_json_get(e, "stands_out"), false)) {
            t->flagged++;
            t->flagged_right += is_poisoned(f, r[i].record);
        }
    }
    bb_count(&t->found, right && n > 0);
    if (right && n > 0)
        judge(t, f, r, n); /* as it printed them: best first */
    else
        fprintf(stderr, "    wrong: %s (%s): the command says %s, %zu examples\n", f->id, f->what,
                fm_json_cstr(fm_json_get(doc, "verdict"), "nothing"), n);
    fm_free(r);
    fm_json_free(doc);
    return FM_OK;
}

/* ==== BM25 (Robertson & Zaragoza 2009), k1 1.2, b 0.75 ====================================== */

typedef struct words {
    uint64_t *word; /* hashes, lower case */
    size_t count, cap;
} words;

static fm_status split(words *w, const char *text)
{
    fm_status rc = FM_OK;
    for (const char *p = text; rc == FM_OK && *p;) {
        uint64_t h = 1469598103934665603u;
        size_t n = 0;
        for (; isalnum((unsigned char)*p); p++, n++)
            h = (h ^ (uint64_t)tolower((unsigned char)*p)) * 1099511628211u;
        if (n && (rc = fm_grow(&w->word, &w->cap, w->count + 1, sizeof *w->word)) == FM_OK)
            w->word[w->count++] = h;
        if (*p && !isalnum((unsigned char)*p))
            p++;
    }
    return rc;
}

static size_t occurs(const words *w, uint64_t word)
{
    size_t n = 0;
    for (size_t i = 0; i < w->count; i++)
        n += w->word[i] == word;
    return n;
}

static void bm25(const words *doc, size_t docs, const words *query, ranked *out)
{
    double mean = 0;
    for (size_t i = 0; i < docs; i++)
        mean += (double)doc[i].count / (double)docs;
    for (size_t q = 0; q < query->count; q++) {
        size_t with = 0;
        for (size_t i = 0; i < docs; i++)
            with += occurs(&doc[i], query->word[q]) > 0;
        const double idf = log(1 + ((double)(docs - with) + 0.5) / ((double)with + 0.5));
        for (size_t i = 0; i < docs; i++) {
            const double tf = (double)occurs(&doc[i], query->word[q]);
            out[i].score +=
                idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * (double)doc[i].count / mean));
        }
    }
}

static fm_status words_of_record(words *w, const char *line, size_t len)
{
    fm_json *doc = NULL;
    fm_status rc = fm_json_parse(&doc, fm_span_of(line, len), "record");
    const fm_json *turns = fm_json_get(doc, "messages");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(turns); i++)
        rc = split(w, fm_json_cstr(fm_json_get(fm_json_at(turns, i), "content"), ""));
    fm_json_free(doc);
    return rc;
}

/* What a user could type: the case's prompt and the answer that was wrong. */
static fm_status query_of(bench *b, bb_family *f, words *query)
{
    fm_model *m = NULL;
    fm_suite_run run = {0};
    fm_status rc = fm_ops_load_model(b->c, f->tree[f->culprit], f->id, &m);
    if (rc == FM_OK)
        rc = fm_suite_run_on(&run, f->suite, m, "case", NULL);
    if (rc == FM_OK) {
        rc = split(query, fm_json_cstr(fm_json_get(f->plan, "asked"), ""));
        if (rc == FM_OK && run.result[0].answer)
            rc = split(query, run.result[0].answer);
        fm_suite_run_release(&run);
    }
    fm_model_close(m);
    return rc;
}

static fm_status rank_by_words(bench *b, bb_family *f, const char *text, size_t n, tally *t)
{
    words *doc = fm_calloc(n + 1, sizeof *doc), query = {NULL, 0, 0};
    ranked *r = fm_calloc(n + 1, sizeof *r);
    size_t i = 0;
    fm_status rc = doc && r ? query_of(b, f, &query) : FM_ENOMEM;
    for (const char *p = text; rc == FM_OK && *p && i < n; i++) {
        const size_t len = strcspn(p, "\n");
        r[i].record = (uint32_t)i;
        rc = words_of_record(&doc[i], p, len);
        p += len + (p[len] == '\n');
    }
    if (rc == FM_OK) {
        bm25(doc, n, &query, r);
        qsort(r, n, sizeof *r, by_score);
        bb_count(&t->found, true);
        judge(t, f, r, n);
    }
    for (i = 0; doc && i < n; i++)
        fm_free(doc[i].word);
    fm_free(query.word);
    fm_free(doc);
    fm_free(r);
    return rc;
}

static fm_status rank_by_chance(bench *b, bb_family *f, size_t n, tally *t)
{
    ranked *r = fm_calloc(n + 1, sizeof *r);
    if (!r)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        r[i] = (ranked){(uint32_t)i, fm_rng_uniform(b->seed, 900 + (uint64_t)(f - b->family), i)};
    qsort(r, n, sizeof *r, by_score);
    bb_count(&t->found, true);
    judge(t, f, r, n);
    fm_free(r);
    return FM_OK;
}

/* ==== the study ============================================================================ */

static void print(const char *how, const tally *t)
{
    const double n = (double)FM_MAX(t->of, (size_t)1);
    if (!t->found.of)
        return;
    printf("| %s | %zu | %s | %.2f | %.2f |", how, t->found.of, bb_rate_text(&t->found),
           t->precision / n, t->recall / n);
    if (t->flagged > 0)
        printf(" %.2f of %.0f |\n", t->flagged_right / t->flagged, t->flagged);
    else
        printf(" - |\n");
}

static fm_status study_family(bench *b, bb_family *f, const char *program,
                              const char *const *method, size_t methods, tally *t, bb_rate *verdict)
{
    fm_buf text;
    fm_buf_init(&text, 0);
    char *file =
        fm_asprintf("%s/data/%s.jsonl", b->dir, fm_json_cstr(fm_json_get(f->plan, "culprit"), ""));
    const size_t n = (size_t)fm_json_int(fm_json_get(f->plan, "records"), 0);
    fm_status rc = file ? fm_read_file(&text, file, (size_t)16 << 20) : FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < methods; k++) {
        bool right = false;
        rc = rank_by_program(b, f, program, method[k], &t[k], &right);
        if (k == 0)
            bb_count(verdict, right);
    }
    if (rc == FM_OK)
        rc = rank_by_words(b, f, fm_buf_cstr(&text), n, &t[methods]);
    if (rc == FM_OK)
        rc = rank_by_chance(b, f, n, &t[methods + 1]);
    fm_free(file);
    fm_buf_release(&text);
    return rc;
}

fm_status bb_study_data(bench *b, const char *program)
{
    static const char *const method[] = {NULL};
    enum { METHODS = FM_ARRAY_LEN(method) };
    tally t[METHODS + 2];
    bb_rate verdict = {0, 0};
    fm_status rc = FM_OK;
    memset(t, 0, sizeof t);
    for (size_t i = 0; rc == FM_OK && i < b->count; i++)
        if (!b->family[i].discard && b->family[i].kind == 'a')
            rc = study_family(b, &b->family[i], program, method, METHODS, t, &verdict);
    if (rc != FM_OK || !verdict.of)
        return rc;
    printf("\npoisoned examples: as 'fmstore blame --data' ranks them; its verdict and version "
           "were right in %s %%\n\n"
           "| how | families | step found %% | precision in the first 1 %% | recall among as many "
           "as planted | "
           "flagged: right |\n|---|---|---|---|---|---|\n",
           bb_rate_text(&verdict));
    for (size_t k = 0; k < METHODS; k++)
        print(method[k] ? method[k] : "fmstore blame", &t[k]);
    print("BM25", &t[METHODS]);
    print("random", &t[METHODS + 1]);
    fflush(stdout);
    return rc;
}
