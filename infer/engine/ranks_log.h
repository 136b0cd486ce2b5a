/* ranks_log.h - the log that keeps ranks in step: what the leader (ranks_leader.c) encodes and
 * sends, and a follower (ranks_follower.c) decodes and does. For these two alone; the rest of the
 * engine tells what happens by fmi_engine_log (engine.h). */
#ifndef FM_INFER_RANKS_LOG_H
#define FM_INFER_RANKS_LOG_H

#include "infer/comm.h"
#include "infer/engine/engine.h"

FM_BEGIN_DECLS

/* What an entry of the log is; its first word. */
enum {
    FMI_LOG_OP = 1,
    FMI_LOG_STEP,
    FMI_LOG_OPEN,
    FMI_LOG_MODEL,
    FMI_LOG_MODEL_CLOSE,
    FMI_LOG_END,
    FMI_LOG_HOOKS
};
#define FMI_LOG_MAX ((size_t)512 << 20)
/* Of a log from the beginning: what is lost cannot be sent again. */
#define FMI_LOG_ROOM ((size_t)64 << 10)
#define FMI_NUMBERS_MAX (1u << 20) /* of models and of sequences */

/* Of every rank, the leader's and the followers'. */
struct fmi_ranks {
    fm_buf log;
    uint32_t depth; /* inside of something that is in the log */
    bool meets;     /* the outermost of it ends with a meeting */
    uint64_t plan;  /* of the step in hand: the same on all ranks */
    uint32_t opens; /* the number of the sequence that is being opened */
    struct {
        fm_seq *seq;
        void *memory;
    } * hooked; /* a follower's: hooks of the next step, as rank 0 has them */
    size_t hookeds, hooked_cap;
    bool lacks_hooks;    /* there was no memory for them */
    void **model, **seq; /* by number; NULL: free */
    size_t models, seqs, model_cap, seq_cap;
};

/* There is room for number. */
void fmi_ranks_put(void **at, size_t *count, void *thing, uint32_t number);
/* Waits without limit from here on, for what may take any time: rank 0 has nothing to do, or a rank
 * reads a model. Gives the limit that there was. */
double fmi_ranks_wait(const fm_engine *e);
/* The meeting behind the outermost entry: rc is the worst of all ranks. */
FM_CHECKED fm_status fmi_ranks_meet(fm_engine *e, fm_status rc);

FM_END_DECLS
#endif
