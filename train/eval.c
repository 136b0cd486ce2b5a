/* eval.c - the loss over what is held out, while a child trains: frozen lanes over its own net in a
 * small pass of their own, whose memory is taken before the first step. Nothing that trains is
 * touched. */
#include "train/child.h"

#include "store/base/mem.h"

struct fmi_eval {
    fmi_child *ch;
    fmi_goal goal;
    fmi_lane lane;
    fmi_pass *pass;
    fmi_seq_in *seq;
    fmi_seq_of *of;
    uint32_t *ends; /* [micros] */
    size_t micros;
    uint64_t units;
};

/* Micro-batches of as many examples as training takes, in the order given. */
static fm_status list(fmi_eval *ev)
{
    const fm_train_job *j = ev->ch->job;
    uint32_t batch = j->config.batch;
    size_t seqs = 0;

    if (!j->data) /* exact batches count rows */
        batch = FM_MAX(batch / fmi_goal_parts(j), 1u);
    ev->micros = (j->held_outs + batch - 1) / batch;
    ev->seq = fm_calloc(j->held_outs * FM_EXAMPLE_PARTS, sizeof(*ev->seq));
    ev->of = fm_calloc(j->held_outs * FM_EXAMPLE_PARTS, sizeof(*ev->of));
    ev->ends = fm_calloc(ev->micros, sizeof(*ev->ends));
    if (!ev->seq || !ev->of || !ev->ends)
        return FM_ENOMEM;
    for (size_t i = 0; i < j->held_outs; i++) {
        seqs += fmi_goal_seqs(ev->seq + seqs, ev->of + seqs, j->held_out[i], (uint32_t)i);
        ev->ends[i / batch] = (uint32_t)seqs;
    }
    ev->units = fmi_goal_units(&j->config, ev->seq, ev->of, seqs);
    return ev->units ? FM_OK
                     : fm_fail(FM_EINVAL, "%s: nothing of what is held out counts", j->name);
}

fm_status fmi_eval_open(fmi_eval **out, fmi_child *ch)
{
    fmi_eval *ev = fm_calloc(1, sizeof(*ev));
    fmi_lane *lanes[2];
    size_t at = 0;

    *out = ev;
    if (!ev)
        return FM_ENOMEM;
    ev->ch = ch;
    ev->goal = (fmi_goal){.job = ch->job, .c = ch->c, .how = ch->how, .mode = ch->goal.mode};
    ev->lane = (fmi_lane){.net = &ch->net, .c = ch->c};
    fm_status rc = list(ev);
    for (size_t k = 0; rc == FM_OK && k < ev->micros; at = ev->ends[k++])
        fmi_size_grow(&ev->lane.most, ev->seq + at, ev->ends[k] - at, &ch->how);
    fmi_pass_size cap = ev->lane.most;
    if (rc == FM_OK && cap.longest > ch->net.arch.max_positions)
        rc = fm_fail(FM_ELIMIT, "%s: held out examples of %u tokens, the model has %u positions",
                     ch->job->name, cap.longest + 1, ch->net.arch.max_positions);
    if (rc == FM_OK)
        rc = fmi_goal_open(&ev->goal, ch->e, ch->p, &ev->lane, ch->stem);
    if (rc < 0)
        return rc;
    uint32_t n = (uint32_t)fmi_goal_lanes(&ev->goal, lanes);
    cap.rows *= n;
    cap.labels *= n;
    cap.seqs *= n;
    return fmi_pass_new(&ev->pass, ch->net.be, lanes, n, &cap, false);
}

void fmi_eval_free(fmi_eval *ev)
{
    if (!ev)
        return;
    fmi_pass_free(ev->pass);
    fmi_goal_release(&ev->goal);
    fmi_batch_release(&ev->lane.batch);
    fm_free(ev->seq);
    fm_free(ev->of);
    fm_free(ev->ends);
    fm_free(ev);
}

fm_status fmi_eval_run(fmi_eval *ev, fm_evaluation *out)
{
    fmi_lane *lane = &ev->lane, *lanes[2];
    double loss = 0.0;
    fm_status rc = FM_OK;

    lane->dloss = 1.0f;
    ev->goal.hits = 0;
    ev->goal.tried = 0;
    for (size_t k = 0; rc == FM_OK && k < ev->micros; k++) {
        size_t at = k > 0 ? ev->ends[k - 1] : 0;
        lane->in = ev->seq + at;
        lane->of = ev->of + at;
        lane->ins = ev->ends[k] - at;
        rc = fmi_batch_build(&lane->batch, lane->in, lane->ins, &ev->ch->how);
        if (rc == FM_OK)
            rc = fmi_goal_load(&ev->goal);
        if (rc == FM_OK)
            rc = fmi_pass_run(ev->pass, lanes, fmi_goal_lanes(&ev->goal, lanes));
        loss += lane->loss;
    }
    *out = (fm_evaluation){
        .loss = loss / (double)ev->units,
        .accuracy = ev->goal.tried ? (double)ev->goal.hits / (double)ev->goal.tried : -1.0,
        .units = ev->units};
    return rc;
}
