/* door.h - the objects of a bucket by their names, wherever they lie: a folder, S3, a static file
 * server. Names are made by this program ("packs/<digest>.pack"), never taken from what the other
 * side wrote. A door belongs to one thread; fmr_door_again opens another one to the same place. */
#ifndef FM_REMOTE_BUCKET_DOOR_H
#define FM_REMOTE_BUCKET_DOOR_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

#define FMR_TAG_MAX 160u     /* what a compare-and-swap compares, with its NUL; S3: the ETag */
#define FMR_PARTS_MAX 10000u /* of one upload; S3 has this limit */

typedef struct fmr_door fmr_door;

/* An upload in parts of the same size, but for the last one. */
typedef struct fmr_upload {
    const char *name; /* of the object, borrowed; where names may be late, finish reads it first */
    uint64_t bytes, part_bytes;
    char *id;     /* S3's; NULL: begun by the first part */
    size_t count; /* of parts */
    struct fmr_upload_part {
        char tag[FMR_TAG_MAX];
        bool there;
    } * part;
    void *state; /* the folder's writer */
} fmr_upload;

typedef fm_status (*fmr_listed_fn)(void *ctx, const char *name, uint64_t bytes);

typedef struct fmr_door_ops {
    /* Appends the whole object (bytes 0), at most out->max of it, or exactly its part. tag (may be
     * NULL) is that of the whole. FM_ENOTFOUND; FM_ECORRUPT: shorter than the part asked for. */
    FM_CHECKED fm_status (*get)(fmr_door *d, const char *name, uint64_t from, uint64_t bytes,
                                fm_buf *out, char tag[FMR_TAG_MAX]);
    /* The rest is NULL where a place can only be read.
     * old NULL: whatever is there; "": where none is there; else over the one with this tag.
     * FM_ECONFLICT: another one is there. */
    FM_CHECKED fm_status (*put)(fmr_door *d, const char *name, fm_span body, const char *old);
    /* The names in a folder ("packs/"), and their sizes. */
    FM_CHECKED fm_status (*list)(fmr_door *d, const char *folder, fmr_listed_fn fn, void *ctx);
    /* Finds out which parts an upload that was cut has left. */
    FM_CHECKED fm_status (*begin)(fmr_door *d, fmr_upload *u);
    FM_CHECKED fm_status (*part)(fmr_door *d, fmr_upload *u, size_t i, fm_span bytes);
    FM_CHECKED fm_status (*finish)(fmr_door *d, fmr_upload *u);
    void (*drop)(fmr_door *d, fmr_upload *u); /* of an upload that is not finished; may be NULL */
    FM_CHECKED fm_status (*again)(fmr_door *d, fmr_door **out);
    void (*close)(fmr_door *d);
} fmr_door_ops;

struct fmr_door {
    const fmr_door_ops *ops;
    char *shown;               /* the place, for errors: without credentials */
    unsigned workers;          /* that make requests at once */
    bool late_names;           /* an upload need not know the object's name before it is finished */
    _Atomic(uint64_t) in, out; /* bytes of objects that came and went */
};

#define FMR_MANIFEST_NAME "fmstore-bucket.json"

FM_CHECKED fm_status fmr_door_folder(fmr_door **out, const char *dir);
FM_CHECKED fm_status fmr_door_http(fmr_door **out, const char *url, const char *ca_file);
/* Credentials, region and endpoint are those of the environment and of ~/.aws (s3_keys.h). */
FM_CHECKED fm_status fmr_door_s3(fmr_door **out, const char *bucket, const char *prefix);

FM_CHECKED fm_status fmr_upload_init(fmr_upload *u, const char *name, uint64_t bytes,
                                     uint64_t part_bytes);
void fmr_upload_release(fmr_upload *u);
uint64_t fmr_upload_part_bytes(const fmr_upload *u, size_t i);

FM_END_DECLS
#endif
