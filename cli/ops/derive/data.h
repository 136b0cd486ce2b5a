/* data.h - the files that a child is trained on: reads options and keys, makes a data set of the
 * files, stores it and its report in a version, and reads it from there. */
#ifndef FM_OPS_DATA_H
#define FM_OPS_DATA_H

#include "cli/ops/base/say.h"
#include "train/train.h"

typedef struct fmo_data_file {
    char *path;
    double weight;
    bool held_out;                  /* only for evaluation */
    char *licence, *source, *split; /* NULL: in FILE.meta.yaml, or not known */
    uint32_t *skip;
    size_t skip_count;
    fm_buf bytes;
} fmo_data_file;

typedef struct fmo_data_list {
    fmo_data_file *file;
    size_t count, cap;
    double eval_share;
} fmo_data_list;

/* Adds "a.jsonl" or "b.csv:0.5", with a weight after the last colon. */
fm_status fmo_data_add_word(fmo_data_list *l, const char *word);
/* Takes "0.05", the share to hold out, or a file for evaluation. */
fm_status fmo_data_eval_word(fmo_data_list *l, const char *word);
/* Reads the keys data, eval, licence, source and split of a child in a family file:
 *   data: a.jsonl | {file: a.jsonl, weight: 2} | [a.jsonl, {file: b.csv, ...}]
 *   eval: 0.05 | held.jsonl
 * Relative paths start at the family file's folder. Errors begin with where. */
fm_status fmo_data_read_keys(fmo_data_list *l, const fm_json *child, const char *family_path,
                             const char *where);
void fmo_data_release(fmo_data_list *l);
/* A path in a family file, relative to that file's folder; owned, NULL = ENOMEM. */
char *fmo_path_beside(const char *family_path, const char *path);
/* The list's title: "a.jsonl", "a.jsonl and 2 more"; borrowed from a ring of buffers. */
const char *fmo_data_title(const fmo_data_list *l);

/* Reads the files and FILE.meta.yaml next to each (licence, source, split), and makes examples.
 * skip: record numbers of the only file. */
fm_status fmo_data_open(fmo_data_list *l, fm_dataset **out, const fm_tokenizer *tok,
                        const fm_chat_template *chat, const fm_train_config *c,
                        const uint32_t *skip, size_t skip_count);
/* The manifests of the files, one each, as in recipes; owned, NULL = ENOMEM. */
fm_json *fmo_data_manifests(const fm_dataset *d);
/* A report without its lists of records; owned, NULL = ENOMEM. */
fm_json *fmo_data_summary(const fm_data_report *r);
/* Stores the files as data/<name>, report (may be NULL) as data/<name of the first>.report.json. */
fm_status fmo_data_put(fm_txn *txn, fm_tree *tree, const fmo_data_list *l, const fm_json *report);

/* Opens the data set that a version was trained on, by its recipe. FM_ENOTFOUND: the version lacks
 * a file that its recipe names. */
fm_status fmo_data_of_version(fm_ops *c, const fm_tree *tree, const fm_json *recipe,
                              const fm_train_config *config, const fm_tokenizer *tok,
                              const fm_chat_template *chat, fm_dataset **out);

/* Makes the report before training, against the suites of parent (may be NULL) and of the files in
 * suites. model: answers should end with its end tokens; NULL: with the tokenizer's. */
fm_status fmo_data_report(fm_ops *c, const fm_dataset *d, const fm_tokenizer *tok,
                          const fm_model *model, const fm_train_config *config,
                          const fm_tree *parent, const fm_words *suites, fm_data_report *out);

#endif
