/* crans.h - rANS with a table per context: symbols below 128, up to 64 tables of 11-bit
 * frequencies, 32 interleaved 32-bit states, 16-bit words.
 *
 * Which table codes symbol i is known to both sides (table[i]), so contexts cost no sorting. 32
 * states, because a vector unit decodes as many at once and a scalar one hides its latencies behind
 * them. Integers only: the bytes are the same whichever way they were made. Method: J. Duda,
 * "Asymmetric numeral systems", arXiv 1311.2540; interleaving: F. Giesen, arXiv 1402.3392. */
#ifndef FM_STORE_CODEC_CRANS_H
#define FM_STORE_CODEC_CRANS_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

#define FMS_CRANS_BITS 11u
#define FMS_CRANS_SCALE (1u << FMS_CRANS_BITS)
#define FMS_CRANS_STATES 32u
#define FMS_CRANS_SYMBOLS 128u
#define FMS_CRANS_TABLES 64u

/* Each row sums to FMS_CRANS_SCALE; a symbol of frequency 0 does not occur. */
typedef uint16_t fms_crans_freq[FMS_CRANS_SYMBOLS];

/* What coding needs of a set of tables, about 640 KiB. */
typedef struct fms_crans {
    fms_crans_freq freq[FMS_CRANS_TABLES];
    union {
        /* symbol | (freq - 1) << 8 | (slot - start) << 20 */
        uint32_t slot[FMS_CRANS_TABLES * FMS_CRANS_SCALE];
        struct {
            uint64_t inverse; /* ceil(2^43 / freq) */
            uint32_t start, rest;
        } code[FMS_CRANS_TABLES * FMS_CRANS_SYMBOLS];
        uint32_t pair[FMS_CRANS_TABLES * FMS_CRANS_SYMBOLS]; /* freq | start << 16 */
    } u;
} fms_crans;

/* Frequencies of table t from how often each symbol occurs (at least one does). */
void fms_crans_normalise(fms_crans *m, size_t t, const uint32_t histogram[FMS_CRANS_SYMBOLS]);
/* Tables 0..tables-1 of m->freq to bytes and back; FM_ECORRUPT where they are malformed. */
void fms_crans_put_tables(fm_buf *out, const fms_crans *m, size_t tables);
FM_CHECKED fm_status fms_crans_get_tables(fms_crans *m, size_t tables, fm_cursor *cur);

/* Neighbouring contexts share a table where that costs less than two; histogram counts
 * the 128 symbols of context after context, at least one anywhere, and is spent. last[t] is the
 * highest context of table t. Returns the number of tables. */
unsigned fms_crans_join(fms_crans *m, uint32_t *histogram, unsigned contexts,
                        uint8_t last[FMS_CRANS_TABLES]);
void fms_crans_map(uint8_t *table_of, const uint8_t *last, unsigned tables); /* by context */
/* tables - 1, last, and the tables; and back, with the map: FM_ECORRUPT. */
void fms_crans_put_contexts(fm_buf *out, const fms_crans *m, const uint8_t *last, unsigned tables);
FM_CHECKED fm_status fms_crans_get_contexts(fms_crans *m, uint8_t *table_of, unsigned contexts,
                                            unsigned *tables, fm_cursor *cur);

/* Appends 32 states and the words. table[i] < tables; symbol i has a frequency there. */
void fms_crans_encode(fms_crans *m, size_t tables, fm_buf *out, const uint8_t *symbol,
                      const uint8_t *table, size_t n);
/* All of src must be used up, and the states must end where the encoder began: FM_ECORRUPT. */
FM_CHECKED fm_status fms_crans_decode(fms_crans *m, size_t tables, uint8_t *symbol,
                                      const uint8_t *table, size_t n, fm_span src);

/* How the codecs with contexts work; the bytes are the same. _limit is for tests. AVX512 stands for
 * what Zen 4 and Ice Lake have of it; AVX2 comes with BMI2. */
enum { FMS_SIMD_NONE, FMS_SIMD_AVX2, FMS_SIMD_AVX512 };
int fms_simd_level(void);
void fms_simd_limit(int most);

/* n * log2(n) in 1/256 bits, by integers alone: choices must not depend on a math library. */
uint64_t fms_crans_nlog2(uint32_t n);

FM_END_DECLS
#endif
