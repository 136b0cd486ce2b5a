/* derive.h - what a derivation needs from the command line or a family file. */
#ifndef FM_CLI_DERIVE_H
#define FM_CLI_DERIVE_H

#include "cli/derive/data.h"
#include "cli/derive/checkpoints.h"
#include "cli/version/version_tree.h"
#include "train/train.h"

#define CHILD_SKIP_MAX 4096
typedef struct child { /* one training: a branch to be, a module, or a trial of a sweep */
    char *name;        /* for people; of a branch its name */
    data_list data;    /* files with examples */
    char *message;     /* NULL = made from method and data */
    char *teacher;     /* REV to distill from; NULL = none */
    fm_train_config config;
    opt_list suites; /* files; argv's, or made by family_read */
    uint32_t *skip;  /* record numbers left out */
    size_t skip_count, skip_cap;
    size_t unit; /* which version it is to be, or tries to be */
} child;

#define UNIT_NONE SIZE_MAX
typedef struct unit {    /* one version to be: child [first, first + count) of the family */
    size_t first, count; /* more than one: trials of a sweep, of which the best is it */
    size_t on;           /* the unit it is trained on; UNIT_NONE: the family's parent */
    char *on_name;       /* NULL: the parent */
    char *module;        /* its key among the modules; NULL: a child */
    bool stood_on;       /* by another unit */
    unsigned wave;       /* 0: on the parent; else one more than that of `on` */
    bool branch;         /* false: a module that only others stand on */
    struct sweep *sweep; /* NULL: none */
} unit;

typedef struct family {
    char *parent;     /* REV; NULL for pretraining */
    char *config_dir; /* pretraining: folder with config.json and the tokenizer */
    child *child;
    size_t count, cap;
    unit *unit;
    size_t units, unit_cap;
    unsigned waves;
    fm_json *doc; /* the family file; NULL: from options */
} family;

/* A unit of one child; NULL = ENOMEM. */
child *family_add(family *f, const fm_train_config *config);
/* YAML; relative paths are meant from the file's folder. FM_EINVAL names file, child and key. */
fm_status family_read(family *f, const char *path);
/* What a unit is called: its only child's name, or the sweep's. */
const char *unit_name(const family *f, const unit *u);
fm_status child_skip_text(child *ch, const char *numbers); /* "3,7,12" */
void family_release(family *f);

/* `mode` of the file, or NULL; borrowed. One family has one. */
const char *family_mode(const family *f);

/* JSON values as --set takes texts; errors begin with where. */
fm_status apply_settings(child *ch, const fm_json *set, const char *where);
/* The defaults of a method's word; "dora" is LoRA with dora. FM_EINVAL lists the words. */
fm_status config_of_method(fm_train_config *out, const char *word);
const char *method_name(fm_method method);

/* The folder of one more adapter of a tree: "adapters/2-lora", by what its config says. */
fm_status next_adapter(const fm_tree *tree, const fm_json *config, char *out, size_t bytes);

typedef struct derive_how {
    bool plan;            /* say what it would take, and train nothing */
    uint32_t ranks;       /* of the plan */
    const char *topology; /* of them; NULL: this host's */
    bool recompute;       /* less memory, more time, same bits */
    bool gate;            /* run the suites before a branch is made */
    bool check_data;     /* print the report on the data and end; FM_EREFUSED where it has errors */
    keeper_policy keep;  /* of checkpoints; what is 0 comes from the config */
    uint64_t eval_every; /* steps between looks at what is held out; 0: at the end alone */
    uint64_t stop_after; /* steps, then as if Ctrl-C was pressed; 0 = never */
    const char
        *log_path; /* {"child": [{"step","loss","grad_norm","lr"}]}, also when stopped; or NULL */
} derive_how;
/* Trains all children on the open repository and lands them; FM_EREFUSED when a gate failed,
 * FM_ECANCELLED when stopped before the last step: then a checkpoint is kept and nothing landed. */
fm_status family_derive(cli *c, family *f, const derive_how *how);

#endif
