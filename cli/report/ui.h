/* ui.h - what operations tell, on a terminal: results to stdout, talk to stderr. */
#ifndef FM_CLI_UI_H
#define FM_CLI_UI_H

#include "cli/ops/ops.h"

extern const fm_ui cli_ui;

#endif
