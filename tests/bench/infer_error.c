/* infer_error.c - how far fast and llama.cpp are from exact on the same ids: 4,096 tokens of
 * tinyshakespeare in pieces of 512, for each file of SmolLM2.
 *
 * The reference is exact's logits (float32 of the dequantized weights). KL is of the reference from
 * the other, in nats, in double; the last column is the largest change of the log-probability that
 * the text's own next token gets. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/infer_bench.h"
#include "tests/model/error_kit.h"

#define TOKENS EK_MAX_TOKENS
#define PIECE EK_PIECE

typedef struct compare_job {
    const float *const *want;
    const float *const *got;
    const int32_t *next;
    uint32_t vocab;
    ek_row row[PIECE];
} compare_job;

static fm_status compare_rows(void *ctx, size_t begin, size_t end, unsigned worker)
{
    compare_job *j = ctx;
    (void)worker;
    for (size_t r = begin; r < end; r++)
        j->row[r] = ek_compare(j->want[r], j->got[r], j->vocab, j->next[r]);
    return FM_OK;
}

static void compare(ek_gap *g, fm_pool *pool, const float *const *want, const float *const *got,
                    const int32_t *next, uint32_t vocab)
{
    compare_job j = {.want = want, .got = got, .next = next, .vocab = vocab};
    tk_ok(fm_pool_run(pool, PIECE, 1, compare_rows, &j));
    for (uint32_t i = 0; i < PIECE; i++)
        ek_add(g, &j.row[i]);
}

/* ==== who gives logits ==== */

typedef struct giver {
    const char *name;
    fm_engine *e;
    fm_model *m;
    int fd; /* llama.cpp's */
    pid_t pid;
    float *room;
    const float *row[PIECE];
    char refused[200];
    ek_gap gap;
} giver;

static void refuse(giver *g, const char *why)
{
    (void)snprintf(g->refused, sizeof(g->refused), "%s", why);
}

static void open_engine(giver *g, const char *mode, unsigned threads, const fm_source *src)
{
    double ignored = 0;
    g->name = mode;
    g->fd = -1;
    if (bk_engine(&g->e, threads, mode, PIECE) < 0 ||
        bk_child_load(&g->m, g->e, src, BK_STEM, 0, 0, &ignored) < 0)
        refuse(g, fm_error_text());
}

static void open_llama(giver *g, const char *gguf, unsigned threads, const char *ids_path)
{
    char t[16], piece[16], *path = bk_llama("bin/llama-logits");
    g->name = "llama.cpp";
    (void)snprintf(t, sizeof(t), "%u", threads);
    (void)snprintf(piece, sizeof(piece), "%u", PIECE);
    if (path)
        g->pid = bk_start((const char *const[]){path, gguf, t, piece, ids_path, NULL}, &g->fd);
    if (!path || g->pid < 0)
        refuse(g, "not here (FM_LLAMA: see build_llama.sh)");
    fm_free(path);
}

static bool read_all(int fd, void *dst, size_t len)
{
    uint8_t *at = dst;
    while (len > 0) {
        ssize_t n = read(fd, at, len);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

/* Logits of the next piece in g->row. */
static void give(giver *g, const int32_t *ids, uint32_t vocab)
{
    if (g->refused[0])
        return;
    if (g->e) {
        if (ek_step(g->m, ids, PIECE, g->row) < 0)
            refuse(g, fm_error_text());
        return;
    }
    if (!g->room)
        g->room = fm_malloc((size_t)PIECE * vocab * sizeof(float));
    assert_non_null(g->room);
    if (!read_all(g->fd, g->room, (size_t)PIECE * vocab * sizeof(float)))
        refuse(g, "llama-logits ended early");
    for (uint32_t i = 0; i < PIECE; i++)
        g->row[i] = g->room + (size_t)i * vocab;
}

static void close_giver(giver *g)
{
    fm_model_close(g->m);
    fm_engine_free(g->e);
    if (g->fd >= 0)
        (void)close(g->fd);
    if (g->pid > 0)
        (void)waitpid(g->pid, NULL, 0);
    fm_free(g->room);
}

/* ==== output ==== */

static void print_gap(giver *g, int file, bool json)
{
    ek_gap *x = &g->gap;
    if (g->refused[0]) {
        if (!json)
            printf("%-5s %-10s refused: %s\n", bk_file_name[file], g->name, g->refused);
        return;
    }
    printf(json ? "{\"file\":\"%s\",\"engine\":\"%s\",\"kl_mean\":%.4e,\"kl_mean_error\":%.1e,\"kl_"
                  "median\":%.4e,"
                  "\"kl_p99\":%.4e,\"top1\":%.6f,\"dlogprob_max\":%.5f}\n"
                : "%-5s %-10s KL mean %.3e +- %.1e median %.3e p99 %.3e | top-1 %.4f | max change "
                  "%.4f\n",
           bk_file_name[file], g->name, ek_mean(x), ek_mean_error(x), ek_share(x, 0.5),
           ek_share(x, 0.99), (double)x->agree / x->n, x->worst);
    (void)fflush(stdout);
}

/* ==== one file ==== */

static void run_file(int file, const bi_opts *o, fm_pool *pool, const int32_t *ids,
                     const char *ids_path)
{
    static giver exact, other[2];
    char *path = bk_model_file("smollm2", file);
    fm_source *src = NULL;
    if (!path) {
        printf("%-5s the file is not here (FM_MODELS, FM_LLAMA)\n", bk_file_name[file]);
        return;
    }
    memset(&exact, 0, sizeof(exact));
    memset(other, 0, sizeof(other));
    tk_ok(fm_source_open(&src, path));
    open_engine(&exact, "exact", o->threads, src);
    open_engine(&other[0], "fast", o->threads, src);
    open_llama(&other[1], path, o->threads, ids_path);
    uint32_t vocab = fm_model_arch(exact.m)->vocab;
    for (uint32_t at = 0; at < TOKENS; at += PIECE) {
        give(&exact, ids + at, vocab);
        assert_false(exact.refused[0]);
        for (int i = 0; i < 2; i++) {
            give(&other[i], ids + at, vocab);
            if (!other[i].refused[0])
                compare(&other[i].gap, pool, exact.row, other[i].row, ids + at + 1, vocab);
        }
    }
    for (int i = 0; i < 2; i++) {
        print_gap(&other[i], file, o->json);
        close_giver(&other[i]);
    }
    close_giver(&exact);
    fm_source_close(src);
    fm_free(path);
}

/* TOKENS + 1 ids of the text; false where model or text are missing. */
static bool read_ids(int32_t *out)
{
    char *path = bk_model_file("smollm2", BK_Q4_1);
    giver g = {.fd = -1};
    fm_source *src = NULL;
    if (!path)
        return false;
    tk_ok(fm_source_open(&src, path));
    open_engine(&g, "exact", 1, src);
    bool there = ek_text(out, TOKENS + 1, fm_model_tokenizer(g.m));
    close_giver(&g);
    fm_source_close(src);
    fm_free(path);
    return there;
}

int bi_error(const bi_opts *o)
{
    static int32_t ids[TOKENS + 1];
    fm_pool *pool = NULL;
    if (!read_ids(ids))
        return tk_skip("SmolLM2 (FM_MODELS) or the text (FM_SHARED_DATA) is not on this machine");
    char *folder = tk_scratch(), *path = fm_path_join(folder, "ids");
    tk_ok(fm_write_file(path, ids, TOKENS * sizeof(int32_t)));
    tk_ok(fm_pool_new(&pool, o->threads));
    for (int file = 0; file <= BK_BF16_FILE; file++)
        run_file(file, o, pool, ids, path);
    fm_pool_free(pool);
    fm_free(path);
    fm_free(folder);
    return 0;
}
