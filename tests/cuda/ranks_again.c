/* ctest: ranks */
/* ranks_again.c - steps over ranks that are recorded and replayed, on emulated GPUs with NCCL's
 * stand-in between them: the answers and log-probabilities that ranks on CPUs with sockets give,
 * where every step is run as it comes; all ranks replay alike; what one rank cannot keep is run as
 * it comes on all; a failure of one rank in a replay, or while a step is recorded, fails it on
 * all, and they go on. */
#include <dlfcn.h>

#include "tests/model/ranks_kit.h"
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"
#include "infer/sched/scheduler.h"

#define MODELS 4u
#define ASKS 6u
#define TOKENS 30u
#define PROMPT 50u

typedef struct world {
    ik_mem mem;
    fm_tree *tree[MODELS];
    fm_provider p;
} world;

static world w;

typedef struct split {
    uint32_t ranks, stages, micro_rows;
} split;

static void call(const char *name, void *out)
{
    void *at = dlsym(dlopen(getenv("FMSTORE_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD), name);
    assert_non_null(at);
    memcpy(out, &at, sizeof(at));
}

static void card_fails(int card, int what, unsigned long nth)
{
    void (*one)(int, int, unsigned long);
    call("simt_fail", &one);
    one(card, what, nth);
}

/* What hosts have queued on all GPUs so far. */
static unsigned long launches(void)
{
    unsigned long (*count)(void);
    call("simt_launches", &count);
    return count();
}

static void open_ranks(rk_ranks *k, const split *s, uint32_t max_rows)
{
    fm_engine_opts o = rk_opts("exact", max_rows);
    o.stages = s->stages;
    o.micro_rows = s->micro_rows;
    rk_open(k, s->ranks, &o, &w.p);
}

static fm_model *load(rk_ranks *k, uint32_t i)
{
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, k->e, w.tree[i], &w.p, "it"));
    return m;
}

/* ==== children that come and go ==== */

typedef struct answer {
    int32_t token[TOKENS];
    float logprob[TOKENS];
    uint32_t count;
    char finish[16];
} answer;

static bool take(void *ctx, const fm_gen_event *ev)
{
    answer *a = ctx;
    assert_null(ev->error);
    if (ev->token >= 0) {
        a->logprob[a->count] = ev->logprob;
        a->token[a->count++] = ev->token;
    }
    if (ev->finish)
        (void)snprintf(a->finish, sizeof(a->finish), "%s", ev->finish);
    return true;
}

/* Two kinds of beginnings, some longer than a page; every third wants log-probabilities. */
static void ask(fm_scheduler *s, fm_model *m, answer *a, uint32_t i)
{
    int32_t prompt[PROMPT];
    uint32_t len = 5 + 9 * i % PROMPT;
    for (uint32_t t = 0; t < len; t++)
        prompt[t] = (int32_t)(fm_rng_u64(i % 2, 3, t) % VK_VOCAB);
    fm_gen_request q = {.model = m,
                        .prompt = prompt,
                        .prompt_len = len,
                        .max_new = TOKENS - 3 * i,
                        .ignore_eos = true,
                        .want_logprobs = i % 3 == 2,
                        .on_event = take,
                        .ctx = a};
    fm_sample_defaults(&q.sampling);
    q.sampling.seed = 100 + i;
    q.sampling.temperature = 0.3f * (float)(i % 4);
    tk_ok(fm_scheduler_add(s, &q, NULL));
}

static double ticks(void *ctx)
{
    double *t = ctx;
    return *t += 1e-3;
}

typedef struct counts {
    uint64_t steps, replayed;
} counts;

/* The first three at once, then one each nine steps. */
static counts serve(const split *how, answer *a)
{
    rk_ranks k;
    fm_model *m[MODELS];
    fm_scheduler *s;
    double clock = 0.0;
    bool busy = true;
    uint32_t asked = 0;
    memset(a, 0, ASKS * sizeof(*a));
    open_ranks(&k, how, 48);
    for (uint32_t i = 0; i < MODELS; i++)
        m[i] = load(&k, i);
    tk_ok(fm_scheduler_new(&s, k.e, ASKS));
    fmi_scheduler_clock(s, ticks, &clock);
    for (uint32_t n = 0; busy || asked < ASKS; n++) {
        for (; asked < ASKS && (asked < 3 || n >= 9 * (asked - 2)); asked++)
            ask(s, m[asked % MODELS], &a[asked], asked);
        assert_true(n < 1000);
        tk_ok(fm_scheduler_step(s, &busy));
    }
    counts c = {k.e->steps, k.e->replayed};
    fm_scheduler_free(s);
    for (uint32_t i = 0; i < MODELS; i++)
        fm_model_close(m[i]);
    rk_close(&k);
    for (uint32_t i = 1; i < how->ranks; i++)
        assert_int_equal(k.rank[i].replayed, c.replayed);
    return c;
}

static const split splits[] = {{2, 1, 0}, {4, 1, 0}, {2, 2, 2}, {4, 2, 3}};

TEST(answers_are_those_of_steps_that_run_as_they_come)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(splits); i++) {
        answer want[ASKS], have[ASKS];
        (void)unsetenv("RK_CARDS");
        counts plain = serve(&splits[i], want);
        (void)setenv("RK_CARDS", "1", 1);
        counts cards = serve(&splits[i], have);
        assert_int_equal(plain.replayed, 0);
        print_message("%u ranks, %u stages: %u of %u steps replayed\n", splits[i].ranks,
                      splits[i].stages, (unsigned)cards.replayed, (unsigned)cards.steps);
        assert_true(cards.replayed >= cards.steps / 4);
        for (uint32_t j = 0; j < ASKS; j++) {
            assert_string_equal(have[j].finish, "length");
            assert_int_equal(have[j].count, want[j].count);
            assert_memory_equal(have[j].token, want[j].token, sizeof(want[j].token));
            assert_memory_equal(have[j].logprob, want[j].logprob, sizeof(want[j].logprob));
        }
    }
}

/* ==== one text, token by token ==== */

#define STEPS 12u

typedef struct text {
    rk_ranks k;
    fm_model *m;
    fm_seq *s;
    uint32_t at;
} text;

static void text_open(text *t, uint32_t ranks)
{
    memset(t, 0, sizeof(*t));
    open_ranks(&t->k, &(split){ranks, 1, 0}, 16);
    t->m = load(&t->k, 1);
    tk_ok(fm_seq_open(&t->s, t->m));
}

static void text_close(text *t)
{
    fm_seq_close(t->s);
    fm_model_close(t->m);
    rk_close(&t->k);
}

static fm_status next(text *t, float *logits)
{
    fm_row row = {t->s, (int32_t)(7 * t->at % VK_VOCAB), true};
    fm_status rc = fm_engine_step(t->k.e, &row, 1);
    if (rc == FM_OK)
        memcpy(logits + (size_t)t->at++ * VK_VOCAB, fm_engine_logits(t->k.e, 0),
               VK_VOCAB * sizeof(float));
    return rc;
}

/* Of STEPS tokens, by ranks on CPUs. */
static void plain_logits(uint32_t ranks, float *want)
{
    text t;
    (void)unsetenv("RK_CARDS");
    text_open(&t, ranks);
    while (t.at < STEPS)
        tk_ok(next(&t, want));
    text_close(&t);
    (void)setenv("RK_CARDS", "1", 1);
}

static void steps_to(text *t, uint32_t at, float *have)
{
    while (t->at < at)
        tk_ok(next(t, have));
}

static void whole(text *t, float *have, const float *want, const char *what)
{
    steps_to(t, STEPS, have);
    for (uint32_t i = 0; i < STEPS; i++)
        if (memcmp(have + i * VK_VOCAB, want + i * VK_VOCAB, VK_VOCAB * sizeof(float)) != 0)
            fail_msg("%s: other bits at token %u", what, i);
    assert_string_equal(fm_comm_wire(t->k.comm), "nccl");
}

/* Seen, recorded, replayed: what the host queues for a token. */
TEST(a_replay_is_few_launches)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        float want[STEPS * VK_VOCAB], have[STEPS * VK_VOCAB];
        text t;
        plain_logits(ranks, want);
        text_open(&t, ranks);
        unsigned long before = launches();
        steps_to(&t, 1, have);
        unsigned long plain = launches() - before;
        steps_to(&t, 2, have);
        assert_int_equal(t.k.e->replayed, 0);
        before = launches();
        steps_to(&t, 3, have);
        unsigned long again = launches() - before;
        assert_int_equal(t.k.e->replayed, 1);
        print_message("%u ranks: a step is %lu launches on each, replayed %lu\n", ranks,
                      plain / ranks, again / ranks);
        assert_true(again <= 2ul * ranks);
        assert_true(plain >= 80ul * ranks);
        whole(&t, have, want, "replayed");
        assert_int_equal(t.k.e->replayed, STEPS - 2);
        text_close(&t);
    }
}

/* No memory to keep it on one rank: nobody does, and nothing fails. */
TEST(what_one_cannot_keep_nobody_keeps)
{
    float want[STEPS * VK_VOCAB], have[STEPS * VK_VOCAB];
    plain_logits(2, want);
    for (int card = 0; card < 2; card++)
        for (int kernel = 0; kernel < 2; kernel++) { /* or a launch that is refused meanwhile */
            text t;
            text_open(&t, 2);
            steps_to(&t, 1, have);
            card_fails(card, kernel, kernel ? 20 : 1);
            steps_to(&t, 2, have);
            card_fails(card, kernel, 0);
            whole(&t, have, want, "not kept");
            assert_int_equal(t.k.e->replayed, 0);
            text_close(&t);
        }
}

/* A larger step, for which one GPU has no room for logits: only the others' moved. So one rank has
 * steps recorded that another sees for the first time, then has lists of. */
TEST(ranks_may_have_kept_other_steps)
{
    float want[STEPS * VK_VOCAB], have[STEPS * VK_VOCAB];
    const uint32_t at = 5;
    plain_logits(2, want);
    for (int card = 0; card < 2; card++) {
        text t;
        fm_seq *other = NULL;
        fm_row row[16];
        text_open(&t, 2);
        steps_to(&t, at, have);
        assert_int_equal(t.k.e->replayed, at - 2);
        tk_ok(fm_seq_open(&other, t.m));
        for (uint32_t i = 0; i < FM_ARRAY_LEN(row); i++)
            row[i] = (fm_row){other, (int32_t)i, true};
        card_fails(card, 0, 1);
        tk_fails(fm_engine_step(t.k.e, row, FM_ARRAY_LEN(row)), FM_ELIMIT, "no room");
        card_fails(card, 0, 0);
        fm_seq_close(other);
        whole(&t, have, want, "kept by one");
        assert_int_equal(t.k.e->replayed, at - 2 + STEPS - at - 2);
        text_close(&t);
    }
}

static void fails_once(text *t, float *have, const char *what, const char *says)
{
    uint64_t before = t->k.e->replayed;
    fm_status rc = next(t, have);
    if (rc == FM_OK)
        fail_msg("%s: did not fail", what);
    if (!strstr(fm_error_text(), says))
        fail_msg("%s: not '%s' but %s", what, says, fm_error_text());
    assert_true(t->k.e->replayed <= before + 1);
}

/* at: of the step that fails; 1 records, later ones replay. */
static void fault(const char *kind, int card, unsigned long nth, uint32_t at, const char *says,
                  const float *want)
{
    float have[STEPS * VK_VOCAB];
    char what[64];
    text t;
    (void)snprintf(what, sizeof(what), "%s:%d:%lu", kind, card, nth);
    text_open(&t, 2);
    steps_to(&t, at, have);
    if (strcmp(kind, "launch") == 0)
        card_fails(card, 1, nth);
    else
        (void)setenv("SIMT_NCCL_FAULT", what, 1);
    fails_once(&t, have, what, says);
    (void)unsetenv("SIMT_NCCL_FAULT");
    uint64_t before = t.k.e->replayed;
    whole(&t, have, want, what);
    if (t.k.e->replayed < before + STEPS - at - 3)
        fail_msg("%s: %u replays before it, %u at the end", what, (unsigned)before,
                 (unsigned)t.k.e->replayed);
    text_close(&t);
}

TEST(one_rank_fails)
{
    float want[STEPS * VK_VOCAB];
    plain_logits(2, want);
    for (int card = 0; card < 2; card++) {
        (void)setenv("SIMT_NCCL_TOGETHER", card ? "1" : "0", 1);
        fault("launch", card, 1, 5, "a recorded step was not started", want);
        fault("async", card, 3, 6, "NCCL: ", want);
        fault("group", card, 4, 1, "NCCL: a group of sends and receives", want);
    }
}

static void ends(rk_rank *r, const fm_engine *e)
{
    r->replayed = e->replayed;
}

static int open_world(void **state)
{
    (void)state;
    rk_ends = ends;
    vk_base(&w.mem, &w.tree[0]);
    for (uint32_t i = 1; i < MODELS; i++) {
        tk_ok(fm_tree_copy(&w.tree[i], w.tree[0]));
        vk_lora(&w.mem, w.tree[i],
                &(vk_adapter){.kind = "lora",
                              .modules = i == 2 ? 0x05 : 0x7f,
                              .to_layer = VK_LAYERS,
                              .r = 2 + i,
                              .alpha = 5,
                              .seed = i});
    }
    w.p = ik_provider(&w.mem);
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MODELS; i++)
        fm_tree_free(w.tree[i]);
    ik_mem_free(&w.mem);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_is_few_launches),
        cmocka_unit_test(answers_are_those_of_steps_that_run_as_they_come),
        cmocka_unit_test(what_one_cannot_keep_nobody_keeps),
        cmocka_unit_test(ranks_may_have_kept_other_steps),
        cmocka_unit_test(one_rank_fails),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
