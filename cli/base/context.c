/* context.c - opening things once and turning statuses into exit codes. */
#include "cli/base/context.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/base/ranks.h"
#include "infer/chat.h"
#include "store/base/cancel.h"
#include "store/base/os/io.h"
#include "store/base/text/markup.h"
#include "store/base/mem.h"

#define PATIENCE_S 600u

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
    (void)fm_chat_watch_set(&watch); /* this thread renders all templates, but for a server's */
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    sa.sa_flags = (int)SA_RESETHAND; /* a second Ctrl-C ends the program the hard way */
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    struct sigaction hup;
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN) /* nohup: goes on */
        sigaction(SIGHUP, &sa, NULL);
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
        printf("%s\n", c->summary);
        opt_print_help(table);
        return EXIT_YES;
    }
    if (rc == FM_OK)
        rc = fm_device_check(c->device);
    if (rc < 0)
        return cli_usage_error(c, "%s", fm_error_text());
    return CLI_GO_ON;
}

/* Names in errors may come from strangers: no byte of theirs may move the cursor or add a line. In
 * one write, so that what several ranks say does not mingle. */
void cli_say_error(void)
{
    char line[16 + 4 * 1024]; /* an error has up to 1,023 bytes */
    size_t n = (size_t)snprintf(line, sizeof(line), "fmstore: ");
    const char *text = fm_error_text();
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

int cli_exit(fm_status rc)
{
    if (rc == FM_OK)
        return EXIT_YES;
    out_progress_end();
    /* Text of something else; what names memory names the rank or the operation that lacked it. */
    if (rc == FM_ENOMEM && !strstr(fm_error_text(), "memory"))
        fm_ignore(fm_fail(rc, "out of memory"), "for cli_say_error");
    else if (rc != FM_EREFUSED && !*fm_error_text())
        fm_ignore(fm_fail(rc, "%s", fm_status_name(rc)), "for cli_say_error");
    if (*fm_error_text())
        cli_say_error();
    return rc == FM_EREFUSED ? EXIT_NO : EXIT_FAILURE_128;
}

fm_status cli_open(cli *c)
{
    return c->repo ? FM_OK : fm_repo_open(&c->repo, c->dir);
}

fm_status cli_lease(cli *c, bool writes, const char *what)
{
    fm_status rc = cli_open(c);
    if (rc != FM_OK)
        return rc;
    rc = fm_store_lease(fm_repo_store(c->repo), writes, what);
    if (rc == FM_EIO &&
        !writes) { /* read-only: who cannot write there cannot delete there either */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* Config fmstore.cachemax, in MiB; 0: nothing is kept there. */
static fm_status cache_max(cli *c, uint64_t *bytes)
{
    char *text = fm_repo_config(c->repo, "fmstore.cachemax"), *end = NULL;
    if (!text)
        return FM_OK;
    unsigned long long mib = strtoull(text, &end, 10);
    bool good = text[0] >= '0' && text[0] <= '9' && *end == '\0' && mib < (1ull << 40);
    *bytes = (uint64_t)mib << 20;
    fm_status rc =
        good ? FM_OK
             : fm_fail(FM_EINVAL, "config fmstore.cachemax is '%s', not a number of MiB", text);
    fm_free(text);
    return rc;
}

/* --device, FMSTORE_DEVICE, config compute.device: the first that says something. *kept holds it. */
static fm_status pick_device(cli *c, const char **out, char **kept)
{
    const char *env = getenv("FMSTORE_DEVICE");
    *kept = NULL;
    *out = c->device;
    bool asked = *out, set = env && *env;
    if (!asked && set)
        *out = env;
    if (!*out && c->repo)
        *out = *kept = fm_repo_config(c->repo, "compute.device");
    fm_status rc = fm_device_check(*out);
    if (rc == FM_OK || asked) /* the option was checked when it was read */
        return rc;
    return fm_error_prefix(rc, set ? "environment FMSTORE_DEVICE" : "config compute.device");
}

/* Config compute.patience, in seconds; 0: a step may take any time. */
static fm_status read_patience(cli *c)
{
    char *text = c->repo ? fm_repo_config(c->repo, "compute.patience") : NULL, *end = NULL;
    c->patience_s = PATIENCE_S;
    if (!text)
        return FM_OK;
    unsigned long long s = strtoull(text, &end, 10);
    bool good = text[0] >= '0' && text[0] <= '9' && *end == '\0' && s <= 10000000;
    c->patience_s = (uint32_t)s;
    fm_status rc =
        good ? FM_OK
             : fm_fail(FM_EINVAL, "config compute.patience is '%s', not a number of seconds", text);
    fm_free(text);
    return rc;
}

void cli_hung(void *ctx, const char *text)
{
    (void)ctx;
    fm_ignore(fm_fail(FM_EIO, "%s", text), "for cli_say_error");
    cli_say_error();
    _exit(EXIT_FAILURE_128);
}

static fm_status new_engine(cli *c, fm_engine_opts *opts)
{
    char *kept, card[RANKS_CARD_BYTES];
    fm_status rc = pick_device(c, &opts->device, &kept);
    if (rc == FM_OK)
        rc = opts->comm ? ranks_card(c, &opts->device, card) : FM_OK;
    if (rc == FM_OK)
        rc = fm_engine_new(&c->engine, opts);
    if (rc == FM_OK)
        fm_engine_hung(c->engine, cli_hung, NULL);
    fm_free(kept);
    return rc;
}

fm_status cli_engine(cli *c)
{
    char *folder = NULL;
    if (c->engine)
        return FM_OK;
    fm_engine_opts opts = fm_engine_defaults();
    opts.weight_bytes_max = c->weight_bytes_max;
    opts.keep_stored = c->keep_stored;
    if (c->mode)
        opts.mode = c->mode;
    fm_status rc = ranks_mine() == 0 ? read_patience(c) : FM_OK;
    if (rc == FM_OK && ranks_wanted(c) && !c->comm)
        rc = ranks_open(c, c->split_batches);
    bool takes = c->comm && !c->ranks_taken;
    if (rc == FM_OK && takes && !c->split_batches && ranks_mine() == 0)
        rc = ranks_tell_engine(c);
    c->ranks_taken = c->ranks_taken || takes;
    opts.threads = c->threads;
    opts.patience_s = (double)c->patience_s;
    opts.comm = takes ? c->comm : NULL;
    opts.comm_splits_batches = c->split_batches;
    opts.stages = takes ? c->stages : 0;
    if (rc == FM_OK && opts.comm && !c->split_batches) /* one budget, as serve --plan counts it */
        opts.kv_bytes_max /= fm_comm_size(opts.comm);
    if (rc == FM_OK && c->keep_packed && c->repo) {
        rc = cache_max(c, &opts.cache_bytes_max);
        folder = rc == FM_OK ? fm_path_join(fm_repo_path(c->repo), "cache") : NULL;
        if (rc == FM_OK && !folder)
            rc = FM_ENOMEM;
        opts.cache_dir = opts.cache_bytes_max ? folder : NULL;
    }
    if (rc == FM_OK)
        rc = new_engine(c, &opts);
    fm_free(folder);
    return rc;
}

/* Nobody asked for it, so it is worth a word: a disk that damages one file damages others. */
static void tell_damage(cli *c)
{
    static uint64_t told;
    uint64_t refused = fm_engine_stats_of(c->engine).packed_refused;
    if (refused > told)
        fprintf(stderr, "fmstore: %llu damaged files under cache/packed were made anew\n",
                (unsigned long long)(refused - told));
    told = refused;
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
    if (rc != FM_OK)
        return rc;
    rc = fm_model_load(out, c->engine, tree, &p, what);
    tell_damage(c);
    return rc;
}

fm_status cli_load_rev(cli *c, const char *rev, fm_oid *oid, fm_model **out)
{
    fm_tree *tree = NULL;
    fm_status rc = cli_lease(c, false, "a model in use");
    if (rc == FM_OK)
        rc = cli_resolve(c, rev, oid, &tree);
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

static fm_status text_entry(cli *c, const fm_tree *tree, const char *path, fm_buf *out)
{
    const fm_entry *e = fm_tree_find(tree, path);
    return e ? cli_entry_bytes(c, e, out) : FM_OK;
}

fm_status cli_open_tokenizer(cli *c, const fm_tree *tree, const char *what, fm_tokenizer **out)
{
    fm_buf json, config;
    fm_buf_init(&json, 0);
    fm_buf_init(&config, 0);
    *out = NULL;
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && !json.len && fm_tokenizer_paths[i]; i++)
        rc = text_entry(c, tree, fm_tokenizer_paths[i], &json);
    if (rc == FM_OK)
        rc = text_entry(c, tree, "tokenizer/tokenizer_config.json", &config);
    if (rc == FM_OK && !json.len)
        rc = fm_fail(
            FM_EUNSUPPORTED,
            "%s has no tokenizer.json or tokenizer.model, so it cannot read text; import the "
            "model's whole folder",
            what);
    if (rc == FM_OK)
        rc = fm_tokenizer_open(out, fm_buf_span(&json), fm_buf_span(&config), what);
    fm_buf_release(&json);
    fm_buf_release(&config);
    return rc;
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
