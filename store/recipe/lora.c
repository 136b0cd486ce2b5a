/* lora.c - W + scale (B A), as PEFT merges an adapter.
 *
 * Per element: a chain of fused multiply-adds over ascending rank from zero, one product with
 * scale, one addition, as lora_merge.c does it for whole tensors. One tile is computed at a time,
 * from the factors of its rows and columns, so that memory is bounded. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/recipe/recipe_impl.h"
#include "store/source.h"

#define FACTOR_FLOATS (1u << 20) /* floats of a tile's factor, and of its result */

typedef struct lora_form {
    uint64_t rows, cols, rank; /* shape of W as it is stored; rank of the factors */
    bool turned;
    float scale;
} lora_form;

static bool is_matrix(const fms_form *f, uint64_t rows, uint64_t cols)
{
    return f->shape.rank == 2 && f->shape.dim[0] == rows && f->shape.dim[1] == cols &&
           rcp_widens(f->dtype);
}

static lora_form form_of(const fms_recipe *r, const fms_inputs *in)
{
    lora_form f = {.rows = in->child.shape.dim[0],
                   .cols = in->child.shape.dim[1],
                   .rank = in->input[1].shape.dim[0],
                   .turned = r->mode & FMS_LORA_TURNED};
    const uint32_t bits = fm_get_u32(r->params.data);
    memcpy(&f.scale, &bits, sizeof f.scale);
    return f;
}

fm_status rcp_lora_check(const fms_recipe *r, const fms_inputs *in)
{
    const unsigned flags = FMS_LORA_TURNED | FMS_LORA_NARROW_BASE | FMS_LORA_NARROW_FACTORS;
    if ((r->mode & ~flags) > FMS_LORA_STEPS)
        return fm_fail(FM_EVERSION, "recipe 'lora', mode %u: needs a newer fmstore", r->mode);
    if (in->count != 3 || r->params.len != 4)
        return rcp_refuse(r, "wants the parents W, A, B and a scale");
    if (!rcp_is_plain_float(in->child.dtype) || in->child.shape.rank != 2 ||
        in->input[1].shape.rank != 2)
        return rcp_refuse(r, "merges matrices of F32, BF16 or F16");
    const lora_form f = form_of(r, in);
    const uint64_t out = f.turned ? f.cols : f.rows, inner = f.turned ? f.rows : f.cols;
    if (f.rank < 1 || f.rank > FMS_LORA_RANK_MAX)
        return rcp_refuse(r, "the rank is out of range");
    if (!is_matrix(&in->input[0], f.rows, f.cols) || !is_matrix(&in->input[1], f.rank, inner) ||
        !is_matrix(&in->input[2], out, f.rank))
        return rcp_refuse(r, "the shapes of W, A and B do not fit");
    return FM_OK;
}

uint64_t rcp_lora_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    return k == 0 ? rcp_elementwise_touches(r, in, 0) : rcp_all_touches(r, in, k);
}

typedef struct lora_work {
    const fms_inputs *in;
    lora_form f;
    unsigned rounding;
    bool narrow_base, narrow_factors;
    float *left;      /* [rows of the tile][rank] */
    float *right;     /* [rank][columns of the tile] */
    float *w;         /* [rows][columns] */
    float *line;      /* a factor's row, before it is transposed */
    uint8_t *scratch; /* for rcp_floats of a tile's elements */
} lora_work;

typedef struct lora_tile {
    uint64_t row, rows, col, cols;
} lora_tile;

/* Loads rows [first, first + n) of B, or of A transposed, as [n][rank]; turn: as [rank][n]. */
static fm_status load_tall(lora_work *w, bool from_a, uint64_t first, uint64_t n, float *dst,
                           bool turn)
{
    const uint64_t rank = w->f.rank, wide = from_a ? w->in->input[1].shape.dim[1] : rank;

    if (!from_a && !turn)
        return rcp_floats(w->in, 2, first * rank, n * rank, dst, w->scratch);
    if (from_a && turn) { /* A's columns as stored: [rank][n] */
        for (uint64_t k = 0; k < rank; k++)
            FM_TRY(rcp_floats(w->in, 1, k * wide + first, n, dst + k * n, w->scratch));
        return FM_OK;
    }
    if (from_a) { /* A's columns as rows: [n][rank] */
        for (uint64_t k = 0; k < rank; k++) {
            FM_TRY(rcp_floats(w->in, 1, k * wide + first, n, w->line, w->scratch));
            for (uint64_t i = 0; i < n; i++)
                dst[i * rank + k] = w->line[i];
        }
        return FM_OK;
    }
    for (uint64_t i = 0; i < n; i++) { /* B's rows as columns: [rank][n] */
        FM_TRY(rcp_floats(w->in, 2, (first + i) * rank, rank, w->line, w->scratch));
        for (uint64_t k = 0; k < rank; k++)
            dst[k * n + i] = w->line[k];
    }
    return FM_OK;
}

static void merge_rounded(const lora_work *w, const lora_tile *t)
{
    const fm_dtype dtype = w->in->child.dtype;
    const uint64_t rank = w->f.rank;
    for (uint64_t i = 0; i < t->rows; i++)
        for (uint64_t j = 0; j < t->cols; j++) {
            float sum = 0.0f;
            for (uint64_t k = 0; k < rank; k++)
                sum = fmaf(w->left[i * rank + k], w->right[k * t->cols + j], sum);
            if (w->rounding == FMS_LORA_STEPS)
                sum = rcp_narrow(dtype, sum);
            const float delta = sum * w->f.scale;
            w->w[i * t->cols + j] += rcp_narrow(dtype, delta);
        }
}

/* Loads W's elements that the part needs; the tile's others are left as they are. */
static fm_status load_base(const lora_work *w, const lora_tile *t, const rcp_part *p)
{
    for (uint64_t i = 0; i < t->rows; i++) {
        const uint64_t at = (t->row + i) * w->f.cols + t->col;
        const uint64_t lo = FM_MAX(at, p->first), hi = FM_MIN(at + t->cols, p->first + p->count);
        if (lo < hi)
            FM_TRY(rcp_floats(w->in, 0, lo, hi - lo, w->w + i * t->cols + (lo - at), w->scratch));
        if (lo < hi && w->narrow_base)
            rcp_narrow_all(w->in->child.dtype, w->w + i * t->cols + (lo - at), hi - lo);
    }
    return FM_OK;
}

static fm_status merge_tile(lora_work *w, const lora_tile *t, const rcp_part *p)
{
    const lora_form *f = &w->f;
    FM_TRY(load_tall(w, f->turned, t->row, t->rows, w->left, false));
    FM_TRY(load_tall(w, !f->turned, t->col, t->cols, w->right, true));
    if (w->narrow_factors) {
        rcp_narrow_all(w->in->child.dtype, w->left, t->rows * f->rank);
        rcp_narrow_all(w->in->child.dtype, w->right, t->cols * f->rank);
    }
    FM_TRY(load_base(w, t, p));
    if (w->rounding == FMS_LORA_F32)
        fm_lora_merge(w->w, w->right, w->left, t->rows, t->cols, f->rank, f->scale);
    else
        merge_rounded(w, t);
    return FM_OK;
}

/* Writes the tile's elements that belong to the part. */
static void put_tile(const lora_work *w, const lora_tile *t, const rcp_part *p, uint8_t *dst)
{
    const fm_dtype dtype = w->in->child.dtype;
    const size_t width = fm_dtype_get(dtype)->block_bytes;
    for (uint64_t i = 0; i < t->rows; i++) {
        const uint64_t at = (t->row + i) * w->f.cols + t->col;
        const uint64_t lo = FM_MAX(at, p->first), hi = FM_MIN(at + t->cols, p->first + p->count);
        if (lo < hi)
            rcp_store(dst + (size_t)(lo - p->first) * width, dtype, w->w + i * t->cols + (lo - at),
                      hi - lo);
    }
}

fm_status rcp_lora(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    lora_work w = {.in = in, .f = form_of(r, in), .rounding = r->mode & 15u};
    w.narrow_base = r->mode & FMS_LORA_NARROW_BASE;
    w.narrow_factors = r->mode & FMS_LORA_NARROW_FACTORS;
    const uint64_t cols = w.f.cols, fit = FACTOR_FLOATS / w.f.rank;
    const uint64_t row0 = p->first / cols, row1 = (p->first + p->count - 1) / cols + 1;
    const uint64_t tile_cols = FM_MIN(cols, fit);
    const uint64_t tile_rows = FM_MIN(FM_MIN(row1 - row0, fit), FACTOR_FLOATS / tile_cols);
    const uint64_t line = FM_MAX(FM_MAX(tile_rows, tile_cols), w.f.rank);
    const uint64_t most = FM_MAX(tile_rows * w.f.rank, line);
    size_t scratch = 0;
    for (uint32_t k = 0; k < 3; k++)
        scratch = FM_MAX(scratch, rcp_scratch_bytes(in->input[k].dtype, most));
    w.left = fm_malloc((size_t)(tile_rows * w.f.rank) * sizeof(float));
    w.right = fm_malloc((size_t)(tile_cols * w.f.rank) * sizeof(float));
    w.w = fm_calloc((size_t)(tile_rows * tile_cols), sizeof(float));
    w.line = fm_malloc((size_t)line * sizeof(float));
    w.scratch = fm_malloc(scratch);
    fm_status rc = w.left && w.right && w.w && w.line && w.scratch ? FM_OK : FM_ENOMEM;
    for (uint64_t i = row0; rc == FM_OK && i < row1; i += tile_rows)
        for (uint64_t j = 0; rc == FM_OK && j < cols; j += tile_cols) {
            const lora_tile t = {i, FM_MIN(row1 - i, tile_rows), j, FM_MIN(cols - j, tile_cols)};
            if ((i + t.rows - 1) * cols + j + t.cols <= p->first ||
                i * cols + j >= p->first + p->count)
                continue;
            rc = merge_tile(&w, &t, p);
            if (rc == FM_OK)
                put_tile(&w, &t, p, dst);
        }
    fm_free(w.left);
    fm_free(w.right);
    fm_free(w.w);
    fm_free(w.line);
    fm_free(w.scratch);
    return rc;
}
