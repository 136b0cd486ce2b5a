/* ctest: ranks cuda_cost=8 */
/* infer_ranks_alone.c - one rank fails alone in the middle of a step, at many places of it: the
 * step fails on all ranks with that rank's text, nobody hangs, and the same engine then gives
 * the bits that it gave before. On the CPU an allocation of any rank fails; with RK_CARDS=1 an
 * allocation or a launch of one GPU, or a group of NCCL's stand-in. */
#include <dlfcn.h>

#include "infer/engine/engine.h"
#include "tests/model/ranks_kit.h"

#define PROMPT 40u /* more than a page */
#define DECODED 3u

typedef struct world {
    fm_source *src;
    rk_ranks k;
    fm_model *m;
    size_t vocab;

} world;

/* The prompt, then tokens one by one; got NULL: what they give is not kept. */
static fm_status run(world *w, float *got)
{
    fm_seq *s = NULL;
    fm_row row[PROMPT];
    fm_status rc = fm_seq_open(&s, w->m);
    for (uint32_t i = 0; i < PROMPT && rc == FM_OK; i++)
        row[i] = (fm_row){s, (int32_t)(7 + 3 * i % 200), false};
    if (rc == FM_OK)
        rc = fm_engine_step(w->k.e, row, PROMPT);
    for (uint32_t i = 0; i < DECODED && rc == FM_OK; i++) {
        row[0] = (fm_row){s, (int32_t)(11 + i), true};
        rc = fm_engine_step(w->k.e, row, 1);
        if (rc == FM_OK)
            memcpy(got + i * w->vocab, fm_engine_logits(w->k.e, 0), w->vocab * sizeof(float));
    }
    fm_error_state why;
    fm_error_save(&why);
    fm_seq_close(s);
    fm_error_restore(&why);
    return rc;
}

static void world_open_on(world *w, uint32_t ranks, bool as_mpi)
{
    char *path = tk_source("examples/atlas/base");
    memset(w, 0, sizeof(*w));
    tk_ok(fm_source_open(&w->src, path));
    fm_engine_opts o = rk_opts("exact", PROMPT);
    fm_provider p = fm_source_provider(w->src);
    rk_open_on(&w->k, ranks, &o, &p, as_mpi);
    w->m = ik_model(w->k.e, w->src, "atlas");
    w->vocab = fm_model_arch(w->m)->vocab;
    fm_free(path);
}

static void world_open(world *w, uint32_t ranks)
{
    world_open_on(w, ranks, false);
}

static void world_close(world *w)
{
    fm_model_close(w->m);
    rk_close(&w->k); /* every rank ended as it should */
    fm_source_close(w->src);
}

/* As before, but that caches may have come apart once: then a step says so, and the next is
 * whole. */
static void whole_again(world *w, const float *want, float *got, const char *what)
{
    fm_status rc = run(w, got);
    if (rc == FM_ECORRUPT && (strstr(fm_error_text(), "planned another step") ||
                              strstr(fm_error_text(), "did something else")))
        rc = run(w, got);
    if (rc != FM_OK)
        fail_msg("%s: not whole again: %s; rank 1: %s", what, fm_error_text(), w->k.rank[1].text);
    if (memcmp(got, want, DECODED * w->vocab * sizeof(float)) != 0)
        fail_msg("%s: other bits", what);
}

static float *floats_of(const world *w)
{
    float *x = fm_malloc(DECODED * w->vocab * sizeof(float));
    assert_non_null(x);
    return x;
}

/* ==== the CPU: allocations ==== */

/* The nth allocation of all ranks together, in an engine that has run nothing. */
static bool allocation(uint32_t ranks, uint64_t nth, const float *want)
{
    world w;
    char what[64];
    world_open(&w, ranks);
    float *got = floats_of(&w);
    fm_mem_fail_at(nth, false);
    fm_status rc = run(&w, got);
    fm_mem_fail_at(0, false);
    (void)snprintf(what, sizeof(what), "%u ranks, allocation %u", ranks, (unsigned)nth);
    if (rc != FM_OK && fm_error_text()[0] == '\0')
        fail_msg("%s: no text", what);
    if (rc == FM_OK)
        assert_memory_equal(got, want, DECODED * w.vocab * sizeof(float));
    whole_again(&w, want, got, what);
    fm_free(got);
    world_close(&w);
    return rc != FM_OK;
}

TEST(allocations)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        world w;
        unsigned failed = 0, clean = 0;
        world_open(&w, ranks);
        float *want = floats_of(&w);
        tk_ok(run(&w, want));
        world_close(&w);
        for (uint64_t nth = 1; clean < 8 && nth < 400; nth += ranks) {
            bool fails = allocation(ranks, nth, want);
            failed += fails;
            clean = fails ? 0 : clean + 1;
        }
        assert_true(failed >= 10);
        fm_free(want);
    }
}

/* What was closed is told with the next step. */
static void tell_closed(world *w)
{
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, w->m));
    const fm_row row = {s, 5, false};
    tk_ok(fm_engine_step(w->k.e, &row, 1));
    fm_seq_close(s);
}

/* A rank that has lost what the others found plans another step: that one fails by name on all of
 * them, and the next one is whole. */
TEST(plans_that_differ)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
        for (int as_mpi = 0; as_mpi < 2; as_mpi++) {
            world w;
            world_open_on(&w, ranks, as_mpi);
            float *want = floats_of(&w), *got = floats_of(&w);
            tk_ok(run(&w, want));
            for (int round = 0; round < 3; round++) {
                tk_ok(run(&w, got));
                tell_closed(&w);
                fmi_kv_drop_idle(w.k.rank[1].e->kv);
                fm_status rc = run(&w, got);
                const char *text = fm_error_text();
                bool named = strstr(text, "the ranks do not do the same") ||
                             strstr(text, "planned another step") ||
                             strstr(text, "did something else");
                if (rc != FM_ECORRUPT || !named)
                    fail_msg("%u ranks: %d, %s", ranks, rc, text);
                tk_ok(run(&w, got));
                assert_memory_equal(got, want, DECODED * w.vocab * sizeof(float));
            }
            fm_free(want);
            fm_free(got);
            world_close(&w);
        }
}

/* A request outlives the trouble of another rank, with the tokens that it would have had: whichever
 * allocation fails, once, what fails a request is rank 0's own. */
enum { ASKED = 8 };
static fm_status ask(world *w, int32_t *tokens, size_t *count)
{
    static const int32_t prompt[2][3] = {{7, 10, 13}, {21, 22, 23}};
    fm_gen_request q[2];
    fm_gen_result r[2];
    for (size_t i = 0; i < 2; i++) {
        q[i] = (fm_gen_request){.model = w->m,
                                .prompt = prompt[i],
                                .prompt_len = 3,
                                .max_new = ASKED,
                                .ignore_eos = true};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.temperature = 0.0f;
    }
    fm_status rc = fm_generate(w->k.e, q, 2, r);
    for (size_t i = 0, n = rc == FM_OK ? 2 : 0; i < n; i++) {
        for (size_t t = 0; t < r[i].count && t < ASKED; t++)
            tokens[i * ASKED + t] = r[i].tokens[t];
        *count += r[i].count;
        if (strcmp(r[i].finish, "error") == 0 && rc == FM_OK)
            rc = fm_fail(FM_EIO, "%s", fm_buf_cstr(&r[i].text));
        fm_gen_result_release(&r[i]);
    }
    return rc;
}

TEST(requests_outlive_anothers_trouble)
{
    unsigned clean = 0, own = 0;
    int32_t want[2 * ASKED] = {0};
    if (rk_card(0)) /* many engines: on GPUs this takes minutes, and asks the same */
        skip();
    for (uint64_t nth = 0; clean < 4 && nth < 600; nth++) { /* 0: none */
        world w;
        int32_t tokens[2 * ASKED] = {0};
        size_t count = 0;
        world_open(&w, 2);
        uint64_t before = fm_mem_alloc_count();
        fm_mem_fail_at(nth, false);
        fm_status rc = ask(&w, nth ? tokens : want, &count);
        fm_mem_fail_at(0, false);
        if (rc != FM_OK && strstr(fm_error_text(), "rank 1"))
            fail_msg("allocation %u: %s", (unsigned)nth, fm_error_text());
        own += rc != FM_OK;
        if (rc == FM_OK)
            assert_int_equal(count, 2 * ASKED);
        if (rc == FM_OK && nth)
            assert_memory_equal(tokens, want, sizeof(want));
        clean = fm_mem_alloc_count() - before < nth ? clean + 1 : 0;
        world_close(&w);
    }
    assert_true(own > 0);
}

/* ==== GPUs ==== */

static void card_fails(int card, int what, unsigned long nth)
{
    union {
        void *object;
        void (*call)(int, int, unsigned long);
    } f = {.object =
               dlsym(dlopen(getenv("FMSTORE_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD), "simt_fail")};
    assert_non_null(f.object);
    f.call(card, what, nth);
}

static void fails_with(world *w, const float *want, const char *what, const char *text)
{
    float *got = floats_of(w);
    fm_status rc = run(w, got);
    if (rc == FM_OK)
        fail_msg("%s: did not fail", what);
    if (!strstr(fm_error_text(), text))
        fail_msg("%s: not '%s' but %s", what, text, fm_error_text());
    whole_again(w, want, got, what);
    assert_string_equal(fm_comm_wire(w->k.comm), "nccl");
    fm_free(got);
}

/* First, middle and last launches of the prompt's step and of those behind it; the same with
 * groups. */
TEST(launches_and_groups)
{
    static const unsigned long launch[] = {1, 9, 40, 80}, group[] = {1, 5, 10, 30, 12};
    world w;
    char what[64];
    if (!rk_card(0))
        skip();
    world_open(&w, 2);
    float *want = floats_of(&w);
    tk_ok(run(&w, want));
    for (int card = 0; card < 2; card++) {
        for (size_t i = 0; i < FM_ARRAY_LEN(launch); i++) {
            (void)snprintf(what, sizeof(what), "card %d, launch %lu", card, launch[i]);
            card_fails(card, 1, launch[i]);
            fails_with(&w, want, what, "was not started"); /* a kernel, or a recorded step */
        }
        for (size_t i = 0; i < FM_ARRAY_LEN(group); i++) {
            (void)snprintf(what, sizeof(what), "%s:%d:%lu", i % 2 ? "async" : "group", card,
                           group[i]);
            (void)setenv("SIMT_NCCL_FAULT", what, 1);
            fails_with(&w, want, what, "NCCL: ");
        }
        (void)unsetenv("SIMT_NCCL_FAULT");
    }
    world_close(&w);
    fm_free(want);
}

TEST(memory_of_cards)
{
    static const unsigned long place[] = {1, 3, 5, 8};
    char what[64];
    if (!rk_card(0))
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(place); i++) {
        world w;
        int card = (int)(i % 2);
        world_open(&w, 2);
        float *want = floats_of(&w), *got = floats_of(&w);
        (void)snprintf(what, sizeof(what), "card %d, allocation %lu", card, place[i]);
        card_fails(card, 0, place[i]);
        fm_status rc = run(&w, got);
        card_fails(card, 0, 0);
        assert_int_not_equal(rc, FM_OK);
        tk_ok(run(&w, want));
        whole_again(&w, want, got, what);
        fm_free(want);
        fm_free(got);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations),
        cmocka_unit_test(plans_that_differ),
        cmocka_unit_test(requests_outlive_anothers_trouble),
        cmocka_unit_test(launches_and_groups),
        cmocka_unit_test(memory_of_cards),
    };
    rk_only("*_*"); /* of GPUs */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
