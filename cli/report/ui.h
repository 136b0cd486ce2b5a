/* ui.h - the callbacks of the operations on a terminal: results to stdout, messages to stderr. */
#ifndef FM_CLI_UI_H
#define FM_CLI_UI_H

#include "cli/ops/ops.h"

extern const fm_ui cli_ui;

#endif
