/* ctest: ranks */
/* infer_ranks_trace.c - hidden states read and replaced where a model is split over ranks, split
 * over stages, and both: the grids of PyTorch's hooks, and of one rank's states and logits. */
#include "tests/model/ranks_kit.h"
#include "tests/model/trace_kit.h"
#include "tests/model/variant_kit.h"

enum { TOKENS = 40, VOCAB = 48, HIDDEN = 32, PLACES = 16 };

static const struct {
    uint32_t ranks, stages, micro;
} way[] = {{2, 1, 0}, {2, 2, 7}, {4, 2, 3}, {3, 3, 5}};

static fm_engine_opts opts_of(size_t w, uint32_t rows)
{
    fm_engine_opts o = rk_opts("exact", rows);
    o.stages = way[w].stages;
    o.micro_rows = way[w].micro;
    return o;
}

/* Whether the model can be split (or dealt) so. */
static bool goes(size_t w, const char *name)
{
    uint32_t split = way[w].ranks / way[w].stages;
    return !(split > 1 && strcmp(name, "olmo2") == 0) && /* norms over all heads */
           !(way[w].stages > 2 && strcmp(name, "qwen3_moe") != 0);
}

/* The ranks' models come from both sources. */
static fm_status read_either(void *ctx, const fm_entry *e, void *dst)
{
    const pair *p = ctx;
    for (size_t i = 0; i < 2; i++) {
        fm_provider of = fm_source_provider(p->src[i]);
        const fm_entry *own = fm_tree_find(fm_source_tree(p->src[i]), e->path);
        if (own && fm_digest_eq(&own->id, &e->id))
            return of.read(of.ctx, e, dst);
    }
    return fm_fail(FM_ENOTFOUND, "%s is in neither", e->path);
}

static void open_on_ranks(rk_ranks *k, pair *p, size_t w, uint32_t rows, const char *name)
{
    const fm_provider both = {.ctx = p, .read = read_either};
    fm_engine_opts o = opts_of(w, rows);
    memset(p, 0, sizeof *p);
    rk_open(k, way[w].ranks, &o, &both);
    open_pair(p, k->e, name);
}

TEST(grids_are_those_of_pytorch_hooks)
{
    for (size_t w = 0; w < FM_ARRAY_LEN(way); w++)
        for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
            rk_ranks k;
            pair p;
            if (!goes(w, names[i]))
                continue;
            open_on_ranks(&k, &p, w, i % 2 ? 512 : 37, names[i]);
            check_direction(&p, 0, "to_child");
            check_direction(&p, 1, "to_parent");
            close_pair(&p);
            rk_close(&k);
        }
}

/* Two texts in one step, one of them with a hook at every site of every layer, which reads, and at
 * some of them replaces. */
static void run(const pair *p, float *states, float *logits)
{
    static float junk[TOKENS * HIDDEN];
    fm_engine *e = fm_model_engine(p->m[0]);
    fm_seq *s[2];
    fm_hook hook[PLACES];
    fm_row row[2 * TOKENS];
    size_t n = 0;
    for (size_t i = 0; i < FM_ARRAY_LEN(junk); i++)
        junk[i] = (float)((i * 37 + 11) % 101) / 101.0f - 0.5f;
    for (unsigned site = 0; site < FM_SITES; site++)
        for (uint32_t l = 0; l < fm_model_arch(p->m[0])->layers + (site == 0) && n < PLACES; l++) {
            hook[n] = (fm_hook){(fm_site)site, l, 2, TOKENS - 5, states, NULL};
            hook[n].write = n % 3 == 1 ? junk : NULL;
            states += (size_t)(TOKENS - 5) * HIDDEN;
            n++;
        }
    for (int i = 0; i < 2; i++)
        tk_ok(fm_seq_open(&s[i], p->m[0]));
    tk_ok(fm_seq_hooks(s[1], hook, n));
    for (uint32_t from = 0; from < TOKENS; from += 8) { /* steps that hooks reach over */
        for (uint32_t i = 0; i < 16; i++)
            row[i] = (fm_row){s[i / 8], (int32_t)(3 + (from + i % 8) * 7 % 40), true};
        tk_ok(fm_engine_step(e, row, 16));
        for (uint32_t i = 0; i < 16; i++, logits += VOCAB)
            memcpy(logits, fm_engine_logits(e, i), VOCAB * sizeof(float));
    }
    for (int i = 0; i < 2; i++)
        fm_seq_close(s[i]);
}

/* Bit by bit where no sum is cut. */
static void same(const float *got, const float *want, size_t n, bool bits, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        bool good = bits ? memcmp(&got[i], &want[i], sizeof(float)) == 0
                         : fabsf(got[i] - want[i]) <= 2e-5f * fmaxf(1.0f, fabsf(want[i]));
        if (!good)
            fail_msg("%s, float %zu: %g instead of %g", what, i, (double)got[i], (double)want[i]);
    }
}

TEST(states_are_those_of_one_rank)
{
    enum { STATES = PLACES * (TOKENS - 5) * HIDDEN, LOGITS = 2 * TOKENS * VOCAB };
    static float states[2][STATES], logits[2][LOGITS];
    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++) {
        fm_engine *e = ik_engine(1, 64);
        pair p;
        memset(states, 0, sizeof states);
        open_pair(&p, e, names[i]);
        run(&p, states[0], logits[0]);
        close_pair(&p);
        fm_engine_free(e);
        for (size_t w = 0; w < FM_ARRAY_LEN(way); w++) {
            rk_ranks k;
            if (!goes(w, names[i]))
                continue;
            memset(states[1], 0, sizeof states[1]);
            open_on_ranks(&k, &p, w, 64, names[i]);
            run(&p, states[1], logits[1]);
            close_pair(&p);
            rk_close(&k);
            bool bits = way[w].ranks == way[w].stages;
            same(states[1], states[0], STATES, bits, names[i]);
            same(logits[1], logits[0], LOGITS, bits, names[i]);
        }
    }
}

/* One text of a page with hooks that read and replace; what it gives may not be kept. */
static fm_status run_hooked(const pair *p, float *logits)
{
    static float rows[TOKENS * HIDDEN];
    const fm_hook hook[] = {{FM_SITE_RESIDUAL, 2, 0, 30, rows, NULL},
                            {FM_SITE_ATTENTION, 1, 3, 5, NULL, rows}};
    fm_row row[TOKENS];
    fm_seq *s = NULL;
    fm_status rc = fm_seq_open(&s, p->m[0]);
    if (rc == FM_OK)
        rc = fm_seq_hooks(s, hook, FM_ARRAY_LEN(hook));
    memset(rows, 0, sizeof rows);
    for (uint32_t i = 0; i < TOKENS; i++)
        row[i] = (fm_row){s, (int32_t)(3 + i % 40), i + 1 == TOKENS};
    if (rc == FM_OK)
        rc = fm_engine_step(fm_model_engine(p->m[0]), row, TOKENS);
    if (rc == FM_OK)
        memcpy(logits, fm_engine_logits(fm_model_engine(p->m[0]), TOKENS - 1),
               VOCAB * sizeof(float));
    fm_error_state why;
    fm_error_save(&why);
    fm_seq_close(s);
    fm_error_restore(&why);
    return rc;
}

/* Whichever allocation of whichever rank fails, the step fails on all by name and the next is
 * whole. */
TEST(a_rank_without_memory_fails_the_step)
{
    for (size_t w = 0; w < 2; w++) {
        static float want[VOCAB], got[VOCAB];
        unsigned failed = 0, clean = 0;
        for (uint64_t nth = 0; clean < 4 && nth < 400; nth++) {
            rk_ranks k;
            pair p;
            open_on_ranks(&k, &p, w, 64, "gemma2");
            uint64_t before = fm_mem_alloc_count();
            fm_mem_fail_at(nth, false);
            fm_status rc = run_hooked(&p, nth ? got : want);
            fm_mem_fail_at(0, false);
            clean = fm_mem_alloc_count() - before < nth ? clean + 1 : 0;
            failed += rc != FM_OK;
            if (rc != FM_OK && !strstr(fm_error_text(), "memory") &&
                !strstr(fm_error_text(), "could not be opened"))
                fail_msg("allocation %u: %s", (unsigned)nth, fm_error_text());
            rc = run_hooked(&p, got);
            if (rc == FM_ECORRUPT) /* caches had come apart; that is told once */
                rc = run_hooked(&p, got);
            tk_ok(rc);
            same(got, want, VOCAB, true, "behind a failure");
            close_pair(&p);
            rk_close(&k);
        }
        assert_true(failed > 10);
    }
}

/* What is too much to be told is refused by name, and the ranks go on. */
TEST(too_much_is_refused)
{
    rk_ranks k;
    pair p;
    fm_row row = {.token = 5, .want_logits = true};
    open_on_ranks(&k, &p, 0, 64, "gemma2");
    size_t many = ((size_t)128 << 20) / (HIDDEN * sizeof(float)) + 1;
    fm_hook *hook = calloc(many, sizeof *hook);
    static float state_row[HIDDEN];
    for (size_t i = 0; i < many; i++)
        hook[i] = (fm_hook){FM_SITE_MLP, 0, 0, 1, NULL, state_row};
    tk_ok(fm_seq_open(&row.seq, p.m[0]));
    tk_ok(fm_seq_hooks(row.seq, hook, many));
    tk_fails(fm_engine_step(k.e, &row, 1), FM_ELIMIT, "take fewer tokens or sequences");
    tk_ok(fm_seq_hooks(row.seq, hook, 3));
    tk_ok(fm_engine_step(k.e, &row, 1));
    fm_seq_close(row.seq);
    free(hook);
    close_pair(&p);
    rk_close(&k);
}

/* A Llama of noise with rows of `hidden` floats. */
static fm_tree *noise(ik_mem *mem, uint32_t hidden)
{
    fm_tree *t = NULL;
    fm_arch a;
    fm_param p;
    char *text = fm_asprintf(
        "{\"format\":1,\"config\":{\"model_type\":\"llama\",\"vocab_size\":48,\"hidden_size\":%u,"
        "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_embeddings\":64,"
        "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":false}}",
        hidden);
    tk_ok(fm_tree_new(&t));
    tk_ok(fm_tree_put_file(t, "model.json", fm_span_str(text)));
    tk_ok(fm_arch_of_tree(&a, t, NULL, "noise"));
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++)
        vk_put(mem, t, "tensors", p.name, hidden + i, p.shape.rank, p.shape.dim[0],
               p.shape.rank == 2 ? p.shape.dim[1] : 1, 0.1, 0.2);
    fm_free(text);
    return t;
}

/* Behind the layers of models of two widths in one step: the wider text's hook is at no token of
 * it. */
static void read_two_widths(fm_engine *e, ik_mem *mem, fm_tree *const *tree, float *got)
{
    const fm_hook hook[] = {{FM_SITE_RESIDUAL, 2, 0, 3, got, NULL}, {.site = FM_SITE_RESIDUAL}};
    fm_model *m[2];
    fm_row row[6];
    fm_seq *s[2];
    for (int i = 0; i < 2; i++) {
        m[i] = vk_load(e, mem, tree[i]);
        tk_ok(fm_seq_open(&s[i], m[i]));
        tk_ok(fm_seq_hooks(s[i], &hook[i], 1));
    }
    for (uint32_t i = 0; i < 6; i++)
        row[i] = (fm_row){s[i / 3], (int32_t)(7 + i), true};
    tk_ok(fm_engine_step(e, row, 6));
    for (int i = 0; i < 2; i++) {
        fm_seq_close(s[i]);
        fm_model_close(m[i]);
    }
}

TEST(models_of_two_widths)
{
    static float got[2][3 * HIDDEN];
    static ik_mem mem;
    fm_tree *tree[] = {noise(&mem, HIDDEN), noise(&mem, 2 * HIDDEN)};
    const fm_provider p = ik_provider(&mem);
    const fm_engine_opts o = opts_of(1, 16);
    fm_engine *e = ik_engine(1, 16);
    rk_ranks k;
    read_two_widths(e, &mem, tree, got[0]);
    fm_engine_free(e);
    rk_open(&k, way[1].ranks, &o, &p);
    read_two_widths(k.e, &mem, tree, got[1]);
    rk_close(&k);
    same(got[1], got[0], 3 * HIDDEN, true, "beside a wider model");
    for (int i = 0; i < 2; i++)
        fm_tree_free(tree[i]);
    ik_mem_free(&mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_those_of_one_rank),
        cmocka_unit_test(grids_are_those_of_pytorch_hooks),
        cmocka_unit_test(a_rank_without_memory_fails_the_step),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(models_of_two_widths),
    };
    rk_only("states_are_those_of_one_rank");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
