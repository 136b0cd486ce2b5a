/* ctest: apart */
/* train_objectives.c - every objective: gradients against torch in float64, steps of AdamW against
 * torch, children of mixed objectives in one pass, evaluation, results. */
#include "tests/model/train_kit.h"

#include <math.h>
#include <stdlib.h>

#include "infer/model/class_head.h"
#include "train/run/child.h"

#define T 12u /* tokens of a row of the references */
#define STEPS 5u

typedef struct golden {
    fm_source *src, *teacher;
    ik_ref ref;
    fm_provider p, teacher_p;
    int32_t *ids, *len, *labels, *mask;
    fm_train_job job;
} golden;

typedef struct goal_case {
    const char *name;
    fm_objective objective;
    const char *teacher;
    bool symmetric;
} goal_case;

static const goal_case cases[] = {
    {"classify-llama", FM_OBJECTIVE_CLASSIFY, NULL, false},
    {"classify-gpt2", FM_OBJECTIVE_CLASSIFY, NULL, false},
    {"classify-bert", FM_OBJECTIVE_CLASSIFY, NULL, false},
    {"classify-roberta", FM_OBJECTIVE_CLASSIFY, NULL, false},
    {"classify-distilbert", FM_OBJECTIVE_CLASSIFY, NULL, false},
    {"contrastive", FM_OBJECTIVE_CONTRASTIVE, NULL, false},
    {"contrastive-symmetric", FM_OBJECTIVE_CONTRASTIVE, NULL, true},
    {"contrastive-llama", FM_OBJECTIVE_CONTRASTIVE, NULL, false},
    {"dpo", FM_OBJECTIVE_DPO, NULL, false},
    {"distill", FM_OBJECTIVE_DISTILL, "teacher", false},
    {"distill-same", FM_OBJECTIVE_DISTILL, "dpo", false},
};

static fm_source *open_golden(const char *relative)
{
    fm_source *src = NULL;
    char *path = fm_asprintf("%s/tests/model/golden/objectives/%s", FM_SOURCE_DIR, relative);
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

/* Labels of a row as the objective wants them. */
static void put_labels(golden *g, const goal_case *c, size_t row)
{
    uint32_t from = c->objective == FM_OBJECTIVE_DPO ? 3 : 1;
    bool tokens = c->objective == FM_OBJECTIVE_DPO || c->objective == FM_OBJECTIVE_DISTILL;

    for (uint32_t t = 0; t < T; t++) {
        bool there = t < (uint32_t)g->len[row];
        g->mask[row * T + t] = there;
        g->labels[row * T + t] = tokens && there && t >= from ? g->ids[row * T + t] : -100;
    }
}

static void golden_open(golden *g, const goal_case *c)
{
    char path[80];
    size_t rows = 0;

    memset(g, 0, sizeof(*g));
    g->src = open_golden(c->name);
    g->p = fm_source_provider(g->src);
    (void)snprintf(path, sizeof(path), "%s/ref.safetensors", c->name);
    g->ref.src = open_golden(path);
    g->ids = ik_ref_get(&g->ref, "input_ids", NULL);
    g->len = ik_ref_get(&g->ref, "len", &rows);
    g->labels = fm_calloc(rows * T, sizeof(int32_t));
    g->mask = fm_calloc(rows * T, sizeof(int32_t));
    for (size_t i = 0; i < rows; i++)
        put_labels(g, c, i);
    if (c->objective == FM_OBJECTIVE_CLASSIFY) {
        int32_t *klass = ik_ref_get(&g->ref, "klass", NULL);
        for (size_t i = 0; i < rows; i++)
            g->labels[i * T] = klass[i];
        fm_free(klass);
    }
    fm_train_config t = fm_train_defaults(FM_METHOD_FULL);
    t.objective = c->objective;
    t.lr = 1e-3;
    t.schedule = FM_SCHEDULE_CONSTANT;
    t.steps = STEPS;
    t.batch = c->objective == FM_OBJECTIVE_CONTRASTIVE ? 6 : 4;
    t.max_tokens = T;
    t.dpo_beta = 0.3;
    t.symmetric = c->symmetric;
    if (c->objective == FM_OBJECTIVE_DISTILL) {
        t.temperature = 2.0;
        t.distill_weight = 0.7;
    }
    g->job = (fm_train_job){.name = c->name,
                            .config = t,
                            .parent = fm_source_tree(g->src),
                            .batch_ids = g->ids,
                            .batch_labels = g->labels,
                            .batch_mask = g->mask,
                            .batch_parts = c->objective == FM_OBJECTIVE_CONTRASTIVE ? 3 : 0};
    if (c->teacher) {
        g->teacher = open_golden(c->teacher);
        g->teacher_p = fm_source_provider(g->teacher);
        g->job.teacher = fm_source_tree(g->teacher);
        g->job.teacher_provider = &g->teacher_p;
    }
}

static void golden_close(golden *g)
{
    fm_free(g->ids);
    fm_free(g->len);
    fm_free(g->labels);
    fm_free(g->mask);
    fm_source_close(g->ref.src);
    fm_source_close(g->teacher);
    fm_source_close(g->src);
}

static const goal_case *case_of(const char *name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++)
        if (strcmp(cases[i].name, name) == 0)
            return &cases[i];
    fail_msg("no case %s", name);
    return NULL;
}

/* ==== one micro-batch ==== */

typedef struct one {
    fm_train_result result;
    fmt_child child;
    fmt_pass *pass;
    fmt_lane *lane[2];
    size_t lanes;
    float *grads; /* [total] */
} one;

static void one_run(one *o, fm_engine *e, const fm_provider *p, const fm_train_job *job)
{
    fmt_child *ch = &o->child;
    fmt_pass_size cap;

    memset(o, 0, sizeof(*o));
    tk_ok(fmt_child_open(ch, e, p, job, 0, &o->result));
    tk_ok(fmt_child_resume(ch));
    o->lanes = fmt_objective_setup_lanes(&ch->goal, o->lane);
    cap = ch->lane.most;
    cap.rows *= (uint32_t)o->lanes;
    cap.labels *= (uint32_t)o->lanes;
    cap.seqs *= (uint32_t)o->lanes;
    tk_ok(fmt_pass_new(&o->pass, ch->net.be, o->lane, o->lanes, &cap, false));
    tk_ok(fmt_child_begin_step(ch));
    tk_ok(fmt_child_load_micro(ch, 0));
    tk_ok(fmt_pass_run(o->pass, o->lane, o->lanes));
    o->grads = fm_calloc((size_t)ch->ps.total, sizeof(float));
    tk_ok(fmt_params_get_all(&ch->ps, ch->ps.g, o->grads));
}

static void one_close(one *o)
{
    fm_free(o->grads);
    fmt_child_release(&o->child);
    fmt_pass_free(o->pass);
    fm_train_result_release(&o->result);
}

static double mean_loss(const one *o)
{
    return o->child.lane.loss / (double)o->child.targets;
}

static const float *grad_of(const one *o, const char *name, uint64_t *n)
{
    for (size_t i = 0; i < o->child.ps.count; i++)
        if (strcmp(o->child.ps.item[i].name, name) == 0) {
            *n = o->child.ps.item[i].n;
            return o->grads + o->child.ps.item[i].at;
        }
    fail_msg("nothing trains under the name %s", name);
    return NULL;
}

static bool in_ref(const ik_ref *ref, const char *name)
{
    fm_buf path;
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    bool there = fm_tree_find(fm_source_tree(ref->src), fm_buf_cstr(&path)) != NULL;
    fm_buf_release(&path);
    return there;
}

/* Norm-wise over all parameters together, and each against the largest: some of an encoder's
 * gradients are zero but for rounding (the bias of keys). */
static double compare_grads(const one *o, const ik_ref *ref)
{
    double worst = 0.0, largest = 0.0;

    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < o->child.ps.count; i++) {
            const fmt_param *p = &o->child.ps.item[i];
            char name[256];
            double diff = 0.0, norm = 0.0;
            (void)snprintf(name, sizeof(name), "grad.%s", p->name);
            float *want = in_ref(ref, name) ? ik_ref_get(ref, name, NULL) : NULL;
            for (uint64_t k = 0; k < p->n; k++) {
                double w = want ? (double)want[k] : 0.0;
                double d = (double)o->grads[p->at + k] - w;
                diff += d * d;
                norm += w * w;
            }
            fm_free(want);
            largest = fmax(largest, sqrt(norm));
            if (pass)
                tk_assert_le(sqrt(diff), 3e-6 * largest, p->name);
            worst = fmax(worst, sqrt(diff));
        }
    return worst / largest;
}

TEST(gradients_equal_those_of_torch)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        golden g;
        one o;
        fm_engine *e = ik_engine(2, 64);
        golden_open(&g, &cases[i]);
        double *loss = ik_ref_get(&g.ref, "loss", NULL);
        one_run(&o, e, &g.p, &g.job);
        tk_assert_le(fabs(mean_loss(&o) - *loss), 2e-6, cases[i].name);
        print_message("%s: loss %.7f, off by %.1g, worst gradient %.1g\n", cases[i].name,
                      mean_loss(&o), fabs(mean_loss(&o) - *loss), compare_grads(&o, &g.ref));
        one_close(&o);
        fm_free(loss);
        golden_close(&g);
        fm_engine_free(e);
    }
}

/* Vectors of all shards stand against each other: torch's gradient of the whole batch, whether the
 * pass that made the vectors still stands or runs again. */
TEST(shards_share_their_negatives)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        golden g;
        one o;
        bool stands = false;
        fmt_shard_sum sum;
        if (cases[i].objective != FM_OBJECTIVE_CONTRASTIVE)
            continue;
        fm_engine *e = ik_engine(1, 64);
        golden_open(&g, &cases[i]);
        double *loss = ik_ref_get(&g.ref, "loss", NULL);
        g.job.config.shards = 2;
        one_run(&o, e, &g.p, &g.job); /* its micro-batch is the first shard's: other vectors */
        fmt_child *ch = &o.child;
        tk_ok(fmt_child_begin_step(ch));
        tk_ok(fmt_child_gather(ch, o.pass, &stands));
        assert_true(stands);
        for (uint32_t s = 0; s < 2; s++) {
            fmt_child_begin_shard(ch, s);
            tk_ok(fmt_child_load_micro(ch, 0));
            tk_ok(fmt_pass_run(o.pass, o.lane, o.lanes));
            fmt_child_end_micro(ch);
            tk_ok(fmt_child_end_shard(ch, s));
        }
        tk_ok(fmt_shards_reduce(&ch->shards, &ch->ps));
        tk_ok(fmt_shards_total(&ch->shards, &sum));
        tk_ok(fmt_params_get_all(&ch->ps, ch->ps.g, o.grads));
        tk_assert_le(fabs(sum.loss / (double)ch->targets - *loss), 2e-6, cases[i].name);
        print_message("%s: 2 shards, worst gradient %.1g\n", cases[i].name,
                      compare_grads(&o, &g.ref));
        one_close(&o);
        fm_free(loss);
        golden_close(&g);
        fm_engine_free(e);
    }
}

TEST(steps_equal_those_of_torch)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        golden g;
        fm_train_result r;
        fm_engine *e = ik_engine(1, 64);
        golden_open(&g, &cases[i]);
        float *loss = ik_ref_get(&g.ref, "train.loss", NULL);
        float *norm = ik_ref_get(&g.ref, "train.norm", NULL);
        double worst = 0.0;
        tk_ok(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL));
        for (size_t s = 0; s < STEPS; s++) {
            double off = fabs(kit_log(&r, s, "loss") - (double)loss[s]);
            worst = fmax(worst, off);
            tk_assert_le(off, 2e-5, cases[i].name);
            tk_assert_le(fabs(kit_log(&r, s, "grad_norm") / (double)norm[s] - 1.0), 2e-4,
                         "gradient norm");
        }
        print_message("%s: worst loss of %u steps %.1g off\n", cases[i].name, STEPS, worst);
        fm_train_result_release(&r);
        fm_free(loss);
        fm_free(norm);
        golden_close(&g);
        fm_engine_free(e);
    }
}

/* ==== DPO ==== */

TEST(dpo_begins_at_log_2)
{
    golden g;
    one o;
    fm_engine *e = ik_engine(1, 64);
    float lp[T];

    golden_open(&g, case_of("dpo"));
    fm_model *m = ik_model(e, g.src, "parent");
    one_run(&o, e, &g.p, &g.job);
    tk_assert_le(fabs(mean_loss(&o) - log(2.0)), 1e-6, "loss");
    /* The reference's rows are what infer scores. */
    const fmt_lane *ref = &o.child.goal.aux;
    const float *row = o.pass->host_loss + ref->label0;
    assert_int_equal(o.lanes, 2);
    for (size_t i = 0, k = 0; i < 4; i++) {
        tk_ok(fm_score(m, g.ids + i * T, (size_t)g.len[i], lp, NULL, 0));
        for (uint32_t t = 3; t < (uint32_t)g.len[i]; t++, k++)
            tk_assert_le(fabs((double)row[k] + (double)lp[t]), 1e-6, "log-probability");
        assert_true(k <= ref->labels);
    }
    one_close(&o);
    fm_model_close(m);
    golden_close(&g);
    fm_engine_free(e);
}

/* A frozen head scales its rows' gradient; one that trains runs again with the weights. */
TEST(both_ways_through_the_head_agree)
{
    golden g;
    one a, b;
    fm_engine *e = ik_engine(1, 64);

    golden_open(&g, case_of("dpo"));
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    c.objective = FM_OBJECTIVE_DPO;
    c.r = 2;
    c.steps = STEPS;
    c.max_tokens = T;
    g.job.config = c;
    one_run(&a, e, &g.p, &g.job);
    (void)snprintf(g.job.config.modules_to_save, sizeof(c.modules_to_save), "lm_head");
    one_run(&b, e, &g.p, &g.job);
    for (size_t i = 0; i < a.child.ps.count; i++) {
        const fmt_param *p = &a.child.ps.item[i];
        uint64_t n = 0;
        const float *other = grad_of(&b, p->name, &n);
        assert_int_equal(n, p->n);
        if (strstr(p->name, "lora_B"))
            tk_assert_le(tk_rel_norm(a.grads + p->at, other, (size_t)n), 2e-6, p->name);
    }
    one_close(&a);
    one_close(&b);
    golden_close(&g);
    fm_engine_free(e);
}

/* The reference's rows are saved by no layer: less memory than two lanes that train. */
TEST(frozen_rows_are_not_saved)
{
    golden g;
    one dpo, a, b;
    fmt_pass *both = NULL;
    fm_engine *e = ik_engine(1, 64);

    golden_open(&g, case_of("dpo"));
    one_run(&dpo, e, &g.p, &g.job);
    g.job.config.objective = FM_OBJECTIVE_NEXT_TOKEN;
    one_run(&a, e, &g.p, &g.job);
    one_run(&b, e, &g.p, &g.job);
    fmt_pass_size cap = dpo.pass->cap;
    fmt_lane *lanes[] = {&a.child.lane, &b.child.lane};
    tk_ok(fmt_pass_new(&both, a.child.net.be, lanes, 2, &cap, false));
    /* A row is 116 floats of each of the two layers but its input; 16 rows are the unit. */
    uint64_t layer = (cap.rows / 2 - 5) * 116 * sizeof(float);
    print_message("%u rows with a reference: %llu bytes, as two that train: %llu\n", cap.rows,
                  (unsigned long long)fmt_pass_bytes(dpo.pass),
                  (unsigned long long)fmt_pass_bytes(both));
    assert_true(fmt_pass_bytes(dpo.pass) + layer <= fmt_pass_bytes(both));
    fmt_pass_free(both);
    one_close(&dpo);
    one_close(&a);
    one_close(&b);
    golden_close(&g);
    fm_engine_free(e);
}

/* ==== distillation ==== */

TEST(nothing_is_learnt_from_oneself)
{
    static const double temperature[] = {1.0, 2.5};
    for (size_t k = 0; k < 2; k++) {
        golden g;
        one o;
        fm_engine *e = ik_engine(2, 64);
        golden_open(&g, case_of("distill"));
        g.job.teacher = g.job.parent;
        g.job.teacher_provider = &g.p;
        g.job.config.temperature = temperature[k];
        g.job.config.distill_weight = 1.0;
        one_run(&o, e, &g.p, &g.job);
        assert_int_equal(o.lanes, 2);
        assert_true(mean_loss(&o) == 0.0);
        for (uint64_t i = 0; i < o.child.ps.total; i++)
            assert_true(o.grads[i] == 0.0f);
        one_close(&o);
        golden_close(&g);
        fm_engine_free(e);
    }
}

/* ==== many children, threads ==== */

#define CHILDREN 5u

typedef struct family {
    golden g[CHILDREN];
    fm_train_job job[CHILDREN];
} family;

/* Children of one parent: the same tree, other objectives and settings. */
static void family_open(family *f)
{
    static const char *const of[CHILDREN] = {"distill", "dpo", "distill-same", "contrastive-llama",
                                             "classify-llama"};
    for (size_t i = 0; i < CHILDREN; i++) {
        golden_open(&f->g[i], case_of(of[i]));
        f->job[i] = f->g[i].job;
        f->job[i].parent = f->g[0].job.parent;
        f->job[i].config.method = FM_METHOD_LORA;
        f->job[i].config.r = (uint32_t)i + 2;
        f->job[i].config.alpha = 8.0;
        f->job[i].config.lr = 1e-2;
        f->job[i].config.weight_decay = 0.0;
        f->job[i].config.steps = 3;
    }
    f->job[0].config.objective = FM_OBJECTIVE_NEXT_TOKEN;
    f->job[0].teacher = NULL;
}

static void family_close(family *f)
{
    for (size_t i = 0; i < CHILDREN; i++)
        golden_close(&f->g[i]);
}

TEST(mixed_objectives_in_one_pass_equal_solo_runs)
{
    family f;
    fm_train_result solo[CHILDREN], joint[CHILDREN], three[CHILDREN];
    fm_engine *e = ik_engine(1, 64), *e3 = ik_engine(3, 64);

    family_open(&f);
    for (size_t i = 0; i < CHILDREN; i++)
        tk_ok(fm_train_run(e, &f.g[0].p, &f.job[i], 1, &solo[i], NULL, NULL));
    tk_ok(fm_train_run(e, &f.g[0].p, f.job, CHILDREN, joint, NULL, NULL));
    tk_ok(fm_train_run(e3, &f.g[0].p, f.job, CHILDREN, three, NULL, NULL));
    for (size_t i = 0; i < CHILDREN; i++) {
        kit_same_bits(&solo[i], &joint[i]);
        kit_same_bits(&solo[i], &three[i]);
        assert_true(kit_log(&solo[i], 2, "loss") == kit_log(&joint[i], 2, "loss"));
        assert_true(kit_log(&solo[i], 2, "loss") != kit_log(&solo[i], 0, "loss"));
        fm_train_result_release(&solo[i]);
        fm_train_result_release(&joint[i]);
        fm_train_result_release(&three[i]);
    }
    family_close(&f);
    fm_engine_free(e);
    fm_engine_free(e3);
}

/* ==== evaluation ==== */

/* Rows of the first step of a golden as examples. */
static void examples_of(fm_example *x, const fm_example **list, const golden *g, uint32_t rows,
                        uint32_t parts, int32_t **joined)
{
    *joined = fm_calloc((size_t)rows * T * 2, sizeof(int32_t));
    for (uint32_t i = 0; i < rows / parts; i++) {
        int32_t *ids = *joined + (size_t)i * parts * T * 2;
        x[i] = (fm_example){.ids = ids, .labels = ids + parts * T, .parts = parts, .klass = -1};
        for (uint32_t k = 0; k < parts; k++) {
            uint32_t row = i * parts + k, n = (uint32_t)g->len[row];
            memcpy(x[i].ids + x[i].len, g->ids + row * T, n * sizeof(int32_t));
            memcpy(x[i].labels + x[i].len, g->labels + row * T, n * sizeof(int32_t));
            x[i].part_len[k] = n;
            x[i].len += n;
        }
        if (g->job.config.objective == FM_OBJECTIVE_CLASSIFY)
            x[i].klass = g->labels[i * parts * T];
        list[i] = &x[i];
    }
}

static const goal_case *evaluated(size_t i)
{
    static const char *const of[] = {"distill", "dpo", "contrastive-llama", "classify-llama"};
    return case_of(of[i]);
}

TEST(held_out_examples_are_measured_and_change_nothing)
{
    for (size_t i = 0; i < 4; i++) {
        const goal_case *c = evaluated(i);
        golden g;
        fm_train_result with, without;
        fm_example x[8];
        const fm_example *list[8];
        int32_t *joined = NULL;
        fm_engine *e = ik_engine(2, 64);
        golden_open(&g, c);
        uint32_t parts = fmt_objective_setup_parts(&g.job), rows = g.job.config.batch;
        bool tokens = c->objective == FM_OBJECTIVE_DISTILL;
        if (tokens) {
            g.job.config.objective = FM_OBJECTIVE_NEXT_TOKEN;
            g.job.teacher = NULL;
        }
        g.job.config.lr = 1e-3;
        tk_ok(fm_train_run(e, &g.p, &g.job, 1, &without, NULL, NULL));
        examples_of(x, list, &g, rows, parts, &joined);
        g.job.held_out = list;
        g.job.held_outs = rows / parts;
        g.job.eval_every = 2;
        tk_ok(fm_train_run(e, &g.p, &g.job, 1, &with, NULL, NULL));
        kit_same_bits(&without, &with);
        assert_true(kit_log(&with, 0, "eval_loss") == -1.0);
        assert_true(kit_log(&with, 1, "eval_loss") > 0.0);
        assert_true(kit_log(&with, 2, "eval_loss") == -1.0);
        assert_true(kit_log(&with, 4, "eval_loss") > 0.0);
        const char *other = tokens ? "eval_perplexity" : "eval_accuracy";
        double score = kit_log(&with, 4, other);
        assert_true(score >= 0.0);
        if (tokens)
            tk_assert_le(fabs(score - exp(kit_log(&with, 4, "eval_loss"))), 1e-9, "perplexity");
        fm_train_result_release(&with);
        /* With nothing learnt, the held-out loss of the step's own rows is the step's loss. */
        g.job.config.lr = 0.0;
        g.job.config.steps = 1;
        tk_ok(fm_train_run(e, &g.p, &g.job, 1, &with, NULL, NULL));
        tk_assert_le(fabs(kit_log(&with, 0, "eval_loss") - kit_log(&with, 0, "loss")), 1e-7,
                     c->name);
        fm_train_result_release(&with);
        fm_train_result_release(&without);
        fm_free(joined);
        golden_close(&g);
        fm_engine_free(e);
    }
}

/* ==== what comes out ==== */

/* The tree of a child as derive commits it. */
static fm_tree *child_tree(ik_mem *mem, const fm_tree *parent, const fm_train_result *r)
{
    fm_tree *tree = NULL;
    const char *where = r->adapter_config ? "adapters/0-lora/tensors" : "tensors";
    fm_buf text;

    tk_ok(fm_tree_copy(&tree, parent));
    for (size_t i = 0; i < r->count; i++) {
        const fm_trained *x = &r->tensors[i];
        assert_int_equal(x->dtype, FM_F32);
        ik_put(mem, tree, where, x->name, (const float *)(const void *)x->data, x->shape.rank,
               x->shape.dim[0], x->shape.dim[1]);
    }
    if (r->model_json)
        tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(r->model_json)));
    fm_buf_init(&text, 0);
    if (r->adapter_config) {
        tk_ok(fm_json_write(&text, r->adapter_config, FM_JSON_PRETTY));
        tk_ok(fm_tree_put_file(tree, "adapters/0-lora/adapter_config.json", fm_buf_span(&text)));
    }
    fm_buf_release(&text);
    return tree;
}

/* FM_OBJECTIVES_OUT=DIR leaves what tests/peer/classify_load.py gives to transformers and PEFT. */
static void leave(const char *name, const fm_tree *tree, const fm_provider *p, bool adapter,
                  const golden *g, const float *logprobs, size_t rows)
{
    const char *out = getenv("FM_OBJECTIVES_OUT");
    fm_json *all = fm_json_new_array();
    fm_buf text;

    if (!out || !*out) {
        fm_json_free(all);
        return;
    }
    char *dst = fm_asprintf("%s/%s", out, name), *file = fm_asprintf("%s/%s.json", out, name);
    tk_ok(fm_export(tree, p, dst, adapter ? FM_EXPORT_PEFT : FM_EXPORT_HF, FM_DTYPE_NONE));
    for (size_t i = 0; i < rows; i++) {
        fm_json *o = fm_json_new_object(), *ids = fm_json_new_array(), *lp = fm_json_new_array();
        for (int32_t t = 0; t < g->len[i]; t++)
            tk_ok(fm_json_push(ids, fm_json_new_int(g->ids[i * T + (size_t)t])));
        for (size_t k = 0; k < 3; k++)
            tk_ok(fm_json_push(lp, fm_json_new_real((double)logprobs[i * 3 + k])));
        tk_ok(fm_json_set(o, "ids", ids));
        tk_ok(fm_json_set(o, "logprobs", lp));
        tk_ok(fm_json_push(all, o));
    }
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, all, FM_JSON_COMPACT));
    tk_ok(fm_write_file(file, text.data, text.len));
    fm_buf_release(&text);
    fm_json_free(all);
    fm_free(dst);
    fm_free(file);
}

static const char *const class_name[] = {"red", "green", "blue"};

/* PEFT's names are those of the class with the head: the model inside it, and the head. */
static void named_as_peft_does(const fm_train_result *r, const char *model)
{
    char inner[64];
    if (!strstr(model, "bert")) /* a decoder's are "model." as its tensors' */
        return;
    (void)snprintf(inner, sizeof(inner), "base_model.model.%s.", model);
    for (size_t i = 0; i < r->count; i++) {
        const char *name = r->tensors[i].name;
        assert_true(strncmp(name, inner, strlen(inner)) == 0 ||
                    strncmp(name, "base_model.model.classifier.", 28) == 0 ||
                    strncmp(name, "base_model.model.pre_classifier.", 32) == 0);
    }
}

/* The child's own evaluation is what infer gives of the version that it becomes. */
static void classify_and_load(const char *name, const char *parent, bool bare, fm_method method)
{
    golden g;
    fm_train_result r;
    fm_example x[4];
    const fm_example *list[4];
    int32_t *joined = NULL;
    ik_mem mem = {.behind_count = 1};
    fm_provider p = ik_provider(&mem);
    fm_model *m = NULL;
    float lp[4 * 3];
    fm_engine *e = ik_engine(2, 64);

    golden_open(&g, case_of(parent));
    fm_tree *base = NULL;
    tk_ok(fm_tree_copy(&base, g.job.parent));
    mem.behind[0] = g.p;
    if (bare) { /* a head is made where the parent has none */
        static const float head[48 * 16];
        tk_ok(fm_tree_remove(base, "tensors/score.weight"));
        ik_put(&mem, base, "tensors", "lm_head.weight", head, 2, 48, 16);
    }
    examples_of(x, list, &g, 4, 1, &joined);
    g.job.parent = base;
    g.job.held_out = list;
    g.job.held_outs = 4;
    g.job.class_name = class_name;
    g.job.class_names = 3;
    g.job.config.method = method;
    g.job.config.lr = 3e-2;
    g.job.config.r = 2;
    tk_ok(fm_train_run(e, &p, &g.job, 1, &r, NULL, NULL));
    fm_tree *tree = child_tree(&mem, base, &r);
    tk_ok(fm_model_load(&m, e, tree, &p, name));
    assert_int_equal(fm_model_classes(m), 3);
    assert_string_equal(fm_model_label(m, 2), "blue");
    double loss = 0.0, right = 0.0;
    for (size_t i = 0; i < 4; i++) {
        fm_classify_request q = {m, g.ids + i * T, (size_t)g.len[i], lp + i * 3};
        int32_t k = x[i].klass;
        tk_ok(fm_classify_many(e, &q, 1));
        loss -= (double)lp[i * 3 + (size_t)k] / 4.0;
        bool best = true;
        for (size_t j = 0; j < 3; j++)
            best = best && lp[i * 3 + j] <= lp[i * 3 + (size_t)k];
        right += best ? 0.25 : 0.0;
    }
    tk_assert_le(fabs(loss - kit_log(&r, STEPS - 1, "eval_loss")), 2e-6, "loss of the version");
    tk_assert_le(fabs(right - kit_log(&r, STEPS - 1, "eval_accuracy")), 1e-12, "accuracy");
    if (r.adapter_config) {
        const fm_json *saved = fm_json_get(r.adapter_config, "modules_to_save");
        assert_string_equal(fm_json_cstr(fm_json_get(r.adapter_config, "task_type"), ""),
                            "SEQ_CLS");
        assert_true(fm_json_count(saved) >= 1);
        named_as_peft_does(&r, parent + strlen("classify-"));
    }
    leave(name, tree, &p, r.adapter_config != NULL, &g, lp, 4);
    fm_model_close(m);
    fm_tree_free(tree);
    fm_tree_free(base);
    ik_mem_free(&mem);
    fm_train_result_release(&r);
    fm_free(joined);
    golden_close(&g);
    fm_engine_free(e);
}

TEST(classifiers_become_versions_that_infer_runs)
{
    classify_and_load("llama-full", "classify-llama", false, FM_METHOD_FULL);
    classify_and_load("llama-lora", "classify-llama", false, FM_METHOD_LORA);
    classify_and_load("llama-bare-full", "classify-llama", true, FM_METHOD_FULL);
    classify_and_load("llama-bare-lora", "classify-llama", true, FM_METHOD_LORA);
    classify_and_load("bert-full", "classify-bert", false, FM_METHOD_FULL);
    classify_and_load("bert-lora", "classify-bert", false, FM_METHOD_LORA);
    classify_and_load("roberta-lora", "classify-roberta", false, FM_METHOD_LORA);
    classify_and_load("distilbert-full", "classify-distilbert", false, FM_METHOD_FULL);
    classify_and_load("distilbert-lora", "classify-distilbert", false, FM_METHOD_LORA);
}

TEST(what_does_not_fit_is_refused_by_name)
{
    golden g, other;
    fm_train_result r;
    fm_engine *e = ik_engine(1, 64);

    golden_open(&g, case_of("classify-llama"));
    g.job.config.classes = 2;
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EINVAL, "classes=2");
    g.job.config.classes = 4;
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EBASE, "3 classes");
    g.job.config.classes = 0;
    g.labels[T] = -1;
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EINVAL, "no class");
    g.job.config.objective = FM_OBJECTIVE_NEXT_TOKEN;
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EUNSUPPORTED, "language head");
    golden_close(&g);

    golden_open(&g, case_of("contrastive-llama"));
    (void)snprintf(g.job.config.pooling, sizeof(g.job.config.pooling), "max");
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EINVAL, "'max'");
    g.job.config.batch = 5;
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EINVAL, "whole examples");
    golden_close(&g);

    golden_open(&g, case_of("distill"));
    g.job.teacher = NULL;
    tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EINVAL, "teacher");
    fm_source *llama = ik_source("arch/llama");
    if (llama) {
        fm_provider p = fm_source_provider(llama);
        g.job.teacher = fm_source_tree(llama);
        g.job.teacher_provider = &p;
        tk_fails(fm_train_run(e, &g.p, &g.job, 1, &r, NULL, NULL), FM_EINVAL, "vocabulary");
        fm_source_close(llama);
    }
    golden_close(&g);

    golden_open(&other, case_of("contrastive"));
    other.job.config.objective = FM_OBJECTIVE_DPO;
    tk_fails(fm_train_run(e, &other.p, &other.job, 1, &r, NULL, NULL), FM_EUNSUPPORTED,
             "contrastive or classify");
    golden_close(&other);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_those_of_torch),
        cmocka_unit_test(shards_share_their_negatives),
        cmocka_unit_test(steps_equal_those_of_torch),
        cmocka_unit_test(dpo_begins_at_log_2),
        cmocka_unit_test(both_ways_through_the_head_agree),
        cmocka_unit_test(frozen_rows_are_not_saved),
        cmocka_unit_test(nothing_is_learnt_from_oneself),
        cmocka_unit_test(mixed_objectives_in_one_pass_equal_solo_runs),
        cmocka_unit_test(held_out_examples_are_measured_and_change_nothing),
        cmocka_unit_test(classifiers_become_versions_that_infer_runs),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
