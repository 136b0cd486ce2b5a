/* method_dora.c - DoRA: magnitudes that train, norms that follow the factors. */
#include "train/method.h"

#include "store/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static fm_status floats(const fmi_net *net, float **out, uint64_t n)
{
    void *mem = NULL;
    fm_status rc = net->be->alloc(net->be, &mem, (size_t)n * sizeof(float));

    *out = mem;
    return rc;
}

fm_status fmi_dora_add(fmi_net *net, fmi_params *ps, fmi_linear *l, const char *module)
{
    uint32_t r = l->term[l->terms - 1].r;
    fm_shape shape = {.rank = 1, .dim = {l->out}};
    char name[FMI_MODULE_BYTES + 96];
    size_t host = (size_t)r * l->in + 2 * (size_t)r * l->out + (size_t)r * r + 2 * (size_t)l->out;

    if (l->terms != 1)
        return fm_fail(FM_EUNSUPPORTED,
                       "dora on '%s': the parent has a low-rank term there, and DoRA needs nothing "
                       "below",
                       l->module);
    fmi_dora *d = fm_calloc(1, sizeof(*d));
    if (!d)
        return FM_ENOMEM;
    l->dora = d;
    net->doras++;
    d->magnitude = -1;
    (void)snprintf(name, sizeof(name), FMI_PEFT_PREFIX "%s.lora_magnitude_vector", module);
    fm_status rc = fmi_params_add(ps, &d->magnitude, name, &shape);
    d->norm2 = fm_calloc(l->out, sizeof(double));
    d->host = fm_calloc(host, sizeof(float));
    if (rc == FM_OK && (!d->norm2 || !d->host))
        rc = FM_ENOMEM;
    if (rc == FM_OK)
        rc = floats(net, &d->inv, l->out);
    if (rc == FM_OK)
        rc = floats(net, &d->scale, l->out);
    if (rc == FM_OK)
        rc = floats(net, &d->aw, (uint64_t)r * l->out);
    return rc;
}

void fmi_dora_free(const fmi_net *net, fmi_dora *d)
{
    if (!d)
        return;
    float *const dev[] = {d->inv, d->scale, d->aw};
    for (size_t i = 0; i < FM_ARRAY_LEN(dev); i++)
        if (dev[i])
            net->be->free(net->be, dev[i]);
    fm_free(d->norm2);
    fm_free(d->host);
    fm_free(d);
}

static fm_status row_norms(const fmi_net *net, const fmi_linear *l, const fm_tree *parent,
                           const fm_provider *p)
{
    char name[FMI_MODULE_BYTES + 16];
    float *w = NULL;

    (void)snprintf(name, sizeof(name), "%s.weight", l->module);
    const fm_entry *e = fmi_base_entry(net, parent, name);
    if (!e)
        return fm_fail(FM_EBASE, "dora: the parent has no %s", name);
    fm_status rc = fmi_read_f32(&w, p, e);
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

fm_status fmi_dora_prepare(fmi_net *net, const fm_tree *parent, const fm_provider *p)
{
    fmi_linear *l;
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && (l = fmi_net_linear(net, i)); i++)
        if (l->dora)
            rc = row_norms(net, l, parent, p);
    return rc;
}

/* g[i][j] = rows i and j of a multiplied, [r, r]. */
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
static double norm2_of(const fmi_linear *l, uint32_t i, const float *b, const float *aw,
                       const float *g)
{
    const fmi_term *t = &l->term[l->dora->term];
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

static fm_status refresh_one(fm_backend *be, const fmi_params *ps, const fmi_linear *l)
{
    fmi_dora *d = l->dora;
    const fmi_term *t = &l->term[d->term];
    size_t an = (size_t)t->r * l->in;
    size_t bn = (size_t)t->r * l->out;
    float *a = d->host;
    float *b = a + an;
    float *aw = b + bn;
    float *g = aw + bn;
    float *scale = g + (size_t)t->r * t->r;
    float *inv = scale + l->out;

    be->linear(be, d->aw, l->out, t->a, l->in, l->w, NULL, NULL, t->r);
    fm_status rc = be->download(be, aw, d->aw, bn * sizeof(float));
    if (rc == FM_OK)
        rc = be->download(be, a, t->a, an * sizeof(float));
    if (rc == FM_OK)
        rc = be->download(be, b, t->b, bn * sizeof(float));
    if (rc == FM_OK)
        rc = be->download(be, scale, ps->p + ps->item[d->magnitude].at, l->out * sizeof(float));
    if (rc < 0)
        return rc;
    gram(g, a, t->r, l->in);
    for (uint32_t i = 0; i < l->out; i++) {
        float norm = (float)sqrt(norm2_of(l, i, b, aw, g));
        scale[i] /= norm;
        inv[i] = 1.0f / norm;
    }
    rc = be->upload(be, d->scale, scale, l->out * sizeof(float));
    return rc == FM_OK ? be->upload(be, d->inv, inv, l->out * sizeof(float)) : rc;
}

fm_status fmi_dora_refresh(fmi_net *net, fmi_params *ps)
{
    fmi_linear *l;
    fm_status rc = FM_OK;

    for (size_t i = 0; net->doras > 0 && rc == FM_OK && (l = fmi_net_linear(net, i)); i++)
        if (l->dora)
            rc = refresh_one(net->be, ps, l);
    return rc;
}
