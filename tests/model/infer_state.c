/* ctest: apart */
/* Models with recurrent layers: every row has the bits of its model alone, whatever the neighbours,
 * the cut, rewinds and the prefix cache; answers to one prompt share it; what cannot be is refused
 * by name. */
#include "tests/model/state_kit.h"

#include "infer/engine/seq_state.h"
#include "infer/model/shard.h"

#define SEQS 7
#define RUNS 18

/* ==== one run ==== */

typedef struct actor {
    fm_seq *seq;
    int variant;
    uint32_t text;
} actor;

typedef struct run {
    world *w;
    uint64_t seed, draws;
    fm_engine *e;
    fm_model *model[VARIANTS];
    actor a[SEQS];
    uint32_t max_rows, refused;
} run;

static uint32_t draw(run *r, uint32_t below)
{
    return (uint32_t)fm_rng_below(r->seed, 77, r->draws++, below);
}

static void open_one(run *r, actor *a)
{
    a->variant = (int)draw(r, VARIANTS);
    a->text = draw(r, TEXTS);
    tk_ok(fm_seq_open(&a->seq, r->model[a->variant]));
    if (draw(r, 2) == 0)
        return;
    tk_ok(fmi_seq_expect(a->seq, TOKENS)); /* as the scheduler does */
    for (uint32_t i = 0; i < TOKENS; i++)
        fmi_seq_tell(a->seq, i, r->w->text[a->text][i]);
    fmi_seq_adopt(a->seq);
}

static void close_one(actor *a)
{
    fm_seq_close(a->seq);
    a->seq = NULL;
}

static void change_cast(run *r)
{
    for (int i = 0; i < SEQS; i++) {
        actor *a = &r->a[i];
        if (a->seq && (fm_seq_len(a->seq) == TOKENS || draw(r, 30) == 0))
            close_one(a);
        if (a->seq && draw(r, 10) == 0) {
            uint32_t to = draw(r, fm_seq_len(a->seq) + 1);
            fm_status rc = fm_seq_rewind(a->seq, to);
            assert_true(rc == FM_OK || rc == FM_ELIMIT);
            assert_true(rc != FM_OK || fm_seq_len(a->seq) == to);
        }
        if (!a->seq && draw(r, 3) == 0)
            open_one(r, a);
    }
}

/* Rows of a sequence stand together or alternate with those of others. */
static uint32_t put_rows(run *r, fm_row *row, const float **want)
{
    uint32_t n = 0, rounds = draw(r, 2) ? 6 : 1, fed[SEQS] = {0};
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t k = 0; k < SEQS; k++) {
            actor *a = &r->a[k];
            if (!a->seq || draw(r, 5) == 0)
                continue;
            uint32_t left = TOKENS - fm_seq_len(a->seq) - fed[k];
            uint32_t count = draw(r, 3) ? draw(r, left + 1) : left > 0;
            count = FM_MIN(count, r->max_rows - n);
            for (uint32_t c = 0; c < count; c++) {
                uint32_t at = fm_seq_len(a->seq) + fed[k]++;
                row[n] =
                    (fm_row){a->seq, r->w->text[a->text][at], c + 1 == count || draw(r, 4) == 0};
                want[n++] = r->w->alone[a->variant][a->text] + (size_t)at * VOCAB;
            }
        }
    return n;
}

static void check_step(run *r, uint32_t step)
{
    fm_row row[200];
    const float *want[200];
    change_cast(r);
    uint32_t n = put_rows(r, row, want);
    fm_status rc = n ? fm_engine_step(r->e, row, n) : FM_OK;
    if (rc == FM_ELIMIT) { /* nothing changed; somebody makes room */
        r->refused++;
        close_one(&r->a[draw(r, SEQS)]);
        return;
    }
    tk_ok(rc);
    for (uint32_t i = 0; i < n; i++)
        if (row[i].want_logits &&
            memcmp(fm_engine_logits(r->e, i), want[i], VOCAB * sizeof(float)) != 0)
            fail_msg("mode %s, run %d, step %u, row %u of %u differs", r->w->mode, (int)r->seed,
                     step, i, n);
}

/* Cached, not cached, and with so little room that what is kept has to leave all the time. */
static fm_engine_stats check_run(world *w, uint64_t seed, uint32_t *refused)
{
    run r = {.w = w, .seed = seed};
    uint32_t threads = 1 + draw(&r, 3);
    r.max_rows = draw(&r, 2) ? 200 : 40;
    r.e = engine_of(w, threads, r.max_rows, seed % 3 != 0, seed % 3 == 2 ? w->of->little : 0);
    for (int v = 0; v < VARIANTS; v++)
        r.model[v] = vk_load(r.e, &w->mem, w->tree[v]);
    for (uint32_t step = 0; step < 60; step++)
        check_step(&r, step);
    fm_engine_stats st = fm_engine_stats_of(r.e);
    for (int i = 0; i < SEQS; i++)
        fm_seq_close(r.a[i].seq);
    for (int v = 0; v < VARIANTS; v++)
        fm_model_close(r.model[v]);
    fm_engine_free(r.e);
    *refused += r.refused;
    return st;
}

static void check_mode(world *w, const char *mode)
{
    uint64_t hits = 0, evictions = 0;
    uint32_t refused = 0;
    w->mode = mode;
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t t = 0; t < TEXTS; t++)
            w->alone[v][t] = alone(w, v, w->text[t]);
    for (int v = 1; v < VARIANTS; v++) /* or the comparison would mean little */
        assert_true(tk_rel_norm(w->alone[v][0], w->alone[BASE][0], TOKENS * VOCAB) > 1e-3);
    for (uint64_t seed = 0; seed < RUNS; seed++) {
        fm_engine_stats st = check_run(w, seed, &refused);
        hits += st.prefix_hits;
        evictions += st.prefix_evictions;
    }
    print_message("%.24s, %s: %u tokens from the cache, %u pages left it, %u steps did not fit\n",
                  w->of->config, mode, (uint32_t)hits, (uint32_t)evictions, refused);
    assert_true(hits > 0 && evictions > 0 && refused > 0);
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t t = 0; t < TEXTS; t++)
            fm_free(w->alone[v][t]);
}

TEST(rows_have_the_bits_of_lone_ones)
{
    static const char *const modes[] = {"exact", "fast"};
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++)
        for (size_t k = 0; k < FM_ARRAY_LEN(modes); k++) {
            static world w;
            make(&w, &families[i]);
            check_mode(&w, modes[k]);
            drop(&w);
        }
}

/* Layers that share keys and values have no pages; rows that begin at an upper layer still read what
 * that layer has of its own. */
static const family uneven[] = {
    {"\"model_type\":\"gemma4_text\"," SIZES
     "\"head_dim\":8,\"global_head_dim\":12,\"attention_k_eq_v\":true,\"sliding_window\":20,"
     "\"num_global_key_value_heads\":1,\"hidden_size_per_layer_input\":6,"
     "\"vocab_size_per_layer_input\":64,\"num_kv_shared_layers\":1,\"use_double_wide_mlp\":true,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\","
     "\"full_attention\"]",
     "model.layers.2.self_attn.q_proj", "model.layers.1.mlp.up_proj.weight", 60000, 0, NULL},
    {"\"model_type\":\"gemma4_text\"," SIZES
     "\"head_dim\":8,\"global_head_dim\":16,\"sliding_window\":9,"
     "\"hidden_size_per_layer_input\":4,\"vocab_size_per_layer_input\":70,"
     "\"num_kv_shared_layers\":2,\"layer_types\":[\"sliding_attention\",\"full_attention\","
     "\"sliding_attention\",\"full_attention\"]",
     "model.layers.2.per_layer_input_gate", "model.layers.0.layer_scalar", 60000, 0, NULL},
    {"\"model_type\":\"gemma4_text\"," SIZES
     "\"head_dim\":8,\"global_head_dim\":16,\"sliding_window\":30,"
     "\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,\"num_experts\":5,"
     "\"top_k_experts\":2,\"moe_intermediate_size\":12,\"layer_types\":[\"sliding_attention\","
     "\"full_attention\",\"sliding_attention\",\"full_attention\"]",
     "model.layers.1.router.proj", "model.layers.2.router.per_expert_scale", 100000, 0, NULL},
};

TEST(rows_of_uneven_layers_have_the_bits_of_lone_ones)
{
    static const char *const modes[] = {"exact", "fast"};
    for (size_t i = 0; i < FM_ARRAY_LEN(uneven); i++)
        for (size_t k = 0; k < FM_ARRAY_LEN(modes); k++) {
            static world w;
            make(&w, &uneven[i]);
            check_mode(&w, modes[k]);
            drop(&w);
        }
}

/* ==== answers ==== */

#define ASKS 9u

typedef struct answers {
    int32_t token[ASKS][40];
    uint64_t hits, computed;
} answers;

/* Three answers of each model to one prompt, at the same time. */
static void ask(answers *out, world *w, bool cache, uint32_t at_once)
{
    fm_engine *e = engine_of(w, 2, 64, cache, 0);
    fm_model *m[VARIANTS];
    fm_gen_request q[ASKS];
    fm_gen_result r[ASKS];
    for (int v = 0; v < VARIANTS; v++)
        m[v] = vk_load(e, &w->mem, w->tree[v]);
    for (uint32_t i = 0; i < ASKS; i++) {
        q[i] = (fm_gen_request){.model = m[i / 3],
                                .prompt = w->text[0],
                                .prompt_len = 100,
                                .max_new = 40,
                                .ignore_eos = true};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.temperature = 0.8f;
        q[i].sampling.seed = i % 3;
    }
    for (uint32_t i = 0; i < ASKS; i += at_once)
        tk_ok(fm_generate(e, q + i, at_once, r + i));
    for (uint32_t i = 0; i < ASKS; i++) {
        assert_int_equal(r[i].count, 40);
        memcpy(out->token[i], r[i].tokens, sizeof(out->token[i]));
        fm_gen_result_release(&r[i]);
    }
    fm_engine_stats st = fm_engine_stats_of(e);
    out->hits = st.prefix_hits;
    out->computed = st.rows;
    for (int v = 0; v < VARIANTS; v++)
        fm_model_close(m[v]);
    fm_engine_free(e);
}

TEST(answers_to_one_prompt_share_it)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++) {
        static world w;
        static answers lone, together, one_by_one;
        make(&w, &families[i]);
        w.mode = "exact";
        ask(&lone, &w, false, 1);
        ask(&together, &w, true, ASKS);
        ask(&one_by_one, &w, true, 1);
        assert_memory_equal(lone.token, together.token, sizeof(lone.token));
        assert_memory_equal(lone.token, one_by_one.token, sizeof(lone.token));
        assert_true(lone.hits == 0);
        assert_true(together.hits >= 6u * 96); /* two of three answers: the prompt's blocks */
        assert_true(one_by_one.hits >= 6u * 96);
        drop(&w);
    }
}

TEST(answers_of_uneven_layers_share_a_prompt)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(uneven); i++) {
        static world w;
        static answers lone, together;
        make(&w, &uneven[i]);
        w.mode = "exact";
        ask(&lone, &w, false, 1);
        ask(&together, &w, true, ASKS);
        assert_memory_equal(lone.token, together.token, sizeof(lone.token));
        assert_true(lone.hits == 0);
        assert_true(together.hits >= 6u * 96);
        drop(&w);
    }
}

TEST(uneven_layers_are_refused_by_name_where_they_do_not_run)
{
    static world w;
    fm_model *m = NULL;
    fm_arch a, local;
    fmi_stage_split split;
    make(&w, &uneven[0]);
    w.mode = "exact";
    fm_provider p = ik_provider(&w.mem);
    tk_ok(fm_arch_of_tree(&a, w.tree[BASE], NULL, "it"));
    tk_fails(fmi_shard_arch(&local, &a, 2, "it"), FM_EUNSUPPORTED, "over ranks; use one rank");
    tk_fails(fmi_stage_split_of(&split, &a, 2, "it"), FM_EUNSUPPORTED, "over stages; use one");
    fm_engine *e = engine_of(&w, 1, 8, true, 0);
    vk_virtual(&w.mem, w.tree[TUNED], false, 3, 8);
    tk_fails(fm_model_load(&m, e, w.tree[TUNED], &p, "it"), FM_EUNSUPPORTED, "virtual tokens");
    fm_engine_free(e);
    drop(&w);
}

/* Rewinds to any length, with rows behind. */
static void check_rewinds(world *w)
{
    float *want = alone(w, BASE, w->text[0]);
    fm_engine *e = engine_of(w, 2, 64, true, 0);
    fm_model *m = vk_load(e, &w->mem, w->tree[BASE]);
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    for (uint32_t to = 0; to < TOKENS; to += 7) {
        while (fm_seq_len(s) < TOKENS) {
            fm_row row = {s, w->text[0][fm_seq_len(s)], true};
            tk_ok(fm_engine_step(e, &row, 1));
            assert_memory_equal(fm_engine_logits(e, 0), want + (fm_seq_len(s) - 1) * VOCAB,
                                VOCAB * sizeof(float));
        }
        uint64_t rows = fm_engine_stats_of(e).rows;
        tk_ok(fm_seq_rewind(s, to));
        assert_int_equal(fm_seq_len(s), to);
        assert_true(fm_engine_stats_of(e).rows - rows <= (uint64_t)FM_KV_PAGE * w->of->stride);
    }
    assert_int_equal(fmi_priv(m)->geom->stride, w->of->stride);
    assert_int_equal(s->marks, 1);
    fm_seq_close(s);
    fm_model_close(m);
    fm_engine_free(e);
    fm_free(want);
}

/* Only what lies behind the last kept state is computed again. */
TEST(rewinds_go_on_from_the_last_mark)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++) {
        static world w;
        make(&w, &families[i]);
        w.mode = "exact";
        check_rewinds(&w);
        drop(&w);
    }
}

/* Without the operation, over ranks or stages, behind virtual tokens. */
TEST(what_is_not_computed_is_refused_by_name)
{
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++) {
        static world w;
        fm_model *m = NULL;
        fm_arch a, local;
        fmi_stage_split split;
        make(&w, &families[i]);
        w.mode = "exact";
        fm_provider p = ik_provider(&w.mem);
        tk_ok(fm_arch_of_tree(&a, w.tree[BASE], NULL, "it"));
        tk_fails(fmi_shard_arch(&local, &a, 2, "it"), FM_EUNSUPPORTED, "use one rank");
        tk_fails(fmi_stage_split_of(&split, &a, 2, "it"), FM_EUNSUPPORTED, "over stages; use one");
        fm_engine *e = engine_of(&w, 1, 8, true, 0);
        vk_virtual(&w.mem, w.tree[TUNED], false, 3, 8);
        tk_fails(fm_model_load(&m, e, w.tree[TUNED], &p, "it"), FM_EUNSUPPORTED,
                 "virtual tokens before the recurrent layers");
        fm_backend *be = fm_engine_backend(e);
        be->scan = NULL;
        be->delta = NULL;
        if (strcmp(families[i].kind, "short convolutions") == 0)
            be->convolve = NULL;
        tk_fails(fm_model_load(&m, e, w.tree[BASE], &p, "it"), FM_EUNSUPPORTED, families[i].kind);
        fm_engine_free(e);
        drop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bits_of_lone_ones),
        cmocka_unit_test(answers_to_one_prompt_share_it),
        cmocka_unit_test(rewinds_go_on_from_the_last_mark),
        cmocka_unit_test(rows_of_uneven_layers_have_the_bits_of_lone_ones),
        cmocka_unit_test(answers_of_uneven_layers_share_a_prompt),
        cmocka_unit_test(uneven_layers_are_refused_by_name_where_they_do_not_run),
        cmocka_unit_test(what_is_not_computed_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
