/* comm_launch.h - how a program becomes several ranks.
 *
 * Rank 0 of a host begins the others as processes of its own program, with its arguments and a word
 * in the environment; they find it there. Under mpirun every rank was begun already. */
#ifndef FM_INFER_COMM_LAUNCH_H
#define FM_INFER_COMM_LAUNCH_H

#include "infer/comm.h"

FM_BEGIN_DECLS

typedef struct fm_ranks fm_ranks; /* the processes that rank 0 began */

/* This process's place: *rank of *size as the environment says, by fm_ranks_launch or by mpirun
 * (Open MPI's OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE); 0 of 1 where it says nothing.
 * *launched: by fm_ranks_launch. */
void fm_ranks_place(uint32_t *rank, uint32_t *size, bool *launched);

/* Rank 0: begins ranks 1 .. size - 1 with argv (argv[0] is kept, the program is this one) and
 * connects all by sockets. Call it before this process has threads of its own. FM_EIO: one could
 * not begin. */
FM_CHECKED fm_status fm_ranks_launch(fm_ranks **out, fm_comm **comm, uint32_t size,
                                     char *const *argv, double step_timeout_s);
/* Ranks that were launched, and all ranks under mpirun. */
FM_CHECKED fm_status fm_ranks_join(fm_comm **comm, double step_timeout_s);

/* Waits for them, once the comm is freed; *bad: how many ended badly. One that does not end in a
 * minute (its GPU hangs) is killed. NULL is fine. */
void fm_ranks_wait(fm_ranks *r, uint32_t *bad);

FM_END_DECLS
#endif
