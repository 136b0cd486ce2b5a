/* context.h - what every command starts from: options, failures, Ctrl-C, exit codes. */
#ifndef FM_CLI_CONTEXT_H
#define FM_CLI_CONTEXT_H

#include "cli/base/opt.h"
#include "cli/base/out.h"
#include "cli/ops/ops.h"

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

/* What every command starts from: the handle of all operations. */
typedef fm_ops cli;

/* The command that runs, for its usage and its help; main's. */
typedef struct cli_command {
    const char *usage, *summary;
} cli_command;
extern cli_command cli_running;

/* Parse or explain: CLI_GO_ON, or the exit code to return (help printed, usage error printed). */
int cli_parse(cli *c, int argc, char **argv, const opt_spec *table, const char **args, size_t min,
              size_t max, size_t *count);
int cli_usage_error(cli *c, const char *fmt, ...) FM_PRINTF(2, 3);
/* Exit code of a status; prints one line "fmstore: <text>" for failures. FM_EREFUSED is an honest
 * no. */
int cli_exit(fm_status rc);

/* For fm_engine_hung: tells it and ends the process; no destructor would come back. */
FM_NORETURN void cli_hung(void *ctx, const char *text);
fm_status cli_read_stdin_line(fm_buf *line, bool *end); /* without its newline; limit 64 MiB */
void cli_say_error(void);                               /* that line alone */
void cli_say_failure(const char *text); /* the same of another text than the error's */
/* Set by Ctrl-C; long work looks at it through progress callbacks, chat templates by themselves.
 * reading_too: fm_go_on refuses then, for commands that only end; others go on reading to leave their
 * work as it should be. */
extern volatile int cli_interrupted;
void cli_catch_interrupts(bool reading_too);

#endif
