/* socket.c - reads and writes file descriptors, and hears Ctrl-C while it waits. */
#include "remote/link/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/base/cancel.h"

#define LOOK_MS 200

static fm_status failed(const fmr_fds *f)
{
    if (errno == EPIPE || errno == ECONNRESET)
        return fm_fail(FM_EIO, "%s: the other side has closed the connection", f->peer);
    return fm_fail(FM_EIO, "%s: %s", f->peer, strerror(errno));
}

static fm_status wait_for(const fmr_fds *f, int fd, short what)
{
    struct pollfd p = {.fd = fd, .events = what};
    for (;;) {
        FM_TRY(fm_go_on());
        const int n = poll(&p, 1, LOOK_MS);
        if (n > 0)
            return FM_OK;
        if (n < 0 && errno != EINTR)
            return failed(f);
    }
}

static fm_status read_some(void *ctx, void *dst, size_t cap, size_t *got)
{
    const fmr_fds *f = ctx;
    *got = 0;
    for (;;) {
        FM_TRY(wait_for(f, f->in, POLLIN));
        const ssize_t n = read(f->in, dst, cap);
        if (n >= 0) {
            *got = (size_t)n;
            return FM_OK;
        }
        if (errno == ECONNRESET) /* it ended without reading all that we sent */
            return FM_OK;
        if (errno != EINTR && errno != EAGAIN)
            return failed(f);
    }
}

static fm_status write_all(void *ctx, const void *data, size_t len)
{
    const fmr_fds *f = ctx;
    const uint8_t *p = data;
    const bool socket = f->in == f->out;
    while (len > 0) {
        FM_TRY(wait_for(f, f->out, POLLOUT));
        const ssize_t n =
            socket ? send(f->out, p, len, MSG_NOSIGNAL | MSG_DONTWAIT) : write(f->out, p, len);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return failed(f);
        if (n > 0) {
            p += n;
            len -= (size_t)n;
        }
    }
    return FM_OK;
}

fmr_stream fmr_fds_stream(fmr_fds *fds)
{
    return (fmr_stream){fds, read_some, write_all, NULL};
}

fm_status fmr_socket_pair(int out[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) < 0)
        return fm_fail(FM_EIO, "a pair of sockets: %s", strerror(errno));
    return FM_OK;
}
