/* wire.h - what carries bytes between ranks: the table that sockets, MPI and NCCL fill. */
#ifndef FM_INFER_COMM_WIRE_H
#define FM_INFER_COMM_WIRE_H

#include <pthread.h>

#include "infer/comm.h"

FM_BEGIN_DECLS

/* One message of an exchange. Between two ranks messages arrive in the order in which they were
 * listed; sender and receiver list the same number of bytes, which is not 0. */
typedef struct fm_move {
    uint32_t peer;
    bool send;
    void *ptr; /* what is sent is not changed */
    size_t bytes;
} fm_move;

#define FM_WORD_BYTES 1024u /* at most, of the status message of break_off */

struct fm_wire {
    const char *name; /* "sockets", "mpi", "nccl" */
    uint32_t rank, size;
    bool device; /* ptr is device memory, moved in the order of the backend's operations */
    double step_timeout_s; /* host wires; 0: as long as the peer lives */
    /* Host wires: set by an exchange that failed because a peer waits in break_off. */
    bool broken;
    /* sized: a host wire whose exchange detects a peer's message of another size, sets differs and
     * fails; break_off then makes the wire usable again. Without it ranks compare beforehand what
     * they are going to do (MPI libraries write beyond a receive buffer). */
    bool sized, differs;
    /* All moves of the list at once, in any order between peers; host memory: done when it returns.
     * A failure names the peer. After a failure it may be called again only where broken or differs
     * is set and break_off has returned. */
    fm_status (*exchange)(fm_wire *w, const fm_move *list, uint32_t n);
    /* Host wires: checks without waiting that every connection is open; an error names the peer. */
    fm_status (*alive)(fm_wire *w);
    /* Host wires, between exchanges: whether a peer is in break_off or gone, without waiting. Any
     * thread, one at a time with the other calls. */
    bool (*called)(fm_wire *w);
    /* Host wires: gives up the exchange under way. Every rank calls it, at any point: it sends
     * `word` to all peers, behind a message that is half sent, and discards what arrives before
     * theirs. Then all[size * bytes] holds the words by rank, the wire is as new. Waits for the
     * peers. */
    fm_status (*break_off)(fm_wire *w, const void *word, void *all, size_t bytes);
    /* Device wires: sets *done where everything that was exchanged has arrived, without waiting. */
    fm_status (*settled)(fm_wire *w, bool *done);
    /* Device wires: called after the backend queued a recording that holds exchanges. */
    fm_status (*launched)(fm_wire *w);
    /* Device wires, on the backend's thread, before give_up or close there: the backend drops its
     * recordings that hold exchanges, because the end of the wire waits for that. */
    void (*let_go)(fm_wire *w);
    /* Device wires: aborts what has not arrived; nothing can be exchanged afterwards. Any thread,
     * also while another one is in exchange. */
    void (*give_up)(fm_wire *w);
    void (*close)(fm_wire *w); /* frees w; gives up what has not arrived */
};

/* Sockets (AF_UNIX, SOCK_STREAM), fd[i] to rank i, fd[rank] unused. The sockets are taken over,
 * also on failure. step_timeout_s 0: waits as long as the peer lives. */
FM_CHECKED fm_status fm_wire_sockets(fm_wire **out, uint32_t rank, uint32_t size, const int *fd,
                                     double step_timeout_s);
/* Connected sockets, closed on exec, of every pair of ranks: fd[size * size]; fd[i * size + j] is
 * rank i's socket to rank j. */
FM_CHECKED fm_status fm_wire_mesh(int *fd, uint32_t size);
/* Wires of `size` ranks that live in this process, connected to each other: wire[size]. */
FM_CHECKED fm_status fm_wire_threads(fm_wire **wire, uint32_t size, double step_timeout_s);
/* The module fmstore_mpi.so beside the program (FM_MPI_MODULE names another place): MPI is opened
 * at run time, so the program runs without MPI. FM_EUNSUPPORTED: no module, or no MPI. */
FM_CHECKED fm_status fm_wire_mpi(fm_wire **out, double step_timeout_s);

/* What the program lends the module, which shares no code with it; the module's symbol. */
typedef struct fm_mpi_host {
    fm_status (*fail)(fm_status status, const char *fmt, ...) FM_PRINTF(2, 3);
    void *(*calloc)(size_t count, size_t bytes);
    void (*free)(void *ptr);
} fm_mpi_host;
#define FM_MPI_SYMBOL "fm_mpi_wire_3"
typedef fm_status (*fm_mpi_open)(fm_wire **out, double step_timeout_s, const fm_mpi_host *host);

/* ---- NCCL without CUDA: over a table that the CUDA module fills ---- */
#define FMC_NCCL_ID_BYTES 128u
typedef struct fmc_nccl_id {
    char internal[FMC_NCCL_ID_BYTES];
} fmc_nccl_id;
enum { FMC_NCCL_SUCCESS = 0, FMC_NCCL_IN_PROGRESS = 7, FMC_NCCL_INT8 = 0 };

/* As nccl.h declares them, streams and communicators as plain pointers; results are
 * ncclResult_t. */
typedef struct fmc_nccl fmc_nccl;
struct fmc_nccl {
    int (*get_unique_id)(fmc_nccl_id *id);
    int (*comm_init)(void **comm, int size, fmc_nccl_id id, int rank);
    int (*send)(const void *x, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *x, size_t count, int type, int peer, void *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*async_error)(void *comm, int *result);
    int (*abort)(void *comm);
    int (*destroy)(void *comm);
    const char *(*error_string)(int result);
    /* Of the device, not of NCCL; 0 or an error. enter makes this GPU the calling thread's current
     * one. A mark (a CUDA event) is set behind all that is queued in the stream; marked: 1 when
     * that is done, 0 not yet, -1 an error. It belongs to the stream's GPU. */
    int (*enter)(uint32_t card);
    int (*mark_new)(void **mark);
    int (*mark)(void *mark, void *stream);
    int (*marked)(void *mark);
    void (*mark_free)(void *mark); /* NULL is fine */
    /* records: whether the backend records what is queued now instead of running it. let_go ends
     * all its recordings; their memory stays until `forget` is called for each key. */
    bool (*records)(fm_backend *be);
    void (*let_go)(fm_backend *be);
};

typedef struct fmc_nccl_card { /* of a backend */
    const fmc_nccl *table;
    void *const *stream; /* points to the stream in which operations are being queued */
    uint32_t card;       /* its number on this machine */
    fm_backend *be;      /* for records and let_go; NULL: it records nothing */
} fmc_nccl_card;

/* A device wire for the ranks of c, whose host wire carries NCCL's id. card's table and stream are
 * borrowed. Every rank calls it. */
FM_CHECKED fm_status fm_wire_nccl(fm_wire **out, fm_comm *c, const fmc_nccl_card *card);
/* Whether a peer of c is gone or has broken off, without waiting. */
bool fm_comm_called(fm_comm *c);

/* The messages that a rank queued on a device's wire; zeroed at first. A send and its receive
 * cancel out: the sum of `unmet` over all ranks is 0 where every message has both, however many
 * exchanges each rank had (stages have different numbers of them). */
typedef struct fm_ledger {
    uint64_t sent[FM_COMM_MAX_RANKS], due[FM_COMM_MAX_RANKS]; /* messages to and from each rank */
    uint64_t unmet;
} fm_ledger;
void fm_ledger_enter(fm_ledger *l, uint32_t rank, const fm_move *list, uint32_t n);

/* Adds one exchange to a script. */
FM_CHECKED fm_status fm_script_note(fm_script *s, const fm_move *list, uint32_t n);

/* Watches the host wire of a comm that has a device wire: where exchanges were queued and the host
 * thread does not see that a peer has broken off (it waits for a GPU that waits for that peer), the
 * watch gives up the device wire. lock: held by the user of the host wire. */
typedef struct fm_watch fm_watch;
FM_CHECKED fm_status fm_watch_new(fm_watch **out, fm_wire *host, fm_wire *device,
                                  pthread_mutex_t *lock);
void fm_watch_queued(fm_watch *w, bool something); /* true: exchanges are under way */
/* Whether the device's wire was, or is being, given up; with lock held the answer stays true. */
bool fm_watch_gave_up(fm_watch *w);
void fm_watch_free(fm_watch *w); /* before either wire is closed; NULL is fine */

FM_END_DECLS
#endif
