/* step.c - plans one step of the engine: a flat list of rows of any models.
 *
 * Rows are reordered so that those of one model stand together (a run); the runs of one shape class
 * form a pass (forward.c). Positions and pages are settled before anything runs, so that a step
 * that does not fit changes nothing. Workspace is sized by max_rows at first use. */
#include "infer/step.h"

#include <string.h>

#include "store/base/mem.h"

/* ==== life ==== */

fm_status fmi_step_new(fmi_step **out, fm_engine *e)
{
    *out = NULL;
    fmi_step *s = fm_calloc(1, sizeof(*s));
    if (!s)
        return FM_ENOMEM;
    uint32_t n = e->opts.max_rows;
    s->e = e;
    s->max_rows = n;
    s->run = fm_calloc(n, sizeof(fmi_part));
    s->want = fm_calloc(n, sizeof(fmi_part));
    s->order = fm_calloc(n, sizeof(uint32_t));
    s->pos = fm_calloc(n, sizeof(uint32_t));
    s->logit_row = fm_calloc(n, sizeof(int32_t));
    s->member = fm_calloc(n, sizeof(uint32_t));
    s->lin = fm_calloc(n, sizeof(fm_linear *));
    s->product = fm_calloc((size_t)n * FMI_OUTS, sizeof(fm_product));
    s->lora = fm_calloc((size_t)n * FMI_OUTS, sizeof(fm_lora));
    s->seq = fm_calloc(n, sizeof(fm_seq *));
    s->lse_host = fm_calloc(n, sizeof(float));
    void *lse = NULL;
    fm_status rc = e->be->alloc(e->be, &lse, n * sizeof(float));
    s->lse = lse;
    if (rc == FM_OK && !(s->run && s->want && s->order && s->pos && s->logit_row && s->member &&
                         s->lin && s->lora && s->product && s->seq && s->lse_host))
        rc = FM_ENOMEM;
    if (rc != FM_OK) {
        fmi_step_free(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

static void device_free(fm_engine *e, void *p)
{
    if (p)
        e->be->free(e->be, p);
}

void fmi_step_free(fmi_step *s)
{
    if (!s)
        return;
    fm_engine *e = s->e;
    fmi_chunk *next;
    for (fmi_chunk *c = s->chunks; c; c = next) {
        next = c->next;
        fm_free(c->host);
        device_free(e, c->dev);
        fm_free(c);
    }
    if (s->logits_host != s->logits)
        fm_free(s->logits_host);
    device_free(e, s->dev);
    device_free(e, s->act);
    device_free(e, s->logits);
    device_free(e, s->lse);
    void *host[] = {s->run,  s->want,     s->order, s->pos,      s->logit_row, s->member,
                    s->host, s->lse_host, s->lists, s->tap_host, s->lora,      s->product};
    for (size_t i = 0; i < FM_ARRAY_LEN(host); i++)
        fm_free(host[i]);
    fm_free(s->lin);
    fm_free(s->seq);
    fm_free(s);
}

/* A device buffer of at least `bytes`; what was in it is lost. */
static fm_status device_room(fm_engine *e, void **buf, size_t have, size_t bytes)
{
    if (have >= bytes)
        return FM_OK;
    void *fresh = NULL;
    fm_status rc = e->be->alloc(e->be, &fresh, bytes);
    if (rc != FM_OK)
        return rc;
    device_free(e, *buf);
    *buf = fresh;
    return FM_OK;
}

static fm_status float_room(fm_engine *e, float **buf, size_t *have, size_t floats)
{
    void *p = *buf;
    fm_status rc = device_room(e, &p, *have * sizeof(float), floats * sizeof(float));
    *buf = p;
    if (rc == FM_OK && floats > *have)
        *have = floats;
    return rc;
}

/* ==== planning ==== */

static fm_status check_rows(fm_engine *e, const fm_row *rows, uint32_t n)
{
    if (n < 1 || n > e->opts.max_rows)
        return fm_fail(FM_EINVAL, "a step of %u rows, allowed are 1 to %u", n, e->opts.max_rows);
    for (uint32_t i = 0; i < n; i++) {
        const fm_seq *q = rows[i].seq;
        if (!q || q->model->engine != e)
            return fm_fail(FM_EINVAL, "row %u: no sequence of this engine", i);
        if (rows[i].token < 0 || (uint32_t)rows[i].token >= q->model->arch.vocab)
            return fm_fail(FM_EINVAL, "row %u: token %d is outside of the vocabulary (%u)", i,
                           rows[i].token, q->model->arch.vocab);
    }
    return FM_OK;
}

/* Positions of the rows, and rows per model in order of first appearance. */
static void count_rows(fmi_step *s, const fm_row *rows, uint32_t n, uint64_t stamp)
{
    s->runs = s->seqs = 0;
    for (uint32_t i = 0; i < n; i++) {
        fm_seq *q = rows[i].seq;
        if (q->stamp != stamp) {
            q->stamp = stamp;
            q->pending = 0;
            q->number = s->seqs;
            s->seq[s->seqs++] = q;
        }
        s->pos[i] = q->len + q->pending++;
        fmi_model_priv *mp = fmi_priv(q->model);
        if (mp->stamp != stamp) {
            mp->stamp = stamp;
            s->run[s->runs++] = (fmi_part){.model = q->model};
        }
    }
}

static fm_status reserve(const fmi_step *s)
{
    for (uint32_t i = 0; i < s->seqs; i++) {
        fm_status rc = fmi_seq_reserve(s->seq[i], s->seq[i]->len + s->seq[i]->pending);
        if (rc != FM_OK)
            return rc;
    }
    return FM_OK;
}

/* Runs of one shape class together, classes in order of first appearance; models learn the
 * number of their run. */
static void sort_runs(fmi_step *s)
{
    for (uint32_t i = 0; i < s->runs;) {
        const fmi_geom *g = fmi_priv(s->run[i].model)->geom;
        uint32_t end = i;
        for (uint32_t j = i; j < s->runs; j++)
            if (fmi_priv(s->run[j].model)->geom == g) {
                fmi_part t = s->run[j];
                memmove(&s->run[end + 1], &s->run[end], (j - end) * sizeof(fmi_part));
                s->run[end++] = t;
            }
        i = end;
    }
    for (uint32_t i = 0; i < s->runs; i++)
        fmi_priv(s->run[i].model)->run = i;
}

/* Counts, then beginnings of each run inside of its pass, then the order of rows. */
static void place_rows(fmi_step *s, const fm_row *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        fmi_part *run = &s->run[fmi_priv(rows[i].seq->model)->run];
        run->count++;
        run->wanted += rows[i].want_logits;
    }
    uint32_t row0 = 0, at = 0;
    for (uint32_t i = 0; i < s->runs; i++) {
        fmi_part *run = &s->run[i];
        if (i > 0 && fmi_priv(run->model)->geom != fmi_priv(run[-1].model)->geom)
            row0 = at;
        run->row0 = row0;
        run->begin = at - row0;
        s->member[i] = at; /* where its next row goes */
        at += run->count;
    }
    for (uint32_t i = 0; i < n; i++)
        s->order[s->member[fmi_priv(rows[i].seq->model)->run]++] = i;
}

static uint32_t widest_table(const fmi_step *s)
{
    uint32_t stride = 1;
    for (uint32_t i = 0; i < s->seqs; i++)
        stride = FM_MAX(stride, s->seq[i]->page_count);
    return stride;
}

static fm_status plan_room(fmi_step *s, size_t ints, size_t more)
{
    if (ints <= s->ints)
        return FM_OK;
    size_t room = ints + more; /* so that a growing sequence does not come back at each page */
    int32_t *host = fm_realloc(s->host, room * sizeof(int32_t));
    if (!host)
        return FM_ENOMEM;
    s->host = host;
    void *dev = s->dev;
    fm_status rc = device_room(s->e, &dev, s->ints * sizeof(int32_t), room * sizeof(int32_t));
    s->dev = dev;
    if (rc == FM_OK)
        s->ints = room;
    return rc;
}

/* ids, pos, slot, gather, seq of all rows in step order and page tables, in one upload. */
static fm_status upload_plan(fmi_step *s, const fm_row *rows, uint32_t n, uint32_t stride)
{
    size_t ints = (size_t)n * 5 + (size_t)s->seqs * stride;
    fm_status rc = plan_room(s, ints, (size_t)s->max_rows * 5 + (size_t)s->seqs * stride);
    if (rc != FM_OK)
        return rc;
    int32_t *ids = s->host, *pos = ids + n, *slot = pos + n, *gather = slot + n;
    int32_t *seq = gather + n, *table = seq + n;
    s->wanted = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = s->order[i], at = s->pos[from];
        const fm_row *r = &rows[from];
        const fm_seq *q = r->seq;
        ids[i] = r->token;
        pos[i] = (int32_t)at;
        slot[i] = q->page[at / FM_KV_PAGE] * FM_KV_PAGE + (int32_t)(at % FM_KV_PAGE);
        s->logit_row[from] = r->want_logits ? (int32_t)s->wanted : -1;
        if (r->want_logits)
            gather[s->wanted++] = (int32_t)(i - s->run[fmi_priv(q->model)->run].row0);
        seq[i] = (int32_t)q->number;
    }
    for (uint32_t i = 0; i < s->seqs; i++) {
        const fm_seq *q = s->seq[i];
        int32_t *row = table + (size_t)i * stride;
        memcpy(row, q->page, q->page_count * sizeof(int32_t));
        memset(row + q->page_count, 0, (stride - q->page_count) * sizeof(int32_t));
    }
    for (uint32_t i = s->wanted; i < n; i++)
        gather[i] = 0;
    return s->e->be->upload(s->e->be, s->dev, s->host, ints * sizeof(int32_t));
}

static size_t act_floats(const fmi_geom *g, uint32_t rows)
{
    size_t q = (size_t)g->heads * g->head_dim, kv = (size_t)g->kv_heads * g->head_dim;
    return (3 * (size_t)g->hidden + 2 * q + 2 * kv + 2 * (size_t)g->inter +
            FM_MAX(FM_MAX((size_t)g->hidden, q), (size_t)g->inter) + 9 * 16) *
           rows;
}

/* Room for activations of every pass at max_rows, and for the logits of this step. */
static fm_status workspace(fmi_step *s)
{
    fm_engine *e = s->e;
    size_t floats = 0;
    s->ld = 0;
    for (uint32_t i = 0; i < s->runs; i++) {
        floats = FM_MAX(floats, act_floats(fmi_priv(s->run[i].model)->geom, s->max_rows));
        s->ld = FM_MAX(s->ld, (size_t)s->run[i].model->arch.vocab);
    }
    fm_status rc = float_room(e, &s->act, &s->act_floats, floats);
    if (rc != FM_OK)
        return rc;
    size_t need = (size_t)s->wanted * s->ld;
    rc = float_room(e, &s->logits, &s->logits_floats, need);
    if (rc != FM_OK || e->be->host_visible) {
        s->logits_host = s->logits;
        return rc;
    }
    return fm_grow(&s->logits_host, &s->logits_host_floats, need, sizeof(float));
}

/* ==== the step ==== */

/* One pass over runs [i, j), whose logits begin at row want0. */
static fm_status run_pass(fmi_step *s, uint32_t n, uint32_t stride, uint32_t i, uint32_t j,
                          uint32_t want0)
{
    const fmi_geom *g = fmi_priv(s->run[i].model)->geom;
    uint32_t wants = 0, w = 0, row0 = s->run[i].row0;
    for (uint32_t r = i; r < j; r++)
        if (s->run[r].wanted) {
            s->want[wants++] =
                (fmi_part){.model = s->run[r].model, .begin = w, .count = s->run[r].wanted};
            w += s->run[r].wanted;
        }
    fmi_pass p = {.s = s,
                  .e = s->e,
                  .g = g,
                  .all = {s->run + i, j - i},
                  .want = {s->want, wants},
                  .row0 = row0,
                  .m = s->run[j - 1].begin + s->run[j - 1].count,
                  .want0 = want0,
                  .w = w,
                  .table_stride = stride,
                  .ids = s->dev + row0,
                  .pos = s->dev + n + row0,
                  .slot = s->dev + 2 * (size_t)n + row0,
                  .gather = s->dev + 3 * (size_t)n + want0,
                  .seq = s->dev + 4 * (size_t)n + row0,
                  .table = s->dev + 5 * (size_t)n};
    size_t rows = s->max_rows, h = g->hidden * rows;
    size_t q = (size_t)g->heads * g->head_dim * rows, kv = (size_t)g->kv_heads * g->head_dim * rows;
    size_t inter = g->inter * rows, widest = FM_MAX(FM_MAX(h, q), inter);
    size_t sizes[] = {h, h, q, kv, kv, q, h, inter, inter, widest};
    float **fields[] = {&p.x, &p.xn, &p.q, &p.k, &p.v, &p.att, &p.o, &p.gate, &p.up, &p.scaled};
    float *at = s->act;
    for (size_t f = 0; f < FM_ARRAY_LEN(sizes); f++) {
        *fields[f] = at;
        at += (sizes[f] + 15) & ~(size_t)15; /* each on a cache line */
    }
    return fmi_forward(&p);
}

static fm_status run_passes(fmi_step *s, uint32_t n, uint32_t stride)
{
    uint32_t want0 = 0;
    for (uint32_t i = 0, j; i < s->runs; i = j) {
        uint32_t w = 0;
        for (j = i; j < s->runs && s->run[j].row0 == s->run[i].row0; j++)
            w += s->run[j].wanted;
        fm_status rc = run_pass(s, n, stride, i, j, want0);
        if (rc != FM_OK)
            return rc;
        want0 += w;
    }
    fm_backend *be = s->e->be;
    if (be->host_visible || s->wanted == 0)
        return be->sync(be);
    return be->download(be, s->logits_host, s->logits, s->wanted * s->ld * sizeof(float));
}

fm_status fm_engine_step(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fmi_step *s = e->step;
    s->last_n = 0;
    fm_status rc = check_rows(e, rows, n);
    if (rc != FM_OK)
        return rc;
    /* A failed step's stamps must not be taken for this one's. */
    count_rows(s, rows, n, ++e->stamp);
    rc = reserve(s);
    if (rc == FM_OK) {
        sort_runs(s);
        place_rows(s, rows, n);
        s->list_count = 0;
        s->chunk_now = NULL;
        uint32_t stride = widest_table(s);
        rc = upload_plan(s, rows, n, stride);
        if (rc == FM_OK)
            rc = workspace(s);
        if (rc == FM_OK)
            rc = run_passes(s, n, stride);
    }
    for (uint32_t i = 0; i < n; i++) {
        fm_seq *q = rows[i].seq;
        if (rc == FM_OK)
            q->len++;
        else
            fmi_seq_trim(q);
    }
    if (rc != FM_OK) { /* what the device still holds of this step is not the next one's */
        fm_error_state error;
        fm_error_save(&error);
        (void)e->be->sync(e->be);
        fm_error_restore(&error);
        return rc;
    }
    s->last_n = n;
    e->steps++;
    e->rows += n;
    return FM_OK;
}

const float *fm_engine_logits(const fm_engine *e, uint32_t i)
{
    const fmi_step *s = e->step;
    if (i >= s->last_n || s->logit_row[i] < 0)
        return NULL;
    return s->logits_host + (size_t)s->logit_row[i] * s->ld;
}

fm_status fmi_engine_lse(fm_engine *e)
{
    fmi_step *s = e->step;
    fm_backend *be = e->be;
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->runs && s->last_n; i++) {
        uint32_t w = s->run[i].wanted;
        if (w)
            be->logsumexp(be, s->lse + at, s->logits + at * s->ld, s->ld, w,
                          s->run[i].model->arch.vocab);
        at += w;
    }
    return be->download(be, s->lse_host, s->lse, at * sizeof(float));
}

float fmi_engine_lse_of(const fm_engine *e, uint32_t row)
{
    return e->step->lse_host[e->step->logit_row[row]];
}
