/* bench_stages - a model over stages beside one rank: wall seconds of a step, in turns in one run.
 *
 * usage: bench_stages [stages] [turns] [mode]
 * A model of noise (8 layers of 512, 40 MB in float32); each rank is a thread with a processor of its
 * own to be. A prompt of 256 rows, and 64 streams that decode, cut into 1, 2, 4, .. micro-batches. The limit of
 * m micro-batches over s stages is (m + s - 1) / (m s) of one rank's time; `share` is the limit over
 * what was measured. Best turns: other programs only make a turn slower. `cpu` is what all ranks
 * together worked, in one rank's times: what cutting costs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "infer/comm_wire.h"
#include "infer/pipeline.h"
#include "store/base/mem.h"
#include "store/base/rng.h"

#define MOST 8u
#define LAYERS 8u
#define HIDDEN 512u
#define INTER 1408u
#define VOCAB 1024u
#define PROMPT 256u
#define STREAMS 64u

static void must(fm_status rc)
{
    if (rc == FM_OK)
        return;
    fprintf(stderr, "bench_stages: %s\n", fm_error_text());
    exit(1);
}

static double now_s(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Noise by the tensor's id, which is of its name. */
static fm_status read_noise(void *ctx, const fm_entry *e, void *dst)
{
    float *x = dst;
    uint64_t seed = fm_get_u64(e->id.b), n = e->bytes / sizeof(float);
    bool matrix = e->shape.rank == 2;
    (void)ctx;
    for (uint64_t i = 0; i < n; i++)
        x[i] = matrix ? (float)((double)(fm_rng_u64(seed, 1, i) >> 40) / 16777216.0 - 0.5) * 0.08f
                      : 1.0f;
    return FM_OK;
}

static fm_tree *make_tree(void)
{
    char config[512];
    fm_tree *t = NULL;
    fm_arch a;
    fm_param p;
    must(fm_tree_new(&t));
    (void)snprintf(config, sizeof(config),
                   "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":%u,"
                   "\"hidden_size\":%u,\"intermediate_size\":%u,\"num_hidden_layers\":%u,"
                   "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"head_dim\":64,"
                   "\"max_position_embeddings\":512,\"tie_word_embeddings\":true}}",
                   VOCAB, HIDDEN, INTER, LAYERS);
    must(fm_tree_put_file(t, "model.json", fm_span_str(config)));
    must(fm_arch_of_tree(&a, t, "noise"));
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++) {
        fm_digest id;
        fm_buf path;
        fm_buf_init(&path, 0);
        must(fm_sha256(&id, p.name, strlen(p.name)));
        must(fm_tensor_path(&path, "tensors", p.name));
        must(fm_tree_put_tensor(t, fm_buf_cstr(&path), p.name, FM_F32, &p.shape, &id));
        fm_buf_release(&path);
    }
    return t;
}

/* ==== ranks ==== */

typedef struct rank {
    fm_wire *wire;
    fm_engine_opts opts;
    pthread_t thread;
} rank;

typedef struct crew {
    uint32_t size;
    rank rank[MOST];
    fm_comm *comm;
    fm_engine *e;
    fm_model *m;
} crew;

static void *follow(void *arg)
{
    rank *r = arg;
    const fm_provider p = {.read = read_noise};
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    must(fm_comm_new(&comm, r->wire, NULL));
    r->opts.comm = comm;
    must(fm_engine_new(&e, &r->opts));
    must(fm_engine_follow(e, &p));
    fm_engine_free(e);
    fm_comm_free(comm);
    return NULL;
}

static void open_crew(crew *c, uint32_t stages, uint32_t micro_rows, const char *mode,
                      const fm_tree *tree)
{
    const fm_provider p = {.read = read_noise};
    fm_wire *wire[MOST];
    fm_engine_opts o = fm_engine_defaults();
    memset(c, 0, sizeof(*c));
    c->size = stages;
    o.threads = 1;
    o.mode = mode;
    o.prefix_cache = false;
    o.stages = stages;
    o.micro_rows = micro_rows;
    if (stages > 1)
        must(fm_wire_threads(wire, stages, 60.0));
    for (uint32_t i = 1; i < stages; i++) {
        c->rank[i] = (rank){.wire = wire[i], .opts = o};
        if (pthread_create(&c->rank[i].thread, NULL, follow, &c->rank[i]) != 0)
            abort();
    }
    if (stages > 1)
        must(fm_comm_new(&c->comm, wire[0], NULL));
    o.comm = c->comm;
    must(fm_engine_new(&c->e, &o));
    must(fm_model_load(&c->m, c->e, tree, &p, "noise"));
}

static void close_crew(crew *c)
{
    fm_model_close(c->m);
    fm_engine_free(c->e);
    fm_comm_free(c->comm);
    for (uint32_t i = 1; i < c->size; i++)
        (void)pthread_join(c->rank[i].thread, NULL);
}

/* ==== work ==== */

typedef struct best {
    double wall, cpu;
} best;

static void prompt_step(const crew *c, best *b)
{
    fm_seq *s = NULL;
    fm_row row[PROMPT];
    must(fm_seq_open(&s, c->m));
    for (uint32_t i = 0; i < PROMPT; i++)
        row[i] = (fm_row){s, (int32_t)(i * 37 % VOCAB), i + 1 == PROMPT};
    double wall = now_s(CLOCK_MONOTONIC), cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
    must(fm_engine_step(c->e, row, PROMPT));
    wall = now_s(CLOCK_MONOTONIC) - wall;
    cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    fm_seq_close(s);
    b->wall = b->wall > 0.0 ? FM_MIN(b->wall, wall) : wall;
    b->cpu = b->cpu > 0.0 ? FM_MIN(b->cpu, cpu) : cpu;
}

static void decode_step(const crew *c, best *b)
{
    fm_seq *s[STREAMS];
    fm_row row[STREAMS];
    for (uint32_t i = 0; i < STREAMS; i++)
        must(fm_seq_open(&s[i], c->m));
    for (uint32_t t = 0; t < 4; t++) { /* the first finds its pages cold */
        for (uint32_t i = 0; i < STREAMS; i++)
            row[i] = (fm_row){s[i], (int32_t)((i * 37 + t) % VOCAB), true};
        double wall = now_s(CLOCK_MONOTONIC), cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
        must(fm_engine_step(c->e, row, STREAMS));
        wall = now_s(CLOCK_MONOTONIC) - wall;
        cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        b->wall = b->wall > 0.0 ? FM_MIN(b->wall, wall) : wall;
        b->cpu = b->cpu > 0.0 ? FM_MIN(b->cpu, cpu) : cpu;
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        fm_seq_close(s[i]);
}

#define CUTS 4u
static const uint32_t cuts[CUTS] = {1, 2, 4, 8};

static void report(const char *what, const best *one, const best *b, uint32_t rows, uint32_t stages)
{
    printf("%-22s one rank %8.2f ms\n", what, 1e3 * one->wall);
    for (uint32_t i = 0; i < CUTS; i++) {
        uint32_t m = fmi_pipe_pieces(rows, stages, rows / cuts[i]);
        double limit = (double)(m + stages - 1) / (m * stages);
        printf("  %u stages, %u pieces   %8.2f ms  %4.2f of one rank  limit %4.2f  share %3.0f %%  "
               "cpu %4.2f\n",
               stages, m, 1e3 * b[i].wall, b[i].wall / one->wall, limit,
               100.0 * limit * one->wall / b[i].wall, b[i].cpu / one->cpu);
    }
}

int main(int argc, char **argv)
{
    uint32_t stages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    uint32_t turns = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 10;
    const char *mode = argc > 3 ? argv[3] : "exact";
    crew one, prompts[CUTS], decodes[CUTS];
    best lone[2] = {{0, 0}}, prompt[CUTS] = {{0, 0}}, decode[CUTS] = {{0, 0}};
    if (stages < 2 || stages > MOST || turns < 1)
        return 2;
    fm_tree *tree = make_tree();
    open_crew(&one, 1, 0, mode, tree);
    for (uint32_t i = 0; i < CUTS; i++) {
        open_crew(&prompts[i], stages, PROMPT / cuts[i], mode, tree);
        open_crew(&decodes[i], stages, STREAMS / cuts[i], mode, tree);
    }
    for (uint32_t t = 0; t < turns; t++) {
        prompt_step(&one, &lone[0]);
        decode_step(&one, &lone[1]);
        for (uint32_t i = 0; i < CUTS; i++) {
            prompt_step(&prompts[i], &prompt[i]);
            decode_step(&decodes[i], &decode[i]);
        }
    }
    printf("mode %s, %u layers of %u, best of %u turns\n", mode, LAYERS, HIDDEN, turns);
    report("prompt of 256 rows", &lone[0], prompt, PROMPT, stages);
    report("64 streams decode", &lone[1], decode, STREAMS, stages);
    close_crew(&one);
    for (uint32_t i = 0; i < CUTS; i++) {
        close_crew(&prompts[i]);
        close_crew(&decodes[i]);
    }
    fm_tree_free(tree);
    return 0;
}
