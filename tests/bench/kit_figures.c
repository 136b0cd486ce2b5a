/* kit_figures.c - clocks, figures, and programs run beside ours. */
#include <fcntl.h>
#include <omp.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/bench_kit.h"

#define MAX_OUTPUT ((size_t)1 << 24)

static double clock_s(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bk_now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double bk_cpu_s(void)
{
    return clock_s(CLOCK_THREAD_CPUTIME_ID);
}

static bool by_cpu;

void bk_clock(unsigned threads)
{
    by_cpu = threads == 1;
    omp_set_num_threads((int)threads);
}

double bk_work_s(void)
{
    return by_cpu ? bk_cpu_s() : bk_now_s();
}

void bk_rest(void)
{
    struct timespec pause = {0, 20000000};
    (void)nanosleep(&pause, NULL);
}

int bk_compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void bk_add(bk_figure *f, double v)
{
    f->n = f->n < BK_MAX_TURNS ? f->n + 1 : f->n;
    f->v[f->n - 1] = v;
}

double bk_best(const bk_figure *f)
{
    double best = 0;
    for (uint32_t i = 0; i < f->n; i++)
        best = f->v[i] > best ? f->v[i] : best;
    return best;
}

double bk_median(const bk_figure *f)
{
    double v[BK_MAX_TURNS];
    memcpy(v, f->v, f->n * sizeof(double));
    qsort(v, f->n, sizeof(double), bk_compare);
    return f->n == 0 ? 0 : (v[f->n / 2] + v[(f->n - 1) / 2]) / 2;
}

pid_t bk_start(const char *const *argv, int *out)
{
    extern char **environ;
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t a;
    if (pipe(ends) != 0)
        return -1;
    (void)posix_spawn_file_actions_init(&a);
    (void)posix_spawn_file_actions_adddup2(&a, ends[1], STDOUT_FILENO);
    (void)posix_spawn_file_actions_addopen(&a, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    (void)posix_spawn_file_actions_addclose(&a, ends[0]);
    if (posix_spawnp(&pid, argv[0], &a, NULL, (char *const *)(uintptr_t)argv, environ) != 0)
        pid = -1;
    (void)posix_spawn_file_actions_destroy(&a);
    (void)close(ends[1]);
    *out = ends[0];
    if (pid < 0)
        (void)close(ends[0]);
    return pid;
}

fm_json *bk_run_json(const char *const *argv)
{
    int fd = -1, status = -1;
    pid_t pid = bk_start(argv, &fd);
    fm_json *v = NULL;
    fm_buf text;
    char piece[4096];
    if (pid < 0)
        return NULL;
    fm_buf_init(&text, MAX_OUTPUT);
    for (ssize_t n; (n = read(fd, piece, sizeof(piece))) > 0;)
        fm_buf_append(&text, piece, (size_t)n);
    (void)close(fd);
    (void)waitpid(pid, &status, 0);
    if (status == 0)
        fm_ignore(fm_json_parse(&v, fm_buf_span(&text), argv[0]), "v stays NULL");
    fm_buf_release(&text);
    return v;
}

char *bk_llama(const char *name)
{
    const char *folder = getenv("FM_LLAMA");
    if (!folder || !*folder)
        return NULL;
    char *path = fm_path_join(folder, name);
    if (path && fm_path_exists(path))
        return path;
    fm_free(path);
    return NULL;
}
