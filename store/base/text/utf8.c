/* utf8.c - code points to bytes and back. */
#include "store/base/text/utf8.h"

size_t fm_utf8_put(uint8_t out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xc0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xe0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

/* The length of the sequence that a first byte begins, and the range of its second byte (Unicode
 * table 3-7); 0: no sequence begins with this byte. */
static size_t lead(uint8_t b, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (b < 0x80)
        return 1;
    if (b < 0xc2 || b > 0xf4)
        return 0;
    if (b < 0xe0)
        return 2;
    if (b == 0xe0)
        *lo = 0xa0;
    if (b == 0xed)
        *hi = 0x9f;
    if (b == 0xf0)
        *lo = 0x90;
    if (b == 0xf4)
        *hi = 0x8f;
    return b < 0xf0 ? 3 : 4;
}

/* Length of the code point at s, or -length of the maximal ill-formed subpart; *cut: s ends in
 * it. */
static int scan_one(const uint8_t *s, size_t len, bool *cut)
{
    uint8_t lo, hi;
    size_t need = lead(s[0], &lo, &hi);

    *cut = false;
    if (need <= 1)
        return need == 1 ? 1 : -1;
    for (size_t i = 1; i < need; i++) {
        if (i == len) {
            *cut = true;
            return -(int)i;
        }
        if (s[i] < lo || s[i] > hi)
            return -(int)i;
        lo = 0x80;
        hi = 0xbf;
    }
    return (int)need;
}

size_t fm_utf8_len_of_many(const uint8_t *p, size_t left)
{
    bool cut;
    int n = scan_one(p, left, &cut);

    return n < 0 ? 0 : (size_t)n;
}

size_t fm_utf8_valid(const uint8_t *s, size_t len)
{
    size_t i = 0;

    while (i < len) {
        bool cut;
        if (s[i] < 0x80) {
            i++;
            continue;
        }
        int n = scan_one(s + i, len - i, &cut);
        if (n < 0)
            return i;
        i += (size_t)n;
    }
    return i;
}

size_t fm_utf8_clip(const uint8_t *s, size_t len, size_t max)
{
    size_t n = FM_MIN(len, max);

    while (n > 0 && n < len && (s[n] & 0xc0) == 0x80)
        n--;
    return n;
}

void fm_utf8_lossy(fm_buf *out, const uint8_t *s, size_t len)
{
    while (len > 0) {
        size_t good = fm_utf8_valid(s, len);
        bool cut;
        if (good > 0)
            fm_buf_append(out, s, good);
        s += good;
        len -= good;
        if (len == 0)
            return;
        size_t bad = (size_t)-scan_one(s, len, &cut);
        fm_buf_str(out, FM_UTF8_REPLACEMENT);
        s += bad;
        len -= bad;
    }
}

size_t fm_utf8_cut(const uint8_t *s, size_t len)
{
    size_t back = FM_MIN(len, (size_t)3);

    for (size_t n = 1; n <= back; n++) {
        const uint8_t *p = s + len - n;
        bool cut;
        if ((*p & 0xc0) == 0x80)
            continue;
        if (*p < 0x80)
            return 0;
        int got = scan_one(p, n, &cut);
        return got < 0 && cut ? n : 0;
    }
    return 0;
}
