/* ctest: ranks apart */
/* infer_ranks.c - models split over 2 and 4 ranks (threads over the stand-in): Hugging Face's and
 * PEFT's logits within the tolerance of one rank's class (k is summed in other pieces, nothing else
 * differs), the same bits run over run and in any batch, and the atlas's answers. */
#include "tests/model/ranks_kit.h"

#define LIMIT 2e-6 /* as one rank: tests/model/infer_golden.c */
#define ADAPTED_LIMIT 5e-6
#define FAST_LIMIT 2e-2
#define TOKENS_MAX 64u
#define SHARED_TOKENS 24u /* a row of a shared reference */

/* Logits (an encoder's states) of every token. */
static void run(fm_model *m, const int32_t *ids, uint32_t n, uint32_t cut, float *out, size_t width)
{
    fm_engine *e = fm_model_engine(m);
    bool states = fm_model_arch(m)->sw.encoder;
    fm_seq *s = NULL;
    fm_row row[TOKENS_MAX];
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t at = 0; at < n; at += cut) {
        uint32_t k = FM_MIN(cut, n - at);
        for (uint32_t i = 0; i < k; i++)
            row[i] = (fm_row){s, ids[at + i], true};
        tk_ok(fm_engine_step(e, row, k));
        for (uint32_t i = 0; i < k; i++)
            memcpy(out + (at + i) * width, states ? fm_engine_hidden(e, i) : fm_engine_logits(e, i),
                   width * sizeof(float));
    }
    fm_seq_close(s);
}

/* Two texts in one step: each has the bits that it has alone. */
static void run_two(fm_model *m, const int32_t *ids, uint32_t n, float *out, size_t width)
{
    fm_engine *e = fm_model_engine(m);
    fm_seq *s[2];
    fm_row row[2];
    tk_ok(fm_seq_open(&s[0], m));
    tk_ok(fm_seq_open(&s[1], m));
    for (uint32_t at = 0; at < n; at++) {
        row[0] = (fm_row){s[1], ids[n - 1 - at], at % 2 == 0};
        row[1] = (fm_row){s[0], ids[at], true};
        tk_ok(fm_engine_step(e, row, 2));
        memcpy(out + at * width, fm_engine_logits(e, 1), width * sizeof(float));
    }
    fm_seq_close(s[0]);
    fm_seq_close(s[1]);
}

typedef struct golden {
    fm_source *src;
    int32_t *ids;
    float *want;
    size_t n, count; /* n: tokens of one text; the shared references have several */
} golden;

static bool open_golden(golden *g, const char *name, bool shared)
{
    char *dir = shared ? fm_asprintf("arch/%s", name)
                       : fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, name);
    char *path = shared ? tk_shared(dir) : fm_strdup(dir);
    char *file = path ? fm_asprintf("%s/ref.safetensors", path) : NULL;
    ik_ref ref = {NULL};
    if (path) {
        tk_ok(fm_source_open(&g->src, path));
        tk_ok(fm_source_open(&ref.src, file));
        bool encoder = strcmp(name, "bert") == 0 || strcmp(name, "roberta") == 0 ||
                       strcmp(name, "mpnet") == 0 || strncmp(name, "modernbert", 10) == 0;
        g->ids = ik_ref_get(&ref, "input_ids", &g->n);
        g->want = ik_ref_get(&ref, encoder ? "hidden" : "logits", &g->count);
        g->count = shared ? g->count / g->n * SHARED_TOKENS : g->count;
        g->n = shared ? SHARED_TOKENS : g->n;
        fm_source_close(ref.src);
    }
    fm_free(file);
    fm_free(dir);
    fm_free(path);
    return file != NULL;
}

static void close_golden(golden *g)
{
    fm_free(g->ids);
    fm_free(g->want);
    fm_source_close(g->src);
}

static void check(const char *name, bool shared, uint32_t ranks, const char *mode, double limit)
{
    golden g;
    rk_ranks k;
    if (!open_golden(&g, name, shared))
        return;
    fm_engine_opts o = rk_opts(mode, TOKENS_MAX);
    fm_provider p = fm_source_provider(g.src);
    rk_open(&k, ranks, &o, &p);
    fm_model *m = ik_model(k.e, g.src, name);
    uint32_t n = (uint32_t)FM_MIN(g.n, (size_t)TOKENS_MAX);
    size_t width = g.count / g.n, all = n * width;
    float *got = fm_malloc(2 * all * sizeof(float)), *again = got + all;
    bool encoder = fm_model_arch(m)->sw.encoder;
    run(m, g.ids, n, n, got, width);
    tk_assert_le(tk_rel_norm(got, g.want, all), limit, name);
    run(m, g.ids, n, encoder ? n : 7, again, width);
    assert_memory_equal(got, again, all * sizeof(float));
    if (!encoder) {
        run_two(m, g.ids, n, again, width);
        assert_memory_equal(got, again, all * sizeof(float));
    }
    fm_free(got);
    fm_model_close(m);
    rk_close(&k);
    close_golden(&g);
}

TEST(families_match)
{
    static const char *const both[] = {"gemma2",  "qwen2-mixed", "phi3",     "gpt_neox",
                                       "roberta", "granite",     "stablelm", "starcoder2"};
    static const char *const two[] = {"phi",
                                      "gptj",
                                      "opt",
                                      "cohere",
                                      "glm4",
                                      "nemotron",
                                      "hunyuan_v1_dense",
                                      "falcon-groups",
                                      "falcon",
                                      "mistral3",
                                      "olmo",
                                      "mpt",
                                      "mpnet",
                                      "glm4_moe",
                                      "apertus",
                                      "ernie4_5_moe",
                                      "nanochat",
                                      "gpt_oss",
                                      "deepseek_v2",
                                      "deepseek_v3",
                                      "granitemoe",
                                      "llama4",
                                      "ministral3-long",
                                      "modernbert-biases"};
    static const char *const shared[] = {"llama3", "gpt2", "bert", "qwen3", "mixtral", "qwen2"};
    for (size_t i = 0; i < FM_ARRAY_LEN(two); i++)
        check(two[i], false, 2, i % 2 ? "exact" : "fast", i % 2 ? LIMIT : FAST_LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(both); i++) {
        check(both[i], false, 2, "exact", LIMIT);
        check(both[i], false, 4, i % 2 ? "exact" : "fast", i % 2 ? LIMIT : FAST_LIMIT);
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(shared); i++)
        check(shared[i], true, i % 2 ? 2 : 4, "exact", LIMIT);
    check("qwen2_moe", false, 2, "exact", LIMIT);
    check("qwen2_moe", false, 4, "fast", FAST_LIMIT);
    check("gpt_neox-sequential", false, 2, "exact", LIMIT);
    check("llama-fp8", false, 2, "exact", LIMIT); /* parts of weights with scales */
    check("llama-fp8-channel", false, 2, "fast", FAST_LIMIT);
}

static void refuse(const char *name, uint32_t ranks, const char *needle)
{
    golden g;
    rk_ranks k;
    fm_model *m = NULL;
    assert_true(open_golden(&g, name, false));
    fm_engine_opts o = rk_opts("exact", TOKENS_MAX);
    fm_provider p = fm_source_provider(g.src);
    rk_open(&k, ranks, &o, &p);
    tk_fails(fm_model_load(&m, k.e, fm_source_tree(g.src), &p, name), FM_EUNSUPPORTED, needle);
    rk_close(&k);
    close_golden(&g);
}

TEST(what_cannot_be_split_is_refused)
{
    refuse("olmo2", 2, "normalises queries and keys over all heads");
    refuse("llama-gelu", 4, "2 query heads do not go into 4 equal parts");
    refuse("gemma2", 3, "4 query heads do not go into 3 equal parts");
}

/* ==== adapters ==== */

static void check_adapter(const char *kind, uint32_t ranks)
{
    ik_adapted a;
    ik_ref ref;
    rk_ranks k;
    fm_model *m = NULL;
    char *path = ik_adapter_path(kind, "ref.safetensors");
    size_t n = 0, count = 0;
    ik_open_adapted(&a, kind);
    tk_ok(fm_source_open(&ref.src, path));
    fm_free(path);
    int32_t *ids = ik_ref_get(&ref, "input_ids", &n);
    float *want = ik_ref_get(&ref, "logits", &count);
    fm_engine_opts o = rk_opts("exact", TOKENS_MAX);
    fm_provider p = ik_provider(&a.both);
    rk_open(&k, ranks, &o, &p);
    tk_ok(fm_model_load(&m, k.e, a.tree, &p, kind));
    const uint32_t rows = (uint32_t)FM_MIN(n, (size_t)SHARED_TOKENS);
    size_t all = rows * (count / n);
    float *got = fm_malloc(all * sizeof(float));
    run(m, ids, rows, 9, got, count / n);
    tk_assert_le(tk_rel_norm(got, want, all), ADAPTED_LIMIT, kind);

    fm_engine *one = ik_engine(1, TOKENS_MAX); /* what an output depends on is not split */
    fm_model *whole = NULL;
    tk_ok(fm_model_load(&whole, one, a.tree, &p, kind));
    fm_digest here = fm_model_digest(m), there = fm_model_digest(whole);
    assert_memory_equal(&here, &there, sizeof(here));
    fm_model_close(whole);
    fm_engine_free(one);
    fm_free(got);
    fm_free(ids);
    fm_free(want);
    fm_model_close(m);
    rk_close(&k);
    fm_source_close(ref.src);
    ik_close_adapted(&a);
}

TEST(adapters_match)
{
    static const char *const kinds[] = {"lora",         "lora-modules-to-save",
                                        "dora",         "ia3",
                                        "prefix",       "prompt",
                                        "rslora",       "lora-tokens",
                                        "tokens",       "vera",
                                        "loha",         "miss",
                                        "hra",          "oft",
                                        "pissa",        "p-tuning",
                                        "lora-bias-new"};
    char *there = tk_shared("arch/llama/peft/lora");
    if (!there)
        skip();
    fm_free(there);
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        check_adapter(kinds[i], 2);
        check_adapter(kinds[i], 4);
    }
}

/* ==== the atlas ==== */

#define ASKS 3

static void answer(fm_model *m, fm_gen_result *out)
{
    static const char *const ask[ASKS] = {"The capital of", "Pirates of the sea", "The river"};
    fm_gen_request req[ASKS];
    fm_ids ids[ASKS];
    memset(req, 0, sizeof(req));
    for (int i = 0; i < ASKS; i++) {
        memset(&ids[i], 0, sizeof(ids[i]));
        tk_ok(fm_tokenizer_encode(fm_model_tokenizer(m), fm_span_str(ask[i]), true, &ids[i]));
        req[i] = (fm_gen_request){.model = m,
                                  .prompt = ids[i].id,
                                  .prompt_len = ids[i].count,
                                  .max_new = 24,
                                  .want_logprobs = true};
        fm_sample_defaults(&req[i].sampling);
        req[i].sampling.temperature = 0.0f;
    }
    req[1].sampling.temperature = 0.8f;
    req[1].sampling.seed = 5;
    tk_ok(fm_generate(fm_model_engine(m), req, ASKS, out));
    for (int i = 0; i < ASKS; i++)
        fm_ids_release(&ids[i]);
}

/* Ranks on GPUs with NCCL between them give the bits of ranks on CPUs with sockets. */
static void same_on_sockets(const fm_source *src, uint32_t ranks, const fm_gen_result *got)
{
    fm_engine_opts o = rk_opts("exact", 64);
    fm_provider p = fm_source_provider(src);
    fm_gen_result want[ASKS];
    rk_ranks k;
    (void)unsetenv("RK_CARDS");
    rk_open(&k, ranks, &o, &p);
    fm_model *m = ik_model(k.e, src, "atlas");
    answer(m, want);
    for (int i = 0; i < ASKS; i++) {
        assert_memory_equal(got[i].logprobs, want[i].logprobs, want[i].count * sizeof(float));
        fm_gen_result_release(&want[i]);
    }
    fm_model_close(m);
    rk_close(&k);
    (void)setenv("RK_CARDS", "1", 1);
}

TEST(atlas_answers_alike)
{
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    fm_gen_result want[ASKS], got[2][ASKS];
    rk_ranks k;
    tk_ok(fm_source_open(&src, path));
    fm_engine *one = ik_engine(1, 64);
    fm_model *whole = ik_model(one, src, "atlas");
    answer(whole, want);
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
        fm_engine_opts o = rk_opts("exact", 64);
        fm_provider p = fm_source_provider(src);
        rk_open(&k, ranks, &o, &p);
        char text[64];
        (void)snprintf(text, sizeof(text), "%s/%u ranks", fm_engine_kernel_class(one), ranks);
        assert_string_equal(fm_engine_kernel_class(k.e), text);
        fm_model *m = ik_model(k.e, src, "atlas");
        answer(m, got[0]);
        answer(m, got[1]); /* now out of the prefix cache */
        if (rk_card(0))
            same_on_sockets(src, ranks, got[0]);
        for (int i = 0; i < ASKS; i++) {
            assert_int_equal(got[0][i].count, want[i].count);
            assert_memory_equal(got[0][i].tokens, want[i].tokens, want[i].count * sizeof(int32_t));
            tk_assert_le(tk_rel_norm(got[0][i].logprobs, want[i].logprobs, want[i].count), 1e-5,
                         "log-probabilities");
            assert_memory_equal(got[0][i].logprobs, got[1][i].logprobs,
                                want[i].count * sizeof(float));
            fm_gen_result_release(&got[0][i]);
            fm_gen_result_release(&got[1][i]);
        }
        fm_model_close(m);
        rk_close(&k);
    }
    for (int i = 0; i < ASKS; i++)
        fm_gen_result_release(&want[i]);
    fm_model_close(whole);
    fm_engine_free(one);
    fm_source_close(src);
    fm_free(path);
}

/* ==== ranks that differ, and one that is lost ==== */

static void *differ(void *arg)
{
    rk_rank *r = arg;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    r->rc = fm_comm_new(&comm, r->wire, NULL);
    r->opts.comm = comm;
    if (r->rc == FM_OK)
        r->rc = fm_engine_new(&e, &r->opts);
    fm_engine_free(e);
    fm_comm_free(comm);
    return NULL;
}

static void check_differ(const fm_engine_opts *his, const char *needle)
{
    fm_wire *wire[2];
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    pthread_t t;
    tk_ok(fm_wire_threads(wire, 2, 30.0));
    rk_rank other = {.wire = wire[1], .opts = *his};
    assert_int_equal(pthread_create(&t, NULL, differ, &other), 0);
    tk_ok(fm_comm_new(&comm, wire[0], NULL));
    fm_engine_opts o = rk_opts("exact", 64);
    o.comm = comm;
    tk_fails(fm_engine_new(&e, &o), FM_EINVAL, needle);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(other.rc, FM_EINVAL);
    fm_comm_free(comm);
}

TEST(engines_must_be_alike)
{
    fm_engine_opts o = rk_opts("fast", 64);
    check_differ(&o, "mode fast");
    o = rk_opts("exact", 64);
    o.kv_bytes_max = 12345678;
    check_differ(&o, "12345678 bytes of keys and values");
}

static fm_status unreadable(void *ctx, const fm_entry *e, void *dst)
{
    (void)ctx;
    (void)dst;
    return fm_fail(FM_ENOTFOUND, "no tensor %s on this node", e->name);
}

/* A rank that cannot load says so, and rank 0's load fails with it; the ranks go on. */
TEST(a_model_missing_elsewhere_is_named)
{
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    rk_ranks k;
    fm_model *m = NULL;
    tk_ok(fm_source_open(&src, path));
    fm_engine_opts o = rk_opts("exact", 64);
    fm_provider none = {.read = unreadable}, p = fm_source_provider(src);
    rk_open(&k, 2, &o, &none);
    tk_fails(fm_model_load(&m, k.e, fm_source_tree(src), &p, "atlas"), FM_ENOTFOUND, "rank 1");
    assert_non_null(strstr(fm_error_text(), "on this node"));
    tk_fails(fm_model_load(&m, k.e, fm_source_tree(src), &p, "atlas"), FM_ENOTFOUND, "rank 1");
    rk_close(&k);
    fm_source_close(src);
    fm_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match),
        cmocka_unit_test(what_cannot_be_split_is_refused),
        cmocka_unit_test(adapters_match),
        cmocka_unit_test(atlas_answers_alike),
        cmocka_unit_test(engines_must_be_alike),
        cmocka_unit_test(a_model_missing_elsewhere_is_named),
    };
    rk_only("atlas_answers_alike");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
