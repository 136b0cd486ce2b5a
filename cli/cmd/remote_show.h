/* remote_show.h - `remote show` and `remote get-url`, for cmd/remote.c. */
#ifndef FM_CLI_REMOTE_SHOW_H
#define FM_CLI_REMOTE_SHOW_H

#include "cli/ops/remote.h"

fm_status remote_show(fm_ops *c, const char *name, bool json);
fm_status remote_get_url(fm_ops *c, const char *name);

#endif
