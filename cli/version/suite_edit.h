/* suite_edit.h - what 'fmstore suite' does beside listing: an edit of a branch's tip as a
 * commit, and who made each case what it is. */
#ifndef FM_CLI_SUITE_EDIT_H
#define FM_CLI_SUITE_EDIT_H

#include "cli/version/version_tree.h"

/* An edit of the files under suites/ on top of a branch's tip. */
typedef struct suite_edit {
    cli *c;
    const char *branch;
    fm_oid old;
    fm_tree *before, *tree; /* of the tip; tree is changed */
    fm_txn *txn;
} suite_edit;
fm_status suite_edit_open(suite_edit *e, cli *c, const char *branch);
/* Checks what the suites have become and moves the branch; *same: nothing had changed, nothing was
 * done. message: subject, and the body after an empty line. */
fm_status suite_edit_land(suite_edit *e, const char *message, bool *same);
void suite_edit_close(suite_edit *e);

/* "SUITE/CASE" of suites. FM_ENOTFOUND names what is missing. */
fm_status suite_case_find(const suite_set *set, const char *word, size_t *suite, size_t *at);

typedef struct waive_words {
    const char *branch, *which; /* which: "SUITE/CASE" */
    const char *reason, *until, *owner;
} waive_words;
fm_status suite_waive(cli *c, const waive_words *w);
fm_status suite_unwaive(cli *c, const char *branch, const char *which);

/* Effective cases of one suite and the versions that added, changed and waived them. */
fm_status suite_show(cli *c, const char *rev, const char *suite, bool json);

#endif
