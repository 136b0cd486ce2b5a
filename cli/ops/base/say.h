/* say.h - how the operations speak: every word goes through the handle's table of callbacks. */
#ifndef FM_OPS_SAY_H
#define FM_OPS_SAY_H

#include "cli/ops/ops.h"

/* Lines; a newline at the end of the last one is taken away. */
void fmo_ui_say(const fm_ops *c, fm_ui_level level, const char *fmt, ...) FM_PRINTF(3, 4);
/* The same of a buffer; releases it. One that failed says nothing. */
void fmo_ui_say_buf(const fm_ops *c, fm_ui_level level, fm_buf *text);
/* True: the caller of the operation wants it to stop; c->stopped keeps it. */
bool fmo_ui_progress(fm_ops *c, uint64_t done, uint64_t total, const char *fmt, ...)
    FM_PRINTF(4, 5);
/* The same of work whose size is known in bytes; verb: "storing". */
bool fmo_ui_progress_bytes(fm_ops *c, uint64_t done, uint64_t total, const char *verb);
void fmo_ui_progress_end(const fm_ops *c);
/* FM_ECANCELLED once fmo_ui_progress was told to stop. */
fm_status fmo_ui_go_on(const fm_ops *c);
/* Consumes value; nothing where rc has failed. */
void fmo_ui_result(const fm_ops *c, const char *kind, fm_json *value, fm_status rc);
/* Text of a stranger: what would steer the terminal or turn the writing's direction is made visible.
 * Cut at max bytes (500 at most) with an ellipsis; in a ring of buffers. */
const char *fmo_ui_shown(const char *s, size_t max);
/* One character of s so: itself, or an escape of its bytes. Returns its length; *used: its bytes. */
size_t fmo_ui_show_char(char out[8], const char *s, size_t left, size_t *used);

#endif
