/* bench_history DIR [VERSIONS] - what a long history costs.
 *
 * VERSIONS (10,000) versions of one model on one branch in a repository at DIR (made, or an earlier
 * run's, which goes on): the 272 tensors of SmolLM2 by their names, each of 32 numbers, of which
 * three change in a version, with a recipe of its own; each through fm_txn, fm_version_commit,
 * fm_ref_update, as derive and import do. Prints a commit's time (wall, and CPU of its thread,
 * which neighbours disturb less), and at 100, 1,000 and the last version what the program FM_BIN
 * takes for a first page, as processes, with the bytes of the lineage and the store. Nothing is
 * asserted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <ftw.h>

#include "tests/bench/bench_kit.h"
#include "lineage/lineage.h"

#define LAYERS 30u
#define PER_LAYER 9u
#define TENSORS (LAYERS * PER_LAYER + 2u)
#define CHANGED 3u
#define TURNS 7

static const char *const part[PER_LAYER] = {
    "input_layernorm",          "mlp.down_proj",    "mlp.gate_proj",    "mlp.up_proj",
    "post_attention_layernorm", "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj",
    "self_attn.v_proj"};

typedef struct bench {
    const char *dir;
    const char *bin;
    fm_repo *repo;
    fm_tree *tree;
    fm_oid tip;
    bool started;
    double *put_ms, *commit_ms, *put_cpu, *commit_cpu;
    uint64_t first; /* version of this run */
    uint64_t rng;
} bench;

static uint64_t next_random(bench *b)
{
    b->rng = b->rng * 6364136223846793005u + 1442695040888963407u;
    return b->rng >> 33;
}

static void name_of(unsigned i, char *out, size_t bytes)
{
    if (i >= LAYERS * PER_LAYER)
        (void)snprintf(out, bytes, i % 2 ? "model.norm.weight" : "model.embed_tokens.weight");
    else
        (void)snprintf(out, bytes, "model.layers.%u.%s.weight", i / PER_LAYER, part[i % PER_LAYER]);
}

static void put_tensor(bench *b, fm_txn *t, unsigned i)
{
    const fm_shape shape = {2, {4, 8}};
    char name[128];
    float w[32];
    fm_digest id;
    fm_buf path;

    for (unsigned k = 0; k < 32; k++)
        w[k] = (float)next_random(b) * 0x1p-31f - 0.5f;
    name_of(i, name, sizeof name);
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    tk_ok(fm_txn_put_tensor(t, &id, FM_F32, &shape, fm_span_of(w, sizeof w), NULL, NULL));
    tk_ok(fm_tree_put_tensor(b->tree, fm_buf_cstr(&path), name, FM_F32, &shape, &id));
    fm_buf_release(&path);
}

static void put_files(bench *b, uint64_t version)
{
    char *recipe =
        fm_asprintf("{\"format\": 1, \"operation\": \"finetune\", \"seed\": %" PRIu64
                    ", \"learning_rate\": 0.0001, \"steps\": 100, \"batch\": 8,\n \"data\": "
                    "\"%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64
                    "\",\n \"engine\": \"fmstore 0.1.0\", \"optimizer\": {\"name\": "
                    "\"adamw\", \"beta1\": 0.9, \"beta2\": 0.999}, \"mode\": \"exact\"}\n",
                    version, next_random(b), next_random(b), next_random(b), next_random(b));

    tk_ok(fm_tree_put_file(b->tree, "model.json", fm_span_str("{\"format\": 1}\n")));
    tk_ok(fm_tree_put_file(b->tree, "recipe.json", fm_span_str(recipe)));
    fm_free(recipe);
}

static void add_version(bench *b, uint64_t version)
{
    const fm_oid old = b->tip;
    const fm_commit_opts o = {.kind = b->started ? "finetune" : "import",
                              .message = "a step of the history",
                              .parent = &old,
                              .parent_count = b->started,
                              .time = 1700000000 + (int64_t)version * 60};
    double start = bk_now_s(), cpu = bk_cpu_s();
    fm_txn *t = NULL;

    tk_ok(fm_txn_begin(&t, fm_repo_store(b->repo)));
    for (unsigned i = 0; i < (b->started ? CHANGED : TENSORS); i++)
        put_tensor(b, t, b->started ? (unsigned)(next_random(b) % TENSORS) : i);
    put_files(b, version);
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    b->put_ms[version] = (bk_now_s() - start) * 1e3;
    b->put_cpu[version] = (bk_cpu_s() - cpu) * 1e3;
    start = bk_now_s();
    cpu = bk_cpu_s();
    tk_ok(fm_version_commit(b->repo, &b->tip, b->tree, &o));
    tk_ok(fm_ref_update(b->repo, "refs/heads/main", &b->tip, b->started ? &old : NULL, "step"));
    b->commit_ms[version] = (bk_now_s() - start) * 1e3;
    b->commit_cpu[version] = (bk_cpu_s() - cpu) * 1e3;
    b->started = true;
}

static double at(const double *sorted, uint64_t n, double share)
{
    return sorted[(uint64_t)((double)(n - 1) * share)];
}

static void print_times(const char *what, const double *ms, uint64_t begin, uint64_t end)
{
    const uint64_t n = end - begin;
    double *s = fm_memdup(ms + begin, n * sizeof *s);

    qsort(s, n, sizeof *s, bk_compare);
    printf("  %-6s versions %5" PRIu64 " to %5" PRIu64
           ": median %6.1f  99 %% %6.1f  longest %6.1f ms\n",
           what, begin + 1, end, at(s, n, 0.5), at(s, n, 0.99), s[n - 1]);
    fm_free(s);
}

/* Bytes and files below a folder, as lengths. */
static uint64_t sum_bytes, sum_files, sum_blocks;
static int add_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    if (type == FTW_F) {
        sum_bytes += (uint64_t)st->st_size;
        sum_blocks += (uint64_t)st->st_blocks * 512;
        sum_files++;
    }
    return 0;
}

static void print_folder(const bench *b, const char *name)
{
    char *path = fm_path_join(b->dir, name);

    sum_bytes = sum_files = sum_blocks = 0;
    (void)nftw(path, add_file, 32, FTW_PHYS);
    printf("  %-16s %8.2f MB in %" PRIu64 " files (%.2f MB of blocks)\n", name,
           (double)sum_bytes / 1e6, sum_files, (double)sum_blocks / 1e6);
    fm_free(path);
}

static double children_ms(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_CHILDREN, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static void time_command(const bench *b, const char *args)
{
    char *command = fm_asprintf("%s -C %s %s > /dev/null", b->bin, b->dir, args);
    double best = 1e9, cpu = 1e9, wall[TURNS];

    for (int i = 0; i < TURNS; i++) {
        const double start = bk_now_s(), used = children_ms();
        if (system(command) != 0)
            printf("  FAILED: %s\n", command);
        wall[i] = (bk_now_s() - start) * 1e3;
        best = FM_MIN(best, wall[i]);
        cpu = FM_MIN(cpu, children_ms() - used);
    }
    qsort(wall, TURNS, sizeof *wall, bk_compare);
    printf("  fmstore %-20s best %6.1f  median %6.1f ms wall, %6.1f ms of CPU\n", args, best,
           wall[TURNS / 2], cpu);
    fm_free(command);
}

static void report(bench *b, uint64_t versions)
{
    static const char *const page[] = {"version",   "log -n 30", "log -n 30 --oneline main",
                                       "show main", "ls main",   "branch",
                                       "stats",     "fsck"};

    printf("%" PRIu64 " versions\n", versions);
    const uint64_t begin = FM_MAX(b->first, versions > 200 ? versions - 200 : 0);
    print_times("store", b->put_ms, begin, versions);
    print_times("  CPU", b->put_cpu, begin, versions);
    print_times("commit", b->commit_ms, begin, versions);
    print_times("  CPU", b->commit_cpu, begin, versions);
    print_folder(b, "lineage.git");
    print_folder(b, "lineage.git/logs");
    print_folder(b, "lineage.sqlite");
    print_folder(b, "packs");
    print_folder(b, "index.sqlite");
    for (size_t i = 0; i < FM_ARRAY_LEN(page); i++)
        time_command(b, page[i]);
    (void)fflush(stdout);
}

static fm_status count_version(void *ctx, const fm_version *v)
{
    (void)v;
    ++*(uint64_t *)ctx;
    return FM_OK;
}

/* Takes up an earlier run. */
static void open_repo(bench *b)
{
    char *config = fm_path_join(b->dir, "config");

    if (!fm_path_exists(config)) {
        tk_ok(fm_repo_init(b->dir, true));
        tk_ok(fm_repo_open(&b->repo, b->dir));
        tk_ok(fm_tree_new(&b->tree));
    } else {
        tk_ok(fm_repo_open(&b->repo, b->dir));
        tk_ok(fm_ref_read(b->repo, &b->tip, "refs/heads/main"));
        tk_ok(fm_version_tree(b->repo, &b->tree, &b->tip));
        tk_ok(fm_log_walk(b->repo, &b->tip, 1, count_version, &b->first));
        b->started = true;
        b->rng += b->first * 7919;
    }
    fm_free(config);
}

static double *numbers(uint64_t n)
{
    double *p = fm_calloc(n, sizeof *p);

    fm_assert(p);
    return p;
}

int main(int argc, char **argv)
{
    const uint64_t versions = argc > 2 ? strtoull(argv[2], NULL, 10) : 10000;
    bench b = {.dir = argc > 1 ? argv[1] : NULL, .bin = getenv("FM_BIN"), .rng = 1};

    if (!b.dir || !b.bin || versions == 0) {
        fprintf(stderr, "usage: FM_BIN=fmstore bench_history DIR [VERSIONS]\n");
        return 129;
    }
    open_repo(&b);
    b.put_ms = numbers(versions);
    b.put_cpu = numbers(versions);
    b.commit_ms = numbers(versions);
    b.commit_cpu = numbers(versions);
    for (uint64_t v = b.first; v < versions; v++) {
        add_version(&b, v);
        if (v + 1 == 100 || v + 1 == 1000 || v + 1 == versions)
            report(&b, v + 1);
    }
    if (b.first == 0)
        print_times("first", b.commit_ms, 0, FM_MIN(versions, 100));
    fm_tree_free(b.tree);
    fm_repo_close(b.repo);
    fm_free(b.put_ms);
    fm_free(b.put_cpu);
    fm_free(b.commit_ms);
    fm_free(b.commit_cpu);
    return 0;
}
