/* ctest: ranks apart */
/* train_stages.c - training over stages of a pipeline (threads over sockets): a child has the bytes
 * that one process makes, whatever the method, the stages and the ranks of a stage; logs, what is
 * held out and states likewise; a rank that fails alone ends all with its text; what cannot be done
 * is refused by name. */
int train_ranks_main(void);
#define main train_ranks_main
#include "tests/model/train_ranks.c"
#undef main

#include "train/run/pipeline_1f1b.h"

/* The same recipe by one process and by ranks that are stages; the log is part of it. */
static void check_stages(task t, uint32_t stages, uint32_t ranks)
{
    fm_train_result one, many;
    t.stages = 0;
    run_well(&t, 1, &one);
    t.stages = stages;
    run_well(&t, ranks, &many);
    kit_same_bits(&one, &many);
    same_logs(&one, &many);
    assert_int_equal(one.tokens, many.tokens);
    fm_train_result_release(&one);
    fm_train_result_release(&many);
}

TEST(a_low_rank_child)
{
    const task t = {.method = FM_METHOD_LORA,
                    .set = "r=4 lr=0.01 steps=3 batch=3 accumulate=3 dropout=0.1 clip=0.5"};
    check_stages(t, 2, 2);
    check_stages(t, 3, 3);
}

TEST(shards_and_ranks_of_a_stage)
{
    const task t = {.method = FM_METHOD_LORA,
                    .set = "r=4 lr=0.01 steps=2 batch=5 accumulate=2 dropout=0.1 shards=4",
                    .held = 5};
    const task empty = {.method = FM_METHOD_LORA, .set = "steps=2 batch=2 shards=4"};
    check_stages(t, 2, 2);
    check_stages(t, 2, 4);
    check_stages(empty, 2, 4);
    check_stages(empty, 4, 4);
}

TEST(every_method)
{
    static const struct {
        fm_method method;
        const char *set;
    } of[] = {
        {FM_METHOD_LORA, "r=4 lr=0.01 steps=2 batch=3 accumulate=2 dora=true"},
        {FM_METHOD_LORA, "r=4 lr=0.01 steps=2 batch=3 loraplus=4 layers=3-4 targets=q_proj"},
        {FM_METHOD_LORA, "steps=2 batch=3 layers=5 targets=q_proj modules_to_save=lm_head"},
        {FM_METHOD_LORA, "r=2 steps=2 batch=2 targets=q_proj,embed_tokens accumulate=2"},
        {FM_METHOD_IA3, "lr=0.05 steps=2 batch=3 accumulate=2"},
        {FM_METHOD_PREFIX, "lr=0.01 steps=2 batch=3 accumulate=2 virtual_tokens=5"},
        {FM_METHOD_PROMPT, "lr=0.01 steps=2 batch=3 accumulate=2"},
        {FM_METHOD_ADALORA, "init_r=2 lr=0.01 steps=2 batch=3 accumulate=2 targets=q_proj,lm_head"},
        {FM_METHOD_LOKR,
         "r=2 lr=0.01 steps=2 batch=3 accumulate=2 targets=q_proj,down_proj,lm_head"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(of); i++) {
        const task t = {.method = of[i].method, .set = of[i].set};
        check_stages(t, 3, 3);
    }
}

/* Frozen rows beside a child's (a reference, a teacher), and a head over states, where nothing is
 * put off or all of it. */
TEST(other_objectives)
{
    static const char *const set[] = {
        "objective=dpo r=4 lr=0.01 steps=2 batch=3 accumulate=2 clip=0.5 max_tokens=48",
        "objective=classify r=4 lr=0.01 steps=2 batch=3 accumulate=2 max_tokens=48",
        "objective=distill r=4 lr=0.01 steps=2 batch=3 accumulate=2 max_tokens=48",
        "objective=dpo r=4 lr=0.01 steps=2 batch=4 shards=4 max_tokens=48",
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(set); i++) {
        task t = {.method = FM_METHOD_LORA, .set = set[i], .held = 3, .beside = i == 0};
        check_stages(t, i == 3 ? 2 : 3, i == 3 ? 4 : 3);
    }
    check_stages((task){.method = FM_METHOD_FULL,
                        .set = "objective=classify lr=0.001 steps=2 batch=2 accumulate=2"},
                 2, 2);
    check_stages((task){.method = FM_METHOD_PREFIX,
                        .set = "objective=dpo lr=0.01 steps=2 batch=2 accumulate=2"},
                 2, 2);
}

/* The atlas ties its head to its embedding: the two stages that share it, and blocks of the norm
 * that several ranks have. */
TEST(a_full_child)
{
    const task t = {.method = FM_METHOD_FULL,
                    .set = "lr=0.001 clip=0.1 steps=2 batch=3 accumulate=2 max_tokens=48"};
    const task cut = {.method = FM_METHOD_FULL,
                      .set = "lr=0.001 clip=0.1 steps=2 batch=4 accumulate=2 max_tokens=48 "
                             "shards=4"};
    const task frozen = {.method = FM_METHOD_FULL,
                         .set = "lr=0.001 steps=2 batch=2 max_tokens=48 freeze=norm layers=1-2"};
    check_stages(t, 2, 2);
    check_stages(t, 3, 3);
    check_stages(cut, 2, 4);
    check_stages(frozen, 2, 2);
}

/* ---- families: what stands before, in and behind their layers differs ---- */

#define TINY_TOKENS 12u
#define TINY_ROWS 4u

typedef struct tiny {
    const char *arch;
    fm_method method;
    fm_objective objective;
    bool recompute;
    uint32_t stages;
    fm_wire *wire; /* NULL: one process */
    uint32_t rank;
    fm_status rc;
    fm_train_result result;
    char text[512];
} tiny;

static fm_status train_tiny(tiny *t, fm_engine *e, const fm_source *src)
{
    int32_t ids[2 * TINY_ROWS * TINY_TOKENS], labels[2 * TINY_ROWS * TINY_TOKENS];
    bool classes = t->objective == FM_OBJECTIVE_CLASSIFY;
    fm_provider p = fm_source_provider(src);
    fm_train_job job = {.name = "tiny",
                        .config = fm_train_defaults(t->method),
                        .parent = fm_source_tree(src),
                        .batch_ids = ids,
                        .batch_labels = labels,
                        .recompute = t->recompute};
    for (uint32_t i = 0; i < 2 * TINY_ROWS * TINY_TOKENS; i++)
        labels[i] = ids[i] = (int32_t)((i * 7 + i / 5) % 23 + 3);
    for (uint32_t i = 0; classes && i < 2 * TINY_ROWS; i++)
        labels[i * TINY_TOKENS] = (int32_t)(i * i % 3);
    job.config.objective = t->objective;
    job.config.classes = classes ? 3 : 0;
    job.config.lr = 0.01;
    job.config.steps = 2;
    job.config.batch = 2;
    job.config.accumulate = 2;
    job.config.max_tokens = TINY_TOKENS;
    return fm_train_run(e, &p, &job, 1, &t->result, NULL, NULL);
}

static void *train_tiny_on(void *arg)
{
    tiny *t = arg;
    char path[128];
    fm_source *src = NULL;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    fm_engine_opts o = rk_opts("exact", 64);
    (void)snprintf(path, sizeof(path), "tests/model/golden/arch/%s", t->arch);
    char *dir = tk_source(path);
    t->rc = fm_source_open(&src, dir);
    if (t->rc == FM_OK && t->wire)
        t->rc = fm_comm_new(&comm, t->wire, NULL);
    o.comm = comm;
    o.comm_splits_batches = true;
    o.stages = t->wire ? t->stages : 0;
    o.device = t->wire ? rk_card(t->rank) : NULL;
    if (t->rc == FM_OK)
        t->rc = fm_engine_new(&e, &o);
    if (t->rc == FM_OK)
        t->rc = train_tiny(t, e, src);
    (void)snprintf(t->text, sizeof(t->text), "%.500s", fm_error_text());
    fm_engine_free(e);
    fm_comm_free(comm);
    fm_source_close(src);
    fm_free(dir);
    return NULL;
}

static void check_tiny(tiny t)
{
    fm_wire *wire[RK_MOST];
    pthread_t thread[RK_MOST];
    tiny all[RK_MOST];
    (void)train_tiny_on(&t);
    if (t.rc != FM_OK)
        fail_msg("%s: %s", t.arch, t.text);
    tk_ok(fm_wire_threads(wire, t.stages, 60.0));
    for (uint32_t i = 0; i < t.stages; i++) {
        all[i] = t;
        all[i].wire = wire[i];
        all[i].rank = i;
        assert_int_equal(pthread_create(&thread[i], NULL, train_tiny_on, &all[i]), 0);
    }
    for (uint32_t i = 0; i < t.stages; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (uint32_t i = 0; i < t.stages; i++) {
        if (all[i].rc != FM_OK)
            fail_msg("%s, rank %u: %s", t.arch, i, all[i].text);
        assert_true(i == 0 || all[i].result.count == 0); /* rank 0 reads them */
    }
    kit_same_bits(&t.result, &all[0].result);
    same_logs(&t.result, &all[0].result);
    fm_train_result_release(&t.result);
    for (uint32_t i = 0; i < t.stages; i++)
        fm_train_result_release(&all[i].result);
}

/* On emulated GPUs the exchanges wait in the order of the products: a head that is tied to its
 * embedding over three stages, whose neighbours are not the two that share it. */
TEST(a_tiny_child)
{
    check_tiny((tiny){.arch = "smollm3", .method = FM_METHOD_FULL, .stages = 3});
    check_tiny((tiny){.arch = "smollm3", .method = FM_METHOD_LORA, .stages = 2});
}

TEST(every_family)
{
    static const char *const arch[] = {"gemma2",  "gemma3-linear", "gpt_neox",        "granite",
                                       "olmo2",   "phi3",          "qwen2_moe",       "qwen3_moe",
                                       "smollm3", "stablelm",      "starcoder2",      "phi",
                                       "gptj",    "falcon-groups", "hunyuan_v1_dense"};
    for (size_t i = 0; i < FM_ARRAY_LEN(arch); i++) {
        check_tiny((tiny){.arch = arch[i], .method = FM_METHOD_FULL, .stages = 2});
        check_tiny(
            (tiny){.arch = arch[i], .method = FM_METHOD_LORA, .recompute = true, .stages = 2});
    }
    check_tiny((tiny){.arch = "gpt_oss", .method = FM_METHOD_LORA, .stages = 2});
    for (uint32_t i = 0; i < 2; i++) /* an encoder has no head of tokens */
        check_tiny((tiny){.arch = "roberta",
                          .method = i ? FM_METHOD_FULL : FM_METHOD_LORA,
                          .objective = FM_OBJECTIVE_CLASSIFY,
                          .stages = 2});
}

TEST(children_in_one_pass)
{
    const task t = {.method = FM_METHOD_LORA,
                    .set = "r=4 lr=0.01 steps=2 batch=2 accumulate=2 shards=2",
                    .beside = true,
                    .held = 3};
    const task full = {.method = FM_METHOD_FULL,
                       .set = "lr=0.001 steps=2 batch=2 accumulate=2 max_tokens=48",
                       .beside = true};
    check_stages(t, 2, 4);
    check_stages(t, 3, 3);
    check_stages(full, 2, 2);
}

static void goes_on(fm_method method, const char *set, uint32_t first_stages, uint32_t first,
                    uint32_t then_stages, uint32_t then)
{
    const task straight = {.method = method, .set = set};
    fm_train_result want, part, got;
    kit_checkpoints checkpoints;
    run_well(&straight, 1, &want);
    task a = {.method = method, .set = set, .stop_at = 2, .stages = first_stages};
    fm_train_checkpoints copy = *kit_checkpoints_init(&checkpoints);
    a.checkpoints = &copy;
    run_well(&a, first, &part);
    assert_true(part.stopped);
    assert_int_equal(checkpoints.kept.step, 2);
    task b = {.method = method, .set = set, .checkpoints = &copy, .stages = then_stages};
    run_well(&b, then, &got);
    kit_same_bits(&want, &got);
    fm_train_result_release(&part);
    fm_train_result_release(&got);
    fm_train_state_release(&checkpoints.kept);
    fm_train_result_release(&want);
}

TEST(a_run_goes_on_with_other_stages)
{
    goes_on(FM_METHOD_LORA, "r=4 lr=0.01 steps=4 batch=4 shards=2", 2, 4, 0, 1);
    goes_on(FM_METHOD_PREFIX, "lr=0.01 steps=4 batch=2 accumulate=2", 0, 1, 3, 3);
    goes_on(FM_METHOD_FULL, "lr=0.001 steps=3 batch=2 max_tokens=48 shards=2", 3, 3, 2, 4);
}

TEST(a_broken_stage_says_where)
{
    const task t = {
        .method = FM_METHOD_LORA, .set = "r=2 clip=0 steps=4 batch=4 shards=2", .breaks = true};
    task staged = t;
    worker w[4];
    staged.stages = 3;
    run_ranks(&t, 1, w);
    run_ranks(&staged, 3, w + 1);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(w[i].rc, FM_OK);
        assert_int_equal(w[i].result.failed, FM_EINVAL);
        assert_string_equal(w[i].result.why, w[0].result.why);
    }
    for (size_t i = 0; i < 4; i++)
        fm_train_result_release(&w[i].result);
}

/* ---- a rank that fails alone ---- */

typedef struct breaker {
    fm_train_checkpoints checkpoints;
    uint64_t nth; /* allocation that fails behind the first decision to keep, 0: none */
    bool full;    /* nothing can be written */
} breaker;

static bool due(void *ctx, uint32_t child, uint32_t step)
{
    const breaker *b = ctx;
    (void)child;
    if (b->nth && step == 1)
        fm_mem_fail_at(b->nth, false);
    return true;
}

static fm_status save(void *ctx, uint32_t child, const fm_train_state *s)
{
    const breaker *b = ctx;
    (void)child;
    (void)s;
    return b->full ? fm_fail(FM_EIO, "the disk is full") : FM_OK;
}

static fm_status run_broken(breaker *b, uint32_t stages, uint32_t ranks, char *text, size_t cap)
{
    const task t = {.method = FM_METHOD_LORA,
                    .set = "r=2 lr=0.01 steps=2 batch=2 accumulate=2 max_tokens=48 shards=2",
                    .checkpoints = &b->checkpoints,
                    .stages = stages};
    worker w[RK_MOST];
    b->checkpoints = (fm_train_checkpoints){.ctx = b, .due = due, .save = save};
    run_ranks(&t, ranks, w);
    fm_mem_fail_at(0, false);
    for (uint32_t i = 0; i < ranks; i++) {
        if (w[i].rc != w[0].rc)
            fail_msg("rank 0: %d %s; rank %u: %d %s", w[0].rc, w[0].text, i, w[i].rc, w[i].text);
        if (w[i].rc == FM_OK)
            fm_train_result_release(&w[i].result);
        else if (w[i].text[0] == '\0' || strstr(w[i].text, "is gone"))
            fail_msg("rank %u: %s", i, w[i].text);
    }
    (void)snprintf(text, cap, "%.1000s", w[ranks - 1].text);
    return w[0].rc;
}

TEST(a_rank_fails_alone)
{
    char text[1024];
    breaker full = {.full = true}, sound = {0};
    unsigned failed = 0, clean = 0;
    assert_int_equal(run_broken(&full, 2, 4, text, sizeof(text)), FM_EIO);
    assert_non_null(strstr(text, "rank 0: the disk is full"));
    tk_ok(run_broken(&sound, 2, 4, text, sizeof(text)));
    for (uint64_t nth = 1; nth < 400 && clean < 3; nth += nth < 8 ? 1 : 23) {
        breaker b = {.nth = nth};
        fm_status rc = run_broken(&b, 3, 3, text, sizeof(text));
        failed += rc != FM_OK;
        clean = rc == FM_OK ? clean + 1 : 0;
    }
    assert_true(failed >= 8);
    for (uint64_t nth = 2; nth < 40; nth += 9) {
        breaker b = {.nth = nth};
        (void)run_broken(&b, 2, 4, text, sizeof(text)); /* all or none, whoever it is */
    }
}

TEST(a_lost_stage)
{
    const task t = {
        .method = FM_METHOD_LORA, .set = "steps=3 batch=2", .leaves = true, .stages = 2};
    worker w[2];
    run_ranks(&t, 2, w);
    assert_int_equal(w[1].rc, FM_OK);
    assert_int_equal(w[0].rc, FM_EIO);
    assert_non_null(strstr(w[0].text, "rank 1 is gone"));
    fm_train_result_release(&w[1].result);
}

/* ---- refusals ---- */

static void refuse_stages(const char *set, uint32_t stages, uint32_t ranks, fm_status want,
                          const char *needle)
{
    const task t = {.method = FM_METHOD_LORA, .set = set, .stages = stages};
    worker w[RK_MOST];
    run_ranks(&t, ranks, w);
    for (uint32_t i = 0; i < ranks; i++) {
        assert_int_equal(w[i].rc, want);
        if (!strstr(w[i].text, needle))
            fail_msg("'%s' is not in: %s", needle, w[i].text);
    }
}

TEST(what_stages_cannot_do_is_refused)
{
    refuse_stages(
        "objective=contrastive pooling=mean steps=1 max_tokens=48", 2, 2, FM_EUNSUPPORTED,
        "objective=contrastive, whose loss is over all texts of a step, cannot train over");
    refuse_stages("steps=1 shards=3", 2, 4, FM_EINVAL, "3 shards cannot be split over 2 ranks");
}

/* ---- memory: what a stage holds ---- */

typedef struct holder {
    fm_wire *wire;
    fm_status rc;
    uint64_t stem, trained, kept;
} holder;

static fm_status hold(holder *h, fm_engine *e, const fm_source *src)
{
    fm_provider p = fm_source_provider(src);
    fmt_stage *s = NULL;
    fmt_child ch;
    fmt_pipeline *f = NULL;
    fmt_pass *alone = NULL;
    fm_train_result result = {0};
    int32_t ids[128], labels[128];
    uint32_t passes = 0;
    fmt_lane *lane[2];
    for (size_t i = 0; i < 128; i++)
        ids[i] = labels[i] = (int32_t)(i % 50);
    fm_train_job job = {.name = "held",
                        .config = fm_train_defaults(FM_METHOD_LORA),
                        .parent = fm_source_tree(src),
                        .batch_ids = ids,
                        .batch_labels = labels};
    job.config.batch = 2;
    job.config.accumulate = 4;
    job.config.max_tokens = 16;
    job.config.steps = 1;
    fm_status rc = fmt_stage_open(&s, e);
    if (rc == FM_OK)
        rc = fmt_child_open_on(&ch, e, &p, &job, 0, &result, s);
    if (rc == FM_OK && s)
        rc = fmt_pipeline_new(&f, s, fm_engine_backend(e), &ch, 1, lane);
    else if (rc == FM_OK)
        rc = fmt_run_pass(&alone, fm_engine_backend(e), &ch, 1, lane);
    if (rc == FM_OK) {
        h->stem = fm_engine_stats_of(e).weight_bytes;
        h->trained = ch.ps.total;
        h->kept = s ? fmt_pipeline_bytes(f, &passes) : fmt_pass_bytes(alone);
    }
    fmt_pipeline_free(f);
    fmt_pass_free(alone);
    if (rc == FM_OK)
        fmt_child_release(&ch);
    fmt_stage_free(s);
    return rc;
}

static void *hold_on(void *arg)
{
    holder *h = arg;
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    fm_engine_opts o = rk_opts("exact", 64);
    h->rc = fm_source_open(&src, path);
    if (h->rc == FM_OK && h->wire)
        h->rc = fm_comm_new(&comm, h->wire, NULL);
    o.comm = comm;
    o.comm_splits_batches = true;
    o.stages = h->wire ? 3 : 0;
    if (h->rc == FM_OK)
        h->rc = fm_engine_new(&e, &o);
    if (h->rc == FM_OK)
        h->rc = hold(h, e, src);
    fm_engine_free(e);
    fm_comm_free(comm);
    fm_source_close(src);
    fm_free(path);
    return NULL;
}

/* Three stages of the atlas hold, together, one stem (its tied matrix twice) and one set of
 * parameters, two of six layers each; and activations of as many passes of two layers as stages
 * follow, so none more than one process's pass over six has. */
TEST(a_stage_holds_its_part)
{
    fm_wire *wire[3];
    pthread_t thread[3];
    holder h[3], whole = {0};
    uint64_t trained = 0, stem = 0;
    (void)hold_on(&whole);
    assert_int_equal(whole.rc, FM_OK);
    tk_ok(fm_wire_threads(wire, 3, 60.0));
    for (uint32_t i = 0; i < 3; i++) {
        h[i] = (holder){.wire = wire[i]};
        assert_int_equal(pthread_create(&thread[i], NULL, hold_on, &h[i]), 0);
    }
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(h[i].rc, FM_OK);
        trained += h[i].trained;
        stem += h[i].stem;
        print_message("stage %u: stem %.2f, trains %.2f, activations %.2f of one process's\n", i,
                      (double)h[i].stem / (double)whole.stem,
                      (double)h[i].trained / (double)whole.trained,
                      (double)h[i].kept / (double)whole.kept);
        assert_int_equal(h[i].trained * 3, whole.trained);
        assert_true(h[i].stem * 2 < whole.stem);
        assert_true(h[i].kept <= whole.kept);
    }
    assert_int_equal(trained, whole.trained);
    assert_int_equal(stem, whole.stem + (uint64_t)1024 * 128 * sizeof(float));
    assert_true(h[2].kept < h[1].kept && h[1].kept < h[0].kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_low_rank_child),
        cmocka_unit_test(shards_and_ranks_of_a_stage),
        cmocka_unit_test(every_method),
        cmocka_unit_test(other_objectives),
        cmocka_unit_test(a_full_child),
        cmocka_unit_test(a_tiny_child),
        cmocka_unit_test(every_family),
        cmocka_unit_test(children_in_one_pass),
        cmocka_unit_test(a_run_goes_on_with_other_stages),
        cmocka_unit_test(a_broken_stage_says_where),
        cmocka_unit_test(a_rank_fails_alone),
        cmocka_unit_test(a_lost_stage),
        cmocka_unit_test(what_stages_cannot_do_is_refused),
        cmocka_unit_test(a_stage_holds_its_part),
    };
    rk_only("a_tiny_child");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
