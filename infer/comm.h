/* comm.h - ranks of one computation and what they tell each other.
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
 * Two kinds of failure. A rank that cannot take its part (no memory, its device failed), and ranks
 * that do different things (a message of another size than is due), break what the ranks do
 * together: every rank's operation in hand, or its next one, fails with that rank's text, what was
 * under way is thrown away, and every call returns the same until the ranks have met
 * (fm_comm_meet), which makes the comm whole again. A lost peer and one that says nothing for
 * step_timeout_s seconds are for good: the failure names this rank, the operation and the peer, and
 * every later call returns it. A peer that dies is told by its
 * connection, at once. Not thread-safe: one thread uses a comm at a time. */
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
 * host's); tells it to all. size 1 needs no wire (NULL). */
FM_CHECKED fm_status fm_comm_new(fm_comm **out, fm_wire *wire, const char *node);
void fm_comm_free(fm_comm *c); /* NULL is fine; peers that still wait see it */

uint32_t fm_comm_rank(const fm_comm *c); /* NULL: 0 */
uint32_t fm_comm_size(const fm_comm *c); /* NULL: 1 */
const char *fm_comm_wire(const fm_comm *c);
bool fm_comm_device_wire(const fm_comm *c); /* buffers go by a wire of the device's own */
/* Whether ranks that may differ in what comes next compare that first: their wire does not bear
 * messages of other sizes. */
bool fm_comm_compares(const fm_comm *c);
uint32_t fm_comm_nodes(const fm_comm *c);
uint32_t fm_comm_node(const fm_comm *c, uint32_t rank); /* from 0, in the order of their ranks */

/* The device whose buffers follow. device: a wire that moves its memory itself, or NULL (then it
 * cannot fail); taken over. */
fm_status fm_comm_attach(fm_comm *c, fm_backend *be, fm_wire *device);
/* The same with the wire that be's module has between GPUs, where every rank has one to itself and
 * finds the library; else buffers pass through the host's. Every rank calls it. */
FM_CHECKED fm_status fm_comm_attach_device(fm_comm *c, fm_backend *be);
/* Before the backend closes. */
void fm_comm_detach(fm_comm *c);

/* Some ranks of c as a comm of their own: member[n], ascending numbers in c, this rank among them.
 * Its ranks are numbered in that order, which is also the order of its sums. Only members call it.
 * Messages go over c's wires, in one line with c's own between the same two ranks, and count among
 * c's; what fails in the group fails in c. be: as fm_comm_attach, the device that c has. c outlives
 * the group. */
FM_CHECKED fm_status fm_comm_group(fm_comm **out, fm_comm *c, fm_backend *be,
                                   const uint32_t *member, uint32_t n);

/* ---- on device memory; n and per count floats ---- */
FM_CHECKED fm_status fm_comm_all_reduce(fm_comm *c, float *x, uint64_t n);
/* out[per] = sum over ranks of x[rank * per ..]; out may be that part of x. */
FM_CHECKED fm_status fm_comm_reduce_scatter(fm_comm *c, float *out, const float *x, uint64_t per);
/* out[size * per], rank by rank; mine may be its part of out. */
FM_CHECKED fm_status fm_comm_all_gather(fm_comm *c, float *out, const float *mine, uint64_t per);
/* x[n], of which rank i has floats per * i .. per * (i + 1) - 1, cut at n: all of it,
 * everywhere. */
FM_CHECKED fm_status fm_comm_gather_parts(fm_comm *c, float *x, uint64_t n, uint64_t per);
FM_CHECKED fm_status fm_comm_broadcast(fm_comm *c, void *x, size_t bytes, uint32_t root);
FM_CHECKED fm_status fm_comm_send(fm_comm *c, const void *x, size_t bytes, uint32_t to);
FM_CHECKED fm_status fm_comm_recv(fm_comm *c, void *x, size_t bytes, uint32_t from);
/* Every rank sends part[i] (bytes[i]) to rank i and receives as much into got[i]; NULL or 0: none.
 * The sizes agree on both sides. */
FM_CHECKED fm_status fm_comm_exchange(fm_comm *c, const void *const *part, const size_t *bytes,
                                      void *const *got, const size_t *got_bytes);
/* The same of memory that the host sees, with no look at the backend: for a thread that does not
 * use it. One thread at a time all the same. A peer may take part by fm_comm_exchange, unless a
 * device's wire carries that. */
FM_CHECKED fm_status fm_comm_exchange_host(fm_comm *c, const void *const *part, const size_t *bytes,
                                           void *const *got, const size_t *got_bytes);
/* Whether nothing has failed and every peer's connection stands, without waiting. */
FM_CHECKED fm_status fm_comm_check(fm_comm *c);
/* How long a peer may say nothing, and an exchange of the device's wire may take, from now on; 0:
 * as long as the peer lives. */
void fm_comm_step_timeout(fm_comm *c, double seconds);
double fm_comm_step_timeout_of(const fm_comm *c);

/* ---- exchanges that come again, of a comm with a device's wire (comm/record.c) ----
 *
 * What the backend records (fm_backend.record) may hold exchanges: every rank records the same
 * ones, and each time all of them run them again, or none does. That is NCCL's rule for graphs: a
 * message that was recorded meets the one that was recorded with it, never one that is queued as it
 * comes. So who records or replays agrees on it with all others first. Where the wire is made anew
 * all recordings are gone: fm_comm_age is another number. */

/* What was recorded, for the books of who sent what. */
typedef struct fm_script {
    struct fm_move *list; /* [n] of each peer and way one, whose bytes stand for all */
    size_t cap;
    uint32_t n;
    uint64_t calls, sent_bytes, received_bytes;
} fm_script;
/* Between record and recorded of the backend; to: empty, borrowed until NULL is given. */
void fm_comm_record(fm_comm *c, fm_script *to);
/* The backend replays key, recorded with s. */
FM_CHECKED fm_status fm_comm_replay(fm_comm *c, const fm_script *s, uint64_t key);
void fm_script_release(fm_script *s); /* empty again */
uint64_t fm_comm_age(const fm_comm *c);
/* Where parts of other ranks are added: a recording knows the address. */
const void *fm_comm_room(const fm_comm *c);

/* What every call returns now; FM_OK: nothing has failed. */
FM_CHECKED fm_status fm_comm_state(const fm_comm *c);
/* Returns when everything exchanged so far has arrived: before the host waits for the device, which
 * a peer that is gone would keep waiting. Host wires: at once. */
FM_CHECKED fm_status fm_comm_settle(fm_comm *c);

/* ---- on host memory ---- */
FM_CHECKED fm_status fm_comm_barrier(fm_comm *c);
FM_CHECKED fm_status fm_comm_tell(fm_comm *c, void *x, size_t bytes, uint32_t root);
/* root's bytes, of whatever length up to 1 GiB, replace the others'. */
FM_CHECKED fm_status fm_comm_tell_buf(fm_comm *c, fm_buf *b, uint32_t root);
/* out[size * bytes] */
FM_CHECKED fm_status fm_comm_collect(fm_comm *c, void *out, const void *mine, size_t bytes);
/* Of all ranks' statuses the worst, with the text of the lowest rank that has it, where all ranks
 * are at the same place. The comm stays usable. */
FM_CHECKED fm_status fm_comm_agree(fm_comm *c, fm_status mine);
/* The end of what the ranks did together, of which any rank may have left at any place with an
 * error: every rank calls it, with what became of its part. FM_OK: all did theirs, with the same
 * `same`. Else every rank gets the same failure (the worst, the lowest rank's text), what was under
 * way is gone, and the comm is whole again; a device's wire whose sends and receives do not match
 * is made anew. Costs a message of 8 bytes to each rank. */
FM_CHECKED fm_status fm_comm_meet(fm_comm *c, fm_status mine, uint64_t same);

typedef struct fm_comm_stats {
    uint64_t calls, bytes_sent, bytes_received; /* by this rank, since the beginning */
    double waited_s;
} fm_comm_stats;
fm_comm_stats fm_comm_stats_of(const fm_comm *c);

FM_END_DECLS
#endif
