/* comm_nccl.c - a device wire over NCCL, all of it that is no CUDA.
 *
 * Only point-to-point calls are used: every exchange is one group of ncclSend and ncclRecv on
 * the backend's stream, which is what NCCL's own all-to-all is. Its reductions are not: their
 * order depends on sizes, channels and topology. A group returns before its bytes have moved;
 * what follows in the stream waits for it, and the host asks for a failure before each next one.
 * A peer that is gone leaves a kernel that never ends: fm_comm_settle watches the host's
 * connections beside the stream, and a communicator with something under way is aborted, not
 * destroyed. */
#include "infer/comm_wire.h"

#include <string.h>

#include "store/base/mem.h"

typedef struct nccl {
    fm_wire wire; /* first */
    const fmc_nccl *t;
    void *comm, *stream;
    bool queued; /* something was, and has not been seen to arrive */
} nccl;

static fm_status give_up(nccl *w, const char *what, int result)
{
    if (w->comm)
        (void)w->t->abort(w->comm);
    w->comm = NULL;
    return fm_fail(FM_EIO, "NCCL: %s: %s", what, w->t->error_string(result));
}

static fm_status given_up(void)
{
    return fm_fail(FM_EIO, "NCCL: the communicator was given up");
}

/* A failure of what was queued before. */
static fm_status look(nccl *w)
{
    int result = FMC_NCCL_SUCCESS;
    if (!w->comm)
        return given_up();
    int asked = w->t->async_error(w->comm, &result);
    result = asked != FMC_NCCL_SUCCESS ? asked : result;
    bool fine = result == FMC_NCCL_SUCCESS || result == FMC_NCCL_IN_PROGRESS;
    return fine ? FM_OK : give_up(w, "an earlier exchange", result);
}

static fm_status settled(fm_wire *wire, bool *done)
{
    nccl *w = (nccl *)(void *)wire;
    fm_status rc = look(w);
    *done = rc != FM_OK || !w->queued;
    if (*done)
        return rc;
    int reached = w->t->marked(w->stream);
    if (reached < 0)
        return give_up(w, "the device's stream", FMC_NCCL_SUCCESS);
    *done = reached > 0;
    w->queued = !*done;
    return FM_OK;
}

static fm_status exchange(fm_wire *wire, const fm_move *list, uint32_t n)
{
    nccl *w = (nccl *)(void *)wire;
    fm_status rc = look(w);
    if (rc != FM_OK)
        return rc;
    int result = w->t->group_start();
    for (uint32_t i = 0; i < n && result == FMC_NCCL_SUCCESS; i++) {
        const fm_move *m = &list[i];
        int peer = (int)m->peer;
        result = m->send ? w->t->send(m->ptr, m->bytes, FMC_NCCL_INT8, peer, w->comm, w->stream)
                         : w->t->recv(m->ptr, m->bytes, FMC_NCCL_INT8, peer, w->comm, w->stream);
    }
    int ended = w->t->group_end(); /* also behind a failure: a group must not stay open */
    result = result == FMC_NCCL_SUCCESS ? ended : result;
    if (result != FMC_NCCL_SUCCESS && result != FMC_NCCL_IN_PROGRESS)
        return give_up(w, "a group of sends and receives", result);
    w->queued = true;
    if (w->t->mark(w->stream) != 0)
        return give_up(w, "the device's stream", FMC_NCCL_SUCCESS);
    return FM_OK;
}

static void close_nccl(fm_wire *wire)
{
    nccl *w = (nccl *)(void *)wire;
    bool done = true; /* destroying waits for what is under way, which may never end */
    if (w->comm)
        fm_ignore(settled(wire, &done), "it is given up either way");
    if (w->comm)
        (void)(done ? w->t->destroy(w->comm) : w->t->abort(w->comm));
    fm_free(w);
}

fm_status fm_wire_nccl(fm_wire **out, fm_comm *c, const fmc_nccl *table, void *stream)
{
    fmc_nccl_id id;
    nccl *w = fm_calloc(1, sizeof(*w));
    *out = NULL;
    memset(&id, 0, sizeof(id));
    fm_status rc = w ? FM_OK : FM_ENOMEM;
    int result = FMC_NCCL_SUCCESS;
    if (rc == FM_OK && fm_comm_rank(c) == 0)
        result = table->get_unique_id(&id);
    if (result != FMC_NCCL_SUCCESS)
        rc = fm_fail(FM_EIO, "NCCL: no id: %s", table->error_string(result));
    rc = fm_comm_agree(c, rc);
    if (rc == FM_OK)
        rc = fm_comm_tell(c, &id, sizeof(id), 0);
    if (rc == FM_OK) {
        *w = (nccl){.wire = {.name = "nccl",
                             .rank = fm_comm_rank(c),
                             .size = fm_comm_size(c),
                             .device = true,
                             .exchange = exchange,
                             .settled = settled,
                             .close = close_nccl},
                    .t = table,
                    .stream = stream};
        result = table->comm_init(&w->comm, (int)w->wire.size, id, (int)w->wire.rank);
        if (result != FMC_NCCL_SUCCESS)
            rc = fm_fail(FM_EIO, "NCCL: no communicator: %s", table->error_string(result));
        rc = fm_comm_agree(c, rc);
    }
    if (rc != FM_OK) {
        if (w)
            close_nccl(&w->wire);
        return rc;
    }
    *out = &w->wire;
    return FM_OK;
}
