/* source_piece.c - a piece's bytes in Hugging Face's order, whatever their order in the file. */
#include <string.h>

#include "store/import/source_impl.h"

/* Row (h, j, i) of HF's order, where j is the half, is row (h, i, j) of GGUF's: the original Llama
 * code rotates neighbours, HF rotates element i with element i + half. */
static uint64_t rotary_row(uint64_t r, uint64_t rows, uint64_t heads)
{
    const uint64_t dim = rows / heads, half = dim / 2;
    const uint64_t h = r / dim, j = r % dim / half, i = r % dim % half;

    return h * dim + 2 * i + j;
}

static uint64_t fused_row(uint64_t r, uint64_t rows, uint64_t groups, uint64_t queries)
{
    const uint64_t dim = rows / (groups * (queries + 2)), block = r / dim;
    const uint64_t group = block / (queries + 2), j = block % (queries + 2);
    const uint64_t to = j < queries    ? group * queries + j
                        : j == queries ? groups * queries + group
                                       : groups * (queries + 1) + group;

    return to * dim + r % dim;
}

/* Where row r of Hugging Face's order is in GGUF's. */
static uint64_t row_in_gguf(uint64_t r, uint64_t rows, src_order order)
{
    return order.queries > 0 ? fused_row(r, rows, order.heads, order.queries)
                             : rotary_row(r, rows, order.heads);
}

bool src_order_fits(src_order order, uint64_t rows)
{
    const uint64_t parts = order.queries > 0 ? (uint64_t)order.queries + 2 : 2;

    return rows > 0 && order.heads > 0 && rows % (order.heads * parts) == 0;
}

void src_rows_to_gguf(uint8_t *dst, const uint8_t *from, uint64_t rows, uint64_t row_bytes,
                      src_order order)
{
    for (uint64_t r = 0; r < rows; r++)
        memcpy(dst + row_in_gguf(r, rows, order) * row_bytes, from + r * row_bytes,
               (size_t)row_bytes);
}

void src_piece_copy(uint8_t *dst, const src_piece *p, uint64_t offset, uint64_t bytes)
{
    const uint64_t row_bytes = p->order.heads > 0 ? p->bytes / p->rows : 0;

    if (p->view) {
        fm_torch_gather(p->view, p->data, offset, dst, bytes);
        return;
    }
    if (p->order.heads == 0) {
        memcpy(dst, p->data + offset, (size_t)bytes);
        return;
    }
    while (bytes > 0) {
        const uint64_t skip = offset % row_bytes, n = FM_MIN(bytes, row_bytes - skip);
        const uint64_t row = row_in_gguf(offset / row_bytes, p->rows, p->order);
        memcpy(dst, p->data + row * row_bytes + skip, (size_t)n);
        dst += n;
        offset += n;
        bytes -= n;
    }
}
