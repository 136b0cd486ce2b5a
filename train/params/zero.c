/* zero.c - the gradients of shards are kept, exchanged and added in order. */
#include "train/params/stage.h"

#include "store/base/mem.h"

#include <string.h>

fm_status fmt_shards_check(const fm_train_config *c, const fm_comm *comm, const char *name)
{
    uint32_t ranks = fm_comm_size(comm);

    if (c->shards == 0)
        return fm_fail(FM_EINVAL, "%s: shards must be at least 1", name);
    if (c->shards % ranks != 0)
        return fm_fail(
            FM_EINVAL,
            "%s: %u shards cannot be split over %u ranks evenly; set shards to a multiple", name,
            c->shards, ranks);
    return FM_OK;
}

/* ---- stripes ---- */
static uint64_t round_floats(const fmt_params *ps)
{
    return ps->stripe * fm_comm_size(ps->comm);
}

uint64_t fmt_params_rounds(const fmt_params *ps)
{
    return (ps->total + round_floats(ps) - 1) / round_floats(ps);
}

/* A rank's stripe of a round; n 0: it has none. */
static fmt_stripe stripe_of(const fmt_params *ps, uint64_t round, uint32_t rank)
{
    uint64_t at = FM_MIN(ps->total, round * round_floats(ps) + rank * ps->stripe);
    return (fmt_stripe){at, FM_MIN(ps->stripe, ps->total - at), round * ps->stripe};
}

uint64_t fmt_params_round(const fmt_params *ps, uint64_t at)
{
    return at / round_floats(ps);
}

bool fmt_params_stripe(const fmt_params *ps, uint64_t i, fmt_stripe *out)
{
    *out = stripe_of(ps, i, fm_comm_rank(ps->comm));
    return out->n > 0;
}

/* Takes the least *piece of all ranks, since their devices may be of different kinds. */
static fm_status least(fm_comm *comm, uint64_t *piece)
{
    uint64_t all[FM_COMM_MAX_RANKS];
    FM_TRY(fm_comm_collect(comm, all, piece, sizeof(*piece)));

    for (uint32_t r = 0; r < fm_comm_size(comm); r++)
        *piece = FM_MIN(*piece, all[r]);
    return FM_OK;
}

uint64_t fmt_stage_stripe(uint64_t total, uint32_t ranks)
{
    uint64_t blocks = (total + FMT_BLOCK_FLOATS - 1) / FMT_BLOCK_FLOATS;
    return FM_MAX((blocks + ranks - 1) / ranks, (uint64_t)1) * FMT_BLOCK_FLOATS;
}

fm_status fmt_params_share(fmt_params *ps, const fm_train_config *c, fm_comm *comm,
                           const fm_backend *be)
{
    uint32_t ranks = fm_comm_size(comm);
    fmt_stripe s;

    if (ranks <= 1)
        return FM_OK;
    ps->comm = comm;
    ps->piece = fm_train_stripe(ps->total, ranks, c->shards, be->host_visible);
    fm_status rc = least(comm, &ps->piece);
    ps->stripe = ps->stage ? fmt_stage_stripe(ps->total, ranks) : ps->piece;
    for (uint64_t i = 0; rc == FM_OK && fmt_params_stripe(ps, i, &s); i++)
        ps->own += s.n;
    return rc;
}

/* ---- shards ---- */
static fm_status floats(fm_backend *be, float **out, uint64_t n)
{
    void *mem = NULL;
    fm_status rc = be->alloc(be, &mem, (size_t)FM_MAX(n, (uint64_t)1) * sizeof(float));

    *out = mem;
    return rc;
}

fm_status fmt_shards_open(fmt_shards *s, const fm_train_config *c, fm_comm *comm,
                          const fmt_params *ps)
{
    fm_backend *be = ps->be;
    uint32_t ranks = fm_comm_size(comm);
    bool several = ranks > 1;

    *s = (fmt_shards){.comm = several ? comm : NULL, .count = c->shards};
    s->own = s->count / ranks;
    s->first = s->own * fm_comm_rank(comm);
    s->sum = fm_calloc(s->count, sizeof(*s->sum));
    if (!s->sum)
        return FM_ENOMEM;
    if (s->count > 1 && (!several || s->own > 1))
        FM_TRY(floats(be, &s->kept, (several ? s->own - 1 : 1) * ps->total));
    if (several)
        FM_TRY(floats(be, &s->room, (s->count - s->own) * ps->piece));
    return FM_OK;
}

void fmt_shards_release(fmt_shards *s, fm_backend *be)
{
    if (s->kept)
        be->free(be, s->kept);
    if (s->room)
        be->free(be, s->room);
    fm_free(s->sum);
    memset(s, 0, sizeof(*s));
}

void fmt_shards_keep(fmt_shards *s, fmt_params *ps, uint32_t i, fmt_shard_sum sum)
{
    fm_backend *be = ps->be;

    s->sum[s->first + i] = sum;
    if (!s->kept)
        return;
    if (s->comm && i + 1 < s->own)
        fmt_copy_floats(be, s->kept + i * ps->total, ps->g, ps->total);
    else if (s->comm) /* the last shard is sent from g itself */
        return;
    else if (i == 0)
        fmt_copy_floats(be, s->kept, ps->g, ps->total);
    else
        be->add(be, s->kept, ps->g, ps->total);
    if (i + 1 < s->own)
        fmt_params_zero_grad(ps);
}

/* ---- rounds ---- */
/* The flat gradient of this rank's i-th shard. */
static float *own_shard(const fmt_shards *s, const fmt_params *ps, uint32_t i)
{
    return i + 1 < s->own ? s->kept + i * ps->total : ps->g;
}

/* The piece of a rank's stripe that one exchange carries, `from` floats into the stripe; n 0: the
 * stripe ends before. */
static fmt_stripe piece_of(const fmt_params *ps, uint64_t round, uint32_t rank, uint64_t from)
{
    fmt_stripe s = stripe_of(ps, round, rank);
    uint64_t skip = FM_MIN(from, s.n);
    return (fmt_stripe){s.at + skip, FM_MIN(ps->piece, s.n - skip), s.own + skip};
}

/* Shard k of this rank's piece: its own gradient, or where it is received. */
static float *part_of(const fmt_shards *s, const fmt_params *ps, const fmt_stripe *mine, uint32_t k)
{
    if (k >= s->first && k < s->first + s->own)
        return own_shard(s, ps, k - s->first) + mine->at;
    return s->room + (k < s->first ? k : k - s->own) * ps->piece;
}

/* Exchanges a piece of every rank's i-th shard; what this rank receives goes to s->room. */
static fm_status exchange_one(fmt_shards *s, fmt_params *ps, uint64_t round, uint64_t from,
                              uint32_t i, bool host)
{
    const void *part[FM_COMM_MAX_RANKS] = {NULL};
    void *got[FM_COMM_MAX_RANKS] = {NULL};
    size_t out[FM_COMM_MAX_RANKS] = {0};
    size_t in[FM_COMM_MAX_RANKS] = {0};
    const float *g = own_shard(s, ps, i);
    uint32_t rank = fm_comm_rank(s->comm);
    const fmt_stripe mine = piece_of(ps, round, rank, from);

    for (uint32_t r = 0; r < fm_comm_size(s->comm); r++) {
        const fmt_stripe theirs = piece_of(ps, round, r, from);
        if (r == rank)
            continue;
        part[r] = g + theirs.at;
        out[r] = (size_t)theirs.n * sizeof(float);
        got[r] = part_of(s, ps, &mine, r * s->own + i);
        in[r] = (size_t)mine.n * sizeof(float);
    }
    return host ? fm_comm_exchange_host(s->comm, part, out, got, in)
                : fm_comm_exchange(s->comm, part, out, got, in);
}

/* The backend's add, for a thread that is not the backend's: one rounding an element either way. */
static void add_here(float *restrict y, const float *restrict x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        y[i] += x[i];
}

static fm_status reduce_piece(fmt_shards *s, fmt_params *ps, uint64_t round, uint64_t from,
                              bool host)
{
    fm_backend *be = ps->be;
    const fmt_stripe mine = piece_of(ps, round, fm_comm_rank(s->comm), from);
    float *sum = part_of(s, ps, &mine, 0), *to = ps->g + mine.at;
    fm_status rc = FM_OK;

    for (uint32_t i = 0; rc == FM_OK && i < s->own; i++)
        rc = exchange_one(s, ps, round, from, i, host);
    if (rc < 0 || mine.n == 0)
        return rc;
    for (uint32_t k = 1; k < s->count; k++) {
        const float *part = part_of(s, ps, &mine, k);
        if (host)
            add_here(sum, part, mine.n);
        else
            be->add(be, sum, part, mine.n);
    }
    if (sum != to && host)
        memcpy(to, sum, (size_t)mine.n * sizeof(float));
    else if (sum != to)
        fmt_copy_floats(be, to, sum, mine.n);
    return FM_OK;
}

fm_status fmt_shards_round(fmt_shards *s, fmt_params *ps, uint64_t round, bool host)
{
    uint64_t longest = stripe_of(ps, round, 0).n;

    for (uint64_t from = 0; from < longest; from += ps->piece)
        FM_TRY(reduce_piece(s, ps, round, from, host));
    return FM_OK;
}

fm_status fmt_shards_reduce(fmt_shards *s, fmt_params *ps)
{
    fm_status rc = FM_OK;

    for (uint64_t round = s->comm ? fmt_params_rounds(ps) : 0; rc == FM_OK && round-- > 0;)
        rc = fmt_shards_round(s, ps, round, false);
    if (!s->comm && s->kept)
        fmt_copy_floats(ps->be, ps->g, s->kept, ps->total);
    return rc;
}

fm_status fmt_shards_total(fmt_shards *s, fmt_shard_sum *all)
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

/* ---- over the ranks ---- */
size_t fmt_ranks_sums(const fmt_params *ps)
{
    return (size_t)(fmt_params_rounds(ps) * (ps->stripe / FMT_BLOCK_FLOATS));
}

/* Sums of blocks are gathered and added from +0 in ascending order, as sum_squares adds them. */
fm_status fmt_ranks_add(const fmt_params *ps, const double *sums, double *sum)
{
    size_t most = fmt_ranks_sums(ps), ranks = fm_comm_size(ps->comm);
    size_t blocks = (size_t)((ps->total + FMT_BLOCK_FLOATS - 1) / FMT_BLOCK_FLOATS);
    size_t stripe = (size_t)(ps->stripe / FMT_BLOCK_FLOATS);
    double *all = fm_calloc(most * ranks, sizeof(double));
    fm_status rc = all ? fm_comm_collect(ps->comm, all, sums, most * sizeof(double)) : FM_ENOMEM;

    *sum = 0.0;
    for (size_t b = 0; rc == FM_OK && b < blocks; b++) {
        size_t rank = b / stripe % ranks, round = b / stripe / ranks;
        *sum += all[rank * most + round * stripe + b % stripe];
    }
    fm_free(all);
    return rc;
}

fm_status fmt_ranks_moment(const fmt_params *ps, const float *own, float *all)
{
    fmt_stripe s;

    for (uint64_t i = 0; fmt_params_stripe(ps, i, &s); i++)
        fmt_copy_floats(ps->be, all + s.at, own + s.own, s.n);
    return fmt_ranks_gather(ps, all);
}

fm_status fmt_ranks_gather(const fmt_params *ps, float *x)
{
    for (uint64_t at = 0; at < ps->total; at += round_floats(ps))
        FM_TRY(fm_comm_gather_parts(ps->comm, x + at, FM_MIN(round_floats(ps), ps->total - at),
                                    ps->stripe));
    return fm_comm_settle(ps->comm);
}
