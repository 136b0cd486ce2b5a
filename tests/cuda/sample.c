/* ctest: card */
/* sample.c - tokens that a GPU picks, held against the host's sampler: the same token for every way
 * to choose, rows with ties, with masked and broken logits, any vocabulary. */
#include "tests/kernel/kernel_kit.h"

#include "infer/sampler.h"
#include "store/base/math/rng.h"

#define PICKS_MAX 40u

typedef struct lot {
    uint32_t vocab, count;
    size_t ld;
    float *logits; /* [count, ld] */
    fm_pick pick[PICKS_MAX];
    uint64_t *seen; /* [count, words] host */
    size_t words;
} lot;

static void lot_open(lot *l, uint32_t vocab, uint32_t count)
{
    memset(l, 0, sizeof *l);
    l->vocab = vocab;
    l->count = count;
    l->ld = (size_t)vocab + 3;
    l->words = (size_t)vocab / 64 + 1;
    l->logits = fm_calloc(count * l->ld, sizeof(float));
    l->seen = fm_calloc(count * l->words, sizeof(uint64_t));
    assert_true(l->logits && l->seen);
}

static void lot_close(lot *l)
{
    fm_free(l->logits);
    fm_free(l->seen);
}

/* What the host picks; the bits that the GPU must have set. */
static void want_of(const lot *l, fm_sampler *host, int32_t *token, int32_t *bad, uint64_t *seen)
{
    int32_t *history = fm_malloc(((size_t)l->vocab + 1) * sizeof(int32_t));
    memcpy(seen, l->seen, l->count * l->words * sizeof(uint64_t));
    for (uint32_t i = 0; i < l->count; i++) {
        const fm_pick *k = &l->pick[i];
        const fm_sample_params p = {k->temperature,        k->top_k, k->top_p, k->min_p,
                                    k->repetition_penalty, k->seed};
        const float *row = l->logits + k->row * l->ld;
        uint64_t *mine = seen + i * l->words;
        size_t n = 0;
        for (uint32_t t = 0; k->seen && t < l->vocab; t++)
            if (mine[t / 64] >> (t % 64) & 1)
                history[n++] = (int32_t)t;
        token[i] = bad[i] = 0;
        if (fm_sampler_pick(&token[i], host, row, l->vocab, &p, history, n, k->index) == FM_OK) {
            if (k->seen)
                mine[token[i] / 64] |= (uint64_t)1 << (token[i] % 64);
            continue;
        }
        uint32_t at = 0;
        while (at < l->vocab && row[at] < INFINITY)
            at++;
        token[i] = 0;
        bad[i] = at == l->vocab ? -1 : isnan(row[at]) ? 1 + (int32_t)at : -2 - (int32_t)at;
    }
    fm_free(history);
}

static void check(lot *l, const char *what)
{
    fm_backend *be = kk_card("exact");
    fm_sampler *host = NULL;
    int32_t want[PICKS_MAX], want_bad[PICKS_MAX], have[2 * PICKS_MAX];
    size_t bits = l->count * l->words * sizeof(uint64_t), floats = l->count * l->ld * sizeof(float);
    void *logits, *seen, *pick, *out;
    uint64_t *set = fm_malloc(bits), *got = fm_malloc(bits);
    assert_non_null(be->sample);
    tk_ok(be->alloc(be, &logits, floats));
    tk_ok(be->alloc(be, &seen, bits));
    tk_ok(be->alloc(be, &pick, sizeof l->pick));
    tk_ok(be->alloc(be, &out, 2 * PICKS_MAX * sizeof(int32_t)));
    for (uint32_t i = 0; i < l->count; i++)
        if (l->pick[i].seen)
            l->pick[i].seen = (uint64_t *)seen + i * l->words;
    tk_ok(be->upload(be, logits, l->logits, floats));
    tk_ok(be->upload(be, seen, l->seen, bits));
    tk_ok(be->upload(be, pick, l->pick, sizeof l->pick));
    be->sample(be, out, (int32_t *)out + l->count, logits, l->ld, pick, l->count, l->vocab);
    tk_ok(be->download(be, have, out, 2 * l->count * sizeof(int32_t)));
    tk_ok(be->download(be, got, seen, bits));
    tk_ok(fm_sampler_new(&host, l->vocab));
    want_of(l, host, want, want_bad, set);
    for (uint32_t i = 0; i < l->count; i++)
        if (have[i] != want[i] || have[l->count + i] != want_bad[i])
            fail_msg("%s, vocabulary %u, pick %u: %d (bad %d), the host has %d (bad %d)", what,
                     l->vocab, i, have[i], have[l->count + i], want[i], want_bad[i]);
    assert_memory_equal(got, set, bits);
    be->free(be, logits);
    be->free(be, seen);
    be->free(be, pick);
    be->free(be, out);
    fm_sampler_free(host);
    fm_free(set);
    fm_free(got);
    be->close(be);
}

/* Ways to choose by number: greedy, plain, every cut alone and with others, hot and cold. */
static void way(fm_pick *k, uint32_t i)
{
    static const float heat[] = {0.0f, 1.0f, 0.7f, 0.05f, 3.0f, 40.0f, 1000.0f};
    static const float top_p[] = {1.0f, 0.9f, 0.3f, 0.999f, 1e-6f};
    static const float min_p[] = {0.0f, 0.0f, 0.1f, 1e-3f, 1.0f};
    static const uint32_t top_k[] = {0, 40, 1, 0, 700, 1500, 0, 2};
    k->temperature = heat[i % FM_ARRAY_LEN(heat)];
    k->top_p = top_p[i / 2 % FM_ARRAY_LEN(top_p)];
    k->min_p = min_p[i / 3 % FM_ARRAY_LEN(min_p)];
    k->top_k = top_k[i / 2 % FM_ARRAY_LEN(top_k)];
    k->repetition_penalty = i % 4 == 3 ? 1.4f : i % 4 == 1 ? 0.6f : 1.0f;
    k->seed = fm_rng_u64(1, 2, i);
    k->index = i * 3;
}

static void fill(lot *l, double size, bool ties)
{
    for (uint32_t i = 0; i < l->count; i++) {
        float *row = l->logits + i * l->ld;
        for (uint32_t t = 0; t < l->vocab; t++) {
            double x = size * fm_rng_normal(77 + i, l->vocab, t);
            row[t] = (float)(ties ? floor(x) : x);
            if (fm_rng_below(5 + i, 1, t, 3) == 0)
                l->seen[i * l->words + t / 64] |= (uint64_t)1 << (t % 64);
            if (ties && t % 7 == 3)
                row[t] = -INFINITY;
        }
        way(&l->pick[i], i);
        l->pick[i].row = (i * 3 + 1) % l->count;
        l->pick[i].vocab = l->vocab;
        l->pick[i].seen = i % 2 ? l->seen : NULL;
    }
}

static void shape(uint32_t vocab, uint32_t count, double size, bool ties, const char *what)
{
    lot l;
    lot_open(&l, vocab, count);
    fill(&l, size, ties);
    check(&l, what);
    lot_close(&l);
}

TEST(every_way_gives_the_hosts_token)
{
    static const uint32_t vocab[] = {1, 2, 31, 64, 511, 1024, 1025, 5000};
    for (size_t i = 0; i < FM_ARRAY_LEN(vocab); i++) {
        shape(vocab[i], PICKS_MAX, 4.0, false, "spread");
        shape(vocab[i], PICKS_MAX, 2.0, true, "ties and masks");
    }
}

TEST(large_vocabularies)
{
    shape(49152, 8, 3.0, false, "spread");
    shape(131072, 3, 0.01, false, "flat");
    shape(262144, 3, 2.0, true, "ties and masks");
}

/* All logits equal: the order is that of ids alone. */
TEST(equal_logits)
{
    lot l;
    lot_open(&l, 4000, PICKS_MAX);
    fill(&l, 0.0, false);
    check(&l, "equal");
    for (size_t i = 0; i < l.count * l.ld; i++)
        l.logits[i] = i % 2 ? 0.0f : -0.0f;
    check(&l, "zeros of both signs");
    lot_close(&l);
}

TEST(broken_rows_are_reported)
{
    lot l;
    lot_open(&l, 3000, 8);
    fill(&l, 3.0, false);
    l.logits[0 * l.ld + 2999] = NAN;
    l.logits[1 * l.ld + 17] = INFINITY;
    l.logits[2 * l.ld + 5] = -NAN;
    l.logits[2 * l.ld + 4] = INFINITY;
    l.logits[3 * l.ld] = NAN;
    for (uint32_t t = 0; t < l.vocab; t++)
        l.logits[4 * l.ld + t] = -INFINITY;
    for (uint32_t t = 1; t < l.vocab; t++)
        l.logits[5 * l.ld + t] = -INFINITY;
    check(&l, "broken");
    lot_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_hosts_token),
        cmocka_unit_test(large_vocabularies),
        cmocka_unit_test(equal_logits),
        cmocka_unit_test(broken_rows_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
