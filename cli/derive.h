/* derive.h - what a derivation needs from the command line or a family file. */
#ifndef FM_CLI_DERIVE_H
#define FM_CLI_DERIVE_H

#include "cli/version_tree.h"
#include "train/train.h"

#define CHILD_SKIP_MAX 4096
typedef struct child {
    char *name;             /* branch to make */
    char *data_path;        /* file with examples */
    char *message;          /* NULL = made from method and data */
    fm_train_config config;
    opt_list suites;        /* files; borrowed from the family file or argv */
    uint32_t *skip;         /* record numbers left out */
    size_t skip_count, skip_cap;
} child;

typedef struct family {
    char *parent;           /* REV; NULL for pretraining */
    char *config_dir;       /* pretraining: folder with config.json and the tokenizer */
    child *child;
    size_t count, cap;
    fm_json *doc;           /* keeps the family file's strings alive */
} family;

child *family_add(family *f, fm_method method); /* NULL = ENOMEM */
/* YAML; relative paths are meant from the file's folder. FM_EINVAL names file, child and key. */
fm_status family_read(family *f, const char *path);
fm_status child_skip_text(child *ch, const char *numbers); /* "3,7,12" */
void family_release(family *f);

fm_status method_parse(fm_method *out, const char *word);
const char *method_name(fm_method method);

/* Trains all children on the open repository and lands them; FM_EREFUSED when a gate failed. */
fm_status family_derive(cli *c, family *f, bool gate);

#endif
