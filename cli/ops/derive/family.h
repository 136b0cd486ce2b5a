/* family.h - the children of a derivation: from options, or from a family file. */
#ifndef FM_OPS_FAMILY_H
#define FM_OPS_FAMILY_H

#include "cli/ops/derive/data.h"
#include "cli/ops/derive/checkpoints.h"
#include "cli/ops/version/version_tree.h"
#include "train/train.h"

#define CHILD_SKIP_MAX 4096
typedef struct fmo_child { /* one training: for a branch, a module, or as a trial of a sweep */
    char *name;        /* for messages; that of the branch if it makes one */
    fmo_data_list data; /* files with examples */
    char *message;     /* NULL = made from method and data */
    char *teacher;     /* REV to distill from; NULL = none */
    fm_train_config config;
    fm_words suites; /* files; owned only if fmo_family_read made them */
    uint32_t *skip;  /* record numbers left out */
    size_t skip_count, skip_cap;
    size_t unit; /* index of the version that it is trained for */
} fmo_child;

#define UNIT_NONE SIZE_MAX
typedef struct fmo_unit { /* one version to make, from child [first, first + count) of the family */
    size_t first, count; /* more than one: trials of a sweep, of which the best is taken */
    size_t on;           /* the unit it is trained on; UNIT_NONE: the family's parent */
    char *on_name;       /* NULL: the parent */
    char *module;        /* its key among the modules; NULL: a child */
    bool stood_on;       /* another unit is trained on it */
    unsigned wave;       /* 0: on the parent; else one more than that of `on` */
    bool branch;         /* false: a module, only for other units */
    struct fmo_sweep *sweep; /* NULL: none */
} fmo_unit;

typedef struct fmo_family {
    char *parent;     /* REV; NULL for pretraining */
    char *config_dir; /* pretraining: folder with config.json and the tokenizer */
    fmo_child *child;
    size_t count, cap;
    fmo_unit *unit;
    size_t units, unit_cap;
    unsigned waves;
    fm_json *doc; /* the family file; NULL: from options */
} fmo_family;

/* Adds a unit of one child; NULL = ENOMEM. */
fmo_child *fmo_family_add(fmo_family *f, const fm_train_config *config);
/* Makes a family of one child, from the options. */
fm_status fmo_family_of_opts(fmo_family *f, const fm_derive_opts *o);
/* Reads a family file, YAML; relative paths start at the file's folder. FM_EINVAL names file, child
 * and key. */
fm_status fmo_family_read(fmo_family *f, const char *path);
/* The name of a unit: that of its only child, or of the sweep. */
const char *fmo_unit_name(const fmo_family *f, const fmo_unit *u);
fm_status fmo_child_skip_text(fmo_child *ch, const char *numbers); /* "3,7,12" */
void fmo_family_release(fmo_family *f);

/* `mode` of the file, for the whole family, or NULL; borrowed. */
const char *fmo_family_mode(const fmo_family *f);

/* Applies settings given as JSON, as --set applies texts; errors begin with where. */
fm_status fmo_apply_settings(fmo_child *ch, const fm_json *set, const char *where);
/* The defaults of a method by its name; "dora" is LoRA with dora. FM_EINVAL lists the names. */
fm_status fmo_config_of_method(fm_train_config *out, const char *word);
const char *fmo_method_name(fm_method method);

/* The folder of one more adapter of a tree, "adapters/2-lora"; the kind follows from config. */
fm_status fmo_next_adapter(const fm_tree *tree, const fm_json *config, char *out, size_t bytes);

/* Trains all children on the open repository and lands them. opts: the options of the whole family;
 * ranks: for a plan. */
fm_status fmo_family_derive(fm_ops *c, fmo_family *f, const fm_derive_opts *opts, uint32_t ranks,
                            fm_derive_result *out);

#endif
