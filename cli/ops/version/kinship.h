/* kinship.h - whether a model can have been made from the version that is named as its parent. */
#ifndef FM_OPS_KINSHIP_H
#define FM_OPS_KINSHIP_H

#include "cli/ops/import.h"
#include "store/tree.h"

/* Compares names, shapes and ids of all tensors and values of some matrices. A contradiction is a
 * note that has the figures. FM_EBASE: not one tensor fits. Edges whose child need not hold its
 * parent's weights (distill, prune, retrieval) are counted and not judged. p: of child. */
fm_status fmo_kinship(fm_ops *c, const fm_tree *child, const fm_provider *p, const fm_tree *parent,
                      const fm_import_opts *o, fm_import_kin *out);

#endif
