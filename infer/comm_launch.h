/* comm_launch.h - how a program becomes several ranks.
 *
 * Rank 0 starts the other ranks as processes of its own program on its host, with its arguments and
 * an environment variable by which they find it. Under mpirun every rank was started already. */
#ifndef FM_INFER_COMM_LAUNCH_H
#define FM_INFER_COMM_LAUNCH_H

#include "infer/comm.h"

FM_BEGIN_DECLS

typedef struct fm_ranks fm_ranks; /* the processes that rank 0 started */

/* The rank of this process: *rank of *size from the environment that fm_ranks_launch or mpirun set
 * (Open MPI's OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE); 0 of 1 where none is set. *launched:
 * fm_ranks_launch set it. */
void fm_ranks_place(uint32_t *rank, uint32_t *size, bool *launched);

/* Rank 0: starts ranks 1 .. size - 1 with argv (argv[0] is kept, the program is this one) and
 * connects all by sockets. Call it before this process starts threads. FM_EIO: a rank failed. */
FM_CHECKED fm_status fm_ranks_launch(fm_ranks **out, fm_comm **comm, uint32_t size,
                                     char *const *argv, double step_timeout_s);
/* For ranks that were launched, and for all ranks under mpirun. */
FM_CHECKED fm_status fm_ranks_join(fm_comm **comm, double step_timeout_s);

/* Waits for the started processes, once the comm is freed; *bad: how many ended with a failure. A
 * process that does not end in a minute (its GPU hangs) is killed. NULL is fine. */
void fm_ranks_wait(fm_ranks *r, uint32_t *bad);

FM_END_DECLS
#endif
