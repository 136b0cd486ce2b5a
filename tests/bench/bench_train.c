/* bench_train.c - training SmolLM2-135M beside PyTorch + PEFT, and each figure beside its limit.
 *
 * usage: FM_TORCH=PYTHON bench_train [--threads N] [--turns N] [--steps N] [--only WORDS]
 *
 * Sides take turns in one run (us, the limit, them), the best turn counts. Limit: the time that
 * oneDNN needs for the products of the step alone, f32 or bf16 as the case computes
 * (train_limits.c). FM_TORCH: a python with torch, transformers, peft and gguf; without it their
 * column is empty. --threads 1 is timed by the process's own clock on both sides, which a busy
 * machine hardly disturbs. --only: cases whose name holds WORDS. */
#include <stdlib.h>

#include "tests/bench/train_bench.h"

#define LORA FM_METHOD_LORA
#define PEER "lora-4x128"

static const tb_case cases[] = {
    {"LoRA 4 x 128, f32", "exact", LORA, 1, 4, 128, 0.75, 0, PEER, "f32"},
    {"LoRA 4 x 128, bf16", "bf16", LORA, 1, 4, 128, 0.65, 0, PEER, "bf16"},
    {"8 children, 8 tokens each, f32", "exact", LORA, 8, 1, 8, 0, 1.6, "lora-1x8", "f32"},
    {"8 children, 32 tokens each, f32", "exact", LORA, 8, 1, 32, 0, 1.15, "lora-1x32", "f32"},
    {"8 children, 512 tokens each, f32", "exact", LORA, 8, 4, 128, 0, 1.0, PEER, "f32"},
    {"full fine-tune 4 x 128, f32", "exact", FM_METHOD_FULL, 1, 4, 128, 0.80, 0, "full-4x128",
     "f32"},
};
static const tb_case memory_case = {
    "peak memory, LoRA 8 x 256, f32", "exact", LORA, 1, 8, 256, 0, 0, "lora-8x256", "f32"};

typedef struct seen {
    tb_run pass, solo;
    tb_peer peer;
    double limit, flops;
} seen;

/* ==== one case ==== */

static int kind_of(const tb_case *c)
{
    bool bf16 = strcmp(c->mode, "bf16") == 0 && tb_limit_has(BK_BF16);
    return bf16 ? BK_BF16 : BK_F32;
}

static void take_turns(const tb_bench *b, fm_engine *e, const tb_case *c, seen *s)
{
    tb_limit *limit = tb_limit_open(&b->arch, kind_of(c), c->children * c->batch * (c->tokens - 1),
                                    c->method == FM_METHOD_FULL);

    for (uint32_t i = 0; i < b->turns; i++) {
        tb_train(b, e, c, 0, c->children, false, b->steps, &s->pass);
        tb_limit_take(limit);
        if (c->children > 1)
            tb_train(b, e, c, i % c->children, 1, false, b->steps, &s->solo);
        if (c->peer)
            (void)tb_peer_turn(b, c->peer, c->peer_dtype, b->steps, &s->peer);
    }
    s->limit = tb_limit_s(limit);
    s->flops = tb_limit_flops(limit);
    tb_limit_close(limit);
}

static bool measure(const tb_bench *b, const tb_case *c, seen *s)
{
    fm_engine *e = NULL;
    fm_status rc = bk_engine(&e, b->threads, c->mode, TB_ROWS);

    if (rc == FM_EUNSUPPORTED) {
        printf("| %s | skipped: %s | - | - | - | - |\n", c->name, fm_error_text());
        return false;
    }
    tk_ok(rc);
    take_turns(b, e, c, s);
    fm_engine_free(e);
    return true;
}

/* ==== the table ==== */

static const char *mark(bool reached)
{
    return reached ? "" : " **missed**";
}

static void print_peer(const tb_case *c, const seen *s, double tokens)
{
    double step = s->peer.step * c->children;

    if (s->peer.step <= 0)
        printf(" - | - |");
    else
        printf(" %.0f | %.2f |", tokens / step, step / s->pass.step);
}

static void print_case(const tb_case *c, const seen *s)
{
    double tokens = (double)c->children * c->batch * c->tokens;
    double share = s->limit / s->pass.step;

    printf("| %s | %.0f |", c->name, tokens / s->pass.step);
    print_peer(c, s, tokens);
    printf(" %.0f: %s %.0f GFLOP/s | %.0f %%", tokens / s->limit, bk_kind_name[kind_of(c)],
           1e-9 * s->flops / s->limit, 100 * share);
    if (c->share > 0)
        printf(" (%.0f)%s", 100 * c->share, mark(share >= c->share));
    if (c->solo > 0) {
        double gain = c->children * s->solo.step / s->pass.step;
        printf("; **%.2f x** %u solo runs (%.2f)%s", gain, c->children, c->solo,
               mark(gain >= c->solo));
    }
    printf(" |\n");
}

/* Both sides must have computed the same: else their times mean nothing. f32 sums in another order
 * move this loss by 1e-5, bf16 by some 1e-2. */
static bool same_loss(const tb_case *c, const seen *s)
{
    double gap = s->pass.loss - s->peer.loss;
    double room = strcmp(c->mode, "exact") == 0 ? 1e-3 : 0.1;

    gap = gap < 0 ? -gap : gap;
    if (s->peer.step <= 0 || gap <= room)
        return true;
    fprintf(stderr, "%s: the first loss is %.6f here and %.6f there\n", c->name, s->pass.loss,
            s->peer.loss);
    return false;
}

static void print_memory(const tb_bench *b)
{
    static const char *const theirs[] = {"lora-8x256", "lora-8x256-checkpoint"};
    static const char *const how[] = {"", ", recomputing"};
    static const double goal[] = {3000, 1500};

    printf("\n| memory | fmstore MB | PyTorch + PEFT MB (its libraries) | goal "
           "|\n|---|---|---|---|\n");
    for (int i = 0; i < 2; i++) {
        tb_peer peer = {0};
        double mb = tb_peak_mb(b, &memory_case, i == 1);
        printf("| %s%s | %.0f |", memory_case.name, how[i], mb);
        if (tb_peer_turn(b, theirs[i], "f32", 1, &peer))
            printf(" %.0f (%.0f) |", peer.peak_mb, peer.imports_mb);
        else
            printf(" - |");
        printf(" %.0f%s |\n", goal[i], mark(mb > 0 && mb <= goal[i]));
        fflush(stdout);
    }
}

static void print_command(const tb_bench *b, tb_peer *peer)
{
    double ours = tb_command_s(b);

    if (peer->step <= 0)
        (void)tb_peer_turn(b, PEER, "f32", 1, peer);

    printf(
        "\n| command to first step | fmstore s | PyTorch + PEFT s | goal |\n|---|---|---|---|\n");
    printf("| model in the store, 999 instructions |");
    if (ours > 0)
        printf(" %.2f |", ours);
    else
        printf(" - |");
    if (peer->before_first_step > 0)
        printf(" %.1f (without data) |", peer->before_first_step);
    else
        printf(" - |");
    printf(" 0.5%s |\n", mark(ours > 0 && ours <= 0.5));
}

static int run_all(const tb_bench *b, const char *only)
{
    char cpu[128];
    tb_peer peer = {0};
    int rc = 0;

    printf("%s, %u threads%s, best of %u turns of %u steps\n\n", bk_cpu_name(cpu, sizeof(cpu)),
           b->threads, b->threads == 1 ? " (by its own clock)" : "", b->turns, b->steps);
    printf("| work | fmstore tok/s | PyTorch + PEFT | ratio | limit tok/s | share (goal) |\n"
           "|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        seen s = {0};
        if (!strstr(cases[i].name, only) || !measure(b, &cases[i], &s))
            continue;
        print_case(&cases[i], &s);
        fflush(stdout);
        rc = same_loss(&cases[i], &s) ? rc : 1;
        if (s.peer.step > 0)
            peer = s.peer;
    }
    if (strstr(memory_case.name, only))
        print_memory(b);
    if (strstr("command to first step", only))
        print_command(b, &peer);
    if (peer.step > 0)
        printf("\nPeer: %s\n", peer.what);
    return rc;
}

/* ==== options ==== */

static uint32_t number(const char *text)
{
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

int main(int argc, char **argv)
{
    const char *only = "", *memory = NULL;
    char *path = tk_smollm2_gguf();
    tb_bench b = {
        .threads = 2, .turns = 3, .steps = 3, .python = getenv("FM_TORCH"), .model = path};
    int rc;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            b.threads = number(argv[i + 1]);
        else if (strcmp(argv[i], "--turns") == 0)
            b.turns = number(argv[i + 1]);
        else if (strcmp(argv[i], "--steps") == 0)
            b.steps = number(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--memory") == 0)
            memory = argv[i + 1];
    }
    if (!path)
        return tk_skip("SmolLM2's GGUF is not on this machine (FM_MODELS)");
    if (argc % 2 == 0 || b.threads == 0 || b.turns == 0 || b.steps == 0) {
        fprintf(stderr,
                "usage: bench_train [--threads N] [--turns N] [--steps N] [--only WORDS]\n");
        return 2;
    }
    bk_clock(b.threads);
    tk_ok(fm_source_open(&b.src, path));
    tk_ok(fm_arch_of_tree(&b.arch, fm_source_tree(b.src), NULL, path));
    rc = memory ? tb_peak_child(&b, &memory_case, strcmp(memory, "recompute") == 0)
                : run_all(&b, only);
    fm_source_close(b.src);
    fm_free(path);
    return rc;
}
