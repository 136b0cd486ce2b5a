/* apart_ranks.c - rank 0 of several picks on its device: answers over ranks are those that the
 * host's sampler gives, token by token, and of a step's logits only rows that a grammar or a
 * log-probability needs come to the host. */
#include "tests/apart/apart.h"
#include "tests/model/ranks_kit.h"
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"

#define ASKS 6u
#define TOKENS 24u

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
        (void)snprintf(a->finish, sizeof a->finish, "%s", ev->finish);
    return true;
}

typedef struct world {
    ik_mem mem;
    fm_tree *tree[2];
    fm_provider p;
} world;

/* Ways to choose; the last wants log-probabilities. */
static void ask(fm_scheduler *s, fm_model *m, answer *a, uint32_t i)
{
    int32_t prompt[40];
    uint32_t len = 3 + 7 * i;
    for (uint32_t t = 0; t < len; t++)
        prompt[t] = (int32_t)(fm_rng_u64(i % 2, 3, t) % VK_VOCAB);
    fm_gen_request q = {.model = m,
                        .prompt = prompt,
                        .prompt_len = len,
                        .max_new = TOKENS - i,
                        .ignore_eos = true,
                        .want_logprobs = i + 1 == ASKS,
                        .on_event = take,
                        .ctx = a};
    fm_sample_defaults(&q.sampling);
    q.sampling.seed = 100 + i;
    q.sampling.temperature = 0.4f * (float)i;
    q.sampling.top_p = i == 2 ? 0.9f : 1.0f;
    q.sampling.top_k = i == 3 ? 9 : 0;
    q.sampling.repetition_penalty = i == 4 ? 1.3f : 1.0f;
    tk_ok(fm_scheduler_add(s, &q, NULL));
}

static apart_stats answers(const world *w, apart_kind kind, uint32_t ranks, answer *a)
{
    fm_engine_opts o = rk_opts("exact", 32);
    apart_stats stats = {0};
    rk_ranks k;
    fm_model *m[2];
    fm_scheduler *s;
    bool busy = true;
    memset(a, 0, ASKS * sizeof *a);
    apart_use(kind);
    rk_open(&k, ranks, &o, &w->p);
    for (size_t i = 0; i < 2; i++)
        tk_ok(fm_model_load(&m[i], k.e, w->tree[i], &w->p, "it"));
    tk_ok(fm_scheduler_new(&s, k.e, ASKS));
    assert_false(fmi_queues(k.e) && ranks > 1);
    for (uint32_t i = 0; i < ASKS; i++)
        ask(s, m[i % 2], &a[i], i);
    for (uint32_t n = 0; busy; n++) {
        assert_true(n < 1000);
        tk_ok(fm_scheduler_step(s, &busy));
    }
    if (kind != APART_OFF)
        stats = apart_stats_of(fm_engine_backend(k.e));
    fm_scheduler_free(s);
    for (size_t i = 0; i < 2; i++)
        fm_model_close(m[i]);
    rk_close(&k);
    return stats;
}

static void same_answers(const answer *have, const answer *want)
{
    for (uint32_t i = 0; i < ASKS; i++) {
        assert_string_equal(have[i].finish, "length");
        assert_int_equal(have[i].count, want[i].count);
        assert_memory_equal(have[i].token, want[i].token, sizeof want[i].token);
        assert_memory_equal(have[i].logprob, want[i].logprob, sizeof want[i].logprob);
    }
}

static void tokens_are_picked_where_the_logits_are(void **state)
{
    const world *w = *state;
    answer want[ASKS], have[ASKS];
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        uint64_t tokens = 0;
        (void)answers(w, APART_OFF, ranks, want);
        for (uint32_t i = 0; i + 1 < ASKS; i++)
            tokens += want[i].count;
        apart_stats s = answers(w, APART_LATE, ranks, have);
        same_answers(have, want);
        assert_int_equal(s.samples, tokens); /* all but those with log-probabilities */
        assert_true(s.fetches > 0);
    }
}

static int open_world(void **state)
{
    static world w;
    vk_base(&w.mem, &w.tree[0]);
    tk_ok(fm_tree_copy(&w.tree[1], w.tree[0]));
    vk_lora(&w.mem, w.tree[1],
            &(vk_adapter){
                .kind = "lora", .modules = 0x7f, .to_layer = 4, .r = 3, .alpha = 5, .seed = 3});
    w.p = ik_provider(&w.mem);
    *state = &w;
    return 0;
}

static int close_world(void **state)
{
    world *w = *state;
    for (size_t i = 0; i < 2; i++)
        fm_tree_free(w->tree[i]);
    ik_mem_free(&w->mem);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_picked_where_the_logits_are),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
