/* eval.c - the loss over held-out examples while a child trains: frozen lanes over its own net in a
 * small pass of their own, whose memory is taken before the first step. Nothing that trains is
 * touched.
 *
 * Pieces are micro-batches of as many examples as training takes, cut into the recipe's shards
 * where the loss is a sum over examples (a contrastive loss keeps its micro-batch whole). With n
 * ranks each computes every n-th piece; the sums of pieces are gathered and added in their order,
 * so they have the bits of one rank. */
#include "train/run/child.h"

#include "store/base/mem.h"

typedef struct said { /* Sums of one piece. */
    double loss;
    uint64_t hits, tried;
} said;

struct fmt_eval {
    fmt_child *ch;
    fmt_objective_setup goal;
    fmt_lane lane;
    fmt_pass *pass;
    fmt_seq_in *seq;
    fmt_seq_of *of;
    uint32_t *ends; /* [pieces] */
    size_t pieces;
    said *own; /* [per] sums of this rank's pieces */
    said *all; /* [ranks * per], rank by rank */
    size_t per;
    uint64_t units;
};

/* Lists the pieces: whole examples in the order given; some pieces may be empty. */
static fm_status list(fmt_eval *ev)
{
    const fm_train_job *j = ev->ch->job;
    uint32_t ranks = fm_comm_size(ev->ch->ps.comm);
    uint32_t cuts = j->config.objective == FM_OBJECTIVE_CONTRASTIVE ? 1 : j->config.shards;
    size_t batch = j->config.batch, seqs = 0, i = 0;

    if (!j->data) /* exact batches count rows */
        batch = FM_MAX(batch / fmt_objective_setup_parts(j), (size_t)1);
    ev->pieces = (j->held_outs + batch - 1) / batch * cuts;
    ev->per = (ev->pieces + ranks - 1) / ranks;
    ev->seq = fm_calloc(j->held_outs * FM_EXAMPLE_PARTS, sizeof(*ev->seq));
    ev->of = fm_calloc(j->held_outs * FM_EXAMPLE_PARTS, sizeof(*ev->of));
    ev->ends = fm_calloc(ev->pieces, sizeof(*ev->ends));
    ev->own = fm_calloc(ev->per, sizeof(*ev->own));
    ev->all = fm_calloc(ev->per * ranks, sizeof(*ev->all));
    if (!ev->seq || !ev->of || !ev->ends || !ev->own || !ev->all)
        return FM_ENOMEM;
    for (size_t k = 0; k < ev->pieces; k++) {
        size_t first = k / cuts * batch, units = FM_MIN(batch, j->held_outs - first);
        for (; i < first + units * (k % cuts + 1) / cuts; i++)
            seqs += fmt_objective_setup_seqs(ev->seq + seqs, ev->of + seqs, j->held_out[i],
                                             (uint32_t)i);
        ev->ends[k] = (uint32_t)seqs;
    }
    ev->units = fmt_objective_setup_units(&j->config, ev->seq, ev->of, seqs);
    return ev->units ? FM_OK
                     : fm_fail(FM_EINVAL, "%s: nothing of what is held out counts", j->name);
}

fm_status fmt_eval_open(fmt_eval **out, fmt_child *ch)
{
    fmt_eval *ev = fm_calloc(1, sizeof(*ev));
    fmt_lane *lanes[2];
    size_t at = 0;

    *out = ev;
    if (!ev)
        return FM_ENOMEM;
    ev->ch = ch;
    ev->goal =
        (fmt_objective_setup){.job = ch->job, .c = ch->c, .how = ch->how, .mode = ch->goal.mode};
    ev->lane = (fmt_lane){.net = &ch->net, .c = ch->c};
    FM_TRY(list(ev));
    for (size_t k = 0; k < ev->pieces; at = ev->ends[k++])
        fmt_size_grow(&ev->lane.most, ev->seq + at, ev->ends[k] - at, &ch->how);
    fmt_pass_size cap = ev->lane.most;
    if (cap.longest > ch->net.arch.max_positions)
        return fm_fail(FM_ELIMIT, "%s: held out examples of %u tokens, the model has %u positions",
                       ch->job->name, cap.longest + 1, ch->net.arch.max_positions);
    FM_TRY(fmt_objective_setup_open(&ev->goal, ch->e, ch->p, &ev->lane, ch->stem));
    uint32_t n = (uint32_t)fmt_objective_setup_lanes(&ev->goal, lanes);
    cap.rows *= n;
    cap.labels *= n;
    cap.seqs *= n;
    FM_TRY(fmt_pass_new(&ev->pass, ch->net.be, lanes, n, &cap, false));
    ev->pass->stage = ch->stage;
    return FM_OK;
}

void fmt_eval_free(fmt_eval *ev)
{
    if (!ev)
        return;
    fmt_pass_free(ev->pass);
    fmt_objective_setup_release(&ev->goal);
    fmt_batch_release(&ev->lane.batch);
    fm_free(ev->seq);
    fm_free(ev->of);
    fm_free(ev->ends);
    fm_free(ev->own);
    fm_free(ev->all);
    fm_free(ev);
}

static fm_status run_piece(fmt_eval *ev, size_t k, said *out)
{
    fmt_lane *lane = &ev->lane, *lanes[2];
    size_t at = k > 0 ? ev->ends[k - 1] : 0;

    *out = (said){0};
    if (at == ev->ends[k])
        return FM_OK;
    lane->in = ev->seq + at;
    lane->of = ev->of + at;
    lane->ins = ev->ends[k] - at;
    ev->goal.hits = 0;
    ev->goal.tried = 0;
    fm_status rc = fmt_batch_build(&lane->batch, lane->in, lane->ins, &ev->ch->how);
    FM_THEN(rc, fmt_objective_setup_load(&ev->goal));
    FM_THEN(rc, fmt_pass_run(ev->pass, lanes, fmt_objective_setup_lanes(&ev->goal, lanes)));
    *out = (said){lane->loss, ev->goal.hits, ev->goal.tried};
    return rc;
}

fm_status fmt_eval_run(fmt_eval *ev, fm_evaluation *out)
{
    fm_comm *comm = ev->ch->ps.comm;
    uint32_t ranks = fm_comm_size(comm);
    said sum = {0};
    fm_status rc = FM_OK;

    ev->lane.dloss = 1.0f;
    for (size_t k = fm_comm_rank(comm); rc == FM_OK && k < ev->pieces; k += ranks)
        rc = run_piece(ev, k, &ev->own[k / ranks]);
    if (comm && !ev->ch->stage) /* other stages see a failure in their receives */
        rc = fm_comm_agree(comm, rc);
    if (rc == FM_OK && comm)
        rc = fm_comm_collect(comm, ev->all, ev->own, ev->per * sizeof(*ev->own));
    for (size_t k = 0; rc == FM_OK && k < ev->pieces; k++) {
        const said *one = comm ? &ev->all[k % ranks * ev->per + k / ranks] : &ev->own[k];
        sum.loss += one->loss;
        sum.hits += one->hits;
        sum.tried += one->tried;
    }
    if (rc == FM_OK && ev->ch->stage)
        rc = fmt_stage_tell(ev->ch->stage, &sum, sizeof(sum));
    *out = (fm_evaluation){.loss = sum.loss / (double)ev->units,
                           .accuracy = sum.tried ? (double)sum.hits / (double)sum.tried : -1.0,
                           .units = ev->units};
    return rc;
}
