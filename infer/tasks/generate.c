/* generate.c - whole answers: all requests through one scheduler. */
#include "infer/sched/request.h"

#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"

#define RUN_TOGETHER 64u

typedef struct collector {
    fm_gen_result *r;
    bool logprobs;
    size_t cap, lp_cap;
    fm_status failed; /* a failure to collect, not of the request */
} collector;

static bool collect(void *ctx, const fm_gen_event *ev)
{
    collector *c = ctx;
    fm_gen_result *r = c->r;
    fm_buf_append(&r->text, ev->text, ev->text_len);
    r->cached = ev->cached;
    if (ev->token >= 0) {
        FM_THEN(c->failed, fm_grow(&r->tokens, &c->cap, r->count + 1, sizeof(int32_t)));
        if (c->failed == FM_OK && c->logprobs)
            c->failed = fm_grow(&r->logprobs, &c->lp_cap, r->count + 1, sizeof(float));
        if (c->failed != FM_OK)
            return false;
        r->tokens[r->count] = ev->token;
        if (c->logprobs)
            r->logprobs[r->count] = ev->logprob;
        r->count++;
    }
    if (ev->finish) {
        size_t n = FM_MIN(strlen(ev->finish), sizeof(r->finish) - 1);
        memcpy(r->finish, ev->finish, n);
        r->finish[n] = '\0';
    }
    if (ev->error) {
        fm_buf_clear(&r->text);
        fm_buf_str(&r->text, ev->error);
    }
    return true;
}

static fm_status run(fm_scheduler *s, const fm_gen_request *req, size_t n, collector *c)
{
    for (size_t i = 0; i < n; i++) {
        fm_gen_request q = req[i];
        q.on_event = collect;
        q.ctx = &c[i];
        fm_status rc = fm_scheduler_add(s, &q, NULL);
        if (rc != FM_OK)
            return n > 1 ? fm_error_prefix(rc, "request %zu", i) : rc;
    }
    bool busy = n > 0;
    while (busy) {
        FM_TRY(fm_go_on());
        FM_TRY(fm_scheduler_step(s, &busy));
    }
    FM_TRY(fm_go_on()); /* a step that was stopped failed the requests in it */
    for (size_t i = 0; i < n; i++)
        if (c[i].failed != FM_OK)
            return c[i].failed;
    return FM_OK;
}

fm_status fm_generate(fm_engine *e, const fm_gen_request *req, size_t n, fm_gen_result *out)
{
    for (size_t i = 0; i < n; i++) {
        memset(&out[i], 0, sizeof(out[i]));
        fm_buf_init(&out[i].text, 0);
    }
    collector *c = fm_calloc(FM_MAX(n, (size_t)1), sizeof(*c));
    if (!c)
        return FM_ENOMEM;
    for (size_t i = 0; i < n; i++)
        c[i] = (collector){.r = &out[i], .logprobs = req[i].want_logprobs};
    fm_scheduler *s = NULL;
    fm_status rc = fm_scheduler_new(&s, e, RUN_TOGETHER);
    FM_THEN(rc, run(s, req, n, c));
    fm_scheduler_free(s);
    fm_free(c);
    for (size_t i = 0; i < n && rc != FM_OK; i++)
        fm_gen_result_release(&out[i]);
    return rc;
}

void fm_gen_result_release(fm_gen_result *r)
{
    if (!r)
        return;
    fm_buf_release(&r->text);
    fm_free(r->tokens);
    fm_free(r->logprobs);
    memset(r, 0, sizeof(*r));
    fm_buf_init(&r->text, 0);
}
