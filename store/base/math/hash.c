/* hash.c - SHA-256 by the processor's own instructions, which can hash two streams at once
 * (sha256_ni.c), else by OpenSSL 3; git's SHA-1 always by OpenSSL. OpenSSL's algorithm is fetched
 * once a process: a fetch at each digest takes a global lock and costs more than a small object. */
#include "store/base/math/hash.h"

#include "store/base/mem.h"
#include "store/base/math/sha256_ni.h"

#include <limits.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

static pthread_once_t fetch_once = PTHREAD_ONCE_INIT;
static EVP_MD *sha256; /* NULL when this OpenSSL offers none; kept for the life of the process */
static bool by_cpu;

static void fetch(void)
{
    by_cpu = fmb_sha_usable();
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

void fm_hash_plainly(bool plainly)
{
    pthread_once(&fetch_once, fetch);
    by_cpu = !plainly && fmb_sha_usable();
}

static fm_status ready(void)
{
    pthread_once(&fetch_once, fetch);
    if (!by_cpu && !sha256)
        return fm_fail(FM_EUNSUPPORTED, "OpenSSL offers no SHA-256: check its configuration");
    return FM_OK;
}

static fm_status refused(void)
{
    return fm_fail(FM_ENOMEM, "OpenSSL could not compute SHA-256: out of memory");
}

fm_status fm_sha256(fm_digest *out, const void *data, size_t len)
{
    memset(out, 0, sizeof(*out));
    FM_TRY(ready());
    if (by_cpu) {
        fmb_sha s;
        fmb_sha_init(&s);
        if (len > 0)
            fmb_sha_update(&s, data, len);
        fmb_sha_final(&s, out->b);
        return FM_OK;
    }
    return EVP_Digest(data ? data : "", len, out->b, NULL, sha256, NULL) ? FM_OK : refused();
}

fm_status fm_sha256_two(fm_digest out[2], fm_span a, fm_span b)
{
    FM_TRY(ready());
    fmb_sha s[2];

    if (!by_cpu) {
        FM_TRY(fm_sha256(&out[0], a.data, a.len));
        return fm_sha256(&out[1], b.data, b.len);
    }
    fmb_sha_init(&s[0]);
    fmb_sha_init(&s[1]);
    fmb_sha_update_two(&s[0], a.data, a.len, &s[1], b.data, b.len);
    fmb_sha_final(&s[0], out[0].b);
    fmb_sha_final(&s[1], out[1].b);
    return FM_OK;
}

fm_status fm_sha1(uint8_t out[20], const void *data, size_t len)
{
    memset(out, 0, 20);
    if (!EVP_Digest(data ? data : "", len, out, NULL, EVP_sha1(), NULL))
        return fm_fail(FM_EUNSUPPORTED, "OpenSSL computes no SHA-1, which git's files need");
    return FM_OK;
}

struct fm_hasher {
    EVP_MD_CTX *ctx; /* NULL: the processor's instructions hash */
    fmb_sha own;
};

fm_status fm_hasher_new(fm_hasher **out)
{
    *out = NULL;
    FM_TRY(ready());
    fm_hasher *h = fm_calloc(1, sizeof(*h));
    if (!h)
        return FM_ENOMEM;
    fmb_sha_init(&h->own);
    if (!by_cpu) {
        h->ctx = EVP_MD_CTX_new();
        if (!h->ctx || !EVP_DigestInit_ex2(h->ctx, sha256, NULL)) {
            fm_hasher_free(h);
            return refused();
        }
    }
    *out = h;
    return FM_OK;
}

fm_status fm_hasher_update(fm_hasher *h, const void *data, size_t len)
{
    if (len == 0)
        return FM_OK;
    if (!h->ctx) {
        fmb_sha_update(&h->own, data, len);
        return FM_OK;
    }
    return EVP_DigestUpdate(h->ctx, data, len) ? FM_OK : refused();
}

fm_status fm_hasher_along(fm_hasher *h, fm_span data, fm_digest *out, fm_span other)
{
    fmb_sha s;

    if (h->ctx) {
        FM_TRY(fm_hasher_update(h, data.data, data.len));
        return fm_sha256(out, other.data, other.len);
    }
    fmb_sha_init(&s);
    fmb_sha_update_two(&h->own, data.data, data.len, &s, other.data, other.len);
    fmb_sha_final(&s, out->b);
    return FM_OK;
}

fm_status fm_hasher_final(fm_hasher *h, fm_digest *out)
{
    memset(out, 0, sizeof(*out));
    if (!h->ctx) {
        fmb_sha_final(&h->own, out->b);
        fmb_sha_init(&h->own);
        return FM_OK;
    }
    if (!EVP_DigestFinal_ex(h->ctx, out->b, NULL))
        return refused();
    return EVP_DigestInit_ex2(h->ctx, sha256, NULL) ? FM_OK : refused();
}

fm_status fm_hasher_copy(fm_hasher *h, const fm_hasher *from)
{
    h->own = from->own;
    return !h->ctx || EVP_MD_CTX_copy_ex(h->ctx, from->ctx) ? FM_OK : refused();
}

fm_status fm_hasher_peek(const fm_hasher *h, fm_digest *out)
{
    memset(out, 0, sizeof(*out));
    if (!h->ctx) {
        fmb_sha_final(&h->own, out->b);
        return FM_OK;
    }
    EVP_MD_CTX *copy = EVP_MD_CTX_new();
    bool ok = copy && EVP_MD_CTX_copy_ex(copy, h->ctx) && EVP_DigestFinal_ex(copy, out->b, NULL);
    EVP_MD_CTX_free(copy);
    return ok ? FM_OK : refused();
}

void fm_hasher_free(fm_hasher *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->ctx);
    fm_free(h);
}

fm_status fm_base64_encode(fm_buf *out, fm_span bytes)
{
    if (bytes.len > INT_MAX / 4 * 3)
        return fm_fail(FM_ELIMIT, "base64 of %zu bytes (at most %d)", bytes.len, INT_MAX / 4 * 3);
    size_t len = (bytes.len + 2) / 3 * 4;
    uint8_t *to = fm_buf_extend(out, len + 1); /* a NUL is written behind */
    if (!to)
        return fm_buf_ok(out);
    EVP_EncodeBlock(to, bytes.data, (int)bytes.len);
    out->len--;
    return FM_OK;
}

/* OpenSSL takes '=' anywhere for zeros, and skips white space around the text: refused here. */
fm_status fm_base64_decode(fm_buf *out, fm_span text)
{
    size_t pad = 0, len = text.len / 4 * 3;

    while (pad < FM_MIN(text.len, (size_t)2) && text.data[text.len - 1 - pad] == '=')
        pad++;
    if (text.len > INT_MAX)
        return fm_fail(FM_ELIMIT, "base64 of %zu bytes (at most %d)", text.len, INT_MAX);
    if (text.len == 0)
        return FM_OK;
    if (text.len % 4 || memchr(text.data, '=', text.len - pad))
        return fm_fail(FM_ECORRUPT, "the text is not base64");
    uint8_t *to = fm_buf_extend(out, len);
    if (!to)
        return fm_buf_ok(out);
    bool ok = EVP_DecodeBlock(to, text.data, (int)text.len) == (int)len;
    out->len -= ok ? pad : len;
    out->data[out->len] = 0;
    return ok ? FM_OK : fm_fail(FM_ECORRUPT, "the text is not base64");
}

int fm_digest_cmp(const fm_digest *a, const fm_digest *b)
{
    return memcmp(a->b, b->b, FM_DIGEST_BYTES);
}

bool fm_digest_is_zero(const fm_digest *d)
{
    uint8_t any = 0;

    for (size_t i = 0; i < FM_DIGEST_BYTES; i++)
        any |= d->b[i];
    return any == 0;
}

void fm_digest_hex(const fm_digest *d, char out[FM_HEX_CHARS + 1])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < FM_DIGEST_BYTES; i++) {
        out[2 * i] = digits[d->b[i] >> 4];
        out[2 * i + 1] = digits[d->b[i] & 15];
    }
    out[FM_HEX_CHARS] = '\0';
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool fm_digest_parse(fm_digest *out, const char *hex, size_t len)
{
    memset(out, 0, sizeof(*out));
    if (len != FM_HEX_CHARS)
        return false;
    for (size_t i = 0; i < FM_DIGEST_BYTES; i++) {
        int hi = nibble(hex[2 * i]);
        int lo = nibble(hex[2 * i + 1]);
        if (hi < 0 || lo < 0) {
            memset(out, 0, sizeof(*out));
            return false;
        }
        out->b[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}
