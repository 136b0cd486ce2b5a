/* embed.c - a text as one vector: states of its tokens, pooled (model/pooling.h) and normalised.
 * Sums are in double over ascending tokens, on the host, rounded once. */
#include "infer/tasks/embed.h"

#include <math.h>
#include <string.h>

#include "infer/engine/engine.h"
#include "store/base/mem.h"

uint32_t fm_embed_tokens_max(const fm_model *m)
{
    return fmi_priv(m)->pooling.tokens_max;
}

/* *tail: how many tokens the tokenizer puts behind every text; found by encoding an empty one. */
static fm_status tail_of(const fm_tokenizer *tok, const fm_ids *ids, size_t *tail)
{
    fm_ids none = {0};
    fm_status rc = fm_tokenizer_encode(tok, fm_span_str(""), true, &none);
    *tail = 0;
    while (rc == FM_OK && *tail < none.count && *tail < ids->count &&
           none.id[none.count - 1 - *tail] == ids->id[ids->count - 1 - *tail])
        (*tail)++;
    fm_ids_release(&none);
    return rc;
}

fm_status fm_embed_encode(const fm_model *m, fm_span text, fm_ids *out)
{
    const fm_tokenizer *tok = m->tokenizer;
    size_t most = fm_embed_tokens_max(m), tail = 0, first = out->count;
    if (!tok)
        return fm_fail(FM_EUNSUPPORTED, "embed: this version has no tokenizer; give ids");
    fm_status rc = fm_tokenizer_encode(tok, text, true, out);
    FM_THEN(rc, tail_of(tok, out, &tail));
    size_t n = out->count - first;
    if (rc != FM_OK || n <= most)
        return rc;
    tail = FM_MIN(tail, most);
    memmove(out->id + first + most - tail, out->id + first + n - tail, tail * sizeof(out->id[0]));
    out->count = first + most;
    return FM_OK;
}

/* ==== running ==== */

/* What gives the states: of two stacks the encoder. */
static fm_model *runs(const fmi_states_request *q)
{
    return q->model->source ? q->model->source
                            : fm_model_for_length(q->model, (uint32_t)FM_MIN(q->n, UINT32_MAX));
}

static fm_status check(const fmi_states_request *q, uint32_t max_rows)
{
    const fm_arch *a = &q->model->arch;
    if (q->n < 1)
        return fm_fail(FM_EINVAL, "%s: no tokens", q->what);
    const fm_model *by = runs(q);
    uint32_t most = FM_MIN(by->arch.max_positions, fmi_positions(by));
    if (q->n > most)
        return fm_fail(FM_EINVAL, "%s: %zu tokens, %s at most %u", q->what, q->n,
                       fmi_positions_limit(by), most);
    if (by->arch.sw.encoder && q->n > max_rows)
        return fm_fail(FM_ELIMIT,
                       "%s: %zu tokens; an encoder takes a text in one step, and a step of "
                       "this engine has at most %u rows",
                       q->what, q->n, max_rows);
    for (size_t i = 0; i < q->n; i++)
        if (q->ids[i] < 0 || (uint32_t)q->ids[i] >= a->vocab)
            return fm_fail(FM_EINVAL, "%s: token %zu is %d, the vocabulary has %u", q->what, i,
                           q->ids[i], a->vocab);
    return FM_OK;
}

typedef struct job {
    const fmi_states_request *q;
    fm_seq *seq;
    size_t done; /* tokens */
} job;

/* Runs one step with the next tokens of each of n jobs, as many as fit. All jobs but the last reach
 * their end. */
static fm_status step(fm_engine *e, job *j, size_t n, fm_row *row)
{
    uint32_t rows = 0, most = e->opts.max_rows, at = 0;
    for (size_t k = 0; k < n; k++) {
        const fmi_states_request *q = j[k].q;
        size_t took = FM_MIN(q->n - j[k].done, (size_t)(most - rows));
        for (size_t i = j[k].done; i < j[k].done + took; i++)
            row[rows++] = (fm_row){j[k].seq, q->ids[i], i >= q->first && i <= q->last};
    }
    FM_TRY(fm_engine_step(e, row, rows));
    for (size_t k = 0; k < n; k++) {
        size_t took = FM_MIN(j[k].q->n - j[k].done, (size_t)(most - at));
        for (size_t i = 0; i < took; i++, at++) {
            const float *x = fm_engine_hidden(e, at);
            for (size_t c = 0; x && c < j[k].q->model->arch.hidden; c++)
                j[k].q->sum[c] += (double)x[c];
        }
        j[k].done += took;
    }
    return FM_OK;
}

/* How many requests from req on go together: whole ones up to max_rows, or one alone. */
static size_t together(const fmi_states_request *req, size_t n, uint32_t max_rows)
{
    size_t count = 1, rows = req[0].n;
    while (count < n && rows + req[count].n <= max_rows)
        rows += req[count++].n;
    return count;
}

fm_status fmi_states_many(fm_engine *e, const fmi_states_request *req, size_t n)
{
    uint32_t most = e->opts.max_rows;
    fm_row *row = fm_calloc(most, sizeof(*row));
    job *j = fm_calloc(most, sizeof(*j));
    fm_status rc = row && j ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = check(&req[i], most);
    for (size_t at = 0, k; rc == FM_OK && at < n; at += k) {
        k = together(req + at, n - at, most);
        for (size_t i = 0; i < k; i++)
            j[i] = (job){.q = &req[at + i]};
        for (size_t i = 0; rc == FM_OK && i < k; i++)
            rc = fm_seq_open(&j[i].seq, runs(j[i].q));
        while (rc == FM_OK && j[k - 1].done < j[k - 1].q->n)
            rc = step(e, j, k, row);
        for (size_t i = 0; i < k; i++)
            fm_seq_close(j[i].seq);
    }
    fm_free(row);
    fm_free(j);
    return rc;
}

/* ==== embeddings ==== */

static fmi_states_request pooled(const fm_embed_request *q, double *sum)
{
    fmi_pool_mode mode = fmi_priv(q->model)->pooling.mode;
    return (fmi_states_request){.model = q->model,
                                .ids = q->ids,
                                .n = q->n,
                                .first = mode == FMI_POOL_LAST && q->n ? q->n - 1 : 0,
                                .last = mode == FMI_POOL_FIRST || !q->n ? 0 : q->n - 1,
                                .sum = sum,
                                .what = "embed"};
}

/* Runs the Dense modules on x [hidden], in place; their last one is as wide. */
static fm_status run_denses(const fmi_pooling *p, double *x, size_t h)
{
    size_t wide = h;
    for (uint32_t i = 0; i < p->denses; i++)
        wide = FM_MAX(wide, (size_t)p->dense[i].out);
    double *room = p->denses ? fm_calloc(2 * wide, sizeof(double)) : NULL;
    if (p->denses && !room)
        return FM_ENOMEM;
    const double *from = x;
    for (uint32_t i = 0; i < p->denses; i++) {
        double *to = i + 1 == p->denses && i > 0 ? x : room + (i % 2) * wide;
        fmi_dense_run(&p->dense[i], to, from);
        from = to;
    }
    if (p->denses == 1)
        memcpy(x, from, h * sizeof(double));
    fm_free(room);
    return FM_OK;
}

static fm_status finish(const fm_embed_request *q, double *sum)
{
    const fmi_pooling *p = &fmi_priv(q->model)->pooling;
    size_t h = q->model->arch.hidden;
    double count = p->mode == FMI_POOL_MEAN ? (double)q->n : 1.0, squares = 0.0, by = 1.0;
    for (size_t i = 0; i < h; i++)
        sum[i] /= count;
    FM_TRY(run_denses(p, sum, h));
    for (size_t i = 0; i < h; i++)
        squares += sum[i] * sum[i];
    if (p->normalise)
        by = FM_MAX(sqrt(squares), 1e-12); /* as torch's normalize */
    for (size_t i = 0; i < h; i++)
        q->out[i] = (float)(sum[i] / by);
    return FM_OK;
}

fm_status fm_embed_many(fm_engine *e, const fm_embed_request *req, size_t n)
{
    size_t wide = 1;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const char *refused = fmi_priv(req[i].model)->pooling.refused;
        wide = FM_MAX(wide, (size_t)req[i].model->arch.hidden);
        if (refused[0])
            rc = fm_fail(FM_EUNSUPPORTED, "embed: %s", refused);
    }
    fmi_states_request *q = fm_calloc(n + 1, sizeof(*q));
    double *sum = fm_calloc(n * wide + 1, sizeof(*sum));
    if (rc == FM_OK && (!q || !sum))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        q[i] = pooled(&req[i], sum + i * wide);
    FM_THEN(rc, fmi_states_many(e, q, n));
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = finish(&req[i], sum + i * wide);
    fm_free(q);
    fm_free(sum);
    return rc;
}
