/* manifest.h - the one object of a bucket that changes: its refs, and the names of its packs.
 * README.md has its fields. Pure: a fuzzer can call it. */
#ifndef FM_REMOTE_BUCKET_MANIFEST_H
#define FM_REMOTE_BUCKET_MANIFEST_H

#include "lineage/lineage.h"
#include "store/base/math/hash.h"

FM_BEGIN_DECLS

#define FMR_MANIFEST_VERSION 1
#define FMR_MANIFEST_MAX ((size_t)64 << 20) /* bytes */
#define FMR_REF_NAME_MAX 255u
#define FMR_HEADS_MAX ((uint64_t)64 << 20) /* of one pack; that of the largest tensor has 40 MiB */
#define FMR_GIT_PACK_MAX ((uint64_t)256 << 20)

typedef struct fmr_manifest {
    struct fmr_bucket_ref {
        char *name;
        fm_oid oid, peeled; /* peeled: as fm_exchange_ref_fn has it */
    } * ref;
    struct fmr_bucket_pack {
        fm_digest name, heads; /* SHA-256 of both files */
        uint64_t bytes, heads_bytes;
        bool gone; /* not written: the pack is not there any more */
    } * pack;
    struct fmr_bucket_git {
        fm_digest name;
        uint64_t bytes;
        fm_oid *tip; /* what the pack was made for: once these are here, all of it is */
        size_t tips;
    } * git;
    size_t refs, packs, gits, ref_cap, pack_cap, git_cap;
} fmr_manifest;

/* FM_ECORRUPT names the field; FM_EVERSION: a newer fmstore wrote it. *out is released after a
 * failure too. */
FM_CHECKED fm_status fmr_manifest_parse(fmr_manifest *out, fm_span text, const char *what);
FM_CHECKED fm_status fmr_manifest_write(const fmr_manifest *m, fm_buf *out);
void fmr_manifest_release(fmr_manifest *m);

struct fmr_bucket_ref *fmr_manifest_ref(const fmr_manifest *m, const char *name); /* NULL: none */
/* Sets a ref; oid zeros: removes it. */
FM_CHECKED fm_status fmr_manifest_set_ref(fmr_manifest *m, const char *name, const fm_oid *oid,
                                          const fm_oid *peeled);
/* A pack that is named already is not added again. */
FM_CHECKED fm_status fmr_manifest_add_pack(fmr_manifest *m, const struct fmr_bucket_pack *p);
FM_CHECKED fm_status fmr_manifest_add_git(fmr_manifest *m, const fm_digest *name, uint64_t bytes,
                                          const fm_oid *tip, size_t tips);
bool fmr_oid_parse(fm_oid *out, fm_span hex);

FM_END_DECLS
#endif
