/* gc_words.h - runs gc or repack and reports what it did, as text or JSON. */
#ifndef FM_CLI_GC_WORDS_H
#define FM_CLI_GC_WORDS_H

#include "cli/base/context.h"

/* The common part of gc and repack, after their options are read: opens the repository, runs with
 * progress ("<doing> 3 of 8 GB") until done or interrupted, and reports as JSON or by print.
 * Returns the exit code. */
int gc_run(cli *c, fm_gc_opts *opts, const char *doing, bool json,
           fm_status (*print)(const fm_gc_report *r, bool dry_run));

fm_status gc_print(const fm_gc_report *r, bool dry_run);
fm_status repack_print(const fm_gc_report *r, bool dry_run);
fm_status gc_json(const fm_gc_report *r, bool dry_run);

#endif
