/* suite_edit.h - edits the suites of a branch's tip, as a commit, and finds the versions that
 * added, changed and waived each case. */
#ifndef FM_OPS_SUITE_EDIT_H
#define FM_OPS_SUITE_EDIT_H

#include "cli/ops/version/version_tree.h"

/* An edit of the files under suites/ on top of a branch's tip. */
typedef struct fmo_suite_edit {
    fm_ops *c;
    const char *branch;
    fm_oid old;
    fm_tree *before, *tree; /* the tip's tree; the edited one */
    fm_txn *txn;
} fmo_suite_edit;
fm_status fmo_suite_edit_open(fmo_suite_edit *e, fm_ops *c, const char *branch);
/* Checks the edited suites and moves the branch; *same: they are as before, and no commit was made.
 * message: subject, and the body after an empty line. */
fm_status fmo_suite_edit_land(fmo_suite_edit *e, const char *message, bool *same);
void fmo_suite_edit_close(fmo_suite_edit *e);

/* Finds "SUITE/CASE" in set. FM_ENOTFOUND names the suite or case that is missing. */
fm_status fmo_suite_case_find(const fm_suite_set *set, const char *word, size_t *suite, size_t *at);

typedef struct fmo_waive_words {
    const char *branch, *which; /* which: "SUITE/CASE" */
    const char *reason, *until, *owner;
} fmo_waive_words;
fm_status fmo_suite_waive(fm_ops *c, const fmo_waive_words *w);
fm_status fmo_suite_unwaive(fm_ops *c, const char *branch, const char *which);

/* The effective cases of one suite of a version, and the versions that made them so. */
typedef struct fmo_suite_origins fmo_suite_origins;
typedef struct fmo_suite_origin {
    const char *name;
    const fm_version *added, *changed, *waived; /* changed, waived: NULL = it was not */
    const fm_waiver *waiver;
} fmo_suite_origin;
/* suite is borrowed; close also after a failure. */
fm_status fmo_suite_origins_open(fmo_suite_origins **out, fm_ops *c, const char *rev,
                                 const char *suite);
const fm_suite *fmo_suite_origins_suite(const fmo_suite_origins *h);
/* The origin of case i; its pointers are borrowed from h. */
fm_status fmo_suite_origin_of(fmo_suite_origins *h, size_t i, fmo_suite_origin *out);
void fmo_suite_origins_close(fmo_suite_origins *h); /* NULL is a no-op */

#endif
