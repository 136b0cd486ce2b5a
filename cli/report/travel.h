/* travel.h - what fetch, pull, clone and push say at their end. */
#ifndef FM_CLI_TRAVEL_H
#define FM_CLI_TRAVEL_H

#include "cli/base/out.h"
#include "remote/remote.h"

/* One line to stderr: what travelled, or would. */
void report_travel(const fm_travel *t, bool dry_run, bool lineage_only);

#endif
