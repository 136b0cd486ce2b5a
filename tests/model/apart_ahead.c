/* apart_ahead.c - steps queued before the tokens of the step before are known, tokens picked by the
 * device, steps replayed from what it kept: answers are those of the CPU, token by token, whoever
 * is beside whom, who ends early, who comes later, and what fails. */
#include "tests/apart/apart.h"
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"

#define ASKS 14u
#define ROOM 90u

typedef struct answer {
    int32_t token[ROOM];
    uint32_t count;
    char finish[16], error[128];
} answer;

static bool take(void *ctx, const fm_gen_event *ev)
{
    answer *a = ctx;
    if (ev->token >= 0)
        a->token[a->count++] = ev->token;
    if (ev->finish)
        (void)snprintf(a->finish, sizeof a->finish, "%s", ev->finish);
    if (ev->error)
        (void)snprintf(a->error, sizeof a->error, "%s", ev->error);
    return true;
}

typedef struct world {
    ik_mem mem;
    fm_tree *base, *lora, *tuned, *ia3;
    fm_provider p;
} world;

static void world_open(world *w)
{
    memset(w, 0, sizeof *w);
    vk_base(&w->mem, &w->base);
    tk_ok(fm_tree_copy(&w->lora, w->base));
    vk_lora(&w->mem, w->lora,
            &(vk_adapter){
                .kind = "lora", .modules = 0x7f, .to_layer = 4, .r = 3, .alpha = 5, .seed = 3});
    tk_ok(fm_tree_copy(&w->tuned, w->base));
    vk_change(&w->mem, w->tuned, "model.layers.2.mlp.down_proj.weight", 77);
    tk_ok(fm_tree_copy(&w->ia3, w->base));
    vk_ia3(&w->mem, w->ia3, 0, 9);
    w->p = ik_provider(&w->mem);
}

static void world_close(world *w)
{
    fm_tree_free(w->ia3);
    fm_tree_free(w->tuned);
    fm_tree_free(w->lora);
    fm_tree_free(w->base);
    ik_mem_free(&w->mem);
}

typedef struct run {
    fm_engine *e;
    fm_model *m[4];
    fm_scheduler *s;
    answer a[ASKS];
    bool eos;
    apart_stats stats;
} run;

/* kv: bytes of the cache of keys and values, 0: plenty. */
static void run_open(run *r, const world *w, apart_kind kind, uint64_t kv)
{
    fm_engine_opts o = fm_engine_defaults();
    const fm_tree *const tree[] = {w->base, w->lora, w->tuned, w->ia3};
    memset(r, 0, sizeof *r);
    o.threads = 2;
    o.max_rows = 48;
    if (kv)
        o.kv_bytes_max = kv;
    apart_use(kind);
    tk_ok(fm_engine_new(&r->e, &o));
    for (size_t i = 0; i < 4; i++)
        tk_ok(fm_model_load(&r->m[i], r->e, tree[i], &w->p, "it"));
    tk_ok(fm_scheduler_new(&r->s, r->e, 8));
    assert_int_equal(fmi_queues(r->e), kind == APART_NOW || kind == APART_LATE);
}

static void run_close(run *r)
{
    if (!fm_engine_backend(r->e)->host_visible)
        r->stats = apart_stats_of(fm_engine_backend(r->e));
    fm_scheduler_free(r->s);
    for (size_t i = 0; i < 4; i++)
        fm_model_close(r->m[i]);
    fm_engine_free(r->e);
}

/* Number i of a mixed lot: models, lengths, ways to choose; some want log-probabilities. */
static void ask(run *r, uint32_t i)
{
    int32_t prompt[40];
    uint32_t len = 2 + i * 17 % 38;
    for (uint32_t t = 0; t < len; t++)
        prompt[t] = (int32_t)(fm_rng_u64(i % 5, 3, t) % VK_VOCAB);
    fm_gen_request q = {.model = r->m[i % 4],
                        .prompt = prompt,
                        .prompt_len = len,
                        .max_new = 1 + i * 29 % 70,
                        .ignore_eos = !r->eos,
                        .on_event = take,
                        .ctx = &r->a[i]};
    fm_sample_defaults(&q.sampling);
    q.sampling.seed = 1000 + i;
    if (i % 3) {
        q.sampling.temperature = 0.3f * (float)(1 + i % 5);
        q.sampling.top_k = i % 2 ? 7 + i : 0;
        q.sampling.top_p = i % 4 == 1 ? 0.8f : 1.0f;
        q.sampling.min_p = i % 5 == 2 ? 0.02f : 0.0f;
    }
    if (i % 4 == 3)
        q.sampling.repetition_penalty = 1.3f;
    q.want_logprobs = i == 6;
    tk_ok(fm_scheduler_add(r->s, &q, NULL));
}

static void finish(run *r)
{
    bool busy = true;
    for (uint32_t n = 0; busy; n++) {
        assert_true(n < 5000);
        tk_ok(fm_scheduler_step(r->s, &busy));
    }
}

/* All of the lot, the second half while the first is under way. */
static void whole_lot(run *r, const world *w, apart_kind kind, uint64_t kv)
{
    bool busy;
    run_open(r, w, kind, kv);
    for (uint32_t i = 0; i < ASKS; i++) {
        ask(r, i);
        for (uint32_t n = 0; i >= ASKS / 2 && n < 5; n++)
            tk_ok(fm_scheduler_step(r->s, &busy));
    }
    finish(r);
    run_close(r);
}

static void same_answers(const run *have, const run *want)
{
    for (uint32_t i = 0; i < ASKS; i++) {
        assert_string_equal(have->a[i].finish, want->a[i].finish);
        assert_string_equal(have->a[i].error, want->a[i].error);
        assert_int_equal(have->a[i].count, want->a[i].count);
        assert_memory_equal(have->a[i].token, want->a[i].token, want->a[i].count * sizeof(int32_t));
    }
}

static void a_mixed_lot_is_answered_as_on_the_cpu(void **state)
{
    static run want, have;
    const world *w = *state;
    whole_lot(&want, w, APART_OFF, 0);
    for (apart_kind k = APART_NOW; k <= APART_PLAIN; k++) {
        whole_lot(&have, w, k, 0);
        same_answers(&have, &want);
        assert_true((k == APART_PLAIN) == (have.stats.samples == 0));
    }
}

/* One stream of each model: the second half of the steps looks like the first. One of them parts
 * from the others at the third layer, so residual streams are kept. */
static void steps_are_ahead_and_come_again(void **state)
{
    static run want, have;
    const world *w = *state;
    for (int k = 0; k < 2; k++) {
        run *r = k ? &have : &want;
        run_open(r, w, k ? APART_LATE : APART_OFF, 0);
        for (uint32_t i = 0; i < 4; i++) {
            fm_gen_request q = {.model = r->m[i],
                                .prompt = (const int32_t[]){5, 6, 7, (int32_t)i},
                                .prompt_len = 4,
                                .max_new = 60,
                                .ignore_eos = true,
                                .on_event = take,
                                .ctx = &r->a[i]};
            fm_sample_defaults(&q.sampling);
            q.sampling.temperature = i ? 0.8f : 0.0f;
            tk_ok(fm_scheduler_add(r->s, &q, NULL));
        }
        finish(r);
        run_close(r);
    }
    same_answers(&have, &want);
    assert_int_equal(have.stats.samples, 4 * 60);
    assert_int_equal(have.stats.fetches, 60);
    assert_true(have.stats.waits_ahead >= 58); /* each step but the last was queued behind one */
    assert_true(have.stats.recorded >= 1 && have.stats.recorded <= 6);
    assert_true(have.stats.replayed >= 45);
    assert_int_equal(have.stats.download_bytes, 0); /* ids alone come to the host */
    assert_int_equal(have.stats.fetch_bytes, 60 * 4 * 2 * sizeof(int32_t));
}

static void who_ends_early_wastes_one_row(void **state)
{
    static run want, have;
    const world *w = *state;
    whole_lot(&want, w, APART_OFF, 0);
    int32_t stop = want.a[9].token[10]; /* an answer of 52 tokens */
    for (int k = 0; k < 2; k++) {
        run *r = k ? &have : &want;
        run_open(r, w, k ? APART_LATE : APART_OFF, 0);
        for (size_t i = 0; i < 4; i++) {
            r->m[i]->arch.eos[0] = stop;
            r->m[i]->arch.eos_count = 1;
        }
        r->eos = true;
        for (uint32_t i = 0; i < ASKS; i++)
            ask(r, i);
        finish(r);
        run_close(r);
    }
    same_answers(&have, &want);
    uint32_t stopped = 0;
    for (uint32_t i = 0; i < ASKS; i++)
        stopped += strcmp(want.a[i].finish, "stop") == 0;
    assert_true(stopped > 0 && stopped < ASKS);
}

static void a_shortage_of_pages_changes_no_answer(void **state)
{
    static run want, have;
    const world *w = *state;
    const uint64_t page = (uint64_t)FM_KV_PAGE * VK_KV * 2 * sizeof(float);
    whole_lot(&want, w, APART_OFF, 0);
    for (uint64_t texts = 2; texts <= 4; texts++) {
        whole_lot(&have, w, APART_LATE, texts * 4 * VK_LAYERS * page);
        same_answers(&have, &want);
    }
}

static void a_failed_step_is_run_again(void **state)
{
    static run want, have;
    const world *w = *state;
    bool busy = true;
    whole_lot(&want, w, APART_OFF, 0);
    for (uint64_t at = 0; at < 400; at += 19) {
        run_open(&have, w, APART_LATE, 0);
        for (uint32_t i = 0; i < ASKS; i++)
            ask(&have, i);
        for (uint32_t i = 0; i < 6 + at % 5; i++)
            tk_ok(fm_scheduler_step(have.s, &busy));
        apart_fail_after(fm_engine_backend(have.e), at);
        finish(&have);
        run_close(&have);
        same_answers(&have, &want);
    }
}

static void who_is_cancelled_is_gone_and_the_others_go_on(void **state)
{
    static run want, have;
    const world *w = *state;
    whole_lot(&want, w, APART_OFF, 0);
    run_open(&have, w, APART_LATE, 0);
    uint64_t id[ASKS];
    bool busy = true;
    for (uint32_t i = 0; i < ASKS; i++) {
        ask(&have, i);
        id[i] = i + 1;
    }
    for (uint32_t i = 0; i < 7; i++)
        tk_ok(fm_scheduler_step(have.s, &busy));
    assert_true(fm_scheduler_cancel(have.s, id[2]));
    assert_true(fm_scheduler_cancel(have.s, id[5]));
    finish(&have);
    run_close(&have);
    for (uint32_t i = 0; i < ASKS; i++) {
        bool gone = i == 2 || i == 5;
        assert_string_equal(have.a[i].finish, gone ? "cancelled" : want.a[i].finish);
        assert_true(have.a[i].count <= want.a[i].count);
        assert_true(gone || have.a[i].count == want.a[i].count);
        assert_memory_equal(have.a[i].token, want.a[i].token, have.a[i].count * sizeof(int32_t));
    }
}

/* An engine that goes while a step is up, and one whose scheduler goes first. */
static void nobody_waits_for_what_is_up(void **state)
{
    static run r;
    const world *w = *state;
    bool busy = true;
    run_open(&r, w, APART_LATE, 0);
    for (uint32_t i = 0; i < ASKS; i++)
        ask(&r, i);
    for (uint32_t i = 0; i < 4; i++)
        tk_ok(fm_scheduler_step(r.s, &busy));
    run_close(&r);
    for (uint32_t i = 0; i < ASKS; i++)
        assert_string_equal(r.a[i].finish,
                            r.a[i].count == 1 + i * 29 % 70 ? "length" : "cancelled");
}

/* A broken model: the same words as the host's sampler has. */
static void broken_logits_end_their_request_alone(void **state)
{
    static const float bad[] = {NAN, INFINITY};
    const world *w = *state;
    for (size_t b = 0; b < FM_ARRAY_LEN(bad); b++) {
        answer got[2][2];
        memset(got, 0, sizeof got);
        for (int k = 0; k < 2; k++) {
            run r;
            ik_mem mem = {.behind = {w->p}, .behind_count = 1};
            fm_tree *tree = NULL;
            fm_model *m = NULL;
            fm_provider p = ik_provider(&mem);
            float *head = vk_noise(5, (size_t)VK_VOCAB * VK_HIDDEN, 0.0, 0.2);
            for (size_t i = 0; i < VK_HIDDEN; i++)
                head[40 * VK_HIDDEN + i] = i ? 0.0f : bad[b];
            tk_ok(fm_tree_copy(&tree, w->base));
            ik_put(&mem, tree, "tensors", "lm_head.weight", head, 2, VK_VOCAB, VK_HIDDEN);
            run_open(&r, w, k ? APART_LATE : APART_OFF, 0);
            tk_ok(fm_model_load(&m, r.e, tree, &p, "broken"));
            for (int i = 0; i < 2; i++) {
                fm_gen_request q = {.model = i ? m : r.m[0],
                                    .prompt = (const int32_t[]){5, 6, 7},
                                    .prompt_len = 3,
                                    .max_new = 9,
                                    .ignore_eos = true,
                                    .on_event = take,
                                    .ctx = &got[k][i]};
                fm_sample_defaults(&q.sampling);
                tk_ok(fm_scheduler_add(r.s, &q, NULL));
            }
            finish(&r);
            fm_scheduler_free(r.s);
            r.s = NULL;
            fm_model_close(m);
            run_close(&r);
            fm_tree_free(tree);
            fm_free(head);
            ik_mem_free(&mem);
            assert_string_equal(got[k][1].finish, "error");
            assert_string_equal(got[k][0].finish, "length");
        }
        assert_string_equal(got[1][1].error, got[0][1].error);
        assert_non_null(strstr(got[1][1].error, "logit 40 is "));
        assert_memory_equal(got[1][0].token, got[0][0].token, sizeof got[0][0].token);
    }
}

static int open_world(void **state)
{
    static world w;
    world_open(&w);
    *state = &w;
    return 0;
}

static int close_world(void **state)
{
    world_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixed_lot_is_answered_as_on_the_cpu),
        cmocka_unit_test(steps_are_ahead_and_come_again),
        cmocka_unit_test(who_ends_early_wastes_one_row),
        cmocka_unit_test(a_shortage_of_pages_changes_no_answer),
        cmocka_unit_test(a_failed_step_is_run_again),
        cmocka_unit_test(who_is_cancelled_is_gone_and_the_others_go_on),
        cmocka_unit_test(nobody_waits_for_what_is_up),
        cmocka_unit_test(broken_logits_end_their_request_alone),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
