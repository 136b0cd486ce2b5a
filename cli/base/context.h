/* context.h - what every command starts from: where the repository is, the engine, exit codes. */
#ifndef FM_CLI_CONTEXT_H
#define FM_CLI_CONTEXT_H

#include "cli/base/opt.h"
#include "cli/base/out.h"
#include "lineage/lineage.h"
#include "infer/comm.h"
#include "testing/testing.h"

#define CLI_ANSWER_MODE "fast" /* of commands that answer people: serve, run */
#define CLI_MODE_OPTION(c)                                                                         \
    {                                                                                              \
        0, "mode", OPT_STR, "M", "exact (same bits everywhere) or fast", &(c)->mode                \
    }

#define CLI_DEVICE_OPTION(c)                                                                       \
    {                                                                                              \
        0, "device", OPT_STR, "D", "cpu (default), cuda, cuda:N or auto", &(c)->device             \
    }

enum { EXIT_YES = 0, EXIT_NO = 1, EXIT_FAILURE_128 = 128, EXIT_USAGE = 129, CLI_GO_ON = -1 };

typedef struct cli {
    const char *dir;             /* -C, "." */
    unsigned threads;            /* --threads, 0 = all */
    uint32_t ranks;              /* --ranks, 0 = one (ranks.h) */
    uint32_t stages, split;      /* --stages, --tensor-parallel-size; 0: not given */
    char **argv;                 /* of the program */
    bool split_batches;          /* the ranks share a training's examples, not a model */
    bool ranks_taken;            /* by the first engine; others are of one rank */
    struct fm_comm *comm;        /* opened by ranks_open, closed by main */
    struct fm_ranks *others;     /* likewise */
    const char *mode;            /* --mode of commands that have it; NULL: exact */
    const char *device;          /* --device likewise; NULL: FMSTORE_DEVICE, config, the CPU */
    uint64_t weight_bytes_max;   /* of the engine; 0 = no budget */
    uint32_t patience_s;         /* of its steps: config compute.patience, or what rank 0 says */
    bool keep_stored;            /* of the engine: weights stay as they are stored */
    bool keep_packed;            /* packed weights are kept in the repository's cache/ */
    const char *usage, *summary; /* of the running command */
    fm_repo *repo;               /* opened by cli_open, closed by main */
    fm_engine *engine;           /* made by cli_engine, freed by main */
} cli;

/* Parse or explain: CLI_GO_ON, or the exit code to return (help printed, usage error printed). */
int cli_parse(cli *c, int argc, char **argv, const opt_spec *table, const char **args, size_t min,
              size_t max, size_t *count);
int cli_usage_error(cli *c, const char *fmt, ...) FM_PRINTF(2, 3);
/* Exit code of a status; prints one line "fmstore: <text>" for failures. FM_EREFUSED is an honest
 * no. */
int cli_exit(fm_status rc);

fm_status cli_open(cli *c);
/* Opens the repository and keeps gc off what this command will use. writes: it will move a ref; else
 * only versions that are resolved from now on are kept, if the repository can be written at all. */
fm_status cli_lease(cli *c, bool writes, const char *what);
fm_status cli_engine(cli *c);
/* For fm_engine_hung: tells it and ends the process; no destructor would come back. */
FM_NORETURN void cli_hung(void *ctx, const char *text);
/* "REV" to a commit and, where tree is not NULL, its tree. */
fm_status cli_resolve(cli *c, const char *rev, fm_oid *oid, fm_tree **tree);
fm_status cli_load_model(cli *c, const fm_tree *tree, const char *what, fm_model **out);
fm_status cli_load_rev(cli *c, const char *rev, fm_oid *oid, fm_model **out);
/* One version's entry as bytes (file, blob or raw tensor); appended. */
fm_status cli_entry_bytes(cli *c, const fm_entry *e, fm_buf *out);
/* The text side of a version without its weights; FM_EUNSUPPORTED where it has none. */
fm_status cli_open_tokenizer(cli *c, const fm_tree *tree, const char *what, fm_tokenizer **out);
const char *cli_short_oid(const fm_oid *oid);           /* 10 hex digits, ring of buffers */
fm_status cli_read_stdin_line(fm_buf *line, bool *end); /* without its newline; limit 64 MiB */
void cli_say_error(void);                               /* that line alone */
/* Set by Ctrl-C; long work looks at it through progress callbacks, chat templates by themselves.
 * reading_too: fm_go_on refuses then, for commands that only end; others go on reading to leave their
 * work as it should be. */
extern volatile int cli_interrupted;
void cli_catch_interrupts(bool reading_too);

#endif
