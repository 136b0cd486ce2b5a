/* gc_words.h - what a run of gc or repack did, for people and for scripts. */
#ifndef FM_CLI_GC_WORDS_H
#define FM_CLI_GC_WORDS_H

#include "cli/context.h"

fm_status gc_print(const fm_gc_report *r, bool dry_run);
fm_status repack_print(const fm_gc_report *r, bool dry_run);
fm_status gc_json(const fm_gc_report *r, bool dry_run);

#endif
