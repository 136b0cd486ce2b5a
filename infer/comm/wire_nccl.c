/* wire_nccl.c - a device wire over NCCL: the part without CUDA.
 *
 * Only point-to-point calls are used: every exchange is one group of ncclSend and ncclRecv on a
 * stream of the backend, as in NCCL's own all-to-all. NCCL's reductions are not used, because their
 * order depends on sizes, channels and topology. A group returns before its bytes have moved; later
 * work in the stream waits for it, and the host checks for a failure before each next group.
 *
 * NCCL does not report that a peer on the same host is gone or has aborted: a kernel waits for that
 * peer for ever. So comm.c reports it over the host's wire, and then every rank aborts (in newer
 * versions an abort returns only when all ranks of the node are in one). Abort is the one call that
 * may come from another thread while a thread is in a group. Destroying a communicator waits for
 * exchanges under way and for the peers, so one with exchanges under way is aborted instead. Making
 * a communicator waits for all ranks: a separate thread does it, and is left behind where a peer
 * fails meanwhile.
 *
 * Groups go where the backend's operations are being queued: to its stream, to the second one
 * (fm_backend.aside), or to the stream that is being captured; there they become part of a graph,
 * which refers to the communicator. Destroy and abort wait until no such graph is left, so let_go
 * drops the graphs first. The watch's thread cannot drop them: its abort ends the exchanges under
 * way, and returns when the backend's thread has called let_go. */
#include "infer/comm/wire.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/mem.h"

typedef struct nccl {
    fm_wire wire; /* first */
    fmc_nccl_card card;
    const fmc_nccl *t;
    void *mark;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t over;
    void *comm; /* NULL: given up */
    bool inside, aborting;
    bool queued; /* an exchange was queued, and has not been seen to arrive */
    bool bad;    /* the communicator failed, and is to be aborted */
} nccl;

/* ==== giving up ==== */

#define GROUP_NS 500000000L /* how long a group may take before it is aborted from outside */

static void give_up(fm_wire *wire)
{
    nccl *w = (nccl *)(void *)wire;
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += GROUP_NS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    (void)pthread_mutex_lock(&w->lock);
    while (w->inside && pthread_cond_timedwait(&w->over, &w->lock, &until) == 0)
        continue;
    void *comm = w->comm;
    w->comm = NULL;
    w->aborting = w->aborting || comm;
    (void)pthread_mutex_unlock(&w->lock);
    if (!comm)
        return;
    (void)w->t->enter(w->card.card);
    (void)w->t->abort(comm);
    (void)pthread_mutex_lock(&w->lock);
    w->aborting = false;
    (void)pthread_cond_broadcast(&w->over);
    (void)pthread_mutex_unlock(&w->lock);
}

/* Does not abort the communicator: comm.c does, once the other ranks know of the failure. */
static fm_status fails(nccl *w, const char *what, int result)
{
    w->bad = true;
    return fm_fail(FM_EIO, "NCCL: %s: %s", what, w->t->error_string(result));
}

static fm_status stream_fails(nccl *w)
{
    w->bad = true;
    return fm_fail(FM_EIO, "NCCL: the stream of GPU %u failed", w->card.card);
}

/* Returns a failure of an earlier exchange. */
static fm_status look(nccl *w)
{
    int result = FMC_NCCL_SUCCESS;
    (void)pthread_mutex_lock(&w->lock);
    bool here = w->comm && !w->bad;
    int asked = here ? w->t->async_error(w->comm, &result) : FMC_NCCL_SUCCESS;
    (void)pthread_mutex_unlock(&w->lock);
    if (!here)
        return fm_fail(FM_EIO, "NCCL: the communicator was given up");
    result = asked != FMC_NCCL_SUCCESS ? asked : result;
    bool fine = result == FMC_NCCL_SUCCESS || result == FMC_NCCL_IN_PROGRESS;
    return fine ? FM_OK : fails(w, "an earlier exchange", result);
}

static fm_status settled(fm_wire *wire, bool *done)
{
    nccl *w = (nccl *)(void *)wire;
    fm_status rc = look(w);
    *done = rc != FM_OK || !w->queued;
    if (*done)
        return rc;
    int reached = w->t->marked(w->mark);
    if (reached < 0)
        return stream_fails(w);
    *done = reached > 0;
    w->queued = !*done;
    return *done ? look(w) : FM_OK; /* an abort ends exchanges under way, too */
}

/* ==== moving ==== */

/* Enters the communicator, which is not aborted before go_out; NULL: it was given up. */
static void *come_in(nccl *w)
{
    (void)pthread_mutex_lock(&w->lock);
    void *comm = w->comm;
    w->inside = comm != NULL;
    (void)pthread_mutex_unlock(&w->lock);
    return comm;
}

static void go_out(nccl *w)
{
    (void)pthread_mutex_lock(&w->lock);
    w->inside = false;
    (void)pthread_cond_broadcast(&w->over);
    (void)pthread_mutex_unlock(&w->lock);
}

static int group(nccl *w, void *comm, const fm_move *list, uint32_t n)
{
    void *stream = *w->card.stream;
    int result = w->t->group_start();
    if (result != FMC_NCCL_SUCCESS)
        return result;
    for (uint32_t i = 0; i < n && result == FMC_NCCL_SUCCESS; i++) {
        const fm_move *m = &list[i];
        int peer = (int)m->peer;
        result = m->send ? w->t->send(m->ptr, m->bytes, FMC_NCCL_INT8, peer, comm, stream)
                         : w->t->recv(m->ptr, m->bytes, FMC_NCCL_INT8, peer, comm, stream);
    }
    int ended = w->t->group_end(); /* also after a failure: a group must not stay open */
    return result == FMC_NCCL_SUCCESS ? ended : result;
}

/* Exchanges were queued in the stream: sets the mark behind them. */
static fm_status launched(fm_wire *wire)
{
    nccl *w = (nccl *)(void *)wire;
    (void)w->t->enter(w->card.card);
    w->queued = true;
    return w->t->mark(w->mark, *w->card.stream) == 0 ? look(w) : stream_fails(w);
}

static fm_status exchange(fm_wire *wire, const fm_move *list, uint32_t n)
{
    nccl *w = (nccl *)(void *)wire;
    FM_TRY(look(w));
    (void)w->t->enter(w->card.card);
    void *comm = come_in(w);
    int result = comm ? group(w, comm, list, n) : FMC_NCCL_SUCCESS;
    go_out(w);
    if (result != FMC_NCCL_SUCCESS && result != FMC_NCCL_IN_PROGRESS)
        return fails(w, "a group of sends and receives", result);
    return w->card.be && w->t->records(w->card.be) ? FM_OK : launched(wire);
}

static void let_go(fm_wire *wire)
{
    nccl *w = (nccl *)(void *)wire;
    if (w->card.be)
        w->t->let_go(w->card.be);
}

/* ==== life ==== */

static void close_nccl(fm_wire *wire)
{
    nccl *w = (nccl *)(void *)wire;
    bool done = false;
    if (w->comm && settled(wire, &done) == FM_OK && done) {
        void *comm = come_in(w);
        go_out(w);
        w->comm = NULL;
        if (comm)
            (void)w->t->destroy(comm);
    }
    give_up(wire);
    (void)pthread_mutex_lock(&w->lock);
    while (w->aborting) /* the watch's thread aborts */
        (void)pthread_cond_wait(&w->over, &w->lock);
    (void)pthread_mutex_unlock(&w->lock);
    if (w->mark)
        (void)w->t->enter(w->card.card);
    w->t->mark_free(w->mark);
    (void)pthread_cond_destroy(&w->over);
    (void)pthread_mutex_destroy(&w->lock);
    fm_free(w);
}

/* A thread that makes a communicator: ncclCommInitRank returns when all ranks have called it. */
typedef struct making {
    const fmc_nccl *t;
    fmc_nccl_id id;
    int rank, size;
    uint32_t card;
    pthread_mutex_t lock;
    void *comm;
    int result;
    bool done, left; /* left: the caller waits no more, so the thread frees this */
} making;

static void free_making(making *m)
{
    (void)pthread_mutex_destroy(&m->lock);
    fm_free(m);
}

static void *make(void *arg)
{
    making *m = arg;
    void *comm = NULL;
    int result = m->t->enter(m->card);
    if (result == FMC_NCCL_SUCCESS)
        result = m->t->comm_init(&comm, m->size, m->id, m->rank);
    (void)pthread_mutex_lock(&m->lock);
    m->comm = comm;
    m->result = result;
    m->done = true;
    bool left = m->left;
    (void)pthread_mutex_unlock(&m->lock);
    if (left && comm)
        (void)m->t->abort(comm);
    if (left)
        free_making(m);
    return NULL;
}

static fm_status wait_for(making *m, fm_comm *c, void **comm)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    const fmc_nccl *t = m->t;
    bool called = false, late = false, done = false;
    int result = FMC_NCCL_SUCCESS;
    double step_timeout_s = fm_comm_step_timeout_of(c);
    struct timespec began, now;
    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    for (uint32_t looks = 0; !done && !called && !late; looks++) {
        (void)nanosleep(&nap, NULL);
        called = looks % 16 == 0 && fm_comm_called(c);
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        late = step_timeout_s > 0.0 && (double)(now.tv_sec - began.tv_sec) > step_timeout_s + 1.0;
        (void)pthread_mutex_lock(&m->lock);
        done = m->done;
        m->left = (called || late) && !done;
        result = m->result;
        *comm = m->comm;
        (void)pthread_mutex_unlock(&m->lock);
    }
    if (!done && !called)
        return fm_fail(FM_EIO, "NCCL: no communicator within %.0f s", step_timeout_s);
    if (!done) {
        FM_TRY(fm_comm_barrier(c)); /* returns the other rank's failure */
        return fm_fail(FM_EIO, "NCCL: no communicator: another rank failed");
    }
    free_making(m);
    return result == FMC_NCCL_SUCCESS
               ? FM_OK
               : fm_fail(FM_EIO, "NCCL: no communicator: %s", t->error_string(result));
}

static fm_status make_comm(nccl *w, fm_comm *c, const fmc_nccl_id *id)
{
    pthread_t thread;
    making *m = fm_calloc(1, sizeof(*m));
    if (!m)
        return FM_ENOMEM;
    m->t = w->t;
    m->id = *id;
    m->rank = (int)w->wire.rank;
    m->size = (int)w->wire.size;
    m->card = w->card.card;
    (void)pthread_mutex_init(&m->lock, NULL);
    if (pthread_create(&thread, NULL, make, m) != 0) {
        free_making(m);
        return fm_fail(FM_ELIMIT, "NCCL: no thread to make a communicator in");
    }
    (void)pthread_detach(thread);
    return wait_for(m, c, &w->comm);
}

/* NCCL's ranks find each other over TCP, and listen on every interface by default: ranks of one
 * host need only lo. A value that the user has set stays. */
static void keep_inside(const fm_comm *c)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&lock);
    if (fm_comm_nodes(c) == 1 && !getenv("NCCL_SOCKET_IFNAME"))
        (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    (void)pthread_mutex_unlock(&lock);
}

static nccl *new_wire(fm_comm *c, const fmc_nccl_card *card)
{
    nccl *w = fm_calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    *w = (nccl){.wire = {.name = "nccl",
                         .rank = fm_comm_rank(c),
                         .size = fm_comm_size(c),
                         .device = true,
                         .exchange = exchange,
                         .settled = settled,
                         .launched = launched,
                         .let_go = let_go,
                         .give_up = give_up,
                         .close = close_nccl},
                .card = *card,
                .t = card->table};
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->over, NULL);
    return w;
}

fm_status fm_wire_nccl(fm_wire **out, fm_comm *c, const fmc_nccl_card *card)
{
    fmc_nccl_id id;
    nccl *w = new_wire(c, card);
    *out = NULL;
    memset(&id, 0, sizeof(id));
    keep_inside(c);
    fm_status rc = w ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && (card->table->enter(card->card) != FMC_NCCL_SUCCESS ||
                        card->table->mark_new(&w->mark) != 0))
        rc = fm_fail(FM_EIO, "NCCL: GPU %u gives no event", card->card);
    int result = FMC_NCCL_SUCCESS;
    if (rc == FM_OK && fm_comm_rank(c) == 0)
        result = card->table->get_unique_id(&id);
    if (result != FMC_NCCL_SUCCESS)
        rc = fm_fail(FM_EIO, "NCCL: no id: %s", card->table->error_string(result));
    rc = fm_comm_agree(c, rc);
    FM_THEN(rc, fm_comm_tell(c, &id, sizeof(id), 0));
    FM_THEN(rc, make_comm(w, c, &id));
    rc = fm_comm_meet(c, rc, 0);
    if (rc != FM_OK && w)
        close_nccl(&w->wire);
    else if (rc == FM_OK)
        *out = &w->wire;
    return rc;
}
