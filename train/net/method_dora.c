/* method_dora.c - DoRA: magnitudes that train, norms that follow the factors. */
#include "train/net/method.h"

#include "store/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

fm_status fmt_dora_add(fmt_net *net, fmt_params *ps, fmt_linear *l, const char *module)
{
    uint32_t r = l->term[l->terms - 1].r;
    fm_shape shape = {.rank = 1, .dim = {l->out}};
    char name[FMT_MODULE_BYTES + 96];

    if (l->terms != 1)
        return fm_fail(FM_EUNSUPPORTED,
                       "dora on '%s': the parent has a low-rank term there, and DoRA needs nothing "
                       "below",
                       l->module);
    fmt_dora *d = fm_calloc(1, sizeof(*d));
    if (!d)
        return FM_ENOMEM;
    l->dora = d;
    net->doras++;
    d->magnitude = -1;
    (void)snprintf(name, sizeof(name), FMT_PEFT_PREFIX "%s.lora_magnitude_vector", module);
    fm_status rc = fmt_params_add(ps, &d->magnitude, name, &shape);
    d->norm2 = fm_calloc(l->out, sizeof(double));
    d->gram = fm_calloc((size_t)r * r, sizeof(float));
    return rc == FM_OK && !(d->norm2 && d->gram) ? FM_ENOMEM : rc;
}

void fmt_dora_free(fmt_dora *d)
{
    if (!d)
        return;
    fm_free(d->norm2);
    fm_free(d->gram);
    fm_free(d);
}

/* ---- memory of all modules together: one download, one upload a refresh ---- */

/* Widens lo .. hi - 1, the flat floats that the norms are computed from, by those of module l. */
static void used_params(const fmt_params *ps, const fmt_linear *l, uint64_t *lo, uint64_t *hi)
{
    const fmt_term *t = &l->term[l->dora->term];
    const int32_t param[] = {t->a_param, t->b_param, l->dora->magnitude};

    for (size_t i = 0; i < FM_ARRAY_LEN(param); i++) {
        fm_assert(param[i] >= 0);
        const fmt_param *p = &ps->item[param[i]];
        *lo = FM_MIN(*lo, p->at);
        *hi = FM_MAX(*hi, p->at + p->n);
    }
}

fm_status fmt_dora_room(fmt_net *net, const fmt_params *ps)
{
    fmt_dora_set *set = &net->dora;
    uint64_t at = 0;
    fmt_linear *l;
    void *mem = NULL;

    if (net->doras == 0 || set->mem)
        return FM_OK;
    set->lo = UINT64_MAX;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        if (!l->dora)
            continue;
        set->products += (uint64_t)l->term[l->dora->term].r * l->out;
        set->vectors += 2 * (uint64_t)l->out;
        used_params(ps, l, &set->lo, &set->hi);
    }
    uint64_t all = set->products + set->vectors;
    fm_status rc = net->be->alloc(net->be, &mem, (size_t)all * sizeof(float));
    set->mem = mem;
    set->host = fm_calloc((size_t)(all + set->hi - set->lo), sizeof(float));
    if (rc < 0 || !set->host)
        return rc < 0 ? rc : FM_ENOMEM;
    float *vector = set->mem + set->products;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++) {
        fmt_dora *d = l->dora;
        if (!d)
            continue;
        d->aw = set->mem + at;
        at += (uint64_t)l->term[d->term].r * l->out;
        d->scale = vector;
        d->inv = vector + l->out;
        vector += 2 * (size_t)l->out;
    }
    return FM_OK;
}

void fmt_dora_release(fmt_net *net)
{
    if (net->dora.mem)
        net->be->free(net->be, net->dora.mem);
    fm_free(net->dora.host);
    memset(&net->dora, 0, sizeof(net->dora));
}

static fm_status row_norms(const fmt_net *net, const fmt_linear *l, const fm_tree *parent,
                           const fm_provider *p)
{
    char name[FMT_MODULE_BYTES + 16];
    float *w = NULL;

    (void)snprintf(name, sizeof(name), "%s.weight", l->module);
    const fm_entry *e = fmt_base_entry(net, parent, name);
    if (!e)
        return fm_fail(FM_EBASE, "dora: the parent has no %s", name);
    fm_status rc = fmt_read_f32(&w, p, e);
    for (uint32_t i = 0; i < l->out && rc == FM_OK; i++) {
        double sum = 0.0;
        for (uint32_t k = 0; k < l->in; k++) {
            double one = (double)w[l->transposed ? (size_t)k * l->out + i : (size_t)i * l->in + k];
            sum += one * one;
        }
        l->dora->norm2[i] = sum;
    }
    fm_free(w);
    return rc;
}

fm_status fmt_dora_prepare(fmt_net *net, const fm_tree *parent, const fm_provider *p)
{
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->dora)
            FM_TRY(row_norms(net, l, parent, p));
    return FM_OK;
}

/* g [r, r]: the products of all pairs of rows of a. */
static void gram(float *g, const float *a, uint32_t r, uint32_t in)
{
    for (uint32_t i = 0; i < r; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double sum = 0.0;
            for (uint32_t k = 0; k < in; k++)
                sum += (double)a[(size_t)i * in + k] * (double)a[(size_t)j * in + k];
            g[(size_t)i * r + j] = (float)sum;
            g[(size_t)j * r + i] = (float)sum;
        }
}

/* ||w + s b A||^2 of output i. aw [r, out], g = A A^T. */
static double norm2_of(const fmt_linear *l, uint32_t i, const float *b, const float *aw,
                       const float *g)
{
    const fmt_term *t = &l->term[l->dora->term];
    double s = (double)t->scale;
    double cross = 0.0;
    double own = 0.0;

    for (uint32_t j = 0; j < t->r; j++) {
        double inner = 0.0;
        double bj = (double)b[(size_t)i * t->r + j];
        for (uint32_t k = 0; k < t->r; k++)
            inner += (double)g[(size_t)j * t->r + k] * (double)b[(size_t)i * t->r + k];
        cross += bj * (double)aw[(size_t)j * l->out + i];
        own += bj * inner;
    }
    return l->dora->norm2[i] + 2.0 * s * cross + s * s * own;
}

/* Computes the module's scale and inverse norms on the host, in the mirror. */
static void refresh_one(const fmt_dora_set *set, const fmt_params *ps, const fmt_linear *l)
{
    fmt_dora *d = l->dora;
    const fmt_term *t = &l->term[d->term];
    const float *params = set->host + set->products + set->vectors;
    const float *a = params + (ps->item[t->a_param].at - set->lo);
    const float *b = params + (ps->item[t->b_param].at - set->lo);
    const float *magnitude = params + (ps->item[d->magnitude].at - set->lo);
    const float *aw = set->host + (d->aw - set->mem);
    float *scale = set->host + (d->scale - set->mem);
    float *inv = set->host + (d->inv - set->mem);

    gram(d->gram, a, t->r, l->in);
    for (uint32_t i = 0; i < l->out; i++) {
        float norm = (float)sqrt(norm2_of(l, i, b, aw, d->gram));
        scale[i] = magnitude[i] / norm;
        inv[i] = 1.0f / norm;
    }
}

fm_status fmt_dora_refresh(fmt_net *net, fmt_params *ps)
{
    const fmt_dora_set *set = &net->dora;
    fm_backend *be = net->be;
    fmt_linear *l;

    if (net->doras == 0)
        return FM_OK;
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->dora) {
            const fmt_term *t = &l->term[l->dora->term];
            be->linear(be, l->dora->aw, l->out, t->a, l->in, l->w, NULL, NULL, t->r);
        }
    FM_TRY(be->download(be, set->host, set->mem, (size_t)set->products * sizeof(float)));
    FM_TRY(be->download(be, set->host + set->products + set->vectors, ps->p + set->lo,
                        (size_t)(set->hi - set->lo) * sizeof(float)));
    for (size_t i = 0; (l = fmt_net_linear(net, i)); i++)
        if (l->dora)
            refresh_one(set, ps, l);
    return be->upload(be, set->mem + set->products, set->host + set->products,
                      (size_t)set->vectors * sizeof(float));
}
