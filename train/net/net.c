/* net.c - the modules of a model by name, and which of their parameters train.
 *
 * infer's list of parameters (fm_arch_param) says which modules there are; each place in it is a
 * weight or bias of one module here. */
#include "train/net/method.h"

#include "infer/model/class_head.h"
#include "infer/model/fixed.h"

#include "store/base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- the module of each place of the architecture ---- */
typedef enum part_kind { PART_WEIGHT, PART_BIAS, PART_GAIN, PART_NORM_BIAS } part_kind;

typedef struct part {
    fm_place place;
    part_kind kind;
    uint32_t which; /* FMT_Q.., FMT_ATTN_NORM.., FMT_EMBED.., FMT_EMBED_NORM.. */
} part;

static const part parts[] = {
    {FM_P_EMBED, PART_WEIGHT, FMT_EMBED},
    {FM_P_POSITIONS, PART_WEIGHT, FMT_POSITIONS},
    {FM_P_TYPES, PART_WEIGHT, FMT_TYPES},
    {FM_P_EMBED_NORM, PART_GAIN, FMT_EMBED_NORM},
    {FM_P_EMBED_NORM_B, PART_NORM_BIAS, FMT_EMBED_NORM},
    {FM_P_NORM, PART_GAIN, FMT_NORM},
    {FM_P_NORM_B, PART_NORM_BIAS, FMT_NORM},
    {FM_P_HEAD, PART_WEIGHT, FMT_HEAD},
    {FM_P_HEAD_B, PART_BIAS, FMT_HEAD},
    {FM_P_ATTN_NORM, PART_GAIN, FMT_ATTN_NORM},
    {FM_P_ATTN_NORM_B, PART_NORM_BIAS, FMT_ATTN_NORM},
    {FM_P_ATTN_POST, PART_GAIN, FMT_ATTN_POST},
    {FM_P_ATTN_POST_B, PART_NORM_BIAS, FMT_ATTN_POST},
    {FM_P_MLP_NORM, PART_GAIN, FMT_MLP_NORM},
    {FM_P_MLP_NORM_B, PART_NORM_BIAS, FMT_MLP_NORM},
    {FM_P_MLP_POST, PART_GAIN, FMT_MLP_POST},
    {FM_P_MLP_POST_B, PART_NORM_BIAS, FMT_MLP_POST},
    {FM_P_Q_NORM, PART_GAIN, FMT_Q_NORM},
    {FM_P_K_NORM, PART_GAIN, FMT_K_NORM},
    {FM_P_SINKS, PART_GAIN, FMT_SINKS},
    {FM_P_Q, PART_WEIGHT, FMT_Q},
    {FM_P_Q_B, PART_BIAS, FMT_Q},
    {FM_P_K, PART_WEIGHT, FMT_K},
    {FM_P_K_B, PART_BIAS, FMT_K},
    {FM_P_V, PART_WEIGHT, FMT_V},
    {FM_P_V_B, PART_BIAS, FMT_V},
    {FM_P_O, PART_WEIGHT, FMT_O},
    {FM_P_O_B, PART_BIAS, FMT_O},
    {FM_P_GATE, PART_WEIGHT, FMT_GATE},
    {FM_P_GATE_B, PART_BIAS, FMT_GATE},
    {FM_P_UP, PART_WEIGHT, FMT_UP},
    {FM_P_UP_B, PART_BIAS, FMT_UP},
    {FM_P_DOWN, PART_WEIGHT, FMT_DOWN},
    {FM_P_DOWN_B, PART_BIAS, FMT_DOWN},
    {FM_P_ROUTER, PART_WEIGHT, FMT_ROUTER},
    {FM_P_ROUTER_SUM_B, PART_BIAS, FMT_ROUTER},
    {FM_P_X_GATE, PART_WEIGHT, FMT_EXPERTS},
    {FM_P_X_GATE_B, PART_BIAS, FMT_EXPERTS},
    {FM_P_X_UP, PART_WEIGHT, FMT_EXPERTS + 1},
    {FM_P_X_UP_B, PART_BIAS, FMT_EXPERTS + 1},
    {FM_P_X_DOWN, PART_WEIGHT, FMT_EXPERTS + 2},
    {FM_P_X_DOWN_B, PART_BIAS, FMT_EXPERTS + 2},
    {FM_P_S_GATE, PART_WEIGHT, FMT_S_GATE},
    {FM_P_S_UP, PART_WEIGHT, FMT_S_UP},
    {FM_P_S_DOWN, PART_WEIGHT, FMT_S_DOWN},
    {FM_P_S_SWITCH, PART_WEIGHT, FMT_S_SWITCH},
    {FM_P_REC_IN, PART_WEIGHT, FMT_REC_IN},
    {FM_P_REC_IN_B, PART_BIAS, FMT_REC_IN},
    {FM_P_REC_OUT, PART_WEIGHT, FMT_REC_OUT},
    {FM_P_REC_OUT_B, PART_BIAS, FMT_REC_OUT},
    {FM_P_CONV, PART_GAIN, FMT_CONV},
    {FM_P_CONV_B, PART_NORM_BIAS, FMT_CONV},
    {FM_P_REC_X, PART_WEIGHT, FMT_REC_X},
    {FM_P_REC_DT, PART_WEIGHT, FMT_REC_DT},
    {FM_P_REC_Z, PART_WEIGHT, FMT_REC_Z},
    {FM_P_REC_BETA, PART_WEIGHT, FMT_REC_BETA},
    {FM_P_REC_ALPHA, PART_WEIGHT, FMT_REC_ALPHA},
    {FM_P_RATES, PART_GAIN, FMT_RATES},
    {FM_P_SKIP, PART_GAIN, FMT_SKIP},
    {FM_P_DT_B, PART_GAIN, FMT_DT_B},
    {FM_P_REC_NORM, PART_GAIN, FMT_REC_NORM},
};

static const part *part_of(fm_place place)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(parts); i++)
        if (parts[i].place == place)
            return &parts[i];
    fm_assert(false);
    return NULL;
}

fmt_linear *fmt_net_at(const fmt_net *net, int32_t layer, uint32_t which)
{
    if (layer == FMT_OUTSIDE)
        return (fmt_linear *)(uintptr_t)&net->outer[which];
    fm_assert(which < net->lins);
    return &net->block[layer].lin[which];
}

fmt_norm *fmt_net_norm_at(const fmt_net *net, int32_t layer, uint32_t which)
{
    if (layer == FMT_OUTSIDE)
        return (fmt_norm *)(uintptr_t)&net->outer_norm[which];
    return &net->block[layer].norm[which];
}

static uint32_t which_linear(const part *at, const fm_param *p)
{
    return at->which >= FMT_EXPERTS && p->layer >= 0 ? at->which + 3 * p->expert : at->which;
}

/* ---- modules ---- */
/* The module's name: the parameter's name without its last part. */
static void module_name(char *out, const char *param)
{
    const char *dot = strrchr(param, '.');
    size_t n = dot ? (size_t)(dot - param) : strlen(param);
    (void)snprintf(out, FMT_MODULE_BYTES, "%.*s", (int)n, param);
}

bool fmt_place_trains(fm_place place)
{
    return place != FM_P_ROUTER_B && place != FM_P_BUCKETS && place != FM_P_ACT_P &&
           place != FM_P_ACT_N;
}

/* transformers multiplies with Mamba's dt_proj past the module, and with out_proj too in its fused
 * path: PEFT refuses adapters of the latter. */
static bool past_module(const fmt_net *net, const fm_param *p)
{
    bool last = p->place == FM_P_REC_OUT || p->place == FM_P_REC_OUT_B;
    return p->place == FM_P_REC_DT || (last && net->arch.sw.layer[p->layer] & FM_LAYER_NO_MLP);
}

static void declare_part(fmt_net *net, const fm_param *p)
{
    if (!fmt_place_trains(p->place))
        return; /* of no module: take_experts, fmt_net_fixed */
    const part *at = part_of(p->place);

    if (at->kind == PART_WEIGHT || at->kind == PART_BIAS) {
        fmt_linear *l = fmt_net_at(net, p->layer, which_linear(at, p));
        module_name(l->module, p->name);
        l->no_module = fm_arch_stacks(&net->arch, p->place) ||
                       (at->which == FMT_ROUTER && fm_arch_stacks(&net->arch, FM_P_X_GATE)) ||
                       past_module(net, p);
        l->has_bias = l->has_bias || at->kind == PART_BIAS;
        if (at->kind == PART_BIAS)
            return;
        l->transposed = p->transposed;
        l->out = (uint32_t)p->shape.dim[p->transposed ? 1 : 0];
        l->in = (uint32_t)p->shape.dim[p->transposed ? 0 : 1];
        return;
    }
    fmt_norm *n = fmt_net_norm_at(net, p->layer, at->which);
    module_name(n->module, p->name);
    n->adds_one = fm_norm_adds_one(net->arch.sw.norm) && (p->layer < 0 || at->which < FMT_SINKS);
    if (at->kind == PART_GAIN) {
        n->n = 1;
        for (uint32_t i = 0; i < p->shape.rank; i++)
            n->n *= (uint32_t)p->shape.dim[i];
    }
    n->has_bias = n->has_bias || at->kind == PART_NORM_BIAS;
}

static void no_params(fmt_linear *l, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        l[i].w_param = -1;
        l[i].bias_param = -1;
        l[i].in_scale.param = -1;
        l[i].out_scale.param = -1;
    }
}

static void no_norm_params(fmt_norm *n, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        n[i].param = -1;
        n[i].bias_param = -1;
    }
}

static fm_status declare_all(fmt_net *net)
{
    const fm_arch *a = &net->arch;
    fm_param p;

    net->lins = FMT_EXPERTS + 3 * a->sw.experts;
    net->virt_param = -1;
    net->block = fm_calloc(a->layers, sizeof(*net->block));
    if (!net->block)
        return FM_ENOMEM;
    no_params(net->outer, FMT_OUTER);
    no_norm_params(net->outer_norm, FMT_OUTER_NORMS);
    for (uint32_t l = 0; l < a->layers; l++) {
        net->block[l].lin = fm_calloc(net->lins, sizeof(fmt_linear));
        if (!net->block[l].lin)
            return FM_ENOMEM;
        no_params(net->block[l].lin, net->lins);
        no_norm_params(net->block[l].norm, FMT_NORMS);
    }
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++)
        declare_part(net, &p);
    for (uint32_t l = 0; l < a->layers; l++)
        for (uint32_t k = 0; k < net->lins; k++)
            net->block[l].present += net->block[l].lin[k].module[0] != '\0';
    fmt_linear *head = &net->outer[FMT_HEAD];
    if (head->in == 0 && !a->sw.encoder) { /* tied: a module without a parameter of its own */
        (void)snprintf(head->module, sizeof(head->module), "%s", a->head_name);
        head->in = a->hidden;
        head->out = a->vocab;
    }
    return FM_OK;
}

/* ---- the parent's weights ---- */
static fm_status add_term(fmt_linear *l, const fmt_term *t)
{
    FM_TRY(fm_grow(&l->term, &l->cap, l->terms + 1, sizeof(*l->term)));

    l->term[l->terms++] = *t;
    return FM_OK;
}

static fm_status take_linear(const fm_backend *be, fmt_linear *l, const fm_linear *from)
{
    if (!l->module[0] || !from->w)
        return FM_OK;
    l->w = from->w;
    l->bias = from->bias;
    l->in_scale.s = from->in_scale;
    l->out_scale.s = from->out_scale;
    l->bias_after = from->bias_after;
    for (uint32_t i = 0; i < from->lora_count; i++) {
        const fm_lora_term *t = &from->lora[i];
        FM_TRY(add_term(l, &(fmt_term){.a = be->weight_floats(t->a),
                                       .b = be->weight_floats(t->b),
                                       .r = t->r,
                                       .scale = t->scale,
                                       .a_param = -1,
                                       .b_param = -1}));
    }
    return FM_OK;
}

static fm_status take_experts(const fmt_net *net, fmt_block *b, const fm_experts *x)
{
    b->choice_bias = x->choice_bias;
    FM_TRY(take_linear(net->be, &b->lin[FMT_ROUTER], &x->router));
    const fm_linear *const shared[] = {&x->s_gate, &x->s_up, &x->s_down, &x->s_switch};

    for (uint32_t i = 0; i < FM_ARRAY_LEN(shared); i++)
        FM_TRY(take_linear(net->be, &b->lin[FMT_S_GATE + i], shared[i]));
    for (uint32_t e = 0; e < net->arch.sw.experts; e++) {
        fmt_linear *l = &b->lin[FMT_EXPERTS + 3 * e];
        FM_TRY(take_linear(net->be, &l[0], &x->gate[e]));
        FM_TRY(take_linear(net->be, &l[1], &x->up[e]));
        FM_TRY(take_linear(net->be, &l[2], &x->down[e]));
    }
    return FM_OK;
}

static fm_status take_recurrent(const fmt_net *net, fmt_block *b, const fm_recurrent *x)
{
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_IN], &x->in));
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_OUT], &x->out));
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_X], &x->x));
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_DT], &x->dt));
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_Z], &x->z));
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_BETA], &x->beta));
    FM_TRY(take_linear(net->be, &b->lin[FMT_REC_ALPHA], &x->alpha));
    b->norm[FMT_RATES].gain = x->rates;
    b->norm[FMT_SKIP].gain = x->skip;
    b->norm[FMT_DT_B].gain = x->dt_b;
    b->norm[FMT_REC_NORM].gain = x->norm;
    b->norm[FMT_CONV].gain = x->conv;
    b->norm[FMT_CONV].bias = x->conv_b;
    return FM_OK;
}

static fm_status take_block(const fmt_net *net, fmt_block *b, const fm_layer *from)
{
    const fm_linear *const lin[] = {&from->q,    &from->k,  &from->v,   &from->o,
                                    &from->gate, &from->up, &from->down};
    fm_status rc = FM_OK;

    for (uint32_t i = 0; i < FM_ARRAY_LEN(lin) && rc == FM_OK; i++)
        rc = take_linear(net->be, &b->lin[i], lin[i]);
    if (rc == FM_OK && from->experts)
        rc = take_experts(net, b, from->experts);
    if (rc == FM_OK && from->rec)
        rc = take_recurrent(net, b, from->rec);
    b->xielu = from->xielu;
    b->norm[FMT_ATTN_NORM].gain = from->attn_norm;
    b->norm[FMT_ATTN_NORM].bias = from->attn_norm_b;
    b->norm[FMT_ATTN_POST].gain = from->attn_post;
    b->norm[FMT_ATTN_POST].bias = from->attn_post_b;
    b->norm[FMT_MLP_NORM].gain = from->mlp_norm;
    b->norm[FMT_MLP_NORM].bias = from->mlp_norm_b;
    b->norm[FMT_MLP_POST].gain = from->mlp_post;
    b->norm[FMT_MLP_POST].bias = from->mlp_post_b;
    b->norm[FMT_Q_NORM].gain = from->q_norm;
    b->norm[FMT_K_NORM].gain = from->k_norm;
    b->norm[FMT_SINKS].gain = from->sinks;
    return rc;
}

/* Takes the parent's terms on the embedding, frozen. Their factors are in a product layout;
 * embedding the numbers 0, 1, .. reads the rows. */
static fm_status take_embed_terms(fmt_net *net, const fm_model *model)
{
    fmt_linear *l = &net->outer[FMT_EMBED];
    uint32_t most = FM_MAX(l->in, l->out);
    fm_backend *be = net->be;
    uint64_t floats = 0;
    void *mem = NULL;
    void *ids = NULL;

    for (uint32_t i = 0; i < model->embed.lora_count; i++)
        floats += (uint64_t)model->embed.lora[i].r * (l->in + l->out);
    if (floats == 0)
        return FM_OK;
    int32_t *host = fm_malloc(most * sizeof(*host));
    fm_status rc = host ? be->alloc(be, &mem, (size_t)floats * sizeof(float)) : FM_ENOMEM;
    net->embed_own = mem;
    for (uint32_t i = 0; host && i < most; i++)
        host[i] = (int32_t)i;
    FM_THEN(rc, be->alloc(be, &ids, most * sizeof(*host)));
    FM_THEN(rc, be->upload(be, ids, host, most * sizeof(*host)));
    float *at = net->embed_own;
    for (uint32_t i = 0; rc == FM_OK && i < model->embed.lora_count; i++) {
        const fm_lora_term *from = &model->embed.lora[i];
        fmt_term t = {.r = from->r, .scale = from->scale, .a_param = -1, .b_param = -1};
        be->embed(be, at, t.r, from->a, ids, NULL, l->out);
        t.a = at;
        at += (size_t)t.r * l->out;
        be->embed(be, at, t.r, from->b, ids, NULL, l->in);
        t.b = at;
        at += (size_t)t.r * l->in;
        rc = fm_grow(&l->term, &l->cap, l->terms + 1, sizeof(*l->term));
        if (rc == FM_OK)
            l->term[l->terms++] = t;
    }
    FM_THEN(rc, be->sync(be)); /* ids are read until then */
    if (ids)
        be->free(be, ids);
    fm_free(host);
    return rc;
}

static fm_status take_before(fmt_net *net, const fm_model *model)
{
    fm_linear embed = model->embed; /* take_embed_terms takes its terms */

    net->outer_norm[FMT_EMBED_NORM].gain = model->embed_norm;
    net->outer_norm[FMT_EMBED_NORM].bias = model->embed_norm_b;
    embed.lora_count = 0;
    fm_status rc = take_linear(net->be, &net->outer[FMT_EMBED], &embed);
    FM_THEN(rc, take_embed_terms(net, model));
    FM_THEN(rc, take_linear(net->be, &net->outer[FMT_POSITIONS], &model->positions));
    net->outer[FMT_TYPES].bias = model->types; /* row 0, added to every row */
    return rc;
}

static fm_status take_model(fmt_net *net, const fm_model *model)
{
    FM_TRY(net->begin == 0 ? take_before(net, model) : FM_OK);
    net->near = model->near;

    if (net->end == net->arch.layers) {
        net->outer_norm[FMT_NORM].gain = model->norm;
        net->outer_norm[FMT_NORM].bias = model->norm_b;
        FM_TRY(take_linear(net->be, &net->outer[FMT_HEAD], &model->head));
    }
    for (uint32_t l = net->begin; l < net->end; l++)
        FM_TRY(take_block(net, &net->block[l], &model->layers[l]));
    return fmt_virtual_take(net, model);
}

/* Norms without parameters have gains of 1. */
static fm_status bare_norms(fmt_net *net, float *ones, size_t n)
{
    static const uint32_t in_layer[] = {FMT_ATTN_NORM, FMT_MLP_NORM, FMT_Q_NORM, FMT_K_NORM};
    float *host = fm_malloc(n * sizeof(float));

    for (size_t i = 0; host && i < n; i++)
        host[i] = 1.0f;
    fm_status rc = host ? net->be->upload(net->be, ones, host, n * sizeof(float)) : FM_ENOMEM;
    fm_free(host);
    net->outer_norm[FMT_EMBED_NORM].gain = net->outer_norm[FMT_NORM].gain = ones;
    for (uint32_t l = 0; l < net->arch.layers; l++)
        for (size_t i = 0; i < FM_ARRAY_LEN(in_layer); i++)
            net->block[l].norm[in_layer[i]].gain = ones;
    return rc;
}

fm_status fmt_net_fixed(fmt_net *net, const fm_tree *tree, const fm_provider *p, const char *what)
{
    const fm_arch *a = &net->arch;
    size_t n = a->sw.router_bias ? a->sw.experts : 0, near = (size_t)a->heads * fmi_near_ld(a);
    size_t bare = a->sw.bare_norms ? FM_MAX(a->hidden, a->head_dim) : 0;
    float *host = NULL;
    void *mem = NULL;
    fm_param at;

    if (n == 0 && near == 0 && bare == 0)
        return FM_OK;
    FM_TRY(net->be->alloc(net->be, &mem, (bare + near + a->layers * n) * sizeof(float)));
    net->fixed_own = mem;
    if (bare)
        FM_TRY(bare_norms(net, net->fixed_own + near + a->layers * n, bare));
    net->near = near ? net->fixed_own : NULL;
    fm_status rc = fmi_near_make(&host, a, tree, p, what);
    if (rc == FM_OK && near)
        rc = net->be->upload(net->be, net->fixed_own, host, near * sizeof(float));
    fm_free(host);
    for (uint32_t i = 0; rc == FM_OK && n && fm_arch_param(a, i, &at); i++) {
        if (at.place != FM_P_ROUTER_B)
            continue;
        float *to = net->fixed_own + near + (size_t)at.layer * n;
        rc = fmi_fixed_floats(&host, n, at.name, tree, p, what);
        FM_THEN(rc, net->be->upload(net->be, to, host, n * sizeof(float)));
        net->block[at.layer].choice_bias = to;
        fm_free(host);
        host = NULL;
    }
    return rc;
}

static fm_status check_device(const fm_backend *be, const fm_arch *a)
{
    const char *lacks = NULL;

    if (fmi_near_ld(a) && !(be->attends & FM_ATTENDS_TRAIN_BIAS))
        lacks = "biases by distance";
    if (a->sw.encoder && a->window && !(be->attends & FM_ATTENDS_TRAIN_WINDOW))
        lacks = "a window to both sides";
    if (lacks)
        return fm_fail(FM_EUNSUPPORTED,
                       "the %s backend cannot train %s: its attention has no %s; use the CPU",
                       be->name, a->family, lacks);
    const bool delta = a->sw.rec.kind == FM_RECURS_DELTA;
    bool scans = a->sw.rec.kind == FM_RECURS_MAMBA || a->sw.rec.kind == FM_RECURS_MAMBA2;
    if (fm_arch_recurs(a) &&
        (!be->convolve_grad || (scans && !be->scan_grad) || (delta && !be->delta_grad)))
        return fm_fail(FM_EUNSUPPORTED,
                       "the %s backend cannot train %s: it has no gradient of %s; use the CPU",
                       be->name, a->family,
                       scans   ? "selective scans"
                       : delta ? "the gated delta rule"
                               : "short convolutions");
    return FM_OK;
}

/* Experts of Nemotron-H have no gate; layers of Falcon-H1 have two blocks beside each other. */
static fm_status check_blocks(const fm_arch *a)
{
    if (a->sw.beside || (a->sw.experts && a->sw.plain_mlp))
        return fm_fail(
            FM_EUNSUPPORTED, "%s has %s: it runs, and it cannot be trained here", a->family,
            a->sw.beside ? "recurrent blocks beside attention" : "experts without gates");
    return FM_OK;
}

fm_status fmt_net_init_layers(fmt_net *net, fm_backend *be, const fm_arch *arch,
                              const fm_model *model, uint32_t begin, uint32_t end)
{
    memset(net, 0, sizeof(*net));
    FM_TRY(check_blocks(arch));
    if (arch->sw.sinks && !(be->attends & FM_ATTENDS_TRAIN_SINK))
        return fm_fail(FM_EUNSUPPORTED, "%s has sinks, which %s does not train; use the CPU",
                       arch->family, be->name);
    if (arch->sw.cross || arch->of_source)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: training of an encoder and a decoder is not supported: they run, also "
                       "with adapters",
                       arch->family);
    if (fm_layers_uneven(&arch->sw))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: training of layers with heads or inputs of their own is not supported: "
                       "it runs, also with adapters",
                       arch->family);
    if (arch->sw.embed_width || arch->sw.groups)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: training of %s is not supported: it runs, also with adapters",
                       arch->family,
                       arch->sw.groups ? "layers that share their parameters"
                                       : "embeddings of another width than the layers");
    if (arch->sw.chunk || arch->sw.router_first)
        return fm_fail(
            FM_EUNSUPPORTED,
            "%s: training of attention in chunks and of experts of weighted inputs is not "
            "supported: it runs, also with adapters",
            arch->family);
    if (arch->sw.sub_norms || arch->sw.rounds)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: training of %s is not supported: it runs, also with adapters",
                       arch->family,
                       arch->sw.rounds ? "products with rounded inputs"
                                       : "norms before the last product of a branch");
    if (arch->sw.kv_rank)
        return fm_fail(FM_EUNSUPPORTED, "%s: training of latent attention is not supported",
                       arch->family);
    net->be = be;
    net->arch = *arch;
    net->begin = begin;
    net->end = end;
    net->frozen = model != NULL;
    fm_status rc = check_device(be, arch);
    FM_THEN(rc, declare_all(net));
    return rc == FM_OK && model ? take_model(net, model) : rc;
}

fm_status fmt_net_init(fmt_net *net, fm_backend *be, const fm_arch *arch, const fm_model *model)
{
    if (model && fm_engine_batch_stages(model->engine) > 1) {
        memset(net, 0, sizeof(*net));
        return fm_fail(FM_EUNSUPPORTED, "this needs whole models, and the engine has the layers of "
                                        "a stage alone");
    }
    return fmt_net_init_layers(net, be, arch, model, 0, arch->layers);
}

/* ---- classes ---- */
static void class_module(fmt_linear *l, const char *name, uint32_t out, uint32_t in, bool bias)
{
    if (!name[0])
        return;
    (void)snprintf(l->module, sizeof(l->module), "%s", name);
    l->in = in;
    l->out = out;
    l->has_bias = bias;
}

fm_status fmt_net_add_classes(fmt_net *net, uint32_t classes, const fm_model *model)
{
    fmi_class_names names;
    const fmi_class_head *head = model ? fmi_model_class_head(model) : NULL;
    uint32_t h = net->arch.hidden;
    fm_status rc = FM_OK;

    fmi_class_names_of(&names, &net->arch);
    class_module(&net->outer[FMT_DENSE], names.dense, h, h, names.bias);
    class_module(&net->outer[FMT_SCORE], names.out, classes, h, names.bias);
    if (head && head->classes != classes)
        return fm_fail(FM_EBASE, "the parent's classification head has %u classes, not %u",
                       head->classes, classes);
    if (head)
        rc = take_linear(net->be, &net->outer[FMT_DENSE], &head->dense);
    return rc == FM_OK && head ? take_linear(net->be, &net->outer[FMT_SCORE], &head->out) : rc;
}

/* ---- walking ---- */
fmt_linear *fmt_net_linear(fmt_net *net, size_t i)
{
    for (uint32_t l = 0; l < net->arch.layers; l++) {
        const fmt_block *b = &net->block[l];
        if (i >= b->present) {
            i -= b->present;
            continue;
        }
        for (uint32_t k = 0; k < net->lins; k++)
            if (b->lin[k].module[0] && i-- == 0)
                return &b->lin[k];
    }
    for (uint32_t k = 0; k < FMT_OUTER; k++)
        if (net->outer[k].module[0] && i-- == 0)
            return &net->outer[k];
    return NULL;
}

fmt_norm *fmt_net_norm(fmt_net *net, size_t i)
{
    for (uint32_t l = 0; l < net->arch.layers; l++)
        for (uint32_t k = 0; k < FMT_NORMS; k++)
            if (net->block[l].norm[k].n > 0 && i-- == 0)
                return &net->block[l].norm[k];
    for (uint32_t k = 0; k < FMT_OUTER_NORMS; k++)
        if (net->outer_norm[k].n > 0 && i-- == 0)
            return &net->outer_norm[k];
    return NULL;
}

int32_t fmt_net_layer_of(const fmt_net *net, const fmt_linear *l)
{
    for (uint32_t i = 0; i < net->arch.layers; i++)
        if (l >= net->block[i].lin && l < net->block[i].lin + net->lins)
            return (int32_t)i;
    return FMT_OUTSIDE;
}

bool fmt_linear_trains(const fmt_linear *l)
{
    bool any = l->fold || l->w_param >= 0 || l->bias_param >= 0 || l->in_scale.param >= 0 ||
               l->out_scale.param >= 0;

    for (size_t i = 0; i < l->terms; i++)
        any = any || l->term[i].a_param >= 0 || l->term[i].b_param >= 0;
    return any;
}

bool fmt_net_layer_trains(const fmt_net *net, uint32_t layer)
{
    const fmt_block *b = &net->block[layer];
    bool any = net->virt_kind == FMT_VIRTUAL_KV && net->virt_param >= 0;

    for (uint32_t i = 0; i < net->lins; i++)
        any = any || fmt_linear_trains(&b->lin[i]);
    for (uint32_t i = 0; i < FMT_NORMS; i++)
        any = any || b->norm[i].param >= 0 || b->norm[i].bias_param >= 0;
    return any;
}

fmt_depth fmt_net_depth(const fmt_net *net)
{
    const fmt_norm *norm = &net->outer_norm[FMT_NORM];
    const fmt_norm *embed_norm = &net->outer_norm[FMT_EMBED_NORM];
    fmt_depth d = {.norm = norm->param >= 0 || norm->bias_param >= 0};

    if (net->staged)
        return net->depth;
    d.embed = fmt_linear_trains(&net->outer[FMT_EMBED]) ||
              fmt_linear_trains(&net->outer[FMT_POSITIONS]) ||
              fmt_linear_trains(&net->outer[FMT_TYPES]) || embed_norm->param >= 0 ||
              embed_norm->bias_param >= 0 ||
              (net->virt_kind == FMT_VIRTUAL_ROWS && net->virt_param >= 0);
    while (!d.embed && d.first < net->arch.layers && !fmt_net_layer_trains(net, d.first))
        d.first++;
    return d;
}

/* ---- what trains ---- */
static int32_t *place_of(fmt_net *net, const fm_param *p)
{
    const part *at = part_of(p->place);

    switch (at->kind) {
    case PART_WEIGHT:
        return &fmt_net_at(net, p->layer, which_linear(at, p))->w_param;
    case PART_BIAS:
        return &fmt_net_at(net, p->layer, which_linear(at, p))->bias_param;
    case PART_GAIN:
        return &fmt_net_norm_at(net, p->layer, at->which)->param;
    case PART_NORM_BIAS:
        return &fmt_net_norm_at(net, p->layer, at->which)->bias_param;
    }
    return NULL;
}

/* A tied head has no parameter of its own, but may train while the embedding is frozen. */
static int32_t *tied_head(fmt_net *net, const char *name, fm_shape *want)
{
    fmt_linear *head = &net->outer[FMT_HEAD];
    size_t n = strlen(head->module);

    if (n == 0 || strncmp(name, head->module, n) != 0 || strcmp(name + n, ".weight") != 0)
        return NULL;
    *want = (fm_shape){.rank = 2, .dim = {head->out, head->in}};
    return &head->w_param;
}

/* "<module>.weight" or ".bias" of the classification head. */
static int32_t *class_head(fmt_net *net, const char *name, fm_shape *want)
{
    for (uint32_t k = FMT_DENSE; k <= FMT_SCORE; k++) {
        fmt_linear *l = &net->outer[k];
        size_t n = strlen(l->module);
        if (n == 0 || strncmp(name, l->module, n) != 0)
            continue;
        bool bias = strcmp(name + n, ".bias") == 0;
        if (!bias && strcmp(name + n, ".weight") != 0)
            continue;
        *want = bias ? (fm_shape){.rank = 1, .dim = {l->out}}
                     : (fm_shape){.rank = 2, .dim = {l->out, l->in}};
        return bias ? &l->bias_param : &l->w_param;
    }
    return NULL;
}

fm_status fmt_net_train(fmt_net *net, fmt_params *ps, const char *name, const fm_shape *shape,
                        const char *as)
{
    fm_shape want = {0};
    char have_text[128];
    char want_text[128];
    fm_param p;
    int32_t *place = NULL;

    if (fm_arch_param_named(&net->arch, name, &p)) {
        if (p.place == FM_P_ROUTER_B)
            return FM_OK; /* no loss has a gradient through a choice */
        if (p.place == FM_P_ACT_P || p.place == FM_P_ACT_N)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: numbers of the activation xIELU do not train here; use lora, or "
                           "name the modules in freeze",
                           name);
        if (p.place == FM_P_BUCKETS)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: scores of relative positions do not train here; name the module "
                           "in freeze",
                           name);
        place = place_of(net, &p);
        want = p.shape;
    } else {
        place = tied_head(net, name, &want);
        if (!place)
            place = class_head(net, name, &want);
    }
    if (!place)
        return fm_fail(FM_EBASE, "%s: the parent has no parameter of this name", name);
    if (!fm_shape_eq(&want, shape)) {
        fm_shape_text(shape, have_text, sizeof(have_text));
        fm_shape_text(&want, want_text, sizeof(want_text));
        return fm_fail(FM_EBASE, "%s: shape %s, the parent needs %s", name, have_text, want_text);
    }
    return fmt_params_add(ps, place, as, shape);
}
