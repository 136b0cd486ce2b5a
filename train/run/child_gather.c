/* child_gather.c - a contrastive loss over all shards of a micro-batch.
 *
 * The negatives of an anchor are all other texts of its micro-batch, on all ranks. So the vectors
 * of a step must be known before its gradients: each rank computes those of its shards, all ranks
 * gather them, each computes the losses of whole micro-batches (in double, in the order of one
 * shard) and the gradients of all vectors, of which its own go back through the pass. This is the
 * gradient of the whole loss, while taking other ranks' vectors as constants gives only a part of
 * it. Vectors are computed once more for their gradients (Gao et al. 2021), unless the pass that
 * computed them is still in memory. */
#include "train/run/child.h"

#include "store/base/mem.h"

#include <string.h>

static bool has_rows(const fmt_child *ch, size_t i)
{
    return fmt_seq_rows(&ch->seq[i], &ch->how) > 0;
}

/* Packs the vectors of a rank's shards (out), or unpacks them; returns their number. */
static size_t pack(const fmt_child *ch, uint32_t rank, double *packed, bool out)
{
    size_t h = ch->net.arch.hidden, count = 0;

    for (uint32_t s = rank * ch->shards.own; s < (rank + 1) * ch->shards.own; s++)
        for (size_t k = 0; k < ch->micros; k++) {
            size_t begin, end;
            fmt_child_part(ch, k, s, &begin, &end);
            size_t floats = (end - begin) * h;
            if (packed && out)
                memcpy(packed + count * h, ch->goal.all.vec + begin * h, floats * sizeof(double));
            else if (packed)
                memcpy(ch->goal.all.vec + begin * h, packed + count * h, floats * sizeof(double));
            count += end - begin;
        }
    return count;
}

static fm_status exchange(fmt_child *ch)
{
    fm_comm *comm = ch->shards.comm;
    uint32_t ranks = fm_comm_size(comm);
    size_t h = ch->net.arch.hidden, most = 0;

    for (uint32_t r = 0; r < ranks; r++)
        most = FM_MAX(most, pack(ch, r, NULL, true));
    size_t bytes = most * h * sizeof(double);
    double *own = fm_calloc(most * h, sizeof(double));
    double *got = fm_calloc(most * h * ranks, sizeof(double));
    fm_status rc = fm_comm_agree(comm, own && got ? FM_OK : FM_ENOMEM);
    if (rc == FM_OK) {
        (void)pack(ch, fm_comm_rank(comm), own, true);
        rc = fm_comm_collect(comm, got, own, bytes);
    }
    for (uint32_t r = 0; rc == FM_OK && r < ranks; r++)
        (void)pack(ch, r, got + r * most * h, false);
    fm_free(own);
    fm_free(got);
    return rc;
}

/* From the order of sequences to that of anchors, positives, negatives (out), or back. */
static void lay_out(const fmt_child *ch, size_t begin, size_t end, size_t anchors, double *laid,
                    double *vec, bool out)
{
    size_t h = ch->net.arch.hidden, seen[3] = {0};

    for (size_t i = begin; i < end; i++) {
        uint32_t part = ch->of[i].part;
        if (!has_rows(ch, i))
            continue;
        double *at = laid + (part * anchors + seen[part]++) * h;
        memcpy(out ? at : vec + i * h, out ? vec + i * h : at, h * sizeof(double));
    }
}

static fm_status micro_loss(fmt_child *ch, size_t begin, size_t end)
{
    size_t h = ch->net.arch.hidden, n = 0, anchors = 0, negatives = 0;
    fmt_gathered *a = &ch->goal.all;

    for (size_t i = begin; i < end; i++) {
        uint32_t part = ch->of[i].part;
        bool there = has_rows(ch, i);
        n += there;
        anchors += there && part == 0;
        negatives += there && part == 2;
    }
    if (anchors == 0)
        return FM_OK;
    size_t cands = anchors + negatives, floats = n * h;
    size_t work = fmt_infonce_work((uint32_t)anchors, (uint32_t)cands, (uint32_t)h);
    double *v = fm_calloc(2 * floats + work, sizeof(double)), *dv = v + floats;
    if (!v)
        return FM_ENOMEM;
    lay_out(ch, begin, end, anchors, v, a->vec, true);
    fmt_infonce c = fmt_contrastive_loss(ch->c, (uint32_t)anchors, (uint32_t)cands, (uint32_t)h);
    c.anchor = v;
    c.cand = v + anchors * h;
    c.dloss = (double)ch->lane.dloss;
    c.danchor = dv;
    c.dcand = dv + anchors * h;
    c.work = dv + floats;
    fmt_infonce_run(&c);
    a->loss += c.loss;
    lay_out(ch, begin, end, anchors, dv, a->dvec, false);
    fm_free(v);
    return FM_OK;
}

/* Computes the vectors of this rank's shards. *stands: the last of them is still in the pass. */
static fm_status embed(fmt_child *ch, fmt_pass *p, bool *stands)
{
    fm_status rc = FM_OK;

    *stands = false;
    for (uint32_t s = 0; rc == FM_OK && s < ch->shards.own; s++) {
        fmt_child_begin_shard(ch, ch->shards.first + s);
        for (size_t k = 0; rc == FM_OK && k < ch->micros; k++) {
            fmt_lane *lane = &ch->lane;
            rc = fmt_child_load_micro(ch, k);
            *stands = rc == FM_OK && lane->batch.rows > 0;
            if (!*stands)
                continue;
            rc = fmt_pass_states(p, &lane, 1);
            FM_THEN(rc, fmt_contrastive_vectors(p, lane));
            lane->row_base += lane->batch.rows;
        }
    }
    return rc;
}

fm_status fmt_child_gather(fmt_child *ch, fmt_pass *p, bool *stands)
{
    fmt_gathered *a = &ch->goal.all;
    size_t floats = ch->seqs * ch->net.arch.hidden;
    fm_status rc = fm_grow(&a->vec, &a->vec_cap, floats, sizeof(double));

    *stands = false;
    FM_THEN(rc, fm_grow(&a->dvec, &a->dvec_cap, floats, sizeof(double)));
    if (rc == FM_OK) {
        memset(a->vec, 0, floats * sizeof(double));
        memset(a->dvec, 0, floats * sizeof(double));
        rc = embed(ch, p, stands);
    }
    if (ch->shards.comm)
        rc = fm_comm_agree(ch->shards.comm, rc);
    if (rc == FM_OK && ch->shards.comm)
        rc = exchange(ch);
    a->loss = 0.0;
    for (size_t k = 0; rc == FM_OK && k < ch->micros; k++)
        rc = micro_loss(ch, k > 0 ? ch->ends[k - 1] : 0, ch->ends[k]);
    a->given = rc == FM_OK;
    return rc;
}
