/* train_data_order.c - which examples a step takes: every one exactly once an epoch, weights as
 * expected, packing within its room, neighbours of like length, any step found from anywhere. */
#include "tests/kit/train_kit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/math/hash.h"
#include "store/base/math/rng.h"
#include "train/data/order.h"

#define MAX_SEEN 100000

static fm_tokenizer *tok;

/* Example i of n has 2 + (i * 37) % spread tokens: a text and the end token. */
static fm_dataset *texts(int n, int spread, double weight_of_second_half)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_dataset *d = NULL;
    fm_buf half[2];

    for (int h = 0; h < 2; h++) {
        fm_buf_init(&half[h], 0);
        for (int i = h ? n / 2 : 0; i < (h ? n : n / 2); i++)
            fm_buf_printf(&half[h], "{\"text\":\"%0*d\"}\n", 1 + i * 37 % spread, i % 10);
    }
    fm_data_file file[2] = {
        {.bytes = fm_buf_span(&half[0]), .what = "first", .weight = 1.0},
        {.bytes = fm_buf_span(&half[1]), .what = "second", .weight = weight_of_second_half}};
    tk_ok(fm_dataset_open_files(&d, file, 2, tok, NULL, &c, 0.0));
    fm_buf_release(&half[0]);
    fm_buf_release(&half[1]);
    assert_int_equal(fm_dataset_count(d), n);
    return d;
}

typedef struct walk {
    uint32_t seen[MAX_SEEN];
    uint32_t step_end[MAX_SEEN];
    uint32_t micro_end[MAX_SEEN];
    size_t count, steps, micros;
} walk;

static void take(walk *w, fmt_order *o, uint32_t step)
{
    const uint32_t *example;
    const uint32_t *ends;
    size_t count;
    size_t micros;

    tk_ok(fmt_order_step(o, step, &example, &count, &ends, &micros));
    assert_true(count > 0 && micros > 0 && ends[micros - 1] == count);
    for (size_t k = 0; k < micros; k++) {
        assert_true(ends[k] > (k ? ends[k - 1] : 0));
        w->micro_end[w->micros++] = (uint32_t)w->count + ends[k];
    }
    assert_true(w->count + count <= MAX_SEEN);
    memcpy(w->seen + w->count, example, count * sizeof *example);
    w->count += count;
    w->step_end[w->steps++] = (uint32_t)w->count;
}

/* What train.h says of a step is what the run takes. */
static void same_as_public(const fm_train_config *c, const fm_dataset *d, const walk *w)
{
    for (size_t s = 0; s < w->steps; s++) {
        size_t from = s ? w->step_end[s - 1] : 0, count = 0;
        uint32_t *example = NULL;
        tk_ok(fm_train_step_examples(&example, &count, c, d, (uint32_t)s));
        assert_int_equal(count, w->step_end[s] - from);
        assert_memory_equal(example, w->seen + from, count * sizeof *example);
        fm_free(example);
    }
    uint32_t *none = NULL;
    size_t count = 0;
    tk_fails(fm_train_step_examples(&none, &count, c, d, (uint32_t)w->steps), FM_EINVAL,
             "there is no step");
}

static walk *walk_all(const fm_train_config *c, const fm_dataset *d)
{
    walk *w = fm_calloc(1, sizeof *w);
    fmt_order *o = NULL;

    assert_non_null(w);
    tk_ok(fmt_order_new(&o, c, d));
    uint64_t before = fm_mem_alloc_count();
    for (uint32_t s = 0; s < fmt_order_steps(o); s++)
        take(w, o, s);
    assert_true(fm_mem_alloc_count() == before);
    fmt_order_free(o);
    return w;
}

static void each_once(const walk *w, size_t from, size_t n)
{
    uint8_t *times = fm_calloc(n, 1);

    assert_true(from + n <= w->count);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(++times[w->seen[from + i]], 1);
    fm_free(times);
}

static fm_train_config settings(uint32_t batch, uint32_t accumulate, double epochs)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.batch = batch;
    c.accumulate = accumulate;
    c.epochs = epochs;
    c.max_tokens = 64;
    c.seed = 11;
    return c;
}

TEST(what_leaves_no_step_is_refused)
{
    fm_dataset *d = texts(4, 3, 1.0);
    fm_train_config c = settings(2, 1, 1.0);
    fmt_order *o = NULL;
    const uint32_t *list;
    size_t n;

    tk_ok(fmt_order_new(&o, &c, d));
    assert_int_equal(fmt_order_steps(o), 2);
    tk_fails(fmt_order_step(o, 2, &list, &n, &list, &n), FM_EINVAL, "step 2");
    fmt_order_free(o);
    fm_dataset_close(d);
}

/* The order that versions before this file were trained in, written out: the recipes that they left
 * must go on giving the same bytes. */
TEST(without_options_the_order_is_that_of_older_recipes)
{
    fm_dataset *d = texts(23, 5, 1.0);
    fm_train_config c = settings(4, 3, 2.3);
    walk *w = walk_all(&c, d);
    same_as_public(&c, d, w);
    uint32_t order[23];
    fm_digest stream;
    uint64_t base = 0;

    tk_ok(fm_sha256(&stream, "order\n", 6));
    for (int i = 0; i < 8; i++)
        base |= (uint64_t)stream.b[i] << (8 * i);
    assert_int_equal(w->count, 53); /* ceil(2.3 * 23) */
    assert_int_equal(w->steps, 5);
    for (size_t i = 0; i < w->count; i++) {
        fm_rng_permutation(order, 23, 11, base + i / 23);
        assert_int_equal(w->seen[i], order[i % 23]);
    }
    for (size_t k = 0; k < w->micros; k++)
        assert_int_equal(w->micro_end[k], FM_MIN(4 * (k + 1), w->count));
    for (size_t k = 0; k < w->steps; k++)
        assert_int_equal(w->step_end[k], FM_MIN(12 * (k + 1), w->count));
    fm_free(w);
    c.steps = 40; /* 480 examples: epochs go on for as long as steps are asked for */
    w = walk_all(&c, d);
    assert_int_equal(w->count, 480);
    for (size_t e = 0; e < 20; e++)
        each_once(w, e * 23, 23);
    fm_free(w);
    fm_dataset_close(d);
}

static uint64_t tokens_between(const fm_dataset *d, const walk *w, size_t from, size_t to)
{
    uint64_t sum = 0;

    for (; from < to; from++)
        sum += fm_dataset_at(d, w->seen[from])->len;
    return sum;
}

TEST(packing_fills_its_room_and_never_exceeds_it)
{
    fm_dataset *d = texts(500, 60, 1.0);
    fm_train_config c = settings(3, 2, 3.0);
    uint64_t tokens = 0;

    c.packing = true;
    walk *w = walk_all(&c, d);
    assert_int_equal(w->count, 1500);
    for (size_t e = 0; e < 3; e++)
        each_once(w, e * 500, 500);
    for (size_t k = 0; k < w->micros; k++) {
        uint32_t begin = k ? w->micro_end[k - 1] : 0;
        uint64_t have = tokens_between(d, w, begin, w->micro_end[k]);
        assert_true(have <= 3 * 64);
        tokens += have;
        if (k + 1 < w->micros) /* the next example would not have fitted */
            assert_true(have + fm_dataset_at(d, w->seen[w->micro_end[k]])->len > 3 * 64);
    }
    assert_true((double)tokens > 0.8 * 192.0 * (double)w->micros);
    fm_free(w);
    fm_dataset_close(d);
}

TEST(an_example_longer_than_the_room_is_a_micro_batch_alone)
{
    fm_train_config c = settings(1, 1, 1.0);
    fm_dataset *d = NULL;

    c.objective = FM_OBJECTIVE_DPO;
    c.max_tokens = 6;
    c.packing = true;
    tk_ok(fm_dataset_open(&d,
                          fm_span_str("{\"chosen\":\"abcde\",\"rejected\":\"fghij\"}\n"
                                      "{\"chosen\":\"a\",\"rejected\":\"b\"}\n"),
                          "d", tok, NULL, &c, NULL, 0));
    walk *w = walk_all(&c, d);
    assert_int_equal(w->count, 2);
    assert_int_equal(w->micros, 2); /* 12 and 4 tokens, room for 12 */
    fm_free(w);
    fm_dataset_close(d);
}

TEST(buckets_put_like_lengths_together_and_lose_nothing)
{
    fm_dataset *d = texts(403, 60, 1.0);
    fm_train_config c = settings(8, 2, 2.0);
    double spread[2] = {0};

    for (int bucketed = 0; bucketed < 2; bucketed++) {
        c.buckets = bucketed ? 8 : 0;
        walk *w = walk_all(&c, d);
        same_as_public(&c, d, w);
        assert_int_equal(w->count, 806);
        each_once(w, 0, 403);
        each_once(w, 403, 403);
        for (size_t k = 0; k < w->micros; k++) {
            uint32_t low = UINT32_MAX;
            uint32_t high = 0;
            for (size_t i = k ? w->micro_end[k - 1] : 0; i < w->micro_end[k]; i++) {
                low = FM_MIN(low, fm_dataset_at(d, w->seen[i])->len);
                high = FM_MAX(high, fm_dataset_at(d, w->seen[i])->len);
            }
            assert_true(w->micro_end[k] - (k ? w->micro_end[k - 1] : 0) <= 8);
            spread[bucketed] += (double)(high - low) / (double)w->micros;
        }
        if (bucketed) /* not the shortest first: micro-batches are permuted */
            assert_true(tokens_between(d, w, 0, 200) > 60 * tokens_between(d, w, 200, 400) / 100);
        fm_free(w);
    }
    /* Shares of an eighth of lengths 2 .. 61, some micro-batches on the edge of two. */
    assert_true(spread[1] < 12.0 && spread[0] > 35.0);
    c.packing = true;
    walk *w = walk_all(&c, d);
    each_once(w, 0, 403);
    for (size_t k = 0; k < w->micros; k++)
        assert_true(tokens_between(d, w, k ? w->micro_end[k - 1] : 0, w->micro_end[k]) <= 8 * 64);
    fm_free(w);
    fm_dataset_close(d);
}

TEST(weights_are_kept_in_expectation)
{
    fm_dataset *d = texts(200, 5, 2.25);
    fm_train_config c = settings(5, 1, 40.0);
    uint32_t times[200] = {0};
    double sum = 0.0;
    double whole = 0.0;

    walk *w = walk_all(&c, d);
    for (size_t i = 0; i < w->count; i++)
        times[w->seen[i]]++;
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(times[i], 40);
    for (size_t i = 100; i < 200; i++) {
        assert_true(times[i] >= 80 && times[i] <= 120);
        sum += times[i];
        whole += times[i] != 90;
    }
    /* 4,000 draws of 1/4: 1,000 expected, standard deviation 27. */
    assert_true(fabs(sum - 9000.0) < 110.0);
    assert_true(whole > 50.0); /* and drawn for each epoch and example anew */
    fm_free(w);
    fm_dataset_close(d);
    d = texts(100, 5, 0.001);
    c.steps = 1;
    w = walk_all(&c, d);
    assert_int_equal(w->count, 5);
    fm_free(w);
    fm_dataset_close(d);
}

TEST(any_step_is_the_same_from_anywhere)
{
    fm_dataset *d = texts(97, 40, 1.5);

    for (int how = 0; how < 8; how++) {
        fm_train_config c = settings(3, 2, 2.5);
        c.packing = how & 1;
        c.buckets = how & 2 ? 5 : 0;
        c.steps = how & 4 ? 60 : 0;
        walk *w = walk_all(&c, d);
        walk *back = fm_calloc(1, sizeof *back);
        fmt_order *o = NULL;
        tk_ok(fmt_order_new(&o, &c, d));
        for (uint32_t s = (uint32_t)w->steps; s-- > 0; s = s > 7 ? s - 7 : 0) {
            size_t begin = s ? w->step_end[s - 1] : 0;
            back->count = back->steps = back->micros = 0;
            take(back, o, s);
            assert_int_equal(back->count, w->step_end[s] - begin);
            assert_memory_equal(back->seen, w->seen + begin, back->count * sizeof *back->seen);
        }
        c.seed++;
        fmt_order_free(o);
        fm_free(back);
        back = walk_all(&c, d);
        assert_true(memcmp(back->seen, w->seen, 40 * sizeof *w->seen) != 0);
        fm_free(back);
        fm_free(w);
    }
    fm_dataset_close(d);
}

TEST(no_allocation_failure_is_mistaken)
{
    fm_dataset *d = texts(20, 5, 1.5);
    fm_train_config c = settings(3, 2, 2.0);
    fm_status rc = FM_ENOMEM;

    c.buckets = 3;
    for (uint64_t n = 1; rc == FM_ENOMEM; n++) {
        fmt_order *o = NULL;
        fm_mem_fail_at(n, false);
        rc = fmt_order_new(&o, &c, d);
        fm_mem_fail_at(0, false);
        assert_true(rc == FM_OK || rc == FM_ENOMEM);
        fmt_order_free(o);
    }
    fm_dataset_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_leaves_no_step_is_refused),
        cmocka_unit_test(without_options_the_order_is_that_of_older_recipes),
        cmocka_unit_test(packing_fills_its_room_and_never_exceeds_it),
        cmocka_unit_test(an_example_longer_than_the_room_is_a_micro_batch_alone),
        cmocka_unit_test(buckets_put_like_lengths_together_and_lose_nothing),
        cmocka_unit_test(weights_are_kept_in_expectation),
        cmocka_unit_test(any_step_is_the_same_from_anywhere),
        cmocka_unit_test(no_allocation_failure_is_mistaken),
    };

    tok = kit_tokenizer();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_tokenizer_close(tok);
    return failed;
}
