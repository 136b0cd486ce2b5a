/* socket.h - a stream over file descriptors: a socket to a thread or process of ours, or a
 * process's standard input and output. */
#ifndef FM_REMOTE_LINK_SOCKET_H
#define FM_REMOTE_LINK_SOCKET_H

#include "remote/wire/frame.h"

FM_BEGIN_DECLS

typedef struct fmr_fds {
    int in, out;      /* the same one for a socket */
    const char *peer; /* its name in errors, borrowed */
} fmr_fds;
/* Its ctx is `fds`, which is borrowed. A wait on a socket looks at fm_go_on five times a second. */
fmr_stream fmr_fds_stream(fmr_fds *fds);
/* Two connected sockets, closed on exec. */
FM_CHECKED fm_status fmr_socket_pair(int out[2]);

FM_END_DECLS
#endif
