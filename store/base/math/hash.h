/* hash.h - SHA-256 (by SHA-NI where the CPU has it, OpenSSL libcrypto else) and digests as values;
 * base64. */
#ifndef FM_BASE_HASH_H
#define FM_BASE_HASH_H

#include "store/base/buf.h"
#include "store/base/cursor.h"

FM_BEGIN_DECLS

#define FM_DIGEST_BYTES 32
#define FM_HEX_CHARS 64

typedef struct fm_digest {
    uint8_t b[FM_DIGEST_BYTES];
} fm_digest;

FM_CHECKED fm_status fm_sha256(fm_digest *out, const void *data, size_t len);
/* The digests of both spans; with SHA-NI this takes little longer than one digest. */
FM_CHECKED fm_status fm_sha256_two(fm_digest out[2], fm_span a, fm_span b);
/* Tests: true: hash as on a CPU without SHA-NI. No hasher may be open, no other thread hashing. */
void fm_hash_plainly(bool plainly);

/* SHA-1, only for the checksums of git's own files. */
FM_CHECKED fm_status fm_sha1(uint8_t out[20], const void *data, size_t len);

typedef struct fm_hasher fm_hasher; /* incremental; one thread at a time */
FM_CHECKED fm_status fm_hasher_new(fm_hasher **out);
FM_CHECKED fm_status fm_hasher_update(fm_hasher *h, const void *data, size_t len);
/* Updates h by data, and sets *out to the digest of `other` alone; both at once, as above. */
FM_CHECKED fm_status fm_hasher_along(fm_hasher *h, fm_span data, fm_digest *out, fm_span other);
FM_CHECKED fm_status fm_hasher_final(fm_hasher *h, fm_digest *out); /* h then starts afresh */
/* h goes on where `from` is, whatever it was given before. */
FM_CHECKED fm_status fm_hasher_copy(fm_hasher *h, const fm_hasher *from);
/* The digest of all bytes so far; the caller may go on updating h. */
FM_CHECKED fm_status fm_hasher_peek(const fm_hasher *h, fm_digest *out);
void fm_hasher_free(fm_hasher *h);

/* Base64 (RFC 4648, padded); the result is appended to out. FM_ECORRUPT: text is not base64. */
FM_CHECKED fm_status fm_base64_encode(fm_buf *out, fm_span bytes);
FM_CHECKED fm_status fm_base64_decode(fm_buf *out, fm_span text);

int fm_digest_cmp(const fm_digest *a, const fm_digest *b);
static inline bool fm_digest_eq(const fm_digest *a, const fm_digest *b)
{
    return fm_digest_cmp(a, b) == 0;
}
bool fm_digest_is_zero(const fm_digest *d);
void fm_digest_hex(const fm_digest *d, char out[FM_HEX_CHARS + 1]); /* lower case */
bool fm_digest_parse(fm_digest *out, const char *hex, size_t len);  /* exactly 64 hex digits */

FM_END_DECLS
#endif
