/* apart_state.c - recurrent layers on a device that runs late: steps are queued ahead, and operations
 * fail at many places. A failed step changes nothing, so the answers are the CPU's all the same. */
#include "tests/model/state_kit.h"

#include "infer/engine/engine.h"
#include "tests/apart/apart.h"

#define ASKS 6u
#define NEW 24u

typedef struct answers {
    int32_t token[ASKS][NEW];
    uint32_t count[ASKS];
} answers;

typedef struct listener {
    answers *a;
    uint32_t i;
} listener;

static bool take(void *ctx, const fm_gen_event *ev)
{
    const listener *l = ctx;
    assert_null(ev->error);
    if (ev->token >= 0)
        l->a->token[l->i][l->a->count[l->i]++] = ev->token;
    return true;
}

/* Answers of all variants; ops > 0: so many operations behind step number `steps` one fails. */
static void answer(answers *out, world *w, apart_kind kind, uint32_t steps, uint64_t ops)
{
    apart_use(kind);
    fm_engine *e = engine_of(w, 2, 48, true, 0);
    fm_model *m[VARIANTS];
    fm_scheduler *s = NULL;
    listener l[ASKS];
    bool busy = true;
    memset(out, 0, sizeof(*out));
    for (int v = 0; v < VARIANTS; v++)
        m[v] = vk_load(e, &w->mem, w->tree[v]);
    tk_ok(fm_scheduler_new(&s, e, ASKS));
    for (uint32_t i = 0; i < ASKS; i++) {
        l[i] = (listener){out, i};
        fm_gen_request q = {.model = m[i % VARIANTS],
                            .prompt = w->text[i % TEXTS],
                            .prompt_len = 40 + 9 * i,
                            .max_new = NEW,
                            .ignore_eos = true,
                            .on_event = take,
                            .ctx = &l[i]};
        fm_sample_defaults(&q.sampling);
        q.sampling.temperature = 0.9f;
        q.sampling.seed = i;
        tk_ok(fm_scheduler_add(s, &q, NULL));
    }
    for (uint32_t i = 0; i < steps; i++)
        tk_ok(fm_scheduler_step(s, &busy));
    if (ops)
        apart_fail_after(fm_engine_backend(e), ops);
    while (busy)
        tk_ok(fm_scheduler_step(s, &busy));
    assert_true((ops > 0) == (e->failures > 0));
    fm_scheduler_free(s);
    for (int v = 0; v < VARIANTS; v++)
        fm_model_close(m[v]);
    fm_engine_free(e);
}

TEST(failures_change_no_answer)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++) {
        static world w;
        static answers want, have;
        make(&w, &families[i]);
        w.mode = "exact";
        answer(&want, &w, APART_OFF, 0, 0);
        answer(&have, &w, APART_LATE, 0, 0);
        assert_memory_equal(&want, &have, sizeof(want));
        for (uint64_t at = 1; at < 260; at += 37) {
            answer(&have, &w, APART_LATE, 4 + (uint32_t)at % 7, at);
            assert_memory_equal(&want, &have, sizeof(want));
        }
        for (uint32_t k = 0; k < ASKS; k++)
            assert_int_equal(want.count[k], NEW);
        drop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures_change_no_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
