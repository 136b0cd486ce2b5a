/* process.c - starts other programs, and waits for their end. */
#include "remote/link/process.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/os/clock.h"

#define KILL_WITHIN_S 5.0

extern char **environ;

fm_status fmr_spawn(pid_t *pid, char *const argv[], char *const environment[], int fd, int error)
{
    posix_spawn_file_actions_t at;
    int failed = posix_spawn_file_actions_init(&at);
    if (failed == 0) {
        failed = posix_spawn_file_actions_adddup2(&at, fd, STDIN_FILENO);
        if (failed == 0)
            failed = posix_spawn_file_actions_adddup2(&at, fd, STDOUT_FILENO);
        if (failed == 0 && error >= 0)
            failed = posix_spawn_file_actions_adddup2(&at, error, STDERR_FILENO);
        if (failed == 0 && error == FMR_NO_ERROR)
            failed = posix_spawn_file_actions_addopen(&at, STDERR_FILENO, "/dev/null", 1, 0);
        if (failed == 0)
            failed =
                posix_spawnp(pid, argv[0], &at, NULL, argv, environment ? environment : environ);
        (void)posix_spawn_file_actions_destroy(&at);
    }
    if (failed == 0)
        return FM_OK;
    return fm_fail(failed == ENOENT ? FM_EUNSUPPORTED : FM_EIO, "cannot run %s: %s", argv[0],
                   strerror(failed));
}

static bool ends(pid_t pid, double within_s, int *status)
{
    const double end = fm_now_s() + within_s;
    pid_t got;
    while ((got = waitpid(pid, status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (fm_now_s() > end)
            return false;
        (void)usleep(2000);
    }
    return true;
}

int fmr_reap(pid_t pid, double within_s)
{
    int status = 0;
    if (ends(pid, within_s, &status))
        return status;
    (void)kill(pid, SIGTERM);
    if (ends(pid, KILL_WITHIN_S, &status))
        return status;
    (void)kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}
