/* gguf.c - a model as one GGUF: head, fields, names and places of the tensors, then their bytes.
 *
 * Names, row orders and what is added to norms come from the table that import reads with
 * (import/gguf_arch.c), the other way round; types are those of llama.cpp's converter, or of one of
 * llama-quantize's mixes (gguf_mix.c), and then the order of tensors and fields is its too. */
#include "store/export/gguf_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GGUF_VERSION = 3, ALIGN = 32 };

typedef struct tensor {
    char *name;        /* owned; GGUF's */
    exp_weight **part; /* the weight, or the experts in order; owned list, the view's weights */
    uint32_t parts;
    uint64_t bytes;
    const ggw_table *table; /* or it follows from the config: no parts */
    uint64_t kept;          /* where the table's bytes lie in the file's text */
} tensor;

typedef struct writing {
    fm_view *v;
    const ggw_mix *mix;  /* or NULL */
    const char *imatrix; /* the path, or NULL */
    ggw_model model;
    ggw_fields fields;
    fm_map *by_name; /* tensor by GGUF's name; indices + 1 */
    tensor *t;
    size_t count, cap;
} writing;

/* ---- fields ---- */

static void key_of(ggw_fields *f, const char *key, fm_gguf_type type)
{
    ggw_text(&f->bytes, fm_span_str(key));
    fm_buf_u32(&f->bytes, type);
    f->count++;
}

void ggw_text(fm_buf *out, fm_span text)
{
    fm_buf_u64(out, text.len);
    fm_buf_append(out, text.data, text.len);
}

void ggw_u32(ggw_fields *f, const char *key, uint64_t v)
{
    key_of(f, key, FM_GGUF_U32);
    fm_buf_u32(&f->bytes, (uint32_t)v);
}

void ggw_float(fm_buf *out, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    fm_buf_u32(out, bits);
}

void ggw_f32(ggw_fields *f, const char *key, double v)
{
    key_of(f, key, FM_GGUF_F32);
    ggw_float(&f->bytes, (float)v);
}

void ggw_bool(ggw_fields *f, const char *key, bool v)
{
    key_of(f, key, FM_GGUF_BOOL);
    fm_buf_u8(&f->bytes, v);
}

void ggw_str(ggw_fields *f, const char *key, fm_span v)
{
    key_of(f, key, FM_GGUF_STRING);
    ggw_text(&f->bytes, v);
}

void ggw_list(ggw_fields *f, const char *key, fm_gguf_type elem, uint64_t count)
{
    key_of(f, key, FM_GGUF_ARRAY);
    fm_buf_u32(&f->bytes, elem);
    fm_buf_u64(&f->bytes, count);
}

/* ---- the tensors ---- */

/* What has no effect, and the head of a tied model, which is its embedding. */
static bool is_idle(const writing *w, const char *name)
{
    if (gguf_is_idle(w->model.arch, name))
        return true;
    return (fm_ends_with(name, "lm_head.weight") || strcmp(name, "embed_out.weight") == 0) &&
           !w->v->plan.unties && ggw_is_tied(&w->model);
}

static fm_status add_tensor(size_t *at, writing *w, const char *name, uint32_t parts)
{
    void *had = fm_map_get(w->by_name, name, strlen(name)), *old = NULL;

    if (had) {
        *at = (size_t)(uintptr_t)had - 1;
        return FM_OK;
    }
    FM_TRY(fm_grow(&w->t, &w->cap, w->count + 1, sizeof *w->t));
    tensor t = {
        .name = fm_strdup(name), .part = fm_calloc(parts, sizeof(exp_weight *)), .parts = parts};
    w->t[ *at = w->count++] = t;
    if (!t.name || !t.part)
        return FM_ENOMEM;
    return fm_map_put(w->by_name, name, strlen(name), (void *)(uintptr_t)w->count, &old);
}

/* Norms, vectors and routers are F32 always; `wanted` NONE: the others as stored, where ggml has
 * the type, and where nothing is merged into blocks. */
static fm_dtype dtype_of(const exp_weight *w, const char *name, fm_dtype wanted)
{
    const fm_dtype stored = w->base->dtype;
    uint32_t ggml;

    if (w->base->shape.rank < 2 || fm_ends_with(name, "_norm.weight") ||
        fm_ends_with(name, ".bias") || strstr(name, ".ffn_gate_inp") ||
        strncmp(name, "position_embd.", 14) == 0 || strncmp(name, "token_types.", 12) == 0)
        return FM_F32;
    if (wanted != FM_DTYPE_NONE)
        return wanted;
    if (!fm_gguf_ggml_type(&ggml, stored))
        return FM_BF16; /* 8-bit floats */
    return fm_dtype_get(stored)->is_block && w->term_count > 0 ? FM_F32 : stored;
}

fm_status ggw_check_rows(const ggw_model *m, const exp_weight *one, uint64_t heads)
{
    const fm_shape *s = &one->base->shape;

    if (heads > 0 && (s->rank == 0 || s->dim[0] != heads * m->head_dim))
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s' does not have %" PRIu64 " heads of %" PRIu64
                       " rows, as config.json says; mend the config and import it again",
                       one->name, heads, m->head_dim);
    return FM_OK;
}

static fm_status set_type(exp_weight *one, const char *name, fm_dtype wanted)
{
    const fm_shape *s = &one->shape;

    if (!fm_dtype_get(one->base->dtype)->is_float || one->base->dtype == FM_F64)
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s' is of type %s, which GGUF does not hold as a weight; export "
                       "with --format hf",
                       one->name, fm_dtype_get(one->base->dtype)->name);
    one->dtype = dtype_of(one, name, wanted);
    return fm_tensor_bytes(&one->bytes, one->dtype, s, one->name);
}

static fm_status unnamed(const writing *w, const exp_weight *one)
{
    return fm_fail(FM_EUNSUPPORTED,
                   "tensor '%s' has no name in a GGUF of architecture %s; export with --format hf",
                   one->name, w->model.arch->prefix);
}

/* Whether llama.cpp loads the tensor, where it does not load all of a family's biases. */
static bool is_loaded(const gguf_arch *arch, const char *stem, const char *name)
{
    const bool mlp = strncmp(stem, "ffn_", 4) == 0 && strcmp(stem, "ffn_norm") != 0;

    if (!fm_ends_with(name, ".bias"))
        return true;
    return !(mlp && (arch->has & GGUF_NO_MLP_BIAS)) &&
           !(strcmp(stem, "attn_output") == 0 && (arch->has & GGUF_NO_O_BIAS));
}

static fm_status check_place(const writing *w, const exp_weight *one, const char *name,
                             uint32_t expert)
{
    if (expert != GGUF_NO_EXPERT && expert >= w->model.experts)
        return fm_fail(FM_EUNSUPPORTED, "tensor '%s' is of an expert beyond the config's %" PRIu64,
                       one->name, w->model.experts);
    if (strncmp(name, "blk.", 4) == 0 && strtoull(name + 4, NULL, 10) >= w->model.layers)
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s' is of a layer beyond config.json's 'num_hidden_layers' %" PRIu64
                       ", which llama.cpp does not load; export with --format hf",
                       one->name, w->model.layers);
    return FM_OK;
}

src_order ggw_order_of(const ggw_model *m, const char *stem, uint64_t *heads)
{
    const uint32_t has = m->arch->has, groups = (uint32_t)m->kv_heads;
    const bool q = strcmp(stem, "attn_q") == 0, k = strcmp(stem, "attn_k") == 0;

    *heads = 0;
    if ((has & GGUF_PERMUTES) && (q || k)) {
        *heads = q ? m->heads : m->kv_heads;
        return (src_order){(uint32_t)*heads, 0};
    }
    if (!(has & GGUF_GROUPS) || groups <= 1 || strcmp(stem, "attn_qkv") != 0)
        return (src_order){0, 0};
    *heads = m->heads + 2 * m->kv_heads;
    return (src_order){groups, (uint32_t)(m->heads / groups)};
}

/* How the rows of a weight are ordered, and what is added to it. */
static fm_status set_form(const writing *w, exp_weight *one, const char *stem, const char *name)
{
    const ggw_model *m = &w->model;
    uint64_t heads = 0;

    one->shape = one->base->shape;
    one->plus_1 = (m->arch->has & GGUF_PLUS_1) && fm_ends_with(name, "_norm.weight");
    if ((m->arch->has & GGUF_CONV1D) && one->shape.rank == 2 && strncmp(name, "blk.", 4) == 0) {
        one->turned = true;
        one->shape.dim[0] = one->base->shape.dim[1];
        one->shape.dim[1] = one->base->shape.dim[0];
    }
    if (strcmp(stem, "position_embd") == 0 && one->shape.rank == 2) {
        const uint64_t skip = FM_MIN(m->skip, one->shape.dim[0]);
        one->skip = skip * one->shape.dim[1];
        one->shape.dim[0] -= skip;
    }
    one->order = ggw_order_of(m, stem, &heads);
    return ggw_check_rows(m, one, heads);
}

static fm_status place_weight(writing *w, exp_weight *one, fm_dtype wanted)
{
    const gguf_arch *arch = w->model.arch;
    gguf_part part = {NULL, 0};
    size_t at = 0;
    fm_buf name;

    if (is_idle(w, one->name))
        return FM_OK;
    fm_buf_init(&name, 0);
    fm_status rc =
        gguf_name_of(&name, &part, arch, one->name) && is_loaded(arch, part.stem, one->name)
            ? fm_buf_ok(&name)
            : unnamed(w, one);
    const bool many = part.expert != GGUF_NO_EXPERT;
    FM_THEN(rc, check_place(w, one, fm_buf_cstr(&name), part.expert));
    FM_THEN(rc, add_tensor(&at, w, fm_buf_cstr(&name), many ? (uint32_t)w->model.experts : 1));
    FM_THEN(rc, set_form(w, one, part.stem, fm_buf_cstr(&name)));
    FM_THEN(rc, set_type(one, fm_buf_cstr(&name), wanted));
    if (rc == FM_OK)
        w->t[at].part[many ? part.expert : 0] = one;
    fm_buf_release(&name);
    return rc;
}

/* All experts of a tensor are there, alike and of one type. */
static fm_status check_parts(tensor *t)
{
    for (uint32_t i = 0; i < t->parts; i++) {
        if (!t->part[i])
            return fm_fail(FM_EUNSUPPORTED,
                           "tensor '%s' of the GGUF: expert %" PRIu32 " of %" PRIu32
                           " is missing in this version",
                           t->name, i, t->parts);
        if (t->part[i]->dtype != t->part[0]->dtype ||
            !fm_shape_eq(&t->part[i]->shape, &t->part[0]->shape))
            return fm_fail(FM_EUNSUPPORTED,
                           "tensor '%s' is not of expert 0's type and shape, so they cannot be one "
                           "tensor of a GGUF; choose a --dtype",
                           t->part[i]->name);
        t->bytes += t->part[i]->bytes;
    }
    return FM_OK;
}

/* ---- the file ---- */

uint64_t ggw_padded(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

fm_status ggw_info(fm_buf *out, const ggw_place *t, uint64_t *at)
{
    uint32_t type = 0;

    if (!fm_gguf_ggml_type(&type, t->dtype))
        return fm_fail(FM_EUNSUPPORTED, "tensor '%s': ggml has no type %s", t->name,
                       fm_dtype_get(t->dtype)->name);
    ggw_text(out, fm_span_str(t->name));
    fm_buf_u32(out, t->dims);
    for (uint32_t i = 0; i < t->dims; i++)
        fm_buf_u64(out, i < t->shape.rank ? t->shape.dim[t->shape.rank - 1 - i] : t->parts);
    fm_buf_u32(out, type);
    fm_buf_u64(out, *at);
    *at += ggw_padded(t->bytes);
    return FM_OK;
}

static fm_status put_info(fm_buf *out, const tensor *t, bool mixed, uint64_t *at)
{
    ggw_place p = {.name = t->name, .parts = t->parts, .bytes = t->bytes};

    p.shape = t->table ? (fm_shape){1, {t->table->count}} : t->part[0]->shape;
    p.dtype = t->table ? FM_F32 : t->part[0]->dtype;
    p.dims = mixed ? ggw_mix_dims(&p.shape, t->parts) : p.shape.rank + (t->parts > 1);
    return ggw_info(out, &p, at);
}

void ggw_begin(fm_buf *out, uint64_t tensors, const ggw_fields *fields)
{
    fm_buf_init(out, 0);
    fm_buf_str(out, "GGUF");
    fm_buf_u32(out, GGUF_VERSION);
    fm_buf_u64(out, tensors);
    fm_buf_u64(out, fields->count);
    fm_buf_append(out, fields->bytes.data, fields->bytes.len);
}

void ggw_pad(fm_buf *out)
{
    for (uint64_t n = ggw_padded(out->len) - out->len; n > 0; n--)
        fm_buf_u8(out, 0);
}

/* The head, and behind it in the file's text the tables, whose bytes follow in their places. */
static fm_status add_head(writing *w)
{
    uint64_t at = 0;
    fm_buf out;
    fm_status rc = FM_OK;

    ggw_begin(&out, w->count, &w->fields);
    for (size_t i = 0; rc == FM_OK && i < w->count; i++)
        rc = put_info(&out, &w->t[i], w->mix != NULL, &at);
    ggw_pad(&out);
    const uint64_t head = out.len;
    for (size_t i = 0; i < w->count; i++) {
        w->t[i].kept = out.len;
        for (uint64_t k = 0; w->t[i].table && k < w->t[i].table->count; k++)
            ggw_float(&out, w->t[i].table->v[k]);
    }
    FM_THEN(rc, exp_keep_text(w->v, &out));
    FM_THEN(rc, exp_add_kept(w->v, 0, head));
    fm_buf_release(&out);
    return rc;
}

static fm_status add_bytes(writing *w)
{
    for (size_t i = 0; i < w->count; i++) {
        if (w->t[i].table)
            FM_TRY(exp_add_kept(w->v, w->t[i].kept, w->t[i].bytes));
        for (uint32_t k = 0; k < w->t[i].parts; k++)
            FM_TRY(exp_add_weight(w->v, w->t[i].part[k]));
        FM_TRY(exp_add_zeros(w->v, ggw_padded(w->t[i].bytes) - w->t[i].bytes));
    }
    return FM_OK;
}

/* llama.cpp's number for a file whose matrices are mostly of one type; without it llama.cpp tells
 * the type by itself. */
static void file_type(ggw_fields *f, const writing *w)
{
    static const struct {
        fm_dtype dtype;
        uint32_t number;
    } known[] = {{FM_F32, 0},  {FM_F16, 1},  {FM_Q4_0, 2}, {FM_Q4_1, 3},
                 {FM_Q8_0, 7}, {FM_Q5_0, 8}, {FM_Q5_1, 9}, {FM_BF16, 32}};
    uint64_t bytes[FM_DTYPE_COUNT] = {0};
    size_t most = 0;

    for (size_t i = 0; i < w->count; i++)
        if (w->t[i].part[0]->base->shape.rank > 1)
            bytes[w->t[i].part[0]->dtype] += w->t[i].bytes;
    for (size_t i = 1; i < FM_DTYPE_COUNT; i++)
        if (bytes[i] > bytes[most])
            most = i;
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (known[i].dtype == (fm_dtype)most)
            ggw_u32(f, "general.file_type", known[i].number);
}

void ggw_general(ggw_fields *f, const ggw_model *m, const char *type)
{
    const char *name = fm_json_cstr(fm_json_get(m->config, "_name_or_path"), "");

    ggw_str(f, "general.architecture", fm_span_str(m->arch->prefix));
    ggw_str(f, "general.type", fm_span_str(type));
    name = fm_path_base(name);
    if (!*name)
        name = fm_json_cstr(fm_json_get(m->config, "model_type"), "");
    ggw_str(f, "general.name", fm_span_str(name));
}

static fm_status write_fields(writing *w)
{
    ggw_fields *f = &w->fields;

    ggw_general(f, &w->model, "model");
    FM_TRY(ggw_arch_fields(f, &w->model));
    FM_TRY(ggw_pooling(f, w->v, &w->model));
    if (!w->mix)
        file_type(f, w);
    FM_TRY(ggw_tokenizer_fields(f, w->v, &w->model));
    ggw_u32(f, "general.quantization_version", GGW_QUANT_VERSION);
    if (w->mix)
        ggw_u32(f, "general.file_type", ggw_mix_file_type(w->mix));
    if (w->v->imatrix)
        ggw_imatrix_fields(f, w->v->imatrix, w->imatrix);
    return fm_buf_ok(&f->bytes);
}

static fm_status find_tensors(writing *w, fm_dtype dtype)
{
    const fm_shape *embd = NULL;

    if (w->model.experts > w->v->plan.count)
        return fm_fail(FM_EUNSUPPORTED,
                       "config.json speaks of %" PRIu64 " experts, this version has %zu tensors",
                       w->model.experts, w->v->plan.count);
    for (size_t i = 0; i < w->v->plan.count; i++)
        FM_TRY(place_weight(w, &w->v->plan.weight[i], dtype));
    for (size_t i = 0; i < w->count; i++) {
        FM_TRY(check_parts(&w->t[i]));
        if (strcmp(w->t[i].name, "token_embd.weight") == 0)
            embd = &w->t[i].part[0]->shape;
    }
    if (!embd || embd->rank != 2 || embd->dim[1] != w->model.hidden)
        return fm_fail(
            FM_EUNSUPPORTED,
            "tensor 'model.embed_tokens.weight' is missing, or its rows are not of config.json's "
            "'hidden_size' %" PRIu64,
            w->model.hidden);
    w->model.vocab = embd->dim[0];
    return FM_OK;
}

/* The tables come before the weights. */
static fm_status add_tables(writing *w)
{
    const ggw_model *m = &w->model;

    FM_TRY(fm_grow(&w->t, &w->cap, w->count + m->tables, sizeof *w->t));
    memmove(w->t + m->tables, w->t, w->count * sizeof *w->t);
    memset(w->t, 0, m->tables * sizeof *w->t);
    w->count += m->tables;
    for (size_t i = 0; i < m->tables; i++) {
        w->t[i].table = &m->table[i];
        w->t[i].bytes = m->table[i].count * sizeof(float);
        w->t[i].name = fm_strdup(m->table[i].name);
        if (!w->t[i].name)
            return FM_ENOMEM;
    }
    return FM_OK;
}

static int by_mix_order(const void *a, const void *b)
{
    return ggw_mix_order(((const tensor *)a)->name, ((const tensor *)b)->name);
}

/* A row of weights for each matrix of the tensor, or none. An embedding's rows of input are
 * one-hot, so what stands under its name is another's if it does not fit. */
static fm_status find_importance(const float **out, const writing *w, const tensor *t,
                                 fm_dtype dtype)
{
    const fm_shape *s = &t->part[0]->base->shape;
    const uint64_t row = s->dim[s->rank - 1];
    const uint64_t matrices = t->parts * (s->rank > 2 ? s->dim[0] : 1);
    uint64_t count = 0;

    *out = NULL;
    if (dtype == FM_F32)
        return FM_OK;
    if (w->v->imatrix)
        *out = fm_imatrix_find(w->v->imatrix, t->name, &count);
    if (*out && count != row * matrices) {
        *out = NULL;
        if (strcmp(t->name, "token_embd.weight") != 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "the importance matrix has %" PRIu64 " values for '%s', which wants "
                           "%" PRIu64 "; it is another model's",
                           count, t->name, row * matrices);
    }
    if (!*out && ggw_mix_wants_importance(w->mix, t->name, dtype))
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s': Q2_K_S wants an importance matrix with this weight (--imatrix "
                       "FILE, which llama-imatrix writes); Q2_K does without",
                       t->name);
    return FM_OK;
}

static fm_status set_mixed(const writing *w, tensor *t, fm_dtype dtype)
{
    const float *by;

    FM_TRY(find_importance(&by, w, t, dtype));
    t->bytes = 0;
    for (uint32_t k = 0; k < t->parts; k++) {
        exp_weight *one = t->part[k];
        one->dtype = dtype;
        if (by && fm_dtype_get(dtype)->is_block)
            one->importance = by + k * one->shape.dim[one->shape.rank - 1];
        FM_TRY(fm_tensor_bytes(&one->bytes, dtype, &one->shape, one->name));
        t->bytes += one->bytes;
    }
    return FM_OK;
}

/* Order and types of the mix. */
static fm_status mix_tensors(writing *w)
{
    ggw_mix_tensor *list = fm_calloc(w->count, sizeof *list);
    const fm_shape vector = {1, {1}};

    if (!list)
        return FM_ENOMEM;
    qsort(w->t, w->count, sizeof *w->t, by_mix_order);
    for (size_t i = 0; i < w->count; i++) {
        const tensor *t = &w->t[i];
        list[i] = (ggw_mix_tensor){.name = t->name,
                                   .shape = t->table ? &vector : &t->part[0]->shape,
                                   .parts = FM_MAX(t->parts, 1u)};
    }
    fm_status rc = ggw_mix_types(w->mix, &w->model, w->v->imatrix != NULL, list, w->count);
    for (size_t i = 0; rc == FM_OK && i < w->count; i++)
        if (!w->t[i].table)
            rc = set_mixed(w, &w->t[i], list[i].dtype);
    fm_free(list);
    return rc;
}

fm_status exp_gguf(fm_view *v, const fm_view_opts *opts)
{
    writing w = {.v = v, .mix = ggw_mix_find(opts->mix), .imatrix = opts->imatrix};
    const fm_dtype dtype = w.mix ? FM_F32 : opts->dtype;
    fm_json *model = NULL;

    v->single = true;
    fm_buf_init(&w.fields.bytes, 0);
    fm_status rc = opts->imatrix ? fm_imatrix_read(&v->imatrix, opts->imatrix) : FM_OK;
    FM_THEN(rc, exp_model_json(&model, v->tree, v->p));
    FM_THEN(rc, ggw_read_model(&w.model, fm_json_get(model, "config")));
    FM_THEN(rc, exp_plan_make(&v->plan, v->tree, v->p, FM_DTYPE_NONE));
    FM_THEN(rc, fm_map_new(&w.by_name));
    FM_THEN(rc, find_tensors(&w, dtype));
    FM_THEN(rc, write_fields(&w));
    FM_THEN(rc, add_tables(&w));
    if (w.mix)
        FM_THEN(rc, mix_tensors(&w));
    FM_THEN(rc, exp_add_file(v, "model.gguf"));
    FM_THEN(rc, add_head(&w));
    FM_THEN(rc, add_bytes(&w));
    for (size_t i = 0; i < w.count; i++) {
        fm_free(w.t[i].name);
        fm_free(w.t[i].part);
    }
    fm_free(w.t);
    fm_map_free(w.by_name);
    fm_buf_release(&w.fields.bytes);
    ggw_model_free(&w.model);
    fm_json_free(model);
    return rc;
}
