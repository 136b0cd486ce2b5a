/* model_places.c - where the parameters of an architecture are kept in a model. */
#include "infer/model/model_bind.h"

#include <stdio.h>
#include <string.h>

#include "infer/arch/table.h"
#include "store/base/mem.h"

#define PEFT_PREFIX "base_model.model."

/* The linears and vectors of a layer's attention to the source. */
static fm_linear *cross_linear(fm_layer *l, fm_place place)
{
    fm_linear *of[] = {&l->cross_q, &l->cross_q, &l->cross_k, &l->cross_k,
                       &l->cross_v, &l->cross_v, &l->cross_o, &l->cross_o};
    return place < FM_P_CROSS_Q ? NULL : of[place - FM_P_CROSS_Q];
}

fm_linear *fmi_linear_at(fm_model *m, const fm_param *p)
{
    m = p->source ? m->source : m;
    if (p->layer < 0)
        return p->place == FM_P_EMBED                                       ? &m->embed
               : p->place == FM_P_HEAD                                      ? &m->head
               : p->place == FM_P_HEAD_B                                    ? &m->head
               : p->place == FM_P_POSITIONS                                 ? &m->positions
               : p->place == FM_P_EMBED_MAP || p->place == FM_P_EMBED_MAP_B ? &m->embed_map
               : p->place == FM_P_PER_EMBED                                 ? &m->per_embed
               : p->place == FM_P_PER_MAP                                   ? &m->per_map
                                                                            : NULL;
    fm_layer *l = &m->layers[p->layer];
    fm_experts *x = l->experts;
    fm_linear *place[] = {
        [FM_P_Q] = &l->q,         [FM_P_Q_B] = &l->q,       [FM_P_K] = &l->k,
        [FM_P_K_B] = &l->k,       [FM_P_V] = &l->v,         [FM_P_V_B] = &l->v,
        [FM_P_O] = &l->o,         [FM_P_O_B] = &l->o,       [FM_P_GATE] = &l->gate,
        [FM_P_GATE_B] = &l->gate, [FM_P_UP] = &l->up,       [FM_P_UP_B] = &l->up,
        [FM_P_DOWN] = &l->down,   [FM_P_DOWN_B] = &l->down, [FM_P_Q_A] = &l->q_a,
        [FM_P_Q_A_B] = &l->q_a,
    };
    if (p->place < FM_ARRAY_LEN(place))
        return place[p->place];
    if (p->place < FM_P_ROUTER)
        return NULL;
    if (p->place >= FM_P_PER_EMBED)
        return p->place == FM_P_PER_GATE  ? &l->per_gate
               : p->place == FM_P_PER_OUT ? &l->per_out
                                          : NULL;
    if (p->place >= FM_P_CROSS_NORM)
        return cross_linear(l, p->place);
    if (p->place >= FM_P_REC_IN)
        return p->place <= FM_P_REC_IN_B    ? &l->rec->in
               : p->place <= FM_P_REC_OUT_B ? &l->rec->out
               : p->place == FM_P_REC_X     ? &l->rec->x
               : p->place == FM_P_REC_DT    ? &l->rec->dt
               : p->place == FM_P_REC_Z     ? &l->rec->z
               : p->place == FM_P_REC_BETA  ? &l->rec->beta
               : p->place == FM_P_REC_ALPHA ? &l->rec->alpha
                                            : NULL;
    fm_linear *gate = &x->gate[p->expert], *up = &x->up[p->expert], *down = &x->down[p->expert];
    fm_linear *expert[] = {&x->router, &x->router, NULL,         gate,     gate,
                           up,         up,         down,         down,     &x->s_gate,
                           &x->s_up,   &x->s_down, &x->s_switch, &x->into, &x->from};
    return expert[p->place - FM_P_ROUTER];
}

static const float **of_uneven(fm_layer *l, fm_place place)
{
    fm_experts *x = l->experts;
    if (place == FM_P_PER_POST || place == FM_P_LAYER_SCALE)
        return place == FM_P_PER_POST ? &l->per_post : &l->scalar;
    const float **of[] = {&x->mlp_sum, &x->post, &x->norm, &x->router_gain, &x->scale};
    return of[place - FM_P_MLP_SUM];
}

const float **fmi_vector_at(fm_model *m, const fm_param *p)
{
    m = p->source ? m->source : m;
    if (p->layer < 0) {
        const float **place[] = {[FM_P_TYPES] = &m->types,
                                 [FM_P_EMBED_NORM] = &m->embed_norm,
                                 [FM_P_EMBED_NORM_B] = &m->embed_norm_b,
                                 [FM_P_BUCKETS] = &m->buckets,
                                 [FM_P_NORM] = &m->norm,
                                 [FM_P_NORM_B] = &m->norm_b,
                                 [FM_P_PER_NORM] = &m->per_norm};
        return place[p->place];
    }
    fm_layer *l = &m->layers[p->layer];
    if (p->place == FM_P_ROUTER_B)
        return &l->experts->choice_bias;
    if (p->place >= FM_P_PER_EMBED)
        return of_uneven(l, p->place);
    if (p->place >= FM_P_CROSS_NORM) {
        const float **of[] = {&l->cross_norm, &l->cross_norm_b, &l->cross_post, &l->cross_post_b};
        return of[p->place - FM_P_CROSS_NORM];
    }
    if (p->place >= FM_P_CONV) {
        fm_recurrent *x = l->rec;
        const float **of[] = {&x->conv, &x->conv_b, &x->rates, &x->skip, &x->dt_b, &x->norm};
        return of[p->place - FM_P_CONV];
    }
    if (p->place == FM_P_ACT_P || p->place == FM_P_ACT_N)
        return p->place == FM_P_ACT_P ? &l->act_p : &l->act_n;
    const float **place[] = {&l->attn_norm, &l->attn_norm_b, &l->attn_post, &l->attn_post_b,
                             &l->mlp_norm,  &l->mlp_norm_b,  &l->mlp_post,  &l->mlp_post_b,
                             &l->q_norm,    &l->k_norm,      &l->sinks,     &l->attn_sub,
                             &l->mlp_sub};
    return place[p->place - FM_P_ATTN_NORM];
}

const char *fmi_module_of(const char *key)
{
    size_t n = sizeof(PEFT_PREFIX) - 1;
    return strncmp(key, PEFT_PREFIX, n) == 0 ? key + n : NULL;
}

fm_linear *fmi_linear_of_module(fm_model *m, const char *module)
{
    const fm_arch *a = &m->arch;
    const char *const *prefix = fmi_family_of(a)->prefix;
    const char *usual = fmi_class_prefix(a), *head = strrchr(a->head_name, '.');
    char name[FM_MAX_NAME_BYTES + 16];
    fm_param p;
    if (strcmp(module, a->head_name) == 0 || (head && strcmp(module, head + 1) == 0))
        return m->head.w ? &m->head : NULL;
    if (strncmp(module, usual, strlen(usual)) != 0)
        usual = prefix[0];
    /* PEFT names modules as the class does, even where the file leaves a prefix out; in a class
     * with a head the inner model may have another name ("bert.encoder"). */
    for (size_t i = 1; i < FM_ARRAY_LEN(fmi_family_of(a)->prefix) && prefix[i] && !usual[0]; i++)
        if (strncmp(module, prefix[i], strlen(prefix[i])) == 0)
            usual = prefix[i];
    if (strncmp(module, usual, strlen(usual)) == 0)
        (void)snprintf(name, sizeof(name), "%s%s.weight", a->prefix, module + strlen(usual));
    else
        (void)snprintf(name, sizeof(name), "%s.weight", module);
    if (!fm_arch_param_named(a, name, &p) || !p.is_matrix ||
        (p.layer < 0 && p.place != FM_P_EMBED_MAP && p.place != FM_P_PER_MAP) ||
        p.place == FM_P_REC_DT) /* transformers multiplies with its weight, past the module */
        return NULL;
    return fmi_linear_at(m, &p);
}

bool fmi_is_embedding(const fm_model *m, const char *module)
{
    const char *usual = fmi_class_prefix(&m->arch);
    const char *own = m->arch.prefix;
    fm_param p;
    if (strncmp(module, usual, strlen(usual)) != 0)
        usual = fmi_family_of(&m->arch)->prefix[0];
    for (uint32_t i = 0; fm_arch_param(&m->arch, i, &p) && p.layer < 0; i++) {
        size_t n = strlen(p.name) - strlen(".weight");
        if (p.place != FM_P_EMBED)
            continue;
        if (strncmp(module, usual, strlen(usual)) == 0 && strcmp(usual, own) != 0) {
            module += strlen(usual);
            size_t skip = strlen(own);
            return strncmp(module, p.name + skip, n - skip) == 0 && module[n - skip] == '\0';
        }
        return strncmp(module, p.name, n) == 0 && module[n] == '\0';
    }
    return false;
}

fm_status fmi_layers_new(fm_model *m)
{
    const fm_arch *a = &m->arch;
    uint32_t n = a->sw.experts;
    m->layers = fm_calloc(a->layers, sizeof(fm_layer));
    if (!m->layers)
        return FM_ENOMEM;
    for (uint32_t l = 0; l < a->layers; l++) {
        if (fm_layer_recurs(&a->sw, l)) {
            m->layers[l].rec = fm_calloc(1, sizeof(fm_recurrent));
            if (!m->layers[l].rec)
                return FM_ENOMEM;
        }
        if (!(a->sw.layer[l] & FM_LAYER_SPARSE))
            continue;
        fm_experts *x = fm_calloc(1, sizeof(*x));
        m->layers[l].experts = x;
        if (x)
            x->gate = fm_calloc(3 * (size_t)n, sizeof(fm_linear));
        if (!x || !x->gate)
            return FM_ENOMEM;
        x->up = x->gate + n;
        x->down = x->up + n;
    }
    return FM_OK;
}

fm_status fmi_layers_share(fm_model *m)
{
    const fm_arch *a = &m->arch;
    fm_param p;
    for (uint32_t i = 0; a->sw.groups && fm_arch_param(a, i, &p); i++) {
        fm_param first = p;
        if (p.layer < 0 || !p.is_matrix)
            continue;
        first.layer = (int32_t)fm_arch_layer_shared(a, (uint32_t)p.layer);
        fm_linear *to = fmi_linear_at(m, &p);
        const fm_linear *from = fmi_linear_at(m, &first);
        if (to == from)
            continue;
        *to = *from;
        to->lora = from->lora_count ? fm_calloc(from->lora_count, sizeof(*to->lora)) : NULL;
        if (from->lora_count && !to->lora)
            return FM_ENOMEM;
        if (from->lora_count)
            memcpy(to->lora, from->lora, from->lora_count * sizeof(*to->lora));
    }
    return FM_OK;
}

void fmi_layers_free(fm_model *m)
{
    for (uint32_t l = 0; m->layers && l < m->arch.layers; l++) {
        fm_layer *y = &m->layers[l];
        fm_linear *all[] = {&y->q,       &y->k,        &y->v,       &y->o,       &y->gate,
                            &y->up,      &y->down,     &y->q_a,     &y->cross_q, &y->cross_k,
                            &y->cross_v, &y->cross_o, &y->per_gate, &y->per_out};
        for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
            fm_free(all[i]->lora);
        if (y->rec) {
            fm_recurrent *r = y->rec;
            fm_linear *of[] = {&r->in, &r->out, &r->x, &r->z, &r->beta, &r->alpha};
            for (size_t i = 0; i < FM_ARRAY_LEN(of); i++)
                fm_free(of[i]->lora);
            fm_free(r);
        }
        fm_experts *x = y->experts;
        if (!x)
            continue;
        fm_linear *more[] = {&x->router,   &x->s_gate, &x->s_up, &x->s_down,
                             &x->s_switch, &x->into,   &x->from};
        for (size_t i = 0; i < FM_ARRAY_LEN(more); i++)
            fm_free(more[i]->lora);
        for (size_t i = 0; x->gate && i < 3 * (size_t)m->arch.sw.experts; i++)
            fm_free(x->gate[i].lora);
        fm_free(x->gate);
        fm_free(x);
    }
    fm_free(m->layers);
}
