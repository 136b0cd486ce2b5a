/* sha256_ni.h - SHA-256's compression of one stream or of two interleaved, on x86 processors with
 * the SHA extensions. A round waits for the round before it, so one stream leaves half of the unit
 * idle: two take hardly longer than one. Inside store/base only; hash.h is the door. */
#ifndef FM_BASE_SHA256_NI_H
#define FM_BASE_SHA256_NI_H

#include "store/base/fm.h"

#include <stddef.h>
#include <stdint.h>

typedef struct fmb_sha {
    uint32_t h[8];
    uint8_t part[64]; /* the first bytes % 64 bytes of the block that is begun */
    uint64_t bytes;
} fmb_sha;

bool fmb_sha_usable(void); /* false: the functions below must not be called */
void fmb_sha_init(fmb_sha *s);
void fmb_sha_update(fmb_sha *s, const uint8_t *p, size_t len);
/* Updates both at once; a and b must be different objects. */
void fmb_sha_update_two(fmb_sha *a, const uint8_t *p, size_t p_len, fmb_sha *b, const uint8_t *q,
                        size_t q_len);
void fmb_sha_final(const fmb_sha *s, uint8_t out[32]);

#endif
