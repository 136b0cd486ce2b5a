/* params.c - lists the parameters of an architecture in a fixed order. */
#include "infer/arch/table.h"

#include <stdio.h>
#include <string.h>

static bool is_there(const fm_arch *a, const fmi_arch_part *p, uint8_t layer)
{
    bool sparse = layer & FM_LAYER_SPARSE, recurs = layer & FM_LAYER_RECURS;
    bool mixes = recurs || !(layer & FM_LAYER_NO_ATTENTION);
    bool keeps = !(layer & FM_LAYER_SHARES_KV);
    bool own_v = !a->sw.full_k_is_v || (layer & FM_LAYER_SLIDES);
    switch (p->when) {
    case W_QKV_BIAS:
        return a->qkv_bias && !(layer & FM_LAYER_NO_ATTENTION);
    case W_O_BIAS:
        return a->o_bias && !(layer & FM_LAYER_NO_ATTENTION);
    case W_MLP_BIAS:
        return a->mlp_bias && !sparse && !(layer & FM_LAYER_NO_MLP);
    case W_QK_NORM:
        return a->qk_norm;
    case W_DENSE:
        return !sparse && !(layer & FM_LAYER_NO_MLP);
    case W_SPARSE:
    case W_EXPERT:
        return sparse;
    case W_SHARED:
        return sparse && a->sw.shared_expert;
    case W_SHARED_GATE:
        return sparse && a->sw.shared_expert && !a->sw.shared_plain;
    case W_ROUTER_BIAS:
        return sparse && a->sw.router_bias;
    case W_EMBED_MAP:
        return a->sw.embed_width > 0;
    case W_HEAD:
        return !a->tied && !a->headless;
    case W_HEAD_BIAS:
        return !a->headless;
    case W_HEAD_BIAS_MAY:
    case W_LOGIT_BIAS:
        return !a->headless && a->head_bias;
    case W_LATENT_Q:
        return a->sw.q_rank > 0;
    case W_LATENT_Q_BIAS:
        return a->sw.q_rank > 0 && a->qkv_bias;
    case W_PLAIN_Q:
        return a->sw.q_rank == 0;
    case W_TWO_NORMS:
        return a->sw.order == FM_BLOCK_PARALLEL && !a->sw.one_norm;
    case W_NOT_TWO_NORMS:
        return a->sw.order != FM_BLOCK_PARALLEL || a->sw.one_norm;
    case W_SANDWICH:
        return a->sw.order == FM_BLOCK_SANDWICH;
    case W_IN_TURN:
        return a->sw.order != FM_BLOCK_PARALLEL;
    case W_NORM_BIAS:
        return a->sw.norm_bias;
    case W_INPUT_NORM:
        return !(layer & FM_LAYER_NO_INPUT_NORM);
    case W_INPUT_NORM_BIAS:
        return a->sw.norm_bias && !(layer & FM_LAYER_NO_INPUT_NORM);
    case W_ATTENDS:
        return !(layer & FM_LAYER_NO_ATTENTION);
    case W_RECURS:
        return recurs;
    case W_RECURS_BIAS:
        return recurs && a->sw.rec.bias;
    case W_CONV_BIAS:
        return recurs && a->sw.rec.conv_bias;
    case W_MLP:
        return !(layer & FM_LAYER_NO_MLP);
    case W_GATED:
        return !a->sw.plain_mlp;
    case W_PLAIN:
        return a->sw.plain_mlp;
    case W_MIXES:
        return mixes;
    case W_MLP_ALONE:
        return !mixes;
    case W_REC_NORM:
        return recurs && !a->sw.rec.bare;
    case W_REC_OUT_BIAS:
        return recurs && a->sw.rec.out_bias;
    case W_EXPERT_IN:
        return sparse && a->sw.expert_in > 0;
    case W_KEEPS:
        return keeps;
    case W_KEEPS_BIAS:
        return keeps && a->qkv_bias;
    case W_KEEPS_V:
        return keeps && own_v;
    case W_KEEPS_V_BIAS:
        return keeps && own_v && a->qkv_bias;
    case W_PER_LAYER:
        return a->sw.per_layer > 0;
    case W_LAYER_SCALE:
        return a->sw.layer_scale;
    case W_ALWAYS:
        break;
    }
    return true;
}

/* Whether a parameter stands under the head's name. */
static bool of_head(const fmi_arch_part *p)
{
    return p->when == W_HEAD || p->when == W_HEAD_BIAS || p->when == W_HEAD_BIAS_MAY;
}

static uint64_t size_of(const fm_arch *a, fmi_dim d, int32_t layer)
{
    uint32_t l = layer < 0 ? 0 : (uint32_t)layer, hd = fm_layer_head_dim(&a->sw, a->head_dim, l);
    uint64_t q = (uint64_t)a->heads * hd;
    uint64_t kv = (uint64_t)fm_layer_kv_heads(&a->sw, a->kv_heads, l) * hd;
    switch (d) {
    case D_HIDDEN:
        return a->hidden;
    case D_EMBED:
        return fm_arch_embed_width(a);
    case D_INTER:
        return fm_layer_inter(&a->sw, a->inter, l);
    case D_INTER_2:
        return 2 * (uint64_t)a->inter;
    case D_Q:
        return q;
    case D_KV:
        return kv;
    case D_QKV:
        return q + 2 * kv;
    case D_HEAD:
        return hd;
    case D_Q_RANK:
        return a->sw.q_rank;
    case D_KV_RANK:
        return a->sw.kv_rank;
    case D_KV_A:
        return a->sw.kv_rank + (uint64_t)a->head_dim - a->sw.nope;
    case D_KV_B:
        return (uint64_t)a->heads * (a->sw.nope + a->sw.v_dim);
    case D_VALUES:
        return (uint64_t)a->heads * a->sw.v_dim;
    case D_HEADS:
        return a->heads;
    case D_BUCKETS:
        return a->sw.buckets;
    case D_EXPERTS:
        return a->sw.experts;
    case D_X_INTER:
        return a->sw.expert_inter;
    case D_X_IN:
        return a->sw.expert_in ? a->sw.expert_in : a->hidden;
    case D_S_INTER:
        return a->sw.shared_inter;
    case D_VOCAB:
        return a->vocab;
    case D_POSITIONS:
        return a->position_rows;
    case D_TYPES:
        return a->type_vocab;
    case D_REC_IN:
        return a->sw.rec.in;
    case D_REC_INNER:
        return a->sw.rec.inner;
    case D_CHANNELS:
        return a->sw.rec.channels;
    case D_KERNEL:
        return a->sw.rec.kernel;
    case D_STATE:
        return a->sw.rec.n;
    case D_REC_HEADS:
        return a->sw.rec.heads;
    case D_REC_X:
        return a->sw.rec.rank + 2 * (uint64_t)a->sw.rec.n;
    case D_RANK:
        return a->sw.rec.rank;
    case D_REC_2HEADS:
        return 2 * (uint64_t)a->sw.rec.heads;
    case D_REC_HD:
        return a->sw.rec.hd;
    case D_Q2:
        return 2 * q;
    case D_PER:
        return a->sw.per_layer;
    case D_PER_ALL:
        return (uint64_t)a->layers * a->sw.per_layer;
    case D_PER_VOCAB:
        return a->sw.per_layer_vocab;
    case D_ONE:
    case D_1:
        break;
    }
    return 1;
}

/* The group of layer l, rounded as transformers does it. */
static uint32_t group_of(const fm_arch *a, uint32_t l)
{
    uint32_t times = a->layers / a->sw.inner;
    uint32_t group = (uint32_t)((double)(l / a->sw.inner) / ((double)times / a->sw.groups));
    return FM_MIN(group, a->sw.groups - 1);
}

uint32_t fm_arch_layer_shared(const fm_arch *a, uint32_t l)
{
    uint32_t first = a->sw.groups ? l % a->sw.inner : l;
    while (a->sw.groups && group_of(a, first) != group_of(a, l))
        first += a->sw.inner;
    return first;
}

static void set_name(const fm_arch *a, const fmi_family *f, const fmi_arch_part *part, fm_param *p)
{
    char own[96];
    if (part->when == W_EXPERT) { /* one %u, the expert's number */
        const char *u = strstr(part->name, "%u");
        (void)snprintf(own, sizeof(own), "%.*s%u%s", (int)(u - part->name), part->name, p->expert,
                       u + 2);
    } else {
        (void)snprintf(own, sizeof(own), "%s", part->name);
    }
    if (of_head(part))
        (void)snprintf(p->name, sizeof(p->name), "%s.%s", a->head_name, own);
    else if (part->when == W_LOGIT_BIAS)
        (void)snprintf(p->name, sizeof(p->name), "%s", own);
    else if (p->layer < 0)
        (void)snprintf(p->name, sizeof(p->name), "%s%s", a->prefix, own);
    else if (a->sw.groups)
        (void)snprintf(p->name, sizeof(p->name), "%s%s%u.%s%u.%s", a->prefix, f->layers,
                       group_of(a, (uint32_t)p->layer), f->inner, (uint32_t)p->layer % a->sw.inner,
                       own);
    else
        (void)snprintf(p->name, sizeof(p->name), "%s%s%d.%s", a->prefix, f->layers, (int)p->layer,
                       own);
}

static void fill(const fm_arch *a, const fmi_arch_part *part, int32_t layer, uint32_t expert,
                 fm_param *p)
{
    const fmi_family *f = fmi_family_of(a);
    uint64_t rows = size_of(a, part->rows, layer), cols = size_of(a, part->cols, layer);
    memset(p, 0, sizeof(*p));
    p->layer = layer;
    p->expert = expert;
    p->place = part->place;
    p->is_matrix = part->cols != D_1 && part->cols != D_KERNEL && part->cols != D_STATE;
    p->transposed = p->is_matrix && layer >= 0 && (f->has & F_CONV1D);
    p->shape.rank = p->is_matrix ? 2 : 1;
    p->shape.dim[0] = p->transposed ? cols : rows;
    p->shape.dim[1] = !p->is_matrix ? 0 : p->transposed ? rows : cols;
    if (part->cols == D_STATE) {
        p->shape.rank = 2;
        p->shape.dim[1] = cols;
    }
    if (part->when == W_LOGIT_BIAS) {
        p->shape.rank = 2;
        p->shape.dim[0] = 1;
        p->shape.dim[1] = rows;
    }
    if (part->cols == D_KERNEL) {
        p->shape.rank = 3;
        p->shape.dim[1] = 1;
        p->shape.dim[2] = cols;
    }
    set_name(a, f, part, p);
}

/* The i-th parameter of a list; *left: what remains of i behind the list. */
static bool of_list(const fm_arch *a, const fmi_arch_part *list, int32_t layer, uint32_t i,
                    uint32_t *left, fm_param *out)
{
    uint8_t bits = layer < 0 ? 0 : a->sw.layer[layer];
    for (; list->name; list++) {
        uint32_t n = is_there(a, list, bits) ? 1 : 0;
        n = list->when == W_EXPERT ? n * a->sw.experts : n;
        if (i < n) {
            fill(a, list, layer, i, out);
            if (list->when != W_EXPERT)
                out->expert = 0;
            return true;
        }
        i -= n;
    }
    *left = i;
    return false;
}

static uint32_t count_of(const fm_arch *a, const fmi_arch_part *list, uint8_t bits)
{
    uint32_t count = 0;
    for (; list->name; list++)
        if (is_there(a, list, bits))
            count += list->when == W_EXPERT ? a->sw.experts : 1;
    return count;
}

/* The encoder's i-th parameter behind the embedding, which is the decoder's too. */
static bool of_source(const fm_arch *a, uint32_t i, fm_param *out)
{
    fm_arch source;
    fm_arch_source(&source, a);
    if (!fm_arch_param(&source, i + 1, out))
        return false;
    out->source = true;
    return true;
}

bool fm_arch_param(const fm_arch *a, uint32_t i, fm_param *out)
{
    const fmi_family *f = fmi_family_of(a);
    uint32_t count[UINT8_MAX + 1] = {0}; /* of a layer with these bits; 0: not known yet */
    if (of_list(a, f->first, -1, i, &i, out))
        return true;
    for (uint32_t l = 0; l < a->layers; l++) {
        uint8_t bits = a->sw.layer[l];
        count[bits] = count[bits] ? count[bits] : count_of(a, f->layer, bits);
        if (i < count[bits])
            return of_list(a, f->layer, (int32_t)l, i, &i, out);
        i -= count[bits];
    }
    return of_list(a, f->last, -1, i, &i, out) || (a->sw.cross && of_source(a, i, out));
}

/* Reads digits without a leading zero; returns the text behind them. */
static const char *number(const char *s, uint32_t *out)
{
    uint64_t n = 0;
    if (*s < '0' || *s > '9' || (s[0] == '0' && s[1] >= '0' && s[1] <= '9'))
        return NULL;
    for (; *s >= '0' && *s <= '9' && n < UINT32_MAX; s++)
        n = n * 10 + (uint64_t)(*s - '0');
    *out = (uint32_t)FM_MIN(n, (uint64_t)UINT32_MAX);
    return s;
}

static bool named_in(const fm_arch *a, const fmi_arch_part *list, int32_t layer, const char *name,
                     fm_param *out)
{
    uint8_t bits = layer < 0 ? 0 : a->sw.layer[layer];
    for (; list->name; list++) {
        uint32_t expert = 0;
        if (of_head(list) || !is_there(a, list, bits))
            continue;
        if (list->when == W_EXPERT) {
            size_t n = (size_t)(strstr(list->name, "%u") - list->name);
            const char *rest = strncmp(name, list->name, n) == 0 ? number(name + n, &expert) : NULL;
            if (!rest || expert >= a->sw.experts || strcmp(rest, list->name + n + 2) != 0)
                continue;
        } else if (strcmp(name, list->name) != 0) {
            continue;
        }
        fill(a, list, layer, expert, out);
        return true;
    }
    return false;
}

/* Reads the rest of a shared layer's name, whose group is *layer, which becomes the first layer of
 * that name; NULL: there is none. */
static const char *shared_layer(const fm_arch *a, const char *rest, uint32_t *layer)
{
    const char *inner = fmi_family_of(a)->inner;
    uint32_t group = *layer, at = 0;
    if (*rest != '.' || strncmp(rest + 1, inner, strlen(inner)) != 0)
        return NULL;
    rest = number(rest + 1 + strlen(inner), &at);
    if (!rest || at >= a->sw.inner)
        return NULL;
    while (at < a->layers && group_of(a, at) != group)
        at += a->sw.inner;
    *layer = at;
    return rest;
}

static bool own_named(const fm_arch *a, const char *name, fm_param *out)
{
    const fmi_family *f = fmi_family_of(a);
    size_t prefix = strlen(a->prefix), head = strlen(a->head_name), layers = strlen(f->layers);
    for (const fmi_arch_part *p = f->last; p->name; p++)
        if (p->when == W_LOGIT_BIAS && is_there(a, p, 0) && strcmp(name, p->name) == 0) {
            fill(a, p, -1, 0, out);
            return true;
        } else if (of_head(p) && is_there(a, p, 0) && strncmp(name, a->head_name, head) == 0 &&
                   name[head] == '.' && strcmp(name + head + 1, p->name) == 0) {
            fill(a, p, -1, 0, out);
            return true;
        }
    if (strncmp(name, a->prefix, prefix) != 0)
        return false;
    name += prefix;
    uint32_t layer = 0;
    const char *rest = strncmp(name, f->layers, layers) == 0 ? number(name + layers, &layer) : NULL;
    if (rest && a->sw.groups && !(rest = shared_layer(a, rest, &layer)))
        return false;
    if (rest && *rest == '.' && layer < a->layers &&
        named_in(a, f->layer, (int32_t)layer, rest + 1, out))
        return true;
    return named_in(a, f->first, -1, name, out) || named_in(a, f->last, -1, name, out);
}

bool fm_arch_param_named(const fm_arch *a, const char *name, fm_param *out)
{
    fm_arch source;
    if (own_named(a, name, out))
        return true;
    if (!a->sw.cross)
        return false;
    fm_arch_source(&source, a);
    if (!own_named(&source, name, out))
        return false;
    out->source = true;
    return true;
}
