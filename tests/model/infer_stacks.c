/* Encoder-decoders: logits, states and answers of transformers (golden/make_arch.py); the bits of a
 * row alone in any mix; pages of sources that come back; scores; what is refused by name. */
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"
#include "infer/model/shard.h"
#include "infer/model/stage_split.h"
#include "train/net/internal.h"

#define LIMIT 2e-6
#define FAST_LIMIT 2e-2
#define TOKENS 40u

static char *golden(const char *name, const char *file)
{
    return fm_asprintf("%s/tests/model/golden/arch/%s%s", FM_SOURCE_DIR, name, file);
}

static fm_seq *open_seq(fm_model *m, const int32_t *source, size_t n)
{
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    tk_ok(fm_seq_source(s, source, n));
    return s;
}

/* Logits [n, vocab] behind each of the decoder's tokens, run in pieces. */
static void run(fm_model *m, const int32_t *source, size_t sources, const int32_t *ids, uint32_t n,
                uint32_t cut, float *out)
{
    fm_engine *e = fm_model_engine(m);
    size_t vocab = fm_model_arch(m)->vocab;
    fm_seq *s = open_seq(m, source, sources);
    fm_row row[128];
    for (uint32_t at = 0; at < n; at += cut) {
        uint32_t k = FM_MIN(cut, n - at);
        for (uint32_t i = 0; i < k; i++)
            row[i] = (fm_row){s, ids[at + i], true};
        tk_ok(fm_engine_step(e, row, k));
        for (uint32_t i = 0; i < k; i++)
            memcpy(out + (at + i) * vocab, fm_engine_logits(e, i), vocab * sizeof(float));
    }
    fm_seq_close(s);
}

/* ==== references ==== */

typedef struct folder {
    fm_source *src;
    ik_ref ref;
    fm_engine *e;
    fm_model *m;
    int32_t *source, *ids;
    size_t sources, n;
} folder;

static void folder_open(folder *f, const char *name, const char *mode)
{
    char *dir = golden(name, ""), *file = golden(name, "/ref.safetensors");
    fm_engine_opts o = fm_engine_defaults();
    o.threads = 2;
    o.max_rows = 64;
    o.mode = mode;
    tk_ok(fm_source_open(&f->src, dir));
    tk_ok(fm_source_open(&f->ref.src, file));
    tk_ok(fm_engine_new(&f->e, &o));
    f->m = ik_model(f->e, f->src, name);
    bool decodes = fm_model_arch(f->m)->sw.cross;
    f->source = decodes ? ik_ref_get(&f->ref, "source", &f->sources) : NULL;
    f->ids = ik_ref_get(&f->ref, "input_ids", &f->n);
    fm_free(dir);
    fm_free(file);
}

static void folder_close(folder *f)
{
    fm_free(f->source);
    fm_free(f->ids);
    fm_model_close(f->m);
    fm_engine_free(f->e);
    fm_source_close(f->src);
    fm_source_close(f->ref.src);
}

static void encode(fm_model *m, const int32_t *ids, size_t n, float *out)
{
    fm_engine *e = fm_model_engine(m);
    size_t h = fm_model_arch(m)->hidden;
    fm_row row[128];
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    for (size_t i = 0; i < n; i++)
        row[i] = (fm_row){s, ids[i], true};
    tk_ok(fm_engine_step(e, row, (uint32_t)n));
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * h, fm_engine_hidden(e, (uint32_t)i), h * sizeof(float));
    fm_seq_close(s);
}

static void check_states(fm_model *m, const ik_ref *ref, const char *what, const int32_t *ids,
                         size_t n, double limit)
{
    size_t count = 0;
    float *want = ik_ref_get(ref, what, &count), *got = fm_malloc(count * sizeof(float));
    encode(m, ids, n, got);
    print_message("%s: %.2g\n", what, tk_rel_norm(got, want, count));
    tk_assert_le(tk_rel_norm(got, want, count), limit, what);
    fm_free(got);
    fm_free(want);
}

static void check_greedy(const folder *f)
{
    fm_gen_request q = {.model = f->m,
                        .prompt = f->source,
                        .prompt_len = f->sources,
                        .max_new = 12,
                        .ignore_eos = true};
    fm_gen_result r;
    int32_t *want = ik_ref_get(&f->ref, "greedy", NULL);
    fm_sample_defaults(&q.sampling);
    q.sampling.temperature = 0;
    tk_ok(fm_generate(f->e, &q, 1, &r));
    assert_int_equal(r.count, 12);
    assert_memory_equal(r.tokens, want, 12 * sizeof(int32_t));
    fm_gen_result_release(&r);
    fm_free(want);
}

static void check(const char *name, const char *mode, double limit)
{
    folder f;
    size_t count = 0;
    folder_open(&f, name, mode);
    float *want = ik_ref_get(&f.ref, "logits", &count);
    float *got = fm_malloc(2 * count * sizeof(float)), *cut = got + count;
    run(f.m, f.source, f.sources, f.ids, (uint32_t)f.n, (uint32_t)f.n, got);
    print_message("%s %s: %.2g\n", name, mode, tk_rel_norm(got, want, count));
    tk_assert_le(tk_rel_norm(got, want, count), limit, name);
    run(f.m, f.source, f.sources, f.ids, (uint32_t)f.n, 7, cut);
    assert_memory_equal(got, cut, count * sizeof(float));
    check_states(f.m->source, &f.ref, "states", f.source, f.sources, limit);
    if (strcmp(mode, "exact") == 0)
        check_greedy(&f);
    fm_free(got);
    fm_free(want);
    folder_close(&f);
}

TEST(families_match)
{
    static const char *const names[] = {"t5", "t5-gated", "mt5", "bart", "mbart"};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "exact", LIMIT);
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        check(names[i], "fast", FAST_LIMIT);
}

/* transformers' T5EncoderModel has no decoder's tensors, whatever its config says. */
TEST(encoders_alone_match)
{
    static const char *const modes[] = {"exact", "fast"};
    for (size_t i = 0; i < 2; i++) {
        folder f;
        fm_gen_request q = {.prompt_len = 1, .max_new = 1};
        fm_gen_result r;
        folder_open(&f, "t5-gated-encoder", modes[i]);
        check_states(f.m, &f.ref, "hidden", f.ids, f.n, i ? FAST_LIMIT : LIMIT);
        assert_null(f.m->source);
        q.model = f.m;
        q.prompt = f.ids;
        tk_fails(fm_generate(f.e, &q, 1, &r), FM_EUNSUPPORTED, "t5 is an encoder");
        folder_close(&f);
    }
}

/* x is the mean of transformers' states, of length 1 where it is normalised. */
static void check_pooled(const folder *f, const float *x, bool normalised)
{
    size_t count = 0, n = f->n;
    float *states = ik_ref_get(&f->ref, "hidden", &count);
    double mean[16] = {0}, squares = 0;
    assert_int_equal(count, 16 * n);
    for (size_t i = 0; i < count; i++)
        mean[i % 16] += (double)states[i] / (double)n;
    for (size_t i = 0; i < 16; i++)
        squares += mean[i] * mean[i];
    for (size_t i = 0; i < 16; i++)
        assert_true(fabs((double)x[i] - (normalised ? mean[i] / sqrt(squares) : mean[i])) < 2e-6);
    fm_free(states);
}

/* The modules of a sentence-transformers folder: here a mean that nothing normalises. */
static void check_modules(folder *f, const int32_t *ids, size_t n)
{
    static const char modules[] =
        "[{\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"},"
        "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}]";
    fm_provider p = fm_source_provider(f->src);
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    float x[16];
    tk_ok(fm_tree_copy(&tree, fm_source_tree(f->src)));
    tk_ok(fm_tree_put_file(tree, "source/files/modules.json", fm_span_str(modules)));
    tk_ok(fm_tree_put_file(tree, "source/files/1_Pooling/config.json",
                           fm_span_str("{\"pooling_mode_mean_tokens\":true}")));
    tk_ok(fm_model_load(&m, f->e, tree, &p, "it"));
    const fm_embed_request q = {m, ids, n, x};
    tk_ok(fm_embed_many(f->e, &q, 1));
    check_pooled(f, x, false);
    fm_model_close(m);
    fm_tree_free(tree);
}

/* The whole model's vectors are those of its encoder. */
TEST(vectors_are_the_encoders)
{
    folder whole, alone;
    float a[16], b[16];
    folder_open(&whole, "t5-gated", "exact");
    folder_open(&alone, "t5-gated-encoder", "exact");
    assert_int_equal(fm_model_arch(whole.m)->hidden, 16);
    const fm_embed_request q[2] = {{whole.m, whole.source, whole.sources, a},
                                   {alone.m, whole.source, whole.sources, b}};
    tk_ok(fm_embed_many(whole.e, &q[0], 1));
    tk_ok(fm_embed_many(alone.e, &q[1], 1));
    assert_memory_equal(a, b, sizeof(a));
    check_pooled(&alone, a, true);
    check_modules(&alone, whole.source, whole.sources);
    folder_close(&whole);
    folder_close(&alone);
}

/* LoRA, DoRA and IA3 of PEFT on both stacks and on attention to the source. */
static void check_adapter(const char *name)
{
    char *lora = fm_asprintf("%s/tests/model/golden/arch_peft/%s", FM_SOURCE_DIR, name);
    char *file = fm_asprintf("%s/ref.safetensors", lora);
    fm_source *adapter = NULL;
    ik_ref ref = {NULL};
    fm_tree *both = NULL;
    fm_model *m = NULL;
    ik_mem mem = {.behind_count = 2};
    folder f;
    size_t count = 0;
    folder_open(&f, name, "exact");
    tk_ok(fm_source_open(&adapter, lora));
    tk_ok(fm_source_open(&ref.src, file));
    tk_ok(fm_adapter_apply(&both, fm_source_tree(f.src), fm_source_tree(adapter), name, NULL));
    mem.behind[0] = fm_source_provider(f.src);
    mem.behind[1] = fm_source_provider(adapter);
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_model_load(&m, f.e, both, &p, name));
    float *want = ik_ref_get(&ref, "logits", &count), *got = fm_malloc(2 * count * sizeof(float));
    run(m, f.source, f.sources, f.ids, (uint32_t)f.n, 9, got);
    print_message("%s with an adapter: %.2g\n", name, tk_rel_norm(got, want, count));
    tk_assert_le(tk_rel_norm(got, want, count), 1e-5, name);
    run(f.m, f.source, f.sources, f.ids, (uint32_t)f.n, 9, got + count);
    assert_true(tk_rel_norm(got, got + count, count) > 0.05);
    fm_free(got);
    fm_free(want);
    fm_model_close(m);
    fm_tree_free(both);
    fm_source_close(ref.src);
    fm_source_close(adapter);
    folder_close(&f);
    fm_free(file);
    fm_free(lora);
}

TEST(adapters_match)
{
    check_adapter("t5");       /* LoRA */
    check_adapter("t5-gated"); /* IA3 */
    check_adapter("bart");     /* DoRA */
}

/* ==== scores ==== */

/* log p of the answer's tokens, from the logits behind the tokens before them. */
static void check_scores(const char *name)
{
    folder f;
    float *logits = NULL, lp[2][80];
    int32_t both[80];
    size_t vocab, answer = 30;
    folder_open(&f, name, "exact");
    vocab = fm_model_arch(f.m)->vocab;
    logits = fm_malloc(f.n * vocab * sizeof(float));
    run(f.m, f.source, f.sources, f.ids, (uint32_t)f.n, (uint32_t)f.n, logits);
    memcpy(both, f.source, f.sources * sizeof(int32_t));
    memcpy(both + f.sources, f.ids + 1, answer * sizeof(int32_t));
    const fm_score_request q[2] = {{f.m, both, f.sources + answer, lp[0], f.sources},
                                   {f.m, both + 5, f.sources - 5 + answer, lp[1], f.sources - 5}};
    tk_ok(fm_score_many(f.e, q, 2));
    for (size_t i = 0; i < answer; i++) {
        float want = 0;
        tk_ok(fm_logprobs(&want, NULL, 0, logits + i * vocab, (uint32_t)vocab, f.ids[i + 1]));
        assert_true(fabsf(want - lp[0][f.sources + i]) < 1e-5f);
    }
    float one[80];
    const fm_score_request alone = {f.m, both + 5, f.sources - 5 + answer, one, f.sources - 5};
    tk_ok(fm_score_many(f.e, &alone, 1));
    assert_memory_equal(one + alone.from, lp[1] + alone.from, answer * sizeof(float));
    assert_memory_not_equal(one + alone.from, lp[0] + f.sources, answer * sizeof(float));
    assert_int_equal(fm_model_arch(f.m)->start[1], strcmp(name, "bart") == 0 ? 4 : -1);
    if (fm_model_arch(f.m)->start[1] >= 0) { /* an answer without the first token that is forced */
        memcpy(both + f.sources, f.ids + 2, answer * sizeof(int32_t));
        tk_ok(fm_score_many(f.e, q, 1));
        for (size_t i = 0; i < answer; i++) {
            float want = 0;
            tk_ok(fm_logprobs(&want, NULL, 0, logits + (i + 1) * vocab, (uint32_t)vocab,
                              f.ids[i + 2]));
            assert_true(fabsf(want - lp[0][f.sources + i]) < 1e-5f);
        }
    }
    const fm_score_request none = {f.m, both, 5, one, 0};
    tk_fails(fm_score_many(f.e, &none, 1), FM_EUNSUPPORTED, "an answer to a source");
    tk_fails(fm_score(f.m, both, 5, one, NULL, 0), FM_EUNSUPPORTED, "an answer to a source");
    fm_free(logits);
    folder_close(&f);
}

TEST(scores_are_those_of_the_logits)
{
    check_scores("t5-gated");
    check_scores("bart"); /* its first token is forced */
}

/* ==== mixes ==== */

enum { BASE, LORA, TUNED, VARIANTS };
#define TEXTS 4u
#define LENGTH 64u /* of decoders' texts: two pages, all that BART takes */
#define SOURCE 64u
#define VOCAB 48u
#define SEQS 6u

typedef struct world {
    ik_mem mem;
    fm_source *src;
    fm_tree *tree[VARIANTS];
    int32_t source[TEXTS][SOURCE], text[TEXTS][LENGTH];
    size_t sources[TEXTS];
    float *alone[VARIANTS][TEXTS]; /* [LENGTH, VOCAB] */
} world;

static void put_lora(world *w, fm_tree *t, const char *module, uint64_t seed)
{
    fm_param p;
    fm_arch a;
    char name[200];
    fm_provider from = fm_source_provider(w->src);
    (void)snprintf(name, sizeof(name), "%s.weight", module);
    tk_ok(fm_arch_of_tree(&a, t, &from, "it"));
    assert_true(fm_arch_param_named(&a, name, &p));
    for (uint32_t b = 0; b < 2; b++) {
        (void)snprintf(name, sizeof(name), "base_model.model.%s.lora_%c.weight", module,
                       b ? 'B' : 'A');
        vk_put(&w->mem, t, "adapters/0-lora/tensors", name, seed + b, 2, b ? p.shape.dim[0] : 3,
               b ? 3 : p.shape.dim[1], 0.0, 0.4);
    }
}

static void world_make(world *w, bool bart)
{
    static const char *const modules[] = {
        "encoder.block.1.layer.0.SelfAttention.v", "encoder.block.0.layer.1.DenseReluDense.wo",
        "decoder.block.1.layer.0.SelfAttention.q", "decoder.block.1.layer.1.EncDecAttention.k",
        "decoder.block.2.layer.1.EncDecAttention.o"};
    static const char *const barts[] = {"model.encoder.layers.1.fc1",
                                        "model.encoder.layers.0.self_attn.v_proj",
                                        "model.decoder.layers.1.encoder_attn.k_proj",
                                        "model.decoder.layers.0.encoder_attn.out_proj"};
    char *dir = golden(bart ? "bart" : "t5", "");
    memset(w, 0, sizeof(*w));
    tk_ok(fm_source_open(&w->src, dir));
    w->mem.behind[0] = fm_source_provider(w->src);
    w->mem.behind_count = 1;
    for (int v = 0; v < VARIANTS; v++)
        tk_ok(fm_tree_copy(&w->tree[v], fm_source_tree(w->src)));
    tk_ok(fm_tree_put_file(w->tree[LORA], "adapters/0-lora/adapter_config.json",
                           fm_span_str("{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}")));
    for (size_t i = 0; i < (bart ? FM_ARRAY_LEN(barts) : FM_ARRAY_LEN(modules)); i++)
        put_lora(w, w->tree[LORA], bart ? barts[i] : modules[i], 700 + 2 * i);
    if (bart)
        vk_put(&w->mem, w->tree[TUNED], "tensors",
               "model.decoder.layers.0.encoder_attn.v_proj.weight", 900, 2, 24, 24, 0.0, 0.5);
    else
        vk_put(&w->mem, w->tree[TUNED], "tensors",
               "decoder.block.0.layer.1.EncDecAttention.v.weight", 900, 2, 18, 16, 0.0, 0.5);
    for (uint32_t t = 0; t < TEXTS; t++) {
        w->sources[t] = t == 0 ? SOURCE : 1 + fm_rng_below(3, 1, t, SOURCE - 1);
        for (uint32_t i = 0; i < SOURCE; i++)
            w->source[t][i] = (int32_t)fm_rng_below(5, t, i, VOCAB);
        for (uint32_t i = 0; i < LENGTH; i++) /* the texts begin alike: sources tell them apart */
            w->text[t][i] = (int32_t)fm_rng_below(7, i < 40 ? 0 : t, i, VOCAB);
    }
    fm_free(dir);
}

static void world_drop(world *w)
{
    for (int v = 0; v < VARIANTS; v++) {
        fm_tree_free(w->tree[v]);
        for (uint32_t t = 0; t < TEXTS; t++)
            fm_free(w->alone[v][t]);
    }
    ik_mem_free(&w->mem);
    fm_source_close(w->src);
}

static void load_all(world *w, fm_engine *e, fm_model *m[VARIANTS])
{
    fm_provider p = ik_provider(&w->mem);
    for (int v = 0; v < VARIANTS; v++)
        tk_ok(fm_model_load(&m[v], e, w->tree[v], &p, "it"));
}

static void drop_all(fm_engine *e, fm_model *m[VARIANTS])
{
    for (int v = 0; v < VARIANTS; v++)
        fm_model_close(m[v]);
    fm_engine_free(e);
}

static fm_engine *engine_of(const char *mode, uint32_t rows, uint64_t kv_bytes)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = 2;
    o.max_rows = rows;
    o.mode = mode;
    o.kv_bytes_max = kv_bytes ? kv_bytes : o.kv_bytes_max;
    tk_ok(fm_engine_new(&e, &o));
    return e;
}

static void run_alone(world *w, const char *mode)
{
    fm_model *m[VARIANTS];
    fm_engine *e = engine_of(mode, 128, 0);
    load_all(w, e, m);
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t t = 0; t < TEXTS; t++) {
            w->alone[v][t] = fm_malloc((size_t)LENGTH * VOCAB * sizeof(float));
            run(m[v], w->source[t], w->sources[t], w->text[t], LENGTH, 64, w->alone[v][t]);
        }
    drop_all(e, m);
}

typedef struct actor {
    fm_seq *seq;
    int variant;
    uint32_t text;
} actor;

static uint32_t draw(uint64_t seed, uint64_t *n, uint32_t below)
{
    return (uint32_t)fm_rng_below(seed, 11, (*n)++, below);
}

static void step_of(world *w, fm_engine *e, actor *a, uint64_t seed, uint64_t *draws)
{
    fm_row row[120];
    const float *want[120];
    uint32_t n = 0;
    for (uint32_t k = 0; k < SEQS; k++) {
        uint32_t at = a[k].seq ? fm_seq_len(a[k].seq) : 0, rows = draw(seed, draws, 20);
        rows = a[k].seq ? FM_MIN(rows, LENGTH - at) : 0;
        for (uint32_t i = 0; i < rows; i++, n++) {
            want[n] = w->alone[a[k].variant][a[k].text] + (size_t)(at + i) * VOCAB;
            row[n] = (fm_row){a[k].seq, w->text[a[k].text][at + i], draw(seed, draws, 3) > 0};
        }
    }
    if (n == 0)
        return;
    tk_ok(fm_engine_step(e, row, n));
    for (uint32_t i = 0; i < n; i++)
        if (row[i].want_logits)
            assert_memory_equal(fm_engine_logits(e, i), want[i], VOCAB * sizeof(float));
}

/* Sequences of all variants begin, go on, are rewound and end at any time. */
static void mix(world *w, const char *mode, uint64_t seed)
{
    fm_model *m[VARIANTS];
    actor a[SEQS] = {{NULL, 0, 0}};
    uint64_t draws = 0;
    fm_engine *e = engine_of(mode, 128, 0);
    load_all(w, e, m);
    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t k = 0; k < SEQS; k++) {
            actor *x = &a[k];
            if (x->seq && (fm_seq_len(x->seq) == LENGTH || draw(seed, &draws, 20) == 0)) {
                fm_seq_close(x->seq);
                x->seq = NULL;
            }
            if (x->seq && draw(seed, &draws, 10) == 0)
                tk_ok(fm_seq_rewind(x->seq, draw(seed, &draws, fm_seq_len(x->seq) + 1)));
            if (x->seq || draw(seed, &draws, 3))
                continue;
            x->variant = (int)draw(seed, &draws, VARIANTS);
            x->text = draw(seed, &draws, TEXTS);
            x->seq = open_seq(m[x->variant], w->source[x->text], w->sources[x->text]);
        }
        step_of(w, e, a, seed, &draws);
    }
    for (uint32_t k = 0; k < SEQS; k++)
        fm_seq_close(a[k].seq);
    drop_all(e, m);
}

TEST(a_rows_bits_are_those_alone)
{
    static const char *const modes[] = {"exact", "fast"};
    for (size_t i = 0; i < 4; i++) {
        static world w;
        world_make(&w, i > 1);
        run_alone(&w, modes[i % 2]);
        assert_memory_not_equal(w.alone[BASE][0], w.alone[LORA][0], 1000);
        assert_memory_not_equal(w.alone[BASE][0], w.alone[TUNED][0], 1000);
        assert_memory_not_equal(w.alone[BASE][0], w.alone[BASE][1], 1000);
        for (uint64_t seed = 1; seed <= 4; seed++)
            mix(&w, modes[i % 2], seed);
        world_drop(&w);
    }
}

/* Answers of all variants through the scheduler: the same with pages for all and for a few. */
static uint64_t answers(world *w, uint64_t kv_bytes, uint32_t from, uint32_t count, int32_t *out)
{
    uint64_t steps = 0;
    fm_model *m[VARIANTS];
    fm_gen_request q[VARIANTS * TEXTS];
    fm_gen_result r[VARIANTS * TEXTS];
    fm_engine *e = engine_of("exact", 128, kv_bytes);
    load_all(w, e, m);
    const fmi_kv_pool *pool = fmi_priv(m[BASE])->geom->lane[0];
    uint64_t room = fmi_kv_room(pool);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t t = (from + i) / VARIANTS;
        q[i] = (fm_gen_request){.model = m[(from + i) % VARIANTS],
                                .prompt = w->source[t],
                                .prompt_len = w->sources[t],
                                .max_new = 50,
                                .ignore_eos = true};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.seed = from + i;
    }
    tk_ok(fm_generate(e, q, count, r));
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(r[i].finish, "length");
        assert_int_equal(r[i].count, 50);
        memcpy(out + (size_t)i * 50, r[i].tokens, 50 * sizeof(int32_t));
        fm_gen_result_release(&r[i]);
    }
    assert_int_equal(fmi_kv_room(pool), room); /* all pages came back */
    steps = fm_engine_stats_of(e).steps;
    drop_all(e, m);
    return steps;
}

TEST(answers_do_not_depend_on_room_or_neighbours)
{
    enum { ALL = VARIANTS * TEXTS };
    static int32_t all[ALL * 50], few[ALL * 50], one[50];
    static world w;
    world_make(&w, false);
    uint64_t steps = answers(&w, 0, 0, ALL, all);
    /* A page holds 32 positions of keys and values of 3 heads of 6 elements in a layer: here only a
     * few sequences have room at a time, and some lose theirs. */
    assert_in_range(answers(&w, 28 * 2 * 32 * 3 * 8 * sizeof(float), 0, ALL, few), 3 * steps,
                    1000000);
    assert_memory_equal(all, few, sizeof(all));
    for (uint32_t i = 0; i < ALL; i += 5) {
        (void)answers(&w, 0, i, 1, one);
        assert_memory_equal(one, all + (size_t)i * 50, sizeof(one));
    }
    world_drop(&w);
}

/* ==== refusals ==== */

TEST(wrong_use_is_refused)
{
    folder f;
    fm_seq *s = NULL;
    int32_t many[65] = {0};
    folder_open(&f, "t5", "exact");
    uint64_t bytes = fm_engine_stats_of(f.e).kv_bytes;
    tk_ok(fm_seq_open(&s, f.m));
    fm_row row = {s, 0, true};
    tk_fails(fm_engine_step(f.e, &row, 1), FM_EUNSUPPORTED, "t5 makes its text from a source");
    tk_fails(fm_seq_source(s, many, 0), FM_EINVAL, "the source is empty");
    tk_fails(fm_seq_source(s, many, 65), FM_ELIMIT, "at most 64 rows");
    many[3] = 48;
    tk_fails(fm_seq_source(s, many, 5), FM_EINVAL, "token 3 of the source is 48");
    assert_int_equal(fm_engine_stats_of(f.e).kv_bytes, bytes);
    tk_ok(fm_seq_source(s, f.source, f.sources));
    tk_fails(fm_seq_source(s, f.source, f.sources), FM_EINVAL, "one source");
    tk_ok(fm_engine_step(f.e, &row, 1));
    fm_seq_close(s);
    tk_ok(fm_seq_open(&s, f.m->source));
    tk_fails(fm_seq_source(s, many, 1), FM_EINVAL, "takes no source");
    fm_seq_close(s);
    folder_close(&f);
}

TEST(what_is_not_computed_is_refused_by_name)
{
    folder f;
    fm_arch local;
    fmi_stage_split split;
    fmt_net net;
    fm_model *m = NULL;
    folder_open(&f, "t5", "exact");
    const fm_arch *a = fm_model_arch(f.m);
    fm_provider p = fm_source_provider(f.src);
    tk_fails(fmi_shard_arch(&local, a, 2, "it"), FM_EUNSUPPORTED, "t5 are not split over ranks");
    tk_fails(fmi_stage_split_of(&split, a, 2, "it"), FM_EUNSUPPORTED, "not split over stages");
    tk_fails(fmt_net_init(&net, fm_engine_backend(f.e), a, f.m), FM_EUNSUPPORTED,
             "t5: training of an encoder and a decoder");
    fmt_net_release(&net);
    fm_engine_backend(f.e)->host_visible = false;
    tk_fails(fm_model_load(&m, f.e, fm_source_tree(f.src), &p, "it"), FM_EUNSUPPORTED,
             "attention to a source");
    fm_engine_backend(f.e)->host_visible = true;
    folder_close(&f);
}

/* Adapters on the shared embedding, and virtual tokens. */
TEST(adapters_of_the_beginning_are_refused)
{
    static const struct {
        const char *kind, *config, *tensor, *needle;
        uint64_t rows, cols;
    } no[] = {{"lora", "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}",
               "base_model.model.shared.lora_embedding_", "on the embedding", 3, 48},
              {"prompt", "{\"peft_type\":\"PROMPT_TUNING\",\"num_virtual_tokens\":4}",
               "prompt_embeddings", "virtual tokens", 4, 16}};
    for (size_t i = 0; i < FM_ARRAY_LEN(no); i++) {
        static world w;
        fm_model *m = NULL;
        char path[128], name[128];
        fm_engine *e = engine_of("exact", 64, 0);
        world_make(&w, false);
        fm_provider p = ik_provider(&w.mem);
        (void)snprintf(path, sizeof(path), "adapters/0-%s/adapter_config.json", no[i].kind);
        tk_ok(fm_tree_put_file(w.tree[BASE], path, fm_span_str(no[i].config)));
        (void)snprintf(path, sizeof(path), "adapters/0-%s/tensors", no[i].kind);
        (void)snprintf(name, sizeof(name), "%s%s", no[i].tensor, i ? "" : "A");
        vk_put(&w.mem, w.tree[BASE], path, name, 5, 2, no[i].rows, no[i].cols, 0.0, 1.0);
        (void)snprintf(name, sizeof(name), "%sB", no[i].tensor);
        if (i == 0)
            vk_put(&w.mem, w.tree[BASE], path, name, 6, 2, 16, 3, 0.0, 1.0);
        tk_fails(fm_model_load(&m, e, w.tree[BASE], &p, "it"), FM_EUNSUPPORTED, no[i].needle);
        fm_engine_free(e);
        world_drop(&w);
    }
}

/* Files may hold the embedding again for each stack; another one there is refused. */
TEST(copies_of_the_embedding_are_known)
{
    for (int other = 0; other < 2; other++) {
        static world w;
        fm_model *m = NULL;
        fm_engine *e = engine_of("exact", 64, 0);
        world_make(&w, false);
        fm_provider p = ik_provider(&w.mem);
        fm_buf path;
        fm_buf_init(&path, 0);
        tk_ok(fm_tensor_path(&path, "tensors", "shared.weight"));
        const fm_entry *of = fm_tree_find(w.tree[BASE], fm_buf_cstr(&path));
        assert_non_null(of);
        fm_buf_clear(&path);
        tk_ok(fm_tensor_path(&path, "tensors", "decoder.embed_tokens.weight"));
        if (other)
            vk_put(&w.mem, w.tree[BASE], "tensors", "decoder.embed_tokens.weight", 5, 2, 48, 16,
                   0.0, 1.0);
        else
            tk_ok(fm_tree_put_tensor(w.tree[BASE], fm_buf_cstr(&path),
                                     "decoder.embed_tokens.weight", of->dtype, &of->shape,
                                     &of->id));
        fm_buf_release(&path);
        if (other)
            tk_fails(fm_model_load(&m, e, w.tree[BASE], &p, "it"), FM_EUNSUPPORTED,
                     "decoder.embed_tokens.weight");
        else
            tk_ok(fm_model_load(&m, e, w.tree[BASE], &p, "it"));
        fm_model_close(m);
        fm_engine_free(e);
        world_drop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match),
        cmocka_unit_test(encoders_alone_match),
        cmocka_unit_test(vectors_are_the_encoders),
        cmocka_unit_test(adapters_match),
        cmocka_unit_test(scores_are_those_of_the_logits),
        cmocka_unit_test(a_rows_bits_are_those_alone),
        cmocka_unit_test(answers_do_not_depend_on_room_or_neighbours),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(what_is_not_computed_is_refused_by_name),
        cmocka_unit_test(adapters_of_the_beginning_are_refused),
        cmocka_unit_test(copies_of_the_embedding_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
