/* fair_queue.h - which request starts next: waiting requests by model, the model with the least
 * service first.
 *
 * Each model has a counter of its service: a token of a prompt counts 1, one of an answer 2. The
 * counter of a model that was idle is raised to the least counter of the busy models, so that
 * idleness earns nothing (virtual token counters: Sheng et al., "Fairness in Serving Large Language
 * Models", OSDI 2024). Requests of one model start in order of arrival. */
#ifndef FM_INFER_FAIR_QUEUE_H
#define FM_INFER_FAIR_QUEUE_H

#include "infer/sched/request.h"

FM_BEGIN_DECLS

#define FMI_PROMPT_COST 1u
#define FMI_ANSWER_COST 2u

typedef struct fmi_flow {
    fm_digest id; /* of the model: two names of one model share a flow */
    uint64_t served;
    fmi_request *wait, **wait_end;
    uint32_t waiting, running;
    struct fmi_flow *next;
} fmi_flow;

typedef struct fmi_fair_queue {
    fmi_flow *flows;
    uint32_t waiting; /* requests in all flows */
} fmi_fair_queue;

void fmi_fair_queue_release(fmi_fair_queue *f); /* nothing waits any more */
/* The flow of this model, made if need be; NULL: no memory. */
fmi_flow *fmi_fair_queue_flow(fmi_fair_queue *f, const fm_model *m);
/* Queues r in r->flow. front: r had started and lost its pages. */
void fmi_fair_queue_wait(fmi_fair_queue *f, fmi_request *r, bool front);
/* The flow whose first request is next, NULL: nothing waits. */
fmi_flow *fmi_fair_queue_next(const fmi_fair_queue *f);
fmi_request *fmi_fair_queue_first(fmi_fair_queue *f, fmi_flow *w); /* taken out */
/* Takes out the first waiting request that is cancelled, NULL: none. */
fmi_request *fmi_fair_queue_cancelled(fmi_fair_queue *f);

FM_END_DECLS
#endif
