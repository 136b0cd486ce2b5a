/* rans.c - see rans.h. Layout:
 *   u8 symbols-1 | symbols x (u8 symbol, u8 or u8+u8 frequency) | 4 x u32 state | u16 words
 * Symbol i belongs to state i mod 4. The encoder runs backwards, so that the decoder runs forwards.
 */
#include "store/entropy/rans.h"

#include <string.h>

#include "store/base/cursor.h"

enum { SCALE_BITS = 12, SCALE = 1 << SCALE_BITS, STATES = 4 };
static const uint32_t state_low = 1u << 16;

/* Sets frequencies that sum to SCALE, at least 1 for each symbol that occurs. The remainder goes to
 * the most frequent symbol, where it costs least; integers only, so that every machine agrees. */
static void normalise(uint16_t freq[256], const uint32_t histogram[256], size_t n)
{
    int32_t left = SCALE;
    unsigned top = 0;
    for (unsigned s = 0; s < 256; s++) {
        freq[s] = 0;
        if (!histogram[s])
            continue;
        uint64_t f = ((uint64_t)histogram[s] * SCALE + n / 2) / n;
        freq[s] = (uint16_t)FM_MAX(f, 1u);
        left -= freq[s];
        if (histogram[s] > histogram[top])
            top = s;
    }
    while (left < 0 && freq[top] + left < 1) { /* many rare symbols: reduce the frequent ones */
        for (unsigned s = 0; s < 256 && left < 0; s++)
            if (freq[s] > 1) {
                freq[s]--;
                left++;
            }
    }
    freq[top] = (uint16_t)(freq[top] + left);
}

static size_t write_table(uint8_t *dst, size_t dst_bytes, const uint16_t freq[256])
{
    size_t at = 1;
    unsigned symbols = 0;
    for (unsigned s = 0; s < 256; s++) {
        if (!freq[s])
            continue;
        if (at + 3 > dst_bytes)
            return 0;
        dst[at++] = (uint8_t)s;
        if (freq[s] < 128) {
            dst[at++] = (uint8_t)freq[s];
        } else {
            dst[at++] = (uint8_t)(128 | (freq[s] & 127));
            dst[at++] = (uint8_t)(freq[s] >> 7);
        }
        symbols++;
    }
    dst[0] = (uint8_t)(symbols - 1);
    return at;
}

/* Codes one symbol into one state; words go down from *at, where the caller left two bytes. */
static inline uint32_t push_symbol(uint32_t v, uint32_t code, uint8_t *dst, size_t *at)
{
    uint32_t f = code >> 16;
    if (v >= (uint64_t)f << (32 - SCALE_BITS)) {
        *at -= 2;
        fm_put_u16(dst + *at, (uint16_t)v);
        v >>= 16;
    }
    uint32_t q = v / f;
    return (q << SCALE_BITS) + (v - q * f) + (code & 0xffffu);
}

size_t fms_rans_encode(uint8_t *dst, size_t dst_bytes, const uint8_t *src, size_t n,
                       const uint32_t histogram[256])
{
    uint16_t freq[256];
    uint32_t code[256]; /* frequency << 16 | start */
    normalise(freq, histogram, n);
    uint32_t sum = 0;
    for (unsigned s = 0; s < 256; s++) {
        code[s] = (uint32_t)freq[s] << 16 | sum;
        sum += freq[s];
    }
    fm_assert(sum == SCALE);
    size_t head = dst_bytes ? write_table(dst, dst_bytes, freq) : 0;
    if (!head || head + 4 * STATES > dst_bytes)
        return 0;
    size_t low = head + 4 * STATES; /* words may go down to here */
    size_t at = dst_bytes, i = n;
    uint32_t x[STATES] = {state_low, state_low, state_low, state_low};
    for (; i % STATES; i--) {
        if (at < low + 2)
            return 0;
        x[(i - 1) % STATES] = push_symbol(x[(i - 1) % STATES], code[src[i - 1]], dst, &at);
    }
    uint32_t a = x[0], b = x[1], c = x[2], d = x[3];
    for (; i > 0; i -= STATES) {
        if (at < low + 2 * STATES)
            return 0;
        d = push_symbol(d, code[src[i - 1]], dst, &at);
        c = push_symbol(c, code[src[i - 2]], dst, &at);
        b = push_symbol(b, code[src[i - 3]], dst, &at);
        a = push_symbol(a, code[src[i - 4]], dst, &at);
    }
    fm_put_u32(dst + head, a);
    fm_put_u32(dst + head + 4, b);
    fm_put_u32(dst + head + 8, c);
    fm_put_u32(dst + head + 12, d);
    memmove(dst + low, dst + at, dst_bytes - at);
    return low + (dst_bytes - at);
}

typedef struct rans_table {
    uint32_t slot[SCALE]; /* symbol | (freq - 1) << 8 | (slot - start) << 20 */
} rans_table;

/* Returns the bytes that the table took, 0 if it is malformed. */
static size_t read_table(rans_table *t, const uint8_t *src, size_t src_bytes)
{
    if (src_bytes < 1)
        return 0;
    unsigned symbols = src[0] + 1u;
    size_t at = 1;
    uint32_t sum = 0;
    int last = -1;
    for (unsigned k = 0; k < symbols; k++) {
        if (at + 3 > src_bytes) /* the states follow, so a sound table has three bytes here */
            return 0;
        uint32_t s = src[at++], f = src[at++];
        if (f >= 128)
            f = (f & 127) | (uint32_t)src[at++] << 7;
        if ((int)s <= last || f == 0 || f > SCALE - sum)
            return 0;
        for (uint32_t j = 0; j < f; j++)
            t->slot[sum + j] = s | (f - 1) << 8 | j << 20;
        sum += f;
        last = (int)s;
    }
    return sum == SCALE ? at : 0;
}

/* Decodes one symbol from one state. Reads two bytes at *p; consumes them if the state is low. */
static inline uint32_t pull_symbol(uint32_t v, const uint32_t slot[SCALE], uint8_t *out,
                                   const uint8_t **p)
{
    uint32_t e = slot[v & (SCALE - 1)];
    *out = (uint8_t)e;
    v = (((e >> 8) & (SCALE - 1)) + 1) * (v >> SCALE_BITS) + (e >> 20);
    uint32_t want = v < state_low; /* arithmetic: a branch is unpredictable */
    v = v << (16 * want) | (fm_get_u16(*p) & (0 - want));
    *p += 2 * want;
    return v;
}

fm_status fms_rans_decode(uint8_t *dst, size_t n, const uint8_t *src, size_t src_bytes)
{
    rans_table t;
    size_t at = read_table(&t, src, src_bytes);
    if (!at || src_bytes - at < 4 * STATES)
        return fm_fail(FM_ECORRUPT, "entropy stream: its frequency table is malformed");
    uint32_t x[STATES];
    for (unsigned j = 0; j < STATES; j++, at += 4)
        x[j] = fm_get_u32(src + at);
    const uint8_t *p = src + at, *end = src + src_bytes;
    size_t i = 0;
    uint32_t a = x[0], b = x[1], c = x[2], d = x[3];
    for (; n - i >= STATES && end - p >= 2 * STATES; i += STATES) {
        a = pull_symbol(a, t.slot, &dst[i], &p);
        b = pull_symbol(b, t.slot, &dst[i + 1], &p);
        c = pull_symbol(c, t.slot, &dst[i + 2], &p);
        d = pull_symbol(d, t.slot, &dst[i + 3], &p);
    }
    x[0] = a;
    x[1] = b;
    x[2] = c;
    x[3] = d;
    for (; i < n; i++) {
        static const uint8_t none[2];
        const uint8_t *q = end - p >= 2 ? p : none;
        const uint8_t *from = q;
        x[i % STATES] = pull_symbol(x[i % STATES], t.slot, &dst[i], &q);
        if (q != from && from == none)
            return fm_fail(FM_ECORRUPT, "entropy stream: ends after %zu of %zu bytes", i, n);
        p += q - from;
    }
    for (unsigned j = 0; j < STATES; j++)
        if (x[j] != state_low || p != end)
            return fm_fail(FM_ECORRUPT, "entropy stream: does not end where its bytes end");
    return FM_OK;
}
