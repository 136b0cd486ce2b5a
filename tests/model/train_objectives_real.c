/* ctest: long */
/* train_objectives_real.c - MiniLM learns to find answers, SmolLM2 to tell kinds of texts apart. */
#include "tests/model/train_kit.h"

#include "train/net/internal.h"

static fm_json *alpaca;
static fm_buf shakespeare;

/* A row of exact batches: the text's tokens, cut. */
static void put_row(const fm_model *m, fm_span text, uint32_t room, int32_t *ids, int32_t *mask)
{
    fm_ids have = {0};
    tk_ok(fm_embed_encode(m, text, &have));
    for (uint32_t t = 0; t < room; t++) {
        mask[t] = t < have.count;
        ids[t] = t < have.count ? have.id[t] : 0;
    }
    fm_ids_release(&have);
}

typedef struct rows {
    int32_t *ids, *labels, *mask;
    uint32_t room;
} rows;

static rows rows_new(size_t n, uint32_t room)
{
    rows r = {fm_calloc(n * room, 4), fm_calloc(n * room, 4), fm_calloc(n * room, 4), room};
    for (size_t i = 0; i < n * room; i++)
        r.labels[i] = -100;
    return r;
}

static void rows_free(rows *r)
{
    fm_free(r->ids);
    fm_free(r->labels);
    fm_free(r->mask);
}

static void row_text(rows *r, const fm_model *m, size_t row, fm_span text)
{
    put_row(m, text, r->room, r->ids + row * r->room, r->mask + row * r->room);
}

static fm_span field(size_t record, const char *name)
{
    return fm_json_str(fm_json_get(fm_json_at(alpaca, record), name));
}

/* ==== embeddings ==== */

#define PAIRS 32u /* of a step */
#define SEEN 8u   /* steps */
#define HELD 128u
#define WORDS 32u /* tokens of a text */

/* Mean reciprocal rank of each record's output among those of all, by its instruction. */
static double find_answers(const fm_model *m, fm_model *run)
{
    size_t h = fm_model_arch(m)->hidden;
    float *v = fm_calloc(2 * HELD * h, sizeof(float));
    rows r = rows_new(2 * HELD, WORDS);
    fm_embed_request q[2 * HELD];
    double sum = 0.0;

    for (size_t i = 0; i < 2 * HELD; i++) {
        uint32_t n = 0;
        row_text(&r, m, i, field(PAIRS * SEEN + i / 2, i % 2 ? "output" : "instruction"));
        while (n < WORDS && r.mask[i * WORDS + n])
            n++;
        q[i] = (fm_embed_request){run, r.ids + i * WORDS, n, v + i * h};
    }
    tk_ok(fm_embed_many(fm_model_engine(run), q, 2 * HELD));
    for (size_t i = 0; i < HELD; i++) {
        double own = 0.0;
        size_t rank = 1;
        for (size_t k = 0; k < h; k++)
            own += (double)v[2 * i * h + k] * (double)v[(2 * i + 1) * h + k];
        for (size_t j = 0; j < HELD; j++) {
            double s = 0.0;
            for (size_t k = 0; k < h; k++)
                s += (double)v[2 * i * h + k] * (double)v[(2 * j + 1) * h + k];
            rank += j != i && s > own;
        }
        sum += 1.0 / (double)rank;
    }
    fm_free(v);
    rows_free(&r);
    return sum / HELD;
}

static fm_tree *with_adapter(ik_mem *mem, const fm_tree *parent, const fm_train_result *r)
{
    fm_tree *tree = NULL;
    fm_buf text;
    tk_ok(fm_tree_copy(&tree, parent));
    for (size_t i = 0; i < r->count; i++)
        ik_put(mem, tree, r->adapter_config ? "adapters/0-lora/tensors" : "tensors",
               r->tensors[i].name, (const float *)(const void *)r->tensors[i].data,
               r->tensors[i].shape.rank, r->tensors[i].shape.dim[0], r->tensors[i].shape.dim[1]);
    fm_buf_init(&text, 0);
    if (r->adapter_config) {
        tk_ok(fm_json_write(&text, r->adapter_config, FM_JSON_COMPACT));
        tk_ok(fm_tree_put_file(tree, "adapters/0-lora/adapter_config.json", fm_buf_span(&text)));
    }
    if (r->model_json)
        tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(r->model_json)));
    fm_buf_release(&text);
    return tree;
}

TEST(minilm_finds_more_answers)
{
    char *dir = tk_minilm();
    fm_source *src = NULL;
    fm_train_result r;
    fm_engine *e = ik_engine(0, 256);
    ik_mem mem = {.behind_count = 1};
    fm_provider p = ik_provider(&mem);

    tk_ok(fm_source_open(&src, dir));
    fm_free(dir);
    mem.behind[0] = fm_source_provider(src);
    fm_model *m = ik_model(e, src, "MiniLM");
    fmt_net net;
    fm_status trains = fmt_net_init(&net, fm_engine_backend(e), fm_model_arch(m), NULL);
    fmt_net_release(&net);
    if (trains == FM_EUNSUPPORTED) {
        print_message("SKIPPED: this build does not train BERT\n");
    } else {
        rows t = rows_new(2 * PAIRS * SEEN, WORDS);
        for (size_t i = 0; i < 2 * PAIRS * SEEN; i++)
            row_text(&t, m, i, field(i / 2, i % 2 ? "output" : "instruction"));
        fm_train_config c = fm_train_defaults(FM_METHOD_FULL);
        c.objective = FM_OBJECTIVE_CONTRASTIVE;
        c.dtype = FM_F32;
        c.lr = 5e-5;
        c.steps = SEEN;
        c.batch = 2 * PAIRS;
        c.max_tokens = WORDS;
        fm_train_job j = {.name = "minilm",
                          .config = c,
                          .parent = fm_source_tree(src),
                          .batch_ids = t.ids,
                          .batch_labels = t.labels,
                          .batch_mask = t.mask};
        tk_ok(fm_train_run(e, &p, &j, 1, &r, NULL, NULL));
        fm_tree *tree = with_adapter(&mem, fm_source_tree(src), &r);
        fm_model *child = NULL;
        tk_ok(fm_model_load(&child, e, tree, &p, "child"));
        double before = find_answers(m, m), after = find_answers(m, child);
        print_message("MiniLM: loss %.4f to %.4f; mean reciprocal rank of %u held out: %.4f to "
                      "%.4f (%.1f s)\n",
                      kit_log(&r, 0, "loss"), kit_log(&r, SEEN - 1, "loss"), HELD, before, after,
                      r.seconds);
        assert_true(after > before + 0.005);
        fm_model_close(child);
        fm_tree_free(tree);
        fm_train_result_release(&r);
        rows_free(&t);
    }
    fm_model_close(m);
    ik_mem_free(&mem);
    fm_source_close(src);
    fm_engine_free(e);
}

/* ==== classes ==== */

#define LINES 200u
#define HELD_OUT 40u
#define BATCH 20u
#define SHORT 14u

/* The i-th line of Shakespeare with some length. */
static fm_span line_of(size_t i)
{
    const char *at = fm_buf_cstr(&shakespeare);
    for (;;) {
        size_t n = strcspn(at, "\n");
        if (n > 30 && i-- == 0)
            return fm_span_of(at, n);
        at += n + (at[n] != 0);
        if (!*at)
            fail_msg("too few lines");
    }
}

/* Verse and prose by turns. */
static fm_span text_of_class(size_t i)
{
    return i % 2 ? line_of(i) : field(i, "output");
}

TEST(smollm2_tells_kinds_of_texts_apart)
{
    char *gguf = tk_smollm2_gguf();
    fm_source *src = NULL;
    fm_train_result r;
    fm_engine *e = ik_engine(0, 64);
    fm_example x[HELD_OUT];
    const fm_example *list[HELD_OUT];

    tk_ok(fm_source_open(&src, gguf));
    fm_free(gguf);
    fm_provider p = fm_source_provider(src);
    fm_model *m = ik_model(e, src, "smollm2");
    rows t = rows_new(LINES + HELD_OUT, SHORT);
    for (size_t i = 0; i < LINES + HELD_OUT; i++) {
        row_text(&t, m, i, text_of_class(i));
        t.labels[i * SHORT] = (int32_t)(i % 2);
    }
    for (size_t i = 0; i < HELD_OUT; i++) {
        size_t row = (LINES + i) * SHORT;
        uint32_t n = 0;
        while (n < SHORT && t.mask[row + n])
            n++;
        x[i] = (fm_example){
            .ids = t.ids + row, .labels = t.labels + row, .len = n, .klass = (int32_t)(i % 2)};
        list[i] = &x[i];
    }
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    c.objective = FM_OBJECTIVE_CLASSIFY;
    (void)snprintf(c.targets, sizeof(c.targets), "q_proj,v_proj");
    c.lr = 3e-3;
    c.steps = LINES / BATCH;
    c.batch = BATCH;
    c.max_tokens = SHORT;
    fm_train_job j = {.name = "smollm2",
                      .config = c,
                      .parent = fm_source_tree(src),
                      .batch_ids = t.ids,
                      .batch_labels = t.labels,
                      .batch_mask = t.mask,
                      .held_out = list,
                      .held_outs = HELD_OUT};
    tk_ok(fm_train_run(e, &p, &j, 1, &r, NULL, NULL));
    double right = kit_log(&r, c.steps - 1, "eval_accuracy");
    print_message(
        "SmolLM2: loss %.3f to %.3f; %.0f of %u held-out lines of 2 kinds right (%.1f s)\n",
        kit_log(&r, 0, "loss"), kit_log(&r, c.steps - 1, "loss"), right * HELD_OUT, HELD_OUT, r.seconds);
    assert_true(right >= 0.75); /* chance: a half */
    fm_train_result_release(&r);
    rows_free(&t);
    fm_model_close(m);
    fm_source_close(src);
    fm_engine_free(e);
}

int main(void)
{
    char *dir = tk_minilm(), *gguf = tk_smollm2_gguf();
    char *path = tk_shared("text/alpaca_en_demo.json");
    char *text = tk_shared("text/tinyshakespeare.txt");
    bool all = dir && gguf && path && text;
    fm_free(dir);
    fm_free(gguf);
    if (all) {
        tk_ok(fm_json_parse_file(&alpaca, path, (size_t)1 << 24));
        fm_buf_init(&shakespeare, 0);
        tk_ok(fm_read_file(&shakespeare, text, (size_t)1 << 24));
    }
    fm_free(path);
    fm_free(text);
    if (!all)
        return tk_skip("SmolLM2, MiniLM or the texts are not on this machine (FM_MODELS, "
                       "FM_SHARED_DATA)");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(minilm_finds_more_answers),
        cmocka_unit_test(smollm2_tells_kinds_of_texts_apart),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_json_free(alpaca);
    fm_buf_release(&shakespeare);
    return failed;
}
