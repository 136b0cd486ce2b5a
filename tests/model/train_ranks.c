/* ctest: ranks apart */
/* train_ranks.c - shards of a step over ranks (threads over the stand-in): the bytes are a
 * function of the recipe, not of who computes; a run goes on with another number of ranks; a
 * lost rank ends it. */
#include "tests/model/checkpoint_kit.h"
#include "tests/model/ranks_kit.h"
#include "tests/model/train_kit.h"
#include "train/params/zero.h"

#include <math.h>
#include <stdatomic.h>

typedef struct task {
    fm_method method;
    const char *set; /* "key=value key=value" */
    fm_train_checkpoints *checkpoints;
    uint32_t stop_at; /* rank 0 stops behind this step, 0: never */
    bool leaves;      /* rank 1 ends before the first step */
    bool beside;      /* another child of the objective goes before it */
    bool breaks;      /* at a rate that no setting takes */
    size_t held;      /* the first so many examples are measured after each step */
    uint32_t stages;  /* of several ranks: they are so many stages */
} task;

#define MOST_HELD 16u

typedef struct worker {
    const task *t;
    fm_wire *wire; /* NULL: the only one */
    uint32_t rank;
    fm_status rc;
    fm_train_result result;
    char text[1024];
    char records[256]; /* of its second step */
} worker;

static void configure(fm_train_config *c, const task *t)
{
    char word[128];
    *c = fm_train_defaults(t->method);
    c->schedule = FM_SCHEDULE_CONSTANT;
    for (const char *s = t->set; *s;) {
        size_t n = strcspn(s, " ");
        (void)snprintf(word, sizeof(word), "%.*s", (int)n, s);
        char *eq = strchr(word, '=');
        *eq = '\0';
        tk_ok(fm_train_config_set(c, word, eq + 1));
        s += n + (s[n] == ' ');
    }
}

static bool stops(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    const task *t = ctx;
    (void)n;
    (void)drop;
    return t->stop_at && p->step + 1 == t->stop_at;
}

/* Records of the objective. */
static void put_record(fm_buf *text, fm_objective objective, size_t i)
{
    static const char *const of[] = {"amber", "birch", "cedar", "delta", "ember", "fjord", "grove"};
    const char *a = of[i % 7], *b = of[(i + 3) % 7];
    if (objective == FM_OBJECTIVE_CONTRASTIVE)
        fm_buf_printf(
            text,
            "{\"anchor\": \"the %s of %zu\", \"positive\": \"%zu is where %s stands\"%s%s%s}\n", a,
            i, i, a, i % 3 ? "" : ", \"negative\": \"no ", i % 3 ? "" : b, i % 3 ? "" : "\"");
    else if (objective == FM_OBJECTIVE_DPO)
        fm_buf_printf(text,
                      "{\"prompt\": \"where is the %s of %zu?\", \"chosen\": \"by the %s\", "
                      "\"rejected\": \"in no %s at all\"}\n",
                      a, i, b, a);
    else
        fm_buf_printf(text, "{\"text\": \"the %s of %zu\", \"label\": \"%s\"}\n", a, i,
                      i % 3 ? "tree" : "stone");
}

static fm_status put_text(fm_buf *text, const fm_train_config *c)
{
    char *path = tk_source("examples/atlas/clerk.jsonl");
    bool made = c->objective == FM_OBJECTIVE_CONTRASTIVE || c->objective == FM_OBJECTIVE_DPO ||
                c->objective == FM_OBJECTIVE_CLASSIFY;
    fm_status rc = made ? FM_OK : fm_read_file(text, path, 1u << 20);
    for (size_t i = 0; made && i < 21; i++)
        put_record(text, c->objective, i);
    fm_free(path);
    return rc == FM_OK ? fm_buf_ok(text) : rc;
}

static fm_status note_records(worker *w, const fm_train_job *job)
{
    uint32_t *example = NULL;
    size_t count = 0, at = 0;
    if (job->config.steps < 2)
        return FM_OK;
    fm_status rc = fm_train_step_examples(&example, &count, &job->config, job->data, 1);
    for (size_t i = 0; rc == FM_OK && i < count && at < sizeof(w->records); i++)
        at += (size_t)snprintf(w->records + at, sizeof(w->records) - at, "%s%u", i ? ", " : "",
                               fm_dataset_at(job->data, example[i])->index);
    fm_free(example);
    return rc;
}

static fm_status work_on(worker *w, fm_engine *e, const fm_source *src, fm_model *m)
{
    fm_provider p = fm_source_provider(src);
    fm_dataset *data = NULL;
    fm_train_job job = {.name = "child", .parent = fm_source_tree(src), .checkpoint_every = 1};
    fm_buf text;
    fm_buf_init(&text, 1u << 20);
    configure(&job.config, w->t);
    if (w->t->breaks)
        job.config.lr = 1e30;
    fm_status rc = put_text(&text, &job.config);
    if (rc == FM_OK)
        rc = fm_dataset_open(&data, fm_buf_span(&text), "clerk", fm_model_tokenizer(m),
                             fm_model_chat_template(m), &job.config, NULL, 0);
    const fm_example *held[MOST_HELD];
    for (size_t i = 0; rc == FM_OK && i < w->t->held; i++)
        held[i] = fm_dataset_at(data, i);
    job.data = data;
    if (job.config.objective == FM_OBJECTIVE_DISTILL) { /* from itself, before it learns */
        job.teacher = job.parent;
        job.teacher_provider = &p;
    }
    job.checkpoints = w->t->checkpoints;
    job.held_out = held;
    job.held_outs = w->t->held;
    job.eval_every = w->t->held > 0;
    if (rc == FM_OK)
        rc = note_records(w, &job);
    fm_train_job two[2] = {job, job};
    fm_train_result result[2] = {{0}};
    two[0].name = "beside";
    two[0].checkpoints = NULL;
    two[0].config.seed += 7;
    two[0].config.batch += 2;
    size_t first = w->t->beside ? 0 : 1;
    if (rc == FM_OK)
        rc = fm_train_run(e, &p, two + first, 2 - first, result + first, stops,
                          (void *)(uintptr_t)w->t);
    fm_train_result_release(&result[0]);
    w->result = result[1];
    (void)snprintf(w->text, sizeof(w->text), "%s", fm_error_text());
    fm_dataset_close(data);
    fm_buf_release(&text);
    return rc;
}

static void *work(void *arg)
{
    worker *w = arg;
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    fm_model *m = NULL;
    fm_engine_opts o = rk_opts("exact", 64);
    w->rc = fm_source_open(&src, path);
    if (w->rc == FM_OK && w->wire)
        w->rc = fm_comm_new(&comm, w->wire, NULL);
    o.comm = comm;
    o.device = w->wire ? rk_card(w->rank) : NULL; /* one rank is the CPU: the same bits */
    o.comm_splits_batches = true;
    o.stages = w->wire ? w->t->stages : 0;
    if (w->rc == FM_OK)
        w->rc = fm_engine_new(&e, &o);
    fm_provider p = fm_source_provider(src);
    if (w->rc == FM_OK)
        w->rc = fm_model_load(&m, e, fm_source_tree(src), &p, "atlas");
    if (w->rc == FM_OK && !(w->t->leaves && w->rank == 1))
        w->rc = work_on(w, e, src, m);
    fm_model_close(m);
    fm_engine_free(e);
    fm_comm_free(comm);
    fm_source_close(src);
    fm_free(path);
    return NULL;
}

/* Runs the task on so many ranks; all end well with the same bytes, which are *out's. */
static void run_ranks(const task *t, uint32_t ranks, worker *w)
{
    fm_wire *wire[RK_MOST];
    pthread_t thread[RK_MOST];
    if (ranks > 1)
        tk_ok(fm_wire_threads(wire, ranks, 60.0));
    for (uint32_t i = 0; i < ranks; i++) {
        w[i] = (worker){.t = t, .wire = ranks > 1 ? wire[i] : NULL, .rank = i};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (uint32_t i = 0; i < ranks; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

static void run_well(const task *t, uint32_t ranks, fm_train_result *out)
{
    worker w[RK_MOST];
    run_ranks(t, ranks, w);
    for (uint32_t i = 0; i < ranks; i++)
        if (w[i].rc != FM_OK)
            fail_msg("rank %u of %u: %s", i, ranks, w[i].text);
    for (uint32_t i = 1; i < ranks; i++) {
        if (!w[0].result.stopped && t->stages <= 1)
            kit_same_bits(&w[0].result, &w[i].result);
        fm_train_result_release(&w[i].result);
    }
    *out = w[0].result;
}

static double loss_at(const fm_train_result *r, size_t step)
{
    return fm_json_real(fm_json_get(fm_json_at(r->log, step), "loss"), NAN);
}

static void same_logs(const fm_train_result *a, const fm_train_result *b)
{
    fm_buf x, y;
    fm_buf_init(&x, 0);
    fm_buf_init(&y, 0);
    tk_ok(fm_json_write(&x, a->log, FM_JSON_CANONICAL));
    tk_ok(fm_json_write(&y, b->log, FM_JSON_CANONICAL));
    assert_string_equal(fm_buf_cstr(&x), fm_buf_cstr(&y));
    fm_buf_release(&x);
    fm_buf_release(&y);
}

/* The same recipe by 1 and by `ranks` ranks. */
static void check(fm_method method, const char *set, uint32_t ranks)
{
    const task t = {.method = method, .set = set};
    fm_train_result one, many;
    run_well(&t, 1, &one);
    run_well(&t, ranks, &many);
    kit_same_bits(&one, &many);
    same_logs(&one, &many);
    assert_int_equal(one.tokens, many.tokens);
    fm_train_result_release(&one);
    fm_train_result_release(&many);
}

TEST(bits_do_not_depend_on_ranks)
{
    check(FM_METHOD_LORA, "r=4 lr=0.01 steps=3 batch=6 accumulate=2 dropout=0.1 shards=2", 2);
    check(FM_METHOD_LORA, "r=4 lr=0.01 steps=2 batch=7 shards=6 dora=true", 3);
    check(FM_METHOD_LORA, "r=4 lr=0.01 steps=2 batch=7 shards=4 loraplus=4", 2);
    check(FM_METHOD_PREFIX, "lr=0.01 steps=2 batch=4 shards=2", 2);
    check(FM_METHOD_VERA, "r=6 lr=0.05 steps=2 batch=4 shards=2", 2);
    check(FM_METHOD_LOHA, "r=2 steps=2 batch=4 shards=4 accumulate=2", 2);
    check(FM_METHOD_LORA, "steps=2 batch=2 shards=4", 4); /* some shards are empty */
}

/* Every text of a micro-batch stands against those of all ranks: bits of one rank, and (but for the
 * order of sums) of one shard. Once through the layers (1 child, a shard a rank), or twice. */
TEST(negatives_are_those_of_all_ranks)
{
    static const char set[] =
        "objective=contrastive pooling=mean r=4 lr=0.01 steps=3 max_tokens=48";
    char text[256];
    (void)snprintf(text, sizeof(text), "%s batch=6 dropout=0.1 symmetric=true shards=2", set);
    check(FM_METHOD_LORA, text, 2);
    (void)snprintf(text, sizeof(text), "%s batch=7 accumulate=2 shards=4", set);
    check(FM_METHOD_LORA, text, 2);
    (void)snprintf(text, sizeof(text), "%s batch=3 pooling=last shards=4", set); /* one is empty */
    check(FM_METHOD_LORA, text, 4);
    (void)snprintf(text, sizeof(text),
                   "objective=contrastive pooling=mean lr=0.001 steps=2 batch=5 "
                   "shards=3");
    check(FM_METHOD_FULL, text, 3);
    check(FM_METHOD_PREFIX, text, 3);

    (void)snprintf(text, sizeof(text), "%s batch=6", set);
    const task whole = {.method = FM_METHOD_LORA, .set = text, .held = 8};
    char cut_text[300];
    fm_train_result beside;
    (void)snprintf(cut_text, sizeof(cut_text), "%s shards=3", text);
    const task cut = {.method = FM_METHOD_LORA, .set = cut_text, .held = 8};
    const task pair = {.method = FM_METHOD_LORA, .set = cut_text, .held = 8, .beside = true};
    fm_train_result a, b, c;
    run_well(&whole, 1, &a);
    run_well(&cut, 3, &b);
    run_well(&cut, 1, &c);
    same_logs(&b, &c);
    run_well(&pair, 3, &beside);
    kit_same_bits(&c, &beside);
    same_logs(&c, &beside);
    fm_train_result_release(&beside);
    assert_true(loss_at(&a, 0) == loss_at(&b, 0)); /* the same vectors, one order */
    tk_assert_le(fabs(kit_log(&a, 0, "grad_norm") / kit_log(&b, 0, "grad_norm") - 1.0), 1e-6,
                 "the norm of the gradient");
    tk_assert_le(fabs(loss_at(&a, 2) / loss_at(&b, 2) - 1.0), 1e-4, "the third loss");
    tk_assert_le(fabs(kit_log(&a, 0, "eval_loss") / kit_log(&b, 0, "eval_loss") - 1.0), 1e-5,
                 "held out");
    fm_train_result_release(&a);
    fm_train_result_release(&b);
    fm_train_result_release(&c);
}

/* Pieces of what is held out, split over ranks: the log has one rank's bits, and what one shard
 * says but for the order of sums. */
TEST(what_is_held_out_is_dealt)
{
    static const size_t held[] = {1, 5, 13};
    for (size_t i = 0; i < 3; i++) {
        const char *set = "r=4 lr=0.01 steps=2 batch=4 shards=4";
        const task t = {.method = FM_METHOD_LORA, .set = set, .held = held[i]};
        const task whole = {
            .method = FM_METHOD_LORA, .set = "r=4 lr=0.01 steps=2 batch=4", .held = held[i]};
        fm_train_result one, two, four, uncut;
        run_well(&whole, 1, &uncut);
        run_well(&t, 1, &one);
        run_well(&t, 2, &two);
        run_well(&t, 4, &four);
        same_logs(&one, &two);
        same_logs(&one, &four);
        assert_true(kit_log(&one, 1, "eval_loss") > 0.0);
        double want = kit_log(&uncut, 0, "eval_loss");
        assert_true(want > 0.0);
        tk_assert_le(fabs(kit_log(&four, 0, "eval_loss") - want), 1e-6 * want, "held out");
        fm_train_result_release(&uncut);
        fm_train_result_release(&one);
        fm_train_result_release(&two);
        fm_train_result_release(&four);
    }
}

/* Pieces that the ranks share unevenly, some of them empty; another loss, with its own weights. */
TEST(what_is_held_out_is_the_same_for_any_ranks)
{
    static const struct {
        const char *set;
        uint32_t ranks[2];
    } of[] = {{"r=4 lr=0.01 steps=2 batch=5 accumulate=2 shards=6 max_tokens=48", {2, 3}},
              {"r=4 lr=0.01 steps=2 batch=3 shards=4 max_tokens=48 loraplus=4", {2, 4}},
              {"objective=contrastive pooling=mean lr=0.01 steps=2 batch=4 shards=4 max_tokens=48",
               {2, 4}}};
    for (size_t i = 0; i < FM_ARRAY_LEN(of); i++) {
        const task t = {.method = FM_METHOD_LORA, .set = of[i].set, .held = 11};
        fm_train_result one, many;
        run_well(&t, 1, &one);
        for (size_t k = 0; k < 2; k++) {
            run_well(&t, of[i].ranks[k], &many);
            for (size_t step = 0; step < 2; step++)
                assert_true(kit_log(&one, step, "eval_loss") == kit_log(&many, step, "eval_loss"));
            same_logs(&one, &many);
            fm_train_result_release(&many);
        }
        fm_train_result_release(&one);
    }
}

/* ---- a gradient that is longer than a piece ---- */

#define PIECES_FLOATS (7 * FMT_BLOCK_FLOATS + 112)

typedef struct piece_rank {
    fm_wire *wire;
    uint32_t shards, wrong;
    fm_status rc;
    uint64_t took, moments; /* bytes */
} piece_rank;

/* Of the thread's backend, while its memory is asked for. */
static _Thread_local uint64_t asked_bytes;
static _Thread_local fm_status (*plain_alloc)(fm_backend *be, void **out, size_t bytes);

static fm_status counted_alloc(fm_backend *be, void **out, size_t bytes)
{
    asked_bytes += bytes;
    return plain_alloc(be, out, bytes);
}

static float noise(uint32_t shard, uint64_t i)
{
    uint64_t x = (i * 0x9E3779B97F4A7C15u) ^ ((uint64_t)shard * 0xD1B54A32D192ED03u);
    x ^= x >> 29;
    return (float)((double)(x % 2000003) / 1000001.5 - 1.0);
}

/* Sums of this rank's shards' noise in ascending order, element by element. */
static fm_status reduce_noise(piece_rank *p, fm_comm *comm, fm_backend *be)
{
    const fm_shape shape = {.rank = 1, .dim = {PIECES_FLOATS}};
    fm_train_config c = fm_train_defaults(FM_METHOD_FULL);
    fmt_params ps = {0};
    fmt_shards s = {0};
    int32_t index;
    float *host = fm_calloc(PIECES_FLOATS, sizeof(float));
    c.shards = p->shards;
    fm_status rc = host ? fmt_params_add(&ps, &index, "noise", &shape) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = fmt_params_share(&ps, &c, comm, be);
    assert_int_equal(fmt_params_rounds(&ps), 3); /* the last one is of two stripes */
    if (rc == FM_OK)
        rc = fmt_params_alloc(&ps, be, false);
    asked_bytes = 0;
    plain_alloc = be->alloc;
    be->alloc = counted_alloc;
    if (rc == FM_OK)
        rc = fmt_shards_open(&s, &c, comm, &ps);
    be->alloc = plain_alloc;
    p->took = asked_bytes;
    p->moments = 2 * ps.own * sizeof(float);
    for (uint32_t i = 0; rc == FM_OK && i < s.own; i++) {
        for (uint64_t k = 0; k < PIECES_FLOATS; k++)
            host[k] = noise(s.first + i, k);
        rc = be->upload(be, ps.g, host, PIECES_FLOATS * sizeof(float));
        fmt_shards_keep(&s, &ps, i, (fmt_shard_sum){0});
    }
    if (rc == FM_OK)
        rc = fmt_shards_reduce(&s, &ps);
    if (rc == FM_OK)
        rc = be->download(be, host, ps.g, PIECES_FLOATS * sizeof(float));
    fmt_stripe mine;
    for (uint64_t q = 0; rc == FM_OK && fmt_params_stripe(&ps, q, &mine); q++)
        for (uint64_t k = mine.at; k < mine.at + mine.n; k++) {
            float want = noise(0, k);
            for (uint32_t i = 1; i < p->shards; i++)
                want += noise(i, k);
            p->wrong += memcmp(&want, &host[k], sizeof(want)) != 0;
        }
    fmt_shards_release(&s, be);
    fmt_params_release(&ps);
    fm_free(host);
    return rc;
}

static void *reduce_on(void *arg)
{
    piece_rank *p = arg;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    fm_engine_opts o = rk_opts("exact", 64);
    p->rc = fm_comm_new(&comm, p->wire, NULL);
    o.comm = comm;
    o.comm_splits_batches = true;
    if (p->rc == FM_OK)
        p->rc = fm_engine_new(&e, &o);
    if (p->rc == FM_OK)
        p->rc = reduce_noise(p, comm, fm_engine_backend(e));
    fm_engine_free(e);
    fm_comm_free(comm);
    return NULL;
}

TEST(gradients_come_in_pieces)
{
    for (uint32_t own = 1; own <= 2; own++) {
        fm_wire *wire[3];
        pthread_t thread[3];
        piece_rank p[3];
        fm_train_ranks_plan plan;
        tk_ok(fm_wire_threads(wire, 3, 60.0));
        for (uint32_t i = 0; i < 3; i++) {
            p[i] = (piece_rank){.wire = wire[i], .shards = 3 * own};
            assert_int_equal(pthread_create(&thread[i], NULL, reduce_on, &p[i]), 0);
        }
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(pthread_join(thread[i], NULL), 0);
        fm_train_ranks_plan_of(&plan, PIECES_FLOATS, 3, 3 * own, true);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(p[i].rc, FM_OK);
            assert_int_equal(p[i].wrong, 0);
            assert_true(p[i].moments <= plan.moment_bytes);
            assert_int_equal(p[i].took, plan.waiting_bytes);
        }
        assert_int_equal(p[0].moments, plan.moment_bytes);
    }
}

/* Many blocks of the flat parameters, so that every rank has a slice and the norm is of many. */
TEST(full_training_too)
{
    check(FM_METHOD_FULL, "lr=0.001 clip=0.1 steps=2 batch=4 max_tokens=48 shards=2", 2);
    check(FM_METHOD_FULL, "lr=0.001 steps=1 batch=3 max_tokens=48 shards=3", 3);
}

/* Rounds go while the backward is at work below them; of the last micro-batch of the last shard. */
TEST(a_run_sends_beside_its_backward)
{
    check(FM_METHOD_FULL, "lr=0.001 steps=2 batch=2 max_tokens=16 shards=2", 2);
    if (!rk_card(0))
        check(FM_METHOD_FULL, "lr=0.001 steps=2 batch=6 accumulate=3 max_tokens=24 shards=4", 2);
}

/* Shards differ from the whole by the rounding of sums alone. */
TEST(shards_compute_what_the_whole_does)
{
    const task whole = {.method = FM_METHOD_FULL,
                        .set = "lr=0.001 steps=3 batch=6 max_tokens=48 shards=1"};
    const task cut = {.method = FM_METHOD_FULL,
                      .set = "lr=0.001 steps=3 batch=6 max_tokens=48 shards=3"};
    fm_train_result a, b;
    run_well(&whole, 1, &a);
    run_well(&cut, 3, &b);
    tk_assert_le(fabs(loss_at(&a, 0) - loss_at(&b, 0)), 1e-9, "the first loss");
    tk_assert_le(fabs(loss_at(&a, 2) - loss_at(&b, 2)), 1e-5 * loss_at(&a, 2), "the third loss");
    double first = fm_json_real(fm_json_get(fm_json_at(a.log, 0), "grad_norm"), NAN);
    double second = fm_json_real(fm_json_get(fm_json_at(b.log, 0), "grad_norm"), NAN);
    tk_assert_le(fabs(first - second), 1e-6 * first, "the norm of the gradient");
    fm_train_result_release(&a);
    fm_train_result_release(&b);
}

TEST(a_run_goes_on_with_other_ranks)
{
    const char *set = "r=4 lr=0.01 steps=4 batch=4 shards=2";
    const task straight = {.method = FM_METHOD_LORA, .set = set};
    fm_train_result want, part, got;
    kit_checkpoints checkpoints;
    run_well(&straight, 1, &want);
    task first = {.method = FM_METHOD_LORA, .set = set, .stop_at = 2};
    fm_train_checkpoints copy = *kit_checkpoints_init(&checkpoints);
    first.checkpoints = &copy;
    run_well(&first, 2, &part);
    assert_true(part.stopped);
    assert_int_equal(checkpoints.kept.step, 2);
    task rest = {.method = FM_METHOD_LORA, .set = set, .checkpoints = &copy};
    run_well(&rest, 1, &got);
    kit_same_bits(&want, &got);
    fm_train_result_release(&part);
    fm_train_result_release(&got);
    fm_train_state_release(&checkpoints.kept);
    fm_train_result_release(&want);
}

TEST(a_lost_rank_ends_the_run)
{
    const task t = {.method = FM_METHOD_LORA, .set = "steps=3 batch=2 shards=2", .leaves = true};
    worker w[2];
    run_ranks(&t, 2, w);
    assert_int_equal(w[1].rc, FM_OK);
    assert_int_equal(w[0].rc, FM_EIO);
    assert_non_null(strstr(w[0].text, "rank 1 is gone"));
    fm_train_result_release(&w[1].result);
}

/* ---- a rank that fails while its gradients are under way ---- */

static _Thread_local bool computes; /* a rank's own thread, which its passes run on */
static atomic_uint under_way;       /* exchanges of others until memory runs out */
static atomic_bool beside;          /* there was one */
static uint64_t lacking;            /* the allocation that fails then */
static fm_status (*plain_exchange)(fm_wire *w, const fm_move *list, uint32_t n);

static fm_status runs_out(fm_wire *w, const fm_move *list, uint32_t n)
{
    if (!computes)
        atomic_store(&beside, true);
    if (!computes && atomic_fetch_sub(&under_way, 1) == 1) {
        const struct timespec nap = {.tv_nsec = 3000000};
        fm_mem_fail_at(lacking, false);
        (void)nanosleep(&nap, NULL); /* whoever computes comes to it */
    }
    return plain_exchange(w, list, n);
}

static void *compute(void *arg)
{
    computes = true;
    return work(arg);
}

/* All end with one rank's text, and none waits for the other. False: the allocation that failed was
 * one that is done without, and all ended well. */
static bool fail_beside(const task *t, unsigned exchange, uint64_t allocation)
{
    fm_wire *wire[2];
    pthread_t thread[2];
    worker w[2];
    lacking = allocation;
    atomic_store(&under_way, exchange);
    tk_ok(fm_wire_threads(wire, 2, 60.0));
    plain_exchange = wire[0]->exchange;
    for (uint32_t i = 0; i < 2; i++) {
        wire[i]->exchange = runs_out;
        w[i] = (worker){.t = t, .wire = wire[i], .rank = i};
        assert_int_equal(pthread_create(&thread[i], NULL, compute, &w[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    fm_mem_fail_at(0, false);
    assert_int_equal(w[0].rc, w[1].rc);
    if (w[0].rc == FM_OK) {
        for (uint32_t i = 0; i < 2; i++)
            fm_train_result_release(&w[i].result);
        return false;
    }
    assert_int_not_equal(strstr(w[0].text, "rank 1: ") != NULL,
                         strstr(w[1].text, "rank 0: ") != NULL);
    return true;
}

TEST(a_rank_fails_beside_its_exchange)
{
    const task t = {.method = FM_METHOD_FULL,
                    .set = "lr=0.001 steps=2 batch=2 max_tokens=16 shards=2"};
    unsigned failed = 0;
    if (rk_card(0)) /* there its passes take no memory of this process */
        return;
    for (unsigned n = 0; failed < 3 && n < 24; n++) {
        failed += fail_beside(&t, 1 + 2 * (n % 3), 1 + n / 3);
        if (!beside) /* a device whose bytes pass through the host exchanges afterwards */
            return;
    }
    assert_int_equal(failed, 3);
}

/* A step that breaks names its own records, not those of the step that is in hand already. */
TEST(a_broken_step_names_its_records)
{
    const task t = {
        .method = FM_METHOD_LORA, .set = "r=2 clip=0 steps=4 batch=4 shards=2", .breaks = true};
    worker w[3];
    run_ranks(&t, 1, w);
    run_ranks(&t, 2, w + 1);
    for (size_t i = 0; i < 3; i++) {
        char want[300];
        (void)snprintf(want, sizeof(want), "(records %s)", w[i].records);
        assert_int_equal(w[i].rc, FM_OK);
        assert_int_equal(w[i].result.failed, FM_EINVAL);
        assert_string_equal(w[i].result.why, w[0].result.why);
        if (!strstr(w[i].result.why, "step 1: ") || !strstr(w[i].result.why, want))
            fail_msg("'%s' is not in: %s", want, w[i].result.why);
    }
    for (size_t i = 0; i < 3; i++)
        fm_train_result_release(&w[i].result);
}

static void refuse(const char *set, uint32_t ranks, fm_status want, const char *needle)
{
    const task t = {.method = FM_METHOD_LORA, .set = set};
    worker w[RK_MOST];
    run_ranks(&t, ranks, w);
    for (uint32_t i = 0; i < ranks; i++) {
        assert_int_equal(w[i].rc, want);
        if (!strstr(w[i].text, needle))
            fail_msg("'%s' is not in: %s", needle, w[i].text);
    }
}

TEST(what_does_not_fit_is_refused)
{
    refuse("steps=1 shards=3", 2, FM_EINVAL, "3 shards cannot be split over 2 ranks");
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    c.shards = 0;
    tk_fails(fmt_shards_check(&c, NULL, "child"), FM_EINVAL, "at least 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_ranks),
        cmocka_unit_test(negatives_are_those_of_all_ranks),
        cmocka_unit_test(what_is_held_out_is_dealt),
        cmocka_unit_test(what_is_held_out_is_the_same_for_any_ranks),
        cmocka_unit_test(gradients_come_in_pieces),
        cmocka_unit_test(full_training_too),
        cmocka_unit_test(a_run_sends_beside_its_backward),
        cmocka_unit_test(shards_compute_what_the_whole_does),
        cmocka_unit_test(a_run_goes_on_with_other_ranks),
        cmocka_unit_test(a_lost_rank_ends_the_run),
        cmocka_unit_test(a_rank_fails_beside_its_exchange),
        cmocka_unit_test(a_broken_step_names_its_records),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    rk_only("a_run_*");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
