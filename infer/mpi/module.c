/* module.c - the wire over MPI, a module of its own: the only file that includes mpi.h.
 *
 * MPI gives the ranks of mpirun (rendezvous) and carries host memory between nodes. Only
 * point-to- point calls are used, since the order of MPI's own reductions is the library's
 * affair. A message is cut into parts of 1 GiB, because counts are ints. What dies with an error
 * MPI tells by its return value; a peer that is silent for patience_s is an error of ours. */
#include "infer/comm_wire.h"

#include <mpi.h>
#include <time.h>

#define PART_BYTES ((size_t)1 << 30)
#define TAG 17

fm_status fm_mpi_wire_1(fm_wire **out, double patience_s, const fm_mpi_host *host);

static const fm_mpi_host *lent;

typedef struct mpi_wire {
    fm_wire wire; /* first */
    MPI_Comm comm;
    MPI_Request *request;
    uint32_t *peer; /* of each request */
    size_t cap;
    double patience_s;
    bool ours; /* MPI was begun here */
} mpi_wire;

static fm_status failed(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1];
    int len = 0;
    if (MPI_Error_string(code, text, &len) != MPI_SUCCESS)
        len = 0;
    text[len] = '\0';
    return lent->fail(FM_EIO, "MPI: %s: %s", what, text);
}

static fm_status room(mpi_wire *w, size_t count)
{
    if (count <= w->cap)
        return FM_OK;
    lent->free(w->request);
    lent->free(w->peer);
    w->cap = 0;
    w->request = lent->calloc(count, sizeof(*w->request));
    w->peer = lent->calloc(count, sizeof(*w->peer));
    if (!w->request || !w->peer)
        return FM_ENOMEM;
    w->cap = count;
    return FM_OK;
}

static fm_status start(mpi_wire *w, const fm_move *list, uint32_t n, int *count)
{
    *count = 0;
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < list[i].bytes; at += PART_BYTES) {
            size_t left = list[i].bytes - at;
            int bytes = (int)(left < PART_BYTES ? left : PART_BYTES);
            int peer = (int)list[i].peer;
            void *ptr = (char *)list[i].ptr + at;
            MPI_Request *r = &w->request[*count];
            int code = list[i].send ? MPI_Isend(ptr, bytes, MPI_BYTE, peer, TAG, w->comm, r)
                                    : MPI_Irecv(ptr, bytes, MPI_BYTE, peer, TAG, w->comm, r);
            if (code != MPI_SUCCESS)
                return failed(list[i].send ? "send" : "receive", code);
            w->peer[(*count)++] = list[i].peer;
        }
    return FM_OK;
}

/* A shorter message than was asked for is no error to MPI. */
static fm_status check_counts(const fm_move *list, uint32_t n, const MPI_Status *status)
{
    size_t r = 0;
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < list[i].bytes; at += PART_BYTES, r++) {
            size_t left = list[i].bytes - at;
            int got = 0;
            if (list[i].send)
                continue;
            if (MPI_Get_count(&status[r], MPI_BYTE, &got) != MPI_SUCCESS ||
                (size_t)got != (left < PART_BYTES ? left : PART_BYTES))
                return lent->fail(
                    FM_ECORRUPT,
                    "rank %u sends %d bytes where %zu are due: the ranks do not do the "
                    "same",
                    list[i].peer, got, left);
        }
    return FM_OK;
}

static fm_status finish(mpi_wire *w, const fm_move *list, uint32_t n, int count)
{
    const struct timespec nap = {.tv_nsec = 50000};
    MPI_Status *status = lent->calloc((size_t)count + 1, sizeof(*status));
    double began = MPI_Wtime();
    int done = 0;
    fm_status rc = status ? FM_OK : FM_ENOMEM;
    for (uint32_t looks = 0; rc == FM_OK && !done; looks++) {
        int code = MPI_Testall(count, w->request, &done, status);
        if (code != MPI_SUCCESS)
            rc = failed("exchange", code);
        else if (!done && w->patience_s > 0.0 && MPI_Wtime() - began > w->patience_s) {
            int at = 0;
            while (at + 1 < count && w->request[at] == MPI_REQUEST_NULL)
                at++;
            rc = lent->fail(FM_EIO, "rank %u says nothing for %.0f s", w->peer[at], w->patience_s);
        } else if (!done && looks > 1000)
            (void)nanosleep(&nap, NULL);
    }
    if (rc == FM_OK)
        rc = check_counts(list, n, status);
    lent->free(status);
    return rc;
}

static fm_status exchange(fm_wire *wire, const fm_move *list, uint32_t n)
{
    mpi_wire *w = (mpi_wire *)(void *)wire;
    size_t parts = 0;
    int count = 0;
    for (uint32_t i = 0; i < n; i++)
        parts += (list[i].bytes + PART_BYTES - 1) / PART_BYTES;
    fm_status rc = room(w, parts);
    if (rc == FM_OK)
        rc = start(w, list, n, &count);
    return rc == FM_OK ? finish(w, list, n, count) : rc;
}

static void close_mpi(fm_wire *wire)
{
    mpi_wire *w = (mpi_wire *)(void *)wire;
    int over = 0;
    (void)MPI_Finalized(&over);
    if (!over) {
        (void)MPI_Comm_free(&w->comm);
        if (w->ours)
            (void)MPI_Finalize();
    }
    lent->free(w->request);
    lent->free(w->peer);
    lent->free(w);
}

fm_status fm_mpi_wire_1(fm_wire **out, double patience_s, const fm_mpi_host *host)
{
    lent = host;
    int begun = 0, level = 0, rank = 0, size = 0;
    mpi_wire *w = lent->calloc(1, sizeof(*w));
    *out = NULL;
    if (!w)
        return FM_ENOMEM;
    (void)MPI_Initialized(&begun);
    int code = MPI_SUCCESS;
    if (!begun)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    w->ours = !begun;
    if (code == MPI_SUCCESS)
        code = MPI_Comm_dup(MPI_COMM_WORLD, &w->comm);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(w->comm, &rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(w->comm, &size);
    if (code != MPI_SUCCESS) {
        lent->free(w);
        return failed("start", code);
    }
    w->patience_s = patience_s;
    w->wire = (fm_wire){.name = "mpi",
                        .rank = (uint32_t)rank,
                        .size = (uint32_t)size,
                        .exchange = exchange,
                        .close = close_mpi};
    *out = &w->wire;
    return FM_OK;
}
