/* net.c - the modules of a decoder by name, and which of their parameters train. */
#include "train/internal.h"

#include "store/base/mem.h"

#include <stdio.h>
#include <string.h>

static const char *const linear_names[FMI_LINEARS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
static const char *const norm_names[FMI_NORMS] = {"input_layernorm", "post_attention_layernorm",
                                                  "self_attn.q_norm", "self_attn.k_norm"};

static void init_linear(fmi_linear *l, const char *module, uint32_t in, uint32_t out, bool bias)
{
    (void)snprintf(l->module, sizeof(l->module), "%s", module);
    l->in = in;
    l->out = out;
    l->has_bias = bias;
    l->w_param = -1;
    l->bias_param = -1;
}

static void init_norm(fmi_norm *n, const char *module, uint32_t size)
{
    (void)snprintf(n->module, sizeof(n->module), "%s", module);
    n->n = size;
    n->param = -1;
}

static void init_block(fmi_block *b, const fm_arch *a, uint32_t layer)
{
    uint32_t q = a->heads * a->head_dim;
    uint32_t kv = a->kv_heads * a->head_dim;
    const uint32_t in[FMI_LINEARS] = {a->hidden, a->hidden, a->hidden, q,
                                      a->hidden, a->hidden, a->inter};
    const uint32_t out[FMI_LINEARS] = {q, kv, kv, a->hidden, a->inter, a->inter, a->hidden};
    const uint32_t size[FMI_NORMS] = {a->hidden, a->hidden, a->qk_norm ? a->head_dim : 0,
                                      a->qk_norm ? a->head_dim : 0};
    char name[FMI_MODULE_BYTES];

    for (uint32_t i = 0; i < FMI_LINEARS; i++) {
        bool bias = i < FMI_O ? a->qkv_bias : i == FMI_O ? a->o_bias : a->mlp_bias;
        (void)snprintf(name, sizeof(name), "model.layers.%u.%s", layer, linear_names[i]);
        init_linear(&b->lin[i], name, in[i], out[i], bias);
    }
    for (uint32_t i = 0; i < FMI_NORMS; i++) {
        (void)snprintf(name, sizeof(name), "model.layers.%u.%s", layer, norm_names[i]);
        init_norm(&b->norm[i], name, size[i]);
    }
}

static fm_status add_term(fmi_linear *l, const fmi_term *t)
{
    fm_status rc = fm_grow(&l->term, &l->cap, l->terms + 1, sizeof(*l->term));

    if (rc == FM_OK)
        l->term[l->terms++] = *t;
    return rc;
}

static fm_status take_linear(const fm_backend *be, fmi_linear *l, const fm_linear *from)
{
    fm_status rc = FM_OK;

    if (from->in_scale || from->out_scale)
        return fm_fail(FM_EUNSUPPORTED,
                       "'%s' is scaled by DoRA or IA3; training on top of that is not supported",
                       l->module);
    l->w = from->w;
    l->bias = from->bias;
    for (uint32_t i = 0; i < from->lora_count && rc == FM_OK; i++) {
        const fm_lora_term *t = &from->lora[i];
        rc = add_term(l, &(fmi_term){.a = be->weight_floats(t->a),
                                     .b = be->weight_floats(t->b),
                                     .r = t->r,
                                     .scale = t->scale,
                                     .a_param = -1,
                                     .b_param = -1});
    }
    return rc;
}

static fm_status take_block(const fm_backend *be, fmi_block *b, const fm_layer *from)
{
    const fm_linear *const lin[FMI_LINEARS] = {&from->q,    &from->k,  &from->v,   &from->o,
                                               &from->gate, &from->up, &from->down};
    fm_status rc = FM_OK;

    for (uint32_t i = 0; i < FMI_LINEARS && rc == FM_OK; i++)
        rc = take_linear(be, &b->lin[i], lin[i]);
    b->norm[FMI_ATTN_NORM].gain = from->attn_norm;
    b->norm[FMI_MLP_NORM].gain = from->mlp_norm;
    b->norm[FMI_Q_NORM].gain = from->q_norm;
    b->norm[FMI_K_NORM].gain = from->k_norm;
    return rc;
}

fm_status fmi_net_init(fmi_net *net, fm_backend *be, const fm_arch *arch, const fm_model *model)
{
    fm_status rc = FM_OK;

    memset(net, 0, sizeof(*net));
    net->be = be;
    net->arch = *arch;
    if (fm_arch_beyond_llama(arch))
        return fm_fail(FM_EUNSUPPORTED, "training of %s is not supported: it does not know %s",
                       arch->family, fm_arch_beyond_llama(arch));
    net->block = fm_calloc(arch->layers, sizeof(*net->block));
    if (!net->block)
        return FM_ENOMEM;
    init_linear(&net->embed, "model.embed_tokens", arch->hidden, arch->vocab, false);
    init_linear(&net->head, "lm_head", arch->hidden, arch->vocab, false);
    init_norm(&net->norm, "model.norm", arch->hidden);
    for (uint32_t l = 0; l < arch->layers; l++)
        init_block(&net->block[l], arch, l);
    if (!model)
        return FM_OK;
    if (model->virtual_len)
        return fm_fail(FM_EUNSUPPORTED,
                       "training on a parent with virtual tokens (prefix or prompt tuning) is not "
                       "supported");
    net->norm.gain = model->norm;
    rc = take_linear(be, &net->embed, &model->embed);
    if (rc == FM_OK)
        rc = take_linear(be, &net->head, &model->head);
    for (uint32_t l = 0; l < arch->layers && rc == FM_OK; l++)
        rc = take_block(be, &net->block[l], &model->layers[l]);
    return rc;
}

void fmi_net_release(fmi_net *net)
{
    fmi_linear *l;

    for (size_t i = 0; net->block && (l = fmi_net_linear(net, i)); i++)
        fm_free(l->term);
    fm_free(net->block);
    memset(net, 0, sizeof(*net));
}

fmi_linear *fmi_net_linear(fmi_net *net, size_t i)
{
    size_t in_blocks = (size_t)net->arch.layers * FMI_LINEARS;

    if (i < in_blocks)
        return &net->block[i / FMI_LINEARS].lin[i % FMI_LINEARS];
    if (i == in_blocks)
        return &net->embed;
    return i == in_blocks + 1 ? &net->head : NULL;
}

fmi_norm *fmi_net_norm(fmi_net *net, size_t i)
{
    size_t in_blocks = (size_t)net->arch.layers * FMI_NORMS;

    if (i < in_blocks)
        return &net->block[i / FMI_NORMS].norm[i % FMI_NORMS];
    return i == in_blocks ? &net->norm : NULL;
}

static bool is_part(const char *name, const char *module, const char *part)
{
    size_t n = strlen(module);
    return strncmp(name, module, n) == 0 && strcmp(name + n, part) == 0;
}

static int32_t *find_place(fmi_net *net, const char *name, fm_shape *want)
{
    fmi_linear *l;
    fmi_norm *n;

    for (size_t i = 0; (l = fmi_net_linear(net, i)); i++) {
        if (is_part(name, l->module, ".weight")) {
            *want = (fm_shape){.rank = 2, .dim = {l->out, l->in}};
            return &l->w_param;
        }
        if (l->has_bias && is_part(name, l->module, ".bias")) {
            *want = (fm_shape){.rank = 1, .dim = {l->out}};
            return &l->bias_param;
        }
    }
    for (size_t i = 0; (n = fmi_net_norm(net, i)); i++) {
        if (n->n > 0 && is_part(name, n->module, ".weight")) {
            *want = (fm_shape){.rank = 1, .dim = {n->n}};
            return &n->param;
        }
    }
    return NULL;
}

fm_status fmi_net_train(fmi_net *net, fmi_params *ps, const char *name, const fm_shape *shape,
                        const char *as)
{
    fm_shape want = {0};
    char have_text[128];
    char want_text[128];
    int32_t *place = find_place(net, name, &want);

    if (!place)
        return fm_fail(FM_EBASE, "%s: the parent has no parameter of this name", name);
    if (!fm_shape_eq(&want, shape)) {
        fm_shape_text(shape, have_text, sizeof(have_text));
        fm_shape_text(&want, want_text, sizeof(want_text));
        return fm_fail(FM_EBASE, "%s: shape %s, the parent needs %s", name, have_text, want_text);
    }
    return fmi_params_add(ps, place, as, shape);
}

fm_status fmi_net_train_lora(fmi_net *net, fmi_params *ps, fmi_linear *lin, uint32_t r, float scale)
{
    fmi_term t = {.r = r, .scale = scale, .a_param = -1, .b_param = -1};
    char name[FMI_MODULE_BYTES + 64];
    fm_shape a = {.rank = 2, .dim = {r, lin->in}};
    fm_shape b = {.rank = 2, .dim = {lin->out, r}};

    if (lin == &net->embed)
        return fm_fail(FM_EUNSUPPORTED, "low-rank terms on %s are not supported", lin->module);
    (void)snprintf(name, sizeof(name), FMI_PEFT_PREFIX "%s.lora_A.weight", lin->module);
    fm_status rc = fmi_params_add(ps, &t.a_param, name, &a);
    (void)snprintf(name, sizeof(name), FMI_PEFT_PREFIX "%s.lora_B.weight", lin->module);
    if (rc == FM_OK)
        rc = fmi_params_add(ps, &t.b_param, name, &b);
    return rc == FM_OK ? add_term(lin, &t) : rc;
}

/* Weights are made from zeros here and filled by fmi_params_refresh once values are in place. */
static fm_status own_weight(fmi_params *ps, fmi_param *p, const fmi_linear *l)
{
    void *zero = fm_calloc((size_t)p->n, sizeof(float));
    fm_status rc = FM_ENOMEM;

    if (zero && !p->weight)
        rc = ps->be->weight_new(ps->be, &p->weight, FM_ROLE_LINEAR, FM_F32, l->out, l->in, zero);
    fm_free(zero);
    return rc;
}

static fm_status bind_linear(fmi_linear *l, fmi_params *ps, bool own)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; i < l->terms; i++) {
        fmi_term *t = &l->term[i];
        if (t->a_param >= 0)
            t->a = ps->p + ps->item[t->a_param].at;
        if (t->b_param >= 0)
            t->b = ps->p + ps->item[t->b_param].at;
    }
    if (own && l->bias_param >= 0)
        l->bias = ps->p + ps->item[l->bias_param].at;
    if (own && l->w_param >= 0) {
        rc = own_weight(ps, &ps->item[l->w_param], l);
        l->w = ps->item[l->w_param].weight;
    }
    return rc;
}

fm_status fmi_net_bind(fmi_net *net, fmi_params *ps, bool own_weights)
{
    fm_status rc = FM_OK;
    fmi_linear *l;
    fmi_norm *n;

    for (size_t i = 0; rc == FM_OK && (l = fmi_net_linear(net, i)); i++)
        rc = bind_linear(l, ps, own_weights);
    for (size_t i = 0; own_weights && (n = fmi_net_norm(net, i)); i++)
        if (n->param >= 0)
            n->gain = ps->p + ps->item[n->param].at;
    /* A tied head trains as the embedding; beside a frozen stem each may train on its own. */
    bool adapts = net->head.w && net->head.w != net->embed.w;
    if (rc == FM_OK && net->arch.tied && net->head.w_param < 0 && net->embed.w_param >= 0 &&
        !adapts) {
        net->head.w = net->embed.w;
        net->head.w_param = net->embed.w_param;
    }
    return rc;
}
