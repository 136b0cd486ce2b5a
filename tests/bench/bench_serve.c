/* bench_serve - what HTTP adds to a token: 8 clients that stream SmolLM2's answers from a server in
 * this process, and the same 8 requests given to the scheduler directly, taking turns.
 *
 * usage: bench_serve [--mode MODE[,MODE]] [--threads N] [--repeat N] [--tokens N]
 * Both sides tokenize nothing (prompts are ids) and make text of every token; the server adds JSON,
 * HTTP, its threads and a socket per client. The client is a loop over poll in this process, so its
 * work is on the same cores and is counted as overhead. */
#include <math.h>
#include <poll.h>
#include <stdlib.h>

#include "tests/bench/bench_kit.h"
#include "tests/model/serve_kit.h"

#define CLIENTS 8u
#define PROMPT 64u

typedef struct bench {
    fm_source *src;
    unsigned threads;
    uint32_t repeat, tokens;
    const char *mode;
    fm_engine *alone, *served;
    fm_model *model;
    fm_server *server;
    pthread_t thread;
    fm_status rc;
} bench;

typedef struct turn {
    double first_s; /* until every client has its first token */
    double seconds; /* of all */
    double from;    /* clock */
    double cpu_s;   /* of the whole process and turn; waiting threads spin, so use --threads 1 */
    uint32_t events;
} turn;

static void note_first(turn *t, bool *seen, uint32_t *waiting)
{
    if (*seen || *waiting == 0)
        return;
    *seen = true;
    if (--*waiting == 0)
        t->first_s = bk_now_s() - t->from;
}

static double process_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ==== a catalog of one ==== */

static fm_status resolve(void *ctx, const char *name, char version[65])
{
    (void)ctx;
    if (strcmp(name, "smollm2") != 0)
        return fm_fail(FM_ENOTFOUND, "no revision '%s'", name);
    memset(version, '1', 40);
    version[40] = 0;
    return FM_OK;
}

static fm_status tree_of(void *ctx, const char *version, fm_tree **out)
{
    bench *b = ctx;
    (void)version;
    return fm_tree_copy(out, fm_source_tree(b->src));
}

static fm_status list_none(void *ctx,
                           fm_status (*each)(void *each_ctx, const char *name, const char *version,
                                             int64_t created),
                           void *each_ctx)
{
    (void)ctx;
    (void)each;
    (void)each_ctx;
    return FM_OK;
}

static void *serve(void *arg)
{
    bench *b = arg;
    b->rc = fm_server_run(b->server, NULL);
    return NULL;
}

/* Each prompt begins differently, so that the prefix cache knows none of them. */
static uint32_t first;

/* ==== the scheduler alone ==== */

typedef struct direct { /* one request of the scheduler */
    turn *t;
    uint32_t *waiting;
    bool seen;
} direct;

static bool on_event(void *ctx, const fm_gen_event *ev)
{
    direct *d = ctx;
    d->t->events += ev->token >= 0;
    note_first(d->t, &d->seen, d->waiting);
    return true;
}

static turn scheduler_turn(bench *b)
{
    static int32_t id[CLIENTS][PROMPT];
    fm_scheduler *s = NULL;
    uint32_t waiting = CLIENTS;
    direct d[CLIENTS];
    uint64_t number;
    bool busy = true;
    tk_ok(fm_scheduler_new(&s, b->alone, CLIENTS));
    turn t = {.from = bk_now_s(), .cpu_s = -process_s()};
    for (uint32_t c = 0; c < CLIENTS; c++) {
        for (uint32_t i = 0; i < PROMPT; i++)
            id[c][i] = (int32_t)(1000 + c * 100 + i);
        id[c][0] = (int32_t)(first++ % 40000);
        d[c] = (direct){.t = &t, .waiting = &waiting};
        fm_gen_request q = {.model = b->model,
                            .prompt = id[c],
                            .prompt_len = PROMPT,
                            .max_new = b->tokens,
                            .ignore_eos = true,
                            .on_event = on_event,
                            .ctx = &d[c]};
        fm_sample_defaults(&q.sampling);
        tk_ok(fm_scheduler_add(s, &q, &number));
    }
    while (busy)
        tk_ok(fm_scheduler_step(s, &busy));
    t.seconds = bk_now_s() - t.from;
    t.cpu_s += process_s();
    fm_scheduler_free(s);
    assert_int_equal(t.events, CLIENTS * b->tokens);
    return t;
}

/* ==== clients ==== */

static int ask(const bench *b, uint32_t client)
{
    fm_buf body;
    fm_buf_init(&body, 0);
    fm_buf_printf(&body,
                  "{\"model\":\"smollm2\",\"max_tokens\":%u,\"temperature\":0,"
                  "\"ignore_eos\":true,\"stream\":true,\"prompt\":[",
                  b->tokens);
    fm_buf_printf(&body, "%u", first++ % 40000);
    for (uint32_t i = 1; i < PROMPT; i++)
        fm_buf_printf(&body, ",%u", 1000 + client * 100 + i);
    fm_buf_printf(&body, "]}");
    int fd = sk_begin(fm_server_port(b->server), "POST", "/v1/completions",
                      "Content-Type: application/json\r\n", fm_buf_cstr(&body));
    fm_buf_release(&body);
    return fd;
}

/* Counts the events that carry a choice; a mark that falls between two reads is found too. */
static uint32_t count_events(fm_buf *seen, size_t *at)
{
    static const char mark[] = "\"finish_reason\":";
    uint32_t n = 0;
    const char *text = fm_buf_cstr(seen);
    for (const char *p; (p = strstr(text + *at, mark)) != NULL; n++)
        *at = (size_t)(p - text) + sizeof(mark) - 1;
    return n;
}

static turn http_turn(bench *b)
{
    struct pollfd p[CLIENTS];
    fm_buf seen[CLIENTS];
    size_t at[CLIENTS] = {0};
    bool begun[CLIENTS] = {false};
    uint32_t waiting = CLIENTS;
    char piece[16384];
    turn t = {.from = bk_now_s(), .cpu_s = -process_s()};
    for (uint32_t c = 0; c < CLIENTS; c++) {
        p[c] = (struct pollfd){.fd = ask(b, c), .events = POLLIN};
        fm_buf_init(&seen[c], 0);
    }
    for (uint32_t open = CLIENTS; open > 0;) {
        assert_true(poll(p, CLIENTS, 60000) > 0);
        for (uint32_t c = 0; c < CLIENTS; c++) {
            if (p[c].fd < 0 || !p[c].revents)
                continue;
            ssize_t n = recv(p[c].fd, piece, sizeof(piece), 0);
            if (n > 0) {
                fm_buf_append(&seen[c], piece, (size_t)n);
                uint32_t more = count_events(&seen[c], &at[c]);
                t.events += more;
                if (more > 0)
                    note_first(&t, &begun[c], &waiting);
                continue;
            }
            (void)close(p[c].fd);
            p[c].fd = -1;
            open--;
        }
    }
    t.seconds = bk_now_s() - t.from;
    t.cpu_s += process_s();
    for (uint32_t c = 0; c < CLIENTS; c++) {
        if (!strstr(fm_buf_cstr(&seen[c]), "data: [DONE]"))
            fail_msg("client %u: the answer has no end: %.400s", c, fm_buf_cstr(&seen[c]));
        fm_buf_release(&seen[c]);
    }
    return t;
}

/* ==== both ==== */

typedef struct both {
    bk_figure rate[2]; /* the scheduler alone, by HTTP */
    double first_s[2]; /* least, likewise cpu_s */
    double cpu_s[2];
    uint32_t events;
} both;

static void add_turn(both *f, int side, const bench *b, const turn *t)
{
    bk_add(&f->rate[side], CLIENTS * b->tokens / t->seconds);
    f->first_s[side] = f->rate[side].n == 1 ? t->first_s : fmin(f->first_s[side], t->first_s);
    f->cpu_s[side] = f->rate[side].n == 1 ? t->cpu_s : fmin(f->cpu_s[side], t->cpu_s);
    f->events = t->events;
}

static void report(const bench *b, const both *f)
{
    double a = bk_best(&f->rate[0]), h = bk_best(&f->rate[1]);
    printf("%-6s %u x %u tokens: scheduler alone %.1f tok/s (median %.1f), by HTTP %.1f (median "
           "%.1f): %.3f of it\n",
           b->mode, CLIENTS, b->tokens, a, bk_median(&f->rate[0]), h, bk_median(&f->rate[1]),
           h / a);
    printf(
        "%-6s processor time %.3f and %.3f s: %+.2f %%, %+.1f us a token; first tokens of %u x %u "
        "after %.3f and %.3f s; %.2f tokens an event\n",
        "", f->cpu_s[0], f->cpu_s[1], 100 * (f->cpu_s[1] / f->cpu_s[0] - 1),
        1e6 * (f->cpu_s[1] - f->cpu_s[0]) / (CLIENTS * b->tokens), CLIENTS, PROMPT, f->first_s[0],
        f->first_s[1], (double)CLIENTS * b->tokens / f->events);
    (void)fflush(stdout);
}

static void run_mode(bench *b)
{
    both f = {0};
    fm_provider p = fm_source_provider(b->src);
    fm_server_opts o = fm_server_defaults();
    if (bk_engine(&b->alone, b->threads, b->mode, 512) < 0 ||
        fm_model_load(&b->model, b->alone, fm_source_tree(b->src), &p, "smollm2") < 0) {
        printf("%-6s refused: %s\n", b->mode, fm_error_text());
        return;
    }
    tk_ok(bk_engine(&b->served, b->threads, b->mode, 512));
    o.catalog = (fm_server_catalog){b, resolve, tree_of, list_none, p};
    tk_ok(fm_server_new(&b->server, b->served, &o));
    tk_ok(fm_server_preload(b->server, "smollm2"));
    assert_int_equal(pthread_create(&b->thread, NULL, serve, b), 0);
    for (uint32_t i = 0; i < b->repeat; i++) {
        turn t = scheduler_turn(b);
        add_turn(&f, 0, b, &t);
        t = http_turn(b);
        add_turn(&f, 1, b, &t);
    }
    report(b, &f);
    fm_server_stop(b->server);
    assert_int_equal(pthread_join(b->thread, NULL), 0);
    tk_ok(b->rc);
    fm_server_free(b->server);
    fm_engine_free(b->served);
    fm_model_close(b->model);
    fm_engine_free(b->alone);
}

int main(int argc, char **argv)
{
    bench b = {.repeat = 5, .tokens = 128};
    char fast[] = "fast", *modes = fast, *path = tk_smollm2_gguf();
    if (!path)
        return tk_skip("SmolLM2's GGUF is not on this machine (FM_MODELS)");
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--mode") == 0)
            modes = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            b.threads = value;
        else if (strcmp(argv[i], "--repeat") == 0)
            b.repeat = value;
        else if (strcmp(argv[i], "--tokens") == 0)
            b.tokens = value;
    }
    tk_ok(fm_source_open(&b.src, path));
    for (char *save = NULL, *m = strtok_r(modes, ",", &save); m; m = strtok_r(NULL, ",", &save)) {
        b.mode = m;
        run_mode(&b);
    }
    fm_source_close(b.src);
    fm_free(path);
    return 0;
}
