/* context.h - the base of every command: options, failures, Ctrl-C, exit codes. */
#ifndef FM_CLI_CONTEXT_H
#define FM_CLI_CONTEXT_H

#include "cli/base/opt.h"
#include "cli/base/out.h"
#include "cli/ops/ops.h"

#define CLI_ANSWER_MODE "fast" /* default of the commands that answer people: serve, run */
#define CLI_MODE_OPTION(c)                                                                         \
    {                                                                                              \
        0, "mode", OPT_STR, "M", "exact (same bits everywhere) or fast", &(c)->mode                \
    }

#define CLI_DEVICE_OPTION(c)                                                                       \
    {                                                                                              \
        0, "device", OPT_STR, "D", "cpu (default), cuda, cuda:N or auto", &(c)->device             \
    }

enum { EXIT_YES = 0, EXIT_NO = 1, EXIT_FAILURE_128 = 128, EXIT_USAGE = 129, CLI_GO_ON = -1 };

/* The handle of the operations, passed to every command. */
typedef fm_ops cli;

/* The running command, for its usage and help; set by main.c. */
typedef struct cli_command {
    const char *usage, *summary;
} cli_command;
extern cli_command cli_running;

/* Parses the options. Returns CLI_GO_ON, or an exit code after printing help or a usage error. */
int cli_parse(cli *c, int argc, char **argv, const opt_spec *table, const char **args, size_t min,
              size_t max, size_t *count);
int cli_usage_error(cli *c, const char *fmt, ...) FM_PRINTF(2, 3);
/* The exit code of a status; prints one line "fmstore: <text>" for a failure. FM_EREFUSED gives
 * EXIT_NO. */
int cli_exit(fm_status rc);

/* For fm_engine_hung: reports it and ends the process at once, as a destructor would hang too. */
FM_NORETURN void cli_hung(void *ctx, const char *text);
fm_status cli_read_stdin_line(fm_buf *line, bool *end); /* without its newline; limit 64 MiB */
void cli_say_error(void);                               /* prints that line for the current error */
void cli_say_failure(const char *text);                 /* prints that line for another text */
/* Set by Ctrl-C; long work checks it in progress callbacks, chat templates by themselves.
 * reading_too: fm_go_on then refuses to go on, for commands that may just end; other commands look
 * at the flag alone, to finish their work properly. */
extern volatile int cli_interrupted;
void cli_catch_interrupts(bool reading_too);

#endif
