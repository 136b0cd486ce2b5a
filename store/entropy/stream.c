/* stream.c - see stream.h. */
#include "store/entropy/stream.h"

#include <string.h>
#include <zstd.h>

#include "store/base/mem.h"
#include "store/entropy/rans.h"

enum { STREAM_RAW = 0, STREAM_CONST = 1, STREAM_ZSTD = 2, STREAM_RANS = 3 };
enum { ZSTD_LEVEL = 1, SAMPLE_MIN = 2048 };

struct fms_streams {
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
    uint8_t *coded; /* 2 x FM_LEAF_BYTES: one stream coded in two ways */
};

fm_status fms_streams_new(fms_streams **out)
{
    *out = NULL;
    fms_streams *c = fm_calloc(1, sizeof *c);
    if (!c)
        return FM_ENOMEM;
    c->cctx = ZSTD_createCCtx();
    c->dctx = ZSTD_createDCtx();
    c->coded = fm_malloc((size_t)2 * FM_LEAF_BYTES);
    if (!c->coded || !c->cctx || !c->dctx) {
        fms_streams_free(c);
        return fm_fail(FM_ENOMEM, "out of memory");
    }
    *out = c;
    return FM_OK;
}

void fms_streams_free(fms_streams *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->cctx);
    ZSTD_freeDCtx(c->dctx);
    fm_free(c->coded);
    fm_free(c);
}

static void histogram_of(uint32_t h[256], const uint8_t *src, size_t n)
{
    uint32_t part[4][256] = {{0}}; /* four: equal neighbours would wait for one counter */
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        part[0][src[i]]++;
        part[1][src[i + 1]]++;
        part[2][src[i + 2]]++;
        part[3][src[i + 3]]++;
    }
    for (; i < n; i++)
        part[0][src[i]]++;
    for (unsigned s = 0; s < 256; s++)
        h[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

/* Whether a histogram is so flat that no order-0 coder gains: the collision probability gives a
 * lower bound of the entropy (here 7.97 bits) without a logarithm. */
static bool is_flat(const uint32_t h[256], size_t n)
{
    uint64_t squares = 0; /* n <= 2^20, so at most 2^40 */
    for (unsigned s = 0; s < 256; s++)
        squares += (uint64_t)h[s] * h[s];
    return n >= 4096 && squares * 256 * 50 <= (uint64_t)n * n * 51;
}

static void put_stream(fm_buf *out, uint8_t mode, const uint8_t *data, size_t len)
{
    fm_buf_u8(out, mode);
    fm_buf_u32(out, (uint32_t)len);
    fm_buf_append(out, data, len);
}

/* zstd wins by repeats, rANS by exact probabilities. Where the middle eighth of a stream shows no
 * gain by repeats, the whole is not tried: such trials would take most of an import's time. */
static bool zstd_may_win(fms_streams *c, uint8_t *room, const uint8_t *src, size_t n, size_t best)
{
    size_t sample = n / 8;
    if (sample < SAMPLE_MIN)
        return true;
    size_t z = ZSTD_compressCCtx(c->cctx, room, sample, src + (n - sample) / 2, sample, ZSTD_LEVEL);
    return !ZSTD_isError(z) && z < best / 8;
}

void fms_stream_encode(fms_streams *c, fm_buf *out, const uint8_t *src, size_t n)
{
    uint32_t h[256];
    histogram_of(h, src, n);
    if (n > 0 && h[src[0]] == n) {
        put_stream(out, STREAM_CONST, src, 1);
        return;
    }
    if (n == 0 || is_flat(h, n)) {
        put_stream(out, STREAM_RAW, src, n);
        return;
    }
    size_t rans = fms_rans_encode(c->coded, n, src, n, h);
    size_t best = rans ? rans : n;
    uint8_t mode = rans ? STREAM_RANS : STREAM_RAW;
    const uint8_t *data = rans ? c->coded : src;
    uint8_t *second = c->coded + rans;
    size_t z = zstd_may_win(c, second, src, n, best)
                   ? ZSTD_compressCCtx(c->cctx, second, best, src, n, ZSTD_LEVEL)
                   : best;
    if (!ZSTD_isError(z) && z < best) {
        best = z;
        mode = STREAM_ZSTD;
        data = second;
    }
    put_stream(out, mode, data, best);
}

fm_status fms_stream_decode(fms_streams *c, uint8_t *dst, size_t n, fm_cursor *cur)
{
    uint8_t mode = fm_cursor_u8(cur);
    uint32_t len = fm_cursor_u32(cur);
    fm_span s = fm_cursor_bytes(cur, len);
    FM_TRY(fm_cursor_ok(cur, "coded leaf", "an entropy stream"));
    if (mode == STREAM_RAW && s.len == n) {
        if (n)
            memcpy(dst, s.data, n);
        return FM_OK;
    }
    if (mode == STREAM_CONST && s.len == 1) {
        memset(dst, s.data[0], n);
        return FM_OK;
    }
    if (mode == STREAM_RANS)
        return fms_rans_decode(dst, n, s.data, s.len);
    if (mode == STREAM_ZSTD && ZSTD_decompressDCtx(c->dctx, dst, n, s.data, s.len) == n)
        return FM_OK;
    return fm_fail(FM_ECORRUPT,
                   "coded leaf: entropy stream of mode %u, %zu bytes does not give %zu", mode,
                   s.len, n);
}
