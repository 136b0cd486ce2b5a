/* gpu_torch.c - PyTorch as the peer: gpu_torch.py in a process of its own, asked line by line.
 * Where python3 has no torch, or torch no GPU, every answer is 0. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/gpu_bench.h"

static FILE *to, *from;
static pid_t child;

static void start(void)
{
    int ask[2], answer[2];
    const char *script = getenv("GB_TORCH");
    char line[128];

    if (pipe(ask) != 0 || pipe(answer) != 0)
        return;
    child = fork();
    if (child == 0) {
        (void)dup2(ask[0], 0);
        (void)dup2(answer[1], 1);
        (void)close(ask[1]);
        (void)close(answer[0]);
        (void)execlp("python3", "python3", script ? script : GB_SOURCE "/tests/bench/gpu_torch.py",
                     (char *)NULL);
        _exit(127);
    }
    (void)close(ask[0]);
    (void)close(answer[1]);
    to = fdopen(ask[1], "w");
    from = fdopen(answer[0], "r");
    if (child < 0 || !to || !from || !fgets(line, sizeof line, from) ||
        strncmp(line, "torch", 5) != 0) {
        fprintf(stderr, "bench_gpu: no torch with a card beside it\n");
        gb_torch_end();
        return;
    }
    fprintf(stderr, "bench_gpu: beside %s", line);
}

double gb_torch_s(const gb *g, const char *request)
{
    static bool started;
    char line[64];

    if (g->tiny)
        return 0.0;
    if (!started) {
        started = true;
        (void)signal(SIGPIPE, SIG_IGN);
        start();
    }
    if (!to || fprintf(to, "%s\n", request) < 0 || fflush(to) != 0 ||
        !fgets(line, sizeof line, from))
        return 0.0;
    return strtod(line, NULL);
}

void gb_torch_end(void)
{
    if (to)
        (void)fclose(to);
    if (from)
        (void)fclose(from);
    if (child > 0)
        (void)waitpid(child, NULL, 0);
    to = from = NULL;
    child = 0;
}

void gb_beside_torch(gb *g, const char *what, double s, const char *request)
{
    double peer = gb_torch_s(g, request);
    char text[128];

    snprintf(text, sizeof text, "%s, beside torch", what);
    if (peer > 0.0)
        gb_report(g, text, s, peer, "torch's time");
}
