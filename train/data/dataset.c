/* dataset.c - turns files of training data into examples, record by record, and writes a manifest.
 *
 * A file that begins as JSON and then breaks is an error with the line, and is never taken as text.
 * Examples in which no token counts (an answer beyond the cut) are left out and listed. Which
 * examples are held out is a function of the seed and the record alone: neither its place nor its
 * neighbours matter, and all copies of a record are on one side. */
#include "train/data/dataset.h"

#include "store/base/mem.h"
#include "store/base/math/rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RECORDS ((size_t)1 << 24)
#define MAX_FILE_BYTES ((size_t)1 << 31)
#define MAX_FILES 1024u

typedef struct loader {
    fm_dataset *d;
    fmt_data_file *f; /* the current file */
    uint32_t file;
    fmt_renderer r;
    double eval_share;
    uint64_t seed, stream;
} loader;

/* ---- records ---- */
static fm_status push_number(fmt_numbers *list, size_t number)
{
    FM_TRY(fm_grow(&list->item, &list->cap, list->count + 1, sizeof(*list->item)));

    list->item[list->count++] = (uint32_t)number;
    return FM_OK;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool is_skipped(const fmt_data_file *f, size_t record)
{
    uint32_t n = (uint32_t)record;
    return f->skipped.count > 0 &&
           bsearch(&n, f->skipped.item, f->skipped.count, sizeof(n), by_number) != NULL;
}

static bool without_target(const fm_example *e, fmt_kind kind)
{
    fmt_seq_in s = {e->ids, e->labels, e->part_len[0]};

    for (uint32_t i = 0; i < e->parts; i++)
        if (e->part_len[i] == 0)
            return true;
    if (kind == FMT_KIND_PAIR || kind == FMT_KIND_CLASS)
        return false;
    if (fmt_seq_labels(&s) == 0)
        return true;
    if (kind != FMT_KIND_PREFERENCE)
        return false;
    fmt_seq_in t = {e->ids + s.len, e->labels + s.len, e->part_len[1]};
    bool same = s.len == t.len && memcmp(s.ids, t.ids, s.len * sizeof(*s.ids)) == 0;
    return same || fmt_seq_labels(&t) == 0;
}

static bool is_held_out(const loader *l, const fm_digest *digest)
{
    if (l->f->held_out || l->eval_share <= 0.0)
        return l->f->held_out;
    return fm_rng_uniform(l->seed, l->stream, fm_get_u64(digest->b)) < l->eval_share;
}

static fm_status push_example(fmt_examples *list, fm_example *e, const fmt_render_info *info)
{
    fm_status rc = fm_grow(&list->item, &list->cap, list->count + 1, sizeof(*list->item));

    FM_THEN(rc, fm_grow(&list->info, &list->info_cap, list->count + 1, sizeof(*list->info)));
    if (rc < 0) {
        fmt_example_release(e);
        return rc;
    }
    list->item[list->count] = *e;
    list->info[list->count++] = *info;
    return FM_OK;
}

/* Takes ownership of e. */
static fm_status keep(loader *l, fm_example *e, const fmt_render_info *info)
{
    fmt_data_file *f = l->f;

    e->file = l->file;
    if (f->kind == FMT_KIND_NONE)
        f->kind = info->kind;
    if (without_target(e, info->kind)) {
        uint32_t number = e->index;
        fmt_example_release(e);
        return push_number(&f->empty, number);
    }
    if (is_held_out(l, &e->digest)) {
        fm_status rc = push_number(&f->held, e->index);
        if (rc == FM_OK)
            return push_example(&l->d->held, e, info);
        fmt_example_release(e);
        return rc;
    }
    f->used++;
    f->tokens += e->len;
    return push_example(&l->d->train, e, info);
}

static fm_status next_number(loader *l, size_t *number)
{
    *number = l->f->records++;
    if (l->f->records > MAX_RECORDS)
        return fm_fail(FM_ELIMIT, "%s: more than %zu records", l->r.what, MAX_RECORDS);
    return FM_OK;
}

static fm_status add_record(void *ctx, const fm_json *record)
{
    loader *l = ctx;
    fm_example e;
    fmt_render_info info;
    fm_buf canonical;
    size_t number;
    uint32_t label = 0;
    fm_status rc = next_number(l, &number);

    /* Also for records that are left out, since leaving them out must not renumber the classes. */
    if (rc == FM_OK && fmt_kind_of(record, l->r.objective) == FMT_KIND_CLASS)
        rc = fmt_label_of(&label, l->d, record, l->r.what, number);
    if (rc < 0 || is_skipped(l->f, number))
        return rc;
    FM_TRY(fmt_render_record(&e, &info, &l->r, record, number));
    info.label = label;
    fm_buf_init(&canonical, 0);
    rc = fm_json_write(&canonical, record, FM_JSON_CANONICAL);
    FM_THEN(rc, fm_sha256(&e.digest, canonical.data, canonical.len));
    fm_buf_release(&canonical);
    if (rc < 0) {
        fmt_example_release(&e);
        return rc;
    }
    return keep(l, &e, &info);
}

/* ---- formats ---- */
static fm_status load_array(loader *l, fm_span bytes)
{
    fm_json *root = NULL;
    fm_status rc = fm_json_parse(&root, bytes, l->r.what);

    for (size_t i = 0; rc == FM_OK && i < fm_json_count(root); i++)
        rc = add_record(l, fm_json_at(root, i));
    fm_json_free(root);
    return rc;
}

/* Length of the white space at the beginning of s. */
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
        FM_THEN(rc, add_record(l, record));
        fm_json_free(record);
    }
    return rc;
}

static fm_status load_text(loader *l, fm_span bytes)
{
    fm_ids ids = {0};
    bool fits = l->r.objective == FM_OBJECTIVE_NEXT_TOKEN || l->r.objective == FM_OBJECTIVE_DISTILL;

    if (!fits)
        return fm_fail(FM_EINVAL,
                       "%s: is plain text, which the training option objective cannot use as set; "
                       "give records (JSON, JSONL or CSV), or train with objective=next_token",
                       l->r.what);
    fm_status rc = fm_tokenizer_encode(l->r.tok, bytes, false, &ids);
    if (rc < 0)
        rc = fm_error_prefix(rc, "%s", l->r.what);
    for (size_t at = 0; at < ids.count && rc == FM_OK; at += l->r.max_tokens) {
        size_t n = FM_MIN(ids.count - at, l->r.max_tokens);
        size_t number;
        fm_example e;
        fmt_render_info info;
        rc = next_number(l, &number);
        if (rc < 0 || is_skipped(l->f, number))
            continue;
        rc = fmt_render_block(&e, &info, &l->r, ids.id + at, n, number);
        FM_THEN(rc, keep(l, &e, &info));
    }
    fm_ids_release(&ids);
    return rc;
}

/* Loads objects one a line; a single object over several lines is one record. */
static fm_status load_objects(loader *l, fm_span bytes)
{
    fm_json *whole = NULL;
    bool lines = memchr(bytes.data, '\n', bytes.len) != NULL;
    fm_status rc = lines ? fm_json_parse(&whole, bytes, l->r.what) : FM_ECORRUPT;

    if (rc == FM_OK)
        rc = add_record(l, whole);
    else if (rc != FM_ENOMEM)
        rc = load_lines(l, bytes);
    fm_json_free(whole);
    return rc;
}

static bool is_named(const char *what, const char *ending)
{
    size_t n = strlen(what);
    size_t m = strlen(ending);
    return n > m && strcmp(what + n - m, ending) == 0;
}

/* Whether a file named .txt holds records: its first line, or the whole file, must be JSON. */
static fm_status reads_as_json(bool *json, fm_span bytes)
{
    const uint8_t *end = memchr(bytes.data, '\n', bytes.len);
    fm_span line = fm_span_of(bytes.data, end ? (size_t)(end - bytes.data) : bytes.len);
    fm_json *v = NULL;
    fm_status rc = fm_json_parse(&v, line, "text");

    if (rc < 0 && rc != FM_ENOMEM)
        rc = fm_json_parse(&v, bytes, "text");
    *json = rc == FM_OK;
    fm_json_free(v);
    return rc == FM_ENOMEM ? rc : FM_OK; /* any other error means that the file is text */
}

/* Finds the format. bytes do not begin with white space. */
static fm_status tell_format(fmt_data_file *f, fm_span bytes, const char *what)
{
    bool json = bytes.data[0] == '[' || bytes.data[0] == '{';
    bool table = is_named(what, ".csv") || is_named(what, ".tsv");
    fm_status rc = FM_OK;

    f->format = FMT_FORMAT_TEXT;
    f->separator = is_named(what, ".tsv") ? '\t' : ',';
    if (!json && (is_named(what, ".json") || is_named(what, ".jsonl")))
        return fm_fail(FM_EINVAL,
                       "%s: is named as JSON, but begins with neither '{' nor '['; rename it to "
                       ".txt to train on it as text",
                       what);
    if (json && is_named(what, ".txt"))
        rc = reads_as_json(&json, bytes);
    if (rc == FM_OK && json && !table) {
        f->format = bytes.data[0] == '[' ? FMT_FORMAT_JSON : FMT_FORMAT_JSONL;
        return FM_OK;
    }
    if (rc == FM_OK && !table && !is_named(what, ".txt")) {
        rc = fmt_csv_header(&table, bytes, ',');
        if (rc == FM_OK && !table) {
            f->separator = '\t';
            rc = fmt_csv_header(&table, bytes, '\t');
        }
    }
    if (table)
        f->format = FMT_FORMAT_TABLE;
    return rc;
}

static fm_status load_file(loader *l, fm_span bytes)
{
    const char *what = l->r.what;

    if (bytes.len > MAX_FILE_BYTES)
        return fm_fail(FM_ELIMIT, "%s: %zu bytes of data, the limit is %zu", what, bytes.len,
                       MAX_FILE_BYTES);
    if (bytes.len >= 3 && memcmp(bytes.data, "\xEF\xBB\xBF", 3) == 0)
        bytes = fm_span_of(bytes.data + 3, bytes.len - 3);
    size_t at = leading_blank(bytes);
    if (at == bytes.len)
        return fm_fail(FM_EINVAL, "%s: is empty; training needs at least one example", what);
    fm_status rc = tell_format(l->f, fm_span_of(bytes.data + at, bytes.len - at), what);
    if (rc < 0)
        return rc;
    switch (l->f->format) {
    case FMT_FORMAT_JSON:
        rc = load_array(l, bytes);
        break;
    case FMT_FORMAT_JSONL:
        rc = load_objects(l, bytes);
        break;
    case FMT_FORMAT_TABLE:
        rc = fmt_csv_records(bytes, l->f->separator, what, &(fmt_record_sink){l, add_record});
        break;
    case FMT_FORMAT_TEXT:
        rc = load_text(l, bytes);
        break;
    }
    size_t skips = l->f->skipped.count;
    if (rc == FM_OK && skips > 0 && l->f->skipped.item[skips - 1] >= l->f->records)
        rc = fm_fail(FM_EINVAL,
                     "%s: skip names record %" PRIu32 ", but there are %zu, counted from 0", what,
                     l->f->skipped.item[skips - 1], l->f->records);
    return rc;
}

/* ---- the data set ---- */
static fm_status copy_text(char **out, const char *s)
{
    *out = s ? fm_strdup(s) : NULL;
    return s && !*out ? FM_ENOMEM : FM_OK;
}

static fm_status file_init(fmt_data_file *f, const fm_data_file *from)
{
    fm_status rc = fm_sha256(&f->digest, from->bytes.data, from->bytes.len);

    f->weight = from->weight;
    f->held_out = from->held_out;
    FM_THEN(rc, copy_text(&f->name, from->what));
    FM_THEN(rc, copy_text(&f->licence, from->licence));
    FM_THEN(rc, copy_text(&f->source, from->source));
    FM_THEN(rc, copy_text(&f->split, from->split));
    for (size_t i = 0; i < from->skip_count && rc == FM_OK; i++)
        rc = push_number(&f->skipped, from->skip[i]);
    if (rc == FM_OK && f->skipped.count > 0)
        qsort(f->skipped.item, f->skipped.count, sizeof(*f->skipped.item), by_number);
    return rc;
}

static fm_status check_files(const fm_data_file *file, size_t n, const fm_tokenizer *tok,
                             const fm_train_config *c, double eval_share)
{
    if (n == 0 || n > MAX_FILES)
        return fm_fail(FM_EINVAL, "training data are 1 to %u files, not %zu", MAX_FILES, n);
    if (!tok)
        return fm_fail(FM_EUNSUPPORTED, "%s: the model has no tokenizer to read it with",
                       file[0].what);
    if (c->max_tokens < 2)
        return fm_fail(FM_EINVAL, "training option max_tokens must be at least 2");
    if (!(eval_share >= 0.0 && eval_share < 1.0))
        return fm_fail(FM_EINVAL,
                       "eval: the share to hold out must be from 0 up to below 1, not %g",
                       eval_share);
    for (size_t i = 0; i < n; i++)
        if (!file[i].held_out && !(file[i].weight >= 0.001 && file[i].weight <= 1000.0))
            return fm_fail(FM_EINVAL, "%s: weight %g is not between 0.001 and 1000", file[i].what,
                           file[i].weight);
    return FM_OK;
}

static fm_status nothing_left(const fm_dataset *d, uint32_t max_tokens)
{
    size_t records = 0;
    size_t skipped = 0;
    size_t empty = 0;

    for (size_t i = 0; i < d->files; i++) {
        records += d->file[i].records;
        skipped += d->file[i].skipped.count;
        empty += d->file[i].empty.count;
    }
    return fm_fail(FM_EINVAL,
                   "%s: no example is left: of %zu records %zu were skipped, %zu have no token to "
                   "learn within %" PRIu32 " tokens, %zu are held out",
                   d->file[0].name, records, skipped, empty, max_tokens, d->held.count);
}

static fm_status load_all(loader *l, const fm_data_file *file, const fm_train_config *c)
{
    fm_dataset *d = l->d;

    for (uint32_t i = 0; i < d->files; i++) {
        l->f = &d->file[i];
        l->file = i;
        l->r.what = file[i].what;
        FM_TRY(load_file(l, file[i].bytes));
    }
    if (d->train.count == 0)
        FM_TRY(nothing_left(d, c->max_tokens));
    if (d->objective == FM_OBJECTIVE_CLASSIFY)
        FM_TRY(fmt_settle_classes(d, c->classes));
    return FM_OK;
}

fm_status fm_dataset_open_files(fm_dataset **out, const fm_data_file *file, size_t files,
                                const fm_tokenizer *tok, const fm_chat_template *chat,
                                const fm_train_config *c, double eval_share)
{
    loader l = {.r = {.tok = tok,
                      .chat = chat,
                      .max_tokens = c->max_tokens,
                      .answers_only = c->answers_only,
                      .objective = c->objective},
                .eval_share = eval_share,
                .seed = c->seed};

    *out = NULL;
    FM_TRY(check_files(file, files, tok, c, eval_share));
    l.d = fm_calloc(1, sizeof(*l.d));
    if (!l.d)
        return FM_ENOMEM;
    l.d->objective = c->objective;
    l.d->eval_share = eval_share;
    l.d->labels = fm_json_new_object();
    l.d->file = fm_calloc(files, sizeof(*l.d->file));
    fm_status rc = l.d->labels && l.d->file ? fmt_stream(&l.stream, "held-out", "") : FM_ENOMEM;
    for (; rc == FM_OK && l.d->files < files; l.d->files++)
        rc = file_init(&l.d->file[l.d->files], &file[l.d->files]);
    if (rc == FM_OK && chat)
        rc = fm_chat_extra_new(&l.r.extra, tok);
    FM_THEN(rc, load_all(&l, file, c));
    fm_json_free(l.r.extra);
    if (rc < 0) {
        fm_dataset_close(l.d);
        return rc;
    }
    *out = l.d;
    return FM_OK;
}

fm_status fm_dataset_open(fm_dataset **out, fm_span bytes, const char *what,
                          const fm_tokenizer *tok, const fm_chat_template *chat,
                          const fm_train_config *c, const uint32_t *skip, size_t skip_count)
{
    fm_data_file f = {
        .bytes = bytes, .what = what, .weight = 1.0, .skip = skip, .skip_count = skip_count};
    return fm_dataset_open_files(out, &f, 1, tok, chat, c, 0.0);
}

static void examples_release(fmt_examples *list)
{
    for (size_t i = 0; i < list->count; i++)
        fmt_example_release(&list->item[i]);
    fm_free(list->item);
    fm_free(list->info);
}

void fm_dataset_close(fm_dataset *d)
{
    if (!d)
        return;
    examples_release(&d->train);
    examples_release(&d->held);
    for (size_t i = 0; d->file && i < d->files; i++) {
        fmt_data_file *f = &d->file[i];
        char *const text[] = {f->name, f->licence, f->source, f->split};
        for (size_t k = 0; k < FM_ARRAY_LEN(text); k++)
            fm_free(text[k]);
        fm_free(f->skipped.item);
        fm_free(f->empty.item);
        fm_free(f->held.item);
    }
    for (uint32_t i = 0; d->klass && i < d->classes; i++)
        fm_free(d->klass[i]);
    fm_free(d->klass);
    fm_free(d->file);
    fm_json_free(d->labels);
    fm_free(d);
}

size_t fm_dataset_count(const fm_dataset *d)
{
    return d->train.count;
}

const fm_example *fm_dataset_at(const fm_dataset *d, size_t i)
{
    return i < d->train.count ? &d->train.item[i] : NULL;
}

size_t fm_dataset_held_out_count(const fm_dataset *d)
{
    return d->held.count;
}

const fm_example *fm_dataset_held_out(const fm_dataset *d, size_t i)
{
    return i < d->held.count ? &d->held.item[i] : NULL;
}

double fm_dataset_weight(const fm_dataset *d, size_t i)
{
    return d->file[d->train.item[i].file].weight;
}

uint32_t fm_dataset_classes(const fm_dataset *d)
{
    return d->classes;
}

const char *fm_dataset_class_name(const fm_dataset *d, uint32_t klass)
{
    return klass < d->classes ? d->klass[klass] : NULL;
}

size_t fm_dataset_files(const fm_dataset *d)
{
    return d->files;
}

fm_status fmt_dataset_hash(const fm_dataset *d, fm_hasher *h)
{
    fm_buf head;
    fm_status rc = FM_OK;

    fm_buf_init(&head, 0);
    for (size_t i = 0; i < d->train.count && rc == FM_OK; i++) {
        const fm_example *e = &d->train.item[i];
        double weight = fm_dataset_weight(d, i);
        uint64_t bits;
        memcpy(&bits, &weight, sizeof(bits));
        fm_buf_clear(&head);
        for (uint32_t k = 0; k < FM_EXAMPLE_PARTS; k++)
            fm_buf_u32(&head, k < e->parts ? e->part_len[k] : 0);
        fm_buf_u32(&head, (uint32_t)e->klass);
        fm_buf_u64(&head, bits);
        rc = fm_buf_ok(&head);
        FM_THEN(rc, fm_hasher_update(h, head.data, head.len));
        FM_THEN(rc, fm_hasher_update(h, e->ids, e->len * sizeof(int32_t)));
        FM_THEN(rc, fm_hasher_update(h, e->labels, e->len * sizeof(int32_t)));
    }
    fm_buf_release(&head);
    return rc;
}

/* ---- the manifest ---- */
static fm_json *numbers(const fmt_numbers *list)
{
    fm_json *a = fm_json_new_array();

    for (size_t i = 0; a && i < list->count; i++) {
        if (fm_json_push(a, fm_json_new_int((int64_t)list->item[i])) < 0) {
            fm_json_free(a);
            return NULL;
        }
    }
    return a;
}

static fm_json *class_names(const fm_dataset *d)
{
    fm_json *a = fm_json_new_array();

    for (uint32_t i = 0; a && i < d->classes; i++) {
        if (fm_json_push(a, fm_json_new_str(d->klass[i])) < 0) {
            fm_json_free(a);
            return NULL;
        }
    }
    return a;
}

static const char *format_name(const fmt_data_file *f)
{
    static const char *const names[] = {"json", "jsonl", "csv", "text"};

    if (f->format == FMT_FORMAT_TABLE && f->separator == '\t')
        return "tsv";
    return names[f->format];
}

fm_json *fm_dataset_file_manifest(const fm_dataset *d, size_t file)
{
    const fmt_data_file *f = &d->file[file];
    char hex[FM_HEX_CHARS + 1];
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    fm_digest_hex(&f->digest, hex);
    fm_json_put(&rc, o, "name", fm_json_new_str(f->name));
    fm_json_put(&rc, o, "sha256", fm_json_new_str(hex));
    fm_json_put(&rc, o, "format", fm_json_new_str(format_name(f)));
    fm_json_put(&rc, o, "kind", fm_json_new_str(fmt_kind_name(f->kind)));
    fm_json_put(&rc, o, "records", fm_json_new_int((int64_t)f->records));
    fm_json_put(&rc, o, "used", fm_json_new_int((int64_t)f->used));
    fm_json_put(&rc, o, "tokens", fm_json_new_int((int64_t)f->tokens));
    fm_json_put(&rc, o, "skipped", numbers(&f->skipped));
    fm_json_put(&rc, o, "without_target", numbers(&f->empty));
    if (!f->held_out && f->weight != 1.0)
        fm_json_put(&rc, o, "weight", fm_json_new_real(f->weight));
    if (f->held_out)
        fm_json_put(&rc, o, "evaluation", fm_json_new_bool(true));
    else if (d->eval_share > 0.0)
        fm_json_put(&rc, o, "eval", fm_json_new_real(d->eval_share));
    if (f->held.count > 0)
        fm_json_put(&rc, o, "held_out", numbers(&f->held));
    if (d->classes > 0)
        fm_json_put(&rc, o, "classes", class_names(d));
    if (f->licence)
        fm_json_put(&rc, o, "licence", fm_json_new_str(f->licence));
    if (f->source)
        fm_json_put(&rc, o, "source", fm_json_new_str(f->source));
    if (f->split)
        fm_json_put(&rc, o, "split", fm_json_new_str(f->split));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

fm_json *fm_dataset_manifest(const fm_dataset *d)
{
    return fm_dataset_file_manifest(d, 0);
}
