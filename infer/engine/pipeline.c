/* pipeline.c - see pipeline.h. */
#include "infer/engine/pipeline.h"

#include <string.h>

#include "infer/device/room.h"
#include "store/base/mem.h"

#define SLICE_FLOATS 16u       /* parts of a residual stream begin on cache lines */
#define PIECES_PER_STAGE 4u    /* more pieces cost more than they save in waiting */
#define HOST_MICRO_ROWS 16u    /* from so many rows on a CPU's products are bound by arithmetic */
#define DEVICE_MICRO_ROWS 256u /* the same for a GPU */

/* ==== life ==== */

fm_status fmi_pipe_new(fm_engine *e)
{
    const fm_comm *comm = e->batch_comm ? e->batch_comm : e->comm;
    uint32_t ranks = fm_comm_size(comm), stages = FM_MAX(e->opts.stages, 1u);
    e->stages = 1;
    e->stage = 0;
    e->group = e->comm;
    if (stages == 1)
        return FM_OK;
    if (stages > FMI_STAGES_MOST)
        return fm_fail(FM_EINVAL, "%u stages, at most %u are possible", stages, FMI_STAGES_MOST);
    if (ranks % stages != 0)
        return fm_fail(FM_EINVAL, "%u ranks do not go into %u equal stages", ranks, stages);
    e->stages = stages;
    e->stage = fm_comm_rank(comm) / (ranks / stages);
    if (e->opts.micro_rows == 0)
        e->opts.micro_rows = fmi_pipe_micro_rows(e->be->host_visible);
    return FM_OK;
}

fm_status fmi_pipe_group(fm_engine *e)
{
    uint32_t member[FM_COMM_MAX_RANKS], split = fm_comm_size(e->comm) / e->stages;
    if (e->stages == 1)
        return FM_OK;
    for (uint32_t i = 0; i < split; i++)
        member[i] = e->stage * split + i;
    return fm_comm_group(&e->group, e->comm, e->be, member, split);
}

void fmi_pipe_free(fm_engine *e)
{
    if (e->group != e->comm)
        fm_comm_free(e->group);
    e->group = e->comm;
}

/* ==== micro-batches ==== */

uint32_t fmi_pipe_micro_rows(bool host)
{
    return host ? HOST_MICRO_ROWS : DEVICE_MICRO_ROWS;
}

uint32_t fmi_pipe_pieces(uint32_t m, uint32_t stages, uint32_t micro_rows)
{
    uint32_t most = FM_MAX(m / FM_MAX(micro_rows, 1u), 1u);
    return stages <= 1 ? 1 : FM_MIN(most, PIECES_PER_STAGE * stages);
}

/* The end of the piece that begins at row `at` of pass [begin, end): pieces are equal, except where
 * a text has to stay whole. */
static uint32_t piece_end(const fmi_step *s, const fm_row *rows, uint32_t begin, uint32_t end,
                          uint32_t at, uint32_t pieces)
{
    uint64_t m = end - begin;
    uint32_t k = (uint32_t)((uint64_t)(at - begin) * pieces / m);
    uint32_t to = begin + (uint32_t)(m * (k + 1) / pieces);
    to = FM_MAX(to, at + 1);
    while (to < end && rows[s->order[to]].seq == rows[s->order[to - 1]].seq &&
           rows[s->order[to]].seq->model->arch.sw.encoder)
        to++;
    return to;
}

/* Writes the runs of rows [at, to), which become a pass, to out from *count on. */
static void cut_runs(fmi_step *s, const fm_row *rows, uint32_t at, uint32_t to, fmi_part *out,
                     uint32_t *count)
{
    const fmi_part *was = NULL;
    for (uint32_t k = at; k < to; k++) {
        uint32_t from = s->order[k];
        const fmi_part *run = &s->run[s->run_of[from]];
        if (run != was)
            out[(*count)++] = (fmi_part){.model = run->model,
                                         .first = run->first,
                                         .row0 = at,
                                         .begin = k - at,
                                         .at = k - at};
        was = run;
        out[*count - 1].count++;
        out[*count - 1].wanted += rows[from].want_logits;
        s->member[from] = *count - 1;
    }
}

void fmi_pipe_cut(fmi_step *s, const fm_row *rows, uint32_t n)
{
    fmi_part *fresh = s->want; /* unused until the passes run; at most a run for each row */
    uint32_t count = 0;
    if (s->e->stages == 1)
        return;
    for (uint32_t begin = 0, end; begin < n; begin = end) {
        uint32_t row0 = s->run[s->run_of[s->order[begin]]].row0;
        for (end = begin; end < n && s->run[s->run_of[s->order[end]]].row0 == row0;)
            end++;
        uint32_t pieces = fmi_pipe_pieces(end - begin, s->e->stages, s->e->opts.micro_rows);
        for (uint32_t at = begin, to; at < end; at = to) {
            to = piece_end(s, rows, begin, end, at, pieces);
            cut_runs(s, rows, at, to, fresh, &count);
        }
    }
    memcpy(s->run, fresh, count * sizeof(*fresh));
    memcpy(s->run_of, s->member, n * sizeof(*s->run_of));
    s->runs = count;
}

/* ==== between stages ==== */

/* x [m, hidden] of the rows that have run below layer l. They are a segment of the pass: rows that
 * begin higher stand before them. */
static float *rows_below(const fmi_pass *p, uint32_t l, uint64_t *floats)
{
    uint32_t r0 = 0;
    for (uint32_t i = 0; i < p->part_count && p->parts[i].first >= l; i++)
        r0 += p->parts[i].count;
    *floats = (uint64_t)(p->rows - r0) * p->g->hidden;
    return p->x0 + (size_t)r0 * p->g->hidden;
}

uint64_t fmi_pipe_rows_elsewhere(const fmi_pass *p)
{
    const fmi_stage_split *d = &p->g->split;
    uint64_t rows = 0, floats;
    for (uint32_t l = 0; l < p->g->layers && d->stages > 1; l++)
        if (fmi_stage_split_stage(d, l) != p->e->stage) {
            (void)rows_below(p, l + 1, &floats);
            rows += floats / p->g->hidden;
        }
    return rows;
}

/* This rank's part of n floats that all ranks of the stage have. */
static uint64_t part_of(const fm_engine *e, uint64_t n, uint64_t *per, uint64_t *at)
{
    uint32_t split = fm_comm_size(e->group);
    *per =
        split > 1 ? ((n + split - 1) / split + SLICE_FLOATS - 1) / SLICE_FLOATS * SLICE_FLOATS : n;
    *at = FM_MIN(n, *per * fm_comm_rank(e->group));
    return FM_MIN(n - *at, *per);
}

fm_status fmi_pipe_receive(fmi_pass *p, uint32_t l)
{
    fm_engine *e = p->e;
    uint64_t n, per, at;
    float *x = rows_below(p, l, &n);
    uint64_t mine = part_of(e, n, &per, &at);
    uint32_t split = fm_comm_size(e->group), from = fm_comm_rank(e->comm) - split;
    fm_status rc = fm_comm_recv(e->comm, x + at, (size_t)mine * sizeof(float), from);
    return rc == FM_OK && split > 1 && n ? fm_comm_gather_parts(e->group, x, n, per) : rc;
}

fm_status fmi_pipe_send(fmi_pass *p, uint32_t l)
{
    fm_engine *e = p->e;
    uint64_t n, per, at;
    const float *x = rows_below(p, l, &n);
    uint64_t mine = part_of(e, n, &per, &at);
    uint32_t to = fm_comm_rank(e->comm) + fm_comm_size(e->group);
    return fm_comm_send(e->comm, x + at, (size_t)mine * sizeof(float), to);
}

/* ==== to rank 0 ==== */

bool fmi_pipe_has_logits(const fm_engine *e)
{
    return e->stages == 1 || fm_comm_rank(e->comm) == 0 ||
           (e->stage + 1 == e->stages && fm_comm_size(e->group) == 1);
}

size_t fmi_pipe_shard_ld(const fmi_step *s)
{
    size_t most = 0;
    for (uint32_t i = 0; i < s->runs; i++)
        if (s->run[i].model->head.w)
            most = FM_MAX(most, fmi_vocab_here(s->e, s->run[i].model->arch.vocab));
    return most;
}

/* Rank 0: puts the logits that every rank of the last stage sent into place. */
static void place_shards(fmi_step *s, size_t ld)
{
    size_t rows = s->wanted;
    for (uint32_t r = 0; r < fm_comm_size(s->e->group); r++)
        for (uint32_t i = 0, at = 0; i < s->runs; at += s->run[i++].wanted)
            if (s->run[i].wanted)
                fmi_place_logits(s, s->run[i].model, at, s->run[i].wanted,
                                 s->shard + (r * rows + at) * ld, ld, r);
    for (uint32_t i = 0, at = 0; i < s->runs; at += s->run[i++].wanted)
        if (s->run[i].wanted)
            fmi_finish_logits(s, s->run[i].model, at, s->run[i].wanted);
}

static fm_status deliver_logits(fmi_step *s)
{
    fm_engine *e = s->e;
    uint32_t split = fm_comm_size(e->group), last = fm_comm_size(e->comm) - split;
    uint32_t rank = fm_comm_rank(e->comm);
    bool cut = split > 1;
    size_t ld = cut ? fmi_pipe_shard_ld(s) : s->ld, floats = s->wanted * ld;
    size_t bytes = floats * sizeof(float);
    const void *part[FM_COMM_MAX_RANKS] = {NULL};
    void *got[FM_COMM_MAX_RANKS] = {NULL};
    size_t out[FM_COMM_MAX_RANKS] = {0}, in[FM_COMM_MAX_RANKS] = {0};
    fm_status rc = FM_OK;
    if (cut && rank == 0)
        rc = fmi_float_room(e->be, &s->shard, &s->shard_floats, split * floats);
    for (uint32_t r = 0; rc == FM_OK && rank == 0 && r < split; r++) {
        got[last + r] = cut ? s->shard + r * floats : s->logits;
        in[last + r] = bytes;
    }
    if (rank >= last) {
        part[0] = cut ? s->shard : s->logits;
        out[0] = bytes;
    }
    if (rc == FM_OK && (rank == 0 || rank >= last))
        rc = fm_comm_exchange(e->comm, part, out, got, in);
    if (rc == FM_OK && cut && rank == 0)
        place_shards(s, ld);
    return rc;
}

fm_status fmi_pipe_deliver(fmi_step *s)
{
    fm_engine *e = s->e;

    if (!e->comm)
        return FM_OK;
    if (e->stages > 1 && s->wanted > 0) {
        uint32_t last = fm_comm_size(e->comm) - fm_comm_size(e->group);
        size_t bytes = s->wanted * s->hidden_ld * sizeof(float);
        if (fm_comm_rank(e->comm) == 0)
            FM_TRY(fm_comm_recv(e->comm, s->hidden, bytes, last));
        else if (fm_comm_rank(e->comm) == last)
            FM_TRY(fm_comm_send(e->comm, s->hidden, bytes, 0));
        if (s->ld)
            FM_TRY(deliver_logits(s));
    }
    if (e->stages > 1 && s->hooked_count)
        FM_TRY(fmi_hooks_deliver(s));
    return FM_OK;
}
