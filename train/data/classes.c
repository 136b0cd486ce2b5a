/* classes.c - turns the labels of records into numbered classes.
 *
 * Labels that are whole numbers are the class numbers. Words are sorted by their bytes, so that the
 * same records in another order, or with some left out, give the same numbers. */
#include "train/data/dataset.h"

#include "store/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLASSES 65536

static bool is_number(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n > 0 && n < 10 && s[n] == 0 && (n == 1 || s[0] != '0');
}

static fm_status bad_label(const char *what, size_t number, const char *must)
{
    return fm_fail(FM_EINVAL, "%s: record %zu: field 'label' %s", what, number, must);
}

fm_status fmt_label_of(uint32_t *label, fm_dataset *d, const fm_json *record, const char *what,
                       size_t number)
{
    const fm_json *v = fm_json_get(record, "label");
    fm_span text = fm_json_str(v);
    char digits[32];
    const char *name = digits;

    if (fm_json_is(v, FM_JSON_INT) || fm_json_is(v, FM_JSON_BOOL)) {
        int64_t n = fm_json_is(v, FM_JSON_BOOL) ? fm_json_bool(v, false) : fm_json_int(v, -1);
        if (n < 0 || n >= MAX_CLASSES)
            return bad_label(what, number, "must be a class number of 0 .. 65535, or a class name");
        (void)snprintf(digits, sizeof(digits), "%" PRId64, n);
        d->any_number = true;
    } else if (text.len > 0 && !memchr(text.data, 0, text.len)) {
        name = fm_json_cstr(v, "");
        d->any_word = d->any_word || !is_number(name);
    } else {
        return bad_label(what, number, "must be a class number or a class name");
    }
    if (d->any_number && d->any_word)
        return bad_label(what, number,
                         "is a name here and a number elsewhere; use one of them throughout");
    const fm_json *known = fm_json_get(d->labels, name);
    *label = (uint32_t)fm_json_int(known, (int64_t)fm_json_count(d->labels));
    if (known)
        return FM_OK;
    if (*label >= MAX_CLASSES)
        return fm_fail(FM_ELIMIT, "%s: record %zu: more than %d classes", what, number,
                       MAX_CLASSES);
    return fm_json_set(d->labels, name, fm_json_new_int((int64_t)*label));
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* names[label] in order of appearance, borrowed from d->labels. */
static const char **names_of(const fm_dataset *d)
{
    const char **names = fm_calloc(fm_json_count(d->labels), sizeof(*names));

    for (void *it = fm_json_iter(d->labels); names && it; it = fm_json_next(d->labels, it))
        names[fm_json_int(fm_json_iter_value(it), 0)] = fm_json_iter_key(it);
    return names;
}

static uint32_t number_of(const char *name)
{
    return (uint32_t)strtoul(name, NULL, 10);
}

static fm_status count_classes(fm_dataset *d, const char *const *names, size_t n, uint32_t wanted)
{
    uint32_t have = d->any_word ? (uint32_t)n : 0;

    for (size_t i = 0; i < n && !d->any_word; i++) {
        if (number_of(names[i]) >= (wanted ? wanted : MAX_CLASSES))
            return fm_fail(FM_EINVAL,
                           "%s: label %s is out of range: training option classes is %" PRIu32
                           ", so that labels are 0 .. %" PRIu32,
                           d->file[0].name, names[i], wanted ? wanted : MAX_CLASSES,
                           (wanted ? wanted : MAX_CLASSES) - 1);
        have = FM_MAX(have, number_of(names[i]) + 1);
    }
    if (wanted && have > wanted)
        return fm_fail(FM_EINVAL,
                       "%s: the data name %" PRIu32 " classes, training option classes is %" PRIu32,
                       d->file[0].name, have, wanted);
    d->classes = wanted ? wanted : have;
    return FM_OK;
}

/* sorted: the words in order; a class that no record has is named by its number. */
static fm_status name_classes(fm_dataset *d, const char *const *sorted, size_t n)
{
    d->klass = fm_calloc(d->classes, sizeof(*d->klass));
    for (uint32_t i = 0; d->klass && i < d->classes; i++) {
        bool word = d->any_word && i < n;
        d->klass[i] = word ? fm_strdup(sorted[i]) : fm_asprintf("%" PRIu32, i);
        if (!d->klass[i])
            return FM_ENOMEM;
    }
    return d->klass ? FM_OK : FM_ENOMEM;
}

static int32_t class_of(const fm_dataset *d, const char *const *sorted, size_t n, const char *name)
{
    if (!d->any_word)
        return (int32_t)number_of(name);
    const char *const *at = bsearch(&name, sorted, n, sizeof(*sorted), by_bytes);
    return at ? (int32_t)(at - sorted) : -1;
}

static void number_examples(const fmt_examples *list, const int32_t *klass)
{
    for (size_t i = 0; i < list->count; i++)
        list->item[i].klass = klass[list->info[i].label];
}

fm_status fmt_settle_classes(fm_dataset *d, uint32_t wanted)
{
    size_t n = fm_json_count(d->labels);
    const char **names = names_of(d);
    const char **sorted = names_of(d);
    int32_t *klass = fm_calloc(n, sizeof(*klass));
    fm_status rc = names && sorted && klass ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && n > 0)
        qsort(sorted, n, sizeof(*sorted), by_bytes);
    FM_THEN(rc, count_classes(d, sorted, n, wanted));
    FM_THEN(rc, name_classes(d, sorted, n));
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        klass[i] = class_of(d, sorted, n, names[i]);
    if (rc == FM_OK) {
        number_examples(&d->train, klass);
        number_examples(&d->held, klass);
    }
    fm_free(names);
    fm_free(sorted);
    fm_free(klass);
    return rc;
}
