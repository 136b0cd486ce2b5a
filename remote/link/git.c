/* git.c - runs the user's git. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "remote/link/process.h"
#include "remote/link/socket.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

#define LOOK_MS 200
#define END_WITHIN_S 5.0

extern char **environ;

static bool sets(const char *entry, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

/* What would lead git to another repository: those of `git rev-parse --local-env-vars` that name
 * places, as a hook's environment has them. */
static bool names_a_place(const char *entry)
{
    static const char *const name[] = {
        "GIT_DIR",          "GIT_WORK_TREE",        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",   "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_SHALLOW_FILE", "GIT_NAMESPACE",        "GIT_PREFIX",
        "GIT_GRAFT_FILE",   "GIT_QUARANTINE_PATH"};
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++)
        if (sets(entry, name[i]))
            return true;
    return false;
}

/* Without a terminal git must ask nobody, through no program either. What is read here is in git's
 * own words (LC_ALL=C). */
static fm_status make_environment(char ***out, bool listen)
{
    static char no_prompt[] = "GIT_TERMINAL_PROMPT=0",
                no_ask[] = "GIT_ASKPASS=", plain[] = "LC_ALL=C";
    const bool quiet = isatty(STDIN_FILENO) == 0;
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **e = fm_calloc(n + 4, sizeof *e);
    *out = e;
    if (!e)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const bool asks =
            sets(environ[i], "GIT_TERMINAL_PROMPT") || sets(environ[i], "GIT_ASKPASS");
        if (!names_a_place(environ[i]) && !(quiet && asks) &&
            !(listen && sets(environ[i], "LC_ALL")))
            e[kept++] = environ[i];
    }
    if (quiet) {
        e[kept++] = no_prompt;
        e[kept++] = no_ask;
    }
    if (listen)
        e[kept++] = plain;
    return FM_OK;
}

typedef struct talk {
    fmr_git_run *g;
    pid_t pid;
    int fd, error; /* error -1: nobody listens */
    size_t said, heard;
} talk;

/* The newest bytes push the oldest out. */
static void hear(talk *t, const char *text, size_t len)
{
    char *words = t->g->words;
    const size_t room = sizeof t->g->words - 1;
    const size_t n = FM_MIN(len, room), kept = FM_MIN(t->heard, room - n);
    memmove(words, words + t->heard - kept, kept);
    for (size_t i = 0; i < n; i++) {
        const char c = text[len - n + i];
        words[kept + i] = (unsigned char)c < ' ' || c == 0x7f ? (c == '\n' ? '\n' : ' ') : c;
    }
    t->heard = kept + n;
    words[t->heard] = '\0';
}

/* False: it has ended. */
static bool take_words(talk *t)
{
    char some[1024];
    const ssize_t n = recv(t->error, some, sizeof some, MSG_DONTWAIT);
    if (n > 0)
        hear(t, some, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* *over: it has closed its standard output. */
static fm_status take_answer(talk *t, bool *over)
{
    uint8_t some[16384];
    const ssize_t n = recv(t->fd, some, sizeof some, MSG_DONTWAIT);
    *over = n == 0 || (n < 0 && errno == ECONNRESET);
    if (n < 0 && !*over && errno != EAGAIN && errno != EINTR)
        return fm_fail(FM_EIO, "git: %s", strerror(errno));
    if (n > 0)
        fm_buf_append(t->g->answer, some, (size_t)n);
    return fm_buf_ok(t->g->answer);
}

static void give(talk *t)
{
    const fm_span say = t->g->say;
    const ssize_t n = t->said < say.len ? send(t->fd, say.data + t->said, say.len - t->said,
                                               MSG_DONTWAIT | MSG_NOSIGNAL)
                                        : 0;
    if (n > 0)
        t->said += (size_t)n;
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        t->said = say.len; /* it wants no more; its exit status says why */
    if (t->said == say.len)
        (void)shutdown(t->fd, SHUT_WR);
}

/* Up to the end of its standard output: a daemon that it left behind may hold the other one. */
static fm_status converse(talk *t)
{
    bool over = false;
    if (t->g->say.len == 0)
        give(t);
    while (!over) {
        const bool more = t->said < t->g->say.len;
        struct pollfd p[2] = {{.fd = t->fd, .events = more ? POLLIN | POLLOUT : POLLIN},
                              {.fd = t->error, .events = POLLIN}};
        FM_TRY(fm_go_on());
        if (poll(p, 2, LOOK_MS) < 0 && errno != EINTR)
            return fm_fail(FM_EIO, "git: %s", strerror(errno));
        if ((p[1].revents & (POLLIN | POLLHUP | POLLERR)) && !take_words(t))
            t->error = -1; /* closed by the caller */
        if (more && (p[0].revents & POLLOUT))
            give(t);
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR))
            FM_TRY(take_answer(t, &over));
    }
    return FM_OK;
}

/* It has said all that it says on its standard output, and may still work. */
static fm_status await(talk *t, int *status)
{
    for (;;) {
        const pid_t got = waitpid(t->pid, status, WNOHANG);
        if (got == t->pid || (got < 0 && errno != EINTR))
            break;
        struct pollfd p = {.fd = t->error, .events = POLLIN};
        FM_TRY(fm_go_on());
        (void)poll(&p, 1, 5);
        if (p.revents && !take_words(t))
            t->error = -1;
    }
    while (t->error >= 0 && recv(t->error, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        (void)take_words(t);
    t->pid = 0;
    return FM_OK;
}

/* The limits must hold before git starts anything, so a shell sets them and becomes git. POSIX
 * counts files in blocks of 512 bytes; a limit that is lower already stays. */
static char *const *limited(const fmr_git_run *g, char file[24], char memory[24])
{
    static char sh[] = "/bin/sh", c[] = "-c",
                line[] = "[ $1 = 0 ] || ulimit -f $1 2>/dev/null; [ $2 = 0 ] || ulimit -d $2 "
                         "2>/dev/null; shift 2; exec \"$@\"";
    size_t n = 0, at = 0;
    while (g->argv[n])
        n++;
    char **argv = fm_calloc(n + 7, sizeof *argv);
    if (!argv)
        return NULL;
    (void)snprintf(file, 24, "%llu", (unsigned long long)(g->file_bytes / 512));
    (void)snprintf(memory, 24, "%llu", (unsigned long long)(g->memory_bytes / 1024));
    char *const head[] = {sh, c, line, sh, file, memory};
    for (size_t i = 0; i < FM_ARRAY_LEN(head); i++)
        argv[at++] = head[i];
    for (size_t i = 0; i < n; i++)
        argv[at++] = g->argv[i];
    return argv;
}

static fm_status no_git(void)
{
    return fm_fail(FM_EUNSUPPORTED,
                   "git is not installed, and a lineage on a git host needs it: 'apt-get install "
                   "git', or what your system has in its place");
}

static fm_status start(talk *t, int fd, int error)
{
    const fmr_git_run *g = t->g;
    const bool limits = g->file_bytes || g->memory_bytes;
    const int to = g->listen ? error : isatty(STDERR_FILENO) ? -1 : FMR_NO_ERROR;
    char **environment, file[24], memory[24];
    FM_TRY(make_environment(&environment, g->listen));
    char *const *argv = limits ? limited(g, file, memory) : g->argv;
    fm_status rc = argv ? fmr_spawn(&t->pid, argv, environment, fd, to) : FM_ENOMEM;
    if (limits)
        fm_free((void *)(uintptr_t)argv);
    fm_free(environment);
    return rc == FM_EUNSUPPORTED ? no_git() : rc;
}

static fm_status run(talk *t, const int out[2], const int err[2])
{
    int status = 0;
    fm_status rc = start(t, out[1], err[1]);
    (void)close(out[1]);
    (void)close(err[1]);
    if (rc != FM_OK)
        return rc;
    t->fd = out[0];
    t->error = t->g->listen ? err[0] : -1;
    rc = converse(t);
    FM_THEN(rc, await(t, &status));
    if (rc != FM_OK) {
        fm_error_state text;
        fm_error_save(&text);
        (void)kill(t->pid, SIGTERM);
        (void)fmr_reap(t->pid, END_WITHIN_S);
        fm_error_restore(&text);
    }
    t->g->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (rc == FM_OK && t->g->code == 127 && strstr(t->g->words, "git: not found")) /* the shell */
        rc = no_git();
    return rc;
}

fm_status fmr_git(fmr_git_run *g)
{
    int out[2], err[2];
    talk t = {.g = g, .error = -1};
    g->words[0] = '\0';
    g->code = 0;
    FM_TRY(fmr_socket_pair(out));
    fm_status rc = fmr_socket_pair(err);
    if (rc != FM_OK) {
        (void)close(out[0]);
        (void)close(out[1]);
        return rc;
    }
    rc = run(&t, out, err);
    (void)close(out[0]);
    (void)close(err[0]);
    return rc;
}
