/* suite_files.h - the suites of a tree: files under suites/ and the files that change them, waivers
 * that expire, the union in a merge. */
#ifndef FM_OPS_SUITE_FILES_H
#define FM_OPS_SUITE_FILES_H

#include "cli/ops/land.h"

/* Reads the suites of a tree with their changes; the caller calls fm_suite_set_free. Waivers until
 * a day in the past are ended; those until a revision are left to fmo_suites_end_waivers. */
fm_status fmo_suites_of(fm_ops *c, const fm_tree *tree, fm_suite_set *out);
/* Ends the waivers until a revision that is version `at` or an ancestor of it. at NULL: ends those
 * until a day in the past. */
fm_status fmo_suites_end_waivers(fm_ops *c, const fm_suite_set *s, const fm_oid *at);
/* Checks a waiver's `until`. FM_EINVAL: it has passed, or is neither a date nor a revision's name.
 * A name that does not exist yet is accepted. */
fm_status fmo_waiver_until_check(fm_ops *c, const char *until, const fm_oid *at);

typedef struct fmo_suite_file {
    char *path; /* "suites/facts.yaml", "suites/facts.waivers.yaml" */
    fm_buf text;
} fmo_suite_file;
typedef struct fmo_suite_files {
    fmo_suite_file *file;
    size_t count, cap;
} fmo_suite_files;
/* tree NULL: no files. */
fm_status fmo_suite_files_of(fm_ops *c, const fm_tree *tree, fmo_suite_files *out);
/* Adds a user's file under the path that its contents give it; replaces a file there. */
fm_status fmo_suite_files_put(fmo_suite_files *f, const char *path);
fm_status fmo_suite_files_parse(const fmo_suite_files *f, fm_suite_set *out);
void fmo_suite_files_release(fmo_suite_files *f);

/* Checks before any work that each file is a suite or changes one, so that hours of training do not
 * end at a typing error. */
fm_status fmo_suite_files_check(const fm_words *files);
/* The same check together with the tree's own suites; tree may be NULL. */
fm_status fmo_suite_files_check_with(fm_ops *c, const fm_tree *tree, const fm_words *files);

/* Merges the files under suites/ of all parents into dst, which holds the first parent's (or none).
 * A file that only one side changed since the merge base is taken from that side, also its removal.
 * If both changed it: FM_ECONFLICT names the file and what to do; with first_wins the first
 * parent's file stays, and a note names it. */
fm_status fmo_tree_merge_suites(fm_ops *c, fm_tree *dst, const fm_oid *parent, size_t parents,
                                bool first_wins);

#endif
