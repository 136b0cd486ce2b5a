/* context.c - usage and help of the command, failures, Ctrl-C, exit codes. */
#include "cli/base/context.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "infer/chat.h"
#include "store/base/cancel.h"
#include "store/base/text/markup.h"

volatile int cli_interrupted;
static volatile sig_atomic_t all_reading_stops;

static void on_signal(int sig)
{
    (void)sig;
    cli_interrupted = 1;
    if (all_reading_stops)
        fm_cancel(true);
}

static bool interrupted(void *ctx)
{
    (void)ctx;
    return cli_interrupted;
}

void cli_catch_interrupts(bool reading_too)
{
    static fm_chat_watch watch = {.stop = interrupted};
    struct sigaction sa;
    all_reading_stops = reading_too;
    (void)fm_chat_watch_set(&watch); /* this thread renders all templates but a server's */
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = (int)SA_RESETHAND; /* a second Ctrl-C kills the program */
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    struct sigaction hup;
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN) /* nohup: stays ignored */
        sigaction(SIGHUP, &sa, NULL);
}

cli_command cli_running;

static void print_usage(FILE *to)
{
    fprintf(to, "usage: fmstore %s\n", cli_running.usage);
}

int cli_usage_error(cli *c, const char *fmt, ...)
{
    (void)c;
    va_list ap;
    va_start(ap, fmt);
    fputs("fmstore: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    print_usage(stderr);
    return EXIT_USAGE;
}

int cli_parse(cli *c, int argc, char **argv, const opt_spec *table, const char **args, size_t min,
              size_t max, size_t *count)
{
    fm_status rc = opt_parse(argc, argv, table, args, min, max, count);
    if (rc == FM_ECANCELLED) {
        print_usage(stdout);
        printf("%s\n", cli_running.summary);
        opt_print_help(table);
        return EXIT_YES;
    }
    FM_THEN(rc, fm_device_check(c->device));
    if (rc < 0)
        return cli_usage_error(c, "%s", fm_error_text());
    return CLI_GO_ON;
}

/* Names in errors may be hostile: no byte of them may move the cursor or add a line. The text goes
 * out in one write, so that lines of several ranks do not mix. */
void cli_say_failure(const char *text)
{
    char line[16 + 4 * 1024]; /* an error has up to 1,023 bytes */
    size_t n = (size_t)snprintf(line, sizeof(line), "fmstore: ");
    for (size_t left = strlen(text), used; left && n + 5 < sizeof(line);
         text += used, left -= used) {
        used = fm_markup_shown(text, left);
        memcpy(line + n, text, used);
        n += used;
        if (used == 0) {
            used = 1;
            n += (size_t)snprintf(line + n, sizeof(line) - n, "\\x%02x", (unsigned char)*text);
        }
    }
    line[n++] = '\n';
    fwrite(line, 1, n, stderr);
}

void cli_say_error(void)
{
    cli_say_failure(fm_error_text());
}

int cli_exit(fm_status rc)
{
    if (rc == FM_OK)
        return EXIT_YES;
    out_progress_end();
    /* A text that does not name memory belongs to an earlier error; one that does names the rank or
     * operation that lacked it. */
    if (rc == FM_ENOMEM && !strstr(fm_error_text(), "memory"))
        fm_ignore(fm_fail(rc, "out of memory"), "for cli_say_error");
    else if (rc != FM_EREFUSED && !*fm_error_text())
        fm_ignore(fm_fail(rc, "%s", fm_status_name(rc)), "for cli_say_error");
    if (*fm_error_text())
        cli_say_error();
    return rc == FM_EREFUSED ? EXIT_NO : EXIT_FAILURE_128;
}

void cli_hung(void *ctx, const char *text)
{
    (void)ctx;
    cli_say_failure(text);
    _exit(EXIT_FAILURE_128);
}

#define LINE_MAX_BYTES ((size_t)64 << 20)
fm_status cli_read_stdin_line(fm_buf *line, bool *end)
{
    fm_buf_clear(line);
    *end = false;
    for (;;) {
        int ch = fgetc(stdin);
        if (ch == EOF) {
            *end = line->len == 0 || cli_interrupted;
            return ferror(stdin) && !cli_interrupted ? fm_fail(FM_EIO, "standard input: read error")
                                                     : FM_OK;
        }
        if (ch == '\n')
            return FM_OK;
        if (line->len == LINE_MAX_BYTES)
            return fm_fail(FM_ELIMIT, "standard input: a line is longer than 64 MiB");
        fm_buf_char(line, (char)ch);
        if (line->failed)
            return line->failed;
    }
}
