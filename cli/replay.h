/* replay.h - a version trained again from its recipe, and compared with what is stored. */
#ifndef FM_CLI_REPLAY_H
#define FM_CLI_REPLAY_H

#include "cli/context.h"

typedef struct replay_report {
    size_t tensors; /* that the training made */
    size_t differ;  /* of those and of what it leaves alone */
    fm_json *paths; /* of the first REPLAY_PATHS that differ; owned */
    bool log_same;  /* loss, gradient norm and rate of each step */
    uint32_t steps;
    double seconds;
} replay_report;
#define REPLAY_PATHS 1000u

/* label: for progress and errors. FM_EUNSUPPORTED: it has no recipe of a training, or this machine
 * computes in another kernel class; FM_ECORRUPT: data or parent are not those of the recipe. */
fm_status replay_version(cli *c, const fm_oid *oid, const char *label, replay_report *out);
void replay_report_release(replay_report *r);
bool replay_equal(const replay_report *r);
/* *yes: the version says by its recipe that a training made it. */
fm_status replay_can(cli *c, const fm_oid *oid, bool *yes);

#endif
