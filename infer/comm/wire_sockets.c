/* wire_sockets.c - a host wire: stream sockets between processes of one host, or threads.
 *
 * Each message is a header (size in bytes, number on this connection) and its bytes. Sends and
 * receives of an exchange run in parallel, so no order of ranks can deadlock. A header that does
 * not match shows that the ranks do different things, before anything is computed from the message;
 * breaking off discards it. A closed connection means that the peer is gone. A rank that breaks off
 * fills up the message that it is sending with zeros, sends its status message with a header of its
 * own and reads on to its peer's. */
#include "infer/comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define TICK_MS 1000
#define WORD UINT64_MAX /* header.bytes of the status message of a rank that breaks off */

typedef struct header {
    uint64_t bytes, number;
} header;

typedef struct way { /* one direction of a connection, in the exchange in hand */
    uint64_t number; /* of the next message, counted from the beginning */
    uint32_t at;     /* index of its move; the list's length: none left */
    size_t done;     /* bytes moved, header included */
    header head;
    enum { OPEN, AT_WORD, PAST_WORD } ends; /* breaking off: its word is next, or done */
} way;

typedef struct sockets {
    fm_wire wire; /* first */
    int *fd;      /* [size] */
    way *in, *out;
    struct pollfd *poll;
    uint32_t *polled; /* [size] the peers that poll's entries are of */
} sockets;

static void close_sockets(fm_wire *w)
{
    sockets *s = (sockets *)(void *)w;
    for (uint32_t i = 0; s->fd && i < w->size; i++)
        if (i != w->rank && s->fd[i] >= 0)
            (void)close(s->fd[i]);
    fm_free(s->fd);
    fm_free(s->in);
    fm_free(s->out);
    fm_free(s->poll);
    fm_free(s->polled);
    fm_free(s);
}

/* The next move of a direction to or from peer, from place `at` of the list on. */
static uint32_t next_move(const fm_move *list, uint32_t n, uint32_t at, uint32_t peer, bool send)
{
    while (at < n && (list[at].peer != peer || list[at].send != send))
        at++;
    return at;
}

static fm_status gone(uint32_t peer)
{
    return fm_fail(FM_EIO, "rank %u is gone, or gave up", peer);
}

static fm_status silent(const sockets *s)
{
    return fm_fail(FM_EIO, "rank %u says nothing for %.0f s", s->polled[0], s->wire.step_timeout_s);
}

/* Closes all connections, so that the other ranks notice a permanent failure. */
static void shut_down(const sockets *s)
{
    for (uint32_t i = 0; i < s->wire.size; i++)
        if (i != s->wire.rank)
            (void)shutdown(s->fd[i], SHUT_RDWR);
}

/* Sends what the socket takes now. *moved: some bytes were sent. */
static fm_status push(sockets *s, uint32_t peer, const fm_move *list, uint32_t n, bool *moved)
{
    way *w = &s->out[peer];
    while (w->at < n) {
        const fm_move *m = &list[w->at];
        if (w->done == 0)
            w->head = (header){m->bytes, w->number};
        struct iovec part[2] = {{&w->head, sizeof(header)}, {m->ptr, m->bytes}};
        struct msghdr msg = {.msg_iov = part, .msg_iovlen = 2};
        if (w->done < sizeof(header)) {
            part[0].iov_base = (uint8_t *)&w->head + w->done;
            part[0].iov_len -= w->done;
        } else {
            part[1].iov_base = (uint8_t *)m->ptr + (w->done - sizeof(header));
            part[1].iov_len -= w->done - sizeof(header);
            msg.msg_iov = part + 1;
            msg.msg_iovlen = 1;
        }
        ssize_t k = sendmsg(s->fd[peer], &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FM_OK;
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return gone(peer);
        *moved = true;
        w->done += (size_t)k;
        if (w->done == sizeof(header) + m->bytes) {
            w->number++;
            w->done = 0;
            w->at = next_move(list, n, w->at + 1, peer, true);
        }
    }
    return FM_OK;
}

static fm_status check_header(const way *w, const fm_move *m, uint32_t peer)
{
    if (w->head.bytes == m->bytes && w->head.number == w->number)
        return FM_OK;
    return fm_fail(
        FM_ECORRUPT,
        "rank %u sends message %llu of %llu bytes where message %llu of %zu bytes is due: "
        "the ranks do not do the same",
        peer, (unsigned long long)w->head.number, (unsigned long long)w->head.bytes,
        (unsigned long long)w->number, m->bytes);
}

static fm_status pull(sockets *s, uint32_t peer, const fm_move *list, uint32_t n, bool *moved)
{
    way *w = &s->in[peer];
    while (w->at < n) {
        const fm_move *m = &list[w->at];
        bool head = w->done < sizeof(header);
        size_t body = head ? 0 : w->done - sizeof(header);
        uint8_t *to = head ? (uint8_t *)&w->head + w->done : (uint8_t *)m->ptr + body;
        ssize_t k =
            recv(s->fd[peer], to, head ? sizeof(header) - w->done : m->bytes - body, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FM_OK;
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return gone(peer);
        *moved = true;
        w->done += (size_t)k;
        if (w->done == sizeof(header) && w->head.bytes == WORD) {
            w->ends = AT_WORD;
            s->wire.broken = true;
            return fm_fail(FM_EIO, "rank %u has broken off", peer);
        }
        if (w->done == sizeof(header)) {
            fm_status rc = check_header(w, m, peer);
            s->wire.differs = rc != FM_OK;
            if (rc != FM_OK)
                return rc;
        }
        if (w->done == sizeof(header) + m->bytes) {
            w->number++;
            w->done = 0;
            w->at = next_move(list, n, w->at + 1, peer, false);
        }
    }
    return FM_OK;
}

/* Fills s->poll with the connections that still have bytes to move. */
static uint32_t fill_poll(sockets *s, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->wire.size; i++) {
        short events = 0;
        if (i != s->wire.rank && s->in[i].at < n)
            events |= POLLIN;
        if (i != s->wire.rank && s->out[i].at < n)
            events |= POLLOUT;
        if (!events)
            continue;
        s->poll[count] = (struct pollfd){.fd = s->fd[i], .events = events};
        s->polled[count++] = i;
    }
    return count;
}

static fm_status go_on(sockets *s, const fm_move *list, uint32_t n, uint32_t count, bool *moved)
{
    for (uint32_t k = 0; k < count; k++) {
        uint32_t peer = s->polled[k];
        if (!s->poll[k].revents)
            continue;
        FM_TRY(pull(s, peer, list, n, moved));
        FM_TRY(push(s, peer, list, n, moved));
        if ((s->poll[k].revents & (POLLERR | POLLNVAL)) && s->out[peer].at < n)
            FM_TRY(gone(peer));
    }
    return FM_OK;
}

static fm_status exchange(fm_wire *w, const fm_move *list, uint32_t n)
{
    sockets *s = (sockets *)(void *)w;
    double since = fm_now_s();
    fm_status rc = FM_OK;
    for (uint32_t i = 0; i < w->size; i++) {
        s->in[i].at = next_move(list, n, 0, i, false);
        s->out[i].at = next_move(list, n, 0, i, true);
        bool moved = false;
        if (i != w->rank && s->out[i].at < n && rc == FM_OK)
            rc = push(s, i, list, n, &moved);
    }
    for (uint32_t count; rc == FM_OK && (count = fill_poll(s, n)) > 0;) {
        bool moved = false;
        int ready = poll(s->poll, count, TICK_MS);
        if (ready < 0 && errno != EINTR)
            rc = fm_fail(FM_EIO, "poll: %s", strerror(errno));
        else if (ready > 0)
            rc = go_on(s, list, n, count, &moved);
        double now = fm_now_s();
        if (moved)
            since = now;
        else if (rc == FM_OK && s->wire.step_timeout_s > 0.0 &&
                 now - since > s->wire.step_timeout_s)
            rc = silent(s);
    }
    if (rc != FM_OK && !w->broken && !w->differs)
        shut_down(s);
    return rc;
}

/* ==== breaking off ==== */

/* Sends the rest of a message as zeros, then the status message. */
static fm_status push_word(sockets *s, uint32_t peer, const void *word, size_t bytes, bool *moved)
{
    static const uint8_t zeros[65536];
    way *w = &s->out[peer];
    while (w->ends != PAST_WORD) {
        if (w->done == 0) {
            w->ends = AT_WORD;
            w->head = (header){WORD, 0};
        }
        size_t body = w->done < sizeof(header) ? 0 : w->done - sizeof(header);
        size_t all = w->ends == AT_WORD ? bytes : (size_t)w->head.bytes;
        const void *from = (const uint8_t *)&w->head + w->done;
        size_t n = sizeof(header) - w->done;
        if (w->done >= sizeof(header)) {
            from = w->ends == AT_WORD ? (const uint8_t *)word + body : zeros;
            n = w->ends == AT_WORD ? all - body : FM_MIN(all - body, sizeof(zeros));
        }
        ssize_t k = send(s->fd[peer], from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FM_OK;
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return gone(peer);
        *moved = true;
        w->done += (size_t)k;
        if (w->done < sizeof(header) || w->done < sizeof(header) + all)
            continue;
        w->done = 0;
        w->ends = w->ends == AT_WORD ? PAST_WORD : AT_WORD;
        w->head = (header){WORD, 0};
    }
    return FM_OK;
}

/* Discards what comes before the peer's status message, and keeps the message. */
static fm_status pull_word(sockets *s, uint32_t peer, uint8_t *word, size_t bytes, bool *moved)
{
    uint8_t waste[4096];
    way *w = &s->in[peer];
    while (w->ends != PAST_WORD) {
        bool head = w->done < sizeof(header), own = !head && w->ends == AT_WORD;
        size_t all = own ? bytes : (size_t)w->head.bytes;
        size_t body = head ? 0 : w->done - sizeof(header);
        void *to = head ? (uint8_t *)&w->head + w->done : own ? word + body : waste;
        size_t n = head  ? sizeof(header) - w->done
                   : own ? all - body
                         : FM_MIN(all - body, sizeof(waste));
        ssize_t k = recv(s->fd[peer], to, n, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FM_OK;
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return gone(peer);
        *moved = true;
        w->done += (size_t)k;
        if (w->done < sizeof(header))
            continue;
        if (head && w->head.bytes == WORD)
            w->ends = AT_WORD;
        else if (!head && w->done == sizeof(header) + all) {
            w->ends = own ? PAST_WORD : OPEN;
            w->done = 0;
        }
    }
    return FM_OK;
}

static uint32_t fill_words(sockets *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->wire.size; i++) {
        short events = s->in[i].ends != PAST_WORD ? POLLIN : 0;
        if (s->out[i].ends != PAST_WORD)
            events |= POLLOUT;
        if (i == s->wire.rank || !events)
            continue;
        s->poll[count] = (struct pollfd){.fd = s->fd[i], .events = events};
        s->polled[count++] = i;
    }
    return count;
}

static fm_status words(sockets *s, const void *word, uint8_t *all, size_t bytes, bool *moved)
{
    for (uint32_t i = 0; i < s->wire.size; i++) {
        if (i == s->wire.rank)
            continue;
        FM_TRY(push_word(s, i, word, bytes, moved));
        FM_TRY(pull_word(s, i, all + i * bytes, bytes, moved));
    }
    return FM_OK;
}

static fm_status break_off(fm_wire *w, const void *word, void *all, size_t bytes)
{
    sockets *s = (sockets *)(void *)w;
    double since = fm_now_s();
    bool moved = false;
    memcpy((uint8_t *)all + w->rank * bytes, word, bytes);
    fm_status rc = words(s, word, all, bytes, &moved);
    for (uint32_t count; rc == FM_OK && (count = fill_words(s)) > 0;) {
        int ready = poll(s->poll, count, TICK_MS);
        if (ready < 0 && errno != EINTR)
            rc = fm_fail(FM_EIO, "poll: %s", strerror(errno));
        moved = false;
        if (rc == FM_OK && ready > 0)
            rc = words(s, word, all, bytes, &moved);
        if (moved)
            since = fm_now_s();
        else if (rc == FM_OK && s->wire.step_timeout_s > 0.0 &&
                 fm_now_s() - since > s->wire.step_timeout_s)
            rc = silent(s);
    }
    if (rc != FM_OK)
        shut_down(s);
    for (uint32_t i = 0; i < w->size; i++)
        s->in[i] = s->out[i] = (way){.number = 0};
    w->broken = w->differs = false;
    return rc;
}

/* Between exchanges each connection is at the beginning of a message. */
static bool called(fm_wire *w)
{
    sockets *s = (sockets *)(void *)w;
    bool is = false;
    for (uint32_t i = 0; i < w->size && !is; i++) {
        header h;
        if (i == w->rank)
            continue;
        ssize_t k = recv(s->fd[i], &h, sizeof(h), MSG_PEEK | MSG_DONTWAIT);
        bool quiet = k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        is = k < 0 ? !quiet : k == 0 || ((size_t)k == sizeof(h) && h.bytes == WORD);
    }
    return is;
}

static fm_status alive(fm_wire *w)
{
    sockets *s = (sockets *)(void *)w;
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->size; i++) {
        if (i == w->rank)
            continue;
        s->poll[count] = (struct pollfd){.fd = s->fd[i], .events = POLLRDHUP};
        s->polled[count++] = i;
    }
    if (poll(s->poll, count, 0) <= 0)
        return FM_OK;
    for (uint32_t k = 0; k < count; k++)
        if (s->poll[k].revents)
            return gone(s->polled[k]);
    return FM_OK;
}

static void close_all(const int *fd, uint32_t rank, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        if (i != rank && fd[i] >= 0)
            (void)close(fd[i]);
}

fm_status fm_wire_sockets(fm_wire **out, uint32_t rank, uint32_t size, const int *fd,
                          double step_timeout_s)
{
    *out = NULL;
    sockets *s = fm_calloc(1, sizeof(*s));
    if (s) {
        s->wire = (fm_wire){.name = "sockets",
                            .rank = rank,
                            .size = size,
                            .sized = true,
                            .step_timeout_s = step_timeout_s,
                            .exchange = exchange,
                            .alive = alive,
                            .called = called,
                            .break_off = break_off,
                            .close = close_sockets};
        s->in = fm_calloc(size, sizeof(way));
        s->out = fm_calloc(size, sizeof(way));
        s->poll = fm_calloc(size, sizeof(struct pollfd));
        s->polled = fm_calloc(size, sizeof(uint32_t));
    }
    if (s && s->in && s->out && s->poll && s->polled)
        s->fd = fm_memdup(fd, size * sizeof(int));
    if (!s || !s->fd) {
        if (s)
            close_sockets(&s->wire);
        close_all(fd, rank, size);
        return FM_ENOMEM;
    }
    *out = &s->wire;
    return FM_OK;
}

fm_status fm_wire_mesh(int *fd, uint32_t size)
{
    for (uint32_t i = 0; i < size * size; i++)
        fd[i] = -1;
    for (uint32_t i = 0; i < size; i++)
        for (uint32_t j = i + 1; j < size; j++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
                fm_status rc = fm_fail(FM_EIO, "socketpair: %s", strerror(errno));
                for (uint32_t k = 0; k < size; k++)
                    close_all(fd + (size_t)k * size, k, size);
                return rc;
            }
            fd[i * size + j] = pair[0];
            fd[j * size + i] = pair[1];
        }
    return FM_OK;
}

fm_status fm_wire_threads(fm_wire **wire, uint32_t size, double step_timeout_s)
{
    int *fd = fm_calloc((size_t)size * size, sizeof(int));
    fm_status rc = fd ? fm_wire_mesh(fd, size) : FM_ENOMEM;
    memset(wire, 0, size * sizeof(*wire));
    if (rc != FM_OK) {
        fm_free(fd);
        return rc;
    }
    for (uint32_t i = 0; i < size; i++) {
        if (rc == FM_OK)
            rc = fm_wire_sockets(&wire[i], i, size, fd + (size_t)i * size, step_timeout_s);
        else
            close_all(fd + (size_t)i * size, i, size);
    }
    for (uint32_t i = 0; i < size && rc != FM_OK; i++) {
        if (wire[i])
            wire[i]->close(wire[i]);
        wire[i] = NULL;
    }
    fm_free(fd);
    return rc;
}
