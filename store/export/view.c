/* view.c - an export as a list of files, each a row of segments, of which any range can be read. */
#include "store/export/gguf_impl.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"

enum { READ_THREADS = 4, READ_ALONE_BYTES = 1 << 20, PIECE_BYTES = 4 << 20 };

/* ==== filling ============================================================================== */

fm_status exp_add_file(fm_view *v, const char *name)
{
    FM_TRY(fm_grow(&v->file, &v->cap, v->count + 1, sizeof *v->file));
    exp_file f = {.name = fm_strdup(name), .first = v->segments, .end = v->segments};

    if (!f.name)
        return FM_ENOMEM;
    f.shown.name = f.name;
    f.order = v->count;
    v->file[v->count++] = f;
    return FM_OK;
}

static fm_status add_segment(fm_view *v, exp_segment s)
{
    exp_file *f = &v->file[v->count - 1];

    if (s.bytes == 0)
        return FM_OK;
    FM_TRY(fm_grow(&v->segment, &v->segment_cap, v->segments + 1, sizeof s));
    s.at = f->shown.bytes;
    f->shown.bytes += s.bytes;
    v->segment[v->segments++] = s;
    f->end = v->segments;
    return FM_OK;
}

fm_status exp_add_text(fm_view *v, fm_buf *text)
{
    const size_t bytes = text->len;
    FM_TRY(exp_keep_text(v, text));
    return exp_add_kept(v, 0, bytes);
}

fm_status exp_keep_text(fm_view *v, fm_buf *text)
{
    exp_file *f = &v->file[v->count - 1];
    FM_TRY(fm_buf_ok(text));

    fm_assert(!f->text);
    f->text = (uint8_t *)fm_buf_take(text);
    return f->text ? FM_OK : FM_ENOMEM;
}

fm_status exp_add_kept(fm_view *v, uint64_t from, uint64_t bytes)
{
    const exp_file *f = &v->file[v->count - 1];
    return add_segment(v, (exp_segment){.bytes = bytes, .literal = f->text + from});
}

fm_status exp_add_json(fm_view *v, const char *name, const fm_json *json, const char *tail)
{
    fm_buf text;

    fm_buf_init(&text, 0);
    fm_status rc = exp_add_file(v, name);
    FM_THEN(rc, fm_json_write(&text, json, FM_JSON_PRETTY));
    fm_buf_str(&text, tail);
    FM_THEN(rc, exp_add_text(v, &text));
    fm_buf_release(&text);
    return rc;
}

fm_status exp_add_entry(fm_view *v, const fm_entry *e, uint64_t from, uint64_t bytes)
{
    exp_segment s = {.bytes = bytes, .e = e, .from = from};

    if (e->kind == FM_ENTRY_FILE && bytes > 0)
        s.literal = e->data + from;
    return add_segment(v, s);
}

fm_status exp_add_rows(fm_view *v, const fm_entry *e, src_order order)
{
    return add_segment(v, (exp_segment){.bytes = e->bytes, .e = e, .order = order});
}

fm_status exp_add_zeros(fm_view *v, uint64_t bytes)
{
    static const uint8_t zeros[32];

    fm_assert(bytes <= sizeof zeros);
    return add_segment(v, (exp_segment){.bytes = bytes, .literal = zeros});
}

fm_status exp_add_weight(fm_view *v, const exp_weight *w)
{
    const uint64_t from = exp_stored_bytes(w, w->skip);

    if (w->dtype == w->base->dtype && w->term_count == 0 && !w->plus_1 && !w->turned)
        return w->order.heads > 0 ? exp_add_rows(v, w->base, w->order)
                                  : exp_add_entry(v, w->base, from, w->base->bytes - from);
    return add_segment(v, (exp_segment){.bytes = w->bytes, .made = w, .e = w->base});
}

fm_status exp_add_weights(fm_view *v, const char *name, const exp_weight *weights, size_t count)
{
    fm_st_item *items = fm_calloc(count + 1, sizeof *items);
    fm_buf head;
    fm_status rc = items ? exp_add_file(v, name) : FM_ENOMEM;

    fm_buf_init(&head, 0);
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        items[i] =
            (fm_st_item){weights[i].name, weights[i].dtype, weights[i].base->shape, &weights[i]};
    FM_THEN(rc, fm_st_header(&head, items, count));
    FM_THEN(rc, exp_add_text(v, &head));
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        rc = exp_add_weight(v, items[i].user);
    fm_buf_release(&head);
    fm_free(items);
    return rc;
}

/* ==== opening ============================================================================== */

static int by_name(const void *a, const void *b)
{
    const exp_file *x = a, *y = b;
    const int c = strcmp(x->name, y->name);

    return c != 0 ? c : x->order < y->order ? -1 : 1;
}

static void free_file(exp_file *f)
{
    fm_free(f->name);
    fm_free(f->text);
}

static void sort_files(fm_view *v)
{
    size_t n = 0;

    if (v->count > 1)
        qsort(v->file, v->count, sizeof *v->file, by_name);
    for (size_t i = 0; i < v->count; i++)
        if (i + 1 < v->count && strcmp(v->file[i].name, v->file[i + 1].name) == 0)
            free_file(&v->file[i]);
        else
            v->file[n++] = v->file[i];
    v->count = n;
}

/* Weights with scales become plain first where weights change their type or an adapter is merged: a
 * changed weight no longer fits its scale. GGUF has no such scales. Adapters become part of the
 * weights, but for plain low-rank terms, which the plan has. */
static fm_status make_plain(fm_view *v, const fm_view_opts *opts)
{
    size_t begin, end;

    fm_tree_range(v->tree, "adapters/", &begin, &end);
    const bool changes = opts->dtype != FM_DTYPE_NONE || begin < end;
    const bool keeps = opts->format == FM_EXPORT_HF || opts->format == FM_EXPORT_SAFETENSORS;
    if (opts->format != FM_EXPORT_GGUF && !(keeps && changes))
        return FM_OK;
    FM_TRY(fm_plain_open(&v->plain, v->tree, v->p, "export"));
    v->tree = fm_plain_tree(v->plain);
    v->p = fm_plain_provider(v->plain);
    const fm_dtype dtype = opts->mix ? FM_F32 : opts->dtype;
    FM_TRY(fm_adapted_open(&v->adapted, v->tree, v->p, FM_ADAPTED_MERGE, dtype, "export"));
    v->tree = fm_adapted_tree(v->adapted);
    v->p = fm_adapted_provider(v->adapted);
    return FM_OK;
}

static fm_status fill(fm_view *v, const fm_view_opts *opts, uint64_t shard_bytes)
{
    switch (opts->format) {
    case FM_EXPORT_SOURCE:
        return exp_source(v, NULL);
    case FM_EXPORT_HF:
        return exp_hf(v, opts->dtype, shard_bytes);
    case FM_EXPORT_SAFETENSORS:
        return exp_safetensors(v, opts->dtype);
    case FM_EXPORT_PEFT:
        return exp_peft(v, opts);
    case FM_EXPORT_GGUF:
        return exp_gguf(v, opts);
    case FM_EXPORT_GGUF_LORA:
        return exp_gguf_lora(v, opts->dtype);
    }
    return fm_fail(FM_EINVAL, "unknown export format %d", (int)opts->format);
}

fm_status exp_view_open(fm_view **out, const fm_tree *tree, const fm_provider *p,
                        const fm_view_opts *opts, uint64_t shard_bytes)
{
    const fm_dtype d = opts->dtype;

    *out = NULL;
    if (d != FM_DTYPE_NONE && d != FM_F32 && d != FM_F16 && d != FM_BF16)
        return fm_fail(FM_EINVAL, "cannot export as %s; use F32, F16 or BF16",
                       fm_dtype_get(d)->name);
    if (opts->mix &&
        (opts->format != FM_EXPORT_GGUF || d != FM_DTYPE_NONE || !ggw_mix_find(opts->mix)))
        return fm_fail(FM_EINVAL,
                       "cannot export as '%s'; a mix of block types is for GGUF, and one "
                       "of llama-quantize's: Q4_K_M, Q8_0, ...",
                       opts->mix);
    if (opts->imatrix && !opts->mix)
        return fm_fail(FM_EINVAL, "an importance matrix is for a mix of block types alone; choose "
                                  "Q4_K_M, IQ4_XS, ...");
    if (opts->format == FM_EXPORT_SOURCE && d != FM_DTYPE_NONE)
        return fm_fail(FM_EINVAL, "the bytes that came in have their own dtype; choose a format");
    fm_view *v = fm_calloc(1, sizeof *v);
    if (!v)
        return FM_ENOMEM;
    v->tree = tree;
    v->p = p;
    fm_status rc = make_plain(v, opts);
    FM_THEN(rc, fill(v, opts, shard_bytes));
    if (rc < 0) {
        fm_view_close(v);
        return rc;
    }
    sort_files(v);
    *out = v;
    return FM_OK;
}

fm_status fm_view_open(fm_view **out, const fm_tree *tree, const fm_provider *p,
                       const fm_view_opts *opts)
{
    return exp_view_open(out, tree, p, opts, FM_EXPORT_SHARD_BYTES);
}

void exp_view_release(fm_view *v)
{
    for (size_t i = 0; i < v->count; i++)
        free_file(&v->file[i]);
    fm_free(v->file);
    fm_free(v->segment);
    exp_plan_free(&v->plan);
    fm_adapted_close(v->adapted);
    fm_plain_close(v->plain);
    fm_imatrix_free(v->imatrix);
}

void fm_view_close(fm_view *v)
{
    if (v)
        exp_view_release(v);
    fm_free(v);
}

size_t fm_view_count(const fm_view *v)
{
    return v->count;
}

const fm_view_file *fm_view_at(const fm_view *v, size_t i)
{
    return &v->file[i].shown;
}

size_t fm_view_find(const fm_view *v, const char *name)
{
    size_t lo = 0, hi = v->count;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(v->file[mid].name, name);
        if (c == 0)
            return mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return SIZE_MAX;
}

/* ==== reading ============================================================================== */

fm_status exp_view_pump(const fm_view *v, size_t i, uint64_t offset, uint64_t bytes, exp_pump *m)
{
    const exp_file *f = &v->file[i];
    const uint64_t end = offset + bytes;
    size_t lo = f->first, hi = f->end;
    fm_status rc = FM_OK;

    while (lo < hi) { /* the first segment that ends after the offset */
        const size_t mid = lo + (hi - lo) / 2;
        if (v->segment[mid].at + v->segment[mid].bytes <= offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; rc == FM_OK && lo < f->end && v->segment[lo].at < end; lo++) {
        const exp_segment *s = &v->segment[lo];
        rc = exp_pump_add(m, s, FM_MAX(offset, s->at) - s->at, FM_MIN(end - s->at, s->bytes));
    }
    return rc == FM_OK ? exp_pump_flush(m) : rc;
}

typedef struct reader {
    fm_status (*fn)(void *ctx, const void *data, size_t len);
    void *ctx;
} reader;

static fm_status give(void *ctx, const void *data, size_t len)
{
    const reader *r = ctx;

    for (size_t at = 0; at < len; at += PIECE_BYTES)
        FM_TRY(r->fn(r->ctx, (const uint8_t *)data + at, FM_MIN(len - at, (size_t)PIECE_BYTES)));
    return FM_OK;
}

fm_status fm_view_read(fm_view *v, size_t i, uint64_t offset, uint64_t bytes,
                       fm_status (*fn)(void *ctx, const void *data, size_t len), void *ctx)
{
    if (i >= v->count)
        return fm_fail(FM_EINVAL, "an export of %zu files has no number %zu", v->count, i);
    const fm_view_file *f = &v->file[i].shown;
    reader r = {fn, ctx};
    exp_pump *m = NULL;

    if (offset > f->bytes || bytes > f->bytes - offset)
        return fm_fail(FM_EINVAL, "'%s' has %llu bytes; %llu from %llu on are not within", f->name,
                       (unsigned long long)f->bytes, (unsigned long long)bytes,
                       (unsigned long long)offset);
    fm_status rc = exp_pump_new(&m, v->p, bytes <= READ_ALONE_BYTES ? 1 : READ_THREADS, give, &r);
    FM_THEN(rc, exp_view_pump(v, i, offset, bytes, m));
    exp_pump_free(m);
    return rc;
}
