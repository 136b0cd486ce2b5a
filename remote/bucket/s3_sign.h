/* s3_sign.h - AWS Signature Version 4: the Authorization header of a request. Pure. */
#ifndef FM_REMOTE_BUCKET_S3_SIGN_H
#define FM_REMOTE_BUCKET_S3_SIGN_H

#include "store/base/buf.h"
#include "store/base/math/hash.h"

FM_BEGIN_DECLS

typedef struct fmr_sign {
    const char *access, *secret, *region, *service;
    const char *time;    /* "20130524T000000Z" */
    const char *method;  /* "GET" */
    const char *path;    /* escaped, as it is sent: "/a%20b" */
    const char *query;   /* escaped "k=v&l=", sorted by bytes; "" */
    const char *payload; /* hex SHA-256 of the body */
    struct fmr_sign_header {
        const char *name, *value; /* name: lower case */
    } header[8];                  /* sorted by name; name NULL ends them */
} fmr_sign;
/* Appends "AWS4-HMAC-SHA256 Credential=...". */
FM_CHECKED fm_status fmr_sign_v4(fm_buf *out, const fmr_sign *q);
FM_CHECKED fm_status fmr_hmac_sha256(fm_digest *out, fm_span key, fm_span text);

FM_END_DECLS
#endif
