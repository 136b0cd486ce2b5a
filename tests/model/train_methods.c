/* ctest: card=long apart */
/* train_methods.c - what has no reference outside: gradients by differences of losses, methods of
 * any mix in one pass, resumes, frozen parts, parents that carry adapters, quantized stems. */
#include "tests/model/checkpoint_kit.h"
#include "tests/model/train_kit.h"

#include <math.h>

#include "infer/model.h"
#include "store/quant/quantize.h"
#include "store/scaled.h"

#define WIDTH 24u
#define STEPS 4u

typedef struct tiny { /* a base and the batches of its reference, another one in every step */
    fm_source *src;
    fm_provider p;
    int32_t *ids, *labels;
} tiny;

static void tiny_open(tiny *t, const char *base)
{
    char path[64];
    ik_ref ref;
    size_t n = (size_t)2 * WIDTH;

    (void)snprintf(path, sizeof(path), "arch/%s/ref.safetensors", base);
    assert_true(ik_ref_open(&ref, path));
    (void)snprintf(path, sizeof(path), "arch/%s", base);
    t->src = ik_source(path);
    t->p = fm_source_provider(t->src);
    int32_t *ids = ik_ref_get(&ref, "input_ids", NULL);
    int32_t *labels = ik_ref_get(&ref, "labels", NULL);
    t->ids = fm_malloc(n * STEPS * sizeof(int32_t));
    t->labels = fm_malloc(n * STEPS * sizeof(int32_t));
    assert_true(t->ids && t->labels);
    for (size_t i = 0; i < n * STEPS; i++) {
        t->ids[i] = (int32_t)((size_t)ids[i % n] + i / n * 7) % 160;
        t->labels[i] = labels[i % n] < 0 ? -100 : t->ids[i];
    }
    fm_free(ids);
    fm_free(labels);
    fm_source_close(ref.src);
}

static void tiny_close(tiny *t)
{
    fm_source_close(t->src);
    fm_free(t->ids);
    fm_free(t->labels);
}

static fm_train_job job_of(const tiny *t, const char *settings)
{
    char text[512];
    char *rest = NULL;
    fm_train_job j = {.name = settings,
                      .parent = fm_source_tree(t->src),
                      .batch_ids = t->ids,
                      .batch_labels = t->labels};

    j.config = fm_train_defaults(strstr(settings, "method=ia3") ? FM_METHOD_IA3 : FM_METHOD_LORA);
    j.config.lr = 2e-3;
    j.config.steps = STEPS;
    j.config.batch = 2;
    j.config.max_tokens = WIDTH;
    j.config.schedule = FM_SCHEDULE_COSINE;
    (void)snprintf(text, sizeof(text), "%s", settings);
    for (char *one = strtok_r(text, " ", &rest); one; one = strtok_r(NULL, " ", &rest)) {
        char *eq = strchr(one, '=');
        assert_non_null(eq);
        *eq = '\0';
        tk_ok(fm_train_config_set(&j.config, one, eq + 1));
    }
    return j;
}

/* A result as a tree: its adapter at prefix ("adapters/0-x") of a copy of base (NULL: alone). */
static fm_tree *tree_of(const fm_train_result *r, const fm_tree *base, const char *prefix,
                        ik_mem *mem)
{
    fm_tree *t = NULL;
    char path[96];
    fm_buf text;

    if (base)
        tk_ok(fm_tree_copy(&t, base));
    else
        tk_ok(fm_tree_new(&t));
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, r->adapter_config, FM_JSON_PRETTY));
    (void)snprintf(path, sizeof(path), "%s/adapter_config.json", prefix);
    tk_ok(fm_tree_put_file(t, path, fm_buf_span(&text)));
    (void)snprintf(path, sizeof(path), "%s/tensors", prefix);
    for (size_t i = 0; i < r->count; i++) {
        float *f = fm_memdup(r->tensors[i].data, (size_t)r->tensors[i].bytes);
        ik_put(mem, t, path, r->tensors[i].name, f, r->tensors[i].shape.rank,
               r->tensors[i].shape.dim[0], r->tensors[i].shape.dim[1]);
        fm_free(f);
    }
    fm_buf_release(&text);
    return t;
}

static const fm_trained *find(const fm_train_result *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->tensors[i].name, name) == 0)
            return &r->tensors[i];
    return NULL;
}

/* ---- gradients ---- */
typedef struct probe { /* a job that begins at values of our own */
    fm_engine *e;
    const fm_provider *p;
    fm_train_job job;
} probe;

/* One step from the values of at (those of r where NULL): its loss, and what it made of them. */
static double step_from(const probe *b, const fm_train_result *r, fm_train_result *out)
{
    ik_mem *mem = fm_calloc(1, sizeof(*mem));
    fm_train_job j = b->job;
    fm_train_result own;

    assert_non_null(mem);
    fm_tree *init = tree_of(r, NULL, "adapters/0-x", mem);
    fm_provider p = ik_provider(mem);
    j.init = init;
    j.init_provider = &p;
    tk_ok(fm_train_run(b->e, b->p, &j, 1, &own, NULL, NULL));
    double loss = kit_log(&own, 0, "loss");
    if (out)
        *out = own;
    else
        fm_train_result_release(&own);
    fm_tree_free(init);
    ik_mem_free(mem);
    fm_free(mem);
    return loss;
}

static double norm_of(const double *g, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += g[i] * g[i];
    return sqrt(sum);
}

/* Along its own gradient a loss climbs as fast as that gradient is long. */
static void check_tensor(const probe *b, const fm_train_result *at, size_t k, const double *g)
{
    const fm_trained *t = &at->tensors[k];
    size_t n = (size_t)t->bytes / sizeof(float);
    float *v = (float *)(void *)t->data;
    float *keep = fm_memdup(t->data, (size_t)t->bytes);
    double length = norm_of(g, n);
    double h = 4e-3 / (length > 1e-2 ? length : 1e-2);
    static const double place[] = {-2.0, -1.0, 1.0, 2.0};
    double loss[4];

    for (size_t side = 0; side < 4; side++) {
        for (size_t i = 0; i < n; i++)
            v[i] = (float)((double)keep[i] + place[side] * h * g[i]);
        loss[side] = step_from(b, at, NULL);
    }
    memcpy(v, keep, (size_t)t->bytes);
    double slope = (8.0 * (loss[2] - loss[1]) - (loss[3] - loss[0])) / (12.0 * h) / length;
    tk_assert_le(fabs(slope / length - 1.0), 2e-3, t->name);
    fm_free(keep);
}

/* Every tensor's gradient, read off one AdamW step: with eps = 1 and no decay it moves a value by
 * lr g / (|g| + 1). */
static void check_gradients(probe *b, const char *what)
{
    fm_train_result at;
    fm_train_result after;
    double largest = 0.0;
    size_t checked = 0;

    tk_ok(fm_train_run(b->e, b->p, &b->job, 1, &at, NULL, NULL));
    b->job.config.steps = 1;
    b->job.config.lr = 1.0;
    b->job.config.eps = 1.0;
    b->job.config.weight_decay = 0;
    b->job.config.clip = 0;
    b->job.config.loraplus = 1.0;
    b->job.config.schedule = FM_SCHEDULE_CONSTANT;
    (void)step_from(b, &at, &after);
    double **g = fm_calloc(at.count, sizeof(*g));
    assert_non_null(g);
    for (size_t k = 0; k < at.count; k++) {
        size_t n = (size_t)at.tensors[k].bytes / sizeof(float);
        const float *from = (const float *)(const void *)at.tensors[k].data;
        const fm_trained *moved = find(&after, at.tensors[k].name);
        assert_non_null(moved);
        const float *to = (const float *)(const void *)moved->data;
        g[k] = fm_calloc(n, sizeof(double));
        for (size_t i = 0; i < n; i++) {
            double u = (double)from[i] - (double)to[i];
            g[k][i] = u / (1.0 - fabs(u));
        }
        double length = norm_of(g[k], n);
        largest = length > largest ? length : largest;
    }
    for (size_t k = 0; k < at.count; k++) {
        size_t n = (size_t)at.tensors[k].bytes / sizeof(float);
        const char *name = at.tensors[k].name;
        bool factor = strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
        /* DoRA's factors move the norm, too, which is a constant of their gradient */
        bool slope = !b->job.config.dora || !factor;
        if (slope && norm_of(g[k], n) > 0.02 * largest) {
            check_tensor(b, &at, k, g[k]);
            checked++;
        }
        fm_free(g[k]);
    }
    assert_true(checked > 0);
    print_message("%s: %zu of %zu tensors\n", what, checked, at.count);
    fm_free(g);
    fm_train_result_release(&after);
    fm_train_result_release(&at);
}

TEST(gradients_are_the_slopes_of_the_loss)
{
    static const char *const settings[] = {
        "r=3 dropout=0.4 lr=0.02",
        "r=3 dropout=0.4 lr=0.02 targets=q_proj,lm_head,embed_tokens",
        "r=3 bias=all lr=0.02",
        "r=2 dora=true lr=0.02 bias=all targets=q_proj,down_proj modules_to_save=model.norm",
        "r=2 dora=true dropout=0.3 lr=0.02 targets=q_proj,o_proj,up_proj,down_proj bias=all "
        "modules_to_save=embed_tokens",
        "r=2 rank_pattern=q_proj=5,v_proj=3 alpha_pattern=o_proj=31 lr=0.02",
        "method=ia3 targets=all-linear feedforward=q_proj,o_proj,down_proj lr=0.05",
        "method=prefix virtual_tokens=3",
        "method=prompt virtual_tokens=3",
    };
    tiny t;
    probe b = {.e = ik_engine(2, 64)};

    tiny_open(&t, "qwen2");
    b.p = &t.p;
    for (size_t i = 0; i < FM_ARRAY_LEN(settings); i++) {
        b.job = job_of(&t, settings[i]);
        check_gradients(&b, settings[i]);
    }
    tiny_close(&t);
    fm_engine_free(b.e);
}

/* ---- parents that carry an adapter ---- */
static const struct {
    const char *kind, *fits, *refused;
} stacked[] = {
    {"+embedding", "r=2 lr=0.02 targets=q_proj,embed_tokens dropout=0.2", NULL},
    {"lora", "r=2 lr=0.02 dropout=0.3", "method=loha targets=q_proj"},
    {"dora", "r=2 lr=0.02 targets=lm_head,embed_tokens", "r=2 targets=q_proj"},
    {"ia3", "r=2 lr=0.02 targets=q_proj,gate_proj,o_proj", "r=2 targets=v_proj"},
    {"prefix", "r=2 lr=0.02", "method=prompt virtual_tokens=2"},
    {"prompt", "r=2 lr=0.02 targets=all-linear", "method=prefix virtual_tokens=2"},
    {"prompt", "r=2 lr=0.02 targets=v_proj,embed_tokens", "r=2 targets=nothing"},
};

/* The reference's own sequences, of any width, in every step. */
static void take_batch(tiny *t, const ik_ref *ref)
{
    size_t n = 0;
    int32_t *ids = ik_ref_get(ref, "input_ids", &n);
    int32_t *labels = ik_ref_get(ref, "labels", NULL);

    for (size_t i = 0; i < (size_t)2 * WIDTH * STEPS; i++) {
        size_t column = i % WIDTH;
        size_t row = i / WIDTH % 2;
        t->ids[i] = column < n / 2 ? ids[row * (n / 2) + column] : 0;
        t->labels[i] = column < n / 2 ? labels[row * (n / 2) + column] : -100;
    }
    fm_free(ids);
    fm_free(labels);
}

static void check_stacked(fm_engine *e, size_t i)
{
    char path[128];
    ik_mem mem = {0};
    ik_ref ref;
    fm_tree *both = NULL;
    tiny t;
    fm_train_result r;

    tiny_open(&t, "llama");
    if (stacked[i].kind[0] == '+')
        (void)snprintf(path, sizeof(path), "tests/model/golden/train/lora-%s", stacked[i].kind + 1);
    else
        (void)snprintf(path, sizeof(path), "arch/llama/peft/%s", stacked[i].kind);
    char *folder = stacked[i].kind[0] == '+' ? tk_source(path) : tk_shared(path);
    char *file = fm_path_join(folder, "ref.safetensors");
    fm_source *adapter = NULL;
    tk_ok(fm_source_open(&ref.src, file));
    tk_ok(fm_source_open(&adapter, folder));
    take_batch(&t, &ref);
    tk_ok(fm_adapter_apply(&both, fm_source_tree(t.src), fm_source_tree(adapter), "llama", NULL));
    mem.behind[0] = t.p;
    mem.behind[1] = fm_source_provider(adapter);
    mem.behind_count = 2;
    fm_provider p = ik_provider(&mem);
    probe b = {.e = e, .p = &p, .job = job_of(&t, stacked[i].fits)};
    b.job.parent = both;
    float *loss = ik_ref_get(&ref, "loss", NULL);
    tk_ok(fm_train_run(e, &p, &b.job, 1, &r, NULL, NULL));
    tk_assert_le(fabs(kit_log(&r, 0, "loss") / (double)*loss - 1.0), 2e-6, stacked[i].kind);
    fm_model *m = NULL; /* inference runs what came out */
    fm_tree *three = tree_of(&r, both, "adapters/1-lora", &mem);
    tk_ok(fm_model_load(&m, e, three, &p, "stacked"));
    fm_model_close(m);
    fm_tree_free(three);
    fm_train_result_release(&r);
    check_gradients(&b, stacked[i].fits);
    if (stacked[i].refused) {
        fm_train_job j = job_of(&t, stacked[i].refused);
        j.parent = both;
        fm_status rc = fm_train_run(e, &p, &j, 1, &r, NULL, NULL);
        assert_true(rc == FM_EUNSUPPORTED || rc == FM_EBASE);
    }
    fm_free(loss);
    fm_free(file);
    fm_free(folder);
    fm_tree_free(both);
    fm_source_close(adapter);
    fm_source_close(ref.src);
    ik_mem_free(&mem);
    tiny_close(&t);
}

TEST(an_adapter_trains_on_a_parent_that_carries_another)
{
    fm_engine *e = ik_engine(2, 64);

    for (size_t i = 0; i < FM_ARRAY_LEN(stacked); i++)
        check_stacked(e, i);
    fm_engine_free(e);
}

/* ---- together as alone ---- */
static const char *const mix[] = {
    "r=4 seed=1",
    "r=3 dropout=0.3 seed=2 batch=1",
    "method=prefix virtual_tokens=4 seed=3",
    "r=2 dora=true targets=q_proj,up_proj,down_proj bias=lora_only dropout=0.2",
    "method=ia3 lr=0.01",
    "method=prompt virtual_tokens=3 accumulate=1",
    "method=bitfit lr=0.01",
    "r=2 targets=embed_tokens,lm_head,k_proj loraplus=8",
    "method=full freeze=embed_tokens,norm layers=1 lr=0.001",
    "method=loha r=2 targets=q_proj,down_proj",
    "method=oft r=0 oft_block_size=4 coft=true coft_eps=0.01 lr=0.1 targets=q_proj,lm_head",
    "method=vera r=5 d_initial=0.3 lr=0.05 dropout=0 targets=q_proj,down_proj",
    "method=randlora r=7 seed=4 targets=k_proj,up_proj",
    "method=boft boft_block_size=4 boft_n_butterfly_factor=2 targets=o_proj",
    "method=full lr=0.001 steps=2",
};
#define MIX FM_ARRAY_LEN(mix)

static void mix_jobs(const tiny *t, fm_train_job *j)
{
    for (size_t i = 0; i < MIX; i++)
        j[i] = job_of(t, mix[i]);
}

static void check_together(unsigned threads, bool recompute)
{
    tiny t;
    fm_train_job j[MIX];
    fm_train_result together[MIX];
    fm_train_result alone;
    fm_engine *two = ik_engine(2, 64);
    fm_engine *e = ik_engine(threads, 64);

    tiny_open(&t, "qwen2");
    mix_jobs(&t, j);
    for (size_t i = 0; i < MIX; i++)
        j[i].recompute = recompute;
    tk_ok(fm_train_run(two, &t.p, j, MIX, together, NULL, NULL));
    for (size_t i = 0; i < MIX; i++) {
        j[i].recompute = false;
        tk_ok(fm_train_run(e, &t.p, &j[i], 1, &alone, NULL, NULL));
        kit_same_bits(&together[i], &alone);
        assert_true(fm_json_equal(together[i].log, alone.log));
        fm_train_result_release(&alone);
        fm_train_result_release(&together[i]);
    }
    tiny_close(&t);
    fm_engine_free(e);
    fm_engine_free(two);
}

TEST(methods_of_any_mix_train_together_as_alone)
{
    check_together(1, false);
    check_together(2, true);
}

/* A child whose rows were not finite leaves no trace in what the others compute next. */
TEST(a_child_that_breaks_leaves_the_others_as_they_are)
{
    tiny t;
    fm_train_result both[2];
    fm_train_result alone;
    fm_engine *e = ik_engine(2, 64);

    tiny_open(&t, "qwen2");
    fm_train_job j[2] = {job_of(&t, "r=2 batch=1 dropout=0.2"),
                         job_of(&t, "method=full lr=1000 clip=0 weight_decay=1000")};
    j[1].config.beta2 = 0;
    tk_ok(fm_train_run(e, &t.p, j, 2, both, NULL, NULL));
    print_message("%s\n", both[1].why ? both[1].why : "did not break");
    tk_ok(fm_train_run(e, &t.p, &j[0], 1, &alone, NULL, NULL));
    assert_true(both[1].failed != FM_OK);
    kit_same_bits(&both[0], &alone);
    fm_train_result_release(&alone);
    fm_train_result_release(&both[0]);
    fm_train_result_release(&both[1]);
    tiny_close(&t);
    fm_engine_free(e);
}

static bool stop_after_two(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    (void)ctx;
    (void)n;
    (void)drop;
    return p->step == 1;
}

TEST(a_resumed_run_of_any_method_has_the_same_bits)
{
    tiny t;
    fm_engine *e = ik_engine(2, 64);

    tiny_open(&t, "qwen2");
    for (size_t i = 0; i + 1 < MIX; i++) {
        fm_train_result whole;
        fm_train_result part;
        kit_checkpoints checkpoints;
        fm_train_job j = job_of(&t, mix[i]);
        tk_ok(fm_train_run(e, &t.p, &j, 1, &whole, NULL, NULL));
        j.checkpoints = kit_checkpoints_init(&checkpoints);
        tk_ok(fm_train_run(e, &t.p, &j, 1, &part, stop_after_two, NULL));
        assert_true(part.stopped);
        fm_train_result_release(&part);
        tk_ok(fm_train_run(e, &t.p, &j, 1, &part, NULL, NULL));
        kit_same_bits(&whole, &part);
        fm_train_result_release(&whole);
        fm_train_result_release(&part);
        fm_train_state_release(&checkpoints.kept);
    }
    tiny_close(&t);
    fm_engine_free(e);
}

/* ---- dropout ---- */
TEST(masks_are_new_in_every_step_and_absent_at_zero)
{
    tiny t;
    fm_train_result r[3];
    fm_engine *e = ik_engine(1, 64);
    static const char *const settings[] = {"r=3 lr=0 batch=2 dropout=0", "r=3 lr=0 dropout=0.5",
                                           "r=3 lr=0 dropout=0.5 seed=9"};

    tiny_open(&t, "llama");
    for (size_t k = 1; k < STEPS; k++) { /* the same batch in every step */
        memcpy(t.ids + k * 2 * WIDTH, t.ids, 2 * WIDTH * sizeof(int32_t));
        memcpy(t.labels + k * 2 * WIDTH, t.labels, 2 * WIDTH * sizeof(int32_t));
    }
    fm_source *adapter = ik_source("arch/llama/peft/lora");
    fm_provider init = fm_source_provider(adapter);
    for (size_t i = 0; i < FM_ARRAY_LEN(settings); i++) {
        fm_train_job j = job_of(&t, settings[i]);
        fm_tree *tree = NULL;
        tk_ok(fm_tree_copy(&tree, fm_source_tree(adapter)));
        tk_ok(fm_tree_remove(tree, "adapters/0-lora/adapter_config.json"));
        j.config.r = 4;
        j.config.alpha = 8;
        j.init = tree;
        j.init_provider = &init;
        tk_ok(fm_train_run(e, &t.p, &j, 1, &r[i], NULL, NULL));
        fm_tree_free(tree);
    }
    for (size_t k = 1; k < STEPS; k++) {
        assert_true(kit_log(&r[0], k, "loss") - kit_log(&r[0], 0, "loss") == 0.0);
        assert_true(fabs(kit_log(&r[1], k, "loss") - kit_log(&r[1], 0, "loss")) > 1e-6);
        assert_true(fabs(kit_log(&r[1], k, "loss") - kit_log(&r[2], k, "loss")) > 1e-6);
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(settings); i++)
        fm_train_result_release(&r[i]);
    fm_source_close(adapter);
    tiny_close(&t);
    fm_engine_free(e);
}

/* A new DoRA has the norms of W: it computes what LoRA does, dropout and all. */
TEST(dora_begins_as_lora)
{
    tiny t;
    fm_train_result r[2];
    fm_engine *e = ik_engine(2, 64);

    tiny_open(&t, "qwen2");
    for (size_t i = 0; i < 2; i++) {
        fm_train_job j = job_of(&t, i ? "r=3 dropout=0.4 dora=true steps=1 clip=0"
                                      : "r=3 dropout=0.4 steps=1 clip=0");
        j.config.lr = 1.0; /* with eps = 1 the step tells the gradient */
        j.config.eps = 1.0;
        tk_ok(fm_train_run(e, &t.p, &j, 1, &r[i], NULL, NULL));
    }
    tk_assert_le(fabs(kit_log(&r[1], 0, "loss") / kit_log(&r[0], 0, "loss") - 1.0), 1e-6, "loss");
    for (size_t i = 0; i < r[0].count; i++) {
        const fm_trained *a = &r[0].tensors[i];
        const fm_trained *b = find(&r[1], a->name);
        assert_non_null(b);
        tk_assert_le(tk_rel_norm((const float *)(const void *)b->data,
                                 (const float *)(const void *)a->data, (size_t)a->bytes / 4),
                     1e-5, a->name);
    }
    fm_train_result_release(&r[0]);
    fm_train_result_release(&r[1]);
    tiny_close(&t);
    fm_engine_free(e);
}

/* ---- parts of a full fine-tune ---- */
TEST(what_is_frozen_is_left_out_and_the_rest_learns_the_same)
{
    tiny t;
    fm_train_result whole;
    fm_train_result part;
    fm_engine *e = ik_engine(2, 64);

    tiny_open(&t, "qwen2");
    fm_train_job j = job_of(&t, "method=full steps=1 clip=0");
    tk_ok(fm_train_run(e, &t.p, &j, 1, &whole, NULL, NULL));
    j = job_of(&t, "method=full steps=1 clip=0 layers=1 freeze=embed_tokens,up_proj,norm");
    tk_ok(fm_train_run(e, &t.p, &j, 1, &part, NULL, NULL));
    assert_non_null(find(&part, "model.layers.1.self_attn.q_proj.weight"));
    assert_non_null(find(&part, "model.layers.1.input_layernorm.weight"));
    assert_null(find(&part, "model.layers.0.self_attn.q_proj.weight"));
    assert_null(find(&part, "model.layers.1.mlp.up_proj.weight"));
    assert_null(find(&part, "model.norm.weight"));
    assert_null(find(&part, "model.embed_tokens.weight"));
    for (size_t i = 0; i < part.count; i++) {
        const fm_trained *w = find(&whole, part.tensors[i].name);
        assert_non_null(w);
        if (memcmp(w->data, part.tensors[i].data, (size_t)w->bytes) != 0)
            fail_msg("%s differs", w->name);
    }
    fm_train_result_release(&whole);
    fm_train_result_release(&part);
    tiny_close(&t);
    fm_engine_free(e);
}

/* ---- a quantized stem ---- */
/* tree with down_proj of every layer as its Q8_0 values: as blocks, or widened. */
static fm_tree *rounded(const tiny *t, ik_mem *mem, bool blocks)
{
    fm_tree *tree = NULL;

    tk_ok(fm_tree_copy(&tree, fm_source_tree(t->src)));
    for (size_t i = 0; i < fm_tree_count(fm_source_tree(t->src)); i++) {
        fm_entry e = *fm_tree_at(fm_source_tree(t->src), i);
        if (e.kind != FM_ENTRY_TENSOR || !strstr(e.name, "down_proj"))
            continue;
        uint64_t rows = e.shape.dim[0];
        uint64_t cols = e.shape.dim[1];
        uint64_t len = 0;
        float *wide = fm_malloc((size_t)e.bytes);
        assert_non_null(wide);
        tk_ok(t->p.read(t->p.ctx, &e, wide));
        tk_ok(fm_tensor_bytes(&len, FM_Q8_0, &e.shape, e.name));
        void *narrow = fm_malloc((size_t)len);
        assert_non_null(narrow);
        tk_ok(fm_quantize_rows(narrow, FM_Q8_0, wide, cols, rows, FM_QUANT_PLAIN));
        if (blocks) {
            fm_digest id;
            tk_ok(fm_tensor_id(&id, FM_Q8_0, &e.shape, fm_span_of(narrow, (size_t)len), NULL));
            tk_ok(fm_tree_put_tensor(tree, e.path, e.name, FM_Q8_0, &e.shape, &id));
            mem->t[mem->count].id = id;
            mem->t[mem->count].len = len;
            mem->t[mem->count++].bytes = narrow;
        } else {
            tk_ok(fm_to_f32(wide, FM_Q8_0, narrow, rows * cols));
            ik_put(mem, tree, "tensors", e.name, wide, 2, rows, cols);
            fm_free(narrow);
        }
        fm_free(wide);
    }
    return tree;
}

TEST(a_quantized_stem_trains_as_its_values_do)
{
    static const char *const settings[] = {"r=4", "r=4 dora=true", "method=ia3", "method=prefix"};
    tiny t;
    fm_engine *e = ik_engine(2, 64);

    tiny_open(&t, "llama");
    for (size_t i = 0; i < FM_ARRAY_LEN(settings); i++) {
        fm_train_result r[2];
        for (int blocks = 0; blocks < 2; blocks++) {
            ik_mem *mem = fm_calloc(1, sizeof(*mem));
            assert_non_null(mem);
            mem->behind[0] = t.p;
            mem->behind_count = 1;
            fm_tree *tree = rounded(&t, mem, blocks);
            fm_provider p = ik_provider(mem);
            fm_train_job j = job_of(&t, settings[i]);
            j.parent = tree;
            tk_ok(fm_train_run(e, &p, &j, 1, &r[blocks], NULL, NULL));
            fm_tree_free(tree);
            ik_mem_free(mem);
            fm_free(mem);
        }
        kit_same_bits(&r[0], &r[1]);
        fm_train_result_release(&r[0]);
        fm_train_result_release(&r[1]);
    }
    tiny_close(&t);
    fm_engine_free(e);
}

/* ---- a stem whose weights have scales ---- */
static unsigned allocs;
static fm_status (*plain_alloc)(fm_backend *be, void **out, size_t bytes);

static fm_status counted_alloc(fm_backend *be, void **out, size_t bytes)
{
    allocs++;
    return plain_alloc(be, out, bytes);
}

/* Said before anything takes memory. */
static void refused_first(fm_engine *e, const tiny *t, const fm_train_job *j)
{
    fm_backend *be = fm_engine_backend(e);
    fm_train_result r;

    allocs = 0;
    plain_alloc = be->alloc;
    be->alloc = counted_alloc;
    tk_fails(fm_train_run(e, &t->p, j, 1, &r, NULL, NULL), FM_EUNSUPPORTED, "with a scale");
    be->alloc = plain_alloc;
    assert_int_equal(allocs, 0);
}

/* A stem of golden/arch trains with the bits of the same stem with plain weights. */
static void same_as_plain(const char *name, const char *const *settings, bool stored)
{
    char *dir = fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, name);
    fm_engine *e = ik_engine(2, 64);
    fm_backend *be = fm_engine_backend(e);
    fm_plain *plain = NULL;
    tiny t;

    if (stored && be->keep_stored)
        tk_ok(be->keep_stored(be));
    tiny_open(&t, "llama");
    for (size_t i = 0; i < (size_t)2 * WIDTH * STEPS; i++) { /* its vocabulary is 64 */
        t.ids[i] %= 64;
        t.labels[i] = t.labels[i] < 0 ? t.labels[i] : t.labels[i] % 64;
    }
    fm_source_close(t.src);
    tk_ok(fm_source_open(&t.src, dir));
    t.p = fm_source_provider(t.src);
    tk_ok(fm_plain_open(&plain, fm_source_tree(t.src), &t.p, "m"));
    for (size_t i = 0; settings[i]; i++) {
        fm_train_job j = job_of(&t, settings[i]);
        fm_train_result r[2];
        if (strstr(settings[i], "full")) {
            j.config = fm_train_defaults(FM_METHOD_FULL);
            j.config.steps = 1;
            j.config.batch = 2;
            j.config.max_tokens = WIDTH;
            refused_first(e, &t, &j);
            continue;
        }
        tk_ok(fm_train_run(e, &t.p, &j, 1, &r[0], NULL, NULL));
        j.parent = fm_plain_tree(plain);
        tk_ok(fm_train_run(e, fm_plain_provider(plain), &j, 1, &r[1], NULL, NULL));
        kit_same_bits(&r[0], &r[1]);
        fm_train_result_release(&r[0]);
        fm_train_result_release(&r[1]);
    }
    fm_plain_close(plain);
    tiny_close(&t);
    fm_engine_free(e);
    fm_free(dir);
}

TEST(a_stem_with_scales_trains_as_its_values_do)
{
    static const char *const settings[] = {
        "r=4",        "r=4 dora=true",        "r=2 modules_to_save=up_proj",
        "method=ia3", "method=full layers=1", "method=lokr r=2 targets=up_proj,o_proj",
        NULL};
    same_as_plain("llama-fp8", settings, false);
}

TEST(a_stem_of_codes_trains_as_its_values_do)
{
    static const char *const names[] = {"llama-gptq",    "llama-gptq-act", "llama-gptq-8",
                                        "llama-awq",     "llama-bnb-nf4",  "llama-bnb-int8",
                                        "llama-ct-int4", "llama-ct-int8",  "llama-ao-int4"};
    static const char *const some[] = {"r=4", "r=4 dora=true", "method=full", NULL};
    static const char *const all[] = {"r=4", "r=2 modules_to_save=up_proj", "method=ia3",
                                      "method=oft r=4 oft_block_size=0", NULL};
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        same_as_plain(names[i], i % 4 ? some : all, i % 2);
}

/* ---- a stem whose experts lie in one tensor ---- */
static bool has_tensor(const fm_train_result *r, const char *part)
{
    for (size_t i = 0; i < r->count; i++)
        if (strstr(r->tensors[i].name, part))
            return true;
    return false;
}

/* Adapters name what is a linear module in transformers' class; the experts stay as they are. */
static void check_experts(fm_engine *e, tiny *t, const char *golden)
{
    bool shared = strcmp(golden, "granitemoeshared") == 0;
    fm_train_job j = job_of(t, "r=2 targets=all-linear");
    fm_train_result r;

    tk_ok(fm_train_run(e, &t->p, &j, 1, &r, NULL, NULL));
    const fm_json *targets = fm_json_get(r.adapter_config, "target_modules");
    assert_int_equal(fm_json_count(targets), shared ? 5 : 4);
    assert_int_equal(r.count, shared ? 20 : 16);
    assert_true(has_tensor(&r, "o_proj.lora_A") && !has_tensor(&r, "expert"));
    assert_int_equal(has_tensor(&r, "shared_mlp.output_linear.lora_A"), shared);
    fm_train_result_release(&r);
    j = job_of(t, "r=2 targets=gate_proj");
    tk_fails(fm_train_run(e, &t->p, &j, 1, &r, NULL, NULL), FM_EBASE, "no module 'gate_proj'");
    j.config = fm_train_defaults(FM_METHOD_FULL);
    j.config.steps = 1;
    j.config.batch = 2;
    j.config.max_tokens = WIDTH;
    tk_fails(fm_train_run(e, &t->p, &j, 1, &r, NULL, NULL), FM_EUNSUPPORTED, "freeze=experts");
    tk_ok(fm_train_config_set(&j.config, "freeze", "experts"));
    if (shared) {
        tk_fails(fm_train_run(e, &t->p, &j, 1, &r, NULL, NULL), FM_EUNSUPPORTED,
                 "freeze=experts,shared_mlp");
        tk_ok(fm_train_config_set(&j.config, "freeze", "experts,shared_mlp"));
    }
    tk_ok(fm_train_run(e, &t->p, &j, 1, &r, NULL, NULL));
    assert_int_equal(has_tensor(&r, "layers.1.self_attn.sinks"), !shared);
    assert_true(!has_tensor(&r, "expert") && !has_tensor(&r, "shared_mlp"));
    assert_true(has_tensor(&r, shared ? "router.layer.weight" : "router.bias"));
    print_message("%s: %zu tensors train\n", golden, r.count);
    fm_train_result_release(&r);
}

TEST(stacked_experts_stay_as_they_are)
{
    static const char *const golden[] = {"gpt_oss", "gpt_oss-mxfp4", "granitemoeshared"};
    fm_engine *e = ik_engine(2, 64);
    tiny t;

    tiny_open(&t, "llama");
    for (size_t i = 0; i < (size_t)2 * WIDTH * STEPS; i++) { /* its vocabulary is 48 */
        t.ids[i] %= 48;
        t.labels[i] = t.labels[i] < 0 ? t.labels[i] : t.labels[i] % 48;
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(golden); i++) {
        char *dir = fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, golden[i]);
        fm_source_close(t.src);
        tk_ok(fm_source_open(&t.src, dir));
        t.p = fm_source_provider(t.src);
        if (i == 2 || fm_engine_backend(e)->attends & FM_ATTENDS_TRAIN_SINK) {
            check_experts(e, &t, golden[i]);
        } else {
            fm_train_job j = job_of(&t, "r=2");
            fm_train_result r;
            tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EUNSUPPORTED,
                     i ? "type MXFP4" : "sinks"); /* a card has neither */
        }
        fm_free(dir);
    }
    tiny_close(&t);
    fm_engine_free(e);
}

/* ---- refusals ---- */
TEST(settings_that_make_no_sense_are_refused_by_name)
{
    static const struct {
        const char *settings, *says;
        fm_status rc;
    } bad[] = {
        {"r=2 rank_pattern=q_prj=4", "q_prj", FM_EBASE},
        {"r=2 rank_pattern=q_proj", "MODULE=NUMBER", FM_EINVAL},
        {"r=2 targets=q_proj exclude=v layers=0-9", "layers 0 to 1", FM_EBASE},
        {"r=2 layers=two", "two", FM_EINVAL},
        {"r=2 layers=1 targets=.*(q|v)_proj", "pattern", FM_EINVAL},
        {"r=2 targets=.*(q|x", "regular", FM_EINVAL},
        {"r=2 targets=.*(?R)", "a group", FM_EUNSUPPORTED},
        {"r=2 targets=.*(x|y)_proj", "no module", FM_EBASE},
        {"r=2 bias=some", "some", FM_EINVAL},
        {"r=2 bias=lora_only targets=o_proj", "bias", FM_EBASE},
        {"r=2 dora=true targets=embed_tokens", "embedding", FM_EUNSUPPORTED},
        {"method=ia3 targets=k_proj feedforward=down_proj", "down_proj", FM_EINVAL},
        {"method=ia3 dora=true", "dora", FM_EINVAL},
        {"method=prefix virtual_tokens=4000", "virtual_tokens", FM_EINVAL},
        {"method=full freeze=embeddings", "embeddings", FM_EBASE},
        {"method=prompt freeze=norm", "freeze", FM_EINVAL},
        {"r=2 modules_to_save=classifier", "classifier", FM_EBASE},
        {"method=boft boft_block_num=2", "one of boft_block_size", FM_EINVAL},
        {"method=boft boft_block_size=7", "no blocks of 7", FM_EINVAL},
        {"method=miss init_weights=false", "bat, mini", FM_EINVAL},
        {"method=shira r=200", "r * (in + out)", FM_EINVAL},
        {"method=shira r=1 layers=0", "layers_to_transform", FM_EUNSUPPORTED},
        {"method=vera n_frequency=7", "n_frequency goes with method fourierft", FM_EINVAL},
        {"decompose_both=true", "decompose_both goes with method lokr", FM_EINVAL},
        {"method=oft r=4", "one of r and oft_block_size", FM_EINVAL},
        {"method=loha dropout=0.1", "dropout", FM_EINVAL},
        {"method=loha targets=embed_tokens", "no linear layer", FM_EUNSUPPORTED},
    };
    tiny t;
    fm_train_result r;
    fm_engine *e = ik_engine(1, 64);

    tiny_open(&t, "qwen2");
    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_train_job j = job_of(&t, bad[i].settings);
        tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), bad[i].rc, bad[i].says);
    }
    tiny_close(&t);
    tiny_open(&t, "llama");
    fm_train_job j = job_of(&t, "method=bitfit");
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EBASE, "biases");
    tiny_close(&t);
    tiny_open(&t, "gpt2");
    j = job_of(&t, "method=loha targets=c_attn");
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EUNSUPPORTED, "PEFT has no loha");
    tiny_close(&t);
    fm_engine_free(e);
}

int main(void)
{
    char *data = tk_shared("arch/qwen2/ref.safetensors");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacked_experts_stay_as_they_are),
        cmocka_unit_test(settings_that_make_no_sense_are_refused_by_name),
        cmocka_unit_test(gradients_are_the_slopes_of_the_loss),
        cmocka_unit_test(an_adapter_trains_on_a_parent_that_carries_another),
        cmocka_unit_test(methods_of_any_mix_train_together_as_alone),
        cmocka_unit_test(a_child_that_breaks_leaves_the_others_as_they_are),
        cmocka_unit_test(a_resumed_run_of_any_method_has_the_same_bits),
        cmocka_unit_test(masks_are_new_in_every_step_and_absent_at_zero),
        cmocka_unit_test(dora_begins_as_lora),
        cmocka_unit_test(what_is_frozen_is_left_out_and_the_rest_learns_the_same),
        cmocka_unit_test(a_quantized_stem_trains_as_its_values_do),
        cmocka_unit_test(a_stem_with_scales_trains_as_its_values_do),
        cmocka_unit_test(a_stem_of_codes_trains_as_its_values_do),
    };

    if (!data)
        return tk_skip("reference data is not on this machine (FM_SHARED_DATA)");
    fm_free(data);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
