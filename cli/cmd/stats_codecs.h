/* stats_codecs.h - stats --codecs: how objects are stored, and why. */
#ifndef FM_CLI_STATS_CODECS_H
#define FM_CLI_STATS_CODECS_H

#include "cli/base/context.h"

/* Of the whole store: per way of making and codec the objects, their bytes, what they take. */
fm_status stats_of_codecs(cli *c, bool json);
/* Of one version: each tensor with its codecs, recipe, parents (as BRANCH:path where a branch has
 * them) and the reason. */
fm_status stats_of_version(cli *c, const char *rev, bool json);

#endif
