/* ssh.c - a repository of another machine: fmstore at the other end of the user's own ssh. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remote/link/open.h"
#include "remote/link/process.h"
#include "remote/link/socket.h"
#include "store/base/mem.h"

#define END_WITHIN_S 5.0

typedef struct ssh {
    fmr_fds fds;
    pid_t pid; /* 0: none */
} ssh;

static void close_ssh(void *ctx)
{
    ssh *s = ctx;
    if (s->fds.in >= 0)
        (void)close(s->fds.in);
    if (s->pid > 0)
        (void)fmr_reap(s->pid, END_WITHIN_S); /* ssh ends when its input does */
    fm_free(s);
}

/* Appends text as one word of a shell. */
static void quote(fm_buf *b, const char *text)
{
    fm_buf_char(b, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            fm_buf_str(b, "'\\''");
        else
            fm_buf_char(b, *text);
    }
    fm_buf_char(b, '\'');
}

/* What the far side's shell runs. A path that begins with ~ is left to that shell, up to its first
 * slash, as git leaves it. */
static void far_command(fm_buf *b, const fmr_url *url, fmr_service service, const char *program)
{
    const char *path = url->path;
    fm_buf_str(b, program && *program ? program : "fmstore");
    fm_buf_str(b, service == FMR_WRITE ? " receive-pack " : " upload-pack ");
    if (path[0] == '~') {
        const size_t n = strcspn(path, "/");
        bool plain = true;
        for (size_t i = 1; i < n; i++)
            plain = plain && (strchr("._-", path[i]) || (path[i] >= '0' && path[i] <= '9') ||
                              ((path[i] | 32) >= 'a' && (path[i] | 32) <= 'z'));
        if (plain) {
            fm_buf_append(b, path, n);
            path += n;
        }
    }
    if (*path)
        quote(b, path);
}

/* One line for sh: the ssh command may hold options, as git's core.sshCommand does. */
static fm_status command(fm_buf *b, const fmr_url *url, fmr_service service,
                         const fmr_open_opts *opts)
{
    const char *env = getenv("GIT_SSH_COMMAND"), *given = env && *env ? env : opts->ssh;
    fm_buf far;
    fm_buf_init(&far, 4 * FMR_URL_MAX + 4096);
    far_command(&far, url, service, opts->program);
    fm_buf_str(b, given && *given ? given : "ssh");
    if (url->port)
        fm_buf_printf(b, " -p %u", url->port);
    fm_buf_char(b, ' ');
    if (url->user) {
        quote(b, url->user);
        fm_buf_char(b, '@');
    }
    quote(b, url->host);
    fm_buf_char(b, ' ');
    quote(b, fm_buf_cstr(&far));
    fm_status rc = fm_buf_ok(&far);
    fm_buf_release(&far);
    FM_THEN(rc, fm_buf_ok(b));
    return rc;
}

static fm_status begin(ssh *s, const fmr_url *url, fmr_service service, const fmr_open_opts *opts)
{
    int pair[2];
    fm_buf line;
    char sh[] = "/bin/sh", c[] = "-c";
    fm_buf_init(&line, 16 * FMR_URL_MAX);
    fm_status rc = command(&line, url, service, opts);
    FM_THEN(rc, fmr_socket_pair(pair));
    if (rc == FM_OK) {
        s->fds.in = s->fds.out = pair[0];
        char *const argv[] = {sh, c, (char *)line.data, NULL};
        rc = fmr_spawn(&s->pid, argv, NULL, pair[1], -1);
        (void)close(pair[1]);
    }
    fm_buf_release(&line);
    return rc;
}

fm_status fmr_open_ssh(fmr_far **out, const fmr_url *url, fmr_service service,
                       const fmr_open_opts *opts)
{
    *out = NULL;
    ssh *s = fm_calloc(1, sizeof *s);
    if (!s)
        return FM_ENOMEM;
    s->fds.in = s->fds.out = -1;
    fm_status rc = begin(s, url, service, opts);
    if (rc != FM_OK) {
        close_ssh(s);
        return rc;
    }
    const fmr_stream stream = fmr_fds_stream(&s->fds);
    s->fds.peer = "ssh";
    rc = fmr_client_new(out, &stream, close_ssh, url->text, service);
    if (rc == FM_EIO)
        rc = fm_error_prefix(rc, "no fmstore answers there (is it installed on that machine, and "
                                 "may you log in?)");
    return rc;
}
