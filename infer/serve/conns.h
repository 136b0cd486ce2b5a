/* conns.h - the open connections: deadlines for what clients send, limits of each client. */
#ifndef FM_INFER_SERVE_CONNS_H
#define FM_INFER_SERVE_CONNS_H

#include <pthread.h>

#include "infer/serve/mhd.h"
#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMI_CONN_HEAD_SECONDS 30.0     /* from the connection to the end of its first head */
#define FMI_CONN_IDLE_SECONDS 60u      /* added to that before a further head */
#define FMI_CONN_BODY_SECONDS 30.0     /* for a body */
#define FMI_CONN_BYTES_A_SECOND 4096.0 /* a body gets a second more for so many bytes */
#define FMI_CONN_BUCKETS 256u

typedef struct fmi_conn fmi_conn;
typedef struct fmi_client fmi_client;

typedef struct fmi_conns {
    pthread_mutex_t lock; /* guards all below */
    bool ready;
    uint32_t open, ending; /* connections; how many of them are shut down */
    uint32_t places;       /* most connections */
    uint32_t share;        /* requests of one client at the same time */
    double head_s, body_s, swept;
    fmi_conn *first;
    fmi_client *client[FMI_CONN_BUCKETS]; /* by address */
} fmi_conns;

FM_CHECKED fm_status fmi_conns_init(fmi_conns *cs, uint32_t places);
void fmi_conns_destroy(fmi_conns *cs); /* after the daemon's end */

/* MHD_OPTION_NOTIFY_CONNECTION, cls: the fmi_conns. */
void fmi_conns_notify(void *cls, struct MHD_Connection *conn, void **context,
                      enum MHD_ConnectionNotificationCode code);

/* HTTP threads: a request's head is here. False: its client has more than its share. */
bool fmi_conns_head(fmi_conns *cs, struct MHD_Connection *conn);
void fmi_conns_body(fmi_conns *cs, struct MHD_Connection *conn, size_t bytes);
void fmi_conns_asked(fmi_conns *cs, struct MHD_Connection *conn); /* the request is whole */
void fmi_conns_answered(fmi_conns *cs, struct MHD_Connection *conn);
/* Whose connection it is: equal for equal addresses, to be compared while it is open. */
const void *fmi_conns_client(struct MHD_Connection *conn);

/* Ends overdue connections and, where seven of eight places are taken, those that wait for their
 * clients. The engine's thread calls it again and again. */
void fmi_conns_sweep(fmi_conns *cs);

FM_END_DECLS
#endif
