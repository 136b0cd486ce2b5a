/* ctest: card apart cuda_cost=40 */
/* Gradients of the families that the shared references lack, against sketches of Hugging Face's
 * (golden/make_grads.py); and that threads, recomputation and other children change no bit. */
#include "tests/model/infer_kit.h"
#include "train/pass/pass.h"

#include <math.h>

#define TOKENS 40u
#define SIGNS 4u
/* Float32 on both sides; the families of the shared references are within 1e-6 of theirs. Norms of
 * nearly nothing (a key's bias, which the softmax cancels) are held against 1 % of the largest. */
#define LIMIT 1e-5

static char *golden(const char *name, const char *file)
{
    return fm_asprintf("%s/tests/model/golden/%s%s", FM_SOURCE_DIR, name, file);
}

/* The signs of make_grads.py. */
static double sign(uint64_t i, uint32_t k)
{
    uint32_t x = (uint32_t)i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (x >> (7 * k)) & 1 ? -1.0 : 1.0;
}

static void sketch(double *out, const float *g, size_t n)
{
    memset(out, 0, (1 + SIGNS) * sizeof(*out));
    for (size_t i = 0; i < n; i++) {
        out[0] += (double)g[i] * (double)g[i];
        for (uint32_t k = 0; k < SIGNS; k++)
            out[1 + k] += sign(i, k) * (double)g[i];
    }
    out[0] = sqrt(out[0]);
}

static fm_json *open_sketches(void)
{
    char *path = golden("", "grads.json");
    fm_json *all = NULL;
    fm_buf text;

    fm_buf_init(&text, 0);
    tk_ok(fm_read_file(&text, path, (size_t)1 << 24));
    tk_ok(fm_json_parse(&all, fm_span_of(text.data, text.len), path));
    fm_buf_release(&text);
    fm_free(path);
    return all;
}

static double worst_of(const fm_train_result *g, const fm_json *want, const char *family)
{
    double worst = 0.0, largest = 0.0;

    for (size_t i = 0; i < g->count; i++)
        largest =
            fmax(largest, fm_json_real(fm_json_at(fm_json_get(want, g->tensors[i].name), 0), 0));
    for (size_t i = 0; i < g->count; i++) {
        const fm_trained *t = &g->tensors[i];
        const fm_json *ref = fm_json_get(want, t->name);
        double have[1 + SIGNS];
        if (!ref)
            fail_msg("%s: the reference has no %s", family, t->name);
        sketch(have, (const float *)(const void *)t->data, (size_t)t->bytes / sizeof(float));
        double norm = fm_json_real(fm_json_at(ref, 0), 0.0);
        for (uint32_t k = 0; k <= SIGNS; k++) {
            double diff = fabs(have[k] - fm_json_real(fm_json_at(ref, k), NAN));
            double part = diff / fmax(norm, 1e-2 * largest);
            if (!(part <= LIMIT))
                fail_msg("%s: %s, part %u is %g, not %g (norm %g)", family, t->name, k, have[k],
                         fm_json_real(fm_json_at(ref, k), NAN), norm);
            worst = fmax(worst, part);
        }
    }
    return worst;
}

static bool among(const char *family, const char *const *list, size_t n)
{
    bool found = false;
    for (size_t i = 0; i < n; i++)
        found = found || strcmp(list[i], family) == 0;
    return found;
}

static const char *const recurrent[] = {"lfm2",
                                        "lfm2-plain",
                                        "lfm2_moe",
                                        "mamba",
                                        "mamba2",
                                        "mamba2-plain",
                                        "bamba",
                                        "nemotron_h",
                                        "granitemoehybrid",
                                        "granitemoehybrid-rope",
                                        "granitemoehybrid-experts",
                                        "qwen3_next",
                                        "qwen3_5",
                                        "qwen3_5_moe"};

/* A device without biases by distance, or without gradients of recurrences, refuses these families
 * (tests/model/infer_golden.c). */
static bool lacks(const char *family)
{
    static const char *const near[] = {
        "bloom", "mpt", "mpnet", "gemma3-both-ways", "modernbert", "modernbert-biases"};
    bool biased = among(family, near, FM_ARRAY_LEN(near));
    bool recurs = among(family, recurrent, FM_ARRAY_LEN(recurrent));
    if (!biased && !recurs)
        return false;
    fm_engine *e = ik_engine(1, 64);
    const fm_backend *be = fm_engine_backend(e);
    bool missing = biased
                       ? !(be->attends & FM_ATTENDS_TRAIN_BIAS)
                       : !be->convolve || !be->convolve_grad || !be->scan_grad || !be->delta_grad;
    fm_engine_free(e);
    return missing;
}

static void check_family(const char *family, const fm_json *ref)
{
    if (lacks(family))
        return;
    char *dir = golden("arch/", family);
    char *file = fm_asprintf("%s/ref.safetensors", dir);
    int32_t labels[TOKENS];
    double loss = 0.0;
    ik_ref ids_of = {NULL};
    fm_source *src = NULL;
    fm_train_result g;
    fm_engine *e = ik_engine(2, 64);

    tk_ok(fm_source_open(&ids_of.src, file));
    tk_ok(fm_source_open(&src, dir));
    fm_provider p = fm_source_provider(src);
    int32_t *ids = ik_ref_get(&ids_of, "input_ids", NULL);
    for (uint32_t i = 0; i < TOKENS; i++)
        labels[i] = i < 5 ? -100 : ids[i];
    fm_status rc =
        fm_train_gradients(e, fm_source_tree(src), &p, ids, labels, 1, TOKENS, &loss, &g);
    if (strncmp(family, "gpt_oss", 7) == 0 &&
        !(fm_engine_backend(e)->attends & FM_ATTENDS_TRAIN_SINK)) {
        tk_fails(rc, FM_EUNSUPPORTED, "sinks"); /* and counts no tensors */
        goto done;
    }
    tk_ok(rc);
    double want = fm_json_real(fm_json_get(ref, "loss"), NAN);
    tk_assert_le(fabs(loss - want), 1e-5, family);
    assert_int_equal(g.count, fm_json_count(fm_json_get(ref, "tensors")));
    print_message("%s: loss %.6f, %zu tensors, worst %.2g\n", family, loss, g.count,
                  worst_of(&g, fm_json_get(ref, "tensors"), family));
    fm_train_result_release(&g);
done:
    fm_free(ids);
    fm_free(dir);
    fm_free(file);
    fm_source_close(src);
    fm_source_close(ids_of.src);
    fm_engine_free(e);
}

TEST(gradients_of_every_family_equal_hugging_faces)
{
    fm_json *all = open_sketches();

    static const char *const families[] = {"gemma2",
                                           "gemma3-linear",
                                           "gpt_neox",
                                           "gpt_neox-sequential",
                                           "granite",
                                           "llama-dynamic",
                                           "llama-gelu",
                                           "llama-yarn",
                                           "llama-yarn-mscale",
                                           "llama-linear",
                                           "olmo2",
                                           "phi3",
                                           "qwen2_moe",
                                           "qwen2-mixed",
                                           "qwen3_moe",
                                           "phi3-longrope",
                                           "smollm3",
                                           "stablelm",
                                           "starcoder2",
                                           "gemma",
                                           "gemma-untied",
                                           "ministral",
                                           "ministral3",
                                           "ministral3-long",
                                           "mistral3",
                                           "qwen2_5_vl",
                                           "olmo3",
                                           "olmoe",
                                           "exaone4",
                                           "seed_oss",
                                           "internlm3",
                                           "olmo",
                                           "cohere",
                                           "cohere-untied",
                                           "cohere2",
                                           "glm",
                                           "glm4",
                                           "ernie4_5",
                                           "helium",
                                           "hunyuan_v1_dense",
                                           "arcee",
                                           "nemotron",
                                           "phi",
                                           "phi-tied",
                                           "gptj",
                                           "gpt_bigcode",
                                           "gpt_bigcode-heads",
                                           "opt",
                                           "falcon",
                                           "falcon-groups",
                                           "falcon-groups-one-norm",
                                           "vaultgemma",
                                           "jais2",
                                           "hyperclovax",
                                           "hyperclovax-plain",
                                           "falcon-heads",
                                           "glm4_moe",
                                           "dots1",
                                           "minimax_m2",
                                           "ernie4_5_moe",
                                           "gpt_oss",
                                           "bloom",
                                           "mpt",
                                           "nanochat",
                                           "apertus",
                                           "phimoe",
                                           "granitemoe",
                                           "granitemoeshared",
                                           "lfm2",
                                           "lfm2-plain",
                                           "lfm2_moe",
                                           "mamba",
                                           "mamba2",
                                           "mamba2-plain",
                                           "bamba",
                                           "nemotron_h",
                                           "granitemoehybrid",
                                           "granitemoehybrid-rope",
                                           "granitemoehybrid-experts",
                                           "qwen3_next",
                                           "qwen3_5",
                                           "qwen3_5_moe"};
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++)
        check_family(families[i], fm_json_get(all, families[i]));
    assert_int_equal(FM_ARRAY_LEN(families) + 8, fm_json_count(all)); /* and the encoders below */
    fm_json_free(all);
}

/* ---- an encoder: the loss is the sum of its last states with a pattern of signs ---- */
static void declare_all(fmt_net *net, fmt_params *ps)
{
    fm_param p;

    for (uint32_t i = 0; fm_arch_param(&net->arch, i, &p); i++)
        if (p.place == FM_P_BUCKETS)
            tk_fails(fmt_net_train(net, ps, p.name, &p.shape, p.name), FM_EUNSUPPORTED, "freeze");
        else
            tk_ok(fmt_net_train(net, ps, p.name, &p.shape, p.name));
    tk_ok(fmt_params_alloc(ps, net->be, false));
    tk_ok(fmt_net_bind(net, ps, false));
}

/* The text between two others: rows are not the first ones, and sequences do not see each other. */
static void encoder_pass(fmt_lane *lane, const int32_t *ids, size_t n, double *loss)
{
    fmt_net *net = lane->net;
    uint32_t h = net->arch.hidden, before = 9;
    int32_t none[TOKENS], other[TOKENS];
    const fmt_batch_how how = {.vocab = net->arch.vocab, .whole = true};
    const fmt_seq_in in[] = {
        {other, none, before}, {ids, none, (uint32_t)n}, {other + before, none, 17}};
    fmt_pass *pass = NULL;

    for (uint32_t i = 0; i < TOKENS; i++) {
        none[i] = -100;
        other[i] = (int32_t)(3 + i);
    }
    fmt_size_grow(&lane->most, in, 3, &how);
    fmt_pass_size cap = lane->most;
    cap.labels = 1;
    tk_ok(fmt_pass_new(&pass, net->be, &lane, 1, &cap, false));
    tk_ok(fmt_batch_build(&lane->batch, in, 3, &how));
    tk_ok(fmt_pass_run(pass, &lane, 1)); /* nothing is labelled: the gradient is 0 */
    fmt_params_zero_grad(lane->ps);
    size_t floats = (size_t)lane->batch.rows * h;
    float *dx = fm_calloc(floats, sizeof(float)), *x = fm_calloc(floats, sizeof(float));
    assert_true(dx && x);
    tk_ok(net->be->download(net->be, x, pass->xout, floats * sizeof(float)));
    *loss = 0.0;
    for (size_t i = 0; i < n * h; i++) {
        dx[before * h + i] = (float)sign(i, 0);
        *loss += sign(i, 0) * (double)x[before * h + i];
    }
    tk_ok(net->be->upload(net->be, pass->dx, dx, floats * sizeof(float)));
    fm_free(dx);
    fm_free(x);
    tk_ok(fmt_layers_backward(pass));
    fmt_embed_backward(pass);
    tk_ok(net->be->sync(net->be));
    fmt_batch_release(&lane->batch);
    net->be->free(net->be, lane->mem);
    fmt_pass_free(pass);
}

static void check_encoder(const char *family)
{
    if (lacks(family))
        return;
    char *dir = golden("arch/", family), *file = fm_asprintf("%s/ref.safetensors", dir);
    fm_json *all = open_sketches();
    const fm_json *want = fm_json_get(all, family);
    fm_engine *e = ik_engine(2, 64);
    ik_ref ids_of = {NULL};
    fm_source *src = NULL;
    fmt_net net;
    fmt_params ps = {0};
    fm_train_result g = {0};
    double loss = 0.0;
    size_t n = 0;

    tk_ok(fm_source_open(&ids_of.src, file));
    tk_ok(fm_source_open(&src, dir));
    fm_model *m = ik_model(e, src, family);
    int32_t *ids = ik_ref_get(&ids_of, "input_ids", &n);
    tk_ok(fmt_net_init(&net, fm_engine_backend(e), fm_model_arch(m), m));
    declare_all(&net, &ps);
    fmt_lane lane = {.net = &net, .ps = &ps, .objective = &fmt_next_token};
    encoder_pass(&lane, ids, n, &loss);
    double ref = fm_json_real(fm_json_get(want, "loss"), NAN);
    tk_assert_le(fabs(loss - ref), 1e-5 * sqrt((double)n * net.arch.hidden), "loss");
    tk_ok(fmt_params_result(&ps, ps.g, FM_F32, fm_source_tree(src), &g));
    assert_int_equal(g.count, fm_json_count(fm_json_get(want, "tensors")));
    print_message("%s: loss %.6f, %zu tensors, worst %.2g\n", family, loss, g.count,
                  worst_of(&g, fm_json_get(want, "tensors"), family));
    fm_train_result_release(&g);
    fmt_params_release(&ps);
    fmt_net_release(&net);
    fm_model_close(m);
    fm_free(ids);
    fm_json_free(all);
    fm_source_close(src);
    fm_source_close(ids_of.src);
    fm_engine_free(e);
    fm_free(dir);
    fm_free(file);
}

static const char *const encoders[] = {
    "roberta", "distilbert",       "electra",    "nomic_bert",
    "mpnet",   "gemma3-both-ways", "modernbert", "modernbert-biases"};

TEST(gradients_of_encoders_equal_hugging_faces)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(encoders); i++)
        check_encoder(encoders[i]);
}

/* ---- bits ---- */
typedef struct tiny {
    fm_source *src;
    fm_provider p;
    int32_t ids[2 * TOKENS * 3], labels[2 * TOKENS * 3];
} tiny;

static void tiny_open(tiny *t, const char *family)
{
    char *dir = golden("arch/", family);

    tk_ok(fm_source_open(&t->src, dir));
    t->p = fm_source_provider(t->src);
    for (uint32_t i = 0; i < FM_ARRAY_LEN(t->ids); i++) {
        t->ids[i] = (int32_t)(3 + (i * 7 + i / 40 * 5) % 45);
        t->labels[i] = i % TOKENS < 3 || i % 11 == 0 ? -100 : t->ids[i];
    }
    fm_free(dir);
}

static fm_train_job tiny_job(const tiny *t, fm_method method, double lr)
{
    fm_train_job j = {.name = "tiny",
                      .config = fm_train_defaults(method),
                      .parent = fm_source_tree(t->src),
                      .batch_ids = t->ids,
                      .batch_labels = t->labels};

    j.config.r = 4;
    j.config.alpha = 8;
    j.config.lr = lr;
    j.config.steps = 3;
    j.config.batch = 2;
    j.config.max_tokens = TOKENS;
    return j;
}

static void same_bits(const fm_train_result *a, const fm_train_result *b)
{
    assert_int_equal(a->count, b->count);
    assert_true(a->count > 0);
    for (size_t i = 0; i < a->count; i++)
        if (a->tensors[i].bytes != b->tensors[i].bytes ||
            memcmp(a->tensors[i].data, b->tensors[i].data, (size_t)a->tensors[i].bytes) != 0)
            fail_msg("%s differs", a->tensors[i].name);
}

/* A full fine-tune and two adapters in one pass on two threads, each alone on one, and with
 * recomputation. */
static void check_bits(const char *family)
{
    if (lacks(family))
        return;
    tiny t;
    fm_train_result together[3];

    tiny_open(&t, family);
    fm_train_job job[3] = {tiny_job(&t, FM_METHOD_LORA, 1e-3), tiny_job(&t, FM_METHOD_FULL, 1e-4),
                           tiny_job(&t, FM_METHOD_LORA, 3e-3)};
    job[2].config.r = 2;
    fm_engine *e = ik_engine(2, 64);
    tk_ok(fm_train_run(e, &t.p, job, 3, together, NULL, NULL));
    fm_engine_free(e);
    for (unsigned k = 0; k < 4; k++) {
        fm_train_result alone;
        fm_train_job one = job[k % 3];
        one.recompute = k > 1;
        e = ik_engine(k % 2 + 1, 64);
        tk_ok(fm_train_run(e, &t.p, &one, 1, &alone, NULL, NULL));
        same_bits(&together[k % 3], &alone);
        fm_train_result_release(&alone);
        fm_engine_free(e);
    }
    for (int k = 0; k < 3; k++)
        fm_train_result_release(&together[k]);
    fm_source_close(t.src);
}

/* ---- sequences of one batch ---- */
static void gradients_of(fm_engine *e, const tiny *t, const int32_t *ids, const int32_t *labels,
                         uint32_t seqs, double *loss, fm_train_result *g)
{
    tk_ok(fm_train_gradients(e, fm_source_tree(t->src), &t->p, ids, labels, seqs, TOKENS, loss, g));
}

static uint32_t targets_of(const int32_t *labels)
{
    uint32_t n = 0;
    for (uint32_t i = 1; i < TOKENS; i++)
        n += labels[i] >= 0;
    return n;
}

/* The gradient of two sequences is the mean of theirs, by their targets. */
static void check_apart(const char *family)
{
    if (lacks(family))
        return;
    tiny t;
    fm_train_result both, one[2];
    double loss[3], all = 0.0;
    uint32_t n[2];

    tiny_open(&t, family);
    fm_engine *e = ik_engine(2, 64);
    gradients_of(e, &t, t.ids, t.labels, 2, &loss[2], &both);
    for (uint32_t k = 0; k < 2; k++) {
        n[k] = targets_of(t.labels + k * TOKENS);
        gradients_of(e, &t, t.ids + k * TOKENS, t.labels + k * TOKENS, 1, &loss[k], &one[k]);
        all += loss[k] * n[k];
    }
    tk_assert_le(fabs(all / (n[0] + n[1]) - loss[2]), 1e-6, family);
    for (size_t i = 0; i < both.count; i++) {
        size_t floats = (size_t)both.tensors[i].bytes / sizeof(float);
        const float *x = (const float *)(const void *)one[0].tensors[i].data,
                    *y = (const float *)(const void *)one[1].tensors[i].data;
        float *want = fm_calloc(floats, sizeof(float));
        assert_non_null(want);
        for (size_t k = 0; k < floats; k++)
            want[k] = (x[k] * (float)n[0] + y[k] * (float)n[1]) / (float)(n[0] + n[1]);
        tk_assert_le(tk_rel_norm((const float *)(const void *)both.tensors[i].data, want, floats),
                     1e-4, both.tensors[i].name);
        fm_free(want);
    }
    fm_train_result_release(&both);
    fm_train_result_release(&one[0]);
    fm_train_result_release(&one[1]);
    fm_engine_free(e);
    fm_source_close(t.src);
}

TEST(sequences_of_a_batch_do_not_go_on_from_each_other)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(recurrent); i++)
        check_apart(recurrent[i]);
}

/* What has no gradient here is refused by name where it would have to train. */
TEST(numbers_of_an_activation_do_not_train)
{
    tiny t;
    fm_train_result r;

    tiny_open(&t, "apertus");
    fm_engine *e = ik_engine(1, 64);
    fm_train_job full = tiny_job(&t, FM_METHOD_FULL, 1e-4),
                 lora = tiny_job(&t, FM_METHOD_LORA, 1e-3);
    tk_fails(fm_train_run(e, &t.p, &full, 1, &r, NULL, NULL), FM_EUNSUPPORTED, "xIELU");
    tk_ok(fm_train_run(e, &t.p, &lora, 1, &r, NULL, NULL));
    assert_true(r.count > 0);
    fm_train_result_release(&r);
    fm_engine_free(e);
    fm_source_close(t.src);
}

static void check_refused(const char *family, fm_method method, const char *targets,
                          fm_status status, const char *needle)
{
    if (lacks(family))
        return;
    tiny t;
    fm_train_result r;

    tiny_open(&t, family);
    fm_engine *e = ik_engine(1, 64);
    fm_train_job j = tiny_job(&t, method, 1e-3);
    j.config.virtual_tokens = 3;
    if (targets)
        (void)snprintf(j.config.targets, sizeof(j.config.targets), "%s", targets);
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), status, needle);
    fm_engine_free(e);
    fm_source_close(t.src);
}

/* Virtual tokens would have to leave a state; some of Mamba's products are past their modules. */
TEST(what_recurrent_layers_cannot_have_is_refused_by_name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(recurrent); i++) {
        check_refused(recurrent[i], FM_METHOD_PREFIX, NULL, FM_EUNSUPPORTED, "recurrent layers");
        check_refused(recurrent[i], FM_METHOD_PROMPT, NULL, FM_EUNSUPPORTED, "recurrent layers");
    }
    check_refused("mamba", FM_METHOD_LORA, "dt_proj", FM_EBASE, "no module 'dt_proj'");
    check_refused("mamba", FM_METHOD_LORA, "out_proj", FM_EBASE, "no module 'out_proj'");
    check_refused("mamba2", FM_METHOD_LORA, "out_proj", FM_EBASE, "no module 'out_proj'");
}

/* Value i of the tensor whose name ends so; results are BF16, as the parent's file. */
static double value_of(const fm_train_result *r, const char *end, size_t i)
{
    for (size_t k = 0; k < r->count; k++) {
        const fm_trained *t = &r->tensors[k];
        const char *at = strstr(t->name, end);
        if (!at || strcmp(at, end) != 0)
            continue;
        assert_int_equal(t->dtype, FM_BF16);
        uint32_t bits = (uint32_t)((const uint16_t *)(const void *)t->data)[i] << 16;
        float v;
        memcpy(&v, &bits, sizeof(v));
        return (double)v;
    }
    fail_msg("no %s", end);
    return NAN;
}

/* Rates of a state that forgets at once, or steps of nothing, would not learn. */
TEST(pretraining_begins_states_as_transformers_does)
{
    static const char *const names[] = {"mamba", "mamba2", "qwen3_5"};
    for (size_t f = 0; f < FM_ARRAY_LEN(names); f++) {
        if (lacks(names[f]))
            continue;
        tiny t;
        fm_train_result r;
        tiny_open(&t, names[f]);
        fm_engine *e = ik_engine(1, 64);
        fm_train_job j = tiny_job(&t, FM_METHOD_PRETRAIN, 1e-9);
        tk_ok(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL));
        for (uint32_t i = 0; i < 2; i++) {
            double rate = value_of(&r, ".A_log", i);
            double bias = value_of(&r, f == 0 ? ".dt_proj.bias" : ".dt_bias", i);
            if (f < 2) {
                tk_assert_le(fabs(rate - log(i + 1.0)), 1e-2, names[f]);
                assert_true(log1p(exp(bias)) > 0.00098 && log1p(exp(bias)) < 0.102);
                assert_true(value_of(&r, ".D", i) > 0.99);
            } else {
                assert_true(rate < 2.78 && fabs(bias - 1.0) < 1e-2);
                assert_true(value_of(&r, "linear_attn.norm.weight", i) > 0.99);
            }
        }
        fm_train_result_release(&r);
        fm_engine_free(e);
        fm_source_close(t.src);
    }
}

/* Layers that share parameters, and embeddings of another width, have no gradients here. */
TEST(what_does_not_train_is_refused_by_name)
{
    static const struct {
        const char *family, *needle;
    } no[] = {{"albert", "albert: training of layers that share their parameters"},
              {"llama4", "llama4_text: training of attention in chunks"},
              {"electra-small", "electra: training of embeddings of another width"},
              {"gemma4", "gemma4_text: training of layers with heads or inputs of their own"},
              {"bitnet", "bitnet: training of norms before the last product"},
              {"llama-bitnet", "llama: training of products with rounded inputs"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(no); i++) {
        char *dir = golden("arch/", no[i].family);
        fm_source *src = NULL;
        fmt_net net;
        tk_ok(fm_source_open(&src, dir));
        fm_engine *e = ik_engine(1, 64);
        fm_model *m = ik_model(e, src, no[i].family);
        tk_fails(fmt_net_init(&net, fm_engine_backend(e), fm_model_arch(m), m), FM_EUNSUPPORTED,
                 no[i].needle);
        fmt_net_release(&net);
        fm_model_close(m);
        fm_engine_free(e);
        fm_source_close(src);
        fm_free(dir);
    }
}

TEST(children_of_every_family_equal_those_trained_alone)
{
    static const char *const families[] = {
        /* clang-format off */
        "gemma2", "gpt_neox", "granite", "olmo2", "phi3", "qwen2_moe", "qwen3_moe",
        "smollm3", "stablelm", "mistral3", "olmoe", "exaone4", "cohere", "glm4",
        "hunyuan_v1_dense", "nemotron", "phi", "gptj", "opt", "falcon-groups", "falcon",
        "glm4_moe", "bloom", "ernie4_5_moe", "nanochat", "lfm2", "mamba", "bamba",
        "granitemoehybrid", "qwen3_next", "qwen3_5", "nemotron_h"
        /* clang-format on */
    };
    const char *each = getenv("FM_EACH"); /* every n-th alone; all where unset */

    for (size_t i = 0; i < FM_ARRAY_LEN(families); i += each ? strtoul(each, NULL, 10) : 1)
        check_bits(families[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_every_family_equal_hugging_faces),
        cmocka_unit_test(gradients_of_encoders_equal_hugging_faces),
        cmocka_unit_test(sequences_of_a_batch_do_not_go_on_from_each_other),
        cmocka_unit_test(numbers_of_an_activation_do_not_train),
        cmocka_unit_test(what_recurrent_layers_cannot_have_is_refused_by_name),
        cmocka_unit_test(pretraining_begins_states_as_transformers_does),
        cmocka_unit_test(what_does_not_train_is_refused_by_name),
        cmocka_unit_test(children_of_every_family_equal_those_trained_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
