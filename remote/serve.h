/* serve.h - this repository as a remote: answers another fmstore on two file descriptors. */
#ifndef FM_REMOTE_SERVE_H
#define FM_REMOTE_SERVE_H

#include "lineage/lineage.h"

FM_BEGIN_DECLS

/* Answers until `in` ends. write: versions may be pushed. A request that fails is told to the other
 * side, and returned. */
FM_CHECKED fm_status fm_remote_serve(fm_repo *r, bool write, int in, int out);

FM_END_DECLS
#endif
