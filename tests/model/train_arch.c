/* ctest: apart */
/* train_arch.c - gradients of the tiny architectures against Hugging Face; threads, resumes and
 * accumulation do not change what is learnt. Adapters against PEFT: train_peft.c. */
#include "tests/model/checkpoint_kit.h"
#include "tests/model/train_kit.h"
#include "tests/kit/train_kit.h"

static fm_train_config steps_of_reference(void)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.r = 4;
    c.alpha = 8;
    c.lr = 2e-3;
    c.schedule = FM_SCHEDULE_CONSTANT;
    c.clip = 0;
    c.steps = 12;
    c.batch = 2;
    c.max_tokens = 24;
    return c;
}

static void check_gradients(const char *arch)
{
    char path[128];
    ik_ref ref;
    double loss = 0.0;
    fm_train_result g;
    fm_engine *e = ik_engine(2, 64);

    (void)snprintf(path, sizeof(path), "arch/%s/ref.safetensors", arch);
    assert_true(ik_ref_open(&ref, path));
    (void)snprintf(path, sizeof(path), "arch/%s", arch);
    fm_source *src = ik_source(path);
    fm_provider p = fm_source_provider(src);
    int32_t *ids = ik_ref_get(&ref, "input_ids", NULL);
    int32_t *labels = ik_ref_get(&ref, "labels", NULL);
    float *want = ik_ref_get(&ref, "loss", NULL);
    tk_ok(fm_train_gradients(e, fm_source_tree(src), &p, ids, labels, 2, 24, &loss, &g));
    tk_assert_le((loss - (double)*want) * (loss > (double)*want ? 1 : -1), 1e-5, "loss");
    print_message("%s: loss %.7f, worst gradient %.2g\n", arch, loss,
                  kit_compare(&g, &ref, "grad.", 1e-4, false));
    fm_train_result_release(&g);
    fm_free(ids);
    fm_free(labels);
    fm_free(want);
    fm_source_close(src);
    fm_source_close(ref.src);
    fm_engine_free(e);
}

TEST(gradients_equal_those_of_hugging_face)
{
    static const char *const arch[] = {"llama", "llama3", "mistral", "qwen2",
                                       "qwen3", "gpt2",   "gemma3",  "mixtral"};

    for (size_t i = 0; i < FM_ARRAY_LEN(arch); i++)
        check_gradients(arch[i]);
}

typedef struct peft { /* the tiny Llama with an adapter of one kind */
    fm_source *base, *adapter;
    fm_tree *both;
    ik_mem mem;
    ik_ref ref;
    int32_t *ids, *labels;
} peft;

static void peft_open(peft *t, const char *kind)
{
    char path[128];

    memset(t, 0, sizeof(*t));
    (void)snprintf(path, sizeof(path), "arch/llama/peft/%s/ref.safetensors", kind);
    assert_true(ik_ref_open(&t->ref, path));
    (void)snprintf(path, sizeof(path), "arch/llama/peft/%s", kind);
    t->adapter = ik_source(path);
    t->base = ik_source("arch/llama");
    tk_ok(fm_adapter_apply(&t->both, fm_source_tree(t->base), fm_source_tree(t->adapter), "llama",
                           NULL));
    t->mem.behind[0] = fm_source_provider(t->base);
    t->mem.behind[1] = fm_source_provider(t->adapter);
    t->mem.behind_count = 2;
    t->ids = ik_ref_get(&t->ref, "input_ids", NULL);
    t->labels = ik_ref_get(&t->ref, "labels", NULL);
}

static void peft_close(peft *t)
{
    fm_tree_free(t->both);
    fm_source_close(t->adapter);
    fm_source_close(t->base);
    fm_source_close(t->ref.src);
    fm_free(t->ids);
    fm_free(t->labels);
}

/* ---- invariances, on seeded jobs of the tiny Llama ---- */
typedef struct tiny {
    fm_source *src;
    fm_provider p;
    ik_ref ref;
    int32_t *ids, *labels;
} tiny;

static void tiny_open(tiny *t, size_t steps)
{
    assert_true(ik_ref_open(&t->ref, "arch/llama/ref.safetensors"));
    t->src = ik_source("arch/llama");
    t->p = fm_source_provider(t->src);
    int32_t *ids = ik_ref_get(&t->ref, "input_ids", NULL);
    int32_t *labels = ik_ref_get(&t->ref, "labels", NULL);
    t->ids = kit_repeat(ids, 48, steps);
    t->labels = kit_repeat(labels, 48, steps);
    for (size_t i = 0; i < 48 * steps; i++) /* every step sees something else */
        t->ids[i] = (int32_t)((size_t)t->ids[i] + i / 48 * 7) % 160;
    for (size_t i = 0; i < 48 * steps; i++)
        t->labels[i] = t->labels[i] < 0 ? -100 : t->ids[i];
    fm_free(ids);
    fm_free(labels);
}

static void tiny_close(tiny *t)
{
    fm_source_close(t->src);
    fm_source_close(t->ref.src);
    fm_free(t->ids);
    fm_free(t->labels);
}

static fm_train_job tiny_job(const tiny *t, fm_method method)
{
    fm_train_job j = {.name = "tiny",
                      .config = steps_of_reference(),
                      .parent = fm_source_tree(t->src),
                      .batch_ids = t->ids,
                      .batch_labels = t->labels};

    j.config.method = method;
    j.config.clip = 1.0;
    j.config.schedule = FM_SCHEDULE_COSINE;
    j.config.warmup = 3;
    j.config.steps = 6;
    return j;
}

static void run_with(fm_train_result *r, const tiny *t, const fm_train_job *j, unsigned threads,
                     fm_train_fn fn, void *ctx)
{
    fm_engine *e = ik_engine(threads, 64);
    tk_ok(fm_train_run(e, &t->p, j, 1, r, fn, ctx));
    fm_engine_free(e);
}

TEST(one_and_two_threads_give_the_same_bits)
{
    static const fm_method methods[] = {FM_METHOD_LORA, FM_METHOD_FULL, FM_METHOD_PRETRAIN};
    tiny t;

    tiny_open(&t, 6);
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++) {
        fm_train_result a;
        fm_train_result b;
        fm_train_job j = tiny_job(&t, methods[i]);
        run_with(&a, &t, &j, 1, NULL, NULL);
        run_with(&b, &t, &j, 2, NULL, NULL);
        kit_same_bits(&a, &b);
        assert_true(kit_log(&a, 0, "loss") > 0.0);
        fm_train_result_release(&a);
        fm_train_result_release(&b);
    }
    tiny_close(&t);
}

static bool stop_after(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    (void)n;
    (void)drop;
    return p->step + 1 == *(const uint32_t *)ctx;
}

TEST(a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one)
{
    static const fm_method methods[] = {FM_METHOD_LORA, FM_METHOD_FULL};
    tiny t;

    tiny_open(&t, 6);
    for (size_t i = 0; i < FM_ARRAY_LEN(methods); i++) {
        fm_train_result whole;
        fm_train_result part;
        uint32_t stop = 2;
        kit_checkpoints checkpoints;
        fm_train_job j = tiny_job(&t, methods[i]);
        run_with(&whole, &t, &j, 2, NULL, NULL);
        j.checkpoints = kit_checkpoints_init(&checkpoints);
        run_with(&part, &t, &j, 2, stop_after, &stop);
        assert_true(part.stopped);
        assert_int_equal(part.count, 0);
        fm_train_result_release(&part);
        stop = 5;
        run_with(&part, &t, &j, 1, stop_after, &stop);
        assert_true(part.stopped);
        fm_train_result_release(&part);
        run_with(&part, &t, &j, 2, NULL, NULL);
        kit_same_bits(&whole, &part);
        assert_int_equal(whole.tokens, part.tokens);
        assert_true(fm_json_equal(whole.log, part.log));
        fm_train_result_release(&part);
        fm_train_result_release(&whole);
        assert_int_equal(checkpoints.saves, 3); /* both stops and the end */
        assert_int_equal(checkpoints.kept.step, 6);
        fm_train_state_release(&checkpoints.kept);
    }
    tiny_close(&t);
}

TEST(a_damaged_checkpoint_is_refused)
{
    tiny t;
    fm_train_result r;
    kit_checkpoints checkpoints;
    uint32_t stop = 2;

    tiny_open(&t, 6);
    fm_train_job j = tiny_job(&t, FM_METHOD_LORA);
    j.checkpoints = kit_checkpoints_init(&checkpoints);
    run_with(&r, &t, &j, 1, stop_after, &stop);
    fm_train_result_release(&r);
    fm_engine *e = ik_engine(1, 64);
    fm_train_state *s = &checkpoints.kept;
    s->tensors[1].name[2] ^= 1;
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_ECORRUPT, "has no p/");
    s->tensors[1].name[2] ^= 1;
    s->tensors[1].shape.dim[0]++;
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_ECORRUPT, "another shape of p/");
    s->tensors[1].shape.dim[0]--;
    s->count--;
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_ECORRUPT, "tensors");
    s->count++;
    tk_ok(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL)); /* as it was: it goes on */
    fm_train_result_release(&r);
    fm_engine_free(e);
    fm_train_state_release(s);
    tiny_close(&t);
}

static bool never_due(void *ctx, uint32_t child, uint32_t step)
{
    (void)child;
    *(uint32_t *)ctx = step;
    return false;
}

TEST(a_state_that_is_not_due_is_not_saved)
{
    tiny t;
    fm_train_result r;
    uint32_t asked = 0;
    fm_train_checkpoints checkpoints = {.ctx = &asked,
                                        .due = never_due}; /* save NULL: a call would crash */

    tiny_open(&t, 6);
    fm_train_job j = tiny_job(&t, FM_METHOD_LORA);
    j.checkpoints = &checkpoints;
    j.checkpoint_every = 1;
    run_with(&r, &t, &j, 1, NULL, NULL);
    assert_int_equal(asked, 6);
    fm_train_result_release(&r);
    tiny_close(&t);
}

TEST(two_accumulated_batches_equal_one_of_double_size)
{
    tiny t;
    fm_train_result a;
    fm_train_result b;

    tiny_open(&t, 6);
    fm_train_job j = tiny_job(&t, FM_METHOD_FULL);
    j.config.steps = 3;
    j.config.batch = 4;
    run_with(&a, &t, &j, 2, NULL, NULL);
    j.config.batch = 2;
    j.config.accumulate = 2;
    run_with(&b, &t, &j, 2, NULL, NULL);
    for (size_t i = 0; i < a.count; i++) {
        float *x = fm_memdup(a.tensors[i].data, (size_t)a.tensors[i].bytes);
        float *y = fm_memdup(b.tensors[i].data, (size_t)b.tensors[i].bytes);
        tk_assert_le(tk_rel_norm(x, y, (size_t)a.tensors[i].bytes / 4), 1e-4, a.tensors[i].name);
        fm_free(x);
        fm_free(y);
    }
    for (size_t s = 0; s < 3; s++)
        tk_assert_le(kit_log(&a, s, "loss") / kit_log(&b, s, "loss") - 1.0, 1e-6, "loss");
    fm_train_result_release(&a);
    fm_train_result_release(&b);
    tiny_close(&t);
}

TEST(children_trained_together_equal_those_trained_alone)
{
    tiny t;
    fm_train_result both[2];
    fm_train_result alone;
    fm_engine *e = ik_engine(2, 64);

    tiny_open(&t, 6);
    fm_train_job j[2] = {tiny_job(&t, FM_METHOD_LORA), tiny_job(&t, FM_METHOD_LORA)};
    j[1].config.r = 2;
    j[1].config.seed = 5;
    tk_ok(fm_train_config_set(&j[1].config, "targets", "q_proj,v_proj"));
    tk_ok(fm_train_run(e, &t.p, j, 2, both, NULL, NULL));
    assert_int_equal(both[1].count, 8);
    for (size_t i = 0; i < 2; i++) {
        tk_ok(fm_train_run(e, &t.p, &j[i], 1, &alone, NULL, NULL));
        kit_same_bits(&both[i], &alone);
        fm_train_result_release(&alone);
        fm_train_result_release(&both[i]);
    }
    fm_engine_free(e);
    tiny_close(&t);
}

TEST(a_full_result_has_the_parents_names_in_the_configs_dtype)
{
    tiny t;
    fm_train_result r;
    fm_arch arch;

    tiny_open(&t, 6);
    fm_train_job j = tiny_job(&t, FM_METHOD_FULL);
    j.config.dtype = FM_BF16;
    run_with(&r, &t, &j, 2, NULL, NULL);
    tk_ok(fm_arch_of_tree(&arch, fm_source_tree(t.src), NULL, "llama"));
    fm_param p;
    uint32_t n = 0;
    for (; fm_arch_param(&arch, n, &p); n++) {
        assert_string_equal(r.tensors[n].name, p.name);
        assert_int_equal(r.tensors[n].dtype, FM_BF16);
    }
    assert_int_equal(r.count, n);
    assert_null(r.adapter_config);
    fm_train_result_release(&r);
    tiny_close(&t);
}

/* tree with the named tensor in bf16, its bytes in mem. */
static void narrow(ik_mem *mem, fm_tree *tree, const fm_provider *p, const char *path)
{
    const fm_entry *e = fm_tree_find(tree, path);
    uint64_t n = 0;
    fm_buf wide;
    fm_digest id;

    assert_non_null(e);
    fm_buf_init(&wide, 0);
    tk_ok(fm_entry_read(&wide, p, e));
    tk_ok(fm_shape_elems(&n, &e->shape));
    uint16_t *half = fm_malloc((size_t)n * sizeof(*half));
    float *f = fm_memdup(wide.data, wide.len);
    tk_ok(fm_from_f32(half, FM_BF16, f, n));
    tk_ok(fm_tensor_id(&id, FM_BF16, &e->shape, fm_span_of(half, (size_t)n * 2), NULL));
    mem->t[mem->count].id = id;
    mem->t[mem->count].bytes = half;
    mem->t[mem->count++].len = n * 2;
    char *name = fm_strdup(e->name);
    fm_shape shape = e->shape;
    tk_ok(fm_tree_put_tensor(tree, path, name, FM_BF16, &shape, &id));
    fm_free(name);
    fm_free(f);
    fm_buf_release(&wide);
}

TEST(a_full_result_has_each_tensor_in_its_parents_dtype)
{
    static const char narrowed[] = "model.layers.0.mlp.up_proj.weight";
    tiny t;
    fm_train_result r;
    fm_tree *tree = NULL;
    ik_mem mem = {0};

    tiny_open(&t, 6);
    tk_ok(fm_tree_copy(&tree, fm_source_tree(t.src)));
    narrow(&mem, tree, &t.p, "tensors/model/layers/0/mlp/up_proj.weight");
    mem.behind[0] = t.p;
    mem.behind_count = 1;
    t.p = ik_provider(&mem);
    fm_train_job j = tiny_job(&t, FM_METHOD_FULL);
    assert_int_equal(j.config.dtype, FM_DTYPE_NONE);
    j.parent = tree;
    run_with(&r, &t, &j, 1, NULL, NULL);
    for (size_t i = 0; i < r.count; i++)
        assert_int_equal(r.tensors[i].dtype,
                         strcmp(r.tensors[i].name, narrowed) == 0 ? FM_BF16 : FM_F32);
    fm_train_result_release(&r);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    tiny_close(&t);
}

TEST(wrong_jobs_are_refused_by_name)
{
    tiny t;
    fm_train_result r;
    fm_engine *e = ik_engine(1, 64);

    tiny_open(&t, 6);
    fm_train_job j = tiny_job(&t, FM_METHOD_LORA);
    tk_ok(fm_train_config_set(&j.config, "targets", "q_proj,query"));
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EBASE, "query");
    j = tiny_job(&t, FM_METHOD_LORA);
    tk_ok(fm_train_config_set(&j.config, "modules_to_save", "norms"));
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EBASE, "norms");
    j = tiny_job(&t, FM_METHOD_LORA);
    j.batch_ids = NULL;
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EINVAL, "data");
    j = tiny_job(&t, FM_METHOD_LORA);
    int32_t was = t.ids[0];
    t.ids[0] = 160;
    tk_fails(fm_train_run(e, &t.p, &j, 1, &r, NULL, NULL), FM_EINVAL, "vocabulary");
    t.ids[0] = was;
    fm_engine_free(e);
    tiny_close(&t);
}

TEST(experts_without_gates_and_blocks_beside_each_other_are_not_trained_yet)
{
    static const char *const names[][2] = {
        {"nemotron_h-experts", "experts without gates"},
        {"nemotron_h-latent", "experts without gates"},
        {"falcon_h1", "recurrent blocks beside attention"},
    };
    int32_t ids[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    fm_engine *e = ik_engine(1, 64);

    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        char *dir = fm_asprintf("%s/tests/model/golden/arch/%s", FM_SOURCE_DIR, names[i][0]);
        fm_source *src = NULL;
        fm_train_result g;
        double loss;
        tk_ok(fm_source_open(&src, dir));
        fm_provider p = fm_source_provider(src);
        tk_fails(fm_train_gradients(e, fm_source_tree(src), &p, ids, ids, 1, 8, &loss, &g),
                 FM_EUNSUPPORTED, names[i][1]);
        fm_source_close(src);
        fm_free(dir);
    }
    fm_engine_free(e);
}

/* ---- data ---- */
static fm_dataset *six_blocks(void)
{
    static const char text[] = "the cat sat.one two six.A-B-C-D-E-F-0123456789ab"
                               "zzzzzzzzzzzz{}[]()<>!?;:";
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_tokenizer *tok = kit_tokenizer();
    fm_dataset *d = NULL;

    c.max_tokens = 12;
    tk_ok(fm_dataset_open(&d, fm_span_str(text), "blocks", tok, NULL, &c, NULL, 0));
    fm_tokenizer_close(tok);
    assert_int_equal(fm_dataset_count(d), 6);
    return d;
}

static fm_train_job data_job(const tiny *t, const fm_dataset *d)
{
    fm_train_job j = tiny_job(t, FM_METHOD_LORA);

    j.batch_ids = NULL;
    j.batch_labels = NULL;
    j.data = d;
    j.config.steps = 0;
    j.config.batch = 4;
    return j;
}

TEST(epochs_decide_the_steps_and_the_seed_the_order)
{
    tiny t;
    fm_train_result r;
    fm_train_result other;
    fm_dataset *d = six_blocks();

    tiny_open(&t, 1);
    fm_train_job j = data_job(&t, d);
    j.config.epochs = 1.5; /* 9 examples: steps of 4, 4 and 1 */
    run_with(&r, &t, &j, 2, NULL, NULL);
    assert_int_equal(fm_json_count(r.log), 3);
    assert_int_equal(r.tokens, 9 * 12);
    run_with(&other, &t, &j, 1, NULL, NULL);
    kit_same_bits(&r, &other);
    fm_train_result_release(&other);
    j.config.seed = 1;
    run_with(&other, &t, &j, 1, NULL, NULL);
    assert_true(kit_log(&other, 0, "loss") != kit_log(&r, 0, "loss"));
    fm_train_result_release(&other);
    fm_train_result_release(&r);
    j = data_job(&t, d);
    j.config.epochs = 1.0;
    j.config.batch = 6; /* one step sees every example once, whatever the order */
    run_with(&r, &t, &j, 2, NULL, NULL);
    j.config.seed = 1;
    run_with(&other, &t, &j, 2, NULL, NULL);
    tk_assert_le(kit_log(&r, 0, "loss") / kit_log(&other, 0, "loss") - 1.0, 1e-6, "loss");
    fm_train_result_release(&other);
    fm_train_result_release(&r);
    fm_dataset_close(d);
    tiny_close(&t);
}

/* An adapter on a parent that has one already: the lower one stays as it is and counts. */
static void check_second_adapter(fm_engine *e, const char *kind, const char *save, size_t tensors)
{
    peft t;
    fm_train_result r;

    peft_open(&t, kind);
    fm_provider p = ik_provider(&t.mem);
    float *loss = ik_ref_get(&t.ref, "loss", NULL);
    fm_train_job j = {.name = "second",
                      .config = steps_of_reference(),
                      .parent = t.both,
                      .batch_ids = t.ids,
                      .batch_labels = t.labels};
    j.config.steps = 1;
    tk_ok(fm_train_config_set(&j.config, "modules_to_save", save));
    tk_ok(fm_train_run(e, &p, &j, 1, &r, NULL, NULL));
    /* A saved module begins as the first adapter left it; B is 0 in the first step: the loss is
     * that of the parent with its adapter. */
    tk_assert_le(kit_log(&r, 0, "loss") / (double)*loss - 1.0, 1e-6, "loss");
    tk_assert_le((double)*loss / kit_log(&r, 0, "loss") - 1.0, 1e-6, "loss");
    assert_int_equal(r.count, tensors);
    fm_train_result_release(&r);
    j.config.method = FM_METHOD_FULL;
    tk_fails(fm_train_run(e, &p, &j, 1, &r, NULL, NULL), FM_EUNSUPPORTED, "adapters");
    fm_free(loss);
    peft_close(&t);
}

TEST(a_second_adapter_trains_on_top_of_the_first)
{
    fm_engine *e = ik_engine(2, 64);

    check_second_adapter(e, "lora", "", 28);
    check_second_adapter(e, "lora-modules-to-save", "lm_head", 29);
    fm_engine_free(e);
}

int main(void)
{
    char *data = tk_shared("arch/qwen3/ref.safetensors");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_jobs_are_refused_by_name),
        cmocka_unit_test(experts_without_gates_and_blocks_beside_each_other_are_not_trained_yet),
        cmocka_unit_test(gradients_equal_those_of_hugging_face),
        cmocka_unit_test(one_and_two_threads_give_the_same_bits),
        cmocka_unit_test(a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one),
        cmocka_unit_test(a_damaged_checkpoint_is_refused),
        cmocka_unit_test(a_state_that_is_not_due_is_not_saved),
        cmocka_unit_test(two_accumulated_batches_equal_one_of_double_size),
        cmocka_unit_test(children_trained_together_equal_those_trained_alone),
        cmocka_unit_test(a_full_result_has_the_parents_names_in_the_configs_dtype),
        cmocka_unit_test(a_full_result_has_each_tensor_in_its_parents_dtype),
        cmocka_unit_test(epochs_decide_the_steps_and_the_seed_the_order),
        cmocka_unit_test(a_second_adapter_trains_on_top_of_the_first),
    };

    if (!data)
        return tk_skip("reference data is not on this machine (FM_SHARED_DATA)");
    fm_free(data);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
