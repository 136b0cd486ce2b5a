/* launch.c - starts the ranks of one host: this program again, with inherited sockets. */
#include "infer/comm_launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "infer/comm/wire.h"
#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define RANK_WORD "FMSTORE_RANK" /* "<rank>/<size>:<fd>,<fd>,.." with one fd for each other rank */
#define WORD_BYTES 4096u
#define END_WITHIN_S 60.0
#define KILLED_WITHIN_S 5.0

extern char **environ;

struct fm_ranks {
    pid_t *pid;
    uint32_t count;
};

static bool number(const char *text, uint32_t *out)
{
    char *end = NULL;
    unsigned long n = text && *text ? strtoul(text, &end, 10) : 0;
    if (!end || *end != '\0' || n > UINT32_MAX)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool by_mpirun(uint32_t *rank, uint32_t *size)
{
    static const char *const name[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                          {"PMI_RANK", "PMI_SIZE"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++)
        if (number(getenv(name[i][0]), rank) && number(getenv(name[i][1]), size) && *rank < *size)
            return true;
    return false;
}

void fm_ranks_place(uint32_t *rank, uint32_t *size, bool *launched)
{
    const char *word = getenv(RANK_WORD);
    *launched = word && sscanf(word, "%u/%u:", rank, size) == 2 && *rank < *size;
    if (*launched || by_mpirun(rank, size))
        return;
    *rank = 0;
    *size = 1;
}

/* ==== beginning ==== */

/* Writes the environment entry with the numbers of this rank's sockets, and keeps them open over
 * the exec of the new process. */
static fm_status hand_over(const int *fd, uint32_t rank, uint32_t size, char *word)
{
    int n = snprintf(word, WORD_BYTES, "%s=%u/%u:", RANK_WORD, rank, size);
    for (uint32_t i = 0; i < size; i++) {
        if (i == rank)
            continue;
        if (fcntl(fd[i], F_SETFD, 0) != 0)
            return fm_fail(FM_EIO, "a socket of rank %u: %s", rank, strerror(errno));
        n += snprintf(word + n, WORD_BYTES - (size_t)n, "%d,", fd[i]);
    }
    return FM_OK;
}

static fm_status begin(pid_t *pid, char *const *argv, const int *fd, uint32_t rank, uint32_t size)
{
    char word[WORD_BYTES];
    size_t words = 0;
    while (environ[words])
        words++;
    char **env = fm_calloc(words + 2, sizeof(*env));
    fm_status rc = env ? hand_over(fd, rank, size, word) : FM_ENOMEM;
    if (rc == FM_OK) {
        env[0] = word;
        memcpy(env + 1, environ, words * sizeof(*env));
        int failed = posix_spawn(pid, "/proc/self/exe", NULL, NULL, argv, env);
        if (failed)
            rc = fm_fail(FM_EIO, "rank %u does not begin: %s", rank, strerror(failed));
    }
    fm_free(env);
    return rc;
}

fm_status fm_ranks_launch(fm_ranks **out, fm_comm **comm, uint32_t size, char *const *argv,
                          double step_timeout_s)
{
    fm_wire *wire = NULL;
    *out = NULL;
    *comm = NULL;
    if (size < 1 || size > FM_COMM_MAX_RANKS)
        return fm_fail(FM_EINVAL, "%u ranks, allowed are 1 to %u", size, FM_COMM_MAX_RANKS);
    fm_ranks *r = fm_calloc(1, sizeof(*r));
    int *fd = fm_calloc((size_t)size * size, sizeof(int));
    if (r)
        r->pid = fm_calloc(size, sizeof(pid_t));
    fm_status rc = r && r->pid && fd ? fm_wire_mesh(fd, size) : FM_ENOMEM;
    bool meshed = rc == FM_OK;
    for (uint32_t i = 1; i < size && rc == FM_OK; i++) {
        rc = begin(&r->pid[r->count], argv, fd + (size_t)i * size, i, size);
        r->count += rc == FM_OK;
        for (uint32_t j = 0; j < size; j++) /* the next rank must not inherit them */
            if (j != i && fd[i * size + j] >= 0) {
                (void)close(fd[i * size + j]);
                fd[i * size + j] = -1;
            }
    }
    for (uint32_t i = 1; meshed && i < size; i++) /* closes those of ranks that did not start */
        for (uint32_t j = 0; j < size; j++)
            if (j != i && fd[i * size + j] >= 0)
                (void)close(fd[i * size + j]);
    if (rc == FM_OK)
        rc = fm_wire_sockets(&wire, 0, size, fd, step_timeout_s);
    else
        for (uint32_t j = 1; meshed && j < size; j++)
            (void)close(fd[j]);
    FM_THEN(rc, fm_comm_new(comm, wire, NULL));
    fm_free(fd);
    if (rc != FM_OK) {
        fm_error_state why;
        fm_error_save(&why);
        fm_ranks_wait(r, NULL);
        fm_error_restore(&why);
        return rc;
    }
    *out = r;
    return FM_OK;
}

/* The exit status of a process, which is killed if it lives longer than `until`. One that a driver
 * keeps alive even then is left to init: -1. */
static int end_of(pid_t pid, double until)
{
    const struct timespec nap = {.tv_nsec = 2000000};
    int status = -1;
    bool killed = false;
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR))
            return got == pid ? status : -1;
        if (fm_now_s() > until + (killed ? KILLED_WITHIN_S : 0.0)) {
            if (killed)
                return -1;
            (void)kill(pid, SIGKILL);
            killed = true;
        }
        (void)nanosleep(&nap, NULL);
    }
}

void fm_ranks_wait(fm_ranks *r, uint32_t *bad)
{
    if (bad)
        *bad = 0;
    if (!r)
        return;
    double until = fm_now_s() + END_WITHIN_S;
    for (uint32_t i = 0; i < r->count; i++) {
        int status = end_of(r->pid[i], until);
        if (bad && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
            (*bad)++;
    }
    fm_free(r->pid);
    fm_free(r);
}

/* ==== joining ==== */

static fm_status join_sockets(fm_wire **wire, double step_timeout_s)
{
    const char *word = getenv(RANK_WORD);
    uint32_t rank = 0, size = 0;
    int used = 0;
    int fd[FM_COMM_MAX_RANKS];
    if (!word || sscanf(word, "%u/%u:%n", &rank, &size, &used) != 2 || rank >= size ||
        size > FM_COMM_MAX_RANKS)
        return fm_fail(FM_EINVAL, "%s is '%s', which fmstore does not write", RANK_WORD,
                       word ? word : "");
    const char *at = word + used;
    for (uint32_t i = 0; i < size; i++) {
        char *end = NULL;
        fd[i] = -1;
        if (i == rank)
            continue;
        long n = strtol(at, &end, 10);
        if (end == at || *end != ',' || n < 0 || n > INT32_MAX ||
            fcntl((int)n, F_SETFD, FD_CLOEXEC) != 0)
            return fm_fail(FM_EINVAL, "%s names no socket to rank %u", RANK_WORD, i);
        fd[i] = (int)n;
        at = end + 1;
    }
    return fm_wire_sockets(wire, rank, size, fd, step_timeout_s);
}

fm_status fm_ranks_join(fm_comm **comm, double step_timeout_s)
{
    uint32_t rank, size;
    bool launched;
    fm_wire *wire = NULL;
    *comm = NULL;
    fm_ranks_place(&rank, &size, &launched);
    FM_TRY(launched ? join_sockets(&wire, step_timeout_s) : fm_wire_mpi(&wire, step_timeout_s));
    return fm_comm_new(comm, wire, NULL);
}
