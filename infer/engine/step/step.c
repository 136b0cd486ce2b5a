/* step.c - one step of the engine: planned (step_plan.c), run pass by pass (forward.c), collected.
 * Workspace is sized by max_rows at first use. */
#include "infer/engine/step/step.h"

#include "infer/comm.h"
#include "infer/engine/watchdog.h"
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
    s->lists = &s->own;
    s->run = fm_calloc(n, sizeof(fmi_part));
    s->want = fm_calloc(n, sizeof(fmi_part));
    s->order = fm_calloc(n, sizeof(uint32_t));
    s->pos = fm_calloc(n, sizeof(uint32_t));
    s->logit_row = fm_calloc(n, sizeof(int32_t));
    s->headless = fm_calloc(n, sizeof(bool));
    s->member = fm_calloc(n, sizeof(uint32_t));
    s->lin = fm_calloc(n, sizeof(fm_linear *));
    s->product = fm_calloc((size_t)n * FMI_OUTS, sizeof(fm_product));
    s->lora = fm_calloc((size_t)n * FMI_OUTS, sizeof(fm_lora));
    s->seq = fm_calloc(n, sizeof(fm_seq *));
    s->version = fm_calloc(n, sizeof(uint64_t));
    s->run_of = fm_calloc(n, sizeof(uint32_t));
    s->span = fm_calloc(n, sizeof(fmi_span));
    s->lse_host = fm_calloc(n, sizeof(float));
    void *lse = NULL;
    fm_status rc = e->be->alloc(e->be, &lse, n * sizeof(float));
    s->lse = lse;
    if (rc == FM_OK && !(s->run && s->want && s->order && s->pos && s->logit_row && s->headless &&
                         s->member && s->lin && s->lora && s->product && s->seq && s->run_of &&
                         s->span && s->version && s->lse_host))
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
    fmi_lists_release(e, &s->own);
    fmi_step_graphs_free(s);
    device_free(e, s->stage);
    device_free(e, s->taken);
    fm_free(s->taken_host);
    device_free(e, s->picked);
    device_free(e, s->pick);
    fm_free(s->picked_host);
    fm_free(s->pick_host);
    if (s->logits_host != s->logits)
        fm_free(s->logits_host);
    device_free(e, s->dev);
    device_free(e, s->table);
    device_free(e, s->act);
    device_free(e, s->logits);
    device_free(e, s->lse);
    device_free(e, s->shard);
    if (s->hidden_host != s->hidden)
        fm_free(s->hidden_host);
    device_free(e, s->hidden);
    device_free(e, s->place);
    fmi_routes_free(s);
    fm_free(s->place_host);
    fm_free(s->headless);
    void *host[] = {s->run,  s->want,     s->order,    s->pos,  s->logit_row, s->member,
                    s->host, s->lse_host, s->tap_host, s->lora, s->product};
    for (size_t i = 0; i < FM_ARRAY_LEN(host); i++)
        fm_free(host[i]);
    fm_free(s->lin);
    fm_free(s->seq);
    fm_free(s->version);
    fm_free(s->run_of);
    fm_free(s->span);
    fm_free(s->hooked);
    fm_free(s->table_host);
    fm_free(s);
}

/* ==== the step ==== */

/* Brings the logits and states that the rows wanted to the host. */
static fm_status collect(fmi_step *s)
{
    fm_backend *be = s->e->be;
    fm_status rc = s->e->log ? fm_comm_settle(s->e->comm) : FM_OK;
    if (rc == FM_OK && s->picking)
        return fmi_collect_picks(s);
    if (rc != FM_OK || be->host_visible || s->wanted == 0 || fm_comm_rank(s->e->comm) != 0)
        return rc != FM_OK ? rc : be->sync(be); /* only rank 0 needs them on the host */
    rc = be->download(be, s->hidden_host, s->hidden, s->wanted * s->hidden_ld * sizeof(float));
    if (rc != FM_OK || s->ld == 0)
        return rc;
    return be->download(be, s->logits_host, s->logits, s->wanted * s->ld * sizeof(float));
}

void fmi_step_undo(fmi_step *s)
{
    fm_error_state error;
    if (s->seqs == 0) /* nothing was begun */
        return;
    fm_error_save(&error);
    for (uint32_t i = 0; i < s->seqs; i++)
        fmi_seq_trim(s->seq[i]);
    if (s->e->log) /* a rank may have found, or kept, fewer pages than another */
        fmi_kv_drop_idle(s->e->kv);
    s->e->failures++;
    fm_ignore(s->e->be->sync(s->e->be), "it is known");
    fm_error_restore(&error);
}

static fm_status run_step(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fmi_step *s = e->step;
    fm_status rc = fmi_step_plan(s, rows, n);
    FM_THEN(rc, e->log ? fmi_step_graph_together(s, n) : fmi_step_passes(s, n));
    FM_THEN(rc, collect(s));
    if (e->log && s->seqs > 0) /* the step was sent to the other ranks */
        rc = e->log->end(e, rc);
    if (rc != FM_OK) {
        fmi_step_undo(s);
        return rc;
    }
    for (uint32_t i = 0; i < s->seqs; i++)
        fmi_seq_advance(s->seq[i], s->seq[i]->pending);
    s->last_n = n;
    e->steps++;
    e->rows += n;
    return FM_OK;
}

fm_status fm_engine_step(fm_engine *e, const fm_row *rows, uint32_t n)
{
    fmi_watchdog_begin(e->watchdog);
    fm_status rc = run_step(e, rows, n);
    fmi_watchdog_end(e->watchdog);
    return rc;
}

fm_status fmi_step_given(fm_seq *s, const float *rows, uint32_t n)
{
    fm_engine *e = s->model->engine;
    fm_row *row = fm_calloc(n, sizeof(*row));
    if (!row)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        row[i].seq = s;
    e->step->given = rows;
    fm_status rc = fm_engine_step(e, row, n);
    e->step->given = NULL;
    fm_free(row);
    return rc;
}

/* ==== what the rows of the last step wanted, on the host ==== */

const float *fm_engine_logits(const fm_engine *e, uint32_t i)
{
    const fmi_step *s = e->step;
    if (i >= s->last_n || s->logit_row[i] < 0 || s->headless[i])
        return NULL;
    return s->logits_host + (size_t)s->logit_row[i] * s->ld;
}

const float *fm_engine_hidden(const fm_engine *e, uint32_t i)
{
    const fmi_step *s = e->step;
    if (i >= s->last_n || s->logit_row[i] < 0)
        return NULL;
    return s->hidden_host + (size_t)s->logit_row[i] * s->hidden_ld;
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
    fm_status rc = be->download(be, s->lse_host, s->lse, at * sizeof(float));
    e->failures += rc != FM_OK;
    return rc;
}

float fmi_engine_lse_of(const fm_engine *e, uint32_t row)
{
    return e->step->lse_host[e->step->logit_row[row]];
}
