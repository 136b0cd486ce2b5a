/* dataset.c - a file of training data to examples: what it is, record by record, and a manifest.
 *
 * The kind is told by the content: a JSON array, lines of JSON objects, else plain text. A file
 * that begins as JSON and then breaks is an error at its line, never text. Examples in which no
 * token counts (an answer beyond the cut) are left out and listed. */
#include "train/render.h"

#include "store/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_RECORDS ((size_t)1 << 24)
#define MAX_FILE_BYTES ((size_t)1 << 31)

struct fm_dataset {
    fm_example *item;
    size_t count, cap;
    char *name;
    fm_digest digest; /* of the file's bytes */
    size_t records;
    uint64_t tokens;
    uint32_t *skipped; /* asked for */
    size_t skipped_count;
    uint32_t *empty; /* without a counted token */
    size_t empty_count, empty_cap;
};

typedef struct loader {
    fm_dataset *d;
    fmi_renderer r;
    fm_digest digest; /* of the record in hand */
} loader;

static bool is_skipped(const fm_dataset *d, size_t record)
{
    for (size_t i = 0; i < d->skipped_count; i++)
        if (d->skipped[i] == record)
            return true;
    return false;
}

/* Takes e over. */
static fm_status keep(fm_dataset *d, fm_example *e, size_t record)
{
    fmi_seq_in s = {e->ids, e->labels, e->len};
    fm_status rc;

    e->index = (uint32_t)record;
    if (fmi_seq_labels(&s) == 0) {
        fmi_example_release(e);
        rc = fm_grow(&d->empty, &d->empty_cap, d->empty_count + 1, sizeof(*d->empty));
        if (rc == FM_OK)
            d->empty[d->empty_count++] = (uint32_t)record;
        return rc;
    }
    rc = fm_grow(&d->item, &d->cap, d->count + 1, sizeof(*d->item));
    if (rc < 0) {
        fmi_example_release(e);
        return rc;
    }
    d->tokens += e->len;
    d->item[d->count++] = *e;
    return FM_OK;
}

static fm_status add_record(loader *l, const fm_json *record)
{
    fm_example e;
    fm_buf canonical;
    fm_digest digest;
    size_t number = l->d->records++;

    if (is_skipped(l->d, number))
        return FM_OK;
    if (l->d->records > MAX_RECORDS)
        return fm_fail(FM_ELIMIT, "%s: more than %zu records", l->r.what, MAX_RECORDS);
    fm_status rc = fmi_render_record(&e, &l->r, record, number);
    if (rc < 0)
        return rc;
    fm_buf_init(&canonical, 0);
    rc = fm_json_write(&canonical, record, FM_JSON_CANONICAL);
    if (rc == FM_OK)
        rc = fm_sha256(&digest, canonical.data, canonical.len);
    fm_buf_release(&canonical);
    if (rc < 0) {
        fmi_example_release(&e);
        return rc;
    }
    e.digest = digest;
    return keep(l->d, &e, number);
}

static fm_status load_array(loader *l, fm_span bytes)
{
    fm_json *root = NULL;
    fm_status rc = fm_json_parse(&root, bytes, l->r.what);

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(root); i++)
        rc = add_record(l, fm_json_at(root, i));
    fm_json_free(root);
    return rc;
}

/* Bytes of blank in front of s. */
static size_t leading_blank(fm_span s)
{
    size_t n = 0;

    while (n < s.len &&
           (s.data[n] == ' ' || s.data[n] == '\t' || s.data[n] == '\r' || s.data[n] == '\n'))
        n++;
    return n;
}

static fm_status load_lines(loader *l, fm_span bytes)
{
    fm_status rc = FM_OK;
    size_t number = 0;
    char where[256];

    for (size_t at = 0; at < bytes.len && rc == FM_OK;) {
        const uint8_t *end = memchr(bytes.data + at, '\n', bytes.len - at);
        size_t len = end ? (size_t)(end - (bytes.data + at)) : bytes.len - at;
        fm_span line = fm_span_of(bytes.data + at, len);
        fm_json *record = NULL;
        at += len + 1;
        number++;
        if (leading_blank(line) == line.len)
            continue;
        (void)snprintf(where, sizeof(where), "%.200s, line %zu of the file", l->r.what, number);
        rc = fm_json_parse(&record, line, where);
        if (rc == FM_OK)
            rc = add_record(l, record);
        fm_json_free(record);
    }
    return rc;
}

static fm_status load_text(loader *l, fm_span bytes)
{
    fm_ids ids = {0};
    fm_status rc = fm_tokenizer_encode(l->r.tok, bytes, false, &ids);

    if (rc < 0)
        rc = fm_error_prefix(rc, "%s", l->r.what);
    for (size_t at = 0; at < ids.count && rc == FM_OK; at += l->r.max_tokens) {
        size_t n = FM_MIN(ids.count - at, l->r.max_tokens);
        size_t number = l->d->records++;
        fm_example e;
        if (is_skipped(l->d, number))
            continue;
        rc = fmi_render_block(&e, &l->r, ids.id + at, n);
        if (rc == FM_OK)
            rc = keep(l->d, &e, number);
    }
    fm_ids_release(&ids);
    return rc;
}

/* A lone object over several lines is an array of one. */
static fm_status load_objects(loader *l, fm_span bytes)
{
    fm_json *whole = NULL;

    if (memchr(bytes.data, '\n', bytes.len) && fm_json_parse(&whole, bytes, l->r.what) == FM_OK) {
        fm_status rc = add_record(l, whole);
        fm_json_free(whole);
        return rc;
    }
    return load_lines(l, bytes);
}

static fm_status load(loader *l, fm_span bytes)
{
    if (bytes.len >= 3 && memcmp(bytes.data, "\xEF\xBB\xBF", 3) == 0)
        bytes = fm_span_of(bytes.data + 3, bytes.len - 3);
    size_t at = leading_blank(bytes);
    if (at == bytes.len)
        return fm_fail(FM_EINVAL, "%s: is empty; training needs at least one example", l->r.what);
    fm_status rc;
    if (bytes.data[at] == '[')
        rc = load_array(l, bytes);
    else if (bytes.data[at] == '{')
        rc = load_objects(l, bytes);
    else
        rc = load_text(l, bytes);
    if (rc == FM_OK && l->d->count == 0)
        rc = fm_fail(FM_EINVAL,
                     "%s: no example is left: of %zu records %zu were skipped and %zu have no "
                     "token to learn within %" PRIu32 " tokens",
                     l->r.what, l->d->records, l->d->skipped_count, l->d->empty_count,
                     l->r.max_tokens);
    return rc;
}

static fm_status dataset_new(fm_dataset **out, fm_span bytes, const char *what,
                             const uint32_t *skip, size_t skip_count)
{
    fm_dataset *d = fm_calloc(1, sizeof(*d));
    fm_status rc = d ? fm_sha256(&d->digest, bytes.data, bytes.len) : FM_ENOMEM;

    *out = d;
    if (rc < 0)
        return rc;
    d->name = fm_strdup(what);
    d->skipped = fm_calloc(skip_count, sizeof(*skip));
    if (!d->name || !d->skipped)
        return FM_ENOMEM;
    if (skip_count > 0)
        memcpy(d->skipped, skip, skip_count * sizeof(*skip));
    d->skipped_count = skip_count;
    return FM_OK;
}

fm_status fm_dataset_open(fm_dataset **out, fm_span bytes, const char *what,
                          const fm_tokenizer *tok, const fm_chat_template *chat,
                          const fm_train_config *c, const uint32_t *skip, size_t skip_count)
{
    loader l = {.r = {.tok = tok,
                      .chat = chat,
                      .max_tokens = c->max_tokens,
                      .answers_only = c->answers_only,
                      .what = what}};
    fm_status rc;

    *out = NULL;
    if (!tok)
        return fm_fail(FM_EUNSUPPORTED, "%s: the model has no tokenizer to read it with", what);
    if (bytes.len > MAX_FILE_BYTES)
        return fm_fail(FM_ELIMIT, "%s: %zu bytes of data, the limit is %zu", what, bytes.len,
                       MAX_FILE_BYTES);
    if (c->max_tokens < 2)
        return fm_fail(FM_EINVAL, "training option max_tokens must be at least 2");
    rc = dataset_new(&l.d, bytes, what, skip, skip_count);
    if (rc == FM_OK && chat)
        rc = fm_chat_extra_new(&l.r.extra, tok);
    if (rc == FM_OK)
        rc = load(&l, bytes);
    fm_json_free(l.r.extra);
    if (rc < 0) {
        fm_dataset_close(l.d);
        return rc;
    }
    *out = l.d;
    return FM_OK;
}

void fm_dataset_close(fm_dataset *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->count; i++)
        fmi_example_release(&d->item[i]);
    fm_free(d->item);
    fm_free(d->name);
    fm_free(d->skipped);
    fm_free(d->empty);
    fm_free(d);
}

size_t fm_dataset_count(const fm_dataset *d)
{
    return d->count;
}

const fm_example *fm_dataset_at(const fm_dataset *d, size_t i)
{
    return i < d->count ? &d->item[i] : NULL;
}

static fm_json *numbers(const uint32_t *v, size_t n)
{
    fm_json *a = fm_json_new_array();

    for (size_t i = 0; a && i < n; i++) {
        if (fm_json_push(a, fm_json_new_int((int64_t)v[i])) < 0) {
            fm_json_free(a);
            return NULL;
        }
    }
    return a;
}

fm_json *fm_dataset_manifest(const fm_dataset *d)
{
    char hex[FM_HEX_CHARS + 1];
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    fm_digest_hex(&d->digest, hex);
    if (rc == FM_OK)
        rc = fm_json_set(o, "name", fm_json_new_str(d->name));
    if (rc == FM_OK)
        rc = fm_json_set(o, "sha256", fm_json_new_str(hex));
    if (rc == FM_OK)
        rc = fm_json_set(o, "records", fm_json_new_int((int64_t)d->records));
    if (rc == FM_OK)
        rc = fm_json_set(o, "used", fm_json_new_int((int64_t)d->count));
    if (rc == FM_OK)
        rc = fm_json_set(o, "tokens", fm_json_new_int((int64_t)d->tokens));
    if (rc == FM_OK)
        rc = fm_json_set(o, "skipped", numbers(d->skipped, d->skipped_count));
    if (rc == FM_OK)
        rc = fm_json_set(o, "without_target", numbers(d->empty, d->empty_count));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}
