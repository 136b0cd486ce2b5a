/* parallel.c - gradients of shards: kept, exchanged, added in order. */
#include "train/stage.h"

#include "store/base/mem.h"

#include <string.h>

fm_status fmi_shards_check(const fm_train_config *c, const fm_comm *comm, const char *name)
{
    uint32_t ranks = fm_comm_size(comm);

    if (c->shards == 0)
        return fm_fail(FM_EINVAL, "%s: shards must be at least 1", name);
    if (c->shards % ranks != 0)
        return fm_fail(FM_EINVAL,
                       "%s: %u shards cannot be dealt to %u ranks evenly; set shards to a multiple",
                       name, c->shards, ranks);
    return FM_OK;
}

static uint64_t slice_of(const fmi_params *ps)
{
    uint32_t ranks = fm_comm_size(ps->comm);
    uint64_t blocks = (ps->total + FMI_SLICE_FLOATS - 1) / FMI_SLICE_FLOATS;
    return (blocks + ranks - 1) / ranks * FMI_SLICE_FLOATS;
}

static uint64_t slice_begin(const fmi_params *ps, uint32_t rank)
{
    return FM_MIN(ps->total, slice_of(ps) * rank);
}

void fmi_params_share(fmi_params *ps, fm_comm *comm)
{
    bool several = fm_comm_size(comm) > 1;

    ps->comm = several ? comm : NULL;
    ps->begin = several ? slice_begin(ps, fm_comm_rank(comm)) : 0;
    ps->end = several ? slice_begin(ps, fm_comm_rank(comm) + 1) : ps->total;
}

static fm_status floats(fm_backend *be, float **out, uint64_t n)
{
    void *mem = NULL;
    fm_status rc = be->alloc(be, &mem, (size_t)FM_MAX(n, (uint64_t)1) * sizeof(float));

    *out = mem;
    return rc;
}

/* Ranks of one comm may have devices of different kinds. */
static fm_status least_piece(fmi_shards *s)
{
    uint64_t all[FM_COMM_MAX_RANKS], mine = s->piece;
    fm_status rc = fm_comm_collect(s->comm, all, &mine, sizeof(mine));

    for (uint32_t r = 0; rc == FM_OK && r < fm_comm_size(s->comm); r++)
        s->piece = FM_MIN(s->piece, all[r]);
    return rc;
}

fm_status fmi_shards_open(fmi_shards *s, const fm_train_config *c, fm_comm *comm,
                          const fmi_params *ps)
{
    fm_backend *be = ps->be;
    uint32_t ranks = fm_comm_size(comm);
    bool several = ranks > 1;
    fm_status rc = FM_OK;

    *s = (fmi_shards){.comm = several ? comm : NULL, .count = c->shards};
    s->own = s->count / ranks;
    s->first = s->own * fm_comm_rank(comm);
    s->piece = fm_train_piece(slice_of(ps), s->count);
    if (be->host_visible) /* what comes is added while it is in the cache: 40 % less time */
        s->piece = FM_MIN(s->piece, 2 * FMI_SLICE_FLOATS);
    s->sum = fm_calloc(s->count, sizeof(*s->sum));
    if (!s->sum)
        return FM_ENOMEM;
    if (several)
        rc = least_piece(s);
    if (rc == FM_OK && s->count > 1 && (!several || s->own > 1))
        rc = floats(be, &s->kept, (several ? s->own : 1) * ps->total);
    if (rc == FM_OK && several)
        rc = floats(be, &s->room, s->count * s->piece);
    return rc;
}

void fmi_shards_release(fmi_shards *s, fm_backend *be)
{
    if (s->kept)
        be->free(be, s->kept);
    if (s->room)
        be->free(be, s->room);
    fm_free(s->sum);
    memset(s, 0, sizeof(*s));
}

/* Rows of 1 Mi floats, since a row's length is 32 bits. */
static void copy_floats(fm_backend *be, float *y, const float *x, uint64_t n)
{
    const uint64_t most = (uint64_t)1 << 20;

    for (uint64_t at = 0; at < n; at += most) {
        uint32_t m = (uint32_t)FM_MIN(most, n - at);
        be->copy_rows(be, y + at, m, x + at, m, NULL, 1, m);
    }
}

void fmi_shards_keep(fmi_shards *s, fmi_params *ps, uint32_t i, fmi_shard_sum sum)
{
    fm_backend *be = ps->be;

    s->sum[s->first + i] = sum;
    if (!s->kept)
        return;
    if (s->comm)
        copy_floats(be, s->kept + i * ps->total, ps->g, ps->total);
    else if (i == 0)
        copy_floats(be, s->kept, ps->g, ps->total);
    else
        be->add(be, s->kept, ps->g, ps->total);
    if (i + 1 < s->own)
        fmi_params_zero_grad(ps);
}

/* Floats from .. from + s->piece - 1 of a rank's slice, as far as it goes: its end. */
static uint64_t piece_end(const fmi_shards *s, const fmi_params *ps, uint32_t rank, uint64_t from)
{
    uint64_t slice = slice_begin(ps, rank + 1) - slice_begin(ps, rank);
    return FM_MIN(slice, from + s->piece);
}

/* The i-th shard of every rank: of a piece of every slice, this rank's part into its place in
 * room. */
static fm_status exchange_one(fmi_shards *s, fmi_params *ps, uint32_t i, uint64_t from)
{
    const void *part[FM_COMM_MAX_RANKS] = {NULL};
    void *got[FM_COMM_MAX_RANKS] = {NULL};
    size_t out[FM_COMM_MAX_RANKS] = {0};
    size_t in[FM_COMM_MAX_RANKS] = {0};
    const float *g = s->kept ? s->kept + i * ps->total : ps->g;
    uint32_t mine = fm_comm_rank(s->comm);
    uint64_t n = FM_MAX(piece_end(s, ps, mine, from), from) - from;

    for (uint32_t r = 0; r < fm_comm_size(s->comm); r++) {
        uint64_t end = piece_end(s, ps, r, from);
        if (end > from) {
            part[r] = g + slice_begin(ps, r) + from;
            out[r] = (size_t)(end - from) * sizeof(float);
        }
        got[r] = s->room + (r * s->own + i) * s->piece;
        in[r] = (size_t)n * sizeof(float);
    }
    if (n > 0)
        copy_floats(ps->be, s->room + (s->first + i) * s->piece, g + ps->begin + from, n);
    return fm_comm_exchange(s->comm, part, out, got, in);
}

/* Piece by piece, so that what other ranks send needs little room. */
static fm_status reduce_ranks(fmi_shards *s, fmi_params *ps)
{
    fm_backend *be = ps->be;
    fm_status rc = FM_OK;

    for (uint64_t from = 0; rc == FM_OK && from < slice_of(ps); from += s->piece) {
        uint64_t end = piece_end(s, ps, fm_comm_rank(s->comm), from);
        for (uint32_t i = 0; rc == FM_OK && i < s->own; i++)
            rc = exchange_one(s, ps, i, from);
        if (rc < 0 || end <= from)
            continue;
        for (uint32_t k = 1; k < s->count; k++)
            be->add(be, s->room, s->room + k * s->piece, end - from);
        copy_floats(be, ps->g + ps->begin + from, s->room, end - from);
    }
    return rc;
}

fm_status fmi_shards_reduce(fmi_shards *s, fmi_params *ps)
{
    fm_status rc = s->comm ? reduce_ranks(s, ps) : FM_OK;

    if (!s->comm && s->kept)
        copy_floats(ps->be, ps->g, s->kept, ps->total);
    return rc;
}

fm_status fmi_shards_total(fmi_shards *s, fmi_shard_sum *all)
{
    fm_status rc = FM_OK;

    if (s->comm)
        rc = fm_comm_collect(s->comm, s->sum, s->sum + s->first, s->own * sizeof(*s->sum));
    *all = s->sum[0];
    for (uint32_t k = 1; k < s->count; k++) {
        all->loss += s->sum[k].loss;
        all->tokens += s->sum[k].tokens;
    }
    return rc;
}

static size_t blocks_of(uint64_t floats)
{
    return (size_t)((floats + FMI_SLICE_FLOATS - 1) / FMI_SLICE_FLOATS);
}

/* Of several ranks a sum for each block of the largest slice. */
size_t fmi_params_sums(const fmi_params *ps)
{
    if (ps->stage)
        return fmi_stage_sums(ps);
    return ps->comm ? FM_MAX(blocks_of(slice_of(ps)), (size_t)1) : 1;
}

void fmi_params_squares(const fmi_params *ps, double *sums)
{
    fm_backend *be = ps->be;

    if (ps->stage)
        fmi_stage_squares(ps, sums);
    else if (!ps->comm)
        be->sum_squares(be, sums, ps->g, ps->total);
    else if (ps->end > ps->begin)
        be->block_squares(be, sums, ps->g + ps->begin, ps->end - ps->begin);
}

/* Block by block, gathered and added from +0 in ascending order: as sum_squares adds them. */
fm_status fmi_ranks_add(const fmi_params *ps, const double *sums, double *sum)
{
    size_t most = fmi_params_sums(ps), blocks = blocks_of(ps->total);
    double *all = fm_calloc(most * fm_comm_size(ps->comm), sizeof(double));
    fm_status rc = all ? fm_comm_collect(ps->comm, all, sums, most * sizeof(double)) : FM_ENOMEM;

    *sum = 0.0;
    for (size_t b = 0; rc == FM_OK && b < blocks; b++)
        *sum += all[b];
    fm_free(all);
    return rc;
}

fm_status fmi_ranks_gather(const fmi_params *ps, float *x)
{
    fm_status rc = fm_comm_gather_parts(ps->comm, x, ps->total, slice_of(ps));

    return rc == FM_OK ? fm_comm_settle(ps->comm) : rc;
}
