/* pipeline_1f1b.c - see pipeline_1f1b.h. A step is planned first: which micro-batches of which
 * shards share a pass, and how many of its rows go to a neighbour; every rank finds the same plan
 * by itself. Then the passes run, forwards ahead of backwards by the stages that follow. */
#include "train/run/pipeline_1f1b.h"

#include "store/base/mem.h"
#include "train/net/method.h"

#include <stdio.h>
#include <string.h>

typedef struct bit { /* one child's part of a pass */
    size_t child;
    bool went_before, goes_on;
} bit;

typedef struct item {    /* a pass of the step */
    uint32_t shard;      /* number among this rank's shards */
    size_t k;            /* micro-batch */
    size_t first, count; /* its bits */
    fmt_rows_to before, behind;
} item;

typedef struct flight {
    fmt_pass *pass;
    fmt_lane *lane;            /* [n] each with a batch and kept x A^T of its own */
    fmt_objective_setup *goal; /* [n] copies of the children's, for these lanes */
    fmt_lane **in;             /* [2 n] lanes of the current pass */
    size_t count;
} flight;

struct fmt_pipeline {
    fmt_stage *s;
    fm_backend *be;
    fmt_child *child;
    size_t n;
    fmt_pass_size cap;
    flight *flight; /* [most] */
    uint32_t most;
    item *item;
    bit *bit;
    size_t items, bits, item_cap, bit_cap;
    uint32_t begun, kept; /* shards whose forwards have begun; shards whose backwards are done */
    fmt_tally *tally;
};

/* ---- life ---- */
static void copy_lane(fmt_lane *to, const fmt_lane *from, fmt_objective_setup *goal)
{
    *to = *from;
    memset(&to->batch, 0, sizeof(to->batch));
    to->mem = NULL;
    to->objective_ctx = goal;
}

/* Adds the lanes of a child: its own, and its frozen one. */
static void put_lanes(flight *l, size_t child)
{
    l->count += fmt_objective_setup_lanes(&l->goal[child], l->in + l->count);
}

static fm_status new_flight(fmt_pipeline *f, flight *out, bool recompute)
{
    out->lane = fm_calloc(f->n, sizeof(*out->lane));
    out->goal = fm_calloc(f->n, sizeof(*out->goal));
    out->in = fm_calloc(2 * f->n, sizeof(fmt_lane *));
    if (!out->lane || !out->goal || !out->in)
        return FM_ENOMEM;
    for (size_t i = 0; i < f->n; i++) {
        const fmt_child *ch = &f->child[i];
        fmt_objective_setup *g = &out->goal[i];
        *g = ch->goal;
        g->lane = &out->lane[i];
        copy_lane(g->lane, &ch->lane, g);
        copy_lane(&g->aux, &ch->goal.aux, g);
        put_lanes(out, i);
    }
    fmt_pass *kin = out == f->flight ? NULL : f->flight[0].pass;
    FM_TRY(fmt_pass_new_beside(&out->pass, f->be, out->in, out->count, &f->cap, recompute, kin));
    out->pass->stage = f->s;
    return FM_OK;
}

fm_status fmt_pipeline_new(fmt_pipeline **out, fmt_stage *s, fm_backend *be, fmt_child *child,
                           size_t n, fmt_lane **lane)
{
    fmt_pipeline *f = fm_calloc(1, sizeof(*f));
    bool recompute = false;
    size_t lanes = 0;

    *out = f;
    if (!f)
        return FM_ENOMEM;
    *f = (fmt_pipeline){.s = s, .be = be, .child = child, .n = n};
    f->cap = fmt_run_size(child, n, lane, &lanes, &recompute);
    uint64_t passes = 0;
    for (size_t i = 0; i < n; i++)
        passes += (uint64_t)child[i].shards.own * child[i].most_micros;
    f->most = (uint32_t)FM_MIN((uint64_t)(s->stages - s->mine), FM_MAX(passes, (uint64_t)1));
    f->flight = fm_calloc(f->most, sizeof(*f->flight));
    FM_TRY(f->flight ? FM_OK : FM_ENOMEM);
    for (uint32_t i = 0; i < f->most; i++)
        FM_TRY(new_flight(f, &f->flight[i], recompute));
    return FM_OK;
}

void fmt_pipeline_free(fmt_pipeline *f)
{
    if (!f)
        return;
    for (uint32_t i = f->flight ? f->most : 0; i-- > 0;) {
        flight *l = &f->flight[i];
        fmt_pass_free(l->pass);
        for (size_t k = 0; l->lane && l->goal && k < f->n; k++) {
            fmt_batch_release(&l->lane[k].batch);
            fmt_batch_release(&l->goal[k].aux.batch);
            if (l->lane[k].mem)
                f->be->free(f->be, l->lane[k].mem);
        }
        fm_free(l->lane);
        fm_free(l->goal); /* the child owns what it points at */
        fm_free(l->in);
    }
    fm_free(f->flight);
    fm_free(f->item);
    fm_free(f->bit);
    fm_free(f);
}

uint64_t fmt_pipeline_bytes(const fmt_pipeline *f, uint32_t *passes)
{
    uint64_t bytes = 0;

    *passes = f->most;
    for (uint32_t i = 0; i < f->most; i++)
        bytes += fmt_pass_bytes(f->flight[i].pass);
    return bytes;
}

/* ---- which passes a step has ---- */
/* A child's rows in a pass (all), and those of its own lane (own). */
typedef struct size {
    fmt_pass_size all;
    uint32_t own;
    uint64_t tokens;
} size;

static void grow(size *s, const fmt_seq_in *seq, const fmt_batch_how *how)
{
    uint32_t rows = fmt_seq_rows(seq, how);

    s->all.rows += rows;
    s->all.labels += fmt_seq_picked(seq, how);
    s->all.seqs += rows > 0;
}

/* Sizes of a child's micro-batch k in this rank's i-th shard; all 0: it has no rows. */
static size size_of(fmt_child *ch, uint32_t i, size_t k)
{
    const fmt_batch_how aux = fmt_objective_setup_aux_how(&ch->goal);
    fmt_lane *lanes[2];
    bool two = fmt_objective_setup_lanes(&ch->goal, lanes) > 1;
    size s = {0};
    size_t begin, end;

    if (!ch->at_work || i >= ch->shards.own || k >= ch->micros || ch->targets == 0)
        return s;
    fmt_child_part(ch, k, ch->shards.first + i, &begin, &end);
    for (size_t j = begin; j < end; j++) {
        grow(&s, &ch->seq[j], &ch->how);
        s.tokens += ch->seq[j].len;
    }
    s.own = s.all.rows;
    for (size_t j = begin; two && s.own > 0 && j < end; j++)
        grow(&s, &ch->seq[j], &aux);
    return s;
}

static fm_status new_item(fmt_pipeline *f, uint32_t shard, size_t k)
{
    FM_TRY(fm_grow(&f->item, &f->item_cap, f->items + 1, sizeof(*f->item)));

    f->item[f->items++] = (item){.shard = shard, .k = k, .first = f->bits};
    return FM_OK;
}

/* Whether the child has an earlier bit in the same shard, whose goes_on is then set. */
static bool follows(fmt_pipeline *f, uint32_t shard, size_t child)
{
    for (size_t i = f->items; i-- > 0 && f->item[i].shard == shard;)
        for (size_t b = f->item[i].first; b < f->item[i].first + f->item[i].count; b++)
            if (f->bit[b].child == child) {
                f->bit[b].goes_on = true;
                return true;
            }
    return false;
}

static fm_status add_bit(fmt_pipeline *f, uint32_t shard, size_t child, const size *own)
{
    const fmt_stage *s = f->s;
    const fmt_lane *lane = &f->flight[0].lane[child];
    size_t row = f->child[child].net.arch.hidden * sizeof(float);
    FM_TRY(fm_grow(&f->bit, &f->bit_cap, f->bits + 1, sizeof(*f->bit)));
    f->bit[f->bits] = (bit){.child = child, .went_before = follows(f, shard, child)};
    f->bits++;
    item *it = &f->item[f->items - 1];
    it->count++;
    it->before.on += own->all.rows * row;
    it->behind.on += own->all.rows * row;
    it->before.back += lane->first < s->split.begin[s->mine] ? own->own * row : 0;
    it->behind.back += lane->first < s->split.begin[s->mine + 1] ? own->own * row : 0;
    return FM_OK;
}

/* Plans the children's k-th micro-batches of a shard, in as few passes as they fit in. */
static fm_status plan_micro(fmt_pipeline *f, uint32_t shard, size_t k)
{
    fmt_pass_size in = {0};
    bool open = false;

    for (size_t c = 0; c < f->n; c++) {
        fmt_child *ch = &f->child[c];
        const size own = size_of(ch, shard, k);
        if (ch->at_work && shard < ch->shards.own)
            ch->shards.sum[ch->shards.first + shard].tokens += own.tokens;
        if (own.own == 0)
            continue;
        if (!open || in.rows + own.all.rows > f->cap.rows ||
            in.labels + own.all.labels > f->cap.labels || in.seqs + own.all.seqs > f->cap.seqs) {
            FM_TRY(new_item(f, shard, k));
            in = (fmt_pass_size){0};
            open = true;
        }
        in.rows += own.all.rows;
        in.labels += own.all.labels;
        in.seqs += own.all.seqs;
        FM_TRY(add_bit(f, shard, c, &own));
    }
    return FM_OK;
}

static fm_status plan_step(fmt_pipeline *f, uint32_t *shards)
{
    size_t micros = 0;

    f->items = f->bits = 0;
    f->begun = f->kept = 0;
    *shards = 0;
    for (size_t c = 0; c < f->n; c++) {
        fmt_child *ch = &f->child[c];
        if (!ch->at_work)
            continue;
        memset(ch->shards.sum + ch->shards.first, 0, ch->shards.own * sizeof(fmt_shard_sum));
        *shards = FM_MAX(*shards, ch->shards.own);
        micros = FM_MAX(micros, ch->micros);
    }
    for (uint32_t s = 0; s < *shards; s++)
        for (size_t k = 0; k < micros; k++)
            FM_TRY(plan_micro(f, s, k));
    return FM_OK;
}

/* ---- shards ---- */
static void begin_shards(fmt_pipeline *f, uint32_t upto)
{
    for (; f->begun < upto; f->begun++)
        for (size_t c = 0; c < f->n; c++)
            if (f->child[c].at_work && f->begun < f->child[c].shards.own)
                fmt_child_begin_shard(&f->child[c], f->child[c].shards.first + f->begun);
}

static fm_status keep_shards(fmt_pipeline *f, uint32_t upto)
{
    for (; f->kept < upto; f->kept++)
        for (size_t c = 0; c < f->n; c++) {
            fmt_child *ch = &f->child[c];
            fmt_shards *s = &ch->shards;
            if (!ch->at_work || f->kept >= s->own)
                continue;
            FM_TRY(fmt_fold_gather(&ch->net, &ch->ps));
            fmt_shards_keep(s, &ch->ps, f->kept, s->sum[s->first + f->kept]);
        }
    return FM_OK;
}

/* ---- a pass ---- */
static flight *flight_of(fmt_pipeline *f, size_t i)
{
    return &f->flight[i % f->most];
}

/* Points the terms of the nets at the memory for x A^T of the current pass's lanes. */
static void point_at(flight *l)
{
    for (size_t i = 0; i < l->count; i++)
        (void)fmt_lane_plan(l->in[i], l->in[i]->mem);
}

static void swap_batches(fmt_lane *a, fmt_lane *b)
{
    fmt_batch batch = a->batch;

    a->batch = b->batch;
    b->batch = batch;
}

/* The lanes take over the child's current batches. */
static void hand_over(fmt_objective_setup *goal, fmt_child *ch, const bit *b)
{
    fmt_lane *to = goal->lane, *from = &ch->lane;

    swap_batches(to, from);
    swap_batches(&goal->aux, &ch->goal.aux);
    to->in = from->in;
    to->of = from->of;
    to->ins = from->ins;
    to->dloss = from->dloss;
    to->later = from->later;
    to->step = from->step;
    to->row_base = from->row_base;
    to->went_before = b->went_before;
    to->goes_on = b->goes_on;
    from->row_base += to->batch.rows;
}

static fm_status load(fmt_pipeline *f, size_t i)
{
    const item *it = &f->item[i];
    flight *l = flight_of(f, i);
    fm_status rc = FM_OK;

    begin_shards(f, it->shard + 1);
    l->count = 0;
    for (size_t b = it->first; rc == FM_OK && b < it->first + it->count; b++) {
        size_t c = f->bit[b].child;
        rc = fmt_child_load_micro(&f->child[c], it->k);
        if (rc == FM_OK)
            hand_over(&l->goal[c], &f->child[c], &f->bit[b]);
        put_lanes(l, c);
    }
    l->pass->tally = f->tally;
    return rc == FM_OK ? fmt_pass_begin(l->pass, l->in, l->count) : rc;
}

static float *input_of(fmt_pipeline *f, size_t i)
{
    fmt_pass *p = flight_of(f, i)->pass;
    return fmt_slot_of(p, p->begin)->xin;
}

static fm_status forward(fmt_pipeline *f, size_t i)
{
    FM_TRY(load(f, i));

    point_at(flight_of(f, i));
    return fmt_layers_forward(flight_of(f, i)->pass);
}

static fm_status backward(fmt_pipeline *f, size_t i)
{
    const item *it = &f->item[i];
    flight *l = flight_of(f, i);

    FM_TRY(keep_shards(f, it->shard));
    point_at(l);
    fm_status rc = fmt_stage_head_and_layers(l->pass);
    for (size_t b = it->first; b < it->first + it->count; b++) { /* losses that were not put off */
        size_t c = f->bit[b].child;
        fmt_shards *s = &f->child[c].shards;
        s->sum[s->first + it->shard].loss += l->lane[c].loss;
    }
    return rc;
}

/* ---- neighbours ---- */
/* With the next stage: sends rows of pass i, receives gradients of pass j; f->items: none. */
static fm_status meet_next(fmt_pipeline *f, size_t i, size_t j)
{
    bool on = i < f->items, back = j < f->items;

    if (fmt_stage_is_last(f->s))
        return FM_OK;
    const fmt_pass *to = flight_of(f, on ? i : 0)->pass, *from = flight_of(f, back ? j : 0)->pass;
    return fmt_stage_swap(f->s, true, to->xout, on ? f->item[i].behind.on : 0, from->dx,
                          back ? f->item[j].behind.back : 0);
}

/* With the previous stage: sends the gradients of pass j, receives the rows of pass i. */
static fm_status meet_before(fmt_pipeline *f, size_t j, size_t i)
{
    bool on = i < f->items, back = j < f->items;

    if (f->s->mine == 0)
        return FM_OK;
    const fmt_pass *from = flight_of(f, back ? j : 0)->pass;
    return fmt_stage_swap(f->s, false, from->dx, back ? f->item[j].before.back : 0,
                          on ? input_of(f, i) : NULL, on ? f->item[i].before.on : 0);
}

static fm_status run_items(fmt_pipeline *f)
{
    size_t m = f->items, none = m, ahead = FM_MIN((size_t)(f->s->stages - 1 - f->s->mine), m);
    FM_TRY(m > 0 ? meet_before(f, none, 0) : FM_OK);

    for (size_t i = 0; i < ahead; i++) {
        FM_TRY(forward(f, i));
        FM_TRY(meet_next(f, i, none));
        if (i + 1 < m)
            FM_TRY(meet_before(f, none, i + 1));
    }
    for (size_t j = 0; j < m; j++) {
        size_t i = j + ahead;
        if (i < m)
            FM_TRY(forward(f, i));
        FM_TRY(meet_next(f, i < m ? i : none, j));
        FM_TRY(backward(f, j));
        FM_TRY(meet_before(f, j, i + 1 < m ? i + 1 : none));
        FM_TRY(fmt_stage_embed(flight_of(f, j)->pass));
    }
    return FM_OK;
}

fm_status fmt_pipeline_step(fmt_pipeline *f, fmt_tally *tally)
{
    uint32_t shards = 0;
    fm_status rc = plan_step(f, &shards);

    f->tally = tally;
    FM_THEN(rc, run_items(f));
    if (rc == FM_OK) {
        begin_shards(f, shards);
        rc = keep_shards(f, shards);
    }
    for (uint32_t i = 0; i < f->most; i++)
        f->flight[i].pass->tally = NULL;
    return rc;
}

/* ---- the first tensor that is not finite ---- */
typedef struct said {
    uint64_t at; /* order over all stages; UINT64_MAX: nothing found */
    char name[sizeof(((fmt_watch *)0)->name)];
} said;

/* Shares the finding with the lowest number, of equals that of the lowest rank, with all ranks. */
static fm_status first_found(const fmt_pipeline *f, uint64_t at, fmt_watch *w)
{
    uint32_t ranks = fm_comm_size(f->s->all), best = 0;
    said mine = {.at = w->found ? at : UINT64_MAX}, *all = fm_calloc(ranks, sizeof(*all));
    fm_status rc = all ? FM_OK : FM_ENOMEM;

    (void)snprintf(mine.name, sizeof(mine.name), "%s", w->name);
    FM_THEN(rc, fm_comm_collect(f->s->all, all, &mine, sizeof(mine)));
    for (uint32_t r = 1; rc == FM_OK && r < ranks; r++)
        best = all[r].at < all[best].at ? r : best;
    if (rc == FM_OK) {
        w->found = all[best].at != UINT64_MAX;
        (void)snprintf(w->name, sizeof(w->name), "%s", all[best].name);
    }
    fm_free(all);
    return rc;
}

/* Looks for the first parameter of all ranks with a number that is not finite. */
static fm_status look_at_params(const fmt_pipeline *f, const fmt_child *ch, fmt_watch *w)
{
    uint64_t at = 0;
    fm_status rc = fmt_watch_params(w, &ch->ps);

    for (; w->found && at < ch->ps.count; at++)
        if (strcmp(w->name + strlen("parameter "), ch->ps.item[at].name) == 0)
            break;
    return rc == FM_OK ? first_found(f, at, w) : rc;
}

/* Looks at one micro-batch of one shard; every rank makes the same calls in any case. */
static fm_status look_at(fmt_pipeline *f, fmt_child *ch, uint32_t shard, size_t k, fmt_watch *w)
{
    const fmt_stage *s = f->s;
    flight *l = &f->flight[0];
    const bit alone = {.child = ch->number};
    fm_status rc;

    fmt_child_begin_shard(ch, shard);
    rc = fmt_child_load_micro(ch, k);
    if (rc < 0 || ch->lane.batch.rows == 0)
        return rc;
    l->count = 0;
    put_lanes(l, ch->number);
    hand_over(&l->goal[ch->number], ch, &alone);
    l->in[0]->later = NULL;
    fmt_pass_watch(l->pass, w);
    rc = fmt_pass_begin(l->pass, l->in, l->count);
    point_at(l);
    FM_THEN(rc, fmt_stage_forward(l->pass));
    FM_THEN(rc, first_found(f, s->mine, w));
    bool clean = !w->found; /* on all ranks */
    if (rc == FM_OK && clean)
        rc = fmt_stage_backward(l->pass);
    if (rc == FM_OK && clean) /* the backward runs from the last stage to the first */
        rc = first_found(f, s->stages - 1 - s->mine, w);
    fmt_pass_watch(l->pass, NULL);
    return rc;
}

fm_status fmt_pipeline_explain(fmt_pipeline *f, fmt_child *ch, fmt_watch *watch)
{
    FM_TRY(look_at_params(f, ch, watch));

    for (uint32_t i = 0; !watch->found && i < ch->c->shards; i++)
        for (size_t k = 0; !watch->found && k < ch->micros; k++)
            FM_TRY(look_at(f, ch, i, k, watch));
    return FM_OK;
}
