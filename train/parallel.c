/* parallel.c - gradients of shards: kept, exchanged, added in order. */
#include "train/parallel.h"

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
    if (c->shards > 1 && c->objective == FM_OBJECTIVE_CONTRASTIVE)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: a contrastive loss is over all texts of a micro-batch, which several "
                       "shards or ranks would cut; use shards=1 and one rank",
                       name);
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
    s->sum = fm_calloc(s->count, sizeof(*s->sum));
    if (!s->sum)
        return FM_ENOMEM;
    if (s->count > 1 && (!several || s->own > 1))
        rc = floats(be, &s->kept, (several ? s->own : 1) * ps->total);
    if (rc == FM_OK && several)
        rc = floats(be, &s->room, s->count * (ps->end - ps->begin));
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

fm_status fmi_shards_keep(fmi_shards *s, fmi_params *ps, uint32_t i, fmi_shard_sum sum)
{
    fm_backend *be = ps->be;

    s->sum[s->first + i] = sum;
    if (!s->kept)
        return FM_OK;
    if (s->comm)
        copy_floats(be, s->kept + i * ps->total, ps->g, ps->total);
    else if (i == 0)
        copy_floats(be, s->kept, ps->g, ps->total);
    else
        be->add(be, s->kept, ps->g, ps->total);
    return i + 1 < s->own ? fmi_params_zero_grad(ps) : FM_OK;
}

/* The i-th shard of every rank: its part of this rank's slice into its place in room. */
static fm_status exchange_one(fmi_shards *s, fmi_params *ps, uint32_t i)
{
    const void *part[FM_COMM_MAX_RANKS] = {NULL};
    void *got[FM_COMM_MAX_RANKS] = {NULL};
    size_t out[FM_COMM_MAX_RANKS] = {0};
    size_t in[FM_COMM_MAX_RANKS] = {0};
    const float *g = s->kept ? s->kept + i * ps->total : ps->g;
    uint64_t slice = ps->end - ps->begin;

    for (uint32_t r = 0; r < fm_comm_size(s->comm); r++) {
        uint64_t begin = slice_begin(ps, r);
        part[r] = g + begin;
        out[r] = (size_t)(slice_begin(ps, r + 1) - begin) * sizeof(float);
        got[r] = s->room + (r * s->own + i) * slice;
        in[r] = (size_t)slice * sizeof(float);
    }
    copy_floats(ps->be, s->room + (s->first + i) * slice, g + ps->begin, slice);
    return fm_comm_exchange(s->comm, part, out, got, in);
}

static fm_status reduce_ranks(fmi_shards *s, fmi_params *ps)
{
    fm_backend *be = ps->be;
    uint64_t slice = ps->end - ps->begin;
    fm_status rc = FM_OK;

    for (uint32_t i = 0; rc == FM_OK && i < s->own; i++)
        rc = exchange_one(s, ps, i);
    if (rc == FM_OK)
        rc = fm_comm_collect(s->comm, s->sum, s->sum + s->first, s->own * sizeof(*s->sum));
    if (rc < 0 || slice == 0)
        return rc;
    for (uint32_t k = 1; k < s->count; k++)
        be->add(be, s->room, s->room + k * slice, slice);
    copy_floats(be, ps->g + ps->begin, s->room, slice);
    return fm_comm_settle(s->comm);
}

fm_status fmi_shards_reduce(fmi_shards *s, fmi_params *ps, fmi_shard_sum *all)
{
    fm_status rc = s->comm ? reduce_ranks(s, ps) : FM_OK;

    if (!s->comm && s->kept)
        copy_floats(ps->be, ps->g, s->kept, ps->total);
    *all = s->sum[0];
    for (uint32_t k = 1; k < s->count; k++) {
        all->loss += s->sum[k].loss;
        all->tokens += s->sum[k].tokens;
    }
    return rc;
}

/* Block by block, gathered and added from +0 in ascending order: as sum_squares adds them. */
fm_status fmi_ranks_squares(const fmi_params *ps, double *sum)
{
    fm_backend *be = ps->be;
    size_t most = (size_t)(slice_of(ps) / FMI_SLICE_FLOATS);
    size_t own = (size_t)((ps->end - ps->begin + FMI_SLICE_FLOATS - 1) / FMI_SLICE_FLOATS);
    uint32_t ranks = fm_comm_size(ps->comm);
    double *host = fm_calloc(most * (ranks + 1), sizeof(double));
    double *mine = host + most * ranks;
    void *dev = NULL;
    fm_status rc = host ? be->alloc(be, &dev, most * sizeof(double)) : FM_ENOMEM;

    *sum = 0.0;
    for (size_t b = 0; rc == FM_OK && b < own; b++) {
        uint64_t at = ps->begin + b * FMI_SLICE_FLOATS;
        be->sum_squares(be, (double *)dev + b, ps->g + at, FM_MIN(FMI_SLICE_FLOATS, ps->end - at));
    }
    if (rc == FM_OK)
        rc = be->download(be, mine, dev, most * sizeof(double));
    if (rc == FM_OK)
        rc = fm_comm_collect(ps->comm, host, mine, most * sizeof(double));
    uint64_t blocks = (ps->total + FMI_SLICE_FLOATS - 1) / FMI_SLICE_FLOATS;
    for (uint64_t b = 0; rc == FM_OK && b < blocks; b++)
        *sum += host[b];
    if (dev)
        be->free(be, dev);
    fm_free(host);
    return rc;
}

fm_status fmi_ranks_gather(const fmi_params *ps, float *x)
{
    fm_status rc = fm_comm_gather_parts(ps->comm, x, ps->total, slice_of(ps));

    return rc == FM_OK ? fm_comm_settle(ps->comm) : rc;
}
