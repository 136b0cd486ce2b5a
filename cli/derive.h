/* derive.h - what a derivation needs from the command line or a family file. */
#ifndef FM_CLI_DERIVE_H
#define FM_CLI_DERIVE_H

#include "cli/version_tree.h"
#include "train/train.h"

#define CHILD_SKIP_MAX 4096
typedef struct child {
    char *name;      /* branch to make */
    char *data_path; /* file with examples */
    char *message;   /* NULL = made from method and data */
    fm_train_config config;
    opt_list suites; /* files; argv's, or made by family_read */
    uint32_t *skip;  /* record numbers left out */
    size_t skip_count, skip_cap;
} child;

typedef struct family {
    char *parent;     /* REV; NULL for pretraining */
    char *config_dir; /* pretraining: folder with config.json and the tokenizer */
    child *child;
    size_t count, cap;
    fm_json *doc; /* the family file; NULL: from options */
} family;

child *family_add(family *f, fm_method method); /* NULL = ENOMEM */
/* YAML; relative paths are meant from the file's folder. FM_EINVAL names file, child and key. */
fm_status family_read(family *f, const char *path);
fm_status child_skip_text(child *ch, const char *numbers); /* "3,7,12" */
void family_release(family *f);

fm_status method_parse(fm_method *out, const char *word);
const char *method_name(fm_method method);

typedef struct derive_how {
    bool gate;           /* run the suites before a branch is made */
    uint64_t stop_after; /* steps, then as if Ctrl-C was pressed; 0 = never */
    const char
        *log_path; /* {"child": [{"step","loss","grad_norm","lr"}]}, also when stopped; or NULL */
} derive_how;
/* Trains all children on the open repository and lands them; FM_EREFUSED when a gate failed,
 * FM_ECANCELLED when stopped before the last step: then a checkpoint is kept and nothing landed. */
fm_status family_derive(cli *c, family *f, const derive_how *how);

#endif
