/* ranks_log.h - the log that keeps ranks in step: what the leader (ranks_leader.c) encodes and
 * sends, and a follower (ranks_follower.c) decodes and repeats. For these two alone; the rest of
 * the engine reports its calls through fmi_engine_log (engine.h). */
#ifndef FM_INFER_RANKS_LOG_H
#define FM_INFER_RANKS_LOG_H

#include "infer/comm.h"
#include "infer/engine/engine.h"

FM_BEGIN_DECLS

/* The kind of an entry of the log; its first 32 bits. */
enum {
    FMI_LOG_OP = 1,
    FMI_LOG_STEP,
    FMI_LOG_OPEN,
    FMI_LOG_MODEL,
    FMI_LOG_MODEL_CLOSE,
    FMI_LOG_END,
    FMI_LOG_HOOKS
};
#define FMI_LOG_MAX ((size_t)512 << 20) /* bytes */
/* Bytes that a log has from the beginning: an entry that cannot be appended is lost for good. */
#define FMI_LOG_ROOM ((size_t)64 << 10)
#define FMI_NUMBERS_MAX (1u << 20) /* numbers of models and of sequences are below it */

/* State of the leader and of each follower. */
struct fmi_ranks {
    fm_buf log;
    uint32_t depth; /* logged calls that this thread is inside of */
    bool meets;     /* the outermost of these calls ends with a meeting */
    uint64_t plan;  /* digest of the current step's plan: must be the same on all ranks */
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

/* Puts thing at `number` of a list that has capacity for it. */
void fmi_ranks_put(void **at, size_t *count, void *thing, uint32_t number);
/* Removes the comm's time limit, for waits of any length: rank 0 has nothing to do, or a rank reads
 * a model. Returns the limit that was set. */
double fmi_ranks_wait(const fm_engine *e);
/* The meeting after the outermost entry. rc: this rank's status; returns the worst of all. */
FM_CHECKED fm_status fmi_ranks_meet(fm_engine *e, fm_status rc);

FM_END_DECLS
#endif
