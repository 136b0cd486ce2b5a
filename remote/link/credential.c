/* credential.c - runs `git credential` and `git config`: what git was told about a host holds here
 * too. */
#include "remote/link/credential.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "remote/link/socket.h"
#include "store/base/mem.h"

#define ANSWER_MAX ((size_t)64 << 10)

extern char **environ;

/* ==== git as a process ==== */

static bool sets(const char *entry, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

/* The environment; without a terminal git must ask nobody, through no program either. */
static fm_status make_environment(char ***out)
{
    static char no_prompt[] = "GIT_TERMINAL_PROMPT=0", no_ask[] = "GIT_ASKPASS=";
    const bool quiet = isatty(STDIN_FILENO) == 0;
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **e = fm_calloc(n + 3, sizeof *e);
    *out = e;
    if (!e)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (!quiet ||
            (!sets(environ[i], "GIT_TERMINAL_PROMPT") && !sets(environ[i], "GIT_ASKPASS")))
            e[kept++] = environ[i];
    if (quiet) {
        e[kept++] = no_prompt;
        e[kept++] = no_ask;
    }
    return FM_OK;
}

static fm_status spawn(pid_t *pid, char *const argv[], int fd)
{
    char **env = NULL;
    posix_spawn_file_actions_t at;
    FM_TRY(make_environment(&env));
    int failed = posix_spawn_file_actions_init(&at);
    if (failed == 0) {
        failed = posix_spawn_file_actions_adddup2(&at, fd, STDIN_FILENO);
        if (failed == 0)
            failed = posix_spawn_file_actions_adddup2(&at, fd, STDOUT_FILENO);
        if (failed == 0 && !isatty(STDERR_FILENO)) /* what it fails with is said in our words */
            failed = posix_spawn_file_actions_addopen(&at, STDERR_FILENO, "/dev/null", 1, 0);
        if (failed == 0)
            failed = posix_spawnp(pid, "git", &at, NULL, argv, env);
        (void)posix_spawn_file_actions_destroy(&at);
    }
    fm_free(env);
    return failed ? fm_fail(FM_ENOTFOUND, "cannot run git: %s", strerror(failed)) : FM_OK;
}

static fm_status read_all(const fmr_stream *from, fm_buf *out)
{
    for (;;) {
        uint8_t some[4096];
        size_t got;
        FM_TRY(from->read(from->ctx, some, sizeof some, &got));
        if (got == 0)
            return fm_buf_ok(out);
        fm_buf_append(out, some, got);
        FM_TRY(fm_buf_ok(out));
    }
}

static fm_status talk(int fd, const fm_buf *say, fm_buf *answer)
{
    fmr_fds fds = {fd, fd, "git"};
    const fmr_stream s = fmr_fds_stream(&fds);
    fm_status rc = say->len ? s.write(s.ctx, say->data, say->len) : FM_OK;
    (void)shutdown(fd, SHUT_WR);
    FM_THEN(rc, read_all(&s, answer));
    return rc;
}

/* FM_ENOTFOUND: git is not there, or said no. */
static fm_status run_git(char *const argv[], const fm_buf *say, fm_buf *answer)
{
    int pair[2], status = 0;
    pid_t pid;
    FM_TRY(fmr_socket_pair(pair));
    fm_status rc = spawn(&pid, argv, pair[1]);
    (void)close(pair[1]);
    if (rc == FM_OK) {
        rc = talk(pair[0], say, answer);
        if (rc != FM_OK)
            (void)kill(pid, SIGTERM);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (rc == FM_OK && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            rc = fm_fail(FM_ENOTFOUND, "git %s says no", argv[1]);
    }
    (void)close(pair[0]);
    return rc;
}

/* ==== credentials ==== */

static void wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    fm_free(text);
}

static void wipe_buf(fm_buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->len);
    fm_buf_release(b);
}

/* A URL has no line breaks (url.h), so nothing in it can pass for a further line. */
static void describe(fm_buf *b, const fmr_url *url)
{
    const bool tls = strncmp(url->text, "https:", 6) == 0;
    const bool v6 = strchr(url->host, ':') != NULL;
    fm_buf_printf(b, "protocol=%s\nhost=%s%s%s", tls ? "https" : "http", v6 ? "[" : "", url->host,
                  v6 ? "]" : "");
    if (url->port)
        fm_buf_printf(b, ":%u", url->port);
    fm_buf_char(b, '\n');
    const char *path = url->path + strspn(url->path, "/");
    if (*path)
        fm_buf_printf(b, "path=%s\n", path);
    if (url->user)
        fm_buf_printf(b, "username=%s\n", url->user);
}

/* The value of a line "name=value"; NULL: there is none. */
static char *line_of(const fm_buf *b, const char *name)
{
    const char *at = (const char *)b->data, *end = at + b->len;
    while (at && at < end) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((eol ? eol : end) - at), n = strlen(name);
        if (len > n && strncmp(at, name, n) == 0 && at[n] == '=')
            return fm_strndup(at + n + 1, len - n - 1);
        at = eol ? eol + 1 : end;
    }
    return NULL;
}

fm_status fmr_credential_fill(fmr_credential *out, const fmr_url *url)
{
    char git[] = "git", credential[] = "credential", fill[] = "fill";
    char *const argv[] = {git, credential, fill, NULL};
    fm_buf say, answer;
    *out = (fmr_credential){NULL, NULL};
    fm_buf_init(&say, 4 * FMR_URL_MAX);
    fm_buf_init(&answer, ANSWER_MAX);
    describe(&say, url);
    fm_status rc = fm_buf_ok(&say);
    FM_THEN(rc, run_git(argv, &say, &answer));
    if (rc == FM_OK) {
        out->user = line_of(&answer, "username");
        out->password = line_of(&answer, "password");
        if (!out->password)
            rc = fm_fail(FM_ENOTFOUND, "git's credential helpers know no password");
    }
    wipe_buf(&say);
    wipe_buf(&answer);
    if (rc != FM_OK)
        fmr_credential_release(out);
    return rc;
}

void fmr_credential_tell(const fmr_credential *c, const fmr_url *url, bool worked)
{
    char git[] = "git", credential[] = "credential", approve[] = "approve", reject[] = "reject";
    char *const argv[] = {git, credential, worked ? approve : reject, NULL};
    fm_buf say, answer;
    fm_error_state text;
    fm_error_save(&text);
    fm_buf_init(&say, ANSWER_MAX);
    fm_buf_init(&answer, ANSWER_MAX);
    describe(&say, url);
    if (c->user && !url->user)
        fm_buf_printf(&say, "username=%s\n", c->user);
    fm_buf_printf(&say, "password=%s\n", c->password);
    if (fm_buf_ok(&say) == FM_OK)
        fm_ignore(run_git(argv, &say, &answer), "the helper asks again next time");
    wipe_buf(&say);
    wipe_buf(&answer);
    fm_error_restore(&text);
}

void fmr_credential_release(fmr_credential *c)
{
    fm_free(c->user);
    wipe(c->password);
    *c = (fmr_credential){NULL, NULL};
}

/* ==== settings ==== */

char *fmr_git_setting(const char *key, const fmr_url *url)
{
    char git[] = "git", config[] = "config", match[] = "--get-urlmatch", kind[] = "--path";
    char *k = fm_strdup(key), *value = NULL;
    char *const argv[] = {git, config, kind, match, k, url->text, NULL};
    fm_buf none, answer;
    fm_error_state text;
    fm_error_save(&text);
    fm_buf_init(&none, 1);
    fm_buf_init(&answer, ANSWER_MAX);
    if (k && run_git(argv, &none, &answer) == FM_OK && answer.len)
        value = fm_strndup((const char *)answer.data, strcspn(fm_buf_cstr(&answer), "\n"));
    fm_free(k);
    fm_buf_release(&none);
    fm_buf_release(&answer);
    fm_error_restore(&text);
    if (value && !*value) {
        fm_free(value);
        value = NULL;
    }
    return value;
}
