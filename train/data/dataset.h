/* dataset.h - a data set in memory, and the readers that turn bytes into records. Inner header. */
#ifndef FM_TRAIN_DATASET_H
#define FM_TRAIN_DATASET_H

#include "train/data/render.h"

FM_BEGIN_DECLS

typedef enum fmt_format {
    FMT_FORMAT_JSON,
    FMT_FORMAT_JSONL,
    FMT_FORMAT_TABLE,
    FMT_FORMAT_TEXT
} fmt_format;

typedef struct fmt_numbers { /* Record numbers of one file. */
    uint32_t *item;
    size_t count, cap;
} fmt_numbers;

typedef struct fmt_data_file {
    char *name, *licence, *source, *split; /* the last three may be NULL */
    fm_digest digest;                      /* digest of the file's bytes */
    double weight;
    bool held_out; /* all of it */
    fmt_format format;
    char separator; /* TABLE */
    fmt_kind kind;  /* kind of its first example */
    size_t records, used;
    uint64_t tokens;
    fmt_numbers skipped; /* records that the caller asked to leave out, sorted */
    fmt_numbers empty;   /* records without a counted token */
    fmt_numbers held;    /* records that are held out */
} fmt_data_file;

/* Examples, and for each of them what the report needs and training does not. */
typedef struct fmt_examples {
    fm_example *item;
    fmt_render_info *info;
    size_t count, cap, info_cap;
} fmt_examples;

struct fm_dataset {
    fmt_data_file *file;
    size_t files;
    fmt_examples train, held;
    double eval_share;
    fm_objective objective;
    fm_json *labels; /* classify: {"name": number} in order of appearance */
    char **klass;    /* [classes] */
    uint32_t classes;
    bool any_number, any_word; /* some label is a number; some label is a text that is no number */
};

/* Hashes everything that training takes from d: tokens, labels, parts, classes and weights. */
FM_CHECKED fm_status fmt_dataset_hash(const fm_dataset *d, fm_hasher *h);

/* A reader calls record for each record; the reader owns v. */
typedef struct fmt_record_sink {
    void *ctx;
    fm_status (*record)(void *ctx, const fm_json *v);
} fmt_record_sink;

/* Reads RFC 4180 with the given separator: a header row of names, then one object of texts for each
 * row. FM_ECORRUPT names the line. */
FM_CHECKED fm_status fmt_csv_records(fm_span bytes, char separator, const char *what,
                                     const fmt_record_sink *sink);
/* *found: the fields that the first line names, split by this separator, make a record. */
FM_CHECKED fm_status fmt_csv_header(bool *found, fm_span bytes, char separator);

/* ---- classes ---- */
/* Number of the record's label among d->labels, in order of appearance. */
FM_CHECKED fm_status fmt_label_of(uint32_t *label, fm_dataset *d, const fm_json *record,
                                  const char *what, size_t number);
/* Once all records are read: sorts the names and sets klass of every example. wanted: the
 * configured number of classes, 0 where the data decide. */
FM_CHECKED fm_status fmt_settle_classes(fm_dataset *d, uint32_t wanted);

FM_END_DECLS
#endif
