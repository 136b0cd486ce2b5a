/* palette.h - codec 11: leaves of few different values, as these values and an index per element.
 *
 * At most 256 values of two bytes or 4096 of four: weights that were rounded to a grid, masks,
 * tables. Dense weights have more within their first thousand elements. */
#ifndef FM_STORE_CODEC_PALETTE_H
#define FM_STORE_CODEC_PALETTE_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

typedef struct fms_palette fms_palette; /* the values of one leaf, work memory of one thread */
FM_CHECKED fm_status fms_palette_new(fms_palette **out);
void fms_palette_free(fms_palette *p);

/* Gathers the values of n elements of `unit` bytes (2 or 4); returns their number, 0: too many. */
size_t fms_palette_find(fms_palette *p, const uint8_t *leaf, size_t unit, size_t n);
/* plane: n low bytes of the indices, beyond 256 values then n high bytes. Call after find. */
void fms_palette_index(const fms_palette *p, uint8_t *plane, const uint8_t *leaf, size_t unit,
                       size_t n);
/* u16 values - 1, then the values, ascending; FM_ECORRUPT where they are not ascending. */
void fms_palette_put(const fms_palette *p, fm_buf *out, size_t unit);
FM_CHECKED fm_status fms_palette_get(fms_palette *p, size_t *count, size_t unit, fm_cursor *cur);
/* FM_ECORRUPT: an index beyond the palette. Call after get. */
FM_CHECKED fm_status fms_palette_apply(const fms_palette *p, uint8_t *dst, const uint8_t *plane,
                                       size_t unit, size_t n);

FM_END_DECLS
#endif
