/* bm25.c - BM25 over token ids: the plain baseline, which needs no model. */
#include "train/attribution/walk.h"

#include "store/base/mem.h"

#include <math.h>
#include <stdlib.h>

#define K1 1.5
#define B 0.75
#define FLOOR 0.25 /* share of the mean idf for words that most documents have */

static int by_id(const void *x, const void *y)
{
    int32_t a = *(const int32_t *)x;
    int32_t b = *(const int32_t *)y;
    return a < b ? -1 : a > b;
}

static size_t find(const int32_t *word, size_t words, int32_t id)
{
    const int32_t *at = words > 0 ? bsearch(&id, word, words, sizeof(id), by_id) : NULL;
    return at ? (size_t)(at - word) : words;
}

static size_t unique(int32_t *id, size_t n)
{
    size_t kept = 0;

    qsort(id, n, sizeof(*id), by_id);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || id[i] != id[i - 1])
            id[kept++] = id[i];
    return kept;
}

/* idf [words] from document frequencies. */
static void make_idf(double *idf, const uint32_t *df, size_t words, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < words; i++) {
        idf[i] = log((double)n - df[i] + 0.5) - log(df[i] + 0.5);
        sum += idf[i];
    }
    for (size_t i = 0; i < words; i++)
        if (idf[i] < 0.0)
            idf[i] = FLOOR * sum / (double)words;
}

typedef struct corpus {
    int32_t *word; /* [words] all words that occur, ascending */
    size_t words, tokens;
    uint32_t *df, *last; /* [words]; last: the document that counted it, from 1 */
    double *idf;
} corpus;

static void corpus_release(corpus *c)
{
    fm_free(c->word);
    fm_free(c->df);
    fm_free(c->last);
    fm_free(c->idf);
}

static fm_status corpus_open(corpus *c, const int32_t *const *doc, const uint32_t *len, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        c->tokens += len[i];
    c->word = fm_calloc(c->tokens, sizeof(*c->word));
    if (!c->word)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < len[i]; k++)
            c->word[at++] = doc[i][k];
    c->words = unique(c->word, c->tokens);
    c->df = fm_calloc(c->words, sizeof(*c->df));
    c->last = fm_calloc(c->words, sizeof(*c->last));
    c->idf = fm_calloc(c->words, sizeof(*c->idf));
    if (!c->df || !c->last || !c->idf)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < len[i]; k++) {
            size_t w = find(c->word, c->words, doc[i][k]);
            c->df[w] += c->last[w] != i + 1;
            c->last[w] = (uint32_t)i + 1;
        }
    make_idf(c->idf, c->df, c->words, n);
    return FM_OK;
}

fm_status fmt_bm25(double *score, const int32_t *query, size_t query_len, const int32_t *const *doc,
                   const uint32_t *len, size_t n)
{
    corpus c = {0};
    fm_status rc = corpus_open(&c, doc, len, n);
    double mean = n > 0 ? (double)c.tokens / (double)n : 0.0;

    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        double norm = K1 * (1.0 - B + B * (mean > 0.0 ? len[i] / mean : 0.0));
        score[i] = 0.0;
        for (size_t q = 0; q < query_len; q++) {
            size_t w = find(c.word, c.words, query[q]);
            double tf = 0.0;
            for (uint32_t k = 0; k < len[i]; k++)
                tf += doc[i][k] == query[q];
            if (w < c.words && tf > 0.0)
                score[i] += c.idf[w] * tf * (K1 + 1.0) / (tf + norm);
        }
    }
    corpus_release(&c);
    return rc;
}

fm_status fmt_attribution_bm25(const fm_attribution_in *in, double *score)
{
    const fm_dataset *data = in->job->data;
    size_t n = fm_dataset_count(data);
    const int32_t **doc = fm_calloc(n, sizeof(*doc));
    uint32_t *len = fm_calloc(n, sizeof(*len));
    fm_status rc = doc && len ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        doc[i] = fm_dataset_at(data, i)->ids;
        len[i] = fm_dataset_at(data, i)->len;
    }
    FM_THEN(rc, fmt_bm25(score, in->wrong->ids, in->wrong->len, doc, len, n));
    fm_free(doc);
    fm_free(len);
    return rc;
}
