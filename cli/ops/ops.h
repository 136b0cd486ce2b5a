/* ops.h - what can be done with a repository as one call: import, derive, merge, test, blame, replay.
 * The command line is made of these; so can be any C program.
 *
 * A handle is a struct that the caller owns: set what you want of the first part, leave the rest
 * zero, call fm_ops_open, and fm_ops_close at the end (also after a failure). Nothing here prints or
 * reads a terminal: what happens is told through `ui`. One handle is used by one thread at a time.
 *
 *   fm_ops ops = {.dir = "models", .threads = 4};
 *   fm_status rc = fm_ops_open(&ops);
 *   ...
 *   fm_ops_close(&ops);
 *
 * All functions return FM_OK or a negative status whose text fm_error_text has. FM_EREFUSED is an
 * honest no (a gate failed), FM_ECANCELLED says that `ui.progress` stopped it. */
#ifndef FM_OPS_H
#define FM_OPS_H

#include "infer/comm.h"
#include "lineage/lineage.h"
#include "testing/testing.h"

FM_BEGIN_DECLS

typedef enum fm_ui_level {
    FM_UI_RESULT,  /* what was asked for */
    FM_UI_NOTE,    /* what happens meanwhile, for people */
    FM_UI_WARNING, /* something that failed, or is damaged, and does not end the work */
} fm_ui_level;

/* What is being done now. */
typedef struct fm_ui_progress {
    const char *what;     /* borrowed; NULL: that work has ended, a line that shows it can go */
    uint64_t done, total; /* total 0: not known */
    bool bytes;           /* these are bytes */
} fm_ui_progress;

/* How an operation tells what it does. Every member may be NULL: then nobody is told. Called on the
 * thread that called the operation, `hung` aside; texts and values are borrowed. */
typedef struct fm_ui {
    void *ctx;
    /* One line or several, without the last newline. Names in it may come from strangers. */
    void (*message)(void *ctx, fm_ui_level level, const char *text);
    /* Returns true to stop: the operation ends with FM_ECANCELLED as soon as it can and moves no
     * branch; results and checkpoints that it has so far are kept. */
    bool (*progress)(void *ctx, const fm_ui_progress *p);
    /* What came of a part of the work, as it comes:
     *   "landed"  {"branch","id","message"}: a branch was made or moved
     *   "sweep"   {"name", and what sweep.json has}: the trials of a sweep have ended
     *   "replayed" {"rev","id","equal","tensors","steps","differ","paths","log_equal","seconds"} */
    void (*result)(void *ctx, const char *kind, const fm_json *value);
    /* fm_engine_hung: a device does not come back. On a thread of its own; may end the process. */
    void (*hung)(void *ctx, const char *text);
} fm_ui;

/* Texts of the caller, such as the values of an option that may be given many times. */
#define FM_WORDS_MAX 64
typedef struct fm_words {
    const char *item[FM_WORDS_MAX];
    size_t count;
} fm_words;

typedef struct fm_ops {
    /* ---- the caller's: before the first call ---- */
    const char *dir;           /* of the repository, or below it */
    fm_ui ui;                  /* all NULL: silent */
    unsigned threads;          /* 0 = all */
    const char *mode;          /* of computing: "exact", "fast", "bf16"; NULL: exact */
    const char *device;        /* NULL: FMSTORE_DEVICE, config compute.device, else the CPU */
    uint64_t weight_bytes_max; /* of the engine; 0 = no budget */
    bool keep_stored;          /* weights stay in the type that they are stored in */
    bool keep_packed;          /* packed weights are kept in the repository's cache/ */
    /* Several ranks (ranks.h): of a program whose main does what fmstore's does for them. */
    uint32_t ranks;         /* 0 = one */
    uint32_t stages, split; /* 0: not given */
    char **argv;            /* the program's words, for the ranks that it begins */
    bool split_batches;     /* the ranks share a training's examples, not a model */
    /* ---- made by the functions below; to be read ---- */
    fm_repo *repo;           /* by fm_ops_open */
    fm_engine *engine;       /* by fm_ops_engine */
    uint32_t step_timeout_s; /* of its steps: config compute.stepTimeout, or what rank 0 says */
    bool ranks_taken;        /* by the first engine; others are of one rank */
    struct fm_comm *comm;    /* by fmo_ranks_open */
    struct fm_ranks *others; /* likewise */
    bool stopped;            /* ui.progress said so */
} fm_ops;

/* Opens the repository that dir is, or lies in; nothing where it is open. FM_ENOTFOUND says how to
 * make one, fm_repo_init makes one. */
fm_status fm_ops_open(fm_ops *c);
/* Frees all that the functions below made; the caller's part stays. A zeroed handle is fine. */
void fm_ops_close(fm_ops *c);
/* ... and keeps gc off what will be used. writes: a ref will be moved; else only versions that are
 * resolved from now on are kept, if the repository can be written at all. fm_ops_land wants it; the
 * other operations of this folder's headers do it themselves. */
fm_status fm_ops_lease(fm_ops *c, bool writes, const char *what);
/* The engine by the options above; nothing where there is one. */
fm_status fm_ops_engine(fm_ops *c);

/* "REV" to a commit and, where tree is not NULL, its tree, which the caller frees. */
fm_status fm_ops_resolve(fm_ops *c, const char *rev, fm_oid *oid, fm_tree **tree);
/* The caller closes the model; what: for errors. */
fm_status fm_ops_load_model(fm_ops *c, const fm_tree *tree, const char *what, fm_model **out);
fm_status fm_ops_load_rev(fm_ops *c, const char *rev, fm_oid *oid, fm_model **out);
/* One version's entry as bytes (file, blob or raw tensor); appended. */
fm_status fm_ops_entry_bytes(fm_ops *c, const fm_entry *e, fm_buf *out);
/* The text side of a version without its weights; FM_EUNSUPPORTED where it has none. */
fm_status fm_ops_open_tokenizer(fm_ops *c, const fm_tree *tree, const char *what,
                                fm_tokenizer **out);
/* 10 hex digits, in a ring of buffers. */
const char *fm_ops_short_oid(const fm_oid *oid);

FM_END_DECLS
#endif
