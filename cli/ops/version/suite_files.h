/* suite_files.h - the suites of a tree: files under suites/, what changes them beside them, waivers
 * that come to their end, the union that a merge makes. */
#ifndef FM_OPS_SUITE_FILES_H
#define FM_OPS_SUITE_FILES_H

#include "cli/ops/land.h"

/* Suites of a tree, parsed with their changes; for fm_suite_set_free. Waivers whose day has passed are
 * over; those until a revision are for fmo_suites_end_waivers. */
fm_status fmo_suites_of(fm_ops *c, const fm_tree *tree, fm_suite_set *out);
/* Waivers until a revision that version `at` has among its ancestors, or is, are over. at NULL:
 * those whose day has passed. */
fm_status fmo_suites_end_waivers(fm_ops *c, const fm_suite_set *s, const fm_oid *at);
/* As it stands in a waiver: FM_EINVAL when it is over already, or is no date and no revision's
 * name. A name that is not there yet is fine. */
fm_status fmo_waiver_until_check(fm_ops *c, const char *until, const fm_oid *at);

/* The files themselves. */
typedef struct fmo_suite_file {
    char *path; /* "suites/facts.yaml", "suites/facts.waivers.yaml" */
    fm_buf text;
} fmo_suite_file;
typedef struct fmo_suite_files {
    fmo_suite_file *file;
    size_t count, cap;
} fmo_suite_files;
fm_status fmo_suite_files_of(fm_ops *c, const fm_tree *tree,
                             fmo_suite_files *out); /* tree NULL: none */
/* A file of the user's, at the place that its contents give it; it replaces what is there. */
fm_status fmo_suite_files_put(fmo_suite_files *f, const char *path);
fm_status fmo_suite_files_parse(const fmo_suite_files *f, fm_suite_set *out);
void fmo_suite_files_release(fmo_suite_files *f);

/* Before any work: is each file a suite, or what changes one? So that hours of training do not
 * end at a typing error. */
fm_status fmo_suite_files_check(const fm_words *files);
/* The same together with what the tree carries; tree may be NULL. */
fm_status fmo_suite_files_check_with(fm_ops *c, const fm_tree *tree, const fm_words *files);

/* What a merge carries: the union of its parents' files under suites/. dst holds the first
 * parent's (or nothing) and gets the others'. A file that one side has left as it was at the
 * merge base is taken from the side that changed it, its removal too. Both changed it:
 * FM_ECONFLICT names the file and what to do; with first_wins the first parent's stays, and a
 * note says so. */
fm_status fmo_tree_merge_suites(fm_ops *c, fm_tree *dst, const fm_oid *parent, size_t parents,
                                bool first_wins);

#endif
