/* imatrix.h - an importance matrix: for each weight of a model the mean square of each of its
 * inputs, as llama-imatrix writes it, in a GGUF or in the older .dat. */
#ifndef FM_STORE_IMATRIX_H
#define FM_STORE_IMATRIX_H

#include "store/base/cursor.h"

FM_BEGIN_DECLS

#define FM_IMATRIX_MAX_ENTRIES 1000000u
#define FM_IMATRIX_TEXT_BYTES 127u /* llama-quantize cuts file and data set here */

typedef struct fm_imatrix fm_imatrix;

/* Copies what it needs of the bytes. `what` names the file in errors. FM_ECORRUPT names the entry
 * that is cut, of another type, without its counts or not finite. */
FM_CHECKED fm_status fm_imatrix_parse(fm_imatrix **out, fm_span file, const char *what);
FM_CHECKED fm_status fm_imatrix_read(fm_imatrix **out, const char *path);
void fm_imatrix_free(fm_imatrix *m); /* NULL is fine */

size_t fm_imatrix_count(const fm_imatrix *m); /* entries, at least one */
/* Of the weight with GGUF's name: *count values, a row after the other where experts have their
 * own. NULL: it has none. */
const float *fm_imatrix_find(const fm_imatrix *m, const char *weight, uint64_t *count);
uint32_t fm_imatrix_chunks(const fm_imatrix *m); /* 0: not told */
/* The first data set's name, cut to FM_IMATRIX_TEXT_BYTES; NULL: not told. */
const char *fm_imatrix_dataset(const fm_imatrix *m);

FM_END_DECLS
#endif
