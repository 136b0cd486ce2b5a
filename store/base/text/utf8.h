/* utf8.h - UTF-8 as Unicode defines it: no overlong form, no surrogate, nothing above U+10FFFF.
 *
 * An ill-formed sequence has length 0, and the caller decides: it refuses the text or puts U+FFFD
 * (fm_utf8_lossy: one for each maximal ill-formed subpart, as Python and browsers do). */
#ifndef FM_STORE_UTF8_H
#define FM_STORE_UTF8_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

#define FM_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* The length of the code point at p (left > 0 bytes); 0: ill-formed, or cut off by the end. The
 * first form is for a first byte beyond ASCII. */
size_t fm_utf8_len_of_many(const uint8_t *p, size_t left);
static inline size_t fm_utf8_len(const uint8_t *p, size_t left)
{
    return p[0] < 0x80 ? 1 : fm_utf8_len_of_many(p, left);
}

/* Decodes one code point of valid UTF-8; returns its length. */
static inline size_t fm_utf8_next(const uint8_t *s, uint32_t *cp)
{
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    if (s[0] < 0xe0) {
        *cp = (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3fu);
        return 2;
    }
    if (s[0] < 0xf0) {
        *cp = (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3fu);
        return 3;
    }
    *cp = (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
          (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3fu);
    return 4;
}

size_t fm_utf8_put(uint8_t out[4], uint32_t cp);
/* Length of the longest valid prefix. */
size_t fm_utf8_valid(const uint8_t *s, size_t len);
/* Length of the longest prefix of at most max bytes that cuts no code point. */
size_t fm_utf8_clip(const uint8_t *s, size_t len, size_t max);
/* Appends s with U+FFFD in place of each maximal ill-formed subpart. */
void fm_utf8_lossy(fm_buf *out, const uint8_t *s, size_t len);
/* Number of bytes at the end of s (len > 0) that begin an incomplete code point; 0: none. */
size_t fm_utf8_cut(const uint8_t *s, size_t len);

FM_END_DECLS
#endif
