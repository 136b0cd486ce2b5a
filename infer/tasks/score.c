/* score.c - log-probabilities of given texts. Many sequences share the steps. Rows before the first
 * position of interest have no logits, so whole blocks of them can come from the prefix cache; the
 * memory for logits limits the rows behind it, not max_rows alone. */
#include "infer/engine/engine.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"

#define LOGIT_FLOATS (16u << 20) /* of one step: 64 MiB */

typedef struct job {
    const fm_score_request *q;
    /* Of an encoder-decoder: what the decoder takes. q->ids before from are the source. */
    int32_t *own;
    const int32_t *ids; /* [n] own, or q->ids */
    size_t n;
    fm_logprob *top;
    uint32_t top_k;
    fm_seq *seq;
    size_t feed;  /* tokens to run: the last one only with top, which wants its logits */
    size_t first; /* row that has logits */
    size_t done;
    uint32_t rows, row0; /* in this step */
} job;

static fm_status check(const job *j)
{
    const fm_score_request *q = j->q;
    const fm_arch *a = fm_model_arch(q->model);
    if (a->sw.encoder)
        return fm_fail(FM_EUNSUPPORTED, "score: %s is an encoder; it gives embeddings, no text",
                       a->family);
    if (a->headless)
        return fm_fail(FM_EUNSUPPORTED, "score: this version has no language head; a classifier's "
                                        "classes come from classify, a base model's vectors from "
                                        "embed");
    if (a->sw.cross && (q->from == 0 || j->top_k))
        return fm_fail(FM_EUNSUPPORTED,
                       "score: %s gives the probabilities of an answer to a source alone, and no "
                       "other tokens",
                       a->family);
    if (a->sw.cross)
        FM_TRY(fmi_source_check(q->model, q->ids, FM_MIN(q->from, q->n)));
    for (size_t i = 0; i < q->n; i++)
        if (q->ids[i] < 0 || (uint32_t)q->ids[i] >= a->vocab)
            return fm_fail(FM_EINVAL, "score: token %zu is %d, the vocabulary has %u", i, q->ids[i],
                           a->vocab);
    const fm_model *by = fm_model_for_length(q->model, (uint32_t)FM_MIN(j->feed, UINT32_MAX));
    if (j->feed > fmi_positions(by))
        return fm_fail(FM_EINVAL, "score: %zu tokens, %s at most %u", q->n, fmi_positions_limit(by),
                       fmi_positions(by));
    return j->top_k > a->vocab
               ? fm_fail(FM_EINVAL, "score: top_k is %u, the vocabulary has %u", j->top_k, a->vocab)
               : FM_OK;
}

#define LOOK_BACK 16u /* so many jobs before a job are compared with it */

/* Whether the next block of j[i] goes through this step in a job before it: then j[i] waits and
 * finds the block in the cache. */
static bool is_underway(const job *j, size_t i)
{
    const fm_score_request *q = j[i].q;
    size_t at = j[i].seq ? j[i].seq->whole : 0, end = at + FM_KV_PAGE, seen = 0;
    if (end >= j[i].feed || at != j[i].done)
        return false;
    for (size_t k = 0; k < i && seen < LOOK_BACK; k++) {
        const fm_score_request *o = j[k].q;
        if (!j[k].rows)
            continue;
        seen++;
        if (j[k].feed >= end && j[k].done < end && fmi_leaves_for(o->model, q->model) &&
            memcmp(j[k].ids, j[i].ids, end * sizeof(int32_t)) == 0)
            return true;
    }
    return false;
}

/* Opens j's sequence, with the cached blocks before the first row that has logits. */
static fm_status begin(job *j)
{
    FM_TRY(fm_seq_open(&j->seq, fm_model_for_length(j->q->model, (uint32_t)j->feed)));
    if (j->own)
        FM_TRY(fm_seq_source(j->seq, j->q->ids, j->q->from));
    FM_TRY(fmi_seq_expect(j->seq, (uint32_t)j->feed));
    for (uint32_t i = 0; i < j->feed; i++)
        fmi_seq_tell(j->seq, i, j->ids[i]);
    return FM_OK;
}

static void adopt(job *j)
{
    fmi_seq_want(j->seq, (uint32_t)j->first, (uint32_t)j->feed);
    fmi_seq_adopt(j->seq);
    j->done = fm_seq_len(j->seq);
}

typedef struct room { /* what a step still has space for */
    uint32_t rows, logits;
} room;

/* Rows of j in the next step: as many as fit. */
static uint32_t rows_of(const job *j, room left)
{
    size_t silent = j->first > j->done ? j->first - j->done : 0;
    size_t most = FM_MIN(j->feed - j->done, silent + left.logits);
    return (uint32_t)FM_MIN(most, (size_t)left.rows);
}

/* Gathers rows of unfinished jobs, in order, as many as fit; at most `jobs` jobs begin or go on. */
static fm_status gather(fm_row *row, room left, job *j, size_t n, size_t jobs, uint32_t *out)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        j[i].rows = 0;
        if (j[i].done == j[i].feed || left.rows == 0 || jobs == 0 || is_underway(j, i))
            continue;
        FM_TRY(j[i].seq ? FM_OK : begin(&j[i]));
        adopt(&j[i]);
        if (is_underway(j, i))
            continue;
        jobs--;
        j[i].row0 = at;
        j[i].rows = rows_of(&j[i], left);
        left.rows -= j[i].rows;
        for (uint32_t r = 0; r < j[i].rows; r++, at++) {
            bool wants = j[i].done + r >= j[i].first;
            row[at] =
                (fm_row){.seq = j[i].seq, .token = j[i].ids[j[i].done + r], .want_logits = wants};
            left.logits -= wants;
        }
    }
    *out = at;
    return FM_OK;
}

static fm_status take(fm_engine *e, job *j)
{
    const fm_score_request *q = j->q;
    uint32_t vocab = fm_model_arch(q->model)->vocab;
    for (uint32_t r = 0; r < j->rows; r++) {
        size_t at = j->done + r;
        if (at < j->first)
            continue;
        const float *logits = fm_engine_logits(e, j->row0 + r);
        float lse = fmi_engine_lse_of(e, j->row0 + r);
        if (at + 1 < j->n)
            q->logprobs[q->n - j->n + at + 1] =
                (float)((double)logits[j->ids[at + 1]] - (double)lse);
        if (j->top_k) {
            FM_TRY(fm_logprobs(NULL, j->top + at * j->top_k, j->top_k, logits, vocab, j->ids[at]));
        }
    }
    j->done += j->rows;
    if (j->done == j->feed) {
        fm_seq_close(j->seq);
        j->seq = NULL;
    }
    return FM_OK;
}

/* There were not enough KV pages for all: closes the sequences of all jobs but the first unfinished
 * one, which then runs alone. */
static void first_only(job *j, size_t n)
{
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        if (j[i].done == j[i].feed)
            continue;
        if (!first) {
            fm_seq_close(j[i].seq);
            j[i].seq = NULL;
            j[i].done = 0;
        }
        first = false;
    }
}

static fm_status run(fm_engine *e, fm_row *row, room all, job *j, size_t n)
{
    for (;;) {
        uint32_t rows = 0;
        fm_status rc = fm_go_on();
        FM_THEN(rc, gather(row, all, j, n, SIZE_MAX, &rows));
        if (rc != FM_OK || rows == 0)
            return rc;
        rc = fm_engine_step(e, row, rows);
        if (rc == FM_ELIMIT) {
            first_only(j, n);
            rc = gather(row, all, j, n, 1, &rows);
            FM_THEN(rc, fm_engine_step(e, row, rows));
        }
        FM_THEN(rc, fmi_engine_lse(e));
        for (size_t i = 0; i < n && rc == FM_OK; i++)
            if (j[i].rows)
                rc = take(e, &j[i]);
        if (rc != FM_OK)
            return rc;
    }
}

static fm_status score(fm_engine *e, job *j, size_t n)
{
    uint32_t vocab = 1;
    for (size_t i = 0; i < n; i++) {
        fm_status rc = check(&j[i]);
        if (rc != FM_OK)
            return n > 1 ? fm_error_prefix(rc, "request %zu", i) : rc;
        vocab = FM_MAX(vocab, fm_model_arch(j[i].q->model)->vocab);
        if (j[i].q->n)
            j[i].q->logprobs[0] = 0.0f;
    }
    room all = {.rows = e->opts.max_rows,
                .logits = FM_MIN(e->opts.max_rows, FM_MAX(LOGIT_FLOATS / vocab, 1u))};
    fm_row *row = fm_calloc(all.rows, sizeof(*row));
    if (!row)
        return FM_ENOMEM;
    fm_status rc = run(e, row, all, j, n);
    for (size_t i = 0; i < n; i++)
        fm_seq_close(j[i].seq);
    fm_free(row);
    return rc;
}

/* Sets what j runs: all of the text but its last token, or the decoder's first tokens and all of
 * the answer but its last token. */
static fm_status set_tokens(job *j)
{
    const fm_score_request *q = j->q;
    const fm_arch *a = fm_model_arch(q->model);
    j->ids = q->ids;
    j->n = q->n;
    j->feed = q->n > FM_MAX(q->from, (size_t)1) ? q->n - 1 : 0;
    j->first = q->from ? q->from - 1 : 0;
    if (!a->sw.cross || q->from == 0 || q->n <= q->from)
        return FM_OK;
    bool second = a->start[1] >= 0 && q->ids[q->from] != a->start[1]; /* the answer may have it */
    size_t lead = second ? 2 : 1, answer = q->n - q->from;
    j->own = fm_malloc((lead + answer) * sizeof(int32_t));
    if (!j->own)
        return FM_ENOMEM;
    memcpy(j->own, a->start, lead * sizeof(int32_t));
    memcpy(j->own + lead, q->ids + q->from, answer * sizeof(int32_t));
    j->ids = j->own;
    j->n = lead + answer;
    j->feed = j->n - 1;
    j->first = lead - 1;
    return FM_OK;
}

fm_status fm_score(fm_model *m, const int32_t *ids, size_t n, float *logprobs, fm_logprob *top,
                   uint32_t top_k)
{
    fm_score_request q = {.model = m, .ids = ids, .n = n, .logprobs = logprobs};
    bool wants_top = top && top_k;
    job j = {.q = &q,
             .ids = ids,
             .n = n,
             .top = top,
             .top_k = wants_top ? top_k : 0,
             .feed = n && !wants_top ? n - 1 : n};
    return score(m->engine, &j, 1);
}

fm_status fm_score_many(fm_engine *e, const fm_score_request *req, size_t n)
{
    job *j = fm_calloc(FM_MAX(n, (size_t)1), sizeof(*j));
    if (!j)
        return FM_ENOMEM;
    fm_status rc = FM_OK;
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        j[i].q = &req[i];
        if (!req[i].model || req[i].model->engine != e)
            rc = fm_fail(FM_EINVAL, "request %zu: the model belongs to another engine", i);
        FM_THEN(rc, set_tokens(&j[i]));
    }
    FM_THEN(rc, score(e, j, n));
    for (size_t i = 0; i < n; i++)
        fm_free(j[i].own);
    fm_free(j);
    return rc;
}
