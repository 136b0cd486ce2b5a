/* call.c - makes a command line for git, runs it, and says what went wrong in the host's words. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "remote/githost/githost_impl.h"
#include "store/base/mem.h"

#define WORD_BYTES 4096u

static void take(fmr_call *c, char *word)
{
    if (c->rc == FM_OK && !word)
        c->rc = FM_ENOMEM;
    if (c->rc == FM_OK)
        c->rc = fm_grow(&c->argv, &c->cap, c->count + 2, sizeof *c->argv);
    if (c->rc != FM_OK) {
        fm_free(word);
        return;
    }
    c->argv[c->count++] = word;
    c->argv[c->count] = NULL;
}

void fmr_call_add(fmr_call *c, const char *format, ...)
{
    char word[WORD_BYTES];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(word, sizeof word, format, args);
    va_end(args);
    if (c->rc == FM_OK && (n < 0 || (size_t)n >= sizeof word))
        c->rc = fm_fail(FM_ELIMIT, "a word of more than %u bytes for git", WORD_BYTES - 1);
    if (c->rc == FM_OK)
        take(c, fm_strdup(word));
}

static void set(fmr_call *c, const char *setting)
{
    take(c, fm_strdup("-c"));
    take(c, fm_strdup(setting));
}

void fmr_call_init(fmr_call *c, const fmr_githost *h, const char *git_dir)
{
    /* No program of a repository runs, and no repository is tidied up by the way. */
    static const char *const setting[] = {
        "core.hooksPath=/dev/null",   "core.fsmonitor=false",      "gc.auto=0",
        "maintenance.auto=false",     "protocol.ext.allow=never",  "fetch.unpackLimit=1",
        "fetch.fsckObjects=true",     "core.bigFileThreshold=16m", "fetch.writeCommitGraph=false",
        "fetch.recurseSubmodules=no", "push.recurseSubmodules=no", "push.followTags=false"};
    memset(c, 0, sizeof *c);
    fmr_call_add(c, "git");
    fmr_call_add(c, "--git-dir=%s", git_dir);
    for (size_t i = 0; i < FM_ARRAY_LEN(setting); i++)
        set(c, setting[i]);
    if (h->ssh) {
        fmr_call_add(c, "-c");
        fmr_call_add(c, "core.sshCommand=%s", h->ssh);
    }
    if (h->ca_file) {
        fmr_call_add(c, "-c");
        fmr_call_add(c, "http.sslCAInfo=%s", h->ca_file);
    }
}

void fmr_call_release(fmr_call *c)
{
    for (size_t i = 0; i < c->count; i++)
        fm_free(c->argv[i]);
    fm_free(c->argv);
    memset(c, 0, sizeof *c);
}

/* One line of git's words, joined to the others. */
static void join(char *out, size_t cap, const char *line, size_t len)
{
    while (len > 0 && line[len - 1] == ' ')
        len--;
    const size_t had = strlen(out);
    if (len > 0 && had + 4 < cap)
        (void)snprintf(out + had, cap - had, "%s%.*s", had ? "; " : "", (int)FM_MIN(len, 2000),
                       line);
}

static bool begins(const char *line, size_t len, const char *with)
{
    return len >= strlen(with) && strncmp(line, with, strlen(with)) == 0;
}

/* What is of no use to the one who reads it. */
static bool is_idle(const char *line, size_t len)
{
    static const char *const idle[] = {"hint: ",
                                       "To ",
                                       "From ",
                                       "Please make sure",
                                       "warning: no common commits",
                                       "and the repo",
                                       "error: failed to push some refs",
                                       "fatal: Could not read from remote"};
    for (size_t i = 0; i < FM_ARRAY_LEN(idle); i++)
        if (begins(line, len, idle[i]))
            return true;
    return false;
}

void fmr_call_words(const fmr_git_run *run, bool remote, char *out, size_t cap)
{
    static const char mark[] = "remote: ", fatal[] = "fatal: ";
    out[0] = '\0';
    for (const char *line = run->words; *line;) {
        const size_t len = strcspn(line, "\n");
        if (begins(line, len, mark))
            join(out, cap, line + sizeof mark - 1, len - (sizeof mark - 1));
        else if (!remote && !is_idle(line, len)) {
            const size_t skip = begins(line, len, fatal) ? sizeof fatal - 1 : 0;
            join(out, cap, line + skip, len - skip);
        }
        line += len + (line[len] == '\n');
    }
}

fm_status fmr_call_run(fmr_call *c, const fmr_githost *h, fmr_git_run *run)
{
    char why[600];
    FM_TRY(c->rc);
    run->argv = c->argv;
    run->listen = true;
    FM_TRY(fmr_git(run));
    if (run->code == 0 || run->code == 1)
        return FM_OK;
    fmr_call_words(run, false, why, sizeof why);
    return fm_fail(FM_EIO, "%s: %s", h->shown,
                   why[0] ? why : "there is no repository, or it may not be read");
}
