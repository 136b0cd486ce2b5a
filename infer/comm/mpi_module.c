/* mpi_module.c - the wire over MPI, a module: the only file that includes mpi.h.
 *
 * MPI gives the ranks of mpirun (rendezvous) and carries host memory between nodes. Only
 * point-to-point calls are used, since the order of MPI's own reductions depends on the library. A
 * message is cut into parts of 1 GiB, because counts are ints. MPI reports a peer's failure by
 * return values; a peer that is silent for step_timeout_s fails here.
 *
 * A rank that breaks off sends a status message with a tag of its own, and with it the number of
 * messages that it has sent since it last broke off. So each side knows which of its receives have
 * a message (they are completed), which have none (they are cancelled) and which messages have no
 * receive (they are discarded); later messages have the other of two tags. After a permanent
 * failure receives are cancelled; Open MPI cannot cancel sends, so MPI is not called again, because
 * a call would read their memory. */
#include "infer/comm/wire.h"

#include <mpi.h>
#include <string.h>
#include <time.h>

#define PART_BYTES ((size_t)1 << 30)
#define TAG_DATA 17 /* and 18 */
#define TAG_WORD 19
#define PROBE_LOOKS 64u

fm_status fm_mpi_wire_3(fm_wire **out, double step_timeout_s, const fm_mpi_host *host);

static const fm_mpi_host *lent;

typedef struct way {            /* to and from a peer, since it last broke off */
    uint64_t sent, posted, due; /* numbers of messages; due: sent by the peer */
} way;

typedef struct word_from {
    uint64_t sent;
    char word[FM_WORD_BYTES];
} word_from;

typedef struct mpi_wire {
    fm_wire wire; /* first */
    MPI_Comm comm;
    MPI_Request *request; /* [cap] the first `count` are of the current exchange */
    MPI_Status *status;
    uint32_t *peer;
    bool *sends;
    size_t cap;
    int count;
    way *way;        /* [size] */
    word_from *word; /* [size] the status message to each rank */
    MPI_Request *word_sent;
    int epoch;
    bool ours; /* this module initialized MPI */
    bool over; /* failed permanently: MPI is not called again */
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

static void nap(uint32_t looks)
{
    const struct timespec t = {.tv_nsec = 50000};
    if (looks > 1000)
        (void)nanosleep(&t, NULL);
}

/* Fails, naming the peer, where the time limit has passed. */
static fm_status silent(const mpi_wire *w, uint32_t peer, double began)
{
    return w->wire.step_timeout_s > 0.0 && MPI_Wtime() - began > w->wire.step_timeout_s
               ? lent->fail(FM_EIO, "rank %u says nothing for %.0f s", peer, w->wire.step_timeout_s)
               : FM_OK;
}

static fm_status room(mpi_wire *w, size_t count)
{
    if (count <= w->cap)
        return FM_OK;
    lent->free(w->request);
    lent->free(w->status);
    lent->free(w->peer);
    lent->free(w->sends);
    w->cap = 0;
    w->request = lent->calloc(count, sizeof(MPI_Request));
    w->status = lent->calloc(count, sizeof(*w->status));
    w->peer = lent->calloc(count, sizeof(*w->peer));
    w->sends = lent->calloc(count, sizeof(*w->sends));
    if (!w->request || !w->status || !w->peer || !w->sends)
        return FM_ENOMEM;
    w->cap = count;
    return FM_OK;
}

static fm_status start(mpi_wire *w, const fm_move *list, uint32_t n)
{
    int tag = TAG_DATA + w->epoch;
    w->count = 0;
    for (uint32_t i = 0; i < n; i++)
        for (size_t at = 0; at < list[i].bytes; at += PART_BYTES) {
            size_t left = list[i].bytes - at;
            int bytes = (int)(left < PART_BYTES ? left : PART_BYTES);
            int peer = (int)list[i].peer;
            void *ptr = (char *)list[i].ptr + at;
            MPI_Request *r = &w->request[w->count];
            int code = list[i].send ? MPI_Isend(ptr, bytes, MPI_BYTE, peer, tag, w->comm, r)
                                    : MPI_Irecv(ptr, bytes, MPI_BYTE, peer, tag, w->comm, r);
            if (code != MPI_SUCCESS)
                return failed(list[i].send ? "send" : "receive", code);
            w->sends[w->count] = list[i].send;
            w->peer[w->count++] = list[i].peer;
            *(list[i].send ? &w->way[peer].sent : &w->way[peer].posted) += 1;
        }
    return FM_OK;
}

/* Checks the sizes, since a shorter message than the receive asked for is no error to MPI. */
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

static bool called(fm_wire *wire)
{
    mpi_wire *w = (mpi_wire *)(void *)wire;
    int there = 0;
    if (w->over) /* not calling MPI: it would read memory of unfinished sends */
        return true;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, TAG_WORD, w->comm, &there, MPI_STATUS_IGNORE);
    return code != MPI_SUCCESS || there;
}

/* mpirun ends all ranks when one is gone, so there is nothing to check. */
static fm_status alive(fm_wire *wire)
{
    (void)wire;
    return FM_OK;
}

static uint32_t first_waiting(const mpi_wire *w)
{
    int at = 0;
    while (at + 1 < w->count && w->request[at] == MPI_REQUEST_NULL)
        at++;
    return w->peer[at];
}

static fm_status finish(mpi_wire *w, const fm_move *list, uint32_t n)
{
    double began = MPI_Wtime();
    int done = 0;
    fm_status rc = FM_OK;
    for (uint32_t looks = 0; rc == FM_OK && !done; looks++) {
        int code = MPI_Testall(w->count, w->request, &done, w->status);
        if (code != MPI_SUCCESS)
            rc = failed("exchange", code);
        else if (!done && looks % PROBE_LOOKS == 0 && called(&w->wire)) {
            w->wire.broken = true;
            return lent->fail(FM_EIO, "another rank has broken off");
        } else if (!done)
            rc = silent(w, first_waiting(w), began);
        if (!done)
            nap(looks);
    }
    return rc == FM_OK ? check_counts(list, n, w->status) : rc;
}

/* Cancels the receives, which would write into memory that the caller may free. */
static void give_up(mpi_wire *w)
{
    w->over = true;
    for (int i = 0; i < w->count; i++)
        if (!w->sends[i] && w->request[i] != MPI_REQUEST_NULL &&
            MPI_Cancel(&w->request[i]) == MPI_SUCCESS)
            (void)MPI_Wait(&w->request[i], MPI_STATUS_IGNORE);
}

static fm_status gave_up(void)
{
    return lent->fail(FM_EIO, "MPI failed before");
}

static fm_status exchange(fm_wire *wire, const fm_move *list, uint32_t n)
{
    mpi_wire *w = (mpi_wire *)(void *)wire;
    size_t parts = 0;
    if (w->over)
        return gave_up();
    for (uint32_t i = 0; i < n; i++)
        parts += (list[i].bytes + PART_BYTES - 1) / PART_BYTES;
    w->count = 0;
    fm_status rc = room(w, parts);
    FM_THEN(rc, start(w, list, n));
    FM_THEN(rc, finish(w, list, n));
    if (rc != FM_OK && !wire->broken)
        give_up(w);
    return rc;
}

/* ==== breaking off ==== */

static fm_status send_words(mpi_wire *w, const void *word, size_t bytes)
{
    for (uint32_t i = 0; i < w->wire.size; i++) {
        if (i == w->wire.rank)
            continue;
        w->word[i].sent = w->way[i].sent;
        memcpy(w->word[i].word, word, bytes);
        int code = MPI_Isend(&w->word[i], (int)(sizeof(uint64_t) + bytes), MPI_BYTE, (int)i,
                             TAG_WORD, w->comm, &w->word_sent[i]);
        if (code != MPI_SUCCESS)
            return failed("send", code);
    }
    return FM_OK;
}

static fm_status hear_words(mpi_wire *w, char *all, size_t bytes)
{
    word_from got;
    double began = MPI_Wtime();
    for (uint32_t i = 0; i < w->wire.size; i++) {
        int there = 0;
        for (uint32_t looks = 0; i != w->wire.rank && !there; looks++) {
            int code = MPI_Iprobe((int)i, TAG_WORD, w->comm, &there, MPI_STATUS_IGNORE);
            FM_TRY(code != MPI_SUCCESS ? failed("probe", code) : FM_OK);
            if (!there)
                FM_TRY(silent(w, i, began));
            nap(looks);
        }
        if (i == w->wire.rank)
            continue;
        int code = MPI_Recv(&got, (int)(sizeof(uint64_t) + bytes), MPI_BYTE, (int)i, TAG_WORD,
                            w->comm, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return failed("receive", code);
        w->way[i].due = got.sent;
        memcpy(all + i * bytes, got.word, bytes);
    }
    return FM_OK;
}

/* Receives and discards the messages that have no receive. */
static fm_status take_rest(mpi_wire *w, uint32_t peer)
{
    for (; w->way[peer].posted < w->way[peer].due; w->way[peer].posted++) {
        MPI_Message message;
        MPI_Status status;
        int bytes = 0, tag = TAG_DATA + w->epoch;
        int code = MPI_Mprobe((int)peer, tag, w->comm, &message, &status);
        if (code == MPI_SUCCESS)
            code = MPI_Get_count(&status, MPI_BYTE, &bytes);
        void *waste = lent->calloc((size_t)bytes + 1, 1);
        if (!waste)
            return FM_ENOMEM;
        if (code == MPI_SUCCESS)
            code = MPI_Mrecv(waste, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        lent->free(waste);
        if (code != MPI_SUCCESS)
            return failed("receive", code);
    }
    return FM_OK;
}

/* Cancels the receives that get no message: the last ones of each peer. */
static void cancel_rest(mpi_wire *w)
{
    for (int i = w->count; i-- > 0;) {
        way *from = &w->way[w->peer[i]];
        if (w->sends[i] || from->posted <= from->due)
            continue;
        from->posted--;
        if (w->request[i] == MPI_REQUEST_NULL || MPI_Cancel(&w->request[i]) != MPI_SUCCESS)
            continue;
        (void)MPI_Wait(&w->request[i], MPI_STATUS_IGNORE);
    }
}

static fm_status all_done(mpi_wire *w, int count, MPI_Request *request)
{
    double began = MPI_Wtime();
    for (uint32_t looks = 0; count > 0; looks++) {
        int done = 0;
        int code = MPI_Testall(count, request, &done, MPI_STATUSES_IGNORE);
        bool cut = code == MPI_ERR_TRUNCATE || code == MPI_ERR_IN_STATUS; /* sizes differ */
        if (code != MPI_SUCCESS && !cut)
            return failed("breaking off", code);
        if (done)
            break;
        FM_TRY(silent(w, w->wire.rank == 0 ? 1 : 0, began));
        nap(looks);
    }
    return FM_OK;
}

static fm_status break_off(fm_wire *wire, const void *word, void *all, size_t bytes)
{
    mpi_wire *w = (mpi_wire *)(void *)wire;
    if (w->over)
        return gave_up();
    memcpy((char *)all + wire->rank * bytes, word, bytes);
    w->count = wire->broken ? w->count : 0; /* else the last exchange has ended */
    fm_status rc = send_words(w, word, bytes);
    FM_THEN(rc, hear_words(w, all, bytes));
    if (rc == FM_OK)
        cancel_rest(w);
    for (uint32_t i = 0; i < wire->size && rc == FM_OK; i++)
        rc = take_rest(w, i);
    FM_THEN(rc, all_done(w, w->count, w->request));
    FM_THEN(rc, all_done(w, (int)wire->size, w->word_sent));
    if (rc != FM_OK)
        give_up(w);
    w->count = 0;
    w->epoch = !w->epoch;
    memset(w->way, 0, wire->size * sizeof(*w->way));
    wire->broken = false;
    return rc;
}

/* ==== life ==== */

static void release(mpi_wire *w)
{
    lent->free(w->way);
    lent->free(w->word_sent);
    if (!w->over) { /* else MPI may still read memory of unfinished sends */
        lent->free(w->word);
        lent->free(w->request);
    }
    lent->free(w->status);
    lent->free(w->peer);
    lent->free(w->sends);
    lent->free(w);
}

static void close_mpi(fm_wire *wire)
{
    mpi_wire *w = (mpi_wire *)(void *)wire;
    int finalized = 0;
    (void)MPI_Finalized(&finalized);
    if (!finalized && !w->over) { /* with a peer missing it would not return */
        (void)MPI_Comm_free(&w->comm);
        if (w->ours)
            (void)MPI_Finalize();
    }
    release(w);
}

static fm_status make_rooms(mpi_wire *w, uint32_t size)
{
    w->way = lent->calloc(size, sizeof(*w->way));
    w->word = lent->calloc(size, sizeof(*w->word));
    w->word_sent = lent->calloc(size, sizeof(MPI_Request));
    if (!w->way || !w->word || !w->word_sent)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < size; i++)
        w->word_sent[i] = MPI_REQUEST_NULL;
    return FM_OK;
}

/* A failure here leaves MPI initialized: finalizing waits for the ranks that did start, and mpirun
 * ends them when this process ends. */
fm_status fm_mpi_wire_3(fm_wire **out, double step_timeout_s, const fm_mpi_host *host)
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
        code = MPI_Query_thread(&level);
    if (code == MPI_SUCCESS && level < MPI_THREAD_SERIALIZED) {
        lent->free(w);
        return lent->fail(FM_EUNSUPPORTED, "MPI: this one takes calls of one thread only");
    }
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
    fm_status rc = make_rooms(w, (uint32_t)size);
    if (rc != FM_OK) {
        release(w);
        return rc;
    }
    w->wire = (fm_wire){.name = "mpi",
                        .rank = (uint32_t)rank,
                        .size = (uint32_t)size,
                        .step_timeout_s = step_timeout_s,
                        .exchange = exchange,
                        .alive = alive,
                        .called = called,
                        .break_off = break_off,
                        .close = close_mpi};
    *out = &w->wire;
    return FM_OK;
}
