/* named.h - versions that a version names by their ids, not as parents: recipe.json (a teacher, a
 * merge's base, what a repair was made of) and the files under suites/ (judges, embedders,
 * classifiers, baselines). */
#ifndef FM_LINEAGE_NAMED_H
#define FM_LINEAGE_NAMED_H

#include "lineage/internal.h"

typedef struct fml_named {
    /* recipe.json, suites/ and what lies in it, each before it is read; *yes false: it is not. */
    fm_status (*enter)(void *ctx, const git_oid *id, bool *yes);
    /* 40 hex digits that stand alone in such a file, or the 7 to 39 of a suite's `baseline`. key:
     * whose value they are, where it is one that asks for a version; else NULL: they may be
     * anything. */
    fm_status (*name)(void *ctx, const char *path, fm_span hex, const char *key);
    void *ctx;
} fml_named;

/* tree: a model's whole. Each file is read as a stream of bytes, whatever its size, from git or
 * from the store. FM_ENOTFOUND, FM_ECORRUPT: one of them cannot be read. */
FM_CHECKED fm_status fml_named_each(fm_repo *r, const git_oid *tree, const fml_named *v);
/* The version or tree that these digits name. *there false: none is here, or they fit several.
 * Packs that came since the last git_odb_refresh are not asked. */
FM_CHECKED fm_status fml_named_find(fm_repo *r, fm_span hex, git_oid *out, bool *there);
/* The object that a file of a model points at. False: it is no pointer. */
bool fml_pointer_of(fm_digest *out, bool *is_tensor, fm_span file);

#endif
