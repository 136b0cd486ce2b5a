/* bench_stages - a model over stages beside one rank: seconds of a step, in turns in one run.
 *
 * usage: bench_stages [stages] [turns] [mode]
 * A model of noise: 8 layers of 512, 100 MB in float32; ranks are threads over sockets. A prompt of
 * 256 rows, and 64 streams that decode, cut into 1, 2, 4, 8, 16 micro-batches; best turns.
 *
 * own   a step where every rank has a processor to itself: each rank's clock is what its thread
 *       computed, and one that receives a message goes on no earlier than it was sent. So other
 *       programs on the machine hardly disturb it; the way of a message costs its copying alone,
 *       and a sender never waits for room.
 * wall  by the clock on the wall; true where as many processors are free.
 * The limit of m pieces over s stages is (m + s - 1) / (m s) of one rank's time, were stages equal;
 * `share` is the limit over own. `cpu` is what all ranks computed, in one rank's times: what
 * cutting costs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "infer/comm/wire.h"
#include "infer/engine/pipeline.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

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

/* ==== clocks of ranks ==== */

#define WAITING 4096u

static _Thread_local double skew;
static fm_status (*real_exchange)(fm_wire *w, const fm_move *list, uint32_t n);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local uint32_t crew_number; /* crews share the clock of rank 0 alone */
static struct way {
    double sent[WAITING]; /* a ring */
    size_t put, got;
} ways[16][MOST][MOST];

static double own_s(void)
{
    return now_s(CLOCK_THREAD_CPUTIME_ID) + skew;
}

/* Messages between two ranks arrive in their order, so their times do. */
static fm_status clocked(fm_wire *w, const fm_move *list, uint32_t n)
{
    double now = own_s(), latest = 0.0;
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n; i++) {
        struct way *to = &ways[crew_number][w->rank][list[i].peer];
        if (list[i].send)
            to->sent[to->put++ % WAITING] = now;
    }
    (void)pthread_mutex_unlock(&lock);
    fm_status rc = real_exchange(w, list, n);
    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < n && rc == FM_OK; i++) {
        struct way *from = &ways[crew_number][list[i].peer][w->rank];
        double sent = list[i].send ? 0.0 : from->sent[from->got++ % WAITING];
        latest = FM_MAX(latest, sent);
    }
    (void)pthread_mutex_unlock(&lock);
    skew += FM_MAX(latest - own_s(), 0.0);
    return rc;
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
    must(fm_arch_of_tree(&a, t, NULL, "noise"));
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
    uint32_t crew;
    fm_engine_opts opts;
    pthread_t thread;
} rank;

typedef struct crew {
    uint32_t size, number;
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
    crew_number = r->crew;
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
    static uint32_t crews;
    memset(c, 0, sizeof(*c));
    c->size = stages;
    c->number = crew_number = crews++;
    o.threads = 1;
    o.mode = mode;
    o.prefix_cache = false;
    o.stages = stages;
    o.micro_rows = micro_rows;
    if (stages > 1)
        must(fm_wire_threads(wire, stages, 60.0));
    for (uint32_t i = 0; i < stages && stages > 1; i++) {
        real_exchange = wire[i]->exchange;
        wire[i]->exchange = clocked;
    }
    for (uint32_t i = 1; i < stages; i++) {
        c->rank[i] = (rank){.wire = wire[i], .crew = c->number, .opts = o};
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
    crew_number = c->number;
    fm_model_close(c->m);
    fm_engine_free(c->e);
    fm_comm_free(c->comm);
    for (uint32_t i = 1; i < c->size; i++)
        (void)pthread_join(c->rank[i].thread, NULL);
}

/* ==== work ==== */

typedef struct best {
    double own, wall, cpu;
} best;

static best now_of(void)
{
    return (best){own_s(), now_s(CLOCK_MONOTONIC), now_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static double less(double have, double from, double to)
{
    return have > 0.0 ? FM_MIN(have, to - from) : to - from;
}

static void note(best *b, const best *from, const best *to)
{
    b->own = less(b->own, from->own, to->own);
    b->wall = less(b->wall, from->wall, to->wall);
    b->cpu = less(b->cpu, from->cpu, to->cpu);
}

static void prompt_step(const crew *c, best *b)
{
    crew_number = c->number;
    fm_seq *s = NULL;
    fm_row row[PROMPT];
    must(fm_seq_open(&s, c->m));
    for (uint32_t i = 0; i < PROMPT; i++)
        row[i] = (fm_row){s, (int32_t)(i * 37 % VOCAB), i + 1 == PROMPT};
    best from = now_of();
    must(fm_engine_step(c->e, row, PROMPT));
    best to = now_of();
    note(b, &from, &to);
    fm_seq_close(s);
}

static void decode_step(const crew *c, best *b)
{
    crew_number = c->number;
    fm_seq *s[STREAMS];
    fm_row row[STREAMS];
    for (uint32_t i = 0; i < STREAMS; i++)
        must(fm_seq_open(&s[i], c->m));
    for (uint32_t t = 0; t < 4; t++) { /* the first finds its pages cold */
        for (uint32_t i = 0; i < STREAMS; i++)
            row[i] = (fm_row){s[i], (int32_t)((i * 37 + t) % VOCAB), true};
        best from = now_of();
        must(fm_engine_step(c->e, row, STREAMS));
        best to = now_of();
        note(b, &from, &to);
    }
    for (uint32_t i = 0; i < STREAMS; i++)
        fm_seq_close(s[i]);
}

#define CUTS 5u
static const uint32_t cuts[CUTS] = {1, 2, 4, 8, 16};

static void report(const char *what, const best *one, const best *b, uint32_t rows, uint32_t stages)
{
    printf("%-20s one rank  own %7.2f ms                       wall %7.2f ms\n", what,
           1e3 * one->own, 1e3 * one->wall);
    for (uint32_t i = 0; i < CUTS; i++) {
        uint32_t m = fmi_pipe_pieces(rows, stages, rows / cuts[i]);
        double limit = (double)(m + stages - 1) / (m * stages);
        printf("  %u stages, %u pieces   own %7.2f ms, %4.2f of one rank   wall %7.2f ms   limit "
               "%4.2f  share %3.0f %%  cpu %4.2f\n",
               stages, m, 1e3 * b[i].own, b[i].own / one->own, 1e3 * b[i].wall, limit,
               100.0 * limit * one->own / b[i].own, b[i].cpu / one->cpu);
    }
}

int main(int argc, char **argv)
{
    uint32_t stages = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    uint32_t turns = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 10;
    const char *mode = argc > 3 ? argv[3] : "exact";
    crew one, prompts[CUTS], decodes[CUTS];
    best lone[2] = {{0, 0, 0}}, prompt[CUTS] = {{0, 0, 0}}, decode[CUTS] = {{0, 0, 0}};
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
