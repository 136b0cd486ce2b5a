/* sums.c - sums over ranks, added in ascending ranks whatever the size, and gathering.
 *
 * A small reduction sends the whole buffer to all ranks, and each adds them (one round). A large
 * one sends each part to its owner, which adds, and gathers (two rounds, a ring's bytes). */
#include "infer/comm/comm_core.h"

#include "infer/backend.h"
#include "store/base/mem.h"

#define SMALL_BYTES (64u << 10) /* largest buffer of a small reduction */
#define SLICE_FLOATS 16u        /* parts begin on cache lines */

static fm_status room(fm_comm *c, uint64_t floats)
{
    if (floats <= c->room_floats)
        return FM_OK;
    void *fresh = NULL;
    fm_status rc = c->be->alloc(c->be, &fresh, (size_t)floats * sizeof(float));
    if (rc != FM_OK)
        return fmi_comm_leave(c, rc, "room for parts of others");
    if (c->room)
        c->be->free(c->be, c->room);
    c->room = fresh;
    c->room_floats = floats;
    return FM_OK;
}

static void copy_floats(fm_backend *be, float *y, const float *x, uint64_t n)
{
    const uint64_t most = 1u << 30;
    for (uint64_t at = 0; y != x && at < n; at += most) {
        uint32_t m = (uint32_t)FM_MIN(most, n - at);
        be->copy_rows(be, y + at, m, x + at, m, NULL, 1, m);
    }
}

/* out = ((part 0 + part 1) + ..): own part at `mine`, the others stride apart in c->room. */
static void add_parts(fm_comm *c, float *out, float *mine, uint64_t stride, uint64_t n)
{
    fm_backend *be = c->be;
    float *sum = c->rank == 0 ? mine : c->room;
    for (uint32_t r = 1; r < c->size; r++)
        be->add(be, sum, r == c->rank ? mine : c->room + r * stride, n);
    copy_floats(be, out, sum, n);
}

static uint64_t slice_of(uint64_t n, uint32_t size)
{
    uint64_t per = (n + size - 1) / size;
    return (per + SLICE_FLOATS - 1) / SLICE_FLOATS * SLICE_FLOATS;
}

/* Floats of slice i of n. */
static uint64_t slice_len(uint64_t n, uint64_t per, uint32_t i)
{
    uint64_t begin = FM_MIN(n, per * i);
    return FM_MIN(n - begin, per);
}

static fm_status reduce_small(fm_comm *c, float *x, uint64_t n)
{
    uint64_t stride = slice_of(n, 1);
    uint32_t moves = 0;
    FM_TRY(room(c, stride * c->size));
    for (uint32_t i = 0; i < c->size; i++) {
        fmi_comm_put(c, &moves, i, true, x, n * sizeof(float));
        fmi_comm_put(c, &moves, i, false, c->room + i * stride, n * sizeof(float));
    }
    FM_TRY(fmi_comm_moves(c, "all_reduce", moves));
    add_parts(c, x, x, stride, n);
    return FM_OK;
}

static fm_status gather_slices(fm_comm *c, float *x, uint64_t n, uint64_t per)
{
    uint64_t own = slice_len(n, per, c->rank) * sizeof(float);
    uint32_t moves = 0;
    for (uint32_t i = 0; i < c->size; i++) {
        fmi_comm_put(c, &moves, i, true, x + FM_MIN(n, per * c->rank), own);
        fmi_comm_put(c, &moves, i, false, x + FM_MIN(n, per * i),
                     slice_len(n, per, i) * sizeof(float));
    }
    return fmi_comm_moves(c, "all_gather", moves);
}

static fm_status scatter_slices(fm_comm *c, float *out, const float *x, uint64_t n, uint64_t per)
{
    uint64_t own = slice_len(n, per, c->rank);
    uint32_t moves = 0;
    FM_TRY(room(c, per * (c->size + 1)));
    for (uint32_t i = 0; i < c->size; i++) {
        fmi_comm_put(c, &moves, i, true, x + per * i, slice_len(n, per, i) * sizeof(float));
        fmi_comm_put(c, &moves, i, false, c->room + per * i, own * sizeof(float));
    }
    FM_TRY(fmi_comm_moves(c, "reduce_scatter", moves));
    float *mine = c->room + per * c->size; /* x stays as it is unless it is out */
    copy_floats(c->be, mine, x + per * c->rank, own);
    add_parts(c, out, mine, per, own);
    return FM_OK;
}

fm_status fm_comm_all_reduce(fm_comm *c, float *x, uint64_t n)
{
    fm_status state = fm_comm_state(c);
    if (state != FM_OK)
        return state;
    if (c->size == 1 || n == 0)
        return FM_OK;
    if (n * sizeof(float) <= SMALL_BYTES)
        return reduce_small(c, x, n);
    uint64_t per = slice_of(n, c->size);
    FM_TRY(scatter_slices(c, x + FM_MIN(n, per * c->rank), x, n, per));
    return gather_slices(c, x, n, per);
}

fm_status fm_comm_reduce_scatter(fm_comm *c, float *out, const float *x, uint64_t per)
{
    fm_status state = fm_comm_state(c);
    if (state != FM_OK)
        return state;
    if (c->size == 1)
        copy_floats(c->be, out, x, per);
    return c->size == 1 || per == 0 ? FM_OK : scatter_slices(c, out, x, per * c->size, per);
}

fm_status fm_comm_all_gather(fm_comm *c, float *out, const float *mine, uint64_t per)
{
    fm_status state = fm_comm_state(c);
    if (state != FM_OK)
        return state;
    copy_floats(c->be, out + per * c->rank, mine, per);
    return c->size == 1 ? FM_OK : gather_slices(c, out, per * c->size, per);
}

fm_status fm_comm_gather_parts(fm_comm *c, float *x, uint64_t n, uint64_t per)
{
    fm_assert(per * c->size >= n);
    return gather_slices(c, x, n, per);
}
