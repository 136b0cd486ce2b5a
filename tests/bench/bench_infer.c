/* bench_infer - the speed table of SmolLM2-135M: this engine, llama.cpp, ik_llama.cpp and OpenVINO
 * taking turns in one run, each figure beside the best peer's and beside its limit of the same run
 * (bytes over bandwidth, operations over rate).
 *
 * usage: bench_infer [--only NAME] [--model NAME] [--mode MODE[,MODE]] [--threads N] [--repeat N]
 *                    [--json]
 *        bench_infer --error [--json]
 *   --only    lines whose name holds NAME ("decode 8", "Q4_1", "LoRA", "kinds", "gaps")
 *   --model   shape-1b or shape-4b instead of smollm2: random weights (make_shapes.py)
 *   --mode    fast (the default), exact, or both with a comma
 *   --threads all CPUs; with 1 both sides are timed by the thread's own clock, which other programs
 *             on the machine hardly disturb, and llama.cpp is the only peer
 *   --repeat  turns of each side (5); the best counts, the median stands beside it
 *   --error   KL divergence and top-1 agreement against exact instead of speed
 *   --json    one JSON object a line
 * The Q4_1 file is found as the tests find it (FM_MODELS); the peers and the other files in the
 * folder FM_LLAMA, made by build_llama.sh. What is missing or refused says so in its cell.
 *
 * The limit of a line is the larger of: bytes of the matrices as the file stores them (exact: as
 * float32) and of the children's own, over the read rate; operations over oneDNN's rate for the
 * kind. Keys and values are not counted in it. */
#include <math.h>
#include <stdlib.h>

#include "tests/bench/infer_bench.h"

#define MAX_MODES 4

typedef enum work { PREFILL, DECODE, CHILDREN, GAPS } work;

typedef struct child_spec {
    bk_child kind;
    uint32_t rank;
} child_spec;

typedef struct line {
    const char *name;
    int file;
    work work;
    uint32_t streams;
    const child_spec *child; /* [BI_STREAMS] */
    const char *peer_ranks;
    double goal_ratio, goal_share; /* share: of the limit; of the stem's own rate for children */
} line;

static const child_spec loras[BI_STREAMS] = {{BK_LORA, 8}, {BK_LORA, 8}, {BK_LORA, 8},
                                             {BK_LORA, 8}, {BK_LORA, 8}, {BK_LORA, 8},
                                             {BK_LORA, 8}, {BK_LORA, 8}};
static const child_spec ranks[BI_STREAMS] = {{BK_LORA, 4},  {BK_LORA, 8},  {BK_LORA, 8},
                                             {BK_LORA, 16}, {BK_LORA, 16}, {BK_LORA, 32},
                                             {BK_LORA, 32}, {BK_LORA, 64}};
static const child_spec kinds[BI_STREAMS] = {{BK_STEM, 0}, {BK_LORA, 8},      {BK_LORA, 8},
                                             {BK_LORA, 8}, {BK_PREFIX, 0},    {BK_PREFIX, 0},
                                             {BK_IA3, 0},  {BK_FULL_UPPER, 0}};

static const line lines[] = {
    {"prefill 512, Q4_1", BK_Q4_1, PREFILL, 1, NULL, NULL, 2.5, 0.80},
    {"prefill 512, Q8_0", BK_Q8_0, PREFILL, 1, NULL, NULL, 2.5, 0.80},
    {"prefill 512, bf16", BK_BF16_FILE, PREFILL, 1, NULL, NULL, 2.5, 0.80},
    {"prefill 512, Q4_K_M", BK_Q4_K_M, PREFILL, 1, NULL, NULL, 2.5, 0.80},
    {"decode 1, Q4_1", BK_Q4_1, DECODE, 1, NULL, NULL, 0, 0.90},
    {"decode 1, Q8_0", BK_Q8_0, DECODE, 1, NULL, NULL, 0, 0.90},
    {"decode 1, bf16", BK_BF16_FILE, DECODE, 1, NULL, NULL, 0, 0.90},
    {"decode 1, Q4_K_M", BK_Q4_K_M, DECODE, 1, NULL, NULL, 0, 0.90},
    {"decode 1, IQ4_XS", BK_IQ4_XS, DECODE, 1, NULL, NULL, 0, 0.90},
    {"decode 1, MXFP4", BK_MXFP4, DECODE, 1, NULL, NULL, 0, 0.90},
    {"decode 8, Q4_1", BK_Q4_1, DECODE, 8, NULL, NULL, 2, 0},
    {"decode 8, Q8_0", BK_Q8_0, DECODE, 8, NULL, NULL, 2, 0},
    {"decode 8, Q4_K_M", BK_Q4_K_M, DECODE, 8, NULL, NULL, 2, 0},
    {"decode 8, bf16", BK_BF16_FILE, DECODE, 8, NULL, NULL, 2, 0},
    {"8 LoRA r 8, Q4_1", BK_Q4_1, CHILDREN, 8, loras, "8,8,8,8,8,8,8,8", 6, 0.65},
    {"8 LoRA r 4-64, Q4_1", BK_Q4_1, CHILDREN, 8, ranks, "4,8,8,16,16,32,32,64", 0, 0},
    {"8 kinds, bf16", BK_BF16_FILE, CHILDREN, 8, kinds, NULL, 0, 0.55},
    {"gaps, Q4_1", BK_Q4_1, GAPS, 7, NULL, NULL, 0, 0},
    {"gaps, bf16", BK_BF16_FILE, GAPS, 7, NULL, NULL, 0, 0},
};

typedef struct side { /* this engine in one mode */
    const char *mode;
    fm_engine *e;
    fm_model *m[BI_STREAMS];
    uint32_t models;
    char refused[200];
    bk_figure rate;     /* tokens a second */
    bk_figure stem;     /* children: as many streams of the stem alone */
    bi_gaps gaps;       /* the turn with the smallest ratio of p99 to median */
    double child_mb;    /* what children add to a step's bytes */
    double resident_gb; /* weights held */
} side;

typedef struct result {
    const line *line;
    bool there; /* the file is */
    double stem_bytes, ops_a_token;
    bk_figure peer[BI_PEERS];
    side side[MAX_MODES];
} result;

/* ==== one line ==== */

static void refuse(side *s)
{
    (void)snprintf(s->refused, sizeof(s->refused), "%s", fm_error_text());
}

static void open_side(side *s, const bi_opts *o, const line *l, const fm_source *src)
{
    double bytes = 0;
    fm_status rc = bk_engine(&s->e, o->threads, s->mode, BI_PREFILL);
    uint32_t models = l->work == CHILDREN ? BI_STREAMS : 1;
    for (; s->models < models && rc >= 0; s->models += rc >= 0) {
        child_spec c = l->child ? l->child[s->models] : (child_spec){BK_STEM, 0};
        rc = bk_child_load(&s->m[s->models], s->e, src, c.kind, c.rank, s->models, &bytes);
    }
    if (rc < 0)
        refuse(s);
    s->child_mb = bytes * 1e-6;
    if (s->e)
        s->resident_gb = (double)fm_engine_stats_of(s->e).weight_bytes * 1e-9;
}

static void close_side(side *s)
{
    for (uint32_t i = 0; i < s->models; i++)
        fm_model_close(s->m[i]);
    fm_engine_free(s->e);
    s->e = NULL;
    s->models = 0;
}

static fm_status gaps_turn(side *s)
{
    bi_gaps g;
    fm_status rc = bi_gaps_of(s->m[0], &g);
    if (rc >= 0 && (s->gaps.alone_median <= 0 ||
                    g.beside_p99 / g.alone_median < s->gaps.beside_p99 / s->gaps.alone_median))
        s->gaps = g;
    return rc;
}

/* Children are held against 8 streams of their stem, a turn of each. */
static fm_status children_turn(side *s, const line *l, fm_model *stem, double *rate)
{
    double of_stem = 0;
    fm_status rc = bi_decode(&stem, 1, l->streams, &of_stem);
    if (rc >= 0)
        bk_add(&s->stem, of_stem);
    return rc >= 0 ? bi_decode(s->m, s->models, l->streams, rate) : rc;
}

static void our_turn(side *s, const line *l, const fm_source *src)
{
    double rate = 0, ignored = 0;
    fm_status rc = FM_OK;
    fm_model *stem = NULL;
    if (s->refused[0])
        return;
    switch (l->work) {
    case PREFILL:
        rc = bi_prefill(s->m[0], &rate);
        break;
    case DECODE:
        rc = bi_decode(s->m, 1, l->streams, &rate);
        break;
    case CHILDREN:
        rc = bk_child_load(&stem, s->e, src, BK_STEM, 0, 0, &ignored);
        if (rc >= 0)
            rc = children_turn(s, l, stem, &rate);
        fm_model_close(stem);
        break;
    case GAPS:
        rc = gaps_turn(s);
        break;
    }
    if (rc < 0)
        refuse(s);
    else if (l->work != GAPS)
        bk_add(&s->rate, rate);
}

static void peer_turn(result *r, const char *path, unsigned threads)
{
    const line *l = r->line;
    for (bi_peer p = 0; p < BI_PEERS; p++) {
        double rate = 0;
        if (l->work == PREFILL)
            rate = bi_peer_prefill(p, path, threads);
        else if (l->work == DECODE)
            rate = bi_peer_decode(p, path, threads, l->streams);
        else if (l->peer_ranks && p == BI_LLAMA)
            rate = bi_peer_lora(path, threads, l->peer_ranks);
        if (rate > 0)
            bk_add(&r->peer[p], rate);
    }
}

/* The peer with the best turn of all. */
static bi_peer best_peer(const result *r)
{
    bi_peer best = BI_LLAMA;
    for (bi_peer p = 0; p < BI_PEERS; p++)
        best = bk_best(&r->peer[p]) > bk_best(&r->peer[best]) ? p : best;
    return best;
}

static void run_line(result *r, const bi_opts *o)
{
    char *path = bk_model_file(o->model, r->line->file);
    fm_source *src = NULL;
    fm_arch a;
    if (!path)
        return;
    tk_ok(fm_source_open(&src, path));
    tk_ok(fm_arch_of_tree(&a, fm_source_tree(src), NULL, path));
    r->there = true;
    r->stem_bytes = bk_matrix_bytes(src);
    r->ops_a_token = r->line->work == PREFILL ? bk_prefill_ops(&a, BI_PREFILL) / BI_PREFILL
                                              : 2 * bk_linear_params(&a) + 2.0 * a.vocab * a.hidden;
    for (int i = 0; o->mode[i]; i++) {
        r->side[i].mode = o->mode[i];
        open_side(&r->side[i], o, r->line, src);
    }
    for (uint32_t t = 0; t < o->repeat; t++) {
        peer_turn(r, path, o->threads);
        for (int i = 0; o->mode[i]; i++)
            our_turn(&r->side[i], r->line, src);
    }
    for (int i = 0; o->mode[i]; i++)
        close_side(&r->side[i]);
    fm_source_close(src);
    fm_free(path);
}

/* ==== limits of a line ==== */

typedef struct bound {
    double tok_s;
    bool by_bytes;
    double bytes, gops; /* of a step; rate of the kind */
    const char *kind;
} bound;

static bound bound_of(const result *r, const side *s, const bk_limits *l)
{
    static const int kind_of[BK_FILES] = {BK_INT8, BK_INT8, BK_BF16, BK_INT8, BK_INT8, BK_INT8};
    bool exact = strcmp(s->mode, "exact") == 0;
    int kind = exact ? BK_F32 : kind_of[r->line->file];
    double tokens = r->line->work == PREFILL ? BI_PREFILL : r->line->streams;
    bound b = {.gops = l->onednn[kind], .kind = bk_kind_name[kind]};
    b.bytes = exact ? s->resident_gb * 1e9 : r->stem_bytes + s->child_mb * 1e6;
    double by_bytes = b.bytes / (l->read_gbs * 1e9);
    double by_ops = tokens * r->ops_a_token / (b.gops * 1e9);
    b.by_bytes = by_bytes > by_ops;
    b.tok_s = tokens / fmax(by_bytes, by_ops);
    return b;
}

/* ==== output ==== */

static void goal(char *out, size_t n, const char *before, double value, double goal_value)
{
    int at = snprintf(out, n, "%s%.2f", before, value);
    if (goal_value > 0)
        (void)snprintf(out + at, n - (size_t)at, " (>= %.2f)%s", goal_value,
                       value >= goal_value ? "" : " MISSED");
}

static void print_gaps(const side *s)
{
    const bi_gaps *g = &s->gaps;
    double ratio = g->beside_p99 / g->alone_median;
    printf("alone median %.2f ms, p99 %.2f | beside %u tokens median %.2f, p99 %.2f | p99 / median "
           "%.2f (<= 2.00)%s | prompt %.2f s\n",
           g->alone_median, g->alone_p99, BI_PROMPT, g->beside_median, g->beside_p99, ratio,
           ratio <= 2 ? "" : " MISSED", g->prompt_s);
}

static void print_side(const result *r, const side *s, const bk_limits *l)
{
    bound b = bound_of(r, s, l);
    bi_peer who = best_peer(r);
    double rate = bk_best(&s->rate), peer = bk_best(&r->peer[who]);
    bool children = r->line->work == CHILDREN, fast = strcmp(s->mode, "exact") != 0;
    char ratio[48] = "-", share[48], of_stem[64] = "";
    if (peer > 0)
        goal(ratio, sizeof(ratio), "", rate / peer, fast ? r->line->goal_ratio : 0);
    goal(share, sizeof(share), "", rate / b.tok_s, fast && !children ? r->line->goal_share : 0);
    if (children)
        goal(of_stem, sizeof(of_stem), " | of 8 streams of the stem ", rate / bk_best(&s->stem),
             fast ? r->line->goal_share : 0);
    printf("%.1f tok/s (median %.1f) | %s x %s | %s of ", rate, bk_median(&s->rate), ratio,
           bi_peer_name[who], share);
    if (b.by_bytes)
        printf("%.0f tok/s: %.1f MB", b.tok_s, b.bytes * 1e-6);
    else
        printf("%.0f tok/s: %s operations", b.tok_s, b.kind);
    if (children)
        printf(" (children %.1f)", s->child_mb);
    printf("%s\n", of_stem);
}

static void print_peers(const result *r)
{
    const char *name = r->line->name;
    for (bi_peer p = 0; p < BI_PEERS; p++) {
        double rate = bk_best(&r->peer[p]);
        if (rate > 0)
            printf("%-20s %s %.1f tok/s (median %.1f)\n", p ? "" : name, bi_peer_name[p], rate,
                   bk_median(&r->peer[p]));
        else
            printf("%-20s %s -\n", p ? "" : name, bi_peer_name[p]);
    }
}

static void print_result(const result *r, const bk_limits *l)
{
    print_peers(r);
    for (int i = 0; r->side[i].mode; i++) {
        printf("%-20s %-9s ", "", r->side[i].mode);
        if (r->side[i].refused[0])
            printf("refused: %s\n", r->side[i].refused);
        else if (r->line->work == GAPS)
            print_gaps(&r->side[i]);
        else
            print_side(r, &r->side[i], l);
    }
    if (!r->there)
        printf("%-20s the model file is not here (FM_MODELS, FM_LLAMA)\n", "");
    (void)fflush(stdout);
}

static void put(fm_json *o, const char *key, double v)
{
    tk_ok(fm_json_set(o, key, fm_json_new_real(v)));
}

static void json_side(fm_json *o, const result *r, const side *s, const bk_limits *l)
{
    bound b = bound_of(r, s, l);
    tk_ok(fm_json_set(o, "mode", fm_json_new_str(s->mode)));
    if (s->refused[0]) {
        tk_ok(fm_json_set(o, "refused", fm_json_new_str(s->refused)));
    } else if (r->line->work == GAPS) {
        put(o, "alone_median_ms", s->gaps.alone_median);
        put(o, "alone_p99_ms", s->gaps.alone_p99);
        put(o, "beside_median_ms", s->gaps.beside_median);
        put(o, "beside_p99_ms", s->gaps.beside_p99);
        put(o, "prompt_s", s->gaps.prompt_s);
    } else {
        put(o, "tok_s", bk_best(&s->rate));
        put(o, "tok_s_median", bk_median(&s->rate));
        put(o, "limit_tok_s", b.tok_s);
        put(o, "step_bytes", b.bytes);
        put(o, "child_bytes", s->child_mb * 1e6);
        tk_ok(fm_json_set(o, "limit", fm_json_new_str(b.by_bytes ? "memory" : b.kind)));
        if (s->stem.n > 0)
            put(o, "stem_tok_s", bk_best(&s->stem));
    }
}

static void json_result(const result *r, const bk_limits *l)
{
    for (int i = 0; r->side[i].mode; i++) {
        fm_json *o = fm_json_new_object();
        fm_buf text;
        fm_buf_init(&text, 0);
        tk_ok(fm_json_set(o, "line", fm_json_new_str(r->line->name)));
        put(o, "llama_tok_s", bk_best(&r->peer[BI_LLAMA]));
        put(o, "llama_tok_s_median", bk_median(&r->peer[BI_LLAMA]));
        put(o, "ik_llama_tok_s", bk_best(&r->peer[BI_IK]));
        put(o, "openvino_tok_s", bk_best(&r->peer[BI_OPENVINO]));
        put(o, "goal_ratio", r->line->goal_ratio);
        put(o, "goal_share", r->line->goal_share);
        put(o, "memory_gbs", l->read_gbs);
        json_side(o, r, &r->side[i], l);
        tk_ok(fm_json_write(&text, o, FM_JSON_COMPACT));
        printf("%s\n", fm_buf_cstr(&text));
        fm_buf_release(&text);
        fm_json_free(o);
    }
}

/* ==== all lines ==== */

static int run_table(const bi_opts *o)
{
    static result all[FM_ARRAY_LEN(lines)];
    bk_limits l = {0};
    fm_pool *pool = NULL;
    tk_ok(fm_pool_new(&pool, o->threads));
    bk_limits_take(&l, pool);
    if (!o->json)
        bk_limits_print(&l, o->threads);
    for (size_t i = 0; i < FM_ARRAY_LEN(lines); i++) {
        result *r = &all[i];
        r->line = &lines[i];
        if (o->only && !strstr(lines[i].name, o->only))
            continue;
        run_line(r, o);
        bk_limits_take(&l, pool); /* others share the machine: the best that was ever seen */
        if (o->json)
            json_result(r, &l);
        else
            print_result(r, &l);
    }
    if (!o->json)
        bk_limits_print(&l, o->threads);
    fm_pool_free(pool);
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_infer [--only NAME] [--model NAME] [--mode MODE[,MODE]] "
                    "[--threads N] [--repeat N] [--json] [--error]\n");
    return 129;
}

static void split_modes(bi_opts *o, char *text)
{
    int n = 0;
    for (char *at = text; at && n + 1 < MAX_MODES; n++) {
        char *comma = strchr(at, ',');
        o->mode[n] = at;
        if (comma)
            *comma++ = 0;
        at = comma;
    }
    o->mode[n] = NULL;
}

int main(int argc, char **argv)
{
    bi_opts o = {.repeat = 5, .model = "smollm2", .mode = {"fast"}};
    bool error = false;
    for (int i = 1; i < argc; i++) {
        char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "--error") == 0) {
            o.json = o.json || strcmp(argv[i], "--json") == 0;
            error = error || strcmp(argv[i], "--error") == 0;
            continue;
        }
        if (!value)
            return usage();
        if (strcmp(argv[i], "--only") == 0)
            o.only = value;
        else if (strcmp(argv[i], "--model") == 0)
            o.model = value;
        else if (strcmp(argv[i], "--mode") == 0)
            split_modes(&o, value);
        else if (strcmp(argv[i], "--threads") == 0)
            o.threads = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--repeat") == 0)
            o.repeat = (uint32_t)strtoul(value, NULL, 10);
        else
            return usage();
        i++;
    }
    if (o.threads == 0) {
        fm_pool *pool = NULL;
        tk_ok(fm_pool_new(&pool, 0));
        o.threads = fm_pool_threads(pool);
        fm_pool_free(pool);
    }
    bk_clock(o.threads);
    return error ? bi_error(&o) : run_table(&o);
}
