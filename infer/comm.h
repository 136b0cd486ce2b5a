/* comm.h - the ranks of one computation and the messages between them.
 *
 * A rank is one engine with one device: a process, or in tests a thread. Every rank calls the same
 * operations in the same order with the same sizes. Sums are part of the contract: every element is
 * ((x_0 + x_1) + x_2) + .. over ascending ranks, one float32 rounding each, whatever the size, the
 * rank that computes it and the wire that carries it. So a reduction exchanges parts, adds them
 * with the backend's own `add` and gathers; a wire moves bytes and computes nothing (a library's
 * own reduction has an order of its own). What moves is what a ring moves: 2 (size - 1) / size of
 * the buffer, to and from each rank.
 *
 * A wire (comm/wire.h) is sockets between processes of one host or threads of one process, MPI, or
 * NCCL on device memory. Buffers are device memory of the backend given to fm_comm_attach; where
 * the wire reads host memory and the device's is not visible they are staged.
 *
 * There are two kinds of failure. Some end what the ranks do together: a rank cannot take its part
 * (no memory, its device failed), or ranks do different things (a message of another size than is
 * due). Then the current or next operation of every rank fails with the text of that rank, messages
 * under way are dropped, and every call returns the same failure until the ranks have met
 * (fm_comm_meet), which makes the comm whole again. Others are for good: a peer is lost (its
 * connection shows that at once), or sends nothing for step_timeout_s seconds. The failure names
 * this rank, the operation and the peer, and every later call returns it. Not thread-safe: one
 * thread uses a comm at a time. */
#ifndef FM_INFER_COMM_H
#define FM_INFER_COMM_H

#include "store/base/buf.h"
#include "store/base/error.h"

FM_BEGIN_DECLS

#define FM_COMM_MAX_RANKS 256u

typedef struct fm_comm fm_comm;
typedef struct fm_backend fm_backend;
typedef struct fm_wire fm_wire;

/* Takes the wire over, also when it fails. node: a name that ranks of one machine share (NULL: the
 * host's); it is sent to all ranks. size 1 needs no wire (NULL). */
FM_CHECKED fm_status fm_comm_new(fm_comm **out, fm_wire *wire, const char *node);
void fm_comm_free(fm_comm *c); /* NULL is fine; peers that still wait see it */

uint32_t fm_comm_rank(const fm_comm *c); /* NULL: 0 */
uint32_t fm_comm_size(const fm_comm *c); /* NULL: 1 */
const char *fm_comm_wire(const fm_comm *c);
bool fm_comm_device_wire(const fm_comm *c); /* buffers go over a wire of the device itself */
/* Whether ranks compare their next exchanges before they make them: the wire cannot tell that a
 * message has another size than is due. */
bool fm_comm_compares(const fm_comm *c);
uint32_t fm_comm_nodes(const fm_comm *c);
uint32_t fm_comm_node(const fm_comm *c, uint32_t rank); /* from 0, in the order of their ranks */

/* Sets the device whose buffers the operations move. device: a wire that moves the device's memory
 * itself, taken over, or NULL (then attaching cannot fail). */
fm_status fm_comm_attach(fm_comm *c, fm_backend *be, fm_wire *device);
/* The same with the wire between GPUs of be's module, where every rank has a GPU to itself and
 * finds the library; else buffers go through host memory. Every rank calls it. */
FM_CHECKED fm_status fm_comm_attach_device(fm_comm *c, fm_backend *be);
/* Before the backend closes. */
void fm_comm_detach(fm_comm *c);

/* Some ranks of c as a comm of their own: member[n], ascending numbers in c, this rank among them.
 * Its ranks are numbered in that order, which is also the order of its sums. Only members call it.
 * Messages go over c's wires, in order with c's own, and count in c's statistics; what fails in
 * the group fails in c. be: the device attached to c. c outlives the group. */
FM_CHECKED fm_status fm_comm_group(fm_comm **out, fm_comm *c, fm_backend *be,
                                   const uint32_t *member, uint32_t n);

/* ---- on device memory; n and per count floats ---- */
FM_CHECKED fm_status fm_comm_all_reduce(fm_comm *c, float *x, uint64_t n);
/* out[per] = sum over ranks of x[rank * per ..]; out may be that part of x. */
FM_CHECKED fm_status fm_comm_reduce_scatter(fm_comm *c, float *out, const float *x, uint64_t per);
/* out[size * per], rank by rank; mine may be its part of out. */
FM_CHECKED fm_status fm_comm_all_gather(fm_comm *c, float *out, const float *mine, uint64_t per);
/* Rank i has floats per * i .. per * (i + 1) - 1 of x[n], cut at n; then every rank has all. */
FM_CHECKED fm_status fm_comm_gather_parts(fm_comm *c, float *x, uint64_t n, uint64_t per);
FM_CHECKED fm_status fm_comm_broadcast(fm_comm *c, void *x, size_t bytes, uint32_t root);
FM_CHECKED fm_status fm_comm_send(fm_comm *c, const void *x, size_t bytes, uint32_t to);
FM_CHECKED fm_status fm_comm_recv(fm_comm *c, void *x, size_t bytes, uint32_t from);
/* Every rank sends part[i] (bytes[i]) to rank i and receives as much into got[i]; NULL or 0: none.
 * The sizes agree on both sides. */
FM_CHECKED fm_status fm_comm_exchange(fm_comm *c, const void *const *part, const size_t *bytes,
                                      void *const *got, const size_t *got_bytes);
/* The same on memory that the host sees, without using the backend: for threads that may not use
 * it. One thread at a time. A peer may use fm_comm_exchange, unless a device's wire carries it. */
FM_CHECKED fm_status fm_comm_exchange_host(fm_comm *c, const void *const *part, const size_t *bytes,
                                           void *const *got, const size_t *got_bytes);
/* Whether nothing has failed and every peer's connection stands, without waiting. */
FM_CHECKED fm_status fm_comm_check(fm_comm *c);
/* Sets how long a peer may send nothing, and an exchange of the device's wire may take, from now
 * on; 0: as long as the peer lives. */
void fm_comm_step_timeout(fm_comm *c, double seconds);
double fm_comm_step_timeout_of(const fm_comm *c);

/* ---- recorded exchanges, of a comm with a device's wire (comm/record.c) ----
 *
 * A recorded step (fm_backend.record) may hold exchanges: every rank records the same ones, and
 * each time all ranks replay them, or none does. That is NCCL's rule for graphs: a recorded message
 * meets the one that was recorded with it, never one that is queued outside a graph. So a rank
 * agrees with all others before it records or replays. When the wire is made anew all recordings
 * are void: fm_comm_age changes. */

/* The exchanges of a recording, for the ledger of sent and received bytes. */
typedef struct fm_script {
    struct fm_move *list; /* [n] one for each peer and direction; bytes: a digest of its sizes */
    size_t cap;
    uint32_t n;
    uint64_t calls, sent_bytes, received_bytes;
} fm_script;
/* Called between record and recorded of the backend; to: empty, borrowed until NULL is given. */
void fm_comm_record(fm_comm *c, fm_script *to);
/* Replays what the backend recorded under key with s. */
FM_CHECKED fm_status fm_comm_replay(fm_comm *c, const fm_script *s, uint64_t key);
void fm_script_release(fm_script *s); /* empty again */
uint64_t fm_comm_age(const fm_comm *c);
/* The buffer for parts of other ranks that are added here; a recording holds its address. */
const void *fm_comm_room(const fm_comm *c);

/* What every call returns now; FM_OK: nothing has failed. */
FM_CHECKED fm_status fm_comm_state(const fm_comm *c);
/* Returns when everything exchanged so far has arrived. Call it before the host waits for the
 * device, which would wait forever for a peer that is gone. Host wires: returns at once. */
FM_CHECKED fm_status fm_comm_settle(fm_comm *c);

/* ---- on host memory ---- */
FM_CHECKED fm_status fm_comm_barrier(fm_comm *c);
/* root's x replaces the others'. */
FM_CHECKED fm_status fm_comm_tell(fm_comm *c, void *x, size_t bytes, uint32_t root);
/* root's bytes, up to 1 GiB, replace the others'; the lengths may differ before. */
FM_CHECKED fm_status fm_comm_tell_buf(fm_comm *c, fm_buf *b, uint32_t root);
/* out[size * bytes] */
FM_CHECKED fm_status fm_comm_collect(fm_comm *c, void *out, const void *mine, size_t bytes);
/* Returns the worst of all ranks' statuses, with the text of the lowest rank that has it. All ranks
 * call it at the same place. The comm stays usable. */
FM_CHECKED fm_status fm_comm_agree(fm_comm *c, fm_status mine);
/* Ends what the ranks did together. Any rank may have left it at any place with an error; every
 * rank calls this with the status of its part. FM_OK: all parts succeeded, with equal values of
 * `same`. Else every rank gets the same failure (the worst, the lowest rank's text), messages under
 * way are dropped, and the comm is whole again; a device's wire whose sends and receives do not
 * match is made anew. Costs a message of 8 bytes to each rank. */
FM_CHECKED fm_status fm_comm_meet(fm_comm *c, fm_status mine, uint64_t same);

typedef struct fm_comm_stats {
    uint64_t calls, bytes_sent, bytes_received; /* by this rank, since the beginning */
    double waited_s;
} fm_comm_stats;
fm_comm_stats fm_comm_stats_of(const fm_comm *c);

FM_END_DECLS
#endif
