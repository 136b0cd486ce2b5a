/* bucket.h - the far side as files: a repository's packs in object storage, in a folder, or behind
 * any static file server (README.md). No program answers there, so this one decides what another
 * fmstore would: which refs may move, and what travels. */
#ifndef FM_REMOTE_BUCKET_BUCKET_H
#define FM_REMOTE_BUCKET_BUCKET_H

#include "remote/wire/far.h"

FM_BEGIN_DECLS

bool fmr_is_bucket(const char *dir); /* a folder that holds one */
/* All: FM_ENOTFOUND: no bucket is there (S3: for reading; the first push makes one). */
FM_CHECKED fm_status fmr_open_bucket_folder(fmr_far **out, const char *dir, fmr_service service);
/* FM_EREFUSED: for writing. */
FM_CHECKED fm_status fmr_open_bucket_http(fmr_far **out, const char *url, fmr_service service,
                                          const char *ca_file); /* NULL: the system's */
FM_CHECKED fm_status fmr_open_bucket_s3(fmr_far **out, const char *bucket, const char *prefix,
                                        fmr_service service);

FM_END_DECLS
#endif
