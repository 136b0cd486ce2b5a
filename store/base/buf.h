/* buf.h - growable bytes with a maximum: passing it is an error, never a silent growth. A buffer
 * remembers its first failure and takes nothing more, so that a writer may append many times and
 * check once with fm_buf_ok. data is NUL-terminated unless NULL (the NUL is not counted). */
#ifndef FM_BASE_BUF_H
#define FM_BASE_BUF_H

#include "store/base/cursor.h"

FM_BEGIN_DECLS

typedef struct fm_buf {
    uint8_t *data;
    size_t len;
    size_t cap;
    size_t max;
    fm_status failed; /* FM_OK, FM_ENOMEM or FM_ELIMIT */
} fm_buf;

#define FM_BUF_MAX_DEFAULT ((size_t)1 << 31)

void fm_buf_init(fm_buf *b, size_t max_bytes); /* allocates nothing; 0 = FM_BUF_MAX_DEFAULT */
void fm_buf_release(fm_buf *b);                /* frees; b may be used again as if initialised */
void fm_buf_clear(fm_buf *b);                  /* len = 0, keeps memory, forgets a failure */
void fm_buf_append(fm_buf *b, const void *data, size_t len);
void fm_buf_str(fm_buf *b, const char *s);
void fm_buf_char(fm_buf *b, char c);
void fm_buf_u8(fm_buf *b, uint8_t v);
void fm_buf_u16(fm_buf *b, uint16_t v); /* little-endian */
void fm_buf_u32(fm_buf *b, uint32_t v);
void fm_buf_u64(fm_buf *b, uint64_t v);
void fm_buf_printf(fm_buf *b, const char *fmt, ...) FM_PRINTF(2, 3);
/* Appends len bytes that the caller fills in, and returns where they begin; NULL once failed. */
uint8_t *fm_buf_extend(fm_buf *b, size_t len);
FM_CHECKED fm_status fm_buf_ok(const fm_buf *b);
fm_span fm_buf_span(const fm_buf *b);
const char *fm_buf_cstr(const fm_buf *b); /* "" when empty */
char *fm_buf_take(fm_buf *b);             /* ownership moves out (fm_free); NULL = ENOMEM */

FM_END_DECLS
#endif
