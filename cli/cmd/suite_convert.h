/* suite_convert.h - `suite convert`, for cmd/suite.c. */
#ifndef FM_CLI_SUITE_CONVERT_H
#define FM_CLI_SUITE_CONVERT_H

#include "cli/base/context.h"

/* argv is that of cmd_suite: "suite", .. "convert", FILE, options. */
int suite_convert(cli *c, int argc, char **argv);

#endif
