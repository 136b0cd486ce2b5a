/* What loading a version costs: without kept images, writing them, and mapping them, beside what
 * hashing and copying the same bytes cost in the same run. Usage: bench_load REPO REV [THREADS
 * [ROUNDS]]. Each figure is the best of ROUNDS, in seconds of CPU time (user and system); the page
 * cache is warm. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "infer/infer.h"
#include "lineage/lineage.h"
#include "store/base/math/hash.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/store.h"

typedef struct plan {
    fm_repo *repo;
    fm_tree *tree;
    unsigned threads;
    int rounds;
    char *cache;
    uint64_t stored, image; /* bytes of tensors, of weights in memory */
} plan;

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(fm_status rc, const char *what)
{
    if (rc == FM_OK)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, fm_error_text());
    exit(1);
}

static double load(plan *p, const char *cache)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_provider from = fm_store_provider(fm_repo_store(p->repo));
    const char *mode = getenv("FM_MODE");
    fm_engine *e = NULL;
    fm_model *m = NULL;
    o.threads = p->threads;
    o.cache_dir = cache;
    if (mode)
        o.mode = mode;
    must(fm_engine_new(&e, &o), "engine");
    double t = now();
    must(fm_model_load(&m, e, p->tree, &from, "model"), "load");
    t = now() - t;
    fm_engine_stats s = fm_engine_stats_of(e);
    p->image = s.weight_bytes;
    fm_model_close(m);
    fm_engine_free(e);
    return t;
}

/* fresh: the folder is emptied before each round. */
static double best(plan *p, const char *cache, bool fresh)
{
    double b = 1e9;
    for (int i = 0; i < p->rounds; i++) {
        if (fresh)
            must(fm_remove_tree(cache), "remove");
        double t = load(p, cache);
        b = FM_MIN(b, t);
    }
    return b;
}

static double best_read(plan *p)
{
    double b = 1e9;
    fm_provider from = fm_store_provider(fm_repo_store(p->repo));
    for (int r = 0; r < p->rounds; r++) {
        double t = now();
        p->stored = 0;
        for (size_t i = 0; i < fm_tree_count(p->tree); i++) {
            const fm_entry *e = fm_tree_at(p->tree, i);
            if (e->kind != FM_ENTRY_TENSOR)
                continue;
            void *x = fm_aligned_alloc(64, (size_t)e->bytes);
            must(from.read(from.ctx, e, x), "read");
            fm_free(x);
            p->stored += e->bytes;
        }
        t = now() - t;
        b = FM_MIN(b, t);
    }
    return b;
}

int main(int argc, char **argv)
{
    plan p = {.threads = 1, .rounds = 5};
    fm_oid oid;
    fm_digest d;
    if (argc < 3)
        return 2;
    if (argc > 3)
        p.threads = (unsigned)strtoul(argv[3], NULL, 10);
    if (argc > 4)
        p.rounds = (int)strtol(argv[4], NULL, 10);
    must(fm_repo_open(&p.repo, argv[1]), "open");
    must(fm_rev_resolve(p.repo, &oid, argv[2]), "resolve");
    must(fm_version_tree(p.repo, &p.tree, &oid), "tree");
    p.cache = fm_path_join(fm_repo_path(p.repo), "cache/bench");
    double read = best_read(&p), plain = best(&p, NULL, false);
    double cold = best(&p, p.cache, true), warm = best(&p, p.cache, false);
    must(fm_remove_tree(p.cache), "remove");
    size_t n = (size_t)64 << 20;
    char *x = fm_malloc(2 * n);
    memset(x, 1, 2 * n);
    double t = now();
    must(fm_sha256(&d, x, n), "hash");
    double hash = now() - t;
    t = now();
    memcpy(x + n, x, n);
    double copy = now() - t;
    printf("%s %u threads: %.1f MB stored, %.1f MB in memory; read alone (1 thread) %.3f s, load "
           "%.3f, load and keep %.3f, load from what was kept %.3f; SHA-256 %.2f GB/s, copy %.2f "
           "GB/s\n",
           argv[2], p.threads, (double)p.stored * 1e-6, (double)p.image * 1e-6, read, plain, cold,
           warm, (double)n / hash * 1e-9, (double)n / copy * 1e-9);
    fm_free(x);
    fm_free(p.cache);
    fm_tree_free(p.tree);
    fm_repo_close(p.repo);
    return 0;
}
