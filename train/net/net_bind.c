/* net_bind.c - binds a net to the memory of its parameters, computes what depends on them, and
 * releases everything. It is above net.c and the methods, which do not call it. */
#include "train/net/method.h"

#include "store/base/mem.h"

#include <string.h>

/* ---- matrices stored [in, out] ---- */
/* The transposition of one shape: float i of the turned matrix is float index[i]. */
typedef struct fmt_turn {
    uint32_t in, out;
    int32_t *index; /* device */
} fmt_turn;

static fmt_turn *turn_of(const fmt_net *net, const fmt_linear *l)
{
    for (size_t i = 0; i < net->turn_count; i++)
        if (net->turns[i].in == l->in && net->turns[i].out == l->out)
            return &net->turns[i];
    return NULL;
}

/* Lets the device reorder matrices where the host does not see its memory: carrying every matrix to
 * the host and back would be slow. */
static fm_status put_turn(fmt_net *net, const fmt_linear *l)
{
    size_t n = (size_t)l->in * l->out;
    void *mem = NULL;

    if (net->be->host_visible || turn_of(net, l))
        return FM_OK;
    fm_status rc = n > INT32_MAX ? fm_fail(FM_ELIMIT, "%s: too large to be turned", l->module)
                                 : fm_grow(&net->turns, &net->turn_cap, net->turn_count + 1,
                                           sizeof(*net->turns));
    int32_t *host = rc == FM_OK ? fm_calloc(n, sizeof(*host)) : NULL;
    FM_THEN(rc, host ? net->be->alloc(net->be, &mem, n * sizeof(*host)) : FM_ENOMEM);
    if (rc == FM_OK)
        net->turns[net->turn_count++] = (fmt_turn){.in = l->in, .out = l->out, .index = mem};
    for (size_t o = 0; rc == FM_OK && o < l->out; o++)
        for (size_t i = 0; i < l->in; i++)
            host[o * l->in + i] = (int32_t)(i * l->out + o);
    FM_THEN(rc, net->be->upload(net->be, mem, host, n * sizeof(*host)));
    fm_free(host);
    return rc;
}

static void free_turns(fmt_net *net)
{
    for (size_t i = 0; i < net->turn_count; i++)
        net->be->free(net->be, net->turns[i].index);
    fm_free(net->turns);
}

void fmt_net_release(fmt_net *net)
{
    fmt_linear *l;

    fmt_fold_release(net);
    for (size_t i = 0; net->block && (l = fmt_net_linear(net, i)); i++) {
        fm_free(l->term);
        fmt_fold_free(l->fold);
        fmt_dora_free(l->dora);
    }
    fmt_dora_release(net);
    for (uint32_t k = 0; net->block && k < net->arch.layers; k++)
        fm_free(net->block[k].lin);
    fm_free(net->block);
    if (net->made)
        net->be->free(net->be, net->made);
    if (net->virt_own)
        net->be->free(net->be, net->virt_own);
    if (net->embed_own)
        net->be->free(net->be, net->embed_own);
    if (net->fixed_own)
        net->be->free(net->be, net->fixed_own);
    free_turns(net);
    fm_free(net->turn);
    memset(net, 0, sizeof(*net));
}

/* ---- binding ---- */
/* Makes a weight from zeros; fmt_net_refresh fills it once values are in place. */
static fm_status own_weight(fmt_params *ps, fmt_param *p, const fmt_linear *l)
{
    void *zero = fm_calloc((size_t)p->n, sizeof(float));
    fm_status rc = FM_ENOMEM;

    if (zero && !p->weight)
        rc = ps->be->weight_new(ps->be, &p->weight, FM_ROLE_LINEAR, FM_F32, l->out, l->in, zero);
    fm_free(zero);
    return rc;
}

static fm_status bind_linear(fmt_linear *l, fmt_params *ps, bool own, bool types)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < l->terms; i++) {
        fmt_term *t = &l->term[i];
        if (t->a_param >= 0)
            t->a = ps->p + ps->item[t->a_param].at;
        if (t->b_param >= 0)
            t->b = ps->p + ps->item[t->b_param].at;
    }
    if (own && l->bias_param >= 0)
        l->bias = ps->p + ps->item[l->bias_param].at;
    if (own && l->w_param >= 0 && types) { /* only its first row is used, as a bias */
        l->bias = ps->p + ps->item[l->w_param].at;
    } else if (own && l->w_param >= 0) {
        rc = own_weight(ps, &ps->item[l->w_param], l);
        l->w = ps->item[l->w_param].weight;
    }
    return rc;
}

/* Allocates memory for what is computed from parameters: first as many ones as the widest gain has,
 * then gains 1 + w, and a transposed matrix. Points the norms at their gains. */
static fm_status make_room(fmt_net *net, const fmt_params *ps)
{
    uint64_t ones = 0, gains = 0, turned = 0, at;
    void *mem = NULL;
    fmt_linear *l;
    fmt_norm *n;

    for (size_t i = 0; (n = fmt_net_norm(net, i)); i++)
        if (n->adds_one && n->param >= 0) {
            ones = FM_MAX(ones, ((uint64_t)n->n + 15) / 16 * 16);
            gains += ((uint64_t)n->n + 15) / 16 * 16;
        }
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && (l = fmt_net_linear(net, i)); i++)
        if (l->transposed && l->w_param >= 0) {
            turned = FM_MAX(turned, ps->item[l->w_param].n);
            rc = put_turn(net, l);
        }
    if (rc < 0 || ones + gains + turned == 0)
        return rc;
    rc = net->be->alloc(net->be, &mem, (ones + gains + turned) * sizeof(float));
    net->made = mem;
    if (rc < 0)
        return rc;
    uint64_t host_turns = net->be->host_visible ? 2 * turned : 0;
    net->turn = fm_calloc(FM_MAX(FM_MAX(host_turns, ones), (uint64_t)1), sizeof(float));
    if (!net->turn)
        return FM_ENOMEM;
    for (uint64_t i = 0; i < ones; i++)
        net->turn[i] = 1.0f;
    if (ones > 0)
        rc = net->be->upload(net->be, net->made, net->turn, ones * sizeof(float));
    at = ones;
    for (size_t i = 0; (n = fmt_net_norm(net, i)); i++)
        if (n->adds_one && n->param >= 0) {
            n->gain = net->made + at;
            at += ((uint64_t)n->n + 15) / 16 * 16;
        }
    net->turned = net->made + at;
    net->turn_floats = turned;
    return rc;
}

fm_status fmt_net_bind(fmt_net *net, fmt_params *ps, bool own_weights)
{
    fmt_linear *l;
    fmt_linear *embed = &net->outer[FMT_EMBED];
    fmt_linear *head = &net->outer[FMT_HEAD];
    fmt_norm *n;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        FM_TRY(bind_linear(l, ps, own_weights, l == &net->outer[FMT_TYPES]));
    if (own_weights)
        FM_TRY(make_room(net, ps));
    for (size_t i = 0; own_weights && (n = fmt_net_norm(net, i)); i++) {
        if (n->param >= 0 && !n->adds_one)
            n->gain = ps->p + ps->item[n->param].at;
        if (n->bias_param >= 0)
            n->bias = ps->p + ps->item[n->bias_param].at;
    }
    /* A tied head trains as the embedding; on a frozen stem each may train on its own. */
    bool adapts = head->w && head->w != embed->w;
    if (net->arch.tied && head->w_param < 0 && embed->w_param >= 0 && !adapts) {
        head->w = embed->w;
        head->w_param = embed->w_param;
    }
    FM_TRY(fmt_dora_room(net, ps));
    FM_TRY(fmt_fold_room(net, ps));
    fmt_method_bind(net, ps);
    return FM_OK;
}

/* Refreshes the product layout of a matrix that is stored [in, out]. */
static fm_status refresh_turned(fmt_net *net, fmt_params *ps, const fmt_linear *l)
{
    const fmt_param *p = &ps->item[l->w_param];
    fm_backend *be = ps->be;
    const fmt_turn *turn = turn_of(net, l);
    float *from = net->turn, *to = net->turn + net->turn_floats;

    if (turn) {
        be->copy_rows(be, net->turned, 1, ps->p + p->at, 1, turn->index, (uint32_t)p->n, 1);
        be->weight_update(be, p->weight, net->turned);
        return FM_OK;
    }
    FM_TRY(be->download(be, from, ps->p + p->at, p->n * sizeof(float)));

    for (size_t i = 0; i < l->in; i++)
        for (size_t o = 0; o < l->out; o++)
            to[o * l->in + i] = from[i * l->out + o];
    FM_TRY(be->upload(be, net->turned, to, p->n * sizeof(float)));
    be->weight_update(be, p->weight, net->turned);
    return FM_OK;
}

static float *made_gain(const fmt_net *net, const fmt_norm *n)
{
    return net->made + (n->gain - net->made);
}

fm_status fmt_net_refresh(fmt_net *net, fmt_params *ps)
{
    fmt_linear *l;
    fmt_norm *n;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        bool tied = l == &net->outer[FMT_HEAD] && l->w_param == net->outer[FMT_EMBED].w_param;
        if (l->w_param < 0 || !ps->item[l->w_param].weight || tied)
            continue;
        if (l->transposed)
            FM_TRY(refresh_turned(net, ps, l));
        else
            ps->be->weight_update(ps->be, ps->item[l->w_param].weight,
                                  ps->p + ps->item[l->w_param].at);
    }
    for (size_t i = 0; net->made && (n = fmt_net_norm(net, i)); i++) {
        if (n->param < 0 || !n->adds_one)
            continue;
        float *gain = made_gain(net, n);
        ps->be->copy_rows(ps->be, gain, n->n, ps->p + ps->item[n->param].at, n->n, NULL, 1, n->n);
        ps->be->add(ps->be, gain, net->made, n->n); /* the ones */
    }
    FM_TRY(fmt_fold_refresh(net, ps));
    return fmt_dora_refresh(net, ps);
}
