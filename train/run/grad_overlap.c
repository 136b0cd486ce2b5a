/* grad_overlap.c - which rounds wait for which layer, and which thread exchanges them. */
#include "train/run/grad_overlap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "train/net/method.h"

#define BEHIND_ALL (-1)
#define NOTHING INT32_MAX

typedef struct round_of {
    int32_t layer; /* the layer that the round waits for */
    uint32_t child;
    uint64_t round;
} round_of;

typedef enum how { AT_THE_END, BY_A_THREAD, IN_A_LINE } how;

struct fmt_grad_overlap {
    fm_backend *be;
    fmt_child *child;
    size_t n;
    round_of *list; /* [count] in the order of all ranks */
    size_t count;
    how how;
    bool working; /* the thread is running */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t wake, done;
    bool *on;         /* [n] whether the child is at work in this step */
    int32_t *reached; /* [n] the layer that the backward has left last */
    size_t at;        /* index in list */
    bool ends;
    fm_status rc;
    fm_error_state why;
};

/* ---- what a round waits for ---- */
static void note(int32_t *layer, int32_t param, int32_t at)
{
    if (param >= 0)
        layer[param] = FM_MIN(layer[param], at);
}

static void note_linear(int32_t *layer, const fmt_linear *l, int32_t at)
{
    note(layer, l->w_param, at);
    note(layer, l->bias_param, at);
    note(layer, l->in_scale.param, at);
    note(layer, l->out_scale.param, at);
    note(layer, l->dora ? l->dora->magnitude : -1, at);
    for (size_t i = 0; i < l->terms; i++) {
        note(layer, l->term[i].a_param, at);
        note(layer, l->term[i].b_param, at);
    }
}

/* Notes each parameter's lowest layer with a gradient; BEHIND_ALL for the embeddings. */
static void note_net(int32_t *layer, const fmt_net *net)
{
    int32_t head = (int32_t)net->arch.layers;

    for (uint32_t b = 0; b < net->arch.layers; b++) {
        for (uint32_t k = 0; k < net->lins; k++)
            note_linear(layer, &net->block[b].lin[k], (int32_t)b);
        for (uint32_t k = 0; k < FMT_NORMS; k++) {
            note(layer, net->block[b].norm[k].param, (int32_t)b);
            note(layer, net->block[b].norm[k].bias_param, (int32_t)b);
        }
    }
    note(layer, net->outer_norm[FMT_NORM].param, head);
    note(layer, net->outer_norm[FMT_NORM].bias_param, head);
    for (uint32_t k = 0; k < FMT_OUTER; k++)
        note_linear(layer, &net->outer[k],
                    k == FMT_HEAD || k == FMT_DENSE || k == FMT_SCORE ? head : BEHIND_ALL);
}

static fm_status list_child(fmt_grad_overlap *b, uint32_t i)
{
    const fmt_params *ps = &b->child[i].ps;
    const uint64_t per = ps->stripe * fm_comm_size(ps->comm), rounds = fmt_params_rounds(ps);
    int32_t *layer = fm_calloc(ps->count, sizeof(*layer));

    if (!layer)
        return FM_ENOMEM;
    for (size_t k = 0; k < ps->count; k++)
        layer[k] = NOTHING;
    note_net(layer, &b->child[i].net);
    for (uint64_t q = 0; q < rounds; q++)
        b->list[b->count + q] = (round_of){NOTHING, i, q};
    for (size_t k = 0; k < ps->count; k++) {
        const fmt_param *p = &ps->item[k];
        int32_t waits = layer[k] == NOTHING ? BEHIND_ALL : layer[k];
        for (uint64_t q = p->at / per; p->n > 0 && q <= (p->at + p->n - 1) / per; q++) {
            round_of *r = &b->list[b->count + q];
            r->layer = FM_MIN(r->layer, waits);
        }
    }
    b->count += rounds;
    fm_free(layer);
    return FM_OK;
}

static int by_turn(const void *x, const void *y)
{
    const round_of *a = x, *b = y;

    if (a->layer != b->layer)
        return a->layer > b->layer ? -1 : 1;
    if (a->child != b->child)
        return a->child < b->child ? -1 : 1;
    return a->round > b->round ? -1 : a->round < b->round;
}

static fm_status make_list(fmt_grad_overlap *b)
{
    uint64_t most = 0;

    for (size_t i = 0; i < b->n; i++)
        most += fmt_params_rounds(&b->child[i].ps);
    b->list = fm_calloc(most, sizeof(*b->list));
    b->on = fm_calloc(b->n, sizeof(*b->on));
    b->reached = fm_calloc(b->n, sizeof(*b->reached));
    if (!b->list || !b->on || !b->reached)
        return FM_ENOMEM;
    for (size_t i = 0; i < b->n; i++)
        FM_TRY(list_child(b, (uint32_t)i));
    qsort(b->list, b->count, sizeof(*b->list), by_turn);
    return FM_OK;
}

/* ---- taking rounds ---- */
/* The next round of a child at work, if its gradients are done; NULL: not yet, or none left. */
static const round_of *next(fmt_grad_overlap *b)
{
    while (b->at < b->count && !b->on[b->list[b->at].child])
        b->at++;
    const round_of *r = b->at < b->count ? &b->list[b->at] : NULL;
    return r && b->reached[r->child] <= r->layer ? r : NULL;
}

static fm_status take(fmt_grad_overlap *b, const round_of *r)
{
    fmt_child *ch = &b->child[r->child];
    return fmt_shards_round(&ch->shards, &ch->ps, r->round, b->how == BY_A_THREAD);
}

static void *carry(void *arg)
{
    fmt_grad_overlap *b = arg;
    const round_of *r;

    (void)pthread_mutex_lock(&b->lock);
    while (!b->ends) {
        r = b->rc == FM_OK ? next(b) : NULL;
        if (b->rc < 0 || b->at == b->count)
            (void)pthread_cond_signal(&b->done);
        if (!r) {
            (void)pthread_cond_wait(&b->wake, &b->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&b->lock);
        fm_status rc = take(b, r);
        (void)pthread_mutex_lock(&b->lock);
        b->at++;
        b->rc = rc;
        if (rc < 0)
            fm_error_save(&b->why);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Takes all rounds that are ready, in the caller's thread. */
static fm_status take_ready(fmt_grad_overlap *b)
{
    const round_of *r;

    for (; (r = next(b)); b->at++)
        FM_TRY(take(b, r));
    return FM_OK;
}

/* ---- life ---- */
static how how_to(const fm_comm *comm, const fm_backend *be)
{
    if (fm_comm_device_wire(comm))
        return be->aside ? IN_A_LINE : AT_THE_END;
    return be->host_visible ? BY_A_THREAD : AT_THE_END;
}

fm_status fmt_grad_overlap_open(fmt_grad_overlap **out, fm_comm *comm, fm_backend *be,
                                fmt_child *child, size_t n)
{
    *out = NULL;
    if (fm_comm_size(comm) <= 1)
        return FM_OK;
    fmt_grad_overlap *b = fm_calloc(1, sizeof(*b));
    if (!b)
        return FM_ENOMEM;
    *b = (fmt_grad_overlap){.be = be, .child = child, .n = n, .how = how_to(comm, be)};
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->wake, NULL);
    (void)pthread_cond_init(&b->done, NULL);
    fm_status rc = make_list(b);
    b->at = b->count;
    if (rc == FM_OK && b->how == BY_A_THREAD) {
        b->working = pthread_create(&b->thread, NULL, carry, b) == 0;
        rc = b->working ? FM_OK : fm_fail(FM_ELIMIT, "no thread to exchange gradients in");
    }
    if (rc < 0)
        fmt_grad_overlap_close(b);
    else
        *out = b;
    return rc;
}

void fmt_grad_overlap_close(fmt_grad_overlap *b)
{
    if (!b)
        return;
    (void)pthread_mutex_lock(&b->lock);
    b->ends = true;
    (void)pthread_cond_signal(&b->wake);
    (void)pthread_mutex_unlock(&b->lock);
    if (b->working)
        (void)pthread_join(b->thread, NULL);
    (void)pthread_cond_destroy(&b->wake);
    (void)pthread_cond_destroy(&b->done);
    (void)pthread_mutex_destroy(&b->lock);
    fm_free(b->list);
    fm_free(b->on);
    fm_free(b->reached);
    fm_free(b);
}

/* ---- a step ---- */
void fmt_grad_overlap_begin(fmt_grad_overlap *b)
{
    if (!b)
        return;
    (void)pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < b->n; i++) {
        b->on[i] = b->child[i].at_work;
        b->reached[i] = NOTHING;
    }
    b->at = 0;
    (void)pthread_mutex_unlock(&b->lock);
}

static fm_status failure(fmt_grad_overlap *b)
{
    if (b->rc < 0)
        fm_error_restore(&b->why);
    return b->rc;
}

static fm_status reach(fmt_grad_overlap *b, size_t i, int32_t layer)
{
    (void)pthread_mutex_lock(&b->lock);
    b->reached[i] = FM_MIN(b->reached[i], layer);
    if (b->how == BY_A_THREAD && next(b))
        (void)pthread_cond_signal(&b->wake);
    fm_status rc = failure(b);
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

fm_status fmt_grad_overlap_left(fmt_grad_overlap *b, size_t i, uint32_t layer)
{
    if (!b)
        return FM_OK;
    fm_status rc = reach(b, i, (int32_t)layer);
    if (rc < 0 || b->how != IN_A_LINE || !next(b))
        return rc;
    b->be->aside(b->be, true);
    rc = take_ready(b);
    b->be->aside(b->be, false);
    return rc;
}

static fm_status await(fmt_grad_overlap *b)
{
    (void)pthread_mutex_lock(&b->lock);
    while (b->rc == FM_OK && b->at < b->count)
        (void)pthread_cond_wait(&b->done, &b->lock);
    fm_status rc = failure(b);
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

fm_status fmt_grad_overlap_end(fmt_grad_overlap *b)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; b && i < b->n && rc == FM_OK; i++)
        rc = reach(b, i, BEHIND_ALL);
    if (!b || rc < 0)
        return rc;
    if (b->how == BY_A_THREAD)
        return await(b);
    if (b->how == IN_A_LINE)
        b->be->join(b->be);
    return take_ready(b);
}
