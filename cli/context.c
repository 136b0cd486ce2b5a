/* context.c - opening things once and turning statuses into exit codes. */
#include "cli/context.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

volatile int cli_interrupted;

static void on_signal(int sig)
{
    (void)sig;
    cli_interrupted = 1;
}

void cli_catch_interrupts(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = (int)SA_RESETHAND; /* a second Ctrl-C ends the program the hard way */
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static void print_usage(FILE *to, const cli *c)
{
    fprintf(to, "usage: fmstore %s\n", c->usage);
}

int cli_usage_error(cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("fmstore: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    print_usage(stderr, c);
    return EXIT_USAGE;
}

int cli_parse(cli *c, int argc, char **argv, const opt_spec *table, const char **args, size_t min,
              size_t max, size_t *count)
{
    fm_status rc = opt_parse(argc, argv, table, args, min, max, count);
    if (rc == FM_ECANCELLED) {
        print_usage(stdout, c);
        opt_print_help(table);
        return EXIT_YES;
    }
    if (rc < 0)
        return cli_usage_error(c, "%s", fm_error_text());
    return CLI_GO_ON;
}

int cli_exit(fm_status rc)
{
    if (rc == FM_OK)
        return EXIT_YES;
    out_progress_end();
    if (rc == FM_EREFUSED) {
        if (*fm_error_text())
            fprintf(stderr, "fmstore: %s\n", fm_error_text());
        return EXIT_NO;
    }
    fprintf(stderr, "fmstore: %s\n", *fm_error_text() ? fm_error_text() : fm_status_name(rc));
    return EXIT_FAILURE_128;
}

fm_status cli_open(cli *c)
{
    return c->repo ? FM_OK : fm_repo_open(&c->repo, c->dir);
}

fm_status cli_engine(cli *c)
{
    if (c->engine)
        return FM_OK;
    fm_engine_opts opts = fm_engine_defaults();
    opts.threads = c->threads;
    return fm_engine_new(&c->engine, &opts);
}

fm_status cli_resolve(cli *c, const char *rev, fm_oid *oid, fm_tree **tree)
{
    fm_status rc = cli_open(c);
    if (rc == FM_OK)
        rc = fm_rev_resolve(c->repo, oid, rev);
    if (rc == FM_OK && tree)
        rc = fm_version_tree(c->repo, tree, oid);
    return rc;
}

fm_status cli_load_model(cli *c, const fm_tree *tree, const char *what, fm_model **out)
{
    fm_provider p = fm_store_provider(fm_repo_store(c->repo));
    fm_status rc = cli_engine(c);
    return rc == FM_OK ? fm_model_load(out, c->engine, tree, &p, what) : rc;
}

fm_status cli_load_rev(cli *c, const char *rev, fm_oid *oid, fm_model **out)
{
    fm_tree *tree = NULL;
    fm_status rc = cli_resolve(c, rev, oid, &tree);
    if (rc == FM_OK)
        rc = cli_load_model(c, tree, rev, out);
    fm_tree_free(tree);
    return rc;
}

fm_status cli_entry_bytes(cli *c, const fm_entry *e, fm_buf *out)
{
    fm_provider p = fm_store_provider(fm_repo_store(c->repo));
    return fm_entry_read(out, &p, e);
}

const char *cli_short_oid(const fm_oid *oid)
{
    static char slot[8][41];
    static unsigned next;
    char *s = slot[next++ % 8];
    fm_oid_hex(oid, s);
    s[10] = 0;
    return s;
}

#define LINE_MAX_BYTES ((size_t)64 << 20)
fm_status cli_read_stdin_line(fm_buf *line, bool *end)
{
    fm_buf_clear(line);
    *end = false;
    for (;;) {
        int ch = fgetc(stdin);
        if (ch == EOF) {
            *end = line->len == 0;
            return ferror(stdin) ? fm_fail(FM_EIO, "standard input: read error") : FM_OK;
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
