/* train_cases.c - our side of bench_train: steps in this process, memory and the command in
 * others. */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/train_bench.h"

#define COMMAND_TURNS 3u

double tb_clock_s(const tb_bench *b)
{
    struct timespec t;
    (void)clock_gettime(b->threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ==== steps ==== */

typedef struct watch {
    const tb_bench *b;
    double mark, best, loss;
} watch;

static bool after_step(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    watch *w = ctx;
    double now = tb_clock_s(w->b);

    (void)n;
    (void)drop;
    if (p[0].step == 0)
        w->loss = p[0].loss; /* the first step takes memory and is left out of the times */
    else if (now - w->mark < w->best)
        w->best = now - w->mark;
    w->mark = tb_clock_s(w->b);
    return false;
}

/* The same ids as train_torch.py's for the first child; other texts for the others. */
static int32_t *batches(const tb_case *c, uint32_t child, uint32_t steps)
{
    size_t n = (size_t)steps * c->batch * c->tokens;
    int32_t *ids = fm_malloc(n * sizeof(int32_t));

    assert_non_null(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 7919u + child * 4099u) % 40000u) + 100;
    return ids;
}

void tb_train(const tb_bench *b, fm_engine *e, const tb_case *c, uint32_t first, uint32_t children,
              bool recompute, uint32_t steps, tb_run *out)
{
    fm_train_job *job = fm_calloc(children, sizeof(*job));
    fm_train_result *result = fm_calloc(children, sizeof(*result));
    fm_provider p = fm_source_provider(b->src);
    watch w = {.b = b, .best = 1e9};

    assert_true(job && result);
    for (uint32_t i = 0; i < children; i++) {
        job[i] = (fm_train_job){.name = c->name,
                                .config = fm_train_defaults(c->method),
                                .parent = fm_source_tree(b->src),
                                .recompute = recompute};
        job[i].config.steps = steps + 1;
        job[i].config.batch = c->batch;
        job[i].config.max_tokens = c->tokens;
        job[i].config.seed = first + i;
        job[i].batch_ids = job[i].batch_labels = batches(c, first + i, steps + 1);
    }
    tk_ok(fm_train_run(e, &p, job, children, result, after_step, &w));
    for (uint32_t i = 0; i < children; i++) {
        tk_ok(result[i].failed);
        fm_train_result_release(&result[i]);
        fm_free((void *)(uintptr_t)job[i].batch_ids);
    }
    fm_free(job);
    fm_free(result);
    if (first == 0)
        out->loss = w.loss;
    if (out->step <= 0 || w.best < out->step)
        out->step = w.best;
}

/* ==== memory ==== */

static double status_mb(const char *field)
{
    char line[256];
    double kb = 0;
    size_t n = strlen(field);
    FILE *f = fopen("/proc/self/status", "r");

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, field, n) == 0)
            kb = strtod(line + n, NULL);
    (void)fclose(f);
    return kb / 1024;
}

int tb_peak_child(const tb_bench *b, const tb_case *c, bool recompute)
{
    fm_engine *e = NULL;
    tb_run r = {0};

    tk_ok(bk_engine(&e, b->threads, c->mode, TB_ROWS));
    /* The second step makes the weights' layout for gradients. */
    tb_train(b, e, c, 0, c->children, recompute, 2, &r);
    printf("{\"peak_mb\": %.1f, \"loss\": %.9g, \"seconds\": %.4f}\n", status_mb("VmHWM:"), r.loss,
           r.step);
    fm_engine_free(e);
    return 0;
}

double tb_peak_mb(const tb_bench *b, const tb_case *c, bool recompute)
{
    char threads[16];
    (void)snprintf(threads, sizeof(threads), "%u", b->threads);
    const char *argv[] = {
        "/proc/self/exe", "--threads", threads, "--memory", recompute ? "recompute" : "plain",
        "--only",         c->name,     NULL};
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n > 0) {
        self[n] = 0;
        argv[0] = self;
    }
    fm_json *v = bk_run_json(argv);
    double mb = fm_json_real(fm_json_get(v, "peak_mb"), 0);
    fm_json_free(v);
    return mb;
}

/* ==== the command ==== */

/* Runs the program through a shell so that what it tells people can be read as it comes; seconds
 * from the start to the lines that hold each needle, 0 for one that never came. */
static bool listen(const char *const *args, const char *const *needle, double *at, size_t count)
{
    static const char *const shell[] = {"sh", "-c", "exec \"$@\" 2>&1 >/dev/null", "sh"};
    const char *argv[32];
    char line[1024];
    size_t n = 0;
    int fd = -1, status = -1;
    double begin = bk_now_s();

    for (size_t i = 0; i < FM_ARRAY_LEN(shell); i++)
        argv[n++] = shell[i];
    for (size_t i = 0; args[i] && n + 1 < FM_ARRAY_LEN(argv); i++)
        argv[n++] = args[i];
    argv[n] = NULL;
    pid_t pid = bk_start(argv, &fd);
    FILE *f = pid > 0 ? fdopen(fd, "r") : NULL;
    if (!f)
        return false;
    memset(at, 0, count * sizeof(*at));
    while (fgets(line, sizeof(line), f)) {
        double now = bk_now_s() - begin;
        for (size_t i = 0; i < count; i++)
            if (at[i] <= 0 && strstr(line, needle[i]))
                at[i] = now;
    }
    (void)fclose(f);
    (void)waitpid(pid, &status, 0);
    return status == 0;
}

static double command_turn(const char *repo, const char *data, unsigned turn, unsigned threads)
{
    static const char *const lines[] = {"  step 1/3  ", "  step 2/3  ", "  step 3/3  "};
    char name[32], seed[32], count[16];
    double at[3];

    (void)snprintf(name, sizeof(name), "tuned-%u", turn);
    (void)snprintf(seed, sizeof(seed), "seed=%u", turn);
    (void)snprintf(count, sizeof(count), "%u", threads);
    const char *args[] = {TB_PROGRAM,       "-C",        repo,      "--threads", count, "derive",
                          "smollm2",        "--as",      name,      "--data",    data,  "--set",
                          "steps=3",        "--set",     "batch=4", "--set",     seed,  "--set",
                          "max_tokens=128", "--no-gate", NULL};
    if (!listen(args, lines, at, 3) || at[0] <= 0 || at[1] <= 0 || at[2] <= 0)
        return 0;
    /* The first step takes what the third does; the second also makes the layout for gradients. */
    return at[0] - (at[2] - at[1]);
}

double tb_command_s(const tb_bench *b)
{
    char *data = tk_shared("text/alpaca_en_demo.json");
    char *room = tk_scratch();
    char *repo = fm_path_join(room, "repo");
    const char *init[] = {TB_PROGRAM, "init", repo, NULL};
    const char *import[] = {TB_PROGRAM, "-C", repo, "import", b->model, "--as", "smollm2", NULL};
    double best = 0;

    if (data && listen(init, NULL, &best, 0) && listen(import, NULL, &best, 0))
        for (unsigned i = 0; i < COMMAND_TURNS; i++) {
            double s = command_turn(repo, data, i, b->threads);
            best = s > 0 && (best <= 0 || s < best) ? s : best;
        }
    fm_free(repo);
    fm_free(room);
    fm_free(data);
    return best;
}
