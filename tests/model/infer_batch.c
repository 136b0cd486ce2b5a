/* ctest: card apart cuda_cost=10 */
/* Rows of a family in one step: the same bits as each model alone, whatever the order, the threads,
 * and the cut of the prompt; shared tensors held and multiplied once. */
#include "tests/model/infer_kit.h"

#include "infer/backend.h"
#include "store/base/math/rng.h"

#define VOCAB 160u
#define TOKENS 45u /* crosses a page of the KV cache */
#define CHILDREN 6

/* base, three LoRAs of different ranks, one that also replaces the head, one full fine-tune whose
 * first layer is the base's: the last makes groups that are no single segment of rows. */
typedef struct family {
    fm_source *base;
    ik_mem mem;
    fm_tree *tree[CHILDREN];
    int32_t ids[CHILDREN][TOKENS];
    float *alone[CHILDREN]; /* [TOKENS, VOCAB] */
} family;

static float *noise(uint64_t seed, size_t n, double scale)
{
    float *x = fm_malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * fm_rng_normal(seed, 1, i));
    return x;
}

static void put_noise(family *f, fm_tree *t, const char *prefix, const char *name, uint64_t seed,
                      uint32_t rank, uint64_t rows, uint64_t cols)
{
    float *x = noise(seed, rows * (rank == 2 ? cols : 1), 0.1);
    ik_put(&f->mem, t, prefix, name, x, rank, rows, cols);
    fm_free(x);
}

static void add_lora(family *f, fm_tree *t, uint32_t r, uint64_t seed, bool head)
{
    static const struct {
        const char *name;
        uint32_t out, in;
    } lin[] = {{"self_attn.q_proj", 48, 48},
               {"self_attn.v_proj", 24, 48},
               {"mlp.gate_proj", 96, 48},
               {"mlp.down_proj", 48, 96}};
    const char *at = "adapters/0-lora/tensors";
    char config[256], name[128];
    (void)snprintf(config, sizeof(config),
                   "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":16,\"target_modules\":"
                   "[\"q_proj\",\"v_proj\",\"gate_proj\",\"down_proj\"]}",
                   r);
    tk_ok(fm_tree_put_file(t, "adapters/0-lora/adapter_config.json", fm_span_str(config)));
    for (uint32_t l = 0; l < 2; l++)
        for (size_t i = 0; i < FM_ARRAY_LEN(lin); i++) {
            (void)snprintf(name, sizeof(name), "base_model.model.model.layers.%u.%s.lora_A.weight",
                           l, lin[i].name);
            put_noise(f, t, at, name, seed + l * 100 + i, 2, r, lin[i].in);
            (void)snprintf(name, sizeof(name), "base_model.model.model.layers.%u.%s.lora_B.weight",
                           l, lin[i].name);
            put_noise(f, t, at, name, seed + l * 100 + i + 50, 2, lin[i].out, r);
        }
    if (head)
        put_noise(f, t, at, "base_model.model.lm_head.weight", seed + 999, 2, VOCAB, 48);
}

static void add_full(family *f, fm_tree *t)
{
    const char *l = "model.layers.1.";
    static const struct {
        const char *name;
        uint32_t rank, rows, cols;
    } p[] = {{"self_attn.q_proj.weight", 2, 48, 48},
             {"mlp.up_proj.weight", 2, 96, 48},
             {"input_layernorm.weight", 1, 48, 0}};
    char name[128];
    for (size_t i = 0; i < FM_ARRAY_LEN(p); i++) {
        (void)snprintf(name, sizeof(name), "%s%s", l, p[i].name);
        put_noise(f, t, "tensors", name, 7000 + i, p[i].rank, p[i].rows, p[i].cols);
    }
}

static fm_model *load(family *f, fm_engine *e, int i)
{
    fm_provider p = ik_provider(&f->mem);
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, e, f->tree[i], &p, "child"));
    return m;
}

static int setup(void **state)
{
    family *f = fm_calloc(1, sizeof(*f));
    static const uint32_t rank[CHILDREN] = {0, 2, 5, 16, 3, 0};
    f->base = ik_source("arch/llama");
    f->mem.behind[0] = fm_source_provider(f->base);
    f->mem.behind_count = 1;
    for (int i = 0; i < CHILDREN; i++) {
        tk_ok(fm_tree_copy(&f->tree[i], fm_source_tree(f->base)));
        if (rank[i])
            add_lora(f, f->tree[i], rank[i], (uint64_t)i * 1000, i == 4);
        for (uint32_t k = 0; k < TOKENS; k++)
            f->ids[i][k] = (int32_t)fm_rng_below(5, (uint64_t)i, k, VOCAB);
    }
    add_full(f, f->tree[5]);
    for (int i = 0; i < CHILDREN; i++) { /* each in an engine of its own */
        fm_engine *e = ik_engine(1, 64);
        fm_model *m = load(f, e, i);
        f->alone[i] = fm_malloc(TOKENS * VOCAB * sizeof(float));
        ik_logits(m, f->ids[i], TOKENS, TOKENS, f->alone[i]);
        fm_model_close(m);
        fm_engine_free(e);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    family *f = *state;
    for (int i = 0; i < CHILDREN; i++) {
        fm_tree_free(f->tree[i]);
        fm_free(f->alone[i]);
    }
    ik_mem_free(&f->mem);
    fm_source_close(f->base);
    fm_free(f);
    return 0;
}

/* Draws rows of random children until all texts are through; every logit must be the lone one. */
static void run_mixed(family *f, unsigned threads, uint64_t seed, uint32_t most)
{
    fm_engine *e = ik_engine(threads, 128);
    fm_model *m[CHILDREN];
    fm_seq *s[CHILDREN];
    uint32_t fed[CHILDREN] = {0}, left = CHILDREN * TOKENS;
    for (int i = 0; i < CHILDREN; i++) {
        m[i] = load(f, e, i);
        tk_ok(fm_seq_open(&s[i], m[i]));
    }
    for (uint64_t step = 0; left; step++) {
        fm_row row[128];
        const float *want[128];
        uint32_t n = 0, tries = 1 + (uint32_t)fm_rng_below(seed, 2, step, most);
        for (uint32_t k = 0; k < tries; k++) {
            uint32_t c = (uint32_t)fm_rng_below(seed, 3 + step, k, CHILDREN);
            if (fed[c] == TOKENS)
                continue;
            want[n] = f->alone[c] + (size_t)fed[c] * VOCAB;
            row[n++] =
                (fm_row){.seq = s[c], .token = f->ids[c][fed[c]++], .want_logits = k % 5 != 1};
        }
        if (n == 0)
            continue;
        tk_ok(fm_engine_step(e, row, n));
        left -= n;
        for (uint32_t i = 0; i < n; i++)
            if (row[i].want_logits)
                assert_memory_equal(fm_engine_logits(e, i), want[i], VOCAB * sizeof(float));
    }
    for (int i = 0; i < CHILDREN; i++) {
        fm_seq_close(s[i]);
        fm_model_close(m[i]);
    }
    fm_engine_free(e);
}

static void mixed_rows_equal_lone_rows_bit_for_bit(void **state)
{
    for (unsigned threads = 1; threads <= 2; threads++)
        for (uint64_t seed = 0; seed < 6; seed++)
            run_mixed(*state, threads, seed, seed % 2 ? 100 : 7);
}

static void cuts_of_a_prompt_do_not_matter(void **state)
{
    family *f = *state;
    static const uint32_t cuts[] = {1, 2, 13, 31, 32, 33, 44};
    float *out = fm_malloc(TOKENS * VOCAB * sizeof(float));
    fm_engine *e = ik_engine(2, 64);
    for (int c = 0; c < CHILDREN; c++) {
        fm_model *m = load(f, e, c);
        for (size_t i = 0; i < FM_ARRAY_LEN(cuts); i++) {
            ik_logits(m, f->ids[c], TOKENS, cuts[i], out);
            assert_memory_equal(out, f->alone[c], TOKENS * VOCAB * sizeof(float));
        }
        fm_model_close(m);
    }
    fm_engine_free(e);
    fm_free(out);
}

static void children_differ_from_their_base(void **state)
{
    family *f = *state;
    float *out = fm_malloc(TOKENS * VOCAB * sizeof(float));
    fm_engine *e = ik_engine(1, 64);
    fm_model *base = load(f, e, 0);
    for (int c = 1; c < CHILDREN; c++) {
        ik_logits(base, f->ids[c], TOKENS, TOKENS, out);
        assert_true(tk_rel_norm(f->alone[c], out, TOKENS * VOCAB) > 0.01);
    }
    fm_model_close(base);
    fm_engine_free(e);
    fm_free(out);
}

static void shared_tensors_are_held_and_multiplied_once(void **state)
{
    family *f = *state;
    fm_engine *e = ik_engine(1, 64);
    fm_model *m[CHILDREN];
    fm_seq *s[CHILDREN];
    fm_row row[CHILDREN];
    m[0] = load(f, e, 0);
    fm_engine_stats one = fm_engine_stats_of(e);
    assert_int_equal(one.weight_bytes, one.weight_bytes_unshared);
    for (int i = 1; i < CHILDREN; i++)
        m[i] = load(f, e, i);
    fm_engine_stats all = fm_engine_stats_of(e);
    assert_true(all.weight_bytes < all.weight_bytes_unshared / 2);
    for (int i = 0; i < CHILDREN; i++) {
        tk_ok(fm_seq_open(&s[i], m[i]));
        row[i] = (fm_row){.seq = s[i], .token = 7, .want_logits = true};
    }
    tk_ok(fm_engine_step(e, row, CHILDREN));
    /* 2 layers x 7 linears and a head: one product each, but two where the full child has its own
     * weight (q, up of layer 1) and two heads */
    assert_int_equal(fm_engine_stats_of(e).gemm_groups, 15 + 2 + 1);
    for (int i = 0; i < CHILDREN; i++)
        fm_seq_close(s[i]);
    for (int i = 0; i < CHILDREN; i++)
        fm_model_close(m[i]);
    assert_int_equal(fm_engine_stats_of(e).weights, 0);
    assert_int_equal(fm_engine_stats_of(e).weight_bytes_unshared, 0);
    fm_engine_free(e);
}

static void digests_tell_models_apart(void **state)
{
    family *f = *state;
    fm_engine *e = ik_engine(1, 64);
    fm_digest d[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        fm_model *m = load(f, e, i);
        d[i] = fm_model_digest(m);
        for (int k = 0; k < i; k++)
            assert_false(fm_digest_eq(&d[k], &d[i]));
        fm_model *again = load(f, e, i);
        fm_digest same = fm_model_digest(again);
        assert_true(fm_digest_eq(&same, &d[i]));
        fm_model_close(again);
        fm_model_close(m);
    }
    fm_engine_free(e);
}

static void a_rewound_sequence_goes_on_as_if_new(void **state)
{
    family *f = *state;
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = load(f, e, 1);
    fm_seq *s = NULL;
    fm_row row[TOKENS];
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t i = 0; i < TOKENS; i++)
        row[i] = (fm_row){.seq = s, .token = i < 30 ? f->ids[1][i] : 3};
    tk_ok(fm_engine_step(e, row, TOKENS));
    tk_fails(fm_seq_rewind(s, TOKENS + 1), FM_EINVAL, "rewind");
    tk_ok(fm_seq_rewind(s, 30));
    for (uint32_t i = 30; i < TOKENS; i++)
        row[i] = (fm_row){.seq = s, .token = f->ids[1][i], .want_logits = true};
    tk_ok(fm_engine_step(e, row + 30, TOKENS - 30));
    assert_memory_equal(fm_engine_logits(e, TOKENS - 31), f->alone[1] + (TOKENS - 1) * VOCAB,
                        VOCAB * sizeof(float));
    fm_seq_close(s);
    fm_model_close(m);
    fm_engine_free(e);
}

static void bad_steps_change_nothing(void **state)
{
    family *f = *state;
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL, *other = ik_engine(1, 8);
    o.threads = 1;
    o.max_rows = 300;
    o.kv_bytes_max = 2 * (2ull * 2 * 24 * FM_KV_PAGE * sizeof(float)); /* two pages */
    tk_ok(fm_engine_new(&e, &o));
    fm_model *m = load(f, e, 0);
    fm_seq *s = NULL, *t = NULL;
    fm_row row[300];
    tk_ok(fm_seq_open(&s, m));
    tk_ok(fm_seq_open(&t, m));
    for (int i = 0; i < 300; i++)
        row[i] = (fm_row){.seq = s, .token = 5};
    tk_fails(fm_engine_step(e, row, 0), FM_EINVAL, "rows");
    tk_fails(fm_engine_step(e, row, 301), FM_EINVAL, "rows");
    tk_fails(fm_engine_step(other, row, 1), FM_EINVAL, "sequence");
    row[3].token = 160;
    tk_fails(fm_engine_step(e, row, 4), FM_EINVAL, "vocabulary");
    row[3].token = 5;
    tk_fails(fm_engine_step(e, row, 65), FM_ELIMIT, NULL); /* pages, and positions */
    tk_fails(fm_engine_step(e, row, 300), FM_ELIMIT, NULL);
    assert_int_equal(fm_seq_len(s), 0);
    tk_ok(fm_engine_step(e, row, 64)); /* what failed gave its pages back */
    row[0].seq = t;
    tk_fails(fm_engine_step(e, row, 1), FM_ELIMIT, "KV");
    tk_ok(fm_seq_rewind(s, 32));
    tk_ok(fm_engine_step(e, row, 1));
    fm_seq_close(s);
    fm_seq_close(t);
    fm_model_close(m);
    fm_engine_free(e);
    fm_engine_free(other);
}

int main(void)
{
    char *here = tk_shared("arch/llama");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_steps_change_nothing),
        cmocka_unit_test(mixed_rows_equal_lone_rows_bit_for_bit),
        cmocka_unit_test(cuts_of_a_prompt_do_not_matter),
        cmocka_unit_test(children_differ_from_their_base),
        cmocka_unit_test(shared_tensors_are_held_and_multiplied_once),
        cmocka_unit_test(digests_tell_models_apart),
        cmocka_unit_test(a_rewound_sequence_goes_on_as_if_new),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
