/* ctest: apart stages=2:3 */
/* The server over real sockets: refusals, answers equal to lone ones, streams, clients that leave,
 * limits, and the end. */
#include "tests/model/serve_kit.h"

#include "infer/prompt.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

static sk_family family;

static int setup(void **state)
{
    (void)state;
    sk_family_init(&family);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sk_family_free(&family);
    return 0;
}

/* ==== refusals ==== */

static void want_error(uint16_t port, const char *method, const char *path, const char *headers,
                       const char *body, int status, const char *param, const char *code)
{
    sk_reply r;
    sk_ask(&r, port, method, path, headers, body);
    if (r.status != status)
        fail_msg("%s %s %s: %d, not %d: %s", method, path, body ? body : "", r.status, status,
                 fm_buf_cstr(&r.body));
    fm_json *o = sk_json(&r);
    const fm_json *e = fm_json_get(o, "error");
    assert_true(fm_json_str(fm_json_get(e, "message")).len > 0);
    assert_true(fm_json_str(fm_json_get(e, "type")).len > 0);
    assert_string_equal(fm_json_cstr(fm_json_get(e, "param"), ""), param);
    assert_string_equal(fm_json_cstr(fm_json_get(e, "code"), ""), code);
    assert_non_null(strstr(r.head, "X-Request-Id: "));
    fm_json_free(o);
    sk_release(&r);
}

TEST(bad_options_are_refused)
{
    fm_engine *e = ik_engine(1, 8);
    fm_server *s = NULL, *second = NULL;
    fm_server_opts o = sk_opts(&family);
    o.max_running = 0;
    tk_fails(fm_server_new(&s, e, &o), FM_EINVAL, "max_running");
    o = sk_opts(&family);
    o.catalog.list = NULL;
    tk_fails(fm_server_new(&s, e, &o), FM_EINVAL, "catalog");
    o = sk_opts(&family);
    o.host = "no such host";
    tk_fails(fm_server_new(&s, e, &o), FM_EIO, "no such host");
    o = sk_opts(&family);
    tk_ok(fm_server_new(&s, e, &o)); /* never run */
    o.port = fm_server_port(s);
    tk_fails(fm_server_new(&second, e, &o), FM_EIO, "choose another port");
    tk_fails(fm_server_preload(s, "nobody"), FM_ENOTFOUND, "nobody");
    tk_ok(fm_server_preload(s, "m1"));
    fm_server_free(s);
    fm_engine_free(e);
}

TEST(bad_requests_are_told_why)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    want_error(p, "GET", "/v2/models", "", NULL, 404, "", "unknown_url");
    want_error(p, "GET", "/v1/models/nobody", "", NULL, 404, "model", "model_not_found");
    want_error(p, "GET", "/v1/models/../../etc/passwd", "", NULL, 404, "model", "model_not_found");
    want_error(p, "GET", TEXT, "", NULL, 405, "", "method_not_allowed");
    want_error(p, "POST", "/v1/models", "", "{}", 405, "", "method_not_allowed");
    want_error(p, "DELETE", CHAT, "", NULL, 405, "", "method_not_allowed");
    want_error(p, "POST", TEXT, "", "{\"model\":", 400, "", "invalid_json");
    want_error(p, "POST", TEXT, "", "", 400, "", "invalid_json");
    want_error(p, "POST", TEXT, "", "{\"model\":\"m0\",\"prompt\":\"a\",\"best_off\":1}", 400,
               "best_off", "invalid_value");
    want_error(p, "POST", CHAT, "", "{\"model\":\"m0\",\"messages\":7}", 400, "messages",
               "invalid_value");
    want_error(p, "POST", TEXT, "", "{\"model\":\"m9\",\"prompt\":\"a\"}", 404, "model",
               "model_not_found");
    want_error(p, "POST", CHAT, "",
               "{\"model\":\"m9\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
               "\"stream\":true}",
               404, "model", "model_not_found");
    want_error(p, "POST", TEXT, "", "{\"model\":\"m0\",\"prompt\":[5,160]}", 400, "prompt", "");
    want_error(p, "POST", TEXT, "", "{\"model\":\"m0\",\"prompt\":\"\"}", 400, "prompt",
               "invalid_value");
    want_error(p, "POST", TEXT, "Content-Type: multipart/form-data\r\n", "{}", 415, "",
               "unsupported_media_type");
    sk_stop(&s);
}

TEST(foreign_hosts_are_refused)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    static const char ask[] = "GET /v1/models HTTP/1.1\r\nHost: evil.example:80\r\n"
                              "Connection: close\r\n\r\n";
    sk_start(&s, &family, &o);
    int fd = sk_connect(fm_server_port(s.server));
    sk_send(fd, ask, sizeof(ask) - 1);
    sk_read(&r, fd);
    assert_int_equal(r.status, 403);
    sk_release(&r);
    sk_stop(&s);
}

TEST(keys_are_asked_for)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    o.api_key = "sesame";
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    want_error(p, "GET", "/v1/models", "", NULL, 401, "", "invalid_api_key");
    want_error(p, "GET", "/metrics", "", NULL, 401, "", "invalid_api_key");
    want_error(p, "GET", "/v1/models", "Authorization: Bearer sesam\r\n", NULL, 401, "",
               "invalid_api_key");
    want_error(p, "GET", "/v1/models", "Authorization: Basic sesame\r\n", NULL, 401, "",
               "invalid_api_key");
    want_error(p, "POST", TEXT, "Authorization: Bearer sesame2\r\n", "{}", 401, "",
               "invalid_api_key");
    sk_ask(&r, p, "GET", "/v1/models", "Authorization: bearer sesame\r\n", NULL);
    assert_int_equal(r.status, 200);
    sk_release(&r);
    sk_ask(&r, p, "GET", "/health", "", NULL);
    assert_int_equal(r.status, 200);
    sk_release(&r);
    sk_stop(&s);
}

TEST(long_bodies_are_refused)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    char *body = fm_malloc(40001);
    memset(body, ' ', 40000);
    body[40000] = '\0';
    o.max_body_bytes = 30000;
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    want_error(p, "POST", TEXT, "", body, 413, "", "body_too_large");
    want_error(p, "POST", TEXT, "Expect: 100-continue\r\n", body, 413, "", "body_too_large");
    /* in chunks the length is not known before the end */
    int fd = sk_begin(p, "POST", TEXT, "Transfer-Encoding: chunked\r\n", NULL);
    for (int i = 0; i < 5; i++) {
        sk_send(fd, "1f40\r\n", 6);
        sk_send(fd, body, 8000);
        sk_send(fd, "\r\n", 2);
    }
    sk_send(fd, "0\r\n\r\n", 5);
    sk_read(&r, fd);
    assert_int_equal(r.status, 413);
    sk_release(&r);
    fm_free(body);
    sk_stop(&s);
}

/* ==== models ==== */

TEST(models_are_listed)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    sk_ask(&r, p, "GET", "/v1/models", "", NULL);
    assert_int_equal(r.status, 200);
    fm_json *list = sk_json(&r);
    assert_int_equal(fm_json_count(fm_json_get(list, "data")), SK_CHILDREN);
    const fm_json *one = fm_json_at(fm_json_get(list, "data"), 2);
    assert_string_equal(fm_json_cstr(fm_json_get(one, "id"), ""), "m2");
    assert_string_equal(fm_json_cstr(fm_json_get(one, "object"), ""), "model");
    assert_int_equal(fm_json_int(fm_json_get(one, "created"), 0), 1700000002);
    fm_json_free(list);
    sk_release(&r);
    sk_ask(&r, p, "GET", "/v1/models/m3", "", NULL);
    assert_int_equal(r.status, 200);
    one = list = sk_json(&r);
    assert_string_equal(fm_json_cstr(fm_json_get(one, "id"), ""), "m3");
    assert_int_equal(fm_json_int(fm_json_get(one, "created"), 0), 1700000003);
    fm_json_free(list);
    sk_release(&r);
    sk_stop(&s);
}

/* ==== answers ==== */

static const char *text_of(const fm_json *answer, size_t i)
{
    const fm_json *c = fm_json_at(fm_json_get(answer, "choices"), i);
    const char *text = fm_json_cstr(fm_json_get(c, "text"), NULL);
    return text ? text : fm_json_cstr(fm_json_path(c, "message.content"), "?");
}

/* What the engine says alone: greedy, or drawn by seed when it is not 0. */
static void alone(int child, const char *prompt, uint64_t seed, uint32_t n, fm_gen_result *out)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = NULL;
    fm_provider p = ik_provider(&family.mem);
    fm_ids ids = {0};
    tk_ok(fm_model_load(&m, e, family.tree[child], &p, "alone"));
    tk_ok(fm_prompt_text(&ids, m, fm_span_str(prompt)));
    fm_gen_request q = {.model = m, .prompt = ids.id, .prompt_len = ids.count, .max_new = n};
    fm_sample_defaults(&q.sampling);
    q.sampling.temperature = seed ? 1.0f : 0.0f;
    q.sampling.seed = seed;
    tk_ok(fm_generate(e, &q, 1, out));
    fm_ids_release(&ids);
    fm_model_close(m);
    fm_engine_free(e);
}

typedef struct asker {
    pthread_t thread;
    uint16_t port;
    int child;
    uint64_t seed;
    sk_reply reply;
} asker;

#define PROMPT "Once upon a time"

static void *ask_one(void *arg)
{
    asker *a = arg;
    char body[256];
    (void)snprintf(body, sizeof(body),
                   "{\"model\":\"m%d\",\"prompt\":\"" PROMPT "\",\"max_tokens\":400,"
                   "\"temperature\":%d,\"seed\":%d,\"return_token_ids\":true}",
                   a->child, a->seed ? 1 : 0, (int)a->seed);
    sk_ask(&a->reply, a->port, "POST", TEXT, "", body);
    return NULL;
}

static void check_alike(const asker *a)
{
    fm_gen_result want;
    char version[65];
    alone(a->child, PROMPT, a->seed, 400, &want);
    assert_int_equal(a->reply.status, 200);
    fm_json *o = sk_json(&a->reply);
    const fm_json *c = fm_json_at(fm_json_get(o, "choices"), 0);
    const fm_json *ids = fm_json_get(c, "token_ids");
    assert_int_equal(fm_json_count(ids), want.count);
    for (size_t i = 0; i < want.count; i++)
        assert_int_equal(fm_json_int(fm_json_at(ids, i), -1), want.tokens[i]);
    fm_span text = fm_json_str(fm_json_get(c, "text"));
    assert_true(fm_span_eq(text, fm_buf_span(&want.text)));
    assert_string_equal(fm_json_cstr(fm_json_get(c, "finish_reason"), ""), want.finish);
    assert_int_equal(fm_json_int(fm_json_path(o, "usage.completion_tokens"), 0), want.count);
    assert_int_equal(fm_json_int(fm_json_path(o, "usage.prompt_tokens"), 0), strlen(PROMPT));
    sk_version(a->child, version);
    assert_string_equal(fm_json_cstr(fm_json_get(o, "system_fingerprint"), ""), version);
    fm_json_free(o);
    fm_gen_result_release(&want);
}

TEST(children_in_one_batch_answer_as_they_do_alone)
{
    sk_server s;
    asker a[8];
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    for (int i = 0; i < 8; i++) {
        a[i] = (asker){.port = p, .child = i % SK_CHILDREN, .seed = i < 4 ? 0 : (uint64_t)i};
        assert_int_equal(pthread_create(&a[i].thread, NULL, ask_one, &a[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pthread_join(a[i].thread, NULL), 0);
        check_alike(&a[i]);
        sk_release(&a[i].reply);
    }
    /* steps were shared between versions */
    assert_true(sk_metric(p, "step_models_sum") > sk_metric(p, "step_models_count"));
    assert_true(sk_metric(p, "weight_bytes") < sk_metric(p, "weight_unshared_bytes") / 2);
    assert_true(sk_metric(p, "models_resident") > 3.5);
    assert_true(sk_metric(p, "requests_total{code=\"200\"}") > 7.5);
    sk_stop(&s);
}

TEST(chat_goes_through_the_template)
{
    sk_server s;
    fm_gen_result want;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    fm_json *a = sk_post(fm_server_port(s.server), CHAT,
                         "{\"model\":\"m1\",\"temperature\":0,\"max_completion_tokens\":40,"
                         "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":true,"
                         "\"top_logprobs\":2}");
    alone(1, "<s>[user] hi\n[assistant] ", 0, 40, &want);
    assert_string_equal(text_of(a, 0), fm_buf_cstr(&want.text));
    assert_string_equal(fm_json_cstr(fm_json_get(a, "object"), ""), "chat.completion");
    const fm_json *c = fm_json_at(fm_json_get(a, "choices"), 0);
    assert_string_equal(fm_json_cstr(fm_json_path(c, "message.role"), ""), "assistant");
    const fm_json *content = fm_json_path(c, "logprobs.content");
    assert_int_equal(fm_json_count(content), want.count);
    for (size_t i = 0; i < want.count; i++) {
        const fm_json *t = fm_json_at(content, i);
        const fm_json *tops = fm_json_get(t, "top_logprobs");
        double best = fm_json_real(fm_json_get(fm_json_at(tops, 0), "logprob"), 1);
        double mine = fm_json_real(fm_json_get(t, "logprob"), 2);
        assert_int_equal(fm_json_count(tops), 2);
        assert_true(mine <= best && mine >= best && mine <= 0); /* greedy */
    }
    fm_gen_result_release(&want);
    fm_json_free(a);
    sk_stop(&s);
}

TEST(several_prompts_give_several_choices)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    static const char *const prompt[] = {"one", "two, and longer", "3"};
    sk_start(&s, &family, &o);
    fm_json *a = sk_post(fm_server_port(s.server), TEXT,
                         "{\"model\":\"m2\",\"temperature\":0,\"max_tokens\":20,\"logprobs\":2,"
                         "\"prompt\":[\"one\",\"two, and longer\",\"3\"]}");
    assert_int_equal(fm_json_count(fm_json_get(a, "choices")), 3);
    for (size_t i = 0; i < 3; i++) {
        fm_gen_result want;
        alone(2, prompt[i], 0, 20, &want);
        assert_string_equal(text_of(a, i), fm_buf_cstr(&want.text));
        const fm_json *l = fm_json_get(fm_json_at(fm_json_get(a, "choices"), i), "logprobs");
        assert_int_equal(fm_json_count(fm_json_get(l, "tokens")), want.count);
        assert_int_equal(fm_json_count(fm_json_get(l, "token_logprobs")), want.count);
        assert_int_equal(fm_json_count(fm_json_get(l, "text_offset")), want.count);
        fm_gen_result_release(&want);
    }
    assert_int_equal(fm_json_int(fm_json_path(a, "usage.prompt_tokens"), 0), 3 + 15 + 1);
    fm_json_free(a);
    sk_stop(&s);
}

TEST(stop_strings_end_answers)
{
    sk_server s;
    fm_gen_result whole;
    char body[256], stop[8];
    fm_server_opts o = sk_opts(&family);
    alone(0, "a", 5, 200, &whole);
    size_t at = 20; /* a printable character somewhere inside */
    while (whole.text.data[at] < 'a' || whole.text.data[at] > 'z')
        at++;
    (void)snprintf(stop, sizeof(stop), "%c", whole.text.data[at]);
    size_t want = strcspn(fm_buf_cstr(&whole.text), stop);
    sk_start(&s, &family, &o);
    (void)snprintf(body, sizeof(body),
                   "{\"model\":\"m0\",\"prompt\":\"a\",\"max_tokens\":200,\"seed\":5,"
                   "\"stop\":\"%s\"}",
                   stop);
    fm_json *a = sk_post(fm_server_port(s.server), TEXT, body);
    assert_int_equal(strlen(text_of(a, 0)), want);
    const fm_json *c = fm_json_at(fm_json_get(a, "choices"), 0);
    assert_string_equal(fm_json_cstr(fm_json_get(c, "finish_reason"), ""), "stop");
    fm_json_free(a);
    fm_gen_result_release(&whole);
    sk_stop(&s);
}

/* ==== streams ==== */

/* Joins the texts of "data:" events; counts events with a finish, returns the last with choices [].
 */
static fm_json *join_events(const sk_reply *r, bool chat, fm_buf *text, size_t *finished)
{
    fm_json *usage = NULL;
    const char *p = fm_buf_cstr(&r->body);
    bool done = false;
    *finished = 0;
    while ((p = strstr(p, "data: "))) {
        const char *end = strstr(p, "\n\n");
        assert_non_null(end);
        p += 6;
        assert_false(done);
        if (strncmp(p, "[DONE]", 6) == 0) {
            done = true;
            continue;
        }
        fm_json *o = NULL;
        tk_ok(fm_json_parse(&o, fm_span_of(p, (size_t)(end - p)), "event"));
        const fm_json *c = fm_json_at(fm_json_get(o, "choices"), 0);
        fm_span s = fm_json_str(chat ? fm_json_path(c, "delta.content") : fm_json_get(c, "text"));
        fm_buf_append(text, s.data, s.len);
        *finished += fm_json_is(fm_json_get(c, "finish_reason"), FM_JSON_STRING);
        if (!c)
            usage = o;
        else
            fm_json_free(o);
    }
    assert_true(done);
    return usage;
}

static void check_stream(uint16_t port, bool chat, const char *fields)
{
    char body[512];
    sk_reply r;
    fm_buf joined;
    size_t finished;
    const char *path = chat ? CHAT : TEXT;
    (void)snprintf(body, sizeof(body), "{%s}", fields);
    fm_json *whole = sk_post(port, path, body);
    (void)snprintf(body, sizeof(body),
                   "{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", fields);
    sk_ask(&r, port, "POST", path, "", body);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.head, "text/event-stream"));
    fm_buf_init(&joined, 0);
    fm_json *usage = join_events(&r, chat, &joined, &finished);
    const fm_json *c = fm_json_at(fm_json_get(whole, "choices"), 0);
    fm_span want = fm_json_str(chat ? fm_json_path(c, "message.content") : fm_json_get(c, "text"));
    assert_true(want.len > 10);
    assert_true(fm_span_eq(fm_buf_span(&joined), want));
    assert_int_equal(finished, 1);
    assert_true(fm_json_equal(fm_json_get(usage, "usage"), fm_json_get(whole, "usage")));
    fm_json_free(usage);
    fm_json_free(whole);
    fm_buf_release(&joined);
    sk_release(&r);
}

TEST(streamed_pieces_join_to_the_whole)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    for (int i = 0; i < 6; i++) {
        char fields[256];
        (void)snprintf(fields, sizeof(fields),
                       "\"model\":\"m%d\",\"prompt\":\"a b\",\"seed\":%d,\"max_tokens\":300,"
                       "\"ignore_eos\":true%s",
                       i % SK_CHILDREN, i + 1, i % 2 ? ",\"logprobs\":1" : "");
        check_stream(p, false, fields);
        (void)snprintf(fields, sizeof(fields),
                       "\"model\":\"m%d\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                       "\"seed\":%d,\"max_tokens\":300,\"ignore_eos\":true",
                       i % SK_CHILDREN, i + 1);
        check_stream(p, true, fields);
    }
    sk_stop(&s);
}

/* ==== versions, limits, leaving ==== */

TEST(a_moved_branch_is_served_at_once)
{
    sk_server s;
    char version[65];
    fm_server_opts o = sk_opts(&family);
    static const char body[] = "{\"model\":\"branch\",\"prompt\":\"a\",\"temperature\":0,"
                               "\"max_tokens\":30}";
    atomic_store(&family.branch, 1);
    o.max_models = 1; /* and what is not used makes room */
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    for (int child = 1; child < SK_CHILDREN; child++) {
        fm_gen_result want;
        atomic_store(&family.branch, child);
        fm_json *a = sk_post(p, TEXT, body);
        alone(child, "a", 0, 30, &want);
        sk_version(child, version);
        assert_string_equal(fm_json_cstr(fm_json_get(a, "system_fingerprint"), ""), version);
        assert_string_equal(text_of(a, 0), fm_buf_cstr(&want.text));
        assert_string_equal(fm_json_cstr(fm_json_get(a, "model"), ""), "branch");
        fm_json_free(a);
        fm_gen_result_release(&want);
    }
    sk_wait_metric(p, "models_resident", 1);
    sk_stop(&s);
}

#define LONG                                                                                       \
    "\"model\":\"m0\",\"prompt\":\"a\",\"ignore_eos\":true,\"temperature\":0,"                     \
    "\"max_tokens\":60000"

TEST(a_client_that_leaves_frees_its_place)
{
    sk_server s;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    int whole = sk_begin(p, "POST", TEXT, "", "{" LONG "}");
    int stream = sk_begin(p, "POST", TEXT, "", "{" LONG ",\"stream\":true}");
    sk_wait_metric(p, "requests_running", 2);
    assert_true(sk_metric(p, "kv_bytes") > 0);
    (void)close(whole);
    sk_wait_metric(p, "requests_running", 1);
    (void)close(stream);
    sk_wait_metric(p, "requests_running", 0);
    sk_wait_metric(p, "requests_cancelled_total", 2);
    sk_stop(&s);
}

TEST(a_full_queue_is_503)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    o.max_running = 1;
    o.max_queue = 1;
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    int a = sk_begin(p, "POST", TEXT, "", "{" LONG "}");
    int b = sk_begin(p, "POST", TEXT, "", "{" LONG "}");
    sk_wait_metric(p, "requests_running", 1);
    sk_wait_metric(p, "requests_waiting", 1);
    sk_ask(&r, p, "POST", TEXT, "", "{\"model\":\"m0\",\"prompt\":\"a\"}");
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.head, "Retry-After: "));
    sk_release(&r);
    (void)close(b); /* one that waits leaves too */
    sk_wait_metric(p, "requests_waiting", 0);
    (void)close(a);
    sk_wait_metric(p, "requests_running", 0);
    fm_json *ok = sk_post(p, TEXT, "{\"model\":\"m0\",\"prompt\":\"a\",\"max_tokens\":2}");
    fm_json_free(ok);
    sk_stop(&s);
}

TEST(stopping_finishes_what_runs)
{
    sk_server s;
    sk_reply r;
    fm_server_opts o = sk_opts(&family);
    sk_start(&s, &family, &o);
    uint16_t p = fm_server_port(s.server);
    int fd = sk_begin(p, "POST", TEXT, "",
                      "{\"model\":\"m0\",\"prompt\":\"a\",\"ignore_eos\":true,\"temperature\":0,"
                      "\"max_tokens\":3000}");
    while (sk_metric(p, "requests_running") < 0.5 && /* or it has been quicker than we look */
           sk_metric(p, "requests_total{code=\"200\"}") < 0.5)
        sk_pause_ms(1);
    sk_stop(&s);
    sk_read(&r, fd);
    assert_int_equal(r.status, 200);
    fm_json *a = sk_json(&r);
    assert_int_equal(fm_json_int(fm_json_path(a, "usage.completion_tokens"), 0), 3000);
    fm_json_free(a);
    sk_release(&r);
}

TEST(requests_before_the_loop_wait_for_it_or_its_end)
{
    sk_reply r;
    fm_server *s = NULL;
    fm_engine *e = ik_engine(1, 8);
    fm_server_opts o = sk_opts(&family);
    tk_ok(fm_server_new(&s, e, &o));
    int fd = sk_begin(fm_server_port(s), "POST", TEXT, "", "{\"model\":\"m0\",\"prompt\":\"a\"}");
    sk_pause_ms(100);
    fm_server_free(s); /* never ran: the client is told or cut off, and nothing hangs */
    sk_read(&r, fd);
    assert_true(r.status == 503 || r.status == 0);
    sk_release(&r);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(bad_requests_are_told_why),
        cmocka_unit_test(foreign_hosts_are_refused),
        cmocka_unit_test(keys_are_asked_for),
        cmocka_unit_test(long_bodies_are_refused),
        cmocka_unit_test(models_are_listed),
        cmocka_unit_test(children_in_one_batch_answer_as_they_do_alone),
        cmocka_unit_test(chat_goes_through_the_template),
        cmocka_unit_test(several_prompts_give_several_choices),
        cmocka_unit_test(stop_strings_end_answers),
        cmocka_unit_test(streamed_pieces_join_to_the_whole),
        cmocka_unit_test(a_moved_branch_is_served_at_once),
        cmocka_unit_test(a_client_that_leaves_frees_its_place),
        cmocka_unit_test(a_full_queue_is_503),
        cmocka_unit_test(stopping_finishes_what_runs),
        cmocka_unit_test(requests_before_the_loop_wait_for_it_or_its_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
