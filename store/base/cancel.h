/* cancel.h - a request to stop, for the whole process: Ctrl-C of a command that leaves nothing half
 * done. Loops whose work grows with the bytes of an untrusted file look at this request. */
#ifndef FM_BASE_CANCEL_H
#define FM_BASE_CANCEL_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* true: fm_go_on fails in every thread from now on; false: no more (tests). Signal-safe. */
void fm_cancel(bool cancel);
/* FM_OK, or FM_ECANCELLED with its text after fm_cancel(true). Costs one load. */
FM_CHECKED fm_status fm_go_on(void);

FM_END_DECLS
#endif
