/* fsck_version.h - what fsck asks of a version beside what lineage and store can judge: does the
 * engine take its model, do its suites and its recipe read? */
#ifndef FM_OPS_FSCK_VERSION_H
#define FM_OPS_FSCK_VERSION_H

#include "cli/ops/ops.h"
#include "store/base/map.h"

typedef struct fmo_fsck_versions {
    fm_ops *c;
    fm_map *suites; /* digests of the sets of suites that were read */
} fmo_fsck_versions;

/* An fm_fsck_version_fn but for the ctx. No weight is read and no tokenizer is made. */
fm_status fmo_fsck_version(fmo_fsck_versions *s, const fm_version *v, const fm_tree *tree);

#endif
