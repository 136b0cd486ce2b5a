/* move.c - operations that move bytes: rows added, removed, fused, split, reordered; transposes. */
#include <string.h>

#include "store/base/checked.h"
#include "store/base/mem.h"
#include "store/recipe/recipe_impl.h"

/* ==== pieces =============================================================================== */

typedef struct piece {
    uint32_t input;
    uint64_t from, bytes;
} piece;

static piece piece_at(const fms_recipe *r, size_t i)
{
    const uint8_t *p = r->params.data + i * FMS_PIECE_BYTES;
    return (piece){fm_get_u32(p), fm_get_u64(p + 4), fm_get_u64(p + 12)};
}

static fm_status check_pieces(const fms_recipe *r, const fms_inputs *in)
{
    uint64_t sum = 0;
    if (r->params.len == 0 || r->params.len % FMS_PIECE_BYTES)
        return rcp_refuse(r, "the list of pieces is no whole number of them");
    for (size_t i = 0; i < r->params.len / FMS_PIECE_BYTES; i++) {
        const piece p = piece_at(r, i);
        const bool zeros = p.input == FMS_PIECE_ZEROS;
        if (!zeros && p.input >= in->count)
            return rcp_refuse(r, "a piece is of a parent that is not there");
        if (p.bytes == 0 || (zeros ? p.from != 0
                                   : p.from > in->input[p.input].bytes ||
                                         p.bytes > in->input[p.input].bytes - p.from))
            return rcp_refuse(r, "a piece lies outside its parent");
        if (fm_add_overflow(&sum, sum, p.bytes))
            return rcp_refuse(r, "the pieces are too long");
    }
    return sum == in->child.bytes ? FM_OK : rcp_refuse(r, "the pieces are not the whole tensor");
}

static fm_status gather_pieces(const fms_recipe *r, const fms_inputs *in, const rcp_part *p,
                               uint8_t *dst)
{
    const uint64_t end = p->offset + p->bytes;
    uint64_t at = 0;

    for (size_t i = 0; at < end; i++) {
        const piece s = piece_at(r, i);
        const uint64_t lo = FM_MAX(at, p->offset), hi = FM_MIN(at + s.bytes, end);
        if (lo < hi && s.input == FMS_PIECE_ZEROS)
            memset(dst + (lo - p->offset), 0, (size_t)(hi - lo));
        else if (lo < hi)
            FM_TRY(in->read(in->ctx, s.input, s.from + (lo - at), dst + (lo - p->offset),
                            (size_t)(hi - lo)));
        at += s.bytes;
    }
    return FM_OK;
}

/* ==== rotary order ========================================================================= */

typedef struct rotary {
    uint64_t row_bytes, head_rows, half;
    bool undo;
} rotary;

static bool rotary_of(rotary *out, const fms_recipe *r, const fms_inputs *in)
{
    const uint64_t rows = in->child.shape.rank ? in->child.shape.dim[0] : 0;
    const uint64_t heads = r->params.len == 8 ? fm_get_u64(r->params.data) : 0;
    if (heads == 0 || rows == 0 || rows % heads || rows / heads % 2 || in->child.bytes % rows)
        return false;
    *out = (rotary){.row_bytes = in->child.bytes / rows,
                    .head_rows = rows / heads,
                    .half = rows / heads / 2,
                    .undo = r->mode == FMS_GATHER_UNROTARY};
    return out->row_bytes > 0;
}

static fm_status check_rotary(const fms_recipe *r, const fms_inputs *in)
{
    rotary o;
    if (in->count != 1 || in->input[0].bytes != in->child.bytes || !rotary_of(&o, r, in))
        return rcp_refuse(r,
                          "wants one parent of as many bytes, and heads of an even number of rows");
    return FM_OK;
}

/* The parent's row that becomes `row`. GGUF's row (head, i, j) is Hugging Face's (head, j, i). */
static uint64_t rotary_source(const rotary *o, uint64_t row)
{
    const uint64_t head = row / o->head_rows, at = row % o->head_rows;
    const uint64_t from = o->undo ? at % o->half * 2 + at / o->half : at % 2 * o->half + at / 2;
    return head * o->head_rows + from;
}

static fm_status gather_rotary(const fms_recipe *r, const fms_inputs *in, const rcp_part *p,
                               uint8_t *dst)
{
    rotary o;
    fm_assert(rotary_of(&o, r, in));
    const uint64_t end = p->offset + p->bytes;

    for (uint64_t row = p->offset / o.row_bytes; row * o.row_bytes < end; row++) {
        const uint64_t at = row * o.row_bytes;
        const uint64_t lo = FM_MAX(at, p->offset), hi = FM_MIN(at + o.row_bytes, end);
        FM_TRY(in->read(in->ctx, 0, rotary_source(&o, row) * o.row_bytes + (lo - at),
                        dst + (lo - p->offset), (size_t)(hi - lo)));
    }
    return FM_OK;
}

fm_status rcp_gather_check(const fms_recipe *r, const fms_inputs *in)
{
    if (r->mode > FMS_GATHER_UNROTARY)
        return fm_fail(FM_EVERSION, "recipe 'gather', mode %u: needs a newer fmstore", r->mode);
    return r->mode == FMS_GATHER_PIECES ? check_pieces(r, in) : check_rotary(r, in);
}

fm_status rcp_gather(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    return r->mode == FMS_GATHER_PIECES ? gather_pieces(r, in, p, dst)
                                        : gather_rotary(r, in, p, dst);
}

uint64_t rcp_gather_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    const uint64_t all = rcp_all_touches(r, in, k);
    uint64_t n = 1;
    rotary o;
    if (r->mode != FMS_GATHER_PIECES) {
        fm_assert(rotary_of(&o, r, in));
        return FM_MIN(all, 2 * (o.head_rows * o.row_bytes / FM_LEAF_BYTES) + 4);
    }
    for (size_t i = 0; i < r->params.len / FMS_PIECE_BYTES; i++)
        n += piece_at(r, i).input == k ? 2 : 0; /* its two ends may be in the middle of leaves */
    return FM_MIN(all, n);
}

/* ==== transpose ============================================================================ */

typedef struct turn {
    uint64_t rows, cols; /* shape of the parent's matrices */
    uint64_t unit;
} turn;

static turn turn_of(const fms_inputs *in)
{
    const fm_shape *s = &in->input[0].shape;
    return (turn){s->dim[s->rank - 2], s->dim[s->rank - 1],
                  fm_dtype_get(in->child.dtype)->block_bytes};
}

fm_status rcp_turn_check(const fms_recipe *r, const fms_inputs *in)
{
    if (r->mode != 0)
        return fm_fail(FM_EVERSION, "recipe 'transpose', mode %u: needs a newer fmstore", r->mode);
    fm_shape want = in->input[0].shape;
    if (in->count != 1 || r->params.len || want.rank < 2 || in->input[0].dtype != in->child.dtype ||
        fm_dtype_get(in->child.dtype)->is_block)
        return rcp_refuse(r, "wants one parent of the same plain dtype, and no parameters");
    const uint64_t rows = want.dim[want.rank - 2];
    want.dim[want.rank - 2] = want.dim[want.rank - 1];
    want.dim[want.rank - 1] = rows;
    return fm_shape_eq(&want, &in->child.shape) ? FM_OK
                                                : rcp_refuse(r, "the parent's shape is not turned");
}

/* Makes elements [first, first + count) of one matrix of the child, [cols][rows]. From each of the
 * parent's rows the columns that these need are read at once. */
static fm_status turn_part(const fms_inputs *in, const turn *t, uint64_t base, uint64_t first,
                           uint64_t count, uint8_t *line, uint8_t *dst)
{
    const uint64_t c0 = first / t->rows, c1 = (first + count - 1) / t->rows + 1;
    const bool one = c1 - c0 == 1;
    const uint64_t r0 = one ? first % t->rows : 0, r1 = one ? r0 + count : t->rows;
    const size_t unit = (size_t)t->unit;

    for (uint64_t r = r0; r < r1; r++) {
        const uint64_t lo = c0 * t->rows + r < first ? c0 + 1 : c0;
        const uint64_t hi = (c1 - 1) * t->rows + r >= first + count ? c1 - 1 : c1;
        if (lo >= hi)
            continue;
        FM_TRY(
            in->read(in->ctx, 0, (base + r * t->cols + lo) * unit, line, (size_t)(hi - lo) * unit));
        for (uint64_t c = lo; c < hi; c++)
            memcpy(dst + (size_t)(c * t->rows + r - first) * unit, line + (size_t)(c - lo) * unit,
                   unit);
    }
    return FM_OK;
}

fm_status rcp_turn(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    (void)r;
    const turn t = turn_of(in);
    const uint64_t whole = t.rows * t.cols, end = p->first + p->count;
    uint8_t *line = fm_malloc(FM_LEAF_BYTES);
    fm_status rc = line ? FM_OK : FM_ENOMEM;
    for (uint64_t at = p->first; rc == FM_OK && at < end;) {
        const uint64_t base = at / whole * whole, n = FM_MIN(end, base + whole) - at;
        rc = turn_part(in, &t, base, at - base, n, line, dst + (size_t)((at - p->first) * t.unit));
        at += n;
    }
    fm_free(line);
    return rc;
}
