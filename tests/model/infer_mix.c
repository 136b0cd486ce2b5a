/* ctest: card=long apart stages=4:3,2:7 */
/* Random mixes of variants in one engine: every row that is asked for has the bits of its model
 * alone, whatever the neighbours, order, cut, threads, rewinds and state of the prefix cache. */
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"

#define TOKENS 90u
#define TEXTS 5u
#define SEQS 9
#define RUNS 24

enum {
    BASE,
    LORA,
    LORA_QV,
    RSLORA,
    DORA,
    IA3,
    PREFIX,
    PREFIX_LONG,
    PROMPT,
    SAVED_HEAD,
    UPPER_HALF,
    BITFIT,
    LORA_ON_FULL,
    VARIANTS
};

typedef struct world {
    ik_mem mem;
    fm_tree *tree[VARIANTS];
    int32_t text[TEXTS][TOKENS]; /* they begin alike for a while */
    const char *mode;
    float *alone[VARIANTS][TEXTS]; /* [TOKENS, VK_VOCAB] in that mode */
} world;

static void adapt(world *w, int v, const vk_adapter *a)
{
    vk_lora(&w->mem, w->tree[v], a);
}

static void change_upper_half(world *w, fm_tree *t)
{
    fm_arch a;
    fm_param p;
    tk_ok(fm_arch_of_tree(&a, t, NULL, "base"));
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++)
        if (p.layer >= (int32_t)VK_LAYERS / 2 || strcmp(p.name, "model.norm.weight") == 0)
            vk_change(&w->mem, t, p.name, 5000 + i);
}

static void change_biases(world *w, fm_tree *t)
{
    fm_arch a;
    fm_param p;
    tk_ok(fm_arch_of_tree(&a, t, NULL, "base"));
    for (uint32_t i = 0; fm_arch_param(&a, i, &p); i++)
        if (p.layer >= 1 && strstr(p.name, ".bias"))
            vk_put(&w->mem, t, "tensors", p.name, 6000 + i, 1, p.shape.dim[0], 1, 0.0, 0.3);
}

static void make_variants(world *w)
{
    const uint32_t all = 127, qv = 1 | 4, mlp = 16 | 32 | 64;
    fm_tree *base;
    vk_base(&w->mem, &base);
    for (int v = 0; v < VARIANTS; v++)
        tk_ok(fm_tree_copy(&w->tree[v], base));
    fm_tree_free(base);
    adapt(w, LORA,
          &(vk_adapter){
              .kind = "lora", .modules = all, .to_layer = 4, .r = 2, .alpha = 4, .seed = 1});
    adapt(w, LORA_QV,
          &(vk_adapter){.kind = "lora",
                        .modules = qv,
                        .from_layer = 1,
                        .to_layer = 4,
                        .r = 16,
                        .alpha = 8,
                        .seed = 2});
    adapt(w, RSLORA,
          &(vk_adapter){.kind = "lora",
                        .modules = mlp,
                        .to_layer = 4,
                        .r = 5,
                        .alpha = 3,
                        .rslora = true,
                        .seed = 3});
    adapt(w, DORA,
          &(vk_adapter){.kind = "dora",
                        .modules = all,
                        .from_layer = 2,
                        .to_layer = 4,
                        .r = 3,
                        .alpha = 3,
                        .seed = 4});
    vk_ia3(&w->mem, w->tree[IA3], 1, 5);
    vk_virtual(&w->mem, w->tree[PREFIX], true, 5, 6);
    vk_virtual(&w->mem, w->tree[PREFIX_LONG], true, 40, 7);
    vk_virtual(&w->mem, w->tree[PROMPT], false, 3, 8);
    adapt(w, SAVED_HEAD,
          &(vk_adapter){.kind = "lora",
                        .modules = qv,
                        .from_layer = 3,
                        .to_layer = 4,
                        .r = 1,
                        .alpha = 2,
                        .saves_head = true,
                        .seed = 9});
    change_upper_half(w, w->tree[UPPER_HALF]);
    change_biases(w, w->tree[BITFIT]);
    change_upper_half(w, w->tree[LORA_ON_FULL]); /* a child of a child */
    adapt(w, LORA_ON_FULL,
          &(vk_adapter){.kind = "lora",
                        .modules = mlp,
                        .from_layer = 3,
                        .to_layer = 4,
                        .r = 4,
                        .alpha = 4,
                        .seed = 10});
}

static int setup(void **state)
{
    static world w;
    make_variants(&w);
    for (uint32_t t = 0; t < TEXTS; t++)
        for (uint32_t i = 0; i < TOKENS; i++) /* 4 and 5 differ in their last tokens only */
            w.text[t][i] = (int32_t)fm_rng_below(9, i < 17 * t + 20 ? 0 : t + 1, i, VK_VOCAB);
    *state = &w;
    return 0;
}

static void free_alone(world *w)
{
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t t = 0; t < TEXTS; t++) {
            fm_free(w->alone[v][t]);
            w->alone[v][t] = NULL;
        }
}

static int teardown(void **state)
{
    world *w = *state;
    for (int v = 0; v < VARIANTS; v++)
        fm_tree_free(w->tree[v]);
    ik_mem_free(&w->mem);
    return 0;
}

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
    uint32_t opened, max_rows;
    uint64_t hits, evictions, begun_above; /* of all runs of a mode */
} run;

static uint32_t draw(run *r, uint32_t below)
{
    return (uint32_t)fm_rng_below(r->seed, 77, r->draws++, below);
}

/* Cached, not cached, and with so little room that what is kept has to leave all the time. */
static void begin(run *r)
{
    fm_engine_opts o = fm_engine_defaults();
    uint64_t page = 0;
    o.threads = 1 + draw(r, 3);
    o.mode = r->w->mode;
    o.max_rows = r->max_rows = draw(r, 2) ? 400 : 64;
    o.prefix_cache = r->seed % 3 != 0;
    fm_engine *e = NULL;
    tk_ok(fm_engine_new(&e, &o));
    page = 2ull * fm_engine_backend(e)->kv_page_bytes(fm_engine_backend(e), 2, 8);
    if (r->seed % 3 == 2) {
        fm_engine_free(e);
        o.kv_bytes_max = (3 + 2 + 5 * 5) * VK_LAYERS * page;
        tk_ok(fm_engine_new(&e, &o));
    }
    r->e = e;
    for (int v = 0; v < VARIANTS; v++)
        r->model[v] = vk_load(e, &r->w->mem, r->w->tree[v]);
}

static void end(run *r)
{
    for (int i = 0; i < SEQS; i++)
        fm_seq_close(r->a[i].seq);
    for (int v = 0; v < VARIANTS; v++)
        fm_model_close(r->model[v]);
    fm_engine_free(r->e);
}

static void close_one(run *r)
{
    actor *a = &r->a[draw(r, SEQS)];
    fm_seq_close(a->seq);
    a->seq = NULL;
}

/* As the scheduler does: what is to come is told beforehand, and taken over where it is there. */
static void announce(run *r, actor *a)
{
    tk_ok(fmi_seq_expect(a->seq, TOKENS));
    for (uint32_t i = 0; i < TOKENS; i++)
        fmi_seq_tell(a->seq, i, r->w->text[a->text][i]);
    fmi_seq_adopt(a->seq);
}

/* Opens, closes or rewinds now and then. */
static void change_cast(run *r)
{
    for (int i = 0; i < SEQS; i++) {
        actor *a = &r->a[i];
        if (a->seq && (fm_seq_len(a->seq) == TOKENS || draw(r, 40) == 0)) {
            fm_seq_close(a->seq);
            a->seq = NULL;
        }
        if (a->seq && draw(r, 25) == 0)
            tk_ok(fm_seq_rewind(a->seq, draw(r, fm_seq_len(a->seq) + 1)));
        if (a->seq || draw(r, 3))
            continue;
        a->variant = (int)draw(r, VARIANTS);
        a->text = draw(r, TEXTS);
        fm_status rc = fm_seq_open(&a->seq, r->model[a->variant]);
        if (rc != FM_ELIMIT) /* virtual positions take pages */
            tk_ok(rc);
        r->opened += rc == FM_OK;
        if (rc == FM_OK && draw(r, 2))
            announce(r, a);
    }
}

static uint32_t put_rows(run *r, fm_row *row, const float **want, uint32_t most)
{
    uint32_t n = 0, style = draw(r, 4); /* all at once, some of each, one of each, in turns */
    uint32_t from = draw(r, SEQS), fed[SEQS] = {0};
    for (uint32_t round = 0; round < (style == 3 ? 6u : 1u); round++)
        for (uint32_t i = 0; i < SEQS; i++) {
            uint32_t k = (from + i) % SEQS;
            actor *a = &r->a[k];
            if (!a->seq || draw(r, 5) == 0)
                continue;
            uint32_t left = TOKENS - fm_seq_len(a->seq) - fed[k];
            uint32_t count = style == 0 ? left : style == 1 ? draw(r, left + 1) : left > 0;
            uint32_t wants = draw(r, 3); /* the last, all, some */
            count = FM_MIN(count, most - n);
            for (uint32_t c = 0; c < count; c++) {
                uint32_t at = fm_seq_len(a->seq) + fed[k]++;
                row[n] = (fm_row){.seq = a->seq,
                                  .token = r->w->text[a->text][at],
                                  .want_logits =
                                      wants == 1 || c + 1 == count || (wants == 2 && draw(r, 2))};
                want[n++] = r->w->alone[a->variant][a->text] + (size_t)at * VK_VOCAB;
            }
        }
    return n;
}

static void check_run(world *w, uint64_t seed, run *sum)
{
    run r = {.w = w, .seed = seed};
    begin(&r);
    for (uint32_t step = 0; step < 60; step++) {
        fm_row row[400];
        const float *want[400];
        change_cast(&r);
        uint32_t n = put_rows(&r, row, want, r.max_rows);
        if (n == 0)
            continue;
        fm_status rc = fm_engine_step(r.e, row, n);
        if (rc == FM_ELIMIT) { /* nothing changed; somebody makes room */
            close_one(&r);
            close_one(&r);
            continue;
        }
        tk_ok(rc);
        for (uint32_t i = 0; i < n; i++)
            if (row[i].want_logits &&
                memcmp(fm_engine_logits(r.e, i), want[i], VK_VOCAB * sizeof(float)) != 0)
                fail_msg("mode %s, run %d, step %u, row %u of %u differs", w->mode, (int)seed, step,
                         i, n);
    }
    fm_engine_stats st = fm_engine_stats_of(r.e);
    assert_true(r.opened > SEQS);
    sum->hits += st.prefix_hits;
    sum->evictions += st.prefix_evictions;
    sum->begun_above += fm_engine_layer_hits(r.e, 0) - fm_engine_layer_hits(r.e, VK_LAYERS - 1);
    end(&r);
}

static void check_mode(world *w, const char *mode)
{
    w->mode = mode;
    for (int v = 0; v < VARIANTS; v++)
        for (uint32_t t = 0; t < TEXTS; t++)
            w->alone[v][t] = vk_alone(&w->mem, w->tree[v], w->text[t], TOKENS, mode);
    for (int v = 1; v < VARIANTS; v++) /* or the comparison would mean little */
        assert_true(tk_rel_norm(w->alone[v][0], w->alone[BASE][0], TOKENS * VK_VOCAB) > 1e-3);
    run sum = {0};
    for (uint64_t seed = 0; seed < RUNS; seed++)
        check_run(w, seed, &sum);
    assert_true(sum.hits > 0 && sum.evictions > 0 && sum.begun_above > 0);
    free_alone(w);
}

static void exact_rows_have_the_bits_of_lone_ones(void **state)
{
    check_mode(*state, "exact");
}

static void fast_rows_have_the_bits_of_lone_ones(void **state)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.mode = "fast";
    if (fm_engine_new(&e, &o) == FM_EUNSUPPORTED)
        skip();
    fm_engine_free(e);
    check_mode(*state, "fast");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_rows_have_the_bits_of_lone_ones),
        cmocka_unit_test(fast_rows_have_the_bits_of_lone_ones),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
