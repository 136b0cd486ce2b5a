/* ctest: apart */
/* infer_stages.c - models whose layers are split over stages, on threads over the stand-in: the
 * bits of one rank where a stage is one rank, those of a split model where it is several; whatever
 * the pieces in which rows travel, children in one batch, what the prefix cache has, and how many
 * layers a stage has. The reference is an engine of one rank (or of split ranks without stages). */
#include "tests/model/ranks_kit.h"

#include "infer/engine/engine.h"
#include "infer/engine/pipeline.h"
#include "infer/parallel_plan.h"

#define TOKENS_MAX 64u

typedef struct golden {
    fm_source *src;
    int32_t *ids;
    size_t n;
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
        g->ids = ik_ref_get(&ref, "input_ids", &g->n);
        g->n = FM_MIN(g->n, (size_t)40);
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
    fm_source_close(g->src);
}

/* Logits, or states where there are none, of every token; one text in steps of `cut` rows. */
static void run(fm_model *m, const int32_t *ids, uint32_t n, uint32_t cut, float *out)
{
    fm_engine *e = fm_model_engine(m);
    const fm_arch *a = fm_model_arch(m);
    size_t width = a->sw.encoder ? a->hidden : a->vocab;
    fm_seq *s = NULL;
    fm_row row[TOKENS_MAX];
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t at = 0; at < n; at += cut) {
        uint32_t k = FM_MIN(cut, n - at);
        for (uint32_t i = 0; i < k; i++)
            row[i] = (fm_row){s, ids[at + i], true};
        tk_ok(fm_engine_step(e, row, k));
        for (uint32_t i = 0; i < k; i++) {
            const float *x = a->sw.encoder ? fm_engine_hidden(e, i) : fm_engine_logits(e, i);
            assert_non_null(x);
            memcpy(out + (at + i) * width, x, width * sizeof(float));
        }
    }
    fm_seq_close(s);
}

/* The states that the head reads, of the last step's only row. */
static void last_state(fm_model *m, const int32_t *ids, uint32_t n, float *out)
{
    fm_engine *e = fm_model_engine(m);
    fm_seq *s = NULL;
    fm_row row[TOKENS_MAX];
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t i = 0; i < n; i++)
        row[i] = (fm_row){s, ids[i], i + 1 == n};
    tk_ok(fm_engine_step(e, row, n));
    memcpy(out, fm_engine_hidden(e, n - 1), fm_model_arch(m)->hidden * sizeof(float));
    fm_seq_close(s);
}

typedef struct how {
    uint32_t stages, split, micro_rows;
    const char *mode;
} how;

static size_t floats_of(const fm_model *m, size_t n)
{
    const fm_arch *a = fm_model_arch(m);
    return n * FM_MAX(a->vocab, a->hidden);
}

/* What split ranks without stages compute: the first half of the return value; then a state. */
static float *reference(const golden *g, const char *name, const how *h)
{
    rk_ranks k;
    fm_engine_opts o = rk_opts(h->mode, TOKENS_MAX);
    fm_provider p = fm_source_provider(g->src);
    rk_open(&k, h->split, &o, &p);
    fm_model *m = ik_model(k.e, g->src, name);
    size_t all = floats_of(m, g->n);
    float *out = fm_calloc(all + fm_model_arch(m)->hidden, sizeof(float));
    run(m, g->ids, (uint32_t)g->n, (uint32_t)g->n, out);
    last_state(m, g->ids, (uint32_t)g->n, out + all);
    fm_model_close(m);
    rk_close(&k);
    return out;
}

static void check(const char *name, bool shared, const how *h)
{
    golden g;
    rk_ranks k;
    if (!open_golden(&g, name, shared))
        return;
    float *want = reference(&g, name, h);
    fm_engine_opts o = rk_opts(h->mode, TOKENS_MAX);
    fm_provider p = fm_source_provider(g.src);
    o.stages = h->stages;
    o.micro_rows = h->micro_rows;
    rk_open(&k, h->stages * h->split, &o, &p);
    fm_model *m = ik_model(k.e, g.src, name);
    uint32_t n = (uint32_t)g.n, hidden = fm_model_arch(m)->hidden;
    size_t all = floats_of(m, g.n);
    float *got = fm_calloc(all, sizeof(float));
    bool encoder = fm_model_arch(m)->sw.encoder;
    for (int round = 0; round < 3; round++) { /* pieces; steps; out of the prefix cache */
        uint32_t cut = round == 1 && !encoder ? 7 : n;
        memset(got, 0, all * sizeof(float));
        run(m, g.ids, n, cut, got);
        if (memcmp(got, want, all * sizeof(float)) != 0)
            fail_msg("%s over %u stages of %u, mode %s, round %d: other bits", name, h->stages,
                     h->split, h->mode, round);
    }
    last_state(m, g.ids, n, got);
    assert_memory_equal(got, want + all, hidden * sizeof(float));
    fm_free(got);
    fm_free(want);
    fm_model_close(m);
    rk_close(&k);
    close_golden(&g);
}

TEST(stages_have_the_bits_of_one_rank)
{
    static const char *const here[] = {"gemma2",  "qwen2-mixed", "phi3",      "gpt_neox",
                                       "roberta", "granite",     "stablelm",  "starcoder2",
                                       "olmo2",   "qwen2_moe",   "qwen3_moe", "smollm3"};
    static const char *const shared[] = {"llama3", "gpt2", "bert", "qwen3", "mixtral", "qwen2"};
    for (size_t i = 0; i < FM_ARRAY_LEN(here); i++) {
        check(here[i], false, &(how){2, 1, 5, "exact"});
        check(here[i], false, &(how){2, 1, 0, "fast"});
    }
    static const char *const later[] = {"phi",           "gptj",        "opt",
                                        "falcon-groups", "nemotron",    "olmo",
                                        "gpt_oss",       "deepseek_v3", "granitemoeshared",
                                        "llama4",        "llama4-sight"};
    for (size_t i = 0; i < FM_ARRAY_LEN(later); i++)
        check(later[i], false, &(how){2, 1, 5, i % 2 ? "fast" : "exact"});
    check("qwen3_moe", false, &(how){3, 1, 4, "exact"});
    check("smollm3", false, &(how){4, 1, 1, "exact"});
    check("smollm3", false, &(how){3, 1, 2, "fast"});
    for (size_t i = 0; i < FM_ARRAY_LEN(shared); i++)
        check(shared[i], true, &(how){2, 1, 3, i % 2 ? "fast" : "exact"});
}

TEST(split_stages_have_the_bits_of_split_ranks)
{
    static const char *const here[] = {"gemma2", "qwen2-mixed", "gpt_neox", "roberta", "qwen2_moe"};
    static const char *const shared[] = {"llama3", "gpt2", "mixtral"};
    for (size_t i = 0; i < FM_ARRAY_LEN(here); i++)
        check(here[i], false, &(how){2, 2, i % 2 ? 0 : 3, i % 2 ? "fast" : "exact"});
    for (size_t i = 0; i < FM_ARRAY_LEN(shared); i++)
        check(shared[i], true, &(how){2, 2, 4, "exact"});
}

/* ==== adapters ==== */

static void check_adapter(const char *kind, uint32_t stages, uint32_t split)
{
    enum { N = 24 };
    ik_adapted a;
    int32_t ids[N];
    float *out[2];
    fm_digest digest[2];
    ik_open_adapted(&a, kind);
    fm_provider p = ik_provider(&a.both);
    for (int32_t i = 0; i < N; i++)
        ids[i] = 3 + (i * 31) % 150;
    for (uint32_t i = 0; i < 2; i++) {
        rk_ranks k;
        fm_model *m = NULL;
        fm_engine_opts o = rk_opts("exact", TOKENS_MAX);
        o.stages = i ? stages : 1;
        o.micro_rows = 2;
        rk_open(&k, o.stages * split, &o, &p);
        tk_ok(fm_model_load(&m, k.e, a.tree, &p, kind));
        out[i] = fm_calloc(floats_of(m, N), sizeof(float));
        run(m, ids, N, 9, out[i]);
        digest[i] = fm_model_digest(m);
        if (i)
            assert_memory_equal(out[0], out[1], floats_of(m, N) * sizeof(float));
        fm_model_close(m);
        rk_close(&k);
    }
    assert_memory_equal(&digest[0], &digest[1],
                        sizeof(digest[0])); /* what it depends on is whole */
    fm_free(out[0]);
    fm_free(out[1]);
    ik_close_adapted(&a);
}

TEST(adapters_have_the_bits_of_one_rank)
{
    static const char *const kinds[] = {
        "lora", "lora-modules-to-save", "dora", "ia3", "prefix", "prompt", "rslora"};
    char *there = tk_shared("arch/llama/peft/lora");
    if (!there)
        skip();
    fm_free(there);
    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++)
        check_adapter(kinds[i], 2, 1 + i % 2);
}

/* ==== answers and scores ==== */

#define TEXTS 5
#define TEXT_TOKENS 50

typedef struct said {
    fm_gen_result answer[TEXTS];
    float score[3][TEXTS][TEXT_TOKENS];
} said;

/* Answers to prompts that begin alike, then scores: all, again (from the cache), from a place. */
static void speak(fm_model *m, said *out)
{
    fm_engine *e = fm_model_engine(m);
    int32_t ids[TEXTS][TEXT_TOKENS];
    fm_gen_request req[TEXTS];
    fm_score_request q[TEXTS];
    memset(req, 0, sizeof(req));
    for (int t = 0; t < TEXTS; t++) {
        for (int i = 0; i < TEXT_TOKENS; i++)
            ids[t][i] = 20 + (i * (i < 36 ? 7 : 7 + t)) % 900;
        req[t] = (fm_gen_request){.model = m,
                                  .prompt = ids[t],
                                  .prompt_len = TEXT_TOKENS - 3 * (size_t)t,
                                  .max_new = 12,
                                  .want_logprobs = true};
        fm_sample_defaults(&req[t].sampling);
        req[t].sampling.temperature = t % 2 ? 0.8f : 0.0f;
        req[t].sampling.seed = 5;
    }
    tk_ok(fm_generate(e, req, TEXTS, out->answer));
    memset(out->score, 0, sizeof(out->score));
    for (int round = 0; round < 3; round++) {
        for (int t = 0; t < TEXTS; t++)
            q[t] = (fm_score_request){.model = m,
                                      .ids = ids[t],
                                      .n = TEXT_TOKENS,
                                      .from = round == 2 ? 40 : 0,
                                      .logprobs = out->score[round][t]};
        tk_ok(fm_score_many(e, q, TEXTS));
    }
}

static void same(said *a, said *b)
{
    assert_memory_equal(a->score, b->score, sizeof(a->score));
    for (int t = 0; t < TEXTS; t++) {
        assert_int_equal(a->answer[t].count, b->answer[t].count);
        size_t n = a->answer[t].count;
        assert_memory_equal(a->answer[t].tokens, b->answer[t].tokens, n * sizeof(int32_t));
        assert_memory_equal(a->answer[t].logprobs, b->answer[t].logprobs, n * sizeof(float));
        fm_gen_result_release(&b->answer[t]);
    }
}

/* stages x split, with room and with so little that pages are lost. Split ranks without stages are
 * the reference of split stages, in scores out of the cache too. */
TEST(answers_and_scores_are_those_of_one_rank)
{
    static const how all[] = {{1, 1, 0, "exact"}, {2, 1, 3, "exact"}, {3, 1, 0, "exact"},
                              {4, 1, 1, "exact"}, {1, 2, 0, "exact"}, {2, 2, 4, "exact"}};
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    said *want = fm_calloc(2, sizeof(*want)), *got = want + 1;
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        for (uint32_t tight = 0; tight < 2; tight++) {
            rk_ranks k;
            fm_engine_opts o = rk_opts(all[i].mode, TOKENS_MAX);
            bool reference = all[i].stages == 1 && !tight;
            o.stages = all[i].stages;
            o.micro_rows = all[i].micro_rows;
            if (tight) /* two texts or so, of its layers */
                o.kv_bytes_max = 5ull * 6 / o.stages * (2 * 32 * 64 / all[i].split) * sizeof(float);
            rk_open(&k, all[i].stages * all[i].split, &o, &p);
            fm_model *m = ik_model(k.e, src, "atlas");
            speak(m, reference ? want : got);
            if (!reference)
                same(want, got);
            fm_model_close(m);
            rk_close(&k);
            if (tight && i + 1 < FM_ARRAY_LEN(all) && all[i + 1].split != all[i].split)
                for (int t = 0; t < TEXTS; t++)
                    fm_gen_result_release(&want->answer[t]);
        }
    for (int t = 0; t < TEXTS; t++)
        fm_gen_result_release(&want->answer[t]);
    fm_free(want);
    fm_source_close(src);
    fm_free(path);
}

/* ==== what a rank holds ==== */

TEST(a_rank_holds_its_layers_alone)
{
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    uint64_t one = 0, rank0[5] = {0};
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    for (uint32_t stages = 1; stages <= 4; stages++) {
        rk_ranks k;
        fm_engine_opts o = rk_opts("exact", TOKENS_MAX);
        o.stages = stages;
        rk_open(&k, stages, &o, &p);
        assert_string_equal(fm_engine_kernel_class(k.e), fm_engine_backend(k.e)->kernel_class);
        fm_model *m = ik_model(k.e, src, "atlas");
        const fm_arch *a = fm_model_arch(m);
        fm_engine_stats s = fm_engine_stats_of(k.e);
        uint32_t layers = fmi_priv(m)->split.begin[1];
        /* A layer: q, o [h, h], k, v [kv, h], three of [inter, h], two norms; the embedding. */
        uint64_t h = a->hidden, kv = a->kv_heads * a->head_dim;
        uint64_t layer = 2 * h * h + 2 * kv * h + 3ull * a->inter * h + 2 * h;
        uint64_t want = (layer * layers + a->vocab * h + (stages == 1 ? h : 0)) * sizeof(float);
        assert_int_equal(s.weight_bytes, want);
        assert_int_equal(s.weights, 9 * layers + 1 + (stages == 1));
        rank0[stages] = s.weight_bytes;
        one = stages == 1 ? s.weight_bytes : one;
        const fm_serve_ask ask = {.arch = a, .weight_bytes = one, .kv_bytes = 1, .rows = 1};
        fm_serve_plan plan; /* of the fullest rank, which this one need not be */
        tk_ok(fm_serve_plan_of(&plan, &ask, stages, 1, "atlas"));
        assert_memory_equal(plan.begin, fmi_priv(m)->split.begin, sizeof(plan.begin));
        assert_true(plan.weight_bytes + 1 >= s.weight_bytes);
        assert_true(plan.weight_bytes <=
                    (layer * fmi_stage_split_most(&fmi_priv(m)->split) + (a->vocab + 1) * h) * 4);
        int32_t ids[40];
        float *out = fm_malloc(sizeof(ids) * a->vocab);
        for (int32_t i = 0; i < 40; i++)
            ids[i] = 10 + i;
        run(m, ids, 40, 40, out);
        uint64_t page = 2 * fm_engine_backend(k.e)->kv_page_bytes(fm_engine_backend(k.e),
                                                                  a->kv_heads, a->head_dim);
        uint64_t streams = h * FM_KV_PAGE * sizeof(float); /* before the head: the last stage's */
        assert_int_equal(fm_engine_stats_of(k.e).kv_bytes,
                         2 * page * layers + (stages == 1 ? 2 * streams : 0));
        fm_free(out);
        fm_model_close(m);
        rk_close(&k);
    }
    assert_true(rank0[2] < one && rank0[3] < rank0[2] && rank0[4] < rank0[3]);
    fm_source_close(src);
    fm_free(path);
}

/* ==== what travels ==== */

/* Bytes that rank 0 sends for a text of n tokens, the logits of the last one wanted. */
static uint64_t bytes_of_text(rk_ranks *k, fm_model *m, int32_t first, uint32_t n)
{
    fm_seq *s = NULL;
    fm_row row[TOKENS_MAX];
    uint64_t before = fm_comm_stats_of(k->comm).bytes_sent;
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t i = 0; i < n; i++)
        row[i] = (fm_row){s, first + (int32_t)i, i + 1 == n};
    tk_ok(fm_engine_step(k->e, row, n));
    fm_seq_close(s);
    return fm_comm_stats_of(k->comm).bytes_sent - before;
}

/* A residual stream of each row, whatever the pieces; none of rows that begin behind the
 * boundary. */
TEST(rows_travel_once)
{
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    for (uint32_t micro = 4; micro <= 64; micro *= 4) {
        rk_ranks k;
        fm_engine_opts o = rk_opts("exact", TOKENS_MAX);
        o.stages = 2;
        o.micro_rows = micro;
        rk_open(&k, 2, &o, &p);
        fm_model *m = ik_model(k.e, src, "atlas");
        uint64_t row = 4ull * fm_model_arch(m)->hidden, word = 12; /* sequence, token, wanted */
        (void)bytes_of_text(&k, m, 10, 1);                         /* tells of the model */
        uint64_t few = bytes_of_text(&k, m, 100, 8), many = bytes_of_text(&k, m, 300, 31);
        assert_int_equal(many - few, 23 * (row + word));
        uint64_t fresh = bytes_of_text(&k, m, 500, 40), again = bytes_of_text(&k, m, 500, 40);
        assert_int_equal(fresh - again, FM_KV_PAGE * row);
        fm_model_close(m);
        rk_close(&k);
    }
    fm_source_close(src);
    fm_free(path);
}

/* ==== dealing, by hand ==== */

static fm_arch llama(uint32_t layers, uint32_t vocab, bool tied)
{
    char *text = fm_asprintf(
        "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":%u,\"hidden_size\":64,"
        "\"intermediate_size\":64,\"num_hidden_layers\":%u,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":4,\"head_dim\":16,\"max_position_embeddings\":512,"
        "\"tie_word_embeddings\":%s}}",
        vocab, layers, tied ? "true" : "false");
    fm_json *v = NULL;
    fm_arch a;
    tk_ok(fm_json_parse(&v, fm_span_str(text), "it"));
    tk_ok(fm_arch_from_json(&a, v, "it"));
    fm_json_free(v);
    fm_free(text);
    return a;
}

static void expect_deal(const fm_arch *a, uint32_t stages, const uint32_t *layers)
{
    fmi_stage_split d;
    tk_ok(fmi_stage_split_of(&d, a, stages, "it"));
    for (uint32_t s = 0, l = 0; s < stages; s++) {
        assert_int_equal(d.begin[s], l);
        for (uint32_t i = 0; i < layers[s]; i++)
            assert_int_equal(fmi_stage_split_stage(&d, l++), s);
    }
    assert_int_equal(d.begin[stages], a->layers);
    assert_int_equal(fmi_stage_split_stage(&d, a->layers), stages - 1);
}

/* A layer multiplies 4 + 3 matrices of 64 x 64; a head of 64 n tokens is n of them. */
TEST(layers_are_dealt_evenly)
{
    const fm_arch thin = llama(12, 64, false), heavy = llama(12, 64 * 28, true);
    const fm_arch heaviest = llama(4, 64 * 700, true);
    fmi_stage_split d;
    expect_deal(&thin, 1, (const uint32_t[]){12});
    expect_deal(&thin, 4, (const uint32_t[]){3, 3, 3, 3});    /* 3 layers and 1/7 at most */
    expect_deal(&thin, 5, (const uint32_t[]){2, 2, 3, 3, 2}); /* 3 at most: 2 and a head last */
    expect_deal(&heavy, 2, (const uint32_t[]){8, 4});         /* the head is 4 layers: 8 and 8 */
    expect_deal(&heavy, 4, (const uint32_t[]){3, 4, 4, 1});   /* 5, and the others 4 at most */
    expect_deal(&heaviest, 3, (const uint32_t[]){1, 2, 1});   /* one layer beside the head */
    expect_deal(&heaviest, 4, (const uint32_t[]){1, 1, 1, 1});
    tk_fails(fmi_stage_split_of(&d, &heaviest, 5, "it"), FM_EUNSUPPORTED,
             "it: 4 layers cannot be split over 5 stages; use at most 4");
    tk_fails(fmi_stage_split_of(&d, &thin, 65, "it"), FM_EUNSUPPORTED, "at most 64");
    assert_int_equal(fmi_pipe_pieces(40, 2, 5), 8);
    assert_int_equal(fmi_pipe_pieces(40, 2, 16), 2);
    assert_int_equal(fmi_pipe_pieces(400, 2, 16), 8); /* four for each stage */
    assert_int_equal(fmi_pipe_pieces(3, 2, 16), 1);
    assert_int_equal(fmi_pipe_pieces(400, 1, 16), 1);
}

/* ==== refusals ==== */

TEST(what_cannot_be_dealt_is_refused)
{
    golden g;
    rk_ranks k;
    fm_model *m = NULL;
    fm_engine *e = NULL;
    assert_true(open_golden(&g, "gemma2", false));
    fm_provider p = fm_source_provider(g.src);
    fm_engine_opts o = rk_opts("exact", TOKENS_MAX);
    o.stages = 3;
    rk_open(&k, 3, &o, &p);
    tk_fails(fm_model_load(&m, k.e, fm_source_tree(g.src), &p, "gemma2"), FM_EUNSUPPORTED,
             "gemma2: 2 layers cannot be split over 3 stages; use at most 2");
    rk_close(&k);
    tk_fails(fm_engine_new(&e, &o), FM_EINVAL, "1 ranks do not go into 3 equal stages");
    o.stages = 65;
    tk_fails(fm_engine_new(&e, &o), FM_EINVAL, "65 stages, at most 64");
    close_golden(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_dealt_evenly),
        cmocka_unit_test(stages_have_the_bits_of_one_rank),
        cmocka_unit_test(split_stages_have_the_bits_of_split_ranks),
        cmocka_unit_test(adapters_have_the_bits_of_one_rank),
        cmocka_unit_test(answers_and_scores_are_those_of_one_rank),
        cmocka_unit_test(a_rank_holds_its_layers_alone),
        cmocka_unit_test(rows_travel_once),
        cmocka_unit_test(what_cannot_be_dealt_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
