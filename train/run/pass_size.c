/* pass_size.c - the size of the pass of several children. */
#include "train/run/child.h"

#define PASS_ROWS 1024u /* more rows in a pass gain no speed; a child's micro-batch is never cut */

static uint32_t cap_of(uint64_t sum, uint32_t largest)
{
    return (uint32_t)FM_MIN(sum, (uint64_t)FM_MAX(largest, PASS_ROWS));
}

fmt_pass_size fmt_run_size(fmt_child *child, size_t n, fmt_lane **lane, size_t *lanes,
                           bool *recompute)
{
    uint64_t rows = 0;
    uint64_t labels = 0;
    uint64_t seqs = 0;
    fmt_pass_size most = {0};

    *lanes = 0;
    *recompute = false;
    for (size_t i = 0; i < n; i++) {
        const fmt_pass_size *s = &child[i].lane.most;
        size_t own = fmt_objective_setup_lanes(&child[i].goal, lane + *lanes);
        uint32_t times = (uint32_t)own; /* a frozen lane has as many rows as the child's lane */
        *lanes += own;
        rows += (uint64_t)s->rows * times;
        labels += (uint64_t)s->labels * times;
        seqs += (uint64_t)s->seqs * times;
        most.rows = FM_MAX(most.rows, s->rows * times);
        most.labels = FM_MAX(most.labels, s->labels * times);
        most.seqs = FM_MAX(most.seqs, s->seqs * times);
        most.longest = FM_MAX(most.longest, s->longest);
        *recompute = *recompute || child[i].job->recompute;
    }
    return (fmt_pass_size){.rows = cap_of(rows, most.rows),
                           .labels = cap_of(labels, most.labels),
                           .seqs = cap_of(seqs, most.seqs),
                           .longest = most.longest};
}

fm_status fmt_run_pass(fmt_pass **out, fm_backend *be, fmt_child *child, size_t n, fmt_lane **lane)
{
    bool recompute = false;
    size_t lanes = 0;
    fmt_pass_size cap = fmt_run_size(child, n, lane, &lanes, &recompute);

    return fmt_pass_new(out, be, lane, lanes, &cap, recompute);
}
