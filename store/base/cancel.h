/* cancel.h - a request to stop, for the whole process: Ctrl-C. Loops whose work grows with what
 * they are given (bytes of a file, a text, a batch) look at this request. */
#ifndef FM_BASE_CANCEL_H
#define FM_BASE_CANCEL_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* true: fm_go_on fails in every thread from now on; false: no more (tests). Signal-safe. */
void fm_cancel(bool cancel);
/* FM_OK, or FM_ECANCELLED with its text after fm_cancel(true). Costs one load. */
FM_CHECKED fm_status fm_go_on(void);
/* The same for loops over positions or turns: looks at every 16,384th. *next is 0 at first. */
FM_CHECKED static inline fm_status fm_go_on_at(size_t at, size_t *next)
{
    if (at < *next)
        return FM_OK;
    *next = at + 16384;
    return fm_go_on();
}
/* true: the request waits, and fm_go_on does not fail, until the call with false: for what is to be
 * finished though the command stops, such as writing the state of a training. Nests. */
void fm_cancel_wait(bool wait);

FM_END_DECLS
#endif
