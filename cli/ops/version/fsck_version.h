/* fsck_version.h - fsck's checks of a version beyond those of lineage and store: whether the engine
 * takes its model, and whether its suites and recipe can be read. */
#ifndef FM_OPS_FSCK_VERSION_H
#define FM_OPS_FSCK_VERSION_H

#include "cli/ops/ops.h"
#include "store/base/map.h"

typedef struct fmo_fsck_versions {
    fm_ops *c;
    fm_map *suites; /* digests of the sets of suites already read */
} fmo_fsck_versions;

/* An fm_fsck_version_fn but for the type of ctx. Reads no weight and makes no tokenizer. */
fm_status fmo_fsck_version(fmo_fsck_versions *s, const fm_version *v, const fm_tree *tree);

#endif
