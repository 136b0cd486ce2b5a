/* infer_work.c - one turn of this engine: prefill, decode, decode beside a long prompt. */
#include <math.h>
#include <stdlib.h>

#include "infer/sched/scheduler.h"
#include "tests/bench/infer_bench.h"

/* Texts begin differently in each turn, so that the prefix cache knows none of them. */
static uint32_t turns;

/* ==== steps ==== */

fm_status bi_prefill(fm_model *m, double *tok_s)
{
    static fm_row row[BI_PREFILL];
    fm_seq *s = NULL;
    fm_status rc = fm_seq_open(&s, m);
    for (uint32_t i = 0; i < BI_PREFILL; i++)
        row[i] = (fm_row){
            .seq = s, .token = (int32_t)(i * 7919 % 49152), .want_logits = i + 1 == BI_PREFILL};
    row[0].token = (int32_t)(turns++ % 49152);
    double t = bk_work_s();
    if (rc >= 0)
        rc = fm_engine_step(fm_model_engine(m), row, BI_PREFILL);
    *tok_s = BI_PREFILL / (bk_work_s() - t);
    fm_seq_close(s);
    return rc;
}

static fm_status read_context(fm_model *m, fm_seq *s, uint32_t stream)
{
    fm_row row[BI_CONTEXT];
    for (uint32_t i = 0; i < BI_CONTEXT; i++)
        row[i] = (fm_row){.seq = s, .token = (int32_t)(stream * 100 + i)};
    row[0].token = (int32_t)(turns++ % 49152);
    return fm_engine_step(fm_model_engine(m), row, BI_CONTEXT);
}

fm_status bi_decode(fm_model *const *m, uint32_t models, uint32_t streams, double *tok_s)
{
    fm_seq *s[BI_STREAMS] = {NULL};
    fm_row row[BI_STREAMS];
    fm_status rc = FM_OK;
    for (uint32_t b = 0; b < streams && rc >= 0; b++) {
        rc = fm_seq_open(&s[b], m[b % models]);
        if (rc >= 0)
            rc = read_context(m[b % models], s[b], b);
    }
    double t = bk_work_s();
    for (uint32_t i = 0; i < BI_DECODE && rc >= 0; i++) {
        for (uint32_t b = 0; b < streams; b++)
            row[b] = (fm_row){.seq = s[b], .token = (int32_t)(i + b), .want_logits = true};
        rc = fm_engine_step(fm_model_engine(m[0]), row, streams);
    }
    *tok_s = (double)BI_DECODE * streams / (bk_work_s() - t);
    for (uint32_t b = 0; b < streams; b++)
        fm_seq_close(s[b]);
    return rc;
}

/* ==== decode beside a long prompt ==== */

#define GAPS_MAX 65536u
#define STREAMS 7u
#define BEFORE 16u /* gaps of each stream before the prompt comes */

typedef struct stream {
    struct gaps *of;
    double last;
} stream;

typedef struct gaps {
    double ms[GAPS_MAX];
    uint32_t n;
    double prompt_from, prompt_s;
} gaps;

static bool on_token(void *ctx, const fm_gen_event *ev)
{
    stream *s = ctx;
    double now = bk_work_s();
    if (ev->finish)
        return true;
    if (s->last > 0 && s->of->n < GAPS_MAX)
        s->of->ms[s->of->n++] = 1e3 * (now - s->last);
    s->last = now;
    return true;
}

static bool on_prompt(void *ctx, const fm_gen_event *ev)
{
    gaps *g = ctx;
    (void)ev;
    if (g->prompt_s <= 0)
        g->prompt_s = bk_work_s() - g->prompt_from;
    return true;
}

static fm_status add(fm_scheduler *s, fm_model *m, uint32_t prompt, uint32_t max_new, fm_gen_fn fn,
                     void *ctx)
{
    static int32_t id[BI_PROMPT];
    uint64_t number;
    fm_gen_request q = {.model = m,
                        .prompt = id,
                        .prompt_len = prompt,
                        .max_new = max_new,
                        .ignore_eos = true,
                        .on_event = fn,
                        .ctx = ctx};
    for (uint32_t i = 0; i < prompt; i++)
        id[i] = (int32_t)(i * 7919 % 40000 + 100);
    id[0] = (int32_t)(turns++ % 49152);
    fm_sample_defaults(&q.sampling);
    return fm_scheduler_add(s, &q, &number);
}

static double at_share(double *v, uint32_t n, double share)
{
    if (n == 0)
        return 0;
    qsort(v, n, sizeof(double), bk_compare);
    uint32_t i = (uint32_t)ceil(share * n);
    return v[i > 0 ? i - 1 : 0];
}

/* Steps until there are so many gaps, or until the prompt's first token. */
static fm_status run_phase(fm_scheduler *s, const gaps *g, uint32_t count)
{
    bool busy = true;
    fm_status rc = FM_OK;
    while (rc >= 0 && busy && (count ? g->n < count : g->prompt_s <= 0))
        rc = fm_scheduler_step(s, &busy);
    return rc;
}

static double work_clock(void *ctx)
{
    (void)ctx;
    return bk_work_s();
}

static fm_status start_streams(fm_scheduler **s, fm_model *m, stream st[STREAMS], gaps *g)
{
    fm_status rc = fm_scheduler_new(s, fm_model_engine(m), STREAMS + 1);
    if (rc >= 0)
        fmi_scheduler_clock(*s, work_clock, NULL); /* it paces prompts by what it measures */
    *g = (gaps){0};
    for (uint32_t i = 0; i < STREAMS && rc >= 0; i++) {
        st[i] = (stream){.of = g};
        rc = add(*s, m, BI_CONTEXT, 4000, on_token, &st[i]);
    }
    if (rc >= 0)
        rc = run_phase(*s, g, BEFORE * STREAMS);
    g->n = 0;
    return rc;
}

fm_status bi_gaps_of(fm_model *m, bi_gaps *out)
{
    static gaps g;
    stream st[STREAMS];
    fm_scheduler *s = NULL;
    fm_status rc = start_streams(&s, m, st, &g);
    g.prompt_from = bk_work_s();
    if (rc >= 0)
        rc = add(s, m, BI_PROMPT, 1, on_prompt, &g);
    if (rc >= 0)
        rc = run_phase(s, &g, 0);
    uint32_t count = g.n;
    out->prompt_s = g.prompt_s;
    out->beside_median = at_share(g.ms, count, 0.5);
    out->beside_p99 = at_share(g.ms, count, 0.99);
    fm_scheduler_free(s);
    s = NULL;
    if (rc >= 0) /* as many tokens without the prompt: contexts grow alike */
        rc = start_streams(&s, m, st, &g);
    if (rc >= 0)
        rc = run_phase(s, &g, count);
    out->alone_median = at_share(g.ms, g.n, 0.5);
    out->alone_p99 = at_share(g.ms, g.n, 0.99);
    fm_scheduler_free(s);
    return rc;
}
