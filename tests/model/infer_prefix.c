/* ctest: card=long apart stages=2:2 */
/* The prefix cache: two models share the K and V of a layer exactly where they are computed from
 * the same, and nothing anybody finds in the cache changes a bit of an answer. */
#include "tests/model/variant_kit.h"

#include "infer/engine/engine.h"

#define TOKENS 71u /* two blocks and a part of one */
#define BLOCKS 2u

typedef struct world {
    ik_mem mem;
    fm_tree *base;
    int32_t ids[TOKENS];
} world;

static int setup(void **state)
{
    static world w;
    vk_base(&w.mem, &w.base);
    for (uint32_t i = 0; i < TOKENS; i++)
        w.ids[i] = (int32_t)fm_rng_below(5, 1, i, VK_VOCAB);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    fm_tree_free(w->base);
    ik_mem_free(&w->mem);
    return 0;
}

static fm_engine *engine(uint64_t kv_bytes, bool cache)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = 2;
    o.max_rows = 128;
    o.prefix_cache = cache;
    if (kv_bytes)
        o.kv_bytes_max = kv_bytes;
    tk_ok(fm_engine_new(&e, &o));
    return e;
}

/* Feeds tokens [at, at + n); logits of those from `wants` on must be those of `alone`. */
static void feed(fm_seq *s, const int32_t *ids, uint32_t at, uint32_t n, uint32_t wants,
                 const float *alone)
{
    fm_engine *e = fm_model_engine(s->model);
    fm_row row[128];
    for (uint32_t i = 0; i < n; i++)
        row[i] = (fm_row){.seq = s, .token = ids[at + i], .want_logits = at + i >= wants};
    tk_ok(fm_engine_step(e, row, n));
    for (uint32_t i = 0; i < n; i++)
        if (row[i].want_logits)
            assert_memory_equal(fm_engine_logits(e, i), alone + (size_t)(at + i) * VK_VOCAB,
                                VK_VOCAB * sizeof(float));
}

/* ==== who shares what with the parent ==== */

typedef void (*change_fn)(ik_mem *mem, fm_tree *t);

static void nothing(ik_mem *mem, fm_tree *t)
{
    (void)mem;
    (void)t;
}

#define CHANGES(fn, name)                                                                          \
    static void fn(ik_mem *mem, fm_tree *t)                                                        \
    {                                                                                              \
        vk_change(mem, t, name, 777);                                                              \
    }
CHANGES(attn_norm_2, "model.layers.2.input_layernorm.weight")
CHANGES(k_2, "model.layers.2.self_attn.k_proj.weight")
CHANGES(v_2, "model.layers.2.self_attn.v_proj.weight")
CHANGES(k_bias_2, "model.layers.2.self_attn.k_proj.bias")
CHANGES(v_bias_3, "model.layers.3.self_attn.v_proj.bias")
CHANGES(q_2, "model.layers.2.self_attn.q_proj.weight")
CHANGES(q_bias_1, "model.layers.1.self_attn.q_proj.bias")
CHANGES(o_1, "model.layers.1.self_attn.o_proj.weight")
CHANGES(o_bias_0, "model.layers.0.self_attn.o_proj.bias")
CHANGES(mlp_norm_1, "model.layers.1.post_attention_layernorm.weight")
CHANGES(gate_3, "model.layers.3.mlp.gate_proj.weight")
CHANGES(up_2, "model.layers.2.mlp.up_proj.weight")
CHANGES(down_0, "model.layers.0.mlp.down_proj.weight")
CHANGES(embedding, "model.embed_tokens.weight")
CHANGES(final_norm, "model.norm.weight")
CHANGES(head, "lm_head.weight")

static void adapter(ik_mem *mem, fm_tree *t, uint32_t modules, uint32_t layer, uint32_t alpha)
{
    vk_lora(mem, t,
            &(vk_adapter){.kind = "lora",
                          .modules = modules,
                          .from_layer = layer,
                          .to_layer = VK_LAYERS,
                          .r = 3,
                          .alpha = alpha,
                          .seed = 9});
}
static void lora_k_2(ik_mem *mem, fm_tree *t)
{
    adapter(mem, t, 1u << 1, 2, 6);
}
static void lora_q_2(ik_mem *mem, fm_tree *t)
{
    adapter(mem, t, 1u << 0, 2, 6);
}
static void lora_down_1(ik_mem *mem, fm_tree *t)
{
    adapter(mem, t, 1u << 6, 1, 6);
}
static void dora_v_3(ik_mem *mem, fm_tree *t)
{
    vk_lora(mem, t,
            &(vk_adapter){.kind = "dora",
                          .modules = 1u << 2,
                          .from_layer = 3,
                          .to_layer = 4,
                          .r = 2,
                          .alpha = 4,
                          .seed = 4});
}
static void saved_head(ik_mem *mem, fm_tree *t)
{
    vk_lora(mem, t,
            &(vk_adapter){.kind = "lora", .r = 2, .alpha = 4, .saves_head = true, .seed = 4});
}
static void ia3_2(ik_mem *mem, fm_tree *t)
{
    vk_ia3(mem, t, 2, 3);
}
static void prefix_5(ik_mem *mem, fm_tree *t)
{
    vk_virtual(mem, t, true, 5, 1);
}
static void prefix_32(ik_mem *mem, fm_tree *t)
{
    vk_virtual(mem, t, true, 32, 1);
}
static void prompt_32(ik_mem *mem, fm_tree *t)
{
    vk_virtual(mem, t, false, 32, 1);
}
static void eps(ik_mem *mem, fm_tree *t)
{
    (void)mem;
    vk_config(t, "1e-5", "10000.0");
}
static void theta(ik_mem *mem, fm_tree *t)
{
    (void)mem;
    vk_config(t, "1e-6", "10001.0");
}

/* hits: lowest layer of which the child finds nothing. run: where its rows begin. */
static const struct child {
    const char *name;
    change_fn change;
    uint32_t hits, run;
} children[] = {
    {"twin", nothing, 4, 4},
    {"attention norm of 2", attn_norm_2, 2, 2},
    {"K of 2", k_2, 2, 2},
    {"V of 2", v_2, 2, 2},
    {"bias on K of 2", k_bias_2, 2, 2},
    {"bias on V of 3", v_bias_3, 3, 3},
    {"Q of 2", q_2, 3, 2},
    {"bias on Q of 1", q_bias_1, 2, 1},
    {"O of 1", o_1, 2, 1},
    {"bias on O of 0", o_bias_0, 1, 0},
    {"MLP norm of 1", mlp_norm_1, 2, 1},
    {"gate of 3", gate_3, 4, 4}, /* the last layer's K and V are all that later tokens see */
    {"up of 2", up_2, 3, 2},
    {"down of 0", down_0, 1, 0},
    {"embedding", embedding, 0, 0},
    {"final norm", final_norm, 4, 4},
    {"head", head, 4, 4},
    {"LoRA on K from 2", lora_k_2, 2, 2},
    {"LoRA on Q from 2", lora_q_2, 3, 2},
    {"LoRA on down from 1", lora_down_1, 2, 1},
    {"DoRA on V of 3", dora_v_3, 3, 3},
    {"another head beside a LoRA", saved_head, 4, 4},
    {"IA3 from 2", ia3_2, 2, 2},
    {"5 prefixes", prefix_5, 0, 0},
    {"32 prefixes", prefix_32, 0, 0},
    {"32 prompts", prompt_32, 0, 0},
    {"eps", eps, 0, 0},
    {"rope theta", theta, 0, 0},
};

/* The parent's text through the child, behind it: what it finds, runs and gives. */
static void check_child(world *w, const struct child *c, fm_tree *parent, fm_tree *t)
{
    fm_engine *e = engine(0, true);
    fm_model *p = vk_load(e, &w->mem, parent), *m = vk_load(e, &w->mem, t);
    float *want_p = vk_alone(&w->mem, parent, w->ids, TOKENS, "exact");
    float *want = vk_alone(&w->mem, t, w->ids, TOKENS, "exact");
    fm_seq *s = NULL, *q = NULL;
    tk_ok(fm_seq_open(&s, p));
    feed(s, w->ids, 0, TOKENS, TOKENS - 1, want_p);
    tk_ok(fm_seq_open(&q, m)); /* computes virtual positions */
    uint64_t before[VK_LAYERS], rows = fm_engine_stats_of(e).layer_rows;
    for (uint32_t l = 0; l < VK_LAYERS; l++)
        before[l] = fm_engine_layer_hits(e, l);
    feed(q, w->ids, 0, TOKENS, TOKENS - 1, want);
    for (uint32_t l = 0; l < VK_LAYERS; l++) {
        uint64_t hits = fm_engine_layer_hits(e, l) - before[l];
        if (hits != (l < c->hits ? BLOCKS : 0))
            fail_msg("%s: layer %u: %llu hits", c->name, l, (unsigned long long)hits);
        if (q->base)
            continue;
        for (uint32_t b = 0; b < BLOCKS; b++) { /* the very pages */
            bool same = s->page[l * s->page_cap + b] == q->page[l * q->page_cap + b];
            if (same != (l < c->hits))
                fail_msg("%s: layer %u, block %u is %sshared", c->name, l, b, same ? "" : "not ");
        }
    }
    rows = fm_engine_stats_of(e).layer_rows - rows;
    uint64_t blocks = BLOCKS * FM_KV_PAGE, rest = TOKENS - blocks;
    uint64_t expect = rest * VK_LAYERS + blocks * (VK_LAYERS - c->run);
    if (rows != expect)
        fail_msg("%s: %llu rows ran, not %llu", c->name, (unsigned long long)rows,
                 (unsigned long long)expect);
    fm_seq_close(s);
    fm_seq_close(q);
    fm_free(want);
    fm_free(want_p);
    fm_model_close(m);
    fm_model_close(p);
    fm_engine_free(e);
}

static void children_share_what_is_computed_from_the_same(void **state)
{
    world *w = *state;
    for (size_t i = 0; i < FM_ARRAY_LEN(children); i++) {
        fm_tree *t = NULL;
        tk_ok(fm_tree_copy(&t, w->base));
        children[i].change(&w->mem, t);
        check_child(w, &children[i], w->base, t); /* child after parent, parent after child */
        if (children[i].hits || children[i].change == embedding || children[i].change == eps)
            check_child(w, &children[i], t, w->base);
        fm_tree_free(t);
    }
}

static void scales_of_adapters_count(void **state)
{
    world *w = *state;
    fm_tree *a = NULL, *b = NULL;
    tk_ok(fm_tree_copy(&a, w->base));
    tk_ok(fm_tree_copy(&b, w->base));
    adapter(&w->mem, a, 1u << 1, 2, 6);
    adapter(&w->mem, b, 1u << 1, 2, 7);
    check_child(w, &(struct child){"scale", NULL, 2, 2}, a, b);
    fm_tree_free(a);
    fm_tree_free(b);
}

static void virtual_twins_share_all(void **state)
{
    world *w = *state;
    for (uint32_t len = 1; len <= 65; len += 32) {
        fm_tree *t = NULL;
        tk_ok(fm_tree_copy(&t, w->base));
        vk_virtual(&w->mem, t, true, len, 1);
        fm_engine *e = engine(0, true);
        fm_model *m[2] = {vk_load(e, &w->mem, t), vk_load(e, &w->mem, t)};
        float *want = vk_alone(&w->mem, t, w->ids, TOKENS, "exact");
        for (int i = 0; i < 2; i++) {
            fm_seq *s = NULL;
            tk_ok(fm_seq_open(&s, m[i]));
            feed(s, w->ids, 0, TOKENS, TOKENS - 1, want);
            /* The first block holds the last virtual positions too. */
            assert_int_equal(s->skipped, i ? 2 * FM_KV_PAGE - len % FM_KV_PAGE : 0);
            fm_seq_close(s);
        }
        fm_model_close(m[0]);
        fm_model_close(m[1]);
        fm_engine_free(e);
        fm_free(want);
        fm_tree_free(t);
    }
}

/* ==== life of what is kept ==== */

static void a_text_seen_before_is_not_computed_again(void **state)
{
    world *w = *state;
    fm_engine *e = engine(0, true), *off = engine(0, false);
    float *want = vk_alone(&w->mem, w->base, w->ids, TOKENS, "exact");
    fm_model *m = vk_load(e, &w->mem, w->base), *n = vk_load(off, &w->mem, w->base);
    for (int i = 0; i < 3; i++) { /* the model leaves in between and comes back */
        fm_seq *s = NULL, *z = NULL;
        tk_ok(fm_seq_open(&s, m));
        tk_ok(fm_seq_open(&z, n));
        feed(s, w->ids, 0, TOKENS, TOKENS - 1, want);
        feed(z, w->ids, 0, TOKENS, TOKENS - 1, want);
        assert_int_equal(s->skipped, i ? 64 : 0);
        assert_int_equal(z->skipped, 0);
        fm_seq_close(s);
        fm_seq_close(z);
        fm_model_close(m);
        m = vk_load(e, &w->mem, w->base);
    }
    fm_engine_stats st = fm_engine_stats_of(e), none = fm_engine_stats_of(off);
    assert_int_equal(st.prefix_queries, 3 * 64);
    assert_int_equal(st.prefix_hits, 2 * 64);
    if (!ik_on_stages())
        assert_int_equal(st.prefix_bytes,
                         BLOCKS * VK_LAYERS * 2 * VK_KV * FM_KV_PAGE * sizeof(float));
    assert_int_equal(none.prefix_queries + none.prefix_hits + none.prefix_bytes, 0);
    fm_model_close(m);
    fm_model_close(n);
    fm_engine_free(e);
    fm_engine_free(off);
    fm_free(want);
}

/* Every row's logits are wanted: the residual stream behind the last layer is kept. */
static void scoring_again_runs_only_the_head(void **state)
{
    world *w = *state;
    fm_engine *e = engine(0, true);
    fm_tree *t = NULL;
    tk_ok(fm_tree_copy(&t, w->base));
    head(&w->mem, t);
    fm_model *m[2] = {vk_load(e, &w->mem, w->base), vk_load(e, &w->mem, t)};
    for (int i = 0; i < 2; i++) {
        float *want = vk_alone(&w->mem, i ? t : w->base, w->ids, TOKENS, "exact");
        fm_seq *s = NULL;
        uint64_t rows = fm_engine_stats_of(e).layer_rows;
        tk_ok(fm_seq_open(&s, m[i]));
        feed(s, w->ids, 0, TOKENS, 0, want);
        rows = fm_engine_stats_of(e).layer_rows - rows;
        assert_int_equal(rows, (i ? TOKENS - 64 : TOKENS) * VK_LAYERS);
        fm_seq_close(s);
        fm_free(want);
    }
    fm_model_close(m[0]);
    fm_model_close(m[1]);
    fm_engine_free(e);
    fm_tree_free(t);
}

static void other_tokens_after_a_shared_beginning(void **state)
{
    world *w = *state;
    int32_t ids[TOKENS];
    memcpy(ids, w->ids, sizeof(ids));
    ids[40] = (ids[40] + 1) % (int32_t)VK_VOCAB;
    fm_engine *e = engine(0, true);
    fm_model *m = vk_load(e, &w->mem, w->base);
    float *a = vk_alone(&w->mem, w->base, w->ids, TOKENS, "exact");
    float *b = vk_alone(&w->mem, w->base, ids, TOKENS, "exact");
    fm_seq *s = NULL, *q = NULL;
    tk_ok(fm_seq_open(&s, m));
    feed(s, w->ids, 0, TOKENS, TOKENS - 1, a);
    tk_ok(fm_seq_open(&q, m));
    feed(q, ids, 0, TOKENS, TOKENS - 1, b);
    assert_int_equal(q->skipped, 32);
    tk_ok(fm_seq_rewind(q, 35)); /* into a block that is kept: what is kept must not change */
    feed(q, w->ids, 35, 5, 35, a);
    tk_ok(fm_seq_rewind(q, 20));
    feed(q, w->ids, 20, TOKENS - 20, 20, a);
    fm_seq_close(q);
    tk_ok(fm_seq_open(&q, m));
    feed(q, ids, 0, TOKENS, TOKENS - 1, b);
    assert_int_equal(q->skipped, 64);
    fm_seq_close(q);
    tk_ok(fm_seq_rewind(s, 0));
    feed(s, w->ids, 0, TOKENS, TOKENS - 1, a);
    fm_seq_close(s);
    fm_model_close(m);
    fm_engine_free(e);
    fm_free(a);
    fm_free(b);
}

/* A block that began above the first layer, and then goes on with a token nobody told of. */
static void what_was_told_may_turn_out_wrong(void **state)
{
    world *w = *state;
    fm_engine *e = engine(0, true);
    fm_tree *t = NULL;
    tk_ok(fm_tree_copy(&t, w->base));
    v_2(&w->mem, t);
    int32_t ids[TOKENS];
    memcpy(ids, w->ids, sizeof(ids));
    ids[20] = (ids[20] + 1) % (int32_t)VK_VOCAB;
    fm_model *p = vk_load(e, &w->mem, w->base), *m = vk_load(e, &w->mem, t);
    float *a = vk_alone(&w->mem, w->base, w->ids, TOKENS, "exact");
    float *b = vk_alone(&w->mem, t, ids, TOKENS, "exact");
    float *c = vk_alone(&w->mem, t, w->ids, TOKENS, "exact");
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, p));
    feed(s, w->ids, 0, TOKENS, TOKENS - 1, a);
    fm_seq_close(s);
    for (int wrong = 1; wrong >= 0; wrong--) {
        tk_ok(fm_seq_open(&s, m));
        tk_ok(fmi_seq_expect(s, TOKENS));
        for (uint32_t i = 0; i < TOKENS; i++)
            fmi_seq_tell(s, i, w->ids[i]);
        tk_ok(fmi_seq_reserve(s, 10));
        assert_int_equal(s->block[0].first, 2);
        feed(s, wrong ? ids : w->ids, 0, 10, 0, wrong ? b : c);
        feed(s, wrong ? ids : w->ids, 10, 40, 0, wrong ? b : c);
        fm_seq_close(s);
    }
    fm_model_close(p);
    fm_model_close(m);
    fm_engine_free(e);
    fm_tree_free(t);
    fm_free(a);
    fm_free(b);
    fm_free(c);
}

static void what_is_kept_leaves_when_room_is_needed(void **state)
{
    world *w = *state;
    uint64_t page = 2ull * VK_KV * FM_KV_PAGE * sizeof(float);
    fm_engine *e = engine(13 * VK_LAYERS * page, true); /* four texts of three pages */
    fm_model *m = vk_load(e, &w->mem, w->base);
    for (int round = 0; round < 3; round++)
        for (uint32_t k = 0; k < 9; k++) {
            int32_t ids[TOKENS];
            for (uint32_t i = 0; i < TOKENS; i++)
                ids[i] =
                    (int32_t)((uint32_t)w->ids[i] + (i >= 32 * (k % 2)) * k) % (int32_t)VK_VOCAB;
            float *want = vk_alone(&w->mem, w->base, ids, TOKENS, "exact");
            fm_seq *s = NULL;
            tk_ok(fm_seq_open(&s, m));
            feed(s, ids, 0, TOKENS, round == 1 ? 0 : TOKENS - 1, want);
            fm_seq_close(s);
            fm_free(want);
            assert_true(fm_engine_stats_of(e).kv_bytes <= 13 * VK_LAYERS * page);
        }
    assert_true(fm_engine_stats_of(e).prefix_evictions > 0);
    assert_true(fm_engine_stats_of(e).prefix_hits > 0);
    fm_model_close(m);
    fm_engine_free(e);
}

/* The deepest block of a text that nobody uses is the first to leave. */
static void deeper_blocks_leave_first(void **state)
{
    world *w = *state;
    uint64_t page = 2ull * VK_KV * FM_KV_PAGE * sizeof(float);
    fm_engine *e = engine(4 * VK_LAYERS * page, true);
    fm_model *m = vk_load(e, &w->mem, w->base);
    float *want = vk_alone(&w->mem, w->base, w->ids, TOKENS, "exact");
    fm_seq *s = NULL;
    tk_ok(fm_seq_open(&s, m));
    feed(s, w->ids, 0, TOKENS, TOKENS - 1, want); /* three pages, two stay */
    fm_seq_close(s);
    tk_ok(fm_seq_open(&s, m));
    int32_t other[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        other[i] = w->ids[TOKENS - 1 - i];
    feed(s, other, 0, TOKENS, TOKENS, want); /* one page more than is free, in each layer */
    fm_seq_close(s);
    tk_ok(fm_seq_open(&s, m));
    feed(s, w->ids, 0, TOKENS, TOKENS - 1, want);
    assert_int_equal(s->skipped, 32);
    fm_seq_close(s);
    fm_free(want);
    fm_model_close(m);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_share_what_is_computed_from_the_same),
        cmocka_unit_test(scales_of_adapters_count),
        cmocka_unit_test(virtual_twins_share_all),
        cmocka_unit_test(a_text_seen_before_is_not_computed_again),
        cmocka_unit_test(scoring_again_runs_only_the_head),
        cmocka_unit_test(other_tokens_after_a_shared_beginning),
        cmocka_unit_test(what_was_told_may_turn_out_wrong),
        cmocka_unit_test(what_is_kept_leaves_when_room_is_needed),
        cmocka_unit_test(deeper_blocks_leave_first),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
