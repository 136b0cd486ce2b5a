/* ops.h - the operations on a repository, one call each: import, derive, merge, test, blame,
 * replay. The command line is built on them, as any C program can be.
 *
 * A handle is a struct that the caller owns: set members of its first part, leave the rest zero,
 * call fm_ops_open, and fm_ops_close at the end (also after a failure). No function here prints or
 * reads a terminal: all output goes through `ui`. One handle is used by one thread at a time.
 *
 *   fm_ops ops = {.dir = "models", .threads = 4};
 *   fm_status rc = fm_ops_open(&ops);
 *   ...
 *   fm_ops_close(&ops);
 *
 * All functions return FM_OK or a negative status; fm_error_text has its text. FM_EREFUSED is a
 * negative answer (a gate failed), FM_ECANCELLED means that `ui.progress` stopped the operation. */
#ifndef FM_OPS_H
#define FM_OPS_H

#include "infer/comm.h"
#include "lineage/lineage.h"
#include "testing/testing.h"

FM_BEGIN_DECLS

typedef enum fm_ui_level {
    FM_UI_RESULT,  /* the requested output */
    FM_UI_NOTE,    /* an event of the work, for people */
    FM_UI_WARNING, /* a failure or damage that does not end the work */
} fm_ui_level;

typedef struct fm_ui_progress {
    const char *what;     /* the current work, borrowed; NULL: it has ended, remove its line */
    uint64_t done, total; /* total 0: not known */
    bool bytes;           /* done and total are bytes */
} fm_ui_progress;

/* The callbacks by which an operation reports. Each may be NULL. All but `hung` are called on the
 * thread that called the operation; texts and values are borrowed. */
typedef struct fm_ui {
    void *ctx;
    /* text: one line or several, without the last newline. Names in it may be hostile. */
    void (*message)(void *ctx, fm_ui_level level, const char *text);
    /* Returns true to stop: the operation ends with FM_ECANCELLED as soon as it can and moves no
     * branch; its results and checkpoints so far are kept. */
    bool (*progress)(void *ctx, const fm_ui_progress *p);
    /* The result of a part of the work, by kind:
     *   "landed"  {"branch","id","message"}: a branch was made or moved
     *   "sweep"   {"name", and the keys of sweep.json}: the trials of a sweep have ended
     *   "replayed" {"rev","id","equal","tensors","steps","differ","paths","log_equal","seconds"} */
    void (*result)(void *ctx, const char *kind, const fm_json *value);
    /* fm_engine_hung: a device hangs. Called on a thread of its own; may end the process. */
    void (*hung)(void *ctx, const char *text);
} fm_ui;

/* A list of texts owned by the caller, such as the values of an option that may be repeated. */
#define FM_WORDS_MAX 64
typedef struct fm_words {
    const char *item[FM_WORDS_MAX];
    size_t count;
} fm_words;

typedef struct fm_ops {
    /* ---- set by the caller before the first call ---- */
    const char *dir;           /* the repository's folder, or one below it */
    fm_ui ui;                  /* all NULL: silent */
    unsigned threads;          /* 0 = all */
    const char *mode;          /* compute mode: "exact", "fast", "bf16"; NULL: exact */
    const char *device;        /* NULL: FMSTORE_DEVICE, config compute.device, else the CPU */
    uint64_t weight_bytes_max; /* of the engine; 0 = no budget */
    uint64_t kv_bytes_max;     /* whole MiB; 0: config compute.kvMemory, or by the machine */
    bool keep_stored;          /* weights stay in their stored type */
    bool keep_packed;          /* packed weights are kept in the repository's cache/ */
    /* Several ranks (ranks.h): only for a program whose main starts them as fmstore's main does. */
    uint32_t ranks;         /* 0 = one */
    uint32_t stages, split; /* 0: not given */
    char **argv;            /* the program's arguments, for the ranks that it starts */
    bool split_batches;     /* the ranks share a training's examples, not a model */
    /* ---- set by the functions below; for reading ---- */
    fm_repo *repo;            /* by fm_ops_open */
    fm_engine *engine;        /* by fm_ops_engine */
    uint32_t step_timeout_s;  /* of the engine: config compute.stepTimeout, or rank 0's value */
    uint64_t kv_bytes;        /* of the engine, or of all ranks together: from kv_bytes_max */
    bool ranks_taken;         /* the first engine uses the ranks; later engines are of one rank */
    struct fm_comm *comm;     /* by fmo_ranks_open */
    struct fm_ranks *others;  /* by fmo_ranks_open: the ranks that this process started */
    struct fm_demand *demand; /* by fm_ops_resolve: tensors of a clone of the lineage alone */
    bool stopped;             /* ui.progress returned true */
} fm_ops;

/* Opens the repository that dir is, or lies in, unless it is open. FM_ENOTFOUND says how to make a
 * repository; fm_repo_init makes one. */
fm_status fm_ops_open(fm_ops *c);
/* Frees all that the functions below made; the caller's part stays. Accepts a zeroed handle. */
void fm_ops_close(fm_ops *c);
/* Opens the repository and takes a lease, so that gc spares all that will be used. writes: a ref
 * will be moved; else the lease keeps only versions resolved from now on, if the repository can be
 * written at all. fm_ops_land needs it; the other operations of this folder's headers do it
 * themselves. */
fm_status fm_ops_lease(fm_ops *c, bool writes, const char *what);
/* Makes the engine by the options above, unless there is one. */
fm_status fm_ops_engine(fm_ops *c);
/* Sets *value to the number that the repository's config has for key; it stays where there is none.
 * FM_EINVAL, naming key and unit: no number from least to most. */
fm_status fm_ops_config_uint(fm_ops *c, const char *key, const char *unit, uint64_t least,
                             uint64_t most, uint64_t *value);
#define FM_OPS_MIB_MAX (((uint64_t)1 << 40) - 1) /* the most MiB of a setting */
uint64_t fm_ops_machine_bytes(void);             /* the machine's memory; 0: not known */

/* Resolves rev to a commit and, unless tree is NULL, reads its tree, which the caller frees. */
fm_status fm_ops_resolve(fm_ops *c, const char *rev, fm_oid *oid, fm_tree **tree);
/* Loads a tree's model, which the caller closes; what: its name in errors. */
fm_status fm_ops_load_model(fm_ops *c, const fm_tree *tree, const char *what, fm_model **out);
fm_status fm_ops_load_rev(fm_ops *c, const char *rev, fm_oid *oid, fm_model **out);
/* Appends the bytes of an entry (file, blob or raw tensor) to out. */
fm_status fm_ops_entry_bytes(fm_ops *c, const fm_entry *e, fm_buf *out);
/* Opens a version's tokenizer without its weights; FM_EUNSUPPORTED: it has none. */
fm_status fm_ops_open_tokenizer(fm_ops *c, const fm_tree *tree, const char *what,
                                fm_tokenizer **out);
/* The first 10 hex digits of an id, in a ring of buffers. */
const char *fm_ops_short_oid(const fm_oid *oid);

FM_END_DECLS
#endif
