/* conns.c - the open connections, their clients, and how long they may wait for their client.
 *
 * libmicrohttpd's timeout starts again at every byte, so a client that sends one a second would
 * hold its place for ever. Here a head and a body have a deadline of their own. When places run
 * short, connections that wait for their client are ended first: of the client with the most
 * connections, the one that waits longest. A connection is ended by shutting its socket down under
 * the lock; libmicrohttpd notices that and closes it. The descriptor stays valid until
 * libmicrohttpd notifies MHD_CONNECTION_NOTIFY_CLOSED. */
#include "infer/serve/conns.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "infer/serve/internal.h"
#include "store/base/mem.h"

#define PROGRESS 1024u     /* bytes of a body that count as progress */
#define GRACE_S 1.0        /* seconds before a connection may be ended for lack of places */
#define SWEEP_S 0.5        /* seconds between checks of deadlines */
#define VICTIMS_A_SWEEP 64 /* bounds the time under the lock */

struct fmi_client {
    uint8_t address[16];
    uint32_t open, busy;
    struct fmi_client *next;
};

struct fmi_conn {
    int fd;
    fmi_client *client;
    double since, until; /* it waits for its client since; deadline; until 0: it does not wait */
    bool busy;           /* a request is under way, from its head to the last byte of its answer */
    bool ending;         /* its socket is shut down */
    fmi_conn *next, **at;
};

/* The whole of an IPv4 address, also of a mapped one; of an IPv6 address the network's half. */
static void address_of(const struct sockaddr *a, uint8_t out[16])
{
    memset(out, 0, 16);
    if (a && a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof(in));
        memcpy(out + 12, &in.sin_addr, 4);
    } else if (a && a->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, a, sizeof(in6));
        memcpy(out, &in6.sin6_addr, IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) ? 16 : 8);
    }
}

static fmi_client **find_client(fmi_conns *cs, const uint8_t address[16])
{
    unsigned h = 0;
    for (int i = 0; i < 16; i++)
        h = h * 31 + address[i];
    fmi_client **at = &cs->client[h % FMI_CONN_BUCKETS];
    while (*at && memcmp((*at)->address, address, 16) != 0)
        at = &(*at)->next;
    return at;
}

/* ==== notifications of libmicrohttpd ==== */

static fmi_conn *opened(fmi_conns *cs, int fd, const struct sockaddr *from)
{
    uint8_t address[16];
    fmi_conn *c = fm_calloc(1, sizeof(*c));
    fmi_client **k;
    if (!c)
        return NULL;
    address_of(from, address);
    (void)pthread_mutex_lock(&cs->lock);
    k = find_client(cs, address);
    if (!*k && (*k = fm_calloc(1, sizeof(**k))))
        memcpy((*k)->address, address, sizeof(address));
    if (*k) {
        double now = fm_now_s();
        *c = (fmi_conn){
            .fd = fd, .client = *k, .since = now, .until = now + cs->head_s, .next = cs->first};
        (*k)->open++;
        c->at = &cs->first;
        if (cs->first)
            cs->first->at = &c->next;
        cs->first = c;
        cs->open++;
    }
    (void)pthread_mutex_unlock(&cs->lock);
    if (!c->client) {
        fm_free(c);
        return NULL;
    }
    return c;
}

static void closed(fmi_conns *cs, fmi_conn *c)
{
    (void)pthread_mutex_lock(&cs->lock);
    fmi_client *k = c->client;
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    cs->open--;
    cs->ending -= c->ending;
    k->busy -= c->busy;
    if (--k->open == 0) {
        fmi_client **at = find_client(cs, k->address);
        *at = k->next;
        fm_free(k);
    }
    (void)pthread_mutex_unlock(&cs->lock);
    fm_free(c);
}

void fmi_conns_notify(void *cls, struct MHD_Connection *conn, void **context,
                      enum MHD_ConnectionNotificationCode code)
{
    fmi_conns *cs = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*context)
            closed(cs, *context);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *from =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    *context = fd ? opened(cs, fd->connect_fd, from ? from->client_addr : NULL) : NULL;
}

/* ==== calls for a request ==== */

static fmi_conn *of(struct MHD_Connection *conn)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

bool fmi_conns_head(fmi_conns *cs, struct MHD_Connection *conn)
{
    fmi_conn *c = of(conn);
    if (!c)
        return true;
    (void)pthread_mutex_lock(&cs->lock);
    c->since = fm_now_s();
    c->until = c->since + cs->body_s;
    c->client->busy += !c->busy;
    c->busy = true;
    bool fair = c->client->busy <= cs->share;
    (void)pthread_mutex_unlock(&cs->lock);
    return fair;
}

void fmi_conns_body(fmi_conns *cs, struct MHD_Connection *conn, size_t bytes)
{
    fmi_conn *c = of(conn);
    if (!c)
        return;
    (void)pthread_mutex_lock(&cs->lock);
    c->until += (double)bytes / FMI_CONN_BYTES_A_SECOND;
    if (bytes >= PROGRESS)
        c->since = fm_now_s();
    (void)pthread_mutex_unlock(&cs->lock);
}

void fmi_conns_asked(fmi_conns *cs, struct MHD_Connection *conn)
{
    fmi_conn *c = of(conn);
    if (!c)
        return;
    (void)pthread_mutex_lock(&cs->lock);
    c->until = 0;
    (void)pthread_mutex_unlock(&cs->lock);
}

void fmi_conns_answered(fmi_conns *cs, struct MHD_Connection *conn)
{
    fmi_conn *c = of(conn);
    if (!c)
        return;
    (void)pthread_mutex_lock(&cs->lock);
    c->since = fm_now_s();
    c->until = c->since + FMI_CONN_IDLE_SECONDS + cs->head_s;
    c->client->busy -= c->busy;
    c->busy = false;
    (void)pthread_mutex_unlock(&cs->lock);
}

const void *fmi_conns_client(struct MHD_Connection *conn)
{
    const fmi_conn *c = of(conn);
    return c ? c->client : NULL;
}

/* ==== ending connections ==== */

static void end(fmi_conns *cs, fmi_conn *c)
{
    (void)shutdown(c->fd, SHUT_RDWR);
    c->until = 0;
    cs->ending += !c->ending;
    c->ending = true;
}

/* Whether the connection waits for its client: no byte that the client sent is unread here. */
static bool waits(const fmi_conn *c)
{
    int unread = 0;
    return c->until > 0 && ioctl(c->fd, FIONREAD, &unread) == 0 && unread == 0;
}

static void end_overdue(fmi_conns *cs, double now)
{
    for (fmi_conn *c = cs->first; c; c = c->next)
        if (c->until > 0 && now > c->until)
            end(cs, c);
}

static fmi_conn *next_to_go(const fmi_conns *cs, double now)
{
    fmi_conn *best = NULL;
    for (fmi_conn *c = cs->first; c; c = c->next) {
        if (c->until <= 0 || now - c->since < GRACE_S)
            continue;
        uint32_t most = best ? best->client->open : 0;
        bool better =
            c->client->open > most || (best && c->client->open == most && c->since < best->since);
        if (better && waits(c))
            best = c;
    }
    return best;
}

void fmi_conns_sweep(fmi_conns *cs)
{
    double now = fm_now_s();
    uint32_t full = cs->places - cs->places / 8;
    (void)pthread_mutex_lock(&cs->lock);
    if (now - cs->swept >= SWEEP_S) {
        cs->swept = now;
        end_overdue(cs, now);
    }
    for (int i = 0; cs->open - cs->ending > full && i < VICTIMS_A_SWEEP; i++) {
        fmi_conn *c = next_to_go(cs, now);
        if (!c)
            break;
        end(cs, c);
    }
    (void)pthread_mutex_unlock(&cs->lock);
}

fm_status fmi_conns_init(fmi_conns *cs, uint32_t places)
{
    cs->places = places;
    cs->share = places - places / 4;
    cs->head_s = FMI_CONN_HEAD_SECONDS;
    cs->body_s = FMI_CONN_BODY_SECONDS;
    cs->ready = pthread_mutex_init(&cs->lock, NULL) == 0;
    return cs->ready ? FM_OK : fm_fail(FM_EIO, "server: cannot make a lock");
}

void fmi_conns_destroy(fmi_conns *cs)
{
    if (cs->ready)
        (void)pthread_mutex_destroy(&cs->lock);
}
