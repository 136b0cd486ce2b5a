/* gguf_source.c - a GGUF, or the parts into which one was split, as a source.
 *
 * Blocks keep their bytes; rotary rows are whole rows of blocks, so putting them back in Hugging
 * Face's order moves bytes and changes none. A file that has no words of Hugging Face's (an unknown
 * architecture, setting or type) is kept under its own names, without model.json: it is stored and
 * given back, shares its tensors with its copies, and does not run. */
#include "store/import/gguf_canon.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FM_GGUF_MAX_PARTS 1024u

typedef struct opened {
    gguf_parts parts;
    src_file *file[FM_GGUF_MAX_PARTS];
    fm_gguf *g[FM_GGUF_MAX_PARTS];
} opened;

/* ---- the parts ---- */

static fm_status parse_part(opened *o, fm_source *src, const char *dir, const char *name)
{
    src_file *f = NULL;
    FM_TRY(src_add_file(&f, src, dir, name));
    const char *what = dir ? f->name : src->path;
    FM_TRY(fm_gguf_parse(&o->g[o->parts.count], fm_span_of(f->map.data, f->map.len), what));
    o->file[o->parts.count++] = f;
    return FM_OK;
}

static fm_status split_place(const fm_gguf *g, uint64_t *no, uint64_t *count)
{
    bool found = false;

    *no = 0;
    *count = 1;
    FM_TRY(fm_gguf_u64(g, "split.count", count, &found));
    FM_TRY(fm_gguf_u64(g, "split.no", no, &found));
    if (*count > FM_GGUF_MAX_PARTS || *no >= FM_MAX(*count, (uint64_t)1))
        return fm_fail(FM_ECORRUPT,
                       "%s: fields 'split.no' %" PRIu64 " and 'split.count' %" PRIu64
                       " name no part of at most %u",
                       fm_gguf_what(g), *no, *count, FM_GGUF_MAX_PARTS);
    return FM_OK;
}

/* Adds parts 2 to count, which lie beside the first: "x-00001-of-00003.gguf". */
static fm_status add_parts(opened *o, fm_source *src, uint64_t count)
{
    const char *base = fm_path_base(src->path);
    const size_t len = strlen(base), dir_len = (size_t)(base - src->path);
    char end[40];
    const int n = snprintf(end, sizeof end, "-00001-of-%05" PRIu64 ".gguf", count);
    char *dir = dir_len ? fm_strndup(src->path, dir_len) : fm_strdup(".");
    fm_status rc = dir ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && (len < (size_t)n || strcmp(base + len - (size_t)n, end) != 0))
        rc =
            fm_fail(FM_EINVAL,
                    "%s: is one of %" PRIu64 " parts, which are found by their names: let this one "
                    "end in '%s'",
                    src->path, count, end);
    FM_THEN(rc, src_find_bounds(src, dir));
    for (uint64_t i = 2; rc == FM_OK && i <= count; i++) {
        char *name = fm_asprintf("%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)(len - (size_t)n),
                                 base, i, count);
        char *path = name ? fm_path_join(dir, name) : NULL;
        uint64_t no = 0, of = 0;
        rc = path ? FM_OK : FM_ENOMEM;
        if (rc == FM_OK && !fm_path_exists(path))
            rc = fm_fail(FM_ENOTFOUND, "%s: is missing beside %s", path, base);
        FM_THEN(rc, parse_part(o, src, dir, name));
        FM_THEN(rc, split_place(o->g[o->parts.count - 1], &no, &of));
        if (rc == FM_OK && (no != i - 1 || of != count))
            rc = fm_fail(FM_ECORRUPT, "%s: says that it is part %" PRIu64 " of %" PRIu64, path,
                         no + 1, of);
        fm_free(path);
        fm_free(name);
    }
    fm_free(dir);
    return rc;
}

static fm_status open_parts(opened *o, fm_source *src)
{
    uint64_t no = 0, count = 1;

    o->parts.g = o->g;
    FM_TRY(parse_part(o, src, NULL, fm_path_base(src->path)));
    FM_TRY(split_place(o->g[0], &no, &count));
    if (no > 0)
        return fm_fail(FM_EINVAL,
                       "%s: is part %" PRIu64 " of %" PRIu64
                       "; import the first, with the others beside it",
                       src->path, no + 1, count);
    if (count < 2)
        return FM_OK;
    src->single = false;
    return add_parts(o, src, count);
}

/* ---- bytes ---- */

/* Under the tensor's own name. */
static fm_status keep_tensor(fm_source *src, src_file *f, const fm_gguf *g, const fm_gguf_tensor *t)
{
    return src_add_tensor(src, f, "tensors", t->name, t->dtype, &t->shape, fm_gguf_bytes(g, t),
                          (src_order){0, 0});
}

/* One of the floats is subtracted from each, as Hugging Face has them; the file's own are kept as
 * they are, because adding it again may round. */
static fm_status add_minus_1(fm_source *src, src_file *f, const char *name, fm_span bytes,
                             const fm_shape *shape)
{
    src_tensor t = {.name = name, .dtype = FM_F32, .shape = *shape};
    uint8_t *copy = fm_arena_alloc(src->arena, bytes.len + 1);

    if (!copy)
        return FM_ENOMEM;
    for (size_t i = 0; i + 4 <= bytes.len; i += 4) {
        float v;
        memcpy(&v, bytes.data + i, sizeof v);
        v -= 1.0f;
        memcpy(copy + i, &v, sizeof v);
    }
    t.piece = src_new_piece(src, fm_span_of(copy, bytes.len));
    if (!t.piece)
        return FM_ENOMEM;
    FM_TRY(src_queue_tensor(src, "tensors", &t));
    return src_add_literal(src, f, bytes);
}

static fm_status add_named(fm_source *src, src_file *f, const gguf_dims *d, const fm_gguf *g,
                           const fm_gguf_tensor *t, const gguf_use *use)
{
    const fm_span all = fm_gguf_bytes(g, t);
    const uint32_t count = FM_MAX(use->experts, 1u);
    const size_t bytes = all.len / count;
    fm_shape shape = t->shape;
    fm_buf name;
    fm_status rc = FM_OK;

    if (use->experts > 0) {
        shape.rank--;
        memmove(shape.dim, shape.dim + 1, shape.rank * sizeof shape.dim[0]);
    }
    fm_buf_init(&name, 0);
    for (uint32_t i = 0; rc == FM_OK && i < count; i++) {
        const fm_span part = fm_span_of(all.data + i * bytes, bytes);
        fm_buf_clear(&name);
        rc = gguf_hf_name(&name, d, t, i);
        if (rc == FM_OK && use->minus_1)
            rc = add_minus_1(src, f, fm_buf_cstr(&name), part, &shape);
        else if (rc == FM_OK)
            rc = src_add_tensor(src, f, "tensors", fm_buf_cstr(&name), t->dtype, &shape, part,
                                use->order);
    }
    fm_buf_release(&name);
    return rc;
}

/* d NULL: the file is kept as it is. */
static fm_status add_tensor(fm_source *src, src_file *f, const gguf_dims *d, const fm_gguf *g,
                            const fm_gguf_tensor *t)
{
    gguf_use use;

    if (!d)
        return keep_tensor(src, f, g, t);
    FM_TRY(gguf_use_of(&use, d, g, t));
    return use.no_weight ? src_add_literal(src, f, fm_gguf_bytes(g, t))
                         : add_named(src, f, d, g, t, &use);
}

/* Adds the head in front of the tensors. A long array (the vocabulary) becomes an object of its
 * own: it is the same in every quantized copy of a model, and stored once. */
static fm_status add_head(fm_source *src, src_file *f, const fm_gguf *g, uint64_t end)
{
    uint64_t at = 0;

    for (size_t i = 0; i < fm_gguf_kv_count(g); i++) {
        const fm_gguf_kv *kv = fm_gguf_kv_at(g, i);
        uint64_t from = (uint64_t)(kv->data.data - f->map.data);
        if (kv->type != FM_GGUF_ARRAY || kv->data.len <= FM_INLINE_MAX_BYTES || from < at)
            continue;
        FM_TRY(src_add_literal(src, f, fm_span_of(f->map.data + at, (size_t)(from - at))));
        at = from + kv->data.len;
        FM_TRY(src_add_segment(src, f, from, at));
    }
    return src_add_literal(src, f, fm_span_of(f->map.data + at, (size_t)(end - at)));
}

/* Adds the tensors and the bytes between them. */
static fm_status add_file(fm_source *src, src_file *f, const gguf_dims *d, const fm_gguf *g)
{
    uint64_t at = fm_gguf_count(g) > 0 ? fm_gguf_at(g, 0)->at : f->map.len;

    f->first_tensor = src->tensor_count;
    FM_TRY(add_head(src, f, g, at));
    for (size_t i = 0; i < fm_gguf_count(g); i++) {
        const fm_gguf_tensor *t = fm_gguf_at(g, i);
        FM_TRY(src_add_literal(src, f, fm_span_of(f->map.data + at, (size_t)(t->at - at))));
        FM_TRY(add_tensor(src, f, d, g, t));
        at = t->at + t->bytes;
    }
    f->end_tensor = src->tensor_count;
    return src_add_literal(src, f, fm_span_of(f->map.data + at, f->map.len - (size_t)at));
}

static fm_status add_files(fm_source *src, const opened *o, const gguf_dims *d)
{
    for (size_t i = 0; i < o->parts.count; i++)
        FM_TRY(add_file(src, o->file[i], d, o->g[i]));
    return FM_OK;
}

/* ---- what it means ---- */

static fm_status put_model(fm_source *src, const gguf_dims *d, const fm_gguf *g)
{
    fm_json *config = NULL, *model = fm_json_new_object();
    fm_status rc = model ? gguf_config(&config, d, g) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(model, "format", fm_json_new_int(1)));
    FM_THEN(rc, fm_json_set(model, "architecture", fm_json_ref(fm_json_get(config, "model_type"))));
    FM_THEN(rc, fm_json_set(model, "config", fm_json_ref(config)));
    FM_THEN(rc, src_put_json(src, "model.json", model, FM_JSON_PRETTY));
    fm_json_free(config);
    fm_json_free(model);
    return rc;
}

static fm_status check_names(const opened *o, const gguf_dims *d)
{
    gguf_use use;

    for (size_t p = 0; p < o->parts.count; p++)
        for (size_t i = 0; i < fm_gguf_count(o->g[p]); i++)
            FM_TRY(gguf_use_of(&use, d, o->g[p], fm_gguf_at(o->g[p], i)));
    return FM_OK;
}

/* Puts what the metadata say into Hugging Face's words. FM_EUNSUPPORTED: it has none; some of them
 * may have been put. */
static fm_status translate(fm_source *src, const opened *o, gguf_dims *d)
{
    for (size_t i = 0; i < o->parts.count; i++)
        if (fm_gguf_opaque(o->g[i]))
            return fm_fail(FM_EUNSUPPORTED, "%s: %s", fm_gguf_what(o->g[i]),
                           fm_gguf_opaque(o->g[i]));
    FM_TRY(gguf_read_dims(d, &o->parts));
    FM_TRY(check_names(o, d));
    FM_TRY(put_model(src, d, o->g[0]));
    FM_TRY(gguf_pooling(src, d, o->g[0]));
    return gguf_tokenizer(src, o->g[0]);
}

/* The tokenizer of a file that is kept; one that is unknown here is left to the file. */
static fm_status keep_tokenizer(fm_source *src, const fm_gguf *g)
{
    const fm_status rc = gguf_tokenizer(src, g);

    if (rc != FM_EUNSUPPORTED)
        return rc;
    fm_error_clear();
    return FM_OK;
}

/* Keeps the files as they are, for the reason in the last error's text. A vocabulary alone serves
 * to tokenize. */
static fm_status keep(fm_source *src, const opened *o, bool vocabulary)
{
    const char *why = fm_error_text(), *what = fm_gguf_what(o->g[0]);
    const size_t n = strlen(what);

    if (strncmp(why, what, n) == 0 && strncmp(why + n, ": ", 2) == 0)
        why += n + 2; /* where the file lay is no part of the version */
    src->kept = src_strdup(src, why);
    fm_error_clear();
    if (!src->kept)
        return FM_ENOMEM;
    fm_tree_free(src->tree); /* what was translated before that came up */
    src->tree = NULL;
    FM_TRY(fm_tree_new(&src->tree));
    if (vocabulary)
        FM_TRY(keep_tokenizer(src, o->g[0]));
    return add_files(src, o, NULL);
}

static bool has_tensors(const opened *o)
{
    for (size_t i = 0; i < o->parts.count; i++)
        if (fm_gguf_count(o->g[i]) > 0)
            return true;
    return false;
}

/* Without its parent it has no words of Hugging Face's. */
static fm_status open_adapter(fm_source *src, const opened *o)
{
    if (src->parent && o->parts.count > 1)
        return fm_fail(FM_EUNSUPPORTED, "%s: an adapter in several parts is not read; join them",
                       src->path);
    if (src->parent)
        return gguf_open_lora(src, o->file[0], o->g[0]);
    fm_ignore(fm_fail(FM_EUNSUPPORTED, "it is an adapter; import it with --parent REV to put it on "
                                       "the model that it was made for"),
              "it is told with the version");
    return keep(src, o, false);
}

fm_status src_open_gguf(fm_source *src)
{
    opened *o = fm_calloc(1, sizeof *o);
    gguf_dims d;
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    src->kind = FM_SOURCE_GGUF;
    FM_THEN(rc, open_parts(o, src));
    if (rc == FM_OK && gguf_is_adapter(o->g[0])) {
        rc = open_adapter(src, o);
    } else if (rc == FM_OK) {
        const bool vocabulary = !has_tensors(o);
        rc = vocabulary ? fm_fail(FM_EUNSUPPORTED, "it has no tensors") : translate(src, o, &d);
        if (rc == FM_OK)
            rc = add_files(src, o, &d);
        else if (rc == FM_EUNSUPPORTED)
            rc = keep(src, o, vocabulary);
    }
    for (size_t i = 0; o && i < o->parts.count; i++)
        fm_gguf_close(o->g[i]);
    fm_free(o);
    return rc;
}
