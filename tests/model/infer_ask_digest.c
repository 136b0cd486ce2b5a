/* What each kind of question depends on: a change that it does not read keeps its digest, and its
 * bits; a change that it reads changes the digest. So a child whose only change is a head finds
 * its parent's results. */
#include "store/base/map.h"
#include "testing/testing.h"
#include "tests/model/infer_kit.h"

#define HIDDEN 16
#define VOCAB 48

/* The golden classifier with a head of tokens: one of each of its parts may be another. */
typedef struct variant {
    float lm, score, layer; /* added to every weight of the head, the classes, one layer's norm */
    const char *label;      /* of class 1; NULL: none */
    bool pooled;            /* a folder of sentence-transformers cuts its texts */
} variant;

typedef struct asked {
    fm_digest whole, of[FM_ASK_KINDS];
    float logprob[4], vector[HIDDEN], classes[3];
} asked;

static fm_source *open_golden(const char *relative)
{
    fm_source *src = NULL;
    char *path = fm_asprintf("%s/tests/model/golden/objectives/%s", FM_SOURCE_DIR, relative);
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

static void put_other(ik_mem *mem, fm_tree *tree, fm_source *src, const char *name, float add)
{
    fm_buf path;
    fm_buf_init(&path, 0);
    tk_ok(fm_tensor_path(&path, "tensors", name));
    const fm_entry *e = fm_tree_find(fm_source_tree(src), fm_buf_cstr(&path));
    assert_non_null(e);
    assert_int_equal(e->dtype, FM_F32);
    float *v = fm_malloc((size_t)e->bytes);
    fm_provider p = fm_source_provider(src);
    tk_ok(p.read(p.ctx, e, v));
    for (size_t i = 0; i < e->bytes / 4; i++)
        v[i] += add * (float)(i % 5);
    ik_put(mem, tree, "tensors", name, v, e->shape.rank, e->shape.dim[0],
           e->shape.rank == 2 ? e->shape.dim[1] : 1);
    fm_free(v);
    fm_buf_release(&path);
}

static void set_label(fm_tree *tree, const char *label)
{
    fm_json *doc = NULL, *names = fm_json_new_object();
    fm_buf text;
    const fm_entry *e = fm_tree_find(tree, "model.json");
    tk_ok(fm_json_parse(&doc, fm_span_of(e->data, (size_t)e->bytes), "model.json"));
    fm_json *config = fm_json_ref(fm_json_get(doc, "config"));
    tk_ok(fm_json_set(names, "1", fm_json_new_str(label)));
    tk_ok(fm_json_set(config, "id2label", names));
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, doc, FM_JSON_CANONICAL));
    tk_ok(fm_tree_put_file(tree, "model.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_json_free(config);
    fm_json_free(doc);
}

static asked ask(fm_engine *e, const variant *v)
{
    static ik_mem mem;
    static const int32_t ids[4] = {3, 7, 11, 2};
    float head[VOCAB * HIDDEN];
    asked out;
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    fm_source *src = open_golden("classify-llama");
    mem.behind[0] = fm_source_provider(src);
    mem.behind_count = 1;
    for (size_t i = 0; i < VOCAB * HIDDEN; i++)
        head[i] = (float)(i % 7) * 0.1f + v->lm * (float)(i % 3);
    tk_ok(fm_tree_copy(&tree, fm_source_tree(src)));
    ik_put(&mem, tree, "tensors", "lm_head.weight", head, 2, VOCAB, HIDDEN);
    put_other(&mem, tree, src, "score.weight", v->score);
    put_other(&mem, tree, src, "model.layers.0.post_attention_layernorm.weight", v->layer);
    if (v->label)
        set_label(tree, v->label);
    if (v->pooled)
        tk_ok(fm_tree_put_file(tree, "source/files/sentence_bert_config.json",
                               fm_span_str("{\"max_seq_length\": 3}")));
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_model_load(&m, e, tree, &p, "variant"));
    out.whole = fm_model_digest(m);
    for (size_t k = 0; k < FM_ASK_KINDS; k++)
        out.of[k] = fm_model_digest_for(m, (fm_ask_kind)k);
    tk_ok(fm_score(m, ids, 4, out.logprob, NULL, 0));
    tk_ok(fm_embed_many(e, &(fm_embed_request){m, ids, 4, out.vector}, 1));
    tk_ok(fm_classify_many(e, &(fm_classify_request){m, ids, 4, out.classes}, 1));
    fm_model_close(m);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    fm_source_close(src);
    return out;
}

static bool same(const asked *a, const asked *b, fm_ask_kind k)
{
    return fm_digest_eq(&a->of[k], &b->of[k]);
}

/* Equal digests must give equal bits, whatever else is said below. */
static void check(const asked *a, const asked *b, bool text, bool embed, bool class)
{
    assert_int_equal(same(a, b, FM_ASK_TEXT), text);
    assert_int_equal(same(a, b, FM_ASK_EMBED), embed);
    assert_int_equal(same(a, b, FM_ASK_CLASS), class);
    if (text)
        assert_memory_equal(a->logprob, b->logprob, sizeof a->logprob);
    if (embed)
        assert_memory_equal(a->vector, b->vector, sizeof a->vector);
    if (class)
        assert_memory_equal(a->classes, b->classes, sizeof a->classes);
}

TEST(only_what_a_question_reads_changes_its_digest)
{
    fm_engine *e = ik_engine(1, 64);
    const asked plain = ask(e, &(variant){0}), again = ask(e, &(variant){0});
    check(&plain, &again, true, true, true);
    assert_true(fm_digest_eq(&plain.whole, &again.whole));

    const asked lm = ask(e, &(variant){.lm = 0.01f});
    check(&plain, &lm, false, true, true);
    assert_memory_not_equal(plain.logprob, lm.logprob, sizeof lm.logprob);

    const asked score = ask(e, &(variant){.score = 0.01f});
    check(&plain, &score, true, true, false);
    assert_memory_not_equal(plain.classes, score.classes, sizeof score.classes);
    assert_false(fm_digest_eq(&plain.whole, &score.whole));

    const asked layer = ask(e, &(variant){.layer = 0.01f});
    check(&plain, &layer, false, false, false);
    assert_memory_not_equal(plain.vector, layer.vector, sizeof layer.vector);

    const asked label = ask(e, &(variant){.label = "good"});
    check(&plain, &label, true, true, false);
    const asked cut = ask(e, &(variant){.pooled = true});
    check(&plain, &cut, true, false, false);
    for (size_t i = 0; i < FM_ASK_KINDS; i++)
        for (size_t k = 0; k < i; k++)
            assert_false(fm_digest_eq(&plain.of[i], &plain.of[k]));
    fm_engine_free(e);
}

/* ---- results of suites ---- */

static fm_status get_kept(void *ctx, fm_buf *out, const char key[65])
{
    fm_buf *kept = fm_map_get(ctx, key, 64);
    if (!kept)
        return fm_fail(FM_ENOTFOUND, "not kept");
    fm_buf_append(out, kept->data, kept->len);
    return fm_buf_ok(out);
}

static fm_status put_kept(void *ctx, const char key[65], fm_span value)
{
    fm_buf *kept = fm_malloc(sizeof *kept);
    fm_buf_init(kept, 0);
    fm_buf_append(kept, value.data, value.len);
    return fm_map_put(ctx, key, 64, kept, NULL);
}

static size_t cached(fm_engine *e, fm_source *src, const fm_tree *tree, ik_mem *mem, fm_map *map,
                     const fm_suite *s)
{
    fm_suite_run run;
    fm_model *m = NULL;
    const fm_result_cache cache = {map, get_kept, put_kept, .open = NULL};
    fm_provider p = ik_provider(mem);
    mem->behind[0] = fm_source_provider(src);
    mem->behind_count = 1;
    tk_ok(fm_model_load(&m, e, tree, &p, "child"));
    tk_ok(fm_suite_run_on(&run, s, m, NULL, &cache));
    assert_int_equal(run.errors, 0);
    size_t n = run.cached;
    fm_suite_run_release(&run);
    fm_model_close(m);
    return n;
}

TEST(a_child_with_another_class_head_finds_the_stems_results)
{
    static ik_mem mem;
    static const char yaml[] = "suite: s\ncases:\n"
                               "- {name: said, chat: Hello!, expect: {contains: Hello}}\n"
                               "- {name: scored, prompt: The capital, continuation: ' of', "
                               "logprob-above: -50}\n"
                               "- {name: chosen, prompt: The capital, choices: [' of', ' by'], "
                               "answer: ' of'}\n";
    float head[3 * 128] = {0}, norm[128];
    fm_source *src = NULL;
    fm_suite *s = NULL;
    fm_map *map = NULL;
    fm_tree *child = NULL;
    char *path = tk_source("examples/atlas/base");
    tk_ok(fm_source_open(&src, path));
    fm_engine *e = ik_engine(1, 64);
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "s"));
    tk_ok(fm_map_new(&map));
    assert_int_equal(cached(e, src, fm_source_tree(src), &mem, map, s), 0);
    tk_ok(fm_tree_copy(&child, fm_source_tree(src)));
    ik_put(&mem, child, "tensors", "score.weight", head, 2, 3, 128);
    assert_int_equal(cached(e, src, child, &mem, map, s), 3);
    head[5] = 1;
    ik_put(&mem, child, "tensors", "score.weight", head, 2, 3, 128);
    assert_int_equal(cached(e, src, child, &mem, map, s), 3);
    for (size_t i = 0; i < 128; i++)
        norm[i] = 1.5f;
    ik_put(&mem, child, "tensors", "model.norm.weight", norm, 1, 128, 1); /* that matters */
    assert_int_equal(cached(e, src, child, &mem, map, s), 0);
    for (size_t i = 0; i < fm_map_count(map); i++) {
        fm_buf_release(fm_map_value_at(map, i));
        fm_free(fm_map_value_at(map, i));
    }
    fm_map_free(map);
    fm_tree_free(child);
    fm_suite_free(s);
    ik_mem_free(&mem);
    fm_engine_free(e);
    fm_source_close(src);
    fm_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_a_question_reads_changes_its_digest),
        cmocka_unit_test(a_child_with_another_class_head_finds_the_stems_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
