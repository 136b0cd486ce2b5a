/* ctest: apart stages=2:3 */
/* Activation patching against PyTorch hooks (golden/trace: tests/peer/trace_golden.py), and what it
 * must leave alone. */
#include "tests/model/trace_kit.h"

TEST(grids_are_those_of_pytorch_hooks)
{
    for (uint32_t rows = 5; rows <= 512; rows *= 10) /* steps that cut lanes, and that hold many */
        for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
            fm_engine *e = ik_engine(2, rows);
            pair p;
            open_pair(&p, e, names[i]);
            check_direction(&p, 0, "to_child");
            check_direction(&p, 1, "to_parent");
            close_pair(&p);
            fm_engine_free(e);
        }
}

/* One text in one step: logits [n, vocab], with hooks. */
static void run(fm_model *m, const int32_t *ids, uint32_t n, const fm_hook *hook, size_t hooks,
                float *out)
{
    fm_engine *e = fm_model_engine(m);
    size_t vocab = fm_model_arch(m)->vocab;
    fm_row row[64];
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    tk_ok(fm_seq_hooks(s, hook, hooks));
    for (uint32_t i = 0; i < n; i++)
        row[i] = (fm_row){s, ids[i], true};
    tk_ok(fm_engine_step(e, row, n));
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * vocab, fm_engine_logits(e, i), vocab * sizeof(float));
    fm_seq_close(s);
}

enum { TOKENS = 40, VOCAB = 48, HIDDEN = 32 };

TEST(a_models_own_states_change_no_bit)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        fm_engine *e = ik_engine(2, 64);
        pair p;
        open_pair(&p, e, names[i]);
        static float plain[TOKENS * VOCAB], patched[TOKENS * VOCAB], states[TOKENS * HIDDEN];
        int32_t ids[TOKENS];
        for (int k = 0; k < TOKENS; k++)
            ids[k] = 3 + k * 7 % 40;
        run(p.m[0], ids, TOKENS, NULL, 0, plain);
        for (unsigned s = 0; s < FM_SITES; s++)
            for (uint32_t l = 0; l < fm_model_arch(p.m[0])->layers + (s == 0); l++) {
                fm_hook h = {(fm_site)s, l, 0, TOKENS, states, NULL};
                run(p.m[0], ids, TOKENS, &h, 1, patched);
                assert_memory_equal(patched, plain, sizeof plain);
                h = (fm_hook){(fm_site)s, l, 3, 20, NULL, states + 3 * HIDDEN};
                run(p.m[0], ids, TOKENS, &h, 1, patched);
                assert_memory_equal(patched, plain, sizeof plain);
            }
        close_pair(&p);
        fm_engine_free(e);
    }
}

/* Where parent and child share norm and head, the last layer's stream is all that the logits are
 * made of. */
TEST(all_tokens_of_the_last_layer_give_the_other_model)
{
    fm_engine *e = ik_engine(2, 64);
    pair p;
    open_pair(&p, e, "olmo2");
    fm_tree *tree = NULL;
    ik_mem both = {.behind_count = 2,
                   .behind = {fm_source_provider(p.src[0]), fm_source_provider(p.src[1])}};
    static const char *const shared[] = {"tensors/model/norm.weight", "tensors/lm_head.weight"};
    tk_ok(fm_tree_copy(&tree, fm_source_tree(p.src[0])));
    for (size_t i = 0; i < FM_ARRAY_LEN(shared); i++) {
        const fm_entry *entry = fm_tree_find(fm_source_tree(p.src[1]), shared[i]);
        assert_non_null(entry);
        tk_ok(fm_tree_put_entry(tree, entry));
    }
    fm_model *mixed = NULL;
    fm_provider provider = ik_provider(&both);
    tk_ok(fm_model_load(&mixed, e, tree, &provider, "mixed"));
    static float want[TOKENS * VOCAB], got[TOKENS * VOCAB], states[TOKENS * HIDDEN];
    int32_t ids[TOKENS];
    for (int k = 0; k < TOKENS; k++)
        ids[k] = 3 + k * 11 % 43;
    uint32_t last = fm_model_arch(mixed)->layers;
    fm_hook h = {FM_SITE_RESIDUAL, last, 0, TOKENS, states, NULL};
    run(p.m[1], ids, TOKENS, &h, 1, want);
    run(mixed, ids, TOKENS, NULL, 0, got);
    assert_memory_not_equal(got, want, sizeof want);
    h = (fm_hook){FM_SITE_RESIDUAL, last, 0, TOKENS, NULL, states};
    run(mixed, ids, TOKENS, &h, 1, got);
    assert_memory_equal(got, want, sizeof want);
    fm_model_close(mixed);
    fm_tree_free(tree);
    close_pair(&p);
    fm_engine_free(e);
}

/* A patched sequence and a plain one in one step, over more than a page; then the same text again,
 * which the prefix cache answers: nothing of the patched one is in it. */
TEST(neighbours_and_cache_are_left_alone)
{
    enum { N = 60 };
    static float junk[N * HIDDEN], want[N], lp[N];
    int32_t ids[N];
    fm_row row[2 * N];
    fm_seq *s[2];
    pair p;
    for (int round = 0; round < 2; round++) {
        fm_engine *e = ik_engine(2, 2 * N);
        open_pair(&p, e, "olmo2");
        for (int k = 0; k < N; k++)
            ids[k] = 3 + k * 13 % 41;
        if (round == 0) { /* never patched */
            tk_ok(fm_score(p.m[0], ids, N, want, NULL, 0));
        } else {
            fm_hook h = {FM_SITE_RESIDUAL, 1, 0, N, NULL, junk};
            for (int i = 0; i < 2; i++)
                tk_ok(fm_seq_open(&s[i], p.m[0]));
            tk_ok(fm_seq_hooks(s[0], &h, 1));
            for (int i = 0; i < 2 * N; i++)
                row[i] = (fm_row){s[i / N], ids[i % N], i + 1 == N || i + 1 == 2 * N};
            tk_ok(fm_engine_step(e, row, 2 * N));
            assert_memory_not_equal(fm_engine_logits(e, N - 1), fm_engine_logits(e, 2 * N - 1),
                                    VOCAB * sizeof(float));
            tk_fails(fm_seq_hooks(s[1], &h, 1), FM_EINVAL, "open a new one");
            for (int i = 0; i < 2; i++)
                fm_seq_close(s[i]);
            tk_ok(fm_score(p.m[0], ids, N, lp, NULL, 0));
            assert_memory_equal(lp, want, sizeof want);
            assert_true(fm_engine_stats_of(e).prefix_queries > 0);
        }
        close_pair(&p);
        fm_engine_free(e);
    }
}

TEST(what_cannot_be_traced_is_refused)
{
    fm_engine *e = ik_engine(1, 64);
    fm_trace t;
    pair p, q;
    open_pair(&p, e, "olmo2");
    open_pair(&q, e, "qwen3_moe");
    fm_trace_ask ask = ask_of(&p, 0, 1);
    ask.from = q.m[1];
    tk_fails(fm_trace_grid(&t, &ask), FM_EUNSUPPORTED, "2 layers of 32 against 3 of 32");
    ask = ask_of(&p, 0, 1);
    ask.right_len = 9;
    tk_fails(fm_trace_grid(&t, &ask), FM_EINVAL, "do not part");
    fm_seq *s = NULL;
    fm_hook h = {FM_SITE_MLP, 2, 0, 1, NULL, NULL};
    tk_ok(fm_seq_open(&s, p.m[0]));
    tk_fails(fm_seq_hooks(s, &h, 1), FM_EINVAL, "the model has 2 layers");
    fm_seq_close(s);
    close_pair(&q);
    close_pair(&p);
    fm_engine_free(e);
}

/* The coarse grid is one of the fine grid's questions: one column is all common tokens together. */
TEST(a_bound_on_rows_makes_the_grid_coarser)
{
    fm_engine *e = ik_engine(1, 64);
    fm_trace t;
    pair p;
    open_pair(&p, e, "olmo2");
    fm_trace_ask ask = ask_of(&p, 0, 0);
    tk_ok(fm_trace_grid(&t, &ask));
    uint64_t whole = t.run_rows;
    fm_trace_release(&t);
    ask.rows_max = whole / 3;
    tk_ok(fm_trace_grid(&t, &ask));
    assert_true(t.run_rows <= ask.rows_max + 2 * TOKENS && t.columns < t.common);
    assert_int_equal(t.begin[t.columns], t.common);
    for (unsigned s = 0; s < FM_SITES; s++) {
        assert_int_equal(t.layer[s][t.rows[s] - 1], 2 - (s > 0));
        for (uint32_t i = 0; i < t.rows[s] * t.columns; i++)
            assert_true(t.effect[s][i] == t.margin); /* its own states: not a bit */
    }
    fm_trace_release(&t);
    close_pair(&p);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_are_those_of_pytorch_hooks),
        cmocka_unit_test(a_models_own_states_change_no_bit),
        cmocka_unit_test(all_tokens_of_the_last_layer_give_the_other_model),
        cmocka_unit_test(neighbours_and_cache_are_left_alone),
        cmocka_unit_test(what_cannot_be_traced_is_refused),
        cmocka_unit_test(a_bound_on_rows_makes_the_grid_coarser),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
