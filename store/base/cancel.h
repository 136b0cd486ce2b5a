/* cancel.h - a request to stop, for the whole process: Ctrl-C of a command that leaves nothing half
 * done. Work that grows with a stranger's bytes looks at it in its loops. */
#ifndef FM_BASE_CANCEL_H
#define FM_BASE_CANCEL_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* From now on fm_go_on refuses, in every thread. May be called by a signal handler. false takes it
 * back (tests). */
void fm_cancel(bool cancel);
/* FM_OK, or FM_ECANCELLED with its text. As cheap as one load. */
FM_CHECKED fm_status fm_go_on(void);

FM_END_DECLS
#endif
