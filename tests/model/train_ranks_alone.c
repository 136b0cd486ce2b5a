/* ctest: ranks */
/* train_ranks_alone.c - one rank of a run fails alone: an allocation in the first checkpoint or
 * in the step behind it, a checkpoint that cannot be written. Every rank ends with an error of
 * the same kind, and none waits for another. With RK_CARDS=1 the ranks have GPUs and NCCL's
 * stand-in, whose groups fail. */
int train_ranks_main(void);
#define main train_ranks_main
#include "tests/model/train_ranks.c"
#undef main

typedef struct breaker {
    fm_train_checkpoints checkpoints;
    uint64_t nth;  /* allocation that fails behind the first decision to keep, 0: none */
    bool full;     /* nothing can be written */
    unsigned kept; /* times that it was */
} breaker;

static bool due(void *ctx, uint32_t child, uint32_t step)
{
    breaker *b = ctx;
    (void)child;
    if (b->nth && step == 1)
        fm_mem_fail_at(b->nth, false);
    return true;
}

static fm_status save(void *ctx, uint32_t child, const fm_train_state *s)
{
    breaker *b = ctx;
    (void)child;
    (void)s;
    b->kept++;
    return b->full ? fm_fail(FM_EIO, "the disk is full") : FM_OK;
}

static void breaker_init(breaker *b, uint64_t nth, bool full)
{
    *b = (breaker){.nth = nth, .full = full};
    b->checkpoints = (fm_train_checkpoints){.ctx = b, .due = due, .save = save};
}

/* The status of all; they agree. */
static fm_status run_broken(breaker *b, fm_method method, const char *what, char *text, size_t cap)
{
    const task t = {.method = method,
                    .set = method == FM_METHOD_FULL
                               ? "lr=0.001 steps=2 batch=2 max_tokens=16 shards=2"
                               : "r=2 lr=0.01 steps=2 batch=2 max_tokens=48 shards=2",
                    .checkpoints = &b->checkpoints};
    worker w[2];
    run_ranks(&t, 2, w);
    fm_mem_fail_at(0, false);
    if (w[0].rc != w[1].rc)
        fail_msg("%s: rank 0: %d %s; rank 1: %d %s", what, w[0].rc, w[0].text, w[1].rc, w[1].text);
    for (uint32_t i = 0; i < 2; i++) {
        if (w[i].rc == FM_OK)
            fm_train_result_release(&w[i].result);
        else if (w[i].text[0] == '\0' || strstr(w[i].text, "is gone"))
            fail_msg("%s: rank %u: %s", what, i, w[i].text);
    }
    (void)snprintf(text, cap, "%s", w[1].text);
    return w[0].rc;
}

static unsigned run_short(fm_method method, uint64_t most, uint64_t dense, uint64_t then)
{
    char what[32], text[1024];
    unsigned failed = 0, clean = 0;
    for (uint64_t nth = 1; nth < most && clean < 6; nth += nth < dense ? 1 : then) {
        breaker b;
        breaker_init(&b, nth, false);
        (void)snprintf(what, sizeof(what), "allocation %u", (unsigned)nth);
        fm_status rc = run_broken(&b, method, what, text, sizeof(text));
        failed += rc != FM_OK;
        clean = rc == FM_OK ? clean + 1 : 0;
    }
    return failed;
}

TEST(an_allocation)
{
    assert_true(run_short(FM_METHOD_LORA, 400, 24, 7) >= 10);
}

/* While gradients go beside the backward pass. */
TEST(an_allocation_beside)
{
    assert_true(run_short(FM_METHOD_FULL, 40, 0, 3) >= 5);
}

TEST(a_full_disk)
{
    char text[1024];
    breaker b;
    breaker_init(&b, 0, true);
    assert_int_equal(run_broken(&b, FM_METHOD_LORA, "full disk", text, sizeof(text)), FM_EIO);
    assert_non_null(strstr(text, "rank 0: the disk is full"));
    assert_int_equal(b.kept, 1);
    breaker_init(&b, 0, false);
    tk_ok(run_broken(&b, FM_METHOD_LORA, "sound", text, sizeof(text)));
    assert_int_equal(b.kept, 2);
}

TEST(groups_of_cards)
{
    static const char *const fault[] = {"group:0:1", "async:1:2", "group:1:5", "async:0:7"};
    char text[1024];
    if (!rk_card(0))
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(fault); i++) {
        breaker b;
        breaker_init(&b, 0, false);
        (void)setenv("SIMT_NCCL_FAULT", fault[i], 1);
        assert_int_equal(run_broken(&b, FM_METHOD_LORA, fault[i], text, sizeof(text)), FM_EIO);
        assert_non_null(strstr(text, "NCCL: "));
    }
    (void)unsetenv("SIMT_NCCL_FAULT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation),
        cmocka_unit_test(an_allocation_beside),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(groups_of_cards),
    };
    rk_only("groups_of_cards");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
