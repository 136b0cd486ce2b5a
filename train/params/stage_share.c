/* stage_share.c - work of all ranks on parameters of which each rank has a part: the blocks of the
 * norm, the whole on rank 0, the values of a tied embedding. */
#include "train/params/stage.h"

#include "store/base/mem.h"

#include <string.h>

#define BLOCK FMT_BLOCK_FLOATS
#define PIECE_FLOATS ((uint64_t)1 << 20)
#define TOGETHER UINT32_MAX

/* Blocks of the norm. A block that lies on one rank is summed there; the floats of the others are
 * put together on every rank. */
typedef struct fmt_edges {
    uint64_t blocks;
    uint32_t *who;   /* [blocks] the rank that holds the block, or TOGETHER */
    uint32_t *place; /* [blocks] number among that rank's blocks, or among the joint ones */
    uint32_t most;   /* blocks of the rank that has the most */
    uint32_t together;
    fmt_extent *mine; /* [count] extents that this rank updates */
    size_t count;
    float *floats; /* device [together, BLOCK]; the last may be shorter */
    uint64_t used; /* length of `floats` */
} fmt_edges;

static uint64_t len_of(const fmt_params *ps, uint64_t block)
{
    return FM_MIN(BLOCK, ps->whole - block * BLOCK);
}

/* ---- which rank holds which floats ---- */
/* Cuts a stage's extents down to those that rank d of the stage updates, as fmt_params_share splits
 * them; returns their number. */
static size_t cut_stripe(fmt_extent *e, size_t n, uint64_t total, uint32_t wide, uint32_t d)
{
    uint64_t per = fmt_stage_stripe(total, wide);
    uint64_t from = per * d, to = from + per;
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t a = FM_MAX(e[i].local, from), b = FM_MIN(e[i].local + e[i].n, to);
        if (a < b)
            e[kept++] = (fmt_extent){.at = e[i].at + (a - e[i].local), .n = b - a, .local = a};
    }
    return kept;
}

static fm_status extents_of_rank(fmt_extent **out, size_t *count, const fmt_params *ps,
                                 uint32_t rank)
{
    uint32_t wide = ps->stage->wide;
    uint64_t total;
    FM_TRY(fmt_stage_extents(out, count, &total, ps, rank / wide));

    if (wide > 1)
        *count = cut_stripe(*out, *count, total, wide, rank % wide);
    return FM_OK;
}

static void note_rank(fmt_edges *x, const fmt_params *ps, const fmt_extent *e, size_t n,
                      uint32_t rank)
{
    uint32_t own = 0;

    for (size_t i = 0; i < n; i++)
        for (uint64_t b = e[i].at / BLOCK; b * BLOCK < e[i].at + e[i].n; b++)
            if (b * BLOCK >= e[i].at && b * BLOCK + len_of(ps, b) <= e[i].at + e[i].n) {
                x->who[b] = rank;
                x->place[b] = own++;
            }
    x->most = FM_MAX(x->most, own);
}

static fm_status list_blocks(fmt_edges *x, const fmt_params *ps)
{
    uint32_t ranks = ps->stage->stages * ps->stage->wide;
    fm_status rc = FM_OK;

    x->blocks = (ps->whole + BLOCK - 1) / BLOCK;
    x->who = fm_calloc(x->blocks, sizeof(*x->who));
    x->place = fm_calloc(x->blocks, sizeof(*x->place));
    if (!x->who || !x->place)
        return FM_ENOMEM;
    for (uint64_t b = 0; b < x->blocks; b++)
        x->who[b] = TOGETHER;
    for (uint32_t r = 0; rc == FM_OK && r < ranks; r++) {
        fmt_extent *e = NULL;
        size_t n = 0;
        rc = extents_of_rank(&e, &n, ps, r);
        if (rc == FM_OK)
            note_rank(x, ps, e, n, r);
        fm_free(e);
    }
    for (uint64_t b = 0; rc == FM_OK && b < x->blocks; b++)
        if (x->who[b] == TOGETHER) {
            x->place[b] = x->together++;
            x->used = (uint64_t)x->place[b] * BLOCK + len_of(ps, b);
        }
    return rc == FM_OK ? extents_of_rank(&x->mine, &x->count, ps, ps->stage->rank) : rc;
}

fm_status fmt_stage_edges(fmt_params *ps)
{
    void *mem = NULL;
    fmt_edges *x = fm_calloc(1, sizeof(*x));

    ps->edges = x;
    fm_status rc = x ? list_blocks(x, ps) : FM_ENOMEM;
    if (rc == FM_OK && x->used > 0)
        rc = ps->be->alloc(ps->be, &mem, (size_t)x->used * sizeof(float));
    if (x)
        x->floats = mem;
    return rc;
}

void fmt_stage_edges_free(fmt_params *ps)
{
    fmt_edges *x = ps->edges;

    if (!x)
        return;
    if (x->floats)
        ps->be->free(ps->be, x->floats);
    fm_free(x->who);
    fm_free(x->place);
    fm_free(x->mine);
    fm_free(x);
    ps->edges = NULL;
}

size_t fmt_stage_sums(const fmt_params *ps)
{
    return (size_t)ps->edges->most + ps->edges->together;
}

/* ---- the norm ---- */
static void put_own(const fmt_params *ps, const fmt_extent *e)
{
    const fmt_edges *x = ps->edges;

    for (uint64_t b = e->at / BLOCK; b * BLOCK < e->at + e->n; b++) {
        uint64_t from = FM_MAX(b * BLOCK, e->at);
        uint64_t to = FM_MIN(b * BLOCK + len_of(ps, b), e->at + e->n);
        if (x->who[b] == TOGETHER)
            fmt_copy_floats(ps->be, x->floats + (uint64_t)x->place[b] * BLOCK + (from - b * BLOCK),
                            ps->g + e->local + (from - e->at), to - from);
    }
}

fm_status fmt_stage_meet_edges(fmt_params *ps)
{
    const fmt_edges *x = ps->edges;

    if (x->used == 0)
        return FM_OK;
    fmt_params_put_zeros(ps, x->floats, x->used);
    for (size_t i = 0; i < x->count; i++)
        put_own(ps, &x->mine[i]);
    return fm_comm_all_reduce(ps->stage->all, x->floats, x->used);
}

void fmt_stage_squares(const fmt_params *ps, double *sums)
{
    const fmt_edges *x = ps->edges;
    fm_backend *be = ps->be;

    for (size_t i = 0; i < x->count; i++) {
        const fmt_extent *e = &x->mine[i];
        for (uint64_t b = e->at / BLOCK; b * BLOCK < e->at + e->n; b++)
            if (x->who[b] == ps->stage->rank && b * BLOCK >= e->at)
                be->block_squares(be, sums + x->place[b], ps->g + e->local + (b * BLOCK - e->at),
                                  len_of(ps, b));
    }
    for (uint64_t b = 0; b < x->blocks; b++)
        if (x->who[b] == TOGETHER)
            be->block_squares(be, sums + x->most + x->place[b],
                              x->floats + (uint64_t)x->place[b] * BLOCK, len_of(ps, b));
}

fm_status fmt_stage_add(const fmt_params *ps, const double *sums, double *sum)
{
    const fmt_edges *x = ps->edges;
    uint32_t ranks = ps->stage->stages * ps->stage->wide;
    double *all = fm_calloc((size_t)FM_MAX(x->most, 1u) * ranks, sizeof(double));
    fm_status rc = all ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && x->most > 0)
        rc = fm_comm_collect(ps->stage->all, all, sums, x->most * sizeof(double));
    *sum = 0.0;
    for (uint64_t b = 0; rc == FM_OK && b < x->blocks; b++)
        *sum += x->who[b] == TOGETHER ? sums[x->most + x->place[b]]
                                      : all[(size_t)x->who[b] * x->most + x->place[b]];
    fm_free(all);
    return rc;
}

/* ---- the whole on rank 0 ---- */
/* Gathers a moment, of which each rank has its stripe, in *room, which the caller frees. */
static fm_status whole_moment(const fmt_params *ps, const float *own, float **room)
{
    fm_backend *be = ps->be;
    void *mem = NULL;
    fm_status rc = be->alloc(be, &mem, (size_t)FM_MAX(ps->total, 1u) * sizeof(float));

    *room = mem;
    return rc == FM_OK ? fmt_ranks_moment(ps, own, *room) : rc;
}

/* Copies floats from .. from + n - 1 of a stage to where they lie in one process's buffers. */
static void lay_out(float *host, const fmt_extent *e, size_t count, const float *got, uint64_t from,
                    uint64_t n)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t a = FM_MAX(e[i].local, from), b = FM_MIN(e[i].local + e[i].n, from + n);
        if (a < b)
            memcpy(host + e[i].at + (a - e[i].local), got + (a - from),
                   (size_t)(b - a) * sizeof(float));
    }
}

/* On rank 0: brings the floats of stage t, which are x if t is rank 0's own stage, to host. */
static fm_status fetch(const fmt_params *ps, uint32_t t, const float *x, float *room, float *got,
                       float *host)
{
    const fmt_stage *s = ps->stage;
    fmt_extent *e = NULL;
    size_t count = 0;
    uint64_t total = 0;
    fm_status rc = fmt_stage_extents(&e, &count, &total, ps, t);

    for (uint64_t at = 0; rc == FM_OK && at < total; at += PIECE_FLOATS) {
        uint64_t n = FM_MIN(PIECE_FLOATS, total - at);
        const float *from = t == 0 ? x + at : room;
        if (t > 0)
            rc = fm_comm_recv(s->all, room, (size_t)n * sizeof(float), t * s->wide);
        if (rc == FM_OK && t > 0)
            rc = fm_comm_settle(s->all);
        FM_THEN(rc, ps->be->download(ps->be, got, from, (size_t)n * sizeof(float)));
        if (rc == FM_OK)
            lay_out(host, e, count, got, at, n);
    }
    fm_free(e);
    return rc;
}

static fm_status fetch_all(const fmt_params *ps, const float *x, float *host)
{
    void *room = NULL;
    float *got = fm_malloc((size_t)PIECE_FLOATS * sizeof(float));
    fm_status rc = got ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, ps->be->alloc(ps->be, &room, (size_t)PIECE_FLOATS * sizeof(float)));
    memset(host, 0, (size_t)ps->whole * sizeof(float));
    for (uint32_t t = 0; rc == FM_OK && t < ps->stage->stages; t++)
        rc = fetch(ps, t, x, room, got, host);
    if (room)
        ps->be->free(ps->be, room);
    fm_free(got);
    return rc;
}

static fm_status send_all(const fmt_params *ps, const float *x)
{
    for (uint64_t at = 0; at < ps->total; at += PIECE_FLOATS)
        FM_TRY(fm_comm_send(ps->stage->all, x + at,
                            (size_t)FM_MIN(PIECE_FLOATS, ps->total - at) * sizeof(float), 0));
    return fm_comm_settle(ps->stage->all);
}

fm_status fmt_stage_collect(const fmt_params *ps, const float *x, bool moment, float *host)
{
    const fmt_stage *s = ps->stage;
    float *room = NULL;
    fm_status rc = FM_OK;

    if (moment && ps->comm) {
        rc = whole_moment(ps, x, &room);
        x = room;
    }
    if (rc == FM_OK && s->rank == 0)
        rc = fetch_all(ps, x, host);
    else if (rc == FM_OK && s->rank % s->wide == 0)
        rc = send_all(ps, x);
    if (room)
        ps->be->free(ps->be, room);
    return rc;
}

/* ---- messages between stages ---- */
fm_status fmt_stage_tell_tied(fmt_params *ps)
{
    const fmt_stage *s = ps->stage;

    if (ps->tied < 0)
        return FM_OK;
    const fmt_param *p = &ps->item[ps->tied];
    size_t bytes = (size_t)p->n * sizeof(float);
    if (s->mine == 0)
        return fm_comm_send(s->all, ps->p + p->at, bytes, fmt_stage_end_rank(s) + s->rank);
    return fmt_stage_is_last(s)
               ? fm_comm_recv(s->all, ps->p + p->at, bytes, s->rank - fmt_stage_end_rank(s))
               : FM_OK;
}

fm_status fmt_stage_tell(const fmt_stage *s, void *x, size_t bytes)
{
    return fm_comm_tell(s->all, x, bytes, fmt_stage_end_rank(s));
}
