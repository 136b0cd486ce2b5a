/* scaled.c - see scaled.h: the config, the view of a tree, weights multiplied by their scales. */
#include "store/scaled.h"

#include <stdio.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"

/* Elements computed at a time. */
#define RUN 4096u
#define WEIGHT ".weight"

typedef struct scaled {
    const fm_entry *weight, *scale; /* entries of the underlying tree */
    uint64_t n, k, rows, cols;      /* shape of the weight; of a block */
    fm_dtype dtype;
} scaled;

struct fm_plain {
    const fm_tree *tree; /* the view: own, or the tree that was given */
    fm_tree *own;        /* NULL: nothing is scaled */
    const fm_provider *behind;
    fm_provider p;
    fm_map *by_id; /* id in own -> scaled * */
    scaled *list;
    size_t count;
};

/* ==== the config ==== */

static fm_status refuse(const char *what, const char *field, const char *value)
{
    return fm_fail(
        FM_EUNSUPPORTED,
        "%s: config field 'quantization_config' has %s %s; read here are F8 weights with "
        "scales (fp8, compressed-tensors, fbgemm_fp8, modelopt)",
        what, field, value);
}

static fm_status block_of(fm_scaling_config *s, const fm_json *block, const char *what)
{
    if (fm_json_typeof(block) == FM_JSON_NULL)
        return FM_OK;
    int64_t rows = fm_json_int(fm_json_at(block, 0), 0),
            cols = fm_json_int(fm_json_at(block, 1), 0);
    if (fm_json_count(block) != 2 || rows < 1 || cols < 1 || rows > UINT32_MAX || cols > UINT32_MAX)
        return fm_fail(FM_EINVAL,
                       "%s: config field 'quantization_config': a block's size must be two "
                       "positive integers",
                       what);
    s->rows = (uint32_t)rows;
    s->cols = (uint32_t)cols;
    return FM_OK;
}

/* Every group must have 8-bit floats, and all the same block size. */
static fm_status groups_of(fm_scaling_config *s, const fm_json *q, const char *what)
{
    const fm_json *groups = fm_json_get(q, "config_groups");
    const char *format = fm_json_cstr(fm_json_get(q, "format"), "float-quantized");
    if (strcmp(format, "float-quantized") != 0 && strcmp(format, "naive-quantized") != 0)
        return refuse(what, "format", format);
    const fm_json *sparse = fm_json_get(fm_json_get(q, "sparsity_config"), "format");
    if (strcmp(fm_json_cstr(sparse, "dense"), "dense") != 0)
        return refuse(what, "sparsity_config.format", fm_json_cstr(sparse, ""));
    for (void *it = fm_json_iter(groups); it; it = fm_json_next(groups, it)) {
        const fm_json *w = fm_json_get(fm_json_iter_value(it), "weights");
        const char *strategy = fm_json_cstr(fm_json_get(w, "strategy"), "");
        bool block = strcmp(strategy, "block") == 0;
        fm_scaling_config one = {0};
        if (strcmp(fm_json_cstr(fm_json_get(w, "type"), ""), "float") != 0 ||
            fm_json_int(fm_json_get(w, "num_bits"), 0) != 8)
            return refuse(what, "config_groups", "whose weights are no 8-bit floats");
        if (!block && strcmp(strategy, "tensor") != 0 && strcmp(strategy, "channel") != 0)
            return refuse(what, "strategy", strategy);
        FM_TRY(block ? block_of(&one, fm_json_get(w, "block_structure"), what) : FM_OK);
        if (s->rows && block && (one.rows != s->rows || one.cols != s->cols))
            FM_TRY(refuse(what, "config_groups", "with blocks of several sizes"));
        if (block) {
            s->rows = one.rows;
            s->cols = one.cols;
        }
    }
    return FM_OK;
}

static fm_dtype computed_in(const fm_json *config)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    const fm_json *place[] = {config, fm_json_get(config, "text_config")};
    for (size_t i = 0; i < FM_ARRAY_LEN(place); i++)
        for (size_t k = 0; k < FM_ARRAY_LEN(keys); k++) {
            const char *word = fm_json_cstr(fm_json_get(place[i], keys[k]), "");
            if (strcmp(word, "float16") == 0)
                return FM_F16;
            if (strcmp(word, "float32") == 0)
                return FM_F32;
        }
    return FM_BF16;
}

fm_status fm_scaling_config_of(fm_scaling_config *out, const fm_json *config, const char *what)
{
    const fm_json *q = fm_json_get(config, "quantization_config");
    memset(out, 0, sizeof(*out));
    if (fm_json_typeof(q) == FM_JSON_NULL)
        return FM_OK;
    const char *method = fm_json_cstr(fm_json_get(q, "quant_method"), "(missing)");
    fm_scaling_config s = {.suffix = ".weight_scale", .dtype = computed_in(config)};

    if (strcmp(method, "fp8") == 0) {
        const char *fmt = fm_json_cstr(fm_json_get(q, "fmt"), "e4m3");
        s.suffix = ".weight_scale_inv";
        FM_TRY(strcmp(fmt, "e4m3") == 0 ? block_of(&s, fm_json_get(q, "weight_block_size"), what)
                                        : refuse(what, "fmt", fmt));
    } else if (strcmp(method, "compressed-tensors") == 0) {
        FM_TRY(groups_of(&s, q, what));
    } else if (strcmp(method, "modelopt") == 0) {
        const char *algo = fm_json_cstr(fm_json_get(q, "quant_algo"), "(missing)");
        FM_TRY(strcmp(algo, "FP8") == 0 ? FM_OK : refuse(what, "quant_algo", algo));
    } else if (strcmp(method, "fbgemm_fp8") != 0) {
        FM_TRY(refuse(what, "quant_method", method));
    }
    *out = s;
    return FM_OK;
}

/* ==== the view ==== */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), t = strlen(tail);
    return n >= t && strcmp(s + n - t, tail) == 0;
}

/* Scales of activations and of cached keys and values. */
static bool of_activations(const char *name)
{
    static const char *const tail[] = {".input_scale", ".activation_scale", ".output_scale",
                                       ".k_scale",     ".v_scale",          ".input_scale_ub"};
    for (size_t i = 0; i < FM_ARRAY_LEN(tail); i++)
        if (ends_with(name, tail[i]))
            return true;
    return false;
}

static bool is_f8(const fm_entry *e)
{
    return e->kind == FM_ENTRY_TENSOR && (e->dtype == FM_F8_E4M3 || e->dtype == FM_F8_E5M2);
}

static bool is_weight(const fm_entry *e)
{
    return is_f8(e) && e->shape.rank == 2 && ends_with(e->name, WEIGHT);
}

static fm_status scale_beside(const fm_entry **out, const fm_tree *tree, const fm_entry *w,
                              const char *suffix)
{
    char name[FM_MAX_NAME_BYTES + 24];
    fm_buf path;
    size_t stem = strlen(w->name) - strlen(WEIGHT);
    (void)snprintf(name, sizeof(name), "%.*s%s", (int)stem, w->name, suffix);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    *out = rc == FM_OK ? fm_tree_find(tree, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&path);
    if (rc == FM_OK && (!*out || (*out)->kind != FM_ENTRY_TENSOR))
        rc = fm_fail(FM_EBASE, "tensor '%s' is %s and has no scale '%s' beside it", w->name,
                     fm_dtype_get(w->dtype)->name, name);
    return rc;
}

static uint64_t parts(uint64_t n, uint64_t of)
{
    return n / of + (n % of != 0);
}

/* Sets rows and cols of a block by the scale's shape. */
static fm_status fit(scaled *s, const fm_scaling_config *c)
{
    const fm_shape *g = &s->scale->shape;
    uint64_t elems = 0;
    FM_TRY(fm_shape_elems(&elems, g));
    char text[96], weight[96];

    if (s->n == 0 || s->k == 0) {
        s->rows = s->cols = 1; /* nothing to multiply */
    } else if (elems == 1) {
        s->rows = s->n;
        s->cols = s->k;
    } else if (g->dim[0] == s->n && (g->rank == 1 || (g->rank == 2 && g->dim[1] == 1))) {
        s->rows = 1;
        s->cols = s->k;
    } else if (c->rows && g->rank == 2 && g->dim[0] == parts(s->n, c->rows) &&
               g->dim[1] == parts(s->k, c->cols)) {
        s->rows = c->rows;
        s->cols = c->cols;
    } else {
        fm_shape_text(g, text, sizeof(text));
        fm_shape_text(&s->weight->shape, weight, sizeof(weight));
        return fm_fail(FM_EBASE, "scale '%s' has shape %s, which does not fit a weight of %s",
                       s->scale->name, text, weight);
    }
    return fm_dtype_get(s->scale->dtype)->is_float
               ? FM_OK
               : fm_fail(FM_EUNSUPPORTED, "scale '%s' is %s, not a float", s->scale->name,
                         fm_dtype_get(s->scale->dtype)->name);
}

static fm_status id_of(fm_digest *out, const scaled *s)
{
    char text[128];
    int n = snprintf(text, sizeof(text), "fmstore scaled weight 1\n%s %llu %llu\n",
                     fm_dtype_get(s->dtype)->name, (unsigned long long)s->rows,
                     (unsigned long long)s->cols);
    uint8_t all[sizeof(text) + 2 * sizeof(fm_digest)];
    memcpy(all, text, (size_t)n);
    memcpy(all + n, s->weight->id.b, sizeof(fm_digest));
    memcpy(all + n + sizeof(fm_digest), s->scale->id.b, sizeof(fm_digest));
    return fm_sha256(out, all, (size_t)n + 2 * sizeof(fm_digest));
}

static fm_status put_scaled(fm_plain *v, const fm_tree *tree, const fm_entry *e,
                            const fm_scaling_config *c)
{
    scaled *s = &v->list[v->count];
    *s = (scaled){.weight = e, .dtype = c->dtype, .n = e->shape.dim[0], .k = e->shape.dim[1]};
    fm_digest id;
    fm_status rc = scale_beside(&s->scale, tree, e, c->suffix);
    FM_THEN(rc, fit(s, c));
    FM_THEN(rc, id_of(&id, s));
    FM_THEN(rc, fm_tree_put_tensor(v->own, e->path, e->name, s->dtype, &e->shape, &id));
    FM_THEN(rc, fm_map_put(v->by_id, id.b, sizeof(id.b), s, NULL));
    v->count += rc == FM_OK;
    return rc;
}

static fm_status without(fm_json **out, const fm_json *v, const char *key)
{
    fm_json *o = *out = fm_json_new_object();
    FM_TRY(o ? FM_OK : FM_ENOMEM);
    for (void *it = fm_json_iter(v); it; it = fm_json_next(v, it))
        if (strcmp(fm_json_iter_key(it), key) != 0)
            FM_TRY(fm_json_set(o, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it))));
    return FM_OK;
}

static fm_status put_model(fm_plain *v, const fm_json *model)
{
    fm_json *config = NULL, *plain = NULL;
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = without(&config, fm_json_get(model, "config"), "quantization_config");
    FM_THEN(rc, without(&plain, model, "config"));
    if (rc == FM_OK) {
        rc = fm_json_set(plain, "config", config);
        config = NULL;
    }
    FM_THEN(rc, fm_json_write(&text, plain, FM_JSON_PRETTY));
    FM_THEN(rc, fm_buf_ok(&text));
    FM_THEN(rc, fm_tree_put_file(v->own, "model.json", fm_buf_span(&text)));
    fm_json_free(config);
    fm_json_free(plain);
    fm_buf_release(&text);
    return rc;
}

/* In the tree's order, so that each entry is appended. */
static fm_status put_all(fm_plain *v, const fm_tree *tree, const fm_json *model,
                         const fm_scaling_config *c)
{
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        bool tensor = e->kind == FM_ENTRY_TENSOR && strncmp(e->path, "tensors/", 8) == 0;
        if (strcmp(e->path, "model.json") == 0)
            FM_TRY(put_model(v, model));
        else if (tensor && is_weight(e))
            FM_TRY(put_scaled(v, tree, e, c));
        else if (tensor && (ends_with(e->name, c->suffix) || of_activations(e->name)))
            continue;
        else if (tensor && is_f8(e)) /* without its scale its values would be wrong */
            return fm_fail(
                FM_EUNSUPPORTED,
                "tensor '%s' is %s and no matrix 'X%s': where its scale is, is not known", e->name,
                fm_dtype_get(e->dtype)->name, WEIGHT);
        else
            FM_TRY(fm_tree_put_entry(v->own, e));
    }
    return FM_OK;
}

/* ==== reading ==== */

static const scaled *scaled_of(const fm_plain *v, const fm_entry *e)
{
    return e->kind == FM_ENTRY_TENSOR ? fm_map_get(v->by_id, e->id.b, sizeof(e->id.b)) : NULL;
}

/* Multiplies x, elements [first, first + n) of the weight in float32, by their scales. */
static void multiply(float *x, const scaled *s, const float *scale, uint64_t first, uint64_t n)
{
    const uint64_t across = parts(s->k, s->cols);
    for (uint64_t i = 0; i < n;) {
        uint64_t row = (first + i) / s->k, col = (first + i) % s->k;
        uint64_t end = (col / s->cols + 1) * s->cols;
        uint64_t run = (end < s->k ? end : s->k) - col;
        float by = scale[row / s->rows * across + col / s->cols];
        for (run = run < n - i ? run : n - i; run > 0; run--, i++)
            x[i] *= by;
    }
}

static fm_status scales_read(float **out, const fm_plain *v, const scaled *s)
{
    uint64_t n = parts(s->n, s->rows) * parts(s->k, s->cols);
    void *raw = fm_aligned_alloc(64, (size_t)s->scale->bytes);
    float *f = fm_malloc((size_t)n * sizeof(float));
    fm_status rc = raw && f ? v->behind->read(v->behind->ctx, s->scale, raw) : FM_ENOMEM;
    FM_THEN(rc, fm_to_f32(f, s->scale->dtype, raw, n));
    fm_free(raw);
    if (rc != FM_OK) {
        fm_free(f);
        f = NULL;
    }
    *out = f;
    return rc;
}

/* Writes elements [first, first + n), whose F8 bytes are `raw`, to dst. */
static fm_status make(uint8_t *dst, const scaled *s, const float *scale, const uint8_t *raw,
                      uint64_t first, uint64_t n)
{
    const size_t size = fm_dtype_get(s->dtype)->block_bytes;
    float x[RUN];

    for (uint64_t i = 0; i < n; i += RUN) {
        uint64_t now = n - i < RUN ? n - i : RUN;
        FM_TRY(fm_to_f32(x, s->weight->dtype, raw + i, now));

        multiply(x, s, scale, first + i, now);
        FM_TRY(fm_from_f32(dst + i * size, s->dtype, x, now));
    }
    return FM_OK;
}

static fm_status read_some(const fm_plain *v, const scaled *s, uint64_t first, uint64_t n,
                           void *dst, unsigned flags)
{
    float *scale = NULL;
    uint8_t *raw = fm_aligned_alloc(64, (size_t)n);
    fm_status rc = raw ? scales_read(&scale, v, s) : FM_ENOMEM;
    FM_THEN(rc, n == s->weight->bytes
                    ? v->behind->read(v->behind->ctx, s->weight, raw)
                    : fm_entry_read_range(v->behind, s->weight, first, n, raw, flags));
    FM_THEN(rc, make(dst, s, scale, raw, first, n));
    fm_free(scale);
    fm_free(raw);
    return rc;
}

static fm_status plain_read(void *ctx, const fm_entry *e, void *dst)
{
    const fm_plain *v = ctx;
    const scaled *s = scaled_of(v, e);
    return s ? read_some(v, s, 0, s->n * s->k, dst, 0) : v->behind->read(v->behind->ctx, e, dst);
}

static fm_status plain_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                             void *dst, unsigned flags)
{
    const fm_plain *v = ctx;
    const scaled *s = scaled_of(v, e);
    if (!s)
        return fm_entry_read_range(v->behind, e, offset, bytes, dst, flags);
    if (bytes == 0)
        return FM_OK;
    const size_t size = fm_dtype_get(s->dtype)->block_bytes;
    uint64_t first = offset / size, n = parts(offset + bytes, size) - first;
    if (offset % size == 0 && bytes % size == 0)
        return read_some(v, s, first, n, dst, flags);
    uint8_t *whole = fm_malloc((size_t)(n * size));
    fm_status rc = whole ? read_some(v, s, first, n, whole, flags) : FM_ENOMEM;
    if (rc == FM_OK)
        memcpy(dst, whole + offset % size, (size_t)bytes);
    fm_free(whole);
    return rc;
}

static fm_status plain_view(void *ctx, const fm_entry *e, fm_span *out)
{
    const fm_plain *v = ctx;
    *out = (fm_span){0};
    return scaled_of(v, e) || !v->behind->view ? FM_OK : v->behind->view(v->behind->ctx, e, out);
}

static fm_status plain_place(void *ctx, const fm_entry *e, fm_file_part *out)
{
    const fm_plain *v = ctx;
    *out = (fm_file_part){0};
    return scaled_of(v, e) || !v->behind->place ? FM_OK : v->behind->place(v->behind->ctx, e, out);
}

/* ==== life ==== */

static fm_status open_scaled(fm_plain *v, const fm_tree *tree, const fm_json *model,
                             const fm_scaling_config *c)
{
    size_t weights = 0;
    for (size_t i = 0; i < fm_tree_count(tree); i++)
        weights += is_weight(fm_tree_at(tree, i));
    v->list = fm_calloc(weights + 1, sizeof(scaled));
    fm_status rc = v->list ? fm_map_new(&v->by_id) : FM_ENOMEM;
    FM_THEN(rc, fm_tree_new(&v->own));
    FM_THEN(rc, put_all(v, tree, model, c));
    v->tree = v->own;
    v->p = (fm_provider){.ctx = v,
                         .read = plain_read,
                         .view = v->behind->view ? plain_view : NULL,
                         .range = plain_range,
                         .place = v->behind->place ? plain_place : NULL};
    return rc;
}

fm_status fm_plain_open(fm_plain **out, const fm_tree *tree, const fm_provider *p, const char *what)
{
    const fm_entry *e = fm_tree_find(tree, "model.json");
    fm_plain *v = fm_calloc(1, sizeof(*v));
    fm_scaling_config c = {0};
    fm_json *model = NULL;
    fm_buf text;
    *out = NULL;
    if (!v)
        return FM_ENOMEM;
    v->tree = tree;
    v->behind = p;
    v->p = *p;
    fm_buf_init(&text, 0);
    fm_status rc = e ? fm_entry_read(&text, p, e) : FM_OK;
    if (rc == FM_OK && e)
        rc = fm_json_parse(&model, fm_buf_span(&text), "model.json");
    if (rc == FM_OK && e)
        rc = fm_scaling_config_of(&c, fm_json_get(model, "config"), "model.json");
    if (rc == FM_OK && c.suffix)
        rc = open_scaled(v, tree, model, &c);
    fm_buf_release(&text);
    fm_json_free(model);
    if (rc != FM_OK) {
        fm_plain_close(v);
        return fm_error_prefix(rc, "%s", what);
    }
    *out = v;
    return FM_OK;
}

void fm_plain_close(fm_plain *v)
{
    if (!v)
        return;
    fm_tree_free(v->own);
    fm_map_free(v->by_id);
    fm_free(v->list);
    fm_free(v);
}

const fm_tree *fm_plain_tree(const fm_plain *v)
{
    return v->tree;
}

const fm_provider *fm_plain_provider(const fm_plain *v)
{
    return &v->p;
}

bool fm_plain_scales(const fm_plain *v)
{
    return v->own != NULL;
}
