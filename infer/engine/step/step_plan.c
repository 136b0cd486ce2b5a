/* step_plan.c - plans one step of the engine: a flat list of rows of any models.
 *
 * Rows are reordered so that those of one model stand together (a run); the runs of one shape class
 * form a pass (forward.c). Positions and pages are settled before anything runs, so that a step
 * that does not fit changes nothing. Ranks compare their plans. */
#include <string.h>

#include "infer/device/room.h"
#include "infer/engine/pipeline.h"
#include "store/base/mem.h"

/* ==== planning ==== */

/* A token of a queued step may be one that the last step picks: -1 - its number there. */
static fm_status check_token(const fmi_step *s, const fm_row *r, uint32_t i)
{
    uint32_t vocab = r->seq->model->arch.vocab;
    if (r->token < 0 && s->queued && (uint32_t) - (r->token + 1) < s->picks)
        return FM_OK;
    return r->token >= 0 && (uint32_t)r->token < vocab
               ? FM_OK
               : fm_fail(FM_EINVAL, "row %u: token %d is outside of the vocabulary (%u)", i,
                         r->token, vocab);
}

static fm_status check_rows(fm_engine *e, const fm_row *rows, uint32_t n)
{
    if (n < 1 || n > e->opts.max_rows)
        return fm_fail(FM_EINVAL, "a step of %u rows, allowed are 1 to %u", n, e->opts.max_rows);
    for (uint32_t i = 0; i < n; i++) {
        const fm_seq *q = rows[i].seq;
        if (!q || q->model->engine != e)
            return fm_fail(FM_EINVAL, "row %u: no sequence of this engine", i);
        FM_TRY(check_token(e->step, &rows[i], i));
        if (q->model->arch.sw.encoder && q->len > 0)
            return fm_fail(FM_EINVAL, "row %u: an encoder takes a text in one step", i);
        if (q->model->arch.sw.cross && q->source_len == 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "row %u: %s makes its text from a source, which this "
                           "sequence lacks",
                           i, q->model->arch.family);
    }
    return FM_OK;
}

/* Positions of the rows, sequences in order of first appearance. */
static void count_rows(fmi_step *s, const fm_row *rows, uint32_t n, uint64_t stamp)
{
    s->seqs = 0;
    for (uint32_t i = 0; i < n; i++) {
        fm_seq *q = rows[i].seq;
        if (q->stamp != stamp) {
            q->stamp = stamp;
            q->pending = 0;
            q->want_begin = q->want_end = 0;
            fmi_geom *g = fmi_priv(q->model)->geom;
            if (g->stamp != stamp) {
                g->stamp = stamp;
                g->seqs = 0;
            }
            q->number = g->seqs++;
            s->seq[s->seqs++] = q;
        }
        uint32_t at = q->len + q->pending++;
        s->pos[i] = q->base + at;
        if (!rows[i].want_logits)
            continue;
        if (q->want_end == 0)
            q->want_begin = at;
        q->want_end = at + 1;
    }
}

/* Reserves tables and pages for the rows, and notes their tokens. */
static fm_status reserve(const fmi_step *s, const fm_row *rows, uint32_t n)
{
    for (uint32_t i = 0; i < s->seqs; i++) {
        fm_seq *q = s->seq[i];
        FM_TRY(fmi_seq_expect(q, q->len + q->pending));
    }
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].token >= 0)
            fmi_seq_tell(rows[i].seq, s->pos[i] - rows[i].seq->base, rows[i].token);
    for (uint32_t i = 0; i < s->seqs; i++) {
        FM_TRY(fmi_seq_reserve(s->seq[i], s->seq[i]->len + s->seq[i]->pending));
    }
    return FM_OK;
}

/* The run of this model and first layer, made if need be. A model's runs are mostly one. */
static uint32_t run_for(fmi_step *s, fm_model *m, uint32_t first)
{
    fmi_model_priv *p = fmi_priv(m);
    if (p->stamp == s->e->stamp && s->run[p->run].first == first)
        return p->run;
    uint32_t i = p->stamp == s->e->stamp ? 0 : s->runs;
    while (i < s->runs && (s->run[i].model != m || s->run[i].first != first))
        i++;
    if (i == s->runs)
        s->run[s->runs++] = (fmi_part){.model = m, .first = first};
    p->stamp = s->e->stamp;
    p->run = i;
    return i;
}

/* Sorts runs by shape class, classes in order of first appearance; in a class, runs that begin at
 * upper layers come first. s->member: the new place of each run. */
static void sort_runs(fmi_step *s)
{
    uint32_t *was = s->order; /* not filled yet */
    for (uint32_t i = 0; i < s->runs; i++)
        was[i] = i;
    for (uint32_t i = 1; i < s->runs; i++) {
        fmi_part t = s->run[i];
        const fmi_geom *g = fmi_priv(t.model)->geom;
        uint32_t to = i, number = was[i], last = i;
        while (last > 0 && fmi_priv(s->run[last - 1].model)->geom != g)
            last--;
        if (last > 0) /* behind the runs of its class that begin at its first layer or above */
            for (to = last; to > 0 && fmi_priv(s->run[to - 1].model)->geom == g &&
                            s->run[to - 1].first < t.first;)
                to--;
        memmove(&s->run[to + 1], &s->run[to], (i - to) * sizeof(fmi_part));
        memmove(&was[to + 1], &was[to], (i - to) * sizeof(uint32_t));
        s->run[to] = t;
        was[to] = number;
    }
    for (uint32_t i = 0; i < s->runs; i++)
        s->member[was[i]] = i;
}

/* Finds the runs, their counts, where each begins inside of its pass, and the order of rows. */
static void place_rows(fmi_step *s, const fm_row *rows, uint32_t n)
{
    s->runs = 0;
    for (uint32_t i = 0; i < n; i++) {
        const fm_seq *q = rows[i].seq;
        uint32_t first = s->given ? 0 : fmi_seq_block(q, s->pos[i] - q->base)->first;
        s->run_of[i] = run_for(s, q->model, first);
        s->run[s->run_of[i]].count++;
        s->run[s->run_of[i]].wanted += rows[i].want_logits;
    }
    sort_runs(s);
    for (uint32_t i = 0; i < n; i++)
        s->run_of[i] = s->member[s->run_of[i]];
    uint32_t row0 = 0, at = 0;
    for (uint32_t i = 0; i < s->runs; i++) {
        fmi_part *run = &s->run[i];
        if (i > 0 && fmi_priv(run->model)->geom != fmi_priv(run[-1].model)->geom)
            row0 = at;
        run->row0 = row0;
        run->begin = run->at = at - row0;
        s->member[i] = at; /* where its next row goes */
        at += run->count;
    }
    for (uint32_t i = 0; i < n; i++)
        s->order[s->member[s->run_of[i]]++] = i;
}

static bool same_pass(const fmi_step *s, uint32_t a, uint32_t b)
{
    return s->run[s->run_of[a]].row0 == s->run[s->run_of[b]].row0;
}

/* Finds the rows that take a residual stream from the cache or save one there, block by block. */
static void find_spans(fmi_step *s, const fm_row *rows, uint32_t n)
{
    s->spans = 0;
    for (uint32_t i = 0, count; i < n; i += count) {
        const fm_seq *q = rows[s->order[i]].seq;
        uint32_t pos = s->pos[s->order[i]], off = pos % FM_KV_PAGE;
        const fmi_block *k = fmi_seq_block(q, pos - q->base);
        bool saves = k->from >= 0;
        for (size_t j = 0; j < FMI_SAVES; j++)
            saves = saves || k->save[j].page >= 0;
        for (count = 1; i + count < n && off + count < FM_KV_PAGE; count++) {
            uint32_t next = s->order[i + count];
            if (rows[next].seq != q || s->pos[next] != pos + count ||
                !same_pass(s, next, s->order[i]))
                break;
        }
        if (saves)
            s->span[s->spans++] = (fmi_span){.row = i, .count = count, .off = off, .block = k};
    }
}

/* Grows host and device memory to `ints`, and by half more, so that it seldom grows again. */
static fm_status int_room(fm_engine *e, int32_t **host, int32_t **dev, size_t *have, size_t ints)
{
    if (ints <= *have)
        return FM_OK;
    size_t room = ints + ints / 2;
    int32_t *fresh = fm_realloc(*host, room * sizeof(int32_t));
    if (!fresh)
        return FM_ENOMEM;
    *host = fresh;
    void *p = *dev;
    fm_status rc = fmi_device_room(e->be, &p, *have * sizeof(int32_t), room * sizeof(int32_t));
    *dev = p;
    if (rc == FM_OK)
        *have = room;
    return rc;
}

/* Fills in the slot of each row's keys and values in each layer, for one pass. */
static void fill_slots(const fmi_step *s, const fm_row *rows, uint32_t row0, uint32_t m,
                       const fmi_geom *g, int32_t *slot)
{
    for (uint32_t l = g->begin; l < g->begin + g->here; l++)
        for (uint32_t i = 0; i < m; i++) {
            uint32_t from = s->order[row0 + i], at = s->pos[from];
            const fm_seq *q = rows[from].seq;
            int32_t page = q->page[(size_t)l * q->page_cap + at / FM_KV_PAGE];
            *slot++ = page * (int32_t)FM_KV_PAGE + (int32_t)(at % FM_KV_PAGE);
        }
}

/* Uploads ids, pos, gather, seq of all rows in step order, then slots, in one piece. */
static fm_status upload_plan(fmi_step *s, const fm_row *rows, uint32_t n)
{
    size_t ints = (size_t)n * 4, most = 0;
    for (uint32_t i = 0, m; i < s->runs;) {
        size_t of_row = fmi_row_ints(fmi_geom_of_run(s, i));
        most = FM_MAX(most, of_row);
        i = fmi_pass_end(s, i, &m);
        ints += of_row * m;
    }

    if (ints > s->ints)
        FM_TRY(int_room(s->e, &s->host, &s->dev, &s->ints, (size_t)s->max_rows * (4 + most)));
    int32_t *ids = s->host, *pos = ids + n, *gather = pos + n, *seq = gather + n, *slot = seq + n;
    s->wanted = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = s->order[i];
        const fm_row *r = &rows[from];
        ids[i] = fmi_token_here(r->seq->model, FM_MAX(r->token, 0));
        pos[i] = (int32_t)s->pos[from];
        s->headless[from] = !r->seq->model->head.w;
        s->logit_row[from] = r->want_logits ? (int32_t)s->wanted : -1;
        if (r->want_logits)
            gather[s->wanted++] = (int32_t)(i - s->run[s->run_of[from]].row0);
        seq[i] = (int32_t)r->seq->number;
    }
    for (uint32_t i = s->wanted; i < n; i++)
        gather[i] = 0;
    for (uint32_t i = 0, m; i < s->runs;) {
        const fmi_geom *g = fmi_geom_of_run(s, i);
        uint32_t row0 = s->run[i].row0;
        i = fmi_pass_end(s, i, &m);
        fill_slots(s, rows, row0, m, g, slot);
        if (g->recurs)
            fmi_fill_states(s, rows, row0, m, g, slot + (size_t)g->here * m);
        slot += fmi_row_ints(g) * m;
    }
    return s->e->be->upload(s->e->be, s->dev, s->host, ints * sizeof(int32_t));
}

/* ==== page tables ==== */

/* True where the device already has the tables of these sequences in this order. */
static bool same_tables(fmi_step *s)
{
    uint32_t stride = 1, cap = 1;
    bool same = s->versions == s->seqs;
    for (uint32_t i = 0; i < s->seqs; i++) {
        same = same && s->version[i] == s->seq[i]->version;
        s->version[i] = s->seq[i]->version;
        stride = FM_MAX(stride, FM_MAX(s->seq[i]->page_count, s->seq[i]->source_pages));
        cap = FM_MAX(cap, FM_MAX(s->seq[i]->page_cap, s->seq[i]->source_pages));
    }
    s->versions = s->seqs;
    while (s->e->be->replay && stride < cap && stride & (stride - 1)) /* signatures change less */
        stride++;
    same = same && s->table_stride == stride;
    s->table_stride = stride;
    s->table_cap = cap;
    return same;
}

static void fill_row(int32_t *row, size_t stride, const int32_t *page, uint32_t count)
{
    memcpy(row, page, count * sizeof(int32_t));
    memset(row + count, 0, (stride - count) * sizeof(int32_t));
}

static void fill_table(const fmi_step *s, const fmi_geom *g, int32_t *table)
{
    size_t stride = s->table_stride, tables = (size_t)g->here * g->seqs;
    for (uint32_t i = 0; i < s->seqs; i++) {
        const fm_seq *q = s->seq[i];
        if (fmi_priv(q->model)->geom != g)
            continue;
        for (uint32_t l = g->begin; l < g->begin + g->here; l++) {
            int32_t *row = table + ((size_t)(l - g->begin) * g->seqs + q->number) * stride;
            fill_row(row, stride, q->page + (size_t)l * q->page_cap, q->page_count);
            if (g->sw.cross)
                fill_row(row + tables * stride, stride,
                         q->source_page + (size_t)l * q->source_pages, q->source_pages);
        }
    }
}

/* Makes the tables as large as these sequences may need, so that growing texts allocate nothing. */
static fm_status table_room(fmi_step *s)
{
    size_t ints = 0;
    for (uint32_t i = 0; i < s->runs; i = fmi_class_end(s, i))
        ints += fmi_table_ints(s, fmi_geom_of_run(s, i)) / s->table_stride * s->table_cap;
    return int_room(s->e, &s->table_host, &s->table, &s->table_ints, ints);
}

static fm_status upload_tables(fmi_step *s)
{
    fm_engine *e = s->e;
    size_t ints = 0, at = 0;
    if (same_tables(s))
        return FM_OK;
    s->versions = 0; /* until the tables are uploaded */
    for (uint32_t i = 0; i < s->runs; i = fmi_class_end(s, i))
        ints += fmi_table_ints(s, fmi_geom_of_run(s, i));
    FM_TRY(table_room(s));
    for (uint32_t i = 0; i < s->runs; i = fmi_class_end(s, i)) {
        fill_table(s, fmi_geom_of_run(s, i), s->table_host + at);
        at += fmi_table_ints(s, fmi_geom_of_run(s, i));
    }
    FM_TRY(e->be->upload(e->be, s->table, s->table_host, ints * sizeof(int32_t)));
    s->versions = s->seqs;
    return FM_OK;
}

/* Allocates the activations of every pass at max_rows, and the logits of this step. */
static fm_status workspace(fmi_step *s)
{
    fm_engine *e = s->e;
    size_t floats = 0;
    s->ld = s->hidden_ld = 0;
    for (uint32_t i = 0; i < s->runs; i++) {
        floats = FM_MAX(floats, fmi_act_floats(fmi_priv(s->run[i].model)->geom, s->max_rows));
        if (s->run[i].model->head.w)
            s->ld = FM_MAX(s->ld, (size_t)s->run[i].model->arch.vocab);
        s->hidden_ld = FM_MAX(s->hidden_ld, (size_t)s->run[i].model->arch.hidden);
    }
    FM_TRY(fmi_float_room(e->be, &s->act, &s->act_floats, floats));
    size_t need = fmi_pipe_has_logits(e) ? (size_t)s->wanted * s->ld : 0,
           states = (size_t)s->wanted * s->hidden_ld;
    fm_status rc = fmi_float_room(e->be, &s->logits, &s->logits_floats, need);
    FM_THEN(rc, fmi_float_room(e->be, &s->hidden, &s->hidden_floats, states));
    if (e->be->host_visible) { /* also on failure: one of the two may have moved */
        s->logits_host = s->logits;
        s->hidden_host = s->hidden;
    }
    if (rc != FM_OK || e->be->host_visible)
        return rc;
    rc = fm_grow(&s->logits_host, &s->logits_host_floats, need, sizeof(float));
    return rc == FM_OK ? fm_grow(&s->hidden_host, &s->hidden_host_floats, states, sizeof(float))
                       : rc;
}

/* ==== the step ==== */

/* A digest of what the passes of the step compute on every rank alike. */
static uint64_t plan_of(const fmi_step *s, uint32_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ s->pos[i]) * 0x100000001b3u;
    for (uint32_t i = 0; i < s->runs; i++) {
        h = (h ^ s->run[i].count) * 0x100000001b3u;
        h = (h ^ s->run[i].first) * 0x100000001b3u;
        h = (h ^ s->run[i].wanted) * 0x100000001b3u;
    }
    return h;
}

/* What ranks send about a planned step: its digest, and whether it may be replayed. */
typedef struct planned {
    uint64_t plan;
    fmi_way way;
} planned;

static fm_status agree(fmi_step *s, uint32_t n)
{
    fm_comm *c = s->e->comm;
    planned mine = {0}, all[FM_COMM_MAX_RANKS];
    fmi_way way[FM_COMM_MAX_RANKS];
    mine.plan = plan_of(s, n);
    s->e->log->planned(s->e, mine.plan);
    if (!fm_comm_compares(c))
        return FM_OK;
    FM_TRY(fmi_step_graph_look(s, n, &mine.way));
    FM_TRY(fm_comm_collect(c, all, &mine, sizeof(mine)));
    for (uint32_t i = 0; i < fm_comm_size(c); i++) {
        way[i] = all[i].way;
        if (all[i].plan != all[0].plan)
            return fm_fail(FM_ECORRUPT, "rank %u planned another step than rank 0", i);
    }
    fmi_step_graph_agree(s, way, fm_comm_size(c));
    return FM_OK;
}

fm_status fmi_step_plan(fmi_step *s, const fm_row *rows, uint32_t n)
{
    fm_engine *e = s->e;
    s->last_n = 0;
    s->seqs = 0;
    FM_TRY(check_rows(e, rows, n));
    if (e->log)
        FM_TRY(e->log->step(e, rows, n));
    /* A new stamp, since those of a failed step must not count for this one. */
    count_rows(s, rows, n, ++e->stamp);
    FM_TRY(reserve(s, rows, n));
    place_rows(s, rows, n);
    fmi_pipe_cut(s, rows, n);
    find_spans(s, rows, n);
    fm_status rc = fmi_find_hooked(s, rows, n);
    s->lists = &s->own;
    fmi_lists_clear(s->lists);
    FM_THEN(rc, upload_plan(s, rows, n));
    FM_THEN(rc, upload_tables(s));
    FM_THEN(rc, fmi_upload_places(s, n, rows));
    FM_THEN(rc, workspace(s));
    return rc == FM_OK && e->log ? agree(s, n) : rc;
}
