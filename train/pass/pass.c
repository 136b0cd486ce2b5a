/* pass.c - one pass over the stem for the rows of several children: lanes, memory, the run. */
#include "train/pass/stage_pass.h"

#include "store/base/mem.h"

#include <string.h>

#define LOGIT_CHUNK_FLOATS ((uint64_t)1 << 23) /* 32 MiB of logits at a time */

void fmt_size_grow(fmt_pass_size *size, const fmt_seq_in *s, size_t n, const fmt_batch_how *how)
{
    fmt_pass_size one = {0};

    for (size_t i = 0; i < n; i++) {
        uint32_t rows = fmt_seq_rows(&s[i], how);
        one.rows += rows;
        one.labels += fmt_seq_picked(&s[i], how);
        one.longest = FM_MAX(one.longest, rows > 0 ? rows + how->offset : 0);
    }
    size->rows = FM_MAX(size->rows, one.rows);
    size->labels = FM_MAX(size->labels, one.labels);
    size->longest = FM_MAX(size->longest, one.longest);
    size->seqs = FM_MAX(size->seqs, (uint32_t)n);
}

bool fmt_same_shape(const fm_arch *a, const fm_arch *b)
{
    return strcmp(a->family, b->family) == 0 && a->row == b->row && a->vocab == b->vocab &&
           a->hidden == b->hidden && a->layers == b->layers && a->inter == b->inter &&
           a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->max_positions == b->max_positions && a->eps == b->eps && a->window == b->window &&
           memcmp(&a->sw, &b->sw, sizeof(a->sw)) == 0 &&
           memcmp(a->rope, b->rope, sizeof(a->rope)) == 0;
}

/* ---- lanes ---- */
static void find_first(fmt_lane *lane)
{
    const fmt_net *net = lane->net;
    const fmt_depth d = fmt_net_depth(net);

    lane->embed_trains = lane->ps && d.embed;
    lane->first = lane->ps ? d.first : net->arch.layers;
    lane->deep = lane->ps && (lane->first < net->arch.layers || d.norm);
}

/* Sum of the ranks of all terms in the block where it is largest. */
static uint64_t widest_block(fmt_lane *lane)
{
    const fmt_net *net = lane->net;
    uint64_t widest = 0;

    for (int32_t l = FMT_OUTSIDE; l < (int32_t)net->arch.layers; l++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < (l == FMT_OUTSIDE ? (uint32_t)FMT_OUTER : net->lins); k++) {
            const fmt_linear *lin = fmt_net_at(net, l, k);
            uint32_t most = 0;
            for (size_t t = 0; t < lin->terms; t++)
                most = FM_MAX(most, lin->term[t].r);
            sum += most;
        }
        widest = FM_MAX(widest, sum);
    }
    return widest;
}

/* Gives weights through which gradients go back the product layout for that. */
static fm_status prepare_weights(fm_backend *be, const fmt_lane *lane)
{
    fmt_linear *l;

    for (size_t i = 0; be->weight_for_dx && (l = fmt_net_linear(lane->net, i)); i++) {
        int32_t layer = fmt_net_layer_of(lane->net, l);
        bool head = l == &lane->net->outer[FMT_HEAD];
        if (l->w && (head ? lane->deep : layer >= (int32_t)lane->first))
            FM_TRY(be->weight_for_dx(be, (fm_weight *)(uintptr_t)l->w));
    }
    return FM_OK;
}

static fm_status lane_memory(fm_backend *be, fmt_lane *lane)
{
    uint64_t floats = fmt_lane_plan(lane, NULL);
    void *mem = NULL;
    fm_status rc = FM_OK;

    if (floats > 0)
        rc = be->alloc(be, &mem, (size_t)floats * sizeof(float));
    lane->mem = mem;
    if (rc == FM_OK && floats > 0)
        (void)fmt_lane_plan(lane, lane->mem);
    return rc;
}

/* ---- life ---- */
static fm_status put_table(fmt_pass *p, uint32_t which, float *cos, float *sin)
{
    size_t n = (size_t)p->cap.longest * (p->arch.sw.rotary_dim / 2);
    float *host = fm_calloc(2 * n, sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, fm_arch_rope(&p->arch, which, p->cap.longest, host, host + n));
    FM_THEN(rc, p->be->upload(p->be, cos, host, n * sizeof(float)));
    FM_THEN(rc, p->be->upload(p->be, sin, host + n, n * sizeof(float)));
    fm_free(host);
    return rc;
}

static fm_status put_growth(fmt_pass *p)
{
    size_t n = p->cap.longest;
    float *host = fm_malloc(2 * n * sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;

    if (host)
        fm_arch_growth(&p->arch.sw.grow, p->cap.longest, host, host + n);
    FM_THEN(rc, p->be->upload(p->be, p->grow, host, n * sizeof(float)));
    FM_THEN(rc, p->be->upload(p->be, p->grow_zero, host + n, n * sizeof(float)));
    fm_free(host);
    return rc;
}

static fm_status put_rope(fmt_pass *p)
{
    fm_status rc = p->cos ? put_table(p, 0, p->cos, p->sin) : FM_OK;
    if (rc == FM_OK && p->cos_slide)
        rc = put_table(p, 1, p->cos_slide, p->sin_slide);
    return rc == FM_OK && p->grow ? put_growth(p) : rc;
}

static fm_status plan_indexes(fmt_pass *p)
{
    size_t m = p->cap.rows;
    size_t r = p->cap.labels;
    void *mem = NULL;
    size_t states = fm_arch_recurs(&p->arch) ? 3 * m : 0;
    fm_status rc = p->be->alloc(p->be, &mem, (4 * m + 2 * r + 1 + states) * sizeof(int32_t));

    if (rc < 0)
        return rc;
    p->imem = mem;
    p->ids = p->imem;
    p->pos = p->ids + m;
    p->back = p->pos + m;
    p->label_row = p->back + m;
    p->label = p->label_row + r;
    p->place = p->label + r;
    p->states = p->place + m + 1;
    return FM_OK;
}

static fm_status host_memory(fmt_pass *p)
{
    size_t slots = fmt_pass_slots(p);

    p->lane = fm_calloc(p->room, sizeof(*p->lane));
    p->part = fm_calloc(p->room, sizeof(*p->part));
    p->head_part = fm_calloc(p->room, sizeof(*p->head_part));
    p->product = fm_calloc(p->room * 4, sizeof(*p->product));
    p->slot = fm_calloc(slots, sizeof(*p->slot));
    p->saved = fm_calloc(slots, sizeof(*p->saved));
    p->seq = fm_calloc(p->cap.seqs, sizeof(*p->seq));
    size_t lists = fm_arch_recurs(&p->arch) ? 3 : 1;
    p->host = fm_calloc(FM_MAX(lists * p->cap.rows, p->cap.labels), sizeof(*p->host));
    p->host_loss = fm_calloc(p->cap.labels, sizeof(float));
    p->host_weigh = fm_calloc(p->cap.labels, sizeof(float));
    bool all = p->lane && p->part && p->head_part && p->product && p->slot && p->saved && p->seq &&
               p->host && p->host_loss && p->host_weigh;
    return all ? FM_OK : FM_ENOMEM;
}

/* Counts for each slot the rows of lanes that train in its layer or below, up to cap.rows. */
static void count_saved(fmt_pass *p, fmt_lane *const *lane, size_t n)
{
    uint32_t slots = fmt_pass_slots(p);

    for (uint32_t i = 0; i < slots; i++) {
        uint64_t rows = 0;
        for (size_t k = 0; k < n; k++)
            rows += lane[k]->first <= p->low + i ? lane[k]->most.rows : 0;
        rows = (FM_MIN(rows, (uint64_t)p->cap.rows) + 15) / 16 * 16;
        p->saved[i] = (uint32_t)rows;
    }
}

static fm_status device_memory(fmt_pass *p)
{
    void *mem = NULL;

    fm_status rc = FM_OK;
    if (p->arch.sw.experts > 0)
        rc = fmt_moe_new(p, fmt_pass_slots(p));
    FM_THEN(rc, fmt_pass_plan(p, NULL, &p->floats));
    FM_THEN(rc, p->be->alloc(p->be, &mem, (size_t)p->floats * sizeof(float)));
    if (rc < 0)
        return rc;
    p->mem = mem;
    rc = fmt_pass_plan(p, p->mem, &p->floats);
    FM_THEN(rc, plan_indexes(p));
    FM_THEN(rc, fmt_moe_ready(p));
    return rc == FM_OK ? put_rope(p) : rc;
}

fm_status fmt_pass_new(fmt_pass **out, fm_backend *be, fmt_lane *const *lane, size_t n,
                       const fmt_pass_size *cap, bool recompute)
{
    return fmt_pass_new_beside(out, be, lane, n, cap, recompute, NULL);
}

fm_status fmt_pass_new_beside(fmt_pass **out, fm_backend *be, fmt_lane *const *lane, size_t n,
                              const fmt_pass_size *cap, bool recompute, fmt_pass *kin)
{
    fmt_pass *p = fm_calloc(1, sizeof(*p));
    fm_status rc = p ? FM_OK : FM_ENOMEM;

    *out = NULL;
    if (!p)
        return rc;
    p->be = be;
    p->arch = lane[0]->net->arch;
    p->cap = *cap;
    p->kin = kin;
    p->recompute = recompute;
    p->room = n;
    p->lowest = p->arch.layers;
    p->begin = lane[0]->net->begin;
    p->end = lane[0]->net->end;
    p->frozen = true;
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        find_first(lane[i]);
        p->lowest = FM_MIN(p->lowest, lane[i]->first);
        p->frozen = p->frozen && !lane[i]->ps;
        p->taught_rows = p->taught_rows || lane[i]->objective->rows;
        p->du_floats += (uint64_t)lane[i]->most.rows * widest_block(lane[i]);
        p->alone_floats = FM_MAX(p->alone_floats, fmt_alone_floats(lane[i]));
        rc = lane_memory(be, lane[i]);
        FM_THEN(rc, prepare_weights(be, lane[i]));
    }
    p->low = FM_MIN(FM_MAX(p->lowest, p->begin), p->end);
    uint64_t fit = FM_MAX(LOGIT_CHUNK_FLOATS / p->arch.vocab, 1u);
    p->chunk = (uint32_t)FM_MIN(fit, FM_MAX(cap->labels, 1u));
    FM_THEN(rc, host_memory(p));
    if (rc == FM_OK) {
        count_saved(p, lane, n);
        rc = device_memory(p);
    }
    if (rc < 0) {
        fmt_pass_free(p);
        return rc;
    }
    *out = p;
    return FM_OK;
}

void fmt_pass_free(fmt_pass *p)
{
    if (!p)
        return;
    if (p->mem)
        p->be->free(p->be, p->mem);
    if (p->imem)
        p->be->free(p->be, p->imem);
    fmt_moe_free(p);
    fm_free(p->lane);
    fm_free(p->part);
    fm_free(p->head_part);
    fm_free(p->product);
    fm_free(p->term);
    fm_free(p->slot);
    fm_free(p->saved);
    fm_free(p->seq);
    fm_free(p->host);
    fm_free(p->host_loss);
    fm_free(p->host_weigh);
    fm_free(p);
}

uint64_t fmt_pass_bytes(const fmt_pass *p)
{
    return p->floats * sizeof(float);
}

/* ---- the run ---- */
/* The order of lanes: rows that the backward needs longest come first, and rows of silent lanes,
 * which go through no head, after the others of a layer. */
static uint32_t rank_of(const fmt_lane *l)
{
    return 2 * l->first + l->objective->silent;
}

/* Sorts the lanes that have rows by rank_of, else in the order given, and places their rows. */
static void line_up(fmt_pass *p, fmt_lane *const *lane, size_t n)
{
    p->lanes = 0;
    p->rows = p->labels = p->seqs = 0;
    for (size_t i = 0; i < n; i++) {
        size_t at = p->lanes;
        lane[i]->loss = 0.0;
        lane[i]->labels = 0;
        if (lane[i]->batch.rows == 0)
            continue;
        for (; at > 0 && rank_of(p->lane[at - 1]) > rank_of(lane[i]); at--)
            p->lane[at] = p->lane[at - 1];
        p->lane[at] = lane[i];
        p->lanes++;
    }
    for (size_t i = 0; i < p->lanes; i++) {
        fmt_lane *l = p->lane[i];
        l->row0 = p->rows;
        l->seq0 = p->seqs;
        l->label0 = p->labels;
        l->labels = l->batch.labels;
        p->rows += l->batch.rows;
        p->seqs += l->batch.seqs;
        p->labels += l->labels;
    }
}

static void list_sequences(fmt_pass *p)
{
    uint32_t row = 0;
    uint32_t n = 0;

    for (size_t i = 0; i < p->lanes; i++) {
        const fmt_batch *b = &p->lane[i]->batch;
        for (uint32_t k = 0; k < b->seqs; k++) {
            p->seq[n++] =
                (fm_train_seq){.begin = row, .len = b->len[k], .bias = p->lane[i]->net->near};
            row += b->len[k];
        }
    }
}

/* Uploads the numbers of labelled rows, and each row's index among them (p->labels: none). */
static fm_status put_places(fmt_pass *p)
{
    fm_backend *be = p->be;
    fm_status rc;

    for (size_t i = 0; i < p->lanes; i++) {
        const fmt_lane *l = p->lane[i];
        for (uint32_t k = 0; k < l->labels; k++)
            p->host[l->label0 + k] = (int32_t)l->row0 + l->batch.label_row[k];
    }
    rc = be->upload(be, p->label_row, p->host, p->labels * sizeof(int32_t));
    for (uint32_t r = 0; r < p->rows; r++)
        p->host[r] = (int32_t)p->labels;
    for (size_t i = 0; i < p->lanes; i++) {
        const fmt_lane *l = p->lane[i];
        for (uint32_t k = 0; k < l->labels; k++)
            p->host[l->row0 + (uint32_t)l->batch.label_row[k]] = (int32_t)(l->label0 + k);
    }
    return rc == FM_OK ? be->upload(be, p->back, p->host, p->rows * sizeof(int32_t)) : rc;
}

/* Every sequence begins with a state of zeros, and leaves none. */
static fm_status put_states(fmt_pass *p)
{
    uint32_t m = p->rows;

    if (!fm_arch_recurs(&p->arch))
        return FM_OK;
    for (uint32_t i = 0; i < m; i++) {
        p->host[i] = (int32_t)i;
        p->host[m + i] = FM_STATE_ON;
        p->host[2 * m + i] = FM_STATE_NONE;
    }
    for (uint32_t i = 0; i < p->seqs; i++)
        if (p->seq[i].len > 0)
            p->host[m + p->seq[i].begin] = FM_STATE_NONE;
    return p->be->upload(p->be, p->states, p->host, 3 * (size_t)m * sizeof(int32_t));
}

static fm_status put_batches(fmt_pass *p)
{
    fm_status rc = put_states(p);

    for (size_t i = 0; i < p->lanes && rc == FM_OK; i++) {
        const fmt_lane *l = p->lane[i];
        const fmt_batch *b = &l->batch;
        size_t bytes = b->rows * sizeof(int32_t);
        rc = p->be->upload(p->be, p->ids + l->row0, b->ids, bytes);
        FM_THEN(rc, p->be->upload(p->be, p->pos + l->row0, b->pos, bytes));
        for (uint32_t k = 0; p->arch.sw.positions && k < b->rows; k++)
            p->host[k] = b->pos[k] + (int32_t)p->arch.sw.position_offset;
        if (rc == FM_OK && p->arch.sw.positions)
            rc = p->be->upload(p->be, p->place + l->row0, p->host, bytes);
        if (rc == FM_OK && l->labels > 0)
            rc = p->be->upload(p->be, p->label + l->label0, b->label, l->labels * sizeof(int32_t));
    }
    return rc == FM_OK ? put_places(p) : rc;
}

fm_status fmt_pass_begin(fmt_pass *p, fmt_lane *const *lane, size_t n)
{
    fm_assert(n <= p->room);
    line_up(p, lane, n);
    fm_assert(p->rows <= p->cap.rows && p->labels <= p->cap.labels && p->seqs <= p->cap.seqs);
    if (p->lanes == 0)
        return FM_OK;
    list_sequences(p);
    return put_batches(p);
}

static fm_status forward(fmt_pass *p, fmt_lane *const *lane, size_t n)
{
    fm_status rc = fmt_pass_begin(p, lane, n);

    if (rc < 0 || p->lanes == 0)
        return rc;
    return p->stage ? fmt_stage_forward(p) : fmt_layers_forward(p);
}

fm_status fmt_pass_states(fmt_pass *p, fmt_lane *const *lane, size_t n)
{
    FM_TRY(forward(p, lane, n));

    if (p->labels > 0)
        fmt_head_states(p);
    return FM_OK;
}

fm_status fmt_pass_finish(fmt_pass *p)
{
    fm_status rc = FM_OK;

    if (p->stage) {
        rc = fmt_stage_backward(p);
    } else {
        rc = fmt_head(p);
        FM_THEN(rc, fmt_layers_backward(p));
        if (rc == FM_OK)
            fmt_embed_backward(p);
    }
    return rc == FM_OK && !p->tally ? p->be->sync(p->be) : rc;
}

fm_status fmt_pass_run(fmt_pass *p, fmt_lane *const *lane, size_t n)
{
    fm_status rc = forward(p, lane, n);

    return rc == FM_OK && p->lanes > 0 ? fmt_pass_finish(p) : rc;
}
