/* stats_codecs.h - stats --codecs: the codecs of objects, and the reasons. */
#ifndef FM_CLI_STATS_CODECS_H
#define FM_CLI_STATS_CODECS_H

#include "cli/base/context.h"

/* Prints for the whole store, by prediction and codec: objects, their bytes, their bytes on
 * disk. */
fm_status stats_of_codecs(cli *c, bool json);
/* Prints for one version each tensor with its codecs, recipe, parents (as BRANCH:path if a branch
 * has them) and the reason. */
fm_status stats_of_version(cli *c, const char *rev, bool json);

#endif
