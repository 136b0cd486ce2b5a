/* report.c - the report on a data set before training: examples that are cut, repeated,
 * contradictory, without an end, or contain a test's text. Everything is read from the examples as
 * training gets them. */
#include "train/data/report.h"

#include "store/base/mem.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one example ---- */
static bool is_end(const fmt_report *r, int32_t id)
{
    for (size_t i = 0; i < r->ends; i++)
        if (r->end[i] == id)
            return true;
    return false;
}

static bool is_blank(const fmt_report *r, int32_t id)
{
    fm_span s = fm_tokenizer_token_bytes(r->tok, id);

    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] != ' ' && s.data[i] != '\n' && s.data[i] != '\r' && s.data[i] != '\t')
            return false;
    return true;
}

/* Whether the counted tokens before `end` close with an end token. White space that a template puts
 * behind it is ignored. */
static bool run_stops(const fmt_report *r, const fm_example *e, uint32_t begin, uint32_t end)
{
    while (end > begin && !is_end(r, e->ids[end - 1]) && is_blank(r, e->ids[end - 1]))
        end--;
    return end > begin && is_end(r, e->ids[end - 1]);
}

/* Whether each answer of an example stops; every run of counted tokens is an answer. */
static bool answers_stop(const fmt_report *r, const fm_example *e)
{
    uint32_t part_end = 0;

    for (uint32_t k = 0; k < e->parts; k++) {
        uint32_t i = part_end;
        part_end += e->part_len[k];
        while (i < part_end) {
            uint32_t begin = i;
            while (i < part_end && e->labels[i] >= 0)
                i++;
            if (i > begin && !run_stops(r, e, begin, i))
                return false;
            i += i == begin;
        }
    }
    return true;
}

static fm_status look_at(fmt_report *r, fm_data_report *out, size_t i)
{
    const fm_example *e = fm_dataset_at(r->d, i);
    const fmt_render_info *info = &r->d->train.info[i];
    uint32_t bin = 0;
    fm_status rc = FM_OK;

    out->tokens += e->len;
    out->lost += e->lost;
    for (uint32_t k = 0; k < e->len; k++)
        out->counted += e->labels[k] >= 0;
    while (bin + 1 < FMT_LENGTH_BINS && e->len > (uint64_t)16 << bin)
        bin++;
    r->length[bin]++;
    if (e->klass >= 0)
        r->per_class[e->klass]++;
    if (e->lost > 0)
        rc = fmt_hit_add(&r->truncated, i, 0);
    r->answers += info->has_answer;
    if (rc == FM_OK && info->has_answer && !answers_stop(r, e))
        rc = fmt_hit_add(&r->no_stop, i, 0);
    return rc;
}

/* ---- examples compared with one another ---- */
typedef struct keyed {
    fm_digest key;
    uint32_t example;
} keyed;

static int by_key(const void *a, const void *b)
{
    const keyed *x = a;
    const keyed *y = b;
    int order = fm_digest_cmp(&x->key, &y->key);

    return order ? order : (x->example > y->example) - (x->example < y->example);
}

static int by_example(const void *a, const void *b)
{
    const fmt_hit *x = a;
    const fmt_hit *y = b;
    return (x->example > y->example) - (x->example < y->example);
}

/* Length of the question in tokens; 0: the kind has no question, or one that may occur often. */
static uint32_t question_len(const fmt_report *r, size_t i)
{
    const fmt_render_info *info = &r->d->train.info[i];

    if (info->kind == FMT_KIND_CLASS)
        return fm_dataset_at(r->d, i)->len;
    if (!info->has_answer || info->kind == FMT_KIND_PREFERENCE)
        return 0;
    return info->prompt_len;
}

static bool same_answer(const fmt_report *r, size_t i, size_t k)
{
    const fm_example *a = fm_dataset_at(r->d, i);
    const fm_example *b = fm_dataset_at(r->d, k);
    uint32_t at = question_len(r, i);

    return a->klass == b->klass && a->len == b->len &&
           memcmp(a->ids + at, b->ids + at, (a->len - at) * sizeof(*a->ids)) == 0;
}

/* Finds the examples of key[0..n) that share a key with an earlier one. */
static fm_status find_repeats(fmt_report *r, keyed *key, size_t n, bool answers_differ,
                              fmt_hits *list)
{
    fm_status rc = FM_OK;
    size_t first = 0;

    if (n > 0)
        qsort(key, n, sizeof(*key), by_key);
    for (size_t i = 1; i < n && rc == FM_OK; i++) {
        if (!fm_digest_eq(&key[i].key, &key[first].key))
            first = i;
        else if (!answers_differ || !same_answer(r, key[first].example, key[i].example))
            rc = fmt_hit_add(list, key[i].example, key[first].example);
    }
    if (list->count > 0)
        qsort(list->item, list->count, sizeof(*list->item), by_example);
    return rc;
}

static fm_status compare_all(fmt_report *r)
{
    size_t n = fm_dataset_count(r->d);
    size_t asked = 0;
    keyed *key = fm_calloc(n, sizeof(*key));
    fm_status rc = key ? FM_OK : FM_ENOMEM;

    for (size_t i = 0; i < n && rc == FM_OK; i++)
        key[i] = (keyed){fm_dataset_at(r->d, i)->digest, (uint32_t)i};
    FM_THEN(rc, find_repeats(r, key, n, false, &r->duplicates));
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        uint32_t len = question_len(r, i);
        if (len == 0)
            continue;
        key[asked].example = (uint32_t)i;
        rc = fm_sha256(&key[asked++].key, fm_dataset_at(r->d, i)->ids, len * sizeof(int32_t));
    }
    FM_THEN(rc, find_repeats(r, key, asked, true, &r->conflicts));
    fm_free(key);
    return rc;
}

/* ---- findings ---- */
static fm_status find(fmt_report *r, const char *level, const char *fmt, ...) FM_PRINTF(3, 4);

static fm_status find(fmt_report *r, const char *level, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "level", fm_json_new_str(level)) : FM_ENOMEM;
    FM_THEN(rc, fm_json_set(o, "what", fm_json_new_str(text)));
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    r->errors += strcmp(level, "error") == 0;
    return fm_json_push(r->findings, o);
}

static fm_status judge_stops(fmt_report *r)
{
    if (r->no_stop.count == 0)
        return FM_OK;
    if (r->ends == 0)
        return find(r, "warning",
                    "the model names no end token, so that no answer can end with one");
    if (r->no_stop.count == r->answers)
        return find(r, "error",
                    "no answer ends with an end token of the model: it would learn never to stop; "
                    "raise max_tokens if answers are cut, else mend the template");
    return find(r, "warning", "%zu of %zu answers do not end with an end token of the model",
                r->no_stop.count, r->answers);
}

static fm_status judge_targets(fmt_report *r, const fm_data_report *out)
{
    size_t all = out->examples + out->held_out + out->without_target;

    if (out->without_target == 0)
        return FM_OK;
    return find(r, out->without_target * 2 > all ? "error" : "warning",
                "%zu of %zu records have nothing to learn within max_tokens %" PRIu32
                " and are left out",
                out->without_target, all, r->c->max_tokens);
}

static fm_status judge_classes(fmt_report *r)
{
    uint32_t n = fm_dataset_classes(r->d);
    uint32_t seen = 0;

    for (uint32_t i = 0; i < n; i++)
        seen += r->per_class[i] > 0;
    if (n == 0 || seen == n)
        return n == 1 ? find(r, "error", "all examples are of one class") : FM_OK;
    if (seen < 2)
        return find(r, "error", "all examples are of one class");
    return find(r, "warning", "%" PRIu32 " of %" PRIu32 " classes have no example", n - seen, n);
}

/* Negatives from the batch need another text in the step. */
static fm_status judge_contrast(fmt_report *r)
{
    if (r->c->objective != FM_OBJECTIVE_CONTRASTIVE)
        return FM_OK;
    for (size_t i = 0; i < fm_dataset_count(r->d); i++)
        if (fm_dataset_at(r->d, i)->parts > 2)
            return FM_OK;
    if (fm_dataset_count(r->d) > 1 && (uint64_t)r->c->batch * r->c->accumulate > 1)
        return FM_OK;
    return find(r, "error",
                "a step of one pair without a negative has nothing to tell it from: raise batch");
}

static fm_status judge(fmt_report *r, const fm_data_report *out)
{
    FM_TRY(judge_stops(r));

    FM_TRY(judge_targets(r, out));
    FM_TRY(judge_classes(r));
    FM_TRY(judge_contrast(r));
    if (r->truncated.count > 0)
        FM_TRY(find(r, "warning", "%zu of %zu examples are cut at max_tokens %" PRIu32,
                    r->truncated.count, out->examples, r->c->max_tokens));
    if (r->conflicts.count > 0)
        FM_TRY(find(r, "warning", "%zu examples answer an earlier example's prompt differently",
                    r->conflicts.count));
    if (r->contaminated.count > 0)
        FM_TRY(find(r, "warning",
                    "%zu examples hold texts of the suites: what these then measure is memory",
                    r->contaminated.count));
    return FM_OK;
}

/* ---- all of it ---- */
static fm_status collect(fmt_report *r, fm_data_report *out)
{
    const fm_dataset *d = r->d;
    fm_status rc = FM_OK;

    out->examples = fm_dataset_count(d);
    out->held_out = fm_dataset_held_out_count(d);
    for (size_t i = 0; i < d->files; i++)
        out->without_target += d->file[i].empty.count;
    for (size_t i = 0; i < out->examples && rc == FM_OK; i++)
        rc = look_at(r, out, i);
    FM_THEN(rc, compare_all(r));
    FM_THEN(rc, fmt_find_probes(r));
    FM_THEN(rc, judge(r, out));
    out->truncated = r->truncated.count;
    out->no_stop = r->no_stop.count;
    out->duplicates = r->duplicates.count;
    out->conflicts = r->conflicts.count;
    out->contaminated = r->contaminated.count;
    out->errors = r->errors;
    return rc;
}

fm_status fm_dataset_report(fm_data_report *out, const fm_dataset *d, const fm_tokenizer *tok,
                            const fm_train_config *c, const fm_data_report_opts *opts)
{
    fmt_report r = {.d = d, .tok = tok, .c = c, .opts = opts};
    fmt_hits *const lists[] = {&r.truncated, &r.no_stop, &r.duplicates, &r.conflicts,
                               &r.contaminated};

    memset(out, 0, sizeof(*out));
    r.own_end = fm_tokenizer_eos(tok);
    r.end = opts->ends > 0 ? opts->end : &r.own_end;
    r.ends = opts->ends > 0 ? opts->ends : r.own_end >= 0;
    r.findings = fm_json_new_array();
    r.per_class = fm_calloc(fm_dataset_classes(d), sizeof(*r.per_class));
    fm_status rc = r.findings && r.per_class ? collect(&r, out) : FM_ENOMEM;
    FM_THEN(rc, fmt_report_json(out, &r));
    FM_THEN(rc, fmt_report_text(out, &r));
    for (size_t i = 0; i < FM_ARRAY_LEN(lists); i++)
        fm_free(lists[i]->item);
    fm_free(r.per_class);
    fm_json_free(r.findings);
    if (rc < 0)
        fm_data_report_release(out);
    return rc;
}

void fm_data_report_release(fm_data_report *r)
{
    fm_json_free(r->json);
    fm_free(r->text);
    memset(r, 0, sizeof(*r));
}
