/* gc_words.h - a run of gc or repack, and what it did, for people and for scripts. */
#ifndef FM_CLI_GC_WORDS_H
#define FM_CLI_GC_WORDS_H

#include "cli/base/context.h"

/* What gc and repack have in common once their options are read: opens the repository, runs with progress
 * ("<doing> 3 of 8 GB") until done or interrupted, and tells as JSON or by print. Returns the exit code. */
int gc_run(cli *c, fm_gc_opts *opts, const char *doing, bool json,
           fm_status (*print)(const fm_gc_report *r, bool dry_run));

fm_status gc_print(const fm_gc_report *r, bool dry_run);
fm_status repack_print(const fm_gc_report *r, bool dry_run);
fm_status gc_json(const fm_gc_report *r, bool dry_run);

#endif
