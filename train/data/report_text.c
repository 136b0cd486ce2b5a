/* report_text.c - writes the report on a data set: as JSON with the number of every record, and as
 * lines that people read before training begins. */
#include "train/data/report.h"

#include "store/base/mem.h"
#include "store/base/text/utf8.h"

#include <inttypes.h>
#include <string.h>

#define LISTED 1000u      /* most records of a list in the JSON, which has the full count too */
#define SHOWN 5u          /* most records of a list in the text */
#define FIRST_BYTES 2000u /* most bytes of the first example in the text: half from each end */

/* ---- JSON ---- */
static fm_json *done(fm_status rc, fm_json *v)
{
    if (rc == FM_OK)
        return v;
    fm_json_free(v);
    return NULL;
}

static const char *file_of(const fmt_report *r, const fm_example *e)
{
    return r->d->file[e->file].name;
}

static fm_json *place_json(const fmt_report *r, const fm_example *e)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    fm_json_put(&rc, o, "file", fm_json_new_str(file_of(r, e)));
    fm_json_put(&rc, o, "record", fm_json_new_int(e->index));
    return done(rc, o);
}

typedef enum list_kind { LIST_PLAIN, LIST_LOST, LIST_OTHER, LIST_PROBE } list_kind;

static fm_json *hit_json(const fmt_report *r, const fmt_hit *h, list_kind kind)
{
    const fm_example *e = fm_dataset_at(r->d, h->example);
    fm_json *o = place_json(r, e);
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    if (kind == LIST_LOST)
        fm_json_put(&rc, o, "lost", fm_json_new_int(e->lost));
    if (kind == LIST_OTHER)
        fm_json_put(&rc, o, "of", place_json(r, fm_dataset_at(r->d, h->other)));
    if (kind == LIST_PROBE)
        fm_json_put(&rc, o, "case", fm_json_new_str(r->opts->probe[h->other].name));
    return done(rc, o);
}

static fm_json *hits_json(const fmt_report *r, const fmt_hits *list, list_kind kind)
{
    fm_json *o = fm_json_new_object();
    fm_json *a = fm_json_new_array();
    fm_status rc = o && a ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < list->count && i < LISTED; i++)
        fm_json_push_to(&rc, a, hit_json(r, &list->item[i], kind));
    fm_json_put(&rc, o, "count", fm_json_new_int((int64_t)list->count));
    fm_json_put(&rc, o, "records", a);
    return done(rc, o);
}

static fm_json *segment_json(bool counts, fm_span text)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    fm_json_put(&rc, o, "counts", fm_json_new_bool(counts));
    fm_json_put(&rc, o, "text", fm_json_new_strn((const char *)text.data, text.len));
    return done(rc, o);
}

/* A part as JSON: runs of tokens that count and runs that do not. */
static fm_json *part_json(const fmt_report *r, const int32_t *ids, const int32_t *labels,
                          uint32_t len)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;

    for (uint32_t i = 0; i < len && rc == FM_OK;) {
        uint32_t begin = i;
        fm_buf text;
        while (i < len && (labels[i] >= 0) == (labels[begin] >= 0))
            i++;
        fm_buf_init(&text, 0);
        rc = fm_tokenizer_decode(r->tok, ids + begin, i - begin, false, &text);
        fm_json_push_to(&rc, a,
                        rc == FM_OK ? segment_json(labels[begin] >= 0, fm_buf_span(&text)) : NULL);
        fm_buf_release(&text);
    }
    return done(rc, a);
}

static fm_json *first_json(const fmt_report *r)
{
    const fm_example *e = fm_dataset_at(r->d, 0);
    fm_json *o = place_json(r, e);
    fm_json *parts = fm_json_new_array();
    fm_status rc = o && parts ? FM_OK : FM_ENOMEM;
    uint32_t at = 0;

    for (uint32_t k = 0; k < e->parts; at += e->part_len[k++])
        fm_json_push_to(&rc, parts, part_json(r, e->ids + at, e->labels + at, e->part_len[k]));
    fm_json_put(&rc, o, "parts", parts);
    if (e->klass >= 0)
        fm_json_put(&rc, o, "class",
                    fm_json_new_str(fm_dataset_class_name(r->d, (uint32_t)e->klass)));
    return done(rc, o);
}

static fm_json *lengths_json(const fmt_report *r)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;

    for (uint32_t i = 0; i < FMT_LENGTH_BINS; i++) {
        if (r->length[i] == 0)
            continue;
        fm_json *o = fm_json_new_object();
        rc = rc == FM_OK && !o ? FM_ENOMEM : rc;
        fm_json_put(&rc, o, "up_to", fm_json_new_int((int64_t)16 << i));
        fm_json_put(&rc, o, "examples", fm_json_new_int((int64_t)r->length[i]));
        fm_json_push_to(&rc, a, o);
    }
    return done(rc, a);
}

static fm_json *classes_json(const fmt_report *r)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;

    for (uint32_t i = 0; i < fm_dataset_classes(r->d); i++) {
        fm_json *o = fm_json_new_object();
        rc = rc == FM_OK && !o ? FM_ENOMEM : rc;
        fm_json_put(&rc, o, "name", fm_json_new_str(fm_dataset_class_name(r->d, i)));
        fm_json_put(&rc, o, "examples", fm_json_new_int((int64_t)r->per_class[i]));
        fm_json_push_to(&rc, a, o);
    }
    return done(rc, a);
}

static fm_json *files_json(const fmt_report *r)
{
    fm_json *a = fm_json_new_array();
    fm_status rc = a ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < fm_dataset_files(r->d); i++)
        fm_json_push_to(&rc, a, fm_dataset_file_manifest(r->d, i));
    return done(rc, a);
}

fm_status fmt_report_json(fm_data_report *out, const fmt_report *r)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    fm_json_put(&rc, o, "examples", fm_json_new_int((int64_t)out->examples));
    fm_json_put(&rc, o, "held_out", fm_json_new_int((int64_t)out->held_out));
    fm_json_put(&rc, o, "tokens", fm_json_new_int((int64_t)out->tokens));
    fm_json_put(&rc, o, "counted", fm_json_new_int((int64_t)out->counted));
    fm_json_put(&rc, o, "lost", fm_json_new_int((int64_t)out->lost));
    fm_json_put(&rc, o, "without_target", fm_json_new_int((int64_t)out->without_target));
    fm_json_put(&rc, o, "answers", fm_json_new_int((int64_t)r->answers));
    fm_json_put(&rc, o, "findings", fm_json_ref(r->findings));
    fm_json_put(&rc, o, "files", files_json(r));
    fm_json_put(&rc, o, "truncated", hits_json(r, &r->truncated, LIST_LOST));
    fm_json_put(&rc, o, "no_stop", hits_json(r, &r->no_stop, LIST_PLAIN));
    fm_json_put(&rc, o, "duplicates", hits_json(r, &r->duplicates, LIST_OTHER));
    fm_json_put(&rc, o, "conflicts", hits_json(r, &r->conflicts, LIST_OTHER));
    fm_json_put(&rc, o, "contaminated", hits_json(r, &r->contaminated, LIST_PROBE));
    fm_json_put(&rc, o, "probes", fm_json_new_int((int64_t)r->opts->probes));
    fm_json_put(&rc, o, "probes_too_short", fm_json_new_int((int64_t)r->short_probes));
    fm_json_put(&rc, o, "classes", classes_json(r));
    fm_json_put(&rc, o, "lengths", lengths_json(r));
    fm_json_put(&rc, o, "first", first_json(r));
    out->json = done(rc, o);
    return rc;
}

/* ---- lines ---- */
static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static void say_place(fm_buf *b, const fmt_report *r, const fm_example *e)
{
    fm_buf_printf(b, "record %" PRIu32, e->index);
    if (fm_dataset_files(r->d) > 1)
        fm_buf_printf(b, " of %s", file_of(r, e));
}

static void say_hits(fm_buf *b, const fmt_report *r, const fmt_hits *list, list_kind kind)
{
    for (size_t i = 0; i < list->count && i < SHOWN; i++) {
        const fm_example *e = fm_dataset_at(r->d, list->item[i].example);
        fm_buf_str(b, i ? ", " : ": ");
        say_place(b, r, e);
        if (kind == LIST_LOST)
            fm_buf_printf(b, " (%" PRIu32 " lost)", e->lost);
        if (kind == LIST_OTHER) {
            fm_buf_str(b, " as ");
            say_place(b, r, fm_dataset_at(r->d, list->item[i].other));
        }
        if (kind == LIST_PROBE)
            fm_buf_printf(b, " (%s)", r->opts->probe[list->item[i].other].name);
    }
    if (list->count > SHOWN)
        fm_buf_str(b, ", ...");
    fm_buf_char(b, '\n');
}

static void say_files(fm_buf *b, const fmt_report *r)
{
    for (size_t i = 0; i < fm_dataset_files(r->d); i++) {
        const fmt_data_file *f = &r->d->file[i];
        fm_buf_printf(b, "  %s: %s, %zu record%s, %zu used", f->name, fmt_kind_name(f->kind),
                      f->records, plural(f->records), f->used);
        if (f->held.count > 0)
            fm_buf_printf(b, ", %zu held out", f->held.count);
        if (f->skipped.count > 0)
            fm_buf_printf(b, ", %zu skipped", f->skipped.count);
        if (!f->held_out && f->weight != 1.0)
            fm_buf_printf(b, ", weight %g", f->weight);
        fm_buf_char(b, '\n');
    }
}

static void say_nothing_to_learn(fm_buf *b, const fmt_report *r, const fm_data_report *out)
{
    size_t shown = 0;

    if (out->without_target == 0)
        return;
    fm_buf_printf(b, "  nothing to learn in %zu record%s", out->without_target,
                  plural(out->without_target));
    for (size_t i = 0; i < r->d->files; i++)
        for (size_t k = 0; k < r->d->file[i].empty.count && shown < SHOWN; k++, shown++)
            fm_buf_printf(b, "%srecord %" PRIu32 " of %s", shown ? ", " : ": ",
                          r->d->file[i].empty.item[k], r->d->file[i].name);
    fm_buf_str(b, out->without_target > SHOWN ? ", ...\n" : "\n");
}

static void say_lengths(fm_buf *b, const fmt_report *r)
{
    size_t most = 1;

    for (uint32_t i = 0; i < FMT_LENGTH_BINS; i++)
        most = FM_MAX(most, r->length[i]);
    for (uint32_t i = 0; i < FMT_LENGTH_BINS; i++) {
        if (r->length[i] == 0)
            continue;
        fm_buf_printf(b, "  %8u tokens or less %8zu  ", 16u << i, r->length[i]);
        for (size_t k = 0; k < (r->length[i] * 40 + most - 1) / most; k++)
            fm_buf_char(b, '#');
        fm_buf_char(b, '\n');
    }
}

static void say_found(fm_buf *b, const fmt_report *r)
{
    if (r->truncated.count > 0) {
        fm_buf_printf(b, "  %zu cut", r->truncated.count);
        say_hits(b, r, &r->truncated, LIST_LOST);
    }
    if (r->answers > 0 && r->no_stop.count == 0)
        fm_buf_printf(b, "  every answer ends with an end token\n");
    if (r->no_stop.count > 0) {
        fm_buf_printf(b, "  %zu without an end token", r->no_stop.count);
        say_hits(b, r, &r->no_stop, LIST_PLAIN);
    }
    if (r->duplicates.count > 0) {
        fm_buf_printf(b, "  %zu repeated", r->duplicates.count);
        say_hits(b, r, &r->duplicates, LIST_OTHER);
    }
    if (r->conflicts.count > 0) {
        fm_buf_printf(b, "  %zu with the same prompt and another answer", r->conflicts.count);
        say_hits(b, r, &r->conflicts, LIST_OTHER);
    }
    if (r->opts->probes > 0) {
        fm_buf_printf(b, "  %zu text%s of suites looked for", r->opts->probes,
                      plural(r->opts->probes));
        if (r->short_probes > 0)
            fm_buf_printf(b, " (%zu of fewer than 4 words are not)", r->short_probes);
        fm_buf_printf(b, ", found in %zu example%s", r->contaminated.count,
                      plural(r->contaminated.count));
        say_hits(b, r, &r->contaminated, LIST_PROBE);
    }
    for (uint32_t i = 0; i < fm_dataset_classes(r->d) && i < 32; i++)
        fm_buf_printf(b, "  class %s: %zu example%s\n", fm_dataset_class_name(r->d, i),
                      r->per_class[i], plural(r->per_class[i]));
}

/* Writes text in brackets where it does not count; nothing is marked if there is no target. */
static void write_masked(fm_buf *b, const fm_json *part, bool targets)
{
    for (size_t i = 0; i < fm_json_count(part); i++) {
        const fm_json *s = fm_json_at(part, i);
        bool counts = !targets || fm_json_bool(fm_json_get(s, "counts"), false);
        fm_span text = fm_json_str(fm_json_get(s, "text"));
        fm_buf_str(b, counts ? "" : "[");
        fm_buf_append(b, text.data, text.len);
        fm_buf_str(b, counts ? "" : "]");
    }
}

/* Writes each line behind a bar; the middle of a long text is left out, at whole characters. */
static void say_indented(fm_buf *b, fm_span text)
{
    size_t head = text.len;
    size_t tail = text.len;

    if (text.len > FIRST_BYTES) {
        head = fm_utf8_clip(text.data, text.len, FIRST_BYTES / 2);
        tail = text.len - FIRST_BYTES / 2;
        while (tail < text.len && (text.data[tail] & 0xC0) == 0x80)
            tail++;
    }
    fm_buf_str(b, "  | ");
    for (size_t i = 0; i < text.len; i++) {
        if (i == head && head < tail) {
            fm_buf_printf(b, " ... %zu bytes ... ", tail - head);
            i = tail;
        }
        /* control characters must not reach the terminal */
        if ((text.data[i] < ' ' && text.data[i] != '\n' && text.data[i] != '\t') ||
            text.data[i] == 0x7F)
            fm_buf_printf(b, "\\x%02x", text.data[i]);
        else
            fm_buf_char(b, (char)text.data[i]);
        if (text.data[i] == '\n' && i + 1 < text.len)
            fm_buf_str(b, "  | ");
    }
    if (text.len == 0 || text.data[text.len - 1] != '\n')
        fm_buf_char(b, '\n');
}

static fm_status say_first(fm_buf *b, const fmt_report *r, const fm_json *first)
{
    static const char *const part_names[][FM_EXAMPLE_PARTS] = {{"chosen", "rejected", ""},
                                                               {"anchor", "positive", "negative"}};
    const fm_json *parts = fm_json_get(first, "parts");
    const char *klass = fm_json_cstr(fm_json_get(first, "class"), NULL);
    bool targets =
        r->c->objective != FM_OBJECTIVE_CLASSIFY && r->c->objective != FM_OBJECTIVE_CONTRASTIVE;
    fm_status rc = FM_OK;

    fm_buf_str(b, "  first example, ");
    say_place(b, r, fm_dataset_at(r->d, 0));
    fm_buf_str(b, targets ? " ([in brackets]: read, not learnt):\n" : ":\n");
    for (size_t k = 0; k < fm_json_count(parts) && rc == FM_OK; k++) {
        fm_buf text;
        fm_buf_init(&text, 0);
        if (fm_json_count(parts) > 1)
            fm_buf_printf(b, "  %s:\n", part_names[r->c->objective == FM_OBJECTIVE_CONTRASTIVE][k]);
        write_masked(&text, fm_json_at(parts, k), targets);
        rc = fm_buf_ok(&text);
        say_indented(b, fm_buf_span(&text));
        fm_buf_release(&text);
    }
    if (klass)
        fm_buf_printf(b, "  class %s\n", klass);
    return rc;
}

fm_status fmt_report_text(fm_data_report *out, const fmt_report *r)
{
    fm_buf b;
    double share =
        out->tokens ? 100.0 * (double)(out->tokens - out->counted) / (double)out->tokens : 0.0;

    fm_buf_init(&b, 0);
    fm_buf_printf(&b, "data: %zu example%s, %" PRIu64 " tokens", out->examples,
                  plural(out->examples), out->tokens);
    if (out->counted > 0)
        fm_buf_printf(&b, ", %.1f %% of them masked", share);
    if (out->lost > 0)
        fm_buf_printf(&b, ", %" PRIu64 " more beyond max_tokens", out->lost);
    fm_buf_char(&b, '\n');
    say_files(&b, r);
    say_nothing_to_learn(&b, r, out);
    say_found(&b, r);
    say_lengths(&b, r);
    fm_status rc = say_first(&b, r, fm_json_get(out->json, "first"));
    for (size_t i = 0; i < fm_json_count(r->findings); i++) {
        const fm_json *f = fm_json_at(r->findings, i);
        fm_buf_printf(&b, "  %s: %s\n", fm_json_cstr(fm_json_get(f, "level"), ""),
                      fm_json_cstr(fm_json_get(f, "what"), ""));
    }
    FM_THEN(rc, fm_buf_ok(&b));
    if (rc == FM_OK) {
        out->text = fm_strdup(fm_buf_cstr(&b));
        rc = out->text ? FM_OK : FM_ENOMEM;
    }
    fm_buf_release(&b);
    return rc;
}
