/* adapter_kinds.c - applies the tensors of an adapter to a model: low-rank terms, scales, virtual
 * positions. Formulas as in PEFT 0.21 (peft/tuners/lora, ia3, prefix_tuning, prompt_tuning). */
#include "infer/model/shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/source.h"

#define MAX_VIRTUAL 65536u /* virtual tokens */

/* The tensor of adapter n with PEFT's name `base_model.model.<module>.<what>`; NULL: none. */
static fm_status part_of(const fm_entry **out, const fmi_binder *b, uint32_t n, const char *module,
                         const char *what)
{
    char prefix[64], name[FM_MAX_NAME_BYTES + 64];
    fm_buf path;
    *out = NULL;
    (void)snprintf(prefix, sizeof(prefix), "adapters/%u-%s/tensors", n,
                   b->adapter[n].kind == FMI_DORA ? "dora" : "lora");
    (void)snprintf(name, sizeof(name), "base_model.model.%s.%s", module, what);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, prefix, name);
    if (rc == FM_OK)
        *out = fm_tree_find(b->tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    return rc;
}

static fm_status check_factors(const fmi_adapter *a, const char *module, uint32_t in, uint32_t out,
                               const fm_entry *ea, const fm_entry *eb, uint32_t r)
{
    const fm_shape *sa = &ea->shape, *sb = &eb->shape;
    if (sa->rank == 2 && sb->rank == 2 && sa->dim[0] == r && sa->dim[1] == in &&
        sb->dim[0] == out && sb->dim[1] == r)
        return FM_OK;
    char ta[96], tb[96];
    fm_shape_text(sa, ta, sizeof(ta));
    fm_shape_text(sb, tb, sizeof(tb));
    return fm_fail(FM_EBASE, "%s: '%s': A %s and B %s do not fit [%u, %u] at rank %u", a->what,
                   module, ta, tb, out, in, r);
}

static fm_status add_term(fm_linear *lin, const fm_lora_term *term)
{
    fm_lora_term *all = fm_realloc(lin->lora, (lin->lora_count + 1) * sizeof(*all));
    if (!all)
        return FM_ENOMEM;
    lin->lora = all;
    all[lin->lora_count++] = *term;
    return FM_OK;
}

static fm_status digest_term(fm_hasher *h, const char *module, const fm_entry *a, const fm_entry *b,
                             float scale)
{
    uint32_t bits;
    uint8_t le[4];
    memcpy(&bits, &scale, sizeof(bits));
    fm_put_u32(le, bits);
    FM_TRY(fm_hasher_update(h, module, strlen(module) + 1));
    FM_TRY(fm_hasher_update(h, a->id.b, sizeof(a->id.b)));
    FM_TRY(fm_hasher_update(h, b->id.b, sizeof(b->id.b)));
    return fm_hasher_update(h, le, sizeof(le));
}

/* The linear layer that e's name without its suffix means; module [FM_MAX_NAME_BYTES + 1]. */
static fm_status find_module(fmi_binder *b, uint32_t n, const fm_entry *e, const char *suffix,
                             char *module, fm_linear **lin)
{
    const fmi_adapter *a = &b->adapter[n];
    const char *full = fmi_module_of(e->name), *end = strstr(full, suffix);
    size_t len = end ? (size_t)(end - full) : strlen(full);
    memcpy(module, full, len); /* names of entries are bounded */
    module[len] = '\0';
    *lin = fmi_linear_of_module(b->m, module);
    if (!*lin)
        return fm_fail(FM_EBASE, "%s: module '%s' is no linear layer of this %s", a->what, module,
                       b->m->arch.family);
    if (!b->m->arch.sw.beside && ((*lin)->in_scale || (*lin)->out_scale))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: '%s' is scaled by an earlier adapter (DoRA or IA3); nothing can be "
                       "put on top of it",
                       a->what, module);
    return FM_OK;
}

fm_status fmi_bind_lora(fmi_binder *b, uint32_t n, const fm_entry *ea, fm_hasher *digest)
{
    const fmi_adapter *a = &b->adapter[n];
    char module[FM_MAX_NAME_BYTES + 1];
    fm_linear *lin = NULL;
    const fm_entry *eb = NULL;
    fm_lora_spec spec = {0};
    FM_TRY(find_module(b, n, ea, ".lora_A.weight", module, &lin));
    FM_TRY(part_of(&eb, b, n, module, "lora_B.weight"));
    if (!eb)
        return fm_fail(FM_ECORRUPT, "%s: '%s' has lora_A but no lora_B", a->what, module);
    FM_TRY(fm_lora_spec_of(&spec, a->config, module));
    FM_TRY(check_factors(a, module, fmi_whole_in(b->m, lin), fmi_whole_out(b->m, lin), ea, eb,
                         spec.r));
    fmi_cached *ca = NULL, *cb = NULL;
    const fmi_cut cut = fmi_cut_of_linear(b->m, lin);
    const fmi_slice sa = fmi_slice_of(&cut, true, 1), sb = fmi_slice_of(&cut, false, 0);
    FM_TRY(fmi_hold_slice(b, &ca, ea, FMI_LORA_A, &sa));
    FM_TRY(fmi_hold_slice(b, &cb, eb, FMI_LORA_B, &sb));
    FM_TRY(digest_term(digest, module, ea, eb, spec.scale));
    fm_lora_term term = {.a = ca->w, .b = cb->w, .r = spec.r, .scale = spec.scale, .adapter = n};
    return add_term(lin, &term);
}

/* Adds scale * the bias of adapter n's factors for this module to sum [out]. */
static fm_status add_bias(fmi_binder *b, uint32_t n, const char *module, float *sum, uint32_t out)
{
    const fm_entry *e = NULL;
    fm_lora_spec spec = {0};
    float *x = NULL;
    if (b->adapter[n].kind != FMI_LORA)
        return FM_OK;
    FM_TRY(part_of(&e, b, n, module, "lora_B.bias"));
    if (!e)
        return FM_OK;
    if (e->shape.rank != 1 || e->shape.dim[0] != out)
        return fm_fail(FM_EBASE, "%s: '%s': a lora_B bias of %u values is wanted",
                       b->adapter[n].what, module, out);
    FM_TRY(fm_lora_spec_of(&spec, b->adapter[n].config, module));
    FM_TRY(fmi_read_floats(b, &x, e));
    for (uint32_t i = 0; i < out; i++)
        sum[i] += spec.scale * x[i];
    fm_free(x);
    return FM_OK;
}

static fm_status digest_entry(fm_hasher *h, const char *what, const char *module, const fm_entry *e)
{
    FM_TRY(fm_hasher_update(h, what, strlen(what) + 1));
    FM_TRY(fm_hasher_update(h, module, strlen(module) + 1));
    return fm_hasher_update(h, e->id.b, sizeof(e->id.b));
}

/* The module's own bias [out], and those of the adapters up to n; *sum is freed by fm_free. */
static fm_status sum_biases(fmi_binder *b, uint32_t n, const char *module, const fm_linear *lin,
                            uint32_t out, float **sum)
{
    char name[FM_MAX_NAME_BYTES + 16];
    const fm_entry *own = NULL;
    bool below = false; /* then lin->bias may be the sum of that adapter */
    fm_status rc = FM_OK;
    *sum = NULL;
    (void)snprintf(name, sizeof(name), "%s.bias", module);
    for (uint32_t k = 0; rc == FM_OK && k < n; k++) {
        const fm_entry *other = NULL;
        rc = part_of(&other, b, k, module, "lora_B.bias");
        below = below || other;
    }
    if (rc == FM_OK && lin->bias)
        rc = fmi_find_entry(b, &own, name);
    if (rc == FM_ENOTFOUND && below) {
        fm_error_clear();
        rc = FM_OK;
    }
    if (rc == FM_OK && own) {
        rc = fmi_read_floats(b, sum, own);
    } else if (rc == FM_OK) {
        *sum = fm_calloc(out, sizeof(float));
        rc = *sum ? FM_OK : FM_ENOMEM;
    }
    for (uint32_t k = 0; rc == FM_OK && k <= n; k++)
        rc = add_bias(b, k, module, *sum, out);
    return rc;
}

/* PEFT's lora_bias: y += scale * bias. It is added to the module's own bias, where it has one. */
fm_status fmi_bind_lora_bias(fmi_binder *b, uint32_t n, const fm_entry *e, fm_hasher *digest)
{
    char module[FM_MAX_NAME_BYTES + 1];
    fm_linear *lin = NULL;
    float *sum = NULL, *here = NULL;
    FM_TRY(find_module(b, n, e, ".lora_B.bias", module, &lin));
    FM_TRY(digest_entry(digest, "lora bias", module, e));
    const uint32_t out = fmi_whole_out(b->m, lin);
    const fmi_cut cut = fmi_cut_of_linear(b->m, lin);
    if (cut.elsewhere || (cut.of_inputs && fm_comm_rank(b->m->engine->group) != 0))
        return FM_OK; /* as the module's own bias (fmi_param_is_here) */
    fm_status rc = sum_biases(b, n, module, lin, out, &sum);
    FM_THEN(rc, fmi_cut_floats(&here, sum, &cut, out));
    FM_THEN(rc, fmi_own(b->m, &lin->bias, here, lin->out));
    fm_free(sum);
    fm_free(here);
    return rc;
}

/* PEFT's lora.Embedding: x += scale * A[:, id] B^T, A [r, vocab], B [hidden, r]. A is read by rows
 * of its transpose. */
fm_status fmi_bind_embedding(fmi_binder *b, uint32_t n, const fm_entry *ea, fm_hasher *digest)
{
    const fmi_adapter *a = &b->adapter[n];
    const fm_arch *arch = &b->m->arch;
    char module[FM_MAX_NAME_BYTES + 1];
    const fm_entry *eb = NULL;
    fm_lora_spec spec = {0};
    fmi_cached *ca = NULL, *cb = NULL;
    const char *full = fmi_module_of(ea->name);
    (void)snprintf(module, sizeof(module), "%.*s",
                   (int)(strlen(full) - strlen(".lora_embedding_A")), full);
    if (!fmi_is_embedding(b->m, module))
        return fm_fail(FM_EBASE, "%s: '%s' is not the embedding of this %s's tokens", a->what,
                       module, arch->family);
    FM_TRY(part_of(&eb, b, n, module, "lora_embedding_B"));
    if (!eb)
        return fm_fail(FM_ECORRUPT, "%s: '%s' has lora_embedding_A but no lora_embedding_B",
                       a->what, module);
    FM_TRY(fm_lora_spec_of(&spec, a->config, module));
    const uint32_t width = fm_arch_embed_width(arch);
    if (spec.r > width)
        return fm_fail(FM_EUNSUPPORTED, "%s: '%s': rank %u is above the embeddings' width %u",
                       a->what, module, spec.r, width);
    const fmi_cut cut = fmi_cut_of_linear(b->m, &b->m->embed);
    const fmi_slice rows = fmi_slice_of(&cut, false, 1);
    FM_TRY(check_factors(a, module, arch->vocab, width, ea, eb, spec.r));
    FM_TRY(fmi_hold_slice(b, &ca, ea, FMI_MATRIX_T, &rows));
    FM_TRY(fmi_hold_slice(b, &cb, eb, FMI_MATRIX, &(fmi_slice){.elsewhere = cut.elsewhere}));
    FM_TRY(digest_term(digest, module, ea, eb, spec.scale));
    fm_lora_term term = {.a = ca->w, .b = cb->w, .r = spec.r, .scale = spec.scale, .adapter = n};
    return add_term(&b->m->embed, &term);
}

/* ==== DoRA ==== */

typedef struct dora {
    float *w, *a, *b, *m; /* [out, in], [r, in], [out, r], [out] */
    uint32_t out, in, r;
    float scale;
} dora;

/* Transposes a matrix that is stored [in, out]. */
static fm_status turn(dora *d)
{
    float *t = fm_malloc((size_t)d->out * d->in * sizeof(float));
    if (!t)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < d->out; i++)
        for (uint32_t k = 0; k < d->in; k++)
            t[(size_t)i * d->in + k] = d->w[(size_t)k * d->out + i];
    fm_free(d->w);
    d->w = t;
    return FM_OK;
}

/* Sets m to magnitude[i] / norm of row i of W + scale (B A). Squares add in double, ascending. */
static fm_status dora_scales(dora *d)
{
    float *row = fm_malloc(d->in * sizeof(float));
    if (!row)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < d->out; i++) {
        double sum = 0.0;
        memset(row, 0, d->in * sizeof(float));
        for (uint32_t l = 0; l < d->r; l++) {
            float f = d->b[(size_t)i * d->r + l];
            const float *a = d->a + (size_t)l * d->in;
            for (uint32_t k = 0; k < d->in; k++)
                row[k] += f * a[k];
        }
        for (uint32_t k = 0; k < d->in; k++) {
            double w = (double)(d->w[(size_t)i * d->in + k] + d->scale * row[k]);
            sum += w * w;
        }
        d->m[i] /= (float)sqrt(sum);
    }
    fm_free(row);
    return FM_OK;
}

static fm_status read_dora(fmi_binder *b, uint32_t n, dora *d, const char *module,
                           const fm_entry *e)
{
    char name[FM_MAX_NAME_BYTES + 64];
    const fm_entry *ew = NULL, *ea = NULL, *eb = NULL;
    (void)snprintf(name, sizeof(name), "%s.weight", module);
    FM_TRY(fmi_find_entry(b, &ew, name));
    FM_TRY(part_of(&ea, b, n, module, "lora_A.weight"));
    FM_TRY(part_of(&eb, b, n, module, "lora_B.weight"));
    if (!ea || !eb)
        return fm_fail(FM_ECORRUPT, "%s: '%s' has a magnitude but no factors", b->adapter[n].what,
                       module);
    FM_TRY(fmi_read_floats(b, &d->w, ew));
    FM_TRY(fmi_read_floats(b, &d->a, ea));
    FM_TRY(fmi_read_floats(b, &d->b, eb));
    return fmi_read_floats(b, &d->m, e);
}

/* A product has one scale of each kind. */
static fm_status check_unscaled(const fmi_binder *b, uint32_t n, const char *module)
{
    if (!b->m->arch.sw.beside)
        return FM_OK;
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: '%s': %s multiplies its products by numbers of its own, beside which DoRA "
                   "and IA3 are not supported",
                   b->adapter[n].what, module, b->m->arch.family);
}

/* PEFT's DoRA: y = (m / ||W + s B A||) * (W x + s B A x) + bias. */
fm_status fmi_bind_magnitude(fmi_binder *b, uint32_t n, const fm_entry *e, fm_hasher *digest)
{
    const fmi_adapter *a = &b->adapter[n];
    char module[FM_MAX_NAME_BYTES + 1];
    fm_linear *lin = NULL;
    FM_TRY(find_module(b, n, e, ".lora_magnitude_vector", module, &lin));
    FM_TRY(check_unscaled(b, n, module));
    uint32_t out = fmi_whole_out(b->m, lin), in = fmi_whole_in(b->m, lin);
    if (e->shape.rank != 1 || e->shape.dim[0] != out)
        return fm_fail(FM_EBASE, "%s: '%s': a magnitude vector of %u values is wanted", a->what,
                       module, out);
    if (lin->lora_count != 1 || lin->lora[0].adapter != n)
        return fm_fail(FM_EUNSUPPORTED, "%s: '%s': DoRA needs factors of its own and nothing below",
                       a->what, module);
    dora d = {.out = out, .in = in, .r = lin->lora[0].r, .scale = lin->lora[0].scale};
    fm_status rc = read_dora(b, n, &d, module, e);
    if (rc == FM_OK && lin->transposed)
        rc = turn(&d);
    FM_THEN(rc, dora_scales(&d));
    const fmi_cut cut = fmi_cut_of_linear(b->m, lin);
    float *here = NULL;
    FM_THEN(rc, fmi_cut_floats(&here, d.m, &cut, d.out));
    FM_THEN(rc, fmi_own(b->m, &lin->out_scale, here, lin->out));
    FM_THEN(rc, digest_entry(digest, "dora", module, e));
    if (rc == FM_OK) {
        lin->bias_after = lin->bias;
        lin->bias = NULL;
    }
    float *all[] = {d.w, d.a, d.b, d.m, here};
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        fm_free(all[i]);
    return rc;
}

/* ==== IA3 ==== */

/* PEFT saves [1, in] where a module's input is scaled (feed-forward), [out, 1] where its output. */
fm_status fmi_bind_ia3(fmi_binder *b, uint32_t n, const fm_entry *e, fm_hasher *digest)
{
    const fmi_adapter *a = &b->adapter[n];
    const fm_shape *s = &e->shape;
    char module[FM_MAX_NAME_BYTES + 1];
    fm_linear *lin = NULL;
    fmi_cached *v = NULL;
    FM_TRY(find_module(b, n, e, ".ia3_l", module, &lin));
    FM_TRY(check_unscaled(b, n, module));
    uint32_t in = fmi_whole_in(b->m, lin), out = fmi_whole_out(b->m, lin);
    bool input = s->rank == 2 && s->dim[0] == 1 && s->dim[1] == in;
    bool output = s->rank == 2 && s->dim[1] == 1 && s->dim[0] == out;
    if (!input && !output)
        return fm_fail(FM_EBASE, "%s: '%s': ia3_l is wanted as [1, %u] or [%u, 1]", a->what, module,
                       in, out);
    const fmi_cut cut = fmi_cut_of_linear(b->m, lin);
    const fmi_slice slice = fmi_slice_of(&cut, input, input ? 1 : 0);
    FM_TRY(fmi_hold_slice(b, &v, e, FMI_VECTOR, &slice));
    FM_TRY(digest_entry(digest, "ia3", module, e));
    if (input)
        lin->in_scale = v->v;
    else
        lin->out_scale = v->v;
    return FM_OK;
}

/* ==== prefix and prompt tuning ==== */

typedef struct field {
    const char *key;
    uint64_t want;
} field;

static fm_status check_fields(const fmi_adapter *a, const field *f, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const fm_json *v = fm_json_get(a->config, f[i].key);
        if (v && fm_json_typeof(v) != FM_JSON_NULL && (uint64_t)fm_json_int(v, -1) != f[i].want)
            return fm_fail(FM_EBASE, "%s: '%s' should be %llu for this model", a->what, f[i].key,
                           (unsigned long long)f[i].want);
    }
    return FM_OK;
}

/* Prefix: keys and values of all layers as PEFT's get_prompt() views them, [P, layers, 2, kv heads,
 * head_dim]. Prompt: embeddings [P, hidden]. */
fm_status fmi_bind_virtual(fmi_binder *b, uint32_t n, const fm_entry *e, fm_hasher *digest)
{
    const fmi_adapter *a = &b->adapter[n];
    fm_model *p = b->m;
    const fm_arch *m = &p->arch;
    bool prefix = a->kind == FMI_PREFIX;
    uint64_t kv = (uint64_t)m->kv_heads * m->head_dim;
    uint64_t width = prefix ? kv * 2 * m->layers : m->hidden;
    uint64_t len = e->shape.rank == 2 ? e->shape.dim[0] : 0;
    const field fields[] = {{"num_virtual_tokens", len},
                            {"num_transformer_submodules", 1},
                            {"num_layers", m->layers},
                            {"token_dim", prefix ? kv : m->hidden},
                            {"num_attention_heads", prefix ? m->kv_heads : m->heads}};
    if (p->virtual_len)
        return fm_fail(FM_EUNSUPPORTED, "%s: a second adapter with virtual tokens", a->what);
    if (fm_arch_recurs(m))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: virtual tokens before the recurrent layers of %s are not supported",
                       a->what, m->family);
    if (fm_layers_uneven(&m->sw))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: virtual tokens before the layers of %s, which have heads or inputs of "
                       "their own, are not supported",
                       a->what, m->family);
    if (!prefix && m->sw.embed_width)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: prompt tuning of %s, whose embeddings have another width than its "
                       "layers, is not supported",
                       a->what, m->family);
    if (len < 1 || len > MAX_VIRTUAL || len >= m->max_positions || e->shape.dim[1] != width)
        return fm_fail(FM_EBASE,
                       "%s: 'prompt_embeddings' is wanted as [virtual tokens, %llu], fewer tokens "
                       "than the model's %u positions",
                       a->what, (unsigned long long)width, m->max_positions);
    FM_TRY(check_fields(a, fields, FM_ARRAY_LEN(fields)));
    FM_TRY(fmi_read_floats(b, &p->virtual_rows, e));
    if (prefix)
        fmi_cut_virtual(p, p->virtual_rows, (uint32_t)len);
    p->virtual_len = (uint32_t)len;
    p->virtual_is_kv = prefix;
    p->virtual_id = e->id;
    return digest_entry(digest, prefix ? "prefix" : "prompt", "", e);
}
