/* dense.c - the Dense modules of a sentence-transformers folder: linear layers over the pooled
 * vector, in model.safetensors of the module's folder. They are small and run on the host, in
 * double, over ascending inputs. */
#include "infer/model/pooling.h"

#include <stdio.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "store/formats/safetensors.h"

#define MAX_FILE_BYTES (1u << 28)

static fm_status floats_of(float **out, const fm_st *st, const char *name, uint64_t rows,
                           uint64_t cols, const char *what)
{
    const fm_st_tensor *t = fm_st_find(st, name);
    uint32_t rank = cols ? 2 : 1;
    uint64_t n = rows * (cols ? cols : 1);
    if (!t)
        return fm_fail(FM_ENOTFOUND, "%s: tensor '%s' is missing", what, name);
    if (t->shape.rank != rank || t->shape.dim[0] != rows || (cols && t->shape.dim[1] != cols))
        return fm_fail(FM_EBASE, "%s: tensor '%s' has another shape than its config says", what,
                       name);
    *out = fm_malloc((size_t)n * sizeof(float));
    return *out ? fm_to_f32(*out, t->dtype, fm_st_bytes(st, t).data, n) : FM_ENOMEM;
}

fm_status fmi_dense_load(fmi_dense *d, const fm_tree *tree, const fm_provider *p, const char *what)
{
    char path[256];
    fm_buf file;
    fm_st *st = NULL;
    (void)snprintf(path, sizeof(path), "source/files/%s/model.safetensors", d->path);
    const fm_entry *e = fm_tree_find(tree, path);
    if (!e || e->kind == FM_ENTRY_TENSOR)
        return fm_fail(FM_ENOTFOUND,
                       "%s: modules.json names '%s', of which the version lacks model.safetensors",
                       what, d->path);
    fm_buf_init(&file, MAX_FILE_BYTES);
    fm_status rc = fm_entry_read(&file, p, e);
    FM_THEN(rc, fm_st_parse(&st, fm_buf_span(&file), path));
    FM_THEN(rc, floats_of(&d->w, st, "linear.weight", d->out, d->in, path));
    if (rc == FM_OK && d->biased)
        rc = floats_of(&d->b, st, "linear.bias", d->out, 0, path);
    fm_st_close(st);
    fm_buf_release(&file);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", what);
}

/* tanh x = sign (1 - e) / (1 + e) with e = e^(-2 |x|) */
static double tanh_of(double x)
{
    double e = fm_exp(-2.0 * (x < 0 ? -x : x)), y = (1.0 - e) / (1.0 + e);
    return x < 0 ? -y : y;
}

void fmi_dense_run(const fmi_dense *d, double *y, const double *x)
{
    for (uint32_t o = 0; o < d->out; o++) {
        const float *w = d->w + (size_t)o * d->in;
        double sum = 0.0;
        for (uint32_t i = 0; i < d->in; i++)
            sum += (double)w[i] * x[i];
        sum += d->b ? (double)d->b[o] : 0.0;
        y[o] = d->tanh ? tanh_of(sum) : sum;
    }
}

void fmi_pooling_release(fmi_pooling *p)
{
    for (uint32_t i = 0; i < p->denses; i++) {
        fm_free(p->dense[i].w);
        fm_free(p->dense[i].b);
    }
    p->denses = 0;
}
