/* crans.h - rANS with a table per context: symbols below 128, up to 64 tables of 11-bit
 * frequencies, 32 interleaved 32-bit states, 16-bit words.
 *
 * Both sides know which table codes symbol i (table[i]), so contexts need no sorting. 32 states,
 * because a vector unit decodes as many at once and a scalar one hides its latencies behind them.
 * Integers only: every implementation gives the same bytes. Method: J. Duda, "Asymmetric numeral
 * systems", arXiv 1311.2540; interleaving: F. Giesen, arXiv 1402.3392. */
#ifndef FM_STORE_CODEC_CRANS_H
#define FM_STORE_CODEC_CRANS_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

#define FMS_CRANS_BITS 11u
#define FMS_CRANS_SCALE (1u << FMS_CRANS_BITS)
#define FMS_CRANS_STATES 32u
#define FMS_CRANS_SYMBOLS 128u
#define FMS_CRANS_TABLES 64u

/* The frequencies of a table sum to FMS_CRANS_SCALE; a symbol of frequency 0 does not occur. */
typedef uint16_t fms_crans_freq[FMS_CRANS_SYMBOLS];

/* A set of tables and what is derived from them for coding or decoding, about 530 KiB. */
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

/* Sets the frequencies of table t from counts of the symbols, of which at least one is not 0. */
void fms_crans_normalise(fms_crans *m, size_t t, const uint32_t histogram[FMS_CRANS_SYMBOLS]);
/* m->freq[0 .. tables) to bytes and back; FM_ECORRUPT: malformed. */
void fms_crans_put_tables(fm_buf *out, const fms_crans *m, size_t tables);
FM_CHECKED fm_status fms_crans_get_tables(fms_crans *m, size_t tables, fm_cursor *cur);

/* Joins neighbouring contexts in one table where that costs less than two. histogram: 128 counts
 * for each context, not all 0; overwritten. last[t]: the highest context of table t. Returns their
 * number. */
unsigned fms_crans_join(fms_crans *m, uint32_t *histogram, unsigned contexts,
                        uint8_t last[FMS_CRANS_TABLES]);
void fms_crans_map(uint8_t *table_of, const uint8_t *last, unsigned tables); /* by context */
/* Appends tables - 1, last and the tables. get reads them and fills table_of; FM_ECORRUPT. */
void fms_crans_put_contexts(fm_buf *out, const fms_crans *m, const uint8_t *last, unsigned tables);
FM_CHECKED fm_status fms_crans_get_contexts(fms_crans *m, uint8_t *table_of, unsigned contexts,
                                            unsigned *tables, fm_cursor *cur);

/* Appends 32 states and the words. table[i] < tables; symbol i must have a frequency in it. */
void fms_crans_encode(fms_crans *m, size_t tables, fm_buf *out, const uint8_t *symbol,
                      const uint8_t *table, size_t n);
/* FM_ECORRUPT: src is not used up exactly, or the states do not end where the encoder began. */
FM_CHECKED fm_status fms_crans_decode(fms_crans *m, size_t tables, uint8_t *symbol,
                                      const uint8_t *table, size_t n, fm_span src);

/* Which instructions the codecs with contexts use; the bytes are the same. AVX512: the subset that
 * Zen 4 and Ice Lake have; AVX2 includes BMI2. _limit is for tests. */
enum { FMS_SIMD_NONE, FMS_SIMD_AVX2, FMS_SIMD_AVX512 };
int fms_simd_level(void);
void fms_simd_limit(int most);

/* n * log2(n) in 1/256 bits, by integers alone, so that choices do not depend on a math library. */
uint64_t fms_crans_nlog2(uint32_t n);

FM_END_DECLS
#endif
