/* bench_suites.c - the suites of 8 LoRA children of SmolLM2 in one batch beside one child at a
 * time.
 *
 *   bench_suites [--mode exact|fast] [--threads N] [--turns N] [--children N] [NAME...]
 *
 * Both sides take turns; each has an engine of its own that has seen no text, and loading is not
 * counted; on one thread its own clock counts. "One at a time" is what a loop over `fmstore test`
 * does, the cases of a child already in one batch. Answers of both sides are compared. Beside the
 * ratio: steps, rows that ran through layers, what of the prompts the prefix cache saved, and two
 * floors of the batch, the bytes of weights that its steps read at the memory's rate and the
 * operations of its rows at what registers do in f32. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/testing.h"
#include "tests/bench/bench_kit.h"

#define CHILDREN_MAX 16u

typedef struct kind {
    const char *name;
    unsigned cases;
    unsigned shared, own; /* words of the prompt: alike in all cases, then of its own */
    unsigned tokens;      /* generated; 0: a continuation is scored */
    unsigned choices;     /* scored instead */
    bk_child child;
} kind;

static const kind kinds[] = {
    {"decode-1", 1, 0, 6, 24, 0, BK_LORA},         /* one case a suite: bytes of the stem */
    {"decode-4", 4, 0, 6, 24, 0, BK_LORA},         /* a few */
    {"decode-16", 16, 0, 6, 8, 0, BK_LORA},        /* rows enough for one model alone */
    {"long-prompts", 2, 0, 60, 2, 0, BK_LORA},     /* prefill, nothing in common */
    {"context", 4, 60, 6, 2, 0, BK_LORA},          /* prefill, one context for all cases */
    {"scores", 4, 0, 12, 0, 0, BK_LORA},           /* no decoding at all */
    {"choices", 2, 0, 60, 0, 4, BK_LORA},          /* four ends of one long prompt */
    {"upper-long", 2, 0, 60, 2, 0, BK_LORA_UPPER}, /* part from the stem half way up */
    {"upper-context", 4, 60, 6, 2, 0, BK_LORA_UPPER},
};

typedef struct bench {
    const char *mode;
    unsigned threads, turns, children;
    fm_source *src;
    fm_suite *suite;
    fm_arch arch;
    double read_gbs, f32_gops; /* of this machine: memory, register-only products */
} bench;

typedef struct side {
    double seconds;
    fm_suite_run run[CHILDREN_MAX];
    fm_engine_stats stats; /* summed over engines */
} side;

/* ---- a suite of made-up words ---- */

static void put_words(fm_buf *b, unsigned n, unsigned seed)
{
    static const char *const word[] = {"river", "stone", "light", "seven",  "garden", "winter",
                                       "paper", "music", "green", "harbor", "letter", "mirror"};
    for (unsigned i = 0; i < n; i++)
        fm_buf_printf(b, "%s ", word[(seed * 2654435761u + i * 40503u + i * i * 7u) / 64u % 12u]);
}

static void put_choices(fm_buf *b, unsigned n)
{
    static const char *const end[] = {"the end", "a song", "it rains", "we left", "no more"};
    fm_buf_str(b, "  choices: [");
    for (unsigned i = 0; i < n; i++)
        fm_buf_printf(b, "%s\" %s\"", i ? ", " : "", end[i]);
    fm_buf_printf(b, "]\n  answer: \" %s\"\n", end[0]);
}

static fm_suite *suite_of(const kind *k)
{
    fm_buf b;
    fm_suite *s = NULL;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "suite: bench\ncases:\n");
    for (unsigned i = 0; i < k->cases; i++) {
        fm_buf_printf(&b, "- name: c%u\n  prompt: \"", i);
        put_words(&b, k->shared, 1);
        put_words(&b, k->own, i + 2);
        fm_buf_str(&b, "and then\"\n");
        if (k->choices)
            put_choices(&b, k->choices);
        else if (k->tokens)
            fm_buf_printf(&b, "  expect: {not-contains: zzzz}\n  generate: {max-tokens: %u}\n",
                          k->tokens);
        else
            fm_buf_str(&b, "  continuation: \" the end\"\n  logprob-above: -500\n");
    }
    tk_ok(fm_buf_ok(&b));
    tk_ok(fm_suite_parse(&s, fm_buf_span(&b), "bench"));
    fm_buf_release(&b);
    return s;
}

/* ---- the two sides ---- */

static void add_stats(fm_engine_stats *sum, const fm_engine *e)
{
    fm_engine_stats s = fm_engine_stats_of(e);
    sum->weight_bytes = FM_MAX(sum->weight_bytes, s.weight_bytes);
    sum->steps += s.steps;
    sum->rows += s.rows;
    sum->layer_rows += s.layer_rows;
    sum->gemm_groups += s.gemm_groups;
    sum->prefix_queries += s.prefix_queries;
    sum->prefix_hits += s.prefix_hits;
}

/* Children first to end of the suite on an engine of their own, as one batch. */
static void run_some(const bench *b, const kind *k, unsigned first, unsigned end, side *s)
{
    fm_engine *e = NULL;
    fm_model *m[CHILDREN_MAX] = {NULL};
    fm_suite_ask ask[CHILDREN_MAX];
    double bytes = 0;
    tk_ok(bk_engine(&e, b->threads, b->mode, 512));
    for (unsigned i = first; i < end; i++) {
        tk_ok(bk_child_load(&m[i], e, b->src, k->child, 8, i + 1, &bytes));
        ask[i] = (fm_suite_ask){.suite = b->suite, .model = m[i]};
    }
    double t0 = bk_work_s();
    tk_ok(fm_suites_run(s->run + first, ask + first, end - first, NULL));
    s->seconds += bk_work_s() - t0;
    add_stats(&s->stats, e);
    for (unsigned i = first; i < end; i++)
        fm_model_close(m[i]);
    fm_engine_free(e);
}

static void check_same(const bench *b, const side *x, const side *y)
{
    for (unsigned i = 0; i < b->children; i++)
        for (size_t k = 0; k < x->run[i].count; k++) {
            const fm_case_result *p = &x->run[i].result[k], *q = &y->run[i].result[k];
            assert_int_equal(p->verdict, q->verdict);
            assert_string_equal(p->output ? p->output : "", q->output ? q->output : "");
        }
}

static void side_release(const bench *b, side *s)
{
    for (unsigned i = 0; i < b->children; i++)
        fm_suite_run_release(&s->run[i]);
}

/* ---- said ---- */

static void say(const bench *b, const kind *k, const side *one, const side *all, double ratio,
                double median)
{
    double layers = b->arch.layers, rows = (double)all->stats.layer_rows / layers;
    double gb = 1e-9 * (double)all->stats.weight_bytes;
    double read = (double)all->stats.steps * gb / b->read_gbs;
    double ops = 2 * bk_linear_params(&b->arch) * rows / (b->f32_gops * 1e9);
    printf("%-14s %2u cases: one at a time %7.2f s, batch %7.2f s: %.2fx (median %.2fx)\n", k->name,
           k->cases, one->seconds, all->seconds, ratio, median);
    printf("    rows through all layers %.0f -> %.0f, steps %llu -> %llu, prompts found %.0f %%\n",
           (double)one->stats.layer_rows / layers, rows, (unsigned long long)one->stats.steps,
           (unsigned long long)all->stats.steps,
           all->stats.prefix_queries
               ? 100.0 * (double)all->stats.prefix_hits / (double)all->stats.prefix_queries
               : 0.0);
    printf("    floors of the batch: %.2f GB of weights read each step %.2f s, f32 operations %.2f "
           "s\n",
           gb, read, ops);
    fflush(stdout);
}

static void measure(bench *b, const kind *k)
{
    double ratio[BK_MAX_TURNS];
    side best_one = {0}, best_all = {0};
    b->suite = suite_of(k);
    for (unsigned t = 0; t < b->turns; t++) {
        side one = {0}, all = {0};
        run_some(b, k, 0, b->children, &all);
        for (unsigned i = 0; i < b->children; i++)
            run_some(b, k, i, i + 1, &one);
        check_same(b, &one, &all);
        side_release(b, &one);
        side_release(b, &all);
        ratio[t] = one.seconds / all.seconds;
        if (t == 0 || one.seconds < best_one.seconds)
            best_one = one;
        if (t == 0 || all.seconds < best_all.seconds)
            best_all = all;
    }
    qsort(ratio, b->turns, sizeof ratio[0], bk_compare);
    say(b, k, &best_one, &best_all, best_one.seconds / best_all.seconds, ratio[b->turns / 2]);
    fm_suite_free(b->suite);
}

static unsigned number(const char *what, const char *word, unsigned max)
{
    char *end = NULL;
    unsigned long n = word ? strtoul(word, &end, 10) : 0;
    if (!word || *end || n < 1 || n > max) {
        fprintf(stderr, "bench_suites: %s wants a number of 1 to %u\n", what, max);
        exit(129);
    }
    return (unsigned)n;
}

static bool chosen(const char *name, char **names, int n)
{
    bool found = n == 0;
    for (int i = 0; i < n; i++)
        found |= strcmp(name, names[i]) == 0;
    return found;
}

int main(int argc, char **argv)
{
    bench b = {.mode = "exact", .threads = 1, .turns = 2, .children = 8};
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--mode") == 0)
            b.mode = argv[at + 1];
        else if (strcmp(argv[at], "--threads") == 0)
            b.threads = number("--threads", argv[at + 1], 256);
        else if (strcmp(argv[at], "--turns") == 0)
            b.turns = number("--turns", argv[at + 1], BK_MAX_TURNS);
        else if (strcmp(argv[at], "--children") == 0)
            b.children = number("--children", argv[at + 1], CHILDREN_MAX);
    }
    char *path = bk_model_file("smollm2", BK_Q4_1);
    if (!path) {
        puts("no SmolLM2 here: ./quickstart --model smollm2 fetches it");
        return 77;
    }
    fm_pool *pool = NULL;
    tk_ok(fm_source_open(&b.src, path));
    tk_ok(fm_arch_of_tree(&b.arch, fm_source_tree(b.src), NULL, path));
    bk_clock(b.threads);
    tk_ok(fm_pool_new(&pool, b.threads));
    b.read_gbs = bk_memory_gbs(pool);
    b.f32_gops = bk_peak_gops(pool, BK_F32);
    fm_pool_free(pool);
    printf("machine: %u threads, memory %.1f GB/s, f32 %.0f GOP/s in registers\n", b.threads,
           b.read_gbs, b.f32_gops);
    printf("SmolLM2 Q4_1, %u LoRA children of rank 8, mode %s, best of %u turns\n", b.children,
           b.mode, b.turns);
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        if (chosen(kinds[i].name, argv + at, argc - at))
            measure(&b, &kinds[i]);
    fm_source_close(b.src);
    fm_free(path);
    return 0;
}
