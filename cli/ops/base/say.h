/* say.h - messages of the operations: all go through the handle's table of callbacks. */
#ifndef FM_OPS_SAY_H
#define FM_OPS_SAY_H

#include "cli/ops/ops.h"

/* Reports one line or several; drops a newline at the end. */
void fmo_ui_say(const fm_ops *c, fm_ui_level level, const char *fmt, ...) FM_PRINTF(3, 4);
/* Reports the text of a buffer and releases it; nothing if the buffer has failed. */
void fmo_ui_say_buf(const fm_ops *c, fm_ui_level level, fm_buf *text);
/* True: the operation's caller wants it to stop; c->stopped is then set. */
bool fmo_ui_progress(fm_ops *c, uint64_t done, uint64_t total, const char *fmt, ...)
    FM_PRINTF(4, 5);
/* The same for work measured in bytes; verb: "storing". */
bool fmo_ui_progress_bytes(fm_ops *c, uint64_t done, uint64_t total, const char *verb);
void fmo_ui_progress_end(const fm_ops *c);
/* FM_ECANCELLED once c->stopped is set. */
fm_status fmo_ui_go_on(const fm_ops *c);
/* Reports a result unless rc is a failure; consumes value. */
void fmo_ui_result(const fm_ops *c, const char *kind, fm_json *value, fm_status rc);
/* Makes hostile text safe to show: characters that control the terminal or the writing direction
 * become visible. Cut at max bytes (500 at most) with an ellipsis; in a ring of buffers. */
const char *fmo_ui_shown(const char *s, size_t max);
/* One character of s: itself, or an escape. Returns the length in out; *used: its bytes in s. */
size_t fmo_ui_show_char(char out[8], const char *s, size_t left, size_t *used);

#endif
