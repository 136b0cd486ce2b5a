/* s3_keys.h - where S3 is and who asks, as AWS's own programs find it out: the environment
 * (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION,
 * AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL), then the profile AWS_PROFILE (else "default") of
 * ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE). */
#ifndef FM_REMOTE_BUCKET_S3_KEYS_H
#define FM_REMOTE_BUCKET_S3_KEYS_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

typedef struct fmr_s3_keys {
    char *access, *secret; /* NULL: none; requests are not signed */
    char *token;           /* NULL: none */
    char *region;
    char *endpoint; /* NULL: AWS's own */
} fmr_s3_keys;
/* FM_EREFUSED: the profile of AWS_PROFILE is in neither file, or half of a key is set. */
FM_CHECKED fm_status fmr_s3_keys_read(fmr_s3_keys *out);
void fmr_s3_keys_release(fmr_s3_keys *k);
/* The value of a key in a section of such a file; NULL: it is not there. fm_free. */
char *fmr_ini_value(fm_span text, const char *section, const char *key);

FM_END_DECLS
#endif
