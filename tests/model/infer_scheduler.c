/* ctest: apart stages=2:2 */
/* Continuous batching, generation and scoring on the tiny Llama with a byte-level tokenizer. */
#include "tests/model/infer_kit.h"

#include <math.h>

#include "infer/backend.h"

#define VOCAB 160u
#define MANY 9

typedef struct world {
    fm_source *src;
    fm_tree *tree; /* with a tokenizer */
    ik_mem mem;
} world;

/* 160 tokens: printable ASCII, the two bytes of "e acute", then pairs of letters. */
static char *tiny_tokenizer(void)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                   "\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
                   "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                   "\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
                   "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
                   "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                   "\"unk_token\":null,\"continuing_subword_prefix\":null,"
                   "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
                   "\"ignore_merges\":false,\"vocab\":{");
    for (unsigned i = 0; i < VOCAB; i++) {
        char piece[8] = {0};
        unsigned k = i - 100;
        if (i < 94)
            piece[0] = (char)('!' + i);
        else if (i < 100)
            (void)snprintf(piece, sizeof(piece), "%s", i % 2 ? "\xc2\xa9" : "\xc3\x83");
        else
            (void)snprintf(piece, sizeof(piece), "%c%c", 'a' + k % 26, 'A' + k / 26);
        if (i >= 96 && i < 100)
            (void)snprintf(piece, sizeof(piece), "x%u", i);
        const char *esc = piece[0] == '"' || piece[0] == '\\' ? "\\" : "";
        fm_buf_printf(&b, "%s\"%s%s\":%u", i ? "," : "", esc, piece, i);
    }
    fm_buf_str(&b, "},\"merges\":[]}}");
    tk_ok(fm_buf_ok(&b));
    return fm_buf_take(&b);
}

static int setup(void **state)
{
    static world w;
    w.src = ik_source("arch/llama");
    tk_ok(fm_tree_copy(&w.tree, fm_source_tree(w.src)));
    char *tok = tiny_tokenizer();
    tk_ok(fm_tree_put_file(w.tree, "tokenizer/tokenizer.json", fm_span_str(tok)));
    fm_free(tok);
    w.mem.behind[0] = fm_source_provider(w.src);
    w.mem.behind_count = 1;
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    fm_tree_free(w->tree);
    ik_mem_free(&w->mem);
    fm_source_close(w->src);
    return 0;
}

static fm_model *load(world *w, fm_engine *e)
{
    fm_provider p = ik_provider(&w->mem);
    fm_model *m = NULL;
    tk_ok(fm_model_load(&m, e, w->tree, &p, "tiny"));
    return m;
}

static const int32_t prompt_ids[MANY + 40] = {9,  33, 70, 4,  88, 12, 100, 3,  45, 61, 7,  8,  99,
                                              14, 15, 16, 17, 18, 19, 20,  21, 22, 23, 24, 25, 26,
                                              27, 28, 29, 30, 31, 32, 33,  34, 35, 36, 37, 38, 39,
                                              40, 41, 42, 43, 44, 45, 46,  47, 48, 49};

/* Request i: a prompt of its own length, sampled with its own seed. */
static fm_gen_request request(fm_model *m, int i)
{
    fm_gen_request q = {.model = m,
                        .prompt = prompt_ids + i,
                        .prompt_len = (size_t)(1 + i * 4),
                        .max_new = 30,
                        .ignore_eos = true,
                        .want_logprobs = true};
    fm_sample_defaults(&q.sampling);
    q.sampling.temperature = i % 3 ? 0.9f : 0.0f;
    q.sampling.top_p = 0.95f;
    q.sampling.seed = (uint64_t)i;
    return q;
}

static void assert_same(const fm_gen_result *a, const fm_gen_result *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, a->count * sizeof(int32_t));
    assert_memory_equal(a->logprobs, b->logprobs, a->count * sizeof(float));
    assert_string_equal(fm_buf_cstr(&a->text), fm_buf_cstr(&b->text));
    assert_string_equal(a->finish, b->finish);
}

/* ==== bad arguments ==== */

static void bad_requests_name_their_field(void **state)
{
    fm_engine *e = ik_engine(1, 16), *other = ik_engine(1, 16);
    fm_model *m = load(*state, e);
    fm_scheduler *s = NULL;
    tk_fails(fm_scheduler_new(&s, e, 0), FM_EINVAL, "max_running");
    tk_ok(fm_scheduler_new(&s, e, 4));
    fm_gen_request q = request(m, 1);
    q.prompt_len = 0;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "prompt");
    q = request(m, 1);
    q.max_new = 0;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "max_new");
    q = request(m, 1);
    int32_t wrong[1] = {160};
    q.prompt = wrong;
    q.prompt_len = 1;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "160");
    q = request(m, 1);
    q.sampling.top_p = 0;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "top_p");
    q = request(m, 1);
    const char *empty = "";
    q.stop = &empty;
    q.stop_count = 1;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "stop");
    q = request(m, 1);
    q.top_logprobs = 101;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "top_logprobs");
    int32_t *longest = fm_calloc(300, sizeof(int32_t));
    q = request(m, 1);
    q.prompt = longest;
    q.prompt_len = 256;
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "256");
    fm_free(longest);
    q = request(NULL, 1);
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "model");
    fm_model *foreign = load(*state, other);
    q = request(foreign, 1);
    tk_fails(fm_scheduler_add(s, &q, NULL), FM_EINVAL, "engine");
    assert_false(fm_scheduler_cancel(s, 77));
    fm_scheduler_free(s);
    fm_model_close(foreign);
    fm_model_close(m);
    fm_engine_free(e);
    fm_engine_free(other);
}

/* ==== batches ==== */

static void generate(world *w, uint64_t kv_bytes, uint32_t max_rows, bool together,
                     fm_gen_result *out)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = together ? 2 : 1;
    o.max_rows = max_rows;
    o.kv_bytes_max = kv_bytes;
    tk_ok(fm_engine_new(&e, &o));
    fm_model *m = load(w, e);
    fm_gen_request q[MANY];
    for (int i = 0; i < MANY; i++) {
        q[i] = request(m, i);
        if (!together)
            tk_ok(fm_generate(e, &q[i], 1, &out[i]));
    }
    if (together)
        tk_ok(fm_generate(e, q, MANY, out));
    fm_model_close(m);
    fm_engine_free(e);
}

static void batched_answers_equal_lone_ones(void **state)
{
    fm_gen_result lone[MANY], batch[MANY];
    generate(*state, 1u << 30, 64, false, lone);
    generate(*state, 1u << 30, 64, true, batch);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(lone[i].count, 30);
        assert_string_equal(lone[i].finish, "length");
        assert_same(&lone[i], &batch[i]);
        fm_gen_result_release(&batch[i]);
    }
    generate(*state, 1u << 30, 3, true, batch); /* three rows a step: most of them wait */
    for (int i = 0; i < MANY; i++) {
        assert_same(&lone[i], &batch[i]);
        fm_gen_result_release(&batch[i]);
        fm_gen_result_release(&lone[i]);
    }
}

static void running_out_of_pages_changes_no_answer(void **state)
{
    fm_gen_result lone[MANY], batch[MANY];
    const uint64_t page = 2ull * 2 * 24 * FM_KV_PAGE * sizeof(float);
    generate(*state, 1u << 30, 64, false, lone);
    for (uint64_t pages = 2; pages <= 6; pages += 2) { /* the longest needs two */
        generate(*state, pages * page, 64, true, batch);
        for (int i = 0; i < MANY; i++) {
            if (strcmp(batch[i].finish, "length") == 0 && batch[i].count == 30)
                assert_same(&lone[i], &batch[i]);
            else /* two pages hold 64 positions; a model's positions end there */
                assert_true(pages == 2 && lone[i].count + 1 + (size_t)i * 4 > 60);
            fm_gen_result_release(&batch[i]);
        }
    }
    for (int i = 0; i < MANY; i++)
        fm_gen_result_release(&lone[i]);
}

/* ==== events ==== */

typedef struct journal {
    fm_buf text;
    char finish[16], error[128];
    int tokens, ends, stop_after;
    bool text_was_utf8;
    int32_t top_token;
    float logprob, top_logprob;
} journal;

static bool whole_utf8(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        unsigned char c = (unsigned char)s[at];
        size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        if ((c & 0xc0) == 0x80 || at + len > n)
            return false;
        at += len;
    }
    return true;
}

static bool on_event(void *ctx, const fm_gen_event *ev)
{
    journal *l = ctx;
    assert_int_equal(l->ends, 0); /* nothing after the last event */
    fm_buf_append(&l->text, ev->text, ev->text_len);
    l->text_was_utf8 = l->text_was_utf8 && whole_utf8(ev->text, ev->text_len);
    if (ev->token >= 0) {
        l->tokens++;
        l->logprob = ev->logprob;
        if (ev->top_count) {
            l->top_token = ev->top[0].token;
            l->top_logprob = ev->top[0].logprob;
        }
    }
    if (ev->finish) {
        (void)snprintf(l->finish, sizeof(l->finish), "%s", ev->finish);
        (void)snprintf(l->error, sizeof(l->error), "%s", ev->error ? ev->error : "");
        l->ends++;
    }
    return l->tokens != l->stop_after;
}

static void log_init(journal *l)
{
    memset(l, 0, sizeof(*l));
    fm_buf_init(&l->text, 0);
    l->text_was_utf8 = true;
    l->stop_after = -1;
}

static void run_all(fm_scheduler *s)
{
    bool busy = true;
    for (int i = 0; busy; i++) {
        assert_true(i < 5000);
        tk_ok(fm_scheduler_step(s, &busy));
    }
}

static void stop_strings_are_found_across_tokens_and_held_back(void **state)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = load(*state, e);
    fm_gen_request q = request(m, 3);
    fm_gen_result whole;
    q.sampling.temperature = 2.0f; /* a varied text */
    q.max_new = 60;
    tk_ok(fm_generate(e, &q, 1, &whole));
    const char *text = fm_buf_cstr(&whole.text);
    for (size_t at = 1; at + 4 < whole.text.len; at += 3) {
        char stop[5] = {0};
        memcpy(stop, text + at, 4);
        if (!whole_utf8(stop, 4))
            continue;
        const char *never = "\xc3\xa9never", *stops[] = {never, stop};
        journal l;
        log_init(&l);
        fm_scheduler *s = NULL;
        tk_ok(fm_scheduler_new(&s, e, 2));
        q.stop = stops;
        q.stop_count = 2;
        q.on_event = on_event;
        q.ctx = &l;
        tk_ok(fm_scheduler_add(s, &q, NULL));
        run_all(s);
        size_t first = (size_t)(strstr(text, stop) - text);
        assert_int_equal(l.text.len, first);
        assert_memory_equal(l.text.data ? (const char *)l.text.data : "", text, first);
        assert_string_equal(l.finish, "stop");
        assert_true(l.text_was_utf8);
        fm_buf_release(&l.text);
        fm_scheduler_free(s);
    }
    fm_gen_result_release(&whole);
    fm_model_close(m);
    fm_engine_free(e);
}

static void eos_ends_unless_ignored(void **state)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = load(*state, e);
    int32_t eos = fm_model_arch(m)->eos[0];
    assert_int_equal(fm_model_arch(m)->eos_count, 1);
    bool ended = false;
    for (int seed = 0; seed < 40; seed++) {
        fm_gen_request q = request(m, 2);
        fm_gen_result with, without;
        q.sampling.temperature = 3.0f;
        q.sampling.top_p = 1.0f;
        q.sampling.seed = (uint64_t)seed;
        tk_ok(fm_generate(e, &q, 1, &without));
        q.ignore_eos = false;
        tk_ok(fm_generate(e, &q, 1, &with));
        size_t at = 0;
        while (at < without.count && without.tokens[at] != eos)
            at++;
        assert_int_equal(with.count, FM_MIN(at + 1, without.count));
        assert_string_equal(with.finish, at < without.count ? "stop" : "length");
        ended = ended || at < without.count;
        fm_gen_result_release(&with);
        fm_gen_result_release(&without);
    }
    assert_true(ended);
    fm_model_close(m);
    fm_engine_free(e);
}

static void cancelled_requests_end_and_others_go_on(void **state)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = load(*state, e);
    fm_scheduler *s = NULL;
    journal l[4];
    uint64_t id[4];
    tk_ok(fm_scheduler_new(&s, e, 2));
    for (int i = 0; i < 4; i++) {
        log_init(&l[i]);
        fm_gen_request q = request(m, i);
        q.on_event = on_event;
        q.ctx = &l[i];
        q.top_logprobs = i == 3 ? 2 : 0;
        tk_ok(fm_scheduler_add(s, &q, &id[i]));
    }
    l[1].stop_after = 5; /* its callback says no after five tokens */
    bool busy = true;
    for (int i = 0; i < 3; i++)
        tk_ok(fm_scheduler_step(s, &busy));
    assert_int_equal(fm_scheduler_running(s), 2);
    assert_int_equal(fm_scheduler_waiting(s), 2);
    assert_true(fm_scheduler_cancel(s, id[0])); /* running */
    assert_true(fm_scheduler_cancel(s, id[2])); /* waiting */
    run_all(s);
    assert_string_equal(l[0].finish, "cancelled");
    assert_string_equal(l[1].finish, "cancelled");
    assert_int_equal(l[1].tokens, 5);
    assert_string_equal(l[2].finish, "cancelled");
    assert_int_equal(l[2].tokens, 0);
    assert_string_equal(l[3].finish, "length");
    assert_int_equal(l[3].tokens, 30);
    assert_true(l[3].logprob <= l[3].top_logprob); /* greedy: equal */
    fm_gen_request q = request(m, 5);
    q.on_event = on_event;
    fm_buf_release(&l[0].text);
    log_init(&l[0]);
    q.ctx = &l[0];
    tk_ok(fm_scheduler_add(s, &q, NULL));
    tk_ok(fm_scheduler_step(s, &busy));
    fm_scheduler_free(s); /* with one running */
    assert_string_equal(l[0].finish, "cancelled");
    for (int i = 0; i < 4; i++)
        fm_buf_release(&l[i].text);
    fm_model_close(m);
    fm_engine_free(e);
}

static void a_request_that_fails_ends_alone(void **state)
{
    world *w = *state;
    fm_tree *broken = NULL;
    float nan[48];
    for (int i = 0; i < 48; i++)
        nan[i] = NAN;
    tk_ok(fm_tree_copy(&broken, w->tree));
    ik_put(&w->mem, broken, "tensors", "model.norm.weight", nan, 1, 48, 0);
    fm_engine *e = ik_engine(1, 64);
    fm_provider p = ik_provider(&w->mem);
    fm_model *m = load(w, e), *bad = NULL;
    tk_ok(fm_model_load(&bad, e, broken, &p, "bad"));
    fm_gen_request q[2] = {request(bad, 2), request(m, 2)};
    fm_gen_result r[2], lone;
    tk_ok(fm_generate(e, q, 2, r));
    assert_string_equal(r[0].finish, "error");
    assert_true(r[0].text.len > 0);
    assert_int_equal(r[0].count, 0);
    tk_ok(fm_generate(e, &q[1], 1, &lone));
    assert_same(&r[1], &lone);
    fm_gen_result_release(&r[0]);
    fm_gen_result_release(&r[1]);
    fm_gen_result_release(&lone);
    fm_model_close(m);
    fm_model_close(bad);
    fm_engine_free(e);
    fm_tree_free(broken);
}

static void decode_steps_allocate_nothing(void **state)
{
    if (ik_on_stages())
        skip();
    fm_engine *e = ik_engine(2, 64);
    fm_model *m = load(*state, e);
    fm_scheduler *s = NULL;
    journal l[4];
    tk_ok(fm_scheduler_new(&s, e, 4));
    for (int i = 0; i < 4; i++) {
        log_init(&l[i]);
        fm_buf_append(&l[i].text, "room for what comes, room for what comes, room for it", 54);
        for (int k = 0; k < 3; k++)
            fm_buf_append(&l[i].text, "room for what comes, room for what comes, room for it", 54);
        fm_buf_clear(&l[i].text);
        fm_gen_request q = request(m, i);
        q.on_event = on_event;
        q.ctx = &l[i];
        q.top_logprobs = 3;
        tk_ok(fm_scheduler_add(s, &q, NULL));
    }
    bool busy = true;
    for (int i = 0; i < 12; i++)
        tk_ok(fm_scheduler_step(s, &busy));
    uint64_t before = fm_mem_alloc_count();
    for (int i = 0; i < 12; i++)
        tk_ok(fm_scheduler_step(s, &busy));
    assert_int_equal(fm_mem_alloc_count(), before);
    run_all(s);
    for (int i = 0; i < 4; i++)
        fm_buf_release(&l[i].text);
    fm_scheduler_free(s);
    fm_model_close(m);
    fm_engine_free(e);
}

/* ==== scoring ==== */

static void scores_are_log_softmax_of_the_logits(void **state)
{
    fm_engine *e = ik_engine(2, 7); /* cuts every text */
    fm_model *m = load(*state, e);
    float lp[20], many[3][20], *logits = fm_malloc(20 * VOCAB * sizeof(float));
    fm_logprob top[20 * 3];
    ik_logits(m, prompt_ids, 20, 7, logits);
    tk_fails(fm_score(m, (const int32_t[]){1, -1}, 2, lp, NULL, 0), FM_EINVAL, "token 1");
    tk_ok(fm_score(m, prompt_ids, 20, lp, top, 3));
    for (size_t i = 0; i + 1 < 20; i++) {
        const float *x = logits + i * VOCAB;
        double sum = 0;
        for (size_t v = 0; v < VOCAB; v++)
            sum += exp((double)x[v]);
        double want = (double)x[prompt_ids[i + 1]] - log(sum);
        tk_assert_le(fabs((double)lp[i + 1] - want), 2e-6, "log-probability");
        tk_assert_le(fabs((double)top[3 * i].logprob - ((double)x[top[3 * i].token] - log(sum))),
                     2e-6, "best");
        assert_true(top[3 * i].logprob >= top[3 * i + 1].logprob);
        assert_true(top[3 * i].logprob >= lp[i + 1] - 1e-6f);
    }
    fm_score_request q[4];
    for (int i = 0; i < 3; i++)
        q[i] = (fm_score_request){
            .model = m, .ids = prompt_ids, .n = (size_t)(20 - 9 * i), .logprobs = many[i]};
    q[3] = (fm_score_request){.model = m, .ids = prompt_ids, .n = 1, .logprobs = many[2] + 10};
    tk_ok(fm_score_many(e, q, 4));
    for (int i = 0; i < 3; i++)
        assert_memory_equal(many[i] + 1, lp + 1, (q[i].n - 1) * sizeof(float));
    assert_true(many[2][10] == 0.0f);
    fm_free(logits);
    fm_model_close(m);
    fm_engine_free(e);
}

/* Four ends of one text: its whole block runs once, the ends have the bits of lone scorings. */
static void scores_from_a_position_share_what_is_before_it(void **state)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = load(*state, e);
    int32_t ids[4][40];
    float one[40], many[4][40];
    fm_score_request q[4];
    const uint64_t layers = fm_model_arch(m)->layers;
    for (int i = 0; i < 4; i++) {
        memcpy(ids[i], prompt_ids, sizeof ids[i]);
        ids[i][38] = (prompt_ids[38] + i) % (int32_t)VOCAB;
        for (size_t t = 0; t < 40; t++)
            many[i][t] = -7.0f;
        q[i] =
            (fm_score_request){.model = m, .ids = ids[i], .n = 40, .logprobs = many[i], .from = 38};
    }
    uint64_t before = fm_engine_stats_of(e).layer_rows;
    tk_ok(fm_score_many(e, q, 4));
    assert_int_equal(fm_engine_stats_of(e).layer_rows - before,
                     layers * (39 + 3 * (39 - FM_KV_PAGE)));
    fm_engine *other = ik_engine(2, 7); /* cuts every text, has seen none */
    fm_model *same = load(*state, other);
    for (int i = 0; i < 4; i++) {
        tk_ok(fm_score(same, ids[i], 40, one, NULL, 0));
        assert_memory_equal(many[i] + 38, one + 38, 2 * sizeof(float));
        for (size_t t = 1; t < 38; t++)
            assert_true(many[i][t] == -7.0f);
    }
    q[0].from = 40; /* nothing is wanted */
    many[0][39] = 5.0f;
    tk_ok(fm_score_many(e, q, 1));
    assert_true(many[0][39] == 5.0f);
    fm_model_close(same);
    fm_engine_free(other);
    fm_model_close(m);
    fm_engine_free(e);
}

static void scoring_survives_a_shortage_of_pages(void **state)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = 1;
    o.max_rows = 64;
    o.kv_bytes_max = 2 * (2ull * 2 * 24 * FM_KV_PAGE * sizeof(float));
    tk_ok(fm_engine_new(&e, &o));
    fm_model *m = load(*state, e);
    float one[40], many[5][40];
    fm_score_request q[5];
    tk_ok(fm_score(m, prompt_ids, 40, one, NULL, 0));
    for (int i = 0; i < 5; i++)
        q[i] = (fm_score_request){.model = m, .ids = prompt_ids, .n = 40, .logprobs = many[i]};
    tk_ok(fm_score_many(e, q, 5));
    for (int i = 0; i < 5; i++)
        assert_memory_equal(many[i], one, sizeof(one));
    for (int i = 0; i < 5; i++)
        q[i].from = 35 - (size_t)i;
    memset(many, 0, sizeof many);
    tk_ok(fm_score_many(e, q, 5));
    for (int i = 0; i < 5; i++)
        assert_memory_equal(many[i] + 35 - i, one + 35 - i, (size_t)(5 + i) * sizeof(float));
    fm_model_close(m);
    fm_engine_free(e);
}

int main(void)
{
    char *here = tk_shared("arch/llama");
    if (!here)
        return tk_skip("no reference data");
    fm_free(here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_requests_name_their_field),
        cmocka_unit_test(batched_answers_equal_lone_ones),
        cmocka_unit_test(running_out_of_pages_changes_no_answer),
        cmocka_unit_test(stop_strings_are_found_across_tokens_and_held_back),
        cmocka_unit_test(eos_ends_unless_ignored),
        cmocka_unit_test(cancelled_requests_end_and_others_go_on),
        cmocka_unit_test(a_request_that_fails_ends_alone),
        cmocka_unit_test(decode_steps_allocate_nothing),
        cmocka_unit_test(scores_are_log_softmax_of_the_logits),
        cmocka_unit_test(scores_from_a_position_share_what_is_before_it),
        cmocka_unit_test(scoring_survives_a_shortage_of_pages),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
