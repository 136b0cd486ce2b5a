/* source_piece.c - a piece's bytes in Hugging Face's order, whatever their order in the file. */
#include <string.h>

#include "store/import/source_impl.h"

/* Row (h, j, i) of HF's order, where j is the half, is row (h, i, j) of GGUF's: the original Llama
 * code rotates neighbours, HF rotates element i with element i + half. */
void src_rows_to_gguf(uint8_t *dst, const uint8_t *from, uint64_t rows, uint64_t row_bytes,
                      uint32_t heads)
{
    const uint64_t dim = rows / heads, half = dim / 2;

    for (uint64_t r = 0; r < rows; r++) {
        const uint64_t h = r / dim, j = r % dim / half, i = r % dim % half;
        memcpy(dst + (h * dim + 2 * i + j) * row_bytes, from + r * row_bytes, (size_t)row_bytes);
    }
}

/* The address of row r of Hugging Face's order in the piece; see src_rows_to_gguf. */
static const uint8_t *row_at(const src_piece *p, uint64_t r)
{
    const uint64_t dim = p->rows / p->heads, half = dim / 2;
    const uint64_t h = r / dim, j = r % dim / half, i = r % dim % half;

    return p->data + (h * dim + 2 * i + j) * (p->bytes / p->rows);
}

void src_piece_copy(uint8_t *dst, const src_piece *p, uint64_t offset, uint64_t bytes)
{
    const uint64_t row_bytes = p->heads > 0 ? p->bytes / p->rows : 0;

    if (p->view) {
        fm_torch_gather(p->view, p->data, offset, dst, bytes);
        return;
    }
    if (p->heads == 0) {
        memcpy(dst, p->data + offset, (size_t)bytes);
        return;
    }
    while (bytes > 0) {
        const uint64_t skip = offset % row_bytes, n = FM_MIN(bytes, row_bytes - skip);
        memcpy(dst, row_at(p, offset / row_bytes) + skip, (size_t)n);
        dst += n;
        offset += n;
        bytes -= n;
    }
}
