/* rows.h - for codecs with contexts: the rows of a leaf, a byte of side information for each. */
#ifndef FM_STORE_CODEC_ROWS_H
#define FM_STORE_CODEC_ROWS_H

#include "store/codec/codec.h"

FM_BEGIN_DECLS

#define FMS_ROW_MIN 128u
#define FMS_ROW_MAX 32768u
#define FMS_ROWS_MAX (FM_LEAF_BYTES / 2 / FMS_ROW_MIN + 2)

/* The tensor's rows where their length is usable, else pieces of a usable length. Row 0 may be
 * shorter, since the leaf may begin within a row; so may the last. */
typedef struct fms_rows {
    size_t first, each, count; /* elements of row 0 and of the others; number of rows */
    size_t phase;              /* column of element 0 */
} fms_rows;

fms_rows fms_rows_choose(const fms_leaf_at *at, size_t width, size_t n);
/* From the lengths in a coded leaf; FM_ECORRUPT: out of bounds, or the cursor has failed. */
FM_CHECKED fm_status fms_rows_from(fms_rows *out, size_t first, size_t each, size_t n,
                                   const fm_cursor *cur);
static inline size_t fms_rows_end(const fms_rows *g, size_t k, size_t n)
{
    return FM_MIN(g->first + k * g->each, n);
}

/* One byte per row or column, as an entropy stream of mode 0, 1 or 3. count <= FMS_ROW_MAX. */
void fms_classes_put(fm_buf *out, const uint8_t *classes, size_t count);
FM_CHECKED fm_status fms_classes_get(uint8_t *classes, size_t count, fm_cursor *cur);

FM_END_DECLS
#endif
