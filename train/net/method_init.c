/* method_init.c - values before the first step: PEFT's distributions with our own random numbers (a
 * function of the seed, the tensor's name and the index), or the parent's values. */
#include "train/net/method.h"

#include "store/base/mem.h"
#include "store/base/math/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum law {
    LAW_PARENT,  /* the tensor that the parent computes with */
    LAW_ZERO,    /* B; A of an embedding */
    LAW_ONE,     /* IA3 */
    LAW_UNIFORM, /* U(-1/sqrt(n), 1/sqrt(n)), n columns: kaiming_uniform_(a = sqrt(5)) */
    LAW_NORMAL,  /* N(0, 1): virtual tokens, B of an embedding */
    LAW_SMALL,   /* N(0, 0.02): AdaLoRA */
    LAW_PAIRS,   /* HRA: pairs of equal columns, which undo each other; odd r, or apply_GS, which
                  * cannot turn equal columns apart: all differ */
    LAW_D,       /* VeRA: d_initial */
    LAW_GAMMA,   /* RandLoRA: 1 / the larger dimension */
    LAW_WAVES,   /* FourierFT: N(0, 1), zeros with init_weights=true */
    LAW_NORMS,   /* norms of W's rows: DoRA's magnitude */
} law;

static const struct {
    const char *end;
    law law;
    const char *purpose; /* names the random stream */
} laws[] = {
    {".lora_A.weight", LAW_UNIFORM, "lora_A"},
    {".lora_B.weight", LAW_ZERO, ""},
    {".lora_embedding_A", LAW_ZERO, ""},
    {".lora_embedding_B", LAW_NORMAL, "lora_embedding_B"},
    {".lora_magnitude_vector", LAW_NORMS, ""},
    {".ia3_l", LAW_ONE, ""},
    {"prompt_embeddings", LAW_NORMAL, "prompt_embeddings"},
    {".hada_w1_a", LAW_UNIFORM, "hada_w1_a"},
    {".hada_w1_b", LAW_UNIFORM, "hada_w1_b"},
    {".hada_w2_a", LAW_UNIFORM, "hada_w2_a"},
    {".hada_w2_b", LAW_ZERO, ""},
    {".lokr_w1", LAW_ZERO, ""},
    {".lokr_w1_a", LAW_ZERO, ""},
    {".lokr_w1_b", LAW_UNIFORM, "lokr_w1_b"},
    {".lokr_w2", LAW_UNIFORM, "lokr_w2"},
    {".lokr_w2_a", LAW_UNIFORM, "lokr_w2_a"},
    {".lokr_w2_b", LAW_UNIFORM, "lokr_w2_b"},
    {".oft_R.weight", LAW_ZERO, ""},
    {".boft_R", LAW_ZERO, ""},
    {".boft_s", LAW_ONE, ""},
    {".hra_u", LAW_PAIRS, "hra_u"},
    {".miss_block", LAW_ZERO, ""},
    {".shira_weight", LAW_ZERO, ""},
    {".fourierft_spectrum", LAW_WAVES, "fourierft_spectrum"},
    {".randlora_lambda", LAW_ZERO, ""},
    {".randlora_gamma", LAW_GAMMA, ""},
    {".vera_lambda_b", LAW_ZERO, ""},
    {".vera_lambda_d", LAW_D, ""},
    {".lora_A", LAW_SMALL, "lora_A"},
    {".lora_B", LAW_SMALL, "lora_B"},
    {".lora_E", LAW_ZERO, ""},
};

static fm_status begin_random(fmt_params *ps, int32_t index, uint64_t seed, size_t rule)
{
    const fmt_param *p = &ps->item[index];
    double bound = 1.0 / sqrt((double)p->shape.dim[1]);
    double deviation = laws[rule].law == LAW_SMALL ? 0.02 : 1.0;
    uint64_t stream = 0;
    float *host = fm_malloc((size_t)p->n * sizeof(float));
    fm_status rc = host ? fmt_stream(&stream, laws[rule].purpose, p->name) : FM_ENOMEM;

    for (uint64_t i = 0; i < p->n && rc == FM_OK; i++)
        host[i] = laws[rule].law == LAW_UNIFORM
                      ? (float)((2.0 * fm_rng_uniform(seed, stream, i) - 1.0) * bound)
                      : (float)(deviation * fm_rng_normal(seed, stream, i));
    FM_THEN(rc, fmt_params_put(ps, index, host));
    fm_free(host);
    return rc;
}

/* torch's kaiming_uniform_ takes the columns that it draws for its width. */
static fm_status begin_pairs(fmt_params *ps, int32_t index, const fm_train_config *c, size_t rule)
{
    const fmt_param *p = &ps->item[index];
    const uint64_t r = p->shape.dim[1], by = r % 2 == 0 && !c->apply_GS ? 2 : 1;
    const double bound = 1.0 / sqrt((double)(r / by));
    uint64_t stream = 0;
    float *host = fm_malloc((size_t)p->n * sizeof(float));
    fm_status rc = host ? fmt_stream(&stream, laws[rule].purpose, p->name) : FM_ENOMEM;

    for (uint64_t i = 0; i < p->n && rc == FM_OK; i++) {
        const uint64_t draw = i / r * (r / by) + i % r / by;
        host[i] = (float)((2.0 * fm_rng_uniform(c->seed, stream, draw) - 1.0) * bound);
    }
    FM_THEN(rc, fmt_params_put(ps, index, host));
    fm_free(host);
    return rc;
}

static fm_status begin_constant(fmt_params *ps, int32_t index, float value)
{
    uint64_t n = ps->item[index].n;
    float *host = fm_malloc((size_t)n * sizeof(float));

    if (!host)
        return FM_ENOMEM;
    for (uint64_t i = 0; i < n; i++)
        host[i] = value;
    fm_status rc = fmt_params_put(ps, index, host);
    fm_free(host);
    return rc;
}

static fm_status begin_norms(fmt_net *net, fmt_params *ps, int32_t index)
{
    fmt_linear *l;
    float *host = fm_malloc((size_t)ps->item[index].n * sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && (l = fmt_net_linear(net, i)); i++) {
        if (!l->dora || l->dora->magnitude != index)
            continue;
        for (uint32_t k = 0; k < l->out; k++)
            host[k] = (float)sqrt(l->dora->norm2[k]);
        rc = fmt_params_put(ps, index, host);
    }
    fm_free(host);
    return rc;
}

static fm_status begin_parent(const fmt_net *net, fmt_params *ps, int32_t index,
                              const fmt_method *m)
{
    const fmt_param *p = &ps->item[index];
    size_t skip = strlen(FMT_PEFT_PREFIX);
    char peft[FMT_MODULE_BYTES + 64];
    char name[FMT_MODULE_BYTES + 64];
    float *host = NULL;

    (void)snprintf(peft, sizeof(peft), "%s", p->name);
    if (strncmp(p->name, FMT_PEFT_PREFIX, skip) == 0) {
        fmt_unwrap(name, sizeof(name), p->name + skip);
        fmt_own_name(net, name, peft, sizeof(peft));
    }
    const fm_entry *e = fmt_base_entry(net, m->parent, peft);
    if (!e)
        return fm_fail(FM_EBASE, "the parent has no %s", peft);
    if (!fm_shape_eq(&e->shape, &p->shape))
        return fm_fail(FM_EBASE, "the parent's %s has another shape than its config says", peft);
    fm_status rc = fmt_read_f32(&host, m->p, e);
    FM_THEN(rc, fmt_params_put(ps, index, host));
    fm_free(host);
    return rc;
}

static float gamma_of(const fm_shape *s)
{
    return 1.0f / (float)FM_MAX(s->dim[0], s->dim[1]);
}

static fm_status begin(fmt_net *net, fmt_params *ps, int32_t index, const fmt_method *m)
{
    const char *name = ps->item[index].name;

    for (size_t r = 0; r < FM_ARRAY_LEN(laws); r++) {
        if (!fm_ends_with(name, laws[r].end))
            continue;
        if (laws[r].law == LAW_NORMS)
            return begin_norms(net, ps, index);
        if (laws[r].law == LAW_PAIRS)
            return begin_pairs(ps, index, m->c, r);
        if (laws[r].law == LAW_D)
            return begin_constant(ps, index, (float)m->c->d_initial);
        if (laws[r].law == LAW_GAMMA)
            return begin_constant(ps, index, gamma_of(&ps->item[index].shape));
        if (laws[r].law == LAW_WAVES && strcmp(m->c->init_weights, "true") == 0)
            return begin_constant(ps, index, 0.0f);
        if (laws[r].law == LAW_ZERO || laws[r].law == LAW_ONE)
            return begin_constant(ps, index, laws[r].law == LAW_ONE ? 1.0f : 0.0f);
        return begin_random(ps, index, m->c->seed, r);
    }
    return begin_parent(net, ps, index, m);
}

/* ---- pretraining ---- */
static fm_status initializer_range(double *out, const fmt_method *m)
{
    fm_json *v = NULL;
    FM_TRY(fm_model_json_of_tree(&v, m->parent, m->p, "the parent"));
    *out = fm_json_real(fm_json_path(v, "config.initializer_range"), 0.02);
    fm_json_free(v);
    return FM_OK;
}

/* Vectors of a recurrent block, as transformers begins them. Mamba: rates 1, 2, .., steps from
 * 0.001 to 0.1; hybrids: rates by head, steps softplus(1); the delta rule: rates from 0 to 16. */
static double new_recurrent(const fmt_net *net, const fm_param *p, uint64_t i, double uniform)
{
    const fm_recurrence *r = &net->arch.sw.rec;
    if (p->place == FM_P_RATES && r->kind == FM_RECURS_DELTA)
        return log(fmax(16.0 * uniform, 1e-4));
    if (p->place == FM_P_RATES)
        return log((double)(r->kind == FM_RECURS_MAMBA ? i % r->n : i) + 1.0);
    if (p->place == FM_P_DT_B && (net->arch.sw.layer[p->layer] & FM_LAYER_NO_MLP))
        return log(expm1(0.001 * exp(uniform * log(100.0))));
    return 1.0;
}

/* Matrices N(0, initializer_range), gains 1 (Gemma's, which are added to 1: 0), biases 0. */
static fm_status begin_new(const fmt_net *net, fmt_params *ps, int32_t index, uint64_t seed,
                           double range)
{
    const fmt_param *p = &ps->item[index];
    bool zero = fm_ends_with(p->name, ".bias") || fm_norm_adds_one(net->arch.sw.norm);
    uint64_t stream = 0;
    fm_param at;
    bool recurs = fm_arch_param_named(&net->arch, p->name, &at) && at.place >= FM_P_RATES &&
                  at.place <= FM_P_REC_NORM;

    if (p->shape.rank < 2 && !recurs)
        return begin_constant(ps, index, zero ? 0.0f : 1.0f);
    float *host = fm_malloc((size_t)p->n * sizeof(float));
    fm_status rc = host ? fmt_stream(&stream, "init", p->name) : FM_ENOMEM;
    for (uint64_t i = 0; i < p->n && rc == FM_OK; i++)
        host[i] = (float)(recurs ? new_recurrent(net, &at, i, fm_rng_uniform(seed, stream, i))
                                 : range * fm_rng_normal(seed, stream, i));
    FM_THEN(rc, fmt_params_put(ps, index, host));
    fm_free(host);
    return rc;
}

fm_status fmt_method_begin(fmt_net *net, fmt_params *ps, const fmt_method *m)
{
    bool fresh = m->c->method == FM_METHOD_PRETRAIN;
    double range = 0.0;

    FM_TRY(fresh ? initializer_range(&range, m) : FM_OK);
    for (size_t i = 0; i < ps->count; i++)
        if (ps->item[i].here > 0)
            FM_TRY(fresh ? begin_new(net, ps, (int32_t)i, m->c->seed, range)
                         : begin(net, ps, (int32_t)i, m));
    return FM_OK;
}
