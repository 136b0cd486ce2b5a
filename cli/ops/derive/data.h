/* data.h - the files that a child is trained on: words and keys to files, files to a data set, a
 * data set and its report into a version, and out of it again. */
#ifndef FM_OPS_DATA_H
#define FM_OPS_DATA_H

#include "cli/ops/base/say.h"
#include "train/train.h"

typedef struct fmo_data_file {
    char *path;
    double weight;
    bool held_out;                  /* wholly for evaluation */
    char *licence, *source, *split; /* NULL: said by FILE.meta.yaml, or not known */
    uint32_t *skip;
    size_t skip_count;
    fm_buf bytes;
} fmo_data_file;

typedef struct fmo_data_list {
    fmo_data_file *file;
    size_t count, cap;
    double eval_share;
} fmo_data_list;

/* "a.jsonl" or "b.csv:0.5", a weight behind the last colon. */
fm_status fmo_data_add_word(fmo_data_list *l, const char *word);
/* "0.05", the share to hold out, or a file for evaluation. */
fm_status fmo_data_eval_word(fmo_data_list *l, const char *word);
/* The keys data, eval, licence, source and split of a child in a family file:
 *   data: a.jsonl | {file: a.jsonl, weight: 2} | [a.jsonl, {file: b.csv, ...}]
 *   eval: 0.05 | held.jsonl
 * Relative paths are meant from the family file's folder. Errors begin with where. */
fm_status fmo_data_read_keys(fmo_data_list *l, const fm_json *child, const char *family_path,
                             const char *where);
void fmo_data_release(fmo_data_list *l);
/* A path of a family file, meant from the file's own folder; owned, NULL = ENOMEM. */
char *fmo_path_beside(const char *family_path, const char *path);
/* "a.jsonl", "a.jsonl and 2 more"; borrowed from a ring of buffers. */
const char *fmo_data_title(const fmo_data_list *l);

/* Reads the files, what lies beside them as FILE.meta.yaml (licence, source, split), and makes
 * examples of them. skip: record numbers of the only file. */
fm_status fmo_data_open(fmo_data_list *l, fm_dataset **out, const fm_tokenizer *tok,
                        const fm_chat_template *chat, const fm_train_config *c,
                        const uint32_t *skip, size_t skip_count);
/* One manifest a file, as recipes hold them; owned, NULL = ENOMEM. */
fm_json *fmo_data_manifests(const fm_dataset *d);
/* A report without its lists of records; owned, NULL = ENOMEM. */
fm_json *fmo_data_summary(const fm_data_report *r);
/* The files to data/<name>, report (may be NULL) to data/<name of the first>.report.json. */
fm_status fmo_data_put(fm_txn *txn, fm_tree *tree, const fmo_data_list *l, const fm_json *report);

/* The data set that a version was trained on, by its recipe; FM_ENOTFOUND where the version does
 * not carry a file that its recipe names. */
fm_status fmo_data_of_version(fm_ops *c, const fm_tree *tree, const fm_json *recipe,
                              const fm_train_config *config, const fm_tokenizer *tok,
                              const fm_chat_template *chat, fm_dataset **out);

/* The report before training: against the suites of parent (may be NULL) and those in the files.
 * model: whose end tokens answers should have; NULL: the tokenizer's. */
fm_status fmo_data_report(fm_ops *c, const fm_dataset *d, const fm_tokenizer *tok,
                          const fm_model *model, const fm_train_config *config,
                          const fm_tree *parent, const fm_words *suites, fm_data_report *out);

#endif
