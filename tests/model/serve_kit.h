/* serve_kit.h - a family of small random models with a tokenizer, a server over it in a thread of
 * its own, and a plain HTTP client that hides nothing: it sends the bytes it is given. */
#ifndef FM_TESTS_MODEL_SERVE_KIT_H
#define FM_TESTS_MODEL_SERVE_KIT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "infer/serve/server.h"
#include "store/base/math/rng.h"
#include "tests/model/infer_kit.h"

#define SK_CHILDREN 4
#define SK_VOCAB 160u
#define SK_HIDDEN 32u
#define SK_INTER 64u

/* ==== models ==== */

typedef struct sk_family {
    ik_mem mem;
    fm_tree *tree[SK_CHILDREN]; /* base, two LoRAs, one with a head of its own */
    atomic_int branch;          /* what the name "branch" means now */
} sk_family;

static inline void sk_noise(ik_mem *mem, fm_tree *t, const char *at, const char *name,
                            uint64_t seed, uint32_t rank, uint64_t rows, uint64_t cols)
{
    size_t n = (size_t)(rows * (rank == 2 ? cols : 1));
    float *x = fm_malloc(n * sizeof(float));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((rank == 1 ? 1.0 : 0.0) + 0.3 * fm_rng_normal(seed, 1, i));
    ik_put(mem, t, at, name, x, rank, rows, cols);
    fm_free(x);
}

/* Byte-level: three special tokens, printable ASCII with space and newline, then single bytes above
 * 0xA0, so that answers hold ill-formed and multi-byte UTF-8. */
static inline void sk_tokenizer(fm_tree *t)
{
    static const char *const special[] = {"<pad>", "<s>", "</s>"};
    fm_json *o = NULL;
    fm_json *vocab = fm_json_new_object(), *added = fm_json_new_array();
    int id = 0;
    for (; id < 3; id++) {
        fm_json *a = fm_json_new_object();
        tk_ok(fm_json_set(a, "id", fm_json_new_int(id)));
        tk_ok(fm_json_set(a, "content", fm_json_new_str(special[id])));
        for (size_t i = 0; i < 4; i++) {
            static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
            tk_ok(fm_json_set(a, off[i], fm_json_new_bool(false)));
        }
        tk_ok(fm_json_set(a, "special", fm_json_new_bool(true)));
        tk_ok(fm_json_push(added, a));
        tk_ok(fm_json_set(vocab, special[id], fm_json_new_int(id)));
    }
    tk_ok(fm_json_set(vocab, "\xC4\xA0", fm_json_new_int(id++))); /* space */
    tk_ok(fm_json_set(vocab, "\xC4\x8A", fm_json_new_int(id++))); /* newline */
    for (unsigned c = 0x21; c <= 0x7E; c++)
        tk_ok(fm_json_set(vocab, (char[]){(char)c, 0}, fm_json_new_int(id++)));
    for (unsigned c = 0xA1; id < (int)SK_VOCAB; c++)
        if (c != 0xAD)
            tk_ok(fm_json_set(vocab, (char[]){(char)(0xC0 | c >> 6), (char)(0x80 | (c & 63)), 0},
                              fm_json_new_int(id++)));
    tk_ok(
        fm_json_parse(&o,
                      fm_span_str("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
                                  "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                                  "\"add_prefix_space\":false,\"trim_offsets\":true,"
                                  "\"use_regex\":true},\"post_processor\":null,\"decoder\":{"
                                  "\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                                  "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":"
                                  "\"BPE\",\"dropout\":null,\"unk_token\":null,"
                                  "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                                  "\"fuse_unk\":false,\"byte_fallback\":false,"
                                  "\"ignore_merges\":false,\"merges\":[]}}"),
                      "tokenizer"));
    fm_json *model = fm_json_ref(fm_json_get(o, "model"));
    tk_ok(fm_json_set(model, "vocab", vocab));
    tk_ok(fm_json_set(o, "added_tokens", added));
    fm_buf text;
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, o, FM_JSON_COMPACT));
    tk_ok(fm_tree_put_file(t, "tokenizer/tokenizer.json", fm_buf_span(&text)));
    fm_buf_release(&text);
    fm_json_free(model);
    fm_json_free(o);
    tk_ok(fm_tree_put_file(
        t, "tokenizer/tokenizer_config.json",
        fm_span_str("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":"
                    "\"{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\\n"
                    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}\"}")));
}

static inline void sk_base(sk_family *f, fm_tree *t)
{
    static const struct {
        const char *name;
        uint32_t rank, rows, cols;
    } in_layer[] = {{"input_layernorm", 1, SK_HIDDEN, 0},
                    {"post_attention_layernorm", 1, SK_HIDDEN, 0},
                    {"self_attn.q_proj", 2, SK_HIDDEN, SK_HIDDEN},
                    {"self_attn.k_proj", 2, SK_HIDDEN / 2, SK_HIDDEN},
                    {"self_attn.v_proj", 2, SK_HIDDEN / 2, SK_HIDDEN},
                    {"self_attn.o_proj", 2, SK_HIDDEN, SK_HIDDEN},
                    {"mlp.gate_proj", 2, SK_INTER, SK_HIDDEN},
                    {"mlp.up_proj", 2, SK_INTER, SK_HIDDEN},
                    {"mlp.down_proj", 2, SK_HIDDEN, SK_INTER}};
    char name[96];
    uint64_t seed = 100;
    tk_ok(fm_tree_put_file(
        t, "model.json",
        fm_span_str("{\"format\":1,\"architecture\":\"llama\",\"config\":{\"architectures\":"
                    "[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"attention_bias\":false,"
                    "\"bos_token_id\":1,\"eos_token_id\":2,\"head_dim\":8,\"hidden_act\":\"silu\","
                    "\"hidden_size\":32,\"intermediate_size\":64,\"max_position_embeddings\":65536,"
                    "\"mlp_bias\":false,\"num_attention_heads\":4,\"num_hidden_layers\":2,"
                    "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_theta\":10000.0,"
                    "\"tie_word_embeddings\":false,\"vocab_size\":160}}")));
    for (unsigned l = 0; l < 2; l++)
        for (size_t i = 0; i < FM_ARRAY_LEN(in_layer); i++) {
            (void)snprintf(name, sizeof(name), "model.layers.%u.%s.weight", l, in_layer[i].name);
            sk_noise(&f->mem, t, "tensors", name, seed++, in_layer[i].rank, in_layer[i].rows,
                     in_layer[i].cols);
        }
    sk_noise(&f->mem, t, "tensors", "model.embed_tokens.weight", seed++, 2, SK_VOCAB, SK_HIDDEN);
    sk_noise(&f->mem, t, "tensors", "model.norm.weight", seed++, 1, SK_HIDDEN, 0);
    sk_noise(&f->mem, t, "tensors", "lm_head.weight", seed, 2, SK_VOCAB, SK_HIDDEN);
    sk_tokenizer(t);
}

static inline void sk_lora(sk_family *f, fm_tree *t, uint32_t r, uint64_t seed)
{
    const char *at = "adapters/0-lora/tensors";
    char text[160], name[128];
    (void)snprintf(text, sizeof(text),
                   "{\"peft_type\":\"LORA\",\"r\":%u,\"lora_alpha\":16,\"target_modules\":"
                   "[\"q_proj\"]}",
                   r);
    tk_ok(fm_tree_put_file(t, "adapters/0-lora/adapter_config.json", fm_span_str(text)));
    for (unsigned l = 0; l < 2; l++)
        for (unsigned b = 0; b < 2; b++) {
            (void)snprintf(name, sizeof(name),
                           "base_model.model.model.layers.%u.self_attn.q_proj.lora_%c.weight", l,
                           b ? 'B' : 'A');
            sk_noise(&f->mem, t, at, name, seed + l * 10 + b, 2, b ? SK_HIDDEN : r,
                     b ? r : SK_HIDDEN);
        }
}

static inline void sk_family_init(sk_family *f)
{
    memset(f, 0, sizeof(*f));
    tk_ok(fm_tree_new(&f->tree[0]));
    sk_base(f, f->tree[0]);
    for (int i = 1; i < SK_CHILDREN; i++)
        tk_ok(fm_tree_copy(&f->tree[i], f->tree[0]));
    sk_lora(f, f->tree[1], 2, 1000);
    sk_lora(f, f->tree[2], 5, 2000);
    sk_noise(&f->mem, f->tree[3], "tensors", "lm_head.weight", 3000, 2, SK_VOCAB, SK_HIDDEN);
}

static inline void sk_family_free(sk_family *f)
{
    for (int i = 0; i < SK_CHILDREN; i++)
        fm_tree_free(f->tree[i]);
    ik_mem_free(&f->mem);
}

/* ==== catalog: m0 .. m3 and branch; versions are 40 digits of the child ==== */

static inline void sk_version(int child, char version[65])
{
    memset(version, '0' + child, 40);
    version[40] = '\0';
}

static inline fm_status sk_resolve(void *ctx, const char *name, char version[65])
{
    sk_family *f = ctx;
    int child = -1;
    if (strcmp(name, "branch") == 0)
        child = atomic_load(&f->branch);
    else if (name[0] == 'm' && name[1] >= '0' && name[1] < '0' + SK_CHILDREN && !name[2])
        child = name[1] - '0';
    if (child < 0)
        return fm_fail(FM_ENOTFOUND, "no revision '%s'", name);
    sk_version(child, version);
    return FM_OK;
}

static inline fm_status sk_tree(void *ctx, const char *version, fm_tree **out)
{
    sk_family *f = ctx;
    return fm_tree_copy(out, f->tree[version[0] - '0']);
}

static inline fm_status sk_list(void *ctx,
                                fm_status (*each)(void *each_ctx, const char *name,
                                                  const char *version, int64_t created),
                                void *each_ctx)
{
    char name[16], version[65];
    (void)ctx;
    for (int i = 0; i < SK_CHILDREN; i++) {
        (void)snprintf(name, sizeof(name), "m%d", i);
        sk_version(i, version);
        fm_status rc = each(each_ctx, name, version, 1700000000 + i);
        if (rc < 0)
            return rc;
    }
    return FM_OK;
}

/* ==== the server ==== */

typedef struct sk_server {
    sk_family *family;
    fm_engine *engine;
    fm_server *server;
    pthread_t thread;
    fm_status rc;
} sk_server;

static inline void *sk_run(void *arg)
{
    sk_server *s = arg;
    s->rc = fm_server_run(s->server, NULL);
    return NULL;
}

static inline fm_server_opts sk_opts(sk_family *f)
{
    fm_server_opts o = fm_server_defaults();
    o.max_tokens = 60000;
    o.catalog = (fm_server_catalog){f, sk_resolve, sk_tree, sk_list, ik_provider(&f->mem)};
    return o;
}

/* Ready to be run: models may be loaded and pinned. weight_bytes_max 0: no budget. */
static inline void sk_open(sk_server *s, sk_family *f, const fm_server_opts *o,
                           uint64_t weight_bytes_max)
{
    fm_engine_opts e = fm_engine_defaults();
    e.threads = 1;
    e.max_rows = 128;
    e.weight_bytes_max = weight_bytes_max;
    s->family = f;
    tk_ok(fm_engine_new(&s->engine, &e));
    tk_ok(fm_server_new(&s->server, s->engine, o));
}

static inline void sk_go(sk_server *s)
{
    assert_int_equal(pthread_create(&s->thread, NULL, sk_run, s), 0);
}

static inline void sk_start(sk_server *s, sk_family *f, const fm_server_opts *o)
{
    sk_open(s, f, o, 0);
    sk_go(s);
}

static inline void sk_stop(sk_server *s)
{
    fm_server_stop(s->server);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    tk_ok(s->rc);
    fm_server_free(s->server);
    fm_engine_stats left = fm_engine_stats_of(s->engine);
    assert_int_equal(left.models, 0);
    fm_engine_free(s->engine);
}

/* ==== the client ==== */

typedef struct sk_reply {
    int status; /* 0: the connection ended without an answer */
    fm_buf raw, body;
    char *head; /* status line and headers, NUL-terminated */
} sk_reply;

static inline int sk_connect(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {.tv_sec = 600};
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

static inline void sk_send(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* the server may have hung up on purpose; the reply tells */
        p += k;
        n -= (size_t)k;
    }
}

static inline void sk_unchunk(sk_reply *r, const uint8_t *p, const uint8_t *end)
{
    while (p < end) {
        char *after = NULL;
        size_t n = strtoul((const char *)p, &after, 16);
        p = (const uint8_t *)after + 2;
        if (n == 0 || p + n > end)
            return;
        fm_buf_append(&r->body, p, n);
        p += n + 2;
    }
}

/* Reads to the end of the connection. */
static inline void sk_read(sk_reply *r, int fd)
{
    char piece[4096];
    ssize_t n;
    memset(r, 0, sizeof(*r));
    fm_buf_init(&r->raw, 0);
    fm_buf_init(&r->body, 0);
    while ((n = recv(fd, piece, sizeof(piece), 0)) > 0)
        fm_buf_append(&r->raw, piece, (size_t)n);
    (void)close(fd);
    char *text = (char *)r->raw.data;
    char *gap = text ? strstr(text, "\r\n\r\n") : NULL;
    if (!gap)
        return;
    if (strstr(text, " 100 Continue") == text + 8) {
        text = gap + 4;
        gap = strstr(text, "\r\n\r\n");
    }
    r->head = fm_strndup(text, (size_t)(gap - text));
    r->status = (int)strtol(text + 9, NULL, 10);
    const uint8_t *body = (const uint8_t *)gap + 4, *end = r->raw.data + r->raw.len;
    if (strstr(r->head, "ransfer-Encoding: chunked"))
        sk_unchunk(r, body, end);
    else
        fm_buf_append(&r->body, body, (size_t)(end - body));
}

static inline void sk_release(sk_reply *r)
{
    fm_buf_release(&r->raw);
    fm_buf_release(&r->body);
    fm_free(r->head);
}

/* headers: further lines, each ending in CR LF. */
static inline int sk_begin(uint16_t port, const char *method, const char *path, const char *headers,
                           const char *body)
{
    fm_buf b;
    int fd = sk_connect(port);
    fm_buf_init(&b, 0);
    fm_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path,
                  headers);
    if (body)
        fm_buf_printf(&b, "Content-Length: %zu\r\n", strlen(body));
    fm_buf_printf(&b, "\r\n%s", body ? body : "");
    sk_send(fd, b.data, b.len);
    fm_buf_release(&b);
    return fd;
}

static inline void sk_ask(sk_reply *r, uint16_t port, const char *method, const char *path,
                          const char *headers, const char *body)
{
    sk_read(r, sk_begin(port, method, path, headers, body));
}

static inline fm_json *sk_json(const sk_reply *r)
{
    fm_json *o = NULL;
    tk_ok(fm_json_parse(&o, fm_buf_span(&r->body), "reply"));
    return o;
}

/* POST that must be answered 200; the caller frees. */
static inline fm_json *sk_post(uint16_t port, const char *path, const char *body)
{
    sk_reply r;
    sk_ask(&r, port, "POST", path, "Content-Type: application/json\r\n", body);
    if (r.status != 200)
        fail_msg("%s %s: %d %s", path, body, r.status, fm_buf_cstr(&r.body));
    fm_json *o = sk_json(&r);
    sk_release(&r);
    return o;
}

static inline void sk_pause_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

/* A value of /metrics by its whole name; -1: not there. */
static inline double sk_metric(uint16_t port, const char *name)
{
    sk_reply r;
    char key[128];
    double value = -1;
    sk_ask(&r, port, "GET", "/metrics", "", NULL);
    assert_int_equal(r.status, 200);
    (void)snprintf(key, sizeof(key), "\nfmstore_%s ", name);
    const char *line = strstr(fm_buf_cstr(&r.body), key);
    if (line)
        value = strtod(line + strlen(key), NULL);
    sk_release(&r);
    return value;
}

static inline void sk_wait_metric(uint16_t port, const char *name, double want)
{
    double is = -1;
    for (int i = 0; i < 30000; i++) {
        is = sk_metric(port, name);
        if (is >= want && is <= want)
            return;
        sk_pause_ms(10);
    }
    fail_msg("%s is %g, not %g, after 5 minutes", name, is, want);
}

#endif
